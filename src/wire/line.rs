//! Three lines in: a command, a key and an argument become a [`Command`](command::Command).
//!
//! A frame is borrowed straight from the input; only when it contains a CR is it copied, without
//! its CRs, into the caller's scratch. Framing is decided before meaning: a frame that makes no
//! sense is still consumed whole, so the stream stays in step. Never panics on peer input, never
//! allocates but for scratch, and knows nothing of the lock table. What the lines mean is in
//! `command`.

use memchr::{memchr, memchr_iter, memchr2};

use crate::wire::command::{self, Asked, Malformed};
use crate::wire::verbs::{LINE_BYTES_MAX, VALUE_BYTES_MAX, Verb};

/// Most CRs in one line. They are dropped and do not count toward the line's length, so without a
/// bound of their own a peer could make us buffer them for ever. Fate: [`Decoded::TooLong`].
pub(super) const LINE_CRS_MAX: usize = 256;

/// Longest whole frame in raw bytes: its lines, their CRs, their LFs. An inbox that holds this much
/// can always make progress.
pub(super) const FRAME_BYTES_MAX: usize =
    2 * (LINE_BYTES_MAX + LINE_CRS_MAX + 1) + VALUE_BYTES_MAX + LINE_CRS_MAX + 1;

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded<'a> {
    /// A whole frame.
    Frame(Asked<'a>),
    /// The beginning of a frame; come back with the same bytes and more.
    Incomplete {
        /// How many of the frame's lines are there in full: 0, 1 or 2.
        lines: u8,
        /// Whether any byte of the frame is there.
        started: bool,
    },
    /// A line is longer than it may be (code 12): answer `error`, then close.
    TooLong,
    /// Another protocol knocked: close at once and say nothing.
    Foreign,
}

/// Reads the frame that `input` begins with, as `codec` does.
#[cfg(test)]
pub(super) fn decode<'a>(input: &'a [u8], scratch: &'a mut Vec<u8>) -> Decoded<'a> {
    match decode_plain(input) {
        Some(frame) => Decoded::Frame(frame),
        None => decode_any(input, scratch),
    }
}

/// Reads a frame that is as nearly all are: whole, short lines, no CR, a verb that exists, a key
/// without blanks. `None` means that it has to be looked at properly.
#[inline]
pub(super) fn decode_plain(input: &[u8]) -> Option<Asked<'_>> {
    let (command, rest) = plain_line(input, BLANK + 1)?;
    let verb = Verb::parse(command)?;
    let (key, rest) = plain_line(rest, BLANK + 1)?;
    let (argument, rest) = plain_line(rest, b'\r' + 1)?;
    Some(Asked {
        verb: Some(verb),
        command: command::parse_plain(verb, key, argument),
        used: input.len() - rest.len(),
    })
}

/// Any other frame, or what there is of one.
///
/// Stateless: an unfinished frame is looked at again from its start. That is bounded by the longest
/// line: a peer that sends a 64 KiB secret one byte at a time makes us rescan 32 KiB per packet on
/// average, which costs less than receiving the packet did.
#[inline(never)]
pub(super) fn decode_any<'a>(input: &'a [u8], scratch: &'a mut Vec<u8>) -> Decoded<'a> {
    let command = match scan(input, LINE_BYTES_MAX) {
        Scan::Whole(line) => line,
        _ if has_foreign_start(input) => return Decoded::Foreign,
        Scan::TooLong => return Decoded::TooLong,
        Scan::Partial => {
            let started = !input.is_empty();
            return Decoded::Incomplete { lines: 0, started };
        }
    };
    let verb = if command.has_crs {
        scratch.clear();
        push_without_crs(scratch, command.raw);
        Verb::parse(scratch)
    } else {
        Verb::parse(command.raw)
    };
    if verb.is_none() && is_foreign_line(command.raw) {
        return Decoded::Foreign;
    }

    let key = match scan(command.rest, LINE_BYTES_MAX) {
        Scan::Whole(line) => line,
        Scan::TooLong => return Decoded::TooLong,
        Scan::Partial => {
            return Decoded::Incomplete {
                lines: 1,
                started: true,
            };
        }
    };

    let argument_bytes_max = verb.map_or(LINE_BYTES_MAX, Verb::argument_bytes_max);
    let argument = match scan(key.rest, argument_bytes_max) {
        Scan::Whole(line) => line,
        Scan::TooLong => return Decoded::TooLong,
        Scan::Partial => {
            return Decoded::Incomplete {
                lines: 2,
                started: true,
            };
        }
    };

    let used = input.len() - argument.rest.len();
    let (key, argument) = if key.has_crs || argument.has_crs {
        scratch.clear();
        push_without_crs(scratch, key.raw);
        let key_len = scratch.len();
        push_without_crs(scratch, argument.raw);
        scratch.split_at(key_len)
    } else {
        (key.raw, argument.raw)
    };
    let command = match verb {
        Some(verb) => command::parse(verb, key, argument),
        None => Err(Malformed::UnknownCommand),
    };
    Decoded::Frame(Asked {
        verb,
        command,
        used,
    })
}

