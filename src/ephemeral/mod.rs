//! File locks that clean up after themselves, for programs on one machine. They need no daemon.
//!
//! A lock is an empty file with a lock of the kernel on it (`flock`, or `LockFileEx` of Windows). The file appears when
//! somebody acquires the lock and is gone when the last holder has let go; the kernel ends the lock
//! with the process, however that ends. The file says nothing: whether a lock is held is known to
//! the kernel only, and an empty file that a crash has left is removed by the next holder.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("report.lock");
//! use latchd::ephemeral::EphemeralLock;
//!
//! let guard = EphemeralLock::exclusive(&path).acquire()?;
//! assert!(path.exists());
//! // … what only one process at a time may do …
//! drop(guard);
//! assert!(!path.exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why a file that is removed can be a lock
//!
//! Whoever waits for a lock has opened the file before, and the holder removes it: then the kernel
//! grants a lock on a file without a name, while others lock a new one. So after every grant the file
//! at the path is compared with the locked one (device and inode number, while the file is open, so
//! that the number cannot be given to another), and if they differ, everything begins again. And a
//! holder removes the name *before* it unlocks, and only if it is still that of its own file.
//!
//! `docs/file-locks.md` says what this promises, what it does not, and what surprises.
//!
//! Never truncates, never follows a link, never touches a file that is not empty, and never says
//! that something is locked when it is not.

mod error;
mod event;
mod guard;
mod holders;
mod lock_file;
mod patience;
mod sys;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::error::Error;
pub use self::event::Event;
use self::event::Observer;
pub use self::guard::{Cleanup, Guard};
pub use self::holders::{Holder, holders};
use self::lock_file::{LockFile, LockPath, Locked};
use self::patience::{Mode, Patience};

/// Whether others may hold the lock at the same time.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use latchd::ephemeral::{EphemeralLock, Kind};
///
/// let reader = EphemeralLock::shared(&path).acquire()?;
/// let other = EphemeralLock::shared(&path).acquire()?;
/// assert_eq!((reader.kind(), other.kind()), (Kind::Shared, Kind::Shared));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Any number of holders, as long as nobody has it exclusively.
    Shared,
    /// One holder and no other.
    Exclusive,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        })
    }
}

/// A lock that can be acquired: which file, which kind, how.
///
/// Nothing happens before [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire), and both
/// may be called as often as one likes. Each call gives a lock of its own: two of one process exclude
/// each other as those of two processes do, so to wait for a lock that one's own thread holds is to
/// wait for ever.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use std::time::Duration;
/// use latchd::ephemeral::{EphemeralLock, Error};
///
/// let lock = EphemeralLock::exclusive(&path).timeout(Duration::from_millis(20));
/// let guard = lock.acquire()?;                              // waits, 20 ms at most
/// assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));  // never waits
/// assert!(matches!(lock.acquire(), Err(Error::Busy { .. })));      // has waited in vain
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before it is acquired"]
pub struct EphemeralLock {
    path: PathBuf,
    kind: Kind,
    timeout: Option<Duration>,
    permissions: u32,
    allow_network: bool,
    keep_file: bool,
    observer: Option<Observer>,
}

impl EphemeralLock {
    /// A lock that nobody else can hold at the same time.
    pub fn exclusive(path: impl Into<PathBuf>) -> Self {
        Self::new(path.into(), Kind::Exclusive)
    }

    /// A lock that others can hold, too, if they ask for a shared one.
    ///
    /// Even so the file has to be writable: what is shared has to be made and removed.
    pub fn shared(path: impl Into<PathBuf>) -> Self {
        Self::new(path.into(), Kind::Shared)
    }

    fn new(path: PathBuf, kind: Kind) -> Self {
        Self {
            path,
            kind,
            timeout: None,
            permissions: 0o600,
            allow_network: false,
            keep_file: false,
            observer: None,
        }
    }

