//! What timers in groups must do: come in order, never stand behind another group's crowd, give
//! memory back.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::TimerId;
use super::groups::*;
use super::heap::Entry;
use crate::base::Nanos;

const PLENTY: u32 = u32::MAX;

/// Takes everything that is due in one turn, in the order in which it comes.
fn take_all(timers: &mut GroupTimers<u32>, ids: &mut Ids, now: u64) -> Vec<(u64, u32)> {
    timers.begin_turn();
    let mut budget = PLENTY;
    let mut due = Vec::new();
    while let Some((group, at, what)) = timers.next_due(Nanos(now), &mut budget) {
        timers.cancel(group, ids.remove(&what).unwrap().1);
        due.push((at.0, what));
    }
    timers.check();
    due
}

/// What for → group and id.
type Ids = BTreeMap<u32, (u32, TimerId)>;

fn armed(timers: &[(u32, u64)]) -> (GroupTimers<u32>, Ids) {
    let mut all = GroupTimers::new();
    let mut ids = Ids::new();
    for (&(group, at), what) in timers.iter().zip(0..) {
        ids.insert(what, (group, all.arm(group, Nanos(at), what)));
    }
    all.check();
    (all, ids)
}

#[test]
fn a_group_costs_40_bytes() {
    assert_eq!(size_of::<Group<u32>>(), 40);
    assert_eq!(size_of::<Entry<()>>(), 16);
}

#[test]
fn timers_of_all_groups_come_in_order() {
    let (mut timers, mut ids) = armed(&[(0, 50), (1, 10), (0, 40), (2, 30), (1, 20)]);
    assert_eq!(timers.next_deadline(), Some(Nanos(10)));
    assert_eq!(take_all(&mut timers, &mut ids, 9), []);
    assert_eq!(
        take_all(&mut timers, &mut ids, 30),
        [(10, 1), (20, 4), (30, 3)]
    );
    assert_eq!(take_all(&mut timers, &mut ids, 99), [(40, 2), (50, 0)]);
    assert!(timers.is_empty());
}

#[test]
fn taking_and_letting_go_leaves_the_order_alone() {
    let mut timers = GroupTimers::new();
    for now in 0..1_000 {
        let id = timers.arm(7, Nanos(now + 100), ());
        timers.cancel(7, id);
        timers.check();
    }
    assert_eq!(timers.next_deadline(), Some(Nanos(100)), "may be early");
    let mut budget = 5;
    assert_eq!(timers.next_due(Nanos(1_000), &mut budget), None);
    assert_eq!(budget, 3, "one look for a thousand leases");
    assert_eq!(timers.next_deadline(), None);
}

/// A crowd is due, or was re-armed; a stranger's timer is due after all of them.
#[test]
fn nobody_stands_behind_anothers_crowd() {
    const CROWD: u32 = 10_000;
    for renewed in [false, true] {
        let mut timers = GroupTimers::new();
        for what in 0..CROWD {
            let id = timers.arm(0, Nanos(10), what);
            if renewed {
                timers.rearm(0, id, Nanos(1_000));
            }
        }
        timers.arm(1, Nanos(20), CROWD);
        timers.begin_turn();
        let mut budget = 2 * QUANTUM + 10;
        let mut seen = 0;
        loop {
            let (_, _, what) = timers.next_due(Nanos(20), &mut budget).unwrap();
            if what == CROWD {
                break;
            }
            // As if it had been dealt with.
            timers.groups[0]
                .heap
                .put_back_first(&mut timers.slots, Nanos(10));
            seen += 1;
        }
        assert_eq!(seen, if renewed { 0 } else { QUANTUM });
        assert_eq!(timers.next_deadline(), Some(Nanos(0)), "there is more");
        timers.check();
    }
}

#[test]
fn groups_that_are_set_aside_take_turns_and_get_their_share() {
    // Two crowds, and many others with one timer each, all due.
    let crowds = (0..1_000).flat_map(|_| [(0, 10), (1, 10)]);
    let others = (2..2_000).map(|group| (group, 20));
    let (mut timers, mut ids) = armed(&crowds.chain(others).collect::<Vec<_>>());
    let due = take_all(&mut timers, &mut ids, 20);
    assert_eq!(due.len(), 2_000 + 1_998);
    let of = |what: u32| if what < 2_000 { what % 2 } else { 2 };
    let comes: Vec<u32> = due.iter().map(|&(_, what)| of(what)).collect();
    let last_other = comes.iter().rposition(|&group| group == 2).unwrap();
    let ahead = comes[..last_other].iter().filter(|&&group| group < 2);
    let ahead = ahead.count() as u32;
    assert!(
        (500..700).contains(&ahead),
        "{ahead} of the crowds came first"
    );
    // Nobody has more than its quantum before the other.
    let turns = comes[last_other + 1..].chunk_by(|a, b| a == b);
    assert!(
        turns
            .into_iter()
            .all(|turn| turn.len() <= 2 * QUANTUM as usize)
    );
}

#[test]
fn a_timer_that_is_put_off_comes_again_after_the_others() {
    let (mut timers, mut ids) = armed(&[(0, 10), (1, 20), (1, 30)]);
    timers.begin_turn();
    let mut budget = PLENTY;
    let mut came = Vec::new();
    for _ in 0..6 {
        let (group, _, what) = timers.next_due(Nanos(30), &mut budget).unwrap();
        came.push(what);
        if group == 0 {
            timers.put_off(0);
        } else {
            timers.cancel(group, ids.remove(&what).unwrap().1);
        }
        timers.check();
    }
    assert_eq!(came, [0, 1, 2, 0, 0, 0]);
}

