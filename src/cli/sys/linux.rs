//! Linux: the commands that run a command, and the other roles of this program, which they start.

use std::ffi::{OsStr, OsString};

use clap::ArgMatches;

use crate::cli::exit::{Exit, Fail};
use crate::cli::supervise::{trampoline, warden};
use crate::cli::table::Entry;
use crate::cli::{connect, file, range_run, remote, run, table, top};
pub(crate) use crate::closed::{is_input_closed, why_no_output};

/// What this process is to be in place of a typed command.
pub(crate) type Role = fn(&mut dyn Iterator<Item = OsString>) -> Exit;

/// The role that the first word names.
pub(crate) fn other_role(word: &OsStr) -> Option<Role> {
    match word.to_str() {
        Some(trampoline::WORD) => Some(|args| trampoline::run(args)),
        Some(warden::WORD) => Some(guard),
        _ => None,
    }
}

/// The warden of a command: it reaches servers as we were told to.
fn guard(args: &mut dyn Iterator<Item = OsString>) -> Exit {
    let matches = table::server_options().try_get_matches_from(args);
    match matches.map(|matches| connect::Servers::of(&matches)) {
        Ok(Ok(servers)) => warden::run(remote::Remote::new(servers)),
        _ => warden::run(file::NoLocks),
    }
}

/// `run` and `file`.
pub(crate) fn entries_first() -> Vec<Entry> {
    [run::entries(), file::entries()]
        .into_iter()
        .flatten()
        .collect()
}

/// `top`.
pub(crate) fn entries_screen() -> Vec<Entry> {
    top::entries()
}

/// `range lock` with a command.
pub(crate) fn lock_range_while(matches: &ArgMatches, command: &[OsString]) -> Result<Exit, Fail> {
    range_run::lock_while(matches, command)
}
