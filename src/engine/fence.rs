//! The number that only grows: one counter over all keys and kinds; it moves only when something is
//! granted.
//!
//! Never looks at a clock: where to start is an argument, and must be above everything an earlier run
//! gave out. What makes a token unguessable is in `salts.rs`.

use super::salts::{SaltKey, Salts};
use crate::base::{Fence, Token};

pub(super) struct Fences {
    last: u64,
    salts: Salts,
}

impl Fences {
    /// The first fence given out is `start + 1`.
    pub(super) fn new(start: u64, salt_key: SaltKey) -> Self {
        Self {
            last: start,
            salts: Salts::new(salt_key),
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
            salt: self.salts.next(),
        }
    }
}
