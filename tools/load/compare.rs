//! Side by side: latchd and others do the same work in turn, round after round, in one table.
//!
//! A ratio is taken within a round, where both had the same neighbours on the machine, and the
//! median of the rounds is what counts. Absolute figures come second.

use std::fs;
use std::io;
use std::path::Path;

use crate::json::quoted;
use crate::outcome::{Outcome, Rounds, median};
use crate::report::{duration, grouped};
use crate::serve::Kind;
use crate::session::{Options, Session};
use crate::spec::{Keys, Spec};
use crate::svg;
use crate::target::Target;

/// Rounds, if the command line does not say.
const ROUNDS: usize = 5;

/// What a work is judged by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Answers per second.
    Rate,
    /// Grants per second.
    HandOvers,
    /// Median latency of an acquire: here a smaller ratio is better.
    Median,
}

impl Figure {
    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Rate => outcome.per_s(),
            Self::HandOvers => outcome.takes_per_s(),
            Self::Median => outcome.take.value_at_quantile(0.5) as f64,
        }
    }
}

/// One row.
struct Work {
    name: &'static str,
    spec: Spec,
    unix: bool,
    figure: Figure,
}

fn works(options: &Options) -> Vec<Work> {
    let work = |name, spec, figure| Work {
        name,
        spec,
        unix: false,
        figure,
    };
    let usual = Spec {
        measure_ns: 1_000_000_000,
        ..Spec::default()
    };
    let mut works = vec![
        work("64 connections, op/s", usual.clone(), Figure::Rate),
        work(
            "64 connections, pipeline 16, op/s",
            Spec {
                pipeline: 16,
                ..usual.clone()
            },
            Figure::Rate,
        ),
        work(
            "1 connection, p50 (less is better)",
            Spec {
                connections: 1,
                ..usual.clone()
            },
            Figure::Median,
        ),
        work(
            "64 connections on one key, hand-overs/s",
            Spec {
                keys: Keys::Shared(1),
                ..usual.clone()
            },
            Figure::HandOvers,
        ),
        Work {
            unix: true,
            ..work("64 connections, unix socket, op/s", usual, Figure::Rate)
        },
    ];
    for work in &mut works {
        options.apply(&mut work.spec);
    }
    works
}

/// One column.
struct Contestant {
    name: String,
    tcp: Target,
    unix: Option<Target>,
    plain_del: bool,
}

/// What came of one work with one contestant; none if it does not do that work.
pub(crate) type Cell = Option<Rounds>;

/// The comparison, for the table and the picture.
pub(crate) struct Table {
    pub(crate) names: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// One work.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    figure: Figure,
    cells: Vec<Cell>,
}

impl Row {
    /// What came of it, unless an answer was wrong: then its speed means nothing.
    fn right(&self, column: usize) -> Option<&Rounds> {
        let rounds = self.cells[column].as_ref()?;
        (rounds.wrong.count == 0).then_some(rounds)
    }

    /// latchd against the contestant in this column: the median of the rounds' ratios.
    pub(crate) fn ratio(&self, column: usize) -> Option<f64> {
        let (ours, theirs) = (self.right(0)?, self.right(column)?);
        let pairs = ours.each.iter().zip(&theirs.each);
        let ratios = pairs.map(|(a, b)| self.figure.of(a) / self.figure.of(b));
        Some(median(ratios.collect()))
    }

    /// The figure itself.
    pub(crate) fn value(&self, column: usize) -> Option<f64> {
        let rounds = self.right(column)?;
        Some(rounds.median(|it| self.figure.of(it)))
    }

    /// The figure as text, with the p99 beside it.
    pub(crate) fn shown(&self, column: usize) -> String {
        let (Some(rounds), Some(value)) = (&self.cells[column], self.value(column)) else {
            let wrong = self.cells[column].is_some();
            return if wrong { "wrong" } else { "-" }.to_owned();
        };
        let value = match self.figure {
            Figure::Median => duration(value as u64),
            Figure::Rate | Figure::HandOvers => grouped(value),
        };
        let p99 = duration(rounds.take.value_at_quantile(0.99));
        format!("{value} (p99 {p99})")
    }

    /// The server's processor time per answer, if it is ours: what a busy machine disturbs least.
    fn cost(&self, column: usize) -> String {
        let rounds = self.right(column);
        let share = rounds.and_then(|it| it.share(|round| round.server));
        match (rounds, share) {
            (Some(rounds), Some(share)) => {
                let answers = rounds.sum(|it| it.answers).max(1);
                format!("{:.2}", share.ran_ns as f64 / answers as f64 / 1e3)
            }
            _ => "-".to_owned(),
        }
    }

    /// Whether a longer bar is a better one.
    pub(crate) fn more_is_better(&self) -> bool {
        self.figure != Figure::Median
    }
}

