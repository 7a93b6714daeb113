//! The engine and the model side by side: every operation goes to both, then everything that can be
//! seen of the one is compared with the other.
//!
//! Plays the server's part as far as the engine can tell: a parked client asks nothing, a slot is
//! reused only after its client left, serials never return, time never goes back.

use latchd::base::{ConnId, Fence, Millis, Nanos, Token};
use latchd::engine::types::{Attach, Effect, Input, Push, Refusal, Reply, Request, Secret};
use latchd::engine::view::{Counts, KeyView};
use latchd::engine::{Census, Kind, Origin, Rules};

use super::naive::{Ask, Key, Model, Word};
use super::ops::{Op, Pick, Step, Verb};
use super::replay::LoggedEngine;

/// One name is too long to be stored inline.
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"a name of more than 22 bytes"];

/// Clients that connections attach to.
pub const IDS: [&str; 2] = ["gw/1", "solo"];

pub const KEYS: usize = NAMES.len();
pub const CLIENTS: usize = 5;

/// Where fences start: such that the memory of lapsed tokens, which goes by fence, wraps in a case.
const FENCE: u64 = 4096 - 20;

/// How many grants and places of a client are undone in the moment it leaves.
const UNDONE_AT_ONCE: usize = 8;

pub struct World {
    engine: LoggedEngine,
    model: Model,
    rules: Rules,
    now: Nanos,
    /// Who sits where.
    clients: [ConnId; CLIENTS],
    last_serial: u32,
    /// Every token a client was ever told, with its key.
    tokens: Vec<(usize, Token)>,
    draining: bool,
}

type Verdict = Result<(), String>;

impl World {
    pub fn new(rules: Rules) -> Self {
        let origin = || Origin {
            fence: FENCE,
            seed: [7, 9],
            salt_key: [3, 4, 5, 6],
        };
        let clients = std::array::from_fn(|slot| ConnId {
            slot: slot as u32,
            serial: slot as u32 + 1,
        });
        Self {
            engine: LoggedEngine::new(rules.clone(), origin),
            model: Model::new(rules.clone(), FENCE),
            rules,
            now: Nanos(0),
            clients,
            last_serial: CLIENTS as u32,
            tokens: Vec::new(),
            draining: false,
        }
    }

    pub fn run(&mut self, op: &Op) -> Verdict {
        match op {
            Op::Ask { client, key, verb } => match self.client_that_may_ask(*client) {
                Some(id) => self.ask(id, *key, *verb),
                None => Ok(()),
            },
            Op::Pass(step) => {
                self.pass(*step);
                Ok(())
            }
            Op::Expire => self.expire(),
            Op::Turn(step) => {
                self.pass(*step);
                self.expire()
            }
            Op::Leave { client } => self.leave(*client),
            Op::Hello {
                client,
                named,
                detects,
                keeps,
            } => self.hello(*client, *named, *detects, *keeps),
            Op::Attach { client, id } => self.attach(*client, *id),
            Op::Survey => self.survey(),
            Op::Drain => self.drain(),
        }
    }

    /// The end of every case: once all have left and time has passed, nothing may be left.
    pub fn end(&mut self) -> Verdict {
        for client in 0..CLIENTS {
            self.leave(client)?;
        }
        // What outlives those who held it runs out its lease; then the keys are idle.
        while let Some(deadline) = self.model.next_deadline() {
            self.now = self.now.max(deadline);
            self.model.now = self.now;
            self.expire()?;
        }
        self.now = self
            .now
            .after(self.rules.gc_idle_max)
            .after(self.rules.gc_interval);
        self.model.now = self.now;
        self.expire()?;
        same(
            "counts after all have left",
            self.engine.counts(),
            Counts::default(),
        )?;
        same(
            "deadline after all have left",
            self.engine.next_deadline(),
            None,
        )?;
        self.engine.replay()?;
        let tally = self.engine.tally();
        let ended = tally.releases + tally.expiries + tally.disconnects;
        same("ends and grants", ended, tally.grants)
    }

    fn client_that_may_ask(&self, nth: usize) -> Option<ConnId> {
        let free = |it: &&ConnId| !self.model.is_parked(it.serial);
        let free: Vec<_> = self.clients.iter().filter(free).collect();
        free.get(nth % free.len().max(1)).copied().copied()
    }

