//! Named things that are not locks: one shelf for counters, one for values, lists, barriers.
//!
//! All shelves together hold at most `keys_max` things. A shelf knows names, order and room; what a
//! thing is and when it goes is its own file's. Things stand in two chains, in the order in which
//! they came there: those in use, and those that may be forgotten when they have been idle.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked};
use super::ctx::Ctx;
use super::types::Refusal;
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;

/// A named thing.
pub(super) struct Thing<V> {
    pub(super) key: Key,
    pub(super) value: V,
    /// Last used.
    pub(super) touched: Nanos,
    hash: u32,
    idle: bool,
    link: Link,
}

/// The chain a thing stands in.
pub(super) struct OfShelf;

impl<V> Linked<OfShelf> for Thing<V> {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Most things on all shelves, also where an operator set no limit: half of what a timer can stand for,
/// and more than fit into a hundred gigabytes.
const KEYS_MAX: u32 = 1 << 29;

pub(super) struct Shelf<V> {
    map: KeyMap,
    things: Arena<Thing<V>>,
    in_use: Chain<OfShelf>,
    idle: Chain<OfShelf>,
}

impl<V> Shelf<V> {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            map: KeyMap::new(seed),
            things: Arena::new(),
            in_use: Chain::new(),
            idle: Chain::new(),
        }
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.things.tidy()
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        if self.things.is_empty() {
            return None;
        }
        self.map.find(self.map.hash(key), |thing| {
            self.things[thing].key.as_bytes() == key
        })
    }

    /// Puts a new thing on the shelf, if there is room on any.
    pub(super) fn insert(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        value: V,
    ) -> Result<u32, Refusal> {
        let keys_max = match cx.rules.keys_max {
            0 => KEYS_MAX,
            some => some.min(KEYS_MAX),
        };
        if *cx.keys >= keys_max {
            return Err(Refusal::MaxKeys);
        }
        Ok(self.insert_anyway(cx, key, value))
    }

    /// Puts a thing back that was here a moment ago.
    pub(super) fn insert_anyway(&mut self, cx: &mut Ctx<'_>, key: &[u8], value: V) -> u32 {
        *cx.keys += 1;
        let hash = self.map.hash(key);
        let key = Key::from(key);
        let (touched, idle, link) = (cx.now, false, Link::OUT);
        let thing = self.things.insert(Thing {
            key,
            value,
            touched,
            hash,
            idle,
            link,
        });
        self.map.insert(hash, thing);
        self.in_use.push_back(&mut self.things, thing);
        thing
    }

    pub(super) fn remove(&mut self, cx: &mut Ctx<'_>, thing: u32) -> Thing<V> {
        self.chain_of(thing).unlink(thing);
        let gone = self.things.remove(thing);
        self.map.remove(gone.hash, thing);
        *cx.keys -= 1;
        gone
    }

    /// Notes a use, and whether the thing may be forgotten once it has been idle for long enough.
    /// Says whether it is the first such thing, which is when there is something to wait for.
    pub(super) fn touch(&mut self, thing: u32, now: Nanos, idle: bool) -> bool {
        self.chain_of(thing).unlink(thing);
        self.things[thing].touched = now;
        self.things[thing].idle = idle;
        self.chain_of(thing).push_back(thing);
        idle && self.idle.len() == 1
    }

    /// The thing that has been idle for longest, and since when.
    pub(super) fn oldest_idle(&self) -> Option<(u32, Nanos)> {
        self.idle
            .head()
            .map(|thing| (thing, self.things[thing].touched))
    }

    pub(super) fn len(&self) -> usize {
        self.things.len()
    }

    /// In a fixed order: those in use, then the idle ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Thing<V>> {
        let in_use = self.in_use.iter(&self.things);
        in_use
            .chain(self.idle.iter(&self.things))
            .map(|thing| &self.things[thing])
    }

    fn chain_of(&mut self, thing: u32) -> Place<'_, V> {
        let chain = if self.things[thing].idle {
            &mut self.idle
        } else {
            &mut self.in_use
        };
        Place {
            chain,
            things: &mut self.things,
        }
    }
}

/// A chain with what it runs through.
struct Place<'s, V> {
    chain: &'s mut Chain<OfShelf>,
    things: &'s mut Arena<Thing<V>>,
}

impl<V> Place<'_, V> {
    fn unlink(self, thing: u32) {
        self.chain.unlink(self.things, thing);
    }

    fn push_back(self, thing: u32) {
        self.chain.push_back(self.things, thing);
    }
}

impl<V> Index<u32> for Shelf<V> {
    type Output = Thing<V>;

    fn index(&self, thing: u32) -> &Thing<V> {
        &self.things[thing]
    }
}

impl<V> IndexMut<u32> for Shelf<V> {
    fn index_mut(&mut self, thing: u32) -> &mut Thing<V> {
        &mut self.things[thing]
    }
}
