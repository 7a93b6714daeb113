//! What a data directory's files look like, byte by byte: encoding and decoding, nothing else.
//!
//! All numbers are little endian. A file is a header and then frames without gaps. What comes after
//! the last frame is nothing, or zeros where room was kept for more.
//!
//! ```text
//! header, 64 bytes               at  bytes
//!   magic "latchd\r\n"            0      8   ┐ these and the place of the checksum
//!   version                       8      4   ┘ are the same in all versions
//!   kind: 1 segment, 2 snapshot  12      1
//!   durability: 1 sync, 2 async  13      1   of the life that wrote the file
//!   loss: 0 no, 1 perhaps        14      1   of what was acknowledged before that life
//!   zero                         15      1
//!   salt                         16      4   one for all files of a directory
//!   zeros                        20      4
//!   number                       24      8   segment: of its first record;
//!                                            snapshot: it stands for all records up to this one
//!   epoch                        32      8   of the life that wrote the file
//!   begun                        40      8   when that life began, ms since 1970
//!   zeros                        48     12
//!   checksum                     60      4   crc32c of the 60 bytes before
//!
//! frame, 17 bytes and more
//!   checksum                      0      4   crc32c of the rest of the frame, begun with the salt
//!   length                        4      4   of the whole frame
//!   number                        8      8
//!   kind                         16      1
//!   content                      17    ...
//!
//! kinds of frames, and their contents
//!   1 granted     mode 1 (0 slot, 1 read, 2 write, 3 lead; +128 if there is a name; +64 if there
//!                 is the id of a request), limit 4, fence 8, salt of the token 8, lease in ms 8,
//!                 client 4 (the number of its connection; 0 if the name is that of an owner without
//!                 one; 2^32 - 1 if it is the id of a client), length of the key 2, key, then, if
//!                 there is the id of a request, its length 2 and the id (followed by
//!                 a blank and the asker, see `server/identity.rs`), then the name
//!   2 lengthened  fence 8, lease in ms 8, key
//!   3 ended       fence 8, key
//!   4 counted     value 8, key
//!   5 stored      end in ms since 1970, 0 for never 8, length of the key 2, key, value
//!   6 deleted     key
//!   7 pushed      end of the list 1 (0 left, 1 right), length of the key 2, key, value
//!   8 popped      end of the list 1, key
//!   9 fences      the highest that may have been given out 8
//!  10 client      time to live in ms 8, salt of the secret 16, hash of the secret 32, id
//!  11 client gone id
//!  12 ranged      (until version 4) mode 1 (0 not locked any more, 1 shared, 2 exclusive), first byte 8, last byte 8,
//!                 length of the resource 2, length of the client's id 2, resource, id, owner
//!  13 owned       fence 8, length of the key 2, key, id of the client
//!  14 ranged      mode 1 (as of 12), first byte 8, last byte 8, number of the grant 8 (of an unlock,
//!                 of what it may split off; the next number belongs to it as well), when it was
//!                 made in ns since 1970 8, epoch of the server that made it 8, length of the
//!                 resource 2, length of the client's id 2, resource, id, owner
//! 128 mark        everything up to this number was on the disk when this was written 8
//! 129 stopped     when, ms since 1970 8
//! 130 end         how many frames the snapshot has before this one 8
//! ```
//!
//! Records and `stopped` are numbered from 1 on over the whole life of a directory, without gaps in
//! segments. A mark has the number of the record that follows it, and the end of a snapshot that of
//! the snapshot, and so has every `ranged` there. The salt is there because clients choose most of the bytes: without knowing it
//! nobody can store a value that passes for a frame when the rest of a file is damaged.

use std::fmt;

use crc32c::{crc32c, crc32c_append};

use super::entry::{Clocks, Entry};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{ByteRange, End, Mode, RangeGrant, Record, SecretHash, Sharing};
use crate::key::Key;

/// The version that this program writes, and the highest that it reads.
pub const VERSION: u32 = 5;

/// How long a header is.
pub const HEADER_BYTES: usize = 64;

/// How long a frame without content is.
pub const FRAME_BYTES_MIN: usize = 17;

/// Longer frames are not believed, so that a damaged length costs no memory. The longest value that
/// a request can state is far shorter.
pub const FRAME_BYTES_MAX: usize = 1 << 26;

