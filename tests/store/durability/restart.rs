//! Restarts in order: what is held stays held, who has the directory, what the process looks like.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use latchd::base::Nanos;
use latchd::engine::types::Record;
use latchd::key::Key;
use latchd::store::{Clocks, Notice, Store};
use rustix::process::Signal;

use crate::durability::directory::{
    Directory, epoch, holder, keep, kill, open, reserve_fences, who,
};
use crate::vocabulary::{Client, Daemon, latchd, refusal};

const UNCLEAN: &str = "did not stop in order";

/// A client that reads the fence in every answer.
fn connect(daemon: &Daemon) -> Client {
    let mut client = daemon.connect();
    epoch(&mut client);
    client
}

#[test]
fn a_server_that_stops_is_not_a_client_that_left() {
    let directory = Directory::new();
    let mut daemon = directory.start(&["--shutdown-timeout=1ms"]);
    let mut holders: Vec<Client> = (0..3).map(|_| connect(&daemon)).collect();
    let lock = holders[0].lock("k", "0 600");
    holders[1].put("sl pool 0 2 600");
    let slot = holders[1].grant();
    let lead = {
        holders[2].put("elect chief 0 600");
        holders[2].grant()
    };
    let free = holders[0].lock("free", "0 600");
    holders[0].release("free", &free);
    let log = {
        daemon.signal(Signal::TERM);
        for holder in &mut holders {
            holder.expect_end();
        }
        let (code, log) = daemon.wait_for_exit();
        assert_eq!(code, 0, "{log:#?}");
        log
    };
    assert!(log.last().unwrap().ends_with("stopped"), "{log:#?}");

    let daemon = directory.start(&[]);
    assert!(!daemon.logged("WARN"), "{:#?}", daemon.log());
    let mut client = daemon.connect();
    assert_eq!(epoch(&mut client), 2);
    for (key, grant) in [("k", &lock), ("pool", &slot), ("chief", &lead)] {
        let who = who(&mut client, key);
        assert_eq!(who["holder_count"], 1, "{who}");
        let holder = &who["holders"][0];
        assert_eq!(holder["fence"], grant.token_fence());
        assert!(holder["connection"].is_null(), "{holder}");
        assert_eq!(holder["restored"], true, "{holder}");
        assert!(holder["lease_left_s"].as_f64().unwrap() > 590.0, "{holder}");
    }
    assert_eq!(holder(&mut client, "free"), None);
    assert_eq!(client.ask("l k 0"), "timeout");
}

/// By a renewal or by `reclaim`, with the fence it had; then it goes when the connection goes.
/// Leases are on disk, so there is nothing to wait for; what is not on disk is waited for.
#[test]
fn a_stop_waits_only_for_what_is_not_on_disk() {
    let directory = Directory::new();
    let mut daemon = directory.start(&["--shutdown-timeout=0", "--http-port=0"]);
    let lease = daemon.http().acquire("web", "me", "\"ttl_ms\":600000");
    let mut holder = connect(&daemon);
    let grant = holder.lock("k", "0 600");
    daemon.signal(Signal::TERM);
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 0, "{log:#?}");
    let said = "shutting down: 2 held, on disk for the next start";
    assert!(log.iter().any(|line| line.ends_with(said)), "{log:#?}");
    drop(daemon);

    let mut daemon = directory.start(&["--shutdown-timeout=0", "--http-port=0"]);
    let mut holder = connect(&daemon);
    assert_eq!(holder.ask(&format!("r k {}", grant.token)), "ok");
    let mut bytes = connect(&daemon);
    assert_eq!(bytes.ask("rangelock f ex 0 10 0"), "ok");
    daemon.signal(Signal::TERM);
    let line = daemon.wait_for_log("shutting down");
    assert!(
        line.contains("byte ranges or queue places of 1 connection"),
        "{line}"
    );
    assert_eq!(daemon.http().release(&lease).json()["released"], true);
    assert_eq!(bytes.ask("rangeunlock f 0 10"), "ok");
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn sigterm_while_loading_is_a_stop_in_order() {
    let directory = Directory::new();
    let value = |number: u32| Record::Stored {
        key: Key::from(format!("k{number}").as_bytes()),
        value: b"v".as_slice().into(),
        ends: None,
    };
    keep(
        directory.path(),
        0,
        &(0..20_000).map(value).collect::<Vec<_>>(),
    );
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::spawn(directory.command(&[]));
        let pid = format!("{}\n", daemon.pid().as_raw_nonzero());
        let lock = directory.path().join("LOCK");
        while !std::fs::read(&lock).is_ok_and(|bytes| bytes.starts_with(pid.as_bytes())) {
            std::thread::yield_now();
        }
        daemon.signal(signal);
        let (code, log) = daemon.wait_for_exit();
        assert_eq!(code, 0, "{log:#?}");
        assert!(log.last().unwrap().ends_with("stopped"), "{log:#?}");
        assert!(
            !log.iter().any(|line| line.contains("listens on")),
            "{log:#?}"
        );
    }
    let daemon = directory.start(&[]);
    assert!(!daemon.logged("WARN"), "{:#?}", daemon.log());
}

