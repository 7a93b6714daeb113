//! What clients are told without having asked just now: a part of the engine's vocabulary (`types.rs`).
//!
//! Types only. Who is told is decided where it happens; `wire` spells it.

use super::{ByteRange, Value};
use crate::base::Fence;
use crate::key::Key;

/// A message to a client that is not the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Push {
    /// A grant of this client ended, and the client did not release it.
    Lost {
        /// The name that was held.
        key: Key,
        /// The fence of the grant that ended.
        fence: Fence,
        /// Why it ended.
        why: Loss,
    },
    /// Bytes that this client had locked are not locked any more, and it did not unlock them.
    RangeLost {
        /// The resource.
        resource: Key,
        /// Which bytes.
        range: ByteRange,
        /// For whom the client held them; empty for itself.
        owner: Key,
        /// Why.
        why: Loss,
    },
    /// A client signalled on a channel that this client listens to.
    Signal {
        /// The channel.
        channel: Value,
        /// The payload.
        payload: Value,
    },
    /// Something happened to a key that this client watches.
    Watch {
        /// What happened.
        event: Event,
        /// The key.
        key: Key,
    },
    /// The leader of a key that this client observes has changed.
    Leader {
        /// How it changed.
        change: Change,
        /// The key.
        key: Key,
    },
}

/// Why a grant can end without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its lease ended.
    Expired,
    /// An operator has ended it.
    Broken,
}

/// What can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lock, a slot, a read or write lock was granted, and its client was told.
    Acquire,
    /// A grant was released, its lease ended, or its connection ended.
    Release,
    /// `incr` added to a counter.
    Incr,
    /// `decr` subtracted from a counter.
    Decr,
    /// A counter was set.
    Cset,
    /// A value was stored.
    Kset,
    /// A `kdel` came, whether or not there was a value.
    Kdel,
    /// A value was swapped.
    Kcas,
    /// A value was put in at the left.
    Lpush,
    /// A value was put in at the right.
    Rpush,
    /// A value was taken out at the left.
    Lpop,
    /// A value was taken out at the right.
    Rpop,
    /// A value was taken out at the left by `blpop`, after waiting or at once.
    Blpop,
    /// A value was taken out at the right by `brpop`, after waiting or at once.
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
    /// The leader has resigned.
    Resigned,
    /// The next in the queue has taken over.
    Failover,
}
