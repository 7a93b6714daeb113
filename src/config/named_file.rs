//! Reading a file that an option names: the settings, tokens, certificates, passwords.
//!
//! Never waits for a writer and never reads without end. The loop reads such files on SIGHUP, so a
//! FIFO at one of these paths must not block it.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The contents of a regular file, or the first `bytes_max` + 1 bytes of a longer one: callers refuse
/// that as too long. Symbolic links are followed.
///
/// # Errors
/// The file cannot be read, or is a FIFO, a device, a directory or a socket.
pub(crate) fn read_named_file(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // Opening a FIFO waits for its writer, unless it is opened so. Regular files do not care.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    #[test]
    fn regular_file_is_read_up_to_its_limit_also_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "12345").unwrap();
        symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            assert_eq!(read_named_file(path, 5).unwrap(), b"12345");
            assert_eq!(read_named_file(path, 3).unwrap(), b"1234", "one byte more");
        }
        assert!(read_named_file(&dir.path().join("missing"), 5).is_err());
    }

    #[test]
    fn nothing_else_is_read_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        mkfifoat(CWD, in_dir("fifo"), 0o600.into()).unwrap();
        symlink(in_dir("fifo"), in_dir("link")).unwrap();
        let _listener = UnixListener::bind(in_dir("socket")).unwrap();
        for path in [
            in_dir("fifo"),
            in_dir("link"),
            in_dir("socket"),
            dir.path().to_owned(),
            "/dev/null".into(),
            "/dev/zero".into(),
            "/dev/tty".into(),
        ] {
            assert!(read_named_file(&path, 5).is_err(), "{}", path.display());
        }
    }
}
