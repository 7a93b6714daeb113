//! What can be saved of a damaged directory.
//!
//! Every frame whose checksum is right is good, before the damage and behind it. Of what was between
//! nothing is known but how many records it can have been. So the frames that can be read are
//! replayed in order, with one rule more: a grant that cannot be held beside an older one proves that
//! the older one ended, in what was lost. A byte range likewise, as far as the two overlap. Fences go on
//! above everything that can have been given out. A damaged header costs no record: the name says
//! what the file is, and the salt is in other headers, follows from the checksums, or is in `LOCK`.
//!
//! The result is a snapshot. The files as they were get a second name before anything else happens,
//! and are removed only when the snapshot is on the disk. If the power goes in between, the directory
//! is either still damaged, and is repaired again, or whole.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use super::compact::{At, Live, SnapshotWriter};
use super::disk::{Disk, DiskFile};
use super::entry::{Clocks, Entry};
use super::format::{
    BadHeader, Durability, FileKind, Frame, Header, LAST_NUMBER_MAX, Life, NUMBER_LIMIT,
    push_record,
};
use super::journal::SEGMENT_BYTES;
use super::load::{self, Damage, Listing, LoadError, MISSING, UNFINISHED, Visitor, file_name};
use super::newest::Newest;
use super::open::{DirLock, OpenError};
use super::ranges::LockedRange;
use super::read::{Frames, Next};
use crate::base::{Fence, Nanos};
use crate::engine::types::{Mode, Record};
use crate::fence_start::{FenceStart, fence_start};

/// Fences of the new life begin so far above all that were seen or can have been lost.
const FENCE_DISTANCE: u64 = 1 << 21;

/// A frame is at least this long, and says what changed of something with a name.
const RECORD_BYTES_MIN: u64 = 18;

/// What a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// What was damaged, in order.
    pub lost: Vec<Lost>,
    /// How many records can be read.
    pub read: u64,
    /// How many of them still matter, and were kept.
    pub kept: u64,
    /// Grants whose end must have been lost, because somebody else was granted the key later, and ranges
    /// that were locked by somebody else later, at least in part.
    pub ended: u64,
    /// What the files are called now that were there before.
    pub backups: Vec<String>,
}

/// A damaged part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Where it begins, and what is wrong.
    pub damage: Damage,
    /// How long it is.
    pub bytes: u64,
    /// How many records it was; the highest number it can have been where that is not known.
    pub records_max: u64,
}

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost.is_empty() {
            return f.write_str("nothing is damaged, and nothing was changed");
        }
        for lost in &self.lost {
            let (bytes, records) = (lost.bytes, lost.records_max);
            writeln!(f, "{}", lost.damage)?;
            writeln!(f, "  dropped: {bytes} bytes, at most {records} records")?;
        }
        let Self {
            read, kept, ended, ..
        } = self;
        writeln!(
            f,
            "read {read} records; {kept} of them still matter and were kept"
        )?;
        if *ended > 0 {
            writeln!(
                f,
                "ended {ended} grants, because their keys or bytes were granted again later"
            )?;
        }
        write!(f, "the files as they were: {}", self.backups.join(", "))
    }
}

/// Repairs a directory that nobody uses.
///
/// # Errors
/// It is in use, of a later version, or the disk does not let it be repaired. Then it is as it was,
/// except that files may have got a second name.
pub fn repair(dir: &Path, wall_ms: u64) -> Result<Repaired, OpenError> {
    if !dir.is_dir() {
        let missing = std::io::ErrorKind::NotFound.into();
        return Err(OpenError::Directory(missing));
    }
    let lock = DirLock::take(dir)?;
    Ok(repair_disk(&lock.disk(), wall_ms)?)
}

