//! What becomes of a lock, for those who count.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Cleanup, Error, Kind};

/// What became of a lock, told to [`EphemeralLock::observe`](super::EphemeralLock::observe).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use std::sync::mpsc;
/// use latchd::ephemeral::{Cleanup, EphemeralLock, Event};
///
/// let (tell, told) = mpsc::channel();
/// let lock = EphemeralLock::exclusive(&path).observe(move |event| {
///     let _ = tell.send(match event {
///         Event::Acquired { retries, .. } => format!("acquired after {retries} retries"),
///         Event::Released { cleanup: Ok(Cleanup::Removed), .. } => "removed".to_owned(),
///         other => format!("{other:?}"),
///     });
/// });
/// drop(lock.acquire()?);
/// drop(lock);
/// assert_eq!(told.iter().collect::<Vec<_>>(), ["acquired after 0 retries", "removed"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// We have it.
    Acquired {
        /// The lock file.
        path: &'a Path,
        /// Shared or exclusive.
        kind: Kind,
        /// How long that took.
        waited: Duration,
        /// How often the file was replaced while we locked it. More than a few: many want this lock.
        retries: u32,
    },
    /// We do not have it.
    Refused {
        /// The lock file, as it was given.
        path: &'a Path,
        /// Shared or exclusive.
        kind: Kind,
        /// How long that took.
        waited: Duration,
        /// How often the file was replaced meanwhile.
        retries: u32,
        /// Why.
        error: &'a Error,
    },
    /// We had it and have let it go, on purpose or because the guard was dropped.
    Released {
        /// The lock file.
        path: &'a Path,
        /// Shared or exclusive.
        kind: Kind,
        /// What became of the file.
        cleanup: Result<Cleanup, &'a io::Error>,
    },
}

/// Who is told.
#[derive(Clone)]
pub(super) struct Observer(pub(super) Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Observer {
    pub(super) fn tell(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    /// The same where a panic would end the process: in `drop`, perhaps because of another panic.
    pub(super) fn tell_in_drop(&self, event: &Event<'_>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.tell(event)));
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
