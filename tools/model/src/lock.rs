//! Locks, semaphores, read-write locks and elections: holders and waiters of a key.
//!
//! - A lock is a semaphore with one slot. Readers hold together, a writer alone. A leader is the
//!   holder of a lock that others may observe.
//! - A key has one queue for all modes. A request is granted immediately only if the queue is empty
//!   and there is room. The first waiter is granted as soon as there is room for it; no waiter
//!   overtakes another.
//! - A place is lost by its time, by the end of its connection or client, or with its ticket.
//! - Each grant has a fence above all earlier ones, and a lease that begins with the grant.
//! - A key without holders and waiters is idle. Its kind is remembered for a while, or until
//!   another key needs its room.
//! - Observers get `resigned`, `failover` (a waiter from the queue took over) and `elected`, in
//!   this order. Watchers get an event for each grant that its client is notified of, and for each
//!   end.

use latchd::base::{ConnId, Fence, Millis, Nanos, Token};
use latchd::engine::types::{
    Change, Effect, Event, Loss, Mode, Note, NoteOf, Noted, Notes, Push, Refusal, Reply,
};

use crate::ticket::Stage;
use crate::{Awaits, Grant, GrantId, Kind, Model, Name, SessionId, WaiterId, record, subscription};

/// A key that is in use, or was not long ago.
pub(crate) struct LockKey {
    pub name: Name,
    /// How many slots it has; none if it is a read-write lock.
    pub slots: Option<u32>,
    /// Since when it is idle, if it is.
    pub idle: Option<Nanos>,
    /// It is idle, and the engine may have forgotten it.
    pub may_be_gone: bool,
}

impl LockKey {
    pub(crate) fn new(name: &[u8], mode: Mode) -> Self {
        Self {
            name: name.to_vec(),
            slots: slots_of(mode),
            idle: None,
            may_be_gone: false,
        }
    }
}

/// How many slots a key has that is held like this; none if it is a read-write lock.
fn slots_of(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Slot { limit } => Some(limit),
        Mode::Lead => Some(1),
        Mode::Read | Mode::Write => None,
    }
}

impl Model {
    /// Takes a key or waits for it. `request` is the id of an HTTP request.
    #[expect(clippy::too_many_arguments, reason = "what a request says")]
    pub(crate) fn acquire(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        mode: Mode,
        wait: Millis,
        lease: Millis,
        request: Option<&[u8]>,
    ) {
        if let Err(refusal) = self.open(id, key, mode) {
            return self.refuse(id, refusal);
        }
        let request = request.map(<[u8]>::to_vec);
        if self.is_free(key, mode) {
            if self.is_refused_for_memory(id) {
                return self.refuse(id, Refusal::Memory);
            }
            let grant = self.grant(session, key, mode, lease, request);
            let token = self.symbol(grant);
            self.reply(id, Reply::Granted { token, lease });
            self.tell_of_grant(key, mode, id);
        } else if self.is_queue_full(key) {
            self.refuse(id, Refusal::MaxWaiters);
        } else if wait == Millis::ZERO {
            self.reply(id, Reply::TimedOut);
        } else if self.is_refused_for_memory(id) {
            self.refuse(id, Refusal::Memory);
        } else if self.would_deadlock(id, session, key, mode, None) {
            self.refuse(id, Refusal::Deadlock);
        } else {
            let key = key.to_vec();
            self.park(
                id,
                session,
                wait,
                Awaits::Hold {
                    key,
                    mode,
                    lease,
                    ticket: false,
                    request,
                },
            );
        }
    }

    pub(crate) fn release(&mut self, id: ConnId, key: &[u8], token: Option<Token>) {
        let Some(grant) = self.find_grant(key, token) else {
            return self.refuse(id, Refusal::NotHolder);
        };
        let gone = self.grant_of(grant).clone();
        self.note(Noted::Released, &gone);
        self.remove_grant(grant);
        self.reply(id, Reply::Done);
        self.announce(Event::Release, key);
        // A lease that was over made room when it ended, not now.
        self.serve(key, gone.deadline.min(self.moment));
    }

