//! What a sequence of records leaves, replayed in the most obvious way.
//!
//! The engine and the compaction replay records as well, each in its own clever way; this is what
//! both are compared with. Knows nothing of files, numbers or clocks.

use std::collections::{BTreeMap, VecDeque};

use crate::base::{Millis, Nanos};
use crate::engine::types::{End, Mode, Record};

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

/// Everything that records leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// By fence.
    pub(super) grants: BTreeMap<u64, KeptGrant>,
    pub(super) counters: BTreeMap<Vec<u8>, i64>,
    pub(super) values: BTreeMap<Vec<u8>, KeptValue>,
    pub(super) lists: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
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
            // No client of the simulation attaches.
            Record::Client { .. } | Record::ClientGone { .. } | Record::Ranged { .. } => {}
            Record::Fences { upto } => self.fences_upto = self.fences_upto.max(upto.0),
        }
    }
}
