//! After a restart: range locks are kept for those who held them, for a while.
//!
//! What the records bring back is *pending*: it is in everybody's way, and belongs to its owner, but the
//! owner has to have it back (`rangereclaim`) before its time is over; what is left then is released. That
//! time is the grace period, or the client's time to live if that is longer: the client counts on that, by
//! its own clock. Meanwhile a request for pending bytes is refused and told how long, or, if records may be
//! missing or the operator wants it so, every request within the grace period. The period ends with its
//! timer, when every client that had something has it back or does not want it, or by an operator. After its
//! timer only clients with a longer time to live still have something to have back, and each of those has a
//! timer of its own.

use super::super::arena::NONE;
use super::super::conn::Asker;
use super::super::ctx::Ctx;
use super::super::due::Due;
use super::super::lock::{Locks, SERVED_WORK};
use super::super::owner::OwnerIndex;
use super::super::types::{
    ByteRange, Effect, Effects, GraceState, Loss, OfClient, Refusal, Reply, Secret, Sharing,
};
use super::super::{Engine, GracePolicy, work};
use super::figures::RangeEnd;
use super::{RangeWant, Ranges};
use crate::base::{ConnId, Millis, Nanos};
use crate::segments::{RangeGrant, Segment};
use crate::timers::TimerId;

/// Under this name it is noted which record the answer to `grace` waits for.
const GRACE: &[u8] = b"grace";

/// Most range locks of one holding that are released before others have their turn.
const RELEASED_AT_ONCE: usize = 64;

/// Where the grace period is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// There is none, or it is over.
    #[default]
    Normal,
    /// Clients have back what they held.
    Active,
    /// It is over, and what was not had back is being released: holdings from this one on are still to be
    /// looked at. An operator ends it for `all` clients, its timer for those that have no longer time.
    Ending { from: u32, all: bool },
    /// It is over, but not for clients with a longer time to live.
    Longer,
}

/// The grace period.
#[derive(Default)]
pub(in super::super) struct Grace {
    phase: Phase,
    ends: Nanos,
    /// The same for the client that has the longest time.
    last_ends: Nanos,
    /// All new locks are refused, and not only those of pending bytes.
    is_strict: bool,
    /// There may have been some that the records do not have.
    follows_loss: bool,
    /// Runs while it is active.
    timer: Option<TimerId>,
    /// How many clients had something to have back, and how many of them still have.
    expected: u32,
    awaited: u32,
    /// How many range locks nobody has had back.
    released: u64,
}

impl Grace {
    /// Whether something can be had back.
    pub(super) fn is_active(&self) -> bool {
        self.phase != Phase::Normal
    }

    pub(in super::super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. })
    }

    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// How far it is.
    pub(super) fn state(&self, now: Nanos) -> GraceState {
        match self.phase {
            Phase::Normal => GraceState::default(),
            Phase::Active | Phase::Ending { .. } | Phase::Longer => GraceState {
                left: left(now, self.last_ends),
                expected: self.expected,
                done: self.expected - self.awaited,
            },
        }
    }
}

/// How long it is until then; not nothing, because it is not over yet.
fn left(now: Nanos, until: Nanos) -> Millis {
    Millis(until.since(now).div_ceil(1_000_000).max(1))
}

impl Locks {
    /// A record says that these bytes are locked like this from then on.
    pub(in super::super) fn restore_range(
        &mut self,
        cx: &mut Ctx<'_>,
        [resource, client, owner]: [&[u8]; 3],
        range: ByteRange,
        mode: Option<Sharing>,
        grant: RangeGrant,
    ) {
        let client = str::from_utf8(client).unwrap_or_default();
        let Some(client) = cx.restored_client(client) else {
            return;
        };
        let ranges = &mut self.ranges;
        let resource = ranges.find_or_insert(&cx.core.shares, resource);
        let owner = ranges.find_or_insert_owner(&mut cx.core.owners, client, owner);
        let holding = ranges.find_or_insert_holding(owner, resource);
        let mut grant = ranges.grants.restored(grant);
        if grant.since == 0 {
            // An earlier version has not recorded it. It counts from the restart.
            grant.since = cx.core.day_ns(Nanos(0));
        }
        ranges.change(&mut cx.core.shares, holding, |it| match mode {
            Some(mode) => it.set(holding, range, mode, grant),
            None => it.unlock(holding, range, grant.id),
        });
        ranges.forget_holding_if_empty(&mut cx.core.owners, holding);
        ranges.forget_if_unused(resource);
    }

