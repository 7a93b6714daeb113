//! Read-only views of the table: for `stats`, `who` and tests. What is checked is in `check.rs`.
//!
//! Everything comes in a fixed order (that of the table's chains), so that two runs with the same
//! inputs show the same. Never changes anything, and never walks further than its caller asks.

use super::arena::{NONE, Stored};
use super::barrier::Barrier;
use super::conn::{Conn, ConnIndex};
use super::list::List;
use super::named::Named;
use super::owner::NOBODY;
use super::subscriptions::{Subscriptions, Topic};
use super::table::{Census, Kind, Resource};
use super::types::Request;
use super::{AdapterCounts, Ends, Engine, Stores, Tally};
use crate::base::{ConnId, Fence, Millis, Nanos, Token};
use crate::histogram::Histogram;

/// The table as it is at one instant.
#[derive(Clone, Copy)]
pub struct View<'e> {
    pub(super) engine: &'e Engine,
    pub(super) now: Nanos,
}

/// One key.
#[derive(Clone, Copy)]
pub struct KeyView<'e> {
    pub(super) view: View<'e>,
    pub(super) it: &'e Resource,
}

/// One grant.
#[derive(Clone, Copy, Debug)]
pub struct HolderView<'e> {
    /// The grant's fence.
    pub fence: Fence,
    /// The connection it was granted to; none if it belongs to a client or to an owner that is known by
    /// its name, or if it was restored after a restart and nobody has shown its token since.
    pub conn: Option<ConnId>,
    /// The client that it belongs to.
    pub client: Option<&'e str>,
    /// The name that its connection gave in `hello`, or by which its owner is known.
    pub name: Option<&'e str>,
    /// Whom its connection was let in as, or the last one that acquired for its owner.
    pub user: Option<&'e str>,
    /// Whether it belongs to an owner that is known by its name, and not to a connection.
    pub is_named: bool,
    /// What a release or a renewal has to show.
    pub token: Token,
    /// How often the lock has changed; 0 if the grant does not belong to an owner that is known by
    /// its name.
    pub version: u64,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: &'static str,
    /// Nanoseconds since the grant.
    pub age_ns: u64,
    /// Nanoseconds until the lease ends; 0 if it is about to.
    pub lease_left_ns: u64,
    /// Whether the lease runs. It does not before its client may be told of it.
    pub has_begun: bool,
}

/// One waiter in the queue of a key.
#[derive(Clone, Copy, Debug)]
pub struct WaiterView<'e> {
    /// The connection that waits. It has the serial number 0 if this is a place of a client that none of
    /// its connections waits for just now.
    pub conn: ConnId,
    /// The client that waits.
    pub client: Option<&'e str>,
    /// Whether it waits for an owner that is known by its name.
    pub is_named: bool,
    /// The name that its connection gave in `hello`.
    pub name: Option<&'e str>,
    /// Whom its connection was let in as.
    pub user: Option<&'e str>,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: &'static str,
    /// Nanoseconds in the queue.
    pub age_ns: u64,
}

/// What one connection has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnView<'e> {
    /// The name that it gave in `hello`.
    pub name: Option<&'e str>,
    /// Whom it was let in as.
    pub user: Option<&'e str>,
    /// The client that it has attached to.
    pub client: Option<&'e str>,
    /// How many grants its owner holds.
    pub held: u32,
    /// How many queues its owner waits in, or it for another owner.
    pub waiting: u32,
}

/// What is shown of a client. Its secret never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientView<'e> {
    /// Its id.
    pub id: &'e str,
    /// What stands in it before the first `/`.
    pub adapter: &'e str,
    /// How long it is kept while it has no connection.
    pub ttl: Millis,
    /// How many connections are attached to it.
    pub connections: u32,
    /// How often it has come back after it had none, since the server was started.
    pub generation: u32,
    /// How many keys it holds.
    pub held: u32,
    /// How many range locks it has.
    pub range_locks: u32,
    /// Nanoseconds since it became known to this process.
    pub since_ns: u64,
    /// Nanoseconds since it was last heard of; 0 while it has a connection.
    pub seen_ns: u64,
}

/// A counter, a value, a list or a barrier.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'e, W> {
    /// Its name.
    pub key: &'e [u8],
    /// Nanoseconds since its last use.
    pub idle_ns: u64,
    /// What is shown of it.
    pub what: W,
}

