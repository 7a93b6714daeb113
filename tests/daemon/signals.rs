//! Signals. Stopping: which clients may finish, which are told, and which are not waited for.
//! SIGHUP stops nothing.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::vocabulary::{Client, Daemon, latchd, refusal};

#[test]
fn a_thousand_waiters_are_told_and_the_exit_code_is_0() {
    let mut daemon = Daemon::start(&[]);
    let (mut holder, mut idle) = (daemon.connect(), daemon.connect());
    let grant = holder.lock("k", "0");
    let mut waiters: Vec<Client> = (0..1_000).map(|_| daemon.connect()).collect();
    for waiter in &mut waiters {
        waiter.put("l k 60");
    }
    idle.wait_for_waiters("k", 1_000);
    daemon.signal(Signal::TERM);
    for waiter in &mut waiters {
        waiter.expect("error_draining");
        waiter.expect_end();
    }
    idle.expect_end();
    holder.release("k", &grant);
    holder.expect_end();
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 0);
    let last = log.last().unwrap();
    assert!(last.ends_with(" INFO  stopped"), "{last}");
}

#[test]
fn a_holder_may_finish_while_new_requests_are_refused() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&[]);
        let mut holder = daemon.connect();
        let grant = holder.lock("k", "0");
        daemon.signal(signal);
        daemon.wait_for_log("shutting down");
        for refused in ["l other 0", "l k 10", "e other", "sl pool 0 3", "rl doc 0"] {
            assert_eq!(holder.ask(refused), "error_draining", "{refused}");
        }
        assert_eq!(holder.ask("ping _ _"), "ok");
        // A client that has sent `rl` reads the fence.
        let renewed = format!("ok 33 {}", grant.token_fence());
        assert_eq!(holder.ask(&format!("n k {}", grant.token)), renewed);
        holder.release("k", &grant);
        holder.expect_end();
        assert_eq!(daemon.wait_for_exit().0, 0);
    }
}

#[test]
fn leases_still_end_while_draining() {
    let mut daemon = Daemon::start(&["--shutdown-timeout=0"]);
    let mut holder = daemon.connect();
    holder.lock("k", "0 300ms");
    daemon.signal(Signal::TERM);
    holder.expect_end(); // with its lease it has lost all that was worth waiting for
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn draining_daemon_keeps_its_port_and_its_socket_and_grants_newcomers_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let mut daemon = Daemon::start_at(&path, &[]);
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    assert_eq!(holder.ask("ping _ _"), "ok"); // the turn of the signal is over
    for mut newcomer in [daemon.connect(), Client::unix(&path)] {
        assert_eq!(newcomer.ask("l k 0"), "error_draining");
        assert_eq!(newcomer.ask("ping _ _"), "ok");
    }
    // A second daemon could grant what is held here.
    let mut on_port = latchd();
    on_port.arg(format!("--port={}", daemon.address().port()));
    let mut on_socket = latchd();
    on_socket.args(["--port", "0", "--unix-socket"]).arg(&path);
    for command in [on_port, on_socket] {
        refusal(69, command);
    }
    holder.release("k", &grant);
    assert_eq!(daemon.wait_for_exit().0, 0);
    assert!(!path.exists());
}

#[test]
fn newcomer_during_a_shutdown_still_has_to_show_the_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let mut daemon = Daemon::start_at(&path, &["--auth-token=s3cret"]);
    let mut holder = daemon.connect();
    assert_eq!(holder.ask("auth _ s3cret"), "ok");
    let grant = holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    assert_eq!(holder.ask("ping _ _"), "ok"); // the turn of the signal is over
    for mut newcomer in [daemon.connect(), Client::unix(&path)] {
        assert_eq!(newcomer.ask("auth _ s3cret"), "ok");
        assert_eq!(newcomer.ask("l k 0"), "error_draining");
    }
    for shown in ["auth _ guess", "l k 0"] {
        for mut newcomer in [daemon.connect(), Client::unix(&path)] {
            assert_eq!(newcomer.ask(shown), "error_auth");
            newcomer.expect_end();
        }
    }
    holder.release("k", &grant);
    assert_eq!(daemon.wait_for_exit().0, 0);
}

