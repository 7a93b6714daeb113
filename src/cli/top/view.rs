//! What `latch top` shows: figures and rates, the longest waits, what is held, who is connected. Lines of text from what
//! servers say, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::cli::duration::short;
use crate::cli::output::{Output, Style, Table, cut, escaped};
use crate::cli::show::{Row, cells, is_like, rows};

/// Colours are the screen's own business: there is always a terminal.
const SCREEN: Output = Output {
    json: false,
    terminal: true,
    colours: true,
};
/// The same for those who want none.
const PLAIN: Output = Output {
    colours: false,
    ..SCREEN
};

/// What was told at one time, by all servers together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) documents: Vec<Value>,
    /// How long the first in the queue of a key has waited, in seconds, of those that most wait for.
    pub(crate) waits: BTreeMap<String, f64>,
    /// What went wrong instead, escaped already.
    pub(crate) trouble: Option<String>,
}

impl Sample {
    fn total(&self, name: &str) -> u64 {
        let of = |document: &Value| document["totals"][name].as_u64().unwrap_or(0);
        self.documents.iter().map(of).sum()
    }

    fn connections(&self) -> u64 {
        let of = |document: &Value| document["connections"].as_u64().unwrap_or(0);
        self.documents.iter().map(of).sum()
    }

    /// The keys that most wait for.
    pub(crate) fn most_wanted(&self, count: usize) -> Vec<String> {
        let mut rows = self.rows();
        rows.retain(|row| row.waiters > 0);
        rows.sort_by_key(|row| std::cmp::Reverse(row.waiters));
        rows.truncate(count);
        rows.into_iter().map(|row| row.key).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let documents = self.documents.iter();
        documents
            .flat_map(|document| rows(document, false))
            .collect()
    }
}

/// Everything there is to show.
pub(crate) struct View<'a> {
    pub(crate) servers: &'a str,
    pub(crate) last: &'a Sample,
    pub(crate) before: Option<&'a Sample>,
    /// Only keys like this; and whether it is being typed.
    pub(crate) filter: &'a str,
    pub(crate) is_typing: bool,
    pub(crate) no_colours: bool,
}

