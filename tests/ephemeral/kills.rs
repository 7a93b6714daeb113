//! Holders that are killed at any step.

use latchd::ephemeral::{Cleanup, EphemeralLock};

use crate::program::{Place, Program};

/// Each round starts a process, which takes Windows much longer.
const ROUNDS: u32 = if cfg!(windows) { 30 } else { 500 };

/// Killed wherever it happens to be: the lock is free when the process is gone, and what it left is removed
/// by the next holder.
#[test]
fn a_killed_holder_leaves_an_empty_file_at_most() {
    let place = Place::new();
    let mut chance = fastrand::Rng::with_seed(4);
    let mut left = 0;
    for round in 0..ROUNDS {
        let mut contender = Program::Ours.start(&place.path);
        contender.tell("churn");
        for _ in 0..chance.u32(1..40) {
            contender.hear();
        }
        contender.kill();
        left += u32::from(place.file().is_some());
        let lock = EphemeralLock::exclusive(&place.path);
        // Windows releases the locks of a process soon after its end, and does not say when.
        let guard = match cfg!(windows) {
            true => lock.acquire(),
            false => lock.try_acquire(),
        };
        let guard = guard.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(guard.release().unwrap(), Cleanup::Removed);
        assert_eq!(place.names(), [""; 0], "round {round}");
    }
    assert!(
        left > ROUNDS / 30,
        "it was hardly ever killed while it held: {left}"
    );
}
