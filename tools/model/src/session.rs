//! Sessions: the owners of grants and waits, and what happens to these when connections come and
//! go.
//!
//! - A connection is a session of its own. Its grants are released when it ends, unless it asked to
//!   keep them or the operator switched that off.
//! - A client has an id and a secret. Connections attach to it and acquire for it from then on.
//!   When the last one ends, the client is away: its waits end, its grants stay, and its time to
//!   live runs. It departs when that is over; immediately if it is zero.
//! - A registered client needs no connection: its time to live runs anew with each request for it.
//! - A client that is detached departs now, and all its waits are refused.
//! - An HTTP owner exists as long as it holds or waits. An acquire that repeats its id gets the
//!   answer of the first one.
//!
//! A departing session is undone in order: places in queues, then grants, then byte ranges. The
//! first eight things are undone immediately, the rest when time passes. Until then nothing is
//! granted to the session.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::Rules;
use latchd::engine::types::{
    ADAPTER_DEFAULT, Attach, By, Event, Mode, Noted, OfClient, Record, Refusal, Reply, Request,
    Secret, SecretHash, User,
};

use crate::ticket::Stage;
use crate::{Awaits, GrantId, Kind, Model, Name, SessionId};

/// How many things of a departing session are undone immediately.
const UNDONE_AT_ONCE: usize = 8;

/// Most adapters that have clients.
const ADAPTERS_MAX: usize = 256;

/// Most connections of one client that are notified of its losses.
const TOLD_MAX: usize = 8;

/// Whether a session is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is there, and can be granted something.
    Here,
    /// A client without a connection.
    Away,
    /// It has left, and what it had is being undone.
    Leaving,
    /// A client that was detached: everything of it is released, whatever the operator says.
    Detached,
    /// The server stops and has ended its connection: its grants stay.
    CutOff,
    /// All of that is done. Only grants that outlive it are left.
    Gone,
}

/// What is known of a client.
pub(crate) struct Client {
    pub ttl: Millis,
    secret: Shown,
    /// The adapter that it has named, or that its id names.
    adapter: String,
    /// It was restored and has not come back: what adapter it had named is not known.
    is_restored: bool,
    /// In the order in which they attached.
    pub conns: Vec<ConnId>,
    /// When its time to live is over, while it is away.
    pub until: Option<Nanos>,
    pub undoing: Undoing,
    /// The record of the last effect for it on the connection of another session.
    pub told_with: u64,
    /// The connection that is answered when the client is forgotten.
    detached_by: Option<ConnId>,
    /// The connections that it was detached from.
    parted: Vec<ConnId>,
    /// Since when the disk keeps requests of one of its connections waiting.
    pub stalled_since: Option<Nanos>,
}

/// A secret, as far as it is known.
enum Shown {
    Plain(Vec<u8>),
    Hashed(SecretHash),
}

impl Client {
    fn is_secret(&self, secret: Secret<'_>) -> bool {
        match &self.secret {
            Shown::Plain(plain) => plain == secret.0,
            Shown::Hashed(hash) => hash.is_of(secret),
        }
    }
}

/// What is being undone of a client. While something is, requests for it are put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undoing {
    Nothing,
    /// Its places in queues.
    Places,
    /// Everything.
    All,
}

/// What a session left behind and is still to be undone.
pub(crate) struct Departure {
    session: SessionId,
    /// Only places in queues are undone: the tickets that are still to be checked.
    places: Option<Vec<Name>>,
    /// The grants that it had when it left.
    grants: Vec<GrantId>,
}

impl Model {
    // ---- connections ----

    pub(crate) fn hello(&mut self, id: ConnId, name: Option<&str>) {
        self.meet(id).introduced = true;
        if let Some(name) = name {
            let own = self.conn(id).own;
            self.session_mut(own).name = Some(name.into());
        }
    }

    pub(crate) fn let_in(&mut self, id: ConnId, user: Option<User>) {
        let own = self.meet(id).own;
        self.session_mut(own).user = user;
    }

