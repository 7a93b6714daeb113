//! Strangers: connections that have not authenticated, and those that are agreeing on keys.
//!
//! A connection is a stranger until it has shown a token. Where no token is asked for, it is one
//! until its TLS handshake is done. Strangers may take half of the slots and a share of the
//! memory. At either bound, and when descriptors run out, the one that came first makes room: an
//! honest client needs a moment, a silent one keeps its place. Newcomers wait in the kernel's
//! backlog until that moment is over. Clients that have authenticated never make room.
//!
//! Never looks at a token (`auth.rs`), and does nothing for a connection that has authenticated.

use std::collections::VecDeque;

use super::Server;
use super::budget::CLOSES_NS;
use super::conn::{self, Conn, Phase, Transport};
use super::http::CODEC_BYTES;
use super::memory::{LISTED_BYTES, STRANGERS_SHARE};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::Engine;
use crate::store::Store;
use crate::wire::codec::Codec;

/// Most strangers at one time, if the slots allow as many. One more ends the one that came first.
const STRANGERS_MAX: usize = 4_096;

/// The share of `--max-connections` that strangers may take.
const SLOTS_SHARE: usize = 2;

/// Age below which a stranger does not make room for a newcomer: enough for a client that pauses
/// before `auth`, because its network, its scheduler or a TLS handshake takes time.
const UNDISTURBED_MAX: Millis = Millis(25);

/// The same for each stranger. A few strangers go sooner, so that a flood never keeps newcomers
/// waiting longer than 4,000 a second come in.
const UNDISTURBED_NS_EACH: u64 = 250_000;

/// What a connection takes in lists and in the engine.
const CONN_BYTES: usize = LISTED_BYTES + Engine::CONNECTION_BYTES;

/// Length of the list of arrivals below which stale entries are not removed.
const KEPT_MIN: usize = 64;

/// All strangers.
#[derive(Default)]
pub(super) struct Strangers {
    /// In the order they came, with that time; some have authenticated or gone since.
    arrived: VecDeque<(ConnId, Nanos)>,
    /// How many have not.
    count: usize,
    /// What they keep, together.
    bytes: usize,
}

