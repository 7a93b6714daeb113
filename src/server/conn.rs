//! One connection: its transport, its two boxes, and how far it has got.
//!
//! Moves bytes between a transport and the boxes and knows when its peer is too slow. Never looks
//! inside a request and never touches the lock table; that is `server::Server`'s.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;

use slab::Slab;

use super::auth::PassNumber;
use super::closing::{CLOSING_MAX, Closing};
use super::identity::{self, Identity};
use super::memory::UnsentPop;
use super::{Host, Settings, handshakes, http};
use crate::base::{ConnId, Millis, Nanos};
use crate::timers::TimerId;
use crate::wire::buf::{Inbox, Pool};
use crate::wire::codec::Codec;
use crate::wire::outbox::{Marks, Outbox};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A client that has so many popped values unread is served nothing further: if it leaves, all of
/// them go back in one piece.
const UNSENT_POPS_MAX: usize = 1024;

/// Bytes both ways, without waiting. Sockets in the daemon, pipes in the simulator.
pub trait Transport {
    /// As `io::Read::read` on a non-blocking socket: `Ok(0)` is the end, `WouldBlock` is empty.
    ///
    /// # Errors
    /// Whatever the socket says; anything but `WouldBlock` and `Interrupted` ends the connection.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// As `io::Write::write` on a non-blocking socket: `WouldBlock` is full.
    ///
    /// # Errors
    /// Whatever the socket says; anything but `WouldBlock` and `Interrupted` ends the connection.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Says that nothing more will be written.
    fn shutdown_write(&mut self);

    /// Who is at the other end, for the log.
    fn peer(&self) -> String;

    /// The same, as `who` and `stats` show it.
    fn address(&self) -> String {
        self.peer()
    }

    /// The host it comes from: wrong secrets are counted for each.
    fn host(&self) -> Host {
        Host::Unknown
    }

    /// Identity of the peer beyond this connection.
    fn identity(&self) -> Identity {
        identity::of_host(self.host())
    }

    // ---- what only a transport does that encrypts ----

    /// Whether what passes is encrypted.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Whether nothing can be said or heard before both sides have agreed on keys.
    fn is_in_handshake(&self) -> bool {
        false
    }

    /// What it has done besides moving bytes since it was last asked, and what the last read left.
    fn upkeep(&mut self) -> Upkeep {
        Upkeep::default()
    }

    /// Memory in use besides the socket, in bytes.
    fn memory(&self) -> usize {
        0
    }

    /// About how many bytes it has to send that are not in what was written; 0 if there are none.
    fn unsent(&self) -> usize {
        0
    }

    /// Sends those, as far as the socket takes them.
    ///
    /// # Errors
    /// As of [`Transport::write`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a transport has done besides moving bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// What it took, in nanoseconds of an ordinary machine.
    pub work_ns: u64,
    /// There may be more to read, though the last read did not return all it was asked for.
    pub has_more: bool,
    /// The handshake has just ended, like this.
    pub handshake: Option<Handshake>,
}

/// How a handshake ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Both sides have agreed on keys.
    Done,
    /// They have not, and will not.
    Failed,
}

/// What all transports of a server keep besides sockets, together. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct TransportMemory(Rc<Cell<usize>>);

impl TransportMemory {
    /// What was counted as so many bytes is so many now.
    pub fn recount(&self, counted: usize, now: usize) {
        self.0.set(self.0.get() - counted + now);
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.get()
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A secret is required and has not been shown.
    Unauthenticated,
    /// Served.
    Open,
    /// Served, as far as what it was let in with allows.
    Limited(PassNumber),
    /// Served no longer; the engine has forgotten it.
    Leaving {
        closing: Closing,
        until: Nanos,
        discard_bytes_left: u32,
    },
}

/// How far a connection's requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next request may be served.
    Open,
    /// A request is with the engine and has no answer yet.
    Parked,
    /// Whole requests were left in the inbox on purpose, for when it is its turn again.
    Yielded,
    /// A wrong secret was shown, and its refusal is delayed: see `guesses.rs`.
    AwaitsRefusal,
    /// The answer to its next request may be long, and all outboxes together are full.
    AwaitsOutboxes,
    /// The same, and they are crowded, and its own is not empty.
    AwaitsOwnOutbox,
    /// It is in the middle of a long request, memory is full, and so are all inboxes together.
    AwaitsInboxes,
    /// It wants to signal, and sending is behind with the signals before.
    AwaitsPushes,
    /// It wants to change something, and the disk is behind with the changes before.
    AwaitsStore,
}

