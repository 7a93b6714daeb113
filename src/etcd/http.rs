//! HTTP/1.1 as a client, as far as etcd's gateway needs it: one request, one answer, or a stream of lines.
//!
//! Everything has a deadline. An answer that is cut, too long or framed in a way that nobody sends is
//! an error, and ends the connection.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::login::Token;
use super::stream::Stream;

/// Longer answers are not believed. A page of the log is a few MiB.
const BODY_BYTES_MAX: usize = 64 << 20;
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What is received and not done with never gets longer than this, however it is framed.
const UNREAD_BYTES_MAX: usize = BODY_BYTES_MAX + (16 << 20);

/// A connection to one member.
pub(super) struct Connection {
    stream: Stream,
    host: String,
    /// What was received and not read.
    buf: Vec<u8>,
    at: usize,
    /// How long the member took to answer the first question, which it answers by itself.
    pub(super) round_trip: Duration,
}

/// How the body of an answer is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

/// The first part of an answer.
struct Head {
    status: u16,
    framing: Framing,
    stays_open: bool,
}

/// A whole answer.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    stays_open: bool,
}

impl Response {
    /// Whether the connection that it came by can be asked again.
    pub(super) fn is_reusable_on(&self, connection: &Connection) -> bool {
        self.stays_open && !connection.has_unread()
    }
}

/// What is asked.
pub(super) struct Request<'r> {
    method: &'static str,
    path: &'r str,
    body: &'r str,
    /// What is shown with it.
    token: Option<&'r Token>,
}

impl<'r> Request<'r> {
    pub(super) fn get(path: &'r str) -> Self {
        Self {
            method: "GET",
            path,
            body: "",
            token: None,
        }
    }

    pub(super) fn post(path: &'r str, body: &'r str) -> Self {
        Self {
            method: "POST",
            path,
            body,
            token: None,
        }
    }

    pub(super) fn with(self, token: Option<&'r Token>) -> Self {
        Self { token, ..self }
    }

    fn encode(&self, host: &str) -> String {
        let Self {
            method,
            path,
            body,
            token,
        } = self;
        let length = body.len();
        let [name, token, end] = match token {
            Some(token) => ["Authorization: ", token.text(), "\r\n"],
            None => ["", "", ""],
        };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{name}{token}{end}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }
}

impl Connection {
    pub(super) fn new(stream: Stream, host: &str) -> Self {
        Self {
            stream,
            host: host.to_owned(),
            buf: Vec::new(),
            at: 0,
            round_trip: Duration::ZERO,
        }
    }

    /// Sends a request. If this fails some of it may have been sent.
    pub(super) fn send(&mut self, request: &Request<'_>, deadline: Instant) -> io::Result<()> {
        let request = request.encode(&self.host);
        self.stream.send(request.as_bytes(), deadline)
    }

    /// Reads a whole answer.
    pub(super) fn receive(&mut self, deadline: Instant) -> io::Result<Response> {
        let head = self.head(deadline)?;
        self.body(&head, deadline)
    }

