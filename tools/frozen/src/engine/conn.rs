//! Connections as the engine knows them: where answers and pushes go, and what ends with the
//! socket.
//!
//! A connection's first request makes its record, which goes with the connection: the one command
//! it is parked in, and its subscriptions. What it acquires belongs to its owner (`owner.rs`; the
//! two are explained in `types.rs`), which is its own, or that of the client it has attached to. A connection that never asked for anything costs four bytes
//! here.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Link, Linked, NONE, Stored};
use super::clients::OfClient;
use super::owner::{OwnerIndex, Owners, Presence};
use super::subscribers::SubscriptionsOfConn;
use super::subscriptions::TOPICS;
use super::types::{Effect, Effects};
use crate::base::ConnId;

/// The index of a connection's record. A type of its own, so that it cannot be mistaken for an
/// owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnIndex(pub(super) u32);

impl ConnIndex {
    /// The index of no connection.
    pub(super) const NONE: Self = Self(NONE);
}

pub(super) struct Conn {
    pub(super) id: ConnId,
    /// The owner of everything that this connection acquires.
    pub(super) owner: OwnerIndex,
    /// The owner that the connection was born with, and that leaves with it: the same, unless it has
    /// attached to a client.
    pub(super) own: OwnerIndex,
    /// Its place among the connections of its client.
    link: Link,
    /// The waiter of the blocking command this connection is parked in, or `NONE`.
    pub(super) parked: u32,
    /// What it listens to, watches and observes, by [`Topic`](super::subscriptions::Topic).
    pub(super) subscriptions: [Chain<SubscriptionsOfConn>; TOPICS],
    /// How many shapes its patterns have, by topic.
    pub(super) shapes: [u8; TOPICS],
    /// The socket is gone, and what the connection left behind is being undone.
    is_gone: bool,
    /// The server says that the client has left too much unread already.
    overrun: bool,
    /// The server says that the peer has hung up, and has yet to serve the connection to its end.
    pub(super) hung_up: bool,
    /// The engine has reported that it is overrun; once is enough.
    reported: bool,
    /// The number of the last broadcast it was counted in.
    broadcast: u64,
    /// How often it was counted in that broadcast as a member of a group.
    copies: u32,
    /// The disk keeps requests waiting that it has sent.
    pub(super) stalled: bool,
    /// It said `hello`, so it understands pushes it did not ask for.
    pub(super) introduced: bool,
    /// It asked for its requests to be refused rather than to wait for themselves.
    pub(super) detects_deadlocks: bool,
    /// It asked for what it is granted to outlive it.
    pub(super) keeps: bool,
}

impl Stored for Conn {}

impl Linked<OfClient> for Conn {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What the record of a connection takes, and its entry in the table of slots.
pub(super) const RECORD_BYTES: usize = Arena::<Conn>::ENTRY_BYTES + size_of::<ConnIndex>();

/// The origin of a request: the connection that the answer goes to, and the owner of what is
/// granted.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) conn: ConnIndex,
    pub(super) owner: OwnerIndex,
}

/// Most copies of one signal that a connection gets as a member of groups. A connection that is in
/// more matching groups counts as busy in the others, so that one signal cannot fill its outbox
/// many times over.
pub(super) const COPIES_MAX: u32 = 64;

impl Conn {
    pub(super) fn is_here(&self) -> bool {
        !self.is_gone
    }

    /// Whether it can be given something it did not ask for just now: a grant or a push.
    pub(super) fn is_present(&self) -> bool {
        self.is_here() && !self.hung_up
    }

    /// Whether a push can be sent to it.
    fn can_hear(&self) -> bool {
        self.is_present() && !self.overrun
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Whether it acquires for a client.
    pub(super) fn is_attached(&self) -> bool {
        self.owner != self.own
    }

    pub(super) fn subscription_count(&self) -> u32 {
        self.subscriptions.iter().map(Chain::len).sum()
    }
}

pub(super) struct Conns {
    records: Arena<Conn>,
    /// Connection slot → record, `NONE` where there is none.
    by_slot: Vec<ConnIndex>,
    /// Broadcasts so far. A connection that has this number was counted in the present broadcast.
    broadcasts: u64,
}

impl Conns {
    pub(super) fn new() -> Self {
        Self {
            records: Arena::new(),
            by_slot: Vec::new(),
            broadcasts: 0,
        }
    }

    pub(super) fn find(&self, id: ConnId) -> Option<ConnIndex> {
        let conn = *self.by_slot.get(id.slot as usize)?;
        (conn != ConnIndex::NONE && self.records[conn.0].id == id).then_some(conn)
    }

