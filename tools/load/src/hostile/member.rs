//! One attacker: a connection, what it sends, and whether it reads.
//!
//! Moves bytes and counts lines; never waits.

use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;

use latchd::wire::verbs::Verb;

use crate::run::codec::spell;
use crate::servers::target::Stream;

/// How often one attacker reads and writes before the next has its turn.
const STEPS_MAX: usize = 8;

/// Requests that are sent together.
#[derive(Default)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    pub(super) requests: usize,
    /// Whether they are for the other door.
    pub(super) over_http: bool,
}

impl Block {
    pub(super) fn push(&mut self, verb: Verb, key: &[u8], argument: &[u8]) {
        spell(verb, key, argument, &mut self.bytes);
        self.requests += 1;
    }
}

/// What it does with its requests.
#[derive(Clone, Copy)]
pub(super) enum Does {
    /// It sends them once.
    Once,
    /// It sends them again and again.
    Flood,
    /// It sends so many bytes at once and the others one by one, again and again.
    Drip {
        /// How many.
        at_once: usize,
    },
    /// It sends them again when all are answered.
    Ask {
        /// Answers that have not come.
        owed: usize,
    },
    /// It sends them once and leaves as soon as anything is answered. The end of the connection
    /// tells it as much as an answer.
    Guess,
}

/// What a visit came to.
pub(super) enum Visited {
    /// Nothing to do until the poll reports it.
    Waits,
    /// There is more to do.
    HasMore,
    /// The connection is over, or the member leaves.
    Ended,
}

/// One attacker.
pub(super) struct Member {
    pub(super) stream: Stream,
    pub(super) block: Rc<Block>,
    /// How much of the block is sent.
    pub(super) written: usize,
    pub(super) does: Does,
    pub(super) reads: bool,
    /// How much of the end of a head was read last.
    head_end: usize,
    /// Whether it comes again when the server has closed its connection.
    pub(super) comes_again: bool,
}

impl Member {
    pub(super) const fn new(stream: Stream, block: Rc<Block>, does: Does, reads: bool) -> Self {
        Self {
            stream,
            block,
            written: 0,
            does,
            reads,
            head_end: 0,
            comes_again: false,
        }
    }

    /// Whether its end answers a guess that it has sent.
    pub(super) fn is_judged(&self) -> bool {
        matches!(self.does, Does::Guess) && self.written == self.block.bytes.len()
    }

    /// Reads and writes what it can; counts the requests that were sent.
    pub(super) fn visit(&mut self, scratch: &mut [u8], requests: &mut u64) -> Visited {
        let steps = match self.does {
            Does::Drip { .. } => 1,
            _ => STEPS_MAX,
        };
        for _ in 0..steps {
            let read = if self.reads {
                self.read(scratch)
            } else {
                Ok(false)
            };
            match (read, self.write(requests)) {
                (Ok(false), Ok(false)) => return Visited::Waits,
                (Ok(true), _) if matches!(self.does, Does::Guess) => return Visited::Ended,
                (Ok(_), Ok(_)) => {}
                _ => return Visited::Ended,
            }
        }
        Visited::HasMore
    }

    /// Reads once; returns whether there was something.
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        let length = match self.stream.read(scratch) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) if is_nothing_yet(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        if let Does::Ask { owed } = &mut self.does {
            let come = &scratch[..length];
            let answers = if self.block.over_http {
                heads(come, &mut self.head_end)
            } else {
                memchr::memchr_iter(b'\n', come).count()
            };
            *owed = owed.saturating_sub(answers);
        }
        Ok(true)
    }

    /// Writes once; returns whether something was sent.
    fn write(&mut self, requests: &mut u64) -> io::Result<bool> {
        if self.written == self.block.bytes.len() {
            match self.does {
                Does::Flood | Does::Drip { .. } | Does::Ask { owed: 0 } if self.written > 0 => {
                    self.written = 0
                }
                _ => return Ok(false),
            }
        }
        if let Does::Ask { owed } = &mut self.does
            && self.written == 0
        {
            *owed = self.block.requests;
        }
        let rest = &self.block.bytes[self.written..];
        let piece = match self.does {
            Does::Drip { at_once } => match at_once.saturating_sub(self.written) {
                0 => &rest[..1],
                left => &rest[..left],
            },
            _ => rest,
        };
        let length = match self.stream.write(piece) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) if is_nothing_yet(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.written += length;
        if self.written == self.block.bytes.len() {
            *requests += self.block.requests as u64;
        }
        Ok(true)
    }
}

