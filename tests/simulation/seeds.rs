//! The simulator's first 256 seeds: the shipped server under clients, faults and virtual time.
//!
//! `latch_sim` checks what must hold after every turn. This plays the seeds and shows a failure
//! with its last lines and the command that replays it. In four parts, so that they share the
//! cores.

use latch_sim::{self as sim, HttpFault, Keep, RangeFault, Sabotage, Totals};

/// Among so many seeds there must be one that notices what is broken.
const SABOTAGED_SEEDS: u64 = 1_000;

/// Plays a quarter of the 256 seeds that every change has to pass.
fn play(quarter: u64) -> Totals {
    let mut totals = Totals::default();
    for seed in quarter * 64..(quarter + 1) * 64 {
        let outcome = sim::run(seed, Keep::Tail);
        if let Some(violation) = outcome.violation {
            panic!(
                "{}\n\nseed {seed}: {violation}\nreplay: cargo run -p latch-sim -- {seed}",
                outcome.lines.join("\n")
            );
        }
        totals.add(&outcome.totals);
    }
    totals
}

#[test]
fn seeds_0_to_63_hold_and_a_client_is_told_too_much() {
    let overrun = play(0).overrun;
    // Rare on purpose: it takes megabytes.
    assert!(overrun > 0, "no client was told more than it could take");
}

#[test]
fn seeds_64_to_127_hold() {
    play(1);
}

#[test]
fn seeds_128_to_191_hold() {
    play(2);
}

/// Also checks that the runs are worth playing: a fault that no client meets any more proves
/// nothing.
#[test]
fn seeds_192_to_255_hold_and_meet_every_fault() {
    let totals = play(3);
    let Totals {
        members,
        refused,
        newcomers,
        releases,
        expiries,
        disconnects,
        outlived,
        breaks,
        http_answers,
        named_grants,
        encrypted,
        granted_again,
        walks,
        heads,
        figures,
        timeouts,
        values,
        swaps,
        met,
        reports,
        no_room,
        no_memory,
        pushes,
        closes,
        resets,
        cut_off,
        stalls,
        stops,
        restarts,
        ports_taken,
        reopened,
        power_losses,
        restored,
        reclaimed,
        ranges_granted,
        cancelled,
        deadlocks,
        range_limits,
        resumed,
        predicted,
        ranges_restored,
        ranges_reclaimed,
        ranges_not_reclaimed,
        refused_in_grace,
        refused_by_disk,
        compactions,
        turn_ns_max,
        late_ns_max,
        ..
    } = totals;
    for (what, count) in [
        ("members of crowds", members),
        ("refused", refused),
        ("newcomers during a shutdown", newcomers),
        ("releases", releases),
        ("expiries", expiries),
        ("disconnects", disconnects),
        ("broken over HTTP", breaks),
        ("answers over HTTP", http_answers),
        ("grants to owners with a name", named_grants),
        ("connections with TLS", encrypted),
        ("granted again", granted_again),
        ("walks over all pages", walks),
        ("heads of answers", heads),
        ("streams of figures", figures),
        ("timeouts", timeouts),
        ("values", values),
        ("swaps", swaps),
        ("met", met),
        ("stats and who", reports),
        ("refused at a limit", no_room),
        ("refused for want of memory", no_memory),
        ("pushes", pushes),
        ("closes", closes),
        ("resets", resets),
        ("cut off", cut_off),
        ("stalls", stalls),
        ("stops", stops),
        ("restarts", restarts),
        ("too early starts", ports_taken),
        ("range locks", ranges_granted),
        ("deadlocks", deadlocks),
        ("no room for range locks or clients", range_limits),
        ("clients that came back", resumed),
        ("requests about bytes alone", predicted),
        ("longest turn, us", turn_ns_max / 1_000),
        ("late expiries", late_ns_max),
    ] {
        assert!(count > 20, "{what}: {count} in 64 runs");
    }
    assert!(outlived >= 20, "outlived their connections: {outlived}");
    // A third of them has a data directory.
    for (what, count) in [
        ("data directories opened again", reopened),
        ("power losses", power_losses),
        ("held again after a restart", restored),
        ("reclaimed", reclaimed),
        ("cancelled", cancelled),
        ("ranges pending after a restart", ranges_restored),
        ("ranges had back", ranges_reclaimed),
        ("ranges not had back", ranges_not_reclaimed),
        ("refused in grace", refused_in_grace),
        ("refused because the disk was full", refused_by_disk),
        ("compactions", compactions),
    ] {
        assert!(count > 7, "{what}: {count} in 64 runs");
    }
}

