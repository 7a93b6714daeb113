//! Fences and tokens: one counter for all keys and kinds, which only grants move, and only upwards.
//!
//! Never reads a clock: the start is an argument, and must be above all fences of earlier runs.
//! What makes a token unguessable is in `salts.rs`. `Locks::grant` in `lock.rs` is the only one who
//! takes them; a salt alone is also taken for the secret of a client.

use super::salts::{SaltKey, Salts};
use crate::base::{Fence, Token};

pub(super) struct Fences {
    /// The last one of earlier runs.
    start: u64,
    last: u64,
    salts: Salts,
}

impl Fences {
    /// The first fence given out is `start + 1`.
    pub(super) fn new(start: u64, salt_key: SaltKey) -> Self {
        Self {
            start,
            last: start,
            salts: Salts::new(salt_key),
        }
    }

    /// No fence up to this one is given out from now on.
    pub(super) fn raise(&mut self, upto: Fence) {
        assert_eq!(self.start, self.last, "this run has given out fences");
        self.start = self.start.max(upto.0);
        self.last = self.start;
    }

    /// The last one of earlier runs.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// How many this run has given out.
    pub(super) fn count(&self) -> u64 {
        self.last - self.start
    }

    /// The last fence that was given out.
    pub(super) fn last(&self) -> Fence {
        Fence(self.last)
    }

    /// A salt for something else than a token.
    pub(super) fn next_salt(&mut self) -> [u8; 16] {
        let words = [self.salts.next(), self.salts.next()];
        let mut salt = [0; 16];
        salt.as_chunks_mut()
            .0
            .copy_from_slice(&words.map(u64::to_le_bytes));
        salt
    }

    /// A new token, with a fence above all others.
    pub(super) fn next(&mut self) -> Token {
        self.last += 1;
        assert!(
            self.last < Fence::LIMIT,
            "fences are used up: the next would be {}",
            self.last
        );
        Token {
            fence: Fence(self.last),
            salt: self.salts.next(),
        }
    }
}
