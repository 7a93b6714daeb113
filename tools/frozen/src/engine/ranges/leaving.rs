//! How range locks end otherwise than by unlocking: with their client, or by an operator.

use super::super::arena::NONE;
use super::super::conn::{Asker, ConnIndex};
use super::super::ctx::{Core, Ctx};
use super::super::lock::{Locks, SERVED_WORK};
use super::super::owner::OwnerIndex;
use super::super::types::{
    ByteRange, Effect, Effects, Loss, Note, NoteOf, Noted, Push, Refusal, Reply, Sharing,
};
use super::super::{Engine, work};
use super::Ranges;
use super::figures::RangeEnd;
use crate::base::{ConnId, Nanos};
use crate::key::Key;

/// Most range locks that an operator ends, or somebody who leaves lets go, before others have their turn.
const QUANTUM: u32 = 64;

/// An operator ends range locks. Until all of them have ended nothing of their resources is granted, so the
/// break never ends what it has made room for.
pub(super) struct RangeBreak {
    /// The connection that is answered.
    asker: ConnId,
    /// The name that was asked about.
    name: Key,
    broken: Broken,
    /// How many were ended so far.
    ended: i64,
}

/// Which range locks a break ends.
#[derive(Clone, Copy)]
enum Broken {
    /// All of a resource that overlap these bytes. The resource stays until the break is finished.
    Resource { resource: u32, range: ByteRange },
    /// All of a client: holdings from this one on are still to be looked at. None is added meanwhile.
    Client { client: OwnerIndex, from: u32 },
}

/// How far the range locks of a client are recorded. Lists of owners and of holdings are gone through from
/// the front, and an entry that is done moves to the end. What comes meanwhile is recorded when it comes and
/// stands behind, so an entry that leaves, or takes the index of one that has left, leaves nothing out.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct RecordingRanges {
    /// How many owners are left, once it has begun.
    owners_left: Option<u32>,
    /// The first of them, and how many of its holdings are left.
    owner: Option<(u32, u32)>,
    /// The first of those, and from which byte on its segments are left.
    holding: Option<(u32, u64)>,
}

/// Whose a range lock is.
pub(super) struct Whose {
    resource: Key,
    client: OwnerIndex,
    owner: Key,
}

impl Ranges {
    pub(super) fn breaking_memory(&self) -> usize {
        let names = self.breaking.iter().map(|it| it.name.heap_bytes());
        self.breaking.capacity() * size_of::<RangeBreak>() + names.sum::<usize>()
    }

    /// Whether an operator's break of the resource is not finished.
    pub(super) fn is_broken(&self, resource: u32) -> bool {
        self.resources[resource].breaks > 0 || self.client_breaks > 0
    }

    pub(in super::super) fn is_breaking(&self) -> bool {
        !self.breaking.is_empty()
    }
}

