//! Another number of shards, while no member runs: everything is read, split anew and written beside what is
//! there, and then one transaction makes that the map that counts.
//!
//! Before that transaction nothing has changed for anybody, and after it everything has. It can be stopped at
//! any point and run again. What it rests on:
//!
//! - Every write shows that nobody else has begun the same since: the ticket, which whoever begins puts
//!   under its key, is unchanged. So what is written is of one run, whatever an earlier one has left.
//! - Nobody leads when it is read, and nobody has begun to since the ticket: whoever begins to lead says so
//!   under a key that stays (`follow.rs`), and the last transaction looks at all of these.
//! - Whoever begins to lead shows that the map is the one it knows. So nobody leads by the old one afterwards.
//! - What was written is read again and compared before it counts.

use std::fmt;
use std::time::Duration;

use crc32c::crc32c;

use super::leader_key::LeaderKey;
use crate::etcd::{Answer, Ask, Compare, Etcd, Get, Got, Op, Trouble};
use crate::store::etcd::{
    CHUNKS_MAX, Keys, Logged, Manifest, Map, MapKeys, Mapped, NotRead, Piece, Position, Split,
    Tally, Unreadable, load, map_key, read_map, ticket_key,
};

/// How long one question may take. Deleting everything of a map may take long.
const WITHIN: Duration = Duration::from_secs(30);

/// How often a question is asked that is not answered.
const TRIES: usize = 5;

/// How many keys are asked for in one question: etcd's own limit is 128.
const KEYS_MAX: u32 = 100;

/// How often it is told how far it is, in pieces of a snapshot.
const TOLD_EVERY: usize = 256;

/// The first entry of every new log. (Its number is not 0, which means that there is no snapshot.)
const FIRST_ENTRY: u64 = 1;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Reshard {
    /// The name of the cluster.
    pub cluster: String,
    /// How many shards it has.
    pub from: u32,
    /// How many it shall have.
    pub to: u32,
    /// A number that no other run has.
    pub nonce: u64,
    /// The longest piece of a snapshot.
    pub piece_bytes: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resharded {
    /// It is done.
    Done {
        /// The new map.
        map: Map,
        /// How much there is in all its shards.
        tally: Tally,
    },
    /// It had been done before; what an earlier run has left behind is deleted.
    Before(Map),
}

/// Why nothing came of it. Unless it says otherwise the cluster is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotResharded {
    /// The cluster has another number of shards, or there is none.
    Other(String),
    /// Somebody leads, or does the same.
    InUse(String),
    /// etcd does not answer as it should.
    Trouble(String),
}

impl fmt::Display for NotResharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(why) | Self::InUse(why) | Self::Trouble(why) => f.write_str(why),
        }
    }
}

impl From<NotRead> for NotResharded {
    fn from(why: NotRead) -> Self {
        Self::Trouble(why.to_string())
    }
}

impl From<Trouble> for NotResharded {
    fn from(why: Trouble) -> Self {
        Self::Trouble(why.to_string())
    }
}

