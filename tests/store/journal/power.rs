//! The power goes: what was acknowledged is there afterwards, and nothing that never was.

use std::cell::Cell;
use std::collections::BTreeSet;

use latch_sim::FaultDisk;
use latchd::base::Fence;
use latchd::engine::types::Record;
use latchd::store::{Disk, Durability, Ending, Job, LoadError, NotCompacted, OpenError, begin};

use crate::journal::history::{Life, Maker, State, beginning, granted, state_on, stored};

/// Lives on one disk that end in all ways, with everything that was ever on it.
struct Lives {
    disk: FaultDisk,
    maker: Maker,
    /// By number, from 1 on; `None` is a note of the store.
    history: Vec<Option<Record>>,
    /// Everything up to this number was acknowledged.
    acknowledged: u64,
    epoch: u64,
}

impl Lives {
    fn new(seed: u64) -> Self {
        Self {
            disk: FaultDisk::new(),
            maker: Maker::new(seed, 8, 60),
            history: Vec::new(),
            acknowledged: 0,
            epoch: 0,
        }
    }

    /// A new life finds what it should.
    fn begin(&mut self, durability: Durability) -> Option<Life<FaultDisk>> {
        let life = match Life::begin(&self.disk, durability, 2048) {
            Ok(life) => life,
            Err(error) => {
                assert!(self.disk.is_dead(), "{error}");
                return None; // the power went while it began
            }
        };
        let last = life.found.last;
        assert!(
            last >= self.acknowledged,
            "{last} is left of {}",
            self.acknowledged
        );
        assert!(
            last <= self.history.len() as u64,
            "more than there ever was"
        );
        self.history.truncate(last as usize);
        self.acknowledged = last;
        assert!(life.epoch > self.epoch, "an epoch came twice");
        self.epoch = life.epoch;
        let expected = State::of(self.history.iter().flatten());
        assert_eq!(State::of(&life.restored()), expected);
        self.maker.go_on_from(expected);
        Some(life)
    }

    fn run(&mut self, mut life: Life<FaultDisk>, batches: u32) {
        for _ in 0..batches {
            for _ in 0..self.maker.chance.u32(1..12) {
                let record = self.maker.next();
                life.push(&record);
                self.history.push(Some(record));
            }
            if life.write().is_err() {
                return;
            }
            if self.maker.chance.u8(..4) == 0 && life.writer.sync().is_err() {
                return;
            }
            self.acknowledged = life.writer.synced();
            life.compact(&self.disk);
            if self.maker.chance.bool() {
                life.make_spare(&self.disk);
            }
        }
        if self.maker.chance.u8(..4) == 0 {
            self.history.push(None);
            if life.stop().is_ok() {
                self.acknowledged = self.history.len() as u64;
            }
        }
    }

    fn crash(&mut self) {
        let mut chance = self.maker.chance.fork();
        self.disk.crash(&mut chance);
    }
}

#[test]
fn nothing_acknowledged_is_lost_whenever_the_power_goes() {
    for seed in 0..60 {
        let mut lives = Lives::new(seed);
        for life_count in 0..12 {
            let durability = match life_count % 3 {
                0 => Durability::Async,
                _ => Durability::Sync,
            };
            let steps = lives.disk.steps();
            let at = steps + lives.maker.chance.u64(1..120);
            lives.disk.die_at(at);
            if let Some(life) = lives.begin(durability) {
                lives.run(life, 25);
            }
            lives.crash();
        }
    }
}

/// A process that is killed leaves what it has written, synced or not. The next one speaks of it, so
/// it has to be on the disk by then, also where there is nothing to cut.
#[test]
fn what_a_killed_process_left_unsynced_is_there_for_good_once_it_was_read() {
    for seed in 0..20 {
        for step in 1..8 {
            let mut lives = Lives::new(seed);
            let mut life = lives.begin(Durability::Sync).unwrap();
            let record = lives.maker.next();
            life.write_all(std::slice::from_ref(&record)).unwrap();
            lives.history.extend([Some(record), None]);
            lives.disk.die_at(lives.disk.steps() + step);
            let _ = life.stop();
            lives.disk.revive();
            drop(lives.begin(Durability::Sync).unwrap());
            lives.crash();
            lives.begin(Durability::Sync).unwrap();
        }
    }
}

