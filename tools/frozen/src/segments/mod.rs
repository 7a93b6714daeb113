//! The byte-range locks of one resource, under the rules of POSIX: who has which bytes, and what is
//! in the way of whom.
//!
//! An owner has each byte once, shared or exclusive: what it locks replaces what it had there, and
//! pieces of the same kind that overlap or touch become one segment. Two owners have the same byte
//! only if both have it shared.
//!
//! Each segment is in two trees: with all of its mode by first byte, where conflicts are found
//! (`tree.rs`, `tree_find.rs`), and with all of its owner, where a lock or unlock rewrites them.
//! `order.rs` has both orders. `walks.rs` goes through conflicts and lists, and can stop in between.
//!
//! Never decides who may lock or waits: it answers what is in the way, and records what was granted.
//! Never reads a clock, never draws a random number, and never knows who an owner is.

mod check;
mod grants;
mod leaves;
mod list;
mod order;
mod range;
mod tree;
mod tree_find;
mod walks;

pub use self::grants::{Grant, Grants, LIVE, RangeGrant};
use self::order::{ByOwner, ByStart, Disjoint, Order, Row};
pub use self::range::{ByteRange, Segment, Sharing};
use self::tree::Tree;
pub use self::walks::{All, Conflicts, Position};

/// All segments of one resource.
///
/// Owners are numbers that the caller chooses. To look for a conflict, to lock and to unlock are
/// O(log n) for each segment that changes, however many segments overlap and however many belong to
/// the owner that asks.
///
/// ```
/// # use latchd::segments::{ByteRange, Grant, Segments, Sharing};
/// let range = |start, len| ByteRange::new(start, len).expect("it ends before 2^64");
/// let mut segments = Segments::new();
/// let grant = Grant { id: 7, ..Grant::default() };
/// segments.set(1, range(0, 100), Sharing::Exclusive, grant);
/// segments.unlock(1, range(10, 10), 9);
///
/// let left: Vec<_> = segments.of_owner(1).map(|it| (it.id, it.range)).collect();
/// assert_eq!(left, [(7, range(0, 10)), (9, range(20, 80))]);
/// let (owner, segment) = segments.first_conflict(2, range(15, 0), Sharing::Shared).expect("one");
/// assert_eq!((owner, segment.range), (1, range(20, 80)));
/// ```
///
/// A segment costs 40 bytes in each of two trees: 80 if leaves are full, as they are if ranges are
/// locked in order, about 120 if not. A single one costs 96 with the allocator's share.
pub struct Segments {
    exclusive: Tree<Disjoint>,
    shared: Tree<ByStart>,
    by_owner: Tree<ByOwner>,
    /// How many there are. Two small numbers, because very many resources have one segment each.
    len: u32,
    /// How many of them are shared.
    shared_len: u32,
}

/// What a lock or an unlock does to the segments of one owner.
#[derive(Clone, Copy)]
struct Change {
    /// How many segments go. They are neighbours of each other.
    removed: u32,
    /// The first of them.
    first: Option<Row>,
    /// What comes instead: what is left over at the start, what was locked with all that it has
    /// merged with, and what is left over at the end.
    inserted: [Option<Row>; 3],
}

impl Change {
    fn growth(&self) -> i64 {
        self.inserted_count() as i64 - i64::from(self.removed)
    }

    fn inserted_count(&self) -> usize {
        self.inserted.iter().flatten().count()
    }

    /// Whether all stays as it is: what was locked is a part of the same lock.
    fn is_none(&self) -> bool {
        self.removed == 1 && self.inserted == [None, self.first, None]
    }
}

impl Default for Segments {
    fn default() -> Self {
        Self::new()
    }
}

