//! What well-behaved clients feel: 16 of them, an open loop of 1,000 cycles a second in all, on keys
//! of their own, with the attack and without. Where both doors count, 16 more speak HTTP, and all
//! choose among the same locks.
//!
//! Where the server asks for a token, newcomers that have it are measured too, and the log: see
//! `newcomers` and `logged`.

use std::io;

use hdrhistogram::Histogram;

use crate::hostile::Scene;
use crate::hostile::beside::{MS, Turns, longest_turn, put_bounded, unless_spoilt};
use crate::hostile::crowd::VERDICTS;
use crate::hostile::logged::Log;
use crate::hostile::newcomers::Newcomers;
use crate::hostile::process::Attackers;
use crate::report::figures::Unit::{Nanos, Percent};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::report::figures::{Figures, WITHOUT};
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

/// Wrong guesses of one host that are answered at once, and per second from then on.
const VERDICTS_AT_ONCE: f64 = 16.0;
const VERDICTS_PER_S_MAX: f64 = 160.0;

/// Clients of each door, and cycles of all of these in a second.
const CLIENTS: usize = 16;
const RATE: u64 = 1_000;

/// What stands behind the name of a figure of the other door.
const HTTP_DOOR: &str = " over HTTP";

/// The locks that clients of both doors choose among: so many that they are seldom in each other's
/// way.
const SHARED_LOCKS: u32 = 1_000;

/// What is measured of them, and what is wanted.
#[derive(Clone, Copy)]
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
    /// Whether everybody comes over the unix socket.
    over_unix: bool,
    /// Whether the strangers guess, and how often they are answered counts.
    guesses: bool,
    /// More options of the server.
    limits: &'static [&'static str],
}

impl Feeling {
    pub(super) const fn new(p99_ms: f64) -> Self {
        Self {
            p99_ms,
            and_turn: false,
            secret: false,
            by_both_doors: false,
            tls: false,
            over_unix: false,
            guesses: false,
            limits: &[],
        }
    }

    pub(super) const fn over_unix(self) -> Self {
        Self {
            over_unix: true,
            ..self
        }
    }

    pub(super) const fn with_guesses(self) -> Self {
        Self {
            guesses: true,
            ..self
        }
    }

    pub(super) const fn with_limits(self, limits: &'static [&'static str]) -> Self {
        Self { limits, ..self }
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
        options.extend(self.limits);
        let files = self.tls.then(Files::write).transpose()?;
        if let Some(files) = &files {
            options.extend(files.options());
        }
        let mut subject = session.latchd(&options)?;
        if self.over_unix {
            let unix = subject.server.as_ref().and_then(|it| it.unix.clone());
            subject.target = unix.ok_or_else(|| io::Error::other("no unix socket"))?;
        }
        subject.target.guarded = self.secret;
        Ok(subject)
    }

    /// The longest turn of a server under attack. If it asks for a token, asking for the figure is
    /// one more newcomer.
    fn turn(&self, target: &Target, figures: &mut Figures) -> io::Result<Option<f64>> {
        match longest_turn(target) {
            Err(error) if self.secret => {
                let what = format!("a client with the token that asks for `stats`: {error}");
                figures.wrong.add(what);
                Ok(None)
            }
            other => other,
        }
    }

    /// Newcomers of every door; none if the server asks for no token.
    fn newcomers(&self, session: &Session, target: &Target) -> Vec<Newcomers> {
        let by_http = target.by_http().filter(|_| self.by_both_doors);
        let doors = [
            Some(("", target.clone())),
            by_http.map(|it| (HTTP_DOOR, it)),
        ];
        let doors = doors.into_iter().flatten().filter(|_| self.secret);
        doors
            .map(|(door, target)| Newcomers::come(&session.clock, door, &target))
            .collect()
    }
}

/// Measures without the attack, then with it, each on a server of its own.
pub(super) fn measure(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
    feeling: &Feeling,
) -> io::Result<()> {
    let mut spec = session.short(feeling.spec());
    spec.measure_ns = session
        .options
        .seconds
        .map_or(2_000_000_000, |_| spec.measure_ns);
    let alone = feeling.server(session)?;
    let without = session.run("without the attack", &spec, &alone.target)?;
    let come_without = feeling.newcomers(session, &alone.target);
    let turn_without = longest_turn(&alone.target)?;
    drop(alone);

    let latchd = feeling.server(session)?;
    let log = Log::begin(session, &latchd)?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    let turn_before = feeling.turn(&latchd.target, figures)?;
    if let Some(moment_ns) = attackers.moment_ns {
        let left = moment_ns.saturating_sub(session.clock.now_ns());
        spec.warmup_ns = left.saturating_sub(BEFORE_NS);
    }
    attackers.go()?;
    let began = session.clock.now_ns();
    let with = session.run(scene.name, &spec, &latchd.target);
    let come = feeling.newcomers(session, &latchd.target);
    attackers.stop()?;
    let worked_ns = session.clock.now_ns() - began;
    let turn = feeling.turn(&latchd.target, figures)?;

    // Also if the well-behaved clients were not served.
    for (come, without) in come.into_iter().zip(come_without) {
        come.put(without, figures);
    }
    if feeling.guesses {
        let judged = attackers.count(VERDICTS) - VERDICTS_AT_ONCE;
        let per_s = judged.max(0.0) * 1e9 / worked_ns.max(1) as f64;
        let name = "verdicts on guesses a second";
        put_bounded(figures, name, per_s, VERDICTS_PER_S_MAX);
    }
    if feeling.secret {
        log.put(session, &latchd, figures)?;
    }
    let with = with?;
    let p99_ms = feeling.p99_ms;
    // It may be late in sending and again in reading. If no connection was ever free in time, the
    // server alone made everything late.
    let late_ns = late(&with).map(|ns| 2.0 * ns);
    let doors: &[(&str, Latencies)] = match feeling.by_both_doors {
        true => &[
            ("", Outcome::take_by_line),
            (HTTP_DOOR, |it| it.take_http.clone()),
        ],
        false => &[("", |it| it.take.clone())],
    };
    for (door, of) in doors {
        let at = |outcome, part| quantile(&of(outcome), part).map(|ns| ns as f64);
        let p99 = at(&with, 0.99).filter(|_| !with.broken);
        let p99 = p99.and_then(|it| unless_spoilt(it, late_ns, p99_ms * MS));
        let name = format!("others' p99{door}");
        figures.put(&name, Nanos, p99, AtMost(p99_ms * MS));
        let name = format!("{WITHOUT}{name}");
        figures.put(&name, Nanos, at(&without, 0.99), Nothing);
        let name = format!("others' p50{door}");
        figures.put(&name, Nanos, at(&with, 0.5), Nothing);
        let name = format!("{WITHOUT}{name}");
        figures.put(&name, Nanos, at(&without, 0.5), Nothing);
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
