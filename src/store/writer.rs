//! Writing: batches into segments, one write and one sync each.
//!
//! A plain state machine over a [`Disk`]; it has no thread and reads no clock. The journal's thread
//! steps it, and so does the simulator.
//!
//! A segment gets its room when it is made, so that a full disk is noticed before a batch is
//! written and not in the middle of one. It is left for the next when three quarters are used. On a
//! nearly full disk the next one is shorter. If there is no room for the shortest, the reserve at
//! the end of the present one takes releases.
//!
//! A segment has its name only when its header is on the disk, so one without a header cannot be the
//! work of a crash. It takes records only when `LOCK` has a copy of that header (`newest.rs`). A
//! [`Spare`] becomes the next segment; a segment that was not one is left for it as soon as it is
//! there.

use std::io;
use std::mem;

use super::compact::{Compacted, Job};
use super::disk::{Disk, DiskFile, Lack};
use super::entry::Clocks;
use super::format::{
    Durability, FileKind, HEADER_BYTES, Header, Life, MARK_BYTES, push_mark, push_record,
    push_stopped,
};
use super::newest::{LOCK_BYTES, Newest};
use super::segment::{PAGE_BYTES, Segment};
use super::spare::{Spare, SpareJob, spare_name};
use crate::engine::types::Record;

/// At the start on a nearly full disk a shorter segment will do, down to this.
const SEGMENT_BYTES_MIN: u64 = 1 << 16;

/// The least reserve for releases in a shorter segment: as much as the journal queues before
/// changes have to wait. Less if a quarter of the life's first segment is less.
const RESERVE_BYTES: u64 = 1 << 20;

/// When a compaction failed for want of room, it is tried again after room was looked for once, then
/// after twice as often, and so on up to this.
const LOOKS_MAX: u32 = 64;

/// A life that writes less than this is not worth a spare.
const SPARE_AFTER_BYTES: u64 = 1 << 16;

/// Records in the order of their numbers, as bytes for the disk.
#[derive(Debug, Default)]
pub struct Batch {
    /// Room for the mark, then frames. Empty as long as there is no record.
    bytes: Vec<u8>,
    /// The number of its last record.
    last: u64,
    /// It reserves fences.
    reserves: bool,
}

impl Batch {
    /// Adds a record, which has this number.
    pub fn push(
        &mut self,
        salt: u32,
        number: u64,
        record: &Record,
        clocks: impl FnOnce() -> Clocks,
    ) {
        if self.bytes.is_empty() {
            self.bytes.resize(MARK_BYTES, 0);
        }
        push_record(&mut self.bytes, salt, number, record, clocks);
        self.last = number;
        self.reserves |= matches!(record, Record::Fences { .. });
    }

    /// Takes all of another batch, which goes on where this one ends.
    pub fn join(&mut self, other: &mut Self) {
        if self.is_empty() {
            mem::swap(self, other);
        } else if !other.is_empty() {
            self.bytes.extend_from_slice(&other.bytes[MARK_BYTES..]);
            self.last = other.last;
            self.reserves |= other.reserves;
        }
        other.clear();
    }

    /// Forgets all records and keeps the room, unless that is more than `keep_bytes_max`.
    pub fn clear_and_keep(&mut self, keep_bytes_max: usize) {
        self.clear();
        self.bytes.shrink_to(keep_bytes_max);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.reserves = false;
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many bytes it takes on the disk.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of its last record.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }
}

/// Why something was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no room now. Nothing has changed, and the same can be tried again.
    Full(String),
    /// Nobody knows what is on the disk. Nothing more may be written or said.
    Failed(String),
}

impl Trouble {
    pub(super) fn of(doing: &str, error: &io::Error) -> Self {
        match Lack::of(error) {
            Some(lack) => Self::Full(format!("{lack}: {doing}: {error}")),
            None => Self::failed(doing, error),
        }
    }

    /// An error after which it is not known what is on the disk, whatever it says.
    pub(super) fn failed(doing: &str, error: &io::Error) -> Self {
        Self::Failed(format!("{doing}: {error}"))
    }
}

/// A file that is no longer written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Its name.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
}

/// What fails if `LOCK` cannot be written.
const NOTING: &str = "cannot write LOCK";

