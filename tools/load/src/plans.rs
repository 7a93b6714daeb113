//! Named plans: what each shows, and how. Some are lists of runs that take turns, the others are
//! scenarios, see `scenarios`.

use std::io;

use crate::cluster;
use crate::durable;
use crate::hostile;
use crate::options::Options;
use crate::output::{self, eprint};
use crate::report::json;
use crate::report::text;
use crate::run::outcome::Rounds;
use crate::run::spec::{Keys, Spec, Workload};
use crate::scenarios::{self, Scenario, expiry};
use crate::servers::HTTP;
use crate::servers::target::Target;
use crate::session::Session;

/// A plan: its name, what it shows, what it runs.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) shows: &'static str,
    how: How,
}

enum How {
    /// This many rounds of these runs.
    Runs(usize, fn() -> Vec<Spec>),
    /// This many rounds of these scenarios.
    Scenarios(usize, &'static [Scenario]),
    /// Every attack.
    Attacks,
    /// With a disk and without.
    Disks,
}

/// All plans.
#[rustfmt::skip] // a table is read in columns
pub(crate) const PLANS: [Plan; 18] = [
    Plan { name: "quick",       how: How::Runs(1, quick),      shows: "every kind of work for a moment: is it right, is it about as fast as before" },
    Plan { name: "throughput",  how: How::Runs(5, throughput), shows: "64 connections, one request each at a time: acquire and release as fast as answered" },
    Plan { name: "pipeline",    how: How::Runs(3, pipeline),   shows: "64 connections with 1, 4, 16 and 64 requests on their way each" },
    Plan { name: "latency",     how: How::Runs(5, latency),    shows: "one connection alone; then an open loop of 10,000 cycles/s over 64" },
    Plan { name: "handoff",     how: How::Runs(5, handoff),    shows: "64 connections want one key: hand-overs per second, fairness, order" },
    Plan { name: "spin",        how: How::Scenarios(3, &[scenarios::spin::run]), shows: "one connection to a server that never sleeps" },
    Plan { name: "idle-10k",    how: How::Scenarios(3, &[scenarios::idle::run]), shows: "64 busy connections with and without 10,000 idle ones; memory of an idle one" },
    Plan { name: "million",     how: How::Scenarios(3, &[scenarios::million::run]), shows: "a million held locks: time to fill, memory of one, work beside them, idle processor time" },
    Plan { name: "disconnects", how: How::Scenarios(3, &[scenarios::disconnects::run]), shows: "clients leave while 300,000 locks of another are held: what others feel" },
    Plan { name: "expiry",      how: How::Scenarios(3, &[expiry::lateness, expiry::together]), shows: "how late leases end; a million leases ending in one millisecond, and what others feel" },
    Plan { name: "storm",       how: How::Scenarios(3, &[scenarios::storm::run]), shows: "10,000 holders disconnect at once: what others feel, whether all is free again" },
    Plan { name: "observed",    how: How::Scenarios(3, &[scenarios::observed::run]), shows: "a million held locks: what a scrape, all pages and a search take, and the turns meanwhile" },
    Plan { name: "tls",         how: How::Scenarios(3, &[scenarios::tls::run]), shows: "the same work with TLS and without; memory of an idle connection" },
    Plan { name: "leases",      how: How::Scenarios(1, &[scenarios::leases::run]), shows: "one lease over HTTP, clients that stall: does a token tell who is late: --ttl-ms, --hold-ms, --jitter-ms, --failrate" },
    Plan { name: "soak",        how: How::Scenarios(1, &[scenarios::soak::run]), shows: "every kind of work in turn for --seconds (600): does memory stay, is all right" },
    Plan { name: "hostile",     how: How::Attacks,             shows: "every attack a client can make, and what others feel of it: --scale, --only" },
    Plan { name: "durable",     how: How::Disks,               shows: "latchd with a data directory beside itself without one, Redis that syncs, and the disk: --dir, --count" },
    Plan { name: "cluster",     how: How::Scenarios(5, &[cluster::run]), shows: "a cluster beside the same transactions without latchd, and how far its standby is behind: --etcd" },
];

pub(crate) fn find(name: &str) -> Option<&'static Plan> {
    PLANS.iter().find(|plan| plan.name == name)
}

