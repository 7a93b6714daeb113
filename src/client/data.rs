//! Counters, values, lists, barriers and signals: what is stored or met at, each by its name.
//!
//! Reads are asked again if an idle connection has broken. Changes never are: if the answer is lost, so
//! is the knowledge whether they were made ([`Unknown`](Error::Unknown)).

use std::time::Duration;

use super::clock;
use super::error::{Error, shown};
use super::{Client, Reply, Told};
use crate::base::Millis;
use crate::engine::types::{End, Request};
use crate::wire::answer::LIST_FORM;
use crate::wire::command::Command;

/// A number that many count on. One that nobody has counted on is 0.
///
/// ```no_run
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let visits = client.counter("visits");
/// assert_eq!(visits.add(2)? - visits.add(-1)?, 1);
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    client: Client,
    key: Vec<u8>,
}

/// A value that is stored under a name.
///
/// ```no_run
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let config = client.value("config");
/// config.set("v1")?;
/// assert!(config.swap(Some(b"v1"), b"v2", None)?);
/// assert_eq!(config.get()?.as_deref(), Some(&b"v2"[..]));
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Value {
    client: Client,
    key: Vec<u8>,
}

/// A list of values, to put in and take out at both ends.
///
/// ```no_run
/// use std::time::Duration;
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let jobs = client.list("jobs");
/// jobs.push_right("first")?;
/// let next = jobs.wait_left(Duration::from_secs(5))?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct List {
    client: Client,
    key: Vec<u8>,
}

impl Client {
    /// The counter of this name.
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Counter {
        let (client, key) = (self.clone(), key.as_ref().to_vec());
        Counter { client, key }
    }

    /// The value of this name.
    pub fn value(&self, key: impl AsRef<[u8]>) -> Value {
        let (client, key) = (self.clone(), key.as_ref().to_vec());
        Value { client, key }
    }

    /// The list of this name.
    pub fn list(&self, key: impl AsRef<[u8]>) -> List {
        let (client, key) = (self.clone(), key.as_ref().to_vec());
        List { client, key }
    }

    /// Waits until `count` clients have come here, all or nobody.
    ///
    /// # Errors
    /// [`Busy`](Error::Busy) if not all came in time, which then goes for everyone who waits here.
    pub fn barrier(&self, key: impl AsRef<[u8]>, count: u32, wait: Duration) -> Result<(), Error> {
        let (key, wait) = (key.as_ref(), clock::millis(wait));
        let reply = self.request(&Request::Meet { key, count, wait })?;
        match reply.told() {
            Told::Done => Ok(()),
            Told::TimedOut => Err(Error::Busy { key: shown(key) }),
            _ => Err(self.not_that(key, &reply)),
        }
    }

    /// Tells everyone who listens to this channel. Returns how many that are.
    ///
    /// # Errors
    /// If the server cannot be asked, or the channel is a pattern.
    pub fn signal(
        &self,
        channel: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
    ) -> Result<u64, Error> {
        let (channel, payload) = (channel.as_ref(), payload.as_ref());
        let count = self.number(channel, &Request::Signal { channel, payload })?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    fn request(&self, request: &Request<'_>) -> Result<Reply, Error> {
        self.ask(&Command::Engine(*request))
    }

    fn number(&self, key: &[u8], request: &Request<'_>) -> Result<i64, Error> {
        let reply = self.request(request)?;
        match reply.told() {
            Told::Number(number) => Ok(number),
            _ => Err(self.not_that(key, &reply)),
        }
    }

    fn done(&self, key: &[u8], request: &Request<'_>) -> Result<(), Error> {
        let reply = self.request(request)?;
        match reply.told() {
            Told::Done => Ok(()),
            _ => Err(self.not_that(key, &reply)),
        }
    }

    fn maybe(&self, key: &[u8], request: &Request<'_>) -> Result<Option<Vec<u8>>, Error> {
        let reply = self.request(request)?;
        match reply.told() {
            Told::Value(value) => Ok(Some(value.to_vec())),
            Told::Nothing => Ok(None),
            _ => Err(self.not_that(key, &reply)),
        }
    }

    fn not_that(&self, key: &[u8], reply: &Reply) -> Error {
        self.inner.garbage(self.inner.shard(key), reply)
    }
}

impl Counter {
    /// Adds this, which may be negative. Returns the sum.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if the sum does not fit; nothing has changed then.
    pub fn add(&self, delta: i64) -> Result<i64, Error> {
        let (key, down) = (&*self.key, false);
        self.client.number(key, &Request::Add { key, delta, down })
    }

    /// How far it is.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn get(&self) -> Result<i64, Error> {
        let key = &*self.key;
        self.client.number(key, &Request::Count { key })
    }

    /// Sets it.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if there is no room for another.
    pub fn set(&self, value: i64) -> Result<(), Error> {
        let key = &*self.key;
        self.client.done(key, &Request::SetCount { key, value })
    }
}

