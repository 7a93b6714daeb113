//! The number that only grows, and the chance that makes a token unguessable.
//!
//! One counter over all keys and kinds; it moves only when something is granted. Never looks at a
//! clock: where to start is an argument, and must be above everything an earlier run gave out.

use crate::base::{Fence, Token};

/// Where salts come from: the system's random source in the daemon, a seeded one in tests.
pub type SaltSource = Box<dyn FnMut() -> u64>;

pub(super) struct Fences {
    last: u64,
    chance: SaltSource,
}

impl Fences {
    /// The first fence given out is `start + 1`.
    pub(super) fn new(start: u64, chance: SaltSource) -> Self {
        Self {
            last: start,
            chance,
        }
    }

    /// A token that was never given out before, with a fence above all others.
    pub(super) fn next(&mut self) -> Token {
        self.last += 1;
        assert!(
            self.last < Fence::LIMIT,
            "fences are used up: {} grants",
            self.last
        );
        Token {
            fence: Fence(self.last),
            salt: (self.chance)(),
        }
    }
}
