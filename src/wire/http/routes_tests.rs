//! Which path leads where, and what the table has to be so that others can rely on it.

use std::collections::BTreeSet;

use super::super::problem::Header;
use super::*;

/// Where a request leads: the operation and its places, or the status and the text.
fn leads(method: &str, path: &str) -> String {
    let mut scratch = Vec::new();
    let mut arena = Arena::new(&mut scratch, 2 * path.len());
    let found = find(Method::parse(method), path.as_bytes(), &mut arena);
    let (name, second) = (found.name.escape_ascii(), found.second.escape_ascii());
    match found.route {
        Ok(route) => {
            assert_eq!(found.is_lease, route.is_lease());
            let shown = format!("{} {name} {second}", route.row().operation);
            shown.trim_end().to_owned()
        }
        Err(problem) => {
            let allowed = match problem.header {
                Header::Allow(methods) => {
                    methods.iter().map(|it| format!(" {}", it.word())).collect()
                }
                _ => String::new(),
            };
            format!("{} {}{allowed}", problem.status, problem.text)
        }
    }
}

#[test]
fn every_route_is_found_by_its_own_path() {
    for row in &TABLE {
        let path = row
            .template
            .replace("{name}", "some")
            .replace("{channel}", "some")
            .replace("{file}", "some")
            .replace("{id}", "some")
            .replace("{resource}", "some")
            .replace("{fence}", "7");
        let mut want = row.operation.to_owned();
        if path != row.template {
            want.push_str(" some");
        }
        if row.template.contains("{fence}") {
            want.push_str(" 7");
        }
        assert_eq!(leads(row.method.word(), &path), want);
        let by_head = leads("HEAD", &path);
        assert_eq!(
            by_head == want,
            row.answers_head || row.any_method,
            "HEAD {path}: {by_head}"
        );
        let by_patch = leads("PATCH", &path);
        assert_eq!(by_patch == want, row.any_method, "PATCH {path}: {by_patch}");
        assert!(row.any_method || by_patch.starts_with("405 ") || by_patch.starts_with("404 "));
    }
}

#[test]
fn the_table_can_be_compared_with_a_document() {
    let rows: Vec<_> = all().collect();
    assert_eq!(rows.len(), TABLE.len());
    let operations: BTreeSet<_> = rows.iter().map(|(.., operation)| operation).collect();
    assert_eq!(operations.len(), rows.len(), "an operation has two routes");
    let places: BTreeSet<_> = rows
        .iter()
        .map(|(method, template, _)| (method, template))
        .collect();
    assert_eq!(places.len(), rows.len(), "a route stands there twice");
    for (index, row) in TABLE.iter().enumerate() {
        assert_eq!(row.route as usize, index);
        assert_eq!(
            row.route.is_lease(),
            row.template.as_bytes().starts_with(LEASES) && row.method != Method::Delete
        );
        assert!(row.depth <= DEPTH_MAX, "{}", row.template);
        assert!(row.body_bytes_max <= VALUES_BODY_BYTES_MAX);
        // A stream that takes something from others is no GET, and needs more than to look.
        let is_get = row.method == Method::Get;
        assert!(!row.streams || is_get || row.need == Need::Write);
    }
}

#[test]
fn nothing_that_changes_something_is_open() {
    for row in &TABLE {
        assert!(
            !row.changes || row.access == Access::Token,
            "{}",
            row.operation
        );
        assert_eq!(row.changes, row.method != Method::Get);
        let takes_body = row.takes != Takes::Nothing;
        assert!(!takes_body || row.changes, "{}", row.operation);
    }
}

