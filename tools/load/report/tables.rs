//! The comparison as tables: ratios first, then the figures, then what an answer cost the server.

use crate::comparison::{Row, Table};
use crate::output::eprint;
use crate::report::format::{aligned, duration, ratio};
use crate::report::json::{self, quoted};

/// Two tables: ratios with figures, and the server's cost of an answer.
pub(crate) fn markdown(table: &Table) -> String {
    let columns = 0..table.names.len();
    let others = || columns.clone().skip(1);
    let mut ratios = vec![vec!["work".to_owned()]];
    ratios[0].extend(others().map(|at| format!("{} / {}", table.names[0], table.names[at])));
    ratios[0].extend(table.names.iter().cloned());
    let mut costs = vec![vec!["server's processor time per answer, us".to_owned()]];
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
        (Some(_), None) => "not measured".to_owned(),
        (Some(rounds), Some(value)) => {
            let p99 = duration(rounds.take.value_at_quantile(0.99));
            format!("{value} (p99 {p99})")
        }
    }
}

/// The server's processor time per answer, if it was started here. A busy machine disturbs this
/// least.
fn cost(row: &Row, column: usize) -> String {
    let rounds = row.right(column).filter(|_| row.value(column).is_some());
    let spent = rounds.and_then(|it| it.cpu_time(|round| round.server));
    match (rounds, spent) {
        (Some(rounds), Some(spent)) => {
            let answers = rounds.sum(|it| it.answers).max(1);
            format!("{:.2}", spent.ran_ns as f64 / answers as f64 / 1e3)
        }
        _ => "-".to_owned(),
    }
}

/// A JSON array with one object for each job and server.
pub(crate) fn as_json(table: &Table) -> String {
    let mut objects = Vec::new();
    for row in &table.rows {
        for (at, name) in table.names.iter().enumerate() {
            let Some(rounds) = &row.cells[at] else {
                continue;
            };
            let ratio = row.ratio(at).unwrap_or(f64::NAN);
            objects.push(format!(
                "{{\"work\":{},\"server\":{},\"latchd_ratio\":{},\"result\":{}}}",
                quoted(row.job.name()),
                quoted(name),
                json::number(ratio),
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
