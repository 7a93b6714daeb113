//! What is granted, refused and let go of byte ranges.
//!
//! A request that can be granted is, at once; one that may not wait is refused, and what its owner
//! holds stays as it is. Whoever waits stands in the queue of the resource (`queue.rs`), and does not
//! overtake those before it that want the same bytes, unless its owner holds some of them already or
//! the wait would be for itself (`barging.rs`). Requests that may not wait do overtake: they compete
//! with nobody who waits, and POSIX has it so.

use super::super::arena::NONE;
use super::super::conn::{Asker, ConnIndex};
use super::super::ctx::{Core, Ctx};
use super::super::lock::Locks;
use super::super::owner::OwnerIndex;
use super::super::shares::Status;
use super::super::types::{
    ByteRange, Effects, HeldRange, OfClient, RangeAsk, RangeRequest, Record, Refusal, Reply,
    Sharing,
};
use super::super::waits::AskedRange;
use super::super::{Engine, work};
use super::figures::RangeEnd;
use super::{RangeGrant, RangeWant, Ranges};
use crate::base::{ConnId, Millis, Nanos};
use crate::segments::{Grant, LIVE, Segment};

/// Who asks about what, with the bytes as a range.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) asker: Asker,
    pub(super) resource: &'a [u8],
    pub(super) owner: &'a [u8],
    pub(super) range: ByteRange,
}

/// What is in the way of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InTheWay {
    Nothing,
    /// Only others who wait for some of the bytes, and came before.
    Queue,
    /// Somebody holds some of the bytes.
    Holder,
}

impl Engine {
    #[cold]
    pub(in super::super) fn range(
        &mut self,
        now: Nanos,
        id: ConnId,
        of: Option<OfClient<'_>>,
        request: RangeRequest<'_>,
        out: &mut Effects,
    ) {
        let mut asker = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        let (stores, mut cx) = self.split(now, now, out);
        if let Some(of) = of {
            match cx.speak_for(of) {
                Ok(Some(owner)) => asker.owner = owner,
                Ok(None) => return cx.put_off(asker.conn),
                Err(refusal) => return cx.refuse(asker.conn, refusal),
            }
        }
        let about = cx.begin(|| Some(request.resource));
        stores.locks.decide_range(&mut cx, asker, request);
        cx.finish(about);
    }
}

impl Locks {
    fn decide_range(&mut self, cx: &mut Ctx<'_>, asker: Asker, request: RangeRequest<'_>) {
        let RangeRequest {
            resource,
            owner,
            ask,
        } = request;
        let span = ask.span();
        let Some(range) = ByteRange::new(span.start, span.len) else {
            return cx.refuse(asker.conn, Refusal::BadRange);
        };
        let asked = Asked {
            asker,
            resource,
            owner,
            range,
        };
        // A break is one step: what is held changes before it or after it.
        let is_change = matches!(
            ask,
            RangeAsk::Lock { .. } | RangeAsk::Unlock { .. } | RangeAsk::Reclaim { .. }
        );
        if is_change && self.ranges.is_breaking() {
            let found = self.ranges.find(resource);
            let is_broken = found.is_some_and(|resource| self.ranges.is_broken(resource));
            if is_broken || self.ranges.client_breaks > 0 {
                return cx.put_off(asker.conn);
            }
        }
        match ask {
            RangeAsk::Lock { mode, wait, .. } => self.lock_range(cx, asked, mode, wait),
            RangeAsk::Unlock { .. } => self.unlock_range(cx, asked),
            RangeAsk::Test { mode, .. } => self.test_range(cx, asked, mode),
            RangeAsk::Cancel { mode, .. } => self.cancel_range(cx, asked, mode),
            RangeAsk::Reclaim { mode, .. } => self.reclaim_range(cx, asked, mode),
        }
    }

