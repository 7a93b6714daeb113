//! Who waits for whom, and what is done about those who would wait for themselves.
//!
//! The graph is never stored: it is read off the holders and queues of the table when a request is about
//! to wait, so no edge of it can be out of date. A request that would close a cycle is refused with
//! `error_deadlock`, and nobody else notices. Requests are looked at only if their connection has asked
//! for it, or the operator for all: to everybody else this costs one branch when they wait.
//!
//! Nearly always nobody waits for anything that the one who asks has, and that is seen at once. Otherwise
//! `waits/search.rs` looks whether the wait can end. A search that takes more than some milliseconds
//! goes on when time passes, while the request waits in its queue; if something was released, granted or
//! left meanwhile it begins anew, a few times. `waits/edges.rs` shows the graph to people.

pub(super) mod edges;
mod range_search;
mod search;

use std::collections::VecDeque;

use self::range_search::OfOrder;
use self::search::{Search, Verdict};
use super::arena::NONE;
use super::conn::{Asker, ConnIndex};
use super::ctx::{Core, Ctx};
use super::due::Due;
use super::holder::{Held, Holder};
use super::lock::Locks;
use super::owner::{Owner, OwnerIndex};
use super::queue::{Awaiting, Waiter, Want};
use super::ranges::{RangeWant, Ranges};
use super::shares::Status;
use super::table::Resource;
use super::types::{Refusal, Reply};
use super::work;
use crate::base::{ConnId, Millis, Nanos};
use crate::timers::TimerId;

/// How far a search for a deadlock goes. Operators do not set this; tests make it small.
#[derive(Clone, Copy, Debug)]
pub struct SearchLimits {
    /// What a request may spend on it before it waits, in units of work: three milliseconds or so, in
    /// which ten thousand who wait for each other in a chain are looked at.
    pub at_once_work: u64,
    /// How often a search that goes on when time passes begins, before it is given up.
    pub tries_max: u32,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self {
            at_once_work: 3_500_000,
            tries_max: 8,
        }
    }
}

/// Most requests that wait for a search which goes on when time passes. One more is not looked at.
const PENDING_MAX: usize = 1_024;

/// Most holds of the one who asks that are looked at to see that nobody waits for them.
const HOLDS_LOOKED_AT_MAX: u32 = 32;

/// Most of those who wait for a grant that are looked at when it gets an owner.
const LOOKED_AT_MAX: usize = 4_096;

/// The least that a search does when time passes.
const STEPS_MIN: u64 = 64;

/// Searches that go on when time passes.
#[derive(Default)]
pub(super) struct Waits {
    /// Requests that wait in their queues meanwhile. The first is being looked at.
    pending: VecDeque<Pending>,
    search: Option<Box<Search>>,
    /// How often it has begun, and what [`Locks::endings`] was then.
    tries: u32,
    endings: u64,
    /// Runs while something is pending.
    timer: Option<TimerId>,
    /// A search of another kind: see [`Locks::is_kept_by_order`].
    of_order: Option<Box<OfOrder>>,
}

/// A parked command whose wait is still to be looked at.
#[derive(Clone, Copy)]
struct Pending {
    conn: ConnId,
    waiter: u32,
    /// Of the waiter, whose index another may have by now.
    since: Nanos,
}

impl Waits {
    pub(super) fn memory(&self) -> usize {
        self.pending.capacity() * size_of::<Pending>()
            + self.search.as_ref().map_or(0, |it| it.memory())
            + self.of_order.as_ref().map_or(0, |it| it.memory())
    }

    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }
}

/// Somebody who holds and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    /// A connection with what it has of its own, a client, or an owner that is known by its name.
    Owner(OwnerIndex),
    /// Somebody for whom a client locks bytes. A client that serves many waits for each of them apart; but
    /// a connection that is its own client is one, whatever names it gives, since it can do nothing else
    /// while it waits.
    OwnerOfRanges(u32),
}

impl Party {
    /// A number that no other has.
    fn number(self) -> u64 {
        match self {
            Self::Owner(OwnerIndex(owner)) => owner.into(),
            Self::OwnerOfRanges(owner) => 1 << 32 | u64::from(owner),
        }
    }
}

/// The wait that is asked about.
#[derive(Clone, Copy)]
struct Asked {
    party: Party,
    /// The connection that waits. It may do so for a client, and cannot let go of what it has of its own
    /// meanwhile.
    conn: Party,
    what: AskedFor,
    /// Its place in the queue; `NONE` if it would be the last one.
    waiter: u32,
}

