//! One connection to one server: requests go out, answers come back in their order, news between them.
//!
//! It never blocks by itself: `next` does what can be done now, and whoever may wait calls it again
//! when the socket is ready (`hear`, `ask`). So a thread of the program and the renewal thread use the same
//! connection code. It greets by itself when it is connected: secret, `hello`, `attach`; a member of a cluster that
//! does not lead says so then. A connection that broke or said what cannot be read is of no further use. Never
//! retries.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd};

use super::address::{Server, Spot};
use super::clock;
use super::error::{Error, Refusal, shown};
use super::options::Options;
use super::stream::Stream;
use crate::base::{Millis, Nanos};
use crate::wire::client::{Line, Told, push_request, split_line};
use crate::wire::command::Command;
use crate::wire::verbs::Verb;

/// Longest line of a server: `stats` and parts of lists stay below it. A longer one is garbage.
const LINE_BYTES_MAX: usize = 1 << 20;

/// How much is read at a time.
const READ_BYTES: usize = 16 * 1024;

/// Most bytes of news that are kept while an answer is waited for. A server that tells more at a time
/// than it keeps for a slow reader itself is not listened to any further.
const NEWS_BYTES_MAX: usize = 4 << 20;

/// An answer to a request, as the server wrote it.
///
/// ```no_run
/// use latchd::client::Client;
/// use latchd::wire::client::Told;
/// use latchd::wire::command::Command;
///
/// let client = Client::connect("localhost")?;
/// let reply = client.ask(&Command::Who { key: b"job" })?;
/// if let Told::Json(document) = reply.told() {
///     println!("{}", String::from_utf8_lossy(document));
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reply {
    verb: Verb,
    line: Vec<u8>,
}

impl Reply {
    /// What it means.
    #[must_use]
    pub fn told(&self) -> Told<'_> {
        // It was read once already, when it came.
        Told::read(self.verb, &self.line).unwrap_or(Told::Refused(b"error"))
    }

    /// Where somebody else is who decides, if this server does not.
    pub(super) fn sends_elsewhere(&self) -> Option<Option<String>> {
        match self.told() {
            Told::NotLeader(told) => Some(told.map(|it| String::from_utf8_lossy(it).into_owned())),
            _ => None,
        }
    }

    /// What was asked.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The line itself, without its end.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line
    }
}

/// What came from the server.
pub(super) enum Heard {
    /// The answer to the oldest request that had none.
    Answer(Reply),
    /// A push, whole, which can be read.
    News(Vec<u8>),
}

/// Why a connection is of no further use.
#[derive(Debug)]
pub(super) enum Fault {
    /// It ended, or could not be made, or said nothing in time.
    Broken(io::Error),
    /// It said what no latchd says.
    Garbage(String),
    /// The server does not let us in.
    Refused { verb: Verb, word: String },
    /// Another member of its cluster leads: where, if it knows that.
    NotLeader(Option<String>),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl Fault {
    pub(super) fn of(self, server: &Server) -> Error {
        match self {
            Self::Broken(why) => server.down(why),
            Self::Garbage(said) => {
                let server = server.to_string();
                Error::Garbage { server, said }
            }
            Self::Refused { verb, word } => Error::Refused(Refusal {
                server: server.to_string(),
                verb,
                key: "_".to_owned(),
                word,
                grace: None,
            }),
            Self::NotLeader(told) => server.down(not_leader(told.as_deref())),
        }
    }
}

/// What it means that a server does not lead, where it cannot be followed any further.
pub(super) fn not_leader(told: Option<&str>) -> io::Error {
    let why = match told {
        Some(address) => format!("it does not lead its cluster, and sends to {address}"),
        None => "it does not lead its cluster, and knows of nobody who does".to_owned(),
    };
    io::Error::new(ErrorKind::NotConnected, why)
}

/// A connection.
pub(super) struct Conn {
    options: Arc<Options>,
    /// Which part of the keys it is for.
    pub(super) shard: usize,
    /// The server it leads to.
    pub(super) server: Arc<Server>,
    /// That server has some keys of this part, and is not the one that is asked for the others.
    pub(super) is_guest: bool,
    stream: Stream,
    phase: Phase,
    received: Vec<u8>,
    /// How much of it was read.
    read: usize,
    unsent: Vec<u8>,
    /// What was asked and not answered yet, oldest first.
    asked: VecDeque<Verb>,
    news: VecDeque<Vec<u8>>,
    news_bytes: usize,
    /// The number of this life of the server.
    pub(super) epoch: u64,
    /// How long a leader's lease is, if the server is a member of a cluster.
    pub(super) cluster_ttl: Option<Millis>,
    /// Until when the server keeps range locks for the attached client that this has to have back after a
    /// restart, by our own clock: counted from before it was asked.
    pub(super) reclaim_until: Option<Nanos>,
    /// When it was last used.
    pub(super) used_at: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The socket is not connected yet.
    Connecting,
    /// So many answers are still to come before it may be used.
    Greeting(usize),
    Ready,
}

impl Conn {
    /// Begins to connect.
    pub(super) fn begin(
        options: &Arc<Options>,
        shard: usize,
        server: &Arc<Server>,
        spot: &Spot,
    ) -> Result<Self, Fault> {
        let stream = options.dress(server, Stream::open(spot)?)?;
        let mut conn = Self {
            options: Arc::clone(options),
            shard,
            server: Arc::clone(server),
            is_guest: false,
            stream,
            phase: Phase::Connecting,
            received: Vec::new(),
            read: 0,
            unsent: Vec::new(),
            asked: VecDeque::new(),
            news: VecDeque::new(),
            news_bytes: 0,
            epoch: 0,
            cluster_ttl: None,
            reclaim_until: None,
            used_at: clock::now(),
        };
        conn.greet();
        Ok(conn)
    }

