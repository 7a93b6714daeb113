//! Shows that the model notices what goes wrong with ranges: deliberate bugs between the engine and
//! the model.
//!
//! Each row changes what the engine said or recorded as a bug would. Random scripts are played
//! until the row had something to change; then the model must complain, at the latest by the end of
//! that script.

use std::cell::Cell;
use std::rc::Rc;

use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::engine::types::{
    Effect, Effects, Input, Loss, Push, RangeAsk, RangeRequest, Record, Refusal, Reply, Sharing,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::ops;
use super::world::World;

/// Changes what came of an input; returns whether it did.
type Bug = fn(&Input<'_>, &mut Effects, &mut Vec<Record>) -> bool;

const BUGS: &[(&str, Bug)] = &[
    ("a grant from the queue is dropped", |input, out, _| {
        remove(out, |it| {
            matches!(it, Effect::Reply(_, Reply::Done)) && !is_range(input)
        })
    }),
    ("a lock is granted that is not free", |input, out, _| {
        is_lock(input) && change(out, Reply::TimedOut, Reply::Done)
    }),
    ("a lock is refused that is free", |input, out, _| {
        is_lock(input) && change(out, Reply::Done, Reply::TimedOut)
    }),
    ("a circle is not reported", |_, out, _| {
        remove(out, |it| {
            matches!(it, Effect::Reply(_, Reply::Refused(Refusal::Deadlock)))
        })
    }),
    ("a limit is not kept", |_, out, _| {
        change(out, Reply::Refused(Refusal::MaxRangesOfClient), Reply::Done)
    }),
    ("another limit is named", |_, out, _| {
        let [of_resource, of_all] = [Refusal::MaxRangesOfResource, Refusal::MaxRanges];
        change(out, Reply::Refused(of_resource), Reply::Refused(of_all))
    }),
    ("an owner may wait twice", |_, out, _| {
        remove(out, |it| {
            matches!(it, Effect::Reply(_, Reply::Refused(Refusal::Busy)))
        })
    }),
    ("a cancelled wait goes on", |_, out, _| {
        change(out, Reply::Cancelled, Reply::Nothing)
    }),
    ("bytes that are held are shown as free", |_, out, _| {
        let held = |it: &Effect| matches!(it, Effect::Reply(_, Reply::RangeHeld(_)));
        let found = out.iter_mut().find(|it| held(it));
        found.is_some_and(|it| {
            if let Effect::Reply(_, reply) = it {
                *reply = Reply::RangeFree;
            }
            true
        })
    }),
    ("pending bytes are granted to another owner", |_, out, _| {
        let found = out.iter_mut().find_map(|it| match it {
            Effect::Reply(_, reply @ Reply::InGrace(_)) => Some(reply),
            _ => None,
        });
        found.is_some_and(|reply| {
            *reply = Reply::Done;
            true
        })
    }),
    ("the grace period is too short", |_, out, _| {
        let found = out.iter_mut().find_map(|it| match it {
            Effect::Reply(_, Reply::InGrace(left)) => Some(left),
            _ => None,
        });
        found.is_some_and(|left| {
            *left = Millis(left.0 - 1);
            true
        })
    }),
    ("bytes are reclaimed that were never held", |_, out, _| {
        change(out, Reply::Refused(Refusal::Reclaim), Reply::Done)
    }),
    ("a loss is not told", |_, out, _| {
        remove(out, |it| {
            matches!(it, Effect::Push(_, Push::RangeLost { .. }))
        })
    }),
    ("a loss has another reason", |_, out, _| {
        let found = out.iter_mut().find_map(|it| match it {
            Effect::Push(_, Push::RangeLost { why, .. }) => Some(why),
            _ => None,
        });
        found.is_some_and(|why| {
            *why = if *why == Loss::Broken {
                Loss::Expired
            } else {
                Loss::Broken
            };
            true
        })
    }),
    ("the end of the grace period is not told", |_, out, _| {
        remove(out, |it| matches!(it, Effect::GraceOver(_)))
    }),
    ("a lock is not recorded", |_, _, records| {
        let at = records
            .iter()
            .position(|it| matches!(it, Record::Ranged { .. }));
        at.map(|at| records.remove(at)).is_some()
    }),
    ("an upgrade is recorded as shared", |_, _, records| {
        records.iter_mut().any(|it| match it {
            Record::Ranged {
                mode: Some(mode), ..
            } if *mode == Sharing::Exclusive => {
                *mode = Sharing::Shared;
                true
            }
            _ => false,
        })
    }),
    ("a lock has a number of an earlier one", |_, _, records| {
        records.iter_mut().any(|it| match it {
            Record::Ranged {
                mode: Some(_),
                grant,
                ..
            } if grant.id > 9 => {
                grant.id -= 8;
                true
            }
            _ => false,
        })
    }),
    ("a lock is told before it is on disk", |input, out, _| {
        is_lock(input) && remove(out, |it| matches!(it, Effect::Mark(number) if *number > 0))
    }),
];

fn is_range(input: &Input<'_>) -> bool {
    matches!(input, Input::Range(..))
}

fn is_lock(input: &Input<'_>) -> bool {
    let lock = |it: &RangeRequest<'_>| matches!(it.ask, RangeAsk::Lock { .. });
    matches!(input, Input::Range(_, _, request) if lock(request))
}

fn remove(out: &mut Effects, is_it: impl Fn(&Effect) -> bool) -> bool {
    let at = out.iter().position(is_it);
    at.map(|at| out.remove(at)).is_some()
}

fn change(out: &mut Effects, from: Reply, to: Reply) -> bool {
    let found = out.iter_mut().find_map(|it| match it {
        Effect::Reply(_, reply) if *reply == from => Some(reply),
        _ => None,
    });
    found.map(|reply| *reply = to).is_some()
}

#[test]
fn model_notices_every_deliberate_bug_of_ranges() {
    const SCRIPTS: usize = 4_000;
    let unnoticed = BUGS.iter().filter(|(_, bug)| {
        let config = Config {
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let limits = super::rules();
        !(0..SCRIPTS).any(|nth| {
            let rules = limits.new_tree(&mut runner).unwrap().current();
            let durable = nth.is_multiple_of(2);
            let rules = Rules { durable, ..rules };
            let scripts = match durable {
                true => ops::durable(60).boxed(),
                false => ops::ranges(60).boxed(),
            };
            let script = scripts.new_tree(&mut runner).unwrap().current();
            let has_struck = Rc::new(Cell::new(false));
            let mut world = World::new(rules);
            let (struck, bug) = (has_struck.clone(), *bug);
            world.bug = Some(Box::new(move |input, out, records| {
                if !struck.get() && bug(input, out, records) {
                    struck.set(true);
                }
            }));
            let mut verdict = Ok(());
            for op in &script.0 {
                verdict = verdict.and_then(|()| world.run(*op));
            }
            let verdict = verdict.and_then(|()| world.end());
            has_struck.get() && verdict.is_err()
        })
    });
    let unnoticed: Vec<_> = unnoticed.map(|it| it.0).collect();
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
