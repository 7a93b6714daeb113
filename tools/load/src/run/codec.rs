//! Requests to bytes and bytes to answers, in latchd's lines and in Redis' RESP.
//!
//! The only file that knows how a request is spelled and what an answer looks like, but for HTTP, which
//! is in `http`; latchd's lines are those of `latchd::wire::client`. Keys and tokens have fixed lengths, so that the ceiling can
//! answer by size alone. Pure: no socket, no clock, no state.

use std::fmt;
use std::io::Write;

use latchd::base::Token;
use latchd::wire::client::{self, News, Status};
use latchd::wire::verbs::Verb;

use crate::run::http;
use crate::run::spec::LEASE_S;
use crate::servers::target::{Protocol, Target};

/// Length of every key: `lock:7f3a:00000042`.
pub(crate) const KEY_BYTES: usize = 18;

/// A key of this run.
pub(crate) type Key = [u8; KEY_BYTES];

/// A lock's token: 32 hexadecimal digits, the first half of which is the fence in latchd.
pub(crate) type LockToken = [u8; 32];

/// For requests that are about no key.
pub(crate) const NO_KEY: Key = [b'_'; KEY_BYTES];

/// For locks whose token the server makes, or nobody uses again.
pub(crate) const NO_TOKEN: LockToken = [b'0'; 32];

/// Longest answer that is accepted; a server that sends more without an end is wrong.
pub(crate) const ANSWER_BYTES_MAX: usize = 4096;

/// What a server that is started here with a secret is told.
pub(crate) const SECRET: &str = "open-sesame";

