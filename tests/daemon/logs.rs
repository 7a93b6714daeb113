//! The log: one event, one line, in both formats, whatever peers send.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::vocabulary::{Daemon, PATIENCE, latchd, refusal};

/// Input that would be several lines, colours or orders to a terminal if it were logged as it is.
fn hostile_inputs() -> Vec<Vec<u8>> {
    let forged = "2026-01-01T00:00:00.000Z INFO  all is well";
    let texts = [
        format!("l\n\x1b[2J\x1b]0;{forged}\x07\n0\n"),
        format!("l\n{forged}\r{forged}\n0\n"),
        format!("nonsense\r\x1b[31m\n{forged}\n{forged}\n"),
        format!("hello\n_\nname=\u{202e}{forged}\u{85}\u{2028}\n"),
        format!("l\nk\u{61c}\u{9b}2J\u{202e}\u{e0041}{forged}\n0\n"),
        format!("auth\n_\n{forged}\x1b\x00\n"),
        format!("GET /\x1b[2J{forged} HTTP/1.1\r\n"),
        format!("{forged}\n{forged}\n{forged}\n{}\n", "\x1b".repeat(300)),
    ];
    let mut inputs: Vec<Vec<u8>> = texts.map(String::into_bytes).into();
    inputs.push(b"l\n\xff\xfe\x9b2J\n0\n".to_vec());
    inputs
}

/// The whole log of a daemon that has heard all of it, at its most talkative.
fn log_of_a_hostile_day(options: &[&str]) -> Vec<String> {
    let mut daemon = Daemon::start(options);
    for input in hostile_inputs() {
        let mut client = daemon.connect();
        client.raw(input);
        client.half_close();
        client.rest();
    }
    daemon.stop()
}

#[test]
fn no_peer_can_forge_a_line_of_text() {
    for options in [
        &["--debug"][..],
        &["--log-level=trace", "--auth-token=s3cret"],
    ] {
        let log = log_of_a_hostile_day(options);
        assert!(log.len() > 10, "{log:#?}");
        for line in &log {
            let fields: Vec<&str> = line.splitn(3, ' ').collect();
            let [time, level, message] = fields[..] else {
                panic!("{line:?}");
            };
            assert!(time.len() == 24 && time.ends_with('Z'), "{line:?}");
            assert!(
                ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level),
                "{line:?}"
            );
            assert!(!line.contains(latchd::escape::is_unsafe), "{line:?}");
            assert!(!message.contains("all is well"), "{line:?}");
        }
    }
}

#[test]
fn json_lines_are_objects_of_four_fields() {
    let log = log_of_a_hostile_day(&["--log-format=json", "--debug"]);
    for line in &log {
        let json: Value = serde_json::from_str(line).expect(line);
        let fields = json.as_object().unwrap();
        assert_eq!(fields.len(), 4, "{line}");
        for name in ["ts", "level", "target", "msg"] {
            assert!(fields[name].is_string(), "{line}");
        }
    }
    let start: Value = serde_json::from_str(&log[0]).unwrap();
    assert_eq!(start["level"], "INFO");
    let message = start["msg"].as_str().unwrap();
    assert!(message.contains(" listens on 127.0.0.1:"), "{message}");
}

/// A collector must be able to read why there is no daemon.
#[test]
fn a_failed_start_is_a_log_line_in_the_format_asked_for() {
    let why = "cannot listen on /dev/null (--unix-socket)";
    let start = |format: &str| {
        let mut command = latchd();
        command.args([
            "--port=0",
            "--unix-socket=/dev/null",
            "--log-format",
            format,
        ]);
        refusal(78, command)
    };
    let text = start("text");
    assert!(text.contains(&format!("Z ERROR {why}")), "{text}");
    let json = start("json");
    let json: Value = serde_json::from_str(&json).expect(&json);
    assert_eq!(json["level"], "ERROR");
    assert!(json["msg"].as_str().unwrap().starts_with(why), "{json}");
}

/// More than eight in a second are counted only.
#[test]
fn lines_about_input_that_is_too_long_become_a_count() {
    let mut daemon = Daemon::start(&[]);
    for _ in 0..500 {
        let mut client = daemon.connect();
        client.raw("x".repeat(70_000));
        client.rest();
    }
    let log = daemon.stop();
    let told = log.iter().filter(|it| it.contains("a line is too long"));
    assert!((1..400).contains(&told.count()), "{log:#?}");
}

