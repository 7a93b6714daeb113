//! What a frame asks for: a verb, a key and an argument become a [`Command`].
//!
//! One match over all verbs, one function for each shape of argument. Never sees a CR or LF,
//! borrows everything it hands on, and checks no more than the bytes can tell: whether a key exists
//! or a pattern is one, the engine says.

use std::fmt;

use memchr::memchr2;

use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ADAPTER_CHARS_MAX, Attach, End, Mode, RANGE_OWNER_BYTES_MAX, RangeAsk, RangeCursor,
    RangeRequest, RangesOf, Request, SECRET_BYTES_MAX, Secret, Sharing, Span,
};
use crate::wire::answer;
use crate::wire::args::{self, Fields};
use crate::wire::verbs::{VALUE_BYTES_MAX, Verb};

/// Longest name a client may give itself.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest `sig <channel> <payload>` line without its LF: what dflockd's clients still read. A
/// payload that would exceed it is refused, since nobody could hear it.
const SIGNAL_BYTES_MAX: usize = VALUE_BYTES_MAX;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Something for the lock table.
    Engine(Request<'a>),
    /// `auth`: here is the secret. Blanks around it are gone; it may be empty.
    Auth {
        /// What the client showed.
        secret: &'a [u8],
    },
    /// `hello`: this client speaks latchd's dialect.
    Hello(Hello<'a>),
    /// `ping`: are you there?
    Ping,
    /// `stats`: what is held and waited for?
    Stats,
    /// `waits`: who waits for whom?
    Waits,
    /// `who`: who holds this key and who waits for it?
    Who {
        /// The name asked about.
        key: &'a [u8],
    },
    /// `attach`: what this connection acquires belongs to a client.
    Attach(Attach<'a>),
    /// `detach`: forget this client.
    Detach {
        /// Its id.
        id: &'a str,
        /// What the sender showed.
        secret: Secret<'a>,
    },
    /// `break`: end grants of this key.
    Break {
        /// The locked name.
        key: &'a [u8],
        /// The fence of the one that is meant; none for all of them.
        fence: Option<Fence>,
    },
    /// `break … range`: end range locks of this resource.
    BreakRanges {
        /// The name of the resource.
        resource: &'a [u8],
        /// Those that overlap these bytes; none for all of them.
        span: Option<Span>,
    },
    /// `break … range client`: end all range locks of this client.
    BreakRangesOf {
        /// Its id, or `#` and the number of a connection.
        client: &'a [u8],
    },
    /// `rangelock`, `rangeunlock`, `rangetest`, `rangecancel` or `rangereclaim`.
    Range(RangeRequest<'a>),
    /// `rangelist`: who holds bytes of this resource and who waits for some?
    RangeList {
        /// The name of the resource.
        resource: &'a [u8],
    },
    /// `rangelist` with `client` or `owner`: what has this one locked of all resources?
    RangeListOf {
        /// Whose range locks.
        of: RangesOf<'a>,
        /// Where the page before this one has ended.
        after: RangeCursor,
    },
    /// `reclaimdone`: this client has back what it wants of what it held before a restart.
    ReclaimDone {
        /// Its id.
        id: &'a str,
    },
    /// `grace`: how far is the grace period?
    Grace {
        /// Whether it is to end.
        ends: bool,
    },
}

// A command is made for every request, so no rare one may make it much larger.
const _: () = assert!(size_of::<Command<'_>>() <= size_of::<Request<'_>>() + 8);

/// One whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The verb, if there is one; known even when the rest is malformed.
    pub verb: Option<Verb>,
    /// What is asked; a malformed request is answered `error`, and the connection stays open.
    pub command: Result<Command<'a>, Malformed>,
    /// Bytes of input this request took.
    pub used: usize,
}

impl Asked<'_> {
    /// Whether the answer takes a walk over keys, a queue or a list, and may be as long as those
    /// are.
    #[must_use]
    pub fn takes_a_walk(&self) -> bool {
        self.command.is_ok() && self.verb.is_some_and(|verb| verb.row().takes_a_walk)
    }

    /// Whether it is to be told to all who listen.
    #[must_use]
    pub fn is_signal(&self) -> bool {
        matches!(self.command, Ok(Command::Engine(Request::Signal { .. })))
    }

    /// Whether the answer may be much longer than the request: it takes a walk, or it is a value.
    #[must_use]
    pub fn has_long_answer(&self) -> bool {
        let is_value =
            matches!(&self.command, Ok(Command::Engine(request)) if is_told_a_value(request));
        is_value || self.takes_a_walk()
    }
}

/// Whether the answer to a request is a value, which may be long.
pub(super) const fn is_told_a_value(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Fetch { .. } | Request::Pop { .. } | Request::AwaitPop { .. }
    )
}