#[test]
fn who_has_the_token_has_the_lock_back_and_leaves_it_with_the_connection() {
    for verb in ["n", "reclaim"] {
        let directory = Directory::new();
        let mut daemon = directory.start(&["--shutdown-timeout=1ms"]);
        let mut client = connect(&daemon);
        let grant = client.lock("k", "0 600");
        daemon.stop();

        let daemon = directory.start(&[]);
        let (mut heir, mut waiter) = (connect(&daemon), connect(&daemon));
        let mut wrong = grant.clone();
        wrong
            .token
            .replace_range(31.., if grant.token.ends_with('0') { "1" } else { "0" });
        let refused = heir.ask(&format!("{verb} k {} 60", wrong.token));
        assert!(refused.starts_with("error"), "{refused}");
        waiter.put("l k 60 600");
        connect(&daemon).wait_for_waiters("k", 1);

        let (token, fence) = (&grant.token, grant.token_fence());
        let answer = heir.ask(&format!("{verb} k {token} 300"));
        let expected = match verb {
            "n" => format!("ok 300 {fence}"),
            _ => format!("ok {token} 300 {fence}"),
        };
        assert_eq!(answer, expected);
        let holder = who(&mut connect(&daemon), "k")["holders"][0].clone();
        assert!(holder["restored"].is_null(), "{holder}");
        assert!(waiter.is_open_and_quiet());
        drop(heir);
        assert!(waiter.grant().token_fence() > fence);
    }
}

/// More than half of the lease has passed when the daemon stops, and all of it runs again.
#[test]
fn if_nobody_comes_the_whole_lease_runs_and_then_the_queue_is_served() {
    let directory = Directory::new();
    let mut daemon = directory.start(&["--shutdown-timeout=600ms"]);
    let mut client = connect(&daemon);
    let grant = client.lock("k", "0 1");
    daemon.stop();
    let before = Instant::now();
    let daemon = directory.start(&[]);
    let mut waiter = connect(&daemon);
    waiter.put("l k 60");
    let next = waiter.grant();
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(next.token_fence() > grant.token_fence());
    let mut late = connect(&daemon);
    assert_eq!(
        late.ask(&format!("reclaim k {}", grant.token)),
        "error_reclaim"
    );
}

/// From the first moment at which somebody can connect.
#[test]
fn whoever_comes_during_the_start_finds_everything_held() {
    const LOCKS: usize = 10_000;
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    let frames = (0..LOCKS).map(|number| format!("l\nk{number}\n0 600\n"));
    client.raw(frames.collect::<String>());
    (0..LOCKS).for_each(|_| drop(client.grant()));
    kill(daemon);
    let socket = directory.path().with_extension("sock");
    let mut command = directory.command(&["--unix-socket"]);
    command.arg(&socket);
    let daemon = Daemon::spawn(command);
    while UnixStream::connect(&socket).is_err() {}
    let mut client = Client::unix(&socket);
    for number in [LOCKS - 1, 0, LOCKS / 2] {
        assert_eq!(client.ask(&format!("l k{number} 0")), "timeout");
    }
    daemon.wait_for_log(&format!("{LOCKS} held"));
}

