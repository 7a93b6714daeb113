//! What a client reads: a line is an answer or a push, and an answer means something once it is known
//! what was asked.
//!
//! Read exactly as `answer` spells it. Never sends anything.

use memchr::memchr;

use crate::base::{Fence, Millis, Token};
use crate::engine::types::{ByteRange, Change, Event, GraceState, Loss, Sharing};
use crate::wire::answer;
use crate::wire::args;
use crate::wire::verbs::{Success, Verb};

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
        /// What this connection is granted outlives it.
        keeps: bool,
        /// How long a leader's lease is, if the daemon is a member of a cluster.
        cluster_ttl: Option<Millis>,
        /// What this client is called.
        name: Option<&'a str>,
    },
    /// This connection acquires for its client from now on.
    Attached {
        /// The number of this life of the daemon.
        epoch: u64,
        /// Whether the client was not known before.
        is_new: bool,
        /// For how long range locks that the client held before a restart are kept for it, if there are any
        /// and the connection has said `hello`.
        reclaim: Option<Millis>,
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
    /// Another member of a cluster decides, and this is where it is (`host:port`), if it is known.
    NotLeader(Option<&'a [u8]>),
    /// Not possible, and why: `error`, or a word that begins with `error_`.
    Refused(&'a [u8]),
}

/// Longest address that a server may send somebody to.
const ADDRESS_BYTES_MAX: usize = 300;

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
            Status::Other(b"error_not_leader") => Some(Self::NotLeader(None)),
            Status::Other(line) => match split_word(line) {
                Some((b"acquired", rest)) if success == Success::Enqueued => {
                    grant(rest).map(Self::Acquired)
                }
                Some((b"error_grace", ms)) => millis(ms).map(|left| Self::InGrace(Some(left))),
                Some((b"error_not_leader", address)) => {
                    is_address(address).then_some(Self::NotLeader(Some(address)))
                }
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

/// One word that people can read, with a port at its end.
fn is_address(text: &[u8]) -> bool {
    let digits = text.iter().rev().take_while(|it| it.is_ascii_digit());
    let digits = digits.count();
    let host = text[..text.len() - digits].strip_suffix(b":");
    text.len() <= ADDRESS_BYTES_MAX
        && matches!(digits, 1..=5)
        && text.iter().all(u8::is_ascii_graphic)
        && host.is_some_and(|host| !host.is_empty())
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
    let (epoch, rest) = split_word(text)?;
    let (word, left) = match split_word(rest) {
        Some((word, left)) => (word, Some(millis(left)?)),
        None => (rest, None),
    };
    let is_new = match word {
        b"new" => true,
        b"resumed" => false,
        _ => return None,
    };
    let epoch = number(epoch)?;
    let reclaim = left;
    Some(Told::Attached {
        epoch,
        is_new,
        reclaim,
    })
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
    let (mut detects_deadlocks, mut keeps, mut cluster_ttl) = (false, false, None);
    for word in words {
        match word.split_once('=')? {
            ("epoch", digits) => epoch = number(digits.as_bytes()),
            ("fence", flag) => fence = flag == "1",
            ("deadlock", flag) => detects_deadlocks = flag == "1",
            ("keep", flag) => keeps = flag == "1",
            ("cluster_ttl", digits) => cluster_ttl = millis(digits.as_bytes()),
            ("name", text) => name = Some(text),
            _ => {}
        }
    }
    Some(Told::Hello {
        version,
        epoch: epoch?,
        fence,
        detects_deadlocks,
        keeps,
        cluster_ttl,
        name,
    })
}

/// The first word and what follows the blank behind it.
fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b' ', text)?;
    Some((&text[..end], &text[end + 1..]))
}
