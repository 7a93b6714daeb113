//! The engine and the model side by side: every input goes to both, and the effects of the engine
//! are those that the model expects.
//!
//! Plays the server's part as far as the engine can tell: a parked connection sends no request, a
//! request that is put off is asked again after a turn, a slot is reused only after its connection
//! has ended, serial numbers never return, time never goes back.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{
    Attach, By, Effect, Effects, Input, ListForm, Popped, Record, Reply, Request, Secret, User,
};
use latchd::engine::{Engine, Origin, Rules};
use latchd_model::{Model, Shown};

use super::cells::{Reached, ending_of, verb_of};
use super::ops::{
    CONNS, IDS, KEYS, LINES, NAMES, OWNERS, Op, Pick, Step, Verb, channel_of, pattern_of,
};

/// Where fences begin: so that the memory of ended leases, which goes by fence, wraps in a case.
const FENCE: u64 = 4096 - 20;

const VALUES: [&[u8]; 4] = [b"one", b"two", b"a value of some more bytes", b""];

/// What stands between the engine and the model: nothing, or a deliberate bug.
pub type Filter = Box<dyn FnMut(&Input<'_>, &mut Effects, &mut Vec<Record>)>;

pub struct World {
    engine: Engine,
    /// A second engine with the same inputs. Its effects must be the same, because inputs decide
    /// everything.
    twin: Engine,
    /// Knows only the records, and never lets time pass, as a standby that follows.
    standby: Engine,
    model: Model,
    rules: Rules,
    now: Nanos,
    conns: [ConnId; CONNS],
    hung_up: [bool; CONNS],
    last_serial: u32,
    /// Every token from an effect, with its key.
    tokens: Vec<(Vec<u8>, Token)>,
    popped: Vec<Popped>,
    /// Everything that was recorded, and how much of it is kept.
    records: Vec<Record>,
    kept: usize,
    /// How many of them are of earlier lives of the server.
    restored: usize,
    draining: bool,
    /// Connections are cut off, because the server is about to stop.
    stops: bool,
    storage_full: bool,
    epoch: u64,
    filter: Option<Filter>,
    /// Whether searches for deadlocks are put off, however short they are.
    puts_off_searches: bool,
    /// Where cells are noted that are reached.
    cells: Option<Reached>,
    /// What the engine does not hear of.
    is_deaf: fn(&Input<'_>) -> bool,
}

type Verdict = Result<(), String>;

impl World {
    pub fn new(rules: Rules) -> Self {
        let puts_off_searches = rules.search_limits.at_once_work == 0;
        Self {
            engine: Engine::new(rules.clone(), origin(FENCE)),
            twin: Engine::new(rules.clone(), origin(FENCE)),
            standby: Engine::new(rules.clone(), origin(FENCE)),
            model: Model::new(rules.clone(), FENCE),
            rules,
            now: Nanos(0),
            conns: std::array::from_fn(|slot| ConnId {
                slot: slot as u32,
                serial: slot as u32 + 1,
            }),
            hung_up: [false; CONNS],
            last_serial: CONNS as u32,
            tokens: Vec::new(),
            popped: Vec::new(),
            records: Vec::new(),
            kept: 0,
            restored: 0,
            draining: false,
            stops: false,
            storage_full: false,
            epoch: 1,
            filter: None,
            puts_off_searches,
            cells: None,
            is_deaf: |_| false,
        }
    }

    /// The same with something between the engine and the model.
    pub fn with_filter(rules: Rules, filter: Filter) -> Self {
        let mut world = Self::new(rules);
        world.filter = Some(filter);
        world
    }

    /// Notes which cells are reached.
    pub fn note_cells(&mut self, cells: Reached) {
        self.cells = Some(cells);
    }

    /// The engine does not hear of these inputs.
    pub fn make_deaf(&mut self, is_deaf: fn(&Input<'_>) -> bool) {
        self.is_deaf = is_deaf;
    }

    pub fn run(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Ask { conn, ref verb } => match self.who_may_ask(conn) {
                Some(id) => self.ask(id, None, verb),
                None => Ok(()),
            },
            Op::AskBy {
                conn,
                owner,
                id: request,
                ref verb,
            } => match self.who_may_ask(conn) {
                Some(id) => {
                    let request = [&b""[..], b"r1", b"r2", b"r3"][usize::from(request)];
                    let owner = OWNERS[owner];
                    self.ask(id, Some(By { owner, request }), verb)
                }
                None => Ok(()),
            },
            Op::Attach {
                conn,
                id,
                ttl,
                wrong,
                registers,
            } => {
                let Some(conn) = self.who_may_ask(conn).filter(|_| !self.stops) else {
                    return Ok(());
                };
                let registers = registers || conn.slot as usize >= LINES;
                let attach = Attach {
                    id: IDS[id],
                    adapter: None,
                    ttl: Millis(ttl),
                    secret: secret(wrong),
                };
                self.put(match registers {
                    true => Input::Register(conn, attach),
                    false => Input::Attach(conn, attach),
                })
            }
            Op::Detach { conn, id, wrong } => match self.who_may_ask(conn) {
                Some(conn) => self.put(Input::Detach(conn, IDS[id], secret(wrong))),
                None => Ok(()),
            },
            Op::Hello(conn, named) => {
                let name = named.then_some(["n0", "n1", "n2", "n3", "n4", "n5"][conn]);
                self.tell_of(conn, |id| Input::Hello(id, name))
            }
            Op::Detects(conn, on) => self.tell_of(conn, |id| Input::DetectDeadlocks(id, on)),
            Op::Keeps(conn, on) => self.tell_of(conn, |id| Input::Keep(id, on)),
            Op::LetIn(conn, on) => {
                let user = on.then(|| User::new("ann".to_owned()));
                self.tell_of(conn, |id| Input::LetIn(id, user))
            }
            Op::HungUp(conn, on) => {
                self.hung_up[conn] = on;
                self.apply(Input::HungUp(self.conns[conn], on))
            }
            Op::Stalled(conn, on) => self.apply(Input::Stalled(self.conns[conn], on)),
            // The server sends this once for each renewal, and takes it back once.
            Op::OwnerStalled(owner, on) => {
                let owner = OWNERS[owner % OWNERS.len()];
                self.apply(Input::OwnerStalled(owner, false))?;
                self.apply(Input::OwnerStalled(owner, on))
            }
            Op::ClientStalled(id, on) => {
                let id = IDS[id % IDS.len()];
                self.apply(Input::ClientStalled(id, false))?;
                self.apply(Input::ClientStalled(id, on))
            }
            Op::Overrun(conn, on) => self.apply(Input::Overrun(self.conns[conn], on)),
            Op::Leave(conn) => self.leave(conn, Input::Disconnected),
            Op::Unsent => match self.popped.pop() {
                Some(popped) => self.apply(Input::Unsent(popped)),
                None => Ok(()),
            },
            Op::Break { conn, all, nth } => self.break_some(conn, all, nth),
            Op::Pass(step) => {
                self.pass(step);
                Ok(())
            }
            Op::Turn(step) => {
                self.pass(step);
                self.turn()
            }
            Op::MemoryFull(full) => self.apply(Input::MemoryFull(full)),
            Op::StorageFull(full) if self.rules.durable => {
                self.storage_full = full;
                self.apply(Input::StorageFull(full))
            }
            Op::Durable(but) if self.rules.durable => {
                self.kept = self
                    .kept
                    .max(self.records.len().saturating_sub(but as usize));
                self.apply(Input::Durable((self.kept - self.restored) as u64))
            }
            Op::Drain if !self.draining => {
                self.draining = true;
                self.apply(Input::Drain)
            }
            Op::Restart(lost) if self.rules.durable => self.restart(lost),
            Op::CutOffOne(conn) if self.rules.durable => {
                self.stops = true;
                self.leave(conn, Input::CutOff)
            }
            Op::CutOff if self.rules.durable => {
                for conn in 0..CONNS {
                    self.leave(conn, Input::CutOff)?;
                }
                self.turn()?;
                self.restart(0)
            }
            Op::StorageFull(_)
            | Op::Durable(_)
            | Op::Drain
            | Op::Restart(_)
            | Op::CutOffOne(_)
            | Op::CutOff => Ok(()),
        }
    }

    /// The end of every case: all connections leave, and all leases and times to live run out.
    pub fn end(&mut self) -> Verdict {
        if self.stops {
            self.restart(0)?;
        }
        self.keep_all()?;
        for conn in 0..CONNS {
            self.leave(conn, Input::Disconnected)?;
        }
        for owner in OWNERS {
            self.apply(Input::OwnerStalled(owner, false))?;
        }
        for id in IDS {
            self.apply(Input::ClientStalled(id, false))?;
        }
        self.turn()?;
        self.keep_all()?;
        while let Some(next) = self.model.next_deadline() {
            self.now = self.now.max(next);
            self.turn()?;
        }
        let counts = self.engine.counts();
        same("holders at the end", counts.holders, 0)?;
        same("waiters at the end", counts.waiters, 0)?;
        same("tickets at the end", counts.tickets, 0)
    }

    fn keep_all(&mut self) -> Verdict {
        self.kept = self.records.len();
        self.apply(Input::Durable((self.kept - self.restored) as u64))
    }

    fn who_may_ask(&self, conn: usize) -> Option<ConnId> {
        let id = self.conns[conn];
        (!self.hung_up[conn] && !self.model.is_parked(id)).then_some(id)
    }

    fn tell_of(&mut self, conn: usize, input: impl FnOnce(ConnId) -> Input<'static>) -> Verdict {
        match self.who_may_ask(conn) {
            Some(id) => self.apply(input(id)),
            None => Ok(()),
        }
    }

    fn ask(&mut self, id: ConnId, by: Option<By<'_>>, verb: &Verb) -> Verdict {
        let is_of_line = matches!(verb, Verb::Enqueue(..) | Verb::Wait(..) | Verb::Reclaim(..));
        if by.is_some() && is_of_line {
            return Ok(());
        }
        let owner = by.map(|by| by.owner);
        let (key, token);
        let request = match *verb {
            Verb::Release(pick)
            | Verb::Renew(pick, _)
            | Verb::Reclaim(pick, _)
            | Verb::Resign(pick) => {
                (key, token) = self.pick(id, owner, pick);
                let key = &key;
                match *verb {
                    Verb::Release(_) => Request::Release { key, token },
                    Verb::Renew(_, lease) => Request::Renew {
                        key,
                        token,
                        lease: lease.map(Millis),
                    },
                    Verb::Reclaim(_, lease) => Request::Reclaim {
                        key,
                        token,
                        lease: lease.map(Millis),
                    },
                    _ => Request::Resign { key, token },
                }
            }
            Verb::Wait(nth, wait) => {
                let tickets = self.model.tickets_of(id);
                key = match nth {
                    0 | 1 => KEYS[nth].to_vec(),
                    _ if tickets.is_empty() => KEYS[nth % KEYS.len()].to_vec(),
                    _ => tickets[nth % tickets.len()].clone(),
                };
                let (key, wait) = (&key, Millis(wait));
                Request::Wait { key, wait }
            }
            Verb::Listen(number, group) => {
                key = pattern_of(number);
                let (pattern, group) = (&key, group_of(group));
                Request::Listen { pattern, group }
            }
            Verb::Unlisten(number, group) => {
                key = pattern_of(number);
                let (pattern, group) = (&key, group_of(group));
                Request::Unlisten { pattern, group }
            }
            Verb::Watch(number) => {
                key = pattern_of(number);
                Request::Watch { pattern: &key }
            }
            Verb::Unwatch(number) => {
                key = pattern_of(number);
                Request::Unwatch { pattern: &key }
            }
            Verb::Signal(number) => {
                key = channel_of(number);
                Request::Signal {
                    channel: &key,
                    payload: b"hello",
                }
            }
            ref other => request(other),
        };
        self.put(match by {
            Some(by) => Input::RequestBy(id, by, request),
            None => Input::Request(id, request),
        })
    }

    fn pick(&self, id: ConnId, owner: Option<&str>, pick: Pick) -> (Vec<u8>, Option<Token>) {
        let live = self
            .tokens
            .iter()
            .filter(|it| self.model.is_held(&it.0, it.1));
        let (mut among, nth): (Vec<_>, usize) = match pick {
            Pick::Live(nth) | Pick::WrongKey(nth) | Pick::Forged(nth) => (live.collect(), nth),
            Pick::Own(nth) => {
                let own = live.filter(|it| self.model.holds(id, owner, it.1));
                (own.collect(), nth)
            }
            Pick::Any(nth) => (self.tokens.iter().collect(), nth),
            Pick::Nothing(nth) => (Vec::new(), nth),
        };
        among.reverse();
        if among.is_empty() {
            return (KEYS[nth % KEYS.len()].to_vec(), None);
        }
        let (key, token) = among[nth % among.len()].clone();
        match pick {
            Pick::WrongKey(nth) => (KEYS[nth % KEYS.len()].to_vec(), Some(token)),
            Pick::Forged(nth) => {
                let salt = token.salt ^ 1 << (nth % 64);
                (key, Some(Token { salt, ..token }))
            }
            _ => (key, Some(token)),
        }
    }

    fn break_some(&mut self, conn: usize, all: bool, nth: usize) -> Verdict {
        let Some(id) = self.who_may_ask(conn) else {
            return Ok(());
        };
        let (key, token) = self.pick(
            id,
            None,
            match nth % 3 {
                0 => Pick::Any(nth / 3),
                _ => Pick::Live(nth / 3),
            },
        );
        match (token, all) {
            (Some(token), true) if nth.is_multiple_of(2) => {
                self.put(Input::BreakAll(id, &key, Some(token.fence)))
            }
            (Some(token), false) => self.put(Input::Break(id, &key, token.fence)),
            _ => self.put(Input::BreakAll(id, &key, None)),
        }
    }

    fn pass(&mut self, step: Step) {
        let next = self.model.next_deadline();
        let to = match step {
            Step::For(ns) => Nanos(self.now.0 + ns),
            Step::ToNext(short) => Nanos(next.map_or(self.now.0, |it| it.0.saturating_sub(short))),
        };
        // A wait without end is not waited for.
        if to.since(self.now) < Millis::from_secs(3600).nanos() {
            self.now = self.now.max(to);
        }
    }

    fn turn(&mut self) -> Verdict {
        self.apply(Input::Time(u64::MAX))?;
        let next = self.engine.next_deadline();
        same(
            "work is left after a turn",
            next.is_some_and(|it| it <= self.now),
            false,
        )?;
        // Leases, waits and values end on time: the engine wakes up no later than that.
        match (self.model.next_deadline(), next) {
            (Some(ours), None) => Err(format!("the engine sleeps, though {ours:?} is due")),
            (Some(ours), Some(theirs)) if theirs > ours => Err(format!(
                "the engine sleeps until {theirs:?}, though {ours:?} is due"
            )),
            _ => Ok(()),
        }
    }

    /// The connection ends, and another takes its slot.
    fn leave(&mut self, conn: usize, how: fn(ConnId) -> Input<'static>) -> Verdict {
        let id = self.conns[conn];
        self.apply(how(id))?;
        self.last_serial += 1;
        self.conns[conn].serial = self.last_serial;
        self.hung_up[conn] = false;
        Ok(())
    }

    /// The server is gone. Another one begins with what was kept, and perhaps a little more.
    fn restart(&mut self, lost: u64) -> Verdict {
        if let Some(cells) = &self.cells {
            let grants = self.model.grants_by_kind().into_iter();
            cells
                .borrow_mut()
                .extend(grants.map(|it| ("restart", it.1)));
        }
        let upto = self
            .records
            .len()
            .saturating_sub(lost as usize)
            .max(self.kept);
        self.records.truncate(upto);
        self.epoch += 1;
        self.rules.epoch = self.epoch;
        self.engine = Engine::new(self.rules.clone(), origin(0));
        self.twin = Engine::new(self.rules.clone(), origin(0));
        self.standby = Engine::new(self.rules.clone(), origin(0));
        self.model = Model::new(self.rules.clone(), 0);
        (self.draining, self.stops, self.storage_full) = (false, false, false);
        (self.kept, self.restored) = (upto, upto);
        (self.hung_up, self.popped) = ([false; CONNS], Vec::new());
        for conn in &mut self.conns {
            self.last_serial += 1;
            conn.serial = self.last_serial;
        }
        let records = std::mem::take(&mut self.records);
        for record in &records {
            self.apply(Input::Restore(record))?;
        }
        self.apply(Input::Serve {
            may_have_lost: lost > 0,
        })
    }

    /// Asks, again and again if the request is put off, with a turn in between.
    fn put(&mut self, input: Input<'_>) -> Verdict {
        if self.puts_off_searches {
            self.turn()?;
        }
        for _ in 0..10 {
            let is_put_off = self.tell(input.clone())?;
            if !is_put_off {
                return Ok(());
            }
            self.turn()?;
        }
        Err(format!("put off for ever: {input:?}"))
    }

    fn apply(&mut self, input: Input<'_>) -> Verdict {
        self.tell(input).map(drop)
    }

    /// Tells both; returns whether a request was put off.
    fn tell(&mut self, input: Input<'_>) -> Result<bool, String> {
        let mut out = Effects::new();
        if !(self.is_deaf)(&input) {
            self.engine.apply(self.now, input.clone(), &mut out);
            if self.puts_off_searches && matches!(input, Input::Request(..)) {
                // A search that is put off ends in the next turn, and its answer is the answer of
                // the request.
                self.engine.apply(self.now, Input::Time(u64::MAX), &mut out);
            }
        }
        let mut records: Vec<Record> = self.engine.take_records().collect();
        // Halfway through a turn a queue may wait for leases that are over and have not ended yet.
        if self.engine.next_deadline().is_none_or(|it| it > self.now) {
            self.engine.check();
        }
        if !(self.is_deaf)(&input) {
            let mut again = Effects::new();
            self.twin.apply(self.now, input.clone(), &mut again);
            if self.puts_off_searches && matches!(input, Input::Request(..)) {
                self.twin.apply(self.now, Input::Time(u64::MAX), &mut again);
            }
            same("effects of a twin", &again, &out)?;
            let again: Vec<Record> = self.twin.take_records().collect();
            same("records of a twin", &again, &records)?;
        }
        self.follow(&input, &records)?;
        if let Some(filter) = &mut self.filter {
            filter(&input, &mut out, &mut records);
        }
        let before = self.model.grants_by_kind();
        self.model.apply(self.now, &input, &out, &records)?;
        self.note_reached(&input, &before);
        if let Input::Restore(record) = &input {
            // A new journal begins with what was restored: here it is simply kept.
            self.records.push((*record).clone());
        }
        self.compare_state()?;
        self.records.extend(records);
        let mut is_put_off = false;
        for effect in out {
            match effect {
                Effect::NotYet(_) => is_put_off = true,
                Effect::Reply(_, Reply::Granted { token, .. } | Reply::Acquired { token, .. }) => {
                    let key = self.model.key_of(token).unwrap_or_default();
                    if !self.tokens.contains(&(key.clone(), token)) {
                        self.tokens.push((key, token));
                    }
                }
                Effect::Reply(_, Reply::Popped(popped)) => self.popped.push(popped),
                _ => {}
            }
        }
        Ok(is_put_off)
    }

    /// Notes the verb and the kind of session of each request, and how earlier grants ended.
    fn note_reached(&self, input: &Input<'_>, before: &[(u64, &'static str)]) {
        let Some(cells) = &self.cells else {
            return;
        };
        let verb = verb_of(input);
        let kind = match input {
            Input::Request(id, _) => self.model.kind_of_conn(*id),
            Input::RequestBy(..) => Some("HTTP owner"),
            _ => None,
        };
        let mut cells = cells.borrow_mut();
        cells.extend(kind.map(|kind| (verb, kind)));
        let after = self.model.grants_by_kind();
        for (grant, kind) in before {
            if !after.iter().any(|it| it.0 == *grant) {
                cells.insert((ending_of(verb), kind));
            }
        }
    }

    /// The standby has everything that outlives the process, after every record.
    fn follow(&mut self, input: &Input<'_>, records: &[Record]) -> Verdict {
        if !self.rules.durable {
            return Ok(());
        }
        let restored = match input {
            Input::Restore(record) => Some(*record),
            _ => None,
        };
        for record in restored.into_iter().chain(records) {
            let mut out = Effects::new();
            self.standby
                .apply(self.now, Input::Restore(record), &mut out);
            same("effects of a restored record", out.len(), 0)?;
            self.standby.check();
        }
        same(
            "what outlives the process",
            image(&self.engine),
            image(&self.standby),
        )
    }

    /// What can be seen of the engine is what the model has.
    fn compare_state(&self) -> Verdict {
        let counts = self.engine.counts();
        same("holders", counts.holders, self.model.grant_count())?;
        same("waiters", counts.waiters, self.model.waiter_count())?;
        same("tickets", counts.tickets, self.model.ticket_count())?;
        KEYS.iter()
            .try_for_each(|key| same_holders(&self.engine, &self.model, self.now, key))
    }
}

