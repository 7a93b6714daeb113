//! Cases that once went wrong, kept in full because chance rarely finds them again.
//!
//! Each is a script for [`World`], so the model says what should have happened.

use latchd::engine::Rules;
use latchd::engine::types::Mode;

use super::ops::{Op, Pick, Step, Verb};
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

/// A connection asks for a key that is read and written.
fn acquire(conn: usize, mode: Mode, wait: u64, lease: u64) -> Op {
    let verb = Verb::Acquire(1, mode, wait, Some(lease));
    Op::Ask { conn, verb }
}

/// The timer of a key taken again ran on for garbage collection, and the check counted it as lost.
#[test]
fn key_that_was_idle_is_used_again() {
    let verb = Verb::Release(Pick::Live(0));
    let release = Op::Ask { conn: 0, verb };
    let acquire = acquire(0, Mode::Write, 0, 10);
    run(
        Rules::default(),
        &[acquire.clone(), release.clone(), acquire, release],
    );
}

/// A turn comes late: the writer in the queue has waited for too long, but no lease has ended. A
/// reader that tries once was refused as if the writer still stood there.
#[test]
fn overdue_writer_does_not_block_a_reader_that_tries_once() {
    run(
        Rules::default(),
        &[
            acquire(0, Mode::Read, 0, 1_000),
            acquire(1, Mode::Write, 5, 1_000),
            Op::Pass(Step::For(6 * MS)),
            acquire(2, Mode::Read, 0, 1_000),
            Op::Turn(Step::For(0)),
        ],
    );
}

/// The same with a queue that may hold one: an overdue wait filled it.
#[test]
fn overdue_wait_does_not_fill_the_queue() {
    let rules = Rules {
        waiters_per_key_max: 1,
        ..Rules::default()
    };
    run(
        rules,
        &[
            acquire(0, Mode::Write, 0, 1_000),
            acquire(1, Mode::Write, 5, 1_000),
            Op::Pass(Step::For(6 * MS)),
            acquire(2, Mode::Write, 5, 1_000),
            Op::Turn(Step::For(0)),
        ],
    );
}

/// A writer and readers behind it give up at the same instant. The writer's going makes room for
/// the readers at that very instant, so they are granted, in whichever order the timers fire. The
/// other leases are there to stir the heap.
#[test]
fn waits_of_one_instant_end_in_the_order_of_the_queue() {
    for stirred in 0..12 {
        let mut script = vec![acquire(0, Mode::Read, 0, 1_000)];
        for lease in 1..=stirred {
            let verb = Verb::Acquire(2, Mode::Slot { limit: 12 }, 0, Some(lease));
            script.push(Op::Ask { conn: 0, verb });
        }
        script.extend([
            acquire(0, Mode::Write, 9, 20),
            acquire(1, Mode::Read, 9, 20),
            acquire(2, Mode::Write, 9, 20),
            acquire(3, Mode::Read, 9, 20),
        ]);
        script.extend((1..=9).map(|_| Op::Turn(Step::For(MS))));
        run(Rules::default(), &script);
    }
}

/// A connection holds a key that it and another one are in the queue of, when the server stops.
#[test]
fn waiter_behind_one_that_is_cut_off_is_not_granted_and_not_missed() {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let enqueue = |conn, mode| {
        let verb = Verb::Enqueue(1, mode, Some(1));
        Op::Ask { conn, verb }
    };
    let script = [
        acquire(0, Mode::Read, 0, 1),
        enqueue(0, Mode::Write),
        enqueue(1, Mode::Read),
        Op::CutOffOne(0),
        Op::Restart(0),
    ];
    run(rules, &script);
}
