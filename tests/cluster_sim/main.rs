//! A whole cluster in virtual time: the shipped threads, server, lock table and state machines, three of each, on a
//! model of etcd, with clients that judge what they are told.
//!
//! From a seed come: questions and answers that are lost, late or overtake each other, members that are cut
//! off in either direction, stopped (also in the middle of a turn, between the gate and the write), killed,
//! told to go and started again, clocks that run at different rates, elections of etcd's own, slow commits, a
//! full database, compaction under a watch, watches that break or fall silent, and a restored backup. What must
//! hold is in `clients.rs`, `etcd_side.rs` and `world.rs`:
//!
//! - one holder of a key, as clients see it; and fences of a key only grow
//! - nothing is heard from a leader after a later one was heard, reads and renewals included
//! - what was acknowledged or read is not lost: a renewal within the lease is never refused, a counter never
//!   goes back
//! - the log has no hole, nothing in it is written twice, leaders and epochs in it only grow
//! - who has come to the same record has the same state, whether it leads or follows
//! - when nothing goes wrong any more one member leads, and every client is served
//!
//! `appending.rs` looks at one of the threads alone.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong has to fail")]

mod appending;
mod clients;
mod etcd_side;
mod node;
mod plan;
mod tasks;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use plan::{Break, Plan};
use world::{Happened, World};

fn run(seed: u64, plan: Plan) -> Happened {
    let mut world = World::new(seed, plan);
    world.run();
    world.finish()
}

/// The same; if it goes wrong it is said how to see it again.
fn run_seed(seed: u64) -> Happened {
    let ran = catch_unwind(AssertUnwindSafe(|| run(seed, Plan::of(seed))));
    ran.unwrap_or_else(|panic| {
        eprintln!(
            "seed {seed} goes wrong; to see it again:\n\
             LATCHD_CLUSTER_SEEDS={seed}..{seed} cargo test --test cluster_sim nothing_goes_wrong"
        );
        resume_unwind(panic)
    })
}

#[test]
fn nothing_goes_wrong_whatever_happens_to_members_and_messages() {
    let mut all = Happened::default();
    let (first, last) = seeds();
    for seed in first..=last {
        all.add(run_seed(seed));
    }
    println!("{all:?}");
    if last - first < 20 {
        return; // somebody looks at a few
    }
    // It has to have been worth it.
    let Happened { told, seen, .. } = all;
    assert!(told.grants > 500 && told.renewals > 300, "{all:?}");
    assert!(
        told.redirects > 50 && told.no_room > 0 && told.late > 0,
        "{all:?}"
    );
    assert!(
        all.tenures > 30 && all.fenced > 10 && all.pauses > 5,
        "{all:?}"
    );
    assert!(
        all.doubts > 20 && seen.refused > 0 && seen.full > 0,
        "{all:?}"
    );
    assert!(
        all.snapshots > 20 && seen.trims > 20 && seen.compactions > 20,
        "{all:?}"
    );
    assert!(seen.broken_watches > 0 && all.restores > 3, "{all:?}");
    assert!(all.resignations > 10 && all.stops_in_turn > 3, "{all:?}");
    assert!(all.compared > 1_000, "{all:?}");
}

#[test]
fn without_faults_one_member_leads_and_everybody_is_served() {
    let happened = run(1, Plan::QUIET);
    assert_eq!(happened.tenures, 1, "{happened:?}");
    let Happened {
        fenced,
        pauses,
        doubts,
        ..
    } = happened;
    assert_eq!((fenced, pauses, doubts), (0, 0, 0), "{happened:?}");
    assert!(happened.told.grants > 50, "{happened:?}");
    assert!(happened.snapshots > 0, "{happened:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let both = [(); 2].map(|()| format!("{:?}", run(6, Plan::of(6))));
    assert_eq!(both[0], both[1]);
}

/// Each of these breaks something on purpose; the checks have to notice.
mod breaks {
    use super::*;

    /// In runs whose seeds have this rest divided by eight: they are of the kind that can show it.
    fn is_noticed(breaks: Break, kind: u64) {
        let noticed = |round: u64| {
            let seed = round * 8 + kind;
            let plan = Plan::of(seed).breaking(breaks);
            let ran = catch_unwind(AssertUnwindSafe(|| run(seed, plan)));
            ran.is_err()
        };
        assert!((0..25).any(noticed), "{breaks:?} is not noticed");
    }

    #[test]
    fn a_leader_that_speaks_after_its_time() {
        is_noticed(Break::SpeaksLate, 0);
    }

    #[test]
    fn an_answer_that_does_not_wait_for_the_log() {
        is_noticed(Break::SpeaksAhead, 0);
    }

    #[test]
    fn an_entry_that_is_written_whoever_leads() {
        is_noticed(Break::NoGuards, 0);
    }

    #[test]
    fn an_entry_without_the_guard_of_its_predecessor() {
        is_noticed(Break::NoPredecessorGuard, 3);
    }

    #[test]
    fn a_lease_counted_from_the_answer() {
        is_noticed(Break::CountsFromAnswer, 4);
    }

    #[test]
    fn a_renewal_that_is_enough_after_a_silence() {
        is_noticed(Break::NoProof, 0);
    }

    #[test]
    fn a_leader_that_speaks_to_the_end_of_its_lease() {
        is_noticed(Break::NoMargin, 1);
    }

    #[test]
    fn a_leader_that_lets_go_of_everything_when_it_goes() {
        is_noticed(Break::RunsDisconnects, 0);
    }

    #[test]
    fn fences_that_begin_anew() {
        is_noticed(Break::ForgetsFences, 3);
    }

    #[test]
    fn silence_taken_for_an_answer() {
        is_noticed(Break::TakesSilenceForYes, 0);
    }

    #[test]
    fn clocks_that_run_apart_by_more_than_the_margin_covers() {
        is_noticed(Break::WildClocks, 0);
    }
}

/// Some for every run; more with LATCHD_CLUSTER_SEEDS, a number or from..to.
fn seeds() -> (u64, u64) {
    let set = std::env::var_os("LATCHD_CLUSTER_SEEDS");
    let set = set.as_ref().and_then(|it| it.to_str());
    let range = set.map(|it| it.split_once("..").unwrap_or(("1", it)));
    let range = range.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()));
    range.unwrap_or((1, 24))
}
