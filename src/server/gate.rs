//! The gate: the one place where bytes leave the server.
//!
//! Whatever is said goes into an outbox first. [`Server::let_out`] is the only function that hands
//! it to the transport: at the end of a turn, one write for each connection; earlier only if so
//! much is owed that it must be known whether the peer reads at all. Never decides what is said.

use std::collections::VecDeque;
use std::mem;

use super::Server;
use super::closing::Closing;
use super::conn::{self, Flushed, Phase, Transport};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;

#[derive(Default)]
pub(super) struct Gate {
    /// Owed the answer they were parked for. Their bytes leave first: these clients waited, and the
    /// one that let go only has to be told so.
    awaited: VecDeque<ConnId>,
    /// Owed other bytes.
    dirty: VecDeque<ConnId>,
    /// Did not read what was pushed; to be closed.
    overrun: Vec<ConnId>,
    /// Whose interest in writing has changed, for the reactor.
    interest: Vec<ConnId>,
}

impl Gate {
    /// Nobody waits for bytes to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.awaited.is_empty() && self.dirty.is_empty()
    }
}

impl<T: Transport> Server<T> {
    /// The connection is owed something, or may come to its end.
    pub(super) fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.gate.dirty.push_back(id);
        }
    }

    /// The connection is owed the answer it was parked for.
    pub(super) fn mark_awaited(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.gate.awaited.push_back(id);
        }
    }

    /// The connection does not read what it is told: it is closed at the end of the turn.
    pub(super) fn mark_overrun(&mut self, id: ConnId) {
        self.gate.overrun.push(id);
    }

    /// Sends what is owed, one write per connection. A connection that turns out to be gone is
    /// ended, which may grant to others, who are then owed something too.
    pub(super) fn flush(&mut self, now: Nanos) {
        loop {
            for id in mem::take(&mut self.gate.overrun) {
                self.close_slow_consumer(now, id);
            }
            let Gate { awaited, dirty, .. } = &mut self.gate;
            let Some(id) = awaited.pop_front().or_else(|| dirty.pop_front()) else {
                break;
            };
            self.flush_one(now, id);
        }
    }

    fn flush_one(&mut self, now: Nanos, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        conn.dirty = false;
        if let Flushed::Broken(error) = self.let_out(now, id) {
            return self.close(now, id, &error.to_string());
        }
        let conn = &mut self.conns[id.slot as usize];
        if let Phase::Leaving { closing, .. } = conn.phase
            && conn.outbox.is_empty()
        {
            match closing {
                // It is still to be read: closed now, what was sent would be lost to a reset.
                Closing::Flush if conn.queued || conn.readable => self.serve_later(id),
                Closing::Flush => self.close(now, id, "closed"),
                Closing::HalfClose => conn.transport.shutdown_write(),
                Closing::Delay => {}
            }
        } else if conn.has_more() {
            self.serve_later(id);
        }
    }

    /// Hands the peer what it is owed, as far as it takes it. The connection must be there.
    pub(super) fn let_out(&mut self, now: Nanos, id: ConnId) -> Flushed {
        let Self {
            conns,
            pool,
            settings,
            timers,
            gate,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        let was_full = conn.outbox.is_full();
        let flushed = conn.write(now, pool);
        let makes_room = was_full && !conn.outbox.is_full();
        if makes_room {
            conn.line_started = now; // read on from here, so the read timeout runs from here
        }
        if makes_room || matches!(flushed, Flushed::Some) {
            timers.rearm(conn.timer, conn.deadline(now, settings));
        }
        if conn.watches_write == conn.outbox.is_empty() {
            gate.interest.push(id);
        }
        if conn.overrun != conn.outbox.is_overrun() {
            conn.overrun = !conn.overrun;
            let input = Input::Overrun(id, conn.overrun);
            self.engine.apply(now, input, &mut self.effects);
        }
        flushed
    }

    /// Connections whose interest in writing changed, with what it is now.
    pub fn changed_interests(&mut self, mut tell: impl FnMut(ConnId, &mut T, bool)) {
        for id in mem::take(&mut self.gate.interest) {
            if let Some(conn) = self.conn_mut(id) {
                let wants_write = !conn.outbox.is_empty();
                if conn.watches_write != wants_write {
                    conn.watches_write = wants_write;
                    tell(id, &mut conn.transport, wants_write);
                }
            }
        }
    }
}
