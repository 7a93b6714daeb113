//! What memory costs: how much of it a block on the heap takes, and how vectors grow.
//!
//! The bound on memory (`--max-memory`) is compared with the sum of what everything takes. Nobody
//! asks the allocator or the system: each table knows its own capacity, and each long name and
//! value is counted when it comes and when it goes.

/// What a block of `bytes` bytes takes, with the allocator's share: glibc puts a word before each
/// block and rounds up to 16 bytes, to 32 at least. No bytes are no block.
#[must_use]
pub const fn block_bytes(bytes: usize) -> usize {
    const WORD: usize = 8;
    match bytes {
        0 => 0,
        1..=24 => 32,
        _ => (bytes + WORD).next_multiple_of(16),
    }
}

/// Makes room for one more element in a vector that has none left: an eighth more than it has,
/// where an ordinary vector doubles. So what is counted (the capacity) is close to what is used,
/// and the bound is not reached at half of it. The system moves the pages of a long vector and
/// copies nothing, so that it does no harm to grow more often.
#[cold]
#[inline(never)]
pub fn grow<T>(vector: &mut Vec<T>) {
    vector.reserve_exact(growth(vector.len()));
}

/// By how many entries a table grows that has so many.
#[must_use]
pub const fn growth(len: usize) -> usize {
    const LEAST: usize = 16;
    if len / 8 > LEAST { len / 8 } else { LEAST }
}
