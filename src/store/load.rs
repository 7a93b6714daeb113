//! Reading a whole directory: which files count, whether they are whole, what the last life left.
//!
//! Never writes. A tail that was being written when the power went is told from damage by proof:
//! every batch begins with a mark of what was on the disk before it was written. So bytes that
//! cannot be read are damage if anything behind them says that they were on the disk once: a later
//! mark, or a later segment, because a segment is begun only when everything before it is on the
//! disk. Otherwise it is taken for a write that was not finished, and cut off. `LOCK` says which
//! segment is the newest (`newest.rs`).

use std::fmt;
use std::io;

use super::disk::{Disk, DiskFile};
use super::entry::{Clocks, Entry};
use super::format::{
    BadHeader, Durability, FileKind, Frame, Header, LAST_NUMBER_MAX, Life, NUMBER_LIMIT,
};
use super::newest::{self, LOCK};
use super::read::{Frames, Next};
use crate::base::Fence;
use crate::engine::types::Record;

const SEGMENT: &str = ".log";
const SNAPSHOT: &str = ".snapshot";
/// What is not finished has this after its name.
pub(super) const UNFINISHED: &str = ".tmp";

/// How often progress is reported.
const PROGRESS_BYTES: u64 = 4 << 20;

/// The name of a segment or snapshot.
pub(super) fn file_name(kind: FileKind, number: u64) -> String {
    let suffix = match kind {
        FileKind::Segment => SEGMENT,
        FileKind::Snapshot => SNAPSHOT,
    };
    format!("{number:020}{suffix}")
}

/// What a name says.
fn parse_name(name: &str) -> Option<(FileKind, u64)> {
    let (digits, kind) = match name.strip_suffix(SEGMENT) {
        Some(digits) => (digits, FileKind::Segment),
        None => (name.strip_suffix(SNAPSHOT)?, FileKind::Snapshot),
    };
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse().ok())??;
    (number < NUMBER_LIMIT).then_some((kind, number))
}

/// Why a directory cannot be read.
#[derive(Debug)]
pub enum LoadError {
    /// The disk does not answer.
    Io {
        /// The file concerned, or the empty name for the directory.
        file: String,
        /// What it says.
        error: io::Error,
    },
    /// A later release wrote it.
    TooNew {
        /// The file that says so.
        file: String,
        /// The version it has.
        version: u32,
    },
    /// Something that was on the disk is no longer there, or not as it was.
    Damaged(Damage),
    /// Whoever wanted to know has given up.
    Abandoned,
}

impl LoadError {
    pub(super) fn io(file: &str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io {
            file: file.to_owned(),
            error,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, error } if file.is_empty() => error.fmt(f),
            Self::Io { file, error } => write!(f, "{file}: {error}"),
            Self::TooNew { file, version } => write!(
                f,
                "{file} has version {version} of the format, and this program reads up to {}",
                super::format::VERSION
            ),
            Self::Damaged(damage) => damage.fmt(f),
            Self::Abandoned => f.write_str("given up"),
        }
    }
}

/// Where a directory is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// The number of the record that should be there.
    pub number: u64,
    /// What is wrong.
    pub why: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            number,
            why,
        } = self;
        write!(
            f,
            "{file} is damaged at byte {offset}, at record {number}: {why}"
        )
    }
}

/// Which files of a directory count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The newest snapshot, and the number it stands for.
    pub(super) snapshot: Option<(String, u64)>,
    /// The segments behind it in order, and the numbers of their first records.
    pub(super) segments: Vec<(String, u64)>,
    /// What the snapshot stands for, and what was never finished. Nobody needs it.
    pub(super) leftovers: Vec<String>,
    /// The header of the newest segment that was begun, if `LOCK` has it.
    pub(super) newest: Option<Header>,
}

impl Listing {
    /// Of a directory, which may be in use: `LOCK` is read first, because it never names a segment
    /// that is not there yet.
    pub(super) fn read<D: Disk>(disk: &D) -> Result<Self, LoadError> {
        let newest = newest::read(disk)?;
        let names = disk.list().map_err(LoadError::io(""))?;
        let listing = Self::of(&names);
        Ok(Self { newest, ..listing })
    }

