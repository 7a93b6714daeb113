//! What is done when time passes: queues that were not served to their end go on, and so do barriers
//! that have ended and departures; leases and waits end, idle keys are forgotten.
//!
//! Each of these duties gets a slice of the work in turn, until nothing is left or the work is used
//! up, so that none of them waits for a crowd in another. Within leases and waits, and within
//! departures, owners take turns too. What is decided, and how, is in the files of the primitives.

use std::collections::VecDeque;
use std::mem;

use super::arena::NONE;
use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::due::What;
use super::owner::{OwnerIndex, Presence};
use super::types::Effects;
use super::{Engine, Stores, work};
use crate::base::{ConnId, Nanos};

/// What one duty may spend before the next has its turn; the last piece may exceed it.
pub(super) const SLICE: u64 = 50_000;

/// The same for values and collections, which nobody waits for. It is a seventh or more of the
/// work, so that they get on however much else there is to do.
const BACKGROUND_SLICE: u64 = SLICE / 2;

/// What may be spent on values and collections before others are heard again. A lease that ends
/// while this is done is late by up to two turns: it is found in the next one, and its waiter is
/// told at the end of that. With whole turns for 900,000 values it was late by 9 ms.
const BACKGROUND_WORK: u64 = 400_000;

/// Most things of one ended connection that are undone at first.
const FIRST_QUANTUM: u32 = 8;

/// Most things of it that are undone before others have their turn, after that.
const QUANTUM: u32 = 32;

/// What may be spent between two inputs of [`Input::Time`](super::types::Input::Time) on the first
/// quanta of connections that end meanwhile. Whoever ends after that has its first quantum in the
/// next one.
const FIRST_QUANTA_WORK: u64 = 1_000_000;

/// Who leaves something behind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leaver {
    /// A connection that has ended, and how many of its holds are still to be looked at.
    Conn { conn: ConnIndex, holds_left: u32 },
    /// A client that has no connection any more, or is detached.
    Client(u32),
}

/// Connections that have ended, and clients, that left behind more than is undone yet.
pub(super) struct Departing {
    /// Those that have not had their first quantum. They come first, so that whoever leaves with
    /// one lock does not wait for those with very many.
    newcomers: VecDeque<Leaver>,
    /// The others, in the order of their turns.
    rest: VecDeque<Leaver>,
    /// What is left for first quanta before the next input of time.
    work_left: u64,
    /// What inputs of time have spent on departures since it was last taken.
    spent: u64,
}

impl Default for Departing {
    fn default() -> Self {
        Self {
            newcomers: VecDeque::new(),
            rest: VecDeque::new(),
            work_left: FIRST_QUANTA_WORK,
            spent: 0,
        }
    }
}

impl Departing {
    pub(super) fn is_empty(&self) -> bool {
        self.newcomers.is_empty() && self.rest.is_empty()
    }

    /// Who is next, and how many of its things are undone.
    fn next(&mut self) -> Option<(Leaver, u32)> {
        let newcomer = self.newcomers.pop_front().map(|it| (it, FIRST_QUANTUM));
        newcomer.or_else(|| Some((self.rest.pop_front()?, QUANTUM)))
    }

    /// Its turn comes when time passes.
    pub(super) fn add(&mut self, leaver: Leaver) {
        self.newcomers.push_back(leaver);
    }

    /// What inputs of time have spent on departures since this was last asked.
    pub(super) fn take_spent(&mut self) -> u64 {
        mem::take(&mut self.spent)
    }
}

impl Engine {
    /// Does what is due, as far as `work` goes, but at least a little of every duty; and gives some
    /// memory back. If more is left, [`Engine::next_deadline`] is 0.
    pub(super) fn pass_time(&mut self, now: Nanos, work: u64, out: &mut Effects) {
        self.core.timers.begin_turn();
        let end = self.core.work.spent().saturating_add(work);
        let mut background_left = BACKGROUND_WORK;
        loop {
            self.go_on_starting(now, self.slice(SLICE, end), out);
            self.go_on_granting(now, self.slice(SLICE, end), out);
            if self.has_to_tell() {
                self.go_on_telling(now, self.slice(SLICE, end), out);
            }
            self.go_on_departing(now, self.slice(SLICE, end), out);
            if !self.breaking.is_empty() {
                self.go_on_breaking(now, self.slice(SLICE, end), out);
            }
            if self.stores.locks.has_ranges_to_go_on_with() {
                self.go_on_with_ranges(now, self.slice(SLICE, end), out);
            }
            self.end_leases_and_waits(now, self.slice(SLICE, end), out);
            if background_left > 0 {
                let before = self.core.work.spent();
                self.do_background(now, self.slice(BACKGROUND_SLICE, end), out);
                background_left = background_left.saturating_sub(self.core.work.spent() - before);
            }
            if self.core.shares.is_walking() && background_left > 0 {
                let before = self.core.work.spent();
                self.go_on_sharing(now, self.slice(BACKGROUND_SLICE, end), out);
                background_left = background_left.saturating_sub(self.core.work.spent() - before);
            }
            let goes_on =
                self.others_wait(now) || (background_left > 0 && self.has_background(now));
            if self.core.work.spent() >= end || !goes_on {
                break;
            }
        }
        let untidy = self.tidy();
        if untidy {
            self.core.work.charge(work::TIDY);
        }
        self.unfinished = untidy || self.others_wait(now) || self.has_background(now);
    }

