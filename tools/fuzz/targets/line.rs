//! The line protocol: frames do not depend on how their bytes are cut into reads, limits of length hold, and the
//! client spells every request so that the daemon reads the same.

#![no_main]

mod stream;

use latchd::wire::answer::WireFence;
use latchd::wire::buf::{INBOX_BYTES_MAX, Inbox, Pool};
use latchd::wire::client::push_request;
use latchd::wire::codec::{Decoded, LineCodec};
use latchd::wire::command::{Asked, Malformed};
use latchd::wire::verbs::{LINE_BYTES_MAX, VALUE_BYTES_MAX, Verb};
use libfuzzer_sys::fuzz_target;
use memchr::{memchr, memchr_iter};
use stream::{Cuts, SINGLE_BYTES_MAX, expand};

/// Most CRs of a line, which do not count toward its length.
const LINE_CRS_MAX: usize = 256;

/// What is read in a stream. Requests are kept as the client spells them.
#[derive(Debug, PartialEq)]
enum Seen {
    Request {
        used: usize,
        verb: Option<Verb>,
        spelled: Result<Vec<u8>, Malformed>,
    },
    TooLong,
    Foreign,
    /// The stream ends within a request, which has so many bytes.
    Rest(usize),
}

fuzz_target!(|input: &[u8]| {
    let [seed, input @ ..] = input else { return };
    let stream = expand(input);
    let whole = read(&stream, || usize::MAX);
    let mut cuts = Cuts::new(*seed, &stream);
    assert_eq!(read(&stream, || cuts.next()), whole, "cut into reads");
    if stream.len() <= SINGLE_BYTES_MAX {
        assert_eq!(read(&stream, || 1), whole, "byte by byte");
    }
});

/// Reads a stream as the server does. Each read has at most as many bytes as `cut` says.
fn read(mut stream: &[u8], mut cut: impl FnMut() -> usize) -> Vec<Seen> {
    let (mut pool, mut inbox, mut scratch) = (Pool::new(), Inbox::default(), Vec::new());
    let mut codec = LineCodec::new(WireFence::Auto);
    let mut seen = Vec::new();
    while !stream.is_empty() {
        let piece = &stream[..cut().min(stream.len())];
        let taken = inbox.append(piece, INBOX_BYTES_MAX, &mut pool);
        assert!(taken > 0, "an unfinished request fills the inbox");
        stream = &stream[taken..];
        loop {
            let input = inbox.bytes();
            let used = match codec.decode(input, &mut scratch) {
                Decoded::Request(asked) => {
                    let used = asked.used;
                    check_limits(&input[..used], asked.verb);
                    seen.push(note(&asked));
                    used
                }
                Decoded::Unfinished { .. } => {
                    let ends = memchr_iter(b'\n', input).count();
                    assert!(ends < 3, "a whole frame is unfinished");
                    assert!(!is_too_long(input), "a line is too long and is waited for");
                    break;
                }
                Decoded::TooLong => {
                    assert!(is_too_long(input), "no line is too long");
                    seen.push(Seen::TooLong);
                    return seen;
                }
                Decoded::Foreign => {
                    seen.push(Seen::Foreign);
                    return seen;
                }
            };
            inbox.consume(used, &mut pool);
        }
        assert!(scratch.capacity() <= 4 * INBOX_BYTES_MAX);
        assert!(inbox.capacity() <= 4 * INBOX_BYTES_MAX);
    }
    seen.push(Seen::Rest(inbox.len()));
    seen
}

/// Keeps a request, and checks that the daemon reads in the client's words what it has read before.
fn note(asked: &Asked<'_>) -> Seen {
    let spelled = asked.command.map(|command| {
        let mut spelled = Vec::new();
        let verb = push_request(&mut spelled, &command)
            .unwrap_or_else(|why| panic!("{command:?} cannot be spelled: {why}"));
        let mut scratch = Vec::new();
        match LineCodec::new(WireFence::Auto).decode(&spelled, &mut scratch) {
            Decoded::Request(again) => {
                assert_eq!(again.used, spelled.len(), "{command:?}");
                assert_eq!(again.verb, Some(verb), "{command:?}");
                assert_eq!(again.command, Ok(command));
            }
            other => panic!("{command:?} is read as {other:?}"),
        }
        spelled
    });
    Seen::Request {
        used: asked.used,
        verb: asked.verb,
        spelled,
    }
}

/// A whole frame has three lines, none of which is longer than it may be.
fn check_limits(frame: &[u8], verb: Option<Verb>) {
    assert_eq!(frame.last(), Some(&b'\n'));
    assert_eq!(memchr_iter(b'\n', frame).count(), 3);
    let argument_bytes_max = verb.map_or(LINE_BYTES_MAX, Verb::argument_bytes_max);
    assert!(argument_bytes_max <= VALUE_BYTES_MAX);
    let bytes_max = [LINE_BYTES_MAX, LINE_BYTES_MAX, argument_bytes_max];
    for (line, bytes_max) in frame.split(|&byte| byte == b'\n').zip(bytes_max) {
        assert!(fits(line, bytes_max), "a line of {} bytes", line.len());
    }
}

fn fits(line: &[u8], bytes_max: usize) -> bool {
    let crs = memchr_iter(b'\r', line).count();
    crs <= LINE_CRS_MAX && line.len() - crs <= bytes_max
}

/// Whether one of the first three lines is longer than it may be, finished or not.
fn is_too_long(input: &[u8]) -> bool {
    if input.len() <= LINE_BYTES_MAX {
        return false;
    }
    let (letters, rest) = split_line(input);
    let (key, rest) = split_line(rest);
    let (argument, _) = split_line(rest);
    if !fits(letters, LINE_BYTES_MAX) || !fits(key, LINE_BYTES_MAX) {
        return true;
    }
    let letters: Vec<u8> = letters
        .iter()
        .copied()
        .filter(|&byte| byte != b'\r')
        .collect();
    let bytes_max = Verb::parse(&letters).map_or(LINE_BYTES_MAX, Verb::argument_bytes_max);
    !fits(argument, bytes_max)
}

/// The first line, finished or not, and what is behind it.
fn split_line(input: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b'\n', input) {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (input, &[]),
    }
}
