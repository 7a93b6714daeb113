//! Where this member stands, as all its threads see it.
//!
//! The state machine (`cluster/role.rs`) under a lock that is held for moments, and beside it the one number
//! that is read before every write of the server, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::place::Place;
use crate::base::Nanos;
use crate::cluster::role::{Role, Standing, Terms};

/// Where this member stands.
pub struct Tenancy {
    standing: Mutex<Standing>,
    speaks_until: AtomicU64,
    place: Arc<dyn Place>,
}

impl Tenancy {
    /// A standby.
    #[must_use]
    pub fn new(terms: Terms, place: Arc<dyn Place>) -> Self {
        Self {
            standing: Mutex::new(Standing::new(terms)),
            speaks_until: AtomicU64::new(0),
            place,
        }
    }

    /// What its threads stand in.
    #[must_use]
    pub fn place(&self) -> &Arc<dyn Place> {
        &self.place
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.place.now()
    }

    /// Whether bytes may leave now. The clock is read after the number, so an answer that is late is
    /// never too generous.
    #[must_use]
    pub fn may_speak(&self) -> bool {
        let until = Nanos(self.speaks_until.load(Ordering::Acquire));
        self.now() < until
    }

    /// Where it stands now.
    #[must_use]
    pub fn role(&self) -> Role {
        self.change(|standing, now| standing.role(now))
    }

    /// Looks at it or changes it, and tells everybody what has come of it.
    pub fn change<R>(&self, change: impl FnOnce(&mut Standing, Nanos) -> R) -> R {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let before = standing.role(now);
        let result = change(&mut standing, now);
        let until = standing.speaks_until();
        let until_before = self.speaks_until.swap(until.0, Ordering::AcqRel);
        let has_changed = standing.role(now) != before;
        drop(standing);
        // Somebody may have found just now that the time is over, and waits to be told that it is not.
        let was_missed = until.0 > until_before && self.now() >= Nanos(until_before);
        if has_changed || was_missed {
            self.place.wake();
        }
        result
    }

    /// Has the server look what has come.
    pub fn wake(&self) {
        self.place.wake();
    }
}