    /// The peer has hung up: its wait is neither granted nor answered. The effect on other waiters
    /// is decided when time passes, or with the next request about the same name.
    pub(crate) fn hang_up(&mut self, id: ConnId, hung_up: bool) {
        let Some(conn) = self.conns.iter_mut().find(|it| it.id == id) else {
            return;
        };
        conn.hung_up = hung_up;
        let Some(waiter) = self.parked(id).cloned().filter(|_| hung_up) else {
            return;
        };
        match waiter.what {
            Awaits::Hold { key, .. } => {
                let queue = self.queue(&key);
                if queue.first() == Some(&waiter.id) && queue.len() > 1 {
                    self.serve_later(&key, self.moment);
                }
            }
            Awaits::Pop { .. } => {}
            Awaits::Barrier(barrier) => self.barrier_hung_up(barrier),
            Awaits::Range(_) => self.range_hung_up(waiter.id),
        }
    }

    pub(crate) fn set_overrun(&mut self, id: ConnId, overrun: bool) {
        if let Some(conn) = self.conns.iter_mut().find(|it| it.id == id) {
            (conn.overrun, conn.reported) = (overrun, false);
        }
    }

    /// The connection is gone: its wait and its subscriptions end now.
    pub(crate) fn disconnect(&mut self, id: ConnId, life: Life) {
        let Some(at) = self.conns.iter().position(|it| it.id == id) else {
            return;
        };
        let conn = self.conns.remove(at);
        let own = self.session_mut(conn.own);
        (own.life, own.stays) = (life, life == Life::CutOff);
        self.drop_subscriptions(id);
        let client = match conn.session == conn.own {
            true => None,
            false => self.leave_client(id, conn.session, life),
        };
        if let Some(parked) = self.parked(id).map(|it| it.id) {
            self.leave_queue(parked);
        }
        if let Some(client) = client {
            self.begin_departing(client, UNDONE_AT_ONCE);
        }
        let grants = self.grants_of(conn.own);
        let own = Departure {
            session: conn.own,
            places: None,
            grants,
        };
        self.begin_departing(own, UNDONE_AT_ONCE);
    }

    /// Takes a waiter out of whatever queue it is in, without an answer.
    pub(crate) fn leave_queue(&mut self, waiter: u64) {
        let Some(it) = self.waiter(waiter).cloned() else {
            return;
        };
        match it.what {
            Awaits::Hold { key, .. } => {
                self.about = Some(key.clone());
                self.give_up(waiter);
                self.serve(&key, self.moment);
            }
            Awaits::Pop { key, .. } => {
                self.about = Some(key);
                self.unpark(waiter);
            }
            Awaits::Barrier(barrier) => {
                self.about = None;
                self.unpark(waiter);
                self.break_barrier(barrier);
            }
            Awaits::Range(_) => self.leave_range_queue(waiter),
        }
    }

    // ---- departures ----

    fn begin_departing(&mut self, mut departure: Departure, most: usize) {
        if !self.depart(&mut departure, most) {
            self.departing.push(departure);
        }
    }

    /// Continues to undo sessions that depart.
    pub(crate) fn go_on_departing(&mut self) {
        while !self.departing.is_empty() {
            let mut departure = self.departing.remove(0);
            self.depart(&mut departure, usize::MAX);
        }
    }

    /// Undoes up to `most` things; returns whether all are undone.
    fn depart(&mut self, departure: &mut Departure, mut most: usize) -> bool {
        let session = departure.session;
        if let Some(places) = &mut departure.places {
            let is_all = self
                .client(session)
                .is_some_and(|it| it.undoing == Undoing::All);
            if !is_all {
                let mut places = std::mem::take(places);
                let done = self.leave_places(session, &mut places, &mut most);
                if let Some(client) = self.client_mut(session).filter(|_| done) {
                    client.undoing = Undoing::Nothing;
                }
                departure.places = Some(places);
                return done;
            }
            departure.places = None;
            departure.grants = self.grants_of(session);
        }
        if self.session(session).life == Life::Detached {
            self.refuse_parted(session);
        }
        if !self.undo_tickets(session, &mut most) || !self.undo_grants(departure, &mut most) {
            return false;
        }
        if !self.depart_ranges(session, &mut most) {
            return false;
        }
        if self.client(session).is_some() {
            self.forget_client(session);
        }
        self.session_mut(session).life = Life::Gone;
        true
    }