impl Reshard {
    /// Does it all. `tell` is told how far it is.
    ///
    /// # Errors
    /// See [`NotResharded`].
    pub fn run(
        &self,
        etcd: &mut dyn Etcd,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Resharded, NotResharded> {
        let etcd = &mut Patient(etcd);
        let mapped = self.read_map(etcd)?;
        let before = mapped.map;
        if before.shards == self.to {
            let ticket = self.take_ticket(etcd, mapped)?;
            self.clear(etcd, &before.keys(&self.cluster), &ticket)?;
            self.give_back(etcd, &ticket)?;
            return Ok(Resharded::Before(before));
        }
        if before.shards != self.from {
            let Self { cluster, from, .. } = self;
            let shards = before.shards;
            let why = format!("cluster {cluster} has {shards} shards, and not {from}");
            return Err(NotResharded::Other(why));
        }
        let ticket = self.take_ticket(etcd, mapped)?;
        let old = before.keys(&self.cluster);
        if let Err(why) = self.refuse_leaders(etcd, &old) {
            let _ = self.give_back(etcd, &ticket); // it says nothing to anybody
            return Err(why);
        }
        self.clear(etcd, &old, &ticket)?;
        // Of a deletion that had to be sent twice etcd may do the first copy when everything is written, and delete that.
        // With another ticket it is refused. Whoever has begun to lead since the first one still counts.
        let ticket = Ticket {
            revision: ticket.revision,
            ..self.take_ticket(etcd, mapped)?
        };
        let split = self.read(etcd, &old, tell)?;
        let map = Map {
            epoch: before.epoch + 1,
            shards: self.to,
            nonce: self.nonce,
        };
        let tally = self.write(etcd, &map.keys(&self.cluster), &ticket, split, tell)?;
        self.switch(etcd, &old, &ticket, map)?;
        tell("the new shards count from now on");
        // From here on it is done, and what is left behind takes room and nothing else.
        let cleared = self.take_ticket_of(etcd, map).and_then(|ticket| {
            self.clear(etcd, &map.keys(&self.cluster), &ticket)?;
            self.give_back(etcd, &ticket)
        });
        if let Err(why) = cleared {
            tell(&format!(
                "what the old shards had could not be deleted, and the same command tries again: {why}"
            ));
        }
        Ok(Resharded::Done { map, tally })
    }

    /// The map that counts. A log without a map is of a cluster with one shard.
    fn read_map(&self, etcd: &mut Patient<'_>) -> Result<Mapped, NotResharded> {
        if let Some(mapped) = read_map(etcd, &self.cluster, WITHIN)? {
            return Ok(mapped);
        }
        let first = Keys::new(&self.cluster, 0);
        if load(etcd, &first, WITHIN, &mut |_| {})?.is_none() {
            let why = format!("there is no cluster {}", self.cluster);
            return Err(NotResharded::Other(why));
        }
        Ok(Mapped {
            map: Map {
                epoch: 1,
                shards: 1,
                nonce: 0,
            },
            revision: 0,
        })
    }

    /// Whoever had the ticket before can write no longer.
    fn take_ticket(&self, etcd: &mut Patient<'_>, mapped: Mapped) -> Result<Ticket, NotResharded> {
        let Self {
            cluster,
            from,
            to,
            nonce,
            ..
        } = self;
        let map = Compare::Modified(map_key(cluster), mapped.revision);
        let put = Op::Put {
            key: ticket_key(cluster),
            value: format!("{from} {to} {nonce:016x}\n").into_bytes(),
            lease: 0,
        };
        match etcd.transact(vec![map.clone()], vec![put], Vec::new())? {
            (true, revision, _) => Ok(Ticket {
                revision,
                mine: Compare::Modified(ticket_key(cluster), revision),
                map,
            }),
            (false, ..) => Err(NotResharded::InUse(
                "the number of shards was changed by somebody else just now".to_owned(),
            )),
        }
    }

    /// The same when this very map counts.
    fn take_ticket_of(&self, etcd: &mut Patient<'_>, map: Map) -> Result<Ticket, NotResharded> {
        match read_map(etcd, &self.cluster, WITHIN)? {
            Some(mapped) if mapped.map == map => self.take_ticket(etcd, mapped),
            _ => Err(NotResharded::InUse("there is yet another map".to_owned())),
        }
    }

    fn give_back(&self, etcd: &mut Patient<'_>, ticket: &Ticket) -> Result<(), NotResharded> {
        let gone = Op::Delete(ticket_key(&self.cluster), Vec::new());
        etcd.transact(ticket.guards(), vec![gone], Vec::new())?;
        Ok(())
    }

    /// Deletes everything that belongs to other maps than this one.
    fn clear(
        &self,
        etcd: &mut Patient<'_>,
        keys: &MapKeys,
        ticket: &Ticket,
    ) -> Result<(), NotResharded> {
        for [first, end] in keys.everything_else() {
            etcd.write(ticket, vec![Op::Delete(first, end)])?;
        }
        Ok(())
    }

    /// Nobody may lead any of the old shards.
    fn refuse_leaders(&self, etcd: &mut Patient<'_>, old: &MapKeys) -> Result<(), NotResharded> {
        let all: Vec<u32> = (0..self.from).collect();
        for some in all.chunks(KEYS_MAX as usize) {
            let gets = some
                .iter()
                .map(|&index| Get::one(&old.shard(index).leader()));
            let (_, _, got) = etcd.transact(Vec::new(), gets.map(Op::Get).collect(), Vec::new())?;
            for (index, got) in some.iter().zip(&got) {
                if let Some(kv) = got.kvs.first() {
                    let who = LeaderKey::decode(&kv.value).map(|it| it.line);
                    let who = who.unwrap_or_else(|| "somebody".to_owned());
                    return Err(NotResharded::InUse(format!(
                        "{who} leads shard {index}: stop all members of the cluster first (of one that was \
                         killed the lease ends after --cluster-ttl)"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Reads everything there is.
    fn read(
        &self,
        etcd: &mut Patient<'_>,
        old: &MapKeys,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Split, NotResharded> {
        let mut split = Split::new(self.from, self.to);
        for index in 0..self.from {
            let mut files: Vec<Vec<u8>> = Vec::new();
            let keys = old.shard(index);
            let position = load(etcd, &keys, WITHIN, &mut |it| files.push(it.to_vec()))?;
            // A shard of which no member was ever started has nothing.
            let Position { epoch, number, .. } = position.unwrap_or_default();
            let added = split.add(index, epoch, &files);
            added.map_err(|Unreadable(why)| {
                NotResharded::Trouble(format!("what shard {index} has cannot be used: {why}"))
            })?;
            let (from, bytes) = (self.from, files.iter().map(Vec::len).sum::<usize>());
            tell(&format!(
                "read shard {index} of {from}: {number} records so far, {bytes} bytes of them left"
            ));
        }
        Ok(split)
    }

    /// Writes everything, where nobody looks yet.
    fn write(
        &self,
        etcd: &mut Patient<'_>,
        new: &MapKeys,
        ticket: &Ticket,
        split: Split,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Tally, NotResharded> {
        let mut sum = Tally::default();
        for (index, piece) in (0..).zip(split.pieces()) {
            let keys = new.shard(index);
            self.write_piece(etcd, &keys, ticket, &piece, tell)?;
            let mut there = Vec::new();
            let position = load(etcd, &keys, WITHIN, &mut |it| there.extend_from_slice(it))?;
            let is_right = position.is_some_and(|it| it.number == piece.number);
            if !is_right || there != piece.bytes {
                let why = format!("what was written to shard {index} is not what is there");
                return Err(NotResharded::Trouble(why));
            }
            let Tally {
                grants,
                values,
                ranges,
            } = piece.tally;
            let to = self.to;
            tell(&format!(
                "wrote shard {index} of {to}: {grants} held, {values} counters and values, \
                 {ranges} byte ranges"
            ));
            sum = sum.and(piece.tally);
        }
        Ok(sum)
    }

    fn write_piece(
        &self,
        etcd: &mut Patient<'_>,
        keys: &Keys,
        ticket: &Ticket,
        piece: &Piece,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), NotResharded> {
        let put = |key, value| {
            let lease = 0;
            vec![Op::Put { key, value, lease }]
        };
        let piece_bytes = piece.bytes.len().div_ceil(CHUNKS_MAX).max(self.piece_bytes);
        let chunks = piece.bytes.chunks(piece_bytes);
        let count = chunks.len();
        for (index, chunk) in chunks.enumerate() {
            let key = keys.chunk(FIRST_ENTRY, index as u64);
            etcd.write(ticket, put(key, chunk.to_vec()))?;
            if (index + 1).is_multiple_of(TOLD_EVERY) {
                tell(&format!("wrote {} of {count} pieces", index + 1));
            }
        }
        // Who leads first goes on from here, with a higher epoch than any shard has had.
        let entry = Logged {
            leader: 0,
            nonce: [self.nonce, 0],
            epoch: piece.epoch,
            first: piece.number + 1,
            frames: Vec::new(),
        };
        etcd.write(ticket, put(keys.entry(FIRST_ENTRY), entry.encode()))?;
        let manifest = Manifest {
            seq: FIRST_ENTRY,
            epoch: piece.epoch,
            number: piece.number,
            bytes: piece.bytes.len() as u64,
            chunks: count as u64,
            checksum: crc32c(&piece.bytes),
        };
        etcd.write(ticket, put(keys.snap(), manifest.encode()))
    }

    /// The one transaction after which the new map counts.
    fn switch(
        &self,
        etcd: &mut Patient<'_>,
        old: &MapKeys,
        ticket: &Ticket,
        map: Map,
    ) -> Result<(), NotResharded> {
        let [first, end] = old.terms();
        let mut compare = ticket.guards();
        compare.push(Compare::NoneSince(first, end, ticket.revision));
        let put = Op::Put {
            key: map_key(&self.cluster),
            value: map.encode(),
            lease: 0,
        };
        let look = Op::Get(Get::one(&map_key(&self.cluster)));
        let (is_done, _, got) = etcd.transact(compare, vec![put], vec![look])?;
        let there = got.first().and_then(|it| it.kvs.first());
        let there = there.and_then(|kv| Map::decode(&kv.value));
        // An earlier try may have done it, whose answer was lost.
        match is_done || there == Some(map) {
            true => Ok(()),
            false => Err(NotResharded::InUse(
                "a member has begun to lead meanwhile, or somebody else does the same: nothing has \
                 changed; stop all members, and begin anew"
                    .to_owned(),
            )),
        }
    }
}

/// Shows that nobody else has begun the same since.
struct Ticket {
    /// When it was taken.
    revision: u64,
    mine: Compare,
    map: Compare,
}

impl Ticket {
    fn guards(&self) -> Vec<Compare> {
        vec![self.mine.clone(), self.map.clone()]
    }
}

/// An etcd that is asked again if it does not answer. Everything asked here may be done twice.
struct Patient<'a>(&'a mut dyn Etcd);

impl Etcd for Patient<'_> {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        let mut tries = 1;
        loop {
            match self.0.call(ask, within) {
                Err(Trouble::Unanswered(_) | Trouble::Unreachable(_)) if tries < TRIES => {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}

impl Patient<'_> {
    /// Whether it was done, the revision after it, and what was read.
    fn transact(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<Op>,
        failure: Vec<Op>,
    ) -> Result<(bool, u64, Vec<Got>), NotResharded> {
        let ask = Ask::Txn {
            compare,
            success,
            failure,
        };
        match self.call(&ask, WITHIN)? {
            Answer::Txn {
                succeeded,
                revision,
                got,
            } => Ok((succeeded, revision, got)),
            other => Err(Trouble::Garbled(format!("{other:?}")).into()),
        }
    }

    /// Does this if nobody else has begun the same.
    fn write(&mut self, ticket: &Ticket, ops: Vec<Op>) -> Result<(), NotResharded> {
        match self.transact(ticket.guards(), ops, Vec::new())? {
            (true, ..) => Ok(()),
            (false, ..) => Err(NotResharded::InUse(
                "somebody else does the same, and has begun later".to_owned(),
            )),
        }
    }
}

#[cfg(test)]
#[path = "reshard_tests.rs"]
mod tests;
