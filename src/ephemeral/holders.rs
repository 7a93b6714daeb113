//! Who holds a lock, as far as the system tells: for messages to people, never for a decision.

use std::io;
use std::path::Path;

use super::{Kind, sys};

/// One who holds a lock on a file.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use latchd::ephemeral::{EphemeralLock, Holder, Kind, holders};
///
/// let guard = EphemeralLock::exclusive(&path).acquire()?;
/// # if cfg!(target_os = "linux") {
/// let us = Holder { pid: Some(std::process::id()), kind: Kind::Exclusive };
/// assert_eq!(holders(&path)?, [us]);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process that has taken the lock, if it can be seen from here. Another one may have inherited
    /// it since.
    pub pid: Option<u32>,
    /// Shared or exclusive.
    pub kind: Kind,
}

/// Who has a lock (`flock`) on the file at the path now. Linux only, from `/proc/locks`, which knows
/// nothing of processes in other containers, and may leave one out or tell it twice where very many
/// locks come and go.
///
/// # Errors
/// There is no such file, or the system does not tell ([`Unsupported`](io::ErrorKind::Unsupported) anywhere
/// but on Linux).
pub fn holders(path: impl AsRef<Path>) -> io::Result<Vec<Holder>> {
    sys::holders(path.as_ref())
}
