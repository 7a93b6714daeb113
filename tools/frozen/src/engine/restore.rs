//! After a restart: the records of earlier runs bring back what was there.
//!
//! A record says what was changed, so nothing is decided again here, and nothing is said or
//! recorded. What does not fit the records before it is a bug or damage that nobody noticed; the
//! process stops before two clients hold one lock. Restored grants belong to their named owner or
//! client, all others to one owner without a connection. Their leases begin when clients are served, and the first renewal or `reclaim` with
//! the token binds a grant to the connection that sent it; nobody else's grant is ever bound.

use super::arena::NONE;
use super::conn::{Asker, ConnIndex};
use super::crowd::Crowds;
use super::ctx::{Core, Ctx};
use super::due::Due;
use super::holder::{Held, Holder};
use super::lock::Locks;
use super::owner::{NOBODY, OwnerIndex};
use super::record::RecordedLease;
use super::table::Kind;
use super::types::{ATTACHED_SERIAL, By, Effects, Mode, Record, Refusal, Reply, SecretHash};
use super::{Engine, Stores};
use crate::base::{Fence, Millis, Nanos, Token};
use crate::key::Key;

/// The grants that were restored.
#[derive(Default)]
pub(super) struct Restored {
    /// The owner of those that nobody has claimed yet; none if there are none.
    owner: Option<OwnerIndex>,
    /// How many were left when all records were replayed.
    grants: u64,
}

impl Restored {
    /// Whether this owner is the one of grants that nobody has claimed yet.
    pub(super) fn is_owner(&self, owner: OwnerIndex) -> bool {
        self.owner == Some(owner)
    }

    /// The owner of those that nobody has claimed yet.
    pub(super) fn owner(&self) -> Option<OwnerIndex> {
        self.owner
    }

    /// This owner owns nothing any more.
    pub(super) fn forget_owner(&mut self, owner: OwnerIndex) {
        if self.is_owner(owner) {
            self.owner = None;
        }
    }

    /// How many grants were restored; for checks.
    pub(super) fn grants(&self) -> u64 {
        self.grants
    }
}

impl Engine {
    pub(super) fn restore(&mut self, now: Nanos, record: &Record, out: &mut Effects) {
        self.set_restoring(true);
        let (stores, mut cx) = self.split(now, now, out);
        stores.restore(&mut cx, record);
        self.set_restoring(false);
    }

    /// All at once, because it happens once in the life of the daemon, before anybody is served.
    pub(super) fn serve(&mut self, now: Nanos, may_have_lost: bool, out: &mut Effects) {
        self.core.figures.forget_past();
        let (stores, mut cx) = self.split(now, now, out);
        let locks = &mut stores.locks;
        let holds: Vec<u32> = locks.holders.iter().map(|(holder, _)| holder).collect();
        for holder in holds {
            let lease = locks.recorded[holder].kept();
            locks.set_lease_end(&mut cx, holder, now.after(lease));
        }
        cx.start_clients();
        stores.locks.begin_grace(&mut cx, may_have_lost);
    }

    fn set_restoring(&mut self, is_restoring: bool) {
        let records = self.core.records.as_mut();
        records
            .expect("records are restored only where changes are recorded")
            .is_restoring = is_restoring;
    }
}

impl Stores {
    fn restore(&mut self, cx: &mut Ctx<'_>, record: &Record) {
        match record {
            &Record::Granted {
                ref key,
                mode,
                token,
                lease,
                client,
                ref name,
                ref request,
            } => {
                // A grant of no connection is one of a named owner, or of a client.
                let to = match (client, name.as_deref()) {
                    (0, Some(owner)) => Grantee::Named(By { owner, request }),
                    (ATTACHED_SERIAL, Some(id)) => {
                        let known = cx.restored_client(id);
                        known.map_or(Grantee::Nobody, Grantee::Client)
                    }
                    _ => Grantee::Nobody,
                };
                self.locks.restore_grant(cx, key, mode, token, lease, to);
            }
            &Record::Lengthened {
                ref key,
                fence,
                lease,
            } => self.locks.restore_lease(key, fence, lease),
            Record::Owned { key, fence, client } => {
                // If it is not known by now, it was forgotten later, and the grant was nobody's again.
                let client = str::from_utf8(client.as_bytes()).unwrap_or_default();
                if let Some(owner) = cx.restored_client(client) {
                    self.locks.restore_owner(cx, key, *fence, owner);
                }
            }
            &Record::Ended { ref key, fence } => self.locks.restore_end(cx, key, fence),
            Record::Counted { key, value } => self.counters.restore(cx, key.as_bytes(), *value),
            Record::Stored { key, value, ends } => {
                self.kv.restore(cx, key.as_bytes(), value, *ends);
            }
            Record::Deleted { key } => self.kv.restore_end(cx, key.as_bytes()),
            Record::Pushed { key, end, value } => {
                self.lists.restore(cx, key.as_bytes(), *end, value);
            }
            Record::Popped { key, end } => self.lists.restore_pop(cx, key.as_bytes(), *end),
            Record::Client { id, ttl, secret } => {
                if let Ok(id) = str::from_utf8(id.as_bytes()) {
                    cx.restore_client(id, *ttl, *secret);
                }
            }
            Record::ClientGone { id } => {
                let id = str::from_utf8(id.as_bytes()).unwrap_or_default();
                if let Some(owner) = cx.restore_client_gone(id) {
                    self.locks.restore_ranges_gone(cx, owner);
                    self.locks.restore_departed(cx, owner);
                }
            }
            Record::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                grant,
            } => {
                let names = [resource, client, owner].map(|it| it.as_bytes());
                self.locks.restore_range(cx, names, *range, *mode, *grant);
            }
            Record::Fences { upto } => cx.note_fences(*upto),
        }
    }
}

