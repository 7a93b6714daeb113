//! The head of a request: where it ends, what stands in it, and what body it announces.
//!
//! httparse reads the lines. Here is what makes two readers agree about where a request ends: no bare
//! LF, one length and not two, digits only, and no coding but chunked.

use std::mem::MaybeUninit;

use httparse::{Error, Status};

use super::problem::{self, Problem};
use super::routes::Method;
use super::target::{self, Target};

/// Longest head, with its empty line. A longer one is answered 431 and ends the connection.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Most headers. Same fate.
pub const HEADERS_MAX: usize = 64;

/// Longest request id that is taken from a client; a longer one counts as none.
pub(super) const REQUEST_ID_BYTES_MAX: usize = 128;

/// Most empty lines before a request, which old clients send after a body.
const EMPTY_LINES_MAX: usize = 4;

/// What body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes, perhaps none.
    Length(u64),
    /// Chunks, each with its length.
    Chunked,
}

/// A head, read.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) method: Method,
    pub(super) target: Target<'a>,
    pub(super) is_http_1_0: bool,
    pub(super) keep_alive: bool,
    pub(super) framing: Framing,
    pub(super) expects_continue: bool,
    pub(super) is_json: bool,
    pub(super) host: Option<&'a [u8]>,
    pub(super) origin: Option<&'a [u8]>,
    pub(super) fetch_site: Option<&'a [u8]>,
    /// What was shown as a bearer token.
    pub(super) bearer: Option<&'a [u8]>,
    /// What the client calls this request, if that can be repeated to it.
    pub(super) if_none_match: Option<&'a [u8]>,
    pub(super) request_id: &'a str,
}

/// How far the search for the end of a head has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Search {
    /// Where the first line begins, behind empty ones.
    start: usize,
    /// Where the line begins in which nothing was found yet.
    line: usize,
    /// How much of that line was looked at.
    looked: usize,
}

impl Search {
    /// Where the head begins.
    pub(super) const fn start(&self) -> usize {
        self.start
    }

    /// Whether something of a head has come.
    pub(super) const fn has_begun(&self, input: &[u8]) -> bool {
        input.len() > self.start
    }

    /// Where the head ends, if it is there. May be called again with the same bytes and more.
    pub(super) fn end(&mut self, input: &[u8]) -> Result<Option<usize>, Problem<'static>> {
        if self.line == self.start {
            self.skip_empty_lines(input)?;
        }
        let bounded = &input[..input.len().min(self.start + HEAD_BYTES_MAX)];
        while let Some(at) = memchr::memchr(b'\n', &bounded[self.looked..]) {
            let end = self.looked + at;
            if end == self.line || bounded[end - 1] != b'\r' {
                return Err(problem::BARE_LF);
            }
            if end - 1 == self.line {
                return Ok(Some(end + 1));
            }
            (self.line, self.looked) = (end + 1, end + 1);
        }
        if bounded.len() - self.start == HEAD_BYTES_MAX {
            return Err(problem::HEAD_TOO_LONG);
        }
        self.looked = bounded.len();
        Ok(None)
    }

    fn skip_empty_lines(&mut self, input: &[u8]) -> Result<(), Problem<'static>> {
        while input[self.start..].starts_with(b"\r\n") && self.start < 2 * EMPTY_LINES_MAX {
            self.start += 2;
        }
        self.line = self.start;
        self.looked = self.looked.max(self.start);
        // Said at once: who speaks TLS or the line protocol here would wait in vain for the rest.
        match input[self.start..] {
            [b'\r'] => Ok(()),
            [b'\n', ..] => Err(problem::BARE_LF),
            [first, ..] if !first.is_ascii_alphanumeric() => Err(problem::NOT_HTTP),
            _ => Ok(()),
        }
    }
}

impl<'a> Head<'a> {
    /// Reads a head that is there in full.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Problem<'static>> {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let read = request.parse_with_uninit_headers(bytes, &mut headers);
        match read {
            Ok(Status::Complete(used)) if used == bytes.len() => {}
            Ok(_) => return Err(problem::BAD_HEAD),
            Err(Error::Version) if names_version(bytes) => return Err(problem::UNKNOWN_VERSION),
            Err(Error::TooManyHeaders) => return Err(problem::HEAD_TOO_LONG),
            Err(_) => return Err(problem::BAD_HEAD),
        }
        let (Some(method), Some(target), Some(version)) =
            (request.method, request.path, request.version)
        else {
            return Err(problem::BAD_HEAD);
        };
        let said = Headers::collect(request.headers)?;
        let is_http_1_0 = version == 0;
        if said.host.is_none() && !is_http_1_0 {
            return Err(problem::BAD_HOST);
        }
        let target = Target::parse(target.as_bytes())?;
        Ok(Self {
            method: Method::parse(method),
            target,
            is_http_1_0,
            keep_alive: !said.closes && (said.keeps || !is_http_1_0),
            framing: said.framing(is_http_1_0)?,
            expects_continue: said.expects()? && !is_http_1_0,
            is_json: said.content_type.is_some_and(is_json),
            host: target.authority.or(said.host),
            origin: said.origin,
            fetch_site: said.fetch_site,
            bearer: said.authorization.and_then(bearer),
            if_none_match: said.if_none_match,
            request_id: said.request_id.map_or("", repeatable),
        })
    }
}

