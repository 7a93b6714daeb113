//! Figures for operators: how long clients waited and held, by what they held, and which limits they
//! have met. Nothing is decided by them, and they take the same few kilobytes whatever clients do.

use super::holder::Held;
use super::types::Refusal;
use crate::histogram::Histogram;

/// The figures of one way to hold something.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldFigures {
    /// How many were held when this run began to serve.
    restored: u64,
    /// How many were granted.
    pub grants: u64,
    /// How many were refused, or not free when nobody wanted to wait.
    refused: u64,
    /// How many have joined a queue, and left it without a grant.
    joined: u64,
    gave_up: u64,
    /// How many of those that were refused or left would have waited for themselves.
    pub deadlocks: u64,
    /// How long those waited that were granted after they had waited.
    pub waits: Histogram,
    /// How long those that are over were held.
    pub holds: Histogram,
}

impl HeldFigures {
    /// How many are held now. Not counted by itself, because every grant and every end of one would pay
    /// for it, and nearly nobody asks.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.restored + self.grants - self.holds.count()
    }

    /// How many wait for it now. Nothing is counted when one who waited is granted, because how long it
    /// waited is.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.joined - self.gave_up - self.waits.count()
    }

    /// How often somebody who waited left its queue, with a grant or without.
    pub(super) fn left_queues(&self) -> u64 {
        self.gave_up + self.waits.count()
    }

    /// How many were asked for in vain: refused, not free in time, or not waited for to the end. Without
    /// those that would have waited for themselves.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.refused + self.gave_up - self.deadlocks
    }
}

/// A limit that a request can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Keys of locks, or grants.
    Locks,
    /// Waiters for one key.
    Waiters,
    /// Counters, values, lists and barriers.
    Keys,
    /// Values in one list.
    ListLength,
    /// Subscriptions of one client.
    Subscriptions,
    /// Clients of one adapter, or adapters.
    Clients,
    /// Range locks of one resource.
    RangesOfResource,
    /// Range locks of one client.
    RangesOfClient,
    /// Range locks.
    Ranges,
    /// Memory.
    Memory,
    /// Room on disk.
    Storage,
}

impl Limit {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Locks,
        Self::Waiters,
        Self::Keys,
        Self::ListLength,
        Self::Subscriptions,
        Self::Clients,
        Self::RangesOfResource,
        Self::RangesOfClient,
        Self::Ranges,
        Self::Memory,
        Self::Storage,
    ];

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Waiters => "waiters",
            Self::Keys => "keys",
            Self::ListLength => "list_length",
            Self::Subscriptions => "subscriptions",
            Self::Clients => "clients",
            Self::RangesOfResource => "ranges_per_resource",
            Self::RangesOfClient => "ranges_per_client",
            Self::Ranges => "ranges",
            Self::Memory => "memory",
            Self::Storage => "storage",
        }
    }

    const fn of(refusal: Refusal) -> Option<Self> {
        match refusal {
            Refusal::MaxLocks => Some(Self::Locks),
            Refusal::MaxWaiters => Some(Self::Waiters),
            Refusal::MaxKeys => Some(Self::Keys),
            Refusal::ListFull => Some(Self::ListLength),
            Refusal::MaxSubscriptions => Some(Self::Subscriptions),
            Refusal::MaxClients | Refusal::AdapterFull => Some(Self::Clients),
            Refusal::MaxRangesOfResource => Some(Self::RangesOfResource),
            Refusal::MaxRangesOfClient => Some(Self::RangesOfClient),
            Refusal::MaxRanges => Some(Self::Ranges),
            Refusal::Memory => Some(Self::Memory),
            Refusal::Storage => Some(Self::Storage),
            Refusal::NotHolder
            | Refusal::TypeMismatch
            | Refusal::LimitMismatch
            | Refusal::NotEnqueued
            | Refusal::AlreadyEnqueued
            | Refusal::LeaseExpired
            | Refusal::Draining
            | Refusal::CountMismatch
            | Refusal::Overflow
            | Refusal::RangeTooLong
            | Refusal::BadPattern
            | Refusal::Reclaim
            | Refusal::NoGrace
            | Refusal::WrongSecret
            | Refusal::OtherClient
            | Refusal::UnknownClient
            | Refusal::Detached
            | Refusal::BadRange
            | Refusal::Busy
            | Refusal::Deadlock => None,
        }
    }
}

