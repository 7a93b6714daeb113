//! How many shards a cluster has: agreed on once, by whoever starts first, and changed only by a command
//! that no member survives.
//!
//! Whoever wants to lead shows in the same transaction that the map is still the one it knows
//! (`cluster/follow.rs`), and a new map counts only if nobody has begun to lead since the old one was read
//! (`cluster/reshard.rs`). So no two members ever serve by different maps.

use std::time::Duration;

use super::keys::{Keys, MapKeys, map_key};
use super::load::NotRead;
use crate::etcd::{Answer, Ask, Compare, Etcd, Get, Op, Trouble};
use crate::shard::SHARDS_MAX;

/// How many shards there are, and since which change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// The number of this map, from 1 on.
    pub epoch: u64,
    /// How many shards it has.
    pub shards: u32,
    /// Tells whoever made it whether it is theirs.
    pub nonce: u64,
}

/// The map that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// What it says.
    pub map: Map,
    /// The revision at which it was put there.
    pub revision: u64,
}

impl Map {
    /// Three lines: its number, how many shards, who made it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self {
            epoch,
            shards,
            nonce,
        } = self;
        format!("{epoch}\n{shards}\n{nonce:016x}\n").into_bytes()
    }

    /// Reads what [`Map::encode`] wrote.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<Self> {
        let text = str::from_utf8(value).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n');
        let mut digits = |is_digit: fn(&u8) -> bool| {
            let line = lines.next()?;
            let is_number = !line.is_empty() && line.as_bytes().iter().all(is_digit);
            is_number.then_some(line)
        };
        let map = Self {
            epoch: digits(u8::is_ascii_digit)?.parse().ok()?,
            shards: digits(u8::is_ascii_digit)?.parse().ok()?,
            nonce: digits(u8::is_ascii_hexdigit)
                .filter(|it| it.len() == 16)
                .and_then(|it| u64::from_str_radix(it, 16).ok())?,
        };
        let is_map = map.epoch > 0 && (1..=SHARDS_MAX).contains(&map.shards);
        (is_map && lines.next().is_none()).then_some(map)
    }

    /// Under which keys its shards are.
    #[must_use]
    pub fn keys(&self, cluster: &str) -> MapKeys {
        MapKeys::new(cluster, self.epoch)
    }
}

/// Reads the map; `None` if there is none yet.
///
/// # Errors
/// It is not answered, or is no map.
pub fn read_map(
    etcd: &mut dyn Etcd,
    cluster: &str,
    within: Duration,
) -> Result<Option<Mapped>, NotRead> {
    let key = map_key(cluster);
    match etcd.call(&Ask::Range(Get::one(&key)), within)? {
        Answer::Range { got, .. } => got
            .kvs
            .first()
            .map(|kv| {
                let map = Map::decode(&kv.value);
                let map = map.ok_or_else(|| {
                    NotRead::Damaged("the number of shards cannot be read".to_owned())
                })?;
                Ok(Mapped {
                    map,
                    revision: kv.modified,
                })
            })
            .transpose(),
        other => Err(Trouble::Garbled(format!("{other:?}")).into()),
    }
}

/// The map that counts, which is made if there is none. A log without a map is of a cluster that has one shard.
///
/// # Errors
/// As [`read_map`].
pub fn read_or_create_map(
    etcd: &mut dyn Etcd,
    cluster: &str,
    shards: u32,
    nonce: u64,
    within: Duration,
) -> Result<Mapped, NotRead> {
    if let Some(mapped) = read_map(etcd, cluster, within)? {
        return Ok(mapped);
    }
    for shards in [shards, 1] {
        let first = Keys::new(cluster, 0);
        let mut compare = vec![Compare::Created(map_key(cluster), 0)];
        if shards > 1 {
            compare.push(Compare::Created(first.entry(0), 0));
            compare.push(Compare::Created(first.snap(), 0));
        }
        let map = Map {
            epoch: 1,
            shards,
            nonce,
        };
        let put = Op::Put {
            key: map_key(cluster),
            value: map.encode(),
            lease: 0,
        };
        // Whether it was this that made it or somebody else does not matter.
        let _ = etcd.call(
            &Ask::Txn {
                compare,
                success: vec![put],
                failure: Vec::new(),
            },
            within,
        )?;
        if let Some(mapped) = read_map(etcd, cluster, within)? {
            return Ok(mapped);
        }
    }
    Err(Trouble::Garbled("what was put there is not there".to_owned()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::etcd::Model;

    struct TestEtcd(Model);

    impl Etcd for TestEtcd {
        fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
            self.0.apply(Nanos(0), ask)
        }
    }

    const WITHIN: Duration = Duration::from_secs(1);

    #[test]
    fn a_map_is_read_as_it_was_written_and_nothing_else_is() {
        let map = Map {
            epoch: 7,
            shards: 1_024,
            nonce: 0xfeed,
        };
        assert_eq!(Map::decode(&map.encode()), Some(map));
        for other in [
            &b""[..],
            b"1\n2\n",
            b"1\n2\n3",
            b"0\n2\n0000000000000003\n",
            b"1\n0\n0000000000000003\n",
            b"1\n1025\n0000000000000003\n",
            b"1\n+2\n0000000000000003\n",
            b"1\n2\n0000000000000003\n4\n",
            b"1\n2\n000000000000000x\n",
            b"1\n2\n00000000000000003\n",
            b"99999999999999999999\n2\n0000000000000003\n",
            b"\xff\n",
        ] {
            assert_eq!(Map::decode(other), None, "{other:?}");
        }
    }

    #[test]
    fn whoever_comes_first_says_how_many_there_are() {
        let mut etcd = TestEtcd(Model::default());
        assert_eq!(read_map(&mut etcd, "c", WITHIN), Ok(None));
        let first = read_or_create_map(&mut etcd, "c", 3, 1, WITHIN).unwrap();
        assert_eq!((first.map.shards, first.map.epoch), (3, 1));
        let second = read_or_create_map(&mut etcd, "c", 2, 2, WITHIN).unwrap();
        assert_eq!(second, first);
        let other = read_or_create_map(&mut etcd, "other", 2, 2, WITHIN).unwrap();
        assert_eq!(other.map.shards, 2);
    }

    #[test]
    fn a_log_without_a_map_is_all_there_is() {
        let mut etcd = TestEtcd(Model::default());
        super::super::load::create(&mut etcd, &Keys::new("c", 0), WITHIN).unwrap();
        let mapped = read_or_create_map(&mut etcd, "c", 2, 1, WITHIN).unwrap();
        assert_eq!(mapped.map.shards, 1);
    }

    #[test]
    fn what_is_no_map_is_damage() {
        let mut etcd = TestEtcd(Model::default());
        let put = Op::Put {
            key: map_key("c"),
            value: b"what?".to_vec(),
            lease: 0,
        };
        let ask = Ask::Txn {
            compare: Vec::new(),
            success: vec![put],
            failure: Vec::new(),
        };
        etcd.call(&ask, WITHIN).unwrap();
        let read = read_or_create_map(&mut etcd, "c", 2, 1, WITHIN);
        assert!(matches!(read, Err(NotRead::Damaged(_))), "{read:?}");
    }
}
