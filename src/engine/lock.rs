//! Locks, semaphores and read-write locks: holders, a FIFO of waiters, a lease on every hold.
//!
//! A lock is a semaphore of one; a read-write lock differs only in who fits beside whom
//! (`Locks::admits`), and an election in who is told (`election.rs`). Fairness is strict: one queue per key for all modes, and only a timeout, a
//! disconnect or the end of the lease lets someone overtake. The two-phase commands over the same
//! keys are in `two_phase.rs`. Never reads the clock and never writes a byte; `Engine` is the only
//! caller.

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
use super::types::{Change, Event, Mode, Noted, Push, Refusal, Reply};
use crate::base::{Millis, Nanos, Token};
use crate::keymap::KeyMap;

/// Most grants at one time, over all keys; then there is no room, as if for another key. Only readers
/// and slots can get there, at about 100 bytes each: the number of keys has its own limit. Half of
/// what a timer can stand for, so that there is room for all who stand in the queue when it is reached.
const HOLDS_MAX: usize = 1 << 28;

/// The table with everything that stands on it.
pub(super) struct Locks {
    pub(super) table: Table,
    pub(super) holders: Arena<Holder>,
    /// Fence → holder, for keys that can have several; a lock's one holder is found without.
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
        cx.tally.releases += 1;
        self.note(cx, Noted::Released, holder);
        let freed = self.freed_at(cx, holder);
        self.remove_holder(cx, holder, Timer::Running);
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
        if cx.timers.deadline(self.holders[holder].timer) <= cx.moment {
            let ticket = self.holders[holder].ticket;
            cx.refuse(asker.conn, Refusal::LeaseExpired);
            self.evict_expired(cx, resource);
            // The asker knows now, so a later wait need not be told again.
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
            Some(waiter) => Reply::Number(queue::position(cx.waiters, waiter).into()),
            None if self.holds(cx, asker.owner, resource) => Reply::Number(0),
            None => Reply::Nothing,
        };
        cx.reply(asker.conn, reply);
    }

    /// A lease's timer fired.
    pub(super) fn lease_ended(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let resource = self.holders[holder].resource;
        self.lapse(cx, holder, Timer::Fired);
        self.grant_waiting(cx, resource);
    }

    /// A parked command's timer fired: time out, unless the key is free at this very instant.
    pub(super) fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.waiters[waiter].subject;
        let conn = cx.waiters[waiter].conn;
        cx.waiters[waiter].timer = None;
        // A lease that ends at the same instant ends first, whichever timer fired first.
        self.evict_expired(cx, resource);
        while cx.conns[conn].parked == waiter {
            // Of waits that end at the same instant the first in the queue ends first, whichever timer
            // fired first: it may leave room for the others.
            let head = self.table[resource].queue.head().unwrap_or(waiter);
            let head_is_due = cx.waiters[head]
                .timer
                .is_some_and(|timer| cx.timers.deadline(timer) <= cx.moment);
            let gone = if head_is_due { head } else { waiter };
            let told = cx.waiters[gone].conn;
            self.give_up(cx, gone);
            cx.reply(told, Reply::TimedOut);
            self.grant_waiting(cx, resource);
        }
    }

    /// Undoes what an owner that left still has here, up to `budget` things; says whether all is done.
    ///
    /// Waits first, then holds: what it lets go must not come back to it.
    pub(super) fn depart(&mut self, cx: &mut Ctx<'_>, owner: OwnerIndex, budget: &mut u32) -> bool {
        while let Some(ticket) = cx.owners[owner].tickets.head() {
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
        if cx.rules.auto_release {
            while let Some(holder) = cx.owners[owner].holds.head() {
                if *budget == 0 {
                    return false;
                }
                *budget -= 1;
                let resource = self.holders[holder].resource;
                cx.tally.disconnects += 1;
                self.note(cx, Noted::Disconnected, holder);
                self.remove_holder(cx, holder, Timer::Running);
                // Once per key, however many of its slots the owner had.
                if cx.is_watched() && !self.holds(cx, owner, resource) {
                    cx.announce(Event::Release, self.table[resource].key.as_bytes());
                }
                self.grant_waiting(cx, resource);
            }
        }
        true
    }

    /// A parked command has waited long enough, or its client is gone: out of the queue, and whoever
    /// that makes room for is served.
    pub(super) fn leave_queue(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.waiters[waiter].subject;
        self.give_up(cx, waiter);
        self.grant_waiting(cx, resource);
    }

    /// Forgets keys that were idle for long enough.
    pub(super) fn collect(&mut self, cx: &mut Ctx<'_>, budget: &mut u32) {
        self.collector.begin(cx);
        while let Some((resource, since)) = self.table.oldest_idle()
            && Collector::is_due(cx, since)
        {
            if *budget == 0 {
                return self.collector.again(cx);
            }
            *budget -= 1;
            self.table.remove_idle(resource);
        }
        self.arm_collection(cx);
    }

    // ---- what the doors above and `two_phase.rs` are made of, in the order of a life ----

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        self.table.find(self.table.hash(key), key)
    }

    /// The key's resource, made if need be, with every lease that has passed already ended.
    pub(super) fn open(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        mode: Mode,
    ) -> Result<u32, Refusal> {
        if cx.draining {
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
        if cx.rules.locks_max != 0 && self.table.len() >= cx.rules.locks_max as usize {
            let (oldest, _) = self.table.oldest_idle().ok_or(Refusal::MaxLocks)?;
            self.table.remove_idle(oldest);
        }
        Ok(self.table.insert(hash, key, kind))
    }

    /// A newcomer may have the key now: there is room, and nobody stands in the queue.
    pub(super) fn is_free(&self, resource: u32, hold: Hold) -> bool {
        self.table[resource].queue.is_empty() && self.admits(resource, hold)
    }

    /// There is room beside those who hold.
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
        let waiters_max = cx.rules.waiters_per_key_max;
        waiters_max != 0 && self.table[resource].queue.len() >= waiters_max
    }

    /// Makes `owner` a holder, with a fence above all before it and a lease from now.
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
            "granting {:?} beyond its limit",
            self.table[resource].key
        );
        let token = cx.fences.next();
        let deadline = cx.now.after(lease);
        let timer = cx
            .timers
            .arm(deadline, Due::lease(self.holders.next_index()));
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
        cx.owners[owner].holds.push_back(&mut self.holders, holder);
        if ticket != NONE {
            self.tickets.hold(ticket, holder);
        }
        cx.tally.grants += 1;
        self.note(cx, Noted::Granted, holder);
        token
    }

    #[inline]
    pub(super) fn note(&self, cx: &mut Ctx<'_>, what: Noted, holder: u32) {
        let it = &self.holders[holder];
        cx.note(what, it, &self.table[it.resource].key);
    }

    pub(super) fn restart_lease(&mut self, cx: &mut Ctx<'_>, holder: u32, lease: Millis) {
        let Holder {
            timer, resource, ..
        } = self.holders[holder];
        let deadline = cx.now.after(lease);
        cx.timers.rearm(timer, deadline);
        self.table[resource].note_deadline(deadline);
    }

    /// Appends to the key's queue.
    pub(super) fn join(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: OwnerIndex,
        want: Want,
    ) -> u32 {
        let waiter = Waiter::new(owner, resource, Awaiting::Hold(want), cx.now);
        let waiter = cx.waiters.insert(waiter);
        self.table[resource].queue.push_back(cx.waiters, waiter);
        waiter
    }

    /// Takes a waiter out of its queue, with its ticket if it has one. Says nothing to anyone.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.waiters[waiter].subject;
        let queue = &mut self.table[resource].queue;
        let gone = cx.leave(queue, waiter);
        let Want { ticket, .. } = gone.want();
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
    }

    /// Grants to the head of the queue for as long as there is room. Run after everything that may
    /// have made room; also finds the resource its chain.
    pub(super) fn grant_waiting(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        while let Some(waiter) = self.table[resource].queue.head() {
            let Waiter { conn, timer, .. } = cx.waiters[waiter];
            if !cx.is_present(waiter) {
                self.give_up(cx, waiter);
            } else if timer.is_some_and(|timer| cx.timers.deadline(timer) < cx.moment) {
                self.give_up(cx, waiter);
                cx.reply(conn, Reply::TimedOut);
            } else if self.admits(resource, cx.waiters[waiter].want().hold) {
                self.promote(cx, resource, waiter);
            } else {
                break;
            }
        }
        self.mark_idle(cx, resource);
        #[cfg(debug_assertions)]
        self.table.check(resource);
    }

    /// The head of the queue becomes a holder.
    fn promote(&mut self, cx: &mut Ctx<'_>, resource: u32, waiter: u32) {
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

    /// Tells watchers and observers of a grant that its client knows of.
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

    /// Ends every lease on this key that has passed, then serves the queue.
    ///
    /// Each at its own instant and in order, as its timer would have: who still waited when a lease
    /// ended is granted, also if that was long ago and its own wait has ended since.
    pub(super) fn evict_expired(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        // Where nothing at all is due there is nothing to look for: what has ended was ended by its
        // timer, which leaves `soonest` behind.
        let is_due = |deadline: Nanos| deadline <= cx.moment;
        if is_due(self.table[resource].soonest()) && cx.timers.next_deadline().is_some_and(is_due) {
            let (lapsed, soonest) = self.lapsed_of(cx, resource);
            self.table[resource].set_soonest(soonest);
            for (deadline, holder) in lapsed {
                self.lapse(cx, holder, Timer::Running);
                self.grant_waiting_at(cx, resource, deadline);
            }
        }
        // The head of the queue may have waited for long enough.
        if !self.table[resource].queue.is_empty() {
            self.grant_waiting(cx, resource);
        }
    }

    /// The holders whose lease has passed, in the order it did, and when the first of the others
    /// will.
    fn lapsed_of(&self, cx: &Ctx<'_>, resource: u32) -> (Vec<(Nanos, u32)>, Nanos) {
        let mut lapsed = Vec::new();
        let mut soonest = Nanos::NEVER;
        for holder in self.table[resource].holders.iter(&self.holders) {
            match cx.timers.deadline(self.holders[holder].timer) {
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

    /// Ends one lease: the holder is remembered and told, and its ticket knows.
    fn lapse(&mut self, cx: &mut Ctx<'_>, holder: u32, timer: Timer) {
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
        let conn = cx.owners[owner].conn;
        if conn != ConnIndex::NONE && cx.conns[conn].introduced && cx.conns[conn].is_here() {
            cx.push(
                conn,
                Push::Lost {
                    key: it.key.clone(),
                    fence: token.fence,
                },
            );
        }
        cx.announce(Event::Release, it.key.as_bytes());
        cx.tally.expiries += 1;
        self.note(cx, Noted::Expired, holder);
        if ticket != NONE {
            self.holders[holder].ticket = NONE;
            self.tickets.expire(cx, ticket);
        }
        self.remove_holder(cx, holder, timer);
    }

    /// The instant at which letting go of this hold makes room: now, or when its lease ended, if it
    /// has ended and nobody has looked since.
    pub(super) fn freed_at(&self, cx: &Ctx<'_>, holder: u32) -> Nanos {
        cx.timers
            .deadline(self.holders[holder].timer)
            .min(cx.moment)
    }

    /// Takes a grant back, with its ticket if it still has one. Serves nobody: `grant_waiting` does.
    pub(super) fn remove_holder(&mut self, cx: &mut Ctx<'_>, holder: u32, timer: Timer) {
        let Holder {
            token,
            owner,
            resource,
            timer: id,
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
        cx.owners[owner].holds.unlink(&mut self.holders, holder);
        if let Timer::Running = timer {
            cx.timers.cancel(id);
        }
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
        self.holders.remove(holder);
        cx.owners.forget_if_done(owner);
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
        // One comparison of both words at once, so that timing says nothing about how close it was.
        let held = self.holders[holder].token;
        let difference = (held.fence.0 ^ token.fence.0) | (held.salt ^ token.salt);
        (difference == 0).then_some((resource, holder))
    }

    /// Whether the owner has the key, by walking the shorter of the two chains.
    fn holds(&self, cx: &Ctx<'_>, owner: OwnerIndex, resource: u32) -> bool {
        let (of_key, of_owner) = (&self.table[resource].holders, &cx.owners[owner].holds);
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

    /// Finds the resource the chain it belongs to.
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

/// Whether a lease's timer is still in the heap.
#[derive(Clone, Copy)]
pub(super) enum Timer {
    Running,
    Fired,
}

/// Fences are ours and consecutive: one multiplication spreads them well enough.
fn fence_hash(token: Token) -> u32 {
    (token.fence.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