    /// Gives up leadership. If another client resigns for a leader, the leader is notified as if it
    /// observed the key.
    pub(crate) fn resign(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        token: Option<Token>,
    ) {
        let Some(grant) = self.find_grant(key, token) else {
            return self.refuse(id, Refusal::NotHolder);
        };
        let gone = self.grant_of(grant).clone();
        self.note(Noted::Released, &gone);
        let mut unaware = match gone.mode == Mode::Lead && gone.session != session {
            true => self.connections_of(gone.session),
            false => Vec::new(),
        };
        unaware.retain(|conn| !self.observes(*conn, key));
        self.remove_grant(grant);
        self.reply(id, Reply::Done);
        self.announce(Event::Resign, key);
        for conn in unaware {
            self.push(
                conn,
                Push::Leader {
                    change: Change::Resigned,
                    key: key.into(),
                },
            );
        }
        self.tell_observers(Change::Resigned, key, None);
        self.serve(key, gone.deadline.min(self.moment));
    }

    /// Subscribes to the key's leader. The first event names the current leader, if there is one.
    pub(crate) fn observe(&mut self, id: ConnId, key: &[u8]) {
        self.settle(key);
        let leads = self.holders(key).next().is_some();
        let observed = self.observes(id, key);
        self.subscribe(id, subscription::Topic::Observe, key, b"");
        if leads && !observed && self.observes(id, key) {
            self.push(
                id,
                Push::Leader {
                    change: Change::Elected,
                    key: key.into(),
                },
            );
        }
    }

    /// The place of the session's ticket, counted from 1; 0 if the session holds the key.
    pub(crate) fn position(&mut self, id: ConnId, session: SessionId, key: &[u8]) {
        self.settle(key);
        let place = self.queued_place(session, key);
        let place = place.and_then(|place| self.queue(key).iter().position(|it| *it == place));
        let reply = match place {
            Some(before) => Reply::Number(before as i64 + 1),
            None if self.holders(key).any(|it| it.session == session) => Reply::Number(0),
            None => Reply::Nothing,
        };
        self.reply(id, reply);
    }

    /// An operator ends one grant.
    pub(crate) fn break_one(&mut self, id: ConnId, key: &[u8], fence: Fence) {
        self.meet(id);
        self.about = Some(key.to_vec());
        match self.find_by_fence(id, key, fence) {
            Some(grant) => {
                self.reply(id, Reply::Done);
                self.break_grant(grant);
            }
            None => self.refuse(id, Refusal::NotHolder),
        }
    }

    /// An operator ends all grants that a key has now, or the one with this fence.
    pub(crate) fn break_all(&mut self, id: ConnId, key: &[u8], fence: Option<Fence>) {
        self.meet(id);
        self.about = Some(key.to_vec());
        let broken: Vec<GrantId> = match fence {
            Some(fence) => self.find_by_fence(id, key, fence).into_iter().collect(),
            None => self.holders(key).map(|it| it.id).collect(),
        };
        for grant in &broken {
            self.break_grant(*grant);
        }
        self.answer_parked(id, Reply::Number(broken.len() as i64));
    }

    fn break_grant(&mut self, grant: GrantId) {
        let it = self.grant_of(grant).clone();
        self.lose(grant, Loss::Broken, Noted::Broken);
        self.serve(&it.key, it.deadline.min(self.moment));
    }

    // ---- keys ----

