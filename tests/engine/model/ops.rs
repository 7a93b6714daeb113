//! What can happen in a case, and how likely it is.
//!
//! Few clients, few keys, short times: everybody meets everybody. Most times are whole
//! milliseconds, so deadlines often fall on the same instant; some are not, so often they nearly
//! do.

use std::fmt;

use latchd::base::Millis;
use latchd::engine::types::Mode;
use latchd::engine::{Rules, SearchLimits};
use proptest::collection::vec;
use proptest::prelude::*;

use super::world::{CLIENTS, IDS, KEYS};

/// A case, which prints one operation per line.
#[derive(Clone)]
pub struct Script(pub Vec<Op>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, op) in self.0.iter().enumerate() {
            write!(f, "\n{index:4}  {op:?}")?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub enum Op {
    /// Somebody who is not parked asks.
    Ask {
        client: usize,
        key: usize,
        verb: Verb,
    },
    /// Time passes and nobody looks: whatever comes next comes late.
    Pass(Step),
    /// What is due is done.
    Expire,
    /// Time passes, and what is due is done.
    Turn(Step),
    /// A connection ends; another takes its slot.
    Leave {
        client: usize,
    },
    Hello {
        client: usize,
        named: bool,
        /// Whether it wants to be told rather than to wait for itself.
        detects: Option<bool>,
        /// Whether what it is granted outlives it.
        keeps: Option<bool>,
    },
    /// A connection acquires for a client from now on, as others may.
    Attach {
        client: usize,
        id: usize,
    },
    /// Everybody asks for their position everywhere.
    Survey,
    Drain,
}

#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Acquire {
        mode: Mode,
        wait: Millis,
        lease: Option<Millis>,
    },
    Enqueue {
        mode: Mode,
        lease: Option<Millis>,
    },
    Wait {
        /// For a key that was enqueued for, if there is one.
        aimed: bool,
        wait: Millis,
    },
    Release {
        pick: Pick,
        nth: usize,
    },
    Renew {
        pick: Pick,
        nth: usize,
        lease: Option<Millis>,
    },
    Position,
}

/// Which token is shown.
#[derive(Clone, Copy, Debug)]
pub enum Pick {
    /// One that holds its key.
    Live,
    /// The one that was told last, whatever has become of it.
    Latest,
    /// Any that was ever told, most of them stale.
    Any,
    /// One that holds, for another key.
    WrongKey,
    /// One that holds, with one bit of the salt turned over.
    Forged,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    For(u64),
    /// To the next end of a lease or wait, or a little short of it.
    ToNext {
        short_ns: u64,
    },
}

/// On one line, also where the runner asks for many.
impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { client, key, verb } => write!(f, "{client} asks {key}: {}", flat(verb)),
            Self::Pass(step) => write!(f, "pass {}", flat(step)),
            Self::Expire => write!(f, "expire"),
            Self::Turn(step) => write!(f, "turn {}", flat(step)),
            Self::Leave { client } => write!(f, "{client} leaves"),
            Self::Hello {
                client,
                named,
                detects,
                keeps,
            } => write!(
                f,
                "{client} says hello, named: {named}, deadlock: {detects:?}, keep: {keeps:?}"
            ),
            Self::Attach { client, id } => write!(f, "{client} attaches to client {id}"),
            Self::Survey => write!(f, "survey"),
            Self::Drain => write!(f, "drain"),
        }
    }
}

fn flat(it: &impl fmt::Debug) -> String {
    format!("{it:?}")
}

const MS: u64 = 1_000_000;