    /// Without `LOCK`.
    pub(super) fn of(names: &[String]) -> Self {
        let mut listing = Self::default();
        for name in names {
            match parse_name(name) {
                Some((FileKind::Segment, first)) => listing.segments.push((name.clone(), first)),
                Some((FileKind::Snapshot, upto)) => {
                    let newer = Some((name.clone(), upto));
                    let older = match &listing.snapshot {
                        Some((_, known)) if *known >= upto => newer,
                        _ => std::mem::replace(&mut listing.snapshot, newer),
                    };
                    listing.leftovers.extend(older.map(|(name, _)| name));
                }
                None if is_unfinished(name) => listing.leftovers.push(name.clone()),
                None => {} // not ours
            }
        }
        listing.segments.sort_by_key(|(_, first)| *first);
        let upto = listing.snapshot.as_ref().map_or(0, |(_, upto)| *upto);
        // A segment is covered if the next one begins no later than the snapshot ends.
        let is_covered = |pair: &[(String, u64)]| pair[1].1 <= upto.saturating_add(1);
        let covered = listing
            .segments
            .windows(2)
            .take_while(|pair| is_covered(pair));
        let covered = covered.count();
        let names = listing.segments.drain(..covered).map(|(name, _)| name);
        listing.leftovers.extend(names);
        listing
    }
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED)
        .is_some_and(|name| parse_name(name).is_some())
}

/// How the last life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was none: the directory is new.
    None,
    /// It stopped in order, at this time (ms since 1970).
    Clean(u64),
    /// It was killed, it crashed, or the power went. Nothing is lost that it acknowledged if it was
    /// `sync`; what was acknowledged in its last 100 ms may be lost if it was `async` and the
    /// machine went down with it.
    Unclean,
}

/// What was at the end of the last segment and is taken for a write that was not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: String,
    /// Where it is cut.
    pub offset: u64,
    /// How many bytes could not be used, without the zeros behind them.
    pub bytes: u64,
    /// What is wrong with them.
    pub why: &'static str,
}

/// One file that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFound {
    /// Its name.
    pub name: String,
    /// What its header says.
    pub header: Header,
    /// Up to where it is used.
    pub used_bytes: u64,
    /// Up to where it says itself that it is on the disk.
    pub proven_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
}

/// What is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The last life, unless the directory is new.
    pub life: Option<Life>,
    /// How it ended.
    pub ending: Ending,
    /// The number of the last record; 0 if there is none.
    pub last: u64,
    /// Every fence up to this one may have been given out; 0 if none was.
    pub fence_ceiling: Fence,
    /// How many records there are to replay.
    pub records: u64,
    /// What was cut off.
    pub cut: Option<Cut>,
    /// The files that count, in order.
    pub files: Vec<FileFound>,
}

impl Found {
    /// The files that a start writes: the last one, and those that are longer than what is used.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &FileFound> {
        let last = self.files.len().saturating_sub(1);
        let files = self.files.iter().enumerate();
        let files = files.filter(move |(at, it)| *at == last || it.len_bytes > it.used_bytes);
        files.map(|(_, file)| file)
    }

    /// Whether something that was acknowledged may not be here. It may not if the last life spoke before
    /// the disk had it, and did not end in order. What a life finds missing is missing still for the
    /// next one, unless it ends in order: clients may not yet have had the time to notice. A repair
    /// counts as a life that found something missing.
    #[must_use]
    pub fn may_have_lost(&self) -> bool {
        let is_doubtful = |life: Life| life.durability == Durability::Async || life.follows_loss;
        self.ending == Ending::Unclean && self.life.is_some_and(is_doubtful)
    }
}

/// How far reading has come, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Read so far.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
}

/// Who is shown what is read, in the order of the numbers.
pub(super) struct Visitor<'a> {
    pub(super) frame: &'a mut dyn FnMut(Place, &Frame<'_>, &Entry<'_>),
    pub(super) progress: &'a mut dyn FnMut(Reading),
    /// Asked now and then whether to give up.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

/// Where a frame is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The file's place among those that count, which is also their order.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Reads all files that count.
pub(super) fn read<D: Disk>(
    disk: &D,
    listing: &Listing,
    visitor: Visitor<'_>,
) -> Result<Found, LoadError> {
    let found = read_segments(disk, listing, listing.segments.len(), visitor)?;
    if let Some(newest) = &listing.newest {
        check_newest(listing, &found, newest)?;
    }
    Ok(found)
}

