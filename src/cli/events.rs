//! `latch signal`, `listen`, `watch`, `barrier`, `elect`: what is said among clients, and who leads.
//!
//! What is not about one key is asked of all servers at once, each on a thread of its own.

use std::ffi::OsString;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::Context;
use super::args::{self, bytes_of, flag, key_of};
use super::connect::{Servers, fail, fail_of_lock, nonsense, token};
use super::exit::{Exit, Fail};
use super::locks::{How, acquire_and_print};
use super::output::{Style, escaped, json_text};
use super::sys::spawn;
use super::table::Entry;
use super::waiting;
use crate::client::{self, Client, Piece, Session};
use crate::uptime::{pause, uptime};
use crate::wire::client::{News, Told, read_request};
use crate::wire::verbs::Verb;

/// How long a cluster may be without a leader before nobody listens any more.
const LEADERLESS: Duration = Duration::from_secs(60);
/// How long one wait for news lasts. There is nothing else to do in between; it only has to end some time.
const LISTEN: Duration = Duration::from_secs(3600);

const WATCH: &str = "\
Prints one line for each event: what happened (acquire, release, kset, incr, …)
and the key. A pattern has tokens between dots: * is any one token, > is one or
more at the end.

Examples:
  latch watch '>'                           everything
  latch watch nightly 'build.*'
  latch watch --count 1 nightly && echo something happened";

const LISTEN_HELP: &str = "\
Prints one line for each signal: the channel and what was said. A pattern has
tokens between dots: * is any one token, > is one or more at the end.

Examples:
  latch listen 'deploy.>'
  latch listen --group workers jobs         one of the group hears each signal
  latch listen --count 1 -w 60 ready        waits for one, a minute at most";

const ELECT: &str = "\
Takes the lead and prints the token and the fence; the lead ends with its lease or
with --resign. To lead for as long as a command runs: latch run --elect.

Examples:
  read -r token fence < <(latch elect --lease 1m leader)
  latch renew leader $token --lease 1m
  latch elect --resign $token leader
  latch elect --observe leader              prints every change";

pub(crate) fn entries() -> Vec<Entry> {
    let patterns = |help: &'static str| {
        Arg::new("PATTERN")
            .required(true)
            .num_args(1..)
            .value_parser(args::bytes())
            .help(help)
    };
    let signal = Command::new("signal")
        .about("Tell everybody who listens to a channel, and print how many that are")
        .arg(
            Arg::new("KEY")
                .value_name("CHANNEL")
                .required(true)
                .value_parser(args::bytes())
                .help("Where: a name without * and >"),
        )
        .arg(
            Arg::new("PAYLOAD")
                .required(true)
                .value_parser(args::bytes())
                .allow_hyphen_values(true)
                .help("What"),
        )
        .after_help("Example:\n  latch signal deploy.web v42");
    let group = Arg::new("group")
        .long("group")
        .value_name("NAME")
        .value_parser(args::bytes())
        .help("Only one member of the group hears each signal");
    let listen = Command::new("listen")
        .about("Print the signals on channels")
        .arg(group)
        .args(how_many())
        .arg(patterns("Which channels"))
        .after_help(LISTEN_HELP);
    let watch = Command::new("watch")
        .about("Print what happens to keys")
        .args(how_many())
        .arg(patterns("Which keys"))
        .after_help(WATCH);
    let barrier = Command::new("barrier")
        .about("Wait until so many have come")
        .args(args::patience())
        .arg(args::conflict_exit_code())
        .arg(args::key())
        .arg(
            Arg::new("COUNT")
                .required(true)
                .value_parser(clap::value_parser!(u32).range(1..))
                .help("How many"),
        )
        .after_help("Example:\n  latch barrier -w 5m start 3 && ./go.sh     on three machines");
    let resign = Arg::new("resign")
        .long("resign")
        .value_name("TOKEN")
        .value_parser(args::bytes())
        .conflicts_with("observe")
        .help("Lead no longer");
    let elect = Command::new("elect")
        .about("Take the lead, give it up, or watch who has it")
        .args(args::patience())
        .arg(args::conflict_exit_code())
        .arg(args::lease(
            "How long the lead lasts [default: the server's, 33s]",
        ))
        .arg(resign)
        .arg(flag("observe", "Print every change of the lead"))
        .arg(count())
        .arg(args::key())
        .after_help(ELECT);
    vec![
        Entry::new(watch, watch_keys),
        Entry::new(signal, send_signal),
        Entry::new(listen, listen_to),
        Entry::new(barrier, meet),
        Entry::new(elect, lead),
    ]
}

