//! Who waits for bytes, and who of them comes next.
//!
//! A resource has one queue. After everything that may free bytes, or take somebody out of the queue, it
//! is gone through from its head: a waiter is granted what it wants if nobody holds any of it, and
//! nobody before it in the queue who still waits wants it too. Only those are looked at whose bytes were
//! freed; of a very long queue only a part at a time. A waiter that has hung up is in nobody's way, and the
//! wait of one whose time is over ends then.

use super::super::arena::NONE;
use super::super::conn::ConnIndex;
use super::super::ctx::{Core, Ctx};
use super::super::lock::{Locks, SERVED_WORK};
use super::super::queue::{Awaiting, Waiter};
use super::super::shares::Status;
use super::super::types::{ByteRange, Effects, Refusal, Reply, Sharing};
use super::super::waits::AskedRange;
use super::super::{Engine, work};
use super::decide::Asked;
use super::{RangeWant, Ranges};
use crate::base::{Millis, Nanos};
use crate::segments::Segments;

/// Most waiters for bytes of one resource, where the operator has set no other limit.
const WAITERS_PER_RESOURCE_MAX: u32 = 100;

/// Most waiters for bytes of all resources.
const WAITERS_MAX: usize = 4_096;

/// That some in a queue are to be looked at.
pub(super) struct ToServe {
    /// Those that want some of these bytes.
    freed: ByteRange,
    /// And have this number in the queue, or a larger one.
    from: u64,
}

impl Locks {
    /// The owner of this request waits for bytes already. If it is for the same ones, its place passes to
    /// the connection that asks last: whoever asks again does not stand in the queue twice.
    pub(super) fn ask_again_for_range(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        resource: &[u8],
        wants: RangeWant,
        waiter: u32,
        wait: Millis,
    ) {
        let (at, waited) = self.waited_range(cx.core, waiter);
        let is_same = self.ranges.resource(at).key.as_bytes() == resource
            && (waited.range, waited.mode) == (wants.range, wants.mode);
        if !is_same || wait == Millis::ZERO {
            let share = cx.core.shares.of_name(resource);
            self.count_range(cx, share, wants.mode, Status::Denied);
            return cx.refuse(conn, Refusal::Busy);
        }
        self.pass_place_to(cx, waiter, conn, wait);
        let (owner, until) = (cx.core.waiters[waiter].owner, cx.now.after(wait));
        cx.keep_client_until(owner, until);
        // Its time may have been over, and whoever was served since then has passed it by.
        self.note_freed(at, waited.range);
        self.serve_ranges(cx, at);
    }

    /// The request waits.
    pub(super) fn wait_for_range(
        &mut self,
        cx: &mut Ctx<'_>,
        asked: Asked<'_>,
        resource: u32,
        mode: Sharing,
        wait: Millis,
        is_behind: bool,
    ) -> Option<u32> {
        let Asked { asker, range, .. } = asked;
        let most = match cx.core.rules.waiters_per_key_max {
            0 => WAITERS_PER_RESOURCE_MAX,
            most => most,
        };
        let is_full = self.ranges.resource(resource).queue.len() >= most
            || self.ranges.wants.len() >= WAITERS_MAX;
        let share = self.ranges.resource(resource).share;
        if is_full {
            self.deny_range(cx, asker.conn, share, mode, Refusal::MaxWaiters);
            return None;
        } else if !cx.has_room_to_wait() {
            self.deny_range(cx, asker.conn, share, mode, Refusal::Memory);
            return None;
        }
        let owners = &mut cx.core.owners;
        let owner = self
            .ranges
            .find_or_insert_owner(owners, asker.owner, asked.owner);
        let want = self.ranges.wants.insert(RangeWant { owner, range, mode });
        self.ranges.waiting[mode as usize] += 1;
        let waiter = Waiter::new(asker.owner, resource, Awaiting::Range(want), cx.now);
        let waiter = cx.join(&mut self.ranges.resources[resource].queue, waiter);
        self.ranges.owners[owner].waiter = waiter;
        cx.park(waiter, asker.conn, wait);
        let until = cx.now.after(wait);
        cx.keep_client_until(asker.owner, until);
        self.note_behind(cx, waiter, is_behind);
        self.look_at_those_behind(cx);
        Some(waiter)
    }