/// Writes the segments of one life.
#[derive(Debug)]
pub struct Writer<D: Disk> {
    disk: D,
    life: Life,
    segment_bytes: u64,
    segment: Segment<D::File>,
    /// The number of the last record that was written.
    written: u64,
    /// Everything up to here is on the disk.
    synced: u64,
    /// Says which segment is the newest.
    newest: Newest<D::File>,
    /// Why there is no next segment.
    full: Option<String>,
    /// How many bytes have to become free for one, as far as the file system says.
    missing_bytes: u64,
    /// The least reserve for releases.
    reserve_min: u64,
    /// What stands for all closed segments that are not there any more.
    snapshot: Option<Closed>,
    /// Closed segments, in order.
    closed: Vec<Closed>,
    /// Whether a compaction is under way.
    is_compacting: bool,
    retry: Retry,
    next: Next<D::File>,
    /// The mark of the present batch; kept for its room.
    mark: Vec<u8>,
}

/// When a compaction that failed is tried again: with more segments, or when room was looked for so
/// often.
#[derive(Debug, Default)]
struct Retry {
    /// How many segments were closed when the last one failed.
    failed_with: Option<usize>,
    looks_left: u32,
    looks_next: u32,
}

impl Retry {
    fn note_failure(&mut self, closed: usize) {
        self.failed_with = Some(closed);
        self.looks_next = (self.looks_next * 2).clamp(1, LOOKS_MAX);
        self.looks_left = self.looks_next;
    }

    /// Room is looked for.
    fn note_look(&mut self) {
        self.looks_left = self.looks_left.saturating_sub(1);
        if self.looks_left == 0 {
            self.failed_with = None;
        }
    }
}

/// What becomes the next segment.
#[derive(Debug)]
enum Next<F> {
    /// Nothing yet.
    None,
    /// A spare that is being made.
    Asked,
    /// A spare could not be made; it is tried again in the next segment.
    Failed,
    Spare(Spare<F>),
}

impl<D: Disk> Writer<D> {
    /// Begins a life: its first segment is on the disk when this returns.
    ///
    /// # Errors
    /// There is no room for it, or the disk failed. Then nothing has begun.
    pub fn begin(
        disk: D,
        life: Life,
        last: u64,
        segment_bytes: u64,
        snapshot: Option<Closed>,
        mut closed: Vec<Closed>,
    ) -> Result<Self, Trouble> {
        let newest = Newest::open(&disk).map_err(|error| Trouble::of(NOTING, &error))?;
        let least = SEGMENT_BYTES_MIN.min(segment_bytes);
        let segment = Segment::make_fitting(&disk, life, last + 1, segment_bytes, least)?;
        // It may have taken the place of one that had no record.
        closed.retain(|it| it.name != segment.name);
        let mut writer = Self {
            reserve_min: (segment.room / 4).min(RESERVE_BYTES),
            disk,
            life,
            segment_bytes,
            segment,
            written: last,
            synced: last,
            newest,
            full: None,
            missing_bytes: 0,
            snapshot,
            closed,
            is_compacting: false,
            retry: Retry::default(),
            next: Next::None,
            mark: Vec::with_capacity(MARK_BYTES),
        };
        // Both copies: in a new directory there would be only one, and it may be damaged later.
        for _ in 0..2 {
            writer.note_newest()?;
        }
        Ok(writer)
    }

