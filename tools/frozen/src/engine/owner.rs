//! Owners: what each of them holds and waits for.
//!
//! Holds and tickets belong to an owner, answers go to a connection (`conn.rs`); `types.rs` says
//! why they are two. A connection is its own owner, or acquires for a client (`clients.rs`). The
//! record of a connection's own owner outlives it only until the last of its holds is released or its
//! lease has ended. `Locks::depart` in `leaving.rs` decides what a disconnect undoes, and in which
//! order.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, NONE, Stored};
use super::conn::ConnIndex;
use super::holder::OfOwner;
use super::two_phase::TicketsOfOwner;
use super::types::{ATTACHED_SERIAL, User};
use crate::base::{ConnId, Nanos};
use crate::keymap::KeyMap;
use crate::memory::block_bytes;

/// The connection of an owner that has none. No connection has the serial number 0.
pub(super) const NOBODY: ConnId = ConnId {
    slot: u32::MAX,
    serial: 0,
};

/// The same for one that is a client, which has any number of them.
const ATTACHED: ConnId = ConnId {
    slot: u32::MAX,
    serial: ATTACHED_SERIAL,
};

/// The index of an owner's record. A type of its own, so that it cannot be mistaken for a
/// connection's. It is also the number of the owner's group of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerIndex(pub(super) u32);

pub(super) struct Owner {
    /// The connection that is or was this owner; people see its serial number.
    pub(super) conn_id: ConnId,
    /// That connection's record, or `NONE` once it is gone, or if this is a client.
    pub(super) conn: ConnIndex,
    /// The client that this is, or `NONE`.
    pub(super) client: u32,
    /// Its grants, oldest first.
    pub(super) holds: Chain<OfOwner>,
    /// Its enqueues that were not yet waited for.
    pub(super) tickets: Chain<TicketsOfOwner>,
    /// How many of the tickets have nothing behind them any more: the lease of their grant has ended.
    pub(super) tickets_expired: u32,
    /// How many queues it waits in.
    pub(super) waits: u32,
    pub(super) presence: Presence,
    pub(super) overdue: Overdue,
    /// Whether it holds or waits for bytes of resources: see `ranges.rs`.
    pub(super) has_ranges: bool,
    /// Whether some of its grants were to outlive its connection: see `keeping.rs`.
    pub(super) has_kept: bool,
    /// The name that the connection gave in `hello`, or by which the owner is known, or the client's id.
    pub(super) name: Option<Box<str>>,
    /// Whom its connection was let in as, or the last one that acquired for it.
    pub(super) user: Option<User>,
}

/// Whether the owner is still there. Only an owner that is `Here` is granted anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Connected.
    Here,
    /// The connection is gone, and what it left behind is being undone.
    Leaving,
    /// We have ended the connection, and what it left behind is being undone, but for its holds.
    CutOff,
    /// All of that is undone, and the record stays only for holds that outlive their connection.
    Gone,
    /// Known by its name alone: there as long as it holds or waits for something. See `named_owner.rs`.
    Named,
    /// A client that has a connection, or several. See `clients.rs`.
    Attached,
    /// A client that has none, and is kept for its time to live.
    Away,
    /// A client that was detached, and everything it has is being released.
    Detached,
}

/// What becomes of an owner's leases that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// They end.
    End,
    /// They end when its connection is not stalled any more, if they were not over when that began: see
    /// [`Input::Stalled`](super::types::Input::Stalled).
    Wait,
    /// They do not end any more, because we have cut its connection off.
    Stay,
    /// The owner is known by its name. They end when no renewal of it waits for the disk: see
    /// [`Input::OwnerStalled`](super::types::Input::OwnerStalled).
    OfName,
}

impl Owner {
    /// Whether one of its tickets is in a queue, or has a grant whose lease goes on.
    pub(super) fn has_live_ticket(&self) -> bool {
        self.tickets.len() > self.tickets_expired
    }

    /// The connection is gone, and this is how.
    pub(super) fn leave(&mut self, presence: Presence) {
        self.presence = presence;
        self.overdue = match presence {
            Presence::CutOff => Overdue::Stay,
            Presence::Here
            | Presence::Leaving
            | Presence::Gone
            | Presence::Named
            | Presence::Attached
            | Presence::Away
            | Presence::Detached => Overdue::End,
        };
    }

    pub(super) fn is_here(&self) -> bool {
        matches!(
            self.presence,
            Presence::Here | Presence::Named | Presence::Attached
        )
    }

    #[inline(always)]
    pub(super) fn is_named(&self) -> bool {
        self.presence == Presence::Named
    }

    /// The id of the client that this is, or was.
    pub(super) fn client_id(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| self.conn_id == ATTACHED)
    }

    /// The name that its connection gave in `hello`, or by which it is known.
    pub(super) fn called(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| self.conn_id != ATTACHED)
    }

    /// Whom its connection was let in as, or the last one that acquired for it.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.as_str())
    }

    /// The connection that is or was this owner.
    pub(super) fn connection(&self) -> Option<ConnId> {
        (self.conn_id != NOBODY && self.conn_id != ATTACHED).then_some(self.conn_id)
    }

    /// Whether it holds a key, or holds or waits for bytes.
    pub(super) fn holds_something(&self) -> bool {
        !self.holds.is_empty() || self.has_ranges
    }

    pub(super) fn owns_nothing(&self) -> bool {
        self.holds.is_empty() && self.tickets.is_empty() && !self.has_ranges
    }
}

