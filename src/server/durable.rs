//! Remembered before spoken: bytes that speak of a change wait until the change is on disk.
//!
//! The engine numbers its records and says with every answer and push which record it must not be
//! ahead of: the last one of the key it speaks of. Here is written down from which position of a
//! connection's stream on bytes wait, and for which record; the gate lets out what stands before. So
//! a client whose answer waits for the disk holds back only its own later answers. Without a data
//! directory nothing of this happens.

use std::collections::VecDeque;

use super::Server;
use super::budget::Kind;
use super::conn::{self, Flow, Owed, Transport};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;
use crate::store::Store;

/// Room kept for waits that are still to come; what a burst has left beyond it is freed.
const WAITS_KEPT_MAX: usize = 64;

/// Which bytes wait for the disk.
#[derive(Default)]
pub(super) struct HeldBack {
    /// By the slot of a connection.
    streams: Vec<Stream>,
    /// Connections that may go on when the disk has got on.
    waiting: VecDeque<ConnId>,
    /// Everything up to this record may be spoken of.
    durable: u64,
    /// The store has no room for anything that grows.
    is_full: bool,
    /// For how many waits there is room in all streams together.
    waits_room: usize,
}

/// One connection's stream.
#[derive(Default)]
struct Stream {
    waits: VecDeque<Wait>,
    /// How many bytes of pushes wait, about.
    push_bytes: usize,
    /// It is in the list of those that wait.
    is_listed: bool,
    /// The engine knows that the disk keeps requests of this peer waiting.
    is_stalled: bool,
    /// The engine knows that a request waits for whose sake these are kept.
    stalled_for: Option<(Kept, Box<str>)>,
}

/// For whose sake something is kept while a request waits for the disk: nobody else is known by a
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The leases of an owner that has only a name.
    Owner,
    /// A client that may have no connection of its own.
    Client,
}

/// From this position on, bytes wait for this record. Positions and records both grow.
struct Wait {
    position: u64,
    record: u64,
}

impl HeldBack {
    /// What stands from this position on speaks of nothing later than `record`.
    #[inline]
    pub(super) fn mark(&mut self, id: ConnId, position: u64, record: u64) {
        if record > self.durable {
            self.wait(id, position, record);
        }
    }

    /// Makes sure that the connection has a stream.
    fn stream(&mut self, id: ConnId) -> &mut Stream {
        let slot = id.slot as usize;
        if self.streams.len() <= slot {
            self.streams.resize_with(slot + 1, Stream::default);
        }
        &mut self.streams[slot]
    }

    fn wait(&mut self, id: ConnId, position: u64, record: u64) {
        self.stream(id);
        let waits = &mut self.streams[id.slot as usize].waits;
        // What stands behind bytes that wait for a later record waits for that one anyway.
        if waits.back().is_none_or(|last| last.record < record) {
            self.waits_room -= waits.capacity();
            waits.push_back(Wait { position, record });
            self.waits_room += waits.capacity();
        }
    }

    /// The position up to which the connection may be sent to.
    #[inline]
    pub(super) fn limit(&mut self, id: ConnId) -> u64 {
        let durable = self.durable;
        let Some(Stream { waits, .. }) = self.streams.get_mut(id.slot as usize) else {
            return u64::MAX;
        };
        while waits.pop_front_if(|it| it.record <= durable).is_some() {}
        if waits.is_empty() && waits.capacity() > WAITS_KEPT_MAX {
            self.waits_room -= waits.capacity();
            *waits = VecDeque::new();
        }
        waits.front().map_or(u64::MAX, |wait| wait.position)
    }

    /// Whether something that the connection is owed waits.
    pub(super) fn holds_back(&mut self, id: ConnId) -> bool {
        self.limit(id) != u64::MAX
    }

    /// A push of so many bytes stands at the end of the stream.
    #[inline]
    pub(super) fn note_pushed(&mut self, id: ConnId, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(id.slot as usize)
            && !stream.waits.is_empty()
        {
            stream.push_bytes += bytes;
        }
    }

    /// The connection has been sent to, and no more than this is left that waits.
    pub(super) fn note_left(&mut self, id: ConnId, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(id.slot as usize) {
            stream.push_bytes = stream.push_bytes.min(bytes);
        }
    }

    /// What the engine knows: whether the disk keeps requests of the connection waiting.
    fn is_stalled(&self, id: ConnId) -> bool {
        let stream = self.streams.get(id.slot as usize);
        stream.is_some_and(|it| it.is_stalled)
    }

