//! A hash map from the name that a client chose to the index where its entry is stored.
//!
//! Names come from outside, so the hash is keyed with a seed that no client knows: a client cannot
//! choose a million names that fall into one bucket. The seed is an argument, so a simulated run
//! repeats exactly.
//!
//! The map never stores a name (its caller does), and it has no way to iterate, so the random order
//! of a hash table cannot leak into what the daemon does.

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// How many tables the map is made of, chosen by the top bits of the hash.
///
/// A hash table grows all at once, and a table of two million names would stop the loop for tens of
/// milliseconds. Sixty-four small tables grow one by one, each in about one millisecond at that
/// size, and an insertion never waits for more than one of them.
///
/// The parts differ in size on purpose: each gets 1.1 % more names than the one before, so that the
/// last gets twice as many as the first. Tables grow by doubling, so equal tables would all be half
/// empty at the same time; unequal ones keep the spare room of the whole map about constant.
pub const PARTS: usize = 64;

/// How many top bits of a hash index [`PART_OF`], which is thus 1 KiB and stays in the first-level
/// cache.
const PART_BITS: u32 = 10;

/// Top bits of a hash → the part that they belong to. Read as `x` between 0 and 1, they belong to
/// part `floor(PARTS * log2(1 + x))`, so that the widths of the parts grow as powers of two.
const PART_OF: [u8; 1 << PART_BITS] = {
    let mut parts = [0; 1 << PART_BITS];
    let (mut part, mut cell) = (0, 0);
    // 2^(1/64). Its powers are the values of `x` below at which the next part begins.
    let step = 1.010_889_286_051_700_5_f64;
    let mut end = step;
    while cell < parts.len() {
        let x = 1.0 + cell as f64 / parts.len() as f64;
        if x >= end && part < PARTS - 1 {
            part += 1;
            end *= step;
        } else {
            parts[cell] = part as u8;
            cell += 1;
        }
    }
    parts
};

/// A part with no more buckets than this never shrinks: 18 KiB in all are not worth the work.
const BUCKETS_KEPT_MIN: usize = 32;

/// A set of indices, found by the hash of a name and a comparison that the caller makes.
///
/// The caller owns the names. Hashing is a call of its own, so that a name is hashed only once
/// however many calls follow:
///
/// ```
/// # use latchd::keymap::KeyMap;
/// let names = [b"job", b"log"];
/// let mut map = KeyMap::new([1, 2]);
/// map.insert(map.hash(b"job"), 0);
/// map.insert(map.hash(b"log"), 1);
///
/// let found = map.find(map.hash(b"log"), |index| names[index as usize] == b"log");
/// assert_eq!(found, Some(1));
/// ```
///
/// A bucket is 9 bytes, and at most 7 of 8 buckets are in use. A name costs 14 to 15 bytes in a map
/// that has only grown, 41 at worst just before the map shrinks. The map itself is 2 KiB.
pub struct KeyMap {
    parts: [HashTable<Entry>; PARTS],
    len: usize,
    /// What the parts have allocated.
    bytes: usize,
    hasher: SipHasher13,
}

/// Keeps the hash beside the index, so that growing never has to look at a name.
#[derive(Clone, Copy)]
struct Entry {
    index: u32,
    hash: u32,
}

impl KeyMap {
    /// An empty map, which allocates nothing. The seed must be secret wherever clients are not
    /// trusted.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        Self {
            parts: [const { HashTable::new() }; PARTS],
            len: 0,
            bytes: 0,
            hasher: SipHasher13::new_with_keys(seed[0], seed[1]),
        }
    }

    /// How many indices are in the map.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How much memory the map has allocated.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// The keyed hash of a name. For [`KeyMap::remove`] the caller keeps it beside the name or
    /// computes it again.
    ///
    /// 32 bits are enough to choose a bucket among four thousand million. Two names are unlikely to
    /// share them, but may: only the comparison in [`KeyMap::find`] decides.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> u32 {
        self.hasher.hash(name) as u32
    }

    /// The index under this hash for which `is_it` returns true. `is_it` sees only indices with
    /// exactly this hash: one for a name that is in the map, hardly ever one for a name that is
    /// not.
    #[inline(always)]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let is_it = |entry: &Entry| entry.hash == hash && is_it(entry.index);
        let found = self.parts[part(hash)].find(spread(hash), is_it);
        found.map(|entry| entry.index)
    }

    /// Adds an index, which the caller knows is absent. May double one part.
    pub fn insert(&mut self, hash: u32, index: u32) {
        let entry = Entry { index, hash };
        let table = &mut self.parts[part(hash)];
        if table.len() == table.capacity() {
            self.bytes += grow(table);
        }
        table.insert_unique(spread(hash), entry, |entry| spread(entry.hash));
        self.len += 1;
    }

    /// Takes out an index, which the caller knows is present; if it is absent, that is a bug and
    /// stops the process.
    ///
    /// A part that is less than a quarter full is halved, so that after a flood of names memory
    /// returns to within a factor of two of where it was.
    pub fn remove(&mut self, hash: u32, index: u32) {
        let table = &mut self.parts[part(hash)];
        let is_it = |entry: &Entry| entry.index == index && entry.hash == hash;
        let Ok(entry) = table.find_entry(spread(hash), is_it) else {
            panic!("key {index} is not in the map under hash {hash:08x}");
        };
        entry.remove();
        self.len -= 1;
        self.bytes -= shrink(table);
    }
}

/// Makes room for one more entry; returns by how many bytes the table has grown. It may be none, if
/// there were buckets that removals had spoilt.
#[cold]
#[inline(never)]
fn grow(table: &mut HashTable<Entry>) -> usize {
    let before = table.allocation_size();
    table.reserve(1, |entry| spread(entry.hash));
    table.allocation_size() - before
}

/// Halves a table that is mostly empty; returns by how many bytes it has shrunk. Since its last
/// resize there were at least as many removals as there are entries to move now, so a removal is
/// O(1) on average.
fn shrink(table: &mut HashTable<Entry>) -> usize {
    // Not `capacity()`, which leaves out the buckets that removals have spoilt.
    let buckets = table.num_buckets();
    if buckets <= BUCKETS_KEPT_MIN || table.len() >= room(buckets) / 4 {
        return 0;
    }
    let before = table.allocation_size();
    table.shrink_to(room(buckets / 2), |entry| spread(entry.hash));
    before - table.allocation_size()
}

/// How many entries fit into this many buckets.
const fn room(buckets: usize) -> usize {
    buckets / 8 * 7
}

/// The part that a hash belongs to. Its top bits decide, because the low bits choose the bucket
/// inside the part.
fn part(hash: u32) -> usize {
    PART_OF[(hash >> (u32::BITS - PART_BITS)) as usize].into()
}

/// Widens a hash from 32 bits to 64: hashbrown finds the bucket by the low bits and tells
/// neighbours apart by the top seven, which would otherwise all be zero. The multiplier is odd, so
/// the low half stays as evenly spread as the hash.
const fn spread(hash: u32) -> u64 {
    (hash as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