impl Stored for Owner {
    fn heap_bytes(&self) -> usize {
        self.name.as_ref().map_or(0, |name| block_bytes(name.len()))
    }
}

/// What the record of an owner takes, without its name.
pub(super) const RECORD_BYTES: usize = Arena::<Owner>::ENTRY_BYTES;

pub(super) struct Owners {
    records: Arena<Owner>,
    /// Those that are known by name alone.
    named: KeyMap,
    /// Since when the disk keeps requests of an owner waiting; only of those whose leases wait as well.
    stalled_since: BTreeMap<u32, Nanos>,
}

/// About what one of those takes in its tree, whose nodes are about half full.
const STALLED_BYTES: usize = 2 * size_of::<(u32, Nanos)>();

impl Owners {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            records: Arena::new(),
            named: KeyMap::new(seed),
            stalled_since: BTreeMap::new(),
        }
    }

    /// The disk keeps requests of the owner waiting since then, or does not any more.
    pub(super) fn set_stalled(&mut self, owner: OwnerIndex, since: Option<Nanos>) {
        self.records[owner.0].overdue = match since {
            Some(_) => Overdue::Wait,
            None => Overdue::End,
        };
        match since {
            Some(since) => _ = self.stalled_since.insert(owner.0, since),
            None => _ = self.stalled_since.remove(&owner.0),
        }
    }

    /// Since when the disk keeps requests of the owner waiting, if it does.
    pub(super) fn stalled_since(&self, owner: OwnerIndex) -> Option<Nanos> {
        self.stalled_since.get(&owner.0).copied()
    }

    /// The owner that is known by this name.
    pub(super) fn find_named(&self, name: &str) -> Option<OwnerIndex> {
        let is_it = |owner| self.records[owner].name.as_deref() == Some(name);
        let found = self.named.find(self.named.hash(name.as_bytes()), is_it);
        found.map(OwnerIndex)
    }

    /// Makes an owner that is known by this name, which no other has.
    pub(super) fn insert_named(&mut self, name: &str) -> OwnerIndex {
        let owner = self.insert(NOBODY, ConnIndex::NONE);
        self.records[owner.0].presence = Presence::Named;
        self.records[owner.0].overdue = Overdue::OfName;
        self.set_name(owner, name);
        self.named.insert(self.named.hash(name.as_bytes()), owner.0);
        owner
    }

    /// Makes the owner of a client with this id, which no other has. It is away.
    pub(super) fn insert_client(&mut self, id: &str, client: u32) -> OwnerIndex {
        let owner = self.insert(ATTACHED, ConnIndex::NONE);
        let it = &mut self.records[owner.0];
        (it.presence, it.client) = (Presence::Away, client);
        self.set_name(owner, id);
        owner
    }

    /// Makes an owner for this connection, whose record will have the index `conn`.
    pub(super) fn insert(&mut self, conn_id: ConnId, conn: ConnIndex) -> OwnerIndex {
        let owner = self.records.insert(Owner {
            conn_id,
            conn,
            client: NONE,
            holds: Chain::new(),
            tickets: Chain::new(),
            tickets_expired: 0,
            waits: 0,
            presence: Presence::Here,
            overdue: Overdue::End,
            has_ranges: false,
            has_kept: false,
            name: None,
            user: None,
        });
        OwnerIndex(owner)
    }

    /// The owner's connection is gone, and everything it left behind is undone.
    pub(super) fn lose_conn(&mut self, owner: OwnerIndex) {
        let it = &mut self.records[owner.0];
        (it.conn, it.client, it.presence) = (ConnIndex::NONE, NONE, Presence::Gone);
    }

    /// Whether the owner is gone and owns nothing any more.
    pub(super) fn is_done(&self, owner: OwnerIndex) -> bool {
        let it = &self.records[owner.0];
        let may_go = match it.presence {
            Presence::Gone => true,
            Presence::Named => it.waits == 0,
            Presence::Here
            | Presence::Leaving
            | Presence::CutOff
            | Presence::Attached
            | Presence::Away
            | Presence::Detached => false,
        };
        may_go && it.owns_nothing()
    }

    pub(super) fn remove(&mut self, owner: OwnerIndex) {
        let gone = self.records.remove(owner.0);
        if !self.stalled_since.is_empty() {
            self.stalled_since.remove(&owner.0);
        }
        if gone.is_named()
            && let Some(name) = gone.name
        {
            self.named.remove(self.named.hash(name.as_bytes()), owner.0);
        }
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.records.tidy()
    }

    pub(super) fn set_name(&mut self, owner: OwnerIndex, name: &str) {
        self.records
            .change(owner.0, |it| it.name = Some(name.into()));
    }

    pub(super) fn memory(&self) -> usize {
        let stalled = self.stalled_since.len() * STALLED_BYTES;
        self.records.memory() + self.named.memory() + stalled
    }

    /// Checks what is counted; for tests and the simulator.
    pub(super) fn check(&self) {
        self.records.check();
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerIndex, &Owner)> {
        self.records
            .iter()
            .map(|(owner, it)| (OwnerIndex(owner), it))
    }
}

impl Index<OwnerIndex> for Owners {
    type Output = Owner;

    fn index(&self, owner: OwnerIndex) -> &Owner {
        &self.records[owner.0]
    }
}

impl IndexMut<OwnerIndex> for Owners {
    fn index_mut(&mut self, owner: OwnerIndex) -> &mut Owner {
        &mut self.records[owner.0]
    }
}
