//! Byte ranges of resources: locks, waits, and the order in which waiters are served.
//!
//! - An *owner* is a session and a name that it gives to the party it locks for; without a name it
//!   locks for itself. Each owner has each byte at most once, shared or exclusive (`segments.rs`).
//! - Two locks exclude each other if they overlap, belong to different owners, and one of them is
//!   exclusive.
//! - A lock that nothing excludes is granted. One that may not wait is refused otherwise. One that
//!   waits also stands behind earlier waiters that want the same bytes, unless its owner has some
//!   of the bytes, or the order of the queue alone would keep it waiting for itself.
//! - After everything that may free bytes the queue of the resource is gone through from its head.
//! - An owner waits for one thing at a time. A request for the same thing again takes over its
//!   place.
//! - The locks of a session end with it. An operator can end them earlier: that is one step, and
//!   nothing is granted before it is done.
//!
//! Waits are in `queue.rs`, how locks end otherwise than by an unlock in `ending.rs`, and what a
//! restart brings back in `grace.rs`.

mod ending;
mod grace;
mod queue;
mod segments;
mod shown;

use std::collections::BTreeMap;

use latchd::base::{ConnId, Millis};
use latchd::engine::types::{
    ByteRange, HeldRange, OfClient, RangeAsk, RangeGrant, RangeRequest, Record, Refusal, Reply,
    Sharing,
};
use latchd::key::Key;

use self::segments::Segment;
pub use self::shown::ShownRange;
use crate::record::Mark;
use crate::{Awaits, Kind, Model, Name, SessionId, Waiter, WaiterId};

/// All owners of bytes, and the grace period.
#[derive(Default)]
pub(crate) struct Ranges {
    /// There while they hold or wait for something, in the order in which they came.
    owners: Vec<OwnerOfBytes>,
    /// Resources with waiters that are still to be looked at.
    to_serve: Vec<Name>,
    /// The last number that was given to a lock, as the model numbers them.
    last_id: u64,
    /// In which input a number was given, and which number the engine gave, once that is known.
    ids: BTreeMap<u64, (u64, Option<u64>)>,
    grace: Option<grace::Grace>,
}

/// A party that a session locks bytes for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub session: SessionId,
    /// Empty for the session itself.
    pub name: Name,
}

/// What such a party has.
struct OwnerOfBytes {
    owner: Owner,
    /// By resource, in the order in which it got them.
    holdings: Vec<(Name, Vec<Segment>)>,
}

/// Bytes that are wanted: what a waiter for bytes waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RangeWait {
    pub resource: Name,
    pub owner: Owner,
    pub range: ByteRange,
    pub mode: Sharing,
}

impl RangeWait {
    /// Whether a lock of this owner is in the way.
    fn is_excluded_by(&self, owner: &Owner, range: ByteRange, mode: Sharing) -> bool {
        let is_exclusive = [self.mode, mode].contains(&Sharing::Exclusive);
        *owner != self.owner && is_exclusive && range.overlaps(self.range)
    }
}

/// What is in the way of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTheWay {
    Nothing,
    /// Only earlier waiters.
    Queue,
    /// Another owner has some of the bytes.
    Holder,
}

impl Model {
    /// A request about ranges.
    pub(crate) fn range(
        &mut self,
        conn: ConnId,
        of: Option<OfClient<'_>>,
        request: &RangeRequest<'_>,
    ) {
        let mut session = self.meet(conn).session;
        if let Some(of) = of {
            match self.speak_for(of) {
                Ok(Some(client)) => session = client,
                Ok(None) => return self.put_off(conn),
                Err(why) => return self.refuse(conn, why),
            }
        }
        self.about = Some(request.resource.to_vec());
        let span = request.ask.span();
        let Some(range) = ByteRange::new(span.start, span.len) else {
            return self.refuse(conn, Refusal::BadRange);
        };
        let name = request.owner.to_vec();
        let want = |mode| RangeWait {
            resource: request.resource.to_vec(),
            owner: Owner { session, name },
            range,
            mode,
        };
        match request.ask {
            RangeAsk::Lock { mode, wait, .. } => self.lock_range(conn, want(mode), wait),
            RangeAsk::Unlock { .. } => self.unlock_range(conn, want(Sharing::Exclusive)),
            RangeAsk::Test { mode, .. } => self.test_range(conn, want(mode)),
            RangeAsk::Cancel { mode, .. } => self.cancel_range(conn, want(mode)),
            RangeAsk::Reclaim { mode, .. } => self.reclaim_range(conn, want(mode)),
        }
    }

