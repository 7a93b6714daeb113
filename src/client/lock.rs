//! How something comes to be held: one request, perhaps after a wait, perhaps asked again.
//!
//! An acquire whose answer was lost is never simply asked again: first `who` has to show that no holder
//! can be the lost answer. What cannot be shown is reported (`docs/client.md`).

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::conn::{Conn, Fault, Reply};
use super::error::{Error, Lost, shown};
use super::guard::Guard;
use super::hold::Hold;
use super::who::{Holder, Who};
use super::{Inner, Told};
use crate::base::{Fence, Millis, Nanos, Token};
use crate::engine::types::{Mode, Request};
use crate::wire::client::{Grant, push_request};
use crate::wire::command::Command;

/// How long to wait if nothing is said, as dflockd's clients do.
const WAIT: Duration = Duration::from_secs(10);

/// The first pause before another attempt, and the longest.
const BACKOFF: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How long a server may take to notice that a connection is gone, before a grant that may be of that
/// connection is reported.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// When a renewal was asked for, and for how long it is had from then on; or why not.
type Renewal = Result<(Nanos, Millis), Error>;

/// Something to be held, and how: made by [`Client::lock`](super::Client::lock) and its like.
///
/// ```no_run
/// use std::time::Duration;
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let lock = client.semaphore("workers", 3).lease(Duration::from_secs(20));
/// let one = lock.acquire()?; // waits for up to 10 s
/// let another = lock.try_acquire()?; // does not wait
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Lock {
    pub(super) inner: Arc<Inner>,
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) lease: Option<Duration>,
    wait: Duration,
}

impl Lock {
    pub(super) fn new(inner: Arc<Inner>, key: &[u8], mode: Mode) -> Self {
        Self {
            inner,
            key: key.to_vec(),
            mode,
            lease: None,
            wait: WAIT,
        }
    }

