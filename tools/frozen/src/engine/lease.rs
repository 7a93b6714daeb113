//! Leases: how they are renewed and how they end, each at its own instant and in order.
//!
//! A lease ends when its timer fires, or when somebody asks about its key before that; either way
//! what follows is the same. Of very many that are over, only some are ended at a time. The rest of
//! what can happen to a hold is in `lock.rs`.

use super::arena::NONE;
use super::conn::Asker;
use super::crowd::Crowds;
use super::ctx::Ctx;
use super::holder::Holder;
use super::lock::{Locks, SERVED_WORK};
use super::owner::Overdue;
use super::types::{Effect, Event, Loss, Noted, Push, Refusal, Reply};
use super::work;
use crate::base::{Millis, Nanos, Token};

/// Most leases of one key that one request or one timer ends; the rest follows with the next.
const EVICTED_MAX: u32 = 64;

/// A lease that is over, but has to wait for the disk, is looked at again after this time.
const STALLED_NS: u64 = 10_000_000;

impl Locks {
    pub(super) fn renew(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) {
        let why = |lapsed| {
            if lapsed {
                Refusal::LeaseExpired
            } else {
                Refusal::NotHolder
            }
        };
        let Some(holder) = self.find_to_renew(cx, asker, key, token, why) else {
            return;
        };
        if cx.core.is_durable() {
            self.bind(cx, holder, asker.owner);
        }
        let Holder {
            token, resource, ..
        } = self.holders[holder];
        let fence = token.fence;
        self.table.note_change(resource);
        let lease = self.restart_lease(cx, holder, lease);
        cx.reply(asker.conn, Reply::Renewed { lease, fence });
    }

    /// The grant that a renewal is for, if its lease is not over. If there is none, the client is
    /// told `why`, which depends on whether it is known that its lease has ended.
    #[inline(always)] // so that to renew costs no more than before there were two who do it
    pub(super) fn find_to_renew(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
        why: impl Fn(bool) -> Refusal,
    ) -> Option<u32> {
        let Some((resource, holder)) = self.find_holder(key, token) else {
            let hash = self.table.hash(key);
            let lapsed = token.is_some_and(|token| self.lapsed.contains(token, hash));
            cx.refuse(asker.conn, why(lapsed));
            return None;
        };
        if cx.core.timers.deadline(self.holders[holder].timer) <= cx.moment
            && !self.outlasts(cx, holder)
        {
            let ticket = self.holders[holder].ticket;
            let before = cx.out.len();
            if !self.evict_expired(cx, resource) && self.find_holder(key, token).is_some() {
                cx.put_off(asker.conn);
                return None;
            }
            // The answer comes before everything else that the end of the lease brings about.
            let (id, why) = (cx.core.conns[asker.conn].id, why(true));
            let answer = Effect::Reply(id, Reply::Refused(why));
            cx.out.insert(before, answer);
            // The client knows now, so the answer to a later `w` need not say it again.
            if ticket != NONE {
                self.remove_ticket(cx, ticket);
                self.mark_idle(cx, resource);
            }
            return None;
        }
        Some(holder)
    }

    /// Starts a lease again, and says how long it is now: on a full disk not always as long as asked.
    pub(super) fn restart_lease(&mut self, cx: &mut Ctx<'_>, holder: u32, lease: Millis) -> Millis {
        if cx.core.is_durable() {
            return self.restart_recorded_lease(cx, holder, lease);
        }
        self.set_lease_end(cx, holder, cx.now.after(lease));
        lease
    }

    pub(super) fn set_lease_end(&mut self, cx: &mut Ctx<'_>, holder: u32, deadline: Nanos) {
        let Holder {
            timer,
            resource,
            owner,
            ..
        } = self.holders[holder];
        if Crowds::may_have(self.table[resource].holders.len()) {
            self.note_renewed(holder, cx.core.timers.deadline(timer), deadline);
        }
        cx.core.timers.rearm(owner.0, timer, deadline);
        self.table[resource].note_deadline(deadline);
    }