    // ---- what is asked ----

    fn lock_range(&mut self, conn: ConnId, want: RangeWait, wait: Millis) {
        if self.storage_full && self.is_kept_client(want.owner.session) {
            // A repeated request for bytes that are held changes nothing and takes no room.
            return match self.has_exactly(&want) {
                true => self.reply(conn, Reply::Done),
                false => self.refuse(conn, Refusal::Storage),
            };
        } else if self.draining {
            return self.refuse(conn, Refusal::Draining);
        }
        let wait = match self.rules.range_wait_max {
            Millis::ZERO => wait,
            most => wait.min(most),
        };
        if let Some(waiter) = self.range_wait_of(&want.owner) {
            return self.ask_again_for_range(conn, want, wait, waiter);
        }
        if let Some(left) = self.withheld(&want) {
            return self.reply(conn, Reply::InGrace(left));
        }
        let may_wait = wait > Millis::ZERO;
        let before = if may_wait {
            self.queue_of(&want.resource)
        } else {
            Vec::new()
        };
        let is_let_pass =
            || self.order_would_deadlock(conn, &want, &before) && !self.is_searched_later(conn);
        match self.in_the_way(&want, &before) {
            InTheWay::Nothing => {}
            _ if !may_wait => return self.reply(conn, Reply::TimedOut),
            InTheWay::Holder if self.range_would_deadlock(conn, &want, &before) => {
                return self.refuse(conn, Refusal::Deadlock);
            }
            InTheWay::Queue if is_let_pass() => {}
            InTheWay::Holder | InTheWay::Queue => return self.wait_for_range(conn, want, wait),
        }
        if let Some(why) = self.has_no_room_for_range(&want) {
            return self.refuse(conn, why);
        }
        self.grant_range(&want);
        self.reply(conn, Reply::Done);
        self.serve_ranges(&want.resource);
    }

    /// Unlocks what the owner has of the bytes. It does not want them any more either.
    fn unlock_range(&mut self, conn: ConnId, want: RangeWait) {
        let own = self.held_of(&want.owner, &want.resource);
        let mut left = own.to_vec();
        segments::unlock(&mut left, want.range, 0);
        if left.len() > own.len()
            && let Some(why) = self.has_no_room_to_split(want.owner.session)
        {
            return self.refuse(conn, why);
        }
        self.clear_range(&want.owner, &want.resource, want.range);
        self.reply(conn, Reply::Done);
        if let Some(waiter) = self.range_wait_of(&want.owner)
            && let waits = self.range_wait(waiter)
            && (&waits.resource, waits.range) == (&want.resource, want.range)
        {
            self.end_range_wait(waiter, Reply::TimedOut);
        }
        self.serve_ranges(&want.resource);
    }

    /// Of several that are in the way: the one with the lowest first byte, then the oldest.
    fn test_range(&mut self, conn: ConnId, want: RangeWait) {
        let in_the_way = self.holders_in_the_way(&want);
        let order = |it: &(Owner, Segment)| (it.1.range.start(), it.1.since);
        let first = in_the_way.iter().map(order).min();
        let told = in_the_way.iter().filter(|it| Some(order(it)) == first);
        let told = told.map(|(owner, it)| {
            Reply::RangeHeld(Box::new(HeldRange {
                mode: it.mode,
                range: it.range,
                client: self.called_in_lists(owner.session).into(),
                owner: Key::from(&owner.name[..]),
                pending: it.pending,
            }))
        });
        let told: Vec<Reply> = told.collect();
        // If several are as old, the engine may tell of any of them.
        let seen = told.iter().find(|it| self.seen_answer(conn) == Some(it));
        let reply = seen
            .or_else(|| told.first())
            .cloned()
            .unwrap_or(Reply::RangeFree);
        self.reply(conn, reply);
    }

