//! Another number of shards, on a model of etcd: stopped at every point, with answers lost, with others in the way.

use super::*;
use crate::base::{Fence, Millis, Nanos, Token};
use crate::engine::types::{Effects, Input, Mode, Record};
use crate::engine::{Engine, Origin, Rules};
use crate::etcd::Model;
use crate::shard::shard_of;
use crate::store::Clocks;
use crate::store::etcd::{Appender, Next, SALT, create, frames};
use crate::store::format::push_record;

const CLUSTER: &str = "c";

const CLOCKS: Clocks = Clocks {
    now: Nanos(0),
    wall_ms: 0,
};

/// An etcd that stops answering after some calls, or loses an answer, or has something done in between.
struct TestEtcd<'a> {
    model: Model,
    calls: usize,
    /// No call after so many is even looked at.
    ends_after: usize,
    /// The answer to this one is lost, and it is done.
    loses: usize,
    /// Done before this call.
    before: Option<(usize, Act<'a>)>,
}

/// What somebody else does.
type Act<'a> = &'a dyn Fn(&mut Model);

impl TestEtcd<'_> {
    fn new(model: &Model) -> Self {
        Self {
            model: model.clone(),
            calls: 0,
            ends_after: usize::MAX,
            loses: usize::MAX,
            before: None,
        }
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        self.model.apply(Nanos(0), ask).unwrap()
    }
}

impl Etcd for TestEtcd<'_> {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        self.calls += 1;
        if self.calls > self.ends_after {
            return Err(Trouble::Unreachable("stopped".to_owned()));
        }
        if let Some((at, act)) = self.before
            && at == self.calls
        {
            act(&mut self.model);
        }
        let answer = self.model.apply(Nanos(0), ask);
        match self.calls == self.loses {
            true => Err(Trouble::Unanswered("lost".to_owned())),
            false => answer,
        }
    }
}

fn put(key: Vec<u8>, value: Vec<u8>) -> Ask {
    let lease = 0;
    Ask::Txn {
        compare: Vec::new(),
        success: vec![Op::Put { key, value, lease }],
        failure: Vec::new(),
    }
}

fn job(from: u32, to: u32, nonce: u64) -> Reshard {
    Reshard {
        cluster: CLUSTER.to_owned(),
        from,
        to,
        nonce,
        piece_bytes: 64,
    }
}

fn granted(key: &str, fence: u64) -> Record {
    Record::Granted {
        key: key.as_bytes().into(),
        mode: Mode::Slot { limit: 1 },
        token: Token {
            fence: Fence(fence),
            salt: 7,
        },
        lease: Millis(60_000),
        client: 9,
        name: None,
        request: b""[..].into(),
    }
}

/// A cluster of so many shards, in which every one has led and gone, with the same fences.
fn cluster(shards: u32) -> Model {
    let mut etcd = TestEtcd::new(&Model::default());
    let map = Map {
        epoch: 1,
        shards,
        nonce: 1,
    };
    etcd.ask(&put(map_key(CLUSTER), map.encode()));
    for index in 0..shards {
        let keys = map.keys(CLUSTER).shard(index);
        create(&mut etcd, &keys, WITHIN).unwrap();
        lead(&mut etcd.model, &keys);
        let leader = etcd.model.value(&keys.leader()).unwrap().created;
        let mut records = vec![Record::Fences { upto: Fence(200) }];
        let mine = (0..30).map(|it| format!("key{it}"));
        let mine = mine.filter(|it| shard_of(it.as_bytes(), shards) == index);
        for (key, fence) in mine.zip(100 + u64::from(index)..) {
            records.push(granted(&key, fence));
            records.push(Record::Counted {
                key: key.as_bytes().into(),
                value: fence as i64,
            });
        }
        let mut frames = Vec::new();
        for (record, number) in records.iter().zip(1..) {
            push_record(&mut frames, SALT, number, record, || CLOCKS);
        }
        let mut appender = Appender::new(keys.clone(), leader, 0);
        let ask = appender.begin(&Logged {
            leader,
            nonce: [1, 1],
            epoch: 1,
            first: 1,
            frames,
        });
        let answer = etcd.ask(&ask);
        assert_eq!(
            appender.answered(Ok(answer)),
            Next::Committed { proves: true }
        );
        resign(&mut etcd.model, &keys);
    }
    etcd.model
}

