//! `latch acquire`, `renew`, `release`, `break`: locks for scripts, which have no connection between two commands.
//!
//! What is acquired so outlives the connection (`keep=1`) and runs to its lease.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command};
use serde_json::json;

use super::Context;
use super::args::{self, Patience};
use super::connect::{Servers, fail, fail_of_lock, token, token_text};
use super::exit::{Exit, Fail};
use super::output::{self, json_text, quoted};
use super::table::Entry;
use super::waiting;
use crate::base::Token;
use crate::client::{self, Client, Error, Lost};
use crate::wire::client::Told;
use crate::wire::verbs::Verb;

const ACQUIRE: &str = "\
Prints the token and the fence. Nothing renews the lock: it ends with its lease,
or with latch release. In a script with one command, latch run is simpler.

Examples:
  read -r token fence < <(latch acquire --lease 10m nightly) || exit
  latch renew nightly $token --lease 10m
  latch release nightly $token";

const RENEW: &str = "\
Prints how many seconds the lock is held from now on. Exit code 79 says that it is
not held any more.

Example:
  latch renew nightly $token --lease 10m || exit";

const RELEASE: &str = "\
Exit code 79 says that it was not held any more.

Example:
  latch release nightly $token";

const BREAK: &str = "\
The holder is told, and somebody else gets the lock; the server logs who asked.
Prints how many were ended.

Examples:
  latch who nightly                  shows the fence
  latch break nightly 2019375367544761
  latch break nightly --all";

pub(crate) fn entries() -> Vec<Entry> {
    let [shared, exclusive] = args::shared_or_exclusive();
    let acquire = Command::new("acquire")
        .about("Take a lock that stays until its lease is over or it is released")
        .args(args::patience())
        .arg(shared.help("A read-write lock, together with others that read"))
        .arg(exclusive.help("A read-write lock, alone. Without -s and -x it is a plain lock"))
        .args(how_to_hold())
        .arg(args::lease(
            "How long it is held [default: the server's, 33s]",
        ))
        .arg(args::conflict_exit_code())
        .arg(args::key())
        .after_help(ACQUIRE);
    let renew = Command::new("renew")
        .about("Start the lease of a lock again, by its token")
        .arg(args::lease(
            "How long it is held from now on [default: the server's]",
        ))
        .arg(args::key())
        .arg(token_arg())
        .after_help(RENEW);
    let release = Command::new("release")
        .about("Let a lock go, by its token")
        .arg(args::key())
        .arg(token_arg())
        .after_help(RELEASE);
    let fence = Arg::new("FENCE")
        .value_parser(clap::value_parser!(u64))
        .required_unless_present("all")
        .help("Which grant, as latch who shows it");
    let break_ = Command::new("break")
        .about("End what somebody holds")
        .arg(args::key())
        .arg(fence)
        .arg(args::flag("all", "Everybody who holds it now").conflicts_with("FENCE"))
        .after_help(BREAK);
    vec![
        Entry::new(acquire, acquire_lock),
        Entry::new(renew, renew_lock),
        Entry::new(release, release_lock),
        Entry::new(break_, break_lock),
    ]
}

fn token_arg() -> Arg {
    Arg::new("TOKEN")
        .value_parser(args::bytes())
        .help("What latch acquire has printed first [env: LATCH_TOKEN]")
}

fn token_of(matches: &ArgMatches) -> Result<Token, Fail> {
    let given = matches.get_one::<OsString>("TOKEN").cloned();
    let given = given.or_else(|| std::env::var_os("LATCH_TOKEN"));
    match given {
        Some(text) => token(text.as_encoded_bytes()),
        None => Err(Fail::usage(
            "no token: it is the first word that `latch acquire` prints; LATCH_TOKEN may have it, too",
        )),
    }
}

fn acquire_lock(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    acquire_and_print(context, matches, How::of(matches))
}

