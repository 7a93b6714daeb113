//! The journal: what can be loaded is loaded again as it was, what cannot be is refused with the name of a file and
//! left as it is, and what a repair leaves behind loads.
//!
//! An input is a list of operations that build a directory. So frames have the right checksum unless an operation
//! breaks it: bytes at random would never get beyond that.

#![no_main]

mod disk;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs, process};

use arbitrary::{Arbitrary, Result, Unstructured};
use disk::Memory;
use latchd::base::{Fence, Millis, Nanos, Token};
use latchd::engine::types::{ByteRange, End, Mode, RangeGrant, Record, SecretHash, Sharing};
use latchd::key::Key;
use latchd::store::format::{
    self, FRAME_BYTES_MIN, FileKind, HEADER_BYTES, Header, VERSION, push_end, push_mark,
    push_record, push_stopped,
};
use latchd::store::{
    Batch, Beginning, Begun, Clocks, Damage, Durability, Ending, Found, Life, LoadError, OpenError,
    begin, inspect, repair_disk,
};
use libfuzzer_sys::fuzz_target;

type Files = BTreeMap<String, Vec<u8>>;

const WALL_MS: u64 = 1_800_000_000_000;

/// The highest number of a grant of bytes here: there are none so high that a next one could not be read.
const GRANT_ID_MAX: u64 = (1 << 62) - 1;

const CLOCKS: Clocks = Clocks {
    now: Nanos(5_000_000_000),
    wall_ms: WALL_MS,
};
const BEGINNING: Beginning = Beginning {
    durability: Durability::Sync,
    segment_bytes: 1 << 14,
    salt: 0x5a17,
    wall_ms: WALL_MS,
};

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let is_on_disk = input.arbitrary::<u8>().is_ok_and(|it| it % 64 == 1);
    let Ok(files) = directory(&mut input) else {
        return;
    };
    let damage = check_load(&files);
    check_repair(&files, damage.as_ref());
    if is_on_disk {
        check_inspect(&files, damage.as_ref());
    }
});

