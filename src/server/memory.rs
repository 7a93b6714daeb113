//! The bound on memory: how much is in use, and what happens at the bound.
//!
//! The sum is looked at after a turn, not with each request: everything that can grow counts itself
//! (`engine::Engine::memory`, `wire::buf::Pool`), so a look is a few dozen additions, and a turn can
//! add only so much. At the bound the engine refuses what would grow, and subscribers that do not
//! read are closed. Two things have smaller bounds of their own, because nothing can be refused
//! where they grow: answers that nobody reads, and requests of which only a part has come. Those who
//! would add to them wait. Never refuses anything itself; how they wait is in `ready.rs`.

use super::conn::{Conn, Transport};
use super::serve::READ_BYTES_MAX;
use super::{Server, conn};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{Input, Popped, value_bytes};
use crate::wire::buf::{Held, Pool};
use crate::wire::outbox::OUTBOX_BYTES_MAX;

/// The share of the bound that all outboxes may have together. Above it, requests with long answers
/// wait, and a client that has left more than its part of this unread is served nothing further.
const OUTBOXES_SHARE: usize = 4;

/// The share of the bound that all inboxes may have when memory is full. Above it, a connection that
/// is in the middle of a long request is not read on.
const INBOXES_SHARE: usize = 16;

/// A bound that was reached is left when this share of it is free again, so that the two do not
/// alternate with every request.
const FREE_AGAIN_SHARE: usize = 64;

/// A client's part of the bound on all outboxes is at least and at most this much, when requests
/// beyond it are put off.
const UNREAD_BYTES: [usize; 2] = [1024, 16 * 1024];

/// The same, when subscribers that have more unread are closed.
const BACKLOG_BYTES: [usize; 2] = [4 * 1024, 64 * 1024];

/// Longest beginning of a request that is received in any case.
const LONG_FRAME_BYTES: usize = 4 * 1024;

/// Most connections looked at in one turn, in search of subscribers that do not read.
const SWEPT_MAX: usize = 1_000;

/// How much work may be done between two looks at the sum: some hundred kilobytes at most.
const LOOK_EVERY_NS: u64 = 50_000;

/// What a connection takes at most in the queues and lists of the server.
const LISTED_BYTES: usize = 128;

/// A value that was popped for a client and is not sent yet.
pub(super) struct UnsentPop {
    pub(super) popped: Popped,
    _held: Held,
}

impl UnsentPop {
    pub(super) fn new(popped: &Popped, pool: &Pool) -> Self {
        // The list of marks doubles as it grows.
        let mark = 2 * (size_of::<Self>() + size_of::<u64>());
        let bytes = value_bytes(popped.value.len()) + popped.key.heap_bytes() + mark;
        Self {
            popped: popped.clone(),
            _held: pool.hold(bytes),
        }
    }
}

/// What was seen when the sum was last looked at.
pub(super) struct Memory {
    /// The bound is reached.
    pub(super) is_full: bool,
    /// All outboxes together have reached their bound.
    pub(super) outboxes_full: bool,
    /// Memory is full, and all inboxes together have reached their bound.
    pub(super) inboxes_full: bool,
    /// A client that has so much unread is served nothing further.
    pub(super) unread_max: usize,
    /// What was worked since.
    work_ns: u64,
    /// Where the search for subscribers goes on, and how many are still to be looked at.
    cursor: usize,
    sweep_left: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            is_full: false,
            outboxes_full: false,
            inboxes_full: false,
            unread_max: OUTBOX_BYTES_MAX,
            work_ns: 0,
            cursor: 0,
            sweep_left: 0,
        }
    }
}

impl Memory {
    /// Not all subscribers were looked at since the bound was reached.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep_left > 0
    }
}

impl<T: Transport> Server<T> {
    /// How many bytes are in use, of all that clients can make the server keep.
    pub(super) fn memory_bytes(&self) -> usize {
        let connections = self.conns.capacity() * size_of::<Conn<T>>()
            + self.conns.len() * LISTED_BYTES
            + self.timers.memory();
        READ_BYTES_MAX + self.engine.memory() + self.pool.memory() + connections
    }

