//! A new segment: its file takes its room, gets a header, and then its name.
//!
//! A file that cannot be finished is removed, so that it takes no room from others. Only the sync of
//! the name can fail in a way that leaves the directory in doubt.

use super::disk::{Disk, DiskFile};
use super::format::{FileKind, HEADER_BYTES, Header, Life};
use super::load::{UNFINISHED, file_name};
use super::spare::{Spare, spare_name};
use super::writer::Trouble;

/// Room for records in the shortest segment, in addition to the reserve.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The segment that is written.
#[derive(Debug)]
pub(super) struct Segment<F> {
    pub(super) name: String,
    /// The number of its first record, if one comes.
    pub(super) first: u64,
    pub(super) file: F,
    pub(super) used: u64,
    pub(super) room: u64,
    /// Whether it was a spare.
    pub(super) was_spare: bool,
    /// Whether `LOCK` says that it is the newest.
    pub(super) is_noted: bool,
}

impl<F: DiskFile> Segment<F> {
    /// A new segment of this length or, if there is no room for that, a shorter one.
    pub(super) fn make_fitting<D: Disk<File = F>>(
        disk: &D,
        life: Life,
        first: u64,
        wanted: u64,
        least: u64,
    ) -> Result<Self, Trouble> {
        let free = disk.free_bytes().unwrap_or(u64::MAX);
        let mut room = match free / 2 {
            _ if free >= wanted => wanted,
            // Other files need room as well, such as the next snapshot.
            half if half >= 2 * least => half,
            _ => free,
        };
        room = (room / PAGE_BYTES * PAGE_BYTES).clamp(least, wanted);
        loop {
            match Self::make(disk, life, first, room, None) {
                // Not every limit is known before.
                Err(Trouble::Full(_)) if room > least => room = (room / 4 * 3).max(least),
                result => return result,
            }
        }
    }

    /// A new segment with nothing but a header.
    pub(super) fn make<D: Disk<File = F>>(
        disk: &D,
        life: Life,
        first: u64,
        room: u64,
        spare: Option<Spare<F>>,
    ) -> Result<Self, Trouble> {
        let name = file_name(FileKind::Segment, first);
        let was_spare = spare.is_some();
        let unfinished = match was_spare {
            true => spare_name(),
            false => format!("{name}{UNFINISHED}"),
        };
        let header = Header {
            kind: FileKind::Segment,
            number: first,
            life,
        };
        let prepare = || {
            let (file, room) = match spare {
                Some(Spare { file, room }) => (file, room),
                None => {
                    let file = disk.create(&unfinished)?;
                    file.allocate(room)?;
                    (file, room)
                }
            };
            file.write_at(&header.encode(), 0)?;
            file.sync()?;
            disk.rename(&unfinished, &name)?;
            Ok((file, room))
        };
        let (file, room) = prepare().map_err(|error| {
            let _ = disk.remove(&unfinished); // or it would take the room that others need
            Trouble::of(&format!("cannot make {name}"), &error)
        })?;
        let named = disk.sync_names();
        named.map_err(|error| Trouble::failed(&format!("cannot keep {name}"), &error))?;
        Ok(Self {
            name,
            first,
            file,
            used: HEADER_BYTES as u64,
            room,
            was_spare,
            is_noted: false,
        })
    }
}