    fn set_stalled(&mut self, id: ConnId, is_stalled: bool) {
        self.stream(id).is_stalled = is_stalled;
    }

    /// What the engine knows: for whom the next request of this connection waits for the disk.
    fn stalled_for(&self, id: ConnId) -> Option<(Kept, &str)> {
        let stream = self.streams.get(id.slot as usize)?;
        stream.stalled_for.as_ref().map(|(kept, id)| (*kept, &**id))
    }

    /// How many bytes of pushes to this connection wait.
    pub(super) fn push_bytes_of(&self, id: ConnId) -> usize {
        let stream = self.streams.get(id.slot as usize);
        stream.map_or(0, |it| it.push_bytes)
    }

    /// Everything up to this record may be spoken of.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// The store has no room for anything that grows.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// The connection has been sent all that it may be sent for now.
    pub(super) fn list(&mut self, id: ConnId) {
        let stream = &mut self.streams[id.slot as usize];
        if !stream.is_listed {
            stream.is_listed = true;
            self.waiting.push_back(id);
        }
    }

    /// The connection is gone; its slot goes to somebody else.
    #[inline]
    pub(super) fn forget(&mut self, id: ConnId) {
        if let Some(stream) = self.streams.get_mut(id.slot as usize) {
            self.waits_room -= stream.waits.capacity();
            *stream = Stream::default();
        }
    }

    /// How much memory it takes to know what waits; the bytes that wait are in outboxes.
    pub(super) fn memory(&self) -> usize {
        self.streams.capacity() * size_of::<Stream>() + self.waits_room * size_of::<Wait>()
    }

