//! Lists against a `VecDeque` each, with a queue of poppers.
//!
//! Every value is pushed once and is different from all others, so that in the end each one is in
//! exactly one place: in a list, or in the hands of one client.

use std::collections::{BTreeMap, VecDeque};

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{
    Effects, End, Input, ListForm, Popped, Refusal, Reply, Request, Value,
};
use latchd::wire::answer::LIST_FORM;
use proptest::prelude::*;

use crate::primitives::{
    CLIENTS, Heard, Said, Time, World, client, config, in_order, reply, span_or_zero,
};

/// Values as they are: none has a comma in it.
const FORM: ListForm = ListForm {
    push: |out, value| out.extend_from_slice(value),
    bytes_max: 1 << 20,
};

fn joined(form: ListForm, values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (index, value) in values.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"" } else { b"," });
        (form.push)(&mut text, value.as_ref());
    }
    text
}

const KEYS: [&str; 3] = ["jobs", "a", "a list whose name does not fit inline"];

#[derive(Clone, Debug)]
enum Op {
    Push(usize, &'static str, End),
    Pop(usize, &'static str, End),
    AwaitPop(usize, &'static str, End, Millis),
    Length(usize, &'static str),
    Range(usize, &'static str, i64, i64),
    /// The n-th value in somebody's hands could not be told after all.
    GiveBack(usize),
    Leave(usize),
    Pass(Time),
    Late(Time),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(&KEYS[..]);
    let end = || prop::sample::select(&[End::Left, End::Right][..]);
    let index = || {
        prop_oneof![
            8 => -5..5i64,
            1 => prop::sample::select(&[i64::MIN, i64::MIN + 1, i64::MAX][..])
        ]
    };
    prop_oneof![
        6 => (client(), key(), end()).prop_map(|(who, key, end)| Op::Push(who, key, end)),
        3 => (client(), key(), end()).prop_map(|(who, key, end)| Op::Pop(who, key, end)),
        6 => (client(), key(), end(), span_or_zero())
            .prop_map(|(who, key, end, wait)| Op::AwaitPop(who, key, end, wait)),
        1 => (client(), key()).prop_map(|(who, key)| Op::Length(who, key)),
        2 => (client(), key(), index(), index())
            .prop_map(|(who, key, start, stop)| Op::Range(who, key, start, stop)),
        2 => (0..8usize).prop_map(Op::GiveBack),
        1 => client().prop_map(Op::Leave),
        2 => crate::primitives::time().prop_map(Op::Pass),
        2 => crate::primitives::time().prop_map(Op::Late),
    ]
}

struct Popper {
    who: usize,
    end: End,
    deadline: Nanos,
}

#[derive(Default)]
struct List {
    values: VecDeque<Value>,
    poppers: VecDeque<Popper>,
}

impl List {
    fn push(&mut self, value: Value, end: End) {
        match end {
            End::Left => self.values.push_front(value),
            End::Right => self.values.push_back(value),
        }
    }
}

struct Model {
    rules: Rules,
    lists: BTreeMap<&'static str, List>,
    pushed: usize,
    /// Values that were told to a client.
    taken: Vec<Popped>,
}

impl Model {
    fn has_room(&self, key: &str) -> bool {
        let keys_max = self.rules.keys_max as usize;
        self.lists.contains_key(key) || keys_max == 0 || self.lists.len() < keys_max
    }

    fn forget_empty(&mut self) {
        self.lists
            .retain(|_, list| !list.values.is_empty() || !list.poppers.is_empty());
    }

    /// Hands the value to the oldest popper that still waits, or gives it back.
    fn hand_over(
        &mut self,
        now: Nanos,
        key: &'static str,
        value: Value,
        heard: &mut Heard,
    ) -> Option<Value> {
        let list = self.lists.entry(key).or_default();
        while let Some(popper) = list.poppers.pop_front() {
            if popper.deadline < now {
                heard.push(reply(popper.who, Reply::Nothing));
                continue;
            }
            self.take(popper.who, key, popper.end, value, heard);
            return None;
        }
        Some(value)
    }

    fn take(&mut self, who: usize, key: &'static str, end: End, value: Value, heard: &mut Heard) {
        let key = key.as_bytes().into();
        let popped = Popped { key, end, value };
        self.taken.push(popped.clone());
        heard.push(reply(who, Reply::Popped(popped)));
    }

    fn push(&mut self, now: Nanos, who: usize, key: &'static str, value: Value, end: End) -> Heard {
        if !self.has_room(key) {
            return vec![reply(who, Reply::Refused(Refusal::MaxKeys))];
        }
        let mut heard = Heard::new();
        let answer = match self.hand_over(now, key, value, &mut heard) {
            None => Reply::Number(0),
            Some(value) => {
                let list = self.lists.get_mut(key).unwrap();
                let length_max = self.rules.list_length_max as usize;
                if length_max != 0 && list.values.len() >= length_max {
                    Reply::Refused(Refusal::ListFull)
                } else {
                    list.push(value, end);
                    Reply::Number(list.values.len() as i64)
                }
            }
        };
        if !matches!(answer, Reply::Refused(_)) {
            self.pushed += 1;
        }
        heard.push(reply(who, answer));
        heard
    }

    fn pop(&mut self, who: usize, key: &'static str, end: End) -> Option<Heard> {
        let values = &mut self.lists.get_mut(key)?.values;
        let value = match end {
            End::Left => values.pop_front()?,
            End::Right => values.pop_back()?,
        };
        let mut heard = Heard::new();
        self.take(who, key, end, value, &mut heard);
        Some(heard)
    }

    fn await_pop(
        &mut self,
        now: Nanos,
        who: usize,
        key: &'static str,
        end: End,
        wait: Millis,
    ) -> Heard {
        if let Some(heard) = self.pop(who, key, end) {
            return heard;
        }
        if wait == Millis::ZERO {
            return vec![reply(who, Reply::Nothing)];
        }
        if !self.has_room(key) {
            return vec![reply(who, Reply::Refused(Refusal::MaxKeys))];
        }
        let deadline = now.after(wait);
        let popper = Popper { who, end, deadline };
        self.lists.entry(key).or_default().poppers.push_back(popper);
        Heard::new()
    }

    fn range(&self, key: &str, start: i64, stop: i64) -> Vec<Value> {
        let Some(list) = self.lists.get(key) else {
            return Vec::new();
        };
        let length = list.values.len() as i128;
        let index = |i: i64| i128::from(i) + if i < 0 { length } else { 0 };
        let within = |i: usize| (index(start)..=index(stop)).contains(&(i as i128));
        let values = list.values.iter().enumerate();
        values
            .filter(|&(i, _)| within(i))
            .map(|(_, value)| value.clone())
            .collect()
    }

    /// Nothing is lost for want of room: it was here before.
    fn give_back(&mut self, now: Nanos, popped: Popped) -> Heard {
        let key = KEYS
            .into_iter()
            .find(|key| key.as_bytes() == popped.key.as_bytes())
            .unwrap();
        let mut heard = Heard::new();
        if let Some(value) = self.hand_over(now, key, popped.value, &mut heard) {
            self.lists.get_mut(key).unwrap().push(value, popped.end);
        }
        heard
    }

    fn expire(&mut self, now: Nanos) -> Heard {
        let mut heard = Heard::new();
        for list in self.lists.values_mut() {
            let over = |popper: &Popper| popper.deadline <= now;
            heard.extend(
                list.poppers
                    .iter()
                    .filter(|it| over(it))
                    .map(|it| reply(it.who, Reply::Nothing)),
            );
            list.poppers.retain(|it| !over(it));
        }
        heard
    }

    fn leave(&mut self, who: usize) {
        for list in self.lists.values_mut() {
            list.poppers.retain(|popper| popper.who != who);
        }
    }

    fn next(&self, now: Nanos) -> Option<Nanos> {
        let poppers = self.lists.values().flat_map(|list| &list.poppers);
        poppers
            .map(|popper| popper.deadline)
            .filter(|&it| it > now)
            .min()
    }

    /// What the engine shows must be what is here.
    fn compare(&self, world: &World) {
        let lists = self.lists.iter();
        let mut ours: Vec<_> = lists
            .map(|(key, it)| (key.as_bytes(), (it.values.len(), it.poppers.len() as u32)))
            .collect();
        let mut theirs: Vec<_> = world
            .engine
            .view(world.now)
            .lists()
            .map(|it| (it.key, it.what))
            .collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(theirs, ours);
        assert_eq!(world.engine.counts().others, self.lists.len());
        let poppers: usize = self.lists.values().map(|list| list.poppers.len()).sum();
        assert_eq!(world.engine.counts().waiters, poppers);
    }
}

fn run(rules: Rules, shared: bool, ops: Vec<Op>) {
    let mut world = World::new(rules.clone()).sharing_clients(shared);
    let mut model = Model {
        rules,
        lists: BTreeMap::new(),
        pushed: 0,
        taken: Vec::new(),
    };
    for (step, op) in ops.into_iter().enumerate() {
        let now = world.now;
        let (heard, expected) = match op {
            Op::Push(who, ..)
            | Op::Pop(who, ..)
            | Op::AwaitPop(who, ..)
            | Op::Length(who, ..)
            | Op::Range(who, ..)
                if world.is_parked(who) =>
            {
                continue;
            }
            Op::Push(who, name, end) => {
                let (key, value) = (name.as_bytes(), step.to_string());
                let value = value.as_bytes();
                let heard = world.ask(who, Request::Push { key, value, end });
                (heard, model.push(now, who, name, value.into(), end))
            }
            Op::Pop(who, name, end) => {
                let key = name.as_bytes();
                let heard = world.ask(who, Request::Pop { key, end });
                let nothing = || vec![reply(who, Reply::Nothing)];
                (heard, model.pop(who, name, end).unwrap_or_else(nothing))
            }
            Op::AwaitPop(who, name, end, wait) => {
                let key = name.as_bytes();
                let heard = world.ask(who, Request::AwaitPop { key, end, wait });
                (heard, model.await_pop(now, who, name, end, wait))
            }
            Op::Length(who, name) => {
                let length = model.lists.get(name).map_or(0, |list| list.values.len());
                let heard = world.ask(
                    who,
                    Request::Length {
                        key: name.as_bytes(),
                    },
                );
                (heard, vec![reply(who, Reply::Number(length as i64))])
            }
            Op::Range(who, name, start, stop) => {
                let key = name.as_bytes();
                let range = Request::Range {
                    key,
                    start,
                    stop,
                    form: FORM,
                };
                let values = joined(FORM, &model.range(name, start, stop));
                (
                    world.ask(who, range),
                    vec![reply(who, Reply::Values(values))],
                )
            }
            Op::GiveBack(which) if !model.taken.is_empty() => {
                let which = which % model.taken.len();
                let popped = model.taken.remove(which);
                (
                    world.give_back(popped.clone()),
                    model.give_back(now, popped),
                )
            }
            Op::GiveBack(_) => continue,
            Op::Leave(who) => {
                model.leave(who);
                (world.leave(who), Heard::new())
            }
            Op::Pass(time) => {
                world.advance(time, model.next(now));
                (world.expire(), model.expire(world.now))
            }
            Op::Late(time) => {
                world.advance(time, model.next(now));
                continue;
            }
        };
        model.forget_empty();
        assert_eq!(heard, in_order(expected));
        model.compare(&world);
    }
    finish(&mut world, &model);
}

/// Whatever was pushed is somewhere, once.
fn finish(world: &mut World, model: &Model) {
    let mut found: Vec<Value> = model
        .taken
        .iter()
        .map(|popped| popped.value.clone())
        .collect();
    world.leave(0);
    for key in KEYS {
        let range = Request::Range {
            key: key.as_bytes(),
            start: 0,
            stop: -1,
            form: FORM,
        };
        for (_, said) in world.ask(0, range) {
            let Said::Reply(Reply::Values(values)) = said else {
                panic!("{said:?}")
            };
            let values = values.split(|&byte| byte == b',');
            found.extend(values.filter(|it| !it.is_empty()).map(Value::from));
        }
    }
    assert_eq!(found.len(), model.pushed, "lost or doubled");
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), model.pushed, "one value in two places");
    for who in 0..CLIENTS {
        world.leave(who);
    }
    let kept = model
        .lists
        .values()
        .filter(|list| !list.values.is_empty())
        .count();
    world.end(kept);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lists_are_deques_with_a_line_of_poppers(
        keys_max in prop_oneof![Just(0), 1..3u32],
        list_length_max in prop_oneof![Just(0), 1..4u32],
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let rules = Rules { keys_max, list_length_max, ..Rules::default() };
        run(rules, shared, ops);
    }
}

/// The longest line that a client reads, in bytes.
const LINE_MAX: usize = 1 << 20;

/// An engine with a list of these values, and how long the line is that tells all of them.
fn with_list(values: &[Vec<u8>]) -> (World, usize) {
    let mut world = World::new(Rules::default());
    let mut line = b"ok []\n".to_vec();
    for (index, value) in values.iter().enumerate() {
        let (key, end) = (b"q", End::Right);
        world.ask(0, Request::Push { key, value, end });
        line.extend_from_slice(if index == 0 { b"" } else { b"," });
        latchd::wire::json::push_str_escaped(&mut line, value);
    }
    (world, line.len())
}

fn all_of(world: &mut World) -> Said {
    let range = Request::Range {
        key: b"q",
        start: 0,
        stop: -1,
        form: LIST_FORM,
    };
    let heard = world.ask(0, range);
    heard.into_iter().next().unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The engine refuses exactly what would be too long when it is spelled, escapes and all.
    #[test]
    fn a_part_of_a_list_is_refused_before_it_is_spelled(
        bytes in prop_oneof![
            Just(vec![b'v']),
            Just(vec![1]),
            Just(vec![b'"', b'x']),
            Just(b"\xf0\x9f".to_vec()),
            Just(b"\xff".to_vec()),
            Just("clé".as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 1..40),
        ],
        // Values of so many bytes, and one more that makes it fit or not.
        length in prop_oneof![Just(1_000), Just(65_536)],
        spare in 0..9_usize,
    ) {
        let value: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
        let spelled = with_list(std::slice::from_ref(&value)).1 - b"ok []\n".len() + 1;
        let count = (LINE_MAX - 100) / spelled;
        let mut values = vec![value; count];
        let (_, so_far) = with_list(&values);
        // A comma, two quotes, and as many bytes as fit, but for a few more or less.
        let last = (LINE_MAX - so_far + 1 - spare).min(65_536);
        values.push(vec![b'v'; last]);
        let (mut world, line) = with_list(&values);
        let said = all_of(&mut world);
        if line <= LINE_MAX {
            let text = joined(LIST_FORM, &values);
            prop_assert_eq!(said, Said::Reply(Reply::Values(text)));
        } else {
            prop_assert_eq!(said, Said::Reply(Reply::Refused(Refusal::RangeTooLong)));
        }
    }
}

#[test]
fn to_refuse_a_part_of_a_list_costs_no_more_than_to_tell_it() {
    // Very many short values; and what would fit, but for the escapes.
    for (count, value) in [(300_000, vec![b'v']), (15, vec![1; 65_536])] {
        let mut world = World::new(Rules::default());
        for _ in 0..count {
            let (key, end) = (b"q", End::Right);
            let (id, value) = (ConnId { slot: 0, serial: 1 }, &value);
            // Not through the world, which looks at the whole list after each of them.
            let request = Input::Request(id, Request::Push { key, value, end });
            world.engine.apply(Nanos(0), request, &mut Effects::new());
        }
        world.engine.take_work();
        let said = all_of(&mut world);
        assert_eq!(said, Said::Reply(Reply::Refused(Refusal::RangeTooLong)));
        let work = world.engine.take_work();
        // Two for each byte of a line, and of the longest value that can be one too many.
        let most = 2 * (LINE_MAX + 6 * 65_536) as u64;
        assert!(work < most, "{work}");
    }
}
