//! What the log may tell of grants: a part of the engine's vocabulary (`types.rs`).
//!
//! Types only. `Ctx::note` takes them, and the server writes them down.

use crate::base::{ConnId, Fence};
use crate::key::Key;

/// What happened to a grant, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What happened.
    pub what: Noted,
    /// The key that was granted.
    pub key: Key,
    /// The fence of the grant.
    pub fence: Fence,
    /// The connection it was granted to, if it was one.
    pub conn: Option<ConnId>,
    /// The client it was granted to, if it was one.
    pub client: Option<Box<str>>,
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
    Expired,
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
