//! The table of lock keys: key → resource, and which keys are idle.
//!
//! Data only: `lock.rs` decides when a key is granted and when it is forgotten. Every resource is
//! in exactly one chain: that of its kind if it is in use, or, if it has no holder, waiter or
//! ticket, the idle chain, in the order of last use. Garbage collection and the key limit both take
//! the head of the idle chain, so neither ever searches.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked, Stored};
use super::holder::{Held, OfResource};
use super::queue::Queue;
use super::types::{Mode, Refusal};
use super::versions::Versions;
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;

/// The kind of a key, from its first use until it is forgotten.
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

    /// The refusal when a key of this kind is used as `other`, if they differ.
    #[inline]
    #[must_use]
    pub fn mismatch(self, other: Self) -> Option<Refusal> {
        match (self, other) {
            _ if self == other => None,
            (Self::Slots { .. }, Self::Slots { .. }) => Some(Refusal::LimitMismatch),
            _ => Some(Refusal::TypeMismatch),
        }
    }

    /// How a key of this kind is asked for, to be held like this.
    pub(super) fn mode(self, held: Held) -> Mode {
        match (held, self) {
            (Held::Lead, _) => Mode::Lead,
            (Held::Read, _) => Mode::Read,
            (Held::Write, _) => Mode::Write,
            (Held::Lock | Held::Slot, Self::Slots { limit }) => Mode::Slot { limit },
            (Held::Lock | Held::Slot, Self::ReadWrite) => {
                unreachable!("a read-write lock has no slots")
            }
        }
    }

    /// Whether there is at most one holder at any time, so that no index of tokens is needed.
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
    /// Two-phase tickets for this key, also those whose lease has ended. The top bit is
    /// [`COUNTED`].
    pub(super) tickets: u32,
    /// How many may hold at once; 0 for a read-write lock.
    limit: u32,
}

/// The changes of this lock are counted. Memory ends long before the number of tickets reaches
/// this bit.
const COUNTED: u32 = 1 << 31;

impl Resource {
    pub(super) fn kind(&self) -> Kind {
        match self.limit {
            0 => Kind::ReadWrite,
            limit => Kind::Slots { limit },
        }
    }

    /// No lease on this key ends before this. It is a lower bound, so that a renewal need not move
    /// it.
    pub(super) fn soonest(&self) -> Nanos {
        self.moment.soonest()
    }

    /// The key must be in use.
    pub(super) fn set_soonest(&mut self, soonest: Nanos) {
        debug_assert!(!self.moment.is_idle(), "an idle key has no lease");
        self.moment = Moment::in_use(soonest);
    }

    /// A lease that ends at this instant has begun.
    pub(super) fn note_deadline(&mut self, deadline: Nanos) {
        self.set_soonest(self.soonest().min(deadline));
    }

    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.queue.is_empty() || self.tickets & !COUNTED > 0
    }

    fn is_counted(&self) -> bool {
        self.tickets & COUNTED > 0
    }
}

impl Stored for Resource {
    fn heap_bytes(&self) -> usize {
        self.key.heap_bytes()
    }
}

/// Whether a key is idle, and the one instant that matters then: for a key in use, the instant
/// before which no lease ends; for an idle key, since when it is idle.
///
/// The top bit says which of the two it is. An instant that would need this bit, 292 years from the
/// start, is cut to the last instant that does not.
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

    /// An idle key has no holder, so no lease on it ever ends.
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

/// The chain that a resource is in: the idle one, or that of its kind.
pub(super) struct OfTable;

impl Linked<OfTable> for Resource {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// One count for each kind of key.
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
    versions: Versions,
}

impl Table {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            map: KeyMap::new(seed),
            resources: Arena::new(),
            in_use: [Chain::new(), Chain::new(), Chain::new()],
            idle: Chain::new(),
            idle_census: Census::default(),
            versions: Versions::new(seed),
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

    /// Adds a key, which is in use from the start, because the caller is about to grant it.
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

    /// Takes a resource that is about to be held out of the idle chain, if it is there. Joining the
    /// queue needs no such call, because a key that has to be waited for is held already.
    #[inline(always)] // with every grant
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

    /// Counts the changes of this key from now on, if it is a lock.
    pub(super) fn count_changes(&mut self, resource: u32, is_restored: bool) {
        let it = &mut self.resources[resource];
        if it.kind().is_lock() && !it.is_counted() {
            it.tickets |= COUNTED;
            self.versions.begin(resource, is_restored);
        }
    }

    /// Counts a grant, a renewal or the end of a grant, if this key is counted.
    #[inline(always)] // with every one of these
    pub(super) fn note_change(&mut self, resource: u32) {
        if !self.versions.is_empty() && self.resources[resource].is_counted() {
            self.versions.add(resource);
        }
    }

    /// How often a lock has changed; none if its changes are not counted.
    pub(super) fn version(&self, resource: u32, epoch: u64) -> Option<u64> {
        self.versions.of(resource, epoch)
    }

    /// Moves the resource to the idle chain, if it is not in use any more. Returns whether it is
    /// the only one there, which is when garbage collection must be started.
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

    /// The key that has been idle longest, and since when.
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
        if gone.is_counted() {
            self.versions.remove(resource);
        }
        self.idle_census.0[gone.kind().index()] -= 1;
        // Hashed again, because a stored hash would cost four bytes for every key, and forgetting
        // is rare.
        self.map
            .remove(self.map.hash(gone.key.as_bytes()), resource);
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.resources.tidy() || self.versions.tidy()
    }

    pub(super) fn memory(&self) -> usize {
        self.resources.memory() + self.map.memory() + self.versions.memory()
    }

    pub(super) fn has_vacancy(&self) -> bool {
        self.resources.has_vacancy()
    }

    pub(super) fn len(&self) -> usize {
        self.resources.len()
    }

    /// Keys in use, those that have been in use longest first.
    pub(super) fn in_use(&self, kind: usize) -> impl Iterator<Item = &Resource> {
        self.in_use[kind]
            .iter(&self.resources)
            .map(|resource| &self.resources[resource])
    }

    pub(super) fn in_use_census(&self) -> Census {
        Census(self.in_use.each_ref().map(Chain::len))
    }

    /// Idle keys and since when, those that have been idle longest first.
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

    /// Every slot from this one on, with its key if there is one, in use or idle.
    pub(super) fn keys_from(&self, slot: u32) -> impl Iterator<Item = (u32, Option<&Resource>)> {
        self.resources.slots_from(slot)
    }

    /// Every slot from this one on, with its key if that is in use.
    pub(super) fn slots_from(&self, slot: u32) -> impl Iterator<Item = (u32, Option<&Resource>)> {
        let slots = self.resources.slots_from(slot);
        slots.map(|(slot, it)| (slot, it.filter(|it| !it.moment.is_idle())))
    }

    /// What must hold between two calls, for one key.
    pub(super) fn check(&self, resource: u32) {
        let it = &self.resources[resource];
        assert_eq!(
            it.moment.is_idle(),
            !it.in_use(),
            "{:?} is in the wrong chain",
            it.key
        );
        assert_eq!(
            self.find(self.hash(it.key.as_bytes()), it.key.as_bytes()),
            Some(resource),
            "{:?} is not found by its name",
            it.key
        );
        assert_eq!(
            it.is_counted(),
            self.versions.of(resource, 0).is_some(),
            "{:?} is counted or not",
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
