//! Waiters that the order of the queue keeps from going on, though nobody holds what they want.
//!
//! The order of a queue is a rule of ours and not a lock that somebody holds, so it must never keep
//! anybody waiting for itself: a waiter that is only behind others passes them if one of those waits,
//! however indirectly, for something that its own owner holds. That can come true with every wait that
//! begins, also for a named lock. So those behind others whose client holds something are looked at when
//! they join, after everything that is freed, with every new wait for bytes, and ten times a second.

use super::super::ctx::Ctx;
use super::super::due::Due;
use super::super::lock::Locks;
use super::super::waits::AskedRange;
use super::super::work;
use crate::base::{Millis, Nanos};

/// How often those behind others are looked at.
const LOOK_AGAIN: Millis = Millis(100);

/// When it goes on if not all of them were.
const GO_ON: Millis = Millis(10);

/// How many times longer than a look that takes milliseconds the pause after it is: if very many have to be
/// looked at, that takes a small part of all time.
const PAUSE_FACTOR: u64 = 20;

impl Locks {
    /// Whether only others in the queue are in the way of this waiter.
    pub(super) fn note_behind(&mut self, cx: &mut Ctx<'_>, waiter: u32, is_behind: bool) {
        let client = cx.core.waiters[waiter].owner;
        if is_behind && self.may_be_waited_for(cx.core, client) {
            self.ranges.behind.insert(waiter);
            self.look_again_at_those_behind(cx);
        } else if !self.ranges.behind.is_empty() {
            self.ranges.behind.remove(&waiter);
        }
    }

    /// A wait begins, so somebody who is behind others may wait for itself now.
    pub(super) fn look_at_those_behind(&mut self, cx: &mut Ctx<'_>) {
        if !self.ranges.behind.is_empty() {
            let soon = cx.now.max(self.ranges.barging_pause);
            self.look_at_those_behind_at(cx, soon);
        }
    }

    /// A wait for something else may begin at any time, so they are looked at again and again.
    fn look_again_at_those_behind(&mut self, cx: &mut Ctx<'_>) {
        self.look_at_those_behind_at(cx, cx.now.after(LOOK_AGAIN));
    }

    /// Or earlier, if that is due anyway.
    fn look_at_those_behind_at(&mut self, cx: &mut Ctx<'_>, at: Nanos) {
        if let Some(timer) = self.ranges.barging {
            if cx.core.background.deadline(timer) <= at {
                return;
            }
            cx.core.background.cancel(timer);
        }
        self.ranges.barging = Some(cx.core.background.arm(at, Due::BARGING));
    }

    /// Lets those pass that wait for themselves because of the order of their queue, until so much is
    /// spent. They take turns.
    pub(in super::super) fn let_those_behind_pass(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        self.ranges.barging = None;
        let (behind, from) = (&self.ranges.behind, self.ranges.barging_from);
        let all = behind.range(from..).chain(behind.range(..from));
        let all: Vec<u32> = all.copied().collect();
        let before = cx.core.work.spent();
        cx.core.work.charge_each(all.len() as u32, work::COMPARE);
        let mut left = all.len();
        for waiter in all {
            left -= 1;
            self.ranges.barging_from = waiter + 1;
            // Whoever passed may have let others in, so some are gone by now.
            if self.ranges.behind.remove(&waiter) && !self.let_pass(cx, waiter) {
                self.ranges.barging_from = waiter; // it goes on with this one
                left += 1;
                break;
            }
            if cx.core.work.spent() >= slice_end {
                break;
            }
        }
        let again = match left {
            0 => LOOK_AGAIN,
            _ => GO_ON,
        };
        let spent_ms = (cx.core.work.spent() - before) / 1_000_000;
        let pause = Millis(spent_ms * PAUSE_FACTOR);
        self.ranges.barging_pause = cx.now.after(pause);
        match self.ranges.behind.is_empty() {
            true => self.end_search_of_order(),
            false => self.look_at_those_behind_at(cx, cx.now.after(again.max(pause))),
        }
    }

    /// Lets this one pass if it waits for itself; returns whether that was found out.
    fn let_pass(&mut self, cx: &mut Ctx<'_>, waiter: u32) -> bool {
        let (resource, wants) = self.waited_range(cx.core, waiter);
        let holding = self.ranges.holding_of(wants.owner, resource);
        let segments = &self.ranges.resource(resource).segments;
        let found = segments.first_conflict(holding, wants.range, wants.mode);
        if found.is_some() || cx.core.draining || !cx.is_present(waiter) {
            return true; // when that is over, its queue is gone through
        }
        if self.ranges.is_broken(resource) {
            self.ranges.behind.insert(waiter);
            return true;
        }
        let asked = AskedRange {
            resource,
            holding,
            wants,
            waiter,
        };
        let is_kept = self.is_kept_by_order(cx, asked);
        if is_kept != Some(true) {
            self.ranges.behind.insert(waiter);
            return is_kept.is_some();
        }
        let key = self.ranges.resource(resource).key.clone();
        let about = cx.begin(|| Some(key.as_bytes()));
        self.grant_waiter(cx, waiter);
        self.serve_ranges(cx, resource);
        cx.finish(about);
        true
    }
}