    /// A client is away: its places in queues end, but not what it may still ask for with `w`.
    fn leave_places(
        &mut self,
        session: SessionId,
        places: &mut Vec<Name>,
        most: &mut usize,
    ) -> bool {
        while !places.is_empty() {
            if *most == 0 {
                return false;
            }
            *most -= 1;
            let key = places.remove(0);
            if let Some(waiter) = self.queued_place(session, &key) {
                self.about = Some(key.clone());
                self.give_up(waiter);
                if !self.cuts_off {
                    self.serve(&key, self.moment);
                }
            }
        }
        true
    }

    fn undo_tickets(&mut self, session: SessionId, most: &mut usize) -> bool {
        while let Some(ticket) = self
            .tickets
            .iter()
            .find(|it| it.session == session)
            .cloned()
        {
            if *most == 0 {
                return false;
            }
            *most -= 1;
            self.about = Some(ticket.key.clone());
            match ticket.stage {
                Stage::Queued(waiter) => self.give_up(waiter),
                Stage::Held(_) | Stage::Expired(..) => self.forget_ticket(session, &ticket.key),
            }
            if self.session(session).life != Life::CutOff {
                self.serve(&ticket.key, self.moment);
            }
        }
        true
    }

    fn undo_grants(&mut self, departure: &mut Departure, most: &mut usize) -> bool {
        let session = departure.session;
        let noted = match self.session(session).life {
            Life::Detached => Noted::Released,
            Life::Leaving if self.rules.auto_release => Noted::Disconnected,
            _ => return true,
        };
        departure
            .grants
            .retain(|id| self.grants.iter().any(|it| it.id == *id));
        while !departure.grants.is_empty() {
            if *most == 0 {
                return false;
            }
            *most -= 1;
            let grant = self.grant_of(departure.grants.remove(0)).clone();
            if grant.kept {
                continue;
            }
            self.about = Some(grant.key.clone());
            self.note(noted, &grant);
            self.remove_grant(grant.id);
            // Watchers hear of a key once, however many of its slots the leaver had.
            let is_another = |it: &crate::Grant| it.session == session && it.key == grant.key;
            if !self.grants.iter().any(|it| is_another(it) && !it.kept) {
                self.announce(Event::Release, &grant.key);
            }
            self.serve(&grant.key, grant.deadline.min(self.moment));
        }
        true
    }

    pub(crate) fn grants_of(&self, session: SessionId) -> Vec<GrantId> {
        let own = self.grants.iter().filter(|it| it.session == session);
        own.map(|it| it.id).collect()
    }

    // ---- clients ----

    pub(crate) fn find_client(&self, id: &str) -> Option<SessionId> {
        let is_it = |it: &&crate::Session| {
            let is_known = matches!(it.kind, Kind::Client(_)) && it.life != Life::Gone;
            is_known && it.name.as_deref() == Some(id)
        };
        self.sessions.iter().find(is_it).map(|it| it.id)
    }

    pub(crate) fn attach(&mut self, id: ConnId, attach: Attach<'_>) {
        self.meet(id);
        self.about = Some(attach.id.as_bytes().to_vec());
        let conn = self.conn(id);
        let is_attached = conn.session != conn.own;
        if is_attached && Some(conn.session) != self.find_client(attach.id) {
            return self.refuse(id, Refusal::OtherClient);
        }
        match self.find_or_add_client(attach) {
            Ok(Some((client, is_new))) => {
                if !is_attached {
                    self.join_client(id, client);
                }
                self.note_user(id, client);
                self.tell_attached(id, client, is_new);
            }
            Ok(None) => self.put_off(id),
            Err(why) => self.refuse(id, why),
        }
    }

    pub(crate) fn register(&mut self, id: ConnId, attach: Attach<'_>) {
        self.meet(id);
        self.about = Some(attach.id.as_bytes().to_vec());
        match self.find_or_add_client(attach) {
            Ok(Some((client, is_new))) => {
                self.restart_time_of(client);
                self.tell_attached(id, client, is_new);
            }
            Ok(None) => self.put_off(id),
            Err(why) => self.refuse(id, why),
        }
    }

    fn tell_attached(&mut self, id: ConnId, client: SessionId, is_new: bool) {
        let (epoch, reclaim) = (self.rules.epoch, self.reclaim_left(client));
        self.reply(
            id,
            Reply::Attached {
                epoch,
                is_new,
                reclaim,
            },
        );
    }

