//! The comparison: latchd and others do the same jobs in turn, round after round.
//!
//! A ratio is taken within a round, in which both servers had the same neighbours on the machine,
//! and the median of the rounds counts. `report::tables` shows the result, `proof` judges it.

use std::fs;
use std::io;
use std::path::Path;

use crate::options::Options;
use crate::output::print;
use crate::report::chart::Chart;
use crate::report::format::{duration, grouped};
use crate::report::svg;
use crate::report::tables;
use crate::run::outcome::{Outcome, Rounds, median, quantile};
use crate::run::spec::{Keys, Spec};
use crate::servers::target::Target;
use crate::servers::{Server, ServerKind};
use crate::session::{Session, Subject};

/// Rounds, unless the command line says otherwise.
const ROUNDS: usize = 5;

/// Runs the comparison; returns whether every answer was right.
pub(crate) fn run(svg: Option<&Path>, options: Options) -> io::Result<bool> {
    let session = Session::open(options)?;
    let mut comparison = Comparison::open(&session)?;
    for round in 1..=session.options.rounds(ROUNDS) {
        comparison.round(&session, round)?;
    }
    let table = comparison.table();
    let text = format!("{}\n{}", tables::measured_on(), tables::markdown(&table));
    if session.options.json {
        print(&tables::as_json(&table))?;
    } else {
        print(text.trim_end())?;
    }
    if let Some(path) = svg {
        fs::write(
            path,
            svg::draw(&Chart::read(&text).map_err(io::Error::other)?),
        )?;
    }
    Ok(tables::complain(&table))
}

/// The work that every participant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Plain,
    Pipelined,
    Alone,
    Hot,
    Unix,
}

impl Job {
    pub(crate) const ALL: [Self; 5] = [
        Self::Plain,
        Self::Pipelined,
        Self::Alone,
        Self::Hot,
        Self::Unix,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "64 connections",
            Self::Pipelined => "64 connections, pipeline 16",
            Self::Alone => "1 connection",
            Self::Hot => "64 connections on one key",
            Self::Unix => "64 connections, unix socket",
        }
    }

    /// The work and its measure: the title of a row or of a group of bars.
    pub(crate) fn heading(self) -> String {
        let measure = self.measure();
        let less = match measure.more_is_better() {
            true => "",
            false => " (less is better)",
        };
        format!("{}, {}{less}", self.name(), measure.name())
    }

    /// The measure that ranks the participants.
    pub(crate) const fn measure(self) -> Measure {
        match self {
            Self::Plain | Self::Pipelined | Self::Unix => Measure::Rate,
            Self::Alone => Measure::P50,
            Self::Hot => Measure::HandOvers,
        }
    }

    pub(crate) fn spec(self) -> Spec {
        let mut spec = Spec::default();
        match self {
            Self::Plain | Self::Unix => {}
            Self::Pipelined => spec.pipeline = 16,
            Self::Alone => spec.connections = 1,
            Self::Hot => spec.keys = Keys::Shared(1),
        }
        spec
    }
}

/// A number that says how well a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Answers per second.
    Rate,
    /// Grants per second.
    HandOvers,
    /// Median latency of an acquire; for this and those below, less is better.
    P50,
    P99,
    /// How evenly waiters are treated: p99/p50 of an acquire.
    Evenness,
}

impl Measure {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "op/s",
            Self::HandOvers => "hand-overs/s",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Evenness => "waiting p99/p50",
        }
    }

    /// `None` if nothing was answered.
    pub(crate) fn of(self, outcome: &Outcome) -> Option<f64> {
        let at = |part| quantile(&outcome.take, part).map(|ns| ns.max(1) as f64);
        match self {
            Self::Rate => outcome.per_s(),
            Self::HandOvers => outcome.takes_per_s(),
            Self::P50 => at(0.5),
            Self::P99 => at(0.99),
            Self::Evenness => Some(at(0.99)? / at(0.5)?),
        }
    }

    /// Whether a higher value is better.
    pub(crate) const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate | Self::HandOvers)
    }
}

/// One server that takes part.
struct Participant {
    name: String,
    tcp: Target,
    unix: Option<Target>,
    plain_del: bool,
}

/// All participants, and their outcomes so far.
pub(crate) struct Comparison {
    participants: Vec<Participant>,
    /// For each job, for each participant, one outcome per round.
    outcomes: Vec<Vec<Vec<Outcome>>>,
    /// The servers run as long as this lives. `redis` and `redis-del` share one server.
    _subject: Subject,
    _others: Vec<(ServerKind, Server)>,
}

