//! Shows that the model notices deliberate bugs between the engine and the model.
//!
//! Each row changes the effects or records of the engine as a bug would: it drops, repeats,
//! reorders or alters one of them. Random scripts are played until the row had something to change;
//! then the model must complain, at the latest by the end of that script.

use std::cell::RefCell;
use std::rc::Rc;

use latchd::base::{Fence, Millis};
use latchd::engine::Rules;
use latchd::engine::types::{
    Effect, Effects, Event, Input, Loss, Notes, Push, Record, Refusal, Reply,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::ops;
use super::world::World;

/// Changes what came of an input; returns whether it did.
type Bug = fn(&Input<'_>, &mut Effects, &mut Vec<Record>) -> bool;

const BUGS: &[(&str, Bug)] = &[
    ("a grant is dropped", |_, out, _| {
        remove(out, |it| {
            matches!(it, Effect::Reply(_, Reply::Granted { .. }))
        })
    }),
    ("a grant from the queue is dropped", |input, out, _| {
        let asker = asker(input);
        remove(
            out,
            |it| matches!(it, Effect::Reply(id, Reply::Granted { .. }) if Some(*id) != asker),
        )
    }),
    ("a waiter behind another one is granted", |_, out, _| {
        // Two that waited are granted, and each hears of the other's grant.
        let mut granted = out.iter_mut().filter_map(|it| match it {
            Effect::Reply(id, Reply::Granted { .. }) => Some(id),
            _ => None,
        });
        match (granted.next(), granted.next()) {
            (Some(one), Some(other)) => {
                std::mem::swap(one, other);
                true
            }
            _ => false,
        }
    }),
    ("a fence is given twice", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Granted { token, .. }) if token.fence.0 > 4080 => {
                token.fence = Fence(token.fence.0 - 1);
                true
            }
            _ => false,
        })
    }),
    ("a fence is left out", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Acquired { token, .. }) => {
                token.fence = Fence(token.fence.0 + 1);
                true
            }
            _ => false,
        })
    }),
    ("a token changes", |input, out, _| {
        let waits = matches!(
            input,
            Input::Request(_, latchd::engine::types::Request::Reclaim { .. })
        );
        waits
            && change(out, |it| match it {
                Effect::Reply(_, Reply::Granted { token, .. }) => {
                    token.salt ^= 1;
                    true
                }
                _ => false,
            })
    }),
    ("a lease is shorter than asked", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Granted { lease, .. } | Reply::Renewed { lease, .. }) => {
                *lease = Millis(lease.0.saturating_sub(1));
                true
            }
            _ => false,
        })
    }),
    ("a lost lease is not told", |_, out, _| {
        remove(out, |it| matches!(it, Effect::Push(_, Push::Lost { .. })))
    }),
    ("a lost lease is told twice", |_, out, _| {
        repeat(out, |it| matches!(it, Effect::Push(_, Push::Lost { .. })))
    }),
    ("an expiry is told as a break", |_, out, _| {
        change(out, |it| match it {
            Effect::Push(_, Push::Lost { why, .. }) if *why == Loss::Expired => {
                *why = Loss::Broken;
                true
            }
            _ => false,
        })
    }),
    ("a place in the queue is wrong", |_, out, _| {
        number_is_off(out)
    }),
    ("a time-out is dropped", |_, out, _| {
        remove(out, |it| matches!(it, Effect::Reply(_, Reply::TimedOut)))
    }),
    ("a time-out is a refusal", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, reply) if *reply == Reply::TimedOut => {
                *reply = Reply::Refused(Refusal::MaxWaiters);
                true
            }
            _ => false,
        })
    }),
    ("an expired lease is an unknown token", |_, out, _| {
        let (from, to) = (Refusal::LeaseExpired, Refusal::NotHolder);
        refuse_differently(out, from, to)
    }),
    ("a deadlock is not noticed", |_, out, _| {
        remove(out, |it| {
            *it_reply(it) == Some(Reply::Refused(Refusal::Deadlock))
        })
    }),
    ("a drain forgets a parked command", |input, out, _| {
        matches!(input, Input::Drain) && remove(out, |it| matches!(it, Effect::Reply(..)))
    }),
    ("an answer comes twice", |_, out, _| {
        repeat(out, |it| matches!(it, Effect::Reply(_, Reply::Done)))
    }),
    ("an answer goes to another connection", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(id, Reply::Granted { .. }) => {
                id.serial += 1;
                true
            }
            _ => false,
        })
    }),
    ("a watcher is left out", |_, out, _| {
        shorten(out, |push| matches!(push, Push::Watch { .. }))
    }),
    ("a watcher hears another event", |_, out, _| {
        change(out, |it| match it {
            Effect::Broadcast(_, Push::Watch { event, .. }) if *event == Event::Release => {
                *event = Event::Acquire;
                true
            }
            _ => false,
        })
    }),
    ("a listener is left out", |_, out, _| {
        shorten(out, |push| matches!(push, Push::Signal { .. }))
    }),
    ("a signal is told twice", |_, out, _| {
        change(out, |it| match it {
            Effect::Broadcast(to, Push::Signal { .. }) => {
                to.push(to[0]);
                true
            }
            _ => false,
        })
    }),
    ("an observer is left out", |_, out, _| {
        shorten(out, |push| matches!(push, Push::Leader { .. }))
    }),
    ("observers hear things in the wrong order", |_, out, _| {
        let is_news = |it: &Effect| matches!(it, Effect::Broadcast(_, Push::Leader { .. }));
        let at: Vec<usize> = (0..out.len()).filter(|at| is_news(&out[*at])).collect();
        match at[..] {
            [one, other, ..] if one + 1 == other => {
                out.swap(one, other);
                true
            }
            _ => false,
        }
    }),
    ("a value is another one", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Value(value)) => {
                *value = b"other"[..].into();
                true
            }
            _ => false,
        })
    }),
    ("a popped value is another one", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Popped(popped)) => {
                popped.value = b"other"[..].into();
                true
            }
            _ => false,
        })
    }),
    ("a popper is not served", |input, out, _| {
        let asker = asker(input);
        remove(
            out,
            |it| matches!(it, Effect::Reply(id, Reply::Popped(_)) if Some(*id) != asker),
        )
    }),
    ("a part of a list is cut", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Values(text)) => text.pop().is_some(),
            _ => false,
        })
    }),
    ("one client of a barrier is not told", |input, out, _| {
        let is_meeting = matches!(
            input,
            Input::Request(_, latchd::engine::types::Request::Meet { .. })
        );
        is_meeting && remove(out, |it| *it_reply(it) == Some(Reply::Done))
    }),
    ("a client is new each time", |_, out, _| {
        change(out, |it| match it {
            Effect::Reply(_, Reply::Attached { is_new, .. }) if !*is_new => {
                *is_new = true;
                true
            }
            _ => false,
        })
    }),
    ("a wrong secret is let in", |_, out, _| {
        let (from, to) = (Refusal::WrongSecret, Refusal::UnknownClient);
        refuse_differently(out, from, to)
    }),
    ("an overrun is not reported", |_, out, _| {
        remove(out, |it| matches!(it, Effect::Overrun(_)))
    }),
    ("a broken grant is not noted", |_, out, _| {
        remove(out, |it| matches!(it, Effect::Note(_)))
    }),
    ("a request is put off for nothing", |input, out, _| {
        let Some(id) =
            asker(input).filter(|_| out.iter().any(|it| matches!(it, Effect::Reply(..))))
        else {
            return false;
        };
        *out = vec![Effect::NotYet(id)];
        true
    }),
    ("an answer is not marked", |_, out, _| {
        let is_mark = |it: &Effect| matches!(it, Effect::Mark(number) if *number > 0);
        let speaks = matches!(
            &out[..],
            [Effect::Mark(_), Effect::Reply(_, Reply::Granted { .. }), ..]
        );
        speaks && remove(out, is_mark)
    }),
    ("an answer is marked one record too early", |_, out, _| {
        let speaks = matches!(
            &out[..],
            [Effect::Mark(number), Effect::Reply(_, Reply::Granted { .. }), ..] if *number > 0
        );
        speaks
            && change(out, |it| match it {
                Effect::Mark(number) => {
                    *number -= 1;
                    true
                }
                _ => false,
            })
    }),
    ("a grant is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Granted { .. }))
    }),
    ("an end is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Ended { .. }))
    }),
    ("a longer lease is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Lengthened { .. }))
    }),
    ("a counter is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Counted { .. }))
    }),
    ("the end of a value is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Deleted { .. }))
    }),
    ("a client is not recorded", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Client { .. }))
    }),
    (
        "a grant is recorded before the end that made room",
        |_, _, records| {
            let at = records.windows(2).position(|two| {
                let is_swap = matches!(two, [Record::Ended { .. }, Record::Granted { .. }]);
                is_swap && two[0].key() == two[1].key()
            });
            at.map(|at| records.swap(at, at + 1)).is_some()
        },
    ),
    ("fences are not reserved", |_, _, records| {
        drop_record(records, |it| matches!(it, Record::Fences { .. }))
    }),
];