/// A secret is never printed, not even by accident in a log line.
impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(request) => request.fmt(f),
            Self::Auth { secret } => write!(f, "Auth({} bytes)", secret.len()),
            Self::Hello(hello) => hello.fmt(f),
            Self::Ping => f.write_str("Ping"),
            Self::Stats => f.write_str("Stats"),
            Self::Waits => f.write_str("Waits"),
            Self::Who { key } => write!(f, "Who(\"{}\")", key.escape_ascii()),
            Self::Attach(attach) => attach.fmt(f),
            Self::Detach { id, .. } => write!(f, "Detach({id:?})"),
            Self::Break { key, fence } => write!(f, "Break(\"{}\", {fence:?})", key.escape_ascii()),
            Self::BreakRanges { resource, span } => {
                write!(f, "BreakRanges(\"{}\", {span:?})", resource.escape_ascii())
            }
            Self::Range(request) => request.fmt(f),
            Self::BreakRangesOf { client } => {
                write!(f, "BreakRangesOf(\"{}\")", client.escape_ascii())
            }
            Self::RangeListOf { of, after } => {
                let name = |name: Option<&[u8]>| name.map(|it| it.escape_ascii().to_string());
                let (client, owner) = (name(of.client), name(of.owner));
                write!(f, "RangeListOf({client:?}, {owner:?}, {after})")
            }
            Self::RangeList { resource } => {
                write!(f, "RangeList(\"{}\")", resource.escape_ascii())
            }
            Self::ReclaimDone { id } => write!(f, "ReclaimDone({id:?})"),
            Self::Grace { ends } => write!(f, "Grace {{ ends: {ends} }}"),
        }
    }
}

/// What a client wants of its connection. An option not named is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// `fence=1`: put the fence on every grant and renewal; `fence=0`: no longer.
    pub fence: Option<bool>,
    /// `deadlock=1`: refuse requests that would wait for themselves; `deadlock=0`: no longer.
    pub deadlock: Option<bool>,
    /// `keep=1`: what is granted from now on outlives the connection; `keep=0`: no longer.
    pub keep: Option<bool>,
    /// `name=<who>`: what `who` shows; 1 to [`NAME_BYTES_MAX`] bytes of printable ASCII.
    pub name: Option<&'a [u8]>,
}

/// Which rule a frame broke. The client only ever reads `error`; this is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The command line is not a verb.
    UnknownCommand,
    /// Not an integer, or one out of range; a lease or a time to live below zero.
    BadNumber,
    /// The key is empty or holds a space or a tab; a channel to signal on holds a wildcard; the id of a
    /// client holds what cannot be seen, or begins with `#`.
    BadKey,
    /// A wait below zero.
    NegativeTimeout,
    /// A release or a resignation without a token.
    EmptyToken,
    /// Too few fields or too many; a value that is empty, or too long to be told; an owner that is too
    /// long; a word or an option that does not exist or has no such value.
    ArgumentShape,
    /// A lease of zero.
    LeaseNotPositive,
    /// A number of slots, or of those who must come, of zero or below.
    LimitNotPositive,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownCommand => "there is no such command",
            Self::BadNumber => "a number is none, or is out of range",
            Self::BadKey => "the key is empty, holds a blank, or is a channel with a wildcard",
            Self::NegativeTimeout => "a wait is below zero",
            Self::EmptyToken => "the token is empty",
            Self::ArgumentShape => "the argument has too few or too many fields, or an empty one",
            Self::LeaseNotPositive => "a lease is zero",
            Self::LimitNotPositive => "a number of slots or clients is not above zero",
        })
    }
}

