//! Answers: a status, a head and a body, by hand into the buffer they leave from.
//!
//! Every answer says how long it is, and every JSON body ends with LF. There is no `Date`: a server
//! has to send one only if its answers may be cached, and none of ours may; it would cost a
//! calendar in a layer that has no clock. What an answer to the table's replies looks like is in
//! `replies.rs`.

use super::context::Context;
use super::problem::{Header, Problem};
use crate::wire::json;

pub use super::replies::{Facts, Holding, LeaseShown, lease, refusal, reply, retry_ms};

/// What a sender is told that waits before it sends its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Most digits of the length of a body. No answer is longer than some MiB.
const LENGTH_DIGITS_MAX: usize = 9;

/// How much is quoted of what a client wrote.
const QUOTED_BYTES_MAX: usize = 64;

/// A JSON answer: `write` appends one value without a line end.
pub fn json(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    status: u16,
    write: impl FnOnce(&mut Vec<u8>),
) {
    json_with(out, context, status, Header::Nothing, write);
}

pub(super) fn json_with(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    status: u16,
    header: Header,
    write: impl FnOnce(&mut Vec<u8>),
) {
    status_line(out, status);
    out.extend_from_slice(b"Content-Type: application/json\r\nCache-Control: no-store\r\n");
    push_header(out, header);
    let draft = Draft::begin(out, context);
    write(out);
    out.push(b'\n');
    draft.end(out, context);
}

/// Any other answer, which `write` appends. `headers` are whole lines, each with its CRLF.
pub fn document(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    status: u16,
    content_type: &str,
    headers: &str,
    write: impl FnOnce(&mut Vec<u8>),
) {
    status_line(out, status);
    out.extend_from_slice(b"Content-Type: ");
    out.extend_from_slice(content_type.as_bytes());
    out.extend_from_slice(b"\r\nX-Content-Type-Options: nosniff\r\n");
    out.extend_from_slice(headers.as_bytes());
    let draft = Draft::begin(out, context);
    write(out);
    draft.end(out, context);
}

/// Whether the daemon is there, and takes new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is, and does.
    Ok,
    /// It is, but its disk is full: it takes only what needs no room.
    Degraded {
        /// How many bytes have to become free; 0 if unknown.
        missing_bytes: u64,
    },
    /// It shuts down.
    Draining,
    /// Another member of its cluster decides, or nobody knows which.
    NotLeader,
}

impl Health {
    /// The status of an answer that says so.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            // Holders still renew and release.
            Self::Ok | Self::Degraded { .. } => 200,
            Self::Draining | Self::NotLeader => 503,
        }
    }
}

/// Says how it is.
pub fn health(out: &mut Vec<u8>, context: &Context<'_>, health: Health) {
    let word = match health {
        Health::Ok => "ok",
        Health::Degraded { .. } => "degraded",
        Health::Draining => "draining",
        Health::NotLeader => "not_leader",
    };
    json(out, context, health.status(), |out| {
        out.extend_from_slice(b"{\"status\":\"");
        out.extend_from_slice(word.as_bytes());
        out.push(b'"');
        if let Health::Degraded { missing_bytes } = health
            && missing_bytes > 0
        {
            out.extend_from_slice(b",\"missing_bytes\":");
            json::push_number(out, missing_bytes);
        }
        out.push(b'}');
    });
}

/// Another server decides, and this is where it serves what was asked for: path and query, as they were sent.
pub fn elsewhere(out: &mut Vec<u8>, context: &Context<'_>, server: &str, target: [&[u8]; 2]) {
    let [path, query] = target;
    status_line(out, 307);
    out.extend_from_slice(b"Location: ");
    out.extend_from_slice(server.as_bytes());
    out.extend_from_slice(path);
    if !query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    out.extend_from_slice(b"\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n");
    let draft = Draft::begin(out, context);
    out.extend_from_slice(b"{\"error\":");
    let text = format!("another server decides; ask {server}");
    json::push_str_escaped(out, text.as_bytes());
    out.extend_from_slice(b",\"reason\":\"NOT_LEADER\"}\n");
    draft.end(out, context);
}

/// Why a request is not served.
pub fn problem(out: &mut Vec<u8>, context: &Context<'_>, problem: &Problem<'_>) {
    if *problem == super::problem::NOT_FOUND {
        let headers = "Cache-Control: no-store\r\n";
        return document(
            out,
            context,
            404,
            "text/plain; charset=utf-8",
            headers,
            |out| {
                out.extend_from_slice(problem.text.as_bytes());
                out.push(b'\n');
            },
        );
    }
    json_with(out, context, problem.status, problem.header, |out| {
        out.extend_from_slice(b"{\"error\":");
        push_text(out, problem);
        if has_reason(context, problem) {
            out.extend_from_slice(b",\"reason\":\"");
            out.extend_from_slice(problem.reason.as_bytes());
            out.push(b'"');
        }
        out.push(b'}');
    });
}

