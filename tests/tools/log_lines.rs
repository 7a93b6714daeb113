//! docs/operating.md explains every line that the log has at level info and above: the lines are
//! taken from the source and looked up in its table.
//!
//! What a line has in the place of a value is written `…` there. A line that is not in the table has
//! to be put there, with what it means and what to do about it; a line in the table that nothing logs
//! any more has to go.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the source has to fail"
)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::source::rust_files;
use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::Settings;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Level and text of every call of a log macro, with `…` for what is filled in.
fn lines_of_the_source() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for file in rust_files(&root().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let text = without_comments(text);
        for level in ["error", "warn", "info"] {
            let call = format!("{level}!(");
            for (at, _) in text.match_indices(&call) {
                let is_name = |c: char| c.is_alphanumeric() || c == '_';
                if text[..at].chars().next_back().is_some_and(is_name) {
                    continue; // a longer name
                }
                let message = first_text(&text[at + call.len()..]);
                // One that is made elsewhere, such as the reason of a failed start, says what it is.
                if message.chars().any(char::is_alphabetic) {
                    found.insert((level.to_uppercase(), message));
                }
            }
        }
    }
    found
}

fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The first text in quotes, without what is filled in.
fn first_text(call: &str) -> String {
    let start = call.find('"').unwrap() + 1;
    let mut text = String::new();
    let mut chars = call[start..].chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next().unwrap() {
                '\n' => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                escaped => text.push(escaped),
            },
            '{' => {
                while chars.next().unwrap() != '}' {}
                text.push('…');
            }
            c => text.push(c),
        }
    }
    text
}

/// Level and text of every row of the table.
fn lines_of_the_page() -> BTreeSet<(String, String)> {
    let page = fs::read_to_string(root().join("docs/operating.md")).unwrap();
    let (_, table) = page.split_once("<!-- log lines -->\n").unwrap();
    let (table, _) = table.split_once("<!-- end of log lines -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [line, level, meaning] = cells[..] else {
            panic!("a row has a line, a level and a meaning: {row}");
        };
        assert!(meaning.len() > 10, "a row without a meaning: {row}");
        let line = line.trim_start_matches("| `").trim_end_matches('`');
        (level.to_owned(), line.to_owned())
    })
    .collect()
}

#[test]
fn every_line_of_the_log_is_explained_and_no_other() {
    let (source, page) = (lines_of_the_source(), lines_of_the_page());
    assert!(source.len() > 20, "{source:?}");
    let list = |lines: Vec<&(String, String)>| {
        let lines = lines.iter().map(|(level, line)| format!("{level}  {line}"));
        lines.collect::<Vec<_>>().join("\n  ")
    };
    let missing: Vec<_> = source.difference(&page).collect();
    assert!(
        missing.is_empty(),
        "docs/operating.md does not explain these lines of the log:\n  {}",
        list(missing)
    );
    let gone: Vec<_> = page.difference(&source).collect();
    assert!(
        gone.is_empty(),
        "docs/operating.md explains lines that nothing logs:\n  {}",
        list(gone)
    );
}

#[test]
fn texts_are_read_as_the_compiler_reads_them() {
    for (call, text) in [
        (r#""a {x} b {}", y)"#, "a … b …"),
        (r#"key = k, fence; "ended")"#, "ended"),
        ("\"one \\\n     two\")", "one two"),
        (r#""say \"x\"")"#, r#"say "x""#),
    ] {
        assert_eq!(first_text(call), text);
    }
}

thread_local! {
    /// What this thread has logged at level info and above; the other tests have threads of their
    /// own.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

/// What was logged since the last call.
fn lines() -> Vec<String> {
    LINES.take()
}

impl log::Log for Lines {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LINES.with_borrow_mut(|it| it.push(record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

fn come_back(pipes: &mut Pipes, id: &str, times: usize) {
    come_back_with(pipes, id, 100, times);
}

fn come_back_with(pipes: &mut Pipes, id: &str, ttl_s: u32, times: usize) {
    for _ in 0..=times {
        let who = pipes.connect();
        pipes.ask(who, &format!("attach {id} {ttl_s} s3cret"));
        pipes.half_close(who);
        pipes.pass(Millis::from_secs(1));
        pipes.settle();
    }
}

#[test]
fn a_client_that_comes_back_again_and_again_is_told_of_once_a_minute() {
    log::set_logger(&Lines).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    come_back(&mut pipes, "nfs/flaps", 5);
    come_back(&mut pipes, "nfs/moves", 2);
    assert_eq!(lines(), [""; 0]);
    come_back(&mut pipes, "nfs/later", 59); // the minute ends meanwhile
    let line = |client, times, clients, all| {
        format!(
            "client {client} came back {times} times within a minute; \
             {clients} clients came back {all} times"
        )
    };
    let logged = lines();
    let [first] = &logged[..] else {
        panic!("one line in a minute: {logged:?}");
    };
    assert!(first.starts_with("client nfs/later came back 5"), "{first}");
    assert!(first.contains("; 3 clients came back "), "{first}");
    // Whoever comes back once or twice is not told of.
    pipes.pass(Millis::from_secs(60));
    pipes.settle();
    lines();
    come_back(&mut pipes, "nfs/moves", 1);
    pipes.pass(Millis::from_secs(60));
    pipes.settle();
    assert_eq!(lines(), [""; 0]);
    come_back(&mut pipes, "nfs/flaps", 6);
    pipes.pass(Millis::from_secs(60));
    pipes.settle();
    assert_eq!(lines(), [line("nfs/flaps", 6, 1, 6)]);
    // One that is kept for no time is a new client each time, and comes back all the same.
    come_back_with(&mut pipes, "nfs/brief", 0, 4);
    pipes.pass(Millis::from_secs(60));
    pipes.settle();
    assert_eq!(lines(), [line("nfs/brief", 4, 1, 4)]);
}