impl Malformed {
    /// The reference's number for it. A negative wait is 4, as in the era with all primitives;
    /// earlier servers logged 6.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::UnknownCommand => 3,
            Self::BadNumber | Self::NegativeTimeout => 4,
            Self::BadKey => 5,
            Self::EmptyToken => 7,
            Self::ArgumentShape => 8,
            Self::LeaseNotPositive => 9,
            Self::LimitNotPositive => 13,
        }
    }
}

/// The one match over verbs. Rules are checked in dflockd's order: key, number of fields,
/// then each field from the left.
pub(super) fn parse<'a>(
    verb: Verb,
    key: &'a [u8],
    arg: &'a [u8],
) -> Result<Command<'a>, Malformed> {
    if !verb.row().ignores_key && memchr2(b' ', b'\t', key).is_some() {
        return Err(Malformed::BadKey);
    }
    parse_plain(verb, key, arg)
}

/// The same, of a key that is known to hold no blank.
#[inline]
pub(super) fn parse_plain<'a>(
    verb: Verb,
    key: &'a [u8],
    arg: &'a [u8],
) -> Result<Command<'a>, Malformed> {
    const LOCK: Mode = Mode::Slot { limit: 1 };
    if key.is_empty() && !verb.row().ignores_key {
        return Err(Malformed::BadKey);
    }
    let request = match verb {
        Verb::Lock => acquire(key, LOCK, arg)?,
        Verb::ReadLock => acquire(key, Mode::Read, arg)?,
        Verb::WriteLock => acquire(key, Mode::Write, arg)?,
        Verb::SemLock => acquire_slot(key, arg)?,
        Verb::Enqueue => enqueue(key, LOCK, arg)?,
        Verb::ReadEnqueue => enqueue(key, Mode::Read, arg)?,
        Verb::WriteEnqueue => enqueue(key, Mode::Write, arg)?,
        Verb::SemEnqueue => enqueue_slot(key, arg)?,
        Verb::Wait | Verb::SemWait | Verb::ReadWait | Verb::WriteWait => wait(key, arg)?,
        Verb::Release | Verb::SemRelease | Verb::ReadRelease | Verb::WriteRelease => {
            release(key, arg)?
        }
        Verb::Renew | Verb::SemRenew | Verb::ReadRenew | Verb::WriteRenew => renew(key, arg)?,
        Verb::Elect => acquire(key, Mode::Lead, arg)?,
        Verb::Resign => resign(key, arg)?,
        Verb::Observe => Request::Observe { key },
        Verb::Unobserve => Request::Unobserve { key },
        Verb::Incr => count_up(key, arg)?,
        Verb::Decr => count_down(key, arg)?,
        Verb::Get => Request::Count { key },
        Verb::Cset => set_count(key, arg)?,
        Verb::Kset => put(key, arg)?,
        Verb::Kget => Request::Fetch { key },
        Verb::Kdel => Request::Delete { key },
        Verb::Kcas => swap(key, arg)?,
        Verb::Lpush => push(key, End::Left, arg)?,
        Verb::Rpush => push(key, End::Right, arg)?,
        Verb::Lpop => pop(key, End::Left),
        Verb::Rpop => pop(key, End::Right),
        Verb::Llen => Request::Length { key },
        Verb::Lrange => range(key, arg)?,
        Verb::Blpop => await_pop(key, End::Left, arg)?,
        Verb::Brpop => await_pop(key, End::Right, arg)?,
        Verb::Bwait => meet(key, arg)?,
        Verb::Listen => {
            let (pattern, group) = (key, args::trim(arg));
            Request::Listen { pattern, group }
        }
        Verb::Unlisten => {
            let (pattern, group) = (key, args::trim(arg));
            Request::Unlisten { pattern, group }
        }
        Verb::Signal => signal(key, arg)?,
        Verb::Watch => Request::Watch { pattern: key },
        Verb::Unwatch => Request::Unwatch { pattern: key },
        Verb::Pos => Request::Position { key },
        Verb::Reclaim => reclaim(key, arg)?,
        Verb::Who => return Ok(Command::Who { key }),
        Verb::Attach => return attach(key, arg).map(Command::Attach),
        Verb::Detach => return detach(key, arg),
        Verb::Break => return break_grants(key, arg),
        Verb::RangeLock
        | Verb::RangeUnlock
        | Verb::RangeTest
        | Verb::RangeCancel
        | Verb::RangeReclaim => return about_range(verb, key, arg),
        Verb::RangeList => return range_list(key, arg),
        Verb::ReclaimDone => return client_id(key).map(|id| Command::ReclaimDone { id }),
        Verb::Grace => return grace(arg),
        Verb::Stats => return Ok(Command::Stats),
        Verb::Waits => return Ok(Command::Waits),
        Verb::Ping | Verb::Barrier => return Ok(Command::Ping),
        Verb::Hello => return hello(arg).map(Command::Hello),
        Verb::Auth => {
            let secret = args::trim(arg);
            return Ok(Command::Auth { secret });
        }
    };
    Ok(Command::Engine(request))
}

