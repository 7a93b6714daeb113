//! One connection that asks and waits for its answers: what scenarios need besides a run.

use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};

use crate::run::codec::{Answer, Codec, Key, Request};
use crate::run::conn::{Conn, Received};
use crate::servers::target::{Stream, Target};

/// How often an answer is waited for, a tenth of a second each.
const TRIES: usize = 50;

/// A connection with a poll of its own.
pub(crate) struct Client {
    pub(crate) codec: Codec,
    conn: Conn,
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
}

impl Client {
    /// Connects, without Redis' script.
    pub(crate) fn connect(target: &Target) -> io::Result<Self> {
        let codec = Codec {
            protocol: target.protocol,
            script: None,
        };
        Self::with(codec, target)
    }

    pub(crate) fn with(codec: Codec, target: &Target) -> io::Result<Self> {
        let poll = Poll::new()?;
        Ok(Self {
            codec,
            conn: Conn::new(target.connect()?, Token(0), poll.registry())?,
            poll,
            events: Events::with_capacity(8),
            scratch: Vec::new(),
        })
    }

    /// Keeps the connection and asks nothing any more.
    pub(crate) fn into_stream(self) -> Stream {
        self.conn.into_stream()
    }

    /// A request that has to be answered `ok`.
    pub(crate) fn must(&mut self, request: Request<'_>, key: &Key) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.codec.encode(request, key, &mut bytes);
        self.ask(&bytes, |answer| {
            matches!(answer, Answer::Ok(_)).then_some(())
        })
    }

    /// One request as bytes; `read` makes sense of the answer, or none.
    pub(crate) fn ask<T>(
        &mut self,
        request: &[u8],
        mut read: impl FnMut(&Answer<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let mut found = None;
        let write = |_, _: &Codec, out: &mut Vec<u8>| out.extend_from_slice(request);
        self.many(1, 1, write, |answer| {
            found = read(answer);
            found.is_some()
        })?;
        found.ok_or_else(|| io::Error::other("an answer without sense"))
    }

    /// So many requests, at most `window` of them on their way; `write` appends the one with this
    /// number, `fine` judges each answer.
    pub(crate) fn many(
        &mut self,
        count: usize,
        window: usize,
        mut write: impl FnMut(usize, &Codec, &mut Vec<u8>),
        mut fine: impl FnMut(&Answer<'_>) -> bool,
    ) -> io::Result<()> {
        let (mut asked, mut answered, mut silent) = (0, 0, 0);
        while answered < count {
            // Half a window at a time, so that both sides have something to do.
            if asked - answered <= window / 2 {
                let until = count.min(answered + window);
                for number in asked..until {
                    write(number, &self.codec, &mut self.conn.outbox);
                }
                asked = until;
                self.conn.flush(self.poll.registry())?;
            }
            match self.conn.read(&mut self.scratch)? {
                Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Received::Nothing if silent == TRIES => return Err(io::ErrorKind::TimedOut.into()),
                Received::Nothing => {
                    let nap = Some(Duration::from_millis(100));
                    match self.poll.poll(&mut self.events, nap) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        other => other?,
                    }
                    silent = if self.events.is_empty() {
                        silent + 1
                    } else {
                        0
                    };
                    self.conn.flush(self.poll.registry())?;
                }
                Received::Some(length) | Received::Last(length) => {
                    let mut bytes = &self.scratch[..length];
                    while answered < asked
                        && let Some((answer, used)) = self.codec.decode(bytes)
                    {
                        if !fine(&answer) {
                            return Err(io::Error::other(format!("answered {answer}")));
                        }
                        bytes = &bytes[used..];
                        answered += 1;
                    }
                    self.conn.keep(bytes);
                }
            }
        }
        Ok(())
    }
}
