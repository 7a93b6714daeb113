//! The outbox: what a connection is owed but was not sent, with the bounds for slow readers.
//!
//! A slow reader is first served no further request, and then, if news for it keep gathering, is
//! disconnected. Made of the same buffers as the inbox. Never writes a socket and never looks at the
//! bytes; who is too slow is decided by the server, which asks here.

use crate::wire::answer::VALUES_BYTES_MAX;
use crate::wire::buf::{Pool, Queue};

/// Unsent bytes of one client above which it is served no further request until it has read some.
/// A line is never cut, so the last one (at most 1 MiB, a `stats` or an `lrange`) may stand above
/// the bound, and pushes may, up to a bound of their own.
pub const OUTBOX_BYTES_MAX: usize = 256 * 1024;

/// Unsent bytes of one client above which it can be told nothing more: at least 64 pushes, even if
/// all are as long as a push can be. Who is to be told something and still has this much unread is
/// too slow and is disconnected: news can neither be held back nor left out.
pub const PUSH_BYTES_MAX: usize = 64 * 64 * 1024;

// Otherwise an answer alone could make its reader deaf.
const _: () = assert!(PUSH_BYTES_MAX > OUTBOX_BYTES_MAX + VALUES_BYTES_MAX);

/// What we owe a client and have not yet sent.
#[derive(Debug, Default)]
pub struct Outbox(Queue);

impl Outbox {
    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes are owed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the client must read before it is served again: see [`OUTBOX_BYTES_MAX`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= OUTBOX_BYTES_MAX
    }

    /// Whether the client can be told nothing it did not ask for: see [`PUSH_BYTES_MAX`].
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.len() >= PUSH_BYTES_MAX
    }

    /// The buffer to append lines to. Only append: what is in front is partly sent already.
    pub fn buf(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        self.0.tail(pool)
    }

    /// The bytes owed, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.0.live()
    }

    /// Forgets the oldest `n` bytes, which have been sent.
    pub fn advance(&mut self, n: usize, pool: &mut Pool) {
        self.0.advance(n, pool);
    }

    /// How much memory it owns.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Forgets everything.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.0.clear(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::verbs::VALUE_BYTES_MAX;

    #[test]
    fn an_outbox_says_when_it_is_full_but_cuts_no_line() {
        let mut pool = Pool::new();
        let mut outbox = Outbox::default();
        outbox.buf(&mut pool).resize(OUTBOX_BYTES_MAX - 1, b'x');
        assert!(!outbox.is_full());
        outbox.buf(&mut pool).extend_from_slice(b"ok\n");
        assert!(outbox.is_full());
        outbox.advance(2, &mut pool);
        assert!(outbox.is_full());
        outbox.advance(1, &mut pool);
        assert!(!outbox.is_full());
        outbox.clear(&mut pool);
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_outbox_takes_sixty_four_of_the_longest_pushes() {
        let mut pool = Pool::new();
        let mut outbox = Outbox::default();
        let longest = [&[b'x'; VALUE_BYTES_MAX][..], b"\n"].concat();
        for _ in 0..64 {
            assert!(!outbox.is_overrun());
            outbox.buf(&mut pool).extend_from_slice(&longest);
        }
        assert!(outbox.is_overrun() && outbox.is_full());
        outbox.advance(longest.len(), &mut pool);
        assert!(!outbox.is_overrun() && outbox.is_full());
    }
}
