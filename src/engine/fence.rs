//! The number that only grows, and the salt that makes a token unguessable.
//!
//! One counter over all keys and kinds; it moves only when something is granted. Never looks at a
//! clock: where to start is an argument, and must be above everything an earlier run gave out.
//!
//! A salt is the keyed hash of its fence: nobody without the key can tell it from chance, and whoever
//! has the key and the inputs of a run can make its tokens again. There is no supply to run dry in
//! the middle of a turn, however much one input grants.

use siphasher::sip::SipHasher24;

use crate::base::{Fence, Token};

pub(super) struct Fences {
    last: u64,
    salts: SipHasher24,
}

impl Fences {
    /// The first fence given out is `start + 1`.
    pub(super) fn new(start: u64, salt_key: [u64; 2]) -> Self {
        Self {
            last: start,
            salts: SipHasher24::new_with_keys(salt_key[0], salt_key[1]),
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
            salt: self.salts.hash(&self.last.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn salts_follow_from_the_key_and_do_not_repeat() {
        let salts = |key| {
            let mut fences = Fences::new(0, key);
            std::iter::repeat_with(move || fences.next().salt).take(10_000)
        };
        let seen: BTreeSet<u64> = salts([1, 2]).collect();
        assert_eq!(seen.len(), 10_000);
        assert!(salts([1, 2]).eq(salts([1, 2])));
        assert!(salts([1, 3]).all(|salt| !seen.contains(&salt)));
    }
}
