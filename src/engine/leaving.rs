//! How clients leave: what an owner that is gone held and waited for is undone, a parked command is
//! dropped or refused. What a queue is served after that is decided in `lock.rs`.

use super::ctx::Ctx;
use super::lock::{Locks, SERVED_WORK};
use super::owner::{OwnerIndex, Presence};
use super::queue::Waiter;
use super::types::{Event, Noted, Refusal, Reply};

impl Locks {
    /// Undoes what an owner that has left still has here, up to `budget` things; returns whether
    /// all is done. Looks at `holds_left` of its holds, and leaves those that outlive their connection.
    ///
    /// Its waits end before its holds, so that a key it releases is not granted to it again.
    pub(super) fn depart(
        &mut self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        holds_left: &mut u32,
        budget: &mut u32,
    ) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        let is_enough = |cx: &Ctx<'_>, budget: u32| budget == 0 || cx.core.work.spent() >= work_end;
        while let Some(ticket) = cx.core.owners[owner].tickets.head() {
            if is_enough(cx, *budget) {
                return false;
            }
            *budget -= 1;
            let resource = self.tickets[ticket].resource;
            let about = self.begin(cx, resource);
            match self.tickets.waiter(ticket) {
                Some(waiter) => self.give_up(cx, waiter),
                None => self.remove_ticket(cx, ticket),
            }
            match cx.core.owners[owner].presence {
                // We stop, and others who wait are cut off next.
                Presence::CutOff => self.mark_idle(cx, resource),
                _ => self.grant_waiting(cx, resource),
            }
            cx.finish(about);
        }
        let presence = cx.core.owners[owner].presence;
        let is_asked_for = presence == Presence::Detached;
        if is_asked_for || cx.core.rules.auto_release && presence == Presence::Leaving {
            while *holds_left > 0
                && let Some(holder) = cx.core.owners[owner].holds.head()
            {
                if is_enough(cx, *budget) {
                    return false;
                }
                (*holds_left, *budget) = (*holds_left - 1, *budget - 1);
                if self.holders[holder].taken.is_kept() {
                    let holds = &mut cx.core.owners[owner].holds;
                    holds.unlink(&mut self.holders, holder);
                    holds.push_back(&mut self.holders, holder);
                    continue;
                }
                let resource = self.holders[holder].resource;
                let about = self.begin(cx, resource);
                let noted = if is_asked_for {
                    Noted::Released
                } else {
                    cx.core.ends.disconnects += 1;
                    Noted::Disconnected
                };
                self.note(cx, noted, holder);
                let freed = self.freed_at(cx, holder);
                self.remove_holder(cx, holder);
                // One event per key, however many of its slots the owner had.
                if cx.is_watched() && !self.has_more_to_release(cx, owner, resource) {
                    cx.announce(Event::Release, self.table[resource].key.as_bytes());
                }
                self.grant_waiting_at(cx, resource, freed);
                cx.finish(about);
            }
        }
        true
    }

    /// A client is away: its places in queues end, but not its grants, nor what it may still ask for
    /// with `w`. Looks at `left` of its tickets; returns whether at all of them, before `budget` was
    /// used up.
    pub(super) fn leave_queues(
        &mut self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        left: &mut u32,
        budget: &mut u32,
    ) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        while *left > 0
            && let Some(ticket) = cx.core.owners[owner].tickets.head()
        {
            if *budget == 0 || cx.core.work.spent() >= work_end {
                return false;
            }
            (*left, *budget) = (*left - 1, *budget - 1);
            let Some(waiter) = self.tickets.waiter(ticket) else {
                let tickets = &mut cx.core.owners[owner].tickets;
                self.tickets.move_back(tickets, ticket);
                continue;
            };
            let resource = self.tickets[ticket].resource;
            let about = self.begin(cx, resource);
            self.give_up(cx, waiter);
            match cx.core.cuts_off {
                true => self.mark_idle(cx, resource), // as in `depart`
                false => self.grant_waiting(cx, resource),
            }
            cx.finish(about);
        }
        true
    }

    /// The client of a parked command has hung up. If others wait behind it, its queue is served when
    /// time passes, when it is known who else has hung up.
    pub(super) fn note_hung_up(&mut self, cx: &Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        let queue = &self.table[resource].queue;
        if queue.head() == Some(waiter) && queue.len() > 1 {
            self.unserved.insert(resource, cx.moment);
        }
    }

    /// At shutdown: refuses a parked command and takes it out of its queue. Those that have a place in
    /// the queue and are not parked move up when time passes.
    pub(super) fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter { conn, subject, .. } = cx.core.waiters[waiter];
        cx.answer_parked(conn, Reply::Refused(Refusal::Draining));
        self.give_up(cx, waiter);
        self.unserved.insert(subject, cx.moment);
    }

    /// The connection of a parked command is gone: takes it out of the queue, then serves the rest
    /// of the queue.
    pub(super) fn leave_queue(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        self.give_up(cx, waiter);
        self.grant_waiting(cx, resource);
    }
}
