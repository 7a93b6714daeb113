//! `latch range`: locks on bytes of a resource, as POSIX has them.
//!
//! A range lock has no lease: it lives as long as its client. So it is held either while a command runs, or by
//! a client with an id and a secret, which is kept for a while after each command that names it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::Context;
use super::args::{self, Patience, bytes_of};
use super::connect::{Servers, fail, nonsense};
use super::duration::short;
use super::exit::{Exit, Fail};
use super::output::{Style, Table, escaped, json_text, quoted};
use super::table::Entry;
use super::{sys, waiting};
use crate::client::Client;
use crate::escape;
use crate::uptime::uptime;
use crate::wire::client::Told;
use crate::wire::verbs::Verb;

const LOCK: &str = "\
LEN 0 is to the end, however far that grows. With a command the bytes are locked
while it runs: a connection that breaks has --ttl to be made again, and the command
is ended before that is over. With --client they are locked for the client of this id until it
unlocks them, or until nothing was heard of it for --ttl.

Examples:
  latch range lock db.sqlite 0 100 -- ./migrate.sh
  latch range lock -s -w 10 db.sqlite 0 0 -- ./read.sh
  LATCH_CLIENT_SECRET=x latch range lock --client gw/1 db.sqlite 0 100";

const BREAK: &str = "\
Without START and LEN all of the resource end, as after its file was deleted. Prints how
many those were; exit code 1 says that there were none. The holders are not asked, and may
go on working.

Examples:
  latch range break db.sqlite
  latch range break db.sqlite 0 100
  latch range break --client gw/1";

/// How long a client is kept, if nobody says.
const TTL: Duration = Duration::from_secs(60);

pub(crate) fn entries() -> Vec<Entry> {
    let [shared, exclusive] = args::shared_or_exclusive();
    let lock = Command::new("lock")
        .about("Lock bytes, while a command runs or for a client")
        .override_usage("latch range lock [OPTIONS] RESOURCE START LEN -- COMMAND…\n       latch range lock [OPTIONS] --client ID RESOURCE START LEN")
        .arg(shared.clone())
        .arg(exclusive.clone())
        .args(args::patience())
        .arg(args::conflict_exit_code())
        .args(for_whom())
        .arg(args::kill_after())
        .args(which())
        .arg(args::command_behind_dashes())
        .after_help(LOCK);
    let [client, secret, adapter, ttl, owner] = for_whom();
    let ttl = ttl.requires("client");
    let only_clients = [client, secret, adapter, ttl, owner];
    let unlock = Command::new("unlock")
        .about("Let go of bytes that a client has locked")
        .args(only_clients.clone())
        .args(which())
        .after_help(
            "Example:\n  LATCH_CLIENT_SECRET=x latch range unlock --client gw/1 db.sqlite 0 100",
        );
    let test = Command::new("test")
        .about("See who is in the way of such a lock")
        .arg(shared)
        .arg(exclusive)
        .args(only_clients)
        .args(which())
        .after_help("Exit code 1 says that somebody is, and prints who.\n\nExample:\n  latch range test db.sqlite 0 100");
    let [resource, start, len] = which();
    let of_client = |help: &'static str| {
        let arg = Arg::new("client").long("client").value_name("ID");
        arg.value_parser(args::bytes()).help(help)
    };
    let owner = Arg::new("owner")
        .long("owner")
        .value_name("NAME")
        .value_parser(args::bytes())
        .help("What owners of this name hold, of all resources");
    let list = Command::new("list")
        .about("List who holds bytes of a resource and who waits for some, or what a client or an owner holds")
        .override_usage("latch range list [OPTIONS] RESOURCE\n       latch range list [OPTIONS] --client ID [--owner NAME]\n       latch range list [OPTIONS] --owner NAME")
        .arg(of_client("What this client holds, of all resources"))
        .arg(owner)
        .arg(
            resource
                .clone()
                .required(false)
                .required_unless_present_any(["client", "owner"])
                .conflicts_with_all(["client", "owner"]),
        )
        .after_help("Examples:\n  latch range list db.sqlite\n  latch range list --client gw/1");
    let break_ = Command::new("break")
        .about("End the range locks of a resource or of a client, whoever holds them")
        .override_usage("latch range break [OPTIONS] RESOURCE [START LEN]\n       latch range break [OPTIONS] --client ID")
        .arg(of_client("All that this client holds, of all resources"))
        .arg(resource.required(false).required_unless_present("client").conflicts_with("client"))
        .arg(start.required(false).requires("LEN"))
        .arg(len.required(false))
        .after_help(BREAK);
    let range = Command::new("range")
        .about("Lock, unlock and look at bytes of a resource")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([lock, unlock, test, list, break_]);
    vec![Entry::new(range, run)]
}

