//! Bytes are lost or changed: what is served is right, or it is refused by name.

use latch_sim::FaultDisk;
use latchd::store::{Disk, Durability, LoadError, OpenError, repair_disk};

use crate::journal::history::{
    Life, State, beginning, client, ended, granted, ranged, state_on, stored,
};
use latchd::engine::types::{Record, Sharing};

const OWNER: [&str; 3] = ["file", "nfs/1", "pid 7"];

/// A small history: the disk as it is when the power goes, the records, and for each batch of the
/// last segment where it ends and how many records there are up to there.
struct Small {
    disk: FaultDisk,
    records: Vec<Record>,
    /// The last segment, and where it is written.
    segment: String,
    batches: Vec<(usize, usize)>,
}

fn small() -> Small {
    let disk = FaultDisk::new();
    let mut first = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let old = vec![granted("a", 1), stored("v", b"old"), ended("a", 1)];
    first.write_all(&old).unwrap();
    drop(first);
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let mut records = old;
    let mut batches = Vec::new();
    let name = format!("{:020}.log", records.len() + 1);
    for batch in [
        vec![granted("b", 2)],
        vec![stored("v", b"new"), ended("b", 2), granted("b", 3)],
        vec![
            client("nfs/1"),
            ranged(OWNER, (0, u64::MAX), Some(Sharing::Shared)),
        ],
        vec![
            ranged(OWNER, (1 << 40, 1 << 50), Some(Sharing::Exclusive)),
            granted("c", 4),
            ranged(OWNER, (7, 7), None),
            ended("b", 3),
        ],
    ] {
        life.write_all(&batch).unwrap();
        records.extend(batch);
        let bytes = disk.bytes_of(&name).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        batches.push((end, records.len()));
    }
    Small {
        disk,
        records,
        segment: name,
        batches,
    }
}

impl Small {
    fn state_after(&self, records: usize) -> State {
        State::of(&self.records[..records])
    }

    fn bytes(&self) -> Vec<u8> {
        self.disk.bytes_of(&self.segment).unwrap()
    }

    fn with(&self, name: &str, bytes: Vec<u8>) -> FaultDisk {
        let disk = self.disk.copy();
        disk.put(name, bytes);
        disk
    }
}

