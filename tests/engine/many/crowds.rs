//! Crowds: what stays true when there are very many of one thing.
//!
//! Plain tests with fixed seeds. They count and compare; none of them looks at how long it took.

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{Effect, Input, Mode, Refusal, Reply, Request};

use super::table::{LOCK, SLICE_MAX, Table, WORK, id};

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
    assert_eq!(
        view.holders().next().unwrap().conn.unwrap().serial,
        id(2).serial
    );
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

#[test]
fn who_leaves_very_much_that_outlives_it_is_looked_at_in_slices() {
    let mut table = Table::new();
    let kept = 100_000_u64;
    let limit = Mode::Slot { limit: u32::MAX };
    table.grant(0, b"before", limit, Millis::from_secs(60));
    table
        .engine
        .apply(table.now, Input::Keep(id(0), true), &mut table.out);
    for _ in 0..kept {
        table.grant(0, b"kept", limit, Millis::from_secs(60));
    }
    table
        .engine
        .apply(table.now, Input::Keep(id(0), false), &mut table.out);
    table.grant(0, b"after", limit, Millis::from_secs(60));
    // What comes last, behind all that stays, is found too; but no turn looks at all of it.
    table.leave(0);
    let mut turns = 0;
    while table.engine.has_begun() {
        table
            .engine
            .apply(table.now, Input::Time(WORK), &mut table.out);
        turns += 1;
        assert!(turns < 1_000, "it never ends");
    }
    assert!(turns > 1, "all in one turn");
    assert_eq!(table.engine.tally().disconnects, 2);
    assert_eq!(table.engine.counts().holders as u64, kept);
    assert_eq!(table.engine.counts().connections, 0);
    table.engine.check();
    table.now = table.now.after(Millis::from_secs(60));
    while table
        .engine
        .next_deadline()
        .is_some_and(|at| at <= table.now)
    {
        table
            .engine
            .apply(table.now, Input::Time(WORK), &mut table.out);
    }
    assert_eq!(table.engine.tally().expiries, kept);
    assert_eq!(table.engine.counts().owners, 0);
}

