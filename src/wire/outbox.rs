//! The outbox: what a connection is owed but was not sent, with the bounds for slow readers.
//!
//! A slow reader is first served no further request, and then, if pushes for it keep gathering, is
//! disconnected. Every byte has a position in the stream, counted from the connection's beginning,
//! so that [`Marks`] can say what is settled once it has been sent. Made of the same buffers as the
//! inbox; only a long push that many are told is not copied into each outbox, but kept once for all.
//! Never writes a socket and never looks at the bytes; the server asks here, and decides which
//! reader is too slow.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::memory::block_bytes;
use crate::wire::answer::VALUES_BYTES_MAX;
use crate::wire::buf::{Buffer, Held, OUTBOXES, Pool};

/// Unsent bytes of one client above which it is served no further request until it has read some.
/// A line is never cut, so the last one (at most 1 MiB, a `stats` or an `lrange`) may stand above
/// the bound, and pushes may, up to a bound of their own.
pub const OUTBOX_BYTES_MAX: usize = 256 * 1024;

/// Unsent bytes of one client above which it can be told nothing more: at least 64 pushes, even if
/// all are as long as a push can be. A slow reader, that is a client which has this much unread
/// when it is to be told something, is disconnected: pushes can neither be held back nor left out.
pub const PUSH_BYTES_MAX: usize = 64 * 64 * 1024;

/// As soon as so many bytes of pushes are yet to be sent, to all clients together, signals wait until
/// some have been: they would gather faster than they can leave. So a client that was not written to
/// meanwhile may be owed this much more.
pub const PUSH_BYTES_BEHIND: usize = 32 * 1024 * 1024;

// Otherwise an answer alone could make its reader count as too slow.
const _: () = assert!(PUSH_BYTES_MAX > OUTBOX_BYTES_MAX + VALUES_BYTES_MAX);

/// What we owe a client and have not yet sent.
#[derive(Debug, Default)]
pub struct Outbox {
    /// What was copied, without the parts that are shared.
    own: Buffer<OUTBOXES>,
    sent: u64,
    shared: Option<Box<SharedParts>>,
}

/// A line of which several outboxes keep one copy, and which is counted once; or a stored value that
/// one outbox shares with the table.
#[derive(Debug)]
pub struct SharedLine {
    bytes: Rc<[u8]>,
    _held: Held,
}

impl SharedLine {
    /// A copy of this line, for all outboxes that count with this pool.
    #[must_use]
    pub fn new(line: &[u8], pool: &Pool) -> Rc<Self> {
        Self::of_value(&line.into(), pool)
    }

    /// This value, without a copy. It counts as one, because the table may forget it meanwhile.
    #[must_use]
    pub fn of_value(value: &Rc<[u8]>, pool: &Pool) -> Rc<Self> {
        let bytes = block_bytes(value.len()) + block_bytes(size_of::<Self>());
        Rc::new(Self {
            bytes: Rc::clone(value),
            _held: pool.hold(bytes),
        })
    }
}

/// Lines of which several outboxes keep one copy.
#[derive(Debug, Default)]
struct SharedParts {
    parts: VecDeque<SharedPart>,
    /// How many bytes of them are unsent.
    bytes: usize,
    /// How many own bytes stand before the last of them.
    own_before: usize,
    /// What the pool has counted for this list, without the lines.
    counted: usize,
}

#[derive(Debug)]
struct SharedPart {
    /// How many own bytes stand between the part before this one, or the front, and this one.
    own_before: usize,
    line: Rc<SharedLine>,
    sent: usize,
}