/// How many heads of answers end in these bytes. `matched` is how much of the end of one the bytes
/// before them ended with, and then how much these do. No body here holds an empty line.
fn heads(mut bytes: &[u8], matched: &mut usize) -> usize {
    const END: &[u8; 4] = b"\r\n\r\n";
    let mut count = 0;
    loop {
        if *matched == 0 {
            let Some(at) = memchr::memchr(b'\r', bytes) else {
                return count;
            };
            bytes = &bytes[at..];
        }
        let Some((&byte, rest)) = bytes.split_first() else {
            return count;
        };
        *matched = match byte {
            _ if byte == END[*matched] => *matched + 1,
            b'\r' => 1,
            _ => 0,
        };
        if *matched == END.len() {
            count += 1;
            *matched = 0;
        }
        bytes = rest;
    }
}

/// Not now, or not connected yet.
fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use mio::net::UnixStream;

    use super::*;

    /// A member with two requests, and the other end of its connection.
    fn member(does: Does) -> (Member, UnixStream) {
        let (ours, server) = UnixStream::pair().unwrap();
        let mut block = Block::default();
        block.push(Verb::Ping, b"_", b"");
        block.push(Verb::Ping, b"_", b"");
        let member = Member::new(Stream::Unix(ours), Rc::new(block), does, true);
        (member, server)
    }

    #[test]
    fn who_asks_waits_for_every_answer() {
        let (mut member, mut server) = member(Does::Ask { owed: 0 });
        let (mut scratch, mut requests) = ([0; 64], 0);
        for (answers, sent) in [(0, 2), (1, 2), (1, 4), (1, 4), (0, 4), (1, 6)] {
            server.write_all(&b"ok\n".repeat(answers)).unwrap();
            member.visit(&mut scratch, &mut requests);
            assert_eq!(requests, sent, "after {answers} more");
        }
        drop(server);
        let visited = member.visit(&mut scratch, &mut requests);
        assert!(matches!(visited, Visited::Ended));
    }

    #[test]
    fn guesser_leaves_with_the_first_answer_or_with_the_end() {
        for told in [&b"error_auth\n"[..], b""] {
            let (mut member, mut server) = member(Does::Guess);
            let (mut scratch, mut requests) = ([0; 64], 0);
            let visited = member.visit(&mut scratch, &mut requests);
            assert!(matches!(visited, Visited::Waits), "not judged yet");
            assert_eq!(requests, 2, "both requests are sent");
            server.write_all(told).unwrap();
            let _left_open = (!told.is_empty()).then_some(server);
            let visited = member.visit(&mut scratch, &mut requests);
            assert!(matches!(visited, Visited::Ended), "{told:?}");
            assert_eq!(requests, 2, "nothing is sent again");
        }
    }

    #[test]
    fn heads_are_counted_however_they_arrive() {
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}\nHTTP/1.1 200 OK\r\n\r\r\n\r\n{}\n";
        for step in 1..=text.len() {
            let mut matched = 0;
            let pieces = text.chunks(step);
            let counts = pieces.map(|piece| heads(piece, &mut matched));
            assert_eq!(counts.sum::<usize>(), 2, "by {step}");
        }
    }

    #[test]
    fn who_drips_sends_the_rest_byte_by_byte() {
        let (mut member, mut server) = member(Does::Drip { at_once: 3 });
        let (mut scratch, mut requests) = ([0; 64], 0);
        let mut come = [0; 64];
        for length in [3, 1, 1, 1] {
            let visited = member.visit(&mut scratch, &mut requests);
            assert!(matches!(visited, Visited::HasMore));
            assert_eq!(server.read(&mut come).unwrap(), length);
        }
    }

    #[test]
    fn a_flooder_waits_for_nothing_but_lets_others_have_their_turn() {
        let (mut member, _server) = member(Does::Flood);
        let mut requests = 0;
        let visited = member.visit(&mut [0; 64], &mut requests);
        assert!(matches!(visited, Visited::HasMore));
        assert_eq!(requests, 2 * STEPS_MAX as u64);
    }
}
