//! The lock table: pure, deterministic, infallible.
//!
//! [`Engine::apply`] is the one entry point: it takes an [`Input`] with its time, and appends to a
//! list of [`Effect`]s what the server has to do. The engine itself has no socket,
//! no clock, no log, no random numbers and no way to fail. Other public functions only look
//! (`view.rs`), but for one that takes the count of work done (`work.rs`).
//!
//! Read `types.rs` first, then `lock.rs`. Each primitive has a file; they share what is in
//! `ctx.rs`.

mod arena;
mod barrier;
mod breaking;
mod check;
mod clients;
mod clients_leaving;
mod conn;
mod counter;
mod crowd;
mod ctx;
mod due;
mod election;
mod fence;
mod figures;
mod gc;
mod holder;
mod image;
mod keeping;
mod kv;
mod lapsed;
mod lease;
mod leaving;
mod list;
mod lock;
mod named;
mod named_owner;
mod owner;
mod pattern;
mod queue;
mod ranges;
mod rank;
mod record;
mod registered;
mod restore;
mod rules;
mod salts;
mod secret;
mod shapes;
mod shares;
mod signal;
mod subscribers;
mod subscriptions;
mod table;
mod time;
mod two_phase;
pub mod types;
mod unserved;
mod users;
mod uses;
mod versions;
pub mod view;
mod waits;
mod watch;
mod work;

use std::collections::VecDeque;

use self::arena::NONE;
use self::barrier::Barriers;
use self::breaking::Breaking;
pub use self::clients::ADAPTERS_MAX;
pub use self::clients::AdapterCounts;
use self::clients::{Client, Clients};
use self::conn::{Asker, Conn, Conns};
use self::counter::Counters;
use self::ctx::{Core, Ctx};
use self::fence::Fences;
pub use self::figures::{Figures, HeldFigures, Limit};
pub use self::holder::Held;
use self::kv::Kv;
use self::list::Lists;
use self::lock::Locks;
use self::owner::{Owner, OwnerIndex, Owners, Presence};
use self::queue::{Awaiting, Waiter, Waiters};
pub use self::ranges::figures::{RangeEnd, RangeFigures};
pub use self::ranges::view::{HoldingView, RangeCounts, RangeShown, RangesView};
use self::record::Records;
use self::restore::Restored;
pub use self::rules::{ClientLimit, GracePolicy, Origin, Rules};
pub use self::salts::SaltKey;
pub use self::shapes::LONG_SHAPES_MAX;
use self::shares::Shares;
pub use self::shares::{EndReason, HeldType, SHARES_MAX, ShareFigures, Status};
pub use self::subscriptions::{GROUPS_PER_PATTERN_MAX, MEMBERS_VISITED_MAX, SHAPES_PER_CONN_MAX};
use self::subscriptions::{Subscriptions, Topic};
pub use self::table::{Census, Kind};
use self::time::{Departing, SLICE};
use self::types::{Effect, Effects, Input, Notes, Record, Refusal, Reply, Request};
pub use self::waits::SearchLimits;
pub use self::waits::edges::{Edge, Someone};
use self::work::Work;
use crate::base::{ConnId, Millis, Nanos};
use crate::histogram::Histogram;
use crate::memory::block_bytes;
use crate::timers::{GroupTimers, Timers};

/// How many grants were made, and how they ended. `grants` less the others is what is held
/// now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Grants made.
    pub grants: u64,
    /// Grants that were released.
    pub releases: u64,
    /// Grants whose lease ended.
    pub expiries: u64,
    /// Grants whose connection ended.
    pub disconnects: u64,
    /// Grants that an operator has ended.
    pub breaks: u64,
}

/// How grants ended that were not released. The others are counted elsewhere already: see
/// `Engine::tally`.
#[derive(Default)]
struct Ends {
    /// How long after its lease each of those grants ended.
    lateness: Histogram,
    lateness_ns_max: u64,
    disconnects: u64,
    breaks: u64,
}

/// One store per primitive.
struct Stores {
    locks: Locks,
    counters: Counters,
    kv: Kv,
    lists: Lists,
    barriers: Barriers,
}