impl Outbox {
    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes are owed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.own.len() + self.shared.as_ref().map_or(0, |shared| shared.bytes)
    }

    /// How many bytes were ever appended: where the next one will stand in the stream.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// How many bytes were ever sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
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
        self.own.tail(pool)
    }

    /// Appends a line that other outboxes have, too, without a copy.
    pub fn share(&mut self, line: &Rc<SharedLine>) {
        let shared = self.shared.get_or_insert_default();
        let own_before = self.own.len() - shared.own_before;
        shared.own_before += own_before;
        shared.bytes += line.bytes.len();
        shared.parts.push_back(SharedPart {
            own_before,
            line: Rc::clone(line),
            sent: 0,
        });
    }

    /// Bytes owed, oldest first: all of them, or as many as are in one piece.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        let first = self.shared.as_ref().and_then(|it| it.parts.front());
        match first {
            None => self.own.live(),
            Some(SharedPart {
                own_before: 0,
                line,
                sent,
            }) => &line.bytes[*sent..],
            Some(part) => &self.own.live()[..part.own_before],
        }
    }

    /// Forgets the oldest `n` bytes, which have been sent; no more than were [`pending`].
    ///
    /// [`pending`]: Outbox::pending
    #[inline]
    pub fn advance(&mut self, n: usize, pool: &mut Pool) {
        if self.shared.is_none() {
            self.own.advance(n, pool);
        } else {
            self.advance_shared(n, pool);
        }
        self.sent += n as u64;
    }

    fn advance_shared(&mut self, n: usize, pool: &mut Pool) {
        assert!(n <= self.pending().len(), "sent more than was in one piece");
        let Some(shared) = &mut self.shared else {
            return;
        };
        let Some(first) = shared.parts.front_mut() else {
            return;
        };
        if first.own_before > 0 {
            first.own_before -= n;
            shared.own_before -= n;
            return self.own.advance(n, pool);
        }
        first.sent += n;
        shared.bytes -= n;
        if first.sent == first.line.bytes.len() {
            shared.parts.pop_front();
        }
        if shared.parts.is_empty() {
            self.forget_shared(pool);
        }
    }

    fn forget_shared(&mut self, pool: &mut Pool) {
        if let Some(shared) = self.shared.take() {
            pool.recount::<OUTBOXES>(shared.counted, 0);
        }
    }

    /// Has the pool count what it owns now.
    #[inline(always)] // with every answer
    pub fn count(&mut self, pool: &mut Pool) {
        self.own.count(pool);
        if let Some(shared) = &mut self.shared {
            let parts = shared.parts.capacity() * size_of::<SharedPart>();
            let bytes = block_bytes(parts) + block_bytes(size_of::<SharedParts>());
            pool.recount::<OUTBOXES>(shared.counted, bytes);
            shared.counted = bytes;
        }
    }

    /// How much memory it owns alone.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.own.capacity()
    }

    /// Forgets what is owed, because the connection ends; it was not sent.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.own.clear(pool);
        self.forget_shared(pool);
    }
}

/// Room kept for marks that are still to come; what a burst has left beyond it is freed.
const MARKS_KEPT_MAX: usize = 64;

/// What is settled once the stream has been sent up to a position, in the order of the positions.
///
/// Costs a connection one word until the first mark is set.
#[derive(Debug)]
pub struct Marks<M>(Option<Box<Ahead<M>>>);

/// Marks that were not passed when somebody last looked.
#[derive(Debug)]
struct Ahead<M>(VecDeque<(u64, M)>);

impl<M> Default for Marks<M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M> Marks<M> {
    /// Sets a mark behind everything that is in the outbox now.
    pub fn set(&mut self, outbox: &Outbox, what: M) {
        let Ahead(marks) = &mut **self
            .0
            .get_or_insert_with(|| Box::new(Ahead(VecDeque::new())));
        let position = outbox.position();
        debug_assert!(
            marks.back().is_none_or(|(last, _)| *last <= position),
            "a mark in front of an older one"
        );
        marks.push_back((position, what));
    }

    /// How many marks were not passed when somebody last looked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |ahead| ahead.0.len())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the marks up to which everything has been sent.
    #[inline]
    pub fn pass(&mut self, outbox: &Outbox) {
        if self.0.is_some() {
            self.pass_up_to(outbox.sent());
        }
    }

    fn pass_up_to(&mut self, sent: u64) {
        let Some(Ahead(marks)) = self.0.as_deref_mut() else {
            return;
        };
        while marks
            .pop_front_if(|(position, _)| *position <= sent)
            .is_some()
        {}
        if marks.is_empty() && marks.capacity() > MARKS_KEPT_MAX {
            self.0 = None;
        }
    }

