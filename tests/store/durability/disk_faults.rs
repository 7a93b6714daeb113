//! A disk that fails or takes its time: `strace` answers in its place, or makes it late.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use latchd::engine::types::Record;
use latchd::key::Key;
use tempfile::NamedTempFile;

use crate::durability::directory::{Directory, epoch, holder, keep};
use crate::vocabulary::{Daemon, frame};

/// A tracer that stays with a daemon until this is dropped or the daemon ends.
struct Faults {
    tracer: Child,
    /// It tells of every new thread here, and would end if nobody could read it.
    _stderr: BufReader<ChildStderr>,
    calls: NamedTempFile,
}

impl Faults {
    /// From now on, calls have these faults, in the words of `strace`; or why that cannot be had.
    fn inject(daemon: &Daemon, call: &str, fault: &str) -> Result<Self, String> {
        let calls = NamedTempFile::new().unwrap();
        let mut tracer = Command::new("strace")
            .args(["-f", "-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:{fault}"), "-o"])
            .arg(calls.path())
            .args(["-p", &daemon.status("Pid")])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut said = String::new();
        let mut stderr = BufReader::new(tracer.stderr.take().unwrap());
        stderr.read_line(&mut said).unwrap();
        if !said.contains("attached with 2 threads") {
            let _ = tracer.kill();
            let _ = tracer.wait();
            return Err(said);
        }
        Ok(Self {
            tracer,
            _stderr: stderr,
            calls,
        })
    }

    /// The calls so far, in order.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.calls.path()).unwrap();
        let calls = text.lines().filter(|line| !line.contains("+++"));
        calls.map(str::to_owned).collect()
    }

    /// All calls, when the daemon has ended.
    fn all_calls(&mut self) -> Vec<String> {
        self.tracer.wait().unwrap();
        self.calls()
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let _ = self.tracer.kill(); // or it has ended with the daemon
        let _ = self.tracer.wait();
    }
}

/// What `strace` was asked for, unless it cannot be had.
fn or_skip(faults: Result<Faults, String>) -> Option<Faults> {
    match faults {
        Ok(faults) => Some(faults),
        Err(why) => {
            crate::durability::skip("a strace that may trace other processes", &why);
            None
        }
    }
}

#[test]
fn a_sync_that_fails_ends_the_daemon_and_nobody_is_told_anything() {
    let directory = Directory::new();
    let mut daemon = directory.start(&[]);
    let (mut before, mut client, mut reader) =
        (daemon.connect(), daemon.connect(), daemon.connect());
    let kept = before.lock("kept", "0 600");
    let faults = Faults::inject(&daemon, "fdatasync", "error=EIO:when=1");
    let Some(mut faults) = or_skip(faults) else {
        return;
    };
    client.put("l lost 0 600");
    reader.put("who lost _");
    // Not one byte: neither who changed it nor who looks at it may hear of it.
    for client in [&mut client, &mut reader, &mut before] {
        let (bytes, _) = client.rest();
        assert!(bytes.is_empty(), "{:?}", String::from_utf8_lossy(&bytes));
    }
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 74, "{log:#?}");
    let log = log.join("\n");
    assert!(log.contains("ERROR") && log.contains("sync"), "{log}");
    assert!(!log.ends_with("stopped"), "{log}");
    let calls = faults.all_calls();
    assert_eq!(calls.len(), 1, "it was tried again: {calls:#?}");
    assert!(calls[0].contains("EIO"), "{calls:?}");

    let daemon = directory.start(&[]);
    assert_eq!(
        holder(&mut daemon.connect(), "kept"),
        Some(kept.token_fence())
    );
}

