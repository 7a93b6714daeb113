//! Locks, semaphores and read-write locks: holders, a FIFO of waiters, a lease on every hold.
//!
//! A lock is a semaphore of one. A read-write lock differs only in which holds are possible
//! together (`Locks::admits`), an election only in which clients are told (`election.rs`). Fairness
//! is strict: each key has one queue for all modes, and a client loses its place only by a timeout,
//! a disconnect or the end of its lease. The two-phase commands on the same keys are in
//! `two_phase.rs`.
//!
//! This file decides. What it decides about is kept in `table.rs` (keys), `holder.rs` (grants),
//! `queue.rs` (waiters), `owner.rs`, `lapsed.rs` and `gc.rs`; how leases end is in `lease.rs`, how
//! clients leave in `leaving.rs`. Never reads the clock and never writes a byte; `Engine` is the only
//! caller.

use super::arena::{Arena, NONE};
use super::conn::{Asker, ConnIndex};
use super::crowd::{Crowds, WALK_MAX};
use super::ctx::Ctx;
use super::due::Due;
use super::election;
use super::gc::Collector;
use super::holder::{Held, Holder, Taken};
use super::lapsed::Lapsed;
use super::named_owner::Asks;
use super::owner::{OwnerIndex, Presence};
use super::queue::{Awaiting, Waiter, Want};
use super::ranges::Ranges;
use super::rank::Ranks;
use super::record::{About, RecordedLease};
use super::shares::Status;
use super::table::{Kind, Table};
use super::two_phase::Tickets;
use super::types::{Change, Event, Mode, Noted, Refusal, Reply};
use super::unserved::Unserved;
use super::waits::Waits;
use super::work;
use crate::base::{Fence, Millis, Nanos, Token};
use crate::key::Key;
use crate::keymap::KeyMap;

/// Most grants at one time, over all keys, also if the operator set no limit. Beyond it a request is
/// refused as if there were too many keys. Only readers and slots can get there, at about 100 bytes
/// each, because the number of keys has its own limit. It is half of what a [`Due`] can number, so that there is room for all
/// waiters that are in a queue when it is reached.
const HOLDS_MAX: usize = 1 << 28;

/// Most waiters of one key that are granted or sent away at a time; the rest follows when time
/// passes, or with the next request for the key.
const SERVED_MAX: u32 = 256;

/// And what may be spent on them: each of them may have very many watchers.
pub(super) const SERVED_WORK: u64 = 100_000;

/// The keys, with their holders, tickets and expired tokens.
pub(super) struct Locks {
    pub(super) table: Table,
    pub(super) holders: Arena<Holder>,
    /// The lease of each holder as the records have it, under the same indices; empty if nothing is
    /// recorded.
    pub(super) recorded: Arena<RecordedLease>,
    /// Fence → holder, for keys that can have several holders; the one of a lock is found without.
    by_fence: KeyMap,
    /// What owners that are known by name wait for and hold.
    pub(super) asks: Asks,
    pub(super) crowds: Crowds,
    pub(super) ranks: Ranks,
    pub(super) unserved: Unserved,
    pub(super) waits: Waits,
    /// Byte ranges, which are a kind of lock with keys of their own.
    pub(super) ranges: Ranges,
    pub(super) tickets: Tickets,
    pub(super) lapsed: Lapsed,
    pub(super) collector: Collector,
}

