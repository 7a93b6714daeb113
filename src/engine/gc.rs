//! When to look for idle keys: as the oldest one is due, but not more often than the interval.
//!
//! No timer runs while nothing is idle, so an idle daemon sleeps. What is collected, and how, is the
//! collector's owner's.

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
    /// One that makes the engine work off `due` when the time has come.
    pub(super) fn new(due: Due) -> Self {
        Self {
            due,
            timer: None,
            last: Nanos::default(),
        }
    }

    /// Runs on when the last idle key is used again, so that a key taken and left over and over
    /// costs no timer each time.
    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// Its timer has fired.
    pub(super) fn begin(&mut self, cx: &Ctx<'_>) {
        self.timer = None;
        self.last = cx.now;
    }

    /// Whether something idle since then is to be forgotten now.
    pub(super) fn is_due(cx: &Ctx<'_>, since: Nanos) -> bool {
        since.after(cx.core.rules.gc_idle_max) <= cx.now
    }

    /// Wakes for the thing that has been idle for longest, if there is one.
    pub(super) fn arm(&mut self, cx: &mut Ctx<'_>, oldest: Option<Nanos>) {
        if self.timer.is_none()
            && let Some(since) = oldest
        {
            let due = since.after(cx.core.rules.gc_idle_max);
            let at = due.max(self.last.after(cx.core.rules.gc_interval));
            self.timer = Some(cx.core.timers.arm(at, self.due));
        }
    }

    /// There is more than one turn's work.
    pub(super) fn again(&mut self, cx: &mut Ctx<'_>) {
        self.timer = Some(cx.core.timers.arm(cx.now, self.due));
    }
}
