//! The lock table as an executable specification: the changes and the effects of each input.
//!
//! [`Model::apply`] gets every input of the engine with its time, and the engine's effects. It
//! works out the expected effects, and reports the first difference. The model is naive on purpose:
//! vectors and linear scans, no time slices, no indices. It shares types with the engine
//! (`engine::types`), and no decision.
//!
//! Where the protocol leaves a choice to the engine, the model follows the choice and checks that
//! it was allowed (`follow.rs`): salts of tokens, the order of fences among grants of one input on
//! different keys, which idle key is forgotten first, the order of effects about different keys,
//! and whether there was memory for a request while memory is short.
//!
//! One file per primitive. Each begins with its rules in plain English. To add a primitive, add a
//! file, a field in [`Model`], a line in `decide`, and one in [`Model::next_deadline`] if it has
//! deadlines.

mod barrier;
mod counter;
mod deadlock;
mod follow;
mod lease;
mod limits;
mod list;
mod lock;
mod look;
mod ranges;
mod record;
mod session;
mod subscription;
mod ticket;
mod time;
mod value;

use std::collections::BTreeMap;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{
    Effect, Input, Mode, Push, Record, Refusal, Reply, Request, User, Value,
};

pub use self::look::Shown;
pub use self::ranges::ShownRange;
pub(crate) use self::session::{Client, Life};

/// A name that clients chose.
pub(crate) type Name = Vec<u8>;

/// What a session is called in the model. Never used again.
pub(crate) type SessionId = u32;

/// What a waiter is called in the model, in the order in which waiters came.
pub(crate) type WaiterId = u64;

/// What a grant is called in the model, in the order in which grants were made.
pub(crate) type GrantId = u64;

/// The lock table, and everything else that the engine keeps.
pub struct Model {
    pub(crate) rules: Rules,
    /// The time of the input. Leases and waits begin here.
    pub(crate) now: Nanos,
    /// The instant that is decided for: `now`, or the earlier deadline that is handled late.
    pub(crate) moment: Nanos,
    pub(crate) draining: bool,
    /// The server stops and cuts connections off.
    pub(crate) cuts_off: bool,
    pub(crate) memory_full: bool,
    pub(crate) storage_full: bool,
    pub(crate) conns: Vec<Conn>,
    pub(crate) sessions: Vec<Session>,
    /// All waiters of all queues, in the order in which they came.
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) keys: Vec<lock::LockKey>,
    /// All grants, oldest first.
    pub(crate) grants: Vec<Grant>,
    pub(crate) tickets: Vec<ticket::Ticket>,
    /// Grants whose lease has ended, with their keys, and grants that were broken.
    pub(crate) lapsed: Vec<(GrantId, Name)>,
    /// What is known of the token of each grant.
    pub(crate) tokens: BTreeMap<GrantId, follow::Known>,
    /// The grants of this input.
    pub(crate) born: Vec<GrantId>,
    pub(crate) departing: Vec<session::Departure>,
    pub(crate) counters: BTreeMap<Name, counter::Counter>,
    pub(crate) values: BTreeMap<Name, value::Stored>,
    pub(crate) lists: BTreeMap<Name, Vec<Value>>,
    pub(crate) barriers: Vec<barrier::Barrier>,
    pub(crate) subscriptions: Vec<subscription::Subscription>,
    pub(crate) turns: Vec<subscription::Turn>,
    pub(crate) records: record::Records,
    pub(crate) ranges: ranges::Ranges,
    pub(crate) stalled_names: BTreeMap<String, (u32, Nanos)>,
    pub(crate) asked_for: BTreeMap<String, u32>,
    /// Keys whose first waiter has hung up since it was last served, and since when.
    pub(crate) unserved: Vec<(Name, Nanos)>,
    /// When time was last said to have passed.
    pub(crate) last_time: Nanos,
    /// How many grants were restored and not ended while records were read.
    pub(crate) restored: u64,
    pub(crate) last_fence: u64,
    pub(crate) last_number: u64,
    /// How many inputs there were.
    pub(crate) inputs: u64,
    /// The name that is spoken about.
    pub(crate) about: Option<Name>,
    /// What should be said because of this input.
    pub(crate) expected: Vec<Expected>,
    /// What the engine said, for choices that are followed.
    pub(crate) seen: Vec<Effect>,
    /// And what it recorded.
    pub(crate) seen_records: Vec<Record>,
}

