//! Requests over HTTP/1.1, and their answers.
//!
//! Written by hand, and not with the daemon's own reader: both would be wrong together. Pure: no
//! socket, no clock, no state.

use std::io::Write;
use std::ops::Range;

use latchd::base::Token;

use crate::run::codec::{Answer, Key, LockToken, Request, SECRET, number};
use crate::run::spec::LEASE_S;

/// Shows the secret.
pub(crate) const BEARER: &str = "Authorization: Bearer ";

/// What a request with a body has to say of it.
pub(crate) const JSON: &str = "Content-Type: application/json\r\n";

/// Whose leases these are. One name for all: a lease is told apart by its id.
const OWNER: &str = "load";

/// Appends a request. `headers` are whole lines with their ends; a body brings its length.
pub(crate) fn push(out: &mut Vec<u8>, line: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    write!(out, "{line} HTTP/1.1\r\nHost: localhost\r\n{headers}").expect(TAKES_EVERYTHING);
    if length > 0 {
        write!(out, "Content-Length: {length}\r\n").expect(TAKES_EVERYTHING);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
}

const TAKES_EVERYTHING: &str = "a Vec takes every write";

/// Appends a request for a lease; there are no others in a run.
pub(super) fn encode(request: Request<'_>, key: &Key, guarded: bool, out: &mut Vec<u8>) {
    let ttl_ms = LEASE_S * 1_000;
    let (verb, body) = match request {
        Request::Lock(_) => (
            "acquire",
            format!(r#"{{"owner_id":"{OWNER}","ttl_ms":{ttl_ms},"wait_ms":60000}}"#),
        ),
        Request::Unlock(token) => ("release", release(token)),
        _ => unreachable!("refused before the run: only locks are loaded over HTTP"),
    };
    let line = format!("POST /v1/locks/{}/{verb}", key.escape_ascii());
    let mut headers = JSON.to_owned();
    if guarded {
        headers.push_str(&format!("{BEARER}{SECRET}\r\n"));
    }
    push(out, &line, &headers, body.as_bytes());
}

fn release(token: &LockToken) -> String {
    let fence = Token::parse(token).map_or(0, |it| it.fence.0);
    let digits = token.escape_ascii().to_string();
    let lease = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    let lease = lease.join("-");
    format!(r#"{{"owner_id":"{OWNER}","lease_id":"{lease}","fencing_token":{fence}}}"#)
}

/// Where an answer is.
pub(crate) struct Found {
    pub(crate) is_fine: bool,
    pub(crate) body: Range<usize>,
}

/// The first answer in `bytes`, once it is complete. One that does not say how long it is has no body.
pub(crate) fn split(bytes: &[u8]) -> Option<Found> {
    let head = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
    let end = head + length(&bytes[..head]).unwrap_or(0);
    (end <= bytes.len()).then_some(Found {
        is_fine: bytes.starts_with(b"HTTP/1.1 200 "),
        body: head..end,
    })
}

/// What the first answer in `bytes` means, and its length, once it is complete.
pub(super) fn decode(bytes: &[u8]) -> Option<(Answer<'_>, usize)> {
    let Found { is_fine, body } = split(bytes)?;
    let end = body.end;
    let body = &bytes[body];
    let answer = match lease(body) {
        Some(token) if is_fine => Answer::Lease(token),
        _ if is_fine && body.starts_with(br#"{"released":true"#) => Answer::Ok(b""),
        _ => Answer::Refused(body),
    };
    Some((answer, end))
}

/// How long the body is.
fn length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\r\nContent-Length: ";
    let digits = &head[memchr::memmem::find(head, NAME)? + NAME.len()..];
    let digits = digits.split(|it| !it.is_ascii_digit()).next()?;
    usize::try_from(number(digits)?).ok()
}

/// The lease in a body, without its hyphens.
fn lease(body: &[u8]) -> Option<LockToken> {
    const NAME: &[u8] = br#""lease_id":""#;
    let at = memchr::memmem::find(body, NAME)? + NAME.len();
    let digits = body.get(at..at + 36)?.iter().copied();
    let digits: Vec<u8> = digits.filter(|&it| it != b'-').collect();
    digits.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &LockToken = b"000660599d1e2c3f9f8e7d6c5b4a3921";

    #[test]
    fn answers_are_read_once_they_are_whole() {
        let granted = "HTTP/1.1 200 OK\r\nContent-Length: 54\r\nX: y\r\n\r\n\
                       {\"lease_id\":\"00066059-9d1e-2c3f-9f8e-7d6c5b4a3921\",1}\n";
        let length = granted.len();
        let twice = granted.repeat(2);
        for upto in 0..length {
            assert_eq!(decode(&granted.as_bytes()[..upto]), None);
        }
        let read = decode(twice.as_bytes());
        assert_eq!(read, Some((Answer::Lease(*TOKEN), length)));
        let fence = read.and_then(|it| it.0.grant()).map(|it| it.1);
        assert_eq!(fence, Token::parse(TOKEN).map(|it| it.fence.0));
        let held = granted.replace("200 OK", "409 Conflict");
        assert!(matches!(
            decode(held.as_bytes()),
            Some((Answer::Refused(_), _))
        ));
        let released = b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"released\":true}\n";
        assert_eq!(decode(released), Some((Answer::Ok(b""), released.len())));
    }

    #[test]
    fn a_release_names_the_lease_and_its_fence() {
        let text = release(TOKEN);
        assert!(text.contains("\"00066059-9d1e-2c3f-9f8e-7d6c5b4a3921\""));
        let fence = 0x0006_6059_9d1e_2c3f_u64;
        assert!(text.contains(&format!("\"fencing_token\":{fence}")));
    }
}