    pub(crate) fn detach(&mut self, id: ConnId, client: &str, secret: Secret<'_>) {
        self.meet(id);
        let Some(session) = self.find_client(client) else {
            return self.refuse(id, Refusal::UnknownClient);
        };
        let it = self.client_mut(session).expect("it is a client");
        if !it.is_secret(secret) {
            return self.refuse(id, Refusal::WrongSecret);
        }
        let before = it.undoing;
        if before == Undoing::All {
            return self.put_off(id);
        }
        (it.undoing, it.detached_by, it.until) = (Undoing::All, Some(id), None);
        let conns = std::mem::take(&mut it.conns);
        (it.parted, it.stalled_since) = (conns.clone(), None);
        for conn in self.conns.iter_mut().filter(|it| conns.contains(&it.id)) {
            conn.session = conn.own;
        }
        self.session_mut(session).life = Life::Detached;
        if before == Undoing::Nothing {
            let grants = self.grants_of(session);
            let departure = Departure {
                session,
                places: None,
                grants,
            };
            self.begin_departing(departure, usize::MAX);
        }
    }

    /// Refuses the waits of connections for a client that was detached.
    fn refuse_parted(&mut self, session: SessionId) {
        let client = self
            .client_mut(session)
            .map(|it| std::mem::take(&mut it.parted));
        for conn in client.unwrap_or_default() {
            let parked = self.parked(conn).filter(|it| it.session == session);
            if let Some(waiter) = parked.map(|it| it.id) {
                self.about = None;
                self.answer_parked(conn, Reply::Refused(Refusal::Detached));
                self.leave_queue(waiter);
            }
        }
    }

    /// The owner of a client that is spoken for by its secret; none while it is being undone.
    pub(crate) fn speak_for(&mut self, of: OfClient<'_>) -> Result<Option<SessionId>, Refusal> {
        let session = self.find_client(of.id).ok_or(Refusal::UnknownClient)?;
        let it = self.client(session).expect("it is a client");
        if !it.is_secret(of.secret) {
            return Err(Refusal::WrongSecret);
        } else if it.undoing != Undoing::Nothing {
            return Ok(None);
        }
        self.restart_time_of(session);
        let number = self.records.next_number();
        if let Some(client) = self.client_mut(session) {
            client.told_with = number;
        }
        Ok(Some(session))
    }

    /// If the client is away, its time to live begins anew; an end that is later stays.
    pub(crate) fn restart_time_of(&mut self, client: SessionId) {
        let ttl = self.client(client).map_or(Millis::ZERO, |it| it.ttl);
        self.keep_client_until(client, self.now.after(ttl));
    }

    /// A client that is away is kept until then at least.
    pub(crate) fn keep_client_until(&mut self, client: SessionId, until: Nanos) {
        let is_away = self.session(client).life == Life::Away;
        if let Some(it) = self.client_mut(client).filter(|_| is_away) {
            it.until = Some(it.until.map_or(until, |before| before.max(until)));
        }
    }

    /// The time to live of a client that is away is over.
    pub(crate) fn client_ended(&mut self, session: SessionId) {
        let is_waiting = self.waiters.iter().any(|it| it.session == session);
        let name = self.session(session).name.clone().unwrap_or_default();
        let is_asked_for = self.asked_for.contains_key(&name);
        let (now, cuts_off) = (self.now, self.cuts_off);
        let told_with = self.client(session).map_or(0, |it| it.told_with);
        let is_untold = self.records.is_untold(told_with);
        let it = self.client_mut(session).expect("it is a client");
        it.until = None;
        if cuts_off {
            return; // the server stops, and the client is kept
        }
        let before = it.undoing;
        if before == Undoing::Nothing && (is_waiting || is_untold || is_asked_for) {
            it.until = Some(now.after(it.ttl.max(Millis(1))));
            return;
        }
        it.undoing = Undoing::All;
        self.session_mut(session).life = Life::Leaving;
        if before == Undoing::Nothing {
            let grants = self.grants_of(session);
            self.departing.push(Departure {
                session,
                places: None,
                grants,
            });
        }
    }

