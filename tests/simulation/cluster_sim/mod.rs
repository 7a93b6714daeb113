//! A whole cluster in virtual time: the shipped threads, server, lock table and state machines, three of each, on a
//! model of etcd, with clients that judge what they are told.
//!
//! From a seed come: questions and answers that are lost, late or overtake each other, members that are cut
//! off in either direction, stopped (also in the middle of a turn, between the gate and the write), killed,
//! told to go and started again, clocks that run at different rates, elections of etcd's own, slow commits, a
//! full database, compaction under a watch, watches that break or fall silent, and a restored backup. What must
//! hold is in `clients.rs`, `errands.rs`, `etcd_side.rs` and `world.rs`:
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
mod errands;
mod etcd_side;
mod happened;
mod node;
mod plan;
mod tasks;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use latchd::base::Millis;
use latchd::cluster::role::Terms;

use happened::Happened;
use plan::{Blow, Break, Plan};
use world::{MS, World};

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
             LATCHD_CLUSTER_SEEDS={seed}..{seed} cargo test --test simulation nothing_goes_wrong"
        );
        resume_unwind(panic)
    })
}

#[test]
fn nothing_goes_wrong_whatever_happens_to_members_and_messages() {
    let mut all = Happened::default();
    let mut told_tight = 0;
    let (first, last) = seeds();
    for seed in first..=last {
        let happened = run_seed(seed);
        told_tight += happened.told.no_room * u64::from(Plan::of(seed).is_tight());
        all.add(happened);
    }
    println!("{all:?}");
    if last - first < 20 {
        return; // somebody looks at a few
    }
    // It has to have been worth it.
    let Happened { told, seen, .. } = all;
    assert!(told.grants > 500 && told.renewals > 300, "{all:?}");
    assert!(told.redirects > 50 && told.late > 0, "{all:?}");
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
    // Where there is little room it is told before etcd is full, and where etcd is full it is told, too.
    let told_full = told.no_room - told_tight;
    assert!(told_tight > 0 && told_full > 0, "{told_tight}: {all:?}");
    assert!(all.kills > 5 && all.cuts > 50 && all.stops > 30, "{all:?}");
    assert!(all.elections > 10 && seen.stale_renewals > 3, "{all:?}");
    assert!(told.others > 500, "{all:?}");
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

/// A leader's lease is renewed without a look at the disk, so it may stay.
#[test]
fn a_leader_stays_although_etcd_is_slow_to_say_who_leads() {
    let plan = Plan {
        slow_reads: Some([10_000 * MS, 1_200 * MS]),
        ..Plan::QUIET
    };
    let happened = run(1, plan);
    let Happened {
        tenures,
        fenced,
        pauses,
        ..
    } = happened;
    assert_eq!((tenures, fenced, pauses), (1, 0, 0), "{happened:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let both = [(); 2].map(|()| format!("{:?}", run(6, Plan::of(6))));
    assert_eq!(both[0], both[1]);
}

/// Nothing goes wrong but this; then somebody is served again within so many milliseconds.
fn expect_failover(blow: Blow, within_ms: u64) {
    expect_failover_in(Plan::with_blow(blow), within_ms);
}

fn expect_failover_in(plan: Plan, within_ms: u64) {
    let blow = plan.blow.map(|(blow, _)| blow);
    for seed in 0..2 {
        let happened = run(seed, plan);
        let after = happened.served_after_ms;
        println!("{blow:?}: {after} ms");
        assert!(
            after <= within_ms,
            "seed {seed}: served {after} ms after {blow:?}"
        );
        assert_eq!(happened.tenures, 2, "{happened:?}");
    }
}

/// The time to live of a leader's lease and one second, whatever happens to it.
const FAILOVER_MS_MAX: u64 = (Plan::QUIET.ttl_s + 1) * 1_000;

#[test]
fn after_a_leader_was_killed_clients_are_soon_served_again() {
    expect_failover(Blow::Kill, FAILOVER_MS_MAX);
}

#[test]
fn after_a_leader_was_stopped_clients_are_soon_served_again() {
    expect_failover(Blow::Stop, FAILOVER_MS_MAX);
}

#[test]
fn after_a_leader_was_cut_off_clients_are_soon_served_again() {
    for ways in [[true, true], [true, false], [false, true]] {
        expect_failover(Blow::Cut(ways), FAILOVER_MS_MAX);
    }
}

#[test]
fn after_a_leader_was_told_to_go_clients_are_served_again_at_once() {
    expect_failover(Blow::Resign, 200);
    expect_failover(Blow::Move, 200);
}

/// See [`World::note_role`].
#[test]
fn a_leader_that_goes_leaves_nothing_behind_that_nobody_was_told_of() {
    for blow in [Blow::Resign, Blow::Move] {
        expect_failover_in(Plan::with_crowd(blow), 200);
    }
}

#[test]
fn with_an_etcd_that_writes_slowly_somebody_leads_all_the_same() {
    let within_ms = (Plan::QUIET.ttl_s + 10) * 1_000;
    expect_failover_in(Plan::with_slow_writes(Blow::Kill, 1_500 * MS), within_ms);
}

/// A candidate with the leader's key gets SIGTERM while etcd is slow. The next leader does not wait for its lease.
#[test]
fn candidate_that_is_told_to_stop_gives_its_lease_back_also_to_a_slow_etcd() {
    let plan = Plan::with_slow_writes(Blow::KillThenEndCandidate, 1_500 * MS);
    for seed in 0..2 {
        let happened = run(seed, plan);
        assert_eq!(happened.resignations, 1, "{happened:?}");
        let after = happened.served_after_ms;
        println!("served {after} ms after it was killed");
        assert!(after <= 17_500, "seed {seed}: {after} ms");
    }
}

/// As `docs/cluster.md` promises.
#[test]
fn leader_stays_at_the_longest_round_trip_to_etcd() {
    for ttl_s in [3, 5, 20] {
        let terms = Terms {
            ttl_s,
            margin: Millis(500),
        };
        let one_way = terms.round_trip_max().0 * MS / 2;
        let plan = Plan {
            ttl_s,
            one_way,
            ..Plan::QUIET
        };
        let happened = run(1, plan);
        let Happened {
            tenures,
            fenced,
            pauses,
            ..
        } = happened;
        assert_eq!((tenures, fenced, pauses), (1, 0, 0), "{happened:?}");
        assert!(happened.told.grants > 20, "{happened:?}");
    }
}

/// Each of these breaks something on purpose; the checks have to notice.
mod breaks {
    use super::*;

    /// In the run with this seed, or in one of the next of the same kind. Each of these reasons has to be given.
    fn is_noticed(breaks: Break, seed: u64, whys: &[&str]) {
        let mut said: Vec<String> = Vec::new();
        let mut missing = whys.to_vec();
        for round in 0..ROUNDS {
            let seed = seed + round * Plan::KINDS;
            let plan = Plan::of(seed).breaking(breaks);
            let ran = catch_unwind(AssertUnwindSafe(|| run(seed, plan)));
            let Err(panic) = ran else { continue };
            let why = text(&*panic);
            missing.retain(|it| !why.contains(it));
            said.push(format!(
                "{seed}: {}",
                why.lines().next().unwrap_or_default()
            ));
            if missing.is_empty() {
                println!("{breaks:?} is noticed: {said:#?}");
                return;
            }
        }
        panic!("{breaks:?} is not noticed because of {missing:?}, but {said:#?}");
    }

    /// With so many runs at most.
    const ROUNDS: u64 = 25;

    fn text(panic: &(dyn Any + Send)) -> String {
        let text = panic.downcast_ref::<String>().cloned();
        let literal = panic.downcast_ref::<&str>();
        text.or_else(|| literal.map(|&it| it.to_owned()))
            .unwrap_or_default()
    }

    #[test]
    fn a_leader_that_speaks_after_its_time() {
        is_noticed(Break::SpeaksLate, 0, &["was heard"]);
    }

    #[test]
    fn an_answer_that_does_not_wait_for_the_log() {
        is_noticed(
            Break::SpeaksAhead,
            256,
            &["has lost key", "was told before it asked"],
        );
    }

    #[test]
    fn an_entry_that_is_written_whoever_leads_and_whatever_is_there() {
        is_noticed(Break::NoGuards, 0, &["is written twice"]);
    }

    #[test]
    fn an_entry_without_the_guard_of_its_predecessor() {
        is_noticed(Break::NoPredecessorGuard, 75, &["a hole before entry"]);
    }

    #[test]
    fn an_entry_without_the_guard_of_another_one_in_its_place() {
        is_noticed(Break::NoAbsentGuard, 40, &["is written twice"]);
    }

    #[test]
    fn a_lease_counted_from_the_answer() {
        is_noticed(Break::CountsFromAnswer, 44, &["two may speak"]);
    }

    #[test]
    fn a_renewal_that_is_enough_after_a_silence() {
        is_noticed(Break::NoProof, 48, &["two may speak"]);
    }

    #[test]
    fn a_leader_that_speaks_to_the_end_of_its_lease() {
        is_noticed(Break::NoMargin, 89, &["two may speak"]);
    }

    #[test]
    fn a_leader_that_lets_go_of_everything_when_it_goes() {
        is_noticed(Break::RunsDisconnects, 64, &["is told that it has key"]);
    }

    #[test]
    fn fences_that_begin_anew() {
        is_noticed(Break::ForgetsFences, 91, &["leads with fences from"]);
    }

    #[test]
    fn a_fence_below_one_that_was_told() {
        is_noticed(Break::ForgetsFences, 723, &[": fence "]);
    }

    #[test]
    fn silence_taken_for_an_answer() {
        let whys = [
            "there is no entry before",
            "out of the list, and it was not there",
        ];
        is_noticed(Break::TakesSilenceForYes, 112, &whys);
    }

    #[test]
    fn clocks_that_run_apart_by_more_than_the_margin_covers() {
        is_noticed(Break::WildClocks, 32, &["two may speak"]);
    }

    #[test]
    fn one_more_that_is_counted_twice() {
        is_noticed(Break::CountsTwice, 0, &["were to be added"]);
    }

    #[test]
    fn a_standby_that_leaves_out_a_record() {
        is_noticed(Break::SkipsRecord, 0, &["with record"]);
    }

    #[test]
    fn a_standby_that_ends_what_only_a_leader_ends() {
        is_noticed(Break::StandbyExpires, 0, &["with record"]);
    }

    #[test]
    fn a_leader_that_looks_at_the_clock_once_in_a_turn() {
        is_noticed(Break::LooksOnce, 24, &["in the middle of a turn"]);
    }

    #[test]
    fn a_standby_that_only_waits_to_be_told() {
        is_noticed(Break::NeverPolls, 144, &[" of Position"]);
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