impl Flow {
    /// Whoever hangs up meanwhile waits no longer, and its request is dropped. What waits for the disk
    /// is answered when that has got on.
    pub(super) fn ends_with_a_hang_up(self) -> bool {
        self.waits_for_room() && self != Self::AwaitsStore
    }

    /// It goes on when the server has memory again, or time to send, and not before.
    pub(super) fn waits_for_room(self) -> bool {
        matches!(
            self,
            Self::AwaitsOutboxes
                | Self::AwaitsOwnOutbox
                | Self::AwaitsInboxes
                | Self::AwaitsPushes
                | Self::AwaitsStore
        )
    }
}

/// Whether a connection is to be flushed, and how soon. What is said later counts for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owed {
    /// It is in no list of the gate.
    Nothing,
    /// It is owed much.
    Bulk,
    /// It is owed what it did not ask for just now, or what it did not take before.
    Push,
    /// It is owed an answer to what it asked in this turn, or may come to its end.
    Answer,
    /// It is owed the answer it was parked for.
    Awaited,
}

/// A peer that has not taken all of what it was owed at some time.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// When that was.
    since: Nanos,
    /// How much of that it still has to take. A trickle does not buy more time, only all of it
    /// does.
    bytes: NonZeroUsize,
}

/// What became of an attempt to send.
#[derive(Debug)]
pub(super) enum Flushed {
    /// Nothing is owed any more.
    All,
    /// The peer takes no more for now.
    Blocked,
    /// It may take more, but this was enough for one time.
    Later,
    /// It was sent all that may be said before the disk has got on.
    HeldBack,
    /// More was granted than the clock has numbers for.
    TooEarly,
    Broken(io::Error),
}

/// How a connection was received, and whether a shutdown waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is served, and a shutdown waits for it to finish.
    Awaited,
    /// It came during a shutdown: it is served, and the shutdown does not wait for it.
    Late,
    /// There was no memory for it, and it is told so.
    Refused,
}

pub(super) struct Conn<T> {
    pub(super) transport: T,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) codec: Codec,
    pub(super) serial: u32,
    /// When it was accepted, in seconds: four bytes of each connection are enough for that.
    accepted_s: u32,
    pub(super) timer: TimerId,
    pub(super) phase: Phase,
    /// When the line now being received could first have begun.
    pub(super) line_started: Nanos,
    stall: Option<Stall>,
    pub(super) flow: Flow,
    /// The socket may hold bytes that were not read: readiness is told only once.
    pub(super) readable: bool,
    /// The peer will send no more than what is already on its way.
    pub(super) hung_up: bool,
    /// In which list of the gate it is.
    pub(super) owed: Owed,
    /// In the run queue.
    pub(super) queued: bool,
    pub(super) arrival: Arrival,
    /// What it counts among the strangers, in bytes; 0 if it is none: see `strangers.rs`.
    pub(super) weight: u32,
    /// The peer did not take all when it was last written to.
    pub(super) is_blocked: bool,
    /// In the list of those to whom it was too early to say anything.
    pub(super) awaits_clock: bool,
    /// About how many bytes of pushes are to be sent to it, as soon as sending gets to it.
    pub(super) unsent_push_bytes: u32,
    /// The reactor listens for room to write.
    pub(super) watches_write: bool,
    /// The engine knows that this peer has too much unread to be told any more.
    pub(super) overrun: bool,
    /// It is to be closed, because it does not read what it is told.
    pub(super) is_condemned: bool,
    /// Values popped for this peer, each until the answer that tells it has been sent.
    pub(super) unsent_pops: Marks<UnsentPop>,
}

