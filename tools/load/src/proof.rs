//! The proof: every target of docs/benchmarks.md in one interleaved run.
//!
//! A round is the comparison once and every scenario once, so that everything that is compared ran
//! beside the same neighbours. A missed target is reported and is no error; a wrong answer is an
//! error.

use std::fs;
use std::io;
use std::path::Path;

use crate::comparison::{Comparison, Job, Measure, Table};
use crate::options::Options;
use crate::output::{eprint, print};
use crate::report::chart::Chart;
use crate::report::figures::{Figures, Unit, Wanted};
use crate::report::svg;
use crate::report::tables;
use crate::run::outcome::{Outcome, Rounds, median};
use crate::scenarios;
use crate::session::Session;

/// Rounds, unless the command line says otherwise.
const ROUNDS: usize = 5;

/// How latchd should compare with the others.
#[rustfmt::skip] // a table is read in columns
const AGAINST: [(Job, Measure, &str, Wanted); 10] = [
    (Job::Plain,     Measure::Rate,      "ceiling",   Wanted::AtLeast(0.90)),
    (Job::Plain,     Measure::Rate,      "redis",     Wanted::AtLeast(1.4)),
    (Job::Plain,     Measure::Rate,      "dflockd",   Wanted::AtLeast(2.2)),
    (Job::Pipelined, Measure::Rate,      "ceiling",   Wanted::AtLeast(0.55)),
    (Job::Pipelined, Measure::Rate,      "redis-del", Wanted::AtLeast(1.4)),
    (Job::Pipelined, Measure::Rate,      "redis",     Wanted::AtLeast(3.0)),
    (Job::Alone,     Measure::P50,       "ceiling",   Wanted::AtMost(1.05)),
    (Job::Alone,     Measure::P99,       "ceiling",   Wanted::AtMost(1.05)),
    (Job::Hot,       Measure::HandOvers, "ceiling",   Wanted::AtLeast(0.9)),
    (Job::Unix,      Measure::Rate,      "ceiling",   Wanted::AtLeast(0.85)),
];

/// How evenly those who wait for one key should be treated.
const EVENNESS: Wanted = Wanted::AtMost(2.0);

/// If a process waits longer than this for its core, the figures describe the machine, not the
/// servers.
const WAITED_PERCENT_MAX: f64 = 3.0;

/// Runs everything; returns whether every answer was right.
pub(crate) fn run(svg: Option<&Path>, options: Options) -> io::Result<bool> {
    if options.target.is_some() || options.spin {
        let what = "the proof starts its servers itself: no --target, no --spin";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let session = Session::open(options)?;
    let mut comparison = Comparison::open(&session)?;
    let mut from_scenarios = Figures::default();
    let rounds = session.options.rounds(ROUNDS);
    let began = session.clock.now_ns();
    for round in 1..=rounds {
        comparison.round(&session, round)?;
        for scenario in scenarios::PROVEN {
            scenario(&session, &mut from_scenarios)?;
        }
        let minutes = (session.clock.now_ns() - began) as f64 / 6e10;
        eprint(&format!(
            "latch-load: round {round} of {rounds} is over, {minutes:.1} minutes so far"
        ));
    }
    let table = comparison.table();
    let mut figures = judged(&table);
    figures.append(from_scenarios);
    let text = format!(
        "{}\n{}\n{}",
        tables::measured_on(),
        figures.markdown(),
        tables::markdown(&table)
    );
    if session.options.json {
        let (targets, compared) = (figures.json(), tables::as_json(&table));
        print(&format!(
            "{{\"targets\":{targets},\n\"comparison\":{compared}}}"
        ))?;
    } else {
        print(&text)?;
    }
    if let Some(path) = svg {
        fs::write(
            path,
            svg::draw(&Chart::read(&text).map_err(io::Error::other)?),
        )?;
    }
    eprint(&format!("latch-load: {}", figures.verdict()));
    if let Some(busy) = busy(&table) {
        eprint(&format!("latch-load: {busy}"));
    }
    let right = tables::complain(&table);
    Ok(figures.complain() && right)
}

/// The targets that the comparison can judge.
fn judged(table: &Table) -> Figures {
    let mut figures = Figures::default();
    for job in Job::ALL {
        figures.about(job.name());
        let row = table.row(job);
        for (_, measure, other, wanted) in AGAINST.into_iter().filter(|it| it.0 == job) {
            let ratios = table.column(other).map(|at| row.ratios(measure, at));
            let named = match other {
                "dflockd" => "dflockd (Python)", // there is one in Go too
                name => name,
            };
            let name = format!("{} / {named}", measure.name());
            figures.put_all(&name, Unit::Ratio, ratios.unwrap_or_default(), wanted);
        }
        let ours = row.right(0).map_or(&[][..], |it| &it.each);
        match job {
            Job::Hot => {
                figures.put(
                    "granted twice or out of turn",
                    Unit::Count,
                    row.cells[0].as_ref().and_then(wrong_grants),
                    Wanted::Never,
                );
                let evenness = ours.iter().filter_map(|it| Measure::Evenness.of(it));
                let name = Measure::Evenness.name();
                figures.put_all(name, Unit::Ratio, evenness.collect(), EVENNESS);
            }
            Job::Unix => {
                let tcp = table
                    .row(Job::Plain)
                    .right(0)
                    .map_or(&[][..], |it| &it.each);
                let pairs = ours.iter().zip(tcp);
                let ratios = pairs.filter_map(|(a, b)| Some(a.per_s()? / b.per_s()?));
                figures.put_all("op/s / TCP", Unit::Ratio, ratios.collect(), Wanted::Nothing);
            }
            Job::Plain | Job::Pipelined | Job::Alone => {}
        }
    }
    figures.about("the machine, all comparisons");
    for (who, whose) in [("server", Whose::Server), ("load", Whose::Load)] {
        let waited = format!("{who} waited for its core");
        figures.put_all(&waited, Unit::Percent, waits(table, whose), Wanted::Nothing);
    }
    figures
}

/// How many answers were wrong; `None` if there were no grants to check.
fn wrong_grants(rounds: &Rounds) -> Option<f64> {
    let wrong = rounds.wrong.count;
    (wrong > 0 || rounds.sum(|it| it.takes) > 0).then_some(wrong as f64)
}

#[derive(Clone, Copy)]
enum Whose {
    Server,
    Load,
}

/// A warning, if other processes had the cores for so long that the figures cannot be trusted.
fn busy(table: &Table) -> Option<String> {
    let waited = [Whose::Server, Whose::Load].map(|whose| median(waits(table, whose)));
    let [Some(server), Some(load)] = waited else {
        return None;
    };
    (server.max(load) > WAITED_PERCENT_MAX).then(|| {
        format!(
            "warning: the machine was busy: measure again (the server waited {server:.1} % of the \
             time for its core, the load {load:.1} %)"
        )
    })
}

/// How long, in per cent of each run, another process had the core: what disturbed the measurement.
fn waits(table: &Table, whose: Whose) -> Vec<f64> {
    let cells = table.rows.iter().flat_map(|it| &it.cells).flatten();
    let runs = cells.flat_map(|it| &it.each);
    let spent = |it: &Outcome| {
        let spent = match whose {
            Whose::Server => it.server?,
            Whose::Load => it.load?,
        };
        Some(spent.waited_ns as f64 / it.elapsed_ns.max(1) as f64 * 100.0)
    };
    runs.filter_map(spent).collect()
}