/// On its routes LockServer has a sentence and no word, but it has no 503 either: there a program has to know whether
/// somebody else leads, or nobody, or there is no room.
/// A 409 here means that the key is of another kind, which LockServer does not have.
fn has_reason(context: &Context<'_>, problem: &Problem<'_>) -> bool {
    !context.is_lease || matches!(problem.status, 409 | 503)
}

/// Why the connection ends: what a [`Decoded::Fault`](super::Decoded) carries. Close once it is sent.
pub fn fault(out: &mut Vec<u8>, fault: &Problem<'_>) {
    problem(out, &Context::UNREAD, fault);
}

/// The head did not come in time: to be answered as a fault.
pub const LATE_HEAD: Problem<'static> = super::problem::LATE_HEAD;

/// The body did not come in time: to be answered as a fault.
pub const LATE_BODY: Problem<'static> = super::problem::LATE_BODY;

fn push_text(out: &mut Vec<u8>, problem: &Problem<'_>) {
    let Problem { text, quoted, .. } = problem;
    json::push_str_escaped(out, text.as_bytes());
    if quoted.is_empty() {
        return;
    }
    // In quotes of its own, within those of the text: a backslash stands before each of them.
    let cut = &quoted[..quoted.len().min(QUOTED_BYTES_MAX)];
    out.pop();
    out.extend_from_slice(b": \\");
    json::push_str_escaped(out, cut);
    out.pop();
    out.extend_from_slice(b"\\\"\"");
}

/// The first line, and nothing behind it.
pub(super) fn status_line(out: &mut Vec<u8>, status: u16) {
    let line: &[u8] = match status {
        200 => b"HTTP/1.1 200 OK\r\n",
        400 => b"HTTP/1.1 400 Bad Request\r\n",
        401 => b"HTTP/1.1 401 Unauthorized\r\n",
        403 => b"HTTP/1.1 403 Forbidden\r\n",
        404 => b"HTTP/1.1 404 Not Found\r\n",
        405 => b"HTTP/1.1 405 Method Not Allowed\r\n",
        408 => b"HTTP/1.1 408 Request Timeout\r\n",
        409 => b"HTTP/1.1 409 Conflict\r\n",
        413 => b"HTTP/1.1 413 Content Too Large\r\n",
        415 => b"HTTP/1.1 415 Unsupported Media Type\r\n",
        417 => b"HTTP/1.1 417 Expectation Failed\r\n",
        431 => b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
        501 => b"HTTP/1.1 501 Not Implemented\r\n",
        503 => b"HTTP/1.1 503 Service Unavailable\r\n",
        505 => b"HTTP/1.1 505 HTTP Version Not Supported\r\n",
        304 => b"HTTP/1.1 304 Not Modified\r\n",
        307 => b"HTTP/1.1 307 Temporary Redirect\r\n",
        _ => b"HTTP/1.1 500 Internal Server Error\r\n",
    };
    out.extend_from_slice(line);
}

fn push_header(out: &mut Vec<u8>, header: Header) {
    match header {
        Header::Nothing => {}
        Header::Authenticate => out.extend_from_slice(b"WWW-Authenticate: Bearer\r\n"),
        Header::RetryAfter(seconds) => {
            out.extend_from_slice(b"Retry-After: ");
            json::push_number(out, seconds);
            out.extend_from_slice(b"\r\n");
        }
        Header::Allow(methods) => {
            out.extend_from_slice(b"Allow: ");
            for (index, method) in methods.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"" } else { b", " });
                out.extend_from_slice(method.word().as_bytes());
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The headers that follow from the request: its id, and whether the connection stays open.
pub(super) fn push_echoes(out: &mut Vec<u8>, context: &Context<'_>) {
    if !context.request_id.is_empty() {
        out.extend_from_slice(b"X-Request-ID: ");
        out.extend_from_slice(context.request_id.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    match (context.keep_alive, context.is_http_1_0) {
        (true, false) => {}
        (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
    }
}

/// An answer whose body is being written: its length stands in front of it, and is filled in last.
struct Draft {
    length_at: usize,
    body_at: usize,
}

impl Draft {
    /// Ends the head, and leaves room for the length.
    fn begin(out: &mut Vec<u8>, context: &Context<'_>) -> Self {
        push_echoes(out, context);
        out.extend_from_slice(b"Content-Length: ");
        let length_at = out.len();
        out.extend_from_slice(&[b'0'; LENGTH_DIGITS_MAX]);
        out.extend_from_slice(b"\r\n\r\n");
        Self {
            length_at,
            body_at: out.len(),
        }
    }

    /// The body is there: fills in its length, and closes the gap that is left.
    fn end(self, out: &mut Vec<u8>, context: &Context<'_>) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(out.len() - self.body_at).as_bytes();
        assert!(digits.len() <= LENGTH_DIGITS_MAX, "an answer of a gigabyte");
        if context.is_head {
            out.truncate(self.body_at);
        }
        let digits_end = self.length_at + digits.len();
        out[self.length_at..digits_end].copy_from_slice(digits);
        out.drain(digits_end..self.length_at + LENGTH_DIGITS_MAX);
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