/// What has no connection, and would be lost with the process, is waited for until it is released.
#[test]
fn holders_without_a_connection_may_finish_where_nothing_is_kept() {
    let mut daemon = Daemon::start(&["--shutdown-timeout=0", "--http-port=0"]);
    let lease = daemon.http().acquire("web", "me", "\"ttl_ms\":600000");
    let mut script = daemon.connect();
    script.ask("hello _ keep=1");
    let kept = script.lock("job", "0 600");
    drop(script);
    let mut away = daemon.connect();
    assert!(away.ask("attach gw/1 600 s3cret").ends_with(" new"));
    assert_eq!(away.ask("rangelock f ex 0 10 0"), "ok");
    drop(away);
    daemon.signal(Signal::TERM);
    let line = daemon.wait_for_log("shutting down");
    assert!(line.contains("3 held"), "{line}");
    let refused = daemon.http().try_acquire("web", "other", "\"ttl_ms\":1000");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(daemon.http().renew(&lease, 1_000).json()["renewed"], true);
    assert_eq!(daemon.http().release(&lease).json()["released"], true);
    let renewed = daemon.connect().ask(&format!("n job {} 600", kept.token));
    assert!(renewed.starts_with("ok 600"), "{renewed}");
    let released = daemon.connect().ask(&format!("r job {}", kept.token));
    assert_eq!(released, "ok");
    let mut back = daemon.connect();
    assert!(back.ask("attach gw/1 600 s3cret").ends_with(" resumed"));
    assert_eq!(back.ask("rangeunlock f 0 10"), "ok");
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn leases_without_a_connection_end_while_draining() {
    let mut daemon = Daemon::start(&["--shutdown-timeout=0", "--http-port=0"]);
    daemon.http().acquire("web", "me", "\"ttl_ms\":300");
    let start = Instant::now();
    let mut script = daemon.connect();
    script.ask("hello _ keep=1");
    script.lock("job", "0 200ms");
    drop(script);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_exit().0, 0);
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn holders_without_a_connection_lose_all_after_the_timeout_or_a_second_signal() {
    for (timeout, told_twice) in [
        ("--shutdown-timeout=200ms", false),
        ("--shutdown-timeout=0", true),
    ] {
        let mut daemon = Daemon::start(&[timeout]);
        let mut script = daemon.connect();
        script.ask("hello _ keep=1");
        script.lock("job", "0 600");
        drop(script);
        let start = Instant::now();
        daemon.signal(Signal::TERM);
        daemon.wait_for_log("shutting down: 1 held");
        if told_twice {
            assert_eq!(daemon.connect().ask("ping _ _"), "ok", "it waits");
            daemon.signal(Signal::TERM);
        }
        let (code, log) = daemon.wait_for_exit();
        assert_eq!(code, 0);
        let waited_200_ms = start.elapsed() >= Duration::from_millis(200);
        assert!(told_twice || waited_200_ms);
        let why = match told_twice {
            true => "told to stop again: 1 held, ",
            false => "shutdown: 1 held, 0 connections left after --shutdown-timeout",
        };
        assert!(log.iter().any(|line| line.contains(why)), "{log:#?}");
    }
}

#[test]
fn a_second_signal_waits_for_nobody() {
    let mut daemon = Daemon::start(&["--shutdown-timeout=0"]);
    let mut holder = daemon.connect();
    holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down: 1 held");
    assert!(holder.is_open_and_quiet());
    daemon.signal(Signal::TERM);
    holder.end();
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 0);
    let again = "told to stop again: 1 held, 1 connection left";
    assert!(log.iter().any(|line| line.ends_with(again)), "{log:#?}");
}

