//! Two phases: a place in a queue now, a wait for it later.

use std::fmt;
use std::time::Duration;

use super::clock;
use super::conn::{Conn, Fault};
use super::error::{Error, shown};
use super::guard::{DROP_TIME, Guard};
use super::lock::Lock;
use super::{Hops, Told};
use crate::base::{Millis, Nanos};
use crate::engine::types::Request;
use crate::wire::client::push_request;
use crate::wire::command::Command;

/// What came of asking for a place: it was free and is held, or there is a place in the queue.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, Enqueued};
///
/// let client = Client::connect("localhost")?;
/// let guard = match client.lock("job").enqueue()? {
///     Enqueued::Held(guard) => guard,
///     Enqueued::Queued(mut place) => {
///         println!("{:?} before us", place.position()?);
///         place.wait(Duration::from_secs(60))?
///     }
/// };
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Debug)]
pub enum Enqueued {
    /// It was free, and is held.
    Held(Guard),
    /// Somebody else holds it.
    Queued(Place),
}

/// A place in a queue. It is given up when it is dropped.
///
/// The lease begins when it is this one's turn, waited for or not: wait in time.
///
/// ```no_run
/// # use std::time::Duration;
/// # use latchd::client::{Client, Enqueued};
/// # let client = Client::connect("localhost")?;
/// if let Enqueued::Queued(place) = client.lock("job").enqueue()? {
///     let guard = place.wait(Duration::from_secs(60))?;
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
pub struct Place {
    lock: Lock,
    /// There until the place is waited for, or given up.
    conn: Option<Box<Conn>>,
}

impl Lock {
    /// Takes it if it is free, and otherwise a place in the queue, without waiting. The lead has no
    /// places.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). It is never asked again: a place ends with its connection.
    pub fn enqueue(&self) -> Result<Enqueued, Error> {
        let shard = self.inner.shard(&self.key);
        let (mut conn, _) = self.inner.conn(shard, Some(&self.key))?;
        let command = Command::Engine(Request::Enqueue {
            key: &self.key,
            mode: self.mode,
            lease: self.lease.map(clock::millis),
        });
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &command)?;
        let mut hops = Hops::until(clock::after(self.inner.options.connect_timeout));
        let (asked_at, reply) = loop {
            let asked_at = clock::now();
            let reply = conn.ask(&frame, verb, self.inner.deadline(&command));
            let reply = reply.map_err(|fault| self.over(&conn, fault))?;
            match reply.sends_elsewhere() {
                Some(told) => {
                    self.inner
                        .go_elsewhere(&mut conn, Some(&self.key), told, &mut hops)?;
                }
                None => break (asked_at, reply),
            }
        };
        if reply.told() == Told::Queued {
            let (lock, conn) = (self.clone(), Some(Box::new(conn)));
            return Ok(Enqueued::Queued(Place { lock, conn }));
        }
        let guard = self.answered(conn, &frame, reply, asked_at)?;
        Ok(Enqueued::Held(guard))
    }

    /// What it means that the connection broke: what it may have been granted ended with it, unless it
    /// outlives it or is restored by whoever leads next.
    fn over(&self, conn: &Conn, fault: Fault) -> Error {
        match fault {
            Fault::Broken(why) if self.may_stay(conn) => self.unknown(conn.shard, None, why),
            fault => conn.error(fault),
        }
    }
}

impl Place {
    /// How many are before us and how far: 1 is next, 0 is our turn; none if the place is gone.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn position(&mut self) -> Result<Option<u64>, Error> {
        let Self { lock, conn } = self;
        lock.inner.check_process()?;
        let command = Command::Engine(Request::Position { key: &lock.key });
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &command)?;
        let Some(conn) = conn else {
            return Ok(None);
        };
        let reply = conn.ask(&frame, verb, lock.inner.deadline(&command));
        let reply = reply.map_err(|fault| conn.error(fault))?;
        let reply = lock.inner.refused(conn.shard, &frame, reply)?;
        match reply.told() {
            Told::Number(place) => Ok(u64::try_from(place).ok()),
            Told::Nothing => Ok(None),
            _ => Err(lock.inner.garbage(conn.shard, &reply)),
        }
    }

    /// Waits for our turn. The place is gone afterwards.
    ///
    /// # Errors
    /// [`Busy`](Error::Busy) if the wait is over first; [`Lost`](Error::Lost) if it was our turn and the lease
    /// ran out before this was called.
    pub fn wait(mut self, wait: Duration) -> Result<Guard, Error> {
        self.lock.inner.check_process()?;
        let Some(mut conn) = self.conn.take() else {
            let key = shown(&self.lock.key);
            return Err(Error::Busy { key });
        };
        let lock = &self.lock;
        let command = Command::Engine(Request::Wait {
            key: &lock.key,
            wait: clock::millis(wait),
        });
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &command)?;
        let asked_at = clock::now();
        let deadline = lock.inner.deadline(&command);
        match lock
            .inner
            .ask_on(&mut conn, &frame, verb, &command, deadline)
        {
            Ok(reply) => {
                let result = lock.answered(*conn, &frame, reply, asked_at);
                super::lost_if_expired(&lock.key, result)
            }
            Err(fault) => Err(lock.over(&conn, fault)),
        }
    }
}

impl Drop for Place {
    /// A place ends with its connection. That of an attached client does not, and the next waiter
    /// would wait for the lease of a grant that nobody takes. In a forked child the place is the
    /// parent's.
    fn drop(&mut self) {
        let inner = &self.lock.inner;
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        if inner.options.attach().is_none() || !inner.maker.is_this() {
            return;
        }
        let patience = inner.options.answer_timeout.min(DROP_TIME);
        let end = clock::after(patience);
        if self.give_up(&mut conn, clock::after(patience / 2)).is_ok() {
            return inner.pool.put(*conn);
        }
        // Any connection of the client will do.
        let conn = inner.open_by(conn.shard, Some(&self.lock.key), end);
        if let Ok(mut conn) = conn
            && self.give_up(&mut conn, end).is_ok()
        {
            inner.pool.put(conn);
        }
    }
}

impl Place {
    /// To look once is to give the place up. If it was our turn already, that is let go.
    fn give_up(&self, conn: &mut Conn, deadline: Nanos) -> Result<(), Fault> {
        let key = &self.lock.key;
        let wait = Millis::ZERO;
        let mut frame = Vec::new();
        let mut ask = |request: Request<'_>| {
            frame.clear();
            // The key was spelled when the place was taken.
            let verb = push_request(&mut frame, &Command::Engine(request));
            let verb = verb.map_err(|why| Fault::Garbage(why.to_string()))?;
            conn.ask(&frame, verb, deadline)
        };
        let reply = ask(Request::Wait { key, wait })?;
        if let Told::Granted(grant) | Told::Acquired(grant) = reply.told() {
            let token = Some(grant.token);
            ask(Request::Release { key, token })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place")
            .field(&shown(&self.lock.key))
            .finish()
    }
}
