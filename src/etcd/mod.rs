//! etcd, as far as a cluster of daemons needs it: guarded transactions, leases, one watch.
//!
//! [`Ask`] and [`Answer`] are the whole vocabulary, plain data in both directions, and [`Etcd`] is the
//! seam: [`Gateway`] speaks to real members over their JSON gateway, `Model` is an etcd in memory
//! whose time, order and losses a test decides. Nothing here knows what the keys mean.
//!
//! - `endpoints.rs` where the members are, and how one gets in · `names.rs` their addresses by name · `login.rs` user, password, and the token
//!   that they are worth
//! - `gateway.rs` one connection to one of several members, a deadline for every call · `near.rs` finds the one
//!   that leads etcd · `watch.rs` a
//!   stream of what changes, `watcher.rs` begins it anew · `http.rs` requests and answers on the wire · `json.rs`
//!   their bodies, `parse.rs` reads them · `stream.rs` the bytes, `tls.rs` the same encrypted
//! - `version.rs` which versions are good enough; the etcd of the tests is in `tools/sim`

mod endpoints;
mod gateway;
mod http;
mod json;
mod login;
#[cfg(test)]
#[path = "../../tools/sim/src/etcd.rs"]
mod model;
mod names;
mod near;
mod parse;
#[cfg(test)]
#[path = "../../tools/judge/scripted_etcd.rs"]
mod scripted;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod version;
mod watch;
mod watcher;

pub use self::endpoints::{BadEndpoint, Endpoints};
pub use self::gateway::Gateway;
pub use self::login::Password;
#[cfg(test)]
pub use self::model::Model;
pub use self::version::{VERSION_MIN, Version};
pub use self::watch::{Event, Watch, Watched};
pub use self::watcher::{Watcher, Watching};

use std::fmt;
use std::time::Duration;

/// Something that answers as etcd does.
pub trait Etcd {
    /// Asks, and waits for the answer for no longer than this. Connecting, where that is necessary, is
    /// not part of it and has a limit of its own ([`Endpoints::connecting_within`]).
    ///
    /// # Errors
    /// See [`Trouble`]. Only [`Trouble::is_surely_undone`] says that nothing has changed.
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble>;
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// If all of `compare` holds, `success` is done, otherwise `failure`; in one piece.
    Txn {
        /// What must hold.
        compare: Vec<Compare>,
        /// What is done then.
        success: Vec<Op>,
        /// What is done otherwise.
        failure: Vec<Op>,
    },
    /// Reads, and never behind what was written before the question.
    Range(Get),
    /// A lease of so many seconds.
    Grant {
        /// For how long; etcd may make it longer.
        ttl_s: u64,
    },
    /// The lease begins anew.
    KeepAlive {
        /// Which.
        lease: u64,
    },
    /// How much is left of the lease.
    TimeToLive {
        /// Which.
        lease: u64,
    },
    /// The lease ends, and every key with it.
    Revoke {
        /// Which.
        lease: u64,
    },
    /// What was before this revision is forgotten.
    Compact {
        /// Which.
        revision: u64,
    },
    /// How large the database is.
    Status,
}

/// What must hold for a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was created at this revision; 0: it is not there.
    Created(Vec<u8>, u64),
    /// The key is there.
    Exists(Vec<u8>),
    /// The key is there, and this is its value.
    Value(Vec<u8>, Vec<u8>),
    /// The key was changed last at this revision; 0: it is not there.
    Modified(Vec<u8>, u64),
    /// No key from the first to before the second was created or changed after this revision. One that
    /// was deleted since does not count.
    NoneSince(Vec<u8>, Vec<u8>, u64),
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Stores a value.
    Put {
        /// Under this key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// The lease with which it goes; 0 is none.
        lease: u64,
    },
    /// Reads.
    Get(Get),
    /// Deletes all keys from the first to before the second; the second empty is one key.
    Delete(Vec<u8>, Vec<u8>),
}

/// What is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// The first key.
    pub key: Vec<u8>,
    /// The key behind the last; empty is one key only.
    pub end: Vec<u8>,
    /// Most keys; 0 is no limit.
    pub limit: u64,
    /// As it was at this revision; 0 is now.
    pub revision: u64,
}

impl Get {
    /// One key, as it is now.
    #[must_use]
    pub fn one(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            ..Self::default()
        }
    }
}

/// A key and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kv {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key came to be.
    pub created: u64,
    /// The revision of the last change.
    pub modified: u64,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// In the order of the keys.
    pub kvs: Vec<Kv>,
    /// There are more than the limit.
    pub more: bool,
    /// How many there are, whatever the limit.
    pub count: u64,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Ask::Txn`].
    Txn {
        /// The revision after it.
        revision: u64,
        /// Whether everything compared held.
        succeeded: bool,
        /// What each [`Op::Get`] of the part that was done has found, in their order.
        got: Vec<Got>,
    },
    /// To [`Ask::Range`].
    Range {
        /// The revision now.
        revision: u64,
        /// What there is.
        got: Got,
    },
    /// To [`Ask::Grant`].
    Granted {
        /// The new lease.
        lease: u64,
        /// For how long.
        ttl_s: u64,
    },
    /// To [`Ask::KeepAlive`]: for how long, 0 if the lease is over.
    KeptAlive {
        /// For how long.
        ttl_s: u64,
    },
    /// To [`Ask::TimeToLive`]. Both are 0 if the lease is over.
    TimeToLive {
        /// Whole seconds that are left, rounded down.
        left_s: u64,
        /// For how long it was granted.
        granted_s: u64,
    },
    /// To [`Ask::Revoke`] and [`Ask::Compact`].
    Done,
    /// To [`Ask::Status`].
    Status {
        /// The size of the file.
        bytes: u64,
        /// How much of it is in use.
        bytes_in_use: u64,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was never sent.
    Unreachable(String),
    /// Nobody knows what has become of it.
    Unanswered(String),
    /// The database is full: nothing has changed.
    NoSpace(String),
    /// What was asked for is forgotten already.
    Compacted,
    /// There is no such lease.
    NoLease,
    /// etcd does not accept who asks, and wants another token: nothing has changed.
    BadToken(String),
    /// Whoever asks may not do that, or may not come in: nothing has changed.
    Forbidden(String),
    /// The answer makes no sense, so nobody knows either.
    Garbled(String),
}

impl Trouble {
    /// Whether etcd does not let us: the same again is worth a try only after a while.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::BadToken(_) | Self::Forbidden(_))
    }

    /// Whether it is certain that nothing was changed, and that nothing will be.
    #[must_use]
    pub fn is_surely_undone(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::NoSpace(_) | Self::Compacted | Self::NoLease => true,
            Self::BadToken(_) | Self::Forbidden(_) => true,
            Self::Unanswered(_) | Self::Garbled(_) => false,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "etcd cannot be reached: {why}"),
            Self::Unanswered(why) => write!(f, "etcd does not answer: {why}"),
            Self::NoSpace(why) => write!(f, "etcd has no space: {why}"),
            Self::Compacted => f.write_str("etcd has forgotten that revision"),
            Self::NoLease => f.write_str("etcd does not know that lease"),
            Self::BadToken(why) => write!(f, "etcd asks for a user: {why}; see --etcd-user"),
            Self::Forbidden(why) => write!(f, "etcd does not allow it: {why}"),
            Self::Garbled(why) => write!(f, "etcd's answer makes no sense: {why}"),
        }
    }
}

impl std::error::Error for Trouble {}
