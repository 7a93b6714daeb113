//! The lock file beside a unix socket: only its holder may take the socket's path.
//!
//! Whether a socket file is dead can only be asked and acted upon in two steps, so two daemons that
//! start together could both find it dead and the second would remove what the first has just made.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ephemeral::{EphemeralLock, Error, Guard};

/// Takes the lock of a socket's path, without waiting. The file goes when it is dropped.
///
/// # Errors
/// `AddrInUse` when another process has it; otherwise what the system says.
pub(super) fn lock_of(socket: &Path) -> io::Result<Guard> {
    let lock = lock_beside(socket);
    lock.try_acquire().map_err(|error| refused(error, &lock))
}

/// Fails if the lock file of a socket's path is there and cannot be used. Makes and locks nothing.
///
/// # Errors
/// What [`lock_of`] would say, except that another process has it.
pub(crate) fn check_lock_beside(socket: &Path) -> io::Result<()> {
    let lock = lock_beside(socket);
    lock.check().map_err(|error| refused(error, &lock))
}

fn lock_beside(socket: &Path) -> EphemeralLock {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    // Wherever it is: no other machine can serve this socket.
    EphemeralLock::exclusive(PathBuf::from(name)).allow_network(true)
}

fn refused(error: Error, lock: &EphemeralLock) -> io::Error {
    match error {
        Error::Busy { .. } => {
            let why = "it is in use by a running daemon";
            io::Error::new(ErrorKind::AddrInUse, why)
        }
        Error::Io { source, .. } => explained(source, lock.path()),
        other => other.into(),
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

#[cfg(test)]
mod tests {
    use std::fs::File;

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
