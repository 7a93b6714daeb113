//! What the journal needs of a disk, and the disk of the system.
//!
//! Small on purpose: a disk that loses, tears and refuses writes is the other implementor
//! (`fault_disk.rs`). What is written is there after a crash only if it was synced, and so are
//! names: a file that was created, renamed or removed is so after a crash only after
//! [`Disk::sync_names`].

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstat, fstatvfs,
    linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

/// One directory.
pub trait Disk: Clone + fmt::Debug {
    /// A file of it, open.
    type File: DiskFile;

    /// The names of all files.
    ///
    /// # Errors
    /// What the system says; likewise below.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new, empty file in place of any that has the name, for reading and writing.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// A file as it is, for reading and changing.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// A file as it is, for reading only.
    fn look_at(&self, name: &str) -> io::Result<Self::File>;
    /// Gives a file another name, in place of any file that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Gives a file a second name, which nothing has yet.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until all names are on the disk as they are now. Needs no descriptor.
    fn sync_names(&self) -> io::Result<()>;
    /// Whether this name still leads to this open file.
    ///
    /// # Errors
    /// The file or the directory was deleted, renamed or replaced, or the system does not answer.
    fn check_name(&self, name: &str, file: &Self::File) -> io::Result<()>;
    /// How many bytes new files can take, as far as the file system says: quotas and limits on the
    /// size of a file may allow less.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: fmt::Debug {
    /// How long it is.
    ///
    /// # Errors
    /// What the system says; likewise below.
    fn len(&self) -> io::Result<u64>;
    /// Reads up to as many bytes as fit; 0 at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of it. After an error any part of it may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes sure that there is room up to this length. New bytes are zeros.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Cuts the file.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Waits until bytes and length are on the disk. After an error nothing is known about what was
    /// written since the last sync, and a second try would tell nothing.
    fn sync(&self) -> io::Result<()>;

    /// Whether there is nothing in it.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// What there is too little of now, and may be enough of later. Nothing is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Room on the disk, under a quota, or under a limit on the size of files.
    Room,
    /// Descriptors or memory.
    Descriptors,
}

impl Lack {
    /// What an error is about, unless it means that something failed.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Some(Self::Room),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Some(Self::Descriptors),
            _ => None,
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "the disk is full",
            Self::Descriptors => "descriptors have run out",
        })
    }
}

/// A directory of the system. It stays open, so that its names can be synced when no descriptor is
/// to be had, and all files are in the same directory, whatever becomes of its path.
#[derive(Clone, Debug)]
pub struct Files {
    dir: Arc<File>,
}

impl Files {
    /// The files of a directory, which exists.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = Arc::new(File::open(path)?);
        Ok(Self { dir })
    }

    /// Locks the directory itself, or says that another process has. The lock ends with
    /// [`Files::unlock`] or with the process.
    pub(super) fn try_lock(&self) -> io::Result<bool> {
        let lock = || flock(&*self.dir, FlockOperation::NonBlockingLockExclusive);
        match retry_on_intr(lock) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            result => Ok(result.map(|()| true)?),
        }
    }

    /// Ends the lock, also if clones are left.
    pub(super) fn unlock(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| flock(&*self.dir, FlockOperation::Unlock))?)
    }

    /// Regular files only. To open a FIFO would wait for its other end, so nothing is waited for.
    fn open_as(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = Mode::RUSR | Mode::WUSR;
        let file: File = retry_on_intr(|| openat(&*self.dir, name, flags, mode))?.into();
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is not a regular file")),
        }
    }
}

impl Disk for Files {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&*self.dir)? {
            // A name that is not text is not one of ours.
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.open_as(name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        self.open_as(name, OFlags::RDWR)
    }

    fn look_at(&self, name: &str) -> io::Result<File> {
        self.open_as(name, OFlags::RDONLY)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&*self.dir, from, &*self.dir, to)?)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        if linkat(&*self.dir, from, &*self.dir, to, AtFlags::empty()).is_ok() {
            return Ok(());
        }
        // Not every file system has second names.
        let mut copy = self.create(to)?;
        io::copy(&mut self.look_at(from)?, &mut copy)?;
        copy.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&*self.dir, name, AtFlags::empty())?)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn check_name(&self, name: &str, file: &File) -> io::Result<()> {
        let file = fstat(file)?;
        match statat(&*self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if (named.st_dev, named.st_ino) == (file.st_dev, file.st_ino) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(io::Error::other(match fstat(&*self.dir)?.st_nlink {
                0 => "the data directory was deleted",
                _ => "the file was deleted, renamed or replaced",
            })),
            Err(error) => Err(error.into()),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = fstatvfs(&*self.dir)?;
        Ok(match stat.f_blocks {
            0 => u64::MAX, // a file system that does not say
            _ => stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|data| data.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, bytes, offset) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        loop {
            match fallocate(self, FallocateFlags::empty(), 0, len) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.fill_with_zeros(len),
                result => return Ok(result?),
            }
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// For file systems that cannot promise room: take it by writing.
trait FillWithZeros {
    fn fill_with_zeros(&self, len: u64) -> io::Result<()>;
}

impl FillWithZeros for File {
    fn fill_with_zeros(&self, len: u64) -> io::Result<()> {
        let zeros = [0; 1 << 16];
        let mut at = self.metadata()?.len();
        while at < len {
            let piece = (len - at).min(zeros.len() as u64);
            self.write_all_at(&zeros[..piece as usize], at)?;
            at += piece;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_zeros_however_it_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Files::open(dir.path()).unwrap();
        for name in ["a", "b"] {
            let file = disk.create(name).unwrap();
            DiskFile::write_at(&file, b"xyz", 0).unwrap();
            if name == "a" {
                file.allocate(100_000).unwrap();
            } else {
                file.fill_with_zeros(100_000).unwrap();
            }
            assert_eq!(DiskFile::len(&file).unwrap(), 100_000);
            let mut bytes = vec![1; 100_000];
            assert_eq!(DiskFile::read_at(&file, &mut bytes, 0).unwrap(), 100_000);
            assert_eq!(&bytes[..3], b"xyz");
            assert!(bytes[3..].iter().all(|&byte| byte == 0));
        }
        disk.rename("a", "c").unwrap();
        disk.remove("b").unwrap();
        disk.sync_names().unwrap();
        assert_eq!(disk.list().unwrap(), ["c"]);
    }
}
