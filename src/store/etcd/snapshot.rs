//! What is left of the log becomes a snapshot: read, thinned out, written in pieces, published, and what the
//! one before it stands for is deleted.
//!
//! That one itself stays until the next is published, with the log between the two: whoever has begun
//! to read it has the time between two snapshots to come to its end, and goes on along the log.
//!
//! As in a directory (`store/compact.rs`) a snapshot is the frames that still matter, and it counts only
//! when all of it is there. Every step is guarded by the leader's key: who leads no longer neither
//! publishes nor deletes anything. The pieces of a snapshot that was never published are deleted by the
//! next one.
//!
//! And every step is guarded by the one before it. If etcd is restored from a backup while a snapshot is written, a part
//! of its pieces is gone, and yet the leader may be the same: without that guard the snapshot would count with a hole in it,
//! and what it should stand for would be deleted.

use std::time::Duration;

use crc32c::crc32c;

use super::super::compact::{At, Live};
use super::super::format::{push_end, push_ranged};
use super::super::ranges::LockedRange;
use super::keys::{CHUNKS_MAX, Keys};
use super::load::{NotRead, Position, load};
use super::value::{Manifest, SALT, Unreadable, frame_places, frames};
use crate::etcd::{Answer, Ask, Compare, Etcd, Op, Trouble};

/// A snapshot that has not been written.
#[derive(Debug)]
pub struct Snapshot {
    position: Position,
    bytes: Vec<u8>,
    chunk_bytes: usize,
}

/// Reads everything, and finds what still matters of it.
///
/// # Errors
/// It cannot be read.
pub fn prepare(
    etcd: &mut dyn Etcd,
    keys: &Keys,
    chunk_bytes: usize,
    within: Duration,
) -> Result<Snapshot, NotRead> {
    let mut files: Vec<Vec<u8>> = Vec::new();
    let position = load(etcd, keys, within, &mut |frames| {
        files.push(frames.to_vec())
    })?;
    let Some(position) = position else {
        return Err(NotRead::Damaged("there is no log".to_owned()));
    };
    let bytes = thin_out(&files, position.number)
        .map_err(|Unreadable(why)| NotRead::Damaged(why.to_owned()))?;
    Ok(Snapshot {
        position,
        chunk_bytes: chunk_bytes.max(bytes.len().div_ceil(CHUNKS_MAX)),
        bytes,
    })
}

/// The frames that still matter, in the order of their numbers.
fn thin_out(files: &[Vec<u8>], number: u64) -> Result<Vec<u8>, Unreadable> {
    let mut live = Live::default();
    for (file, bytes) in files.iter().enumerate() {
        for (place, frame) in frame_places(bytes).zip(frames(bytes)) {
            let (offset, length) = place?;
            let at = At {
                file: file as u32,
                offset: offset as u64,
                len: length as u32,
            };
            live.apply(at, &frame?.1);
        }
    }
    let mut out = Vec::new();
    let mut count = 0;
    for at in live.places() {
        let offset = at.offset as usize;
        let frame = &files[at.file as usize][offset..offset + at.len as usize];
        out.extend_from_slice(frame);
        count += 1;
    }
    for range in live.ranges.iter() {
        let LockedRange {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } = range;
        let names = [resource, client.as_bytes(), owner];
        push_ranged(&mut out, SALT, number, names, range, Some(mode), grant);
        count += 1;
    }
    push_end(&mut out, SALT, number, count);
    Ok(out)
}