/// Whether the last segment is the newest one that was begun, or a later one.
fn check_newest(listing: &Listing, found: &Found, newest: &Header) -> Result<(), LoadError> {
    let is_foreign = |life: Life| life.salt != newest.life.salt;
    if found.life.is_some_and(is_foreign) {
        return Err(damage(LOCK, 0, newest.number, FOREIGN));
    }
    let last = listing.segments.last();
    let Some((name, _)) = last.filter(|(_, first)| *first >= newest.number) else {
        let missing = file_name(FileKind::Segment, newest.number);
        return Err(damage(&missing, 0, newest.number, MISSING));
    };
    if found
        .life
        .is_some_and(|life| life.epoch < newest.life.epoch)
    {
        let why = "the file is older than the one that was there";
        return Err(damage(name, 0, newest.number, why));
    }
    Ok(())
}

/// Reads all but the last segment, which is being written.
pub(super) fn read_closed<D: Disk>(
    disk: &D,
    listing: &Listing,
    visitor: Visitor<'_>,
) -> Result<Found, LoadError> {
    read_segments(disk, listing, listing.segments.len() - 1, visitor)
}

fn read_segments<D: Disk>(
    disk: &D,
    listing: &Listing,
    count: usize,
    visitor: Visitor<'_>,
) -> Result<Found, LoadError> {
    let mut pass = Pass {
        disk,
        visitor,
        found: Found {
            life: None,
            ending: Ending::None,
            last: 0,
            fence_ceiling: Fence(0),
            records: 0,
            cut: None,
            files: Vec::new(),
        },
        reading: Reading {
            done_bytes: 0,
            total_bytes: 0,
        },
    };
    let segments = &listing.segments[..count];
    for (name, _) in listing.snapshot.iter().chain(segments) {
        let file = disk.look_at(name).map_err(LoadError::io(name))?;
        pass.reading.total_bytes += file.len().map_err(LoadError::io(name))?;
    }
    if let Some((name, upto)) = &listing.snapshot {
        pass.snapshot(name, *upto)?;
        if listing.segments.is_empty() {
            let file = file_name(FileKind::Segment, upto + 1);
            return Err(damage(&file, 0, upto + 1, MISSING));
        }
    }
    for (index, (name, first)) in segments.iter().enumerate() {
        let next = listing.segments.get(index + 1).map(|(_, first)| *first);
        pass.segment(name, *first, next)?;
    }
    match pass.found.files.last() {
        Some(file) if pass.found.last > LAST_NUMBER_MAX => {
            let why = "no directory has so many records";
            Err(damage(&file.name, 0, pass.found.last, why))
        }
        _ => Ok(pass.found),
    }
}

/// What is wrong with a file that is not there.
pub(super) const MISSING: &str = "the file is missing";

/// What is wrong with a file that has another salt.
pub(super) const FOREIGN: &str = "the file is from another directory";

pub(super) fn damage(file: &str, offset: u64, number: u64, why: &'static str) -> LoadError {
    LoadError::Damaged(Damage {
        file: file.to_owned(),
        offset,
        number,
        why,
    })
}

struct Pass<'a, 'v, D> {
    disk: &'a D,
    visitor: Visitor<'v>,
    found: Found,
    reading: Reading,
}

impl<D: Disk> Pass<'_, '_, D> {
    fn snapshot(&mut self, name: &str, upto: u64) -> Result<(), LoadError> {
        let mut frames = self.open(name, FileKind::Snapshot, upto)?;
        let mut last = 0;
        let mut count = 0;
        loop {
            let at = frames.offset();
            let damaged = |why| damage(name, at, last + 1, why);
            match frames.next().map_err(LoadError::io(name))? {
                Next::Frame(_, frame, Entry::End { frames }) => {
                    if frame.number != upto || frames != count {
                        return Err(damaged("records are missing"));
                    }
                    break;
                }
                Next::Frame(offset, frame, entry) => {
                    // All ranges have the last number, which another record may have as well.
                    let lowest = match entry {
                        Entry::Ranged { .. } => last,
                        _ => last + 1,
                    };
                    if !(lowest..=upto).contains(&frame.number) {
                        return Err(damaged("the record is out of order"));
                    }
                    last = frame.number;
                    count += 1;
                    self.visit(offset, &frame, &entry);
                }
                Next::End => return Err(damaged("the file is cut")),
                Next::Bad(why) => return Err(damaged(why)),
            }
            self.report(frames.offset(), at)?;
        }
        self.found.last = upto;
        let used = frames.offset();
        self.finish(name, &frames, used, used);
        Ok(())
    }

