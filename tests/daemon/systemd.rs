//! The daemon under a service manager: what it reports, when, and what it takes over. The manager is the
//! test: it listens where systemd would, and opens the sockets that systemd would open.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::vocabulary::{Activated, Client, Daemon, PATIENCE, latchd, refusal, with_sockets};

/// Listens where the daemon reports to.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _dir: TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            path,
            _dir: dir,
        }
    }

    /// latchd with these options, managed.
    fn command(&self, options: &[&str]) -> Command {
        let mut command = latchd();
        command.arg("--port=0").args(options);
        command.env("NOTIFY_SOCKET", &self.path);
        command
    }

    /// The next report.
    #[track_caller]
    fn report(&self) -> String {
        let mut buffer = [0; 4096];
        let bytes = self.socket.recv(&mut buffer).expect("a report");
        String::from_utf8(buffer[..bytes].to_vec()).unwrap()
    }

    /// Reports up to one that begins so; says which.
    #[track_caller]
    fn wait_for(&self, start: &str) -> String {
        loop {
            let report = self.report();
            if report.starts_with(start) {
                return report;
            }
        }
    }
}

#[test]
fn it_is_ready_when_it_listens_and_tells_that_it_stops() {
    let manager = Manager::new();
    let mut daemon = Daemon::serve(manager.command(&[]));
    let ready = "READY=1\nSTATUS=0 held, 0 waiting, 0 connections\n";
    assert_eq!(manager.report(), ready);
    let mut holder = daemon.connect();
    holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    assert_eq!(manager.wait_for("STOPPING"), "STOPPING=1\n");
    drop(holder);
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn with_a_data_directory_it_is_ready_when_everything_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = format!("--data-dir={}", dir.path().display());
    let mut first = Daemon::start(&[&data_dir, "--shutdown-timeout=1ms"]);
    first.connect().lock("k", "0 3600s");
    first.connect().ask("cset n 5");
    first.stop();
    let manager = Manager::new();
    let _daemon = Daemon::serve(manager.command(&[&data_dir]));
    assert!(manager.report().starts_with("READY=1\nSTATUS="));
}

#[test]
fn what_is_held_and_who_waits_is_told_when_it_has_changed() {
    let manager = Manager::new();
    let daemon = Daemon::serve(manager.command(&[]));
    manager.wait_for("READY=1");
    let (mut holder, mut waiter) = (daemon.connect(), daemon.connect());
    holder.lock("k", "0 3600s");
    waiter.put("l k 3600");
    holder.wait_for_waiters("k", 1);
    // It may have looked in between, and then says more later.
    manager.wait_for("STATUS=1 held, 1 waiting, 2 connections\n");
}

#[test]
fn the_watchdog_is_fed_by_the_loop_itself() {
    let manager = Manager::new();
    let mut command = manager.command(&[]);
    command.env("WATCHDOG_USEC", "200000");
    let daemon = Daemon::serve(command);
    manager.wait_for("READY=1");
    for _ in 0..3 {
        assert_eq!(manager.wait_for("WATCHDOG"), "WATCHDOG=1\n");
    }
    assert_eq!(daemon.status("Threads"), "1", "nobody else could feed it");
    // A daemon that does nothing more feeds nobody.
    daemon.freeze();
    manager.socket.set_nonblocking(true).unwrap();
    while manager.socket.recv(&mut [0; 4096]).is_ok() {}
    manager.socket.set_nonblocking(false).unwrap();
    let several_times = Duration::from_millis(500);
    manager
        .socket
        .set_read_timeout(Some(several_times))
        .unwrap();
    assert!(manager.socket.recv(&mut [0; 4096]).is_err());
    manager.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.thaw();
    manager.wait_for("WATCHDOG=1");
}

#[test]
fn a_watchdog_for_another_process_is_not_fed() {
    let manager = Manager::new();
    let mut command = manager.command(&[]);
    command.env("WATCHDOG_USEC", "1").env("WATCHDOG_PID", "1");
    let mut daemon = Daemon::serve(command);
    manager.wait_for("READY=1");
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
    daemon.signal(Signal::TERM);
    loop {
        let report = manager.report();
        assert!(!report.contains("WATCHDOG"), "{report}");
        if report == "STOPPING=1\n" {
            break;
        }
    }
    assert_eq!(daemon.wait_for_exit().0, 0);
}

#[test]
fn a_reload_is_told_from_its_beginning_to_its_end() {
    let manager = Manager::new();
    let daemon = Daemon::serve(manager.command(&[]));
    manager.wait_for("READY=1\nSTATUS");
    for _ in 0..2 {
        daemon.signal(Signal::HUP);
        let reloading = manager.wait_for("RELOADING=1\n");
        let us = reloading.trim_end().rsplit("MONOTONIC_USEC=").next();
        assert!(us.unwrap().parse::<u64>().is_ok(), "{reloading}");
        assert_eq!(manager.wait_for("READY"), "READY=1\n");
    }
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

/// Whatever comes of it, it is over, and the log says what counts now.
#[test]
fn a_reload_that_finds_nothing_good_is_over_as_well_and_is_told_to_auditors() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "old s3cret\n").unwrap();
    let manager = Manager::new();
    let mut command = manager.command(&["--auth-token-file"]);
    command.arg(&token);
    let mut daemon = Daemon::serve(command);
    manager.wait_for("READY=1\nSTATUS");
    for (contents, result, logged) in [
        (
            "new-s3cret\n",
            "read",
            " INFO  SIGHUP: the token file is read again",
        ),
        (
            "",
            "kept",
            " ERROR SIGHUP: the token file stays as it was: ",
        ),
    ] {
        fs::write(&token, contents).unwrap();
        daemon.signal(Signal::HUP);
        manager.wait_for("RELOADING=1\n");
        assert_eq!(manager.wait_for("READY"), "READY=1\n");
        daemon.wait_for_log(logged);
        let audit = daemon.wait_for_log(&format!("result={result}"));
        let said = "audit action=reload client=SIGHUP name=\"\" user=\"\" address=\"\" what=\"the token file\"";
        assert!(audit.contains(said), "{audit}");
        assert_eq!(daemon.connect().ask("auth _ new-s3cret"), "ok");
    }
    let log = daemon.stop();
    assert!(!log.concat().contains("s3cret"), "{log:#?}");
}

