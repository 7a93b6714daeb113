//! The beginning of a life: look at everything, cut what was never finished, begin a segment.
//!
//! Nothing is changed before everything was read and found whole. The new epoch is on the disk when
//! [`begin`] returns: it is in the header of the new segment, which has its name only when that is
//! on the disk, and in the copy of that header in `LOCK`.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;

use super::disk::{Disk, DiskFile, Files};
use super::format::{Durability, FRAME_BYTES_MIN, FileKind, Frame, Life};
use super::load::{
    self, FileFound, Found, Listing, LoadError, Reading, Restore, Visitor, file_name,
};
use super::newest::{LOCK, PROCESS_BYTES};
use super::read::read_full;
use super::writer::{Closed, Trouble, Writer};
use crate::ephemeral::{self, EphemeralLock, Error, Guard};

/// Why a directory cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has it, with this number if that can be read. Nothing was touched.
    InUse(Option<u32>),
    /// The directory itself cannot be made or locked.
    Directory(io::Error),
    /// What is in it cannot be used. Nothing was changed.
    Load(LoadError),
    /// There is no room to begin.
    Full(String),
    /// The disk failed.
    Failed(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(Some(pid)) => write!(f, "it is in use by process {pid}"),
            Self::InUse(None) => f.write_str("it is in use by another process"),
            Self::Directory(error) => error.fmt(f),
            Self::Load(error) => error.fmt(f),
            Self::Full(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<LoadError> for OpenError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<Trouble> for OpenError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Full(why) => Self::Full(why),
            Trouble::Failed(why) => Self::Failed(why),
        }
    }
}

/// A life that has begun.
#[derive(Debug)]
pub struct Begun<D: Disk> {
    /// What it writes with.
    pub writer: Writer<D>,
    /// Its epoch and the rest.
    pub life: Life,
    /// What was there before.
    pub found: Found,
    /// The records that were there before.
    pub restore: Restore<D>,
}

/// What a new life has to be told.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// What it promises.
    pub durability: Durability,
    /// How long its segments are.
    pub segment_bytes: u64,
    /// A number that nobody else knows, for a directory that has none yet.
    pub salt: u32,
    /// The time of day, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// Begins a life on a disk that nobody else uses.
///
/// # Errors
/// The directory is damaged or of a later version, or the disk has no room or failed.
pub fn begin<D: Disk>(
    disk: D,
    beginning: Beginning,
    progress: &mut dyn FnMut(Reading),
) -> Result<Begun<D>, OpenError> {
    let mut listing = Listing::read(&disk)?;
    let visitor = Visitor {
        frame: &mut |_, _, _| {},
        progress,
        is_over: &|| false,
    };
    let found = load::read(&disk, &listing, visitor)?;
    let life = Life {
        epoch: found.life.map_or(0, |life| life.epoch) + 1,
        begun_ms: beginning.wall_ms,
        durability: beginning.durability,
        follows_loss: found.may_have_lost(),
        salt: found.life.map_or(beginning.salt, |life| life.salt),
    };
    for file in found.unsettled() {
        settle(&disk, file, life.salt).map_err(LoadError::io(&file.name))?;
    }
    let files = found.files.iter().map(|file| Closed {
        name: file.name.clone(),
        bytes: file.used_bytes,
    });
    let mut closed: Vec<Closed> = files.collect();
    let snapshot = listing.snapshot.as_ref().map(|_| closed.remove(0));
    let first = found.last + 1;
    let segment_bytes = beginning.segment_bytes;
    let writer = Writer::begin(
        disk.clone(),
        life,
        first - 1,
        segment_bytes,
        snapshot,
        closed,
    )?;
    for name in std::mem::take(&mut listing.leftovers) {
        let _ = disk.remove(&name); // the next start tries again
    }
    let name = file_name(FileKind::Segment, first);
    listing.segments.retain(|(known, _)| *known != name);
    listing.segments.push((name, first));
    Ok(Begun {
        writer,
        life,
        found,
        restore: Restore { disk, listing },
    })
}

