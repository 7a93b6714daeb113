//! Who hears a signal, against a walk over all subscriptions.
//!
//! Each client that listens on its own hears once, and of every pattern and group that matches, one
//! member does: in turn, from the first to join. Whoever has too much unread hears nothing and is
//! reported. A tiny alphabet makes patterns meet.

use std::collections::BTreeSet;
use std::ops::Range;

use latchd::base::{ConnId, Nanos};
use latchd::engine::types::{Effect, Effects, Input, Push, Refusal, Reply, Request, Value};
use latchd::engine::view::Counts;
use latchd::engine::{
    Engine, GROUPS_PER_PATTERN_MAX, LONG_SHAPES_MAX, MEMBERS_VISITED_MAX, Origin, Rules,
    SHAPES_PER_CONN_MAX,
};
use proptest::prelude::*;

use crate::primitives::{CLIENTS, Heard, Said, World, client, config, reply, report_once};

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

/// Tokens from an alphabet, joined.
fn text(tokens: &'static [&'static str], count: Range<usize>) -> impl Strategy<Value = String> {
    let token = prop::sample::select(tokens);
    prop::collection::vec(token, count).prop_map(|tokens| tokens.join("."))
}

/// Short ones meet often; those of many tokens are alike but for their wildcards, so that they meet
/// too.
fn pattern() -> impl Strategy<Value = String> {
    const LONG: &[&str] = &["a", "a", "a", "*"];
    prop_oneof![
        8 => text(&["", "a", "b", "*", "*", ">"], 1..4),
        1 => text(&["a", "*", ">", "a*", ">b", "**", ">>"], 1..4),
        2 => text(&["", "a", "*", "*"], 4..11),
        2 => text(&["a", "*"], 7..11).prop_map(|it| it + ".>"),
        1 => text(LONG, 126..129),
        1 => text(LONG, 30..129).prop_map(|it| it + ".>"),
    ]
}