    /// `next` is the first number of the segment behind this one, if there is one.
    fn segment(&mut self, name: &str, first: u64, next: Option<u64>) -> Result<(), LoadError> {
        let covered = self.found.last;
        let mut frames = self.open(name, FileKind::Segment, first)?;
        if first > covered + 1 {
            return Err(damage(
                name,
                0,
                covered + 1,
                "the file before it is missing",
            ));
        }
        let mut number = first; // of the next record
        let mut ending = Ending::Unclean;
        let mut proven = frames.offset(); // the header is, because the file has its name
        while next.is_none_or(|next| number < next) {
            let at = frames.offset();
            let (why, is_end) = match frames.next().map_err(LoadError::io(name))? {
                Next::Frame(offset, frame, entry) if frame.number == number => {
                    ending = Ending::Unclean;
                    if let Entry::Mark { durable } = entry {
                        if durable.saturating_add(1) >= number {
                            proven = at;
                        }
                        continue;
                    }
                    if let Entry::Stopped { at_ms } = entry {
                        ending = Ending::Clean(at_ms);
                    }
                    if number > covered {
                        self.visit(offset, &frame, &entry);
                    }
                    number += 1;
                    self.report(frames.offset(), at)?;
                    continue;
                }
                Next::Frame(..) => ("the record has another number", false),
                Next::End => ("records are missing", true),
                Next::Bad(why) => (why, false),
            };
            frames.go_to(at);
            if next.is_some() {
                return Err(damage(name, at, number, why));
            }
            if is_end {
                break;
            }
            if frames.proves(number).map_err(LoadError::io(name))? {
                return Err(damage(name, at, number, why));
            }
            self.found.cut = Some(Cut {
                file: name.to_owned(),
                offset: at,
                bytes: frames.end_of_bytes().map_err(LoadError::io(name))? - at,
                why,
            });
            ending = Ending::Unclean;
            break;
        }
        if number <= covered {
            return Err(damage(name, frames.offset(), number, "records are missing"));
        }
        self.found.ending = ending;
        self.found.last = number - 1;
        let used = frames.offset();
        // A later segment is proof of all of this one.
        let proven = if next.is_some() { used } else { proven };
        self.finish(name, &frames, used, proven);
        Ok(())
    }

    fn open(&self, name: &str, kind: FileKind, number: u64) -> Result<Frames<D::File>, LoadError> {
        self.go_on()?;
        let next = self.found.last + 1;
        let frames = match Frames::open(self.disk, name).map_err(LoadError::io(name))? {
            Ok(frames) => frames,
            Err(BadHeader::Damaged(why)) => return Err(damage(name, 0, next, why)),
            Err(BadHeader::TooNew(version)) => {
                let file = name.to_owned();
                return Err(LoadError::TooNew { file, version });
            }
        };
        let header = frames.header();
        if (header.kind, header.number) != (kind, number) {
            return Err(damage(name, 0, next, "the file has another one's name"));
        }
        let salt = self.found.life.map(|life| life.salt);
        if salt.is_some_and(|salt| salt != header.life.salt) {
            return Err(damage(name, 0, next, FOREIGN));
        }
        Ok(frames)
    }

    fn visit(&mut self, offset: u64, frame: &Frame<'_>, entry: &Entry<'_>) {
        let fence = match *entry {
            Entry::Fences { upto } => upto,
            Entry::Granted { token, .. } => token.fence,
            _ => Fence(0),
        };
        self.found.fence_ceiling = self.found.fence_ceiling.max(fence);
        self.found.records += u64::from(!matches!(entry, Entry::Stopped { .. }));
        let place = Place {
            file: self.found.files.len(),
            offset,
            len: frame.len() as u64,
        };
        (self.visitor.frame)(place, frame, entry);
    }

