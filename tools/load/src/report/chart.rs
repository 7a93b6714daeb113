//! What the picture shows, read from the tables that a comparison or a proof printed.
//!
//! So a picture can be drawn of figures that were measured long ago, and never shows other ones
//! than the tables do. Knows nothing of drawing.

/// Marks around the figures in docs/benchmarks.md.
const BEGIN: &str = "<!-- proof -->";
const END: &str = "<!-- end of proof -->";

/// A comparison: one group of bars for each job.
#[derive(Debug, PartialEq)]
pub(crate) struct Chart {
    /// The server that the others are compared with.
    pub(crate) subject: String,
    /// When it was measured, and of what on which machine.
    pub(crate) caption: String,
    pub(crate) groups: Vec<Group>,
}

/// One job.
#[derive(Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) heading: String,
    /// Only the servers with a figure.
    pub(crate) bars: Vec<Bar>,
}

/// One server's figure.
#[derive(Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) server: String,
    /// The figure as the table shows it.
    pub(crate) figure: String,
    /// The subject's figure divided by this one; `None` for the subject itself.
    pub(crate) ratio: Option<f64>,
}

impl Chart {
    /// Reads the tables out of what `compare` or `proof` printed, or out of a page with marks.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let text = match text.split_once(BEGIN) {
            Some((_, rest)) => rest.split_once(END).map_or(rest, |(inside, _)| inside),
            None => text,
        };
        let mut rows = text.lines().map(cells);
        // The table of targets begins with `work` and `figure`.
        let is_head = |it: &Vec<&str>| it.len() > 1 && it[0] == "work" && it[1] != "figure";
        let head = rows.by_ref().find(is_head);
        let head = head.ok_or("there is no table of a comparison in it")?;
        let servers = &head[head.len() / 2..];
        let rows = rows.skip(1).take_while(|row| !row.is_empty());
        let groups: Option<Vec<Group>> = rows.map(|row| Group::read(&row, servers)).collect();
        let groups =
            groups.ok_or("a row of the comparison has more or fewer cells than its head")?;
        Ok(Self {
            subject: servers[0].to_owned(),
            caption: caption(text),
            groups,
        })
    }

    /// The servers that have a bar, in the order of the table.
    pub(crate) fn servers(&self) -> Vec<&str> {
        let mut servers = Vec::new();
        for bar in self.groups.iter().flat_map(|it| &it.bars) {
            if !servers.contains(&bar.server.as_str()) {
                servers.push(&bar.server);
            }
        }
        servers
    }
}

impl Group {
    /// A row has its work, then the ratios to all but the first server, then the figures.
    fn read(row: &[&str], servers: &[&str]) -> Option<Self> {
        let (heading, row) = row.split_first()?;
        let (ratios, figures) = row.split_at_checked(servers.len() - 1)?;
        if figures.len() != servers.len() {
            return None;
        }
        let mut bars = Vec::new();
        for (at, (server, figure)) in servers.iter().zip(figures).enumerate() {
            // Behind the figure stands its p99.
            let figure = figure.split(" (").next().unwrap_or_default();
            let is_figure = figure.starts_with(|it: char| it.is_ascii_digit());
            let ratio = at.checked_sub(1).and_then(|at| ratio(ratios[at]));
            if is_figure && (at == 0 || ratio.is_some()) {
                bars.push(Bar {
                    server: (*server).to_owned(),
                    figure: figure.to_owned(),
                    ratio,
                });
            }
        }
        Some(Self {
            heading: (*heading).to_owned(),
            bars,
        })
    }
}

/// The cells of a row; none if it is no row of a table.
fn cells(line: &str) -> Vec<&str> {
    let inside = line.strip_prefix('|').and_then(|it| it.strip_suffix('|'));
    let cells = inside.into_iter().flat_map(|it| it.split('|'));
    cells.map(str::trim).collect()
}

/// A ratio as the table shows it: `**1.57**`, or something else where there is none.
fn ratio(cell: &str) -> Option<f64> {
    let digits = cell.trim_matches('*').replace(',', "");
    digits.parse().ok().filter(|&it| it > 0.0)
}