#[test]
fn connections_are_told_of_at_debug_only() {
    for (options, told) in [(&[][..], false), (&["--debug"], true)] {
        let mut daemon = Daemon::start(options);
        assert_eq!(daemon.connect().ask("ping _ _"), "ok");
        let log = daemon.stop();
        assert_eq!(
            log.iter().any(|line| line.contains("connection 1 from")),
            told,
            "{log:#?}"
        );
    }
}

/// The log of a daemon with a grant that is released, one that ends with its lease and one that
/// ends with its connection, each as its JSON object.
fn log_of_three_grants(level: &str) -> Vec<Value> {
    let mut daemon = Daemon::start(&["--log-format=json", level]);
    let (mut brief, mut other) = (daemon.connect(), daemon.connect());
    brief.lock("one\"key", "0 50ms");
    let grant = other.lock("one\"key", "10"); // not before the lease is over
    other.release("one\"key", &grant);
    brief.lock("two", "0");
    brief.half_close();
    brief.rest();
    let log = daemon.stop();
    let read = |line: &String| serde_json::from_str(line).unwrap();
    log.iter().map(read).collect()
}

/// Message, key and client of every line that has a key.
fn about_keys(log: &[Value]) -> Vec<[String; 3]> {
    let keyed = log.iter().filter(|it| it.get("key").is_some());
    let fields = keyed.map(|it| {
        assert!(it["fence"].as_u64().is_some_and(|fence| fence > 0), "{it}");
        ["msg", "key", "client"].map(|field| it[field].to_string())
    });
    fields.collect()
}

#[test]
fn a_lease_that_ends_is_told_of_at_debug_with_key_fence_client_and_lateness() {
    let log = log_of_three_grants("--log-level=debug");
    let expired = ["\"lease expired\"", r#""one\"key""#, "1"].map(str::to_owned);
    assert_eq!(about_keys(&log), [expired]);
    let line = log.iter().find(|it| it["msg"] == "lease expired").unwrap();
    assert!(line["lateness_us"].is_u64(), "{line}");
    assert!(about_keys(&log_of_three_grants("--log-level=info")).is_empty());
}

#[test]
fn a_lease_that_ends_is_told_of_with_its_owner_over_http_and_its_lateness() {
    let mut daemon = Daemon::start(&["--http-port=0", "--log-format=json", "--log-level=debug"]);
    daemon.http().acquire("job", "billing", "\"ttl_ms\":50");
    let mut waiter = daemon.connect();
    let grant = waiter.lock("job", "10"); // not before the lease is over
    waiter.release("job", &grant);
    let log = daemon.stop();
    let expired = log.iter().find(|line| line.contains("lease expired"));
    let expired: Value = serde_json::from_str(expired.unwrap()).unwrap();
    assert_eq!(
        (&expired["key"], &expired["owner"], &expired["level"]),
        (&"job".into(), &"billing".into(), &"DEBUG".into())
    );
    assert!(expired["fence"].as_u64().is_some_and(|fence| fence > 0));
    assert!(expired["lateness_us"].is_u64(), "{expired}");
    assert_eq!(expired["client"], Value::Null);
}

#[test]
fn who_breaks_what_is_told_of_and_so_is_what_was_broken() {
    let mut daemon = Daemon::start(&["--log-format=json"]);
    let (mut holder, mut operator) = (daemon.connect(), daemon.connect());
    assert!(holder.ask("attach gw\u{202e}/1 0 s3cret").ends_with("new"));
    let fence = holder.lock("one\"key", "0").token_fence();
    let operator_address = operator.local_address();
    operator.ask("hello _ name=oncall");
    assert_eq!(operator.ask("break one\"key *"), "ok 1");
    assert_eq!(operator.ask(&format!("break none {fence}")), "ok 0");
    let log = daemon.stop();
    let about: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        !log.iter().any(|line| line.contains('\u{202e}')),
        "{log:#?}"
    );
    let about: Vec<&Value> = about.iter().filter(|it| it.get("key").is_some()).collect();
    let [asked, broken, in_vain] = about[..] else {
        panic!("{about:#?}");
    };
    for audit in [asked, in_vain] {
        assert_eq!(
            (&audit["target"], &audit["msg"], &audit["action"]),
            (&"audit".into(), &"audit".into(), &"break".into())
        );
    }
    assert_eq!(
        (&asked["client"], &asked["name"]),
        (&"#2".into(), &"oncall".into())
    );
    assert_eq!(asked["address"], operator_address);
    assert_eq!(
        (&asked["key"], &asked["fence"]),
        (&"one\"key".into(), &"*".into())
    );
    assert_eq!(
        (&broken["client"], &broken["fence"]),
        (&"gw\u{202e}/1".into(), &fence.into())
    );
    assert_eq!(broken["msg"], "broken by an operator");
    assert_eq!(in_vain["fence"], fence.to_string());
    assert!(about.iter().all(|it| it["level"] == "WARN"), "{about:#?}");
}