#[test]
fn the_log_says_how_much_is_held_and_how_to_force_the_end() {
    for (holders, said) in [
        (0, "shutting down: nothing is held"),
        (2, "shutting down: 2 held; waiting for releases"),
    ] {
        let mut daemon = Daemon::start(&[]);
        let mut clients: Vec<Client> = (0..holders).map(|_| daemon.connect()).collect();
        for (nth, client) in clients.iter_mut().enumerate() {
            client.lock(&format!("k{nth}"), "0");
        }
        daemon.signal(Signal::TERM);
        let line = daemon.wait_for_log(said);
        assert_eq!(line.contains("a second signal"), holders > 0, "{line}");
        drop(clients);
        assert_eq!(daemon.wait_for_exit().0, 0);
    }
}

#[test]
fn the_shutdown_timeout_forces_by_itself_and_not_before() {
    let mut daemon = Daemon::start(&["--shutdown-timeout=200ms"]);
    let mut holder = daemon.connect();
    holder.lock("k", "0");
    let start = Instant::now();
    daemon.signal(Signal::TERM);
    holder.end();
    assert!(start.elapsed() >= Duration::from_millis(200));
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 0);
    assert!(
        log.iter()
            .any(|line| line.contains("1 held, 1 connection left after --shutdown-timeout")),
        "{log:#?}"
    );
}

#[test]
fn sighup_is_logged_and_takes_nothing_from_anyone() {
    let mut daemon = Daemon::start(&[]);
    let (mut holder, mut other) = (daemon.connect(), daemon.connect());
    let grant = holder.lock("k", "0");
    daemon.signal(Signal::HUP);
    let line = daemon.wait_for_log("SIGHUP");
    assert!(
        line.contains(" INFO ") && line.contains("restart"),
        "{line}"
    );
    assert_eq!(other.ask("l k 0"), "timeout", "k is still held");
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
    holder.release("k", &grant);
    daemon.stop();
}

#[test]
fn sighup_is_no_second_signal_to_stop() {
    let mut daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("SIGHUP");
    holder.release("k", &grant);
    holder.expect_end();
    assert_eq!(daemon.wait_for_exit().0, 0);
}

/// Stopped for longer than the lease; what was in the socket by then still counts.
#[test]
fn a_release_that_came_while_it_was_stopped_is_heard_before_the_lease_ends() {
    let daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0 1");
    daemon.freeze();
    holder.put(&format!("r k {}", grant.token));
    let answer = holder.line_within(Duration::from_millis(1_100));
    assert_eq!(answer, None, "a stopped process answers");
    daemon.thaw();
    holder.expect("ok");
    let totals = &holder.stats()["totals"];
    assert_eq!(
        (&totals["releases"], &totals["expiries"]),
        (&1.into(), &0.into())
    );
}

/// The release stands behind a thousand other sockets that have something to say.
#[test]
fn a_release_behind_a_thousand_others_is_heard_before_the_lease_ends() {
    let daemon = Daemon::start(&[]);
    let mut others: Vec<Client> = (0..1_500).map(|_| daemon.connect()).collect();
    for other in &mut others {
        assert_eq!(other.ask("ping _ _"), "ok");
    }
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0 1");
    daemon.freeze();
    for other in &mut others {
        other.put("ping _ _");
    }
    holder.put(&format!("r k {}", grant.token));
    assert_eq!(holder.line_within(Duration::from_millis(1_100)), None);
    daemon.thaw();
    holder.expect("ok");
    for other in &mut others {
        other.expect("ok");
    }
}

#[test]
fn a_renewal_that_is_too_late_when_the_daemon_wakes_does_not_bring_the_lock_back() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut next) = (daemon.connect(), daemon.connect());
    let grant = holder.lock("k", "0 1");
    next.put("l k 60");
    daemon.connect().wait_for_waiters("k", 1);
    daemon.freeze();
    holder.put(&format!("n k {}", grant.token));
    assert_eq!(holder.line_within(Duration::from_millis(1_100)), None);
    daemon.thaw();
    holder.expect("error_lease_expired");
    next.grant();
}
