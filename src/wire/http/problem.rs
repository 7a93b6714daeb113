//! What can be wrong with an HTTP request, and the words for it.
//!
//! A problem says what is wrong, with what, and what to do. Most leave the connection as it is; the
//! ones that [`Decoded::Fault`](super::Decoded) carries end it, because nobody knows any longer where
//! the next request begins. Never spells an answer: `answer.rs` does.

use super::routes::Methods;

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem<'a> {
    /// The status of the answer.
    pub status: u16,
    /// For programs: what is wrong, in capitals.
    pub reason: &'static str,
    /// For people: what is wrong, and what to do.
    pub text: &'static str,
    /// What the client wrote, if that helps; shown at the end, escaped and cut.
    pub quoted: &'a [u8],
    /// What else the answer has to say.
    pub header: Header,
}

/// A header that belongs to a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// None.
    Nothing,
    /// Which methods there are.
    Allow(Methods),
    /// How to show the token.
    Authenticate,
    /// When to ask again, in seconds.
    RetryAfter(u64),
}

impl<'a> Problem<'a> {
    pub(super) const fn new(status: u16, reason: &'static str, text: &'static str) -> Self {
        Self {
            status,
            reason,
            text,
            quoted: b"",
            header: Header::Nothing,
        }
    }

    /// The same, and what the client wrote.
    pub(super) const fn about(self, quoted: &[u8]) -> Problem<'_> {
        Problem {
            status: self.status,
            reason: self.reason,
            text: self.text,
            quoted,
            header: self.header,
        }
    }

    const fn with(mut self, header: Header) -> Self {
        self.header = header;
        self
    }
}

/// Another server decides, and nobody knows which: ask again.
pub const NO_LEADER: Problem<'static> = Problem::new(
    503,
    "NO_LEADER",
    "no server of this cluster leads at the moment; ask again in a second",
)
.with(Header::RetryAfter(1));

/// Another server decides, which speaks the line protocol only.
pub const fn leader_without_http(line: &str) -> Problem<'_> {
    Problem::new(
        503,
        "NO_LEADER",
        "the server that leads this cluster has no port for HTTP; ask it by the line protocol",
    )
    .with(Header::RetryAfter(1))
    .about(line.as_bytes())
}

/// The method does not exist here; these do.
pub(super) const fn method_not_allowed(allowed: Methods) -> Problem<'static> {
    Problem::new(405, "METHOD_NOT_ALLOWED", "method not allowed").with(Header::Allow(allowed))
}