/// What it is for.
#[derive(Clone, Copy)]
enum AskedFor {
    Key {
        resource: u32,
        hold: Held,
    },
    Range {
        range: AskedRange,
        /// Whether those before it in the queue count as well as those who hold the bytes.
        counts_queue: bool,
    },
}

/// A wait for bytes.
#[derive(Clone, Copy)]
pub(super) struct AskedRange {
    pub(super) resource: u32,
    /// What the owner holds of the resource, or `NONE`.
    pub(super) holding: u32,
    pub(super) wants: RangeWant,
    /// Its place in the queue; `NONE` if it would be the last one.
    pub(super) waiter: u32,
}

/// The table as it is, to be looked at.
struct Live<'e> {
    locks: &'e Locks,
    core: &'e Core,
    /// What is over at this instant ends, even if its timer has not fired.
    moment: Nanos,
}

impl<'e> Live<'e> {
    /// The waiters of the commands that keep this party from going on, as far as they wait for keys or
    /// bytes. Everything else (a value, a barrier) can come from anybody. A connection is kept by the command
    /// that it is parked in, whomever that is for: so a wait for a client may be one of two parties.
    fn waits_of(&self, party: Party) -> impl Iterator<Item = u32> {
        let (owner, of_ranges) = match party {
            Party::Owner(owner) => (Some(owner), self.own_range_wait(owner)),
            Party::OwnerOfRanges(owner) => (None, self.locks.ranges.owner(owner).waiter),
        };
        let of_ranges = Some(of_ranges).filter(|&it| it != NONE && self.is_waiting(it));
        let of_keys = owner.map(|owner| self.parked_waits_of(owner));
        of_ranges.into_iter().chain(of_keys.into_iter().flatten())
    }

    /// The wait for bytes of a client for itself, or `NONE`. A connection that has none is among the
    /// others.
    fn own_range_wait(&self, owner: OwnerIndex) -> u32 {
        let it = &self.core.owners[owner];
        match it.has_ranges && it.client != NONE {
            true => {
                let ranges = &self.locks.ranges;
                let own = ranges.find_owner(owner, b"");
                own.map_or(NONE, |own| ranges.owner(own).waiter)
            }
            false => NONE,
        }
    }

    fn parked_waits_of(&self, owner: OwnerIndex) -> impl Iterator<Item = u32> {
        let it = &self.core.owners[owner];
        let own = match it.conn {
            ConnIndex::NONE => NONE,
            conn => self.core.conns[conn].parked,
        };
        let own = (own != NONE).then_some(own);
        let asks = it.is_named().then(|| self.locks.asks.waiting(owner));
        let of_client = (it.client != NONE).then(|| self.core.parked_of_client(it.client));
        let several = asks.into_iter().flatten();
        let several = several.chain(of_client.into_iter().flatten());
        let waiters = own.into_iter().chain(several);
        let is_client = it.client != NONE;
        let is_counted = move |awaiting| !(is_client && matches!(awaiting, Awaiting::Range(_)));
        waiters.filter(move |&waiter| {
            self.is_waiting(waiter) && is_counted(self.core.waiters[waiter].awaiting)
        })
    }

    fn party_of_ranges(&self, owner: u32) -> Party {
        party_of_ranges(self.core, &self.locks.ranges, owner)
    }

    /// The connection that waits here for somebody else, if it has something of its own: it acquired that
    /// before it attached to the client that it waits for.
    fn other_party_of(&self, waiter: u32) -> Option<Party> {
        let it = &self.core.waiters[waiter];
        let own = match it.conn {
            ConnIndex::NONE => return None,
            conn => self.core.conns[conn].own,
        };
        let has_something = own != it.owner && !self.core.owners[own].owns_nothing();
        has_something.then_some(Party::Owner(own))
    }

    /// How many more connections than one [`Live::waits_of`] looks at.
    fn looks_at_waits(&self, party: Party) -> u32 {
        let Party::Owner(owner) = party else {
            return 0;
        };
        let Owner { client, waits, .. } = self.core.owners[owner];
        let looks = match client {
            NONE => waits,
            client => self.core.connections_of_client(client),
        };
        looks.saturating_sub(1)
    }

    /// Whether a command is parked on this waiter, and it wants a key or bytes, and its time is not over.
    fn is_waiting(&self, waiter: u32) -> bool {
        let Waiter {
            timer, awaiting, ..
        } = self.core.waiters[waiter];
        let has_time = timer.is_some_and(|it| self.core.timers.deadline(it) > self.moment);
        let is_counted = matches!(awaiting, Awaiting::Hold(_) | Awaiting::Range(_));
        has_time && is_counted && self.is_present(waiter)
    }

