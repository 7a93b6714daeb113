//! `latch file`: runs a command under a lock that is a file, on one machine, without a daemon.
//!
//! flock(1)'s flags and exit codes, only that the file is made for the lock and goes with it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};

use super::Context;
use super::args::{self, Patience};
use super::exit::{Exit, Fail};
use super::output::{escaped, quoted};
use super::supervise::signals::Signals;
use super::supervise::task::{self, Unfinished};
use super::supervise::warden::{Hold, Locks, Warden};
use super::supervise::{Job, Lock, Standing, supervise};
use super::table::Entry;
use super::waiting::WaitingLine;
use crate::ephemeral::{EphemeralLock, Error, Guard, holders};

const EXAMPLES: &str = "\
Examples:
  latch file /var/lib/report/build.lock -- ./build.sh
  latch file -n ~/.cache/sync.lock -- rsync -a src/ dst/   not if it runs already
  latch file -s /srv/data.lock -- ./read.sh                together with others that read
  latch file -w 10 -E 75 /srv/data.lock -c './a && ./b'    10 seconds at most, then 75";

pub(crate) fn entries() -> Vec<Entry> {
    let path = Arg::new("PATH")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(clap::ValueHint::FilePath)
        .help("The lock file. It is made, and removed at the end");
    let keep = args::flag(
        "keep-file",
        "Leave the file in place: it also excludes a waiting flock(1)",
    );
    let network = Arg::new("allow-network")
        .long("allow-network")
        .action(clap::ArgAction::SetTrue)
        .help("Also on a network file system, where others may not see the lock");
    let inherit = args::flag(
        "inherit",
        "The command inherits the lock, and whoever it leaves running keeps it",
    );
    let close = Arg::new("close")
        .short('o')
        .long("close")
        .action(clap::ArgAction::SetTrue)
        .conflicts_with("inherit")
        .help("The command does not inherit the lock, as it is without --inherit");
    let command = Command::new("file")
        .about("Run a command under a lock that is a file: no daemon, this machine only")
        .override_usage(
            "latch file [OPTIONS] PATH [--] COMMAND…\n       latch file [OPTIONS] PATH -c STRING",
        )
        .args(args::shared_or_exclusive())
        .args(args::patience())
        .arg(args::conflict_exit_code())
        .arg(args::shell_command())
        .arg(args::kill_after())
        .args([close, inherit, keep, network])
        .arg(path)
        .arg(args::command_behind_one())
        .after_help(EXAMPLES);
    vec![Entry::new(command, run)]
}

fn run(_: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let command = args::command(matches, "latch file ~/.cache/sync.lock -- ./sync.sh")?;
    let Some(path) = matches.get_one::<PathBuf>("PATH") else {
        return Err(Fail::usage("which file? latch file PATH -- COMMAND"));
    };
    let lock = match args::is_shared(matches) {
        true => EphemeralLock::shared(path),
        false => EphemeralLock::exclusive(path),
    };
    let lock = lock
        .allow_network(matches.get_flag("allow-network"))
        .keep_file(matches.get_flag("keep-file"));
    let inherits = matches.get_flag("inherit");
    let patience = args::patience_of(matches);
    let mut signals = Signals::watch()?;
    let guard = match acquire(lock.clone(), patience, path, &mut signals) {
        Ok(guard) => guard,
        Err(Unfinished::Signal(signal)) => return Ok(signals.die(signal)),
        Err(Unfinished::Failed(fail)) if fail.exit == Exit::CONFLICT => {
            return Err(Fail::new(args::conflict_exit(matches), fail.message));
        }
        Err(Unfinished::Failed(fail)) => return Err(fail),
    };
    // The copy keeps the lock if we are killed, until nobody of the command is left.
    let copy = guard.as_fd().try_clone_to_owned();
    let copy = copy.map_err(|error| Fail::system("copy a descriptor", error))?;
    let (wardens, commands) = match inherits {
        false => (Some(copy), None),
        true => (None, Some(copy)),
    };
    let job = Job {
        command: &command,
        env: &[("LATCH_FILE", Some(OsString::from(guard.path())))],
        inherits: commands,
        kill_after: args::kill_after_of(matches).unwrap_or(KILL_AFTER),
        lease: None,
        warden: Arc::new(Warden::start(&[], wardens)?),
    };
    let ended = supervise(job, &mut signals, &mut FileLock)?;
    let released = match inherits {
        false => guard.release().map(drop),
        true => leave(guard, &lock),
    };
    if let Err(error) = released {
        let path = quoted(path.as_os_str().as_encoded_bytes());
        eprintln!("latch: {path} is unlocked, but was not removed: {error}");
    }
    Ok(ended.exit(&mut signals))
}

