//! Plays one case: sessions of every kind, their requests and their endings, with random inputs in
//! between.
//!
//! A case pursues some cells of the table (`table.rs`) one after another, with random inputs around
//! them (`noise.rs`), and counts which cells were reached, intended or not. It plays the server's
//! part: a parked connection sends no request, a request that was put off comes again unchanged, a
//! slot is used again only after its connection has left, time never goes back. Neutral: it knows
//! the engine only as a [`Door`].

use fastrand::Rng;

use crate::lockstep::names::{CLIENTS, OWNERS, WRONG_SECRET};
use crate::lockstep::step::{
    Attach, Conn, Heard, Ms, Name, News, Ns, OfClient, Popped, Rules, Span, Token, What,
};
use crate::lockstep::table::{Cell, Ending, Kind, Reached, Verb, impossible};

/// What a case needs of the engines. An error says what is wrong with them.
pub trait Door {
    fn apply(&mut self, now: Ns, what: &What) -> Verdict<Heard>;
    fn next_deadline(&self) -> Option<Ns>;
    fn record_count(&self) -> u64;
    fn is_held(&self, now: Ns, key: Name, fence: u64) -> bool;
    fn proves(&self, owner: Name, key: Name, token: Token) -> bool;
    fn may_speak_for(&mut self, of: OfClient) -> bool;
    fn has_ranges(&self, now: Ns, resource: Name, client: &str, owner: Name) -> bool;
    /// The connections that exist from now on.
    fn note_conns(&mut self, conns: Vec<Conn>);
}

pub type Verdict<T = ()> = Result<T, String>;

pub const MS: Ns = 1_000_000;

/// How many connections speak lines, and how many speak HTTP.
const LINES: usize = 7;
const HTTP_LINES: usize = 4;

/// A lease or a wait that does not end while a case pursues something else.
pub const LONG: Ms = 10_000;

/// One that ends soon.
pub const SHORT: Ms = 20;

/// A session: for a kind that is a connection its slot, for others the position of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub kind: Kind,
    pub index: usize,
}

/// The owner of a grant, a wait or a range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Conn(Conn),
    Client(usize),
    Owner(usize),
    /// Granted in an earlier life to a connection, and not claimed since.
    Unclaimed,
}

/// Something that a session has, and with which verbs it got it.
#[derive(Clone, Debug)]
pub struct Thing {
    pub of: Holder,
    pub session: Session,
    /// The connection that asked for it.
    pub conn: Conn,
    pub what: Stuff,
    /// Verbs that got it, as bits.
    own: u64,
    /// Verbs that its session has sent since.
    around: u64,
    /// It outlives its connection.
    is_kept: bool,
}