    /// A record says that the client is gone.
    pub(in super::super) fn restore_ranges_gone(&mut self, cx: &mut Ctx<'_>, client: OwnerIndex) {
        while let Some(of_client) = self.ranges.clients.get(&client.0) {
            let owner = of_client.owners.head().expect("a client has owners");
            let holding = self.ranges.owner(owner).holdings.head();
            let holding = holding.expect("nobody waits before anybody is served");
            let resource = self.ranges.holding(holding).resource;
            self.ranges.change(&mut cx.core.shares, holding, |it| {
                it.unlock(holding, ByteRange::ALL, 0)
            });
            self.ranges
                .forget_holding_if_empty(&mut cx.core.owners, holding);
            self.ranges.forget_if_unused(resource);
        }
    }

    /// Clients are served from now on. If some of them held ranges, or if there may have been some that
    /// the records do not have, the grace period begins.
    pub(in super::super) fn begin_grace(&mut self, cx: &mut Ctx<'_>, may_have_lost: bool) {
        let ranges = &mut self.ranges;
        let all: Vec<u32> = ranges.holdings.iter().map(|(holding, _)| holding).collect();
        for holding in all {
            let it = &ranges.holdings[holding];
            let segments = &ranges.resources[it.resource].segments;
            let pending = segments.of_owner(holding).count() as u32;
            let client = ranges.owners[it.owner].client;
            let of_client = ranges.clients.get_mut(&client.0);
            of_client
                .expect("a client has what its owners hold")
                .pending += pending;
            ranges.holdings[holding].pending = pending;
        }
        let expected = ranges.clients.len() as u32;
        if expected == 0 && !may_have_lost {
            return;
        }
        let ends = cx.now.after(cx.core.rules.grace_period);
        let mut last_ends = ends;
        for (&client, it) in &mut ranges.clients {
            let ttl = cx.core.clients[cx.core.owners[OwnerIndex(client)].client].ttl;
            it.kept_until = cx.now.after(ttl).max(ends);
            if it.kept_until > ends {
                let due = Due::pending(client);
                it.timer = Some(cx.core.background.arm(it.kept_until, due));
                last_ends = last_ends.max(it.kept_until);
            }
        }
        ranges.grace = Grace {
            phase: Phase::Active,
            ends,
            last_ends,
            is_strict: may_have_lost || cx.core.rules.grace_policy == GracePolicy::Strict,
            follows_loss: may_have_lost,
            timer: Some(cx.core.background.arm(ends, Due::GRACE)),
            expected,
            awaited: expected,
            released: 0,
        };
        // Who has something to have back is waited for as long as that is possible, and a moment longer:
        // what it has not had back ends with the grace period, and not with the client.
        for (&client, it) in &ranges.clients {
            cx.keep_client_until(OwnerIndex(client), it.kept_until.after(Millis(1)));
        }
    }

    /// If the bytes are kept for others who held them before a restart: for how long at most.
    pub(super) fn withheld(
        &self,
        cx: &mut Ctx<'_>,
        resource: Option<u32>,
        holding: u32,
        wants: &RangeWant,
    ) -> Option<Millis> {
        let grace = &self.ranges.grace;
        if !grace.is_active() {
            return None;
        }
        let is_strict = grace.is_strict && grace.phase == Phase::Active;
        let mut until = is_strict.then_some(grace.ends);
        if let Some(resource) = resource {
            let segments = &self.ranges.resource(resource).segments;
            let mut looks = 0;
            for (holding, it) in segments.conflicts(holding, wants.range, wants.mode) {
                looks += 1;
                if it.pending() {
                    until = until.max(Some(self.ranges.kept_for_holding(holding)));
                }
            }
            cx.core.work.charge_each(looks, work::LOOK);
        }
        until.map(|until| left(cx.now, until))
    }