    /// The client of this id with this time to live, and whether it is new. None while the rest of
    /// an earlier client of this id is being undone.
    fn find_or_add_client(
        &mut self,
        attach: Attach<'_>,
    ) -> Result<Option<(SessionId, bool)>, Refusal> {
        let named = attach.adapter.unwrap_or_else(|| adapter_of(attach.id));
        let Some(session) = self.find_client(attach.id) else {
            if self.storage_full && attach.ttl > Millis::ZERO {
                return Err(Refusal::Storage);
            } else if self.draining {
                return Err(Refusal::Draining);
            }
            self.has_room_for_client(named)?;
            if self.memory_full {
                return Err(Refusal::Memory);
            }
            let secret = Shown::Plain(attach.secret.0.to_vec());
            let session = self.add_client(attach.id, named, attach.ttl, secret);
            self.record_client(session);
            return Ok(Some((session, true)));
        };
        let it = self.client(session).expect("it is a client");
        if !it.is_secret(attach.secret) {
            return Err(Refusal::WrongSecret);
        } else if it.undoing != Undoing::Nothing {
            return Ok(None);
        }
        if attach.adapter.is_some() && it.adapter != named && !it.is_restored {
            self.has_room_for_client(named)?;
        }
        self.set_ttl(session, attach.ttl)?;
        if let Some(it) = self
            .client_mut(session)
            .filter(|_| attach.adapter.is_some())
        {
            (it.adapter, it.is_restored) = (named.into(), false);
        }
        Ok(Some((session, false)))
    }

    fn add_client(&mut self, id: &str, adapter: &str, ttl: Millis, secret: Shown) -> SessionId {
        let client = Client {
            ttl,
            secret,
            adapter: adapter.into(),
            is_restored: false,
            conns: Vec::new(),
            until: None,
            undoing: Undoing::Nothing,
            told_with: 0,
            detached_by: None,
            parted: Vec::new(),
            stalled_since: None,
        };
        self.add_session(Kind::Client(client), Life::Away, Some(id))
    }

    fn has_room_for_client(&self, adapter: &str) -> Result<(), Refusal> {
        let known = self.sessions.iter().filter(|it| it.life != Life::Gone);
        let adapters = known.filter_map(|it| match &it.kind {
            Kind::Client(client) => Some(&*client.adapter),
            _ => None,
        });
        let adapters: Vec<&str> = adapters.collect();
        let clients = adapters.iter().filter(|it| **it == adapter).count();
        let Rules {
            clients_max,
            clients_per_adapter_max,
            ..
        } = &self.rules;
        if let Some(limit) = clients_max.iter().find(|it| *it.adapter == *adapter) {
            let has_room = clients < limit.clients as usize;
            return has_room.then_some(()).ok_or(Refusal::AdapterFull);
        }
        let distinct: std::collections::BTreeSet<&&str> = adapters.iter().collect();
        let has_room = match clients {
            0 => distinct.len() < ADAPTERS_MAX,
            _ => *clients_per_adapter_max == 0 || clients < *clients_per_adapter_max as usize,
        };
        has_room.then_some(()).ok_or(Refusal::MaxClients)
    }

    /// A client whose time to live is zero is not known after a restart; any other is.
    fn set_ttl(&mut self, session: SessionId, ttl: Millis) -> Result<(), Refusal> {
        let before = self.client(session).map_or(ttl, |it| it.ttl);
        if before == ttl {
            return Ok(());
        }
        if self.storage_full && ttl > Millis::ZERO {
            return Err(Refusal::Storage);
        }
        if let Some(client) = self.client_mut(session) {
            client.ttl = ttl;
        }
        if ttl == Millis::ZERO {
            self.record_client_gone(session, before);
            return Ok(());
        }
        self.record_client(session);
        if before == Millis::ZERO {
            for grant in self.grants_of(session) {
                self.record_owned(grant);
            }
            self.record_ranges_of(session);
            self.records
                .speak_of_all(&self.session(session).name.clone().unwrap_or_default());
        }
        Ok(())
    }

    fn join_client(&mut self, id: ConnId, session: SessionId) {
        if let Some(conn) = self.conns.iter_mut().find(|it| it.id == id) {
            conn.session = session;
        }
        let it = self.session_mut(session);
        (it.life, it.stays) = (Life::Here, false);
        if let Some(client) = self.client_mut(session) {
            client.conns.push(id);
            client.until = None;
        }
        self.note_stalls(session);
    }

