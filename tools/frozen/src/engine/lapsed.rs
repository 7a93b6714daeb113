//! The latest tokens whose lease has ended.
//!
//! Leases end on the millisecond, so when a late renewal arrives, its holder is gone already. With
//! this memory the answer is still "your lease expired" and not "unknown token". Data only:
//! `lock.rs` fills it and asks it (`Locks::renew`), and only the wording of a refusal depends on
//! it.

use crate::base::{Fence, Token};

/// How many tokens are remembered, one for each remainder of the fence. Fences are consecutive, so
/// these are the latest grants that expired. A newer token replaces an older one, and a renewal
/// with the older one is then answered `error`.
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
            // Allocated when first needed, so that a server whose leases never expire does without.
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

    pub(super) fn memory(&self) -> usize {
        self.0.capacity() * size_of::<Lapse>()
    }

    pub(super) fn contains(&self, token: Token, key_hash: u32) -> bool {
        let slot = self.0.get(token.fence.0 as usize % TOKENS_MAX);
        token.fence.0 != 0 && slot == Some(&Lapse { token, key_hash })
    }
}
