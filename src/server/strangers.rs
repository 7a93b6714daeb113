//! Strangers: connections that have not authenticated, and those that are agreeing on keys.
//!
//! A connection is a stranger until it has shown a token. Where no token is asked for, it is one
//! until its TLS handshake is done. Strangers may take half of the slots and a share of the
//! memory. At either bound, and when descriptors run out, the one that came first makes room: an
//! honest client needs a moment, a silent one keeps its place. Clients that have authenticated
//! never make room.
//!
//! Never looks at a token (`auth.rs`), and does nothing for a connection that has authenticated.

use std::collections::VecDeque;

use super::budget::CLOSES_NS;
use super::conn::{self, Conn, Phase, Transport};
use super::{Server, memory};
use crate::base::{ConnId, Nanos};
use crate::store::Store;

/// Most strangers at one time, if the slots allow as many. One more ends the one that came first.
const STRANGERS_MAX: usize = 4_096;

/// The share of `--max-connections` that strangers may take.
const SLOTS_SHARE: usize = 2;

/// Most strangers ended in one look at the memory.
const ENDED_PER_LOOK_MAX: usize = 64;

/// Length of the list of arrivals below which stale entries are not removed.
const KEPT_MIN: usize = 64;

/// All strangers.
#[derive(Default)]
pub(super) struct Strangers {
    /// In the order they came; some have authenticated or gone since.
    arrived: VecDeque<ConnId>,
    /// How many have not.
    count: usize,
    /// What they keep, together.
    bytes: usize,
    /// How many came since the last turn: none of them has been heard.
    newcomers: usize,
    /// Since the last turn one of them has made room.
    has_made_room: bool,
}

impl Strangers {
    /// What they keep: received bytes, unsent bytes and the state of TLS.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it takes to keep track of them.
    pub(super) fn memory(&self) -> usize {
        self.arrived.capacity() * size_of::<ConnId>()
    }

    /// A turn begins, which hears newcomers as far as its budget goes.
    pub(super) fn begin_turn(&mut self) {
        self.newcomers = 0;
        self.has_made_room = false;
    }