/// The last of ASCII's blanks.
const BLANK: u8 = b' ';

/// The first line and what follows it, if that line is short and its LF is the first byte below
/// `limit`, which is at most 128.
///
/// Eight bytes at a time: a vector search would have to be called, and most lines are over by then.
#[inline]
fn plain_line(input: &[u8], limit: u8) -> Option<(&[u8], &[u8])> {
    const WORDS_MAX: usize = 6;
    // No longer than any line may be.
    const _: () = assert!(WORDS_MAX * 8 + 7 <= LINE_BYTES_MAX);
    const ONES: u64 = u64::MAX / 255;
    let (words, _) = input.as_chunks::<8>();
    let mut end = 0;
    for &word in words.iter().take(WORDS_MAX) {
        let word = u64::from_le_bytes(word);
        // A byte that is below borrows from its top bit. The borrow may spoil bytes behind it, but
        // only the first one counts.
        let below = word.wrapping_sub(ONES * u64::from(limit)) & !word & (ONES << 7);
        if below != 0 {
            end += below.trailing_zeros() as usize / 8;
            return split_at_lf(input, end);
        }
        end += 8;
    }
    let tail = input[end..].iter().take(7);
    end += tail.take_while(|&&byte| byte >= limit).count();
    split_at_lf(input, end)
}

/// The bytes before and after the LF at this position, if there is one.
#[inline]
fn split_at_lf(input: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    let (line, rest) = input.split_at_checked(at)?;
    match rest {
        [b'\n', rest @ ..] => Some((line, rest)),
        _ => None,
    }
}

/// Where a line ends, if it does.
enum Scan<'a> {
    Whole(Line<'a>),
    Partial,
    TooLong,
}

struct Line<'a> {
    /// Without its LF, with its CRs.
    raw: &'a [u8],
    has_crs: bool,
    /// What follows the LF.
    rest: &'a [u8],
}

fn scan(input: &[u8], bytes_max: usize) -> Scan<'_> {
    match memchr2(b'\n', b'\r', input) {
        Some(stop) if input[stop] == b'\r' => scan_with_crs(input, bytes_max),
        Some(end) if end <= bytes_max => Scan::Whole(Line {
            raw: &input[..end],
            has_crs: false,
            rest: &input[end + 1..],
        }),
        None if input.len() <= bytes_max => Scan::Partial,
        _ => Scan::TooLong,
    }
}

#[cold]
fn scan_with_crs(input: &[u8], bytes_max: usize) -> Scan<'_> {
    // One byte more than any legal line: if it is all there, one of the two bounds is broken.
    let window = &input[..input.len().min(bytes_max + LINE_CRS_MAX + 1)];
    let end = memchr(b'\n', window);
    let raw = &window[..end.unwrap_or(window.len())];
    let crs = memchr_iter(b'\r', raw).count();
    if crs > LINE_CRS_MAX || raw.len() - crs > bytes_max {
        return Scan::TooLong;
    }
    match end {
        Some(end) => Scan::Whole(Line {
            raw,
            has_crs: true,
            rest: &input[end + 1..],
        }),
        None => Scan::Partial,
    }
}

fn push_without_crs(out: &mut Vec<u8>, raw: &[u8]) {
    for part in raw.split(|&byte| byte == b'\r') {
        out.extend_from_slice(part);
    }
}

/// Whether these are the first bytes of HTTP or TLS. Asked as soon as they are there, because a
/// browser made to talk to us must not reach the lines in its body; no legal verb begins like this.
#[cold]
fn has_foreign_start(input: &[u8]) -> bool {
    const STARTS: [&[u8]; 11] = [
        b"GET ",
        b"POST",
        b"PUT ",
        b"HEAD ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"TRACE ",
        b"PRI * HTTP/2",
        b"\x16\x03", // a TLS handshake record
    ];
    STARTS.iter().any(|start| input.starts_with(start))
        || input
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"host:"))
}

/// Whether a whole command line, known to be no verb, belongs to another protocol; here a method we
/// never heard of is recognised by the version that follows it.
#[cold]
fn is_foreign_line(line: &[u8]) -> bool {
    const VERSION: &[u8] = b" HTTP/";
    has_foreign_start(line) || line.windows(VERSION.len()).any(|part| part == VERSION)
}