#[test]
fn a_start_that_fails_says_why_and_never_that_it_is_ready() {
    let manager = Manager::new();
    let command = manager.command(&["--unix-socket=/dev/null"]);
    refusal(78, command);
    let report = manager.report();
    let start = "STATUS=cannot listen on /dev/null (--unix-socket): ";
    assert!(report.starts_with(start), "{report}");
}

#[test]
fn a_manager_that_cannot_be_reached_stops_nobody() {
    let mut command = latchd();
    command
        .arg("--port=0")
        .env("NOTIFY_SOCKET", "/nowhere/notify");
    let daemon = Daemon::serve(command);
    daemon.wait_for_log(" WARN  cannot report to /nowhere/notify (NOTIFY_SOCKET)");
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

fn ask_http(mut stream: impl Read + Write) -> String {
    stream
        .write_all(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn ports_that_were_opened_for_it_are_served_by_their_names() {
    let line = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let at_line = line.local_addr().unwrap();
    let at_http = http.local_addr().unwrap();
    // Whoever connects before it runs is served as well.
    let mut early = TcpStream::connect(at_line).unwrap();
    let command = with_sockets(
        http.into(),
        line.into(),
        Some("latchd-http:latchd"),
        &["--port=1", "--http-port=off"], // neither is opened
    );
    let daemon = Activated::serve(command);
    let log = &daemon.log;
    assert!(
        log[0].ends_with(&format!(" listens on {at_line}")),
        "{log:#?}"
    );
    assert!(
        log[1].contains(&format!(" serves HTTP on {at_http}: ")),
        "{log:#?}"
    );
    early.write_all(b"ping\n_\n_\n").unwrap();
    let mut answer = [0; 3];
    early.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ok\n");
    assert!(ask_http(TcpStream::connect(at_http).unwrap()).starts_with("HTTP/1.1 200 "));
}

#[test]
fn unix_sockets_that_were_opened_for_it_are_served_and_their_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (line, http) = (dir.path().join("line"), dir.path().join("http"));
    let command = with_sockets(
        UnixListener::bind(&line).unwrap().into(),
        UnixListener::bind(&http).unwrap().into(),
        Some("latchd-unix:latchd-http-unix"),
        &["--port=1"],
    );
    let mut daemon = Activated::serve(command);
    let log = &daemon.log;
    assert!(
        !log.concat().contains("127.0.0.1"),
        "no port is opened: {log:#?}"
    );
    assert_eq!(Client::unix(&line).ask("ping _ _"), "ok");
    assert!(ask_http(UnixStream::connect(&http).unwrap()).starts_with("HTTP/1.1 200 "));
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert!(line.exists() && http.exists());
}

#[test]
fn sockets_without_names_speak_lines_whatever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("line");
    for names in [None, Some("latchd.socket:latchd.socket")] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        let command = with_sockets(port.into(), unix.into(), names, &["--http-port=off"]);
        let daemon = Activated::serve(command);
        assert_eq!(Client::unix(&path).ask("ping _ _"), "ok");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"ping\n_\n_\n").unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok\n");
        drop(daemon);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_cannot_be_taken_over_is_named_and_ends_the_start() {
    let socket = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
    let connected = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    };
    let file = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
    let datagrams = || OwnedFd::from(UnixDatagram::unbound().unwrap());
    for (second, names, says) in [
        (socket(), "latchd:https", "socket 2 (\"https\")"),
        (socket(), "latchd", "LISTEN_FDNAMES"),
        (connected(), "latchd:latchd", "it does not listen"),
        (
            file(),
            "latchd:latchd",
            "neither a TCP nor a unix stream socket",
        ),
        (
            datagrams(),
            "latchd:latchd",
            "neither a TCP nor a unix stream socket",
        ),
    ] {
        let mut command = with_sockets(socket(), second, Some(names), &["--http-port=off"]);
        let output = command.stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(" ERROR cannot take over "), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn sockets_of_a_parent_are_not_taken() {
    let mut command = latchd();
    command.arg("--port=0");
    command.env("LISTEN_FDS", "2").env("LISTEN_PID", "1");
    let daemon = Daemon::serve(command);
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

/// Standard error is a file here; that it is the journal's is said by its device and inode.
#[test]
fn lines_for_the_journal_begin_with_their_priority_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    for (inode_off_by, start) in [(0, "<3>2"), (1, "2")] {
        let path = dir.path().join("journal");
        let file = fs::File::create(&path).unwrap();
        let it = file.metadata().unwrap();
        let stream = format!("{}:{}", it.dev(), it.ino() + inode_off_by);
        let mut command = latchd();
        command.args(["--port=0", "--unix-socket=/dev/null"]);
        command.env("JOURNAL_STREAM", stream).stderr(file);
        assert_eq!(command.status().unwrap().code(), Some(78));
        let log = fs::read_to_string(&path).unwrap();
        assert!(log.starts_with(start), "{log}");
    }
}