impl Locks {
    /// Undoes what an owner that has left holds and waits for, up to `budget` things; returns whether all
    /// is done.
    pub(in super::super) fn depart_ranges(
        &mut self,
        cx: &mut Ctx<'_>,
        client: OwnerIndex,
        budget: &mut u32,
    ) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        while let Some(of_client) = self.ranges.clients.get(&client.0) {
            if *budget == 0 || cx.core.work.spent() >= work_end {
                return false;
            }
            *budget -= 1;
            let owner = of_client.owners.head().expect("a client has owners");
            let it = self.ranges.owner(owner);
            let (waiter, holding) = (it.waiter, it.holdings.head());
            let resource = match waiter {
                NONE => self.ranges.holdings[holding.expect("an owner has something")].resource,
                waiter => cx.core.waiters[waiter].subject,
            };
            let key = self.ranges.resource(resource).key.clone();
            let about = cx.begin(|| Some(key.as_bytes()));
            match (waiter, holding) {
                (NONE, Some(holding)) => {
                    let ended = self.clear_some(cx, holding);
                    let share = self.ranges.resource(resource).share;
                    self.count_ranges_ended(cx, share, RangeEnd::Disconnect, ended);
                }
                _ => self.end_range_wait(cx, waiter, Reply::Refused(Refusal::Detached)),
            }
            self.serve_ranges(cx, resource);
            cx.finish(about);
        }
        self.end_grace_if_done(cx);
        true
    }

    /// The holding lets go of its first bytes: of very many segments only some at a time. Returns how many
    /// those were.
    fn clear_some(&mut self, cx: &mut Ctx<'_>, holding: u32) -> u64 {
        let resource = self.ranges.holding(holding).resource;
        let own = self.ranges.resource(resource).segments.of_owner(holding);
        let first = own.take(QUANTUM as usize).zip(1..);
        let (upto, count) = first.last().expect("a holding has segments");
        let range = ByteRange::between(0, upto.range.last()).expect("from the very first one");
        self.clear_range(cx, holding, range);
        count
    }

    /// The client is known after a restart from now on, so what it holds is recorded, until so much is spent;
    /// returns whether all of it is.
    pub(in super::super) fn record_some_ranges(
        &mut self,
        cx: &mut Ctx<'_>,
        client: OwnerIndex,
        at: &mut RecordingRanges,
        work_end: u64,
    ) -> bool {
        while let Some(of_client) = self.ranges.clients.get_mut(&client.0) {
            let owners_left = at.owners_left.get_or_insert(of_client.owners.len());
            if *owners_left == 0 {
                break;
            }
            if cx.core.work.spent() >= work_end {
                return false;
            }
            cx.core.work.charge(work::LOOK);
            let owner = of_client.owners.head().expect("a client has owners");
            let holdings = &mut self.ranges.owners[owner].holdings;
            let (_, holdings_left) = at
                .owner
                .filter(|it| it.0 == owner)
                .unwrap_or((owner, holdings.len()));
            let Some(holding) = holdings.head().filter(|_| holdings_left > 0) else {
                *owners_left -= 1;
                at.owner = None;
                of_client.owners.unlink(&mut self.ranges.owners, owner);
                of_client.owners.push_back(&mut self.ranges.owners, owner);
                continue;
            };
            let (_, from) = at.holding.filter(|it| it.0 == holding).unwrap_or_default();
            let next = self.record_some_of_holding(cx, holding, from);
            at.holding = next.map(|next| (holding, next));
            at.owner = Some((owner, holdings_left - u32::from(next.is_none())));
            if next.is_none() {
                let holdings = &mut self.ranges.owners[owner].holdings;
                holdings.unlink(&mut self.ranges.holdings, holding);
                holdings.push_back(&mut self.ranges.holdings, holding);
            }
        }
        true
    }

    /// Records some of what a holding has from this byte on; returns where to go on.
    fn record_some_of_holding(&self, cx: &mut Ctx<'_>, holding: u32, from: u64) -> Option<u64> {
        let it = self.ranges.holding(holding);
        let rest = ByteRange::between(from, u64::MAX)?;
        let segments = &self.ranges.resource(it.resource).segments;
        let mut rest = segments.of_owner_overlapping(holding, rest);
        for segment in rest.by_ref().take(QUANTUM as usize) {
            let mode = Some(segment.mode);
            let grant = self.ranges.recorded(cx.core, &segment);
            self.record_range(cx, it.owner, it.resource, segment.range, mode, grant);
        }
        rest.next().map(|next| next.range.start())
    }

    /// Ends some of the range locks that an operator named; returns whether all of them have ended.
    fn break_some_ranges(&mut self, cx: &mut Ctx<'_>, it: &mut RangeBreak) -> bool {
        let work_end = cx.core.work.spent() + SERVED_WORK;
        let mut left = QUANTUM;
        while let Some((holding, range)) = self.next_broken(cx, &mut it.broken, work_end) {
            if left == 0 || cx.core.work.spent() >= work_end {
                return false;
            }
            left -= 1;
            cx.core.work.charge(work::END);
            self.break_range(cx, holding, range);
            it.ended += 1;
        }
        matches!(it.broken, Broken::Resource { .. }) || cx.core.work.spent() < work_end
    }

    /// The next range lock that a break ends. None if no more were found until so much was spent.
    fn next_broken(
        &self,
        cx: &mut Ctx<'_>,
        broken: &mut Broken,
        work_end: u64,
    ) -> Option<(u32, ByteRange)> {
        let ranges = &self.ranges;
        match broken {
            &mut Broken::Resource { resource, range } => {
                // What excludes everything is in conflict with all that is held.
                let segments = &ranges.resource(resource).segments;
                let found = segments.first_conflict(NONE, range, Sharing::Exclusive);
                found.map(|(holding, segment)| (holding, segment.range))
            }
            Broken::Client { client, from } => {
                for (holding, it) in ranges.holdings.slots_from(*from) {
                    *from = holding;
                    if let Some(it) = it.filter(|it| ranges.owner(it.owner).client == *client) {
                        let first = ranges.resource(it.resource).segments.first_of(holding);
                        return first.map(|segment| (holding, segment.range));
                    }
                    cx.core.work.charge(work::LOOK);
                    if cx.core.work.spent() >= work_end {
                        return None;
                    }
                }
                None
            }
        }
    }

    /// A break begins. Queues that it may make room in are not served until it is finished.
    fn begin_range_break(&mut self, asker: ConnId, name: &[u8], broken: Broken) {
        match broken {
            Broken::Resource { resource, .. } => {
                self.ranges.resources[resource].breaks += 1;
                self.ranges.unserved.retain(|&it| it != resource);
            }
            Broken::Client { .. } => self.ranges.client_breaks += 1,
        }
        self.ranges.breaking.push_back(RangeBreak {
            asker,
            name: name.into(),
            broken,
            ended: 0,
        });
    }

    /// A break is finished. After the last one of a resource its queue is served.
    fn finish_range_break(&mut self, cx: &mut Ctx<'_>, broken: Broken) {
        let Broken::Resource { resource, .. } = broken else {
            self.ranges.client_breaks -= 1;
            return;
        };
        let it = &mut self.ranges.resources[resource];
        it.breaks -= 1;
        if it.breaks == 0 {
            if it.to_serve.is_some() {
                self.ranges.unserved.push_back(resource);
            }
            self.serve_ranges(cx, resource);
        }
    }

    /// Of which resource and for whom a holding is, also when it is gone.
    pub(super) fn whose(&self, holding: u32) -> Whose {
        let it = self.ranges.holding(holding);
        let owner = self.ranges.owner(it.owner);
        Whose {
            resource: self.ranges.resource(it.resource).key.clone(),
            client: owner.client,
            owner: owner.name.clone(),
        }
    }

    fn break_range(&mut self, cx: &mut Ctx<'_>, holding: u32, range: ByteRange) {
        let whose = self.whose(holding);
        let resource = self.ranges.holding(holding).resource;
        let share = self.ranges.resource(resource).share;
        let key = whose.resource.clone();
        let about = cx.begin(|| Some(key.as_bytes()));
        self.clear_range(cx, holding, range);
        self.count_ranges_ended(cx, share, RangeEnd::Broken, 1);
        cx.tell_range_lost(&whose, range, Loss::Broken);
        cx.note_range_broken(whose, range);
        self.end_grace_if_done(cx);
        cx.finish(about);
    }

    /// The client that lists show under this name, if it has range locks.
    fn find_range_client(&self, cx: &mut Ctx<'_>, name: &str) -> Option<OwnerIndex> {
        let core = &mut *cx.core;
        let clients = &self.ranges.clients;
        let Some(serial) = name.strip_prefix('#') else {
            let client = core.clients.find(&core.owners, name)?;
            let owner = core.clients[client].owner;
            return clients.contains_key(&owner.0).then_some(owner);
        };
        let serial: u32 = serial.parse().ok()?;
        let is_it = |owner: &OwnerIndex| {
            let it = &core.owners[*owner];
            it.client_id().is_none() && it.conn_id.serial == serial
        };
        core.work.charge_each(clients.len() as u32, work::LOOK);
        clients.keys().map(|it| OwnerIndex(*it)).find(is_it)
    }
}

