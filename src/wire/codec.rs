//! One codec per connection: bytes become requests, and everything that is said becomes bytes.
//!
//! The seam between the server and the protocols it speaks. The server never sees how a request was
//! framed nor how an answer is spelled; what a protocol has to remember from the one to the other
//! is kept here. Never touches a socket or the lock table. The two protocols ask for different things,
//! so each has its own way to read; what HTTP remembers is in `http/codec.rs`.

use std::rc::Rc;

use crate::engine::types::{Push, Reply};
use crate::wire::answer::{self, Answer, WireFence};
use crate::wire::buf::{HTTP_INBOX_BYTES_MAX, INBOX_BYTES_MAX, Pool};
use crate::wire::command::{Asked, Command};
use crate::wire::http::HttpCodec;
use crate::wire::http::events::{self, Framing};
use crate::wire::line;
use crate::wire::outbox::{Outbox, SharedLine};

/// How one connection speaks.
#[derive(Debug)]
pub enum Codec {
    /// Three lines in, one line out.
    Line(LineCodec),
    /// A head and a body in, a head and a body out; or events without an end.
    Http(Box<HttpCodec>),
}

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole request.
    Request(Asked<'a>),
    /// The beginning of a request; come back with the same bytes and more.
    Unfinished {
        /// It has come further than the last time, so its sender may take its time again.
        moved_on: bool,
    },
    /// It is longer than it may be (code 12): answer [`Answer::Error`], then close.
    TooLong,
    /// Another protocol knocked: close at once and say nothing.
    Foreign,
}

impl Codec {
    /// The line protocol, on a server that says the fence where `wire_fence` says.
    #[must_use]
    pub const fn line(wire_fence: WireFence) -> Self {
        Self::Line(LineCodec::new(wire_fence))
    }

    /// HTTP.
    #[must_use]
    pub fn http() -> Self {
        Self::Http(Box::default())
    }

    /// What HTTP remembers, if that is spoken.
    #[inline]
    pub const fn as_http(&mut self) -> Option<&mut HttpCodec> {
        match self {
            Self::Line(_) => None,
            Self::Http(codec) => Some(codec),
        }
    }

    /// Whether HTTP is spoken.
    #[inline]
    #[must_use]
    pub const fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// Whether the bytes last decoded were the beginning of a request.
    #[inline]
    #[must_use]
    pub const fn is_mid_request(&self) -> bool {
        match self {
            Self::Line(codec) => codec.unfinished_lines.is_some(),
            Self::Http(codec) => codec.is_mid_request(),
        }
    }

    /// The most bytes of a request, or of several, that are kept until they are served.
    #[inline]
    #[must_use]
    pub const fn inbox_bytes_max(&self) -> usize {
        match self {
            Self::Line(_) => INBOX_BYTES_MAX,
            Self::Http(_) => HTTP_INBOX_BYTES_MAX,
        }
    }
}

/// What the line protocol has to remember of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LineCodec {
    wire_fence: WireFence,
    /// What `hello` asked for.
    hello_fence: Option<bool>,
    /// It has sent a verb that only fence-reading clients know.
    reads_fence: bool,
    /// It has said `hello`.
    introduced: bool,
    /// The request that is or will be answered next always has the fence in its answer.
    carries_fence: bool,
    /// Whole lines of the frame that is not finished, if there is one.
    unfinished_lines: Option<u8>,
}

impl LineCodec {
    /// On a server that says the fence where `wire_fence` says.
    #[must_use]
    pub const fn new(wire_fence: WireFence) -> Self {
        Self {
            wire_fence,
            hello_fence: None,
            reads_fence: false,
            introduced: false,
            carries_fence: false,
            unfinished_lines: None,
        }
    }