/// How long a mark is.
pub const MARK_BYTES: usize = FRAME_BYTES_MIN + 8;

/// The kind byte of a mark.
pub(super) const KIND_MARK: u8 = 128;
const KIND_STOPPED: u8 = 129;
const KIND_END: u8 = 130;

/// Numbers of records are below this one, so that sums of them never overflow: nothing counts so far.
pub(super) const NUMBER_LIMIT: u64 = 1 << 62;

/// A directory that has counted so far is refused: the next lives need numbers, too.
pub(super) const LAST_NUMBER_MAX: u64 = NUMBER_LIMIT / 2;

/// What the number of a grant may be: others come after it.
const GRANT_ID_MAX: u64 = u64::MAX / 2;

const MAGIC: [u8; 8] = *b"latchd\r\n";
const MODE_NAMED: u8 = 128;
const MODE_ASKED: u8 = 64;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Records as they came.
    Segment,
    /// What was left of all records up to a number.
    Snapshot,
}

/// When an answer may be spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the disk has confirmed the change.
    #[default]
    Sync,
    /// When the system has taken the change; the disk follows within 100 ms.
    Async,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sync => "sync",
            Self::Async => "async",
        })
    }
}

/// One run of a daemon on a directory. Each file says which life wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Counts the lives of a directory from 1 on.
    pub epoch: u64,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: u64,
    /// What it promised.
    pub durability: Durability,
    /// Whether something that was acknowledged before it may be lost: the life before it was `async`
    /// and did not end in order, or the directory was repaired.
    pub follows_loss: bool,
    /// The salt of the directory.
    pub salt: u32,
}

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the file is.
    pub kind: FileKind,
    /// Of a segment, the number of its first record; of a snapshot, the last that it stands for.
    pub number: u64,
    /// Who wrote it.
    pub life: Life,
}

/// Why a header cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The file was made by a later version.
    TooNew(u32),
    /// It is not a header, or it is damaged.
    Damaged(&'static str),
}

impl Header {
    /// The bytes of this header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = match self.kind {
            FileKind::Segment => 1,
            FileKind::Snapshot => 2,
        };
        bytes[13] = match self.life.durability {
            Durability::Sync => 1,
            Durability::Async => 2,
        };
        bytes[14] = u8::from(self.life.follows_loss);
        bytes[16..20].copy_from_slice(&self.life.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.life.epoch.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.life.begun_ms.to_le_bytes());
        let checksum = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The salt that stands in these bytes, whether or not they are a header.
    pub(super) fn salt_in(bytes: &[u8; HEADER_BYTES]) -> u32 {
        u32_at(bytes, 16)
    }

    /// Reads what [`Header::encode`] wrote.
    ///
    /// # Errors
    /// The file is of a later version, or these are not the bytes of a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let damaged = |why| Err(BadHeader::Damaged(why));
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return damaged("the header is cut");
        };
        let mut content = Content(bytes);
        if content.array::<8>() != Some(MAGIC) {
            return damaged("this is not a file of a journal");
        }
        if u32_at(bytes, 60) != crc32c(&bytes[..60]) {
            return damaged("the header's checksum is wrong");
        }
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(BadHeader::TooNew(version));
        }
        let (kind, durability) = match (bytes[12], bytes[13]) {
            (1, 1) => (FileKind::Segment, Durability::Sync),
            (1, 2) => (FileKind::Segment, Durability::Async),
            (2, 1) => (FileKind::Snapshot, Durability::Sync),
            (2, 2) => (FileKind::Snapshot, Durability::Async),
            _ => return damaged("the header says what there is not"),
        };
        let follows_loss = match bytes[14] {
            0 => false,
            1 => true,
            _ => return damaged("the header says what there is not"),
        };
        let (number, epoch) = (u64_at(bytes, 24), u64_at(bytes, 32));
        if number.max(epoch) >= NUMBER_LIMIT {
            return damaged("the header has a number that there is not");
        }
        Ok(Self {
            kind,
            number,
            life: Life {
                epoch,
                begun_ms: u64_at(bytes, 40),
                durability,
                follows_loss,
                salt: u32_at(bytes, 16),
            },
        })
    }
}

