//! Ranges of bytes, how they are shared, and the piece that one owner has of them.
//!
//! On the wire a range is an offset and a length. It becomes a first and a last byte once, at the
//! edge, and all arithmetic is with the last byte: unlike the end, it always fits into 64 bits.

use super::grants::LIVE;

/// First and last byte, both included. If the last one is [`u64::MAX`], the range goes to the end,
/// however far that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    start: u64,
    last: u64,
}

impl ByteRange {
    /// Every byte there can be.
    pub const ALL: Self = Self {
        start: 0,
        last: u64::MAX,
    };

    /// The range that an offset and a length name. Length 0 is to the end. `None` if the range
    /// would go beyond the last byte that a number can name.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match len.checked_sub(1) {
            None => Self::between(start, u64::MAX),
            Some(more) => match start.checked_add(more) {
                Some(last) => Self::between(start, last),
                None => None,
            },
        }
    }

    /// The range from `start` to `last`, both included; `None` if they are in the wrong order.
    #[must_use]
    pub const fn between(start: u64, last: u64) -> Option<Self> {
        if start <= last {
            Some(Self { start, last })
        } else {
            None
        }
    }

    /// The first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The last byte, which belongs to the range.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// How many bytes, as the wire says it: 0 is to the end. So a single byte at 2^64-1 has the
    /// length 0, too.
    #[expect(clippy::len_without_is_empty, reason = "no range is empty")]
    #[must_use]
    pub const fn len(self) -> u64 {
        match self.last {
            u64::MAX => 0,
            last => last - self.start + 1,
        }
    }

    /// Whether some byte is in both.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Whether one begins right behind the other. Ranges that overlap do not touch.
    #[must_use]
    pub const fn touches(self, other: Self) -> bool {
        // Checked in this order, because there is no byte behind the last one.
        (self.last < other.start && self.last + 1 == other.start)
            || (other.last < self.start && other.last + 1 == self.start)
    }

    /// Whether every byte of `other` is in this one.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last <= self.last
    }
}

/// Whether others may have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Others may have them shared as well.
    Shared,
    /// Nobody else may have them.
    Exclusive,
}

impl Sharing {
    /// The word for it on the wire.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Shared => "sh",
            Self::Exclusive => "ex",
        }
    }

    /// What a word on the wire means.
    #[must_use]
    pub const fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"sh" => Some(Self::Shared),
            b"ex" => Some(Self::Exclusive),
            _ => None,
        }
    }

    /// Whether two owners cannot have one byte in these modes.
    #[must_use]
    pub const fn excludes(self, other: Self) -> bool {
        matches!(self, Self::Exclusive) || matches!(other, Self::Exclusive)
    }

    /// Whether who has a byte in this mode may do all that `other` allows.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        matches!(self, Self::Exclusive) || matches!(other, Self::Shared)
    }
}

/// A run of bytes that one owner has in one mode. Its neighbours of the same owner differ from it
/// in something, or there is a gap between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which bytes.
    pub range: ByteRange,
    /// Whether others may have them, too.
    pub mode: Sharing,
    /// Its number, which no other segment of the resource has.
    pub id: u64,
    /// When the oldest part of it was granted, in nanoseconds.
    pub since: u64,
    /// The life of the server that granted it, as [`Grant::life`](super::Grant::life).
    pub life: u16,
}

impl Segment {
    /// Whether it was restored after a restart, and not reclaimed yet.
    #[must_use]
    pub const fn pending(&self) -> bool {
        self.life != LIVE
    }
}