    fn next(&mut self) -> Option<ConnId> {
        let id = self.waiting.pop_front()?;
        self.streams[id.slot as usize].is_listed = false;
        Some(id)
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Hands the engine's records to the store, in the order of the decisions.
    #[inline]
    pub(super) fn keep_records(&mut self, now: Nanos) {
        if self.store.is_durable() {
            for record in self.engine.take_records() {
                self.store.append(now, &record);
            }
        }
    }

    /// What has gathered may be written.
    #[inline]
    pub(super) fn commit(&mut self, now: Nanos) {
        if self.store.is_durable() {
            self.keep_records(now);
            self.store.commit(now);
        }
    }

    /// Asks the store what has become of the records: whoever waited for them is sent to.
    pub(super) fn hear_store(&mut self, now: Nanos) {
        if !self.store.is_durable() {
            return;
        }
        let progress = self.store.progress();
        if progress.failed.is_some() {
            self.failure = progress.failed;
            return;
        }
        if self.held_back.is_full != progress.is_full {
            self.held_back.is_full = progress.is_full;
            let input = Input::StorageFull(progress.is_full);
            self.engine.apply(now, input, &mut self.effects);
        }
        if progress.durable > self.held_back.durable {
            self.held_back.durable = progress.durable;
            let input = Input::Durable(progress.durable);
            self.engine.apply(now, input, &mut self.effects);
            self.charge_engine(Kind::Expire);
            // Those that still wait for a later record come back into the list.
            for _ in 0..self.held_back.waiting.len() {
                let Some(id) = self.held_back.next() else {
                    break;
                };
                if let Some(conn) = conn::find(&mut self.conns, id) {
                    if !conn.codec.is_mid_request() {
                        conn.line_started = now; // its time to ask on begins when it is answered
                    }
                    conn.note_may_leave(now);
                    self.owe(id, Owed::Answer);
                }
            }
        }
        // Where there is no room they are refused, and do not wait for it.
        if !self.store.is_behind() || self.held_back.is_full {
            self.run.wake_writers();
        }
    }

    /// Tells the engine when the disk keeps requests of a connection waiting, be it that they would
    /// change something or that there is no room for answers behind those that wait, and when all of
    /// them have been served.
    #[inline]
    pub(super) fn note_stalled(&mut self, id: ConnId) {
        if self.store.is_durable() {
            self.look_if_stalled(id);
        }
    }

    fn look_if_stalled(&mut self, id: ConnId) {
        let unread_max = self.memory.unread_max;
        let Some(conn) = conn::find(&mut self.conns, id).filter(|it| !it.is_leaving()) else {
            return;
        };
        let is_held_up = conn.must_read(unread_max) || conn.flow.waits_for_room();
        let is_held_back = is_held_up && self.held_back.holds_back(id);
        if is_held_back {
            self.held_back.list(id); // so that it is looked at again when the disk has got on
        }
        let is_stalled = conn.flow == Flow::AwaitsStore
            || is_held_back
            || self.held_back.is_stalled(id) && conn.has_more(unread_max);
        if self.held_back.is_stalled(id) != is_stalled {
            self.held_back.set_stalled(id, is_stalled);
            let input = Input::Stalled(id, is_stalled);
            self.engine.apply(self.clock_read, input, &mut self.effects);
        }
    }

    /// Tells the engine that the next request of the connection is a renewal of this owner, or one for this
    /// client, and waits for the disk; or that it does not wait any more.
    pub(super) fn note_stalled_for(&mut self, now: Nanos, id: ConnId, of: Option<(Kept, &str)>) {
        if self.held_back.stalled_for(id) == of {
            return;
        }
        let stalled = &mut self.held_back.stream(id).stalled_for;
        let before = std::mem::replace(stalled, of.map(|(kept, name)| (kept, name.into())));
        let before = before.as_ref().map(|(kept, name)| (*kept, &**name));
        for (of, is_stalled) in [(before, false), (of, true)] {
            let input = match of {
                Some((Kept::Owner, name)) => Input::OwnerStalled(name, is_stalled),
                Some((Kept::Client, client)) => Input::ClientStalled(client, is_stalled),
                None => continue,
            };
            self.engine.apply(now, input, &mut self.effects);
        }
    }

    /// Why nothing more may be said, if so: the store has failed, and the process has to end.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The store, when the server has come to its end.
    #[must_use]
    pub fn into_store(mut self) -> S {
        if self.engine.is_in_doubt() {
            self.store.stay_in_doubt();
        }
        self.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnId = ConnId { slot: 2, serial: 7 };

    #[test]
    fn bytes_wait_from_where_they_speak_of_a_change_until_it_is_on_disk() {
        let mut held = HeldBack::default();
        assert_eq!(held.limit(ID), u64::MAX);
        held.mark(ID, 10, 3);
        held.mark(ID, 20, 2); // stands behind what waits for 3 anyway
        held.mark(ID, 30, 5);
        assert_eq!(held.limit(ID), 10);
        held.durable = 3;
        assert_eq!(held.limit(ID), 30);
        held.mark(ID, 40, 3);
        assert_eq!(held.limit(ID), 30);
        held.durable = 5;
        assert_eq!(held.limit(ID), u64::MAX);
    }

    #[test]
    fn pushes_count_while_they_wait_and_no_longer() {
        let mut held = HeldBack::default();
        held.note_pushed(ID, 100);
        assert_eq!(held.push_bytes_of(ID), 0, "nothing waits");
        held.mark(ID, 10, 3);
        held.note_pushed(ID, 100);
        held.note_pushed(ID, 100);
        assert_eq!(held.push_bytes_of(ID), 200);
        // Something else waits behind them, and only that is left.
        held.mark(ID, 210, 4);
        held.note_left(ID, 30);
        assert_eq!(held.push_bytes_of(ID), 30);
        held.note_pushed(ID, 100);
        held.forget(ID);
        assert_eq!(held.push_bytes_of(ID), 0);
    }

    #[test]
    fn what_is_known_of_waits_counts_until_it_is_forgotten() {
        let mut held = HeldBack::default();
        let before = held.memory();
        (1..=1000).for_each(|record| held.mark(ID, record, record));
        assert!(held.memory() >= before + 1000 * size_of::<Wait>());
        held.durable = 1000;
        assert_eq!(held.limit(ID), u64::MAX);
        assert_eq!(held.waits_room, 0);
        held.mark(ID, 1, 1001);
        held.forget(ID);
        assert_eq!(held.waits_room, 0);
    }

    #[test]
    fn a_slot_that_goes_to_somebody_else_holds_nothing_back() {
        let mut held = HeldBack::default();
        held.mark(ID, 10, 3);
        held.forget(ID);
        assert_eq!(held.limit(ConnId { serial: 8, ..ID }), u64::MAX);
    }

    #[test]
    fn a_connection_is_listed_once_however_often_it_is_held_back() {
        let mut held = HeldBack::default();
        held.mark(ID, 10, 3);
        held.list(ID);
        held.list(ID);
        assert_eq!((held.next(), held.next()), (Some(ID), None));
    }
}
