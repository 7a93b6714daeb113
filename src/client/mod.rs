//! A client for programs that want a lock: it blocks, and one thread renews what is held.
//!
//! ```no_run
//! use std::time::Duration;
//! use latchd::client::Client;
//!
//! let client = Client::connect("localhost:6388")?;
//! let guard = client.lock("nightly").lease(Duration::from_secs(30)).acquire()?;
//! println!("held, fence {}", guard.fence());
//! assert!(guard.is_held());
//! guard.release()?; // or drop it
//! # Ok::<(), latchd::client::Error>(())
//! ```
//!
//! - `address.rs` says where servers are and which has a key, `options.rs` what a client is told.
//! - `stream.rs` is a socket, `conn.rs` a connection that speaks the protocol, `pool.rs` those that
//!   nobody uses just now. The codec is `wire::client`, the server's own.
//! - `hold.rs` is what is held and until when, `keeper.rs` the thread that renews it, `poller.rs` what that
//!   waits in, `callbacks.rs` who is called when it is lost, `guard.rs` what a program has in its hands,
//!   `lock.rs` how it gets there, `place.rs` the same in two steps.
//! - `data.rs`, `news.rs` and `ranges.rs` are everything else that servers have, `operate.rs` is for
//!   operators, and `session.rs` a connection of one's own.
//! - `docs/client.md` has the rules: which connection owns what, what is retried, when a guard is lost.
//!
//! Never names the engine, the server or mio: a program that uses it gets none of them.

mod address;
mod callbacks;
mod clock;
mod conn;
mod data;
mod error;
mod guard;
mod hold;
mod keeper;
mod lock;
mod news;
mod operate;
mod options;
mod place;
mod poller;
mod pool;
mod ranges;
mod session;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod who;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::conn::Reply;
pub use self::data::{Counter, List, Value};
pub use self::error::{Error, ErrorKind, Lost, Reason, Refusal};
pub use self::guard::Guard;
pub use self::hold::{LostSignal, Standing};
pub use self::lock::Lock;
pub use self::news::{KeyEvent, LeaderChange, Signal, Subscription, Within};
pub use self::operate::Document;
pub use self::options::Builder;
pub use self::place::{Enqueued, Place};
pub use self::ranges::{Cancel, RangeHeld, RangeLost, Ranges};
pub use self::session::{Piece, Session};
pub use self::who::{Holder, Waiter, Who};
pub use crate::base::Token;
pub use crate::engine::types::{Change, Event, Loss, Sharing};
pub use crate::wire::client::{News, Told};
pub use crate::wire::command::Command;
pub use crate::wire::verbs::Verb;

use self::conn::{Conn, Fault};
use self::error::shown;
use self::keeper::Keeper;
use self::options::Options;
use self::pool::Pool;
use crate::base::{Millis, Nanos};
use crate::engine::types::{Mode, RangeAsk, Request};
use crate::wire::client::{push_request, read_request};

/// A client of one server, or of several that share the keys. It may be cloned and shared by threads;
/// each request has a connection to itself while it lasts, and each guard as long as it is held.
///
/// ```no_run
/// use latchd::client::Client;
///
/// let client = Client::connect("db1:6388,db2:6388,unix:/run/latchd.sock")?;
/// client.ping()?;
/// println!("{} has the key", client.server_of("job"));
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: Arc<Options>,
    pool: Pool,
    keeper: Arc<Keeper>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.keeper.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { servers, name, .. } = &*self.inner.options;
        let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
        f.debug_struct("Client")
            .field("servers", &servers)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// What a mutex guards, also after a thread has panicked with it: everything here is whole between two
/// statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Connects to `host:port`, `unix:/path` or `tls://host:port`, or to several of them with commas
    /// between: then each key is at one of them, as dflockd's clients have it.
    ///
    /// # Errors
    /// If no server can be reached, if one does not let us in, or if the addresses are none.
    pub fn connect(servers: &str) -> Result<Self, Error> {
        Self::builder(servers).connect()
    }

    /// A client with more than that: a token, a name, other times.
    pub fn builder(servers: &str) -> Builder {
        Builder::new(servers)
    }

    fn over(options: Options) -> Self {
        let options = Arc::new(options);
        let inner = Inner {
            pool: Pool::new(options.servers.len()),
            keeper: Arc::new(Keeper::new(Arc::clone(&options))),
            options,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn connect_all(&self) -> Result<(), Error> {
        let (mut reached, mut down) = (false, None);
        for shard in 0..self.inner.options.servers.len() {
            match self.inner.open(shard) {
                Ok(conn) => {
                    reached = true;
                    self.inner.pool.put(conn);
                }
                Err(error @ Error::Down { .. }) => down = Some(error),
                Err(error) => return Err(error),
            }
        }
        match down {
            Some(error) if !reached => Err(error),
            _ => Ok(()),
        }
    }

    /// What `who` shows for this client.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.options.name
    }

    /// The servers, as they were given.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        let servers = self.inner.options.servers.iter();
        servers.map(ToString::to_string).collect()
    }

    /// The server that has this key.
    #[must_use]
    pub fn server_of(&self, key: impl AsRef<[u8]>) -> String {
        let shard = self.inner.shard(key.as_ref());
        self.inner.options.servers[shard].to_string()
    }

    // ---- holding ----

    /// A lock, to be taken.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        self.hold(key.as_ref(), Mode::Slot { limit: 1 })
    }

    /// One of `limit` slots, to be taken. All who ask must say the same limit.
    pub fn semaphore(&self, key: impl AsRef<[u8]>, limit: u32) -> Lock {
        self.hold(key.as_ref(), Mode::Slot { limit })
    }

    /// A lock to be shared with other readers.
    pub fn read(&self, key: impl AsRef<[u8]>) -> Lock {
        self.hold(key.as_ref(), Mode::Read)
    }

    /// The same lock for one writer alone.
    pub fn write(&self, key: impl AsRef<[u8]>) -> Lock {
        self.hold(key.as_ref(), Mode::Write)
    }

    /// The lead, to be taken: a lock whose changes others can observe.
    pub fn elect(&self, key: impl AsRef<[u8]>) -> Lock {
        self.hold(key.as_ref(), Mode::Lead)
    }

    fn hold(&self, key: &[u8], mode: Mode) -> Lock {
        Lock::new(Arc::clone(&self.inner), key, mode)
    }

    /// Starts the lease of something again, by its token, whoever holds it. Returns how long it lasts
    /// from now on, at least.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it is held no longer.
    pub fn renew(
        &self,
        key: impl AsRef<[u8]>,
        token: Token,
        lease: Option<Duration>,
    ) -> Result<Duration, Error> {
        let key = key.as_ref();
        let request = Request::Renew {
            key,
            token: Some(token),
            lease: lease.map(clock::millis),
        };
        let asked_at = clock::now();
        let reply = held(key, self.ask(&Command::Engine(request)))?;
        match reply.told() {
            Told::Renewed { lease, .. } => Ok(clock::until(hold::promised_until(asked_at, lease))),
            _ => Err(self.inner.garbage(self.inner.shard(key), &reply)),
        }
    }

    /// Lets something go, by its token, whoever holds it.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it is held no longer.
    pub fn release(&self, key: impl AsRef<[u8]>, token: Token) -> Result<(), Error> {
        let key = key.as_ref();
        let token = Some(token);
        let request = Request::Release { key, token };
        held(key, self.ask(&Command::Engine(request))).map(drop)
    }

    /// A connection of one's own to the server that has this key.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn session(&self, key: impl AsRef<[u8]>) -> Result<Session, Error> {
        Session::open(&self.inner, self.inner.shard(key.as_ref()))
    }

    // ---- asking ----

    /// Who holds a key and who waits for it.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn who(&self, key: impl AsRef<[u8]>) -> Result<Who, Error> {
        let key = key.as_ref();
        let reply = self.ask(&Command::Who { key })?;
        self.inner.read_who(self.inner.shard(key), &reply)
    }

    /// Asks the server that has the key, and returns its answer: the low door, for everything that
    /// has no function of its own here. Commands without a key go to the first server.
    ///
    /// A command that looks is asked again if a connection breaks; any other never is.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) for commands whose effect belongs to a connection, which this one would
    /// not have for long; [`Refused`](Error::Refused) if the server says no.
    pub fn ask(&self, command: &Command<'_>) -> Result<Reply, Error> {
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, command)?;
        let shard = self.inner.shard_of_frame(&frame, verb);
        self.inner.ask(shard, command)
    }

    /// The same as verb, key and argument, as the protocol spells them.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and [`Misuse`](Error::Misuse) if the server would not read it.
    pub fn ask_verb(&self, verb: Verb, key: &[u8], argument: &[u8]) -> Result<Reply, Error> {
        self.ask(&read_request(verb, key, argument)?)
    }

    /// The same to one of the servers, by its place in the list.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and [`Misuse`](Error::Misuse) if there is no such server.
    pub fn ask_server(&self, index: usize, command: &Command<'_>) -> Result<Reply, Error> {
        if index >= self.inner.options.servers.len() {
            return Err(Error::Misuse(format!("there is no server {index}")));
        }
        self.inner.ask(index, command)
    }
}