    /// A connection of the client is gone; with the last one the client is away, or departs.
    fn leave_client(&mut self, id: ConnId, session: SessionId, life: Life) -> Option<Departure> {
        let kept_until = self.ranges_kept_until(session);
        let now = self.now;
        let tickets = self.tickets.iter().filter(|it| it.session == session);
        let places: Vec<Name> = tickets.map(|it| it.key.clone()).collect();
        let grants = self.grants_of(session);
        let it = self.client_mut(session).expect("it is a client");
        it.conns.retain(|conn| *conn != id);
        self.note_stalls(session);
        let it = self.client_mut(session).expect("it is a client");
        if !it.conns.is_empty() || it.undoing != Undoing::Nothing {
            return None;
        }
        if life != Life::CutOff && it.ttl == Millis::ZERO {
            it.undoing = Undoing::All;
            self.session_mut(session).life = Life::Leaving;
            return Some(Departure {
                session,
                places: None,
                grants,
            });
        }
        if life != Life::CutOff {
            it.until = Some(now.after(it.ttl).max(kept_until));
        }
        it.undoing = match places.is_empty() {
            true => Undoing::Nothing,
            false => Undoing::Places,
        };
        let it = self.session_mut(session);
        (it.life, it.stays) = (Life::Away, life == Life::CutOff);
        let is_empty = places.is_empty();
        let departure = Departure {
            session,
            places: Some(places),
            grants,
        };
        (!is_empty).then_some(departure)
    }

    fn forget_client(&mut self, session: SessionId) {
        let id = self.session(session).name.clone().unwrap_or_default();
        self.about = Some(id.as_bytes().to_vec());
        let it = self.client_mut(session).expect("it is a client");
        it.until = None;
        let (ttl, detached_by) = (it.ttl, it.detached_by);
        self.record_client_gone(session, ttl);
        if let Some(conn) = detached_by.filter(|it| self.find_conn(*it).is_some()) {
            self.records.speak_of_all(&id);
            self.answer_parked(conn, Reply::Done);
        }
    }

    /// The first connections of a session, which are notified of its losses.
    pub(crate) fn connections_of(&self, session: SessionId) -> Vec<ConnId> {
        let mut conns = match &self.session(session).kind {
            Kind::Conn(id) => vec![*id],
            Kind::Client(client) => client.conns.iter().take(TOLD_MAX).copied().collect(),
            Kind::Named | Kind::Nobody => Vec::new(),
        };
        conns.retain(|id| self.find_conn(*id).is_some());
        conns
    }

    fn note_user(&mut self, id: ConnId, session: SessionId) {
        let own = self.conn(id).own;
        let user = self.session(own).user.clone();
        self.session_mut(session).user = user;
    }

    // ---- records of clients ----

    fn record_client(&mut self, session: SessionId) {
        let ttl = self.client(session).map_or(Millis::ZERO, |it| it.ttl);
        let id = self.session(session).name.clone().unwrap_or_default();
        if ttl > Millis::ZERO {
            // What is kept of the secret has a salt: it is checked when the record is compared.
            let secret = SecretHash {
                salt: [0; 16],
                hash: [0; 32],
            };
            self.record(Record::Client {
                id: id.as_bytes().into(),
                ttl,
                secret,
            });
        }
    }

    fn record_client_gone(&mut self, session: SessionId, ttl: Millis) {
        let id = self.session(session).name.clone().unwrap_or_default();
        if ttl > Millis::ZERO {
            self.record(Record::ClientGone {
                id: id.as_bytes().into(),
            });
        }
    }

    /// Whether this is what may be kept of the client's secret.
    pub(crate) fn is_hash_of(&self, id: &[u8], hash: SecretHash) -> bool {
        let id = String::from_utf8_lossy(id);
        let client = self.find_client(&id).and_then(|it| self.client(it));
        client.is_none_or(|it| match &it.secret {
            Shown::Plain(plain) => hash.is_of(Secret(plain)),
            Shown::Hashed(known) => *known == hash,
        })
    }

