//! Random operations and their weights: every verb, for every kind of session, with every ending.
//!
//! Few connections, few names, short times: sessions conflict often, and deadlines often fall on
//! the same instant. An operation says little; `world.rs` makes an input of it that the server
//! could send.

use std::fmt;

use latchd::base::Millis;
use latchd::engine::types::{End, Mode};
use latchd::engine::{ClientLimit, Rules, SearchLimits};
use proptest::collection::vec;
use proptest::prelude::*;

/// Connections at a time: those that speak the line protocol come first, the others speak HTTP.
pub const CONNS: usize = 6;

/// How many of them speak the line protocol.
pub const LINES: usize = 4;

/// Names of locks.
pub const KEYS: [&[u8]; 4] = [b"a", b"a.b", b"pool", b"a name of more than 22 bytes"];

/// Names of everything else. None of them names a lock: an effect about a name waits for the last
/// record of that name, and the order of effects of two tables at one instant is open.
pub const NAMES: [&[u8]; 4] = [b"a.c", b"n.m", b"n", b"another name of more than 22 bytes"];

/// A pattern, from a tiny alphabet, so that patterns overlap. Some match names of keys, some are
/// refused.
pub fn pattern_of(number: u16) -> Vec<u8> {
    const USUAL: [&str; 6] = ["a", "*", "a.*", ">", "n.>", "x*"];
    const TOKENS: [&str; 8] = ["", "a", "b", "*", "*", ">", "a", "n"];
    let number = usize::from(number);
    match USUAL.get(number) {
        Some(pattern) => pattern.as_bytes().to_vec(),
        None => text_of(number, &TOKENS),
    }
}

/// The name of a channel, or of a key.
pub fn channel_of(number: u16) -> Vec<u8> {
    let number = usize::from(number);
    match NAMES.get(number) {
        Some(name) => name.to_vec(),
        None => text_of(number, &["", "a", "b", "a"]),
    }
}

/// Up to nine tokens, by the digits of a number.
fn text_of(number: usize, tokens: &[&str]) -> Vec<u8> {
    let count = [1, 2, 2, 3, 3, 4, 8, 9][number % 8];
    let digit = |at: usize| ((number / 8) >> at) % tokens.len();
    let text: Vec<&str> = (0..count).map(|at| tokens[digit(at)]).collect();
    text.join(".").into_bytes()
}

/// Clients that connections attach to.
pub const IDS: [&str; 3] = ["gw/1", "gw/2", "solo"];

/// Owners that are known by name.
pub const OWNERS: [&str; 2] = ["alice", "bob"];

/// A case, which prints one operation per line.
#[derive(Clone)]
pub struct Script(pub Vec<Op>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, op) in self.0.iter().enumerate() {
            let op = format!("{op:?}");
            write!(f, "\n{index:4}  {op}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Ask {
        conn: usize,
        verb: Verb,
    },
    AskBy {
        conn: usize,
        owner: usize,
        id: u8,
        verb: Verb,
    },
    Attach {
        conn: usize,
        id: usize,
        ttl: u64,
        wrong: bool,
        registers: bool,
    },
    Detach {
        conn: usize,
        id: usize,
        wrong: bool,
    },
    Hello(usize, bool),
    Detects(usize, bool),
    Keeps(usize, bool),
    LetIn(usize, bool),
    HungUp(usize, bool),
    Stalled(usize, bool),
    OwnerStalled(usize, bool),
    ClientStalled(usize, bool),
    Overrun(usize, bool),
    Leave(usize),
    Unsent,
    Break {
        conn: usize,
        all: bool,
        nth: usize,
    },
    Pass(Step),
    Turn(Step),
    MemoryFull(bool),
    StorageFull(bool),
    /// All records but the last ones, as many as this, are durable.
    Durable(u64),
    Drain,
    /// The server restarts with its records; as many as this that were not durable are lost.
    Restart(u64),
    /// A connection is cut off, as when the server is about to stop.
    CutOffOne(usize),
    /// All connections are cut off, and another server begins with all records.
    CutOff,
}

