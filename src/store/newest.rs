//! `LOCK` says which segment is the newest: it keeps a copy of that segment's header.
//!
//! No file behind the newest segment could tell that it is missing. A segment gets its name, then
//! the copy is synced, then the segment takes its first record. So a crash never leaves a copy
//! without its segment. A directory whose newest segment is older than the copy is not whole.
//!
//! The first segment of a life is copied twice: so one damaged copy never hides a missing segment
//! of a new directory.
//!
//! ```text
//! LOCK                                at  bytes
//!   process number, newline, zeros     0    512   for people
//!   a copy of a segment's header     512     64   ┐ written in turn: a power loss can tear
//!   zeros                            576    448   │ only one of them
//!   a copy of a segment's header    1024     64   ┘
//! ```
//!
//! A directory of an earlier release has no copy, and is read without it. A backup of a live
//! directory may copy `LOCK` before or after the segments. If it is copied later it may name a
//! segment that the backup does not have: then the backup is refused.

use std::io;

use super::disk::{Disk, DiskFile};
use super::format::{BadHeader, HEADER_BYTES, Header};
use super::load::LoadError;
use super::read::read_full;

/// The file that is locked by the process that uses the directory.
pub(super) const LOCK: &str = "LOCK";

/// How long the part with the process number is.
pub(super) const PROCESS_BYTES: usize = 512;

/// Where the two copies are: in sectors of their own.
const SLOTS: [u64; 2] = [PROCESS_BYTES as u64, 2 * PROCESS_BYTES as u64];

/// How long the file is.
pub(super) const LOCK_BYTES: u64 = SLOTS[1] + HEADER_BYTES as u64;

/// The header of the newest segment, if `LOCK` has it.
///
/// # Errors
/// The disk does not answer, a later release wrote it, or there is something that is no copy.
pub(super) fn read<D: Disk>(disk: &D) -> Result<Option<Header>, LoadError> {
    let file = match disk.look_at(LOCK) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LoadError::io(LOCK)(error)),
    };
    let slots = read_slots(&file).map_err(LoadError::io(LOCK))?;
    if let Some(version) = slots.iter().find_map(Slot::too_new) {
        let file = LOCK.to_owned();
        return Err(LoadError::TooNew { file, version });
    }
    match highest(&slots) {
        Some((_, header)) => Ok(Some(header)),
        // The first copy of a new directory may be torn; later there is always a whole one.
        None if slots.contains(&Slot::Empty) => Ok(None),
        None => Err(super::load::damage(
            LOCK,
            SLOTS[0],
            1,
            "it does not say which segment is the newest",
        )),
    }
}

/// `LOCK`, open to be written.
#[derive(Debug)]
pub(super) struct Newest<F> {
    file: F,
    /// The place that is written next.
    slot: usize,
}

impl<F: DiskFile> Newest<F> {
    /// Opens the file, or makes it, and takes the room for both copies.
    pub(super) fn open<D: Disk<File = F>>(disk: &D) -> io::Result<Self> {
        let file = match disk.open(LOCK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(LOCK)?,
            result => result?,
        };
        file.allocate(LOCK_BYTES)?;
        let slot = highest(&read_slots(&file)?).map_or(0, |(slot, _)| 1 - slot);
        Ok(Self { file, slot })
    }

    /// Whether the file still has its name: see [`Disk::check_name`].
    pub(super) fn check_name<D: Disk<File = F>>(&self, disk: &D) -> io::Result<()> {
        disk.check_name(LOCK, &self.file)
    }

    /// Writes the copy, in place of the older one.
    pub(super) fn write(&mut self, header: &Header) -> io::Result<()> {
        self.file.write_at(&header.encode(), SLOTS[self.slot])
    }

    /// Waits until the copy is on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync()?;
        self.slot = 1 - self.slot;
        Ok(())
    }
}

/// What is in one of the two places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Empty,
    Copy(Header),
    TooNew(u32),
    Bad,
}

impl Slot {
    fn too_new(&self) -> Option<u32> {
        match self {
            Self::TooNew(version) => Some(*version),
            Self::Empty | Self::Copy(_) | Self::Bad => None,
        }
    }
}

fn read_slots(file: &impl DiskFile) -> io::Result<[Slot; 2]> {
    let mut slots = [Slot::Empty; 2];
    for (slot, at) in slots.iter_mut().zip(SLOTS) {
        let mut bytes = [0; HEADER_BYTES];
        read_full(file, &mut bytes, at)?;
        *slot = match Header::decode(&bytes) {
            _ if bytes.iter().all(|&byte| byte == 0) => Slot::Empty,
            Ok(header) => Slot::Copy(header),
            Err(BadHeader::TooNew(version)) => Slot::TooNew(version),
            Err(BadHeader::Damaged(_)) => Slot::Bad,
        };
    }
    Ok(slots)
}

/// The copy of the later segment, and where it is.
fn highest(slots: &[Slot; 2]) -> Option<(usize, Header)> {
    let copies = slots
        .iter()
        .enumerate()
        .filter_map(|(at, slot)| match slot {
            Slot::Copy(header) => Some((at, *header)),
            Slot::Empty | Slot::TooNew(_) | Slot::Bad => None,
        });
    copies.max_by_key(|(_, header)| (header.life.epoch, header.number))
}
