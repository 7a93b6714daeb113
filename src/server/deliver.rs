//! Effects become bytes: each answer and each push goes into the outbox of its connection.
//!
//! Answers first, then pushes, so that the answer to a command is written before any push the same
//! command caused. `rangelost` keeps its place among the answers instead: it names no fence, so behind
//! the grant of a later lock it would be taken for the loss of that one. A connection that was parked and is answered now goes into the run queue,
//! because it may have sent more. A value popped from a list is remembered until it has been sent,
//! so that it can go back if it never is. Never decides anything; bytes leave through the gate
//! (`gate.rs`).

use log::kv::Value;
use log::{Level, Record, info};

use super::conn::{self, Flow, Owed, Transport};
use super::memory::UnsentPop;
use super::{Server, audit};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{Effect, Note, NoteOf, Noted, Push, Reply};
use crate::escape;
use crate::store::Store;
use crate::wire::Answer;
use crate::wire::codec::{Appended, Codec};

impl<T: Transport, S: Store> Server<T, S> {
    /// Carries out everything the engine said since the last time.
    pub(super) fn deliver(&mut self, now: Nanos) {
        self.keep_records(now);
        let mut effects = std::mem::take(&mut self.effects);
        if let [Effect::Reply(id, reply)] = &effects[..] {
            // The usual case, with nothing to sort.
            self.answer(now, *id, reply, 0);
            effects.clear();
            self.effects = effects;
            return;
        }
        let mut mark = 0;
        for effect in &effects {
            match effect {
                Effect::Mark(record) => mark = *record,
                Effect::Reply(id, reply) => self.answer(now, *id, reply, mark),
                Effect::Push(id, push) if self.keeps_its_place(*id, push) => {
                    self.broadcast(now, &[*id], push, mark);
                }
                _ => {}
            }
        }
        mark = 0;
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply(..) | Effect::NotYet(_) => {}
                Effect::Mark(record) => mark = record,
                Effect::Push(id, push) if self.keeps_its_place(id, &push) => {}
                Effect::Push(id, push) => self.broadcast(now, &[id], &push, mark),
                Effect::Broadcast(ids, push) => self.broadcast(now, &ids, &push, mark),
                Effect::Overrun(id) => self.mark_overrun(id),
                Effect::Note(note) => log_note(&note),
                Effect::GraceOver(released) => info!(
                    "the grace period is over; {released} range locks were released that nobody has had back"
                ),
            }
        }
        // Nothing above gives the engine an input that has effects, so the list to put back is the
        // only one there is.
        debug_assert!(
            self.effects.is_empty(),
            "effects that nobody would carry out"
        );
        self.effects = effects;
    }

    /// Whether the push is written in the order of the decisions: a lost range lock is, except to the
    /// connection whose own command ended it.
    fn keeps_its_place(&self, id: ConnId, push: &Push) -> bool {
        matches!(push, Push::RangeLost { .. }) && self.acting != Some(id)
    }

    /// Answers a request; the answer speaks of nothing later than the record `mark`.
    fn answer(&mut self, now: Nanos, id: ConnId, reply: &Reply, mark: u64) {
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        assert!(conn.is_parked(), "two answers to one request of {id:?}");
        let Codec::Line(codec) = &conn.codec else {
            return self.answer_http(now, id, reply, mark);
        };
        conn.flow = Flow::Open;
        conn.line_started = now;
        let Self {
            pool,
            held_back,
            store,
            ..
        } = self;
        if store.is_durable() {
            held_back.mark(id, conn.outbox.position(), mark);
        }
        match reply {
            Reply::Value(_) | Reply::Popped(_) => {
                codec.append_value(&mut conn.outbox, pool, reply);
            }
            _ => codec.encode(conn.outbox.buf(pool), Answer::Reply(reply)),
        }
        match reply {
            Reply::Value(value) => self.budget.charge_value(value.len()),
            Reply::Popped(popped) => {
                self.budget.charge_value(popped.value.len());
                let unsent = UnsentPop::new(popped, &self.pool);
                conn.unsent_pops.set(&conn.outbox, unsent);
            }
            _ => {}
        }
        if self.acting == Some(id) {
            self.owe(id, Owed::Answer);
        } else {
            self.run.resume(id);
            self.owe(id, Owed::Awaited);
        }
    }

    /// Spells the push once, however many hear it.
    fn broadcast(&mut self, now: Nanos, ids: &[ConnId], push: &Push, mark: u64) {
        self.spelled.clear();
        let is_durable = self.store.is_durable();
        for &id in ids {
            let Self {
                conns,
                pool,
                spelled,
                budget,
                held_back,
                gate,
                ..
            } = self;
            if let Some(conn) = conn::find(conns, id)
                && !conn.is_leaving()
            {
                if is_durable {
                    held_back.mark(id, conn.outbox.position(), mark);
                }
                let Appended { bytes, copied } =
                    spelled.append(&conn.codec, push, &mut conn.outbox, pool);
                if is_durable {
                    held_back.note_pushed(id, bytes);
                }
                budget.charge_push(copied);
                let is_told = !is_durable && conn.is_told_of_room();
                if is_told {
                    conn.outbox.count(pool);
                } else {
                    gate.note_pushed(&mut conn.unsent_push_bytes, bytes);
                }
                // A peer is not slow before it had a chance to read: this much may have gathered
                // since it was last written to. A broken connection is found when it is flushed.
                if conn.is_blocked || is_durable && held_back.push_bytes_of(id) > 0 {
                    self.note_overrun(now, id);
                }
                // Until there is room for what it was sent before, another try would be in vain.
                if !is_told {
                    self.owe(id, Owed::Push);
                }
            }
        }
    }
}

