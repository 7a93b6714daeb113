//! Server-sent events: an answer that has no end, one event for each push.
//!
//! An event is a word and one line of JSON. Whatever bytes a client chose as a name or a payload, they
//! are escaped, so they can neither end the line nor begin another event. Each event is a chunk of its
//! own; HTTP/1.0 has none, and reads until the connection ends.

use super::answer::{push_echoes, status_line};
use super::context::Context;
use super::object::{field, flag, title};
use crate::engine::types::{Loss, Push};
use crate::wire::answer::{change_word, event_word};
use crate::wire::json::push_str_escaped;

/// How a stream is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each event is a chunk.
    Chunked,
    /// The end of the stream is the end of the connection.
    UntilClose,
}

impl Framing {
    /// What the client of this request understands.
    #[must_use]
    pub const fn of(context: &Context<'_>) -> Self {
        if context.is_http_1_0 {
            Self::UntilClose
        } else {
            Self::Chunked
        }
    }
}

/// Hex digits of a chunk's size, with leading zeros: enough for 16 MiB. A push is at most a payload of
/// 64 KiB, six characters for each byte.
const SIZE_DIGITS: usize = 6;

/// The head of a stream; the first event may follow at once. The connection is good for nothing else
/// afterwards.
pub fn begin(out: &mut Vec<u8>, context: &Context<'_>) {
    status_line(out, 200);
    out.extend_from_slice(b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n");
    let framing = Framing::of(context);
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    let closing = Context {
        keep_alive: false,
        ..*context
    };
    push_echoes(out, &closing);
    out.extend_from_slice(b"\r\n");
}

/// An event that tells what happened.
pub fn push(out: &mut Vec<u8>, framing: Framing, push: &Push) {
    match push {
        Push::Lost { key, fence, why } => event(out, framing, b"lost", |out| {
            begin_object(out, "name", key.as_bytes());
            field(out, "fencing_token", fence.0);
            flag(out, "broken", *why == Loss::Broken);
            out.push(b'}');
        }),
        Push::RangeLost {
            resource,
            range,
            owner,
            why,
        } => event(out, framing, b"range_lost", |out| {
            begin_object(out, "resource", resource.as_bytes());
            field(out, "start", range.start());
            field(out, "len", range.len());
            title(out, "owner");
            push_str_escaped(out, owner.as_bytes());
            flag(out, "broken", *why == Loss::Broken);
            out.push(b'}');
        }),
        Push::Signal { channel, payload } => event(out, framing, b"signal", |out| {
            begin_object(out, "channel", channel);
            title(out, "payload");
            push_str_escaped(out, payload);
            out.push(b'}');
        }),
        Push::Watch { event: what, key } => event(out, framing, event_word(*what), |out| {
            begin_object(out, "name", key.as_bytes());
            out.push(b'}');
        }),
        Push::Leader { change, key } => event(out, framing, change_word(*change), |out| {
            begin_object(out, "name", key.as_bytes());
            out.push(b'}');
        }),
    }
}

/// Any event: a word of ours, and `write` appends one JSON value without a line end.
pub fn event(out: &mut Vec<u8>, framing: Framing, word: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    chunk(out, framing, |out| {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\ndata: ");
        write(out);
        out.extend_from_slice(b"\n\n");
    });
}

/// A comment, so that both sides notice when the other is gone.
pub fn beat(out: &mut Vec<u8>, framing: Framing) {
    chunk(out, framing, |out| out.extend_from_slice(b": beat\n\n"));
}

/// The end of a stream that we end.
pub fn end(out: &mut Vec<u8>, framing: Framing) {
    if framing == Framing::Chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// What `write` appends, as one chunk. Its size stands in front of it, and is filled in last.
fn chunk(out: &mut Vec<u8>, framing: Framing, write: impl FnOnce(&mut Vec<u8>)) {
    if framing == Framing::UntilClose {
        return write(out);
    }
    let size_at = out.len();
    out.extend_from_slice(&[b'0'; SIZE_DIGITS]);
    out.extend_from_slice(b"\r\n");
    let start = out.len();
    write(out);
    let mut size = out.len() - start;
    assert!(size >> (4 * SIZE_DIGITS) == 0, "an event of {size} bytes");
    for digit in out[size_at..size_at + SIZE_DIGITS].iter_mut().rev() {
        *digit = b"0123456789abcdef"[size & 15];
        size >>= 4;
    }
    out.extend_from_slice(b"\r\n");
}

/// `{"title":"…"`.
fn begin_object(out: &mut Vec<u8>, title: &str, name: &[u8]) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(b"\":");
    push_str_escaped(out, name);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::routes::Route;
    use super::*;
    use crate::base::Fence;
    use crate::engine::types::{ByteRange, Change, Event};
    use crate::key::Key;

    fn context(is_http_1_0: bool) -> Context<'static> {
        Context {
            route: Some(Route::Watch),
            is_lease: false,
            is_head: false,
            keep_alive: true,
            is_http_1_0,
            name: b"",
            owner: "",
            client: "",
            request_id: "id-1",
            mode: None,
            number: 0,
            range: None,
        }
    }

    fn told(framing: Framing, it: &Push) -> String {
        let mut out = Vec::new();
        push(&mut out, framing, it);
        String::from_utf8(out).unwrap()
    }

    fn signal(channel: &[u8], payload: &[u8]) -> Push {
        Push::Signal {
            channel: channel.into(),
            payload: payload.into(),
        }
    }

    #[test]
    fn a_stream_says_that_it_is_one() {
        let mut out = Vec::new();
        begin(&mut out, &context(false));
        let want = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\
                    X-Request-ID: id-1\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        begin(&mut out, &context(true));
        assert!(!String::from_utf8(out).unwrap().contains("chunked"));
    }

    #[test]
    fn every_push_is_an_event() {
        let key = || Key::from(&b"job"[..]);
        for (it, want) in [
            (
                signal(b"a.b", b"hi"),
                "event: signal\ndata: {\"channel\":\"a.b\",\"payload\":\"hi\"}\n\n",
            ),
            (
                Push::Watch {
                    event: Event::Acquire,
                    key: key(),
                },
                "event: acquire\ndata: {\"name\":\"job\"}\n\n",
            ),
            (
                Push::Leader {
                    change: Change::Failover,
                    key: key(),
                },
                "event: failover\ndata: {\"name\":\"job\"}\n\n",
            ),
            (
                Push::Lost {
                    key: key(),
                    fence: Fence(7),
                    why: Loss::Broken,
                },
                "event: lost\ndata: {\"name\":\"job\",\"fencing_token\":7,\"broken\":true}\n\n",
            ),
            (
                Push::RangeLost {
                    resource: Key::from(&b"f\"1"[..]),
                    range: ByteRange::new((1 << 53) + 1, 0).unwrap(),
                    owner: Key::from(&b"bob"[..]),
                    why: Loss::Expired,
                },
                "event: range_lost\ndata: {\"resource\":\"f\\\"1\",\"start\":9007199254740993,\
                 \"len\":0,\"owner\":\"bob\",\"broken\":false}\n\n",
            ),
        ] {
            assert_eq!(told(Framing::UntilClose, &it), want);
            let chunk = format!("{:06x}\r\n{want}\r\n", want.len());
            assert_eq!(told(Framing::Chunked, &it), chunk);
        }
    }

    #[test]
    fn a_beat_and_the_end_are_framed_too() {
        let mut out = Vec::new();
        beat(&mut out, Framing::Chunked);
        end(&mut out, Framing::Chunked);
        beat(&mut out, Framing::UntilClose);
        end(&mut out, Framing::UntilClose);
        assert_eq!(out, b"000008\r\n: beat\n\n\r\n0\r\n\r\n: beat\n\n");
    }

    #[test]
    fn the_longest_signal_fits_a_chunk() {
        let it = signal(&[1; 256], &[1; 65_536]);
        let told = told(Framing::Chunked, &it);
        let size = usize::from_str_radix(&told[..SIZE_DIGITS], 16).unwrap();
        assert_eq!(told.len(), SIZE_DIGITS + 2 + size + 2);
    }

    proptest! {
        #[test]
        fn nothing_that_is_told_begins_another_event(channel: Vec<u8>, payload: Vec<u8>) {
            let told = told(Framing::UntilClose, &signal(&channel, &payload));
            let lines: Vec<&str> = told.split('\n').collect();
            prop_assert_eq!(lines.len(), 4);
            prop_assert!(!told.contains('\r'));
            let data: serde_json::Value = serde_json::from_str(&lines[1]["data: ".len()..]).unwrap();
            let payload = String::from_utf8_lossy(&payload);
            prop_assert_eq!(data["payload"].as_str(), Some(&*payload));
        }
    }
}
