//! The examples of docs/http.md, run from top to bottom with a daemon that has just been started: each
//! prints what the page shows below it, ids and times apart, and no route is without one.
//!
//! They are commands for bash and curl. Where there is no curl the test says so and is skipped.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the page has to fail"
)]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use latchd::wire::http::routes;
use serde_json::{Deserializer, Value};

/// What the examples call the daemon.
const PLACE: &str = "localhost:6389";

/// What no two runs have in common. Of these only the type is compared.
const OTHER_EACH_TIME: [&str; 23] = [
    "acquired_ms",
    "address",
    "age_ms",
    "connection",
    "connections",
    "current_expiry_ms",
    "epoch",
    "fencing_token",
    "id",
    "lease_expiry_ms",
    "lease_id",
    "lease_left_ms",
    "line_port",
    "op_latency_us",
    "seen_ms",
    "since_ms",
    "totals",
    "ttl_ms",
    "turn_us",
    "uptime_ms",
    "version",
    "memory_bytes",
    "recommended_retry_ms",
];

/// A part of the page between two fences: the word behind the first one, and what is in it.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("\n```").skip(1).step_by(2);
    parts.map(|part| part.split_once('\n').unwrap()).collect()
}

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/http.md")).unwrap()
}

#[test]
fn every_example_prints_what_the_page_shows() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no curl, so the examples of docs/http.md were not run");
        return;
    }
    let page = page();
    let blocks = blocks(&page);
    let mut reader = Reader::start();
    let mut run = 0;
    for pair in blocks.windows(2) {
        let [(language, commands), (_, shown)] = pair else {
            unreachable!("windows of two")
        };
        if *language != "bash" {
            continue;
        }
        match commands {
            it if !it.contains("curl ") => reader.preamble.push_str(it),
            it if it.contains("curl -N ") => reader.listen(it, shown),
            it => reader.ask(it, shown),
        }
        run += commands.matches("curl ").count();
    }
    assert!(run > 40, "only {run} commands were found");
}

/// Somebody who tries the page.
struct Reader {
    daemon: Child,
    place: String,
    /// What is set in every shell.
    preamble: String,
    /// Of the last grant.
    lease: String,
    fence: u64,
    /// What runs beside the rest.
    waiting: Vec<Child>,
}

impl Reader {
    fn start() -> Self {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_latchd"))
            .args(["--port", "0", "--http-port", "0"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(daemon.stderr.take().unwrap()).lines();
        let place = log
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| {
                let (_, rest) = line.split_once(" serves HTTP on ")?;
                Some(rest.split_once(": ")?.0.to_owned())
            })
            .expect("it says where it serves HTTP");
        Self {
            daemon,
            place,
            preamble: String::new(),
            lease: String::new(),
            fence: 0,
            waiting: Vec::new(),
        }
    }

    /// A shell that runs this.
    fn shell(&self, script: &str) -> Command {
        let script = format!(
            "{}\nlease={}\nfence={}\n{}",
            self.preamble,
            self.lease,
            self.fence,
            script
                .replace(PLACE, &self.place)
                .replace("curl ", "curl -sS ")
        );
        let mut bash = Command::new("bash");
        bash.args(["-euc", &script]).stdout(Stdio::piped());
        bash
    }

    /// Runs these commands, one after the other, and compares what each prints.
    fn ask(&mut self, commands: &str, shown: &str) {
        let mut script = String::new();
        let mut count = 0;
        for line in commands.lines() {
            if let Some(line) = line.strip_suffix(" &") {
                self.waiting.push(self.shell(line).spawn().unwrap());
                let place = if line.contains("/v1/ranges/") {
                    "ranges/a.db"
                } else {
                    "who/job"
                };
                self.until(place, |it| it["waiter_count"] == 1);
            } else if line.starts_with("curl ") {
                script.push_str(&format!("{line}\nprintf '\\036'\n"));
                count += 1;
            } else if line.contains("$(") {
                script.push_str(line);
                script.push('\n');
            } else {
                // The lease and the fence of the page: the reader has others.
                assert!(
                    line.starts_with("lease=") || line.starts_with("fence="),
                    "{line}"
                );
            }
        }
        let output = self
            .shell(&script)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "{commands}");
        let said = String::from_utf8(output.stdout).unwrap();
        let said: Vec<_> = said.split_terminator('\x1e').collect();
        assert_eq!(said.len(), count, "{commands}");
        for (said, shown) in said.iter().zip(answers(shown, count)) {
            self.compare(said, &shown);
        }
    }

    fn compare(&mut self, said: &str, shown: &str) {
        if let Some(beginning) = shown.strip_suffix('…') {
            assert!(said.starts_with(beginning), "not as shown: {said}");
            return;
        }
        let answer: Value = serde_json::from_str(said).unwrap_or_else(|_| panic!("{said}"));
        let wanted: Value = serde_json::from_str(shown).unwrap();
        let (mut left, mut right) = (answer.clone(), wanted);
        blur(&mut left);
        blur(&mut right);
        assert_eq!(left, right, "the page shows something else than {said}");
        if let (Some(lease), Some(fence)) = (
            answer["lease_id"].as_str(),
            answer["fencing_token"].as_u64(),
        ) {
            (self.lease, self.fence) = (lease.to_owned(), fence);
        }
    }

