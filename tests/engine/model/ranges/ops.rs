//! What can happen in a case, and how likely it is. Few bytes and few clients, so that all meet
//! all.

use std::fmt;
use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

/// Connections with lines, and those with HTTP.
pub const LINES: Range<usize> = 0..6;
pub const WEB: Range<usize> = 6..9;
pub const CONNS: usize = WEB.end;
pub const RESOURCES: usize = 3;
pub const KEYS: usize = 3;
pub const CLIENTS: usize = 3;
pub const NAMES: usize = 3;

/// A case, which prints one operation per line.
#[derive(Clone)]
pub struct Script(pub Vec<Op>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, op) in self.0.iter().enumerate() {
            write!(f, "\n{index:4}  {op:?},")?;
        }
        Ok(())
    }
}

/// The first byte, and the length; a length of 0 has no end.
pub type Bytes = (u64, u64);

/// What is asked for about ranges.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Lock {
        exclusive: bool,
        bytes: Bytes,
        wait: u64,
    },
    Unlock {
        bytes: Bytes,
    },
    Test {
        exclusive: bool,
        bytes: Bytes,
    },
    Cancel {
        exclusive: bool,
        bytes: Bytes,
    },
    Reclaim {
        exclusive: bool,
        bytes: Bytes,
    },
}

/// An operation. Connections are counted among those that are not parked: of lines, or of HTTP
/// where that is the only way to ask.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// For the connection or the client that it is attached to; over HTTP `of` a client by its
    /// secret.
    Range {
        conn: usize,
        of: Option<usize>,
        resource: usize,
        name: usize,
        ask: Ask,
    },
    /// With just what an owner waits for, on a connection of the same client that may ask.
    Again {
        nth: usize,
        wait: Option<u64>,
    },
    /// A client reclaims pending locks.
    HaveBack {
        nth: usize,
    },
    Acquire {
        conn: usize,
        key: usize,
        writes: bool,
        wait: u64,
    },
    Enqueue {
        conn: usize,
        key: usize,
        writes: bool,
    },
    Wait {
        conn: usize,
        key: usize,
        wait: u64,
    },
    /// An HTTP owner acquires.
    AcquireBy {
        conn: usize,
        owner: usize,
        key: usize,
        wait: u64,
    },
    Release {
        nth: usize,
    },
    Attach {
        conn: usize,
        client: usize,
        ttl: u64,
    },
    Register {
        conn: usize,
        client: usize,
        ttl: u64,
    },
    Detach {
        conn: usize,
        client: usize,
    },
    Hello {
        conn: usize,
    },
    Detect {
        conn: usize,
        detects: bool,
    },
    /// The peer of any connection hangs up.
    HangUp {
        slot: usize,
    },
    Leave {
        slot: usize,
    },
    Break {
        resource: usize,
        bytes: Option<Bytes>,
    },
    BreakOf {
        client: Option<usize>,
        nth: usize,
    },
    BreakKey {
        key: usize,
    },
    Grace {
        ends: bool,
    },
    ReclaimDone {
        conn: usize,
        client: usize,
        shows: bool,
    },
    /// Memory or the disk is full, or not any more.
    Full {
        disk: bool,
        full: bool,
    },
    /// From now on the disk takes its time, or not any more.
    Slow(bool),
    /// Milliseconds that pass.
    Pass(u64),
    Restart {
        may_have_lost: bool,
    },
    /// Shutdown begins.
    Drain,
    /// A client comes and leaves again.
    Visit {
        client: usize,
        ttl: u64,
    },
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => (0..11_u64, 1..6_u64),
        1 => (0..12_u64, Just(0_u64)),
        1 => (u64::MAX - 3..=u64::MAX, 0..4_u64),
    ]
}

fn wait() -> impl Strategy<Value = u64> {
    let waits = [0, 250, 1_000, 30_000, 30_000];
    (0..waits.len()).prop_map(move |nth| waits[nth])
}

/// `of` a client, once in `seldom` times.
fn of(seldom: usize) -> impl Strategy<Value = Option<usize>> {
    (0..CLIENTS * seldom).prop_map(|it| (it < CLIENTS).then_some(it))
}

fn ask(
    names: usize,
    of_client: usize,
    ask: impl Strategy<Value = Ask>,
) -> impl Strategy<Value = Op> {
    let place = (0..CONNS, of(of_client), 0..RESOURCES, 0..names);
    (place, ask).prop_map(|((conn, of, resource, name), ask)| Op::Range {
        conn,
        of,
        resource,
        name,
        ask,
    })
}

fn lock() -> impl Strategy<Value = Ask> {
    (any::<bool>(), bytes(), wait()).prop_map(|(exclusive, bytes, wait)| Ask::Lock {
        exclusive,
        bytes,
        wait,
    })
}

fn unlock() -> impl Strategy<Value = Ask> {
    prop_oneof![2 => bytes(), 1 => Just((0, 0))].prop_map(|bytes| Ask::Unlock { bytes })
}

fn other() -> impl Strategy<Value = Ask> {
    (any::<bool>(), bytes(), 0..3).prop_map(|(exclusive, bytes, which)| match which {
        0 => Ask::Test { exclusive, bytes },
        1 => Ask::Cancel { exclusive, bytes },
        _ => Ask::Reclaim { exclusive, bytes },
    })
}

