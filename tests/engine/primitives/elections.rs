//! Elections against a plain lock with a list of observers.
//!
//! Who hears what, in which order: `resigned` when somebody resigns, `failover` when the queue is
//! served, `elected` when the one who is served leads. The elected connection counts as an observer
//! only while it leads, and every event comes after somebody lost or before somebody leads, so it
//! hears nothing unless it observes. A semaphore has no leader: whoever resigns it is reported, but
//! nobody takes over.

mod lock;

use std::collections::BTreeMap;

use latchd::base::{Millis, Nanos, Token};
use latchd::engine::Rules;
use latchd::engine::types::{Change, Mode, Push, Reply, Request};
use proptest::prelude::*;

use self::lock::{Expected, Lock, News, Turn};
use crate::primitives::{
    CLIENTS, Heard, Said, Time, World, client, config, report_once, span, span_or_zero,
};

/// The last one is a semaphore of two.
const KEYS: [&str; 3] = ["a", "b", "s"];

#[derive(Clone, Debug)]
enum Op {
    Acquire(usize, &'static str, bool, Millis, Millis),
    /// Of the n-th grant ever told.
    Release(usize, usize),
    Resign(usize, usize),
    Renew(usize, usize, Millis),
    Observe(usize, &'static str),
    Unobserve(usize, &'static str),
    Overrun(usize, bool),
    Leave(usize),
    Pass(Time),
    Late(Time),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(&KEYS[..]);
    let nth = || 0..100usize;
    prop_oneof![
        10 => (client(), key(), prop::bool::weighted(0.7), span_or_zero(), span())
            .prop_map(|(who, key, lead, wait, lease)| Op::Acquire(who, key, lead, wait, lease)),
        3 => (client(), nth()).prop_map(|(who, nth)| Op::Release(who, nth)),
        5 => (client(), nth()).prop_map(|(who, nth)| Op::Resign(who, nth)),
        2 => (client(), nth(), span()).prop_map(|(who, nth, lease)| Op::Renew(who, nth, lease)),
        5 => (client(), key()).prop_map(|(who, key)| Op::Observe(who, key)),
        1 => (client(), key()).prop_map(|(who, key)| Op::Unobserve(who, key)),
        1 => (client(), any::<bool>()).prop_map(|(who, overrun)| Op::Overrun(who, overrun)),
        1 => client().prop_map(Op::Leave),
        2 => crate::primitives::time().prop_map(Op::Pass),
        2 => crate::primitives::time().prop_map(Op::Late),
    ]
}

struct Model {
    locks: BTreeMap<&'static str, Lock>,
    /// The client of each connection that has one.
    clients: [Option<usize>; CLIENTS],
    overrun: [bool; CLIENTS],
    /// Reported as too slow, which is done once.
    reported: [bool; CLIENTS],
    /// Every grant that was told.
    tokens: Vec<(&'static str, Token)>,
    /// What a parked client waits for.
    awaits: [&'static str; CLIENTS],
}

impl Model {
    fn next(&self, now: Nanos) -> Option<Nanos> {
        let leases = self
            .locks
            .values()
            .flat_map(|it| &it.holders)
            .map(|it| it.deadline);
        let waits = self
            .locks
            .values()
            .flat_map(|it| &it.queue)
            .map(|it| it.deadline);
        leases.chain(waits).filter(|&it| it > now).min()
    }

    fn on(
        &mut self,
        now: Nanos,
        key: &'static str,
        expected: &mut Expected,
        act: impl FnOnce(&mut Lock, &mut Turn<'_>),
    ) {
        let lock = self.locks.get_mut(key).unwrap();
        act(
            lock,
            &mut Turn {
                now,
                key,
                clients: &self.clients,
                overrun: &self.overrun,
                expected,
            },
        );
    }

    /// Sorts what was heard by client and key, and learns the tokens.
    fn read(&mut self, heard: Heard, asker: Option<(usize, &'static str)>) -> Expected {
        let mut read = Expected::default();
        for (who, said) in heard {
            let (key, news) = match said {
                Said::Overrun => {
                    read.overruns[who] += 1;
                    continue;
                }
                Said::Push(Push::Leader { change, key }) => {
                    let same = |it: &&str| it.as_bytes() == key.as_bytes();
                    (KEYS.into_iter().find(same).unwrap(), News::Leader(change))
                }
                Said::Push(push) => panic!("nobody asked for {push:?}"),
                Said::Reply(answer) => {
                    let asked = asker.filter(|&(it, _)| it == who);
                    let key = asked.map_or(self.awaits[who], |(_, key)| key);
                    (key, self.learn(who, key, answer))
                }
            };
            read.news.entry((who, key)).or_default().push(news);
        }
        read
    }

    fn learn(&mut self, who: usize, key: &'static str, answer: Reply) -> News {
        match answer {
            Reply::Granted { token, .. } => {
                self.tokens.push((key, token));
                let holders = &mut self.locks.get_mut(key).unwrap().holders;
                let told = holders
                    .iter_mut()
                    .find(|it| it.who == who && it.token.is_none());
                told.expect("the model does not know of this grant").token = Some(token);
                News::Granted
            }
            Reply::Renewed { .. } => News::Renewed,
            answer => News::Answer(answer),
        }
    }
}

fn run(shared: bool, ops: Vec<Op>) {
    let mut world = World::new(Rules::default()).sharing_clients(shared);
    let limits = KEYS.map(|key| (key, if key == "s" { 2 } else { 1 }));
    let locks = limits.map(|(key, limit)| {
        (
            key,
            Lock {
                limit,
                ..Lock::default()
            },
        )
    });
    let mut model = Model {
        locks: BTreeMap::from(locks),
        clients: [None; CLIENTS],
        overrun: [false; CLIENTS],
        reported: [false; CLIENTS],
        tokens: Vec::new(),
        awaits: [""; CLIENTS],
    };
    for op in ops {
        let (now, mut expected) = (world.now, Expected::default());
        let asker = match op {
            Op::Acquire(who, ..)
            | Op::Release(who, _)
            | Op::Resign(who, _)
            | Op::Renew(who, ..)
            | Op::Observe(who, _)
            | Op::Unobserve(who, _) => Some(who),
            _ => None,
        };
        if asker.is_some_and(|who| world.is_parked(who)) {
            continue;
        }
        if let Some(who) = asker {
            world.attach(who);
        }
        model.clients = world.clients();
        let (asker, heard) = match op {
            Op::Release(..) | Op::Resign(..) | Op::Renew(..) if model.tokens.is_empty() => continue,
            Op::Acquire(who, name, lead, wait, lease) => {
                let limit = model.locks[name].limit as u32;
                let lead = lead && limit == 1;
                model.awaits[who] = name;
                model.on(now, name, &mut expected, |it, turn| {
                    it.acquire(turn, who, lead, wait, lease)
                });
                let mode = if lead {
                    Mode::Lead
                } else {
                    Mode::Slot { limit }
                };
                let (key, lease) = (name.as_bytes(), Some(lease));
                (
                    Some((who, name)),
                    world.ask(
                        who,
                        Request::Acquire {
                            key,
                            mode,
                            wait,
                            lease,
                        },
                    ),
                )
            }
            Op::Release(who, nth) | Op::Resign(who, nth) => {
                let (name, token) = model.tokens[nth % model.tokens.len()];
                let resign = matches!(op, Op::Resign(..));
                model.on(now, name, &mut expected, |it, turn| {
                    it.let_go(turn, who, token, resign)
                });
                let (key, token) = (name.as_bytes(), Some(token));
                let request = if resign {
                    Request::Resign { key, token }
                } else {
                    Request::Release { key, token }
                };
                (Some((who, name)), world.ask(who, request))
            }
            Op::Renew(who, nth, lease) => {
                let (name, token) = model.tokens[nth % model.tokens.len()];
                model.on(now, name, &mut expected, |it, turn| {
                    it.renew(turn, who, token, lease)
                });
                let (key, token, lease) = (name.as_bytes(), Some(token), Some(lease));
                (
                    Some((who, name)),
                    world.ask(who, Request::Renew { key, token, lease }),
                )
            }
            Op::Observe(who, name) => {
                model.on(now, name, &mut expected, |it, turn| it.observe(turn, who));
                (
                    Some((who, name)),
                    world.ask(
                        who,
                        Request::Observe {
                            key: name.as_bytes(),
                        },
                    ),
                )
            }
            Op::Unobserve(who, name) => {
                model.on(now, name, &mut expected, |it, turn| {
                    it.observers.retain(|&it| it != who);
                    turn.tell(who, News::Answer(Reply::Done));
                });
                (
                    Some((who, name)),
                    world.ask(
                        who,
                        Request::Unobserve {
                            key: name.as_bytes(),
                        },
                    ),
                )
            }
            Op::Overrun(who, overrun) => {
                model.overrun[who] = overrun;
                model.reported[who] = false;
                world.set_overrun(who, overrun);
                continue;
            }
            Op::Leave(who) => {
                model.overrun[who] = false;
                model.reported[who] = false;
                for key in KEYS {
                    model.on(now, key, &mut expected, |it, turn| it.leave(turn, who));
                }
                (None, world.leave(who))
            }
            Op::Pass(time) | Op::Late(time) => {
                world.advance(time, model.next(now));
                if matches!(op, Op::Late(_)) {
                    continue;
                }
                for key in KEYS {
                    model.on(world.now, key, &mut expected, Lock::expire);
                }
                (None, world.expire())
            }
        };
        let read = model.read(heard, asker);
        assert_eq!(read.news, expected.news);
        report_once(&mut expected.overruns, &mut model.reported);
        assert_eq!(read.overruns, expected.overruns);
        let holders: usize = model.locks.values().map(|it| it.holders.len()).sum();
        let waiters = model.locks.values().map(|it| it.queue.len()).sum();
        let observers = model.locks.values().map(|it| it.observers.len()).sum();
        let counts = world.engine.counts();
        assert_eq!(
            [counts.holders, counts.waiters, counts.subscriptions],
            [holders, waiters, observers]
        );
    }
    world.end(0);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn observers_hear_who_leads(
        shared in any::<bool>(),
        ops in prop::collection::vec(op(), 1..100),
    ) {
        run(shared, ops);
    }
}

/// What the observer, client 4, hears of a key while a history of it unfolds.
fn heard_of(name: &str, mode: Mode, next: Request<'_>) -> Vec<Change> {
    let mut world = World::new(Rules::default());
    let (key, lease) = (name.as_bytes(), Some(Millis(5000)));
    let wait = Millis::ZERO;
    let acquire = Request::Acquire {
        key,
        mode,
        wait,
        lease,
    };
    let mut heard = world.ask(4, Request::Observe { key });
    heard.extend(world.ask(0, acquire));
    heard.extend(world.ask(1, next));
    heard.extend(world.leave(0));
    world.end(0);
    let own = heard.into_iter().filter(|it| it.0 == 4);
    own.filter_map(|(_, said)| match said {
        Said::Push(Push::Leader { change, .. }) => Some(change),
        _ => None,
    })
    .collect()
}

#[test]
fn a_grant_from_the_queue_is_a_failover_of_locks_only() {
    let (key, wait, lease) = (&b"k"[..], Millis(5000), None);
    let lock = Mode::Slot { limit: 1 };
    let enqueue = Request::Enqueue {
        key,
        mode: lock,
        lease,
    };
    let told = "also to one that has not come to hear of it";
    assert_eq!(heard_of("k", lock, enqueue), [Change::Failover], "{told}");
    let [elect, read, write] = [Mode::Lead, Mode::Read, Mode::Write].map(|mode| Request::Acquire {
        key,
        mode,
        wait,
        lease,
    });
    let to_leader = [Change::Failover, Change::Elected];
    assert_eq!(heard_of("k", lock, elect), to_leader);
    assert_eq!(heard_of("k", Mode::Lead, elect)[1..], to_leader);
    assert_eq!(heard_of("k", Mode::Write, read), [], "not a lock of one");
    assert_eq!(heard_of("k", Mode::Read, write), [], "not a lock of one");
    let nobody = Request::Count { key };
    assert_eq!(
        heard_of("k", Mode::Lead, nobody),
        [Change::Elected],
        "no news of a loss"
    );
}