    fn body(&mut self, head: &Head, deadline: Instant) -> io::Result<Response> {
        let body = match head.framing {
            Framing::Length(length) => self.take(length, deadline)?,
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk(deadline)? {
                    if body.len() + chunk.len() > BODY_BYTES_MAX {
                        return Err(bad("the answer is too long"));
                    }
                    body.extend_from_slice(&chunk);
                }
                body
            }
        };
        Ok(Response {
            status: head.status,
            body,
            stays_open: head.stays_open,
        })
    }

    /// Reads the head of an answer that goes on for ever; `None`: it does. Otherwise all of what was
    /// answered instead.
    pub(super) fn begin_stream(&mut self, deadline: Instant) -> io::Result<Option<Response>> {
        let head = self.head(deadline)?;
        match (head.status, head.framing) {
            (200, Framing::Chunked) => Ok(None),
            (200, Framing::Length(_)) => Err(bad("a watch that is no stream")),
            _ => self.body(&head, deadline).map(Some),
        }
    }

    /// The next piece of a stream, `None` at its end. A timeout leaves everything as it was, so that it
    /// can be asked again.
    pub(super) fn chunk(&mut self, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
        let start = self.at;
        let result = self.read_chunk(deadline);
        if result
            .as_ref()
            .is_err_and(|it| it.kind() == ErrorKind::TimedOut)
        {
            self.at = start;
        }
        result
    }

    fn read_chunk(&mut self, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
        let line = self.line(deadline)?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let digits = str::from_utf8(digits).ok().map(str::trim);
        let is_hex = |it: &&str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_hexdigit());
        let length = digits
            .filter(is_hex)
            .and_then(|it| usize::from_str_radix(it, 16).ok())
            .filter(|length| *length <= BODY_BYTES_MAX)
            .ok_or_else(|| bad("a chunk without a length"))?;
        if length == 0 {
            while !self.line(deadline)?.is_empty() {} // trailers
            return Ok(None);
        }
        let chunk = self.take(length, deadline)?;
        if !self.line(deadline)?.is_empty() {
            return Err(bad("a chunk that is longer than it says"));
        }
        Ok(Some(chunk))
    }

    fn head(&mut self, deadline: Instant) -> io::Result<Head> {
        let start = self.at;
        loop {
            let first = self.line(deadline)?;
            let text = String::from_utf8_lossy(&first).into_owned();
            let status = text.strip_prefix("HTTP/1.1 ").and_then(|it| it.get(..3));
            let status: u16 = status
                .and_then(|it| it.parse().ok())
                .ok_or_else(|| bad("this is not HTTP/1.1"))?;
            let (mut framing, mut stays_open) = (Framing::Length(0), true);
            loop {
                let line = self.line(deadline)?;
                if line.is_empty() {
                    break;
                }
                if self.at - start > HEAD_BYTES_MAX {
                    return Err(bad("a head without an end"));
                }
                let line = String::from_utf8_lossy(&line).to_ascii_lowercase();
                let Some((name, value)) = line.split_once(':') else {
                    return Err(bad("a header without a colon"));
                };
                match (name.trim(), value.trim()) {
                    ("content-length", value) => {
                        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
                        let length = value.parse().ok().filter(|_| is_number);
                        let length = length.filter(|length| *length <= BODY_BYTES_MAX);
                        let length = length.ok_or_else(|| bad("a length that is none"))?;
                        if framing != Framing::Chunked {
                            framing = Framing::Length(length);
                        }
                    }
                    ("transfer-encoding", "chunked") => framing = Framing::Chunked,
                    ("transfer-encoding", _) => return Err(bad("an unknown encoding")),
                    ("connection", "close") => stays_open = false,
                    _ => {}
                }
            }
            if status != 100 {
                return Ok(Head {
                    status,
                    framing,
                    stays_open,
                });
            }
        }
    }

    /// A line without its end.
    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let unread = &self.buf[self.at..];
            if let Some(end) = unread[searched..].iter().position(|byte| *byte == b'\n') {
                let line = &unread[..searched + end];
                let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
                self.at += searched + end + 1;
                return Ok(line);
            }
            searched = unread.len();
            if searched > HEAD_BYTES_MAX {
                return Err(bad("a line without an end"));
            }
            self.fill(deadline)?;
        }
    }

    fn take(&mut self, length: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.buf.len() - self.at < length {
            self.fill(deadline)?;
        }
        let taken = self.buf[self.at..self.at + length].to_vec();
        self.at += length;
        Ok(taken)
    }

    /// Receives more.
    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        if self.buf.len() > UNREAD_BYTES_MAX {
            return Err(bad("the answer is too long"));
        }
        let mut piece = [0; 64 << 10];
        let received = self.stream.receive(&mut piece, deadline)?;
        self.buf.extend_from_slice(&piece[..received]);
        Ok(())
    }

    /// Forgets what was read; between two answers or two chunks.
    pub(super) fn forget_read(&mut self) {
        if self.at == self.buf.len() {
            self.buf.clear();
            self.buf.shrink_to(1 << 20);
        } else {
            self.buf.drain(..self.at);
        }
        self.at = 0;
    }

    /// Whether something was sent that nobody asked for.
    fn has_unread(&self) -> bool {
        self.at < self.buf.len()
    }
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