impl Thing {
    fn token(&self) -> Option<Token> {
        match self.what {
            Stuff::Grant { token, .. } => Some(token),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Stuff {
    Grant {
        key: Name,
        token: Token,
        ends: Ns,
    },
    /// A place in a queue, which may have become a grant.
    Place {
        key: Name,
    },
    /// A command that waits.
    Wait {
        ends: Ns,
    },
    Range {
        resource: Name,
        owner: Name,
        span: Span,
        client: String,
    },
    Subscription {
        verb: Verb,
        pattern: Name,
        group: Name,
    },
}

/// What a request is about, to know what its answer means.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    Key {
        key: Name,
        token: Option<Token>,
        wait: Ms,
    },
    Bytes {
        resource: Name,
        owner: Name,
        span: Span,
        wait: Ms,
    },
    Topic {
        pattern: Name,
        group: Name,
    },
    Client(usize),
    Other {
        wait: Ms,
    },
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub struct Asked {
    /// None for what an operator asks, or what makes a session.
    verb: Option<(Verb, Session)>,
    aim: Aim,
    what: What,
    is_put_off: bool,
    is_parked: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Line {
    pub id: Conn,
    pub is_http: bool,
    pub client: Option<usize>,
    pub keeps: bool,
    pub asked: Option<Asked>,
    pub hung_up: bool,
    pub stalled: bool,
    /// An owner or a client for which a request of it waits for the disk.
    pub stalled_for: Option<What>,
    pub overrun: bool,
    /// Values that may not have been sent yet.
    pub unsent: Vec<Popped>,
}

impl Line {
    fn new(id: Conn, is_http: bool) -> Self {
        Self {
            id,
            is_http,
            client: None,
            keeps: false,
            asked: None,
            hung_up: false,
            stalled: false,
            stalled_for: None,
            overrun: false,
            unsent: Vec::new(),
        }
    }

    pub fn may_ask(&self) -> bool {
        self.asked.is_none() && !self.hung_up && !self.stalled && self.stalled_for.is_none()
    }
}

/// One case.
pub struct Scene<'d> {
    pub door: &'d mut dyn Door,
    pub chance: Rng,
    pub rules: Rules,
    pub now: Ns,
    pub lines: Vec<Line>,
    serial: u32,
    pub things: Vec<Thing>,
    /// Tokens that were granted, the latest last.
    pub tokens: Vec<(Name, Token)>,
    /// The last record that is known to be on disk.
    pub durable: u64,
    pub is_draining: bool,
    pub reached: Reached,
    pub inputs: u64,
}

impl<'d> Scene<'d> {
    pub fn new(door: &'d mut dyn Door, rules: Rules, chance: Rng) -> Self {
        let mut scene = Self {
            door,
            chance,
            rules,
            now: 1,
            lines: Vec::new(),
            serial: 0,
            things: Vec::new(),
            tokens: Vec::new(),
            durable: 0,
            is_draining: false,
            reached: Reached::default(),
            inputs: 0,
        };
        scene.connect_all();
        scene
    }

    fn connect_all(&mut self) {
        let crowd = if self.chance.u8(..16) == 0 { 60 } else { 0 };
        self.lines.clear();
        for slot in 0..LINES + HTTP_LINES + crowd {
            let is_http = (LINES..LINES + HTTP_LINES).contains(&slot);
            let id = self.next_conn(slot);
            self.lines.push(Line::new(id, is_http));
        }
        self.tell_conns();
    }

    fn next_conn(&mut self, slot: usize) -> Conn {
        self.serial += 1;
        Conn {
            slot: slot as u32,
            serial: self.serial,
        }
    }

    fn tell_conns(&mut self) {
        let conns = self.lines.iter().map(|it| it.id).collect();
        self.door.note_conns(conns);
    }

    pub fn one_in(&mut self, count: u32) -> bool {
        self.chance.u32(..count) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.chance.usize(..all.len())]
    }

    // ---- inputs and answers ----

    /// One input, and what follows from its answers.
    pub fn step(&mut self, what: What) -> Verdict {
        self.inputs += 1;
        let heard = self.door.apply(self.now, &what)?;
        for said in &heard.effects {
            let Some(&to) = said.to.first() else { continue };
            let Some(line) = self.lines.get_mut(to.slot as usize) else {
                return Err(format!("no connection has slot {}: {}", to.slot, said.text));
            };
            match &said.news {
                News::Other => {}
                _ if line.id != to => return Err(format!("has left: {}", said.text)),
                News::Overrun => line.overrun = true,
                News::NotYet => match &mut line.asked {
                    Some(asked) => asked.is_put_off = true,
                    None => return Err(format!("has not asked: {}", said.text)),
                },
                news => match line.asked.take() {
                    Some(asked) => self.hear(to, asked, news.clone()),
                    None => return Err(format!("has not asked: {}", said.text)),
                },
            }
        }
        if let Some(conn) = what.asker() {
            self.note_parked(conn);
        }
        self.note_ending(&what);
        Ok(())
    }

    /// A request that is neither answered nor put off waits.
    fn note_parked(&mut self, conn: Conn) {
        let line = &mut self.lines[conn.slot as usize];
        let Some(asked) = line.asked.as_mut().filter(|it| !it.is_put_off) else {
            return;
        };
        if std::mem::replace(&mut asked.is_parked, true) {
            return;
        }
        let (Aim::Key { wait, .. } | Aim::Bytes { wait, .. } | Aim::Other { wait }) = asked.aim
        else {
            return;
        };
        if let Some((verb, session)) = asked.verb {
            let of = self.holder(session, conn, verb);
            let ends = self.now.saturating_add(wait.saturating_mul(MS));
            self.add(verb, session, of, conn, Stuff::Wait { ends });
        }
    }

    /// A request is answered.
    fn hear(&mut self, conn: Conn, asked: Asked, news: News) {
        let waited = self.take_thing(|it| matches!(it.what, Stuff::Wait { .. }) && it.conn == conn);
        if let Some(waited) = &waited {
            match &news {
                News::TimedOut => self.credit(waited, Ending::TimeOut),
                // A pop that times out has no other answer.
                News::Answer if matches!(asked.verb, Some((Verb::AwaitPop, _))) => {
                    self.credit(waited, Ending::TimeOut);
                }
                News::Refused(why) if why == "Detached" => self.credit(waited, Ending::Detach),
                News::Refused(why) if why == "Draining" => self.credit(waited, Ending::Drain),
                _ => {}
            }
        }
        if let News::Popped(popped) = &news {
            self.lines[conn.slot as usize].unsent.push(popped.clone());
        }
        match asked.verb {
            Some((verb, session)) => {
                let of = self.holder(session, conn, verb);
                let around = waited.map_or(0, |it| it.around);
                self.hear_verb((verb, session, of, around), conn, asked.aim, &news);
            }
            None => self.hear_other(conn, &asked.what, asked.aim, &news),
        }
    }

    fn hear_verb(
        &mut self,
        (verb, session, of, around): (Verb, Session, Holder, u64),
        conn: Conn,
        aim: Aim,
        news: &News,
    ) {
        match (aim, news) {
            (Aim::Key { key, .. }, News::Granted(token, lease)) => {
                self.tokens.push((key, *token));
                let place = self.take_place(verb, of, key);
                let before = self.take_thing(|it| it.token() == Some(*token));
                let ends = self.now.saturating_add(lease.saturating_mul(MS));
                let (key, token) = (key, *token);
                let at = self.add(verb, session, of, conn, Stuff::Grant { key, token, ends });
                self.things[at].around |= around;
                for earlier in [place, before].into_iter().flatten() {
                    if earlier.session == session {
                        self.things[at].own |= earlier.own;
                        self.things[at].around |= earlier.around;
                    }
                }
            }
            (Aim::Key { key, .. }, News::Queued) => {
                self.add(verb, session, of, conn, Stuff::Place { key });
            }
            (Aim::Key { key, .. }, News::TimedOut) => {
                if let Some(place) = self.take_place(verb, of, key) {
                    self.credit(&place, Ending::TimeOut);
                }
            }
            (Aim::Key { key, .. }, News::Refused(why)) => {
                if let Some(place) = self.take_place(verb, of, key)
                    && why == "LeaseExpired"
                {
                    self.credit(&place, Ending::Expiry);
                }
            }
            (Aim::Key { token, .. }, News::Renewed(lease)) => {
                let until = self.now.saturating_add(lease.saturating_mul(MS));
                for it in &mut self.things {
                    if let Stuff::Grant {
                        token: of, ends, ..
                    } = &mut it.what
                        && Some(*of) == token
                    {
                        *ends = until;
                    }
                }
            }
            (Aim::Key { token, .. }, News::Done)
                if matches!(verb, Verb::Release | Verb::Resign) =>
            {
                self.end_things(Ending::Release, |it| {
                    it.token().is_some_and(|of| Some(of) == token)
                });
            }
            (
                Aim::Bytes {
                    resource,
                    owner,
                    span,
                    ..
                },
                News::Done,
            ) => self.hear_of_bytes((verb, session, of, around), conn, resource, owner, span),
            (Aim::Topic { pattern, group }, News::Done) => {
                let begins = match verb {
                    Verb::Unlisten => Verb::Listen,
                    Verb::Unwatch => Verb::Watch,
                    Verb::Unobserve => Verb::Observe,
                    verb => {
                        let what = Stuff::Subscription {
                            verb,
                            pattern,
                            group,
                        };
                        self.add(verb, session, Holder::Conn(conn), conn, what);
                        return;
                    }
                };
                self.end_things(Ending::Release, |it| {
                    matches!(it.what, Stuff::Subscription { verb, pattern: of, group: in_group }
                        if verb == begins && of == pattern && in_group == group)
                        && it.of == Holder::Conn(conn)
                });
            }
            _ => {}
        }
    }

    fn hear_of_bytes(
        &mut self,
        (verb, session, of, around): (Verb, Session, Holder, u64),
        conn: Conn,
        resource: Name,
        owner: Name,
        span: Span,
    ) {
        let is_it = |it: &Thing| {
            matches!(it.what, Stuff::Range { resource: r, owner: o, span: s, .. }
                if r == resource && o == owner && s == span)
                && it.of == of
        };
        match verb {
            Verb::RangeLock | Verb::RangeReclaim => {
                let before = self.take_thing(is_it);
                let client = self.label(of);
                let what = Stuff::Range {
                    resource,
                    owner,
                    span,
                    client,
                };
                let at = self.add(verb, session, of, conn, what);
                self.things[at].around |= around;
                if let Some(before) = before.filter(|it| it.session == session) {
                    self.things[at].own |= before.own;
                    self.things[at].around |= before.around;
                }
            }
            Verb::RangeUnlock => self.end_things(Ending::Release, is_it),
            _ => {}
        }
    }

    /// What is no verb of the table was answered.
    fn hear_other(&mut self, conn: Conn, what: &What, aim: Aim, news: &News) {
        match (what, aim, news) {
            (What::Attach(..), Aim::Client(client), News::Attached) => {
                self.lines[conn.slot as usize].client = Some(client);
            }
            (What::Detach(..), Aim::Client(client), News::Done) => {
                self.end_things(Ending::Detach, |it| it.of == Holder::Client(client));
                for line in &mut self.lines {
                    line.client = line.client.filter(|it| *it != client);
                }
            }
            (What::Break(_, key, fence), _, News::Done) => self.end_broken(key, Some(*fence)),
            _ => {}
        }
    }

    fn end_broken(&mut self, key: Name, fence: Option<u64>) {
        self.end_things(Ending::Break, |it| {
            matches!(it.what, Stuff::Grant { key: of, token, .. }
                if of == key && fence.is_none_or(|it| it == token.fence))
        });
    }

    /// What the input itself ends.
    fn note_ending(&mut self, what: &What) {
        match what {
            What::Time(_) => self.note_expired(),
            What::BreakAll(_, key, fence) => self.end_broken(key, *fence),
            What::BreakRanges(_, resource, bytes) => self.end_things(Ending::Break, |it| {
                matches!(it.what, Stuff::Range { resource: of, span, .. }
                    if of == *resource && bytes.is_none_or(|it| overlap(it, span)))
            }),
            What::BreakRangesOf(_, client) => self.end_things(
                Ending::Break,
                |it| matches!(&it.what, Stuff::Range { client: of, .. } if of == client),
            ),
            What::Disconnected(conn) | What::CutOff(conn) => self.note_left(*conn),
            What::Drain => {
                self.is_draining = true;
                for thing in &self.things {
                    credit(&mut self.reached, thing, Ending::Drain);
                }
            }
            What::Restart(how) => {
                let ending = match how.failover_above {
                    Some(_) => Ending::Failover,
                    None => Ending::Restart,
                };
                self.note_restarted(ending);
            }
            _ => {}
        }
    }

    /// What is not held any more, and was not released, has run out.
    fn note_expired(&mut self) {
        let mut at = 0;
        while at < self.things.len() {
            let is_there = match &self.things[at].what {
                Stuff::Grant { key, token, .. } => self.door.is_held(self.now, key, token.fence),
                Stuff::Range {
                    resource,
                    owner,
                    client,
                    ..
                } => self.door.has_ranges(self.now, resource, client, owner),
                _ => true,
            };
            if is_there {
                at += 1;
            } else {
                let thing = self.things.swap_remove(at);
                self.credit(&thing, Ending::Expiry);
            }
        }
    }

    fn note_left(&mut self, conn: Conn) {
        let client = self.lines[conn.slot as usize].client;
        let has_others = |client| {
            let others = self.lines.iter().filter(|it| it.id != conn);
            others.filter(|it| it.client == Some(client)).count() > 0
        };
        let is_last = client.is_some_and(|it| !has_others(it));
        let reached = &mut self.reached;
        self.things.retain(|it| {
            let is_own = it.of == Holder::Conn(conn);
            let is_wait = matches!(it.what, Stuff::Wait { .. }) && it.conn == conn;
            let is_of_client = client.is_some_and(|client| it.of == Holder::Client(client));
            if is_own || is_wait || is_of_client || it.conn == conn {
                credit(reached, it, Ending::Disconnect);
            }
            let is_place = matches!(it.what, Stuff::Place { .. });
            let stays = it.is_kept && matches!(it.what, Stuff::Grant { .. });
            !(is_wait || is_own && !stays || is_last && is_of_client && is_place)
        });
    }

    /// No connection is left. Some of the earlier grants, ranges and places exist again.
    fn note_restarted(&mut self, ending: Ending) {
        self.is_draining = false;
        self.durable = 0;
        for mut thing in std::mem::take(&mut self.things) {
            self.credit(&thing, ending);
            let is_there = match &thing.what {
                Stuff::Grant { key, token, .. } => self.door.is_held(self.now, key, token.fence),
                Stuff::Range {
                    resource,
                    owner,
                    client,
                    ..
                } => {
                    matches!(thing.of, Holder::Client(_))
                        && self.door.has_ranges(self.now, resource, client, owner)
                }
                _ => false,
            };
            if is_there {
                if let Holder::Conn(_) = thing.of {
                    thing.of = Holder::Unclaimed;
                }
                self.things.push(thing);
            }
        }
        self.connect_all();
    }

    // ---- what sessions have ----

    fn add(&mut self, verb: Verb, session: Session, of: Holder, conn: Conn, what: Stuff) -> usize {
        let is_kept = self.lines[conn.slot as usize].keeps || !self.rules.auto_release;
        self.things.push(Thing {
            of,
            session,
            conn,
            what,
            own: 1 << verb as u64,
            around: 0,
            is_kept,
        });
        self.things.len() - 1
    }

    fn take_thing(&mut self, is_it: impl Fn(&Thing) -> bool) -> Option<Thing> {
        let at = self.things.iter().position(is_it)?;
        Some(self.things.swap_remove(at))
    }

    /// The place of an owner in the queue of a key, if the verb is the one that waits for it.
    fn take_place(&mut self, verb: Verb, of: Holder, key: Name) -> Option<Thing> {
        let is_it =
            |it: &Thing| it.of == of && matches!(it.what, Stuff::Place { key: at } if at == key);
        match verb {
            Verb::Wait => self.take_thing(is_it),
            _ => None,
        }
    }

    fn end_things(&mut self, ending: Ending, is_it: impl Fn(&Thing) -> bool) {
        while let Some(thing) = self.take_thing(&is_it) {
            self.credit(&thing, ending);
        }
    }

    fn credit(&mut self, thing: &Thing, ending: Ending) {
        credit(&mut self.reached, thing, ending);
    }

    /// The owner of what a verb gets.
    pub fn holder(&self, session: Session, conn: Conn, verb: Verb) -> Holder {
        let is_of_owner = matches!(
            verb,
            Verb::Lock
                | Verb::Semaphore
                | Verb::Read
                | Verb::Write
                | Verb::Elect
                | Verb::Release
                | Verb::Renew
                | Verb::Resign
        );
        match session.kind {
            Kind::Attached | Kind::Registered => Holder::Client(session.index),
            Kind::Owner if is_of_owner => Holder::Owner(session.index),
            Kind::Owner | Kind::Plain | Kind::Keep => Holder::Conn(conn),
        }
    }

    /// How lists of range locks call it.
    fn label(&self, of: Holder) -> String {
        match of {
            Holder::Client(client) => CLIENTS[client].id.to_owned(),
            Holder::Conn(conn) => format!("#{}", conn.serial),
            Holder::Owner(_) | Holder::Unclaimed => String::new(),
        }
    }

    /// Whether the session has it: a connection has what its present life got.
    pub fn is_of(&self, thing: &Thing, session: Session) -> bool {
        let is_there = match (session.kind, thing.of) {
            (Kind::Plain | Kind::Keep, Holder::Conn(conn)) => self.lines[session.index].id == conn,
            _ => true,
        };
        thing.session == session && is_there
    }

    // ---- sessions ----

    /// A free connection for which `is_it` is true. If there is none, a new one takes the place of
    /// another.
    pub fn free_line(&mut self, is_http: bool, is_it: impl Fn(&Line) -> bool) -> Verdict<usize> {
        let all = 0..self.lines.len();
        let fits: Vec<usize> = all
            .clone()
            .filter(|&slot| {
                let line = &self.lines[slot];
                line.is_http == is_http && line.may_ask() && is_it(line)
            })
            .collect();
        if !fits.is_empty() {
            return Ok(self.one_of(&fits));
        }
        let others: Vec<usize> = all
            .filter(|&slot| self.lines[slot].is_http == is_http)
            .collect();
        let slot = self.one_of(&others);
        self.reconnect(slot)?;
        Ok(slot)
    }

    /// The connection ends, and another takes its slot.
    pub fn reconnect(&mut self, slot: usize) -> Verdict {
        let is_cut_off = self.is_draining && self.rules.durable && self.one_in(2);
        let id = self.lines[slot].id;
        self.step(match is_cut_off {
            true => What::CutOff(id),
            false => What::Disconnected(id),
        })?;
        if let Some(stalled_for) = self.lines[slot].stalled_for.take() {
            self.step(stalled_for)?;
        }
        let mut unsent = std::mem::take(&mut self.lines[slot].unsent);
        let id = self.next_conn(slot);
        self.lines[slot] = Line::new(id, self.lines[slot].is_http);
        self.tell_conns();
        while let Some(popped) = unsent.pop() {
            self.step(What::Unsent(popped))?;
        }
        Ok(())
    }

    /// A session of this kind that can ask for something; none if the rules do not let it be.
    pub fn session(&mut self, kind: Kind) -> Verdict<Option<Session>> {
        let index = match kind {
            Kind::Plain => self.free_line(false, |it| it.client.is_none() && !it.keeps)?,
            Kind::Keep => {
                let slot = self.free_line(false, |it| it.client.is_none())?;
                if !self.lines[slot].keeps {
                    self.lines[slot].keeps = true;
                    self.step(What::Keep(self.lines[slot].id, true))?;
                }
                slot
            }
            Kind::Owner => self.chance.usize(..OWNERS.len()),
            Kind::Attached => {
                let client = self.chance.usize(..2);
                for _ in 0..3 {
                    let conns = self.lines.iter().filter(|it| it.client == Some(client));
                    if conns.count() >= 2 {
                        break;
                    }
                    let slot = self.free_line(false, |it| it.client.is_none() && !it.keeps)?;
                    let ttl = self.one_of(&[SHORT, LONG]);
                    self.attach(slot, client, ttl)?;
                }
                if !self.lines.iter().any(|it| it.client == Some(client)) {
                    return Ok(None);
                }
                client
            }
            Kind::Registered => {
                let client = 2 + self.chance.usize(..2);
                let slot = self.free_line(true, |_| true)?;
                self.register(slot, client, LONG)?;
                client
            }
        };
        Ok(Some(Session { kind, index }))
    }

    /// A connection on which the session can ask for something.
    pub fn line_of(&mut self, session: Session) -> Verdict<Option<usize>> {
        match session.kind {
            Kind::Plain | Kind::Keep => {
                Ok(Some(session.index).filter(|&it| self.lines[it].may_ask()))
            }
            Kind::Attached => {
                let is_it = |it: &Line| it.client == Some(session.index) && it.may_ask();
                let slots = 0..self.lines.len();
                let fits: Vec<usize> = slots.filter(|&it| is_it(&self.lines[it])).collect();
                Ok((!fits.is_empty()).then(|| self.one_of(&fits)))
            }
            Kind::Owner | Kind::Registered => self.free_line(true, |_| true).map(Some),
        }
    }

    /// What a client is asked with. Now and then with a wrong secret.
    pub fn client(&mut self, client: usize) -> OfClient {
        let it = CLIENTS[client];
        match self.one_in(50) {
            true => OfClient {
                secret: WRONG_SECRET,
                ..it
            },
            false => it,
        }
    }

    pub fn attach(&mut self, slot: usize, client: usize, ttl: Ms) -> Verdict {
        let attach = self.attach_with(client, ttl);
        let what = What::Attach(self.lines[slot].id, attach);
        self.ask_other(slot, what, Aim::Client(client))
    }

    pub fn register(&mut self, slot: usize, client: usize, ttl: Ms) -> Verdict {
        let attach = self.attach_with(client, ttl);
        let what = What::Register(self.lines[slot].id, attach);
        self.ask_other(slot, what, Aim::Client(client))
    }

    fn attach_with(&mut self, client: usize, ttl: Ms) -> Attach {
        let adapter = match self.chance.u8(..8) {
            0 => Some("gw"),
            1 => Some("web"),
            _ => None,
        };
        Attach {
            client: self.client(client),
            adapter,
            ttl,
        }
    }

    // ---- asking ----

    /// A session sends a verb, if the connection may ask.
    pub fn ask(
        &mut self,
        slot: usize,
        session: Session,
        verb: Verb,
        (what, aim): (What, Aim),
    ) -> Verdict {
        if !self.lines[slot].may_ask() {
            return Ok(());
        }
        for at in 0..self.things.len() {
            if self.is_of(&self.things[at], session) {
                self.things[at].around |= 1 << verb as u64;
            }
        }
        self.put(slot, Some((verb, session)), what, aim)
    }

    /// Something that is no verb of the table is asked for, if the connection may ask.
    pub fn ask_other(&mut self, slot: usize, what: What, aim: Aim) -> Verdict {
        match self.lines[slot].may_ask() {
            true => self.put(slot, None, what, aim),
            false => Ok(()),
        }
    }

    fn put(&mut self, slot: usize, verb: Option<(Verb, Session)>, what: What, aim: Aim) -> Verdict {
        self.lines[slot].asked = Some(Asked {
            verb,
            aim,
            what: what.clone(),
            is_put_off: false,
            is_parked: false,
        });
        self.step(what)?;
        for _ in 0..6 {
            if !self.is_put_off(slot) {
                break;
            }
            self.go_on(slot)?;
        }
        Ok(())
    }

    fn is_put_off(&self, slot: usize) -> bool {
        let asked = self.lines[slot].asked.as_ref();
        asked.is_some_and(|it| it.is_put_off)
    }

    /// Time passes, and a request that was put off is put again.
    pub fn go_on(&mut self, slot: usize) -> Verdict {
        let work = self.work();
        self.pass(0, work)?;
        let line = &mut self.lines[slot];
        if let Some(asked) = line.asked.as_mut().filter(|it| it.is_put_off)
            && !line.hung_up
        {
            asked.is_put_off = false;
            let what = asked.what.clone();
            self.step(what)?;
        }
        Ok(())
    }

    // ---- time ----

    /// How much work may be done when time passes.
    pub fn work(&mut self) -> u64 {
        match self.chance.u8(..6) {
            0 => 0,
            1 => self.chance.u64(..2_000),
            2 => self.chance.u64(..200_000),
            3 => 5_000_000,
            _ => u64::MAX,
        }
    }

    pub fn pass(&mut self, ns: Ns, work: u64) -> Verdict {
        self.now = self.now.saturating_add(ns);
        self.step(What::Time(work))
    }

    /// Time passes until this instant, and everything that is due by then is done.
    pub fn pass_to(&mut self, instant: Ns) -> Verdict {
        self.now = self
            .now
            .max(instant.min(self.now.saturating_add(100_000 * MS)));
        for _ in 0..20 {
            self.step(What::Time(u64::MAX))?;
            if self.door.next_deadline().is_none_or(|it| it > self.now) {
                break;
            }
        }
        Ok(())
    }

    /// Reconnects connections that have to be closed, and sends requests that were put off again.
    pub fn tidy_up(&mut self) -> Verdict {
        for slot in 0..self.lines.len() {
            if self.lines[slot].overrun {
                self.reconnect(slot)?;
            } else if self.is_put_off(slot) {
                self.go_on(slot)?;
            }
        }
        Ok(())
    }

    /// The things of a session that a verb got, or that existed when the verb was sent. The latest
    /// is last.
    pub fn marked(&self, session: Session, verb: Verb, is_own: bool) -> Vec<Thing> {
        let marks = |it: &&Thing| match is_own {
            true => it.own,
            false => it.own | it.around,
        };
        let of_verb = |it: &&Thing| marks(it) >> verb as u64 & 1 == 1;
        let all = self.things.iter().filter(|it| self.is_of(it, session));
        all.filter(of_verb).cloned().collect()
    }
}

/// Counts the cells that are reached when the thing meets such an ending.
fn credit(reached: &mut Reached, thing: &Thing, ending: Ending) {
    for verb in Verb::ALL {
        let bit = 1 << verb as u64;
        let kind = thing.session.kind;
        let can_meet = verb.gets(kind).can_meet(ending);
        let counts = match can_meet {
            true => thing.own & bit != 0,
            false => thing.around & bit != 0,
        };
        let cell = Cell { verb, kind, ending };
        if counts && impossible(cell).is_none() {
            reached.note(cell);
        }
    }
}

fn overlap(one: Span, other: Span) -> bool {
    let last = |it: Span| match it.len {
        0 => u64::MAX,
        len => it.start.saturating_add(len - 1),
    };
    one.start <= last(other) && other.start <= last(one)
}
