//! Nobody stands behind another's crowd, of whatever it is.
//!
//! Turns with little work, so that most of a crowd is left over, and somebody who wants little.

use latchd::base::{Millis, Nanos};
use latchd::engine::types::{Effect, Mode, Reply, Request};

use super::table::{LOCK, Table, WORK, id, is_held};

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

/// Nobody waits for them, and everybody is heard again after the turn.
#[test]
fn values_that_end_together_take_a_small_part_of_a_turn() {
    let mut table = Table::new();
    for key in 0..CROWD / 10 {
        let (key, value, ttl) = (&key.to_le_bytes(), &b"v"[..], Millis(1));
        table.answer(0, Request::Put { key, value, ttl });
    }
    table.now = table.now.after(Millis(2));
    let mut turns = 0;
    while table.engine.counts().others > 0 {
        table.engine.take_work();
        table.turn(10 * WORK);
        let work = table.engine.take_work();
        assert!(work < 500_000, "{work}");
        turns += 1;
    }
    assert!(turns > 2, "{turns}");
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

/// Whoever has a crowd of leases comes later with the rest of them, but on one key leases end in
/// their order all the same: a waiter whose wait was not over when the first ended is granted.
#[test]
fn owners_take_turns_and_yet_the_leases_of_one_key_end_in_their_order() {
    let (pool, mode) = (b"pool", Mode::Slot { limit: 2 });
    let mut table = Table::new();
    for client in 0..2 {
        for key in 0..1_000_u32 {
            let key = [client, key].map(u32::to_le_bytes).concat();
            table.grant(client, &key, LOCK, Millis(1_000));
        }
    }
    table.grant(0, pool, mode, Millis(1_400));
    table.grant(2, pool, mode, Millis(2_000));
    let acquire = Request::Acquire {
        key: pool,
        mode,
        wait: Millis(1_500),
        lease: Some(Millis(9_000)),
    };
    assert_eq!(table.ask(1, acquire), []);
    table.now = table.now.after(Millis(3_000));
    let mut answers = Vec::new();
    while table
        .engine
        .next_deadline()
        .is_some_and(|it| it <= table.now)
    {
        table.turn(WORK / 10);
        table.engine.check();
        answers.append(&mut table.out);
    }
    assert!(
        matches!(&answers[..], [Effect::Reply(to, Reply::Granted { .. })] if *to == id(1)),
        "{answers:?}"
    );
    for client in 0..3 {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}