/// A frame whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its number.
    pub number: u64,
    kind: u8,
    content: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The length that the first bytes of a frame state, if it can be one. Takes at least 8 bytes.
    pub(super) fn length(head: &[u8]) -> Option<usize> {
        let length = u32_at(head, 4) as usize;
        (FRAME_BYTES_MIN..=FRAME_BYTES_MAX)
            .contains(&length)
            .then_some(length)
    }

    /// The number that the first bytes of a frame state. Takes at least 16 bytes.
    pub(super) fn number_in(head: &[u8]) -> u64 {
        u64_at(head, 8)
    }

    /// The frame that these bytes are, from the first to the last; `None` if they are not.
    #[must_use]
    pub fn decode(bytes: &'a [u8], salt: u32) -> Option<Self> {
        if bytes.len() < FRAME_BYTES_MIN || Self::length(bytes) != Some(bytes.len()) {
            return None;
        }
        (u32_at(bytes, 0) == crc32c_append(salt, &bytes[4..])).then(|| Self {
            number: u64_at(bytes, 8),
            kind: bytes[16],
            content: &bytes[FRAME_BYTES_MIN..],
        })
    }

    /// The salt with which the checksum of these bytes is right: runs the CRC backwards, from the
    /// last byte to the first. Takes at least 4 bytes.
    pub(super) fn salt_of(bytes: &[u8]) -> u32 {
        const POLYNOMIAL: u32 = 0x82f6_3b78; // crc32c, the lowest bit first
        let mut state = !u32_at(bytes, 0);
        for byte in bytes[4..].iter().rev() {
            for _ in 0..8 {
                state = match state >> 31 {
                    0 => state << 1,
                    _ => (state ^ POLYNOMIAL) << 1 | 1,
                };
            }
            state ^= u32::from(*byte);
        }
        !state
    }

    /// How many bytes it takes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        FRAME_BYTES_MIN + self.content.len()
    }

    /// What it says. `None` is not possible in what this program wrote.
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'a>> {
        let mut content = Content(self.content);
        let entry = match self.kind {
            1 => {
                let [mode] = content.array()?;
                let limit = u32::from_le_bytes(content.array()?);
                Entry::Granted {
                    mode: match mode & !(MODE_NAMED | MODE_ASKED) {
                        0 if limit > 0 => Mode::Slot { limit },
                        1 => Mode::Read,
                        2 => Mode::Write,
                        3 => Mode::Lead,
                        _ => return None,
                    },
                    token: Token {
                        fence: Fence(content.number()?),
                        salt: content.number()?,
                    },
                    lease: Millis(content.number()?),
                    client: u32::from_le_bytes(content.array()?),
                    key: content.key()?,
                    request: match mode & MODE_ASKED {
                        0 => &[],
                        _ => content.key()?,
                    },
                    name: match mode & MODE_NAMED {
                        0 => None,
                        _ => Some(str::from_utf8(content.rest()).ok()?),
                    },
                }
            }
            2 => Entry::Lengthened {
                fence: Fence(content.number()?),
                lease: Millis(content.number()?),
                key: content.rest(),
            },
            3 => Entry::Ended {
                fence: Fence(content.number()?),
                key: content.rest(),
            },
            4 => Entry::Counted {
                value: i64::from_le_bytes(content.array()?),
                key: content.rest(),
            },
            5 => Entry::Stored {
                ends_ms: Some(content.number()?).filter(|&ms| ms > 0),
                key: content.key()?,
                value: content.rest(),
            },
            6 => Entry::Deleted {
                key: content.rest(),
            },
            7 => Entry::Pushed {
                end: content.end()?,
                key: content.key()?,
                value: content.rest(),
            },
            8 => Entry::Popped {
                end: content.end()?,
                key: content.rest(),
            },
            9 => Entry::Fences {
                upto: Fence(content.number()?),
            },
            10 => Entry::Client {
                ttl: Millis(content.number()?),
                secret: SecretHash {
                    salt: content.array()?,
                    hash: content.array()?,
                },
                id: str::from_utf8(content.rest()).ok()?,
            },
            11 => Entry::ClientGone {
                id: str::from_utf8(content.rest()).ok()?,
            },
            kind @ (12 | 14) => {
                let mode = match content.array()? {
                    [0] => None,
                    [1] => Some(Sharing::Shared),
                    [2] => Some(Sharing::Exclusive),
                    _ => return None,
                };
                let range = ByteRange::between(content.number()?, content.number()?)?;
                let mut grant = RangeGrant::default();
                if kind == 14 {
                    grant = RangeGrant {
                        id: content.number().filter(|id| *id <= GRANT_ID_MAX)?,
                        since: content.number()?,
                        epoch: content.number()?,
                    };
                }
                let resource_bytes = content.length()?;
                let client_bytes = content.length()?;
                Entry::Ranged {
                    resource: content.take(resource_bytes)?,
                    client: str::from_utf8(content.take(client_bytes)?).ok()?,
                    owner: content.rest(),
                    range,
                    mode,
                    grant,
                }
            }
            13 => Entry::Owned {
                fence: Fence(content.number()?),
                key: content.key()?,
                client: str::from_utf8(content.rest()).ok()?,
            },
            KIND_MARK => Entry::Mark {
                durable: content.number()?,
            },
            KIND_STOPPED => Entry::Stopped {
                at_ms: content.number()?,
            },
            KIND_END => Entry::End {
                frames: content.number()?,
            },
            _ => return None,
        };
        content.0.is_empty().then_some(entry)
    }
}

