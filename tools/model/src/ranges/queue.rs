//! Waits for bytes: the queue of a resource, and its order.
//!
//! After everything that may free bytes the queue of the resource is gone through from its head. A
//! waiter has what it wants if nothing is in its way. One that has hung up blocks no other. One
//! whose time is over is answered `timeout`.

use latchd::base::{ConnId, Millis};
use latchd::engine::types::{Refusal, Reply};

use super::{InTheWay, RangeWait};
use crate::{Awaits, Life, Model, SessionId, Waiter, WaiterId};

/// Most waiters for bytes of one resource, where the operator has set no other limit.
const WAITERS_PER_RESOURCE_MAX: usize = 100;

/// Most waiters for bytes of all resources.
const WAITERS_MAX: usize = 4_096;

impl Model {
    pub(super) fn wait_for_range(&mut self, conn: ConnId, want: RangeWait, wait: Millis) {
        let most = match self.rules.waiters_per_key_max {
            0 => WAITERS_PER_RESOURCE_MAX,
            most => most as usize,
        };
        let all = self
            .waiters
            .iter()
            .filter(|it| matches!(it.what, Awaits::Range(_)))
            .count();
        if self.queue_of(&want.resource).len() >= most || all >= WAITERS_MAX {
            return self.refuse(conn, Refusal::MaxWaiters);
        } else if self.is_refused_for_memory(conn) {
            return self.refuse(conn, Refusal::Memory);
        }
        let session = want.owner.session;
        self.know(&want.owner);
        self.park(conn, session, wait, Awaits::Range(want));
        self.keep_client_until(session, self.now.after(wait));
    }

    /// The owner waits already. For the same bytes in the same mode its place passes to the
    /// connection that asks last.
    pub(super) fn ask_again_for_range(
        &mut self,
        conn: ConnId,
        want: RangeWait,
        wait: Millis,
        waiter: WaiterId,
    ) {
        if *self.range_wait(waiter) != want || wait == Millis::ZERO {
            return self.refuse(conn, Refusal::Busy);
        }
        let until = self.now.after(wait);
        let at = self.waiters.iter_mut().find(|it| it.id == waiter);
        let at = at.expect("it waits");
        let before = at.conn.replace(conn);
        at.until = until;
        self.answer_parked(before.expect("a command is parked there"), Reply::TimedOut);
        self.keep_client_until(want.owner.session, until);
        // Its time may have been over, and others were not kept waiting by it then.
        self.note_freed(&want.resource);
        self.serve_ranges(&want.resource);
    }

    /// Bytes of the resource were freed, or one of its waiters has left.
    pub(super) fn note_freed(&mut self, resource: &[u8]) {
        if !self.ranges.to_serve.iter().any(|it| it == resource) {
            self.ranges.to_serve.push(resource.to_vec());
        }
    }

    /// Goes through the queue of a resource from its head, if something was freed: a waiter has
    /// what it wants if nothing is in its way. After a grant that lets others in, all are looked at
    /// again.
    pub(crate) fn serve_ranges(&mut self, resource: &[u8]) {
        while let Some(at) = self.ranges.to_serve.iter().position(|it| it == resource) {
            self.ranges.to_serve.remove(at);
            if self.draining || self.cuts_off {
                return; // a server that stops grants nothing any more
            }
            let queue = self.queue_of(resource);
            for waiter in queue {
                if !self.serve_range_waiter(resource, waiter) {
                    continue;
                }
                if self.ranges.to_serve.iter().any(|it| it == resource) {
                    break;
                }
            }
        }
    }

    /// Serves a waiter if it can be; returns whether it was granted what it wants, or refused that.
    fn serve_range_waiter(&mut self, resource: &[u8], waiter: WaiterId) -> bool {
        let Some(it) = self.waiter(waiter).filter(|it| self.is_present(it)) else {
            return false;
        };
        let conn = it.conn.expect("a command is parked there");
        if it.until < self.moment {
            self.end_range_wait(waiter, Reply::TimedOut);
            return false;
        } else if it.until == self.moment && self.seen_answer(conn) == Some(&Reply::TimedOut) {
            return false; // of what happens at one instant the engine chooses the order
        }
        let want = self.range_wait(waiter).clone();
        let mut before = self.queue_of(resource);
        before.retain(|it| *it < waiter);
        let is_free = match self.in_the_way(&want, &before) {
            InTheWay::Nothing => true,
            InTheWay::Holder => false,
            // If the order keeps it waiting for itself it is let pass, now or a moment later.
            InTheWay::Queue => self.is_let_pass_next(waiter),
        };
        if is_free {
            self.grant_range_waiter(waiter);
        }
        is_free
    }

