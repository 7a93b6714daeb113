//! What a repair keeps: everything that can be proved, nothing that cannot, and the original.

use latch_sim::FaultDisk;
use latchd::engine::types::{Mode, Record, Sharing};
use latchd::store::format::{FileKind, Header, push_end, push_record};
use latchd::store::{Disk, Durability, LoadError, OpenError, repair_disk};

use crate::journal::history::{
    CLOCKS, Life, Maker, State, client, ended, granted, granted_as, ranged, state_on, stored,
};

fn repair(disk: &FaultDisk) -> latchd::store::Repaired {
    repair_disk(disk, CLOCKS.wall_ms).unwrap()
}

/// Names of the files that count.
fn files(disk: &FaultDisk) -> Vec<String> {
    let names = disk.list().unwrap();
    let counts = |name: &String| name.ends_with(".log") || name.ends_with(".snapshot");
    names.into_iter().filter(counts).collect()
}

#[test]
fn a_whole_directory_is_left_alone() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    drop(life);
    let steps = disk.steps();
    let report = repair(&disk);
    assert!(report.lost.is_empty());
    assert_eq!(disk.steps(), steps, "nothing was touched");
    assert!(report.to_string().contains("nothing was changed"));
}

/// A history with a snapshot and several segments; every byte of every file is changed in turn.
#[test]
fn whichever_byte_is_changed_a_repair_makes_it_whole_again() {
    let disk = FaultDisk::new();
    let mut maker = Maker::new(3, 4, 10);
    let mut records = Vec::new();
    let mut life = Life::begin(&disk, Durability::Sync, 512).unwrap();
    while files(&disk).len() < 4 || records.len() < 40 {
        let batch: Vec<Record> = (0..3).map(|_| maker.next()).collect();
        life.write_all(&batch).unwrap();
        records.extend(batch);
        if records.len() < 30 {
            life.compact(&disk);
        }
    }
    drop(life);
    let ever = State::ever(&records);
    let mut repaired = 0;
    for name in files(&disk) {
        let bytes = disk.bytes_of(&name).unwrap();
        for at in 0..bytes.len() {
            let copy = disk.copy();
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            copy.put(&name, changed.clone());
            if state_on(&copy.copy()).is_ok() {
                continue; // the tail
            }
            let report = repair(&copy);
            assert!(!report.lost.is_empty(), "{name} {at}");
            assert!(report.to_string().contains(&name), "{report}");
            repaired += 1;
            let backup = report.backups.iter().find(|it| it.starts_with(&name));
            let backup = copy.bytes_of(backup.unwrap());
            assert!(backup == Some(changed), "the original is kept");
            let life = Life::begin(&copy, Durability::Sync, 512).unwrap();
            assert!(life.epoch > 1);
            let state = State::of(&life.restored());
            state.is_part_of(&ever);
            assert!(!state.ranges_conflict(), "{name} {at}");
            let mut owners = state.ranges.keys();
            assert!(owners.all(|owner| state.clients.contains_key(&owner[1])));
            assert!(life.found.may_have_lost(), "{name} {at}");
            assert!(life.found.fence_ceiling.0 > ever.fences + (1 << 20));
            // One frame is lost at most, and what it made.
            assert!(report.read + 3 >= life.found.records, "{name} {at}");
        }
    }
    assert!(repaired > 1000, "{repaired}");
}

/// Changes one byte of the first place where `needle` stands in a file.
fn spoil(disk: &FaultDisk, name: &str, needle: &[u8]) {
    let mut bytes = disk.bytes_of(name).unwrap();
    let at = bytes.windows(needle.len()).position(|it| it == needle);
    bytes[at.unwrap()] ^= 1;
    disk.put(name, bytes);
}

#[test]
fn a_lost_release_does_not_make_two_holders() {
    for (mode, is_alone) in [
        (Mode::Slot { limit: 1 }, true),
        (Mode::Slot { limit: 2 }, false),
        (Mode::Lead, true),
        (Mode::Write, true),
        (Mode::Read, false),
    ] {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        life.write_all(&[granted_as("key", 1, mode)]).unwrap();
        life.write_all(&[stored("spoiled", b"here")]).unwrap();
        life.write_all(&[granted_as("key", 2, mode)]).unwrap();
        life.write_all(&[stored("whole", b"1")]).unwrap();
        drop(life);
        let name = format!("{:020}.log", 1);
        spoil(&disk, &name, b"spoiled");
        assert!(matches!(
            state_on(&disk.copy()),
            Err(OpenError::Load(LoadError::Damaged(_)))
        ));
        let report = repair(&disk);
        assert_eq!((report.lost.len(), report.read), (1, 3));
        assert_eq!(report.lost[0].records_max, 1);
        assert_eq!(report.ended, u64::from(is_alone), "{mode:?}");
        let state = state_on(&disk).unwrap();
        let holders: Vec<u64> = state.grants.keys().copied().collect();
        let expected = if is_alone { vec![2] } else { vec![1, 2] };
        assert_eq!(holders, expected, "{mode:?}");
        assert!(
            state.values.contains_key(&b"whole"[..]),
            "behind the damage"
        );
    }
}