impl Locks {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            table: Table::new(seed),
            holders: Arena::new(),
            recorded: Arena::new(),
            by_fence: KeyMap::new(seed),
            asks: Asks::new(seed),
            crowds: Crowds::default(),
            ranks: Ranks::default(),
            unserved: Unserved::default(),
            waits: Waits::default(),
            ranges: Ranges::new(seed),
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
        let Opened {
            resource,
            is_current,
        } = match self.open(cx, key, mode) {
            Ok(opened) => opened,
            Err(refusal) => return deny(cx, asker.conn, key, mode, refusal),
        };
        let want = Want {
            held: Held::of(mode),
            lease,
            ticket: NONE,
        };
        if self.is_free(resource, want.held) {
            if cx.core.memory_full && !self.holders.has_vacancy() {
                deny(cx, asker.conn, key, mode, Refusal::Memory);
                return self.mark_idle(cx, resource);
            }
            let token = self.grant(cx, resource, asker.owner, want);
            cx.reply(asker.conn, Reply::Granted { token, lease });
            self.tell_of_grant(cx, resource, asker.conn, want.held);
        } else if !is_current && (wait == Millis::ZERO || self.is_queue_full(cx, resource)) {
            cx.put_off(asker.conn);
        } else if self.is_queue_full(cx, resource) {
            deny(cx, asker.conn, key, mode, Refusal::MaxWaiters);
        } else if wait == Millis::ZERO {
            cx.note_denied(key, mode);
            cx.reply(asker.conn, Reply::TimedOut);
        } else if !cx.has_room_to_wait() {
            deny(cx, asker.conn, key, mode, Refusal::Memory);
        } else if cx.detects_deadlocks(asker.conn) {
            self.join_unless_deadlock(cx, asker, resource, want, wait);
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
        self.note(cx, Noted::Released, holder);
        let freed = self.freed_at(cx, holder);
        self.remove_holder(cx, holder);
        cx.reply(asker.conn, Reply::Done);
        cx.announce(Event::Release, key);
        self.grant_waiting_at(cx, resource, freed);
    }

    pub(super) fn position(&mut self, cx: &mut Ctx<'_>, asker: Asker, key: &[u8]) {
        let Some(resource) = self.find(key) else {
            return cx.reply(asker.conn, Reply::Nothing);
        };
        if !self.evict_expired(cx, resource) {
            return cx.put_off(asker.conn);
        }
        let ticket = self.tickets.find(asker.owner, resource);
        let reply = match ticket.and_then(|ticket| self.tickets.waiter(ticket)) {
            Some(waiter) => {
                let waiters = &cx.core.waiters;
                let (position, looks) = self.ranks.position(resource, waiters, waiter);
                cx.core.work.charge_each(looks, work::LOOK);
                Reply::Number(position.into())
            }
            None if self.holds(cx, asker.owner, resource) => Reply::Number(0),
            None => Reply::Nothing,
        };
        cx.reply(asker.conn, reply);
    }

