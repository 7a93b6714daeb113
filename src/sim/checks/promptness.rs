//! How long everybody else waits: no turn is longer than it may be, and no lease later.
//!
//! In virtual time a turn takes as long as its work, so a server that lets one client keep it busy
//! is seen here. What a fault of the server adds (it is paused, or wakes late) is not held against
//! it. That nothing comes early is checked where it ends, in `lock_table` and `answers`.

use crate::sim::simulation::Simulation;

/// What a run is held to.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    turn_ns_max: u64,
    /// How long after its deadline a lease may still look held to clients.
    lease_late_ns_max: u64,
}

/// A few clients, whatever they do.
const ORDINARY: Bounds = Bounds {
    turn_ns_max: 5_000_000,
    lease_late_ns_max: 5_000_000,
};

/// Turns longer than this are told in the trace.
const TOLD_NS_MIN: u64 = 1_000_000;

/// How late the poll may notice a deadline: it counts in milliseconds.
const POLL_LATE_NS_MAX: u64 = 1_000_000;

impl Simulation {
    pub(crate) fn check_promptness(&mut self) -> Result<(), String> {
        let span = self.life.span;
        let turn_ns = span.ended.since(span.began);
        self.totals.turn_ns_max = self.totals.turn_ns_max.max(turn_ns);
        if turn_ns > TOLD_NS_MIN {
            self.trace
                .say(self.now, format_args!("a turn of {} us", turn_ns / 1_000));
        }
        if turn_ns > ORDINARY.turn_ns_max {
            return Err(format!("a turn took {turn_ns} ns"));
        }
        let deliberate_ns = POLL_LATE_NS_MAX + self.plan.turn_delay_us_max * 1_000;
        let late_ns = self.life.seen_locks.late_awake_ns_max;
        if late_ns > ORDINARY.lease_late_ns_max + deliberate_ns {
            return Err(format!("a lease ended {late_ns} ns late, without a reason"));
        }
        Ok(())
    }
}
