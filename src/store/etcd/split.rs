//! What is left of all shards of a cluster, for another number of them: everything goes where its key goes now.
//!
//! Pure: frames in, frames out. A key was in one shard and is in one shard afterwards, with everything that is
//! known of it in the order in which it happened. What is known of attached clients goes to every shard,
//! because each of them may be asked by any client. And no shard gives out a fence that any of the old
//! ones may have given out.
//!
//! Two shards may have given out the same fence, for different keys. That is as it should be, since a fence is
//! compared only with others of its key; whoever tells grants apart must not do it by the fence alone.

use std::collections::BTreeMap;

use super::super::compact::{At, Live};
use super::super::entry::{Clocks, Entry};
use super::super::format::{push_end, push_ranged, push_record, push_renumbered};
use super::super::ranges::LockedRange;
use super::value::{SALT, Unreadable, frame_places, frames};
use crate::base::{Fence, Millis, Nanos};
use crate::engine::types::{ATTACHED_SERIAL, Record, SecretHash};
use crate::shard::{Shard, shard_of};

/// Takes what is left of each shard, and makes of it what is in each of the new ones.
pub struct Split {
    from: u32,
    parts: Vec<Part>,
    clients: Clients,
    /// The highest fence that any shard may have given out.
    fence: u64,
    /// The highest epoch of any shard.
    epoch: u64,
}

/// What goes to one of the new shards: frames, whose numbers do not count yet.
#[derive(Default)]
struct Part {
    /// Grants of clients that had been forgotten. They stand before all clients: one that has come
    /// since under the same name must not get them.
    orphans: Vec<Vec<u8>>,
    rest: Vec<Vec<u8>>,
    ranges: Vec<Vec<u8>>,
    tally: Tally,
}

/// By id.
type Clients = BTreeMap<Box<str>, Client>;

/// A client, as one or several shards know it.
struct Client {
    ttl: Millis,
    secret: SecretHash,
    /// The secret is from a shard in which it has something.
    has_something: bool,
}

/// How much there is in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Grants.
    pub grants: u64,
    /// Counters and values, and values in lists.
    pub values: u64,
    /// Byte ranges.
    pub ranges: u64,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            grants: self.grants + other.grants,
            values: self.values + other.values,
            ranges: self.ranges + other.ranges,
        }
    }
}

/// All of a new shard, as a snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its frames.
    pub bytes: Vec<u8>,
    /// The number of the last record.
    pub number: u64,
    /// No shard has had a higher epoch.
    pub epoch: u64,
    /// How much that is.
    pub tally: Tally,
}

impl Split {
    /// So many shards become so many.
    #[must_use]
    pub fn new(from: u32, to: u32) -> Self {
        Self {
            from,
            parts: (0..to).map(|_| Part::default()).collect(),
            clients: Clients::new(),
            fence: 0,
            epoch: 0,
        }
    }

    /// Takes everything that was recorded in one of the old shards, in order.
    ///
    /// # Errors
    /// It cannot be read, or something is among it that belongs to another shard: nothing may come of it.
    pub fn add(
        &mut self,
        index: u32,
        epoch: u64,
        files: &[impl AsRef<[u8]>],
    ) -> Result<(), Unreadable> {
        let shard = Shard::new(index, self.from).ok_or(Unreadable("there is no such shard"))?;
        self.epoch = self.epoch.max(epoch);
        let mut live = Live::default();
        for (file, bytes) in files.iter().enumerate() {
            let bytes = bytes.as_ref();
            for (place, frame) in frame_places(bytes).zip(frames(bytes)) {
                let ((offset, len), (_, entry)) = (place?, frame?);
                if key_of(&entry).is_some_and(|key| shard.other_with(key).is_some()) {
                    return Err(Unreadable("a key stands in a shard that is not its own"));
                }
                // Also of grants that have ended: somebody may have been told.
                match entry {
                    Entry::Fences { upto } => self.fence = self.fence.max(upto.0),
                    Entry::Granted { token, .. } => self.fence = self.fence.max(token.fence.0),
                    _ => {}
                }
                let at = At {
                    file: file as u32,
                    offset: offset as u64,
                    len: len as u32,
                };
                live.apply(at, &entry);
            }
        }
        let mut clients = Clients::new();
        for at in live.places() {
            let offset = at.offset as usize;
            let frame = &files[at.file as usize].as_ref()[offset..offset + at.len as usize];
            if let Some(read) = frames(frame).next() {
                self.take(frame, &read?.1, &mut clients);
            }
        }
        for locked in live.ranges.iter() {
            self.take_range(locked, &mut clients);
        }
        self.know(clients);
        Ok(())
    }

