//! The bytes of one connection: the beginning of an answer, and what is still to be sent.
//!
//! Reads as long as there is something and writes once per turn. Never looks inside the bytes.
//!
//! It asks to be told about room to write only while something is unsent: a unix socket reports
//! room whenever its peer reads, and each report would be a wake-up for nothing.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use mio::{Interest, Registry, Token};

use crate::servers::target::Stream;

/// Length of a full read. A shorter read means that the socket is empty.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// A connection, and which requests wait for its answers.
pub(crate) struct Conn {
    stream: Stream,
    token: Token,
    /// Whether the poll watches for room to write.
    wants_room: bool,
    /// The beginning of an answer whose end has not come yet.
    rest: Vec<u8>,
    pub(crate) outbox: Vec<u8>,
    sent: usize,
    /// The workers that wait for an answer, in the order of their requests.
    pub(crate) pending: VecDeque<u32>,
}

/// What a read brought.
pub(crate) enum Received {
    /// Bytes, and there may be more.
    Some(usize),
    /// Bytes, and now the socket is empty.
    Last(usize),
    Nothing,
    /// The server closed the connection.
    End,
}

impl Conn {
    /// Registers the connection: from now on the poll reports under `token` that there is something
    /// to read.
    pub(crate) fn new(mut stream: Stream, token: Token, registry: &Registry) -> io::Result<Self> {
        registry.register(&mut stream, token, Interest::READABLE)?;
        Ok(Self {
            stream,
            token,
            wants_room: false,
            rest: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            pending: VecDeque::new(),
        })
    }

    /// The socket itself, which nobody reads from now on.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Reads into `scratch`, behind what the last read left over; returns how much is there in all.
    pub(crate) fn read(&mut self, scratch: &mut Vec<u8>) -> io::Result<Received> {
        let old = self.rest.len();
        scratch.resize(old + READ_BYTES, 0);
        scratch[..old].copy_from_slice(&self.rest);
        loop {
            return match self.stream.read(&mut scratch[old..]) {
                Ok(0) => Ok(Received::End),
                Ok(n) if n == READ_BYTES => Ok(Received::Some(old + n)),
                Ok(n) => Ok(Received::Last(old + n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Keeps the beginning of an answer for the next read.
    pub(crate) fn keep(&mut self, rest: &[u8]) {
        self.rest.clear();
        self.rest.extend_from_slice(rest);
    }

    /// Sends what it can; the rest goes when the socket is writable again.
    pub(crate) fn flush(&mut self, registry: &Registry) -> io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.want_room(true, registry);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        self.want_room(false, registry)
    }

    fn want_room(&mut self, wants: bool, registry: &Registry) -> io::Result<()> {
        if self.wants_room == wants {
            return Ok(());
        }
        self.wants_room = wants;
        let interest = match wants {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        registry.reregister(&mut self.stream, self.token, interest)
    }
}