#[test]
fn nothing_is_had_back_where_nothing_was_kept() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    let grant = client.lock("k", "0");
    let answer = client.ask(&format!("reclaim k {}", grant.token));
    assert_eq!(answer, "error_no_grace");
}

#[test]
fn a_value_keeps_the_moment_of_its_end() {
    let directory = Directory::new();
    let mut daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    let before = Instant::now();
    client.raw("kset\nshort\nv\t1\nkset\nlong\nv\t600\nkset\nfor-ever\nv\n");
    (0..3).for_each(|_| client.expect("ok"));
    let stored = Instant::now();
    daemon.stop();
    let mut daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    while client.ask("kget short _") == "ok v" {}
    assert!(before.elapsed() >= Duration::from_secs(1), "it ended early");
    daemon.stop();
    let daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    assert_eq!(client.ask("kget short _"), "nil");
    assert_eq!(client.ask("kget for-ever _"), "ok v");
    let left_s_max = 600.0 - stored.elapsed().as_secs_f64();
    let stats = client.stats();
    let entries = stats["kv_entries"].as_array().unwrap();
    let long = entries.iter().find(|it| it["key"] == "long").unwrap();
    let left_s = long["ttl"].as_f64().unwrap();
    assert!(left_s < left_s_max + 1.0, "{left_s} and not {left_s_max}");
}

