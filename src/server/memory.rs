//! The bound on memory: how much is in use, and what happens at the bound.
//!
//! The sum is looked at after a turn, not with each request: everything that can grow counts itself
//! (`engine::Engine::memory`, `wire::buf::Pool`), so a look is a few dozen additions, and a turn can
//! add only so much. At the bound the engine refuses what would grow, and subscribers that do not
//! read are closed. Two things have smaller bounds of their own, because nothing can be refused
//! where they grow: answers that nobody reads, and requests of which only a part has come. Those who
//! would add to them wait; how, is in `ready.rs`. A part is set aside for connections, so that
//! whoever wants to let go of something can come in at the bound; newcomers beyond it are refused.

use super::conn::{Conn, Transport};
use super::http::CODEC_BYTES;
use super::serve::READ_BYTES_MAX;
use super::{Due, Server, conn};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::Engine;
use crate::engine::types::{Input, Popped, value_bytes};
use crate::store::Store;
use crate::wire::buf::{Held, Pool};
use crate::wire::outbox::OUTBOX_BYTES_MAX;

/// The share of the bound that all outboxes may have together. Above it, requests with long answers
/// wait.
const OUTBOXES_SHARE: usize = 4;

/// What is left of that share when long answers begin to wait for those before them on the same
/// connection, and a client that has left more than its part unread is served nothing further: the
/// rest is for those who have read everything.
const OUTBOXES_REST_SHARE: usize = 4;

/// While all outboxes together are full, a client that has left more than its part unread for so
/// long is closed, also if nothing is pushed to it: those who read would wait for it.
const UNREAD_MAX: Millis = Millis(250);

/// The share of the bound that is set aside for connections, and for what the engine keeps of each:
/// it is not used for anything else, and at the bound newcomers are let in as long as it lasts.
const CONNECTIONS_SHARE: usize = 16;

/// The share of the bound for all strangers together (`strangers.rs`). It is set
/// aside where a token is asked for.
pub(super) const STRANGERS_SHARE: usize = 16;

/// So many connections are let in however low the bound is, so that an operator can look.
const CONNECTIONS_MIN: usize = 64;

/// Most newcomers that are told at one time that there is no memory for them; another is closed
/// without a word.
const NEWCOMERS_TOLD_MAX: usize = 64;

/// What accepting a connection counts as work: so many are let in between two looks at the sum.
const ACCEPTED_NS: u64 = LOOK_EVERY_NS / 64;

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

/// Most connections looked at in one turn, in search of those that do not read.
const SWEPT_MAX: usize = 1_000;

/// How much work may be done between two looks at the sum: some hundred kilobytes at most.
const LOOK_EVERY_NS: u64 = 50_000;

/// What a connection takes at most in the queues and lists of the server.
pub(super) const LISTED_BYTES: usize = 128;

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

/// How much room all outboxes together have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outboxes {
    Roomy,
    /// A long answer waits until its client has read those before it.
    Crowded,
    /// Every long answer waits.
    Full,
}

/// What was seen when the sum was last looked at.
pub(super) struct Memory {
    /// The bound is reached.
    pub(super) is_full: bool,
    pub(super) outboxes: Outboxes,
    /// Memory is full, and all inboxes together have reached their bound.
    pub(super) inboxes_full: bool,
    /// A client that has so much unread is served nothing further.
    pub(super) unread_max: usize,
    /// What was worked since.
    work_ns: u64,
    /// Where the search for those that do not read goes on, and how many are still to be looked at.
    cursor: usize,
    sweep_left: usize,
    /// The next search for those that read nothing is armed.
    sweep_is_due: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            is_full: false,
            outboxes: Outboxes::Roomy,
            inboxes_full: false,
            unread_max: OUTBOX_BYTES_MAX,
            work_ns: 0,
            cursor: 0,
            sweep_left: 0,
            sweep_is_due: false,
        }
    }
}

