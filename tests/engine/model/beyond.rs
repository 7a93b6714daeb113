//! Beyond every quantum: hundreds of holds per client on one key, and the model as the judge.
//!
//! The engine works in slices, so it is compared after it has come to rest. By then each connection
//! must have got the effects that the model expects; the order among connections is open. One key
//! only, because between keys the order of fences is then open.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Input, Mode, Reply, Request};
use latchd::engine::{Engine, Origin, Rules};
use proptest::collection::vec;
use proptest::prelude::*;

use super::world::{same, same_holders};

use latchd_model::Model;

const KEY: &[u8] = b"pool";
const CLIENTS: usize = 4;

/// What a client does, `count` times in a row where that makes sense.
#[derive(Clone, Debug)]
enum Op {
    Acquire {
        client: usize,
        write: bool,
        lease: u64,
        count: u32,
    },
    AcquireOrWait {
        client: usize,
        write: bool,
        wait: u64,
        lease: u64,
    },
    Enqueue {
        client: usize,
        write: bool,
        lease: u64,
    },
    Wait {
        client: usize,
        wait: u64,
    },
    /// Of all tokens that were told, from this one on.
    Renew {
        nth: usize,
        lease: u64,
        count: u32,
    },
    Release {
        nth: usize,
        count: u32,
    },
    Position {
        client: usize,
    },
    Leave {
        client: usize,
    },
    /// Time passes without a turn of the engine.
    Pass {
        ms: u64,
    },
    /// The engine does all due work, in turns with this work budget.
    Turns {
        work: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let lease = || prop_oneof![4 => 1..=9_u64, 2 => Just(20), 1 => Just(1_000)];
    let wait = || prop_oneof![1 => Just(0), 4 => 1..=9_u64];
    let count = || prop_oneof![2 => 1..=5_u32, 3 => 60..=200_u32];
    let write = || prop::bool::weighted(0.1);
    prop_oneof![
        6 => (client(), write(), lease(), count())
            .prop_map(|(client, write, lease, count)| Op::Acquire { client, write, lease, count }),
        4 => (client(), write(), wait(), lease())
            .prop_map(|(client, write, wait, lease)| Op::AcquireOrWait { client, write, wait, lease }),
        3 => (client(), write(), lease())
            .prop_map(|(client, write, lease)| Op::Enqueue { client, write, lease }),
        3 => (client(), wait()).prop_map(|(client, wait)| Op::Wait { client, wait }),
        3 => (any::<usize>(), lease(), count())
            .prop_map(|(nth, lease, count)| Op::Renew { nth, lease, count }),
        2 => (any::<usize>(), count()).prop_map(|(nth, count)| Op::Release { nth, count }),
        2 => client().prop_map(|client| Op::Position { client }),
        1 => client().prop_map(|client| Op::Leave { client }),
        4 => (0..=9_u64).prop_map(|ms| Op::Pass { ms }),
        3 => prop_oneof![Just(0), Just(20_000), Just(u64::MAX)].prop_map(|work| Op::Turns { work }),
    ]
}

struct Pair {
    engine: Engine,
    model: Model,
    now: Nanos,
    /// How many may hold at once, or readers and writers if 0.
    limit: u32,
    clients: [ConnId; CLIENTS],
    last_serial: u32,
    tokens: Vec<Token>,
    heard: Effects,
    put_off: u32,
}

type Verdict = Result<(), String>;

impl Pair {
    fn new(limit: u32, waiters_per_key_max: u32) -> Self {
        let rules = Rules {
            waiters_per_key_max,
            ..Rules::default()
        };
        let origin = Origin {
            fence: 0,
            seed: [7, 9],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules.clone(), origin),
            model: Model::new(rules, 0),
            now: Nanos(0),
            limit,
            clients: std::array::from_fn(|slot| ConnId {
                slot: slot as u32,
                serial: slot as u32 + 1,
            }),
            last_serial: CLIENTS as u32,
            tokens: Vec::new(),
            heard: Effects::new(),
            put_off: 0,
        }
    }

