//! Reads one connection's requests: input in, one [`Asked`] at a time out.
//!
//! Called with everything that has come and was not used yet. What it has looked at in an unfinished
//! request it does not look at again; a head whose body comes later is read twice, and no more.

use std::fmt;
use std::mem;

use super::arena::Arena;
use super::ask::{self, Ask, Said};
use super::body::{Body, CHUNK_OVERHEAD_BYTES_MAX};
use super::context::Context;
use super::fields::{self, Fields};
use super::head::{Framing, HEAD_BYTES_MAX, Head, Search};
use super::problem::{self, Problem};
use super::routes::{self, BODY_BYTES_MAX, Method, Takes, VALUES_BODY_BYTES_MAX};
use super::target::{self, LOCK_NAME_BYTES_MAX, Query};
use crate::engine::types::{ByteRange, Mode, RangeAsk, Request, Sharing};

/// Longest request, and a little: whoever keeps input for a reader needs room for so much, and for no
/// more.
pub const REQUEST_BYTES_MAX: usize =
    HEAD_BYTES_MAX + VALUES_BODY_BYTES_MAX + CHUNK_OVERHEAD_BYTES_MAX + 64;

/// How large the scratch buffer of a reader can become: two paths and a query, a body put together
/// from chunks, and its strings, all of which are no characters.
pub const SCRATCH_BYTES_MAX: usize =
    2 * HEAD_BYTES_MAX + VALUES_BODY_BYTES_MAX + 3 * REQUEST_BYTES_MAX;

/// Reads the requests of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    /// How much input there was the last time, if a request was unfinished.
    seen: usize,
    search: Search,
    /// The body of a request whose head is there.
    body: Option<Body>,
    /// How much it has looked at piece by piece, see [`Reader::take_looks`].
    looks: usize,
}

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is used up where it is made; a box would be an allocation for each request"
)]
pub enum Decoded<'a> {
    /// A whole request.
    Request(Asked<'a>),
    /// The beginning of a request, or nothing: come back with the same bytes and more.
    Unfinished {
        /// How far it has come.
        part: Part,
        /// Its sender waits to be told to go on: send [`CONTINUE`](super::answer::CONTINUE) now.
        /// Said once.
        wants_continue: bool,
    },
    /// Nobody can tell where the next request begins: answer this, then close.
    Fault(Problem<'static>),
}

/// How far an unfinished request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// There is none.
    Nothing,
    /// Its head has begun.
    Head,
    /// Its head is there, and its body is not.
    Body,
}

/// One whole request.
#[derive(Clone, Copy, PartialEq)]
pub struct Asked<'a> {
    /// Bytes of input it took.
    pub used: usize,
    /// What its answer needs to know.
    pub context: Context<'a>,
    /// What is asked, or why it is not served; either way the connection goes on.
    pub what: Result<Ask<'a>, Problem<'a>>,
    /// What was shown as a bearer token.
    pub bearer: Option<&'a [u8]>,
    /// Whom the client believes to ask.
    pub host: Option<&'a [u8]>,
    /// The site whose page asks, if one does.
    pub origin: Option<&'a [u8]>,
    /// `Sec-Fetch-Site`: how the asking site relates to ours, if a browser sends it.
    pub fetch_site: Option<&'a [u8]>,
    /// Which versions of a file the client has.
    pub if_none_match: Option<&'a [u8]>,
    /// Where it was sent, path and query, as it was sent.
    pub target: [&'a [u8]; 2],
}

/// A token is never printed, not even by accident in a log line.
impl fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            used,
            context,
            what,
            bearer,
            host: _,
            origin: _,
            fetch_site: _,
            if_none_match: _,
            target: _,
        } = self;
        f.debug_struct("Asked")
            .field("used", used)
            .field("context", context)
            .field("what", what)
            .field("shows_token", &bearer.is_some())
            .finish()
    }
}

impl Reader {
    /// Reads the request that `input` begins with. May be called again with the same input: a request
    /// need not be served when it is first read.
    pub fn decode<'a>(&mut self, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Decoded<'a> {
        match self.frame(input, scratch) {
            Ok(Ok(frame)) => {
                let (asked, looks) = frame.read(input, scratch);
                *self = Self {
                    looks: self.looks + looks,
                    ..Self::default()
                };
                Decoded::Request(asked)
            }
            Ok(Err(unfinished)) => unfinished,
            Err(problem) => Decoded::Fault(problem),
        }
    }

    /// The head of an unfinished request, if it is complete. `what` is an error, because the body
    /// is missing. `input` is the input of the last [`Reader::decode`].
    #[must_use]
    pub fn head<'a>(&self, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<Asked<'a>> {
        let body = self.body?;
        let head = Head::parse(&input[self.search.start()..body.start]).ok()?;
        let mut arena = Arena::new(scratch, head.target.decoded_bytes_max());
        let found = routes::find(head.method, head.target.path, &mut arena);
        Some(asked(&head, &found, Err(problem::NO_BODY), 0))
    }

    /// How many chunks and escapes it has looked at since this was asked last: what makes some bytes
    /// of a request cost so much more than others.
    pub fn take_looks(&mut self) -> usize {
        mem::take(&mut self.looks)
    }

