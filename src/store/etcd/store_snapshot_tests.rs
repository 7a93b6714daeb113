//! The same store's snapshots: what they stand for, what is deleted, and loads while that goes on.

use super::*;

impl World {
    /// Snapshots what there is, and has etcd forget everything else.
    fn snapshot(&mut self) -> Position {
        let keys = self.keys.clone();
        let position = self.read().0;
        let snapshot = prepare(&mut self.etcd, &keys, 64, WITHIN).unwrap();
        let leader = position.leader;
        let written = snapshot.write(&mut self.etcd, &keys, leader, WITHIN, || {});
        let written = written.unwrap();
        let published = snapshot.publish(&mut self.etcd, &keys, leader, written, WITHIN);
        let revision = published.unwrap();
        self.etcd.ask(&Ask::Compact { revision }).unwrap();
        position
    }

    /// How many entries and pieces there are up to this entry, and to the snapshot up to it.
    fn left(&self, seq: u64) -> [usize; 2] {
        let keys = &self.keys;
        let ranges = [
            (keys.entry(0), keys.entry(seq + 1)),
            (keys.chunks(), keys.chunk(seq + 1, 0)),
        ];
        ranges.map(|(key, end)| {
            let get = Get {
                key,
                end,
                ..Get::default()
            };
            match self.etcd.ask(&Ask::Range(get)) {
                Ok(Answer::Range { got, .. }) => got.kvs.len(),
                other => panic!("{other:?}"),
            }
        })
    }
}

#[test]
fn a_snapshot_stands_for_the_log_and_what_the_one_before_stands_for_is_deleted() {
    let mut world = world();
    world.keep(0..500);
    world.await_durable(500);
    let first = world.snapshot();
    let (position, values) = world.read();
    assert_eq!(values, [499], "of a counter only the last value matters");
    assert_eq!((position.seq, position.number), (first.seq, 500));
    // Whoever has begun to read from the beginning on comes to the end.
    let before = first.seq as usize + 1;
    assert_eq!(world.left(first.seq)[0], before);
    // And it goes on behind it.
    world.keep(500..502);
    world.await_durable(502);
    assert_eq!(world.read().1, [499, 500, 501]);
    // Whoever does not lead publishes nothing.
    let keys = world.keys.clone();
    let next = prepare(&mut world.etcd, &keys, 64, WITHIN).unwrap();
    let written = next.write(&mut world.etcd, &keys, first.leader, WITHIN, || {});
    let written = written.unwrap();
    let others = next.publish(&mut world.etcd, &keys, first.leader + 1, written, WITHIN);
    assert!(others.is_err());
    // The second one keeps the first and the log behind it; the third does not.
    let second = world.snapshot();
    let [entries, pieces] = world.left(first.seq);
    assert!(entries == 1 && pieces > 0, "{entries}, {pieces}");
    assert_eq!(world.read().1, [501]);
    world.keep(502..503);
    world.await_durable(503);
    world.snapshot();
    assert_eq!(world.left(first.seq), [0, 0]);
    let [entries, pieces] = world.left(second.seq);
    assert!(entries == 1 && pieces > 0, "{entries}, {pieces}");
    assert_eq!(world.read().1, [502]);
}

#[test]
fn pieces_of_a_snapshot_that_never_counted_are_deleted_by_the_next() {
    let mut world = world();
    world.keep(0..10);
    world.await_durable(10);
    let keys = world.keys.clone();
    let never = prepare(&mut world.etcd, &keys, 64, WITHIN).unwrap();
    let leader = world.read().0.leader;
    let written = never.write(&mut world.etcd, &keys, leader, WITHIN, || {});
    written.unwrap();
    let [_, pieces] = world.left(never.seq());
    assert!(pieces > 0);
    world.keep(10..11);
    world.await_durable(11);
    world.snapshot();
    assert_eq!(world.left(never.seq())[1], 0);
}

/// An etcd that forgets everything but the present every few questions, and in which the leader goes on.
struct Forgetful {
    etcd: TestEtcd,
    asked: u64,
    every: u64,
}

