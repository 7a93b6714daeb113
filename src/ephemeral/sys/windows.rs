//! Windows: everything by absolute paths, except the removal, which goes by the handle that has the lock.
//!
//! A removed file is delete-pending until that handle is closed, and cannot be opened: error 5, as without
//! permission. With POSIX semantics (Windows 10, NTFS) its name is gone at the close; otherwise it goes when
//! the last waiter has closed the file as well.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf, Prefix};

use fs_at::os::windows::FileExt;
use winapi_util::file::{information, typ};

use super::{FileId, NotAFile, Seen, tried};

// Of `CreateFileW`.
const DELETE: u32 = 0x1_0000;
const GENERIC_READ: u32 = 0x8000_0000;
const GENERIC_WRITE: u32 = 0x4000_0000;
const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x20_0000;
const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x200_0000;
// Of a file.
const FILE_ATTRIBUTE_DIRECTORY: u64 = 0x10;
const FILE_ATTRIBUTE_REPARSE_POINT: u64 = 0x400;
// Errors.
const ERROR_ACCESS_DENIED: i32 = 5;
const ERROR_SHARING_VIOLATION: i32 = 32;
const ERROR_LOCK_VIOLATION: i32 = 33;
const ERROR_DELETE_PENDING: i32 = 303;

/// The directory of a lock file, by its path: no handle keeps it where it is.
#[derive(Debug)]
pub(in crate::ephemeral) struct Dir {
    path: PathBuf,
}

impl Dir {
    pub(in crate::ephemeral) fn open(path: &Path) -> io::Result<Self> {
        let path = path.to_owned();
        path.metadata()?;
        Ok(Self { path })
    }

    /// Whether the directory is on another machine: a share, or a drive that is mapped to one.
    pub(in crate::ephemeral) fn network_file_system(&self) -> io::Result<Option<String>> {
        let resolved = self.path.canonicalize()?;
        Ok(is_share(&resolved).then(|| "network share".to_owned()))
    }

    /// What has this name in the directory now, if anything has.
    pub(in crate::ephemeral) fn look(
        &self,
        name: &Path,
        is_on_network: bool,
    ) -> io::Result<Option<Seen>> {
        look(&self.path.join(name), is_on_network)
    }

    /// Opens the file for reading, writing and removing. If it is missing it is made, with the access rights
    /// that it inherits; `None`: there are no permissions.
    pub(in crate::ephemeral) fn open_file(
        &self,
        name: &Path,
        permissions: Option<u32>,
    ) -> io::Result<Option<File>> {
        let opened = OpenOptions::new()
            .write(true)
            .create(permissions.is_some())
            .truncate(false)
            .access_mode(GENERIC_READ | GENERIC_WRITE | DELETE)
            .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
            .open(self.path.join(name));
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound && permissions.is_none() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Marks the locked file as removed: its name is gone when `file` is closed, and it cannot be opened
    /// until then. Says whether it had a name.
    pub(in crate::ephemeral) fn remove(&self, _name: &Path, file: &File) -> io::Result<bool> {
        match file.try_clone()?.delete_by_handle() {
            Ok(()) => Ok(true),
            Err((_, error)) if is_going(&error) => Ok(false),
            Err((_, error)) => Err(error),
        }
    }
}

/// What is at a path now, if anything is that can be opened.
pub(in crate::ephemeral) fn look(path: &Path, _is_on_network: bool) -> io::Result<Option<Seen>> {
    let opened = OpenOptions::new()
        .access_mode(0) // attributes can be read without any right
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS)
        .open(path);
    match opened {
        Ok(file) => see(&file),
        Err(error) if error.kind() == ErrorKind::NotFound || may_pass(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an open file is; `None` if it is removed already.
pub(in crate::ephemeral) fn see(file: &File) -> io::Result<Option<Seen>> {
    let info = match information(file) {
        Ok(info) => info,
        Err(error) if is_going(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let has = |attribute| info.file_attributes() & attribute != 0;
    let not_a_file = if has(FILE_ATTRIBUTE_REPARSE_POINT) {
        Some(NotAFile::Link)
    } else if has(FILE_ATTRIBUTE_DIRECTORY) {
        Some(NotAFile::Other("a directory"))
    } else if typ(file)?.is_disk() {
        None
    } else {
        Some(NotAFile::Other("a device"))
    };
    let id = FileId {
        device: info.volume_serial_number(),
        number: info.file_index(),
    };
    let bytes = info.file_size();
    Ok(Some(Seen {
        id,
        not_a_file,
        bytes,
    }))
}

/// Why nothing at this path can be a lock file, as its name tells.
pub(in crate::ephemeral) fn unusable(path: &Path) -> Option<&'static str> {
    let is_device = matches!(
        path.components().next(),
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::DeviceNS(_))
    );
    let name = path.file_name().unwrap_or_default();
    if is_device {
        Some("a device")
    } else if name.as_encoded_bytes().contains(&b':') {
        Some("a stream of a file")
    } else {
        None
    }
}

/// What is at the path in place of a file, if the error of an open says so: none does.
pub(in crate::ephemeral) fn in_the_way(_error: &io::Error) -> Option<NotAFile> {
    None
}

/// Whether the same open may succeed in a moment: another process is removing the file, or a scanner
/// has it open for itself.
pub(in crate::ephemeral) fn may_pass(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    is_going(error) || matches!(code, Some(ERROR_ACCESS_DENIED | ERROR_SHARING_VIOLATION))
}

/// Whether this file system has no locks.
pub(in crate::ephemeral) fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported
}

/// Gives the shared lock up and tries to lock the file exclusively. A handle with both locks would
/// have to wait for itself.
pub(in crate::ephemeral) fn try_alone(file: &File) -> io::Result<bool> {
    unlock(file)?;
    tried(|| file.try_lock())
}

pub(in crate::ephemeral) fn unlock(file: &File) -> io::Result<()> {
    match file.unlock() {
        // The standard library unlocks twice, and wine says this of the second time.
        Err(error) if error.raw_os_error() == Some(ERROR_LOCK_VIOLATION) => Ok(()),
        result => result,
    }
}

/// Ends the lock and the name of a removed file, in one step for all other processes. To unlock before
/// could let another process lock a file that still has its name.
pub(in crate::ephemeral) fn end(file: File) -> io::Result<()> {
    drop(file);
    Ok(())
}

fn is_going(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_DELETE_PENDING)
}

fn is_share(resolved: &Path) -> bool {
    matches!(
        resolved.components().next(),
        Some(Component::Prefix(prefix))
            if matches!(prefix.kind(), Prefix::UNC(..) | Prefix::VerbatimUNC(..))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_on_another_machine_is_a_share() {
        assert!(is_share(Path::new(r"\\?\UNC\server\share\dir")));
        assert!(is_share(Path::new(r"\\server\share\dir")));
        assert!(!is_share(Path::new(r"\\?\C:\dir")));
        assert!(!is_share(Path::new(r"C:\dir")));
    }
}
