//! The other end of the line protocol: requests become bytes, and lines of the daemon get a
//! meaning.
//!
//! The reverse of `command` and `answer`, for every client there is: it needs no daemon, only
//! bytes. A request is spelled only if the daemon would read just that request, so no key or value
//! can smuggle in a line of its own. An answer is read exactly as the daemon spells it; whatever
//! else comes is `None`, for a client that guesses is worse than one that complains. Never opens a
//! socket and never waits.

use std::error::Error;
use std::fmt;

use memchr::{memchr, memchr2};

use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ByteRange, Change, End, Event, GraceState, Loss, Mode, RangeAsk, RangeRequest, Request,
    Sharing, Span,
};
use crate::wire::answer::{self, push_span};
use crate::wire::args;
use crate::wire::command::{self, Command, Malformed};
use crate::wire::json::push_number;
use crate::wire::verbs::{LINE_BYTES_MAX, Success, Verb};

// ---- what is sent ----

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

/// Holds the lines against the daemon's own rules.
fn check(
    command: &Command<'_>,
    verb: Verb,
    key: &[u8],
    argument: &[u8],
) -> Result<(), Unspellable> {
    let has_line_end = |line| memchr2(b'\n', b'\r', line).is_some();
    if has_line_end(key) || has_line_end(argument) {
        return Err(Unspellable::LineEnd);
    }
    if key.len() > LINE_BYTES_MAX || argument.len() > verb.argument_bytes_max() {
        return Err(Unspellable::TooLong);
    }
    match command::parse(verb, key, argument) {
        Ok(read) if read == *command => Ok(()),
        Ok(_) => Err(Unspellable::Ambiguous),
        Err(malformed) => Err(Unspellable::Malformed(malformed)),
    }
}

/// The verb a command is said with, and its key line.
fn verb_and_key<'a>(command: &Command<'a>) -> (Verb, &'a [u8]) {
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
            return out.extend_from_slice(attach.secret.0);
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

// ---- what comes back ----

/// The first line of `bytes`, without its end, and how many bytes it took; `None` while its end is
/// still to come.
#[must_use]
pub fn split_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr(b'\n', bytes)?;
    Some((&bytes[..end], end + 1))
}

/// One line of the daemon. Answers come in the order of the requests, pushes anywhere between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// The answer to the oldest request that has none: to be read with [`Told::read`].
    Answer(&'a [u8]),
    /// News.
    Push(News<'a>),
}

impl<'a> Line<'a> {
    /// Tells answers and pushes apart; `None` is a push that cannot be read.
    #[must_use]
    pub fn read(line: &'a [u8]) -> Option<Self> {
        let Some((word, rest)) = split_word(line) else {
            return Some(Self::Answer(line));
        };
        let news = match word {
            b"sig" => {
                let (channel, payload) = split_word(rest)?;
                News::Signal { channel, payload }
            }
            b"watch" => {
                let (event, key) = split_word(rest)?;
                let event = answer::event(event)?;
                News::Watch { event, key }
            }
            b"leader" => {
                let (change, key) = split_word(rest)?;
                let change = answer::change(change)?;
                News::Leader { change, key }
            }
            b"lost" => {
                let (key, rest) = split_word(rest)?;
                let (number, word) = split_word(rest)?;
                let fence = fence(number)?;
                let why = answer::loss(word)?;
                News::Lost { key, fence, why }
            }
            b"rangelost" => {
                let (resource, rest) = split_word(rest)?;
                let (range, rest) = range(rest)?;
                let (word, owner) = word_and_owner(rest)?;
                let why = answer::loss(word)?;
                News::RangeLost {
                    resource,
                    range,
                    owner,
                    why,
                }
            }
            _ => return Some(Self::Answer(line)),
        };
        Some(Self::Push(news))
    }
}

/// Something the client did not ask for just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// Somebody signalled on a channel this client listens to.
    Signal {
        /// Where.
        channel: &'a [u8],
        /// What.
        payload: &'a [u8],
    },
    /// Something happened to a key this client watches.
    Watch {
        /// What happened.
        event: Event,
        /// To which key.
        key: &'a [u8],
    },
    /// The leader of a key this client observes has changed.
    Leader {
        /// How.
        change: Change,
        /// Of which key.
        key: &'a [u8],
    },
    /// A lease of this client ended without the client letting go.
    Lost {
        /// The name that was held.
        key: &'a [u8],
        /// The fence of the grant that ended.
        fence: Fence,
        /// Why it ended.
        why: Loss,
    },
    /// Bytes that this client had locked are not locked any more.
    RangeLost {
        /// The resource.
        resource: &'a [u8],
        /// Which bytes.
        range: ByteRange,
        /// For whom the client held them; empty for itself.
        owner: &'a [u8],
        /// Why.
        why: Loss,
    },
}

