//! The words these tests are written in: [`latch`] is a command line, [`Run`] a process that goes on.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::vocabulary::{Daemon, PATIENCE};

pub(crate) fn program() -> &'static str {
    env!("CARGO_BIN_EXE_latch")
}

/// `latch` with these words, and none of the settings this process may have.
pub(crate) fn latch(words: &[&str]) -> Command {
    let mut command = plain(program());
    command.args(words).stdin(Stdio::null());
    command
}

/// A program that ignores no signal, even if whoever runs the tests does (`cargo test &` in a script).
pub(crate) fn plain(program: &str) -> Command {
    let mut command = Command::new("env");
    clean(&mut command);
    command.args(["--default-signal", program]);
    command
}

pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LATCH") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").env("SHELL", "/bin/sh");
}

/// The same, at this daemon.
pub(crate) fn latch_at(daemon: &Daemon, words: &[&str]) -> Command {
    let mut command = latch(words);
    command.env("LATCH_SERVER", daemon.address().to_string());
    command
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs it to its end.
#[track_caller]
pub(crate) fn said(mut command: Command) -> Said {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Said {
        code: status.code(),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Runs it at a daemon and expects this exit code; what it printed, without the last line end.
#[track_caller]
pub(crate) fn expect(daemon: &Daemon, code: i32, words: &[&str]) -> String {
    let said = said(latch_at(daemon, words));
    assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
    said.out.trim_end().to_owned()
}

/// A process that goes on, killed when dropped.
pub(crate) struct Run {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
}

impl Run {
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The next line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        wait_readable(&self.out);
        self.out.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "its output has ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// The next line, which is the number of a process.
    #[track_caller]
    pub(crate) fn pid(&mut self) -> Pid {
        Pid::from_raw(self.line().parse().unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code, once it has ended by itself.
    #[track_caller]
    pub(crate) fn code(&mut self) -> Option<i32> {
        wait_gone(Pid::from_child(&self.child));
        self.child.wait().unwrap().code()
    }

    /// Everything it has still to say.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn wait_readable(out: &BufReader<ChildStdout>) {
    if !out.buffer().is_empty() {
        return;
    }
    let timeout = PATIENCE.try_into().unwrap();
    let mut events = [PollFd::new(out.get_ref(), PollFlags::IN)];
    assert_eq!(poll(&mut events, Some(&timeout)), Ok(1), "no output");
}

/// Waits for the end of a process, be it our child or not.
#[track_caller]
pub(crate) fn wait_gone(pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return; // it has gone already
    };
    let timeout = PATIENCE.try_into().unwrap();
    let mut events = [PollFd::new(&process, PollFlags::IN)];
    let ready = poll(&mut events, Some(&timeout));
    assert_eq!(ready, Ok(1), "process {pid:?} goes on");
}

/// Whether a process is there, and more than a name that nobody has asked about.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.is_ok_and(|stat| !matches!(stat.rsplit_once(") ").unwrap().1.as_bytes()[0], b'Z' | b'X'))
}

/// Asks again and again, until it is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        // Whatever it is, it takes the machine a moment.
        let pause = Duration::from_millis(5).try_into().unwrap();
        let _ = poll(&mut [], Some(&pause));
    }
}

/// A number, in a file that a command writes: `None` while it is not there.
pub(crate) fn number_in(path: &std::path::Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Says why a test is not run, past the harness, which shows what a test prints only if that fails.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current();
    let name = name.name().unwrap_or_default();
    let text = format!("SKIPPED {name}: {why}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}