/// Inputs that a broken engine or server would not notice.
type Deafness = fn(&Input<'_>) -> bool;

const DEAF_TO: &[(&str, Deafness)] = &[
    ("the passing of time", |it| matches!(it, Input::Time(_))),
    ("a hello", |it| matches!(it, Input::Hello(..))),
    ("a hang-up", |it| matches!(it, Input::HungUp(_, true))),
    ("keep", |it| matches!(it, Input::Keep(_, true))),
    ("an overrun", |it| matches!(it, Input::Overrun(_, true))),
    ("a value that comes back", |it| {
        matches!(it, Input::Unsent(_))
    }),
    ("a stalled connection", |it| {
        matches!(it, Input::Stalled(_, true))
    }),
    ("kept records", |it| matches!(it, Input::Durable(_))),
    ("a restored record", |it| {
        matches!(it, Input::Restore(Record::Granted { .. }))
    }),
    ("a drain", |it| matches!(it, Input::Drain)),
];

fn it_reply(it: &Effect) -> &'static Option<Reply> {
    const DONE: Option<Reply> = Some(Reply::Done);
    const DEADLOCK: Option<Reply> = Some(Reply::Refused(Refusal::Deadlock));
    match it {
        Effect::Reply(_, Reply::Done) => &DONE,
        Effect::Reply(_, Reply::Refused(Refusal::Deadlock)) => &DEADLOCK,
        _ => &None,
    }
}

