//! The command line made from the table: reading it, explaining it, and the table in
//! `docs/settings.md`. The manual page is made in `man.rs`, from the same texts.
//!
//! Never decides what a value means, and never exits: clap's errors become [`ConfigError`].

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::row::{Row, Takes};
use super::table::ROWS;
use super::{ConfigError, Exit, cluster, man};

/// What is asked for instead of serving. These are no settings: there is no variable for them.
const INSPECT: &str = "inspect";
const JSON: &str = "json";
const REPAIR: &str = "repair";
const RESHARD: &str = "reshard";
const CHECK_CONFIG: &str = "check-config";
const MAN: &str = "man";

/// What a command line asks for.
pub(super) enum Parsed {
    /// Settings.
    Flags {
        /// The options that were given, at most one per row.
        flags: Vec<Flag>,
        /// What is to be done with them instead of serving.
        instead: Instead,
    },
    /// Show what is in a data directory.
    Inspect { path: PathBuf, json: bool },
    /// The text that was asked for instead.
    Print(String),
}

/// What is done with the settings instead of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instead {
    /// Nothing else: they are served with.
    Nothing,
    /// They are looked at.
    Check,
    /// Their data directory is mended.
    Repair,
    /// Their cluster gets another number of shards.
    Reshard { from: u32, to: u32 },
}

/// One option as it was given.
pub(super) struct Flag {
    pub(super) row: &'static Row,
    /// `--x`, or `--no-x`.
    pub(super) written_as: String,
    /// Bytes that are not UTF-8 have become replacement characters.
    pub(super) text: String,
}

/// Reads a command line that begins with the program's name. An option may be repeated; the last
/// one counts, or all of them if the option takes several words.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, ConfigError> {
    let args: Vec<OsString> = args.into_iter().map(two_dashes).collect();
    refuse_dashed_words(&args)?;
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                return Ok(Parsed::Print(error.render().to_string()));
            }
            _ => return Err(ConfigError::usage(in_one_line(&error))),
        },
    };
    if let Some(path) = matches.get_one::<OsString>(INSPECT) {
        let json = matches.get_flag(JSON);
        let path = path.into();
        return Ok(Parsed::Inspect { path, json });
    }
    if matches.get_flag(MAN) {
        return Ok(Parsed::Print(man::page()));
    }
    let reshard = matches.get_one::<OsString>(RESHARD);
    let instead = match (matches.get_flag(CHECK_CONFIG), matches.get_flag(REPAIR)) {
        (true, _) => Instead::Check,
        (false, true) => Instead::Repair,
        (false, false) => reshard.map_or(Ok(Instead::Nothing), reshards)?,
    };
    let mut flags = Vec::new();
    for row in ROWS {
        if let Some(texts) = matches.get_many::<OsString>(row.flag) {
            let texts: Vec<_> = texts.map(|text| text.to_string_lossy()).collect();
            flags.push(Flag {
                row,
                written_as: format!("--{}", row.flag),
                text: texts.join(","),
            });
        }
        if let Some(negation) = row.takes.negation()
            && matches.get_flag(negation)
        {
            flags.push(Flag {
                row,
                written_as: format!("--{negation}"),
                text: "false".to_owned(),
            });
        }
    }
    Ok(Parsed::Flags { flags, instead })
}

