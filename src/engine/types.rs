//! The engine's whole vocabulary: what can be asked, what is answered, what happens besides.
//!
//! Types only, no behaviour. `wire` makes requests and spells replies; `engine` does the rest.

use crate::base::{ClientId, Fence, Millis, Token};
use crate::key::Key;

/// What a client asks of the lock table. Borrowed from the bytes it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `l sl rl wl`: take the key now, or wait in line for up to `wait`.
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
    /// `e se re we`: take the key now, or take a place in line and return at once.
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
        /// How long to wait; zero means look once and leave the line.
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
    /// `pos`: where this client stands in the key's line.
    Position {
        /// The name asked about.
        key: &'a [u8],
    },
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
}

/// The one answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// An enqueue took a place in line.
    Queued,
    /// A renewal succeeded.
    Renewed {
        /// The lease that runs from now on.
        lease: Millis,
        /// The fence of the grant, unchanged.
        fence: Fence,
    },
    /// A release succeeded.
    Released,
    /// The answer to `pos`: 0 = holds the key, 1 = next in line, and so on.
    Position(u32),
    /// The answer to `pos` for a client that neither holds nor waits.
    NoPosition,
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
}

/// A consequence of a step, to be carried out in order by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer the client's one outstanding request.
    Reply(ClientId, Reply),
    /// Tell the client something besides.
    Push(ClientId, Push),
}

/// The consequences of one step, in the order in which they happened.
pub type Effects = Vec<Effect>;
