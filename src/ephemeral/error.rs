//! Why a lock was not had: what, where, and what can be done about it.

use std::error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a lock was not had. Nothing is locked then, and no file was changed or removed.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("notes.txt");
/// use latchd::ephemeral::{EphemeralLock, Error};
///
/// std::fs::write(&path, "mine")?;
/// let error = EphemeralLock::exclusive(&path).try_acquire().unwrap_err();
/// assert!(matches!(error, Error::NotEmpty { bytes: 4, .. }));
/// assert_eq!(error.path().file_name(), path.file_name());
/// assert_eq!(std::fs::read(&path)?, b"mine");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds it, and we were not to wait, or have waited long enough.
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The file system has no locks, or none that can be relied on.
    Unsupported {
        /// The lock file.
        path: PathBuf,
        /// What there is instead.
        why: String,
    },
    /// There is a symbolic link at the path. It is not followed: whoever made it would decide which file
    /// is locked and removed.
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// What is at the path is no regular file.
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The file at the path has contents. Lock files are empty, so it is something else.
    NotEmpty {
        /// The file.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
    },
    /// The system refused.
    Io {
        /// The lock file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Which lock file it is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Busy { path }
            | Self::Unsupported { path, .. }
            | Self::Symlink { path }
            | Self::NotRegular { path, .. }
            | Self::NotEmpty { path, .. }
            | Self::Io { path, .. } => path,
        }
    }

    /// For `map_err`: what the system said when we tried something.
    pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            path,
            doing,
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted and escaped: whoever chose a file's name does not choose what a log says.
        match self {
            Self::Busy { path } => write!(
                f,
                "{path:?} is locked by somebody else: try again later, or wait for it"
            ),
            Self::Unsupported { path, why } => write!(
                f,
                "{path:?} cannot be locked, because {why}: \
                 put the lock file on a local file system"
            ),
            Self::Symlink { path } => write!(
                f,
                "{path:?} is a symbolic link, which is not followed: \
                 remove it, or name the file it leads to"
            ),
            Self::NotRegular { path, what } => {
                write!(f, "{path:?} is {what} and no file: choose another path")
            }
            Self::NotEmpty { path, bytes } => write!(
                f,
                "{path:?} is no lock file, because it has {bytes} bytes: \
                 choose another path, or remove it if nobody needs it"
            ),
            Self::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "cannot {doing} {path:?}: {source}")?;
                f.write_str(advice(source))
            }
        }
    }
}

/// What can be done about an error of the system, where it does not say so itself.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its directory first",
        io::ErrorKind::PermissionDenied => {
            "; the lock file and its directory have to be writable for everybody who locks it"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; choose a path on a file system that can be written",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there",
        _ => "",
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// For those who only know errors of the system: the kind is the nearest one, the text is ours.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Busy { .. } => io::ErrorKind::WouldBlock,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::Symlink { .. } | Error::NotRegular { .. } | Error::NotEmpty { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}
