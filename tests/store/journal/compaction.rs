//! Compaction: the same state in less room, and never much more room than what is live.

use latch_sim::FaultDisk;
use latchd::engine::types::{Record, Sharing};
use latchd::store::{Disk, Durability};

use crate::journal::history::{Life, Maker, State, client, granted, key, numbered, ranged};

#[test]
fn what_is_left_is_the_same_after_every_compaction() {
    for seed in 0..20 {
        let disk = FaultDisk::new();
        let mut maker = Maker::new(seed, 12, 80);
        let mut life = Life::begin(&disk, Durability::Sync, 2048).unwrap();
        let mut state = State::default();
        let mut compactions = 0;
        while compactions < 8 {
            let record = maker.next();
            state.apply(&record);
            life.write_all(&[record]).unwrap();
            if life.compact(&disk) {
                compactions += 1;
                let copy = Life::begin(&disk.copy(), Durability::Sync, 2048).unwrap();
                assert_eq!(State::of(&copy.restored()), state, "seed {seed}");
            }
        }
    }
}

#[test]
fn a_list_keeps_its_order() {
    use latchd::engine::types::End;
    let key = || key("list");
    let push = |end, value: u8| Record::Pushed {
        key: key(),
        end,
        value: [value][..].into(),
    };
    let pop = |end| Record::Popped { key: key(), end };
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 512).unwrap();
    let mut records = Vec::new();
    for round in 0..40 {
        use End::{Left, Right};
        for record in [
            push(Left, round),
            push(Right, round + 100),
            push(Left, round + 50),
            pop([Left, Right][usize::from(round) % 2]),
            pop([Left, Right][usize::from(round) / 3 % 2]),
        ] {
            life.write_all(std::slice::from_ref(&record)).unwrap();
            records.push(record);
            life.compact(&disk);
        }
    }
    assert!(
        disk.list()
            .unwrap()
            .iter()
            .any(|it| it.ends_with("snapshot"))
    );
    drop(life);
    let life = Life::begin(&disk, Durability::Sync, 512).unwrap();
    assert!(life.found.records < records.len() as u64);
    assert_eq!(State::of(&life.restored()), State::of(&records));
}

/// Three times what is live and three segments, at all times, also in the middle of a compaction.
#[test]
fn disk_use_is_bounded_by_what_is_live() {
    const SEGMENT_BYTES: u64 = 8192;
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, SEGMENT_BYTES).unwrap();
    let mut largest = 0.0f64;
    let mut written = 0;
    for (names, rounds) in [(5, 6_000), (300, 12_000), (5, 12_000)] {
        let mut maker = Maker::new(names, names, 200);
        maker.go_on_from(State::of(&life.restored()));
        for _ in 0..rounds {
            let record = maker.next();
            life.write_all(&[record]).unwrap();
            let Some(job) = life.writer.compaction() else {
                continue;
            };
            let before = disk.used_bytes();
            let done = job.run(&disk, &|| false).unwrap();
            let (live, peak) = (done.snapshot.bytes, before + done.snapshot.bytes);
            written += done.bytes_before;
            life.writer.compacted(Some(done));
            assert_eq!(disk.used_bytes(), life.writer.disk_bytes());
            let beside = peak.saturating_sub(3 * SEGMENT_BYTES);
            // The live state may have been larger when the last snapshot was made.
            if names != 5 {
                largest = largest.max(beside as f64 / live as f64);
            }
            assert!(disk.used_bytes() <= live + 2 * SEGMENT_BYTES);
        }
    }
    assert!(largest <= 3.0, "{largest}");
    assert!(written > 40 * SEGMENT_BYTES, "{written}");
}

/// The names of a resource, a client and an owner.
const OWNER: [&str; 3] = ["file", "nfs/1", "pid 7"];

fn snapshot_of(disk: &FaultDisk) -> Option<String> {
    let mut names = disk.list().unwrap().into_iter();
    names.find(|name| name.ends_with(".snapshot"))
}

/// Writes something that matters to nobody until what was written before is compacted.
fn compact_now(life: &mut Life<FaultDisk>, disk: &FaultDisk) {
    let before = snapshot_of(disk);
    let nothing = Record::Deleted { key: key("nobody") };
    for _ in 0..10_000 {
        life.write_all(std::slice::from_ref(&nothing)).unwrap();
        life.compact(disk);
        if snapshot_of(disk) != before {
            return;
        }
    }
    panic!("it is never compacted");
}

