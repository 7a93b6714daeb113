//! How long an entry of the log waits for more to come.
//!
//! There is one transaction under way at a time, so what counts is how much is in it. Most of those who were just
//! answered ask for something else at once. If the next entry began without them there would be two groups of
//! clients that always wait for each other: each entry has half of them, and takes as long as one with all.
//!
//! Clients that ask when they like, and not because they were answered, are waited for in vain. That is noticed, and
//! they are given less time. Whoever is alone is never kept waiting: when it asks again everybody has come.
//!
//! The journal has the same question before a sync (`store/gather.rs`). There the time counts from when something is to be
//! written, since a sync takes about as long as clients need to ask again; here it counts from the answer, since
//! an entry takes longer, and what came meanwhile has waited already.
//!
//! Pure: reads no clock, and never waits itself.

use std::time::Duration;

use crate::base::Nanos;

/// They are waited for three quarters of the time that the last entry took, and not longer than this.
const MOST_NS: u64 = 2_000_000;

/// After so many waits in a row that were in vain, so many entries wait for a quarter of the time.
const IN_VAIN_MOST: u32 = 4;
const IN_HASTE: u32 = 64;

/// One of so many may be missing: the rest of them is not worth the time.
const MISSING_PART: u64 = 16;

/// Waits for those who were answered by the last entry.
#[derive(Debug, Default)]
pub(super) struct Returning {
    expected: Option<Expected>,
    /// How many entries in a row have waited in vain, or did not wait as long because of that.
    in_vain: u32,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    /// When there is this record nearly all of them have come.
    enough: u64,
    /// They are not waited for any longer.
    until: Nanos,
}

/// An entry waits for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// Until this record has come,
    pub(super) enough: u64,
    /// and not longer than this.
    pub(super) most: Duration,
}

impl Returning {
    /// An entry that ends with the record `last` is in the log after so long. `all`: the records that were in it, and
    /// those that have come since it was begun.
    pub(super) fn committed(&mut self, now: Nanos, took_ns: u64, last: u64, all: u64) {
        let quarters = if self.in_vain < IN_VAIN_MOST { 3 } else { 1 };
        self.expected = Some(Expected {
            enough: last + all - all / MISSING_PART,
            until: Nanos(now.0 + (took_ns / 4 * quarters).min(MOST_NS)),
        });
    }

    /// Whether an entry that would end with the record `last` waits for more.
    pub(super) fn wait(&self, now: Nanos, last: u64) -> Option<Wait> {
        let Expected { enough, until } = self.expected?;
        let left = until.0.checked_sub(now.0)?;
        (left > 0 && last < enough).then(|| Wait {
            enough,
            most: Duration::from_nanos(left),
        })
    }

    /// An entry begins, and ends with the record `last`.
    pub(super) fn begun(&mut self, last: u64) {
        let Some(expected) = self.expected.take() else {
            return;
        };
        let is_in_vain = last < expected.enough && self.in_vain < IN_VAIN_MOST + IN_HASTE;
        self.in_vain = if is_in_vain { self.in_vain + 1 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK_NS: u64 = 1_000_000;

    /// Entry after entry takes a millisecond; returns how long the next one waits if one record has come, in microseconds.
    fn waits_us(returning: &mut Returning, last: u64, all: u64) -> u128 {
        returning.committed(Nanos(0), TOOK_NS, last, all);
        let wait = returning.wait(Nanos(0), last + 1);
        wait.map_or(0, |it| it.most.as_micros())
    }

    #[test]
    fn nothing_waits_before_anybody_was_answered() {
        assert_eq!(Returning::default().wait(Nanos(0), 1), None);
    }

    #[test]
    fn whoever_is_alone_does_not_wait() {
        let mut returning = Returning::default();
        for last in 1..10 {
            assert_eq!(waits_us(&mut returning, last, 1), 0);
            returning.begun(last + 1);
        }
    }

    #[test]
    fn those_who_were_answered_are_waited_for_until_nearly_all_have_come() {
        let mut returning = Returning::default();
        returning.committed(Nanos(0), TOOK_NS, 100, 64);
        let wait = returning.wait(Nanos(250_000), 101).unwrap();
        assert_eq!(
            (wait.enough, wait.most),
            (160, Duration::from_micros(500)),
            "60 of 64, until three quarters of the time are over"
        );
        assert!(returning.wait(Nanos(250_000), 159).is_some());
        assert_eq!(returning.wait(Nanos(250_000), 160), None);
        assert_eq!(returning.wait(Nanos(750_000), 101), None);
    }

    #[test]
    fn a_slow_etcd_makes_nobody_wait_longer_than_two_milliseconds() {
        let mut returning = Returning::default();
        returning.committed(Nanos(0), 100 * TOOK_NS, 100, 64);
        let wait = returning.wait(Nanos(0), 101).unwrap();
        assert_eq!(wait.most, Duration::from_millis(2));
    }

    #[test]
    fn those_who_do_not_come_are_given_less_time_and_another_chance() {
        let mut returning = Returning::default();
        let mut waits = Vec::new();
        for last in 1..200 {
            waits.push(waits_us(&mut returning, last * 100, 64));
            returning.begun(last * 100 + 1);
        }
        assert_eq!(waits[..5], [750, 750, 750, 750, 250]);
        let haste = waits[4..].iter().take_while(|it| **it == 250).count();
        assert_eq!(haste, IN_HASTE as usize + 1);
        assert_eq!(waits[4 + haste], 750, "they are tried again");
    }

    #[test]
    fn those_who_come_after_all_are_given_their_time_again() {
        let mut returning = Returning::default();
        for last in 1..10 {
            waits_us(&mut returning, last * 100, 64);
            returning.begun(last * 100 + 1);
        }
        assert_eq!(waits_us(&mut returning, 1_000, 64), 250);
        returning.begun(1_060);
        assert_eq!(waits_us(&mut returning, 1_060, 64), 750);
    }
}
