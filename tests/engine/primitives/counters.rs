//! Counters against checked arithmetic in a map, beside values that take up the same room.
//!
//! A counter at 0 may be forgotten once it has been idle, since nobody could tell but for the room:
//! when exactly is the engine's affair, within the bounds that its operator sets.

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{Refusal, Reply, Request};
use proptest::prelude::*;

use crate::primitives::{World, client, config, reply};

const KEYS: [&str; 4] = ["a", "b", "c", "a counter whose name does not fit inline"];

#[derive(Clone, Debug)]
enum Op {
    Add(usize, &'static str, i64, bool),
    Count(usize, &'static str),
    Set(usize, &'static str, i64),
    Put(usize, &'static str),
    Delete(usize, &'static str),
    Leave(usize),
    Pass(u64),
    Late(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(&KEYS[..]);
    let number = || {
        prop_oneof![
            6 => -2..3i64,
            1 => prop::sample::select(&[i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX][..])
        ]
    };
    let seconds = || prop_oneof![3 => 0..10u64, 2 => 50..70u64];
    prop_oneof![
        6 => (client(), key(), number(), any::<bool>())
            .prop_map(|(who, key, delta, down)| Op::Add(who, key, delta, down)),
        2 => (client(), key()).prop_map(|(who, key)| Op::Count(who, key)),
        2 => (client(), key(), number()).prop_map(|(who, key, value)| Op::Set(who, key, value)),
        1 => (client(), key()).prop_map(|(who, key)| Op::Put(who, key)),
        1 => (client(), key()).prop_map(|(who, key)| Op::Delete(who, key)),
        1 => client().prop_map(Op::Leave),
        3 => seconds().prop_map(Op::Pass),
        1 => seconds().prop_map(Op::Late),
    ]
}

struct Model {
    rules: Rules,
    /// With the instant of their last change.
    counters: BTreeMap<&'static str, (i64, Nanos)>,
    values: BTreeMap<&'static str, ()>,
}

impl Model {
    fn has_room(&self) -> bool {
        let keys_max = self.rules.keys_max as usize;
        keys_max == 0 || self.counters.len() + self.values.len() < keys_max
    }

    fn set(&mut self, now: Nanos, key: &'static str, value: i64, done: Reply) -> Reply {
        if !self.counters.contains_key(key) && !self.has_room() {
            return Reply::Refused(Refusal::MaxKeys);
        }
        self.counters.insert(key, (value, now));
        done
    }

    fn value(&self, key: &str) -> i64 {
        self.counters.get(key).map_or(0, |it| it.0)
    }

    /// Only zeros may be missing, only after their time, and not for longer than an interval later.
    fn compare(&mut self, world: &World, expired: bool) {
        let view = world.engine.view(world.now);
        let theirs: BTreeMap<&[u8], i64> = view.counters().map(|it| (it.key, it.what)).collect();
        let (idle_max, interval) = (self.rules.gc_idle_max, self.rules.gc_interval);
        self.counters.retain(|key, &mut (value, touched)| {
            let there = theirs.get(key.as_bytes());
            let due = touched.after(idle_max);
            assert!(
                there.is_none_or(|&it| it == value),
                "{key} is {there:?}, not {value}"
            );
            let may_be_gone = value == 0 && due <= world.now;
            assert!(there.is_some() || may_be_gone, "{key} is gone");
            let must_be_gone = value == 0 && expired && due.after(interval) <= world.now;
            assert!(there.is_none() || !must_be_gone, "{key} is still there");
            there.is_some()
        });
        assert_eq!(theirs.len(), self.counters.len());
        let others = self.counters.len() + self.values.len();
        assert_eq!(world.engine.counts().others, others);
    }
}

fn run(keys_max: u32, shared: bool, ops: Vec<Op>) {
    let rules = Rules {
        keys_max,
        ..Rules::default()
    };
    let mut world = World::new(rules.clone()).sharing_clients(shared);
    let mut model = Model {
        rules,
        counters: BTreeMap::new(),
        values: BTreeMap::new(),
    };
    for op in ops {
        // At the limit a request waits until zeros are forgotten whose time has come.
        if !model.has_room() {
            assert_eq!(world.expire(), []);
            model.compare(&world, true);
        }
        let now = world.now;
        let (who, request, expected) = match op {
            Op::Add(who, key, delta, down) => {
                let expected = match model.value(key).checked_add(delta) {
                    Some(sum) => model.set(now, key, sum, Reply::Number(sum)),
                    None => Reply::Refused(Refusal::Overflow),
                };
                let key = key.as_bytes();
                (who, Request::Add { key, delta, down }, expected)
            }
            Op::Count(who, key) => {
                let expected = Reply::Number(model.value(key));
                (
                    who,
                    Request::Count {
                        key: key.as_bytes(),
                    },
                    expected,
                )
            }
            Op::Set(who, key, value) => {
                let expected = model.set(now, key, value, Reply::Done);
                let key = key.as_bytes();
                (who, Request::SetCount { key, value }, expected)
            }
            Op::Put(who, key) => {
                let room = model.values.contains_key(key) || model.has_room();
                let expected = if room {
                    model.values.insert(key, ());
                    Reply::Done
                } else {
                    Reply::Refused(Refusal::MaxKeys)
                };
                let (key, value, ttl) = (key.as_bytes(), b"v", Millis::ZERO);
                (who, Request::Put { key, value, ttl }, expected)
            }
            Op::Delete(who, key) => {
                model.values.remove(key);
                (
                    who,
                    Request::Delete {
                        key: key.as_bytes(),
                    },
                    Reply::Done,
                )
            }
            Op::Leave(who) => {
                assert_eq!(world.leave(who), []);
                continue;
            }
            Op::Pass(seconds) | Op::Late(seconds) => {
                world.now = now.after(Millis::from_secs(seconds));
                let expired = matches!(op, Op::Pass(_));
                if expired {
                    assert_eq!(world.expire(), []);
                }
                model.compare(&world, expired);
                continue;
            }
        };
        assert_eq!(world.ask(who, request), [reply(who, expected)]);
        model.compare(&world, false);
    }
    let lasting = model.counters.values().filter(|it| it.0 != 0).count() + model.values.len();
    world.end(lasting);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn counters_are_checked_numbers(
        keys_max in prop_oneof![Just(0), 1..5u32],
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        run(keys_max, shared, ops);
    }
}