    /// Takes all marks that have not been passed, the latest first.
    pub fn take_latest_first(&mut self) -> impl Iterator<Item = M> {
        let ahead = self.0.take().map_or_else(VecDeque::new, |ahead| ahead.0);
        ahead.into_iter().rev().map(|(_, what)| what)
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

    #[test]
    fn shared_lines_are_sent_in_their_place_and_kept_once() {
        let mut pool = Pool::new();
        let long = SharedLine::new(b"sig news long\n", &pool);
        let alone = pool.memory();
        assert!(alone >= long.bytes.len());
        let mut outboxes = [Outbox::default(), Outbox::default()];
        for outbox in &mut outboxes {
            outbox.share(&long);
            outbox.buf(&mut pool).extend_from_slice(b"ok 1\n");
            outbox.buf(&mut pool).extend_from_slice(b"ok 2\n");
            outbox.share(&long);
            outbox.share(&long);
            outbox.buf(&mut pool).extend_from_slice(b"ok 3\n");
        }
        assert_eq!(Rc::strong_count(&long), 7);
        for outbox in &mut outboxes {
            outbox.count(&mut pool);
        }
        let owned: usize = outboxes.iter().map(Outbox::capacity).sum();
        assert!(pool.memory() > alone + owned);
        for (outbox, step) in outboxes.iter_mut().zip([1, 4]) {
            assert_eq!(outbox.len(), 3 * long.bytes.len() + 15);
            let mut sent = Vec::new();
            while !outbox.is_empty() {
                let pending = outbox.pending();
                let n = step.min(pending.len());
                sent.extend_from_slice(&pending[..n]);
                outbox.advance(n, &mut pool);
                assert_eq!(outbox.sent(), sent.len() as u64);
            }
            let whole = "sig news long\nok 1\nok 2\nsig news long\nsig news long\nok 3\n";
            assert_eq!(String::from_utf8(sent).unwrap(), whole);
            assert!(outbox.shared.is_none());
        }
        assert_eq!(Rc::strong_count(&long), 1);
        assert_eq!(pool.outbox_bytes(), alone);
        drop(long);
        assert_eq!(pool.outbox_bytes(), 0);
    }

    #[test]
    fn a_mark_is_passed_when_everything_before_it_was_sent() {
        let mut pool = Pool::new();
        let (mut outbox, mut marks) = (Outbox::default(), Marks::default());
        assert_eq!((outbox.position(), outbox.sent()), (0, 0));
        for (line, mark) in [("ok\n", 'a'), ("ok 1\n", 'b'), ("nil\n", 'c')] {
            outbox.buf(&mut pool).extend_from_slice(line.as_bytes());
            marks.set(&outbox, mark);
        }
        outbox.buf(&mut pool).extend_from_slice(b"queued\n");
        assert_eq!((outbox.position(), outbox.sent()), (19, 0));
        for (sent, ahead) in [(2, "abc"), (1, "bc"), (4, "bc"), (1, "c")] {
            outbox.advance(sent, &mut pool);
            marks.pass(&outbox);
            let left = marks.0.as_deref().unwrap().0.iter();
            assert_eq!(left.map(|(_, mark)| mark).collect::<String>(), ahead);
        }
        assert_eq!((outbox.position(), outbox.sent()), (19, 8));
        outbox.advance(11, &mut pool);
        assert!(outbox.is_empty());
        outbox.buf(&mut pool).extend_from_slice(b"ok\n");
        marks.set(&outbox, 'd');
        assert_eq!((outbox.position(), outbox.sent()), (22, 19));
        assert_eq!(marks.take_latest_first().collect::<String>(), "dc");
        assert_eq!(marks.take_latest_first().count(), 0);
    }

    #[test]
    fn marks_cost_one_word_and_a_burst_of_them_leaves_nothing_behind() {
        assert_eq!(size_of::<Marks<[u64; 8]>>(), 8);
        let mut pool = Pool::new();
        let (mut outbox, mut marks) = (Outbox::default(), Marks::default());
        let mut capacity_after = |burst: usize| {
            for mark in 0..burst {
                outbox.buf(&mut pool).push(b'x');
                marks.set(&outbox, mark);
            }
            outbox.advance(burst, &mut pool);
            marks.pass(&outbox);
            marks.0.as_deref().map(|ahead| ahead.0.capacity())
        };
        assert!(capacity_after(MARKS_KEPT_MAX / 2).is_some_and(|room| room > 0));
        assert_eq!(capacity_after(10 * MARKS_KEPT_MAX), None);
    }
}