    /// For how long range locks are kept for this client that it has to have back. None if there are none.
    pub(in super::super) fn reclaim_left(&self, cx: &Ctx<'_>, client: u32) -> Option<Millis> {
        let until = self.ranges.kept_until(cx.core.clients[client].owner);
        Some(left(cx.now, until)).filter(|_| until > Nanos(0))
    }

    /// What is still to be had back of these bytes of a holding, before something of them changes: how many
    /// segments, and from where to where. None if there is nothing, as always but after a restart.
    pub(super) fn pending_at(&self, holding: u32, range: ByteRange) -> Option<(ByteRange, u32)> {
        let it = &self.ranges.holdings[holding];
        if it.pending == 0 {
            return None;
        }
        let own = &self.ranges.resource(it.resource).segments;
        let mut pending = own
            .of_owner_overlapping(holding, range)
            .filter(Segment::pending)
            .map(|it| it.range);
        let first = pending.next()?;
        let (last, count) = pending.fold((first, 1), |(_, count), it| (it, count + 1));
        Some((ByteRange::between(first.start(), last.last())?, count))
    }

    /// Those bytes have changed: counts what of them is still to be had back. One that was split counts
    /// twice.
    pub(super) fn count_pending(
        &mut self,
        cx: &mut Ctx<'_>,
        holding: u32,
        before: Option<(ByteRange, u32)>,
    ) {
        let Some((range, before)) = before else {
            return; // nothing becomes pending after the restart
        };
        let ranges = &mut self.ranges;
        let it = &mut ranges.holdings[holding];
        let own = &ranges.resources[it.resource].segments;
        let own = own.of_owner_overlapping(holding, range);
        let pending = own.filter(Segment::pending).count() as u32;
        cx.core.work.charge_each(before + pending, work::LOOK);
        it.pending = it.pending + pending - before;
        let client = ranges.owners[it.owner].client;
        let of_client = ranges.clients.get_mut(&client.0);
        let of_client = of_client.expect("a client has what its owners hold");
        let was_awaited = of_client.pending > 0;
        of_client.pending = of_client.pending + pending - before;
        if was_awaited && of_client.pending == 0 {
            if let Some(timer) = of_client.timer.take() {
                cx.core.background.cancel(timer);
            }
            ranges.grace.awaited -= 1;
            // However that came about: who locks what it has not had back has it back, too.
            self.end_grace_if_done(cx);
        }
    }

    /// The grace period is over when every client that had something to have back is done with it. If none
    /// had, only its timer ends it.
    pub(super) fn end_grace_if_done(&mut self, cx: &mut Ctx<'_>) {
        let it = &self.ranges.grace;
        let may_be_done = matches!(it.phase, Phase::Active | Phase::Longer);
        if may_be_done && it.expected > 0 && it.awaited == 0 {
            self.end_grace(cx, true);
        }
    }

    /// The grace period is over, for all clients or for those that have no longer time. What they have not
    /// had back is released, now or when time passes.
    pub(in super::super) fn end_grace(&mut self, cx: &mut Ctx<'_>, all: bool) {
        let it = &mut self.ranges.grace;
        if it.phase == Phase::Normal {
            return;
        }
        if let Some(timer) = it.timer.take() {
            cx.core.background.cancel(timer);
        }
        it.phase = Phase::Ending { from: 0, all };
        if it.awaited == 0 {
            self.finish_grace(cx);
        }
    }

    /// What was to be released is. If clients with a longer time to live have something to have back, it goes
    /// on for them.
    fn finish_grace(&mut self, cx: &mut Ctx<'_>) {
        let it = &mut self.ranges.grace;
        if it.awaited > 0 {
            it.phase = Phase::Longer;
            return;
        }
        it.phase = Phase::Normal;
        cx.out.push(Effect::GraceOver(it.released));
        // A client that hears that it is over must not find it begun again after a crash.
        if let Some(records) = &mut cx.core.records {
            records.note_all(GRACE);
        }
    }

