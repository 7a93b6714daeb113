//! Records of changes that have to outlive the process, and marks on the effects that wait for
//! them.
//!
//! - If the rules say so, each change of a grant, a counter, a value, a list, a client or a
//!   client's ranges is recorded, in the order of the changes of each name.
//! - An effect about a name must not be sent before the name's last record is durable: it comes
//!   after a mark with the number of that record, or a later one.
//! - A lease that is new, or longer than the records have it, begins when its record is durable,
//!   because no client may learn of it before. Other renewals begin immediately and are not
//!   recorded.
//! - While the disk is full a lease becomes no longer than the records have it.
//! - After a restart the records are restored one by one. Grants of connections have no owner until
//!   a client shows the token; grants of clients and HTTP owners belong to them. All leases, and
//!   the times to live of all clients, begin anew when the server starts to serve.

use std::collections::BTreeMap;

use latchd::base::{Fence, Millis, Nanos};
use latchd::engine::types::{ATTACHED_SERIAL, Record};

use crate::{Grant, GrantId, Kind, Life, Model, Name, SessionId};

/// A record: by its number, or one of those that the present input should make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mark {
    Number(u64),
    Expected(usize),
}

impl Default for Mark {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// The lease of a grant, as the records have it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub kept: Millis,
    /// What the client asked for last.
    pub asked: Millis,
    /// The record with which it begins; none if it has begun.
    pub begins_with: Option<Mark>,
    /// The lease is over but kept, because requests of its holder wait for the disk.
    pub is_overdue: bool,
}

impl Lease {
    pub(crate) fn new(lease: Millis) -> Self {
        Self {
            kept: lease,
            asked: lease,
            begins_with: None,
            is_overdue: false,
        }
    }
}

/// What was recorded.
#[derive(Default)]
pub(crate) struct Records {
    /// How many there were before this input.
    pub count: u64,
    pub kept_upto: u64,
    /// What this input should record.
    pub expected: Vec<Record>,
    /// The last record of each name.
    pub last: BTreeMap<Name, Mark>,
    /// Fences up to this one are reserved.
    pub fences_upto: u64,
    is_restoring: bool,
}

impl Records {
    /// The last record of a name.
    pub(crate) fn mark(&self, name: &[u8]) -> Mark {
        self.last.get(name).copied().unwrap_or_default()
    }

    /// From now on effects about this name wait for all records so far.
    pub(crate) fn speak_of_all(&mut self, name: &str) {
        let mark = match self.expected.len() {
            0 => Mark::Number(self.count),
            some => Mark::Expected(some - 1),
        };
        self.last.insert(name.as_bytes().to_vec(), mark);
    }

    /// The number of the record that is made next.
    pub(crate) fn next_number(&self) -> u64 {
        self.count + self.expected.len() as u64 + 1
    }

    /// Whether this record was made and is not known to be kept.
    pub(crate) fn is_untold(&self, number: u64) -> bool {
        number > self.kept_upto && number <= self.count + self.expected.len() as u64
    }
}

impl Model {
    /// This change should be recorded.
    pub(crate) fn record(&mut self, record: Record) {
        if !self.rules.durable || self.records.is_restoring {
            return;
        }
        let mark = Mark::Expected(self.records.expected.len());
        if let Some(key) = record.key() {
            self.records.last.insert(key.as_bytes().to_vec(), mark);
        }
        self.records.expected.push(record);
    }

    pub(crate) fn record_grant(&mut self, grant: GrantId, lease: Millis) {
        if !self.rules.durable {
            return;
        }
        let it = self.grant_of(grant).clone();
        let session = self.session(it.session);
        let client = match session.kind {
            Kind::Conn(id) => id.serial,
            Kind::Client(_) => ATTACHED_SERIAL,
            Kind::Named | Kind::Nobody => 0,
        };
        let name = session.name.as_deref().map(Into::into);
        let token = self.symbol(grant);
        let request = it.request.unwrap_or_default().into();
        let (key, mode) = ((&*it.key).into(), it.mode);
        self.record(Record::Granted {
            key,
            mode,
            token,
            lease,
            client,
            name,
            request,
        });
        self.begin_when_kept(grant);
    }

