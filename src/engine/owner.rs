//! What each owner holds and waits for.
//!
//! Holds and tickets belong to an owner, answers go to a connection (`conn.rs`), and the two are
//! not the same: an answer dies with its socket, a hold need not. Today every connection is its own
//! owner. The record outlives that connection only while something it held is still to be released
//! or runs out its lease. What a disconnect undoes, and in which order, is decided in
//! `Locks::depart`.

use std::ops::{Index, IndexMut};

use super::arena::{Arena, Chain};
use super::conn::ConnIndex;
use super::holder::OfOwner;
use super::two_phase::TicketsOfOwner;
use crate::base::ConnId;

/// An owner's number. A type of its own, so that it cannot be taken for a connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerIndex(pub(super) u32);

pub(super) struct Owner {
    /// The connection that is this owner, or was: its number is what people are shown.
    pub(super) conn_id: ConnId,
    /// That connection's record, or `NONE` once it is gone.
    pub(super) conn: ConnIndex,
    /// Every grant that counts as this owner's, oldest first.
    pub(super) holds: Chain<OfOwner>,
    /// Every enqueue that was not yet waited for.
    pub(super) tickets: Chain<TicketsOfOwner>,
    pub(super) presence: Presence,
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

impl Owner {
    pub(super) fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }

    pub(super) fn owns_nothing(&self) -> bool {
        self.holds.is_empty() && self.tickets.is_empty()
    }
}

pub(super) struct Owners(Arena<Owner>);

impl Owners {
    pub(super) fn new() -> Self {
        Self(Arena::new())
    }

    /// A new owner: this connection, whose record will have this number.
    pub(super) fn insert(&mut self, conn_id: ConnId, conn: ConnIndex) -> OwnerIndex {
        let owner = self.0.insert(Owner {
            conn_id,
            conn,
            holds: Chain::new(),
            tickets: Chain::new(),
            presence: Presence::Here,
            name: None,
        });
        OwnerIndex(owner)
    }

    /// The connection that was this owner is gone for good.
    pub(super) fn lose_conn(&mut self, owner: OwnerIndex) {
        self.0[owner.0].conn = ConnIndex::NONE;
        self.0[owner.0].presence = Presence::Gone;
        self.forget_if_done(owner);
    }

    /// Forgets an owner that is gone and owns nothing any more.
    pub(super) fn forget_if_done(&mut self, owner: OwnerIndex) {
        let it = &self.0[owner.0];
        if it.presence == Presence::Gone && it.owns_nothing() {
            self.0.remove(owner.0);
        }
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.0.tidy()
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
