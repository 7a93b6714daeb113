//! One lock file: where it is, how it is opened, locked, recognized and removed.
//!
//! Every call of the system that can hurt somebody's file is here. Opens without truncating, without
//! following a link and without waiting for a peer; removes only what is the locked file, and empty.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::network::{self, network_file_system};
use super::{Error, Kind};

/// What everybody calls the lock file.
#[derive(Debug)]
pub(super) struct LockPath {
    /// Absolute, so that another current directory does not lead elsewhere. It ends with a name.
    path: PathBuf,
    allow_network: bool,
}

impl LockPath {
    pub(super) fn new(given: &Path, allow_network: bool) -> Result<Self, Error> {
        let is_dir = given.as_os_str().as_bytes().ends_with(b"/");
        if is_dir || given.file_name().is_none() {
            let path = given.to_owned();
            let what = "the name of a directory";
            return Err(Error::NotRegular { path, what });
        }
        let path = std::path::absolute(given).map_err(Error::io(given, "find"))?;
        Ok(Self {
            path,
            allow_network,
        })
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    fn name(&self) -> &Path {
        self.path.file_name().unwrap_or_default().as_ref()
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.path
    }
}

/// The directory of a lock file. It stays the same, whatever becomes of its name or of links to it.
#[derive(Debug)]
pub(super) struct LockDir {
    fd: OwnedFd,
    is_on_network: bool,
}

impl LockDir {
    fn open(path: &LockPath) -> Result<Self, Error> {
        let cannot = |doing| move |error: Errno| Error::io(&path.path, doing)(error.into());
        let flags = dir_flags() | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| fs::open(path.dir(), flags, Mode::empty()))
            .map_err(cannot("find the directory of"))?;
        let file_system = network_file_system(fd.as_fd())
            .map_err(Error::io(&path.path, "find the file system of"))?;
        match file_system {
            Some(name) if !path.allow_network => Err(Error::Unsupported {
                path: path.path.clone(),
                why: network::refusal(&name),
            }),
            file_system => Ok(Self {
                fd,
                is_on_network: file_system.is_some(),
            }),
        }
    }

    /// What has this name here, if anything has.
    fn look(&self, path: &LockPath) -> io::Result<Option<Seen>> {
        look(self.fd.as_fd(), path.name(), self.is_on_network)
    }
}

/// What is at a path now, if anything is.
fn look(dir: impl AsFd, path: &Path, is_on_network: bool) -> io::Result<Option<Seen>> {
    let seen = match is_on_network {
        false => fs::statat(&dir, path, AtFlags::SYMLINK_NOFOLLOW),
        // What is known of a path may be some seconds old there; to open it asks the server.
        true => retry_on_intr(|| {
            let flags = OFlags::RDONLY | careful_flags();
            fs::openat(&dir, path, flags, Mode::empty())
        })
        .and_then(fs::fstat),
    };
    match seen {
        Ok(stat) => Ok(Some(Seen::of(&stat))),
        // Over a network another machine may have removed it, and a link leads to something else.
        Err(Errno::NOENT | Errno::STALE | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A file is another one if either differs. Meaningful only while the file is open: then its number
/// cannot be given to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

/// What the system says of a file.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: FileId,
    file_type: FileType,
    bytes: u64,
}

impl Seen {
    #[allow(
        clippy::unnecessary_cast,
        reason = "not everywhere are these numbers as long as here"
    )]
    fn of(stat: &Stat) -> Self {
        Self {
            id: FileId {
                device: stat.st_dev as u64,
                inode: stat.st_ino as u64,
            },
            file_type: FileType::from_raw_mode(stat.st_mode),
            bytes: stat.st_size as u64,
        }
    }

    /// Refuses what cannot be a lock file.
    fn check(&self, path: &LockPath, may_have_contents: bool) -> Result<(), Error> {
        let path = || path.path.clone();
        let not_regular = |what| Err(Error::NotRegular { path: path(), what });
        match self.file_type {
            FileType::RegularFile if self.bytes > 0 && !may_have_contents => Err(Error::NotEmpty {
                path: path(),
                bytes: self.bytes,
            }),
            FileType::RegularFile => Ok(()),
            FileType::Symlink => Err(Error::Symlink { path: path() }),
            FileType::Directory => not_regular("a directory"),
            FileType::Fifo => not_regular("a pipe"),
            FileType::Socket => not_regular("a socket"),
            _ => not_regular("a device"),
        }
    }
}

/// A lock file that is open. What is locked may be a file that has lost its name.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    id: FileId,
    dir: LockDir,
}

