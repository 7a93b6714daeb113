//! Where HTTP is served: its port, its socket file, and what happens when they are taken. What is
//! said there is tested elsewhere.
//!
//! The default port is tried on addresses of 127.0.0.0/8 that nobody else uses, so that these tests
//! and a daemon that happens to run on this machine leave each other alone.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::vocabulary::{Daemon, latchd, latchd_with_default_ports, refusal};

const DEFAULT_PORT: u16 = 6389;

/// An address of this machine that no other test uses, in this process or another.
fn own_address(test: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + test, high, low)
}

/// The program on a free port of this address, without a word about HTTP.
fn latchd_at(address: Ipv4Addr) -> Command {
    let mut command = latchd_with_default_ports();
    command.args(["--port=0", "--host", &address.to_string()]);
    command
}

fn warnings(log: &[String]) -> Vec<&String> {
    log.iter().filter(|line| line.contains(" WARN ")).collect()
}

#[test]
fn without_a_word_about_it_http_is_on_port_6389_and_the_log_says_so() {
    let address = own_address(0);
    if let Err(error) = TcpListener::bind((address, DEFAULT_PORT)) {
        eprintln!("skipped: somebody serves port {DEFAULT_PORT} of every address: {error}");
        return;
    }
    let mut daemon = Daemon::serve(latchd_at(address));
    let line = daemon.wait_for_log("serves HTTP");
    let said = format!(
        " INFO  latchd {} serves HTTP on {address}:6389: \
         a browser shows the dashboard at http://{address}:6389/",
        env!("CARGO_PKG_VERSION")
    );
    assert!(line.ends_with(&said), "{line}");
    daemon.wait_for_log("hold a lock from another terminal");
    assert_ne!(daemon.address().port(), DEFAULT_PORT);
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
    TcpStream::connect((address, DEFAULT_PORT)).unwrap();
    let log = daemon.stop();
    assert!(warnings(&log).is_empty(), "{log:#?}");
    assert!(TcpStream::connect((address, DEFAULT_PORT)).is_err());
}

#[test]
fn a_default_port_that_is_taken_is_one_warning_and_locks_are_served() {
    let address = own_address(1);
    let _taken = TcpListener::bind((address, DEFAULT_PORT)); // or by somebody else
    let mut daemon = Daemon::serve(latchd_at(address));
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
    let log = daemon.stop();
    let [warning] = warnings(&log)[..] else {
        panic!("{log:#?}");
    };
    let said = format!("HTTP is not served: {address}:6389 is in use; choose another --http-port");
    assert!(warning.contains(&said), "{warning}");
    let serves = |line: &String| line.contains("serves HTTP") || line.contains("dashboard");
    assert!(!log.iter().any(serves), "{log:#?}");
}

/// The line protocol comes first, and nobody has asked for the other.
#[test]
fn the_line_protocol_may_have_the_default_port_of_http() {
    let address = own_address(2);
    let mut command = latchd_with_default_ports();
    command.args(["--port=6389", "--host", &address.to_string()]);
    let mut daemon = Daemon::spawn(command);
    daemon.wait_for_log(&format!("{address}:6389"));
    if daemon.logged("(--host, --port)") {
        eprintln!("skipped: somebody serves port {DEFAULT_PORT} of every address");
        return;
    }
    daemon.wait_for_log("hold a lock from another terminal");
    let log = daemon.stop();
    assert!(warnings(&log)[0].contains("HTTP is not served"), "{log:#?}");
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_ends_the_start() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let port = address.port().to_string();
    let mut by_flag = latchd();
    by_flag.args(["--port=0", "--http-port", &port]);
    let mut by_variable = latchd();
    by_variable.arg("--port=0").env("LATCHD_HTTP_PORT", &port);
    // Also if it is the default.
    let here = own_address(3);
    let _default_taken = TcpListener::bind((here, DEFAULT_PORT));
    let mut by_number = latchd_at(here);
    by_number.arg("--http-port=6389");
    for (command, place) in [
        (by_flag, address.to_string()),
        (by_variable, address.to_string()),
        (by_number, format!("{here}:6389")),
    ] {
        let said = refusal(69, command);
        let start = format!("cannot listen on {place} (--host, --http-port): ");
        assert!(said.contains(&start), "{said}");
        assert!(said.ends_with("or choose another --http-port"), "{said}");
        assert!(!said.contains("listens on"), "{said}");
    }
}

