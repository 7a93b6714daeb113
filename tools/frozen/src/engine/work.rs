//! Work: what each piece of it costs, and the counter that adds it up.
//!
//! While the engine decides, nobody else is heard, so every loop over something that clients can
//! make large is charged here, and can stop and go on. The unit is about a nanosecond of an
//! ordinary machine. The costs were measured roughly, with a million entries (`latch-load plan
//! hostile`): then most of the time is spent waiting for memory, and a piece of work takes several
//! times as long as with a thousand. It matters that they follow time, not that they are exact. They
//! are constants, so that the same inputs always cost the same and a replay stops where the first
//! run stopped.
//!
//! [`Engine::take_work`](super::Engine::take_work) tells the server what it cost. The engine itself
//! decides by it only how far [`Input::Time`](super::types::Input::Time) goes.

/// To take a request in and to answer it.
pub(super) const REQUEST: u64 = 300;
/// To look at one more entry of a chain or a heap.
pub(super) const LOOK: u64 = 30;
/// To go one step further in a search for a deadlock. Each party in a chain takes six.
pub(super) const FOLLOW: u64 = 50;
/// To take the next timer, or to move one that was re-armed to where it belongs now.
pub(super) const TIMER: u64 = 400;
/// To end a lease, a wait or the life of a value, once its timer was found.
pub(super) const END: u64 = 1000;
/// To grant a key to a waiter.
pub(super) const GRANT: u64 = 800;
/// To take a waiter out of its queue and to answer it.
pub(super) const GIVE_UP: u64 = 500;
/// To undo one thing that a connection left behind: a hold, a ticket, a subscription.
pub(super) const UNDO: u64 = 1000;
/// To look for a range among very many, or to change one of them.
pub(super) const SEGMENT: u64 = 300;
/// To compare a range with that of one who waits.
pub(super) const COMPARE: u64 = 8;
/// To forget a key.
pub(super) const FORGET: u64 = 600;
/// To find one value of a list that is written into an answer.
pub(super) const VALUE: u64 = 20;
/// To put back a value that was popped and not sent.
pub(super) const GIVE_BACK: u64 = 300;
/// To look for patterns of one shape, or to find a recipient and to spell its line.
pub(super) const RECIPIENT: u64 = 120;
/// To record a change and to write the record down, but for copying its bytes.
pub(super) const RECORD: u64 = 300;
/// To hash a secret.
pub(super) const HASH: u64 = 2000;
/// To give a piece of memory back to the system.
pub(super) const TIDY: u64 = 100_000;

/// To copy or compare so many bytes.
pub(super) fn copy(bytes: usize) -> u64 {
    bytes as u64 / 16
}

/// To escape and write this many bytes.
pub(super) fn spell(bytes: usize) -> u64 {
    bytes as u64 * 2
}

/// Adds up what was done since it was last taken.
#[derive(Default)]
pub(super) struct Work {
    spent: u64,
}

impl Work {
    /// Wraps, because it is taken after every input, and every input has a few of these.
    #[inline]
    pub(super) fn charge(&mut self, cost: u64) {
        self.spent = self.spent.wrapping_add(cost);
    }

    /// Charges a number of equal pieces.
    pub(super) fn charge_each(&mut self, count: u32, cost: u64) {
        self.spent += u64::from(count) * cost;
    }

    /// What was done since it was last taken.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    pub(super) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.spent)
    }
}
