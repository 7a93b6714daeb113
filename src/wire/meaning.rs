//! What a frame asks for: a verb, a key and an argument become a [`Command`].
//!
//! One match over all verbs, one function for each shape of argument. Never sees a CR or LF, borrows
//! everything it hands on, and checks no more than the bytes can tell: whether a key exists or a
//! pattern is one, the engine says.

use memchr::memchr2;

use crate::base::Token;
use crate::engine::types::{Mode, Request};
use crate::wire::args::{self, Fields};
use crate::wire::line::{Command, Hello, Malformed, NAME_BYTES_MAX};
use crate::wire::verbs::Verb;

/// The one match over verbs. Rules are checked in the reference's order: key, number of fields,
/// then each field from the left.
pub(super) fn of<'a>(verb: Verb, key: &'a [u8], arg: &'a [u8]) -> Result<Command<'a>, Malformed> {
    const LOCK: Mode = Mode::Slot { limit: 1 };
    if !verb.row().ignores_key && (key.is_empty() || memchr2(b' ', b'\t', key).is_some()) {
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
        Verb::Pos => Request::Position { key },
        Verb::Who => return Ok(Command::Who { key }),
        Verb::Stats => return Ok(Command::Stats),
        Verb::Ping => return Ok(Command::Ping),
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

/// The whole line is one number: `30 junk` is a bad one, not a lease of 30 (must-not 55).
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
    match args::trim(arg) {
        b"" => Err(Malformed::ArgumentShape),
        field => Ok(Request::Wait {
            key,
            wait: args::wait(field)?,
        }),
    }
}

/// The whole line is the token: blanks inside belong to it, and make it one nobody was granted.
fn release<'a>(key: &'a [u8], arg: &[u8]) -> Result<Request<'a>, Malformed> {
    match args::trim(arg) {
        b"" => Err(Malformed::EmptyToken),
        token => Ok(Request::Release {
            key,
            token: Token::parse(token),
        }),
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

/// Options may come in any order, each at most once; none at all just asks who we are.
fn hello(arg: &[u8]) -> Result<Hello<'_>, Malformed> {
    let mut hello = Hello::default();
    for option in Fields(arg) {
        if let Some(value) = option.strip_prefix(b"fence=") {
            let fence = match value {
                b"0" => false,
                b"1" => true,
                _ => return Err(Malformed::ArgumentShape),
            };
            if hello.fence.replace(fence).is_some() {
                return Err(Malformed::ArgumentShape);
            }
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
