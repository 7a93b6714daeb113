//! Watches over random histories of everything, against what the answers imply.
//!
//! The model knows nothing of locks, lists or values: whoever is told of a grant, a new value or a
//! popped one has caused an event, and every hold that is gone after a call has caused another.
//! What each watcher hears must be just these, once each, however many of its patterns match.

use std::collections::BTreeSet;

use latchd::base::{Millis, Token};
use latchd::engine::Rules;
use latchd::engine::types::{End, Event, Mode, Push, Reply, Request};
use latchd::wire::answer::LIST_FORM;
use proptest::prelude::*;

use crate::primitives::subscriptions::hears;
use crate::primitives::{
    CLIENTS, Heard, Said, Time, World, client, config, hold, span, span_or_zero,
};

const KEYS: [&str; 3] = ["a", "b", "a.b"];
const PATTERNS: [&str; 8] = ["a", "b", "*", ">", "a.*", "a.>", "*.b", "c"];

#[derive(Clone, Debug)]
enum Op {
    Ask(usize, Request<'static>),
    /// `r`, `n` or `resign` with the n-th token ever told.
    Show(usize, usize, u8),
    Leave(usize),
    Pass(Time),
    Late(Time),
}

fn request() -> impl Strategy<Value = Request<'static>> {
    let key = || prop::sample::select(&KEYS[..]).prop_map(str::as_bytes);
    let pattern = || prop::sample::select(&PATTERNS[..]).prop_map(str::as_bytes);
    let value = || prop::sample::select(vec![&b"x"[..], b"y"]);
    let old = || prop::sample::select(vec![&b""[..], b"x", b"y"]);
    let end = || prop::sample::select(&[End::Left, End::Right][..]);
    let place = hold().prop_map(|(key, mode)| match mode {
        Mode::Lead => (key, Mode::Slot { limit: 1 }), // nobody enqueues to lead
        mode => (key, mode),
    });
    let locks = prop_oneof![
        6 => (hold(), span_or_zero(), span())
            .prop_map(|((key, mode), wait, lease)| Request::Acquire { key, mode, wait, lease: Some(lease) }),
        3 => (place, span())
            .prop_map(|((key, mode), lease)| Request::Enqueue { key, mode, lease: Some(lease) }),
        3 => (key(), span_or_zero()).prop_map(|(key, wait)| Request::Wait { key, wait }),
        1 => key().prop_map(|key| Request::Observe { key }),
    ];
    let numbers = prop_oneof![
        (
            key(),
            prop::sample::select(&[1, -1, i64::MAX, i64::MIN][..]),
            any::<bool>()
        )
            .prop_map(|(key, delta, down)| Request::Add { key, delta, down }),
        (key(), -1..2i64).prop_map(|(key, value)| Request::SetCount { key, value }),
        key().prop_map(|key| Request::Count { key }),
    ];
    let values =
        prop_oneof![
            (key(), value(), span_or_zero()).prop_map(|(key, value, ttl)| Request::Put {
                key,
                value,
                ttl
            }),
            (key(), old(), value(), span_or_zero())
                .prop_map(|(key, old, new, ttl)| Request::Swap { key, old, new, ttl }),
            key().prop_map(|key| Request::Delete { key }),
            key().prop_map(|key| Request::Fetch { key }),
        ];
    let lists = prop_oneof![
        3 => (key(), value(), end()).prop_map(|(key, value, end)| Request::Push { key, value, end }),
        1 => (key(), end()).prop_map(|(key, end)| Request::Pop { key, end }),
        3 => (key(), end(), span_or_zero()).prop_map(|(key, end, wait)| Request::AwaitPop { key, end, wait }),
        1 => key().prop_map(|key| Request::Length { key }),
        1 => key().prop_map(|key| Request::Range { key, start: 0, stop: -1, form: LIST_FORM }),
    ];
    let others = prop_oneof![
        (key(), 1..4u32, span_or_zero()).prop_map(|(key, count, wait)| Request::Meet {
            key,
            count,
            wait
        }),
        key().prop_map(|channel| Request::Signal {
            channel,
            payload: b"hi"
        }),
    ];
    let watches = prop_oneof![
        3 => pattern().prop_map(|pattern| Request::Watch { pattern }),
        1 => pattern().prop_map(|pattern| Request::Unwatch { pattern }),
    ];
    prop_oneof![6 => locks, 2 => numbers, 2 => values, 4 => lists, 1 => others, 4 => watches]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (client(), request()).prop_map(|(who, request)| Op::Ask(who, request)),
        5 => (client(), 0..100usize, 0..3u8).prop_map(|(who, nth, how)| Op::Show(who, nth, how)),
        2 => client().prop_map(Op::Leave),
        2 => crate::primitives::time().prop_map(Op::Pass),
        2 => crate::primitives::time().prop_map(Op::Late),
    ]
}