/// An answer about something held: plain `error` and an expired lease say that it is not.
fn held(key: &[u8], result: Result<Reply, Error>) -> Result<Reply, Error> {
    match result {
        Err(Error::Refused(refusal)) => {
            let why = match refusal.word() {
                "error" => Lost::Forgotten,
                "error_lease_expired" => Lost::Expired,
                _ => return Err(Error::Refused(refusal)),
            };
            let key = shown(key);
            Err(Error::Lost { key, why })
        }
        result => result,
    }
}

/// The same for what comes of a wait: our turn may have come and gone.
fn lost_if_expired<T>(key: &[u8], result: Result<T, Error>) -> Result<T, Error> {
    match result {
        Err(Error::Refused(refusal)) if refusal.word() == "error_lease_expired" => {
            let (key, why) = (shown(key), Lost::Expired);
            Err(Error::Lost { key, why })
        }
        result => result,
    }
}

impl Inner {
    fn shard(&self, key: &[u8]) -> usize {
        address::shard(key, self.options.servers.len())
    }

    /// Which server a frame is for, by its key line.
    fn shard_of_frame(&self, frame: &[u8], verb: Verb) -> usize {
        if verb.row().ignores_key {
            return 0;
        }
        self.shard(key_of_frame(frame))
    }

    /// A connection to this server: one that is idle, or a new one.
    fn conn(&self, shard: usize) -> Result<(Conn, bool), Error> {
        match self.pool.take(shard) {
            Some(conn) => Ok((conn, true)),
            None => Ok((self.open(shard)?, false)),
        }
    }

    /// A new connection to this server.
    fn open(&self, shard: usize) -> Result<Conn, Error> {
        self.open_by(shard, clock::after(self.options.connect_timeout))
    }

    fn open_by(&self, shard: usize, deadline: Nanos) -> Result<Conn, Error> {
        let limit = clock::after(self.options.connect_timeout);
        Conn::open(&self.options, shard, deadline.min(limit))
    }

    /// Until when the answer to this command must be there.
    fn deadline(&self, command: &Command<'_>) -> Nanos {
        let wait = clock::duration(wait_of(command));
        clock::after(wait.saturating_add(self.options.answer_timeout))
    }

