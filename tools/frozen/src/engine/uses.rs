//! How much each connection uses of what it may not have much of: shapes of patterns, and groups of
//! one pattern.
//!
//! This file only counts: `subscriptions.rs` has the limits.

use super::arena::{Arena, Stored};
use super::conn::ConnIndex;
use crate::keymap::KeyMap;

/// What subscriptions of a connection have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Used {
    /// They are to patterns of this shape.
    Shape(u32),
    /// They are to groups of this pattern.
    GroupsOf(u32),
}

struct Use {
    conn: ConnIndex,
    of: Used,
    subscriptions: u32,
}

impl Stored for Use {}

pub(super) struct Uses {
    uses: Arena<Use>,
    by_conn: KeyMap,
}

impl Uses {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            uses: Arena::new(),
            by_conn: KeyMap::new(seed),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.uses.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.uses.memory() + self.by_conn.memory()
    }

    /// How many subscriptions of the connection have this in common.
    pub(super) fn count(&self, conn: ConnIndex, of: Used) -> u32 {
        self.find(conn, of)
            .map_or(0, |it| self.uses[it].subscriptions)
    }

    /// Counts one more; returns whether it is the first.
    pub(super) fn add(&mut self, conn: ConnIndex, of: Used) -> bool {
        if let Some(it) = self.find(conn, of) {
            self.uses[it].subscriptions += 1;
            return false;
        }
        let subscriptions = 1;
        let it = self.uses.insert(Use {
            conn,
            of,
            subscriptions,
        });
        self.by_conn.insert(self.hash(conn, of), it);
        true
    }

    /// Counts one less; returns whether it was the last.
    pub(super) fn remove(&mut self, conn: ConnIndex, of: Used) -> bool {
        let Some(it) = self.find(conn, of) else {
            panic!("{of:?} of {conn:?} was not counted");
        };
        self.uses[it].subscriptions -= 1;
        if self.uses[it].subscriptions > 0 {
            return false;
        }
        self.by_conn.remove(self.hash(conn, of), it);
        self.uses.remove(it);
        true
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    pub(super) fn tidy(&mut self) -> bool {
        self.uses.tidy()
    }

    fn find(&self, conn: ConnIndex, of: Used) -> Option<u32> {
        self.by_conn.find(self.hash(conn, of), |it| {
            self.uses[it].conn == conn && self.uses[it].of == of
        })
    }

    fn hash(&self, conn: ConnIndex, of: Used) -> u32 {
        let number = match of {
            Used::Shape(shape) => u64::from(shape) << 1,
            Used::GroupsOf(pattern_id) => u64::from(pattern_id) << 1 | 1,
        };
        let [number, conn] = [number, u64::from(conn.0)].map(u64::to_le_bytes);
        self.by_conn.hash([number, conn].as_flattened())
    }
}
