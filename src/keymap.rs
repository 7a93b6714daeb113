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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A map of `len` entries, each under the hash of its own index.
    fn filled(len: u32) -> KeyMap {
        let mut map = KeyMap::new([7, 8]);
        for index in 0..len {
            map.insert(map.hash(&index.to_le_bytes()), index);
        }
        map
    }

    #[test]
    fn the_hash_is_siphash_1_3_keyed_with_the_seed() {
        let map = KeyMap::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        // The low halves of the hashes of no bytes, of 0 and of 0 1, computed without the crate.
        assert_eq!(map.hash(&[]), 0x050f_c4dc);
        assert_eq!(map.hash(&[0]), 0x7d57_ca93);
        assert_eq!(map.hash(&[0, 1]), 0x4dc7_d44d);
        assert_ne!(
            map.hash(b"job"),
            KeyMap::new([1, 2]).hash(b"job"),
            "another seed"
        );
    }

    #[test]
    fn an_entry_is_eight_bytes_and_the_map_two_kilobytes() {
        assert_eq!(size_of::<Entry>(), 8);
        assert!(size_of::<KeyMap>() < 2_200);
    }

    #[test]
    fn the_caller_tells_names_apart_that_share_a_hash() {
        let mut map = KeyMap::new([7, 8]);
        for index in 0..100 {
            map.insert(42, index);
        }
        assert_eq!(map.find(42, |index| index == 77), Some(77));
        assert_eq!(map.find(42, |_| false), None);
        map.remove(42, 77);
        assert_eq!(map.find(42, |index| index == 77), None);
        assert_eq!(map.len(), 99);
    }

    #[test]
    fn the_caller_is_asked_only_about_equal_hashes() {
        let map = filled(10_000);
        let hash = |index: u32| map.hash(&index.to_le_bytes());
        for index in 0..10_000 {
            let is_it = |asked| {
                assert_eq!(hash(asked), hash(index));
                asked == index
            };
            assert_eq!(map.find(hash(index), is_it), Some(index));
        }
        let absent = map.hash(b"absent");
        assert_eq!(
            map.find(absent, |_| panic!("asked about another hash")),
            None
        );
    }

    /// The memory of all parts, which the map has counted.
    fn bytes(map: &KeyMap) -> usize {
        let bytes = map.parts.iter().map(HashTable::allocation_size).sum();
        assert_eq!(map.memory(), bytes);
        bytes
    }

    #[test]
    fn after_a_flood_memory_is_back_where_it_was() {
        let mut map = filled(6_000);
        let before_bytes = bytes(&map);
        for index in 6_000..200_000_u32 {
            map.insert(map.hash(&index.to_le_bytes()), index);
        }
        assert!(bytes(&map) > 20 * before_bytes);
        for index in 6_000..200_000_u32 {
            map.remove(map.hash(&index.to_le_bytes()), index);
        }
        assert!(
            bytes(&map) < 3 * before_bytes,
            "{} after {before_bytes}",
            bytes(&map)
        );
        for index in 0..6_000_u32 {
            assert_eq!(
                map.find(map.hash(&index.to_le_bytes()), |i| i == index),
                Some(index)
            );
        }
        for index in 0..6_000_u32 {
            map.remove(map.hash(&index.to_le_bytes()), index);
        }
        assert!(
            map.parts
                .iter()
                .all(|part| part.num_buckets() <= BUCKETS_KEPT_MIN)
        );
        assert!(bytes(&map) <= 20 * 1024);
    }

    #[test]
    fn churn_with_a_few_keys_alive_never_grows() {
        let mut map = KeyMap::new([7, 8]);
        for index in 0..200_000_u32 {
            map.insert(map.hash(&index.to_le_bytes()), index);
            if let Some(old) = index.checked_sub(400) {
                map.remove(map.hash(&old.to_le_bytes()), old);
            }
        }
        assert_eq!(map.len(), 400);
        assert!(bytes(&map) <= 40 * 1024, "{}", bytes(&map));
    }

    #[test]
    fn the_last_part_is_twice_as_full_as_the_first() {
        let map = filled(640_000);
        // Eight parts at a time, because a single part is a whole number of cells.
        let eighths: Vec<usize> = map
            .parts
            .chunks(8)
            .map(|parts| parts.iter().map(HashTable::len).sum())
            .collect();
        for pair in eighths.windows(2) {
            let growth = pair[1] as f64 / pair[0] as f64;
            assert!((1.05..1.13).contains(&growth), "{eighths:?}");
        }
        assert!(map.parts.iter().all(|part| part.len() > 5_000));
    }

    #[test]
    fn a_name_costs_fifteen_bytes_however_many_there_are() {
        let mut map = KeyMap::new([7, 8]);
        for index in 0..500_000_u32 {
            map.insert(map.hash(&index.to_le_bytes()), index);
            if index >= 100_000 && index % 10_000 == 0 {
                let each = bytes(&map) as f64 / f64::from(index);
                assert!((13.5..15.8).contains(&each), "{each} at {index}");
            }
        }
    }

    #[test]
    fn neighbours_in_a_part_differ_in_the_seven_bits_that_hashbrown_compares_first() {
        // Within one part, the top seven bits of 64 take all 128 values about equally often.
        let mut seen = [0_u32; 128];
        for n in 0..128_000_u32 {
            let hash = n.wrapping_mul(0x9e37_79b1) >> PART_BITS;
            assert_eq!(part(hash), 0);
            seen[(spread(hash) >> 57) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (800..1_200).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    #[should_panic = "is not in the map"]
    fn removing_an_absent_index_is_a_bug() {
        let mut map = filled(10);
        map.remove(map.hash(b"absent"), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares with an ordered map that owns its names. There are few hashes, so that they
        /// collide often.
        #[test]
        fn a_key_map_does_what_an_ordered_map_does(
            calls in vec((any::<bool>(), 0..3_000_u32), 1..6_000),
            hashes in 1..4_000_u32,
        ) {
            let mut map = KeyMap::new([7, 8]);
            let mut model = BTreeMap::new();
            let mut names = Vec::new();
            for (wanted, name) in calls {
                // Multiplied, because real hashes use all of their bits.
                let hash = (name % hashes).wrapping_mul(0x85eb_ca6b);
                let found = map.find(hash, |index| names[index as usize] == name);
                prop_assert_eq!(found, model.get(&name).copied());
                match found {
                    Some(index) if !wanted => {
                        map.remove(hash, index);
                        model.remove(&name);
                    }
                    None if wanted => {
                        let index = names.len() as u32;
                        names.push(name);
                        map.insert(hash, index);
                        model.insert(name, index);
                    }
                    _ => {}
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert_eq!(map.is_empty(), model.is_empty());
            }
        }
    }
}