/// The lock table, and the tables of everything else.
pub struct Engine {
    stores: Stores,
    core: Core,
    departing: Departing,
    breaking: Breaking,
    /// At shutdown: those that were parked when it began and are not refused yet.
    still_parked: VecDeque<ConnId>,
    /// The last [`Input::Time`] left something over, if only memory to give back.
    unfinished: bool,
}

impl Engine {
    /// An empty table.
    #[must_use]
    pub fn new(rules: Rules, origin: Origin) -> Self {
        let seed = origin.seed;
        let records = rules.durable.then(|| Box::new(Records::new(seed)));
        let heeds_ends = rules.notes != Notes::Off;
        Self {
            stores: Stores {
                locks: Locks::new(seed),
                counters: Counters::new(seed),
                kv: Kv::new(seed),
                lists: Lists::new(seed),
                barriers: Barriers::new(seed),
            },
            core: Core {
                rules,
                timers: GroupTimers::new(),
                background: Timers::new(),
                conns: Conns::new(),
                owners: Owners::new(seed),
                clients: Clients::new(seed),
                waiters: Waiters::new(),
                fences: Fences::new(origin.fence, origin.salt_key),
                ends: Ends::default(),
                figures: Figures::default(),
                subscriptions: [Topic::Listen, Topic::Watch, Topic::Observe]
                    .map(|topic| Subscriptions::new(topic, seed)),
                keys: 0,
                draining: false,
                cuts_off: false,
                memory_full: false,
                storage_full: false,
                records,
                restored: Restored::default(),
                work: Work::default(),
                hang_ups: 0,
                keepers: 0,
                shares: Shares::default(),
                heeds_grants: heeds_ends,
                heeds_ends,
            },
            departing: Departing::default(),
            breaking: Breaking::default(),
            still_parked: VecDeque::new(),
            unfinished: false,
        }
    }

    /// Takes one input and appends its consequences to `out`.
    #[inline(always)] // every caller knows which input it has, so the match costs nothing
    pub fn apply(&mut self, now: Nanos, input: Input<'_>, out: &mut Effects) {
        match input {
            Input::Request(id, request) if self.core.is_durable() => {
                self.decide_durably(now, id, &request, out);
            }
            Input::Request(id, request) => self.decide(now, id, None, &request, out),
            Input::RequestBy(id, by, request) => self.decide_by(now, id, by, &request, out),
            Input::Break(id, key, fence) => self.break_grant(now, id, key, fence, out),
            Input::BreakAll(id, key, fence) => self.break_all(now, id, key, fence, out),
            Input::Attach(id, attach) => self.attach(now, id, attach, out),
            Input::Detach(id, client, secret) => self.detach(now, id, client, secret, out),
            Input::Range(id, of, request) => self.range(now, id, of, request, out),
            Input::ReclaimDone(id, client, secret) => {
                self.reclaim_done(now, id, client, secret, out);
            }
            Input::Grace { conn, ends } => self.tell_grace(now, conn, ends, out),
            Input::BreakRanges(id, resource, range) => {
                self.break_ranges(now, id, resource, range, out);
            }
            Input::BreakRangesOf(id, client) => self.break_ranges_of(now, id, client, out),
            Input::Register(id, attach) => self.register(now, id, attach, out),
            Input::Hello(id, name) => self.introduce(id, name),
            Input::DetectDeadlocks(id, detects) => {
                let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
                self.core.conns[conn].detects_deadlocks = detects;
            }
            Input::Keep(id, keeps) => self.keep(id, keeps),
            Input::LetIn(id, user) => self.let_in(id, user),
            Input::HungUp(id, hung_up) => self.note_hung_up(now, id, hung_up, out),
            Input::Stalled(id, stalled) => self.note_stalled(now, id, stalled),
            Input::OwnerStalled(name, stalled) => {
                self.stores.locks.asks.set_stalled(now, name, stalled);
            }
            Input::ClientStalled(client, stalled) => {
                self.core.clients.set_asked_for(client, stalled);
            }
            Input::Shares(shares) => self.set_shares(shares),
            Input::Overrun(id, overrun) => {
                if let Some(conn) = self.core.conns.find(id) {
                    self.core.conns.set_overrun(conn, overrun);
                }
            }
            Input::Disconnected(id) => self.disconnect(now, id, Presence::Leaving, out),
            Input::CutOff(id) => {
                self.core.cuts_off = true;
                self.disconnect(now, id, Presence::CutOff, out);
            }
            Input::Unsent(popped) => {
                let (stores, mut cx) = self.split(now, now, out);
                stores.lists.give_back(&mut cx, popped);
            }
            Input::Time(work) => self.pass_time(now, work, out),
            Input::MemoryFull(full) => self.core.memory_full = full,
            Input::StorageFull(full) => self.core.storage_full = full,
            Input::Durable(number) => {
                if let Some(records) = &mut self.core.records {
                    records.note_kept(number, now);
                }
                self.go_on_starting(now, self.core.work.spent() + SLICE, out);
            }
            Input::Restore(record) => self.restore(now, record, out),
            Input::Serve { may_have_lost } => self.serve(now, may_have_lost, out),
            Input::Drain => self.drain(now, out),
        }
    }

