//! What the server's work costs in virtual time, besides what it does with its sockets.
//!
//! Sockets are charged where they are used, in `pipe`, while the turn lasts; the rest is added when
//! it is over. The figures are rough: they are there to make a long turn long, not to measure one.

use latchd::engine::Engine;
use latchd::engine::view::Counts;

/// What it takes to accept a connection.
pub(super) const ACCEPT_NS: u64 = 5_000;

/// What it takes to read, decide and spell what becomes one line.
const LINE_NS: u64 = 300;

/// What it takes to make a grant, a timer, a waiter or a subscription, or to end one.
const CHANGE_NS: u64 = 200;

/// How much of everything there was when the last turn was over.
#[derive(Debug, Default)]
pub(super) struct WorkSeen {
    tallied: u64,
    counts: Counts,
}

impl WorkSeen {
    /// What was decided since the last call, in nanoseconds, as far as it shows: in lines that were
    /// written, and in what the engine has now.
    pub(super) fn take_ns(&mut self, engine: &Engine, lines: u64) -> u64 {
        let tally = engine.tally();
        let tallied = tally.grants + tally.releases + tally.expiries + tally.disconnects;
        let before = std::mem::replace(&mut self.counts, engine.counts());
        let changes = |counts: &Counts| {
            [
                counts.others,
                counts.subscriptions,
                counts.patterns,
                counts.waiters,
                counts.tickets,
                counts.timers,
            ]
        };
        let (before, after) = (changes(&before), changes(&self.counts));
        let changed = before.iter().zip(after).map(|(a, b)| a.abs_diff(b) as u64);
        let tallied = tallied - std::mem::replace(&mut self.tallied, tallied);
        lines * LINE_NS + (tallied + changed.sum::<u64>()) * CHANGE_NS
    }
}
