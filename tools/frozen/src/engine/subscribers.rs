//! What is kept of subscriptions: who subscribed to the same, and each connection that did.
//!
//! A client can make many of both, so they are small. This file only has the records and the chains
//! they are in: `subscriptions.rs` finds and counts them.

use super::arena::{Chain, Link, Linked, NONE, Ring, Stored};
use super::conn::ConnIndex;
use crate::key::Key;

/// The connections that subscribed to the same: to a pattern without a group, or to one of its
/// groups.
pub(super) struct Subscribers {
    /// The pattern, or the name of the group.
    pub(super) name: Key,
    pub(super) subscriptions: Chain<OfSubscribers>,
    pub(super) kind: Kind,
    pub(super) of_pattern: Link,
    pub(super) of_all: Link,
}

pub(super) enum Kind {
    /// All are recipients. There may be none: then the pattern has groups.
    Pattern {
        /// `NONE` if it is a name without wildcards.
        shape: u32,
        /// Its groups, and the one that is looked at first.
        groups: Ring<OfPattern>,
    },
    /// One is the recipient, in turn.
    Group {
        pattern_id: u32,
        /// The member whose turn it is. `NONE` after the last one's turn: then it is the turn of
        /// the next one to join or, if none joins, of the first.
        turn: u32,
    },
}

impl Subscribers {
    pub(super) fn new(name: &[u8], kind: Kind) -> Self {
        Self {
            name: name.into(),
            subscriptions: Chain::new(),
            kind,
            of_pattern: Link::OUT,
            of_all: Link::OUT,
        }
    }

    /// The shape of a pattern.
    pub(super) fn shape(&self) -> u32 {
        match self.kind {
            Kind::Pattern { shape, .. } => shape,
            Kind::Group { .. } => NONE,
        }
    }

    /// The groups of a pattern. A group has none.
    pub(super) fn groups(&self) -> Ring<OfPattern> {
        match self.kind {
            Kind::Pattern { groups, .. } => groups,
            Kind::Group { .. } => Ring::new(),
        }
    }

    pub(super) fn set_groups(&mut self, ring: Ring<OfPattern>) {
        if let Kind::Pattern { groups, .. } = &mut self.kind {
            *groups = ring;
        }
    }

    /// The member of a group whose turn it is, or `NONE`.
    pub(super) fn turn(&self) -> u32 {
        match self.kind {
            Kind::Pattern { .. } => NONE,
            Kind::Group { turn, .. } => turn,
        }
    }

    pub(super) fn set_turn(&mut self, member: u32) {
        if let Kind::Group { turn, .. } = &mut self.kind {
            *turn = member;
        }
    }
}

impl Stored for Subscribers {
    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

/// The ring of the groups of one pattern.
#[derive(Clone, Copy)]
pub(super) struct OfPattern;

impl Linked<OfPattern> for Subscribers {
    fn link(&self) -> Link {
        self.of_pattern
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_pattern
    }
}

/// The chain of all patterns and groups that have subscriptions.
pub(super) struct OfAll;

impl Linked<OfAll> for Subscribers {
    fn link(&self) -> Link {
        self.of_all
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_all
    }
}

/// One connection at one pattern, or in one group.
pub(super) struct Subscription {
    pub(super) conn: ConnIndex,
    pub(super) subscribers_id: u32,
    pub(super) of_subscribers: Link,
    pub(super) of_conn: Link,
}

impl Stored for Subscription {}

/// The chain of the subscriptions to the same.
pub(super) struct OfSubscribers;

impl Linked<OfSubscribers> for Subscription {
    fn link(&self) -> Link {
        self.of_subscribers
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_subscribers
    }
}

/// The chain of one connection's subscriptions of one topic.
pub(super) struct SubscriptionsOfConn;

impl Linked<SubscriptionsOfConn> for Subscription {
    fn link(&self) -> Link {
        self.of_conn
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_conn
    }
}
