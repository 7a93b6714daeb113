//! Owners: what each of them holds and waits for.
//!
//! Holds and tickets belong to an owner, answers go to a connection (`conn.rs`); `types.rs` says
//! why they are two. Today every connection is its own owner. The owner's record outlives the
//! connection only until the last of its holds is released or its lease has ended. `Locks::depart`
//! in `leaving.rs` decides what a disconnect undoes, and in which order.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain, Stored};
use super::conn::ConnIndex;
use super::holder::OfOwner;
use super::two_phase::TicketsOfOwner;
use crate::base::ConnId;
use crate::memory::block_bytes;

/// The index of an owner's record. A type of its own, so that it cannot be mistaken for a
/// connection's. It is also the number of the owner's group of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerIndex(pub(super) u32);

pub(super) struct Owner {
    /// The connection that is or was this owner; people see its serial number.
    pub(super) conn_id: ConnId,
    /// That connection's record, or `NONE` once it is gone.
    pub(super) conn: ConnIndex,
    /// Its grants, oldest first.
    pub(super) holds: Chain<OfOwner>,
    /// Its enqueues that were not yet waited for.
    pub(super) tickets: Chain<TicketsOfOwner>,
    /// How many queues it waits in.
    pub(super) waits: u32,
    pub(super) presence: Presence,
    pub(super) overdue: Overdue,
    /// The name that the client gave in `hello`.
    pub(super) name: Option<Box<str>>,
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
}

/// What becomes of an owner's leases that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// They end.
    End,
    /// They end when its connection is not stalled any more: see
    /// [`Input::Stalled`](super::types::Input::Stalled).
    Wait,
    /// They do not end any more, because we have cut its connection off.
    Stay,
}

impl Owner {
    /// The connection is gone, and this is how.
    pub(super) fn leave(&mut self, presence: Presence) {
        self.presence = presence;
        self.overdue = match presence {
            Presence::CutOff => Overdue::Stay,
            Presence::Here | Presence::Leaving | Presence::Gone => Overdue::End,
        };
    }

    pub(super) fn set_stalled(&mut self, is_stalled: bool) {
        self.overdue = if is_stalled {
            Overdue::Wait
        } else {
            Overdue::End
        };
    }

    pub(super) fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }

    pub(super) fn owns_nothing(&self) -> bool {
        self.holds.is_empty() && self.tickets.is_empty()
    }
}

impl Stored for Owner {
    fn heap_bytes(&self) -> usize {
        self.name.as_ref().map_or(0, |name| block_bytes(name.len()))
    }
}

/// What the record of an owner takes, without its name.
pub(super) const RECORD_BYTES: usize = Arena::<Owner>::ENTRY_BYTES;

pub(super) struct Owners(Arena<Owner>);

impl Owners {
    pub(super) fn new() -> Self {
        Self(Arena::new())
    }

    /// Makes an owner for this connection, whose record will have the index `conn`.
    pub(super) fn insert(&mut self, conn_id: ConnId, conn: ConnIndex) -> OwnerIndex {
        let owner = self.0.insert(Owner {
            conn_id,
            conn,
            holds: Chain::new(),
            tickets: Chain::new(),
            waits: 0,
            presence: Presence::Here,
            overdue: Overdue::End,
            name: None,
        });
        OwnerIndex(owner)
    }

    /// The owner's connection is gone, and everything it left behind is undone.
    pub(super) fn lose_conn(&mut self, owner: OwnerIndex) {
        self.0[owner.0].conn = ConnIndex::NONE;
        self.0[owner.0].presence = Presence::Gone;
    }

    /// Whether the owner is gone and owns nothing any more.
    pub(super) fn is_done(&self, owner: OwnerIndex) -> bool {
        let it = &self.0[owner.0];
        it.presence == Presence::Gone && it.owns_nothing()
    }

    pub(super) fn remove(&mut self, owner: OwnerIndex) {
        self.0.remove(owner.0);
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.0.tidy()
    }

    pub(super) fn set_name(&mut self, owner: OwnerIndex, name: &str) {
        self.0.change(owner.0, |it| it.name = Some(name.into()));
    }

    pub(super) fn memory(&self) -> usize {
        self.0.memory()
    }

    /// Checks what is counted; for tests and the simulator.
    pub(super) fn check(&self) {
        self.0.check();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerIndex, &Owner)> {
        self.0.iter().map(|(owner, it)| (OwnerIndex(owner), it))
    }
}

impl Index<OwnerIndex> for Owners {
    type Output = Owner;

    fn index(&self, owner: OwnerIndex) -> &Owner {
        &self.0[owner.0]
    }
}

impl IndexMut<OwnerIndex> for Owners {
    fn index_mut(&mut self, owner: OwnerIndex) -> &mut Owner {
        &mut self.0[owner.0]
    }
}