    /// The resource whose bytes it waits for, and what it wants.
    pub(in super::super) fn waited_range(&self, core: &Core, waiter: u32) -> (u32, RangeWant) {
        let it = &core.waiters[waiter];
        let Awaiting::Range(want) = it.awaiting else {
            unreachable!("a waiter in the queue of a resource does not want bytes");
        };
        (it.subject, self.ranges.wants[want])
    }

    /// Whether the waiter, which came before, is in the way of what is wanted.
    pub(in super::super) fn blocks_range(
        &self,
        core: &Core,
        waiter: u32,
        wants: &RangeWant,
    ) -> bool {
        self.waited_range(core, waiter).1.excludes(wants) && core.is_present(waiter)
    }

    /// Takes a waiter out of its queue and answers it. Those behind it are to be looked at.
    pub(in super::super) fn end_range_wait(&mut self, cx: &mut Ctx<'_>, waiter: u32, reply: Reply) {
        let Waiter { conn, subject, .. } = cx.core.waiters[waiter];
        let share = self.ranges.resource(subject).share;
        let wants = self.leave_range_queue(cx, waiter);
        let status = match reply {
            Reply::Refused(Refusal::Deadlock) => Status::Deadlock,
            _ => Status::Denied,
        };
        self.count_range(cx, share, wants.mode, status);
        if let Reply::Refused(why) = reply {
            cx.core.figures.refused(why);
        }
        cx.answer_parked(conn, reply);
    }

    /// Takes a waiter out of its queue, and forgets its owner if that has nothing else.
    fn leave_range_queue(&mut self, cx: &mut Ctx<'_>, waiter: u32) -> RangeWant {
        let (resource, wants) = self.waited_range(cx.core, waiter);
        let gone = cx.leave(&mut self.ranges.resources[resource].queue, waiter);
        let Awaiting::Range(want) = gone.awaiting else {
            unreachable!("it was looked at a moment ago");
        };
        let ranges = &mut self.ranges;
        ranges.wants.remove(want);
        ranges.waiting[wants.mode as usize] -= 1;
        ranges.behind.remove(&waiter);
        ranges.changes += 1;
        ranges.owners[wants.owner].waiter = NONE;
        ranges.forget_owner_if_unused(&mut cx.core.owners, wants.owner);
        self.note_freed(resource, wants.range);
        wants
    }

