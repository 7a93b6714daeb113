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

    /// This instant plus a span; `NEVER` at the latest, it does not wrap.
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
    /// The longest span the protocol can state: 9 223 372 036 seconds, which still fit in i64
    /// nanoseconds.
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
/// late event or a stale id never reaches the connection that has the slot now.
///
/// Answers and pushes go to a connection; what it acquires belongs to its *owner*.
/// `engine/types.rs` explains the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Where the connection sits in the server's slab.
    pub slot: u32,
    /// Counts connections from 1; people see it as the connection number.
    pub serial: u32,
}

impl ConnId {
    /// Both halves in one word, as readiness events carry it.
    #[must_use]
    pub const fn pack(self) -> u64 {
        ((self.serial as u64) << 32) | self.slot as u64
    }

    /// The inverse of [`ConnId::pack`].
    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self {
            slot: word as u32,
            serial: (word >> 32) as u32,
        }
    }
}

/// A fencing number: one per grant, over all keys, each greater than all before it. Never 0, always
/// below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// The first number that JavaScript and JSON readers cannot tell from its neighbours.
    pub const LIMIT: u64 = 1 << 53;
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a client must show to release or renew a grant: the fence and 64 random bits, printed as 32
/// hex digits.
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
        // Of all bytes that a UUID may contain, only capital letters lack this bit.
        const NO_CAPITAL: u8 = 0x20;
        let common = text.iter().fold(NO_CAPITAL, |common, byte| common & byte);
        if !matches!(text.len(), 32 | 36) || common != NO_CAPITAL {
            return None;
        }
        let (fence, salt) = Uuid::try_parse_ascii(text).ok()?.as_u64_pair();
        Some(Self {
            fence: Fence(fence),
            salt,
        })
    }

    /// As grants spell it: 32 lowercase hex digits, like a UUID without hyphens.
    #[must_use]
    pub fn hex(self) -> [u8; 32] {
        let mut hex = [0; 32];
        let (digits, _) = hex.as_chunks_mut::<8>();
        for (number, digits) in [self.fence.0, self.salt].iter().zip(digits.chunks_mut(2)) {
            digits[0] = hex_digits((number >> 32) as u32);
            digits[1] = hex_digits(*number as u32);
        }
        hex
    }
}

/// Eight lowercase hex digits, computed together, because every grant spells four times as many.
fn hex_digits(number: u32) -> [u8; 8] {
    const EACH: u64 = u64::MAX / 255;
    let mut digits = u64::from(number);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // Adding 6 carries a digit above 9 into the next four bits.
    let letters = (digits + 6 * EACH) >> 4 & EACH;
    let to_letter = u64::from(b'a' - b'0' - 10);
    (digits + u64::from(b'0') * EACH + letters * to_letter).to_be_bytes()
}

/// Shows only the 8 digits of the fence that change from grant to grant: enough to follow a grant
/// through a log, not enough to release it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "…{:08x}…", self.fence.0 as u32)
    }
}
