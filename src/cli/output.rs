//! What people and programs read: colours and aligned tables on a terminal, tabs or JSON elsewhere.
//!
//! Keys, values and names are chosen by others. In tables, messages and JSON they are escaped: no
//! client can move the cursor of a terminal, or make a text look like another. Values are escaped
//! on a terminal, and go into a file or a pipe as they are.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::exit::{Exit, Fail};
use super::sys;
use crate::escape;
pub(crate) use crate::escape::bytes as escaped;

/// How something is shown on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// Headings.
    Bold,
    /// What is less important.
    Dim,
    /// What is well.
    Green,
    /// What waits.
    Yellow,
    /// What is wrong.
    Red,
    /// Names.
    Cyan,
}

impl Style {
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Red => "\x1b[31m",
            Self::Cyan => "\x1b[36m",
        }
    }
}

/// What standard output is, and what was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) terminal: bool,
    pub(crate) colours: bool,
}

impl Output {
    /// `no_colour` is whether the environment has a `NO_COLOR` that is not empty, or a terminal that is dumb.
    pub(crate) fn new(json: bool, no_colour: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            json,
            terminal,
            colours: terminal && !no_colour && !json,
        }
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        match self.colours && style != Style::Plain {
            true => format!("{}{text}\x1b[0m", style.code()),
            false => text.to_owned(),
        }
    }

    /// One line.
    pub(crate) fn line(self, text: &str) -> Result<(), Fail> {
        self.raw(format!("{text}\n").as_bytes())
    }

    /// One JSON text on a line.
    pub(crate) fn json(self, value: &Value) -> Result<(), Fail> {
        self.line(&json(value))
    }

    /// A value of somebody's: as it is, or escaped on a terminal.
    pub(crate) fn value(self, bytes: &[u8]) -> Result<(), Fail> {
        self.raw(&self.value_line(bytes))
    }

    /// The line that shows a value.
    pub(crate) fn value_line(self, bytes: &[u8]) -> Vec<u8> {
        match self.terminal {
            true => format!("{}\n", escaped(bytes)).into_bytes(),
            false => [bytes, b"\n"].concat(),
        }
    }

    /// An output that is closed, or open for reading only, is an error. `table::prints` says which
    /// commands are refused with such an output before they do anything.
    pub(crate) fn check(self) -> Result<(), Fail> {
        sys::why_no_output().map_or(Ok(()), |why| Err(cannot_write(why)))
    }

    /// Bytes, at once.
    pub(crate) fn raw(self, bytes: &[u8]) -> Result<(), Fail> {
        self.check()?;
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|error| Fail::output(&error))
    }

    /// Bytes that have to be read: a reader that has gone is an error, too.
    pub(crate) fn must_be_read(self, bytes: &[u8]) -> Result<(), Fail> {
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|error| cannot_write(&error.to_string()))
    }

    /// A table: aligned with a heading on a terminal, otherwise lines with tabs and no heading.
    pub(crate) fn table(self, table: &Table) -> Result<(), Fail> {
        self.raw(table.text(self).as_bytes())
    }
}

fn cannot_write(why: &str) -> Fail {
    let message = format!("cannot write to standard output: {why}");
    Fail::new(Exit::CANNOT_WRITE, message)
}

/// Rows of cells. Cells hold what is to be read, already escaped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn text(&self, output: Output) -> String {
        let mut text = String::new();
        if !output.terminal {
            for row in &self.rows {
                let cells: Vec<_> = row.iter().map(|(cell, _)| cell.as_str()).collect();
                text.push_str(&cells.join("\t"));
                text.push('\n');
            }
            return text;
        }
        for line in self.lines(output) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// Aligned lines, the heading first. Numbers stand at the right of their column.
    pub(crate) fn lines(&self, output: Output) -> Vec<String> {
        let is_digit = |c: char| c.is_ascii_digit();
        let is_number = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            // Times and counts; an address begins with a digit, too.
            cells.all(|(cell, _)| cell == "-" || cell.starts_with(is_digit) && !cell.contains(':'))
        };
        let columns: Vec<(usize, bool)> = (0..self.headings.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let widest = cells.map(|(cell, _)| width(cell)).max().unwrap_or(0);
                (widest.max(width(self.headings[column])), is_number(column))
            })
            .collect();
        let headings = self.headings.iter();
        let heading: Vec<_> = headings.map(|it| ((*it).to_owned(), Style::Bold)).collect();
        let rows = std::iter::once(&heading).chain(&self.rows);
        rows.map(|row| aligned(row, &columns, output)).collect()
    }
}

fn aligned(row: &[(String, Style)], columns: &[(usize, bool)], output: Output) -> String {
    let mut line = String::new();
    for (index, ((cell, style), (wide, right))) in row.iter().zip(columns).enumerate() {
        let blanks = " ".repeat(wide.saturating_sub(width(cell)));
        let cell = output.paint(*style, cell);
        if index > 0 {
            line.push_str("  ");
        }
        match *right {
            true => line.push_str(&(blanks + &cell)),
            false => line.push_str(&(cell + &blanks)),
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// How many columns a text takes: characters, which is right for what is left after escaping but for
/// the few that are two columns wide.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

/// Bytes of others in quotes, for messages.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    format!("'{}'", escaped(bytes))
}

/// At most so many characters, with a mark where something was cut off.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(columns.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A JSON text on one line, in which a terminal finds nothing to obey.
pub(crate) fn json(value: &Value) -> String {
    escape::json(&value.to_string())
}

/// Bytes as a JSON text: as they are if they are UTF-8, otherwise with U+FFFD in places.
pub(crate) fn json_text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINAL: Output = Output {
        json: false,
        terminal: true,
        colours: true,
    };

    #[test]
    fn tables_are_aligned_on_a_terminal_and_tabs_elsewhere() {
        let mut table = Table::new(&["KEY", "WAIT"]);
        table.row([
            ("a".to_owned(), Style::Cyan),
            ("12".to_owned(), Style::Plain),
        ]);
        table.row([
            ("longer".to_owned(), Style::Cyan),
            ("3".to_owned(), Style::Plain),
        ]);
        let plain = Output {
            colours: false,
            ..TERMINAL
        };
        assert_eq!(
            table.text(plain),
            "KEY     WAIT\na         12\nlonger     3\n"
        );
        assert!(table.text(TERMINAL).contains("\x1b[36ma\x1b[0m"));
        let pipe = Output {
            terminal: false,
            ..plain
        };
        assert_eq!(table.text(pipe), "a\t12\nlonger\t3\n");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("größe", 4), "grö…");
    }
}
