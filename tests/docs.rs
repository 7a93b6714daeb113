//! What README and docs say is what the code does: tables are made from the code and compared.
//!
//! After a change of an option or a verb, `UPDATE_DOCS=1 cargo test --test docs` writes them anew.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the documents has to fail"
)]

use std::fs;
use std::path::{Path, PathBuf};

use latchd::config;
use latchd::wire::verbs;

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
fn the_readme_lists_every_setting() {
    check_table("README.md", "settings", &config::settings_markdown());
}

#[test]
fn the_protocol_page_lists_every_verb() {
    check_table("docs/protocol.md", "verbs", &verbs::protocol_markdown());
}

#[test]
fn the_readme_names_every_verb() {
    let (_, readme) = document("README.md");
    for row in &verbs::TABLE {
        assert!(
            readme.contains(&format!("`{}`", row.letters)),
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

#[test]
fn every_file_the_documents_point_to_exists() {
    for name in [
        "README.md",
        "docs/protocol.md",
        "docs/benchmarks.md",
        "CHANGELOG.md",
    ] {
        let (path, text) = document(name);
        for target in text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap())
        {
            if !target.contains("://") {
                assert!(
                    path.with_file_name(target).exists(),
                    "{name} points to {target}"
                );
            }
        }
    }
}