/// Loads a directory, and says how it is damaged.
fn check_load(files: &Files) -> Option<LoadError> {
    let disk = Memory::of(files);
    let error = match begin(disk.clone(), BEGINNING, &mut |_| {}) {
        Ok(begun) => {
            let records = records(&begun);
            check_again(disk, begun, &records);
            check_copy(&records);
            return None;
        }
        Err(OpenError::Load(error)) => error,
        Err(other) => panic!("{other}"),
    };
    match &error {
        LoadError::Damaged(Damage { file, offset, .. }) => {
            assert!(file == "LOCK" || file.ends_with(".log") || file.ends_with(".snapshot"));
            let len = files.get(file).map_or(0, |bytes| bytes.len() as u64);
            assert!(*offset <= len, "{error}: it has {len} bytes");
        }
        LoadError::TooNew { file, version } => {
            assert!(files.contains_key(file) && *version > VERSION, "{error}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(disk.files(), *files, "changed although {error}");
    Some(error)
}

/// What a life has found.
fn records(begun: &Begun<Memory>) -> Vec<Record> {
    let mut records = Vec::new();
    let restored = begun.restore.each(CLOCKS, |it| records.push(it), |_| {});
    restored.expect("the disk does not fail");
    check_found(&begun.found, &records);
    records
}

fn check_found(found: &Found, records: &[Record]) {
    assert!(records.len() as u64 <= found.records);
    for record in records {
        let fence = match record {
            Record::Granted { token, .. } => token.fence,
            Record::Fences { upto } => *upto,
            _ => continue,
        };
        assert!(fence <= found.fence_ceiling);
    }
}

/// The life that has found these records ends at once, and the next one finds the same.
fn check_again(disk: Memory, begun: Begun<Memory>, records: &[Record]) {
    let life = begun.life;
    begun
        .writer
        .stop(Some(WALL_MS))
        .expect("the disk does not fail");
    let next = begin(disk, BEGINNING, &mut |_| {}).expect("it was written a moment ago");
    assert_eq!(next.found.ending, Ending::Clean(WALL_MS));
    assert_eq!(next.found.cut, None);
    assert_eq!(
        (next.found.life, next.life.epoch),
        (Some(life), life.epoch + 1)
    );
    assert_eq!(self::records(&next), records);
}

/// Written to another directory, the same records are found there.
fn check_copy(records: &[Record]) {
    let disk = Memory::default();
    let Begun {
        mut writer, life, ..
    } = begin(disk.clone(), BEGINNING, &mut |_| {}).expect("it is empty");
    let mut batch = Batch::default();
    for (number, record) in (1..).zip(records) {
        batch.push(life.salt, number, record, || CLOCKS);
        writer.write(&mut batch).expect("the disk does not fail");
        batch.clear_and_keep(0);
    }
    writer.stop(None).expect("the disk does not fail");
    let copy = begin(disk, BEGINNING, &mut |_| {}).expect("it was written a moment ago");
    assert_eq!(copy.found.ending, Ending::Unclean);
    assert_eq!(self::records(&copy), records);
}

/// A repair changes nothing in a directory that can be loaded, and what else it repairs can be.
fn check_repair(files: &Files, damage: Option<&LoadError>) {
    let disk = Memory::of(files);
    let repaired = match (repair_disk(&disk, WALL_MS), damage) {
        (Ok(repaired), None) => {
            assert!(repaired.lost.is_empty());
            assert_eq!(disk.files(), *files, "changed although nothing is damaged");
            return;
        }
        (Ok(repaired), Some(LoadError::Damaged(_))) => repaired,
        (Err(_), Some(_)) => {
            assert_eq!(disk.files(), *files, "changed although it was not repaired");
            return;
        }
        (result, _) => panic!("{result:?}, and a start says {damage:?}"),
    };
    assert!(!repaired.lost.is_empty());
    let now = disk.files();
    for backup in &repaired.backups {
        assert!(now.contains_key(backup), "{backup} is missing");
    }
    let again = repair_disk(&disk, WALL_MS).expect("it was repaired");
    assert!(again.lost.is_empty(), "{again}");
    assert_eq!(disk.files(), now, "repaired twice");
    let begun = begin(disk, BEGINNING, &mut |_| {}).expect("it was repaired");
    assert!(begun.life.follows_loss);
    assert_eq!(begun.found.cut, None);
    // What was kept, and one record that reserves fences.
    assert_eq!(begun.found.records, repaired.kept + 1);
    records(&begun);
}

/// A look at a directory of the system sees the same damage.
fn check_inspect(files: &Files, damage: Option<&LoadError>) {
    let dir: PathBuf = env::temp_dir().join(format!("latchd-fuzz-{}", process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).expect("a file");
    }
    match (inspect(&dir), damage) {
        (Ok(inspection), _) => {
            let told = damage.map(|it| match it {
                LoadError::Damaged(damage) => damage.clone(),
                other => panic!("{other}"),
            });
            assert_eq!(inspection.damage, told);
            assert!(!inspection.text().is_empty());
            let json = inspection.json();
            let read: serde_json::Result<serde_json::Value> = serde_json::from_str(&json);
            assert!(read.is_ok(), "{json}");
        }
        (Err(LoadError::TooNew { .. }), Some(LoadError::TooNew { .. })) => {}
        (Err(error), _) => panic!("{error}"),
    }
    fs::remove_dir_all(&dir).expect("it is ours");
}

/// A directory while it is built.
struct Draft {
    files: Files,
    /// The file that is written.
    name: String,
    salt: u32,
    epoch: u64,
    /// The number of the next record.
    number: u64,
    /// How many frames the present snapshot has.
    frames: u64,
}

/// Follows the operations of an input, to its end.
fn directory(input: &mut Unstructured<'_>) -> Result<Files> {
    let mut draft = Draft {
        files: Files::new(),
        name: String::new(),
        salt: 7,
        epoch: 1,
        number: 1,
        frames: 0,
    };
    draft.begin(FileKind::Segment, 1, input.arbitrary()?);
    while !input.is_empty() {
        draft.follow(input)?;
    }
    Ok(draft.files)
}

impl Draft {
    /// Begins a file, which the flags make a little different from what is usual.
    fn begin(&mut self, kind: FileKind, number: u64, flags: u8) {
        let header = self.header(kind, number, flags);
        let suffix = match kind {
            FileKind::Segment => "log",
            FileKind::Snapshot => "snapshot",
        };
        self.name = format!("{number:020}.{suffix}");
        self.files
            .insert(self.name.clone(), header.encode().to_vec());
        self.frames = 0;
    }

    fn header(&self, kind: FileKind, number: u64, flags: u8) -> Header {
        Header {
            kind,
            number,
            life: Life {
                epoch: self.epoch,
                begun_ms: if flags & 4 == 0 {
                    WALL_MS - 1_000
                } else {
                    u64::from(flags)
                },
                durability: if flags & 1 == 0 {
                    Durability::Sync
                } else {
                    Durability::Async
                },
                follows_loss: flags & 2 != 0,
                salt: if flags & 56 == 56 { 8 } else { self.salt },
            },
        }
    }

    fn file(&mut self) -> &mut Vec<u8> {
        self.files.entry(self.name.clone()).or_default()
    }

    fn follow(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (salt, number) = (self.salt, self.number);
        match input.int_in_range(0..=23)? {
            0 => {
                self.epoch += u64::from(input.arbitrary::<bool>()?);
                self.begin(FileKind::Segment, number, input.arbitrary()?);
            }
            1 => {
                self.number = number.wrapping_add(natural(input)?);
                self.begin(
                    FileKind::Snapshot,
                    self.number.wrapping_sub(1),
                    input.arbitrary()?,
                );
            }
            2 => {
                let durable = number.wrapping_sub(1).wrapping_sub(natural(input)?);
                push_mark(self.file(), salt, number, durable);
            }
            3 => {
                let at_ms = natural(input)?;
                push_stopped(self.file(), salt, number, at_ms);
                self.number = number.wrapping_add(1);
            }
            4 => {
                let (last, frames) = (number.wrapping_sub(1), self.frames);
                push_end(self.file(), salt, last, frames);
            }
            // Any frame.
            5..=7 => {
                let (kind, mut content) = (input.int_in_range(0..=20)?, bytes(input)?.to_vec());
                let kind = if kind > 15 { kind + 112 } else { kind };
                if let (14, Some(high)) = (kind, content.get_mut(24)) {
                    *high &= 0x3f; // of the number of a grant
                }
                push_raw(self.file(), salt, number, kind, &content);
                self.number = number.wrapping_add(1);
                self.frames += 1;
            }
            8 => {
                let garbage = bytes(input)?;
                self.file().extend_from_slice(garbage);
            }
            9 => {
                let zeros: u8 = input.arbitrary()?;
                let len = self.file().len() + usize::from(zeros);
                self.file().resize(len, 0);
            }
            10 => {
                let (at, change) = (input.arbitrary::<u16>()?, input.arbitrary::<u8>()?);
                let file = self.file();
                let at = usize::from(at) % file.len().max(1);
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= change;
                }
            }
            11 => {
                let cut: u8 = input.arbitrary()?;
                let len = self.file().len().saturating_sub(cut.into());
                self.file().truncate(len);
            }
            12 => self.number = number.wrapping_add(natural(input)?),
            13 => self.number = natural(input)?,
            14 => {
                let flags = input.arbitrary()?;
                let newest = self.header(FileKind::Segment, number, flags).encode();
                let lock = self.files.entry("LOCK".to_owned()).or_default();
                lock.resize(1_024 + HEADER_BYTES, 0);
                let at = if flags & 64 == 0 { 512 } else { 1_024 };
                lock[at..at + HEADER_BYTES].copy_from_slice(&newest);
            }
            15 => {
                // Goes on with another file, or with `LOCK`.
                let names: Vec<String> = self.files.keys().cloned().collect();
                self.name = input.choose(&names)?.clone();
            }
            _ => {
                let record = record(input)?;
                push_record(self.file(), salt, number, &record, || CLOCKS);
                self.number = number.wrapping_add(1);
                self.frames += 1;
            }
        }
        Ok(())
    }
}

/// A number that is mostly small.
fn natural(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u8::arbitrary(input)? {
        255 => u64::arbitrary(input)?,
        small => u64::from(small % 16),
    })
}

fn bytes<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let len = usize::from(u8::arbitrary(input)?).min(input.len());
    input.bytes(len)
}