fn refused(result: Result<State, OpenError>, name: &str) -> u64 {
    match result {
        Err(OpenError::Load(LoadError::Damaged(damage))) => {
            assert_eq!(damage.file, name);
            damage.offset
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// Cut at `at`, everything behind it zeros or not there: as a power loss may leave the tail.
#[test]
fn a_file_that_is_cut_anywhere_has_what_was_whole_before_the_cut() {
    let small = small();
    let bytes = small.bytes();
    for is_zeroed in [false, true] {
        for at in 0..bytes.len() {
            let mut cut = bytes[..at].to_vec();
            if is_zeroed {
                cut.resize(bytes.len(), 0);
            }
            let result = state_on(&small.with(&small.segment, cut));
            if at < 64 {
                // The header is on the disk before the file has its name.
                refused(result, &small.segment);
                continue;
            }
            let state = result.unwrap();
            let whole = small.batches.iter().rev().find(|(end, _)| *end <= at);
            let whole = whole.map_or(3, |(_, records)| *records);
            let allowed: Vec<State> = (whole..=small.records.len())
                .map(|records| small.state_after(records))
                .collect();
            assert!(allowed.contains(&state), "cut at {at}");
        }
    }
}

#[test]
fn a_changed_byte_is_refused_by_file_and_offset_or_was_never_promised() {
    let small = small();
    let bytes = small.bytes();
    // A later batch proves that all before it was on the disk; the last one has no later one.
    let (proven, records_proven) = small.batches[small.batches.len() - 2];
    for bit in [0, 3, 7] {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let result = state_on(&small.with(&small.segment, changed));
            if at < proven {
                let offset = refused(result, &small.segment);
                assert!(offset <= at as u64, "{at} is not behind {offset}");
                assert!(at as u64 - offset < 100, "{offset} is far from {at}");
                continue;
            }
            let state = result.unwrap();
            let allowed: Vec<State> = (records_proven..=small.records.len())
                .map(|records| small.state_after(records))
                .collect();
            assert!(allowed.contains(&state), "changed at {at}");
        }
    }
}

#[test]
fn a_changed_byte_in_a_closed_file_is_refused() {
    let small = small();
    let name = format!("{:020}.log", 1);
    let bytes = small.disk.bytes_of(&name).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 16;
        refused(state_on(&small.with(&name, changed)), &name);
        if at < bytes.len() {
            refused(state_on(&small.with(&name, bytes[..at].to_vec())), &name);
        }
    }
}

/// A snapshot has its name only when all of it is on the disk, so there is no tail that may be torn.
#[test]
fn a_changed_or_missing_byte_in_a_snapshot_is_refused() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let ranges = [
        client("nfs/1"),
        ranged(OWNER, (0, u64::MAX), Some(Sharing::Shared)),
        ranged(OWNER, (5, 9), Some(Sharing::Exclusive)),
    ];
    life.write_all(&ranges).unwrap();
    for fence in 1.. {
        let batch = [granted("a", fence), ended("a", fence), stored("v", b"1")];
        life.write_all(&batch).unwrap();
        if life.compact(&disk) {
            break;
        }
    }
    drop(life);
    let names = disk.list().unwrap();
    let name = names.iter().find(|name| name.ends_with(".snapshot"));
    let name = name.unwrap();
    let bytes = disk.bytes_of(name).unwrap();
    let with = |bytes: Vec<u8>| {
        let copy = disk.copy();
        copy.put(name, bytes);
        copy
    };
    let whole = state_on(&with(bytes.clone())).unwrap();
    assert_eq!(
        whole.ranges.into_values().map(|it| it.len()).sum::<usize>(),
        3
    );
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            refused(state_on(&with(changed)), name);
        }
        refused(state_on(&with(bytes[..at].to_vec())), name);
    }
}

#[test]
fn after_a_clean_stop_no_changed_byte_takes_a_record_with_it() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let records = [granted("a", 1), stored("v", b"1")];
    life.write_all(&records).unwrap();
    life.stop().unwrap();
    let name = format!("{:020}.log", 1);
    let bytes = disk.bytes_of(&name).unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        disk.put(&name, changed);
        let copy = disk.copy();
        match state_on(&copy) {
            Ok(state) => assert_eq!(state, State::of(&records), "changed at {at}"),
            result => drop(refused(result, &name)),
        }
    }
}

/// Room that was taken and not used is not lost.
#[test]
fn what_is_cut_is_counted_without_the_zeros_behind_it() {
    let small = small();
    let (end, _) = *small.batches.last().unwrap();
    let mut bytes = small.bytes();
    assert!(bytes.len() > end + 100);
    bytes[end..end + 40].fill(7);
    let disk = small.with(&small.segment, bytes);
    let life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let cut = life.found.cut.clone().unwrap();
    assert_eq!((cut.offset, cut.bytes), (end as u64, 40));
}

#[test]
fn a_missing_file_is_noticed() {
    let disk = FaultDisk::new();
    for fence in 1..4 {
        let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
        life.write_all(&[granted("a", fence)]).unwrap();
    }
    for missing in [1, 2] {
        let copy = FaultDisk::new();
        for number in (1..4).filter(|number| *number != missing) {
            let name = format!("{number:020}.log");
            copy.put(&name, disk.bytes_of(&name).unwrap());
        }
        // Noticed where the next one begins, or where the one before it ends.
        refused(state_on(&copy), &format!("{:020}.log", 3 - missing));
    }
}