impl Etcd for Forgetful {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        self.asked += 1;
        let answer = self.etcd.ask(ask);
        if self.asked.is_multiple_of(self.every) {
            // Somebody writes something, too.
            let put = Op::Put {
                key: b"other".to_vec(),
                value: Vec::new(),
                lease: 0,
            };
            let other = Ask::Txn {
                compare: Vec::new(),
                success: vec![put],
                failure: Vec::new(),
            };
            self.etcd.ask(&other).unwrap();
            let revision = self.etcd.model.lock().unwrap().revision();
            self.etcd.ask(&Ask::Compact { revision }).unwrap();
        }
        answer
    }
}

#[test]
fn a_load_that_takes_longer_than_etcd_remembers_comes_to_its_end() {
    let mut world = world();
    // More pieces and more entries than a page has.
    for round in 0..40 {
        let key = format!("counter-{round}").into_bytes();
        let value = round;
        world.store.append(
            Nanos(0),
            &Record::Counted {
                key: key[..].into(),
                value,
            },
        );
    }
    world.store.commit(Nanos(0));
    world.await_durable(40);
    world.snapshot();
    for round in 0..300 {
        world.keep(round..round + 1);
        world.await_durable(41 + round as u64);
    }
    for every in 1..5 {
        let mut forgetful = Forgetful {
            etcd: world.etcd.clone(),
            asked: 0,
            every,
        };
        let keys = world.keys.clone();
        let mut count = 0;
        let loaded = load(&mut forgetful, &keys, WITHIN, &mut |bytes| {
            count += frames(bytes).count();
        });
        let position = loaded.unwrap().unwrap();
        assert!(forgetful.asked > every, "{} questions", forgetful.asked);
        assert_eq!((position.number, count), (340, 340), "every {every}");
    }
}

/// An etcd in which there are two more snapshots when a question is asked for the n-th time.
struct Trimmed<'a> {
    world: &'a mut World,
    left: u64,
}

impl Etcd for Trimmed<'_> {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        self.left = self.left.saturating_sub(1);
        if self.left == 1 {
            for _ in 0..2 {
                self.world.keep(7..8);
                let last = self.world.store.last;
                self.world.await_durable(last);
                self.world.snapshot();
            }
        }
        self.world.etcd.ask(ask)
    }
}

#[test]
fn what_is_trimmed_while_it_is_read_is_no_damage_and_the_next_try_finds_everything() {
    for left in 3..6 {
        let mut world = world();
        world.keep(0..5);
        world.await_durable(5);
        world.snapshot();
        world.keep(5..6);
        world.await_durable(6);
        let keys = world.keys.clone();
        let mut trimmed = Trimmed {
            world: &mut world,
            left,
        };
        let torn = load(&mut trimmed, &keys, WITHIN, &mut |_| {});
        assert!(matches!(torn, Err(NotRead::Gone(_))), "{left}: {torn:?}");
        assert_eq!(world.read().1, [7]);
        // What is missing without another snapshot is damage.
        let last = world.read().0.seq;
        let entry = world.keys.entry(last);
        world
            .etcd
            .ask(&Ask::Txn {
                compare: Vec::new(),
                success: vec![Op::Delete(entry, Vec::new())],
                failure: Vec::new(),
            })
            .unwrap();
        let damaged = load(&mut world.etcd, &keys, WITHIN, &mut |_| {});
        assert!(matches!(damaged, Err(NotRead::Damaged(_))), "{damaged:?}");
    }
}

/// An etcd in which something else happens behind the first call.
struct Overtaken<'a> {
    etcd: TestEtcd,
    meanwhile: Option<Box<dyn FnOnce() + 'a>>,
}

impl Etcd for Overtaken<'_> {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        let answer = self.etcd.call(ask, within);
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        answer
    }
}