/// Makes sure that what was read of a file is on the disk, and nothing else: it is about to be spoken
/// of, and the segment behind it says that it is there.
///
/// The process that wrote it may have been killed before it synced, or its sync has failed. After
/// that the system may take bytes for written that are not, and a sync would succeed and do nothing.
/// So what no mark proves to be on the disk is written once more.
fn settle<D: Disk>(disk: &D, found: &FileFound, salt: u32) -> io::Result<()> {
    let file = disk.open(&found.name)?;
    let tail_bytes = found.used_bytes - found.proven_bytes;
    let mut tail = vec![0; tail_bytes as usize];
    let got = read_full(&file, &mut tail, found.proven_bytes)?;
    // The system may have had to read it from the disk since it was checked.
    if got < tail.len() || !are_frames(&tail, salt) {
        let why =
            "it is not as it was a moment ago, because an earlier write to it failed: start again";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if found.len_bytes > found.used_bytes {
        file.truncate(found.used_bytes)?;
    }
    if !tail.is_empty() {
        file.write_at(&tail, found.proven_bytes)?;
    }
    file.sync()
}

/// Whether this is nothing but frames.
fn are_frames(mut bytes: &[u8], salt: u32) -> bool {
    while !bytes.is_empty() {
        let frame = bytes.get(..FRAME_BYTES_MIN).and_then(Frame::length);
        let frame = frame.and_then(|length| bytes.get(..length));
        let Some(frame) = frame.and_then(|frame| Frame::decode(frame, salt)) else {
            return false;
        };
        bytes = &bytes[frame.len()..];
    }
    true
}

/// The directory is ours until this is dropped.
///
/// Both the directory and `LOCK` are locked. `LOCK` can be deleted or replaced; a daemon of an
/// earlier version locks nothing else.
#[derive(Debug)]
pub(super) struct DirLock {
    /// The directory, which is locked itself.
    disk: Files,
    /// The lock of `LOCK`. The file stays when we go: the directory is there to stay, too.
    guard: Guard,
}

impl DirLock {
    /// Makes the directory if it is missing, and takes it, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, OpenError> {
        if !dir.is_dir() {
            make_dir(dir).map_err(OpenError::Directory)?;
        }
        Self::take_existing(dir)
    }

    /// The same for a directory that has to be there.
    pub(super) fn take_existing(dir: &Path) -> Result<Self, OpenError> {
        let in_use = || OpenError::InUse(Self::holder(dir).pid);
        let disk = Files::open(dir).map_err(OpenError::Directory)?;
        if !disk.try_lock().map_err(OpenError::Directory)? {
            return Err(in_use());
        }
        let guard = match lock_in(dir).try_acquire() {
            Ok(guard) => guard,
            Err(Error::Busy { .. }) => return Err(in_use()),
            Err(error) => return Err(not_locked(error)),
        };
        // For people, and where the system does not tell; the lock is what counts.
        if let Ok(copy) = guard.as_fd().try_clone_to_owned() {
            let mut process = format!("{}\n", std::process::id()).into_bytes();
            process.resize(PROCESS_BYTES, 0);
            // What stands behind it counts, and stays.
            let _ = File::from(copy).write_all_at(&process, 0);
        }
        Ok(Self { disk, guard })
    }

    /// Fails if `LOCK` is there and cannot be used. Makes and locks nothing.
    pub(super) fn check_file(dir: &Path) -> Result<(), OpenError> {
        lock_in(dir).check().map_err(not_locked)
    }

    /// The files of the directory.
    pub(super) fn disk(&self) -> Files {
        self.disk.clone()
    }

    /// Fails if `LOCK` is not the locked file any more: an earlier daemon could have it, too.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        match self.guard.is_in_place() {
            Ok(true) => Ok(()),
            Ok(false) => Err(OpenError::Failed(
                "LOCK was deleted, renamed or replaced".to_owned(),
            )),
            Err(error) => Err(OpenError::Directory(error)),
        }
    }

    /// Who has the directory, as far as can be seen without touching the lock.
    pub(super) fn holder(dir: &Path) -> Holder {
        // The dot leads to the directory also if its own path is that of a link.
        let holders = [LOCK, "."].map(|name| ephemeral::holders(dir.join(name)));
        let holders: Vec<_> = holders.into_iter().flatten().collect();
        let seen = holders.iter().flatten().find_map(|holder| holder.pid);
        let written = || {
            let mut bytes = [0; PROCESS_BYTES];
            let file = Files::open(dir).ok()?.look_at(LOCK).ok()?;
            read_full(&file, &mut bytes, 0).ok()?;
            let line = bytes.split(|&byte| byte == b'\n').next()?;
            str::from_utf8(line).ok()?.parse().ok()
        };
        Holder {
            pid: seen.or_else(written),
            is_locked: (!holders.is_empty()).then(|| holders.iter().any(|it| !it.is_empty())),
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        let _ = self.disk.unlock(); // the last clone of the descriptor ends it, too
    }
}

fn lock_in(dir: &Path) -> EphemeralLock {
    EphemeralLock::exclusive(dir.join(LOCK))
        .keep_file(true)
        // docs/operating.md says what a journal on a network file system is worth.
        .allow_network(true)
}

fn not_locked(error: Error) -> OpenError {
    OpenError::Directory(match error {
        Error::Io { source, .. } => source,
        error => error.into(),
    })
}

/// Who has a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process that has it, or had it last.
    pub pid: Option<u32>,
    /// Whether it is in use now; `None` where the system does not say.
    pub is_locked: Option<bool>,
}

/// A directory for us alone, which is still there after a power loss.
fn make_dir(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|it| !it.is_dir()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for parent in missing.iter().filter_map(|it| it.parent()) {
        let parent = match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}