    /// Writes a batch, whose first record has the number behind the last. With `sync`, or if
    /// it reserves fences, it is on the disk when this returns.
    ///
    /// # Errors
    /// [`Trouble::Full`]: the batch is to be kept, and tried again, alone or with more behind it.
    pub fn write(&mut self, batch: &mut Batch) -> Result<(), Trouble> {
        match self.put(batch)? {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// The same without the sync. Says whether one has to follow before anything is spoken of.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn put(&mut self, batch: &mut Batch) -> Result<bool, Trouble> {
        if batch.is_empty() {
            return Ok(false);
        }
        self.check_names()?;
        let len = batch.len() as u64;
        let left = self.segment.room - self.segment.used;
        let reserve = (self.segment.room / 4).max(self.reserve_min);
        let is_time = len + reserve > left || (self.has_spare() && !self.segment.was_spare);
        if is_time && (self.full.is_none() || len > left) {
            self.next_segment(len)?;
        }
        if self.segment.used + len > self.segment.room {
            let why = self.full.clone().unwrap_or_default();
            return Err(Trouble::Full(why));
        }
        let salt = self.life.salt;
        self.mark.clear();
        push_mark(&mut self.mark, salt, self.written + 1, self.synced);
        batch.bytes[..MARK_BYTES].copy_from_slice(&self.mark);
        self.append(&batch.bytes)?;
        self.written = batch.last;
        Ok(match self.life.durability {
            Durability::Sync => true,
            // What else may be lost, a fence must never come again: they are given out only when it
            // is on the disk that they are reserved.
            Durability::Async => batch.reserves,
        })
    }

    /// Waits until everything that was written is on the disk.
    ///
    /// # Errors
    /// [`Trouble::Failed`] only. It must not be tried again.
    pub fn sync(&mut self) -> Result<(), Trouble> {
        if self.synced == self.written {
            return Ok(());
        }
        let result = self.segment.file.sync();
        result.map_err(|error| Trouble::failed(&self.doing("sync"), &error))?;
        self.check_names()?; // a slow sync leaves time to delete files
        self.synced = self.written;
        Ok(())
    }

    /// Tries again to get room.
    ///
    /// # Errors
    /// [`Trouble::Failed`] only: [`Writer::full`] says whether there is room.
    pub fn look_for_room(&mut self) -> Result<(), Trouble> {
        if self.full.is_none() {
            return Ok(());
        }
        self.check_names()?;
        self.retry.note_look();
        self.next_segment(0)
    }

    /// The last write of a life: everything is on the disk, and then a note that it ended in order at this
    /// time; without a time there is no such note, and the next start takes this for a crash.
    ///
    /// # Errors
    /// The note is not there, so the next start takes this for a crash. Nothing else is lost.
    pub fn stop(mut self, at_ms: Option<u64>) -> Result<(), Trouble> {
        self.check_names()?;
        self.sync()?;
        if self.has_spare() {
            let _ = self.disk.remove(&spare_name()); // the next life does, if this fails
        }
        let Some(at_ms) = at_ms else {
            return Ok(());
        };
        let mut last = Vec::new();
        let (salt, number) = (self.life.salt, self.written + 1);
        push_mark(&mut last, salt, number, self.synced);
        push_stopped(&mut last, salt, number, at_ms);
        let end = self.segment.used + last.len() as u64;
        if end < self.segment.room {
            let result = self.segment.file.truncate(end);
            result.map_err(|error| Trouble::failed(&self.doing("cut"), &error))?;
        }
        self.append(&last)?;
        self.written = number;
        self.sync()
    }

    /// Everything up to this record is written; whether it is on the disk is said by
    /// [`Writer::synced`].
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Everything up to this record is on the disk.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Why there is no room for more, if there is none.
    #[must_use]
    pub fn full(&self) -> Option<&str> {
        self.full.as_deref()
    }

    /// While there is no room: how many bytes have to become free, 0 if unknown.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.missing_bytes
    }

    /// What a compaction should do now, if one is worth it and none is under way.
    ///
    /// The closed segments may grow to a quarter of what the snapshot takes, or to half a segment if
    /// that is more, and the last of them may be all above it. With the segment that is written, a
    /// spare and the next snapshot these are two and a quarter times what is live and three segments,
    /// or twice and three and a half. So all files together take no more than three times what is live
    /// and four segments, if no more than half of both is written while a compaction runs: measured
    /// with half of the snapshot, it was up to three and a quarter times on a busy machine.
    pub fn compaction(&mut self) -> Option<Job> {
        const FILES_MAX: usize = 16;
        let bytes: u64 = self.closed.iter().map(|closed| closed.bytes).sum();
        let live = self.snapshot.as_ref().map_or(0, |it| it.bytes);
        // A segment is left at three quarters at the earliest, or its last batch did not fit.
        let enough = (live / 4).max(self.segment_bytes / 2);
        let is_needed = self.full.is_some() && bytes > 0;
        let is_worth_it = bytes >= enough || self.closed.len() > FILES_MAX || is_needed;
        let failed_before = self.retry.failed_with == Some(self.closed.len());
        if self.is_compacting || failed_before || !is_worth_it {
            return None;
        }
        self.is_compacting = true;
        Some(Job {
            life: self.life,
            snapshot: self.snapshot.clone(),
            segments: self.closed.clone(),
            upto: self.segment.first - 1,
            leave_bytes: match self.full {
                None => 2 * self.least(0),
                Some(_) => 0,
            },
        })
    }

    /// A compaction is over; without a result it did nothing.
    pub fn compacted(&mut self, result: Option<Compacted>) {
        self.is_compacting = false;
        match result {
            Some(it) => {
                self.retry = Retry::default();
                self.closed.drain(..it.segments);
                self.snapshot = Some(it.snapshot);
            }
            None => self.retry.note_failure(self.closed.len()),
        }
    }

