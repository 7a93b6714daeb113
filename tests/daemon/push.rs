//! News over real sockets: a crowd that listens, listeners that do not read, values on their way.
//!
//! How much a kernel buffers is its own affair, so only bounds are asserted here; to the byte it is
//! done over pipes, in `tests/server/push.rs`.

use std::time::{Duration, Instant};

use crate::vocabulary::{Client, Daemon, frame};

/// More than any kernel keeps for one connection, with what the daemon keeps, in signals of 60 KB.
const SIGNALS_MAX: usize = 2_000;

fn payload(nth: usize) -> String {
    format!("{nth:0>60000}")
}

fn listener(daemon: &Daemon, what: &str) -> Client {
    let mut client = daemon.connect();
    assert_eq!(client.ask(what), "ok");
    client
}

#[test]
fn a_listener_that_does_not_read_is_closed_and_the_others_hear_everything() {
    let daemon = Daemon::start(&["--write-timeout=0", "--debug"]);
    let mut speaker = daemon.connect();
    let mut slow = daemon.connect_with_small_receive_buffer();
    assert_eq!(slow.ask("listen evt"), "ok");
    let mut hears = listener(&daemon, "listen evt.>");
    assert_eq!(hears.ask("listen evt"), "ok");
    let mut told = 0;
    while speaker.ask(&format!("signal evt {}", payload(told))) == "ok 2" {
        hears.expect(&format!("sig evt {}", payload(told)));
        told += 1;
        assert!(told < SIGNALS_MAX, "somebody keeps all of it");
    }
    // The last one was told to the other alone, and the count says so.
    hears.expect(&format!("sig evt {}", payload(told)));
    assert!(told >= 64, "closed after only {told}");
    let stats = speaker.stats();
    assert_eq!(stats["connections"], 2);
    assert_eq!(stats["totals"]["slow_consumers"], 1);
    for _ in 0..3 {
        assert_eq!(speaker.ask("signal evt on we go"), "ok 1");
        hears.expect("sig evt on we go");
    }
    // What it had not read is whole lines, in order, and then the end.
    let (bytes, _) = slow.rest();
    let text = String::from_utf8(bytes).unwrap();
    for (nth, line) in text.split_inclusive('\n').enumerate() {
        let signal = format!("sig evt {}\n", payload(nth));
        assert!(signal.starts_with(line), "{nth}");
        assert!(line == signal || nth >= text.lines().count() - 1);
    }
    assert!(text.lines().count() < told, "it was told everything");
    daemon.wait_for_log("bytes pushed to it are unread");
    let log = daemon.log();
    let lines = log.iter().filter(|line| line.contains("pushed to it"));
    assert_eq!(lines.count(), 1, "{log:#?}");
}

/// The price of slowness is paid by the slow alone, and is bounded.
#[test]
fn slow_listeners_cost_a_bounded_amount_of_memory() {
    let daemon = Daemon::start(&["--write-timeout=0"]);
    let mut speaker = daemon.connect();
    let before_kib = daemon.resident_kib();
    let mut slow: Vec<Client> = (0..4)
        .map(|_| daemon.connect_with_small_receive_buffer())
        .collect();
    for slow in &mut slow {
        assert_eq!(slow.ask("listen evt"), "ok");
    }
    let mut told = 0;
    while speaker.ask(&format!("signal evt {}", payload(told))) != "ok 0" {
        // 4 MiB for each, as a buffer that grows by doubling.
        let grown_kib = daemon.resident_kib().saturating_sub(before_kib);
        assert!(grown_kib < 64 * 1024, "grown by {grown_kib} KiB");
        told += 1;
        assert!(told < SIGNALS_MAX, "somebody keeps all of it");
    }
    assert_eq!(speaker.stats()["totals"]["slow_consumers"], 4);
    assert_eq!(speaker.stats()["connections"], 1);
}

#[test]
fn two_thousand_listeners_all_hear() {
    let daemon = Daemon::start(&[]);
    let mut speaker = daemon.connect();
    let mut crowd: Vec<Client> = (0..2_000).map(|_| daemon.connect()).collect();
    for (nth, client) in crowd.iter_mut().enumerate() {
        client.put(["listen evt.x", "listen evt.*", "listen >"][nth % 3]);
    }
    for client in &mut crowd {
        client.expect("ok");
    }
    assert_eq!(speaker.ask("signal evt.x hello everyone"), "ok 2000");
    for client in &mut crowd {
        client.expect("sig evt.x hello everyone");
    }
    // Half of them go, by goodbye or reset; the others are told as before.
    for (nth, client) in crowd.drain(..1_000).enumerate() {
        if nth % 2 == 0 {
            client.reset();
        }
    }
    let start = Instant::now();
    while speaker.stats()["connections"] != 1_001 {
        assert!(start.elapsed() < crate::vocabulary::PATIENCE, "still there");
    }
    assert_eq!(speaker.ask("signal evt.x and again"), "ok 1000");
    for client in &mut crowd {
        client.expect("sig evt.x and again");
    }
    assert!(crowd[0].is_open_and_quiet());
}

