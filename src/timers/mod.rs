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
#[cfg(test)]
mod groups_tests;
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
    #[cfg(any(test, feature = "judge"))]
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
#[cfg(any(test, feature = "judge"))]
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::base::ConnId;

    /// A budget that is never used up.
    const PLENTY: u32 = u32::MAX;

    /// Pops everything that is due, in order.
    fn pop_all<T: Copy>(timers: &mut Timers<T>, now: u64) -> Vec<(u64, T)> {
        let mut budget = PLENTY;
        let due = std::iter::from_fn(|| timers.pop_due(Nanos(now), &mut budget));
        let due = due.map(|(at, what)| (at.0, what)).collect();
        timers.check();
        due
    }

    #[test]
    fn a_timer_costs_24_bytes_and_what_it_is_for() {
        assert_eq!(size_of::<slots::Slot>(), 12);
        assert_eq!(size_of::<Entry<u32>>(), 16);
        assert_eq!(size_of::<Entry<ConnId>>(), 24);
        assert_eq!(size_of::<TimerId>(), 4);
        assert_eq!(size_of::<Option<TimerId>>(), 4);
    }

    #[test]
    fn timers_come_in_order_and_not_before_their_time() {
        let mut timers = Timers::new();
        for at in [50, 10, 40, 30, 20] {
            timers.arm(Nanos(at), at);
        }
        assert_eq!(timers.next_deadline(), Some(Nanos(10)));
        assert_eq!(pop_all(&mut timers, 9), []);
        assert_eq!(pop_all(&mut timers, 30), [(10, 10), (20, 20), (30, 30)]);
        assert_eq!(timers.len(), 2);
        assert_eq!(pop_all(&mut timers, 99), [(40, 40), (50, 50)]);
        assert_eq!(timers.next_deadline(), None);
        assert!(timers.is_empty());
    }

    #[test]
    fn a_later_deadline_leaves_the_heap_alone_and_costs_one_early_wake_up() {
        let mut timers = Timers::new();
        let lease = timers.arm(Nanos(10), "lease");
        for renewal in 11..=100 {
            timers.rearm(lease, Nanos(renewal));
        }
        assert_eq!(timers.deadline(lease), Nanos(100));
        assert_eq!(timers.next_deadline(), Some(Nanos(10)), "may be early");

        let mut budget = 5;
        assert_eq!(timers.pop_due(Nanos(10), &mut budget), None);
        assert_eq!(budget, 4, "ninety renewals, one look");
        assert_eq!(timers.next_deadline(), Some(Nanos(100)), "corrected");
        assert_eq!(pop_all(&mut timers, 100), [(100, "lease")]);
    }

    #[test]
    fn an_earlier_deadline_counts_at_once() {
        let mut timers = Timers::new();
        let a = timers.arm(Nanos(10), 'a');
        let b = timers.arm(Nanos(20), 'b');
        timers.rearm(b, Nanos(5));
        assert_eq!(timers.next_deadline(), Some(Nanos(5)));
        // Later, then earlier again, but not as early as the time that the heap still stores.
        timers.rearm(a, Nanos(90));
        timers.rearm(a, Nanos(30));
        assert_eq!(timers.deadline(a), Nanos(30));
        assert_eq!(pop_all(&mut timers, 29), [(5, 'b')]);
        assert_eq!(pop_all(&mut timers, 30), [(30, 'a')]);
    }

    #[test]
    fn a_stale_entry_does_not_overtake_even_when_both_are_due() {
        let mut timers = Timers::new();
        let a = timers.arm(Nanos(10), 'a');
        timers.arm(Nanos(20), 'b');
        timers.rearm(a, Nanos(30));
        assert_eq!(pop_all(&mut timers, 50), [(20, 'b'), (30, 'a')]);
    }

    #[test]
    fn many_timers_due_at_once_are_popped_in_slices() {
        let mut timers = Timers::new();
        for what in 0..1_000 {
            timers.arm(Nanos(7), what);
        }
        let mut turns = 0;
        while !timers.is_empty() {
            assert_eq!(
                timers.next_deadline(),
                Some(Nanos(7)),
                "the caller sees that there is more"
            );
            let mut budget = 100;
            while timers.pop_due(Nanos(7), &mut budget).is_some() {}
            assert_eq!(budget, 0);
            turns += 1;
        }
        assert_eq!(turns, 10);
    }

    #[test]
    fn finding_nothing_due_costs_no_budget() {
        let mut timers = Timers::new();
        timers.arm(Nanos(8), ());
        let mut budget = 3;
        assert_eq!(timers.pop_due(Nanos(7), &mut budget), None);
        assert_eq!(budget, 3);
    }

    #[test]
    fn a_timer_for_never_stays_last() {
        let mut timers = Timers::new();
        timers.arm(Nanos::NEVER, "never");
        timers.arm(Nanos(1), "soon");
        assert_eq!(pop_all(&mut timers, u64::MAX - 1), [(1, "soon")]);
        assert_eq!(timers.next_deadline(), Some(Nanos::NEVER));
    }

    #[test]
    fn arming_and_cancelling_for_ever_needs_no_more_memory() {
        let mut timers = Timers::new();
        let mut ids: Vec<_> = (0..100).map(|at| timers.arm(Nanos(at), at)).collect();
        let before = (timers.heap.0.capacity(), timers.slots.slots.capacity());
        for at in 100..10_000 {
            let oldest = ids.swap_remove(at as usize % ids.len());
            timers.cancel(oldest);
            ids.push(timers.arm(Nanos(at), at));
        }
        timers.check();
        assert_eq!(timers.len(), 100);
        assert_eq!(timers.slots.slots.len(), 100);
        assert_eq!(
            (timers.heap.0.capacity(), timers.slots.slots.capacity()),
            before
        );
    }

    #[test]
    fn the_memory_is_given_back_when_the_last_timer_goes() {
        let mut timers = Timers::new();
        let ids: Vec<_> = (0..5_000).map(|at| timers.arm(Nanos(at), at)).collect();
        for id in ids {
            timers.cancel(id);
        }
        while timers.tidy() {}
        assert_eq!(
            (timers.heap.0.capacity(), timers.slots.slots.capacity()),
            (0, 0)
        );

        // But a few slots are kept, because a single client must not allocate for every lock.
        let id = timers.arm(Nanos(1), 1);
        timers.cancel(id);
        assert_ne!(timers.slots.slots.capacity(), 0);
        timers.check();
    }

    #[test]
    #[should_panic = "is not armed"]
    fn cancelling_twice_is_a_bug() {
        let mut timers = Timers::new();
        let id = timers.arm(Nanos(1), ());
        timers.cancel(id);
        timers.cancel(id);
    }

    #[test]
    #[should_panic = "is not armed"]
    fn rearming_a_popped_timer_is_a_bug() {
        let mut timers = Timers::new();
        let id = timers.arm(Nanos(1), ());
        pop_all(&mut timers, 1);
        timers.rearm(id, Nanos(2));
    }

    /// One call; `pick` chooses among the armed timers.
    #[derive(Clone, Debug)]
    enum Call {
        Arm { at: u64 },
        Rearm { pick: usize, at: u64 },
        Cancel { pick: usize },
        Pop { now: u64, budget: u32 },
    }

    /// There are few instants, so that many timers share one.
    fn call() -> impl Strategy<Value = Call> {
        let at = 0..64_u64;
        prop_oneof![
            4 => at.clone().prop_map(|at| Call::Arm { at }),
            4 => (any::<usize>(), at.clone()).prop_map(|(pick, at)| Call::Rearm { pick, at }),
            2 => any::<usize>().prop_map(|pick| Call::Cancel { pick }),
            2 => (at, 0..6_u32).prop_map(|(now, budget)| Call::Pop { now, budget }),
        ]
    }

    #[test]
    fn the_heap_shrinks_as_timers_go() {
        let mut timers = Timers::new();
        let ids: Vec<TimerId> = (0..100_000).map(|at| timers.arm(Nanos(at), ())).collect();
        for (gone, id) in ids.into_iter().enumerate() {
            timers.cancel(id);
            let (left, room) = (99_999 - gone, timers.heap.0.capacity());
            assert!(
                room <= (5 * left).max(2 * SLOTS_KEPT_MAX),
                "{room} for {left}"
            );
        }
        assert_eq!(timers.heap.0.capacity() + timers.slots.slots.capacity(), 0);
    }

    proptest! {
        /// Compares with a model that has no heap: it keeps every timer in a map and searches all
        /// of it.
        #[test]
        fn a_heap_of_deadlines_does_what_a_plain_map_does(calls in vec(call(), 1..400)) {
            let mut timers = Timers::new();
            let mut model: BTreeMap<u32, (TimerId, u64)> = BTreeMap::new();
            let mut serial = 0;
            for call in calls {
                let picked = |model: &BTreeMap<u32, _>, pick: usize| {
                    model.keys().nth(pick % model.len().max(1)).copied()
                };
                match call {
                    Call::Arm { at } => {
                        serial += 1;
                        model.insert(serial, (timers.arm(Nanos(at), serial), at));
                    }
                    Call::Rearm { pick, at } => {
                        let Some(what) = picked(&model, pick) else { continue };
                        let (id, deadline) = model.get_mut(&what).unwrap();
                        timers.rearm(*id, Nanos(at));
                        *deadline = at;
                    }
                    Call::Cancel { pick } => {
                        let Some(what) = picked(&model, pick) else { continue };
                        timers.cancel(model.remove(&what).unwrap().0);
                    }
                    Call::Pop { now, budget } => {
                        let is_stale = |e: &&Entry<_>| e.at < timers.slots.deadline(e.index);
                        let stale = timers.heap.0.iter().filter(is_stale).count() as u32;
                        let earliest = model.values().map(|(_, at)| *at).min();
                        let mut left = budget;
                        match timers.pop_due(Nanos(now), &mut left) {
                            Some((at, what)) => {
                                prop_assert!(at.0 <= now, "early");
                                prop_assert_eq!(Some(at.0), earliest, "out of order");
                                prop_assert_eq!(model.remove(&what).unwrap().1, at.0);
                                prop_assert!((1..=1 + stale).contains(&(budget - left)));
                            }
                            None => {
                                prop_assert!(budget - left <= stale, "each stale entry once");
                                let nothing_due = earliest.is_none_or(|at| at > now);
                                prop_assert!(nothing_due || left == 0, "late");
                            }
                        }
                    }
                }
                timers.check();
                prop_assert_eq!(timers.len(), model.len());
                prop_assert_eq!(timers.is_empty(), model.is_empty());
                for (id, at) in model.values() {
                    prop_assert_eq!(timers.deadline(*id), Nanos(*at));
                }
                let earliest = model.values().map(|(_, at)| Nanos(*at)).min();
                prop_assert_eq!(timers.next_deadline().is_some(), earliest.is_some());
                prop_assert!(timers.next_deadline() <= earliest, "the caller would sleep too long");
            }

            // No timer is lost: the rest comes out, in order.
            let rest = pop_all(&mut timers, u64::MAX);
            prop_assert!(rest.is_sorted_by_key(|(at, _)| *at));
            let mut rest: Vec<_> = rest.into_iter().map(|(at, what)| (what, at)).collect();
            rest.sort_unstable();
            let expected: Vec<_> = model.into_iter().map(|(what, (_, at))| (what, at)).collect();
            prop_assert_eq!(rest, expected);
        }
    }
}
