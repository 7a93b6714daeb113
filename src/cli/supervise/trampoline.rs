//! The first moments of a command: it is started as `latch` once more, which ties its life to ours and then
//! becomes the command.
//!
//! What has to be done between fork and exec cannot be done safely by a program with threads. So it is done
//! after an exec, by a program with none: [`run`] runs in the new process, asks the system to kill it when its
//! parent is gone, tells the warden of itself, takes the terminal if it is to have it, and is replaced by the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::signal::{SigSet, Signal};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, getpid, getppid, set_parent_process_death_signal};

use super::signals;
use super::terminal::Terminal;
use super::warden::{self, Warden};
use crate::cli::exit::{Exit, Fail};
use crate::cli::output::quoted;
use crate::closed;

/// The word that has `latch` be this, and not a command for people.
pub(crate) const WORD: &str = "__exec";
/// Whether the command is to have the terminal.
const FOREGROUND: &str = "foreground";
const BACKGROUND: &str = "background";

/// Starts a command in a process group of its own. It dies when this thread does, which therefore has to be the
/// main one. `env` are variables that it gets besides ours, or does not get, `inherits` a descriptor; no other thread may start
/// anything meanwhile, since that would get it as well.
pub(crate) fn start(
    command: &[OsString],
    env: &[(&str, Option<OsString>)],
    inherits: Option<OwnedFd>,
    foreground: bool,
    warden: &Warden,
) -> Result<Child, Fail> {
    let mut start = ourselves();
    start.arg(WORD).arg(getpid().as_raw_pid().to_string());
    start.arg(if foreground { FOREGROUND } else { BACKGROUND });
    start.arg(warden.path()).arg(closed::word());
    start.args(command);
    for (name, value) in env {
        match value {
            Some(value) => start.env(name, value),
            None => start.env_remove(name),
        };
    }
    let failed = |error: io::Error| Fail::system("start a process", error);
    if let Some(fd) = &inherits {
        fcntl_setfd(fd, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    }
    start.process_group(0).spawn().map_err(failed)
}

/// This program, whatever has become of its file since.
pub(super) fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("latch");
    command
}

/// Runs in the new process, and does not return unless the command cannot be run.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> Exit {
    let (parent, foreground) = (args.next(), args.next());
    let (warden, closed) = (args.next(), args.next());
    let (Some(warden), Some(closed), Some(program)) = (warden, closed, args.next()) else {
        return Exit::USAGE; // somebody has typed it
    };
    let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // It may have gone before it was said that this matters.
    let parent: Option<i32> = parent.and_then(|it| it.to_str()?.parse().ok());
    if getppid() != parent.and_then(Pid::from_raw) {
        return Exit::signal(Signal::SIGKILL as i32);
    }
    if !warden::tell_of_ourselves(&warden) {
        return Exit::signal(Signal::SIGKILL as i32);
    }
    if foreground.as_deref() == Some(OsStr::new(FOREGROUND)) {
        // We are in the background now, and would be stopped for this if the signal for it were not blocked.
        let blocked = SigSet::from(Signal::SIGTTOU).thread_block();
        if let (Ok(()), Some(terminal)) = (blocked, Terminal::open()) {
            terminal.give(getpid());
        }
    }
    signals::unblock();
    closed::close_on_exec(&closed.to_string_lossy());
    let error = Command::new(&program).args(args).exec();
    let name = quoted(program.as_encoded_bytes());
    let (exit, why) = match error.kind() {
        io::ErrorKind::NotFound => (
            Exit::NO_COMMAND,
            format!("cannot run {name}: there is no such command. Is it in PATH?"),
        ),
        io::ErrorKind::PermissionDenied => (
            Exit::NOT_EXECUTABLE,
            format!("cannot run {name}: {error}. Is it executable (chmod +x)?"),
        ),
        _ => (Exit::NOT_EXECUTABLE, format!("cannot run {name}: {error}")),
    };
    let _ = writeln!(io::stderr(), "latch: {why}");
    exit
}
