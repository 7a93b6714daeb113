//! How clients leave: their last connection is gone, their time is over, or somebody detaches them.
//!
//! What a client has is undone a quantum at a time, and until that is done nobody may ask for it. A client
//! that is detached acquires nothing any more, from the first moment on: all its connections are their own
//! owners again before the first of its waits is refused.

use std::collections::VecDeque;

use super::arena::NONE;
use super::clients::{Client, Undoing};
use super::conn::{Asker, ConnIndex};
use super::ctx::{Core, Ctx};
use super::due::Due;
use super::lock::SERVED_WORK;
use super::owner::{Overdue, Presence};
use super::time::Leaver;
use super::types::Secret;
use super::types::{Effects, Refusal, Reply};
use super::{Engine, Stores, work};
use crate::base::{ConnId, Millis, Nanos};

/// Most things of a client that are undone before a `detach` waits for its turn with the rest.
const DETACHED_AT_ONCE: u32 = 256;

/// A client that is kept for no time counts as one that has come back if it attaches again within this time.
const LEFT_LATELY: Millis = Millis::from_secs(60);

/// Most clients that are remembered after they left: the last ones.
const LEFT_MAX: usize = 1_000;

/// Clients with a time to live of 0 that left lately, for the count of returns alone. A client is known by the
/// hash of its id: two ids share one about once in four billion.
#[derive(Default)]
pub(super) struct LeftLately(VecDeque<(Nanos, u32)>);

impl LeftLately {
    fn note(&mut self, now: Nanos, hash: u32) {
        if self.0.len() == LEFT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, hash));
    }

    /// Forgets the client with this hash, and says whether it left lately.
    pub(super) fn take(&mut self, now: Nanos, hash: u32) -> bool {
        let is_it = |&(at, left): &(Nanos, u32)| left == hash && now < at.after(LEFT_LATELY);
        let found = self.0.iter().position(is_it);
        found.and_then(|index| self.0.remove(index)).is_some()
    }

    pub(super) fn memory(&self) -> usize {
        self.0.capacity() * size_of::<(Nanos, u32)>()
    }
}

impl Engine {
    /// Answered when everything is undone.
    pub(super) fn detach(
        &mut self,
        now: Nanos,
        id: ConnId,
        client: &str,
        secret: Secret<'_>,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST + work::HASH);
        let (_, mut cx) = self.split(now, now, out);
        let Some(client) = cx.core.clients.find(&cx.core.owners, client) else {
            return cx.refuse(conn, Refusal::UnknownClient);
        };
        let it = &mut cx.core.clients[client];
        if !it.secret.is_of(secret) {
            return cx.refuse(conn, Refusal::WrongSecret);
        }
        let before = it.undoing;
        if matches!(before, Undoing::Waits | Undoing::All) {
            return cx.put_off(conn);
        }
        (it.undoing, it.detached_by) = (Undoing::Waits, Some(id));
        let parted = cx.core.part_all(client);
        cx.core.work.charge_each(parted, work::LOOK);
        if before == Undoing::Nothing {
            self.depart(now, Leaver::Client(client), DETACHED_AT_ONCE, out);
        }
    }

    /// A connection of a client is gone. With the last one the client is away, or departs. Returns
    /// the client if something of it is to be undone.
    #[cold]
    pub(super) fn leave_client(
        &mut self,
        now: Nanos,
        conn: ConnIndex,
        presence: Presence,
    ) -> Option<Leaver> {
        let client = self.core.part(conn);
        let owner = self.core.clients[client].owner;
        let kept_until = self.stores.locks.ranges.kept_until(owner);
        let Core {
            clients,
            owners,
            timers,
            ..
        } = &mut self.core;
        let it = &mut clients[client];
        it.seen = now;
        if !it.conns.is_empty() || it.undoing != Undoing::Nothing {
            return None;
        }
        let owner = &mut owners[it.owner];
        if presence != Presence::CutOff && it.ttl == Millis::ZERO {
            owner.leave(Presence::Leaving);
            it.undoing = Undoing::All;
            let hash = clients.hash(owner.client_id().unwrap_or_default());
            clients.left.note(now, hash);
        } else {
            owner.leave(Presence::Away);
            match presence {
                // A server that stops is not a client that left.
                Presence::CutOff => owner.overdue = Overdue::Stay,
                _ => {
                    let due = Due::client(client);
                    let deadline = now.after(it.ttl).max(kept_until);
                    it.timer = Some(timers.arm(it.owner.0, deadline, due));
                }
            }
            if owner.tickets.is_empty() {
                return None;
            }
            it.undoing = Undoing::Places(owner.tickets.len());
        }
        Some(Leaver::Client(client))
    }