    /// Its timer has fired.
    pub(in super::super) fn grace_ended(&mut self, cx: &mut Ctx<'_>) {
        self.ranges.grace.timer = None;
        self.end_grace(cx, false);
    }

    /// The time of a client is over that was longer than the grace period.
    pub(in super::super) fn pending_ended(&mut self, cx: &mut Ctx<'_>, client: OwnerIndex) {
        let of_client = self.ranges.clients.get_mut(&client.0);
        of_client.expect("it has something to have back").timer = None;
        let is_done = self.release_pending_of(cx, client, RangeEnd::GraceExpired);
        if !is_done && let Some(of_client) = self.ranges.clients.get_mut(&client.0) {
            let due = Due::pending(client.0);
            of_client.timer = Some(cx.core.background.arm(cx.now, due));
        }
        self.end_grace_if_done(cx);
    }

    /// Releases what nobody has had back, until so much is spent.
    #[cold]
    pub(in super::super) fn go_on_ending_grace(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        while let Phase::Ending { from, all } = self.ranges.grace.phase {
            let Some((holding, it)) = self.ranges.holdings.slots_from(from).next() else {
                return self.finish_grace(cx);
            };
            cx.core.work.charge(work::LOOK);
            let is_over = || all || self.ranges.kept_for_holding(holding) <= self.ranges.grace.ends;
            if it.is_none_or(|it| it.pending == 0) || !is_over() {
                let from = holding + 1;
                self.ranges.grace.phase = Phase::Ending { from, all };
                if cx.core.work.spent() >= slice_end {
                    return;
                }
                continue;
            }
            self.ranges.grace.phase = Phase::Ending { from: holding, all };
            self.release_pending(cx, holding, RangeEnd::GraceExpired);
            if cx.core.work.spent() >= slice_end {
                return;
            }
        }
    }

    /// Releases some of what is still pending of a holding. A client that is there and has not asked for
    /// that is told of each.
    fn release_pending(&mut self, cx: &mut Ctx<'_>, holding: u32, why: RangeEnd) {
        let resource = self.ranges.holding(holding).resource;
        let key = self.ranges.resource(resource).key.clone();
        let about = cx.begin(|| Some(key.as_bytes()));
        let own = self.ranges.resource(resource).segments.of_owner(holding);
        let pending = own.filter(Segment::pending).map(|it| it.range);
        let pending: Vec<ByteRange> = pending.take(RELEASED_AT_ONCE).collect();
        let released = pending.len() as u64;
        let whose = self.whose(holding);
        for range in pending {
            // Counted first: with the last range lock the grace period ends, and tells the number.
            self.ranges.grace.released += u64::from(why == RangeEnd::GraceExpired);
            self.clear_range(cx, holding, range);
            if why == RangeEnd::GraceExpired {
                cx.tell_range_lost(&whose, range, Loss::Expired);
            }
        }
        let share = self.ranges.resource(resource).share;
        self.count_ranges_ended(cx, share, why, released);
        self.serve_ranges(cx, resource);
        cx.finish(about);
    }

    /// Releases some of what a client has not had back; returns whether nothing is left of it.
    fn release_pending_of(&mut self, cx: &mut Ctx<'_>, client: OwnerIndex, why: RangeEnd) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        while cx.core.work.spent() < work_end {
            let (holding, looks) = self.ranges.pending_of(client);
            cx.core.work.charge_each(looks, work::LOOK);
            match holding {
                NONE => return true,
                holding => self.release_pending(cx, holding, why),
            }
        }
        self.ranges.has_no_pending(client)
    }
}

impl Ranges {
    /// A holding of this client with something that was not had back yet, or `NONE`; and how many were
    /// looked at for it.
    fn pending_of(&self, client: OwnerIndex) -> (u32, u32) {
        let of_client = self.clients.get(&client.0).filter(|it| it.pending > 0);
        let Some(of_client) = of_client else {
            return (NONE, 0);
        };
        let owners = of_client.owners.iter(&self.owners);
        let mut holdings =
            owners.flat_map(|owner| self.owners[owner].holdings.iter(&self.holdings));
        let mut looks = 0;
        let found = holdings.find(|&holding| {
            looks += 1;
            self.holdings[holding].pending > 0
        });
        (found.unwrap_or(NONE), looks)
    }

