//! The engine's whole vocabulary: what can be asked, what is answered, what happens besides.
//!
//! Types only, no behaviour. `wire` makes requests and spells replies; `engine` does the rest.

use std::rc::Rc;

use crate::base::{ConnId, Fence, Millis, Token};
use crate::key::Key;

/// A value a client stored: shared between the table and the answers that carry it, never changed.
pub type Value = Rc<[u8]>;

/// Everything the engine can be told. All its decisions follow from these, in order, each with its
/// time, and from [`Origin`](super::Origin): a log of them replays to the same answers, fences and
/// tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// A connection asks for something. It must not be parked: on one connection, the answer comes
    /// before the next question. No answer among the effects means that it is parked from now on.
    Request(ConnId, Request<'a>),
    /// A connection said `hello`: it understands pushes, and perhaps gave a name.
    Hello(ConnId, Option<&'a str>),
    /// Whether the peer has hung up while the connection still waits to be served for the last time.
    /// Until then nothing is granted to it that it waits for, and nobody counts it as a recipient.
    HungUp(ConnId, bool),
    /// Whether the connection has so much unread that it can be told nothing more.
    Overrun(ConnId, bool),
    /// The connection is gone: its waits end now, what it held passes on (unless auto-release is off,
    /// then what it held runs out its lease), and it hears no more.
    Disconnected(ConnId),
    /// A popped value could not be told to its client: it goes back to where it came from, or to
    /// whoever waits for one.
    Unsent(Popped),
    /// Time has passed: leases and waits end, idle keys are forgotten, departures go on.
    Time,
    /// Shutdown has begun: every parked command is refused now, every new acquire from now on.
    /// Releases and renewals go on, and leases still end.
    Drain,
}

/// What a client asks of the lock table. Borrowed from the bytes it arrived in.
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
    /// `w sw rw ww`: wait for what this client enqueued for.
    Wait {
        /// The name that was enqueued for.
        key: &'a [u8],
        /// How long to wait; zero means look once and leave the queue.
        wait: Millis,
    },
    /// `r sr rr wr`: let go.
    Release {
        /// The locked name.
        key: &'a [u8],
        /// What the grant said; `None` when the client sent something no grant ever said.
        token: Option<Token>,
    },
    /// `n sn rn wn`: start the lease again.
    Renew {
        /// The locked name.
        key: &'a [u8],
        /// What the grant said; `None` when the client sent something no grant ever said.
        token: Option<Token>,
        /// The new lease; `None` is the server's default, not the lease of the grant.
        lease: Option<Millis>,
    },
    /// `pos`: where this client stands in the key's queue.
    Position {
        /// The name asked about.
        key: &'a [u8],
    },
    /// `resign`: let go of leadership.
    Resign {
        /// What was led.
        key: &'a [u8],
        /// What the grant said; `None` when the client sent something no grant ever said.
        token: Option<Token>,
    },
    /// `observe`: hear of changes of this key's leader.
    Observe {
        /// What is led.
        key: &'a [u8],
    },
    /// `unobserve`: hear of them no longer.
    Unobserve {
        /// What is led.
        key: &'a [u8],
    },
    /// `incr decr`: add to a counter, which is 0 if it was never heard of.
    Add {
        /// The counter's name.
        key: &'a [u8],
        /// What to add; `decr` adds its negation.
        delta: i64,
        /// Whether the client said it as `decr`, which is what watchers are told.
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
        /// What it is from now on.
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
    /// `kdel`: forget a value.
    Delete {
        /// Its name.
        key: &'a [u8],
    },
    /// `kcas`: store a value if the present one is the expected one.
    Swap {
        /// Its name.
        key: &'a [u8],
        /// What must be there; empty: nothing must be there.
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
    /// `llen`: how long is a list.
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
    },
    /// `bwait`: wait until `count` clients have come.
    Meet {
        /// The barrier's name.
        key: &'a [u8],
        /// How many must come, at least 1.
        count: u32,
        /// How long to wait; zero means to complete it or not at all.
        wait: Millis,
    },
    /// `listen`: hear signals.
    Listen {
        /// On channels that match.
        pattern: &'a [u8],
        /// As one of a group of which one hears each signal; empty: on its own.
        group: &'a [u8],
    },
    /// `unlisten`: hear them no longer.
    Unlisten {
        /// As it was listened to.
        pattern: &'a [u8],
        /// As it was listened to.
        group: &'a [u8],
    },
    /// `signal`: tell everyone who listens.
    Signal {
        /// Where.
        channel: &'a [u8],
        /// What.
        payload: &'a [u8],
    },
    /// `watch`: hear of changes of keys.
    Watch {
        /// Of those that match.
        pattern: &'a [u8],
    },
    /// `unwatch`: hear of them no longer.
    Unwatch {
        /// As it was watched.
        pattern: &'a [u8],
    },
}

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
    /// As the one holder of a lock, who leads, of which observers are told.
    Lead,
}

