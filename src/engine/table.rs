//! Key → resource: find, make room, tidy away.
//!
//! Every resource stands in exactly one chain: among those of its kind that are in use, or, when
//! nobody holds, waits or has a ticket, in the idle chain in order of last use. Garbage collection
//! and the key limit both take from the idle chain's head, so neither ever searches. Never grants.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked};
use super::holder::OfResource;
use super::queue::Queue;
use super::types::Mode;
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;

/// What a key is, from its first use until it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock (`limit` 1) or a semaphore.
    Slots {
        /// How many may hold at once.
        limit: u32,
    },
    /// A read-write lock.
    ReadWrite,
}

impl Kind {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Slot { limit } => Self::Slots { limit },
            Mode::Lead => Self::Slots { limit: 1 },
            Mode::Read | Mode::Write => Self::ReadWrite,
        }
    }

    /// At most one holder at any time, so a token needs no index to be found by.
    pub(super) fn is_lock(self) -> bool {
        self == Self::Slots { limit: 1 }
    }

    fn limit(self) -> u32 {
        match self {
            Self::Slots { limit } => limit,
            Self::ReadWrite => 0,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Slots { limit: 1 } => Census::LOCKS,
            Self::Slots { .. } => Census::SEMAPHORES,
            Self::ReadWrite => Census::RW_LOCKS,
        }
    }
}

/// One key's state: 72 bytes, of which there may be millions.
pub(super) struct Resource {
    pub(super) key: Key,
    moment: Moment,
    pub(super) holders: Chain<OfResource>,
    pub(super) queue: Queue,
    link: Link,
    /// Two-phase tickets that point here, also those whose lease ran out.
    pub(super) tickets: u32,
    /// How many may hold at once; 0 is a read-write lock.
    limit: u32,
}

impl Resource {
    pub(super) fn kind(&self) -> Kind {
        match self.limit {
            0 => Kind::ReadWrite,
            limit => Kind::Slots { limit },
        }
    }

    /// No holder's lease ends before this; a lower bound, so renewing need not touch it.
    pub(super) fn soonest(&self) -> Nanos {
        self.moment.soonest()
    }

    /// Only of a key in use.
    pub(super) fn set_soonest(&mut self, soonest: Nanos) {
        debug_assert!(!self.moment.is_idle(), "an idle key has no lease");
        self.moment = Moment::in_use(soonest);
    }

    /// A lease has begun that ends at this instant.
    pub(super) fn note_deadline(&mut self, deadline: Nanos) {
        self.set_soonest(self.soonest().min(deadline));
    }

    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.queue.is_empty() || self.tickets > 0
    }
}

/// Which chain a key stands in, and the one instant that matters there: among those in use, before
/// which no lease ends; among the idle, since when.
///
/// The top bit says which of the two it is; an instant that would need it, 292 years from the start,
/// counts as the last one that does not.
#[derive(Clone, Copy)]
struct Moment(u64);

impl Moment {
    const IDLE: u64 = 1 << 63;

    fn in_use(soonest: Nanos) -> Self {
        Self(soonest.0.min(!Self::IDLE))
    }

    fn idle(since: Nanos) -> Self {
        Self(since.0.min(!Self::IDLE) | Self::IDLE)
    }

    fn is_idle(self) -> bool {
        self.0 & Self::IDLE != 0
    }

    /// Nobody holds an idle key, so nothing there ever ends.
    fn soonest(self) -> Nanos {
        if self.is_idle() {
            Nanos::NEVER
        } else {
            Nanos(self.0)
        }
    }

    fn idle_since(self) -> Nanos {
        debug_assert!(self.is_idle(), "a key in use is not idle");
        Nanos(self.0 & !Self::IDLE)
    }
}

/// The chain a resource stands in: idle, or in use by kind.
pub(super) struct OfTable;

