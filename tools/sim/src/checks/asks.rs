//! Requests that are sent again with the same id: as long as the grant is held, they are answered with
//! it, and with no other.
//!
//! Knows what clients sent and were told. What outlives the server is known by its id after that, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::clients::http_requests::KeptAsk;

/// What is known of the requests with one id.
#[derive(Clone, Debug, Default)]
struct KnownAsk {
    /// How many have arrived, and the turn after which the first one did.
    arrived: u32,
    first_arrived: u64,
    /// What they were granted: mostly one fence, but another one after the end of the first.
    fences: BTreeSet<u64>,
}

/// All requests with an id.
#[derive(Debug, Default)]
pub(crate) struct KnownAsks {
    by_id: BTreeMap<String, KnownAsk>,
    /// The last ones, which may be sent again.
    kept: Vec<KeptAsk>,
}

impl KnownAsks {
    pub(crate) fn kept(&self) -> &[KeptAsk] {
        &self.kept
    }

    pub(crate) fn sent(&mut self, ask: KeptAsk, most: usize) {
        if self.by_id.contains_key(&ask.ask.id) {
            return; // sent again
        }
        self.by_id.insert(ask.ask.id.clone(), KnownAsk::default());
        if self.kept.len() == most {
            self.kept.remove(0);
        }
        self.kept.push(ask);
    }

    pub(crate) fn arrived(&mut self, id: &str, turn: u64) {
        if let Some(it) = self.by_id.get_mut(id) {
            if it.arrived == 0 {
                it.first_arrived = turn;
            }
            it.arrived += 1;
        }
    }

    /// The turn after which the first one arrived.
    pub(crate) fn first_arrived(&self, id: &str) -> Option<u64> {
        let it = self.by_id.get(id)?;
        (it.arrived > 0).then_some(it.first_arrived)
    }

    /// Whether more than one has arrived: then the first may lose its place to the second.
    pub(crate) fn is_repeated(&self, id: &str) -> bool {
        self.by_id.get(id).is_some_and(|it| it.arrived > 1)
    }

    /// What they were granted last.
    pub(crate) fn granted(&self, id: &str) -> Option<u64> {
        self.by_id.get(id)?.fences.last().copied()
    }

    /// Whether they were granted this.
    pub(crate) fn were_granted(&self, id: &str, fence: u64) -> bool {
        self.by_id
            .get(id)
            .is_some_and(|it| it.fences.contains(&fence))
    }

    pub(crate) fn note_granted(&mut self, id: &str, fence: u64) {
        if let Some(it) = self.by_id.get_mut(id) {
            it.fences.insert(fence);
        }
    }
}