pub fn rules() -> impl Strategy<Value = Rules> {
    let locks_max = prop_oneof![3 => Just(0), 1 => Just(2), 1 => Just(3)];
    let waiters_max = prop_oneof![3 => Just(0), 1 => 1..=3_u32];
    let lease_default = 3..=30_u64;
    let auto_release = prop::bool::weighted(0.75);
    let deadlock_detection = prop::bool::weighted(0.4);
    let gc = prop_oneof![
        1 => Just((5, 3_600_000)),
        1 => (1..=10_u64, 1..=40_u64),
    ];
    let switches = (auto_release, deadlock_detection);
    (locks_max, waiters_max, lease_default, switches, gc).prop_map(
        |(locks_max, waiters_per_key_max, lease_default, switches, gc)| Rules {
            locks_max,
            waiters_per_key_max,
            lease_default: Millis(lease_default),
            auto_release: switches.0,
            deadlock_detection: switches.1,
            gc_interval: Millis(gc.0),
            gc_idle_max: Millis(gc.1),
            ..Rules::default()
        },
    )
}

/// A case; `drain` in it is rare, as little happens afterwards.
pub fn script(len_max: usize) -> impl Strategy<Value = Script> {
    vec(op(), 1..=len_max).prop_map(Script)
}

/// Rules for [`shared`]: the model does not know which of a client's connections waits for which.
pub fn shared_rules() -> impl Strategy<Value = Rules> {
    rules().prop_map(|rules| Rules {
        deadlock_detection: false,
        ..rules
    })
}

/// A case in which clients have several connections, each of which does everything.
pub fn shared(len_max: usize) -> impl Strategy<Value = Script> {
    let untold = op().prop_map(|mut op| {
        if let Op::Hello { detects, .. } = &mut op {
            *detects = None;
        }
        op
    });
    let attach = (0..CLIENTS, 0..IDS.len()).prop_map(|(client, id)| Op::Attach { client, id });
    vec(prop_oneof![12 => untold, 1 => attach], 1..=len_max).prop_map(Script)
}

/// Rules for [`tangle`]. Searches may be put off, however short they are.
pub fn tangled_rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>()).prop_map(|(deadlock_detection, at_once)| Rules {
        deadlock_detection,
        search_limits: SearchLimits {
            at_once_work: if at_once { 1_000_000 } else { 0 },
            ..SearchLimits::default()
        },
        lease_default: Millis(2_000),
        ..Rules::default()
    })
}

/// A case in which everybody holds much and waits long, so that many wait for each other.
pub fn tangle(len_max: usize) -> impl Strategy<Value = Script> {
    let client = 0..CLIENTS;
    let wait = (1..=400_u64).prop_map(Millis);
    let asks = (client.clone(), 0..KEYS).prop_flat_map(move |(client, key)| {
        let acquire = (usual_mode(key), wait.clone()).prop_map(|(mode, wait)| Verb::Acquire {
            mode,
            wait,
            lease: None,
        });
        let enqueue = usual_mode(key).prop_map(|mode| Verb::Enqueue { mode, lease: None });
        let wait = wait
            .clone()
            .prop_map(|wait| Verb::Wait { aimed: true, wait });
        let release = (0..64_usize).prop_map(|nth| Verb::Release {
            pick: Pick::Live,
            nth,
        });
        let verb = prop_oneof![10 => acquire, 4 => enqueue, 4 => wait, 5 => release];
        verb.prop_map(move |verb| Op::Ask { client, key, verb })
    });
    let hello = (client.clone(), any::<Option<bool>>()).prop_map(|(client, detects)| {
        let named = false;
        Op::Hello {
            client,
            named,
            detects,
            keeps: detects.map(|_| client % 2 == 0),
        }
    });
    let op = prop_oneof![
        60 => asks,
        3 => step().prop_map(Op::Pass),
        3 => step().prop_map(Op::Turn),
        1 => client.prop_map(|client| Op::Leave { client }),
        4 => hello,
    ];
    vec(op, 1..=len_max).prop_map(Script)
}