/// One shape for all that operators do, over both protocols.
#[test]
fn what_operators_do_is_told_in_one_shape() {
    let mut daemon = Daemon::start(&["--http-port=0"]);
    let mut operator = daemon.connect();
    let address = operator.local_address();
    operator.ask("hello _ name=oncall");
    let fence = operator.lock("k", "0").token_fence();
    assert_eq!(operator.ask("break none *"), "ok 0");
    assert_eq!(operator.ask("break disk range 0 8"), "ok 0");
    assert_eq!(operator.ask("break #7 range client"), "ok 0");
    operator.raw("break\ngr\u{f6}\u{df}er\n*\n");
    operator.expect("ok 0");
    operator.ask("grace _ end");
    let mut http = daemon.http();
    http.put(&format!("DELETE /v1/locks/k/holders/{fence}"), "", "");
    assert_eq!(http.answer().status, 200);
    let log = daemon.stop();
    let audits: Vec<&str> = log
        .iter()
        .filter_map(|line| line.split_once(" WARN  audit "))
        .map(|(_, fields)| fields)
        .collect();
    let who = format!("client=#1 name=oncall user=\"\" address={address}");
    let [of_key, of_range, of_client, of_umlaut, of_grace, over_http] = audits[..] else {
        panic!("{log:#?}");
    };
    assert_eq!(of_key, format!("action=break {who} key=none fence=*"));
    assert_eq!(
        of_range,
        format!("action=break {who} resource=disk range=\"0 8\"")
    );
    assert_eq!(of_client, format!("action=break {who} of=#7 range=*"));
    assert_eq!(
        of_umlaut,
        format!("action=break {who} key=gr\u{f6}\u{df}er fence=*")
    );
    assert_eq!(of_grace, format!("action=grace-end {who}"));
    let about = format!(" key=k fence={fence}");
    assert!(
        over_http.starts_with("action=break client=#2 name=\"\" user=\"\" address=127.0.0.1:")
            && over_http.ends_with(&about),
        "{over_http}"
    );
}

#[test]
fn grants_and_releases_are_told_of_at_trace() {
    let log = log_of_three_grants("--log-level=trace");
    let about: Vec<String> = about_keys(&log)
        .iter()
        .map(|[message, _, client]| format!("{message} {client}"))
        .collect();
    assert_eq!(
        about,
        [
            "\"granted\" 1",
            "\"lease expired\" 1",
            "\"granted\" 2",
            "\"released\" 2",
            "\"granted\" 1",
            "\"released: its connection ended\" 1",
        ]
    );
}

/// Reads lines of a log until one has this in it; says which.
fn read_until(log: &mut impl BufRead, needle: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "the log ended");
        if line.contains(needle) {
            return line;
        }
    }
}

/// Each makes a line of the log: far more than a pipe or a terminal holds.
const REQUESTS: usize = 5_000;

/// A client whose every request makes a line of the log.
struct Talker {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Talker {
    /// `start` is the line of the log that names the address.
    fn to(start: &str) -> Self {
        let address = start.trim().rsplit(' ').next().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Self { stream, answers }
    }

    fn ask(&mut self, frame: &str) -> String {
        self.stream.write_all(frame.as_bytes()).unwrap();
        let mut answer = String::new();
        assert_ne!(self.answers.read_line(&mut answer).unwrap(), 0);
        answer
    }

