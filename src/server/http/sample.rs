//! An engine and figures with something in them, for the tests of what is shown.

use super::super::handshakes::HandshakeFigures;
use super::super::pace::Recent;
use super::super::stats::Figures;
use super::super::turn::LongestTurn;
use super::shown::Shown;
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::{By, Effects, Input, Mode, Request};
use crate::engine::{Engine, Origin, Rules};
use crate::histogram::{Histogram, Percentiles};
use crate::shard::Shard;
use crate::store::{ClusterShown, Redirect};

/// What time it is.
pub(super) const NOW: Nanos = Nanos(90_000_000_000);

/// A lock table and its clients.
pub(super) struct Sample {
    pub(super) engine: Engine,
    pub(super) now: Nanos,
}

/// The connection with this number.
pub(super) fn conn(number: u32) -> ConnId {
    ConnId {
        slot: number - 1,
        serial: number,
    }
}

/// A request to hold something.
pub(super) fn acquire(key: &[u8], mode: Mode, wait: Millis) -> Request<'_> {
    Request::Acquire {
        key,
        mode,
        wait,
        lease: Some(Millis::from_secs(600)),
    }
}

impl Sample {
    pub(super) fn new(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            now: NOW,
        }
    }

    pub(super) fn ask(&mut self, number: u32, request: Request<'_>) -> Effects {
        self.apply(Input::Request(conn(number), request))
    }

    /// The same in the name of an owner.
    pub(super) fn ask_by(&mut self, number: u32, owner: &str, request: Request<'_>) -> Effects {
        let by = By {
            owner,
            request: b"",
        };
        self.apply(Input::RequestBy(conn(number), by, request))
    }

    /// Holds so many locks, `key-0` and so on, on one connection.
    pub(super) fn hold(&mut self, number: u32, locks: usize) {
        for lock in 0..locks {
            let key = format!("key-{lock}");
            self.ask(
                number,
                acquire(key.as_bytes(), Mode::Slot { limit: 1 }, Millis::ZERO),
            );
        }
    }

    pub(super) fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut effects = Effects::new();
        self.engine.apply(self.now, input, &mut effects);
        effects
    }
}

/// What a member of a cluster might know, in this role.
pub(super) fn member(role: &'static str) -> ClusterShown {
    let percentiles = |count, p50_us, p99_us, max_us| Percentiles {
        count,
        p50_us,
        p99_us,
        max_us,
    };
    let [mut commits, mut lags] = [Histogram::default(); 2];
    for ms in [2, 2, 9] {
        commits.observe(ms * 1_000_000);
    }
    lags.observe_n(300_000, 90);
    ClusterShown {
        role,
        shard: Shard::new(1, 2).unwrap(),
        leader: Redirect {
            line: Some("10.0.0.1:6388".to_owned()),
            http: Some("http://10.0.0.1:6389".to_owned()),
        },
        epoch: 4,
        seq: 1_234,
        lag_entries: 2,
        lag: percentiles(40, 300, 2_000, 2_100),
        lags,
        behind_ns: 1_500_000,
        commit: percentiles(3, 2_000, 9_000, 9_500),
        commits,
        entry_bytes: 4_096,
        doubts: 1,
        snapshots: 5,
        etcd_bytes: 60_000_000,
        etcd_bytes_in_use: 25_000_000,
        etcd_quota_bytes: 2 << 30,
    }
}

/// What a server might know of itself.
pub(super) fn shown(now: Nanos) -> Shown {
    Shown {
        now,
        is_draining: false,
        cluster: None,
        line_port: Some(6388),
        figures: Figures {
            connections: 3,
            slow_consumers: 1,
            longest_turn: LongestTurn::default(),
            wrong_secrets: 2,
            forbidden: 5,
            memory_bytes: 180_000,
            memory_max_bytes: 1 << 30,
            epoch: 17,
            records: 9,
            records_durable: 7,
            outbox_bytes: 100,
            lost_log_lines: 4,
            handshakes: HandshakeFigures {
                open: 5,
                done: 6,
                failed: 7,
                late: 8,
            },
        },
        recent: Recent::default(),
    }
}
