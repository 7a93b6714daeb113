//! Compaction: what is left of closed segments becomes a snapshot, and they are removed.
//!
//! A snapshot is the frames that still matter, byte for byte and in the order of their numbers; it is
//! replayed like a segment. What matters is found by replaying, and only the places of frames are
//! remembered, not what they say, so that memory depends on how many things there are and not on how
//! large they are. Byte ranges are different: what is left of an owner's is often not what any single
//! frame says, so they are written anew, behind everything else. Runs beside everything else: closed
//! files never change.
//!
//! The snapshot gets its name when it is wholly on the disk, and only then is anything removed. A
//! crash before leaves an unfinished file, a crash after leaves files that nobody needs; the next
//! start removes either.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;

use rustix::io::Errno;

use super::disk::{Disk, DiskFile};
use super::entry::Entry;
use super::format::{FileKind, Frame, HEADER_BYTES, Header, Life, push_end, push_ranged};
use super::load::{self, Listing, LoadError, Place, UNFINISHED, Visitor, file_name};
use super::ranges::{LockedRange, Ranges};
use super::read::read_full;
use super::writer::Closed;
use crate::base::Fence;
use crate::engine::types::End;
use crate::shard::crc32;

/// How much is written between two syncs. Little, because a sync of the journal may have to wait for
/// what the file system has not yet written of us.
const SYNC_BYTES: usize = 4 << 20;

/// How much is copied at a time.
const COPY_BYTES: usize = 1 << 18;

/// What is to be compacted. Says nothing but names, so it can go to another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub(super) life: Life,
    pub(super) snapshot: Option<Closed>,
    pub(super) segments: Vec<Closed>,
    /// The number of the last record in them.
    pub(super) upto: u64,
    /// The compaction gives up if it would leave less room than this for the next segment.
    pub(super) leave_bytes: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The new snapshot.
    pub snapshot: Closed,
    /// How many segments it stands for.
    pub segments: usize,
    /// How many frames are in it.
    pub frames: u64,
    /// How many bytes the files took that are gone.
    pub bytes_before: u64,
}

/// Why nothing came of it.
#[derive(Debug)]
pub enum NotCompacted {
    /// The files that were to be compacted cannot be read.
    Unreadable(LoadError),
    /// The snapshot cannot be written. The directory is as it was.
    Unwritable(io::Error),
    /// The snapshot is there, but nobody knows whether it will be after a crash: the sync of its name
    /// failed. As after any sync that failed, nothing more may be written or said.
    Failed(io::Error),
    /// The daemon stops.
    Abandoned,
}

impl fmt::Display for NotCompacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Unwritable(error) => write!(f, "cannot write a snapshot: {error}"),
            Self::Failed(error) => write!(f, "cannot keep the name of a snapshot: {error}"),
            Self::Abandoned => f.write_str("the daemon stops"),
        }
    }
}

impl From<io::Error> for NotCompacted {
    fn from(error: io::Error) -> Self {
        Self::Unwritable(error)
    }
}