    fn ask(&mut self, id: ConnId, key: usize, verb: Verb) -> Verdict {
        let (key, token) = match verb {
            Verb::Release { pick, nth } | Verb::Renew { pick, nth, .. } => {
                self.pick_token(key, pick, nth)
            }
            Verb::Wait { aimed: true, .. } => {
                let tickets = self.model.tickets_of(self.model.owner_of(id.serial));
                (
                    tickets
                        .get(key % tickets.len().max(1))
                        .copied()
                        .unwrap_or(key),
                    None,
                )
            }
            _ => (key, None),
        };
        // The model knows tokens by their fence; one with another salt is nobody's.
        let fence = token
            .filter(|token| self.tokens.iter().any(|it| it.1 == *token))
            .map(|token| token.fence.0);
        let name = NAMES[key];
        let (request, ask) = match verb {
            Verb::Acquire { mode, wait, lease } => (
                Request::Acquire {
                    key: name,
                    mode,
                    wait,
                    lease,
                },
                Ask::Acquire { mode, wait, lease },
            ),
            Verb::Enqueue { mode, lease } => (
                Request::Enqueue {
                    key: name,
                    mode,
                    lease,
                },
                Ask::Enqueue { mode, lease },
            ),
            Verb::Wait { wait, .. } => (Request::Wait { key: name, wait }, Ask::Wait { wait }),
            Verb::Release { .. } => (
                Request::Release { key: name, token },
                Ask::Release { fence },
            ),
            Verb::Renew { lease, .. } => (
                Request::Renew {
                    key: name,
                    token,
                    lease,
                },
                Ask::Renew { fence, lease },
            ),
            Verb::Position => (Request::Position { key: name }, Ask::Position),
        };
        let is_put_off = self.rules.search_limits.at_once_work == 0;
        if is_put_off {
            self.expire()?;
        }
        let mut out = self.engine.apply(self.now, Input::Request(id, request));
        if is_put_off {
            out.extend(self.engine.apply(self.now, Input::Time(u64::MAX)));
        }
        self.model.ask(id.serial, key, ask);
        let answered = |it: &Effect| matches!(it, Effect::Reply(to, _) if *to == id);
        let answers = out.iter().filter(|it| answered(it)).count();
        let parked = usize::from(self.model.is_parked(id.serial));
        same("answers and parked commands", answers + parked, 1)?;
        self.compare(&out, is_put_off)
    }

    /// A token, and the key to show it for.
    fn pick_token(&self, key: usize, pick: Pick, nth: usize) -> (usize, Option<Token>) {
        let live = |it: &&(usize, Token)| self.model.holds(it.1.fence.0, it.0);
        let among: Vec<_> = match pick {
            Pick::Live | Pick::WrongKey | Pick::Forged => self.tokens.iter().filter(live).collect(),
            Pick::Latest | Pick::Any => self.tokens.iter().collect(),
            Pick::Nothing => Vec::new(),
        };
        if among.is_empty() {
            return (key, None);
        }
        let (of, token) = *match pick {
            Pick::Latest => among[among.len() - 1],
            _ => among[nth % among.len()],
        };
        match pick {
            Pick::WrongKey => ((of + 1 + nth % (KEYS - 1)) % KEYS, Some(token)),
            Pick::Forged => (
                of,
                Some(Token {
                    salt: token.salt ^ 1 << (nth % 64),
                    ..token
                }),
            ),
            _ => (of, Some(token)),
        }
    }

    fn pass(&mut self, step: Step) {
        let next = self.model.next_deadline();
        let to = match step {
            Step::For(ns) => Nanos(self.now.0 + ns),
            Step::ToNext { short_ns } => {
                Nanos(next.map_or(self.now.0, |it| it.0.saturating_sub(short_ns)))
            }
        };
        self.now = self.now.max(to);
        self.model.now = self.now;
    }

    fn expire(&mut self) -> Verdict {
        let out = self.engine.apply(self.now, Input::Time(u64::MAX));
        self.model.expire();
        self.compare(&out, true)?;
        let next = self.engine.next_deadline();
        same("work is left", next.is_some_and(|it| it <= self.now), false)
    }