    /// Connects to this server and greets, up to the deadline, at the first of its addresses that works.
    pub(super) fn open(
        options: &Arc<Options>,
        shard: usize,
        server: &Arc<Server>,
        deadline: Nanos,
    ) -> Result<Self, Fault> {
        let spots = server.resolve()?;
        let mut last = Fault::Broken(ErrorKind::NotFound.into());
        for (index, spot) in spots.iter().enumerate() {
            // What is left is shared by those that are left.
            let left = deadline.since(clock::now());
            let share = left / (spots.len() - index) as u64;
            let until = Nanos(clock::now().0.saturating_add(share));
            match Self::begin(options, shard, server, spot).and_then(|mut conn| {
                conn.ready(until)?;
                Ok(conn)
            }) {
                Err(fault @ Fault::Broken(_)) => last = fault,
                // Whoever answers is the server, and another address of it would say the same.
                result => return result,
            }
        }
        Err(last)
    }

    fn greet(&mut self) {
        let options = Arc::clone(&self.options);
        let auth = options
            .auth
            .as_deref()
            .map(|secret| Command::Auth { secret });
        let hello = Some(Command::Hello(options.hello()));
        let attach = options.attach().map(Command::Attach);
        for command in [auth, hello, attach].into_iter().flatten() {
            // That it can be said was found out when the options were made.
            if let Ok(verb) = push_request(&mut self.unsent, &command) {
                self.asked.push_back(verb);
            }
        }
    }

    /// Turns what went wrong here into what the program is told.
    pub(super) fn error(&self, fault: Fault) -> Error {
        fault.of(&self.server)
    }

    /// Waits until the server has let us in.
    fn ready(&mut self, deadline: Nanos) -> Result<(), Fault> {
        while !self.is_ready() {
            if let Some(heard) = self.next()? {
                self.keep_news(heard)?;
                continue;
            }
            if !self.is_ready() {
                self.wait(deadline)?;
            }
        }
        Ok(())
    }

    /// Nobody else can have what is asked for here, as far as we know.
    pub(super) fn has_no_other(&self) -> bool {
        self.options.clusters[self.shard].is_only(&self.server)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether it may be used by whoever comes next: nothing is owed and nothing has come.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_ready()
            && self.asked.is_empty()
            && self.unsent.is_empty()
            && self.news.is_empty()
            && self.read == self.received.len()
            && self.stream.is_quiet()
    }

    /// Whether it has to be told when there is room to write.
    pub(super) fn wants_write(&self) -> bool {
        self.phase == Phase::Connecting || !self.unsent.is_empty() || self.stream.wants_write()
    }

    /// Puts a frame on its way.
    pub(super) fn send(&mut self, frame: &[u8], verb: Verb) {
        self.unsent.extend_from_slice(frame);
        self.asked.push_back(verb);
        self.used_at = clock::now();
    }

    /// Sends a request and waits for its answer. Answers to earlier requests are dropped, news is kept.
    pub(super) fn ask(
        &mut self,
        frame: &[u8],
        verb: Verb,
        deadline: Nanos,
    ) -> Result<Reply, Fault> {
        self.send(frame, verb);
        self.answer(deadline)
    }

    /// Waits for the answer to the last request. Whoever is told that the time is over may wait on.
    pub(super) fn answer(&mut self, deadline: Nanos) -> Result<Reply, Fault> {
        loop {
            match self.hear(deadline)? {
                Heard::Answer(reply) if self.asked.is_empty() => {
                    self.used_at = clock::now();
                    return Ok(reply);
                }
                Heard::Answer(_) => {}
                news @ Heard::News(_) => self.keep_news(news)?,
            }
        }
    }

    /// The next answer or push, up to the deadline.
    pub(super) fn hear(&mut self, deadline: Nanos) -> Result<Heard, Fault> {
        loop {
            match self.next()? {
                Some(heard) => return Ok(heard),
                None => self.wait(deadline)?,
            }
        }
    }

    /// The next push, up to the deadline: one that came meanwhile, or one that comes.
    pub(super) fn hear_news(&mut self, deadline: Nanos) -> Result<Vec<u8>, Fault> {
        if let Some(line) = self.kept_news() {
            return Ok(line);
        }
        loop {
            if let Heard::News(line) = self.hear(deadline)? {
                return Ok(line);
            }
        }
    }

