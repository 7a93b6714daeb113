//! Histories from seeds, split into other numbers of shards: what the pieces say together is what the whole said,
//! each thing in exactly one of them. Judged by a replay that is as simple as can be.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::base::Token;
use crate::engine::types::{ByteRange, End, Mode, RangeGrant, Sharing};

const CLOCKS: Clocks = Clocks {
    now: Nanos(0),
    wall_ms: 1_000,
};

/// What is left of records, by the most obvious replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Left {
    /// By key and fence: the rest of the grant, and the client that it belongs to, if that is known.
    grants: BTreeMap<(Vec<u8>, u64), (Record, Option<String>)>,
    counters: BTreeMap<Vec<u8>, i64>,
    values: BTreeMap<Vec<u8>, Record>,
    lists: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// By resource, client, owner and byte.
    bytes: BTreeMap<(Vec<u8>, String, Vec<u8>, u64), bool>,
    clients: BTreeMap<String, Millis>,
    fences: u64,
}

impl Left {
    fn replay(&mut self, record: &Record) {
        let name = |key: &crate::key::Key| key.as_bytes().to_vec();
        let id_of = |key: &crate::key::Key| String::from_utf8(name(key)).unwrap();
        match record {
            Record::Granted {
                key,
                token,
                client,
                name: who,
                ..
            } => {
                let owner = who.as_deref().filter(|_| *client == ATTACHED_SERIAL);
                let owner = owner.filter(|id| self.clients.contains_key(*id));
                let grant = (record.clone(), owner.map(str::to_owned));
                let before = self.grants.insert((name(key), token.fence.0), grant);
                assert_eq!(before, None, "granted twice");
                self.fences = self.fences.max(token.fence.0);
            }
            Record::Lengthened { key, fence, lease } => {
                let grant = self.grants.get_mut(&(name(key), fence.0)).unwrap();
                let Record::Granted { lease: before, .. } = &mut grant.0 else {
                    panic!("not a grant");
                };
                *before = *lease;
            }
            Record::Owned { key, fence, client } => {
                let grant = self.grants.get_mut(&(name(key), fence.0)).unwrap();
                let client = id_of(client);
                if self.clients.contains_key(&client) {
                    grant.1 = Some(client);
                }
            }
            Record::Ended { key, fence } => {
                self.grants.remove(&(name(key), fence.0)).unwrap();
            }
            Record::Counted { key, value: 0 } => {
                self.counters.remove(key.as_bytes());
            }
            Record::Counted { key, value } => {
                self.counters.insert(name(key), *value);
            }
            Record::Stored { key, .. } => {
                self.values.insert(name(key), record.clone());
            }
            Record::Deleted { key } => {
                self.values.remove(key.as_bytes());
            }
            Record::Pushed { key, end, value } => {
                let list = self.lists.entry(name(key)).or_default();
                match end {
                    End::Left => list.push_front(value.to_vec()),
                    End::Right => list.push_back(value.to_vec()),
                }
            }
            Record::Popped { key, end } => {
                let list = self.lists.get_mut(key.as_bytes()).unwrap();
                let popped = match end {
                    End::Left => list.pop_front(),
                    End::Right => list.pop_back(),
                };
                assert!(popped.is_some());
                if list.is_empty() {
                    self.lists.remove(key.as_bytes());
                }
            }
            Record::Client { id, ttl, .. } => {
                self.clients.insert(id_of(id), *ttl);
            }
            Record::ClientGone { id } => {
                let id = id_of(id);
                self.clients.remove(&id);
                self.bytes.retain(|(_, client, ..), _| *client != id);
                for (_, owner) in self.grants.values_mut() {
                    owner.take_if(|it| *it == id);
                }
            }
            Record::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                ..
            } => {
                assert!(self.clients.contains_key(&id_of(client)), "of a stranger");
                for byte in range.start()..=range.last() {
                    let key = (name(resource), id_of(client), name(owner), byte);
                    match mode {
                        Some(mode) => self.bytes.insert(key, *mode == Sharing::Shared),
                        None => self.bytes.remove(&key),
                    };
                }
            }
            Record::Fences { upto } => self.fences = self.fences.max(upto.0),
        }
    }

    fn of(frames_of_it: &[u8]) -> Self {
        let mut left = Self::default();
        for frame in frames(frames_of_it) {
            if let Some(record) = frame.unwrap().1.record(CLOCKS) {
                left.replay(&record);
            }
        }
        left
    }

    /// Everything that is in exactly one shard, from several of them; asserts that it is where it belongs.
    fn join(shards: &[Self]) -> Self {
        let mut whole = Self::default();
        for (index, shard) in (0..).zip(shards) {
            let at = Shard::new(index, shards.len() as u32).unwrap();
            let keys = { shard.grants.keys().map(|it| &it.0) }
                .chain(shard.counters.keys())
                .chain(shard.values.keys())
                .chain(shard.lists.keys())
                .chain(shard.bytes.keys().map(|it| &it.0));
            for key in keys {
                assert_eq!(at.other_with(key), None, "{key:?} in {at}");
            }
            let it = shard.clone();
            whole.grants.extend(it.grants);
            whole.counters.extend(it.counters);
            whole.values.extend(it.values);
            whole.lists.extend(it.lists);
            whole.bytes.extend(it.bytes);
            for (id, ttl) in it.clients {
                let most = whole.clients.entry(id).or_default();
                *most = ttl.max(*most);
            }
            whole.fences = whole.fences.max(it.fences);
        }
        whole
    }
}