    fn go_on(&self) -> Result<(), LoadError> {
        match (self.visitor.is_over)() {
            true => Err(LoadError::Abandoned),
            false => Ok(()),
        }
    }

    /// A file is read up to here; before it was up to there.
    fn report(&mut self, offset: u64, before: u64) -> Result<(), LoadError> {
        if offset / PROGRESS_BYTES != before / PROGRESS_BYTES {
            let reading = self.reading;
            (self.visitor.progress)(Reading {
                done_bytes: reading.done_bytes + offset,
                ..reading
            });
            self.go_on()?;
        }
        Ok(())
    }

    fn finish(&mut self, name: &str, frames: &Frames<D::File>, used_bytes: u64, proven_bytes: u64) {
        self.reading.done_bytes += frames.len();
        (self.visitor.progress)(self.reading);
        self.found.life = Some(frames.header().life);
        self.found.files.push(FileFound {
            name: name.to_owned(),
            header: *frames.header(),
            used_bytes,
            proven_bytes,
            len_bytes: frames.len(),
        });
    }
}

/// The records of a directory, to be replayed into an engine.
#[derive(Debug)]
pub struct Restore<D> {
    pub(super) disk: D,
    /// With the segment of the new life, which is not read.
    pub(super) listing: Listing,
}

impl<D: Disk> Restore<D> {
    /// Shows all records in order. `clocks` is the present moment: values whose time of day is over
    /// come as values that end now, so that their end is recorded like any other.
    ///
    /// # Errors
    /// The directory was whole when it was opened, so an error is the disk's.
    pub fn each(
        &self,
        clocks: Clocks,
        mut record: impl FnMut(Record),
        mut progress: impl FnMut(Reading),
    ) -> Result<(), LoadError> {
        let visitor = Visitor {
            frame: &mut |_, _, entry| {
                if let Some(it) = entry.record(clocks) {
                    record(it);
                }
            },
            progress: &mut progress,
            is_over: &|| false,
        };
        read_closed(&self.disk, &self.listing, visitor).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Listing::of(&names)
    }

    fn segment(number: u64) -> String {
        file_name(FileKind::Segment, number)
    }

    fn snapshot(number: u64) -> String {
        file_name(FileKind::Snapshot, number)
    }

    #[test]
    fn a_name_says_what_the_file_is_or_it_is_not_ours() {
        assert_eq!(parse_name(&segment(7)), Some((FileKind::Segment, 7)));
        let highest = Some((FileKind::Snapshot, NUMBER_LIMIT - 1));
        assert_eq!(parse_name(&snapshot(NUMBER_LIMIT - 1)), highest);
        for name in [
            "",
            ".log",
            "7.log",
            "LOCK",
            "0000000000000000000x.log",
            "+0000000000000000007.log",
            "99999999999999999999.log",
            "18446744073709551615.log",
            "04611686018427387904.snapshot",
            "00000000000000000007.log.before-repair-1",
            "00000000000000000007.log.tmp",
        ] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_newest_snapshot_counts_and_what_is_behind_it() {
        let unfinished = format!("{}{UNFINISHED}", snapshot(9));
        let found = listing(&[
            &segment(1),
            &segment(4),
            &segment(8),
            &segment(11),
            &snapshot(3),
            &snapshot(7),
            &unfinished,
            "notes.txt",
        ]);
        assert_eq!(found.snapshot, Some((snapshot(7), 7)));
        assert_eq!(found.segments, [(segment(8), 8), (segment(11), 11)]);
        let mut leftovers = found.leftovers;
        leftovers.sort();
        let expected = [segment(1), snapshot(3), segment(4), unfinished];
        assert_eq!(leftovers, expected);
    }

    #[test]
    fn a_segment_that_the_snapshot_covers_in_part_counts() {
        let found = listing(&[&segment(1), &segment(9), &snapshot(4)]);
        assert_eq!(found.segments, [(segment(1), 1), (segment(9), 9)]);
        let found = listing(&[&segment(1), &snapshot(4)]);
        assert_eq!(found.segments, [(segment(1), 1)], "the last always counts");
    }
}