/// The one answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An acquire or a wait succeeded.
    Granted {
        /// What to show for release and renewal; carries the fence.
        token: Token,
        /// The lease that runs from now on.
        lease: Millis,
    },
    /// An enqueue found the key free and took it.
    Acquired {
        /// What to show for release and renewal; carries the fence.
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
    /// It is done, and there is no more to say.
    Done,
    /// A count, a length, a place in the queue.
    Number(i64),
    /// A stored value.
    Value(Value),
    /// A value that was taken out of a list and is this client's alone. If it cannot be told, it
    /// goes back: see [`Input::Unsent`].
    Popped(Popped),
    /// A part of a list.
    Values(Vec<Value>),
    /// Nothing is there: no value, no place in the queue.
    Nothing,
    /// `kcas`: another value is there.
    Conflict,
    /// The wait ended before the key was free.
    TimedOut,
    /// Not possible; nothing changed.
    Refused(Refusal),
}

/// Why a request was refused. A refusal is a normal answer, not a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The token does not hold this key (any more).
    NotHolder,
    /// The key is a read-write lock and the request is not, or the other way round.
    TypeMismatch,
    /// The key is a semaphore with another number of slots.
    LimitMismatch,
    /// No room for another key, and none is idle.
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
    /// The sum does not fit a counter.
    Overflow,
    /// The part of the list is longer than an answer may be.
    RangeTooLong,
    /// Wildcards where they cannot stand.
    BadPattern,
    /// This connection listens to as much as it may.
    MaxSubscriptions,
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

/// News for a client that did not ask for it just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Push {
    /// A grant of this client ended without the client letting go.
    Lost {
        /// The name that was held.
        key: Key,
        /// The fence of the grant that ended.
        fence: Fence,
    },
    /// Somebody signalled on a channel this client listens to.
    Signal {
        /// Where.
        channel: Value,
        /// What.
        payload: Value,
    },
    /// Something happened to a key this client watches.
    Watch {
        /// What happened.
        event: Event,
        /// To which key.
        key: Key,
    },
    /// The leader of a key this client observes has changed.
    Leader {
        /// How.
        change: Change,
        /// Of which key.
        key: Key,
    },
}

/// What can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lock, a slot, a read or write lock was granted and its client knows.
    Acquire,
    /// One was let go, ran out, or was lost with its connection.
    Release,
    /// A counter was counted up.
    Incr,
    /// A counter was counted down.
    Decr,
    /// A counter was set.
    Cset,
    /// A value was stored.
    Kset,
    /// A value was forgotten, or was to be.
    Kdel,
    /// A value was exchanged.
    Kcas,
    /// A value was put in at the left.
    Lpush,
    /// A value was put in at the right.
    Rpush,
    /// A value was taken out at the left.
    Lpop,
    /// A value was taken out at the right.
    Rpop,
    /// A value was taken out at the left by somebody willing to wait.
    Blpop,
    /// A value was taken out at the right by somebody willing to wait.
    Brpop,
    /// A leader was elected.
    Elect,
    /// A leader resigned.
    Resign,
}

/// How leadership of a key can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a leader.
    Elected,
    /// The leader has let go of its own accord.
    Resigned,
    /// The next in the queue has taken over.
    Failover,
}

/// A consequence of an input. The server says all answers first, then the rest in this order, so that
/// the answer to a command comes before any push that the same command caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer the client's one outstanding request.
    Reply(ConnId, Reply),
    /// Tell the client something besides.
    Push(ConnId, Push),
    /// Tell all of these the same.
    Broadcast(Vec<ConnId>, Push),
    /// The client does not read what it is told: disconnect it.
    Overrun(ConnId),
    /// For the log, and only if somebody reads it: see [`Rules::notes`](super::Rules::notes).
    Note(Note),
}

/// What became of a grant, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What happened.
    pub what: Noted,
    /// The key that was granted.
    pub key: Key,
    /// Which grant.
    pub fence: Fence,
    /// The connection it was granted to.
    pub conn: ConnId,
}

/// What can become of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It was made.
    Granted,
    /// Somebody who had its token let go.
    Released,
    /// Its connection ended.
    Disconnected,
    /// Its lease ended.
    Expired,
}

/// Which notes are taken. Each costs an allocation or two, so none is taken that nobody reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notes {
    /// None.
    #[default]
    Off,
    /// Of leases that ended.
    Expiries,
    /// Of every grant and how it ended.
    All,
}

/// The consequences of inputs, in the order in which they happened.
pub type Effects = Vec<Effect>;