    /// Whether whoever waits here is told of a deadlock: always if it waits for bytes, else if it has asked.
    fn is_told(&self, waiter: u32) -> bool {
        let Waiter { awaiting, conn, .. } = self.core.waiters[waiter];
        let has_asked = || conn != ConnIndex::NONE && self.core.conns[conn].detects_deadlocks;
        let is_range = matches!(awaiting, Awaiting::Range(_));
        is_range || self.core.rules.deadlock_detection || has_asked()
    }

    /// Whether it can still be served. Whoever has hung up leaves its queue.
    fn is_present(&self, waiter: u32) -> bool {
        self.core.is_present(waiter)
    }

    fn key(&self, resource: u32) -> &'e Resource {
        &self.locks.table[resource]
    }

    fn holder(&self, holder: u32) -> &'e Holder {
        &self.locks.holders[holder]
    }

    fn holder_after(&self, holder: u32) -> Option<u32> {
        self.holder(holder).by_resource.next()
    }

    /// Whether the lease of this holder is over.
    fn is_over(&self, holder: u32) -> bool {
        self.core.timers.deadline(self.holder(holder).timer) <= self.moment
    }

    fn waiter_after(&self, waiter: u32) -> Option<u32> {
        self.core.waiters[waiter].behind()
    }

    /// Whose place this is, and what it is for.
    fn entry(&self, waiter: u32) -> (Party, Held) {
        let it = &self.core.waiters[waiter];
        (Party::Owner(it.owner), it.want().held)
    }

    /// The key, and the number in its queue.
    fn place_of(&self, waiter: u32) -> (u32, u64) {
        let it = &self.core.waiters[waiter];
        (it.subject, it.number)
    }
}

fn party_of_ranges(core: &Core, ranges: &Ranges, owner: u32) -> Party {
    let it = ranges.owner(owner);
    match core.owners[it.client].client != NONE && !it.name.is_empty() {
        true => Party::OwnerOfRanges(owner),
        false => Party::Owner(it.client),
    }
}

/// The connection, as somebody with what it has of its own.
fn party_of_conn(core: &Core, conn: ConnIndex) -> Party {
    Party::Owner(core.conns[conn].own)
}

impl Ctx<'_> {
    /// Whether a request of this connection is looked at before it waits.
    #[inline(always)]
    pub(super) fn detects_deadlocks(&self, conn: ConnIndex) -> bool {
        self.core.rules.deadlock_detection | self.core.conns[conn].detects_deadlocks
    }
}

impl Locks {
    /// An acquire is about to wait: it does, unless it would wait for itself.
    #[cold]
    #[inline(never)] // or everybody who acquires would pay for its variables
    pub(super) fn join_unless_deadlock(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        resource: u32,
        want: Want,
        wait: Millis,
    ) {
        let verdict = self.look_at_once(cx, asker, resource, want.held, NONE);
        if verdict == Some(Verdict::Deadlock) {
            cx.core.figures.denied(want.held);
            let share = cx.core.shares.of_key(resource);
            let shares = &mut cx.core.shares;
            shares.acquired(share, want.held.into(), Status::Denied);
            cx.note_deadlock(resource, want.held);
            return cx.refuse(asker.conn, Refusal::Deadlock);
        }
        let waiter = self.join(cx, resource, asker.owner, want);
        cx.park(waiter, asker.conn, wait);
        if verdict.is_none() {
            self.look_later(cx, waiter);
        }
    }

    /// A ticket is about to be waited for: it is, unless its owner would wait for itself. Then it leaves
    /// the queue, as when its time is over.
    #[cold]
    #[inline(never)] // or everybody who acquires would pay for its variables
    pub(super) fn park_unless_deadlock(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        waiter: u32,
        wait: Millis,
    ) {
        let resource = cx.core.waiters[waiter].subject;
        let hold = cx.core.waiters[waiter].want().held;
        let verdict = self.look_at_once(cx, asker, resource, hold, waiter);
        if verdict == Some(Verdict::Deadlock) {
            self.give_up(cx, waiter);
            cx.note_deadlock(resource, hold);
            cx.refuse(asker.conn, Refusal::Deadlock);
            return self.grant_waiting(cx, resource);
        }
        cx.park(waiter, asker.conn, wait);
        if verdict.is_none() {
            self.look_later(cx, waiter);
        }
    }