/// Appends a record. `clocks` is asked only if the record has a time.
pub fn push_record(
    out: &mut Vec<u8>,
    salt: u32,
    number: u64,
    record: &Record,
    clocks: impl FnOnce() -> Clocks,
) {
    let mut push = |kind, parts: [&[u8]; 4]| push_frame(out, salt, number, kind, parts);
    match record {
        Record::Granted {
            key,
            mode,
            token,
            lease,
            client,
            name,
            request,
        } => {
            let (mode, limit) = match *mode {
                Mode::Slot { limit } => (0, limit),
                Mode::Read => (1, 0),
                Mode::Write => (2, 0),
                Mode::Lead => (3, 0),
            };
            let (named, name) = match name {
                Some(name) => (MODE_NAMED, name.as_bytes()),
                None => (0, &[][..]),
            };
            let id_and_name;
            let (asked, name) = match request.len() {
                0 => (0, name),
                _ => {
                    id_and_name = [&length_of(request)[..], request, name].concat();
                    (MODE_ASKED, &id_and_name[..])
                }
            };
            let mut fixed = [0; 33];
            fixed[0] = mode | named | asked;
            fixed[1..5].copy_from_slice(&limit.to_le_bytes());
            fixed[5..13].copy_from_slice(&token.fence.0.to_le_bytes());
            fixed[13..21].copy_from_slice(&token.salt.to_le_bytes());
            fixed[21..29].copy_from_slice(&lease.0.to_le_bytes());
            fixed[29..].copy_from_slice(&client.to_le_bytes());
            push(
                1,
                [&fixed, &length_of(key.as_bytes()), key.as_bytes(), name],
            );
        }
        Record::Lengthened { key, fence, lease } => {
            let (fence, lease) = (fence.0.to_le_bytes(), lease.0.to_le_bytes());
            push(2, [&fence, &lease, key.as_bytes(), &[]]);
        }
        Record::Owned { key, fence, client } => {
            let (fence, key) = (fence.0.to_le_bytes(), key.as_bytes());
            push(13, [&fence, &length_of(key), key, client.as_bytes()]);
        }
        Record::Ended { key, fence } => {
            push(3, [&fence.0.to_le_bytes(), key.as_bytes(), &[], &[]]);
        }
        Record::Counted { key, value } => {
            push(4, [&value.to_le_bytes(), key.as_bytes(), &[], &[]]);
        }
        Record::Stored { key, value, ends } => {
            let ends_ms = ends.map_or(0, |ends| clocks().wall_ms_at(ends));
            let parts = [
                &ends_ms.to_le_bytes(),
                &length_of(key.as_bytes())[..],
                key.as_bytes(),
                value,
            ];
            push(5, parts);
        }
        Record::Deleted { key } => push(6, [key.as_bytes(), &[], &[], &[]]),
        Record::Pushed { key, end, value } => {
            push(
                7,
                [
                    &end_byte(*end),
                    &length_of(key.as_bytes()),
                    key.as_bytes(),
                    value,
                ],
            );
        }
        Record::Popped { key, end } => push(8, [&end_byte(*end), key.as_bytes(), &[], &[]]),
        Record::Fences { upto } => push(9, [&upto.0.to_le_bytes(), &[], &[], &[]]),
        Record::Client { id, ttl, secret } => {
            let ttl = ttl.0.to_le_bytes();
            push(10, [&ttl, &secret.salt, &secret.hash, id.as_bytes()]);
        }
        Record::ClientGone { id } => push(11, [id.as_bytes(), &[], &[], &[]]),
        Record::Ranged {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } => {
            let names = [resource, client, owner].map(Key::as_bytes);
            push_ranged(out, salt, number, names, *range, *mode, *grant);
        }
    }
}