    /// Reads the first event of each stream. The page shows them in the same order.
    fn listen(&self, commands: &str, shown: &str) {
        let mut events = shown.split("\n\n").filter(|it| it.starts_with("event: "));
        for command in commands.lines() {
            let mut curl = self.shell(&command.replace("curl -N", "exec curl -N"));
            let mut curl = curl.spawn().unwrap();
            let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines();
            self.make_happen(command);
            let event = paragraph(&mut lines);
            for (said, shown) in event.iter().zip(events.next().unwrap().lines()) {
                match shown.strip_suffix('…') {
                    Some(beginning) => assert!(said.starts_with(beginning), "{said}"),
                    None => assert_eq!(said, shown),
                }
            }
            curl.kill().unwrap();
            curl.wait().unwrap();
            self.until("stats", |stats| {
                let totals = &stats["totals"];
                totals["signal_channels"] == 0 && totals["watch_channels"] == 0
            });
        }
    }

    /// Does what the page shows that a stream tells, as soon as it listens.
    fn make_happen(&self, command: &str) {
        let (listeners, path, body) = if command.contains("/v1/signals") {
            (
                "signal_channels",
                "signals/evt.done",
                r#"{"payload":"all of it"}"#,
            )
        } else if command.contains("/v1/watch?") {
            (
                "watch_channels",
                "locks/job.1/acquire",
                r#"{"owner_id":"me","ttl_ms":1}"#,
            )
        } else {
            return;
        };
        self.until("stats", |stats| stats["totals"][listeners] == 1);
        let line = format!("curl -H \"$json\" {PLACE}/v1/{path} -d '{body}'");
        assert!(self.shell(&line).output().unwrap().status.success());
    }

    /// Asks until the answer is so.
    fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) {
        let line = format!("curl {PLACE}/v1/{path}");
        loop {
            let output = self.shell(&line).output().unwrap();
            if is_so(&serde_json::from_slice(&output.stdout).unwrap()) {
                return;
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for child in self.waiting.iter_mut().chain([&mut self.daemon]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The answers that a block shows: JSON values, or lines if it is no JSON.
fn answers(shown: &str, count: usize) -> Vec<String> {
    let values: Result<Vec<Value>, _> = Deserializer::from_str(shown).into_iter().collect();
    let answers: Vec<_> = match values {
        Ok(values) => values.iter().map(Value::to_string).collect(),
        Err(_) => shown.lines().map(str::to_owned).collect(),
    };
    assert_eq!(
        answers.len(),
        count,
        "the page shows another number of answers: {shown}"
    );
    answers
}

/// Lines up to an empty one.
fn paragraph(lines: &mut Lines<BufReader<ChildStdout>>) -> Vec<String> {
    lines
        .map(|line| line.unwrap().trim_end().to_owned())
        .take_while(|line| !line.is_empty())
        .collect()
}

/// Takes out what is another one each time, and leaves its type.
fn blur(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_blurred = OTHER_EACH_TIME.contains(&name.as_str());
                match value {
                    Value::Number(_) if is_blurred => *value = Value::from(0),
                    Value::String(_) if is_blurred => *value = Value::from(""),
                    Value::Object(fields) if is_blurred => fields.values_mut().for_each(blur_all),
                    _ => blur(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(blur),
        _ => {}
    }
}

fn blur_all(value: &mut Value) {
    match value {
        Value::Number(_) => *value = Value::from(0),
        Value::Object(fields) => fields.values_mut().for_each(blur_all),
        _ => {}
    }
}

#[test]
fn every_route_has_an_example() {
    let page = page();
    let commands: Vec<_> = blocks(&page)
        .into_iter()
        .filter(|(language, _)| *language == "bash")
        .flat_map(|(_, text)| text.lines())
        .filter_map(asked_by)
        .collect();
    for (method, template, operation) in routes::all() {
        assert!(
            commands
                .iter()
                .any(|(by, path)| *by == method && is_path_of(path, template)),
            "there is no example of {operation}: {method} {template}"
        );
    }
}

/// Method and path of a line with curl in it.
fn asked_by(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once(PLACE)?;
    let path = rest.split([' ', '\'', '?', '|']).next()?;
    let method = match before.split_once("-X ") {
        Some((_, method)) => method.split(' ').next()?,
        None if rest.contains(" -d ") => "POST",
        None => "GET",
    };
    Some((method, path))
}

fn is_path_of(path: &str, template: &str) -> bool {
    path.split('/').count() == template.split('/').count()
        && path
            .split('/')
            .zip(template.split('/'))
            .all(|(part, place)| part == place || place.starts_with('{'))
}