    /// The timer of a parked command fired: it times out, unless the key is free at this very
    /// instant.
    pub(super) fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter {
            subject: resource,
            conn,
            owner,
            ..
        } = cx.core.waiters[waiter];
        // A lease that ends at the same instant ends first, whichever timer fired first.
        let mut is_current = self.evict_expired(cx, resource);
        let mut left = SERVED_MAX;
        while cx.core.conns[conn].parked == waiter {
            if !is_current || left == 0 {
                return cx.core.timers.put_off(owner.0);
            }
            left -= 1;
            // Of waits that end at the same instant, the first in the queue ends first, whichever
            // timer fired first, because it may make room for the others.
            let head = self.table[resource].queue.head().unwrap_or(waiter);
            let head_is_due = cx.core.waiters[head]
                .timer
                .is_some_and(|timer| cx.core.timers.deadline(timer) <= cx.moment);
            let gone = if head_is_due { head } else { waiter };
            let told = cx.core.waiters[gone].conn;
            self.give_up(cx, gone);
            cx.answer_parked(told, Reply::TimedOut);
            self.grant_waiting(cx, resource);
            is_current = !self.unserved.contains(resource);
        }
    }

    /// From here to [`Ctx::finish`] everything that is said is about this key.
    #[inline(always)]
    pub(super) fn begin(&self, cx: &Ctx<'_>, resource: u32) -> About {
        cx.begin(|| Some(self.table[resource].key.as_bytes()))
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

    pub(super) fn memory(&self) -> usize {
        self.table.memory()
            + self.holders.memory()
            + self.recorded.memory()
            + self.by_fence.memory()
            + self.asks.memory()
            + self.crowds.memory()
            + self.ranks.memory()
            + self.waits.memory()
            + self.ranges.memory()
            + self.tickets.memory()
            + self.lapsed.memory()
    }

    // ---- parts of the functions above and of `two_phase.rs`, in the order of a grant's life ----

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        self.table.find(self.table.hash(key), key)
    }

    /// The resource of a key, which is made if there is none. Ends leases on it that are over.
    pub(super) fn open(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        mode: Mode,
    ) -> Result<Opened, Refusal> {
        if cx.core.draining {
            return Err(Refusal::Draining);
        }
        let holds_max = match cx.core.rules.holds_max {
            0 => HOLDS_MAX,
            some => HOLDS_MAX.min(some as usize),
        };
        if self.holders.len() >= holds_max {
            return Err(Refusal::MaxLocks);
        }
        let kind = Kind::of(mode);
        let hash = self.table.hash(key);
        if let Some(resource) = self.table.find(hash, key) {
            if let Some(refusal) = self.table[resource].kind().mismatch(kind) {
                return Err(refusal);
            }
            let is_current = self.evict_expired(cx, resource);
            return Ok(Opened {
                resource,
                is_current,
            });
        }
        if cx.core.rules.locks_max != 0 && self.table.len() >= cx.core.rules.locks_max as usize {
            let (oldest, _) = self.table.oldest_idle().ok_or(Refusal::MaxLocks)?;
            self.table.remove_idle(oldest);
        }
        if cx.core.memory_full && !self.make_room_for(key) {
            return Err(Refusal::Memory);
        }
        Ok(Opened {
            resource: self.insert(cx, hash, key, kind),
            is_current: true,
        })
    }

    /// Adds a key that is about to be held.
    #[inline(always)]
    pub(super) fn insert(&mut self, cx: &mut Ctx<'_>, hash: u32, key: &[u8], kind: Kind) -> u32 {
        let resource = self.table.insert(hash, key, kind);
        if cx.core.shares.is_on() {
            cx.core.shares.note_key(resource, key);
        }
        resource
    }

    /// Whether there is room for another key in the memory that is there already. If there is none,
    /// the key that has been idle longest makes room, provided that it takes no less.
    #[cold]
    fn make_room_for(&mut self, key: &[u8]) -> bool {
        let heap_bytes = Key::heap_bytes_of(key.len());
        if heap_bytes == 0 && self.table.has_vacancy() {
            return true;
        }
        let oldest = self.table.oldest_idle().map(|(resource, _)| resource);
        match oldest.filter(|&it| self.table[it].key.heap_bytes() >= heap_bytes) {
            Some(oldest) => {
                self.table.remove_idle(oldest);
                true
            }
            None => false,
        }
    }

    /// Whether a new request can have the key now: there is room, and the queue is empty.
    pub(super) fn is_free(&self, resource: u32, held: Held) -> bool {
        self.table[resource].queue.is_empty() && self.admits(resource, held)
    }

    /// Whether there is room for this hold beside the present holders.
    pub(super) fn admits(&self, resource: u32, held: Held) -> bool {
        let it = &self.table[resource];
        match (it.kind(), held) {
            (Kind::Slots { limit }, _) => it.holders.len() < limit,
            (Kind::ReadWrite, Held::Read) => it
                .holders
                .head()
                .is_none_or(|holder| self.holders[holder].held() == Held::Read),
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
            held,
            lease,
            ticket,
        } = want;
        assert!(
            self.admits(resource, held),
            "granting {:?} to more holders than it admits",
            self.table[resource].key
        );
        let token = cx.core.fences.next();
        let deadline = cx.now.after(lease);
        let holder = self.hold(cx, resource, owner, token, (held, ticket), deadline);
        if ticket != NONE {
            self.tickets.hold(ticket, holder);
        }
        if cx.core.is_durable() {
            self.record_grant(cx, holder, lease);
        }
        cx.core.figures.granted(held);
        if cx.core.heeds_grants {
            self.heed_grant(cx, holder);
        }
        token
    }

    /// Adds a holder, whose lease ends at this instant.
    #[inline(always)]
    pub(super) fn hold(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: OwnerIndex,
        token: Token,
        (held, ticket): (Held, u32),
        deadline: Nanos,
    ) -> u32 {
        let holder = self.holders.next_index();
        let timer = cx.core.timers.arm(owner.0, deadline, Due::lease(holder));
        self.table.mark_used(resource);
        self.table.note_change(resource);
        let it = &mut self.table[resource];
        it.note_deadline(deadline);
        let by_resource = it.holders.append(&mut self.holders, holder);
        let holds = &mut cx.core.owners[owner].holds;
        let by_owner = holds.append(&mut self.holders, holder);
        let inserted = self.holders.insert(Holder {
            token,
            taken: Taken::new(cx.now, held),
            owner,
            resource,
            timer,
            ticket,
            by_resource,
            by_owner,
        });
        debug_assert_eq!(inserted, holder, "linked under another index");
        if !it.kind().is_lock() {
            self.by_fence.insert(fence_hash(token.fence), holder);
        }
        if Crowds::may_have(it.holders.len()) {
            self.note_granted(cx, holder);
        }
        holder
    }

    /// Notes what becomes of a grant, for the log and for shares: nearly always there is neither.
    #[inline(always)]
    pub(super) fn note(&self, cx: &mut Ctx<'_>, what: Noted, holder: u32) {
        if cx.core.heeds_ends || what == Noted::Broken {
            let it = &self.holders[holder];
            cx.core.shares.note(what, it.resource, it.held());
            cx.note(what, it, &self.table[it.resource].key);
        }
    }

    /// Appends a waiter to the key's queue.
    #[inline(always)] // as in `leave`
    pub(super) fn join(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: OwnerIndex,
        want: Want,
    ) -> u32 {
        let waiter = Waiter::new(owner, resource, Awaiting::Hold(want), cx.now);
        let it = &mut self.table[resource];
        cx.core.figures.joined(want.held);
        let queue = &mut it.queue;
        let waiter = cx.join(queue, waiter);
        self.ranks
            .joined(resource, queue.len(), &cx.core.waiters, waiter);
        waiter
    }

    /// Takes a waiter out of its queue.
    #[inline(always)] // a waiter is large, and would be copied from function to function
    fn leave(&mut self, cx: &mut Ctx<'_>, waiter: u32) -> Waiter {
        let resource = cx.core.waiters[waiter].subject;
        let queue = &mut self.table[resource].queue;
        let len = queue.len();
        let gone = cx.leave(queue, waiter);
        self.ranks.left(resource, len, gone.number);
        gone
    }

    /// Takes a waiter out of its queue, with its ticket if it has one. Sends no answer.
    #[inline(always)] // as in `leave`
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let gone = self.leave(cx, waiter);
        let Want { ticket, held, .. } = gone.want();
        cx.core.figures.gave_up(held);
        let share = cx.core.shares.of_key(gone.subject);
        cx.core.shares.acquired(share, held.into(), Status::Denied);
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
        if cx.core.is_named(gone.owner) {
            self.asks.gave_up(waiter);
            cx.core.forget_if_done(gone.owner);
        }
    }

    /// Grants to the head of the queue as long as there is room, and marks the key idle if nothing
    /// uses it. Called after everything that may have made room. No wait ends here before a lease of
    /// the key that was over earlier.
    ///
    /// If very many can be granted, as when a million readers wait for one writer, the rest is left
    /// over: see `unserved.rs`.
    pub(super) fn grant_waiting(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        let moment = self.unserved.begin(resource, cx.moment);
        let mut left = SERVED_MAX;
        let work_end = cx.core.work.spent() + SERVED_WORK;
        while let Some(waiter) = self.table[resource].queue.head() {
            let Waiter { conn, timer, .. } = cx.core.waiters[waiter];
            let is_present = cx.is_present(waiter);
            let until = timer.map_or(Nanos::NEVER, |timer| cx.core.timers.deadline(timer));
            let is_over = until < moment;
            if is_over && self.has_lease_until(cx, resource, until) {
                break; // it makes room for this waiter; the timers end both in their order
            }
            // At shutdown nobody is granted what it waits for: it is refused now or a moment later.
            let is_sent_away = cx.core.draining && conn != ConnIndex::NONE;
            let stays = is_present && !is_over && !is_sent_away;
            if stays && !self.admits(resource, cx.core.waiters[waiter].want().held) {
                break;
            }
            if left == 0 || cx.core.work.spent() >= work_end {
                self.unserved.insert(resource, moment);
                break;
            }
            left -= 1;
            if stays {
                self.promote(cx, resource, waiter);
            } else {
                self.give_up(cx, waiter);
                if is_present && is_over {
                    cx.reply(conn, Reply::TimedOut);
                } else if is_present {
                    cx.refuse(conn, Refusal::Draining);
                } else if conn != ConnIndex::NONE {
                    // The connection may be there, if only the client is not for which it waits.
                    cx.answer_parked(conn, Reply::Refused(Refusal::Detached));
                }
            }
        }
        self.mark_idle(cx, resource);
        #[cfg(debug_assertions)]
        self.table.check(resource);
    }

    /// Makes the head of the queue a holder.
    fn promote(&mut self, cx: &mut Ctx<'_>, resource: u32, waiter: u32) {
        cx.core.work.charge(work::GRANT);
        let it = self.leave(cx, waiter);
        let parked = it.conn != ConnIndex::NONE;
        let mut want = it.want();
        let waited_ns = cx.now.since(it.since);
        cx.core.figures.waited(want.held, waited_ns);
        let share = cx.core.shares.of_key(resource);
        cx.core.shares.waited(share, want.held.into(), waited_ns);
        if parked && want.ticket != NONE {
            self.remove_ticket(cx, want.ticket);
            want.ticket = NONE;
        }
        let holder = self.holders.next_index();
        let token = self.grant(cx, resource, it.owner, want);
        if cx.core.is_named(it.owner) {
            self.asks.granted(waiter, holder);
            self.record_request(cx, holder);
        }
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
            self.tell_of_grant(cx, resource, it.conn, want.held);
        }
    }

    /// Tells watchers and observers of a grant, once its client is told.
    pub(super) fn tell_of_grant(
        &self,
        cx: &mut Ctx<'_>,
        resource: u32,
        conn: ConnIndex,
        held: Held,
    ) {
        let key = &self.table[resource].key;
        if held == Held::Lead {
            cx.announce(Event::Elect, key.as_bytes());
            election::tell_observers(cx, Change::Elected, key, Some(conn));
        } else {
            cx.announce(Event::Acquire, key.as_bytes());
        }
    }

    /// Serves the queue for room that was made at an earlier instant.
    pub(super) fn grant_waiting_at(&mut self, cx: &mut Ctx<'_>, resource: u32, moment: Nanos) {
        let present = std::mem::replace(&mut cx.moment, moment);
        self.grant_waiting(cx, resource);
        cx.moment = present;
    }

    /// Removes a grant, with its ticket if it still has one. Grants to no waiter: `grant_waiting`
    /// does.
    pub(super) fn remove_holder(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let Holder {
            token,
            taken,
            owner,
            resource,
            timer,
            ticket,
            by_resource,
            by_owner,
        } = self.holders[holder];
        if cx.core.is_durable() {
            self.record_end(cx, holder);
        }
        if Crowds::may_have(self.table[resource].holders.len()) {
            self.note_ending(cx, holder);
        }
        self.table.note_change(resource);
        let it = &mut self.table[resource];
        it.holders.cut(&mut self.holders, by_resource);
        if it.holders.is_empty() {
            it.set_soonest(Nanos::NEVER);
        }
        let is_lock = it.kind().is_lock();
        let held_ns = cx.now.since(taken.since());
        cx.core.figures.ended(taken.held(), held_ns);
        if !is_lock {
            self.by_fence.remove(fence_hash(token.fence), holder);
        }
        cx.core.owners[owner].holds.cut(&mut self.holders, by_owner);
        cx.core.timers.cancel(owner.0, timer);
        if ticket != NONE {
            self.remove_ticket(cx, ticket);
        }
        self.holders.remove(holder);
        if cx.core.owners[owner].presence != Presence::Here {
            self.note_end(cx, owner, holder);
        }
    }

    /// A grant has ended of an owner that is no connection any more, or never was.
    #[cold]
    fn note_end(&mut self, cx: &mut Ctx<'_>, owner: OwnerIndex, holder: u32) {
        if cx.core.is_named(owner) {
            self.asks.ended(holder);
        }
        cx.core.forget_if_done(owner);
    }

    pub(super) fn find_holder(&self, key: &[u8], token: Option<Token>) -> Option<(u32, u32)> {
        let token = token?;
        let (resource, holder) = self.find_candidate(key, token.fence)?;
        // Compares both words at once, so that the time it takes does not tell how close a guess
        // was.
        let held = self.holders[holder].token;
        let difference = (held.fence.0 ^ token.fence.0) | (held.salt ^ token.salt);
        (difference == 0).then_some((resource, holder))
    }

    /// The grant of this key with this fence.
    pub(super) fn find_by_fence(&self, key: &[u8], fence: Fence) -> Option<(u32, u32)> {
        let found = self.find_candidate(key, fence)?;
        (self.holders[found.1].token.fence == fence).then_some(found)
    }

    /// The only grant of this key that can have this fence.
    #[inline(always)]
    fn find_candidate(&self, key: &[u8], fence: Fence) -> Option<(u32, u32)> {
        let resource = self.find(key)?;
        let it = &self.table[resource];
        let holder = if it.kind().is_lock() {
            it.holders.head()?
        } else {
            self.by_fence.find(fence_hash(fence), |holder| {
                let it = &self.holders[holder];
                it.resource == resource && it.token.fence == fence
            })?
        };
        Some((resource, holder))
    }

    /// Whether the owner holds the key. Never walks far, because a key with very many holders has a
    /// record of its crowd.
    pub(super) fn holds(&self, cx: &mut Ctx<'_>, owner: OwnerIndex, resource: u32) -> bool {
        if let Some(crowd) = self.crowds.get(resource) {
            return crowd.has(owner);
        }
        let holders = &self.table[resource].holders;
        debug_assert!(holders.len() <= WALK_MAX, "a crowd without a record");
        cx.core.work.charge_each(holders.len(), work::LOOK);
        holders
            .iter(&self.holders)
            .any(|holder| self.holders[holder].owner == owner)
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

/// Refuses a request to hold something.
pub(super) fn deny(cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8], mode: Mode, why: Refusal) {
    cx.note_denied(key, mode);
    cx.refuse(conn, why);
}

/// The resource of a request.
pub(super) struct Opened {
    pub(super) resource: u32,
    /// Whether all leases that are over have ended, and everyone who can be granted is. If not, a
    /// request that would be refused for want of room is put off.
    pub(super) is_current: bool,
}

/// Clients do not choose fences, and fences are consecutive, so one multiplication spreads them
/// well enough.
fn fence_hash(fence: Fence) -> u32 {
    (fence.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
