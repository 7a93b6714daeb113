//! Read-only pictures of the table: for `stats`, `who`, tests and checks.
//!
//! Everything comes in a fixed order (that of the table's chains), so two equal histories look
//! equal. Never changes anything, and never walks further than its caller asks.

use super::lock::{Hold, Holder, Locks};
use super::queue::Waiter;
use super::table::{Census, Kind, Resource};
use super::two_phase::Standing;
use super::{Engine, Tally};
use crate::base::{Fence, Nanos};

/// The table as it is at one instant.
#[derive(Clone, Copy)]
pub struct View<'e> {
    engine: &'e Engine,
    now: Nanos,
}

/// One key.
#[derive(Clone, Copy)]
pub struct KeyView<'e> {
    view: View<'e>,
    it: &'e Resource,
}

/// One grant.
#[derive(Clone, Copy, Debug)]
pub struct HolderView<'e> {
    /// The grant's fence.
    pub fence: Fence,
    /// The number of the connection it was granted to.
    pub connection: u32,
    /// Who that connection says it is.
    pub name: Option<&'e str>,
    /// `slot`, `read` or `write`.
    pub hold: &'static str,
    /// Nanoseconds since the grant.
    pub age_ns: u64,
    /// Nanoseconds until the lease ends; 0 if it is about to.
    pub lease_left_ns: u64,
}

/// Somebody in line.
#[derive(Clone, Copy, Debug)]
pub struct WaiterView<'e> {
    /// The number of the connection that waits.
    pub connection: u32,
    /// Who that connection says it is.
    pub name: Option<&'e str>,
    /// `slot`, `read` or `write`.
    pub hold: &'static str,
    /// Nanoseconds in line.
    pub age_ns: u64,
}

/// How many of each thing there are. All zero when everyone has left and idle keys are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys, in use and idle.
    pub keys: usize,
    /// Grants.
    pub holders: usize,
    /// Waiters in all lines.
    pub waiters: usize,
    /// Enqueues not yet waited for.
    pub places: usize,
    /// Clients that have asked for something and not left.
    pub clients: usize,
    /// Armed timers.
    pub timers: usize,
}

impl Engine {
    /// A look at everything, now.
    #[must_use]
    pub fn view(&self, now: Nanos) -> View<'_> {
        View { engine: self, now }
    }

    /// How many of each thing there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.locks.table.len(),
            holders: self.locks.holders.len(),
            waiters: self.waiters.len(),
            places: self.locks.places.len(),
            clients: self.clients.len(),
            timers: self.timers.len(),
        }
    }

    /// How often what has happened.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Everything that must hold between two calls, over the whole table. For tests and the
    /// simulator: it costs a walk over everything.
    ///
    /// # Panics
    /// When something does not hold, which is a bug here and nowhere else.
    pub fn check(&self) {
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
        } = self.tally;
        let held = self.locks.holders.len() as u64;
        assert_eq!(
            grants - releases - expiries - disconnects,
            held,
            "grants got lost"
        );
        let parked = self
            .clients
            .iter()
            .filter(|(_, it)| it.parked != super::arena::NONE)
            .count();
        let awaits_collection = self.locks.awaits_collection();
        assert!(
            awaits_collection || self.locks.table.idle().next().is_none(),
            "idle keys nobody will collect"
        );
        let timers = held as usize + parked + usize::from(awaits_collection);
        assert_eq!(self.timers.len(), timers, "a timer nobody waits for");
        let (mut holders, mut waiters) = (0, 0);
        for (resource, it) in self.locks.table.iter() {
            self.locks.table.check(resource);
            holders += it.holders.iter(&self.locks.holders).count();
            waiters += it.queue.iter(&self.waiters).count();
            self.check_key(resource, it);
        }
        assert_eq!(holders, self.locks.holders.len(), "a holder without a key");
        assert_eq!(waiters, self.waiters.len(), "a waiter without a key");
        for (client, it) in self.clients.iter() {
            for holder in it.holds.iter(&self.locks.holders) {
                assert_eq!(
                    self.locks.holders[holder].client, client,
                    "held by two clients"
                );
            }
        }
    }

    fn check_key(&self, resource: u32, it: &Resource) {
        let Locks {
            holders, places, ..
        } = &self.locks;
        let held = || it.holders.iter(holders).map(|holder| &holders[holder]);
        match it.kind {
            Kind::Slots { limit } => {
                assert!(
                    it.holders.len() <= limit,
                    "{:?} has too many holders",
                    it.key
                );
            }
            Kind::ReadWrite => assert!(
                held().all(|it| it.hold == Hold::Read) || held().count() == 1,
                "{:?} is written and read at once",
                it.key
            ),
        }
        for Holder {
            token,
            timer,
            place,
            ..
        } in held()
        {
            assert!(
                self.timers.deadline(*timer) >= it.soonest,
                "{token:?} could be overlooked"
            );
            if *place != super::arena::NONE {
                assert!(
                    matches!(places[*place].standing, Standing::Held(_)),
                    "place and grant"
                );
            }
        }
        if let Some(waiter) = it.queue.head() {
            let Waiter { hold, client, .. } = self.waiters[waiter];
            let admitted = match (it.kind, hold) {
                (Kind::Slots { limit }, _) => it.holders.len() < limit,
                (Kind::ReadWrite, Hold::Read) => held().all(|it| it.hold == Hold::Read),
                (Kind::ReadWrite, _) => it.holders.is_empty(),
            };
            assert!(
                !admitted || !self.clients[client].is_here(),
                "{:?}: room, yet waiting",
                it.key
            );
        }
        for waiter in it.queue.iter(&self.waiters) {
            assert_eq!(
                self.waiters[waiter].resource, resource,
                "waiting in two lines"
            );
        }
    }
}