/// A frame that says anything, with the right checksum.
fn push_raw(out: &mut Vec<u8>, salt: u32, number: u64, kind: u8, content: &[u8]) {
    let length = (FRAME_BYTES_MIN + content.len()) as u32;
    let number = number.to_le_bytes();
    let checked = [&length.to_le_bytes()[..], &number, &[kind], content].concat();
    out.extend_from_slice(&crc32c::crc32c_append(salt, &checked).to_le_bytes());
    out.extend_from_slice(&checked);
    debug_assert!(format::Frame::decode(&out[out.len() - length as usize..], salt).is_some());
}

/// One of few names, so that records are about the same things.
fn name(input: &mut Unstructured<'_>) -> Result<Key> {
    Ok(match u8::arbitrary(input)? % 8 {
        0..=2 => Key::from(&b"a"[..]),
        3..=4 => Key::from(&b"b"[..]),
        5 => Key::from(&b"#1"[..]),
        6 => Key::from(&b""[..]),
        _ => Key::from(bytes(input)?),
    })
}

fn record(input: &mut Unstructured<'_>) -> Result<Record> {
    let key = name(input)?;
    Ok(match input.int_in_range(0..=13)? {
        0 | 13 => Record::Granted {
            key,
            mode: match input.int_in_range(0..=4)? {
                0 => Mode::Slot { limit: 1 },
                1 => Mode::Slot {
                    limit: natural(input)? as u32,
                },
                2 => Mode::Read,
                3 => Mode::Write,
                _ => Mode::Lead,
            },
            token: Token {
                fence: Fence(natural(input)?),
                salt: natural(input)?,
            },
            lease: Millis(natural(input)?),
            client: natural(input)? as u32,
            name: bool::arbitrary(input)?.then(|| "n".into()),
            request: if bool::arbitrary(input)? {
                b"r".as_slice().into()
            } else {
                b"".as_slice().into()
            },
        },
        1 => Record::Lengthened {
            key,
            fence: Fence(natural(input)?),
            lease: Millis(natural(input)?),
        },
        2 => Record::Owned {
            key,
            fence: Fence(natural(input)?),
            client: text(input)?,
        },
        3 => Record::Ended {
            key,
            fence: Fence(natural(input)?),
        },
        4 => Record::Counted {
            key,
            value: natural(input)?.cast_signed(),
        },
        5 => Record::Stored {
            key,
            value: bytes(input)?.into(),
            ends: bool::arbitrary(input)?.then_some(Nanos(natural(input)? << 30)),
        },
        6 => Record::Deleted { key },
        7 => Record::Pushed {
            key,
            end: end(input)?,
            value: bytes(input)?.into(),
        },
        8 => Record::Popped {
            key,
            end: end(input)?,
        },
        9 => Record::Fences {
            upto: Fence(natural(input)?),
        },
        10 => Record::Client {
            id: text(input)?,
            ttl: Millis(natural(input)?),
            secret: SecretHash {
                salt: Default::default(),
                hash: Default::default(),
            },
        },
        11 => Record::ClientGone { id: text(input)? },
        _ => {
            let start = natural(input)?;
            let Some(range) = ByteRange::between(start, start.saturating_add(natural(input)?))
            else {
                return Ok(Record::Deleted { key });
            };
            Record::Ranged {
                resource: key,
                client: text(input)?,
                owner: name(input)?,
                range,
                mode: match input.int_in_range(0..=2)? {
                    0 => None,
                    1 => Some(Sharing::Shared),
                    _ => Some(Sharing::Exclusive),
                },
                grant: RangeGrant {
                    id: natural(input)? & GRANT_ID_MAX,
                    since: natural(input)?,
                    epoch: natural(input)?,
                },
            }
        }
    })
}

/// The id of a client: text.
fn text(input: &mut Unstructured<'_>) -> Result<Key> {
    let id = *input.choose(&["c", "d", "#1", ""])?;
    Ok(Key::from(id.as_bytes()))
}

fn end(input: &mut Unstructured<'_>) -> Result<End> {
    Ok(if bool::arbitrary(input)? {
        End::Left
    } else {
        End::Right
    })
}