    fn talk(&mut self, requests: usize) {
        let frames = "nonsense\n_\n_\n".repeat(requests);
        self.stream.write_all(frames.as_bytes()).unwrap();
        for _ in 0..requests {
            let mut answer = String::new();
            assert_ne!(self.answers.read_line(&mut answer).unwrap(), 0);
        }
    }
}

/// A daemon whose log is the test's own affair, killed when dropped.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// It hears that it shall stop, and does.
    fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_loses_lines_and_stops_nobody() {
    let mut command = latchd();
    command.args(["--port=0", "--log-level=trace"]);
    let mut daemon = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(daemon.0.stderr.take().unwrap());
    let start = read_until(&mut log, "listens on");
    let mut talker = Talker::to(&start);
    talker.talk(REQUESTS);
    // It reads again, and what is written next says how much was lost.
    let reader = std::thread::spawn(move || {
        let lost = read_until(&mut log, "log lines were lost");
        (lost, log)
    });
    for _ in 0..REQUESTS {
        talker.talk(1);
        if reader.is_finished() {
            break;
        }
    }
    let (lost, log) = reader.join().unwrap();
    assert!(lost.contains(" WARN "), "{lost}");
    // Nobody reads any more, and the daemon still hears a signal.
    talker.talk(REQUESTS);
    daemon.stop();
    drop(log);
}

/// Also if nothing is logged any more: somebody who reads again must not take silence for peace.
#[test]
fn lost_lines_are_told_of_as_soon_as_the_log_is_read_again() {
    let mut command = latchd();
    command.args(["--port=0", "--log-level=trace", "--read-timeout=3600s"]);
    let mut daemon = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(daemon.0.stderr.take().unwrap());
    let start = read_until(&mut log, "listens on");
    let mut talker = Talker::to(&start);
    talker.talk(REQUESTS);
    let stats = talker.ask("stats\n_\n_\n");
    let stats: Value = serde_json::from_str(stats.strip_prefix("ok ").unwrap()).unwrap();
    let lost_lines = stats["totals"]["lost_log_lines"].as_u64().unwrap();
    assert!(lost_lines > 0, "{stats}");
    let (told, telling) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lost = read_until(&mut log, "log lines were lost");
        let _ = told.send(lost); // nobody may wait for it any more
    });
    let lost = telling.recv_timeout(PATIENCE);
    drop(daemon); // which ends the reader in any case
    let lost = lost.expect("nobody says what was lost");
    reader.join().unwrap();
    assert!(lost.contains(" WARN "), "{lost}");
}

/// A terminal has room for some bytes of a line and not for the rest.
#[test]
fn a_terminal_that_nobody_reads_stops_nobody() {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let mut command = latchd();
    command.args(["--port=0", "--log-level=trace"]);
    let mut daemon = Running(command.stderr(Stdio::from(terminal)).spawn().unwrap());
    let mut log = BufReader::new(File::from(ours));
    let start = read_until(&mut log, "listens on");
    Talker::to(&start).talk(REQUESTS);
    daemon.stop();
}

#[test]
fn a_log_file_that_may_not_grow_and_other_signals_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = File::create(&path).unwrap();
    // The shell sets the limit (in blocks of 512 or 1024 bytes) and becomes the daemon.
    let mut command = Command::new("sh");
    let program = latchd().get_program().to_owned();
    command.args([
        "-c",
        "ulimit -f 4; exec \"$0\" --port=0 --http-port=off --log-level=trace",
    ]);
    command.arg(program).env_clear().stderr(log);
    let mut daemon = Running(command.spawn().unwrap());
    let read = || std::fs::read_to_string(&path).unwrap();
    let start = loop {
        let log = read();
        if let Some(start) = log.lines().find(|line| line.contains("listens on")) {
            break start.to_owned();
        }
    };
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM] {
        daemon.signal(signal);
    }
    Talker::to(&start).talk(200);
    daemon.stop();
}

#[test]
fn a_log_file_that_is_full_at_the_start_changes_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let log = File::create(dir.path().join("log")).unwrap();
    let mut command = Command::new("sh");
    let program = latchd().get_program().to_owned();
    let script = "ulimit -f 0; LATCHD_NONSENSE=1 \
                  exec \"$0\" --port=0 --http-port=off --unix-socket=/dev/null";
    command.args(["-c", script]).arg(program).env_clear();
    let status = command.stderr(log).status().unwrap();
    assert_eq!(status.code(), Some(78), "{status}");
}