    /// Whether a lease goes on, although it is over: see [`Overdue`].
    pub(super) fn outlasts(&mut self, cx: &mut Ctx<'_>, holder: u32) -> bool {
        let Holder { owner, timer, .. } = self.holders[holder];
        let stalled_since = match cx.core.owners[owner].overdue {
            Overdue::End => return false,
            Overdue::Wait => cx.core.owners.stalled_since(owner),
            Overdue::OfName => self.asks.stalled_since(&cx.core.owners[owner]),
            Overdue::Stay => {
                self.set_lease_end(cx, holder, Nanos::NEVER);
                return true;
            }
        };
        let deadline = cx.core.timers.deadline(timer);
        let goes_on = stalled_since.is_some_and(|since| self.goes_on(holder, deadline, since));
        if goes_on {
            self.set_lease_end(cx, holder, Nanos(cx.now.0 + STALLED_NS));
        }
        goes_on
    }

    /// Whether a lease that is over goes on, because the disk keeps requests of its owner waiting since
    /// this instant. One that was over before does not: no renewal that waits now was sent in time, as
    /// far as can be known.
    #[cold]
    fn goes_on(&mut self, holder: u32, deadline: Nanos, stalled_since: Nanos) -> bool {
        if self.recorded.get(holder).is_none() {
            return deadline > stalled_since; // nothing is recorded, and nothing waits for the disk
        }
        let recorded = &mut self.recorded[holder];
        // One that goes on already has a deadline that is not its own, from when it was looked at last.
        let looked_at = match recorded.is_overdue() {
            true => deadline.0.saturating_sub(STALLED_NS),
            false => deadline.0.saturating_sub(1),
        };
        let goes_on = looked_at >= stalled_since.0;
        if goes_on {
            recorded.set_overdue();
        }
        goes_on
    }

    /// The timer of a lease fired.
    pub(super) fn lease_ended(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        if self.outlasts(cx, holder) {
            return;
        }
        let resource = self.holders[holder].resource;
        if cx.core.timers.is_behind() && self.table[resource].soonest() < cx.moment {
            // Owners take turns, so a lease of another owner on this key may have ended earlier.
            let owner = self.holders[holder].owner;
            if !self.evict_expired(cx, resource) {
                cx.core.timers.put_off(owner.0);
            }
            return;
        }
        self.lapse(cx, holder);
        self.grant_waiting(cx, resource);
    }

    /// Ends leases on this key that are over, then serves the queue. Returns whether the key is
    /// current: no expired lease is left, and no waiter that can be granted. If not, call again, or
    /// leave the rest to the timers.
    ///
    /// Each lease ends at its own instant and in order, as its timer would have ended it: a waiter
    /// that still waited when the lease ended is granted, even if that was long ago and its own
    /// wait is over by now. So no wait ends here while expired leases are left.
    pub(super) fn evict_expired(&mut self, cx: &mut Ctx<'_>, resource: u32) -> bool {
        // `soonest` may be out of date, because a timer that ends a lease leaves it as it is. But
        // if no timer at all is due, no lease is over.
        let is_due = |deadline: Nanos| deadline <= cx.moment;
        if is_due(self.table[resource].soonest())
            && cx.core.timers.next_deadline().is_some_and(is_due)
            && !self.evict(cx, resource)
        {
            return false;
        }
        if self.table[resource].queue.is_empty() {
            return true;
        }
        // The wait of the head of the queue may be over.
        self.grant_waiting(cx, resource);
        !self.unserved.contains(resource)
    }

