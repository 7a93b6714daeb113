//! `latch range`: locks on bytes of a resource, as POSIX has them.
//!
//! A range lock has no lease: it lives as long as its client. So it is held either while a command runs, or by
//! a client with an id and a secret, which is kept for a while after each command that names it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};

use super::Context;
use super::args::{self, Patience, bytes_of};
use super::connect::{Servers, fail, nonsense};
use super::duration::short;
use super::exit::{Exit, Fail};
use super::output::{Style, Table, escaped, json_text, quoted};
use super::supervise::signals::Signals;
use super::supervise::warden::Warden;
use super::supervise::{Ended, Job, Lock, Standing, supervise};
use super::table::Entry;
use super::task::{self, Unfinished};
use super::waiting::WaitingLine;
use crate::client::{Client, Session};
use crate::wire::client::{Told, read_request};
use crate::wire::verbs::Verb;

const LOCK: &str = "\
LEN 0 is to the end, however far that grows. With a command the bytes are locked
while it runs. With --client they are locked for the client of this id until it
unlocks them, or until nothing was heard of it for --ttl.

Examples:
  latch range lock db.sqlite 0 100 -- ./migrate.sh
  latch range lock -s -w 10 db.sqlite 0 0 -- ./read.sh
  LATCH_CLIENT_SECRET=x latch range lock --client gw/1 db.sqlite 0 100";

const KILL_AFTER: Duration = Duration::from_secs(10);
/// How long a client is kept, if nobody says.
const TTL: Duration = Duration::from_secs(60);
/// How long one wait for news lasts; it only has to end some time.
const LISTEN: Duration = Duration::from_secs(3600);

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
    let unlock = Command::new("unlock")
        .about("Let go of bytes that a client has locked")
        .args(for_whom())
        .args(which())
        .after_help(
            "Example:\n  LATCH_CLIENT_SECRET=x latch range unlock --client gw/1 db.sqlite 0 100",
        );
    let test = Command::new("test")
        .about("See who is in the way of such a lock")
        .arg(shared)
        .arg(exclusive)
        .args(for_whom())
        .args(which())
        .after_help("Exit code 1 says that somebody is, and prints who.\n\nExample:\n  latch range test db.sqlite 0 100");
    let [resource, ..] = which();
    let list = Command::new("list")
        .about("List who holds bytes of a resource and who waits for some")
        .arg(resource)
        .after_help("Example:\n  latch range list db.sqlite");
    let range = Command::new("range")
        .about("Lock, unlock and look at bytes of a resource")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([lock, unlock, test, list]);
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

fn for_whom() -> [Arg; 4] {
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
        Arg::new("ttl")
            .long("ttl")
            .value_name("TIME")
            .value_parser(args::duration())
            .requires("client")
            .help("How long it is kept without a connection [default: 60s]"),
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
        Some(("list", matches)) => list(context, matches),
        _ => Err(Fail::usage("latch range lock, unlock, test or list")),
    }
}

fn resource_of(matches: &ArgMatches) -> Result<&[u8], Fail> {
    bytes_of(matches, "RESOURCE").ok_or_else(|| Fail::usage("which RESOURCE?"))
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
    let builder = servers.builder().attach(id, ttl, secret.trim_ascii());
    builder.build().map_err(fail)
}

fn lock(_: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let wait = match args::patience_of(matches) {
        Patience::None => "0".to_owned(),
        Patience::For(wait) => format!("{}ms", wait.as_millis()),
        // A server that lets nobody wait for ever says so by letting it time out.
        Patience::Forever => "9223372036".to_owned(),
    };
    let fields = format!("{} {} {wait}", mode(matches), bytes(matches));
    let argument = with_owner(matches, &fields);
    let client = client_of(matches)?;
    let command = matches.get_many::<OsString>("COMMAND");
    match (command, matches.contains_id("client")) {
        (Some(command), false) => {
            let command: Vec<OsString> = command.cloned().collect();
            lock_while(matches, &client, argument, &command)
        }
        (Some(_), true) => Err(Fail::usage(
            "--client locks beyond this command: leave out what stands behind --, or --client",
        )),
        (None, true) => {
            let asked = client.ask_verb(Verb::RangeLock, resource_of(matches)?, &argument);
            match asked.map_err(fail)?.told() {
                Told::Done => Ok(Exit::OK),
                Told::TimedOut => Ok(args::conflict_exit(matches)),
                _ => Err(nonsense()),
            }
        }
        (None, false) => Err(Fail::usage(
            "a range lock ends with its client: put a command behind --, or name a client with --client",
        )),
    }
}

