//! Walks through many segments, which can stop anywhere and go on in a later turn.

use super::Segments;
use super::order::{ByStart, Disjoint, Order, Row};
use super::range::{ByteRange, Segment, Sharing};
use super::tree_find::Rows;

/// Where a walk has stopped: behind the last segment that it returned. It borrows nothing, and
/// remains a place in the order when segments come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(pub(super) Option<<ByStart as Order>::Key>);

impl Position {
    /// Before all segments.
    pub const START: Self = Self(None);

    fn behind(row: &Row) -> Self {
        Self(Some(ByStart::key(row)))
    }
}

/// All segments that are in the way of a lock. A step is O(log n), whatever lies between.
pub struct Conflicts<'a> {
    segments: &'a Segments,
    position: Position,
    owner: u32,
    range: ByteRange,
    mode: Sharing,
}

impl<'a> Conflicts<'a> {
    pub(super) fn new(
        segments: &'a Segments,
        position: Position,
        owner: u32,
        range: ByteRange,
        mode: Sharing,
    ) -> Self {
        Self {
            segments,
            position,
            owner,
            range,
            mode,
        }
    }

    /// Where to go on later, with [`Segments::conflicts_from`].
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }
}

impl Iterator for Conflicts<'_> {
    type Item = (u32, Segment);

    fn next(&mut self) -> Option<Self::Item> {
        let (owner, range, mode) = (self.owner, self.range, self.mode);
        let row = self
            .segments
            .conflict_behind(self.position, owner, range, mode)?;
        self.position = Position::behind(row);
        Some((row.owner, row.segment()))
    }
}

/// All segments, sorted by first byte, then by age.
pub struct All<'a> {
    exclusive: Rows<'a, Disjoint>,
    shared: Rows<'a, ByStart>,
    position: Position,
}

impl<'a> All<'a> {
    pub(super) fn new(segments: &'a Segments, position: Position) -> Self {
        let (exclusive, shared) = match position.0 {
            None => (segments.exclusive.rows(), segments.shared.rows()),
            Some(key) => (
                segments.exclusive.rows_behind_position(key),
                segments.shared.rows_behind(key),
            ),
        };
        Self {
            exclusive,
            shared,
            position,
        }
    }

    /// Where to go on later, with [`Segments::iter_from`].
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    pub(super) fn next_row(&mut self) -> Option<Row> {
        let row = match (self.exclusive.peek(), self.shared.peek()) {
            (Some(one), Some(other)) if ByStart::key(one) < ByStart::key(other) => {
                self.exclusive.next()
            }
            (Some(_), None) => self.exclusive.next(),
            (_, _) => self.shared.next(),
        }?;
        self.position = Position::behind(&row);
        Some(row)
    }
}

impl Iterator for All<'_> {
    type Item = (u32, Segment);

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.next_row()?;
        Some((row.owner, row.segment()))
    }
}
