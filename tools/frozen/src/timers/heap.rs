//! A heap of instants: four children per node, earliest first.
//!
//! Each entry belongs to something with a number, and that something is told the entry's place
//! whenever it moves ([`Places`]), so that any entry can be found and taken out. Knows nothing of
//! timers: `mod.rs` has a heap of timers, `groups.rs` one for each group and one of groups.

use crate::base::Nanos;
use crate::memory::{self, block_bytes};

/// Children per heap node. Four halve the depth of a binary heap, and four entries are as large as
/// one cache line.
pub(super) const ARITY: usize = 4;

/// Most entries whose memory is given back at once: a megabyte.
const GIVEN_BACK_MAX: usize = 64 * 1024;

/// Room for this many entries at first. A client usually has one lease.
const ROOM_FIRST: usize = 2;

/// Up to this room a heap doubles as it grows, beyond it by less.
const ROOM_DOUBLED_MAX: usize = 128;

/// Where each thing's entry is noted.
pub(super) trait Places {
    /// The entry of thing `index` is at this place of the heap from now on.
    fn set_place(&mut self, index: u32, place: u32);
}

/// One entry of the heap.
#[derive(Clone, Copy)]
pub(super) struct Entry<T> {
    pub(super) at: Nanos,
    /// The number of what it belongs to.
    pub(super) index: u32,
    /// What the caller put it in for.
    pub(super) what: T,
}

/// An implicit 4-ary heap, earliest instant first. Gives memory back as entries go.
pub(super) struct Heap<T>(pub(super) Vec<Entry<T>>);

impl<T: Copy> Heap<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn memory(&self) -> usize {
        block_bytes(self.0.capacity() * size_of::<Entry<T>>())
    }

    /// The earliest entry.
    #[inline]
    pub(super) fn first(&self) -> Option<&Entry<T>> {
        self.0.first()
    }

    /// O(1) if no entry is later, else O(log n).
    #[inline]
    pub(super) fn push(&mut self, places: &mut impl Places, entry: Entry<T>) {
        if self.0.len() == self.0.capacity() {
            self.grow();
        }
        let place = self.0.len();
        self.0.push(entry);
        if place == 0 || self.0[(place - 1) / ARITY].at <= entry.at {
            places.set_place(entry.index, place as u32); // nearly always
        } else {
            self.sift_up(places, place);
        }
    }

    #[cold]
    fn grow(&mut self) {
        match self.0.capacity() {
            0 => self.0.reserve_exact(ROOM_FIRST),
            room if room < ROOM_DOUBLED_MAX => self.0.reserve(1),
            _ => memory::grow(&mut self.0),
        }
    }

    /// Moves the entry at `place` to an earlier time.
    #[inline]
    pub(super) fn bring_forward(&mut self, places: &mut impl Places, place: usize, at: Nanos) {
        self.0[place].at = at;
        self.sift_up(places, place);
    }

    /// Moves the earliest entry to a later time.
    pub(super) fn put_back_first(&mut self, places: &mut impl Places, at: Nanos) {
        self.0[0].at = at;
        self.sift_down(places, 0);
    }

    /// Takes an entry out and fills the hole with the last one. Room for up to `kept` entries is
    /// never given back.
    #[inline]
    pub(super) fn remove(
        &mut self,
        places: &mut impl Places,
        place: usize,
        kept: usize,
    ) -> Entry<T> {
        let gone = self.0.swap_remove(place);
        if let Some(moved) = self.0.get(place) {
            // The last entry comes from another branch, so it may belong further up or down.
            if moved.at < gone.at {
                self.sift_up(places, place)
            } else {
                self.sift_down(places, place)
            }
        }
        let room = self.0.capacity();
        if room > kept && self.0.len() < room / 4 {
            self.shrink();
        }
        gone
    }

    /// Gives back a half of the room, but not more than the system can take back without a pause.
    #[cold]
    fn shrink(&mut self) {
        let room = self.0.capacity();
        self.0.shrink_to(room - (room / 2).min(GIVEN_BACK_MAX));
    }

    /// Moves the entry at `place` up until its parent is not later.
    #[inline]
    fn sift_up(&mut self, places: &mut impl Places, mut place: usize) {
        let entry = self.0[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.0[parent].at <= entry.at {
                break;
            }
            self.put(places, place, self.0[parent]);
            place = parent;
        }
        self.put(places, place, entry);
    }

    /// Moves the entry at `place` down until no child is earlier.
    fn sift_down(&mut self, places: &mut impl Places, mut place: usize) {
        let entry = self.0[place];
        loop {
            let first = place * ARITY + 1;
            let end = (first + ARITY).min(self.0.len());
            let Some(children) = self.0.get(first..end).filter(|some| !some.is_empty()) else {
                break;
            };
            let mut least = 0;
            for child in 1..children.len() {
                if children[child].at < children[least].at {
                    least = child;
                }
            }
            let child = children[least];
            if entry.at <= child.at {
                break;
            }
            self.put(places, place, child);
            place = first + least;
        }
        self.put(places, place, entry);
    }

    /// Writes an entry to the heap and notes its place, so that both stay in step.
    #[inline]
    fn put(&mut self, places: &mut impl Places, place: usize, entry: Entry<T>) {
        self.0[place] = entry;
        places.set_place(entry.index, place as u32);
    }

    /// Everything that must hold between two calls.
    pub(super) fn check(&self) {
        for (place, entry) in self.0.iter().enumerate() {
            let parent = place.saturating_sub(1) / ARITY;
            debug_assert!(
                self.0[parent].at <= entry.at,
                "a child is earlier than its parent"
            );
        }
    }
}