/// The settings as `docs/settings.md` shows them: one line of a Markdown table per option.
#[must_use]
pub fn settings_markdown() -> String {
    let mut table = "| flag | environment | default | meaning |\n|---|---|---|---|\n".to_owned();
    for row in ROWS {
        let flag = match row.takes {
            Takes::Switch { .. } => format!("--{}", row.flag),
            Takes::Number | Takes::Word | Takes::Words => format!("--{} {}", row.flag, row.value),
        };
        let cells = [
            format!("`{flag}`"),
            format!("`{}`", row.env.join("`, `")),
            format!("`{}`", default(row)),
            row.help.to_owned(),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
}

pub(super) const ABOUT: &str =
    "A lock daemon: named locks with leases, strict FIFO and fencing tokens.";

pub(super) const RULES: &str = "\
A flag beats its environment variables, those beat the file of --config, and
that beats the default; of several variables the first one listed counts, and
one that is empty counts as unset.
DURATION is whole seconds (33 or 33s) or milliseconds (100ms).
BOOL is 1, yes, true or on, or 0, no, false or off; a flag alone means yes.";

pub(super) const EXAMPLES: &str = "\
  latchd                                       on 127.0.0.1:6388, HTTP on 6389
  latchd --unix-socket /run/latchd.sock --unix-socket-mode 0660
  latchd --host 0.0.0.0 --auth-token-file /etc/latchd/token
  latchd --http-port 8080 --http-host-name locks.example.org
  latchd --http-port off                       the line protocol only
  latchd --config /etc/latchd/latchd.toml      settings from a file
  latchd --check-config --config latchd.toml   is anything wrong with it?
  latchd --data-dir /var/lib/latchd            remembers over restarts
  latchd --inspect /var/lib/latchd             what is remembered there
  latchd --cluster prod --etcd http://10.0.0.1:2379 --shard 0/2
  latchd --cpu 2 --spin                        pinned, for the lowest latency
  LATCHD_LOG_FORMAT=json latchd --debug";

/// Columns left for a description, so that with its indent it ends before column 80.
const HELP_COLUMNS: usize = 69;

fn command() -> Command {
    let command = Command::new("latchd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .override_usage("latchd [OPTIONS]")
        .after_help(format!(
            "{RULES}\n\n{}\nExamples:\n{EXAMPLES}",
            exit_codes()
        ))
        .next_line_help(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_version_flag(true);
    let command = ROWS.iter().fold(command, |command, row| {
        let command = command.arg(arg(row));
        let Some(negation) = row.takes.negation() else {
            return command;
        };
        command.arg(
            Arg::new(negation)
                .long(negation)
                .action(ArgAction::SetTrue)
                .overrides_with(row.flag)
                .hide(true),
        )
    });
    command
        .arg(
            Arg::new(INSPECT)
                .long(INSPECT)
                .value_name("PATH")
                .value_parser(ValueParser::os_string())
                .help_heading("Instead of serving")
                .help(wrap(
                    "Show what is in a data directory: what is held and by whom, fences, epoch, \
                     the last changes, sizes. Changes nothing, also if a daemon uses it.",
                )),
        )
        .arg(
            Arg::new(JSON)
                .long(JSON)
                .action(ArgAction::SetTrue)
                .requires(INSPECT)
                .help_heading("Instead of serving")
                .help("Print what --inspect finds as JSON."),
        )
        .arg(
            Arg::new(REPAIR)
                .long(REPAIR)
                .action(ArgAction::SetTrue)
                .conflicts_with(INSPECT)
                .help_heading("Instead of serving")
                .help(wrap(
                    "Mend the directory of --data-dir if it is damaged: keep what is provably \
                     good, say what was dropped, and exit.",
                )),
        )
        .arg(
            Arg::new(RESHARD)
                .long(RESHARD)
                .value_name("FROM:TO")
                .value_parser(ValueParser::os_string())
                .conflicts_with_all([INSPECT, REPAIR])
                .help_heading("Instead of serving")
                .help(wrap(
                    "Give the cluster of --cluster and --etcd another number of shards, and exit. \
                     No member of it may run.",
                )),
        )
        .arg(
            Arg::new(CHECK_CONFIG)
                .long(CHECK_CONFIG)
                .action(ArgAction::SetTrue)
                .conflicts_with_all([INSPECT, REPAIR, RESHARD])
                .help_heading("Instead of serving")
                .help(wrap(
                    "Read all settings and the files they name as a start would, say whether they \
                     can be used, and exit. Starts nothing, listens nowhere, changes nothing.",
                )),
        )
        .arg(
            Arg::new(MAN)
                .long(MAN)
                .action(ArgAction::SetTrue)
                .help_heading("Instead of serving")
                .help("Print the manual page, latchd(8), and exit."),
        )
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::Help)
                .help_heading("Other")
                .help("Print this and exit."),
        )
        .arg(
            Arg::new("version")
                .short('V')
                .long("version")
                .action(ArgAction::Version)
                .help_heading("Other")
                .help("Print the version and exit."),
        )
}

fn reshards(text: &OsString) -> Result<Instead, ConfigError> {
    let shards = text.to_str().and_then(cluster::shards);
    let wrong = || {
        let rule = "how many shards there are and shall be, such as 2:3; at most 1024";
        ConfigError::usage(format!("--{RESHARD}: {text:?} is not {rule}"))
    };
    let [from, to] = shards.ok_or_else(wrong)?;
    Ok(Instead::Reshard { from, to })
}

fn exit_codes() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for exit in Exit::ALL {
        let meaning = exit.meaning().replace('\n', "\n      ");
        text.push_str(&format!("  {:<4}{meaning}\n", exit.code()));
    }
    text
}

fn arg(row: &'static Row) -> Arg {
    let arg = Arg::new(row.flag)
        .long(row.flag)
        .value_name(row.value)
        .value_parser(ValueParser::os_string())
        .help_heading(row.group)
        .help(help(row));
    match row.takes {
        Takes::Number => arg.allow_hyphen_values(true),
        Takes::Word => arg,
        Takes::Words => arg.action(ArgAction::Append),
        Takes::Switch { negation } => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .overrides_with_all(negation),
    }
}

fn help(row: &Row) -> String {
    let source = format!("[default: {}] [env: {}]", default(row), row.env.join(", "));
    format!("{}\n{}", wrap(row.help), wrap(&source))
}

/// The option that somebody may have meant who wrote this name, without dashes in front.
pub(super) fn suggested(name: &str) -> Option<&'static Row> {
    let name = name.trim_start_matches('-').replace('_', "-");
    let named = |flag: &str| ROWS.iter().find(|row| row.flag == flag);
    if let Some(row) = named(&name) {
        return Some(row);
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return None;
    }
    // Whoever mistypes a key is answered as whoever mistypes a flag.
    let error = command()
        .try_get_matches_from(["latchd", &format!("--{name}")])
        .err()?;
    named(text(&error, ContextKind::SuggestedArg)?.strip_prefix("--")?)
}