/// A connection that has asked for something and is here.
pub(crate) struct Conn {
    pub id: ConnId,
    /// The session that the connection was born with.
    pub own: SessionId,
    /// The session that it acquires for: its own, or the client it is attached to.
    pub session: SessionId,
    /// The connection said `hello`, so it is notified of lost grants.
    pub introduced: bool,
    /// Its requests are refused rather than wait for themselves.
    pub detects: bool,
    /// Its grants outlive it.
    pub keeps: bool,
    /// Its peer has hung up, and it was not served to its end yet.
    pub hung_up: bool,
    /// It has left too much unread: nothing is pushed to it.
    pub overrun: bool,
    /// The engine reported this connection to the server as overrun.
    pub reported: bool,
    pub stalled_since: Option<Nanos>,
}

/// A holder of keys and ranges: a connection for itself, a client, an HTTP owner, or no owner at
/// all.
pub(crate) struct Session {
    pub id: SessionId,
    pub kind: Kind,
    pub life: Life,
    /// From `hello`, the id of the client, or the name of the HTTP owner.
    pub name: Option<String>,
    pub user: Option<User>,
    /// The server has cut it off: its leases do not end any more.
    pub stays: bool,
}

/// What a session is.
pub(crate) enum Kind {
    /// A connection, for itself.
    Conn(ConnId),
    /// A client that connections attach to, or that is registered.
    Client(Client),
    /// An owner that is known by its name (HTTP).
    Named,
    /// Grants that were restored and that no client has claimed.
    Nobody,
}

/// One grant of a key.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub id: GrantId,
    pub key: Name,
    pub session: SessionId,
    pub mode: Mode,
    pub since: Nanos,
    pub deadline: Nanos,
    /// It outlives its connection.
    pub kept: bool,
    /// What the records have about its lease.
    pub recorded: record::Lease,
    /// The id of the HTTP request that asked for it.
    pub request: Option<Vec<u8>>,
}

/// A place in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub id: WaiterId,
    /// The session that gets the grant.
    pub session: SessionId,
    /// The connection whose command is parked here; none if an enqueue is not waited for.
    pub conn: Option<ConnId>,
    /// When the wait is over, if a command is parked.
    pub until: Nanos,
    pub since: Nanos,
    pub what: Awaits,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Awaits {
    /// A key.
    Hold {
        key: Name,
        mode: Mode,
        lease: Millis,
        /// It is the place of a two-phase ticket.
        ticket: bool,
        /// The id of the HTTP request, if an HTTP owner waits.
        request: Option<Vec<u8>>,
    },
    /// A value of a list.
    Pop {
        key: Name,
        end: latchd::engine::types::End,
    },
    /// The barrier of this number.
    Barrier(u64),
    /// Bytes of a resource.
    Range(ranges::RangeWait),
}

/// Something that should be said. Broadcasts are expected as one push for each connection.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The name that the effect is about, for the order of effects.
    pub about: Option<Name>,
    /// The record that must be kept before it is heard.
    pub mark: record::Mark,
    pub effect: Effect,
}

impl Model {
    /// The model of an empty table. Every fence will be above `fence`.
    #[must_use]
    pub fn new(rules: Rules, fence: u64) -> Self {
        Self {
            rules,
            now: Nanos(0),
            moment: Nanos(0),
            draining: false,
            cuts_off: false,
            memory_full: false,
            storage_full: false,
            conns: Vec::new(),
            sessions: Vec::new(),
            waiters: Vec::new(),
            keys: Vec::new(),
            grants: Vec::new(),
            tickets: Vec::new(),
            lapsed: Vec::new(),
            tokens: BTreeMap::new(),
            born: Vec::new(),
            departing: Vec::new(),
            counters: BTreeMap::new(),
            values: BTreeMap::new(),
            lists: BTreeMap::new(),
            barriers: Vec::new(),
            subscriptions: Vec::new(),
            turns: Vec::new(),
            records: record::Records::default(),
            ranges: ranges::Ranges::default(),
            stalled_names: BTreeMap::new(),
            asked_for: BTreeMap::new(),
            unserved: Vec::new(),
            last_time: Nanos(0),
            restored: 0,
            last_fence: fence,
            last_number: 0,
            inputs: 0,
            about: None,
            expected: Vec::new(),
            seen: Vec::new(),
            seen_records: Vec::new(),
        }
    }