    /// Exactly one of three: the wait has ended, or the bytes are held, or neither.
    fn cancel_range(&mut self, conn: ConnId, want: RangeWait) {
        if let Some(waiter) = self.range_wait_of(&want.owner)
            && *self.range_wait(waiter) == want
        {
            self.reply(conn, Reply::Cancelled);
            self.end_range_wait(waiter, Reply::TimedOut);
            return self.serve_ranges(&want.resource);
        }
        let own = self.held_of(&want.owner, &want.resource);
        let reply = match segments::covers(own, want.range, want.mode, false) {
            true => Reply::AlreadyGranted,
            false => Reply::Nothing,
        };
        self.reply(conn, reply);
    }

    // ---- looking ----

    /// What the owner has of a resource.
    fn held_of(&self, owner: &Owner, resource: &[u8]) -> &[Segment] {
        let it = self.ranges.owners.iter().find(|it| it.owner == *owner);
        let mut holdings = it.iter().flat_map(|it| &it.holdings);
        holdings.find(|it| it.0 == resource).map_or(&[], |it| &it.1)
    }

    /// All locks: whose, of which resource.
    fn all_held(&self) -> impl Iterator<Item = (&Owner, &Name, &Segment)> {
        self.ranges
            .owners
            .iter()
            .flat_map(|OwnerOfBytes { owner, holdings }| {
                let all = holdings
                    .iter()
                    .flat_map(|(resource, own)| own.iter().map(move |it| (resource, it)));
                all.map(move |(resource, it)| (owner, resource, it))
            })
    }

    /// Those of other owners that exclude this.
    pub(crate) fn holders_in_the_way(&self, want: &RangeWait) -> Vec<(Owner, Segment)> {
        let in_the_way = self.all_held().filter(|(owner, resource, it)| {
            **resource == want.resource && want.is_excluded_by(owner, it.range, it.mode)
        });
        in_the_way
            .map(|(owner, _, it)| (owner.clone(), *it))
            .collect()
    }

    /// The waiters of a resource, in the order in which they came.
    pub(crate) fn queue_of(&self, resource: &[u8]) -> Vec<WaiterId> {
        let queue = self.waiters.iter().filter(|it| match &it.what {
            Awaits::Range(want) => want.resource == resource,
            _ => false,
        });
        queue.map(|it| it.id).collect()
    }

    /// Those of some waiters that exclude this, and can be served.
    pub(crate) fn waiters_in_the_way(&self, want: &RangeWait, before: &[WaiterId]) -> Vec<Owner> {
        let before = before.iter().filter_map(|&it| self.waiter(it));
        let before = before
            .filter(|it| self.is_present(it))
            .map(|it| self.range_wait(it.id));
        let in_the_way = before.filter(|it| want.is_excluded_by(&it.owner, it.range, it.mode));
        in_the_way.map(|it| it.owner.clone()).collect()
    }

    /// Whether the owner has some of the bytes: then it does not stand behind others.
    pub(crate) fn converts(&self, want: &RangeWait) -> bool {
        let own = self.held_of(&want.owner, &want.resource);
        own.iter().any(|it| it.range.overlaps(want.range))
    }

    pub(crate) fn in_the_way(&self, want: &RangeWait, before: &[WaiterId]) -> InTheWay {
        if !self.holders_in_the_way(want).is_empty() {
            InTheWay::Holder
        } else if self.converts(want) || self.waiters_in_the_way(want, before).is_empty() {
            InTheWay::Nothing
        } else {
            InTheWay::Queue
        }
    }

