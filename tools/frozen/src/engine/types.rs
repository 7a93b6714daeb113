//! The engine's whole vocabulary: inputs, requests, replies, pushes, effects.
//!
//! Types only, no behaviour. `wire` makes requests and spells replies; `engine` does the rest. A client
//! that is built without the daemon has these words and none of the rest.
//!
//! The engine knows a client in two ways. Its *connection* ([`ConnId`]) is where requests come from
//! and where answers and pushes go. Its *owner* is what holds keys, has tickets and waits in
//! queues. They are two, because an answer is lost with its socket and a hold need not be. Every
//! connection is born with an owner of its own; it may attach to a client and acquire for that
//! (`clients.rs`), or ask for an owner that is known by its name (`named_owner.rs`). Inside the engine
//! `conn.rs` keeps the one and `owner.rs` the other.

mod attached;
mod note;
mod push;
mod ranges;
mod recorded;

pub use self::attached::{
    ADAPTER_CHARS_MAX, ADAPTER_DEFAULT, Attach, SECRET_BYTES_MAX, Secret, SecretHash,
};
pub use self::note::{Note, NoteOf, Noted, Notes};
pub use self::push::{Change, Event, Loss, Push};
pub use self::ranges::{
    ByteRange, GraceState, HeldRange, OfClient, RANGE_OWNER_BYTES_MAX, RangeAsk, RangeCursor,
    RangeGrant, RangeRequest, RangesOf, Sharing, Span,
};
pub use self::recorded::Record;

use std::fmt;
use std::rc::Rc;

use crate::base::{ConnId, Fence, Millis, Token};
use crate::key::Key;
use crate::memory::block_bytes;

/// Stands for the serial number of a connection where something belongs to an attached client. No
/// connection has it.
pub const ATTACHED_SERIAL: u32 = u32::MAX;

/// A value that a client stored. The table and the answers share it; it never changes.
pub type Value = Rc<[u8]>;

/// The name of somebody who is let in. All who are let in as the same share it.
pub type User = Rc<String>;

/// How much memory a value of this length takes, with its two counters and the allocator's share.
#[must_use]
pub const fn value_bytes(len: usize) -> usize {
    block_bytes(2 * size_of::<usize>() + len)
}

/// A part of all names that has figures of its own: the names that begin with the prefix, and with no
/// longer prefix of another share. Several prefixes may have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// What it is called in figures.
    pub name: Box<str>,
    /// What names of keys and resources in it begin with.
    pub prefix: Box<[u8]>,
}