    /// The one place where requests are decided, whoever asks: the connection for itself, or for an
    /// owner that is known by name. What it calls has no other caller, and so becomes a part of it.
    fn decide(
        &mut self,
        now: Nanos,
        id: ConnId,
        named: Option<OwnerIndex>,
        request: &Request<'_>,
        out: &mut Effects,
    ) {
        let mut asker = self.core.conns.asker(id, &mut self.core.owners);
        if let Some(owner) = named {
            asker.owner = owner;
        }
        let Asker { conn, .. } = asker;
        let lease_default = self.core.rules.lease_default;
        self.core.work.charge(work::REQUEST);
        let (stores, mut cx) = self.split(now, now, out);
        let Stores {
            locks,
            counters,
            kv,
            lists,
            barriers,
        } = stores;
        let cx = &mut cx;
        match *request {
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            } => {
                locks.acquire(cx, asker, key, mode, wait, lease.unwrap_or(lease_default));
            }
            Request::Enqueue { key, mode, lease } => {
                locks.enqueue(cx, asker, key, mode, lease.unwrap_or(lease_default));
            }
            Request::Wait { key, wait } => locks.wait(cx, asker, key, wait),
            Request::Release { key, token } => locks.release(cx, asker, key, token),
            Request::Renew { key, token, lease } => {
                locks.renew(cx, asker, key, token, lease.unwrap_or(lease_default));
            }
            Request::Reclaim { key, token, lease } => locks.reclaim(cx, asker, key, token, lease),
            Request::Position { key } => locks.position(cx, asker, key),
            Request::Resign { key, token } => locks.resign(cx, asker, key, token),
            Request::Observe { key } => locks.observe(cx, conn, key),
            Request::Unobserve { key } => signal::unsubscribe(cx, Topic::Observe, conn, key, b""),
            Request::Add { key, delta, down } => counters.add(cx, conn, key, delta, down),
            Request::Count { key } => counters.get(cx, conn, key),
            Request::SetCount { key, value } => counters.set(cx, conn, key, value),
            Request::Put { key, value, ttl } => kv.put(cx, conn, key, value, ttl),
            Request::Fetch { key } => kv.fetch(cx, conn, key),
            Request::Delete { key } => kv.delete(cx, conn, key),
            Request::Swap { key, old, new, ttl } => kv.swap(cx, conn, key, [old, new], ttl),
            Request::Push { key, value, end } => lists.push(cx, conn, key, value, end),
            Request::Pop { key, end } => lists.pop(cx, conn, key, end),
            Request::AwaitPop { key, end, wait } => lists.await_pop(cx, asker, key, end, wait),
            Request::Length { key } => lists.length(cx, conn, key),
            Request::Range {
                key,
                start,
                stop,
                form,
            } => lists.range(cx, conn, key, [start, stop], form),
            Request::Meet { key, count, wait } => barriers.meet(cx, asker, key, count, wait),
            Request::Listen { pattern, group } => {
                signal::subscribe(cx, Topic::Listen, conn, pattern, group);
            }
            Request::Unlisten { pattern, group } => {
                signal::unsubscribe(cx, Topic::Listen, conn, pattern, group);
            }
            Request::Signal { channel, payload } => signal::signal(cx, conn, channel, payload),
            Request::Watch { pattern } => signal::subscribe(cx, Topic::Watch, conn, pattern, b""),
            Request::Unwatch { pattern } => {
                signal::unsubscribe(cx, Topic::Watch, conn, pattern, b"");
            }
        }
    }

    /// The same, if changes are recorded: refuses what there is no room for, and marks the rest. A
    /// function of its own, so that nobody else pays for it.
    #[cold]
    fn decide_durably(&mut self, now: Nanos, id: ConnId, request: &Request<'_>, out: &mut Effects) {
        let at = out.len();
        if self.lacks_room(request) {
            self.refuse_for_room(id, out);
            return self.core.mark(None, at, out);
        }
        self.decide(now, id, None, request, out);
        self.core.mark(Some(request), at, out);
    }

    /// Whether the request takes room while the store has none. During a drain a new hold is not
    /// refused for that: its answer is that the daemon stops.
    fn lacks_room(&self, request: &Request<'_>) -> bool {
        let is_new_hold = matches!(request, Request::Acquire { .. } | Request::Enqueue { .. });
        let is_draining = self.core.draining && is_new_hold;
        self.core.storage_full && request.takes_room() && !is_draining
    }

    fn refuse_for_room(&mut self, id: ConnId, out: &mut Effects) {
        self.core.figures.refused(Refusal::Storage);
        out.push(Effect::Reply(id, Reply::Refused(Refusal::Storage)));
    }

    /// How long clients waited and held.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.core.figures
    }

    /// Takes what was recorded since the last call, in the order of the decisions. The server does
    /// so after every input, and before it lets anything out that the input had as a consequence.
    pub fn take_records(&mut self) -> impl Iterator<Item = Record> {
        self.core.records.iter_mut().flat_map(|it| it.take())
    }

    /// How many records there were so far, which is the number of the last one.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.core.records.as_ref().map_or(0, |it| it.count())
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    fn tidy(&mut self) -> bool {
        let it = &mut self.stores;
        it.locks.holders.tidy()
            || it.locks.recorded.tidy()
            || it.locks.asks.tidy()
            || it.locks.table.tidy()
            || it.locks.tickets.tidy()
            || it.locks.ranges.tidy()
            || it.counters.named.tidy()
            || it.kv.named.tidy()
            || it.lists.named.tidy()
            || it.barriers.named.tidy()
            || self.core.waiters.tidy()
            || self.core.timers.tidy()
            || self.core.background.tidy()
            || self.core.conns.tidy()
            || self.core.owners.tidy()
            || self.core.clients.tidy()
            || self.core.subscriptions.iter_mut().any(Subscriptions::tidy)
    }

    /// The server has refused a request or a connection itself, before it came here: if there is a limit
    /// behind it, that counts.
    #[cold]
    pub fn note_refused(&mut self, why: Refusal) {
        self.core.figures.refused(why);
    }

    /// What all inputs since the last call cost, in units of about a nanosecond (`work.rs`).
    pub fn take_work(&mut self) -> u64 {
        self.core.work.take()
    }

    /// How much of that [`Input::Time`] spent on what ended connections left behind.
    pub fn take_departing_work(&mut self) -> u64 {
        self.departing.take_spent()
    }

    fn introduce(&mut self, id: ConnId, name: Option<&str>) {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        self.core.conns[conn].introduced = true;
        if let Some(name) = name {
            let own = self.core.conns[conn].own;
            self.core.owners.set_name(own, name);
        }
    }

    /// How many bytes everything that is kept takes: what all tables have allocated, vacant entries
    /// included, and every name and value that is stored for itself. Takes a few dozen additions
    /// and looks at no entry.
    #[must_use]
    pub fn memory(&self) -> usize {
        let Stores {
            locks,
            counters,
            kv,
            lists,
            barriers,
        } = &self.stores;
        let Core {
            timers,
            background,
            conns,
            owners,
            clients,
            waiters,
            subscriptions,
            records,
            shares,
            ..
        } = &self.core;
        locks.memory()
            + shares.memory()
            + records.as_ref().map_or(0, |it| it.memory())
            + counters.named.memory()
            + kv.named.memory()
            + lists.named.memory()
            + barriers.named.memory()
            + timers.memory()
            + background.memory()
            + conns.memory()
            + owners.memory()
            + clients.memory()
            + waiters.memory()
            + subscriptions
                .iter()
                .map(Subscriptions::memory)
                .sum::<usize>()
    }

    /// What one connection takes that has asked for something.
    pub const CONNECTION_BYTES: usize = conn::RECORD_BYTES + owner::RECORD_BYTES;

    /// How much of that is for connections themselves, whatever they hold and wait for.
    #[must_use]
    pub fn connections_memory(&self) -> usize {
        self.core.conns.memory() + self.core.owners.memory()
    }

    /// Whether the client may call itself so: at the bound on memory, if it has had as long a name
    /// before.
    #[must_use]
    pub fn has_room_for_name(&self, id: ConnId, name: Option<&str>) -> bool {
        let bytes = |name: Option<&str>| name.map_or(0, |name| block_bytes(name.len()));
        !self.core.memory_full || name.is_none() || bytes(name) <= bytes(self.name_of(id))
    }

    /// What the client called itself in [`Input::Hello`].
    #[must_use]
    pub fn name_of(&self, id: ConnId) -> Option<&str> {
        let conn = self.core.conns.find(id)?;
        self.core.owners[self.core.conns[conn].own].name.as_deref()
    }

    /// Whether requests of this connection are refused rather than wait for themselves.
    #[must_use]
    pub fn detects_deadlocks(&self, id: ConnId) -> bool {
        let conn = self.core.conns.find(id);
        let asked = conn.is_some_and(|conn| self.core.conns[conn].detects_deadlocks);
        self.core.rules.deadlock_detection || asked
    }

    /// Whether the peer has hung up, and has yet to be served to its end. Costs little, because all who
    /// hang up in a turn are noted before anything else is done. Sends no answer.
    fn note_hung_up(&mut self, now: Nanos, id: ConnId, hung_up: bool, out: &mut Effects) {
        let Some(conn) = self.core.conns.find(id) else {
            return;
        };
        self.core.conns[conn].hung_up = hung_up;
        self.core.hang_ups += 1;
        let parked = self.core.conns[conn].parked;
        if !hung_up || parked == NONE {
            return;
        }
        let (stores, mut cx) = self.split(now, now, out);
        match cx.core.waiters[parked].awaiting {
            Awaiting::Hold(_) => stores.locks.note_hung_up(&cx, parked),
            Awaiting::Pop(_) => {}
            Awaiting::Barrier => stores.barriers.note_hung_up(&mut cx, parked),
            Awaiting::Range(_) => stores.locks.note_range_hung_up(cx.core, parked),
        }
    }

    /// A shutdown begins: from here on nobody is parked, nor granted what it is parked for. To find
    /// who is parked is one walk over all connections, once in the life of the daemon: a hundred
    /// thousand take a millisecond. They are refused a part at a time.
    fn drain(&mut self, now: Nanos, out: &mut Effects) {
        self.core.draining = true;
        let conns = self.core.conns.iter().filter(|it| it.parked != NONE);
        self.still_parked = conns.map(|it| it.id).collect();
        self.go_on_sending_away(now, self.core.work.spent() + SLICE, out);
        self.go_on_granting(now, self.core.work.spent() + SLICE, out);
    }

    /// When the next [`Input::Time`] must come at the latest: never later than the earliest
    /// deadline, sometimes earlier; 0 if something is left over from the last one.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.unfinished || self.has_begun() {
            return Some(Nanos(0));
        }
        let (owners, background) = (&self.core.timers, &self.core.background);
        let deadlines = [owners.next_deadline(), background.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the client would lose something if the connection were cut: a hold, a ticket, a wait,
    /// a subscription, or the connection that keeps it from being away.
    #[must_use]
    pub fn owns_something(&self, id: ConnId) -> bool {
        self.find_owner(id).is_some_and(|(conn, own, _)| {
            conn.parked != NONE
                || conn.is_attached()
                || !own.owns_nothing()
                || conn.subscription_count() > 0
        })
    }

    /// Whether the client holds a key.
    #[must_use]
    pub fn holds_something(&self, id: ConnId) -> bool {
        self.find_owner(id)
            .is_some_and(|(_, own, owner)| own.holds_something() || owner.holds_something())
    }

    /// Whether the client listens to, watches or observes something.
    #[must_use]
    pub fn has_subscriptions(&self, id: ConnId) -> bool {
        self.find_owner(id)
            .is_some_and(|(conn, ..)| conn.subscription_count() > 0)
    }

    /// Whether a shutdown waits for the connection: it is parked, or would lose something.
    #[must_use]
    pub fn has_unfinished(&self, id: ConnId) -> bool {
        let is_parked = |conn: &Conn| conn.parked != NONE;
        self.find_owner(id)
            .is_some_and(|(conn, ..)| is_parked(conn))
            || self.would_lose_something(id)
    }

    /// Whether the connection's owner would lose something by a restart: a ticket whose lease has not
    /// ended, a hold or a byte range. Holds that are recorded outlive a restart, and so do the ranges of
    /// attached clients. Subscriptions do not count.
    #[must_use]
    pub fn would_lose_something(&self, id: ConnId) -> bool {
        self.find_owner(id).is_some_and(|(_, own, owner)| {
            let would_lose = |it: &Owner| {
                let has_holds = !self.core.is_durable() && !it.holds.is_empty();
                // Ranges are recorded only for clients that are known after a restart.
                let is_recorded = |it: &Client| it.ttl > Millis::ZERO && it.recording.is_none();
                let is_kept = self.core.is_durable()
                    && it.client != NONE
                    && is_recorded(&self.core.clients[it.client]);
                it.has_live_ticket() || has_holds || (it.has_ranges && !is_kept)
            };
            would_lose(own) || would_lose(owner)
        })
    }

    /// The connection, its own owner, and the one it acquires for.
    fn find_owner(&self, id: ConnId) -> Option<(&Conn, &Owner, &Owner)> {
        let conn = &self.core.conns[self.core.conns.find(id)?];
        let [own, owner] = [conn.own, conn.owner].map(|it| &self.core.owners[it]);
        Some((conn, own, owner))
    }

    fn split<'e>(
        &'e mut self,
        now: Nanos,
        moment: Nanos,
        out: &'e mut Effects,
    ) -> (&'e mut Stores, Ctx<'e>) {
        let core = &mut self.core;
        let cx = Ctx {
            now,
            moment,
            out,
            core,
        };
        (&mut self.stores, cx)
    }
}

