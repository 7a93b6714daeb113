//! Whether the next write waits for those who were just answered.
//!
//! Who was answered often asks again at once. A sync that begins without them is one that they wait
//! for before their own begins, so if they are back sooner than a sync takes, it is better to wait
//! for them. If they are not, waiting was in vain, and the next ones are written without.
//! Somebody who is alone never waits: there is nothing to write until he asks.

use std::time::Duration;

/// When so many bytes are to be written, nobody is waited for: they are enough for one write.
pub(super) const ENOUGH_BYTES: usize = super::journal::BEHIND_BYTES / 2;

/// Longest wait, however long the last syncs took: one that hung says nothing about the next.
const WAIT_MAX: Duration = Duration::from_millis(2);

/// Most writes without waiting after it was in vain.
const SKIPPED_MAX: u32 = 64;

/// What is known of the syncs and of those who wait for them.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// How long a sync takes, the last ones more than those before.
    sync: Duration,
    /// How many records were answered with the last one.
    answered: u64,
    /// How many writes do not wait, because it was in vain.
    skipped: u32,
    skipped_next: u32,
}

impl Gathering {
    /// A sync is over, and so many records are answered.
    pub(super) fn note_sync(&mut self, took: Duration, answered: u64) {
        self.sync = match self.sync {
            Duration::ZERO => took,
            before => (before * 7 + took) / 8,
        };
        self.answered = answered;
    }

    /// Something is to be written: so many bytes, up to the record `last`. Says until which record
    /// to wait for more, and how long at most.
    pub(super) fn begin(&mut self, last: u64, bytes: usize) -> Option<(u64, Duration)> {
        let answered = std::mem::take(&mut self.answered);
        if answered == 0 || bytes > ENOUGH_BYTES {
            return None;
        }
        if self.skipped > 0 {
            self.skipped -= 1;
            return None;
        }
        // The last of them may be late, or not come again at all.
        let wait = (self.sync / 2).min(WAIT_MAX);
        Some((last + (answered * 7).div_ceil(8), wait))
    }

    /// Nothing is to be written, or there is no room for it: whoever comes next is written at once.
    pub(super) fn nobody_waits(&mut self) {
        self.answered = 0;
    }

    /// The wait is over; they came in time or they did not.
    pub(super) fn end(&mut self, came: bool) {
        self.skipped_next = match came {
            true => 0,
            false => (self.skipped_next * 2 + 1).min(SKIPPED_MAX),
        };
        self.skipped = self.skipped_next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(400);

    #[test]
    fn who_was_answered_is_waited_for_as_long_as_it_pays() {
        let mut gathering = Gathering::default();
        assert_eq!(gathering.begin(3, 1), None, "nobody was answered yet");
        gathering.note_sync(SYNC, 16);
        let most = Duration::from_micros(200);
        assert_eq!(gathering.begin(40, 1), Some((54, most)), "all but a few");
        gathering.end(true);
        assert_eq!(gathering.begin(40, 1), None, "they were waited for once");
        gathering.note_sync(SYNC, 1);
        assert_eq!(gathering.begin(40, 1), Some((41, most)));
    }

    /// One sync that hung for a minute must not make everybody wait for half of one.
    #[test]
    fn nobody_is_waited_for_longer_than_a_moment() {
        let mut gathering = Gathering::default();
        gathering.note_sync(Duration::from_secs(60), 16);
        assert_eq!(gathering.begin(40, 1), Some((54, WAIT_MAX)));
        assert!(WAIT_MAX <= Duration::from_millis(2));
    }

    #[test]
    fn what_is_enough_for_one_write_is_written_at_once() {
        let mut gathering = Gathering::default();
        gathering.note_sync(SYNC, 16);
        assert_eq!(gathering.begin(40, ENOUGH_BYTES + 1), None);
        gathering.note_sync(SYNC, 16);
        assert!(gathering.begin(40, ENOUGH_BYTES).is_some());
    }

    #[test]
    fn who_comes_alone_is_written_at_once() {
        let mut gathering = Gathering::default();
        gathering.note_sync(SYNC, 1);
        gathering.nobody_waits();
        assert_eq!(gathering.begin(2, 1), None);
    }

    #[test]
    fn waiting_in_vain_becomes_rare() {
        let mut gathering = Gathering::default();
        let mut waits = 0;
        for last in 1..=1_000 {
            gathering.note_sync(SYNC, 1);
            if gathering.begin(last, 1).is_some() {
                waits += 1;
                gathering.end(false);
            }
        }
        assert!(waits < 25, "{waits} of 1000");
        for last in 1..=200 {
            gathering.note_sync(SYNC, 1);
            if gathering.begin(last, 1).is_some() {
                gathering.end(true);
                gathering.note_sync(SYNC, 1);
                assert!(gathering.begin(last, 1).is_some(), "it pays again");
                return;
            }
        }
        panic!("it is never tried again");
    }
}
