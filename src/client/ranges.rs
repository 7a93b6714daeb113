//! Byte ranges of a resource: locked together with others or alone, for whoever a client locks for.

use std::fmt;
use std::time::Duration;

use super::clock;
use super::error::{Error, shown};
use super::news::PASSED_MAX;
use super::session::Session;
use super::{Client, Reply, Told};
use crate::base::Millis;
use crate::engine::types::{ByteRange, Loss, RangeAsk, RangeRequest, Sharing, Span};
use crate::wire::client::News;
use crate::wire::command::Command;

/// The byte ranges of one resource, locked over a connection of its own. When it is dropped, everything
/// that was locked with it is let go; unless the client is [attached](super::Builder::attach), whose
/// locks live as long as it does.
///
/// A length of 0 is all bytes to the end, however far it grows.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, Sharing};
///
/// let client = Client::connect("localhost")?;
/// let mut file = client.ranges("/srv/a.db")?;
/// file.lock(Sharing::Exclusive, 0, 100, Duration::from_secs(10))?;
/// file.unlock(0, 50)?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
pub struct Ranges {
    session: Session,
    client: Client,
    resource: Vec<u8>,
    owner: Vec<u8>,
}

/// A lock that is in the way.
///
/// ```no_run
/// # use latchd::client::{Client, RangeHeld, Sharing};
/// # let client = Client::connect("localhost")?;
/// # let mut file = client.ranges("/srv/a.db")?;
/// if let Some(RangeHeld { client, start, len, .. }) = file.test(Sharing::Shared, 0, 0)? {
///     println!("{client} has {len} bytes at {start}");
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeHeld {
    /// Together with others, or alone.
    pub mode: Sharing,
    /// The first byte.
    pub start: u64,
    /// How many; 0 is to the end.
    pub len: u64,
    /// The id of its client, or `#` and the number of a connection that is its own client.
    pub client: String,
    /// For whom that client holds it; empty for itself.
    pub owner: Vec<u8>,
}

/// Bytes that are not locked any more, though nobody here unlocked them.
///
/// ```no_run
/// use std::time::Duration;
/// # use latchd::client::{Client, RangeLost};
/// # let client = Client::connect("localhost")?;
/// # let mut file = client.ranges("/srv/a.db")?;
/// if let Some(RangeLost { start, len, why, .. }) = file.lost(Duration::ZERO)? {
///     println!("{len} bytes at {start}: {why:?}");
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeLost {
    /// The resource.
    pub resource: Vec<u8>,
    /// The first byte.
    pub start: u64,
    /// How many; 0 is to the end.
    pub len: u64,
    /// For whom they were held; empty for the client itself.
    pub owner: Vec<u8>,
    /// Why.
    pub why: Loss,
}

/// What came of ending a wait.
///
/// ```
/// use latchd::client::Cancel;
/// assert_ne!(Cancel::Cancelled, Cancel::NotWaiting);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The wait has ended, and nothing will be granted.
    Cancelled,
    /// It came too late: the bytes are held.
    Granted,
    /// Nobody waits for this.
    NotWaiting,
}

impl Client {
    /// The byte ranges of a resource, which has nothing to do with a lock of the same name.
    ///
    /// # Errors
    /// If there is no connection to be had.
    pub fn ranges(&self, resource: impl AsRef<[u8]>) -> Result<Ranges, Error> {
        let resource = resource.as_ref();
        Ok(Ranges {
            session: self.session(resource)?,
            client: self.clone(),
            resource: resource.to_vec(),
            owner: Vec::new(),
        })
    }
}

impl Ranges {
    /// For whom to lock from now on: any word, known only within this client. Two owners are in each
    /// other's way; one is never in its own.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<Vec<u8>>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Locks these bytes, or locks them otherwise, waiting for up to `wait`.
    ///
    /// # Errors
    /// [`Busy`](Error::Busy) if the wait is over first; [`Refused`](Error::Refused) if it would wait for itself
    /// or a limit is reached. What was locked before is as it was, in all cases.
    pub fn lock(
        &mut self,
        mode: Sharing,
        start: u64,
        len: u64,
        wait: Duration,
    ) -> Result<(), Error> {
        let (span, wait) = (Span { start, len }, clock::millis(wait));
        let reply = self.ask(RangeAsk::Lock { mode, span, wait })?;
        match reply.told() {
            Told::Done => Ok(()),
            Told::TimedOut => {
                let key = shown(&self.resource);
                Err(Error::Busy { key })
            }
            _ => Err(self.not_that(&reply)),
        }
    }