/// Nothing behind it says that it was there, but `LOCK` does.
#[test]
fn a_missing_newest_file_is_noticed() {
    for stops in [true, false] {
        let disk = FaultDisk::new();
        for fence in 1..4 {
            let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
            life.write_all(&[granted("a", fence)]).unwrap();
            if stops {
                life.stop().unwrap();
            }
        }
        let names = disk.list().unwrap();
        let segments: Vec<&String> = names.iter().filter(|it| it.ends_with(".log")).collect();
        let newest = *segments.last().unwrap();
        disk.remove(newest).unwrap();
        refused(state_on(&disk.copy()), newest);
        for segment in &segments[..2] {
            disk.remove(segment).unwrap();
        }
        refused(state_on(&disk.copy()), newest);
    }
}

/// 2026-01-01, and the fence of that moment; nine follow in every microsecond.
fn fence_at(wall_ms: u64) -> u64 {
    1_770_000_000_000_000 + (wall_ms - 1_767_225_600_000) * 9_000
}

/// All records of the newest life are lost, and the clock may have been set back since: fences
/// continue above where that life began to give them out.
#[test]
fn fences_continue_above_a_missing_newest_life() {
    const DAY_MS: u64 = 86_400_000;
    let before = beginning(Durability::Sync, 1024);
    let later_ms = before.wall_ms + DAY_MS;
    for repaired_ms in [0, before.wall_ms, later_ms + DAY_MS] {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
        life.write_all(&[granted("a", 1)]).unwrap();
        drop(life);
        let later = latchd::store::Beginning {
            wall_ms: later_ms,
            ..before
        };
        drop(latchd::store::begin(disk.clone(), later, &mut |_| {}).unwrap());
        disk.remove(&format!("{:020}.log", 2)).unwrap();
        repair_disk(&disk, repaired_ms).unwrap();
        let life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
        let least = fence_at(later_ms.max(repaired_ms));
        assert!(life.found.fence_ceiling.0 > least, "{repaired_ms}");
    }
}

/// The clock was set back after a life whose records are damaged. Its header still counts.
#[test]
fn fences_continue_above_a_damaged_life_with_a_later_clock() {
    let disk = FaultDisk::new();
    let now = beginning(Durability::Sync, 1024);
    let ahead = latchd::store::Beginning {
        wall_ms: now.wall_ms + 1_000_000_000,
        ..now
    };
    drop(latchd::store::begin(disk.clone(), ahead, &mut |_| {}).unwrap());
    let name = format!("{:020}.log", 1);
    let header = disk.bytes_of(&name).unwrap()[..64].to_vec();
    disk.remove(&name).unwrap();
    disk.remove("LOCK").unwrap();
    // Of the first segment only the header is left.
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("a", 1), granted("b", 2)]).unwrap();
    drop(life);
    drop(Life::begin(&disk, Durability::Sync, 1024).unwrap());
    disk.put(&name, header);
    repair_disk(&disk, now.wall_ms).unwrap();
    let life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    assert!(life.found.fence_ceiling.0 > fence_at(ahead.wall_ms));
}

/// A new directory has had only one segment, and `LOCK` already has two copies of its header.
#[test]
fn a_missing_first_segment_is_noticed_with_one_damaged_copy() {
    for slot in [512, 1024] {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
        life.write_all(&[granted("a", 1)]).unwrap();
        drop(life);
        let mut lock = disk.bytes_of("LOCK").unwrap();
        lock[slot] ^= 1;
        disk.put("LOCK", lock);
        let name = format!("{:020}.log", 1);
        disk.remove(&name).unwrap();
        refused(state_on(&disk), &name);
    }
}

/// A life without a record has its segment under the name that the next one takes.
#[test]
fn an_older_file_under_the_name_of_the_newest_is_noticed() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    drop(life);
    drop(Life::begin(&disk, Durability::Sync, 1024).unwrap());
    let name = format!("{:020}.log", 2);
    let older = disk.bytes_of(&name).unwrap();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("b", 2)]).unwrap();
    drop(life);
    disk.put(&name, older);
    refused(state_on(&disk), &name);
}

