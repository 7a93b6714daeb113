//! Inputs and effects of a lock table in neutral types, so that two engines with different types
//! can get the same inputs.
//!
//! Types only. `driver.rs` turns a [`What`] into an input of one engine and renders the effects of
//! the engine; `scene.rs` makes the inputs.

use std::fmt;

/// Names are chosen from lists, so they live for ever.
pub type Name = &'static str;

/// A span of time in milliseconds.
pub type Ms = u64;

/// An instant of the engine's clock, in nanoseconds.
pub type Ns = u64;

/// A connection: its slot, and its serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conn {
    pub slot: u32,
    pub serial: u32,
}

/// A token that was granted, or that was made up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub fence: u64,
    pub salt: u64,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", self.fence, self.salt)
    }
}

/// How a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Slot(u32),
    Read,
    Write,
    Lead,
}

/// The ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Left,
    Right,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    Acquire {
        key: Name,
        mode: Mode,
        wait: Ms,
        lease: Option<Ms>,
    },
    Enqueue {
        key: Name,
        mode: Mode,
        lease: Option<Ms>,
    },
    Wait {
        key: Name,
        wait: Ms,
    },
    Release {
        key: Name,
        token: Option<Token>,
    },
    Renew {
        key: Name,
        token: Option<Token>,
        lease: Option<Ms>,
    },
    Reclaim {
        key: Name,
        token: Option<Token>,
        lease: Option<Ms>,
    },
    Position {
        key: Name,
    },
    Resign {
        key: Name,
        token: Option<Token>,
    },
    Observe {
        key: Name,
    },
    Unobserve {
        key: Name,
    },
    Add {
        key: Name,
        delta: i64,
        down: bool,
    },
    Count {
        key: Name,
    },
    SetCount {
        key: Name,
        value: i64,
    },
    Put {
        key: Name,
        value: Name,
        ttl: Ms,
    },
    Fetch {
        key: Name,
    },
    Delete {
        key: Name,
    },
    Swap {
        key: Name,
        old: Name,
        new: Name,
        ttl: Ms,
    },
    Push {
        key: Name,
        value: Name,
        end: End,
    },
    Pop {
        key: Name,
        end: End,
    },
    AwaitPop {
        key: Name,
        end: End,
        wait: Ms,
    },
    Length {
        key: Name,
    },
    ListRange {
        key: Name,
        start: i64,
        stop: i64,
    },
    Meet {
        key: Name,
        count: u32,
        wait: Ms,
    },
    Listen {
        pattern: Name,
        group: Name,
    },
    Unlisten {
        pattern: Name,
        group: Name,
    },
    Signal {
        channel: Name,
        payload: Name,
    },
    Watch {
        pattern: Name,
    },
    Unwatch {
        pattern: Name,
    },
}

/// Bytes as clients name them: the first byte and the length; a length of 0 has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// What is asked about bytes.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Lock {
        exclusive: bool,
        span: Span,
        wait: Ms,
    },
    Unlock {
        span: Span,
    },
    Test {
        exclusive: bool,
        span: Span,
    },
    Cancel {
        exclusive: bool,
        span: Span,
    },
    Reclaim {
        exclusive: bool,
        span: Span,
    },
}

/// A request about the bytes of one resource, for an owner of the client.
#[derive(Clone, Copy, Debug)]
pub struct RangeRequest {
    pub resource: Name,
    pub owner: Name,
    pub ask: Ask,
}

/// A client that is named, and the secret that is shown for it.
#[derive(Clone, Copy, Debug)]
pub struct OfClient {
    pub id: Name,
    pub secret: Name,
}

/// A client that attaches or registers.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    pub client: OfClient,
    pub adapter: Option<Name>,
    pub ttl: Ms,
}

/// A value that was taken out of a list for one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popped {
    pub key: String,
    pub end: End,
    pub value: String,
}

/// How an engine is brought back from its records.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// How many of the last records are lost.
    pub lost: u64,
    /// Whether acknowledged changes may be missing among the other records.
    pub may_have_lost: bool,
    /// Another member takes over: it has replayed the records before it knew its epoch, and its
    /// fences begin above this one.
    pub failover_above: Option<u64>,
}

