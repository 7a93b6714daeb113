//! What README and docs say is what the code does: tables are made from the code and compared, the
//! example is run, links lead somewhere.
//!
//! After a change of an option or a verb, `UPDATE_DOCS=1 cargo test --test docs` writes them anew.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the documents has to fail"
)]

use std::fs;
use std::io::{BufRead, BufReader};
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
        "the table of {mark} in {name} is out of date; run UPDATE_DOCS=1 cargo test --test docs"
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
    let gate = document(".ci/run").1;
    assert!(
        gate.contains("\ncargo test"),
        "the gate does not run the README's command"
    );
}

/// The conversation in the README, held with a daemon on a free port; the work takes no time.
#[test]
fn the_example_in_the_readme_works_as_it_is_shown() {
    let (_, readme) = document("README.md");
    let (_, example) = readme.split_once("```bash\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
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

/// latchd on a free port, killed when dropped.
struct Daemon {
    child: Child,
    port: String,
}

impl Daemon {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_latchd"))
            .args(["--port", "0", "--http-port", "off"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let said = log.lines().map(|line| line.unwrap());
        let place = said
            .filter_map(|line| Some(line.split_once(" listens on 127.0.0.1:")?.1.to_owned()))
            .next();
        let port = place.expect("it says where it listens");
        Self { child, port }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

const PAGES: [&str; 9] = [
    "README.md",
    "CHANGELOG.md",
    "docs/benchmarks.md",
    "docs/design.md",
    "docs/http.md",
    "docs/journal.md",
    "docs/operating.md",
    "docs/protocol.md",
    "docs/settings.md",
];

#[test]
fn every_file_and_heading_the_documents_point_to_exists() {
    for name in PAGES {
        let (path, text) = document(name);
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