/// After a sync that failed the system takes bytes for written that are not. The next life may read
/// them or not, but once it has spoken of them they have to be there: also if the power goes then.
#[test]
fn what_a_failed_sync_left_is_on_the_disk_once_it_was_read_or_it_is_gone() {
    let mut read = [0, 0];
    for seed in 0..40 {
        for later in 1..12 {
            let mut lives = Lives::new(seed);
            let durability = match seed % 2 {
                0 => Durability::Sync,
                _ => Durability::Async,
            };
            let life = lives.begin(durability).unwrap();
            lives.disk.fail_sync_at(lives.disk.steps() + later);
            lives.run(life, 8);
            lives.disk.revive();
            if seed % 4 < 2 {
                lives.disk.forget_dropped();
            }
            let before = lives.acknowledged;
            drop(lives.begin(durability).unwrap());
            read[usize::from(lives.acknowledged > before)] += 1;
            lives.disk.forget_dropped();
            let again = lives.begin(durability).unwrap();
            drop(again);
            lives.crash();
            lives.begin(durability).unwrap();
        }
    }
    assert!(read[0] > 50 && read[1] > 50, "{read:?}");
}

/// What is written once more is what was checked, and nothing else.
#[test]
fn bytes_that_the_system_forgets_during_a_start_are_not_trusted() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Sync, 4096).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    disk.fail_sync_at(disk.steps());
    assert!(life.write_all(&[granted("b", 2)]).is_err());
    drop(life);
    let (name, steps) = (format!("{:020}.log", 1), disk.steps());
    let before = disk.bytes_of(&name);
    // It was read, and is forgotten then.
    let beginning = beginning(Durability::Sync, 4096);
    let begun = begin(disk.clone(), beginning, &mut |_| disk.forget_dropped());
    let Err(OpenError::Load(LoadError::Io { file, .. })) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!((file, disk.steps()), (name.clone(), steps), "untouched");
    assert_ne!(disk.bytes_of(&name), before);
    assert_eq!(state_on(&disk).unwrap(), State::of(&[granted("a", 1)]));
}

/// What a life knows of what the lives before it may have lost.
#[test]
fn a_loss_is_known_whatever_the_next_life_promises() {
    use Durability::{Async, Sync};
    for next in [Sync, Async] {
        let follows = |lives: &[(Durability, bool)]| {
            let disk = FaultDisk::new();
            for (index, &(durability, stops)) in lives.iter().enumerate() {
                let mut life = Life::begin(&disk, durability, 4096).unwrap();
                life.write_all(&[granted("a", index as u64 + 1)]).unwrap();
                if stops {
                    life.stop().unwrap();
                }
            }
            Life::begin(&disk, next, 4096)
                .unwrap()
                .found
                .may_have_lost()
        };
        assert!(!follows(&[]), "a new directory");
        assert!(!follows(&[(Sync, true)]));
        assert!(!follows(&[(Sync, false)]), "all it said was on the disk");
        assert!(!follows(&[(Async, true)]), "it ended in order");
        assert!(follows(&[(Async, false)]));
        assert!(follows(&[(Async, false), (Sync, false)]), "perhaps at once");
        assert!(!follows(&[(Async, false), (Sync, true)]));
        assert!(!follows(&[(Async, true), (Sync, false)]));
    }
}

/// `async` may lose what was written, but not which fences may have been given out.
#[test]
fn reserved_fences_are_on_the_disk_before_they_are_spoken_of() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Async, 4096).unwrap();
    life.write_all(&[granted("a", 1)]).unwrap();
    assert_eq!((life.writer.written(), life.writer.synced()), (1, 0));
    let fences = Record::Fences { upto: Fence(1_000) };
    life.write_all(&[fences, granted("b", 2)]).unwrap();
    assert_eq!((life.writer.written(), life.writer.synced()), (3, 3));
    life.write_all(&[granted("c", 3)]).unwrap();
    assert_eq!((life.writer.written(), life.writer.synced()), (4, 3));
}

/// The sync of a snapshot may fail, and it is as if there were none. The sync of its name may fail,
/// and nobody knows whether it is there: that is the end of the life.
#[test]
fn a_compaction_whose_name_cannot_be_synced_is_the_end() {
    let mut failed = 0;
    for later in 1.. {
        let (mut lives, job) = about_to_compact(3);
        lives.disk.fail_sync_at(lives.disk.steps() + later);
        let before = files(&lives.disk);
        let result = job.run(&lives.disk, &|| false);
        match result {
            Ok(_) => break,
            Err(NotCompacted::Unwritable(_)) => assert_eq!(files(&lives.disk), before),
            Err(NotCompacted::Failed(_)) => {
                failed += 1;
                let there = files(&lives.disk);
                assert!(before.is_subset(&there), "something was removed");
            }
            Err(error) => panic!("{error}"),
        }
        lives.crash();
        lives.begin(Durability::Sync).unwrap();
    }
    assert!(failed > 0);
}

