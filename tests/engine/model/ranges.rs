//! Byte ranges, clients and deadlocks in lockstep with the model.
//!
//! `ops.rs` is what can happen: every request about ranges, on connections for themselves, for
//! clients with several connections and for registered clients, mixed with named locks, breaks and
//! restarts. `world.rs` puts it before engine and model, and `bugs.rs` shows that the model notices
//! what goes wrong. More cases: `PROPTEST_CASES=20000 cargo test --test engine ranges`.

mod bugs;
mod ops;
mod world;

use latchd::base::Millis;
use latchd::engine::{GracePolicy, Rules, SearchLimits};
use proptest::prelude::*;

use self::ops::{Ask, Op, Script};
use self::world::World;

/// What the operator has set.
fn rules() -> impl Strategy<Value = Rules> {
    let limits = (0..3_u32, 3..6_u32, 2..5_u32, 4..9_u32, 0..4_u32);
    let waits = prop_oneof![Just(60_000), Just(20_000), Just(0)];
    let grace = prop_oneof![3 => Just(90_000), 1 => Just(1_000), 1 => Just(0)];
    (limits, any::<bool>(), waits, grace, 0..4).prop_map(
        |(limits, detects, wait, grace, strict)| {
            let (are_set, of_resource, of_client, of_all, waiters) = limits;
            let limited = u32::from(are_set == 0);
            Rules {
                deadlock_detection: detects,
                ranges_per_resource_max: limited * of_resource,
                ranges_per_client_max: limited * of_client,
                ranges_max: limited * of_all,
                waiters_per_key_max: limited * waiters,
                range_wait_max: Millis(wait),
                grace_period: Millis(grace),
                grace_policy: match strict {
                    0 => GracePolicy::Strict,
                    _ => GracePolicy::Held,
                },
                ..Rules::default()
            }
        },
    )
}