    fn ask(&self, shard: usize, command: &Command<'_>) -> Result<Reply, Error> {
        if let Some(why) = self.belongs_to_a_connection(command) {
            return Err(Error::Misuse(why.to_owned()));
        }
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, command)?;
        let may_repeat = is_repeatable(command);
        let (mut conn, was_idle) = self.conn(shard)?;
        let mut result = conn.ask(&frame, verb, self.deadline(command));
        if let Err(Fault::Broken(error)) = &result
            && error.kind() != io::ErrorKind::TimedOut
            && may_repeat
            && was_idle
        {
            self.pool.clear(shard);
            conn = self.open(shard)?;
            result = conn.ask(&frame, verb, self.deadline(command));
        }
        match result {
            Ok(reply) => {
                self.pool.put(conn);
                self.refused(shard, &frame, reply)
            }
            Err(Fault::Broken(why)) if !may_repeat => Err(Error::Unknown {
                server: self.options.servers[shard].to_string(),
                key: shown(key_of_frame(&frame)),
                fence: None,
                why,
            }),
            Err(fault) => Err(conn.error(fault)),
        }
    }

    /// A refusal is an error.
    fn refused(&self, shard: usize, frame: &[u8], reply: Reply) -> Result<Reply, Error> {
        let (word, grace) = match reply.told() {
            Told::Refused(word) => (word, None),
            Told::InGrace(left) => (&b"error_grace"[..], left.map(clock::duration)),
            _ => return Ok(reply),
        };
        Err(Error::Refused(Refusal {
            server: self.options.servers[shard].to_string(),
            verb: reply.verb(),
            key: shown(key_of_frame(frame)),
            word: shown(word),
            grace,
        }))
    }

    /// An answer that can be read and is not one to what was asked.
    fn garbage(&self, shard: usize, reply: &Reply) -> Error {
        Error::Garbage {
            server: self.options.servers[shard].to_string(),
            said: shown(reply.line()),
        }
    }

    /// Why a command cannot be asked on a connection that is somebody else's afterwards.
    fn belongs_to_a_connection(&self, command: &Command<'_>) -> Option<&'static str> {
        let outlives = self.options.outlives();
        let is_attached = self.options.attach().is_some();
        match command {
            Command::Engine(Request::Acquire { .. }) if !outlives => {
                Some("a lock that is asked for so would end with its connection: see Client::lock")
            }
            Command::Engine(Request::Enqueue { .. } | Request::Wait { .. }) if !is_attached => {
                Some("a place in a queue belongs to a connection: see Lock::enqueue")
            }
            Command::Engine(
                Request::Listen { .. }
                | Request::Unlisten { .. }
                | Request::Watch { .. }
                | Request::Unwatch { .. }
                | Request::Observe { .. }
                | Request::Unobserve { .. },
            ) => Some("a subscription belongs to a connection: see Client::session"),
            Command::Range(request)
                if !is_attached && matches!(request.ask, RangeAsk::Lock { .. }) =>
            {
                Some("a range lock belongs to a connection: see Client::session")
            }
            Command::Auth { .. } | Command::Hello(_) | Command::Attach(_) => {
                Some("a connection greets by itself: see Client::builder")
            }
            _ => None,
        }
    }
}

/// The second line of a frame.
fn key_of_frame(frame: &[u8]) -> &[u8] {
    frame.split(|it| *it == b'\n').nth(1).unwrap_or_default()
}

/// How long the server may take before it answers this.
fn wait_of(command: &Command<'_>) -> Millis {
    match command {
        Command::Engine(
            Request::Acquire { wait, .. }
            | Request::Wait { wait, .. }
            | Request::AwaitPop { wait, .. }
            | Request::Meet { wait, .. },
        ) => *wait,
        Command::Range(request) => match request.ask {
            RangeAsk::Lock { wait, .. } => wait,
            _ => Millis::ZERO,
        },
        _ => Millis::ZERO,
    }
}

/// Whether a command may be asked again when its answer was lost: it only looks, or doing it twice is
/// doing it once.
fn is_repeatable(command: &Command<'_>) -> bool {
    match command {
        Command::Engine(request) => matches!(
            request,
            Request::Renew { .. }
                | Request::Position { .. }
                | Request::Count { .. }
                | Request::Fetch { .. }
                | Request::Length { .. }
                | Request::Range { .. }
        ),
        Command::Ping
        | Command::Stats
        | Command::Waits
        | Command::Who { .. }
        | Command::RangeList { .. }
        | Command::Grace { ends: false } => true,
        Command::Range(request) => matches!(request.ask, RangeAsk::Test { .. }),
        _ => false,
    }
}
