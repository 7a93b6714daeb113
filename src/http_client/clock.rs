//! The one clock of this client: it never goes back, and it goes on while the machine sleeps.
//!
//! A lease runs at the server. A laptop that is woken after an hour must not believe that its lease
//! of a minute has just begun, so the clock is the one that counts the time asleep, too.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment, as time since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    /// What time it is.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place of this client that reads the clock"
    )]
    pub(super) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Before every other.
    pub(super) const START: Self = Self(Duration::ZERO);

    pub(super) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// How long it is from here to `later`; nothing, if that is over.
    pub(super) fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    pub(super) fn elapsed(self) -> Duration {
        self.until(Self::now())
    }
}