    /// The spare that should be made now, if one is worth it. At the latest when half of the present
    /// segment is used, so that it is there in time.
    pub fn spare_job(&mut self) -> Option<SpareJob> {
        let enough = match self.segment.was_spare {
            true => self.segment.room / 2,
            false => SPARE_AFTER_BYTES.min(self.segment.room / 2),
        };
        let is_sync = self.life.durability == Durability::Sync;
        let is_asked = !matches!(self.next, Next::None);
        if !is_sync || is_asked || self.full.is_some() || self.segment.used < enough {
            return None;
        }
        self.next = Next::Asked;
        Some(SpareJob {
            room: self.segment_bytes,
            leave_bytes: self.least(0),
        })
    }

    /// The spare that was asked for is there, or could not be made.
    pub fn spare_is_made(&mut self, spare: Option<Spare<D::File>>) {
        self.next = spare.map_or(Next::Failed, Next::Spare);
    }

    fn has_spare(&self) -> bool {
        matches!(self.next, Next::Spare(_))
    }

    /// How much all files take: snapshot, closed segments, present segment, spare and `LOCK`.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let closed = self.closed.iter().chain(&self.snapshot);
        let next = match &self.next {
            Next::Spare(spare) => spare.room,
            Next::None | Next::Asked | Next::Failed => 0,
        };
        closed.map(|it| it.bytes).sum::<u64>() + self.segment.room + next + LOCK_BYTES
    }

    /// How short the next segment may be, with a batch of this length.
    fn least(&self, batch_len: u64) -> u64 {
        let records = (HEADER_BYTES as u64 + batch_len).max(PAGE_BYTES);
        (self.reserve_min + records).min(self.wanted(batch_len))
    }

    /// How long the next segment is if there is room, with a batch of this length.
    fn wanted(&self, batch_len: u64) -> u64 {
        let room = (HEADER_BYTES as u64 + batch_len) * 4 / 3 + 1;
        room.max(self.segment_bytes)
    }

    /// Leaves this segment for a new one with room for a batch of this length. If there is no room
    /// for one, the present one stays.
    fn next_segment(&mut self, batch_len: u64) -> Result<(), Trouble> {
        // A later segment proves that everything before it is on the disk.
        self.sync()?;
        let (wanted, least) = (self.wanted(batch_len), self.least(batch_len));
        let spare = match mem::replace(&mut self.next, Next::None) {
            Next::Spare(spare) if spare.room >= wanted => Some(spare),
            Next::None | Next::Failed => None,
            next @ (Next::Asked | Next::Spare(_)) => {
                self.next = next;
                None
            }
        };
        let (disk, life, first) = (&self.disk, self.life, self.written + 1);
        let made = match spare {
            Some(spare) => Segment::make(disk, life, first, spare.room, Some(spare)),
            None => Segment::make_fitting(disk, life, first, wanted, least),
        };
        let next = match made {
            Err(Trouble::Full(why)) => {
                self.full = Some(why);
                let free = self.disk.free_bytes().unwrap_or(u64::MAX);
                self.missing_bytes = least.saturating_sub(free);
                return Ok(());
            }
            result => result?,
        };
        self.missing_bytes = 0;
        self.full = None;
        let old = mem::replace(&mut self.segment, next);
        if old.name != self.segment.name {
            // Only to give the rest back: if this is lost or refused, the rest is zeros.
            let bytes = match old.file.truncate(old.used) {
                Ok(()) => old.used,
                Err(_) => old.room,
            };
            let name = old.name;
            self.closed.push(Closed { name, bytes });
        }
        Ok(())
    }

    /// Looks before each batch whether `LOCK` and the present segment still have their names.
    /// Without them a second daemon may write here, or the next start would miss the batch.
    fn check_names(&self) -> Result<(), Trouble> {
        let lock = self.newest.check_name(&self.disk);
        lock.map_err(|error| Trouble::failed(NOTING, &error))?;
        let segment = &self.segment;
        let named = self.disk.check_name(&segment.name, &segment.file);
        named.map_err(|error| Trouble::failed(&self.doing("write"), &error))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        if !self.segment.is_noted {
            self.note_newest()?;
        }
        let result = self.segment.file.write_at(bytes, self.segment.used);
        result.map_err(|error| self.not_written(Trouble::of(&self.doing("write"), &error)))?;
        self.segment.used += bytes.len() as u64;
        Ok(())
    }

    /// Keeps in `LOCK` that the present segment is the newest, before its first record. Twice for the
    /// first segment of a life, then once for each.
    fn note_newest(&mut self) -> Result<(), Trouble> {
        let header = Header {
            kind: FileKind::Segment,
            number: self.segment.first,
            life: self.life,
        };
        let result = self.newest.write(&header);
        result.map_err(|error| self.not_written(Trouble::of(NOTING, &error)))?;
        let result = self.newest.sync();
        result.map_err(|error| Trouble::failed(NOTING, &error))?;
        self.segment.is_noted = true;
        Ok(())
    }

    /// Remembers that there was no room, if that is the trouble.
    fn not_written(&mut self, trouble: Trouble) -> Trouble {
        if let Trouble::Full(why) = &trouble {
            self.full = Some(why.clone());
        }
        trouble
    }

    fn doing(&self, what: &str) -> String {
        format!("cannot {what} {}", self.segment.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::key::Key;
    use crate::store::FaultDisk;
    use crate::store::newest::LOCK;

    const LIFE: Life = Life {
        epoch: 1,
        begun_ms: 1,
        durability: Durability::Sync,
        follows_loss: false,
        salt: 7,
    };

    fn push(batch: &mut Batch, number: u64) {
        let record = Record::Deleted {
            key: Key::from(&b"key"[..]),
        };
        let clocks = || Clocks {
            now: Nanos(0),
            wall_ms: 0,
        };
        batch.push(LIFE.salt, number, &record, clocks);
    }

    #[test]
    fn joined_batches_are_one() {
        let (mut one, mut other, mut both) = <(Batch, Batch, Batch)>::default();
        push(&mut one, 1);
        push(&mut other, 2);
        push(&mut other, 3);
        (1..4).for_each(|number| push(&mut both, number));
        one.join(&mut other);
        assert_eq!((one.last(), &one.bytes), (3, &both.bytes));
        assert!(other.is_empty());
        one.join(&mut other); // nothing
        assert_eq!(one.bytes, both.bytes);
        other.join(&mut one);
        assert_eq!((other.last(), &other.bytes), (3, &both.bytes));
        assert!(one.is_empty());
    }

    /// Creating, allocating, writing, syncing and naming a segment is what happens once; a batch is
    /// two steps.
    #[test]
    fn a_batch_is_one_write_and_one_sync() {
        let disk = FaultDisk::new();
        let begin = Writer::begin(disk.clone(), LIFE, 0, 4096, None, Vec::new());
        let mut writer = begin.unwrap();
        let mut batch = Batch::default();
        (1..20).for_each(|number| push(&mut batch, number));
        let before = disk.steps();
        writer.write(&mut batch).unwrap();
        assert_eq!(disk.steps() - before, 2);
        assert_eq!((writer.written(), writer.synced()), (19, 19));
    }

    /// So that whoever measures how long a sync takes measures nothing else.
    #[test]
    fn a_batch_that_was_put_is_synced_by_the_sync_only() {
        for (durability, syncs) in [(Durability::Sync, true), (Durability::Async, false)] {
            let disk = FaultDisk::new();
            let life = Life { durability, ..LIFE };
            let begin = Writer::begin(disk.clone(), life, 0, 4096, None, Vec::new());
            let mut writer = begin.unwrap();
            let mut batch = Batch::default();
            push(&mut batch, 1);
            let before = disk.steps();
            assert_eq!(writer.put(&mut batch), Ok(syncs));
            assert_eq!(disk.steps() - before, 1, "one write");
            assert_eq!((writer.written(), writer.synced()), (1, 0));
            writer.sync().unwrap();
            assert_eq!((disk.steps() - before, writer.synced()), (2, 1));
        }
    }

    #[test]
    fn batch_is_not_synced_if_a_file_is_deleted_after_the_write() {
        for is_lock in [true, false] {
            let disk = FaultDisk::new();
            let begin = Writer::begin(disk.clone(), LIFE, 0, 4096, None, Vec::new());
            let mut writer = begin.unwrap();
            let mut batch = Batch::default();
            push(&mut batch, 1);
            assert_eq!(writer.put(&mut batch), Ok(true));
            let name = if is_lock { LOCK } else { &writer.segment.name };
            disk.remove(name).unwrap();
            assert!(matches!(writer.sync(), Err(Trouble::Failed(_))));
            assert_eq!(writer.synced(), 0);
        }
    }

    #[test]
    fn a_batch_longer_than_a_segment_gets_one_of_its_own() {
        let disk = FaultDisk::new();
        let begin = Writer::begin(disk.clone(), LIFE, 0, 1024, None, Vec::new());
        let mut writer = begin.unwrap();
        let mut batch = Batch::default();
        (1..=300).for_each(|number| push(&mut batch, number));
        assert!(batch.len() > 4096);
        writer.write(&mut batch).unwrap();
        assert_eq!(writer.synced(), 300);
        let segments = disk.list().unwrap();
        let segments = segments.iter().filter(|name| name.ends_with(".log"));
        assert_eq!(segments.count(), 1, "the first one was empty");
    }
}
