//! What becomes of a command when its lock cannot be renewed: it is told, and it is gone when the lease is over.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use serde_json::Value;

use crate::latch::{Run, expect, is_alive, latch, latch_at, said, wait_gone, wait_until};
use crate::vocabulary::{Client, Daemon, latchd};

/// Says its process and then, when it is told to end, so, with how long that was after its start; then it takes its time.
const TOLD: &str = "\
    now() { read -r up rest < /proc/uptime; echo ${up%.*}${up#*.}; }\n\
    start=$(now)\n\
    trap 'echo told $(($(now) - start)); exit 0' TERM\n\
    echo $$\n\
    while :; do sleep 0.02; done";

/// Passes bytes on to a server, until it is cut.
struct Proxy {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&streams);
        // It ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(server).unwrap();
                let mut kept = theirs.lock().unwrap();
                kept.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                pass_on(client.try_clone().unwrap(), server.try_clone().unwrap());
                pass_on(server, client);
            }
        });
        Self { address, streams }
    }

    /// Ends all connections that there are.
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn holder(client: &mut Client) -> Value {
    let who: Value = serde_json::from_str(&client.ask("who k _")[3..]).unwrap();
    who["holders"][0].clone()
}

#[test]
fn a_connection_that_breaks_costs_nothing() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::start(daemon.address());
    let mut command = latch(&["run", "--lease", "2s", "k", "-c", "echo; read line; exit 6"]);
    command.env("LATCH_SERVER", proxy.address.to_string());
    command.stdin(Stdio::piped());
    let mut run = Run::start(command);
    run.line();
    let mut client = daemon.connect();
    let fence = holder(&mut client)["fence"].clone();
    for _ in 0..3 {
        proxy.cut();
        let held_s = holder(&mut client)["since_s"].as_f64().unwrap();
        wait_until("it is renewed over another connection", || {
            holder(&mut client)["since_s"].as_f64().unwrap() > held_s + 0.8
        });
    }
    assert_eq!(holder(&mut client)["fence"], fence, "the same grant");
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.code(), Some(6));
    drop(client);
    expect(&daemon, 1, &["who", "k"]);
}

/// Expects that the command was told to end within its lease (in hundredths of a second), and that the lock
/// counts as lost.
#[track_caller]
fn expect_told_within(run: &mut Run, lease_cs: u32) {
    let line = run.line();
    let told = line.strip_prefix("told ").expect(&line);
    let told: u32 = told.parse().unwrap();
    // The command began after the lock was had, so its clock is behind that of the lease.
    assert!(told < lease_cs, "told after {told} of {lease_cs}");
    assert_eq!(run.code(), Some(79));
}

#[test]
fn a_server_that_hangs_ends_the_command_before_its_lease_is_over() {
    let daemon = Daemon::start(&[]);
    let words = ["run", "--lease", "6s", "k", "-c", TOLD];
    let mut run = Run::start(latch_at(&daemon, &words));
    let command = run.pid();
    daemon.freeze();
    expect_told_within(&mut run, 600);
    assert!(!is_alive(command));
    daemon.thaw();
}

#[test]
fn a_server_that_is_gone_ends_it_as_well() {
    let daemon = Daemon::start(&[]);
    let words = ["run", "--lease", "4s", "k", "-c", TOLD];
    let mut run = Run::start(latch_at(&daemon, &words));
    run.pid();
    drop(daemon);
    expect_told_within(&mut run, 400);
}

#[test]
fn what_does_not_listen_is_killed_when_the_lease_is_over() {
    let daemon = Daemon::start(&[]);
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let words = [
        "run",
        "--lease",
        "2s",
        "--kill-after",
        "10m",
        "k",
        "-c",
        script,
    ];
    let mut run = Run::start(latch_at(&daemon, &words));
    let command = run.pid();
    daemon.freeze();
    assert_eq!(run.code(), Some(79));
    assert!(!is_alive(command));
    daemon.thaw();
}

#[test]
fn if_we_are_stopped_the_command_does_not_outlive_its_lease() {
    let daemon = Daemon::start(&[]);
    let words = [
        "run",
        "--lease",
        "1s",
        "k",
        "-c",
        "echo $$; exec sleep 1000",
    ];
    let mut run = Run::start(latch_at(&daemon, &words));
    let command = run.pid();
    run.signal(Signal::STOP);
    wait_gone(command);
    // Somebody else can have it now.
    expect(&daemon, 0, &["run", "-w", "10", "k", "--", "true"]);
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
}