    /// Where the owner waits.
    fn range_wait_of(&self, owner: &Owner) -> Option<WaiterId> {
        let is_it = |it: &&Waiter| matches!(&it.what, Awaits::Range(want) if want.owner == *owner);
        self.waiters.iter().find(is_it).map(|it| it.id)
    }

    /// What a waiter for bytes waits for.
    pub(crate) fn range_wait(&self, waiter: WaiterId) -> &RangeWait {
        match self.waiter(waiter).map(|it| &it.what) {
            Some(Awaits::Range(want)) => want,
            other => unreachable!("waits for {other:?}, and not for bytes"),
        }
    }

    /// Whether the owner has all these bytes in this very mode, and none of them is pending.
    fn has_exactly(&self, want: &RangeWait) -> bool {
        let own = self.held_of(&want.owner, &want.resource);
        let mut parts = own.iter().filter(|it| it.range.overlaps(want.range));
        segments::covers(own, want.range, want.mode, false) && parts.all(|it| it.mode == want.mode)
    }

    /// Whether the session holds or waits for bytes.
    pub(crate) fn has_ranges(&self, session: SessionId) -> bool {
        self.ranges
            .owners
            .iter()
            .any(|it| it.owner.session == session)
    }

    /// Whether the session has locked some bytes.
    pub(crate) fn holds_ranges(&self, session: SessionId) -> bool {
        self.all_held().any(|(owner, ..)| owner.session == session)
    }

    /// Limits count the locks there would be afterwards. Locking what adds none is never refused.
    fn has_no_room_for_range(&self, want: &RangeWait) -> Option<Refusal> {
        let own = self.held_of(&want.owner, &want.resource);
        let mut after = own.to_vec();
        segments::lock(&mut after, self.new_segment(want, 0), 0);
        if after.len() <= own.len() {
            return None;
        }
        let more = after.len() - own.len();
        let exceeds = |count: usize, most: u32| most != 0 && count + more > most as usize;
        let of_resource = self.all_held().filter(|it| *it.1 == want.resource).count();
        let of_client = self
            .all_held()
            .filter(|it| it.0.session == want.owner.session)
            .count();
        if exceeds(of_resource, self.rules.ranges_per_resource_max) {
            Some(Refusal::MaxRangesOfResource)
        } else if exceeds(of_client, self.rules.ranges_per_client_max) {
            Some(Refusal::MaxRangesOfClient)
        } else if exceeds(self.all_held().count(), self.rules.ranges_max) {
            Some(Refusal::MaxRanges)
        } else {
            self.memory_full.then_some(Refusal::Memory)
        }
    }

    /// No limit refuses to make two pieces of one, but there has to be room for the second.
    fn has_no_room_to_split(&self, session: SessionId) -> Option<Refusal> {
        match self.storage_full && self.is_kept_client(session) {
            true => Some(Refusal::Storage),
            false => self.memory_full.then_some(Refusal::Memory),
        }
    }

    // ---- changes ----

    /// The owner is known from now on.
    fn know(&mut self, owner: &Owner) -> &mut OwnerOfBytes {
        let owners = &mut self.ranges.owners;
        let at = owners.iter().position(|it| it.owner == *owner);
        let at = at.unwrap_or_else(|| {
            let (owner, holdings) = (owner.clone(), Vec::new());
            owners.push(OwnerOfBytes { owner, holdings });
            owners.len() - 1
        });
        &mut owners[at]
    }

    fn forget_owner_if_unused(&mut self, owner: &Owner) {
        if self.range_wait_of(owner).is_none() {
            let is_unused = |it: &OwnerOfBytes| it.owner == *owner && it.holdings.is_empty();
            self.ranges.owners.retain(|it| !is_unused(it));
        }
    }