    /// How much may be spent in all when a slice that begins now is over.
    fn slice(&self, most: u64, end: u64) -> u64 {
        self.core.work.spent().saturating_add(most).min(end)
    }

    /// Something is to be done that somebody may wait for.
    fn others_wait(&self, now: Nanos) -> bool {
        self.has_begun() || is_due(self.core.timers.next_deadline(), now)
    }

    /// Something was begun and is not finished: a shutdown waits for it, if it is recorded.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.departing.is_empty()
            || !self.stores.locks.unserved.is_empty()
            || self.has_to_tell()
            || !self.breaking.is_empty()
            || self.stores.locks.has_ranges_to_go_on_with()
            || self.core.records.as_ref().is_some_and(|it| it.has_told())
    }

    /// Leases begin whose grants may be told by now.
    pub(super) fn go_on_starting(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        if self.core.is_durable() {
            let (stores, mut cx) = self.split(now, now, out);
            stores.locks.start_told(&mut cx, slice_end);
        }
    }

    /// Some are to be told what was decided for them.
    fn has_to_tell(&self) -> bool {
        let Stores {
            lists, barriers, ..
        } = &self.stores;
        !self.still_parked.is_empty() || !lists.has_given_back_all() || !barriers.has_told_all()
    }

    fn has_background(&self, now: Nanos) -> bool {
        is_due(self.core.background.next_deadline(), now) || self.core.shares.is_walking()
    }

    /// A connection has ended. Its wait ends now; what else it has is undone as far as its first
    /// quantum goes, and the rest when its turn comes again.
    pub(super) fn disconnect(
        &mut self,
        now: Nanos,
        id: ConnId,
        presence: Presence,
        out: &mut Effects,
    ) {
        let owners = &mut self.core.owners;
        let Some(conn) = self.core.conns.detach(id, presence, owners) else {
            return; // never asked for anything
        };
        self.core.set_keeps(conn, false); // it is granted nothing any more
        self.core.work.charge(work::UNDO);
        // A client that leaves with it is not granted what its wait makes room for.
        let client = match self.core.conns[conn].is_attached() {
            true => self.leave_client(now, conn, presence),
            false => None,
        };
        let (stores, mut cx) = self.split(now, now, out);
        let parked = cx.core.conns[conn].parked;
        if parked != NONE {
            stores.leave_queue(&mut cx, parked);
        }
        if let Some(client) = client {
            self.begin_departing(now, client, out);
        }
        let own = self.core.conns[conn].own;
        let holds_left = self.core.owners[own].holds.len();
        self.begin_departing(now, Leaver::Conn { conn, holds_left }, out);
    }

    /// What somebody leaves behind is undone as far as a first quantum goes.
    pub(super) fn begin_departing(&mut self, now: Nanos, leaver: Leaver, out: &mut Effects) {
        if self.departing.work_left == 0 {
            return self.departing.add(leaver);
        }
        let before = self.core.work.spent();
        self.depart(now, leaver, FIRST_QUANTUM, out);
        let cost = self.core.work.spent() - before;
        self.departing.work_left = self.departing.work_left.saturating_sub(cost);
    }

    pub(super) fn go_on_granting(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        while let Some(resource) = self.stores.locks.unserved.next() {
            let (stores, mut cx) = self.split(now, now, out);
            let about = stores.locks.begin(&cx, resource);
            stores.locks.grant_waiting(&mut cx, resource);
            cx.finish(about);
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    /// Clients of barriers that have ended, poppers of values that come back, and those that a
    /// shutdown sends away.
    #[cold]
    fn go_on_telling(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        let (stores, mut cx) = self.split(now, now, out);
        let about = cx.begin(|| None);
        stores.barriers.go_on_telling(&mut cx, slice_end);
        cx.finish(about);
        stores.lists.go_on_giving_back(&mut cx, slice_end);
        self.go_on_sending_away(now, slice_end, out);
    }

    /// At shutdown: refuses those that were parked when it began.
    pub(super) fn go_on_sending_away(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        while let Some(id) = self.still_parked.pop_front() {
            let parked = self.core.conns.find(id);
            let parked = parked.map_or(NONE, |it| self.core.conns[it].parked);
            if parked == NONE {
                continue; // it was answered meanwhile, or has left
            }
            let (stores, mut cx) = self.split(now, now, out);
            stores.send_away(&mut cx, parked);
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    fn go_on_departing(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        self.departing.work_left = FIRST_QUANTA_WORK;
        let before = self.core.work.spent();
        while let Some((leaver, quantum)) = self.departing.next() {
            self.depart(now, leaver, quantum, out);
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
        self.departing.spent += self.core.work.spent() - before;
    }

    /// Undoes what a leaver still has, as far as the quantum goes.
    pub(super) fn depart(
        &mut self,
        now: Nanos,
        mut leaver: Leaver,
        quantum: u32,
        out: &mut Effects,
    ) {
        let (stores, mut cx) = self.split(now, now, out);
        let mut left = quantum;
        let done = match &mut leaver {
            Leaver::Conn { conn, holds_left } => {
                stores.depart_conn(&mut cx, *conn, holds_left, &mut left)
            }
            Leaver::Client(client) => stores.depart_client(&mut cx, *client, &mut left),
        };
        cx.core.work.charge_each(quantum - left, work::UNDO);
        if !done {
            self.departing.rest.push_back(leaver);
        }
    }

    fn end_leases_and_waits(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        loop {
            let (mut budget, before) = self.looks(slice_end);
            let due = self.core.timers.next_due(now, &mut budget);
            self.core.work.charge_each(before - budget, work::TIMER);
            let Some((_, deadline, due)) = due else {
                break;
            };
            self.core.work.charge(work::END);
            let (stores, mut cx) = self.split(now, deadline, out);
            match due.what() {
                What::Lease(holder) => {
                    let resource = stores.locks.holders[holder].resource;
                    let about = stores.locks.begin(&cx, resource);
                    stores.locks.lease_ended(&mut cx, holder);
                    cx.finish(about);
                }
                What::Wait(waiter) => {
                    let about = cx.begin(|| stores.awaited_key(cx.core, waiter));
                    stores.wait_ended(&mut cx, waiter);
                    cx.finish(about);
                }
                What::Ticket(ticket) => stores.locks.ticket_forgotten(&mut cx, ticket),
                What::Client(client) => self.client_ended(now, client),
                What::Value(_)
                | What::Locks
                | What::Counters
                | What::Searches
                | What::Barging
                | What::Grace
                | What::Pending(_) => {
                    unreachable!("a timer of the background is among those of an owner")
                }
            }
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    fn do_background(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        loop {
            let (mut budget, before) = self.looks(slice_end);
            let due = self.core.background.pop_due(now, &mut budget);
            self.core.work.charge_each(before - budget, work::TIMER);
            let Some((deadline, due)) = due else {
                break;
            };
            let (stores, mut cx) = self.split(now, deadline, out);
            match due.what() {
                What::Value(entry) => {
                    cx.core.work.charge(work::END);
                    stores.kv.expired(&mut cx, entry);
                }
                What::Locks => stores.locks.collect(&mut cx, slice_end),
                What::Counters => stores.counters.collect(&mut cx, slice_end),
                What::Searches => stores.locks.go_on_searching(&mut cx, slice_end),
                What::Barging => stores.locks.let_those_behind_pass(&mut cx, slice_end),
                What::Grace => stores.locks.grace_ended(&mut cx),
                What::Pending(owner) => stores.locks.pending_ended(&mut cx, OwnerIndex(owner)),
                What::Lease(_) | What::Wait(_) | What::Ticket(_) | What::Client(_) => {
                    unreachable!("a timer of an owner is in the background")
                }
            }
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    /// How many timers may be looked at in the rest of a slice: one at least. Twice, because the
    /// first is counted down.
    fn looks(&self, slice_end: u64) -> (u32, u32) {
        let left = slice_end.saturating_sub(self.core.work.spent());
        let looks = (left / work::TIMER).clamp(1, u32::MAX.into()) as u32;
        (looks, looks)
    }
}

impl Stores {
    /// Undoes what an ended connection has, as far as the budget goes; returns whether all is done, and
    /// the connection forgotten.
    fn depart_conn(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        holds_left: &mut u32,
        budget: &mut u32,
    ) -> bool {
        let owner = cx.core.conns[conn].own;
        let done = self.undo(cx, owner, holds_left, budget)
            && cx
                .core
                .subscriptions
                .iter_mut()
                .all(|it| it.leave_all(&mut cx.core.conns, conn, budget));
        if done {
            cx.core.conns.remove(conn);
            cx.core.lose_conn(owner);
        }
        done
    }

    /// Undoes what an owner that leaves has: its waits, then its holds. Returns whether all is done.
    pub(super) fn undo(
        &mut self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        holds_left: &mut u32,
        budget: &mut u32,
    ) -> bool {
        self.locks.depart(cx, owner, holds_left, budget)
            && (!cx.core.owners[owner].has_ranges || self.locks.depart_ranges(cx, owner, budget))
    }
}

fn is_due(deadline: Option<Nanos>, now: Nanos) -> bool {
    deadline.is_some_and(|it| it <= now)
}
