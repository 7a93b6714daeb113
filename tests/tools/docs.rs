//! What README and docs say is what the code does: tables are made from the code and compared, the
//! example is run, links lead somewhere.
//!
//! After a change of an option or a verb, `UPDATE_DOCS=1 cargo test --test tools docs::` writes
//! them anew.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the documents has to fail"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use latchd::config;
use latchd::wire::{http, verbs};

fn document(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Compares what stands between two marks with what the code says.
fn check_table(name: &str, mark: &str, table: &str) {
    let (path, text) = document(name);
    let (begin, end) = (
        format!("<!-- {mark} -->\n"),
        format!("<!-- end of {mark} -->"),
    );
    let start = text.find(&begin).unwrap() + begin.len();
    let stop = text.find(&end).unwrap();
    if text[start..stop] == *table {
        return;
    }
    assert!(
        std::env::var_os("UPDATE_DOCS").is_some(),
        "the table of {mark} in {name} is out of date; run UPDATE_DOCS=1 cargo test --test tools docs::"
    );
    fs::write(path, format!("{}{table}{}", &text[..start], &text[stop..])).unwrap();
}

#[test]
fn the_page_of_settings_lists_every_setting() {
    check_table("docs/settings.md", "settings", &config::settings_markdown());
}

#[test]
fn the_protocol_page_lists_every_verb() {
    check_table("docs/protocol.md", "verbs", &verbs::protocol_markdown());
}

#[test]
fn the_page_about_http_lists_every_route() {
    check_table("docs/http.md", "routes", &http::routes::markdown());
}

/// The summary that stands before the table, written by hand.
#[test]
fn the_protocol_on_one_screen_names_every_verb() {
    let (_, page) = document("docs/protocol.md");
    let (summary, _) = page.split_once("<!-- verbs -->").unwrap();
    for row in &verbs::TABLE {
        assert!(
            summary.contains(&format!("`{}`", row.letters)),
            "`{}` is missing",
            row.letters
        );
    }
}

#[test]
fn the_readme_says_how_to_start_and_how_to_test() {
    let (_, readme) = document("README.md");
    assert!(readme.contains("\ncargo run --release"));
    assert!(readme.contains("\ncargo test "));
    assert!(readme.lines().count() <= 200, "the README is a front page");
    let gate = document(".ci/run").1;
    assert!(
        gate.contains("\ncargo test"),
        "the gate does not run the README's command"
    );
}

/// The part of a page between a heading and the end of its first block of this language.
fn example_under(name: &str, heading: &str, language: &str) -> String {
    let (_, page) = document(name);
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, example) = section.split_once(&format!("\n```{language}\n")).unwrap();
    example.split_once("```").unwrap().0.to_owned()
}

/// Held with a daemon on a free port; the work takes no time.
#[test]
fn the_first_conversation_of_the_protocol_page_works_as_it_is_shown() {
    let example = example_under("docs/protocol.md", "A first conversation", "bash");
    let daemon = Daemon::start();
    let place = format!("/dev/tcp/127.0.0.1/{}", daemon.port);
    let work = example.lines().find(|line| line.starts_with("sleep "));
    let example = example
        .replace("/dev/tcp/127.0.0.1/6388", &place)
        .replace(work.unwrap(), ":");
    assert!(example.contains(&place));
    let output = Command::new("bash")
        .args(["-euc", &example])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let fence = said
        .strip_prefix("ok, fence ")
        .and_then(|rest| rest.strip_suffix(", for 60 s\nok 60\nok\n"));
    assert!(
        fence.is_some_and(|fence| fence.parse::<u64>().is_ok()),
        "{said}"
    );
    assert!(output.status.success());
}

/// What the example of HTTP in the README prints, with a daemon on a free port.
#[test]
fn the_example_of_http_in_the_readme_works_as_it_is_shown() {
    if Command::new("curl").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no curl, so the example of HTTP was not run");
    }
    let example = example_under("README.md", "curl", "bash");
    let shown = example_under("README.md", "curl", "json");
    let daemon = Daemon::start();
    let example = example.replace("localhost:6389", &format!("127.0.0.1:{}", daemon.http_port));
    let output = Command::new("bash")
        .args(["-euc", &example.replace("curl ", "curl -sS ")])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(without_ids(&said), without_ids(&shown), "{said}");
}

