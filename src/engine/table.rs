//! Key → resource: find, make room, tidy away.
//!
//! Every resource stands in exactly one chain: among those of its kind that are in use, or, when
//! nobody holds, waits or has a place, in the idle chain in order of last use. Garbage collection
//! and the key limit both take from the idle chain's head, so neither ever searches. Never grants.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked};
use super::lock::OfResource;
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

    fn index(self) -> usize {
        match self {
            Self::Slots { limit: 1 } => Census::LOCKS,
            Self::Slots { .. } => Census::SEMAPHORES,
            Self::ReadWrite => Census::RW_LOCKS,
        }
    }
}

/// One key's state.
pub(super) struct Resource {
    pub(super) key: Key,
    pub(super) kind: Kind,
    pub(super) holders: Chain<OfResource>,
    pub(super) queue: Queue,
    /// Two-phase places that point here, also those whose lease ran out.
    pub(super) places: u32,
    /// No holder's lease ends before this; a lower bound, so renewing need not touch it.
    pub(super) soonest: Nanos,
    pub(super) hash: u32,
    idle: bool,
    idle_since: Nanos,
    link: Link,
}

impl Resource {
    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.queue.is_empty() || self.places > 0
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
            kind,
            holders: Chain::new(),
            queue: Queue::new(),
            places: 0,
            soonest: Nanos::NEVER,
            hash,
            idle: false,
            idle_since: Nanos::default(),
            link: Link::OUT,
        });
        self.map.insert(hash, resource);
        self.in_use[kind.index()].push_back(&mut self.resources, resource);
        resource
    }

    /// Moves the resource to the chain it belongs to by now. Says whether the idle chain just got
    /// its first member, which is when garbage collection has something to wait for.
    pub(super) fn settle(&mut self, resource: u32, now: Nanos) -> bool {
        let it = &mut self.resources[resource];
        let kind = it.kind.index();
        match (it.idle, it.in_use()) {
            (false, false) => {
                it.idle = true;
                it.idle_since = now;
                self.in_use[kind].unlink(&mut self.resources, resource);
                self.idle.push_back(&mut self.resources, resource);
                self.idle_census.0[kind] += 1;
                self.idle.len() == 1
            }
            (true, true) => {
                it.idle = false;
                self.idle.unlink(&mut self.resources, resource);
                self.in_use[kind].push_back(&mut self.resources, resource);
                self.idle_census.0[kind] -= 1;
                false
            }
            _ => false,
        }
    }

    /// The key idle for longest, and since when.
    pub(super) fn oldest_idle(&self) -> Option<(u32, Nanos)> {
        self.idle
            .head()
            .map(|resource| (resource, self.resources[resource].idle_since))
    }

    /// Forgets an idle key.
    pub(super) fn remove_idle(&mut self, resource: u32) {
        assert!(
            self.resources[resource].idle,
            "forgetting a key that is in use"
        );
        self.idle.unlink(&mut self.resources, resource);
        let gone = self.resources.remove(resource);
        self.idle_census.0[gone.kind.index()] -= 1;
        self.map.remove(gone.hash, resource);
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
        resources.map(|resource| (resource, resource.idle_since))
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
            it.idle,
            !it.in_use(),
            "{:?} stands in the wrong chain",
            it.key
        );
        assert_eq!(
            self.find(it.hash, it.key.as_bytes()),
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
