//! The calls of the system, one file per family: `unix` and `windows`. Everything above is the same everywhere.
//!
//! Each has the same functions. They open without truncating, without following a link and without
//! waiting for a peer, and remove nothing but the file that they are given. None of them waits or retries.

use std::fs::TryLockError;
use std::io::{self, ErrorKind};

#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod proc_locks;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use self::unix::*;
#[cfg(windows)]
pub(super) use self::windows::*;

#[cfg(target_os = "linux")]
pub(super) use self::proc_locks::holders;

/// Only Linux tells.
#[cfg(not(target_os = "linux"))]
pub(super) fn holders(_path: &std::path::Path) -> io::Result<Vec<super::Holder>> {
    Err(ErrorKind::Unsupported.into())
}

/// A file is another one if either differs. Meaningful only while the file is open: then its number
/// cannot be given to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    /// The inode number, or the file index of Windows.
    number: u64,
}

/// What is at a path in place of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAFile {
    /// A symbolic link, or any reparse point of Windows.
    Link,
    /// What it is called.
    Other(&'static str),
}

/// What the system says of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) id: FileId,
    pub(super) not_a_file: Option<NotAFile>,
    pub(super) bytes: u64,
}

/// Whether we got a lock without waiting.
pub(super) fn tried(mut lock: impl FnMut() -> Result<(), TryLockError>) -> io::Result<bool> {
    uninterrupted(|| match lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    })
}

/// Does it again as long as signals interrupt it: the standard library does not, for locks.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_end_no_wait_and_are_no_refusal() {
        let mut left = 1_000;
        let mut interrupted = || {
            left -= 1;
            left > 0
        };
        let locked = tried(|| match interrupted() {
            true => Err(TryLockError::Error(ErrorKind::Interrupted.into())),
            false => Ok(()),
        });
        assert!(locked.unwrap());
        assert!(!tried(|| Err(TryLockError::WouldBlock)).unwrap());
        assert!(tried(|| Err(TryLockError::Error(ErrorKind::Other.into()))).is_err());
    }
}
