//! How connections end: the peer left, was cut off, was turned away, was too slow, or we stop.
//!
//! Whatever the reason, the engine forgets the connection at once and exactly once; only the socket
//! may linger, so that a last answer arrives. Never serves a frame.

use log::{debug, info, warn};

use super::conn::{Conn, Farewell, Phase, Transport};
use super::{Due, Server};
use crate::base::{ClientId, Millis, Nanos};
use crate::wire::reply;

/// How long a wrong secret keeps its connection from trying again.
const AUTH_DELAY: Millis = Millis(100);

/// How long a peer that was cut off may take to read its last answer.
const FAREWELL_MAX: Millis = Millis(1_000);

/// How many bytes of what a peer still sends after it was cut off are read and thrown away; after
/// that its socket is left alone until the farewell is over.
const FAREWELL_DISCARD_BYTES_MAX: u32 = 1 << 20;

impl<T: Transport> Server<T> {
    /// Refuses a peer that has not shown the secret.
    pub(super) fn turn_away(&mut self, now: Nanos, id: ClientId) {
        warn!("closing {}: it did not show the secret", self.peer(id));
        self.say(id, reply::ERROR_AUTH);
        self.leave(now, id, Farewell::Delay, "not authenticated");
    }

    /// Ends a connection whose input can no longer be followed, with a last `error`.
    pub(super) fn cut_off(&mut self, now: Nanos, id: ClientId, why: &str) {
        if self.conns[id.slot as usize].phase == Phase::Locked {
            return self.turn_away(now, id);
        }
        info!("closing {}: {why}", self.peer(id));
        self.say(id, reply::ERROR);
        self.leave(now, id, Farewell::HalfClose, why);
    }

    /// Serves the connection no longer: the engine forgets it now, the socket follows when what is
    /// owed is sent and the farewell is over.
    pub(super) fn leave(&mut self, now: Nanos, id: ClientId, farewell: Farewell, why: &str) {
        let Self {
            conns,
            pool,
            settings,
            timers,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        if conn.is_leaving() {
            // It has said all it had to say; nothing is left to wait for but our own bytes.
            if let Phase::Leaving {
                farewell: it @ Farewell::HalfClose,
                ..
            } = &mut conn.phase
            {
                *it = Farewell::Flush;
            }
            return self.mark_dirty(id);
        }
        debug!("connection {} ends: {why}", id.serial);
        let span = if farewell == Farewell::Delay {
            AUTH_DELAY
        } else {
            FAREWELL_MAX
        };
        let discard_bytes_left = FAREWELL_DISCARD_BYTES_MAX;
        conn.phase = Phase::Leaving {
            farewell,
            until: now.after(span),
            discard_bytes_left,
        };
        conn.parked = false;
        conn.inbox.clear(pool);
        timers.rearm(conn.timer, conn.deadline(now, settings));
        self.engine.disconnect(now, id, &mut self.effects);
        self.deliver(now);
        self.mark_dirty(id);
    }

    /// Ends the connection here and now.
    pub(super) fn close(&mut self, now: Nanos, id: ClientId, why: &str) {
        if self.conn_mut(id).is_none() {
            return;
        }
        let Self {
            conns,
            pool,
            timers,
            ..
        } = self;
        let mut conn = conns.remove(id.slot as usize);
        timers.cancel(conn.timer);
        conn.inbox.clear(pool);
        conn.outbox.clear(pool);
        if !conn.is_leaving() {
            debug!("connection {} ends: {why}", id.serial);
            self.engine.disconnect(now, id, &mut self.effects);
            self.deliver(now);
        }
    }

    /// A connection's timer fired: something may have taken too long.
    pub(super) fn look_at(&mut self, now: Nanos, slot: u32) {
        let Self {
            conns,
            settings,
            timers,
            engine,
            ..
        } = self;
        let conn = &mut conns[slot as usize];
        let id = ClientId {
            slot,
            serial: conn.serial,
        };
        conn.timer = timers.arm(Nanos::NEVER, Due::Conn(slot));
        if conn.write_deadline(settings) <= now {
            warn!(
                "closing {}: it takes nothing of what it is owed",
                conn.transport.peer()
            );
            return self.close(now, id, "write timeout");
        }
        if let Phase::Leaving { until, .. } = conn.phase {
            if until <= now {
                return self.close(now, id, "farewell is over");
            }
        } else if !conn.is_waited_for() && conn.read_deadline(settings) <= now {
            if conn.mid_frame || !engine.owns_something(id) {
                return self.cut_off(now, id, "nothing came for the read timeout");
            }
            // Who owns something may be silent for as long as it likes.
            conn.line_started = now;
        }
        let conn = &mut self.conns[slot as usize];
        self.timers
            .rearm(conn.timer, conn.deadline(now, &self.settings));
    }

    /// A draining server ends every connection that has nothing to finish.
    pub(super) fn sweep(&mut self, now: Nanos) {
        let Self { conns, engine, .. } = self;
        let finished = |slot: usize, conn: &Conn<T>| {
            let id = ClientId {
                slot: slot as u32,
                serial: conn.serial,
            };
            (conn.is_quiet() && !conn.is_leaving() && !engine.owns_something(id)).then_some(id)
        };
        let ids: Vec<_> = conns
            .iter()
            .filter_map(|(slot, conn)| finished(slot, conn))
            .collect();
        for id in ids {
            self.close(now, id, "nothing left to finish");
        }
    }
}
