//! The disk is full or fails.

use latch_sim::FaultDisk;
use latchd::store::{Durability, OpenError, Trouble};

use crate::journal::history::{Life, State, ended, granted, state_on, stored};

const SEGMENT_BYTES: u64 = 4096;

fn life_on(disk: &FaultDisk) -> Life<FaultDisk> {
    Life::begin(disk, Durability::Sync, SEGMENT_BYTES).unwrap()
}

#[test]
fn a_full_disk_still_takes_releases_and_recovers_by_itself() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    let used = disk.used_bytes();
    disk.set_capacity(Some(used + 100));
    let mut records = Vec::new();
    for fence in 1.. {
        records.push(granted("held", fence));
        life.write_all(&records[records.len() - 1..]).unwrap();
        if life.writer.full().is_some() {
            break;
        }
    }
    // A quarter of the segment is left for what ends.
    for fence in 1..10 {
        records.push(ended("held", fence));
        life.write_all(&records[records.len() - 1..]).unwrap();
    }
    assert!(life.writer.full().is_some());
    life.writer.look_for_room().unwrap();
    assert!(life.writer.full().is_some(), "still");
    assert_eq!(disk.copy().used_bytes(), used, "no half-made file");
    disk.set_capacity(None);
    life.writer.look_for_room().unwrap();
    assert_eq!(life.writer.full(), None);
    records.push(stored("large", &[7; 2000]));
    life.write_all(&records[records.len() - 1..]).unwrap();
    assert_eq!(life.writer.synced(), records.len() as u64);
    drop(life);
    assert_eq!(state_on(&disk).unwrap(), State::of(&records));
}

/// A segment that does not fit becomes shorter, until not even a page of records has room.
#[test]
fn segments_shrink_to_the_room_there_is() {
    const SEGMENT_BYTES: u64 = 1 << 20;
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
    let capacity = SEGMENT_BYTES * 3 / 2;
    disk.set_capacity(Some(capacity));
    let mut records = Vec::new();
    while life.writer.full().is_none() {
        let count = records.len();
        records.push(stored(&format!("{count}"), &[7; 1000]));
        life.write_all(&records[count..]).unwrap();
    }
    let reserve = SEGMENT_BYTES / 4;
    let free = capacity.checked_sub(disk.used_bytes()).unwrap();
    assert!(free < reserve + 4096, "{free} of {capacity}");
    assert!(life.writer.missing_bytes() > 0);
    // What ends still has room.
    for fence in 1..1000 {
        records.push(ended("held", fence));
        life.write_all(&records[records.len() - 1..]).unwrap();
    }
    disk.set_capacity(Some(capacity + reserve));
    life.writer.look_for_room().unwrap();
    assert_eq!((life.writer.full(), life.writer.missing_bytes()), (None, 0));
    records.push(stored("more", &[7; 1000]));
    life.write_all(&records[records.len() - 1..]).unwrap();
    drop(life);
    disk.set_capacity(None);
    assert_eq!(state_on(&disk).unwrap(), State::of(&records));
}

#[test]
fn what_does_not_fit_is_kept_and_written_later() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    disk.set_capacity(Some(disk.used_bytes()));
    let large = stored("large", &[7; 5000]);
    assert!(matches!(
        life.write_all(std::slice::from_ref(&large)),
        Err(Trouble::Full(_))
    ));
    assert_eq!(life.writer.synced(), 0);
    life.push(&granted("a", 1));
    assert!(matches!(life.write(), Err(Trouble::Full(_))));
    disk.set_capacity(None);
    life.write().unwrap();
    assert_eq!(life.writer.synced(), 2);
    drop(life);
    assert_eq!(
        state_on(&disk).unwrap(),
        State::of(&[large, granted("a", 1)])
    );
}

#[test]
fn a_nearly_full_disk_is_enough_to_start() {
    let disk = FaultDisk::new();
    disk.set_capacity(Some(100_000));
    let life = Life::begin(&disk, Durability::Sync, 1 << 20).unwrap();
    assert!(disk.used_bytes() <= 100_000);
    drop(life);
    let disk = FaultDisk::new();
    disk.set_capacity(Some(1_000));
    let refused = Life::begin(&disk, Durability::Sync, 1 << 20);
    assert!(matches!(refused, Err(OpenError::Full(_))));
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn a_compaction_without_room_changes_nothing() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    let mut records = Vec::new();
    while life.writer.compaction().is_none() {
        let count = records.len();
        records.push(stored(&format!("{count}"), &[1; 100]));
        life.write_all(&records[count..]).unwrap();
    }
    life.writer.compacted(None);
    disk.set_capacity(Some(disk.used_bytes() + 500));
    while !life.compact(&disk) {
        disk.set_capacity(Some(disk.used_bytes() + 500));
        assert_eq!(state_on(&disk.copy()).unwrap(), State::of(&records));
        // Room is looked for, in vain or not; then it is tried again.
        let count = records.len();
        records.push(ended("nobody", count as u64));
        let _ = life.write_all(&records[count..]);
        life.writer.look_for_room().unwrap();
        if records.len() > 60 {
            disk.set_capacity(None);
        }
    }
    assert_eq!(state_on(&disk).unwrap(), State::of(&records));
}

/// Room is looked for four times a second; to read and write everything as often would be too much.
#[test]
fn a_compaction_without_room_is_tried_again_less_and_less_often() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    life.write_all(&[stored("large", &[7; 2000])]).unwrap();
    drop(life);
    let mut life = life_on(&disk);
    disk.set_capacity(Some(disk.used_bytes()));
    let mut fence = 0;
    while life.writer.full().is_none() {
        fence += 1;
        life.write_all(&[granted("held", fence)]).unwrap();
    }
    let mut tries = Vec::new();
    for look in 0..400 {
        if let Some(job) = life.writer.compaction() {
            tries.push(look);
            assert!(job.run(&disk, &|| false).is_err());
            life.writer.compacted(None);
        }
        assert_eq!(life.writer.compaction(), None, "at once");
        life.writer.look_for_room().unwrap();
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
    // It still comes back by itself.
    disk.set_capacity(None);
    life.writer.look_for_room().unwrap();
    assert_eq!(life.writer.full(), None);
    assert!(life.compact(&disk), "there is more to compact now");
}

#[test]
fn a_failed_sync_is_the_end_whichever_it_is() {
    for later in 1..30 {
        let disk = FaultDisk::new();
        let mut life = life_on(&disk);
        disk.fail_sync_at(disk.steps() + later);
        let mut acknowledged = 0;
        let failed = (1..200).find_map(|fence| {
            let result = life.write_all(&[granted("a", fence), ended("a", fence)]);
            match result {
                Ok(()) => acknowledged = life.writer.synced(),
                Err(_) => assert_eq!(life.writer.synced(), acknowledged),
            }
            result.err()
        });
        assert!(matches!(failed, Some(Trouble::Failed(_))), "{failed:?}");
        drop(life);
        disk.crash(&mut fastrand::Rng::with_seed(later));
        let life = life_on(&disk);
        assert!(life.found.last >= acknowledged);
    }
}
