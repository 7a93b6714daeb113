//! The secret: a client that does not show it is kept waiting and turned away, and the log never
//! has it.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::vocabulary::{Client, Daemon, PATIENCE, frame};

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
fn wrong_secret_is_answered_and_closed_not_before_100_ms() {
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
        assert!(
            start.elapsed() >= Duration::from_millis(100),
            "{:.20}",
            first
        );
        client.expect_end();
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
        client.put("auth _ guess");
        assert_eq!(other.ask("ping _ _"), "ok");
        let is_waiting = client.is_open_and_quiet();
        client.expect("error_auth");
        is_waiting
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
    let daemon = Daemon::start(&[SECRET, "--auth-timeout=50ms"]);
    let mut silent = daemon.connect();
    silent.expect_end();
    let mut half = daemon.connect();
    half.raw("auth\n_\ns3cret");
    half.expect_end();
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

/// Connections that all guess at once.
fn guessing(count: usize, connect: impl Fn() -> Client) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| connect()).collect();
    for client in &mut clients {
        client.put("auth _ guess");
    }
    clients
}

/// Several attempts, because a slow machine may need longer for a round trip than all guesses take.
#[test]
fn guesses_are_slow_and_hold_up_nobody_who_knows_the_secret() {
    let daemon = Daemon::start(&[SECRET]);
    let served_meanwhile = (0..20).any(|_| {
        let start = Instant::now();
        let mut guessing = guessing(40, || daemon.connect());
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)] {
            let mut knowing = daemon.connect_from(address);
            assert_eq!(knowing.ask(SHOWN), "ok");
        }
        let served_meanwhile = guessing[39].is_open_and_quiet();
        for client in &mut guessing {
            client.expect("error_auth");
        }
        // Sixteen at once, sixteen more when they are over, and then the rest.
        assert!(start.elapsed() >= Duration::from_millis(200));
        served_meanwhile
    });
    assert!(served_meanwhile);
}

#[test]
fn guesses_over_the_unix_socket_are_those_of_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[SECRET]);
    let start = Instant::now();
    let mut guessing = guessing(20, || Client::unix(&path));
    assert_eq!(daemon.connect().ask(SHOWN), "ok");
    for client in &mut guessing {
        client.expect("error_auth");
    }
    assert!(start.elapsed() >= Duration::from_millis(100));
    let line = daemon.wait_for_log("1 connection did not show the secret");
    assert!(line.contains(", from user "), "{line}");
}

#[test]
fn many_failures_are_one_line_of_the_log_in_a_second() {
    let daemon = Daemon::start(&[SECRET]);
    let start = Instant::now();
    for client in &mut guessing(30, || daemon.connect()) {
        client.expect("error_auth");
    }
    let mut knowing = daemon.connect();
    assert_eq!(knowing.ask(SHOWN), "ok");
    assert_eq!(knowing.stats()["totals"]["wrong_secrets"], 30);
    // How many each line tells of: the first of one, at once, and the others of the rest.
    let told = || -> Vec<u64> {
        let log = daemon.log();
        let lines = log.iter().filter_map(|line| line.split_once(" WARN  "));
        let counts = lines.filter_map(|(_, message)| message.split_once(" connection"));
        counts.map(|(count, _)| count.parse().unwrap()).collect()
    };
    while told().iter().sum::<u64>() < 30 {
        assert!(start.elapsed() < PATIENCE, "{:?}", told());
        assert_eq!(knowing.ask("ping _ _"), "ok");
    }
    assert_eq!(told()[0], 1);
    assert!(
        told().len() as u64 <= 2 + start.elapsed().as_secs(),
        "{:?}",
        told()
    );
}
