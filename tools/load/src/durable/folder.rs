//! The directory on the disk that is measured: made for this, and removed at the end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use latchd::store::Entry;
use latchd::store::format::{Frame, HEADER_BYTES, Header};

/// A new directory below the one that is named, or below the system's one for such things.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes it.
    pub(super) fn make(below: Option<&Path>) -> io::Result<Self> {
        let below = below.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = below.join(format!("latch-load-{:016x}", fastrand::u64(..)));
        let made = fs::create_dir_all(&path).and_then(|()| path.canonicalize());
        let path = made.map_err(|error| {
            let what = format!("--dir {}: {error}", below.display());
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A new and empty directory in it, in place of the one that had the name.
    pub(super) fn new_place(&self, name: &str) -> io::Result<PathBuf> {
        let place = self.place(name);
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&place)?,
        }
        Ok(place)
    }

    /// The directory with that name.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.path.join(name.replace(' ', "-"))
    }

    /// The kind of file system, if the system says so.
    pub(super) fn file_system(&self) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        kind_of(&mounts, &self.path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // whoever looks at it will see what it is
    }
}

/// The file system that the path is on: of what is mounted above it, the nearest, and of those that
/// are mounted in one place, the last.
fn kind_of(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let place = Path::new(words.next()?);
        let depth = place.components().count();
        path.starts_with(place).then_some((depth, words.next()?))
    });
    let (_, kind) = mounts.max_by_key(|it| it.0)?;
    Some(kind.to_owned())
}

/// How much room all files of a directory take on the disk, preallocated room included.
pub(super) fn bytes_on_disk(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in dir.read_dir()? {
        match entry?.metadata() {
            Ok(data) => bytes += data.blocks() * 512,
            // Compaction removes files meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// How many records were written with one sync: the mean of those whose segments are still there.
pub(super) fn records_per_batch(dir: &Path) -> io::Result<Option<f64>> {
    let (mut records, mut batches) = (0, 0);
    for entry in dir.read_dir()? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "log") {
            continue;
        }
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let Ok(header) = Header::decode(&bytes) else {
            continue;
        };
        let mut rest = &bytes[HEADER_BYTES..];
        while let Some(frame) = first_frame(rest, header.life.salt) {
            match frame.entry() {
                Some(Entry::Mark { .. }) => batches += 1,
                _ => records += 1,
            }
            rest = &rest[frame.len()..];
        }
    }
    Ok((batches > 0).then(|| f64::from(records) / f64::from(batches)))
}

/// The frame that these bytes begin with: the length is in its second four bytes.
fn first_frame(bytes: &[u8], salt: u32) -> Option<Frame<'_>> {
    let length = bytes.get(4..8)?.try_into().ok()?;
    let length = u32::from_le_bytes(length) as usize;
    Frame::decode(bytes.get(..length)?, salt)
}

/// A file of this length in it, written once and synced.
pub(super) fn written_file(dir: &Path, name: &str, length: usize) -> io::Result<File> {
    use std::os::unix::fs::FileExt;

    let path = dir.join(name);
    let file = File::create(path)?;
    file.write_all_at(&vec![0; length], 0)?;
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_says_what_a_path_is_on() {
        let mounts = "/dev/a / ext4 rw 0 0\nb /tmp tmpfs rw 0 0\nc /tmpx xfs rw 0 0\n";
        for (path, kind) in [
            ("/home/x", Some("ext4")),
            ("/tmp/x/y", Some("tmpfs")),
            ("/tmpx", Some("xfs")),
        ] {
            assert_eq!(kind_of(mounts, Path::new(path)).as_deref(), kind, "{path}");
        }
        assert_eq!(kind_of("", Path::new("/")), None);
    }

    #[test]
    fn a_folder_is_gone_with_its_owner() {
        let folder = Folder::make(None).unwrap();
        let place = folder.new_place("in memory").unwrap();
        fs::write(place.join("file"), "text").unwrap();
        assert!(bytes_on_disk(&place).unwrap() > 0);
        assert_eq!(records_per_batch(&place).unwrap(), None);
        let again = folder.new_place("in memory").unwrap();
        assert!(!again.join("file").exists());
        drop(folder);
        assert!(!again.exists());
    }
}