    /// How long it is held at least if nothing more is heard of this program. It is renewed at a third
    /// of it. The server's default is 33 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long to wait for it at most (10 s); nothing is to try once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Takes it, waiting for it if somebody else has it.
    ///
    /// # Errors
    /// [`Busy`](Error::Busy) if the wait is over first; [`Unknown`](Error::Unknown) if the connection
    /// broke and a grant that may be ours is there, which nobody can use.
    pub fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_within(self.wait)
    }

    /// Takes it if it is free.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Guard, Error> {
        self.acquire_within(Duration::ZERO)
    }

    /// Has again what was [left](Guard::leave), by its token: renews it, and goes on renewing it.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it is held no longer. [`Misuse`](Error::Misuse) if this client neither
    /// [keeps](super::Builder::keep) what it acquires nor is [attached](super::Builder::attach): what belongs to
    /// a connection ends with that connection, and nobody would be told here.
    pub fn adopt(&self, token: Token) -> Result<Guard, Error> {
        let Self { inner, key, .. } = self;
        if !inner.options.outlives() {
            let why = "this would end with another connection: see Builder::keep";
            return Err(Error::Misuse(why.to_owned()));
        }
        let (shard, lease) = (inner.shard(key), self.lease.map(clock::millis));
        let (mut conn, was_idle) = inner.conn(shard)?;
        let mut renewed = self.renew(&mut conn, token, lease);
        if let (Err(Error::Down { .. }), true) = (&renewed, was_idle) {
            inner.pool.clear(shard);
            conn = inner.open(shard)?;
            renewed = self.renew(&mut conn, token, lease);
        }
        let (asked_at, lease) = renewed?;
        self.keep(conn, (token, lease), asked_at)
    }

    fn acquire_within(&self, wait: Duration) -> Result<Guard, Error> {
        let Self { inner, key, .. } = self;
        let end = clock::after(wait);
        let shard = inner.shard(key);
        let (mut conn, _) = inner.conn(shard)?;
        let mut attempts = 0;
        loop {
            let command = Command::Engine(Request::Acquire {
                key,
                mode: self.mode,
                wait: clock::millis(clock::until(end)),
                lease: self.lease.map(clock::millis),
            });
            let mut frame = Vec::new();
            let verb = push_request(&mut frame, &command)?;
            let asked_at = clock::now();
            let fault = match conn.ask(&frame, verb, inner.deadline(&command)) {
                Ok(reply) => return self.answered(conn, &frame, reply, asked_at),
                Err(fault) => fault,
            };
            attempts += 1;
            match fault {
                Fault::Broken(why) if why.kind() != ErrorKind::TimedOut => {
                    let is_last = attempts > 1 && clock::now() >= end;
                    conn = match is_last {
                        true => return Err(self.unknown(shard, None, why)),
                        false => self.find_out(shard, asked_at, end, attempts, why)?,
                    };
                }
                // It may still be granted; but then it ends with the connection, unless it outlives it.
                Fault::Broken(why) if inner.options.outlives() => {
                    return Err(self.unknown(shard, None, why));
                }
                fault => return Err(conn.error(fault)),
            }
        }
    }

    /// What came of it.
    pub(super) fn answered(
        &self,
        conn: Conn,
        frame: &[u8],
        reply: Reply,
        asked_at: Nanos,
    ) -> Result<Guard, Error> {
        let shard = conn.shard;
        let reply = self.inner.refused(shard, frame, reply)?;
        match reply.told() {
            Told::Granted(grant) | Told::Acquired(grant) if grant.lease > Millis::ZERO => {
                self.granted(conn, grant, asked_at)
            }
            Told::TimedOut => {
                self.inner.pool.put(conn);
                let key = shown(&self.key);
                Err(Error::Busy { key })
            }
            _ => Err(self.inner.garbage(shard, &reply)),
        }
    }

    /// It is held. A lease that was granted after a wait began at a time that we do not know, so it is
    /// renewed before anybody relies on it.
    fn granted(&self, mut conn: Conn, grant: Grant, asked_at: Nanos) -> Result<Guard, Error> {
        let Grant { token, lease, .. } = grant;
        let (mut asked_at, mut lease) = (asked_at, lease);
        let options = &self.inner.options;
        let bounds = options.bounds();
        let is_old = |span: u64| clock::now().since(asked_at) > span / 3;
        if is_old(lease.min(bounds.promise_max).nanos())
            || bounds
                .silence_max
                .is_some_and(|span| is_old(clock::nanos(span)))
        {
            let mut renewed = self.renew(&mut conn, token, Some(lease));
            if let (Err(Error::Down { .. }), true) = (&renewed, options.outlives()) {
                // It is still held, and this connection is not the only one that can renew it.
                (conn, renewed) = self.renew_elsewhere(conn.shard, grant)?;
            }
            (asked_at, lease) = renewed.map_err(|error| match error {
                Error::Down { why, .. } if options.outlives() => {
                    self.unknown(conn.shard, Some(token.fence), why)
                }
                Error::Down { .. } => self.lost(Lost::Disconnected),
                error => error,
            })?;
        }
        self.keep(conn, (token, lease), asked_at)
    }

    /// Renews it on a new connection. If none can be made, it is held and nobody here can use it.
    fn renew_elsewhere(&self, shard: usize, grant: Grant) -> Result<(Conn, Renewal), Error> {
        self.inner.pool.clear(shard);
        let mut conn = self.inner.open(shard).map_err(|error| match error {
            Error::Down { why, .. } => self.unknown(shard, Some(grant.token.fence), why),
            error => error,
        })?;
        let renewed = self.renew(&mut conn, grant.token, Some(grant.lease));
        Ok((conn, renewed))
    }

    /// Renews it on this connection: when that was asked, and for how long it is had from then on.
    fn renew(&self, conn: &mut Conn, token: Token, lease: Option<Millis>) -> Renewal {
        let renew = Request::Renew {
            key: &self.key,
            token: Some(token),
            lease,
        };
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &Command::Engine(renew))?;
        let asked_at = clock::now();
        let mut deadline = clock::after(self.inner.options.answer_timeout);
        if let Some(lease) = lease {
            deadline = deadline.min(asked_at.after(lease));
        }
        let reply = conn.ask(&frame, verb, deadline);
        let reply = reply.map_err(|fault| conn.error(fault))?;
        match reply.told() {
            Told::Renewed { lease, .. } if lease > Millis::ZERO => Ok((asked_at, lease)),
            Told::Refused(_) => Err(self.lost(Lost::Expired)),
            _ => Err(self.inner.garbage(conn.shard, &reply)),
        }
    }

    fn lost(&self, why: Lost) -> Error {
        let key = shown(&self.key);
        Error::Lost { key, why }
    }

    /// It is held, and renewed from now on.
    fn keep(&self, conn: Conn, grant: (Token, Millis), asked_at: Nanos) -> Result<Guard, Error> {
        let Inner {
            options, keeper, ..
        } = &*self.inner;
        let trust = (options.bounds(), &keeper.calls);
        let (shard, fence) = (conn.shard, grant.0.fence);
        let hold = Hold::new(&self.key, self.mode, shard, grant, asked_at, trust);
        let number = keeper.keep(&hold, conn, asked_at);
        let number = number.map_err(|why| match options.outlives() {
            true => self.unknown(shard, Some(fence), why),
            false => options.servers[shard].down(why),
        })?;
        Ok(Guard::new(Arc::clone(&self.inner), hold, number))
    }

    /// The connection broke before the answer. Connects again and asks who holds the key: returns the
    /// connection if none of those can be the lost answer.
    fn find_out(
        &self,
        shard: usize,
        asked_at: Nanos,
        end: Nanos,
        attempts: u32,
        why: std::io::Error,
    ) -> Result<Conn, Error> {
        self.inner.pool.clear(shard);
        if attempts > 1 {
            clock::pause(pause(attempts - 1).min(clock::until(end)));
        }
        for round in 1.. {
            let found = self.connect_again(shard, end);
            let found = found.and_then(|conn| self.look_for_ours(conn, asked_at));
            match found {
                Ok(Found::Nothing(conn)) => return Ok(*conn),
                Ok(Found::Holder(fence)) => return Err(self.unknown(shard, Some(fence), why)),
                // That connection broke, too, before it was known.
                Err(Error::Down { .. }) if clock::now() < end => {
                    clock::pause(pause(round).min(clock::until(end)));
                }
                // What nobody has found out is not known. What ended with its connection is over.
                Err(error) => match error {
                    Error::Down { .. } => break,
                    _ if self.inner.options.outlives() => break,
                    error => return Err(error),
                },
            }
        }
        Err(self.unknown(shard, None, why))
    }

    /// Asks who holds the key, until none of them can be the lost answer or the server has had its time
    /// to let that go.
    fn look_for_ours(&self, mut conn: Conn, asked_at: Nanos) -> Result<Found, Error> {
        let noticed = clock::after(NOTICE_TIME);
        let mut round = 0;
        loop {
            let who = self.ask_who(&mut conn)?;
            match self.could_be_ours(&who, asked_at) {
                None => return Ok(Found::Nothing(Box::new(conn))),
                Some(holder) if clock::now() >= noticed => {
                    return Ok(Found::Holder(Fence(holder.fence)));
                }
                Some(_) => {}
            }
            round += 1;
            clock::pause(pause(round));
        }
    }

    /// Once at least, and then until the wait is over.
    fn connect_again(&self, shard: usize, end: Nanos) -> Result<Conn, Error> {
        let mut attempts = 0;
        loop {
            match self.inner.open(shard) {
                Err(Error::Down { .. }) if clock::now() < end => {
                    attempts += 1;
                    clock::pause(pause(attempts).min(clock::until(end)));
                }
                result => return result,
            }
        }
    }

    fn ask_who(&self, conn: &mut Conn) -> Result<Who, Error> {
        let command = Command::Who { key: &self.key };
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &command)?;
        match conn.ask(&frame, verb, self.inner.deadline(&command)) {
            Ok(reply) => {
                let reply = self.inner.refused(conn.shard, &frame, reply)?;
                self.inner.read_who(conn.shard, &reply)
            }
            Err(fault) => Err(conn.error(fault)),
        }
    }

    /// A holder that may be the answer we did not get. None of those is: what we hold and know of,
    /// what others hold by another name, and what was granted before we asked.
    fn could_be_ours<'a>(&self, who: &'a Who, asked_at: Nanos) -> Option<&'a Holder> {
        /// Clocks tick differently, and the server cuts off what is below a millisecond.
        const SLACK_S: f64 = 0.1;
        let options = &self.inner.options;
        let ours = self.inner.keeper.fences(&self.key);
        let elapsed_s = clock::now().since(asked_at) as f64 / 1e9;
        who.holders.iter().find(|holder| {
            let is_known = ours.contains(&holder.fence);
            let is_named_otherwise = match (options.attach(), &holder.client, &holder.name) {
                (Some(attach), Some(client), _) => attach.id != client,
                (None, _, Some(name)) => *name != options.name,
                _ => false,
            };
            let is_older = holder.since_s > elapsed_s + SLACK_S;
            // One that was restored has no name, and its age begins anew.
            !is_known && (holder.restored || !(is_named_otherwise || is_older))
        })
    }

    pub(super) fn unknown(&self, shard: usize, fence: Option<Fence>, why: std::io::Error) -> Error {
        Error::Unknown {
            server: self.inner.options.servers[shard].to_string(),
            key: shown(&self.key),
            fence,
            why,
        }
    }
}

/// What is known of a lost answer.
enum Found {
    /// It is not held. The connection is good for more.
    Nothing(Box<Conn>),
    /// This may be it.
    Holder(Fence),
}

/// Longer each time, with jitter.
fn pause(attempts: u32) -> Duration {
    let pause = BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(10));
    clock::jittered(pause.min(BACKOFF_MAX))
}