/// What stands above the first table, without the command.
fn caption(text: &str) -> String {
    let above = text.lines().take_while(|line| !line.starts_with('|'));
    let above = above.collect::<Vec<_>>().join(" ");
    let parts = above.trim().trim_end_matches(':').split(';').map(str::trim);
    let parts = parts.filter(|it| !it.is_empty() && !it.starts_with('`'));
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{Job, Row, Table};
    use crate::report::tables;
    use crate::run::outcome::{Outcome, Rounds};

    fn bar(server: &str, figure: &str, ratio: Option<f64>) -> Bar {
        Bar {
            server: server.to_owned(),
            figure: figure.to_owned(),
            ratio,
        }
    }

    #[test]
    fn a_page_is_read() {
        let page = "\
# Page

| work | latchd / nobody | latchd | nobody |

<!-- proof -->
`a command`; latchd 0.1.0;
2026-11-16; 2 cores, Linux 6.1:

| work | figure | wanted |
| ---- | ------ | ------ |
| a    | op/s   | 1      |

| work | latchd / redis | latchd / dflockd | latchd               | redis              | dflockd      |
| ---- | -------------- | ---------------- | -------------------- | ------------------ | ------------ |
| a, op/s | **1,057** | -                | 260,993 (p99 428 µs) | 169 (p99 2.0 ms)   | not measured |
| b, p50  | -         | **0.94**         | 58 µs (p99 91 µs)    | -                  | 61 µs        |

| cost | latchd |
<!-- end of proof -->
";
        let chart = Chart::read(page).unwrap();
        assert_eq!(
            chart.caption,
            "latchd 0.1.0; 2026-11-16; 2 cores, Linux 6.1"
        );
        assert_eq!(chart.servers(), ["latchd", "redis", "dflockd"]);
        let [a, b] = &chart.groups[..] else {
            panic!("{chart:?}");
        };
        assert_eq!((&a.heading[..], &b.heading[..]), ("a, op/s", "b, p50"));
        let first = bar("latchd", "260,993", None);
        assert_eq!(a.bars, [first, bar("redis", "169", Some(1_057.0))]);
        let first = bar("latchd", "58 µs", None);
        assert_eq!(b.bars, [first, bar("dflockd", "61 µs", Some(0.94))]);
    }

    #[test]
    fn what_a_comparison_prints_is_read() {
        let rounds = |answers: u64| {
            let mut outcome = Outcome::new();
            (outcome.answers, outcome.takes) = (answers, answers);
            outcome.elapsed_ns = 1_000_000_000;
            outcome.take.saturating_record_n(58_000, answers);
            Some(Rounds::of(vec![outcome]))
        };
        let table = Table {
            names: ["latchd", "redis", "ceiling"].map(str::to_owned).into(),
            rows: vec![Row {
                job: Job::Plain,
                cells: vec![rounds(260_000), rounds(130_000), None],
            }],
        };
        let text = format!("{}\n{}", tables::measured_on(), tables::markdown(&table));
        let chart = Chart::read(&text).unwrap();
        assert_eq!(chart.groups[0].heading, Job::Plain.heading());
        let first = bar("latchd", "260,000", None);
        let bars = [first, bar("redis", "130,000", Some(2.0))];
        assert_eq!(chart.groups[0].bars, bars);
        assert_eq!(chart.subject, "latchd");
        let measured_on = tables::measured_on();
        assert_eq!(chart.caption, measured_on.trim().trim_end_matches(':'));
    }

    #[test]
    fn what_is_no_comparison_is_refused() {
        for (text, says) in [
            ("", "no table"),
            ("| work | figure |\n| --- | --- |\n| a | b |\n", "no table"),
            (
                "| work | a / b | a | b |\n| - | - | - | - |\n| x | 1 | 2 |\n",
                "cells",
            ),
        ] {
            let complaint = Chart::read(text).unwrap_err();
            assert!(complaint.contains(says), "{text}: {complaint}");
        }
    }
}