/// A release of bytes is lost, and somebody else has locked some of them since.
#[test]
fn a_lost_release_of_bytes_does_not_make_two_holders() {
    use Sharing::{Exclusive, Shared};
    let (one, other) = (["file", "nfs/1", ""], ["file", "nfs/2", ""]);
    for (first, then, is_cut) in [
        (Exclusive, Exclusive, true),
        (Exclusive, Shared, true),
        (Shared, Exclusive, true),
        (Shared, Shared, false),
    ] {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        for batch in [
            &[client("nfs/1"), client("nfs/2")][..],
            &[ranged(one, (0, u64::MAX), Some(first))],
            &[stored("spoiled", b"here")],
            &[ranged(other, (10, 19), Some(then))],
            &[stored("whole", b"1")],
        ] {
            life.write_all(batch).unwrap();
        }
        drop(life);
        spoil(&disk, &format!("{:020}.log", 1), b"spoiled");
        let report = repair(&disk);
        assert_eq!(report.ended, u64::from(is_cut), "{first:?} {then:?}");
        let state = state_on(&disk).unwrap();
        let of = |owner: [&str; 3]| &state.ranges[&owner.map(|it| it.as_bytes().to_vec())];
        let all = 1 << 64;
        let left = match is_cut {
            true => vec![(0, 10, first), (20, all, first)],
            false => vec![(0, all, first)],
        };
        assert_eq!(of(one), &left, "{first:?} {then:?}");
        assert_eq!(of(other), &[(10, 20, then)]);
    }
}

/// In a snapshot all ranges have one number: those behind the damage are found as well, whichever of
/// them is damaged, and however many have to be skipped.
#[test]
fn behind_a_damaged_range_of_a_snapshot_all_others_are_found() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let resources: Vec<String> = (0..9).map(|number| format!("file {number}")).collect();
    life.write_all(&[client("nfs/1")]).unwrap();
    for resource in &resources {
        let owner = [resource, "nfs/1", ""];
        let locked = ranged(owner, (0, 9), Some(Sharing::Exclusive));
        life.write_all(&[locked]).unwrap();
    }
    while !life.compact(&disk) {
        life.write_all(&[stored("over and over", b"1")]).unwrap();
    }
    drop(life);
    let names = files(&disk);
    let snapshot = names.iter().find(|name| name.ends_with(".snapshot"));
    for spoiled in &resources {
        let copy = disk.copy();
        spoil(&copy, snapshot.unwrap(), spoiled.as_bytes());
        let report = repair(&copy);
        assert_eq!(report.lost.len(), 1, "{report}");
        let state = state_on(&copy).unwrap();
        let left: Vec<&[u8]> = state.ranges.keys().map(|owner| &owner[0][..]).collect();
        let others = resources.iter().filter(|it| *it != spoiled);
        let others: Vec<&[u8]> = others.map(String::as_bytes).collect();
        assert_eq!(left, others);
    }
}

/// Nobody could have back what belongs to a client whose secret is lost.
#[test]
fn ranges_of_a_client_that_was_lost_are_not_kept() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let locked = |id| ranged(["file", id, ""], (0, 9), Some(Sharing::Shared));
    life.write_all(&[client("nfs/lost")]).unwrap();
    life.write_all(&[client("nfs/1"), locked("nfs/lost"), locked("nfs/1")])
        .unwrap();
    life.write_all(&[stored("whole", b"1")]).unwrap();
    drop(life);
    spoil(&disk, &format!("{:020}.log", 1), b"nfs/lost");
    repair(&disk);
    let state = state_on(&disk).unwrap();
    let clients: Vec<&[u8]> = state.ranges.keys().map(|owner| &owner[1][..]).collect();
    assert_eq!(clients, [b"nfs/1"]);
}

