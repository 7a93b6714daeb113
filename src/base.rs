//! The few words every layer shares: instants, spans, ids, fences, tokens.
//!
//! Newtypes only. Nothing here reads a clock, draws a random number or knows a protocol.

use std::fmt;

use uuid::Uuid;

/// An instant: nanoseconds since the daemon started, on a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every instant that will ever be.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant plus a span; stays at `NEVER` rather than wrapping.
    #[must_use]
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.nanos()))
    }

    /// Nanoseconds from `earlier` to here, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A span of time as requests and settings state it: whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// No time at all; as a wait it means "try once".
    pub const ZERO: Self = Self(0);
    /// The longest span the protocol can state: 9 223 372 036 seconds, which still fits i64 nanoseconds.
    pub const MAX: Self = Self(9_223_372_036_000);

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    /// The same span in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0.saturating_mul(1_000_000)
    }
}

/// One connection, for all time: the slot it sits in and the serial number it was accepted under.
///
/// Slots are reused at once, serials are not (they wrap only after 4 294 967 295 connections), so a
/// late event or a stale owner can never be mistaken for whoever has the slot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// Where the connection sits in the server's slab.
    pub slot: u32,
    /// The how-manieth connection this is, from 1; shown to people as the connection number.
    pub serial: u32,
}

impl ClientId {
    /// Both halves in one word, as readiness events carry it.
    #[must_use]
    pub const fn pack(self) -> u64 {
        ((self.serial as u64) << 32) | self.slot as u64
    }

    /// The inverse of [`ClientId::pack`].
    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self {
            slot: word as u32,
            serial: (word >> 32) as u32,
        }
    }
}

/// The number that only grows: one per grant, over all keys. Never 0, always below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// First number that JavaScript and JSON readers could no longer tell from its neighbours.
    pub const LIMIT: u64 = 1 << 53;
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a holder must show to release or renew: the fence and 64 random bits, printed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The grant's fence, so that fencing works for clients that only ever see the token.
    pub fence: Fence,
    /// What makes the token unguessable.
    pub salt: u64,
}

impl Token {
    /// Reads 32 lowercase hex digits, or the same with the hyphens of a UUID.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if !matches!(text.len(), 32 | 36) || text.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let (fence, salt) = Uuid::try_parse_ascii(text).ok()?.as_u64_pair();
        Some(Self {
            fence: Fence(fence),
            salt,
        })
    }

    /// As a UUID, which knows both spellings.
    #[must_use]
    pub fn uuid(self) -> Uuid {
        Uuid::from_u64_pair(self.fence.0, self.salt)
    }
}

/// Shows 8 digits and no more: those of the fence that change from grant to grant. Enough to follow
/// a grant through a log, not enough to release it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "…{:08x}…", self.fence.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_survives_packing() {
        let id = ClientId {
            slot: 7,
            serial: u32::MAX,
        };
        assert_eq!(ClientId::unpack(id.pack()), id);
    }

    #[test]
    fn a_token_reads_both_spellings_and_nothing_else() {
        let token = Token {
            fence: Fence(42),
            salt: 0x9f8e_7d6c_5b4a_3921,
        };
        let simple = token.uuid().simple().to_string();
        assert_eq!(simple, "000000000000002a9f8e7d6c5b4a3921");
        assert_eq!(Token::parse(simple.as_bytes()), Some(token));
        assert_eq!(
            Token::parse(token.uuid().hyphenated().to_string().as_bytes()),
            Some(token)
        );
        for bad in [
            "",
            "42",
            "000000000000002A9F8E7D6C5B4A3921",
            "000000000000002a9f8e7d6c5b4a392g",
        ] {
            assert_eq!(Token::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(
            Token::parse(format!("{{{simple}}}").as_bytes()),
            None,
            "braces"
        );
    }

    #[test]
    fn a_token_in_a_log_is_cut() {
        let token = Token {
            fence: Fence(0x0006_5a1b_2c3d_4e5f),
            salt: 0xdead_beef,
        };
        assert_eq!(format!("{token:?}"), "…2c3d4e5f…");
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Nanos(u64::MAX - 1).after(Millis::MAX), Nanos::NEVER);
        assert_eq!(Nanos(1).since(Nanos(2)), 0);
    }
}