/// The name of a snapshot is as important as what is in it.
#[test]
fn a_compaction_whose_name_cannot_be_synced_ends_the_daemon_as_well() {
    let directory = Directory::new();
    // So many files that they are compacted at the first change.
    for number in 1..=17 {
        let key = Key::from(format!("k{number}").as_bytes());
        keep(directory.path(), 0, &[Record::Counted { key, value: 5 }]);
    }
    let mut daemon = directory.start(&[]);
    let mut client = daemon.connect();
    let faults = Faults::inject(&daemon, "fsync", "error=EIO:when=1");
    let Some(mut faults) = or_skip(faults) else {
        return;
    };
    client.put("incr c 1");
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 74, "{log:#?}");
    let log = log.join("\n");
    assert!(log.contains("ERROR") && log.contains("snapshot"), "{log}");
    let calls = faults.all_calls();
    assert_eq!(calls.len(), 1, "it was tried again: {calls:#?}");
    // That change was on the disk before.
    let told = client.rest().0;
    assert!(told.is_empty() || told == b"ok 1\n", "{told:?}");
    let daemon = directory.start(&[]);
    let mut client = daemon.connect();
    assert_eq!(client.ask("get c _"), "ok 1");
    for number in 1..=17 {
        assert_eq!(client.ask(&format!("get k{number} _")), "ok 5");
    }
}

#[test]
fn a_write_that_fails_ends_the_daemon_as_well() {
    let directory = Directory::new();
    let mut daemon = directory.start(&[]);
    let mut client = daemon.connect();
    let Some(_faults) = or_skip(Faults::inject(&daemon, "pwrite64", "error=EIO:when=1")) else {
        return;
    };
    client.put("l lost 0 600");
    assert!(client.rest().0.is_empty());
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 74, "{log:#?}");
}

/// Nothing was begun, so it is tried again; and whoever waits is answered then.
#[test]
fn a_write_without_room_is_tried_again() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = daemon.connect();
    let faults = Faults::inject(&daemon, "pwrite64", "error=ENOSPC:when=1");
    let Some(faults) = or_skip(faults) else {
        return;
    };
    let fence = client.lock("k", "0 600").token_fence();
    let calls = faults.calls();
    assert!(calls[0].contains("ENOSPC") && calls.len() > 1, "{calls:#?}");
    drop(faults);
    daemon.wait_for_log("full");
    crate::durability::directory::kill(daemon);
    let daemon = directory.start(&[]);
    assert_eq!(holder(&mut daemon.connect(), "k"), Some(fence));
}

/// Idle clients have every descriptor that there is. Segments are begun and compacted all the
/// same, and files are read again.
#[test]
fn running_out_of_descriptors_ends_nothing() {
    let directory = Directory::new();
    let token = NamedTempFile::new().unwrap();
    fs::write(token.path(), "secret").unwrap();
    let latchd = directory.command(&["--http-port=off", "--auth-token-file"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"]);
    command.arg(latchd.get_program()).args(latchd.get_args());
    let daemon = Daemon::serve({
        command.arg(token.path());
        command
    });
    let connect = || {
        let mut client = daemon.connect();
        assert_eq!(client.ask("auth _ secret"), "ok");
        client
    };
    let mut client = connect();
    let held = client.lock("held", "0 600");
    let mut idle = Vec::new();
    while !daemon.logged("cannot accept") {
        let mut other = daemon.connect();
        other.raw("auth\n_\nsecret\n"); // without it, the connection would make room for others
        idle.push(other);
        assert_eq!(client.ask("ping _ _"), "ok");
        assert!(idle.len() < 200, "more connections than descriptors");
    }
    let value = "v".repeat(60_000);
    let mut number = 0;
    while !daemon.logged("compacted ") {
        client.raw(format!("kset\nv{}\n{value}\n", number % 3));
        client.expect("ok");
        number += 1;
        assert!(number < 10_000, "it is never compacted");
    }
    daemon.signal(rustix::process::Signal::HUP);
    daemon.wait_for_log("is read again");
    assert_eq!(holder(&mut client, "held"), Some(held.token_fence()));
    let log = daemon.log();
    let troubles = ["cannot be compacted", "made ahead", "full", "ERROR"];
    let of_store = |line: &&String| troubles.iter().any(|it| line.contains(it));
    assert_eq!(log.iter().find(of_store), None, "{log:#?}");
    drop(idle);
    daemon.wait_for_log("accepts on");
    assert_eq!(holder(&mut connect(), "held"), Some(held.token_fence()));
}

/// The reserve is gone, too. The disk has not failed, and the daemon recovers by itself.
#[test]
fn a_segment_without_a_descriptor_is_tried_again() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let mut client = daemon.connect();
    let held = client.lock("held", "0 600");
    // None is left for a second segment.
    let limit = |soft: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &daemon.status("Pid")]);
        let status = command.arg(format!("--nofile={soft}:")).status();
        assert!(status.unwrap().success());
    };
    limit("3");
    let value = "v".repeat(60_000);
    let mut number = 0;
    loop {
        client.raw(format!("kset\nv\n{value}\n"));
        match &*client.line() {
            "ok" => number += 1,
            answer => break assert_eq!(answer, "error_storage"),
        }
        assert!(number < 10_000, "segments need no descriptor");
    }
    let line = daemon.wait_for_log("descriptors");
    assert!(!line.contains("disk"), "{line}");
    client.release("held", &held);
    limit("1024");
    daemon.wait_for_log("there is room");
    while client.ask("kset w v") == "error_storage" {}
    assert_eq!(client.ask("kget w _"), "ok v");
}