fn count() -> Arg {
    Arg::new("count")
        .long("count")
        .value_name("N")
        .value_parser(clap::value_parser!(u64).range(1..))
        .help("Stop after so many lines")
}

fn how_many() -> [Arg; 2] {
    [
        count(),
        args::wait("Stop after this time; with 1 if too little came"),
    ]
}

fn send_signal(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let channel = key_of(matches)?;
    let payload = bytes_of(matches, "PAYLOAD").unwrap_or_default();
    // Whoever listens does so at every server, so one of them tells everybody.
    let client = Servers::of(matches)?.client()?;
    let reply = client.ask_verb(Verb::Signal, channel, payload);
    let Told::Number(told) = reply.map_err(fail)?.told() else {
        return Err(nonsense());
    };
    match context.output.json {
        true => {
            let said = json!({"channel": json_text(channel), "told": told});
            context.output.json(&said)?;
        }
        false => context.output.line(&told.to_string())?,
    }
    Ok(Exit::OK)
}

fn listen_to(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let group = bytes_of(matches, "group").unwrap_or_default().to_vec();
    let patterns = patterns_of(matches);
    subscribe(context, matches, Verb::Listen, patterns, &group)
}

fn watch_keys(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    subscribe(context, matches, Verb::Watch, patterns_of(matches), b"")
}

fn patterns_of(matches: &ArgMatches) -> Vec<Vec<u8>> {
    let patterns = matches.get_many::<OsString>("PATTERN").unwrap_or_default();
    patterns.map(|it| it.as_encoded_bytes().to_vec()).collect()
}

/// Prints what all servers tell, until it is enough.
fn subscribe(
    context: &Context,
    matches: &ArgMatches,
    verb: Verb,
    names: Vec<Vec<u8>>,
    argument: &[u8],
) -> Result<Exit, Fail> {
    let (sender, heard) = channel();
    for server in Servers::of(matches)?.each() {
        let topics = Topics {
            verb,
            names: names.clone(),
            argument: argument.to_vec(),
        };
        let sender = sender.clone();
        spawn(move || {
            if let Err(fail) = listen_at(&server, &topics, &sender) {
                let _ = sender.send(Heard::Over(fail));
            }
        })?;
    }
    drop(sender);
    let end = matches.try_get_one::<Duration>("wait").ok().flatten();
    let end = end.map(|wait| uptime().saturating_add(*wait));
    let enough = matches.get_one::<u64>("count").copied();
    let mut shown = 0;
    loop {
        let left = end.map_or(LISTEN, |end| end.saturating_sub(uptime()));
        match heard.recv_timeout(left) {
            Ok(Heard::Piece(piece)) => {
                show(context, &piece)?;
                shown += 1;
                if enough == Some(shown) {
                    return Ok(Exit::OK);
                }
            }
            Ok(Heard::Gap(why)) => {
                eprintln!("latch: something may have been missed, and it goes on: {why}");
            }
            Ok(Heard::Over(fail)) => return Err(fail),
            Err(RecvTimeoutError::Timeout) if end.is_none() => {}
            Err(_) => {
                let is_enough = enough.is_none() && shown > 0;
                return Ok(if is_enough { Exit::OK } else { Exit::CONFLICT });
            }
        }
    }
}

/// What is listened to.
struct Topics {
    verb: Verb,
    names: Vec<Vec<u8>>,
    argument: Vec<u8>,
}

/// What one server, or the members of one cluster, have to say.
enum Heard {
    Piece(Piece),
    /// Somebody else leads: what happened in between nobody has told.
    Gap(String),
    /// Nothing more comes.
    Over(Fail),
}

/// Listens to one server for as long as it is there, or to whichever member of a cluster leads.
fn listen_at(servers: &Servers, topics: &Topics, sender: &Sender<Heard>) -> Result<(), Fail> {
    let client = servers.client()?;
    let mut session = subscribed(&client, topics)?;
    loop {
        match session.news(LISTEN) {
            Ok(None) => {}
            Ok(Some(piece)) => {
                if sender.send(Heard::Piece(piece)).is_err() {
                    return Ok(()); // nobody wants more
                }
            }
            Err(error @ client::Error::Down { .. }) if servers.have_members() => {
                let gap = escaped(error.to_string().as_bytes());
                session = subscribed_again(&client, topics)?;
                if sender.send(Heard::Gap(gap)).is_err() {
                    return Ok(());
                }
            }
            Err(error) => return Err(fail(error)),
        }
    }
}

