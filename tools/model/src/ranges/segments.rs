//! The bytes that one owner has of one resource, as POSIX has it: each byte at most once, shared or
//! exclusive. A lock replaces what the owner had of these bytes; an unlock takes it away.
//!
//! Each piece has a number and a time (`docs/ranges.md`, "The number of a lock").

use latchd::engine::types::{ByteRange, Sharing};

/// Neighbouring bytes that the owner has in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The first byte and the last.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub mode: Sharing,
    /// The number of the lock.
    pub id: u64,
    /// When it was granted, in nanoseconds since 1970.
    pub since: u64,
    /// The epoch of the server that granted it.
    pub epoch: u64,
    /// It was held before a restart, and its client has not had it back yet.
    pub pending: bool,
}

impl Segment {
    /// Two segments that touch become one if they agree in all of this.
    fn is_like(&self, other: &Self) -> bool {
        (self.mode, self.epoch, self.pending) == (other.mode, other.epoch, other.pending)
    }

    /// It is one with a segment of this age and number from now on: the older one counts.
    fn become_one_with(&mut self, since: u64, id: u64) {
        (self.since, self.id) = (self.since, self.id).min((since, id));
    }
}

/// The owner locks a range. No lock of another owner is in the way. What is split off behind the
/// range has the number `split_id`, unless it keeps its own.
pub(super) fn lock(own: &mut Vec<Segment>, mut new: Segment, split_id: u64) {
    let asked = new.range;
    let mut rest = Vec::new();
    for old in std::mem::take(own) {
        let overlaps = old.range.overlaps(asked);
        if old.is_like(&new) && (overlaps || old.range.touches(asked)) {
            new.range = hull(new.range, old.range);
            new.become_one_with(old.since, old.id);
            continue;
        }
        if overlaps && (old.epoch, old.pending) != (new.epoch, new.pending) {
            // An earlier life of the server granted these bytes, and the owner reclaims them: their
            // number stays with their first byte.
            let has_first = asked.start() <= old.range.start();
            let id = if has_first { old.id } else { new.id };
            new.become_one_with(old.since, id);
        }
        rest.extend(without(old, asked));
    }
    rest.push(new);
    *own = rest;
    number_the_part_behind(own, asked, split_id);
}

/// Removes a range from the owner's segments, as far as it holds some of it. A part that is split
/// off behind the range gets the number `split_id`.
pub(super) fn unlock(own: &mut Vec<Segment>, range: ByteRange, split_id: u64) {
    *own = own.iter().flat_map(|&old| without(old, range)).collect();
    number_the_part_behind(own, range, split_id);
}

/// Whether the owner has every byte of a range, in this mode or as exclusive.
pub(super) fn covers(own: &[Segment], range: ByteRange, mode: Sharing, with_pending: bool) -> bool {
    let mut missing = vec![range];
    for it in own {
        let is_enough = it.mode == mode || it.mode == Sharing::Exclusive;
        if is_enough && (with_pending || !it.pending) {
            missing = missing.iter().flat_map(|gap| cut(*gap, it.range)).collect();
        }
    }
    missing.is_empty()
}

/// The parts of a segment that are not in the range: none, one or two.
fn without(segment: Segment, range: ByteRange) -> Vec<Segment> {
    let parts = cut(segment.range, range).into_iter();
    parts.map(|range| Segment { range, ..segment }).collect()
}

/// The parts of `whole` that are before and behind `hole`.
fn cut(whole: ByteRange, hole: ByteRange) -> Vec<ByteRange> {
    if !whole.overlaps(hole) {
        return vec![whole];
    }
    let before = hole.start().checked_sub(1);
    let behind = hole.last().checked_add(1);
    let before = before.and_then(|last| ByteRange::between(whole.start(), last));
    let behind = behind.and_then(|start| ByteRange::between(start, whole.last()));
    before.into_iter().chain(behind).collect()
}

/// The smallest range that has both in it.
fn hull(one: ByteRange, other: ByteRange) -> ByteRange {
    let (start, last) = (one.start().min(other.start()), one.last().max(other.last()));
    ByteRange::between(start, last).unwrap_or(one)
}

/// Sorts the segments by first byte. The number of a segment that was cut stays with its first
/// byte: if another segment has that byte now, the part behind the range has a new number.
fn number_the_part_behind(own: &mut [Segment], range: ByteRange, split_id: u64) {
    own.sort_by_key(|it| it.range.start());
    for at in 1..own.len() {
        let is_behind = own[at].range.start() > range.last();
        if is_behind && own[..at].iter().any(|it| it.id == own[at].id) {
            own[at].id = split_id;
        }
    }
}