impl Memory {
    /// Not all connections were looked at since the bound was reached.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep_left > 0
    }

    /// A connection was accepted, which no turn accounts for.
    pub(super) fn note_accepted(&mut self) {
        self.work_ns += ACCEPTED_NS;
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// How many bytes are in use, of all that clients can make the server keep.
    pub(super) fn memory_bytes(&self) -> usize {
        let connections = self.own_connections_bytes();
        let records = self.store.memory() + self.held_back.memory();
        READ_BYTES_MAX + self.engine.memory() + self.pool.memory() + connections + records
    }

    /// How many bytes the connections take here, without what they sent and are owed.
    fn own_connections_bytes(&self) -> usize {
        self.conns.capacity() * size_of::<Conn<T>>()
            + self.conns.len() * LISTED_BYTES
            + self.timers.memory()
            + self.http.memory()
            + self.handshakes.memory()
            + self.strangers.memory()
            + self.transports.bytes()
    }

    /// How many bytes the connections take, here and in the engine, whatever they hold.
    fn connections_bytes(&self) -> usize {
        self.own_connections_bytes() + self.engine.connections_memory()
    }

    /// How much of what is set aside for connections has not been allocated.
    fn connections_bytes_left(&self) -> usize {
        let set_aside = self.settings.memory_max / CONNECTIONS_SHARE;
        set_aside.saturating_sub(self.connections_bytes())
    }

    /// The unused part of the strangers' share; 0 where no token is asked for.
    fn strangers_bytes_left(&self) -> usize {
        if !self.passes.asks_for_token() {
            return 0;
        }
        let set_aside = self.settings.memory_max / STRANGERS_SHARE;
        set_aside.saturating_sub(self.strangers.bytes())
    }

    /// Whether what is set aside is enough for one connection more. What those that left have taken
    /// is used again, so they do not count, nor do those few that were refused.
    fn fits_another_connection(&self) -> bool {
        let each = size_of::<Conn<T>>() + LISTED_BYTES + Engine::CONNECTION_BYTES;
        let count = self.conns.len() - self.refused;
        // Nobody knows by which door the next one comes, and HTTP takes more.
        let bytes =
            (count + 1) * each + self.http.codecs_bytes() + CODEC_BYTES + self.transports.bytes();
        count < CONNECTIONS_MIN || bytes <= self.settings.memory_max / CONNECTIONS_SHARE
    }

    /// Whether a newcomer is told that it cannot stay, because there is no memory for it.
    #[must_use]
    pub fn has_no_memory_for_newcomers(&self) -> bool {
        self.memory.is_full && !self.fits_another_connection()
    }

    /// So many newcomers are being told that there is no memory for them that another is not.
    pub(super) fn has_told_enough(&self) -> bool {
        self.refused >= NEWCOMERS_TOLD_MAX
    }

    /// Looks at the sum if much was done since the last time, or if somebody waits for room.
    pub(super) fn watch_memory(&mut self, now: Nanos) {
        if self.settings.memory_max == 0 {
            return;
        }
        if self.have_no_room() {
            self.end_heavy_strangers(now);
        }
        self.memory.work_ns += self.budget.spent();
        let is_quiet = !self.memory.is_full && self.memory.outboxes == Outboxes::Roomy;
        if is_quiet && self.memory.work_ns < LOOK_EVERY_NS {
            return;
        }
        self.look_at_memory(now);
    }

    /// Compares what is in use with the bounds.
    #[inline(never)]
    pub(super) fn look_at_memory(&mut self, now: Nanos) {
        let bound = self.settings.memory_max;
        let bytes = |server: &Self| {
            let set_aside = server.connections_bytes_left() + server.strangers_bytes_left();
            server.memory_bytes() + set_aside
        };
        let mut is_full = is_reached(self.memory.is_full, bytes(self), bound);
        // Nobody is refused for the sake of buffers that nobody uses.
        if is_full && self.pool.free_spares() {
            is_full = is_reached(self.memory.is_full, bytes(self), bound);
        }
        let (outboxes, unread) = (bound / OUTBOXES_SHARE, self.pool.outbox_bytes());
        let crowded = outboxes - outboxes / OUTBOXES_REST_SHARE;
        let memory = &mut self.memory;
        memory.work_ns = 0;
        let was_reached = memory.is_full || memory.outboxes != Outboxes::Roomy;
        memory.outboxes = if is_reached(memory.outboxes == Outboxes::Full, unread, outboxes) {
            Outboxes::Full
        } else if is_reached(memory.outboxes != Outboxes::Roomy, unread, crowded) {
            Outboxes::Crowded
        } else {
            Outboxes::Roomy
        };
        let inboxes = bound / INBOXES_SHARE;
        memory.inboxes_full =
            is_full && is_reached(memory.inboxes_full, self.pool.inbox_bytes(), inboxes);
        memory.unread_max = if memory.outboxes == Outboxes::Roomy {
            OUTBOX_BYTES_MAX
        } else {
            part_of(outboxes, self.conns.len(), UNREAD_BYTES)
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
        if is_full || self.memory.outboxes != Outboxes::Roomy {
            if !was_reached {
                self.memory.sweep_left = self.conns.capacity();
            }
            let backlog_max = part_of(outboxes, self.conns.len(), BACKLOG_BYTES);
            self.sweep_unread(now, backlog_max, unread.saturating_sub(crowded));
        } else {
            self.memory.sweep_left = 0;
        }
        if self.memory.outboxes == Outboxes::Full && !self.memory.sweep_is_due {
            self.memory.sweep_is_due = true;
            self.timers.arm(now.after(UNREAD_MAX), Due::UnreadSweep);
        }
        self.run
            .wake(self.memory.outboxes, !self.memory.inboxes_full);
    }

    /// Has all connections looked at once more.
    pub(super) fn restart_sweep(&mut self) {
        self.memory.sweep_is_due = false;
        if self.memory.outboxes == Outboxes::Full {
            self.memory.sweep_left = self.conns.capacity();
        }
    }

    /// Goes on looking for those that have more than this unread, which are closed as slow
    /// consumers: subscribers in any case; while all outboxes are full others, too, if they have
    /// had it unread for long, until so many bytes have gone with them.
    fn sweep_unread(&mut self, now: Nanos, backlog_max: usize, mut excess: usize) {
        let slots = self.conns.capacity();
        for _ in 0..slots.min(SWEPT_MAX) {
            self.memory.cursor = (self.memory.cursor + 1) % slots;
            let slot = self.memory.cursor;
            let Some(conn) = self.conns.get(slot) else {
                continue;
            };
            let id = conn.id(slot);
            let unread = conn.outbox.len();
            // Whoever was not written to yet may be about to read it all.
            let is_behind = conn.is_blocked && unread > backlog_max;
            if !is_behind && self.held_back.push_bytes_of(id) <= backlog_max {
                continue;
            }
            let is_in_the_way = self.memory.outboxes == Outboxes::Full
                && excess > 0
                && conn.stalled_ns(now) >= UNREAD_MAX.nanos();
            if is_in_the_way || self.engine.has_subscriptions(id) {
                self.mark_overrun(id);
                excess = excess.saturating_sub(unread);
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