#[test]
fn a_slow_disk_delays_only_those_who_wait_for_it() {
    const SLOW: Duration = Duration::from_secs(3);
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let (mut waits, mut other, mut renews) = (daemon.connect(), daemon.connect(), daemon.connect());
    for client in [&mut waits, &mut other, &mut renews] {
        epoch(client);
    }
    // On the disk before it becomes slow.
    let short = renews.lock("short", "0 60");
    let long = other.lock("long", "0 600");
    assert_eq!(other.ask("incr c 5"), "ok 5");
    let fault = format!("delay_enter={}", SLOW.as_micros());
    let Some(faults) = or_skip(Faults::inject(&daemon, "fdatasync", &fault)) else {
        return;
    };
    let begun = Instant::now();
    waits.put("l slow 0 600");
    // Shorter than what is recorded waits for nobody. Longer waits for the disk; received in time, it
    // counts at once.
    let renew = |lease_s| frame(&format!("n short {} {lease_s}", short.token));
    renews.raw(renew(1) + &renew(100));
    renews.expect(&format!("ok 1 {}", short.token_fence()));
    // What is not on the disk may not be seen either, nor be the reason of a refusal.
    let mut look = ["who slow _", "l slow 0", "get d _"].map(|request| {
        let mut client = daemon.connect();
        assert_eq!(client.ask("ping _ _"), "ok");
        (client, request)
    });
    waits.put("incr d 1");
    other.put("ping _ _"); // by now the daemon may have heard of it
    other.expect("ok");
    for (client, request) in &mut look {
        client.put(request);
    }
    for _ in 0..20 {
        assert_eq!(other.ask("ping _ _"), "ok");
        assert_eq!(other.ask("get c _"), "ok 5");
        let renewed = other.ask(&format!("n long {} 600", long.token));
        assert_eq!(renewed, format!("ok 600 {}", long.token_fence()));
    }
    assert!(waits.is_open_and_quiet(), "it was answered before the disk");
    for (client, request) in &mut look {
        assert!(
            client.is_open_and_quiet(),
            "{request}: answered before the disk"
        );
    }
    assert!(
        renews.is_open_and_quiet(),
        "it was answered before the disk"
    );
    waits.grant();
    let answers = look.each_mut().map(|(client, _)| client.line());
    assert!(answers[0].contains("\"holder_count\":1"), "{}", answers[0]);
    assert_eq!(answers[1..], ["timeout", "ok 1"]);
    assert!(begun.elapsed() >= SLOW);
    renews.expect(&format!("ok 100 {}", short.token_fence()));
    // The lease of a second is long over.
    assert_eq!(holder(&mut other, "short"), Some(short.token_fence()));
    drop(faults);
}