/// The same for any disk.
///
/// # Errors
/// See [`repair`].
pub fn repair_disk<D: Disk>(disk: &D, wall_ms: u64) -> Result<Repaired, LoadError> {
    let names = disk.list().map_err(LoadError::io(""))?;
    let visitor = Visitor {
        frame: &mut |_, _, _| {},
        progress: &mut |_| {},
        is_over: &|| false,
    };
    let (listing, damage_of_lock) = match Listing::read(disk) {
        Ok(listing) => (listing, None),
        Err(LoadError::Damaged(damage)) => (Listing::of(&names), Some(damage)),
        Err(error) => return Err(error),
    };
    let result = load::read(disk, &listing, visitor);
    let first_damage = match (result, damage_of_lock) {
        (Err(LoadError::Damaged(damage)), _) | (Ok(_), Some(damage)) => damage,
        (Err(error), _) => return Err(error),
        (Ok(_), None) => return Ok(Repaired::nothing()),
    };
    if listing.snapshot.is_none() && listing.segments.is_empty() {
        return Err(LoadError::Damaged(first_damage)); // nothing is left to be kept
    }
    let (life, fence_max) = find_life(disk, &listing, first_damage.clone(), wall_ms)?;
    let mut salvage = Salvage {
        disk,
        life,
        files: listing.snapshot.iter().chain(&listing.segments).collect(),
        live: Live::default(),
        holders: HashMap::new(),
        range_clients: HashMap::new(),
        result: Repaired::nothing(),
        last: 0,
        // The record that says where a life started its fences may be lost.
        fence_max,
    };
    salvage.read_all(listing.snapshot.is_some())?;
    salvage.note_newest(&listing)?;
    if salvage.result.lost.is_empty() {
        // Nothing but a file that is missing at the end.
        let lost = Lost {
            damage: first_damage.clone(),
            bytes: 0,
            records_max: 0,
        };
        salvage.result.lost.push(lost);
    }
    if salvage.next_number() > LAST_NUMBER_MAX {
        return Err(LoadError::Damaged(first_damage)); // a number is wrong: nothing has counted so far
    }
    salvage.keep(&names)
}

impl Repaired {
    fn nothing() -> Self {
        Self {
            lost: Vec::new(),
            read: 0,
            kept: 0,
            ended: 0,
            backups: Vec::new(),
        }
    }
}

/// The last life that a header tells of, in a file or in `LOCK`. Its salt is that of the directory:
/// files prove it by their headers or, if none can be read, by their frames.
/// Of a file that a later version wrote nothing can be said, so it cannot be repaired here.
///
/// Also the highest fence at which a life can have started, as far as the clock was never set back
/// after a life of which nothing is left.
fn find_life<D: Disk>(
    disk: &D,
    listing: &Listing,
    first_damage: Damage,
    wall_ms: u64,
) -> Result<(Life, u64), LoadError> {
    let mut last: Option<Life> = None;
    let mut fence = first_fence(wall_ms);
    for (name, _) in listing.snapshot.iter().chain(&listing.segments) {
        let life = match header_of(disk, name)? {
            Some(header) => header.life,
            None => continue,
        };
        if last.is_none_or(|last| last.salt == life.salt) {
            fence = fence.max(first_fence(life.begun_ms));
            last = last.filter(|last| last.epoch > life.epoch).or(Some(life));
        }
    }
    let proved = match last {
        Some(_) => last,
        None => find_salt(disk, listing, wall_ms)?,
    };
    if let Some(newest) = listing.newest.map(|header| header.life) {
        // `LOCK` may be of another directory.
        let is_ours = proved.is_none_or(|life| life.salt == newest.salt);
        let is_later = last.is_none_or(|last| last.epoch < newest.epoch);
        last = if is_ours && is_later {
            Some(newest)
        } else {
            last
        };
    }
    let life = last.or(proved);
    let mut life = life.ok_or(LoadError::Damaged(first_damage))?;
    fence = fence.max(first_fence(life.begun_ms));
    // A life whose header cannot be read may have come after it.
    life.epoch += listing.segments.len() as u64;
    life.begun_ms = wall_ms;
    life.follows_loss = true;
    Ok((life, fence))
}

/// Where a life that began at this time started its fences, unless the directory had higher ones.
fn first_fence(begun_ms: u64) -> u64 {
    match fence_start(begun_ms.saturating_mul(1_000), Fence::LIMIT) {
        FenceStart::At(fence) | FenceStart::Doubtful(fence) => fence,
        FenceStart::TooLate => 0, // it started at those of the directory
    }
}

/// The header of a file, unless it is damaged.
fn header_of<D: Disk>(disk: &D, name: &str) -> Result<Option<Header>, LoadError> {
    match Frames::open(disk, name).map_err(LoadError::io(name))? {
        Ok(frames) => Ok(Some(*frames.header())),
        Err(BadHeader::Damaged(_)) => Ok(None),
        Err(BadHeader::TooNew(version)) => {
            let file = name.to_owned();
            Err(LoadError::TooNew { file, version })
        }
    }
}