    /// A waiter has what it wants, unless there is no room for that.
    pub(crate) fn grant_range_waiter(&mut self, waiter: WaiterId) {
        let Waiter { conn, session, .. } = *self.waiter(waiter).expect("it waits");
        let want = self.range_wait(waiter).clone();
        let is_stored = !(self.storage_full && self.is_kept_client(session));
        let refusal = match is_stored {
            true => self.has_no_room_for_range(&want),
            false => Some(Refusal::Storage),
        };
        if let Some(why) = refusal {
            return self.end_range_wait(waiter, Reply::Refused(why));
        }
        self.unpark(waiter);
        self.grant_range(&want);
        self.restart_client_timer(session);
        self.answer_parked(conn.expect("a command is parked there"), Reply::Done);
    }

    /// A waiter leaves the queue and is answered. Those behind it are looked at when the queue is
    /// served.
    pub(crate) fn end_range_wait(&mut self, waiter: WaiterId, reply: Reply) {
        let Waiter { conn, what, .. } = self.unpark(waiter);
        if let Awaits::Range(want) = what {
            self.forget_owner_if_unused(&want.owner);
            self.note_freed(&want.resource);
        }
        self.answer_parked(conn.expect("a command is parked there"), reply);
    }

    /// The wait is over: at its own instant, which is `self.moment`.
    pub(crate) fn range_wait_ended(&mut self, waiter: WaiterId) {
        let RangeWait {
            resource, owner, ..
        } = self.range_wait(waiter).clone();
        self.about = Some(resource.clone());
        self.end_range_wait(waiter, Reply::TimedOut);
        self.restart_client_timer(owner.session);
        self.serve_ranges(&resource);
    }

    /// The connection of a parked `rangelock` has hung up. Those behind it are served when time
    /// passes, when it is known which other connections have hung up.
    pub(crate) fn range_hung_up(&mut self, waiter: WaiterId) {
        let resource = self.range_wait(waiter).resource.clone();
        self.note_freed(&resource);
    }

    /// The connection of a parked `rangelock` is gone: leaves the queue without an answer.
    pub(crate) fn leave_range_queue(&mut self, waiter: WaiterId) {
        let RangeWait {
            resource, owner, ..
        } = self.range_wait(waiter).clone();
        self.about = Some(resource.clone());
        self.unpark(waiter);
        self.forget_owner_if_unused(&owner);
        self.note_freed(&resource);
        self.serve_ranges(&resource);
    }

    /// At shutdown, a parked `rangelock` is refused.
    pub(crate) fn send_range_away(&mut self, waiter: WaiterId) {
        self.end_range_wait(waiter, Reply::Refused(Refusal::Draining));
    }

    /// What is done when time passes, before leases end: queues behind waiters that have hung up,
    /// and the end of the grace period.
    pub(crate) fn go_on_with_ranges(&mut self) {
        for resource in self.ranges.to_serve.clone() {
            self.about = Some(resource.clone());
            self.serve_ranges(&resource);
        }
        self.go_on_ending_grace();
    }

    /// Whether more of that is to be done now.
    pub(crate) fn has_ranges_to_go_on_with(&self) -> bool {
        !self.ranges.to_serve.is_empty() || self.is_grace_ending()
    }

    /// The client is answered: if it is away, its time to live begins anew.
    fn restart_client_timer(&mut self, session: SessionId) {
        self.restart_time_of(session);
        let last_record = self.records.next_number() - 1;
        let is_away = self.session(session).life == Life::Away;
        if let Some(client) = self.client_mut(session).filter(|_| is_away) {
            client.told_with = last_record;
        }
    }
}
