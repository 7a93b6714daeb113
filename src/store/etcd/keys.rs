//! Under which keys of etcd a cluster keeps its things.
//!
//! ```text
//! /latchd/<cluster>/map                               how many shards there are
//! /latchd/<cluster>/reshard                           who makes another map at the moment
//! /latchd/<cluster>/leaders/<5 digits>                who leads each shard; goes with its lease
//! /latchd/<cluster>/terms/<5 digits>                  who has led it last
//! /latchd/<cluster>/<shard>/leader                    who leads; goes with its lease
//! /latchd/<cluster>/<shard>/log/<20 digits>           a batch of records
//! /latchd/<cluster>/<shard>/snap                      which snapshot counts
//! /latchd/<cluster>/<shard>/snap/<20 digits>/<5 digits>   a piece of a snapshot
//! ```
//!
//! So it is with the first map. With map number 2 everything but the first two stands under
//! `/latchd/<cluster>/r2/` instead, and so on: a new map is written beside the old one.
//!
//! The order of the names matters: `leader` and `log/` stand side by side, so that one watch sees both and
//! nothing of a snapshot; and what is said of all shards stands side by side, so that one question is enough.

use crate::etcd::{Compare, Kv};

/// So many pieces a snapshot has at most: with more digits they would stand in another order. Pieces are longer rather
/// than more.
pub const CHUNKS_MAX: usize = 100_000;

/// The key of what says how many shards there are.
#[must_use]
pub fn map_key(cluster: &str) -> Vec<u8> {
    format!("/latchd/{cluster}/map").into_bytes()
}

/// The key of what says who makes another map at the moment.
#[must_use]
pub fn ticket_key(cluster: &str) -> Vec<u8> {
    format!("/latchd/{cluster}/reshard").into_bytes()
}

/// The keys of all shards of a cluster, with one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapKeys {
    base: String,
    /// Of the keys of the cluster, whatever the map.
    cluster: String,
}

impl MapKeys {
    /// Those of the map with this number, from 1 on.
    #[must_use]
    pub fn new(cluster: &str, map_epoch: u64) -> Self {
        let cluster = format!("/latchd/{cluster}");
        let base = match map_epoch {
            0 | 1 => cluster.clone(),
            epoch => format!("{cluster}/r{epoch}"),
        };
        Self { base, cluster }
    }

    /// The keys of one shard.
    #[must_use]
    pub fn shard(&self, index: u32) -> Keys {
        Keys {
            prefix: format!("{}/{index}", self.base),
            listed: self.listed("leaders", index),
            term: self.listed("terms", index),
            name: None,
        }
    }

    /// Before the first of those who lead, and behind the last.
    #[must_use]
    pub fn leaders(&self) -> [Vec<u8>; 2] {
        self.all("leaders")
    }

    /// The same for those who have led last.
    #[must_use]
    pub fn terms(&self) -> [Vec<u8>; 2] {
        self.all("terms")
    }

    /// The number of the shard whose leader this is the key of.
    #[must_use]
    pub fn index_of(&self, key: &[u8]) -> Option<u32> {
        let rest = key.strip_prefix(format!("{}/leaders/", self.base).as_bytes())?;
        let is_number = rest.len() == 5 && rest.iter().all(u8::is_ascii_digit);
        let digits = str::from_utf8(rest).ok().filter(|_| is_number)?;
        digits.parse().ok()
    }

    /// Ranges that together have everything of this map.
    #[must_use]
    pub fn everything(&self) -> Vec<[Vec<u8>; 2]> {
        let shards = ["0", ":"].map(|it| format!("{}/{it}", self.base).into_bytes()); // ':' follows '9'
        vec![shards, self.leaders(), self.terms()]
    }

    /// Ranges that together have everything of all other maps.
    #[must_use]
    pub fn everything_else(&self) -> Vec<[Vec<u8>; 2]> {
        let cluster = &self.cluster;
        let key = |rest: &str| format!("{cluster}/{rest}").into_bytes();
        if self.base == *cluster {
            return vec![[key("r1"), key("r:")]];
        }
        let first = Self {
            base: cluster.clone(),
            cluster: cluster.clone(),
        };
        let mut others = first.everything();
        let own = |end: &str| format!("{}{end}", self.base).into_bytes();
        others.push([key("r1"), own("/")]);
        others.push([own("0"), key("r:")]); // '0' follows '/'
        others
    }

    fn listed(&self, list: &str, index: u32) -> Vec<u8> {
        format!("{}/{list}/{index:05}", self.base).into_bytes()
    }

    fn all(&self, list: &str) -> [Vec<u8>; 2] {
        ["/", "0"].map(|end| format!("{}/{list}{end}", self.base).into_bytes())
    }
}

/// The keys of one shard of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
    listed: Vec<u8>,
    term: Vec<u8>,
    /// What stands under the leader's key while we lead.
    name: Option<Vec<u8>>,
}

impl Keys {
    /// The keys of this shard of this cluster, with its first map.
    #[must_use]
    pub fn new(cluster: &str, shard: u32) -> Self {
        MapKeys::new(cluster, 1).shard(shard)
    }

    /// The same, for whoever leads under this name: what it writes is guarded by the name as well.
    #[must_use]
    pub fn led_as(self, name: Vec<u8>) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    /// That we lead, and that it is our leader's key which was created at this revision. After etcd was
    /// restored from a backup its revisions begin anew, so that another leader's may have the same; it does
    /// not have the same name.
    #[must_use]
    pub fn guards(&self, leader: u64) -> Vec<Compare> {
        let created = Compare::Created(self.leader(), leader);
        let named = self.name.iter();
        let named = named.map(|name| Compare::Value(self.leader(), name.clone()));
        [created].into_iter().chain(named).collect()
    }