fn which() -> [Arg; 3] {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .required(true)
            .value_parser(clap::value_parser!(u64))
            .help(help)
    };
    [
        Arg::new("RESOURCE")
            .required(true)
            .value_parser(args::bytes())
            .help("Any name, such as that of a file"),
        number("START", "The first byte"),
        number("LEN", "How many bytes; 0 is all that follow"),
    ]
}

fn for_whom() -> [Arg; 5] {
    [
        Arg::new("client")
            .long("client")
            .value_name("ID")
            .help("A client that outlives this command"),
        Arg::new("client-secret-file")
            .long("client-secret-file")
            .value_name("PATH")
            .value_parser(clap::value_parser!(PathBuf))
            .requires("client")
            .help("A file with its secret [env: LATCH_CLIENT_SECRET]"),
        Arg::new("adapter")
            .long("adapter")
            .value_name("NAME")
            .requires("client")
            .help(
                "The adapter that the client is one of, such as nfs; the server may limit how many",
            ),
        Arg::new("ttl")
            .long("ttl")
            .value_name("TIME")
            .value_parser(args::duration())
            .help("How long it is kept without a connection [default: 60s, 30s for a command]"),
        Arg::new("owner")
            .long("owner")
            .value_name("NAME")
            .value_parser(args::bytes())
            .help("For whom within the client"),
    ]
}

fn run(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    match matches.subcommand() {
        Some(("lock", matches)) => lock(context, matches),
        Some(("unlock", matches)) => unlock(matches),
        Some(("test", matches)) => test(context, matches),
        Some(("list", matches)) => {
            match (bytes_of(matches, "client"), bytes_of(matches, "owner")) {
                (None, None) => list(context, matches),
                (client, owner) => list_of(context, matches, client, owner),
            }
        }
        Some(("break", matches)) => break_ranges(context, matches),
        _ => Err(Fail::usage("latch range lock, unlock, test, list or break")),
    }
}

pub(super) fn resource_of(matches: &ArgMatches) -> Result<&[u8], Fail> {
    let resource = bytes_of(matches, "RESOURCE");
    let resource = resource.ok_or_else(|| Fail::usage("which RESOURCE?"))?;
    args::check_key(resource)?;
    Ok(resource)
}

/// `start len`.
fn bytes(matches: &ArgMatches) -> String {
    let number = |name| matches.get_one::<u64>(name).copied().unwrap_or(0);
    format!("{} {}", number("START"), number("LEN"))
}

fn mode(matches: &ArgMatches) -> &'static str {
    match args::is_shared(matches) {
        true => "sh",
        false => "ex",
    }
}

/// The fields, and behind them the owner, if there is one.
fn with_owner(matches: &ArgMatches, fields: &str) -> Vec<u8> {
    match bytes_of(matches, "owner") {
        Some(owner) => [fields.as_bytes(), b" ", owner].concat(),
        None => fields.as_bytes().to_vec(),
    }
}

/// A client that is attached, if an id was given.
fn client_of(matches: &ArgMatches) -> Result<Client, Fail> {
    let servers = Servers::of(matches)?;
    let Some(id) = matches.get_one::<String>("client") else {
        return servers.client();
    };
    let secret = match matches.get_one::<PathBuf>("client-secret-file") {
        Some(path) => std::fs::read(path).map_err(|error| {
            let path = quoted(path.as_os_str().as_encoded_bytes());
            let message = format!("cannot read the secret in {path}: {error}");
            Fail::new(Exit::CANNOT_OPEN, message)
        })?,
        None => match std::env::var_os("LATCH_CLIENT_SECRET") {
            Some(secret) => secret.into_encoded_bytes(),
            None => {
                return Err(Fail::usage(
                    "a client has a secret: put one in LATCH_CLIENT_SECRET, or name a file with --client-secret-file",
                ));
            }
        },
    };
    let ttl = matches.get_one::<Duration>("ttl").copied().unwrap_or(TTL);
    let mut builder = servers.builder().attach(id, ttl, secret.trim_ascii());
    if let Some(adapter) = matches.get_one::<String>("adapter") {
        builder = builder.adapter(adapter);
    }
    builder.build().map_err(fail)
}

