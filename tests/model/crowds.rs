//! Crowds: what stays true when there are very many of one thing.
//!
//! Plain tests with fixed seeds. They count and compare; none of them looks at how long it took.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Input, Mode, Refusal, Reply, Request};
use latchd::engine::view::Counts;
use latchd::engine::{Engine, Origin, Rules};

/// What the engine may spend on one turn here: about as much as the server lets it.
const WORK: u64 = 1_000_000;

/// Most leases or departures that fit into it, because none costs less than this many units.
const SLICE_MAX: u64 = WORK / 100;

const LOCK: Mode = Mode::Slot { limit: 1 };

/// An engine with a clock of its own and the few questions that crowds ask.
struct Table {
    engine: Engine,
    now: Nanos,
    out: Effects,
}

impl Table {
    fn new() -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(Rules::default(), origin),
            now: Nanos(1),
            out: Effects::new(),
        }
    }

    /// What is said to anyone because of this request.
    fn ask(&mut self, client: u32, request: Request<'_>) -> &[Effect] {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Request(id(client), request), &mut self.out);
        &self.out
    }

    /// The one answer to a request that nobody else hears of.
    fn answer(&mut self, client: u32, request: Request<'_>) -> Reply {
        match self.ask(client, request) {
            [Effect::Reply(to, reply)] if *to == id(client) => reply.clone(),
            other => panic!("{other:?} instead of one answer"),
        }
    }

    fn grant(&mut self, client: u32, key: &[u8], mode: Mode, lease: Millis) -> Token {
        let wait = Millis::ZERO;
        let lease = Some(lease);
        match self.answer(
            client,
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            },
        ) {
            Reply::Granted { token, .. } => token,
            other => panic!("{other:?} instead of a grant"),
        }
    }

    fn leave(&mut self, client: u32) -> &[Effect] {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Disconnected(id(client)), &mut self.out);
        &self.out
    }

    /// One turn's worth of what is due by now; how many leases it ended.
    fn expire(&mut self) -> u64 {
        let before = self.engine.tally().expiries;
        self.turn(WORK);
        self.engine.tally().expiries - before
    }

    /// What is due by now, as far as the work goes.
    fn turn(&mut self, work: u64) {
        self.out.clear();
        self.engine
            .apply(self.now, Input::Time(work), &mut self.out);
    }

    /// Turn after turn until nothing is due.
    fn expire_all(&mut self) -> u64 {
        let mut ended = self.expire();
        while self.engine.next_deadline().is_some_and(|it| it <= self.now) {
            ended += self.expire();
        }
        ended
    }

    /// All clients have left: lets everything run out and looks for leftovers.
    fn assert_nothing_is_left(&mut self) {
        self.expire_all();
        self.now = self.now.after(Millis::from_secs(3600));
        self.expire_all();
        self.engine.check();
        assert_eq!(self.engine.counts(), Counts::default());
        assert_eq!(self.engine.next_deadline(), None);
    }
}

fn id(client: u32) -> ConnId {
    ConnId {
        slot: client,
        serial: client + 1,
    }
}

