//! What the log may tell of grants and range locks: a part of the engine's vocabulary (`types.rs`).
//!
//! Types only. `Ctx::note` takes them, and the server writes them down.

use super::{ByteRange, User};
use crate::base::{ConnId, Fence};
use crate::key::Key;

/// What happened to a grant or to a range lock, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What happened.
    pub what: Noted,
    /// The key that was granted, or the resource.
    pub key: Key,
    /// Which of its grants or range locks it was.
    pub of: NoteOf,
    /// The connection it was granted to, if it was one.
    pub conn: Option<ConnId>,
    /// The client it was granted to, if it was one.
    pub client: Option<Box<str>>,
    /// The owner it was granted to over HTTP, if it was one.
    pub owner: Option<Box<str>>,
    /// Whom that was let in as.
    pub user: Option<User>,
}

/// What a note is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteOf {
    /// The grant with this fence.
    Grant(Fence),
    /// A lock of these bytes. Of range locks only those are noted that an operator has ended.
    Range {
        /// Which bytes.
        range: ByteRange,
        /// For whom the client had locked them; empty for itself.
        owner: Key,
    },
}

/// What can happen to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It was made.
    Granted,
    /// A client that had its token released it.
    Released,
    /// Its connection ended.
    Disconnected,
    /// Its lease ended.
    Expired {
        /// How long after the end of the lease the grant ended.
        late_ns: u64,
    },
    /// An operator ended it.
    Broken,
}

/// Which notes are taken. Each costs an allocation or two, so a note that the log would not show is
/// not taken.
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
