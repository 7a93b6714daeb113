//! Cases that once went wrong, kept in full because chance rarely finds them again.
//!
//! Each is a script for [`World`], so the model says what should have happened.

use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::engine::types::Mode;

use super::ops::{Op, Step, Verb};
use super::world::World;

const MS: u64 = 1_000_000;

fn run(rules: Rules, script: &[Op]) {
    let mut world = World::new(rules);
    for op in script {
        if let Err(why) = world.run(op) {
            panic!("{op:?}: {why}");
        }
    }
    if let Err(why) = world.end() {
        panic!("at the end: {why}");
    }
}

/// Whoever is not parked asks for key 2, so that each call finds another client.
fn acquire(mode: Mode, wait_ms: u64, lease_ms: u64) -> Op {
    Op::Ask {
        client: 0,
        key: 2,
        verb: Verb::Acquire {
            mode,
            wait: Millis(wait_ms),
            lease: Some(Millis(lease_ms)),
        },
    }
}

/// The timer of a key taken again ran on for garbage collection, and the check counted it as lost.
#[test]
fn a_key_that_was_idle_is_used_again() {
    let release = Op::Ask {
        client: 0,
        key: 2,
        verb: Verb::Release {
            pick: super::ops::Pick::Live,
            nth: 0,
        },
    };
    let acquire = acquire(Mode::Write, 0, 10);
    run(
        Rules::default(),
        &[acquire.clone(), release.clone(), acquire, release],
    );
}

/// A turn comes late: the writer in the queue has waited for too long, but no lease has ended. A
/// reader that tries once was refused as if the writer still stood there.
#[test]
fn an_overdue_writer_does_not_block_a_reader_that_tries_once() {
    run(
        Rules::default(),
        &[
            acquire(Mode::Read, 0, 1_000),
            acquire(Mode::Write, 5, 1_000),
            Op::Pass(Step::For(6 * MS)),
            acquire(Mode::Read, 0, 1_000),
            Op::Expire,
        ],
    );
}

/// The same with a queue that may hold one: an overdue wait filled it.
#[test]
fn an_overdue_wait_does_not_fill_the_queue() {
    let rules = Rules {
        waiters_per_key_max: 1,
        ..Rules::default()
    };
    run(
        rules,
        &[
            acquire(Mode::Write, 0, 1_000),
            acquire(Mode::Write, 5, 1_000),
            Op::Pass(Step::For(6 * MS)),
            acquire(Mode::Write, 5, 1_000),
            Op::Expire,
        ],
    );
}

/// A writer and readers behind it give up at the same instant. The writer's going makes room for
/// the readers at that very instant, so they are granted, in whichever order the timers fire. The
/// other leases are there to stir the heap.
#[test]
fn waits_of_one_instant_end_in_the_order_of_the_queue() {
    for stirred in 0..12 {
        let mut script = vec![acquire(Mode::Read, 0, 1_000)];
        for lease_ms in 0..stirred {
            script.push(Op::Ask {
                client: 4,
                key: 1,
                verb: Verb::Acquire {
                    mode: Mode::Slot { limit: 12 },
                    wait: Millis(0),
                    lease: Some(Millis(1 + lease_ms)),
                },
            });
        }
        script.extend([
            acquire(Mode::Write, 9, 20),
            acquire(Mode::Read, 9, 20),
            acquire(Mode::Write, 9, 20),
            acquire(Mode::Read, 9, 20),
        ]);
        script.extend((1..=9).map(|_| Op::Turn(Step::For(MS))));
        run(Rules::default(), &script);
    }
}
