//! The body of a request: how much of it has come, and where it ends.
//!
//! Remembers how far it has looked, so that a body which arrives byte by byte is not looked at again
//! and again. Chunks are taken as they are plainest: no extensions, no trailers, no blanks.

use super::arena::Arena;
use super::head::Framing;
use super::problem::{self, Problem};

/// How many bytes of a chunked body may be sizes and line ends. Whoever needs more sends very small
/// chunks, and is answered 413.
pub const CHUNK_OVERHEAD_BYTES_MAX: usize = 16 * 1024;

/// Most digits of a chunk's size, leading zeros and all.
const SIZE_DIGITS_MAX: usize = 8;

/// A body of which perhaps only a part has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    /// Where it begins in the input.
    pub(super) start: usize,
    rest: Rest,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It ends here.
    Until(usize),
    Chunks(Chunks),
}

/// The chunks that are there in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunks {
    /// Where the next one begins.
    at: usize,
    /// What they hold together.
    bytes: usize,
    count: usize,
}

impl Body {
    /// A body that begins at `start` and may be as long as `bytes_max`.
    pub(super) fn new(
        framing: Framing,
        start: usize,
        bytes_max: usize,
    ) -> Result<Self, Problem<'static>> {
        let rest = match framing {
            Framing::Length(length) if length > bytes_max as u64 => {
                return Err(problem::BODY_TOO_LONG);
            }
            Framing::Length(length) => Rest::Until(start + length as usize),
            Framing::Chunked => Rest::Chunks(Chunks {
                at: start,
                bytes: 0,
                count: 0,
            }),
        };
        Ok(Self {
            start,
            rest,
            bytes_max,
        })
    }

    /// Looks at what has come since the last time. Where the body ends, if it is there.
    pub(super) fn end(&mut self, input: &[u8]) -> Result<Option<usize>, Problem<'static>> {
        match &mut self.rest {
            Rest::Until(end) => Ok((input.len() >= *end).then_some(*end)),
            Rest::Chunks(chunks) => {
                let end = chunks.take(input, self.bytes_max)?;
                let overhead = end.unwrap_or(chunks.at) - self.start - chunks.bytes;
                if overhead > CHUNK_OVERHEAD_BYTES_MAX {
                    return Err(problem::BODY_TOO_LONG);
                }
                Ok(end)
            }
        }
    }

    /// How many chunks have come.
    pub(super) const fn chunk_count(&self) -> usize {
        match self.rest {
            Rest::Chunks(Chunks { count, .. }) => count,
            Rest::Until(_) => 0,
        }
    }

    /// How much of the arena [`Body::bytes`] takes.
    pub(super) const fn arena_bytes(&self) -> usize {
        match self.rest {
            Rest::Chunks(Chunks { bytes, count, .. }) if count > 1 => bytes,
            _ => 0,
        }
    }

    /// The body in one piece, once it is there in full. Only of several chunks a copy is made.
    pub(super) fn bytes<'a>(&self, input: &'a [u8], arena: &mut Arena<'a>) -> &'a [u8] {
        let chunks = match self.rest {
            Rest::Until(end) => return &input[self.start..end],
            Rest::Chunks(chunks) => chunks,
        };
        let mut each = Pieces(&input[self.start..]);
        if chunks.count <= 1 {
            return each.next().unwrap_or_default();
        }
        let whole = arena.piece(|room| {
            let mut length = 0;
            for piece in each {
                room[length..length + piece.len()].copy_from_slice(piece);
                length += piece.len();
            }
            Some(length)
        });
        whole.unwrap_or_default()
    }
}

impl Chunks {
    /// Takes the chunks that are there in full. Where the last one ends, if it is among them.
    fn take(&mut self, input: &[u8], bytes_max: usize) -> Result<Option<usize>, Problem<'static>> {
        while let Some((size, line_bytes)) = size_line(&input[self.at..])? {
            let data = self.at + line_bytes;
            // Before it has come: nobody has to wait for what is not going to be taken.
            if size > bytes_max - self.bytes {
                return Err(problem::BODY_TOO_LONG);
            }
            let end = data + size + 2;
            match input.get(data + size..).unwrap_or_default() {
                [b'\r', b'\n', ..] => {}
                [] | [b'\r'] => return Ok(None),
                _ => return Err(problem::BAD_CHUNK),
            }
            if size == 0 {
                return Ok(Some(end));
            }
            self.at = end;
            self.bytes += size;
            self.count += 1;
        }
        Ok(None)
    }
}

