//! The next segment's file is made ahead: it takes the next place, or is gone.

use latch_sim::FaultDisk;
use latchd::store::{Disk, Durability};

use crate::journal::history::{Life, State, granted, state_on};

const SEGMENT_BYTES: u64 = 4096;

fn life_on(disk: &FaultDisk) -> Life<FaultDisk> {
    Life::begin(disk, Durability::Sync, SEGMENT_BYTES).unwrap()
}

/// Names of files that are not finished.
fn unfinished(disk: &FaultDisk) -> usize {
    let names = disk.list().unwrap();
    names.iter().filter(|name| name.ends_with(".tmp")).count()
}

/// Names of segments, finished or not.
fn segments(disk: &FaultDisk) -> usize {
    let names = disk.list().unwrap();
    names.iter().filter(|name| name.contains(".log")).count()
}

/// Writes grants, beginning with this fence, until a spare is wanted. Returns the next fence.
fn write_until_spare(life: &mut Life<FaultDisk>, disk: &FaultDisk, mut fence: u64) -> u64 {
    while !life.make_spare(disk) {
        life.write_all(&[granted("held", fence)]).unwrap();
        fence += 1;
    }
    fence
}

#[test]
fn a_spare_becomes_the_next_segment() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    let fence = write_until_spare(&mut life, &disk, 1);
    assert_eq!((segments(&disk), unfinished(&disk)), (2, 1));
    assert!(!life.make_spare(&disk), "one is enough");
    // The first segment was made in a hurry, so it is left at once.
    life.write_all(&[granted("held", fence)]).unwrap();
    assert_eq!((segments(&disk), unfinished(&disk)), (2, 0));
    let next = write_until_spare(&mut life, &disk, fence + 1);
    assert!(next > fence + 10, "half of the segment was used before");
    life.write_all(&[granted("held", next)]).unwrap();
    assert_eq!(unfinished(&disk), 1, "a segment that was a spare is used");
    life.stop().unwrap();
    assert_eq!(unfinished(&disk), 0, "nothing is left behind");
    let records: Vec<_> = (1..=next).map(|fence| granted("held", fence)).collect();
    assert_eq!(state_on(&disk).unwrap(), State::of(&records));
}

#[test]
fn a_spare_that_a_crash_left_is_gone_after_the_next_start() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    write_until_spare(&mut life, &disk, 1);
    drop(life);
    assert_eq!(unfinished(&disk), 1);
    life_on(&disk);
    assert_eq!(unfinished(&disk), 0);
}

#[test]
fn without_room_for_a_spare_everything_goes_on() {
    let disk = FaultDisk::new();
    let mut life = life_on(&disk);
    disk.set_capacity(Some(SEGMENT_BYTES + SEGMENT_BYTES / 2));
    let mut fence = 1;
    while life.writer.full().is_none() {
        life.write_all(&[granted("held", fence)]).unwrap();
        fence += 1;
        assert!(!life.make_spare(&disk));
        assert_eq!(unfinished(&disk), 0, "it takes no room from others");
    }
    disk.set_capacity(None);
    life.writer.look_for_room().unwrap();
    write_until_spare(&mut life, &disk, fence);
}

#[test]
fn who_does_not_wait_for_the_disk_needs_no_spare() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Async, SEGMENT_BYTES).unwrap();
    for fence in 1..200 {
        life.write_all(&[granted("held", fence)]).unwrap();
        assert!(!life.make_spare(&disk));
    }
}