    fn lock_range(&mut self, cx: &mut Ctx<'_>, asked: Asked<'_>, mode: Sharing, wait: Millis) {
        let Asked {
            asker,
            resource: name,
            range,
            ..
        } = asked;
        let share = cx.core.shares.of_name(name);
        let owner = self.ranges.find_owner(asker.owner, asked.owner);
        if cx.core.storage_full && cx.is_kept_client(asker.owner) {
            // A repeated request for bytes that are held changes nothing and takes no room.
            if self.is_held_in_mode(name, owner, range, mode) {
                self.count_range(cx, share, mode, Status::Granted);
                return cx.reply(asker.conn, Reply::Done);
            }
            return self.deny_range(cx, asker.conn, share, mode, Refusal::Storage);
        } else if cx.core.draining {
            return self.deny_range(cx, asker.conn, share, mode, Refusal::Draining);
        }
        let wait = match cx.core.rules.range_wait_max {
            Millis::ZERO => wait,
            most => wait.min(most),
        };
        let wants = RangeWant {
            owner: owner.unwrap_or(NONE),
            range,
            mode,
        };
        let waiter = owner.map_or(NONE, |owner| self.ranges.owner(owner).waiter);
        if waiter != NONE {
            return self.ask_again_for_range(cx, asker.conn, name, wants, waiter, wait);
        }
        let (resource, holding) = self.find_range(name, owner);
        if let Some(left) = self.withheld(cx, resource, holding, &wants) {
            self.count_range(cx, share, mode, Status::Denied);
            return cx.reply(asker.conn, Reply::InGrace(left));
        }
        let may_wait = wait > Millis::ZERO;
        let mut in_the_way = InTheWay::Nothing;
        if let Some(resource) = resource {
            in_the_way = self.in_the_way(cx, resource, holding, &wants, may_wait);
        }
        if in_the_way != InTheWay::Nothing && may_wait {
            let resource = resource.expect("somebody is there");
            let asked_range = AskedRange {
                resource,
                holding,
                wants,
                waiter: NONE,
            };
            // Nobody waits for somebody that a client locks for and that is not known yet, but maybe for
            // what the connection has of its own.
            let is_client = cx.core.owners[asker.owner].client != NONE;
            let is_unknown = is_client && owner.is_none() && !asked.owner.is_empty();
            let waits_as = match is_unknown {
                true => cx.core.conns[asker.conn].own,
                false => asker.owner,
            };
            let waits_as = Asker {
                owner: waits_as,
                ..asker
            };
            let is_behind = in_the_way == InTheWay::Queue;
            let may_wait = self.may_wait_for_range(cx, waits_as, asked_range, is_behind);
            if may_wait != Some(false) {
                let waiter = self.wait_for_range(cx, asked, resource, mode, wait, is_behind);
                if may_wait.is_none()
                    && !is_behind
                    && let Some(waiter) = waiter
                {
                    self.look_later(cx, waiter);
                }
                return;
            } else if !is_behind {
                return self.deny_range(cx, asker.conn, share, mode, Refusal::Deadlock);
            }
            // Nobody is kept waiting for itself by the order of the queue.
        } else if in_the_way != InTheWay::Nothing {
            self.count_range(cx, share, mode, Status::Denied);
            return cx.reply(asker.conn, Reply::TimedOut);
        }
        if let Err(refusal) =
            self.has_room_for_range(cx, asker.owner, resource, holding, range, mode)
        {
            return self.deny_range(cx, asker.conn, share, mode, refusal);
        }
        cx.reply(asker.conn, Reply::Done);
        self.count_range(cx, share, mode, Status::Granted);
        let resource = self.ranges.find_or_insert(&cx.core.shares, name);
        let owner = &mut cx.core.owners;
        let owner = self
            .ranges
            .find_or_insert_owner(owner, asker.owner, asked.owner);
        self.set_range(cx, resource, owner, range, mode);
        let granted = RangeWant { owner, range, mode };
        self.look_at_those_kept_waiting(cx, resource, granted);
        self.serve_ranges(cx, resource);
    }

    /// Whether the owner holds every byte of the range in this very mode, and none of it is pending.
    #[cold]
    fn is_held_in_mode(
        &self,
        name: &[u8],
        owner: Option<u32>,
        range: ByteRange,
        mode: Sharing,
    ) -> bool {
        let (Some(resource), holding) = self.find_range(name, owner) else {
            return false;
        };
        let segments = &self.ranges.resource(resource).segments;
        let mut parts = segments.of_owner_overlapping(holding, range);
        holding != NONE
            && segments.is_covered(holding, range, mode, true)
            && parts.all(|it| it.mode == mode)
    }

