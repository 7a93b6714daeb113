//! Files that a release wrote once, in `v1/`: every later one reads them, and this one writes the
//! same bytes.
//!
//! When the format gets a new version, `v1/` stays as it is and is only read.
//! `WRITE_GOLDEN=1 cargo test --test journal golden` writes a directory that is missing.

use std::fs;
use std::path::{Path, PathBuf};

use latchd::base::{Fence, Millis, Nanos};
use latchd::engine::types::{End, Mode, Record};
use latchd::store::{Disk, Durability, Ending, FaultDisk};

use crate::history::{CLOCKS, Life, State, ended, granted, granted_as, key, stored};

const SEGMENT_BYTES: u64 = 1024;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal/v1")
}

fn names_there() -> Vec<String> {
    let files = fs::read_dir(golden()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Every kind of record, in every form.
fn records() -> Vec<Record> {
    let pushed = |end, value: &[u8]| Record::Pushed {
        key: key("list"),
        end,
        value: value.into(),
    };
    let counted = |name, value| Record::Counted {
        key: key(name),
        value,
    };
    vec![
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
    ]
}

/// A life that is compacted and does not end in order, and one that does.
fn write() -> FaultDisk {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
    for batch in records().chunks(3) {
        life.write_all(batch).unwrap();
        life.compact(&disk);
    }
    drop(life);
    let mut life = Life::begin(&disk, Durability::Async, SEGMENT_BYTES).unwrap();
    life.write_all(&[granted("later", 5001)]).unwrap();
    life.stop().unwrap();
    disk
}

#[test]
fn this_release_writes_what_the_first_one_wrote() {
    let disk = write();
    let names = disk.list().unwrap();
    assert!(names.iter().any(|name| name.ends_with(".snapshot")));
    if !golden().exists() && std::env::var_os("WRITE_GOLDEN").is_some() {
        fs::create_dir(golden()).unwrap();
        for name in &names {
            fs::write(golden().join(name), disk.bytes_of(name).unwrap()).unwrap();
        }
    }
    assert_eq!(names_there(), names);
    for name in names {
        let wanted = fs::read(golden().join(&name)).unwrap();
        assert!(disk.bytes_of(&name) == Some(wanted), "{name} is different");
    }
}

#[test]
fn what_the_first_release_wrote_is_read() {
    let disk = FaultDisk::new();
    for name in names_there() {
        disk.put(&name, fs::read(golden().join(&name)).unwrap());
    }
    let life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
    let mut all = records();
    all.push(granted("later", 5001));
    assert_eq!(State::of(&life.restored()), State::of(&all));
    assert_eq!(life.found.last, all.len() as u64 + 1, "and that it stopped");
    assert_eq!(life.found.ending, Ending::Clean(CLOCKS.wall_ms));
    assert_eq!(life.found.fence_ceiling, Fence(9000));
    assert_eq!(life.epoch, 3);
}