fn acquire<'a>(key: &'a [u8], mode: Mode, arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (wait, lease) = args::one_or_two(arg)?;
    Ok(Request::Acquire {
        key,
        mode,
        wait: args::wait(wait)?,
        lease: lease.map(args::lease).transpose()?,
    })
}

fn acquire_slot<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let mut fields = Fields(arg);
    let (Some(wait), Some(limit), lease, None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(Malformed::ArgumentShape);
    };
    let wait = args::wait(wait)?;
    let limit = args::limit(limit)?;
    Ok(Request::Acquire {
        key,
        mode: Mode::Slot { limit },
        wait,
        lease: lease.map(args::lease).transpose()?,
    })
}

/// The whole line is one number: `30 junk` is a bad one, not a lease of 30.
fn enqueue<'a>(key: &'a [u8], mode: Mode, arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let lease = match args::trim(arg) {
        b"" => None,
        field => Some(args::lease(field)?),
    };
    Ok(Request::Enqueue { key, mode, lease })
}

fn enqueue_slot<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (limit, lease) = args::one_or_two(arg)?;
    let limit = args::limit(limit)?;
    Ok(Request::Enqueue {
        key,
        mode: Mode::Slot { limit },
        lease: lease.map(args::lease).transpose()?,
    })
}

/// The whole line is one number, as with [`enqueue`].
fn wait<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let wait = args::wait(args::only(arg)?)?;
    Ok(Request::Wait { key, wait })
}

fn release<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let token = token(arg)?;
    Ok(Request::Release { key, token })
}

fn resign<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let token = token(arg)?;
    Ok(Request::Resign { key, token })
}

/// The whole line is the token: blanks inside belong to it, and make it one nobody was granted.
fn token(arg: &[u8]) -> Result<Option<Token>, Malformed> {
    match args::trim(arg) {
        b"" => Err(Malformed::EmptyToken),
        token => Ok(Token::parse(token)),
    }
}

fn renew<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (token, lease) = args::one_or_two(arg)?;
    Ok(Request::Renew {
        key,
        token: Token::parse(token),
        lease: lease.map(args::lease).transpose()?,
    })
}

fn reclaim<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (token, lease) = args::one_or_two(arg)?;
    Ok(Request::Reclaim {
        key,
        token: Token::parse(token),
        lease: lease.map(args::lease).transpose()?,
    })
}

fn count_up<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let delta = args::integer(args::only(arg)?)?;
    let down = false;
    Ok(Request::Add { key, delta, down })
}

