//! Clients that are known without a connection of their own: whoever asks for them shows their secret.
//!
//! This is how clients are used over HTTP. Such a client is always away, and its time to live runs anew
//! with everything that is asked for it. What it holds belongs to it in the same way as to one whose
//! connections attach (`clients.rs`), and both may be done with the same client.

use super::arena::NONE;
use super::clients::Client;
use super::conn::Asker;
use super::ctx::{Core, Ctx};
use super::due::Due;
use super::owner::{OwnerIndex, Presence};
use super::types::{Attach, Effects, OfClient, Refusal, Reply};
use super::work;
use super::{Engine, Stores};
use crate::base::{ConnId, Nanos};

impl Engine {
    #[cold]
    pub(super) fn register(
        &mut self,
        now: Nanos,
        id: ConnId,
        attach: Attach<'_>,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST + work::HASH);
        let (stores, mut cx) = self.split(now, now, out);
        let about = cx.begin(|| Some(attach.id.as_bytes()));
        let was_kept = cx.core.is_kept(attach.id);
        match cx.find_or_add_client(attach) {
            Ok(Some((client, is_new))) => {
                let epoch = cx.core.rules.epoch;
                cx.restart_client_timer(client);
                cx.reply(conn, Reply::Attached { epoch, is_new });
                stores.record_if_kept(&mut cx, attach.id, was_kept);
            }
            Ok(None) => cx.put_off(conn),
            Err(refusal) => cx.refuse(conn, refusal),
        }
        cx.finish(about);
    }
}

impl Ctx<'_> {
    /// The owner of the client that is spoken for; none while what it left behind is being undone.
    pub(super) fn speak_for(&mut self, of: OfClient<'_>) -> Result<Option<OwnerIndex>, Refusal> {
        self.core.work.charge(work::HASH);
        let Core {
            clients, owners, ..
        } = &*self.core;
        let client = clients.find(owners, of.id).ok_or(Refusal::UnknownClient)?;
        let it = &clients[client];
        if !it.secret.is_of(of.secret) {
            return Err(Refusal::WrongSecret);
        } else if it.is_being_undone() {
            return Ok(None);
        }
        let owner = it.owner;
        self.restart_client_timer(client);
        // If something comes of the request, this will be its record.
        self.core.clients[client].told_with = self.record_count() + 1;
        Ok(Some(owner))
    }

    /// If this owner is a client that is away, its time to live begins anew.
    pub(super) fn restart_client_timer_of(&mut self, owner: OwnerIndex) {
        match self.core.owners[owner].client {
            NONE => {}
            client => {
                self.restart_client_timer(client);
                // One that has a connection is told by that; when it has none any more, its time runs.
                if self.core.owners[owner].presence == Presence::Away {
                    self.core.clients[client].told_with = self.record_count();
                }
            }
        }
    }

    fn record_count(&self) -> u64 {
        self.core.records.as_ref().map_or(0, |it| it.count())
    }

    /// If the client is away, its time to live begins anew; an end that is later stays.
    fn restart_client_timer(&mut self, client: u32) {
        let Client { owner, ttl, .. } = self.core.clients[client];
        self.keep_client_until(owner, self.now.after(ttl));
    }

    /// A client that is away is kept until then at least.
    pub(super) fn keep_client_until(&mut self, owner: OwnerIndex, until: Nanos) {
        let Core {
            clients,
            owners,
            timers,
            ..
        } = &mut *self.core;
        if owners[owner].presence != Presence::Away {
            return;
        }
        let client = owners[owner].client;
        let it = &mut clients[client];
        match it.timer {
            Some(timer) if timers.deadline(timer) >= until => {}
            before => {
                if let Some(timer) = before {
                    timers.cancel(owner.0, timer);
                }
                it.timer = Some(timers.arm(owner.0, until, Due::client(client)));
            }
        }
    }
}

impl Engine {
    /// Whether there is such a client, and this is its secret.
    #[must_use]
    pub fn may_speak_for(&mut self, of: OfClient<'_>) -> bool {
        self.core.work.charge(work::HASH);
        let Core {
            clients, owners, ..
        } = &self.core;
        let client = clients.find(owners, of.id);
        client.is_some_and(|client| clients[client].secret.is_of(of.secret))
    }
}

impl Stores {
    /// If the client was not known after a restart before, and is from now on, what it has is recorded as
    /// its own. Nobody may hear of that before all of it is kept.
    pub(super) fn record_if_kept(&mut self, cx: &mut Ctx<'_>, id: &str, was_kept: bool) {
        let owner = cx.restored_client(id).filter(|_| !was_kept);
        let Some(owner) = owner.filter(|&owner| cx.is_kept_client(owner)) else {
            return;
        };
        let locks = &self.locks;
        let holds = cx.core.owners[owner].holds.iter(&locks.holders);
        let holds: Vec<u32> = holds.collect();
        for holder in holds {
            locks.record_owner(cx, holder);
        }
        self.locks.record_ranges_of(cx, owner);
        if let Some(records) = &mut cx.core.records {
            records.note_all(id.as_bytes());
        }
    }
}
