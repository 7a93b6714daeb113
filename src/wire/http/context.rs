//! What an answer needs to know of its request: borrowed while the request is read, and kept by
//! [`Memo`] while it waits.
//!
//! A memo keeps its memory from one request to the next, so that a steady client costs no allocation.

use uuid::Uuid;

use super::routes::Route;
use crate::engine::types::{ByteRange, Mode, Sharing};

/// What an answer needs to know of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context<'a> {
    /// The route; none if there is none, or not with this method.
    pub route: Option<Route>,
    /// Whether the path is LockServer's: then errors have its shape.
    pub is_lease: bool,
    /// Whether only the head of the answer is told.
    pub is_head: bool,
    /// Whether the connection stays open after the answer.
    pub keep_alive: bool,
    /// Whether the client speaks HTTP/1.0: it knows no chunks, and has to be told what stays open.
    pub is_http_1_0: bool,
    /// The name in the path.
    pub name: &'a [u8],
    /// `owner_id`, or for whom a client locks bytes.
    pub owner: &'a str,
    /// The client that asks about bytes.
    pub client: &'a str,
    /// What the client calls this request; empty if it did not say, or not so that it can be
    /// repeated.
    pub request_id: &'a str,
    /// How a key is to be held.
    pub mode: Option<Mode>,
    /// What a counter is to be, or which fence a grant has that is to be broken.
    pub number: i64,
    /// Which bytes are to be locked, and how.
    pub range: Option<(ByteRange, Sharing)>,
}

impl Context<'static> {
    /// What is known of a request that cannot be read: its answer ends the connection.
    pub const UNREAD: Self = Self {
        route: None,
        is_lease: false,
        is_head: false,
        keep_alive: false,
        is_http_1_0: false,
        name: b"",
        owner: "",
        client: "",
        request_id: "",
        mode: None,
        number: 0,
        range: None,
    };
}

/// A [`Context`] that outlives the bytes of its request.
#[derive(Clone, Debug, Default)]
pub struct Memo {
    /// Name, owner, client and request id, one after the other.
    text: Vec<u8>,
    owner_at: usize,
    client_at: usize,
    request_id_at: usize,
    /// The rest of the context, without its text.
    rest: Option<Context<'static>>,
}

impl Memo {
    /// Remembers this. A request that its client gave no id gets these numbers for one, as a UUID.
    pub fn keep(&mut self, context: &Context<'_>, made: [u64; 2]) {
        self.text.clear();
        self.text.extend_from_slice(context.name);
        self.owner_at = self.text.len();
        self.text.extend_from_slice(context.owner.as_bytes());
        self.client_at = self.text.len();
        self.text.extend_from_slice(context.client.as_bytes());
        self.request_id_at = self.text.len();
        if context.request_id.is_empty() {
            push_uuid(&mut self.text, made);
        } else {
            self.text.extend_from_slice(context.request_id.as_bytes());
        }
        self.rest = Some(Context {
            name: b"",
            owner: "",
            client: "",
            request_id: "",
            ..*context
        });
    }

    /// What is remembered; nothing before the first request.
    #[must_use]
    pub fn context(&self) -> Option<Context<'_>> {
        let text =
            |from: usize, to: usize| str::from_utf8(&self.text[from..to]).unwrap_or_default();
        Some(Context {
            name: &self.text[..self.owner_at],
            owner: text(self.owner_at, self.client_at),
            client: text(self.client_at, self.request_id_at),
            request_id: text(self.request_id_at, self.text.len()),
            ..self.rest?
        })
    }

    /// The answer is the last one of its connection, whatever the request said.
    pub fn end_connection(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.keep_alive = false;
        }
    }

    /// How much memory it has.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity()
    }
}

/// Appends two numbers as a UUID, with its hyphens.
pub(super) fn push_uuid(out: &mut Vec<u8>, [high, low]: [u64; 2]) {
    let mut text = Uuid::encode_buffer();
    let uuid = Uuid::from_u64_pair(high, low);
    out.extend_from_slice(uuid.hyphenated().encode_lower(&mut text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(request_id: &str) -> Context<'_> {
        Context {
            route: Some(Route::AcquireSlot),
            is_lease: false,
            is_head: false,
            keep_alive: true,
            is_http_1_0: false,
            name: b"job\xff",
            owner: "worker-7",
            client: "gw/1",
            request_id,
            mode: Some(Mode::Slot { limit: 3 }),
            number: -1,
            range: ByteRange::new(5, 0).map(|range| (range, Sharing::Exclusive)),
        }
    }

    #[test]
    fn a_memo_says_what_it_was_told() {
        let mut memo = Memo::default();
        assert_eq!(memo.context(), None);
        for id in ["a-long-id", "b"] {
            memo.keep(&context(id), [1, 2]);
            assert_eq!(memo.context(), Some(context(id)));
        }
    }

    #[test]
    fn a_request_without_an_id_gets_one() {
        let mut memo = Memo::default();
        memo.keep(&context(""), [0x2a, 0x9f8e_7d6c_5b4a_3921]);
        let id = memo.context().unwrap().request_id;
        assert_eq!(id, "00000000-0000-002a-9f8e-7d6c5b4a3921");
    }
}
