//! What a seed draws about byte ranges: who locks them, for which clients, and within which limits.
//!
//! Drawn by a chance of its own, so that a seed without such clients plays the same run with and without
//! this file. Ranges begin and end at a few places only, so that they often are in each other's way;
//! between two places all bytes are alike, which makes a *cell* of them.

use fastrand::Rng;

use super::plan::pick;
use latchd::base::Millis;
use latchd::engine::types::{ByteRange, Sharing};
use latchd::engine::{GracePolicy, Rules};

/// Where ranges begin and end.
const EDGES: [u128; 8] = [
    0,
    1,
    10,
    11,
    100,
    1 << 63,
    u64::MAX as u128,
    u64::MAX as u128 + 1,
];

/// How many cells there are.
pub(super) const CELLS: usize = EDGES.len() - 1;

/// For whom clients lock; empty is for themselves.
pub(super) const OWNERS: [&str; 3] = ["", "a", "b:c"];

/// The ids of clients. Some have the same adapter.
const IDS: [&str; 5] = ["gw/1", "gw/2", "solo", "gw/é", "x/1"];

/// The secrets that they show; mostly the first.
pub(super) const SECRETS: [&str; 2] = ["sesame", "wrong"];

/// Some cells in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cells {
    pub(super) from: u8,
    /// The one behind the last.
    pub(super) to: u8,
}

impl Cells {
    /// Mostly few.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let from = rng.u8(..CELLS as u8);
        let most = CELLS as u8 - from;
        let count = *pick(rng, &[1, 1, 2, 3, CELLS as u8]);
        Self {
            from,
            to: from + count.min(most),
        }
    }

    /// The cells that these bytes are, if they are some.
    pub(super) fn of(range: ByteRange) -> Option<Self> {
        Self::between(range.start().into(), u128::from(range.last()) + 1)
    }

    /// The same from the first byte to the one behind the last.
    pub(super) fn between(start: u128, end: u128) -> Option<Self> {
        let place = |edge: u128| EDGES.iter().position(|it| *it == edge);
        Some(Self {
            from: place(start)? as u8,
            to: place(end)? as u8,
        })
    }

    /// The first byte, and the one behind the last.
    pub(super) fn bytes(self) -> (u128, u128) {
        (EDGES[usize::from(self.from)], EDGES[usize::from(self.to)])
    }

    pub(super) fn each(self) -> impl Iterator<Item = usize> {
        usize::from(self.from)..usize::from(self.to)
    }

    pub(super) fn has(self, cell: usize) -> bool {
        self.each().any(|it| it == cell)
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// `start len`; to the end is said in either way, where there are two.
    pub(super) fn spell(self, rng: &mut Rng) -> String {
        let (start, end) = self.bytes();
        let is_to_end = usize::from(self.to) == CELLS;
        match is_to_end && (start == 0 || rng.bool()) {
            true => format!("{start} 0"),
            false => format!("{start} {}", end - start),
        }
    }
}

/// Whether the two modes exclude each other, if their owners differ.
pub(super) fn excludes(a: Sharing, b: Sharing) -> bool {
    a == Sharing::Exclusive || b == Sharing::Exclusive
}

/// Clients that lock bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct RangePlan {
    /// How many there are, besides all others.
    pub(super) clients: usize,
    /// To which client each of them attaches mostly, if it does.
    pub(super) homes: Vec<Option<usize>>,
    pub(super) ids: Vec<&'static str>,
    pub(super) resources: Vec<Vec<u8>>,
    pub(super) ttls_ms: Vec<u64>,
    /// In percent, how often a wrong secret is shown, somebody waits, and an operator interferes.
    pub(super) wrong_pct: u8,
    pub(super) wait_pct: u8,
    pub(super) operator_pct: u8,
    /// In percent, how often a client leaves.
    pub(super) leave_pct: u8,
}

impl RangePlan {
    /// Some plans have none.
    pub(super) fn draw(rng: &mut Rng, think_ms: u64, is_kept: bool) -> Self {
        if rng.u8(..6) >= if is_kept { 5 } else { 3 } {
            return Self::default();
        }
        let clients = rng.usize(3..=12);
        let ids: Vec<&str> = IDS[..rng.usize(1..=IDS.len())].to_vec();
        let own_pcts = if is_kept {
            [0, 0, 20, 50]
        } else {
            [0, 20, 50, 100]
        };
        let own_pct = *pick(rng, &own_pcts);
        let homes = (0..clients).map(|_| {
            let attaches = rng.u8(..100) >= own_pct;
            attaches.then(|| rng.usize(..ids.len()))
        });
        let homes = homes.collect();
        let names: [&[u8]; 4] = [b"/srv/a.db", b"k0", b"f\xff\x01", b"long"];
        let mut resources: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).to_vec();
        resources[3].resize(256, b'x');
        resources.truncate(*pick(rng, &[1, 1, 2, 4]));
        let ttls_ms = [0, 1, think_ms, 10 * think_ms, 40 * think_ms];
        let ttls_ms = ttls_ms.into_iter().filter(|_| rng.u8(..3) != 0);
        let mut ttls_ms: Vec<u64> = ttls_ms.collect();
        ttls_ms.push(20 * think_ms);
        Self {
            clients,
            homes,
            ids,
            resources,
            ttls_ms,
            wrong_pct: *pick(rng, &[0, 0, 10]),
            wait_pct: *pick(rng, &[10, 50, 90]),
            operator_pct: *pick(rng, &[0, 1, 4]),
            leave_pct: *pick(rng, &[1, 5, 15]),
        }
    }

    /// The rules about ranges.
    pub(super) fn set_rules(&self, rng: &mut Rng, rules: &mut Rules, think_ms: u64) {
        rules.clients_per_adapter_max = *pick(rng, &[0, 0, 0, 1, 2]);
        rules.ranges_per_resource_max = *pick(rng, &[0, 0, 1_000, 2, 5]);
        rules.ranges_per_client_max = *pick(rng, &[0, 0, 10_000, 1, 4]);
        rules.ranges_max = *pick(rng, &[0, 0, 100_000, 3, 6]);
        rules.range_wait_max = Millis(*pick(rng, &[0, 60_000, think_ms, 3 * think_ms]));
        rules.grace_period = Millis(*pick(rng, &[1, 6 * think_ms, 20 * think_ms, 60 * think_ms]));
        rules.grace_policy = *pick(
            rng,
            &[GracePolicy::Held, GracePolicy::Held, GracePolicy::Strict],
        );
    }
}
