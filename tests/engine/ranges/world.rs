//! The engine and the model side by side: every operation goes to both, and everything that is said and
//! everything that can be seen is compared.
//!
//! Plays the server's part: a parked connection asks nothing, a slot is used again only after its
//! connection left, time never goes back. After each operation a little time passes, so that what the
//! engine does by and by is done.

use std::collections::{BTreeMap, BTreeSet};

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{
    Attach, ByteRange, Effect, Effects, Input, Mode, Noted, RangeAsk, RangeRequest, Refusal, Reply,
    Request, Secret, Sharing, Span,
};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, Rules, Someone};

use super::naive::{BYTES, Model, Told, Who, Wish, Word};
use super::ops::{Bytes, CONNS, KEYS, Limits, NAMES, Op, RESOURCES};

const RESOURCE: [&[u8]; RESOURCES] = [b"f", b"g", b"a resource with a name that is long"];
const KEY: [&[u8]; KEYS] = [b"f", b"pool"];
const SLOTS: [u32; KEYS] = [1, 2];
const CLIENT: [&str; 2] = ["gw/0", "gw/1"];
const NAME: [&[u8]; NAMES] = [b"", b"x", b"y"];
const SECRET: Secret<'static> = Secret(b"s3cret");

/// How long passes after each operation, twice: so long those are left alone at most whom only the order
/// of a queue keeps waiting, and a little more, so that no two times end together.
const A_LITTLE: u64 = 100_001_000;

pub type Verdict = Result<(), String>;

pub struct World {
    engine: Engine,
    model: Model,
    now: Nanos,
    conns: [ConnId; CONNS],
    last_serial: u32,
}

