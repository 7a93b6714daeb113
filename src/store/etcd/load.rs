//! What is in etcd, read from the beginning or from where one has got to.
//!
//! Nothing is asked for as it was at an earlier revision: etcd forgets those, and whoever reads for longer
//! than it takes until then would never come to an end. Entries and pieces of snapshots never change, and
//! what is trimmed while it is read is noticed. Everything is checked: an entry that cannot be read,
//! that is missing or that does not follow the one before is damage, and nobody leads on top of it.

use std::fmt;
use std::time::Duration;

use crc32c::crc32c_append;

use super::keys::Keys;
use super::value::{Logged, Manifest, Unreadable, frames};
use crate::etcd::{Answer, Ask, Compare, Etcd, Get, Got, Kv, Op, Trouble};

/// How many entries or pieces are read at a time: some MiB, if they are as long as they may be.
const PAGE: u64 = 24;

/// Entries are mostly short. After a page of less than this the next one has twice as many, up to so many.
const PAGE_BYTES: usize = 512 << 10;
const PAGE_MAX: u64 = 192;

/// How far one has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Everything up to this revision of etcd was seen.
    pub revision: u64,
    /// The last entry.
    pub seq: u64,
    /// The revision at which the key of the leader was created that wrote it.
    pub leader: u64,
    /// Its epoch.
    pub epoch: u64,
    /// What tells it from any other entry.
    pub nonce: [u64; 2],
    /// The number of the last record.
    pub number: u64,
    /// The revision of the snapshot that counts; 0 if there is none.
    pub snap_revision: u64,
    /// The entry up to which that stands for everything.
    pub snap_seq: u64,
}

impl Position {
    /// Whether the entry that stands here is the last one that was read. If something else is there, or
    /// nothing, etcd was restored from a backup, or the log was trimmed while nobody listened.
    ///
    /// # Errors
    /// It is not.
    pub fn is_here(&self, here: Option<&Kv>) -> Result<(), NotRead> {
        let here = here.and_then(|kv| Logged::decode(&kv.value).ok());
        let is_ours = here.is_some_and(|it| {
            (it.epoch, it.leader, it.nonce) == (self.epoch, self.leader, self.nonce)
        });
        match is_ours {
            true => Ok(()),
            false => Err(NotRead::Gone(format!(
                "entry {} is not there any more",
                self.seq
            ))),
        }
    }
}

/// Why it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRead {
    /// It was not answered.
    Trouble(Trouble),
    /// Something is there that cannot be, or is missing.
    Damaged(String),
    /// Where one had got to is nothing any more, or something else: it has to be loaded anew.
    Gone(String),
}

impl fmt::Display for NotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble(trouble) => trouble.fmt(f),
            Self::Damaged(why) => write!(f, "what etcd has cannot be used: {why}"),
            Self::Gone(why) => f.write_str(why),
        }
    }
}

impl NotRead {
    /// Whether etcd has forgotten what was asked for: everything has to be loaded anew.
    #[must_use]
    pub fn is_compacted(&self) -> bool {
        *self == Self::Trouble(Trouble::Compacted)
    }
}