#[test]
fn thousands_wait_and_each_knows_its_place() {
    const WAITERS: u32 = 4_000;
    let key = b"job";
    let (mode, lease, wait) = (LOCK, Some(Millis::from_secs(600)), Millis::ZERO);
    let mut table = Table::new();
    let mut chance = fastrand::Rng::with_seed(13);
    table.grant(0, key, mode, Millis::from_secs(600));
    let mut queue = Vec::new();
    let mut next = 1;
    let join = |table: &mut Table, queue: &mut Vec<u32>, client: u32| {
        let enqueued = table.answer(client, Request::Enqueue { key, mode, lease });
        assert_eq!(enqueued, Reply::Queued);
        queue.push(client);
    };
    let ask_some = |table: &mut Table, queue: &[u32], chance: &mut fastrand::Rng| {
        table.engine.check();
        for _ in 0..20 {
            let nth = chance.usize(..queue.len());
            let place = table.answer(queue[nth], Request::Position { key });
            assert_eq!(place, Reply::Number(nth as i64 + 1));
            // A place costs some thousand looks at most, however long the queue is.
            let work = table.engine.take_work();
            assert!(work < 100_000, "{work} for one place of {}", queue.len());
        }
    };
    // Longer and shorter again, across every length at which the record is made and dropped.
    for length in [
        1_000, 1_100, 900, WAITERS, 2_500, WAITERS, 600, 500, 1_200, 10,
    ] {
        while (queue.len() as u32) < length {
            join(&mut table, &mut queue, next);
            next += 1;
        }
        while queue.len() as u32 > length {
            let client = queue.remove(chance.usize(..queue.len()));
            if client % 2 == 0 {
                table.leave(client);
            } else {
                let gone = table.answer(client, Request::Wait { key, wait });
                assert_eq!(gone, Reply::TimedOut);
            }
        }
        table.expire_all(); // whoever left has left
        table.engine.take_work();
        ask_some(&mut table, &queue, &mut chance);
    }
    for client in 0..next {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn very_many_readers_get_in_a_slice_at_a_time_and_nobody_overtakes() {
    const READERS: u32 = 2_000;
    let key = b"page";
    let (wait, lease) = (Millis::from_secs(60), Some(Millis::from_secs(600)));
    let mut table = Table::new();
    let token = Some(table.grant(0, key, Mode::Write, Millis::from_secs(600)));
    let acquire = |mode, wait| Request::Acquire {
        key,
        mode,
        wait,
        lease,
    };
    for reader in 1..=READERS {
        assert_eq!(table.ask(reader, acquire(Mode::Read, wait)), []);
    }
    let writer = READERS + 1;
    assert_eq!(table.ask(writer, acquire(Mode::Write, wait)), []);
    table.ask(0, Request::Release { key, token });
    let first = table.engine.counts().holders;
    assert!((1..1_000).contains(&first), "{first} in one request");
    assert_eq!(table.engine.next_deadline(), Some(Nanos(0)), "the rest");
    table.engine.check();
    // Behind the queue, though there is room for a reader: not decided before the queue is served.
    let late = READERS + 2;
    assert_eq!(
        table.ask(late, acquire(Mode::Read, Millis::ZERO)).last(),
        Some(&Effect::NotYet(id(late)))
    );
    table.engine.check();
    while table.engine.next_deadline() == Some(Nanos(0)) {
        let before = table.engine.counts().holders;
        table.turn(0);
        table.engine.check();
        let granted = table.engine.counts().holders - before;
        assert!(granted < 1_000, "{granted} in one turn without work");
    }
    let granted = table.engine.view(table.now).key(key).unwrap().holders();
    let granted: Vec<u32> = granted.map(|it| it.conn.unwrap().serial - 1).collect();
    assert!(granted.into_iter().eq(1..=READERS), "in their order");
    let late = table.answer(late, acquire(Mode::Read, Millis::ZERO));
    assert_eq!(late, Reply::TimedOut, "behind the writer");
    for client in 0..=READERS + 2 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn a_crowd_of_lapsed_slots_is_not_ended_in_one_request() {
    const SLOTS: u32 = 20_000;
    let (key, mode) = (b"pool", Mode::Slot { limit: SLOTS });
    let mut table = Table::new();
    for slot in 0..SLOTS {
        table.grant(slot % 2, key, mode, Millis(1_000 + u64::from(slot % 100)));
    }
    table.now = table.now.after(Millis(5_000));
    table.engine.take_work();
    let tried = table.ask(
        2,
        Request::Acquire {
            key,
            mode,
            wait: Millis::ZERO,
            lease: None,
        },
    );
    assert!(
        matches!(tried, [Effect::Reply(_, Reply::Granted { .. })]),
        "{tried:?}"
    );
    let work = table.engine.take_work();
    assert!(work < 100_000, "{work} for one request");
    let ended = table.engine.tally().expiries;
    assert!((1..1_000).contains(&ended), "{ended} in one request");
    // The first to end were the first whose time was over.
    let holders = table.engine.view(table.now).key(key).unwrap();
    assert_eq!(holders.holder_count(), SLOTS - ended as u32 + 1);
    table.engine.check();
    assert_eq!(table.expire_all() + ended, u64::from(SLOTS));
    for client in 0..3 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn beyond_the_limit_of_holds_nobody_is_granted_but_those_in_a_queue() {
    let lease = Some(Millis::from_secs(60));
    let mut table = Table::with(Rules {
        holds_max: 3,
        ..Rules::default()
    });
    let acquire = |key, wait| Request::Acquire {
        key,
        mode: Mode::Slot { limit: 2 },
        wait,
        lease,
    };
    table.grant(0, b"a", Mode::Slot { limit: 2 }, Millis::from_secs(60));
    let token = Some(table.grant(0, b"a", Mode::Slot { limit: 2 }, Millis::from_secs(60)));
    assert_eq!(table.ask(1, acquire(b"a", Millis::from_secs(9))), []);
    let third = Some(table.grant(2, b"b", LOCK, Millis::from_secs(60)));
    let mode = LOCK;
    let max_locks = Reply::Refused(Refusal::MaxLocks);
    for key in [&b"a"[..], b"c"] {
        assert_eq!(table.answer(3, acquire(key, Millis::ZERO)), max_locks);
        let enqueue = Request::Enqueue { key, mode, lease };
        assert_eq!(table.answer(3, enqueue), max_locks);
    }
    // A hold that is passed on is no hold more.
    let released = table.ask(0, Request::Release { key: b"a", token });
    assert!(
        matches!(released, [_, Effect::Reply(to, Reply::Granted { .. })] if *to == id(1)),
        "{released:?}"
    );
    assert_eq!(table.answer(3, acquire(b"c", Millis::ZERO)), max_locks);
    let token = third;
    table.answer(2, Request::Release { key: b"b", token });
    table.grant(3, b"c", LOCK, Millis::from_secs(60));
    for client in 0..4 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}