    fn run(&mut self, op: &Op) -> Verdict {
        let lease_of = |lease: u64| Some(Millis(lease));
        match *op {
            Op::Acquire {
                client,
                write,
                lease,
                count,
            } => {
                let (mode, wait, lease) = (self.mode(write), Millis::ZERO, lease_of(lease));
                for _ in 0..count {
                    self.ask(client, acquire(mode, wait, lease))?;
                }
            }
            Op::AcquireOrWait {
                client,
                write,
                wait,
                lease,
            } => {
                // A request that waits joins the queue even if leases are still to be ended.
                self.settle(u64::MAX)?;
                let (mode, wait, lease) = (self.mode(write), Millis(wait), lease_of(lease));
                self.ask(client, acquire(mode, wait, lease))?;
            }
            Op::Enqueue {
                client,
                write,
                lease,
            } => {
                let (mode, lease) = (self.mode(write), lease_of(lease));
                let key = KEY;
                self.ask(client, Request::Enqueue { key, mode, lease })?;
            }
            Op::Wait { client, wait } => {
                if wait > 0 {
                    self.settle(u64::MAX)?;
                }
                let wait = Millis(wait);
                self.ask(client, Request::Wait { key: KEY, wait })?;
            }
            Op::Renew { nth, lease, count } => {
                let lease = lease_of(lease);
                for token in self.some_tokens(nth, count) {
                    let (key, shown) = (KEY, Some(token));
                    let request = Request::Renew {
                        key,
                        token: shown,
                        lease,
                    };
                    self.ask(nth % CLIENTS, request)?;
                    if self.model.ticket_count() == self.engine.counts().tickets + 1 {
                        self.model.forget_ended_ticket(token);
                    }
                }
            }
            Op::Release { nth, count } => {
                for token in self.some_tokens(nth, count) {
                    let (key, token) = (KEY, Some(token));
                    self.ask(nth % CLIENTS, Request::Release { key, token })?;
                }
            }
            Op::Position { client } => self.ask(client, Request::Position { key: KEY })?,
            Op::Leave { client } => {
                self.settle(u64::MAX)?;
                let id = self.clients[client];
                self.apply(Input::Disconnected(id))?;
                self.model.tell(self.now, &Input::Disconnected(id));
                self.last_serial += 1;
                self.clients[client].serial = self.last_serial;
                // What it is still told was said before it left.
                self.settle(20_000)?;
            }
            Op::Pass { ms } => {
                self.now = self.now.after(Millis(ms));
            }
            Op::Turns { work } => self.settle(work)?,
        }
        // A request can be granted while leases that are over are still to be ended; they are, for
        // the model.
        match op {
            Op::Pass { .. } => Ok(()),
            _ => self.settle(u64::MAX),
        }
    }

    fn mode(&self, write: bool) -> Mode {
        match (self.limit, write) {
            (0, true) => Mode::Write,
            (0, false) => Mode::Read,
            (limit, _) => Mode::Slot { limit },
        }
    }

    fn some_tokens(&self, nth: usize, count: u32) -> Vec<Token> {
        let from = nth % self.tokens.len().max(1);
        self.tokens[from..]
            .iter()
            .take(count as usize)
            .copied()
            .collect()
    }

    /// Asks both; the engine again and again, as long as it puts the request off.
    fn ask(&mut self, client: usize, request: Request<'_>) -> Verdict {
        let id = self.clients[client];
        if self.model.is_parked(id) {
            return Ok(());
        }
        let input = Input::Request(id, request);
        self.model.tell(self.now, &input);
        let mut times = 0;
        while self.apply(input.clone())? {
            times += 1;
            if times > 100 {
                return Err("it is put off for ever".to_owned());
            }
        }
        self.put_off += times;
        Ok(())
    }

    /// Returns whether a request was put off.
    fn apply(&mut self, input: Input<'_>) -> Result<bool, String> {
        let mut out = Effects::new();
        self.engine.apply(self.now, input, &mut out);
        let before = out.len();
        out.retain(|it| !matches!(it, Effect::NotYet(_)));
        let is_put_off = out.len() < before;
        for effect in &out {
            if let Effect::Reply(_, Reply::Granted { token, .. } | Reply::Acquired { token, .. }) =
                effect
                && !self.tokens.contains(token)
            {
                self.tokens.push(*token);
            }
        }
        self.heard.extend(out);
        Ok(is_put_off)
    }

    /// Lets the engine do all due work, in turns with this work budget, and compares.
    fn settle(&mut self, work: u64) -> Verdict {
        let mut turns = 0;
        loop {
            self.apply(Input::Time(work))?;
            if turns % 16 == 0 {
                self.engine.check();
            }
            turns += 1;
            if self.engine.next_deadline().is_none_or(|it| it > self.now) {
                break;
            }
            if turns > 5_000 {
                return Err("it never comes to rest".to_owned());
            }
        }
        self.model.tell(self.now, &Input::Time(u64::MAX));
        self.compare()
    }

    fn compare(&mut self) -> Verdict {
        self.engine.check();
        let heard = std::mem::take(&mut self.heard);
        self.model.check(&heard, &[])?;
        same_holders(&self.engine, &self.model, self.now, KEY)?;
        let counts = self.engine.counts();
        same("waiters", counts.waiters, self.model.waiter_count())?;
        same("tickets", counts.tickets, self.model.ticket_count())
    }

    fn end(&mut self) -> Verdict {
        for client in 0..CLIENTS {
            self.run(&Op::Leave { client })?;
        }
        same("holders at the end", self.engine.counts().holders, 0)?;
        same("waiters at the end", self.engine.counts().waiters, 0)?;
        // One timer may run for collection.
        same("timers", self.engine.counts().timers.saturating_sub(1), 0)
    }
}

