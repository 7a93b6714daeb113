//! Signals to very many, and patterns of very many shapes: what they cost, and what is refused.

use latchd::base::{ConnId, Nanos};
use latchd::engine::types::{Effect, Effects, Input, Refusal, Reply, Request};
use latchd::engine::view::Counts;
use latchd::engine::{
    Engine, GROUPS_PER_PATTERN_MAX, LONG_SHAPES_MAX, MEMBERS_VISITED_MAX, Origin, Rules,
    SHAPES_PER_CONN_MAX,
};

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
