//! What stands in etcd under the keys, byte by byte: encoding and decoding, nothing else.
//!
//! All numbers are little endian. The frames are those of the journal (`store/format.rs`), with the salt 0:
//! etcd keeps a value whole or not at all, and the checksum is for mistakes of our own.
//!
//! ```text
//! entry of the log               at  bytes
//!   checksum                      0      4   crc32c of the rest
//!   version, now 3                4      4
//!   leader                        8      8   the revision at which its leader's key was created
//!   nonce                        16     16   of the batch: tells it from any other one
//!   epoch                        32      8   how often somebody has begun to lead, this one included
//!   number                       40      8   of the first record, whether there is one or not
//!   frames                       48    ...   the records, numbered without gaps; may be none
//!
//! snapshot
//!   checksum                      0      4   crc32c of the rest
//!   version, now 3                4      4
//!   entry                         8      8   it stands for all entries up to this one
//!   epoch                        16      8   of that entry
//!   number                       24      8   of the last record it stands for
//!   length                       32      8   of all pieces together
//!   pieces                       40      8   how many there are
//!   checksum of the pieces       48      4   crc32c of all of them, one after the other
//! ```

use crc32c::crc32c;

use super::super::entry::Entry;
use super::super::format::{FRAME_BYTES_MIN, Frame};

/// The version that this program writes, and the highest that it reads. Since 2 there may be grants that have
/// become a client's (`owned`), since 3 the numbers of range locks.
const VERSION: u32 = 3;

/// How long an entry without records is.
pub const ENTRY_BYTES_MIN: usize = 48;
const SNAPSHOT_BYTES: usize = 52;

/// The salt of all frames in etcd.
pub const SALT: u32 = 0;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The revision at which the key of the leader was created that wrote it.
    pub leader: u64,
    /// Tells it from any other.
    pub nonce: [u64; 2],
    /// How often somebody has begun to lead.
    pub epoch: u64,
    /// The number of its first record, whether there is one or not.
    pub first: u64,
    /// The records.
    pub frames: Vec<u8>,
}

/// Which snapshot counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// It stands for all entries up to this one.
    pub seq: u64,
    /// The epoch of that entry.
    pub epoch: u64,
    /// The last record it stands for.
    pub number: u64,
    /// How long all pieces are together.
    pub bytes: u64,
    /// How many there are.
    pub chunks: u64,
    /// The checksum of all of them.
    pub checksum: u32,
}

/// Why a value cannot be read. It is damaged, or a later version wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

impl Logged {
    /// The bytes of this entry.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENTRY_BYTES_MIN + self.frames.len());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for number in [
            self.leader,
            self.nonce[0],
            self.nonce[1],
            self.epoch,
            self.first,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.frames);
        seal(out)
    }

    /// Reads what [`Logged::encode`] wrote, and checks every record.
    ///
    /// # Errors
    /// These are not the bytes of an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let rest = open(bytes, ENTRY_BYTES_MIN)?;
        let logged = Self {
            leader: number_at(rest, 0),
            nonce: [number_at(rest, 8), number_at(rest, 16)],
            epoch: number_at(rest, 24),
            first: number_at(rest, 32),
            frames: rest[40..].to_vec(),
        };
        if logged.first == 0 {
            return Err(Unreadable("records are numbered from 1 on"));
        }
        for (frame, next) in frames(&logged.frames).zip(logged.first..) {
            let (number, entry) = frame?;
            let is_own = matches!(
                entry,
                Entry::Mark { .. } | Entry::Stopped { .. } | Entry::End { .. }
            );
            if number != next || is_own {
                return Err(Unreadable("a record out of order"));
            }
        }
        Ok(logged)
    }

    /// The number of the last record up to here.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first.saturating_sub(1) + frames(&self.frames).count() as u64
    }
}

impl Manifest {
    /// The bytes of this value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SNAPSHOT_BYTES);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.seq, self.epoch, self.number, self.bytes, self.chunks] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.checksum.to_le_bytes());
        seal(out)
    }

    /// Reads what [`Manifest::encode`] wrote.
    ///
    /// # Errors
    /// These are not the bytes of one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let rest = open(bytes, SNAPSHOT_BYTES)?;
        if bytes.len() != SNAPSHOT_BYTES {
            return Err(Unreadable("it is too long"));
        }
        let mut checksum = [0; 4];
        checksum.copy_from_slice(&rest[40..44]);
        Ok(Self {
            seq: number_at(rest, 0),
            epoch: number_at(rest, 8),
            number: number_at(rest, 16),
            bytes: number_at(rest, 24),
            chunks: number_at(rest, 32),
            checksum: u32::from_le_bytes(checksum),
        })
    }
}

