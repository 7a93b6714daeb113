//! What a sequence of records leaves, replayed in the most obvious way.
//!
//! The engine and the compaction replay records as well, each in its own clever way; this is what
//! both are compared with. Knows nothing of files, numbers or clocks.

use std::collections::{BTreeMap, VecDeque};

use latchd::base::{Millis, Nanos};
use latchd::engine::types::{End, Mode, Record, Sharing};

/// A grant that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptGrant {
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) token: String,
    pub(super) lease: Millis,
    /// The name of its owner, if it belongs to that and not to a connection.
    pub(super) owner: Option<String>,
    /// The id of the request; empty if it had none.
    pub(super) request: Vec<u8>,
}

/// A value, and when its time is over.
pub(super) type KeptValue = (Vec<u8>, Option<Nanos>);

/// Resource, client and owner.
pub(super) type KeptOwner = [Vec<u8>; 3];

/// Bytes that are locked: the first one, the one behind the last, and how.
pub(super) type KeptRange = (u128, u128, Sharing);

/// Everything that records leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// By fence.
    pub(super) grants: BTreeMap<u64, KeptGrant>,
    pub(super) counters: BTreeMap<Vec<u8>, i64>,
    pub(super) values: BTreeMap<Vec<u8>, KeptValue>,
    pub(super) lists: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    pub(super) ranges: BTreeMap<KeptOwner, Vec<KeptRange>>,
    /// How long each is kept without a connection.
    pub(super) clients: BTreeMap<Vec<u8>, Millis>,
    /// Every fence up to this one may have been given out.
    pub(super) fences_upto: u64,
}

impl Kept {
    pub(super) fn of<'r>(records: impl IntoIterator<Item = &'r Record>) -> Self {
        let mut kept = Self::default();
        kept.add(records);
        kept
    }

    pub(super) fn add<'r>(&mut self, records: impl IntoIterator<Item = &'r Record>) {
        records.into_iter().for_each(|it| self.apply(it));
    }

    fn apply(&mut self, record: &Record) {
        match record {
            Record::Granted {
                key,
                mode,
                token,
                lease,
                client,
                name,
                request,
            } => {
                let is_named = *client == 0;
                let grant = KeptGrant {
                    key: key.as_bytes().to_vec(),
                    mode: *mode,
                    token: token.hex().iter().copied().map(char::from).collect(),
                    lease: *lease,
                    owner: name.as_deref().filter(|_| is_named).map(str::to_owned),
                    request: request.to_vec(),
                };
                self.grants.insert(token.fence.0, grant);
                self.fences_upto = self.fences_upto.max(token.fence.0);
            }
            Record::Lengthened { fence, lease, .. } => {
                if let Some(grant) = self.grants.get_mut(&fence.0) {
                    grant.lease = *lease;
                }
            }
            Record::Owned { .. } => {} // of a client's grants nothing else is kept here either
            Record::Ended { fence, .. } => {
                self.grants.remove(&fence.0);
            }
            Record::Counted { key, value: 0 } => {
                self.counters.remove(key.as_bytes());
            }
            Record::Counted { key, value } => {
                self.counters.insert(key.as_bytes().to_vec(), *value);
            }
            Record::Stored { key, value, ends } => {
                let stored = (value.to_vec(), *ends);
                self.values.insert(key.as_bytes().to_vec(), stored);
            }
            Record::Deleted { key } => {
                self.values.remove(key.as_bytes());
            }
            Record::Pushed { key, end, value } => {
                let list = self.lists.entry(key.as_bytes().to_vec()).or_default();
                match end {
                    End::Left => list.push_front(value.to_vec()),
                    End::Right => list.push_back(value.to_vec()),
                }
            }
            Record::Popped { key, end } => {
                let Some(list) = self.lists.get_mut(key.as_bytes()) else {
                    return;
                };
                match end {
                    End::Left => list.pop_front(),
                    End::Right => list.pop_back(),
                };
                if list.is_empty() {
                    self.lists.remove(key.as_bytes());
                }
            }
            Record::Client { id, ttl, .. } => {
                self.clients.insert(id.as_bytes().to_vec(), *ttl);
            }
            Record::ClientGone { id } => {
                self.clients.remove(id.as_bytes());
                self.ranges
                    .retain(|[_, client, _], _| client != id.as_bytes());
            }
            Record::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                grant: _,
            } => {
                let owner = [resource, client, owner].map(|it| it.as_bytes().to_vec());
                let new = (u128::from(range.start()), u128::from(range.last()) + 1);
                let before = self.ranges.remove(&owner).unwrap_or_default();
                let after = lock_bytes(&before, new, *mode);
                if !after.is_empty() {
                    self.ranges.insert(owner, after);
                }
            }
            Record::Fences { upto } => self.fences_upto = self.fences_upto.max(upto.0),
        }
    }
}

/// What an owner has after a change: between any two places where something begins or ends, all bytes
/// are alike.
fn lock_bytes(
    before: &[KeptRange],
    (start, end): (u128, u128),
    mode: Option<Sharing>,
) -> Vec<KeptRange> {
    let mut places = vec![start, end];
    places.extend(before.iter().flat_map(|it| [it.0, it.1]));
    places.sort_unstable();
    places.dedup();
    let mut after: Vec<KeptRange> = Vec::new();
    for pair in places.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let known = before.iter().find(|it| it.0 <= from && to <= it.1);
        let mode = match start <= from && to <= end {
            true => mode,
            false => known.map(|it| it.2),
        };
        match (mode, after.last_mut()) {
            (None, _) => {}
            (Some(mode), Some(last)) if (last.1, last.2) == (from, mode) => last.1 = to,
            (Some(mode), _) => after.push((from, to, mode)),
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_locked_as_they_were_locked_last() {
        use Sharing::{Exclusive, Shared};
        let end = 1 << 64;
        let mut bytes = Vec::new();
        let mut lock = |start, end, mode| {
            bytes = lock_bytes(&bytes, (start, end), mode);
            bytes.clone()
        };
        assert_eq!(lock(10, end, Some(Shared)), [(10, end, Shared)]);
        let three = [(10, 20, Shared), (20, 30, Exclusive), (30, end, Shared)];
        assert_eq!(lock(20, 30, Some(Exclusive)), three);
        let apart = [(10, 15, Shared), (25, 30, Exclusive), (30, end, Shared)];
        assert_eq!(lock(15, 25, None), apart);
        assert_eq!(lock(15, 30, Some(Shared)), [(10, end, Shared)]);
        assert_eq!(lock(0, end, None), []);
    }
}
