//! Effects become bytes: each answer and each push goes into the outbox of its connection.
//!
//! Answers first, then pushes, so that the answer to a command is written before any push the same
//! command caused. Whoever was parked and is answered now is resumed: there may be more of its
//! input. Never decides anything and never writes to a socket.

use log::warn;

use super::Server;
use super::conn::{self, Transport};
use crate::base::{ClientId, Nanos};
use crate::engine::types::{Effect, Push, Reply};
use crate::wire::reply;

impl<T: Transport> Server<T> {
    /// Carries out everything the engine said since the last time.
    pub(super) fn deliver(&mut self, now: Nanos) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in &effects {
            if let Effect::Reply(id, reply) = effect {
                self.answer(now, *id, reply);
            }
        }
        for effect in effects.drain(..) {
            if let Effect::Push(id, push) = effect {
                self.push(id, &push);
            }
        }
        // Nothing above asks the engine, so the list to put back is the only one there is.
        debug_assert!(
            self.effects.is_empty(),
            "effects that nobody would carry out"
        );
        self.effects = effects;
    }

    fn answer(&mut self, now: Nanos, id: ClientId, reply: &Reply) {
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        assert!(conn.parked, "two answers to one request of {id:?}");
        conn.parked = false;
        conn.line_started = now;
        reply::encode_reply(conn.outbox.buf(&mut self.pool), reply, conn.with_fence);
        if self.acting != Some(id) {
            self.resumed.push_back(id);
        }
        self.mark_dirty(id);
    }

    fn push(&mut self, id: ClientId, push: &Push) {
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        if conn.is_leaving() {
            return;
        }
        if conn.outbox.is_full() {
            warn!(
                "closing {}: it does not read what is pushed to it",
                conn.transport.peer()
            );
            return self.overrun.push(id);
        }
        let Self { conns, pool, .. } = self;
        reply::encode_push(conns[id.slot as usize].outbox.buf(pool), push);
        self.mark_dirty(id);
    }
}
