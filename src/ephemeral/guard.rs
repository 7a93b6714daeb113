//! A lock that is held, and how it is let go.
//!
//! The order of a release is essential: check that the name is still that of the locked file, remove the
//! name, unlock, close. To unlock first would let the next process lock the file, and then remove its name.
//! On Windows a removed name goes at the close, which is the unlock as well.

use std::fs::File;
use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(windows)]
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::path::Path;
use std::time::Duration;

use super::Kind;
use super::event::{Event, Observer};
use super::lock_file::{LockPath, Locked, Named};

/// What became of a lock file when its lock was let go. In all cases the lock is free.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use latchd::ephemeral::{Cleanup, EphemeralLock};
///
/// let first = EphemeralLock::shared(&path).acquire()?;
/// let last = EphemeralLock::shared(&path).acquire()?;
/// assert_eq!(first.release()?, Cleanup::LeftBusy);
/// assert_eq!(last.release()?, Cleanup::Removed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cleanup {
    /// It is gone.
    Removed,
    /// Somebody else has a lock on it, and will remove it.
    LeftBusy,
    /// What is at the path, if anything, is not the file that was locked: somebody has removed, renamed
    /// or replaced it, and others may have held the lock at the same time. Nothing was touched.
    LeftReplaced,
    /// Somebody has written to it while it was locked, so it is not ours to remove. Nobody can have this
    /// lock before the file is removed or emptied.
    LeftWritten,
    /// It stays, because [`keep_file`](super::EphemeralLock::keep_file) says so.
    Kept,
    /// This is a copy of the guard in a process that was forked from the holder, and the lock is that
    /// of the holder: nothing was unlocked or removed.
    LeftToHolder,
}

/// A lock that is held until this is dropped.
///
/// To drop it is to [`release`](Self::release) it, only that nobody learns what became of the file; an
/// error is a line in the log. A guard that is leaked keeps the lock until the process ends and leaves
/// the file, which the next holder removes.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.lock");
/// use latchd::ephemeral::{Cleanup, EphemeralLock};
///
/// let guard = EphemeralLock::exclusive(&path).acquire()?;
/// assert_eq!(guard.path().file_name(), path.file_name());
/// assert!(guard.is_in_place()?);
/// assert_eq!(guard.release()?, Cleanup::Removed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the lock is let go when its guard is dropped"]
pub struct Guard {
    /// Taken when it is let go.
    locked: Option<Locked>,
    path: LockPath,
    kind: Kind,
    keep_file: bool,
    /// The process that has acquired it. In another one this is a copy.
    holder: u32,
    waited: Duration,
    retries: u32,
    observer: Option<Observer>,
}

impl Guard {
    pub(super) fn new(
        locked: Locked,
        path: LockPath,
        kind: Kind,
        keep_file: bool,
        observer: Option<Observer>,
        (waited, retries): (Duration, u32),
    ) -> Self {
        Self {
            locked: Some(locked),
            path,
            kind,
            keep_file,
            holder: std::process::id(),
            waited,
            retries,
            observer,
        }
    }

    /// The lock file, by an absolute path.
    pub fn path(&self) -> &Path {
        self.path.as_path()
    }

    /// Shared or exclusive.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How long it took to get it.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How often the file was replaced by others meanwhile.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Whether the file at the path is still the locked one. If not, somebody has removed or renamed it or
    /// its directory, and others can have the lock, too: the work that it guards is best given up.
    ///
    /// # Errors
    /// The path cannot be looked at.
    pub fn is_in_place(&self) -> io::Result<bool> {
        match &self.locked {
            Some(locked) => locked.is_in_place(&self.path),
            None => Ok(false),
        }
    }

    /// Lets the lock go, and says what became of the file.
    ///
    /// # Errors
    /// The file could not be removed, and stays until the next holder removes it. The lock is free all
    /// the same.
    pub fn release(mut self) -> io::Result<Cleanup> {
        let result = self.let_go();
        if let Some(observer) = &self.observer {
            observer.tell(&self.released(&result));
        }
        result
    }

