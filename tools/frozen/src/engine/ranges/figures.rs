//! What is counted of byte ranges. Counts only; who reads them is in `server`.

use super::super::types::Sharing;
use crate::histogram::Histogram;

/// Why range locks end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// They were unlocked.
    Explicit,
    /// Their client is gone.
    Disconnect,
    /// Nobody has had them back after a restart.
    GraceExpired,
    /// An operator has ended them.
    Broken,
}

impl RangeEnd {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 4] = [
        Self::Explicit,
        Self::Disconnect,
        Self::GraceExpired,
        Self::Broken,
    ];

    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Disconnect => "disconnect",
            Self::GraceExpired => "grace_expired",
            Self::Broken => "broken",
        }
    }
}

/// All figures of byte ranges. What is held and waited for now is not among them: the table knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RangeFigures {
    granted: [u64; 2],
    denied: [u64; 2],
    deadlocked: [u64; 2],
    ended: [u64; RangeEnd::ALL.len()],
    reclaims: [u64; 2],
    waits: [Histogram; 2],
    holds: [Histogram; 2],
}

impl RangeFigures {
    /// How many locks of this mode were granted, at once or after a wait.
    #[must_use]
    pub fn grants(&self, mode: Sharing) -> u64 {
        self.granted[mode as usize]
    }

    /// How many were refused, or their wait ended.
    #[must_use]
    pub fn denials(&self, mode: Sharing) -> u64 {
        self.denied[mode as usize]
    }

    /// How many were refused because they would have waited for themselves.
    #[must_use]
    pub fn deadlocks(&self, mode: Sharing) -> u64 {
        self.deadlocked[mode as usize]
    }

    /// How many range locks ended, and why. An unlock counts once, however many it ends.
    #[must_use]
    pub fn ends(&self, why: RangeEnd) -> u64 {
        self.ended[why as usize]
    }

    /// How often bytes were had back after a restart, and how often that was refused.
    #[must_use]
    pub fn reclaims(&self) -> [u64; 2] {
        self.reclaims
    }

    /// How long those waited that were granted what they waited for, in this mode.
    #[must_use]
    pub fn waits(&self, mode: Sharing) -> &Histogram {
        &self.waits[mode as usize]
    }

    /// How long those range locks were held that are over, in this mode.
    #[must_use]
    pub fn holds(&self, mode: Sharing) -> &Histogram {
        &self.holds[mode as usize]
    }

    pub(in super::super) fn granted(&mut self, mode: Sharing) {
        self.granted[mode as usize] += 1;
    }

    pub(in super::super) fn denied(&mut self, mode: Sharing) {
        self.denied[mode as usize] += 1;
    }

    pub(in super::super) fn deadlocked(&mut self, mode: Sharing) {
        self.deadlocked[mode as usize] += 1;
    }

    pub(in super::super) fn ended(&mut self, why: RangeEnd, count: u64) {
        self.ended[why as usize] += count;
    }

    pub(super) fn reclaimed(&mut self, succeeded: bool) {
        self.reclaims[usize::from(!succeeded)] += 1;
    }

    pub(super) fn waited(&mut self, mode: Sharing, ns: u64) {
        self.waits[mode as usize].observe(ns);
    }

    pub(super) fn held(&mut self, mode: Sharing, ns: u64) {
        self.holds[mode as usize].observe(ns);
    }
}
