//! Paths are written down once: in the table of routes, for everybody else to ask.

use std::fs;
use std::path::Path;

use latchd::wire::http::{Decoded, Reader, routes};

use super::source::rust_files;

#[test]
fn only_the_table_knows_paths() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut beginnings: Vec<String> = routes::all()
        .map(|(_, template, _)| template.split('{').next().unwrap().to_owned())
        .filter(|it| it != "/")
        .collect();
    beginnings.push("/v1".to_owned());
    let mut complaints = Vec::new();
    for file in rust_files(&root.join("src")) {
        let is_test = file.to_string_lossy().ends_with("_tests.rs");
        if is_test || file.ends_with("wire/http/routes.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            if beginnings
                .iter()
                .any(|it| line.contains(&format!("\"{it}")))
            {
                complaints.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The page has an example for every route, and every example is a request.
#[test]
fn the_page_shows_every_route_by_example() {
    let page = include_str!("../../docs/http.md");
    let mut missing: Vec<&str> = routes::all().map(|(.., operation)| operation).collect();
    // A line that ends with a backslash goes on in the next one.
    let page = page.replace("\\\n", " ");
    let examples = page.lines().filter(|line| line.starts_with("curl "));
    for example in examples {
        let route = route_of(example);
        missing.retain(|it| *it != route.row().operation);
    }
    assert!(missing.is_empty(), "no example for {missing:?}");
}

/// Where the request leads that this command sends.
fn route_of(example: &str) -> routes::Route {
    let example = &example.replace("'$lease'", "x").replace("'$fence'", "7");
    let words: Vec<&str> = example.split_whitespace().collect();
    let after = |option: &str| {
        let at = words.iter().position(|it| *it == option)?;
        words.get(at + 1).copied()
    };
    let url = words.iter().map(|it| it.trim_matches('\''));
    let url = url
        .filter_map(|it| it.strip_prefix("localhost:6389"))
        .next();
    let target = url
        .unwrap_or_else(|| panic!("{example}"))
        .replace("$fence", "7");
    let body = example
        .split_once(" -d '")
        .map(|(_, rest)| rest.split('\'').next().unwrap());
    let body = body.unwrap_or("");
    let is_json = example.contains("$json");
    let method = after("-X").unwrap_or(if body.is_empty() { "GET" } else { "POST" });
    let kind = if is_json {
        "Content-Type: application/json\r\n"
    } else {
        ""
    };
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{kind}");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut scratch = Vec::new();
    match Reader::default().decode(request.as_bytes(), &mut scratch) {
        Decoded::Request(asked) => {
            assert!(asked.what.is_ok(), "{example}: {:?}", asked.what);
            asked.context.route.unwrap()
        }
        other => panic!("{example}: {other:?}"),
    }
}