/// One copy is enough. Without any, `LOCK` is damaged, and a repair writes it again.
#[test]
fn a_changed_byte_in_lock_costs_nothing() {
    let small = small();
    let all = State::of(&small.records);
    let bytes = small.disk.bytes_of("LOCK").unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert_eq!(state_on(&small.with("LOCK", changed)).unwrap(), all, "{at}");
    }
    let mut changed = bytes;
    changed[512] ^= 1;
    changed[1024] ^= 1;
    let disk = small.with("LOCK", changed);
    refused(state_on(&disk.copy()), "LOCK");
    let report = repair_disk(&disk, 0).unwrap().to_string();
    assert!(report.contains("LOCK"), "{report}");
    assert_eq!(state_on(&disk).unwrap().grants, all.grants);
}

/// Its numbers say nothing about these files.
#[test]
fn the_lock_file_of_another_directory_is_refused() {
    let (small, other) = (small(), FaultDisk::new());
    let beginning = latchd::store::Beginning {
        durability: Durability::Sync,
        segment_bytes: 1024,
        salt: 1,
        wall_ms: 0,
    };
    for _ in 0..5 {
        drop(latchd::store::begin(other.clone(), beginning, &mut |_| {}).unwrap());
    }
    let disk = small.with("LOCK", other.bytes_of("LOCK").unwrap());
    refused(state_on(&disk.copy()), "LOCK");
    repair_disk(&disk, 0).unwrap();
    let grants = state_on(&disk).unwrap().grants;
    assert_eq!(grants, State::of(&small.records).grants);
}

/// The frames prove the salt, so a foreign `LOCK` does not count.
#[test]
fn a_repair_reads_the_only_segment_in_spite_of_a_foreign_lock_file() {
    let (disk, other) = (FaultDisk::new(), FaultDisk::new());
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    let records = [granted("a", 1), stored("v", b"1"), granted("b", 2)];
    life.write_all(&records).unwrap();
    drop(life);
    let beginning = latchd::store::Beginning {
        salt: 1,
        ..beginning(Durability::Sync, 1024)
    };
    drop(latchd::store::begin(other.clone(), beginning, &mut |_| {}).unwrap());
    let name = format!("{:020}.log", 1);
    let mut bytes = disk.bytes_of(&name).unwrap();
    bytes[..64].fill(0);
    disk.put(&name, bytes);
    disk.put("LOCK", other.bytes_of("LOCK").unwrap());
    assert_eq!(repair_disk(&disk, 0).unwrap().read, 3);
    let grants = state_on(&disk).unwrap().grants;
    assert_eq!(grants, State::of(&records).grants);
}

#[test]
fn a_file_of_another_directory_is_refused() {
    let small = small();
    let other = FaultDisk::new();
    let beginning = latchd::store::Beginning {
        durability: Durability::Sync,
        segment_bytes: 1024,
        salt: 1,
        wall_ms: 0,
    };
    drop(latchd::store::begin(other.clone(), beginning, &mut |_| {}).unwrap());
    let name = format!("{:020}.log", 1);
    let foreign = small.with(&name, other.bytes_of(&name).unwrap());
    assert!(state_on(&foreign).is_err());
}

/// Clients choose the bytes of values. None of them may pass for a mark when the tail is torn.
#[test]
fn a_value_that_looks_like_a_journal_proves_nothing() {
    use latchd::store::format::push_mark;
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 1024).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    let name = format!("{:020}.log", 1);
    let mut forged = Vec::new();
    push_mark(&mut forged, 0, 3, 2); // the salt is not known
    life.write_all(&[stored("x", b"first"), stored("y", &forged)])
        .unwrap();
    let mut bytes = disk.bytes_of(&name).unwrap();
    let at = bytes.windows(5).position(|it| it == b"first").unwrap();
    bytes[at] ^= 1;
    disk.put(&name, bytes);
    let state = state_on(&disk).unwrap();
    assert_eq!(
        state,
        State::of(&[granted("a", 1)]),
        "torn, and not damaged"
    );
}