impl World {
    pub fn new(limits: Limits) -> Self {
        let rules = Rules {
            deadlock_detection: true,
            ranges_per_resource_max: limits.of_resource,
            ranges_per_client_max: limits.of_client,
            ranges_max: limits.of_all,
            waiters_per_key_max: limits.waiters,
            lease_default: Millis::from_secs(1_000_000),
            ..Rules::default()
        };
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            model: Model::new(limits),
            now: Nanos(1),
            conns: std::array::from_fn(|slot| ConnId {
                slot: slot as u32,
                serial: slot as u32 + 1,
            }),
            last_serial: CONNS as u32,
        }
    }

    pub fn run(&mut self, op: Op) -> Verdict {
        self.model.now = self.now;
        match op {
            Op::Lock {
                conn,
                resource,
                exclusive,
                bytes,
                wait,
                name,
            } => {
                let (mode, span) = (mode(exclusive), span(bytes));
                let ask = RangeAsk::Lock { mode, span, wait };
                let wish = wish(exclusive, bytes, name);
                self.ask(conn, resource, name, ask, |model, conn| {
                    model.lock(conn, resource, wish, wait);
                })
            }
            Op::Unlock {
                conn,
                resource,
                bytes,
                name,
            } => {
                let ask = RangeAsk::Unlock { span: span(bytes) };
                self.ask(conn, resource, name, ask, |model, conn| {
                    model.unlock(conn, resource, bytes, name);
                })
            }
            Op::Cancel { nth, unlocks } => self.cancel(nth, unlocks),
            Op::Test {
                conn,
                resource,
                exclusive,
                bytes,
                name,
            } => self.test(conn, resource, wish(exclusive, bytes, name)),
            Op::Acquire { conn, key, wait } => self.acquire(conn, key, wait),
            Op::Release { key, nth } => self.release(key, nth),
            Op::Attach { conn, client, ttl } => self.attach(conn, client, ttl),
            Op::Detach { conn, client } => {
                let Some(id) = self.who_may_ask(conn) else {
                    return Ok(());
                };
                let input = Input::Detach(id, CLIENT[client], SECRET);
                self.step(input, |model| model.detach(id.serial, client))
            }
            Op::Leave { conn } => self.leave(conn),
            Op::Break { resource, bytes } => {
                let Some(id) = self.who_may_ask(0) else {
                    return Ok(());
                };
                let Span { start, len } = span(bytes);
                let range = ByteRange::new(start, len);
                let input = Input::BreakRanges(id, RESOURCE[resource], range);
                self.step(input, |model| {
                    model.break_ranges(id.serial, resource, bytes);
                })
            }
            Op::BreakOf { client, nth } => {
                let Some(id) = self.who_may_ask(0) else {
                    return Ok(());
                };
                let conn = self.conns[nth % self.conns.len()].serial;
                let (who, name) = match client {
                    Some(client) => (Who::Client(client), CLIENT[client].to_owned()),
                    None => (Who::Conn(conn), format!("#{conn}")),
                };
                let input = Input::BreakRangesOf(id, name.as_bytes());
                self.step(input, |model| model.break_ranges_of(id.serial, who))
            }
            Op::Pass(times) => {
                for _ in 0..times {
                    self.pass(A_LITTLE, true)?;
                }
                Ok(())
            }
        }
    }

    /// All have left, and every time is over: nothing may be left.
    pub fn end(&mut self) -> Verdict {
        for conn in 0..CONNS {
            self.leave(conn)?;
        }
        for _ in 0..2 {
            self.pass(Millis::from_secs(70).nanos(), true)?;
        }
        // Keys of locks are kept for a while, though nobody has them.
        let Counts { keys, timers, .. } = self.engine.counts();
        let expected = Counts {
            keys,
            timers,
            ..Counts::default()
        };
        same("counts", self.engine.counts(), expected)?;
        let ranges = self.engine.view(self.now).range_counts();
        same(
            "ranges",
            (ranges.resources, ranges.locks, ranges.waiting),
            (0, 0, 0),
        )
    }

    // ---- asking ----

    /// One of those that are not parked.
    fn who_may_ask(&self, nth: usize) -> Option<ConnId> {
        let free = |it: &&ConnId| !self.model.is_parked(it.serial);
        let free: Vec<_> = self.conns.iter().filter(free).collect();
        free.get(nth % free.len().max(1)).copied().copied()
    }

    fn ask(
        &mut self,
        conn: usize,
        resource: usize,
        name: usize,
        ask: RangeAsk,
        model: impl FnOnce(&mut Model, u32),
    ) -> Verdict {
        match self.who_may_ask(conn) {
            Some(id) => {
                let input = input(id, resource, name, ask);
                self.step(input, |it| model(it, id.serial))
            }
            None => Ok(()),
        }
    }

    fn cancel(&mut self, nth: usize, unlocks: bool) -> Verdict {
        let mut found = Vec::new();
        for (resource, queue) in self.model.queues.iter().enumerate() {
            for wait in queue {
                let is_other = |it: &&ConnId| {
                    self.model.who(it.serial) == wait.wish.who && {
                        !self.model.is_parked(it.serial)
                    }
                };
                found.extend(
                    self.conns
                        .iter()
                        .find(is_other)
                        .map(|&id| (id, resource, wait.wish)),
                );
            }
        }
        let Some(&(id, resource, wish)) = found.get(nth % found.len().max(1)) else {
            return Ok(());
        };
        let span = span(wish.bytes);
        if unlocks {
            let input = input(id, resource, wish.name, RangeAsk::Unlock { span });
            return self.step(input, |model| {
                model.unlock(id.serial, resource, wish.bytes, wish.name);
            });
        }
        let mode = mode(wish.exclusive);
        let input = input(id, resource, wish.name, RangeAsk::Cancel { mode, span });
        self.step(input, |model| model.cancel(id.serial, resource, wish))
    }

    fn test(&mut self, conn: usize, resource: usize, wish: Wish) -> Verdict {
        let Some(id) = self.who_may_ask(conn) else {
            return Ok(());
        };
        let (mode, span) = (mode(wish.exclusive), span(wish.bytes));
        let input = input(id, resource, wish.name, RangeAsk::Test { mode, span });
        let out = self.apply(input);
        let said = self.words(&out)?;
        let allowed = self.model.test(id.serial, resource, wish);
        match &said[..] {
            [(to, word)] if *to == id.serial && allowed.contains(word) => Ok(()),
            other => Err(format!("told {other:?} instead of one of {allowed:?}")),
        }
    }

    fn acquire(&mut self, conn: usize, key: usize, wait: Millis) -> Verdict {
        let Some(id) = self.who_may_ask(conn) else {
            return Ok(());
        };
        let request = Request::Acquire {
            key: KEY[key],
            mode: Mode::Slot { limit: SLOTS[key] },
            wait,
            lease: None,
        };
        self.step(Input::Request(id, request), |model| {
            model.acquire(id.serial, key, wait);
        })
    }

    fn release(&mut self, key: usize, nth: usize) -> Verdict {
        let holders = &self.model.keys[key].holders;
        let (Some(id), false) = (self.who_may_ask(nth), holders.is_empty()) else {
            return Ok(());
        };
        let holder = nth % holders.len();
        let token = holders[holder].2;
        same("a grant has a token", token.is_some(), true)?;
        let request = Request::Release {
            key: KEY[key],
            token,
        };
        self.step(Input::Request(id, request), |model| {
            model.release(id.serial, key, holder);
        })
    }

    fn attach(&mut self, conn: usize, client: usize, ttl: Millis) -> Verdict {
        let Some(id) = self.who_may_ask(conn) else {
            return Ok(());
        };
        let attach = Attach {
            adapter: None,
            id: CLIENT[client],
            ttl,
            secret: SECRET,
        };
        self.step(Input::Attach(id, attach), |model| {
            model.attach(id.serial, client, ttl);
        })
    }

    /// The connection goes, and another takes its slot.
    fn leave(&mut self, conn: usize) -> Verdict {
        let id = self.conns[conn];
        self.last_serial += 1;
        self.conns[conn].serial = self.last_serial;
        self.step(Input::Disconnected(id), |model| model.leave(id.serial))?;
        let owns = self.engine.owns_something(id);
        same("owns something after leaving", owns, false)
    }

    // ---- comparing ----

    fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut out = Effects::new();
        self.engine.apply(self.now, input, &mut out);
        self.engine.check();
        out
    }

    fn step(&mut self, input: Input<'_>, model: impl FnOnce(&mut Model)) -> Verdict {
        let in_order = matches!(input, Input::Range(..));
        let mut out = self.apply(input);
        let at_once = out.len();
        out.extend(self.apply(Input::Time(u64::MAX)));
        self.model.now = self.now;
        let mut refused = self.take_hints(&out)?;
        model(&mut self.model);
        // What is granted at once is granted in the order of the queue.
        let grants = |words: &[(u32, Word)]| -> Vec<u32> {
            let grants = words.iter().filter(|it| it.1 == Word::Done);
            grants.map(|it| it.0).collect()
        };
        let engine = grants(&self.words(&out[..at_once])?);
        let of_model = grants(&self.model.said);
        if in_order {
            same("order of grants", engine, of_model)?;
        }
        self.model.follow(&mut refused, false)?;
        self.compare(&out)?;
        self.pass(A_LITTLE, false)?;
        self.pass(A_LITTLE, true)
    }

    /// Time passes. Then nobody may be left whom only the order of a queue keeps waiting for itself.
    fn pass(&mut self, ns: u64, must: bool) -> Verdict {
        self.now = Nanos(self.now.0 + ns);
        let out = self.apply(Input::Time(u64::MAX));
        self.model.now = self.now;
        let mut refused = self.take_hints(&out)?;
        self.model.expire();
        self.model.follow(&mut refused, must)?;
        self.compare(&out)?;
        if must {
            self.model.forget_suspects();
            same("stuck for ever", vec![], self.model.stuck())?;
            let next = self.engine.next_deadline();
            same("work is left", next.is_some_and(|it| it <= self.now), false)?;
        }
        Ok(())
    }

    /// Tells the model whom the engine has let pass, with what it wants or because there is no room for that;
    /// returns whom it has refused to wait.
    fn take_hints(&mut self, out: &[Effect]) -> Result<BTreeSet<u32>, String> {
        let said = self.words(out)?;
        let with = |words: &[Word]| -> Vec<u32> {
            let said = said.iter().filter(|it| words.contains(&it.1));
            said.map(|it| it.0).collect()
        };
        let no_room = ["resource", "of client", "all"].map(Word::Refused);
        self.model.hints = with(&[&[Word::Done][..], &no_room].concat());
        Ok(BTreeSet::from_iter(with(&[Word::Refused("deadlock")])))
    }

    fn compare(&mut self, out: &[Effect]) -> Verdict {
        let by_conn = |words: Vec<(u32, Word)>| {
            let mut all: BTreeMap<u32, Vec<Word>> = BTreeMap::new();
            for (conn, word) in words {
                all.entry(conn).or_default().push(word);
            }
            all
        };
        let theirs = by_conn(self.words(out)?);
        let ours = by_conn(std::mem::take(&mut self.model.said));
        same("words", theirs, ours)?;
        self.learn_tokens(out);
        self.compare_ranges()?;
        same(
            "deadlocks",
            self.engine.figures().deadlocks(),
            self.model.refusals,
        )?;
        for (at, key) in self.model.keys.iter().zip(KEY) {
            let ours = (at.holders.len() as u32, at.queue.len() as u32);
            let view = self.engine.view(self.now).key(key);
            let theirs = view.map_or((0, 0), |it| (it.holder_count(), it.waiter_count()));
            same("holders and waiters of a key", theirs, ours)?;
        }
        Ok(())
    }

    fn compare_ranges(&self) -> Verdict {
        let view = self.engine.view(self.now);
        for (resource, key) in RESOURCE.iter().enumerate() {
            let it = view.ranges(key);
            let told = |it: latchd::engine::RangeShown<'_>| {
                let told = Told {
                    start: it.range.start() as usize,
                    last: byte(it.range.last()),
                    exclusive: it.mode == Sharing::Exclusive,
                    who: who(it.client),
                    name: name(it.owner),
                };
                (told, it.since)
            };
            let held = it.into_iter().flat_map(|it| it.held().map(told));
            let mut theirs: Vec<_> = held.collect();
            let in_order = theirs.is_sorted_by_key(|it| (it.0.start, it.1));
            same("the order of what is held", in_order, true)?;
            let mut ours = self.model.segments(resource);
            theirs.sort();
            ours.sort();
            same("what is held", theirs, ours)?;
            let waiting = it.into_iter().flat_map(|it| it.waiting().map(told));
            let theirs: Vec<_> = waiting.map(|it| it.0).collect();
            let ours = self.model.queues[resource].iter().map(|it| Told {
                start: it.wish.bytes.0,
                last: it.wish.bytes.1,
                exclusive: it.wish.exclusive,
                who: it.wish.who,
                name: it.wish.name,
            });
            same("the queue", theirs, ours.collect())?;
        }
        Ok(())
    }

    fn learn_tokens(&mut self, out: &[Effect]) {
        for effect in out {
            if let Effect::Reply(id, Reply::Granted { token, .. }) = effect {
                self.learn_token(id.serial, *token);
            }
        }
    }

    fn learn_token(&mut self, conn: u32, token: Token) {
        let mut holders = self.model.keys.iter_mut().flat_map(|it| &mut it.holders);
        if let Some(it) = holders.find(|it| it.1 == conn && it.2.is_none()) {
            it.2 = Some(token);
        }
    }

    fn words(&self, out: &[Effect]) -> Result<Vec<(u32, Word)>, String> {
        // Whose bytes an operator has taken is noted for the log, and nobody is told by that.
        let is_break =
            |it: &&Effect| matches!(it, Effect::Note(note) if note.what == Noted::Broken);
        let told = out.iter().filter(|it| !is_break(it));
        let said = told.map(|effect| match effect {
            Effect::Reply(id, reply) => Ok((id.serial, word(reply)?)),
            other => Err(format!("nobody asked for {other:?}")),
        });
        said.collect()
    }
}