fn again() -> impl Strategy<Value = Op> {
    (0..18_usize, prop_oneof![Just(None), wait().prop_map(Some)])
        .prop_map(|(nth, wait)| Op::Again { nth, wait })
}

fn ttl() -> impl Strategy<Value = u64> {
    let ttls = [0, 300, 2_000, 60_000, 120_000];
    (0..ttls.len()).prop_map(move |nth| ttls[nth])
}

fn sessions() -> impl Strategy<Value = Op> {
    let place = (0..CONNS, 0..CLIENTS);
    // One that is registered for no time at all, and waits, may be forgotten just before its wait
    // ends or just after: both are over at one instant.
    let some_time = ttl().prop_map(|ttl| ttl.max(300));
    prop_oneof![
        6 => (place.clone(), ttl()).prop_map(|((conn, client), ttl)| Op::Attach { conn, client, ttl }),
        2 => (place.clone(), some_time).prop_map(|((conn, client), ttl)| Op::Register { conn, client, ttl }),
        1 => place.prop_map(|(conn, client)| Op::Detach { conn, client }),
        3 => (0..CONNS).prop_map(|conn| Op::Hello { conn }),
        1 => (0..CONNS, any::<bool>()).prop_map(|(conn, detects)| Op::Detect { conn, detects }),
        1 => (0..CONNS).prop_map(|slot| Op::HangUp { slot }),
        4 => (0..CONNS).prop_map(|slot| Op::Leave { slot }),
    ]
}

fn breaks() -> impl Strategy<Value = Op> {
    prop_oneof![
        (
            0..RESOURCES,
            prop_oneof![Just(None), bytes().prop_map(Some)]
        )
            .prop_map(|(resource, bytes)| Op::Break { resource, bytes }),
        (
            prop_oneof![Just(None), (0..CLIENTS).prop_map(Some)],
            0..CONNS
        )
            .prop_map(|(client, nth)| Op::BreakOf { client, nth }),
        (0..KEYS).prop_map(|key| Op::BreakKey { key }),
    ]
}

fn keys() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..CONNS, 0..KEYS, any::<bool>(), wait())
            .prop_map(|(conn, key, writes, wait)| Op::Acquire { conn, key, writes, wait }),
        1 => (0..CONNS, 0..KEYS, any::<bool>())
            .prop_map(|(conn, key, writes)| Op::Enqueue { conn, key, writes }),
        1 => (0..CONNS, 0..KEYS, wait()).prop_map(|(conn, key, wait)| Op::Wait { conn, key, wait }),
        1 => (0..CONNS, 0..2_usize, 0..KEYS, wait())
            .prop_map(|(conn, owner, key, wait)| Op::AcquireBy { conn, owner, key, wait }),
        3 => (0..4_usize).prop_map(|nth| Op::Release { nth }),
    ]
}

fn full() -> impl Strategy<Value = Op> {
    (any::<bool>(), any::<bool>()).prop_map(|(disk, full)| Op::Full { disk, full })
}

fn pass() -> impl Strategy<Value = Op> {
    prop_oneof![3 => 0..300_u64, 2 => 300..2_500_u64, 1 => 2_500..100_000_u64].prop_map(Op::Pass)
}

/// Mostly ranges.
pub fn ranges(len: usize) -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        20 => ask(2, 6, lock()),
        10 => ask(2, 6, unlock()),
        4 => ask(2, 6, other()),
        4 => again(),
        8 => sessions(),
        2 => breaks(),
        2 => keys(),
        1 => full(),
        4 => pass(),
    ];
    let end = prop_oneof![4 => Just(Vec::new()), 1 => vec(pass(), 1..3)];
    (vec(op, 1..len), end).prop_map(|(mut script, end)| {
        if !end.is_empty() {
            script.push(Op::Drain);
            script.extend(end);
        }
        Script(script)
    })
}

/// Many sessions that hold and wait for many ranges at the same time.
pub fn tangle(len: usize) -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        24 => ask(NAMES, 5, lock()),
        5 => ask(NAMES, 5, unlock()),
        2 => again(),
        14 => keys(),
        6 => sessions(),
        1 => breaks(),
        1 => pass(),
    ];
    vec(op, 1..len).prop_map(Script)
}

/// Changes are recorded, and the server restarts.
pub fn durable(len: usize) -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        20 => ask(2, 3, lock()),
        5 => ask(2, 3, unlock()),
        5 => ask(2, 3, other()),
        6 => (0..9_usize).prop_map(|nth| Op::HaveBack { nth }),
        12 => sessions(),
        2 => breaks(),
        4 => keys(),
        1 => full(),
        2 => any::<bool>().prop_map(Op::Slow),
        2 => (0..5).prop_map(|it| Op::Grace { ends: it == 0 }),
        2 => (0..CONNS, 0..CLIENTS, any::<bool>())
            .prop_map(|(conn, client, shows)| Op::ReclaimDone { conn, client, shows }),
        5 => pass(),
        3 => (0..CLIENTS, ttl()).prop_map(|(client, ttl)| Op::Visit { client, ttl }),
        4 => (0..4).prop_map(|it| Op::Restart { may_have_lost: it == 0 }),
    ];
    vec(op, 1..len).prop_map(Script)
}
