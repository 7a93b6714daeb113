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
                .open(&path)?;
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

/// Whether the file is still the one at the path.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