/// The smallest number of all has no negation, so nobody can count down by it.
fn count_down<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let delta = args::integer(args::only(arg)?)?;
    let delta = delta.checked_neg().ok_or(Malformed::BadNumber)?;
    let down = true;
    Ok(Request::Add { key, delta, down })
}

fn set_count<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let value = args::integer(args::only(arg)?)?;
    Ok(Request::SetCount { key, value })
}

/// Only a tab ends the value: a number at its end belongs to it, and so does every blank.
fn put<'a>(key: &'a [u8], arg: &'a [u8]) -> Result<Request<'a>, Malformed> {
    let mut fields = arg.split(|&byte| byte == b'\t');
    let (Some(value @ [_, ..]), ttl, None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(Malformed::ArgumentShape);
    };
    let ttl = ttl.map_or(Ok(Millis::ZERO), args::ttl)?;
    Ok(Request::Put { key, value, ttl })
}

/// Always two tabs, so that an empty old value and an empty time to live can be seen as such.
fn swap<'a>(key: &'a [u8], arg: &'a [u8]) -> Result<Request<'a>, Malformed> {
    let mut fields = arg.split(|&byte| byte == b'\t');
    let (Some(old), Some(new @ [_, ..]), Some(ttl), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(Malformed::ArgumentShape);
    };
    let ttl = match ttl {
        b"" => Millis::ZERO,
        ttl => args::ttl(ttl)?,
    };
    Ok(Request::Swap { key, old, new, ttl })
}

/// The whole line is the value, tabs and blanks and all.
fn push<'a>(key: &'a [u8], end: End, value: &'a [u8]) -> Result<Request<'a>, Malformed> {
    if value.is_empty() {
        return Err(Malformed::ArgumentShape);
    }
    Ok(Request::Push { key, value, end })
}

fn pop(key: &[u8], end: End) -> Request<'_> {
    Request::Pop { key, end }
}

fn await_pop<'a>(key: &'a [u8], end: End, arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let wait = args::wait(args::only(arg)?)?;
    Ok(Request::AwaitPop { key, end, wait })
}

fn range<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (start, stop) = args::two(arg)?;
    let (start, stop) = (args::integer(start)?, args::integer(stop)?);
    let form = answer::LIST_FORM;
    Ok(Request::Range {
        key,
        start,
        stop,
        form,
    })
}

fn meet<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    let (count, wait) = args::two(arg)?;
    let (count, wait) = (args::limit(count)?, args::wait(wait)?);
    Ok(Request::Meet { key, count, wait })
}

/// The whole line is the payload, as long as there is something to hear in it.
fn signal<'a>(channel: &'a [u8], payload: &'a [u8]) -> Result<Request<'a>, Malformed> {
    let push_bytes = b"sig ".len() + channel.len() + b" ".len() + payload.len();
    if args::trim(payload).is_empty() || push_bytes > SIGNAL_BYTES_MAX {
        return Err(Malformed::ArgumentShape);
    }
    if memchr2(b'*', b'>', channel).is_some() {
        return Err(Malformed::BadKey);
    }
    Ok(Request::Signal { channel, payload })
}

fn attach<'a>(key: &'a [u8], arg: &'a [u8]) -> Result<Attach<'a>, Malformed> {
    let id = client_id(key)?;
    let (ttl, secret, adapter) = args::two_or_three(arg)?;
    Ok(Attach {
        id,
        adapter: adapter.map(adapter_name).transpose()?,
        ttl: args::wait(ttl)?,
        secret: client_secret(secret)?,
    })
}

/// `adapter=` and a word of text that can be seen.
fn adapter_name(field: &[u8]) -> Result<&str, Malformed> {
    let word = field.strip_prefix(b"adapter=");
    let word = word.and_then(|it| str::from_utf8(it).ok());
    let word = word.filter(|it| is_adapter(it));
    word.ok_or(Malformed::ArgumentShape)
}