fn lock(_: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let command = matches.get_many::<OsString>("COMMAND");
    match (command, matches.contains_id("client")) {
        (Some(command), false) => {
            let command: Vec<OsString> = command.cloned().collect();
            sys::lock_range_while(matches, &command)
        }
        (Some(_), true) => Err(Fail::usage(
            "--client locks beyond this command: leave out what stands behind --, or --client",
        )),
        (None, true) => lock_for_client(matches),
        (None, false) => Err(Fail::usage(
            "a range lock ends with its client: put a command behind --, or name a client with --client",
        )),
    }
}

/// Asks again while our patience lasts: a server bounds every wait by its `--max-range-wait`. To ask again for bytes
/// that are held changes nothing.
fn lock_for_client(matches: &ArgMatches) -> Result<Exit, Fail> {
    let (client, resource) = (client_of(matches)?, resource_of(matches)?);
    let began = uptime();
    loop {
        let patience = match args::patience_of(matches) {
            Patience::For(wait) => {
                Patience::For(began.saturating_add(wait).saturating_sub(uptime()))
            }
            patience => patience,
        };
        let is_over = matches!(patience, Patience::None | Patience::For(Duration::ZERO));
        let asked = waiting::ask(patience, waiting::is_passing, |wait| {
            let fields = format!("{} {} {wait}", mode(matches), bytes(matches));
            client.ask_verb(Verb::RangeLock, resource, &with_owner(matches, &fields))
        });
        match asked {
            Ok(reply) => match reply.told() {
                Told::Done => return Ok(Exit::OK),
                Told::TimedOut if !is_over => {}
                Told::TimedOut => return Ok(args::conflict_exit(matches)),
                _ => return Err(nonsense()),
            },
            // The bytes are kept for another client, which may have them back.
            Err(error) if waiting::is_kept_for_others(&error) => {
                return Ok(args::conflict_exit(matches));
            }
            Err(error) => return Err(fail(error)),
        }
    }
}

fn unlock(matches: &ArgMatches) -> Result<Exit, Fail> {
    if !matches.contains_id("client") {
        return Err(Fail::usage(
            "only a client can unlock what it has locked: name it with --client",
        ));
    }
    let argument = with_owner(matches, &bytes(matches));
    let client = client_of(matches)?;
    let asked = client.ask_verb(Verb::RangeUnlock, resource_of(matches)?, &argument);
    match asked.map_err(fail)?.told() {
        Told::Done => Ok(Exit::OK),
        _ => Err(nonsense()),
    }
}

fn test(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let fields = format!("{} {}", mode(matches), bytes(matches));
    let argument = with_owner(matches, &fields);
    let client = client_of(matches)?;
    let reply = client.ask_verb(Verb::RangeTest, resource_of(matches)?, &argument);
    let reply = reply.map_err(fail)?;
    let (exit, text, value) = match reply.told() {
        Told::RangeFree => (Exit::OK, "free".to_owned(), json!({"free": true})),
        Told::RangeHeld {
            mode,
            range,
            client,
            owner,
        } => {
            let mode = mode.word();
            let (start, len) = (range.start(), range.len());
            let text = format!(
                "held {mode} {start} {len} by {} {}",
                escaped(client),
                escaped(owner)
            );
            let value = json!({
                "free": false,
                "mode": mode,
                "start": start,
                "len": len,
                "client": json_text(client),
                "owner": json_text(owner),
            });
            (Exit::CONFLICT, text.trim_end().to_owned(), value)
        }
        _ => return Err(nonsense()),
    };
    match context.output.json {
        true => context.output.json(&value)?,
        false => context.output.line(&text)?,
    }
    Ok(exit)
}

