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
//! - `address.rs` says where servers are and which has a key, `cluster.rs` which of them have the same keys and whom of
//!   them to follow, `options.rs` what a client is told.
//! - `stream.rs` is a socket, `conn.rs` a connection that speaks the protocol, `find.rs` looks for the server that
//!   leads, `look.rs` whether a silent one still does, `pool.rs` has the connections that nobody uses just now. The codec is
//!   `wire::client`, the server's own.
//! - `hold.rs` is what is held and until when, `keeper.rs` the thread that renews it, `renewal.rs` what it says, `rotation.rs` whom it asks when
//!   a connection has broken, `sys` what it waits in on each system, `callbacks.rs` who is called when it is lost, `guard.rs` what a program has in its hands,
//!   `lock.rs` how it gets there, `place.rs` the same in two steps.
//! - `data.rs`, `news.rs` and `ranges.rs` are everything else that servers have, `operate.rs` is for
//!   operators, and `session.rs` a connection of one's own.
//! - `docs/client.md` has the rules: which connection owns what, what is retried, when a guard is lost.
//!
//! Never names the engine, the server or mio: a program that uses it gets none of them.

mod address;
mod callbacks;
mod clock;
mod cluster;
mod conn;
mod data;
mod error;
mod find;
mod guard;
mod hold;
mod keeper;
mod lock;
mod look;
mod news;
mod operate;
mod options;
mod place;
mod pool;
mod ranges;
mod renewal;
mod rotation;
mod session;
mod stream;
mod sys;
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
use self::find::Hops;
#[cfg(feature = "cli")]
pub(crate) use self::find::NO_LEADER;
use self::keeper::Keeper;
use self::look::{Lookout, led_elsewhere};
use self::options::Options;
use self::pool::Pool;
use crate::base::{Millis, Nanos};
use crate::engine::types::{Mode, RangeAsk, Request};
use crate::maker::Maker;
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
    maker: Maker,
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.maker.is_this() {
            true => self.keeper.close(),
            false => self.keeper.abandon(None),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("servers", &self.servers())
            .field("name", &self.name())
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
    /// between: then each key is at one of them, as dflockd's clients have it. In each place there may be the
    /// members of one cluster with `+` between them, of which the one that leads is found:
    /// `10.0.0.11+10.0.0.12+10.0.0.13`, or `a1+a2,b1+b2`. The path of a unix socket goes to the next comma.
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

    /// A client of the members of one cluster, each as it is: nothing in them is a separator.
    ///
    /// ```
    /// use latchd::client::Client;
    ///
    /// let members = ["10.0.0.11:6388", "10.0.0.12:6388", "unix:/run/a,b+c.sock"];
    /// let client = Client::cluster(members).name("nightly@db1").build()?;
    /// assert_eq!(client.servers(), ["10.0.0.11:6388+10.0.0.12:6388+unix:/run/a,b+c.sock"]);
    /// # Ok::<(), latchd::client::Error>(())
    /// ```
    pub fn cluster(members: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        Builder::of_members(members.into_iter().map(Into::into).collect())
    }

    fn over(options: Options) -> Self {
        let options = Arc::new(options);
        let inner = Inner {
            pool: Pool::new(options.clusters.len()),
            keeper: Arc::new(Keeper::new(Arc::clone(&options))),
            options,
            maker: Maker::this(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn connect_all(&self) -> Result<(), Error> {
        let (mut reached, mut down) = (false, None);
        for shard in 0..self.inner.options.clusters.len() {
            match self.inner.open(shard, None) {
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

    /// The servers, as they were given; members of one cluster together.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        let clusters = self.inner.options.clusters.iter();
        clusters.map(ToString::to_string).collect()
    }

    /// The server that has this key, or the cluster that does.
    #[must_use]
    pub fn server_of(&self, key: impl AsRef<[u8]>) -> String {
        let shard = self.inner.shard(key.as_ref());
        self.inner.options.clusters[shard].to_string()
    }

    /// How much of a span that a server promises this client counts on, because [clocks differ in
    /// speed](Builder::clock_drift).
    #[must_use]
    pub fn counts_on(&self, promised: Duration) -> Duration {
        self.inner.options.drift.counted(promised)
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
            Told::Renewed { lease, .. } => {
                let bounds = self.inner.options.bounds();
                Ok(clock::until(bounds.promised_until(asked_at, lease)))
            }
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
        Session::open(&self.inner, key.as_ref())
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
        if index >= self.inner.options.clusters.len() {
            return Err(Error::Misuse(format!("there is no server {index}")));
        }
        self.inner.ask(index, command)
    }
}

/// An answer about something held: plain `error` and an expired lease say that it is not.
fn held(key: &[u8], result: Result<Reply, Error>) -> Result<Reply, Error> {
    match result {
        Err(Error::Refused(refusal)) => match lost_by(Told::Refused(refusal.word().as_bytes())) {
            Some(why) => {
                let key = shown(key);
                Err(Error::Lost { key, why })
            }
            None => Err(Error::Refused(refusal)),
        },
        result => result,
    }
}

/// How something was lost, if the answer to a renewal or a release says that it was: whoever is refused for another reason
/// still holds it.
fn lost_by(told: Told<'_>) -> Option<Lost> {
    match told {
        Told::Refused(b"error") => Some(Lost::Forgotten),
        Told::Refused(b"error_lease_expired") => Some(Lost::Expired),
        _ => None,
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
    /// Refuses a call in a forked child, before it waits for a mutex or uses a connection.
    fn check_process(&self) -> Result<(), Error> {
        self.maker.check().map_err(Error::Misuse)
    }

    fn shard(&self, key: &[u8]) -> usize {
        address::shard(key, self.options.clusters.len())
    }

    /// Which server a frame is for, by its key line.
    fn shard_of_frame(&self, frame: &[u8], verb: Verb) -> usize {
        if verb.row().ignores_key {
            return 0;
        }
        self.shard(key_of_frame(frame))
    }

    /// A connection to whoever leads there, or has this key: one that is idle, or a new one.
    fn conn(&self, shard: usize, key: Option<&[u8]>) -> Result<(Conn, bool), Error> {
        self.conn_by(shard, key, clock::after(self.options.connect_timeout))
    }

    /// The same, however long that takes up to the deadline.
    fn conn_by(
        &self,
        shard: usize,
        key: Option<&[u8]>,
        deadline: Nanos,
    ) -> Result<(Conn, bool), Error> {
        self.check_process()?;
        let route = key.and_then(|key| self.options.clusters[shard].route(key));
        match self.pool.take(shard, route.as_ref()) {
            Some(conn) => Ok((conn, true)),
            None => Ok((find::open(&self.options, shard, key, deadline)?, false)),
        }
    }

    /// A new connection.
    fn open(&self, shard: usize, key: Option<&[u8]>) -> Result<Conn, Error> {
        self.open_by(shard, key, Nanos::NEVER)
    }

    fn open_by(&self, shard: usize, key: Option<&[u8]>, deadline: Nanos) -> Result<Conn, Error> {
        self.check_process()?;
        let limit = clock::after(self.options.connect_timeout);
        find::open(&self.options, shard, key, deadline.min(limit))
    }

    /// This server has said that another one decides, there if it knows that: puts a connection to whoever does in place of
    /// this one. That one others may use, if it leads to whoever has other keys.
    fn go_elsewhere(
        &self,
        conn: &mut Conn,
        key: Option<&[u8]>,
        told: Option<String>,
        hops: &mut Hops,
    ) -> Result<(), Error> {
        let is_told = told.is_some();
        let next = find::elsewhere(&self.options, conn, key, told, hops)?;
        let before = std::mem::replace(conn, next);
        if is_told {
            self.pool.put(before);
        }
        Ok(())
    }

    /// Until when the answer to this command must be there.
    fn deadline(&self, command: &Command<'_>) -> Nanos {
        let wait = clock::duration(wait_of(command));
        clock::after(wait.saturating_add(self.options.answer_timeout))
    }

    /// Sends a command and waits for its answer.
    fn ask_on(
        &self,
        conn: &mut Conn,
        frame: &[u8],
        verb: Verb,
        command: &Command<'_>,
        deadline: Nanos,
    ) -> Result<Reply, Fault> {
        conn.send(frame, verb);
        match wait_of(command) {
            Millis::ZERO => conn.answer(deadline),
            _ => self.hear_answer(conn, Some(key_of_frame(frame)), deadline),
        }
    }

    /// Waits for the answer to a command that waits. A member of a cluster that was stopped, or cut
    /// off, is silent for ever: looks once a second whether another member leads.
    fn hear_answer(
        &self,
        conn: &mut Conn,
        key: Option<&[u8]>,
        deadline: Nanos,
    ) -> Result<Reply, Fault> {
        if conn.has_no_other() {
            return conn.answer(deadline);
        }
        let mut lookout = Lookout::new();
        loop {
            match conn.answer(deadline.min(lookout.next_at())) {
                Err(Fault::Broken(why))
                    if why.kind() == io::ErrorKind::TimedOut && clock::now() < deadline => {}
                result => return result,
            }
            if lookout.is_led_elsewhere(&self.options, conn, key) {
                return Err(led_elsewhere());
            }
        }
    }

    fn ask(&self, shard: usize, command: &Command<'_>) -> Result<Reply, Error> {
        if let Some(why) = self.belongs_to_a_connection(command) {
            return Err(Error::Misuse(why.to_owned()));
        }
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, command)?;
        let key = (!verb.row().ignores_key).then(|| key_of_frame(&frame));
        let may_repeat = is_repeatable(command);
        let is_alone = self.options.clusters[shard].is_alone();
        let (mut conn, was_idle) = self.conn(shard, key)?;
        // The search for a server does not count: one that is found late has its time to answer.
        let mut deadline = self.deadline(command);
        let mut hops = Hops::until(clock::after(self.options.connect_timeout));
        let mut repeats = match may_repeat {
            true if !is_alone => REPEATS_MAX,
            true if was_idle => 1,
            _ => 0,
        };
        loop {
            // One of several members that does not answer may have been stopped, and another one lead.
            let patience = match repeats > 0 && !is_alone {
                true => deadline.min(clock::after(self.options.answer_timeout / 3)),
                false => deadline,
            };
            match self.ask_on(&mut conn, &frame, verb, command, patience) {
                Ok(reply) => match reply.sends_elsewhere() {
                    Some(told) => {
                        self.go_elsewhere(&mut conn, key, told, &mut hops)?;
                        deadline = self.deadline(command);
                    }
                    None => {
                        self.pool.put(conn);
                        return self.refused(shard, &frame, reply);
                    }
                },
                Err(Fault::Broken(error))
                    if repeats > 0 && (!is_alone || error.kind() != io::ErrorKind::TimedOut) =>
                {
                    repeats -= 1;
                    self.pool.clear(shard);
                    conn = self.open(shard, key)?;
                    deadline = deadline.max(clock::after(self.options.answer_timeout / 3));
                }
                Err(Fault::Broken(why)) if !may_repeat => {
                    return Err(Error::Unknown {
                        server: conn.server.to_string(),
                        key: shown(key_of_frame(&frame)),
                        fence: None,
                        why,
                    });
                }
                Err(fault) => return Err(conn.error(fault)),
            }
        }
    }

    /// A refusal is an error.
    fn refused(&self, shard: usize, frame: &[u8], reply: Reply) -> Result<Reply, Error> {
        let (word, grace) = match reply.told() {
            Told::Refused(word) => (word, None),
            Told::NotLeader(told) => {
                let told = told.map(String::from_utf8_lossy);
                let why = conn::not_leader(told.as_deref());
                return Err(self.options.clusters[shard].down(why));
            }
            Told::InGrace(left) => (&b"error_grace"[..], left.map(clock::duration)),
            _ => return Ok(reply),
        };
        Err(Error::Refused(Refusal {
            server: self.options.clusters[shard].to_string(),
            verb: reply.verb(),
            key: shown(key_of_frame(frame)),
            word: shown(word),
            grace,
        }))
    }

    /// An answer that can be read and is not one to what was asked.
    fn garbage(&self, shard: usize, reply: &Reply) -> Error {
        Error::Garbage {
            server: self.options.clusters[shard].to_string(),
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

/// How often a look is asked again while members of a cluster break down under it.
const REPEATS_MAX: u32 = 3;

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