/// Logs what became of a grant, or that a range lock was broken. A break is an audit line, at every
/// log level. A lease that ended is logged at debug; grants and releases, which are nearly every
/// request, at trace.
#[cold]
fn log_note(note: &Note) {
    let (level, target, what) = match note.what {
        Noted::Granted => (Level::Trace, module_path!(), "granted"),
        Noted::Released => (Level::Trace, module_path!(), "released"),
        Noted::Disconnected => (
            Level::Trace,
            module_path!(),
            "released: its connection ended",
        ),
        Noted::Expired { .. } => (Level::Debug, module_path!(), "lease expired"),
        Noted::Broken => (Level::Warn, audit::TARGET, "broken by an operator"),
    };
    let key = escape::bytes(note.key.as_bytes());
    let client = note.client.as_deref();
    // The number of the connection; 0 for a grant from before a restart.
    let conn = note.conn.map_or(0, |conn| conn.serial);
    let (range, of_range);
    let mut fields: Vec<(&str, Value<'_>)> = Vec::new();
    match &note.of {
        NoteOf::Grant(fence) => {
            fields.push(("key", key.as_str().into()));
            fields.push(("fence", fence.0.into()));
            fields.push(match (&client, &note.owner) {
                (Some(client), _) => ("client", (*client).into()),
                (None, Some(owner)) => ("owner", (**owner).into()),
                (None, None) => ("client", conn.into()),
            });
        }
        NoteOf::Range { range: it, owner } => {
            range = format!("{} {}", it.start(), it.len());
            of_range = [
                client.map_or_else(|| format!("#{conn}"), str::to_owned),
                escape::bytes(owner.as_bytes()),
            ];
            fields.push(("resource", key.as_str().into()));
            fields.push(("range", range.as_str().into()));
            fields.push(("client", of_range[0].as_str().into()));
            fields.push(("owner", of_range[1].as_str().into()));
        }
    }
    if let Some(user) = &note.user {
        fields.push(("user", user.as_str().into()));
    }
    if let Noted::Expired { late_ns } = note.what {
        fields.push(("lateness_us", (late_ns / 1_000).into()));
    }
    log::logger().log(
        &Record::builder()
            .level(level)
            .target(target)
            .args(format_args!("{what}"))
            .key_values(&fields.as_slice())
            .build(),
    );
}