#[test]
fn off_serves_none_and_0_takes_a_free_port() {
    let mut off = latchd_at(own_address(4));
    off.arg("--http-port=off");
    let mut daemon = Daemon::serve(off);
    let log = daemon.stop();
    assert!(!log.iter().any(|line| line.contains("HTTP")), "{log:#?}");

    let daemon = Daemon::start(&["--http-port=0"]);
    let http = daemon.http_address();
    assert!(http.port() != 0 && http.port() != daemon.address().port());
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
    TcpStream::connect(http).unwrap();
}

#[test]
fn a_collector_of_json_reads_where_both_protocols_are() {
    let mut daemon = Daemon::start(&["--http-port=0", "--log-format=json"]);
    daemon.wait_for_log("serves HTTP on 127.0.0.1:");
    for line in daemon.stop() {
        let json: Value = serde_json::from_str(&line).expect(&line);
        assert!(json["msg"].is_string(), "{line}");
    }
}

#[test]
fn open_to_the_network_without_a_secret_the_warning_is_about_http_too() {
    for (option, is_told) in [("--http-port=0", true), ("--http-port=off", false)] {
        let mut daemon = Daemon::start(&["--host=0.0.0.0", option]);
        let log = daemon.stop();
        let about = |line: &&String| line.contains("no token is asked for");
        let warning = log.iter().find(about).expect("a warning");
        assert_eq!(warning.contains("also over HTTP"), is_told, "{warning}");
    }
    let token = "--auth-token=0123456789abcdef";
    let mut daemon = Daemon::start(&["--host=0.0.0.0", "--http-port=0", token]);
    let line = daemon.wait_for_log("serves HTTP on 0.0.0.0:");
    assert!(line.contains(" at http://127.0.0.1:"), "{line}");
    let log = daemon.stop();
    assert!(warnings(&log).is_empty(), "{log:#?}");
}

#[test]
fn the_socket_file_for_http_is_made_with_the_same_care_as_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let option = format!("--http-unix-socket={}", path.display());
    drop(UnixListener::bind(&path).unwrap()); // a dead one, which makes room
    let mut daemon = Daemon::start(&[&option, "--unix-socket-mode=0640"]);
    let line = daemon.wait_for_log("serves HTTP");
    assert!(
        line.ends_with(&format!("serves HTTP on {}", path.display())),
        "{line}"
    );
    let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    UnixStream::connect(&path).unwrap();
    // Somebody else's is never taken away.
    let mut second = latchd();
    second.args(["--port=0", &option]);
    let said = refusal(69, second);
    let place = format!("cannot listen on {} (--http-unix-socket): ", path.display());
    assert!(said.contains(&place), "{said}");
    let advice = "; stop that daemon or choose another --http-unix-socket";
    assert!(said.ends_with(advice), "{said}");
    UnixStream::connect(&path).unwrap();
    daemon.stop();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "files are left");

    fs::write(&path, "precious").unwrap();
    let mut third = latchd();
    third.args(["--port=0", &option]);
    let said = refusal(78, third);
    assert!(said.contains("is not a socket; remove it or"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn one_path_and_one_port_for_both_protocols_are_refused() {
    for options in [
        &["--unix-socket=/run/x", "--http-unix-socket=/run/x"],
        &["--port=7", "--http-port=7"],
    ] {
        let mut command = latchd();
        command.args(options);
        let said = refusal(78, command);
        assert!(said.contains("choose another for one"), "{said}");
    }
}

/// A second daemon could grant what is held here.
#[test]
fn a_draining_daemon_keeps_the_port_and_the_socket_of_http() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let on_path = format!("--http-unix-socket={}", path.display());
    let mut daemon = Daemon::start(&["--http-port=0", &on_path]);
    let http = daemon.http_address();
    let mut holder = daemon.connect();
    let grant = holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    assert_eq!(holder.ask("ping _ _"), "ok"); // the turn of the signal is over
    TcpStream::connect(http).unwrap();
    UnixStream::connect(&path).unwrap();
    let on_port = format!("--http-port={}", http.port());
    for option in [on_port, on_path] {
        let mut command = latchd();
        command.args(["--port=0", &option]);
        refusal(69, command);
    }
    holder.release("k", &grant);
    assert_eq!(daemon.wait_for_exit().0, 0);
    assert!(!path.exists());
    assert!(TcpStream::connect(http).is_err());
}