fn asker(input: &Input<'_>) -> Option<latchd::base::ConnId> {
    match input {
        Input::Request(id, _) | Input::RequestBy(id, ..) => Some(*id),
        _ => None,
    }
}

fn remove(out: &mut Effects, is_it: impl Fn(&Effect) -> bool) -> bool {
    let at = out.iter().position(is_it);
    at.map(|at| out.remove(at)).is_some()
}

fn repeat(out: &mut Effects, is_it: impl Fn(&Effect) -> bool) -> bool {
    let at = out.iter().position(is_it);
    at.map(|at| out.insert(at, out[at].clone())).is_some()
}

fn change(out: &mut Effects, change: impl Fn(&mut Effect) -> bool) -> bool {
    out.iter_mut().any(change)
}

fn shorten(out: &mut Effects, is_it: impl Fn(&Push) -> bool) -> bool {
    change(out, |it| match it {
        Effect::Broadcast(to, push) if to.len() > 1 && is_it(push) => to.pop().is_some(),
        _ => false,
    })
}

fn number_is_off(out: &mut Effects) -> bool {
    change(out, |it| match it {
        Effect::Reply(_, Reply::Number(number)) => {
            *number += 1;
            true
        }
        _ => false,
    })
}

fn refuse_differently(out: &mut Effects, from: Refusal, to: Refusal) -> bool {
    change(out, |it| match it {
        Effect::Reply(_, Reply::Refused(why)) if *why == from => {
            *why = to;
            true
        }
        _ => false,
    })
}

fn drop_record(records: &mut Vec<Record>, is_it: impl Fn(&Record) -> bool) -> bool {
    let at = records.iter().position(is_it);
    at.map(|at| records.remove(at)).is_some()
}

/// Random cases, always the same.
pub struct Cases(TestRunner);

impl Cases {
    pub fn new() -> Self {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        Self(TestRunner::new_with_rng(Config::default(), rng))
    }

    pub fn next(&mut self) -> (Rules, ops::Script) {
        let (rules, script) = (ops::rules(), ops::script(200));
        let rules = rules.new_tree(&mut self.0).unwrap().current();
        let notes = Notes::Off; // or notes would tell of everything
        (
            Rules { notes, ..rules },
            script.new_tree(&mut self.0).unwrap().current(),
        )
    }
}

fn complains(mut world: World, script: &ops::Script) -> bool {
    let verdict = script.0.iter().try_for_each(|op| world.run(op));
    verdict.and_then(|()| world.end()).is_err()
}

/// For each bug the first case in which there is something to change.
fn cases_of_bugs() -> Vec<Option<(Rules, ops::Script)>> {
    let found = Rc::new(RefCell::new(vec![false; BUGS.len()]));
    let mut cases_of = vec![None; BUGS.len()];
    let mut cases = Cases::new();
    for _ in 0..2_000 {
        let (rules, script) = cases.next();
        let found_now = Rc::clone(&found);
        let look = Box::new(
            move |input: &Input<'_>, out: &mut Effects, records: &mut Vec<Record>| {
                for (at, (_, bug)) in BUGS.iter().enumerate() {
                    let mut found = found_now.borrow_mut();
                    found[at] = found[at] || bug(input, &mut out.clone(), &mut records.clone());
                }
            },
        );
        let world = World::with_filter(rules.clone(), look);
        assert!(!complains(world, &script), "without a bug");
        for (case, found) in cases_of.iter_mut().zip(&*found.borrow()) {
            if *found && case.is_none() {
                *case = Some((rules.clone(), script.clone()));
            }
        }
        if cases_of.iter().all(Option::is_some) {
            break;
        }
    }
    cases_of
}

#[test]
fn model_notices_every_deliberate_bug() {
    let mut missed = Vec::new();
    for ((name, bug), case) in BUGS.iter().zip(cases_of_bugs()) {
        let Some((rules, script)) = case else {
            missed.push(format!("never came about: {name}"));
            continue;
        };
        let mut has_happened = false;
        let change = Box::new(
            move |input: &Input<'_>, out: &mut Effects, records: &mut Vec<Record>| {
                has_happened = has_happened || bug(input, out, records);
            },
        );
        if !complains(World::with_filter(rules, change), &script) {
            missed.push(format!("missed: {name}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The engine does not hear of some inputs. That makes a difference only sooner or later.
#[test]
fn model_notices_what_the_engine_did_not_hear() {
    const CASES_MAX: usize = 400;
    let mut missed = Vec::new();
    for (name, is_deaf) in DEAF_TO {
        let mut cases = Cases::new();
        let noticed = (0..CASES_MAX).any(|_| {
            let (rules, script) = cases.next();
            let mut world = World::new(rules);
            world.make_deaf(*is_deaf);
            complains(world, &script)
        });
        if !noticed {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
