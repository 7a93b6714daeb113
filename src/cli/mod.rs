//! The command `latch`: what people and scripts type.
//!
//! One file for each group of commands, and nothing here decides anything about locks: `latch` is a client, and
//! prints. Every way it can end is an exit code (`exit`), every command stands in one table (`table`).

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "some of it is only for commands that run a command"
    )
)]

mod args;
mod connect;
mod data;
mod documents;
mod duration;
mod events;
mod exit;
#[cfg(target_os = "linux")]
mod file;
mod locks;
mod output;
#[cfg(target_os = "linux")]
mod range_run;
mod ranges;
#[cfg(target_os = "linux")]
mod remote;
#[cfg(target_os = "linux")]
mod run;
mod show;
#[cfg(target_os = "linux")]
mod supervise;
mod sys;
mod table;
#[cfg(target_os = "linux")]
mod top;
mod waiting;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::ErrorKind;

pub use self::documents::commands_markdown;
use self::exit::{Exit, Fail};
use self::output::Output;
use crate::escape;

/// What every command is given: how to print.
pub(crate) struct Context {
    pub(crate) output: Output,
    /// Somebody wants no colours, or has a terminal without.
    pub(crate) no_colour: bool,
}

/// Runs the command that this process was started with.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let (name, first) = (args.next(), args.next());
    let all = name.into_iter().chain(first.clone());
    let exit = match first.as_deref().and_then(|word| sys::other_role(word)) {
        Some(role) => role(&mut args),
        None => run(all.chain(args)),
    };
    ExitCode::from(exit.0)
}

fn run(args: impl Iterator<Item = OsString>) -> Exit {
    match parse_and_run(args) {
        Ok(exit) => exit,
        Err(fail) => {
            if !fail.message.is_empty() {
                // At once, in one piece: others may write to the same place.
                let _ = std::io::stderr().write_all(format!("latch: {fail}\n").as_bytes());
            }
            fail.exit
        }
    }
}

fn parse_and_run(args: impl Iterator<Item = OsString>) -> Result<Exit, Fail> {
    let (mut commands, mut runs) = (Vec::new(), Vec::new());
    for entry in table::entries() {
        runs.push((entry.command.get_name().to_owned(), entry.run));
        commands.push(entry.command);
    }
    let matches = match table::command(commands).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
            return shown(&error, &names);
        }
    };
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Fail::usage("no command: see latch help"));
    };
    let run = runs.into_iter().find(|(it, _)| it == name);
    let Some((_, run)) = run else {
        return Err(Fail::usage("no such command: see latch help"));
    };
    let context = context(matches);
    if table::prints(name, matches) {
        context.output.check()?;
    }
    run(&context, matches)
}

/// Help and version are no errors; the rest is clap's own words, and which of these commands may have been meant.
/// clap repeats arguments as they are, so its words are escaped line by line.
fn shown(error: &clap::Error, names: &[&str]) -> Result<Exit, Fail> {
    let text = error.render().to_string();
    let text = text
        .split('\n')
        .map(escape::text)
        .collect::<Vec<_>>()
        .join("\n");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Output::new(false, true).raw(text.as_bytes())?;
            Ok(Exit::OK)
        }
        ErrorKind::InvalidSubcommand => {
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let first = first.strip_prefix("error: ").unwrap_or(first);
            // It is in quotes there; clap suggests nothing behind `help`.
            let word = first.split('\'').nth(1).unwrap_or_default();
            let advice = match nearest(word, names) {
                Some(name) if !rest.contains("tip:") => format!(": is it `latch {name}`?"),
                Some(_) => String::new(),
                None => ": `latch help` lists all".to_owned(),
            };
            Err(Fail::usage(format!("{first}{advice}\n{}", rest.trim_end())))
        }
        _ => {
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Err(Fail::usage(text.trim_end()))
        }
    }
}

/// The name that this may be, with a slip or two.
fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let slips_max = match word.chars().count() {
        0 | 1 => return None,
        2..=4 => 1,
        _ => 2,
    };
    let named = names.iter().map(|name| (slips(word, name), *name));
    let (slips, name) = named.min_by_key(|(slips, _)| *slips)?;
    (slips <= slips_max).then_some(name)
}

/// How many letters are to be put in, left out, replaced or swapped with their neighbour to make one word of the other.
fn slips(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, theirs) in other.iter().enumerate() {
            let mut best = rows[i][j] + usize::from(letter != theirs);
            best = best.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *theirs && *letter == other[j - 1] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

fn context(matches: &ArgMatches) -> Context {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let no_colour = is_set("NO_COLOR") || dumb;
    Context {
        output: Output::new(matches.get_flag("json"), no_colour),
        no_colour,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_seen_through() {
        let names = ["run", "range", "release", "who", "watch"];
        assert_eq!(nearest("rnu", &names), Some("run"));
        assert_eq!(nearest("relase", &names), Some("release"));
        assert_eq!(nearest("wach", &names), Some("watch"));
        for other in ["", "x", "nonsense", "nosuch"] {
            assert_eq!(nearest(other, &names), None, "{other}");
        }
    }
}
