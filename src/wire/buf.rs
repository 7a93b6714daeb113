//! The inbox, what a connection has received but not read, and what both boxes are made of.
//!
//! Contiguous, compacting, bounded. An empty one owns no heap memory: its buffer goes back to a
//! [`Pool`] that all connections share, so ten thousand idle connections cost their structs alone
//! and a busy one allocates nothing. The pool also counts what all boxes have, so that it can be
//! bounded. Never reads or writes a socket and never looks at the bytes.
//! What a connection is owed is in `outbox`.

use std::cell::Cell;
use std::mem;
use std::rc::Rc;

use crate::wire::http::REQUEST_BYTES_MAX;
use crate::wire::line::FRAME_BYTES_MAX;

/// Most unread bytes of one client: the longest legal frame and some. At the bound nothing more is
/// taken; the server stops reading that socket until frames have been consumed.
pub const INBOX_BYTES_MAX: usize = 72 * 1024;

// Otherwise a legal frame could fill the inbox before it is whole, and nobody would move again.
const _: () = assert!(INBOX_BYTES_MAX >= FRAME_BYTES_MAX);

/// The same, of one that speaks HTTP.
pub const HTTP_INBOX_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// Spare buffers kept for the next one who needs one; more are freed.
pub const SPARES_MAX: usize = 4096;

/// Largest spare buffer kept; a larger one is freed.
pub const SPARE_BYTES_MAX: usize = 64 * 1024;

/// Capacity of all spare buffers together; what would exceed it is freed.
pub const POOL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Capacity of a fresh buffer: one ordinary frame, or a dozen answers.
const FRESH_BYTES: usize = 512;

/// An outbox of this capacity or less keeps its buffer until it is empty.
const SPARSE_BYTES_MIN: usize = 4 * 1024;

/// Spare buffers, shared by all connections of a thread. The last one given back is the first one
/// taken, because its memory is still warm.
#[derive(Debug, Default)]
pub struct Pool {
    spares: Vec<Vec<u8>>,
    /// Sum of the spares' capacities.
    bytes: usize,
    /// What all inboxes and all outboxes had when they were last counted.
    owned: [usize; 2],
    /// What is kept for connections besides: see [`Held`].
    held: Rc<Cell<usize>>,
}

/// Which of the totals of a [`Pool`] a box counts towards.
pub(super) const INBOXES: usize = 0;
pub(super) const OUTBOXES: usize = 1;

/// Memory that is kept for connections until this is dropped: a line that several outboxes share, a
/// value that was popped and not sent yet.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    total: Rc<Cell<usize>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes);
    }
}

impl Pool {
    /// A pool without spares.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts so much memory for as long as the answer lives.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> Held {
        self.held.set(self.held.get() + bytes);
        Held {
            bytes,
            total: Rc::clone(&self.held),
        }
    }

    /// What all inboxes had when they were last counted.
    #[must_use]
    pub fn inbox_bytes(&self) -> usize {
        self.owned[INBOXES]
    }

    /// What all outboxes had when they were last counted, lines that they share once, and what is
    /// kept until it is sent.
    #[must_use]
    pub fn outbox_bytes(&self) -> usize {
        self.owned[OUTBOXES] + self.held.get()
    }

    /// All of it, and the spares. An inbox is counted with every change. An outbox is counted when
    /// it gets its first buffer and after each attempt to send ([`Outbox::count`]), so what was
    /// said since is missing: at most one line for each request of a turn.
    ///
    /// [`Outbox::count`]: crate::wire::outbox::Outbox::count
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes + self.inbox_bytes() + self.outbox_bytes()
    }

    /// Frees all spares; returns whether there were any.
    pub fn free_spares(&mut self) -> bool {
        self.bytes = 0;
        !mem::take(&mut self.spares).is_empty()
    }

    /// Corrects a total: what was `counted` before is so much now.
    #[inline]
    pub(super) fn recount<const BOX: usize>(&mut self, counted: usize, now: usize) {
        self.owned[BOX] = self.owned[BOX] - counted + now;
    }

    /// An empty buffer with some capacity.
    fn take(&mut self) -> Vec<u8> {
        let Some(spare) = self.spares.pop() else {
            return Vec::with_capacity(FRESH_BYTES);
        };
        self.bytes -= spare.capacity();
        spare
    }

    /// Keeps the buffer for later, or frees it if that would break a bound.
    fn give(&mut self, mut spare: Vec<u8>) {
        let capacity = spare.capacity();
        let fits = capacity <= SPARE_BYTES_MAX
            && self.spares.len() < SPARES_MAX
            && self.bytes + capacity <= POOL_BYTES_MAX;
        if capacity == 0 || !fits {
            return;
        }
        spare.clear();
        self.bytes += capacity;
        self.spares.push(spare);
    }
}

