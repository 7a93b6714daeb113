//! Bounds: connections, descriptors, memory.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::vocabulary::{Client, Daemon, PATIENCE};

/// More than eight in a second are counted only.
#[test]
fn lines_about_connections_beyond_the_limit_become_a_count() {
    let mut daemon = Daemon::start(&["--max-connections", "1"]);
    let mut only = daemon.connect();
    assert_eq!(only.ask("ping _ _"), "ok");
    for _ in 0..500 {
        daemon.connect().rest();
    }
    let log = daemon.stop();
    let told = log.iter().filter(|it| it.contains(" is reached"));
    assert!((1..400).contains(&told.count()), "{log:#?}");
}

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

const SECRET: &str = "--auth-token=s3cret";
const SHOWN: &str = "auth _ s3cret";

#[test]
fn client_with_the_token_gets_in_at_once_when_silent_strangers_come_back_for_every_slot() {
    const SLOTS: usize = 20;
    let daemon = Daemon::start(&["--max-connections=20", SECRET]);
    let mut silent: Vec<Client> = (0..SLOTS).map(|_| daemon.connect()).collect();
    for round in 0..200 {
        let mut client = daemon.connect();
        assert_eq!(client.ask(SHOWN), "ok", "{round}");
        client.lock("k", "0");
        silent[round % SLOTS] = daemon.connect();
    }
}

/// There are 100 places for strangers. With a clock of its own (`tests/server/access.rs`) every
/// such client gets in; here a busy machine may make a pause longer.
#[test]
fn client_that_pauses_before_its_token_gets_in_beside_strangers_that_come_again() {
    const PAUSE: Duration = Duration::from_millis(5);
    let daemon = Daemon::start(&["--max-connections=200", "--auth-timeout=1s", SECRET]);
    let lets_in = || -> io::Result<bool> {
        let mut client = TcpStream::connect(daemon.address())?;
        client.set_read_timeout(Some(PAUSE))?;
        let mut answer = [0; 3];
        if !matches!(client.read(&mut answer), Err(error) if error.kind() == ErrorKind::WouldBlock)
        {
            return Ok(false);
        }
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"auth\n_\ns3cret\n")?;
        client.read_exact(&mut answer)?;
        Ok(answer == *b"ok\n")
    };
    let (is_over, floods) = (AtomicBool::new(false), mpsc::channel());
    let let_in = thread::scope(|scope| {
        for _ in 0..2 {
            let (daemon, is_over, flooded) = (&daemon, &is_over, floods.0.clone());
            scope.spawn(move || {
                let mut crowd: VecDeque<Client> = (0..60).map(|_| daemon.connect()).collect();
                while !is_over.load(Ordering::Relaxed) {
                    crowd.pop_front().expect("60 of them").rest();
                    crowd.push_back(daemon.connect());
                    let _ = flooded.send(());
                }
            });
        }
        (0..1_000).for_each(|_| floods.1.recv().unwrap());
        let let_in = (0..40).filter(|_| lets_in().unwrap_or(false)).count();
        is_over.store(true, Ordering::Relaxed);
        let_in
    });
    assert!(let_in >= 20, "{let_in} of 40");
}

#[test]
fn strangers_at_one_door_leave_places_to_the_other() {
    let daemon = Daemon::start(&["--http-port=0", "--max-connections=4", SECRET]);
    // One after the other: two connections without a token are all that may be there at one time.
    let authenticated = || {
        let mut client = daemon.connect();
        assert_eq!(client.ask(SHOWN), "ok");
        client
    };
    let _known: [Client; 3] = std::array::from_fn(|_| authenticated());
    // On a busy machine this may be sent too late, and the connection makes room for another one.
    let ask_over_http = || -> io::Result<String> {
        let mut http = TcpStream::connect(daemon.http_address())?;
        http.set_read_timeout(Some(PATIENCE))?;
        http.write_all(
            b"GET /v1/kv/k HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n\r\n",
        )?;
        let mut answer = [0; 12];
        http.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let is_closed = |answer: &io::Result<String>| {
        let error = answer.as_ref().err().map(io::Error::kind);
        error.is_some_and(|it| !matches!(it, ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    let (is_over, crowds) = (AtomicBool::new(false), mpsc::channel());
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            let mut crowd = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                // The next ones wait already when these leave.
                crowd = (0..64).map(|_| daemon.connect()).collect();
                let _ = crowds.0.send(());
            }
            drop(crowd);
        });
        (0..3).for_each(|_| crowds.1.recv().unwrap());
        let answer = || {
            (0..1_000)
                .map(|_| ask_over_http())
                .find(|it| !is_closed(it))
        };
        let answers: Vec<_> = (0..20).map_while(|_| answer()?.ok()).collect();
        is_over.store(true, Ordering::Relaxed);
        answers
    });
    assert_eq!(answers, ["HTTP/1.1 404"; 20]);
}

#[test]
fn oldest_stranger_makes_room_when_descriptors_run_out() {
    let daemon = Daemon::start_with_descriptors(20, &[SECRET]);
    let mut known = Vec::new();
    let mut silent: Vec<Client> = (0..10).map(|_| daemon.connect()).collect();
    for round in 0..4 {
        let mut client = daemon.connect();
        assert_eq!(client.ask(SHOWN), "ok", "{round}");
        known.push(client);
        silent.extend((0..10).map(|_| daemon.connect()));
    }
    for client in &mut known {
        assert_eq!(client.ask("ping _ _"), "ok");
    }
}
