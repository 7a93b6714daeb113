//! Timers in groups, so that nobody's timers stand behind another's crowd.
//!
//! Each group has a heap of its own, and one heap has an entry for each group. As long as no group
//! has used up its quantum of the turn, timers come in the exact order of their deadlines over all
//! groups. A group that has is set aside, and the others go on in their order; those set aside take
//! turns when nothing else is due, and get a share of the turn when there is always something else.
//!
//! Like `mod.rs`: never reads a clock, never knows what a timer means, never draws a random number.

use std::collections::VecDeque;

use super::heap::{Entry, Heap, Places};
use super::slots::Slots;
use super::{TimerId, check_entries};
use crate::base::Nanos;

/// Most timers of one group that are found due, or were re-armed and are moved on, before the group
/// is set aside for the rest of the turn.
pub const QUANTUM: u32 = 64;

/// After so many timers of other groups, a group that was set aside has a quantum. So those set
/// aside get at least a fifth, however much is due in the other groups.
const OTHERS_FIRST_MAX: u32 = 4 * QUANTUM;

/// A heap with room for more entries than this gives memory back when it is mostly empty.
pub(super) const ROOM_KEPT_MAX: usize = 64;

/// Most groups dropped in one call.
const TIDIED_MAX: usize = 16 * 1024;

/// In [`Group::place`]: the group is not in the order, because it has no timer.
const OUT: u32 = u32::MAX;

/// In [`Group::place`]: the group is set aside.
const ASIDE: u32 = u32::MAX - 1;

/// Any number of deadlines, each of a group and with a `T` that says what it is for. Groups are
/// numbers that the caller gives out; small ones, because there is a list of them.
///
/// A timer costs as much as one of [`Timers`](super::Timers): 28 bytes for a `T` of 4. A group with
/// one timer costs 72 more, one that never had a timer 40 at most.
///
/// There are two kinds of *stale* entries: a timer that was re-armed to a later time stays where it
/// is in the heap of its group, as in [`Timers`](super::Timers), and a group stays where it is in
/// the order when its earliest timer is cancelled. So a client that takes and releases one lock
/// over and over only touches the small heap of its own group.
pub struct GroupTimers<T> {
    pub(super) slots: Slots,
    pub(super) groups: Vec<Group<T>>,
    /// The groups that are not set aside and have a timer, by [`Group::stored`].
    pub(super) order: Heap<()>,
    /// The groups that have used up a quantum and have more that is due, in the order of their
    /// turns.
    aside: VecDeque<u32>,
    /// The group out of `aside` that has its turn now, and how much is left of its quantum.
    served: Option<(u32, u32)>,
    /// How many timers of other groups came since a group out of `aside` had a turn.
    others: u32,
    /// The number of the present turn.
    turn: u16,
    /// For how many entries there is room in the heaps of all groups together.
    heaps_room: usize,
}

pub(super) struct Group<T> {
    /// One entry per timer, stored at or before its true deadline.
    pub(super) heap: Heap<T>,
    /// At or before the first entry of the heap. `NEVER` if the group is out of the order, and 0
    /// if it is set aside, so that no new timer of it touches the order.
    stored: Nanos,
    /// Where it is in the order; or `OUT` or `ASIDE`.
    place: u32,
    /// How much of its quantum is used, in turn number `turn`.
    used: u16,
    turn: u16,
}

impl<T: Copy> Group<T> {
    const fn new() -> Self {
        Self {
            heap: Heap::new(),
            stored: Nanos::NEVER,
            place: OUT,
            used: 0,
            turn: 0,
        }
    }
}

impl<T> Places for Vec<Group<T>> {
    #[inline]
    fn set_place(&mut self, index: u32, place: u32) {
        self[index as usize].place = place;
    }
}

/// What is found at the top of a group's heap.
enum Top<T> {
    /// This timer is due.
    Due(Nanos, T),
    /// A timer that was re-armed. It was moved on.
    Moved,
    /// Nothing before this instant; `NEVER` if there is no timer.
    Nothing(Nanos),
}