#[test]
fn the_list_of_groups_that_are_set_aside_is_counted() {
    let crowd: Vec<(u32, u64)> = (0..2 * QUANTUM).map(|_| (0, 1)).collect();
    let (mut timers, _) = armed(&[&crowd[..], &[(1, 2)]].concat());
    let before = timers.memory();
    timers.begin_turn();
    let (group, ..) = timers.next_due(Nanos(2), &mut { PLENTY }).unwrap();
    timers.put_off(group);
    let (other, ..) = timers.next_due(Nanos(2), &mut { PLENTY }).unwrap();
    assert_eq!((group, other), (0, 1));
    assert!(timers.memory() > before);
}

#[test]
fn memory_is_given_back() {
    let mut timers = GroupTimers::new();
    for group in 0..100_000 {
        let id = timers.arm(group, Nanos(5), ());
        timers.cancel(group, id);
    }
    let crowd: Vec<TimerId> = (0..100_000)
        .map(|at| timers.arm(3, Nanos(at), ()))
        .collect();
    assert!(timers.groups[3].heap.0.capacity() >= 100_000);
    for id in crowd {
        timers.cancel(3, id);
    }
    assert!(timers.groups[3].heap.0.capacity() <= 2 * ROOM_KEPT_MAX);
    for group in (0..100_000).rev() {
        timers.forget(group);
    }
    while timers.tidy() {}
    timers.check();
    assert_eq!(timers.slots.slots.capacity(), 0);
    assert!(timers.groups.capacity() <= 4 * ROOM_KEPT_MAX);
    assert!(timers.order.0.capacity() <= 4 * ROOM_KEPT_MAX);
}

/// One call; `pick` chooses among the armed timers.
#[derive(Clone, Debug)]
enum Call {
    Arm { group: u32, count: u32, at: u64 },
    Rearm { pick: usize, at: u64 },
    Cancel { pick: usize },
    Forget { group: u32 },
    Turn { now: u64, budget: u32 },
}

fn call() -> impl Strategy<Value = Call> {
    let (at, group) = (0..64_u64, 0..5_u32);
    // Sometimes more at once than a quantum.
    let count = prop_oneof![6 => 1..4_u32, 1 => 60..150_u32];
    prop_oneof![
        4 => (group.clone(), count, at.clone())
            .prop_map(|(group, count, at)| Call::Arm { group, count, at }),
        4 => (any::<usize>(), at.clone()).prop_map(|(pick, at)| Call::Rearm { pick, at }),
        2 => any::<usize>().prop_map(|pick| Call::Cancel { pick }),
        1 => group.prop_map(|group| Call::Forget { group }),
        2 => (at, 0..200_u32).prop_map(|(now, budget)| Call::Turn { now, budget }),
    ]
}

proptest! {
    /// Compares with a plain map: nothing comes early or twice, each group's timers come in
    /// order, all groups' do as long as none is set aside, and nothing is forgotten.
    #[test]
    fn timers_in_groups_do_what_a_plain_map_does(calls in vec(call(), 1..200)) {
        let mut timers = GroupTimers::new();
        let mut model: BTreeMap<u32, (u32, TimerId, u64)> = BTreeMap::new();
        let mut serial = 0;
        for call in calls {
            let picked = |model: &BTreeMap<u32, _>, pick: usize| {
                model.keys().nth(pick % model.len().max(1)).copied()
            };
            match call {
                Call::Arm { group, count, at } => {
                    for _ in 0..count {
                        serial += 1;
                        let id = timers.arm(group, Nanos(at), serial);
                        model.insert(serial, (group, id, at));
                    }
                }
                Call::Rearm { pick, at } => {
                    let Some(what) = picked(&model, pick) else { continue };
                    let (group, id, deadline) = model.get_mut(&what).unwrap();
                    timers.rearm(*group, *id, Nanos(at));
                    *deadline = at;
                }
                Call::Cancel { pick } => {
                    let Some(what) = picked(&model, pick) else { continue };
                    let (group, id, _) = model.remove(&what).unwrap();
                    timers.cancel(group, id);
                }
                Call::Forget { group } => {
                    if !model.values().any(|it| it.0 == group) {
                        timers.forget(group);
                    }
                }
                Call::Turn { now, budget } => {
                    timers.begin_turn();
                    let mut left = budget;
                    while let Some((group, at, what)) = timers.next_due(Nanos(now), &mut left) {
                        prop_assert!(at.0 <= now, "early");
                        let (of, id, deadline) = model.remove(&what).unwrap();
                        prop_assert_eq!((of, deadline), (group, at.0));
                        let rest = model.values().filter(|it| it.0 == group || !timers.is_behind());
                        prop_assert!(rest.into_iter().all(|it| it.2 >= at.0), "out of order");
                        timers.cancel(group, id);
                    }
                    let nothing_due = model.values().all(|it| it.2 > now);
                    prop_assert!(nothing_due || left == 0, "late");
                }
            }
            timers.check();
            prop_assert_eq!(timers.len(), model.len());
            for (_, id, at) in model.values() {
                prop_assert_eq!(timers.deadline(*id), Nanos(*at));
            }
            let earliest = model.values().map(|it| Nanos(it.2)).min();
            let sleeps = timers.next_deadline().unwrap_or(Nanos::NEVER);
            prop_assert!(earliest.is_none_or(|at| sleeps <= at), "would sleep too long");
        }
        let mut ids: Ids = model.into_iter().map(|(what, it)| (what, (it.0, it.1))).collect();
        take_all(&mut timers, &mut ids, u64::MAX);
        prop_assert!(ids.is_empty(), "a timer is lost");
    }
}