    /// A push that came while an answer was waited for.
    pub(super) fn kept_news(&mut self) -> Option<Vec<u8>> {
        let line = self.news.pop_front()?;
        self.news_bytes -= line.len();
        Some(line)
    }

    fn keep_news(&mut self, heard: Heard) -> Result<(), Fault> {
        if let Heard::News(line) = heard {
            self.news_bytes += line.len();
            if self.news_bytes > NEWS_BYTES_MAX {
                return Err(Fault::Garbage("more news than can be kept".to_owned()));
            }
            self.news.push_back(line);
        }
        Ok(())
    }

    fn wait(&self, deadline: Nanos) -> Result<(), Fault> {
        let result = self.stream.wait(self.wants_write(), deadline);
        Ok(result.map_err(|error| match error.kind() {
            ErrorKind::TimedOut if self.phase == Phase::Connecting => {
                io::Error::new(ErrorKind::TimedOut, "no connection in time")
            }
            ErrorKind::TimedOut => io::Error::new(ErrorKind::TimedOut, "no answer in time"),
            _ => error,
        })?)
    }

    /// Sends and receives what can be without waiting. `None` says that nothing more can be now.
    pub(super) fn next(&mut self) -> Result<Option<Heard>, Fault> {
        if self.phase == Phase::Connecting {
            if !self.stream.is_writable()? {
                return Ok(None);
            }
            self.stream.connected()?;
            self.phase = Phase::Greeting(self.asked.len());
        }
        self.flush()?;
        loop {
            if let Some(line) = self.line()? {
                match self.read_line(line)? {
                    Some(heard) => return Ok(Some(heard)),
                    None => continue, // a greeting
                }
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next whole line of what was received.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let unread = &self.received[self.read..];
        let Some((line, used)) = split_line(unread) else {
            if unread.len() >= LINE_BYTES_MAX {
                return Err(Fault::Garbage(beginning(unread)));
            }
            return Ok(None);
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        self.read += used;
        if self.read == self.received.len() {
            self.received.clear();
            self.read = 0;
        }
        Ok(Some(line))
    }

    fn read_line(&mut self, line: Vec<u8>) -> Result<Option<Heard>, Fault> {
        match Line::read(&line) {
            None => return Err(Fault::Garbage(beginning(&line))),
            Some(Line::Push(_)) => return Ok(Some(Heard::News(line))),
            Some(Line::Answer(_)) => {}
        }
        let verb = self.asked.pop_front();
        let told = verb.and_then(|verb| Some((verb, Told::read(verb, &line)?)));
        let Some((verb, told)) = told else {
            return Err(Fault::Garbage(beginning(&line)));
        };
        if let Phase::Greeting(left) = self.phase {
            match told {
                Told::Hello {
                    epoch, cluster_ttl, ..
                } => (self.epoch, self.cluster_ttl) = (epoch, cluster_ttl),
                Told::Done => {}
                Told::Attached { reclaim, .. } => {
                    // It was not used since it was begun.
                    self.reclaim_until = reclaim.map(|left| self.used_at.after(left));
                }
                Told::NotLeader(told) => {
                    let told = told.map(|it| String::from_utf8_lossy(it).into_owned());
                    return Err(Fault::NotLeader(told));
                }
                _ => {
                    let word = shown(&line);
                    return Err(Fault::Refused { verb, word });
                }
            }
            self.phase = match left {
                1 => Phase::Ready,
                left => Phase::Greeting(left - 1),
            };
            return Ok(None);
        }
        Ok(Some(Heard::Answer(Reply { verb, line })))
    }

    fn flush(&mut self) -> Result<(), Fault> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.last_words(error)),
            }
        }
        match self.stream.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            result => Ok(result?),
        }
    }

    /// A server that closes may have said why: what was received before is worth more than the error.
    fn last_words(&mut self, error: io::Error) -> Fault {
        while self.received.len() < NEWS_BYTES_MAX
            && let Ok(true) = self.fill()
        {}
        while let Ok(Some(line)) = self.line() {
            if let Err(fault) = self.read_line(line) {
                return fault;
            }
        }
        error.into()
    }

    /// Receives what there is; `false` if there is nothing.
    fn fill(&mut self) -> Result<bool, Fault> {
        if self.read > 0 {
            self.received.drain(..self.read);
            self.read = 0;
        }
        let start = self.received.len();
        self.received.resize(start + READ_BYTES, 0);
        let result = self.stream.read(&mut self.received[start..]);
        let count = *result.as_ref().unwrap_or(&0);
        self.received.truncate(start + count);
        match result {
            Ok(0) => {
                let why = "the server has closed the connection";
                Err(io::Error::new(ErrorKind::UnexpectedEof, why).into())
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => self.fill(),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn beginning(bytes: &[u8]) -> String {
    const SHOWN: usize = 100;
    shown(&bytes[..bytes.len().min(SHOWN)])
}
