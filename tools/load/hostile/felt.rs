//! What well-behaved clients feel: 16 of them, an open loop of 1,000 cycles a second in all, on keys
//! of their own, with the attack and without. Where both doors count, 16 more speak HTTP, and all
//! choose among the same locks.

use std::io;

use hdrhistogram::Histogram;

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
use crate::run::spec::{Keys, Rest, Spec};
use crate::servers::HTTP;
use crate::servers::target::Target;
use crate::servers::tls::Files;
use crate::session::{Session, Subject};

/// How long before the moment of the attack measuring begins.
const BEFORE_NS: u64 = 50_000_000;

/// How long the last answers may take: a server under attack is slow, not wrong.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Newcomers who know the secret, one after the other, and how long the p99 of them may take to
/// connect and to be let in.
const NEWCOMERS: usize = 300;
const NEWCOMER_MS_MAX: f64 = 25.0;

/// Clients of each door, and cycles of all of these in a second.
const CLIENTS: usize = 16;
const RATE: u64 = 1_000;

/// The locks that clients of both doors choose among: so many that they are seldom in each other's
/// way.
const SHARED_LOCKS: u32 = 1_000;

/// What is measured of them, and what is wanted.
pub(super) struct Feeling {
    /// The p99, in milliseconds.
    p99_ms: f64,
    /// Whether the longest turn shall be as short.
    and_turn: bool,
    /// Whether the server asks for a secret.
    secret: bool,
    by_both_doors: bool,
    /// Whether everybody speaks TLS.
    tls: bool,
}

impl Feeling {
    pub(super) const fn new(p99_ms: f64) -> Self {
        Self {
            p99_ms,
            and_turn: false,
            secret: false,
            by_both_doors: false,
            tls: false,
        }
    }

    pub(super) const fn with_tls(self) -> Self {
        Self { tls: true, ..self }
    }

    pub(super) const fn and_turn(self) -> Self {
        Self {
            and_turn: true,
            ..self
        }
    }

    pub(super) const fn with_secret(self) -> Self {
        Self {
            secret: true,
            ..self
        }
    }

    pub(super) const fn by_both_doors(self) -> Self {
        Self {
            by_both_doors: true,
            ..self
        }
    }

    fn spec(&self) -> Spec {
        let spec = Spec {
            connections: CLIENTS,
            rate: Some(RATE),
            drain_ns: PATIENCE_NS,
            rest: Rest::Deeply,
            ..Spec::default()
        };
        if !self.by_both_doors {
            return spec;
        }
        Spec {
            connections: 2 * CLIENTS,
            over_http: CLIENTS,
            rate: Some(2 * RATE),
            keys: Keys::Shared(SHARED_LOCKS),
            ..spec
        }
    }

    fn server(&self, session: &Session) -> io::Result<Subject> {
        let mut options = Vec::new();
        if self.secret {
            options.extend(["--auth-token", SECRET]);
        }
        if self.by_both_doors {
            options.extend(HTTP);
        }
        let files = self.tls.then(Files::write).transpose()?;
        if let Some(files) = &files {
            options.extend(files.options());
        }
        let mut subject = session.latchd(&options)?;
        subject.target.guarded = self.secret;
        Ok(subject)
    }
}

/// Measures without the attack, then with it, each on a server of its own.
pub(super) fn measure(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
    feeling: &Feeling,
) -> io::Result<()> {
    let secret = feeling.secret;
    let mut spec = session.short(feeling.spec());
    spec.measure_ns = session
        .options
        .seconds
        .map_or(2_000_000_000, |_| spec.measure_ns);
    let alone = feeling.server(session)?;
    let without = session.run("without the attack", &spec, &alone.target)?;
    let come_without = newcomers(secret, &alone.target)?;
    let turn_without = longest_turn(&alone.target)?;
    drop(alone);

    let latchd = feeling.server(session)?;
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

    let p99_ms = feeling.p99_ms;
    // It may be late in sending and again in reading. If no connection was ever free in time, the
    // server alone made everything late.
    let late_ns = late(&with).map(|ns| 2.0 * ns);
    let doors: &[(&str, Latencies)] = match feeling.by_both_doors {
        true => &[
            ("", Outcome::take_by_line),
            (" over HTTP", |it| it.take_http.clone()),
        ],
        false => &[("", |it| it.take.clone())],
    };
    for (door, of) in doors {
        let at = |outcome, part| quantile(&of(outcome), part).map(|ns| ns as f64);
        let p99 = at(&with, 0.99).and_then(|it| unless_spoilt(it, late_ns, p99_ms * MS));
        let name = format!("others' p99{door}");
        figures.put(&name, Nanos, p99, AtMost(p99_ms * MS));
        let name = format!("{WITHOUT}{name}");
        figures.put(&name, Nanos, at(&without, 0.99), Nothing);
        let name = format!("others' p50{door}");
        figures.put(&name, Nanos, at(&with, 0.5), Nothing);
        let name = format!("{WITHOUT}{name}");
        figures.put(&name, Nanos, at(&without, 0.5), Nothing);
    }
    if secret {
        let name = "newcomers who know the secret, p99";
        let most = NEWCOMER_MS_MAX * MS;
        let p99 = come.and_then(|(ns, waited_ns)| unless_spoilt(ns, waited_ns, most));
        figures.put(name, Nanos, p99, AtMost(most));
        let without = come_without.map(|it| it.0);
        figures.put(&format!("{WITHOUT}{name}"), Nanos, without, Nothing);
    }
    let turn_wanted = match feeling.and_turn {
        true => AtMost(p99_ms * MS),
        false => Nothing,
    };
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

/// Which latencies of a run.
type Latencies = fn(&Outcome) -> Histogram<u64>;

/// How late this program made its own requests.
fn late(outcome: &Outcome) -> Option<f64> {
    quantile(&outcome.late, 0.99).map(|ns| ns as f64)
}

/// How much of the time somebody else had the server's core: the noise of the machine.
fn server_waited(outcome: &Outcome) -> Option<f64> {
    let waited_ns = outcome.server?.waited_ns as f64;
    Some(waited_ns / outcome.elapsed_ns.max(1) as f64 * 100.0)
}