/// All figures. Each kind of figure is a row of its own: to count something is then one instruction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    restored: [u64; Held::ALL.len()],
    grants: [u64; Held::ALL.len()],
    refused: [u64; Held::ALL.len()],
    joined: [u64; Held::ALL.len()],
    gave_up: [u64; Held::ALL.len()],
    deadlocked: [u64; Held::ALL.len()],
    waits: [Histogram; Held::ALL.len()],
    holds: [Histogram; Held::ALL.len()],
    /// How many of those in `holds` have ended while records were read.
    past_ends: u64,
    limit_hits: [u64; Limit::ALL.len()],
    deadlocks: u64,
    searches_given_up: u64,
}

impl Figures {
    /// The figures of one way to hold something.
    #[must_use]
    pub fn of(&self, held: Held) -> HeldFigures {
        let held = held as usize;
        HeldFigures {
            restored: self.restored[held],
            grants: self.grants[held],
            refused: self.refused[held],
            joined: self.joined[held],
            gave_up: self.gave_up[held],
            deadlocks: self.deadlocked[held],
            waits: self.waits[held],
            holds: self.holds[held],
        }
    }

    /// How many requests were refused because of this limit.
    #[must_use]
    pub fn limit_hits(&self, limit: Limit) -> u64 {
        self.limit_hits[limit as usize]
    }

    /// How many grants have ended, without those of earlier runs.
    pub(super) fn ends(&self) -> u64 {
        self.holds.iter().map(Histogram::count).sum::<u64>() - self.past_ends
    }

    /// What has just ended did so in an earlier run.
    pub(super) fn ended_in_the_past(&mut self) {
        self.past_ends += 1;
    }

    /// How many requests were refused because they would have waited for themselves.
    #[must_use]
    pub fn deadlocks(&self) -> u64 {
        self.deadlocks
    }

    /// How many searches for a deadlock were given up, because what they looked at kept changing, or was
    /// too much.
    #[must_use]
    pub fn searches_given_up(&self) -> u64 {
        self.searches_given_up
    }

    pub(super) fn search_given_up(&mut self) {
        self.searches_given_up += 1;
    }

    pub(super) fn restored(&mut self, held: Held) {
        self.restored[held as usize] += 1;
    }

    #[inline(always)]
    pub(super) fn granted(&mut self, held: Held) {
        count(&mut self.grants[held as usize]);
    }

    /// Everything so far was restored: only what is held counts.
    pub(super) fn forget_past(&mut self) {
        let restored = Held::ALL.map(|held| self.of(held).held());
        *self = Self {
            restored,
            limit_hits: self.limit_hits,
            ..Self::default()
        };
    }

    #[inline(always)]
    pub(super) fn joined(&mut self, held: Held) {
        count(&mut self.joined[held as usize]);
    }

    /// One who waited left without a grant.
    #[inline(always)]
    pub(super) fn gave_up(&mut self, held: Held) {
        count(&mut self.gave_up[held as usize]);
    }

    #[inline(always)]
    pub(super) fn waited(&mut self, held: Held, ns: u64) {
        self.waits[held as usize].observe(ns);
    }

    pub(super) fn denied(&mut self, held: Held) {
        self.refused[held as usize] += 1;
    }

    /// One that was refused, or has left its queue, would have waited for itself.
    pub(super) fn deadlocked(&mut self, held: Held) {
        self.deadlocked[held as usize] += 1;
    }

    /// A request was refused.
    #[cold]
    pub(super) fn refused(&mut self, why: Refusal) {
        if let Some(limit) = Limit::of(why) {
            self.limit_hits[limit as usize] += 1;
        }
        self.deadlocks += u64::from(why == Refusal::Deadlock);
    }

    #[inline(always)]
    pub(super) fn ended(&mut self, held: Held, ns: u64) {
        self.holds[held as usize].observe(ns);
    }
}

/// Counts one more. No counter of 64 bits ever overflows, and to check for it costs as much as to count.
#[inline(always)]
fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}
