//! `latch get`, `set`, `del`, `cas`, `incr`, `decr`, `push`, `pop`, `len`: values, counters and lists.
//!
//! Values are printed as they are, with a line end; what is not there is exit code 1 and no output.

use std::ffi::OsString;
use std::io::Read;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::args::{self, Patience, bytes_of, flag, key_of};
use super::connect::{Servers, fail, nonsense};
use super::exit::{Exit, Fail};
use super::output::{self, json_text};
use super::table::Entry;
use super::{Context, sys, waiting};
use crate::client::Reply;
use crate::wire::client::Told;
use crate::wire::verbs::Verb;

pub(crate) fn entries() -> Vec<Entry> {
    let counter = || {
        flag(
            "counter",
            "The counter of this name, which is another thing",
        )
    };
    let left = || flag("left", "At the left end");
    vec![
        Entry::new(
            Command::new("get")
                .about("Print a value")
                .arg(counter())
                .arg(args::key())
                .after_help("Examples:\n  latch get version || echo none\n  latch get --counter jobs"),
            get,
        ),
        Entry::new(
            Command::new("set")
                .about("Store a value")
                .arg(ttl())
                .arg(counter())
                .arg(args::key())
                .arg(value("VALUE", "What to store; - reads it from standard input"))
                .after_help("Examples:\n  latch set version 42\n  latch set --ttl 5m status \"going on\""),
            set,
        ),
        Entry::new(
            Command::new("del").about("Forget a value").arg(args::key()),
            del,
        ),
        Entry::new(
            Command::new("cas")
                .about("Store a value if the present one is the old one")
                .arg(ttl())
                .arg(args::key())
                .arg(value("OLD", "What has to be there; '' is nothing"))
                .arg(value("NEW", "What is there afterwards"))
                .after_help("Exit code 1 says that something else is there.\n\nExamples:\n  latch cas version 42 43\n  latch cas owner '' $HOSTNAME"),
            cas,
        ),
        Entry::new(
            Command::new("incr")
                .about("Add to a counter, and print what it is then")
                .arg(args::key())
                .arg(amount()),
            incr,
        ),
        Entry::new(
            Command::new("decr")
                .about("Take from a counter, and print what it is then")
                .arg(args::key())
                .arg(amount()),
            decr,
        ),
        Entry::new(
            Command::new("push")
                .about("Put values into a list, at the right, and print how long it is then")
                .arg(left().help("At the left end; the last one is first then"))
                .arg(args::key())
                .arg(value("VALUE", "What to put in; - reads it from standard input").num_args(1..))
                .after_help("Example:\n  latch push jobs a.png b.png"),
            push,
        ),
        Entry::new(
            Command::new("pop")
                .about("Take a value out of a list, at the left, and print it")
                .arg(flag("right", "At the right end"))
                .arg(args::wait("Wait this long for one"))
                .arg(args::key())
                .after_help("Example:\n  while job=$(latch pop -w 1h jobs); do convert \"$job\"; done"),
            pop,
        ),
        Entry::new(
            Command::new("len")
                .about("Print how long a list is")
                .arg(args::key()),
            len,
        ),
    ]
}

fn ttl() -> Arg {
    Arg::new("ttl")
        .long("ttl")
        .value_name("TIME")
        .value_parser(args::duration())
        .help("Forget it after this time")
}

fn value(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .required(true)
        .value_parser(args::bytes())
        .allow_hyphen_values(true)
        .help(help)
}

fn amount() -> Arg {
    Arg::new("N")
        .value_parser(clap::value_parser!(i64))
        .default_value("1")
        .allow_hyphen_values(true)
        .help("How much")
}

/// A value that was typed, or what standard input has, without its last line end.
fn input(text: &[u8]) -> Result<Vec<u8>, Fail> {
    if text != b"-" {
        return Ok(text.to_vec());
    }
    if sys::is_input_closed() {
        return Err(Fail::system("read standard input", "it is closed"));
    }
    let mut bytes = Vec::new();
    // More than a server takes is enough to be refused.
    let read = std::io::stdin().take(1 << 20).read_to_end(&mut bytes);
    read.map_err(|error| Fail::system("read standard input", error))?;
    if bytes.ends_with(b"\n") {
        bytes.pop();
    }
    Ok(bytes)
}

fn ttl_of(matches: &ArgMatches) -> Option<String> {
    let ttl = matches.get_one::<Duration>("ttl")?;
    Some(format!("{}ms", ttl.as_millis()))
}

/// Asks, and prints the answer.
fn ask(context: &Context, matches: &ArgMatches, verb: Verb, argument: &[u8]) -> Result<Exit, Fail> {
    let key = key_of(matches)?;
    let client = Servers::of(matches)?.client()?;
    let reply = client.ask_verb(verb, key, argument).map_err(fail)?;
    let (text, exit) = shown(context, key, &reply)?;
    if !text.is_empty() {
        context.output.raw(&text)?;
    }
    Ok(exit)
}