/// What is shown of a value.
#[derive(Clone, Copy, Debug)]
pub struct ValueView {
    /// Its length.
    pub bytes: usize,
    /// Nanoseconds until its time to live is over, if it has one.
    pub ttl_ns: Option<u64>,
}

impl ValueView {
    /// Whether its time to live is over: it is gone for everybody who asks for it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ttl_ns == Some(0)
    }
}

/// How much of everything there is. All are zero once all clients have left, nothing is stored,
/// and idle keys are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys of locks, in use and idle.
    pub keys: usize,
    /// Counters, values, lists and barriers.
    pub others: usize,
    /// Subscriptions of all clients: what they listen to, watch and observe.
    pub subscriptions: usize,
    /// Patterns and groups, and records by which they are found and counted.
    pub patterns: usize,
    /// Grants.
    pub holders: usize,
    /// Waiters in all queues.
    pub waiters: usize,
    /// Enqueues not yet waited for.
    pub tickets: usize,
    /// Owners that are connected, or still hold something.
    pub owners: usize,
    /// Clients, with a connection or away.
    pub clients: usize,
    /// Connections that have asked for something and have not left.
    pub connections: usize,
    /// Armed timers.
    pub timers: usize,
}

impl Engine {
    /// A view of everything, as it is now.
    #[must_use]
    pub fn view(&self, now: Nanos) -> View<'_> {
        View { engine: self, now }
    }

    /// How long a lease still runs; all of it if it has not begun.
    fn lease_left_ns(&self, holder: u32, now: Nanos) -> u64 {
        let locks = &self.stores.locks;
        match self.core.timers.deadline(locks.holders[holder].timer) {
            Nanos::NEVER => now.after(locks.recorded[holder].asked).since(now),
            deadline => deadline.since(now),
        }
    }

    /// How often a lock has changed; 0 if its changes are not counted.
    fn version(&self, resource: u32) -> u64 {
        let epoch = self.core.rules.epoch;
        let version = self.stores.locks.table.version(resource, epoch);
        version.unwrap_or(0)
    }

    /// How much of everything there is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.stores.locks.table.len(),
            others: self.core.keys as usize,
            subscriptions: self.core.subscriptions.iter().map(Subscriptions::len).sum(),
            patterns: self
                .core
                .subscriptions
                .iter()
                .map(Subscriptions::record_count)
                .sum(),
            holders: self.stores.locks.holders.len(),
            waiters: self.core.waiters.len(),
            tickets: self.stores.locks.tickets.len(),
            owners: self.core.owners.len(),
            clients: self.core.clients.len(),
            connections: self.core.conns.len(),
            timers: self.core.timers.len() + self.core.background.len(),
        }
    }

    /// Whether the answer to a request carries at most `bytes_max` bytes of values. Looks at few
    /// values. False for requests whose answers carry none.
    #[cold]
    #[must_use]
    pub fn is_answer_short(&self, request: &Request<'_>, bytes_max: usize) -> bool {
        let Stores { kv, lists, .. } = &self.stores;
        match *request {
            Request::Fetch { key } => {
                let entry = kv.named.look(key);
                entry.is_none_or(|it| it.value.len() <= bytes_max)
            }
            Request::Pop { key, end } => {
                let next = lists.next_value(key, end);
                next.is_none_or(|it| it.len() <= bytes_max)
            }
            // A value that it waits for may be long.
            Request::AwaitPop { key, end, wait } => lists
                .next_value(key, end)
                .map_or(wait == Millis::ZERO, |it| it.len() <= bytes_max),
            Request::Range {
                key, start, stop, ..
            } => lists.is_part_short(key, [start, stop], bytes_max),
            _ => false,
        }
    }

    /// How many grants were made.
    #[must_use]
    pub fn grants(&self) -> u64 {
        self.core.fences.count()
    }

    /// How many grants were made, and how they ended.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let Ends {
            ref lateness,
            disconnects,
            breaks,
            ..
        } = self.core.ends;
        let expiries = lateness.count();
        Tally {
            grants: self.grants(),
            releases: self.core.figures.ends() - expiries - disconnects - breaks,
            expiries,
            disconnects,
            breaks,
        }
    }
}

