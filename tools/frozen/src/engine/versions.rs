//! How often a lock has changed: the `version` that `GET` of a lock or an election shows.
//!
//! Data only: `table.rs` says which changes count. A lock is counted from the first request of a
//! named owner until its key is forgotten, so locks of other clients take no memory for it.
//!
//! Renewals are not recorded, so a restart does not know their number. A lock that a named owner
//! holds after a restart counts from the epoch times 2^36 on. That is above every earlier version
//! as long as one life changes a lock less often than that.

use std::num::NonZeroU64;

use super::arena::{Arena, Stored};
use crate::keymap::KeyMap;

/// How many changes of one lock a life has room for, as a power of two. Versions stay below 2^53
/// for 2^17 restarts.
const CHANGES_BITS: u32 = 36;

pub(super) struct Versions {
    counts: Arena<Count>,
    by_resource: KeyMap,
}

struct Count {
    resource: u32,
    /// The lock was held before the restart.
    is_restored: bool,
    /// Never 0, which leaves room for the arena to mark a vacant slot.
    changes: NonZeroU64,
}

impl Stored for Count {}

impl Versions {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            counts: Arena::new(),
            by_resource: KeyMap::new(seed),
        }
    }

    #[inline(always)] // with every change of a lock
    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Counts the changes of this lock from now on. The first one is the grant to its present
    /// holder.
    pub(super) fn begin(&mut self, resource: u32, is_restored: bool) {
        let count = self.counts.insert(Count {
            resource,
            is_restored,
            changes: NonZeroU64::MIN,
        });
        self.by_resource.insert(hash(resource), count);
    }

    #[cold]
    pub(super) fn add(&mut self, resource: u32) {
        if let Some(count) = self.find(resource) {
            let changes = &mut self.counts[count].changes;
            *changes = changes.saturating_add(1);
        }
    }

    /// The version of a lock; none if its changes are not counted.
    pub(super) fn of(&self, resource: u32, epoch: u64) -> Option<u64> {
        let it = &self.counts[self.find(resource)?];
        let start = match it.is_restored {
            true => epoch << CHANGES_BITS,
            false => 0,
        };
        Some(start.saturating_add(it.changes.get()))
    }

    /// The key of this lock is forgotten.
    #[cold]
    pub(super) fn remove(&mut self, resource: u32) {
        if let Some(count) = self.find(resource) {
            self.by_resource.remove(hash(resource), count);
            self.counts.remove(count);
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.counts.memory() + self.by_resource.memory()
    }

    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.counts.tidy()
    }

    fn find(&self, resource: u32) -> Option<u32> {
        let is_it = |count| self.counts[count].resource == resource;
        self.by_resource.find(hash(resource), is_it)
    }
}

/// We choose these numbers and not the clients, so one multiplication spreads them well enough.
fn hash(resource: u32) -> u32 {
    (u64::from(resource).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
