//! The socket file: its permissions, what may be in its way, and its end.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use socket2::{SockAddr, Socket, Type};

use crate::vocabulary::{Client, Daemon, latchd, refusal};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn latchd_at(path: &Path) -> Command {
    let mut command = latchd();
    command.args(["--port=0", "--unix-socket"]).arg(path);
    command
}

#[test]
fn the_file_has_the_permissions_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (default, shared) = (dir.path().join("default"), dir.path().join("shared"));
    let _first = Daemon::start_at(&default, &[]);
    let _second = Daemon::start_at(&shared, &["--unix-socket-mode=0666"]);
    assert_eq!(mode(&default), 0o600);
    assert_eq!(mode(&shared), 0o666);
}

#[test]
fn the_start_line_names_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    daemon.wait_for_log(&format!("listens on {}", path.display()));
}

#[test]
fn a_dead_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    drop(UnixListener::bind(&path).unwrap()); // leaves its file behind
    let _daemon = Daemon::start_at(&path, &[]);
    assert_eq!(Client::unix(&path).ask("ping _ _"), "ok");
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    drop(Daemon::start_at(&path, &[])); // killed, so it cannot tidy up
    assert!(path.exists());
    let _daemon = Daemon::start_at(&path, &[]);
    assert_eq!(Client::unix(&path).ask("ping _ _"), "ok");
}

#[test]
fn a_live_daemon_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let _daemon = Daemon::start_at(&path, &[]);
    let mut client = Client::unix(&path);
    client.lock("k", "0");
    let said = refusal(69, latchd_at(&path));
    let place = format!("cannot listen on {} (--unix-socket): ", path.display());
    assert!(said.contains(&place), "{said}");
    assert!(said.contains("in use by a running daemon"), "{said}");
    let advice = "; stop that daemon or choose another --unix-socket";
    assert!(said.ends_with(advice), "{said}");
    assert_eq!(client.ask("l k 0"), "timeout");
    assert_eq!(Client::unix(&path).ask("l k 0"), "timeout");
}

/// Asking whether it is alive would hang: it is stopped, and its backlog takes nobody any more.
#[test]
fn a_stopped_daemon_with_a_full_backlog_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    daemon.freeze();
    let connect = |address: &SockAddr| {
        let socket = Socket::new(address.domain(), Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let result = socket.connect(address);
        (socket, result.is_ok())
    };
    let unix = SockAddr::unix(&path).unwrap();
    // A port says nothing of a full backlog: a connection is always on its way.
    let tcp = SockAddr::from(daemon.address());
    let mut backlog: Vec<Socket> = (0..5_000).map(|_| connect(&tcp).0).collect();
    loop {
        let (socket, is_connected) = connect(&unix);
        if !is_connected {
            break;
        }
        backlog.push(socket);
    }
    let mut on_port = latchd();
    on_port.arg(format!("--port={}", daemon.address().port()));
    refusal(69, on_port);
    refusal(69, latchd_at(&path));
    // Somebody has tidied up too much: then the socket itself is asked.
    fs::remove_file(dir.path().join("latchd.sock.lock")).unwrap();
    let said = refusal(69, latchd_at(&path));
    assert!(said.contains("may be in use"), "{said}");
    daemon.thaw();
    drop(backlog);
    assert_eq!(Client::unix(&path).ask("ping _ _"), "ok");
}

#[test]
fn of_two_daemons_that_race_for_a_dead_socket_one_serves() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let path = dir.path().join(round.to_string());
        drop(UnixListener::bind(&path).unwrap()); // leaves its file behind
        let racers = [(); 2].map(|()| Daemon::spawn(latchd_at(&path)));
        // Both name the socket, the one that serves it and the one that cannot.
        for racer in &racers {
            racer.wait_for_log(&path.display().to_string());
        }
        let serves = format!("listens on {}", path.display());
        let (winners, mut losers): (Vec<_>, Vec<_>) =
            racers.into_iter().partition(|it| it.logged(&serves));
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(losers[0].wait_for_exit().0, 69);
        assert_eq!(Client::unix(&path).ask("ping _ _"), "ok");
    }
}

#[test]
fn a_file_a_directory_and_a_link_are_never_touched() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("dead")).unwrap());
    symlink(at("dead"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    for name in ["file", "directory", "link", "dangling"] {
        let said = refusal(78, latchd_at(&at(name)));
        let place = format!("cannot listen on {} (--unix-socket): ", at(name).display());
        assert!(said.contains(&place), "{said}");
        assert!(
            said.contains("is not a socket; remove it or choose"),
            "{said}"
        );
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    assert!(at("directory").is_dir());
    assert_eq!(fs::read_link(at("link")).unwrap(), at("dead"));
    assert_eq!(fs::read_link(at("dangling")).unwrap(), at("nowhere"));
    assert!(
        fs::symlink_metadata(at("dead"))
            .unwrap()
            .file_type()
            .is_socket()
    );
}

#[test]
fn path_that_is_too_long_for_a_socket_is_refused_as_a_setting_that_cannot_be_used() {
    let path = format!("/{}", "x".repeat(107));
    for option in ["--unix-socket", "--http-unix-socket"] {
        let mut command = latchd();
        command.args(["--port=0", option, &path]);
        let said = refusal(78, command);
        assert!(
            said.contains(option) && said.contains("107 bytes"),
            "{said}"
        );
    }
    let mut command = latchd();
    command.args(["--port=0"]).env("LATCHD_UNIX_SOCKET", &path);
    let said = refusal(78, command);
    assert!(said.contains("LATCHD_UNIX_SOCKET"), "{said}");
}

#[test]
fn a_directory_that_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let said = refusal(78, latchd_at(&dir.path().join("missing/latchd.sock")));
    assert!(said.contains("; create its directory or choose"), "{said}");
}

#[test]
fn the_file_goes_with_the_daemon_also_when_it_is_forced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let mut daemon = Daemon::start_at(&path, &[]);
    daemon.stop();
    assert!(!path.exists());

    let mut daemon = Daemon::start_at(&path, &[]);
    let mut holder = Client::unix(&path);
    holder.lock("k", "0");
    daemon.signal(Signal::TERM);
    daemon.wait_for_log("shutting down");
    daemon.stop();
    assert!(!path.exists());
}

#[test]
fn what_took_its_place_meanwhile_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let mut daemon = Daemon::start_at(&path, &[]);
    // Made beside it and moved: a file made afresh could get the very same inode.
    fs::write(dir.path().join("other"), "precious").unwrap();
    fs::rename(dir.path().join("other"), &path).unwrap();
    daemon.stop();
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}
