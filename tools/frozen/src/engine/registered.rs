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
use super::lock::SERVED_WORK;
use super::owner::{OwnerIndex, Presence};
use super::ranges::RecordingRanges;
use super::types::{Attach, Effects, OfClient, Refusal, Reply};
use super::work;
use super::{Engine, Stores};
use crate::base::{ConnId, Nanos};
use crate::key::Key;

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
        match stores.find_or_add_client(&mut cx, attach) {
            Ok(Some((client, is_new))) => {
                cx.core.clients[client].seen = cx.now;
                cx.restart_client_timer(client);
                let reply = stores.attached(&cx, client, is_new);
                cx.reply(conn, reply);
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
        self.core.clients[client].seen = self.now;
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
        let it = &self.core.clients[client];
        let (owner, ttl) = (it.owner, it.ttl);
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

/// How far what a client has is recorded as its own, if it was not known after a restart before. What it
/// gets meanwhile is recorded at once.
#[derive(Clone, Copy, Default)]
pub(super) struct Recording {
    /// How many of its grants are still to be recorded, once that has begun: the first ones of its list.
    /// One that was recorded moves to the end.
    holds_left: Option<u32>,
    ranges: RecordingRanges,
}

impl Stores {
    /// The client of this id with this time to live, and whether it is new. None if it has to be asked for
    /// again: what the client left behind is being undone, or very much that it has is being recorded.
    pub(super) fn find_or_add_client(
        &mut self,
        cx: &mut Ctx<'_>,
        attach: Attach<'_>,
    ) -> Result<Option<(u32, bool)>, Refusal> {
        let found = cx.find_or_add_client(attach)?;
        Ok(found.filter(|&(client, _)| self.record_some_of(cx, client)))
    }

    /// What a client is told that attaches or registers.
    pub(super) fn attached(&self, cx: &Ctx<'_>, client: u32, is_new: bool) -> Reply {
        Reply::Attached {
            epoch: cx.core.rules.epoch,
            is_new,
            reclaim: self.locks.reclaim_left(cx, client),
        }
    }

    /// Records some of what the client has, if it is known after a restart from now on and was not before;
    /// returns whether all of it is recorded. The answer to `attach` waits for the last of these records.
    fn record_some_of(&mut self, cx: &mut Ctx<'_>, client: u32) -> bool {
        let Client {
            owner, recording, ..
        } = cx.core.clients[client];
        let Some(mut recording) = recording else {
            return true;
        };
        let work_end = cx.core.work.spent() + SERVED_WORK;
        let locks = &mut self.locks;
        let holds = &cx.core.owners[owner].holds;
        let holds_left = recording.holds_left.get_or_insert(holds.len());
        while *holds_left > 0
            && let Some(holder) = cx.core.owners[owner].holds.head()
        {
            if cx.core.work.spent() >= work_end {
                cx.core.clients[client].recording = Some(recording);
                return false;
            }
            *holds_left -= 1;
            locks.record_owner(cx, holder);
            let holds = &mut cx.core.owners[owner].holds;
            holds.unlink(&mut locks.holders, holder);
            holds.push_back(&mut locks.holders, holder);
        }
        let is_done = locks.record_some_ranges(cx, owner, &mut recording.ranges, work_end);
        cx.core.clients[client].recording = Some(recording).filter(|_| !is_done);
        if is_done {
            let id = Key::from(cx.id_of(client).as_bytes());
            if let Some(records) = &mut cx.core.records {
                records.note_all(id.as_bytes());
            }
        }
        is_done
    }
}