/// The connection, unless its slot has gone to somebody else.
pub(super) fn find<T>(conns: &mut Slab<Conn<T>>, id: ConnId) -> Option<&mut Conn<T>> {
    conns
        .get_mut(id.slot as usize)
        .filter(|conn| conn.serial == id.serial)
}

impl<T: Transport> Conn<T> {
    pub(super) fn new(
        transport: T,
        codec: Codec,
        serial: u32,
        timer: TimerId,
        phase: Phase,
        now: Nanos,
    ) -> Self {
        Self {
            transport,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            codec,
            serial,
            accepted_s: (now.0 / NANOS_PER_SECOND) as u32,
            timer,
            phase,
            line_started: now,
            stall: None,
            flow: Flow::Open,
            readable: false,
            hung_up: false,
            owed: Owed::Nothing,
            queued: false,
            arrival: Arrival::Awaited,
            weight: 0,
            is_blocked: false,
            awaits_clock: false,
            unsent_push_bytes: 0,
            watches_write: false,
            overrun: false,
            is_condemned: false,
            unsent_pops: Marks::default(),
        }
    }

    /// What it is called, in this slot.
    pub(super) fn id(&self, slot: usize) -> ConnId {
        ConnId {
            slot: slot as u32,
            serial: self.serial,
        }
    }

    /// For how many whole seconds it has been there.
    pub(super) fn age_s(&self, now: Nanos) -> u64 {
        (now.0 / NANOS_PER_SECOND).saturating_sub(self.accepted_s.into())
    }