/// The records that would bring back what there is, in no order that counts.
fn image(engine: &Engine) -> Vec<String> {
    let image = engine.image();
    let mut image: Vec<String> = image.iter().map(|it| format!("{it:?}")).collect();
    image.sort_unstable();
    image
}

/// The holders of a key and its queue, as people see them.
pub fn same_holders(engine: &Engine, model: &Model, now: Nanos, key: &[u8]) -> Verdict {
    let view = engine.view(now);
    let theirs = view.key(key);
    let ours = model.holders_of(key);
    let holders = theirs.into_iter().flat_map(|it| it.holders()).enumerate();
    let holders: Vec<Shown> = holders
        .map(|(at, it)| Shown {
            // If one input makes several grants, their fences are known only from the answers.
            fence: ours.get(at).and_then(|ours| ours.fence).map(|_| it.fence.0),
            conn: it.conn,
            client: it.client.map(Into::into),
            name: it.name.map(Into::into),
            user: it.user.map(|user| User::new(user.to_owned())),
            hold: it.hold,
            age_ns: it.age_ns,
            left_ns: it.lease_left_ns,
        })
        .collect();
    same("holders of a key", &holders, &ours)?;
    let waiters = theirs.into_iter().flat_map(|it| it.waiters());
    let waiters: Vec<Shown> = waiters
        .map(|it| Shown {
            fence: None,
            conn: Some(it.conn).filter(|conn| conn.slot < u32::MAX),
            client: it.client.map(Into::into),
            name: it.name.map(Into::into),
            user: it.user.map(|user| User::new(user.to_owned())),
            hold: it.hold,
            age_ns: it.age_ns,
            left_ns: 0,
        })
        .collect();
    same("waiters of a key", &waiters, &model.waiters_of(key))
}

