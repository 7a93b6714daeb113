//! The slab of timers: what a [`TimerId`] points to, with the true deadline of every armed timer.
//!
//! Data only. A timer's entry is in some heap (`heap.rs`); the slab knows only at which place, and
//! the heap keeps that up to date.

use std::mem;

use super::heap::Places;
use super::{TIMERS_MAX, TimerId};
use crate::base::Nanos;
use crate::memory;

/// In [`Slot::place`]: the slot is vacant, and the other 31 bits are the next vacant slot.
pub(super) const VACANT: u32 = 1 << 31;

/// The end of the list of vacant slots.
pub(super) const END: u32 = u32::MAX;

/// When the last timer goes, a slab with more slots than this is given back instead of being kept.
pub(super) const SLOTS_KEPT_MAX: usize = 1024;

/// Most slots given back in one call: about a megabyte, which takes a tenth of a millisecond.
const TIDIED_MAX: usize = 64 * 1024;

/// All timers of one kind of timers, armed and vacant.
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    /// The first vacant slot, marked `VACANT`, or `END`.
    vacant: u32,
    armed: usize,
    /// An earlier `slots`, all vacant, whose memory is being given back.
    retired: Vec<Slot>,
}

/// A timer, or a vacant slot.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// The true deadline, in halves, because a whole `u64` would be aligned, at a cost of four
    /// bytes.
    deadline: [u32; 2],
    /// The index of its entry in the heap; or `VACANT` and the next vacant slot.
    pub(super) place: u32,
}

impl Slot {
    fn new(deadline: Nanos, place: u32) -> Self {
        let mut slot = Self {
            deadline: [0; 2],
            place,
        };
        slot.set_deadline(deadline);
        slot
    }

    pub(super) fn deadline(&self) -> Nanos {
        Nanos(u64::from(self.deadline[1]) << 32 | u64::from(self.deadline[0]))
    }

    pub(super) fn set_deadline(&mut self, deadline: Nanos) {
        self.deadline = [deadline.0 as u32, (deadline.0 >> 32) as u32];
    }
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: END,
            armed: 0,
            retired: Vec::new(),
        }
    }

    /// How many timers are armed.
    pub(super) fn armed(&self) -> usize {
        self.armed
    }

    /// Puts a timer into the slot that was vacated last, or into a new one.
    #[inline]
    pub(super) fn occupy(&mut self, deadline: Nanos) -> u32 {
        self.armed += 1;
        let timer = Slot::new(deadline, 0); // the heap sets the place
        if self.vacant == END {
            let slot = self.slots.len();
            assert!(slot < TIMERS_MAX, "more than {TIMERS_MAX} timers");
            if slot == self.slots.capacity() {
                memory::grow(&mut self.slots);
            }
            self.slots.push(timer);
            return slot as u32;
        }
        let slot = self.vacant & !VACANT;
        self.vacant = mem::replace(&mut self.slots[slot as usize], timer).place;
        slot
    }

    /// The timer in this slot is over. Returns whether it was the last of a crowd, whose memory is
    /// given back from now on.
    #[inline]
    pub(super) fn vacate(&mut self, slot: u32) -> bool {
        self.armed -= 1;
        if self.armed == 0 && self.slots.len() > SLOTS_KEPT_MAX {
            self.retire();
            return true;
        }
        self.slots[slot as usize].place = self.vacant;
        self.vacant = VACANT | slot;
        false
    }

    /// Leaves all slots, which are vacant, to [`Slots::tidy`].
    #[cold]
    fn retire(&mut self) {
        self.vacant = END;
        let gone = mem::take(&mut self.slots);
        // If some are still being given back, the smaller part is freed at once.
        if gone.len() > self.retired.len() {
            self.retired = gone;
        }
    }

    /// Gives back a part of the memory of a crowd; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.retired.capacity() > 0 && self.tidy_some()
    }

    #[cold]
    fn tidy_some(&mut self) -> bool {
        let rest = self.retired.len().saturating_sub(TIDIED_MAX);
        self.retired.truncate(rest);
        self.retired.shrink_to_fit();
        self.retired.capacity() > 0
    }

    pub(super) fn memory(&self) -> usize {
        (self.slots.capacity() + self.retired.capacity()) * size_of::<Slot>()
    }

    /// The slot of a timer that must be armed.
    #[inline]
    pub(super) fn armed_at(&self, id: TimerId) -> &Slot {
        let slot = &self.slots[id.slot()];
        assert!(slot.place & VACANT == 0, "{id:?} is not armed");
        slot
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn armed_at_mut(&mut self, id: TimerId) -> &mut Slot {
        let slot = &mut self.slots[id.slot()];
        assert!(slot.place & VACANT == 0, "{id:?} is not armed");
        slot
    }

    /// The true deadline of the timer in this slot.
    pub(super) fn deadline(&self, slot: u32) -> Nanos {
        self.slots[slot as usize].deadline()
    }

    /// Everything that must hold between two calls: every slot is armed, or in the list of vacant
    /// ones.
    pub(super) fn check(&self) {
        let mut vacancies = 0;
        let mut next = self.vacant;
        while next != END {
            debug_assert!(next & VACANT != 0, "an armed slot is in the vacant list");
            vacancies += 1;
            debug_assert!(
                vacancies <= self.slots.len(),
                "the vacant slots form a circle"
            );
            next = self.slots[(next & !VACANT) as usize].place;
        }
        debug_assert_eq!(self.armed + vacancies, self.slots.len(), "a slot is lost");
    }
}

impl Places for Slots {
    #[inline]
    fn set_place(&mut self, index: u32, place: u32) {
        self.slots[index as usize].place = place;
    }
}