/// Leaves the lock to whoever has inherited it. If nobody has it any more, the file goes.
fn leave(guard: Guard, lock: &EphemeralLock) -> std::io::Result<()> {
    guard.leave_to_copies();
    match lock.try_acquire() {
        Ok(guard) => guard.release().map(drop),
        Err(_) => Ok(()), // theirs, or another one's by now, or no lock file any more
    }
}

/// How long what a command leaves behind has between being told to end and being killed.
const KILL_AFTER: Duration = Duration::from_secs(10);

fn acquire(
    lock: EphemeralLock,
    patience: Patience,
    path: &Path,
    signals: &mut Signals,
) -> Result<Guard, Unfinished> {
    let first = lock.try_acquire();
    let result = match (first, patience) {
        (Err(Error::Busy { .. }), Patience::For(wait)) => {
            wait_for(lock.timeout(wait), path, signals)?
        }
        (Err(Error::Busy { .. }), Patience::Forever) => wait_for(lock, path, signals)?,
        (result, _) => result,
    };
    result.map_err(|error| {
        let exit = match error {
            Error::Busy { .. } => Exit::CONFLICT,
            _ => Exit::CANNOT_OPEN,
        };
        let message = match (&error, patience) {
            // Whoever asks to be told by the exit code alone is told so.
            (Error::Busy { .. }, Patience::None) => String::new(),
            (Error::Busy { .. }, _) => format!("{}: the wait is over", waits_for(path)),
            _ => error.to_string(),
        };
        Unfinished::Failed(Fail::new(exit, message))
    })
}

fn wait_for(
    lock: EphemeralLock,
    path: &Path,
    signals: &mut Signals,
) -> Result<Result<Guard, Error>, Unfinished> {
    let mut line = WaitingLine::new();
    task::wait(
        signals,
        move || lock.acquire(),
        |last| line.tick(last, || format!("latch: {}", waits_for(path))),
    )
}

/// Who has it, as far as the system tells.
fn waits_for(path: &Path) -> String {
    let name = quoted(path.as_os_str().as_encoded_bytes());
    let pids: Vec<String> = holders(path)
        .unwrap_or_default()
        .iter()
        .filter_map(|holder| holder.pid)
        .map(|pid| {
            let program = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            match program.trim_ascii() {
                b"" => format!("process {pid}"),
                program => format!("process {pid} ({})", escaped(program)),
            }
        })
        .collect();
    match pids.is_empty() {
        true => format!("{name} is locked by somebody else"),
        false => format!("{name} is locked by {}", pids.join(", ")),
    }
}

/// A file lock ends with its holder and not before, so a command that runs under one is never told to go.
struct FileLock;

impl Lock for FileLock {
    fn standing(&mut self) -> Standing {
        Standing::Held(None)
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn suspend(&mut self) {}

    fn resume(&mut self) -> Option<Standing> {
        Some(Standing::Held(None))
    }
}

/// The warden of a file lock has nothing to let go but a descriptor.
#[derive(Clone)]
pub(crate) struct NoLocks;

impl Locks for NoLocks {
    fn release(&mut self, _: &[Hold]) {}

    fn renew(&mut self, _: &[Hold], _: Duration) -> Option<Duration> {
        None
    }
}