    /// `clients` are those that this shard knew by then.
    fn take(&mut self, frame: &[u8], entry: &Entry<'_>, clients: &mut Clients) {
        if let Entry::Client { id, ttl, secret } = *entry {
            let has_something = clients.get(id).is_some_and(|it| it.has_something);
            let client = Client {
                ttl,
                secret,
                has_something,
            };
            clients.insert(id.into(), client);
            return;
        }
        let Some(key) = key_of(entry) else {
            return; // fences, of which there is one record for all
        };
        let to = shard_of(key, self.parts.len() as u32) as usize;
        let part = &mut self.parts[to];
        match *entry {
            Entry::Granted { client, name, .. } => {
                part.tally.grants += 1;
                if let Some(id) = name.filter(|_| client == ATTACHED_SERIAL) {
                    let Some(client) = clients.get_mut(id) else {
                        return part.orphans.push(frame.to_vec());
                    };
                    client.has_something = true;
                }
            }
            // Of one that was forgotten since, the grant is nobody's.
            Entry::Owned { client, .. } => match clients.get_mut(client) {
                None => return,
                Some(client) => client.has_something = true,
            },
            Entry::Lengthened { .. } => {}
            _ => part.tally.values += 1,
        }
        part.rest.push(frame.to_vec());
    }

    fn take_range(&mut self, locked: LockedRange<'_>, clients: &mut Clients) {
        let LockedRange {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } = locked;
        let to = shard_of(resource, self.parts.len() as u32) as usize;
        let part = &mut self.parts[to];
        let mut frame = Vec::new();
        let names = [resource, client.as_bytes(), owner];
        push_ranged(&mut frame, SALT, 0, names, range, Some(mode), grant);
        part.ranges.push(frame);
        part.tally.ranges += 1;
        if let Some(client) = clients.get_mut(client) {
            client.has_something = true;
        }
    }

    /// A shard knows these clients. If others know one of them, too, its time to live is the longest that any
    /// has, and its secret that of a shard in which it has something. (A client shows every shard the same
    /// one, and each keeps another hash of it.)
    fn know(&mut self, clients: Clients) {
        for (id, client) in clients {
            match self.clients.get_mut(&id) {
                None => {
                    self.clients.insert(id, client);
                }
                Some(before) => {
                    before.ttl = before.ttl.max(client.ttl);
                    if client.has_something && !before.has_something {
                        (before.secret, before.has_something) = (client.secret, true);
                    }
                }
            }
        }
    }

    /// What is in each of the new shards, in their order.
    pub fn pieces(self) -> impl Iterator<Item = Piece> {
        let Self {
            parts,
            clients,
            fence,
            epoch,
            ..
        } = self;
        let mut of_all = Vec::new();
        if fence > 0 {
            let upto = Fence(fence);
            of_all.push(frame_of(&Record::Fences { upto }));
        }
        let clients: Vec<Vec<u8>> = { clients.iter() }
            .map(|(id, client)| {
                frame_of(&Record::Client {
                    id: id.as_bytes().into(),
                    ttl: client.ttl,
                    secret: client.secret,
                })
            })
            .collect();
        parts.into_iter().map(move |part| {
            let mut bytes = Vec::new();
            let mut number = 0;
            let groups = [&of_all, &part.orphans, &clients, &part.rest, &part.ranges];
            for frame in groups.into_iter().flatten() {
                number += 1;
                push_renumbered(&mut bytes, SALT, number, frame);
            }
            push_end(&mut bytes, SALT, number, number);
            Piece {
                bytes,
                number,
                epoch,
                tally: part.tally,
            }
        })
    }
}

/// The name by which it is decided where an entry belongs; none if that is everywhere.
fn key_of<'a>(entry: &Entry<'a>) -> Option<&'a [u8]> {
    match *entry {
        Entry::Granted { key, .. }
        | Entry::Lengthened { key, .. }
        | Entry::Owned { key, .. }
        | Entry::Ended { key, .. }
        | Entry::Counted { key, .. }
        | Entry::Stored { key, .. }
        | Entry::Deleted { key }
        | Entry::Pushed { key, .. }
        | Entry::Popped { key, .. } => Some(key),
        Entry::Ranged { resource, .. } => Some(resource),
        Entry::Client { .. }
        | Entry::ClientGone { .. }
        | Entry::Fences { .. }
        | Entry::Mark { .. }
        | Entry::Stopped { .. }
        | Entry::End { .. } => None,
    }
}

fn frame_of(record: &Record) -> Vec<u8> {
    let mut frame = Vec::new();
    let clocks = Clocks {
        now: Nanos(0),
        wall_ms: 0,
    };
    push_record(&mut frame, SALT, 0, record, || clocks); // neither has a time
    frame
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
