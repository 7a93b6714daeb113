//! What each connection holds and waits for.
//!
//! A record is made by a connection's first request and outlives the connection only while
//! something it held is still to be released. Connections that never asked for a lock cost four
//! bytes here. What a disconnect undoes, and in which order, is in `Locks::depart`.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, NONE};
use super::lock::OfClient;
use super::two_phase::PlacesOfClient;
use crate::base::ClientId;

/// A client's number in the engine; connections come and go under it.
pub(super) struct Client {
    pub(super) id: ClientId,
    /// Every grant that counts as this client's, oldest first.
    pub(super) holds: Chain<OfClient>,
    /// Every enqueue that was not yet waited for.
    pub(super) places: Chain<PlacesOfClient>,
    /// The waiter of the blocking command this client is parked in, or `NONE`.
    pub(super) parked: u32,
    pub(super) presence: Presence,
    /// Said `hello`, so it understands news it did not ask for.
    pub(super) introduced: bool,
    /// Who it says it is.
    pub(super) name: Option<Box<str>>,
}

/// Whether anybody is there to be granted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Connected.
    Here,
    /// The connection is gone; what it left behind is being undone.
    Leaving,
    /// Gone; the record stays only for holds that outlive their connection.
    Gone,
}

impl Client {
    pub(super) fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }

    pub(super) fn owns_nothing(&self) -> bool {
        self.holds.is_empty() && self.places.is_empty() && self.parked == NONE
    }
}

pub(super) struct Clients {
    records: Arena<Client>,
    /// Connection slot → record, `NONE` where there is none.
    by_slot: Vec<u32>,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self {
            records: Arena::new(),
            by_slot: Vec::new(),
        }
    }

    pub(super) fn find(&self, id: ClientId) -> Option<u32> {
        let client = *self.by_slot.get(id.slot as usize)?;
        (client != NONE && self.records[client].id == id).then_some(client)
    }

    pub(super) fn find_or_insert(&mut self, id: ClientId) -> u32 {
        if let Some(client) = self.find(id) {
            return client;
        }
        let slot = id.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, NONE);
        }
        assert_eq!(
            self.by_slot[slot], NONE,
            "slot {slot} was reused before its client left"
        );
        let client = self.records.insert(Client {
            id,
            holds: Chain::new(),
            places: Chain::new(),
            parked: NONE,
            presence: Presence::Here,
            introduced: false,
            name: None,
        });
        self.by_slot[slot] = client;
        client
    }

    /// The connection is gone: its slot may be reused from now on.
    pub(super) fn detach(&mut self, id: ClientId) -> Option<u32> {
        let client = self.find(id)?;
        self.by_slot[id.slot as usize] = NONE;
        self.records[client].presence = Presence::Leaving;
        Some(client)
    }

    /// Forgets a client that is gone and owns nothing any more.
    pub(super) fn forget_if_done(&mut self, client: u32) {
        let it = &self.records[client];
        if it.presence == Presence::Gone && it.owns_nothing() {
            self.records.remove(client);
        }
    }

    pub(super) fn shrink_if_empty(&mut self) {
        self.records.shrink_if_empty();
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.records.iter()
    }
}

impl Index<u32> for Clients {
    type Output = Client;

    fn index(&self, client: u32) -> &Client {
        &self.records[client]
    }
}

impl IndexMut<u32> for Clients {
    fn index_mut(&mut self, client: u32) -> &mut Client {
        &mut self.records[client]
    }
}