/// A life with the salt that the frames of a file tell. Its epoch is above any count of starts: the
/// seconds since 1970.
fn find_salt<D: Disk>(
    disk: &D,
    listing: &Listing,
    wall_ms: u64,
) -> Result<Option<Life>, LoadError> {
    let life = Life {
        epoch: wall_ms / 1_000,
        begun_ms: wall_ms,
        durability: Durability::Sync,
        follows_loss: true,
        salt: 0,
    };
    for (name, number) in listing.snapshot.iter().chain(&listing.segments) {
        let header = Header {
            kind: FileKind::Segment,
            number: *number,
            life,
        };
        let salt = Frames::find_salt(disk, name, header).map_err(LoadError::io(name))?;
        if let Some(salt) = salt {
            return Ok(Some(Life { salt, ..life }));
        }
    }
    Ok(None)
}

struct Salvage<'a, D> {
    disk: &'a D,
    life: Life,
    /// Names and numbers of the files in order.
    files: Vec<&'a (String, u64)>,
    live: Live,
    /// Who holds what, by key.
    holders: HashMap<Box<[u8]>, Vec<Held>>,
    /// Who ever locked bytes of a resource.
    range_clients: HashMap<Box<[u8]>, BTreeSet<Box<str>>>,
    result: Repaired,
    /// The highest number that was seen, or must have been.
    last: u64,
    fence_max: u64,
}

#[derive(Clone, Copy)]
struct Held {
    fence: u64,
    mode: Mode,
}

