//! Timers: deadlines in a heap. Arm, re-arm, cancel, and pop those that are due.
//!
//! Made for leases and wait timeouts, which are nearly always renewed or cancelled and seldom come
//! due. So the frequent calls are cheap: to arm the latest deadline and to cancel it again touches
//! only the end of the heap, and to re-arm to a later time does not touch the heap at all.
//!
//! [`Timers`] is one heap for all, [`GroupTimers`] has one for each group and is fair between
//! groups. `slots.rs` is the slab of timers, `heap.rs` the heap itself.
//!
//! Never reads a clock, because time is an argument, and never knows what a timer means, because
//! that is the caller's `T`. Never draws a random number: the same calls pop the same timers in the
//! same order.

mod groups;
mod heap;
mod slots;

use std::num::NonZeroU32;

pub use self::groups::{GroupTimers, QUANTUM};
use self::heap::{Entry, Heap};
use self::slots::{SLOTS_KEPT_MAX, Slots};
use crate::base::Nanos;

/// Most timers that can be armed at once, at 28 bytes each; one more stops the process. Callers
/// stay below it, because what their timers stand for is bounded: grants at 2^28, connections by
/// descriptors, keys by their limit.
pub const TIMERS_MAX: usize = (slots::END & !slots::VACANT) as usize;

/// One armed timer. The id is dead once the timer was popped or cancelled, and its keeper must
/// forget it at that moment: using a dead id is a bug, which stops the process only if the slot
/// does not already serve another timer.
///
/// Four bytes, also inside an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId(NonZeroU32);

impl TimerId {
    fn new(slot: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(slot))
    }

    fn slot(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// Any number of deadlines, each with a `T` that says what it is for.
///
/// A timer costs 12 bytes in the slab and, for a `T` of 4 bytes, 16 in the heap: 28 in all, however
/// often it is re-armed (for a `T` of 8 bytes, 36 in all). The spare room of the vectors comes on
/// top. Vacant slots are used again before the slab grows, so memory follows the most timers ever
/// armed at once. The heap gives memory back as timers go, the slab when the last timer has gone,
/// both a megabyte at a time ([`Timers::tidy`]).
///
/// The trick is that a heap entry may be *stale*: stored under an earlier time than its timer's
/// true deadline. Re-arming to a later time only writes the true deadline; the entry is corrected
/// when it reaches the top.
pub struct Timers<T> {
    /// Exactly one entry per armed timer, with its slot. The stored time is never later than the
    /// true deadline. What the caller armed it for is here, because it would cost four bytes more
    /// in the slot.
    heap: Heap<T>,
    /// What `TimerId`s point to: the truth about every armed timer.
    slots: Slots,
}

impl<T: Copy> Timers<T> {
    /// No timers. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            heap: Heap::new(),
            slots: Slots::new(),
        }
    }

    /// How many timers are armed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// How much memory all timers take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.heap.memory() + self.slots.memory()
    }

    /// Whether no timer is armed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Starts a timer for `what`, due at `at`. O(1) if no timer is armed for later, else O(log n).
    ///
    /// With an instant that has passed, the timer is due at once; with [`Nanos::NEVER`], never.
    pub fn arm(&mut self, at: Nanos, what: T) -> TimerId {
        let index = self.slots.occupy(at);
        self.heap.push(&mut self.slots, Entry { at, index, what });
        TimerId::new(index)
    }

    /// Moves a timer's deadline to `at`.
    ///
    /// To a later time it is O(1) and leaves the heap alone, so [`Timers::next_deadline`] may still
    /// return the old time. To an earlier time the entry moves up, in O(log n).
    pub fn rearm(&mut self, id: TimerId, at: Nanos) {
        let slot = self.slots.armed_at_mut(id);
        let before = slot.deadline();
        let place = slot.place as usize;
        slot.set_deadline(at);
        // A stored time is never later than the true one, so for a later deadline the heap need not
        // be looked at.
        if at < before && at < self.heap.0[place].at {
            self.heap.bring_forward(&mut self.slots, place, at);
        }
    }

    /// When this timer is due.
    #[must_use]
    pub fn deadline(&self, id: TimerId) -> Nanos {
        self.slots.armed_at(id).deadline()
    }

    /// Ends a timer before its time and removes its heap entry: O(1) for the latest, else O(log n).
    pub fn cancel(&mut self, id: TimerId) {
        let place = self.slots.armed_at(id).place as usize;
        self.remove(place);
    }

    /// Takes out the earliest timer if its true deadline is `now` or before, and returns when it
    /// was due.
    ///
    /// Timers come in the order of their true deadlines; timers of the same instant come in an
    /// order that depends only on the calls before.
    ///
    /// Every entry that is taken out, and every stale entry that is moved to where it belongs,
    /// costs 1 of `budget`, so that one turn stays short however many are due. `None` means that
    /// none is due or that the budget is used up; in the latter case [`Timers::next_deadline`] is
    /// still `now` or before if there may be more.
    pub fn pop_due(&mut self, now: Nanos, budget: &mut u32) -> Option<(Nanos, T)> {
        loop {
            let top = *self.heap.first()?;
            if top.at > now || *budget == 0 {
                return None;
            }
            *budget -= 1;
            let deadline = self.slots.deadline(top.index);
            if deadline == top.at {
                self.remove(0);
                return Some((deadline, top.what));
            }
            self.heap.put_back_first(&mut self.slots, deadline);
        }
    }

    /// When to look again: never later than the earliest true deadline.
    ///
    /// It is earlier if the first timer has been re-armed to a later time. A caller that sleeps
    /// until then wakes once for nothing, and its [`Timers::pop_due`] corrects the entry. So a
    /// lease that is renewed again and again costs one early wake-up per lease time, not one per
    /// renewal.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.heap.first().map(|top| top.at)
    }

    /// The timer that [`Timers::next_deadline`] tells of.
    #[must_use]
    pub fn first(&self) -> Option<(Nanos, T)> {
        self.heap.first().map(|top| (top.at, top.what))
    }

    /// Gives back a part of the memory of a crowd; returns whether there is more. Costs nothing if
    /// there is nothing to do.
    #[inline]
    pub fn tidy(&mut self) -> bool {
        self.slots.tidy()
    }

    /// Everything that must hold between two calls. It visits every timer, so only tests and the
    /// simulator call it. Without debug assertions it does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.heap.check();
        check_entries(&self.heap, &self.slots);
        debug_assert_eq!(self.heap.len(), self.slots.armed(), "a timer is lost");
        self.slots.check();
    }

    fn remove(&mut self, place: usize) {
        let gone = self.heap.remove(&mut self.slots, place, SLOTS_KEPT_MAX);
        if self.slots.vacate(gone.index) {
            self.heap = Heap::new();
        }
    }
}

/// That each entry and its slot point at each other, and that no timer would be late.
fn check_entries<T>(heap: &Heap<T>, slots: &Slots) {
    for (place, entry) in heap.0.iter().enumerate() {
        let slot = &slots.slots[entry.index as usize];
        debug_assert_eq!(
            slot.place as usize, place,
            "slot and entry do not point at each other"
        );
        debug_assert!(
            entry.at <= slot.deadline(),
            "stored later than its deadline: the timer would be late"
        );
    }
}

impl<T: Copy> Default for Timers<T> {
    fn default() -> Self {
        Self::new()
    }
}
