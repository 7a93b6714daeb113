//! How something comes to be held: one request, perhaps after a wait, perhaps asked again.
//!
//! An acquire whose answer was lost is never simply asked again: first `who` has to show that no holder
//! can be the lost answer. What cannot be shown is reported (`docs/client.md`). A wait goes on where another member
//! of the cluster leads.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::conn::{Conn, Fault, Reply};
use super::error::{Error, Lost, Reason, shown};
use super::guard::Guard;
use super::hold::Hold;
use super::who::{Holder, Who};
use super::{Hops, Inner, Told};
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

/// Whoever waits for longer anyway may be sent from one server to another for so many times the time that a connection may
/// take: a cluster whose leaders change does so for a while.
const ROUND_PART: u32 = 12;

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
        let (mut conn, was_idle) = inner.conn(shard, Some(key))?;
        let mut renewed = self.renew(&mut conn, token, lease);
        if let Err(Error::Down { .. }) = &renewed
            && (was_idle || !inner.options.clusters[shard].is_alone())
        {
            inner.pool.clear(shard);
            conn = inner.open(shard, Some(key))?;
            renewed = self.renew(&mut conn, token, lease);
        }
        let (asked_at, lease) = renewed?;
        self.keep(conn, (token, lease), asked_at)
    }

    fn acquire_within(&self, wait: Duration) -> Result<Guard, Error> {
        let Self { inner, key, .. } = self;
        let end = clock::after(wait);
        let shard = inner.shard(key);
        // Whoever waits anyway waits for a leader, too.
        let connects_until = clock::after(inner.options.connect_timeout).max(end);
        let (mut conn, _) = inner.conn_by(shard, Some(key), connects_until)?;
        let connect_timeout = inner.options.connect_timeout;
        let round_max = connect_timeout.saturating_mul(ROUND_PART).min(wait);
        let mut hops = Hops::within(connects_until, connect_timeout.max(round_max));
        let (mut attempts, mut in_vain) = (0, 0);
        let mut suspect: Option<Suspect> = None;
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
            conn.send(&frame, verb);
            let deadline = inner.deadline(&command);
            let fault = match inner.hear_answer(&mut conn, Some(&self.key), deadline) {
                Ok(reply) => match reply.sends_elsewhere() {
                    Some(told) => {
                        inner.go_elsewhere(&mut conn, Some(key), told, &mut hops)?;
                        continue;
                    }
                    None if reply.told() == Told::TimedOut => {
                        return Err(self.busy(conn, suspect.as_ref()));
                    }
                    None => match self.answered(conn, &frame, reply, asked_at) {
                        // Nobody has relied on it yet: it is as if it had not been granted.
                        Err(error) if is_in_vain(&error) && clock::now() < end => {
                            in_vain += 1;
                            inner.pool.clear(shard);
                            clock::pause(pause(in_vain).min(clock::until(end)));
                            conn = self.connect_again(shard, end)?;
                            continue;
                        }
                        result => return result,
                    },
                },
                Err(fault) => fault,
            };
            attempts += 1;
            match fault {
                Fault::Broken(why) if why.kind() != ErrorKind::TimedOut => {
                    if attempts > 1 && clock::now() >= end {
                        let fence = suspect.map(|it| it.fence);
                        return Err(self.unknown(shard, fence, why));
                    }
                    let lost_at = suspect.as_ref().map_or(asked_at, |it| it.asked_at);
                    let found = self.find_out(shard, lost_at, end, attempts, why)?;
                    suspect = found.suspect.map(|fence| Suspect {
                        fence,
                        asked_at: lost_at,
                    });
                    conn = *found.conn;
                }
                // It may still be granted; but then it ends with the connection, unless it outlives it or is restored
                // by whoever leads next.
                Fault::Broken(why) if self.may_stay(&conn) => {
                    return Err(self.unknown(shard, None, why));
                }
                fault => return Err(conn.error(fault)),
            }
        }
    }

    /// Whether what was granted on this connection may be there when that has ended.
    pub(super) fn may_stay(&self, conn: &Conn) -> bool {
        self.inner.options.outlives() || !conn.has_no_other()
    }

    /// The wait is over. If it was one behind a grant that may be the answer to our first request, and that is still
    /// there, this is what there is to be told.
    fn busy(&self, mut conn: Conn, suspect: Option<&Suspect>) -> Error {
        let is_there = suspect.is_some_and(|suspect| {
            let holders = self.ask_who(&mut conn).map(|who| who.holders);
            let is_it = |it: &Holder| it.fence == suspect.fence.0 && it.restored;
            holders.is_ok_and(|holders| holders.iter().any(is_it))
        });
        let shard = conn.shard;
        self.inner.pool.put(conn);
        match suspect {
            Some(suspect) if is_there => {
                let why = "the leader changed before it came";
                let why = std::io::Error::new(ErrorKind::ConnectionAborted, why);
                self.unknown(shard, Some(suspect.fence), why)
            }
            _ => Error::Busy {
                key: shown(&self.key),
            },
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
            Told::TimedOut => Err(self.busy(conn, None)),
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
                Error::Refused(refusal) => {
                    self.not_wanted(&mut conn, grant, Error::Refused(refusal))
                }
                error => error,
            })?;
        }
        self.keep(conn, (token, lease), asked_at)
    }

    /// The server has granted it and does not renew it, for another reason than that it is over: without a promise it is
    /// of no use, so it is let go.
    fn not_wanted(&self, conn: &mut Conn, grant: Grant, error: Error) -> Error {
        let (key, token) = (&*self.key, Some(grant.token));
        let release = Command::Engine(match self.mode {
            Mode::Lead => Request::Resign { key, token },
            _ => Request::Release { key, token },
        });
        let mut frame = Vec::new();
        let Ok(verb) = push_request(&mut frame, &release) else {
            return error;
        };
        let answer = conn.ask(
            &frame,
            verb,
            clock::after(self.inner.options.answer_timeout),
        );
        let is_gone =
            answer.is_ok_and(|it| it.told() == Told::Done || super::lost_by(it.told()).is_some());
        match is_gone || !self.inner.options.outlives() {
            true => error,
            false => {
                let why = std::io::Error::other(error.to_string());
                self.unknown(conn.shard, Some(grant.token.fence), why)
            }
        }
    }

    /// Renews it on a new connection. If none can be made, it is held and nobody here can use it.
    fn renew_elsewhere(&self, shard: usize, grant: Grant) -> Result<(Conn, Renewal), Error> {
        self.inner.pool.clear(shard);
        let conn = self.inner.open(shard, Some(&self.key));
        let mut conn = conn.map_err(|error| match error {
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
        let mut deadline = clock::after(self.inner.options.answer_timeout);
        if let Some(lease) = lease {
            deadline = deadline.min(clock::now().after(lease));
        }
        let mut hops = Hops::until(deadline);
        let (asked_at, reply) = loop {
            let asked_at = clock::now();
            let reply = conn.ask(&frame, verb, deadline);
            let reply = reply.map_err(|fault| conn.error(fault))?;
            match reply.sends_elsewhere() {
                Some(told) => {
                    self.inner
                        .go_elsewhere(conn, Some(&self.key), told, &mut hops)?;
                }
                None => break (asked_at, reply),
            }
        };
        match reply.told() {
            Told::Renewed { lease, .. } if lease > Millis::ZERO => Ok((asked_at, lease)),
            told => match super::lost_by(told) {
                Some(why) => Err(self.lost(why)),
                None => {
                    let reply = self.inner.refused(conn.shard, &frame, reply)?;
                    Err(self.inner.garbage(conn.shard, &reply))
                }
            },
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
        let hold = Hold::new(&self.key, self.mode, &conn, grant, asked_at, trust);
        let number = keeper.keep(&hold, conn, asked_at);
        let number = number.map_err(|why| match options.outlives() {
            true => self.unknown(shard, Some(fence), why),
            false => options.clusters[shard].down(why),
        })?;
        Ok(Guard::new(Arc::clone(&self.inner), hold, number))
    }

    /// The connection broke before the answer. Connects again and asks who holds the key: returns the
    /// connection if none of those can be the lost answer, or if it does no harm to wait behind it.
    fn find_out(
        &self,
        shard: usize,
        asked_at: Nanos,
        end: Nanos,
        attempts: u32,
        why: std::io::Error,
    ) -> Result<FoundOut, Error> {
        self.inner.pool.clear(shard);
        if attempts > 1 {
            clock::pause(pause(attempts - 1).min(clock::until(end)));
        }
        for round in 1.. {
            let found = self.connect_again(shard, end);
            let found = found.and_then(|conn| self.look_for_ours(conn, asked_at, end));
            match found {
                Ok(Found::Nothing(conn)) => {
                    let suspect = None;
                    return Ok(FoundOut { conn, suspect });
                }
                Ok(Found::Before(conn, fence)) => {
                    let suspect = Some(fence);
                    return Ok(FoundOut { conn, suspect });
                }
                Ok(Found::Holder(fence)) => return Err(self.unknown(shard, fence, why)),
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
    /// to let that go. A grant that was restored, because the server was started anew or another one leads, has no name until
    /// its holder renews it, which it does as soon as it can: that is waited for while there is time. Where only one
    /// can hold it we wait behind it in the queue instead, since two grants can never come of that.
    fn look_for_ours(&self, mut conn: Conn, asked_at: Nanos, end: Nanos) -> Result<Found, Error> {
        let noticed = clock::after(NOTICE_TIME);
        let is_exclusive = matches!(
            self.mode,
            Mode::Slot { limit: 1 } | Mode::Write | Mode::Lead
        );
        let mut round = 0;
        loop {
            let who = self.ask_who(&mut conn)?;
            let now = clock::now();
            match self.could_be_ours(&who, asked_at) {
                // The server does not list more than so many, and it may be one of the others.
                None if who.holder_count > who.holders.len() as u64 => {
                    if now >= noticed {
                        return Ok(Found::Holder(None));
                    }
                }
                None => return Ok(Found::Nothing(Box::new(conn))),
                Some(holder) if holder.restored && is_exclusive && now < end => {
                    return Ok(Found::Before(Box::new(conn), Fence(holder.fence)));
                }
                Some(holder) if holder.restored && now < end => {}
                Some(holder) if now >= noticed => {
                    return Ok(Found::Holder(Some(Fence(holder.fence))));
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
            match self.inner.open(shard, Some(&self.key)) {
                Err(error) if is_away(&error) && clock::now() < end => {
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
        let mut hops = Hops::until(clock::after(self.inner.options.answer_timeout));
        loop {
            let reply = conn.ask(&frame, verb, self.inner.deadline(&command));
            let reply = reply.map_err(|fault| conn.error(fault))?;
            let Some(told) = reply.sends_elsewhere() else {
                let reply = self.inner.refused(conn.shard, &frame, reply)?;
                return self.inner.read_who(conn.shard, &reply);
            };
            self.inner
                .go_elsewhere(conn, Some(&self.key), told, &mut hops)?;
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
        let kind = match self.mode {
            Mode::Slot { .. } => "slot",
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::Lead => "lead",
        };
        who.holders.iter().find(|holder| {
            let is_known = ours.contains(&holder.fence);
            let is_named_otherwise = match (options.attach(), &holder.client, &holder.name) {
                (Some(attach), Some(client), _) => attach.id != client,
                (None, _, Some(name)) => *name != options.name,
                _ => false,
            };
            let is_older = holder.since_s > elapsed_s + SLACK_S;
            let is_held_otherwise = !holder.hold.is_empty() && holder.hold != kind;
            // One that was restored has no name, and its age begins anew.
            let is_told_apart = !holder.restored && (is_named_otherwise || is_older);
            !(is_known || is_held_otherwise || is_told_apart)
        })
    }

    pub(super) fn unknown(&self, shard: usize, fence: Option<Fence>, why: std::io::Error) -> Error {
        Error::Unknown {
            server: self.inner.options.clusters[shard].to_string(),
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
    /// This may be it, and nobody else can have it meanwhile: it may be waited for.
    Before(Box<Conn>, Fence),
    /// This may be it, or one that the server does not show.
    Holder(Option<Fence>),
}

/// A connection on which it may be asked again.
struct FoundOut {
    conn: Box<Conn>,
    /// A grant that may be the lost answer, and that is waited for.
    suspect: Option<Fence>,
}

/// A grant that may be the answer to a request that was sent at this time.
struct Suspect {
    fence: Fence,
    asked_at: Nanos,
}

/// There is no server now, but there may be one again.
fn is_away(error: &Error) -> bool {
    match error {
        Error::Down { .. } => true,
        Error::Refused(refusal) => refusal.reason() == Reason::Draining,
        _ => false,
    }
}

/// Nothing is held, and whoever waits may ask again: a grant that was over before it was known, or a server that ends. That
/// one has granted nothing to a request that it answers so.
fn is_in_vain(error: &Error) -> bool {
    match error {
        Error::Lost { .. } => true,
        Error::Refused(refusal) => refusal.reason() == Reason::Draining,
        _ => false,
    }
}

/// Longer each time, with jitter.
fn pause(attempts: u32) -> Duration {
    let pause = BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(10));
    clock::jittered(pause.min(BACKOFF_MAX))
}