    /// Reads the request that `input` begins with, and notes what it says about its answer. May be
    /// called again with the same input: a request need not be served when it is first read.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Decoded<'a> {
        match line::decode_plain(input) {
            Some(asked) => {
                self.note(&asked);
                Decoded::Request(asked)
            }
            None => self.decode_any(input, scratch),
        }
    }

    #[inline(never)]
    fn decode_any<'a>(&mut self, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Decoded<'a> {
        match line::decode_any(input, scratch) {
            line::Decoded::Frame(asked) => {
                self.note(&asked);
                Decoded::Request(asked)
            }
            line::Decoded::Incomplete { lines, started } => {
                let unfinished_lines = started.then_some(lines);
                let moved_on = self.unfinished_lines != unfinished_lines;
                self.unfinished_lines = unfinished_lines;
                Decoded::Unfinished { moved_on }
            }
            line::Decoded::TooLong => Decoded::TooLong,
            line::Decoded::Foreign => Decoded::Foreign,
        }
    }

    /// A frame is there in full: remembers what its answer has to look like.
    #[inline]
    fn note(&mut self, asked: &Asked<'_>) {
        self.unfinished_lines = None;
        // A frame that is malformed shows nothing: its verb may be there by accident, in a stream
        // that is out of step.
        let (Some(verb), Ok(command)) = (asked.verb, &asked.command) else {
            return;
        };
        let row = verb.row();
        self.carries_fence = row.carries_fence;
        self.reads_fence |= row.shows_fence_reader;
        if let Command::Hello(hello) = command {
            self.hello_fence = hello.fence.or(self.hello_fence);
            self.introduced = true;
        }
    }

    /// Appends the answer that is this value. A long one is not copied.
    pub fn append_value(&self, outbox: &mut Outbox, pool: &mut Pool, reply: &Reply) {
        let value = match reply {
            Reply::Value(value) => value,
            Reply::Popped(popped) => &popped.value,
            _ => return self.encode(outbox.buf(pool), Answer::Reply(reply)),
        };
        if value.len() < SHARED_BYTES_MIN {
            return self.encode(outbox.buf(pool), Answer::Reply(reply));
        }
        outbox.buf(pool).extend_from_slice(answer::VALUE_BEGIN);
        outbox.share(&SharedLine::of_value(value, pool));
        outbox.buf(pool).push(b'\n');
    }

    /// Appends what is said. A reply answers the request decoded last.
    ///
    /// Nearly every caller says one kind of thing, and so inlines to one call. What is said seldom,
    /// or at length, is never inlined itself: it would crowd the loop that serves.
    #[inline(always)]
    pub fn encode(&self, out: &mut Vec<u8>, answer: Answer<'_>) {
        match answer {
            Answer::Reply(reply) => {
                let with_fence = || self.wants_fence(self.carries_fence);
                answer::push_reply(out, reply, self.introduced, with_fence);
            }
            Answer::Push(push) => answer::push_push(out, push),
            Answer::Ok => out.extend_from_slice(answer::OK),
            Answer::Error => out.extend_from_slice(answer::ERROR),
            Answer::ErrorAuth => out.extend_from_slice(answer::ERROR_AUTH),
            Answer::ErrorForbidden => out.extend_from_slice(answer::ERROR_FORBIDDEN),
            Answer::NotLeader(address) => answer::push_not_leader(out, address),
            Answer::Hello(welcome) => {
                answer::push_welcome(out, welcome, self.wants_fence(false));
            }
            Answer::Json(write) => answer::push_json(out, write),
        }
    }

    /// Whether an answer tells the fence, if it is one that always does or one that need not.
    ///
    /// In `Auto`, what a client says with `hello` counts for more than what it shows by its verbs;
    /// but `fence=0` does not take the field from the verbs that always have it, since their shape
    /// is fixed.
    fn wants_fence(&self, always: bool) -> bool {
        match self.wire_fence {
            WireFence::Always => true,
            WireFence::Never => false,
            WireFence::Auto => always || self.hello_fence.unwrap_or(self.reads_fence),
        }
    }
}

/// A push of at least so many bytes is kept once for all its recipients, and a value of so many is
/// shared with the table; a shorter one is copied: that costs less than to count and to find the
/// parts.
const SHARED_BYTES_MIN: usize = 1024;

/// One push for many recipients: spelled once for each way to spell it that is met.
#[derive(Debug, Default)]
pub struct Spelled {
    line: Spelling,
    chunked: Spelling,
    until_close: Spelling,
}

/// One way to spell a push.
#[derive(Debug, Default)]
struct Spelling {
    bytes: Vec<u8>,
    /// The same, for all outboxes to share, if it is long.
    shared: Option<Rc<SharedLine>>,
}

/// How a push was put into an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// How many bytes it has.
    pub bytes: usize,
    /// How many of them were copied.
    pub copied: usize,
}

impl Spelled {
    /// Begins the next push.
    pub fn clear(&mut self) {
        self.line.clear();
        if !self.chunked.bytes.is_empty() || !self.until_close.bytes.is_empty() {
            self.chunked.clear();
            self.until_close.clear();
        }
    }

    /// Appends the push as this recipient's codec spells it. The same push until [`Spelled::clear`].
    /// A connection that speaks HTTP and is no stream is told nothing.
    #[inline]
    pub fn append(
        &mut self,
        codec: &Codec,
        push: &Push,
        outbox: &mut Outbox,
        pool: &mut Pool,
    ) -> Appended {
        match codec {
            Codec::Line(codec) => {
                let spell = |out: &mut Vec<u8>| codec.encode(out, Answer::Push(push));
                self.line.append(outbox, pool, spell)
            }
            Codec::Http(codec) => self.append_event(codec, push, outbox, pool),
        }
    }