impl Snapshot {
    /// It stands for everything up to this entry.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.position.seq
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there is nothing new in it.
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.position.snap_revision != 0 && self.position.snap_seq == self.position.seq
    }

    /// Writes all pieces, for the leader whose key was created at this revision, and calls `rest` behind each. Returns
    /// the revision of the last one.
    ///
    /// # Errors
    /// We lead no longer, something that it stands on is not there, or it was not answered.
    pub fn write(
        &self,
        etcd: &mut dyn Etcd,
        keys: &Keys,
        leader: u64,
        within: Duration,
        mut rest: impl FnMut(),
    ) -> Result<u64, Trouble> {
        let mut before = 0;
        for (index, chunk) in (0..).zip(self.bytes.chunks(self.chunk_bytes)) {
            let piece = Ask::Txn {
                compare: self.guards(keys, leader, index, before),
                success: vec![Op::Put {
                    key: keys.chunk(self.position.seq, index),
                    value: chunk.to_vec(),
                    lease: 0,
                }],
                failure: Vec::new(),
            };
            before = succeeded(etcd.call(&piece, within)?)?;
            rest();
        }
        Ok(before)
    }

    /// We lead, the log that it stands for is there, and of its pieces the one before this as it was written.
    fn guards(&self, keys: &Keys, leader: u64, index: u64, before: u64) -> Vec<Compare> {
        let seq = self.position.seq;
        let mut guards = keys.guards(leader);
        guards.push(Compare::Exists(keys.entry(seq)));
        if let Some(last) = index.checked_sub(1) {
            guards.push(Compare::Modified(keys.chunk(seq, last), before));
        }
        guards
    }

    /// From now on this one counts, whose last piece has the revision `written`; and then what the one before it stands
    /// for is deleted. Returns up to which revision etcd may forget what was.
    ///
    /// # Errors
    /// We lead no longer, somebody else has published one, or it was not answered. What was not deleted
    /// is deleted by the next one.
    pub fn publish(
        &self,
        etcd: &mut dyn Etcd,
        keys: &Keys,
        leader: u64,
        written: u64,
        within: Duration,
    ) -> Result<u64, Trouble> {
        let position = &self.position;
        let chunks = self.bytes.chunks(self.chunk_bytes).count() as u64;
        let manifest = Manifest {
            seq: position.seq,
            epoch: position.epoch,
            number: position.number,
            bytes: self.bytes.len() as u64,
            chunks,
            checksum: crc32c(&self.bytes),
        };
        let with = |guard| {
            let mut guards = self.guards(keys, leader, chunks, written);
            guards.push(guard);
            guards
        };
        let publish = Ask::Txn {
            compare: with(Compare::Modified(keys.snap(), position.snap_revision)),
            success: vec![Op::Put {
                key: keys.snap(),
                value: manifest.encode(),
                lease: 0,
            }],
            failure: Vec::new(),
        };
        let revision = succeeded(etcd.call(&publish, within)?)?;
        let trim = Ask::Txn {
            compare: with(Compare::Modified(keys.snap(), revision)),
            success: self.outlived(keys),
            failure: Vec::new(),
        };
        succeeded(etcd.call(&trim, within)?)
    }

    /// Deletes what is of no use when this one counts: everything before the one that counted until now, and
    /// what there is of some that never counted.
    fn outlived(&self, keys: &Keys) -> Vec<Op> {
        let Position { seq, snap_seq, .. } = self.position;
        let mut ops = Vec::new();
        if snap_seq > 0 {
            ops.push(Op::Delete(keys.entry(0), keys.entry(snap_seq)));
            ops.push(Op::Delete(keys.chunks(), keys.chunk(snap_seq, 0)));
        }
        if snap_seq + 1 < seq {
            ops.push(Op::Delete(keys.chunk(snap_seq + 1, 0), keys.chunk(seq, 0)));
        }
        ops
    }
}

/// The revision after a transaction that was done.
///
/// # Errors
/// It was refused.
pub fn succeeded(answer: Answer) -> Result<u64, Trouble> {
    match answer {
        Answer::Txn {
            succeeded: true,
            revision,
            ..
        } => Ok(revision),
        Answer::Txn { .. } => Err(Trouble::Garbled("we lead no longer".to_owned())),
        other => Err(Trouble::Garbled(format!("{other:?}"))),
    }
}