fn subscribed(client: &Client, topics: &Topics) -> Result<Session, Fail> {
    // Whoever hears of one key asks for it where that is.
    let key = topics.names.first().map_or(&b"_"[..], Vec::as_slice);
    let mut session = client.session(key).map_err(fail)?;
    for name in &topics.names {
        let request = read_request(topics.verb, name, &topics.argument);
        let request = request.map_err(|error| fail(error.into()))?;
        session.ask(&request).map_err(fail)?;
    }
    Ok(session)
}

/// The same where a leader may have to be found first. Each attempt waits for one.
fn subscribed_again(client: &Client, topics: &Topics) -> Result<Session, Fail> {
    let end = uptime().saturating_add(LEADERLESS);
    loop {
        match subscribed(client, topics) {
            Err(fail) if fail.exit == Exit::UNREACHABLE && uptime() < end => {
                pause(waiting::EVERY);
            }
            result => return result,
        }
    }
}

fn show(context: &Context, piece: &Piece) -> Result<(), Fail> {
    let output = context.output;
    let news = piece.news();
    let word = news.word().unwrap_or_default();
    let (word, name, payload): (&str, &[u8], Option<&[u8]>) = match news {
        News::Signal { channel, payload } => ("", channel, Some(payload)),
        News::Watch { key, .. } | News::Leader { key, .. } | News::Lost { key, .. } => {
            (word, key, None)
        }
        News::RangeLost { resource, .. } => (word, resource, None),
    };
    if output.json {
        let value: Value = match payload {
            Some(payload) => json!({"channel": json_text(name), "payload": json_text(payload)}),
            None => json!({"event": word, "key": json_text(name)}),
        };
        return output.json(&value);
    }
    match (payload, output.terminal) {
        (Some(payload), true) => {
            let channel = output.paint(Style::Cyan, &escaped(name));
            output.line(&format!("{channel} {}", escaped(payload)))
        }
        (Some(payload), false) => output.value(&[name, b" ", payload].concat()),
        (None, true) => {
            let word = output.paint(style(word), &format!("{word:<8}"));
            output.line(&format!("{word} {}", escaped(name)))
        }
        (None, false) => output.value(&[word.as_bytes(), b" ", name].concat()),
    }
}

fn style(word: &str) -> Style {
    match word {
        "acquire" | "elect" | "elected" => Style::Green,
        "release" | "resign" | "resigned" | "failover" => Style::Yellow,
        _ => Style::Cyan,
    }
}

fn meet(_: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let key = key_of(matches)?;
    let count = matches.get_one::<u32>("COUNT").copied().unwrap_or(1);
    let client = Servers::of(matches)?.client()?;
    let ask = |wait: &str| client.ask_verb(Verb::Bwait, key, format!("{count} {wait}").as_bytes());
    let patience = args::patience_of(matches);
    let reply = waiting::ask(patience, waiting::has_done_nothing, ask);
    let reply = reply.map_err(|error| waiting::ambiguous(error, "the barrier may have opened"))?;
    match reply.told() {
        Told::Done => Ok(Exit::OK),
        Told::TimedOut => Ok(args::conflict_exit(matches)),
        _ => Err(nonsense()),
    }
}

fn lead(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let key = key_of(matches)?;
    if matches.get_flag("observe") {
        return subscribe(context, matches, Verb::Observe, vec![key.to_vec()], b"");
    }
    if let Some(text) = bytes_of(matches, "resign") {
        let token = token(text)?;
        let client = Servers::of(matches)?.client()?;
        let resigned = client.ask_verb(Verb::Resign, key, &token.hex());
        return match resigned {
            Err(client::Error::Refused(refusal)) if refusal.word() == "error" => {
                let why = "this token does not lead: the lease is over, or it was given up before";
                Err(Fail::new(Exit::LOST, why))
            }
            reply => reply.map(|_| Exit::OK).map_err(fail_of_lock),
        };
    }
    acquire_and_print(context, matches, How::Lead)
}