/// To whom a restored grant belongs.
#[derive(Clone, Copy)]
enum Grantee<'a> {
    /// To nobody, until somebody shows its token.
    Nobody,
    /// To the owner of this name, which asked for it like this.
    Named(By<'a>),
    /// To this client.
    Client(OwnerIndex),
}

impl Ctx<'_> {
    /// No fence up to this one is given out.
    fn note_fences(&mut self, upto: Fence) {
        self.core.fences.raise(upto);
        if let Some(records) = &mut self.core.records {
            records.note_fences(upto);
        }
    }

    fn named_owner(&mut self, name: &str) -> OwnerIndex {
        let owners = &mut self.core.owners;
        owners
            .find_named(name)
            .unwrap_or_else(|| owners.insert_named(name))
    }

    fn restored_owner(&mut self) -> OwnerIndex {
        let core = &mut *self.core;
        *core.restored.owner.get_or_insert_with(|| {
            let owner = core.owners.insert(NOBODY, ConnIndex::NONE);
            core.owners.lose_conn(owner);
            owner
        })
    }
}

impl Locks {
    pub(super) fn reclaim(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
        lease: Option<Millis>,
    ) {
        if cx.core.restored.grants == 0 {
            return cx.refuse(asker.conn, Refusal::NoGrace);
        }
        let lost = |_| Refusal::Reclaim;
        let Some(holder) = self.find_to_renew(cx, asker, key, token, lost) else {
            return;
        };
        let lease = lease.unwrap_or_else(|| self.recorded[holder].kept());
        let token = self.holders[holder].token;
        self.bind(cx, holder, asker.owner);
        self.table.note_change(self.holders[holder].resource);
        let lease = self.restart_lease(cx, holder, lease);
        cx.reply(asker.conn, Reply::Granted { token, lease });
    }

    /// Gives a restored grant that nobody has claimed yet to this owner. Any other stays with the
    /// owner it has. While the disk is full it stays nobody's, if that could not be recorded.
    #[cold]
    pub(super) fn bind(&mut self, cx: &mut Ctx<'_>, holder: u32, owner: OwnerIndex) {
        let is_kept = cx.is_kept_client(owner);
        if cx.core.restored.is_owner(self.holders[holder].owner)
            && !(is_kept && cx.core.storage_full)
        {
            self.pass_on(cx, holder, owner);
            if is_kept {
                self.record_owner(cx, holder);
            }
            self.keep_if_asked(cx, holder);
            self.look_at_those_behind_bound(cx, holder);
        }
    }

    /// A grant has another owner from now on.
    fn pass_on(&mut self, cx: &mut Ctx<'_>, holder: u32, owner: OwnerIndex) {
        let Holder {
            resource,
            timer,
            owner: before,
            ..
        } = self.holders[holder];
        let may_be_crowd = Crowds::may_have(self.table[resource].holders.len());
        if may_be_crowd {
            self.note_ending(cx, holder);
        }
        let deadline = cx.core.timers.deadline(timer);
        cx.core.timers.cancel(before.0, timer);
        let timer = cx.core.timers.arm(owner.0, deadline, Due::lease(holder));
        let owners = &mut cx.core.owners;
        owners[before].holds.unlink(&mut self.holders, holder);
        owners[owner].holds.push_back(&mut self.holders, holder);
        let it = &mut self.holders[holder];
        (it.owner, it.timer) = (owner, timer);
        if may_be_crowd {
            self.note_granted(cx, holder);
        }
        cx.core.forget_if_done(before);
    }