    /// The connection and its owner. A connection that asks for the first time becomes its own
    /// owner.
    pub(super) fn asker(&mut self, id: ConnId, owners: &mut Owners) -> Asker {
        match self.find(id) {
            Some(conn) => Asker {
                conn,
                owner: self.records[conn.0].owner,
            },
            None => self.introduce(id, owners),
        }
    }

    #[cold]
    fn introduce(&mut self, id: ConnId, owners: &mut Owners) -> Asker {
        let slot = id.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, ConnIndex::NONE);
        }
        assert_eq!(
            self.by_slot[slot],
            ConnIndex::NONE,
            "slot {slot} was reused before its connection left"
        );
        let owner = owners.insert(id, ConnIndex(self.records.next_index()));
        let conn = ConnIndex(self.records.insert(Conn {
            id,
            owner,
            own: owner,
            link: Link::OUT,
            parked: NONE,
            subscriptions: [const { Chain::new() }; TOPICS],
            shapes: [0; TOPICS],
            is_gone: false,
            overrun: false,
            hung_up: false,
            reported: false,
            broadcast: 0,
            copies: 0,
            stalled: false,
            introduced: false,
            detects_deadlocks: false,
            keeps: false,
        }));
        self.by_slot[slot] = conn;
        Asker { conn, owner }
    }

    /// The socket is gone, and its slot may be reused from now on. Its own owner is from now on what
    /// `presence` says.
    pub(super) fn detach(
        &mut self,
        id: ConnId,
        presence: Presence,
        owners: &mut Owners,
    ) -> Option<ConnIndex> {
        let conn = self.find(id)?;
        self.by_slot[id.slot as usize] = ConnIndex::NONE;
        let it = &mut self.records[conn.0];
        it.is_gone = true;
        owners[it.own].leave(presence);
        Some(conn)
    }

    /// Forgets a connection, now that everything it left behind is undone.
    pub(super) fn remove(&mut self, conn: ConnIndex) {
        let gone = self.records.remove(conn.0);
        debug_assert!(
            gone.is_gone && gone.parked == NONE && gone.subscription_count() == 0,
            "forgetting a connection that still has something"
        );
    }

    /// All of them, for the chain of those that a client has.
    pub(super) fn records_mut(&mut self) -> &mut Arena<Conn> {
        &mut self.records
    }

    pub(super) fn records(&self) -> &Arena<Conn> {
        &self.records
    }

    /// Begins a broadcast. No connection is counted in it yet, except `but`, which knows already.
    pub(super) fn begin_broadcast(&mut self, but: Option<ConnIndex>) {
        self.broadcasts += 1;
        if let Some(conn) = but {
            self.records[conn.0].broadcast = self.broadcasts;
        }
    }

    /// Adds the connection to the recipients, unless this broadcast has counted it already. A
    /// connection that is overrun is reported instead.
    pub(super) fn tell_once(&mut self, conn: ConnIndex, to: &mut Vec<ConnId>, out: &mut Effects) {
        let it = &mut self.records[conn.0];
        if it.broadcast == self.broadcasts || !it.is_present() {
            return;
        }
        (it.broadcast, it.copies) = (self.broadcasts, 0);
        if it.overrun {
            self.report(conn, out);
        } else {
            to.push(it.id);
        }
    }

    /// Counts the connection as the recipient of one of its groups, if it can take another copy.
    pub(super) fn tell_as_member(&mut self, conn: ConnIndex) -> Option<ConnId> {
        let it = &mut self.records[conn.0];
        if it.broadcast != self.broadcasts {
            (it.broadcast, it.copies) = (self.broadcasts, 0);
        }
        if !it.can_hear() || it.copies == COPIES_MAX {
            return None;
        }
        it.copies += 1;
        Some(it.id)
    }

    /// Reports that the connection does not read what is pushed to it, unless this was reported
    /// before.
    pub(super) fn report(&mut self, conn: ConnIndex, out: &mut Effects) {
        let it = &mut self.records[conn.0];
        if it.overrun && it.is_here() && !it.reported {
            it.reported = true;
            out.push(Effect::Overrun(it.id));
        }
    }

    pub(super) fn set_overrun(&mut self, conn: ConnIndex, overrun: bool) {
        let it = &mut self.records[conn.0];
        (it.overrun, it.reported) = (overrun, false);
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.records.tidy()
    }

    pub(super) fn memory(&self) -> usize {
        self.records.memory() + self.by_slot.capacity() * size_of::<ConnIndex>()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.records.iter().map(|(_, it)| it)
    }
}

impl Index<ConnIndex> for Conns {
    type Output = Conn;

    fn index(&self, conn: ConnIndex) -> &Conn {
        &self.records[conn.0]
    }
}

impl IndexMut<ConnIndex> for Conns {
    fn index_mut(&mut self, conn: ConnIndex) -> &mut Conn {
        &mut self.records[conn.0]
    }
}
