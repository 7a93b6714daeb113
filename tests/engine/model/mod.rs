//! The engine against the reference model (`tools/model`), in lockstep.
//!
//! `ops.rs` draws random operations; `world.rs` makes an input of each, gives it to the engine and
//! the model, and compares after every input. `beyond.rs` does the same with crowds on one key,
//! compared after the engine has come to rest. `ranges.rs` draws byte ranges beside keys, and
//! `stories.rs` keeps past failures. `bugs.rs` shows that the model notices bugs, and `cells.rs`
//! that scripts reach everything. Time is only a number in the input. More cases:
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
    // The cases are long, so shrinking one of them needs many steps.
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every report of a deadlock is a cycle, and every cycle is reported to the request that
    /// closes it.
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