    /// Follows one input: `effects` and `records` are what the engine made of it.
    ///
    /// # Errors
    /// What was expected and what came, if they differ. The model is of no use after that.
    pub fn apply(
        &mut self,
        now: Nanos,
        input: &Input<'_>,
        effects: &[Effect],
        records: &[Record],
    ) -> Result<(), String> {
        self.seen = effects.to_vec();
        self.seen_records = records.to_vec();
        self.tell(now, input);
        let verdict = self.check(effects, records);
        verdict
            .map_err(|why| format!("{why}\n  at {now:?}, input {input:?}\n  effects {effects:?}"))
    }

    /// Adds the effects of this input to those that are expected already. Without [`Model::apply`]
    /// there are no choices to follow.
    pub fn tell(&mut self, now: Nanos, input: &Input<'_>) {
        (self.now, self.moment) = (now, now);
        self.inputs += 1;
        self.about = None;
        self.decide(input);
        self.finish();
    }

    /// Compares what the engine did with what is expected.
    ///
    /// # Errors
    /// The first difference. The model is of no use after that.
    pub fn check(&mut self, effects: &[Effect], records: &[Record]) -> Result<(), String> {
        self.seen = effects.to_vec();
        self.compare(records)
    }

    fn decide(&mut self, input: &Input<'_>) {
        match input {
            Input::Request(id, request) => self.ask(*id, request),
            Input::RequestBy(id, by, request) => self.ask_by(*id, *by, request),
            Input::Break(id, key, fence) => self.break_one(*id, key, *fence),
            Input::BreakAll(id, key, fence) => self.break_all(*id, key, *fence),
            Input::Attach(id, attach) => self.attach(*id, *attach),
            Input::Register(id, attach) => self.register(*id, *attach),
            Input::Detach(id, client, secret) => self.detach(*id, client, *secret),
            Input::Range(id, of, request) => self.range(*id, *of, request),
            Input::ReclaimDone(id, client, secret) => self.reclaim_done(*id, client, *secret),
            Input::Grace { conn, ends } => self.tell_grace(*conn, *ends),
            Input::BreakRanges(id, resource, range) => self.break_ranges(*id, resource, *range),
            Input::BreakRangesOf(id, client) => self.break_ranges_of(*id, client),
            Input::Hello(id, name) => self.hello(*id, *name),
            Input::DetectDeadlocks(id, detects) => self.meet(*id).detects = *detects,
            Input::Keep(id, keeps) => self.meet(*id).keeps = *keeps,
            Input::LetIn(id, user) => self.let_in(*id, user.clone()),
            Input::HungUp(id, hung_up) => self.hang_up(*id, *hung_up),
            Input::Stalled(id, stalled) => self.stall(*id, *stalled),
            Input::OwnerStalled(name, stalled) => self.stall_owner(name, *stalled),
            Input::ClientStalled(client, stalled) => self.stall_client(client, *stalled),
            Input::Shares(_) => {} // only figures
            Input::Overrun(id, overrun) => self.set_overrun(*id, *overrun),
            Input::Disconnected(id) => self.disconnect(*id, Life::Leaving),
            Input::CutOff(id) => {
                self.cuts_off = true;
                self.disconnect(*id, Life::CutOff);
            }
            Input::Unsent(popped) => self.give_back(popped),
            Input::Time(_) => self.pass_time(),
            Input::MemoryFull(full) => self.memory_full = *full,
            Input::StorageFull(full) => self.storage_full = *full,
            Input::Durable(number) => self.note_kept(*number),
            Input::Restore(record) => self.restore(record),
            Input::Serve { may_have_lost } => self.serve_all(*may_have_lost),
            Input::Drain => self.drain(),
        }
    }

    /// A connection asks for itself, or for the client it is attached to.
    pub(crate) fn ask(&mut self, id: ConnId, request: &Request<'_>) {
        if self.lacks_room(request) {
            return self.refuse(id, Refusal::Storage); // it does not become known by that
        }
        self.meet(id);
        let session = self.conn(id).session;
        self.ask_as(id, session, request);
    }