    /// The client goes, and another takes its slot.
    fn leave(&mut self, client: usize) -> Verdict {
        let id = self.clients[client];
        // Whoever leaves with very much is undone in parts, as time passes. Then nothing else may be
        // due, since the model undoes all of it at once.
        let things = self.model.things_of(id.serial);
        let home = self.model.leaves_with(id.serial);
        let of_client = home.map_or(0, |home| self.model.things_of(home));
        let takes_time = things.max(of_client) > UNDONE_AT_ONCE;
        if takes_time {
            self.expire()?;
        }
        let mut out = self.engine.apply(self.now, Input::Disconnected(id));
        if takes_time {
            out.extend(self.engine.apply(self.now, Input::Time(u64::MAX)));
        }
        self.model.disconnect(id.serial);
        self.last_serial += 1;
        self.clients[client].serial = self.last_serial;
        self.compare(&out, takes_time)?;
        let out = self.engine.apply(self.now, Input::Disconnected(id));
        same("effects of leaving twice", out.len(), 0)?;
        same(
            "owns something after leaving",
            self.engine.owns_something(id),
            false,
        )
    }

    /// The connection attaches to a client, which leaves with its last connection.
    fn attach(&mut self, client: usize, id: usize) -> Verdict {
        let conn = self.clients[client];
        let is_attached = self.model.owner_of(conn.serial) != conn.serial;
        if is_attached || self.model.is_parked(conn.serial) || self.draining {
            return Ok(());
        }
        let attach = Attach {
            adapter: None,
            id: IDS[id],
            ttl: Millis::ZERO,
            secret: Secret(b"s"),
        };
        let out = self.engine.apply(self.now, Input::Attach(conn, attach));
        let (is_new, epoch) = (self.model.attach(conn.serial, id), self.rules.epoch);
        let reply = Reply::Attached {
            epoch,
            is_new,
            reclaim: None,
        };
        same("attached", out, vec![Effect::Reply(conn, reply)])?;
        self.compare(&[], false)
    }

    fn hello(
        &mut self,
        client: usize,
        named: bool,
        detects: Option<bool>,
        keeps: Option<bool>,
    ) -> Verdict {
        let id = self.clients[client];
        let name = named.then(|| format!("client {}", self.now.0));
        // The log outlives the name.
        let logged = name.as_deref().map(|name| &*String::leak(name.to_owned()));
        self.engine.apply(self.now, Input::Hello(id, logged));
        if let Some(detects) = detects {
            let input = Input::DetectDeadlocks(id, detects);
            self.engine.apply(self.now, input);
        }
        if let Some(keeps) = keeps {
            self.engine.apply(self.now, Input::Keep(id, keeps));
        }
        self.model.introduce(id.serial, name, detects, keeps);
        self.compare(&[], false)
    }

