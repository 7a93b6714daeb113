//! One lock file: where it is, how it is opened, locked, recognized and removed.
//!
//! What the system can do is in [`sys`]; which of it may be done to which file is decided here. Locks and
//! removes only what is the locked file, and empty.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::sys::{self, Dir, FileId, NotAFile, Seen, tried, uninterrupted};
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
        let refused = |what| {
            let path = given.to_owned();
            Err(Error::NotRegular { path, what })
        };
        let last = given.as_os_str().as_encoded_bytes().last();
        let is_dir = last.is_some_and(|it| std::path::is_separator(char::from(*it)));
        if is_dir || given.file_name().is_none() {
            return refused("the name of a directory");
        }
        let path = std::path::absolute(given).map_err(Error::io(given, "find"))?;
        if let Some(what) = sys::unusable(&path) {
            return refused(what);
        }
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

/// The directory of a lock file.
#[derive(Debug)]
pub(super) struct LockDir {
    dir: Dir,
    is_on_network: bool,
}

impl LockDir {
    fn open(path: &LockPath) -> Result<Self, Error> {
        let dir = Dir::open(path.dir()).map_err(Error::io(&path.path, "find the directory of"))?;
        let file_system = dir
            .network_file_system()
            .map_err(Error::io(&path.path, "find the file system of"))?;
        match file_system {
            Some(name) if !path.allow_network => Err(Error::Unsupported {
                path: path.path.clone(),
                why: on_network(&name),
            }),
            file_system => Ok(Self {
                dir,
                is_on_network: file_system.is_some(),
            }),
        }
    }

    /// What has this name here, if anything has.
    fn look(&self, path: &LockPath) -> io::Result<Option<Seen>> {
        self.dir.look(path.name(), self.is_on_network)
    }
}

/// Why a file there is refused.
pub(super) fn on_network(file_system: &str) -> String {
    format!(
        "it would be on a file system of type {file_system}, where a lock may hold on this machine \
         only, or not at all (EphemeralLock::allow_network takes it nevertheless)"
    )
}

impl Seen {
    /// Refuses what cannot be a lock file.
    fn check(&self, path: &LockPath, may_have_contents: bool) -> Result<(), Error> {
        match self.not_a_file {
            Some(what) => Err(not_a_file(what, path)),
            None if self.bytes > 0 && !may_have_contents => Err(Error::NotEmpty {
                path: path.path.clone(),
                bytes: self.bytes,
            }),
            None => Ok(()),
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
    /// Opens the file, and makes it with these permissions if it is missing. `None`: it went while
    /// it was opened, or it is missing and there are no permissions.
    pub(super) fn open(
        path: &LockPath,
        permissions: Option<u32>,
        may_have_contents: bool,
    ) -> Result<Option<Self>, Error> {
        let dir = LockDir::open(path)?;
        // To open something can do something: it lets a writer of a pipe go on, it starts a watchdog.
        let before = dir.look(path).map_err(Error::io(&path.path, "look at"))?;
        if let Some(before) = before {
            before.check(path, may_have_contents)?;
        }
        let file = match dir.dir.open_file(path.name(), permissions) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            Err(error) => return Err(not_opened(error, path)),
        };
        let Some(seen) = sys::see(&file).map_err(Error::io(&path.path, "look at"))? else {
            return Ok(None);
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
                let _ = locked.end();
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
        let seen = sys::look(&path.path, self.file.dir.is_on_network)?;
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

    /// Takes the name away. Says whether anything had it.
    pub(super) fn remove(&self, path: &LockPath) -> io::Result<bool> {
        self.file.dir.dir.remove(path.name(), self.as_file())
    }

    /// Turns a shared lock into an exclusive one, unless others have it. Then the shared one is lost,
    /// too, or not: only whoever lets go may ask.
    pub(super) fn try_alone(&self) -> io::Result<bool> {
        sys::try_alone(self.as_file())
    }

    /// Ends the lock and nothing else.
    pub(super) fn unlock(&self) -> io::Result<()> {
        sys::unlock(self.as_file())
    }

    /// Ends the lock, whatever has a copy of the descriptor.
    pub(super) fn end(self) -> io::Result<()> {
        sys::end(self.file.file)
    }
}

/// Whether a file that was not opened may be opened in a moment.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if sys::may_pass(source))
}

fn not_opened(error: io::Error, path: &LockPath) -> Error {
    match sys::in_the_way(&error) {
        Some(what) => not_a_file(what, path),
        None => Error::io(&path.path, "open")(error),
    }
}

fn not_a_file(what: NotAFile, path: &LockPath) -> Error {
    let path = path.path.clone();
    match what {
        NotAFile::Link => Error::Symlink { path },
        NotAFile::Other(what) => Error::NotRegular { path, what },
    }
}

fn not_locked(error: io::Error, path: &LockPath) -> Error {
    match sys::has_no_locks(&error) {
        true => Error::Unsupported {
            path: path.path.clone(),
            why: format!("its file system has no locks ({error})"),
        },
        false => Error::io(&path.path, "lock")(error),
    }
}