impl Strangers {
    /// What they keep, with what every connection takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it takes to keep track of them.
    pub(super) fn memory(&self) -> usize {
        self.arrived.capacity() * size_of::<(ConnId, Nanos)>()
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
    /// What a stranger keeps with the longest request it may send. Only a TLS session, or answers
    /// that it does not read, make it heavier.
    fn stranger_bytes(&self) -> usize {
        CONN_BYTES + CODEC_BYTES + size_of::<Conn<T>>() + self.passes.stranger_bytes_max()
    }

    /// Most bytes that all strangers may keep together.
    fn strangers_bytes_max(&self) -> usize {
        match self.settings.memory_max {
            0 => usize::MAX,
            bytes => bytes / STRANGERS_SHARE,
        }
    }

    /// Whether another stranger would be one too many, or too much for their share of the memory.
    fn has_enough_strangers(&self) -> bool {
        let slots = match self.settings.connections_max as usize {
            0 => STRANGERS_MAX,
            slots => slots / SLOTS_SHARE,
        };
        let (each, bytes_max) = (self.stranger_bytes(), self.strangers_bytes_max());
        let count_max = slots.min(bytes_max / each).clamp(1, STRANGERS_MAX);
        self.strangers.count >= count_max || self.have_no_room()
    }

    /// From when on another connection may be accepted, which is no later than `now` if it may be
    /// now. At a limit it displaces a stranger and waits until one may be displaced; without
    /// strangers it is accepted and refused.
    pub fn accepts_from(&mut self, now: Nanos) -> Nanos {
        let slots = self.settings.connections_max as usize;
        let is_full = (slots != 0 && self.conns.len() >= slots)
            || self.has_enough_strangers()
            || self.has_no_memory_for_newcomers();
        let room_at = is_full.then(|| self.next_room(now)).flatten();
        room_at.unwrap_or(now)
    }

    /// From when on the oldest stranger may make room: it is not young, and its turn in the run
    /// queue is over. One that waits for room in a buffer may wait as long as it likes.
    fn next_room(&mut self, now: Nanos) -> Option<Nanos> {
        let Self {
            conns, strangers, ..
        } = self;
        while let Some(&(id, came)) = strangers.arrived.front() {
            let Some(oldest) = conn::find(conns, id).filter(|it| it.is_stranger()) else {
                strangers.arrived.pop_front();
                continue;
            };
            let is_in_turn = oldest.queued && !oldest.flow.waits_for_room();
            let next_turn = is_in_turn || self.budget.spent_after() >= CLOSES_NS;
            let each_ns = strangers.count as u64 * UNDISTURBED_NS_EACH;
            let room_at = Nanos(came.0 + UNDISTURBED_MAX.nanos().min(each_ns));
            return Some(room_at.max(Nanos(now.0 + u64::from(next_turn))));
        }
        None
    }

    /// Makes room for a newcomer at the limits of connections, strangers and memory. Returns false
    /// if authenticated clients have all slots.
    pub(super) fn make_slot(&mut self, now: Nanos, is_stranger: bool) -> bool {
        let connections_max = self.settings.connections_max as usize;
        let is_full = connections_max != 0 && self.conns.len() >= connections_max;
        if is_full && !self.end_first_stranger(now) {
            return false;
        }
        if is_stranger && self.has_enough_strangers() {
            self.end_first_stranger(now);
        }
        while self.has_no_memory_for_newcomers() && self.end_first_stranger(now) {}
        true
    }

    /// Frees a descriptor for a newcomer, if a stranger may be displaced now. Returns from when on
    /// one may be, or `None` without strangers.
    pub fn make_room(&mut self, now: Nanos) -> Option<Nanos> {
        let room_at = self.next_room(now)?;
        if room_at <= now {
            self.end_first_stranger(now);
        }
        Some(room_at)
    }

    /// Ends the oldest stranger and closes its socket now: the newcomer may need the descriptor.
    fn end_first_stranger(&mut self, now: Nanos) -> bool {
        let is_ended = self.end_stranger(now);
        if is_ended {
            let closed_ns = self.ended.pop_back().map_or(0, |ended| ended.close_ns());
            self.budget.charge_displaced(closed_ns);
        }
        is_ended
    }

    /// Ends the oldest stranger; returns false if there is none.
    fn end_stranger(&mut self, now: Nanos) -> bool {
        while let Some((id, _)) = self.strangers.arrived.pop_front() {
            if self.end_if_stranger(now, id) {
                return true;
            }
        }
        false
    }

    fn end_if_stranger(&mut self, now: Nanos, id: ConnId) -> bool {
        let Some(conn) = conn::find(&mut self.conns, id).filter(|it| it.is_stranger()) else {
            return false;
        };
        self.handshakes.note_late(conn.transport.is_in_handshake());
        let why = "it has not authenticated, and other connections need its place";
        self.complaints.tell(now, &conn.transport.peer(), why);
        self.close(now, id, "made room for another connection");
        true
    }

    /// Ends strangers until the others keep no more than their share. One alone may have more.
    /// Strangers with unread answers go first, as soon as the share has no room for another
    /// stranger. Otherwise the next newcomer would displace the oldest one.
    pub(super) fn end_heavy_strangers(&mut self, now: Nanos) {
        let light_max = self.stranger_bytes();
        let conns = &mut self.conns;
        let arrived = self.strangers.arrived.iter().map(|it| it.0);
        self.budget.charge_strangers(self.strangers.arrived.len());
        let is_heavy = |id: &ConnId| {
            conn::find(conns, *id).is_some_and(|conn| {
                let session = conn.transport.memory();
                conn.weight as usize > light_max + session
            })
        };
        let heavy: Vec<ConnId> = arrived.filter(is_heavy).collect();
        for id in heavy {
            if !self.have_no_room() {
                return;
            }
            self.end_if_stranger(now, id);
        }
        while self.are_too_heavy() && self.end_stranger(now) {}
    }

    /// Whether strangers keep so much that their share has no room for another one.
    pub(super) fn have_no_room(&self) -> bool {
        let bytes_max = self.strangers_bytes_max();
        self.strangers.count > 1 && self.strangers.bytes + self.stranger_bytes() > bytes_max
    }

    fn are_too_heavy(&self) -> bool {
        self.strangers.count > 1 && self.strangers.bytes > self.strangers_bytes_max()
    }

    /// A connection has come that is a stranger.
    pub(super) fn note_stranger(&mut self, now: Nanos, id: ConnId) {
        let Self {
            conns, strangers, ..
        } = self;
        strangers.count += 1;
        strangers.bytes += 1;
        if let Some(conn) = conn::find(conns, id) {
            conn.weight = 1;
        }
        strangers.arrived.push_back((id, now));
        if strangers.arrived.len() > 2 * strangers.count + KEPT_MIN {
            let mut is_stranger = |id| conn::find(conns, id).is_some_and(|conn| conn.is_stranger());
            strangers.arrived.retain(|&(id, _)| is_stranger(id));
        }
        self.weigh_stranger(id);
    }

    /// What the connection keeps may have changed: counts it again, if it is a stranger.
    #[inline]
    pub(super) fn weigh_stranger(&mut self, id: ConnId) {
        if self.strangers.count > 0 {
            self.weigh_again(id);
        }
    }

    #[inline(never)]
    fn weigh_again(&mut self, id: ConnId) {
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
    /// Not authenticated, or still agreeing on keys, and not refused when it came.
    pub(super) fn is_stranger(&self) -> bool {
        self.weight > 0
    }

    /// What it keeps, with what every connection takes.
    fn kept_bytes(&self) -> u32 {
        let boxes = self.inbox.capacity() + self.outbox.capacity();
        let memo = match &self.codec {
            Codec::Line(_) => 0,
            Codec::Http(codec) => CODEC_BYTES + codec.memo.heap_bytes(),
        };
        let bytes = CONN_BYTES + size_of::<Self>() + boxes + memo + self.transport.memory();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}
