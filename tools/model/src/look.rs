//! What can be seen of the model from outside, to be compared with what can be seen of the engine.

use latchd::base::{ConnId, Nanos, Token};
use latchd::engine::types::{Mode, User};

use crate::ticket::Stage;
use crate::{Awaits, Kind, Model, Name, Session, SessionId};

impl Model {
    /// Whether a command of this connection is parked.
    #[must_use]
    pub fn is_parked(&self, id: ConnId) -> bool {
        self.parked(id).is_some()
    }

    /// How many grants there are.
    #[must_use]
    pub fn grant_count(&self) -> usize {
        self.grants.len()
    }

    /// How many waiters there are, in all queues.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        self.waiters.len()
    }

    /// All grants: a number for each, and what kind of session has it.
    #[must_use]
    pub fn grants_by_kind(&self) -> Vec<(u64, &'static str)> {
        let grants = self.grants.iter();
        grants.map(|it| (it.id, self.kind_of(it.session))).collect()
    }

    /// What kind of session a connection acquires for; none if it is not known yet.
    #[must_use]
    pub fn kind_of_conn(&self, id: ConnId) -> Option<&'static str> {
        self.find_conn(id).map(|it| self.kind_of(it.session))
    }

    fn kind_of(&self, session: SessionId) -> &'static str {
        match &self.session(session).kind {
            Kind::Conn(id) if self.find_conn(*id).is_some_and(|it| it.keeps) => "keeper",
            Kind::Conn(_) => "connection",
            Kind::Client(client) if client.conns.len() > 1 => "client with several connections",
            Kind::Client(_) => "client",
            Kind::Named => "HTTP owner",
            Kind::Nobody => "nobody",
        }
    }

    /// How many enqueues were not waited for yet.
    #[must_use]
    pub fn ticket_count(&self) -> usize {
        self.tickets.len()
    }

    /// Whether the key is held with this token.
    #[must_use]
    pub fn is_held(&self, key: &[u8], token: Token) -> bool {
        self.find_grant(key, Some(token)).is_some()
    }

    /// The key that was granted with this token.
    #[must_use]
    pub fn key_of(&self, token: Token) -> Option<Name> {
        let known = self.tokens.values().find(|it| it.is_token(token));
        known.map(|it| it.key.clone())
    }

    /// The holders of a key, oldest first.
    #[must_use]
    pub fn holders_of(&self, key: &[u8]) -> Vec<Shown> {
        let shown = |it: &crate::Grant| {
            let session = self.session(it.session);
            let left = match it.deadline {
                Nanos::NEVER => self.now.after(it.recorded.asked),
                deadline => deadline,
            };
            Shown {
                fence: self.tokens[&it.id].fence,
                conn: conn_of(session),
                client: client_of(session),
                name: called(session),
                user: session.user.clone(),
                hold: hold_of(it.mode),
                age_ns: self.now.since(it.since),
                left_ns: left.since(self.now),
            }
        };
        self.holders(key).map(shown).collect()
    }

    /// The waiters of a key, the next to be granted first.
    #[must_use]
    pub fn waiters_of(&self, key: &[u8]) -> Vec<Shown> {
        let queue = self.queue(key).into_iter().filter_map(|it| self.waiter(it));
        let shown = queue.map(|it| {
            let session = self.session(it.session);
            let own = it.conn.map(|conn| self.session(self.conn(conn).own));
            let is_attached = it
                .conn
                .is_some_and(|conn| self.conn(conn).session != self.conn(conn).own);
            let Awaits::Hold { mode, .. } = it.what else {
                unreachable!("only those who want a key are in its queue")
            };
            Shown {
                fence: None,
                conn: it.conn.or_else(|| conn_of(session)),
                client: client_of(session),
                name: called(own.filter(|_| is_attached).unwrap_or(session)),
                user: own.unwrap_or(session).user.clone(),
                hold: hold_of(mode),
                age_ns: self.now.since(it.since),
                left_ns: 0,
            }
        });
        shown.collect()
    }

    /// Whether the HTTP owner, or else the session that the connection acquires for, holds this token.
    #[must_use]
    pub fn holds(&self, id: ConnId, owner: Option<&str>, token: Token) -> bool {
        let session = match owner {
            Some(owner) => self.find_named(owner),
            None => self.find_conn(id).map(|it| it.session),
        };
        let mut grants = self.grants.iter();
        grants.any(|it| Some(it.session) == session && self.tokens[&it.id].is_token(token))
    }

    /// The keys that the session of this connection has enqueued for.
    #[must_use]
    pub fn tickets_of(&self, id: ConnId) -> Vec<Name> {
        let session = self.find_conn(id).map(|it| it.session);
        let own = self.tickets.iter().filter(|it| Some(it.session) == session);
        own.map(|it| it.key.clone()).collect()
    }

    /// Forgets the ticket of this token, whose lease has ended. The model ends all leases of a key
    /// in one step, and the engine some at a time. So a renewal may still find a lease in the
    /// engine that has ended in the model, and then the ticket goes as well.
    pub fn forget_ended_ticket(&mut self, token: Token) {
        let tokens = &self.tokens;
        self.tickets.retain(|it| match it.stage {
            Stage::Expired(_, grant) => !tokens[&grant].is_token(token),
            _ => true,
        });
    }
}

/// A holder or a waiter of a key, as people see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The fence of a holder; none if it is not known yet.
    pub fence: Option<u64>,
    /// The connection that holds or waits.
    pub conn: Option<ConnId>,
    /// The client.
    pub client: Option<String>,
    /// The name from `hello`, or that of an HTTP owner.
    pub name: Option<String>,
    /// The user that the connection authenticated as.
    pub user: Option<User>,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: &'static str,
    /// How long it holds or waits.
    pub age_ns: u64,
    /// How long the lease of a holder still runs.
    pub left_ns: u64,
}

fn conn_of(session: &Session) -> Option<ConnId> {
    match session.kind {
        Kind::Conn(id) => Some(id),
        _ => None,
    }
}

fn client_of(session: &Session) -> Option<String> {
    let name = session.name.clone();
    name.filter(|_| matches!(session.kind, Kind::Client(_)))
}

fn called(session: &Session) -> Option<String> {
    let name = session.name.clone();
    name.filter(|_| !matches!(session.kind, Kind::Client(_)))
}

fn hold_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Slot { .. } => "slot",
        Mode::Read => "read",
        Mode::Write => "write",
        Mode::Lead => "lead",
    }
}