    /// The resource, and what the owner holds of it.
    fn find_range(&self, name: &[u8], owner: Option<u32>) -> (Option<u32>, u32) {
        let resource = self.ranges.find(name);
        let holding = match (owner, resource) {
            (Some(owner), Some(resource)) => self.ranges.holding_of(owner, resource),
            _ => NONE,
        };
        (resource, holding)
    }

    pub(super) fn deny_range(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        share: u8,
        mode: Sharing,
        why: Refusal,
    ) {
        let status = match why {
            Refusal::Deadlock => Status::Deadlock,
            _ => Status::Denied,
        };
        self.count_range(cx, share, mode, status);
        cx.refuse(conn, why);
    }

    fn in_the_way(
        &self,
        cx: &mut Ctx<'_>,
        resource: u32,
        holding: u32,
        wants: &RangeWant,
        keeps_order: bool,
    ) -> InTheWay {
        let it = self.ranges.resource(resource);
        let RangeWant { range, mode, .. } = *wants;
        cx.core.work.charge(work::SEGMENT);
        if it.segments.first_conflict(holding, range, mode).is_some() {
            return InTheWay::Holder;
        }
        let converts = || it.segments.of_owner_overlapping(holding, range).next();
        if !keeps_order || it.queue.is_empty() || converts().is_some() {
            return InTheWay::Nothing;
        }
        cx.core.work.charge_each(it.queue.len(), work::COMPARE);
        let mut before = it.queue.iter(&cx.core.waiters);
        match before.any(|before| self.blocks_range(cx.core, before, wants)) {
            true => InTheWay::Queue,
            false => InTheWay::Nothing,
        }
    }

    /// Whether there is room for what a lock would add, on the resource, for the client and in all. Locking
    /// what is locked already may add nothing.
    pub(super) fn has_room_for_range(
        &self,
        cx: &mut Ctx<'_>,
        client: OwnerIndex,
        resource: Option<u32>,
        holding: u32,
        range: ByteRange,
        mode: Sharing,
    ) -> Result<(), Refusal> {
        cx.core.work.charge(work::SEGMENT);
        let (of_resource, growth) = match resource {
            Some(resource) => {
                let it = &self.ranges.resource(resource).segments;
                (it.len(), it.growth_of_set(holding, range, mode))
            }
            None => (0, 1),
        };
        if growth <= 0 {
            return Ok(());
        }
        let exceeds = |len: usize, most: u32| most != 0 && len as i64 + growth > i64::from(most);
        let rules = &cx.core.rules;
        if exceeds(of_resource, rules.ranges_per_resource_max) {
            Err(Refusal::MaxRangesOfResource)
        } else if exceeds(
            self.ranges.segments_of(client) as usize,
            rules.ranges_per_client_max,
        ) {
            Err(Refusal::MaxRangesOfClient)
        } else if exceeds(self.ranges.segment_count(), rules.ranges_max) {
            Err(Refusal::MaxRanges)
        } else if cx.core.memory_full {
            Err(Refusal::Memory)
        } else {
            Ok(())
        }
    }

    /// The owner has these bytes from now on. Nobody else has them in a way that excludes it.
    pub(super) fn set_range(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        owner: u32,
        range: ByteRange,
        mode: Sharing,
    ) {
        let holding = self.ranges.find_or_insert_holding(owner, resource);
        let own = &self.ranges.resource(resource).segments;
        // What was the owner's alone is not any more: others may be waiting for that.
        let lets_others_in = mode == Sharing::Shared
            && own
                .of_owner_overlapping(holding, range)
                .any(|it| it.mode == Sharing::Exclusive);
        let pending = self.pending_at(holding, range);
        let recorded = self.ranges.new_grant(cx);
        let RangeGrant { id, since, .. } = recorded;
        let life = LIVE;
        let grant = Grant { id, since, life };
        let touched = self.ranges.change(&mut cx.core.shares, holding, |it| {
            it.set(holding, range, mode, grant)
        });
        cx.core.work.charge_each(touched, work::SEGMENT);
        self.record_range(cx, owner, resource, range, Some(mode), recorded);
        self.count_pending(cx, holding, pending);
        if lets_others_in {
            self.note_freed(resource, range);
        }
    }

