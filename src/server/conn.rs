//! One connection: its transport, its two boxes, and how far it has got.
//!
//! Moves bytes between a transport and the boxes and knows when its peer is too slow. Never looks
//! inside a request and never touches the lock table; that is `server::Server`'s.

use std::io;

use slab::Slab;

use super::Settings;
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::Popped;
use crate::timers::TimerId;
use crate::wire::buf::{Inbox, Pool};
use crate::wire::codec::Codec;
use crate::wire::outbox::{Marks, Outbox};

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
}

/// How a connection that is served no longer comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Close as soon as everything owed is sent.
    Flush,
    /// Send everything, say that there will be no more, read on until the peer has understood.
    /// Closing with unread input would be a reset, and a reset destroys the answer just sent.
    HalfClose,
    /// Send everything, then keep the peer waiting: the price of a wrong secret.
    Delay,
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
    pub(super) timer: TimerId,
    pub(super) phase: Phase,
    /// When the line now being received could first have begun.
    pub(super) line_started: Nanos,
    /// Since when the peer has not taken all of what it was owed then; `NEVER` if it has.
    pub(super) stalled_since: Nanos,
    /// How much of that it still has to take. A trickle does not buy more time, only all of it does.
    stalled_bytes: usize,
    /// A request is with the engine and has no answer yet.
    pub(super) parked: bool,
    /// The socket may hold bytes that were not read: readiness is told only once.
    pub(super) readable: bool,
    /// The peer will send no more than what is already on its way.
    pub(super) hung_up: bool,
    /// Whole frames were left in the inbox on purpose, for the next turn.
    pub(super) yielded: bool,
    /// Because they take a walk and there was no time left for one.
    pub(super) denied: bool,
    /// In the server's list of connections to flush.
    pub(super) dirty: bool,
    /// In one of the server's lists of connections to serve.
    pub(super) revisit: bool,
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
            timer,
            phase,
            line_started: now,
            stalled_since: Nanos::NEVER,
            stalled_bytes: 0,
            parked: false,
            readable: false,
            hung_up: false,
            yielded: false,
            denied: false,
            dirty: false,
            revisit: false,
            watches_write: false,
            overrun: false,
            unsent_pops: Marks::default(),
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }

    /// It only has to take what it is owed, and is closed then.
    pub(super) fn is_flushed_last(&self) -> bool {
        matches!(
            self.phase,
            Phase::Leaving {
                closing: Closing::Flush,
                ..
            }
        )
    }

    /// No further frame may be served now: an answer is outstanding, or the peer does not read.
    pub(super) fn is_held_up(&self) -> bool {
        self.parked || self.yielded || self.outbox.is_full()
    }

    /// There may be something to do without a new event.
    pub(super) fn has_more(&self) -> bool {
        // Whole frames stay behind also when an answer has filled the outbox.
        let has_frames = !self.inbox.is_empty() && !self.codec.is_mid_request();
        !self.parked && !self.outbox.is_full() && (self.readable || self.yielded || has_frames)
    }

    /// It is the peer's turn to speak: it waits for no answer, has taken all it was given, and we
    /// have read all that it said. Only now does the read timeout run; a line that is late because
    /// we are is not the peer's fault.
    pub(super) fn is_awaited(&self) -> bool {
        !self.parked && self.outbox.is_empty() && !self.readable && !self.yielded
    }

    /// Nothing is under way in either direction.
    pub(super) fn is_quiet(&self) -> bool {
        !self.parked && self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// Sends what is owed, as far as the socket takes it.
    pub(super) fn flush(&mut self, now: Nanos, pool: &mut Pool) -> Flushed {
        while !self.outbox.is_empty() {
            match self.transport.write(self.outbox.pending()) {
                Ok(0) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.outbox.advance(sent, pool);
                    self.unsent_pops.pass(&self.outbox); // what has left is the peer's for good
                    self.stalled_bytes = self.stalled_bytes.saturating_sub(sent);
                    if self.stalled_bytes == 0 {
                        self.stalled_since = Nanos::NEVER;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.stalled_bytes == 0 {
                        self.restart_stall(now);
                    }
                    return Flushed::Some;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Flushed::Broken(error),
            }
        }
        self.stalled_since = Nanos::NEVER;
        if self.watches_write {
            self.line_started = now; // it has taken its time to read, not to write
        }
        Flushed::All
    }

    /// Counts what is still owed as owed from now on.
    pub(super) fn restart_stall(&mut self, now: Nanos) {
        self.stalled_bytes = self.outbox.len();
        self.stalled_since = if self.outbox.is_empty() {
            Nanos::NEVER
        } else {
            now
        };
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
        if settings.write_timeout == Millis::ZERO {
            return Nanos::NEVER;
        }
        self.stalled_since.after(settings.write_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_nineteen_words_with_one_for_its_socket() {
        assert!(size_of::<Conn<u64>>() <= 19 * 8);
    }
}