    pub(crate) fn record_end(&mut self, grant: GrantId) {
        let key = (&*self.grant_of(grant).key).into();
        let fence = self.symbol(grant).fence;
        self.record(Record::Ended { key, fence });
    }

    /// The grant belongs to a client that is known after a restart.
    pub(crate) fn record_owned(&mut self, grant: GrantId) {
        let it = self.grant_of(grant);
        let client = self.session(it.session).name.clone().unwrap_or_default();
        let (key, client) = ((&*it.key).into(), client.as_bytes().into());
        let fence = self.symbol(grant).fence;
        self.record(Record::Owned { key, fence, client });
    }

    fn begin_when_kept(&mut self, grant: GrantId) {
        let mark = Mark::Expected(self.records.expected.len() - 1);
        let it = self.grant_mut(grant);
        it.deadline = Nanos::NEVER;
        (it.recorded.begins_with, it.recorded.is_overdue) = (Some(mark), false);
    }

    pub(crate) fn restart_recorded_lease(&mut self, grant: GrantId, lease: Millis) -> Millis {
        let until_kept = self.records.kept_upto;
        let storage_full = self.storage_full;
        let deadline = |now: Nanos, lease| now.after(lease);
        let now = self.now;
        let it = self.grant_mut(grant);
        let lease = match storage_full {
            true => lease.min(it.recorded.kept),
            false => lease,
        };
        it.recorded.asked = lease;
        if lease > it.recorded.kept {
            it.recorded.kept = lease;
            let key = (&*it.key).into();
            let fence = self.symbol(grant).fence;
            self.record(Record::Lengthened { key, fence, lease });
            self.begin_when_kept(grant);
        } else if it.recorded.begins_with.is_none_or(|mark| match mark {
            Mark::Number(number) => number <= until_kept,
            Mark::Expected(_) => false,
        }) {
            (it.recorded.begins_with, it.recorded.is_overdue) = (None, false);
            it.deadline = deadline(now, lease);
        }
        lease
    }

    /// Everything up to this record is kept: leases begin that were waiting for that.
    pub(crate) fn note_kept(&mut self, number: u64) {
        self.records.kept_upto = self.records.kept_upto.max(number);
        let (now, kept_upto) = (self.now, self.records.kept_upto);
        for grant in &mut self.grants {
            if let Some(Mark::Number(with)) = grant.recorded.begins_with
                && with <= kept_upto
            {
                grant.recorded.begins_with = None;
                grant.deadline = now.after(grant.recorded.asked);
            }
        }
    }

    /// Gives a restored grant without an owner to this session. On a full disk the grant stays
    /// without one, if the change would have to be recorded.
    pub(crate) fn bind(&mut self, grant: GrantId, session: SessionId) {
        let before = self.grant_of(grant).session;
        let is_kept = self.is_kept_client(session);
        if !matches!(self.session(before).kind, Kind::Nobody) || is_kept && self.storage_full {
            return;
        }
        // The grant becomes the last of its new owner.
        let key = self.grant_of(grant).key.clone();
        self.grant_mut(grant).session = session;
        if is_kept {
            self.record_owned(grant);
        }
        self.keep_if_asked(grant);
        self.look_at_waits_behind(&key, session);
    }

    // ---- after a restart ----

