//! Named entries that are not locks: a table each for counters, values, lists and barriers.
//!
//! Data only: a table keeps names and order, and refuses an entry when there is no room. What an
//! entry is, and when it goes, is decided in the file of its kind (`counter.rs`, `kv.rs`,
//! `list.rs`, `barrier.rs`). All tables together hold at most `keys_max` entries. Each entry is in
//! one of two chains, each in the order of last use: entries in use, and entries that may be
//! forgotten once they have been idle for long enough.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked, Stored};
use super::ctx::Ctx;
use super::types::Refusal;
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;

/// A named entry.
pub(super) struct Entry<V> {
    pub(super) key: Key,
    pub(super) value: V,
    /// The time of its last use.
    pub(super) touched: Nanos,
    hash: u32,
    idle: bool,
    link: Link,
}

impl<V: Stored> Stored for Entry<V> {
    fn heap_bytes(&self) -> usize {
        self.key.heap_bytes() + self.value.heap_bytes()
    }
}

/// The chain that an entry is in.
pub(super) struct OfNamed;

impl<V: Stored> Linked<OfNamed> for Entry<V> {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Most entries in all tables, also if the operator set no limit. It is half of what a `Due` can
/// number, and more than fit into fifty gigabytes.
const KEYS_MAX: u32 = 1 << 28;

pub(super) struct Named<V> {
    map: KeyMap,
    entries: Arena<Entry<V>>,
    in_use: Chain<OfNamed>,
    idle: Chain<OfNamed>,
    /// How many entries have no name any more.
    nameless: usize,
}

impl<V: Stored> Named<V> {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            map: KeyMap::new(seed),
            entries: Arena::new(),
            in_use: Chain::new(),
            idle: Chain::new(),
            nameless: 0,
        }
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.entries.tidy()
    }

    #[inline(always)] // with every request for a value
    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        self.map.find(self.map.hash(key), |entry| {
            self.entries[entry].key.as_bytes() == key
        })
    }

    /// The same for those who only look, and at the start. Apart from [`Named::find`], which becomes a
    /// part of the one who calls it only as long as few do.
    #[inline(never)]
    pub(super) fn find_rarely(&self, key: &[u8]) -> Option<u32> {
        let is_it = |entry| self.entries[entry].key.as_bytes() == key;
        self.map.find(self.map.hash(key), is_it)
    }

    /// What is under this name.
    pub(super) fn look(&self, key: &[u8]) -> Option<&V> {
        let entry = self.find_rarely(key)?;
        Some(&self.entries[entry].value)
    }

    /// Adds a new entry, if there is room for one more. The value must take no memory of its own if
    /// there is none left.
    pub(super) fn insert(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        value: V,
    ) -> Result<u32, Refusal> {
        if Self::is_full(cx) {
            return Err(Refusal::MaxKeys);
        }
        let is_long = Key::heap_bytes_of(key.len()) > 0;
        if cx.core.memory_full && (is_long || !self.entries.has_vacancy()) {
            return Err(Refusal::Memory);
        }
        Ok(self.insert_anyway(cx, key, value))
    }

    /// Whether there are as many entries as there may be, in all tables together.
    pub(super) fn is_full(cx: &Ctx<'_>) -> bool {
        let keys_max = match cx.core.rules.keys_max {
            0 => KEYS_MAX,
            some => some.min(KEYS_MAX),
        };
        cx.core.keys >= keys_max
    }

    /// Adds an entry even if there is no room, because it was here a moment ago.
    pub(super) fn insert_anyway(&mut self, cx: &mut Ctx<'_>, key: &[u8], value: V) -> u32 {
        cx.core.keys += 1;
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
        self.remove_name(cx, entry);
        self.remove_nameless(entry)
    }

    /// Takes the name from an entry, which counts no longer as one and is no longer found. Its name can
    /// be used again.
    pub(super) fn remove_name(&mut self, cx: &mut Ctx<'_>, entry: u32) {
        self.chain_of(entry).unlink(entry);
        self.map.remove(self.entries[entry].hash, entry);
        cx.core.keys -= 1;
        self.nameless += 1;
    }

    /// Removes an entry that has no name any more.
    pub(super) fn remove_nameless(&mut self, entry: u32) -> Entry<V> {
        self.nameless -= 1;
        self.entries.remove(entry)
    }

    /// Notes a use, and with `idle` that the entry may be forgotten once it has been idle for long
    /// enough. Returns whether it is the only such entry, which is when a timer must be started.
    #[inline(always)] // with every change of a value
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

    /// Changes a value so that it may take more memory than before, or less.
    #[inline(always)]
    pub(super) fn change<R>(&mut self, entry: u32, change: impl FnOnce(&mut V) -> R) -> R {
        self.entries.change(entry, |it| change(&mut it.value))
    }

    pub(super) fn memory(&self) -> usize {
        self.entries.memory() + self.map.memory()
    }

    /// Checks what is counted; for tests and the simulator.
    pub(super) fn check(&self) {
        self.entries.check();
    }

    /// How many there are that have a name.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.nameless
    }

    /// In a fixed order: entries in use, then idle entries.
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

/// A chain together with the arena it links.
struct InChain<'s, V> {
    chain: &'s mut Chain<OfNamed>,
    entries: &'s mut Arena<Entry<V>>,
}

impl<V: Stored> InChain<'_, V> {
    fn unlink(self, entry: u32) {
        self.chain.unlink(self.entries, entry);
    }

    fn push_back(self, entry: u32) {
        self.chain.push_back(self.entries, entry);
    }
}

impl<V: Stored> Index<u32> for Named<V> {
    type Output = Entry<V>;

    fn index(&self, entry: u32) -> &Entry<V> {
        &self.entries[entry]
    }
}

impl<V: Stored> IndexMut<u32> for Named<V> {
    fn index_mut(&mut self, entry: u32) -> &mut Entry<V> {
        &mut self.entries[entry]
    }
}