/// Whether a client can name its adapter like this.
pub(in crate::wire) fn is_adapter(word: &str) -> bool {
    let is_seen = |it: char| !it.is_whitespace() && !it.is_control();
    (1..=ADAPTER_CHARS_MAX).contains(&word.chars().count()) && word.chars().all(is_seen)
}

fn detach<'a>(key: &'a [u8], arg: &'a [u8]) -> Result<Command<'a>, Malformed> {
    let id = client_id(key)?;
    let (secret, None) = args::one_or_two(arg)? else {
        return Err(Malformed::ArgumentShape);
    };
    let secret = client_secret(secret)?;
    Ok(Command::Detach { id, secret })
}

/// People read ids, so they are text that can be seen. What begins with `#` is a connection that has
/// none.
pub(super) fn client_id(key: &[u8]) -> Result<&str, Malformed> {
    let id = str::from_utf8(key).map_err(|_| Malformed::BadKey)?;
    let is_seen = |it: char| !it.is_whitespace() && !it.is_control();
    match id.chars().all(is_seen) && !id.starts_with('#') {
        true => Ok(id),
        false => Err(Malformed::BadKey),
    }
}

fn client_secret(field: &[u8]) -> Result<Secret<'_>, Malformed> {
    match field.len() <= SECRET_BYTES_MAX {
        true => Ok(Secret(field)),
        false => Err(Malformed::ArgumentShape),
    }
}

fn break_grants<'a>(key: &'a [u8], arg: &[u8]) -> Result<Command<'a>, Malformed> {
    let mut fields = Fields(arg);
    if fields.next() == Some(b"range") {
        return break_ranges(key, fields);
    }
    let fence = match args::only(arg)? {
        b"*" => None,
        field => {
            let fence = u64::try_from(args::integer(field)?);
            Some(Fence(fence.map_err(|_| Malformed::BadNumber)?))
        }
    };
    Ok(Command::Break { key, fence })
}

fn break_ranges<'a>(resource: &'a [u8], mut fields: Fields<'_>) -> Result<Command<'a>, Malformed> {
    let span = match (fields.next(), fields.next(), fields.next()) {
        (Some(b"client"), None, None) => {
            let client = resource;
            return Ok(Command::BreakRangesOf { client });
        }
        (Some(b"*"), None, None) => None,
        (Some(start), Some(len), None) => Some(span(start, len)?),
        _ => return Err(Malformed::ArgumentShape),
    };
    Ok(Command::BreakRanges { resource, span })
}

/// A verb about a byte range. Apart, so that the verbs that are read over and over pay nothing for it.
#[cold]
#[inline(never)]
fn about_range<'a>(
    verb: Verb,
    resource: &'a [u8],
    arg: &'a [u8],
) -> Result<Command<'a>, Malformed> {
    let (has_mode, has_wait) = (verb != Verb::RangeUnlock, verb == Verb::RangeLock);
    let mut fields = Fields(arg);
    let mut next = |is_there: bool| match is_there {
        true => fields.next().ok_or(Malformed::ArgumentShape).map(Some),
        false => Ok(None),
    };
    let mode = next(has_mode)?;
    let (Some(start), Some(len)) = (next(true)?, next(true)?) else {
        return Err(Malformed::ArgumentShape);
    };
    let wait = next(has_wait)?;
    let owner = range_owner(fields)?;
    let mode = match mode {
        Some(word) => answer::sharing(word).ok_or(Malformed::ArgumentShape)?,
        None => Sharing::Exclusive, // which nobody looks at
    };
    let span = span(start, len)?;
    let wait = wait.map_or(Ok(Millis::ZERO), args::wait)?;
    let ask = match verb {
        Verb::RangeLock => RangeAsk::Lock { mode, span, wait },
        Verb::RangeTest => RangeAsk::Test { mode, span },
        Verb::RangeCancel => RangeAsk::Cancel { mode, span },
        Verb::RangeReclaim => RangeAsk::Reclaim { mode, span },
        _ => RangeAsk::Unlock { span },
    };
    Ok(Command::Range(RangeRequest {
        resource,
        owner,
        ask,
    }))
}

