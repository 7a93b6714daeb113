//! A connection of one's own: for everything that belongs to a connection, such as subscriptions.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::conn::{Conn, Fault, Reply};
use super::error::{Error, shown};
use super::hold::failover_within;
use super::look::{Lookout, led_elsewhere};
use super::{Hops, Inner, key_of_frame};
use crate::base::Nanos;
use crate::wire::client::{Line, News, push_request};
use crate::wire::command::Command;

/// A push of the server, as it wrote it.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::Client;
/// use latchd::engine::types::Request;
/// use latchd::wire::client::News;
/// use latchd::wire::command::Command;
///
/// let client = Client::connect("localhost")?;
/// let mut session = client.session("job")?;
/// session.ask(&Command::Engine(Request::Watch { pattern: b"job" }))?;
/// if let Some(piece) = session.news(Duration::from_secs(1))?
///     && let News::Watch { event, .. } = piece.news()
/// {
///     println!("{event:?}");
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Piece {
    line: Vec<u8>,
}

impl Piece {
    /// What it says.
    #[must_use]
    pub fn news(&self) -> News<'_> {
        match Line::read(&self.line) {
            Some(Line::Push(news)) => news,
            // It was read once already, when it came.
            _ => unreachable!("a push that is none"),
        }
    }

    /// The line itself, without its end.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line
    }
}

/// A connection of one's own, until it is dropped. What is acquired or subscribed to on it ends with it,
/// and it is never made again: when it breaks, or another member of its cluster leads, everything on it is over.
///
/// ```no_run
/// use latchd::client::Client;
/// use latchd::wire::command::Command;
///
/// let client = Client::connect("localhost")?;
/// let mut session = client.session("job")?;
/// session.ask(&Command::Ping)?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
pub struct Session {
    inner: Arc<Inner>,
    conn: Conn,
    key: Box<[u8]>,
    /// Whoever hears nothing looks now and then whether another member leads.
    lookout: Lookout,
    /// It has broken, and is of no further use.
    is_broken: bool,
    /// Nothing was answered on it yet, so another connection will do as well.
    is_unused: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.server()).finish()
    }
}

impl Session {
    /// Until when range locks are kept that the attached client has to have back after a restart.
    pub(super) fn reclaim_until(&self) -> Option<Nanos> {
        self.conn.reclaim_until
    }

    /// In a cluster: how long it takes until another leader is found when this one fails.
    pub(super) fn failover_time(&self) -> Option<Duration> {
        let ttl = self
            .conn
            .cluster_ttl
            .filter(|_| !self.conn.has_no_other())?;
        Some(failover_within(ttl))
    }

    pub(super) fn open(inner: &Arc<Inner>, key: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            conn: inner.open(inner.shard(key), Some(key))?,
            inner: Arc::clone(inner),
            key: key.into(),
            lookout: Lookout::new(),
            is_broken: false,
            is_unused: true,
        })
    }

    /// Asks on this connection, and waits for the answer. News that comes meanwhile is kept.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if the server says no. After any other error but
    /// [`Misuse`](Error::Misuse) the connection is over.
    pub fn ask(&mut self, command: &Command<'_>) -> Result<Reply, Error> {
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, command)?;
        self.check()?;
        let key = (!verb.row().ignores_key).then(|| key_of_frame(&frame));
        let mut hops = Hops::until(clock::after(self.inner.options.connect_timeout));
        let Self { inner, conn, .. } = self;
        let mut answer = inner.ask_on(conn, &frame, verb, command, inner.deadline(command));
        while self.is_unused
            && let Ok(reply) = &answer
            && let Some(told) = reply.sends_elsewhere()
        {
            let gone = self
                .inner
                .go_elsewhere(&mut self.conn, key, told, &mut hops);
            if let Err(error) = gone {
                self.is_broken = true;
                return Err(error);
            }
            let Self { inner, conn, .. } = self;
            answer = inner.ask_on(conn, &frame, verb, command, inner.deadline(command));
        }
        self.is_unused = false;
        self.lookout.heard();
        match answer {
            Ok(reply) => {
                // Whatever was on it is elsewhere by now.
                self.is_broken = reply.sends_elsewhere().is_some();
                self.inner.refused(self.conn.shard, &frame, reply)
            }
            Err(Fault::Broken(why)) if !super::is_repeatable(command) => {
                self.is_broken = true;
                Err(Error::Unknown {
                    server: self.server(),
                    key: shown(key_of_frame(&frame)),
                    fence: None,
                    why,
                })
            }
            Err(fault) => Err(self.broken(fault)),
        }
    }

    /// The next push, if one comes within this time.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn news(&mut self, timeout: Duration) -> Result<Option<Piece>, Error> {
        self.check()?;
        let deadline = clock::after(timeout);
        loop {
            // A member of a cluster that was stopped is silent for ever, as if there were no news.
            let is_only = self.conn.has_no_other();
            let until = match is_only {
                true => deadline,
                false => deadline.min(self.lookout.next_at()),
            };
            match self.conn.hear_news(until) {
                Ok(line) => {
                    self.lookout.heard();
                    return Ok(Some(Piece { line }));
                }
                Err(Fault::Broken(error)) if error.kind() == ErrorKind::TimedOut => {}
                Err(fault) => return Err(self.broken(fault)),
            }
            let Self {
                lookout,
                inner,
                conn,
                ..
            } = self;
            if !is_only && lookout.is_led_elsewhere(&inner.options, conn, Some(&self.key)) {
                return Err(self.broken(led_elsewhere()));
            }
            if clock::now() >= deadline {
                return Ok(None);
            }
        }
    }

    fn server(&self) -> String {
        self.conn.server.to_string()
    }

    fn check(&self) -> Result<(), Error> {
        self.inner.check_process()?;
        match self.is_broken {
            true => Err(Error::Down {
                server: self.server(),
                why: ErrorKind::NotConnected.into(),
            }),
            false => Ok(()),
        }
    }

    fn broken(&mut self, fault: Fault) -> Error {
        self.is_broken = true;
        self.conn.error(fault)
    }
}
