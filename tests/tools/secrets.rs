//! The secret is compared in constant time, and in one place: checked over the source as text.
//!
//! A test with a clock could not tell: the difference is nanoseconds, and the machine is shared.
//! What a peer can see of it, that every wrong first frame is answered and closed alike, is in
//! `scripts/auth.txt`.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the source has to fail"
)]

use std::fs;
use std::path::Path;

use crate::source::rust_files;

/// Where the one comparison is of the daemon's secrets, and that of a client's.
const AUTH: &str = "src/access/secret.rs";
const CLIENTS: &str = "src/engine/secret.rs";

/// Code without comments, up to the file's own tests.
fn code(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default().to_owned());
    lines.collect()
}

/// Whether the line compares in a way that stops at the first difference, which can be timed.
fn compares(line: &str) -> bool {
    let ways = ["==", "!=", ".eq(", ".ne(", ".cmp(", "starts_with", "memcmp"];
    ways.iter().any(|way| line.contains(way))
}

#[test]
fn the_secret_is_compared_in_constant_time() {
    for file in [AUTH, CLIENTS] {
        let auth = code(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        let constant = auth
            .iter()
            .filter(|line| line.contains("constant_time_eq("));
        assert_eq!(
            constant.count(),
            1,
            "comparisons in constant time in {file}"
        );
        for line in auth.iter().filter(|line| compares(line)) {
            let rest = line.replace("shown.len() == secret.len()", "");
            assert!(
                !compares(&rest),
                "{file} compares in some other way: {line}"
            );
        }
    }
}

/// In the layers that see what a peer sends.
#[test]
fn the_secret_is_compared_nowhere_else() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let layers = [
        "src/access",
        "src/server",
        "src/wire",
        "src/net",
        "src/engine",
    ];
    let layers = layers.map(|layer| rust_files(&root.join(layer)));
    for file in layers.concat() {
        let shown = file.strip_prefix(root).unwrap().display().to_string();
        for line in code(&file) {
            let names_it = line.contains("secret") || line.contains("(token, ");
            assert!(
                shown == AUTH || shown == CLIENTS || !names_it || !compares(&line),
                "{shown}: {line}"
            );
        }
    }
}

/// Whatever is shown is compared with every token there is, also when one was right already.
#[test]
fn what_is_shown_is_compared_with_every_token() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = code(&root.join("src/access/mod.rs")).join("\n");
    let (_, find) = code.split_once("pub fn find(").unwrap();
    let (find, _) = find.split_once("\n    }\n").unwrap();
    assert!(
        find.contains("for (token, pass) in &self.tokens {"),
        "{find}"
    );
    assert!(find.contains("if token.is(shown) {"), "{find}");
    for early in ["return", "break", "?;", ".find", ".any("] {
        assert!(!find.contains(early), "{early} ends it early: {find}");
    }
}

/// What etcd is shown is written by hand where it could be printed, and its text is had in one place only.
#[test]
fn neither_the_password_for_etcd_nor_its_token_can_be_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let login = code(&root.join("src/etcd/login.rs")).join("\n");
    for name in ["Password", "Token"] {
        let (before, _) = login
            .split_once(&format!("struct {name}("))
            .unwrap_or_else(|| panic!("{name} is gone"));
        let derives = before.rsplit("#[derive(").next().unwrap();
        assert!(!derives.contains("Debug"), "{name} derives Debug");
        let by_hand = format!("f.write_str(\"{name}(…)\")");
        assert!(login.contains(&by_hand), "{name} is printed otherwise");
    }
    assert!(
        !login.contains("Display for"),
        "something of it is displayed"
    );
    let mut uses = Vec::new();
    for file in rust_files(&root.join("src/etcd")) {
        for line in code(&file) {
            if line.contains("token.text()") || line.contains("password.0") {
                uses.push(line.trim().to_owned());
            }
        }
    }
    uses.sort();
    let known = [
        "Some(token) => [\"Authorization: \", token.text(), \"\\r\\n\"],",
        "let body = json::authenticate(&self.user, &password.0);",
    ];
    assert_eq!(uses, known);
}