impl Linked<OfTable> for Resource {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Something counted once per kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census(pub [u32; 3]);

impl Census {
    /// Position of keys with one slot.
    pub const LOCKS: usize = 0;
    /// Position of keys with several slots.
    pub const SEMAPHORES: usize = 1;
    /// Position of read-write locks.
    pub const RW_LOCKS: usize = 2;
}

pub(super) struct Table {
    map: KeyMap,
    resources: Arena<Resource>,
    in_use: [Chain<OfTable>; 3],
    idle: Chain<OfTable>,
    idle_census: Census,
}

impl Table {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            map: KeyMap::new(seed),
            resources: Arena::new(),
            in_use: [Chain::new(), Chain::new(), Chain::new()],
            idle: Chain::new(),
            idle_census: Census::default(),
        }
    }

    pub(super) fn hash(&self, key: &[u8]) -> u32 {
        self.map.hash(key)
    }

    pub(super) fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        self.map.find(hash, |resource| {
            self.resources[resource].key.as_bytes() == key
        })
    }

    /// A new key, in use from the start: the caller is about to grant it.
    pub(super) fn insert(&mut self, hash: u32, key: &[u8], kind: Kind) -> u32 {
        let resource = self.resources.insert(Resource {
            key: Key::from(key),
            moment: Moment::in_use(Nanos::NEVER),
            holders: Chain::new(),
            queue: Queue::new(),
            link: Link::OUT,
            tickets: 0,
            limit: kind.limit(),
        });
        self.map.insert(hash, resource);
        self.in_use[kind.index()].push_back(&mut self.resources, resource);
        resource
    }

    /// The resource is about to be held: out of the idle chain, if it stands there. Who has to wait finds
    /// it held already.
    pub(super) fn mark_used(&mut self, resource: u32) {
        let it = &mut self.resources[resource];
        if it.moment.is_idle() {
            it.moment = Moment::in_use(Nanos::NEVER);
            let kind = it.kind().index();
            self.idle.unlink(&mut self.resources, resource);
            self.in_use[kind].push_back(&mut self.resources, resource);
            self.idle_census.0[kind] -= 1;
        }
    }

    /// Moves the resource to the idle chain, if nobody uses it any more. Says whether that chain just
    /// got its first member, which is when garbage collection has something to wait for.
    pub(super) fn mark_idle(&mut self, resource: u32, now: Nanos) -> bool {
        let it = &mut self.resources[resource];
        if it.in_use() || it.moment.is_idle() {
            return false;
        }
        it.moment = Moment::idle(now);
        let kind = it.kind().index();
        self.in_use[kind].unlink(&mut self.resources, resource);
        self.idle.push_back(&mut self.resources, resource);
        self.idle_census.0[kind] += 1;
        self.idle.len() == 1
    }

    /// The key idle for longest, and since when.
    pub(super) fn oldest_idle(&self) -> Option<(u32, Nanos)> {
        self.idle
            .head()
            .map(|resource| (resource, self.resources[resource].moment.idle_since()))
    }

    /// Forgets an idle key.
    pub(super) fn remove_idle(&mut self, resource: u32) {
        assert!(
            self.resources[resource].moment.is_idle(),
            "forgetting a key that is in use"
        );
        self.idle.unlink(&mut self.resources, resource);
        let gone = self.resources.remove(resource);
        self.idle_census.0[gone.kind().index()] -= 1;
        // Hashed again, because forgetting is rare and four bytes per key are not.
        self.map
            .remove(self.map.hash(gone.key.as_bytes()), resource);
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.resources.tidy()
    }

    pub(super) fn len(&self) -> usize {
        self.resources.len()
    }

    /// Keys in use, the longest-used first.
    pub(super) fn in_use(&self, kind: usize) -> impl Iterator<Item = &Resource> {
        self.in_use[kind]
            .iter(&self.resources)
            .map(|resource| &self.resources[resource])
    }

    pub(super) fn in_use_census(&self) -> Census {
        Census(self.in_use.each_ref().map(Chain::len))
    }

    /// Idle keys with the instant of their last use, the longest idle first.
    pub(super) fn idle(&self) -> impl Iterator<Item = (&Resource, Nanos)> {
        let resources = self
            .idle
            .iter(&self.resources)
            .map(|resource| &self.resources[resource]);
        resources.map(|resource| (resource, resource.moment.idle_since()))
    }

    pub(super) fn idle_census(&self) -> Census {
        self.idle_census
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Resource)> {
        self.resources.iter()
    }

    /// What must hold between two calls, for one key.
    pub(super) fn check(&self, resource: u32) {
        let it = &self.resources[resource];
        assert_eq!(
            it.moment.is_idle(),
            !it.in_use(),
            "{:?} stands in the wrong chain",
            it.key
        );
        assert_eq!(
            self.find(self.hash(it.key.as_bytes()), it.key.as_bytes()),
            Some(resource),
            "{:?} is lost",
            it.key
        );
    }
}

impl Index<u32> for Table {
    type Output = Resource;

    fn index(&self, resource: u32) -> &Resource {
        &self.resources[resource]
    }
}

impl IndexMut<u32> for Table {
    fn index_mut(&mut self, resource: u32) -> &mut Resource {
        &mut self.resources[resource]
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena::Slot;
    use super::*;

    #[test]
    fn a_key_costs_72_bytes() {
        assert_eq!(size_of::<Resource>(), 72);
        // The arena knows a vacant slot by a value that no key has.
        assert_eq!(size_of::<Slot<Resource>>(), 72);
    }

    #[test]
    fn a_moment_keeps_its_meaning() {
        for nanos in [0, 1, 1_000_001, u64::MAX >> 1] {
            let (in_use, idle) = (Moment::in_use(Nanos(nanos)), Moment::idle(Nanos(nanos)));
            assert!(!in_use.is_idle() && idle.is_idle());
            assert_eq!(in_use.soonest(), Nanos(nanos));
            assert_eq!(idle.idle_since(), Nanos(nanos));
            assert_eq!(idle.soonest(), Nanos::NEVER);
        }
        // Three centuries are early enough for never: it is a lower bound.
        assert!(Moment::in_use(Nanos::NEVER).soonest() >= Nanos(u64::MAX >> 1));
    }
}