/// Whoever locks a file byte by byte has one lock in the end, and one record in the snapshot.
#[test]
fn of_ranges_that_became_one_a_snapshot_has_one() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 2048).unwrap();
    life.write_all(&[client(OWNER[1])]).unwrap();
    let mut state = State::of(&[client(OWNER[1])]);
    for byte in 0..1_000 {
        let record = ranged(OWNER, (byte, byte), Some(Sharing::Exclusive));
        state.apply(&record);
        life.write_all(&[record]).unwrap();
        life.compact(&disk);
    }
    compact_now(&mut life, &disk);
    drop(life);
    let snapshot = disk.bytes_of(&snapshot_of(&disk).unwrap()).unwrap();
    assert!(snapshot.len() < 512, "{} bytes", snapshot.len());
    let life = Life::begin(&disk, Durability::Sync, 2048).unwrap();
    let restored = State::of(&life.restored());
    assert_eq!(restored, state);
    let whole = vec![(0, 1_000, Sharing::Exclusive)];
    assert_eq!(restored.ranges.into_values().collect::<Vec<_>>(), [whole]);
}

/// One lock in the middle of another makes three of two records, and there are no three numbers.
#[test]
fn there_may_be_more_ranges_than_there_were_records() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let mut records = vec![client(OWNER[1])];
    for file in 0..9 {
        let owner = [&format!("file {file}"), OWNER[1], OWNER[2]];
        records.push(ranged(owner, (0, u64::MAX), Some(Sharing::Shared)));
        for part in 0..3 {
            let bytes = (100 * part + 10, 100 * part + 19);
            records.push(ranged(owner, bytes, Some(Sharing::Exclusive)));
        }
    }
    life.write_all(&records).unwrap();
    // What was written last has the snapshot's number, too.
    let last = granted("last", 1);
    records.push(last.clone());
    life.write_all(&[last]).unwrap();
    drop(life);
    let state = State::of(&records);
    // Each life reads the snapshot of the one before and makes another.
    for _ in 0..3 {
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        assert_eq!(State::of(&life.restored()), state);
        compact_now(&mut life, &disk);
    }
    let life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    assert_eq!(State::of(&life.restored()), state);
    assert!(life.found.records >= 9 * 7, "all of them stand there");
}

#[test]
fn ranges_keep_their_numbers_times_and_epochs() {
    use Sharing::{Exclusive, Shared};
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let locked = |bytes, mode, id, after_ms, epoch| {
        numbered(ranged(OWNER, bytes, mode), id, after_ms, epoch)
    };
    let records = [
        client(OWNER[1]),
        locked((0, 99), Some(Shared), 7, 1, 1),
        locked((10, 19), Some(Exclusive), 9, 2, 1),
        locked((100, 109), Some(Shared), 11, 3, 1),
        locked((50, 59), None, 13, 4, 1),
        // Another life gives some of it back.
        locked((0, 9), Some(Shared), 15, 5, 2),
    ];
    life.write_all(&records).unwrap();
    drop(life);
    let left = [
        locked((0, 9), Some(Shared), 7, 1, 2),
        locked((10, 19), Some(Exclusive), 9, 2, 1),
        locked((20, 49), Some(Shared), 10, 1, 1),
        locked((60, 109), Some(Shared), 13, 1, 1),
    ];
    for _ in 0..3 {
        let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        compact_now(&mut life, &disk);
        drop(life);
        let life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
        let mut restored = life.restored();
        restored.retain(|it| matches!(it, Record::Ranged { .. }));
        assert_eq!(restored, left);
    }
}

/// A client that is gone takes its ranges with it, and whoever has its id next has none of them.
#[test]
fn ranges_of_a_client_that_is_gone_do_not_come_back_with_its_id() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 2048).unwrap();
    let other = ["file", "nfs/2", ""];
    let before = [
        client(OWNER[1]),
        client(other[1]),
        ranged(OWNER, (0, 9), Some(Sharing::Shared)),
        ranged(other, (0, 9), Some(Sharing::Shared)),
    ];
    life.write_all(&before).unwrap();
    compact_now(&mut life, &disk);
    let after = [Record::ClientGone { id: key(OWNER[1]) }, client(OWNER[1])];
    life.write_all(&after).unwrap();
    for _ in 0..2 {
        let copy = Life::begin(&disk.copy(), Durability::Sync, 2048).unwrap();
        let restored = State::of(&copy.restored());
        assert_eq!(restored, State::of(before.iter().chain(&after)));
        assert_eq!(restored.ranges.len(), 1);
        compact_now(&mut life, &disk);
    }
}

#[test]
fn many_short_lives_do_not_leave_many_files() {
    let disk = FaultDisk::new();
    let mut maker = Maker::new(1, 5, 10);
    let mut state = State::default();
    for _ in 0..200 {
        let mut life = Life::begin(&disk, Durability::Sync, 1 << 14).unwrap();
        let record = maker.next();
        state.apply(&record);
        life.write_all(&[record]).unwrap();
        life.compact(&disk);
        assert!(disk.list().unwrap().len() < 20);
    }
    let life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    assert_eq!(State::of(&life.restored()), state);
}