/// Appends a record of a range. The names are those of the resource, the client and the owner.
pub(super) fn push_ranged(
    out: &mut Vec<u8>,
    salt: u32,
    number: u64,
    [resource, client, owner]: [&[u8]; 3],
    range: ByteRange,
    mode: Option<Sharing>,
    grant: RangeGrant,
) {
    let mut fixed = [0; 45];
    fixed[0] = match mode {
        None => 0,
        Some(Sharing::Shared) => 1,
        Some(Sharing::Exclusive) => 2,
    };
    fixed[1..9].copy_from_slice(&range.start().to_le_bytes());
    fixed[9..17].copy_from_slice(&range.last().to_le_bytes());
    fixed[17..25].copy_from_slice(&grant.id.to_le_bytes());
    fixed[25..33].copy_from_slice(&grant.since.to_le_bytes());
    fixed[33..41].copy_from_slice(&grant.epoch.to_le_bytes());
    fixed[41..43].copy_from_slice(&length_of(resource));
    fixed[43..].copy_from_slice(&length_of(client));
    push_frame(out, salt, number, 14, [&fixed, resource, client, owner]);
}

/// Appends the store's own note that everything up to `durable` is on the disk; `number` is the next
/// record's.
pub fn push_mark(out: &mut Vec<u8>, salt: u32, number: u64, durable: u64) {
    let content = durable.to_le_bytes();
    push_frame(out, salt, number, KIND_MARK, [&content, &[], &[], &[]]);
}

/// Appends the last frame of a life.
pub fn push_stopped(out: &mut Vec<u8>, salt: u32, number: u64, at_ms: u64) {
    let content = at_ms.to_le_bytes();
    push_frame(out, salt, number, KIND_STOPPED, [&content, &[], &[], &[]]);
}

/// Appends the last frame of a snapshot.
pub fn push_end(out: &mut Vec<u8>, salt: u32, number: u64, frames: u64) {
    let content = frames.to_le_bytes();
    push_frame(out, salt, number, KIND_END, [&content, &[], &[], &[]]);
}

/// Appends a frame that is whole and right under another number.
#[cfg(feature = "cluster")]
pub(super) fn push_renumbered(out: &mut Vec<u8>, salt: u32, number: u64, frame: &[u8]) {
    let start = out.len();
    out.extend_from_slice(frame);
    out[start + 8..start + 16].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32c_append(salt, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[inline]
fn push_frame(out: &mut Vec<u8>, salt: u32, number: u64, kind: u8, parts: [&[u8]; 4]) {
    let start = out.len();
    let length = FRAME_BYTES_MIN + parts.iter().map(|part| part.len()).sum::<usize>();
    assert!(
        length <= FRAME_BYTES_MAX,
        "a record of {length} bytes could not be read again"
    );
    let mut head = [0; FRAME_BYTES_MIN];
    head[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16] = kind;
    out.reserve(length);
    out.extend_from_slice(&head);
    for part in parts {
        out.extend_from_slice(part);
    }
    let checksum = crc32c_append(salt, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn length_of(name: &[u8]) -> [u8; 2] {
    let length = name.len();
    debug_assert!(length <= usize::from(u16::MAX), "a name of {length} bytes");
    (length as u16).to_le_bytes()
}

fn end_byte(end: End) -> [u8; 1] {
    match end {
        End::Left => [0],
        End::Right => [1],
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// What is left of a frame's content.
struct Content<'a>(&'a [u8]);

impl<'a> Content<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        self.array().map(u16::from_le_bytes).map(usize::from)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    fn end(&mut self) -> Option<End> {
        match self.array()? {
            [0] => Some(End::Left),
            [1] => Some(End::Right),
            _ => None,
        }
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
