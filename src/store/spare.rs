//! The next segment's file, made while the present one is written.
//!
//! Room that was only promised to a file costs when it is written first: with the bytes, the file
//! system has to keep that they are written, and a sync waits for both. In a spare every byte was
//! written before, so a sync has only the new bytes to write. It is made piece by piece and each
//! piece is synced, so that no sync of the journal finds much before it.

use std::io;

use rustix::io::Errno;

use super::disk::{Disk, DiskFile};
use super::format::FileKind;
use super::load::{UNFINISHED, file_name};

/// How much is written between two syncs.
const PIECE_BYTES: usize = 1 << 18;

/// A file with nothing but zeros, all of them on the disk.
#[derive(Debug)]
pub struct Spare<F> {
    pub(super) file: F,
    pub(super) room: u64,
}

/// What is to be made. It can be made on another thread than the writer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareJob {
    pub(super) room: u64,
    /// No spare is made if it would leave less room than this.
    pub(super) leave_bytes: u64,
}

impl SpareJob {
    /// Makes it, unless `is_over` says that nobody wants it any more.
    ///
    /// # Errors
    /// What the system says. Nothing is left then, and nothing is lost: a segment can be made without.
    pub fn run<D: Disk>(self, disk: &D, is_over: &dyn Fn() -> bool) -> io::Result<Spare<D::File>> {
        let result = self.make(disk, is_over);
        if result.is_err() {
            let _ = disk.remove(&spare_name()); // or it would take the room that others need
        }
        result
    }

    fn make<D: Disk>(self, disk: &D, is_over: &dyn Fn() -> bool) -> io::Result<Spare<D::File>> {
        if disk.free_bytes()? < self.room + self.leave_bytes {
            return Err(Errno::NOSPC.into());
        }
        let file = disk.create(&spare_name())?;
        file.allocate(self.room)?;
        let zeros = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < self.room {
            if is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let piece = (self.room - at).min(PIECE_BYTES as u64);
            file.write_at(&zeros[..piece as usize], at)?;
            file.sync()?;
            at += piece;
        }
        let room = self.room;
        Ok(Spare { file, room })
    }
}

/// Its name: that of a segment without records which is not finished, so that the next life removes
/// it. No record has the number 0.
pub(super) fn spare_name() -> String {
    let name = file_name(FileKind::Segment, 0);
    format!("{name}{UNFINISHED}")
}