#[test]
fn a_repair_may_be_cut_short_at_every_step() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 512).unwrap();
    let mut records = Vec::new();
    for fence in 1..20 {
        records.extend([granted("a", fence), ended("a", fence)]);
        records.push(granted(&format!("kept {fence}"), 100 + fence));
        life.write_all(&records[records.len() - 3..]).unwrap();
    }
    drop(life);
    spoil(&disk, &files(&disk)[1], b"kept");
    for seed in 0..10 {
        for step in 1.. {
            let copy = disk.copy();
            copy.die_at(step);
            let _ = repair_disk(&copy, CLOCKS.wall_ms);
            let is_over = !copy.is_dead();
            copy.crash(&mut fastrand::Rng::with_seed(seed * 1000 + step));
            let state = match state_on(&copy) {
                Ok(state) => state,
                Err(OpenError::Load(LoadError::Damaged(_))) => {
                    assert!(!is_over);
                    assert!(!repair(&copy).lost.is_empty());
                    state_on(&copy).unwrap()
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(state.grants.len(), 18, "all but the lost one");
            let there = copy.list().unwrap();
            let there: Vec<_> = there.iter().map(|name| copy.bytes_of(name)).collect();
            for original in files(&disk) {
                let bytes = disk.bytes_of(&original);
                assert!(there.contains(&bytes), "{original} is gone, step {step}");
            }
            if is_over {
                assert!(step > 8, "a repair in {step} steps");
                break;
            }
        }
    }
}

/// In a snapshot numbers are left out, many more than there is room for in the bytes behind the
/// damage: what stands behind it is found all the same.
#[test]
fn behind_damage_in_a_snapshot_a_record_is_found_however_high_its_number() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    life.write_all(&[granted("before", 1), stored("spoiled", b"here")])
        .unwrap();
    // Nothing of this is left, but the numbers are used.
    for _ in 0..400 {
        life.write_all(&[stored("over and over", b"1")]).unwrap();
        life.compact(&disk);
    }
    life.write_all(&[granted("behind", 2)]).unwrap();
    while !life.compact(&disk) {
        life.write_all(&[stored("over and over", b"1")]).unwrap();
    }
    drop(life);
    let names = files(&disk);
    let snapshot = names.iter().find(|name| name.ends_with(".snapshot"));
    let snapshot = snapshot.unwrap();
    let bytes = disk.bytes_of(snapshot).unwrap();
    assert!(400 > bytes.len() / 18, "the gap is larger: {}", bytes.len());
    spoil(&disk, snapshot, b"spoiled");
    let report = repair(&disk);
    assert_eq!(report.lost.len(), 1, "{report}");
    let state = state_on(&disk).unwrap();
    let holders: Vec<u64> = state.grants.keys().copied().collect();
    assert_eq!(holders, [1, 2], "{report}");
    assert!(state.values.contains_key(&b"over and over"[..]));
}

/// What a later version wrote is none of our business, also where something before it is damaged.
#[test]
fn a_file_of_a_later_version_is_not_repaired() {
    let disk = FaultDisk::new();
    for fence in 1..4 {
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        life.write_all(&[granted("key", fence)]).unwrap();
    }
    let names = files(&disk);
    assert_eq!(names.len(), 3);
    let mut newer = disk.bytes_of(&names[2]).unwrap();
    newer[8] = 9;
    let checksum = crc32c::crc32c(&newer[..60]);
    newer[60..64].copy_from_slice(&checksum.to_le_bytes());
    disk.put(&names[2], newer);
    spoil(&disk, &names[0], b"key");
    let steps = disk.steps();
    let refused = repair_disk(&disk, CLOCKS.wall_ms);
    let Err(LoadError::TooNew { file, version: 9 }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(file, names[2]);
    assert_eq!((disk.steps(), files(&disk)), (steps, names), "untouched");
}

/// One segment, and nothing else that knows the salt; with `LOCK` and, as in older directories,
/// without.
#[test]
fn a_wrong_byte_in_the_header_of_the_only_segment_costs_no_record() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let records = [granted("a", 1), stored("v", b"1"), granted("b", 2)];
    for record in &records {
        life.write_all(std::slice::from_ref(record)).unwrap();
    }
    drop(life);
    let name = files(&disk)[0].clone();
    let bytes = disk.bytes_of(&name).unwrap();
    for has_lock in [true, false] {
        for at in 0..64 {
            for change in [1, 0x40, 0xff] {
                let copy = disk.copy();
                if !has_lock {
                    let _ = copy.remove("LOCK");
                }
                let mut changed = bytes.clone();
                changed[at] ^= change;
                copy.put(&name, changed);
                assert!(state_on(&copy.copy()).is_err(), "{at}");
                let report = repair(&copy);
                assert_eq!(report.read, 3, "{at}: {report}");
                assert_eq!(report.lost.len(), 1, "{at}: {report}");
                assert!(report.to_string().contains(&name), "{report}");
                let life = Life::begin(&copy, Durability::Sync, 4096).unwrap();
                assert!(life.epoch > 1);
                let state = State::of(&life.restored());
                let before = State::of(&records);
                assert_eq!((state.grants, state.values), (before.grants, before.values));
            }
        }
    }
}

