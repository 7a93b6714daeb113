//! The engine and the model side by side: every input goes to both, and all effects, records and
//! visible state are compared.
//!
//! Plays the server's part: a parked connection sends no request, a slot is used again only after
//! its connection left, a request that was put off is asked again, time never goes back.

use std::ops::Range;

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{
    Attach, By, ByteRange, Effect, Effects, Input, Mode, OfClient, RangeAsk, RangeRequest, Record,
    Reply, Request, Secret, Sharing, Span,
};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, RangeShown, Rules, Someone};
use latchd_model::{Model, ShownRange};

use super::ops::{Ask, Bytes, CLIENTS, CONNS, KEYS, LINES, NAMES, Op, RESOURCES, WEB};

const RESOURCE: [&[u8]; RESOURCES] = [b"f", b"g", b"a resource with a name that is long"];
const KEY: [&[u8]; KEYS] = [b"f", b"pool", b"doc"];
const CLIENT: [&str; CLIENTS] = ["gw/0", "gw/1", "solo"];
const OWNER: [&str; 2] = ["job", "cron"];
const NAME: [&[u8]; NAMES] = [b"", b"x", b"y"];
const SECRET: Secret<'static> = Secret(b"s3cret");

/// A waiter that only the order of a queue keeps waiting for itself is looked at as often as this,
/// in nanoseconds.
const LOOKED_AT_AGAIN: u64 = 100_001_000;

pub type Verdict = Result<(), String>;

pub struct World {
    engine: Engine,
    model: Model,
    rules: Rules,
    now: Nanos,
    conns: [ConnId; CONNS],
    last_serial: u32,
    /// Connections that wait for an answer.
    parked: Vec<ConnId>,
    /// Every token from an effect, with its key.
    tokens: Vec<(usize, Token)>,
    journal: Vec<Record>,
    /// A connection whose peer has hung up: it is answered no more.
    hung_up: Option<ConnId>,
    is_slow: bool,
    /// What is full: memory, the disk.
    full: [bool; 2],
    /// Changes what came of an input.
    pub bug: Option<Bug>,
}

