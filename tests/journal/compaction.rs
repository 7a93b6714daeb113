//! Compaction: the same state in less room, and never much more room than what is live.

use latchd::store::{Disk, Durability, FaultDisk};

use crate::history::{Life, Maker, State};

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
    use latchd::engine::types::{End, Record};
    let key = || crate::history::key("list");
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