    /// It has shown a token, or need not.
    pub(super) fn is_let_in(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Limited(_))
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }

    /// It was cut off and has sent so much since that nobody reads the rest.
    pub(super) fn is_left_unread(&self) -> bool {
        matches!(
            self.phase,
            Phase::Leaving {
                discard_bytes_left: 0,
                ..
            }
        )
    }

    /// It is closed as soon as its peer has taken what it is owed.
    pub(super) fn is_flushed_last(&self) -> bool {
        matches!(
            self.phase,
            Phase::Leaving {
                closing: Closing::Flush,
                ..
            }
        )
    }

    pub(super) fn is_parked(&self) -> bool {
        self.flow == Flow::Parked
    }

    pub(super) fn awaits_refusal(&self) -> bool {
        self.flow == Flow::AwaitsRefusal
    }

    /// Its next request, or the answer to the last one, waits for another connection, or for room.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_parked() || self.flow.ends_with_a_hang_up()
    }

    /// Unserved input is kept. A connection that leaves or is being refused keeps none.
    pub(super) fn is_heard(&self) -> bool {
        let is_turned_away = self.awaits_refusal() && self.phase == Phase::Unauthenticated;
        !self.is_leaving() && !is_turned_away
    }

    /// Leaves the rest for later, unless an answer is outstanding: then it waits anyway.
    pub(super) fn yield_turn(&mut self) {
        if self.flow == Flow::Open {
            self.flow = Flow::Yielded;
        }
    }

    /// The peer has left so much unread that it is served nothing further.
    pub(super) fn must_read(&self, unread_max: usize) -> bool {
        self.outbox.len() >= unread_max || self.unsent_pops.len() >= UNSENT_POPS_MAX
    }

    /// No further request may be served now: an answer is outstanding, it is the others' turn, or the
    /// peer does not read.
    pub(super) fn is_held_up(&self, unread_max: usize) -> bool {
        self.flow != Flow::Open || self.must_read(unread_max)
    }

    /// There may be something to do without a new event.
    pub(super) fn has_more(&self, unread_max: usize) -> bool {
        // Whole requests stay behind also when an answer has filled the outbox.
        let has_requests = !self.inbox.is_empty() && !self.codec.is_mid_request();
        match self.flow {
            _ if self.must_read(unread_max) => false,
            Flow::Open => self.readable || has_requests,
            Flow::Parked
            | Flow::AwaitsRefusal
            | Flow::AwaitsOutboxes
            | Flow::AwaitsOwnOutbox
            | Flow::AwaitsInboxes
            | Flow::AwaitsPushes
            | Flow::AwaitsStore => false,
            Flow::Yielded => true,
        }
    }

    /// It is the peer's turn to speak: it waits for no answer, has taken all it was given, and we
    /// have read all that it said. Only now does the read timeout run; a line that is late because
    /// we are is not the peer's fault. But a long request that we have no memory for is, by now.
    pub(super) fn is_awaited(&self) -> bool {
        match self.flow {
            Flow::Open => self.outbox.is_empty() && !self.readable,
            Flow::AwaitsInboxes => self.outbox.is_empty(),
            Flow::Parked
            | Flow::Yielded
            | Flow::AwaitsRefusal
            | Flow::AwaitsOutboxes
            | Flow::AwaitsOwnOutbox
            | Flow::AwaitsPushes
            | Flow::AwaitsStore => false,
        }
    }

    /// Nothing is under way in either direction.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_parked() && self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// Writes what is owed, as far as the socket takes it, but not much more than `enough`, and
    /// nothing from the position `limit` on. Only the gate does.
    pub(super) fn write(
        &mut self,
        now: Nanos,
        pool: &mut Pool,
        enough: usize,
        limit: u64,
    ) -> Flushed {
        let end = self.outbox.sent() + enough as u64;
        self.is_blocked = false;
        while !self.outbox.is_empty() {
            let sent = self.outbox.sent();
            if sent >= limit {
                self.stall = None; // the peer has taken all that it was given
                return Flushed::HeldBack;
            }
            if sent >= end {
                return Flushed::Later;
            }
            let pending = self.outbox.pending();
            let most = pending.len().min(enough);
            let most = usize::try_from(limit - sent).map_or(most, |left| most.min(left));
            match self.transport.write(&pending[..most]) {
                Ok(0) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.outbox.advance(sent, pool);
                    self.unsent_pops.pass(&self.outbox); // what has left is the peer's for good
                    self.note_taken(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.block(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Flushed::Broken(error),
            }
        }
        if self.transport.unsent() > 0
            && let Some(flushed) = self.flush_transport(now)
        {
            return flushed;
        }
        self.stall = None;
        if self.watches_write && !self.transport.is_in_handshake() {
            self.line_started = now; // the peer was busy reading, so its time to write begins now
        }
        Flushed::All
    }

    /// Sends what the transport has to say itself; `None` if all of it has left.
    #[inline(never)]
    fn flush_transport(&mut self, now: Nanos) -> Option<Flushed> {
        let before = self.transport.unsent();
        let flushed = self.transport.flush();
        self.note_taken(before.saturating_sub(self.transport.unsent()));
        match flushed {
            Ok(()) => None,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Some(self.block(now))
            }
            Err(error) => Some(Flushed::Broken(error)),
        }
    }

    /// The peer takes no more for now.
    fn block(&mut self, now: Nanos) -> Flushed {
        if self.stall.is_none() {
            self.restart_stall(now);
        }
        self.is_blocked = true;
        Flushed::Blocked
    }

    /// What it is owed did not leave before, because it waited for the disk. The time that the peer has
    /// to read its last answer begins now, also if it has sent its last byte since it was cut off.
    pub(super) fn note_may_leave(&mut self, now: Nanos) {
        if let Phase::Leaving {
            closing: Closing::HalfClose | Closing::Flush | Closing::Delay,
            until,
            ..
        } = &mut self.phase
            && *until != Nanos::NEVER
        {
            *until = now.after(CLOSING_MAX);
        }
    }

    /// Its last answer is sent: the time that the peer has to understand begins now.
    pub(super) fn begin_half_close(&mut self, now: Nanos) {
        if let Phase::Leaving { closing, until, .. } = &mut self.phase {
            (*closing, *until) = (Closing::HalfClose, now.after(CLOSING_MAX));
        }
    }

    /// Writes nothing, because it is too early to say it.
    pub(super) fn hold_back(&mut self) -> Flushed {
        self.is_blocked = false;
        self.stall = None; // what it did not take before is late because of us now
        // What was encrypted and did not leave is early, too.
        if self.outbox.is_empty() && self.transport.unsent() == 0 {
            Flushed::All
        } else {
            Flushed::TooEarly
        }
    }

    /// Whether the reactor is to say when there is room to write. A connection that only had enough
    /// for one time is written to again without being told.
    pub(super) fn wants_to_watch_write(&self) -> bool {
        self.is_blocked || (self.watches_write && !self.outbox.is_empty())
    }

    /// Its peer has not read what it was sent, and the reactor says when there is room again. With a
    /// disk what it is owed may wait for that as well.
    pub(super) fn is_told_of_room(&self) -> bool {
        self.is_blocked && self.watches_write
    }

    fn note_taken(&mut self, sent: usize) {
        if let Some(Stall { since, bytes }) = self.stall {
            let left = NonZeroUsize::new(bytes.get().saturating_sub(sent));
            self.stall = left.map(|bytes| Stall { since, bytes });
        }
    }

    /// Counts what is still owed as owed from now on.
    pub(super) fn restart_stall(&mut self, now: Nanos) {
        let owed = match self.outbox.len() {
            0 => self.transport.unsent(),
            owed => owed,
        };
        let owed = NonZeroUsize::new(owed);
        self.stall = owed.map(|bytes| Stall { since: now, bytes });
    }

    /// For how long the peer has not taken all that it was owed at one time.
    pub(super) fn stalled_ns(&self, now: Nanos) -> u64 {
        self.stall.map_or(0, |stall| now.since(stall.since))
    }

    /// When this connection's timer has to look again at the latest.
    pub(super) fn deadline(&self, now: Nanos, settings: &Settings) -> Nanos {
        let write = self.write_deadline(settings);
        let event = match &self.codec {
            Codec::Http(codec) => codec.next_event(),
            Codec::Line(_) => None,
        };
        match (&self.phase, event) {
            (Phase::Leaving { until, .. }, _) => write.min(*until),
            _ if self.transport.is_in_handshake() => {
                let again = now.after(handshakes::LOOK_AGAIN);
                write.min(self.handshake_deadline(settings).max(again))
            }
            // A stream has no read timeout: nothing is expected of it.
            (_, Some(at)) => write.min(at),
            // No read timeout runs; look again later, and when a request that has begun should be there.
            _ if !self.is_awaited() && !self.awaits_refusal() => {
                let again = match &self.codec {
                    Codec::Line(_) if self.phase == Phase::Unauthenticated => {
                        now.after(settings.auth_timeout)
                    }
                    Codec::Line(_) => now.after(settings.read_timeout),
                    Codec::Http(_) => match self.read_deadline(settings) {
                        part if part > now => part,
                        _ => now.after(http::PART_MAX),
                    },
                };
                write.min(again)
            }
            _ => write.min(self.read_deadline(settings)),
        }
    }

    /// When both sides have to have agreed on keys: so long after the connection came.
    pub(super) fn handshake_deadline(&self, settings: &Settings) -> Nanos {
        self.line_started.after(settings.handshake_timeout)
    }

    /// Keeps the identity of a peer that speaks HTTP: its requests are served also after a reset,
    /// when the socket does not know the peer any more. Its time to authenticate begins now.
    pub(super) fn note_peer(&mut self) {
        if let Codec::Http(codec) = &mut self.codec {
            codec.came_at = self.line_started;
            codec.peer = Some(self.transport.identity());
        }
    }

    pub(super) fn read_deadline(&self, settings: &Settings) -> Nanos {
        let timeout = match self.phase {
            Phase::Unauthenticated => settings.read_timeout.min(settings.auth_timeout),
            _ => settings.read_timeout,
        };
        let idle_end = self.line_started.after(timeout);
        match &self.codec {
            Codec::Line(_) => idle_end,
            Codec::Http(codec) => {
                let deadline = http::read_deadline(codec, self.line_started, timeout);
                match self.phase {
                    Phase::Unauthenticated => deadline.min(codec.came_at.after(timeout)),
                    _ => deadline,
                }
            }
        }
    }

    pub(super) fn write_deadline(&self, settings: &Settings) -> Nanos {
        match self.stall {
            Some(Stall { since, .. }) if settings.write_timeout != Millis::ZERO => {
                since.after(settings.write_timeout)
            }
            _ => Nanos::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_twenty_three_words_with_one_for_its_socket() {
        assert!(size_of::<Conn<u64>>() <= 23 * 8);
    }
}