impl View<'_> {
    /// The lines, none wider than the screen, the last one at its bottom.
    pub(crate) fn lines(&self, (columns, room): (usize, usize)) -> Vec<String> {
        let output = if self.no_colours { PLAIN } else { SCREEN };
        let mut lines = self.head(output, columns);
        let rows = self.wanted_rows();
        let left = room.saturating_sub(lines.len() + 1);
        // A third for each part; the last one takes what the others leave.
        let (mut waited, mut held): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.waiters > 0);
        let longest = |row: &Row| self.last.waits.get(&row.key).copied().unwrap_or(-1.0);
        waited.sort_by(|a, b| {
            let by_time = longest(b).total_cmp(&longest(a));
            by_time.then_with(|| b.waiters.cmp(&a.waiters))
        });
        held.sort_by(|a, b| a.key.cmp(&b.key));
        let clients = self.clients();
        let third = left / 3;
        lines.extend(self.queues(output, &waited, third.max(4), columns));
        lines.extend(section(output, "Held", &held, third.max(4), columns));
        let used = lines.len();
        lines.extend(people(
            output,
            &clients,
            room.saturating_sub(used + 1),
            columns,
        ));
        lines.truncate(room.saturating_sub(1));
        lines.resize(room.saturating_sub(1), String::new());
        lines.push(self.foot(output, columns));
        lines
    }

    fn head(&self, output: Output, columns: usize) -> Vec<String> {
        let last = self.last;
        let mut lines = vec![cut(
            &format!(
                "latch top   {}   {} connections",
                escaped(self.servers.as_bytes()),
                last.connections()
            ),
            columns,
        )];
        lines[0] = output.paint(Style::Bold, &lines[0]);
        if let Some(trouble) = &last.trouble {
            let trouble = cut(trouble, columns);
            lines.push(output.paint(Style::Red, &trouble));
            return lines;
        }
        let rates: Vec<String> = [
            ("grants", "grants"),
            ("releases", "releases"),
            ("expiries", "expired"),
            ("disconnects", "left"),
            ("breaks", "broken"),
            ("deadlocks", "deadlocks"),
        ]
        .iter()
        .map(|(field, name)| format!("{name} {}/s", self.rate(field)))
        .collect();
        lines.push(cut(&rates.join("   "), columns));
        let waiting: u64 = last.rows().iter().map(|row| row.waiters).sum();
        let memory = last.total("memory_bytes") as f64 / (1 << 20) as f64;
        lines.push(cut(
            &format!(
                "held {}   waiting {waiting}   range locks {}   values {}   lists {}   memory {memory:.1} MiB   longest turn {:.1} ms",
                last.total("holds"),
                last.total("range_locks"),
                last.total("kv_entries"),
                last.total("lists"),
                last.total("longest_turn_us") as f64 / 1e3,
            ),
            columns,
        ));
        lines.push(String::new());
        lines
    }

    fn queues(&self, output: Output, rows: &[&Row], room: usize, columns: usize) -> Vec<String> {
        let mut table = Table::new(&["KEY", "KIND", "HELD", "WAIT", "LONGEST", "HOLDER"]);
        for row in rows.iter().take(room.saturating_sub(3)) {
            let mut cells = cells(row);
            cells[0].0 = cut(&cells[0].0, columns / 2);
            let longest = self.last.waits.get(&row.key);
            cells[4].0 = longest.map_or_else(|| "-".to_owned(), |it| short(*it));
            table.row(cells);
        }
        titled(output, "Longest waits", rows.len(), &table)
    }

    /// How often in a second, since the sample before.
    fn rate(&self, field: &str) -> String {
        let Some(before) = self.before else {
            return "-".to_owned();
        };
        let seconds = self.last.at.saturating_sub(before.at).as_secs_f64();
        // After a restart a server counts from the beginning.
        let count = self.last.total(field).saturating_sub(before.total(field));
        match seconds > 0.0 {
            true => format!("{:.0}", count as f64 / seconds),
            false => "-".to_owned(),
        }
    }

    fn wanted_rows(&self) -> Vec<Row> {
        let mut rows = self.last.rows();
        rows.retain(|row| self.is_wanted(&row.key));
        rows
    }

    /// A filter without wildcards is any part of a key.
    fn is_wanted(&self, key: &str) -> bool {
        match self.filter.contains(['*', '?']) {
            true => is_like(self.filter.as_bytes(), key.as_bytes()),
            false => key.contains(self.filter),
        }
    }

    fn clients(&self) -> Vec<&Value> {
        let documents = self.last.documents.iter();
        let mut clients: Vec<&Value> = documents
            .flat_map(|document| document["clients"].as_array().into_iter().flatten())
            .collect();
        let weight = |it: &&Value| {
            let of = |name: &str| it[name].as_u64().unwrap_or(0);
            std::cmp::Reverse((of("waiting"), of("held")))
        };
        clients.sort_by_key(weight);
        clients
    }

    fn foot(&self, output: Output, columns: usize) -> String {
        let filter = escaped(self.filter.as_bytes());
        let text = match (self.is_typing, filter.is_empty()) {
            (true, _) => format!("/{filter}▏  Enter: keep   Esc: all"),
            (false, true) => "q: quit   /: filter".to_owned(),
            (false, false) => format!("q: quit   /: filter   only {filter}"),
        };
        output.paint(Style::Dim, &cut(&text, columns))
    }
}

fn section(output: Output, title: &str, rows: &[&Row], room: usize, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["KEY", "KIND", "HELD", "WAIT", "LEASE", "HOLDER"]);
    let shown = room.saturating_sub(3);
    for row in rows.iter().take(shown) {
        let mut cells = cells(row);
        cells[0].0 = cut(&cells[0].0, columns / 2);
        table.row(cells);
    }
    titled(output, title, rows.len(), &table)
}

