//! Peers that take their time: those that do not read, and those that do not write.

use std::time::{Duration, Instant};

use crate::vocabulary::{Client, Daemon, End, PATIENCE, frame};

/// Makes `stats` an answer of about 300 KB: a thousand locks with long names, held by the client.
fn hold_a_thousand_locks(client: &mut Client) {
    for nth in 0..1_000 {
        client.raw(frame(&format!("l {nth:0>200} 0 600")));
    }
    for _ in 0..1_000 {
        client.grant();
    }
}

/// Requests whose answers fill every buffer on the way, and a moment for that to happen: a
/// connection gets at most one `stats` per turn, and a round trip is at least one turn.
fn ask_and_do_not_read(slow: &mut Client, other: &mut Client) {
    slow.raw(frame("stats _ _").repeat(100));
    for _ in 0..100 {
        assert_eq!(other.ask("ping _ _"), "ok");
    }
}

#[test]
fn a_client_that_does_not_read_is_closed_after_the_write_timeout() {
    let daemon = Daemon::start(&["--write-timeout=200ms"]);
    let mut other = daemon.connect();
    hold_a_thousand_locks(&mut other);
    let start = Instant::now();
    let mut slow = daemon.connect_with_small_receive_buffer();
    ask_and_do_not_read(&mut slow, &mut other);
    daemon.wait_for_log("does not take what it is owed");
    assert!(start.elapsed() >= Duration::from_millis(200));
    let (bytes, _) = slow.rest();
    let answers = bytes.iter().filter(|&&byte| byte == b'\n').count();
    assert!(answers < 100, "all were answered");
    assert_eq!(other.stats()["connections"], 1);
}

#[test]
fn a_client_that_does_not_read_costs_a_bounded_amount_of_memory() {
    let daemon = Daemon::start(&["--write-timeout=0"]);
    let mut other = daemon.connect();
    hold_a_thousand_locks(&mut other);
    let before_kib = daemon.resident_kib();
    let mut slow: Vec<Client> = (0..8)
        .map(|_| daemon.connect_with_small_receive_buffer())
        .collect();
    for slow in &mut slow {
        ask_and_do_not_read(slow, &mut other);
    }
    // Each has asked for 30 MB and is owed at most one answer more than the bound.
    let grown_kib = daemon.resident_kib().saturating_sub(before_kib);
    assert!(grown_kib < 32 * 1024, "grown by {grown_kib} KiB");
    // Nobody was closed, and nothing was left out.
    assert_eq!(other.stats()["connections"], 9);
    for _ in 0..100 {
        let answer = slow[0].line();
        assert!(answer.starts_with("ok {") && answer.ends_with("}}"));
    }
}

const PING: &str = "ping\n\n\n";

/// Not reading is not silence: the daemon has stopped listening, so the read timeout must not run.
#[test]
fn without_a_write_timeout_a_client_that_does_not_read_gets_every_answer_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &["--write-timeout=0", "--read-timeout=300ms"]);
    let mut holder = daemon.connect();
    holder.lock("k", "0"); // a client that holds something may be silent
    let mut slow = Client::unix(&path);
    let sent = slow.flood(PING.repeat(1_000).as_bytes(), || {
        assert_eq!(holder.ask("ping _ _"), "ok");
    });
    for _ in 0..2 {
        let mut idle = daemon.connect();
        idle.expect_end(); // without a word
    }
    let (answers, end) = slow.rest();
    let oks = b"ok\n".repeat(sent / PING.len());
    assert!(answers.starts_with(&oks));
    assert_eq!(&answers[oks.len()..], b""); // and is closed, now that it reads and says nothing
    assert_eq!(end, End::Closed);
}

#[test]
fn a_client_that_half_closes_without_reading_gets_every_answer_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let mut other = daemon.connect();
    let mut slow = Client::unix(&path);
    let sent = slow.flood(PING.repeat(1_000).as_bytes(), || {
        assert_eq!(other.ask("ping _ _"), "ok");
    });
    slow.half_close();
    let (answers, end) = slow.rest();
    assert!(answers == b"ok\n".repeat(sent / PING.len()));
    assert_eq!(end, End::Closed);
}

#[test]
fn half_a_frame_is_an_error_after_the_read_timeout() {
    let daemon = Daemon::start(&["--read-timeout=300ms"]);
    for half in ["l", "l\n", "l\nk\n", "l\nk\n5"] {
        let start = Instant::now();
        let mut client = daemon.connect();
        client.raw(half);
        client.expect("error");
        client.expect_end();
        assert!(start.elapsed() >= Duration::from_millis(300));
    }
    assert_eq!(daemon.connect().stats()["totals"]["grants"], 0);
}

#[test]
fn a_trickle_does_not_extend_the_time_of_a_line() {
    let daemon = Daemon::start(&["--read-timeout=300ms"]);
    let mut client = daemon.connect();
    client.raw("l\n");
    let start = Instant::now();
    let answer = loop {
        client.raw("k");
        if let Some(answer) = client.line_within(Duration::from_millis(40)) {
            break answer;
        }
        assert!(start.elapsed() < PATIENCE / 2, "still listening");
    };
    assert_eq!(answer, "error");
}

#[test]
fn an_idle_client_that_owns_nothing_is_cut_and_a_holder_is_not() {
    let daemon = Daemon::start(&["--read-timeout=300ms"]);
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0");
    let mut waiter = daemon.connect();
    waiter.put("l k 60");
    holder.wait_for_waiters("k", 1);
    let mut queued = daemon.connect();
    assert_eq!(queued.ask("e k"), "queued");
    for _ in 0..3 {
        let start = Instant::now();
        let mut idle = daemon.connect();
        idle.expect_end(); // without a word
        assert!(start.elapsed() >= Duration::from_millis(300));
    }
    holder.release("k", &grant);
    let grant = waiter.grant();
    waiter.release("k", &grant);
    queued.put("w k 10");
    let grant = queued.grant();
    queued.release("k", &grant);
    // Now they own nothing any more.
    for client in [&mut holder, &mut waiter, &mut queued] {
        client.expect_end();
    }
}