    /// Decides every request, for every kind of session.
    pub(crate) fn ask_as(&mut self, id: ConnId, session: SessionId, request: &Request<'_>) {
        let lease_default = self.rules.lease_default;
        self.about = recorded_key(request);
        match *request {
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            } => {
                let lease = lease.unwrap_or(lease_default);
                self.acquire(id, session, key, mode, wait, lease, None);
            }
            Request::Enqueue { key, mode, lease } => {
                self.enqueue(id, session, key, mode, lease.unwrap_or(lease_default));
            }
            Request::Wait { key, wait } => self.wait(id, session, key, wait),
            Request::Release { key, token } => self.release(id, key, token),
            Request::Renew { key, token, lease } => {
                self.renew(id, session, key, token, lease.unwrap_or(lease_default));
            }
            Request::Reclaim { key, token, lease } => self.reclaim(id, session, key, token, lease),
            Request::Position { key } => self.position(id, session, key),
            Request::Resign { key, token } => self.resign(id, session, key, token),
            Request::Observe { key } => self.observe(id, key),
            Request::Unobserve { key } => self.unobserve(id, key),
            Request::Add { key, delta, down } => self.add(id, key, delta, down),
            Request::Count { key } => self.count(id, key),
            Request::SetCount { key, value } => self.set_count(id, key, value),
            Request::Put { key, value, ttl } => self.put(id, key, value, ttl),
            Request::Fetch { key } => self.fetch(id, key),
            Request::Delete { key } => self.delete(id, key),
            Request::Swap { key, old, new, ttl } => self.swap(id, key, [old, new], ttl),
            Request::Push { key, value, end } => self.push_value(id, key, value, end),
            Request::Pop { key, end } => self.pop(id, key, end),
            Request::AwaitPop { key, end, wait } => self.await_pop(id, session, key, end, wait),
            Request::Length { key } => self.length(id, key),
            Request::Range {
                key,
                start,
                stop,
                form,
            } => self.part(id, key, [start, stop], form),
            Request::Meet { key, count, wait } => self.meet_at(id, session, key, count, wait),
            Request::Listen { pattern, group } => self.listen(id, pattern, group),
            Request::Unlisten { pattern, group } => self.unlisten(id, pattern, group),
            Request::Signal { channel, payload } => self.signal(id, channel, payload),
            Request::Watch { pattern } => self.watch(id, pattern),
            Request::Unwatch { pattern } => self.unwatch(id, pattern),
        }
    }

    // ---- connections and sessions ----

    /// The connection, which is known from its first request on.
    pub(crate) fn meet(&mut self, id: ConnId) -> &mut Conn {
        if self.find_conn(id).is_none() {
            let own = self.add_session(Kind::Conn(id), Life::Here, None);
            self.conns.push(Conn {
                id,
                own,
                session: own,
                introduced: false,
                detects: false,
                keeps: false,
                hung_up: false,
                overrun: false,
                reported: false,
                stalled_since: None,
            });
        }
        self.conns
            .iter_mut()
            .find(|it| it.id == id)
            .expect("it was just added")
    }

    pub(crate) fn find_conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.iter().find(|it| it.id == id)
    }

    pub(crate) fn conn(&self, id: ConnId) -> &Conn {
        self.find_conn(id).expect("the connection is here")
    }

    pub(crate) fn add_session(&mut self, kind: Kind, life: Life, name: Option<&str>) -> SessionId {
        let id = self.next_number() as SessionId;
        let name = name.map(Into::into);
        self.sessions.push(Session {
            id,
            kind,
            life,
            name,
            user: None,
            stays: false,
        });
        id
    }

    pub(crate) fn session(&self, id: SessionId) -> &Session {
        self.sessions
            .iter()
            .find(|it| it.id == id)
            .expect("the session is known")
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        let session = self.sessions.iter_mut().find(|it| it.id == id);
        session.expect("the session is known")
    }

    /// The client that a session is.
    pub(crate) fn client(&self, id: SessionId) -> Option<&Client> {
        match &self.session(id).kind {
            Kind::Client(client) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn client_mut(&mut self, id: SessionId) -> Option<&mut Client> {
        match &mut self.session_mut(id).kind {
            Kind::Client(client) => Some(client),
            _ => None,
        }
    }

    /// The number of a new session, waiter, grant or subscription.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    // ---- parked requests ----

    /// A command of the connection waits from now on, at the end of the queue.
    pub(crate) fn park(
        &mut self,
        conn: ConnId,
        session: SessionId,
        wait: Millis,
        what: Awaits,
    ) -> WaiterId {
        let (until, since) = (self.now.after(wait), self.now);
        let id = self.next_number();
        let conn = Some(conn);
        self.waiters.push(Waiter {
            id,
            session,
            conn,
            until,
            since,
            what,
        });
        id
    }

    pub(crate) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.iter().find(|it| it.id == id)
    }

    /// The waiter that a command of the connection is parked on.
    pub(crate) fn parked(&self, conn: ConnId) -> Option<&Waiter> {
        self.waiters.iter().find(|it| it.conn == Some(conn))
    }

    /// Takes a waiter out of its queue. Says nothing.
    pub(crate) fn unpark(&mut self, id: WaiterId) -> Waiter {
        let at = self.waiters.iter().position(|it| it.id == id);
        self.waiters.remove(at.expect("it waits"))
    }

    /// Whether a waiter can still be served: its session exists, and the connection that would be
    /// answered has not hung up. A client that is away exists if one of its waits is on the
    /// connection of another.
    pub(crate) fn is_present(&self, waiter: &Waiter) -> bool {
        let session = self.session(waiter.session);
        let conn = waiter.conn.or(match session.kind {
            Kind::Conn(id) => Some(id),
            _ => None,
        });
        let is_here = match session.life {
            Life::Here => true,
            Life::Away => conn.is_some(),
            _ => false,
        };
        is_here && conn.is_none_or(|id| self.is_conn_present(id))
    }

    /// Whether the connection is here and has not hung up.
    pub(crate) fn is_conn_present(&self, id: ConnId) -> bool {
        self.find_conn(id).is_some_and(|it| !it.hung_up)
    }

    // ---- effects ----

    pub(crate) fn reply(&mut self, conn: ConnId, reply: Reply) {
        self.expect(Effect::Reply(conn, reply));
    }

    pub(crate) fn refuse(&mut self, conn: ConnId, why: Refusal) {
        self.reply(conn, Reply::Refused(why));
    }

    /// Answers a parked command, unless its peer has hung up.
    pub(crate) fn answer_parked(&mut self, conn: ConnId, reply: Reply) {
        if self.is_conn_present(conn) {
            self.reply(conn, reply);
        }
    }

    /// The request is not decided: the server puts it before the engine again.
    pub(crate) fn put_off(&mut self, conn: ConnId) {
        self.expect(Effect::NotYet(conn));
    }

    /// Pushes to a connection, unless it has left too much unread: that is reported once.
    pub(crate) fn push(&mut self, conn: ConnId, push: Push) {
        let Some(it) = self.conns.iter_mut().find(|it| it.id == conn) else {
            return;
        };
        if !it.overrun {
            self.expect(Effect::Push(conn, push));
        } else if !std::mem::replace(&mut it.reported, true) {
            self.expect(Effect::Overrun(conn));
        }
    }

    /// Expects this effect now. An effect about a name waits for the name's last record.
    pub(crate) fn expect(&mut self, effect: Effect) {
        let about = self.about.clone();
        let mark = about
            .as_ref()
            .map_or_else(Default::default, |name| self.records.mark(name));
        self.expected.push(Expected {
            about,
            mark,
            effect,
        });
    }

    /// What the engine answered to this connection, where the model follows a choice.
    pub(crate) fn seen_answer(&self, conn: ConnId) -> Option<&Reply> {
        self.seen.iter().find_map(|effect| match effect {
            Effect::Reply(id, reply) if *id == conn => Some(reply),
            _ => None,
        })
    }

    /// Whether the engine refuses this request because memory is short. The memory that is left
    /// depends on earlier requests, so the model follows the engine.
    pub(crate) fn is_refused_for_memory(&self, conn: ConnId) -> bool {
        let is_it = self.seen_answer(conn) == Some(&Reply::Refused(Refusal::Memory));
        self.memory_full && is_it
    }
}

/// The name whose records the answer to a request waits for.
fn recorded_key(request: &Request<'_>) -> Option<Name> {
    match *request {
        Request::Acquire { key, .. }
        | Request::Enqueue { key, .. }
        | Request::Wait { key, .. }
        | Request::Release { key, .. }
        | Request::Renew { key, .. }
        | Request::Reclaim { key, .. }
        | Request::Position { key }
        | Request::Resign { key, .. }
        | Request::Observe { key }
        | Request::Add { key, .. }
        | Request::Count { key }
        | Request::SetCount { key, .. }
        | Request::Put { key, .. }
        | Request::Fetch { key }
        | Request::Delete { key }
        | Request::Swap { key, .. }
        | Request::Push { key, .. }
        | Request::Pop { key, .. }
        | Request::AwaitPop { key, .. }
        | Request::Length { key }
        | Request::Range { key, .. } => Some(key.to_vec()),
        _ => None,
    }
}
