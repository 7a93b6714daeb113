//! The one place that reads the clock.
//!
//! [`Clock::rest`] waits for time to pass; everything else waits for answers, with `poll`.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::{Events, Poll};
use rustix::time::{ClockId, clock_gettime};

/// Counts nanoseconds from when this program started it.
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// The same moment has the same number in all processes of this machine.
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    pub(crate) fn machine_ns() -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Waits for this long.
    pub(crate) fn rest(&self, ns: u64) -> io::Result<()> {
        let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1));
        let until = self.now_ns() + ns;
        while let Some(left) = until.checked_sub(self.now_ns()) {
            let left = Duration::from_nanos(left.max(1_000_000));
            match poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Today's date in UTC, as `2026-11-16`.
#[expect(clippy::disallowed_methods, reason = "a figure is of a day")]
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(since.map_or(0, |it| it.as_secs()) / 86_400)
}

/// The date so many days after 1970-01-01.
fn date(days: u64) -> String {
    // Counted in years that begin in March, a leap day is the last day of its year.
    let days = days + 719_468; // since 0000-03-01
    let era = days / 146_097; // 400 years
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, want) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_773, "2026-11-16"),
            (20_818, "2026-12-31"),
            (20_819, "2027-01-01"),
        ] {
            assert_eq!(date(days), want, "{days}");
        }
    }
}