/// Runs a plan; returns whether everything was right.
pub(crate) fn run(plan: &Plan, options: Options) -> io::Result<bool> {
    match plan.how {
        How::Runs(rounds, specs) => {
            let session = Session::open(options)?;
            let (mut specs, all) = (specs(), specs().len());
            for spec in &mut specs {
                session.options.apply(spec);
            }
            specs.retain(|spec| !spec.via_client || spec.complaint().is_none());
            let by_both_doors = specs.iter().any(|spec| spec.over_http > 0);
            let subject = session.latchd(if by_both_doors { &HTTP } else { &[] })?;
            specs.retain(|spec| spec.is_known_to(&subject.target));
            if specs.len() < all {
                let out = all - specs.len();
                eprint(&format!("{out} runs left out: not for this server"));
            }
            runs(&session, &subject.target, specs, rounds)
        }
        How::Scenarios(rounds, scenarios) => {
            scenarios::rounds(&Session::open(options)?, scenarios, rounds)
        }
        How::Attacks => hostile::run(options),
        How::Disks => durable::run(options),
    }
}

/// One run, as the command line describes it.
pub(crate) fn one(spec: Spec, options: Options) -> io::Result<bool> {
    let session = Session::open(options)?;
    let subject = session.latchd(&[])?;
    runs(&session, &subject.target, vec![spec], 1)
}

/// Runs all of these in turn, several times, and reports each.
fn runs(
    session: &Session,
    target: &Target,
    mut specs: Vec<Spec>,
    rounds: usize,
) -> io::Result<bool> {
    let rounds = session.options.rounds(rounds);
    let mut each = vec![Vec::new(); specs.len()];
    for spec in &mut specs {
        session.options.apply(spec);
    }
    for round in 1..=rounds {
        for (spec, outcomes) in specs.iter().zip(&mut each) {
            let label = format!("round {round}/{rounds}, {}", spec.title());
            outcomes.push(session.run(&label, spec, target)?);
        }
    }
    let mut right = true;
    let mut objects = Vec::new();
    for (spec, outcomes) in specs.iter().zip(each) {
        let rounds = Rounds::of(outcomes);
        right &= rounds.wrong.count == 0;
        if session.options.json {
            objects.push(json::run(&spec.title(), &rounds));
        } else {
            output::print(&text::run(&spec.title(), spec, &rounds))?;
        }
    }
    if session.options.json {
        output::print(&format!("[{}]", objects.join(",\n ")))?;
    }
    Ok(right)
}

/// Every kind of work, on own keys and on shared ones.
pub(crate) fn every_kind() -> Vec<Spec> {
    let mut specs = Vec::new();
    for workload in Workload::ALL {
        for keys in [Keys::Own, Keys::Shared(1), Keys::Zipf(100)] {
            if workload == Workload::Signal && keys != Keys::Own {
                continue; // a channel is a connection's own
            }
            specs.push(Spec {
                workload,
                keys,
                connections: 16,
                ..Spec::default()
            });
        }
    }
    specs
}

fn quick() -> Vec<Spec> {
    let mut specs = every_kind();
    specs.push(Spec {
        connections: 16,
        pipeline: 16,
        ..Spec::default()
    });
    specs.push(Spec {
        connections: 16,
        rate: Some(5_000),
        keys: Keys::Shared(100),
        hold_ns: 100_000,
        ..Spec::default()
    });
    specs.push(Spec {
        connections: 32,
        over_http: 16,
        keys: Keys::Shared(100),
        ..Spec::default()
    });
    for spec in &mut specs {
        spec.warmup_ns = 50_000_000;
        spec.measure_ns = 250_000_000;
    }
    specs
}

fn throughput() -> Vec<Spec> {
    vec![Spec::default()]
}

fn pipeline() -> Vec<Spec> {
    let at = |pipeline| Spec {
        pipeline,
        ..Spec::default()
    };
    [1, 4, 16, 64].map(at).into()
}

fn latency() -> Vec<Spec> {
    let alone = Spec {
        connections: 1,
        ..Spec::default()
    };
    let open = Spec {
        rate: Some(10_000),
        ..Spec::default()
    };
    vec![alone, open]
}

fn handoff() -> Vec<Spec> {
    vec![Spec {
        keys: Keys::Shared(1),
        ..Spec::default()
    }]
}