/// Deadlocks are always reported: immediately, or when time passes.
fn detecting() -> impl Strategy<Value = Rules> {
    let at_once_work = prop_oneof![3 => Just(SearchLimits::default().at_once_work), 1 => Just(0)];
    at_once_work.prop_map(|at_once_work| Rules {
        deadlock_detection: true,
        search_limits: SearchLimits {
            at_once_work,
            ..SearchLimits::default()
        },
        ..Rules::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Locks, waits, their order, limits, breaks, and every answer.
    #[test]
    fn ranges_are_granted_as_the_model_grants_them(rules in rules(), script in ops::ranges(60)) {
        run(rules, &script)?;
    }

    /// Many sessions hold and wait for many ranges: every report of a deadlock is a cycle, every
    /// cycle is reported once, and no waiter is ever stuck.
    #[test]
    fn circles_through_ranges_and_keys_are_found_as_the_model_finds_them(
        rules in detecting(),
        rests in any::<bool>(),
        script in ops::tangle(60),
    ) {
        play(rules, &script, rests)?;
    }

    /// Changes are recorded, and the server is started again and again.
    #[test]
    fn ranges_outlive_restarts_as_in_the_model(rules in rules(), script in ops::durable(60)) {
        run(Rules { durable: true, ..rules }, &script)?;
    }
}

fn run(rules: Rules, script: &Script) -> Result<(), TestCaseError> {
    play(rules, script, false)
}

/// Plays a script. If the world rests after each operation, every cycle is reported before the next
/// one.
fn play(rules: Rules, script: &Script, rests: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(rules);
    for (index, op) in script.0.iter().enumerate() {
        let verdict = world.run(*op);
        let verdict = match rests {
            true => verdict.and_then(|()| world.rest()),
            false => verdict,
        };
        prop_assert!(
            verdict.is_ok(),
            "operation {index}, {op:?}: {}",
            verdict.unwrap_err()
        );
    }
    let verdict = world.end();
    prop_assert!(verdict.is_ok(), "at the end: {}", verdict.unwrap_err());
    Ok(())
}

/// Locks the bytes from the first to the last.
fn lock(conn: usize, resource: usize, exclusive: bool, bytes: (u64, u64), wait: u64) -> Op {
    let bytes = (bytes.0, bytes.1 - bytes.0 + 1);
    let ask = Ask::Lock {
        exclusive,
        bytes,
        wait,
    };
    Op::Range {
        conn,
        of: None,
        resource,
        name: 0,
        ask,
    }
}

/// Two waiters are in one circle that only the order of their queue makes, and either could be let
/// pass. The engine chooses, and the model has to follow: with the first one gone the second is in
/// none.
#[test]
fn model_lets_waiters_pass_in_the_order_of_the_engine() {
    let script = Script(vec![
        lock(1, 0, false, (8, 12), 0),
        lock(2, 0, true, (7, 12), 30_000),
        lock(5, 0, false, (1, 5), 0),
        lock(2, 0, true, (5, 5), 30_000),
        lock(0, 0, false, (7, 7), 1_000),
        lock(1, 0, false, (5, 5), 1_000),
        lock(1, 0, false, (0, 0), 0),
        lock(1, 0, false, (1, 5), 250),
        lock(0, 0, true, (0, 1), 250),
        Op::Pass(300),
    ]);
    run(Rules::default(), &script).unwrap();
}

/// The client waits on two connections. One of them holds a slot of its own, and waits for the
/// other one as the client: so it is stuck, and a wait that leads to it is a circle.
#[test]
fn cycle_through_a_client_that_waits_on_two_connections_is_found() {
    let attach = |conn| Op::Attach {
        conn,
        client: 0,
        ttl: 0,
    };
    let acquire = |conn, wait| Op::Acquire {
        conn,
        key: 1,
        writes: false,
        wait,
    };
    let script = Script(vec![
        lock(0, 1, true, (0, 12), 0),
        acquire(1, 0),
        lock(5, 2, false, (2, 5), 0),
        attach(0),
        attach(1),
        lock(0, 2, false, (3, 5), 0),
        lock(3, 0, false, (2, 6), 0),
        lock(2, 0, true, (5, 9), 30_000),
        lock(0, 0, false, (5, 5), 30_000),
        acquire(2, 30_000),
        lock(3, 1, false, (0, 0), 30_000),
        acquire(3, 30_000),
        lock(1, 2, true, (0, 12), 250),
        Op::Again {
            nth: 0,
            wait: Some(30_000),
        },
        Op::Pass(300),
    ]);
    run(
        Rules {
            deadlock_detection: true,
            ..Rules::default()
        },
        &script,
    )
    .unwrap();
}

/// A client that comes back within the grace period and leaves again, with a short time to live,
/// keeps what it has not reclaimed until the period is over.
#[test]
fn pending_locks_of_a_client_that_leaves_again_are_kept() {
    let attach = Op::Attach {
        conn: 0,
        client: 0,
        ttl: 60_000,
    };
    let script = Script(vec![
        attach,
        lock(0, 0, true, (0, 4), 0),
        Op::Restart {
            may_have_lost: false,
        },
        Op::Visit {
            client: 0,
            ttl: 300,
        },
        Op::Pass(5_000),
        lock(1, 0, true, (0, 4), 0),
        Op::Pass(90_000),
        lock(1, 0, true, (0, 4), 0),
    ]);
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    run(rules, &script).unwrap();
}

/// The time to live of a registered client runs anew from when it is granted what it waited for.
#[test]
fn registered_client_is_kept_for_its_time_after_a_grant() {
    let waits = Ask::Lock {
        exclusive: true,
        bytes: (0, 5),
        wait: 1_000,
    };
    let script = Script(vec![
        Op::Register {
            conn: 0,
            client: 0,
            ttl: 2_000,
        },
        lock(0, 0, true, (0, 4), 0),
        Op::Range {
            conn: 0,
            of: Some(0),
            resource: 0,
            name: 0,
            ask: waits,
        },
        Op::Pass(700),
        Op::Leave { slot: 0 },
        Op::Pass(1_300),
        lock(1, 0, true, (0, 4), 0),
    ]);
    run(Rules::default(), &script).unwrap();
}
