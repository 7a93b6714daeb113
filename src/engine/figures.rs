//! Figures for operators: how long clients waited and held, by what they held. Nothing is decided by
//! them, and they take the same few kilobytes whatever clients do.

use super::holder::Hold;
use super::table::Kind;
use crate::histogram::Histogram;

/// What figures are kept apart for: five ways to hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A lock.
    Lock,
    /// A slot of a semaphore.
    Slot,
    /// A read lock.
    Read,
    /// A write lock.
    Write,
    /// A lead.
    Lead,
}

impl Held {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] = [
        Self::Lock,
        Self::Slot,
        Self::Read,
        Self::Write,
        Self::Lead,
    ];

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Slot => "semaphore",
            Self::Read => "read",
            Self::Write => "write",
            Self::Lead => "lead",
        }
    }

    #[inline(always)]
    pub(super) fn of(kind: Kind, hold: Hold) -> Self {
        match hold {
            Hold::Slot if kind.is_lock() => Self::Lock,
            Hold::Slot => Self::Slot,
            Hold::Read => Self::Read,
            Hold::Write => Self::Write,
            Hold::Lead => Self::Lead,
        }
    }
}

/// The figures of one way to hold something.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldFigures {
    /// How many are held now.
    pub held: u64,
    /// How many were granted.
    pub grants: u64,
    /// How long those waited that were granted after they had waited.
    pub waits: Histogram,
    /// How long those that are over were held.
    pub holds: Histogram,
}

/// The figures of all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures([HeldFigures; Held::ALL.len()]);

impl Figures {
    /// The figures of one of them.
    #[must_use]
    pub fn of(&self, held: Held) -> &HeldFigures {
        &self.0[held as usize]
    }

    #[inline(always)]
    pub(super) fn begin(&mut self, held: Held) {
        let it = &mut self.0[held as usize];
        it.held += 1;
    }

    #[inline(always)]
    pub(super) fn granted(&mut self, held: Held) {
        self.0[held as usize].grants += 1;
    }

    /// Everything so far was restored: only what is held counts.
    pub(super) fn forget_past(&mut self) {
        for it in &mut self.0 {
            *it = HeldFigures {
                held: it.held,
                ..HeldFigures::default()
            };
        }
    }

    pub(super) fn waited(&mut self, held: Held, ns: u64) {
        self.0[held as usize].waits.observe(ns);
    }

    #[inline(always)]
    pub(super) fn ended(&mut self, held: Held, ns: u64) {
        let it = &mut self.0[held as usize];
        it.held -= 1;
        it.holds.observe(ns);
    }
}