/// As `follow.rs` has it.
fn lead(model: &mut Model, keys: &Keys) {
    let value = LeaderKey {
        attempt: [1, 1],
        line: "10.0.0.1:6388".to_owned(),
        http: String::new(),
    };
    let puts = [keys.leader(), keys.listed(), keys.term()].map(|key| Op::Put {
        key,
        value: value.encode(),
        lease: 0,
    });
    let take = Ask::Txn {
        compare: vec![Compare::Created(keys.leader(), 0)],
        success: puts.to_vec(),
        failure: Vec::new(),
    };
    model.apply(Nanos(0), &take).unwrap();
}

fn resign(model: &mut Model, keys: &Keys) {
    let gone = [keys.leader(), keys.listed()].map(|key| Op::Delete(key, Vec::new()));
    let ask = Ask::Txn {
        compare: Vec::new(),
        success: gone.to_vec(),
        failure: Vec::new(),
    };
    model.apply(Nanos(0), &ask).unwrap();
}

/// Everything that a cluster has, by what its members would load; asserts that they can.
fn contents(model: &Model) -> (Map, Vec<Vec<Record>>) {
    let mut etcd = TestEtcd::new(model);
    let mapped = read_map(&mut etcd, CLUSTER, WITHIN).unwrap().unwrap();
    let keys = mapped.map.keys(CLUSTER);
    let shards = (0..mapped.map.shards).map(|index| {
        let mut records = Vec::new();
        let position = load(&mut etcd, &keys.shard(index), WITHIN, &mut |bytes| {
            let read = frames(bytes).filter_map(|it| it.unwrap().1.record(CLOCKS));
            records.extend(read);
        });
        assert!(position.unwrap().is_some(), "shard {index} has no log");
        records
    });
    (mapped.map, shards.collect())
}

fn grants(shards: &[Vec<Record>]) -> Vec<Record> {
    let all = shards.iter().flatten();
    let mut grants: Vec<Record> = all
        .filter(|it| matches!(it, Record::Granted { .. }))
        .cloned()
        .collect();
    grants.sort_by_key(|it| it.key().unwrap().as_bytes().to_vec());
    grants
}

/// All keys that there are.
fn names(model: &Model) -> Vec<String> {
    let mut etcd = TestEtcd::new(model);
    let get = Get {
        key: b"/".to_vec(),
        end: b"0".to_vec(),
        ..Get::default()
    };
    let Answer::Range { got, .. } = etcd.ask(&Ask::Range(get)) else {
        panic!("not a range");
    };
    let names = got
        .kvs
        .iter()
        .map(|kv| String::from_utf8_lossy(&kv.key).into_owned());
    names.collect()
}

#[test]
fn everything_is_where_it_belongs_and_fences_are_above_all() {
    let before = cluster(2);
    let held = grants(&contents(&before).1);
    assert_eq!(held.len(), 30);
    let mut etcd = TestEtcd::new(&before);
    let mut told = Vec::new();
    let done = job(2, 3, 5).run(&mut etcd, &mut |text| told.push(text.to_owned()));
    let Ok(Resharded::Done { map, tally }) = done else {
        panic!("{done:?}");
    };
    assert_eq!((map.epoch, map.shards, tally.grants), (2, 3, 30));
    assert!(told.len() >= 6, "{told:?}");
    let (there, shards) = contents(&etcd.model);
    assert_eq!((there, shards.len()), (map, 3));
    assert_eq!(grants(&shards), held);
    for (index, records) in (0..).zip(&shards) {
        let mut engine = engine();
        for record in records {
            if let Some(key) = record.key() {
                assert_eq!(shard_of(key.as_bytes(), 3), index);
            }
            engine.apply(Nanos(0), Input::Restore(record), &mut Effects::new());
        }
        assert_eq!(engine.fence_ceiling(), 200);
        engine.apply(
            Nanos(0),
            Input::Serve {
                may_have_lost: false,
            },
            &mut Effects::new(),
        );
        assert_eq!(engine.counts().holders, records.len() / 2);
    }
    // Nothing is left of the old map.
    let left = names(&etcd.model);
    let is_new = |name: &String| name.starts_with("/latchd/c/r2/") || name == "/latchd/c/map";
    assert!(left.iter().all(is_new), "{left:?}");
    // The same again has nothing to do; and back again everything is as it was.
    let again = job(2, 3, 6).run(&mut etcd, &mut |_| {});
    assert_eq!(again, Ok(Resharded::Before(map)));
    let back = job(3, 2, 7).run(&mut etcd, &mut |_| {});
    assert!(matches!(back, Ok(Resharded::Done { .. })), "{back:?}");
    assert_eq!(grants(&contents(&etcd.model).1), held);
}

