//! Read-only views of the table: for `stats`, `who`, tests and checks.
//!
//! Everything comes in a fixed order (that of the table's chains), so that two runs with the same
//! inputs show the same. Never changes anything, and never walks further than its caller asks.

use super::arena::{NONE, Stored};
use super::barrier::Barrier;
use super::conn::{Conn, ConnIndex};
use super::figures::Held;
use super::holder::{Hold, Holder};
use super::list::List;
use super::lock::Locks;
use super::named::Named;
use super::owner::NOBODY;
use super::queue::Waiter;
use super::subscriptions::{Subscriptions, Topic};
use super::table::{Census, Kind, Resource};
use super::two_phase::Standing;
use super::{Engine, Stores, Tally};
use crate::base::{ConnId, Fence, Nanos, Token};

/// The table as it is at one instant.
#[derive(Clone, Copy)]
pub struct View<'e> {
    pub(super) engine: &'e Engine,
    now: Nanos,
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
    /// The connection it was granted to; none if it was restored after a restart, and nobody has
    /// shown its token since.
    pub conn: Option<ConnId>,
    /// The name that its client gave in `hello`, or by which its owner is known.
    pub name: Option<&'e str>,
    /// Whether it belongs to an owner that is known by its name, and not to a connection.
    pub is_named: bool,
    /// What a release or a renewal has to show.
    pub token: Token,
    /// Grows with every change that a named owner makes to the key; 0 for all others.
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
    /// The connection that waits.
    pub conn: ConnId,
    /// The name that its client gave in `hello`.
    pub name: Option<&'e str>,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: &'static str,
    /// Nanoseconds in the queue.
    pub age_ns: u64,
}