    /// Restores a record of an earlier run, without effects and new records.
    pub(crate) fn restore(&mut self, record: &Record) {
        self.records.is_restoring = true;
        match record {
            Record::Granted {
                key,
                mode,
                token,
                lease,
                client,
                name,
                request,
            } => {
                let known = name.as_deref().and_then(|id| self.find_client(id));
                let session = match (*client, name.as_deref(), known) {
                    (0, Some(name), _) => self
                        .find_named(name)
                        .unwrap_or_else(|| self.add_session(Kind::Named, Life::Here, Some(name))),
                    (ATTACHED_SERIAL, _, Some(client)) => client,
                    _ => self.nobody(),
                };
                let id = self.next_number();
                self.tokens
                    .insert(id, crate::follow::Known::of(key.as_bytes(), *token));
                self.restore_key(key.as_bytes(), *mode);
                self.grants.push(Grant {
                    id,
                    key: key.as_bytes().to_vec(),
                    session,
                    mode: *mode,
                    since: self.now,
                    deadline: Nanos::NEVER,
                    kept: false,
                    recorded: Lease::new(*lease),
                    request: (*client == 0 && name.is_some()).then(|| request.to_vec()),
                });
                self.restored += 1;
                self.last_fence = self.last_fence.max(token.fence.0);
                self.records.fences_upto = self.records.fences_upto.max(token.fence.0);
            }
            Record::Lengthened { key, fence, lease } => {
                if let Some(grant) = self.find_restored(key.as_bytes(), *fence) {
                    self.grant_mut(grant).recorded = Lease::new(*lease);
                }
            }
            Record::Owned { key, fence, client } => {
                let client = String::from_utf8_lossy(client.as_bytes()).into_owned();
                if let Some(client) = self.find_client(&client)
                    && let Some(grant) = self.find_restored(key.as_bytes(), *fence)
                {
                    self.grant_mut(grant).session = client;
                }
            }
            Record::Ended { key, fence } => {
                if let Some(grant) = self.find_restored(key.as_bytes(), *fence) {
                    self.grants.retain(|it| it.id != grant);
                    self.restored -= 1;
                    if self.holders(key.as_bytes()).next().is_none() {
                        self.keys.retain(|it| it.name != key.as_bytes());
                    }
                }
            }
            Record::Counted { key, value } => self.restore_counter(key.as_bytes(), *value),
            Record::Stored { key, value, ends } => self.restore_value(key.as_bytes(), value, *ends),
            Record::Deleted { key } => _ = self.values.remove(key.as_bytes()),
            Record::Pushed { key, end, value } => self.restore_push(key.as_bytes(), *end, value),
            Record::Popped { key, end } => _ = self.restore_pop(key.as_bytes(), *end),
            Record::Client { id, ttl, secret } => {
                let id = String::from_utf8_lossy(id.as_bytes()).into_owned();
                self.restore_client(&id, *ttl, *secret);
            }
            Record::ClientGone { id } => {
                let id = String::from_utf8_lossy(id.as_bytes()).into_owned();
                if let Some(client) = self.find_client(&id) {
                    self.restore_ranges_gone(client);
                    for grant in self.grants_of(client) {
                        let nobody = self.nobody();
                        self.grant_mut(grant).session = nobody;
                    }
                    self.session_mut(client).life = Life::Gone;
                }
            }
            Record::Ranged { .. } => self.restore_range(record),
            Record::Fences { upto } => {
                self.last_fence = self.last_fence.max(upto.0);
                self.records.fences_upto = self.records.fences_upto.max(upto.0);
            }
        }
        self.records.is_restoring = false;
    }

    /// Clients are served from now on.
    pub(crate) fn serve_all(&mut self, may_have_lost: bool) {
        let now = self.now;
        for grant in &mut self.grants {
            grant.deadline = now.after(grant.recorded.kept);
        }
        for session in &mut self.sessions {
            if let Kind::Client(client) = &mut session.kind
                && session.life != Life::Gone
            {
                client.until = Some(now.after(client.ttl));
            }
        }
        self.begin_grace(may_have_lost);
    }

    /// The session of restored grants that no client has claimed.
    fn nobody(&mut self) -> SessionId {
        let nobody = self
            .sessions
            .iter()
            .find(|it| matches!(it.kind, Kind::Nobody));
        match nobody.map(|it| it.id) {
            Some(id) => id,
            None => self.add_session(Kind::Nobody, Life::Gone, None),
        }
    }

    fn find_restored(&self, key: &[u8], fence: Fence) -> Option<GrantId> {
        let mut holders = self.holders(key);
        let found = holders.find(|it| self.tokens[&it.id].fence == Some(fence.0));
        found.map(|it| it.id)
    }
}
