//! Who holds a key and who waits for it, as the server tells it.

use serde_json::Value;

use super::conn::Reply;
use super::error::Error;
use super::{Inner, Told};

/// What `who` says of a key.
///
/// ```no_run
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let who = client.who("job")?;
/// for holder in &who.holders {
///     println!("{} since {} s", holder.name.as_deref().unwrap_or("?"), holder.since_s);
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Who {
    /// `lock`, `semaphore` or `rw_lock`; none if the server does not know the key.
    pub kind: Option<String>,
    /// How many may hold it at once; 0 for a read-write lock.
    pub limit: u64,
    /// How many hold it, also those that are not listed.
    pub holder_count: u64,
    /// How many wait for it, also those that are not listed.
    pub waiter_count: u64,
    /// In the order of their grants, at most 1,000.
    pub holders: Vec<Holder>,
    /// In the order of the queue, at most 1,000.
    pub waiters: Vec<Waiter>,
    /// All of it, as the server wrote it.
    pub json: String,
}

/// One who holds a key.
///
/// ```no_run
/// # use latchd::client::{Client, Holder};
/// # let client = Client::connect("localhost")?;
/// let fences = client.who("job")?.holders.iter().map(|it: &Holder| it.fence).collect::<Vec<_>>();
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// The fence of the grant.
    pub fence: u64,
    /// The number of its connection, if it has one.
    pub connection: Option<u64>,
    /// The id of its client, or `#` and the number of its connection.
    pub client: Option<String>,
    /// Where it comes from.
    pub address: Option<String>,
    /// What it calls itself.
    pub name: Option<String>,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: String,
    /// For how long, in seconds.
    pub since_s: f64,
    /// How much of its lease is left, in seconds.
    pub lease_left_s: f64,
    /// It was held before a restart, and nobody has claimed it yet.
    pub restored: bool,
}

/// One who waits for a key.
///
/// ```no_run
/// # use latchd::client::{Client, Waiter};
/// # let client = Client::connect("localhost")?;
/// let next: Option<&Waiter> = client.who("job")?.waiters.first();
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Waiter {
    /// Its place: 1 is next.
    pub position: u64,
    /// The number of its connection, if it has one.
    pub connection: Option<u64>,
    /// The id of its client, or `#` and the number of its connection.
    pub client: Option<String>,
    /// Where it comes from.
    pub address: Option<String>,
    /// What it calls itself.
    pub name: Option<String>,
    /// `slot`, `read`, `write` or `lead`.
    pub hold: String,
    /// For how long, in seconds.
    pub since_s: f64,
}

impl Inner {
    pub(super) fn read_who(&self, shard: usize, reply: &Reply) -> Result<Who, Error> {
        let who = match reply.told() {
            Told::Json(json) => read(json),
            _ => None,
        };
        who.ok_or_else(|| self.garbage(shard, reply))
    }
}

/// A field that is missing is empty, so that a later server may say less; one that is there has to be
/// what it is.
fn read(json: &[u8]) -> Option<Who> {
    let document: Value = serde_json::from_slice(json).ok()?;
    document.as_object()?;
    let list = |name: &str| match &document[name] {
        Value::Null => Some(&[][..]),
        value => Some(value.as_array()?.as_slice()),
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let holder = |it: &Value| {
        Some(Holder {
            fence: it["fence"].as_u64()?,
            connection: it["connection"].as_u64(),
            client: text(&it["client"]),
            address: text(&it["address"]),
            name: text(&it["name"]),
            hold: text(&it["hold"]).unwrap_or_default(),
            since_s: it["since_s"].as_f64().unwrap_or(0.0),
            lease_left_s: it["lease_left_s"].as_f64().unwrap_or(0.0),
            restored: it["restored"].as_bool().unwrap_or(false),
        })
    };
    let waiter = |it: &Value| {
        Some(Waiter {
            position: it["position"].as_u64()?,
            connection: it["connection"].as_u64(),
            client: text(&it["client"]),
            address: text(&it["address"]),
            name: text(&it["name"]),
            hold: text(&it["hold"]).unwrap_or_default(),
            since_s: it["since_s"].as_f64().unwrap_or(0.0),
        })
    };
    Some(Who {
        kind: text(&document["kind"]),
        limit: number(&document["limit"]),
        holder_count: number(&document["holder_count"]),
        waiter_count: number(&document["waiter_count"]),
        holders: list("holders")?.iter().map(holder).collect::<Option<_>>()?,
        waiters: list("waiters")?.iter().map(waiter).collect::<Option<_>>()?,
        json: String::from_utf8_lossy(json).into_owned(),
    })
}