    /// The revision at which the leader's key was created, if it is not another's; 0 if there is none.
    #[must_use]
    pub fn leads_since(&self, there: Option<&Kv>) -> u64 {
        let is_ours = |kv: &&Kv| self.name.as_ref().is_none_or(|name| *name == kv.value);
        there.filter(is_ours).map_or(0, |kv| kv.created)
    }

    /// Who leads, where the leaders of all shards stand.
    #[must_use]
    pub fn listed(&self) -> Vec<u8> {
        self.listed.clone()
    }

    /// Who has led last. It does not go with a lease.
    #[must_use]
    pub fn term(&self) -> Vec<u8> {
        self.term.clone()
    }

    /// Who leads.
    #[must_use]
    pub fn leader(&self) -> Vec<u8> {
        self.key("/leader")
    }

    /// The entry of the log with this number.
    #[must_use]
    pub fn entry(&self, seq: u64) -> Vec<u8> {
        self.key(&format!("/log/{seq:020}"))
    }

    /// The key behind the last entry that there can be.
    #[must_use]
    pub fn entries_end(&self) -> Vec<u8> {
        self.key("/log0") // '0' follows '/'
    }

    /// The number of an entry, if this is the key of one.
    #[must_use]
    pub fn seq_of(&self, key: &[u8]) -> Option<u64> {
        let rest = key.strip_prefix(self.key("/log/").as_slice())?;
        let is_number = rest.len() == 20 && rest.iter().all(u8::is_ascii_digit);
        let digits = str::from_utf8(rest).ok().filter(|_| is_number)?;
        digits.parse().ok()
    }

    /// Which snapshot counts.
    #[must_use]
    pub fn snap(&self) -> Vec<u8> {
        self.key("/snap")
    }

    /// A piece of the snapshot that stands for everything up to this entry; there are [`CHUNKS_MAX`] at most.
    #[must_use]
    pub fn chunk(&self, seq: u64, index: u64) -> Vec<u8> {
        self.key(&format!("/snap/{seq:020}/{index:05}"))
    }

    /// The key before all pieces of all snapshots.
    #[must_use]
    pub fn chunks(&self) -> Vec<u8> {
        self.key("/snap/")
    }

    /// The key behind all pieces of all snapshots.
    #[must_use]
    pub fn chunks_end(&self) -> Vec<u8> {
        self.key("/snap0")
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        format!("{}{rest}", self.prefix).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_stand_in_the_order_that_ranges_need() {
        let keys = Keys::new("prod", 0);
        let in_order = [
            keys.leader(),
            keys.entry(0),
            keys.entry(9),
            keys.entry(10),
            keys.entry(u64::MAX),
            keys.entries_end(),
            keys.snap(),
            keys.chunks(),
            keys.chunk(9, 0),
            keys.chunk(9, 1),
            keys.chunk(10, 0),
            keys.chunks_end(),
        ];
        assert!(in_order.is_sorted(), "{in_order:?}");
        assert_eq!(keys.seq_of(&keys.entry(10)), Some(10));
        for other in [
            keys.leader(),
            keys.entries_end(),
            keys.snap(),
            Keys::new("x", 0).entry(1),
        ] {
            assert_eq!(keys.seq_of(&other), None);
        }
        assert_eq!(
            keys.seq_of(b"/latchd/prod/0/log/+0000000000000000010"),
            None
        );
    }

    #[test]
    fn everything_of_a_cluster_is_of_one_map() {
        let keys_of = |map: &MapKeys| {
            let shards = [0, 1, 9, 10, 1_023].map(|index| map.shard(index));
            let keys = shards.iter().flat_map(|keys| {
                let ends = [keys.entry(u64::MAX), keys.chunk(u64::MAX, 99_999)];
                let of_shard = [keys.leader(), keys.listed(), keys.term(), keys.snap()];
                ends.into_iter().chain(of_shard)
            });
            keys.collect::<Vec<_>>()
        };
        let is_in = |key: &Vec<u8>, ranges: &[[Vec<u8>; 2]]| {
            let within = ranges
                .iter()
                .filter(|[first, end]| first <= key && key < end);
            within.count()
        };
        let epochs = [1, 2, 3, 9, 10, 11, 20, 21, 99, 100];
        let maps = epochs.map(|epoch| MapKeys::new("prod", epoch));
        for map in &maps {
            let (own, others) = (map.everything(), map.everything_else());
            for other in &maps {
                for key in keys_of(other) {
                    let is_own = usize::from(map == other);
                    let text = String::from_utf8_lossy(&key).into_owned();
                    assert_eq!(is_in(&key, &own), is_own, "{text} of {map:?}");
                    assert_eq!(is_in(&key, &others), 1 - is_own, "{text} of {map:?}");
                }
            }
            for key in [map_key("prod"), ticket_key("prod")] {
                assert_eq!(is_in(&key, &own) + is_in(&key, &others), 0);
            }
            assert_eq!(map.index_of(&map.shard(10).listed()), Some(10));
            assert_eq!(map.index_of(&map.shard(10).term()), None);
            assert_eq!(map.index_of(&map.shard(10).leader()), None);
            let [first, end] = map.terms();
            assert!(first < map.shard(0).term() && map.shard(1_023).term() < end);
        }
        for other in ["prod2", "pro", "prod.r2"] {
            for key in keys_of(&MapKeys::new(other, 1)) {
                assert_eq!(is_in(&key, &maps[0].everything()), 0);
                assert_eq!(is_in(&key, &maps[1].everything_else()), 0);
            }
        }
    }
}
