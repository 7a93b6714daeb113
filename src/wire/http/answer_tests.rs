//! How answers are spelled, byte by byte.

use super::super::problem as problems;
use super::super::routes::Route;
use super::*;

fn context() -> Context<'static> {
    Context {
        route: Some(Route::GetStats),
        keep_alive: true,
        request_id: "r-1",
        ..Context::UNREAD
    }
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = b"before".to_vec();
    write(&mut out);
    let text = String::from_utf8(out).unwrap();
    text.strip_prefix("before").unwrap().to_owned()
}

fn object(out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"a\":1}");
}

#[test]
fn a_json_answer_says_how_long_it_is() {
    let want = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n\
                X-Request-ID: r-1\r\nContent-Length: 8\r\n\r\n{\"a\":1}\n";
    assert_eq!(text(|out| json(out, &context(), 200, object)), want);
    for length in [0, 8, 9, 98, 99, 100_000, 1_000_000] {
        let answer = text(|out| {
            json(out, &context(), 200, |out| {
                out.resize(out.len() + length, b'x')
            });
        });
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.len(), length + 1);
        assert!(head.ends_with(&format!("\r\nContent-Length: {}", length + 1)));
    }
}

#[test]
fn a_head_is_told_without_its_body() {
    let whole = text(|out| json(out, &context(), 200, object));
    let only_head = Context {
        is_head: true,
        ..context()
    };
    let told = text(|out| json(out, &only_head, 200, object));
    assert_eq!(told, whole.strip_suffix("{\"a\":1}\n").unwrap());
}

#[test]
fn a_connection_is_told_whether_it_stays_open() {
    for (keep_alive, is_http_1_0, want) in [
        (true, false, None),
        (true, true, Some("keep-alive")),
        (false, false, Some("close")),
        (false, true, Some("close")),
    ] {
        let context = Context {
            keep_alive,
            is_http_1_0,
            ..context()
        };
        let told = text(|out| json(out, &context, 200, object));
        let line = told.lines().find_map(|it| it.strip_prefix("Connection: "));
        assert_eq!(line, want);
        assert!(told.starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[test]
fn a_problem_has_a_reason_but_on_lease_routes_only_a_503() {
    let problem_text = |is_lease, it: &Problem<'_>| {
        let context = Context {
            is_lease,
            ..context()
        };
        let told = text(|out| problem(out, &context, it));
        told.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let it = problems::TTL_RANGE;
    assert_eq!(
        problem_text(true, &it),
        "{\"error\":\"ttl_ms must be in (0, 600000]\"}\n"
    );
    let want = "{\"error\":\"ttl_ms must be in (0, 600000]\",\"reason\":\"BAD_FIELD\"}\n";
    assert_eq!(problem_text(false, &it), want);
    // A client that follows a leader has to know this one from others.
    for is_lease in [true, false] {
        let told = problem_text(is_lease, &problems::NO_LEADER);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["reason"], "NO_LEADER");
    }
    // What a client wrote is shown, but cannot be mistaken for what we write.
    let it = it.about(b"a\"\n\xff<");
    let told: serde_json::Value = serde_json::from_str(&problem_text(true, &it)).unwrap();
    assert_eq!(
        told["error"],
        "ttl_ms must be in (0, 600000]: \"a\"\n\u{fffd}<\""
    );
    let long = vec![b'x'; 1000];
    assert!(problem_text(true, &it.about(&long)).len() < 200);
}

#[test]
fn some_problems_have_a_header() {
    let told = |it: &Problem<'_>| text(|out| problem(out, &context(), it));
    assert!(told(&problems::UNAUTHORIZED).contains("\r\nWWW-Authenticate: Bearer\r\n"));
    assert!(told(&problems::busy("X", "y")).contains("\r\nRetry-After: 1\r\n"));
    let input = b"PATCH /v1/kv/x HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut scratch = Vec::new();
    let decoded = super::super::Reader::default().decode(input, &mut scratch);
    let super::super::Decoded::Request(asked) = decoded else {
        panic!("{decoded:?}");
    };
    let answer = told(&asked.what.unwrap_err());
    assert!(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
    assert!(
        answer.contains("\r\nAllow: GET, HEAD, PUT, DELETE\r\n"),
        "{answer}"
    );
}

#[test]
fn an_unknown_path_is_told_as_text() {
    let want = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\n\
                X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nX-Request-ID: r-1\r\n\
                Content-Length: 19\r\n\r\n404 page not found\n";
    assert_eq!(
        text(|out| problem(out, &context(), &problems::NOT_FOUND)),
        want
    );
}

#[test]
fn a_fault_ends_the_connection() {
    let told = text(|out| fault(out, &LATE_HEAD));
    assert!(told.starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    assert!(told.contains("\r\nConnection: close\r\n"));
}

#[test]
fn every_status_that_is_used_has_words() {
    for status in [
        200, 304, 400, 401, 403, 404, 405, 408, 409, 413, 415, 417, 431, 500, 501, 503, 505,
    ] {
        let line = text(|out| status_line(out, status));
        assert!(
            line.starts_with(&format!("HTTP/1.1 {status} ")),
            "{status}: {line}"
        );
    }
}

#[test]
fn health_is_a_word() {
    let body = |it| {
        let told = text(|out| health(out, &context(), it));
        (
            told[9..12].to_owned(),
            told.split_once("\r\n\r\n").unwrap().1.to_owned(),
        )
    };
    for (it, status, word) in [
        (Health::Ok, "200", "ok"),
        (Health::Draining, "503", "draining"),
        (Health::NotLeader, "503", "not_leader"),
    ] {
        let said = format!("{{\"status\":\"{word}\"}}\n");
        assert_eq!(body(it), (status.into(), said));
    }
    for (missing_bytes, more) in [(0, ""), (4096, ",\"missing_bytes\":4096")] {
        let said = format!("{{\"status\":\"degraded\"{more}}}\n");
        assert_eq!(
            body(Health::Degraded { missing_bytes }),
            ("200".into(), said)
        );
    }
}
