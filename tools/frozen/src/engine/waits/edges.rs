//! The wait-for graph, as people see it: for `waits` and `who`.
//!
//! One who waits behind another waits for all whom the other waits for, too. So that a long queue is
//! shown with as many edges as it has waiters, an edge leads only to the last one before that waits
//! itself, to places between the two that nobody waits for yet, and, from the first, to the holders.
//! Never changes anything, and never walks further than its caller asks.

use crate::engine::Engine;
use crate::engine::conn::ConnIndex;
use crate::engine::holder::Held;
use crate::engine::owner::{NOBODY, OwnerIndex};
use crate::engine::queue::Awaiting;
use crate::engine::view::{KeyView, View};

/// Most slots of the table of waiters that are looked at for [`View::edges`].
const SLOTS_LOOKED_AT_MAX: usize = 65_536;

/// How many of them cost as much as to look at one that waits.
const SLOTS_PER_LOOK: usize = 8;

/// Most waiters and holders of all keys that are looked at for it, and those of one more key.
const LOOKS_MAX: usize = 4_096;

/// Somebody who waits or is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Someone<'e> {
    /// A connection, by its number.
    Connection(u32),
    /// An owner that is known by its name.
    Named(&'e str),
    /// Whoever held this before a restart, and has not claimed it.
    Nobody,
}

/// Who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge<'e> {
    /// Who waits.
    pub waiter: Someone<'e>,
    /// For whom.
    pub waits_for: Someone<'e>,
    /// For whom each of the two locks bytes; empty if it does so for itself.
    pub owners: [&'e [u8]; 2],
    /// The key or the resource that it waits for.
    pub on: &'e [u8],
    /// What it waits for: `lock`, `semaphore`, `read`, `write`, `lead` or `range`.
    pub kind: &'static str,
}

/// One in the queue of a key, and before whom it cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting<'a, 'e> {
    /// Who it is.
    pub who: Someone<'e>,
    /// Whether a command waits. An enqueue that is not waited for has a place and nothing else.
    pub is_parked: bool,
    /// As in [`Edge::kind`].
    pub kind: &'static str,
    /// The one before it and those that one does not wait for, or the holders; a thousand at most.
    pub waits_for: &'a [Someone<'e>],
}

/// Goes through the queue of a key, from its head on.
pub struct Queue<'e> {
    key: KeyView<'e>,
    next: Option<u32>,
    /// Whom the next one waits for.
    before: Vec<Someone<'e>>,
    /// A reader waits only for so many of them: not for readers right before it.
    before_reader: usize,
}

/// Most whom one waiter is shown to wait for.
const BEFORE_MAX: usize = 1_000;

impl<'e> View<'e> {
    /// Tells who waits for whom, until `each` returns false or enough was looked at; returns how much
    /// that was.
    pub fn edges(self, mut each: impl FnMut(Edge<'e>) -> bool) -> usize {
        let Engine { stores, core, .. } = self.engine;
        let mut looks = 0;
        let waiters = core.waiters.slots_from(0).take(SLOTS_LOOKED_AT_MAX);
        let slots = core.waiters.len().min(SLOTS_LOOKED_AT_MAX) / SLOTS_PER_LOOK;
        let heads = waiters.filter_map(|(_, it)| it.filter(|it| it.before().is_none()));
        for head in heads.filter(|it| matches!(it.awaiting, Awaiting::Hold(_))) {
            let key = KeyView {
                view: self,
                it: &stores.locks.table[head.subject],
            };
            let mut queue = key.queue();
            looks += queue.before.len();
            let mut show = |waiting: Waiting<'_, 'e>| {
                let mut edges = waiting.waits_for.iter().map(|&waits_for| Edge {
                    waiter: waiting.who,
                    waits_for,
                    owners: [b""; 2],
                    on: key.key(),
                    kind: waiting.kind,
                });
                !waiting.is_parked || edges.all(&mut each)
            };
            while let Some(goes_on) = queue.show_next(&mut show) {
                looks += 1;
                if !goes_on || looks >= LOOKS_MAX {
                    return looks + slots;
                }
            }
        }
        looks + self.range_edges(LOOKS_MAX - looks, each) + slots
    }

    /// How many wait in queues of keys.
    #[must_use]
    pub fn waiting(self) -> u64 {
        let figures = Held::ALL.map(|it| self.engine.core.figures.of(it).waiting());
        let of_ranges = self.engine.stores.locks.ranges.wants.len();
        figures.iter().sum::<u64>() + of_ranges as u64
    }

    /// How many requests were refused because they would have waited for themselves, and how many
    /// searches for that were given up.
    #[must_use]
    pub fn deadlocks(self) -> [(&'static str, u64); 2] {
        let figures = &self.engine.core.figures;
        [
            ("deadlocks", figures.deadlocks()),
            ("deadlock_searches_given_up", figures.searches_given_up()),
        ]
    }

    pub(in crate::engine) fn someone(self, owner: OwnerIndex) -> Someone<'e> {
        let it = &self.engine.core.owners[owner];
        match (
            it.is_named() || it.client_id().is_some(),
            it.name.as_deref(),
        ) {
            (true, Some(name)) => Someone::Named(name),
            _ if it.conn_id == NOBODY => Someone::Nobody,
            _ => Someone::Connection(it.conn_id.serial),
        }
    }
}

impl<'e> KeyView<'e> {
    /// Goes through the queue, from its head on.
    #[must_use]
    pub fn queue(self) -> Queue<'e> {
        let holders = &self.view.engine.stores.locks.holders;
        let of_key = || self.it.holders.iter(holders).map(|it| &holders[it]);
        let mut queue = Queue {
            key: self,
            next: self.it.queue.head(),
            before: Vec::new(),
            before_reader: 0,
        };
        for holder in of_key().take(BEFORE_MAX) {
            queue.stand(self.view.someone(holder.owner));
        }
        if of_key().next().is_some_and(|it| it.held() == Held::Write) {
            queue.before_reader = queue.before.len();
        }
        queue
    }
}

impl<'e> Queue<'e> {
    /// Shows the next one in the queue; none if there is no other.
    pub fn show_next<R>(&mut self, show: impl FnOnce(Waiting<'_, 'e>) -> R) -> Option<R> {
        let KeyView { view, .. } = self.key;
        let it = &view.engine.core.waiters[self.next?];
        let hold = it.want().held;
        let waits_for = match hold {
            Held::Read => self.before_reader,
            Held::Lock | Held::Slot | Held::Lead | Held::Write => self.before.len(),
        };
        let who = view.someone(it.owner);
        let is_parked = it.conn != ConnIndex::NONE;
        let shown = show(Waiting {
            who,
            is_parked,
            kind: hold.word(),
            waits_for: &self.before[..waits_for],
        });
        self.next = it.behind();
        if is_parked && hold != Held::Read {
            self.before.clear();
        }
        self.stand(who);
        if hold == Held::Write {
            self.before_reader = self.before.len();
        }
        Some(shown)
    }

    /// Whoever comes next waits for this one, too.
    fn stand(&mut self, who: Someone<'e>) {
        if self.before.len() < BEFORE_MAX && self.before.last() != Some(&who) {
            self.before.push(who);
        }
    }
}