    /// The holding lets go of these bytes; returns whether it had some of them. If nothing is left of it,
    /// it is forgotten, but not the resource.
    pub(super) fn clear_range(&mut self, cx: &mut Ctx<'_>, holding: u32, range: ByteRange) -> bool {
        let (owner, resource) = {
            let it = self.ranges.holding(holding);
            (it.owner, it.resource)
        };
        let now = cx.core.day_ns(cx.now);
        // Only those are looked at who want what was really held.
        let Ranges {
            resources, figures, ..
        } = &mut self.ranges;
        let mut freed: Option<ByteRange> = None;
        for it in resources[resource]
            .segments
            .of_owner_overlapping(holding, range)
        {
            let start = freed.unwrap_or(it.range).start().max(range.start());
            freed = ByteRange::between(start, it.range.last().min(range.last()));
            // Of one that is only cut the rest is still held.
            if range.contains(it.range) && !it.pending() {
                figures.held(it.mode, now.saturating_sub(it.since));
            }
        }
        let Some(freed) = freed else {
            return false;
        };
        let pending = self.pending_at(holding, range);
        let recorded = RangeGrant {
            id: self.ranges.new_grant(cx).id,
            ..RangeGrant::default()
        };
        let touched = self.ranges.change(&mut cx.core.shares, holding, |it| {
            it.unlock(holding, range, recorded.id)
        });
        cx.core.work.charge_each(touched, work::SEGMENT);
        self.record_range(cx, owner, resource, range, None, recorded);
        self.count_pending(cx, holding, pending);
        self.ranges
            .forget_holding_if_empty(&mut cx.core.owners, holding);
        self.note_freed(resource, freed);
        true
    }

    pub(super) fn record_range(
        &self,
        cx: &mut Ctx<'_>,
        owner: u32,
        resource: u32,
        range: ByteRange,
        mode: Option<Sharing>,
        grant: RangeGrant,
    ) {
        let it = self.ranges.owner(owner);
        let resource = &self.ranges.resource(resource).key;
        if !cx.is_kept_client(it.client) {
            cx.note_unrecorded(resource.as_bytes(), it.client);
        } else {
            let owner = it.name.clone();
            let client = cx.core.owners[it.client].client_id().unwrap_or_default();
            let client = client.as_bytes().into();
            cx.record(|_| Record::Ranged {
                resource: resource.clone(),
                client,
                owner,
                range,
                mode,
                grant,
            });
        }
    }

    fn unlock_range(&mut self, cx: &mut Ctx<'_>, asked: Asked<'_>) {
        let Asked { asker, range, .. } = asked;
        let owner = self.ranges.find_owner(asker.owner, asked.owner);
        let (Some(resource), holding) = self.find_range(asked.resource, owner) else {
            return cx.reply(asker.conn, Reply::Done);
        };
        // No limit refuses it, also if it makes two pieces of one. But it could do so without end.
        let segments = &self.ranges.resource(resource).segments;
        let grows = || holding != NONE && segments.growth_of_unlock(holding, range) > 0;
        if let Some(refusal) = cx.has_no_room_to_split(asker.owner).filter(|_| grows()) {
            return cx.refuse(asker.conn, refusal);
        }
        cx.reply(asker.conn, Reply::Done);
        // Whoever lets go of bytes does not want them any more.
        let waiter = owner.map_or(NONE, |owner| self.ranges.owner(owner).waiter);
        if waiter != NONE
            && let (at, wants) = self.waited_range(cx.core, waiter)
            && (at, wants.range) == (resource, range)
        {
            self.end_range_wait(cx, waiter, Reply::TimedOut);
        }
        if holding != NONE && self.clear_range(cx, holding, range) {
            let share = self.ranges.resource(resource).share;
            self.count_ranges_ended(cx, share, RangeEnd::Explicit, 1);
        }
        self.serve_ranges(cx, resource);
        self.end_grace_if_done(cx);
    }