    /// The timer of a client that is away fired. What it has is undone when time passes.
    #[cold]
    pub(super) fn client_ended(&mut self, now: Nanos, client: u32) {
        self.core.stop_timer(client);
        let it = &self.core.clients[client];
        assert!(it.conns.is_empty(), "a client that is there has run out");
        if self.core.cuts_off {
            return; // we stop, and it is kept
        }
        // One that waits on a connection which is not its own, or that could not be told yet what it has, or
        // for which a request waits for the disk, has not had its time.
        let records = self.core.records.as_deref();
        let is_untold = records.is_some_and(|records| records.is_untold(it.told_with));
        let owner = &self.core.owners[it.owner];
        let is_asked_for = owner
            .client_id()
            .is_some_and(|id| self.core.clients.is_asked_for(id));
        let is_in_use = owner.waits > 0 || is_untold || is_asked_for;
        let it = &mut self.core.clients[client];
        if it.undoing == Undoing::Nothing && is_in_use {
            let again = now.after(it.ttl.max(Millis(1)));
            let due = Due::client(client);
            it.timer = Some(self.core.timers.arm(it.owner.0, again, due));
            return;
        }
        self.core.owners[it.owner].leave(Presence::Leaving);
        let before = std::mem::replace(&mut it.undoing, Undoing::All);
        if before == Undoing::Nothing {
            self.departing.add(Leaver::Client(client));
        }
    }
}

impl Core {
    /// The client is detached: its connections are their own owners again, all of them before anything else
    /// happens, so that nothing is acquired for it or granted to it any more. Returns how many there were.
    fn part_all(&mut self, client: u32) -> u32 {
        self.stop_timer(client);
        let mut parted = Vec::new();
        let mut count = 0;
        while let Some(conn) = self.clients[client].conns.head().map(ConnIndex) {
            self.part(conn);
            count += 1;
            if self.conns[conn].parked != NONE {
                parted.push(self.conns[conn].id);
            }
        }
        if !parted.is_empty() {
            parted.reverse(); // the first that attached is told first
            self.clients.parted.insert(client, parted);
        }
        self.owners[self.clients[client].owner].leave(Presence::Detached);
        count
    }
}

impl Stores {
    /// Goes on with what is being undone of a client, as far as the budget goes; returns whether it is
    /// done.
    pub(super) fn depart_client(
        &mut self,
        cx: &mut Ctx<'_>,
        client: u32,
        budget: &mut u32,
    ) -> bool {
        let Client { owner, undoing, .. } = cx.core.clients[client];
        if let Undoing::Places(mut left) = undoing {
            let done = self.locks.leave_queues(cx, owner, &mut left, budget);
            cx.core.clients[client].undoing = match done {
                true => Undoing::Nothing,
                false => Undoing::Places(left),
            };
            return done;
        }
        if undoing == Undoing::Waits {
            if !self.refuse_parted(cx, client, budget) {
                return false;
            }
            cx.core.clients[client].undoing = Undoing::All;
        }
        let mut holds_left = u32::MAX; // because nothing of it outlives it
        let done = self.undo(cx, owner, &mut holds_left, budget);
        if done {
            cx.forget_client(client);
        }
        done
    }

    /// What connections of a detached client wait for, they wait for as the client, so that is refused.
    fn refuse_parted(&mut self, cx: &mut Ctx<'_>, client: u32, budget: &mut u32) -> bool {
        let owner = cx.core.clients[client].owner;
        let work_end = cx.core.work.spent() + SERVED_WORK;
        let mut parted = cx.core.clients.parted.remove(&client).unwrap_or_default();
        while let Some(id) = parted.pop() {
            // It may be gone, or wait for something else by now.
            let conn = cx.core.conns.find(id);
            let parked = conn.map_or(NONE, |conn| cx.core.conns[conn].parked);
            if let Some(conn) = conn
                && parked != NONE
                && cx.core.waiters[parked].owner == owner
            {
                let about = cx.begin(|| None);
                cx.answer_parked(conn, Reply::Refused(Refusal::Detached));
                cx.finish(about);
                self.leave_queue(cx, parked);
            }
            *budget = budget.saturating_sub(1);
            if !parted.is_empty() && (*budget == 0 || cx.core.work.spent() >= work_end) {
                cx.core.clients.parted.insert(client, parted);
                return false;
            }
        }
        true
    }
}

impl Ctx<'_> {
    /// Everything of the client is undone.
    fn forget_client(&mut self, client: u32) {
        let Client {
            owner,
            ttl,
            detached_by,
            ..
        } = self.core.clients[client];
        let id: Box<str> = self.id_of(client).into();
        let about = self.begin(|| Some(id.as_bytes()));
        self.record_gone(client, ttl);
        if let Some(conn) = detached_by.and_then(|it| self.core.conns.find(it)) {
            // It is told that everything is released, also if the client itself was not recorded.
            if let Some(records) = &mut self.core.records {
                records.note_all(id.as_bytes());
            }
            self.answer_parked(conn, Reply::Done);
        }
        self.finish(about);
        self.core.stop_timer(client);
        self.core.clients.remove(client, &id);
        self.core.lose_conn(owner);
    }
}