impl Value {
    /// What is stored, if anything is.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn get(&self) -> Result<Option<Vec<u8>>, Error> {
        let key = &*self.key;
        self.client.maybe(key, &Request::Fetch { key })
    }

    /// Stores this, for ever. It may not be empty, nor hold a tab or a line end.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if it cannot be stored, [`Refused`](Error::Refused) if there is no room.
    pub fn set(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.put(value.as_ref(), Millis::ZERO)
    }

    /// Stores this for so long.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_for(&self, value: impl AsRef<[u8]>, ttl: Duration) -> Result<(), Error> {
        self.put(value.as_ref(), clock::millis(ttl))
    }

    fn put(&self, value: &[u8], ttl: Millis) -> Result<(), Error> {
        let key = &*self.key;
        self.client.done(key, &Request::Put { key, value, ttl })
    }

    /// Stores `new` if `old` is there, which may be nothing; for ever, or for so long. Returns whether it
    /// was.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn swap(
        &self,
        old: Option<&[u8]>,
        new: &[u8],
        ttl: Option<Duration>,
    ) -> Result<bool, Error> {
        let key = &*self.key;
        if old == Some(b"") {
            return Ok(false); // no value is empty
        }
        let request = Request::Swap {
            key,
            old: old.unwrap_or_default(),
            new,
            ttl: ttl.map_or(Millis::ZERO, clock::millis),
        };
        let reply = self.client.request(&request)?;
        match reply.told() {
            Told::Done => Ok(true),
            Told::Conflict => Ok(false),
            _ => Err(self.client.not_that(key, &reply)),
        }
    }

    /// Forgets it.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn delete(&self) -> Result<(), Error> {
        let key = &*self.key;
        self.client.done(key, &Request::Delete { key })
    }
}

impl List {
    /// Puts a value in at the left. Returns how long the list is; 0 if somebody waited for the value and
    /// has it.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if it is empty or holds a line end, [`Refused`](Error::Refused) if there is no
    /// room.
    pub fn push_left(&self, value: impl AsRef<[u8]>) -> Result<u64, Error> {
        self.push(value.as_ref(), End::Left)
    }

    /// The same at the right.
    ///
    /// # Errors
    /// As [`push_left`](Self::push_left).
    pub fn push_right(&self, value: impl AsRef<[u8]>) -> Result<u64, Error> {
        self.push(value.as_ref(), End::Right)
    }

    fn push(&self, value: &[u8], end: End) -> Result<u64, Error> {
        let key = &*self.key;
        let length = self
            .client
            .number(key, &Request::Push { key, value, end })?;
        Ok(u64::try_from(length).unwrap_or(0))
    }

    /// Takes a value out at the left, if there is one.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn pop_left(&self) -> Result<Option<Vec<u8>>, Error> {
        self.pop(End::Left)
    }

    /// The same at the right.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn pop_right(&self) -> Result<Option<Vec<u8>>, Error> {
        self.pop(End::Right)
    }

    fn pop(&self, end: End) -> Result<Option<Vec<u8>>, Error> {
        let key = &*self.key;
        self.client.maybe(key, &Request::Pop { key, end })
    }

    /// Takes a value out at the left, waiting for one if there is none.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn wait_left(&self, wait: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.await_pop(End::Left, wait)
    }

    /// The same at the right.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn wait_right(&self, wait: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.await_pop(End::Right, wait)
    }

    fn await_pop(&self, end: End, wait: Duration) -> Result<Option<Vec<u8>>, Error> {
        let (key, wait) = (&*self.key, clock::millis(wait));
        self.client
            .maybe(key, &Request::AwaitPop { key, end, wait })
    }

    /// How long it is.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn len(&self) -> Result<u64, Error> {
        let key = &*self.key;
        let length = self.client.number(key, &Request::Length { key })?;
        Ok(u64::try_from(length).unwrap_or(0))
    }

    /// Whether there is nothing in it.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }

    /// A part of it, both ends included; negative numbers count from the end. Bytes that are not UTF-8
    /// are told as U+FFFD.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if the part is longer than a megabyte.
    pub fn range(&self, start: i64, stop: i64) -> Result<Vec<String>, Error> {
        let key = &*self.key;
        let reply = self.client.request(&Request::Range {
            key,
            start,
            stop,
            form: LIST_FORM,
        })?;
        let values = match reply.told() {
            Told::Json(json) => serde_json::from_slice::<serde_json::Value>(json).ok(),
            _ => None,
        };
        let Some(serde_json::Value::Array(values)) = values else {
            return Err(self.client.not_that(key, &reply));
        };
        let texts = values.into_iter().map(|value| match value {
            serde_json::Value::String(text) => Ok(text),
            _ => Err(self.client.not_that(key, &reply)),
        });
        texts.collect()
    }
}