/// Everything that can happen to an engine.
#[derive(Clone, Debug)]
pub enum What {
    Request(Conn, Request),
    /// The name of the owner and the id of the request, which may be empty.
    RequestBy(Conn, [Name; 2], Request),
    Break(Conn, Name, u64),
    BreakAll(Conn, Name, Option<u64>),
    Attach(Conn, Attach),
    Register(Conn, Attach),
    Detach(Conn, OfClient),
    Range(Conn, Option<OfClient>, RangeRequest),
    ReclaimDone(Conn, Name, Option<Name>),
    Grace(Conn, bool),
    BreakRanges(Conn, Name, Option<Span>),
    BreakRangesOf(Conn, String),
    Hello(Conn, Option<Name>),
    DetectDeadlocks(Conn, bool),
    LetIn(Conn, Option<Name>),
    Keep(Conn, bool),
    HungUp(Conn, bool),
    Stalled(Conn, bool),
    OwnerStalled(Name, bool),
    ClientStalled(Name, bool),
    /// The name and the prefix of each.
    Shares(Vec<[Name; 2]>),
    Overrun(Conn, bool),
    Disconnected(Conn),
    CutOff(Conn),
    Unsent(Popped),
    Time(u64),
    MemoryFull(bool),
    StorageFull(bool),
    Durable(u64),
    Drain,
    Restart(Restart),
}

impl What {
    /// The connection that gets the answer, if this is a request.
    pub fn asker(&self) -> Option<Conn> {
        match *self {
            Self::Request(conn, _)
            | Self::RequestBy(conn, ..)
            | Self::Break(conn, ..)
            | Self::BreakAll(conn, ..)
            | Self::Attach(conn, _)
            | Self::Register(conn, _)
            | Self::Detach(conn, _)
            | Self::Range(conn, ..)
            | Self::ReclaimDone(conn, ..)
            | Self::Grace(conn, _)
            | Self::BreakRanges(conn, ..)
            | Self::BreakRangesOf(conn, _) => Some(conn),
            _ => None,
        }
    }
}

/// What a case needs to know of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A hold was granted, by an acquire, a wait, a reclaim or an enqueue; and how long it lasts.
    Granted(Token, Ms),
    Queued,
    /// How long the lease is now.
    Renewed(Ms),
    Done,
    Attached,
    TimedOut,
    Popped(Popped),
    /// Refused for this reason.
    Refused(String),
    /// Any other answer.
    Answer,
    NotYet,
    /// The client does not read: disconnect it.
    Overrun,
    /// A push, a note, a mark.
    Other,
}

/// One effect of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// All of it, to be compared.
    pub text: String,
    /// The connections that get the effect; none for a mark or a note.
    pub to: Vec<Conn>,
    pub news: News,
}

/// Everything that came of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub effects: Vec<Said>,
    pub records: Vec<String>,
    /// What it cost.
    pub work: [u64; 2],
}

/// What an operator sets, and where numbers begin.
#[derive(Clone, Debug)]
pub struct Rules {
    pub durable: bool,
    pub auto_release: bool,
    pub deadlock_detection: bool,
    /// The work budget of one slice of a deadlock search, and how often a search restarts; none for
    /// the default.
    pub search: Option<(u64, u32)>,
    /// 0 is none, 1 expiries, 2 all.
    pub notes: u8,
    pub locks_max: u32,
    pub holds_max: u32,
    pub waiters_per_key_max: u32,
    pub keys_max: u32,
    pub list_length_max: u32,
    pub subscriptions_max: u32,
    pub lease_default: Ms,
    pub clients_per_adapter_max: u32,
    pub clients_max: Vec<(Name, u32)>,
    pub ranges_per_resource_max: u32,
    pub ranges_per_client_max: u32,
    pub ranges_max: u32,
    pub range_wait_max: Ms,
    pub grace_period: Ms,
    pub grace_is_strict: bool,
    pub gc_interval: Ms,
    pub gc_idle_max: Ms,
    pub fence: u64,
    pub seed: u64,
}

/// An engine, whichever it is.
pub trait Subject {
    /// Takes one input.
    fn apply(&mut self, now: Ns, what: &What) -> Heard;
    /// When time has to pass at the latest.
    fn next_deadline(&self) -> Option<Ns>;
    /// A few figures that are cheap to read.
    fn figures(&self) -> String;
    /// Everything that can be seen from outside, of the engine and of these connections.
    fn look(&mut self, now: Ns, conns: &[Conn]) -> String;
    /// What records amount to, in no order.
    fn image(&self) -> Vec<String>;
    /// Checks what must always hold.
    fn check(&self);
    /// How many records there were in this life.
    fn record_count(&self) -> u64;
    /// Whether the key is held with this fence.
    fn is_held(&self, now: Ns, key: Name, fence: u64) -> bool;
    /// Whether a renewal of this owner with this token can only come from it.
    fn proves(&self, owner: Name, key: Name, token: Token) -> bool;
    /// Whether there is such a client and this is its secret.
    fn may_speak_for(&mut self, of: OfClient) -> bool;
    /// Whether the client has this resource's bytes, for this owner of it.
    fn has_ranges(&self, now: Ns, resource: Name, client: &str, owner: Name) -> bool;
}
