//! The engine against a model that is too simple to be wrong.
//!
//! `naive.rs` is the model, `ops.rs` what can happen, `world.rs` compares after each operation;
//! `beyond.rs` is the same with crowds on one key, compared when the engine has come to rest;
//! `stories.rs` keeps what once went wrong, `crowds.rs` and `fair.rs` are plain tests (on `table.rs`)
//! and `deadlocks.rs`, whose numbers would be too large for a model. More cases:
//! `PROPTEST_CASES=20000 cargo test --test engine model::`. No time passes but the numbers handed
//! in.

#![allow(missing_docs, reason = "a test, not an interface")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "modules of a test have no outside")]

mod beyond;
mod crowds;
mod deadlocks;
mod fair;
mod naive;
mod ops;
mod replay;
mod stories;
mod table;
mod world;

use latchd::engine::Rules;
use proptest::prelude::*;

use self::ops::Script;
use self::world::World;

proptest! {
    // Long cases, so many of them to try when one of them is made shorter.
    #![proptest_config(ProptestConfig { max_shrink_iters: 50_000, ..ProptestConfig::default() })]

    /// Leases, queues, two-phase tickets, limits, departures, collection: all at once.
    #[test]
    fn the_engine_does_what_the_model_does(rules in ops::rules(), script in ops::script(300)) {
        run(rules, &script)?;
    }

    /// Clients with several connections, each of which does everything.
    #[test]
    fn clients_with_several_connections_do_what_the_model_does(
        rules in ops::shared_rules(),
        script in ops::shared(300),
    ) {
        run(rules, &script)?;
    }

    /// Every report of a deadlock is a circle, and every circle is reported once, to the one who closes
    /// it: with everybody told, nobody is ever stuck.
    #[test]
    fn deadlocks_are_found_as_the_model_finds_them(
        rules in ops::tangled_rules(),
        script in ops::tangle(120),
    ) {
        run(rules, &script)?;
    }
}

fn run(rules: Rules, script: &Script) -> Result<(), TestCaseError> {
    let mut world = World::new(rules);
    for (index, op) in script.0.iter().enumerate() {
        let verdict = world.run(op);
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