/// Records of several shards, as they could have been made.
struct History {
    shards: Vec<Left>,
    files: Vec<Vec<Vec<u8>>>,
    numbers: Vec<u64>,
    fences: Vec<u64>,
    chance: fastrand::Rng,
}

impl History {
    fn new(count: u32, seed: u64) -> Self {
        let count = count as usize;
        Self {
            shards: vec![Left::default(); count],
            files: vec![vec![Vec::new()]; count],
            numbers: vec![0; count],
            fences: vec![1_000; count],
            chance: fastrand::Rng::with_seed(seed),
        }
    }

    fn push(&mut self, shard: usize, record: &Record) {
        self.shards[shard].replay(record);
        self.numbers[shard] += 1;
        if self.chance.u8(..) < 20 {
            self.files[shard].push(Vec::new());
        }
        let number = self.numbers[shard];
        let file = self.files[shard].last_mut().unwrap();
        push_record(file, SALT, number, record, || CLOCKS);
    }

    fn step(&mut self) {
        let name = format!("key{}", self.chance.u8(..40));
        let shard = shard_of(name.as_bytes(), self.shards.len() as u32) as usize;
        let key: crate::key::Key = name.as_bytes().into();
        let client = format!("gw/{}", self.chance.u8(..3));
        let end = match self.chance.bool() {
            true => End::Left,
            false => End::Right,
        };
        let record = match self.chance.u8(..15) {
            0..=2 => {
                self.fences[shard] += 1; // the same ones in every shard
                let (client, name) = match self.chance.u8(..3) {
                    0 => (ATTACHED_SERIAL, Some(client.into())),
                    1 => (0, Some("owner".into())),
                    _ => (7, None),
                };
                Record::Granted {
                    key,
                    mode: Mode::Slot { limit: 1_000_000 },
                    token: Token {
                        fence: Fence(self.fences[shard]),
                        salt: self.chance.u64(..),
                    },
                    lease: Millis(self.chance.u64(1..1_000)),
                    client,
                    name,
                    request: b"id"[..].into(),
                }
            }
            3 | 4 => {
                let fences = self.shards[shard].grants.keys();
                let own: Vec<u64> = fences
                    .filter(|it| it.0 == name.as_bytes())
                    .map(|it| it.1)
                    .collect();
                let Some(fence) = self.chance.choice(own).map(Fence) else {
                    return;
                };
                match self.chance.bool() {
                    true => Record::Ended { key, fence },
                    false => Record::Lengthened {
                        key,
                        fence,
                        lease: Millis(self.chance.u64(1_000..2_000)),
                    },
                }
            }
            5 => Record::Counted {
                key,
                value: self.chance.i64(-2..3),
            },
            6 => Record::Stored {
                key,
                value: vec![self.chance.u8(..); 3].into(),
                ends: self.chance.bool().then_some(Nanos(5_000_000_000)),
            },
            7 => Record::Deleted { key },
            8 | 9 => Record::Pushed {
                key,
                end,
                value: vec![self.chance.u8(..); 2].into(),
            },
            10 if self.shards[shard].lists.contains_key(name.as_bytes()) => {
                Record::Popped { key, end }
            }
            11 => {
                // Clients come and go in any shard.
                let shard = self.chance.usize(..self.shards.len());
                let id: crate::key::Key = client.as_bytes().into();
                let is_known = self.shards[shard].clients.contains_key(&client);
                let record = match is_known && self.chance.u8(..4) == 0 {
                    true => Record::ClientGone { id },
                    false => Record::Client {
                        id,
                        ttl: Millis(self.chance.u64(1..100)),
                        secret: SecretHash {
                            salt: [shard as u8; 16],
                            hash: [shard as u8; 32],
                        },
                    },
                };
                return self.push(shard, &record);
            }
            12 if self.shards[shard].clients.contains_key(&client) => {
                let start = self.chance.u64(..20);
                let last = start + self.chance.u64(..10);
                let mode = match self.chance.u8(..3) {
                    0 => None,
                    1 => Some(Sharing::Shared),
                    _ => Some(Sharing::Exclusive),
                };
                Record::Ranged {
                    resource: key,
                    client: client.as_bytes().into(),
                    owner: b"o"[..].into(),
                    range: ByteRange::between(start, last).unwrap(),
                    mode,
                    grant: RangeGrant::default(),
                }
            }
            14 if self.shards[shard].clients.contains_key(&client) => {
                // Only what is nobody's becomes a client's.
                let grants = self.shards[shard].grants.iter();
                let nobodys =
                    grants.filter(|((of, _), it)| of == name.as_bytes() && it.1.is_none());
                let fences: Vec<u64> = nobodys.map(|((_, fence), _)| *fence).collect();
                let Some(fence) = self.chance.choice(fences).map(Fence) else {
                    return;
                };
                Record::Owned {
                    key,
                    fence,
                    client: client.as_bytes().into(),
                }
            }
            13 => {
                let upto = Fence(self.fences[shard] + 50);
                Record::Fences { upto }
            }
            _ => return,
        };
        self.push(shard, &record);
    }

