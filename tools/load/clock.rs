//! The one place that reads the clock.
//!
//! [`Clock::rest`] waits for time to pass; everything else waits for answers, with `poll`.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

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