    /// Whether the owner may wait for this key, as far as can be told at once.
    fn look_at_once(
        &self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        resource: u32,
        hold: Held,
        waiter: u32,
    ) -> Option<Verdict> {
        if self.has_nobody_behind(cx, asker.owner, resource, waiter) {
            return Some(Verdict::MayWait);
        }
        let asked = Asked {
            party: Party::Owner(asker.owner),
            conn: party_of_conn(cx.core, asker.conn),
            what: AskedFor::Key { resource, hold },
            waiter,
        };
        self.search_at_once(cx, asked)
    }

    fn search_at_once(&self, cx: &mut Ctx<'_>, asked: Asked) -> Option<Verdict> {
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.moment,
        };
        let steps = cx.core.rules.search_limits.at_once_work / work::FOLLOW;
        let mut left = steps;
        let verdict = Search::new(&live, asked).go_on(&live, &mut left);
        cx.core.work.charge((steps - left) * work::FOLLOW);
        verdict
    }

    /// Whether it is easy to see that nobody waits for anything that the owner holds or stands in a queue
    /// for: then nobody waits for the owner, and it cannot wait for itself.
    fn has_nobody_behind(
        &self,
        cx: &mut Ctx<'_>,
        owner: OwnerIndex,
        asked: u32,
        waiter: u32,
    ) -> bool {
        let it = &cx.core.owners[owner];
        // A connection of a client may have something of its own, too. Who waits for bytes is not as easy
        // to see.
        if it.client != NONE || it.has_ranges {
            return false;
        }
        // One that is known by its name counts as waiting while it is served. The place that is to be
        // waited for is in nobody's way if it is the last one.
        let is_last = waiter != NONE && cx.core.waiters[waiter].behind().is_none();
        let waits = u32::from(it.is_named()) + u32::from(is_last);
        if it.waits > waits || it.holds.len() > HOLDS_LOOKED_AT_MAX {
            return false;
        }
        cx.core.work.charge_each(it.holds.len(), work::LOOK);
        it.holds.iter(&self.holders).all(|holder| {
            let resource = self.holders[holder].resource;
            resource != asked && self.table[resource].queue.is_empty()
        })
    }

    /// A grant that was nobody's has an owner from now on. If that waits, on another connection, those who
    /// wait for the grant may wait for themselves: whoever is told of deadlocks is looked at, the owner first.
    #[cold]
    pub(super) fn look_at_those_behind_bound(&mut self, cx: &mut Ctx<'_>, holder: u32) {
        let Holder {
            resource, owner, ..
        } = self.holders[holder];
        let party = Party::Owner(owner);
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.moment,
        };
        let mut waiting: Vec<u32> = live.waits_of(party).collect();
        let mut looks = 1 + live.looks_at_waits(party);
        if !waiting.is_empty() {
            let queue = live.key(resource).queue.iter(&cx.core.waiters);
            let queue: Vec<u32> = queue.take(LOOKED_AT_MAX).collect();
            looks += queue.len() as u32;
            waiting.extend(queue);
        }
        waiting.retain(|&waiter| live.is_waiting(waiter) && live.is_told(waiter));
        cx.core.work.charge_each(looks, work::LOOK);
        for waiter in waiting {
            self.look_later(cx, waiter);
        }
    }

    /// The search was not over in time: it is done when time passes.
    pub(super) fn look_later(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter { conn, since, .. } = cx.core.waiters[waiter];
        let conn = cx.core.conns[conn].id;
        let it = &mut self.waits;
        if let Some(at) = it.pending.iter().position(|it| it.conn == conn) {
            it.pending.remove(at); // it waits for something else by now
            if at == 0 {
                (it.search, it.tries) = (None, 0);
            }
        }
        if it.pending.len() == PENDING_MAX {
            return cx.core.figures.search_given_up();
        }
        it.pending.push_back(Pending {
            conn,
            waiter,
            since,
        });
        if it.timer.is_none() {
            it.timer = Some(cx.core.background.arm(cx.now, Due::SEARCHES));
        }
    }

    /// Passes the place of a parked command to another connection, which waits this long from now.
    /// The connection before is told that its wait is over. A deferred search goes on for the new one.
    ///
    /// The new connection cannot release what it holds of its own while it waits, and earlier
    /// searches took a wait that was over for ended. In both cases the wait is searched again.
    pub(super) fn pass_place_to(
        &mut self,
        cx: &mut Ctx<'_>,
        waiter: u32,
        conn: ConnIndex,
        wait: Millis,
    ) {
        let it = &mut cx.core.waiters[waiter];
        let (owner, since, before) = (it.owner, it.since, it.conn);
        let timer = it.timer.take().expect("a command is parked on it");
        let was_over = cx.core.timers.deadline(timer) <= cx.moment;
        cx.core.timers.cancel(owner.0, timer);
        cx.core.conns[before].parked = NONE;
        cx.answer_parked(before, Reply::TimedOut);
        cx.core.waiters[waiter].conn = ConnIndex::NONE;
        cx.park(waiter, conn, wait);
        let [before, now] = [before, conn].map(|it| cx.core.conns[it].id);
        let is_it = |it: &&mut Pending| (it.conn, it.waiter, it.since) == (before, waiter, since);
        if let Some(it) = self.waits.pending.iter_mut().find(is_it) {
            it.conn = now;
        }
        self.ranges.changes += 1; // the connection before can release what it holds of its own
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.moment,
        };
        if live.is_told(waiter) && (was_over || live.other_party_of(waiter).is_some()) {
            self.look_later(cx, waiter);
        }
    }

    /// Goes on with searches, until so much is spent.
    pub(super) fn go_on_searching(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        self.waits.timer = None;
        // Leases and waits that are over end first, so that nobody is taken to wait for them.
        let is_current = cx.core.timers.next_deadline().is_none_or(|it| it > cx.now);
        while is_current && let Some(&pending) = self.waits.pending.front() {
            match self.go_on_with(cx, pending, slice_end) {
                Progress::More => break,
                Progress::Over => {}
                Progress::Deadlock => self.refuse_parked(cx, pending.waiter),
            }
            self.waits.pending.pop_front();
            (self.waits.search, self.waits.tries) = (None, 0);
            if cx.core.work.spent() >= slice_end {
                break;
            }
        }
        if !self.waits.pending.is_empty() {
            self.waits.timer = Some(cx.core.background.arm(cx.now, Due::SEARCHES));
        }
    }

    fn go_on_with(&mut self, cx: &mut Ctx<'_>, pending: Pending, slice_end: u64) -> Progress {
        let Pending {
            conn,
            waiter,
            since,
        } = pending;
        let parked = cx.core.conns.find(conn);
        let parked = parked.map_or(NONE, |it| cx.core.conns[it].parked);
        if parked != waiter || cx.core.waiters[waiter].since != since || cx.core.draining {
            return Progress::Over; // it does not wait any more
        }
        let endings = self.endings(cx);
        let mut search = self.waits.search.take();
        if self.waits.endings != endings {
            search = None;
        }
        let has_begun = search.is_some();
        if !has_begun && self.waits.tries == cx.core.rules.search_limits.tries_max {
            cx.core.figures.search_given_up();
            return Progress::Over;
        }
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.now,
        };
        let mut search = search.unwrap_or_else(|| {
            let asked = live.asked_of(waiter);
            Box::new(Search::new(&live, asked))
        });
        let steps = slice_end.saturating_sub(live.core.work.spent()) / work::FOLLOW;
        let steps = steps.max(STEPS_MIN);
        let mut left = steps;
        let verdict = search.go_on(&live, &mut left);
        cx.core.work.charge((steps - left) * work::FOLLOW);
        self.waits.tries += u32::from(!has_begun);
        (self.waits.search, self.waits.endings) = (Some(search), endings);
        match verdict {
            None => Progress::More,
            Some(Verdict::MayWait) => Progress::Over,
            Some(Verdict::Deadlock) => Progress::Deadlock,
        }
    }

    /// How often somebody has let something go, was granted what it waited for, or has left a queue. While
    /// this stays the same, what a search has seen is still there: whoever comes to wait meanwhile is
    /// looked at itself.
    fn endings(&self, cx: &Ctx<'_>) -> u64 {
        let ends = cx.core.figures.ends();
        let left_queues = Held::ALL.map(|it| cx.core.figures.of(it).left_queues());
        ends + left_queues.iter().sum::<u64>() + cx.core.hang_ups + self.ranges.changes
    }

    /// A command that is parked already waits for itself.
    fn refuse_parked(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter {
            conn,
            subject,
            awaiting,
            ..
        } = cx.core.waiters[waiter];
        if let Awaiting::Range(_) = awaiting {
            return self.refuse_parked_range(cx, waiter);
        }
        let about = self.begin(cx, subject);
        let hold = cx.core.waiters[waiter].want().held;
        self.give_up(cx, waiter);
        cx.note_deadlock(subject, hold);
        cx.core.figures.refused(Refusal::Deadlock);
        cx.answer_parked(conn, Reply::Refused(Refusal::Deadlock));
        self.grant_waiting(cx, subject);
        cx.finish(about);
    }
}

/// How far a search has got.
enum Progress {
    More,
    /// Its request may wait, or does not any more, or the search was given up.
    Over,
    Deadlock,
}