fn request(verb: &Verb) -> Request<'static> {
    let value = |at: u8| VALUES[usize::from(at)];
    match *verb {
        Verb::Acquire(key, mode, wait, lease) => Request::Acquire {
            key: KEYS[key],
            mode,
            wait: Millis(wait),
            lease: lease.map(Millis),
        },
        Verb::Enqueue(key, mode, lease) => Request::Enqueue {
            key: KEYS[key],
            mode,
            lease: lease.map(Millis),
        },
        Verb::Position(key) => Request::Position { key: KEYS[key] },
        Verb::Observe(key) => Request::Observe { key: KEYS[key] },
        Verb::Unobserve(key) => Request::Unobserve { key: KEYS[key] },
        Verb::Add(key, delta) => Request::Add {
            key: NAMES[key],
            delta,
            down: delta < 0,
        },
        Verb::Count(key) => Request::Count { key: NAMES[key] },
        Verb::SetCount(key, value) => Request::SetCount {
            key: NAMES[key],
            value,
        },
        Verb::Put(key, at, ttl) => Request::Put {
            key: NAMES[key],
            value: value(at),
            ttl: Millis(ttl),
        },
        Verb::Fetch(key) => Request::Fetch { key: NAMES[key] },
        Verb::Delete(key) => Request::Delete { key: NAMES[key] },
        Verb::Swap(key, old, new, ttl) => Request::Swap {
            key: NAMES[key],
            old: value(old),
            new: value(new),
            ttl: Millis(ttl),
        },
        Verb::Push(key, end, at) => Request::Push {
            key: NAMES[key],
            value: value(at),
            end,
        },
        Verb::Pop(key, end) => Request::Pop {
            key: NAMES[key],
            end,
        },
        Verb::AwaitPop(key, end, wait) => Request::AwaitPop {
            key: NAMES[key],
            end,
            wait: Millis(wait),
        },
        Verb::Length(key) => Request::Length { key: NAMES[key] },
        Verb::Part(key, start, stop) => Request::Range {
            key: NAMES[key],
            start,
            stop,
            form: FORM,
        },
        Verb::Meet(key, count, wait) => Request::Meet {
            key: NAMES[key],
            count,
            wait: Millis(wait),
        },
        Verb::Wait(..)
        | Verb::Listen(..)
        | Verb::Unlisten(..)
        | Verb::Signal(_)
        | Verb::Watch(_)
        | Verb::Unwatch(_)
        | Verb::Release(_)
        | Verb::Renew(..)
        | Verb::Reclaim(..)
        | Verb::Resign(_) => {
            unreachable!("needs a ticket, a token or a name of its own")
        }
    }
}

fn group_of(group: u8) -> &'static [u8] {
    [&b""[..], b"", b"g", b"h"][usize::from(group)]
}

/// Short enough that some parts do not fit.
const FORM: ListForm = ListForm {
    push: |text, value| text.extend_from_slice(value),
    bytes_max: 40,
};

fn secret(wrong: bool) -> Secret<'static> {
    Secret(if wrong { b"wrong" } else { b"secret" })
}

fn origin(fence: u64) -> Origin {
    Origin {
        fence,
        seed: [7, 9],
        salt_key: [3, 4, 5, 6],
    }
}

pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Verdict {
    if engine == model {
        Ok(())
    } else {
        Err(format!("{what}: {engine:?}, expected {model:?}"))
    }
}