impl From<Trouble> for NotRead {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// Takes records: whole frames, in order.
pub type Frames<'a> = &'a mut dyn FnMut(&[u8]);

/// A new log begins with an entry without records, unless there is something already.
///
/// # Errors
/// Nobody knows whether it was done; it can be asked again.
pub fn create(etcd: &mut dyn Etcd, keys: &Keys, within: Duration) -> Result<(), Trouble> {
    let first = Logged {
        leader: 0,
        nonce: [0; 2],
        epoch: 0,
        first: 1,
        frames: Vec::new(),
    };
    let ask = Ask::Txn {
        compare: vec![
            Compare::Created(keys.entry(0), 0),
            Compare::Created(keys.snap(), 0),
        ],
        success: vec![Op::Put {
            key: keys.entry(0),
            value: first.encode(),
            lease: 0,
        }],
        failure: Vec::new(),
    };
    etcd.call(&ask, within).map(|_| ())
}

/// Reads everything, from the snapshot on. `None`: there is nothing yet.
///
/// # Errors
/// What was handed to `each` so far is then to be forgotten.
pub fn load(
    etcd: &mut dyn Etcd,
    keys: &Keys,
    within: Duration,
    each: Frames<'_>,
) -> Result<Option<Position>, NotRead> {
    let (_, snap) = read(etcd, Get::one(&keys.snap()), within)?;
    let snap = snap.kvs.first();
    let loaded = load_from(etcd, keys, snap, within, each);
    if !matches!(loaded, Err(NotRead::Damaged(_))) {
        return loaded;
    }
    // What is missing may have been deleted since, because there is a snapshot after the next by now.
    let (_, snap_now) = read(etcd, Get::one(&keys.snap()), within)?;
    let published = |kv: Option<&Kv>| kv.map_or(0, |it| it.modified);
    match published(snap) == published(snap_now.kvs.first()) {
        true => loaded,
        false => Err(NotRead::Gone(
            "the log was trimmed while it was read".to_owned(),
        )),
    }
}

/// The same, from this snapshot on.
fn load_from(
    etcd: &mut dyn Etcd,
    keys: &Keys,
    snap: Option<&Kv>,
    within: Duration,
    each: Frames<'_>,
) -> Result<Option<Position>, NotRead> {
    let mut position = Position::default();
    let first = match snap {
        None => 0,
        Some(kv) => {
            let manifest = Manifest::decode(&kv.value)
                .map_err(|why| damaged("the snapshot's description", why))?;
            each(&read_snapshot(etcd, keys, &manifest, within)?);
            position.snap_revision = kv.modified;
            position.snap_seq = manifest.seq;
            position.epoch = manifest.epoch;
            position.number = manifest.number;
            manifest.seq
        }
    };
    // The last entry that the snapshot stands for is still there, and says who wrote it. One read tells whether
    // there is no log yet or one whose beginning is gone: between two reads another member may create it.
    let from_there = Get {
        key: keys.entry(first),
        end: keys.entries_end(),
        limit: 1,
        revision: 0,
    };
    let (_, got) = read(etcd, from_there, within)?;
    let kv = match got.kvs.first() {
        Some(kv) if kv.key == keys.entry(first) => kv,
        None if first == 0 => return Ok(None),
        _ if first == 0 => return Err(NotRead::Damaged("the log has no beginning".to_owned())),
        _ => return Err(NotRead::Damaged(format!("entry {first} is missing"))),
    };
    let logged =
        Logged::decode(&kv.value).map_err(|why| damaged(&format!("entry {first}"), why))?;
    if first == 0 {
        (position.epoch, position.number) = (logged.epoch, logged.last());
    } else if (position.epoch, position.number) != (logged.epoch, logged.last()) {
        return Err(NotRead::Damaged(format!(
            "entry {first} is not the one that the snapshot stands for"
        )));
    }
    (position.seq, position.leader) = (first, logged.leader);
    position.nonce = logged.nonce;
    position.revision = read_on(etcd, keys, &mut position, within, each)?;
    Ok(Some(position))
}

/// What has come since, as far as one page goes.
#[must_use]
pub fn next_page(keys: &Keys, position: &Position) -> Get {
    Get {
        key: keys.entry(position.seq + 1),
        end: keys.entries_end(),
        limit: PAGE,
        revision: 0,
    }
}

/// Reads what has come since, to its end. Returns the revision at which that was the end.
///
/// # Errors
/// `position` says how far it has got; it can be asked again, unless it is damaged.
pub fn read_on(
    etcd: &mut dyn Etcd,
    keys: &Keys,
    position: &mut Position,
    within: Duration,
    each: Frames<'_>,
) -> Result<u64, NotRead> {
    let mut page = PAGE;
    loop {
        let get = Get {
            limit: page,
            ..next_page(keys, position)
        };
        let (revision, got) = match read(etcd, get, within) {
            Ok(answer) => answer,
            // So many may be more than fits into an answer, or takes too long.
            Err(Trouble::Unanswered(_) | Trouble::Garbled(_)) if page > PAGE => {
                page = PAGE;
                continue;
            }
            Err(why) => return Err(why.into()),
        };
        let bytes: usize = got.kvs.iter().map(|kv| kv.value.len()).sum();
        page = match bytes < PAGE_BYTES {
            true => (page * 2).min(PAGE_MAX),
            false => PAGE,
        };
        for kv in &got.kvs {
            follow(keys, position, kv, each)?;
        }
        if !got.more {
            return Ok(revision);
        }
    }
}

/// The next entry.
///
/// # Errors
/// It is not the next one, or cannot be read.
pub fn follow(
    keys: &Keys,
    position: &mut Position,
    kv: &Kv,
    each: Frames<'_>,
) -> Result<(), NotRead> {
    let seq = position.seq + 1;
    if keys.seq_of(&kv.key) != Some(seq) {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        return Err(NotRead::Damaged(format!(
            "{key} stands where entry {seq} belongs"
        )));
    }
    let logged = Logged::decode(&kv.value).map_err(|why| damaged(&format!("entry {seq}"), why))?;
    let is_same = (logged.epoch, logged.leader) == (position.epoch, position.leader);
    let is_next = logged.epoch == position.epoch + 1 && logged.leader > position.leader;
    let follows = logged.first == position.number + 1 && (is_same || is_next);
    if !follows {
        return Err(NotRead::Damaged(format!(
            "entry {seq} does not follow the one before: record {} behind {}, leader {} behind {}, \
             epoch {} behind {}",
            logged.first,
            position.number,
            logged.leader,
            position.leader,
            logged.epoch,
            position.epoch
        )));
    }
    each(&logged.frames);
    *position = Position {
        seq,
        leader: logged.leader,
        epoch: logged.epoch,
        nonce: logged.nonce,
        number: logged.last(),
        ..*position
    };
    Ok(())
}

fn read_snapshot(
    etcd: &mut dyn Etcd,
    keys: &Keys,
    manifest: &Manifest,
    within: Duration,
) -> Result<Vec<u8>, NotRead> {
    let mut bytes = Vec::new();
    let (mut index, mut checksum) = (0, 0);
    while index < manifest.chunks {
        let get = Get {
            key: keys.chunk(manifest.seq, index),
            end: keys.chunk(manifest.seq, manifest.chunks),
            limit: PAGE,
            revision: 0,
        };
        let (_, got) = read(etcd, get, within)?;
        for kv in &got.kvs {
            if kv.key != keys.chunk(manifest.seq, index) {
                break;
            }
            checksum = crc32c_append(checksum, &kv.value);
            bytes.extend_from_slice(&kv.value);
            index += 1;
        }
        let is_stuck = got.kvs.is_empty() || bytes.len() as u64 > manifest.bytes;
        if is_stuck || index < manifest.chunks && !got.more {
            return Err(NotRead::Damaged(
                "a piece of the snapshot is missing".to_owned(),
            ));
        }
    }
    if bytes.len() as u64 != manifest.bytes || checksum != manifest.checksum {
        return Err(NotRead::Damaged(
            "the snapshot's checksum is wrong".to_owned(),
        ));
    }
    let unreadable = frames(&bytes).find_map(Result::err);
    match unreadable {
        Some(why) => Err(damaged("the snapshot", why)),
        None => Ok(bytes),
    }
}

fn read(etcd: &mut dyn Etcd, get: Get, within: Duration) -> Result<(u64, Got), Trouble> {
    match etcd.call(&Ask::Range(get), within)? {
        Answer::Range { revision, got } => Ok((revision, got)),
        other => Err(Trouble::Garbled(format!("{other:?}"))),
    }
}

fn damaged(what: &str, Unreadable(why): Unreadable) -> NotRead {
    NotRead::Damaged(format!("{what}: {why}"))
}
