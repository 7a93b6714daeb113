//! Long queues: how many are before a waiter.
//!
//! A short queue is walked, which needs no memory. A queue with more than [`WALK_MAX`] waiters has a
//! record here of how many waiters there are in each block of 1,024 arrival numbers, in each block
//! of 1,024 such blocks, and so on; empty blocks have no entry. So a place is found by adding up at
//! most 1,024 numbers per level, however long the queue is and whoever has left it. Data only:
//! `lock.rs` keeps it up to date.

use std::collections::BTreeMap;

use super::queue::Waiters;

/// Longest queue that is ever walked from a waiter to its head. One more, and it has a record.
pub(super) const WALK_MAX: u32 = 1024;

/// When so few wait, the record is dropped.
const KEPT_MIN: u32 = 512;

/// A block has 2^this numbers, or blocks of the level below.
const BLOCK_BITS: u32 = 10;

/// Levels of blocks. The last level alone has more blocks than there will be waiters in a century.
const LEVELS: u32 = 4;

/// The records of all queues that have one, by the index of the key.
#[derive(Default)]
pub(super) struct Ranks {
    ranks: BTreeMap<u32, Rank>,
    /// How many blocks are counted in all of them.
    blocks: usize,
}

/// What a block takes: nodes of the trees are about half full.
const BLOCK_BYTES: usize = 48;

/// How many waiters of one queue there are in each block: level and number of the block → count.
#[derive(Default)]
struct Rank(BTreeMap<(u32, u64), u32>);

impl Ranks {
    /// This waiter has joined the queue of this key, which has `len` waiters now.
    #[inline]
    pub(super) fn joined(&mut self, resource: u32, len: u32, waiters: &Waiters, waiter: u32) {
        if len > KEPT_MIN {
            self.note_joined(resource, len, waiters, waiter);
        }
    }

    #[cold]
    fn note_joined(&mut self, resource: u32, len: u32, waiters: &Waiters, waiter: u32) {
        if let Some(rank) = self.ranks.get_mut(&resource) {
            self.blocks -= rank.0.len();
            rank.add(waiters[waiter].number);
            self.blocks += rank.0.len();
        } else if len > WALK_MAX {
            let rank = self.ranks.entry(resource).or_default();
            for waiter in up_to(waiters, waiter) {
                rank.add(waiters[waiter].number);
            }
            self.blocks += rank.0.len();
        }
    }

    /// The waiter with this number has left the queue of this key, which had `len` waiters.
    #[inline]
    pub(super) fn left(&mut self, resource: u32, len: u32, number: u64) {
        if len > KEPT_MIN {
            self.note_left(resource, len, number);
        }
    }

    #[cold]
    fn note_left(&mut self, resource: u32, len: u32, number: u64) {
        if let Some(rank) = self.ranks.get_mut(&resource) {
            self.blocks -= rank.0.len();
            rank.remove(number);
            if len - 1 <= KEPT_MIN {
                self.ranks.remove(&resource);
            } else {
                self.blocks += rank.0.len();
            }
        }
    }

    /// The waiter's place in the queue of this key: 1 is the next to be served. Also says how many
    /// entries were looked at.
    pub(super) fn position(&self, resource: u32, waiters: &Waiters, waiter: u32) -> (u32, u32) {
        match self.ranks.get(&resource) {
            Some(rank) => rank.position(waiters, waiter),
            None => {
                let place = up_to(waiters, waiter).count() as u32;
                (place, place)
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.blocks * BLOCK_BYTES
    }
}

/// This waiter and those before it, backwards.
fn up_to(waiters: &Waiters, waiter: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(waiter), |&waiter| waiters[waiter].before())
}

impl Rank {
    fn add(&mut self, number: u64) {
        for (level, block) in blocks(number) {
            *self.0.entry((level, block)).or_default() += 1;
        }
    }

    fn remove(&mut self, number: u64) {
        for block in blocks(number) {
            let count = self.0.get_mut(&block);
            let count = count.expect("a waiter is not in the record of its queue");
            *count -= 1;
            if *count == 0 {
                self.0.remove(&block);
            }
        }
    }

    fn position(&self, waiters: &Waiters, waiter: u32) -> (u32, u32) {
        let block = |waiter: u32| waiters[waiter].number >> BLOCK_BITS;
        let beside = up_to(waiters, waiter).take_while(|&it| block(it) == block(waiter));
        let mut place = beside.count() as u32;
        let mut looks = place;
        for (level, block) in blocks(waiters[waiter].number) {
            // Those of the same block one level up; at the last level all.
            let first = match level {
                LEVELS => 0,
                _ => block >> BLOCK_BITS << BLOCK_BITS,
            };
            for (_, count) in self.0.range((level, first)..(level, block)) {
                place += count;
                looks += 1;
            }
        }
        (place, looks)
    }
}

/// The blocks that a number is in, one of each level.
fn blocks(number: u64) -> impl Iterator<Item = (u32, u64)> {
    (1..=LEVELS).map(move |level| (level, number >> (BLOCK_BITS * level)))
}