    fn test_range(&mut self, cx: &mut Ctx<'_>, asked: Asked<'_>, mode: Sharing) {
        let owner = self.ranges.find_owner(asked.asker.owner, asked.owner);
        let (resource, holding) = self.find_range(asked.resource, owner);
        cx.core.work.charge(work::SEGMENT);
        let found = resource.and_then(|resource| {
            let it = &self.ranges.resource(resource).segments;
            it.first_conflict(holding, asked.range, mode)
        });
        let Some((holding, segment)) = found else {
            return cx.reply(asked.asker.conn, Reply::RangeFree);
        };
        let held = self.held_range(cx.core, holding, &segment);
        cx.reply(asked.asker.conn, Reply::RangeHeld(Box::new(held)));
    }

    /// A segment as others are told of it.
    pub(super) fn held_range(&self, core: &Core, holding: u32, segment: &Segment) -> HeldRange {
        let it = self.ranges.owner(self.ranges.holding(holding).owner);
        let client = &core.owners[it.client];
        HeldRange {
            mode: segment.mode,
            range: segment.range,
            client: match client.client_id() {
                Some(id) => id.into(),
                None => format!("#{}", client.conn_id.serial).into(),
            },
            owner: it.name.clone(),
            pending: segment.pending(),
        }
    }

    /// Exactly one of three: the wait has ended and is never granted, or the bytes are held, or neither. What
    /// was held before a restart and was not had back is not held.
    fn cancel_range(&mut self, cx: &mut Ctx<'_>, asked: Asked<'_>, mode: Sharing) {
        let Asked { asker, range, .. } = asked;
        let owner = self.ranges.find_owner(asker.owner, asked.owner);
        let (Some(owner), (Some(resource), holding)) =
            (owner, self.find_range(asked.resource, owner))
        else {
            return cx.reply(asker.conn, Reply::Nothing);
        };
        let waiter = self.ranges.owner(owner).waiter;
        if waiter != NONE
            && let (at, wants) = self.waited_range(cx.core, waiter)
            && (at, wants.range, wants.mode) == (resource, range, mode)
        {
            cx.reply(asker.conn, Reply::Cancelled);
            self.end_range_wait(cx, waiter, Reply::TimedOut);
            return self.serve_ranges(cx, resource);
        }
        let segments = &self.ranges.resource(resource).segments;
        let is_held = holding != NONE && segments.is_covered(holding, range, mode, true);
        cx.reply(
            asker.conn,
            match is_held {
                true => Reply::AlreadyGranted,
                false => Reply::Nothing,
            },
        );
    }

    /// Whatever was lost with a connection, the request or the answer, the client asks again: so what it has
    /// back already counts like what is still pending. Both are in the records.
    fn reclaim_range(&mut self, cx: &mut Ctx<'_>, asked: Asked<'_>, mode: Sharing) {
        let Asked { asker, range, .. } = asked;
        if !self.ranges.grace.is_active() {
            self.ranges.figures.reclaimed(false);
            return cx.refuse(asker.conn, Refusal::NoGrace);
        }
        let owner = self.ranges.find_owner(asker.owner, asked.owner);
        let (resource, holding) = self.find_range(asked.resource, owner);
        let (Some(owner), Some(resource)) = (owner, resource.filter(|_| holding != NONE)) else {
            self.ranges.figures.reclaimed(false);
            return cx.refuse(asker.conn, Refusal::Reclaim);
        };
        let segments = &self.ranges.resource(resource).segments;
        let is_its_own = segments.is_covered(holding, range, mode, false);
        let grows = || segments.growth_of_set(holding, range, mode) > 0;
        let refusal = match is_its_own {
            true => cx.has_no_room_to_split(asker.owner).filter(|_| grows()),
            false => Some(Refusal::Reclaim),
        };
        if let Some(refusal) = refusal {
            self.ranges.figures.reclaimed(false);
            return cx.refuse(asker.conn, refusal);
        }
        self.ranges.figures.reclaimed(true);
        cx.reply(asker.conn, Reply::Done);
        self.set_range(cx, resource, owner, range, mode);
        self.serve_ranges(cx, resource);
        self.end_grace_if_done(cx);
    }
}

impl Ctx<'_> {
    /// Why a client may not make two pieces of one now, which no limit refuses.
    fn has_no_room_to_split(&self, client: OwnerIndex) -> Option<Refusal> {
        match self.core.storage_full && self.is_kept_client(client) {
            true => Some(Refusal::Storage),
            false => self.core.memory_full.then_some(Refusal::Memory),
        }
    }
}
