//! Byte ranges as people see them: read-only.

use super::super::view::View;
use super::super::waits::edges::Someone;
use super::ask::{ByteRange, GraceState, Sharing};
use crate::base::Nanos;

/// The range locks of one resource, and who waits for some.
#[derive(Clone, Copy)]
pub struct RangesView<'e> {
    view: View<'e>,
}

/// One range lock, or one that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeShown<'e> {
    /// The client: by its id, or a connection that is its own client.
    pub client: Someone<'e>,
    /// For whom the client holds it; empty for itself.
    pub owner: &'e [u8],
    /// Together with others, or alone.
    pub mode: Sharing,
    /// Which bytes.
    pub range: ByteRange,
    /// It was held before a restart and not had back yet.
    pub pending: bool,
    /// Since when it is held, or waited for.
    pub since: Nanos,
}

impl<'e> View<'e> {
    /// The ranges of this resource; none if nobody holds or wants any.
    #[must_use]
    pub fn ranges(self, resource: &[u8]) -> Option<RangesView<'e>> {
        let _ = resource;
        None
    }

    /// How far the time is in which clients have back what they held before a restart.
    #[must_use]
    pub fn grace(self) -> GraceState {
        GraceState::default()
    }
}

impl<'e> RangesView<'e> {
    /// Those that are held, in the order of their first bytes.
    pub fn held(self) -> impl Iterator<Item = RangeShown<'e>> {
        let _ = self.view;
        std::iter::empty()
    }

    /// Those that are waited for, in the order of the queue.
    pub fn waiting(self) -> impl Iterator<Item = RangeShown<'e>> {
        std::iter::empty()
    }

    /// Tells whom the waiter at this place in the queue (0 is the first) waits for, at most 1,000 of them.
    pub fn waits_for(self, _place: usize, _each: impl FnMut(Someone<'e>, &'e [u8])) {}
}
