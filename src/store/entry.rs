//! What a frame of the journal says, and what it means to an engine.
//!
//! An [`Entry`] borrows its bytes from the file it was read from. Values end at a time of day on the
//! disk, and on the engine's clock in the engine; [`Clocks`] are where the two meet.

use crate::base::{Fence, Millis, Nanos, Token};
use crate::engine::types::{ByteRange, End, Mode, RangeGrant, Record, SecretHash, Sharing};

/// What a frame says: a [`Record`] as it is on the disk, or something of the store's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Record`")]
pub enum Entry<'a> {
    Granted {
        key: &'a [u8],
        mode: Mode,
        token: Token,
        lease: Millis,
        client: u32,
        name: Option<&'a str>,
        request: &'a [u8],
    },
    Lengthened {
        key: &'a [u8],
        fence: Fence,
        lease: Millis,
    },
    Owned {
        key: &'a [u8],
        fence: Fence,
        client: &'a str,
    },
    Ended {
        key: &'a [u8],
        fence: Fence,
    },
    Counted {
        key: &'a [u8],
        value: i64,
    },
    /// The time is that of the day, in milliseconds since 1970.
    Stored {
        key: &'a [u8],
        value: &'a [u8],
        ends_ms: Option<u64>,
    },
    Deleted {
        key: &'a [u8],
    },
    Pushed {
        key: &'a [u8],
        end: End,
        value: &'a [u8],
    },
    Popped {
        key: &'a [u8],
        end: End,
    },
    Client {
        id: &'a str,
        ttl: Millis,
        secret: SecretHash,
    },
    ClientGone {
        id: &'a str,
    },
    Ranged {
        resource: &'a [u8],
        client: &'a str,
        owner: &'a [u8],
        range: ByteRange,
        mode: Option<Sharing>,
        grant: RangeGrant,
    },
    Fences {
        upto: Fence,
    },
    /// The first of a batch: everything up to this number was on the disk when it was written.
    Mark {
        durable: u64,
    },
    /// The last of a life that ended as it should.
    Stopped {
        at_ms: u64,
    },
    /// The last of a snapshot, and how many there are before it.
    End {
        frames: u64,
    },
}

impl Entry<'_> {
    /// The record, unless this is the store's own.
    #[must_use]
    pub fn record(&self, clock: Clocks) -> Option<Record> {
        Some(match *self {
            Self::Granted {
                key,
                mode,
                token,
                lease,
                client,
                name,
                request,
            } => Record::Granted {
                key: key.into(),
                mode,
                token,
                lease,
                client,
                name: name.map(Into::into),
                request: request.into(),
            },
            Self::Lengthened { key, fence, lease } => Record::Lengthened {
                key: key.into(),
                fence,
                lease,
            },
            Self::Owned { key, fence, client } => Record::Owned {
                key: key.into(),
                fence,
                client: client.as_bytes().into(),
            },
            Self::Ended { key, fence } => Record::Ended {
                key: key.into(),
                fence,
            },
            Self::Counted { key, value } => Record::Counted {
                key: key.into(),
                value,
            },
            Self::Stored {
                key,
                value,
                ends_ms,
            } => Record::Stored {
                key: key.into(),
                value: value.into(),
                // One whose time is over ends now, and that it did is recorded like any other end: a
                // clock that is set back must not bring it back.
                ends: ends_ms.map(|ms| clock.now.after(Millis(ms.saturating_sub(clock.wall_ms)))),
            },
            Self::Deleted { key } => Record::Deleted { key: key.into() },
            Self::Pushed { key, end, value } => Record::Pushed {
                key: key.into(),
                end,
                value: value.into(),
            },
            Self::Popped { key, end } => Record::Popped {
                key: key.into(),
                end,
            },
            Self::Client { id, ttl, secret } => Record::Client {
                id: id.as_bytes().into(),
                ttl,
                secret,
            },
            Self::ClientGone { id } => Record::ClientGone {
                id: id.as_bytes().into(),
            },
            Self::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                grant,
            } => Record::Ranged {
                resource: resource.into(),
                client: client.as_bytes().into(),
                owner: owner.into(),
                range,
                mode,
                grant,
            },
            Self::Fences { upto } => Record::Fences { upto },
            Self::Mark { .. } | Self::Stopped { .. } | Self::End { .. } => return None,
        })
    }
}

/// The two clocks at one moment: values end at a time of day, and the engine's clock starts anew
/// with each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The engine's clock.
    pub now: Nanos,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

impl Clocks {
    /// The time of day at an instant of the engine's clock. Never too early, and never 0.
    pub(super) fn wall_ms_at(self, instant: Nanos) -> u64 {
        let ahead_ms = instant.since(self.now).div_ceil(1_000_000);
        self.wall_ms.saturating_add(ahead_ms).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCKS: Clocks = Clocks {
        now: Nanos(2_000_000_000),
        wall_ms: 1_800_000_000_000,
    };

    #[test]
    fn a_value_keeps_its_time_of_day_over_a_restart() {
        let stored = Entry::Stored {
            key: b"k",
            value: b"v",
            ends_ms: Some(CLOCKS.wall_ms + 1_500),
        };
        let ends_at = |clocks| match stored.record(clocks) {
            Some(Record::Stored { ends, .. }) => ends,
            other => panic!("{other:?}"),
        };
        let later = |wall_ms| Clocks {
            now: Nanos(10),
            wall_ms,
        };
        let second = later(CLOCKS.wall_ms + 500);
        assert_eq!(ends_at(second), Some(Nanos(1_000_000_010)));
        let now = Some(Nanos(10));
        assert_eq!(ends_at(later(CLOCKS.wall_ms + 1_500)), now, "over");
        assert_eq!(ends_at(later(CLOCKS.wall_ms + 9_000)), now, "long over");
        assert_eq!(
            CLOCKS.wall_ms_at(Nanos(2_000_000_001)),
            CLOCKS.wall_ms + 1,
            "rounded up, never early"
        );
    }
}