    #[cold]
    fn append_event(
        &mut self,
        codec: &HttpCodec,
        push: &Push,
        outbox: &mut Outbox,
        pool: &mut Pool,
    ) -> Appended {
        let Some(framing) = codec.framing() else {
            return Appended::default();
        };
        let spelling = match framing {
            Framing::Chunked => &mut self.chunked,
            Framing::UntilClose => &mut self.until_close,
        };
        spelling.append(outbox, pool, |out| events::push(out, framing, push))
    }
}

impl Spelling {
    fn clear(&mut self) {
        self.bytes.clear();
        self.shared = None;
    }

    #[inline(always)]
    fn append(
        &mut self,
        outbox: &mut Outbox,
        pool: &mut Pool,
        spell: impl FnOnce(&mut Vec<u8>),
    ) -> Appended {
        let Self { bytes, shared } = self;
        if bytes.is_empty() {
            spell(bytes);
        }
        if bytes.len() < SHARED_BYTES_MIN {
            outbox.buf(pool).extend_from_slice(bytes);
        } else {
            outbox.share(shared.get_or_insert_with(|| SharedLine::new(bytes, pool)));
        }
        Appended {
            bytes: bytes.len(),
            copied: if shared.is_none() { bytes.len() } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Fence, Millis};
    use crate::shard::Shard;
    use crate::wire::answer::Welcome;
    use crate::wire::verbs::TABLE;

    fn codec(wire_fence: WireFence) -> LineCodec {
        LineCodec::new(wire_fence)
    }

    /// Has the codec read one frame, `|` standing for LF.
    fn read(codec: &mut LineCodec, frame: &str) {
        let bytes = frame.replace('|', "\n");
        let mut scratch = Vec::new();
        let decoded = codec.decode(bytes.as_bytes(), &mut scratch);
        assert!(
            matches!(decoded, Decoded::Request(it) if it.command.is_ok() && it.used == bytes.len()),
            "{frame}: {decoded:?}"
        );
    }

    fn spelled(codec: LineCodec, answer: Answer<'_>) -> String {
        let mut out = b"before\n".to_vec();
        codec.encode(&mut out, answer);
        let text = String::from_utf8(out).unwrap();
        text.strip_prefix("before\n").unwrap().to_owned()
    }

    #[test]
    fn the_mode_decides_first_then_the_verb_then_the_connection() {
        for row in &TABLE {
            for (hello_fence, reads_fence, wanted) in [
                (None, false, false),
                (None, true, true),
                (Some(false), false, false),
                (Some(false), true, false),
                (Some(true), false, true),
                (Some(true), true, true),
            ] {
                let wants = |wire_fence| {
                    let codec = LineCodec {
                        hello_fence,
                        reads_fence,
                        ..codec(wire_fence)
                    };
                    codec.wants_fence(row.carries_fence)
                };
                assert!(wants(WireFence::Always));
                assert!(!wants(WireFence::Never));
                assert_eq!(
                    wants(WireFence::Auto),
                    row.carries_fence || wanted,
                    "{} {hello_fence:?} {reads_fence}",
                    row.letters
                );
            }
        }
    }

    #[test]
    fn a_reply_is_spelled_for_the_request_read_last() {
        let renewed = Reply::Renewed {
            lease: Millis::from_secs(33),
            fence: Fence(7),
        };
        let mut codec = codec(WireFence::Auto);
        for (frame, line) in [
            ("n|k|t|", "ok 33\n"),
            ("rn|k|t|", "ok 33 7\n"),
            ("sn|k|t|", "ok 33 7\n"),
            ("hello|_|fence=0|", "ok 33\n"),
            ("n|k|t|", "ok 33\n"),
            ("hello|_|fence=1|", "ok 33 7\n"),
            ("n|k|t|", "ok 33 7\n"),
            ("hello|_|name=me|", "ok 33 7\n"),
            ("hello|_|fence=0|", "ok 33\n"),
            ("wn|k|t|", "ok 33 7\n"),
        ] {
            read(&mut codec, frame);
            assert_eq!(spelled(codec, Answer::Reply(&renewed)), line, "{frame}");
        }
    }

    #[test]
    fn an_answer_may_tell_more_to_a_client_that_said_hello() {
        let reply = Reply::InGrace(Millis(250));
        let mut codec = codec(WireFence::Auto);
        for (frame, line) in [
            ("rangelock|f|sh 0 0 0|", "error_grace\n"),
            ("hello|||", "error_grace 250\n"),
            ("rangelock|f|sh 0 0 0|", "error_grace 250\n"),
        ] {
            read(&mut codec, frame);
            assert_eq!(spelled(codec, Answer::Reply(&reply)), line, "{frame}");
        }
    }

    #[test]
    fn a_verb_shows_whether_its_sender_reads_the_fence() {
        for row in &TABLE {
            let mut codec = codec(WireFence::Auto);
            let argument = match row.letters {
                "bwait" | "sl" | "attach" | "rangeunlock" => "1 1",
                "lrange" => "0 0",
                "rangelock" => "sh 0 0 0",
                "rangetest" | "rangecancel" | "rangereclaim" => "sh 0 0",
                "kcas" => "a\tb\t0",
                "auth" | "signal" => "x",
                "hello" | "e" | "re" | "we" | "grace" => "",
                _ => "1",
            };
            let mut scratch = Vec::new();
            // Malformed, where it can be: that shows nothing.
            let malformed = format!("{}\n a \n-\n", row.letters);
            codec.decode(malformed.as_bytes(), &mut scratch);
            let LineCodec { reads_fence, .. } = codec;
            assert!(!reads_fence, "{}", row.letters);
            read(&mut codec, &format!("{}|k|{argument}|", row.letters));
            let LineCodec { reads_fence, .. } = codec;
            assert_eq!(reads_fence, row.shows_fence_reader, "{}", row.letters);
        }
    }

    #[test]
    fn what_the_server_says_itself_is_spelled_here_too() {
        let mut codec = codec(WireFence::Auto);
        let mut welcome = Welcome {
            version: "1.2.3",
            epoch: 7,
            detects_deadlocks: false,
            keeps: false,
            shard: None,
            cluster_ttl: None,
            name: None,
        };
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=0\n"
        );
        read(&mut codec, "hello|_|fence=1 name=me|");
        welcome.name = Some("me");
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=1 name=me\n"
        );
        welcome.detects_deadlocks = true;
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=1 deadlock=1 name=me\n"
        );
        welcome.keeps = true;
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=1 deadlock=1 keep=1 name=me\n"
        );
        (welcome.detects_deadlocks, welcome.shard) = (false, Shard::new(1, 3));
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=1 keep=1 shard=1/3 name=me\n"
        );
        welcome.cluster_ttl = Some(Millis(5_000));
        assert_eq!(
            spelled(codec, Answer::Hello(welcome)),
            "ok latchd/1.2.3 epoch=7 fence=1 keep=1 shard=1/3 cluster_ttl=5000 name=me\n"
        );
        for (answer, line) in [
            (Answer::Ok, "ok\n"),
            (Answer::Error, "error\n"),
            (Answer::ErrorAuth, "error_auth\n"),
            (Answer::NotLeader(None), "error_not_leader\n"),
            (
                Answer::NotLeader(Some("10.0.0.1:6388")),
                "error_not_leader 10.0.0.1:6388\n",
            ),
            (Answer::Json(&|out| out.extend_from_slice(b"{}")), "ok {}\n"),
        ] {
            assert_eq!(spelled(codec, answer), line);
        }
    }

    #[test]
    fn an_unfinished_frame_moves_on_with_every_line_it_gets() {
        let mut codec = codec(WireFence::Auto);
        let mut scratch = Vec::new();
        for (input, moved_on) in [
            ("l", true),
            ("l\n", true),
            ("l\nk", false),
            ("l\nk\n", true),
            ("l\nk\n1", false),
            ("l\nk\n10", false),
        ] {
            let decoded = codec.decode(input.as_bytes(), &mut scratch);
            assert_eq!(decoded, Decoded::Unfinished { moved_on }, "{input:?}");
            assert!(Codec::Line(codec).is_mid_request());
        }
        read(&mut codec, "l|k|10|");
        assert!(!Codec::Line(codec).is_mid_request());
        let decoded = codec.decode(b"l", &mut scratch);
        assert_eq!(decoded, Decoded::Unfinished { moved_on: true });
    }

    #[test]
    fn a_push_is_spelled_anew_for_each_news_and_a_long_one_is_kept_once_for_all_recipients() {
        let of = |payload: &[u8]| Push::Signal {
            channel: (*b"c").into(),
            payload: payload.into(),
        };
        let (here, there) = (codec(WireFence::Auto), codec(WireFence::Always));
        let mut pool = Pool::new();
        let mut spelled = Spelled::default();
        for payload in [&b"x"[..], b"y", &[b'z'; SHARED_BYTES_MIN]] {
            spelled.clear();
            let push = of(payload);
            let line = [b"sig c ", payload, b"\n"].concat();
            for codec in [here, there, here].map(Codec::Line) {
                let mut outbox = Outbox::default();
                let Appended { bytes, copied } =
                    spelled.append(&codec, &push, &mut outbox, &mut pool);
                assert_eq!((outbox.pending(), bytes), (&line[..], line.len()));
                assert_eq!(copied == 0, payload.len() >= SHARED_BYTES_MIN);
            }
        }
    }
}
