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
    /// It sends them again when all are answered.
    Ask {
        /// Answers that have not come.
        owed: usize,
    },
}

/// What a visit came to.
pub(super) enum Visited {
    /// Nothing to do until the poll reports it.
    Waits,
    /// There is more to do.
    HasMore,
    /// The connection is over.
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
            comes_again: false,
        }
    }

    /// Reads and writes what it can; counts the requests that were sent.
    pub(super) fn visit(&mut self, scratch: &mut [u8], requests: &mut u64) -> Visited {
        for _ in 0..STEPS_MAX {
            let read = if self.reads {
                self.read(scratch)
            } else {
                Ok(false)
            };
            match (read, self.write(requests)) {
                (Ok(false), Ok(false)) => return Visited::Waits,
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
            let lines = memchr::memchr_iter(b'\n', &scratch[..length]).count();
            *owed = owed.saturating_sub(lines);
        }
        Ok(true)
    }

    /// Writes once; returns whether something was sent.
    fn write(&mut self, requests: &mut u64) -> io::Result<bool> {
        if self.written == self.block.bytes.len() {
            match self.does {
                Does::Flood | Does::Ask { owed: 0 } if self.written > 0 => self.written = 0,
                _ => return Ok(false),
            }
        }
        if let Does::Ask { owed } = &mut self.does
            && self.written == 0
        {
            *owed = self.block.requests;
        }
        let length = match self.stream.write(&self.block.bytes[self.written..]) {
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
    fn a_flooder_waits_for_nothing_but_lets_others_have_their_turn() {
        let (mut member, _server) = member(Does::Flood);
        let mut requests = 0;
        let visited = member.visit(&mut [0; 64], &mut requests);
        assert!(matches!(visited, Visited::HasMore));
        assert_eq!(requests, 2 * STEPS_MAX as u64);
    }
}