impl Comparison {
    /// Starts all servers. The first participant, usually latchd, is the one the others are
    /// compared with.
    pub(crate) fn open(session: &Session) -> io::Result<Self> {
        let subject = session.latchd(&[])?;
        let mut participants = vec![Participant {
            name: subject.target.name().to_owned(),
            tcp: subject.target.clone(),
            unix: subject.server.as_ref().and_then(|it| it.unix.clone()),
            plain_del: false,
        }];
        let mut others: Vec<(ServerKind, Server)> = Vec::new();
        for name in &session.options.with {
            let (tcp, unix) = if let Some(kind) = ServerKind::named(name) {
                if !others.iter().any(|(it, _)| *it == kind) {
                    others.push((kind, session.start(kind, &[])?));
                }
                let mut started = others.iter().filter(|(it, _)| *it == kind);
                let (_, server) = started.next().expect("it was just started");
                (server.tcp.clone(), server.unix.clone())
            } else {
                (Target::parse(name).map_err(io::Error::other)?, None)
            };
            participants.push(Participant {
                name: name.clone(),
                tcp,
                unix,
                plain_del: name == "redis-del",
            });
        }
        Ok(Self {
            outcomes: vec![vec![Vec::new(); participants.len()]; Job::ALL.len()],
            participants,
            _subject: subject,
            _others: others,
        })
    }

    /// Runs every job once with every participant that can do it. In each round another participant
    /// begins, so that none always has the same place.
    pub(crate) fn round(&mut self, session: &Session, round: usize) -> io::Result<()> {
        for (job, row) in Job::ALL.into_iter().zip(&mut self.outcomes) {
            for turn in 0..self.participants.len() {
                let at = (round + turn) % self.participants.len();
                let participant = &self.participants[at];
                let target = match job {
                    Job::Unix => participant.unix.as_ref(),
                    _ => Some(&participant.tcp),
                };
                let Some(target) = target else { continue };
                let mut spec = session.short(job.spec());
                spec.plain_del = participant.plain_del;
                let label = format!("round {round}, {}, {}", job.name(), participant.name);
                row[at].push(session.run(&label, &spec, target)?);
            }
        }
        Ok(())
    }

    /// The result; ends all servers.
    pub(crate) fn table(self) -> Table {
        let rows = Job::ALL.into_iter().zip(self.outcomes);
        let rows = rows.map(|(job, row)| Row {
            job,
            cells: row
                .into_iter()
                .map(|it| (!it.is_empty()).then(|| Rounds::of(it)))
                .collect(),
        });
        Table {
            rows: rows.collect(),
            names: self.participants.into_iter().map(|it| it.name).collect(),
        }
    }
}

/// The result of a comparison.
pub(crate) struct Table {
    pub(crate) names: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn row(&self, job: Job) -> &Row {
        let mut rows = self.rows.iter();
        rows.find(|it| it.job == job).expect("every job has a row")
    }

    /// The column of the participant with this name.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }
}

/// The result of one job.
pub(crate) struct Row {
    pub(crate) job: Job,
    /// `None` for a participant that cannot do the job.
    pub(crate) cells: Vec<Option<Rounds>>,
}

impl Row {
    /// The rounds, unless an answer was wrong: then the speed means nothing.
    pub(crate) fn right(&self, column: usize) -> Option<&Rounds> {
        let rounds = self.cells[column].as_ref()?;
        (rounds.wrong.count == 0).then_some(rounds)
    }

    /// Round by round, the first participant's figure divided by the figure in this column.
    pub(crate) fn ratios(&self, measure: Measure, column: usize) -> Vec<f64> {
        let (Some(ours), Some(theirs)) = (self.right(0), self.right(column)) else {
            return Vec::new();
        };
        let pairs = ours.each.iter().zip(&theirs.each);
        let ratios = pairs.map(|(a, b)| Some(measure.of(a)? / measure.of(b)?));
        ratios.flatten().collect()
    }

    /// The median of the ratios, by the job's own measure.
    pub(crate) fn ratio(&self, column: usize) -> Option<f64> {
        median(self.ratios(self.job.measure(), column))
    }

    /// The median figure of the rounds in which anything was answered.
    pub(crate) fn value(&self, column: usize) -> Option<f64> {
        self.right(column)?.median(|it| self.job.measure().of(it))
    }

    /// The figure as text.
    pub(crate) fn shown(&self, column: usize) -> Option<String> {
        let value = self.value(column)?;
        Some(match self.job.measure().more_is_better() {
            true => grouped(value),
            false => duration(value as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(answers: u64) -> Outcome {
        let mut outcome = Outcome::new();
        outcome.elapsed_ns = 1_000_000_000;
        outcome.answers = answers;
        outcome.takes = answers;
        outcome.take.saturating_record_n(1_000, answers);
        outcome
    }

    #[test]
    fn a_run_without_answers_is_not_measured() {
        let row = |ours: &[u64], theirs: &[u64]| Row {
            job: Job::Plain,
            cells: [ours, theirs]
                .map(|it| Some(Rounds::of(it.iter().map(|&it| outcome(it)).collect())))
                .into(),
        };
        let some = row(&[30, 0, 20], &[0, 10, 10]);
        assert_eq!(some.ratio(1), Some(2.0));
        assert_eq!(some.value(0), Some(30.0));
        let none = row(&[10, 10], &[0, 0]);
        assert_eq!((none.ratio(1), none.value(1)), (None, None));
    }
}
