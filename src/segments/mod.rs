//! Byte-range locks of one resource.

/// First and last byte, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    start: u64,
    last: u64,
}

impl ByteRange {
    /// From the first byte and how many; 0 is all to the end.
    #[must_use]
    pub fn new(start: u64, len: u64) -> Option<Self> {
        let last = match len {
            0 => u64::MAX,
            len => start.checked_add(len - 1)?,
        };
        Some(Self { start, last })
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
    pub fn start(self) -> u64 {
        self.start
    }

    /// The last byte.
    #[must_use]
    pub fn last(self) -> u64 {
        self.last
    }

    /// How many; 0 is all to the end.
    #[expect(clippy::len_without_is_empty, reason = "no range is empty")]
    #[must_use]
    pub fn len(self) -> u64 {
        match self.last {
            u64::MAX => 0,
            last => last - self.start + 1,
        }
    }
}

/// How bytes are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Together with others.
    Shared,
    /// Alone.
    Exclusive,
}