impl Engine {
    /// All range locks of the resource that overlap these bytes are ended, each as a whole.
    #[cold]
    pub(in super::super) fn break_ranges(
        &mut self,
        now: Nanos,
        id: ConnId,
        resource: &[u8],
        range: Option<ByteRange>,
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        let locks = &mut self.stores.locks;
        let Some(found) = locks.ranges.find(resource) else {
            let (_, mut cx) = self.split(now, now, out);
            return cx.say_about(conn, resource, Reply::Number(0));
        };
        let broken = Broken::Resource {
            resource: found,
            range: range.unwrap_or(ByteRange::ALL),
        };
        locks.begin_range_break(id, resource, broken);
        self.break_if_first(now, out);
    }

    /// All range locks of the client are ended.
    #[cold]
    pub(in super::super) fn break_ranges_of(
        &mut self,
        now: Nanos,
        id: ConnId,
        client: &[u8],
        out: &mut Effects,
    ) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.work.charge(work::REQUEST);
        let (stores, mut cx) = self.split(now, now, out);
        let name = str::from_utf8(client).unwrap_or_default();
        let Some(found) = stores.locks.find_range_client(&mut cx, name) else {
            // Records of unlocks are marked by their resources, not by the client.
            if let Some(records) = &mut cx.core.records {
                records.note_all(client);
            }
            return cx.say_about(conn, client, Reply::Number(0));
        };
        let broken = Broken::Client {
            client: found,
            from: 0,
        };
        stores.locks.begin_range_break(id, client, broken);
        self.break_if_first(now, out);
    }

    /// Begins with the break that was just asked for. Earlier ones come first.
    fn break_if_first(&mut self, now: Nanos, out: &mut Effects) {
        if self.stores.locks.ranges.breaking.len() == 1 {
            self.go_on_breaking_ranges(now, self.core.work.spent() + 1, out);
        }
    }

    /// Goes on with the first of them, and with the others in turn until so much is spent.
    #[cold]
    pub(in super::super) fn go_on_breaking_ranges(
        &mut self,
        now: Nanos,
        slice_end: u64,
        out: &mut Effects,
    ) {
        while let Some(mut it) = self.stores.locks.ranges.breaking.pop_front() {
            let (stores, mut cx) = self.split(now, now, out);
            let locks = &mut stores.locks;
            let is_done = locks.break_some_ranges(&mut cx, &mut it);
            if is_done {
                let about = cx.begin(|| Some(it.name.as_bytes()));
                // What it has ended of all resources is on the disk before it is answered.
                if let (Broken::Client { .. }, Some(records)) = (it.broken, &mut cx.core.records) {
                    records.note_all(it.name.as_bytes());
                }
                if let Some(conn) = cx.core.conns.find(it.asker) {
                    cx.answer_parked(conn, Reply::Number(it.ended));
                }
                locks.finish_range_break(&mut cx, it.broken);
                cx.finish(about);
                if matches!(it.broken, Broken::Client { .. }) {
                    self.go_on_serving_ranges(now, self.core.work.spent() + 1, out);
                }
            } else {
                locks.ranges.breaking.push_back(it);
            }
            if self.core.work.spent() >= slice_end {
                break;
            }
        }
    }
}