/// Writes down problems: a name, a status, a reason, a text.
macro_rules! problems {
    ($($(#[$doc:meta])* $vis:vis $name:ident = $status:literal $reason:literal $text:expr;)*) => {
        $($(#[$doc])* $vis const $name: Problem<'static> = Problem::new($status, $reason, $text);)*
    };
}

// Of the framing: each ends the connection.
problems! {
    pub(super) NOT_HTTP = 400 "BAD_REQUEST" "this is not HTTP/1.1; send a request line first";
    pub(super) BARE_LF = 400 "BAD_REQUEST" "a line of the head ends without CR; end lines with CRLF";
    pub(super) BAD_HEAD = 400 "BAD_REQUEST"
        "the head is malformed; send name, colon and value on one line, without a blank before the colon";
    pub(super) BAD_TARGET = 400 "BAD_REQUEST" "the target is malformed; send a path that begins with /";
    pub(super) BAD_HOST = 400 "BAD_REQUEST" "HTTP/1.1 needs the header Host once, not more and not less";
    pub(super) REPEATED_HEADER = 400 "BAD_REQUEST" "a header that may stand once stands twice; send it once";
    pub(super) BAD_LENGTH = 400 "BAD_REQUEST" "Content-Length must stand once, and be digits only; send the length of the body";
    pub(super) TWO_LENGTHS = 400 "BAD_REQUEST"
        "Content-Length and Transfer-Encoding exclude each other; send one of them";
    pub(super) CODING_IN_1_0 = 400 "BAD_REQUEST" "HTTP/1.0 has no Transfer-Encoding; send Content-Length";
    pub(super) BAD_CHUNK = 400 "BAD_REQUEST"
        "a chunk is malformed; send its size in hex digits, CRLF, so many bytes, CRLF, and no trailers";
    pub(super) LATE_HEAD = 408 "LATE" "the head did not arrive in time; send it within 5 seconds";
    pub(super) LATE_BODY = 408 "LATE" "the body did not arrive in time; send it within 5 seconds";
    /// A body is longer than its route takes, or than is read before a token is shown.
    pub BODY_TOO_LONG = 413 "TOO_LONG" "the body is longer than this route takes; send less";
    pub(super) BAD_EXPECT = 417 "BAD_EXPECT" "the only expectation that is known is 100-continue";
    /// A head is longer than is read.
    pub HEAD_TOO_LONG = 431 "TOO_LONG"
        "the head is longer than 16 KiB (8 KiB before a token was shown), or has more than 64 headers; send less";
    pub(super) UNKNOWN_CODING = 501 "UNKNOWN_CODING" "the only transfer coding that is known is chunked";
    pub(super) UNKNOWN_VERSION = 505 "UNKNOWN_VERSION" "the only versions that are known are HTTP/1.1 and HTTP/1.0";
}

// Of the lease routes: these texts are what LockServer's clients know.
problems! {
    pub(super) LOCK_NAME_REQUIRED = 400 "BAD_NAME" "lock_name required";
    pub(super) INVALID_PATH = 404 "NO_ROUTE" "invalid path";
    pub(super) UNKNOWN_ACTION = 404 "NO_ROUTE" "unknown action";
    pub(super) OWNER_REQUIRED = 400 "BAD_FIELD" "owner_id required";
    pub(super) TTL_RANGE = 400 "BAD_FIELD" "ttl_ms must be in (0, 600000]";
    pub(super) HOLD_REQUIRED = 400 "BAD_FIELD" "owner_id, lease_id, fencing_token required";
    pub(super) EXTEND_RANGE = 400 "BAD_FIELD" "extend_by_ms must be in (0, 600000]";
}

// Of the path and the query.
problems! {
    /// There is no such path. The one problem that is answered in plain text, as LockServer does.
    pub NOT_FOUND = 404 "NO_ROUTE" "404 page not found";
    pub(super) BAD_ESCAPE = 400 "BAD_REQUEST" "a % in the target is not followed by two hex digits; write %25 for a %";
    pub(super) NAME_REQUIRED = 400 "BAD_NAME" "the name is empty; put one into the path";
    pub(super) NAME_CONTROL = 400 "BAD_NAME" "the name holds a control character; leave it out";
    pub(super) NAME_BLANK = 400 "BAD_NAME"
        "the name holds a blank, which the line protocol cannot carry; use another character";
    pub(super) NAME_TOO_LONG = 400 "BAD_NAME" "the name is longer than 256 bytes; choose a shorter one";
    pub(super) LOCK_NAME_TOO_LONG = 400 "BAD_NAME" "the lock name is longer than 1024 bytes; choose a shorter one";
    pub(super) CHANNEL_WILDCARD = 400 "BAD_NAME" "the channel holds a wildcard, * or >; signal on one channel at a time";
    pub(super) BAD_FENCE = 400 "BAD_NAME" "the fencing token in the path is not a number above 0; take it from the list";
    pub(super) UNKNOWN_PARAMETER = 400 "BAD_QUERY" "there is no such query parameter here; leave it out or correct it";
    pub(super) REPEATED_PARAMETER = 400 "BAD_QUERY" "a query parameter stands twice; send it once";
    pub(super) PAGE_LIMIT = 400 "BAD_QUERY" "limit must be a number in [1, 1000]";
    pub(super) INDEX = 400 "BAD_QUERY" "start and stop must be whole numbers";
    pub(super) STATE = 400 "BAD_QUERY" "state must be held, waiting, or both with a comma";
    pub(super) CURSOR = 400 "BAD_QUERY" "after is longer than 4096 bytes; send what next said";
    pub(super) CONTAINS = 400 "BAD_QUERY" "contains must have 1 to 1024 bytes";
    pub(super) PATTERN = 400 "BAD_QUERY" "pattern is required: 1 to 256 bytes without blanks and control characters";
    pub(super) CLIENT_ID = 400 "BAD_NAME"
        "the id of a client has 1 to 256 bytes of text without blanks and control characters, and does not begin with #";
    pub(super) SPAN_QUERY = 400 "BAD_QUERY" "start and len must be whole numbers in [0, 18446744073709551615], both of them or none";
    pub(super) CLIENT_QUERY = 400 "BAD_QUERY" "client is required: the id of a client, or # and the number of a connection";
    pub(super) BAD_RANGE = 400 "BAD_RANGE"
        "start and len reach beyond the last byte there can be, which is 2^64 - 1";
    pub(super) PATTERN_FIELD = 400 "BAD_FIELD" "pattern is required: 1 to 256 bytes without blanks and control characters";
    pub(super) GROUP = 400 "BAD_FIELD" "group is required: 1 to 256 bytes without blanks and control characters";
}

// Of the body.
problems! {
    pub(super) NOT_JSON = 415 "NOT_JSON" "a request that changes something needs the header Content-Type: application/json";
    pub(super) NO_BODY = 400 "BAD_JSON" "EOF: the body is empty; send a JSON object";
    pub(super) CUT_SHORT = 400 "BAD_JSON" "unexpected EOF: the JSON object has no end";
    pub(super) BAD_JSON = 400 "BAD_JSON" "the body is not JSON from here on";
    pub(super) NOT_AN_OBJECT = 400 "BAD_JSON" "the body is not a JSON object; send one";
    pub(super) UNKNOWN_FIELD = 400 "UNKNOWN_FIELD" "there is no such field here; leave it out or correct it";
    pub(super) NOT_TEXT = 400 "BAD_FIELD" "this field must be a string";
    pub(super) NOT_WHOLE = 400 "BAD_FIELD" "this field must be a whole number of at most 64 bits, such as 800";
    pub(super) NOT_BOOL = 400 "BAD_FIELD" "this field must be true or false";
    pub(super) OWNER_TOO_LONG = 400 "BAD_FIELD" "owner_id is longer than 1024 bytes; choose a shorter one";
    pub(super) WAIT_RANGE = 400 "BAD_FIELD" "wait_ms must be in [0, 60000]";
    pub(super) LIMIT_RANGE = 400 "BAD_FIELD" "limit must be in [1, 4294967295]";
    pub(super) COUNT_RANGE = 400 "BAD_FIELD" "count must be in [1, 4294967295]";
    pub(super) MODE = 400 "BAD_FIELD" "mode must be read or write";
    pub(super) RANGE_MODE = 400 "BAD_FIELD" "mode must be sh or ex";
    pub(super) CLIENT_REQUIRED = 400 "BAD_FIELD" "client is required: the id of one that was registered";
    pub(super) SECRET_REQUIRED = 400 "BAD_FIELD"
        "secret is required: 1 to 128 bytes without blanks and control characters";
    pub(super) BAD_ADAPTER = 400 "BAD_FIELD"
        "adapter must have 1 to 32 characters, without blanks and control characters";
    pub(super) RANGE_OWNER = 400 "BAD_FIELD"
        "owner must have at most 256 bytes without blanks and control characters, and not begin with flavor=";
    pub(super) SPAN_REQUIRED = 400 "BAD_FIELD" "start and len are required: whole numbers in [0, 18446744073709551615]";
    pub(super) NOT_NATURAL = 400 "BAD_FIELD"
        "this field must be a whole number in [0, 18446744073709551615], or the same as a string";
    pub(super) CLIENT_TTL_RANGE = 400 "BAD_FIELD" "ttl_ms must be in [1, 9223372036000]";
    pub(super) END = 400 "BAD_FIELD" "end must be left or right";
    pub(super) NUMBER_REQUIRED = 400 "BAD_FIELD" "value is required: a whole number";
    pub(super) DELTA_REQUIRED = 400 "BAD_FIELD" "delta is required: a whole number";
    pub(super) VALUE_TTL_RANGE = 400 "BAD_FIELD" "ttl_ms must be in [0, 9223372036000]; 0 is for ever";
    pub(super) TWO_CONDITIONS = 400 "BAD_FIELD" "if_value and if_absent exclude each other; send one of them";
    pub(super) EMPTY_CONDITION = 400 "BAD_FIELD" "if_value is empty, and no value is; send if_absent instead";
    pub(super) VALUE_REQUIRED = 400 "BAD_VALUE" "value is required, and must not be empty";
    pub(super) VALUE_TAB = 400 "BAD_VALUE" "the value holds a tab, CR or LF, which the line protocol cannot carry; encode it";
    pub(super) VALUE_LINE = 400 "BAD_VALUE" "the value holds CR or LF, which the line protocol cannot carry; encode it";
    pub(super) VALUE_NOT_UTF8 = 400 "BAD_VALUE" "the value is not UTF-8, or holds half a surrogate pair; encode it";
    pub(super) VALUE_TOO_LONG = 413 "BAD_VALUE" "the value is longer than 65536 bytes; store less, or its address";
    pub(super) PAYLOAD_REQUIRED = 400 "BAD_VALUE" "payload is required, and must not be blank";
}

// Of who asks.
problems! {
    /// The `Host` is none of ours: a page of another site has given its name our address.
    pub FOREIGN_HOST = 403 "FOREIGN_HOST"
        "the Host is neither an address, nor localhost, nor set with --http-host-name";
    /// A page of another site asks.
    pub FOREIGN_ORIGIN = 403 "FOREIGN_ORIGIN" "a page of another site has sent this; ask from the page of this server";
    /// No page of this list has ended there.
    pub UNKNOWN_CURSOR = 400 "BAD_QUERY" "after is no cursor of this list; send what next said, or leave it out";
    /// The token is right, and does not give this.
    pub FORBIDDEN = 403 "FORBIDDEN" "this token may not do that; ask with one that may";
    /// This is not what the client was registered with.
    pub WRONG_SECRET = 403 "WRONG_SECRET" "this is not the secret of the client";
    /// No grant has this fence.
    pub NOT_HELD = 404 "NOT_HELD" "nobody holds this lock with this fencing token; look who does";
}

/// The token was wrong, or not shown.
pub const UNAUTHORIZED: Problem<'static> = Problem::new(
    401,
    "UNAUTHORIZED",
    "the token is missing or wrong; send the header Authorization: Bearer <token>",
)
.with(Header::Authenticate);

/// Something that should be there is not, for now.
pub(super) const fn busy(reason: &'static str, text: &'static str) -> Problem<'static> {
    Problem::new(503, reason, text).with(Header::RetryAfter(1))
}
