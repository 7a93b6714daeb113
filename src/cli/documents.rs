//! `latch completions` and `latch man`: the table of commands as shells and man want it.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

use super::Context;
use super::exit::{Exit, Fail};
use super::output::quoted;
use super::table::{self, Entry};

const COMPLETIONS: &str = "\
Examples:
  latch completions bash > ~/.local/share/bash-completion/completions/latch
  latch completions zsh  > \"${fpath[1]}/_latch\"
  latch completions fish > ~/.config/fish/completions/latch.fish";

const MAN: &str = "\
Examples:
  latch man ~/.local/share/man/man1
  man latch-run";

pub(crate) fn entries() -> Vec<Entry> {
    let shell = Arg::new("SHELL")
        .required(true)
        .value_parser(["bash", "zsh", "fish"])
        .help("For which shell");
    let dir = Arg::new("DIR")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(clap::ValueHint::DirPath)
        .help("Where to write them; made if it is not there");
    vec![
        Entry::new(
            Command::new("completions")
                .about("Print what makes a shell complete the commands of latch")
                .arg(shell)
                .after_help(COMPLETIONS),
            completions,
        ),
        Entry::new(
            Command::new("man")
                .about("Write a man page for every command")
                .arg(dir)
                .after_help(MAN),
            man,
        ),
    ]
}

/// The commands as `docs/cli.md` lists them.
#[must_use]
pub fn commands_markdown() -> String {
    let mut table = "| command | |\n|---|---|\n".to_owned();
    let mut command = whole_command();
    command.build();
    for sub in command
        .get_subcommands()
        .filter(|it| it.get_name() != "help")
    {
        let nested = sub.get_subcommands().filter(|it| it.get_name() != "help");
        let nested: Vec<_> = nested.map(Command::get_name).collect();
        let name = match nested.is_empty() {
            true => format!("`latch {}`", sub.get_name()),
            false => format!("`latch {}` `{}`", sub.get_name(), nested.join("`, `")),
        };
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        table.push_str(&format!("| {name} | {about} |\n"));
    }
    table
}

fn whole_command() -> Command {
    table::command(table::entries().into_iter().map(|entry| entry.command))
}

fn completions(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let shell = match matches.get_one::<String>("SHELL").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut whole_command(), "latch", &mut script);
    if shell == Shell::Fish {
        script.extend_from_slice(fish_values().as_bytes());
    }
    context.output.raw(&script)?;
    Ok(Exit::OK)
}

/// The values of arguments without a name, which clap_complete leaves out for fish.
fn fish_values() -> String {
    let mut lines = String::new();
    for command in whole_command().get_subcommands() {
        for argument in command.get_positionals() {
            let values = argument.get_possible_values();
            let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
            if !values.is_empty() {
                let (name, values) = (command.get_name(), values.join(" "));
                lines.push_str(&format!(
                    "complete -c latch -n \"__fish_latch_using_subcommand {name}\" -f -a \"{values}\"\n"
                ));
            }
        }
    }
    lines
}

fn man(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let Some(dir) = matches.get_one::<PathBuf>("DIR") else {
        return Err(Fail::usage("where to? latch man DIR"));
    };
    let failed = |path: &Path, error: std::io::Error| {
        let path = quoted(path.as_os_str().as_encoded_bytes());
        Fail::new(Exit::CANNOT_OPEN, format!("cannot write {path}: {error}"))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    let mut command = whole_command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    write_pages(&command, dir, &mut pages).map_err(|error| failed(dir, error))?;
    for page in pages {
        context.output.value(page.as_os_str().as_encoded_bytes())?;
    }
    Ok(Exit::OK)
}

/// One page for a command, and one for each of its own: `latch-range-lock.1` for `latch range lock`.
fn write_pages(command: &Command, dir: &Path, pages: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone()).manual("latch");
    pages.push(page.generate_to(dir)?);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub, dir, pages)?;
    }
    Ok(())
}
