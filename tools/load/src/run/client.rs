//! One connection that sends requests and waits for their answers: what scenarios need besides
//! runs.

use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};

use crate::run::codec::{Answer, Codec, Key, LockToken, NO_KEY, NO_TOKEN, Request};
use crate::run::conn::{Conn, Received};
use crate::run::spec::Spec;
use crate::servers::target::{Protocol, Stream, Target};

/// How often it waits for an answer, a tenth of a second each time.
const TRIES: usize = 50;

/// How often it waits so long for a lock that somebody else has.
const GRANT_TRIES: usize = 12;

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
        let poll = Poll::new()?;
        let mut client = Self {
            codec: Codec::new(target),
            conn: Conn::new(target.connect()?, Token(0), poll.registry())?,
            poll,
            events: Events::with_capacity(8),
            scratch: Vec::new(),
        };
        if target.guarded && target.protocol != Protocol::Http {
            client.must(Request::Auth, &NO_KEY)?;
        }
        Ok(client)
    }

    /// The connection alone, which no poll watches.
    pub(crate) fn into_stream(self) -> io::Result<Stream> {
        let mut stream = self.conn.into_stream();
        self.poll.registry().deregister(&mut stream)?;
        Ok(stream)
    }

    /// Sends a request that must be answered `ok`.
    pub(crate) fn must(&mut self, request: Request<'_>, key: &Key) -> io::Result<()> {
        self.ask(request, key, |answer| {
            matches!(answer, Answer::Ok(_)).then_some(())
        })
    }

    /// Sends one request; `read` returns what the answer means, or `None` if it is wrong.
    pub(crate) fn ask<T>(
        &mut self,
        request: Request<'_>,
        key: &Key,
        mut read: impl FnMut(&Answer<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let mut found = None;
        let write = |_, codec: &Codec, out: &mut Vec<u8>| codec.encode(request, key, out);
        self.many(1, 1, write, |answer| {
            found = read(answer);
            found.is_some()
        })?;
        found.ok_or_else(|| io::Error::other("an answer without sense"))
    }

    /// Takes a lock and returns its token.
    pub(crate) fn lock(&mut self, key: &Key) -> io::Result<LockToken> {
        self.ask(Request::Lock(&NO_TOKEN), key, |answer| {
            answer.grant().map(|(token, _)| token)
        })
    }

    /// Sends requests, and does not wait for their answers.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.conn.outbox.extend_from_slice(bytes);
        self.conn.flush(self.poll.registry())
    }

    /// Asks for a lock, and does not wait for the answer; [`Client::granted`] does.
    pub(crate) fn begin_lock(&mut self, key: &Key) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.codec.encode(Request::Lock(&NO_TOKEN), key, &mut bytes);
        self.send(&bytes)
    }

    /// Waits for that lock, much longer than for other answers.
    pub(crate) fn granted(&mut self) -> io::Result<()> {
        let mut tries = GRANT_TRIES;
        loop {
            let nothing = |_, _: &Codec, _: &mut Vec<u8>| {};
            match self.many(1, 1, nothing, |answer| answer.grant().is_some()) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && tries > 1 => tries -= 1,
                other => return other,
            }
        }
    }

    /// Sends `count` requests, at most `window` of them at once. `write` appends the request with
    /// this number, `fine` judges each answer.
    pub(crate) fn many(
        &mut self,
        count: usize,
        window: usize,
        mut write: impl FnMut(usize, &Codec, &mut Vec<u8>),
        mut fine: impl FnMut(&Answer<'_>) -> bool,
    ) -> io::Result<()> {
        let (mut asked, mut answered, mut silent) = (0, 0, 0);
        while answered < count {
            // Half a window at a time, so that both sides always have work.
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

/// The codec for this server and this run; refuses work that the server does not know.
pub(crate) fn codec_for(spec: &Spec, target: &Target) -> io::Result<Codec> {
    if !spec.is_known_to(target) {
        let what = format!(
            "this server has no {} on {}",
            spec.workload.name(),
            spec.keys
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let mut codec = Codec::new(target);
    if target.protocol == Protocol::Resp && !spec.plain_del {
        let mut client = Client::connect(target)?;
        let name = client.ask(Request::LoadScript, &NO_KEY, |answer| match answer {
            Answer::Ok(name) => (*name).try_into().ok(),
            _ => None,
        })?;
        codec.script = Some(name);
    }
    Ok(codec)
}