    /// Asks everybody who can answer where it stands, for every key.
    fn survey(&mut self) -> Verdict {
        for id in self.clients {
            for key in 0..KEYS {
                if !self.model.is_parked(id.serial) {
                    self.ask(id, key, Verb::Position)?;
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Verdict {
        if std::mem::replace(&mut self.draining, true) {
            return Ok(());
        }
        let out = self.engine.apply(self.now, Input::Drain);
        self.model.drain();
        self.compare(&out, false)
    }

    // ---- comparing ----

    fn compare(&mut self, out: &[Effect], expired: bool) -> Verdict {
        self.engine.check_at(self.now);
        let view = self.engine.view(self.now);
        let known = (0..KEYS).filter_map(|it| Some((it, view.key(NAMES[it])?)));
        let known: Vec<(usize, KeyView<'_>)> = known.collect();
        let names: Vec<usize> = known.iter().map(|it| it.0).collect();
        self.model.follow_forgetting(&names, expired)?;
        let fences = |key: KeyView<'_>| key.holders().map(|it| it.fence.0).collect();
        let fences: Vec<_> = known.iter().map(|it| (it.0, fences(it.1))).collect();
        self.model.follow_fences(&fences)?;
        for &(name, theirs) in &known {
            let ours = self.model.keys.iter().find(|it| it.name == name);
            let ours = ours.ok_or_else(|| format!("key {name} came from nowhere"))?;
            self.compare_key(ours, theirs)?;
        }
        self.compare_counts()?;
        for id in self.clients {
            let (theirs, ours) = (&self.engine, &self.model);
            let (owns, name) = (theirs.owns_something(id), theirs.name_of(id));
            same("owns something", owns, ours.owns_something(id.serial))?;
            let client = ours.client(id.serial);
            same("name", name, client.and_then(|it| it.name.as_deref()))?;
        }
        self.compare_words(out)?;
        self.model.forget_words();
        Ok(())
    }

    fn compare_key(&self, ours: &Key, theirs: KeyView<'_>) -> Verdict {
        let (now, name) = (self.now, ours.name);
        same(&format!("kind of key {name}"), theirs.kind(), ours.kind)?;
        let called = |serial| self.model.client(serial).and_then(|it| it.name.as_deref());
        let shown = |client| {
            let (serial, id) = self.model.shown(client);
            (serial, id.map(|id| IDS[id]))
        };
        let held: Vec<_> = theirs
            .holders()
            .map(|it| {
                (
                    it.fence.0,
                    (it.conn.map_or(0, |it| it.serial), it.client),
                    it.name,
                    it.hold,
                    it.age_ns,
                    it.lease_left_ns,
                )
            })
            .collect();
        let expected: Vec<_> = ours
            .holders
            .iter()
            .map(|it| {
                let (age, left) = (now.since(it.since), it.deadline.since(now));
                let name = called(it.client);
                (it.fence, shown(it.client), name, it.hold, age, left)
            })
            .collect();
        same(&format!("holders of key {name}"), held, expected)?;
        let line: Vec<_> = theirs
            .waiters()
            .map(|it| ((it.conn.serial, it.client), it.name, it.hold, it.age_ns))
            .collect();
        let expected: Vec<_> = ours
            .waiters
            .iter()
            .map(|it| {
                let (serial, id) = shown(it.client);
                let conn = match it.until {
                    Some(_) => it.conn,
                    None => serial,
                };
                ((conn, id), called(conn), it.hold, now.since(it.since))
            })
            .collect();
        same(&format!("line of key {name}"), line, expected)?;
        let (holders, waiters) = (ours.holders.len() as u32, ours.waiters.len() as u32);
        same("holder count", theirs.holder_count(), holders)?;
        same("waiter count", theirs.waiter_count(), waiters)
    }

    fn compare_counts(&self) -> Verdict {
        let Self { engine, model, .. } = self;
        let counts = engine.counts();
        let holders: usize = model.keys.iter().map(|it| it.holders.len()).sum();
        let running = holders + model.parked_count() + model.expired_ticket_count();
        // One more may run for collection; it runs on when the last idle key is used again.
        let spare = counts.timers.wrapping_sub(running);
        same("timers that nobody needs", spare.saturating_sub(1), 0)?;
        let expected = Counts {
            keys: model.keys.len(),
            others: 0,
            subscriptions: 0,
            patterns: 0,
            holders,
            waiters: model.keys.iter().map(|it| it.waiters.len()).sum(),
            tickets: model.ticket_count(),
            owners: model.clients.len() + model.attached.len(),
            clients: { model.attached.iter() }
                .filter(|it| model.is_here(it.number))
                .count(),
            connections: model.clients.iter().filter(|it| it.here).count(),
            timers: counts.timers,
        };
        same("counts", counts, expected)?;
        same("tally", engine.tally(), model.tally)?;
        let deadlocks = engine.figures().deadlocks();
        same("deadlocks", deadlocks, model.deadlocks)?;
        if self.rules.deadlock_detection {
            same("stuck for ever", vec![], model.stuck())?;
        }
        let wakes_late = model
            .next_deadline()
            .is_some_and(|ours| engine.next_deadline().is_none_or(|theirs| theirs > ours));
        same("wakes late", wakes_late, false)?;

        let view = engine.view(self.now);
        let (mut in_use, mut idle) = (Census::default(), Census::default());
        for key in &model.keys {
            let kind = match key.kind {
                Kind::Slots { limit: 1 } => Census::LOCKS,
                Kind::Slots { .. } => Census::SEMAPHORES,
                Kind::ReadWrite => Census::RW_LOCKS,
            };
            let which = if key.idle_since.is_some() {
                &mut idle
            } else {
                &mut in_use
            };
            which.0[kind] += 1;
        }
        same("keys in use", view.in_use_census(), in_use)?;
        same("idle keys", view.idle_census(), idle)?;
        let mut longest = u64::MAX;
        for (key, idle_ns) in view.idle() {
            let ours = model.keys.iter().find(|it| NAMES[it.name] == key.key());
            let since = ours
                .and_then(|it| it.idle_since)
                .map(|at| self.now.since(at));
            same("idle time", Some(idle_ns), since)?;
            same("order of idle keys", idle_ns <= longest, true)?;
            longest = idle_ns;
        }
        Ok(())
    }

    /// To each client the same words in the same order; only what was decided at one instant may
    /// come in another order, as an answer and a push do not wait for each other.
    fn compare_words(&mut self, out: &[Effect]) -> Verdict {
        let mut theirs: Vec<(u32, Word)> = Vec::new();
        for effect in out {
            theirs.push(match effect {
                Effect::Reply(id, reply) => (id.serial, self.hear(reply)?),
                Effect::Push(id, Push::Lost { key, fence, .. }) => {
                    let key = NAMES.iter().position(|it| *it == key.as_bytes());
                    let lost = Word::Lost {
                        key: key.ok_or("news of an unknown key")?,
                        fence: fence.0,
                    };
                    (id.serial, lost)
                }
                other => return Err(format!("nobody asked for {other:?}")),
            });
        }
        for id in theirs.iter().map(|it| it.0) {
            let here = self.clients.iter().any(|it| it.serial == id);
            same("speaks to somebody who left", !here, false)?;
        }
        for id in self.clients {
            let theirs = theirs.iter().filter(|it| it.0 == id.serial);
            let theirs: Vec<Word> = theirs.map(|it| it.1).collect();
            let ours = self.model.said.iter().filter(|it| it.client == id.serial);
            let ours: Vec<_> = ours.map(|it| (it.moment, it.word)).collect();
            // Both in the order of instants, and within one instant sorted.
            let moments = ours
                .iter()
                .map(|it| Some(it.0))
                .chain(std::iter::repeat(None));
            let mut theirs: Vec<_> = moments.zip(theirs).collect();
            let mut ours: Vec<_> = ours.into_iter().map(|it| (Some(it.0), it.1)).collect();
            theirs.sort();
            ours.sort();
            same(&format!("words to client {}", id.serial), theirs, ours)?;
        }
        Ok(())
    }

    /// Translates an answer, and remembers its token.
    fn hear(&mut self, reply: &Reply) -> Result<Word, String> {
        if let &(Reply::Granted { token, .. } | Reply::Acquired { token, .. }) = reply {
            let Token { fence, .. } = token;
            let known = self.tokens.iter().find(|it| it.1.fence == fence);
            if let Some((_, known)) = known {
                same("token", token.salt, known.salt)?;
            } else {
                let key = self.model.keys.iter().map(|it| it.name);
                let key = key.into_iter().find(|it| self.model.holds(fence.0, *it));
                self.tokens.push((key.ok_or("a token for nothing")?, token));
            }
        }
        let ms = |lease: Millis| lease.0;
        Ok(match *reply {
            Reply::Granted { token, lease } => Word::Granted {
                fence: token.fence.0,
                lease_ms: ms(lease),
            },
            Reply::Acquired { token, lease } => Word::Acquired {
                fence: token.fence.0,
                lease_ms: ms(lease),
            },
            Reply::Queued => Word::Queued,
            Reply::Renewed {
                lease,
                fence: Fence(fence),
            } => Word::Renewed {
                fence,
                lease_ms: ms(lease),
            },
            Reply::Done => Word::Released,
            Reply::Number(before) => Word::Position(before as u32),
            Reply::Nothing => Word::NoPosition,
            Reply::TimedOut => Word::TimedOut,
            Reply::Refused(why) => Word::Refused(refusal_word(why)),
            ref other => return Err(format!("nobody asked for {other:?}")),
        })
    }
}

/// Engine first, model second.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Verdict {
    if engine == model {
        Ok(())
    } else {
        Err(format!("{what}:\n  engine {engine:?}\n  model  {model:?}"))
    }
}

/// A refusal by name, so that words can be sorted.
pub fn refusal_word(why: Refusal) -> &'static str {
    match why {
        Refusal::NotHolder => "not holder",
        Refusal::TypeMismatch => "type mismatch",
        Refusal::LimitMismatch => "limit mismatch",
        Refusal::MaxLocks => "max locks",
        Refusal::MaxWaiters => "max waiters",
        Refusal::NotEnqueued => "not enqueued",
        Refusal::AlreadyEnqueued => "already enqueued",
        Refusal::LeaseExpired => "lease expired",
        Refusal::Draining => "draining",
        Refusal::Deadlock => "deadlock",
        _ => "of another primitive",
    }
}
