//! Where a socket, a token or a certificate is said by a path that begins here: whoever is elsewhere finds it, too.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::latch::{Run, latch, program, said};
use crate::vocabulary::{Daemon, latchd};

/// A daemon at `dir/l.sock` that wants the token in `dir/token`.
fn start(dir: &Path) -> Daemon {
    std::fs::write(dir.join("token"), "s3cret\n").unwrap();
    let mut command = latchd();
    command.args(["--port", "0", "--auth-token-file"]);
    command.arg(dir.join("token"));
    command.arg("--unix-socket").arg(dir.join("l.sock"));
    Daemon::serve(command)
}

/// `latch` in this directory.
fn latch_in(dir: &Path, words: &[&str]) -> Command {
    let mut command = latch(words);
    command.current_dir(dir);
    command
}

#[test]
fn what_is_killed_lets_go_also_if_paths_begin_here() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let run = ["run", "--lease", "1h", "k", "-c", "echo; exec sleep 1000"];
    let options: [&[&str]; 2] = [
        &["--server", "unix:l.sock", "--auth-token-file", "token"],
        &[],
    ];
    for options in options {
        let words = [options, &run].concat();
        let mut command = latch_in(dir.path(), &words);
        if options.is_empty() {
            command.env("LATCH_SERVER", "unix:./l.sock");
            command.env("LATCH_AUTH_TOKEN_FILE", "token");
        }
        let mut run = Run::start(command);
        run.line();
        run.signal(Signal::KILL);
        // An hour is more than the test's patience: the warden has let it go.
        let mut next = latch_in(dir.path(), &["run", "-w", "10", "k", "--", "true"]);
        next.env("LATCH_SERVER", "unix:l.sock");
        next.env("LATCH_AUTH_TOKEN", "s3cret");
        let next = said(next);
        assert_eq!(next.code, Some(0), "{options:?}: {next:?}");
    }
}

#[test]
fn a_latch_inside_reaches_the_same_server_with_the_same_token() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let inner = format!("cd / && {} who k", program());
    let words = [
        "--server",
        "unix:l.sock",
        "--auth-token-file",
        "token",
        "--ca-file",
        "ca.pem",
        "--clock-drift",
        "25",
        "run",
        "k",
        "-c",
        &format!("{inner}; echo $LATCH_CLOCK_DRIFT $LATCH_CA_FILE"),
    ];
    let mut command = latch_in(dir.path(), &words);
    // The file that was named beats it, there as here.
    command.env("LATCH_AUTH_TOKEN", "wrong");
    let out = said(command);
    assert_eq!(out.code, Some(0), "{out:?}");
    assert!(out.out.starts_with("holds"), "{out:?}");
    let ca_file = dir.path().join("ca.pem");
    let last = format!("25 {}", ca_file.to_str().unwrap());
    assert_eq!(out.out.lines().last(), Some(&*last), "{out:?}");
    // One that makes no sense is told, not passed over.
    let mut command = latch_in(dir.path(), &["--server", "unix:l.sock", "ping"]);
    command.env("LATCH_CLOCK_DRIFT", "51");
    assert_eq!(said(command).code, Some(64));
    // A token that was in the environment stays there.
    let mut command = latch_in(
        dir.path(),
        &["--server", "unix:l.sock", "run", "k", "-c", &inner],
    );
    command.env("LATCH_AUTH_TOKEN", "s3cret");
    command
        .env("LATCH_AUTH_TOKEN_FILE", "nowhere")
        .stderr(Stdio::inherit());
    let out = said(command);
    assert_eq!(out.code, Some(0), "{out:?}");
}
