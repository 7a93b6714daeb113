//! What each connection holds and waits for.
//!
//! A record is made by a connection's first request and outlives the connection only while
//! something it held is still to be released. Connections that never asked for a lock cost four
//! bytes here. What a disconnect undoes, and in which order, is in `Locks::depart`.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, NONE};
use super::holder::OfClient;
use super::subscriptions::{SubscriptionsOfClient, TOPICS};
use super::two_phase::TicketsOfClient;
use super::types::{Effect, Effects};
use crate::base::ConnId;

/// A client's number in the engine; connections come and go under it.
pub(super) struct Client {
    pub(super) id: ConnId,
    /// Every grant that counts as this client's, oldest first.
    pub(super) holds: Chain<OfClient>,
    /// Every enqueue that was not yet waited for.
    pub(super) tickets: Chain<TicketsOfClient>,
    /// The waiter of the blocking command this client is parked in, or `NONE`.
    pub(super) parked: u32,
    pub(super) presence: Presence,
    /// What it listens to, watches and observes, by [`Topic`](super::subscriptions::Topic).
    pub(super) subscriptions: [Chain<SubscriptionsOfClient>; TOPICS],
    /// Too much is waiting to be read by it already; told by the server.
    pub(super) overrun: bool,
    /// Its peer has hung up and it is yet to be served to its end; told by the server.
    pub(super) hung_up: bool,
    /// That it is overrun was reported; once is enough.
    reported: bool,
    /// The last broadcast it was counted in.
    broadcast: u64,
    /// How often it was counted in as a member of a group.
    copies: u32,
    /// Said `hello`, so it understands news it did not ask for.
    pub(super) introduced: bool,
    /// Who it says it is.
    pub(super) name: Option<Box<str>>,
}

/// Most copies of one signal that a client gets as a member of groups. Who is in more of them at once
/// counts as busy in the others, so that one signal cannot fill its outbox many times over.
const COPIES_MAX: u32 = 64;

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

    /// Whether it can be given something it did not ask for just now: a turn, or news.
    pub(super) fn is_present(&self) -> bool {
        self.is_here() && !self.hung_up
    }

    /// Whether it can be told something it did not ask for just now.
    pub(super) fn can_hear(&self) -> bool {
        self.is_present() && !self.overrun
    }

    pub(super) fn subscription_count(&self) -> u32 {
        self.subscriptions.iter().map(Chain::len).sum()
    }

    /// It holds something, stands in a queue, or is parked.
    pub(super) fn has_unfinished(&self) -> bool {
        !self.holds.is_empty() || !self.tickets.is_empty() || self.parked != NONE
    }

    pub(super) fn owns_nothing(&self) -> bool {
        !self.has_unfinished() && self.subscription_count() == 0
    }
}

pub(super) struct Clients {
    records: Arena<Client>,
    /// Connection slot → record, `NONE` where there is none.
    by_slot: Vec<u32>,
    /// Casts so far; a client that has this number has been counted in the present one.
    broadcasts: u64,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self {
            records: Arena::new(),
            by_slot: Vec::new(),
            broadcasts: 0,
        }
    }

    pub(super) fn find(&self, id: ConnId) -> Option<u32> {
        let client = *self.by_slot.get(id.slot as usize)?;
        (client != NONE && self.records[client].id == id).then_some(client)
    }

    pub(super) fn find_or_insert(&mut self, id: ConnId) -> u32 {
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
            tickets: Chain::new(),
            parked: NONE,
            presence: Presence::Here,
            subscriptions: [const { Chain::new() }; TOPICS],
            overrun: false,
            hung_up: false,
            reported: false,
            broadcast: 0,
            copies: 0,
            introduced: false,
            name: None,
        });
        self.by_slot[slot] = client;
        client
    }

    /// The connection is gone: its slot may be reused from now on.
    pub(super) fn detach(&mut self, id: ConnId) -> Option<u32> {
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

    /// From now on, nobody has been told yet, but for one who knows already.
    pub(super) fn begin_broadcast(&mut self, but: Option<u32>) {
        self.broadcasts += 1;
        if let Some(client) = but {
            self.records[client].broadcast = self.broadcasts;
        }
    }

    /// Counts the client in, unless it was in this broadcast already. One that cannot take more is
    /// reported instead.
    pub(super) fn tell_once(&mut self, client: u32, to: &mut Vec<ConnId>, out: &mut Effects) {
        let it = &mut self.records[client];
        if it.broadcast == self.broadcasts || !it.is_present() {
            return;
        }
        (it.broadcast, it.copies) = (self.broadcasts, 0);
        if it.overrun {
            self.report(client, out);
        } else {
            to.push(it.id);
        }
    }

    /// Counts the client in for one of its groups, if it can take another copy.
    pub(super) fn tell_as_member(&mut self, client: u32) -> Option<ConnId> {
        let it = &mut self.records[client];
        if it.broadcast != self.broadcasts {
            (it.broadcast, it.copies) = (self.broadcasts, 0);
        }
        if !it.can_hear() || it.copies == COPIES_MAX {
            return None;
        }
        it.copies += 1;
        Some(it.id)
    }

    /// Says that the client does not read what it is told, if it does not and nobody said so yet.
    pub(super) fn report(&mut self, client: u32, out: &mut Effects) {
        let it = &mut self.records[client];
        if it.overrun && it.is_here() && !it.reported {
            it.reported = true;
            out.push(Effect::Overrun(it.id));
        }
    }

    pub(super) fn set_overrun(&mut self, client: u32, overrun: bool) {
        let it = &mut self.records[client];
        (it.overrun, it.reported) = (overrun, false);
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.records.tidy()
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
