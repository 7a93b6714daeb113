//! The secret: a client that does not show it is kept waiting and turned away, and the log never
//! has it.

use std::fs;
use std::time::{Duration, Instant};

use crate::vocabulary::{Daemon, frame};

const SECRET: &str = "--auth-token=s3cret-of-the-house";
const SHOWN: &str = "auth _ s3cret-of-the-house";

#[test]
fn the_right_secret_opens_and_a_second_one_is_an_error() {
    let daemon = Daemon::start(&[SECRET]);
    let mut client = daemon.connect();
    assert_eq!(client.ask(SHOWN), "ok");
    client.lock("k", "0");
    assert_eq!(client.ask(SHOWN), "error");
    assert_eq!(client.ask("ping _ _"), "ok");
}

#[test]
fn the_secret_may_come_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "from a file \n\n").unwrap();
    let daemon = Daemon::start(&["--auth-token-file", path.to_str().unwrap()]);
    assert_eq!(daemon.connect().ask("auth _ from a file"), "ok");
    assert_eq!(daemon.connect().ask("auth _ from a fil"), "error_auth");
}

#[test]
fn a_wrong_secret_is_closed_not_before_100_ms() {
    let daemon = Daemon::start(&[SECRET]);
    let too_long = format!("auth _ {}", "x".repeat(65_537));
    for first in [
        "auth _ guess",
        "auth _",
        "ping _ _",
        "l k 5",
        "L k 5",
        &too_long,
    ] {
        let mut client = daemon.connect();
        let start = Instant::now();
        assert_eq!(client.ask(first), "error_auth", "{:.20}", first);
        client.expect_end();
        assert!(
            start.elapsed() >= Duration::from_millis(100),
            "{:.20}",
            first
        );
    }
    let mut client = daemon.connect();
    assert_eq!(client.ask(SHOWN), "ok");
    assert_eq!(client.stats()["totals"]["grants"], 0);
}

/// Several attempts, because a slow machine may need all of the 100 ms for one round trip; a loop
/// that sleeps never lets anyone in between.
#[test]
fn others_are_served_while_a_wrong_secret_waits() {
    let daemon = Daemon::start(&[SECRET]);
    let mut other = daemon.connect();
    assert_eq!(other.ask(SHOWN), "ok");
    let served_meanwhile = (0..20).any(|_| {
        let mut client = daemon.connect();
        assert_eq!(client.ask("auth _ guess"), "error_auth");
        assert_eq!(other.ask("ping _ _"), "ok");
        client.is_open_and_quiet()
    });
    assert!(served_meanwhile);
}

#[test]
fn a_thousand_commands_before_the_secret_are_not_executed() {
    let daemon = Daemon::start(&[SECRET]);
    let mut client = daemon.connect();
    client.raw(frame("l k 0").repeat(1_000) + &frame(SHOWN));
    client.expect("error_auth");
    client.expect_end();
    let mut client = daemon.connect();
    client.raw(frame(SHOWN) + &frame("l k 0").repeat(1_000));
    client.expect("ok");
    client.grant();
    for _ in 1..1_000 {
        client.expect("timeout");
    }
    assert_eq!(client.stats()["totals"]["grants"], 1);
}

#[test]
fn a_client_that_says_nothing_is_closed_without_a_word() {
    let daemon = Daemon::start(&[SECRET, "--read-timeout=50ms"]);
    let mut silent = daemon.connect();
    silent.expect_end();
}

#[test]
fn a_failure_is_logged_once_and_no_secret_ever() {
    let mut daemon = Daemon::start(&[SECRET, "--debug"]);
    let mut client = daemon.connect();
    client.raw(frame("auth _ my-own-guess") + &frame("auth _ s3cret-of-the-house"));
    client.expect("error_auth");
    client.expect_end();
    assert_eq!(daemon.connect().ask(SHOWN), "ok");
    let log = daemon.stop();
    let failures = log
        .iter()
        .filter(|line| line.contains("did not show the secret"));
    assert_eq!(failures.count(), 1, "{log:#?}");
    for line in &log {
        assert!(
            !line.contains("s3cret") && !line.contains("guess"),
            "{line}"
        );
    }
}