/// Redis: deletes a lock only if the token is still ours.
const SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// One request.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    /// Redis needs a token of ours, latchd makes its own.
    Lock(&'a LockToken),
    /// A lock whose lease ends after so many milliseconds.
    LockFor(&'a LockToken, u64),
    Unlock(&'a LockToken),
    Renew(&'a LockToken),
    TakeSlot(u32),
    ReturnSlot(&'a LockToken),
    ReadLock,
    ReadUnlock(&'a LockToken),
    WriteLock,
    WriteUnlock(&'a LockToken),
    Incr,
    Set(u64),
    Get,
    Delete,
    Signal(u64),
    Listen,
    /// Shows [`SECRET`]; the key does not matter.
    Auth,
    /// Asks what the server reports about itself; the key does not matter.
    Stats,
    /// Redis: stores the script and returns its name; the key does not matter.
    LoadScript,
}

/// One answer, as far as it can be understood without knowing the question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// `ok` with the rest of the line; a number; a value.
    Ok(&'a [u8]),
    /// A lease over HTTP: its token.
    Lease(LockToken),
    /// There is none, or another client has it.
    Nil,
    /// Not an answer: a signal's payload.
    Push(&'a [u8]),
    /// Everything else.
    Refused(&'a [u8]),
}

impl<'a> Answer<'a> {
    /// The token of a grant, and the fence in it.
    pub(crate) fn grant(&self) -> Option<(LockToken, u64)> {
        let token = match self {
            Self::Lease(token) => token,
            Self::Ok(rest) => {
                let (token, behind) = rest.split_first_chunk()?;
                (behind.first() == Some(&b' ')).then_some(token)?
            }
            _ => return None,
        };
        Some((*token, Token::parse(token)?.fence.0))
    }

    /// The number that a signal carries.
    pub(crate) fn signal(&self) -> Option<u64> {
        let Self::Push(text) = *self else { return None };
        unhex(text)
    }

    /// A number in the answer to [`Request::Stats`], if there is one with that name.
    pub(crate) fn stat(&self, name: &str) -> Option<u64> {
        let Self::Ok(json) = *self else { return None };
        let quoted = format!("\"{name}\":");
        let at = memchr::memmem::find(json, quoted.as_bytes())? + quoted.len();
        number(json[at..].split(|it| !it.is_ascii_digit()).next()?)
    }
}

impl fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok(rest) => write!(f, "\"ok {}\"", rest.escape_ascii()),
            Self::Lease(token) => write!(f, "a lease with token {}", token.escape_ascii()),
            Self::Nil => f.write_str("nil"),
            Self::Push(text) | Self::Refused(text) => write!(f, "\"{}\"", text.escape_ascii()),
        }
    }
}

/// How to speak to one server.
#[derive(Clone, Debug)]
pub(crate) struct Codec {
    pub(crate) protocol: Protocol,
    /// Redis: the script's name, or none for a plain `DEL`.
    pub(crate) script: Option<[u8; 40]>,
    /// HTTP: every request shows [`SECRET`].
    pub(crate) guarded: bool,
}

impl Codec {
    /// For that server, without Redis' script.
    pub(crate) const fn new(target: &Target) -> Self {
        Self {
            protocol: target.protocol,
            script: None,
            guarded: target.guarded,
        }
    }

    /// Appends a request.
    pub(crate) fn encode(&self, request: Request<'_>, key: &Key, out: &mut Vec<u8>) {
        match self.protocol {
            Protocol::Line | Protocol::Ceiling => encode_line(request, key, out),
            Protocol::Resp => self.encode_resp(request, key, out),
            Protocol::Http => http::encode(request, key, self.guarded, out),
        }
    }

    /// The first answer in `bytes` and its length, once it is complete.
    pub(crate) fn decode<'a>(&self, bytes: &'a [u8]) -> Option<(Answer<'a>, usize)> {
        match self.protocol {
            Protocol::Line | Protocol::Ceiling => decode_line(bytes),
            Protocol::Resp => decode_resp(bytes),
            Protocol::Http => http::decode(bytes),
        }
    }

    fn encode_resp(&self, request: Request<'_>, key: &Key, out: &mut Vec<u8>) {
        let mut words = |words: &[&[u8]]| {
            write!(out, "*{}\r\n", words.len()).expect("a Vec takes every write");
            for word in words {
                write!(out, "${}\r\n", word.len()).expect("a Vec takes every write");
                out.extend_from_slice(word);
                out.extend_from_slice(b"\r\n");
            }
        };
        match request {
            Request::Lock(token) => {
                // The request that is measured most is copied, not formatted.
                out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n$18\r\n");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n$32\r\n");
                out.extend_from_slice(token);
                out.extend_from_slice(b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n");
            }
            Request::LockFor(token, ms) => {
                let ms = ms.to_string();
                words(&[b"SET", key, token, b"NX", b"PX", ms.as_bytes()]);
            }
            Request::Unlock(token) => match &self.script {
                Some(script) => {
                    out.extend_from_slice(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n");
                    out.extend_from_slice(script);
                    out.extend_from_slice(b"\r\n$1\r\n1\r\n$18\r\n");
                    out.extend_from_slice(key);
                    out.extend_from_slice(b"\r\n$32\r\n");
                    out.extend_from_slice(token);
                    out.extend_from_slice(b"\r\n");
                }
                None => {
                    out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n$18\r\n");
                    out.extend_from_slice(key);
                    out.extend_from_slice(b"\r\n");
                }
            },
            Request::Incr => words(&[b"INCR", key]),
            Request::Set(value) => words(&[b"SET", key, &hex(value)]),
            Request::Get => words(&[b"GET", key]),
            Request::LoadScript => words(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]),
            Request::Renew(_)
            | Request::Delete
            | Request::TakeSlot(_)
            | Request::ReturnSlot(_)
            | Request::ReadLock
            | Request::ReadUnlock(_)
            | Request::WriteLock
            | Request::WriteUnlock(_)
            | Request::Signal(_)
            | Request::Listen
            | Request::Auth
            | Request::Stats => unreachable!("refused before the run: Redis has no such thing"),
        }
    }
}

// The lengths and the lease in the RESP form of `Request::Lock`.
const _: () = assert!(LEASE_S == 60 && KEY_BYTES == 18);

/// Appends any request of the line protocol, with a key of any length.
pub(crate) fn spell(verb: Verb, key: &[u8], argument: &[u8], out: &mut Vec<u8>) {
    client::push_frame(out, verb.row().letters.as_bytes(), key, argument);
}

fn encode_line(request: Request<'_>, key: &Key, out: &mut Vec<u8>) {
    let mut frame = |verb: Verb, argument: &[u8]| spell(verb, key, argument, out);
    match request {
        Request::Lock(_) => frame(Verb::Lock, b"600 60"),
        Request::LockFor(_, ms) => frame(Verb::Lock, format!("0 {ms}ms").as_bytes()),
        Request::Unlock(token) => frame(Verb::Release, token),
        Request::Renew(token) => frame(Verb::Renew, token),
        Request::TakeSlot(slots) => frame(Verb::SemLock, format!("600 {slots} 60").as_bytes()),
        Request::ReturnSlot(token) => frame(Verb::SemRelease, token),
        Request::ReadLock => frame(Verb::ReadLock, b"600 60"),
        Request::ReadUnlock(token) => frame(Verb::ReadRelease, token),
        Request::WriteLock => frame(Verb::WriteLock, b"600 60"),
        Request::WriteUnlock(token) => frame(Verb::WriteRelease, token),
        Request::Incr => frame(Verb::Incr, b"1"),
        Request::Set(value) => frame(Verb::Kset, &hex(value)),
        Request::Get => frame(Verb::Kget, b""),
        Request::Delete => frame(Verb::Kdel, b""),
        Request::Signal(payload) => frame(Verb::Signal, &hex(payload)),
        Request::Listen => frame(Verb::Listen, b""),
        Request::Auth => frame(Verb::Auth, SECRET.as_bytes()),
        Request::Stats => frame(Verb::Stats, b""),
        Request::LoadScript => unreachable!("only Redis has scripts"),
    }
}

fn decode_line(bytes: &[u8]) -> Option<(Answer<'_>, usize)> {
    let (text, used) = client::split_line(bytes)?;
    let answer = match client::Line::read(text) {
        Some(client::Line::Push(News::Signal { payload, .. })) => Answer::Push(payload),
        Some(client::Line::Answer(text)) => match Status::read(text) {
            Status::Ok(rest) => Answer::Ok(rest),
            Status::Nothing => Answer::Nil,
            Status::Other(text) => Answer::Refused(text),
        },
        _ => Answer::Refused(text),
    };
    Some((answer, used))
}

fn decode_resp(bytes: &[u8]) -> Option<(Answer<'_>, usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let text = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let answer = match text {
        b"+OK" => Answer::Ok(b""),
        b"$-1" => Answer::Nil,
        [b':', number @ ..] => Answer::Ok(number),
        [b'$', length @ ..] => {
            let Some(length) = number(length).and_then(|it| usize::try_from(it).ok()) else {
                return Some((Answer::Refused(text), end + 1));
            };
            let value = bytes.get(end + 1..end + 1 + length)?;
            bytes.get(end + 1 + length..end + 3 + length)?;
            return Some((Answer::Ok(value), end + 3 + length));
        }
        _ => Answer::Refused(text),
    };
    Some((answer, end + 1))
}

/// Digits only.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum * 10 + u64::from(digit))
    })
}