impl Stores {
    /// The timer of a parked command fired.
    fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        match cx.core.waiters[waiter].awaiting {
            Awaiting::Hold(_) => self.locks.wait_ended(cx, waiter),
            Awaiting::Pop(_) => self.lists.wait_ended(cx, waiter),
            Awaiting::Barrier => self.barriers.wait_ended(cx, waiter),
            Awaiting::Range(_) => self.locks.range_wait_ended(cx, waiter),
        }
    }

    /// The name of what this waiter waits for, if changes of it are recorded.
    fn awaited_key(&self, core: &Core, waiter: u32) -> Option<&[u8]> {
        let Waiter {
            subject, awaiting, ..
        } = &core.waiters[waiter];
        match awaiting {
            Awaiting::Hold(_) => Some(self.locks.table[*subject].key.as_bytes()),
            Awaiting::Pop(_) => Some(self.lists.named[*subject].key.as_bytes()),
            Awaiting::Barrier => None,
            Awaiting::Range(_) => Some(self.locks.ranges.resource(*subject).key.as_bytes()),
        }
    }

    /// At shutdown: refuses a parked command and takes it out of its queue.
    fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let about = cx.begin(|| None);
        match cx.core.waiters[waiter].awaiting {
            Awaiting::Hold(_) => self.locks.send_away(cx, waiter),
            Awaiting::Pop(_) => self.lists.send_away(cx, waiter),
            Awaiting::Barrier => self.barriers.send_away(cx, waiter),
            Awaiting::Range(_) => self.locks.send_range_away(cx, waiter),
        }
        cx.finish(about);
    }

    /// Takes a waiter out of the queue it is in, without an answer.
    fn leave_queue(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let about = cx.begin(|| self.awaited_key(cx.core, waiter));
        match cx.core.waiters[waiter].awaiting {
            Awaiting::Hold(_) => self.locks.leave_queue(cx, waiter),
            Awaiting::Pop(_) => self.lists.give_up(cx, waiter),
            Awaiting::Barrier => self.barriers.give_up(cx, waiter),
            Awaiting::Range(_) => self.locks.give_up_range(cx, waiter),
        }
        cx.finish(about);
    }
}