    /// Until when range locks are kept for a client that it has not had back yet, also if it comes back and
    /// leaves again. 0 if there are none, or if they are being released for all clients.
    pub(in super::super) fn kept_until(&self, client: OwnerIndex) -> Nanos {
        let of_client = self.clients.get(&client.0).filter(|it| it.pending > 0);
        match (of_client, self.grace.phase) {
            (None, _) | (_, Phase::Ending { all: true, .. }) => Nanos(0),
            (Some(it), _) => it.kept_until,
        }
    }

    /// Until when what is pending of this holding is kept for its client.
    fn kept_for_holding(&self, holding: u32) -> Nanos {
        let client = self.owners[self.holdings[holding].owner].client;
        self.clients
            .get(&client.0)
            .map_or(Nanos(0), |it| it.kept_until)
    }

    fn has_no_pending(&self, client: OwnerIndex) -> bool {
        let of_client = self.clients.get(&client.0);
        of_client.is_none_or(|it| it.pending == 0)
    }
}

impl Engine {
    /// Whether range locks that were acknowledged may be missing, and those who hold them have not had their
    /// time to say so: if the process ends now, also in order, that is so for the next one as well.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        let grace = &self.stores.locks.ranges.grace;
        grace.phase == Phase::Active && grace.follows_loss
    }

    /// What the client has not had back yet it does not want.
    #[cold]
    pub(in super::super) fn reclaim_done(
        &mut self,
        now: Nanos,
        id: ConnId,
        client: &str,
        secret: Option<Secret<'_>>,
        out: &mut Effects,
    ) {
        let Asker { conn, owner } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        let (stores, mut cx) = self.split(now, now, out);
        let of = match cx.client_to_speak_for(owner, client, secret) {
            Ok(Some(of)) => of,
            Ok(None) => return cx.put_off(conn),
            Err(refusal) => return cx.refuse(conn, refusal),
        };
        let locks = &mut stores.locks;
        if !locks.release_pending_of(&mut cx, of, RangeEnd::Explicit) {
            return cx.put_off(conn);
        }
        locks.end_grace_if_done(&mut cx);
        let about = cx.begin(|| Some(client.as_bytes()));
        if let Some(records) = &mut cx.core.records {
            records.note_all(client.as_bytes());
        }
        cx.reply(conn, Reply::Done);
        cx.finish(about);
    }

    /// How far the grace period is, or the end of it.
    #[cold]
    pub(in super::super) fn tell_grace(
        &mut self,
        now: Nanos,
        id: ConnId,
        ends: bool,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        let (stores, mut cx) = self.split(now, now, out);
        let locks = &mut stores.locks;
        if ends {
            locks.end_grace(&mut cx, true);
            if !cx.core.draining {
                let slice_end = cx.core.work.spent() + SERVED_WORK;
                locks.go_on_ending_grace(&mut cx, slice_end);
            }
        }
        let state = locks.ranges.grace.state(now);
        let about = cx.begin(|| Some(GRACE));
        cx.reply(conn, Reply::Grace(state));
        cx.finish(about);
    }
}

impl Ctx<'_> {
    /// The owner of the client for which somebody speaks: the connection is attached to it, or shows its
    /// secret. None while what it left behind is being undone.
    fn client_to_speak_for(
        &mut self,
        owner: OwnerIndex,
        id: &str,
        secret: Option<Secret<'_>>,
    ) -> Result<Option<OwnerIndex>, Refusal> {
        if let Some(secret) = secret {
            return self.speak_for(OfClient { id, secret });
        }
        let known = self.restored_client(id).ok_or(Refusal::UnknownClient)?;
        match known == owner {
            true => Ok(Some(known)),
            false => Err(Refusal::OtherClient),
        }
    }
}