impl Job {
    /// Does it all. `is_over` is asked now and then whether to give up.
    ///
    /// # Errors
    /// Nothing was removed; see [`NotCompacted`].
    pub fn run<D: Disk>(
        &self,
        disk: &D,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Compacted, NotCompacted> {
        let name = file_name(FileKind::Snapshot, self.upto);
        let unfinished = format!("{name}{UNFINISHED}");
        let live = self.find_live(disk, is_over)?;
        let write = || {
            let written = self.write(disk, &unfinished, &live, is_over)?;
            disk.rename(&unfinished, &name)?;
            Ok(written)
        };
        let (frames, bytes) = write().inspect_err(|_: &NotCompacted| {
            let _ = disk.remove(&unfinished); // or it would take the room that others need
        })?;
        disk.sync_names().map_err(NotCompacted::Failed)?;
        // Whatever is left behind now is removed by the next start.
        let old = self.segments.iter().chain(&self.snapshot);
        for old in old.clone().filter(|old| old.name != name) {
            let _ = disk.remove(&old.name);
        }
        Ok(Compacted {
            snapshot: Closed { name, bytes },
            segments: self.segments.len(),
            frames,
            bytes_before: old.map(|old| old.bytes).sum(),
        })
    }

    fn find_live<D: Disk>(
        &self,
        disk: &D,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Live, NotCompacted> {
        let number = |closed: &Closed| {
            let number = closed.name.get(..20).and_then(|it| it.parse().ok());
            (closed.name.clone(), number.unwrap_or(0))
        };
        let mut segments: Vec<(String, u64)> = self.segments.iter().map(number).collect();
        // The one that is being written is not read, but its number ends the last closed one.
        let open = file_name(FileKind::Segment, self.upto + 1);
        segments.push((open, self.upto + 1));
        let listing = Listing {
            snapshot: self.snapshot.as_ref().map(number),
            segments,
            leftovers: Vec::new(),
            newest: None,
        };
        let mut live = Live::default();
        let visitor = Visitor {
            frame: &mut |place, _, entry| live.apply(place, entry),
            progress: &mut |_| {},
            is_over,
        };
        match load::read_closed(disk, &listing, visitor) {
            Ok(_) => Ok(live),
            Err(LoadError::Abandoned) => Err(NotCompacted::Abandoned),
            Err(error) => Err(NotCompacted::Unreadable(error)),
        }
    }

    fn write<D: Disk>(
        &self,
        disk: &D,
        unfinished: &str,
        live: &Live,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(u64, u64), NotCompacted> {
        let mut out = SnapshotWriter::create(disk, unfinished, self.life, self.upto)?;
        let names: Vec<&str> = self
            .snapshot
            .iter()
            .chain(&self.segments)
            .map(|it| &*it.name)
            .collect();
        for run in live.places().chunk_by(|one, other| one.file == other.file) {
            let file = disk.look_at(names[run[0].file as usize])?;
            for place in run {
                if is_over() {
                    return Err(NotCompacted::Abandoned);
                }
                out.copy(&file, *place)?;
                self.leave_room(disk, &mut out)?;
            }
        }
        for range in live.ranges.iter() {
            if is_over() {
                return Err(NotCompacted::Abandoned);
            }
            out.add_range(range)?;
            self.leave_room(disk, &mut out)?;
        }
        Ok(out.finish()?)
    }

    /// Gives up if the next segment would find too little room. Looks now and then.
    fn leave_room<D: Disk>(
        &self,
        disk: &D,
        out: &mut SnapshotWriter<D::File>,
    ) -> Result<(), NotCompacted> {
        if out.written >= out.looked_at + COPY_BYTES as u64 {
            out.looked_at = out.written;
            if disk.free_bytes()? < self.leave_bytes {
                return Err(io::Error::from(Errno::NOSPC).into());
            }
        }
        Ok(())
    }
}

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl From<Place> for At {
    fn from(place: Place) -> Self {
        Self {
            file: place.file as u32,
            offset: place.offset,
            len: place.len as u32,
        }
    }
}

/// The frames that still matter.
#[derive(Default)]
pub(super) struct Live {
    /// The grant, and the renewal that made it longest.
    grants: HashMap<GrantId, (At, Option<At>)>,
    /// Those that have become a client's later. Few, so they take nothing of the others.
    owned: HashMap<GrantId, At>,
    counters: HashMap<Box<[u8]>, At>,
    values: HashMap<Box<[u8]>, At>,
    lists: HashMap<Box<[u8]>, VecDeque<At>>,
    /// When each client came, because its grants stand behind that, and what it was changed to last.
    clients: HashMap<Box<str>, (At, Option<At>)>,
    pub(super) ranges: Ranges,
    fences: Option<At>,
}

/// The fence and the CRC-32 of the key, which no two grants share. Of one server no two share even the fence; but
/// what was kept by several may have become one (`etcd/split.rs`), and then two keys may have the same fence.
/// Not if they have the same CRC-32, because then they were always in the hands of one server.
type GrantId = (u64, u32);

fn grant_id(key: &[u8], fence: Fence) -> GrantId {
    (fence.0, crc32(key))
}

impl Live {
    pub(super) fn apply(&mut self, at: impl Into<At>, entry: &Entry<'_>) {
        let at = at.into();
        match *entry {
            Entry::Granted { key, token, .. } => {
                self.grants.insert(grant_id(key, token.fence), (at, None));
            }
            Entry::Lengthened { key, fence, .. } => {
                if let Some((_, longest)) = self.grants.get_mut(&grant_id(key, fence)) {
                    *longest = Some(at);
                }
            }
            Entry::Owned { key, fence, .. } => {
                let id = grant_id(key, fence);
                if self.grants.contains_key(&id) {
                    self.owned.insert(id, at);
                }
            }
            Entry::Ended { key, fence } => {
                let id = grant_id(key, fence);
                self.grants.remove(&id);
                self.owned.remove(&id);
            }
            Entry::Counted { key, value: 0 } => {
                self.counters.remove(key);
            }
            Entry::Counted { key, .. } => {
                self.counters.insert(key.into(), at);
            }
            Entry::Stored { key, .. } => {
                self.values.insert(key.into(), at);
            }
            Entry::Deleted { key } => {
                self.values.remove(key);
            }
            // What is left of a list is its pushes that were not popped, and to repeat just these in
            // their order makes the same list: one pushed at the left stands before everything that
            // was there, and before everything pushed at the right later.
            Entry::Pushed { key, end, .. } => {
                let list = match self.lists.get_mut(key) {
                    Some(list) => list,
                    None => self.lists.entry(key.into()).or_default(),
                };
                match end {
                    End::Left => list.push_front(at),
                    End::Right => list.push_back(at),
                }
            }
            Entry::Popped { key, end } => {
                if let Some(list) = self.lists.get_mut(key) {
                    match end {
                        End::Left => list.pop_front(),
                        End::Right => list.pop_back(),
                    };
                    if list.is_empty() {
                        self.lists.remove(key);
                    }
                }
            }
            Entry::Client { id, .. } => match self.clients.get_mut(id) {
                Some((_, latest)) => *latest = Some(at),
                None => {
                    self.clients.insert(id.into(), (at, None));
                }
            },
            Entry::ClientGone { id } => {
                self.clients.remove(id);
                self.ranges.forget_client(id);
            }
            Entry::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                grant,
            } => self.ranges.set(resource, client, owner, range, mode, grant),
            Entry::Fences { .. } => self.fences = Some(at),
            Entry::Mark { .. } | Entry::Stopped { .. } | Entry::End { .. } => {}
        }
    }

    /// Forgets the ranges of clients of whom nothing else is known.
    pub(super) fn forget_ranges_of_strangers(&mut self) {
        let clients = &self.clients;
        self.ranges.retain_clients(|id| clients.contains_key(id));
    }

    /// The places in the order of the numbers, of everything but the ranges.
    pub(super) fn places(&self) -> Vec<At> {
        let grants = self.grants.values().chain(self.clients.values());
        let grants = grants.flat_map(|(first, latest)| [Some(*first), *latest]);
        let mut places: Vec<At> = grants.flatten().collect();
        places.extend(self.owned.values());
        places.extend(self.counters.values());
        places.extend(self.values.values());
        places.extend(self.lists.values().flatten());
        places.extend(self.fences);
        places.sort_unstable();
        places
    }
}

/// Writes the file of a snapshot.
pub(super) struct SnapshotWriter<F> {
    file: F,
    life: Life,
    upto: u64,
    bytes: Vec<u8>,
    /// How much of the file is written, without `bytes`.
    written: u64,
    /// How much was written when room was looked for.
    looked_at: u64,
    unsynced: usize,
    frames: u64,
}

impl<F: DiskFile> SnapshotWriter<F> {
    pub(super) fn create<D: Disk<File = F>>(
        disk: &D,
        name: &str,
        life: Life,
        upto: u64,
    ) -> io::Result<Self> {
        let header = Header {
            kind: FileKind::Snapshot,
            number: upto,
            life,
        };
        let mut bytes = Vec::with_capacity(COPY_BYTES + HEADER_BYTES);
        bytes.extend_from_slice(&header.encode());
        Ok(Self {
            file: disk.create(name)?,
            life,
            upto,
            bytes,
            written: 0,
            looked_at: 0,
            unsynced: 0,
            frames: 0,
        })
    }

    /// Takes over a frame as it is. It is read again, so its checksum is looked at again.
    pub(super) fn copy(&mut self, file: &impl DiskFile, at: At) -> io::Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + at.len as usize, 0);
        let got = read_full(file, &mut self.bytes[start..], at.offset)?;
        if got < at.len as usize || Frame::decode(&self.bytes[start..], self.life.salt).is_none() {
            let why = "a record is not as it was when it was read before";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.added()
    }

    /// Adds a frame that `push` makes.
    pub(super) fn add(&mut self, push: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        push(&mut self.bytes);
        self.added()
    }

    /// Adds a range. It has the snapshot's number, because there can be more ranges than there were
    /// records: one in the middle of another leaves three.
    pub(super) fn add_range(&mut self, locked: LockedRange<'_>) -> io::Result<()> {
        let LockedRange {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } = locked;
        let (salt, number) = (self.life.salt, self.upto);
        let names = [resource, client.as_bytes(), owner];
        self.add(|bytes| push_ranged(bytes, salt, number, names, range, Some(mode), grant))
    }

    fn added(&mut self) -> io::Result<()> {
        self.frames += 1;
        if self.bytes.len() >= COPY_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(&self.bytes, self.written)?;
        self.written += self.bytes.len() as u64;
        self.unsynced += self.bytes.len();
        self.bytes.clear();
        if self.unsynced >= SYNC_BYTES {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Everything is on the disk. Returns the number of frames, and of bytes.
    pub(super) fn finish(mut self) -> io::Result<(u64, u64)> {
        push_end(&mut self.bytes, self.life.salt, self.upto, self.frames);
        self.flush()?;
        self.file.sync()?;
        Ok((self.frames, self.written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Millis, Token};
    use crate::engine::types::{ByteRange, Mode, RangeGrant, SecretHash, Sharing};

    /// Which of these entries matter, by their places.
    fn left(entries: &[Entry<'_>]) -> Vec<u64> {
        let mut live = Live::default();
        for (offset, entry) in (0..).zip(entries) {
            let at = At {
                file: 0,
                offset,
                len: 1,
            };
            live.apply(at, entry);
        }
        live.places().iter().map(|at| at.offset).collect()
    }

    fn granted(key: &[u8], fence: u64) -> Entry<'_> {
        Entry::Granted {
            key,
            mode: Mode::Read,
            token: Token {
                fence: Fence(fence),
                salt: 0,
            },
            lease: Millis(1),
            client: 1,
            name: None,
            request: b"",
        }
    }

    fn lengthened(fence: u64) -> Entry<'static> {
        Entry::Lengthened {
            key: b"a",
            fence: Fence(fence),
            lease: Millis(2),
        }
    }

    #[test]
    fn a_grant_matters_until_it_ends_and_only_its_longest_renewal() {
        let (key, fence) = (&b"a"[..], Fence(1));
        let entries = [
            granted(key, 1),
            granted(key, 2),
            lengthened(1),
            lengthened(1),
        ];
        assert_eq!(left(&entries), [0, 1, 3]);
        let entries = [granted(key, 1), lengthened(1), Entry::Ended { key, fence }];
        assert!(left(&entries).is_empty());
    }

    #[test]
    fn grants_of_two_keys_may_have_the_same_fence() {
        let entries = [granted(b"a", 1), granted(b"b", 1), lengthened(1)];
        assert_eq!(left(&entries), [0, 1, 2]);
        let (key, fence) = (&b"b"[..], Fence(1));
        let ended = [&entries[..], &[Entry::Ended { key, fence }]].concat();
        assert_eq!(left(&ended), [0, 2]);
    }

    #[test]
    fn kinds_do_not_share_names() {
        let key = &b"a"[..];
        let counted = |value| Entry::Counted { key, value };
        let stored = Entry::Stored {
            key,
            value: b"v",
            ends_ms: None,
        };
        let pushed = Entry::Pushed {
            key,
            end: End::Left,
            value: b"v",
        };
        let all = [granted(key, 1), counted(1), stored, pushed];
        assert_eq!(left(&all), [0, 1, 2, 3]);
        let gone = [counted(0), Entry::Deleted { key }];
        assert_eq!(left(&[&all[..], &gone[..]].concat()), [0, 3]);
    }

    #[test]
    fn a_client_matters_from_when_it_came_until_it_is_gone() {
        let client = |ttl| Entry::Client {
            id: "gw/1",
            ttl: Millis(ttl),
            secret: SecretHash {
                salt: [1; 16],
                hash: [2; 32],
            },
        };
        let gone = Entry::ClientGone { id: "gw/1" };
        let entries = [client(1), granted(b"a", 1), client(2), client(3)];
        assert_eq!(left(&entries), [0, 1, 3]);
        assert_eq!(left(&[&entries[..], &[gone]].concat()), [1]);
        assert_eq!(left(&[client(1), gone, client(2)]), [2]);
    }

    #[test]
    fn ranges_matter_until_their_client_is_gone_and_have_no_place() {
        let ranged = |client| Entry::Ranged {
            resource: b"file",
            client,
            owner: b"",
            range: ByteRange::new(0, 9).unwrap(),
            mode: Some(Sharing::Shared),
            grant: RangeGrant::default(),
        };
        let mut live = Live::default();
        let at = At {
            file: 0,
            offset: 0,
            len: 1,
        };
        live.apply(at, &ranged("gw/1"));
        live.apply(at, &ranged("gw/2"));
        live.apply(at, &Entry::ClientGone { id: "gw/1" });
        let clients: Vec<&str> = live.ranges.iter().map(|it| it.client).collect();
        assert_eq!(clients, ["gw/2"]);
        assert!(live.places().is_empty());
    }

    #[test]
    fn only_the_last_reservation_of_fences_matters() {
        let fences = |upto| Entry::Fences { upto: Fence(upto) };
        assert_eq!(left(&[fences(10), fences(20)]), [1]);
    }
}
