//! Files that were written once, in `v1/`, `v2/` and so on by the version of the format: every later one
//! reads them, and the last one writes the same bytes.
//!
//! When the format gets a new version, the directories stay as they are and are only read.
//! `WRITE_GOLDEN=1 cargo test --test store journal::golden` writes what is missing.

use std::fs;
use std::path::{Path, PathBuf};

use latch_sim::FaultDisk;
use latchd::base::{Fence, Millis, Nanos};
use latchd::engine::types::{End, Mode, Record, Sharing};
use latchd::store::{Disk, Durability, Ending, format};

use crate::journal::history::{
    CLOCKS, Life, State, client, ended, granted, granted_as, granted_to, key, numbered, owned,
    ranged, stored,
};

const SEGMENT_BYTES: u64 = 1024;

const SHARED: Option<Sharing> = Some(Sharing::Shared);
const EXCLUSIVE: Option<Sharing> = Some(Sharing::Exclusive);

/// The version that this program writes.
const NOW: u32 = format::VERSION;

fn golden(version: u32) -> PathBuf {
    let folder = format!("tests/store/journal/v{version}");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

fn names_there(version: u32) -> Vec<String> {
    let files = fs::read_dir(golden(version)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Every kind of record, in every form that there is in this version.
fn records(version: u32) -> Vec<Record> {
    let pushed = |end, value: &[u8]| Record::Pushed {
        key: key("list"),
        end,
        value: value.into(),
    };
    let counted = |name, value| Record::Counted {
        key: key(name),
        value,
    };
    let asked: &[Record] = match version {
        1 => &[],
        _ => &[
            granted_to("owned", 7, "me", b""),
            granted_to("asked", 8, "me", b"id"),
            granted_to("asked at length", 9, "", &[b'~'; 128]),
        ],
    };
    let mut records = vec![
        Record::Fences { upto: Fence(5000) },
        granted("lock", 1),
        granted_as("slots", 2, Mode::Slot { limit: 3 }),
        granted_as("slots", 3, Mode::Slot { limit: 3 }),
        granted_as("readers", 4, Mode::Read),
        granted_as("writer", 5, Mode::Write),
        granted_as("leader", 6, Mode::Lead),
        Record::Lengthened {
            key: key("lock"),
            fence: Fence(1),
            lease: Millis(60_000),
        },
        ended("slots", 2),
        counted("up", i64::MAX),
        counted("down", i64::MIN),
        counted("gone", 1),
        counted("gone", 0),
        stored("value", b"for ever"),
        Record::Stored {
            key: key("short"),
            value: b"\0\xff"[..].into(),
            ends: Some(Nanos(86_400_000_000_000)),
        },
        stored("deleted", b"soon"),
        Record::Deleted {
            key: key("deleted"),
        },
        pushed(End::Right, b"middle"),
        pushed(End::Left, b"left"),
        pushed(End::Right, b"right"),
        pushed(End::Right, b"popped"),
        Record::Popped {
            key: key("list"),
            end: End::Right,
        },
        Record::Fences { upto: Fence(9000) },
    ];
    records.extend_from_slice(asked);
    if version >= 3 {
        let file = |client, owner| ["file", client, owner];
        // The first of them become a part of the snapshot, the others do not.
        let early = [
            client("nfs/1"),
            client("nfs/gone"),
            ranged(file("nfs/gone", ""), (0, u64::MAX), SHARED),
            ranged(file("nfs/1", "pid 7"), (0, u64::MAX), SHARED),
            ranged(file("nfs/1", ""), (5, 5), SHARED),
            ranged(file("nfs/1", "pid 7"), (100, 199), EXCLUSIVE),
            ranged(["", "nfs/1", "\u{e4}"], (u64::MAX, u64::MAX), EXCLUSIVE),
            ranged(file("nfs/1", "pid 8"), (300, 399), EXCLUSIVE),
            ranged(file("nfs/1", "pid 8"), (0, u64::MAX), None),
        ];
        records.splice(1..1, early);
        records.extend([
            Record::ClientGone {
                id: key("nfs/gone"),
            },
            ranged(file("nfs/1", "pid 7"), (1 << 63, (1 << 63) + 1), None),
            ranged(file("nfs/1", ""), (5, 5), None),
            ranged(["later", "nfs/1", ""], (1, 1), EXCLUSIVE),
        ]);
    }
    if version >= 4 {
        // Also of a client that is forgotten later, and one that has ended.
        records.extend([
            owned("lock", 1, "nfs/gone"),
            owned("lock", 1, "nfs/1"),
            owned("slots", 3, "nfs/1"),
            ended("slots", 3),
        ]);
    }
    if version >= 5 {
        for (place, record) in (0..).zip(&mut records) {
            *record = numbered(record.clone(), 1_000 + 2 * place, place, 1 + place % 2);
        }
    }
    records
}

/// A life that is compacted and does not end in order, and one that does, which follows a loss.
fn write() -> FaultDisk {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Async, SEGMENT_BYTES).unwrap();
    for batch in records(NOW).chunks(3) {
        life.write_all(batch).unwrap();
        life.compact(&disk);
    }
    drop(life);
    let mut life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
    life.write_all(&[granted("later", 5001)]).unwrap();
    life.stop().unwrap();
    disk
}

#[test]
fn this_version_writes_what_it_wrote_at_first() {
    let disk = write();
    let names = disk.list().unwrap();
    assert!(names.iter().any(|name| name.ends_with(".snapshot")));
    let golden = golden(NOW);
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        fs::create_dir_all(&golden).unwrap();
        for name in names.iter().filter(|name| !golden.join(name).exists()) {
            fs::write(golden.join(name), disk.bytes_of(name).unwrap()).unwrap();
        }
    }
    assert_eq!(names_there(NOW), names);
    for name in names {
        let wanted = fs::read(golden.join(&name)).unwrap();
        assert!(disk.bytes_of(&name) == Some(wanted), "{name} is different");
    }
}

#[test]
fn what_every_version_wrote_is_read() {
    for version in 1..=NOW {
        let disk = FaultDisk::new();
        for name in names_there(version) {
            disk.put(&name, fs::read(golden(version).join(&name)).unwrap());
        }
        let mut life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
        let mut all = records(version);
        all.push(granted("later", 5001));
        assert_eq!(State::of(&life.restored()), State::of(&all));
        assert_eq!(life.found.last, all.len() as u64 + 1, "and that it stopped");
        assert_eq!(life.found.ending, Ending::Clean(CLOCKS.wall_ms));
        assert!(!life.found.may_have_lost());
        let last = life.found.life.unwrap();
        assert_eq!(last.follows_loss, version >= 3, "earlier ones did not say");
        assert_eq!(life.found.fence_ceiling, Fence(9000));
        assert_eq!(life.epoch, 3);
        // Its files and those of this version are compacted into one.
        let asked = granted_to("asked later", 9001, "me", b"id");
        life.write_all(std::slice::from_ref(&asked)).unwrap();
        all.push(asked);
        life.compact(&disk);
        life.stop().unwrap();
        let life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
        assert_eq!(State::of(&life.restored()), State::of(&all));
    }
}