/// A buffer whose front is used up bit by bit. What both boxes are made of; `BOX` says which.
#[derive(Debug, Default)]
pub(super) struct Buffer<const BOX: usize> {
    bytes: Vec<u8>,
    /// How much of the front is used up. Fits: both bounds are far below 4 GiB.
    start: u32,
    /// How much of its capacity the pool has counted.
    counted: u32,
}

impl<const BOX: usize> Buffer<BOX> {
    pub(super) fn live(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start as usize
    }

    /// How much memory it owns.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Moves the front in O(1); an emptied buffer goes back to the pool.
    #[inline]
    pub(super) fn advance(&mut self, n: usize, pool: &mut Pool) {
        assert!(n <= self.len(), "used {n} bytes of {}", self.len());
        self.start += n as u32;
        if self.start as usize == self.bytes.len() {
            self.clear(pool);
        } else if BOX == OUTBOXES && self.bytes.capacity() > SPARSE_BYTES_MIN {
            self.give_back_unused(pool);
        }
    }

    /// The reader of a large outbox is slow: moves the rest to a smaller buffer once it is less than
    /// a quarter of the large one, so that no memory is kept for what was sent.
    #[cold]
    fn give_back_unused(&mut self, pool: &mut Pool) {
        if self.len() < self.bytes.capacity() / 4 {
            self.bytes = self.live().to_vec();
            self.start = 0;
            self.count(pool);
        }
    }

    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.start = 0;
        pool.give(mem::take(&mut self.bytes));
        self.count(pool);
    }

    /// Has the pool count what it owns now.
    #[inline]
    pub(super) fn count(&mut self, pool: &mut Pool) {
        let (counted, capacity) = (self.counted as usize, self.bytes.capacity());
        if counted != capacity {
            pool.recount::<BOX>(counted, capacity);
            self.counted = capacity as u32;
        }
    }

    /// The buffer to append to. The used front is cut off once it is at least as long as the rest,
    /// so every byte is moved at most once on average, and what has been appended to is never
    /// longer than twice its content.
    pub(super) fn tail(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = pool.take();
            self.count(pool);
        } else if self.start > 0 && self.start as usize >= self.len() {
            self.bytes.drain(..self.start as usize);
            self.start = 0;
        }
        &mut self.bytes
    }
}

/// What a client has sent and we have not yet read.
#[derive(Debug, Default)]
pub struct Inbox(Buffer<INBOXES>);

impl Inbox {
    /// Whether nothing is unread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes are unread.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How much memory it owns.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// How many more bytes fit below this bound. At zero, stop reading the socket.
    #[inline]
    #[must_use]
    pub fn room(&self, bytes_max: usize) -> usize {
        bytes_max - self.len()
    }