/// The checks of what outlives the process are worth something: each way to break it is noticed, and
/// for what it is.
#[test]
fn a_server_that_does_not_keep_what_it_says_is_noticed() {
    for (sabotage, whys) in [
        (
            Sabotage::SpeakEarly,
            &[
                "is lost",
                "was held",
                "not from",
                "is held again after its end",
                "was replaced before",
                "is back, and connection",
            ][..],
        ),
        (
            Sabotage::ForgetFences,
            &["fences go on after", "may have been given out"],
        ),
        (Sabotage::ForgetGrants, &["and is lost"]),
        (
            Sabotage::ForgetEnds,
            &["is held again after its end", "more holders than it admits"],
        ),
        (Sabotage::ForgetRenewals, &["lease: Millis"]),
        (Sabotage::ForgetCounts, &["not from"]),
        (
            Sabotage::ForgetValues,
            &["is there, and was not found", "was replaced before"],
        ),
        (
            Sabotage::ForgetPops,
            &["is back, and connection", "is there twice"],
        ),
        (Sabotage::ForgetOwners, &["is of None, not of"]),
        (
            Sabotage::ForgetRequests,
            &["asked again for what the request"],
        ),
        (
            Sabotage::ForgetKeep,
            &["before its lease", "held by too many at once"],
        ),
    ] {
        expect_noticed(sabotage, whys);
    }
}

/// So are those of what is said over HTTP.
#[test]
fn a_server_that_says_something_wrong_over_http_is_noticed() {
    for (fault, whys) in [
        (
            HttpFault::AnswerTwice,
            &["an answer without a request", "came for"][..],
        ),
        (HttpFault::LoseAnswer, &["no answer to", "came for"]),
        (HttpFault::ForgetIds, &["asked again for what the request"]),
        (HttpFault::ShortLeases, &["held by too many at once"]),
        (HttpFault::ShortenOnRenewal, &["made its lease shorter"]),
        (
            HttpFault::RefuseRenewals,
            &["was refused, but its lease still ran"],
        ),
        (
            HttpFault::ReleaseForAnybody,
            &[
                "released with a token of nobody",
                "although its lease had passed",
            ],
        ),
        (HttpFault::BreakNothing, &["could not be broken"]),
        (HttpFault::GiveFenceTwice, &["was given out twice"]),
        (HttpFault::SkipOnPage, &["0 times in a walk"]),
        (HttpFault::ShowTwice, &["2 times in a walk"]),
        (HttpFault::AlwaysReady, &["ready, although it stops"]),
        (HttpFault::MiscountHeld, &["are held, not"]),
    ] {
        expect_noticed(Sabotage::Http(fault), whys);
    }
}

/// So are those of byte ranges, and of the clients that lock them.
#[test]
fn a_server_that_breaks_the_rules_of_byte_ranges_is_noticed() {
    for (sabotage, whys) in [
        (
            Sabotage::Range(RangeFault::IgnoreConflicts),
            &["granted, and not held", "did not ask", "for no reason"][..],
        ),
        (
            Sabotage::Range(RangeFault::LoseWakeUp),
            &["waits for what nobody has"],
        ),
        (
            Sabotage::Range(RangeFault::GrantCancelled),
            &[
                "granted after it was cancelled",
                "alone: Some(\"ok cancelled\")",
            ],
        ),
        (
            Sabotage::Range(RangeFault::ForgetAway),
            &["and has None, for no reason"],
        ),
        (
            Sabotage::Range(RangeFault::GrantPending),
            &["granted, and not held"],
        ),
        (
            Sabotage::Range(RangeFault::ReportDeadlocks),
            &["a deadlock that is none"],
        ),
        (
            Sabotage::Range(RangeFault::DropEdges),
            &["waits, and is missing"],
        ),
        (
            Sabotage::Range(RangeFault::TurnEdges),
            &["does not wait for"],
        ),
        (
            Sabotage::Range(RangeFault::ReportKeyDeadlocks),
            &["a deadlock that is none"],
        ),
        (
            Sabotage::Range(RangeFault::ForgetDeadlocks),
            &["waits for itself, and was not told"],
        ),
        (
            Sabotage::ShortGrace,
            &["and has None, for no reason", "ends before its time"],
        ),
        (Sabotage::ForgetRanges, &["and it is lost"]),
        (Sabotage::ForgetUnlocks, &["and has it back"]),
        (
            Sabotage::ForgetClients,
            &["and it is lost", "ranges are restored as {}"],
        ),
    ] {
        expect_noticed(sabotage, whys);
    }
}

/// Among so many seeds one notices it, for one of these reasons.
fn expect_noticed(sabotage: Sabotage, whys: &[&str]) {
    let mut seen = Vec::new();
    let is_noticed = (0..SABOTAGED_SEEDS).any(|seed| {
        let violation = sim::run_broken(seed, sabotage).and_then(|it| it.violation);
        let is_it = violation
            .as_ref()
            .is_some_and(|said| whys.iter().any(|why| said.contains(why)));
        seen.extend(violation);
        is_it
    });
    assert!(is_noticed, "{sabotage:?} was not noticed: {seen:#?}");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..24 {
        let (first, second) = (sim::run(seed, Keep::All), sim::run(seed, Keep::Tail));
        assert_eq!(
            first.hash, second.hash,
            "seed {seed} depends on more than its number"
        );
        assert_eq!(first.totals, second.totals);
        assert!(first.lines.ends_with(&second.lines), "seed {seed}");
    }
    assert_ne!(sim::run(1, Keep::Tail).hash, sim::run(2, Keep::Tail).hash);
}