    pub(crate) fn restore_client(&mut self, id: &str, ttl: Millis, secret: SecretHash) {
        let secret = Shown::Hashed(secret);
        match self.find_client(id) {
            Some(session) => {
                let it = self.client_mut(session).expect("it is a client");
                (it.ttl, it.secret) = (ttl, secret);
            }
            None => {
                let session = self.add_client(id, adapter_of(id), ttl, secret);
                self.client_mut(session)
                    .expect("it is a client")
                    .is_restored = true;
            }
        }
    }

    /// Whether the session is a client that is known after a restart.
    pub(crate) fn is_kept_client(&self, session: SessionId) -> bool {
        let client = self.client(session);
        self.rules.durable && client.is_some_and(|it| it.ttl > Millis::ZERO)
    }

    // ---- HTTP owners ----

    pub(crate) fn find_named(&self, name: &str) -> Option<SessionId> {
        let is_it = |it: &&crate::Session| {
            matches!(it.kind, Kind::Named) && it.name.as_deref() == Some(name)
        };
        self.sessions.iter().find(is_it).map(|it| it.id)
    }

    /// What an HTTP owner asks for. Everything but locks is asked for by the connection.
    pub(crate) fn ask_by(&mut self, id: ConnId, by: By<'_>, request: &Request<'_>) {
        self.meet(id);
        self.about = match request {
            Request::Acquire { key, .. }
            | Request::Renew { key, .. }
            | Request::Release { key, .. }
            | Request::Resign { key, .. } => Some(key.to_vec()),
            _ => return self.ask(id, request),
        };
        let session = match (self.find_named(by.owner), request) {
            (Some(session), _) => session,
            (None, Request::Acquire { .. }) if self.memory_full => {
                return self.refuse(id, Refusal::Memory);
            }
            (None, Request::Acquire { .. }) => {
                self.add_session(Kind::Named, Life::Here, Some(by.owner))
            }
            (None, _) => return self.refuse(id, Refusal::NotHolder),
        };
        match *request {
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            } => {
                self.note_user(id, session);
                if self.answer_again(id, session, by.request, key, mode, wait) {
                    return;
                }
                if self.lacks_room(request) {
                    self.about = None;
                    return self.refuse(id, Refusal::Storage);
                }
                let lease = lease.unwrap_or(self.rules.lease_default);
                self.acquire(id, session, key, mode, wait, lease, Some(by.request));
            }
            Request::Renew { key, token, lease } => {
                let lease = lease.unwrap_or(self.rules.lease_default);
                if self.is_held_by(id, session, key, token)
                    && !self.answer_longer(id, key, token, lease)
                {
                    self.renew(id, session, key, token, lease);
                }
            }
            Request::Release { key, token } | Request::Resign { key, token }
                if self.is_held_by(id, session, key, token) =>
            {
                self.ask_as(id, session, request);
            }
            _ => {}
        }
    }

    /// Answers an acquire that repeats an id, for the same key and mode, with the grant, or gives
    /// it the place in the queue. Returns whether it did.
    fn answer_again(
        &mut self,
        id: ConnId,
        session: SessionId,
        request: &[u8],
        key: &[u8],
        mode: Mode,
        wait: Millis,
    ) -> bool {
        if request.is_empty() || !self.is_of_kind(key, mode) {
            return false;
        }
        self.settle(key);
        let granted = self.grants.iter().find(|it| {
            let is_its_own = it.session == session && it.key == key && it.mode == mode;
            is_its_own && it.request.as_deref() == Some(request)
        });
        if let Some(grant) = granted {
            let token = self.symbol(grant.id);
            match self.lease_left(grant.id) {
                Some(lease) => self.reply(id, Reply::Granted { token, lease }),
                None => self.put_off(id),
            }
            return true;
        }
        let waiting = self.waiters.iter().find(|it| match &it.what {
            Awaits::Hold {
                key: of,
                mode: its,
                request: asked,
                ..
            } => {
                let is_its_own = it.session == session && of == key && *its == mode;
                is_its_own && asked.as_deref() == Some(request)
            }
            _ => false,
        });
        match waiting.map(|it| it.id) {
            Some(waiter) if wait > Millis::ZERO && !self.draining => {
                self.pass_place_to(waiter, id, wait);
                true
            }
            _ => false,
        }
    }

    /// Answers the earlier connection with a timeout, and lets this one wait instead.
    fn pass_place_to(&mut self, waiter: u64, id: ConnId, wait: Millis) {
        let until = self.now.after(wait);
        let it = self
            .waiters
            .iter_mut()
            .find(|it| it.id == waiter)
            .expect("it waits");
        it.until = until;
        if let Some(before) = it.conn.replace(id) {
            self.answer_parked(before, Reply::TimedOut);
        }
        self.look_at_passed_place(waiter);
    }

    /// Whether the owner holds the key with this token. If not, the request is refused with the
    /// reason.
    fn is_held_by(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        token: Option<Token>,
    ) -> bool {
        let found = self
            .find_grant(key, token)
            .filter(|it| self.grant_of(*it).session == session);
        let Some(grant) = found else {
            self.refuse(id, Refusal::NotHolder);
            return false;
        };
        if self.lease_left(grant).is_some() || self.outlasts(grant) {
            return true;
        }
        self.refuse(id, Refusal::LeaseExpired);
        self.settle(key);
        false
    }

    /// A renewal over HTTP never makes a lease end earlier: it is answered with the present lease.
    fn answer_longer(
        &mut self,
        id: ConnId,
        key: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) -> bool {
        let grant = self
            .find_grant(key, token)
            .expect("it was found a moment ago");
        let left = self.lease_left(grant).unwrap_or(Millis::ZERO);
        if left < lease {
            return false;
        }
        let fence = self.symbol(grant).fence;
        self.reply(id, Reply::Renewed { lease: left, fence });
        true
    }

    // ---- what the disk keeps waiting ----

    /// The disk keeps requests of the connection waiting, or no longer.
    pub(crate) fn stall(&mut self, id: ConnId, stalled: bool) {
        let now = self.now;
        if let Some(conn) = self.conns.iter_mut().find(|it| it.id == id) {
            conn.stalled_since = match (stalled, conn.stalled_since) {
                (true, None) => Some(now),
                (true, since) => since,
                (false, _) => None,
            };
            let session = conn.session;
            self.note_stalls(session);
        }
    }

    /// A client is kept waiting from when the first of its connections is until none is.
    fn note_stalls(&mut self, session: SessionId) {
        let stalled = self.conns.iter().filter(|it| it.session == session);
        let since = stalled.filter_map(|it| it.stalled_since).min();
        if let Some(client) = self.client_mut(session) {
            client.stalled_since = since.map(|since| client.stalled_since.unwrap_or(since));
        }
    }

    /// The disk keeps one renewal more or less of this HTTP owner waiting.
    pub(crate) fn stall_owner(&mut self, name: &str, stalled: bool) {
        let now = self.now;
        let (count, since) = self.stalled_names.get(name).copied().unwrap_or((0, now));
        match (count, stalled) {
            (0 | 1, false) => _ = self.stalled_names.remove(name),
            (_, false) => _ = self.stalled_names.insert(name.into(), (count - 1, since)),
            (_, true) => _ = self.stalled_names.insert(name.into(), (count + 1, since)),
        }
    }

    /// The disk keeps one request more or less for this client waiting.
    pub(crate) fn stall_client(&mut self, id: &str, stalled: bool) {
        let count = self.asked_for.get(id).copied().unwrap_or(0);
        match (count, stalled) {
            (0 | 1, false) => _ = self.asked_for.remove(id),
            (_, false) => _ = self.asked_for.insert(id.into(), count - 1),
            (_, true) => _ = self.asked_for.insert(id.into(), count + 1),
        }
    }

    /// Since when the disk keeps requests of the session waiting, if it does.
    pub(crate) fn stalled_since(&self, session: SessionId) -> Option<Nanos> {
        let it = self.session(session);
        match &it.kind {
            Kind::Conn(id) => self.find_conn(*id)?.stalled_since,
            Kind::Client(client) => client.stalled_since,
            Kind::Named => Some(self.stalled_names.get(it.name.as_deref()?)?.1),
            Kind::Nobody => None,
        }
    }
}

/// The adapter that an id names: what stands before the first `/`.
fn adapter_of(id: &str) -> &str {
    let adapter = id.split_once('/').map(|(adapter, _)| adapter);
    adapter
        .filter(|it| !it.is_empty())
        .unwrap_or(ADAPTER_DEFAULT)
}
