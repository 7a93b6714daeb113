//! What can be asked about byte ranges, and what is answered. Types only.
//!
//! A range belongs to an owner: a client, and a name that the client gives to whoever it locks for. The
//! two are never joined into one string, so no client can name another's owner.

use std::fmt;

use crate::base::Millis;
use crate::key::Key;
pub use crate::segments::{ByteRange, RangeGrant, Sharing};

use super::Secret;

/// Longest name of an owner within its client.
pub const RANGE_OWNER_BYTES_MAX: usize = 256;

/// A request about the byte ranges of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRequest<'a> {
    /// The name of the resource. It has nothing to do with a lock of the same name.
    pub resource: &'a [u8],
    /// For whom the client asks; empty for itself.
    pub owner: &'a [u8],
    /// What it asks for.
    pub ask: RangeAsk,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeAsk {
    /// `rangelock`: lock these bytes, or change how they are locked, waiting for up to `wait`.
    Lock {
        /// Together with others, or alone.
        mode: Sharing,
        /// Which bytes.
        span: Span,
        /// How long to wait; zero means try once.
        wait: Millis,
    },
    /// `rangeunlock`: let go of these bytes, as far as they are held.
    Unlock {
        /// Which bytes.
        span: Span,
    },
    /// `rangetest`: who is in the way of such a lock?
    Test {
        /// Together with others, or alone.
        mode: Sharing,
        /// Which bytes.
        span: Span,
    },
    /// `rangecancel`: end the wait of the lock that was asked for with exactly this.
    Cancel {
        /// As it was asked for.
        mode: Sharing,
        /// As it was asked for.
        span: Span,
    },
    /// `rangereclaim`: have back what was held before a restart.
    Reclaim {
        /// As it was held, or shared where it was held alone.
        mode: Sharing,
        /// Which bytes.
        span: Span,
    },
}

impl RangeAsk {
    /// The bytes that it is about.
    #[must_use]
    pub const fn span(self) -> Span {
        match self {
            Self::Lock { span, .. }
            | Self::Unlock { span }
            | Self::Test { span, .. }
            | Self::Cancel { span, .. }
            | Self::Reclaim { span, .. } => span,
        }
    }
}

/// Bytes as clients name them. Some of these do not exist: see [`ByteRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// How many; 0 is all to the end, however far it grows.
    pub len: u64,
}

/// The client for which something is asked on a connection that is not attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfClient<'a> {
    /// Its id.
    pub id: &'a str,
    /// What the sender shows.
    pub secret: Secret<'a>,
}

/// Which range locks are listed, of all resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangesOf<'a> {
    /// Those of this client, named as in lists: by its id, or `#` and the number of a connection.
    pub client: Option<&'a [u8]>,
    /// Those of owners of this name; empty for clients themselves.
    pub owner: Option<&'a [u8]>,
}

/// Where a list of range locks goes on: with what one owner has of one resource, from this byte on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCursor {
    /// A slot of a table.
    pub slot: u32,
    /// The byte.
    pub start: u64,
}

impl RangeCursor {
    /// Reads what it is written as: two numbers, and a dot between them.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (slot, start) = str::from_utf8(text).ok()?.split_once('.')?;
        let is_plain = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
        Some(Self {
            slot: slot.parse().ok().filter(|_| is_plain(slot))?,
            start: start.parse().ok().filter(|_| is_plain(start))?,
        })
    }
}

impl fmt::Display for RangeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.start)
    }
}

/// A range that is held, as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// Together with others, or alone.
    pub mode: Sharing,
    /// Which bytes.
    pub range: ByteRange,
    /// The id of the client, or `#` and the number of a connection that is its own client.
    pub client: Box<str>,
    /// For whom the client holds it; empty for itself.
    pub owner: Key,
    /// It was held before a restart and not had back yet.
    pub pending: bool,
}

/// How far the time is in which clients have back what they held before a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraceState {
    /// How long it lasts at most; zero if there is none.
    pub left: Millis,
    /// How many clients had something to have back.
    pub expected: u32,
    /// How many of those have it, or do not want it.
    pub done: u32,
}