    /// Finds the end of the request, and reads its head.
    fn frame<'a>(
        &mut self,
        input: &'a [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Result<Frame<'a>, Decoded<'a>>, Problem<'static>> {
        if input.len() < self.seen {
            *self = Self {
                looks: self.looks,
                ..Self::default()
            };
        }
        self.seen = input.len();
        let unfinished = |part, wants_continue| {
            Ok(Err(Decoded::Unfinished {
                part,
                wants_continue,
            }))
        };
        let (head, mut body) = match self.body {
            Some(body) => (None, body),
            None => match self.search.end(input)? {
                Some(end) => {
                    let head = Head::parse(&input[self.search.start()..end])?;
                    let bytes_max = body_bytes_max(&head, scratch);
                    (Some(head), Body::new(head.framing, end, bytes_max)?)
                }
                None if self.search.has_begun(input) => return unfinished(Part::Head, false),
                None => return unfinished(Part::Nothing, false),
            },
        };
        let before = body.chunk_count();
        let end = body.end(input);
        self.looks += body.chunk_count() - before;
        let Some(end) = end? else {
            self.body = Some(body);
            // Whoever has sent some of the body did not wait.
            let waits = head.is_some_and(|it| it.expects_continue) && input.len() == body.start;
            return unfinished(Part::Body, waits);
        };
        let head = match head {
            Some(head) => head,
            None => Head::parse(&input[self.search.start()..body.start])?,
        };
        Ok(Ok(Frame { head, body, end }))
    }
}

/// How long the body of this request may be. Asked only if it matters.
fn body_bytes_max(head: &Head<'_>, scratch: &mut Vec<u8>) -> usize {
    if matches!(head.framing, Framing::Length(length) if length <= BODY_BYTES_MAX as u64) {
        return BODY_BYTES_MAX;
    }
    let mut arena = Arena::new(scratch, head.target.decoded_bytes_max());
    let found = routes::find(head.method, head.target.path, &mut arena);
    found
        .route
        .map_or(BODY_BYTES_MAX, |route| route.row().body_bytes_max)
}

/// A request that is there in full.
struct Frame<'a> {
    head: Head<'a>,
    body: Body,
    end: usize,
}

impl<'a> Frame<'a> {
    /// What is asked, and how many looks that took.
    fn read(&self, input: &'a [u8], scratch: &'a mut Vec<u8>) -> (Asked<'a>, usize) {
        let head = &self.head;
        let room = head.target.decoded_bytes_max()
            + self.body.arena_bytes()
            + fields::decoded_bytes_max(&input[self.body.start..self.end]);
        let mut arena = Arena::new(scratch, room);
        let found = routes::find(head.method, head.target.path, &mut arena);
        let what = self.ask(input, &found, &mut arena);
        let mut asked = asked(head, &found, what, self.end);
        let context = &mut asked.context;
        if let Ok(Ask::Engine { request, by }) = what {
            context.owner = by.map_or("", |by| by.owner);
            context.mode = mode(&request);
            context.number = number(&request);
        }
        if let Ok(Ask::Break { fence, .. }) = what {
            context.number = fence.0.cast_signed();
        }
        if let Ok(Ask::Range { of, request }) = what {
            context.owner = str::from_utf8(request.owner).unwrap_or_default();
            context.client = of.id;
            context.range = range(request.ask);
        }
        (asked, arena.looks)
    }

    fn ask(
        &self,
        input: &'a [u8],
        found: &routes::Found<'a>,
        arena: &mut Arena<'a>,
    ) -> Result<Ask<'a>, Problem<'a>> {
        let route = found.route?;
        let row = route.row();
        if row.template.contains('{') {
            target::check_name(found.name, row.naming)?;
        }
        // LockServer looks at no query, so neither do its routes here.
        let query = if found.is_lease {
            b""
        } else {
            self.head.target.query
        };
        let query = Query::parse(query, row.query, arena)?;
        let body = self.body.bytes(input, arena);
        let fields = match row.takes {
            Takes::Nothing => Fields::NONE,
            Takes::Perhaps(_) if body.is_empty() => Fields::NONE,
            Takes::Object(_) if body.is_empty() => return Err(problem::NO_BODY),
            _ if !self.head.is_json => return Err(problem::NOT_JSON),
            Takes::Perhaps(known) | Takes::Object(known) => fields::read(body, known, arena)?,
        };
        ask::ask(&Said {
            route,
            name: found.name,
            second: found.second,
            query,
            fields,
            request_id: self.head.request_id,
        })
    }
}

/// A request with this head, which asks for this.
fn asked<'a>(
    head: &Head<'a>,
    found: &routes::Found<'a>,
    what: Result<Ask<'a>, Problem<'a>>,
    used: usize,
) -> Asked<'a> {
    let context = Context {
        route: found.route.ok(),
        is_lease: found.is_lease,
        is_head: head.method == Method::Head,
        keep_alive: head.keep_alive,
        is_http_1_0: head.is_http_1_0,
        // A longer one is refused, and not repeated.
        name: Some(found.name)
            .filter(|name| name.len() <= LOCK_NAME_BYTES_MAX)
            .unwrap_or_default(),
        owner: "",
        client: "",
        request_id: head.request_id,
        mode: None,
        number: 0,
        range: None,
    };
    Asked {
        used,
        context,
        what,
        bearer: head.bearer,
        host: head.host,
        origin: head.origin,
        fetch_site: head.fetch_site,
        if_none_match: head.if_none_match,
        target: [head.target.path, head.target.query],
    }
}

/// How a key is to be held.
const fn mode(request: &Request<'_>) -> Option<Mode> {
    match request {
        Request::Acquire { mode, .. } => Some(*mode),
        _ => None,
    }
}

/// Which bytes are to be locked, and how; nobody is in the way of bytes that do not exist.
fn range(ask: RangeAsk) -> Option<(ByteRange, Sharing)> {
    let RangeAsk::Lock { mode, span, .. } = ask else {
        return None;
    };
    ByteRange::new(span.start, span.len).map(|range| (range, mode))
}

/// What a counter is to be.
const fn number(request: &Request<'_>) -> i64 {
    match request {
        Request::SetCount { value, .. } => *value,
        _ => 0,
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "smuggling_tests.rs"]
mod smuggling_tests;