impl Ctx<'_> {
    /// Tells a client that it has lost a range lock, on those of its connections that said `hello`.
    pub(super) fn tell_range_lost(&mut self, whose: &Whose, range: ByteRange, why: Loss) {
        for conn in self.core.connections_of(whose.client) {
            if self.core.conns[conn].introduced {
                self.core.work.charge(work::RECIPIENT);
                let lost = Push::RangeLost {
                    resource: whose.resource.clone(),
                    range,
                    owner: whose.owner.clone(),
                    why,
                };
                self.push(conn, lost);
            }
        }
    }

    /// Notes for the log whose range lock an operator has ended.
    fn note_range_broken(&mut self, whose: Whose, range: ByteRange) {
        let client = &self.core.owners[whose.client];
        self.out.push(Effect::Note(Box::new(Note {
            what: Noted::Broken,
            key: whose.resource,
            of: NoteOf::Range {
                range,
                owner: whose.owner,
            },
            conn: client.connection(),
            client: client.client_id().map(Into::into),
            owner: None,
            user: client.user.clone(),
        })));
    }

    /// Answers with something about this resource.
    pub(super) fn say_about(&mut self, conn: ConnIndex, resource: &[u8], reply: Reply) {
        let about = self.begin(|| Some(resource));
        self.reply(conn, reply);
        self.finish(about);
    }
}

