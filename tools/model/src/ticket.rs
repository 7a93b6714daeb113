//! Two-phase acquire: take a place in the queue now (`e`), wait for it later (`w`).
//!
//! | ticket            | what happens             | ticket then | answer                          |
//! |-------------------|--------------------------|-------------|---------------------------------|
//! | –                 | `e`, the key is free     | Held        | "acquired"                      |
//! | –                 | `e`, the key is not free | Queued      | "queued"                        |
//! | Queued            | the key is granted       | Held        | none yet: the next `w` gets it  |
//! | Queued, `w` waits | the key is granted       | –           | "ok"                            |
//! | Queued, `w` waits | the wait is over         | –           | "timeout"                       |
//! | Held              | `w`                      | –           | "ok", and the full lease begins |
//! | Held              | the lease ends           | Expired     | none yet: the next `w` gets it  |
//! | Held              | `n` finds the lease over | –           | "error_lease_expired"           |
//! | Expired           | `w`                      | –           | "error_lease_expired"           |
//! | Expired           | `e`                      | as without  | as without                      |
//! | Expired           | no `w` for a while       | –           |                                 |
//!
//! "A while" is as long as an idle key is remembered, and a minute at least. A session has one
//! ticket for a key. The ticket ends with its grant, however that is released, and with the
//! session.

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Mode, Refusal, Reply};

use crate::{Awaits, GrantId, Model, Name, SessionId, Waiter, WaiterId};

/// How long at least a ticket is remembered whose lease has ended.
const EXPIRED_KEPT_MIN: Millis = Millis::from_secs(60);

/// One enqueue that was not waited for yet.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub session: SessionId,
    pub key: Name,
    /// The lease that was asked for. It begins anew when `w` returns the grant.
    pub lease: Millis,
    pub stage: Stage,
}

/// How far an enqueue has got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Queued(WaiterId),
    Held(GrantId),
    /// The lease has ended; forgotten at this instant.
    Expired(Nanos, GrantId),
}

impl Model {
    pub(crate) fn enqueue(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        mode: Mode,
        lease: Millis,
    ) {
        match self.current_ticket(session, key).map(|it| it.stage) {
            Some(Stage::Expired(..)) => self.forget_ticket(session, key),
            Some(_) => return self.refuse(id, Refusal::AlreadyEnqueued),
            None => {}
        }
        if let Err(refusal) = self.open(id, key, mode) {
            return self.refuse(id, refusal);
        }
        let is_free = self.is_free(key, mode);
        if !is_free && self.is_queue_full(key) {
            self.refuse(id, Refusal::MaxWaiters);
        } else if self.is_refused_for_memory(id) {
            self.refuse(id, Refusal::Memory);
        } else if is_free {
            let grant = self.grant(session, key, mode, lease, None);
            self.add_ticket(session, key, lease, Stage::Held(grant));
            let token = self.symbol(grant);
            self.reply(id, Reply::Acquired { token, lease });
            self.tell_of_grant(key, mode, id);
        } else {
            let (number, since) = (self.next_number(), self.now);
            let what = Awaits::Hold {
                key: key.to_vec(),
                mode,
                lease,
                ticket: true,
                request: None,
            };
            let (conn, until) = (None, Nanos::NEVER);
            self.waiters.push(Waiter {
                id: number,
                session,
                conn,
                until,
                since,
                what,
            });
            self.add_ticket(session, key, lease, Stage::Queued(number));
            self.reply(id, Reply::Queued);
        }
    }

    pub(crate) fn wait(&mut self, id: ConnId, session: SessionId, key: &[u8], wait: Millis) {
        let Some(ticket) = self.current_ticket(session, key) else {
            return self.refuse(id, Refusal::NotEnqueued);
        };
        match ticket.stage {
            Stage::Held(grant) => {
                let lease = self.restart_lease(grant, ticket.lease);
                self.keep_if_asked(grant);
                self.forget_ticket(session, key);
                let (token, mode) = (self.symbol(grant), self.grant_of(grant).mode);
                self.reply(id, Reply::Granted { token, lease });
                self.tell_of_grant(key, mode, id);
            }
            Stage::Expired(..) => {
                self.forget_ticket(session, key);
                self.refuse(id, Refusal::LeaseExpired);
            }
            Stage::Queued(waiter) => self.wait_in_queue(id, session, key, waiter, wait),
        }
    }

    fn wait_in_queue(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        place: WaiterId,
        wait: Millis,
    ) {
        let waiter = self.waiter(place).expect("a ticket has its place").clone();
        let Awaits::Hold { mode, .. } = waiter.what else {
            unreachable!("a ticket is for a key")
        };
        if waiter.conn.is_some() {
            // Another connection of the same client waits for it.
            return self.refuse(id, Refusal::NotEnqueued);
        }
        let leaves = if self.draining {
            Some(Reply::Refused(Refusal::Draining))
        } else if wait == Millis::ZERO {
            Some(Reply::TimedOut)
        } else if self.would_deadlock(id, session, key, mode, Some(place)) {
            Some(Reply::Refused(Refusal::Deadlock))
        } else {
            None
        };
        match leaves {
            Some(reply) => {
                self.give_up(place);
                self.reply(id, reply);
                self.serve(key, self.moment);
            }
            None => {
                let until = self.now.after(wait);
                let it = self.waiters.iter_mut().find(|it| it.id == place);
                let it = it.expect("a ticket has its place");
                (it.conn, it.until) = (Some(id), until);
            }
        }
    }

    /// The session's ticket for this key, once what is over on the key has ended.
    fn current_ticket(&mut self, session: SessionId, key: &[u8]) -> Option<Ticket> {
        self.ticket(session, key)?;
        self.settle(key);
        self.ticket(session, key).cloned()
    }

    fn ticket(&self, session: SessionId, key: &[u8]) -> Option<&Ticket> {
        self.tickets
            .iter()
            .find(|it| it.session == session && it.key == key)
    }

    /// The place of the session's ticket, while it is in the queue.
    pub(crate) fn queued_place(&self, session: SessionId, key: &[u8]) -> Option<WaiterId> {
        match self.ticket(session, key)?.stage {
            Stage::Queued(waiter) => Some(waiter),
            _ => None,
        }
    }

    fn add_ticket(&mut self, session: SessionId, key: &[u8], lease: Millis, stage: Stage) {
        self.tickets.push(Ticket {
            session,
            key: key.to_vec(),
            lease,
            stage,
        });
    }

    pub(crate) fn set_ticket(&mut self, session: SessionId, key: &[u8], stage: Stage) {
        let is_it = |it: &&mut Ticket| it.session == session && it.key == key;
        if let Some(ticket) = self.tickets.iter_mut().find(is_it) {
            ticket.stage = stage;
        }
    }

    /// The grant, if there is one, stays.
    pub(crate) fn forget_ticket(&mut self, session: SessionId, key: &[u8]) {
        self.tickets
            .retain(|it| it.session != session || it.key != key);
    }

    /// The lease of a ticket's grant has ended before a `w` came.
    pub(crate) fn expire_ticket_of(&mut self, grant: GrantId) {
        let until = self.now.after(self.rules.gc_idle_max.max(EXPIRED_KEPT_MIN));
        for ticket in self
            .tickets
            .iter_mut()
            .filter(|it| it.stage == Stage::Held(grant))
        {
            ticket.stage = Stage::Expired(until, grant);
        }
    }
}