/// `poll` does not count the time that the machine sleeps, so a wait for the end of a lease is cut into seconds.
#[test]
fn lease_is_looked_at_every_second() {
    let mut probe = std::process::Command::new("strace");
    if !probe.arg("-V").output().is_ok_and(|it| it.status.success()) {
        return crate::latch::skipped("there is no strace");
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let daemon = Daemon::start(&[]);
    let mut command = std::process::Command::new("strace");
    crate::latch::clean(&mut command);
    command.args([
        "-f",
        "-qq",
        "-s",
        "200",
        "-e",
        "trace=execve,poll,ppoll",
        "-o",
    ]);
    command.arg(&trace).arg(crate::latch::program());
    command.args(["run", "--lease", "1h", "k", "--", "sleep", "0.2"]);
    command.env("LATCH_SERVER", daemon.address().to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = std::fs::read_to_string(&trace).unwrap();
    let lines = || trace.lines().filter_map(|line| line.split_once(' '));
    for word in ["\"run\"", "\"__warden\""] {
        let is_start = |text: &str| text.contains("execve(") && text.contains(word);
        let (process, _) = lines().find(|(_, text)| is_start(text)).expect(word);
        let waits = lines().filter(|(pid, text)| *pid == process && text.contains("poll("));
        let seconds = waits.filter_map(|(_, text)| text.split_once("tv_sec=")?.1.split_once(','));
        let seconds: Vec<u64> = seconds.map(|(text, _)| text.parse().unwrap()).collect();
        assert!(
            !seconds.is_empty(),
            "{word} waits for the end of the lease: {trace}"
        );
        assert!(seconds.iter().all(|it| *it <= 1), "{word}: {seconds:?}");
    }
}

#[test]
fn an_operator_that_breaks_the_lock_ends_the_command_at_once() {
    let daemon = Daemon::start(&[]);
    let words = ["run", "--lease", "1h", "k", "-c", TOLD];
    let mut run = Run::start(latch_at(&daemon, &words));
    run.pid();
    let mut client = daemon.connect();
    assert_eq!(client.ask("break k *"), "ok 1");
    expect_told_within(&mut run, 360_000);
}

#[test]
fn a_server_that_comes_back_with_its_data_has_kept_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let socket = dir.path().join("s");
    let start = || {
        let mut command = latchd();
        command.args(["--port", "0", "--data-dir", &data, "--unix-socket"]);
        command.arg(&socket);
        Daemon::serve(command)
    };
    let daemon = start();
    let server = format!("unix:{}", socket.display());
    let words = ["run", "--server", &server, "--lease", "8s", "k", "-c"];
    let mut command = latch(&words);
    command.arg("echo; read line; exit 6").stdin(Stdio::piped());
    let mut run = Run::start(command);
    run.line();
    let fence = holder(&mut daemon.connect())["fence"].clone();
    drop(daemon); // kill -9
    let daemon = start();
    let mut client = daemon.connect();
    wait_until("it is renewed at the new one", || {
        let holder = holder(&mut client);
        assert_eq!(holder["fence"], fence);
        holder["restored"].is_null()
    });
    run.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.code(), Some(6));
    assert!(holder(&mut client).is_null(), "it was let go");
}

#[test]
fn a_server_that_comes_back_without_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let daemon = Daemon::start_at(&socket, &[]);
    let server = format!("unix:{}", socket.display());
    let mut run = Run::start(latch(&[
        "run", "--server", &server, "--lease", "1h", "k", "-c", TOLD,
    ]));
    run.pid();
    drop(daemon);
    let _daemon = Daemon::start_at(&socket, &[]);
    expect_told_within(&mut run, 360_000);
}

#[test]
fn whoever_waits_waits_for_a_server_that_is_stopped_and_started() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut daemon = Daemon::start_at(&socket, &[]);
    let mut client = daemon.connect();
    client.lock("k", "0 60");
    let server = format!("unix:{}", socket.display());
    let words = ["run", "--server", &server, "k", "--", "echo", "got it"];
    let mut run = Run::start(latch(&words));
    client.wait_for_waiters("k", 1);
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    drop(client);
    assert_eq!(daemon.wait_for_exit().0, 0);
    let _daemon = Daemon::start_at(&socket, &[]);
    assert_eq!(run.line(), "got it");
    assert_eq!(run.code(), Some(0));
}