#[test]
fn lease_paths_are_read_as_lockserver_reads_them() {
    for (method, path, want) in [
        ("GET", "/v1/locks/job", "getLock job"),
        ("POST", "/v1/locks/job/acquire", "acquireLock job"),
        ("POST", "/v1/locks/job/renew", "renewLock job"),
        ("POST", "/v1/locks/job/release", "releaseLock job"),
        // Slashes at both ends do not count, and an encoded one is one.
        ("GET", "/v1/locks//job/", "getLock job"),
        ("POST", "/v1/locks/job/acquire//", "acquireLock job"),
        ("POST", "/v1/locks/job%2Facquire", "acquireLock job"),
        ("GET", "/v1/locks/%2Fjob%2F", "getLock job"),
        ("GET", "/v1/locks/a%2Fb", "404 invalid path"),
        ("GET", "/v1/locks/a%2Fb%2Fc", "404 invalid path"),
        ("GET", "/v1/locks/a%252Fb", "getLock a%2Fb"),
        ("GET", "/v1/lo%63ks/job", "getLock job"),
        ("GET", "/v1/locks/a%20b", "getLock a b"),
        ("GET", "/v1/locks/%00", r"getLock \x00"),
        ("GET", "/v1/locks/a+b", "getLock a+b"),
        (
            "GET",
            "/v1/locks/%zz",
            "400 a % in the target is not followed by two hex digits; write %25 for a %",
        ),
        // What is not there.
        ("GET", "/v1/locks/", "400 lock_name required"),
        ("POST", "/v1/locks///", "400 lock_name required"),
        ("GET", "/v1/locks/job/acquire", "404 invalid path"),
        ("PUT", "/v1/locks/job/a/b", "404 invalid path"),
        ("POST", "/v1/locks/a//acquire", "404 invalid path"),
        ("POST", "/v1/locks/job", "404 unknown action"),
        ("POST", "/v1/locks/job/Acquire", "404 unknown action"),
        ("HEAD", "/v1/locks/job", "405 method not allowed GET"),
        ("PUT", "/v1/locks/job", "405 method not allowed GET"),
        (
            "OPTIONS",
            "/v1/locks/job/acquire",
            "405 method not allowed POST",
        ),
        ("DELETE", "/v1/locks/job", "405 method not allowed GET"),
        (
            "DELETE",
            "/v1/locks/job/holders",
            "405 method not allowed POST",
        ),
        ("GET", "/v1/locks/job/holders/7", "404 invalid path"),
        // Our own routes beside them.
        ("GET", "/v1/locks", "listLocks"),
        ("DELETE", "/v1/locks/job/holders/7", "breakHold job 7"),
        ("DELETE", "/v1/locks/a%2Fb/holders/7", "breakHold a/b 7"),
        ("DELETE", "/v1/locks/a/b/holders/7", "404 invalid path"),
    ] {
        assert_eq!(leads(method, path), want, "{method} {path}");
    }
}

#[test]
fn other_paths_are_taken_as_they_are() {
    for (method, path, want) in [
        ("GET", "/v1/kv/a%2Fb", "getValue a/b"),
        ("GET", "/v1/%6bv/x", "getValue x"),
        ("GET", "/v1/kv/", "getValue"),
        ("GET", "/v1/kv/x/", "404 404 page not found"),
        ("GET", "/v1/kv//x", "404 404 page not found"),
        ("GET", "/V1/kv/x", "404 404 page not found"),
        ("GET", "/v1/kv", "404 404 page not found"),
        ("GET", "/v1/kv/a/b/c/d/e/f", "404 404 page not found"),
        ("GET", "//", "404 404 page not found"),
        ("GET", "/favicon.ico", "404 404 page not found"),
        (
            "POST",
            "/v1/kv/x",
            "405 method not allowed GET HEAD PUT DELETE",
        ),
        ("POST", "/v1/signals", "listenInGroup"),
        ("PUT", "/v1/signals", "405 method not allowed GET POST"),
        ("GET", "/v1/signals/x", "405 method not allowed POST"),
        ("get", "/v1/stats", "405 method not allowed GET HEAD"),
        ("BREW", "/healthz", "healthz"),
        ("POST", "/livez", "405 method not allowed GET HEAD"),
        ("GET", "/assets/a%2f..%2fb", "asset a/../b"),
    ] {
        assert_eq!(leads(method, path), want, "{method} {path}");
    }
}
