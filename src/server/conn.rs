//! One connection: its transport, its two boxes, and how far it has got.
//!
//! Moves bytes between a transport and the boxes and knows when its peer is too slow. Never looks
//! inside a request and never touches the lock table; that is `server::Server`'s.

use std::io;
use std::num::NonZeroUsize;

use slab::Slab;

use super::Settings;
use super::closing::Closing;
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::Popped;
use crate::timers::TimerId;
use crate::wire::buf::{Inbox, Pool};
use crate::wire::codec::Codec;
use crate::wire::outbox::{Marks, Outbox};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

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
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A secret is required and has not been shown.
    Unauthenticated,
    /// Served.
    Open,
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
    /// Whole requests were left in the inbox on purpose, for the next turn.
    Yielded,
    /// The same, because they take a walk and there was no budget left for one.
    Denied,
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
    All,
    Some,
    Broken(io::Error),
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
    /// In the server's list of connections to flush.
    pub(super) dirty: bool,
    /// In the run queue.
    pub(super) queued: bool,
    /// It came during the shutdown, which does not wait for it.
    pub(super) is_newcomer: bool,
    /// The reactor listens for room to write.
    pub(super) watches_write: bool,
    /// The engine knows that this peer has too much unread to be told any more.
    pub(super) overrun: bool,
    /// Values popped for this peer, each until the answer that tells it has been sent.
    pub(super) unsent_pops: Marks<Popped>,
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
            dirty: false,
            queued: false,
            is_newcomer: false,
            watches_write: false,
            overrun: false,
            unsent_pops: Marks::default(),
        }
    }

    /// For how many whole seconds it has been there.
    pub(super) fn age_s(&self, now: Nanos) -> u64 {
        (now.0 / NANOS_PER_SECOND).saturating_sub(self.accepted_s.into())
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
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

    /// Leaves the rest for the next turn, unless an answer is outstanding: then it waits anyway.
    pub(super) fn yield_turn(&mut self) {
        if self.flow == Flow::Open {
            self.flow = Flow::Yielded;
        }
    }

    /// No further request may be served now: an answer is outstanding, it is for the next turn, or
    /// the peer does not read.
    pub(super) fn is_held_up(&self) -> bool {
        self.flow != Flow::Open || self.outbox.is_full()
    }

    /// There may be something to do without a new event.
    pub(super) fn has_more(&self) -> bool {
        // Whole requests stay behind also when an answer has filled the outbox.
        let has_requests = !self.inbox.is_empty() && !self.codec.is_mid_request();
        match self.flow {
            _ if self.outbox.is_full() => false,
            Flow::Open => self.readable || has_requests,
            Flow::Parked => false,
            Flow::Yielded | Flow::Denied => true,
        }
    }

    /// It is the peer's turn to speak: it waits for no answer, has taken all it was given, and we
    /// have read all that it said. Only now does the read timeout run; a line that is late because
    /// we are is not the peer's fault.
    pub(super) fn is_awaited(&self) -> bool {
        self.flow == Flow::Open && self.outbox.is_empty() && !self.readable
    }

    /// Nothing is under way in either direction.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_parked() && self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// Writes what is owed, as far as the socket takes it. Only the gate does.
    pub(super) fn write(&mut self, now: Nanos, pool: &mut Pool) -> Flushed {
        while !self.outbox.is_empty() {
            match self.transport.write(self.outbox.pending()) {
                Ok(0) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.outbox.advance(sent, pool);
                    self.unsent_pops.pass(&self.outbox); // what has left is the peer's for good
                    self.note_taken(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.stall.is_none() {
                        self.restart_stall(now);
                    }
                    return Flushed::Some;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Flushed::Broken(error),
            }
        }
        self.stall = None;
        if self.watches_write {
            self.line_started = now; // the peer was busy reading, so its time to write begins now
        }
        Flushed::All
    }

    fn note_taken(&mut self, sent: usize) {
        if let Some(Stall { since, bytes }) = self.stall {
            let left = NonZeroUsize::new(bytes.get().saturating_sub(sent));
            self.stall = left.map(|bytes| Stall { since, bytes });
        }
    }

    /// Counts what is still owed as owed from now on.
    pub(super) fn restart_stall(&mut self, now: Nanos) {
        let owed = NonZeroUsize::new(self.outbox.len());
        self.stall = owed.map(|bytes| Stall { since: now, bytes });
    }

    /// When this connection's timer has to look again at the latest.
    pub(super) fn deadline(&self, now: Nanos, settings: &Settings) -> Nanos {
        let write = self.write_deadline(settings);
        match self.phase {
            Phase::Leaving { until, .. } => write.min(until),
            // No read timeout runs; look again later.
            _ if !self.is_awaited() => write.min(now.after(settings.read_timeout)),
            _ => write.min(self.read_deadline(settings)),
        }
    }

    pub(super) fn read_deadline(&self, settings: &Settings) -> Nanos {
        self.line_started.after(settings.read_timeout)
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
    fn an_idle_connection_is_twenty_one_words_with_one_for_its_socket() {
        assert!(size_of::<Conn<u64>>() <= 21 * 8);
    }
}