/// The size of a chunk, and how long the line is that says it; nothing if the line has no end yet.
fn size_line(input: &[u8]) -> Result<Option<(usize, usize)>, Problem<'static>> {
    let mut size = 0;
    for (index, &byte) in input.iter().enumerate() {
        match (byte, char::from(byte).to_digit(16)) {
            (_, Some(digit)) if index < SIZE_DIGITS_MAX => size = size << 4 | digit as usize,
            (b'\r', None) if index > 0 => {
                return match input.get(index + 1) {
                    Some(b'\n') => Ok(Some((size, index + 2))),
                    Some(_) => Err(problem::BAD_CHUNK),
                    None => Ok(None),
                };
            }
            _ => return Err(problem::BAD_CHUNK),
        }
    }
    Ok(None)
}

/// What the chunks of a whole body hold, one after the other.
struct Pieces<'a>(&'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, line_bytes) = size_line(self.0).ok()??;
        let piece = self.0.get(line_bytes..line_bytes + size)?;
        self.0 = self.0.get(line_bytes + size + 2..)?;
        (size > 0).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a chunked body that comes in pieces of so many bytes; `|` stands for CRLF.
    fn read(text: &str, step: usize) -> Result<Option<(usize, Vec<u8>)>, u16> {
        let input = text.replace('|', "\r\n").into_bytes();
        let mut body = Body::new(Framing::Chunked, 0, 20).unwrap();
        for upto in (0..input.len()).step_by(step).chain([input.len()]) {
            let come = &input[..upto];
            if let Some(end) = body.end(come).map_err(|it| it.status)? {
                let mut scratch = Vec::new();
                let mut arena = Arena::new(&mut scratch, body.arena_bytes());
                return Ok(Some((end, body.bytes(come, &mut arena).to_vec())));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_are_put_together_however_they_arrive() {
        for (text, want) in [
            ("0||", Ok(Some((5, "")))),
            ("5|hello|0||", Ok(Some((15, "hello")))),
            ("3|hel|2|lo|0||GET", Ok(Some((20, "hello")))),
            ("A|0123456789|0||", Ok(Some((20, "0123456789")))),
            ("00000002|\r\n|0||", Ok(Some((19, "\r\n")))),
            ("5|hello|0|", Ok(None)),
            ("5|hel", Ok(None)),
            ("", Ok(None)),
            ("5", Ok(None)),
            // Not sizes.
            ("|", Err(400)),
            ("g|", Err(400)),
            ("+5|hello|", Err(400)),
            ("-1|", Err(400)),
            ("0x5|hello|", Err(400)),
            ("5 |hello|", Err(400)),
            (" 5|hello|", Err(400)),
            ("5;a=b|hello|", Err(400)),
            ("5\nhello|", Err(400)),
            ("5\rhello|", Err(400)),
            ("000000005|hello|", Err(400)),
            ("ffffffffffffffff1|", Err(400)),
            ("٣|abc|", Err(400)),
            // Not where it should end.
            ("5|hello!|0||", Err(400)),
            ("5|hello\n0||", Err(400)),
            ("0|X: y||", Err(400)),
            ("0|\n", Err(400)),
            // More than there may be, as soon as it is announced.
            ("15|", Err(413)),
            ("ffffffff|", Err(413)),
            ("14|01234567890123456789|1|", Err(413)),
        ] {
            let want = want.map(|it| it.map(|(end, body)| (end, body.as_bytes().to_vec())));
            for step in [1, 2, 3, 1000] {
                assert_eq!(read(text, step), want, "{text} by {step}");
            }
        }
    }

    #[test]
    fn chunks_that_are_mostly_sizes_are_too_long() {
        let mut body = Body::new(Framing::Chunked, 0, 1 << 20).unwrap();
        let mut input = Vec::new();
        while input.len() <= CHUNK_OVERHEAD_BYTES_MAX / 5 * 6 {
            assert_eq!(body.end(&input), Ok(None));
            input.extend_from_slice(b"1\r\nx\r\n");
        }
        assert_eq!(body.end(&input), Err(problem::BODY_TOO_LONG));
    }

    #[test]
    fn a_length_may_be_as_long_as_it_may_be() {
        let ends =
            |length| Body::new(Framing::Length(length), 3, 20).map(|mut it| it.end(&[0; 23]));
        assert_eq!(ends(0), Ok(Ok(Some(3))));
        assert_eq!(ends(20), Ok(Ok(Some(23))));
        assert_eq!(ends(21), Err(problem::BODY_TOO_LONG));
        assert_eq!(ends(u64::MAX), Err(problem::BODY_TOO_LONG));
        let mut body = Body::new(Framing::Length(20), 3, 20).unwrap();
        assert_eq!(body.end(&[0; 22]), Ok(None));
    }
}