fn input(id: ConnId, resource: usize, name: usize, ask: RangeAsk) -> Input<'static> {
    let request = RangeRequest {
        resource: RESOURCE[resource],
        owner: NAME[name],
        ask,
    };
    Input::Range(id, None, request)
}

fn mode(exclusive: bool) -> Sharing {
    match exclusive {
        true => Sharing::Exclusive,
        false => Sharing::Shared,
    }
}

fn wish(exclusive: bool, bytes: Bytes, name: usize) -> Wish {
    Wish {
        who: Who::Conn(0), // the model knows
        name,
        exclusive,
        bytes,
    }
}

fn span((first, last): Bytes) -> Span {
    Span {
        start: first as u64,
        len: match last == BYTES - 1 {
            true => 0,
            false => (last - first + 1) as u64,
        },
    }
}

fn byte(last: u64) -> usize {
    match last {
        u64::MAX => BYTES - 1,
        last => last as usize,
    }
}

fn who(someone: Someone<'_>) -> Who {
    match someone {
        Someone::Connection(serial) => Who::Conn(serial),
        Someone::Named(id) => Who::Client(CLIENT.iter().position(|it| *it == id).unwrap()),
        Someone::Nobody => panic!("nothing was restored"),
    }
}

fn name(name: &[u8]) -> usize {
    NAME.iter().position(|it| *it == name).unwrap()
}