/// Everything the engine can be told. Its decisions depend only on these, in order and each with
/// its time, and on [`Origin`](super::Origin): to replay a log of them gives the same answers,
/// fences and tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// A connection asks for something. It must not be parked, because on one connection each
    /// answer comes before the next request. If the effects contain no answer, it is parked from
    /// now on. If they contain [`Effect::NotYet`] for it, nothing was decided.
    Request(ConnId, Request<'a>),
    /// The same, but what is granted belongs to a named owner and not to the connection.
    RequestBy(ConnId, By<'a>, Request<'a>),
    /// An operator, on this connection, ends the grant of a key that has this fence. Its holder is
    /// told that it has lost it. Answered with [`Reply::Done`], or refused if there is none.
    Break(ConnId, &'a [u8], Fence),
    /// The same for all grants that the key has now, if there is no fence. Answered with how many were
    /// ended; if there are very many, that comes later.
    BreakAll(ConnId, &'a [u8], Option<Fence>),
    /// From now on what the connection acquires belongs to this client. Answered with
    /// [`Reply::Attached`].
    Attach(ConnId, Attach<'a>),
    /// The client of this id is forgotten, and everything it has is released. Answered when that is
    /// done.
    Detach(ConnId, &'a str, Secret<'a>),
    /// A connection asks for something about byte ranges, for the client it is attached to, for the one
    /// that it names and whose secret it shows, or for itself.
    Range(ConnId, Option<OfClient<'a>>, RangeRequest<'a>),
    /// The client of this id, to which the connection is attached or whose secret it shows, has back what
    /// it wants of what it held before a restart; the rest is released.
    ReclaimDone(ConnId, &'a str, Option<Secret<'a>>),
    /// Answered with [`Reply::Grace`]. If it is told to, the time in which clients have back what they held
    /// before a restart ends now.
    Grace {
        /// Who asks.
        conn: ConnId,
        /// Whether it is to end.
        ends: bool,
    },
    /// An operator, on this connection, ends all range locks of a resource that overlap these bytes, or
    /// all there are. Their holders are told. Answered with how many were ended.
    BreakRanges(ConnId, &'a [u8], Option<ByteRange>),
    /// An operator, on this connection, ends all range locks of a client, of all resources. The client is
    /// named as in lists: by its id, or `#` and the number of a connection. It is told. Answered with how
    /// many were ended.
    BreakRangesOf(ConnId, &'a [u8]),
    /// A client is known from now on, without a connection of its own: what it asks for comes with its
    /// secret ([`OfClient`]), and its time to live runs from each such request. Answered with
    /// [`Reply::Attached`].
    Register(ConnId, Attach<'a>),
    /// A connection said `hello`: it understands pushes, and perhaps gave a name.
    Hello(ConnId, Option<&'a str>),
    /// Whether requests of this connection are refused rather than wait for themselves: see
    /// [`Refusal::Deadlock`].
    DetectDeadlocks(ConnId, bool),
    /// Whom the connection was let in as, if that has a name: people see it beside what it holds.
    LetIn(ConnId, Option<User>),
    /// Whether what this connection is granted from now on outlives it: such a grant is not released
    /// when the connection ends. It does not apply to what it acquires for a client.
    Keep(ConnId, bool),
    /// Whether the peer has hung up and the server has yet to serve the connection for the last
    /// time. Until it does, the connection's waits are neither granted nor answered, nobody meets it at
    /// a barrier, and it does not count as a recipient. Has no effects by itself.
    HungUp(ConnId, bool),
    /// Whether the disk keeps requests that the connection has sent from being looked at. There may be
    /// renewals among them, so the leases of what it holds do not end before they have been, unless they
    /// were over when it began.
    Stalled(ConnId, bool),
    /// Whether the disk keeps a renewal waiting that [`Engine::proves`](super::Engine::proves) to be of
    /// the owner with this name: its leases do not end before that is decided. Said once for each such
    /// renewal, and taken back once.
    OwnerStalled(&'a str, bool),
    /// Whether the disk keeps a request waiting for which somebody
    /// [may speak](super::Engine::may_speak_for) for the client of this id: its time to live does not end
    /// before that is decided. Said once for each such request, and taken back once.
    ClientStalled(&'a str, bool),
    /// Which shares there are from now on. What is held is counted for its new share a moment later.
    Shares(&'a [Share]),
    /// Whether the client has left so much unread that nothing more can be pushed to it.
    Overrun(ConnId, bool),
    /// The connection is gone. Its waits and subscriptions end now, and its holds are released
    /// (unless auto-release is off: then they last until their leases end). What belongs to its client
    /// stays until the client has been away for its time to live.
    Disconnected(ConnId),
    /// We end the connection, because the daemon stops and its grants are recorded. Its waits and
    /// subscriptions end now, but its grants stay, and their leases do not end any more: a server that
    /// stops is not a client that left. Nobody is granted what it waited for.
    CutOff(ConnId),
    /// A popped value could not be sent to its client: it goes back to its list, or to the next
    /// popper that waits there; at once, or when time passes if very many have to leave the queue first.
    Unsent(Popped),
    /// Time has passed: leases and waits end, idle keys are forgotten, and what ended connections
    /// left behind is undone. The number is how much work may be spent on it, in units of about a
    /// nanosecond; a little is done even if it is 0. If something is left over,
    /// [`Engine::next_deadline`](super::Engine::next_deadline) is 0.
    Time(u64),
    /// Whether so much memory is in use that nothing may grow: see [`Refusal::Memory`].
    MemoryFull(bool),
    /// Whether there is no room on disk for anything that grows: see [`Refusal::Storage`].
    StorageFull(bool),
    /// Everything up to this record is kept, and may be told. The leases of grants that could not be
    /// told before begin now: nobody is told of a grant that is over by then.
    Durable(u64),
    /// The next record of an earlier run, before anybody is served. Nothing is said or recorded, and
    /// nothing ends. What is granted by it belongs to no connection until somebody shows its token.
    Restore(&'a Record),
    /// Everything is restored, and clients are served from now on: the lease of every grant that
    /// was restored begins now.
    Serve {
        /// Whether something that an earlier run granted and told may be missing among the records.
        may_have_lost: bool,
    },
    /// Shutdown has begun: every parked command is refused now, and every new acquire from now on.
    /// Releases and renewals still work, and leases still end.
    Drain,
}

/// Who asks, if it is not the connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By<'a> {
    /// The name of the owner: what it is granted belongs to the name, whatever becomes of the
    /// connection.
    pub owner: &'a str,
    /// Idempotency key: the request id and the asker, empty if the request has no id. A second
    /// acquire of the same key with the same bytes by the same owner is answered as the first was.
    pub request: &'a [u8],
}

/// What a client asks for. Borrowed from the bytes it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `l sl rl wl elect`: take the key now, or wait in the queue for up to `wait`.
    Acquire {
        /// The name to lock.
        key: &'a [u8],
        /// What kind of hold.
        mode: Mode,
        /// How long to wait; zero means try once.
        wait: Millis,
        /// How long the grant lasts without a renewal; `None` is the server's default.
        lease: Option<Millis>,
    },
    /// `e se re we`: take the key now, or take a place in the queue and return at once.
    Enqueue {
        /// The name to lock.
        key: &'a [u8],
        /// What kind of hold.
        mode: Mode,
        /// How long the grant lasts without a renewal; `None` is the server's default.
        lease: Option<Millis>,
    },
    /// `w sw rw ww`: wait for the key that this client enqueued for.
    Wait {
        /// The name that was enqueued for.
        key: &'a [u8],
        /// How long to wait; zero means look once, and leave the queue if it is not granted yet.
        wait: Millis,
    },
    /// `r sr rr wr`: let go.
    Release {
        /// The locked name.
        key: &'a [u8],
        /// The token of the grant; `None` if the client sent what cannot be a token.
        token: Option<Token>,
    },
    /// `n sn rn wn`: start the lease again.
    Renew {
        /// The locked name.
        key: &'a [u8],
        /// The token of the grant; `None` if the client sent what cannot be a token.
        token: Option<Token>,
        /// The new lease; `None` is the server's default, not the lease of the grant.
        lease: Option<Millis>,
    },
    /// `reclaim`: have back a grant that was restored after a restart; else as a renewal.
    Reclaim {
        /// The locked name.
        key: &'a [u8],
        /// The token of the grant; `None` if the client sent what cannot be a token.
        token: Option<Token>,
        /// The new lease; `None` is the lease that the grant has.
        lease: Option<Millis>,
    },
    /// `pos`: this client's place in the key's queue.
    Position {
        /// The name asked about.
        key: &'a [u8],
    },
    /// `resign`: let go of leadership.
    Resign {
        /// The name that is led.
        key: &'a [u8],
        /// The token of the grant; `None` if the client sent what cannot be a token.
        token: Option<Token>,
    },
    /// `observe`: be told when this key's leader changes.
    Observe {
        /// The name that is led.
        key: &'a [u8],
    },
    /// `unobserve`: end an `observe`.
    Unobserve {
        /// The name that is led.
        key: &'a [u8],
    },
    /// `incr decr`: add to a counter; one that does not exist counts as 0.
    Add {
        /// The counter's name.
        key: &'a [u8],
        /// What to add; `decr` adds its negation.
        delta: i64,
        /// Whether the verb was `decr`: watchers are told which of the two it was.
        down: bool,
    },
    /// `get`: read a counter.
    Count {
        /// The counter's name.
        key: &'a [u8],
    },
    /// `cset`: set a counter.
    SetCount {
        /// The counter's name.
        key: &'a [u8],
        /// Its new value.
        value: i64,
    },
    /// `kset`: store a value.
    Put {
        /// Its name.
        key: &'a [u8],
        /// The value, never empty.
        value: &'a [u8],
        /// How long it lives; zero is for ever.
        ttl: Millis,
    },
    /// `kget`: read a value.
    Fetch {
        /// Its name.
        key: &'a [u8],
    },
    /// `kdel`: delete a value.
    Delete {
        /// Its name.
        key: &'a [u8],
    },
    /// `kcas`: store a value if the present one is the expected one.
    Swap {
        /// Its name.
        key: &'a [u8],
        /// The expected value; empty if none is expected.
        old: &'a [u8],
        /// The new value, never empty.
        new: &'a [u8],
        /// How long it lives; zero is for ever.
        ttl: Millis,
    },
    /// `lpush rpush`: put a value into a list.
    Push {
        /// The list's name.
        key: &'a [u8],
        /// The value, never empty.
        value: &'a [u8],
        /// At which end.
        end: End,
    },
    /// `lpop rpop`: take a value out of a list, if there is one.
    Pop {
        /// The list's name.
        key: &'a [u8],
        /// At which end.
        end: End,
    },
    /// `blpop brpop`: take a value out of a list, waiting for up to `wait`.
    AwaitPop {
        /// The list's name.
        key: &'a [u8],
        /// At which end.
        end: End,
        /// How long to wait; zero means try once.
        wait: Millis,
    },
    /// `llen`: the length of a list.
    Length {
        /// The list's name.
        key: &'a [u8],
    },
    /// `lrange`: read a part of a list.
    Range {
        /// The list's name.
        key: &'a [u8],
        /// First index; negative counts from the end.
        start: i64,
        /// Last index, included; negative counts from the end.
        stop: i64,
        /// How the answer is written.
        form: ListForm,
    },
    /// `bwait`: wait at a barrier until `count` clients have come.
    Meet {
        /// The barrier's name.
        key: &'a [u8],
        /// How many must come, at least 1.
        count: u32,
        /// How long to wait; with zero, the barrier fails unless this client completes it.
        wait: Millis,
    },
    /// `listen`: receive signals.
    Listen {
        /// Which channels: those that match (`pattern.rs`).
        pattern: &'a [u8],
        /// The group to join, of which one member receives each signal; empty for no group.
        group: &'a [u8],
    },
    /// `unlisten`: end a `listen`.
    Unlisten {
        /// The pattern of the `listen`.
        pattern: &'a [u8],
        /// The group of the `listen`.
        group: &'a [u8],
    },
    /// `signal`: send a payload to every client that listens to the channel.
    Signal {
        /// The channel.
        channel: &'a [u8],
        /// The payload.
        payload: &'a [u8],
    },
    /// `watch`: be told when keys change.
    Watch {
        /// Which keys: those that match (`pattern.rs`).
        pattern: &'a [u8],
    },
    /// `unwatch`: end a `watch`.
    Unwatch {
        /// The pattern of the `watch`.
        pattern: &'a [u8],
    },
}

impl Request<'_> {
    /// Whether the change that it asks for takes room on disk. Not among these are what only gives
    /// room back, and renewals, which must not fail for want of it.
    #[must_use]
    pub fn takes_room(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. }
                | Self::Enqueue { .. }
                | Self::Add { .. }
                | Self::SetCount { .. }
                | Self::Put { .. }
                | Self::Swap { .. }
                | Self::Push { .. }
        )
    }

    /// Whether what it takes out comes back, which takes room on disk, if its client is not told.
    #[must_use]
    pub fn may_come_back(&self) -> bool {
        matches!(self, Self::Pop { .. } | Self::AwaitPop { .. })
    }
}

/// How a part of a list is written: it depends on the client's protocol. The engine writes the
/// answer itself, in one pass, because a list can have hundreds of thousands of values.
#[derive(Clone, Copy)]
pub struct ListForm {
    /// Appends one value.
    pub push: fn(&mut Vec<u8>, &[u8]),
    /// Most bytes of all values with the commas between them. A longer part is refused.
    pub bytes_max: usize,
}

impl fmt::Debug for ListForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} bytes", self.bytes_max)
    }
}

/// Two forms with the same limit are the same: each protocol has one.
impl PartialEq for ListForm {
    fn eq(&self, other: &Self) -> bool {
        self.bytes_max == other.bytes_max
    }
}

impl Eq for ListForm {}

/// The ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where `lpush` and `lpop` work.
    Left,
    /// Where `rpush` and `rpop` work.
    Right,
}

/// How a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One of `limit` slots. A lock is a semaphore of one.
    Slot {
        /// How many may hold at once, at least 1.
        limit: u32,
    },
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
    /// As the leader: the one holder of a lock. Observers are told of it.
    Lead,
}

/// The one answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An acquire, a wait or a reclaim succeeded.
    Granted {
        /// What a release or a renewal has to show; contains the fence.
        token: Token,
        /// The lease that runs from now on.
        lease: Millis,
    },
    /// An enqueue found the key free and took it.
    Acquired {
        /// What a release or a renewal has to show; contains the fence.
        token: Token,
        /// The lease that runs from now on.
        lease: Millis,
    },
    /// An enqueue took a place in the queue.
    Queued,
    /// A renewal succeeded.
    Renewed {
        /// The lease that runs from now on.
        lease: Millis,
        /// The fence of the grant, unchanged.
        fence: Fence,
    },
    /// The request is done, and there is nothing to return.
    Done,
    /// A count, a length or a place in the queue.
    Number(i64),
    /// The connection acquires for its client from now on.
    Attached {
        /// The number of this life of the server.
        epoch: u64,
        /// Whether the client was not known before.
        is_new: bool,
        /// For how long range locks that the client held before a restart are kept for it. None if it has
        /// none to have back.
        reclaim: Option<Millis>,
    },
    /// `rangetest`: nothing is in the way.
    RangeFree,
    /// `rangetest`: this is in the way.
    RangeHeld(Box<HeldRange>),
    /// `rangecancel`: the wait has ended, and the lock will not be granted.
    Cancelled,
    /// `rangecancel`: it came too late, the bytes are held.
    AlreadyGranted,
    /// The bytes are kept for those who held them before a restart, for so long at most.
    InGrace(Millis),
    /// How far that is.
    Grace(GraceState),
    /// A stored value.
    Value(Value),
    /// A value that was taken out of a list for this client alone. If it cannot be sent, it goes
    /// back: see [`Input::Unsent`].
    Popped(Popped),
    /// A part of a list: its values as [`ListForm`] writes them, with commas between them.
    Values(Vec<u8>),
    /// There is no value, or no place in the queue.
    Nothing,
    /// `kcas`: the present value is not the expected one.
    Conflict,
    /// The wait ended before the key was free.
    TimedOut,
    /// The request was refused and changed nothing.
    Refused(Refusal),
}