impl Segments {
    /// No segments. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            exclusive: Tree::new(),
            shared: Tree::new(),
            by_owner: Tree::new(),
            len: 0,
            shared_len: 0,
        }
    }

    /// How many segments there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// How many segments there are of this mode.
    #[must_use]
    pub fn len_of(&self, mode: Sharing) -> usize {
        match mode {
            Sharing::Shared => self.shared_len as usize,
            Sharing::Exclusive => (self.len - self.shared_len) as usize,
        }
    }

    /// Whether nobody has any byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How much memory all segments take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.exclusive.memory() + self.shared.memory() + self.by_owner.memory()
    }

    /// The segment of another owner that is in the way of this lock, with its owner. Of several, it
    /// is the one with the lowest first byte, and of several that begin there, the oldest. (None of
    /// those is exclusive: an exclusive one begins alone.)
    #[must_use]
    #[inline]
    pub fn first_conflict(
        &self,
        owner: u32,
        range: ByteRange,
        mode: Sharing,
    ) -> Option<(u32, Segment)> {
        let row = self.conflict_behind(Position::START, owner, range, mode);
        row.map(|row| (row.owner, row.segment()))
    }

    /// All segments of other owners that are in the way of this lock, in the same order.
    #[must_use]
    pub fn conflicts(&self, owner: u32, range: ByteRange, mode: Sharing) -> Conflicts<'_> {
        self.conflicts_from(Position::START, owner, range, mode)
    }

    /// The same, from where an earlier walk has stopped. If segments came or went since, the walk
    /// finds those of them that are behind the position.
    #[must_use]
    pub fn conflicts_from(
        &self,
        position: Position,
        owner: u32,
        range: ByteRange,
        mode: Sharing,
    ) -> Conflicts<'_> {
        Conflicts::new(self, position, owner, range, mode)
    }

    /// All segments with their owners, sorted by first byte, then by age.
    #[must_use]
    pub fn iter(&self) -> All<'_> {
        self.iter_from(Position::START)
    }

    /// The same, from where an earlier walk has stopped.
    #[must_use]
    pub fn iter_from(&self, position: Position) -> All<'_> {
        All::new(self, position)
    }

    /// The first segment of an owner.
    #[must_use]
    pub fn first_of(&self, owner: u32) -> Option<Segment> {
        self.of_owner(owner).next()
    }

    /// All segments of an owner, in order.
    pub fn of_owner(&self, owner: u32) -> impl Iterator<Item = Segment> {
        self.of_owner_overlapping(owner, ByteRange::ALL)
    }

    /// The segments of an owner that have a byte in the range, in order. They are whole, also
    /// beyond the range.
    pub fn of_owner_overlapping(
        &self,
        owner: u32,
        range: ByteRange,
    ) -> impl Iterator<Item = Segment> {
        let near = self.near(owner, range).map(|row| row.segment());
        near.filter(move |segment| segment.range.overlaps(range))
    }

    /// Whether the owner has every byte of the range in this mode or in a stronger one; with `live_only`,
    /// pending ones do not count.
    #[must_use]
    pub fn is_covered(&self, owner: u32, range: ByteRange, mode: Sharing, live_only: bool) -> bool {
        let mut next = range.start();
        for segment in self.of_owner_overlapping(owner, range) {
            let counts = segment.mode.covers(mode) && !(live_only && segment.pending());
            if !counts || segment.range.start() > next {
                return false;
            }
            if segment.range.last() >= range.last() {
                return true;
            }
            next = segment.range.last() + 1;
        }
        false
    }

    /// How many segments more there would be after [`Segments::set`] with something that is not
    /// pending; less than 0 if there would be fewer.
    #[must_use]
    pub fn growth_of_set(&self, owner: u32, range: ByteRange, mode: Sharing) -> i64 {
        let wanted = Grant::default().of(range, mode);
        self.change(owner, range, Some(wanted), 0).growth()
    }

    /// How many segments more there would be after [`Segments::unlock`]: 1 if it splits one.
    #[must_use]
    pub fn growth_of_unlock(&self, owner: u32, range: ByteRange) -> i64 {
        self.change(owner, range, None, 0).growth()
    }

    /// Locks a range, which nothing is in the way of. If there is, one byte would be granted twice,
    /// and that stops the process.
    ///
    /// What the owner had there is replaced; what is left of it keeps its age. Segments of the same
    /// mode that overlap or touch become one, which has the id and the age of the oldest of them, but
    /// what different lives of the server have granted stays apart. What an earlier life had granted
    /// is had back: the new segment has its age, and also its id if it has its first byte.
    ///
    /// The id stays with the first byte. What is split off behind has the number after `grant.id`.
    ///
    /// Returns how many segments were taken out and put in: 0 if the same lock was there already.
    pub fn set(&mut self, owner: u32, range: ByteRange, mode: Sharing, grant: Grant) -> u32 {
        if let Some((other, held)) = self.first_conflict(owner, range, mode) {
            panic!("granting {mode:?} {range:?} to {owner}, but {other} has {held:?}");
        }
        let wanted = grant.of(range, mode);
        self.apply(self.change(owner, range, Some(wanted), grant.id + 1))
    }

    /// Unlocks what the owner has of a range, pending or not. If that makes two segments of one, the
    /// second has the id `behind`. Returns how many segments were taken out and put in: 0 if it had
    /// nothing there.
    pub fn unlock(&mut self, owner: u32, range: ByteRange, behind: u64) -> u32 {
        self.apply(self.change(owner, range, None, behind))
    }

    /// Takes out the first segments of an owner, `max` at most, and calls `gone` with each. Returns
    /// how many there were: fewer than `max` if none is left. So an owner of very many segments goes
    /// a few at a time.
    pub fn remove_some(&mut self, owner: u32, max: u32, mut gone: impl FnMut(Segment)) -> u32 {
        for count in 0..max {
            let Some(row) = self.near(owner, ByteRange::ALL).next() else {
                return count;
            };
            self.remove(&row);
            gone(row.segment());
        }
        max
    }

    /// The first row behind a position that is in the way of a lock.
    #[inline]
    fn conflict_behind(
        &self,
        position: Position,
        owner: u32,
        range: ByteRange,
        mode: Sharing,
    ) -> Option<&Row> {
        let (after, first_byte) = (position.0, range.start());
        // The first that ends late enough; if it begins too late, so do all others.
        let in_time = |row: &&Row| row.start <= range.last();
        let exclusive = self.exclusive.first_reaching(after, first_byte, owner);
        let exclusive = exclusive.filter(in_time);
        let shared = match mode {
            Sharing::Shared => None,
            Sharing::Exclusive => self.shared.first_reaching(after, first_byte, owner),
        };
        let shared = shared.filter(in_time);
        match (exclusive, shared) {
            (Some(one), Some(other)) if ByStart::key(other) < ByStart::key(one) => shared,
            (None, _) => shared,
            (Some(_), _) => exclusive,
        }
    }

    /// The rows of an owner that overlap or touch a range, in order.
    fn near(&self, owner: u32, range: ByteRange) -> impl Iterator<Item = Row> {
        // Who ends just before the range begins there or earlier, but never behind that.
        let before = range.start().saturating_sub(1);
        let rows = self.by_owner.rows_around(ByOwner::place(owner, before));
        // The first row may be of another owner, or end too early.
        let rows = rows
            .skip_while(move |row| row.owner < owner || (row.owner == owner && row.last < before));
        rows.take_while(move |row| {
            row.owner == owner && row.start <= range.last().saturating_add(1)
        })
    }

    /// What becomes of the segments of an owner if it locks or, with `None`, unlocks a range. What is
    /// split off behind it has the id `split_id`.
    fn change(
        &self,
        owner: u32,
        range: ByteRange,
        wanted: Option<Segment>,
        split_id: u64,
    ) -> Change {
        let mut wanted = wanted.map(|segment| Row::new(owner, segment));
        let (mut before, mut behind) = (None, None);
        let (mut removed, mut first) = (0, None);
        for row in self.near(owner, range) {
            let same_kind = |it: &&mut Row| (it.mode, it.life) == (row.mode, row.life);
            if let Some(wanted) = wanted.as_mut().filter(same_kind) {
                wanted.start = wanted.start.min(row.start);
                wanted.last = wanted.last.max(row.last);
                wanted.take_identity(row.since, row.id);
            } else if row.range().overlaps(range) {
                if let Some(wanted) = wanted.as_mut().filter(|it| it.life != row.life) {
                    let keeps_id = range.start() <= row.start;
                    wanted.take_identity(row.since, if keeps_id { row.id } else { wanted.id });
                }
                if row.start < range.start() {
                    let last = range.start() - 1;
                    before = Some(Row { last, ..row });
                }
                if row.last > range.last() {
                    let start = range.last() + 1;
                    behind = Some(Row { start, ..row });
                }
            } else {
                continue; // It touches the range, and is of another kind.
            }
            removed += 1;
            first = first.or(Some(row));
        }
        if let Some(behind) = &mut behind
            && [before, wanted]
                .iter()
                .flatten()
                .any(|it| it.id == behind.id)
        {
            behind.id = split_id;
        }
        Change {
            removed,
            first,
            inserted: [before, wanted, behind],
        }
    }

    fn apply(&mut self, change: Change) -> u32 {
        if change.is_none() {
            return 0;
        }
        let mut inserted = change.inserted;
        match change.first {
            // Often a segment only becomes longer or shorter at its end, and stays where it is.
            Some(old) if change.removed == 1 => {
                let stays =
                    |new: &Row| ByStart::key(new) == ByStart::key(&old) && new.mode == old.mode;
                let mut places = inserted.iter_mut();
                let place = places.find(|place| place.as_ref().is_some_and(stays));
                match place.and_then(Option::take) {
                    Some(new) => self.update(&old, new),
                    None => self.remove(&old),
                }
            }
            Some(first) => {
                for _ in 0..change.removed {
                    let mut rows = self.by_owner.rows_around(ByOwner::key(&first));
                    // The first of all has gone already, so that the row before it comes now.
                    let row = rows.find(|row| ByOwner::key(row) >= ByOwner::key(&first));
                    self.remove(&row.expect("as many as were counted"));
                }
            }
            None => {}
        }
        for row in inserted.iter().flatten() {
            self.insert(*row);
        }
        change.removed + change.inserted_count() as u32
    }

    fn insert(&mut self, row: Row) {
        match row.mode {
            Sharing::Shared => self.shared.insert(row),
            Sharing::Exclusive => self.exclusive.insert(row),
        }
        self.by_owner.insert(row);
        self.len += 1;
        self.shared_len += u32::from(row.mode == Sharing::Shared);
    }

    fn remove(&mut self, row: &Row) {
        match row.mode {
            Sharing::Shared => self.shared.remove(row),
            Sharing::Exclusive => self.exclusive.remove(row),
        }
        self.by_owner.remove(row);
        self.len -= 1;
        self.shared_len -= u32::from(row.mode == Sharing::Shared);
    }

    /// Puts `new` in the place of `old`, which has the same mode and the same place in all orders.
    fn update(&mut self, old: &Row, new: Row) {
        match old.mode {
            Sharing::Shared => self.shared.update(old, new),
            Sharing::Exclusive => self.exclusive.update(old, new),
        }
        self.by_owner.update(old, new);
    }
}
