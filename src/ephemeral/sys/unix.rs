//! Linux, macOS and other Unix systems: everything by a descriptor of the directory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::{FileId, NotAFile, Seen, tried, uninterrupted};

/// The directory of a lock file. It stays the same, whatever becomes of its name or of links to it.
#[derive(Debug)]
pub(in crate::ephemeral) struct Dir {
    fd: OwnedFd,
}

impl Dir {
    pub(in crate::ephemeral) fn open(path: &Path) -> io::Result<Self> {
        let flags = dir_flags() | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| fs::open(path, flags, Mode::empty()))?;
        Ok(Self { fd })
    }

    /// The type of the file system, if it is one of a network.
    #[cfg(target_os = "linux")]
    pub(in crate::ephemeral) fn network_file_system(&self) -> io::Result<Option<String>> {
        super::network::network_file_system(self.fd.as_fd())
    }

    /// Not known here: the one who chooses the path has to know.
    #[cfg(not(target_os = "linux"))]
    pub(in crate::ephemeral) fn network_file_system(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// What has this name in the directory now, if anything has.
    pub(in crate::ephemeral) fn look(
        &self,
        name: &Path,
        is_on_network: bool,
    ) -> io::Result<Option<Seen>> {
        look_from(&self.fd, name, is_on_network)
    }

    /// Opens the file for reading and writing. If it is missing it is made with these permissions;
    /// `None`: there are none.
    #[allow(
        clippy::unnecessary_cast,
        reason = "not everywhere are permissions as long as here"
    )]
    pub(in crate::ephemeral) fn open_file(
        &self,
        name: &Path,
        permissions: Option<u32>,
    ) -> io::Result<Option<File>> {
        // Also for a shared lock it is opened for writing: to let go of it is to try to be alone.
        let make = permissions.map_or(OFlags::empty(), |_| OFlags::CREATE);
        let flags = OFlags::RDWR | make | careful_flags();
        let mode = Mode::from_raw_mode(permissions.unwrap_or(0) as RawMode);
        match retry_on_intr(|| fs::openat(&self.fd, name, flags, mode)) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) if permissions.is_none() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the name away, whatever has it. Says whether anything had it.
    pub(in crate::ephemeral) fn remove(&self, name: &Path, _file: &File) -> io::Result<bool> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// What is at a path now, if anything is.
pub(in crate::ephemeral) fn look(path: &Path, is_on_network: bool) -> io::Result<Option<Seen>> {
    look_from(fs::CWD, path, is_on_network)
}

fn look_from(dir: impl AsFd, path: &Path, is_on_network: bool) -> io::Result<Option<Seen>> {
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
        Ok(stat) => Ok(Some(seen_of(&stat))),
        // Over a network another machine may have removed it, and a link leads to something else.
        Err(Errno::NOENT | Errno::STALE | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What an open file is; `None` if another machine has removed it.
pub(in crate::ephemeral) fn see(file: &File) -> io::Result<Option<Seen>> {
    match fs::fstat(file) {
        Ok(stat) => Ok(Some(seen_of(&stat))),
        Err(Errno::STALE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[allow(
    clippy::unnecessary_cast,
    reason = "not everywhere are these numbers as long as here"
)]
fn seen_of(stat: &Stat) -> Seen {
    let id = FileId {
        device: stat.st_dev as u64,
        number: stat.st_ino as u64,
    };
    let not_a_file = match FileType::from_raw_mode(stat.st_mode as RawMode) {
        FileType::RegularFile => None,
        FileType::Symlink => Some(NotAFile::Link),
        FileType::Directory => Some(NotAFile::Other("a directory")),
        FileType::Fifo => Some(NotAFile::Other("a pipe")),
        FileType::Socket => Some(NotAFile::Other("a socket")),
        _ => Some(NotAFile::Other("a device")),
    };
    let bytes = stat.st_size as u64;
    Seen {
        id,
        not_a_file,
        bytes,
    }
}

/// Why nothing at this path can be a lock file, as its name tells.
pub(in crate::ephemeral) fn unusable(_path: &Path) -> Option<&'static str> {
    None
}

/// What is at the path in place of a file, if the error of an open says so.
pub(in crate::ephemeral) fn in_the_way(error: &io::Error) -> Option<NotAFile> {
    match Errno::from_raw_os_error(error.raw_os_error()?) {
        Errno::LOOP => Some(NotAFile::Link),
        Errno::ISDIR => Some(NotAFile::Other("a directory")),
        Errno::NXIO => Some(NotAFile::Other("a socket or a device")),
        _ => None,
    }
}

/// Whether the same open may succeed in a moment.
pub(in crate::ephemeral) fn may_pass(_error: &io::Error) -> bool {
    false
}

/// Whether this file system has no locks.
pub(in crate::ephemeral) fn has_no_locks(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    error.kind() == ErrorKind::Unsupported
        || matches!(errno, Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Turns a shared lock into an exclusive one, unless others have it. Then the shared one is lost,
/// too, or not: only whoever lets go may ask.
pub(in crate::ephemeral) fn try_alone(file: &File) -> io::Result<bool> {
    tried(|| file.try_lock())
}

pub(in crate::ephemeral) fn unlock(file: &File) -> io::Result<()> {
    uninterrupted(|| file.unlock())
}

/// Ends the lock, also if there are copies of the descriptor, such as those which a process that is
/// being started has for a moment.
pub(in crate::ephemeral) fn end(file: File) -> io::Result<()> {
    unlock(&file)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_told_from_a_failure() {
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS] {
            assert!(has_no_locks(&errno.into()), "{errno}");
        }
        for errno in [Errno::IO, Errno::BADF, Errno::STALE] {
            assert!(!has_no_locks(&errno.into()), "{errno}");
        }
        assert!(has_no_locks(&ErrorKind::Unsupported.into()));
    }

    #[test]
    fn what_was_not_opened_is_named() {
        let kind = |errno: Errno| in_the_way(&errno.into());
        assert_eq!(kind(Errno::LOOP), Some(NotAFile::Link));
        assert_eq!(kind(Errno::ISDIR), Some(NotAFile::Other("a directory")));
        assert!(matches!(kind(Errno::NXIO), Some(NotAFile::Other(_))));
        for errno in [
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::NOSPC,
            Errno::NOENT,
        ] {
            assert_eq!(kind(errno), None, "{errno}");
        }
    }
}
