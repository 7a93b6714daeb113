//! Which of several servers has a key: the rule that dflockd's clients follow.
//!
//! The CRC-32 of the key's bytes modulo the number of servers, counted from 0. A client that is given the
//! servers in the order of their numbers asks the right one at once. Two keys with the same CRC-32 are always
//! together, however many servers there are.

use std::fmt;

/// The most shards that a cluster can have.
pub const SHARDS_MAX: u32 = 1_024;

/// One of several servers that share the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// All keys.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Number `index` of `count`, which are counted from 0; none if there is no such one.
    #[must_use]
    pub const fn new(index: u32, count: u32) -> Option<Self> {
        if index < count && count <= SHARDS_MAX {
            Some(Self { index, count })
        } else {
            None
        }
    }

    /// Its number, from 0 on.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Whether there are no others.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The number of another shard, if that has this key.
    #[must_use]
    pub fn other_with(self, key: &[u8]) -> Option<u32> {
        let index = shard_of(key, self.count);
        (index != self.index).then_some(index)
    }
}

/// As `--shard` takes it.
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The number of the shard that has this key, if there are so many.
#[must_use]
pub fn shard_of(key: &[u8], count: u32) -> u32 {
    crc32(key) % count.max(1)
}

/// CRC-32 as IEEE and zlib have it.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

/// What a byte does to the remainder.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = match crc & 1 {
                1 => crc >> 1 ^ 0xedb8_8320,
                _ => crc >> 1,
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_other_clients_look_for_them() {
        for (key, crc, of_3, of_5) in [
            ("my-key", 0xd6e3_3ac1, 2, 2),
            ("foo", 0x8c73_6521, 2, 4),
            ("a", 0xe8b7_be43, 0, 2),
            ("🔒", 0x5a41_8b00, 0, 4),
        ] {
            assert_eq!(crc32(key.as_bytes()), crc, "{key}");
            assert_eq!(shard_of(key.as_bytes(), 3), of_3, "{key}");
            assert_eq!(shard_of(key.as_bytes(), 5), of_5, "{key}");
            assert_eq!(shard_of(key.as_bytes(), 1), 0);
        }
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the usual check value");
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_key_is_in_exactly_one_shard() {
        let shards = [0, 1, 2].map(|index| Shard::new(index, 3).unwrap());
        for number in 0..100 {
            let key = format!("key{number}");
            let home = shard_of(key.as_bytes(), 3);
            for shard in shards {
                let other = shard.other_with(key.as_bytes());
                assert_eq!(other, (home != shard.index()).then_some(home));
            }
            assert_eq!(Shard::WHOLE.other_with(key.as_bytes()), None);
        }
    }

    #[test]
    fn there_are_only_so_many() {
        assert_eq!(Shard::new(0, 1), Some(Shard::WHOLE));
        assert!(Shard::new(SHARDS_MAX - 1, SHARDS_MAX).is_some());
        for (index, count) in [(0, 0), (1, 1), (2, 2), (0, SHARDS_MAX + 1)] {
            assert_eq!(Shard::new(index, count), None);
        }
        assert_eq!(Shard::new(1, 3).unwrap().to_string(), "1/3");
    }
}
