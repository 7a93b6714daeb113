//! Locks, semaphores and read-write locks: holders, a FIFO of waiters, a lease on every hold.
//!
//! A lock is a semaphore of one. A read-write lock differs only in which holds are possible
//! together (`Locks::admits`), an election only in which clients are told (`election.rs`). Fairness
//! is strict: each key has one queue for all modes, and a client loses its place only by a timeout,
//! a disconnect or the end of its lease. The two-phase commands on the same keys are in
//! `two_phase.rs`.
//!
//! This file decides. What it decides about is kept in `table.rs` (keys), `holder.rs` (grants),
//! `queue.rs` (waiters), `owner.rs`, `lapsed.rs` and `gc.rs`. Never reads the clock and never
//! writes a byte; `Engine` is the only caller.

use super::arena::{Arena, Link, NONE};
use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::due::Due;
use super::election;
use super::gc::Collector;
use super::holder::{Hold, Holder, Taken};
use super::lapsed::Lapsed;
use super::owner::OwnerIndex;
use super::queue::{self, Awaiting, Waiter, Want};
use super::table::{Kind, Table};
use super::two_phase::Tickets;
use super::types::{Change, Event, Mode, Noted, Notes, Push, Refusal, Reply};
use super::work;
use crate::base::{Millis, Nanos, Token};
use crate::keymap::KeyMap;

/// Most grants at one time, over all keys. Beyond it a request is refused as if there were too many
/// keys. Only readers and slots can get there, at about 100 bytes each, because the number of keys
/// has its own limit. It is half of what a [`Due`] can number, so that there is room for all
/// waiters that are in a queue when it is reached.
const HOLDS_MAX: usize = 1 << 28;

/// The keys, with their holders, tickets and expired tokens.
pub(super) struct Locks {
    pub(super) table: Table,
    pub(super) holders: Arena<Holder>,
    /// Fence → holder, for keys that can have several holders; the one of a lock is found without.
    by_fence: KeyMap,
    pub(super) tickets: Tickets,
    lapsed: Lapsed,
    pub(super) collector: Collector,
}