/// Whether the first line has three words, and the last one could be a version.
fn names_version(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ').skip(2);
    let (version, more) = (words.next(), words.next());
    more.is_none() && version.is_some_and(|it| it.starts_with(b"HTTP/"))
}

/// The headers that mean something here.
#[derive(Default)]
struct Headers<'a> {
    host: Option<&'a [u8]>,
    length: Option<&'a [u8]>,
    coding: Option<&'a [u8]>,
    expect: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    origin: Option<&'a [u8]>,
    fetch_site: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
    if_none_match: Option<&'a [u8]>,
    closes: bool,
    keeps: bool,
}

impl<'a> Headers<'a> {
    fn collect(headers: &[httparse::Header<'a>]) -> Result<Self, Problem<'static>> {
        let mut it = Self::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            // By length first: most headers are none of these.
            let (place, twice) = match header.name.len() {
                4 if is("host") => (&mut it.host, problem::BAD_HOST),
                14 if is("content-length") => (&mut it.length, problem::BAD_LENGTH),
                17 if is("transfer-encoding") => (&mut it.coding, problem::UNKNOWN_CODING),
                6 if is("expect") => (&mut it.expect, problem::BAD_EXPECT),
                12 if is("content-type") => (&mut it.content_type, problem::REPEATED_HEADER),
                13 if is("authorization") => (&mut it.authorization, problem::REPEATED_HEADER),
                14 if is("sec-fetch-site") => (&mut it.fetch_site, problem::REPEATED_HEADER),
                6 if is("origin") => (&mut it.origin, problem::REPEATED_HEADER),
                12 if is("x-request-id") => (&mut it.request_id, problem::REPEATED_HEADER),
                13 if is("if-none-match") => (&mut it.if_none_match, problem::REPEATED_HEADER),
                10 if is("connection") => {
                    it.note_connection(header.value);
                    continue;
                }
                _ => continue,
            };
            if place.replace(header.value).is_some() {
                return Err(twice);
            }
        }
        Ok(it)
    }

    fn note_connection(&mut self, value: &[u8]) {
        for word in value.split(|&byte| byte == b',') {
            let word = word.trim_ascii();
            self.closes |= word.eq_ignore_ascii_case(b"close");
            self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn framing(&self, is_http_1_0: bool) -> Result<Framing, Problem<'static>> {
        match (self.length, self.coding) {
            (Some(_), Some(_)) => Err(problem::TWO_LENGTHS),
            (None, Some(_)) if is_http_1_0 => Err(problem::CODING_IN_1_0),
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            (None, Some(_)) => Err(problem::UNKNOWN_CODING),
            (None, None) => Ok(Framing::Length(0)),
            (Some(length), None) => {
                if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
                    return Err(problem::BAD_LENGTH);
                }
                // A number that does not fit is too long whatever may be sent.
                let length = target::digits(length).unwrap_or(u64::MAX);
                Ok(Framing::Length(length))
            }
        }
    }

    fn expects(&self) -> Result<bool, Problem<'static>> {
        match self.expect {
            None => Ok(false),
            Some(expect) if expect.eq_ignore_ascii_case(b"100-continue") => Ok(true),
            Some(_) => Err(problem::BAD_EXPECT),
        }
    }
}

/// Whether a content type is JSON, with or without parameters.
fn is_json(value: &[u8]) -> bool {
    let kind = value.split(|&byte| byte == b';').next();
    kind.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// The token of `Bearer <token>`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// A request id as text; empty if it is one that we do not repeat.
fn repeatable(value: &[u8]) -> &str {
    let fits = (1..=REQUEST_ID_BYTES_MAX).contains(&value.len());
    match str::from_utf8(value) {
        Ok(text) if fits && value.iter().all(u8::is_ascii_graphic) => text,
        _ => "",
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