#[test]
fn ten_thousand_wait_and_keep_their_order_whichever_of_them_leave() {
    const WAITERS: u32 = 10_000;
    let key = b"job";
    let (wait, lease) = (Millis::from_secs(600), Some(Millis::from_secs(60)));
    let mut table = Table::new();
    let mut chance = fastrand::Rng::with_seed(11);
    let mut token = table.grant(0, key, LOCK, Millis::from_secs(60));
    for client in 1..=WAITERS {
        // Two ways to wait in the same queue.
        let (request, answers) = if client % 2 == 0 {
            (
                Request::Enqueue {
                    key,
                    mode: LOCK,
                    lease,
                },
                1,
            )
        } else {
            (
                Request::Acquire {
                    key,
                    mode: LOCK,
                    wait,
                    lease,
                },
                0,
            )
        };
        assert_eq!(table.ask(client, request).len(), answers);
    }
    for client in (2..=WAITERS).step_by(2) {
        assert_eq!(table.ask(client, Request::Wait { key, wait }), []);
    }
    let mut leaving: Vec<u32> = (1..=WAITERS).collect();
    chance.shuffle(&mut leaving);
    let mut staying = leaving.split_off(WAITERS as usize * 9 / 10);
    staying.sort_unstable();
    for client in leaving {
        assert_eq!(table.leave(client), [], "nobody is told, nobody moves up");
    }
    table.engine.check();
    let connections = |table: &Table| -> Vec<u32> {
        let key = table.engine.view(table.now).key(key).unwrap();
        key.waiters().map(|it| it.conn.serial - 1).collect()
    };
    assert_eq!(connections(&table), staying);
    for client in staying {
        let released = table.ask(
            0,
            Request::Release {
                key,
                token: Some(token),
            },
        );
        let [
            Effect::Reply(_, Reply::Done),
            Effect::Reply(to, Reply::Granted { token: next, .. }),
        ] = released
        else {
            panic!("{released:?}");
        };
        assert_eq!(*to, id(client));
        token = *next;
    }
    // Whoever was served goes too, the last one with the lock in hand.
    for client in 0..=WAITERS {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn very_many_leases_end_on_the_nanosecond_and_in_slices() {
    const LEASES: u32 = 300_000;
    const CLIENTS: u32 = 100;
    let mut table = Table::new();
    let mut chance = fastrand::Rng::with_seed(12);
    // 40 spans and 5 starts: few deadlines, each shared by thousands.
    let mut due = std::collections::BTreeMap::<Nanos, u64>::new();
    for lease in 0..LEASES {
        if lease % (LEASES / 5) == 0 {
            table.now = Nanos(table.now.0 + 777_777);
        }
        let span = Millis(1_000 * chance.u64(1..=40));
        table.grant(lease % CLIENTS, &lease.to_le_bytes(), LOCK, span);
        *due.entry(table.now.after(span)).or_default() += 1;
    }
    assert_eq!(table.engine.counts().holders, LEASES as usize);
    let mut left = LEASES as usize;
    for (deadline, count) in due {
        table.now = Nanos(deadline.0 - 1);
        assert_eq!(table.expire_all(), 0, "early");
        table.now = deadline;
        let mut ended = 0;
        while ended < count {
            let slice = table.expire();
            assert!(slice <= SLICE_MAX, "{slice} in one turn");
            assert!(slice > 0, "due, and nothing is done");
            ended += slice;
            if ended < count {
                let next = table.engine.next_deadline();
                assert!(
                    next.is_some_and(|it| it <= deadline),
                    "the rest would come late"
                );
            }
        }
        left -= count as usize;
        assert_eq!(ended, count);
        assert_eq!(table.engine.counts().holders, left);
    }
    table.engine.check();
    for client in 0..CLIENTS {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn a_hundred_thousand_renewals_leave_one_timer() {
    let mut table = Table::new();
    let key = b"job";
    let lease = Some(Millis::from_secs(10));
    let token = Some(table.grant(0, key, LOCK, Millis::from_secs(10)));
    let counts = table.engine.counts();
    for _ in 0..100_000 {
        table.now = table.now.after(Millis(100));
        assert_eq!(table.expire(), 0);
        let renewed = table.answer(0, Request::Renew { key, token, lease });
        assert!(matches!(renewed, Reply::Renewed { .. }), "{renewed:?}");
    }
    assert_eq!(table.engine.counts(), counts);
    assert_eq!(counts.timers, 1);
    table.now = Nanos(table.now.after(Millis::from_secs(10)).0 - 1);
    assert_eq!(table.expire(), 0);
    table.now = Nanos(table.now.0 + 1);
    assert_eq!(table.expire(), 1);
    let late = table.answer(0, Request::Renew { key, token, lease });
    assert_eq!(late, Reply::Refused(Refusal::LeaseExpired));
    table.leave(0);
    table.assert_nothing_is_left();
}

/// Runs a cycle once, then very often, and expects to be where it was after the first.
fn assert_no_growth(mut cycle: impl FnMut(&mut Table)) {
    let mut table = Table::new();
    cycle(&mut table);
    let counts = table.engine.counts();
    for _ in 0..100_000 {
        cycle(&mut table);
    }
    table.engine.check();
    assert_eq!(table.engine.counts(), counts);
    for client in 0..4 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn taking_and_letting_go_leaves_nothing_behind() {
    assert_no_growth(|table| {
        let token = Some(table.grant(0, b"job", LOCK, Millis::from_secs(1)));
        let released = table.answer(0, Request::Release { key: b"job", token });
        assert_eq!(released, Reply::Done);
        table.now = table.now.after(Millis(1));
        table.expire();
    });
}

#[test]
fn taking_a_place_and_waiting_for_it_leaves_nothing_behind() {
    let key = b"job";
    assert_no_growth(|table| {
        let (mode, lease, wait) = (LOCK, None, Millis::from_secs(1));
        let enqueued = table.answer(0, Request::Enqueue { key, mode, lease });
        let Reply::Acquired { token, .. } = enqueued else {
            panic!("{enqueued:?}");
        };
        assert_eq!(
            table.answer(1, Request::Enqueue { key, mode, lease }),
            Reply::Queued
        );
        let waited = table.answer(0, Request::Wait { key, wait });
        assert!(matches!(waited, Reply::Granted { .. }), "{waited:?}");
        assert_eq!(table.ask(1, Request::Wait { key, wait }), []);
        let token = Some(token);
        let released = table.ask(0, Request::Release { key, token });
        let Some(&Effect::Reply(_, Reply::Granted { token, .. })) = released.get(1) else {
            panic!("{released:?}");
        };
        let token = Some(token);
        assert_eq!(
            table.answer(2, Request::Release { key, token }),
            Reply::Done
        );
        table.now = table.now.after(Millis(1));
        table.expire();
    });
}

#[test]
fn waiting_in_vain_leaves_nothing_behind() {
    let key = b"pool";
    let mode = Mode::Slot { limit: 2 };
    assert_no_growth(|table| {
        for client in 0..2 {
            table.grant(client, key, mode, Millis(5));
        }
        let (wait, lease) = (Millis(2), None);
        let acquire = Request::Acquire {
            key,
            mode,
            wait,
            lease,
        };
        assert_eq!(table.ask(2, acquire), []);
        assert_eq!(
            table.answer(3, Request::Enqueue { key, mode, lease }),
            Reply::Queued
        );
        table.now = table.now.after(Millis(2));
        table.expire();
        assert_eq!(table.out, [Effect::Reply(id(2), Reply::TimedOut)]);
        let waited = table.answer(
            3,
            Request::Wait {
                key,
                wait: Millis::ZERO,
            },
        );
        assert_eq!(waited, Reply::TimedOut);
        table.now = table.now.after(Millis(3));
        assert_eq!(table.expire(), 2);
    });
}

#[test]
fn a_client_that_leaves_with_thousands_of_locks_and_places_is_undone_in_slices() {
    const KEYS: u32 = 3_000;
    let (mode, lease, wait) = (LOCK, Some(Millis::from_secs(600)), Millis::from_secs(60));
    let mut table = Table::new();
    let name = |key: u32| key.to_le_bytes();
    let mut token = None;
    for key in 0..KEYS {
        table.grant(0, &name(key), mode, Millis::from_secs(600));
        let key = &name(key + KEYS);
        token = Some(table.grant(1, key, mode, Millis::from_secs(600)));
        assert_eq!(
            table.answer(0, Request::Enqueue { key, mode, lease }),
            Reply::Queued
        );
        assert_eq!(
            table.answer(2, Request::Enqueue { key, mode, lease }),
            Reply::Queued
        );
    }
    for key in 0..KEYS {
        let key = &name(key);
        assert_eq!(
            table.answer(2, Request::Enqueue { key, mode, lease }),
            Reply::Queued
        );
    }
    table.leave(0);
    let left = |table: &Table| KEYS as usize * 3 - table.engine.counts().waiters;
    assert!((1..SLICE_MAX as usize).contains(&left(&table)), "one slice");
    assert_eq!(
        table.engine.next_deadline(),
        Some(Nanos(0)),
        "more to do at once"
    );
    table.engine.check();

    // The slot is free for another at once, which inherits nothing.
    let heir = ConnId {
        slot: 0,
        serial: 99,
    };
    assert!(!table.engine.owns_something(heir));
    // A lock of the one who left is let go by somebody else before its turn came: the queue moves
    // on, past the ticket that the leaver still has in it.
    let contested = name(KEYS * 2 - 1);
    let view = table.engine.view(table.now).key(&contested).unwrap();
    assert_eq!(
        view.waiter_count(),
        2,
        "the leaver's ticket is among the last"
    );
    let key = &contested;
    assert_eq!(
        table.answer(3, Request::Release { key, token }),
        Reply::Done
    );
    let view = table.engine.view(table.now).key(&contested).unwrap();
    assert_eq!(view.holders().next().unwrap().conn.serial, id(2).serial);
    assert_eq!(view.waiter_count(), 0);

    table.expire_all();
    table.engine.check();
    let behind_client_1 = KEYS as usize - 1;
    assert_eq!(table.engine.counts().waiters, behind_client_1);
    assert_eq!(table.engine.tally().disconnects, u64::from(KEYS));
    let granted = table.answer(
        2,
        Request::Wait {
            key: &name(7),
            wait,
        },
    );
    assert!(matches!(granted, Reply::Granted { .. }), "{granted:?}");
    for client in 1..4 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

/// Whether somebody holds the key.
fn is_held(table: &Table, key: &[u8]) -> bool {
    let key = table.engine.view(table.now).key(key);
    key.is_some_and(|it| it.holder_count() > 0)
}

/// A stranger's crowd and one lease of somebody else that ends a moment later, in a turn with so
/// little work that most of the crowd is left over.
fn assert_the_lease_ends_in_time(crowd: impl Fn(&mut Table)) {
    let mut table = Table::new();
    crowd(&mut table);
    table.now = Nanos(2);
    table.grant(1, b"job", LOCK, Millis(1_000));
    table.now = Nanos(1).after(Millis(1_000));
    table.turn(WORK / 10);
    assert!(is_held(&table, b"job"), "early");
    table.now = Nanos(2).after(Millis(1_000));
    table.turn(WORK / 10);
    assert!(!is_held(&table, b"job"), "late");
    assert_eq!(
        table.engine.next_deadline(),
        Some(Nanos(0)),
        "the crowd fits into one turn, so nothing is shown"
    );
    table.engine.check();
    for client in 0..2 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

const CROWD: u32 = 20_000;

#[test]
fn a_strangers_leases_that_end_make_nobody_elses_lease_late() {
    assert_the_lease_ends_in_time(|table| {
        for key in 0..CROWD {
            table.grant(0, &key.to_le_bytes(), LOCK, Millis(1_000));
        }
    });
}

#[test]
fn a_strangers_leases_that_were_renewed_make_nobody_elses_lease_late() {
    let lease = Some(Millis::from_secs(60));
    assert_the_lease_ends_in_time(|table| {
        for key in 0..CROWD {
            let key = &key.to_le_bytes();
            let token = Some(table.grant(0, key, LOCK, Millis(1_000)));
            table.answer(0, Request::Renew { key, token, lease });
        }
    });
}

#[test]
fn a_strangers_values_make_nobody_elses_lease_late() {
    assert_the_lease_ends_in_time(|table| {
        for key in 0..CROWD {
            let put = Request::Put {
                key: &key.to_le_bytes(),
                value: b"v",
                ttl: Millis(1_000),
            };
            table.answer(0, put);
        }
    });
}

#[test]
fn a_leavers_lock_is_not_passed_on_after_those_of_a_crowd() {
    const LEAVERS: u32 = 20;
    const LOCKS: u32 = 2_000;
    let (wait, lease) = (Millis::from_secs(60), Millis::from_secs(600));
    let mut table = Table::new();
    for client in 0..LEAVERS {
        for key in 0..LOCKS {
            table.grant(
                client,
                &[client, key].map(u32::to_le_bytes).concat(),
                LOCK,
                lease,
            );
        }
    }
    let (leaver, waiter) = (LEAVERS, LEAVERS + 1);
    table.grant(leaver, b"job", LOCK, lease);
    let acquire = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait,
        lease: None,
    };
    assert_eq!(table.ask(waiter, acquire), []);
    for client in 0..LEAVERS {
        table.leave(client);
    }
    let passed_on = table.leave(leaver);
    assert!(
        matches!(passed_on, [Effect::Reply(to, Reply::Granted { .. })] if *to == id(waiter)),
        "{passed_on:?}"
    );
    assert!(table.engine.counts().holders > (LEAVERS * LOCKS / 2) as usize);

    // The crowd's locks are released in turns, so that none of them waits for all of another's.
    while table.engine.counts().holders > (LEAVERS * LOCKS / 2) as usize {
        table.turn(WORK);
    }
    table.engine.check();
    for client in 0..LEAVERS {
        let left = (0..LOCKS)
            .filter(|key| is_held(&table, &[client, *key].map(u32::to_le_bytes).concat()));
        let left = left.count();
        assert!((LOCKS as usize / 3..).contains(&left), "{client}: {left}");
    }
    table.leave(waiter);
    table.assert_nothing_is_left();
}
