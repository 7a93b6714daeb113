//! Keys with very many holders: whose lease ends next, and how much each owner holds.
//!
//! A key with few holders is walked, which needs no memory. A walk over a million would stop the
//! loop, so a key with more than [`WALK_MAX`] holders has a record here, which is kept exact on
//! every grant, renewal and end. `lock.rs` decides; this file only keeps the records.

use std::collections::{BTreeMap, BTreeSet};

use super::ctx::Ctx;
use super::holder::Holder;
use super::lock::Locks;
use super::owner::OwnerIndex;
use crate::base::Nanos;

/// Most holders of one key that are ever walked. One more, and the key has a record.
pub(super) const WALK_MAX: u32 = 64;

/// When so few are left, the record is dropped. It is less than `WALK_MAX`, so that a holder that
/// comes and goes does not make and drop the record each time.
const KEPT_MIN: u32 = 32;

/// The records of all keys that have one, by the index of the key.
#[derive(Default)]
pub(super) struct Crowds {
    crowds: BTreeMap<u32, Crowd>,
    /// What all of them take.
    bytes: usize,
}

/// What a lease and an owner take in a record: nodes of the trees are about half full.
const LEASE_BYTES: usize = 40;
const OWNER_BYTES: usize = 24;

/// The holders of one key.
#[derive(Default)]
pub(super) struct Crowd {
    /// Each holder, behind the end of its lease.
    by_deadline: BTreeSet<(Nanos, u32)>,
    /// How many holds each owner has here.
    by_owner: BTreeMap<u32, u32>,
}

impl Crowds {
    /// Whether a key with this many holders may have a record.
    #[inline]
    pub(super) fn may_have(holders: u32) -> bool {
        holders > KEPT_MIN
    }

    pub(super) fn get(&self, resource: u32) -> Option<&Crowd> {
        self.crowds.get(&resource)
    }

    pub(super) fn memory(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.crowds.len()
    }
}

impl Crowd {
    fn add(&mut self, lease: (Nanos, u32), owner: OwnerIndex) {
        self.by_deadline.insert(lease);
        *self.by_owner.entry(owner.0).or_default() += 1;
    }

    fn remove(&mut self, lease: (Nanos, u32), owner: OwnerIndex) {
        self.remove_lease(lease);
        let holds = self.by_owner.get_mut(&owner.0);
        let holds = holds.expect("an owner is not in the crowd of what it holds");
        *holds -= 1;
        if *holds == 0 {
            self.by_owner.remove(&owner.0);
        }
    }

    fn bytes(&self) -> usize {
        self.by_deadline.len() * LEASE_BYTES + self.by_owner.len() * OWNER_BYTES
    }

    fn remove_lease(&mut self, lease: (Nanos, u32)) {
        let known = self.by_deadline.remove(&lease);
        assert!(known, "a holder is not in its crowd");
    }

    /// The lease that ends first, and its holder.
    pub(super) fn first(&self) -> Option<(Nanos, u32)> {
        self.by_deadline.first().copied()
    }

    pub(super) fn has(&self, owner: OwnerIndex) -> bool {
        self.by_owner.contains_key(&owner.0)
    }

    /// Whether this lease is known; for checks.
    pub(super) fn knows(&self, lease: (Nanos, u32)) -> bool {
        self.by_deadline.contains(&lease)
    }

    /// How many holders there are, counted in both ways; for checks.
    pub(super) fn lens(&self) -> [usize; 2] {
        let by_owner: u32 = self.by_owner.values().sum();
        [self.by_deadline.len(), by_owner as usize]
    }
}

impl Locks {
    /// A key that may have a record was granted to this holder, which is in its chain already.
    #[cold]
    pub(super) fn note_granted(&mut self, cx: &Ctx<'_>, holder: u32) {
        let Self {
            crowds,
            holders,
            table,
            ..
        } = self;
        let lease = |holder: u32| (cx.core.timers.deadline(holders[holder].timer), holder);
        let Holder {
            resource, owner, ..
        } = holders[holder];
        let of_key = &table[resource].holders;
        if let Some(crowd) = crowds.crowds.get_mut(&resource) {
            crowds.bytes -= crowd.bytes();
            crowd.add(lease(holder), owner);
            crowds.bytes += crowd.bytes();
        } else if of_key.len() > WALK_MAX {
            let crowd = crowds.crowds.entry(resource).or_default();
            for holder in of_key.iter(holders) {
                crowd.add(lease(holder), holders[holder].owner);
            }
            crowds.bytes += crowd.bytes();
        }
    }

    /// The lease of a holder of a key that may have a record ended at one instant and ends at
    /// another.
    #[cold]
    pub(super) fn note_renewed(&mut self, holder: u32, before: Nanos, deadline: Nanos) {
        let resource = self.holders[holder].resource;
        if let Some(crowd) = self.crowds.crowds.get_mut(&resource) {
            crowd.remove_lease((before, holder));
            crowd.by_deadline.insert((deadline, holder));
        }
    }

    /// A holder of a key that may have a record is about to go.
    #[cold]
    pub(super) fn note_ending(&mut self, cx: &Ctx<'_>, holder: u32) {
        let Holder {
            resource,
            owner,
            timer,
            ..
        } = self.holders[holder];
        let Crowds { crowds, bytes } = &mut self.crowds;
        if let Some(crowd) = crowds.get_mut(&resource) {
            *bytes -= crowd.bytes();
            crowd.remove((cx.core.timers.deadline(timer), holder), owner);
            if crowd.by_deadline.len() <= KEPT_MIN as usize {
                crowds.remove(&resource);
            } else {
                *bytes += crowd.bytes();
            }
        }
    }
}
