//! The one place that reads the clock.
//!
//! Monotonic, so a wall clock that jumps moves no lease. A test may bring its own hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::base::Nanos;

/// Where the reactor gets the time from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock, counted from this instant.
    System(Instant),
    /// Nanoseconds set by somebody else. Wake the reactor after moving it.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock, starting at zero now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the start of the clock")]
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// What time it is.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(start) => {
                let elapsed = Instant::now().duration_since(*start);
                Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
            }
            Self::Manual(nanos) => Nanos(nanos.load(Ordering::SeqCst)),
        }
    }
}