fn people(output: Output, clients: &[&Value], room: usize, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["NAME", "ADDRESS", "HELD", "WAIT", "AGE"]);
    for it in clients.iter().take(room.saturating_sub(3)) {
        let text = |name: &str| escaped(it[name].as_str().unwrap_or("-").as_bytes());
        let number = |name: &str| it[name].as_u64().unwrap_or(0).to_string();
        table.row([
            (cut(&text("name"), columns / 3), Style::Cyan),
            (cut(&text("address"), columns / 3), Style::Plain),
            (number("held"), Style::Green),
            (number("waiting"), Style::Yellow),
            (short(it["age_s"].as_f64().unwrap_or(0.0)), Style::Plain),
        ]);
    }
    titled(output, "Connections", clients.len(), &table)
}

fn titled(output: Output, title: &str, count: usize, table: &Table) -> Vec<String> {
    let mut lines = vec![format!("{} {count}", output.paint(Style::Bold, title))];
    match table.len() {
        0 => lines.push(output.paint(Style::Dim, "none")),
        _ => lines.extend(table.lines(output)),
    }
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(at_s: u64, grants: u64) -> Sample {
        Sample {
            at: Duration::from_secs(at_s),
            documents: vec![json!({
                "connections": 3,
                "clients": [{"connection": 1, "name": "a@b:1", "address": "x", "age_s": 5, "held": 1, "waiting": 0}],
                "locks": [
                    {"key": "quiet", "owner_conn_id": 1, "lease_expires_in_s": 9, "waiters": 0, "fence": 4},
                    {"key": "busy\u{1b}[2J", "owner_conn_id": 1, "lease_expires_in_s": 9, "waiters": 7, "fence": 5},
                ],
                "totals": {"grants": grants, "holds": 2},
            })],
            waits: [("busy\u{1b}[2J".to_owned(), 125.0)].into(),
            trouble: None,
        }
    }

    fn view<'a>(last: &'a Sample, before: &'a Sample, filter: &'a str) -> View<'a> {
        View {
            servers: "localhost",
            last,
            before: Some(before),
            filter,
            is_typing: false,
            no_colours: true,
        }
    }

    #[test]
    fn everything_there_is_to_see_is_shown_and_nothing_else() {
        let (before, last) = (sample(10, 100), sample(12, 300));
        let lines = view(&last, &before, "").lines((100, 30));
        assert_eq!(lines.len(), 30, "the last line is at the bottom");
        let text = lines.join("\n");
        for part in [
            "grants 100/s",
            "waiting 7",
            "2m05s",
            "held 2",
            "quiet",
            "busy\\u{1b}[2J",
            "a@b:1",
            "q: quit",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        assert!(lines.iter().all(|line| line.chars().count() <= 100));
    }

    #[test]
    fn a_filter_is_a_part_of_a_key_or_a_pattern() {
        let (before, last) = (sample(10, 0), sample(11, 0));
        for (filter, is_shown) in [("qui", true), ("q*t", true), ("iet", true), ("q?t", false)] {
            let text = view(&last, &before, filter).lines((80, 24)).join("\n");
            assert_eq!(text.contains("quiet  "), is_shown, "{filter}:\n{text}");
        }
    }

    #[test]
    fn small_screens_and_trouble_are_no_trouble() {
        let (before, mut last) = (sample(10, 0), sample(11, 0));
        for size in [(1, 1), (20, 3), (80, 5), (3, 40)] {
            let lines = view(&last, &before, "").lines(size);
            assert_eq!(lines.len(), size.1, "{size:?}");
        }
        last.trouble = Some("no server".to_owned());
        last.documents.clear();
        let text = view(&last, &before, "").lines((80, 24)).join("\n");
        assert!(text.contains("no server"), "{text}");
    }
}
