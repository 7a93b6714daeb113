//! Byte ranges, put before the engine by themselves.
//!
//! `naive.rs` is a model that knows every byte and has one list of who waits, written from the
//! documentation; `served.rs` is what it does with its queues, and `cycles.rs` how it finds those who
//! would wait for themselves. `ops.rs` is what can happen, and `world.rs` compares after each operation.
//! `crowds.rs` and `searches.rs` are plain tests: their numbers would be too large for a model. More
//! cases: `PROPTEST_CASES=20000 cargo test --test engine ranges::`.

#![allow(missing_docs, reason = "a test, not an interface")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "modules of a test have no outside")]

mod crowds;
mod cycles;
mod naive;
mod ops;
mod searches;
mod served;
mod world;

use latchd::base::Millis;
use proptest::prelude::*;

use self::ops::{Limits, Op, Script};
use self::world::World;

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    /// Connections for themselves, one resource: locks, waits, their order, and every answer.
    #[test]
    fn every_byte_is_granted_as_the_model_grants_it(
        limits in ops::limits(),
        script in ops::plain(60),
    ) {
        run(limits, &script)?;
    }

    /// Several resources, clients with several connections, named owners, and named locks: every report of a
    /// deadlock is a circle, every circle is reported once, and nobody is ever stuck.
    #[test]
    fn circles_through_ranges_and_locks_are_found_as_the_model_finds_them(script in ops::tangle(60)) {
        run(Limits::default(), &script)?;
    }
}

fn run(limits: Limits, script: &Script) -> Result<(), TestCaseError> {
    let mut world = World::new(limits);
    for (index, op) in script.0.iter().enumerate() {
        let verdict = world.run(*op);
        prop_assert!(
            verdict.is_ok(),
            "operation {}, {:?}: {}",
            index,
            op,
            verdict.unwrap_err()
        );
    }
    let verdict = world.end();
    prop_assert!(verdict.is_ok(), "at the end: {}", verdict.unwrap_err());
    Ok(())
}

/// Two waiters are in one circle that only the order of their queue makes, and either could be let pass.
/// The engine chooses, and the model has to follow: with the first one gone the second is in none.
#[test]
fn model_lets_waiters_pass_in_the_order_of_the_engine() {
    let lock = |conn, exclusive, bytes, wait| Op::Lock {
        conn,
        resource: 0,
        exclusive,
        bytes,
        wait: Millis(wait),
        name: 0,
    };
    let script = Script(vec![
        lock(1, false, (8, 12), 0),
        lock(2, true, (7, 12), 30_000),
        lock(5, false, (1, 5), 0),
        lock(2, true, (5, 5), 30_000),
        lock(0, false, (7, 7), 1_000),
        lock(1, false, (5, 5), 1_000),
        lock(1, false, (0, 0), 0),
        lock(1, false, (1, 5), 250),
        lock(0, true, (0, 1), 250),
    ]);
    run(Limits::default(), &script).unwrap();
}