/// Also for `latch elect`.
pub(crate) fn acquire_and_print(
    context: &Context,
    matches: &ArgMatches,
    how: How,
) -> Result<Exit, Fail> {
    let key = args::key_of(matches)?;
    let client = Servers::of(matches)?.keeping_client()?;
    let mut lock = how.lock(&client, key);
    if let Some(lease) = args::lease_of(matches)? {
        lock = lock.lease(lease);
    }
    let patience = args::patience_of(matches);
    let acquired = match patience {
        Patience::None => lock.try_acquire(),
        Patience::For(wait) => lock.wait(wait).acquire(),
        Patience::Forever => lock.wait(std::time::Duration::MAX).acquire(),
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(Error::Busy { .. }) => {
            let who = client.who(key).ok().and_then(|who| waiting::holders(&who));
            let message = who.map_or_else(String::new, |who| format!("{} is {who}", quoted(key)));
            return Err(Fail::new(args::conflict_exit(matches), message));
        }
        Err(error) => return Err(fail_of_lock(error)),
    };
    let (fence, lease) = (guard.fence(), guard.lease());
    let Some(token) = guard.token().map(token_text) else {
        let why = guard.lost().why().unwrap_or(Lost::Expired);
        let key = String::from_utf8_lossy(key).into_owned();
        return Err(fail(Error::Lost { key, why }));
    };
    let text = match context.output.json {
        true => output::json(&json!({
            "key": json_text(key),
            "token": token,
            "fence": fence,
            "lease_ms": lease.as_millis() as u64,
        })),
        false => format!("{token} {fence}"),
    };
    // First somebody has the token, then nobody here has: without it the lock could only be broken.
    let line = format!("{text}\n");
    if let Err(mut failed) = context.output.must_be_read(line.as_bytes()) {
        failed.message += match guard.release() {
            Ok(()) => ". The lock was let go",
            Err(_) => ". The lock is held until its lease is over",
        };
        return Err(failed);
    }
    guard.leave().map_err(fail_of_lock)?;
    Ok(Exit::OK)
}

fn renew_lock(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let (key, token) = (args::key_of(matches)?, token_of(matches)?);
    let client = Servers::of(matches)?.keeping_client()?;
    let lease = args::lease_of(matches)?;
    let left = client.renew(key, token, lease).map_err(fail_of_lock)?;
    match context.output.json {
        true => context.output.json(&json!({
            "key": json_text(key),
            "fence": token.fence.0,
            "held_ms": left.as_millis() as u64,
        }))?,
        false => context.output.line(&left.as_secs().to_string())?,
    }
    Ok(Exit::OK)
}

fn release_lock(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let (key, token) = (args::key_of(matches)?, token_of(matches)?);
    let client = Servers::of(matches)?.client()?;
    client.release(key, token).map_err(fail_of_lock)?;
    if context.output.json {
        let released = json!({"key": json_text(key), "fence": token.fence.0});
        context.output.json(&released)?;
    }
    Ok(Exit::OK)
}

fn break_lock(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let key = args::key_of(matches)?;
    let which = match matches.get_one::<u64>("FENCE") {
        Some(fence) => fence.to_string(),
        None => "*".to_owned(),
    };
    let client = Servers::of(matches)?.client()?;
    let reply = client.ask_verb(Verb::Break, key, which.as_bytes());
    let Told::Number(count) = reply.map_err(fail_of_lock)?.told() else {
        return Err(super::connect::nonsense());
    };
    match context.output.json {
        true => {
            let ended = json!({"key": json_text(key), "ended": count});
            context.output.json(&ended)?;
        }
        false => context.output.line(&count.to_string())?,
    }
    Ok(match count {
        0 => Exit::CONFLICT,
        _ => Exit::OK,
    })
}

/// `--semaphore` and `--elect`, which exclude `-s` and `-x`.
pub(crate) fn how_to_hold() -> [Arg; 2] {
    [
        Arg::new("semaphore")
            .long("semaphore")
            .value_name("N")
            .value_parser(clap::value_parser!(u32).range(1..))
            .conflicts_with_all(["shared", "exclusive"])
            .help("One of N places. All who use the key have to say the same N"),
        args::flag("elect", "Lead: those who observe the key are told").conflicts_with_all([
            "shared",
            "exclusive",
            "semaphore",
        ]),
    ]
}

/// How a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Alone,
    OneOf(u32),
    Read,
    Write,
    Lead,
}

impl How {
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        match matches.get_one::<u32>("semaphore") {
            Some(limit) => Self::OneOf(*limit),
            None if matches.get_flag("elect") => Self::Lead,
            None if matches.get_flag("shared") => Self::Read,
            None if matches.get_flag("exclusive") => Self::Write,
            None => Self::Alone,
        }
    }

    pub(crate) fn lock(self, client: &Client, key: &[u8]) -> client::Lock {
        match self {
            Self::Alone => client.lock(key),
            Self::OneOf(limit) => client.semaphore(key, limit),
            Self::Read => client.read(key),
            Self::Write => client.write(key),
            Self::Lead => client.elect(key),
        }
    }
}
