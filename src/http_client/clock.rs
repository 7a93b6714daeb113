//! The one clock of this client: it never goes back, and it goes on while the machine sleeps.
//!
//! A lease runs at the server. A laptop that is woken after an hour must not believe that its lease
//! of a minute has just begun, so the clock is the one that counts the time asleep, too.

use std::time::Duration;

use crate::uptime::uptime;

/// A moment, as the time of [`uptime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    /// What time it is.
    pub(super) fn now() -> Self {
        Self(uptime())
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
