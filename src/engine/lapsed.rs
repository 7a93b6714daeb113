//! Tokens whose lease ran out lately.
//!
//! Leases end on the millisecond, so by the time a late renewal arrives its holder is gone. This
//! memory lets the answer still be "your lease expired" and not "never heard of you". It is an
//! explanation, not a state: nothing is decided by it but the wording of a refusal.

use crate::base::{Fence, Token};

/// How many are remembered. Fences are consecutive, so these are the latest grants that expired;
/// a newer one takes the place of an older one and the older one is answered `error`.
const TOKENS_MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Lapse {
    token: Token,
    key_hash: u32,
}

pub(super) struct Lapsed(Vec<Lapse>);

impl Lapsed {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn remember(&mut self, token: Token, key_hash: u32) {
        if self.0.is_empty() {
            // Made on first need, then kept: a server whose leases never expire does without.
            let nothing = Lapse {
                token: Token {
                    fence: Fence(0),
                    salt: 0,
                },
                key_hash: 0,
            };
            self.0.resize(TOKENS_MAX, nothing);
        }
        self.0[token.fence.0 as usize % TOKENS_MAX] = Lapse { token, key_hash };
    }

    pub(super) fn contains(&self, token: Token, key_hash: u32) -> bool {
        let slot = self.0.get(token.fence.0 as usize % TOKENS_MAX);
        token.fence.0 != 0 && slot == Some(&Lapse { token, key_hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lapse_is_known_by_token_and_key_until_a_newer_one_takes_its_place() {
        let token = |fence| Token {
            fence: Fence(fence),
            salt: 9,
        };
        let mut lapsed = Lapsed::new();
        assert!(!lapsed.contains(token(5), 1));
        lapsed.remember(token(5), 1);
        assert!(lapsed.contains(token(5), 1));
        assert!(!lapsed.contains(token(5), 2), "another key");
        assert!(
            !lapsed.contains(
                Token {
                    fence: Fence(5),
                    salt: 8
                },
                1
            ),
            "a guessed salt"
        );
        lapsed.remember(token(5 + TOKENS_MAX as u64), 1);
        assert!(!lapsed.contains(token(5), 1));
        assert!(
            !lapsed.contains(
                Token {
                    fence: Fence(0),
                    salt: 0
                },
                0
            ),
            "the empty slot"
        );
    }
}
