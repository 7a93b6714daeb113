//! What well-behaved clients feel: 16 of them, an open loop of 1,000 cycles a second in all, on keys
//! of their own, with the attack and without.

use std::io;

use crate::clock::Clock;
use crate::hostile::Scene;
use crate::hostile::beside::{MS, Turns, Waiting, longest_turn, unless_spoilt};
use crate::hostile::process::Attackers;
use crate::report::figures::Unit::{Nanos, Percent};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::report::figures::{Figures, WITHOUT};
use crate::run::client::Client;
use crate::run::codec::SECRET;
use crate::run::outcome::{Outcome, quantile};
use crate::run::spec::{Rest, Spec};
use crate::servers::target::Target;
use crate::session::{Session, Subject};

/// How long before the moment of the attack measuring begins.
const BEFORE_NS: u64 = 50_000_000;

/// How long the last answers may take: a server under attack is slow, not wrong.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Newcomers who know the secret, one after the other, and how long the p99 of them may take to
/// connect and to be let in.
const NEWCOMERS: usize = 300;
const NEWCOMER_MS_MAX: f64 = 25.0;

/// Measures without the attack, then with it, each on a server of its own. `wanted_ms` is the p99,
/// and the longest turn.
pub(super) fn measure(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
    wanted_ms: (f64, Option<f64>),
    secret: bool,
) -> io::Result<()> {
    let mut spec = session.short(Spec {
        connections: 16,
        rate: Some(1_000),
        drain_ns: PATIENCE_NS,
        rest: Rest::Deeply,
        ..Spec::default()
    });
    spec.measure_ns = session
        .options
        .seconds
        .map_or(2_000_000_000, |_| spec.measure_ns);
    let alone = server(session, secret)?;
    let without = session.run("without the attack", &spec, &alone.target)?;
    let come_without = newcomers(secret, &alone.target)?;
    let turn_without = longest_turn(&alone.target)?;
    drop(alone);

    let latchd = server(session, secret)?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    let turn_before = longest_turn(&latchd.target)?;
    if let Some(moment_ns) = attackers.moment_ns {
        let left = moment_ns.saturating_sub(session.clock.now_ns());
        spec.warmup_ns = left.saturating_sub(BEFORE_NS);
    }
    attackers.go()?;
    let began = session.clock.now_ns();
    let with = session.run(scene.name, &spec, &latchd.target)?;
    let come = newcomers(secret, &latchd.target)?;
    attackers.stop()?;
    let worked_ns = session.clock.now_ns() - began;
    let turn = longest_turn(&latchd.target)?;

    let (p99_ms, turn_ms) = wanted_ms;
    // It may be late in sending and again in reading. If no connection was ever free in time, the
    // server alone made everything late.
    let late_ns = late(&with).map(|ns| 2.0 * ns);
    let p99 = at(&with, 0.99).and_then(|it| unless_spoilt(it, late_ns, p99_ms * MS));
    figures.put("others' p99", Nanos, p99, AtMost(p99_ms * MS));
    figures.put("without: others' p99", Nanos, at(&without, 0.99), Nothing);
    figures.put("others' p50", Nanos, at(&with, 0.5), Nothing);
    figures.put("without: others' p50", Nanos, at(&without, 0.5), Nothing);
    if secret {
        let name = "newcomers who know the secret, p99";
        let most = NEWCOMER_MS_MAX * MS;
        let p99 = come.and_then(|(ns, waited_ns)| unless_spoilt(ns, waited_ns, most));
        figures.put(name, Nanos, p99, AtMost(most));
        let without = come_without.map(|it| it.0);
        figures.put(&format!("{WITHOUT}{name}"), Nanos, without, Nothing);
    }
    let turn_wanted = turn_ms.map_or(Nothing, |ms| AtMost(ms * MS));
    let turns = Turns {
        with: turn,
        without: turn_without,
        before: turn_before,
    };
    turns.put(figures, turn_wanted);
    figures.put("made late by the load, p99", Nanos, late(&with), Nothing);
    let late_without = late(&without);
    figures.put(
        "without: made late by the load, p99",
        Nanos,
        late_without,
        Nothing,
    );
    for (name, outcome) in [("", &with), (WITHOUT, &without)] {
        let waited = format!("{name}server waited for its core");
        figures.put(&waited, Percent, server_waited(outcome), Nothing);
    }
    attackers.put(figures, worked_ns);
    figures.check(&without);
    figures.check(&with);
    Ok(())
}

/// How long it takes to connect and to be let in, p99, and how long this program waited for its core
/// meanwhile; only of a server that asks for a secret.
fn newcomers(secret: bool, target: &Target) -> io::Result<Option<(f64, Option<f64>)>> {
    if !secret {
        return Ok(None);
    }
    let mut took = Vec::with_capacity(NEWCOMERS);
    for _ in 0..NEWCOMERS {
        let (waiting, began_ns) = (Waiting::begin(), Clock::machine_ns());
        let newcomer = Client::connect(target)?; // which shows the secret
        let ns = Clock::machine_ns().saturating_sub(began_ns);
        took.push((ns as f64, waiting.end()));
        drop(newcomer);
    }
    took.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(took.get(NEWCOMERS * 99 / 100).copied())
}

fn server(session: &Session, secret: bool) -> io::Result<Subject> {
    if !secret {
        return session.latchd(&[]);
    }
    let mut subject = session.latchd(&["--auth-token", SECRET])?;
    subject.target.guarded = true;
    Ok(subject)
}

fn at(outcome: &Outcome, part: f64) -> Option<f64> {
    quantile(&outcome.take, part).map(|ns| ns as f64)
}

/// How late this program made its own requests.
fn late(outcome: &Outcome) -> Option<f64> {
    quantile(&outcome.late, 0.99).map(|ns| ns as f64)
}

/// How much of the time somebody else had the server's core: the noise of the machine.
fn server_waited(outcome: &Outcome) -> Option<f64> {
    let waited_ns = outcome.server?.waited_ns as f64;
    Some(waited_ns / outcome.elapsed_ns.max(1) as f64 * 100.0)
}
