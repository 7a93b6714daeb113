//! Who hears a signal, against a walk over all subscriptions.
//!
//! Each client that listens on its own hears once, and of every pattern and group that matches, one
//! member does: in turn, from the first to join. Whoever has too much unread hears nothing and is
//! reported. A tiny alphabet makes patterns meet.

use latchd::engine::Rules;
use latchd::engine::types::{Push, Refusal, Reply, Request, Value};
use proptest::prelude::*;

use crate::{CLIENTS, Heard, Said, World, client, config, reply, report_once};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Listen,
    Watch,
    Observe,
}

#[derive(Clone, Debug)]
enum Op {
    Subscribe(usize, Kind, String, &'static str),
    Unsubscribe(usize, Kind, String, &'static str),
    Signal(usize, String),
    Overrun(usize, bool),
    Leave(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let name = |tokens: &'static [&'static str]| {
        let token = prop::sample::select(tokens);
        prop::collection::vec(token, 1..4).prop_map(|tokens| tokens.join("."))
    };
    let pattern = move || {
        prop_oneof![
            8 => name(&["", "a", "b", "*", "*", ">"]),
            1 => name(&["a", "*", ">", "a*", ">b", "**", ">>"]),
        ]
    };
    let channel = name(&["", "a", "b"]);
    let group = || prop::sample::select(&["", "", "g", "h"][..]);
    let kind =
        || prop_oneof![6 => Just(Kind::Listen), 1 => Just(Kind::Watch), 1 => Just(Kind::Observe)];
    prop_oneof![
        6 => (client(), kind(), pattern(), group())
            .prop_map(|(who, kind, pattern, group)| Op::Subscribe(who, kind, pattern, group)),
        2 => (client(), kind(), pattern(), group())
            .prop_map(|(who, kind, pattern, group)| Op::Unsubscribe(who, kind, pattern, group)),
        8 => (client(), channel).prop_map(|(who, channel)| Op::Signal(who, channel)),
        2 => (client(), any::<bool>()).prop_map(|(who, overrun)| Op::Overrun(who, overrun)),
        1 => client().prop_map(Op::Leave),
    ]
}

fn is_valid(pattern: &str) -> bool {
    let tokens: Vec<&str> = pattern.split('.').collect();
    let wild = |token: &&str| token.contains(['*', '>']);
    tokens
        .iter()
        .filter(|token| wild(token))
        .all(|&token| token == "*" || token == ">")
        && tokens.iter().rev().skip(1).all(|&token| token != ">")
}

fn matches(pattern: &[&str], channel: &[&str]) -> bool {
    match (pattern, channel) {
        ([">"], [_, ..]) | ([], []) => true,
        (["*", pattern @ ..], [_, channel @ ..]) => matches(pattern, channel),
        ([step, pattern @ ..], [token, channel @ ..]) => step == token && matches(pattern, channel),
        _ => false,
    }
}

pub(crate) fn hears(pattern: &str, channel: &str) -> bool {
    let tokens = |name: &'_ str| name.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (pattern, channel) = (tokens(pattern), tokens(channel));
    let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
    let channel: Vec<&str> = channel.iter().map(String::as_str).collect();
    matches(&pattern, &channel)
}

/// Everyone who subscribed to the same, in the order they came.
struct Topic {
    kind: Kind,
    pattern: String,
    group: &'static str,
    members: Vec<usize>,
    /// Whose turn it is in a group.
    turn: usize,
}

#[derive(Default)]
struct Model {
    subscriptions_max: usize,
    patterns: Vec<Topic>,
    overrun: [bool; CLIENTS],
    /// Reported as too slow, which is done once.
    reported: [bool; CLIENTS],
}

impl Model {
    fn find(&mut self, kind: Kind, pattern: &str, group: &str) -> Option<&mut Topic> {
        let mut patterns = self.patterns.iter_mut();
        patterns.find(|it| it.kind == kind && it.pattern == pattern && it.group == group)
    }

    fn subscribe(&mut self, who: usize, kind: Kind, pattern: &str, group: &'static str) -> Reply {
        if kind != Kind::Observe && !is_valid(pattern) {
            return Reply::Refused(Refusal::BadPattern);
        }
        let subscribed = self
            .patterns
            .iter()
            .filter(|it| it.members.contains(&who))
            .count();
        let is_full = self.subscriptions_max != 0 && subscribed >= self.subscriptions_max;
        match self.find(kind, pattern, group) {
            Some(topic) if topic.members.contains(&who) => {}
            _ if is_full => return Reply::Refused(Refusal::MaxSubscriptions),
            Some(topic) => topic.members.push(who),
            None => self.patterns.push(Topic {
                kind,
                pattern: pattern.to_owned(),
                group,
                members: vec![who],
                turn: 0,
            }),
        }
        Reply::Done
    }

    fn unsubscribe(&mut self, who: usize, kind: Kind, pattern: &str, group: &str) -> Reply {
        if let Some(topic) = self.find(kind, pattern, group) {
            topic.remove(who);
        }
        self.patterns.retain(|it| !it.members.is_empty());
        Reply::Done
    }

    fn leave(&mut self, who: usize) {
        self.overrun[who] = false;
        self.reported[who] = false;
        for topic in &mut self.patterns {
            topic.remove(who);
        }
        self.patterns.retain(|it| !it.members.is_empty());
    }

    /// How many copies each client gets, and how often it is found to be too slow.
    fn signal(&mut self, channel: &str) -> ([usize; CLIENTS], [usize; CLIENTS]) {
        let (mut copies, mut overruns) = ([0; CLIENTS], [0; CLIENTS]);
        let patterns = self.patterns.iter_mut();
        let matching = patterns.filter(|it| it.kind == Kind::Listen && hears(&it.pattern, channel));
        let (open, grouped): (Vec<_>, Vec<_>) = matching.partition(|it| it.group.is_empty());
        for who in 0..CLIENTS {
            if open.iter().any(|it| it.members.contains(&who)) {
                let count = if self.overrun[who] {
                    &mut overruns
                } else {
                    &mut copies
                };
                count[who] += 1;
            }
        }
        for topic in grouped {
            let size = topic.members.len();
            // After the last it is the turn of whoever joins next, or else of the first.
            let selected = if topic.turn < size { topic.turn } else { 0 };
            let chosen = (0..size)
                .map(|i| (selected + i) % size)
                .find(|&i| !self.overrun[topic.members[i]]);
            match chosen {
                Some(i) => copies[topic.members[i]] += 1,
                None => overruns[topic.members[selected]] += 1,
            }
            topic.turn = chosen.unwrap_or(selected) + 1;
        }
        report_once(&mut overruns, &mut self.reported);
        (copies, overruns)
    }
}

impl Topic {
    /// A turn passes to whoever joined next.
    fn remove(&mut self, who: usize) {
        if let Some(at) = self.members.iter().position(|&it| it == who) {
            self.members.remove(at);
            if at < self.turn {
                self.turn -= 1;
            }
        }
    }
}

/// Asks, and takes the one answer that is expected.
fn ask(world: &mut World, who: usize, request: Request<'_>, expected: Reply) {
    assert_eq!(
        world.ask(who, request),
        [reply(who, expected)],
        "{request:?}"
    );
}

fn run(subscriptions_max: u32, ops: Vec<Op>) {
    let mut world = World::new(Rules {
        subscriptions_max,
        ..Rules::default()
    });
    let mut model = Model {
        subscriptions_max: subscriptions_max as usize,
        ..Model::default()
    };
    for op in ops {
        match op {
            Op::Subscribe(who, kind, name, group) => {
                let group = if kind == Kind::Listen { group } else { "" };
                let expected = model.subscribe(who, kind, &name, group);
                let (pattern, group) = (name.as_bytes(), group.as_bytes());
                let request = match kind {
                    Kind::Listen => Request::Listen { pattern, group },
                    Kind::Watch => Request::Watch { pattern },
                    Kind::Observe => Request::Observe { key: pattern },
                };
                ask(&mut world, who, request, expected);
            }
            Op::Unsubscribe(who, kind, name, group) => {
                let group = if kind == Kind::Listen { group } else { "" };
                let expected = model.unsubscribe(who, kind, &name, group);
                let (pattern, group) = (name.as_bytes(), group.as_bytes());
                let request = match kind {
                    Kind::Listen => Request::Unlisten { pattern, group },
                    Kind::Watch => Request::Unwatch { pattern },
                    Kind::Observe => Request::Unobserve { key: pattern },
                };
                ask(&mut world, who, request, expected);
            }
            Op::Signal(who, channel) => {
                let (copies, overruns) = model.signal(&channel);
                let request = Request::Signal {
                    channel: channel.as_bytes(),
                    payload: b"hi",
                };
                compare(world.ask(who, request), who, &channel, copies, overruns);
            }
            Op::Overrun(who, overrun) => {
                model.overrun[who] = overrun;
                model.reported[who] = false;
                world.set_overrun(who, overrun);
            }
            Op::Leave(who) => {
                model.leave(who);
                assert_eq!(world.leave(who), []);
            }
        }
        let subscribed = model.patterns.iter().map(|it| it.members.len()).sum();
        assert_eq!(world.engine.counts().subscriptions, subscribed);
        let view = world.engine.view(world.now);
        let theirs: Vec<_> = view.listened().collect();
        let listened = model.patterns.iter().filter(|it| it.kind == Kind::Listen);
        let ours: Vec<_> = listened
            .map(|it| {
                (
                    it.pattern.as_bytes(),
                    it.group.as_bytes(),
                    it.members.len() as u32,
                )
            })
            .collect();
        assert_eq!(
            theirs, ours,
            "in the order in which they were first listened to"
        );
    }
    world.end(0);
}

/// The answer comes first and counts what was told; then the copies.
fn compare(
    heard: Heard,
    asker: usize,
    channel: &str,
    copies: [usize; CLIENTS],
    overruns: [usize; CLIENTS],
) {
    let told = copies.iter().sum::<usize>() as i64;
    let push = Push::Signal {
        channel: Value::from(channel.as_bytes()),
        payload: Value::from(&b"hi"[..]),
    };
    let (slow, heard): (Heard, Heard) = heard
        .into_iter()
        .partition(|(_, said)| *said == Said::Overrun);
    for (who, &count) in overruns.iter().enumerate() {
        assert_eq!(
            slow.iter().filter(|it| it.0 == who).count(),
            count,
            "{who} is too slow"
        );
    }
    let mut expected = Heard::new();
    for (who, &count) in copies.iter().enumerate() {
        if who == asker {
            expected.push(reply(who, Reply::Number(told)));
        }
        expected.extend((0..count).map(|_| (who, Said::Push(push.clone()))));
    }
    assert_eq!(heard, expected);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn signals_reach_clients_that_listen(
        subscriptions_max in prop_oneof![Just(0), 1..5u32],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        run(subscriptions_max, ops);
    }
}