fn lock_while(
    matches: &ArgMatches,
    client: &Client,
    argument: Vec<u8>,
    command: &[OsString],
) -> Result<Exit, Fail> {
    let resource = resource_of(matches)?;
    let mut signals = Signals::watch()?;
    let mut line = WaitingLine::new();
    let work = {
        let (client, resource) = (client.clone(), resource.to_vec());
        move || -> Result<(Session, bool), Fail> {
            let mut session = client.session(&resource).map_err(fail)?;
            let request = read_request(Verb::RangeLock, &resource, &argument);
            let request = request.map_err(|error| fail(error.into()))?;
            let granted = session.ask(&request).map_err(fail)?.told() == Told::Done;
            Ok((session, granted))
        }
    };
    let text = || format!("latch: waiting for bytes of {}", quoted(resource));
    let session = match task::wait(&mut signals, work, |last| line.tick(last, text)) {
        Ok(Ok((session, true))) => session,
        Ok(Ok((_, false))) => return Ok(args::conflict_exit(matches)),
        Ok(Err(fail)) | Err(Unfinished::Failed(fail)) => return Err(fail),
        Err(Unfinished::Signal(signal)) => return Ok(signals.die(signal)),
    };
    let mut held = Held::watch(session)?;
    let job = Job {
        command,
        env: &[],
        inherits: None,
        kill_after: args::kill_after_of(matches).unwrap_or(KILL_AFTER),
        lease: None,
        warden: Arc::new(Warden::start(&[], None)?),
    };
    let ended = supervise(job, &mut signals, &mut held)?;
    if ended == Ended::Lost {
        let resource = quoted(resource);
        eprintln!("latch: bytes of {resource} were lost, so the command was ended");
    }
    Ok(ended.exit(&mut signals))
}

/// Bytes that are locked as long as a connection is there, which a thread listens to.
struct Held {
    lost: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl Held {
    fn watch(mut session: Session) -> Result<Self, Fail> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| Fail::system("wait for the loss of a lock", error))?;
        let held = Self {
            lost: Arc::new(AtomicBool::new(false)),
            bell: Arc::new(bell),
        };
        let (lost, bell) = (Arc::clone(&held.lost), Arc::clone(&held.bell));
        task::spawn(move || {
            // Nothing but a loss is told to a connection that has subscribed to nothing.
            while let Ok(None) = session.news(LISTEN) {}
            lost.store(true, Ordering::Release);
            task::ring(&bell);
        })?;
        Ok(held)
    }
}

impl Lock for Held {
    fn standing(&mut self) -> Standing {
        match self.lost.load(Ordering::Acquire) {
            true => Standing::Lost,
            false => Standing::Held(None),
        }
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        let lost = self.lost.load(Ordering::Acquire);
        (!lost).then(|| self.bell.as_fd())
    }

    fn suspend(&mut self) {}

    fn resume(&mut self) -> Option<Standing> {
        Some(self.standing())
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
        context.output.line(&String::from_utf8_lossy(text))?;
        return Ok(Exit::OK);
    }
    let document: Value = serde_json::from_slice(text).map_err(|_| nonsense())?;
    let mut table = Table::new(&["", "MODE", "START", "LEN", "CLIENT", "OWNER", "FOR"]);
    for (what, style) in [("locks", Style::Green), ("waiters", Style::Yellow)] {
        for it in document[what].as_array().into_iter().flatten() {
            let text = |name: &str| escaped(it[name].as_str().unwrap_or("-").as_bytes());
            let first = match it["position"].as_u64() {
                Some(position) => format!("waits {position}"),
                None => "holds".to_owned(),
            };
            let since_s = it["since_ms"].as_f64().unwrap_or(0.0) / 1e3;
            table.row([
                (first, style),
                (text("mode"), Style::Plain),
                (it["start"].to_string(), Style::Plain),
                (it["len"].to_string(), Style::Plain),
                (text("client"), Style::Cyan),
                (text("owner"), Style::Plain),
                (short(since_s), Style::Plain),
            ]);
        }
    }
    context.output.table(&table)?;
    Ok(Exit::OK)
}