    fn restore_grant(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &Key,
        mode: Mode,
        token: Token,
        lease: Millis,
        to: Grantee<'_>,
    ) {
        let (kind, held) = (Kind::of(mode), Held::of(mode));
        let hash = self.table.hash(key.as_bytes());
        let known = self.table.find(hash, key.as_bytes());
        let resource = known.unwrap_or_else(|| self.insert(cx, hash, key.as_bytes(), kind));
        assert!(
            self.table[resource].kind() == kind && self.admits(resource, held),
            "records grant {key:?} to more holders than it admits"
        );
        let owner = match to {
            Grantee::Named(by) => cx.named_owner(by.owner),
            Grantee::Client(owner) => owner,
            Grantee::Nobody => cx.restored_owner(),
        };
        let holder = self.hold(cx, resource, owner, token, (held, NONE), Nanos::NEVER);
        cx.core.figures.restored(held);
        let share = cx.core.shares.of_key(resource);
        cx.core.shares.held(share, held.into(), [0, 1]);
        if let Grantee::Named(by) = to {
            self.note_restored_ask(owner, resource, holder, by.request);
        }
        self.insert_recorded(holder, lease);
        cx.core.restored.grants += 1;
        cx.note_fences(token.fence);
    }

    /// A client is forgotten. What it still held nobody can have back but with the token.
    fn restore_departed(&mut self, cx: &mut Ctx<'_>, owner: OwnerIndex) {
        while let Some(holder) = cx.core.owners[owner].holds.head() {
            let to = cx.restored_owner();
            self.pass_on(cx, holder, to);
        }
        cx.core.lose_conn(owner);
    }

    fn restore_owner(&mut self, cx: &mut Ctx<'_>, key: &Key, fence: Fence, owner: OwnerIndex) {
        if let Some((_, holder)) = self.find_by_fence(key.as_bytes(), fence) {
            self.pass_on(cx, holder, owner);
        }
    }

    fn restore_lease(&mut self, key: &Key, fence: Fence, lease: Millis) {
        if let Some((_, holder)) = self.find_by_fence(key.as_bytes(), fence) {
            self.recorded[holder] = RecordedLease::new(lease);
        }
    }

    /// A key that nobody holds any more is forgotten, so that a long history takes no more memory
    /// than what is left of it.
    fn restore_end(&mut self, cx: &mut Ctx<'_>, key: &Key, fence: Fence) {
        let Some((resource, holder)) = self.find_by_fence(key.as_bytes(), fence) else {
            return;
        };
        let held = self.holders[holder].held();
        self.remove_holder(cx, holder);
        cx.core.figures.ended_in_the_past();
        let share = cx.core.shares.of_key(resource);
        cx.core.shares.held(share, held.into(), [1, 0]);
        cx.core.restored.grants -= 1;
        if self.table[resource].holders.is_empty() {
            self.table.mark_idle(resource, cx.now);
            self.table.remove_idle(resource);
        }
    }
}

/// Clients that were known before.
impl Ctx<'_> {
    /// The owner of the client that has this id.
    pub(super) fn restored_client(&self, id: &str) -> Option<OwnerIndex> {
        let client = self.core.clients.find(&self.core.owners, id)?;
        Some(self.core.clients[client].owner)
    }

    pub(super) fn restore_client(&mut self, id: &str, ttl: Millis, secret: SecretHash) {
        let core = &mut *self.core;
        match core.clients.find(&core.owners, id) {
            Some(client) => {
                let it = &mut core.clients[client];
                (it.ttl, it.secret) = (ttl, secret);
            }
            None => {
                let clients = &mut core.clients;
                let client = clients.insert(&mut core.owners, id, None, ttl, secret, self.now);
                clients[client].is_restored = true;
            }
        }
    }

    /// A client was forgotten; returns its owner, which may still hold something.
    pub(super) fn restore_client_gone(&mut self, id: &str) -> Option<OwnerIndex> {
        let client = self.core.clients.find(&self.core.owners, id)?;
        let owner = self.core.clients[client].owner;
        self.core.clients.remove(client, id);
        Some(owner)
    }

    /// Everybody is served from now on, so the time of clients that are away runs.
    pub(super) fn start_clients(&mut self) {
        let Core {
            clients, timers, ..
        } = &mut *self.core;
        let all: Vec<u32> = clients.iter().map(|(client, _)| client).collect();
        for client in all {
            let it = &mut clients[client];
            it.seen = self.now;
            let deadline = self.now.after(it.ttl);
            it.timer = Some(timers.arm(it.owner.0, deadline, Due::client(client)));
        }
    }
}
