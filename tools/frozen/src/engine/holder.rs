//! One grant: which owner holds which key, how, and since when.
//!
//! Data only: `lock.rs` decides when a grant is made and when it ends.

use super::arena::{Link, Linked, Stored};
use super::owner::OwnerIndex;
use super::types::Mode;
use crate::base::{Nanos, Token};
use crate::timers::TimerId;

/// How a key is held or to be held. Figures are kept apart for each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A lock.
    Lock,
    /// A slot of a semaphore.
    Slot,
    /// A read lock.
    Read,
    /// A write lock.
    Write,
    /// A lock, as a leader.
    Lead,
}

impl Held {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::Lock, Self::Slot, Self::Read, Self::Write, Self::Lead];

    #[inline]
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Slot { limit: 1 } => Self::Lock,
            Mode::Slot { .. } => Self::Slot,
            Mode::Read => Self::Read,
            Mode::Write => Self::Write,
            Mode::Lead => Self::Lead,
        }
    }

    /// The word for figures.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Slot => "semaphore",
            Self::Read => "read",
            Self::Write => "write",
            Self::Lead => "lead",
        }
    }

    /// The word for a holder or a waiter of a key, whose kind is said beside it: a lock is a semaphore
    /// with one slot.
    pub(super) const fn word_beside_kind(self) -> &'static str {
        match self {
            Self::Lock | Self::Slot => "slot",
            Self::Read | Self::Write | Self::Lead => self.word(),
        }
    }
}

/// One grant: 56 bytes, of which there may be millions.
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) taken: Taken,
    pub(super) owner: OwnerIndex,
    pub(super) resource: u32,
    /// Fires when the lease ends, and has the deadline.
    pub(super) timer: TimerId,
    /// The two-phase ticket of this grant, if it was not yet waited for, or `NONE`.
    pub(super) ticket: u32,
    pub(super) by_resource: Link,
    pub(super) by_owner: Link,
}

impl Holder {
    pub(super) fn held(&self) -> Held {
        self.taken.held()
    }
}

/// When a key was granted, and how: the top three bits are how (three of their eight values are
/// still free), the next one whether the grant outlives its connection, the others the nanoseconds,
/// which are enough for 36 years.
#[derive(Clone, Copy)]
pub(super) struct Taken(u64);

impl Taken {
    const HELD_SHIFT: u32 = 61;
    const KEPT: u64 = 1 << 60;
    const SINCE_MAX: u64 = Self::KEPT - 1;

    pub(super) fn new(since: Nanos, held: Held) -> Self {
        Self(since.0.min(Self::SINCE_MAX) | (held as u64) << Self::HELD_SHIFT)
    }

    pub(super) fn since(self) -> Nanos {
        Nanos(self.0 & Self::SINCE_MAX)
    }

    /// The grant is not released when its connection ends, but by whoever has its token, or by its
    /// lease.
    pub(super) fn keep(&mut self) {
        self.0 |= Self::KEPT;
    }

    pub(super) fn is_kept(self) -> bool {
        self.0 & Self::KEPT != 0
    }

    pub(super) fn held(self) -> Held {
        match self.0 >> Self::HELD_SHIFT {
            0 => Held::Lock,
            1 => Held::Slot,
            2 => Held::Read,
            3 => Held::Write,
            _ => Held::Lead,
        }
    }
}

impl Stored for Holder {}

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

/// The chain of an owner's holds.
pub(super) struct OfOwner;

impl Linked<OfOwner> for Holder {
    fn link(&self) -> Link {
        self.by_owner
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.by_owner
    }
}