fn word(reply: &Reply) -> Result<Word, String> {
    Ok(match reply {
        Reply::Done => Word::Done,
        Reply::TimedOut => Word::TimedOut,
        Reply::Cancelled => Word::Cancelled,
        Reply::AlreadyGranted => Word::AlreadyGranted,
        Reply::Nothing => Word::Nothing,
        Reply::RangeFree => Word::Free,
        Reply::RangeHeld(it) => Word::Held(Told {
            start: it.range.start() as usize,
            last: byte(it.range.last()),
            exclusive: it.mode == Sharing::Exclusive,
            who: match it.client.strip_prefix('#') {
                Some(serial) => Who::Conn(serial.parse().unwrap()),
                None => who(Someone::Named(&it.client)),
            },
            name: name(it.owner.as_bytes()),
        }),
        Reply::Number(ended) => Word::Number(*ended),
        Reply::Granted { .. } => Word::Granted,
        Reply::Attached { is_new, .. } => Word::Attached(*is_new),
        Reply::Refused(why) => Word::Refused(match why {
            Refusal::Busy => "busy",
            Refusal::Deadlock => "deadlock",
            Refusal::MaxWaiters => "waiters",
            Refusal::MaxRangesOfResource => "resource",
            Refusal::MaxRangesOfClient => "of client",
            Refusal::MaxRanges => "all",
            Refusal::OtherClient => "client",
            Refusal::UnknownClient => "unknown",
            Refusal::Detached => "detached",
            other => return Err(format!("nobody expects {other:?}")),
        }),
        other => return Err(format!("nobody asked for {other:?}")),
    })
}

/// Engine first, model second.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Verdict {
    match engine == model {
        true => Ok(()),
        false => Err(format!("{what}:\n  engine {engine:?}\n  model  {model:?}")),
    }
}