    /// The time of a parked command is over.
    pub(in super::super) fn range_wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter {
            subject: resource,
            owner: client,
            ..
        } = cx.core.waiters[waiter];
        self.end_range_wait(cx, waiter, Reply::TimedOut);
        cx.restart_client_timer_of(client);
        self.serve_ranges(cx, resource);
    }

    /// At shutdown.
    pub(in super::super) fn send_range_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        self.end_range_wait(cx, waiter, Reply::Refused(Refusal::Draining));
        self.serve_ranges(cx, resource);
    }

    /// The connection of a parked command is gone.
    pub(in super::super) fn give_up_range(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        let wants = self.leave_range_queue(cx, waiter);
        let share = self.ranges.resource(resource).share;
        self.count_range(cx, share, wants.mode, Status::Denied);
        self.serve_ranges(cx, resource);
    }

    /// The client of a parked command has hung up. Those behind it are looked at when time passes, when it
    /// is known who else has hung up.
    pub(in super::super) fn note_range_hung_up(&mut self, core: &Core, waiter: u32) {
        let (resource, wants) = self.waited_range(core, waiter);
        self.note_freed(resource, wants.range);
    }

    /// These bytes may be free, or there is one less who wants them.
    pub(super) fn note_freed(&mut self, resource: u32, range: ByteRange) {
        let it = &mut self.ranges.resources[resource];
        let freed = match &it.to_serve {
            Some(before) => hull(before.freed, range),
            None if it.breaks > 0 => range,
            None => {
                self.ranges.unserved.push_back(resource);
                range
            }
        };
        it.to_serve = Some(ToServe { freed, from: 0 });
    }

    /// Goes through the queue of a resource, as far as it was noted that there is something to look at,
    /// and forgets the resource if no owner holds or wants anything of it any more. While an operator breaks
    /// the resource its queue waits.
    pub(in super::super) fn serve_ranges(&mut self, cx: &mut Ctx<'_>, resource: u32) {
        if self.ranges.is_broken(resource) {
            return;
        }
        let work_end = cx.core.work.spent() + SERVED_WORK;
        while self.ranges.resources[resource].to_serve.is_some() && cx.core.work.spent() < work_end
        {
            self.serve_some(cx, resource, work_end);
        }
        if self.ranges.resources[resource].to_serve.is_none() {
            self.ranges.forget_if_unused(resource);
        }
    }

    /// Goes through the queue once. If it is not done when so much is spent, it will go on from there.
    fn serve_some(&mut self, cx: &mut Ctx<'_>, resource: u32, work_end: u64) {
        let it = &mut self.ranges.resources[resource];
        let Some(ToServe { freed, from }) = it.to_serve.take() else {
            return;
        };
        self.ranges.forget_unserved(resource);
        // A server that stops grants nothing any more.
        let mut next = match cx.core.draining || cx.core.cuts_off {
            true => None,
            false => self.ranges.resources[resource].queue.head(),
        };
        let mut before = Vec::new();
        while let Some(waiter) = next {
            let it = &cx.core.waiters[waiter];
            let number = it.number;
            next = it.behind();
            cx.core.work.charge(work::COMPARE);
            let wants = self.waited_range(cx.core, waiter).1;
            if !cx.is_present(waiter) {
                continue;
            }
            if is_over(cx.core, waiter, cx.moment) {
                self.end_range_wait(cx, waiter, Reply::TimedOut);
                continue;
            }
            if number < from || !wants.range.overlaps(freed) {
                before.push(wants);
                continue;
            }
            if cx.core.work.spent() >= work_end {
                let rest = ToServe {
                    freed,
                    from: number,
                };
                return self.go_on_serving_later(resource, rest);
            }
            if !self.serve_waiter(cx, waiter, &before) {
                before.push(wants);
            } else if self.ranges.resources[resource].to_serve.is_some() {
                // What was granted lets others in, so everything is looked at anew.
                return self.note_freed(resource, freed);
            }
        }
    }

    fn go_on_serving_later(&mut self, resource: u32, rest: ToServe) {
        let it = &mut self.ranges.resources[resource];
        // Something was freed meanwhile: then all are looked at again.
        it.to_serve = Some(match &it.to_serve {
            Some(newer) => ToServe {
                freed: hull(newer.freed, rest.freed),
                from: 0,
            },
            None => rest,
        });
        if !self.ranges.unserved.contains(&resource) {
            self.ranges.unserved.push_back(resource);
        }
    }

    /// Grants a waiter what it wants, if it can be; returns whether it does not wait any more. `before` are
    /// those before it that still wait.
    fn serve_waiter(&mut self, cx: &mut Ctx<'_>, waiter: u32, before: &[RangeWant]) -> bool {
        let (resource, wants) = self.waited_range(cx.core, waiter);
        let holding = self.ranges.holding_of(wants.owner, resource);
        let RangeWant { range, mode, .. } = wants;
        cx.core.work.charge(work::SEGMENT);
        let segments = &self.ranges.resource(resource).segments;
        if segments.first_conflict(holding, range, mode).is_some() {
            self.note_behind(cx, waiter, false);
            return false;
        }
        cx.core.work.charge(before.len() as u64 / 4);
        let is_in_order = !before.iter().any(|before| before.excludes(&wants));
        let converts = |segments: &Segments| {
            let mut own = segments.of_owner_overlapping(holding, range);
            holding != NONE && own.next().is_some()
        };
        if !is_in_order && !converts(segments) {
            let asked = AskedRange {
                resource,
                holding,
                wants,
                waiter,
            };
            if !self.range_would_deadlock(cx, asked, true) {
                self.note_behind(cx, waiter, true);
                return false;
            }
        }
        self.grant_waiter(cx, waiter);
        true
    }

    /// Nobody is in the way of this waiter: it has what it wants, unless there is no room for that.
    pub(super) fn grant_waiter(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter {
            owner: client,
            conn,
            since,
            ..
        } = cx.core.waiters[waiter];
        let (resource, wants) = self.waited_range(cx.core, waiter);
        let RangeWant { owner, range, mode } = wants;
        let holding = self.ranges.holding_of(owner, resource);
        let room = match cx.core.storage_full && cx.is_kept_client(client) {
            true => Err(Refusal::Storage),
            false => self.has_room_for_range(cx, client, Some(resource), holding, range, mode),
        };
        if let Err(refusal) = room {
            return self.end_range_wait(cx, waiter, Reply::Refused(refusal));
        }
        cx.core.work.charge(work::GRANT);
        // It holds before it leaves the queue, so that its owner is not forgotten between the two.
        self.set_range(cx, resource, owner, range, mode);
        self.leave_granted(cx, waiter);
        self.look_at_those_kept_waiting(cx, resource, wants);
        let share = self.ranges.resource(resource).share;
        self.count_range(cx, share, mode, Status::Granted);
        let waited_ns = cx.now.0.saturating_sub(since.0);
        self.ranges.figures.waited(mode, waited_ns);
        cx.core.shares.waited(share, mode.into(), waited_ns);
        // Without a connection of its own it has its whole time from when it is told.
        cx.restart_client_timer_of(client);
        cx.answer_parked(conn, Reply::Done);
    }

    /// A waiter leaves the queue with what it wanted: who is behind it is kept waiting by what it holds now.
    fn leave_granted(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let (resource, wants) = self.waited_range(cx.core, waiter);
        let gone = cx.leave(&mut self.ranges.resources[resource].queue, waiter);
        if let Awaiting::Range(want) = gone.awaiting {
            self.ranges.wants.remove(want);
            self.ranges.waiting[wants.mode as usize] -= 1;
        }
        self.ranges.behind.remove(&waiter);
        self.ranges.owners[wants.owner].waiter = NONE;
    }
}