impl<'e> View<'e> {
    /// How long after the end of their lease grants ended, and the longest of these times.
    #[must_use]
    pub fn expiry_lateness(self) -> (&'e Histogram, u64) {
        let ends = &self.engine.core.ends;
        (&ends.lateness, ends.lateness_ns_max)
    }

    /// Keys in use of one kind (a position in [`Census`]), those that have been in use longest
    /// first.
    pub fn in_use(self, kind: usize) -> impl Iterator<Item = KeyView<'e>> {
        self.engine
            .stores
            .locks
            .table
            .in_use(kind)
            .map(move |it| KeyView { view: self, it })
    }

    /// What is in each slot of the table from this one on: a key in use, or nothing if the slot is
    /// vacant or its key idle. A key keeps its slot for as long as it is known.
    pub fn slots_from(self, slot: u32) -> impl Iterator<Item = (u32, Option<KeyView<'e>>)> {
        let slots = self.engine.stores.locks.table.slots_from(slot);
        slots.map(move |(slot, it)| (slot, it.map(|it| KeyView { view: self, it })))
    }

    /// How many keys of each kind are in use.
    #[must_use]
    pub fn in_use_census(self) -> Census {
        self.engine.stores.locks.table.in_use_census()
    }

    /// Idle keys and for how many nanoseconds, those that have been idle longest first.
    pub fn idle(self) -> impl Iterator<Item = (KeyView<'e>, u64)> {
        let idle = self.engine.stores.locks.table.idle();
        idle.map(move |(it, since)| (KeyView { view: self, it }, self.now.since(since)))
    }

    /// How many keys of each kind are idle.
    #[must_use]
    pub fn idle_census(self) -> Census {
        self.engine.stores.locks.table.idle_census()
    }

    /// Counters and their values.
    pub fn counters(self) -> impl Iterator<Item = EntryView<'e, i64>> {
        self.entries(&self.engine.stores.counters.named, |_, &value| value)
    }

    /// Values whose time to live is not over.
    pub fn values(self) -> impl Iterator<Item = EntryView<'e, ValueView>> {
        self.values_with_over().filter(|it| !it.what.is_over())
    }

    /// All values, expired ones included: until its timer fires, an expired value is still in the
    /// table. A million can expire at once.
    pub fn values_with_over(self) -> impl Iterator<Item = EntryView<'e, ValueView>> {
        self.entries(&self.engine.stores.kv.named, |view, entry| {
            let deadline = entry
                .timer
                .map(|timer| view.engine.core.background.deadline(timer));
            let ttl_ns = deadline.map(|deadline| deadline.since(view.now));
            ValueView {
                bytes: entry.value.len(),
                ttl_ns,
            }
        })
    }

    /// How many nanoseconds a value still lives, if it has a time to live.
    #[must_use]
    pub fn value_ttl_ns(self, key: &[u8]) -> Option<u64> {
        let timer = self.engine.stores.kv.named.look(key)?.timer?;
        let deadline = self.engine.core.background.deadline(timer);
        Some(deadline.since(self.now))
    }

    /// How many values a list has.
    #[must_use]
    pub fn list_length(self, key: &[u8]) -> usize {
        let list = self.engine.stores.lists.named.look(key);
        list.map_or(0, |list| list.values.len())
    }

    /// Lists: how many values and how many poppers each has.
    pub fn lists(self) -> impl Iterator<Item = EntryView<'e, (usize, u32)>> {
        let what = |_, list: &List| (list.values.len(), list.poppers.len());
        self.entries(&self.engine.stores.lists.named, what)
    }

    /// Barriers: how many clients must come, and how many have.
    pub fn barriers(self) -> impl Iterator<Item = EntryView<'e, (u32, u32)>> {
        let what = |_, barrier: &Barrier| (barrier.count, barrier.queue.len());
        self.entries(&self.engine.stores.barriers.named, what)
    }

    /// What is listened to: pattern, group, number of listeners.
    pub fn listened(self) -> impl Iterator<Item = (&'e [u8], &'e [u8], u32)> {
        self.patterns(Topic::Listen)
    }

    /// What is watched: pattern, an empty group, number of watchers.
    pub fn watched(self) -> impl Iterator<Item = (&'e [u8], &'e [u8], u32)> {
        self.patterns(Topic::Watch)
    }

    /// How many grants are held, and how many may be; 0 is no limit.
    #[must_use]
    pub fn holds(self) -> (usize, u32) {
        let Engine { stores, core, .. } = self.engine;
        (stores.locks.holders.len(), core.rules.holds_max)
    }

    /// How many clients are attached, and how many have no connection just now.
    #[must_use]
    pub fn client_count(self) -> (usize, usize) {
        let clients = &self.engine.core.clients;
        let away = clients.away();
        (clients.len() - away, away)
    }

    /// How often a client that had no connection has come back.
    #[must_use]
    pub fn client_returns(self) -> u64 {
        self.engine.core.clients.returns()
    }

    /// The clients of each adapter that a limit names, in the order of the limits.
    pub fn limited_adapters(self) -> impl Iterator<Item = (&'e str, AdapterCounts)> {
        let core = &self.engine.core;
        let limits = core.rules.clients_max.iter();
        limits.map(|it| (&*it.adapter, core.clients.of_adapter(&it.adapter)))
    }

    /// The clients of one adapter, and those of all adapters together.
    #[must_use]
    pub fn adapter_counts(self, adapter: &str) -> [AdapterCounts; 2] {
        let clients = &self.engine.core.clients;
        [clients.of_adapter(adapter), clients.of_all_adapters()]
    }

    /// All clients, with a connection or away, also those of which something is still being undone.
    pub fn clients(self) -> impl Iterator<Item = ClientView<'e>> {
        self.clients_from(0).filter_map(|(_, client)| client)
    }

    /// The clients in slots from this one on, each with its slot; none for a slot that is vacant. A
    /// client keeps its slot for as long as it is known.
    pub fn clients_from(self, slot: u32) -> impl Iterator<Item = (u32, Option<ClientView<'e>>)> {
        let Engine { core, stores, .. } = self.engine;
        let slots = core.clients.slots_from(slot);
        slots.map(move |(slot, it)| {
            let view = it.map(|it| {
                let owner = &core.owners[it.owner];
                let id = owner.client_id().unwrap_or_default();
                ClientView {
                    id,
                    adapter: it.adapter(id),
                    ttl: it.ttl,
                    connections: it.conns.len(),
                    generation: it.generation,
                    held: owner.holds.len(),
                    range_locks: stores.locks.ranges.segments_of(it.owner),
                    since_ns: self.now.since(it.since),
                    seen_ns: match it.conns.is_empty() {
                        true => self.now.since(it.seen),
                        false => 0,
                    },
                }
            });
            (slot, view)
        })
    }

    /// How many grants from before a restart nobody has claimed yet.
    #[must_use]
    pub fn unclaimed(self) -> u32 {
        let Engine { core, .. } = self.engine;
        let owner = core.restored.owner();
        owner.map_or(0, |owner| core.owners[owner].holds.len())
    }

    /// How many subscriptions there are to signals, keys and elections.
    #[must_use]
    pub fn subscriptions(self) -> [(&'static str, usize); 3] {
        let of = |topic: Topic| self.engine.core.subscriptions[topic as usize].len();
        [
            ("signal", of(Topic::Listen)),
            ("watch", of(Topic::Watch)),
            ("election", of(Topic::Observe)),
        ]
    }

    /// How many counters, values, lists and barriers there are, and how many patterns are listened
    /// to and watched.
    #[must_use]
    pub fn totals(self) -> [(&'static str, usize); 6] {
        let Stores {
            counters,
            kv,
            lists,
            barriers,
            ..
        } = &self.engine.stores;
        let patterns =
            |topic: Topic| self.engine.core.subscriptions[topic as usize].pattern_count() as usize;
        [
            ("counters", counters.named.len()),
            ("kv_entries", kv.named.len()),
            ("lists", lists.named.len()),
            ("signal_channels", patterns(Topic::Listen)),
            ("watch_channels", patterns(Topic::Watch)),
            ("barriers", barriers.named.len()),
        ]
    }

    fn entries<V: Stored, W>(
        self,
        named: &'e Named<V>,
        what: impl Fn(Self, &'e V) -> W,
    ) -> impl Iterator<Item = EntryView<'e, W>> {
        named.iter().map(move |it| EntryView {
            key: it.key.as_bytes(),
            idle_ns: self.now.since(it.touched),
            what: what(self, &it.value),
        })
    }

    fn patterns(self, topic: Topic) -> impl Iterator<Item = (&'e [u8], &'e [u8], u32)> {
        self.engine.core.subscriptions[topic as usize].patterns()
    }

    /// What a connection has; all zero if it never asked for anything.
    #[must_use]
    pub fn conn(self, id: ConnId) -> ConnView<'e> {
        let core = &self.engine.core;
        let Some(conn) = core.conns.find(id) else {
            return ConnView::default();
        };
        let Conn {
            owner, own, parked, ..
        } = core.conns[conn];
        // What it waits for may be for an owner that is known by its name.
        let waits_for_other = parked != NONE && core.waiters[parked].owner != owner;
        let owner = &core.owners[owner];
        ConnView {
            name: core.owners[own].name.as_deref(),
            user: core.owners[own].user(),
            client: owner.client_id(),
            held: owner.holds.len(),
            waiting: owner.waits + u32::from(waits_for_other),
        }
    }

    /// How long the lease of the grant of this key with this fence still runs.
    #[must_use]
    pub fn lease_left_ns(self, key: &[u8], fence: Fence) -> Option<u64> {
        let (_, holder) = self.engine.stores.locks.find_by_fence(key, fence)?;
        Some(self.engine.lease_left_ns(holder, self.now))
    }

    /// The key of this name.
    #[must_use]
    pub fn key(self, key: &[u8]) -> Option<KeyView<'e>> {
        let resource = self.engine.stores.locks.find(key)?;
        Some(KeyView {
            view: self,
            it: &self.engine.stores.locks.table[resource],
        })
    }
}

