//! Paths are written down once: in the table of routes, for everybody else to ask.

use std::fs;
use std::path::Path;

use latchd::wire::http::routes;

use crate::source::rust_files;

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
        let name = file.to_string_lossy();
        // The simulator's clients know paths as other clients do, and so does the one for leases; etcd has paths of
        // its own.
        let is_client = ["/src/http_client/", "/src/etcd/"];
        let is_client = is_client.iter().any(|it| name.contains(it));
        let is_other = name.ends_with("_tests.rs") || is_client;
        if is_other || file.ends_with("wire/http/routes.rs") {
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
