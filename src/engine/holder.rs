//! One grant: who holds which key, how, and since when.
//!
//! Types and their links, no decisions: those are in `lock.rs`.

use super::arena::{Link, Linked};
use super::types::Mode;
use crate::base::{Nanos, Token};
use crate::timers::TimerId;

/// How somebody holds, or wants to hold, a key whose kind is already known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Slot,
    Read,
    Write,
    /// The slot of a lock, as a leader.
    Lead,
}

impl Hold {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Slot { .. } => Self::Slot,
            Mode::Read => Self::Read,
            Mode::Write => Self::Write,
            Mode::Lead => Self::Lead,
        }
    }

    /// For people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Read => "read",
            Self::Write => "write",
            Self::Lead => "lead",
        }
    }
}

/// One grant.
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) since: Nanos,
    pub(super) client: u32,
    pub(super) resource: u32,
    /// Fires when the lease ends; knows the deadline.
    pub(super) timer: TimerId,
    /// The two-phase place that was not yet waited for, or `NONE`.
    pub(super) place: u32,
    pub(super) by_resource: Link,
    pub(super) by_client: Link,
    pub(super) hold: Hold,
}

/// The chain of a key's holders.
pub(super) struct OfResource;

impl Linked<OfResource> for Holder {
    fn link(&self) -> Link {
        self.by_resource
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.by_resource
    }
}

/// The chain of a client's holds.
pub(super) struct OfClient;

impl Linked<OfClient> for Holder {
    fn link(&self) -> Link {
        self.by_client
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.by_client
    }
}
