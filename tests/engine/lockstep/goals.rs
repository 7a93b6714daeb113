//! Pursues one cell of the table: makes a session of that kind, lets it send the verb, and brings
//! the ending about.
//!
//! Random inputs in between may spoil the attempt; then another case reaches the cell.

use crate::lockstep::asks::With;
use crate::lockstep::names::{BARRIERS, LISTS, RANGE_OWNERS, RESOURCES, keys};
use crate::lockstep::scene::{
    Aim, Holder, LONG, Line, MS, SHORT, Scene, Session, Stuff, Thing, Verdict,
};
use crate::lockstep::step::{Name, Restart, Span, Token, What};
use crate::lockstep::table::{Cell, Ending, Gets, Kind, Verb};

impl Scene<'_> {
    pub fn pursue(&mut self, cell: Cell) -> Verdict {
        let Cell { verb, kind, ending } = cell;
        let earlier = match verb {
            Verb::Reclaim if cell.is_own() => self.earlier_grant()?,
            Verb::RangeReclaim if cell.is_own() => self.earlier_bytes(kind)?,
            _ => With::default(),
        };
        let Some(mut session) = self.session(kind)? else {
            return Ok(());
        };
        if let Some(Thing {
            session: before, ..
        }) = self.owner_of(earlier)
        {
            session.index = before.index;
            if kind == Kind::Attached {
                self.join(session.index)?;
            }
        }
        match cell.is_own() {
            true => self.get(session, verb, ending, earlier)?,
            false => self.send_around(session, verb, ending)?,
        }
        if self.one_in(4) {
            self.noise()?;
        }
        self.bring_about(session, verb, ending, cell.is_own())
    }

    /// What an earlier life has left of bytes belongs to one client.
    fn owner_of(&self, with: With) -> Option<Thing> {
        let bytes = with.bytes?;
        let is_it = |it: &&Thing| {
            matches!(it.what, Stuff::Range { resource, owner, span, .. }
                if (resource, owner, span) == bytes)
        };
        self.things.iter().find(is_it).cloned()
    }

    /// Some connection is attached to this client.
    fn join(&mut self, client: usize) -> Verdict {
        if !self.lines.iter().any(|it| it.client == Some(client)) {
            let slot = self.free_line(false, |it| it.client.is_none() && !it.keeps)?;
            self.attach(slot, client, LONG)?;
        }
        Ok(())
    }

    // ---- what the verb itself gets ----

    fn get(&mut self, session: Session, verb: Verb, ending: Ending, earlier: With) -> Verdict {
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let may_wait = !matches!(ending, Ending::Release | Ending::Expiry | Ending::Break);
        let gets = verb.gets(session.kind);
        let waits = may_wait && (ending == Ending::TimeOut || self.one_in(4));
        let wait = match ending {
            Ending::TimeOut => SHORT,
            _ if waits || gets == Gets::Meeting => LONG,
            _ => 0,
        };
        let lease = match ending {
            Ending::Expiry => SHORT,
            _ => LONG,
        };
        let mut with = With {
            wait: Some(wait),
            lease: Some(lease),
            ..earlier
        };
        match gets {
            Gets::Grant => {
                let key = self.free_key(verb);
                with.key = Some(key);
                if waits {
                    self.block(session, verb, key)?;
                }
                if verb == Verb::Wait {
                    let place = With { wait: None, ..with };
                    self.send(slot, session, Verb::EnqueueLock, place)?;
                }
            }
            Gets::Range { .. } => {
                let bytes = self.free_bytes();
                with.bytes = Some(bytes);
                if waits {
                    self.block_bytes(session, bytes)?;
                }
            }
            Gets::Meeting => {
                let names: &[Name] = if verb == Verb::Meet {
                    &BARRIERS
                } else {
                    &LISTS
                };
                with.key = Some(self.one_of(names));
            }
            Gets::GrantAtOnce | Gets::RangeAtOnce | Gets::Subscription | Gets::Nothing => {}
        }
        match self.lines[slot].may_ask() {
            true => self.send(slot, session, verb, with),
            // It waits already, or could not enqueue.
            false => Ok(()),
        }
    }

    pub fn send(&mut self, slot: usize, session: Session, verb: Verb, with: With) -> Verdict {
        let conn = self.lines[slot].id;
        let request = self.request(conn, session, verb, with);
        self.ask(slot, session, verb, request)
    }

    /// A key of the usual kind that is free as far as the case knows.
    fn free_key(&mut self, verb: Verb) -> Name {
        let is_free = |key: &&Name| {
            let of_key = |it: &Thing| match it.what {
                Stuff::Grant { key, .. } | Stuff::Place { key } => Some(key),
                _ => None,
            };
            !self.things.iter().any(|it| of_key(it) == Some(**key))
        };
        let free: Vec<Name> = keys(verb).iter().filter(is_free).copied().collect();
        match free.is_empty() {
            true => self.one_of(keys(verb)),
            false => self.one_of(&free),
        }
    }

    fn free_bytes(&mut self) -> (Name, Name, Span) {
        let span = Span {
            start: 100 + 10 * self.chance.u64(..50),
            len: 10,
        };
        let resource = self.one_of(&RESOURCES);
        (resource, self.one_of(&RANGE_OWNERS), span)
    }

    /// Another connection, which is its own owner.
    fn other(&mut self, session: Session) -> Verdict<Session> {
        let is_other = |it: &Line| it.client.is_none() && !it.keeps;
        let mut index = self.free_line(false, is_other)?;
        if matches!(session.kind, Kind::Plain | Kind::Keep) && index == session.index {
            let own = self.lines[index].id;
            index = self.free_line(false, |it| is_other(it) && it.id != own)?;
        }
        let kind = Kind::Plain;
        Ok(Session { kind, index })
    }

    /// Another connection holds the key, so that the next request waits.
    fn block(&mut self, session: Session, verb: Verb, key: Name) -> Verdict {
        let other = self.other(session)?;
        let (verb, times) = match verb {
            Verb::Semaphore | Verb::EnqueueSemaphore => (Verb::Semaphore, 2),
            Verb::Read | Verb::EnqueueRead | Verb::Write | Verb::EnqueueWrite => (Verb::Write, 1),
            Verb::Elect => (Verb::Elect, 1),
            _ => (Verb::Lock, 1),
        };
        for _ in 0..times {
            let with = With {
                key: Some(key),
                wait: Some(0),
                lease: Some(LONG),
                ..With::default()
            };
            self.send(other.index, other, verb, with)?;
        }
        Ok(())
    }

    fn block_bytes(&mut self, session: Session, bytes: (Name, Name, Span)) -> Verdict {
        let other = self.other(session)?;
        let with = With {
            bytes: Some(bytes),
            wait: Some(0),
            ..With::default()
        };
        self.send(other.index, other, Verb::RangeLock, with)
    }

    // ---- what a session has beside it ----

    /// The session has something that can meet the ending, and then sends the verb.
    fn send_around(&mut self, session: Session, verb: Verb, ending: Ending) -> Verdict {
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        let mut with = With {
            wait: Some(0),
            ..With::default()
        };
        if ending == Ending::TimeOut {
            self.wait_around(slot, session)?;
        } else if session.kind == Kind::Registered {
            let bytes = Some(self.free_bytes());
            let first = With { bytes, ..with };
            self.send(slot, session, Verb::RangeLock, first)?;
        } else {
            let held = match verb {
                Verb::Resign | Verb::Observe | Verb::Unobserve => Verb::Elect,
                _ => Verb::Lock,
            };
            let lease = match ending {
                Ending::Expiry => SHORT,
                _ => LONG,
            };
            let key = self.free_key(held);
            let first = With {
                key: Some(key),
                lease: Some(lease),
                ..with
            };
            self.send(slot, session, held, first)?;
            let token = self.token_of(session, key);
            match verb {
                // A release is the ending itself.
                Verb::Release | Verb::Resign if ending != Ending::Release => {}
                Verb::Release | Verb::Resign | Verb::Reclaim | Verb::Renew | Verb::Position => {
                    (with.key, with.token) = (Some(key), token);
                    with.lease = Some(lease);
                }
                _ => {}
            }
        }
        let Some(slot) = self.line_of(session)? else {
            return Ok(());
        };
        self.send(slot, session, verb, with)
    }

    fn token_of(&self, session: Session, wanted: Name) -> Option<Token> {
        self.things.iter().rev().find_map(|it| match it.what {
            Stuff::Grant { key, token, .. } if key == wanted && self.is_of(it, session) => {
                Some(token)
            }
            _ => None,
        })
    }

    /// The session has a place in a queue, or waits on another connection.
    fn wait_around(&mut self, slot: usize, session: Session) -> Verdict {
        if session.kind == Kind::Registered {
            let bytes = self.free_bytes();
            self.block_bytes(session, bytes)?;
            let with = With {
                bytes: Some(bytes),
                wait: Some(SHORT),
                ..With::default()
            };
            return self.send(slot, session, Verb::RangeLock, with);
        }
        let key = self.free_key(Verb::Lock);
        self.block(session, Verb::Lock, key)?;
        let with = With {
            key: Some(key),
            wait: Some(SHORT),
            lease: Some(LONG),
            ..With::default()
        };
        let is_one_line = matches!(session.kind, Kind::Plain | Kind::Keep);
        let verb = match is_one_line || session.kind == Kind::Attached && self.one_in(2) {
            true => Verb::EnqueueLock,
            false => Verb::Lock,
        };
        self.send(slot, session, verb, with)
    }

    // ---- earlier lives ----

    /// A grant of a connection that a restart has left unclaimed.
    fn earlier_grant(&mut self) -> Verdict<With> {
        let known = |scene: &Self| {
            scene.things.iter().rev().find_map(|it| match it.what {
                Stuff::Grant { key, token, .. } if it.of == Holder::Unclaimed => Some((key, token)),
                _ => None,
            })
        };
        if known(self).is_none() {
            if let Some(session) = self.session(Kind::Plain)? {
                let with = With {
                    key: Some(self.free_key(Verb::Lock)),
                    wait: Some(0),
                    lease: Some(LONG),
                    ..With::default()
                };
                self.send(session.index, session, Verb::Lock, with)?;
            }
            self.restart(Ending::Restart)?;
        }
        let (key, token) = known(self).unzip();
        Ok(With {
            key,
            token,
            ..With::default()
        })
    }

    /// A client has bytes from before a restart.
    fn earlier_bytes(&mut self, kind: Kind) -> Verdict<With> {
        let Some(session) = self.session(kind)? else {
            return Ok(With::default());
        };
        let Some(slot) = self.line_of(session)? else {
            return Ok(With::default());
        };
        // Its time to live is long enough for a restart.
        if kind == Kind::Attached {
            self.attach(slot, session.index, LONG)?;
        }
        let bytes = Some(self.free_bytes());
        let with = With {
            bytes,
            wait: Some(0),
            ..With::default()
        };
        self.send(slot, session, Verb::RangeLock, with)?;
        self.restart(Ending::Restart)?;
        Ok(With {
            bytes,
            ..With::default()
        })
    }

    // ---- endings ----

    fn bring_about(
        &mut self,
        session: Session,
        verb: Verb,
        ending: Ending,
        is_own: bool,
    ) -> Verdict {
        match ending {
            Ending::Failover | Ending::Restart => return self.restart(ending),
            Ending::Drain => return self.drain(),
            Ending::Release
            | Ending::Expiry
            | Ending::TimeOut
            | Ending::Disconnect
            | Ending::Break
            | Ending::Detach => {}
        }
        let marked = self.marked(session, verb, is_own);
        let suits = |it: &&Thing| suits(it, session.kind, ending);
        let Some(thing) = marked.iter().rev().find(suits) else {
            return Ok(());
        };
        match ending {
            Ending::Release => self.let_go(session, thing),
            Ending::Expiry => self.run_out(session, thing),
            Ending::TimeOut => self.time_out(session, thing),
            Ending::Disconnect => {
                let slots = 0..self.lines.len();
                let mut lines = slots.filter(|&slot| {
                    let line = &self.lines[slot];
                    line.id == thing.conn
                        || session.kind == Kind::Attached && line.client == Some(session.index)
                });
                match lines.next() {
                    Some(slot) => self.reconnect(slot),
                    None => Ok(()),
                }
            }
            Ending::Break => self.break_it(thing),
            _ => self.detach(session.index),
        }
    }

    fn let_go(&mut self, session: Session, thing: &Thing) -> Verdict {
        let on_its_own = self.lines.iter().position(|it| it.id == thing.conn);
        let slot = match (&thing.what, on_its_own) {
            // A subscription ends where it began.
            (Stuff::Subscription { .. }, Some(slot)) => Some(slot),
            _ => self.line_of(session)?,
        };
        let Some(slot) = slot else { return Ok(()) };
        match thing.what {
            Stuff::Grant { key, token, .. } => {
                let verb = match self.one_in(6) {
                    true => Verb::Resign,
                    false => Verb::Release,
                };
                let with = With {
                    key: Some(key),
                    token: Some(token),
                    ..With::default()
                };
                // What the connection has that asked for an owner is not the owner's.
                let by = match (session.kind, thing.of) {
                    (Kind::Owner, Holder::Conn(_)) => self.session(Kind::Plain)?.unwrap_or(session),
                    _ => session,
                };
                let Some(slot) = self.line_of(by)? else {
                    return Ok(());
                };
                self.send(slot, by, verb, with)
            }
            Stuff::Range {
                resource,
                owner,
                span,
                ..
            } => {
                let with = With {
                    bytes: Some((resource, owner, span)),
                    ..With::default()
                };
                self.send(slot, session, Verb::RangeUnlock, with)
            }
            Stuff::Subscription {
                verb,
                pattern,
                group,
            } => {
                let verb = match verb {
                    Verb::Listen => Verb::Unlisten,
                    Verb::Watch => Verb::Unwatch,
                    _ => Verb::Unobserve,
                };
                let with = With {
                    topic: Some((pattern, group)),
                    ..With::default()
                };
                self.send(slot, session, verb, with)
            }
            Stuff::Place { .. } | Stuff::Wait { .. } => Ok(()),
        }
    }

    fn run_out(&mut self, session: Session, thing: &Thing) -> Verdict {
        match thing.what {
            Stuff::Grant { ends, .. } => self.pass_to(ends),
            Stuff::Range { .. } => {
                // With the time to live of its client, which is away.
                match session.kind {
                    Kind::Attached => {
                        if let Some(slot) = self.line_of(session)? {
                            self.attach(slot, session.index, SHORT)?;
                        }
                        for slot in 0..self.lines.len() {
                            if self.lines[slot].client == Some(session.index) {
                                self.reconnect(slot)?;
                            }
                        }
                    }
                    _ => {
                        let slot = self.free_line(true, |_| true)?;
                        self.register(slot, session.index, SHORT)?;
                    }
                }
                // What was asked before keeps it for as long as it said then.
                self.pass_to(self.now + (LONG + SHORT) * MS)?;
                self.pass_to(self.now + self.rules.grace_period * MS)
            }
            _ => self.pass_to(self.now + SHORT * MS),
        }
    }

    fn time_out(&mut self, session: Session, thing: &Thing) -> Verdict {
        match thing.what {
            Stuff::Wait { ends, .. } => self.pass_to(ends),
            Stuff::Place { key } => {
                let on_its_own = self.lines.iter().position(|it| it.id == thing.conn);
                let slot = match thing.of {
                    Holder::Conn(_) => on_its_own,
                    _ => self.line_of(session)?,
                };
                if let Some(slot) = slot {
                    let with = With {
                        key: Some(key),
                        wait: Some(SHORT),
                        ..With::default()
                    };
                    self.send(slot, session, Verb::Wait, with)?;
                }
                self.pass_to(self.now + SHORT * MS)
            }
            _ => Ok(()),
        }
    }

    fn break_it(&mut self, thing: &Thing) -> Verdict {
        let slot = self.free_line(false, |_| true)?;
        let conn = self.lines[slot].id;
        let what = match &thing.what {
            Stuff::Grant { key, token, .. } => match self.chance.u8(..3) {
                0 => What::Break(conn, key, token.fence),
                1 => What::BreakAll(conn, key, Some(token.fence)),
                _ => What::BreakAll(conn, key, None),
            },
            Stuff::Range {
                resource,
                span,
                client,
                ..
            } => match self.chance.u8(..3) {
                0 => What::BreakRanges(conn, resource, Some(*span)),
                1 => What::BreakRanges(conn, resource, None),
                _ => What::BreakRangesOf(conn, client.clone()),
            },
            _ => return Ok(()),
        };
        self.ask_other(slot, what, Aim::Other { wait: 0 })
    }

    pub fn detach(&mut self, client: usize) -> Verdict {
        let is_http = self.one_in(2);
        let slot = self.free_line(is_http, |it| it.client != Some(client))?;
        let of = self.client(client);
        let what = What::Detach(self.lines[slot].id, of);
        self.ask_other(slot, what, Aim::Client(client))?;
        self.pass(0, u64::MAX)
    }

    /// The server comes back, or another one takes over. Without records nothing comes back.
    pub fn restart(&mut self, ending: Ending) -> Verdict {
        if !self.rules.durable {
            return Ok(());
        }
        let count = self.door.record_count();
        if self.durable < count && !self.one_in(3) {
            self.durable = count;
            self.step(What::Durable(count))?;
        }
        let unheard = self.door.record_count() - self.durable;
        let lost = match self.one_in(2) {
            true => self.chance.u64(..=unheard),
            false => 0,
        };
        let highest = self.tokens.iter().map(|it| it.1.fence).max();
        let above = highest.unwrap_or(0) + self.chance.u64(..2_000);
        let how = Restart {
            lost,
            may_have_lost: self.one_in(6),
            failover_above: Some(above).filter(|_| ending == Ending::Failover),
        };
        self.now += self.chance.u64(..5) * MS;
        self.step(What::Restart(how))
    }

    /// A shutdown begins. Later requests are refused, and grants are released or cut off.
    pub fn drain(&mut self) -> Verdict {
        if !self.is_draining {
            self.step(What::Drain)?;
        }
        for _ in 0..self.chance.u8(..6) {
            self.noise()?;
        }
        if self.rules.durable && self.one_in(2) {
            for slot in 0..self.lines.len() {
                if self.one_in(2) {
                    self.reconnect(slot)?;
                }
            }
            // The leases of what was cut off do not end any more.
            if self.one_in(2) {
                self.pass(2 * LONG * MS, u64::MAX)?;
            }
        }
        let ending = self.one_of(&[Ending::Restart, Ending::Failover]);
        self.restart(ending)
    }
}

/// Whether such a thing of such a session can be ended so.
fn suits(thing: &Thing, kind: Kind, ending: Ending) -> bool {
    use Stuff::{Grant, Place, Range, Subscription, Wait};
    match (ending, &thing.what) {
        (Ending::Release, Grant { .. } | Range { .. } | Subscription { .. }) => true,
        (Ending::Break, Grant { .. } | Range { .. }) => true,
        (Ending::Expiry, Grant { .. } | Place { .. }) => true,
        (Ending::Expiry, Range { .. }) => matches!(kind, Kind::Attached | Kind::Registered),
        (Ending::TimeOut, Wait { .. } | Place { .. }) => true,
        (Ending::Release | Ending::Break | Ending::Expiry | Ending::TimeOut, _) => false,
        _ => true,
    }
}
