//! Everything that must hold between two calls, checked over the whole table.
//!
//! Only tests and the simulator call it, because it walks over everything. Never changes anything.

use super::arena::NONE;
use super::barrier::Barrier;
use super::holder::{Held, Holder};
use super::list::List;
use super::lock::Locks;
use super::queue::Waiter;
use super::table::{Kind, Resource};
use super::two_phase::Standing;
use super::{Engine, Stores, Tally};
use crate::base::Nanos;

impl Engine {
    /// Checks everything that must hold at the end of a turn, when nothing is due any more: see
    /// [`check_at`](Self::check_at).
    ///
    /// # Panics
    /// When something does not hold, which is a bug of the engine, never of a caller.
    pub fn check(&self) {
        self.check_at(Nanos(0));
    }

    /// Checks everything that must hold between two calls, over the whole table. Only tests and the
    /// simulator call it, because it walks over everything.
    ///
    /// Before the timers of a turn have run, a key may have room although its head waits: the wait is
    /// over, and so is an earlier lease, which has to end first.
    ///
    /// # Panics
    /// When something does not hold, which is a bug of the engine, never of a caller.
    pub fn check_at(&self, now: Nanos) {
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
            breaks,
        } = self.tally();
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
        let mut expired_tickets = 0;
        for (_, owner) in self.core.owners.iter() {
            let count = locks.tickets.expired_count(&owner.tickets);
            assert_eq!(owner.tickets_expired as usize, count, "expired tickets");
            expired_tickets += count;
        }
        assert_eq!(
            (self.core.timers.len(), self.core.background.len()),
            (
                held as usize + parked + expired_tickets + self.core.check_clients(),
                collections + lives + searches + locks.ranges.timers()
            ),
            "a timer is missing, or one is left over"
        );
        self.check_shares();
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
            self.check_key(now, resource, it);
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
        waiters += self.stores.locks.check_ranges(&self.core);
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

    fn check_key(&self, now: Nanos, resource: u32, it: &Resource) {
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
                held().all(|it| it.held() == Held::Read) || held().count() == 1,
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
            let Waiter { owner, timer, .. } = self.core.waiters[waiter];
            let hold = self.core.waiters[waiter].want().held;
            let deadline = |timer| self.core.timers.deadline(timer);
            let until = timer.map_or(Nanos::NEVER, deadline);
            let timers_decide = until < now && held().any(|it| deadline(it.timer) <= until);
            let admitted = match (it.kind(), hold) {
                (Kind::Slots { limit }, _) => it.holders.len() < limit,
                (Kind::ReadWrite, Held::Read) => held().all(|it| it.held() == Held::Read),
                (Kind::ReadWrite, _) => it.holders.is_empty(),
            };
            let is_left_over = self.stores.locks.unserved.contains(resource) || self.core.cuts_off;
            assert!(
                !admitted || !self.core.owners[owner].is_here() || is_left_over || timers_decide,
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
