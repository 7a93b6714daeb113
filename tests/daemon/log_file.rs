//! The log in a file: made with its mode, opened again on SIGHUP, and never waited for.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::vocabulary::{Client, Daemon, PATIENCE, latchd, refusal};

/// A daemon with its log in a file, and how to reach it.
struct Logging {
    daemon: Daemon,
    socket: PathBuf,
}

impl Logging {
    fn start(dir: &Path, command: Command) -> Self {
        let socket = dir.join("socket");
        let daemon = Daemon::spawn(with_socket(command, &socket));
        let logging = Self { daemon, socket };
        logging.client();
        logging
    }

    /// A client, as soon as the daemon listens.
    fn client(&self) -> Client {
        wait_until(|| UnixStream::connect(&self.socket).ok());
        Client::unix(&self.socket)
    }
}

/// Asks until there is an answer. What is waited for shows in files only, and those report nothing.
#[track_caller]
fn wait_until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "it takes too long");
        std::thread::yield_now();
    }
}

fn with_socket(mut command: Command, socket: &Path) -> Command {
    command.args(["--port=0", "--unix-socket"]).arg(socket);
    command
}

/// Waits until a file says this; says all of it.
#[track_caller]
fn wait_for(path: &Path, needle: &str) -> String {
    wait_until(|| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.contains(needle).then_some(text)
    })
}

fn logging_to(path: &Path) -> Command {
    let mut command = latchd();
    command.arg("--log-file").arg(path);
    command
}

#[test]
fn the_log_is_in_the_file_and_nothing_of_it_on_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    fs::write(&path, "from before\n").unwrap();
    let mut logging = Logging::start(dir.path(), logging_to(&path));
    wait_for(&path, "clients may make this process use");
    let said = logging.daemon.stop();
    assert!(said.is_empty(), "{said:?}");
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.starts_with("from before\n"), "{log}");
    assert!(log.contains(" listens on 127.0.0.1:"), "{log}");
    assert!(
        log.ends_with(" INFO  stopped\n"),
        "the last line is there: {log}"
    );
}

#[test]
fn a_file_that_is_made_can_be_read_by_its_user_and_group_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let _logging = Logging::start(dir.path(), logging_to(&path));
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    // A narrower umask may have taken more away.
    assert_eq!(mode & !0o640, 0, "{mode:o}");
    assert_eq!(mode & 0o600, 0o600, "{mode:o}");
}

#[test]
fn a_file_that_was_renamed_is_opened_anew_on_sighup_and_no_line_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let mut logging = Logging::start(dir.path(), logging_to(&path));
    let mut holder = logging.client();
    let grant = holder.lock("k", "0");
    wait_for(&path, "clients may make this process use");
    fs::rename(&path, &old).unwrap();
    logging.daemon.signal(Signal::HUP);
    let new = wait_for(&path, "was opened again");
    assert!(!new.contains("listens on"), "{new}");
    assert!(fs::read_to_string(&old).unwrap().contains("listens on"));
    holder.release("k", &grant);
    logging.daemon.stop();
    let (old, new) = (
        fs::read_to_string(old).unwrap(),
        fs::read_to_string(path).unwrap(),
    );
    assert!((old + &new).contains(" INFO  SIGHUP: the log file is opened again"));
    assert!(new.ends_with(" INFO  stopped\n"), "{new}");
}

#[test]
fn first_line_of_a_new_file_says_that_it_was_opened_again_also_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let mut command = logging_to(&path);
    command.arg("--log-level=trace");
    let mut logging = Logging::start(dir.path(), command);
    wait_for(&path, "clients may make this process use");
    let mut client = logging.client();
    let mut log_a_lot = || {
        for _ in 0..100 {
            client.put("nonsense _ _");
        }
        for _ in 0..100 {
            client.expect("error");
        }
    };
    for _ in 0..30 {
        fs::rename(&path, &old).unwrap();
        logging.daemon.signal(Signal::HUP);
        let first = wait_until(|| {
            log_a_lot();
            let text = fs::read_to_string(&path).ok()?;
            Some(text.split_once('\n')?.0.to_owned())
        });
        assert!(first.ends_with(" was opened again"), "{first}");
    }
    logging.daemon.stop();
}

#[test]
fn a_file_that_cannot_be_opened_again_keeps_the_old_one_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let mut logging = Logging::start(dir.path(), logging_to(&path));
    wait_for(&path, "clients may make this process use");
    fs::rename(&path, &old).unwrap();
    fs::create_dir(&path).unwrap(); // also root cannot write to it
    logging.daemon.signal(Signal::HUP);
    let log = wait_for(&old, "the log goes on in the file it had");
    assert!(log.contains(" ERROR cannot open the log file "), "{log}");
    assert_eq!(logging.client().ask("ping _ _"), "ok");
    logging.daemon.stop();
    assert!(
        fs::read_to_string(old)
            .unwrap()
            .ends_with(" INFO  stopped\n")
    );
}

fn await_lost_lines(client: &mut Client) {
    let start = Instant::now();
    while client.stats()["totals"]["lost_log_lines"] == 0 {
        assert!(start.elapsed() < PATIENCE, "no line of the log is lost");
    }
}

/// `/dev/full` takes nothing, as a disk without room does.
#[test]
fn a_full_disk_costs_lines_which_are_counted_and_told_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    symlink("/dev/full", &path).unwrap();
    let mut logging = Logging::start(dir.path(), logging_to(&path));
    let mut client = logging.client();
    await_lost_lines(&mut client);
    fs::remove_file(&path).unwrap();
    logging.daemon.signal(Signal::HUP);
    // With the first line, or when the loop tries, though nothing else is logged.
    let log = wait_for(&path, " lost: the log file could not be written");
    assert!(log.contains(" WARN "), "{log}");
    logging.daemon.stop();
}

/// Least of all is the log of what operators do.
#[test]
fn what_operators_do_is_logged_whatever_the_level() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut command = logging_to(&path);
    command.arg("--log-level=error");
    let mut logging = Logging::start(dir.path(), command);
    let mut holder = logging.client();
    holder.lock("k", "0");
    assert_eq!(logging.client().ask("break k *"), "ok 1");
    logging.daemon.stop();
    let log = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let [asked, done] = lines[..] else {
        panic!("{log}");
    };
    assert!(
        asked.contains(" WARN  audit action=break client=#"),
        "{log}"
    );
    assert!(
        done.contains(" WARN  broken by an operator key=k fence="),
        "{log}"
    );
}

#[test]
fn a_file_that_cannot_be_opened_ends_the_start() {
    for path in ["/nowhere/log", "/"] {
        let mut command = logging_to(Path::new(path));
        command.args(["--port=0", "--log-format=json"]);
        let said = refusal(78, command);
        let said: Value = serde_json::from_str(&said).expect(&said);
        let message = said["msg"].as_str().unwrap();
        let start = format!("cannot open the log file {path} (--log-file): ");
        assert!(message.starts_with(&start), "{message}");
    }
}

/// Nobody reads the pipe: the loop serves on, and signals are heard.
#[test]
fn a_pipe_that_nobody_reads_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let mut command = logging_to(&path);
    command.arg("--log-level=trace");
    let mut logging = Logging::start(dir.path(), command);
    let mut client = logging.client();
    for _ in 0..3_000 {
        assert_eq!(client.ask("nonsense _ _"), "error");
    }
    await_lost_lines(&mut client);
    logging.daemon.stop();
    drop(reader);
}