fn list(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let client = Servers::of(matches)?.client()?;
    let reply = client.ask_verb(Verb::RangeList, resource_of(matches)?, b"");
    let reply = reply.map_err(fail)?;
    let Told::Json(text) = reply.told() else {
        return Err(nonsense());
    };
    if context.output.json {
        context
            .output
            .line(&escape::json(&String::from_utf8_lossy(text)))?;
        return Ok(Exit::OK);
    }
    let document: Value = serde_json::from_slice(text).map_err(|_| nonsense())?;
    let mut table = Table::new(&["", "MODE", "START", "LEN", "CLIENT", "OWNER", "FOR", "LOCK"]);
    for (what, style) in [("locks", Style::Green), ("waiters", Style::Yellow)] {
        for it in document[what].as_array().into_iter().flatten() {
            let first = match it["position"].as_u64() {
                Some(position) => format!("waits {position}"),
                None => held(it).to_owned(),
            };
            let [mode, start, len, client, owner, since, id] = cells(it);
            table.row([(first, style), mode, start, len, client, owner, since, id]);
        }
    }
    context.output.table(&table)?;
    Ok(Exit::OK)
}

/// How a range lock is told that is there.
fn held(it: &Value) -> &'static str {
    match it["pending"].as_bool() {
        Some(true) => "pending",
        _ => "holds",
    }
}

/// The cells that all lists have.
fn cells(it: &Value) -> [(String, Style); 7] {
    let text = |name: &str| escaped(it[name].as_str().unwrap_or("-").as_bytes());
    let since_s = it["since_ms"].as_f64().unwrap_or(0.0) / 1e3;
    let id = it["id"].as_u64().map(|id| id.to_string());
    [
        (text("mode"), Style::Plain),
        (it["start"].to_string(), Style::Plain),
        (it["len"].to_string(), Style::Plain),
        (text("client"), Style::Cyan),
        (text("owner"), Style::Plain),
        (short(since_s), Style::Plain),
        (id.unwrap_or_else(|| "-".to_owned()), Style::Plain),
    ]
}

/// What a client or an owner holds, from all servers.
fn list_of(
    context: &Context,
    matches: &ArgMatches,
    client: Option<&[u8]>,
    owner: Option<&[u8]>,
) -> Result<Exit, Fail> {
    [client, owner]
        .into_iter()
        .flatten()
        .try_for_each(args::check_key)?;
    let mut locks = Vec::new();
    let mut is_nonsense = false;
    let asked = Servers::of(matches)?.client()?;
    let listed = asked.ranges_of(client, owner, |page| {
        let page: Value = serde_json::from_str(&page.json).unwrap_or_default();
        match &page["locks"] {
            Value::Array(page) => locks.extend_from_slice(page),
            _ => is_nonsense = true,
        }
        page["next"].as_str().map(str::to_owned)
    });
    listed.map_err(fail)?;
    if is_nonsense {
        return Err(nonsense());
    }
    if context.output.json {
        context.output.json(&json!({"locks": locks}))?;
        return Ok(Exit::OK);
    }
    let mut table = Table::new(&[
        "", "RESOURCE", "MODE", "START", "LEN", "CLIENT", "OWNER", "FOR", "LOCK",
    ]);
    for it in &locks {
        let resource = escaped(it["resource"].as_str().unwrap_or("-").as_bytes());
        let [mode, start, len, client, owner, since, id] = cells(it);
        let first = (held(it).to_owned(), Style::Green);
        let resource = (resource, Style::Plain);
        table.row([first, resource, mode, start, len, client, owner, since, id]);
    }
    context.output.table(&table)?;
    Ok(Exit::OK)
}

fn break_ranges(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let client = bytes_of(matches, "client");
    let name = match client {
        Some(client) => client,
        None => resource_of(matches)?,
    };
    args::check_key(name)?;
    let servers = Servers::of(matches)?.client()?;
    let number = |name| matches.get_one::<u64>(name).copied();
    let ended = match client {
        Some(client) => servers.break_ranges_of(client),
        None => servers.break_ranges(name, number("START").zip(number("LEN"))),
    };
    let ended = ended.map_err(fail)?;
    let what = if client.is_some() {
        "client"
    } else {
        "resource"
    };
    match context.output.json {
        true => context
            .output
            .json(&json!({what: json_text(name), "ended": ended}))?,
        false => context.output.line(&ended.to_string())?,
    }
    Ok(match ended {
        0 => Exit::CONFLICT,
        _ => Exit::OK,
    })
}
