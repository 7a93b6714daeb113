//! Random inputs around the cells that a case pursues: other requests of all sessions, time,
//! hang-ups, a disk that is slow or full, crowds.

use crate::lockstep::asks::With;
use crate::lockstep::names::{
    CLIENTS, CROWD, HELLO, MANY, OWNERS, RANGE_OWNERS, REQUEST_IDS, RESOURCES, SHARES, USERS, keys,
};
use crate::lockstep::scene::{Aim, Holder, LONG, MS, SHORT, Scene, Session, Stuff, Thing, Verdict};
use crate::lockstep::step::{Mode, Ms, Name, Request, Span, Token, What};
use crate::lockstep::table::{Cell, Ending};
use crate::lockstep::table::{Kind, Verb, impossible};

/// Most of what one crowd does.
const CROWD_MAX: usize = 160;

/// More connections than a case has that is not crowded.
const CROWD_LINES_MIN: usize = 20;

/// A read-write lock that crowds read.
const READERS: Name = "rw.a";

impl Scene<'_> {
    /// One thing that happens.
    pub fn noise(&mut self) -> Verdict {
        if self.one_in(3) {
            self.tidy_up()?;
        }
        match self.chance.u32(..100) {
            0..=41 => self.some_request(),
            42..=61 => self.some_time(),
            62..=66 => self.some_progress(),
            67..=68 => self.some_hello(),
            69..=70 => self.some_hang_up(),
            71..=74 => self.some_stall(),
            75..=77 => {
                let slot = self.chance.usize(..self.lines.len());
                self.reconnect(slot)
            }
            78..=80 => self.some_client(),
            81..=84 => self.some_break(),
            85 => {
                let shares = self.one_of(&SHARES).to_vec();
                self.step(What::Shares(shares))
            }
            86 => {
                let slot = self.chance.usize(..self.lines.len());
                let overrun = !self.one_in(3);
                self.step(What::Overrun(self.lines[slot].id, overrun))
            }
            87 => {
                let slot = self.free_line(false, |_| true)?;
                let what = What::Grace(self.lines[slot].id, self.one_in(3));
                self.ask_other(slot, what, Aim::Other { wait: 0 })
            }
            88 => self.some_reclaim_done(),
            89 => self.spell_of(What::MemoryFull),
            90 if self.rules.durable => self.spell_of(What::StorageFull),
            91..=92 => self.some_crowd(),
            93 => self.tangle(),
            94 => self.ask_again(),
            95..=96 => self.hang_up_a_waiter(),
            97 if self.rules.durable => self.stall_a_client_that_holds(),
            98 if self.rules.durable => self.claim_late(),
            99 => self.let_a_place_run_out(),
            _ => self.pass_to(self.now),
        }
    }

    /// A session of any kind sends any verb.
    fn some_request(&mut self) -> Verdict {
        let kind = self.one_of(&Kind::ALL);
        let verb = self.one_of(&Verb::ALL);
        let ending = Ending::Release;
        if impossible(Cell { verb, kind, ending }).is_some() {
            return Ok(());
        }
        let Some(session) = self.session(kind)? else {
            return Ok(());
        };
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let mut with = With::default();
        if matches!(
            verb,
            Verb::Release | Verb::Renew | Verb::Reclaim | Verb::Resign
        ) {
            (with.key, with.token) = self.some_token(session);
        }
        if verb == Verb::Wait
            && let Some(key) = self.place_of(session)
        {
            with.key = Some(key);
        }
        if matches!(
            verb,
            Verb::RangeUnlock | Verb::RangeCancel | Verb::RangeReclaim
        ) {
            with.bytes = self.bytes_of(session);
        }
        self.send(slot, session, verb, with)
    }

    /// Nearly always one that was granted: of this session, of another one, or one that is over.
    fn some_token(&mut self, session: Session) -> (Option<Name>, Option<Token>) {
        let of = |it: &Thing| match it.what {
            Stuff::Grant { key, token, .. } => Some((key, token)),
            _ => None,
        };
        let own = self.things.iter().filter(|it| self.is_of(it, session));
        let own: Vec<_> = own.filter_map(of).collect();
        let live: Vec<_> = self.things.iter().filter_map(of).collect();
        let all = match self.chance.u8(..8) {
            0..=3 if !own.is_empty() => own,
            0..=5 if !live.is_empty() => live,
            _ => self.tokens.clone(),
        };
        if all.is_empty() || self.one_in(20) {
            return (None, None);
        }
        let (key, token) = self.one_of(&all);
        let salt = match self.one_in(20) {
            true => token.salt ^ 1 << self.chance.u32(..64),
            false => token.salt,
        };
        let key = Some(key).filter(|_| !self.one_in(20));
        (key, Some(Token { salt, ..token }))
    }

    fn place_of(&self, session: Session) -> Option<Name> {
        let own = self.things.iter().filter(|it| self.is_of(it, session));
        let mut places = own.filter_map(|it| match it.what {
            Stuff::Place { key } => Some(key),
            _ => None,
        });
        places.next()
    }

    fn bytes_of(&self, session: Session) -> Option<(Name, Name, Span)> {
        let own = self.things.iter().filter(|it| self.is_of(it, session));
        let mut bytes = own.filter_map(|it| match it.what {
            Stuff::Range {
                resource,
                owner,
                span,
                ..
            } => Some((resource, owner, span)),
            _ => None,
        });
        bytes.next()
    }

    fn some_time(&mut self) -> Verdict {
        let work = self.work();
        let to_next = self
            .door
            .next_deadline()
            .map(|it| it.saturating_sub(self.now));
        let ns = match self.chance.u8(..8) {
            0 => 0,
            1 => self.chance.u64(..3 * MS),
            2 => self.chance.u64(..30) * MS,
            3 => self.chance.u64(..2_000) * MS,
            4 => to_next.unwrap_or(0).saturating_sub(1),
            _ => to_next.unwrap_or(0),
        };
        self.pass(ns.min(100_000 * MS), work)
    }

    /// Some records are on disk.
    fn some_progress(&mut self) -> Verdict {
        let count = self.door.record_count();
        if !self.rules.durable || self.durable == count {
            return self.some_time();
        }
        self.durable = match self.one_in(2) {
            true => count,
            false => self.chance.u64(self.durable + 1..=count),
        };
        self.step(What::Durable(self.durable))
    }

    fn some_hello(&mut self) -> Verdict {
        let slot = self.free_line(false, |_| true)?;
        let id = self.lines[slot].id;
        let name = self.one_of(&HELLO);
        let name = Some(name).filter(|_| self.one_in(2));
        self.step(What::Hello(id, name))?;
        if self.one_in(2) {
            let detects = !self.one_in(4);
            self.step(What::DetectDeadlocks(id, detects))?;
        }
        if self.one_in(4) {
            let user = self.one_of(&USERS);
            let user = Some(user).filter(|_| !self.one_in(5));
            self.step(What::LetIn(id, user))?;
        }
        if self.one_in(8) && self.lines[slot].client.is_none() {
            let keeps = self.one_in(2);
            self.lines[slot].keeps = keeps;
            self.step(What::Keep(id, keeps))?;
        }
        Ok(())
    }

    fn some_hang_up(&mut self) -> Verdict {
        let slot = self.chance.usize(..self.lines.len());
        let line = &mut self.lines[slot];
        line.hung_up = !line.hung_up;
        let what = What::HungUp(line.id, line.hung_up);
        self.step(what)
    }

    /// The disk keeps requests waiting, or does not any more.
    fn some_stall(&mut self) -> Verdict {
        if !self.rules.durable {
            return Ok(());
        }
        let is_stalled_for = |slot: &usize| self.lines[*slot].stalled_for.is_some();
        let stalled_for = (0..self.lines.len()).find(is_stalled_for);
        match self.chance.u8(..3) {
            0 => {
                let slot = self.chance.usize(..self.lines.len());
                let line = &mut self.lines[slot];
                line.stalled = !line.stalled;
                let what = What::Stalled(line.id, line.stalled);
                self.step(what)
            }
            1 => match stalled_for {
                Some(slot) => self.serve_stalled(slot),
                None => self.stall_owner(),
            },
            _ => match stalled_for {
                Some(slot) => self.serve_stalled(slot),
                None => self.stall_client(),
            },
        }
    }

    /// The disk has got on, so the request is served that has waited for it.
    fn serve_stalled(&mut self, slot: usize) -> Verdict {
        let Some(over) = self.lines[slot].stalled_for.take() else {
            return Ok(());
        };
        match over {
            What::OwnerStalled(name, _) => {
                let index = OWNERS.iter().position(|it| *it == name).unwrap_or(0);
                let kind = Kind::Owner;
                let session = Session { kind, index };
                let (key, token) = self.some_token(session);
                let lease = Some(LONG);
                let with = With {
                    key,
                    token,
                    lease,
                    ..With::default()
                };
                self.send(slot, session, Verb::Renew, with)?;
            }
            What::ClientStalled(id, _) => {
                let index = CLIENTS.iter().position(|it| it.id == id).unwrap_or(2);
                self.register(slot, index, LONG)?;
            }
            _ => {}
        }
        self.step(over)
    }

    fn stall_owner(&mut self) -> Verdict {
        let slot = self.free_line(true, |_| true)?;
        let found = self.things.iter().find_map(|it| match (it.of, &it.what) {
            (Holder::Owner(owner), Stuff::Grant { key, token, .. }) => {
                Some((OWNERS[owner], *key, *token))
            }
            _ => None,
        });
        if let Some((owner, key, token)) = found
            && self.door.proves(owner, key, token)
        {
            self.lines[slot].stalled_for = Some(What::OwnerStalled(owner, false));
            self.step(What::OwnerStalled(owner, true))?;
        }
        Ok(())
    }

    fn stall_client(&mut self) -> Verdict {
        let slot = self.free_line(true, |_| true)?;
        let of = self.one_of(&CLIENTS);
        if self.door.may_speak_for(of) {
            self.lines[slot].stalled_for = Some(What::ClientStalled(of.id, false));
            self.step(What::ClientStalled(of.id, true))?;
        }
        Ok(())
    }

    fn some_client(&mut self) -> Verdict {
        let client = self.chance.usize(..CLIENTS.len());
        let ttl = self.one_of(&[0, SHORT, 300, LONG]);
        match self.chance.u8(..5) {
            0 => self.detach(client),
            1 | 2 => {
                let slot = self.free_line(true, |_| true)?;
                self.register(slot, client, ttl)
            }
            _ => {
                let slot = self.free_line(false, |_| true)?;
                self.attach(slot, client, ttl)
            }
        }
    }

    fn some_break(&mut self) -> Verdict {
        let slot = self.free_line(false, |_| true)?;
        let conn = self.lines[slot].id;
        let live = self.things.iter().filter_map(|it| match &it.what {
            Stuff::Grant { key, token, .. } => Some((*key, token.fence)),
            _ => None,
        });
        let live: Vec<_> = live.collect();
        let bytes = self.things.iter().filter_map(|it| match &it.what {
            Stuff::Range {
                resource,
                span,
                client,
                ..
            } => Some((*resource, *span, client.clone())),
            _ => None,
        });
        let bytes: Vec<_> = bytes.collect();
        let at = |count: usize, scene: &mut Self| scene.chance.usize(..count);
        let what = match self.chance.u8(..8) {
            0 => What::Break(conn, "lock.a", 3),
            1..=2 if !live.is_empty() => {
                let (key, fence) = self.one_of(&live);
                What::Break(conn, key, fence)
            }
            3..=4 if !live.is_empty() => {
                let (key, fence) = self.one_of(&live);
                let fence = Some(fence).filter(|_| self.one_in(2));
                What::BreakAll(conn, key, fence)
            }
            5 => What::BreakAll(conn, CROWD.0, None),
            6 if !bytes.is_empty() => {
                let (resource, span, _) = bytes[at(bytes.len(), self)];
                What::BreakRanges(conn, resource, Some(span).filter(|_| self.one_in(2)))
            }
            _ if !bytes.is_empty() => {
                let (.., client) = bytes[at(bytes.len(), self)].clone();
                What::BreakRangesOf(conn, client)
            }
            _ => What::BreakRanges(conn, RESOURCES[0], None),
        };
        self.ask_other(slot, what, Aim::Other { wait: 0 })
    }

    fn some_reclaim_done(&mut self) -> Verdict {
        let client = self.chance.usize(..CLIENTS.len());
        let of = self.client(client);
        let is_http = self.one_in(2);
        let slot = self.free_line(is_http, |it| is_http || it.client == Some(client))?;
        let secret = Some(of.secret).filter(|_| is_http);
        let what = What::ReclaimDone(self.lines[slot].id, of.id, secret);
        self.ask_other(slot, what, Aim::Other { wait: 0 })
    }

    /// Something is full for a while.
    pub fn spell_of(&mut self, full: fn(bool) -> What) -> Verdict {
        self.step(full(true))?;
        for _ in 0..self.chance.u8(1..9) {
            match self.one_in(2) {
                true => self.some_request()?,
                false => self.some_growth()?,
            }
        }
        self.step(full(false))
    }

    /// A connection asks for something that takes room, and waits for it.
    fn some_growth(&mut self) -> Verdict {
        let Some(session) = self.session(Kind::Plain)? else {
            return Ok(());
        };
        let verb = self.one_of(&[
            Verb::Meet,
            Verb::AwaitPop,
            Verb::Lock,
            Verb::EnqueueLock,
            Verb::RangeLock,
            Verb::Listen,
            Verb::Put,
            Verb::Push,
        ]);
        let with = With {
            wait: Some(LONG),
            ..With::default()
        };
        self.send(session.index, session, verb, with)
    }

    /// A place in a queue becomes a grant, whose lease ends before it is asked for.
    fn let_a_place_run_out(&mut self) -> Verdict {
        let kind = self.one_of(&[Kind::Plain, Kind::Attached, Kind::Keep]);
        let Some(session) = self.session(kind)? else {
            return Ok(());
        };
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let verb = self.one_of(&[
            Verb::EnqueueLock,
            Verb::EnqueueSemaphore,
            Verb::EnqueueRead,
            Verb::EnqueueWrite,
        ]);
        let with = With {
            key: Some(self.one_of(keys(verb))),
            lease: Some(SHORT),
            ..With::default()
        };
        self.send(slot, session, verb, with)?;
        self.pass(SHORT * MS, u64::MAX)?;
        match self.chance.u8(..3) {
            0 => self.send(slot, session, verb, with),
            1 => self.pass(60_000 * MS, u64::MAX),
            _ => self.send(slot, session, Verb::Wait, with),
        }
    }

    /// An owner repeats a request with the id that it had before, on other connections.
    fn ask_again(&mut self) -> Verdict {
        let kind = Kind::Owner;
        let index = self.chance.usize(..OWNERS.len());
        let session = Session { kind, index };
        let verb = self.one_of(&[Verb::Lock, Verb::Read, Verb::Write, Verb::Semaphore]);
        let key = self.one_of(keys(verb));
        let id = self.one_of(&REQUEST_IDS[2..]);
        for _ in 0..self.chance.u8(2..5) {
            let slot = self.free_line(true, |_| true)?;
            let verb = match self.one_in(8) {
                true => Verb::Read,
                false => verb,
            };
            let with = With {
                key: Some(key),
                id: Some(id),
                wait: Some(self.one_of(&[0, SHORT, LONG, LONG])),
                ..With::default()
            };
            self.send(slot, session, verb, with)?;
            match self.chance.u8(..4) {
                0 => self.let_go_of_some()?,
                1 => self.some_time()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Many wait for what a restart has left unclaimed, then it is claimed.
    fn claim_late(&mut self) -> Verdict {
        let unclaimed = self.things.iter().find_map(|it| match it.what {
            Stuff::Grant { key, token, .. } if it.of == Holder::Unclaimed => Some((key, token)),
            _ => None,
        });
        let Some((key, token)) = unclaimed else {
            return self.some_request();
        };
        self.tangle()?;
        let kind = self.one_of(&[Kind::Plain, Kind::Attached]);
        let Some(session) = self.session(kind)? else {
            return Ok(());
        };
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let with = With {
            key: Some(key),
            token: Some(token),
            lease: Some(LONG),
            ..With::default()
        };
        let verb = self.one_of(&[Verb::Reclaim, Verb::Renew]);
        self.send(slot, session, verb, with)
    }

    /// Many connections hold keys or ranges, then wait for the keys and ranges of others. Searches
    /// for deadlocks get a little work in each turn, while some holders release theirs.
    fn tangle(&mut self) -> Verdict {
        let slots = 0..self.lines.len();
        let mut slots: Vec<usize> = slots.filter(|&it| self.lines[it].may_ask()).collect();
        self.chance.shuffle(&mut slots);
        let count = self.chance.usize(2..10);
        slots.truncate(if self.is_crowded() { 4 * count } else { count });
        for wait in [0, 0, LONG] {
            for &slot in &slots {
                self.grab(slot, wait)?;
            }
        }
        for _ in 0..self.chance.u8(1..6) {
            let work = self.one_of(&[0, 300, 3_000, 20_000]);
            self.pass(0, work)?;
            if self.one_in(3) {
                self.let_go_of_some()?;
            }
        }
        Ok(())
    }

    /// A connection asks for one of few things, for whatever session it is one of.
    fn grab(&mut self, slot: usize, wait: Ms) -> Verdict {
        let line = &self.lines[slot];
        if !line.may_ask() {
            return Ok(());
        }
        let conn = line.id;
        let (kind, index) = match (line.is_http, line.client) {
            (true, _) => (Kind::Owner, self.chance.usize(..OWNERS.len())),
            (false, Some(client)) => (Kind::Attached, client),
            (false, None) if line.keeps => (Kind::Keep, slot),
            (false, None) => (Kind::Plain, slot),
        };
        let session = Session { kind, index };
        if kind != Kind::Owner && self.one_in(3) {
            self.step(What::DetectDeadlocks(conn, true))?;
        }
        let place = self.place_of(session).filter(|_| wait > 0);
        let verb = match place {
            Some(_) => Verb::Wait,
            None => self.one_of(&[
                Verb::Lock,
                Verb::Lock,
                Verb::EnqueueLock,
                Verb::Write,
                Verb::Read,
                Verb::Semaphore,
                Verb::RangeLock,
                Verb::RangeLock,
            ]),
        };
        if kind == Kind::Owner && verb.is_of_ranges() {
            return Ok(());
        }
        let bytes = Span {
            start: self.chance.u64(..6),
            len: self.chance.u64(1..3),
        };
        let bytes = (RESOURCES[0], self.one_of(&RANGE_OWNERS), bytes);
        let with = With {
            key: place,
            wait: Some(wait),
            lease: Some(LONG),
            bytes: Some(bytes),
            ..With::default()
        };
        self.send(slot, session, verb, with)
    }

    /// One session gets very many grants, or very many connections wait for one key. Then the
    /// session or the key's holder ends in one input, which takes several turns to undo.
    fn some_crowd(&mut self) -> Verdict {
        if !self.one_in(2) {
            return self.some_request();
        }
        if self.is_crowded() && self.one_in(2) {
            return self.crowd_of_waiters();
        }
        let kind = self.one_of(&[Kind::Plain, Kind::Attached, Kind::Owner, Kind::Keep]);
        let Some(session) = self.session(kind)? else {
            return Ok(());
        };
        let count = self.chance.usize(10..CROWD_MAX);
        let lease = Some(self.one_of(&[SHORT, 200, LONG]));
        let what = self.one_of(&Crowd::ALL);
        for at in 0..count {
            let Some(slot) = self.line_of(session)? else {
                break;
            };
            let name = MANY[(at + count) % (MANY.len() - 20)];
            self.ask_of_crowd(slot, session, (what, name), lease)?;
        }
        self.end_crowd(session, what)
    }

    fn ask_of_crowd(
        &mut self,
        slot: usize,
        session: Session,
        (what, name): (Crowd, Name),
        lease: Option<Ms>,
    ) -> Verdict {
        let conn = self.lines[slot].id;
        let (wait, token) = (0, None);
        let acquire = |key, mode| Request::Acquire {
            key,
            mode,
            wait,
            lease,
        };
        let (verb, key, request) = match what {
            Crowd::Slots => (
                Verb::Semaphore,
                CROWD.0,
                acquire(CROWD.0, Mode::Slot(CROWD.1)),
            ),
            Crowd::Readers => (Verb::Read, READERS, acquire(READERS, Mode::Read)),
            Crowd::Keys => (Verb::Lock, name, acquire(name, Mode::Slot(1))),
            Crowd::Places => {
                let (key, mode) = (name, Mode::Slot(1));
                let enqueue = Request::Enqueue { key, mode, lease };
                (Verb::EnqueueLock, name, enqueue)
            }
            Crowd::Watches => (Verb::Watch, name, Request::Watch { pattern: name }),
            Crowd::Bytes => return self.ask_for_bytes(slot, session),
        };
        let aim = match what {
            Crowd::Watches => Aim::Topic {
                pattern: name,
                group: "",
            },
            _ => Aim::Key { key, token, wait },
        };
        let input = match session.kind {
            Kind::Owner => What::RequestBy(conn, [OWNERS[session.index], REQUEST_IDS[0]], request),
            _ => What::Request(conn, request),
        };
        self.ask(slot, session, verb, (input, aim))
    }

    /// One more range lock, apart from all others.
    fn ask_for_bytes(&mut self, slot: usize, session: Session) -> Verdict {
        let (resource, owner) = (RESOURCES[1], RANGE_OWNERS[1]);
        let span = Span {
            start: 1_000 + 4 * self.chance.u64(..400),
            len: 2,
        };
        let with = With {
            bytes: Some((resource, owner, span)),
            wait: Some(0),
            ..With::default()
        };
        match session.kind {
            Kind::Owner => Ok(()),
            _ => self.send(slot, session, Verb::RangeLock, with),
        }
    }

    /// What the crowd has ends, a little in each turn, while others ask for it.
    fn end_crowd(&mut self, session: Session, what: Crowd) -> Verdict {
        let key = match what {
            Crowd::Slots => CROWD.0,
            _ => READERS,
        };
        let ending = self.chance.u8(..6);
        let operator = self.free_line(false, |_| true)?;
        let conn = self.lines[operator].id;
        match (ending, session.kind) {
            (0, _) => {
                let what = match what {
                    Crowd::Bytes => What::BreakRanges(conn, RESOURCES[1], None),
                    _ => What::BreakAll(conn, key, None),
                };
                self.ask_other(operator, what, Aim::Other { wait: 0 })?;
            }
            (1, Kind::Attached) => self.detach(session.index)?,
            (1 | 2, Kind::Plain | Kind::Keep) => self.reconnect(session.index)?,
            (3, _) => {
                let ends = self.things.iter().filter_map(|it| match it.what {
                    Stuff::Grant { ends, .. } if self.is_of(it, session) => Some(ends),
                    _ => None,
                });
                let last = ends.max().unwrap_or(self.now);
                self.now = self.now.max(last.min(self.now + 2 * LONG * MS));
            }
            (4, Kind::Attached) => {
                for slot in 0..self.lines.len() {
                    if self.lines[slot].client == Some(session.index) {
                        self.reconnect(slot)?;
                    }
                }
            }
            _ => {}
        }
        for _ in 0..self.chance.u8(2..8) {
            if self.one_in(2) {
                let work = self.one_of(&[0, 1_000, 20_000, 70_000]);
                self.pass(0, work)?;
            }
            let other = self.session(Kind::Plain)?;
            let Some(other) = other.filter(|_| self.one_in(2)) else {
                continue;
            };
            if what == Crowd::Slots {
                let lease = Some(LONG);
                self.ask_of_crowd(other.index, other, (what, key), lease)?;
            } else {
                let with = With {
                    key: Some(key),
                    ..With::default()
                };
                self.send(other.index, other, Verb::Write, with)?;
            }
        }
        Ok(())
    }

    /// Whether there are enough connections for a crowd of waiters.
    pub fn is_crowded(&self) -> bool {
        self.lines.len() > CROWD_LINES_MIN
    }

    /// Very many connections wait for one key, or for each other, and are served together.
    pub fn crowd_of_waiters(&mut self) -> Verdict {
        let Some(first) = self.session(Kind::Plain)? else {
            return Ok(());
        };
        let meets = self.one_in(3);
        // Nearly always free.
        let key = MANY[MANY.len() - 1 - self.chance.usize(..20)];
        let mut with = With {
            key: Some(key),
            wait: Some(0),
            lease: Some(LONG),
            ..With::default()
        };
        if !meets {
            self.send(first.index, first, Verb::Write, with)?;
        }
        let token = self.tokens.last().filter(|it| it.0 == key);
        let token = token.map(|it| it.1);
        with.wait = Some(self.one_of(&[SHORT, LONG]));
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            if index == first.index || line.is_http || line.client.is_some() || !line.may_ask() {
                continue;
            }
            let kind = if line.keeps { Kind::Keep } else { Kind::Plain };
            let session = Session { kind, index };
            if meets {
                let count = self.lines.len() as u32 / 2;
                let (key, wait) = (MANY[0], LONG);
                let meet = Request::Meet { key, count, wait };
                let what = What::Request(self.lines[index].id, meet);
                self.ask(index, session, Verb::Meet, (what, Aim::Other { wait }))?;
            } else {
                self.send(index, session, Verb::Read, with)?;
            }
        }
        with.token = token;
        match self.chance.u8(..4) {
            0 => self.reconnect(first.index)?,
            1 => self.now += SHORT * MS,
            2 => self.step(What::Drain)?,
            _ => self.send(first.index, first, Verb::Release, with)?,
        }
        for _ in 0..self.chance.u8(1..6) {
            let work = self.one_of(&[0, 20_000, 70_000]);
            self.pass(0, work)?;
        }
        Ok(())
    }

    /// One that waits hangs up, and what it waits for comes.
    fn hang_up_a_waiter(&mut self) -> Verdict {
        let waiting: Vec<usize> = self
            .things
            .iter()
            .filter(|it| matches!(it.what, Stuff::Wait { .. }))
            .map(|it| it.conn.slot as usize)
            .collect();
        if waiting.is_empty() {
            return self.tangle();
        }
        let slot = self.one_of(&waiting);
        let id = self.lines[slot].id;
        self.lines[slot].hung_up = true;
        self.step(What::HungUp(id, true))?;
        for _ in 0..self.chance.u8(1..4) {
            match self.chance.u8(..3) {
                0 => self.let_go_of_some()?,
                1 => self.meet_some()?,
                _ => self.some_time()?,
            }
        }
        if self.lines[slot].id == id && self.lines[slot].hung_up {
            self.lines[slot].hung_up = false;
            self.step(What::HungUp(id, false))?;
        }
        Ok(())
    }

    /// Some grant is released by a connection that knows its token.
    fn let_go_of_some(&mut self) -> Verdict {
        let live = self.things.iter().filter_map(|it| match it.what {
            Stuff::Grant { key, token, .. } => Some((key, token)),
            _ => None,
        });
        let live: Vec<_> = live.collect();
        let Some(session) = self.session(Kind::Plain)?.filter(|_| !live.is_empty()) else {
            return Ok(());
        };
        let (key, token) = self.one_of(&live);
        let with = With {
            key: Some(key),
            token: Some(token),
            ..With::default()
        };
        self.send(session.index, session, Verb::Release, with)
    }

    /// Some come to a barrier, or put a value into a list.
    fn meet_some(&mut self) -> Verdict {
        for _ in 0..2 {
            let Some(session) = self.session(Kind::Plain)? else {
                continue;
            };
            let verb = self.one_of(&[Verb::Meet, Verb::Meet, Verb::Push]);
            let wait = Some(LONG);
            let with = With {
                wait,
                ..With::default()
            };
            self.send(session.index, session, verb, with)?;
        }
        Ok(())
    }

    /// Requests of a client wait for the disk on several of its connections, while its leases end.
    fn stall_a_client_that_holds(&mut self) -> Verdict {
        let Some(session) = self.session(Kind::Attached)? else {
            return Ok(());
        };
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let with = With {
            wait: Some(0),
            lease: Some(SHORT),
            ..With::default()
        };
        self.send(slot, session, Verb::Lock, with)?;
        let lines = 0..self.lines.len();
        let lines = lines.filter(|&it| self.lines[it].client == Some(session.index));
        let mut lines: Vec<usize> = lines.collect();
        for &slot in &lines {
            if !self.lines[slot].stalled {
                self.lines[slot].stalled = true;
                self.step(What::Stalled(self.lines[slot].id, true))?;
            }
        }
        self.chance.shuffle(&mut lines);
        for slot in lines {
            self.pass(SHORT * MS, u64::MAX)?;
            if self.lines[slot].client == Some(session.index) && self.lines[slot].stalled {
                self.lines[slot].stalled = false;
                self.step(What::Stalled(self.lines[slot].id, false))?;
            }
        }
        self.pass(SHORT * MS, u64::MAX)
    }
}

/// What one session gets very much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    Slots,
    Readers,
    Keys,
    Places,
    Watches,
    Bytes,
}

impl Crowd {
    const ALL: [Self; 7] = [
        Self::Slots,
        Self::Slots,
        Self::Readers,
        Self::Keys,
        Self::Places,
        Self::Watches,
        Self::Bytes,
    ];
}