    /// Looks at the sum if much was done since the last time, or if somebody waits for room.
    pub(super) fn watch_memory(&mut self, now: Nanos) {
        if self.settings.memory_max == 0 {
            return;
        }
        self.memory.work_ns += self.budget.spent();
        let is_quiet = !self.memory.is_full && !self.memory.outboxes_full;
        if is_quiet && self.memory.work_ns < LOOK_EVERY_NS {
            return;
        }
        self.look_at_memory(now);
    }

    /// Compares what is in use with the bounds.
    #[inline(never)]
    pub(super) fn look_at_memory(&mut self, now: Nanos) {
        let bound = self.settings.memory_max;
        let mut is_full = is_reached(self.memory.is_full, self.memory_bytes(), bound);
        // Nobody is refused for the sake of buffers that nobody uses.
        if is_full && self.pool.free_spares() {
            is_full = is_reached(self.memory.is_full, self.memory_bytes(), bound);
        }
        let outboxes = bound / OUTBOXES_SHARE;
        let memory = &mut self.memory;
        memory.work_ns = 0;
        let was_reached = memory.is_full || memory.outboxes_full;
        memory.outboxes_full = is_reached(memory.outboxes_full, self.pool.outbox_bytes(), outboxes);
        let inboxes = bound / INBOXES_SHARE;
        memory.inboxes_full =
            is_full && is_reached(memory.inboxes_full, self.pool.inbox_bytes(), inboxes);
        memory.unread_max = if memory.outboxes_full {
            part_of(outboxes, self.conns.len(), UNREAD_BYTES)
        } else {
            OUTBOX_BYTES_MAX
        };
        if memory.is_full != is_full {
            memory.is_full = is_full;
            self.engine
                .apply(now, Input::MemoryFull(is_full), &mut self.effects);
            log::debug!(
                "memory: {} of {bound} bytes are in use",
                self.memory_bytes()
            );
        }
        if is_full || self.memory.outboxes_full {
            if !was_reached {
                self.memory.sweep_left = self.conns.capacity();
            }
            self.sweep_subscribers(part_of(outboxes, self.conns.len(), BACKLOG_BYTES));
        } else {
            self.memory.sweep_left = 0;
        }
        self.run
            .wake(!self.memory.outboxes_full, !self.memory.inboxes_full);
    }

    /// Goes on looking for subscribers that have more than this unread: they are closed as slow
    /// consumers.
    fn sweep_subscribers(&mut self, backlog_max: usize) {
        let slots = self.conns.capacity();
        for _ in 0..slots.min(SWEPT_MAX) {
            self.memory.cursor = (self.memory.cursor + 1) % slots;
            let slot = self.memory.cursor;
            let Some(conn) = self.conns.get(slot) else {
                continue;
            };
            let id = conn.id(slot);
            // Whoever was not written to yet may be about to read it all.
            let is_behind = conn.is_blocked && conn.outbox.len() > backlog_max;
            if is_behind && self.engine.has_subscriptions(id) {
                self.mark_overrun(id);
            }
        }
        self.memory.sweep_left = self.memory.sweep_left.saturating_sub(SWEPT_MAX);
    }

    /// Whether there is no memory for the rest of what this connection is sending.
    pub(super) fn is_frame_put_off(&mut self, id: ConnId) -> bool {
        self.memory.inboxes_full
            && conn::find(&mut self.conns, id)
                .is_some_and(|conn| conn.inbox.len() > LONG_FRAME_BYTES)
    }
}

/// Whether a bound is reached, or was and is not left yet.
fn is_reached(was_reached: bool, bytes: usize, bound: usize) -> bool {
    let free_again = if was_reached {
        bound / FREE_AGAIN_SHARE
    } else {
        0
    };
    bytes > bound - free_again
}

/// What each of so many may have of a bound.
fn part_of(bound: usize, of: usize, [least, most]: [usize; 2]) -> usize {
    (bound / of.max(1)).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_reached_above_it_and_left_a_little_below() {
        assert!(!is_reached(false, 640, 640));
        assert!(is_reached(false, 641, 640));
        assert!(is_reached(true, 631, 640));
        assert!(!is_reached(true, 630, 640));
    }

    #[test]
    fn a_part_is_neither_nothing_nor_all() {
        let of = |connections| part_of(1 << 26, connections, UNREAD_BYTES);
        assert_eq!((of(0), of(1)), (16 * 1024, 16 * 1024));
        assert_eq!((of(16_384), of(1 << 20)), (4 * 1024, 1024));
    }
}