fn files(disk: &FaultDisk) -> BTreeSet<String> {
    disk.list().unwrap().into_iter().collect()
}

/// Whoever stops waits for a compaction only until it has noticed.
#[test]
fn a_compaction_that_nobody_wants_any_more_touches_nothing() {
    let (lives, job) = about_to_compact(3);
    let steps = lives.disk.steps();
    let asked = Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        asked.get() > 1
    };
    let result = job.run(&lives.disk, &is_over);
    assert!(matches!(result, Err(NotCompacted::Abandoned)), "{result:?}");
    assert_eq!(asked.get(), 2, "it gives up when it is told to");
    assert_eq!(lives.disk.steps(), steps, "while it still reads");
}

/// A large file is left in the middle, too.
#[test]
fn a_compaction_is_given_up_in_the_middle_of_a_file() {
    let disk = FaultDisk::new();
    let mut life = Life::begin(&disk, Durability::Async, 32 << 20).unwrap();
    for name in 0..10 {
        let value = vec![1; 1 << 20];
        life.write_all(&[stored(&format!("{name}"), &value)])
            .unwrap();
    }
    drop(life);
    let mut life = Life::begin(&disk, Durability::Async, 4096).unwrap();
    let job = life.writer.compaction().unwrap();
    let steps = disk.steps();
    let asked = Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        asked.get() > 2
    };
    let result = job.run(&disk, &is_over);
    assert!(matches!(result, Err(NotCompacted::Abandoned)), "{result:?}");
    assert_eq!(disk.steps(), steps, "while it still reads");
}

#[test]
fn the_power_may_go_at_every_step_of_a_compaction() {
    for seed in 0..8 {
        let steps = (1..).find(|&step| compact_until(step, seed)).unwrap();
        assert!(steps > 5, "a compaction in {steps} steps");
    }
}

/// The power goes at this step of a compaction. True if there are fewer.
fn compact_until(step: u64, seed: u64) -> bool {
    let (mut lives, job) = about_to_compact(seed);
    lives.disk.die_at(lives.disk.steps() + step);
    let _ = job.run(&lives.disk, &|| false);
    let is_over = !lives.disk.is_dead();
    lives.crash();
    lives.begin(Durability::Sync).unwrap();
    is_over
}

/// A life with a snapshot already, and more to compact.
fn about_to_compact(seed: u64) -> (Lives, Job) {
    let mut lives = Lives::new(seed);
    let mut life = lives.begin(Durability::Sync).unwrap();
    let job = loop {
        let record = lives.maker.next();
        life.write_all(std::slice::from_ref(&record)).unwrap();
        lives.history.push(Some(record));
        match life.writer.compaction() {
            Some(job) if lives.history.len() > 100 => break job,
            Some(job) => {
                let done = job.run(&lives.disk, &|| false).unwrap();
                life.writer.compacted(Some(done));
            }
            None => {}
        }
    };
    lives.acknowledged = life.writer.synced();
    (lives, job)
}

#[test]
fn how_the_last_life_ended_is_known() {
    let disk = FaultDisk::new();
    let begin = || Life::begin(&disk, Durability::Sync, 4096).unwrap();
    let life = begin();
    assert_eq!((life.found.ending, life.epoch), (Ending::None, 1));
    drop(life);
    let mut life = begin();
    assert_eq!((life.found.ending, life.epoch), (Ending::Unclean, 2));
    life.write_all(&[Maker::new(1, 1, 1).next()]).unwrap();
    drop(life);
    let life = begin();
    assert_eq!((life.found.ending, life.epoch), (Ending::Unclean, 3));
    life.stop().unwrap();
    let life = begin();
    assert!(matches!(life.found.ending, Ending::Clean(_)));
    drop(life);
    let life = begin();
    assert_eq!((life.found.ending, life.epoch), (Ending::Unclean, 5));
}

#[test]
fn fences_that_were_reserved_are_never_given_out_again_also_by_those_who_do_not_wait() {
    for seed in 0..50 {
        let disk = FaultDisk::new();
        let mut life = Life::begin(&disk, Durability::Async, 4096).unwrap();
        life.write_all(&[
            Record::Fences {
                upto: Fence(1 << 20),
            },
            granted("job", 7),
        ])
        .unwrap();
        life.write_all(&[granted("other", 8)]).unwrap();
        disk.crash(&mut fastrand::Rng::with_seed(seed));
        let begun = Life::begin(&disk, Durability::Async, 4096).unwrap();
        assert_eq!(begun.found.fence_ceiling, Fence(1 << 20), "seed {seed}");
    }
}