/// Why a request was refused. A refusal is a normal answer, not a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The token does not hold this key, or no longer.
    NotHolder,
    /// The key is a read-write lock and the request is for a lock or a semaphore, or vice versa.
    TypeMismatch,
    /// The key is a semaphore with another number of slots.
    LimitMismatch,
    /// No room for another key, and none is idle; or no room for another grant.
    MaxLocks,
    /// No room for another waiter on this key.
    MaxWaiters,
    /// A wait without an enqueue before it.
    NotEnqueued,
    /// A second enqueue for the same key on the same connection.
    AlreadyEnqueued,
    /// The lease ended before this request came.
    LeaseExpired,
    /// The daemon is shutting down and grants nothing new.
    Draining,
    /// No room for another counter, value, list or barrier.
    MaxKeys,
    /// No room for another value in this list.
    ListFull,
    /// The barrier is for another number of clients.
    CountMismatch,
    /// The sum does not fit into a counter.
    Overflow,
    /// The part of the list is longer than an answer may be.
    RangeTooLong,
    /// The pattern has a wildcard where none may be: see `pattern.rs`.
    BadPattern,
    /// This connection has as many subscriptions as it may.
    MaxSubscriptions,
    /// So much memory is in use that nothing may grow. Of all that can be refused this is looked at
    /// last, when everything else allows the request.
    Memory,
    /// There is no room on disk for a change that takes some. Looked at first, whatever else might
    /// be wrong with the request.
    Storage,
    /// `reclaim`: the token does not hold this key, or no longer.
    Reclaim,
    /// The request would wait for itself: nobody before it can get on as long as it waits. Nothing that
    /// its client holds has changed.
    Deadlock,
    /// `reclaim`: no grant was restored when this server started, so there is none to have back.
    NoGrace,
    /// This is not the secret of the client.
    WrongSecret,
    /// The adapter has as many clients as the operator allows that very adapter.
    AdapterFull,
    /// No room for another client of this adapter, or for another adapter.
    MaxClients,
    /// The connection is attached to another client.
    OtherClient,
    /// There is no client of this id.
    UnknownClient,
    /// The client was detached while this command waited.
    Detached,
    /// There are no such bytes: they would end behind the last one there can be.
    BadRange,
    /// No room for another range lock on this resource.
    MaxRangesOfResource,
    /// No room for another range lock of this client.
    MaxRangesOfClient,
    /// No room for another range lock at all.
    MaxRanges,
    /// The owner waits for bytes already, on another connection, and for others than these.
    Busy,
}

