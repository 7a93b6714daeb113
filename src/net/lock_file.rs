//! The lock file beside a unix socket: only its holder may take the socket's path.
//!
//! Whether a socket file is dead can only be asked and acted upon in two steps, so two daemons that
//! start together could both find it dead and the second would remove what the first has just made.
//! The lock is the kernel's (`flock`) and ends with the process, however that ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Held until it is dropped; then the file goes too.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl LockFile {
    /// Takes the lock of a socket's path, without waiting.
    ///
    /// # Errors
    /// `AddrInUse` when another process has it; otherwise what the system says.
    pub(super) fn of(socket: &Path) -> io::Result<Self> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                // A link could lead anywhere, and a pipe without a reader would block.
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
                .open(&path)
                .map_err(|error| explained(error, &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let why = "it is in use by a running daemon";
                    return Err(io::Error::new(ErrorKind::AddrInUse, why));
                }
                result => result?,
            }
            // The one who held it may have removed the file after we opened it. Then somebody else
            // can lock a new one, so ours counts for nothing.
            if is_at(&file, &path) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // still locked: nobody else holds this one
    }
}

/// Adds what an operator can do about a lock file that somebody else has left, or still has.
fn explained(error: io::Error, path: &Path) -> io::Error {
    let Ok(file) = fs::symlink_metadata(path) else {
        return error; // then it could not be made, and the system says why
    };
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let why = format!(
        "the lock file {} belongs to user {}: \
         start latchd as that user, or remove the file if no daemon of theirs is running ({error})",
        path.display(),
        file.uid()
    );
    io::Error::new(error.kind(), why)
}

/// Whether the file is still the one at the path.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_of_somebody_else_is_named_with_its_owner_and_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latchd.sock.lock");
        let denied = || io::Error::from(ErrorKind::PermissionDenied);
        let without = explained(denied(), &path).to_string();
        assert_eq!(without, denied().to_string(), "the directory is meant");
        let owner = File::create(&path).unwrap().metadata().unwrap().uid();
        let error = explained(denied(), &path);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let said = error.to_string();
        let named = format!("the lock file {} belongs to user {owner}: ", path.display());
        assert!(said.starts_with(&named), "{said}");
        assert!(said.contains("remove the file if no daemon of theirs is running"));
        assert!(
            !explained(ErrorKind::IsADirectory.into(), &path)
                .to_string()
                .contains("user")
        );
    }
}
