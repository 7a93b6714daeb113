//! The engine against the reference model (`tools/model`), in lockstep.
//!
//! `ops.rs` says what can happen, and `world.rs` tells both and compares after every input. `beyond.rs` is
//! the same with crowds on one key, compared when the engine has come to rest; `ranges.rs` draws byte ranges
//! beside keys; `stories.rs` keeps what once went wrong. `bugs.rs` shows that the model notices what goes
//! wrong, and `cells.rs` that scripts reach everything. No time passes but the numbers handed in. More cases:
//! `PROPTEST_CASES=20000 cargo test --test engine model::`.

#![allow(unreachable_pub, reason = "modules of a test have no outside")]

mod beyond;
mod bugs;
mod cells;
mod ops;
mod ranges;
mod stories;
mod world;

use latchd::engine::Rules;
use proptest::prelude::*;

use self::ops::Script;
use self::world::World;

proptest! {
    // Long cases, so many of them to try when one of them is made shorter.
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every report of a deadlock is a circle, and every circle is reported to the one who closes it.
    #[test]
    fn deadlocks_are_found_as_the_model_finds_them(
        rules in ops::tangled_rules(),
        script in ops::tangle(120),
    ) {
        run(rules, &script)?;
    }

    #[test]
    fn engine_does_what_the_model_does(rules in ops::rules(), script in ops::script(200)) {
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