impl Locks {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            table: Table::new(seed),
            holders: Arena::new(),
            by_fence: KeyMap::new(seed),
            tickets: Tickets::new(seed),
            lapsed: Lapsed::new(),
            collector: Collector::new(Due::LOCKS),
        }
    }

    pub(super) fn acquire(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        mode: Mode,
        wait: Millis,
        lease: Millis,
    ) {
        let resource = match self.open(cx, key, mode) {
            Ok(resource) => resource,
            Err(refusal) => return cx.refuse(asker.conn, refusal),
        };
        let want = Want {
            hold: Hold::of(mode),
            lease,
            ticket: NONE,
        };
        if self.is_free(resource, want.hold) {
            let token = self.grant(cx, resource, asker.owner, want);
            cx.reply(asker.conn, Reply::Granted { token, lease });
            self.tell_of_grant(cx, resource, asker.conn, want.hold);
        } else if self.is_queue_full(cx, resource) {
            cx.refuse(asker.conn, Refusal::MaxWaiters);
        } else if wait == Millis::ZERO {
            cx.reply(asker.conn, Reply::TimedOut);
        } else {
            let waiter = self.join(cx, resource, asker.owner, want);
            cx.park(waiter, asker.conn, wait);
        }
        self.mark_idle(cx, resource);
    }

    pub(super) fn release(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
    ) {
        let Some((resource, holder)) = self.find_holder(key, token) else {
            return cx.refuse(asker.conn, Refusal::NotHolder);
        };
        cx.core.tally.releases += 1;
        self.note(cx, Noted::Released, holder);
        let freed = self.freed_at(cx, holder);
        self.remove_holder(cx, holder);
        cx.reply(asker.conn, Reply::Done);
        cx.announce(Event::Release, key);
        self.grant_waiting_at(cx, resource, freed);
    }

    pub(super) fn renew(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) {
        let Some((resource, holder)) = self.find_holder(key, token) else {
            let hash = self.table.hash(key);
            let lapsed = token.is_some_and(|token| self.lapsed.contains(token, hash));
            let why = if lapsed {
                Refusal::LeaseExpired
            } else {
                Refusal::NotHolder
            };
            return cx.refuse(asker.conn, why);
        };
        if cx.core.timers.deadline(self.holders[holder].timer) <= cx.moment {
            let ticket = self.holders[holder].ticket;
            cx.refuse(asker.conn, Refusal::LeaseExpired);
            self.evict_expired(cx, resource);
            // The client knows now, so the answer to a later `w` need not say it again.
            if ticket != NONE {
                self.remove_ticket(cx, ticket);
                self.mark_idle(cx, resource);
            }
            return;
        }
        let fence = self.holders[holder].token.fence;
        self.restart_lease(cx, holder, lease);
        cx.reply(asker.conn, Reply::Renewed { lease, fence });
    }

    pub(super) fn position(&mut self, cx: &mut Ctx<'_>, asker: Asker, key: &[u8]) {
        let Some(resource) = self.find(key) else {
            return cx.reply(asker.conn, Reply::Nothing);
        };
        self.evict_expired(cx, resource);
        let ticket = self.tickets.find(asker.owner, resource);
        let reply = match ticket.and_then(|ticket| self.tickets.waiter(ticket)) {
            Some(waiter) => Reply::Number(queue::position(&cx.core.waiters, waiter).into()),
            None if self.holds(cx, asker.owner, resource) => Reply::Number(0),
            None => Reply::Nothing,
        };
        cx.reply(asker.conn, reply);
    }

    /// The timer of a lease fired.
    pub(super) fn lease_ended(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let resource = self.holders[holder].resource;
        if cx.core.timers.is_behind() && self.table[resource].soonest() < cx.moment {
            // Owners take turns, so a lease of another owner on this key may have ended earlier.
            return self.evict_expired(cx, resource);
        }
        self.lapse(cx, holder);
        self.grant_waiting(cx, resource);
    }

    /// The timer of a parked command fired: it times out, unless the key is free at this very
    /// instant.
    pub(super) fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        let conn = cx.core.waiters[waiter].conn;
        // A lease that ends at the same instant ends first, whichever timer fired first.
        self.evict_expired(cx, resource);
        while cx.core.conns[conn].parked == waiter {
            // Of waits that end at the same instant, the first in the queue ends first, whichever
            // timer fired first, because it may make room for the others.
            let head = self.table[resource].queue.head().unwrap_or(waiter);
            let head_is_due = cx.core.waiters[head]
                .timer
                .is_some_and(|timer| cx.core.timers.deadline(timer) <= cx.moment);
            let gone = if head_is_due { head } else { waiter };
            let told = cx.core.waiters[gone].conn;
            self.give_up(cx, gone);
            cx.reply(told, Reply::TimedOut);
            self.grant_waiting(cx, resource);
        }
    }

    /// Undoes what an owner that has left still has here, up to `budget` things; returns whether
    /// all is done.
    ///
    /// Its waits end before its holds, so that a key it releases is not granted to it again.
    pub(super) fn depart(&mut self, cx: &mut Ctx<'_>, owner: OwnerIndex, budget: &mut u32) -> bool {
        while let Some(ticket) = cx.core.owners[owner].tickets.head() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let resource = self.tickets[ticket].resource;
            match self.tickets.waiter(ticket) {
                Some(waiter) => self.give_up(cx, waiter),
                None => self.remove_ticket(cx, ticket),
            }
            self.grant_waiting(cx, resource);
        }
        if cx.core.rules.auto_release {
            while let Some(holder) = cx.core.owners[owner].holds.head() {
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                let resource = self.holders[holder].resource;
                cx.core.tally.disconnects += 1;
                self.note(cx, Noted::Disconnected, holder);
                self.remove_holder(cx, holder);
                // One event per key, however many of its slots the owner had.
                if cx.is_watched() && !self.holds(cx, owner, resource) {
                    cx.announce(Event::Release, self.table[resource].key.as_bytes());
                }
                self.grant_waiting(cx, resource);
            }
        }
        true
    }

    /// The connection of a parked command is gone: takes it out of the queue, then serves the rest
    /// of the queue.
    pub(super) fn leave_queue(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        self.give_up(cx, waiter);
        self.grant_waiting(cx, resource);
    }

    /// Forgets keys that have been idle for long enough, until so much is spent.
    pub(super) fn collect(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        self.collector.begin(cx);
        while let Some((resource, since)) = self.table.oldest_idle()
            && Collector::is_due(cx, since)
        {
            cx.core.work.charge(work::FORGET);
            self.table.remove_idle(resource);
            if cx.core.work.spent() >= slice_end {
                return self.collector.again(cx);
            }
        }
        self.arm_collection(cx);
    }

    // ---- parts of the functions above and of `two_phase.rs`, in the order of a grant's life ----

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        self.table.find(self.table.hash(key), key)
    }

    /// The resource of a key, which is made if there is none. Ends all leases on it that are over.
    pub(super) fn open(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        mode: Mode,
    ) -> Result<u32, Refusal> {
        if cx.core.draining {
            return Err(Refusal::Draining);
        }
        if self.holders.len() >= HOLDS_MAX {
            return Err(Refusal::MaxLocks);
        }
        let kind = Kind::of(mode);
        let hash = self.table.hash(key);
        if let Some(resource) = self.table.find(hash, key) {
            match (self.table[resource].kind(), kind) {
                (known, asked) if known == asked => {}
                (Kind::Slots { .. }, Kind::Slots { .. }) => return Err(Refusal::LimitMismatch),
                _ => return Err(Refusal::TypeMismatch),
            }
            self.evict_expired(cx, resource);
            return Ok(resource);
        }
        if cx.core.rules.locks_max != 0 && self.table.len() >= cx.core.rules.locks_max as usize {
            let (oldest, _) = self.table.oldest_idle().ok_or(Refusal::MaxLocks)?;
            self.table.remove_idle(oldest);
        }
        Ok(self.table.insert(hash, key, kind))
    }

    /// Whether a new request can have the key now: there is room, and the queue is empty.
    pub(super) fn is_free(&self, resource: u32, hold: Hold) -> bool {
        self.table[resource].queue.is_empty() && self.admits(resource, hold)
    }

    /// Whether there is room for this hold beside the present holders.
    fn admits(&self, resource: u32, hold: Hold) -> bool {
        let it = &self.table[resource];
        match (it.kind(), hold) {
            (Kind::Slots { limit }, _) => it.holders.len() < limit,
            (Kind::ReadWrite, Hold::Read) => it
                .holders
                .head()
                .is_none_or(|holder| self.holders[holder].hold() == Hold::Read),
            (Kind::ReadWrite, _) => it.holders.is_empty(),
        }
    }

    pub(super) fn is_queue_full(&self, cx: &Ctx<'_>, resource: u32) -> bool {
        let waiters_max = cx.core.rules.waiters_per_key_max;
        waiters_max != 0 && self.table[resource].queue.len() >= waiters_max
    }

    /// Makes `owner` a holder, with a fence above all earlier ones and a lease that starts now.
    pub(super) fn grant(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: OwnerIndex,
        want: Want,
    ) -> Token {
        let Want {
            hold,
            lease,
            ticket,
        } = want;
        assert!(
            self.admits(resource, hold),
            "granting {:?} to more holders than it admits",
            self.table[resource].key
        );
        let token = cx.core.fences.next();
        let deadline = cx.now.after(lease);
        let timer = cx
            .core
            .timers
            .arm(owner.0, deadline, Due::lease(self.holders.next_index()));
        let holder = self.holders.insert(Holder {
            token,
            taken: Taken::new(cx.now, hold),
            owner,
            resource,
            timer,
            ticket,
            by_resource: Link::OUT,
            by_owner: Link::OUT,
        });
        self.table.mark_used(resource);
        let it = &mut self.table[resource];
        it.holders.push_back(&mut self.holders, holder);
        it.note_deadline(deadline);
        if !it.kind().is_lock() {
            self.by_fence.insert(fence_hash(token), holder);
        }
        cx.core.owners[owner]
            .holds
            .push_back(&mut self.holders, holder);
        if ticket != NONE {
            self.tickets.hold(ticket, holder);
        }
        cx.core.tally.grants += 1;
        self.note(cx, Noted::Granted, holder);
        token
    }

    /// Notes a grant for the log, which nearly always shows none of this.
    #[inline(always)]
    pub(super) fn note(&self, cx: &mut Ctx<'_>, what: Noted, holder: u32) {
        if cx.core.rules.notes != Notes::Off {
            let it = &self.holders[holder];
            cx.note(what, it, &self.table[it.resource].key);
        }
    }

    pub(super) fn restart_lease(&mut self, cx: &mut Ctx<'_>, holder: u32, lease: Millis) {
        let Holder {
            timer,
            resource,
            owner,
            ..
        } = self.holders[holder];
        let deadline = cx.now.after(lease);
        cx.core.timers.rearm(owner.0, timer, deadline);
        self.table[resource].note_deadline(deadline);
    }

    /// Appends a waiter to the key's queue.
    pub(super) fn join(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: OwnerIndex,
        want: Want,
    ) -> u32 {
        let waiter = Waiter::new(owner, resource, Awaiting::Hold(want), cx.now);
        cx.join(&mut self.table[resource].queue, waiter)
    }

    /// Takes a waiter out of its queue, with its ticket if it has one. Sends no answer.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        let queue = &mut self.table[resource].queue;
        let gone = cx.leave(queue, waiter);
        let Want { ticket, .. } = gone.want();
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
    }

    /// Grants to the head of the queue as long as there is room, and marks the key idle if nothing
    /// uses it. Called after everything that may have made room.
    pub(super) fn grant_waiting(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        while let Some(waiter) = self.table[resource].queue.head() {
            let Waiter { conn, timer, .. } = cx.core.waiters[waiter];
            if !cx.is_present(waiter) {
                self.give_up(cx, waiter);
            } else if timer.is_some_and(|timer| cx.core.timers.deadline(timer) < cx.moment) {
                self.give_up(cx, waiter);
                cx.reply(conn, Reply::TimedOut);
            } else if self.admits(resource, cx.core.waiters[waiter].want().hold) {
                self.promote(cx, resource, waiter);
            } else {
                break;
            }
        }
        self.mark_idle(cx, resource);
        #[cfg(debug_assertions)]
        self.table.check(resource);
    }

    /// Makes the head of the queue a holder.
    fn promote(&mut self, cx: &mut Ctx<'_>, resource: u32, waiter: u32) {
        cx.core.work.charge(work::GRANT);
        let queue = &mut self.table[resource].queue;
        let it = cx.leave(queue, waiter);
        let parked = it.conn != ConnIndex::NONE;
        let mut want = it.want();
        if parked && want.ticket != NONE {
            self.remove_ticket(cx, want.ticket);
            want.ticket = NONE;
        }
        let token = self.grant(cx, resource, it.owner, want);
        if self.table[resource].kind().is_lock() {
            election::tell_observers(cx, Change::Failover, &self.table[resource].key, None);
        }
        if parked {
            cx.reply(
                it.conn,
                Reply::Granted {
                    token,
                    lease: want.lease,
                },
            );
            self.tell_of_grant(cx, resource, it.conn, want.hold);
        }
    }

    /// Tells watchers and observers of a grant, once its client is told.
    pub(super) fn tell_of_grant(
        &self,
        cx: &mut Ctx<'_>,
        resource: u32,
        conn: ConnIndex,
        hold: Hold,
    ) {
        let key = &self.table[resource].key;
        if hold == Hold::Lead {
            cx.announce(Event::Elect, key.as_bytes());
            election::tell_observers(cx, Change::Elected, key, Some(conn));
        } else {
            cx.announce(Event::Acquire, key.as_bytes());
        }
    }

    /// Ends every lease on this key that is over, then serves the queue.
    ///
    /// Each lease ends at its own instant and in order, as its timer would have ended it: a waiter
    /// that still waited when the lease ended is granted, even if that was long ago and its own
    /// wait is over by now.
    pub(super) fn evict_expired(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        // `soonest` may be out of date, because a timer that ends a lease leaves it as it is. But
        // if no timer at all is due, no lease is over.
        let is_due = |deadline: Nanos| deadline <= cx.moment;
        if is_due(self.table[resource].soonest())
            && cx.core.timers.next_deadline().is_some_and(is_due)
        {
            let (lapsed, soonest) = self.lapsed_of(cx, resource);
            self.table[resource].set_soonest(soonest);
            for (deadline, holder) in lapsed {
                self.lapse(cx, holder);
                self.grant_waiting_at(cx, resource, deadline);
            }
        }
        // The wait of the head of the queue may be over.
        if !self.table[resource].queue.is_empty() {
            self.grant_waiting(cx, resource);
        }
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

    /// Serves the queue for room that was made at an earlier instant.
    pub(super) fn grant_waiting_at(&mut self, cx: &mut Ctx<'_>, resource: u32, moment: Nanos) {
        let present = std::mem::replace(&mut cx.moment, moment);
        self.grant_waiting(cx, resource);
        cx.moment = present;
    }

    /// Ends one lease: remembers its token, tells the holder, and marks its ticket.
    fn lapse(&mut self, cx: &mut Ctx<'_>, holder: u32) {
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
        let conn = cx.core.owners[owner].conn;
        if conn != ConnIndex::NONE
            && cx.core.conns[conn].introduced
            && cx.core.conns[conn].is_here()
        {
            cx.push(
                conn,
                Push::Lost {
                    key: it.key.clone(),
                    fence: token.fence,
                },
            );
        }
        cx.announce(Event::Release, it.key.as_bytes());
        cx.core.tally.expiries += 1;
        self.note(cx, Noted::Expired, holder);
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

    /// Removes a grant, with its ticket if it still has one. Grants to no waiter: `grant_waiting`
    /// does.
    pub(super) fn remove_holder(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let Holder {
            token,
            owner,
            resource,
            timer,
            ticket,
            ..
        } = self.holders[holder];
        let it = &mut self.table[resource];
        it.holders.unlink(&mut self.holders, holder);
        if it.holders.is_empty() {
            it.set_soonest(Nanos::NEVER);
        }
        if !it.kind().is_lock() {
            self.by_fence.remove(fence_hash(token), holder);
        }
        cx.core.owners[owner]
            .holds
            .unlink(&mut self.holders, holder);
        cx.core.timers.cancel(owner.0, timer);
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
        self.holders.remove(holder);
        cx.core.forget_if_done(owner);
    }

    pub(super) fn find_holder(&self, key: &[u8], token: Option<Token>) -> Option<(u32, u32)> {
        let token = token?;
        let resource = self.find(key)?;
        let it = &self.table[resource];
        let holder = if it.kind().is_lock() {
            it.holders.head()?
        } else {
            self.by_fence.find(fence_hash(token), |holder| {
                let it = &self.holders[holder];
                it.resource == resource && it.token.fence == token.fence
            })?
        };
        // Compares both words at once, so that the time it takes does not tell how close a guess
        // was.
        let held = self.holders[holder].token;
        let difference = (held.fence.0 ^ token.fence.0) | (held.salt ^ token.salt);
        (difference == 0).then_some((resource, holder))
    }

    /// Whether the owner holds the key. Walks the shorter of the two chains.
    fn holds(&self, cx: &Ctx<'_>, owner: OwnerIndex, resource: u32) -> bool {
        let (of_key, of_owner) = (&self.table[resource].holders, &cx.core.owners[owner].holds);
        if of_key.len() <= of_owner.len() {
            of_key
                .iter(&self.holders)
                .any(|holder| self.holders[holder].owner == owner)
        } else {
            of_owner
                .iter(&self.holders)
                .any(|holder| self.holders[holder].resource == resource)
        }
    }

    /// Marks the key idle if nothing uses it, and makes sure that it will be collected.
    pub(super) fn mark_idle(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        if self.table.mark_idle(resource, cx.now) {
            self.arm_collection(cx);
        }
    }

    fn arm_collection(&mut self, cx: &mut Ctx<'_>) {
        self.collector
            .arm(cx, self.table.oldest_idle().map(|(_, since)| since));
    }
}

/// Clients do not choose fences, and fences are consecutive, so one multiplication spreads them
/// well enough.
fn fence_hash(token: Token) -> u32 {
    (token.fence.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
