//! Bounds: connections, descriptors, memory.

use std::time::{Duration, Instant};

use crate::vocabulary::{Client, Daemon, PATIENCE};

#[test]
fn one_connection_too_many_is_closed_without_a_byte() {
    let daemon = Daemon::start(&["--max-connections=2"]);
    let (mut a, mut b) = (daemon.connect(), daemon.connect());
    assert_eq!(a.ask("ping _ _"), "ok");
    assert_eq!(b.ask("ping _ _"), "ok");
    for _ in 0..3 {
        daemon.connect().expect_end();
    }
    daemon.wait_for_log("--max-connections 2 is reached");
    assert_eq!(a.stats()["connections"], 2);
    drop(b);
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

/// A client that left makes room at once, even if the daemon hears of both in the same turn.
#[test]
fn a_client_that_comes_after_another_left_is_served_in_the_same_turn() {
    let daemon = Daemon::start(&["--max-connections=2"]);
    let (mut stays, mut leaves) = (daemon.connect(), daemon.connect());
    assert_eq!(stays.ask("ping _ _"), "ok");
    assert_eq!(leaves.ask("ping _ _"), "ok");
    daemon.freeze();
    drop(leaves);
    let mut comes = daemon.connect();
    comes.put("ping _ _");
    daemon.thaw();
    comes.expect("ok");
}

#[test]
fn emfile_does_not_spin_and_recovers() {
    let daemon = Daemon::start_with_descriptors(20, &[]);
    let (mut holder, mut waiter) = (daemon.connect(), daemon.connect());
    assert_eq!(waiter.ask("ping _ _"), "ok");

    // Until nobody more is let in. The report may come with the last one who is: so whoever was let
    // in before it gets two more turns to be answered.
    let mut served = Vec::new();
    let mut pending = loop {
        let mut client = daemon.connect();
        client.put("ping _ _");
        let start = Instant::now();
        let moment = Duration::from_millis(10);
        let mut answer = None;
        while answer.is_none() && !daemon.logged("cannot accept") {
            answer = client.line_within(moment);
            assert!(start.elapsed() < PATIENCE, "neither served nor reported");
        }
        if answer.is_none() {
            assert_eq!(waiter.ask("ping _ _"), "ok");
            assert_eq!(waiter.ask("ping _ _"), "ok");
            answer = client.line_within(moment);
        }
        if answer.is_none() {
            break client;
        }
        served.push(client);
        assert!(served.len() < 20, "more connections than descriptors");
    };

    // A lease of a second is the span to look at, and the loop must be awake at its end.
    let (start, cpu_before) = (Instant::now(), daemon.cpu_time());
    holder.lock("k", "0 1");
    waiter.lock("k", "60");
    let (elapsed, cpu) = (start.elapsed(), daemon.cpu_time() - cpu_before);
    assert!(elapsed >= Duration::from_secs(1));
    assert!(
        cpu < elapsed / 10,
        "{cpu:?} of {elapsed:?} spent on nothing"
    );
    assert!(pending.is_open_and_quiet());
    let says_what_to_do = daemon.wait_for_log("cannot accept");
    assert!(says_what_to_do.contains("ulimit -n"), "{says_what_to_do}");

    served.pop();
    pending.expect("ok");
    served.pop();
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");

    // However many attempts failed, it was one outage, and its end is told as well.
    let end = daemon.wait_for_log(&format!("accepts on {} again", daemon.address()));
    let log = daemon.log();
    let before_end = log.iter().take_while(|line| **line != end);
    let reports = before_end.filter(|line| line.contains("cannot accept"));
    assert_eq!(reports.count(), 1, "{log:#?}");
}

#[test]
fn ten_thousand_short_connections_leave_no_memory_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let visit = |times: usize| {
        for nth in 0..times {
            let mut client = Client::unix(&path);
            client.lock(&format!("k{}", nth % 100), "10");
            drop(client);
            let mut client = daemon.connect();
            client.lock(&format!("k{}", nth % 100), "10");
            client.reset(); // and so its port is free again at once
        }
    };
    visit(500);
    let before_kib = daemon.resident_kib();
    visit(4_500);
    let grown_kib = daemon.resident_kib().saturating_sub(before_kib);
    assert!(grown_kib < 2 * 1024, "grown by {grown_kib} KiB");

    let mut client = daemon.connect();
    let start = Instant::now();
    let stats = loop {
        let stats = client.stats();
        if stats["connections"] == 1 || start.elapsed() > PATIENCE {
            break stats;
        }
    };
    assert_eq!(stats["connections"], 1);
    assert_eq!(stats["totals"]["locks"], 0);
    assert_eq!(stats["totals"]["grants"], 10_000);
    assert_eq!(stats["totals"]["disconnects"], 10_000);
}