    /// A stranger with this weight has authenticated or gone.
    pub(super) fn note_gone(&mut self, weight: u32) {
        if weight > 0 {
            self.count -= 1;
            self.bytes -= weight as usize;
        }
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// How many strangers there may be at one time.
    fn strangers_max(&self) -> usize {
        match self.settings.connections_max as usize / SLOTS_SHARE {
            _ if self.settings.connections_max == 0 => STRANGERS_MAX,
            slots => slots.clamp(1, STRANGERS_MAX),
        }
    }

    /// Whether another connection may be accepted before the next turn. At a limit it has to
    /// displace a stranger, and waits until the oldest one has been heard.
    #[must_use]
    pub fn takes_newcomers(&mut self) -> bool {
        let slots = self.settings.connections_max as usize;
        let is_full = slots != 0 && self.conns.len() >= slots;
        let is_full = is_full || self.strangers.count >= self.strangers_max();
        let may_displace = self.budget.spent_after() < CLOSES_NS;
        !is_full || self.strangers.count == 0 || (may_displace && self.has_heard_oldest_stranger())
    }

    /// Whether some connections have not authenticated.
    #[must_use]
    pub fn has_strangers(&self) -> bool {
        self.strangers.count > 0
    }

    /// Whether a stranger has made room for a newcomer since the last turn.
    #[must_use]
    pub fn has_displaced_strangers(&self) -> bool {
        self.strangers.has_made_room
    }

    /// Whether the oldest stranger came before the last turn, and its turn in the run queue is over.
    /// One that waits for room in a buffer counts as heard: it may wait as long as it likes.
    fn has_heard_oldest_stranger(&mut self) -> bool {
        let Self {
            conns, strangers, ..
        } = self;
        while let Some(&id) = strangers.arrived.front() {
            match conn::find(conns, id).filter(|it| it.is_stranger()) {
                Some(oldest) => {
                    let is_in_turn = oldest.queued && !oldest.flow.waits_for_room();
                    return strangers.count > strangers.newcomers && !is_in_turn;
                }
                None => strangers.arrived.pop_front(),
            };
        }
        false
    }

    /// Makes room for a newcomer at the limits of connections and strangers. Returns false if
    /// authenticated clients have all slots.
    pub(super) fn make_slot(&mut self, now: Nanos, is_stranger: bool) -> bool {
        let connections_max = self.settings.connections_max as usize;
        if connections_max != 0 && self.conns.len() >= connections_max {
            return self.end_first_stranger(now);
        }
        if is_stranger && self.strangers.count >= self.strangers_max() {
            self.end_first_stranger(now);
        }
        true
    }

    /// Frees a descriptor or memory for a newcomer. Returns false if no stranger may be displaced.
    pub fn make_room(&mut self, now: Nanos) -> bool {
        self.has_heard_oldest_stranger() && self.end_first_stranger(now)
    }

    /// Ends the oldest stranger and closes its socket now: the newcomer may need the descriptor.
    fn end_first_stranger(&mut self, now: Nanos) -> bool {
        let is_ended = self.end_stranger(now);
        if is_ended {
            self.strangers.has_made_room = true;
            let closed_ns = self.ended.pop_back().map_or(0, |ended| ended.close_ns());
            self.budget.charge_displaced(closed_ns);
        }
        is_ended
    }

    /// Ends the oldest stranger; returns false if there is none.
    fn end_stranger(&mut self, now: Nanos) -> bool {
        while let Some(id) = self.strangers.arrived.pop_front() {
            let Some(conn) = conn::find(&mut self.conns, id).filter(|it| it.is_stranger()) else {
                continue;
            };
            self.handshakes.note_late(conn.transport.is_in_handshake());
            let why = "it has not authenticated, and other connections need its place";
            self.complaints.tell(now, &conn.transport.peer(), why);
            self.close(now, id, "made room for another connection");
            return true;
        }
        false
    }

    /// Ends strangers until the others keep no more than their share. One alone may have more. If
    /// there are many to end, later looks end the rest.
    pub(super) fn end_heavy_strangers(&mut self, now: Nanos) {
        let bytes_max = self.settings.memory_max / memory::STRANGERS_SHARE;
        let mut ends_left = ENDED_PER_LOOK_MAX;
        while self.strangers.bytes > bytes_max && self.strangers.count > 1 && ends_left > 0 {
            self.end_stranger(now);
            ends_left -= 1;
        }
    }

    /// A connection has come that is a stranger.
    pub(super) fn note_stranger(&mut self, id: ConnId) {
        let Self {
            conns, strangers, ..
        } = self;
        strangers.count += 1;
        strangers.newcomers += 1;
        strangers.arrived.push_back(id);
        if strangers.arrived.len() > 2 * strangers.count + KEPT_MIN {
            let mut is_stranger = |id| conn::find(conns, id).is_some_and(|conn| conn.is_stranger());
            strangers.arrived.retain(|&id| is_stranger(id));
        }
        if let Some(conn) = conn::find(conns, id) {
            conn.weight = 1;
            strangers.bytes += 1;
        }
        self.weigh_stranger(id);
    }

    /// What the connection keeps may have changed: counts it again, if it is a stranger.
    pub(super) fn weigh_stranger(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id)
            && conn.is_stranger()
        {
            let weight = conn.kept_bytes();
            self.strangers.bytes = self.strangers.bytes - conn.weight as usize + weight as usize;
            conn.weight = weight;
        }
    }

    /// The connection has shown a token or agreed on keys. If nothing else is asked for, it is no
    /// stranger.
    pub(super) fn note_known(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id)
            && conn.phase != Phase::Unauthenticated
            && !conn.transport.is_in_handshake()
        {
            self.strangers.note_gone(std::mem::take(&mut conn.weight));
        }
    }
}

impl<T: Transport> Conn<T> {
    /// Not authenticated, or still agreeing on keys. A refused connection remains a stranger.
    pub(super) fn is_stranger(&self) -> bool {
        self.weight > 0
    }

    /// What it keeps, at least one byte.
    fn kept_bytes(&self) -> u32 {
        let boxes = self.inbox.capacity() + self.outbox.capacity();
        let bytes = u32::try_from(boxes + self.transport.memory());
        bytes.unwrap_or(u32::MAX).max(1)
    }
}
