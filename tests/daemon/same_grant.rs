//! An acquire over HTTP that is sent again, because its answer was lost, is answered with the same
//! bytes: also when a clock of the machine ticked in between.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::vocabulary::Daemon;

const BODY: &str = r#"{"owner_id":"me","ttl_ms":60000}"#;

/// The body of the answer to this request, on a connection of its own.
fn ask(place: &str, request: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(place).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-ID: one\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    body.to_owned()
}

#[test]
fn an_acquire_that_is_sent_again_is_answered_with_the_same_bytes() {
    let daemon = Daemon::start(&["--http-port", "0"]);
    let line = daemon.wait_for_log("serves HTTP on ");
    let (_, place) = line.split_once("serves HTTP on ").unwrap();
    let (place, _) = place.split_once(": ").unwrap();
    let first = ask(place, "POST /v1/locks/job/acquire", BODY);
    let shown = ask(place, "GET /v1/locks/job", "");
    for _ in 0..100 {
        assert_eq!(ask(place, "POST /v1/locks/job/acquire", BODY), first);
        assert_eq!(ask(place, "GET /v1/locks/job", ""), shown);
    }
}