impl<'e> View<'e> {
    /// Keys in use of one kind ([`Census`]'s positions), the longest-used first.
    pub fn in_use(self, kind: usize) -> impl Iterator<Item = KeyView<'e>> {
        self.engine
            .locks
            .table
            .in_use(kind)
            .map(move |it| KeyView { view: self, it })
    }

    /// How many keys of each kind are in use.
    #[must_use]
    pub fn in_use_census(self) -> Census {
        self.engine.locks.table.in_use_census()
    }

    /// Idle keys and for how many nanoseconds, the longest idle first.
    pub fn idle(self) -> impl Iterator<Item = (KeyView<'e>, u64)> {
        let idle = self.engine.locks.table.idle();
        idle.map(move |(it, since)| (KeyView { view: self, it }, self.now.since(since)))
    }

    /// How many keys of each kind are idle.
    #[must_use]
    pub fn idle_census(self) -> Census {
        self.engine.locks.table.idle_census()
    }

    /// One key by name.
    #[must_use]
    pub fn key(self, key: &[u8]) -> Option<KeyView<'e>> {
        let resource = self.engine.locks.find(key)?;
        Some(KeyView {
            view: self,
            it: &self.engine.locks.table[resource],
        })
    }
}

impl<'e> KeyView<'e> {
    /// The name.
    #[must_use]
    pub fn key(self) -> &'e [u8] {
        self.it.key.as_bytes()
    }

    /// What it is.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.it.kind
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

    /// Those who hold it, the oldest grant first.
    pub fn holders(self) -> impl Iterator<Item = HolderView<'e>> {
        let View { engine, now } = self.view;
        let holders = &engine.locks.holders;
        self.it.holders.iter(holders).map(move |holder| {
            let it = &holders[holder];
            let client = &engine.clients[it.client];
            HolderView {
                fence: it.token.fence,
                connection: client.id.serial,
                name: client.name.as_deref(),
                hold: it.hold.word(),
                age_ns: now.since(it.since),
                lease_left_ns: engine.timers.deadline(it.timer).since(now),
            }
        })
    }

    /// Those who wait for it, the next first.
    pub fn waiters(self) -> impl Iterator<Item = WaiterView<'e>> {
        let View { engine, now } = self.view;
        self.it.queue.iter(&engine.waiters).map(move |waiter| {
            let it = &engine.waiters[waiter];
            let client = &engine.clients[it.client];
            WaiterView {
                connection: client.id.serial,
                name: client.name.as_deref(),
                hold: it.hold.word(),
                age_ns: now.since(it.since),
            }
        })
    }
}