/// Sixteen hexadecimal digits.
pub(crate) fn hex(value: u64) -> [u8; 16] {
    let mut text = [0; 16];
    for (at, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * at) & 15) as usize];
    }
    text
}

/// The number in sixteen hexadecimal digits.
pub(crate) fn unhex(text: &[u8]) -> Option<u64> {
    let text: &[u8; 16] = text.try_into().ok()?;
    text.iter().try_fold(0_u64, |sum, &byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_once_they_are_whole() {
        for (bytes, want) in [
            (&b"ok\nok"[..], Some((Answer::Ok(b""), 3))),
            (b"ok 7 60\n", Some((Answer::Ok(b"7 60"), 8))),
            (b"sig a b\n", Some((Answer::Push(b"b"), 8))),
            (b"timeout\n", Some((Answer::Refused(b"timeout"), 8))),
            (b"ok", None),
        ] {
            assert_eq!(decode_line(bytes), want);
        }
        for (bytes, want) in [
            (&b"+OK\r\n"[..], Some((Answer::Ok(b""), 5))),
            (b"$-1\r\n:1\r\n", Some((Answer::Nil, 5))),
            (b":12\r\n", Some((Answer::Ok(b"12"), 5))),
            (b"$2\r\nab\r\n:1\r\n", Some((Answer::Ok(b"ab"), 8))),
            (b"$2\r\nab\r", None),
            (b"-ERR no\r\n", Some((Answer::Refused(b"-ERR no"), 9))),
        ] {
            assert_eq!(decode_resp(bytes), want);
        }
    }

    #[test]
    fn a_grant_is_a_token_with_its_fence() {
        let token = b"00000000000000070123456789abcdef";
        let grant = |text: &[u8]| Answer::Ok(text).grant();
        let whole = [&token[..], b" 60"].concat();
        assert_eq!(grant(&whole), Some((*token, 7)));
        assert_eq!(grant(token), None, "a lease is missing");
        assert_eq!(grant(&whole[1..]), None, "a digit is missing");
        assert_eq!(Answer::Nil.grant(), None);
    }

    #[test]
    fn a_number_is_found_where_it_is_told() {
        let json = br#"{"a":1,"totals":{"expiries":250},"longest_turn_us":7}"#;
        let stats = Answer::Ok(json);
        assert_eq!(stats.stat("expiries"), Some(250));
        assert_eq!(stats.stat("longest_turn_us"), Some(7));
        assert_eq!(stats.stat("turn_us"), None);
        assert_eq!(Answer::Push(b"000000000000001f").signal(), Some(31));
    }

    #[test]
    fn numbers_come_back() {
        assert_eq!(
            unhex(&hex(0x0123_4567_89ab_cdef)),
            Some(0x0123_4567_89ab_cdef)
        );
        assert_eq!(unhex(b"0123"), None);
        assert_eq!(number(b"12"), Some(12));
        assert_eq!(number(b"-1"), None);
    }
}