    /// How long [`acquire`](Self::acquire) waits before it says [`Error::Busy`]; without this it
    /// waits for as long as it takes.
    ///
    /// The system has no lock with a timeout. So whoever waits with one asks again after 1 to 50 ms,
    /// and others may come first; who waits without is woken by the kernel.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The permissions of the file if it has to be made, less the process's umask; `0o600` unless set.
    /// Every user of the lock must be allowed to write the file and its directory. On Windows the permissions
    /// have no effect: the file inherits the access rights of its directory.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = mode;
        self
    }

    /// Whether the file may lie on a network file system or on FUSE, which is refused unless set: there the
    /// lock may be that of this machine only, or none (`docs/file-locks.md`).
    pub fn allow_network(mut self, allow: bool) -> Self {
        self.allow_network = allow;
        self
    }

    /// Whether the file stays in place when the lock is released. It may have contents then, which are
    /// never changed.
    ///
    /// Set it for a file that other programs lock with `flock` as well, such as flock(1) in scripts: a
    /// waiting flock(1) can get a file that was removed meanwhile, and then excludes no newcomer. Also
    /// set it for a file that is there to stay, such as one among a daemon's data. Every program that
    /// locks the file with this library should set the same.
    pub fn keep_file(mut self, keep: bool) -> Self {
        self.keep_file = keep;
        self
    }

    /// Has this called with everything that becomes of the lock, for figures and logs. It is called
    /// by the thread that acquires or lets go, and must not panic.
    pub fn observe(mut self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Acquires the lock, and waits for it as long as the timeout says, or as long as it takes.
    ///
    /// # Errors
    /// [`Error::Busy`] after the timeout; the others at once.
    pub fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_in(match self.timeout {
            None => Mode::Block,
            Some(timeout) => Mode::Within(timeout),
        })
    }

    /// Acquires the lock if it is free, without waiting for a holder.
    ///
    /// # Errors
    /// [`Error::Busy`] if somebody holds it; the others if it cannot be had at all.
    pub fn try_acquire(&self) -> Result<Guard, Error> {
        self.acquire_in(Mode::Try)
    }

    /// Fails if the path has a file that could not be opened as a lock file. It makes and locks
    /// nothing, so it does not know whether a missing file could be made.
    #[cfg(feature = "daemon")]
    pub(crate) fn check(&self) -> Result<(), Error> {
        let path = LockPath::new(&self.path, self.allow_network)?;
        LockFile::open(&path, None, self.keep_file).map(drop)
    }

    fn acquire_in(&self, mode: Mode) -> Result<Guard, Error> {
        let mut patience = Patience::new(mode);
        let result = self.acquire_with(&mut patience);
        if let Some(observer) = &self.observer {
            let (waited, retries) = (patience.waited(), patience.retries());
            let (path, kind) = (self.path.as_path(), self.kind);
            observer.tell(&match &result {
                Ok(guard) => Event::Acquired {
                    path: guard.path(),
                    kind,
                    waited,
                    retries,
                },
                Err(error) => Event::Refused {
                    path,
                    kind,
                    waited,
                    retries,
                    error,
                },
            });
        }
        result
    }

    fn acquire_with(&self, patience: &mut Patience) -> Result<Guard, Error> {
        let path = LockPath::new(&self.path, self.allow_network)?;
        let busy = || Error::Busy {
            path: path.as_path().to_owned(),
        };
        loop {
            let file = match LockFile::open(&path, Some(self.permissions), self.keep_file) {
                Ok(Some(file)) => file,
                Ok(None) if patience.replaced(&path) => continue,
                Ok(None) => return Err(busy()),
                Err(error) if lock_file::may_pass(&error) && patience.passes() => continue,
                Err(error) => return Err(error),
            };
            if !file.lock(&path, self.kind, patience.blocks())? {
                match patience.busy() {
                    true => continue,
                    false => return Err(busy()),
                }
            }
            // The holder before us may have removed the file after we opened it. Then another can be
            // locked by somebody else, and ours counts for nothing.
            match file.confirm(&path)? {
                Some(locked) => return Ok(self.guard(locked, path, patience)),
                None if patience.replaced(&path) => {}
                None => return Err(busy()),
            }
        }
    }

    fn guard(&self, locked: Locked, path: LockPath, patience: &Patience) -> Guard {
        Guard::new(
            locked,
            path,
            self.kind,
            self.keep_file,
            self.observer.clone(),
            (patience.waited(), patience.retries()),
        )
    }
}

/// Where the lock of a directory belongs: beside it, as `<directory>.lock`.
///
/// There it outlives the directory's being renamed, replaced or absent for a moment, which a file
/// inside would not. The directory need not exist. Links are not resolved: all who use the lock have
/// to call the directory by the same name.
///
/// ```
/// use std::path::Path;
/// use latchd::ephemeral::{EphemeralLock, lock_path_beside};
///
/// let path = lock_path_beside("/srv/site/")?;
/// assert_eq!(path, Path::new("/srv/site.lock"));
/// let lock = EphemeralLock::exclusive(path);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// There is nothing beside it (`/`), it has no name of its own (`..`), or the current directory, which
/// a relative path begins at, is gone.
pub fn lock_path_beside(dir: impl AsRef<Path>) -> io::Result<PathBuf> {
    let dir = dir.as_ref();
    let absolute = std::path::absolute(dir)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        let why = format!("{dir:?} has no name that a lock file beside it could be called after");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let mut name = name.to_owned();
    name.push(".lock");
    Ok(parent.join(name))
}

#[cfg(test)]
mod tests;