impl LockFile {
    /// Opens the file, and makes it if it is missing. `None`: it went while it was opened.
    pub(super) fn open(
        path: &LockPath,
        permissions: u32,
        may_have_contents: bool,
    ) -> Result<Option<Self>, Error> {
        let dir = LockDir::open(path)?;
        // To open something can do something: it lets a writer of a pipe go on, it starts a watchdog.
        let before = dir.look(path).map_err(Error::io(&path.path, "look at"))?;
        if let Some(before) = before {
            before.check(path, may_have_contents)?;
        }
        // Also for a shared lock it is opened for writing: to let go of it is to try to be alone.
        let flags = OFlags::RDWR | OFlags::CREATE | careful_flags();
        let mode = Mode::from_raw_mode(permissions);
        let opened = retry_on_intr(|| fs::openat(&dir.fd, path.name(), flags, mode));
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) => return Err(not_opened(error, path)),
        };
        let seen = match fs::fstat(&file) {
            Ok(stat) => Seen::of(&stat),
            Err(Errno::STALE) => return Ok(None),
            Err(error) => return Err(Error::io(&path.path, "look at")(error.into())),
        };
        seen.check(path, may_have_contents)?;
        let id = seen.id;
        Ok(Some(Self { file, id, dir }))
    }

    /// Locks the file, or says that somebody else has it (never, if this is to wait).
    pub(super) fn lock(&self, path: &LockPath, kind: Kind, wait: bool) -> Result<bool, Error> {
        let locked = match (kind, wait) {
            (Kind::Exclusive, true) => uninterrupted(|| self.file.lock()).map(|()| true),
            (Kind::Shared, true) => uninterrupted(|| self.file.lock_shared()).map(|()| true),
            (Kind::Exclusive, false) => tried(|| self.file.try_lock()),
            (Kind::Shared, false) => tried(|| self.file.try_lock_shared()),
        };
        locked.map_err(|error| not_locked(error, path))
    }

    /// The locked file, if it is the one at the path. Otherwise it is unlocked, and nobody's.
    pub(super) fn confirm(self, path: &LockPath) -> Result<Option<Locked>, Error> {
        let locked = Locked { file: self };
        match locked.is_in_place(path) {
            Ok(true) => Ok(Some(locked)),
            is_in_place => {
                // Others may still wait for it, and a copy of it in another process would keep them.
                let _ = locked.unlock();
                is_in_place.map_err(Error::io(&path.path, "look at"))?;
                Ok(None)
            }
        }
    }
}

/// A lock file that was at its path when it was locked.
#[derive(Debug)]
pub(super) struct Locked {
    file: LockFile,
}

/// What has the name of a locked file in the directory that it was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The file itself, as empty as a lock file is.
    Ours,
    /// The file itself, and somebody has written to it.
    OursWritten,
    /// Nothing, or another file.
    NotOurs,
}

impl Locked {
    pub(super) fn as_file(&self) -> &File {
        &self.file.file
    }

    /// Whether whoever comes by the path finds this file. The whole way is gone again: the directory may
    /// be another one now.
    pub(super) fn is_in_place(&self, path: &LockPath) -> io::Result<bool> {
        if cfg!(ephemeral_mutant = "no_check") {
            return Ok(true);
        }
        let seen = look(fs::CWD, &path.path, self.file.dir.is_on_network)?;
        Ok(seen.is_some_and(|seen| seen.id == self.file.id))
    }

    /// What has its name now.
    pub(super) fn named(&self, path: &LockPath) -> io::Result<Named> {
        Ok(match self.file.dir.look(path)? {
            Some(seen) if seen.id != self.file.id => Named::NotOurs,
            Some(seen) if seen.bytes > 0 => Named::OursWritten,
            Some(_) => Named::Ours,
            None => Named::NotOurs,
        })
    }

    /// Takes the name away, whatever has it. Says whether anything had it.
    pub(super) fn remove(&self, path: &LockPath) -> io::Result<bool> {
        match fs::unlinkat(&self.file.dir.fd, path.name(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Turns a shared lock into an exclusive one, unless others have it. Then the shared one is lost,
    /// too, or not: only whoever lets go may ask.
    pub(super) fn try_alone(&self) -> io::Result<bool> {
        tried(|| self.as_file().try_lock())
    }

    /// Ends the lock, also if there are copies of the descriptor, such as those which a process that is
    /// being started has for a moment.
    pub(super) fn unlock(&self) -> io::Result<()> {
        uninterrupted(|| self.as_file().unlock())
    }
}

/// Never a link, never a terminal, never a wait for whoever has the other end of a pipe, and not for
/// programs that we start.
fn careful_flags() -> OFlags {
    OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC
}

/// Of the directory nothing is read, so it need not be readable, where the system knows that.
fn dir_flags() -> OFlags {
    #[cfg(target_os = "linux")]
    return OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    return OFlags::RDONLY;
}

fn not_opened(error: Errno, path: &LockPath) -> Error {
    let path = path.path.clone();
    match error {
        Errno::LOOP => Error::Symlink { path },
        Errno::ISDIR => Error::NotRegular {
            path,
            what: "a directory",
        },
        Errno::NXIO => Error::NotRegular {
            path,
            what: "a socket or a device",
        },
        _ => Error::io(&path, "open")(error.into()),
    }
}

fn not_locked(error: io::Error, path: &LockPath) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let is_missing = error.kind() == ErrorKind::Unsupported
        || matches!(errno, Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS));
    match is_missing {
        true => Error::Unsupported {
            path: path.path.clone(),
            why: format!("its file system has no locks ({error})"),
        },
        false => Error::io(&path.path, "lock")(error),
    }
}

/// Whether we got a lock without waiting.
fn tried(mut lock: impl FnMut() -> Result<(), TryLockError>) -> io::Result<bool> {
    uninterrupted(|| match lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    })
}

/// Does it again as long as signals interrupt it: the standard library does not, for locks.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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