/// Runs the comparison; whether every answer was right.
pub(crate) fn run(with: &[String], svg: Option<&Path>, options: Options) -> io::Result<bool> {
    let works = works(&options);
    let rounds = options.rounds.unwrap_or(ROUNDS).max(1);
    let mut kinds = Vec::new();
    for name in with {
        let kind = match name.as_str() {
            "redis" | "redis-del" => Kind::Redis,
            "ceiling" => Kind::Ceiling,
            _ => continue,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let session = Session::open(options, &kinds)?;
    let contestants = contestants(&session, with)?;
    let mut cells: Vec<Vec<Vec<Outcome>>> = vec![vec![Vec::new(); contestants.len()]; works.len()];
    for round in 1..=rounds {
        for (work, row) in works.iter().zip(&mut cells) {
            for (contestant, outcomes) in contestants.iter().zip(row) {
                let target = if work.unix {
                    contestant.unix.as_ref()
                } else {
                    Some(&contestant.tcp)
                };
                let Some(target) = target else { continue };
                let mut spec = work.spec.clone();
                spec.plain_del = contestant.plain_del;
                let label = format!("round {round}/{rounds}, {}, {}", work.name, contestant.name);
                outcomes.push(session.run_at(&label, &spec, target, None)?);
            }
        }
    }
    let names = contestants.iter().map(|it| it.name.clone()).collect();
    let rows = works.iter().zip(cells).map(|(work, row)| Row {
        name: work.name,
        figure: work.figure,
        cells: row
            .into_iter()
            .map(|it| (!it.is_empty()).then(|| Rounds::of(it)))
            .collect(),
    });
    let table = Table {
        names,
        rows: rows.collect(),
    };
    if session.options.json {
        println!("{}", as_json(&table));
    } else {
        print!("{}", markdown(&table));
    }
    if let Some(path) = svg {
        fs::write(path, svg::draw(&table))?;
    }
    Ok(complain(&table))
}

/// latchd first, then those it is compared with.
fn contestants(session: &Session, with: &[String]) -> io::Result<Vec<Contestant>> {
    let mut all = vec![Contestant {
        name: "latchd".to_owned(),
        tcp: session.target.clone(),
        unix: session.server.as_ref().map(|it| it.unix.clone()),
        plain_del: false,
    }];
    for name in with {
        let kind = match name.as_str() {
            "redis" | "redis-del" => Kind::Redis,
            _ => Kind::Ceiling,
        };
        let ours = session.others.iter().find(|(it, _)| *it == kind);
        let (tcp, unix) = if name.contains("://") {
            let target = Target::parse(name)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            (target, None)
        } else if let Some((_, server)) = ours.filter(|_| name != "latchd") {
            (server.tcp.clone(), Some(server.unix.clone()))
        } else {
            let what = format!("{name:?} is neither redis, redis-del, ceiling nor a target");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        all.push(Contestant {
            name: name.clone(),
            tcp,
            unix,
            plain_del: name == "redis-del",
        });
    }
    Ok(all)
}

/// Ratios first, then the figures, then what an answer cost the server.
fn markdown(table: &Table) -> String {
    let columns = 0..table.names.len();
    let mut ratios = vec![vec!["work".to_owned()]];
    ratios[0].extend(
        columns
            .clone()
            .skip(1)
            .map(|at| format!("latchd / {}", table.names[at])),
    );
    ratios[0].extend(table.names.iter().cloned());
    let mut costs = vec![vec!["server's processor time per answer, us".to_owned()]];
    costs[0].extend(table.names.iter().cloned());
    for row in &table.rows {
        let mut line = vec![row.name.to_owned()];
        line.extend(columns.clone().skip(1).map(|at| {
            let ratio = row.ratio(at);
            ratio.map_or_else(|| "-".to_owned(), |it| format!("**{it:.2}**"))
        }));
        line.extend(columns.clone().map(|at| row.shown(at)));
        ratios.push(line);
        let mut line = vec![row.name.to_owned()];
        line.extend(columns.clone().map(|at| row.cost(at)));
        costs.push(line);
    }
    format!("{}\n{}", aligned(&ratios), aligned(&costs))
}

fn aligned(lines: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            text.push_str(&format!("| {} |\n", rules.join(" | ")));
        }
    }
    text
}

fn as_json(table: &Table) -> String {
    let mut objects = Vec::new();
    for row in &table.rows {
        for (at, name) in table.names.iter().enumerate() {
            let Some(rounds) = &row.cells[at] else {
                continue;
            };
            objects.push(format!(
                "{{\"work\":{},\"server\":{},\"latchd_ratio\":{},\"result\":{}}}",
                quoted(row.name),
                quoted(name),
                row.ratio(at)
                    .map_or_else(|| "null".to_owned(), |it| format!("{it:.4}")),
                crate::json::run(row.name, rounds)
            ));
        }
    }
    format!("[{}]", objects.join(",\n "))
}

/// Says what was wrong; whether nothing was.
fn complain(table: &Table) -> bool {
    let mut right = true;
    for row in &table.rows {
        for (name, cell) in table.names.iter().zip(&row.cells) {
            for what in cell.iter().flat_map(|it| &it.wrong.first) {
                right = false;
                eprintln!("WRONG: {name}, {}: {what}", row.name);
            }
        }
    }
    right
}
