//! The other end of the line protocol: requests become bytes, and lines of the daemon get a
//! meaning.
//!
//! The reverse of `command` and `answer`, for every client there is: it needs no daemon, only
//! bytes. A request is spelled only if the daemon would read just that request, so no key or value
//! can smuggle in a line of its own. An answer is read exactly as the daemon spells it; whatever
//! else comes is `None`, for a client that guesses is worse than one that complains (`client/told.rs`).
//! Never opens a socket and never waits.

mod told;

use std::error::Error;
use std::fmt;

use memchr::memchr2;

use crate::base::{Millis, Token};
use crate::engine::types::{End, Mode, RangeAsk, RangeRequest, Request, Span};
use crate::wire::answer::{self, push_span};
use crate::wire::command::{self, Command, Malformed};
use crate::wire::json::push_number;
use crate::wire::verbs::{LINE_BYTES_MAX, Verb};

pub use self::told::{Grant, Line, News, Status, Told, split_line};

/// Why a request cannot be said in lines. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unspellable {
    /// The key or the argument holds a CR or LF.
    LineEnd,
    /// The key or the argument is longer than its line may be.
    TooLong,
    /// The daemon would refuse it.
    Malformed(Malformed),
    /// The daemon would read something else: a tab in a value that ends at tabs, blanks around a
    /// group or a secret, a way to hold that cannot be queued for.
    Ambiguous,
}

impl fmt::Display for Unspellable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineEnd => f.write_str("the key or the argument holds a line end"),
            Self::TooLong => f.write_str("the key or the argument is too long"),
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Ambiguous => f.write_str("the daemon would read it as something else"),
        }
    }
}

impl Error for Unspellable {}

/// Appends a frame as it is, right or wrong: three lines. The parts are the caller's
/// responsibility.
pub fn push_frame(out: &mut Vec<u8>, letters: &[u8], key: &[u8], argument: &[u8]) {
    out.reserve(letters.len() + key.len() + argument.len() + 3);
    for line in [letters, key, argument] {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
}

/// A frame written by a person on one line, such as `l job 10 60`: the command, the key, and the
/// rest is the argument. What is missing is empty.
#[must_use]
pub fn frame(request: &str) -> String {
    let mut words = request.splitn(3, ' ');
    let mut next = || words.next().unwrap_or_default();
    format!("{}\n{}\n{}\n", next(), next(), next())
}

/// Appends the frame that asks for `command`, and says the verb it was spelled with, which is
/// needed to read the answer.
///
/// Where several verbs mean the same, the shortest is taken: a wait for a place is `w`, a release
/// `r` and a renewal `n`, whatever is held.
///
/// # Errors
/// If the daemon would not read just this command; nothing was appended then.
pub fn push_request(out: &mut Vec<u8>, command: &Command<'_>) -> Result<Verb, Unspellable> {
    let start = out.len();
    let (verb, key) = verb_and_key(command);
    push_frame(out, verb.row().letters.as_bytes(), key, b"");
    out.pop();
    let argument_at = out.len();
    push_argument(out, command);
    match check(command, verb, key, &out[argument_at..]) {
        Ok(()) => {
            out.push(b'\n');
            Ok(verb)
        }
        Err(unspellable) => {
            out.truncate(start);
            Err(unspellable)
        }
    }
}

/// What the daemon would read in a frame of these lines.
///
/// # Errors
/// If it would refuse it.
pub fn read_request<'a>(
    verb: Verb,
    key: &'a [u8],
    argument: &'a [u8],
) -> Result<Command<'a>, Unspellable> {
    let has_line_end = |line| memchr2(b'\n', b'\r', line).is_some();
    if has_line_end(key) || has_line_end(argument) {
        return Err(Unspellable::LineEnd);
    }
    if key.len() > LINE_BYTES_MAX || argument.len() > verb.argument_bytes_max() {
        return Err(Unspellable::TooLong);
    }
    command::parse(verb, key, argument).map_err(Unspellable::Malformed)
}

/// Holds the lines against the daemon's own rules.
fn check(
    command: &Command<'_>,
    verb: Verb,
    key: &[u8],
    argument: &[u8],
) -> Result<(), Unspellable> {
    match read_request(verb, key, argument)? {
        read if read == *command => Ok(()),
        _ => Err(Unspellable::Ambiguous),
    }
}

