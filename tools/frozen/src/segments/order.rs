//! The orders that segments are kept in, and what is known of many segments at once.

use super::range::{ByteRange, Segment, Sharing};

/// One segment with its owner, as it stands in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) start: u64,
    pub(super) last: u64,
    pub(super) since: u64,
    pub(super) id: u64,
    pub(super) owner: u32,
    pub(super) life: u16,
    pub(super) mode: Sharing,
}

impl Row {
    pub(super) fn new(owner: u32, segment: Segment) -> Self {
        Self {
            start: segment.range.start(),
            last: segment.range.last(),
            since: segment.since,
            id: segment.id,
            owner,
            life: segment.life,
            mode: segment.mode,
        }
    }

    /// It is one with a lock of this age and id from now on: the older of the two counts.
    pub(super) fn take_identity(&mut self, since: u64, id: u64) {
        (self.since, self.id) = (self.since, self.id).min((since, id));
    }

    pub(super) fn range(&self) -> ByteRange {
        let range = ByteRange::between(self.start, self.last);
        range.expect("a segment has a first byte and a last one behind it")
    }

    pub(super) fn segment(&self) -> Segment {
        Segment {
            range: self.range(),
            mode: self.mode,
            id: self.id,
            since: self.since,
            life: self.life,
        }
    }
}

/// An order of rows, and what a node of a tree says about all rows below it.
pub(super) trait Order {
    /// What rows are sorted by. No two rows of a tree have the same.
    type Key: Copy + Default + Ord + std::fmt::Debug;
    /// What is known of many rows at once.
    type Summary: Copy + Default + Eq + std::fmt::Debug;

    fn key(row: &Row) -> Self::Key;
    /// The summary of a single row.
    fn summary(row: &Row) -> Self::Summary;
    /// The summary of everything that is in one or the other.
    fn join(one: Self::Summary, other: Self::Summary) -> Self::Summary;
    /// Whether the summary may become another one when this row goes.
    fn depends(summary: &Self::Summary, row: &Row) -> bool;
}

/// Sorted by first byte, where no two rows have a byte in common: those that nobody shares. So they
/// are sorted by last byte as well, and where a byte is found without looking how far others reach.
pub(super) enum Disjoint {}

impl Order for Disjoint {
    type Key = u64;
    type Summary = Owners;

    #[inline]
    fn key(row: &Row) -> u64 {
        row.start
    }

    #[inline]
    fn summary(row: &Row) -> Owners {
        Owners([row.owner; 2])
    }

    #[inline]
    fn join(one: Owners, other: Owners) -> Owners {
        one.join(other)
    }

    #[inline]
    fn depends(Owners([lowest, highest]): &Owners, row: &Row) -> bool {
        lowest != highest && (row.owner == *lowest || row.owner == *highest)
    }
}

/// Sorted by first byte, where rows may overlap: the order in which conflicts are found and lists are
/// shown.
pub(super) enum ByStart {}

impl Order for ByStart {
    /// First byte, then age: of several that begin at the same byte, the oldest is reported first.
    /// There is no need to put exclusive ones first, because nothing else begins at the same byte.
    type Key = (u64, u64, u32);
    type Summary = Reach;

    #[inline]
    fn key(row: &Row) -> Self::Key {
        (row.start, row.since, row.owner)
    }

    fn summary(row: &Row) -> Reach {
        Reach::of(row)
    }

    fn join(one: Reach, other: Reach) -> Reach {
        one.join(other)
    }

    fn depends(reach: &Reach, row: &Row) -> bool {
        let gone = (row.last, row.owner);
        gone == reach.first() || gone == reach.second()
    }
}

/// Sorted by owner, then by first byte: all that one owner has.
pub(super) enum ByOwner {}

impl ByOwner {
    /// Where a segment of this owner that begins with this byte is or belongs.
    #[inline]
    pub(super) fn place(owner: u32, start: u64) -> u128 {
        u128::from(owner) << 64 | u128::from(start)
    }
}

impl Order for ByOwner {
    /// Both in one number, which takes fewer steps to compare than two.
    type Key = u128;
    type Summary = ();

    #[inline]
    fn key(row: &Row) -> u128 {
        Self::place(row.owner, row.start)
    }

    fn summary(_: &Row) {}

    fn join((): (), (): ()) {}

    fn depends((): &(), _: &Row) -> bool {
        false
    }
}

/// Whose some rows are: the lowest owner and the highest. So it is known without a look at the rows
/// whether one of them belongs to somebody else than whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners([u32; 2]);

impl Owners {
    #[inline]
    fn join(self, other: Self) -> Self {
        let (Self([low, high]), Self([other_low, other_high])) = (self, other);
        Self([low.min(other_low), high.max(other_high)])
    }

    /// Whether there are others than this one.
    #[inline]
    pub(super) fn has_others(&self, owner: u32) -> bool {
        self.0 != [owner; 2]
    }
}

/// How far some rows reach: the largest last byte, and the largest last byte among those of all
/// other owners.
///
/// So it is known without a look at the rows whether one of them reaches a byte and belongs to
/// somebody else than whoever asks, also if nearly all belong to the one who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    lasts: [u64; 2],
    /// Twice the same if there is only one owner.
    owners: [u32; 2],
}

impl Reach {
    fn of(row: &Row) -> Self {
        Self {
            lasts: [row.last; 2],
            owners: [row.owner; 2],
        }
    }

    /// Of equally far ones, the owner with the larger number comes first, so that the same rows have
    /// the same reach whatever happened before.
    fn first(&self) -> (u64, u32) {
        (self.lasts[0], self.owners[0])
    }

    fn second(&self) -> (u64, u32) {
        (self.lasts[1], self.owners[1])
    }

    fn join(self, other: Self) -> Self {
        let (far, near) = if self.first() >= other.first() {
            (self, other)
        } else {
            (other, self)
        };
        let owner = far.owners[0];
        let from_near = if near.owners[0] == owner {
            near.second()
        } else {
            near.first()
        };
        let second = match (far.owners[1] == owner, from_near.1 == owner) {
            (true, true) => far.first(),
            (true, false) => from_near,
            (false, true) => far.second(),
            (false, false) => far.second().max(from_near),
        };
        Self {
            lasts: [far.lasts[0], second.0],
            owners: [owner, second.1],
        }
    }

    /// Whether a segment of somebody else than `owner` ends at `byte` or behind it.
    #[inline]
    pub(super) fn of_others_reaches(&self, byte: u64, owner: u32) -> bool {
        self.lasts[0] >= byte
            && (self.owners[0] != owner || (self.owners[1] != owner && self.lasts[1] >= byte))
    }
}