    /// Closes our descriptor and does nothing else: the lock is then that of whoever has a copy of the descriptor (a child
    /// that inherited it), until the last copy is closed. If there is none, it is free, and the empty file stays
    /// until the next holder removes it. An observer is not told.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("x.lock");
    /// use std::os::fd::AsFd;
    /// use latchd::ephemeral::EphemeralLock;
    ///
    /// let lock = EphemeralLock::exclusive(&path);
    /// let guard = lock.acquire()?;
    /// let copy = guard.as_fd().try_clone_to_owned()?;
    /// guard.leave_to_copies();
    /// assert!(lock.try_acquire().is_err());
    /// drop(copy);
    /// lock.try_acquire()?.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Unix only: a child cannot inherit a lock of Windows.
    #[cfg(unix)]
    pub fn leave_to_copies(mut self) {
        drop(self.locked.take());
    }

    fn file(&self) -> &File {
        match &self.locked {
            Some(locked) => locked.as_file(),
            None => unreachable!("a guard without its file has ended"),
        }
    }

    fn released<'a>(&'a self, result: &'a io::Result<Cleanup>) -> Event<'a> {
        Event::Released {
            path: self.path(),
            kind: self.kind,
            cleanup: result.as_ref().copied(),
        }
    }

    fn let_go(&mut self) -> io::Result<Cleanup> {
        let Some(locked) = self.locked.take() else {
            return Ok(Cleanup::LeftToHolder); // not reached: whoever takes it ends the guard
        };
        if std::process::id() != self.holder {
            return Ok(Cleanup::LeftToHolder); // to unlock here would unlock it for the holder, too
        }
        if cfg!(ephemeral_mutant = "unlock_first") {
            locked.unlock()?;
        }
        let cleanup = match (self.keep_file, self.kind) {
            (true, _) => Ok(Cleanup::Kept),
            (false, Kind::Exclusive) => self.remove(&locked),
            // Between the two locks others can have come and gone, so `remove` looks again.
            (false, Kind::Shared) => match locked.try_alone() {
                Ok(true) => self.remove(&locked),
                Ok(false) => Ok(Cleanup::LeftBusy),
                Err(error) => Err(error),
            },
        };
        if cfg!(ephemeral_mutant = "close_only") {
            return cleanup;
        }
        let ended = locked.end();
        let cleanup = cleanup?;
        ended?;
        Ok(cleanup)
    }

    /// Removes the file at the path if it is the locked one. Only for whoever has it exclusively.
    fn remove(&self, locked: &Locked) -> io::Result<Cleanup> {
        let named = match cfg!(ephemeral_mutant = "no_verify") {
            false => locked.named(&self.path)?,
            true => Named::Ours,
        };
        Ok(match named {
            Named::NotOurs => Cleanup::LeftReplaced,
            Named::OursWritten => Cleanup::LeftWritten,
            Named::Ours => match locked.remove(&self.path)? {
                true => Cleanup::Removed,
                false => Cleanup::LeftReplaced,
            },
        })
    }

    /// As it is in a process that was forked from the holder.
    #[cfg(all(test, unix))]
    pub(super) fn into_copy_of_another_process(mut self) -> Self {
        self.holder ^= 1;
        self
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.locked.is_none() {
            return; // it was released, or left to others
        }
        let result = self.let_go();
        if let Err(error) = &result {
            log::warn!(
                "lock file {:?} is unlocked, but was not removed: {error}",
                self.path()
            );
        }
        if let Some(observer) = &self.observer {
            observer.tell_in_drop(&self.released(&result));
        }
    }
}

/// The descriptor that has the lock. Whoever gets a copy of it (a child that inherits it) keeps the lock
/// with it: it ends when all copies are closed, or with [`Guard::release`], whichever is first. With
/// [`Guard::leave_to_copies`] it is theirs alone.
#[cfg(unix)]
impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

/// The handle that has the lock. The lock is not inherited with it.
#[cfg(windows)]
impl AsHandle for Guard {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.file().as_handle()
    }
}