    /// Locks these bytes if nothing is in the way.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn try_lock(&mut self, mode: Sharing, start: u64, len: u64) -> Result<(), Error> {
        self.lock(mode, start, len, clock::duration(Millis::ZERO))
    }

    /// Lets go of these bytes, as far as they are held.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn unlock(&mut self, start: u64, len: u64) -> Result<(), Error> {
        let span = Span { start, len };
        let reply = self.ask(RangeAsk::Unlock { span })?;
        self.done(&reply)
    }

    /// What is in the way of such a lock, if anything is.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn test(
        &mut self,
        mode: Sharing,
        start: u64,
        len: u64,
    ) -> Result<Option<RangeHeld>, Error> {
        let span = Span { start, len };
        let reply = self.ask(RangeAsk::Test { mode, span })?;
        match reply.told() {
            Told::RangeFree => Ok(None),
            Told::RangeHeld {
                mode,
                range,
                client,
                owner,
            } => {
                let (start, len) = bounds(range);
                Ok(Some(RangeHeld {
                    mode,
                    start,
                    len,
                    client: String::from_utf8_lossy(client).into_owned(),
                    owner: owner.to_vec(),
                }))
            }
            _ => Err(self.not_that(&reply)),
        }
    }

    /// Ends the wait that asked for exactly this, on another connection of the same attached client.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn cancel(&mut self, mode: Sharing, start: u64, len: u64) -> Result<Cancel, Error> {
        let span = Span { start, len };
        let reply = self.ask(RangeAsk::Cancel { mode, span })?;
        match reply.told() {
            Told::Cancelled => Ok(Cancel::Cancelled),
            Told::AlreadyGranted => Ok(Cancel::Granted),
            Told::Nothing => Ok(Cancel::NotWaiting),
            _ => Err(self.not_that(&reply)),
        }
    }

    /// Asks the server whether all of these bytes are held so, by this owner. A connection that is its own client, and that
    /// only the server has seen end, is noticed so, or by any other request: nothing asks by itself.
    ///
    /// A wait for exactly these bytes, on another connection of the same attached client, is ended by it, as by
    /// [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// If the connection is over: then all that it held is lost, unless the client is attached.
    pub fn holds(&mut self, mode: Sharing, start: u64, len: u64) -> Result<bool, Error> {
        Ok(self.cancel(mode, start, len)? == Cancel::Granted)
    }

    /// For how long the server keeps bytes that the attached client held before the server was started anew
    /// and has to [have back](Self::reclaim), as it was told when this connection attached. None if there
    /// were none then. This is the server's own time: [`Client::counts_on`] tells how much of it this
    /// client can count on.
    #[must_use]
    pub fn reclaim_within(&self) -> Option<Duration> {
        self.session.reclaim_until().map(clock::until)
    }

    /// In a cluster: how long it takes until another leader is found when this one fails. None for a
    /// server alone.
    #[must_use]
    pub fn failover_time(&self) -> Option<Duration> {
        self.session.failover_time()
    }

    /// Has back bytes that the attached client held before the server was started anew.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if they were not held so, or if the time for that is over.
    pub fn reclaim(&mut self, mode: Sharing, start: u64, len: u64) -> Result<(), Error> {
        let span = Span { start, len };
        let reply = self.ask(RangeAsk::Reclaim { mode, span })?;
        self.done(&reply)
    }

    /// Who holds bytes of the resource and who waits for some: a document as the server wrote it.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn list(&mut self) -> Result<String, Error> {
        let resource = &self.resource;
        let reply = self.session.ask(&Command::RangeList { resource })?;
        match reply.told() {
            Told::Json(json) => Ok(String::from_utf8_lossy(json).into_owned()),
            _ => Err(self.not_that(&reply)),
        }
    }

    /// Bytes of this client that were lost, if one is told of such within this time.
    ///
    /// # Errors
    /// If the connection is over: then all that it held is lost, unless the client is attached.
    pub fn lost(&mut self, timeout: Duration) -> Result<Option<RangeLost>, Error> {
        let deadline = clock::after(timeout);
        for passed in 0_usize.. {
            // Whatever else comes, it must not take longer than this.
            if passed >= PASSED_MAX && clock::now() >= deadline {
                break;
            }
            let Some(piece) = self.session.news(clock::until(deadline))? else {
                return Ok(None);
            };
            if let News::RangeLost {
                resource,
                range,
                owner,
                why,
            } = piece.news()
            {
                let (start, len) = bounds(range);
                return Ok(Some(RangeLost {
                    resource: resource.to_vec(),
                    start,
                    len,
                    owner: owner.to_vec(),
                    why,
                }));
            }
        }
        Ok(None)
    }

    fn ask(&mut self, ask: RangeAsk) -> Result<Reply, Error> {
        self.session.ask(&Command::Range(RangeRequest {
            resource: &self.resource,
            owner: &self.owner,
            ask,
        }))
    }

    fn done(&self, reply: &Reply) -> Result<(), Error> {
        match reply.told() {
            Told::Done => Ok(()),
            _ => Err(self.not_that(reply)),
        }
    }

    fn not_that(&self, reply: &Reply) -> Error {
        let inner = &self.client.inner;
        inner.garbage(inner.shard(&self.resource), reply)
    }
}

fn bounds(range: ByteRange) -> (u64, u64) {
    (range.start(), range.len())
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges")
            .field("resource", &shown(&self.resource))
            .field("owner", &shown(&self.owner))
            .finish_non_exhaustive()
    }
}
