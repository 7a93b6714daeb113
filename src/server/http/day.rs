//! The time of day at which a moment of the loop's clock will be.
//!
//! Leases run on a clock that only goes forward; people and LockServer's clients are told the time of
//! day. The two are compared whenever it is told, but a small difference is not believed: both are read
//! one after the other, so the same lease would end a millisecond earlier or later each time somebody asks.
//! A clock that was set is believed.

use crate::base::Nanos;

/// A difference that is more than the time between two looks at clocks, or what a clock drifts meanwhile.
const STEP_MS: u64 = 100;

const NS_PER_MS: u64 = 1_000_000;

/// How far the time of day is ahead of the loop's clock, once it is known.
#[derive(Debug, Default)]
pub(super) struct Day {
    ahead_ms: Option<i64>,
}

impl Day {
    /// The time of day, in milliseconds since 1970, in so many nanoseconds from now; it is `unix_ms` now.
    /// If that is 0, nobody knows the time of day, and only how long it is until then can be told.
    pub(super) fn time_ms(&mut self, unix_ms: u64, now: Nanos, left_ns: u64) -> u64 {
        if unix_ms == 0 {
            return left_ns / NS_PER_MS;
        }
        let found = unix_ms.cast_signed() - (now.0 / NS_PER_MS).cast_signed();
        let ahead = match self.ahead_ms {
            Some(known) if known.abs_diff(found) < STEP_MS => known,
            _ => *self.ahead_ms.insert(found),
        };
        // Rounded down: nobody is told more than there is.
        let at = now.0.saturating_add(left_ns) / NS_PER_MS;
        at.saturating_add_signed(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_NS: u64 = 60_000 * NS_PER_MS;

    #[test]
    fn a_lease_ends_at_the_same_time_however_late_the_clock_is_looked_at() {
        let mut day = Day::default();
        let end = day.time_ms(1_000_000, Nanos(5_600_000), LEASE_NS);
        assert_eq!(end, 1_060_000, "rounded down");
        for (unix_ms, passed_ns) in [
            (1_000_000, 900_000),
            (1_000_003, 1_100_000),
            (1_000_050, 1_000_000),
        ] {
            let now = Nanos(5_600_000 + passed_ns);
            assert_eq!(day.time_ms(unix_ms, now, LEASE_NS - passed_ns), end);
        }
    }

    #[test]
    fn a_clock_that_was_set_is_believed() {
        let mut day = Day::default();
        assert_eq!(day.time_ms(1_000, Nanos(0), 0), 1_000);
        assert_eq!(day.time_ms(9_000_000, Nanos(NS_PER_MS), 0), 9_000_000);
        assert_eq!(day.time_ms(5, Nanos(2 * NS_PER_MS), 0), 5);
    }
}