fn channel() -> impl Strategy<Value = String> {
    const LONG: &[&str] = &["a"; 1];
    prop_oneof![
        8 => text(&["", "a", "b"], 1..4),
        3 => text(&["", "a", "a", "a"], 4..12),
        1 => text(LONG, 126..129),
        1 => text(&["a", "a", "a", "b"], 30..129),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let group = || prop::sample::select(&["", "", "g", "h"][..]);
    let kind =
        || prop_oneof![6 => Just(Kind::Listen), 1 => Just(Kind::Watch), 1 => Just(Kind::Observe)];
    prop_oneof![
        6 => (client(), kind(), pattern(), group())
            .prop_map(|(who, kind, pattern, group)| Op::Subscribe(who, kind, pattern, group)),
        2 => (client(), kind(), pattern(), group())
            .prop_map(|(who, kind, pattern, group)| Op::Unsubscribe(who, kind, pattern, group)),
        8 => (client(), channel()).prop_map(|(who, channel)| Op::Signal(who, channel)),
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

/// Where the wildcards of a pattern are; `None` if it has none.
fn shape(pattern: &str) -> Option<String> {
    let step = |token| {
        if ["*", ">"].contains(&token) {
            token
        } else {
            ""
        }
    };
    let steps: Vec<&str> = pattern.split('.').map(step).collect();
    let shape = steps.join(".");
    shape.contains(['*', '>']).then_some(shape)
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
        let is_full = self.subscriptions_max != 0 && subscribed >= self.subscriptions_max
            || !self.may_have_shape(who, kind, pattern);
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

    fn may_have_shape(&self, who: usize, kind: Kind, pattern: &str) -> bool {
        let patterns = self.patterns.iter().filter(|it| it.kind == kind);
        let own = patterns.filter(|it| it.members.contains(&who));
        let shapes: BTreeSet<String> = own.filter_map(|it| shape(&it.pattern)).collect();
        kind == Kind::Observe
            || shapes.len() < usize::from(SHAPES_PER_CONN_MAX)
            || shape(pattern).is_none_or(|it| shapes.contains(&it))
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

fn run(subscriptions_max: u32, shared: bool, ops: Vec<Op>) {
    let mut world = World::new(Rules {
        subscriptions_max,
        ..Rules::default()
    })
    .sharing_clients(shared);
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
                leave(&mut world, who);
            }
        }
        let subscribed: usize = model.patterns.iter().map(|it| it.members.len()).sum();
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
    for who in 0..CLIENTS {
        leave(&mut world, who);
    }
    world.end(0);
}

/// Leaves, and lets pass the time that it takes to forget many long patterns.
fn leave(world: &mut World, who: usize) {
    assert_eq!(world.leave(who), []);
    assert_eq!(world.expire(), []);
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
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        run(subscriptions_max, shared, ops);
    }
}

/// Who signals to a crowd, beyond its last member.
const SPEAKER: u32 = 100_000;

/// An engine with as many connections as a test likes.
struct Crowd {
    engine: Engine,
}

impl Crowd {
    fn new() -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(Rules::default(), origin),
        }
    }

    fn ask(&mut self, who: u32, request: Request<'_>) -> Effects {
        let mut out = Effects::new();
        let input = Input::Request(id(who), request);
        self.engine.apply(Nanos(1), input, &mut out);
        out
    }

    /// Whether there was room.
    fn listens(&mut self, who: u32, pattern: &str, group: &str) -> bool {
        let (pattern, group) = (pattern.as_bytes(), group.as_bytes());
        self.is_done(who, Request::Listen { pattern, group })
    }

    fn is_done(&mut self, who: u32, request: Request<'_>) -> bool {
        match &self.ask(who, request)[..] {
            [Effect::Reply(_, Reply::Done)] => true,
            [Effect::Reply(_, Reply::Refused(Refusal::MaxSubscriptions))] => false,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn unlistens(&mut self, who: u32, pattern: &str, group: &str) {
        let (pattern, group) = (pattern.as_bytes(), group.as_bytes());
        assert!(self.is_done(who, Request::Unlisten { pattern, group }));
    }

    /// Who hears a signal, and how many looks it took to find out.
    fn signal(&mut self, channel: &str) -> (Vec<ConnId>, u64) {
        // What the engine charges for a request, and for each look.
        const REQUEST_NS: u64 = 300;
        const LOOK_NS: u64 = 120;
        self.engine.take_work();
        let (channel, payload) = (channel.as_bytes(), &b"hi"[..]);
        let out = self.ask(SPEAKER, Request::Signal { channel, payload });
        let recipients = out.into_iter().filter_map(|effect| match effect {
            Effect::Broadcast(recipients, _) => Some(recipients),
            _ => None,
        });
        let recipients = recipients.flatten().collect();
        let work = self.engine.take_work().saturating_sub(REQUEST_NS);
        (recipients, work / LOOK_NS)
    }

    /// Everyone leaves, over as many turns as it takes.
    fn end(mut self, crowd: u32) {
        for who in (0..crowd).chain([SPEAKER]) {
            let input = Input::Disconnected(id(who));
            self.engine.apply(Nanos(1), input, &mut Effects::new());
        }
        while self.engine.next_deadline().is_some() {
            self.engine
                .apply(Nanos(1), Input::Time(u64::MAX), &mut Effects::new());
        }
        self.engine.check();
        assert_eq!(self.engine.counts(), Counts::default(), "left behind");
    }
}

fn id(who: u32) -> ConnId {
    ConnId {
        slot: who,
        serial: who + 1,
    }
}

/// So many tokens, `*` where the mask has a bit and `a` where it has none.
fn stars(tokens: u32, mask: u32) -> String {
    let step = |at| if mask >> at & 1 == 1 { "*" } else { "a" };
    (0..tokens).map(step).collect::<Vec<_>>().join(".")
}

#[test]
fn the_patterns_of_one_connection_have_only_so_many_shapes() {
    let mut crowd = Crowd::new();
    let most = u32::from(SHAPES_PER_CONN_MAX);
    for mask in 1..=most {
        assert!(crowd.listens(0, &stars(7, mask), ""), "{mask}");
    }
    assert!(!crowd.listens(0, "*", ""), "one shape too many");
    assert!(!crowd.listens(0, ">", "g"), "also in a group");
    assert!(crowd.listens(0, &stars(7, 1), ""), "has it already");
    assert!(crowd.listens(0, &stars(7, 1), "g"), "the same shape");
    assert!(crowd.listens(0, "*.b.c.d.e.f.g", ""), "the same shape");
    assert!(crowd.listens(0, "a.b.c", ""), "no wildcard");
    assert!(crowd.listens(1, "*", ""), "of another connection");
    assert!(crowd.is_done(0, Request::Watch { pattern: b"*" }));
    assert!(crowd.is_done(0, Request::Observe { key: b"*" }));
    assert!(crowd.is_done(0, Request::Observe { key: b"*.*" }));
    // The shape is in use until its last pattern is left.
    for (pattern, group) in [
        (&stars(7, 1)[..], ""),
        ("*.b.c.d.e.f.g", ""),
        ("nonsense*", ""),
    ] {
        crowd.unlistens(0, pattern, group);
        assert!(!crowd.listens(0, "*", ""), "{pattern}");
    }
    crowd.unlistens(0, &stars(7, 1), "g");
    assert!(crowd.listens(0, "*", ""));
    assert!(!crowd.listens(0, "*.*", ""));
    crowd.end(2);
}

#[test]
fn a_connection_is_in_only_so_many_groups_of_one_pattern() {
    let mut crowd = Crowd::new();
    for pattern in ["a", "a.*"] {
        for group in 0..GROUPS_PER_PATTERN_MAX {
            assert!(crowd.listens(0, pattern, &group.to_string()));
        }
        assert!(!crowd.listens(0, pattern, "one more"));
        assert!(crowd.listens(0, pattern, "0"), "is in it already");
        assert!(crowd.listens(0, pattern, ""), "on its own");
        assert!(crowd.listens(1, pattern, "one more"), "another connection");
    }
    assert!(crowd.listens(0, "b", "one more"), "of another pattern");
    crowd.unlistens(0, "a", "7");
    assert!(crowd.listens(0, "a", "one more"));
    assert!(!crowd.listens(0, "a", "7"));
    crowd.end(2);
}

/// 2^17 patterns that all match one name: only so many are taken, and none of anybody else's is
/// refused that has few tokens or no wildcard.
#[test]
fn patterns_of_many_shapes_are_refused_before_a_signal_becomes_expensive() {
    let mut crowd = Crowd::new();
    let conns = (1 << 17) / 64;
    let mut taken = 0;
    for mask in 0..1_u32 << 17 {
        taken += u32::from(crowd.listens(mask / 64, &stars(17, mask), ""));
    }
    assert_eq!(taken, 1 + LONG_SHAPES_MAX, "the first has no star");
    let (heard, work) = crowd.signal(&stars(17, 0));
    assert_eq!(heard.len(), 17, "each once");
    assert!(work < 5 * u64::from(LONG_SHAPES_MAX), "{work}");
    assert!(
        !crowd.listens(conns, "a.a.a.a.a.a.a.a.>", ""),
        "nine tokens"
    );
    assert!(crowd.listens(conns, "*.*.*.*.*.*.*.*", ""), "eight tokens");
    assert!(crowd.listens(conns, "*.*.*.*.*.*.*.>", ""), "eight tokens");
    let name = vec!["a"; 100].join(".");
    assert!(crowd.listens(conns, &name, ""), "no wildcard");
    let same_shape = stars(17, 1).replace('a', "b");
    assert!(crowd.listens(conns, &same_shape, ""), "the shape exists");
    crowd.unlistens(0, &stars(17, 2), "");
    assert!(
        crowd.listens(conns, "a.a.a.a.a.a.a.a.>", ""),
        "one has left"
    );
    crowd.end(conns + 1);
}

/// More groups than one signal looks at: the others hear the next one, and no signal is more work.
#[test]
fn a_signal_looks_at_only_so_many_members_and_the_other_groups_come_next() {
    let mut crowd = Crowd::new();
    let most = MEMBERS_VISITED_MAX as u32;
    let groups_each = GROUPS_PER_PATTERN_MAX / 2;
    // Two patterns, each with three quarters of what is looked at: of six signals every group hears
    // three when its pattern comes first, and one when it comes second.
    let conns = most / 4 * 3 / groups_each;
    for who in 0..conns {
        for nth in 0..groups_each {
            let group = format!("{who}.{nth}");
            assert!(crowd.listens(who, "a.b", &group));
            assert!(crowd.listens(who, "a.*", &group));
        }
    }
    assert!(crowd.listens(conns, "a.b", ""));
    let mut heard = vec![0; conns as usize + 1];
    for _ in 0..6 {
        let (recipients, work) = crowd.signal("a.b");
        assert_eq!(
            recipients.len() as u32,
            most + 1,
            "all that are looked at hear"
        );
        assert!(work < u64::from(most) + 100, "{work}");
        for id in recipients {
            heard[id.slot as usize] += 1;
        }
    }
    assert_eq!(heard.pop(), Some(6), "alone, and not bounded");
    let all = 2 * groups_each;
    assert_eq!(heard, vec![4 * all; conns as usize]);
    crowd.end(conns + 1);
}

/// One group of many that cannot take more: the walk stops, and goes on where it stopped.
#[test]
fn a_group_of_many_busy_members_is_looked_at_bit_by_bit() {
    let mut crowd = Crowd::new();
    let most = MEMBERS_VISITED_MAX as u32;
    for who in 0..=most {
        assert!(crowd.listens(who, "a", "g"));
        if who < most {
            let overrun = Input::Overrun(id(who), true);
            crowd.engine.apply(Nanos(1), overrun, &mut Effects::new());
        }
    }
    let (heard, work) = crowd.signal("a");
    assert_eq!(heard, [], "the last member was not reached");
    assert!(work < MEMBERS_VISITED_MAX + 10, "{work}");
    let (heard, work) = crowd.signal("a");
    assert_eq!(heard, [id(most)]);
    assert!(work < 10, "{work}");
    crowd.end(most + 1);
}

#[test]
fn who_leaves_with_many_subscriptions_leaves_over_several_turns() {
    // Time for about two hundred short ones; a long name takes longer to forget.
    const TIME: Input<'_> = Input::Time(60_000);
    let names: [(&dyn Fn(u32) -> String, u32); 2] = [
        (&|nth| format!("{nth:0>20}"), 300),
        (&|nth| format!("{}{nth}.*", "a.".repeat(120)), 40),
    ];
    for (name, most) in names {
        let mut crowd = Crowd::new();
        for nth in 0..10 * most {
            assert!(crowd.listens(0, &name(nth), ""));
        }
        let mut left = 10 * most as usize;
        let mut input = Input::Disconnected(id(0));
        while left > 0 {
            crowd.engine.apply(Nanos(1), input, &mut Effects::new());
            let before = left;
            left = crowd.engine.counts().subscriptions;
            assert!(
                (1..=most as usize).contains(&(before - left)),
                "{before} {left}"
            );
            input = TIME;
        }
        crowd.end(0);
    }
}
