//! The engine alone, with a clock of its own and the few questions that tests of crowds ask.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Input, Mode, Reply, Request};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, Rules};

/// What the engine may spend on one turn here: about as much as the server lets it.
pub const WORK: u64 = 1_000_000;

/// Most leases or departures that fit into it, because none costs less than this many units.
pub const SLICE_MAX: u64 = WORK / 100;

pub const LOCK: Mode = Mode::Slot { limit: 1 };

/// An engine with a clock of its own and the few questions that crowds ask.
pub struct Table {
    pub engine: Engine,
    pub now: Nanos,
    pub out: Effects,
}

impl Table {
    pub fn new() -> Self {
        Self::with(Rules::default())
    }

    pub fn with(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            now: Nanos(1),
            out: Effects::new(),
        }
    }

    /// What is said to anyone because of this request.
    pub fn ask(&mut self, client: u32, request: Request<'_>) -> &[Effect] {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Request(id(client), request), &mut self.out);
        &self.out
    }

    /// The one answer to a request that nobody else hears of.
    pub fn answer(&mut self, client: u32, request: Request<'_>) -> Reply {
        match self.ask(client, request) {
            [Effect::Reply(to, reply)] if *to == id(client) => reply.clone(),
            other => panic!("{other:?} instead of one answer"),
        }
    }

    pub fn grant(&mut self, client: u32, key: &[u8], mode: Mode, lease: Millis) -> Token {
        let wait = Millis::ZERO;
        let lease = Some(lease);
        match self.answer(
            client,
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            },
        ) {
            Reply::Granted { token, .. } => token,
            other => panic!("{other:?} instead of a grant"),
        }
    }

    pub fn leave(&mut self, client: u32) -> &[Effect] {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Disconnected(id(client)), &mut self.out);
        &self.out
    }

    /// One turn's worth of what is due by now; how many leases it ended.
    pub fn expire(&mut self) -> u64 {
        let before = self.engine.tally().expiries;
        self.turn(WORK);
        self.engine.tally().expiries - before
    }

    /// What is due by now, as far as the work goes.
    pub fn turn(&mut self, work: u64) {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Time(work), &mut self.out);
    }

    /// Turn after turn until nothing is due.
    pub fn expire_all(&mut self) -> u64 {
        let mut ended = self.expire();
        while self.engine.next_deadline().is_some_and(|it| it <= self.now) {
            ended += self.expire();
        }
        ended
    }

    /// All clients have left: lets everything run out and looks for leftovers.
    pub fn assert_nothing_is_left(&mut self) {
        self.expire_all();
        self.now = self.now.after(Millis::from_secs(3600));
        self.expire_all();
        self.engine.check();
        assert_eq!(self.engine.counts(), Counts::default());
        assert_eq!(self.engine.next_deadline(), None);
    }
}

pub fn id(client: u32) -> ConnId {
    ConnId {
        slot: client,
        serial: client + 1,
    }
}

/// Whether somebody holds the key.
pub fn is_held(table: &Table, key: &[u8]) -> bool {
    let key = table.engine.view(table.now).key(key);
    key.is_some_and(|it| it.holder_count() > 0)
}
