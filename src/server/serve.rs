//! One connection's share of a turn: read, decode, serve, read on.
//!
//! Frames are served where they landed; only an unfinished one is copied. A connection is held up
//! while its answer is outstanding or it does not read; one that has more than its share
//! goes into the run queue (`ready.rs`). Ends are in `closing.rs`.

use std::io;
use std::mem;

use log::{debug, warn};

use super::closing::Closing;
use super::conn::{Flow, Phase, Transport};
use super::{Clock, READ_BYTES_PER_TURN, Server, auth, conn, stats};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{Effect, Input, Request};
use crate::wire::Answer;
use crate::wire::answer::Welcome;
use crate::wire::codec::Decoded;
use crate::wire::command::{Asked, Command};

impl<T: Transport> Server<T> {
    /// Serves the connection until it has nothing more, is held up, or has had its share.
    pub(super) fn serve_conn(&mut self, clock: Clock<'_>, id: ConnId) {
        let mut share = READ_BYTES_PER_TURN;
        let mut read_buf = mem::take(&mut self.read_buf);
        if let Some(conn) = self.conn_mut(id) {
            if conn.flow != Flow::Parked {
                conn.flow = Flow::Open;
            }
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
            self.mark_dirty(id); // the flush closes it, now that it was read
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
            let may_walk = self.budget.may_walk();
            let Some(conn) = self.conn_mut(id) else {
                break;
            };
            if conn.is_leaving() || conn.is_held_up() {
                break;
            }
            if used == input.len() {
                break;
            }
            match conn.codec.decode(&input[used..], &mut scratch) {
                // One such answer per connection and turn, and a bound on their bytes, keep the
                // turn short whoever asks.
                Decoded::Request(asked) if !may_walk && asked.takes_a_walk() => {
                    conn.line_started = now;
                    conn.flow = Flow::Denied;
                }
                Decoded::Request(asked) => {
                    used += asked.used;
                    conn.line_started = now;
                    self.serve_frame(now, id, &asked);
                }
                Decoded::Unfinished { moved_on } => {
                    if moved_on {
                        conn.line_started = now;
                    }
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

    fn serve_frame(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) {
        if self.conns[id.slot as usize].phase == Phase::Unauthenticated {
            return self.unlock(now, id, asked);
        }
        match asked.command {
            Ok(Command::Engine(request)) => self.ask(now, id, request, asked.takes_a_walk()),
            Ok(Command::Ping) => self.say(id, Answer::Ok),
            Ok(Command::Hello(hello)) => self.hello(now, id, hello.name),
            Ok(Command::Stats) => self.tell(id, |server, out| {
                let figures = stats::Figures {
                    connections: server.conns.len(),
                    slow_consumers: server.slow_consumers,
                    longest_turn_ns: server.longest_turn_ns,
                };
                let (view, tally) = (server.engine.view(now), server.engine.tally());
                stats::stats(out, view, tally, &figures, server.clients(now));
            }),
            Ok(Command::Who { key }) => self.tell(id, |server, out| {
                let address_of = |id: ConnId| server.address_of(id);
                stats::who(out, server.engine.view(now), key, &address_of);
            }),
            // A second `auth`, or one that nobody asked for.
            Ok(Command::Auth { .. }) => self.say(id, Answer::Error),
            Err(malformed) => {
                debug!(
                    "connection {}: error {} ({malformed:?})",
                    id.serial,
                    malformed.code()
                );
                self.say(id, Answer::Error);
            }
        }
    }

    /// Puts a request before the engine; without an answer the connection is parked.
    fn ask(&mut self, now: Nanos, id: ConnId, request: Request<'_>, takes_a_walk: bool) {
        let conn = &mut self.conns[id.slot as usize];
        conn.flow = Flow::Parked;
        let owed = conn.outbox.len();
        loop {
            self.engine
                .apply(now, Input::Request(id, request), &mut self.effects);
            if self.effects.last() != Some(&Effect::NotYet(id)) {
                break;
            }
            self.effects.pop();
        }
        self.acting = Some(id);
        self.deliver(now);
        self.acting = None;
        if takes_a_walk {
            self.note_walk(id, owed);
        }
        let work = self.engine.take_work();
        let conn = &mut self.conns[id.slot as usize];
        if !self.budget.charge(work) {
            conn.yield_turn();
        }
        if conn.is_parked() && conn.hung_up {
            // This request gets no answer, but those before it still do.
            self.leave(now, id, Closing::Flush, "left before it could wait");
        }
    }

    fn hello(&mut self, now: Nanos, id: ConnId, name: Option<&[u8]>) {
        let name = name.and_then(|name| str::from_utf8(name).ok());
        self.engine
            .apply(now, Input::Hello(id, name), &mut self.effects);
        let Self {
            conns,
            pool,
            engine,
            settings,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        let welcome = Welcome {
            version: env!("CARGO_PKG_VERSION"),
            epoch: settings.epoch,
            name: engine.name_of(id),
        };
        conn.codec
            .encode(conn.outbox.buf(pool), Answer::Hello(welcome));
        self.mark_dirty(id);
    }

    /// The first frame of a connection, while a secret is required.
    fn unlock(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) {
        let secret = self.settings.auth_token.as_deref().unwrap_or_default();
        if auth::opens(secret, &asked.command) {
            self.conns[id.slot as usize].phase = Phase::Open;
            self.say(id, Answer::Ok);
        } else {
            self.turn_away(now, id);
        }
    }

    pub(super) fn say(&mut self, id: ConnId, answer: Answer<'_>) {
        let conn = &mut self.conns[id.slot as usize];
        conn.codec.encode(conn.outbox.buf(&mut self.pool), answer);
        self.mark_dirty(id);
    }

    /// Answers with a long document.
    fn tell(&mut self, id: ConnId, write: impl Fn(&Self, &mut Vec<u8>)) {
        let slot = id.slot as usize;
        let owed = self.conns[slot].outbox.len();
        let (mut outbox, mut pool) = (
            mem::take(&mut self.conns[slot].outbox),
            mem::take(&mut self.pool),
        );
        let body = |out: &mut Vec<u8>| write(self, out);
        let codec = &self.conns[slot].codec;
        codec.encode(outbox.buf(&mut pool), Answer::Json(&body));
        self.pool = pool;
        self.conns[slot].outbox = outbox;
        self.note_walk(id, owed);
        self.mark_dirty(id);
    }

    /// Charges an answer that took a walk; `owed` is how much the client was owed before it. One
    /// such answer per connection and turn is enough.
    fn note_walk(&mut self, id: ConnId, owed: usize) {
        let conn = &mut self.conns[id.slot as usize];
        conn.yield_turn();
        let bytes = conn.outbox.len().saturating_sub(owed);
        self.budget.charge_walk(bytes);
    }
}