impl<'e> KeyView<'e> {
    /// The name.
    #[must_use]
    pub fn key(self) -> &'e [u8] {
        self.it.key.as_bytes()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.it.kind()
    }

    /// How many hold it.
    #[must_use]
    pub fn holder_count(self) -> u32 {
        self.it.holders.len()
    }

    /// How many wait for it.
    #[must_use]
    pub fn waiter_count(self) -> u32 {
        self.it.queue.len()
    }

    /// Its holders, the oldest grant first.
    pub fn holders(self) -> impl Iterator<Item = HolderView<'e>> {
        let View { engine, now } = self.view;
        let holders = &engine.stores.locks.holders;
        self.it.holders.iter(holders).map(move |holder| {
            let it = &holders[holder];
            let owner = &engine.core.owners[it.owner];
            HolderView {
                fence: it.token.fence,
                conn: owner.connection(),
                client: owner.client_id(),
                name: owner.called(),
                user: owner.user(),
                is_named: owner.is_named(),
                token: it.token,
                version: match owner.is_named() {
                    true => engine.version(it.resource),
                    false => 0,
                },
                hold: it.held().word_beside_kind(),
                age_ns: now.since(it.taken.since()),
                lease_left_ns: engine.lease_left_ns(holder, now),
                has_begun: engine.core.timers.deadline(it.timer) != Nanos::NEVER,
            }
        })
    }

    /// Its waiters, the next to be granted first.
    pub fn waiters(self) -> impl Iterator<Item = WaiterView<'e>> {
        let View { engine, now } = self.view;
        self.it.queue.iter(&engine.core.waiters).map(move |waiter| {
            let it = &engine.core.waiters[waiter];
            let owner = &engine.core.owners[it.owner];
            // Named owners and clients have no connection of their own, but their waiters may have one.
            let parked = (it.conn != ConnIndex::NONE).then(|| &engine.core.conns[it.conn]);
            let own = parked.filter(|it| it.is_attached()).map(|it| it.own);
            WaiterView {
                conn: parked.map_or_else(|| owner.connection().unwrap_or(NOBODY), |it| it.id),
                client: owner.client_id(),
                is_named: owner.is_named(),
                name: own.map_or_else(|| owner.called(), |own| engine.core.owners[own].called()),
                user: parked
                    .map_or(owner, |it| &engine.core.owners[it.own])
                    .user(),
                hold: it.want().held.word_beside_kind(),
                age_ns: now.since(it.since),
            }
        })
    }
}