fn engine() -> Engine {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let origin = Origin {
        fence: 1,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    Engine::new(rules, origin)
}

#[test]
fn stopped_at_any_point_it_is_as_before_or_done_and_the_same_again_does_it() {
    let before = cluster(2);
    let was = contents(&before);
    let mut whole = TestEtcd::new(&before);
    assert!(job(2, 3, 5).run(&mut whole, &mut |_| {}).is_ok());
    let wanted = contents(&whole.model).1;
    for ends_after in 0..whole.calls {
        let mut etcd = TestEtcd::new(&before);
        etcd.ends_after = ends_after;
        let stopped = job(2, 3, 5).run(&mut etcd, &mut |_| {});
        let now = contents(&etcd.model);
        match now.0.epoch {
            1 => {
                assert!(stopped.is_err(), "after {ends_after}");
                assert_eq!(now, was, "after {ends_after}");
            }
            _ => assert_eq!(now.1, wanted, "after {ends_after}"),
        }
        // Meanwhile somebody else tries something else, and is stopped, too.
        let mut etcd = TestEtcd::new(&etcd.model);
        etcd.ends_after = ends_after / 2;
        let _ = job(now.0.shards, 5, 6).run(&mut etcd, &mut |_| {});
        let mut etcd = TestEtcd::new(&etcd.model);
        assert!(job(2, 3, 7).run(&mut etcd, &mut |_| {}).is_ok());
        assert_eq!(contents(&etcd.model).1, wanted, "after {ends_after}");
        assert_eq!(names(&etcd.model).len(), names(&whole.model).len());
    }
}

#[test]
fn a_lost_answer_changes_nothing() {
    let before = cluster(2);
    let mut whole = TestEtcd::new(&before);
    assert!(job(2, 3, 5).run(&mut whole, &mut |_| {}).is_ok());
    for loses in 1..=whole.calls {
        let mut etcd = TestEtcd::new(&before);
        etcd.loses = loses;
        let done = job(2, 3, 5).run(&mut etcd, &mut |_| {});
        assert!(
            matches!(done, Ok(Resharded::Done { .. })),
            "{loses}: {done:?}"
        );
        assert_eq!(contents(&etcd.model), contents(&whole.model), "{loses}");
    }
}

#[test]
fn while_somebody_leads_nothing_happens() {
    let mut model = cluster(2);
    lead(&mut model, &Keys::new(CLUSTER, 1));
    let was = contents(&model);
    let mut etcd = TestEtcd::new(&model);
    let refused = job(2, 3, 5).run(&mut etcd, &mut |_| {});
    let Err(NotResharded::InUse(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("10.0.0.1:6388 leads shard 1"), "{why}");
    assert_eq!(contents(&etcd.model), was);
    assert_eq!(names(&etcd.model), names(&model));
}

#[test]
fn who_begins_to_lead_meanwhile_prevents_it_also_if_it_is_gone_again() {
    let before = cluster(2);
    let mut whole = TestEtcd::new(&before);
    assert!(job(2, 3, 5).run(&mut whole, &mut |_| {}).is_ok());
    let map_at = |model: &Model| model.value(&map_key(CLUSTER)).unwrap().modified;
    for stays in [true, false] {
        let (mut refused, mut done) = (0, 0);
        for at in 1..=whole.calls {
            let by_old_map = |model: &mut Model| {
                // Guarded as a member's is.
                if map_at(model) == map_at(&before) {
                    let keys = Keys::new(CLUSTER, 0);
                    lead(model, &keys);
                    if !stays {
                        resign(model, &keys);
                    }
                }
            };
            let mut etcd = TestEtcd::new(&before);
            etcd.before = Some((at, &by_old_map));
            let came = job(2, 3, 5).run(&mut etcd, &mut |_| {});
            let epoch = contents(&etcd.model).0.epoch;
            match came {
                Ok(_) => {
                    done += 1;
                    assert_eq!(epoch, 2);
                    let leader = etcd.model.value(&Keys::new(CLUSTER, 0).leader());
                    assert_eq!(leader, None, "it leads by a map that is over: {at}");
                }
                Err(NotResharded::InUse(_)) => {
                    refused += 1;
                    assert_eq!(epoch, 1);
                }
                Err(other) => panic!("{at}: {other:?}"),
            }
        }
        // Before the ticket, and after the map has changed, it does not matter.
        assert!(refused > 10 && done > 2, "{stays}: {refused} {done}");
    }
}

#[test]
fn of_two_who_do_it_at_a_time_one_does() {
    let before = cluster(2);
    let mut whole = TestEtcd::new(&before);
    assert!(job(2, 3, 5).run(&mut whole, &mut |_| {}).is_ok());
    for at in 1..=whole.calls {
        let another = |model: &mut Model| {
            let mut etcd = TestEtcd::new(model);
            // Stopped in the middle of writing, so that both have written.
            etcd.ends_after = 14;
            let _ = job(2, 5, 6).run(&mut etcd, &mut |_| {});
            *model = etcd.model;
        };
        let mut etcd = TestEtcd::new(&before);
        etcd.before = Some((at, &another));
        let first = job(2, 3, 5).run(&mut etcd, &mut |_| {});
        let (map, shards) = contents(&etcd.model);
        assert_eq!(first.is_ok(), map.shards == 3, "{at}: {first:?}");
        assert_eq!(grants(&shards).len(), 30, "{at}");
    }
}

#[test]
fn another_number_and_another_cluster_are_refused() {
    let model = cluster(2);
    let mut etcd = TestEtcd::new(&model);
    let refused = job(3, 4, 5).run(&mut etcd, &mut |_| {});
    assert!(
        matches!(refused, Err(NotResharded::Other(_))),
        "{refused:?}"
    );
    let nobody = Reshard {
        cluster: "nobody".to_owned(),
        ..job(1, 2, 5)
    };
    let refused = nobody.run(&mut etcd, &mut |_| {});
    assert!(
        matches!(refused, Err(NotResharded::Other(_))),
        "{refused:?}"
    );
    assert_eq!(names(&etcd.model), names(&model));
}

#[test]
fn a_cluster_without_a_map_has_one_shard() {
    let mut model = cluster(1);
    let gone = Ask::Txn {
        compare: Vec::new(),
        success: vec![Op::Delete(map_key(CLUSTER), Vec::new())],
        failure: Vec::new(),
    };
    model.apply(Nanos(0), &gone).unwrap();
    let mut etcd = TestEtcd::new(&model);
    let done = job(1, 2, 5).run(&mut etcd, &mut |_| {});
    assert!(matches!(done, Ok(Resharded::Done { .. })), "{done:?}");
    assert_eq!(grants(&contents(&etcd.model).1).len(), 30);
}

#[test]
fn a_hundred_shards_and_more() {
    let mut etcd = TestEtcd::new(&cluster(2));
    let done = job(2, 250, 5).run(&mut etcd, &mut |_| {});
    assert!(matches!(done, Ok(Resharded::Done { .. })), "{done:?}");
    let keys = MapKeys::new(CLUSTER, 2);
    let mut with_leader = etcd.model.clone();
    lead(&mut with_leader, &keys.shard(222));
    let refused = job(250, 1, 6).run(&mut TestEtcd::new(&with_leader), &mut |_| {});
    assert!(
        matches!(refused, Err(NotResharded::InUse(_))),
        "{refused:?}"
    );
    let done = job(250, 1, 6).run(&mut etcd, &mut |_| {});
    assert!(matches!(done, Ok(Resharded::Done { .. })), "{done:?}");
    assert_eq!(grants(&contents(&etcd.model).1).len(), 30);
}