impl Ranges {
    /// It is not to be served any more. The one whose turn it is stands last, also among very many.
    fn forget_unserved(&mut self, resource: u32) {
        match self.unserved.back() == Some(&resource) {
            true => _ = self.unserved.pop_back(),
            false => self.unserved.retain(|&it| it != resource),
        }
    }

    /// The resource whose turn it is.
    fn next_unserved(&mut self) -> Option<u32> {
        let resource = self.unserved.pop_front()?;
        self.unserved.push_back(resource);
        Some(resource)
    }
}

impl Locks {
    /// Something about ranges was begun and is not finished.
    #[inline]
    pub(in super::super) fn has_ranges_to_go_on_with(&self) -> bool {
        let it = &self.ranges;
        !it.unserved.is_empty() || it.is_breaking() || it.grace.is_ending()
    }
}

impl Engine {
    #[cold]
    pub(in super::super) fn go_on_with_ranges(
        &mut self,
        now: Nanos,
        slice_end: u64,
        out: &mut Effects,
    ) {
        self.go_on_serving_ranges(now, slice_end, out);
        if self.stores.locks.ranges.is_breaking() {
            self.go_on_breaking_ranges(now, slice_end, out);
        }
        let (stores, mut cx) = self.split(now, now, out);
        stores.locks.go_on_ending_grace(&mut cx, slice_end);
    }

    /// Goes on with queues that were not gone through to their end.
    pub(super) fn go_on_serving_ranges(&mut self, now: Nanos, slice_end: u64, out: &mut Effects) {
        if self.stores.locks.ranges.client_breaks > 0 {
            return;
        }
        while let Some(resource) = self.stores.locks.ranges.next_unserved() {
            let (stores, mut cx) = self.split(now, now, out);
            let locks = &mut stores.locks;
            let key = locks.ranges.resource(resource).key.clone();
            let about = cx.begin(|| Some(key.as_bytes()));
            locks.serve_ranges(&mut cx, resource);
            cx.finish(about);
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }
}

/// Whether the time of its parked command is over at this instant.
fn is_over(core: &Core, waiter: u32, moment: Nanos) -> bool {
    let timer = core.waiters[waiter].timer;
    timer.is_some_and(|timer| core.timers.deadline(timer) < moment)
}

/// The smallest range with both in it.
fn hull(a: ByteRange, b: ByteRange) -> ByteRange {
    let (start, last) = (a.start().min(b.start()), a.last().max(b.last()));
    ByteRange::between(start, last).unwrap_or(a)
}