/// See `bugs.rs`.
pub type Bug = Box<dyn Fn(&Input<'_>, &mut Effects, &mut Vec<Record>)>;

impl World {
    pub fn new(rules: Rules) -> Self {
        let rules = Rules {
            lease_default: Millis::from_secs(40),
            zero_ns: 1_000_000_000_000,
            ..rules
        };
        let mut world = Self {
            engine: new_engine(&rules),
            model: Model::new(rules.clone(), 0),
            rules,
            now: Nanos(1),
            conns: [ConnId { slot: 0, serial: 0 }; CONNS],
            last_serial: 0,
            parked: Vec::new(),
            tokens: Vec::new(),
            journal: Vec::new(),
            hung_up: None,
            is_slow: false,
            full: [false; 2],
            bug: None,
        };
        for slot in 0..CONNS {
            world.connect(slot);
        }
        world
    }

    fn connect(&mut self, slot: usize) {
        self.last_serial += 1;
        let serial = self.last_serial;
        self.conns[slot] = ConnId {
            slot: slot as u32,
            serial,
        };
    }

    pub fn run(&mut self, op: Op) -> Verdict {
        match op {
            Op::Range {
                conn,
                of,
                resource,
                name,
                ask,
            } => {
                let of = of.map(|of| OfClient {
                    id: CLIENT[of],
                    secret: SECRET,
                });
                let request = RangeRequest {
                    resource: RESOURCE[resource],
                    owner: NAME[name],
                    ask: range_ask(ask),
                };
                match of {
                    Some(_) => self.ask_web(conn, |id| Input::Range(id, of, request)),
                    None => self.ask(conn, |id| Input::Range(id, None, request)),
                }
            }
            Op::Again { nth, wait } => self.ask_again(nth, wait),
            Op::HaveBack { nth } => self.have_back(nth),
            Op::Acquire {
                conn,
                key,
                writes,
                wait,
            } => {
                let request = acquire(key, writes, wait);
                self.ask(conn, |id| Input::Request(id, request))
            }
            Op::Enqueue { conn, key, writes } => {
                let request = Request::Enqueue {
                    key: KEY[key],
                    mode: mode(key, writes),
                    lease: None,
                };
                self.ask(conn, |id| Input::Request(id, request))
            }
            Op::Wait { conn, key, wait } => {
                let request = Request::Wait {
                    key: KEY[key],
                    wait: Millis(wait),
                };
                self.ask(conn, |id| Input::Request(id, request))
            }
            Op::AcquireBy {
                conn,
                owner,
                key,
                wait,
            } => {
                let by = By {
                    owner: OWNER[owner],
                    request: b"",
                };
                let request = acquire(key, true, wait);
                self.ask_web(conn, |id| Input::RequestBy(id, by, request))
            }
            Op::Release { nth } => {
                let Some(&(key, token)) = self.tokens.get(nth % self.tokens.len().max(1)) else {
                    return Ok(());
                };
                let request = Request::Release {
                    key: KEY[key],
                    token: Some(token),
                };
                self.tokens.retain(|it| it.1 != token);
                self.ask(nth, |id| Input::Request(id, request))
            }
            Op::Attach { conn, client, ttl } => {
                self.ask(conn, |id| Input::Attach(id, attach(client, ttl)))
            }
            Op::Register { conn, client, ttl } => {
                self.ask_web(conn, |id| Input::Register(id, attach(client, ttl)))
            }
            Op::Detach { conn, client } => {
                self.ask(conn, |id| Input::Detach(id, CLIENT[client], SECRET))
            }
            Op::Hello { conn } => match self.free(LINES, conn) {
                Some(id) => self.step(&Input::Hello(id, None)),
                None => Ok(()),
            },
            Op::Detect { conn, detects } => match self.free(LINES, conn) {
                Some(id) => self.step(&Input::DetectDeadlocks(id, detects)),
                None => Ok(()),
            },
            Op::HangUp { slot } => {
                let id = self.conns[slot];
                self.parked.retain(|it| *it != id);
                self.hung_up = Some(id);
                self.step(&Input::HungUp(id, true))?;
                // A search that continues now may end its wait without an answer.
                if self.rules.search_limits.at_once_work > 0 {
                    self.pass(0)?;
                }
                self.leave(slot)
            }
            Op::Leave { slot } => self.leave(slot),
            Op::Break { resource, bytes } => {
                let range = bytes.and_then(|(start, len)| ByteRange::new(start, len));
                self.ask(0, |id| Input::BreakRanges(id, RESOURCE[resource], range))
            }
            Op::BreakOf { client, nth } => {
                let name = match client {
                    Some(client) => CLIENT[client].to_owned(),
                    None => format!("#{}", self.conns[nth].serial),
                };
                self.ask(0, |id| Input::BreakRangesOf(id, name.as_bytes()))
            }
            Op::BreakKey { key } => self.ask(0, |id| Input::BreakAll(id, KEY[key], None)),
            Op::Grace { ends } => self.ask(0, |conn| Input::Grace { conn, ends }),
            Op::ReclaimDone {
                conn,
                client,
                shows,
            } => {
                let secret = shows.then_some(SECRET);
                let input = |id| Input::ReclaimDone(id, CLIENT[client], secret);
                if shows {
                    self.ask_web(conn, input)
                } else {
                    self.ask(conn, input)
                }
            }
            Op::Full { disk, full } if !disk => {
                self.full[0] = full;
                self.step(&Input::MemoryFull(full))
            }
            Op::Full { full, .. } => {
                self.full[1] = full && self.rules.durable;
                self.step(&Input::StorageFull(self.full[1]))
            }
            Op::Slow(is_slow) => {
                self.is_slow = is_slow;
                self.flush()
            }
            Op::Pass(ms) => self.pass(Millis(ms).nanos()),
            Op::Drain => self.step(&Input::Drain),
            Op::Visit { client, ttl } => {
                let Some(id) = self.free(LINES, client) else {
                    return Ok(());
                };
                self.ask_on(id, &Input::Attach(id, attach(client, ttl)))?;
                self.leave(id.slot as usize)
            }
            Op::Restart { may_have_lost } => self.restart(may_have_lost),
        }
    }

    /// All have left, and every time is over: nothing may be left.
    pub fn end(&mut self) -> Verdict {
        self.step(&Input::StorageFull(false))?;
        self.is_slow = false;
        self.flush()?;
        for slot in 0..CONNS {
            self.leave(slot)?;
        }
        for _ in 0..4 {
            self.pass(Millis::from_secs(130).nanos())?;
        }
        let ranges = self.engine.view(self.now).range_counts();
        same(
            "ranges",
            (ranges.resources, ranges.locks, ranges.waiting),
            (0, 0, 0),
        )?;
        let Counts { keys, timers, .. } = self.engine.counts();
        let expected = Counts {
            keys,
            timers,
            ..Counts::default()
        };
        same("counts", self.engine.counts(), expected)
    }

    // ---- asking ----

    /// One of these connections that is not parked.
    fn free(&self, conns: Range<usize>, nth: usize) -> Option<ConnId> {
        let free = self.conns[conns]
            .iter()
            .filter(|it| !self.parked.contains(it));
        let free: Vec<_> = free.copied().collect();
        free.get(nth % free.len().max(1)).copied()
    }

    /// A connection that is not parked asks.
    fn ask<'a>(&mut self, conn: usize, input: impl Fn(ConnId) -> Input<'a>) -> Verdict {
        match self.free(LINES, conn) {
            Some(id) => self.ask_on(id, &input(id)),
            None => Ok(()),
        }
    }

    /// The same over HTTP, where nothing belongs to the connection.
    fn ask_web<'a>(&mut self, conn: usize, input: impl Fn(ConnId) -> Input<'a>) -> Verdict {
        match self.free(WEB, conn) {
            Some(id) => self.ask_on(id, &input(id)),
            None => Ok(()),
        }
    }

    /// Asks again as long as the request is put off.
    fn ask_on(&mut self, id: ConnId, input: &Input<'_>) -> Verdict {
        for _ in 0..10 {
            self.parked.push(id);
            let out = self.put(input)?;
            if !out.contains(&Effect::NotYet(id)) {
                return self.settle();
            }
            self.parked.retain(|it| *it != id);
            self.flush()?;
            self.pass_once(0)?;
        }
        Err(format!("put off for ever: {input:?}"))
    }

    /// A request for what some owner waits for, on another connection: to take over its place, or,
    /// without a time, to cancel it.
    fn ask_again(&mut self, nth: usize, wait: Option<u64>) -> Verdict {
        let view = self.engine.view(self.now);
        let all = RESOURCE.iter().flat_map(|resource| {
            let waiting = view
                .ranges(resource)
                .into_iter()
                .flat_map(|it| it.waiting());
            waiting.map(move |it| (*resource, Self::shown(&it)))
        });
        let all: Vec<_> = all.filter(|it| !it.1.client.starts_with('#')).collect();
        let Some((resource, it)) = all.get(nth % all.len().max(1)) else {
            return Ok(());
        };
        let (mode, span) = (it.mode, span(it.range));
        let ask = match wait {
            Some(wait) => RangeAsk::Lock {
                mode,
                span,
                wait: Millis(wait),
            },
            None if nth.is_multiple_of(2) => RangeAsk::Cancel { mode, span },
            None => RangeAsk::Unlock { span },
        };
        let of = Some(OfClient {
            id: &it.client,
            secret: SECRET,
        });
        let request = RangeRequest {
            resource,
            owner: &it.owner,
            ask,
        };
        match nth % 3 {
            // It may be attached to that client.
            0 => self.ask(nth / 3, |id| Input::Range(id, None, request)),
            _ => self.ask_web(nth, |id| Input::Range(id, of, request)),
        }
    }

    /// A client has back a part of what is pending, or all of it.
    fn have_back(&mut self, nth: usize) -> Verdict {
        let view = self.engine.view(self.now);
        let all = RESOURCE.iter().flat_map(|resource| {
            let held = view.ranges(resource).into_iter().flat_map(|it| it.held());
            held.map(move |it| (*resource, Self::shown(&it)))
        });
        let pending = all.filter(|it| it.1.lock.is_some_and(|it| it.3));
        let pending: Vec<_> = pending.collect();
        let Some((resource, it)) = pending.get(nth % pending.len().max(1)) else {
            return Ok(());
        };
        let mut span = span(it.range);
        if nth.is_multiple_of(3) {
            span.len = 1;
        }
        let mode = it.mode;
        let ask = match nth % 4 {
            3 => RangeAsk::Cancel { mode, span },
            _ => RangeAsk::Reclaim { mode, span },
        };
        let of = Some(OfClient {
            id: &it.client,
            secret: SECRET,
        });
        let request = RangeRequest {
            resource,
            owner: &it.owner,
            ask,
        };
        self.ask_web(nth, |id| Input::Range(id, of, request))
    }

    /// The connection goes, and another takes its slot.
    fn leave(&mut self, slot: usize) -> Verdict {
        let id = self.conns[slot];
        self.parked.retain(|it| *it != id);
        self.step(&Input::Disconnected(id))?;
        self.connect(slot);
        same(
            "owns something after leaving",
            self.engine.owns_something(id),
            false,
        )
    }

    // ---- time ----

    fn pass(&mut self, ns: u64) -> Verdict {
        self.pass_once(ns)?;
        match ns > 2 * LOOKED_AT_AGAIN {
            true => self.rest(),
            false => Ok(()),
        }
    }

    /// So much time passes that every circle is found, and every waiter let pass that can be.
    pub fn rest(&mut self) -> Verdict {
        self.pass_once(LOOKED_AT_AGAIN)?;
        self.pass_once(LOOKED_AT_AGAIN)?;
        if self.rules.deadlock_detection {
            let unresolved = self.model.unresolved_waits();
            same("unresolved waits", Vec::new(), unresolved)?;
            same("waits that are stuck", 0, self.model.stuck_waits())?;
        }
        Ok(())
    }

    fn pass_once(&mut self, ns: u64) -> Verdict {
        self.now = Nanos(self.now.0 + ns);
        self.put(&Input::Time(u64::MAX))?;
        self.settle()?;
        let next = self.engine.next_deadline();
        same("work is left", next.is_some_and(|it| it <= self.now), false)
    }

    /// What was recorded is on the disk, unless that takes its time.
    fn flush(&mut self) -> Verdict {
        let number = self.engine.record_count();
        match self.rules.durable && number > 0 {
            true => self.put(&Input::Durable(number)).map(|_| ()),
            false => Ok(()),
        }
    }

    fn restart(&mut self, may_have_lost: bool) -> Verdict {
        if !self.rules.durable {
            return Ok(());
        }
        self.rules.epoch += 1;
        self.rules.zero_ns += self.now.0;
        self.now = Nanos(1);
        self.engine = new_engine(&self.rules);
        self.model = Model::new(self.rules.clone(), 0);
        self.parked.clear();
        self.full = [false; 2];
        for slot in 0..CONNS {
            self.connect(slot);
        }
        for record in std::mem::take(&mut self.journal) {
            self.put(&Input::Restore(&record))?;
            self.journal.push(record);
        }
        self.step(&Input::Serve { may_have_lost })
    }

    // ---- comparing ----

    fn step(&mut self, input: &Input<'_>) -> Verdict {
        self.put(input)?;
        self.settle()
    }

    fn settle(&mut self) -> Verdict {
        match self.is_slow {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Puts an input before both, and compares.
    fn put(&mut self, input: &Input<'_>) -> Result<Effects, String> {
        let mut out = Effects::new();
        self.engine.apply(self.now, input.clone(), &mut out);
        if !matches!(input, Input::Restore(_)) {
            self.engine.check();
        }
        let mut records: Vec<Record> = self.engine.take_records().collect();
        if let Some(bug) = &self.bug {
            bug(input, &mut out, &mut records);
        }
        self.model.apply(self.now, input, &out, &records)?;
        self.journal.extend(records);
        for effect in &out {
            if let Effect::Reply(id, reply) = effect {
                self.parked.retain(|it| it != id);
                if let Reply::Granted { token, .. } = reply {
                    self.learn_token(*token);
                }
            }
        }
        for &id in self.conns.iter().filter(|id| self.hung_up != Some(**id)) {
            same(
                "is parked",
                self.parked.contains(&id),
                self.model.is_parked(id),
            )?;
        }
        self.compare_ranges()?;
        Ok(out)
    }

    fn learn_token(&mut self, token: Token) {
        let view = self.engine.view(self.now);
        let of = |key: &&[u8]| {
            let view = view.key(key);
            view.is_some_and(|it| it.holders().any(|it| it.fence == token.fence))
        };
        if let Some(key) = KEY.iter().position(of) {
            self.tokens.push((key, token));
        }
    }

    fn compare_ranges(&mut self) -> Verdict {
        let view = self.engine.view(self.now);
        for resource in RESOURCE {
            let it = view.ranges(resource);
            let held = it.into_iter().flat_map(|it| it.held());
            let held: Vec<_> = held.map(|it| Self::shown(&it)).collect();
            let order = |it: &ShownRange| (it.range.start(), it.lock.map(|it| it.1));
            same(
                "the order of what is held",
                held.is_sorted_by_key(order),
                true,
            )?;
            let waiting = it.into_iter().flat_map(|it| it.waiting());
            let waiting: Vec<_> = waiting.map(|it| Self::shown(&it)).collect();
            self.model.compare_ranges(resource, &held, &waiting)?;
        }
        Ok(())
    }

    fn shown(it: &RangeShown<'_>) -> ShownRange {
        ShownRange {
            client: match it.client {
                Someone::Connection(serial) => format!("#{serial}"),
                Someone::Named(id) => id.to_owned(),
                Someone::Nobody => "nobody".to_owned(),
            },
            owner: it.owner.to_vec(),
            mode: it.mode,
            range: it.range,
            lock: it
                .grant
                .map(|grant| (grant.id, grant.since, grant.epoch, it.pending)),
        }
    }
}

fn new_engine(rules: &Rules) -> Engine {
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    Engine::new(rules.clone(), origin)
}

fn sharing(exclusive: bool) -> Sharing {
    match exclusive {
        true => Sharing::Exclusive,
        false => Sharing::Shared,
    }
}

fn range_ask(ask: Ask) -> RangeAsk {
    let span = |(start, len): Bytes| Span { start, len };
    match ask {
        Ask::Lock {
            exclusive,
            bytes,
            wait,
        } => RangeAsk::Lock {
            mode: sharing(exclusive),
            span: span(bytes),
            wait: Millis(wait),
        },
        Ask::Unlock { bytes } => RangeAsk::Unlock { span: span(bytes) },
        Ask::Test { exclusive, bytes } => RangeAsk::Test {
            mode: sharing(exclusive),
            span: span(bytes),
        },
        Ask::Cancel { exclusive, bytes } => RangeAsk::Cancel {
            mode: sharing(exclusive),
            span: span(bytes),
        },
        Ask::Reclaim { exclusive, bytes } => RangeAsk::Reclaim {
            mode: sharing(exclusive),
            span: span(bytes),
        },
    }
}

fn span(range: ByteRange) -> Span {
    Span {
        start: range.start(),
        len: range.len(),
    }
}

/// A lock, a semaphore with two slots, and a read-write lock.
fn mode(key: usize, writes: bool) -> Mode {
    match (key, writes) {
        (0, _) => Mode::Slot { limit: 1 },
        (1, _) => Mode::Slot { limit: 2 },
        (_, true) => Mode::Write,
        (_, false) => Mode::Read,
    }
}

fn acquire(key: usize, writes: bool, wait: u64) -> Request<'static> {
    Request::Acquire {
        key: KEY[key],
        mode: mode(key, writes),
        wait: Millis(wait),
        lease: None,
    }
}

fn attach(client: usize, ttl: u64) -> Attach<'static> {
    Attach {
        adapter: None,
        id: CLIENT[client],
        ttl: Millis(ttl),
        secret: SECRET,
    }
}

/// Engine first, model second.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Verdict {
    match engine == model {
        true => Ok(()),
        false => Err(format!("{what}:\n  engine {engine:?}\n  model  {model:?}")),
    }
}