    fn split(&self, to: u32) -> Vec<Piece> {
        let mut split = Split::new(self.files.len() as u32, to);
        for (index, files) in (0..).zip(&self.files) {
            split.add(index, u64::from(index) + 3, files).unwrap();
        }
        split.pieces().collect()
    }
}

#[test]
fn everything_is_in_exactly_one_shard_and_nothing_is_lost() {
    let mut same_fences = 0;
    for seed in 0..60 {
        let from = 1 + (seed % 4) as u32;
        let mut history = History::new(from, seed);
        for _ in 0..600 {
            history.step();
        }
        let whole = Left::join(&history.shards);
        for to in 1..6 {
            let pieces = history.split(to);
            let left: Vec<Left> = pieces.iter().map(|it| Left::of(&it.bytes)).collect();
            for (shard, piece) in left.iter().zip(&pieces) {
                assert_eq!(shard.fences, whole.fences, "seed {seed}");
                assert_eq!(shard.clients, whole.clients, "seed {seed}");
                assert_eq!(piece.epoch, u64::from(from) + 2);
                assert_eq!(piece.tally.grants, shard.grants.len() as u64);
                let numbers = frames(&piece.bytes).map(|it| it.unwrap().0);
                let last = frames(&piece.bytes).count() as u64 - 1;
                let expected: Vec<u64> = (1..=last).chain([last]).collect();
                assert_eq!(numbers.collect::<Vec<_>>(), expected);
                assert_eq!(piece.number, last);
                let mut fences: Vec<u64> = shard.grants.keys().map(|it| it.1).collect();
                fences.sort_unstable();
                same_fences += fences.windows(2).filter(|it| it[0] == it[1]).count();
            }
            assert_eq!(Left::join(&left), whole, "seed {seed}, {from} to {to}");
            // What was split can be split again, and thinned out by whoever leads.
            let mut again = Split::new(to, from);
            for (index, piece) in (0..).zip(&pieces) {
                again.add(index, piece.epoch, &[&piece.bytes]).unwrap();
            }
            let back: Vec<Left> = again.pieces().map(|it| Left::of(&it.bytes)).collect();
            assert_eq!(
                Left::join(&back),
                whole,
                "seed {seed}, {from} to {to} and back"
            );
        }
    }
    assert!(same_fences > 100, "they shall be tried: {same_fences}");
}

#[test]
fn a_key_in_the_wrong_shard_is_damage() {
    let mut history = History::new(1, 1);
    let record = Record::Counted {
        key: b"my-key"[..].into(), // number 2 of 3
        value: 1,
    };
    history.push(0, &record);
    let files = &history.files[0];
    assert!(Split::new(3, 2).add(2, 1, files).is_ok());
    for index in [0, 1, 3] {
        assert!(Split::new(3, 2).add(index, 1, files).is_err());
    }
    let cut = [&files[0][..files[0].len() - 1]];
    assert!(Split::new(3, 2).add(2, 1, &cut).is_err());
}

#[test]
fn the_secret_counts_that_a_shard_knows_where_the_client_has_something() {
    let client = |salt| Record::Client {
        id: b"gw/1"[..].into(),
        ttl: Millis(5),
        secret: SecretHash {
            salt: [salt; 16],
            hash: [salt; 32],
        },
    };
    for has in 0..3_u8 {
        let mut history = History::new(3, 1);
        for shard in 0..3_u8 {
            history.push(shard.into(), &client(shard));
            let resource = { (0..).map(|it| format!("r{it}")) }
                .find(|it| shard_of(it.as_bytes(), 3) == u32::from(shard));
            if has == shard {
                let ranged = Record::Ranged {
                    resource: resource.unwrap().as_bytes().into(),
                    client: b"gw/1"[..].into(),
                    owner: b""[..].into(),
                    range: ByteRange::between(0, 9).unwrap(),
                    mode: Some(Sharing::Shared),
                    grant: RangeGrant::default(),
                };
                history.push(shard.into(), &ranged);
            }
        }
        for piece in history.split(2) {
            let salts = frames(&piece.bytes).filter_map(|it| match it.unwrap().1 {
                Entry::Client { secret, .. } => Some(secret.salt[0]),
                _ => None,
            });
            assert_eq!(salts.collect::<Vec<_>>(), [has]);
        }
    }
}
