//! The one place that reads the clock.
//!
//! It is monotonic, so a jump of the wall clock moves no lease. A test may set the time itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::base::Nanos;

/// Where the reactor gets the time from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock; the number is its reading, in nanoseconds, at our time zero.
    System(u64),
    /// Nanoseconds that somebody else sets. Wake the reactor after a change.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock, starting at zero now.
    #[must_use]
    pub fn system() -> Self {
        Self::System(monotonic_ns())
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(start) => Nanos(monotonic_ns().saturating_sub(*start)),
            Self::Manual(nanos) => Nanos(nanos.load(Ordering::SeqCst)),
        }
    }
}

/// What time it is on a clock that also runs while the machine sleeps. Leases that other machines give us
/// are counted by it.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
pub fn boot_time() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Asks the system directly: the time is read for every request, and making an `Instant` takes
/// three times as long.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
