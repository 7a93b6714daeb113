//! How fast the loop turns: how long turns take, and how long the requests in them wait for their
//! answers, since the start and in the last full second.
//!
//! Nobody asks for the time here: a turn that has ended says when it did. A request counts as long as
//! the turn it was served in, which it is answered at the end of; so the time that it spends in a
//! queue for a lock does not count.

use crate::base::Nanos;
use crate::histogram::{Histogram, Percentiles};

/// How long the time is that recent figures are of.
const LAP_NS: u64 = 1_000_000_000;

/// How long turns and requests took.
#[derive(Default)]
pub(super) struct Pace {
    /// Turns since the start.
    pub(super) turns: Histogram,
    /// Requests since the start, each with the time of its turn.
    pub(super) operations: Histogram,
    lap: Lap,
    recent: Recent,
}

/// The present second.
#[derive(Default)]
struct Lap {
    /// When it is over.
    ends: Nanos,
    /// What was counted before it.
    turns: Histogram,
    operations: Histogram,
    turn_ns_max: u64,
    operation_ns_max: u64,
}

/// What took how long in the last full second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent {
    pub(super) turns: Percentiles,
    pub(super) operations: Percentiles,
}

impl Pace {
    /// A turn in which so many requests were served has ended after so long.
    #[inline]
    pub(super) fn note_turn(&mut self, now: Nanos, ns: u64, requests: u64) {
        if now >= self.lap.ends {
            self.begin_lap(now);
        }
        self.turns.observe(ns);
        self.operations.observe_n(ns, requests);
        self.lap.turn_ns_max = self.lap.turn_ns_max.max(ns);
        if requests > 0 {
            self.lap.operation_ns_max = self.lap.operation_ns_max.max(ns);
        }
    }

    /// What took how long in the last full second before now.
    pub(super) fn recent(&mut self, now: Nanos) -> Recent {
        if now >= self.lap.ends {
            self.begin_lap(now);
        }
        self.recent
    }

    /// A second is over, if not several: then nothing happened in the last of them.
    #[cold]
    fn begin_lap(&mut self, now: Nanos) {
        let Self {
            turns, operations, ..
        } = *self;
        let is_last = now.since(self.lap.ends) < LAP_NS;
        self.recent = if is_last {
            let lap = &self.lap;
            Recent {
                turns: Percentiles::of(&turns.since(&lap.turns), lap.turn_ns_max),
                operations: Percentiles::of(
                    &operations.since(&lap.operations),
                    lap.operation_ns_max,
                ),
            }
        } else {
            Recent::default()
        };
        self.lap = Lap {
            ends: Nanos(now.0.saturating_add(LAP_NS)),
            turns,
            operations,
            turn_ns_max: 0,
            operation_ns_max: 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_last_full_second_is_shown_and_no_other() {
        let mut pace = Pace::default();
        let at = |ms: u64| Nanos(ms * MS);
        pace.note_turn(at(1), MS, 0);
        for turn in 0..100 {
            pace.note_turn(at(1_100 + turn), 50_000, 3);
        }
        pace.note_turn(at(1_500), 900_000, 1);
        let Recent { turns, operations } = pace.recent(at(2_150));
        assert_eq!((turns.count, operations.count), (101, 301));
        assert_eq!((turns.max_us, operations.max_us), (900, 900));
        assert!((33..=66).contains(&turns.p50_us), "{turns:?}");
        assert!(operations.p99_us <= 66, "{operations:?}");
        // The same second is shown until the next one is over.
        assert_eq!(pace.recent(at(2_200)), Recent { turns, operations });
        assert_eq!(pace.recent(at(3_160)), Recent::default());
    }

    #[test]
    fn a_second_long_ago_is_not_the_last_one() {
        let mut pace = Pace::default();
        pace.note_turn(Nanos(0), MS, 1);
        assert_eq!(pace.recent(Nanos(3_600_000 * MS)), Recent::default());
        assert_eq!((pace.turns.count(), pace.operations.count()), (1, 1));
    }

    #[test]
    fn no_percentile_is_above_the_maximum() {
        let mut pace = Pace::default();
        pace.note_turn(Nanos(0), 33_000, 1);
        let Recent { turns, operations } = pace.recent(Nanos(1_000 * MS));
        assert_eq!(turns, operations);
        assert_eq!((turns.p99_us, turns.max_us), (33, 33));
        assert_eq!(turns.count, 1);
    }
}