/// A lock, a semaphore of two, a read-write lock, and another lock.
fn usual_mode(key: usize) -> BoxedStrategy<Mode> {
    match key {
        1 => Just(Mode::Slot { limit: 2 }).boxed(),
        2 => prop_oneof![3 => Just(Mode::Read), 2 => Just(Mode::Write)].boxed(),
        _ => prop_oneof![5 => Just(Mode::Slot { limit: 1 }), 1 => Just(Mode::Lead)].boxed(),
    }
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    let named = any::<bool>();
    prop_oneof![
        6000 => (0..CLIENTS, key_and_verb())
            .prop_map(|(client, (key, verb))| Op::Ask { client, key, verb }),
        450 => step().prop_map(Op::Pass),
        300 => Just(Op::Expire),
        800 => step().prop_map(Op::Turn),
        250 => client.clone().prop_map(|client| Op::Leave { client }),
        150 => (client, named, any::<Option<bool>>(), any::<Option<bool>>())
            .prop_map(|(client, named, detects, keeps)| Op::Hello { client, named, detects, keeps }),
        120 => Just(Op::Survey),
        2 => Just(Op::Drain),
    ]
}

/// Each key is mostly used as one kind, so that refusals of kind stay the exception.
fn key_and_verb() -> impl Strategy<Value = (usize, Verb)> {
    let key = prop_oneof![4 => Just(0), 4 => Just(1), 5 => Just(2), 1 => 3..KEYS];
    key.prop_flat_map(|key| (Just(key), verb(mode(key))))
}

fn mode(key: usize) -> BoxedStrategy<Mode> {
    let slots = |limit: std::ops::RangeInclusive<u32>| limit.prop_map(|limit| Mode::Slot { limit });
    let read_write = || prop_oneof![3 => Just(Mode::Read), 2 => Just(Mode::Write)];
    let any = prop_oneof![slots(1..=3), read_write()];
    let usual = match key {
        0 => slots(1..=1).boxed(),
        1 => slots(2..=2).boxed(),
        2 => read_write().boxed(),
        _ => any.clone().boxed(),
    };
    prop_oneof![30 => usual, 1 => any].boxed()
}

fn verb(mode: BoxedStrategy<Mode>) -> impl Strategy<Value = Verb> {
    prop_oneof![
        6 => (mode.clone(), wait(), lease())
            .prop_map(|(mode, wait, lease)| Verb::Acquire { mode, wait, lease }),
        6 => (mode, lease()).prop_map(|(mode, lease)| Verb::Enqueue { mode, lease }),
        4 => (prop::bool::weighted(0.9), wait())
            .prop_map(|(aimed, wait)| Verb::Wait { aimed, wait }),
        5 => (pick(), 0..64_usize).prop_map(|(pick, nth)| Verb::Release { pick, nth }),
        4 => (pick(), 0..64_usize, lease())
            .prop_map(|(pick, nth, lease)| Verb::Renew { pick, nth, lease }),
    ]
}

fn wait() -> impl Strategy<Value = Millis> {
    prop_oneof![2 => Just(0), 6 => 1..=12_u64, 3 => 13..=50_u64, 1 => Just(Millis::MAX.0)]
        .prop_map(Millis)
}

fn lease() -> impl Strategy<Value = Option<Millis>> {
    let ms = prop_oneof![4 => 1..=12_u64, 4 => 13..=50_u64, 1 => Just(10_000)];
    prop::option::weighted(0.8, ms.prop_map(Millis))
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        9 => Just(Pick::Live),
        2 => Just(Pick::Latest),
        1 => Just(Pick::Any),
        1 => Just(Pick::WrongKey),
        1 => Just(Pick::Forged),
        1 => Just(Pick::Nothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..=3_u64).prop_map(|ms| Step::For(ms * MS)),
        2 => (1..3 * MS).prop_map(Step::For),
        2 => (4..=25_u64).prop_map(|ms| Step::For(ms * MS)),
        1 => Just(Step::For(100 * MS)),
        6 => Just(Step::ToNext { short_ns: 0 }),
        2 => Just(Step::ToNext { short_ns: 1 }),
    ]
}