fn acquire(mode: Mode, wait: Millis, lease: Option<Millis>) -> Request<'static> {
    let key = KEY;
    Request::Acquire {
        key,
        mode,
        wait,
        lease,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Thousands of holds that lapse, are renewed, released and left behind, a quantum at a time.
    #[test]
    fn a_crowd_gets_what_the_model_gives_it_however_slowly(
        limit in prop_oneof![Just(0), Just(1), Just(90), Just(400), Just(5_000)],
        waiters_max in prop_oneof![3 => Just(0), 1 => Just(2)],
        script in vec(op(), 1..40),
    ) {
        let mut pair = Pair::new(limit, waiters_max);
        for (index, op) in script.iter().enumerate() {
            let verdict = pair.run(op);
            prop_assert!(verdict.is_ok(), "operation {}, {:?}: {}", index, op, verdict.unwrap_err());
        }
        let verdict = pair.settle(0).and_then(|()| pair.end());
        prop_assert!(verdict.is_ok(), "at the end: {}", verdict.unwrap_err());
    }
}

/// A request that would be refused for want of room is put off while leases that are over are still
/// to be ended, and decided once they are.
#[test]
fn a_request_is_put_off_while_a_crowd_of_leases_is_ended() {
    let mut pair = Pair::new(0, 0);
    let acquire = |client, write, lease, count| Op::Acquire {
        client,
        write,
        lease,
        count,
    };
    for op in [
        acquire(0, false, 5, 150),
        acquire(1, false, 6, 150),
        Op::Pass { ms: 7 },
        acquire(2, true, 50, 1),
        Op::Turns { work: u64::MAX },
    ] {
        pair.run(&op).unwrap();
    }
    assert!((4..=6).contains(&pair.put_off), "{}", pair.put_off);
    assert_eq!(pair.engine.counts().holders, 1, "the writer");
    pair.end().unwrap();
}

/// The leases of very many readers end before a writer's wait does, and all of it is noticed late:
/// the wait is not over before all of them are ended.
#[test]
fn a_wait_does_not_end_before_a_crowd_of_leases_that_were_over_earlier() {
    for work in [0, 20_000, u64::MAX] {
        let mut pair = Pair::new(0, 0);
        let (write, lease) = (false, 5);
        for op in [
            Op::Acquire {
                client: 0,
                write,
                lease,
                count: 500,
            },
            Op::AcquireOrWait {
                client: 1,
                write: true,
                wait: 6,
                lease: 50,
            },
            Op::Pass { ms: 9 },
            Op::Turns { work },
        ] {
            pair.run(&op).unwrap();
        }
        assert_eq!(pair.engine.tally().grants, 501, "the writer waited in vain");
        pair.end().unwrap();
    }
}

/// A request that is put off ends some of the leases. The writer whose wait was over after all of
/// them is granted once the rest has ended, too.
#[test]
fn a_request_that_ends_some_of_a_crowd_of_leases_ends_no_later_wait() {
    let mut pair = Pair::new(0, 0);
    let acquire = |client, count| Op::Acquire {
        client,
        write: false,
        lease: 1,
        count,
    };
    let wait = |client, write, wait| Op::AcquireOrWait {
        client,
        write,
        wait,
        lease: 1,
    };
    for op in [
        acquire(3, 160),
        wait(3, true, 2),
        wait(0, false, 3),
        Op::Pass { ms: 3 },
        acquire(0, 1),
    ] {
        pair.run(&op).unwrap();
    }
    assert_eq!(pair.engine.tally().grants, 161, "the writer waited in vain");
    pair.end().unwrap();
}

/// The leases of a crowd are over, and the engine has had no turn yet. They are renewed one after
/// the other, and each renewal ends only some of them. So the lease of an enqueue is still there
/// when its own renewal comes. That renewal reports the end, and nothing is left to wait for.
#[test]
fn a_renewal_finds_the_lease_of_an_enqueue_over_behind_a_crowd() {
    let (client, write, wait) = (0, false, 0);
    let acquire = |lease, count| Op::Acquire {
        client,
        write,
        lease,
        count,
    };
    let mut pair = Pair::new(400, 0);
    for op in [
        acquire(6, 161),
        acquire(1, 97),
        Op::AcquireOrWait {
            client,
            write,
            wait,
            lease: 3,
        },
        acquire(1, 1),
        acquire(1, 3),
        Op::Pass { ms: 0 },
        Op::Enqueue {
            client,
            write,
            lease: 6,
        },
        Op::Pass { ms: 2 },
        Op::Pass { ms: 4 },
        Op::Renew {
            nth: 11_025_924_097_148_642_249,
            lease: 1,
            count: 103,
        },
        Op::Wait { client, wait },
    ] {
        pair.run(&op).unwrap();
    }
    pair.end().unwrap();
}
