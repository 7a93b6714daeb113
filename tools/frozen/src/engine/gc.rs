//! Garbage collection: when to look for idle keys. That is when the oldest one is due, but not more
//! often than the interval.
//!
//! While no key is idle no timer needs to run, so an idle daemon sleeps. This file only keeps the
//! timer: `lock.rs` (`Locks::collect`) and `counter.rs` (`Counters::collect`) decide what is
//! forgotten.

use super::ctx::Ctx;
use super::due::Due;
use crate::base::Nanos;
use crate::timers::TimerId;

pub(super) struct Collector {
    due: Due,
    timer: Option<TimerId>,
    last: Nanos,
}

impl Collector {
    /// A collector whose timer stands for `due`.
    pub(super) fn new(due: Due) -> Self {
        Self {
            due,
            timer: None,
            last: Nanos::default(),
        }
    }

    /// Whether the timer runs. It runs on when the last idle key is used again, so that a key that
    /// is taken and released over and over does not cost a timer each time.
    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// The timer has fired.
    pub(super) fn begin(&mut self, cx: &Ctx<'_>) {
        self.timer = None;
        self.last = cx.now;
    }

    /// Whether a key that has been idle since `since` is to be forgotten now.
    pub(super) fn is_due(cx: &Ctx<'_>, since: Nanos) -> bool {
        since.after(cx.core.rules.gc_idle_max) <= cx.now
    }

    /// Starts the timer for the key that has been idle longest, if there is one and none runs.
    pub(super) fn arm(&mut self, cx: &mut Ctx<'_>, oldest: Option<Nanos>) {
        if self.timer.is_none()
            && let Some(since) = oldest
        {
            let due = since.after(cx.core.rules.gc_idle_max);
            let at = due.max(self.last.after(cx.core.rules.gc_interval));
            self.timer = Some(cx.core.background.arm(at, self.due));
        }
    }

    /// Starts the timer for the next turn, because there is more than one turn's work.
    pub(super) fn again(&mut self, cx: &mut Ctx<'_>) {
        self.timer = Some(cx.core.background.arm(cx.now, self.due));
    }
}
