//! Keys whose queue is still to be served: very many could be granted at once, or the first has hung up.
//!
//! Whoever deals with such a key goes on with it, and `Engine::pass_time` does so first of all.
//! Meanwhile nobody overtakes, because the queue is not empty. Data only:
//! `Locks::grant_waiting` in `lock.rs` decides.

use std::collections::BTreeMap;

use crate::base::Nanos;

/// Keys by their index, each with the instant at which room was made.
#[derive(Default)]
pub(super) struct Unserved {
    keys: BTreeMap<u32, Nanos>,
    /// The keys take turns: the next one is this one or the first after it.
    turn: u32,
}

impl Unserved {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[inline]
    pub(super) fn contains(&self, resource: u32) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(&resource)
    }

    /// The queue of this key is to be served, because there was room at that instant or earlier.
    pub(super) fn insert(&mut self, resource: u32, moment: Nanos) {
        self.keys.entry(resource).or_insert(moment);
    }

    /// The queue of this key is served from now on; returns since when there is room, or `present`
    /// if that is earlier.
    #[inline]
    pub(super) fn begin(&mut self, resource: u32, present: Nanos) -> Nanos {
        if self.keys.is_empty() {
            return present;
        }
        let moment = self.keys.remove(&resource);
        moment.map_or(present, |moment| moment.min(present))
    }

    /// The key whose turn it is.
    pub(super) fn next(&mut self) -> Option<u32> {
        let after = self.keys.range(self.turn..).next();
        let (&resource, _) = after.or_else(|| self.keys.first_key_value())?;
        self.turn = resource.wrapping_add(1);
        Some(resource)
    }
}
