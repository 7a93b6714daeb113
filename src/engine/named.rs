//! Named entries that are not locks: a table each for counters, values, lists and barriers.
//!
//! All tables together hold at most `keys_max` entries. A table knows names, order and room; what an
//! entry is and when it goes is decided in the file of its kind (`counter.rs`, `kv.rs`, `list.rs`,
//! `barrier.rs`). Entries are in one of two chains, in the order in which they came there: those in
//! use, and those that may be forgotten when they have been idle.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked};
use super::ctx::Ctx;
use super::types::Refusal;
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;

/// A named entry.
pub(super) struct Entry<V> {
    pub(super) key: Key,
    pub(super) value: V,
    /// Last used.
    pub(super) touched: Nanos,
    hash: u32,
    idle: bool,
    link: Link,
}

/// The chain that an entry is in.
pub(super) struct OfNamed;

impl<V> Linked<OfNamed> for Entry<V> {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Most entries in all tables, also where an operator set no limit: half of what a timer can stand for,
/// and more than fit into fifty gigabytes.
const KEYS_MAX: u32 = 1 << 28;

pub(super) struct Named<V> {
    map: KeyMap,
    entries: Arena<Entry<V>>,
    in_use: Chain<OfNamed>,
    idle: Chain<OfNamed>,
}

impl<V> Named<V> {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            map: KeyMap::new(seed),
            entries: Arena::new(),
            in_use: Chain::new(),
            idle: Chain::new(),
        }
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.entries.tidy()
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        self.map.find(self.map.hash(key), |entry| {
            self.entries[entry].key.as_bytes() == key
        })
    }

    /// Adds a new entry, if there is room for one more.
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

    /// Puts an entry back that was here a moment ago.
    pub(super) fn insert_anyway(&mut self, cx: &mut Ctx<'_>, key: &[u8], value: V) -> u32 {
        *cx.keys += 1;
        let hash = self.map.hash(key);
        let key = Key::from(key);
        let (touched, idle, link) = (cx.now, false, Link::OUT);
        let entry = self.entries.insert(Entry {
            key,
            value,
            touched,
            hash,
            idle,
            link,
        });
        self.map.insert(hash, entry);
        self.in_use.push_back(&mut self.entries, entry);
        entry
    }

    pub(super) fn remove(&mut self, cx: &mut Ctx<'_>, entry: u32) -> Entry<V> {
        self.chain_of(entry).unlink(entry);
        let gone = self.entries.remove(entry);
        self.map.remove(gone.hash, entry);
        *cx.keys -= 1;
        gone
    }

    /// Notes a use, and whether the entry may be forgotten once it has been idle for long enough.
    /// Says whether it is the first such entry, which is when there is something to wait for.
    pub(super) fn touch(&mut self, entry: u32, now: Nanos, idle: bool) -> bool {
        self.chain_of(entry).unlink(entry);
        self.entries[entry].touched = now;
        self.entries[entry].idle = idle;
        self.chain_of(entry).push_back(entry);
        idle && self.idle.len() == 1
    }

    /// The entry that has been idle for longest, and since when.
    pub(super) fn oldest_idle(&self) -> Option<(u32, Nanos)> {
        self.idle
            .head()
            .map(|entry| (entry, self.entries[entry].touched))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// In a fixed order: those in use, then the idle ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<V>> {
        let in_use = self.in_use.iter(&self.entries);
        in_use
            .chain(self.idle.iter(&self.entries))
            .map(|entry| &self.entries[entry])
    }

    fn chain_of(&mut self, entry: u32) -> InChain<'_, V> {
        let chain = if self.entries[entry].idle {
            &mut self.idle
        } else {
            &mut self.in_use
        };
        InChain {
            chain,
            entries: &mut self.entries,
        }
    }
}

/// A chain with what it runs through.
struct InChain<'s, V> {
    chain: &'s mut Chain<OfNamed>,
    entries: &'s mut Arena<Entry<V>>,
}

impl<V> InChain<'_, V> {
    fn unlink(self, entry: u32) {
        self.chain.unlink(self.entries, entry);
    }

    fn push_back(self, entry: u32) {
        self.chain.push_back(self.entries, entry);
    }
}

impl<V> Index<u32> for Named<V> {
    type Output = Entry<V>;

    fn index(&self, entry: u32) -> &Entry<V> {
        &self.entries[entry]
    }
}

impl<V> IndexMut<u32> for Named<V> {
    fn index_mut(&mut self, entry: u32) -> &mut Entry<V> {
        &mut self.entries[entry]
    }
}