/// The event that a good answer to this request means.
fn event_of(request: Request<'_>) -> Option<(Event, &[u8])> {
    let is_left = |end: End| end == End::Left;
    Some(match request {
        Request::Acquire {
            key,
            mode: Mode::Lead,
            ..
        } => (Event::Elect, key),
        Request::Acquire { key, .. } | Request::Enqueue { key, .. } | Request::Wait { key, .. } => {
            (Event::Acquire, key)
        }
        Request::Release { key, .. } => (Event::Release, key),
        Request::Resign { key, .. } => (Event::Resign, key),
        Request::Add { key, down, .. } => (if down { Event::Decr } else { Event::Incr }, key),
        Request::SetCount { key, .. } => (Event::Cset, key),
        Request::Put { key, .. } => (Event::Kset, key),
        Request::Delete { key } => (Event::Kdel, key),
        Request::Swap { key, .. } => (Event::Kcas, key),
        Request::Push { key, end, .. } => (
            if is_left(end) {
                Event::Lpush
            } else {
                Event::Rpush
            },
            key,
        ),
        Request::Pop { key, end } => (
            if is_left(end) {
                Event::Lpop
            } else {
                Event::Rpop
            },
            key,
        ),
        Request::AwaitPop { key, end, .. } => (
            if is_left(end) {
                Event::Blpop
            } else {
                Event::Brpop
            },
            key,
        ),
        _ => return None,
    })
}

fn is_good(answer: &Reply) -> bool {
    let bad = [
        Reply::Queued,
        Reply::Nothing,
        Reply::Conflict,
        Reply::TimedOut,
    ];
    !bad.contains(answer) && !matches!(answer, Reply::Refused(_))
}

type Happened = (String, String);

fn happened(event: Event, key: &[u8]) -> Happened {
    (
        format!("{event:?}"),
        String::from_utf8_lossy(key).into_owned(),
    )
}