/// All 64 bytes of it are gone.
#[test]
fn a_header_that_is_gone_costs_no_record() {
    for has_lock in [true, false] {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        life.write_all(&[granted("a", 1), granted("b", 2)]).unwrap();
        drop(life);
        if !has_lock {
            let _ = disk.remove("LOCK");
        }
        let name = files(&disk)[0].clone();
        let mut bytes = disk.bytes_of(&name).unwrap();
        bytes[..64].fill(0);
        disk.put(&name, bytes);
        assert_eq!(repair(&disk).read, 2);
        assert_eq!(state_on(&disk).unwrap().grants.len(), 2);
    }
}

#[test]
fn without_any_header_nothing_is_guessed() {
    let disk = FaultDisk::new();
    let life = Life::begin(&disk, Durability::Sync, 512).unwrap();
    drop(life);
    let name = files(&disk)[0].clone();
    let bytes = disk.bytes_of(&name).unwrap();
    disk.put(&name, vec![1; bytes.len()]);
    let copy = disk.copy();
    disk.remove("LOCK").unwrap();
    let refused = repair_disk(&disk, 0).unwrap_err().to_string();
    assert!(refused.contains(&name), "{refused}");
    assert_eq!(files(&disk), [name]);
    // A copy of the header is as good.
    assert_eq!(repair(&copy).read, 0);
    state_on(&copy).unwrap();
}

/// No history is so long. Every door refuses it and changes nothing, and none overflows.
#[test]
fn numbers_that_no_directory_reaches_are_refused() {
    let whole = FaultDisk::new();
    let mut life = Life::begin(&whole, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    drop(life);
    let first = whole.bytes_of("00000000000000000001.log").unwrap();
    let header = Header::decode(&first).unwrap();
    for number in [
        (1 << 61) + 1,
        (1 << 62) - 1,
        1 << 62,
        u64::MAX - 1,
        u64::MAX,
    ] {
        for (kind, suffix) in [(FileKind::Segment, "log"), (FileKind::Snapshot, "snapshot")] {
            let disk = whole.copy();
            let name = format!("{number:020}.{suffix}");
            let header = Header {
                kind,
                number,
                ..header
            };
            disk.put(&name, header.encode().to_vec());
            let steps = disk.steps();
            // A name with such a number is not ours.
            let is_ours = number < 1 << 62;
            assert_eq!(state_on(&disk.copy()).is_err(), is_ours, "{name}");
            assert_eq!(
                repair_disk(&disk, CLOCKS.wall_ms).is_err(),
                is_ours,
                "{name}"
            );
            assert_eq!(disk.steps(), steps, "{name}: nothing was touched");
        }
    }
}

/// Each of the files, which are of another directory, is missing all records before it.
#[test]
fn losses_beyond_every_number_are_refused() {
    let disk = FaultDisk::new();
    Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let first = disk.bytes_of("00000000000000000001.log").unwrap();
    let mut header = Header::decode(&first).unwrap();
    header.life.salt ^= 1;
    for number in (1 << 62) - 6..1 << 62 {
        header.number = number;
        disk.put(&format!("{number:020}.log"), header.encode().to_vec());
    }
    let steps = disk.steps();
    let refused = repair_disk(&disk, CLOCKS.wall_ms);
    assert!(matches!(refused, Err(LoadError::Damaged(_))), "{refused:?}");
    assert_eq!(disk.steps(), steps, "nothing was touched");
}

/// As a write that went to the wrong place leaves it: the same record twice, or another one in its place.
#[test]
fn a_number_that_a_snapshot_has_twice_is_kept_once() {
    let whole = FaultDisk::new();
    Life::begin(&whole, Durability::Sync, 1024).unwrap();
    let first = whole.bytes_of("00000000000000000001.log").unwrap();
    let header = Header::decode(&first).unwrap();
    let header_of = |kind, number| {
        let header = Header {
            kind,
            number,
            ..header
        };
        header.encode().to_vec()
    };
    let mut snapshot = header_of(FileKind::Snapshot, 5);
    let salt = header.life.salt;
    for (number, key, fence) in [(3, "a", 1), (3, "b", 2), (4, "c", 3)] {
        push_record(&mut snapshot, salt, number, &granted(key, fence), || CLOCKS);
    }
    push_end(&mut snapshot, salt, 5, 3);
    let disk = FaultDisk::new();
    disk.put("00000000000000000005.snapshot", snapshot);
    disk.put("00000000000000000006.log", header_of(FileKind::Segment, 6));
    assert!(state_on(&disk.copy()).is_err());
    let report = repair(&disk);
    assert_eq!((report.lost.len(), report.kept), (1, 2), "{report}");
    state_on(&disk).unwrap();
}
