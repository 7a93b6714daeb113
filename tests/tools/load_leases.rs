//! The load generator's plan `leases`: content with the real daemon, and not with a server that grants a
//! lease to everybody.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot start its server has to fail"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::tool::tool;

/// Connections the wrong server takes before it has seen enough.
const CONNECTIONS_MAX: usize = 10_000;

#[track_caller]
fn check(arguments: &[&str], code: i32, says: &[&str]) {
    let mut command = tool("latch-load");
    let output = command.args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}:\n{said}");
    for text in says {
        assert!(said.contains(text), "{arguments:?}: no {text:?} in\n{said}");
    }
}

/// Short leases, so that much happens in little time; most holders stall.
const LEASES: [&str; 16] = [
    "plan",
    "leases",
    "--count",
    "6",
    "--rounds",
    "1",
    "--seconds",
    "2",
    "--ttl-ms",
    "40",
    "--hold-ms",
    "2",
    "--jitter-ms",
    "2",
    "--failrate",
    "0.5",
];

#[test]
fn leases_over_http_are_held_by_one_and_late_writes_are_told() {
    check(&LEASES, 0, &["held by two", "stale writes rejected"]);
}

/// A server that grants the lease to everybody at once, always with the same token if told so.
fn generous_over_http(same_token: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    let tokens = Arc::new(AtomicU64::new(1));
    let accept = move || {
        for stream in listener.incoming().take(CONNECTIONS_MAX) {
            let (stream, tokens) = (stream.unwrap(), tokens.clone());
            let serve = move || give_over_http(&stream, &tokens, same_token);
            thread::Builder::new().spawn(serve).unwrap();
        }
    };
    thread::Builder::new().spawn(accept).unwrap();
    target
}

fn give_over_http(mut stream: &TcpStream, tokens: &AtomicU64, same_token: bool) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            head.push_str(&line.to_ascii_lowercase());
        }
        let (_, length) = head.split_once("content-length: ")?;
        let mut body = vec![0; length.split("\r\n").next()?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let token = match same_token {
            true => 7,
            false => tokens.fetch_add(1, Ordering::Relaxed),
        };
        let body = match head.contains("/release ") {
            true => "{\"released\":true}".to_owned(),
            false => format!(
                "{{\"acquired\":true,\"lease_id\":\"L{token}\",\"fencing_token\":{token},\"lease_expiry_ms\":1}}"
            ),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).ok()?;
    }
}

#[test]
fn a_lease_that_everybody_has_is_noticed() {
    let target = generous_over_http(false);
    let words = [&LEASES[..], &["--target", &target]].concat();
    let says = ["were held beside another", "although their time was over"];
    check(&words, 1, &says);
    let target = generous_over_http(true);
    let words = [&LEASES[..], &["--target", &target]].concat();
    let says = [
        "tokens were granted twice",
        "that was granted before",
        "came too late",
    ];
    check(&words, 1, &says);
}

#[test]
fn leases_are_asked_for_over_http_and_errors_are_wrong() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let words = |target| [&LEASES[..], &["--target", target]].concat();
    let line = format!("latchd://{address}");
    check(&words(line.as_str()), 2, &["say --target http://"]);
    drop(listener);
    let nobody = format!("http://{address}");
    check(
        &words(nobody.as_str()),
        1,
        &["errors, the first: no answer"],
    );
}