    /// What the owner has of the resource, to be changed. Nothing is left of a list that becomes
    /// empty.
    fn change_held(
        &mut self,
        owner: &Owner,
        resource: &[u8],
        change: impl FnOnce(&mut Vec<Segment>),
    ) {
        let holdings = &mut self.know(owner).holdings;
        let at = holdings.iter().position(|it| it.0 == resource);
        let at = at.unwrap_or_else(|| {
            holdings.push((resource.to_vec(), Vec::new()));
            holdings.len() - 1
        });
        change(&mut holdings[at].1);
        holdings.retain(|it| !it.1.is_empty());
        self.forget_owner_if_unused(owner);
    }

    fn new_segment(&self, want: &RangeWait, id: u64) -> Segment {
        Segment {
            range: want.range,
            mode: want.mode,
            id,
            since: self.rules.zero_ns.saturating_add(self.now.0),
            epoch: self.rules.epoch,
            pending: false,
        }
    }

    /// The owner has these bytes from now on.
    fn grant_range(&mut self, want: &RangeWait) {
        let own = self.held_of(&want.owner, &want.resource);
        let mut overlapping = own.iter().filter(|it| it.range.overlaps(want.range));
        // What was the owner's alone is not any more.
        let lets_others_in =
            want.mode == Sharing::Shared && overlapping.any(|it| it.mode == Sharing::Exclusive);
        let id = self.next_range_id();
        let new = self.new_segment(want, id);
        self.change_held(&want.owner, &want.resource, |own| {
            segments::lock(own, new, id + 1)
        });
        let Segment { since, epoch, .. } = new;
        self.record_range(want, Some(want.mode), RangeGrant { id, since, epoch });
        self.end_grace_if_done();
        if lets_others_in {
            self.note_freed(&want.resource);
        }
    }

    /// Unlocks these bytes for the owner; returns whether it held some of them.
    fn clear_range(&mut self, owner: &Owner, resource: &[u8], range: ByteRange) -> bool {
        let own = self.held_of(owner, resource);
        if !own.iter().any(|it| it.range.overlaps(range)) {
            return false;
        }
        let id = self.next_range_id();
        self.change_held(owner, resource, |own| segments::unlock(own, range, id));
        let (resource, owner) = (resource.to_vec(), owner.clone());
        let mode = Sharing::Exclusive; // is not recorded
        let gone = RangeWait {
            resource,
            owner,
            range,
            mode,
        };
        self.record_range(
            &gone,
            None,
            RangeGrant {
                id,
                ..RangeGrant::default()
            },
        );
        self.end_grace_if_done();
        self.note_freed(&gone.resource);
        true
    }

    /// Ranges are recorded of clients that are known after a restart.
    fn record_range(&mut self, want: &RangeWait, mode: Option<Sharing>, grant: RangeGrant) {
        let Owner { session, name } = &want.owner;
        if !self.is_kept_client(*session) {
            return self.note_unrecorded_range(&want.resource, *session);
        }
        self.record(Record::Ranged {
            resource: Key::from(&want.resource[..]),
            client: Key::from(self.called_in_lists(*session).as_bytes()),
            owner: Key::from(&name[..]),
            range: want.range,
            mode,
            grant,
        });
    }

    /// A client whose time to live became zero a moment ago is not recorded any more. Answers about
    /// the resource wait for the record of that change.
    fn note_unrecorded_range(&mut self, resource: &[u8], session: SessionId) {
        if self.client(session).is_some() {
            let of_client = self.records.mark(self.called_in_lists(session).as_bytes());
            let later = match (of_client, self.records.mark(resource)) {
                (Mark::Number(one), Mark::Number(other)) => Mark::Number(one.max(other)),
                (Mark::Expected(one), Mark::Expected(other)) => Mark::Expected(one.max(other)),
                (Mark::Number(_), expected) | (expected, Mark::Number(_)) => expected,
            };
            self.records.last.insert(resource.to_vec(), later);
        }
    }

    /// A session as lists call it: a client by its id, a connection by its number.
    pub(crate) fn called_in_lists(&self, session: SessionId) -> String {
        let session = self.session(session);
        match &session.kind {
            Kind::Conn(id) => format!("#{}", id.serial),
            _ => session.name.clone().unwrap_or_default(),
        }
    }
}