#[test]
fn a_snapshot_that_was_overtaken_by_another_neither_counts_nor_deletes_anything() {
    let mut world = world();
    world.keep(0..100);
    world.await_durable(100);
    let leader = world.read().0.leader;
    let keys = world.keys.clone();
    let write = |etcd: &mut TestEtcd| {
        let snapshot = prepare(etcd, &keys, 64, WITHIN).unwrap();
        let written = snapshot.write(etcd, &keys, leader, WITHIN, || {});
        (snapshot, written.unwrap())
    };
    let (early, early_written) = write(&mut world.etcd);
    world.keep(100..101);
    world.await_durable(101);
    let (late, late_written) = write(&mut world.etcd);
    // Both began when there was none: only the first to come counts.
    late.publish(&mut world.etcd, &keys, leader, late_written, WITHIN)
        .unwrap();
    let refused = early.publish(&mut world.etcd, &keys, leader, early_written, WITHIN);
    assert!(refused.is_err());
    let (position, values) = world.read();
    assert_eq!((position.snap_seq, values), (late.seq(), vec![100]));
    // One that counts is overtaken before it has deleted anything: what it would delete is not its own to
    // delete any more, such as the pieces of a snapshot that stands for less.
    world.keep(101..102);
    world.await_durable(102);
    let (next, written) = write(&mut world.etcd);
    let manifest = world.etcd.value(&keys.snap()).unwrap().value;
    let mut others = world.etcd.clone();
    let put = Ask::Txn {
        compare: Vec::new(),
        success: vec![Op::Put {
            key: keys.snap(),
            value: manifest,
            lease: 0,
        }],
        failure: Vec::new(),
    };
    let mut overtaken = Overtaken {
        etcd: world.etcd.clone(),
        meanwhile: Some(Box::new(|| {
            succeeded(others.call(&put, WITHIN).unwrap()).unwrap();
        })),
    };
    let refused = next.publish(&mut overtaken, &keys, leader, written, WITHIN);
    assert!(refused.is_err());
    let (position, values) = world.read();
    assert_eq!((position.snap_seq, values), (late.seq(), vec![100, 101]));
}

/// etcd is restored from a backup while a snapshot is written, and the leader is the same: what was written since the backup
/// is gone. Whatever part of it that is, the snapshot must not count.
#[test]
fn a_snapshot_that_has_lost_a_part_of_itself_never_counts() {
    let mut world = world();
    world.keep(0..100);
    world.await_durable(100);
    let leader = world.read().0.leader;
    let keys = world.keys.clone();
    let snapshot = prepare(&mut world.etcd, &keys, 16, WITHIN).unwrap();
    let seq = snapshot.seq();
    let lose = |etcd: &TestEtcd, [key, end]: [Vec<u8>; 2]| {
        let lost = Ask::Txn {
            compare: Vec::new(),
            success: vec![Op::Delete(key, end)],
            failure: Vec::new(),
        };
        succeeded(etcd.ask(&lost).unwrap()).unwrap();
    };
    let pieces = || [keys.chunks(), keys.chunk(seq + 1, 0)];
    // In the middle of writing.
    let (mut count, mut etcd) = (0, world.etcd.clone());
    let cut = snapshot.write(&mut etcd, &keys, leader, WITHIN, || {
        count += 1;
        if count == 2 {
            lose(&world.etcd, [keys.chunk(seq, 1), keys.chunk(seq, 2)]);
        }
    });
    assert_eq!((cut.is_err(), count), (true, 2), "{cut:?}");
    // When all was written.
    lose(&world.etcd, pieces());
    let written = snapshot.write(&mut etcd, &keys, leader, WITHIN, || {});
    let written = written.unwrap();
    lose(&world.etcd, pieces());
    let refused = snapshot.publish(&mut etcd, &keys, leader, written, WITHIN);
    assert!(refused.is_err());
    // And the log that it stands for, before anything was written.
    lose(&world.etcd, [keys.entry(seq), keys.entry(seq + 1)]);
    let refused = snapshot.write(&mut etcd, &keys, leader, WITHIN, || {});
    assert!(refused.is_err());
    assert!(world.etcd.value(&keys.snap()).is_none());
}

#[test]
fn fences_and_grants_outlive_a_snapshot() {
    let mut world = world();
    let fence = Fence(77);
    world
        .store
        .append(Nanos(0), &Record::Fences { upto: fence });
    world.store.commit(Nanos(0));
    world.await_durable(1);
    let keys = world.keys.clone();
    let leader = world.read().0.leader;
    let snapshot = prepare(&mut world.etcd, &keys, 1 << 10, WITHIN).unwrap();
    let written = snapshot.write(&mut world.etcd, &keys, leader, WITHIN, || {});
    snapshot
        .publish(&mut world.etcd, &keys, leader, written.unwrap(), WITHIN)
        .unwrap();
    let mut upto = None;
    load(&mut world.etcd, &keys, WITHIN, &mut |bytes| {
        for frame in frames(bytes) {
            if let crate::store::Entry::Fences { upto: it } = frame.unwrap().1 {
                upto = Some(it);
            }
        }
    })
    .unwrap();
    assert_eq!(upto, Some(fence));
}