/// What one connection has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnView<'e> {
    /// The name that its client gave in `hello`.
    pub name: Option<&'e str>,
    /// How many grants its owner holds.
    pub held: u32,
    /// How many queues its owner waits in, or it for another owner.
    pub waiting: u32,
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
            connections: self.core.conns.len(),
            timers: self.core.timers.len() + self.core.background.len(),
        }
    }

    /// How many grants were made, and how they ended.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.core.tally
    }

    /// Checks everything that must hold between two calls, over the whole table. Only tests and the
    /// simulator call it, because it walks over everything.
    ///
    /// # Panics
    /// When something does not hold, which is a bug of the engine, never of a caller.
    pub fn check(&self) {
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
            breaks,
        } = self.core.tally;
        let held = self.stores.locks.holders.len() as u64;
        assert_eq!(
            grants + self.core.restored.grants() - releases - expiries - disconnects - breaks,
            held,
            "grants less ended grants is not what is held"
        );
        let figures = Held::ALL.map(|it| self.core.figures.of(it).held());
        assert_eq!(figures.iter().sum::<u64>(), held, "figures of what is held");
        let parked = self
            .core
            .conns
            .iter()
            .filter(|it| it.parked != NONE)
            .count();
        let Stores {
            locks,
            counters,
            kv,
            ..
        } = &self.stores;
        let collections = [
            (&locks.collector, locks.table.oldest_idle()),
            (&counters.collector, counters.named.oldest_idle()),
        ];
        for (collector, oldest) in collections {
            assert!(
                collector.is_armed() || oldest.is_none(),
                "keys are idle, but no collection is due"
            );
        }
        let collections = collections.iter().filter(|(it, _)| it.is_armed()).count();
        let searches = usize::from(locks.waits.is_armed());
        let lives = kv
            .named
            .iter()
            .filter(|it| it.value.timer.is_some())
            .count();
        let expired_tickets = locks.tickets.expired_count();
        assert_eq!(
            (self.core.timers.len(), self.core.background.len()),
            (
                held as usize + parked + expired_tickets,
                collections + lives + searches
            ),
            "a timer is missing, or one is left over"
        );
        self.core.timers.check();
        self.core.background.check();
        let is_large = |len: u32| len > 32;
        let keys = || self.stores.locks.table.iter().map(|(_, it)| it);
        assert!(
            locks.crowds.len() <= keys().filter(|it| is_large(it.holders.len())).count()
                && locks.ranks.len() <= keys().filter(|it| is_large(it.queue.len())).count(),
            "a record of a crowd that has gone"
        );
        let (mut holders, mut waiters) = (0, 0);
        for (resource, it) in self.stores.locks.table.iter() {
            self.stores.locks.table.check(resource);
            holders += it.holders.iter(&self.stores.locks.holders).count();
            waiters += it.queue.iter(&self.core.waiters).count();
            self.check_key(resource, it);
        }
        assert_eq!(
            holders,
            self.stores.locks.holders.len(),
            "a holder is in no key's chain"
        );
        let figures = Held::ALL.map(|it| self.core.figures.of(it).waiting());
        assert_eq!(
            figures.iter().sum::<u64>(),
            waiters as u64,
            "figures of who waits"
        );
        assert!(
            !self.core.is_durable() || self.stores.locks.recorded.len() == holders,
            "a grant without a recorded lease, or the other way round"
        );
        let Stores {
            counters,
            kv,
            lists,
            barriers,
            ..
        } = &self.stores;
        for list in lists.named.iter() {
            list.value.check();
            let List {
                values, poppers, ..
            } = &list.value;
            waiters += poppers.iter(&self.core.waiters).count();
            assert!(
                values.is_empty() != poppers.is_empty(),
                "{:?} has both values and poppers, or neither",
                list.key
            );
        }
        for barrier in barriers.named.iter() {
            let Barrier { count, queue, .. } = &barrier.value;
            waiters += queue.iter(&self.core.waiters).count();
            assert!(
                (1..*count).contains(&queue.len()),
                "{:?} is empty or complete and should be gone",
                barrier.key
            );
        }
        let ended = barriers.ended_queues();
        waiters += ended
            .map(|it| it.iter(&self.core.waiters).count())
            .sum::<usize>();
        assert_eq!(waiters, self.core.waiters.len(), "a waiter is in no queue");
        let entries = [
            counters.named.len(),
            kv.named.len(),
            lists.named.len(),
            barriers.named.len(),
        ];
        assert_eq!(
            entries.iter().sum::<usize>(),
            self.core.keys as usize,
            "keys are miscounted"
        );
        counters.named.check();
        kv.named.check();
        lists.named.check();
        barriers.named.check();
        self.core.owners.check();
        self.stores.locks.asks.check();
        let waits: u32 = self.core.owners.iter().map(|(_, it)| it.waits).sum();
        assert_eq!(waits as usize, waiters, "waits are miscounted");
        for subscriptions in &self.core.subscriptions {
            subscriptions.check(&self.core.conns);
        }
        for (owner, it) in self.core.owners.iter() {
            for holder in it.holds.iter(&self.stores.locks.holders) {
                assert_eq!(
                    self.stores.locks.holders[holder].owner, owner,
                    "a hold is in another owner's chain"
                );
            }
        }
    }

    fn check_key(&self, resource: u32, it: &Resource) {
        let Locks {
            holders, tickets, ..
        } = &self.stores.locks;
        let held = || it.holders.iter(holders).map(|holder| &holders[holder]);
        match it.kind() {
            Kind::Slots { limit } => {
                assert!(
                    it.holders.len() <= limit,
                    "{:?} has too many holders",
                    it.key
                );
            }
            Kind::ReadWrite => assert!(
                held().all(|it| it.hold() == Hold::Read) || held().count() == 1,
                "{:?} is written and read at once",
                it.key
            ),
        }
        for Holder {
            token,
            timer,
            ticket,
            ..
        } in held()
        {
            assert!(
                self.core.timers.deadline(*timer) >= it.soonest(),
                "{token:?} ends before `soonest` and would be overlooked"
            );
            if *ticket != NONE {
                assert!(
                    matches!(tickets[*ticket].standing, Standing::Held(_)),
                    "a grant has a ticket that is not held"
                );
            }
        }
        self.check_records(resource, it);
        if let Some(waiter) = it.queue.head() {
            let Waiter { owner, .. } = self.core.waiters[waiter];
            let hold = self.core.waiters[waiter].want().hold;
            let admitted = match (it.kind(), hold) {
                (Kind::Slots { limit }, _) => it.holders.len() < limit,
                (Kind::ReadWrite, Hold::Read) => held().all(|it| it.hold() == Hold::Read),
                (Kind::ReadWrite, _) => it.holders.is_empty(),
            };
            let is_left_over = self.stores.locks.unserved.contains(resource) || self.core.cuts_off;
            assert!(
                !admitted || !self.core.owners[owner].is_here() || is_left_over,
                "{:?} has room, but the head of its queue waits",
                it.key
            );
        }
        for waiter in it.queue.iter(&self.core.waiters) {
            assert_eq!(
                self.core.waiters[waiter].subject, resource,
                "a waiter is in another key's queue"
            );
        }
    }
}