#[test]
fn every_wait_goes_on_when_the_server_is_stopped_and_started() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut daemon = Daemon::start_at(&socket, &[]);
    let mut client = daemon.connect();
    let server = format!("unix:{}", socket.display());
    let start = |words: &[&str]| Run::start(latch(&[&["--server", &server], words].concat()));
    let mut pop = start(&["pop", "-w", "10m", "l"]);
    let mut barrier = start(&["barrier", "b", "2"]);
    client.lock("k", "0 60");
    let mut acquire = start(&["acquire", "k"]);
    client.wait_for_waiters("k", 1);
    wait_until("the others wait", || {
        let stats: Value = serde_json::from_str(&client.ask("stats _ _")[3..]).unwrap();
        stats["lists"][0]["pop_waiters"] == 1 && stats["barriers"][0]["participants"] == 1
    });
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    drop(client);
    assert_eq!(daemon.wait_for_exit().0, 0);
    let daemon = Daemon::start_at(&socket, &[]);
    expect(&daemon, 0, &["push", "l", "v"]);
    assert_eq!(pop.line(), "v");
    assert_eq!(pop.code(), Some(0));
    expect(&daemon, 0, &["barrier", "b", "2"]);
    assert_eq!(barrier.code(), Some(0));
    assert_eq!(acquire.line().split(' ').count(), 2);
    assert_eq!(acquire.code(), Some(0));
}

/// The answer may have been on its way, so it is unknown whether a value was taken.
#[test]
fn pop_ends_when_its_connection_breaks() {
    let daemon = Daemon::start(&[]);
    let mut command = latch_at(&daemon, &["pop", "-w", "10m", "l"]);
    command.stderr(Stdio::piped());
    let mut client = daemon.connect();
    let child = command.spawn().unwrap();
    wait_until("it waits", || {
        client.ask("stats _ _").contains("\"pop_waiters\":1")
    });
    drop(daemon); // kill -9
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("a value may have been taken"), "{err}");
}

/// `latch who` shows locks, so it tells nothing of these.
#[test]
fn latch_who_is_advised_after_a_lost_lock_request_and_no_other() {
    let daemon = Daemon::start(&[]);
    let told = |needle: &str, words: &[&str]| {
        let proxy = crate::proxy::Proxy::to(daemon.address());
        proxy.cut_after(needle);
        let server = proxy.address.to_string();
        let said = said(latch(&[&["--server", &server], words].concat()));
        assert_eq!(said.code, Some(69), "{said:?}");
        assert!(said.err.contains("the answer was lost"), "{said:?}");
        said.err
    };
    for (needle, words) in [
        ("lpop\nl", &["pop", "l"][..]),
        ("incr\nc", &["incr", "c"]),
        ("rpush\nl", &["push", "l", "v"]),
        ("bwait\nb", &["barrier", "b", "1"]),
    ] {
        let err = told(needle, words);
        assert!(!err.contains("latch who"), "{err}");
    }
    let token = expect(&daemon, 0, &["acquire", "k"]);
    let (token, _) = token.split_once(' ').unwrap();
    let err = told("r\nk", &["release", "k", token]);
    assert!(err.contains("latch who"), "{err}");
}

/// It was granted and over while nobody could hear of it: nothing has run, so nothing is lost.
#[test]
fn whoever_is_stopped_while_it_waits_asks_again() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    for keys in [&["k"][..], &["a", "k"]] {
        let grant = client.lock("k", "0 60");
        let words = [&["run", "--lease", "2s"], keys, &["--", "echo", "got it"]].concat();
        let mut run = Run::start(latch_at(&daemon, &words));
        client.wait_for_waiters("k", 1);
        run.signal(Signal::STOP);
        let process = Pid::from_child(&run.child);
        let (_, status) = waitpid(Some(process), WaitOptions::UNTRACED)
            .unwrap()
            .unwrap();
        assert!(status.stopped(), "all of its threads have stopped");
        client.release("k", &grant);
        wait_until("it was had and is over", || {
            keys.iter().all(|key| {
                let who: Value =
                    serde_json::from_str(&client.ask(&format!("who {key} _"))[3..]).unwrap();
                who["holders"].as_array().unwrap().is_empty()
            })
        });
        run.signal(Signal::CONT);
        assert_eq!(run.line(), "got it");
        assert_eq!(run.code(), Some(0));
    }
}
