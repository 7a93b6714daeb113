//! An engine and figures with something in them, for the tests of what is shown.

use super::super::handshakes::HandshakeFigures;
use super::super::pace::Recent;
use super::super::stats::Figures;
use super::super::turn::LongestTurn;
use super::shown::Shown;
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::{By, Effects, Input, Mode, Request};
use crate::engine::{Engine, Origin, Rules};

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

/// What a server might know of itself.
pub(super) fn shown(now: Nanos) -> Shown {
    Shown {
        now,
        is_draining: false,
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