/// For checks.
impl Locks {
    /// Checks what must hold of byte ranges; returns how many wait for some.
    pub(in super::super) fn check_ranges(&self, core: &Core) -> usize {
        let it = &self.ranges;
        let (mut segments, mut waiters) = (0, 0);
        for (resource, at) in it.resources.iter() {
            at.segments.check();
            segments += at.segments.len();
            waiters += at.queue.iter(&core.waiters).count();
            let breaks = it.breaking.iter().filter(|it| {
                matches!(it.broken, Broken::Resource { resource: broken, .. } if broken == resource)
            });
            assert_eq!(at.breaks as usize, breaks.count(), "breaks are miscounted");
            let is_held = !at.segments.is_empty() || !at.queue.is_empty();
            assert!(
                at.to_serve.is_some() || at.breaks > 0 || is_held,
                "{:?} is not used by anybody",
                at.key
            );
            assert_eq!(
                at.to_serve.is_some() && at.breaks == 0,
                it.unserved.contains(&resource),
                "{:?} is to be served, or not",
                at.key
            );
            for (holding, _) in at.segments.iter() {
                assert_eq!(it.holdings[holding].resource, resource, "in another's list");
            }
            self.check_range_queue(core, resource);
        }
        assert_eq!(segments, it.segments, "segments are miscounted");
        assert_eq!(waiters, it.wants.len(), "a wish without a waiter");
        let all = it.resources.iter();
        let shared: usize = all.map(|(_, at)| at.segments.len_of(Sharing::Shared)).sum();
        assert_eq!(shared, it.shared, "shared segments are miscounted");
        let mut waiting = [0; 2];
        it.wants
            .iter()
            .for_each(|(_, want)| waiting[want.mode as usize] += 1);
        assert_eq!(waiting, it.waiting, "waiters are miscounted");
        let of_clients: u32 = it.clients.values().map(|it| it.segments).sum();
        assert_eq!(of_clients as usize, segments, "segments of clients");
        for (&client, of_client) in &it.clients {
            assert!(core.owners[OwnerIndex(client)].has_ranges, "is not noted");
            assert!(!of_client.owners.is_empty(), "a client without owners");
        }
        for (holding, at) in it.holdings.iter() {
            let own = || it.resources[at.resource].segments.of_owner(holding);
            assert_eq!(own().count(), at.segments as usize, "of a holding");
            let pending = own().filter(|it| it.pending()).count();
            assert!(
                !it.grace.is_active() || pending == at.pending as usize,
                "pending segments are miscounted"
            );
            assert!(
                it.grace.is_active() || pending == 0,
                "pending after its time"
            );
        }
        let with_ranges = core.owners.iter().filter(|(_, it)| it.has_ranges).count();
        assert_eq!(with_ranges, it.clients.len(), "who has ranges");
        it.resources.check();
        it.owners.check();
        waiters
    }

    /// Nobody waits for what nobody holds or waits for.
    fn check_range_queue(&self, core: &Core, resource: u32) {
        let at = self.ranges.resource(resource);
        if at.to_serve.is_some() || core.draining || core.cuts_off {
            return;
        }
        let mut before = Vec::new();
        for waiter in at.queue.iter(&core.waiters) {
            let (of, wants) = self.waited_range(core, waiter);
            assert_eq!(of, resource, "a waiter is in another resource's queue");
            assert_eq!(self.ranges.owner(wants.owner).waiter, waiter, "waits twice");
            let holding = self.ranges.holding_of(wants.owner, resource);
            let found = at.segments.first_conflict(holding, wants.range, wants.mode);
            let is_behind = before
                .iter()
                .any(|it: &super::RangeWant| it.excludes(&wants));
            assert!(
                found.is_some() || is_behind || !core.is_present(waiter),
                "{:?} has bytes that nobody has and somebody waits for",
                at.key
            );
            before.push(wants);
        }
    }
}
