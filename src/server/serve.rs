//! One connection's share of a turn: read, decode, serve, read on.
//!
//! Frames are served where they landed; only an unfinished one is copied. A connection is held up
//! while its answer is outstanding or it does not read; it is put on the list to be visited again
//! when it has more than its share. Ends are in `closing.rs`.

use std::io;
use std::mem;

use log::{debug, warn};

use super::conn::{Closing, Phase, Transport};
use super::{Clock, READ_BYTES_PER_TURN, Server, WALK_BYTES_MIN, auth, conn, stats};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Request;
use crate::wire::answer;
use crate::wire::command::{Command, Hello};
use crate::wire::line::{self, Decoded, Frame};
use crate::wire::verbs::Verb;

impl<T: Transport> Server<T> {
    /// Serves the connection until it has nothing more, is held up, or has had its share.
    pub(super) fn serve_conn(&mut self, clock: Clock<'_>, id: ConnId) {
        let mut share = READ_BYTES_PER_TURN;
        let mut read_buf = mem::take(&mut self.read_buf);
        if let Some(conn) = self.conn_mut(id) {
            (conn.yielded, conn.denied) = (false, false);
            if !conn.inbox.is_empty() && !conn.is_leaving() {
                let now = self.read_clock(clock);
                self.serve_inbox(now, id);
            }
        }
        while let Some(conn) = self.conn_mut(id)
            && conn.readable
            && !conn.is_held_up()
            && share > 0
        {
            let room = share.min(conn.inbox.room());
            match conn.transport.read(&mut read_buf[..room]) {
                Ok(0) => {
                    conn.readable = false;
                    let now = self.read_clock(clock);
                    self.leave(now, id, Closing::Flush, "closed");
                }
                Ok(received) => {
                    // A short read has emptied the socket: the read that would say so is saved. Not
                    // after a hang-up, where the end itself is still to be read.
                    conn.readable = received == room || conn.hung_up;
                    share -= received;
                    let now = self.read_clock(clock);
                    self.receive(now, id, &read_buf[..received]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => conn.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let now = self.read_clock(clock);
                    self.close(now, id, &error.to_string());
                }
            }
        }
        self.read_buf = read_buf;
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        if conn.has_more() {
            self.serve_later(id);
        } else if conn.is_flushed_last() {
            self.mark_dirty(id); // and be closed, now that it was read
        }
    }

    /// Bytes have come: serve them where they are, or behind those that came before.
    fn receive(&mut self, now: Nanos, id: ConnId, bytes: &[u8]) {
        let Self { conns, pool, .. } = self;
        let conn = &mut conns[id.slot as usize];
        if let Phase::Leaving {
            discard_bytes_left, ..
        } = &mut conn.phase
        {
            *discard_bytes_left = discard_bytes_left.saturating_sub(bytes.len() as u32);
            conn.readable &= *discard_bytes_left > 0;
            return;
        }
        if !conn.inbox.is_empty() {
            let taken = conn.inbox.append(bytes, pool);
            assert_eq!(taken, bytes.len(), "read more than the inbox has room for");
            return self.serve_inbox(now, id);
        }
        let used = self.serve(now, id, bytes);
        if used == bytes.len() {
            return; // nearly always
        }
        let Self { conns, pool, .. } = self;
        if let Some(conn) = conn::find(conns, id)
            && !conn.is_leaving()
        {
            let taken = conn.inbox.append(&bytes[used..], pool);
            assert_eq!(
                taken,
                bytes.len() - used,
                "one read is larger than an inbox"
            );
        }
    }

    fn serve_inbox(&mut self, now: Nanos, id: ConnId) {
        let slot = id.slot as usize;
        let mut inbox = mem::take(&mut self.conns[slot].inbox);
        let used = self.serve(now, id, inbox.bytes());
        match conn::find(&mut self.conns, id) {
            Some(conn) if !conn.is_leaving() => {
                inbox.consume(used, &mut self.pool);
                conn.inbox = inbox;
            }
            _ => inbox.clear(&mut self.pool),
        }
    }

    /// Serves the whole frames at the front of `input` and says how many bytes they were. Stops
    /// early when the connection is held up; the connection may be gone afterwards.
    fn serve(&mut self, now: Nanos, id: ConnId, input: &[u8]) -> usize {
        let mut used = 0;
        let mut scratch = mem::take(&mut self.scratch);
        loop {
            let may_walk = self.walk_bytes_left > 0;
            let Some(conn) = self.conn_mut(id) else {
                break;
            };
            if conn.is_leaving() || conn.is_held_up() {
                break;
            }
            if used == input.len() {
                break;
            }
            match line::decode(&input[used..], &mut scratch) {
                Decoded::Frame(frame) if !may_walk && takes_a_walk(&frame) => {
                    conn.progress(now, 0, false);
                    (conn.yielded, conn.denied) = (true, true);
                }
                Decoded::Frame(frame) => {
                    used += frame.used;
                    conn.progress(now, 0, false);
                    self.serve_frame(now, id, &frame);
                }
                Decoded::Incomplete { lines, started } => {
                    conn.progress(now, lines, started);
                    break;
                }
                Decoded::TooLong => self.cut_off(now, id, "a line is too long"),
                Decoded::Foreign => {
                    warn!(
                        "closing {}: it does not speak this protocol",
                        conn.transport.peer()
                    );
                    self.close(now, id, "foreign protocol");
                }
            }
        }
        self.scratch = scratch;
        used
    }

    fn serve_frame(&mut self, now: Nanos, id: ConnId, frame: &Frame<'_>) {
        if self.conns[id.slot as usize].phase == Phase::Unauthenticated {
            return self.unlock(now, id, frame);
        }
        match (frame.verb, frame.command) {
            (Some(verb), Ok(Command::Engine(request))) => self.ask(now, id, verb, request),
            (_, Ok(Command::Ping)) => self.say(id, answer::OK),
            (_, Ok(Command::Hello(hello))) => self.hello(id, hello),
            (_, Ok(Command::Stats)) => self.tell(id, |server, out| {
                let figures = stats::Figures {
                    connections: server.conns.len(),
                    slow_consumers: server.slow_consumers,
                    longest_turn_ns: server.longest_turn_ns,
                };
                let (view, tally) = (server.engine.view(now), server.engine.tally());
                stats::stats(out, view, tally, &figures);
            }),
            (_, Ok(Command::Who { key })) => self.tell(id, |server, out| {
                stats::who(out, server.engine.view(now), key);
            }),
            // A second `auth`, or one that nobody asked for.
            (_, Ok(Command::Auth { .. })) => self.say(id, answer::ERROR),
            (_, Ok(Command::Engine(_))) => unreachable!("a request without a verb"),
            (_, Err(malformed)) => {
                debug!(
                    "connection {}: error {} ({malformed:?})",
                    id.serial,
                    malformed.code()
                );
                self.say(id, answer::ERROR);
            }
        }
    }

    /// Puts a request before the engine; without an answer the connection is parked.
    fn ask(&mut self, now: Nanos, id: ConnId, verb: Verb, request: Request<'_>) {
        let conn = &mut self.conns[id.slot as usize];
        conn.parked = true;
        conn.with_fence = answer::wants_fence(self.settings.wire_fence, verb, conn.hello_fence);
        let owed = conn.outbox.len();
        self.engine.step(now, id, request, &mut self.effects);
        self.acting = Some(id);
        self.deliver(now);
        self.acting = None;
        if verb.row().takes_a_walk {
            self.note_walk(id, owed);
        }
        self.recipient_work_left = self
            .recipient_work_left
            .saturating_sub(self.engine.take_recipient_work());
        let conn = &mut self.conns[id.slot as usize];
        conn.yielded |= self.recipient_work_left == 0;
        if conn.parked && conn.hung_up {
            // Not answered, but what was asked before it still is.
            self.leave(now, id, Closing::Flush, "left before it could wait");
        }
    }

    fn hello(&mut self, id: ConnId, hello: Hello<'_>) {
        let name = hello.name.and_then(|name| str::from_utf8(name).ok());
        self.engine.introduce(id, name);
        let fence = {
            let conn = &mut self.conns[id.slot as usize];
            conn.hello_fence = hello.fence.or(conn.hello_fence);
            answer::wants_fence(self.settings.wire_fence, Verb::Lock, conn.hello_fence)
        };
        let (version, epoch) = (env!("CARGO_PKG_VERSION"), self.settings.epoch);
        let mut line = format!(
            "ok latchd/{version} epoch={epoch} fence={}",
            u8::from(fence)
        );
        if let Some(name) = self.engine.name_of(id) {
            line.push_str(" name=");
            line.push_str(name);
        }
        line.push('\n');
        self.say(id, line.as_bytes());
    }

    /// The first frame of a connection, while a secret is required.
    fn unlock(&mut self, now: Nanos, id: ConnId, frame: &Frame<'_>) {
        let secret = self.settings.auth_token.as_deref().unwrap_or_default();
        if auth::opens(secret, &frame.command) {
            self.conns[id.slot as usize].phase = Phase::Open;
            self.say(id, answer::OK);
        } else {
            self.turn_away(now, id);
        }
    }

    pub(super) fn say(&mut self, id: ConnId, line: &[u8]) {
        let conn = &mut self.conns[id.slot as usize];
        conn.outbox.buf(&mut self.pool).extend_from_slice(line);
        self.mark_dirty(id);
    }

    /// Writes a long answer.
    fn tell(&mut self, id: ConnId, write: impl FnOnce(&Self, &mut Vec<u8>)) {
        let slot = id.slot as usize;
        let owed = self.conns[slot].outbox.len();
        let (mut outbox, mut pool) = (
            mem::take(&mut self.conns[slot].outbox),
            mem::take(&mut self.pool),
        );
        write(self, outbox.buf(&mut pool));
        self.pool = pool;
        self.conns[slot].outbox = outbox;
        self.note_walk(id, owed);
        self.mark_dirty(id);
    }

    /// Charges an answer that took a walk; `owed` is how much the client was owed before it. One such
    /// answer per connection and turn is enough.
    fn note_walk(&mut self, id: ConnId, owed: usize) {
        let conn = &mut self.conns[id.slot as usize];
        conn.yielded = true;
        let bytes = conn.outbox.len().saturating_sub(owed).max(WALK_BYTES_MIN);
        self.walk_bytes_left = self.walk_bytes_left.saturating_sub(bytes);
    }
}

/// Whether the answer takes a walk. One such answer per connection and turn, and so many bytes in all,
/// keep a turn short whoever asks.
fn takes_a_walk(frame: &Frame<'_>) -> bool {
    frame.command.is_ok() && frame.verb.is_some_and(|verb| verb.row().takes_a_walk)
}