impl<T: Copy> GroupTimers<T> {
    /// No timers. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: Slots::new(),
            groups: Vec::new(),
            order: Heap::new(),
            aside: VecDeque::new(),
            served: None,
            others: 0,
            turn: 0,
            heaps_room: 0,
        }
    }

    /// How many timers are armed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.armed()
    }

    /// How much memory all timers take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.slots.memory()
            + self.groups.capacity() * size_of::<Group<T>>()
            + self.heaps_room * size_of::<Entry<T>>()
            + self.order.memory()
            + self.aside.capacity() * size_of::<u32>()
    }

    /// Whether no timer is armed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts a timer of this group for `what`, due at `at`.
    #[inline]
    pub fn arm(&mut self, group: u32, at: Nanos, what: T) -> TimerId {
        if self.groups.len() <= group as usize {
            self.add_groups(group);
        }
        let index = self.slots.occupy(at);
        let it = &mut self.groups[group as usize];
        self.heaps_room -= it.heap.0.capacity();
        it.heap.push(&mut self.slots, Entry { at, index, what });
        self.heaps_room += it.heap.0.capacity();
        if at < it.stored {
            self.bring_forward(group, at);
        }
        TimerId::new(index)
    }

    #[cold]
    fn add_groups(&mut self, group: u32) {
        self.groups.resize_with(group as usize + 1, Group::new);
    }

    /// Moves the deadline of a timer of this group. To a later time it is O(1) and leaves the heaps
    /// alone.
    #[inline]
    pub fn rearm(&mut self, group: u32, id: TimerId, at: Nanos) {
        let slot = self.slots.armed_at_mut(id);
        let before = slot.deadline();
        let place = slot.place as usize;
        slot.set_deadline(at);
        if at < before {
            let it = &mut self.groups[group as usize];
            if at < it.heap.0[place].at {
                it.heap.bring_forward(&mut self.slots, place, at);
            }
            if at < it.stored {
                self.bring_forward(group, at);
            }
        }
    }

    /// When this timer is due.
    #[must_use]
    #[inline]
    pub fn deadline(&self, id: TimerId) -> Nanos {
        self.slots.armed_at(id).deadline()
    }

    /// Ends a timer of this group.
    #[inline]
    pub fn cancel(&mut self, group: u32, id: TimerId) {
        let place = self.slots.armed_at(id).place as usize;
        let heap = &mut self.groups[group as usize].heap;
        self.heaps_room -= heap.0.capacity();
        let gone = heap.remove(&mut self.slots, place, ROOM_KEPT_MAX);
        self.heaps_room += heap.0.capacity();
        debug_assert_eq!(gone.index as usize, id.slot(), "a timer of another group");
        self.slots.vacate(gone.index);
    }

    /// Forgets a group, which has no timer any more. Its number may be given out again.
    pub fn forget(&mut self, group: u32) {
        let Some(it) = self.groups.get_mut(group as usize) else {
            return; // it never had a timer
        };
        assert!(it.heap.is_empty(), "forgetting a group that has timers");
        self.heaps_room -= it.heap.0.capacity();
        it.heap = Heap::new();
        // A group that is set aside stays so until its turn, which then finds nothing or, if the
        // number was given out again, what its next owner has.
        if it.place < ASIDE {
            let place = it.place as usize;
            self.order.remove(&mut self.groups, place, ROOM_KEPT_MAX);
            self.leave_order(group);
        }
    }

    /// A turn begins: every group has a new quantum.
    pub fn begin_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.others = 0;
        if let Some((group, _)) = self.served.take() {
            self.aside.push_back(group);
        }
    }

    /// The next timer whose deadline is `now` or before: its group's number, its deadline, and what
    /// it is for. It stays armed: the caller cancels it or re-arms it, or says with
    /// [`GroupTimers::put_off`] that it cannot deal with it yet.
    ///
    /// Every look at a group or a timer costs 1 of `budget`. `None` means that none is due or that
    /// the budget is used up.
    pub fn next_due(&mut self, now: Nanos, budget: &mut u32) -> Option<(u32, Nanos, T)> {
        while *budget > 0 {
            *budget -= 1;
            if let Some((group, left)) = self.served {
                match self.top(group, now) {
                    Top::Due(..) | Top::Moved if left == 0 => {
                        self.aside.push_back(group);
                        self.served = None;
                    }
                    Top::Due(at, what) => {
                        self.served = Some((group, left - 1));
                        return Some((group, at, what));
                    }
                    Top::Moved => self.served = Some((group, left - 1)),
                    Top::Nothing(next) => {
                        self.served = None;
                        self.groups[group as usize].place = OUT;
                        self.groups[group as usize].stored = Nanos::NEVER;
                        self.bring_forward(group, next);
                    }
                }
                continue;
            }
            match self.order.first() {
                Some(&Entry { at, index, .. })
                    if at <= now && (self.aside.is_empty() || self.others < OTHERS_FIRST_MAX) =>
                {
                    if let Some((at, what)) = self.look_at_first(index, at) {
                        return Some((index, at, what));
                    }
                }
                _ => {
                    let group = self.aside.pop_front()?;
                    self.served = Some((group, QUANTUM));
                    self.others = 0;
                }
            }
        }
        None
    }

    /// The group whose timer was found last cannot deal with it yet: others come first.
    pub fn put_off(&mut self, group: u32) {
        match &mut self.served {
            Some((served, left)) if *served == group => *left = 0,
            _ => self.groups[group as usize].used = QUANTUM as u16,
        }
    }

    /// Whether timers may come out of the order of their deadlines, because a group is set aside.
    #[must_use]
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.served.is_some() || !self.aside.is_empty()
    }

    /// When to look again: never later than the earliest true deadline. If a group is set aside,
    /// that is at once.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.is_behind() {
            return Some(Nanos(0));
        }
        self.order.first().map(|top| top.at)
    }

    /// Gives back a part of the memory of a crowd; returns whether there is more. Costs nothing if
    /// there is nothing to do.
    #[inline]
    pub fn tidy(&mut self) -> bool {
        (self.has_unused_groups() && self.tidy_groups()) || self.slots.tidy()
    }

    #[inline]
    fn has_unused_groups(&self) -> bool {
        let room = self.groups.capacity();
        room > ROOM_KEPT_MAX && self.groups.len() < room / 4
            || self.groups.last().is_some_and(Group::is_unused)
    }

    /// Drops groups at the end of the list that have no timer; returns whether there is more to do.
    #[cold]
    fn tidy_groups(&mut self) -> bool {
        let unused = self.groups.iter().rev().take_while(|it| it.is_unused());
        let rest = self.groups.len() - unused.take(TIDIED_MAX).count();
        self.groups.truncate(rest);
        let room = self.groups.capacity();
        if room > ROOM_KEPT_MAX && rest < room / 4 {
            self.groups.shrink_to(room - (room / 2).min(TIDIED_MAX));
        }
        self.has_unused_groups()
    }

    /// Looks at the group that is first in the order, where it is stored at `stored`.
    fn look_at_first(&mut self, group: u32, stored: Nanos) -> Option<(Nanos, T)> {
        let it = &mut self.groups[group as usize];
        if it.turn != self.turn {
            (it.turn, it.used) = (self.turn, 0);
        }
        if u32::from(it.used) >= QUANTUM {
            self.order.remove(&mut self.groups, 0, ROOM_KEPT_MAX);
            let it = &mut self.groups[group as usize];
            (it.place, it.stored) = (ASIDE, Nanos(0));
            self.aside.push_back(group);
            return None;
        }
        match self.top(group, stored) {
            Top::Due(at, what) => {
                self.use_quantum(group);
                return Some((at, what));
            }
            Top::Moved => self.use_quantum(group),
            Top::Nothing(Nanos::NEVER) => {
                self.order.remove(&mut self.groups, 0, ROOM_KEPT_MAX);
                self.leave_order(group);
            }
            Top::Nothing(next) => {
                self.groups[group as usize].stored = next;
                self.order.put_back_first(&mut self.groups, next);
            }
        }
        None
    }

    fn use_quantum(&mut self, group: u32) {
        self.groups[group as usize].used += 1;
        self.others += 1;
    }

    /// Looks at the earliest entry of a group's heap, and if it is stale, moves it on.
    fn top(&mut self, group: u32, now: Nanos) -> Top<T> {
        let heap = &mut self.groups[group as usize].heap;
        let Some(&Entry { at, index, what }) = heap.first() else {
            return Top::Nothing(Nanos::NEVER);
        };
        if at > now {
            return Top::Nothing(at);
        }
        let deadline = self.slots.deadline(index);
        if deadline == at {
            return Top::Due(at, what);
        }
        heap.put_back_first(&mut self.slots, deadline);
        Top::Moved
    }

    /// The group is out of the order, or has a timer that is earlier than its place in it.
    #[cold]
    fn bring_forward(&mut self, group: u32, at: Nanos) {
        let it = &mut self.groups[group as usize];
        it.stored = at;
        if at == Nanos::NEVER {
            return; // it stays out of the order
        }
        match it.place {
            OUT => {
                let (index, what) = (group, ());
                self.order.push(&mut self.groups, Entry { at, index, what });
            }
            place => self
                .order
                .bring_forward(&mut self.groups, place as usize, at),
        }
    }

    fn leave_order(&mut self, group: u32) {
        let it = &mut self.groups[group as usize];
        (it.place, it.stored) = (OUT, Nanos::NEVER);
    }

    /// Everything that must hold between two calls. It visits every timer, so only tests and the
    /// simulator call it. Without debug assertions it does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.order.check();
        self.slots.check();
        let mut armed = 0;
        for (group, it) in self.groups.iter().enumerate() {
            it.heap.check();
            check_entries(&it.heap, &self.slots);
            armed += it.heap.len();
            let first = it.heap.first().map_or(Nanos::NEVER, |first| first.at);
            debug_assert!(
                it.stored <= first,
                "a group is stored later than its first timer"
            );
            match it.place {
                OUT => debug_assert_eq!(first, Nanos::NEVER, "a group is not in the order"),
                ASIDE => debug_assert_eq!(it.stored, Nanos(0)),
                place => {
                    let entry = &self.order.0[place as usize];
                    debug_assert_eq!((entry.index as usize, entry.at), (group, it.stored));
                }
            }
        }
        let aside = self.groups.iter().filter(|it| it.place == ASIDE).count();
        debug_assert_eq!(
            aside,
            self.aside.len() + usize::from(self.served.is_some()),
            "a group that is set aside never has its turn"
        );
        debug_assert_eq!(armed, self.slots.armed(), "a timer is lost");
        let room: usize = self.groups.iter().map(|it| it.heap.0.capacity()).sum();
        debug_assert_eq!(room, self.heaps_room, "room is miscounted");
    }
}

impl<T: Copy> Group<T> {
    fn is_unused(&self) -> bool {
        self.place == OUT && self.heap.is_empty() && self.heap.0.capacity() == 0
    }
}

impl<T: Copy> Default for GroupTimers<T> {
    fn default() -> Self {
        Self::new()
    }
}