/// The records of crowds and long queues.
impl Engine {
    fn check_records(&self, resource: u32, it: &Resource) {
        let Locks {
            holders,
            crowds,
            ranks,
            ..
        } = &self.stores.locks;
        match crowds.get(resource) {
            Some(crowd) => {
                let len = it.holders.len() as usize;
                assert_eq!(crowd.lens(), [len, len], "a crowd of {:?} is gone", it.key);
                for holder in it.holders.iter(holders) {
                    let deadline = self.core.timers.deadline(holders[holder].timer);
                    let owner = holders[holder].owner;
                    assert!(
                        crowd.knows((deadline, holder)) && crowd.has(owner),
                        "a crowd does not know one of its holders"
                    );
                }
            }
            None => assert!(
                it.holders.len() <= super::crowd::WALK_MAX,
                "{:?} has a crowd without a record",
                it.key
            ),
        }
        // Now and then, because this is the slow way.
        for (before, waiter) in it.queue.iter(&self.core.waiters).enumerate() {
            if before.is_power_of_two() || before % 1_000 == 999 {
                let (position, looks) = ranks.position(resource, &self.core.waiters, waiter);
                assert_eq!(position as usize, before + 1, "a place is miscounted");
                assert!(looks <= 6 * 1_024, "{looks} looks for one place");
            }
        }
    }
}

impl<'e> View<'e> {
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
        let alive = move |it: &EntryView<'e, ValueView>| it.what.ttl_ns != Some(0);
        let values = self.entries(&self.engine.stores.kv.named, |view, entry| {
            let deadline = entry
                .timer
                .map(|timer| view.engine.core.background.deadline(timer));
            let ttl_ns = deadline.map(|deadline| deadline.since(view.now));
            ValueView {
                bytes: entry.value.len(),
                ttl_ns,
            }
        });
        values.filter(alive)
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
        let Conn { owner, parked, .. } = core.conns[conn];
        // What it waits for may be for an owner that is known by its name.
        let waits_for_other = parked != NONE && core.waiters[parked].owner != owner;
        let owner = &core.owners[owner];
        ConnView {
            name: owner.name.as_deref(),
            held: owner.holds.len(),
            waiting: owner.waits + u32::from(waits_for_other),
        }
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
                conn: (owner.conn_id != NOBODY).then_some(owner.conn_id),
                name: owner.name.as_deref(),
                is_named: owner.is_named(),
                token: it.token,
                version: engine.stores.locks.asks.version(holder).unwrap_or(0),
                hold: it.hold().word(),
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
            // A named owner has no connection, but its waiter has one.
            let conn = match it.conn {
                ConnIndex::NONE => owner.conn_id,
                conn => engine.core.conns[conn].id,
            };
            WaiterView {
                conn,
                name: owner.name.as_deref(),
                hold: it.want().hold.word(),
                age_ns: now.since(it.since),
            }
        })
    }
}