pub(super) fn default(row: &Row) -> &'static str {
    if row.default.is_empty() {
        return "none";
    }
    row.default
}

/// Breaks a text at blanks; clap would need another crate to do it.
fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > HELP_COLUMNS {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

/// Go programs write long options with one dash, so `-port` becomes `--port`. Unknown words get a
/// second dash too: `-prot` is answered with "did you mean --port" and not taken for `-p`.
fn two_dashes(arg: OsString) -> OsString {
    let bytes = arg.as_encoded_bytes();
    match bytes {
        [b'-', first, second, ..] if first.is_ascii_alphabetic() && *second != b'=' => {
            let mut long = OsString::from("-");
            long.push(&arg);
            long
        }
        _ => arg,
    }
}

/// In `--auth-token --spin` the value was forgotten, or it begins with a dash. clap would report
/// the second word as an unknown option, and that might print a token.
fn refuse_dashed_words(args: &[OsString]) -> Result<(), ConfigError> {
    let takes_word = |arg: &OsString| {
        let is = |row: &&Row| {
            matches!(row.takes, Takes::Word | Takes::Words) && *arg == *format!("--{}", row.flag)
        };
        ROWS.iter().find(is)
    };
    for (arg, next) in args.iter().zip(args.iter().skip(1)) {
        if let Some(row) = takes_word(arg)
            && next.as_encoded_bytes().starts_with(b"-")
        {
            let option = format!("--{}", row.flag);
            return Err(ConfigError::usage(missing_value(&option)));
        }
    }
    Ok(())
}

fn missing_value(option: &str) -> String {
    format!("{option}: the value is missing; if it begins with a dash write {option}=VALUE")
}

/// clap's report without its frame: what is wrong, and what would be right.
fn in_one_line(error: &clap::Error) -> String {
    let arg = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let option = arg.split([' ', '=', '[']).next().unwrap_or_default();
    match (error.kind(), text(error, ContextKind::SuggestedArg)) {
        (ErrorKind::UnknownArgument, Some(right)) => {
            format!("unknown option {arg:?}; did you mean {right}?")
        }
        (ErrorKind::UnknownArgument, None) if arg.starts_with('-') => {
            format!("unknown option {arg:?}; latchd --help lists them all")
        }
        (ErrorKind::UnknownArgument, None) => {
            format!("unexpected argument {arg:?}; latchd takes options only, see latchd --help")
        }
        (ErrorKind::InvalidValue | ErrorKind::NoEquals, _) => missing_value(option),
        (ErrorKind::TooManyValues, _) => format!("{option} takes no value"),
        _ => {
            let report = error.render().to_string();
            report.lines().next().unwrap_or_default().to_owned()
        }
    }
}

/// What clap says about this.
fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Parsed, ConfigError> {
        let args = ["latchd"].into_iter().chain(line.split_whitespace());
        parse(args.map(OsString::from))
    }

    #[track_caller]
    fn printed(line: &str) -> String {
        match parse_line(line) {
            Ok(Parsed::Print(text)) => text,
            _ => panic!("{line} prints nothing"),
        }
    }

    #[test]
    fn the_command_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn help_tells_everything_in_eighty_columns() {
        let help = printed("--help");
        assert_eq!(help, printed("-h"));
        assert_eq!(help, printed("-help --port 1"));
        let flat = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for row in ROWS {
            assert!(flat.contains(&format!("--{}", row.flag)), "{}", row.flag);
            assert!(flat.contains(row.help), "{}", row.flag);
            let source = format!("[default: {}] [env: {}]", default(row), row.env.join(", "));
            assert!(flat.contains(&source), "{source}");
        }
        for exit in Exit::ALL {
            let meaning = exit.meaning().replace('\n', " ");
            let said = format!(" {} {meaning}", exit.code());
            assert!(flat.contains(&said), "{said}");
        }
        for line in help.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }

    #[test]
    fn help_is_in_groups_and_its_examples_work() {
        let help = printed("--help");
        let mut rest = help.as_str();
        let mut groups: Vec<&str> = ROWS.iter().map(|row| row.group).collect();
        groups.dedup();
        assert_eq!(groups.len(), 12);
        let others = ["Instead of serving", "Other", "Examples"];
        for group in groups.into_iter().chain(others) {
            rest = rest.split_once(&format!("\n{group}:\n")).expect(group).1;
        }
        for line in rest.lines().filter(|line| !line.is_empty()) {
            let (_, options) = line.split_once("latchd").expect(line);
            let options = options.split("   ").next().unwrap_or_default();
            assert!(
                matches!(
                    parse_line(options),
                    Ok(Parsed::Flags { .. } | Parsed::Inspect { .. })
                ),
                "{line}"
            );
        }
    }

    #[test]
    fn version_is_one_line() {
        for line in ["--version", "-V", "-version"] {
            assert_eq!(
                printed(line),
                concat!("latchd ", env!("CARGO_PKG_VERSION"), "\n")
            );
        }
    }

    #[test]
    fn the_readme_table_has_a_line_per_option() {
        let table = settings_markdown();
        assert_eq!(table.lines().count(), ROWS.len() + 2);
        for (line, row) in table.lines().skip(2).zip(ROWS) {
            assert!(line.starts_with(&format!("| `--{}", row.flag)), "{line}");
            assert_eq!(line.replace("\\|", "").matches('|').count(), 5, "{line}");
            assert!(row.env.iter().all(|name| line.contains(name)), "{line}");
        }
    }
}