/// The verb a command is said with, and its key line.
pub(super) fn verb_and_key<'a>(command: &Command<'a>) -> (Verb, &'a [u8]) {
    let request = match command {
        Command::Engine(request) => request,
        Command::Auth { .. } => return (Verb::Auth, b"_"),
        Command::Hello(_) => return (Verb::Hello, b"_"),
        Command::Ping => return (Verb::Ping, b"_"),
        Command::Stats => return (Verb::Stats, b"_"),
        Command::Waits => return (Verb::Waits, b"_"),
        Command::Who { key } => return (Verb::Who, key),
        Command::Attach(attach) => return (Verb::Attach, attach.id.as_bytes()),
        Command::Detach { id, .. } => return (Verb::Detach, id.as_bytes()),
        Command::Break { key, .. } => return (Verb::Break, key),
        Command::BreakRanges { resource, .. } => return (Verb::Break, resource),
        Command::BreakRangesOf { client } => return (Verb::Break, client),
        Command::RangeListOf { of, .. } => {
            let name = of.client.or(of.owner).unwrap_or_default();
            return (Verb::RangeList, name);
        }
        Command::Range(request) => {
            let verb = match request.ask {
                RangeAsk::Lock { .. } => Verb::RangeLock,
                RangeAsk::Unlock { .. } => Verb::RangeUnlock,
                RangeAsk::Test { .. } => Verb::RangeTest,
                RangeAsk::Cancel { .. } => Verb::RangeCancel,
                RangeAsk::Reclaim { .. } => Verb::RangeReclaim,
            };
            return (verb, request.resource);
        }
        Command::RangeList { resource } => return (Verb::RangeList, resource),
        Command::ReclaimDone { id } => return (Verb::ReclaimDone, id.as_bytes()),
        Command::Grace { .. } => return (Verb::Grace, b"_"),
    };
    match *request {
        Request::Acquire { key, mode, .. } => {
            let verb = match mode {
                Mode::Slot { limit: 1 } => Verb::Lock,
                Mode::Slot { .. } => Verb::SemLock,
                Mode::Read => Verb::ReadLock,
                Mode::Write => Verb::WriteLock,
                Mode::Lead => Verb::Elect,
            };
            (verb, key)
        }
        Request::Enqueue { key, mode, .. } => {
            let verb = match mode {
                Mode::Slot { limit: 1 } | Mode::Lead => Verb::Enqueue,
                Mode::Slot { .. } => Verb::SemEnqueue,
                Mode::Read => Verb::ReadEnqueue,
                Mode::Write => Verb::WriteEnqueue,
            };
            (verb, key)
        }
        Request::Wait { key, .. } => (Verb::Wait, key),
        Request::Release { key, .. } => (Verb::Release, key),
        Request::Renew { key, .. } => (Verb::Renew, key),
        Request::Reclaim { key, .. } => (Verb::Reclaim, key),
        Request::Position { key } => (Verb::Pos, key),
        Request::Resign { key, .. } => (Verb::Resign, key),
        Request::Observe { key } => (Verb::Observe, key),
        Request::Unobserve { key } => (Verb::Unobserve, key),
        Request::Add {
            key, down: false, ..
        } => (Verb::Incr, key),
        Request::Add { key, .. } => (Verb::Decr, key),
        Request::Count { key } => (Verb::Get, key),
        Request::SetCount { key, .. } => (Verb::Cset, key),
        Request::Put { key, .. } => (Verb::Kset, key),
        Request::Fetch { key } => (Verb::Kget, key),
        Request::Delete { key } => (Verb::Kdel, key),
        Request::Swap { key, .. } => (Verb::Kcas, key),
        Request::Push { key, end, .. } => (at(end, Verb::Lpush, Verb::Rpush), key),
        Request::Pop { key, end } => (at(end, Verb::Lpop, Verb::Rpop), key),
        Request::AwaitPop { key, end, .. } => (at(end, Verb::Blpop, Verb::Brpop), key),
        Request::Length { key } => (Verb::Llen, key),
        Request::Range { key, .. } => (Verb::Lrange, key),
        Request::Meet { key, .. } => (Verb::Bwait, key),
        Request::Listen { pattern, .. } => (Verb::Listen, pattern),
        Request::Unlisten { pattern, .. } => (Verb::Unlisten, pattern),
        Request::Signal { channel, .. } => (Verb::Signal, channel),
        Request::Watch { pattern } => (Verb::Watch, pattern),
        Request::Unwatch { pattern } => (Verb::Unwatch, pattern),
    }
}

fn at(end: End, left: Verb, right: Verb) -> Verb {
    match end {
        End::Left => left,
        End::Right => right,
    }
}