#[derive(Clone, Debug)]
pub enum Verb {
    Acquire(usize, Mode, u64, Option<u64>),
    Enqueue(usize, Mode, Option<u64>),
    /// For a key that was enqueued for, or if the number is small for any.
    Wait(usize, u64),
    Release(Pick),
    Renew(Pick, Option<u64>),
    Reclaim(Pick, Option<u64>),
    Resign(Pick),
    Position(usize),
    Observe(usize),
    Unobserve(usize),
    Add(usize, i64),
    Count(usize),
    SetCount(usize, i64),
    Put(usize, u8, u64),
    Fetch(usize),
    Delete(usize),
    Swap(usize, u8, u8, u64),
    Push(usize, End, u8),
    Pop(usize, End),
    AwaitPop(usize, End, u64),
    Length(usize),
    Part(usize, i64, i64),
    Meet(usize, u32, u64),
    Listen(u16, u8),
    Unlisten(u16, u8),
    Signal(u16),
    Watch(u16),
    Unwatch(u16),
}

/// Which token is shown.
#[derive(Clone, Copy, Debug)]
pub enum Pick {
    /// One that holds, by its number.
    Live(usize),
    /// One that the asker holds.
    Own(usize),
    /// Any that was ever told.
    Any(usize),
    WrongKey(usize),
    Forged(usize),
    Nothing(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    For(u64),
    /// To the next end of something, or a little short of it.
    ToNext(u64),
}

const MS: u64 = 1_000_000;

/// Small limits, so that they are met.
pub fn rules() -> impl Strategy<Value = Rules> {
    let locks_max = prop_oneof![4 => Just(0), 1 => Just(2), 1 => Just(3)];
    let waiters_max = prop_oneof![3 => Just(0), 1 => 1..=3_u32];
    let keys_max = prop_oneof![3 => Just(0), 1 => 1..=4_u32];
    let holds_max = prop_oneof![6 => Just(0), 1 => 3..=6_u32];
    let lists = prop_oneof![3 => Just(0), 1 => 1..=3_u32];
    let subscriptions = prop_oneof![3 => Just(0), 1 => 1..=3_u32];
    let gc = prop_oneof![1 => Just((5, 3_600_000)), 2 => (1..=10_u64, 1..=40_u64)];
    let switches = (
        prop::bool::weighted(0.75),
        prop::bool::weighted(0.3),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    );
    let limits = (
        locks_max,
        waiters_max,
        keys_max,
        holds_max,
        lists,
        subscriptions,
    );
    (limits, gc, switches, 3..=30_u64).prop_map(|(limits, gc, switches, lease_default)| Rules {
        locks_max: limits.0,
        waiters_per_key_max: limits.1,
        keys_max: limits.2,
        holds_max: limits.3,
        list_length_max: limits.4,
        subscriptions_max: limits.5,
        lease_default: Millis(lease_default),
        auto_release: switches.0,
        deadlock_detection: switches.1,
        durable: switches.2,
        notes: match switches.3 {
            true => latchd::engine::types::Notes::All,
            false => latchd::engine::types::Notes::Expiries,
        },
        clients_per_adapter_max: u32::from(switches.4),
        clients_max: match switches.5 {
            true => vec![ClientLimit {
                adapter: "line".into(),
                clients: 0,
            }],
            false => Vec::new(),
        },
        gc_interval: Millis(gc.0),
        gc_idle_max: Millis(gc.1),
        ..Rules::default()
    })
}

/// A case about everything, or mostly about one kind of thing.
pub fn script(len_max: usize) -> impl Strategy<Value = Script> {
    let of = |weights| vec(op(weights), 1..=len_max).prop_map(Script).boxed();
    prop_oneof![
        4 => of([6, 3, 2]),
        2 => of([20, 1, 1]),
        1 => of([1, 20, 2]),
        1 => of([1, 1, 20]),
    ]
}

/// With how likely it is that a request is about locks, values or subscriptions.
fn op(weights: [u32; 3]) -> impl Strategy<Value = Op> {
    let conn = || 0..CONNS;
    let line = || 0..LINES;
    // Mostly the same, so that it has several connections.
    let id = || prop_oneof![5 => Just(0), 1 => 1..IDS.len()];
    let of_line =
        |op: fn(usize, bool) -> Op| (line(), any::<bool>()).prop_map(move |it| op(it.0, it.1));
    let of = |op: fn(usize, bool) -> Op| (conn(), any::<bool>()).prop_map(move |it| op(it.0, it.1));
    let session = prop_oneof![
        350 => (conn(), id(), ttl(), prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(conn, id, ttl, wrong, registers)| Op::Attach { conn, id, ttl, wrong, registers }),
        80 => (conn(), id(), prop::bool::weighted(0.2))
            .prop_map(|(conn, id, wrong)| Op::Detach { conn, id, wrong }),
        100 => of_line(Op::Hello),
        50 => of_line(Op::Detects),
        60 => of_line(Op::Keeps),
        30 => of(Op::LetIn),
        60 => of(Op::HungUp),
        60 => of(Op::Stalled),
        20 => of(Op::OwnerStalled),
        20 => of(Op::ClientStalled),
        40 => of(Op::Overrun),
        220 => conn().prop_map(Op::Leave),
    ]
    .boxed();
    let server = prop_oneof![
        20 => Just(Op::Unsent),
        80 => (conn(), any::<bool>(), any::<usize>())
            .prop_map(|(conn, all, nth)| Op::Break { conn, all, nth }),
        300 => step().prop_map(Op::Pass),
        700 => step().prop_map(Op::Turn),
        10 => any::<bool>().prop_map(Op::MemoryFull),
        10 => any::<bool>().prop_map(Op::StorageFull),
        150 => (0..4_u64).prop_map(Op::Durable),
        6 => Just(Op::Drain),
        16 => (0..6_u64).prop_map(Op::Restart),
        4 => conn().prop_map(Op::CutOffOne),
        2 => Just(Op::CutOff),
    ]
    .boxed();
    prop_oneof![
        50 => (line(), verb(weights)).prop_map(|(conn, verb)| Op::Ask { conn, verb }),
        10 => (LINES..CONNS, 0..OWNERS.len(), 0..4_u8, verb(weights))
            .prop_map(|(conn, owner, id, verb)| Op::AskBy { conn, owner, id, verb }),
        14 => session,
        13 => server,
    ]
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

/// A case in which every session holds much and waits long, so that many wait for each other.
pub fn tangle(len_max: usize) -> impl Strategy<Value = Script> {
    let wait = || 1..=400_u64;
    let usual = || prop_oneof![20 => key_and_mode(), 3 => Just((3, Mode::Slot { limit: 1 }))];
    let verb = prop_oneof![
        10 => (usual(), wait()).prop_map(|((key, mode), wait)| Verb::Acquire(key, mode, wait, None)),
        4 => usual().prop_map(|(key, mode)| Verb::Enqueue(key, mode, None)),
        4 => (2..16_usize, wait()).prop_map(|(key, wait)| Verb::Wait(key, wait)),
        5 => any::<usize>().prop_map(|nth| Verb::Release(Pick::Own(nth))),
    ];
    let line = || 0..LINES;
    let op = prop_oneof![
        60 => (line(), verb).prop_map(|(conn, verb)| Op::Ask { conn, verb }),
        3 => step().prop_map(Op::Pass),
        3 => step().prop_map(Op::Turn),
        1 => line().prop_map(Op::Leave),
        2 => (line(), any::<bool>()).prop_map(|(conn, on)| Op::Detects(conn, on)),
        1 => (line(), any::<bool>()).prop_map(|(conn, on)| Op::Keeps(conn, on)),
        2 => (line(), 0..2_usize).prop_map(|(conn, id)| Op::Attach {
            conn,
            id,
            ttl: 0,
            wrong: false,
            registers: false,
        }),
    ];
    vec(op, 1..=len_max).prop_map(Script)
}

fn ttl() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 3 => 1..=30_u64, 1 => Just(1_000)]
}

