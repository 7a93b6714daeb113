//! The leaves of a tree, one behind the other in one vector.
//!
//! All are of the same size, and a leaf that goes is replaced by the last one, so that there are no
//! holes. So the rows of a tree lie close together, which matters as soon as there are more of them
//! than the processor's caches hold, and no leaf has to be allocated.
//!
//! Most resources have few segments. While there is only one leaf, the vector is as long as it has
//! rows.

use super::order::{Order, Row};
use crate::memory::{block_bytes, growth};

/// Most rows of a leaf.
pub(super) const LEAF_ROWS_MAX: usize = 32;

/// A leaf with fewer rows is merged with a neighbour, or takes some from it. Only the last leaf of a
/// tree may have fewer: it is where a tree grows if ranges are locked in order.
pub(super) const LEAF_ROWS_MIN: usize = LEAF_ROWS_MAX / 4;

/// Which leaf, and how many rows it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) number: u32,
    len: u32,
}

impl Leaf {
    /// The first leaf of a tree, without rows.
    pub(super) const EMPTY: Self = Self { number: 0, len: 0 };

    pub(super) fn len(self) -> usize {
        self.len as usize
    }

    /// Where its rows begin.
    fn begin(self) -> usize {
        self.number as usize * LEAF_ROWS_MAX
    }

    /// Where its rows end.
    fn end(self) -> usize {
        self.begin() + self.len()
    }
}

pub(super) struct Leaves {
    /// Each leaf has [`LEAF_ROWS_MAX`] rows here, of which the first ones count; a single leaf has
    /// only those that count.
    rows: Vec<Row>,
    /// How many inner nodes are above them.
    pub(super) inner_count: usize,
}

impl Leaves {
    pub(super) const fn new() -> Self {
        Self {
            rows: Vec::new(),
            inner_count: 0,
        }
    }

    /// What all leaves take.
    pub(super) fn memory(&self) -> usize {
        block_bytes(self.rows.capacity() * size_of::<Row>())
    }

    #[inline]
    pub(super) fn rows(&self, leaf: Leaf) -> &[Row] {
        &self.rows[leaf.begin()..leaf.end()]
    }

    /// How many rows of a leaf come first, of which `before` is true.
    ///
    /// One by one: a binary search would wait for memory at each step, while the rows of a leaf come
    /// from memory all at once if they are read in order.
    #[inline]
    pub(super) fn rank<O: Order>(&self, leaf: Leaf, before: impl Fn(&O::Key) -> bool) -> usize {
        let mut rows = self.rows(leaf).iter();
        let behind = rows.position(|row| !before(&O::key(row)));
        behind.unwrap_or(leaf.len())
    }

    pub(super) fn replace(&mut self, leaf: Leaf, place: usize, row: Row) {
        self.rows[leaf.begin() + place] = row;
    }

    /// Puts a row before the one that is at this place. The caller knows that there is room.
    pub(super) fn insert(&mut self, leaf: &mut Leaf, place: usize, row: Row) {
        if leaf.end() == self.rows.len() {
            // The only leaf: twice as many each time, until there are as many as a leaf may have.
            if leaf.end() == self.rows.capacity() {
                self.rows.reserve_exact(leaf.len().max(1));
            }
            self.rows.push(row);
        }
        let at = leaf.begin() + place;
        self.rows.copy_within(at..leaf.end(), at + 1);
        self.rows[at] = row;
        leaf.len += 1;
    }

    pub(super) fn remove(&mut self, leaf: &mut Leaf, place: usize) {
        let at = leaf.begin() + place;
        self.rows.copy_within(at + 1..leaf.end(), at);
        leaf.len -= 1;
    }

    /// Moves all rows but the first `keep` into a new leaf.
    pub(super) fn split(&mut self, leaf: &mut Leaf, keep: usize, filler: Row) -> Leaf {
        let full = self.rows.len().next_multiple_of(LEAF_ROWS_MAX);
        let wanted = full + LEAF_ROWS_MAX;
        if wanted > self.rows.capacity() {
            let more = wanted.max(full + growth(full)) - self.rows.len();
            self.rows.reserve_exact(more);
        }
        self.rows.resize(wanted, filler);
        let mut right = Leaf {
            number: (full / LEAF_ROWS_MAX) as u32,
            len: 0,
        };
        self.move_to_front_of(leaf, &mut right, keep);
        right
    }

    /// Moves all rows but the first `keep` to the front of `right`.
    pub(super) fn move_to_front_of(&mut self, left: &mut Leaf, right: &mut Leaf, keep: usize) {
        let count = left.len() - keep;
        let moved = left.begin() + keep..left.end();
        self.rows
            .copy_within(right.begin()..right.end(), right.begin() + count);
        self.rows.copy_within(moved, right.begin());
        left.len -= count as u32;
        right.len += count as u32;
    }

    /// Moves the first `count` rows to the end of `left`.
    pub(super) fn move_to_end_of(&mut self, right: &mut Leaf, left: &mut Leaf, count: usize) {
        let moved = right.begin()..right.begin() + count;
        self.rows.copy_within(moved.clone(), left.end());
        self.rows.copy_within(moved.end..right.end(), right.begin());
        left.len += count as u32;
        right.len -= count as u32;
    }

    /// Gives up a leaf: the last one takes its place. Returns the first row of the one that was
    /// moved, and the number that it had.
    pub(super) fn give_up(&mut self, leaf: Leaf) -> Option<(Row, u32)> {
        let hole = leaf.begin();
        let last = self.rows.len() - LEAF_ROWS_MAX;
        let moved = (last != hole).then(|| (self.rows[last], (last / LEAF_ROWS_MAX) as u32));
        self.rows.copy_within(last.., hole);
        self.rows.truncate(last);
        moved
    }

    /// Gives back memory if much of it is unused. `only` is the leaf, if there is a single one.
    pub(super) fn shrink(&mut self, only: Option<Leaf>) {
        if let Some(only) = only {
            self.rows.truncate(only.len());
        }
        let (len, capacity) = (self.rows.len(), self.rows.capacity());
        if capacity > 2 * LEAF_ROWS_MAX {
            if len + len / 4 + LEAF_ROWS_MAX < capacity {
                self.rows.shrink_to(len + len / 8);
            }
        } else if len <= capacity / 4 {
            self.rows.shrink_to(if len == 0 { 0 } else { capacity / 2 });
        }
    }

    /// That there are so many leaves and no memory for many more.
    pub(super) fn check(&self, leaves: usize, rows: usize) {
        let len = self.rows.len();
        if leaves == 1 {
            assert_eq!(len, rows, "the only leaf has no spare rows");
        } else {
            assert_eq!(len, leaves * LEAF_ROWS_MAX, "a leaf is lost");
        }
        let most = len + len / 4 + 2 * LEAF_ROWS_MAX;
        assert!(self.rows.capacity() <= most, "memory was not given back");
        assert!(len > 0 || self.rows.capacity() == 0, "memory for nothing");
    }
}