/// The frames that these bytes are, with their numbers.
pub fn frames(bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Entry<'_>), Unreadable>> {
    let places = frame_places(bytes);
    places.map(move |place| {
        let (at, length) = place?;
        let frame = Frame::decode(&bytes[at..at + length], SALT);
        let said = frame.and_then(|frame| Some((frame.number, frame.entry()?)));
        said.ok_or(Unreadable("a record that cannot be read"))
    })
}

/// Where the frames are that these bytes are: offset and length of each.
pub(super) fn frame_places(
    bytes: &[u8],
) -> impl Iterator<Item = Result<(usize, usize), Unreadable>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let head = bytes.get(at..at + FRAME_BYTES_MIN);
        let length = head.and_then(Frame::length);
        let length = length.filter(|length| at + length <= bytes.len());
        let Some(length) = length else {
            at = bytes.len();
            return Some(Err(Unreadable("a record that is cut")));
        };
        at += length;
        Some(Ok((at - length, length)))
    })
}

/// Where the frames are that these bytes are, as far as they can be read: offset and length of each.
pub fn places(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    frame_places(bytes).map_while(Result::ok)
}

fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c(&out[4..]);
    out[..4].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// What stands behind checksum and version, if both are right and it is not too short.
fn open(bytes: &[u8], bytes_min: usize) -> Result<&[u8], Unreadable> {
    if bytes.len() < bytes_min {
        return Err(Unreadable("it is cut"));
    }
    if bytes[..4] != crc32c(&bytes[4..]).to_le_bytes() {
        return Err(Unreadable("the checksum is wrong"));
    }
    match (1..=VERSION).any(|it| bytes[4..8] == it.to_le_bytes()) {
        true => Ok(&bytes[8..]),
        false => Err(Unreadable("another version of latchd wrote it")),
    }
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::super::super::entry::Clocks;
    use super::super::super::format::push_record;
    use super::*;
    use crate::base::Nanos;
    use crate::engine::types::Record;

    const CLOCKS: Clocks = Clocks {
        now: Nanos(0),
        wall_ms: 0,
    };

    fn logged(first: u64, count: u64) -> Logged {
        let mut frames = Vec::new();
        for number in first..first + count {
            let record = Record::Counted {
                key: b"hits"[..].into(),
                value: 7,
            };
            push_record(&mut frames, SALT, number, &record, || CLOCKS);
        }
        Logged {
            leader: 11,
            nonce: [1, 2],
            epoch: 3,
            first,
            frames,
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_not_if_a_byte_has_changed() {
        for it in [logged(1, 0), logged(1, 1), logged(500, 3)] {
            let bytes = it.encode();
            assert_eq!(Logged::decode(&bytes).as_ref(), Ok(&it));
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x20;
                assert!(Logged::decode(&other).is_err(), "byte {at}");
                assert!(Logged::decode(&bytes[..at]).is_err(), "cut at {at}");
            }
        }
        assert_eq!(logged(500, 3).last(), 502);
        assert_eq!(logged(500, 0).last(), 499);
    }

    #[test]
    fn records_with_a_gap_or_of_another_kind_are_refused() {
        let mut gap = logged(1, 2);
        gap.frames.extend(logged(4, 1).frames);
        assert!(Logged::decode(&gap.encode()).is_err());
        let mut shifted = logged(1, 2);
        shifted.first = 2;
        assert!(Logged::decode(&shifted.encode()).is_err());
        let mut ended = logged(1, 1);
        super::super::super::format::push_end(&mut ended.frames, SALT, 2, 1);
        assert!(Logged::decode(&ended.encode()).is_err());
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let manifest = Manifest {
            seq: 9,
            epoch: 2,
            number: 300,
            bytes: 1 << 33,
            chunks: 70_000,
            checksum: 0xdead_beef,
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(Manifest::decode(&other).is_err(), "byte {at}");
        }
        assert!(Manifest::decode(&logged(1, 0).encode()).is_err());
    }
}