fn push_argument(out: &mut Vec<u8>, command: &Command<'_>) {
    let request = match command {
        Command::Engine(request) => request,
        Command::Auth { secret } => return out.extend_from_slice(secret),
        Command::Hello(hello) => {
            let start = out.len();
            if let Some(fence) = hello.fence {
                out.extend_from_slice(if fence { b" fence=1" } else { b" fence=0" });
            }
            if let Some(on) = hello.deadlock {
                out.extend_from_slice(if on { b" deadlock=1" } else { b" deadlock=0" });
            }
            if let Some(on) = hello.keep {
                out.extend_from_slice(if on { b" keep=1" } else { b" keep=0" });
            }
            if let Some(name) = hello.name {
                out.extend_from_slice(b" name=");
                out.extend_from_slice(name);
            }
            out.drain(start..out.len().min(start + 1)); // the first blank
            return;
        }
        Command::Ping
        | Command::Stats
        | Command::Waits
        | Command::Who { .. }
        | Command::RangeList { .. }
        | Command::ReclaimDone { .. }
        | Command::Grace { ends: false } => return,
        Command::Grace { ends: true } => return out.extend_from_slice(b"end"),
        Command::Range(request) => return push_range_argument(out, request),
        Command::BreakRangesOf { .. } => return out.extend_from_slice(b"range client"),
        Command::RangeListOf { of, after } => {
            let (what, owner) = match of.client {
                Some(_) => ("client", of.owner.unwrap_or_default()),
                None => ("owner", &b""[..]),
            };
            let after = after.to_string();
            for part in [what.as_bytes(), b" ", after.as_bytes(), b" ", owner] {
                out.extend_from_slice(part);
            }
            return;
        }
        Command::BreakRanges { span, .. } => {
            out.extend_from_slice(b"range ");
            return match *span {
                Some(span) => push_bytes(out, span),
                None => out.push(b'*'),
            };
        }
        Command::Attach(attach) => {
            push_span(out, attach.ttl);
            out.push(b' ');
            out.extend_from_slice(attach.secret.0);
            if let Some(adapter) = attach.adapter {
                out.extend_from_slice(b" adapter=");
                out.extend_from_slice(adapter.as_bytes());
            }
            return;
        }
        Command::Detach { secret, .. } => return out.extend_from_slice(secret.0),
        Command::Break { fence: None, .. } => return out.push(b'*'),
        Command::Break {
            fence: Some(fence), ..
        } => return push_number(out, fence.0),
    };
    match *request {
        Request::Acquire {
            mode, wait, lease, ..
        } => {
            push_span(out, wait);
            if let Mode::Slot { limit } = mode
                && limit != 1
            {
                out.push(b' ');
                push_integer(out, limit.into());
            }
            push_lease(out, lease);
        }
        Request::Enqueue { mode, lease, .. } => {
            if let Mode::Slot { limit } = mode
                && limit != 1
            {
                push_integer(out, limit.into());
            }
            push_lease(out, lease);
        }
        Request::Wait { wait, .. } | Request::AwaitPop { wait, .. } => push_span(out, wait),
        Request::Release { token, .. } | Request::Resign { token, .. } => push_token(out, token),
        Request::Renew { token, lease, .. } | Request::Reclaim { token, lease, .. } => {
            push_token(out, token);
            push_lease(out, lease);
        }
        Request::Add { delta, down, .. } => {
            // The smallest number has no negation: `decr` cannot say it, and the check finds out.
            push_integer(out, if down { delta.wrapping_neg() } else { delta });
        }
        Request::SetCount { value, .. } => push_integer(out, value),
        Request::Put { value, ttl, .. } => {
            out.extend_from_slice(value);
            if ttl != Millis::ZERO {
                out.push(b'\t');
                push_span(out, ttl);
            }
        }
        Request::Swap { old, new, ttl, .. } => {
            for value in [old, new] {
                out.extend_from_slice(value);
                out.push(b'\t');
            }
            push_span(out, ttl);
        }
        Request::Push { value, .. } => out.extend_from_slice(value),
        Request::Range { start, stop, .. } => {
            push_integer(out, start);
            out.push(b' ');
            push_integer(out, stop);
        }
        Request::Meet { count, wait, .. } => {
            push_integer(out, count.into());
            out.push(b' ');
            push_span(out, wait);
        }
        Request::Listen { group, .. } | Request::Unlisten { group, .. } => {
            out.extend_from_slice(group);
        }
        Request::Signal { payload, .. } => out.extend_from_slice(payload),
        Request::Position { .. }
        | Request::Observe { .. }
        | Request::Unobserve { .. }
        | Request::Count { .. }
        | Request::Fetch { .. }
        | Request::Delete { .. }
        | Request::Pop { .. }
        | Request::Length { .. }
        | Request::Watch { .. }
        | Request::Unwatch { .. } => {}
    }
}

fn push_range_argument(out: &mut Vec<u8>, request: &RangeRequest<'_>) {
    let mode = match request.ask {
        RangeAsk::Lock { mode, .. }
        | RangeAsk::Test { mode, .. }
        | RangeAsk::Cancel { mode, .. }
        | RangeAsk::Reclaim { mode, .. } => Some(mode),
        RangeAsk::Unlock { .. } => None,
    };
    if let Some(mode) = mode {
        out.extend_from_slice(answer::sharing_word(mode));
        out.push(b' ');
    }
    push_bytes(out, request.ask.span());
    if let RangeAsk::Lock { wait, .. } = request.ask {
        out.push(b' ');
        push_span(out, wait);
    }
    if !request.owner.is_empty() {
        out.push(b' ');
        out.extend_from_slice(request.owner);
    }
}

/// `start len`.
fn push_bytes(out: &mut Vec<u8>, span: Span) {
    push_number(out, span.start);
    out.push(b' ');
    push_number(out, span.len);
}

fn push_integer(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn push_lease(out: &mut Vec<u8>, lease: Option<Millis>) {
    if let Some(lease) = lease {
        if out.last() != Some(&b'\n') {
            out.push(b' '); // it is not the first field
        }
        push_span(out, lease);
    }
}

/// A word that is no token reads as none.
fn push_token(out: &mut Vec<u8>, token: Option<Token>) {
    match token {
        Some(token) => out.extend_from_slice(&token.hex()),
        None => out.push(b'-'),
    }
}