#[test]
fn a_listener_may_be_silent_and_a_former_one_may_not() {
    let daemon = Daemon::start(&["--read-timeout=300ms"]);
    let mut listener = listener(&daemon, "listen evt");
    let mut watcher = self::listener(&daemon, "watch k");
    let mut observer = self::listener(&daemon, "observe L");
    let mut popper = daemon.connect();
    popper.put("blpop q 60");
    for _ in 0..3 {
        let start = Instant::now();
        let mut idle = daemon.connect();
        idle.expect_end(); // without a word
        assert!(start.elapsed() >= Duration::from_millis(300));
    }
    let mut actor = daemon.connect();
    actor.lock("mine", "0"); // so that it may take its time
    assert_eq!(actor.ask("signal evt hi"), "ok 1");
    listener.expect("sig evt hi");
    assert_eq!(actor.ask("incr k 1"), "ok 1");
    watcher.expect("watch incr k");
    actor.put("elect L 0");
    actor.grant();
    observer.expect("leader elected L");
    assert_eq!(actor.ask("rpush q v"), "ok 0");
    popper.expect("ok v");
    assert_eq!(listener.ask("unlisten evt"), "ok");
    assert_eq!(watcher.ask("unwatch k"), "ok");
    assert_eq!(observer.ask("unobserve L"), "ok");
    for client in [&mut listener, &mut watcher, &mut observer, &mut popper] {
        client.expect_end();
    }
}

/// What the kernel took is the client's, whether it reads it or not; everything else is in the list
/// again, in order, nothing twice.
#[test]
fn values_popped_for_a_client_that_is_reset_go_back_in_order() {
    const VALUES: usize = 300;
    let daemon = Daemon::start(&["--write-timeout=0"]);
    let mut other = daemon.connect();
    for nth in 0..VALUES {
        let length = other.ask(&format!("rpush q {}", payload(nth)));
        assert_eq!(length, format!("ok {}", nth + 1));
    }
    let mut popper = daemon.connect_with_small_receive_buffer();
    popper.raw(frame("lpop q").repeat(VALUES));
    const READ: usize = 5;
    for nth in 0..READ {
        popper.expect(&format!("ok {}", payload(nth)));
    }
    // It reads no more, so after a while no more is popped for it.
    let (mut left, mut unchanged) = (VALUES, 0);
    while unchanged < 50 {
        let now = length(&mut other);
        unchanged = if now == left { unchanged + 1 } else { 0 };
        left = now;
    }
    assert!(left > 0, "the kernel took all of it");
    popper.reset();
    let start = Instant::now();
    while other.stats()["connections"] != 1 {
        assert!(start.elapsed() < crate::vocabulary::PATIENCE, "still there");
    }
    let back = length(&mut other);
    assert!(back > left, "{left} were left, and nothing came back");
    assert!(back <= VALUES - READ, "what was read came back");
    for nth in VALUES - back..VALUES {
        assert_eq!(other.ask("lpop q"), format!("ok {}", payload(nth)));
    }
    assert_eq!(other.ask("lpop q"), "nil");
}

fn length(client: &mut Client) -> usize {
    let answer = client.ask("llen q");
    answer.strip_prefix("ok ").unwrap().parse().unwrap()
}

/// In at one end, out at the other: what has passed through is not kept, and a list that was long
/// does not stay large.
#[test]
fn a_queue_that_is_emptied_as_it_is_filled_keeps_no_memory() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let pair = frame(&format!("rpush q {}", "v".repeat(1_000))) + &frame("lpop q");
    let mut round = |daemon: &Daemon| {
        client.raw(pair.repeat(100));
        for _ in 0..100 {
            client.expect("ok 1");
            assert_eq!(client.line().len(), 1_003);
        }
        daemon.resident_kib()
    };
    let before_kib = (0..10).map(|_| round(&daemon)).last().unwrap();
    let after_kib = (0..200).map(|_| round(&daemon)).last().unwrap();
    // 20 MB went through.
    let grown_kib = after_kib.saturating_sub(before_kib);
    assert!(grown_kib < 4 * 1024, "grown by {grown_kib} KiB");
}
