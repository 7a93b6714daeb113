//! Barriers against a list of who has come and until when they stay.
//!
//! All or nothing: everyone is released by the last arrival or sent away by the first departure. In
//! a late turn an arrival comes before a departure that is due, so a barrier that is complete is
//! released.

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{Refusal, Reply, Request};
use proptest::prelude::*;

use crate::primitives::{Heard, Time, World, client, config, in_order, reply, span_or_zero};

#[derive(Clone, Debug)]
enum Op {
    Meet(usize, &'static str, u32, Millis),
    Leave(usize),
    Pass(Time),
    Late(Time),
}

fn op() -> impl Strategy<Value = Op> {
    let key = prop::sample::select(&["a", "b"][..]);
    let count = prop_oneof![1 => Just(1u32), 2 => Just(2u32), 6 => Just(3u32), 3 => Just(4u32)];
    prop_oneof![
        8 => (client(), key, count, span_or_zero())
            .prop_map(|(who, key, count, wait)| Op::Meet(who, key, count, wait)),
        1 => client().prop_map(Op::Leave),
        1 => crate::primitives::time().prop_map(Op::Pass),
        2 => crate::primitives::time().prop_map(Op::Late),
    ]
}

/// How many must come; who has, and until when.
type Barrier = (u32, Vec<(usize, Nanos)>);

#[derive(Default)]
struct Model {
    keys_max: usize,
    barriers: BTreeMap<&'static str, Barrier>,
}

impl Model {
    fn meet(
        &mut self,
        now: Nanos,
        who: usize,
        key: &'static str,
        count: u32,
        wait: Millis,
    ) -> Heard {
        if let Some((other, _)) = self.barriers.get(key)
            && *other != count
        {
            return vec![reply(who, Reply::Refused(Refusal::CountMismatch))];
        }
        let is_new = !self.barriers.contains_key(key);
        if is_new && self.keys_max != 0 && self.barriers.len() >= self.keys_max {
            return vec![reply(who, Reply::Refused(Refusal::MaxKeys))];
        }
        let (_, present) = self
            .barriers
            .entry(key)
            .or_insert_with(|| (count, Vec::new()));
        present.push((who, now.after(wait)));
        if present.len() == count as usize {
            self.dissolve(key, &Reply::Done)
        } else if wait == Millis::ZERO {
            self.dissolve(key, &Reply::TimedOut)
        } else {
            Heard::new()
        }
    }

    fn dissolve(&mut self, key: &'static str, answer: &Reply) -> Heard {
        let (_, present) = self.barriers.remove(key).unwrap();
        present
            .iter()
            .map(|&(who, _)| reply(who, answer.clone()))
            .collect()
    }

    /// Everyone at a barrier somebody leaves is sent away.
    fn depart(&mut self, leaves: impl Fn(usize, Nanos) -> bool) -> Heard {
        let left = self
            .barriers
            .iter()
            .filter(|(_, (_, present))| present.iter().any(|&(who, until)| leaves(who, until)));
        let left: Vec<&str> = left.map(|(&key, _)| key).collect();
        left.into_iter()
            .flat_map(|key| self.dissolve(key, &Reply::TimedOut))
            .collect()
    }

    fn next(&self, now: Nanos) -> Option<Nanos> {
        let present = self.barriers.values().flat_map(|(_, present)| present);
        present
            .map(|&(_, until)| until)
            .filter(|&it| it > now)
            .min()
    }
}

fn run(keys_max: u32, shared: bool, ops: Vec<Op>) {
    let mut world = World::new(Rules {
        keys_max,
        ..Rules::default()
    })
    .sharing_clients(shared);
    let mut model = Model {
        keys_max: keys_max as usize,
        ..Model::default()
    };
    for op in ops {
        let now = world.now;
        let (heard, expected) = match op {
            Op::Meet(who, ..) if world.is_parked(who) => continue,
            Op::Meet(who, name, count, wait) => {
                let key = name.as_bytes();
                let heard = world.ask(who, Request::Meet { key, count, wait });
                (heard, model.meet(now, who, name, count, wait))
            }
            Op::Leave(who) => {
                let mut expected = model.depart(|it, _| it == who);
                expected.retain(|&(it, _)| it != who);
                (world.leave(who), expected)
            }
            Op::Pass(time) => {
                world.advance(time, model.next(now));
                let now = world.now;
                (world.expire(), model.depart(|_, until| until <= now))
            }
            Op::Late(time) => {
                world.advance(time, model.next(now));
                continue;
            }
        };
        assert_eq!(heard, in_order(expected));
        let view = world.engine.view(world.now);
        let mut theirs: Vec<_> = view.barriers().map(|it| (it.key, it.what)).collect();
        theirs.sort_unstable();
        let barriers = model.barriers.iter();
        let ours: Vec<_> = barriers
            .map(|(key, (count, present))| (key.as_bytes(), (*count, present.len() as u32)))
            .collect();
        assert_eq!(theirs, ours);
        let waiting: usize = model
            .barriers
            .values()
            .map(|(_, present)| present.len())
            .sum();
        assert_eq!(world.engine.counts().waiters, waiting);
        assert_eq!(world.engine.counts().timers, waiting);
    }
    world.end(0);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn barriers_are_all_or_nothing(
        keys_max in 0..3u32,
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        run(keys_max, shared, ops);
    }
}
