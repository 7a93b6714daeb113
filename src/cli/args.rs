//! Arguments that several commands have: how long to wait, for how long to hold, what to run.
//!
//! Each stands here once, with its help, so that it is called the same everywhere.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use super::duration;
use super::exit::{Exit, Fail};
use super::output::quoted;
use crate::wire::client::{Unspellable, read_request};
use crate::wire::verbs::Verb;

/// How long to wait for what somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// For so long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// A time as people write it.
pub(crate) fn duration() -> ValueParser {
    ValueParser::new(duration::parse)
}

/// Bytes that need not be text.
pub(crate) fn bytes() -> ValueParser {
    ValueParser::os_string()
}

pub(crate) fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

/// `KEY`.
pub(crate) fn key() -> Arg {
    Arg::new("KEY")
        .required(true)
        .value_parser(bytes())
        .help("The name: any bytes but blanks, up to 256")
}

/// The one key of a command that has to have one.
pub(crate) fn key_of(matches: &ArgMatches) -> Result<&[u8], Fail> {
    let key = bytes_of(matches, "KEY").ok_or_else(|| Fail::usage("a KEY is missing"))?;
    check_key(key)?;
    Ok(key)
}

/// Whether this can be the name of something. By what is wrong nobody would know which of several it was.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Fail> {
    let why = match read_request(Verb::Who, key, b"") {
        Ok(_) => return Ok(()),
        Err(Unspellable::Malformed(_)) => "it is empty or holds a blank".to_owned(),
        Err(why) => why.to_string(),
    };
    let key = quoted(key);
    Err(Fail::usage(format!("{key} cannot be a key: {why}")))
}

/// An argument's bytes, if it was given.
pub(crate) fn bytes_of<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a [u8]> {
    matches
        .get_one::<OsString>(name)
        .map(|it| it.as_encoded_bytes())
}

/// `-n` and `-w`.
pub(crate) fn patience() -> [Arg; 2] {
    [
        Arg::new("nonblock")
            .short('n')
            .long("nonblock")
            .visible_alias("nb")
            .action(ArgAction::SetTrue)
            .conflicts_with("wait")
            .help("Do not wait: if somebody else has it, exit with 1 (or -E)"),
        wait("Wait this long at most, then exit with 1 (or -E)"),
    ]
}

/// `-w` alone.
pub(crate) fn wait(help: &'static str) -> Arg {
    Arg::new("wait")
        .short('w')
        .long("wait")
        .visible_alias("timeout")
        .value_name("SECS")
        .value_parser(duration())
        .help(help)
}

pub(crate) fn patience_of(matches: &ArgMatches) -> Patience {
    let wait = matches.get_one::<Duration>("wait").copied();
    match (matches.get_flag("nonblock"), wait) {
        (true, _) => Patience::None,
        (false, Some(wait)) if wait.is_zero() => Patience::None,
        (false, Some(wait)) => Patience::For(wait),
        (false, None) => Patience::Forever,
    }
}

/// `-s` and `-x`.
pub(crate) fn shared_or_exclusive() -> [Arg; 2] {
    [
        Arg::new("shared")
            .short('s')
            .long("shared")
            .action(ArgAction::SetTrue)
            .conflicts_with("exclusive")
            .help("Together with others that say -s, too"),
        Arg::new("exclusive")
            .short('x')
            .long("exclusive")
            .short_alias('e')
            .action(ArgAction::SetTrue)
            .help("Alone, as it is without -s"),
    ]
}

pub(crate) fn is_shared(matches: &ArgMatches) -> bool {
    matches.get_flag("shared")
}

/// `-E`.
pub(crate) fn conflict_exit_code() -> Arg {
    Arg::new("conflict-exit-code")
        .short('E')
        .long("conflict-exit-code")
        .value_name("CODE")
        .value_parser(clap::value_parser!(u8))
        .help("The exit code if the lock cannot be had in time, instead of 1")
}

pub(crate) fn conflict_exit(matches: &ArgMatches) -> Exit {
    matches
        .get_one::<u8>("conflict-exit-code")
        .map_or(Exit::CONFLICT, |code| Exit(*code))
}

/// `--lease`.
pub(crate) fn lease(help: &'static str) -> Arg {
    Arg::new("lease")
        .long("lease")
        .value_name("TIME")
        .value_parser(duration())
        .help(help)
}

/// A lease of nothing is a mistake.
pub(crate) fn lease_of(matches: &ArgMatches) -> Result<Option<Duration>, Fail> {
    match matches.get_one::<Duration>("lease").copied() {
        Some(lease) if lease.is_zero() => {
            Err(Fail::usage("--lease 0 would be over at once: say 30s"))
        }
        lease => Ok(lease),
    }
}

/// `--kill-after`.
pub(crate) fn kill_after() -> Arg {
    Arg::new("kill-after")
        .long("kill-after")
        .value_name("TIME")
        .value_parser(duration())
        .help("Time between SIGTERM and SIGKILL when it has to end")
}

pub(crate) fn kill_after_of(matches: &ArgMatches) -> Option<Duration> {
    matches.get_one::<Duration>("kill-after").copied()
}

/// `-c`.
pub(crate) fn shell_command() -> Arg {
    Arg::new("command")
        .short('c')
        .long("command")
        .value_name("STRING")
        .value_parser(bytes())
        .help("Have $SHELL, or sh, run this")
}

/// The command behind `--`, where several words stand before it.
pub(crate) fn command_behind_dashes() -> Arg {
    command_words().last(true)
}

/// The command behind one word, with or without `--`.
pub(crate) fn command_behind_one() -> Arg {
    command_words().trailing_var_arg(true)
}

fn command_words() -> Arg {
    Arg::new("COMMAND")
        .num_args(1..)
        .value_parser(bytes())
        .value_hint(clap::ValueHint::CommandWithArguments)
        .help("What to run, with its arguments")
}

/// What is to be run: words, or a line for the shell. The example is for whoever has named neither.
pub(crate) fn command(matches: &ArgMatches, example: &str) -> Result<Vec<OsString>, Fail> {
    let words: Vec<OsString> = matches
        .get_many::<OsString>("COMMAND")
        .map(|words| words.cloned().collect())
        .unwrap_or_default();
    match (matches.get_one::<OsString>("command"), words.is_empty()) {
        (Some(line), true) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| OsString::from("/bin/sh"));
            Ok(vec![shell, OsString::from("-c"), line.clone()])
        }
        (Some(_), false) => Err(Fail::usage(
            "-c STRING is the whole command: leave out what stands behind --",
        )),
        (None, true) => Err(Fail::usage(format!(
            "no command: put it behind --, as in `{example}`"
        ))),
        (None, false) => Ok(words),
    }
}
