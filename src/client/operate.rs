//! For operators: what a server tells of itself, and what can be ended.

use super::error::Error;
use super::{Client, Told};
use crate::base::Fence;
use crate::engine::types::{Attach, RangeCursor, RangesOf, Span};
use crate::wire::command::Command;

/// A document of one server, as it wrote it.
///
/// ```no_run
/// # use latchd::client::{Client, Document};
/// # let client = Client::connect("localhost")?;
/// for Document { server, json, .. } in client.stats()? {
///     println!("{server}: {json}");
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Document {
    /// Which server.
    pub server: String,
    /// One JSON value.
    pub json: String,
}

impl Client {
    /// Whether all servers answer.
    ///
    /// # Errors
    /// If one does not.
    pub fn ping(&self) -> Result<(), Error> {
        for shard in 0..self.inner.options.clusters.len() {
            self.ask_server(shard, &Command::Ping)?;
        }
        Ok(())
    }

    /// What is held and waited for, of each server.
    ///
    /// # Errors
    /// If one cannot be asked.
    pub fn stats(&self) -> Result<Vec<Document>, Error> {
        self.documents(&Command::Stats)
    }

    /// Who waits for whom, of each server.
    ///
    /// # Errors
    /// If one cannot be asked.
    pub fn waits(&self) -> Result<Vec<Document>, Error> {
        self.documents(&Command::Waits)
    }

    fn documents(&self, command: &Command<'_>) -> Result<Vec<Document>, Error> {
        let servers = &self.inner.options.clusters;
        let ask = |shard| {
            let reply = self.ask_server(shard, command)?;
            match reply.told() {
                Told::Json(json) => Ok(Document {
                    server: servers[shard].to_string(),
                    json: String::from_utf8_lossy(json).into_owned(),
                }),
                _ => Err(self.inner.garbage(shard, &reply)),
            }
        };
        (0..servers.len()).map(ask).collect()
    }

    /// Ends the grant of this key that has this fence, whoever holds it. Returns whether there was one.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if this client may not.
    pub fn break_grant(&self, key: impl AsRef<[u8]>, fence: u64) -> Result<bool, Error> {
        let (key, fence) = (key.as_ref(), Some(Fence(fence)));
        match self.count(key, &Command::Break { key, fence }) {
            Ok(count) => Ok(count > 0),
            // There is none of this fence.
            Err(Error::Refused(refusal)) if refusal.word() == "error" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends all grants that this key has now. Returns how many those were.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if this client may not.
    pub fn break_all(&self, key: impl AsRef<[u8]>) -> Result<u64, Error> {
        let (key, fence) = (key.as_ref(), None);
        self.count(key, &Command::Break { key, fence })
    }

    /// Ends the range locks of this resource that overlap these bytes (first byte and length), or all of
    /// them. Returns how many those were.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if this client may not.
    pub fn break_ranges(
        &self,
        resource: impl AsRef<[u8]>,
        bytes: Option<(u64, u64)>,
    ) -> Result<u64, Error> {
        let resource = resource.as_ref();
        let span = bytes.map(|(start, len)| Span { start, len });
        self.count(resource, &Command::BreakRanges { resource, span })
    }

    /// Ends all range locks of a client, of all resources. The client is named as in lists: by its id, or `#`
    /// and the number of a connection. Returns how many those were.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if this client may not.
    pub fn break_ranges_of(&self, client: impl AsRef<[u8]>) -> Result<u64, Error> {
        let client = client.as_ref();
        let mut ended = 0;
        for shard in 0..self.inner.options.clusters.len() {
            let reply = self.ask_server(shard, &Command::BreakRangesOf { client })?;
            match reply.told() {
                Told::Number(count) => ended += u64::try_from(count).unwrap_or(0),
                _ => return Err(self.inner.garbage(shard, &reply)),
            }
        }
        Ok(ended)
    }

    /// The range locks of a client, of all owners of this name, or of that owner of the client, page by page.
    /// `each` is given a page and returns what it says under `next`.
    ///
    /// # Errors
    /// If a server cannot be asked, or [`Refused`](Error::Refused) if this client may not.
    pub fn ranges_of(
        &self,
        client: Option<&[u8]>,
        owner: Option<&[u8]>,
        mut each: impl FnMut(Document) -> Option<String>,
    ) -> Result<(), Error> {
        let of = RangesOf { client, owner };
        for (shard, server) in self.inner.options.clusters.iter().enumerate() {
            let mut after = Some(RangeCursor::default());
            while let Some(cursor) = after {
                let command = Command::RangeListOf { of, after: cursor };
                let reply = self.ask_server(shard, &command)?;
                let Told::Json(json) = reply.told() else {
                    return Err(self.inner.garbage(shard, &reply));
                };
                let next = each(Document {
                    server: server.to_string(),
                    json: String::from_utf8_lossy(json).into_owned(),
                });
                after = next.and_then(|it| RangeCursor::parse(it.as_bytes()));
            }
        }
        Ok(())
    }

    fn count(&self, key: &[u8], command: &Command<'_>) -> Result<u64, Error> {
        let reply = self.ask(command)?;
        match reply.told() {
            Told::Number(count) => Ok(u64::try_from(count).unwrap_or(0)),
            _ => Err(self.inner.garbage(self.inner.shard(key), &reply)),
        }
    }

    /// The [attached](super::Builder::attach) client is forgotten by every server, with everything it holds.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if this client is not attached.
    pub fn detach(&self) -> Result<(), Error> {
        self.as_attached(|Attach { id, secret, .. }| Command::Detach { id, secret })
    }

    /// The [attached](super::Builder::attach) client has back what it wants of the byte ranges that it held
    /// before a restart; the rest is let go.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if this client is not attached.
    pub fn reclaim_done(&self) -> Result<(), Error> {
        self.as_attached(|Attach { id, .. }| Command::ReclaimDone { id })
    }

    fn as_attached(&self, command: impl Fn(Attach<'_>) -> Command<'_>) -> Result<(), Error> {
        let Some(attach) = self.inner.options.attach() else {
            let why = "this client is not attached: see Builder::attach";
            return Err(Error::Misuse(why.to_owned()));
        };
        for shard in 0..self.inner.options.clusters.len() {
            self.ask_server(shard, &command(attach))?;
        }
        Ok(())
    }
}