/// Each key is mostly used as one kind, so that refusals of kind stay the exception.
fn key_and_mode() -> impl Strategy<Value = (usize, Mode)> {
    let lock = Mode::Slot { limit: 1 };
    let usual = prop_oneof![
        4 => Just((0, lock)),
        2 => Just((0, Mode::Lead)),
        5 => Just((1, Mode::Read)),
        3 => Just((1, Mode::Write)),
        4 => Just((2, Mode::Slot { limit: 2 })),
        1 => Just((3, lock)),
        1 => Just((3, Mode::Slot { limit: 3 })),
    ];
    let any_mode = prop_oneof![
        Just(lock),
        Just(Mode::Lead),
        Just(Mode::Read),
        Just(Mode::Write),
        Just(Mode::Slot { limit: 2 }),
    ];
    prop_oneof![20 => usual, 1 => (0..KEYS.len(), any_mode)]
}

fn verb([of_locks, of_values, of_news]: [u32; 3]) -> impl Strategy<Value = Verb> {
    let key = || 0..KEYS.len();
    let name = || 0..NAMES.len();
    let pattern = || prop_oneof![3 => 0..6_u16, 2 => 0..2_048_u16];
    let channel = || prop_oneof![3 => 0..3_u16, 2 => 0..2_048_u16];
    let end = || prop_oneof![Just(End::Left), Just(End::Right)];
    let locks = prop_oneof![
        30 => (key_and_mode(), wait(), lease())
            .prop_map(|((key, mode), wait, lease)| Verb::Acquire(key, mode, wait, lease)),
        25 => (key_and_mode(), lease()).prop_map(|((key, mode), lease)| Verb::Enqueue(key, mode, lease)),
        25 => (0..16_usize, wait()).prop_map(|(key, wait)| Verb::Wait(key, wait)),
        25 => pick().prop_map(Verb::Release),
        20 => (pick(), lease()).prop_map(|(pick, lease)| Verb::Renew(pick, lease)),
        8 => (pick(), lease()).prop_map(|(pick, lease)| Verb::Reclaim(pick, lease)),
        6 => pick().prop_map(Verb::Resign),
        8 => key().prop_map(Verb::Position),
        6 => key().prop_map(Verb::Observe),
        2 => key().prop_map(Verb::Unobserve),
    ];
    let number = prop_oneof![8 => -3..=3_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let values = prop_oneof![
        4 => (name(), number.clone()).prop_map(|(name, by)| Verb::Add(name, by)),
        2 => name().prop_map(Verb::Count),
        2 => (name(), number).prop_map(|(name, to)| Verb::SetCount(name, to)),
        3 => (name(), 0..3_u8, ttl()).prop_map(|(name, value, ttl)| Verb::Put(name, value, ttl)),
        2 => name().prop_map(Verb::Fetch),
        2 => name().prop_map(Verb::Delete),
        3 => (name(), 0..4_u8, 0..3_u8, ttl())
            .prop_map(|(name, old, new, ttl)| Verb::Swap(name, old, new, ttl)),
        4 => (name(), end(), 0..3_u8).prop_map(|(name, end, value)| Verb::Push(name, end, value)),
        2 => (name(), end()).prop_map(|(name, end)| Verb::Pop(name, end)),
        4 => (name(), end(), wait()).prop_map(|(name, end, wait)| Verb::AwaitPop(name, end, wait)),
        1 => name().prop_map(Verb::Length),
        1 => (name(), -3..3_i64, -3..3_i64).prop_map(|(name, from, to)| Verb::Part(name, from, to)),
        4 => (name(), 1..4_u32, wait()).prop_map(|(name, count, wait)| Verb::Meet(name, count, wait)),
    ];
    let news = prop_oneof![
        4 => (pattern(), 0..4_u8).prop_map(|(pattern, group)| Verb::Listen(pattern, group)),
        1 => (pattern(), 0..4_u8).prop_map(|(pattern, group)| Verb::Unlisten(pattern, group)),
        6 => channel().prop_map(Verb::Signal),
        4 => pattern().prop_map(Verb::Watch),
        1 => pattern().prop_map(Verb::Unwatch),
    ];
    prop_oneof![
        of_locks => locks.boxed(),
        of_values => values.boxed(),
        of_news => news.boxed(),
    ]
    .boxed()
}

fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 6 => 1..=12_u64, 3 => 13..=50_u64, 1 => Just(Millis::MAX.0)]
}

fn lease() -> impl Strategy<Value = Option<u64>> {
    let ms = prop_oneof![4 => 1..=12_u64, 4 => 13..=50_u64, 1 => Just(10_000)];
    prop::option::weighted(0.8, ms)
}

fn pick() -> impl Strategy<Value = Pick> {
    let nth = || any::<usize>();
    prop_oneof![
        4 => nth().prop_map(Pick::Live),
        6 => nth().prop_map(Pick::Own),
        2 => nth().prop_map(Pick::Any),
        1 => nth().prop_map(Pick::WrongKey),
        1 => nth().prop_map(Pick::Forged),
        1 => nth().prop_map(Pick::Nothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..=3_u64).prop_map(|ms| Step::For(ms * MS)),
        2 => (1..3 * MS).prop_map(Step::For),
        2 => (4..=25_u64).prop_map(|ms| Step::For(ms * MS)),
        1 => Just(Step::For(100 * MS)),
        6 => Just(Step::ToNext(0)),
        2 => Just(Step::ToNext(1)),
    ]
}
