//! Values against a `BTreeMap` with a clock.
//!
//! A value is there until the instant at which its time is over and not a nanosecond longer,
//! whether or not the engine has been told yet that time has passed.

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{Refusal, Reply, Request};
use proptest::prelude::*;

use crate::primitives::{Heard, Time, World, client, config, reply, span_or_zero};

const KEYS: [&str; 3] = ["a", "b", "a value whose name does not fit inline"];

#[derive(Clone, Debug)]
enum Op {
    Put(usize, &'static str, &'static str, Millis),
    Fetch(usize, &'static str),
    Delete(usize, &'static str),
    Swap(usize, &'static str, &'static str, &'static str, Millis),
    Leave(usize),
    Pass(Time),
    Late(Time),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(&KEYS[..]);
    let value = || prop::sample::select(&["x", "y", "z"][..]);
    let old = || prop::sample::select(&["", "x", "y", "z"][..]);
    prop_oneof![
        4 => (client(), key(), value(), span_or_zero())
            .prop_map(|(who, key, value, ttl)| Op::Put(who, key, value, ttl)),
        3 => (client(), key()).prop_map(|(who, key)| Op::Fetch(who, key)),
        1 => (client(), key()).prop_map(|(who, key)| Op::Delete(who, key)),
        4 => (client(), key(), old(), value(), span_or_zero())
            .prop_map(|(who, key, old, new, ttl)| Op::Swap(who, key, old, new, ttl)),
        1 => client().prop_map(Op::Leave),
        3 => prop_oneof![9 => crate::primitives::time(), 1 => Just(Time::Ms(200_000))].prop_map(Op::Pass),
        3 => crate::primitives::time().prop_map(Op::Late),
    ]
}

/// The values in the table. An expired one stays until it is asked for, its room is needed or the
/// turn ends.
struct Model {
    keys_max: usize,
    values: BTreeMap<&'static str, (&'static str, Nanos)>,
}

impl Model {
    fn live(&mut self, now: Nanos, key: &str) -> Option<&'static str> {
        if self.values.get(key)?.1 <= now {
            self.values.remove(key);
        }
        Some(self.values.get(key)?.0)
    }

    fn put(&mut self, now: Nanos, key: &'static str, value: &'static str, ttl: Millis) -> Reply {
        let is_full = |it: &Self| it.keys_max != 0 && it.values.len() >= it.keys_max;
        if self.live(now, key).is_none() && is_full(self) {
            self.values.retain(|_, it| it.1 > now);
            if is_full(self) {
                return Reply::Refused(Refusal::MaxKeys);
            }
        }
        let deadline = if ttl == Millis::ZERO {
            Nanos::NEVER
        } else {
            now.after(ttl)
        };
        self.values.insert(key, (value, deadline));
        Reply::Done
    }

    fn step(&mut self, now: Nanos, op: &Op) -> Reply {
        match *op {
            Op::Put(_, key, value, ttl) => self.put(now, key, value, ttl),
            Op::Fetch(_, key) => match self.live(now, key) {
                Some(value) => Reply::Value(value.as_bytes().into()),
                None => Reply::Nothing,
            },
            Op::Delete(_, key) => {
                self.values.remove(key);
                Reply::Done
            }
            Op::Swap(_, key, old, new, ttl) => match self.live(now, key) {
                None if old.is_empty() => self.put(now, key, new, ttl),
                Some(value) if value == old => self.put(now, key, new, ttl),
                _ => Reply::Conflict,
            },
            Op::Leave(_) | Op::Pass(_) | Op::Late(_) => unreachable!("no request"),
        }
    }

    fn next(&self, now: Nanos) -> Option<Nanos> {
        let deadlines = self.values.values().map(|&(_, deadline)| deadline);
        deadlines.filter(|&it| now < it && it < Nanos::NEVER).min()
    }

    /// The values that can be seen, with how long they still live.
    fn seen(&self, now: Nanos) -> Vec<(&[u8], usize, Option<u64>)> {
        let values = self.values.iter().filter(|(_, it)| it.1 > now);
        let left = |deadline: Nanos| (deadline != Nanos::NEVER).then(|| deadline.since(now));
        values
            .map(|(key, it)| (key.as_bytes(), it.0.len(), left(it.1)))
            .collect()
    }
}

fn request(op: &Op) -> (usize, Request<'_>) {
    match *op {
        Op::Put(who, key, value, ttl) => {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            (who, Request::Put { key, value, ttl })
        }
        Op::Fetch(who, key) => (
            who,
            Request::Fetch {
                key: key.as_bytes(),
            },
        ),
        Op::Delete(who, key) => (
            who,
            Request::Delete {
                key: key.as_bytes(),
            },
        ),
        Op::Swap(who, key, old, new, ttl) => {
            let (key, old, new) = (key.as_bytes(), old.as_bytes(), new.as_bytes());
            (who, Request::Swap { key, old, new, ttl })
        }
        Op::Leave(_) | Op::Pass(_) | Op::Late(_) => unreachable!("no request"),
    }
}

fn run(keys_max: u32, shared: bool, ops: Vec<Op>) {
    let rules = Rules {
        keys_max,
        ..Rules::default()
    };
    let mut world = World::new(rules).sharing_clients(shared);
    let mut model = Model {
        keys_max: keys_max as usize,
        values: BTreeMap::new(),
    };
    for op in ops {
        match op {
            Op::Leave(who) => assert_eq!(world.leave(who), []),
            Op::Late(time) => world.advance(time, model.next(world.now)),
            Op::Pass(time) => {
                world.advance(time, model.next(world.now));
                assert_eq!(world.expire(), Heard::new(), "nobody is told of it");
                let now = world.now;
                model.values.retain(|_, it| it.1 > now);
            }
            _ => {
                let (who, request) = request(&op);
                let heard = world.ask(who, request);
                assert_eq!(heard, [reply(who, model.step(world.now, &op))]);
            }
        }
        let view = world.engine.view(world.now);
        let mut seen: Vec<_> = view
            .values()
            .map(|it| (it.key, it.what.bytes, it.what.ttl_ns))
            .collect();
        seen.sort_unstable();
        let mut ours = model.seen(world.now);
        ours.sort_unstable();
        assert_eq!(seen, ours);
        assert_eq!(world.engine.counts().others, model.values.len());
        let mortal = model
            .values
            .values()
            .filter(|it| it.1 < Nanos::NEVER)
            .count();
        assert_eq!(
            world.engine.counts().timers,
            mortal,
            "a timer for each that will end"
        );
    }
    let immortal = model
        .values
        .values()
        .filter(|it| it.1 == Nanos::NEVER)
        .count();
    world.end(immortal);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn values_are_a_map_with_a_clock(
        keys_max in prop_oneof![Just(0), 1..3u32],
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        run(keys_max, shared, ops);
    }
}
