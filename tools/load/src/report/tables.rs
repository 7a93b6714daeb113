//! The comparison as tables: ratios first, then the figures, then what an answer cost the server.

use crate::clock::today;
use crate::comparison::{Row, Table};
use crate::machine;
use crate::output::eprint;
use crate::report::format::{NOT_MEASURED, aligned, duration, ratio};
use crate::report::json::{self, quoted};
use crate::run::outcome::{per_answer, quantile};

/// When and on what it was measured, above the tables: without it a figure says nothing.
pub(crate) fn measured_on() -> String {
    format!("{}; {}:\n", today(), machine::description())
}

/// Two tables: ratios with figures, and the server's cost of an answer.
pub(crate) fn markdown(table: &Table) -> String {
    let columns = 0..table.names.len();
    let others = || columns.clone().skip(1);
    let mut ratios = vec![vec!["work".to_owned()]];
    ratios[0].extend(others().map(|at| format!("{} / {}", table.names[0], table.names[at])));
    ratios[0].extend(table.names.iter().cloned());
    let mut costs = vec![vec!["server's processor time per answer, µs".to_owned()]];
    costs[0].extend(table.names.iter().cloned());
    for row in &table.rows {
        let mut cells = vec![row.job.heading()];
        cells.extend(others().map(|at| {
            let found = row.ratio(at);
            found.map_or_else(|| "-".to_owned(), |it| format!("**{}**", ratio(it)))
        }));
        cells.extend(columns.clone().map(|at| shown(row, at)));
        ratios.push(cells);
        let mut cells = vec![row.job.name().to_owned()];
        cells.extend(columns.clone().map(|at| cost(row, at)));
        costs.push(cells);
    }
    format!("{}\n{}", aligned(&ratios), aligned(&costs))
}

/// A figure with the p99 beside it.
fn shown(row: &Row, column: usize) -> String {
    match (&row.cells[column], row.shown(column)) {
        (None, _) => "-".to_owned(),
        (Some(rounds), None) if rounds.wrong.count > 0 => "wrong".to_owned(),
        (Some(_), None) => NOT_MEASURED.to_owned(),
        (Some(rounds), Some(value)) => match quantile(&rounds.take, 0.99) {
            Some(p99) => format!("{value} (p99 {})", duration(p99)),
            None => value,
        },
    }
}

/// The server's processor time per answer, if it was started here. A busy machine disturbs this
/// least.
fn cost(row: &Row, column: usize) -> String {
    let Some(rounds) = row.right(column) else {
        return "-".to_owned();
    };
    let Some(spent) = rounds.cpu_time(|round| round.server) else {
        return "-".to_owned(); // it was not started here
    };
    match per_answer(spent, rounds.sum(|it| it.answers)) {
        Some(ns) => format!("{:.2}", ns / 1e3),
        None => NOT_MEASURED.to_owned(),
    }
}

/// A JSON array with one object for each job and server. `subject` is the server that the others
/// are compared with, usually latchd, and `subject_ratio` its figure divided by this server's.
pub(crate) fn as_json(table: &Table) -> String {
    let mut objects = Vec::new();
    for row in &table.rows {
        for (at, name) in table.names.iter().enumerate() {
            let Some(rounds) = &row.cells[at] else {
                continue;
            };
            objects.push(format!(
                "{{\"work\":{},\"server\":{},\"subject\":{},\"subject_ratio\":{},\"result\":{}}}",
                quoted(row.job.name()),
                quoted(name),
                quoted(&table.names[0]),
                json::number(row.ratio(at)),
                json::run(row.job.name(), rounds)
            ));
        }
    }
    format!("[{}]", objects.join(",\n "))
}

/// Prints the wrong answers; returns whether there were none.
pub(crate) fn complain(table: &Table) -> bool {
    let mut right = true;
    for row in &table.rows {
        for (name, cell) in table.names.iter().zip(&row.cells) {
            for what in cell.iter().flat_map(|it| &it.wrong.first) {
                right = false;
                eprint(&format!("WRONG: {name}, {}: {what}", row.job.name()));
            }
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Job;
    use crate::run::outcome::{Outcome, Rounds};

    fn rounds(answers: u64) -> Option<Rounds> {
        let mut outcome = Outcome::new();
        (outcome.answers, outcome.takes) = (answers, answers);
        outcome.elapsed_ns = 1_000_000_000;
        outcome.take.saturating_record_n(1_000, answers);
        Some(Rounds::of(vec![outcome]))
    }

    #[test]
    fn the_ratio_is_of_the_first_participant() {
        let table = Table {
            names: ["redis", "ceiling", "dflockd"].map(str::to_owned).into(),
            rows: vec![Row {
                job: Job::Plain,
                cells: vec![rounds(100), rounds(200), rounds(0)],
            }],
        };
        let json: serde_json::Value = serde_json::from_str(&as_json(&table)).unwrap();
        for (cell, server, ratio) in [
            (&json[0], "redis", Some(1.0)),
            (&json[1], "ceiling", Some(0.5)),
            (&json[2], "dflockd", None),
        ] {
            assert_eq!(cell["server"], server);
            assert_eq!(cell["subject"], "redis");
            assert_eq!(cell["subject_ratio"].as_f64(), ratio, "{cell}");
        }
    }
}