/// What is printed for an answer that is a number, a value or nothing.
fn shown(context: &Context, key: &[u8], reply: &Reply) -> Result<(Vec<u8>, Exit), Fail> {
    let (text, value, exit) = match reply.told() {
        Told::Number(number) => (
            Some(number.to_string().into_bytes()),
            json!(number),
            Exit::OK,
        ),
        Told::Value(value) => (Some(value.to_vec()), json_text(value), Exit::OK),
        Told::Done => (None, Value::Bool(true), Exit::OK),
        Told::Conflict => (None, Value::Bool(false), Exit::CONFLICT),
        Told::Nothing | Told::TimedOut => (None, Value::Null, Exit::CONFLICT),
        _ => return Err(nonsense()),
    };
    let text = match (context.output.json, text) {
        (true, _) => {
            let answer = json!({"key": json_text(key), "value": value});
            format!("{}\n", output::json(&answer)).into_bytes()
        }
        (false, Some(text)) => context.output.value_line(&text),
        (false, None) => Vec::new(),
    };
    Ok((text, exit))
}

fn get(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let verb = match matches.get_flag("counter") {
        true => Verb::Get,
        false => Verb::Kget,
    };
    ask(context, matches, verb, b"")
}

fn set(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let mut value = input(bytes_of(matches, "VALUE").unwrap_or_default())?;
    if matches.get_flag("counter") {
        return ask(context, matches, Verb::Cset, &value);
    }
    refuse_tabs(&value)?;
    if let Some(ttl) = ttl_of(matches) {
        value.push(b'\t');
        value.extend_from_slice(ttl.as_bytes());
    }
    ask(context, matches, Verb::Kset, &value)
}

/// A tab would end the value, and what follows it would be its time to live.
fn refuse_tabs(value: &[u8]) -> Result<(), Fail> {
    match value.contains(&b'\t') {
        true => Err(Fail::usage(
            "a value cannot hold a tab: encode it, for example with base64 -w0",
        )),
        false => Ok(()),
    }
}

fn del(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    ask(context, matches, Verb::Kdel, b"")
}

fn cas(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let old = bytes_of(matches, "OLD").unwrap_or_default();
    let new = bytes_of(matches, "NEW").unwrap_or_default();
    refuse_tabs(old)?;
    refuse_tabs(new)?;
    let ttl = ttl_of(matches).unwrap_or_default();
    let argument = [old, b"\t", new, b"\t", ttl.as_bytes()].concat();
    ask(context, matches, Verb::Kcas, &argument)
}

fn incr(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    count(context, matches, Verb::Incr)
}

fn decr(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    count(context, matches, Verb::Decr)
}

fn count(context: &Context, matches: &ArgMatches, verb: Verb) -> Result<Exit, Fail> {
    let amount = matches.get_one::<i64>("N").copied().unwrap_or(1);
    ask(context, matches, verb, amount.to_string().as_bytes())
}

fn push(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let verb = match matches.get_flag("left") {
        true => Verb::Lpush,
        false => Verb::Rpush,
    };
    let values = matches.get_many::<OsString>("VALUE").unwrap_or_default();
    let values: Vec<&OsString> = values.collect();
    let Some((last, first)) = values.split_last() else {
        return Err(Fail::usage("nothing to push: latch push KEY VALUE…"));
    };
    let client = Servers::of(matches)?.client()?;
    for value in first {
        let value = input(value.as_encoded_bytes())?;
        let key = key_of(matches)?;
        client.ask_verb(verb, key, &value).map_err(fail)?;
    }
    let last = input(last.as_encoded_bytes())?;
    ask(context, matches, verb, &last)
}

/// A value that cannot be printed is put back where it was.
fn pop(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let key = key_of(matches)?;
    let client = Servers::of(matches)?.client()?;
    let (pop, wait_for_one, put_back) = match matches.get_flag("right") {
        true => (Verb::Rpop, Verb::Brpop, Verb::Rpush),
        false => (Verb::Lpop, Verb::Blpop, Verb::Lpush),
    };
    let reply = match matches.get_one::<Duration>("wait") {
        None => client.ask_verb(pop, key, b"").map_err(fail)?,
        Some(wait) => {
            let ask = |wait: &str| client.ask_verb(wait_for_one, key, wait.as_bytes());
            let reply = waiting::ask(Patience::For(*wait), waiting::has_done_nothing, ask);
            reply.map_err(|error| waiting::ambiguous(error, "a value may have been taken"))?
        }
    };
    let (text, exit) = shown(context, key, &reply)?;
    if let Err(mut failed) = context.output.must_be_read(&text) {
        if let Told::Value(value) = reply.told() {
            failed.message += match client.ask_verb(put_back, key, value) {
                Ok(_) => ". The value was put back",
                Err(_) => ". The value could not be put back, and is lost",
            };
        }
        return Err(failed);
    }
    Ok(exit)
}

fn len(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    ask(context, matches, Verb::Llen, b"")
}
