//! Effects become bytes: each answer and each push goes into the outbox of its connection.
//!
//! Answers first, then pushes, so that the answer to a command is written before any push the same
//! command caused. Whoever was parked and is answered now is resumed: there may be more of its
//! input. A value popped from a list is remembered until it has been sent, so that it can go back if
//! it never is. Never decides anything, and leaves sending to the end of the turn.

use log::{Level, log};

use super::Server;
use super::conn::{self, Transport};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{Effect, Input, Note, Noted, Push, Reply};
use crate::wire::Answer;

impl<T: Transport> Server<T> {
    /// Carries out everything the engine said since the last time.
    pub(super) fn deliver(&mut self, now: Nanos) {
        let mut effects = std::mem::take(&mut self.effects);
        if let [Effect::Reply(id, reply)] = &effects[..] {
            // Nearly always, and then there is nothing to sort.
            self.answer(now, *id, reply);
            effects.clear();
            self.effects = effects;
            return;
        }
        for effect in &effects {
            if let Effect::Reply(id, reply) = effect {
                self.answer(now, *id, reply);
            }
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply(..) => {}
                Effect::Push(id, push) => self.broadcast(now, &[id], &push),
                Effect::Broadcast(ids, push) => self.broadcast(now, &ids, &push),
                Effect::Overrun(id) => self.overrun.push(id),
                Effect::Note(note) => log_note(&note),
            }
        }
        // Nothing above asks the engine, so the list to put back is the only one there is.
        debug_assert!(
            self.effects.is_empty(),
            "effects that nobody would carry out"
        );
        self.effects = effects;
    }

    fn answer(&mut self, now: Nanos, id: ConnId, reply: &Reply) {
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        assert!(conn.parked, "two answers to one request of {id:?}");
        conn.parked = false;
        conn.line_started = now;
        let out = conn.outbox.buf(&mut self.pool);
        conn.codec.encode(out, Answer::Reply(reply));
        if let Reply::Popped(popped) = reply {
            conn.unsent_pops.set(&conn.outbox, popped.clone());
        }
        if self.acting != Some(id) {
            self.resumed.push_back(id);
        }
        self.mark_dirty(id);
    }

    /// Spells the push once, however many hear it.
    fn broadcast(&mut self, now: Nanos, ids: &[ConnId], push: &Push) {
        self.spelled.clear();
        for &id in ids {
            let Self {
                conns,
                pool,
                engine,
                effects,
                spelled,
                ..
            } = self;
            if let Some(conn) = conn::find(conns, id)
                && !conn.is_leaving()
            {
                let bytes = spelled.push(&conn.codec, push);
                conn.outbox.buf(pool).extend_from_slice(bytes);
                // Nobody is slow before it was given a chance to read: what has gathered in this
                // turn alone may be this much. A broken one is found when it is flushed.
                if conn.outbox.is_overrun() {
                    conn.flush(now, pool);
                    conn.overrun = conn.outbox.is_overrun();
                    engine.apply(now, Input::Overrun(id, conn.overrun), effects);
                }
                self.mark_dirty(id);
            }
        }
    }
}

/// One line about a grant. Whoever looks for a lease that was lost finds it at debug; grants and
/// releases, which are every request, at trace.
#[cold]
fn log_note(note: &Note) {
    let (key, fence, client) = (
        note.key.as_bytes().escape_ascii().to_string(),
        note.fence.0,
        note.conn.serial,
    );
    let level = match note.what {
        Noted::Expired => Level::Debug,
        Noted::Granted | Noted::Released | Noted::Disconnected => Level::Trace,
    };
    let what = match note.what {
        Noted::Granted => "granted",
        Noted::Released => "released",
        Noted::Disconnected => "released: its connection ended",
        Noted::Expired => "lease expired",
    };
    log!(level, key, fence, client; "{what}");
}