struct Model {
    watches: BTreeSet<(usize, &'static [u8])>,
    /// What each client asked last, answered or not.
    asked: [Option<Request<'static>>; CLIENTS],
    tokens: Vec<(&'static str, Token)>,
}

impl Model {
    fn watches(&self, who: usize, key: &str) -> bool {
        let mut own = self.watches.iter().filter(|it| it.0 == who);
        own.any(|it| hears(str::from_utf8(it.1).unwrap(), key))
    }

    /// All that happened in a call, by its answers and by the holds that are gone.
    fn events(&mut self, heard: &Heard, gone: &[(&'static str, u64)], left: bool) -> Vec<Happened> {
        let (mut events, mut let_go) = (Vec::new(), Vec::new());
        for (who, said) in heard {
            let Said::Reply(answer) = said else { continue };
            let request = self.asked[*who].unwrap();
            let Some((event, key)) = event_of(request).filter(|_| is_good(answer)) else {
                continue;
            };
            events.push(happened(event, key));
            if let Request::Release { token, .. } | Request::Resign { token, .. } = request {
                let_go.extend(token.map(|it| it.fence.0));
            }
            if let Reply::Granted { token, .. } | Reply::Acquired { token, .. } = *answer {
                let name = KEYS.into_iter().find(|it| it.as_bytes() == key).unwrap();
                self.tokens.push((name, token));
            }
        }
        let mut lost: Vec<_> = gone
            .iter()
            .filter(|it| !let_go.contains(&it.1))
            .map(|it| it.0)
            .collect();
        if left {
            lost.sort_unstable();
            lost.dedup(); // once per key
        }
        events.extend(
            lost.iter()
                .map(|key| happened(Event::Release, key.as_bytes())),
        );
        events
    }

    /// What each watcher hears of it. Orders that matter: a hold ends before the next begins, a
    /// value comes before it goes, and nobody is told of their own doing before they are answered.
    fn compare(&mut self, heard: &Heard, events: &[Happened], single: bool) {
        for who in 0..CLIENTS {
            let mut expected: Vec<&Happened> = events
                .iter()
                .filter(|it| self.watches(who, &it.1))
                .collect();
            let own = heard.iter().filter(|it| it.0 == who);
            let lines: Vec<Option<Happened>> = own
                .filter_map(|(_, said)| match said {
                    Said::Push(Push::Watch { event, key }) => {
                        Some(Some(happened(*event, key.as_bytes())))
                    }
                    Said::Reply(answer) if is_good(answer) => Some(None),
                    _ => None,
                })
                .collect();
            let mut told: Vec<&Happened> = lines.iter().flatten().collect();
            let at = |names: &[&str]| told.iter().position(|it| names.contains(&it.0.as_str()));
            if let (Some(push), Some(pop)) = (at(&["Lpush", "Rpush"]), at(&["Blpop", "Brpop"])) {
                assert!(push < pop, "{told:?}");
            }
            if single
                && let (Some(end), Some(begin)) =
                    (at(&["Release", "Resign"]), at(&["Acquire", "Elect"]))
            {
                assert!(end < begin, "{told:?}");
            }
            if let Some(answer) = lines.iter().position(Option::is_none) {
                let doing = self.asked[who]
                    .and_then(event_of)
                    .map(|(event, key)| happened(event, key));
                let is_own = |line: &&Option<Happened>| doing.is_some() && **line == doing;
                let count = lines.iter().filter(is_own).count();
                assert!(
                    count == 0 || lines[answer..].iter().any(|line| is_own(&line)),
                    "{lines:?}"
                );
            }
            told.sort_unstable();
            expected.sort_unstable();
            assert_eq!(told, expected, "what {who} is told");
        }
    }
}

/// Key and fence of everything that is held.
fn holds(world: &World) -> Vec<(&'static str, u64)> {
    let view = world.engine.view(world.now);
    let keys = KEYS
        .into_iter()
        .filter_map(|key| Some((key, view.key(key.as_bytes())?)));
    keys.flat_map(|(key, it)| it.holders().map(move |holder| (key, holder.fence.0)))
        .collect()
}

fn run(auto_release: bool, shared: bool, ops: Vec<Op>) {
    let mut world = World::new(Rules {
        auto_release,
        ..Rules::default()
    })
    .sharing_clients(shared);
    let mut model = Model {
        watches: BTreeSet::new(),
        asked: [None; CLIENTS],
        tokens: Vec::new(),
    };
    for op in ops {
        let before = holds(&world);
        let next = world.engine.next_deadline().filter(|&it| it > world.now);
        let asks = match op {
            Op::Ask(who, _) | Op::Show(who, ..) if world.is_parked(who) => continue,
            Op::Show(..) if model.tokens.is_empty() => continue,
            Op::Ask(who, request) => Some((who, request)),
            Op::Show(who, nth, how) => {
                let (key, token) = model.tokens[nth % model.tokens.len()];
                let (key, token, lease) = (key.as_bytes(), Some(token), Some(Millis(2000)));
                Some((
                    who,
                    match how {
                        0 => Request::Release { key, token },
                        1 => Request::Resign { key, token },
                        _ => Request::Renew { key, token, lease },
                    },
                ))
            }
            _ => None,
        };
        let heard = match op {
            Op::Leave(who) => {
                model.watches.retain(|it| it.0 != who);
                world.leave(who)
            }
            Op::Pass(time) | Op::Late(time) => {
                world.advance(time, next);
                if matches!(op, Op::Late(_)) {
                    continue;
                }
                world.expire()
            }
            Op::Ask(..) | Op::Show(..) => {
                let (who, request) = asks.unwrap();
                model.asked[who] = Some(request);
                world.ask(who, request)
            }
        };
        let after = holds(&world);
        let gone: Vec<_> = before
            .into_iter()
            .filter(|it| !after.contains(it))
            .collect();
        let events = model.events(&heard, &gone, matches!(op, Op::Leave(_)));
        // With one hold gone in one call, what begins can only begin after it.
        model.compare(&heard, &events, gone.len() == 1 && asks.is_some());
        match asks {
            Some((who, Request::Watch { pattern })) => _ = model.watches.insert((who, pattern)),
            Some((who, Request::Unwatch { pattern })) => _ = model.watches.remove(&(who, pattern)),
            _ => {}
        }
    }
    for who in 0..CLIENTS {
        world.leave(who);
    }
    world.now = world.now.after(Millis::from_secs(60));
    world.expire(); // whatever outlived its connection
    let stored = world.engine.view(world.now).totals();
    let stored = stored
        .iter()
        .filter(|it| !it.0.ends_with("channels"))
        .map(|it| it.1)
        .sum::<usize>();
    let zeros = world
        .engine
        .view(world.now)
        .counters()
        .filter(|it| it.what == 0)
        .count();
    world.end(stored - zeros);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn watchers_hear_what_happened(
        auto_release in prop::bool::weighted(0.8),
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        run(auto_release, shared, ops);
    }
}
