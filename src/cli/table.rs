//! The table of commands: what there is, in which order, and which function does it.
//!
//! Help, completions and man pages are made from it, and nothing else is a command.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::args;
use super::exit::{Exit, Fail};
use super::{Context, data, documents, events, locks, ranges, show, sys};

/// One command.
pub(crate) struct Entry {
    pub(crate) command: Command,
    pub(crate) run: Run,
}

/// What does it.
pub(crate) type Run = fn(&Context, &ArgMatches) -> Result<Exit, Fail>;

impl Entry {
    pub(crate) fn new(command: Command, run: Run) -> Self {
        Self { command, run }
    }
}

/// Every command, in the order of the help.
pub(crate) fn entries() -> Vec<Entry> {
    let groups = [
        sys::entries_first,
        locks::entries,
        show::entries,
        sys::entries_screen,
        events::entries,
        data::entries,
        ranges::entries,
        documents::entries,
    ];
    groups.into_iter().flat_map(|group| group()).collect()
}

/// Whether the command prints what comes of it. Its output is checked before it does anything.
pub(crate) fn prints(name: &str, matches: &ArgMatches) -> bool {
    match name {
        "run" | "file" | "top" | "barrier" => false,
        "set" | "del" | "cas" | "release" => matches.get_flag("json"),
        "elect" => !matches.contains_id("resign"),
        "range" => !matches!(matches.subcommand_name(), Some("lock" | "unlock")),
        _ => true,
    }
}

const ABOUT: &str = "Locks for every program on every machine: runs commands one at a time, and shows who holds what.";

const RULES: &str = "\
TIME and SECS are seconds (30, 1.5) or have a unit (250ms, 10s, 5m, 2h, 1d).
SERVER is host:port, unix:/path or tls://host:port; several with commas share
the keys among them. The token for a server is read from LATCH_AUTH_TOKEN, or
from the file that LATCH_AUTH_TOKEN_FILE or --auth-token-file names.

Exit codes: that of the command that was run, 128+n if signal n ended it;
  1 somebody else has it, or nothing is there    64 wrong command line
 66 a file cannot be opened                      69 no server, or it is silent
 70 something is wrong here                      74 cannot write the output
 75 the server refused                           77 token missing or wrong
 79 the lock was lost, and the command ended    126 127 command cannot be run";

const EXAMPLES: &str = "\
Examples:
  latch run nightly -- ./backup.sh          one at a time, on all machines
  latch run -n report -- ./report.sh        not if it runs already
  latch run --semaphore 3 build -- make     three at a time
  latch who nightly                         who has it, who waits
  latch file ~/.cache/x.lock -- ./once.sh   on this machine, without a server
  latch help run                            more about one command";

/// The whole command line.
pub(crate) fn command(entries: impl IntoIterator<Item = Command>) -> Command {
    Command::new("latch")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(format!("{RULES}\n\n{EXAMPLES}"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .infer_subcommands(false)
        .args(global())
        .subcommands(entries)
}

/// Only what says where the servers are, for the warden.
pub(crate) fn server_options() -> Command {
    Command::new("latch").no_binary_name(true).args(global())
}

fn global() -> [Arg; 5] {
    [
        Arg::new("server")
            .long("server")
            .value_name("SERVER")
            .value_parser(args::bytes())
            .global(true)
            .help_heading("Server")
            .help("Which server, or members A+B [env: LATCH_SERVER, otherwise 127.0.0.1:6388]"),
        Arg::new("auth-token-file")
            .long("auth-token-file")
            .value_name("PATH")
            .value_parser(clap::value_parser!(std::path::PathBuf))
            .value_hint(clap::ValueHint::FilePath)
            .global(true)
            .help_heading("Server")
            .help("A file with the server's token [env: LATCH_AUTH_TOKEN_FILE]"),
        Arg::new("ca-file")
            .long("ca-file")
            .value_name("PATH")
            .value_parser(clap::value_parser!(std::path::PathBuf))
            .value_hint(clap::ValueHint::FilePath)
            .global(true)
            .help_heading("Server")
            .help("Whom to trust for tls://, in PEM [env: LATCH_CA_FILE, otherwise the system's]"),
        Arg::new("clock-drift")
            .long("clock-drift")
            .value_name("PERCENT")
            .value_parser(clap::value_parser!(u32).range(0..=50))
            .global(true)
            .help_heading("Server")
            .help("How far clocks may differ in speed [env: LATCH_CLOCK_DRIFT, otherwise 10]"),
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .global(true)
            .help_heading("Output")
            .help("Print JSON, where the command prints anything"),
    ]
}