impl<D: Disk> Salvage<'_, D> {
    fn read_all(&mut self, has_snapshot: bool) -> Result<(), LoadError> {
        for index in 0..self.files.len() {
            let (name, number) = self.files[index];
            let next = self.files.get(index + 1).map(|(_, first)| *first);
            let kind = match index {
                0 if has_snapshot => FileKind::Snapshot,
                _ => FileKind::Segment,
            };
            let header = Header {
                kind,
                number: *number,
                life: self.life,
            };
            if kind == FileKind::Segment && *number > self.last + 1 {
                let missing = *number - self.last - 1;
                self.lose(name, 0, 0, missing, "the file before it is missing");
            }
            self.read_file(index, header, next)
                .map_err(LoadError::io(name))?;
        }
        Ok(())
    }

    /// The newest segment is not there, or an older one has its name.
    fn note_newest(&mut self, listing: &Listing) -> Result<(), LoadError> {
        let Some(newest) = listing.newest.filter(|it| it.life.salt == self.life.salt) else {
            return Ok(());
        };
        let is_there = match listing.segments.last() {
            None => false,
            Some((_, first)) if *first != newest.number => *first > newest.number,
            Some((name, _)) => {
                let header = header_of(self.disk, name)?;
                header.is_none_or(|it| it.life.epoch >= newest.life.epoch)
            }
        };
        if !is_there {
            let before = newest.number.saturating_sub(self.last + 1);
            let records_max = before + SEGMENT_BYTES / RECORD_BYTES_MIN;
            let name = file_name(FileKind::Segment, newest.number);
            self.lose(&name, 0, 0, records_max, MISSING);
        }
        Ok(())
    }

    /// `next` is the first number of the file behind this one.
    fn read_file(
        &mut self,
        index: usize,
        header: Header,
        next: Option<u64>,
    ) -> std::io::Result<()> {
        let name = &self.files[index].0;
        let is_snapshot = header.kind == FileKind::Snapshot;
        let mut frames = match Frames::open(self.disk, name)? {
            Ok(frames) if frames.header().life.salt != self.life.salt => {
                let (bytes, why) = (frames.len(), "the file is from another directory");
                self.lose(name, 0, bytes, bytes / RECORD_BYTES_MIN, why);
                return Ok(());
            }
            Ok(frames) => frames,
            Err(BadHeader::TooNew(_)) => unreachable!("it was refused before"),
            Err(BadHeader::Damaged(why)) => {
                self.lose(name, 0, 0, 0, why);
                Frames::open_without_header(self.disk, name, header)?
            }
        };
        // In a snapshot numbers have gaps; in a segment a gap is a loss.
        let covered = if is_snapshot { 0 } else { self.last };
        let mut number = if is_snapshot { 1 } else { header.number };
        let end = match next {
            _ if is_snapshot => header.number,
            Some(next) => next - 1,
            None => NUMBER_LIMIT - 1,
        };
        // A record was read, and its number is `number`.
        let mut is_behind_first = false;
        let mut is_behind_damage = false;
        while number <= end {
            let start = frames.offset();
            let why = match frames.next()? {
                Next::Frame(_, _, Entry::End { .. }) => break,
                Next::Frame(offset, frame, entry)
                    if (lowest(number, is_behind_first, &entry)..=end).contains(&frame.number) =>
                {
                    if matches!(entry, Entry::Mark { .. }) {
                        continue;
                    }
                    let missing = frame.number - number;
                    // In a snapshot the ranges have one number, and the last record before them may
                    // have it as well.
                    number = frame.number + u64::from(!is_snapshot);
                    is_behind_first = is_snapshot;
                    let at = At {
                        file: index as u32,
                        offset,
                        len: frame.len() as u32,
                    };
                    if frame.number > covered {
                        self.apply(at, &frame, &entry);
                    }
                    if !is_snapshot && is_behind_damage {
                        self.account(missing);
                    } else if !is_snapshot && missing > 0 {
                        self.lose(name, start, 0, missing, "records are missing");
                    }
                    is_behind_damage = false;
                    continue;
                }
                Next::Frame(..) => "the record has another number",
                Next::End if next.is_none() && !is_snapshot => break,
                Next::End => {
                    let missing = end - number + 1;
                    self.lose(name, start, 0, missing, "records are missing");
                    break;
                }
                Next::Bad(why) => why,
            };
            frames.go_to(start);
            let left_bytes = frames.len().saturating_sub(start);
            // In a snapshot numbers are left out, so the next one may be any up to its last.
            let highest = match is_snapshot {
                true => end,
                false => end.min(number.saturating_add(left_bytes / RECORD_BYTES_MIN + 1)),
            };
            let is_more = frames.skip_damage(&(number..=highest))?;
            let bytes = frames.offset().min(frames.len()).saturating_sub(start);
            let numbers = match is_snapshot {
                true => u64::MAX,
                false => end.saturating_sub(number) + 1,
            };
            let records_max = (bytes / RECORD_BYTES_MIN + 1).min(numbers);
            self.lose(name, start, bytes, records_max, why);
            if !is_more {
                break;
            }
            is_behind_damage = true;
        }
        let seen = match next {
            None if !is_snapshot => number.saturating_sub(1),
            _ => end,
        };
        self.last = self.last.max(seen);
        Ok(())
    }

    fn lose(&mut self, file: &str, offset: u64, bytes: u64, records_max: u64, why: &'static str) {
        self.result.lost.push(Lost {
            damage: Damage {
                file: file.to_owned(),
                offset,
                number: self.last + 1,
                why,
            },
            bytes,
            records_max,
        });
    }

    /// The last loss was of exactly so many records.
    fn account(&mut self, records: u64) {
        if let Some(lost) = self.result.lost.last_mut() {
            lost.records_max = records;
        }
    }

    fn apply(&mut self, at: At, frame: &Frame<'_>, entry: &Entry<'_>) {
        self.result.read += 1;
        self.last = self.last.max(frame.number);
        match *entry {
            Entry::Granted {
                key, mode, token, ..
            } => {
                self.fence_max = self.fence_max.max(token.fence.0);
                let fence = token.fence.0;
                let holders = self.holders.entry(key.into()).or_default();
                let before = holders.len();
                for ended in make_way(holders, mode) {
                    let fence = Fence(ended.fence);
                    self.live.apply(at, &Entry::Ended { key, fence });
                }
                self.result.ended += (before - holders.len()) as u64;
                holders.push(Held { fence, mode });
            }
            Entry::Ended { key, fence } => {
                if let Some(holders) = self.holders.get_mut(key) {
                    holders.retain(|held| held.fence != fence.0);
                    if holders.is_empty() {
                        self.holders.remove(key);
                    }
                }
            }
            Entry::Ranged {
                resource,
                client,
                owner,
                range,
                mode: Some(mode),
                grant,
            } => {
                let clients = self.range_clients.entry(resource.into()).or_default();
                if !clients.contains(client) {
                    clients.insert(client.into());
                }
                let new = LockedRange {
                    resource,
                    client,
                    owner,
                    range,
                    mode,
                    grant,
                };
                let others = clients.iter().map(|it| &**it);
                self.result.ended += self.live.ranges.make_way(new, others);
            }
            Entry::Fences { upto } => self.fence_max = self.fence_max.max(upto.0),
            _ => {}
        }
        self.live.apply(at, entry);
    }

    /// How many records were lost at most.
    fn records_lost(&self) -> u64 {
        let lost = self.result.lost.iter().map(|lost| lost.records_max);
        lost.fold(0, u64::saturating_add)
    }

    /// The number of the snapshot: no record that was lost had it.
    fn next_number(&self) -> u64 {
        let number = self.last.saturating_add(self.records_lost());
        number.saturating_add(1)
    }

    /// Puts what is left in the place of what was there.
    fn keep(mut self, names: &[String]) -> Result<Repaired, LoadError> {
        let disk = self.disk;
        let io = LoadError::io("");
        let backup = (1..)
            .map(|count| format!(".before-repair-{count}"))
            .find(|it| !names.iter().any(|name| name.ends_with(it)));
        let backup = backup.unwrap_or_default();
        for (name, _) in &self.files {
            let second = format!("{name}{backup}");
            disk.link(name, &second).map_err(LoadError::io(name))?;
            self.result.backups.push(second);
        }
        disk.sync_names().map_err(&io)?;

        // A client that was lost cannot prove who it is, so nobody could have these back.
        self.live.forget_ranges_of_strangers();
        self.live.ranges.number_split();
        let (lost, number) = (self.records_lost(), self.next_number());
        let fence = self.fence_max.saturating_add(lost + FENCE_DISTANCE);
        let upto = Fence(fence.min(Fence::LIMIT - 1));
        let snapshot = file_name(FileKind::Snapshot, number);
        let segment = file_name(FileKind::Segment, number + 1);
        let unfinished = |name: &str| format!("{name}{UNFINISHED}");
        let write = || {
            let life = self.life;
            let mut out = SnapshotWriter::create(disk, &unfinished(&snapshot), life, number)?;
            let places = self.live.places();
            for run in places.chunk_by(|one, other| one.file == other.file) {
                let file = disk.look_at(&self.files[run[0].file as usize].0)?;
                for place in run {
                    out.copy(&file, *place)?;
                }
            }
            out.add(|bytes| {
                let clocks = || Clocks {
                    now: Nanos(0),
                    wall_ms: 0,
                };
                push_record(bytes, life.salt, number, &Record::Fences { upto }, clocks);
            })?;
            let mut ranges = 0;
            for range in self.live.ranges.iter() {
                out.add_range(range)?;
                ranges += 1;
            }
            out.finish()?;
            let header = Header {
                kind: FileKind::Segment,
                number: number + 1,
                life,
            };
            let file = disk.create(&unfinished(&segment))?;
            file.write_at(&header.encode(), 0)?;
            file.sync()?;
            disk.rename(&unfinished(&segment), &segment)?;
            disk.rename(&unfinished(&snapshot), &snapshot)?;
            let mut newest = Newest::open(disk)?;
            disk.sync_names()?;
            // Both copies: what was there may be of another directory.
            for _ in 0..2 {
                newest.write(&header)?;
                newest.sync()?;
            }
            Ok(places.len() as u64 + ranges)
        };
        let written = write().inspect_err(|_| {
            for name in [&snapshot, &segment] {
                let _ = disk.remove(&unfinished(name)); // or it would take the room that others need
            }
        });
        self.result.kept = written.map_err(LoadError::io(&snapshot))?;
        for (name, _) in &self.files {
            let _ = disk.remove(name); // or the next start does
        }
        disk.sync_names().map_err(&io)?;
        Ok(self.result)
    }
}

/// The lowest number that this entry may have, where `number` is the lowest that any may have. Of a snapshot's
/// records only ranges may have the number of the one before them.
fn lowest(number: u64, is_behind_one: bool, entry: &Entry<'_>) -> u64 {
    match entry {
        Entry::Ranged { .. } => number,
        _ => number + u64::from(is_behind_one),
    }
}

/// Takes out the holders that must have gone before this grant was possible, the oldest first.
fn make_way(holders: &mut Vec<Held>, mode: Mode) -> Vec<Held> {
    let gone: usize = match mode {
        Mode::Write | Mode::Lead => holders.len(),
        Mode::Read if holders.iter().all(|held| held.mode == Mode::Read) => 0,
        Mode::Slot { limit } if holders.iter().all(|held| held.mode == mode) => {
            (holders.len() + 1).saturating_sub(limit as usize)
        }
        // It was another kind of lock, so nobody held it in between.
        Mode::Read | Mode::Slot { .. } => holders.len(),
    };
    holders.drain(..gone).collect()
}
