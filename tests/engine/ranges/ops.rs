//! What can happen in a case, and how likely it is. Few bytes and few clients, so that everybody meets
//! everybody.

use std::fmt;

use latchd::base::Millis;
use proptest::collection::vec;
use proptest::prelude::*;

use super::naive::BYTES;

pub const CONNS: usize = 6;
pub const RESOURCES: usize = 3;
pub const KEYS: usize = 2;
pub const CLIENTS: usize = 2;
pub const NAMES: usize = 3;

/// How many there may be; 0 is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    pub of_resource: u32,
    pub of_client: u32,
    pub of_all: u32,
    pub waiters: u32,
}

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

/// The first byte and the last one; the last of all stands for everything from there to the end.
pub type Bytes = (usize, usize);

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Lock {
        conn: usize,
        resource: usize,
        exclusive: bool,
        bytes: Bytes,
        wait: Millis,
        name: usize,
    },
    Unlock {
        conn: usize,
        resource: usize,
        bytes: Bytes,
        name: usize,
    },
    /// With just what somebody waits for, on a connection of the same client that may ask.
    Cancel {
        nth: usize,
        unlocks: bool,
    },
    Test {
        conn: usize,
        resource: usize,
        exclusive: bool,
        bytes: Bytes,
        name: usize,
    },
    Acquire {
        conn: usize,
        key: usize,
        wait: Millis,
    },
    Release {
        key: usize,
        nth: usize,
    },
    Attach {
        conn: usize,
        client: usize,
        ttl: Millis,
    },
    Detach {
        conn: usize,
        client: usize,
    },
    Leave {
        conn: usize,
    },
    Break {
        resource: usize,
        bytes: Bytes,
    },
    /// Of a client, or of what one of the connections has of its own.
    BreakOf {
        client: Option<usize>,
        nth: usize,
    },
    /// So many tenths of a second.
    Pass(u32),
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let part = (0..BYTES - 1, 0..5_usize);
    let part = part.prop_map(|(first, more)| (first, (first + more).min(BYTES - 2)));
    let to_end = (0..BYTES).prop_map(|first| (first, BYTES - 1));
    prop_oneof![8 => part, 1 => to_end]
}

fn wait() -> impl Strategy<Value = Millis> {
    let waits = [0, 250, 1_000, 30_000, 30_000];
    (0..waits.len()).prop_map(move |nth| Millis(waits[nth]))
}

fn lock(resources: usize, names: usize) -> impl Strategy<Value = Op> {
    let who = (0..CONNS, 0..resources, 0..names);
    (who, any::<bool>(), bytes(), wait()).prop_map(
        |((conn, resource, name), exclusive, bytes, wait)| Op::Lock {
            conn,
            resource,
            exclusive,
            bytes,
            wait,
            name,
        },
    )
}

fn unlock(resources: usize, names: usize) -> impl Strategy<Value = Op> {
    let all = (0, BYTES - 1);
    let bytes = prop_oneof![2 => bytes(), 1 => Just(all)];
    (0..CONNS, 0..resources, bytes, 0..names).prop_map(|(conn, resource, bytes, name)| Op::Unlock {
        conn,
        resource,
        bytes,
        name,
    })
}

fn test(resources: usize, names: usize) -> impl Strategy<Value = Op> {
    let who = (0..CONNS, 0..resources, 0..names);
    (who, any::<bool>(), bytes()).prop_map(|((conn, resource, name), exclusive, bytes)| Op::Test {
        conn,
        resource,
        exclusive,
        bytes,
        name,
    })
}

fn attach() -> impl Strategy<Value = Op> {
    let ttls = [0, 300, 60_000];
    (0..CONNS, 0..CLIENTS, 0..ttls.len()).prop_map(move |(conn, client, ttl)| Op::Attach {
        conn,
        client,
        ttl: Millis(ttls[ttl]),
    })
}

fn break_of() -> impl Strategy<Value = Op> {
    let client = prop_oneof![Just(None), (0..CLIENTS).prop_map(Some)];
    (client, 0..CONNS).prop_map(|(client, nth)| Op::BreakOf { client, nth })
}

/// Two resources; most connections are for themselves.
pub fn plain(len: usize) -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        20 => lock(2, 2),
        12 => unlock(2, 2),
        3 => (0..9_usize, any::<bool>()).prop_map(|(nth, unlocks)| Op::Cancel { nth, unlocks }),
        2 => test(2, 2),
        2 => (0..CONNS).prop_map(|conn| Op::Leave { conn }),
        2 => attach(),
        1 => (0..CONNS, 0..CLIENTS).prop_map(|(conn, client)| Op::Detach { conn, client }),
        1 => (0..2_usize, bytes()).prop_map(|(resource, bytes)| Op::Break { resource, bytes }),
        1 => break_of(),
        2 => (1..15_u32).prop_map(Op::Pass),
    ];
    vec(op, 1..len).prop_map(Script)
}

/// Many who hold and wait for much at once.
pub fn tangle(len: usize) -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        24 => lock(RESOURCES, NAMES),
        6 => unlock(RESOURCES, NAMES),
        8 => (0..CONNS, 0..KEYS, wait()).prop_map(|(conn, key, wait)| Op::Acquire { conn, key, wait }),
        2 => (0..KEYS, 0..4_usize).prop_map(|(key, nth)| Op::Release { key, nth }),
        1 => (0..9_usize, any::<bool>()).prop_map(|(nth, unlocks)| Op::Cancel { nth, unlocks }),
        1 => (0..CONNS).prop_map(|conn| Op::Leave { conn }),
        1 => break_of(),
        3 => attach(),
        1 => (1..4_u32).prop_map(Op::Pass),
    ];
    vec(op, 1..len).prop_map(Script)
}

pub fn limits() -> impl Strategy<Value = Limits> {
    let limits = (0..2_u32, 3..6_u32, 2..5_u32, 4..9_u32, 0..4_u32).prop_map(
        |(are_set, of_resource, of_client, of_all, waiters)| Limits {
            of_resource: are_set * of_resource,
            of_client: are_set * of_client,
            of_all: are_set * of_all,
            waiters,
        },
    );
    prop_oneof![Just(Limits::default()), limits]
}