    /// The unread bytes, oldest first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.live()
    }

    /// Takes as many of `bytes` as there is room for below this bound and says how many.
    #[must_use = "bytes beyond the room were not taken"]
    pub fn append(&mut self, bytes: &[u8], bytes_max: usize, pool: &mut Pool) -> usize {
        let taken = bytes.len().min(self.room(bytes_max));
        if taken > 0 {
            self.0.tail(pool).extend_from_slice(&bytes[..taken]);
            self.0.count(pool);
        }
        taken
    }

    /// Forgets the oldest `n` bytes, which have been read.
    pub fn consume(&mut self, n: usize, pool: &mut Pool) {
        self.0.advance(n, pool);
    }

    /// Forgets everything.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.0.clear(pool);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::outbox::Outbox;

    #[test]
    fn a_connection_pays_four_words_for_its_inbox_and_six_for_its_outbox() {
        assert!(size_of::<Inbox>() <= 32);
        assert!(size_of::<Outbox>() <= 48);
    }

    #[test]
    fn an_empty_box_owns_no_memory_and_a_steady_one_allocates_nothing() {
        let mut pool = Pool::new();
        let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert_eq!(inbox.append(b"l\nk\n10\n", INBOX_BYTES_MAX, &mut pool), 7);
            seen.push(inbox.bytes().as_ptr());
            inbox.consume(7, &mut pool);
            outbox.buf(&mut pool).extend_from_slice(b"ok\n");
            outbox.advance(3, &mut pool);
            assert_eq!(inbox.0.capacity() + outbox.capacity(), 0);
        }
        assert_eq!(pool.spares.len(), 1);
        assert!(
            seen.iter().all(|&at| at == seen[0]),
            "one buffer serves both, again and again"
        );
    }

    #[test]
    fn an_inbox_takes_what_fits_and_no_more() {
        let mut pool = Pool::new();
        let mut inbox = Inbox::default();
        let flood = vec![b'x'; INBOX_BYTES_MAX + 1];
        assert_eq!(
            inbox.append(&flood, INBOX_BYTES_MAX, &mut pool),
            INBOX_BYTES_MAX
        );
        assert_eq!(
            (
                inbox.room(INBOX_BYTES_MAX),
                inbox.append(b"y", INBOX_BYTES_MAX, &mut pool)
            ),
            (0, 0)
        );
        inbox.consume(10, &mut pool);
        assert_eq!(inbox.append(&flood, INBOX_BYTES_MAX, &mut pool), 10);
    }

    #[test]
    fn a_box_that_is_never_empty_still_does_not_grow() {
        let mut pool = Pool::new();
        let mut inbox = Inbox::default();
        let mut outbox = Outbox::default();
        for _ in 0..10_000 {
            assert_eq!(inbox.append(&[b'x'; 100], INBOX_BYTES_MAX, &mut pool), 100);
            outbox.buf(&mut pool).extend_from_slice(&[b'x'; 100]);
            if inbox.len() > 1_000 {
                inbox.consume(100, &mut pool);
                outbox.advance(100, &mut pool);
            }
        }
        assert_eq!((inbox.len(), outbox.len()), (1_000, 1_000));
        assert!(inbox.0.capacity() <= 4_096 && outbox.capacity() <= 4_096);
    }

    #[test]
    fn an_outbox_that_was_sent_in_part_keeps_no_memory_for_that_part() {
        let mut pool = Pool::new();
        let mut outbox = Outbox::default();
        let sent: Vec<u8> = (0..64 * 1024_u32).map(|at| at as u8).collect();
        outbox.buf(&mut pool).extend_from_slice(&sent);
        for left in [sent.len() / 2, sent.len() / 8, 100] {
            let n = outbox.len() - left;
            outbox.advance(n, &mut pool);
            assert_eq!(outbox.pending(), &sent[sent.len() - left..]);
            assert!(outbox.capacity() <= (4 * left).max(SPARSE_BYTES_MIN));
            outbox.count(&mut pool);
            assert_eq!(pool.outbox_bytes(), outbox.capacity());
        }
    }

    #[test]
    fn the_pool_keeps_few_and_small_ones() {
        let mut pool = Pool::new();
        pool.give(Vec::new());
        pool.give(Vec::with_capacity(SPARE_BYTES_MAX + 1));
        assert_eq!(pool.spares.len(), 0, "nothing to keep, too much to keep");
        for _ in 0..2 * POOL_BYTES_MAX / SPARE_BYTES_MAX {
            pool.give(Vec::with_capacity(SPARE_BYTES_MAX));
        }
        assert!(pool.bytes <= POOL_BYTES_MAX);
        while !pool.spares.is_empty() {
            pool.take();
        }
        assert_eq!(pool.bytes, 0);
        for _ in 0..=SPARES_MAX {
            pool.give(Vec::with_capacity(FRESH_BYTES));
        }
        assert_eq!(pool.spares.len(), SPARES_MAX);
    }

    proptest! {
        #[test]
        fn an_inbox_is_a_queue_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0_usize..700), 1..60),
        ) {
            let mut pool = Pool::new();
            let mut inbox = Inbox::default();
            let mut model = VecDeque::new();
            let mut next = 0_u8;
            for (grow, n) in steps {
                if grow {
                    let bytes: Vec<u8> = (0..n)
                        .map(|_| {
                            next = next.wrapping_add(1);
                            next
                        })
                        .collect();
                    prop_assert_eq!(inbox.append(&bytes, INBOX_BYTES_MAX, &mut pool), n);
                    model.extend(bytes);
                    prop_assert!(n == 0 || inbox.0.bytes.len() <= 2 * inbox.len());
                } else {
                    let n = n.min(inbox.len());
                    inbox.consume(n, &mut pool);
                    model.drain(..n);
                }
                prop_assert_eq!(inbox.bytes(), &*model.make_contiguous());
            }
        }
    }
}