    /// Makes sure that the key exists and is of this kind, and that what is over on it has ended.
    pub(crate) fn open(&mut self, id: ConnId, key: &[u8], mode: Mode) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        let holds_max = self.rules.holds_max as usize;
        if holds_max != 0 && self.grants.len() >= holds_max {
            return Err(Refusal::MaxLocks);
        }
        let slots = slots_of(mode);
        self.forget_if_full(key);
        if let Some(at) = self.keys.iter().position(|it| it.name == key) {
            let it = &self.keys[at];
            let mismatch = match (it.slots, slots) {
                (known, asked) if known == asked => None,
                (Some(_), Some(_)) => Some(Refusal::LimitMismatch),
                _ => Some(Refusal::TypeMismatch),
            };
            let is_kept = |why| self.seen_answer(id) == Some(&Reply::Refused(why));
            match mismatch {
                // It was forgotten, as it may be, if the engine does not refuse.
                Some(why) if it.may_be_gone && !is_kept(why) => {
                    self.keys.remove(at);
                }
                Some(why) => return Err(why),
                None => {
                    self.settle(key);
                    return Ok(());
                }
            }
        }
        self.make_room_for_key()?;
        if self.is_refused_for_memory(id) {
            // There may have been memory for the key, and none for the grant.
            let mut key = LockKey::new(key, mode);
            key.may_be_gone = true;
            self.keys.push(key);
            return Err(Refusal::Memory);
        }
        self.keys.push(LockKey::new(key, mode));
        Ok(())
    }

    /// Whether there is a key of this name and of the kind that is asked for.
    pub(crate) fn is_of_kind(&self, key: &[u8], mode: Mode) -> bool {
        self.keys
            .iter()
            .any(|it| it.name == key && it.slots == slots_of(mode))
    }

    pub(crate) fn holders(&self, key: &[u8]) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |it| it.key == key)
    }

    /// The waiters of a key, in the order in which they came.
    pub(crate) fn queue(&self, key: &[u8]) -> Vec<WaiterId> {
        let is_of = |it: &&crate::Waiter| match &it.what {
            Awaits::Hold { key: of, .. } => of == key,
            _ => false,
        };
        self.waiters.iter().filter(is_of).map(|it| it.id).collect()
    }

    /// Whether there is room for such a hold beside the present ones.
    fn admits(&self, key: &[u8], mode: Mode) -> bool {
        let holders = self.holders(key).count();
        match mode {
            Mode::Slot { limit } => holders < limit as usize,
            Mode::Lead => holders < 1,
            Mode::Write => holders == 0,
            Mode::Read => self.holders(key).all(|it| it.mode == Mode::Read),
        }
    }

    pub(crate) fn is_free(&self, key: &[u8], mode: Mode) -> bool {
        self.queue(key).is_empty() && self.admits(key, mode)
    }

    pub(crate) fn is_queue_full(&self, key: &[u8]) -> bool {
        let most = self.rules.waiters_per_key_max as usize;
        most != 0 && self.queue(key).len() >= most
    }

    // ---- grants ----

    /// Makes the session a holder. The caller answers its client.
    pub(crate) fn grant(
        &mut self,
        session: SessionId,
        key: &[u8],
        mode: Mode,
        lease: Millis,
        request: Option<Vec<u8>>,
    ) -> GrantId {
        let id = self.next_number();
        self.born.push(id);
        self.tokens.insert(id, crate::follow::Known::new(key));
        self.grants.push(Grant {
            id,
            key: key.to_vec(),
            session,
            mode,
            since: self.now,
            deadline: self.now.after(lease),
            kept: false,
            recorded: record::Lease::new(lease),
            request,
        });
        self.record_grant(id, lease);
        let grant = self.grant_of(id).clone();
        self.note(Noted::Granted, &grant);
        self.keep_if_asked(id);
        id
    }

    /// A grant outlives its connection if the connection has asked for that before it is notified
    /// of the grant.
    pub(crate) fn keep_if_asked(&mut self, grant: GrantId) {
        let session = self.grant_of(grant).session;
        let keeps = match self.session(session).kind {
            Kind::Conn(id) => self.find_conn(id).is_some_and(|it| it.keeps),
            _ => false,
        };
        self.grant_mut(grant).kept |= keeps;
    }

    /// The first in the queue is granted what it waits for.
    fn promote(&mut self, waiter: WaiterId) {
        let it = self.unpark(waiter);
        let Awaits::Hold {
            key,
            mode,
            lease,
            ticket,
            request,
        } = it.what
        else {
            unreachable!("only those who want a key are in its queue")
        };
        let grant = self.grant(it.session, &key, mode, lease, request);
        if ticket {
            match it.conn {
                Some(_) => self.forget_ticket(it.session, &key),
                None => {
                    self.grant_mut(grant).kept = false; // its client is answered later
                    self.set_ticket(it.session, &key, Stage::Held(grant));
                }
            }
        }
        if slots_of(mode) == Some(1) {
            self.tell_observers(Change::Failover, &key, None);
        }
        if let Some(conn) = it.conn {
            let token = self.symbol(grant);
            self.reply(conn, Reply::Granted { token, lease });
            self.tell_of_grant(&key, mode, conn);
        }
    }

    /// Notifies watchers and observers of a grant, after its client is answered.
    pub(crate) fn tell_of_grant(&mut self, key: &[u8], mode: Mode, conn: ConnId) {
        if mode == Mode::Lead {
            self.announce(Event::Elect, key);
            self.tell_observers(Change::Elected, key, Some(conn));
        } else {
            self.announce(Event::Acquire, key);
        }
    }

    /// Takes a grant away, with its ticket. The queue is served by the caller.
    pub(crate) fn remove_grant(&mut self, grant: GrantId) {
        self.record_end(grant);
        self.tickets.retain(|it| it.stage != Stage::Held(grant));
        self.grants.retain(|it| it.id != grant);
    }

    /// A grant ends against the will of its client, which is notified.
    pub(crate) fn lose(&mut self, grant: GrantId, why: Loss, noted: Noted) {
        let gone = self.grant_of(grant).clone();
        let fence = self.symbol(grant).fence;
        self.lapsed.push((grant, gone.key.clone()));
        for conn in self.connections_of(gone.session) {
            if self.conn(conn).introduced {
                self.push(
                    conn,
                    Push::Lost {
                        key: (&*gone.key).into(),
                        fence,
                        why,
                    },
                );
            }
        }
        self.announce(Event::Release, &gone.key);
        self.note(noted, &gone);
        self.expire_ticket_of(grant);
        self.remove_grant(grant);
    }

    pub(crate) fn grant_of(&self, id: GrantId) -> &Grant {
        self.grants
            .iter()
            .find(|it| it.id == id)
            .expect("the grant has not ended")
    }

    pub(crate) fn grant_mut(&mut self, id: GrantId) -> &mut Grant {
        self.grants
            .iter_mut()
            .find(|it| it.id == id)
            .expect("the grant has not ended")
    }

    /// The log may tell what becomes of a grant.
    pub(crate) fn note(&mut self, what: Noted, grant: &Grant) {
        let least = match what {
            Noted::Broken => Notes::Off,
            Noted::Expired { .. } => Notes::Expiries,
            Noted::Granted | Noted::Released | Noted::Disconnected => Notes::All,
        };
        if self.rules.notes < least {
            return;
        }
        let session = self.session(grant.session);
        let name = session.name.as_deref().map(Box::from);
        let note = Note {
            what,
            key: (&*grant.key).into(),
            of: NoteOf::Grant(self.symbol(grant.id).fence),
            conn: match session.kind {
                Kind::Conn(id) => Some(id),
                _ => None,
            },
            client: name
                .clone()
                .filter(|_| matches!(session.kind, Kind::Client(_))),
            owner: name.filter(|_| matches!(session.kind, Kind::Named)),
            user: session.user.clone(),
        };
        self.expect(Effect::Note(Box::new(note)));
    }

    // ---- the queue ----

    /// Serves the queue for the room at this instant: grants to the first waiters while there is
    /// room, and refuses waiters that cannot be granted any more.
    pub(crate) fn serve(&mut self, key: &[u8], moment: Nanos) {
        let before = self.unserved.iter().position(|it| it.0 == key);
        let moment = before.map_or(moment, |at| self.unserved.remove(at).1.min(moment));
        while let Some(first) = self
            .queue(key)
            .first()
            .and_then(|it| self.waiter(*it))
            .cloned()
        {
            let Awaits::Hold { mode, .. } = first.what else {
                unreachable!("only those who want a key are in its queue")
            };
            let is_over = first.conn.is_some() && first.until < moment;
            // A lease that was over before the wait was makes room for it, and has not ended yet.
            if is_over && self.holders(key).any(|it| it.deadline <= first.until) {
                break;
            }
            let is_present = self.is_present(&first);
            let is_sent_away = self.draining && first.conn.is_some();
            if is_present && !is_over && !is_sent_away {
                if !self.admits(key, mode) {
                    break;
                }
                self.promote(first.id);
                continue;
            }
            self.give_up(first.id);
            if let Some(conn) = first.conn {
                let why = match (is_present, is_over) {
                    (false, _) => Reply::Refused(Refusal::Detached),
                    (true, true) => Reply::TimedOut,
                    (true, false) => Reply::Refused(Refusal::Draining),
                };
                self.answer_parked(conn, why);
            }
        }
    }

    /// The queue of this key is served when time passes, for room that there was at this instant.
    pub(crate) fn serve_later(&mut self, key: &[u8], moment: Nanos) {
        if !self.unserved.iter().any(|it| it.0 == key) {
            self.unserved.push((key.to_vec(), moment));
        }
    }

    /// Takes a waiter out of the queue, with its ticket. Says nothing.
    pub(crate) fn give_up(&mut self, waiter: WaiterId) {
        let it = self.unpark(waiter);
        if let Awaits::Hold {
            key, ticket: true, ..
        } = it.what
        {
            self.forget_ticket(it.session, &key);
        }
    }

    /// The wait of a parked command is over.
    pub(crate) fn hold_wait_ended(&mut self, waiter: WaiterId, key: &[u8]) {
        self.settle(key);
        if let Some(conn) = self.waiter(waiter).and_then(|it| it.conn) {
            self.give_up(waiter);
            self.answer_parked(conn, Reply::TimedOut);
            self.serve(key, self.moment);
        }
    }
}
