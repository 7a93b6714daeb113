//! Anywhere but on Linux: the commands that run a command are refused.
//!
//! Such a command must not outlive its lock, also if `latch` is killed. Linux has what that takes (a subreaper, process
//! descriptors), and nothing of the kind was built for another system. `top` needs Linux for its screen.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgMatches, Command};

use crate::cli::Context;
use crate::cli::args;
use crate::cli::exit::{Exit, Fail};
use crate::cli::table::Entry;

/// What this process is to be in place of a typed command.
pub(crate) type Role = fn(&mut dyn Iterator<Item = OsString>) -> Exit;

/// There is no other.
pub(crate) fn other_role(_word: &OsStr) -> Option<Role> {
    None
}

/// `run` and `file`.
pub(crate) fn entries_first() -> Vec<Entry> {
    vec![
        Entry::new(refused("run"), |_, _| Err(no_command("latch run"))),
        Entry::new(refused("file"), |_, _| Err(no_command("latch file"))),
    ]
}

/// `top`.
pub(crate) fn entries_screen() -> Vec<Entry> {
    let run = |_: &Context, _: &ArgMatches| {
        let message = "`latch top` works on Linux only: `latch ls` and `latch stats` work here";
        Err(Fail::usage(message))
    };
    vec![Entry::new(refused("top"), run)]
}

/// `range lock` with a command.
pub(crate) fn lock_range_while(_: &ArgMatches, _: &[OsString]) -> Result<Exit, Fail> {
    Err(no_command("`latch range lock` with a command"))
}

/// What was closed is not known: nothing runs early enough.
pub(crate) fn is_input_closed() -> bool {
    false
}

pub(crate) fn why_no_output() -> Option<&'static str> {
    None
}

fn refused(name: &'static str) -> Command {
    let words = Arg::new("WORDS").num_args(0..).value_parser(args::bytes());
    let command = Command::new(name).about("Not on this system: Linux only");
    command.arg(
        words
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .hide(true),
    )
}

fn no_command(what: &str) -> Fail {
    Fail::usage(format!(
        "{what} works on Linux only: take the lock with `latch acquire` or `latch range lock --client`, run the command, and release the lock"
    ))
}