/// A value on its way from a list to the client that popped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popped {
    /// The list's name.
    pub key: Key,
    /// The end it came from.
    pub end: End,
    /// The value.
    pub value: Value,
}

/// A consequence of an input. The server delivers all answers first, then the other effects in
/// order, so that the answer to a command comes before any push that the same command caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What follows must not be heard before the record of this number, and all before it, are on
    /// disk; 0 if it need not wait. Holds until the next mark or the end of the list; before the
    /// first one nothing has to wait. Made only if changes are recorded: see
    /// [`Rules::durable`](super::Rules::durable).
    Mark(u64),
    /// Answer the connection's one outstanding request.
    Reply(ConnId, Reply),
    /// The connection's one outstanding request was not decided, because too much has to be done
    /// before it. The server puts the same request before the engine again in its next turn. Each
    /// time more of it is done.
    NotYet(ConnId),
    /// Send a push to this connection.
    Push(ConnId, Push),
    /// Send the same push to all of these connections.
    Broadcast(Vec<ConnId>, Push),
    /// The client does not read what is sent to it: disconnect it.
    Overrun(ConnId),
    /// The grace period is over, and so many range locks were released that nobody has had back.
    GraceOver(u64),
    /// Write a line to the log. Made only if the log shows it: see
    /// [`Rules::notes`](super::Rules::notes).
    Note(Box<Note>),
}

/// The consequences of inputs, in the order in which they happened.
pub type Effects = Vec<Effect>;