/// Of a resource, whatever stands behind its name, or of a client or an owner.
fn range_list<'a>(key: &'a [u8], arg: &'a [u8]) -> Result<Command<'a>, Malformed> {
    let mut fields = Fields(arg);
    let of = match fields.next() {
        Some(b"client") => RangesOf {
            client: Some(key),
            owner: None,
        },
        Some(b"owner") => RangesOf {
            client: None,
            owner: Some(key),
        },
        _ => return Ok(Command::RangeList { resource: key }),
    };
    let after = match fields.next() {
        Some(text) => RangeCursor::parse(text).ok_or(Malformed::BadNumber)?,
        None => RangeCursor::default(),
    };
    let owner = fields.next();
    if fields.next().is_some() || (owner.is_some() && of.client.is_none()) {
        return Err(Malformed::ArgumentShape);
    }
    let owner = of.owner.or(owner);
    Ok(Command::RangeListOf {
        of: RangesOf { owner, ..of },
        after,
    })
}

/// Whether these bytes exist, the engine says.
fn span(start: &[u8], len: &[u8]) -> Result<Span, Malformed> {
    let (start, len) = (args::unsigned(start)?, args::unsigned(len)?);
    Ok(Span { start, len })
}

/// The last fields of a verb about a range: an owner, a flavour, both or none. There is one flavour, and
/// whoever asks for another must not be given this one.
fn range_owner(mut fields: Fields<'_>) -> Result<&[u8], Malformed> {
    const OPTION: &[u8] = b"flavor=";
    let (owner, flavor) = match (fields.next(), fields.next(), fields.next()) {
        (Some(option), None, None) if option.starts_with(OPTION) => (&b""[..], Some(option)),
        (owner, flavor, None) => (owner.unwrap_or_default(), flavor),
        _ => return Err(Malformed::ArgumentShape),
    };
    let is_owner = owner.len() <= RANGE_OWNER_BYTES_MAX && !owner.starts_with(OPTION);
    match is_owner && flavor.is_none_or(|it| it == b"flavor=posix") {
        true => Ok(owner),
        false => Err(Malformed::ArgumentShape),
    }
}

fn grace<'a>(arg: &[u8]) -> Result<Command<'a>, Malformed> {
    match args::trim(arg) {
        b"" => Ok(Command::Grace { ends: false }),
        b"end" => Ok(Command::Grace { ends: true }),
        _ => Err(Malformed::ArgumentShape),
    }
}

/// Options may come in any order, each at most once; none at all just asks who we are.
fn hello(arg: &[u8]) -> Result<Hello<'_>, Malformed> {
    let mut hello = Hello::default();
    for option in Fields(arg) {
        if let Some(value) = option.strip_prefix(b"fence=") {
            switch(&mut hello.fence, value)?;
        } else if let Some(value) = option.strip_prefix(b"deadlock=") {
            switch(&mut hello.deadlock, value)?;
        } else if let Some(value) = option.strip_prefix(b"keep=") {
            switch(&mut hello.keep, value)?;
        } else if let Some(name) = option.strip_prefix(b"name=") {
            let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
            if !fits || !name.iter().all(u8::is_ascii_graphic) {
                return Err(Malformed::ArgumentShape);
            }
            if hello.name.replace(name).is_some() {
                return Err(Malformed::ArgumentShape);
            }
        } else {
            return Err(Malformed::ArgumentShape);
        }
    }
    Ok(hello)
}

/// Sets an option that is 0 or 1, and was not set before.
fn switch(option: &mut Option<bool>, value: &[u8]) -> Result<(), Malformed> {
    let on = match value {
        b"0" => false,
        b"1" => true,
        _ => return Err(Malformed::ArgumentShape),
    };
    match option.replace(on) {
        None => Ok(()),
        Some(_) => Err(Malformed::ArgumentShape),
    }
}