impl News<'_> {
    /// The word for what happened, such as `kset` or `failover`; a signal has none.
    #[must_use]
    pub fn word(&self) -> Option<&'static str> {
        let word = match *self {
            Self::Signal { .. } => return None,
            Self::Watch { event, .. } => answer::event_word(event),
            Self::Leader { change, .. } => answer::change_word(change),
            Self::Lost { why, .. } | Self::RangeLost { why, .. } => answer::loss_word(why),
        };
        str::from_utf8(word).ok()
    }
}

/// An answer as far as it can be read without knowing what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status<'a> {
    /// `ok`, and what stands behind it.
    Ok(&'a [u8]),
    /// `nil`.
    Nothing,
    /// Anything else, whole: `queued`, `timeout`, a refusal.
    Other(&'a [u8]),
}

impl<'a> Status<'a> {
    /// What kind of answer a line is.
    #[must_use]
    pub fn read(line: &'a [u8]) -> Self {
        match line {
            b"ok" => Self::Ok(b""),
            [b'o', b'k', b' ', rest @ ..] => Self::Ok(rest),
            b"nil" => Self::Nothing,
            _ => Self::Other(line),
        }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// It is held.
    Granted(Grant),
    /// It was free when it was queued for, and is held.
    Acquired(Grant),
    /// It was not free, and a place in the queue is taken.
    Queued,
    /// The lease has begun again.
    Renewed {
        /// How long it lasts.
        lease: Millis,
        /// The fence of the grant, where the daemon says it.
        fence: Option<Fence>,
    },
    /// It is done.
    Done,
    /// A counter, a length, a count, a place in the queue.
    Number(i64),
    /// A stored value.
    Value(&'a [u8]),
    /// A document.
    Json(&'a [u8]),
    /// What `hello` is answered.
    Hello {
        /// Of the daemon.
        version: &'a str,
        /// The number of this life of the daemon.
        epoch: u64,
        /// Every grant and renewal says its fence.
        fence: bool,
        /// Requests that would wait for themselves are refused.
        detects_deadlocks: bool,
        /// What this client is called.
        name: Option<&'a str>,
    },
    /// This connection acquires for its client from now on.
    Attached {
        /// The number of this life of the daemon.
        epoch: u64,
        /// Whether the client was not known before.
        is_new: bool,
    },
    /// There is none.
    Nothing,
    /// `kcas`: another value is there.
    Conflict,
    /// `rangetest`: nothing is in the way.
    RangeFree,
    /// `rangetest`: this is in the way.
    RangeHeld {
        /// Together with others, or alone.
        mode: Sharing,
        /// Which bytes.
        range: ByteRange,
        /// The id of the client, or `#` and the number of a connection that is its own client.
        client: &'a [u8],
        /// For whom the client holds it; empty for itself.
        owner: &'a [u8],
    },
    /// `rangecancel`: the wait has ended, and the lock will not be granted.
    Cancelled,
    /// `rangecancel`: it came too late, the bytes are held.
    AlreadyGranted,
    /// How far the grace period is.
    Grace(GraceState),
    /// The bytes are kept for those who held them before a restart, for so long at most, where the
    /// daemon says it.
    InGrace(Option<Millis>),
    /// The wait was over first.
    TimedOut,
    /// Not possible, and why: `error`, or a word that begins with `error_`.
    Refused(&'a [u8]),
}

/// Something that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What to show for a release or a renewal. Its fence is that of the grant.
    pub token: Token,
    /// How long it lasts without a renewal.
    pub lease: Millis,
    /// The fence once more in a field of its own, where the daemon says it.
    pub fence: Option<Fence>,
}

impl Grant {
    /// The grant that a whole line tells of, whatever was asked: for those who see only the lines.
    #[must_use]
    pub fn read(line: &[u8]) -> Option<Self> {
        match split_word(line)? {
            (b"ok" | b"acquired", rest) => grant(rest),
            _ => None,
        }
    }
}

impl<'a> Told<'a> {
    /// What `line` says in answer to `verb`. `None` if no daemon says that.
    #[must_use]
    pub fn read(verb: Verb, line: &'a [u8]) -> Option<Self> {
        let success = verb.row().success;
        match Status::read(line) {
            Status::Ok(b"") => {
                matches!(success, Success::Done | Success::Swapped).then_some(Self::Done)
            }
            Status::Ok(rest) => Self::read_success(success, rest),
            Status::Nothing => Some(Self::Nothing),
            Status::Other(b"queued") => Some(Self::Queued),
            Status::Other(b"cas_conflict") => Some(Self::Conflict),
            Status::Other(b"timeout") => Some(Self::TimedOut),
            Status::Other(b"error_grace") => Some(Self::InGrace(None)),
            Status::Other(line) => match split_word(line) {
                Some((b"acquired", rest)) if success == Success::Enqueued => {
                    grant(rest).map(Self::Acquired)
                }
                Some((b"error_grace", ms)) => millis(ms).map(|left| Self::InGrace(Some(left))),
                _ => is_refusal(line).then_some(Self::Refused(line)),
            },
        }
    }

    /// What stands behind `ok `.
    fn read_success(success: Success, rest: &'a [u8]) -> Option<Self> {
        match success {
            Success::Granted => grant(rest).map(Self::Granted),
            Success::Renewed => {
                let (lease, fence) = lease_and_fence(rest)?;
                Some(Self::Renewed { lease, fence })
            }
            Success::Count | Success::Place => integer(rest).map(Self::Number),
            Success::Value => (!rest.is_empty()).then_some(Self::Value(rest)),
            Success::Json => (!rest.is_empty()).then_some(Self::Json(rest)),
            Success::Welcome => hello(rest),
            Success::Attached => attached(rest),
            Success::Tested => tested(rest),
            Success::Cancelled => match rest {
                b"cancelled" => Some(Self::Cancelled),
                b"granted" => Some(Self::AlreadyGranted),
                _ => None,
            },
            Success::Grace => grace(rest).map(Self::Grace),
            Success::Enqueued | Success::Done | Success::Swapped => None,
        }
    }
}

fn is_refusal(line: &[u8]) -> bool {
    let is_word = |word: &[u8]| word.iter().all(|it| matches!(it, b'a'..=b'z' | b'_'));
    match line.strip_prefix(b"error") {
        Some([]) => true,
        Some([b'_', word @ ..]) => !word.is_empty() && is_word(word),
        _ => false,
    }
}

fn grant(text: &[u8]) -> Option<Grant> {
    let (token, rest) = split_word(text)?;
    let token = Token::parse(token).filter(|it| it.hex() == token)?;
    let (lease, fence) = lease_and_fence(rest)?;
    let agrees = fence.is_none_or(|fence| fence == token.fence);
    agrees.then_some(Grant {
        token,
        lease,
        fence,
    })
}

fn lease_and_fence(text: &[u8]) -> Option<(Millis, Option<Fence>)> {
    match split_word(text) {
        Some((lease, digits)) => Some((span(lease)?, Some(fence(digits)?))),
        None => Some((span(text)?, None)),
    }
}

/// Whole seconds without a unit, anything finer in `ms`.
fn span(text: &[u8]) -> Option<Millis> {
    let (digits, unit_ms) = match text.strip_suffix(b"ms") {
        Some(digits) => (digits, 1),
        None => (text, 1_000),
    };
    let ms = number(digits)?.checked_mul(unit_ms)?;
    let is_spelled_so = unit_ms == 1_000 || !ms.is_multiple_of(1_000);
    (is_spelled_so && ms <= Millis::MAX.0).then_some(Millis(ms))
}

fn fence(text: &[u8]) -> Option<Fence> {
    number(text).map(Fence)
}

/// A number as it is printed: digits only, no zeros in front.
fn number(text: &[u8]) -> Option<u64> {
    let value = str::from_utf8(text).ok()?.parse().ok()?;
    (itoa::Buffer::new().format::<u64>(value).as_bytes() == text).then_some(value)
}

/// The same, with a sign if it is below zero.
fn integer(text: &[u8]) -> Option<i64> {
    let value = args::integer(text).ok()?;
    (itoa::Buffer::new().format(value).as_bytes() == text).then_some(value)
}

fn attached(text: &[u8]) -> Option<Told<'_>> {
    let (epoch, word) = split_word(text)?;
    let is_new = match word {
        b"new" => true,
        b"resumed" => false,
        _ => return None,
    };
    let epoch = number(epoch)?;
    Some(Told::Attached { epoch, is_new })
}

fn tested(text: &[u8]) -> Option<Told<'_>> {
    if text == b"free" {
        return Some(Told::RangeFree);
    }
    let (word, rest) = split_word(text.strip_prefix(b"held ")?)?;
    let mode = answer::sharing(word)?;
    let (range, rest) = range(rest)?;
    let (client, owner) = word_and_owner(rest)?;
    (!client.is_empty()).then_some(Told::RangeHeld {
        mode,
        range,
        client,
        owner,
    })
}

fn grace(text: &[u8]) -> Option<GraceState> {
    let (left, rest) = split_word(text)?;
    let (expected, done) = split_word(rest)?;
    let count = |digits| u32::try_from(number(digits)?).ok();
    Some(GraceState {
        left: millis(left)?,
        expected: count(expected)?,
        done: count(done)?,
    })
}

/// `<start> <len>` and what follows the blank behind it.
fn range(text: &[u8]) -> Option<(ByteRange, &[u8])> {
    let (start, rest) = split_word(text)?;
    let (len, rest) = split_word(rest)?;
    let (start, len) = (number(start)?, number(len)?);
    let range = ByteRange::new(start, len)?;
    (range.len() == len).then_some((range, rest))
}

/// The last word of a line, and the owner behind it, if there is one.
fn word_and_owner(text: &[u8]) -> Option<(&[u8], &[u8])> {
    match split_word(text) {
        Some((_, b"")) => None,
        Some((word, owner)) => Some((word, owner)),
        None => Some((text, b"")),
    }
}

/// Milliseconds without a unit.
fn millis(text: &[u8]) -> Option<Millis> {
    number(text).map(Millis).filter(|it| *it <= Millis::MAX)
}

/// Options that are not known here are left to those who know them.
fn hello(text: &[u8]) -> Option<Told<'_>> {
    let mut words = str::from_utf8(text).ok()?.split(' ');
    let version = words.next()?.strip_prefix("latchd/")?;
    let (mut epoch, mut fence, mut name) = (None, false, None);
    let mut detects_deadlocks = false;
    for word in words {
        match word.split_once('=')? {
            ("epoch", digits) => epoch = number(digits.as_bytes()),
            ("fence", flag) => fence = flag == "1",
            ("deadlock", flag) => detects_deadlocks = flag == "1",
            ("name", text) => name = Some(text),
            _ => {}
        }
    }
    Some(Told::Hello {
        version,
        epoch: epoch?,
        fence,
        detects_deadlocks,
        name,
    })
}

/// The first word and what follows the blank behind it.
fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b' ', text)?;
    Some((&text[..end], &text[end + 1..]))
}