/// In a file, and pasted into the prompt, where an empty line ends a block and values are shown.
#[test]
fn the_example_of_python_in_the_readme_works_in_a_file_and_at_the_prompt() {
    if Command::new("python3").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no python3, so the example of Python was not run");
    }
    let daemon = Daemon::start();
    let example = example_under("README.md", "Python", "python");
    let pasted = example.replace("6388", &daemon.port);
    assert_ne!(pasted, example);
    let run = |options: &[&str]| {
        let mut python = Command::new("python3")
            .args(options)
            .env_remove("PYTHONSTARTUP")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = python.stdin.take().unwrap();
        input.write_all(pasted.as_bytes()).unwrap();
        drop(input);
        let output = python.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        assert!(!errors.contains("Error"), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = run(&["-I", "-"]);
    let first = said.strip_prefix("fence ").unwrap().trim_end();
    let said = run(&["-I", "-q", "-i"]);
    let lines: Vec<&str> = said.lines().collect();
    let [fence, renewed, released] = lines[..] else {
        panic!("{said}");
    };
    let second = fence.strip_prefix("fence ").unwrap();
    assert!(first.parse::<u64>().unwrap() < second.parse::<u64>().unwrap());
    assert_eq!((renewed, released), ("['ok', '60']", "['ok']"));
}

/// Numbers and leases are other ones each time.
fn without_ids(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let (before, lease) = line.split_once("\"lease_id\":\"").unwrap_or((line, ""));
        let after = lease.split_once('"').map_or("", |(_, after)| after);
        format!("{before}{after}").replace(|c: char| c.is_ascii_digit(), "")
    });
    lines.collect()
}

/// Every family at `/metrics`: its name, its type, its help. What the system says of the process
/// differs from system to system.
fn metrics() -> Vec<(String, String, String)> {
    let daemon = Daemon::start();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{}", daemon.http_port)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let said = |mark: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        lines
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            .collect()
    };
    let types = said("# TYPE ");
    let helps = said("# HELP ");
    helps
        .into_iter()
        .filter(|(name, _)| !name.starts_with("process_"))
        .map(|(name, help)| (name.clone(), types[&name].clone(), help))
        .collect()
}

#[test]
fn the_page_about_monitoring_lists_every_metric() {
    let mut table = String::from("| metric | type | |\n|---|---|---|\n");
    for (name, kind, help) in metrics() {
        table.push_str(&format!("| `{name}` | {kind} | {help} |\n"));
    }
    check_table("docs/monitoring.md", "metrics", &table);
}

/// Those in the examples of what to watch.
#[test]
fn every_metric_that_the_page_about_monitoring_names_exists() {
    let names: BTreeSet<_> = metrics().into_iter().map(|(name, ..)| name).collect();
    let (_, page) = document("docs/monitoring.md");
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let families = ["lock_", "locks_", "latchd_", "connections_"];
    for word in words.filter(|word| families.iter().any(|it| word.starts_with(it) && word != it)) {
        let name = word.strip_suffix("_bucket").unwrap_or(word);
        assert!(names.contains(name), "there is no {name}");
    }
}

/// latchd on free ports, killed when dropped.
struct Daemon {
    child: Child,
    port: String,
    http_port: String,
}

impl Daemon {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_latchd"))
            .args(["--port", "0", "--http-port", "0"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut said = log.lines().map(|line| line.unwrap());
        let mut port_behind = |words: &str| {
            let place = said
                .by_ref()
                .find_map(|line| Some(line.split_once(words)?.1.to_owned()))
                .expect("it says where it listens");
            let digits = place.chars().take_while(char::is_ascii_digit);
            digits.collect::<String>()
        };
        let port = port_behind(" listens on 127.0.0.1:");
        let http_port = port_behind(" serves HTTP on 127.0.0.1:");
        Self {
            child,
            port,
            http_port,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The front page, the changes and every page in `docs`.
fn pages() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let names = fs::read_dir(docs).unwrap();
    let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
    let in_docs = names.filter(|name| name.ends_with(".md"));
    let others = ["README.md", "CHANGELOG.md"].map(str::to_owned);
    others
        .into_iter()
        .chain(in_docs.map(|name| format!("docs/{name}")))
        .collect()
}

#[test]
fn every_file_and_heading_the_documents_point_to_exists() {
    for name in pages() {
        let (path, text) = document(&name);
        let targets = text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let page = if file.is_empty() {
                path.clone()
            } else {
                path.with_file_name(file)
            };
            assert!(page.exists(), "{name} points to {target}");
            if !heading.is_empty() {
                let text = fs::read_to_string(page).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let is_there = headings.any(|line| anchor(line) == heading);
                assert!(is_there, "{name} points to {target}");
            }
        }
    }
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
