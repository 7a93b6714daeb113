//! What has to outlive the process: a part of the engine's vocabulary (`types.rs`).
//!
//! Types only. `record.rs` says which changes are recorded, `restore.rs` what a restart makes of them,
//! and `store` how they are written down.

use super::{ByteRange, End, Mode, RangeGrant, SecretHash, Sharing, Value};
use crate::base::{Fence, Millis, Nanos, Token};
use crate::key::Key;

/// A change that has to outlive the process. Records are numbered from 1 on, in the order of the
/// decisions: a release is before the grant that it makes possible.
///
/// They say what changed, not why, so that replaying them needs no decision. Not among them is what
/// does not outlive a connection: waits, subscriptions, signals, barriers, and renewals that make no
/// lease longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A key was granted.
    Granted {
        /// The name.
        key: Key,
        /// How it is held; the kind of the key follows from it.
        mode: Mode,
        /// What a release or a renewal has to show; contains the fence.
        token: Token,
        /// How long the grant lasts without a renewal.
        lease: Millis,
        /// The serial number of the connection it was granted to; 0 if it belongs to an owner that is
        /// known by its name, [`ATTACHED_SERIAL`](super::ATTACHED_SERIAL) if to a client.
        client: u32,
        /// The name which that connection gave in `hello`, or that of the owner, or the id of the client.
        name: Option<Box<str>>,
        /// The id of the request, with which an owner that is known by its name may ask again; empty
        /// if there is none.
        request: Box<[u8]>,
    },
    /// A renewal made a lease longer than the records had it.
    Lengthened {
        /// The locked name.
        key: Key,
        /// The fence of the grant.
        fence: Fence,
        /// The longer lease.
        lease: Millis,
    },
    /// A grant that was made before, to whomever, belongs to this client from now on.
    Owned {
        /// The name that is locked.
        key: Key,
        /// The fence of the grant.
        fence: Fence,
        /// The id of the client.
        client: Key,
    },
    /// A grant ended: it was released, its lease ended, or its connection did.
    Ended {
        /// The name that was locked.
        key: Key,
        /// The fence of the grant.
        fence: Fence,
    },
    /// A counter has this value now. 0 is as good as no counter.
    Counted {
        /// The counter's name.
        key: Key,
        /// Its value.
        value: i64,
    },
    /// A value was stored.
    Stored {
        /// Its name.
        key: Key,
        /// The value.
        value: Value,
        /// When its time is over, on the engine's clock. A store writes the time of day.
        ends: Option<Nanos>,
    },
    /// A value was deleted, or its time was over.
    Deleted {
        /// Its name.
        key: Key,
    },
    /// A value was put into a list, or back into it.
    Pushed {
        /// The list's name.
        key: Key,
        /// At which end.
        end: End,
        /// The value.
        value: Value,
    },
    /// A value was taken out of a list.
    Popped {
        /// The list's name.
        key: Key,
        /// At which end.
        end: End,
    },
    /// A client is known from now on, or its time to live has changed.
    Client {
        /// Its id.
        id: Key,
        /// How long it is kept while it has no connection.
        ttl: Millis,
        /// What is kept of its secret.
        secret: SecretHash,
    },
    /// A client is not known any more. What it held has ended before, unless that lasts until its leases
    /// end.
    ClientGone {
        /// Its id.
        id: Key,
    },
    /// An owner's bytes of a resource are locked like this from now on, whatever they were before.
    Ranged {
        /// The resource.
        resource: Key,
        /// The id of the client.
        client: Key,
        /// For whom the client holds it; empty for itself.
        owner: Key,
        /// Which bytes.
        range: ByteRange,
        /// How; none if they are not locked any more.
        mode: Option<Sharing>,
        /// The number that it took, and when it was granted by whom.
        grant: RangeGrant,
    },
    /// Every fence up to this one may have been given out.
    Fences {
        /// The highest of them.
        upto: Fence,
    },
}

impl Record {
    /// The name that it is about; none if it is about all of them.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Granted { key, .. }
            | Self::Lengthened { key, .. }
            | Self::Owned { key, .. }
            | Self::Ended { key, .. }
            | Self::Counted { key, .. }
            | Self::Stored { key, .. }
            | Self::Deleted { key }
            | Self::Pushed { key, .. }
            | Self::Popped { key, .. } => Some(key),
            Self::Client { id, .. } | Self::ClientGone { id } => Some(id),
            Self::Ranged { resource, .. } => Some(resource),
            Self::Fences { .. } => None,
        }
    }

    /// How long the name and the value in it are: they are copied when it is written down.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let value = match self {
            Self::Stored { value, .. } | Self::Pushed { value, .. } => value.len(),
            Self::Owned { client, .. } => client.as_bytes().len(),
            Self::Ranged { client, owner, .. } => client.as_bytes().len() + owner.as_bytes().len(),
            _ => 0,
        };
        value + self.key().map_or(0, |key| key.as_bytes().len())
    }
}