/// Also if the clock is set back later, and nothing of it is left on the disk.
#[test]
fn a_value_that_ended_while_nobody_served_has_ended_for_good() {
    const GONE: &[u8] = b"the value that is gone";
    let directory = Directory::new();
    let stored = |key: &[u8], value: &[u8], seconds: u64| Record::Stored {
        key: Key::from(key),
        value: value.into(),
        ends: Some(Nanos(seconds * 1_000_000_000)),
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let earlier_ms = since_1970.as_millis() as u64 - 100_000;
    let records = [stored(b"gone", GONE, 1), stored(b"there", b"still", 900)];
    keep(directory.path(), earlier_ms, &records);
    let mut daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    assert_eq!(client.ask("kget gone _"), "nil");
    assert_eq!(client.ask("kget there _"), "ok still");
    daemon.stop();

    let (report, notices) = mpsc::channel();
    let report = move |notice| report.send(notice).unwrap_or(());
    let mut life = open(directory.path(), earlier_ms, report);
    let mut there = BTreeSet::new();
    let clocks = Clocks {
        now: Nanos(0),
        wall_ms: earlier_ms,
    };
    let restore = |record| match record {
        Record::Stored { key, .. } => drop(there.insert(key.as_bytes().to_vec())),
        Record::Deleted { key } => drop(there.remove(key.as_bytes())),
        _ => {}
    };
    life.restore.each(clocks, restore, |_| {}).unwrap();
    assert_eq!(there, BTreeSet::from([b"there".to_vec()]));

    let has_gone = || {
        let mut files = directory.files().into_values();
        files.any(|bytes| bytes.windows(GONE.len()).any(|it| it == GONE))
    };
    assert!(has_gone(), "as long as nothing was compacted");
    loop {
        life.journal
            .append(Nanos(0), &stored(b"k", &[1; 10_000], 900));
        life.journal.commit(Nanos(0));
        match notices.try_recv() {
            Ok(Notice::Compacted(_)) => break,
            Ok(notice) => panic!("{notice}"),
            Err(_) => {}
        }
    }
    life.journal.stop().unwrap();
    assert!(!has_gone());
}

/// It has not served anybody, so nothing can be missing; nor does it hide that something may be.
#[test]
fn a_start_that_fails_says_nothing_about_how_the_last_run_ended() {
    let directory = Directory::new();
    let other = Daemon::start(&[]);
    let port = other.address().port().to_string();
    let fails_to_start = || refusal(69, directory.command(&["--port", &port]));
    let mut daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    let grant = client.lock("k", "0 600");
    client.release("k", &grant);
    daemon.stop();
    for _ in 0..3 {
        let said = fails_to_start();
        assert!(!said.contains(UNCLEAN), "{said}");
    }
    let daemon = directory.start(&[]);
    assert!(!daemon.logged("WARN"), "{:#?}", daemon.log());
    let mut client = connect(&daemon);
    client.lock("other", "0 600");
    kill(daemon);
    for _ in 0..2 {
        let said = fails_to_start();
        assert!(said.contains(UNCLEAN), "{said}");
    }
    let daemon = directory.start(&[]);
    assert!(daemon.logged(UNCLEAN), "{:#?}", daemon.log());
}

#[test]
fn the_epoch_grows_with_every_start_and_a_kill_is_told_of() {
    let directory = Directory::new();
    for start in 1..=6 {
        let mut daemon = directory.start(&[]);
        let mut client = daemon.connect();
        assert_eq!(epoch(&mut client), start);
        assert!(daemon.logged(&format!("epoch {start}")));
        assert_eq!(client.stats()["totals"]["epoch"], start);
        let was_killed = start > 1 && start % 2 == 0;
        assert_eq!(daemon.logged(UNCLEAN), was_killed, "{start}");
        if start % 2 == 0 {
            daemon.stop();
        } else {
            kill(daemon);
        }
    }
}

#[test]
fn what_an_async_run_may_have_lost_is_told_of_after_a_kill_only() {
    let directory = Directory::new();
    let may_be_lost = "last 100 ms";
    let mut daemon = directory.start(&["--durability=async"]);
    daemon.stop();
    let daemon = directory.start(&["--durability=async"]);
    assert!(!daemon.logged(UNCLEAN));
    kill(daemon);
    let daemon = directory.start(&[]);
    let line = daemon.wait_for_log(UNCLEAN);
    assert!(line.contains(may_be_lost), "{line}");
    kill(daemon);
    let mut daemon = directory.start(&[]);
    let line = daemon.wait_for_log(UNCLEAN);
    assert!(!line.contains(may_be_lost), "{line}");
    assert!(
        line.contains("something that was acknowledged may be lost"),
        "{line}"
    );
    // Clients have had no time to miss anything, so a stop in order changes nothing about that…
    daemon.stop();
    drop(daemon);
    let mut daemon = directory.start(&[]);
    let line = daemon.wait_for_log("may be lost");
    assert!(!line.contains(may_be_lost), "{line}");
    // …before the grace period is over.
    assert_eq!(connect(&daemon).ask("grace _ end"), "ok 0 0 0");
    daemon.stop();
    drop(daemon);
    kill(directory.start(&[]));
    let line = directory.start(&[]).wait_for_log(UNCLEAN);
    assert!(
        line.contains("everything it acknowledged is here"),
        "{line}"
    );
}

#[test]
fn a_second_daemon_on_the_directory_ends_and_touches_nothing() {
    let directory = Directory::new();
    let first = directory.start(&[]);
    let mut client = connect(&first);
    client.lock("k", "0 600");
    let before = directory.files();
    let said = refusal(75, directory.command(&[]));
    assert!(directory.files() == before, "it changed something");
    let pid = first.status("Pid");
    assert!(said.contains(&format!("process {pid};")), "{said}");
    assert!(said.contains("--data-dir"), "{said}");
    assert_eq!(client.ask("ping _ _"), "ok");
    // The directory, not its name, is taken: the next one gets it.
    kill(first);
    directory.start(&[]);
}

#[test]
fn the_only_thread_besides_the_loop_is_the_journals() {
    let without = Daemon::start(&[]);
    let directory = Directory::new();
    let with = directory.start(&[]);
    for (daemon, threads) in [(&without, "1"), (&with, "2")] {
        let mut client = daemon.connect();
        for key in 0..100 {
            client.lock(&format!("k{key}"), "0");
        }
        assert_eq!(daemon.status("Threads"), threads);
    }
}

#[test]
fn a_directory_that_is_added_later_never_lowers_fences() {
    let mut daemon = Daemon::start(&[]);
    let without = daemon.connect().lock("k", "0").token_fence();
    daemon.stop();
    let directory = Directory::new();
    let mut daemon = directory.start(&[]);
    let with = daemon.connect().lock("k", "0").token_fence();
    assert!(with > without, "{with} after {without}");
    daemon.stop();
    // Another key: who has just closed its connection may be gone for the daemon that stops, or not.
    let again = directory.start(&[]).connect().lock("l", "0").token_fence();
    assert!(again > with, "{again} after {with}");
}

/// The directory knows of fences that the clock will reach in years only: as if it had been set back.
#[test]
fn fences_go_on_also_where_the_clock_is_behind_them() {
    let directory = Directory::new();
    let mut highest = directory.start(&[]).connect().lock("k", "0").token_fence();
    let upto = highest + (1 << 50);
    reserve_fences(directory.path(), upto);
    highest = highest.max(upto);
    for life in 0..3 {
        let daemon = directory.start(&[]);
        let fence = daemon
            .connect()
            .lock(&format!("k{life}"), "0")
            .token_fence();
        assert!(fence > highest, "{fence} after {highest}");
        highest = fence;
        kill(daemon);
    }
}

#[test]
fn a_client_has_its_locks_back_after_a_kill_with_its_secret_and_nobody_else_has() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    assert_eq!(client.ask("attach gw/1 600 s3cret"), "ok 1 new");
    let grant = client.lock("k", "0 600");
    let mut other = connect(&daemon);
    assert_eq!(other.ask("attach gw/2 0 s3cret"), "ok 1 new");
    other.lock("other", "0 600");
    kill(daemon);

    let daemon = directory.start(&[]);
    let (mut heir, mut stranger) = (connect(&daemon), connect(&daemon));
    let held = who(&mut stranger, "k");
    assert_eq!(held["holders"][0]["client"], "gw/1", "{held}");
    assert!(held["holders"][0].get("restored").is_none(), "{held}");
    assert_eq!(stranger.ask("attach gw/1 600 guess"), "error_auth");
    assert_eq!(stranger.ask("l k 0"), "timeout");
    assert_eq!(heir.ask("attach gw/1 0 s3cret"), "ok 2 resumed");
    let token = &grant.token;
    assert!(heir.ask(&format!("n k {token} 600")).starts_with("ok 600"));
    // A client that is not kept is gone, and what it held is anybody's who has the token.
    assert_eq!(stranger.ask("attach gw/2 0 s3cret"), "ok 2 new");
    let held = who(&mut stranger, "other");
    assert_eq!(held["holders"][0]["restored"], true, "{held}");
    stranger.put("l k 10");
    drop(heir);
    stranger.grant();
}

#[test]
fn a_look_inside_disturbs_nobody() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = connect(&daemon);
    assert_eq!(client.ask("attach gw/1 10 s3cret"), "ok 1 new");
    let fence = client.lock("job", "0 600").token_fence();
    let before = directory.files();
    for options in [&[][..], &["--json"]] {
        let mut command = latchd();
        command.arg("--inspect").arg(directory.path()).args(options);
        let mut look = Daemon::spawn(command);
        let (code, log) = look.wait_for_exit();
        assert_eq!((code, log), (0, Vec::new()), "{options:?}");
        let text = look.stdout();
        for shown in ["job", "gw/1", &fence.to_string(), &daemon.status("Pid")] {
            assert!(text.contains(shown), "{shown} is not in {text}");
        }
        if !options.is_empty() {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }
    assert!(directory.files() == before, "it changed something");
    assert_eq!(client.ask("incr c 1"), "ok 1");
}
