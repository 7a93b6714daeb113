//! The one place of the client that reads the clock, draws chance, and lets time pass.
//!
//! The clock only goes forward, and goes on while the machine sleeps: a laptop that wakes up after its
//! lease was over must know that at once, and the ordinary monotonic clock would have stood still.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use rustix::event::Timespec;

use crate::base::{Millis, Nanos};
use crate::uptime;

/// What time it is.
pub(super) fn now() -> Nanos {
    Nanos(nanos(uptime::uptime()))
}

/// A span from now on.
pub(super) fn after(span: Duration) -> Nanos {
    Nanos(now().0.saturating_add(nanos(span)))
}

/// How long it is until then; nothing if that is over.
pub(super) fn until(then: Nanos) -> Duration {
    Duration::from_nanos(then.since(now()))
}

/// No wait of the system counts the time asleep, so a wait looks at the clock at least this often.
const NAP_MAX: Duration = Duration::from_secs(1);

/// How long to wait for this time before the clock is looked at again.
pub(super) fn nap(then: Nanos) -> Duration {
    until(then).min(NAP_MAX)
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A span as the protocol states it: whole milliseconds, rounded up, so that nothing becomes "try once"
/// or "no lease" that was not.
pub(super) fn millis(span: Duration) -> Millis {
    let ms = u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Millis(ms.min(Millis::MAX.0))
}

pub(super) fn duration(span: Millis) -> Duration {
    Duration::from_millis(span.0)
}

/// As `poll` wants it.
pub(super) fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos() as _, // i64 or, on Windows, i32
    }
}

/// Waits before the next attempt. There is no event that says when a server is back.
pub(super) fn pause(span: Duration) {
    let end = after(span);
    loop {
        let left = nap(end);
        if left.is_zero() {
            return;
        }
        uptime::pause(left);
    }
}

/// Any number below `limit`, for jitter and for names: not for secrets.
pub(super) fn chance(limit: u64) -> u64 {
    RandomState::new().build_hasher().finish() % limit.max(1)
}

/// Between half of it and all of it, so that many clients do not come back at once.
pub(super) fn jittered(span: Duration) -> Duration {
    let half = nanos(span) / 2;
    Duration::from_nanos(half + chance(half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(millis(Duration::ZERO), Millis(0));
        assert_eq!(millis(Duration::from_nanos(1)), Millis(1));
        assert_eq!(millis(Duration::from_micros(1_001)), Millis(2));
        assert_eq!(millis(Duration::MAX), Millis::MAX);
    }

    /// A machine that sleeps for an hour wakes up with a wait that has hardly begun.
    #[test]
    fn no_wait_is_longer_than_a_second() {
        assert_eq!(nap(after(Duration::from_secs(3_600))), NAP_MAX);
        assert_eq!(nap(Nanos::NEVER), NAP_MAX);
        assert!(nap(after(Duration::from_millis(10))) <= Duration::from_millis(10));
        assert_eq!(nap(Nanos(0)), Duration::ZERO);
        assert!(NAP_MAX <= Duration::from_secs(1));
    }

    #[test]
    fn the_clock_goes_forward_and_jitter_stays_within_its_bounds() {
        let before = now();
        let span = Duration::from_millis(10);
        for _ in 0..1_000 {
            let jittered = jittered(span);
            assert!(jittered >= span / 2 && jittered <= span, "{jittered:?}");
        }
        assert!(now() >= before);
        assert_eq!(until(Nanos(0)), Duration::ZERO);
    }
}