    /// Ends leases on this key that are over, in their order; returns whether all of them.
    fn evict(&mut self, cx: &mut Ctx<'_>, resource: u32) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        for _ in 0..EVICTED_MAX {
            if cx.core.work.spent() >= work_end {
                return false;
            }
            let Some(crowd) = self.crowds.get(resource) else {
                self.evict_few(cx, resource);
                return true;
            };
            let (deadline, holder) = crowd.first().expect("a crowd is not empty");
            if deadline > cx.moment {
                self.table[resource].set_soonest(deadline);
                return true;
            }
            self.end_lease_at(cx, holder, deadline);
        }
        false
    }

    /// The same for a key that has few enough holders to walk over them.
    fn evict_few(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        let (lapsed, soonest) = self.lapsed_of(cx, resource);
        self.table[resource].set_soonest(soonest);
        for (deadline, holder) in lapsed {
            self.end_lease_at(cx, holder, deadline);
        }
    }

    fn end_lease_at(&mut self, cx: &mut Ctx<'_>, holder: u32, deadline: Nanos) {
        cx.core.work.charge(work::END);
        if self.outlasts(cx, holder) {
            return;
        }
        let resource = self.holders[holder].resource;
        self.lapse(cx, holder);
        self.grant_waiting_at(cx, resource, deadline);
    }

    /// The holders whose lease is over, in the order in which the leases ended, and when the first
    /// of the other leases will end.
    fn lapsed_of(&self, cx: &mut Ctx<'_>, resource: u32) -> (Vec<(Nanos, u32)>, Nanos) {
        let mut lapsed = Vec::new();
        let mut soonest = Nanos::NEVER;
        for holder in self.table[resource].holders.iter(&self.holders) {
            cx.core.work.charge(work::LOOK);
            match cx.core.timers.deadline(self.holders[holder].timer) {
                deadline if deadline <= cx.moment => lapsed.push((deadline, holder)),
                deadline => soonest = soonest.min(deadline),
            }
        }
        lapsed.sort_unstable();
        (lapsed, soonest)
    }

    /// Whether a lease on this key ends at this instant or before.
    pub(super) fn has_lease_until(&self, cx: &mut Ctx<'_>, resource: u32, until: Nanos) -> bool {
        // A lower bound: see `Resource::soonest`.
        if self.table[resource].soonest() > until {
            return false;
        }
        if let Some(crowd) = self.crowds.get(resource) {
            return crowd.first().is_some_and(|(deadline, _)| deadline <= until);
        }
        let mut holders = self.table[resource].holders.iter(&self.holders);
        holders.any(|holder| {
            cx.core.work.charge(work::LOOK);
            cx.core.timers.deadline(self.holders[holder].timer) <= until
        })
    }

    /// Ends one lease: remembers its token, tells the holder, and marks its ticket.
    fn lapse(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let late_ns = cx
            .now
            .since(cx.core.timers.deadline(self.holders[holder].timer));
        let ends = &mut cx.core.ends;
        ends.lateness.observe(late_ns);
        ends.lateness_ns_max = ends.lateness_ns_max.max(late_ns);
        self.lose(cx, holder, Loss::Expired, Noted::Expired { late_ns });
    }

    /// Ends a grant as if its lease had ended, because an operator wants it so.
    pub(super) fn lose_broken(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        self.lose(cx, holder, Loss::Broken, Noted::Broken);
    }

    fn lose(&mut self, cx: &mut Ctx<'_>, holder: u32, why: Loss, noted: Noted) {
        let Holder {
            token,
            owner,
            resource,
            ticket,
            ..
        } = self.holders[holder];
        let it = &self.table[resource];
        self.lapsed
            .remember(token, self.table.hash(it.key.as_bytes()));
        for conn in cx.core.connections_of(owner) {
            if cx.core.conns[conn].introduced {
                let (key, fence) = (it.key.clone(), token.fence);
                cx.push(conn, Push::Lost { key, fence, why });
            }
        }
        cx.announce(Event::Release, it.key.as_bytes());
        self.note(cx, noted, holder);
        if ticket != NONE {
            self.holders[holder].ticket = NONE;
            self.tickets.expire(cx, ticket);
        }
        self.remove_holder(cx, holder);
    }

    /// The instant at which the release of this hold makes room: now, or when its lease ended, if
    /// it is over and its timer has not fired yet.
    pub(super) fn freed_at(&self, cx: &Ctx<'_>, holder: u32) -> Nanos {
        cx.core
            .timers
            .deadline(self.holders[holder].timer)
            .min(cx.moment)
    }
}
