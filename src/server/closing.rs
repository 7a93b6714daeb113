//! How connections end: the peer left, was cut off, was turned away, was too slow, or we stop.
//!
//! Whatever the reason, the engine forgets the connection at once and exactly once; only the socket
//! may linger, so that a last answer arrives. Never serves a frame.

use log::debug;

use super::budget::{CLOSE_ENCRYPTED_NS, CLOSE_FULL_NS, CLOSE_NS, CLOSES_NS, Kind};
use super::conn::{Arrival, Flow, Flushed, Owed, Phase, Transport};
use super::guesses::{DELAY, TOLD_PER_TURN_MAX};
use super::{Due, Server};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::Input;
use crate::store::Store;
use crate::wire::Answer;
use crate::wire::http::Part;
use crate::wire::http::answer::{LATE_BODY, LATE_HEAD};

/// How a connection that is served no longer comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Close as soon as everything owed is sent.
    Flush,
    /// Send everything, say that there will be no more, read on until the peer has understood.
    /// Closing with unread input would be a reset, and a reset destroys the answer just sent.
    HalfClose,
    /// The same, but the peer may read as slowly as any other: it was not cut off, its last answer may
    /// be long.
    LastAnswer,
    /// Send everything, then wait: the close must not reveal at once that a secret was wrong.
    Delay,
}

/// How long a peer that was cut off may take to read its last answer, from when that may leave.
pub(super) const CLOSING_MAX: Millis = Millis(1_000);

/// How many bytes of what a peer still sends after it was cut off are read and thrown away; after
/// that its socket is left alone until the closing is over, or closed if it has hung up.
const CLOSING_DISCARD_BYTES_MAX: u32 = 1 << 20;

/// A turn this late is our own doing (the process was stopped), and no peer's.
const LATE_NS: u64 = 1_000_000_000;

/// The socket of a connection that has ended. It is closed when this is dropped.
pub(super) struct Ended<T> {
    transport: T,
    /// The system still has bytes of it, in one direction or the other.
    is_full: bool,
}

impl<T: Transport> Ended<T> {
    /// What it costs to close the socket.
    pub(super) fn close_ns(&self) -> u64 {
        let ns = match self.is_full {
            true => CLOSE_FULL_NS,
            false => CLOSE_NS,
        };
        ns + u64::from(self.transport.is_encrypted()) * CLOSE_ENCRYPTED_NS
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// A connection has shown a wrong secret, of the daemon or of a client. Its refusal is delayed.
    pub(super) fn turn_away(&mut self, now: Nanos, id: ConnId) {
        let Self {
            conns,
            timers,
            settings,
            guesses,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        guesses.note_wrong(now, conn.transport.host(), id);
        conn.flow = Flow::AwaitsRefusal;
        timers.rearm(conn.timer, conn.deadline(now, settings));
        self.arm_guesses(None);
        self.end_hung_up_guess(now, id);
    }

    /// Ends a connection with a token that hung up after a wrong secret of a client and waits for a
    /// place. What it holds is released now.
    pub(super) fn end_hung_up_guess(&mut self, now: Nanos, id: ConnId) {
        if let Some(conn) = self.conn_mut(id)
            && conn.hung_up
            && conn.is_let_in()
            && self.guesses.waits(id)
        {
            self.leave(now, id, Closing::Delay, "left after a wrong secret");
        }
    }

    /// Refuses a connection whose delay is over, and ends it. A line connection with a token goes
    /// on: it guessed the secret of a client.
    fn tell_wrong(&mut self, now: Nanos, id: ConnId) {
        let Some(conn) = self.conn_mut(id).filter(|conn| conn.awaits_refusal()) else {
            return; // it has gone
        };
        conn.flow = Flow::Open;
        conn.line_started = now;
        let (is_http, is_let_in, hung_up) = (conn.codec.is_http(), conn.is_let_in(), conn.hung_up);
        if is_http {
            self.say_unauthorized(id);
        } else {
            self.say(id, Answer::ErrorAuth);
        }
        if is_http || !is_let_in {
            self.leave(now, id, Closing::HalfClose, "not authenticated");
        }
        if hung_up {
            self.serve_to_its_end(id);
        } else {
            self.run.resume(id);
        }
    }

    /// Tells connections that have shown a wrong secret so, when their delay is over.
    pub(super) fn tell_waiting(&mut self, now: Nanos) {
        self.guesses.timer = None;
        let mut told_left = TOLD_PER_TURN_MAX;
        while told_left > 0
            && let Some(id) = self.guesses.next_due(now)
        {
            told_left -= 1;
            self.tell_wrong(now, id);
        }
        self.guesses.fill_places(now);
        let next_turn = Nanos(now.0 + 1);
        self.arm_guesses((told_left == 0).then_some(next_turn));
    }

    /// Has [`Server::tell_waiting`] called at this time, otherwise when there is a reason to.
    fn arm_guesses(&mut self, at: Option<Nanos>) {
        let Self {
            guesses, timers, ..
        } = self;
        match (at.or_else(|| guesses.deadline()), guesses.timer) {
            (Some(at), Some(timer)) => timers.rearm(timer, at),
            (Some(at), None) => guesses.timer = Some(timers.arm(at, Due::Guesses)),
            (None, _) => {}
        }
    }

    /// Ends a connection whose input can no longer be followed, with a last `error`.
    pub(super) fn cut_off(&mut self, now: Nanos, id: ConnId, why: &str) {
        if self.conns[id.slot as usize].phase == Phase::Unauthenticated {
            return self.turn_away(now, id);
        }
        let peer = self.peer(id);
        self.complaints.tell(now, &peer, why);
        self.say(id, Answer::Error);
        self.leave(now, id, Closing::HalfClose, why);
    }

    /// Ends a connection that does not read what is pushed to it.
    pub(super) fn close_slow_consumer(&mut self, now: Nanos, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            let (peer, unread) = (conn.transport.peer(), conn.outbox.len());
            debug!(client = id.serial, peer; "slow consumer: {unread} bytes pushed to it are unread");
            self.slow_consumers += 1;
            self.close(now, id, "slow consumer");
        }
    }

    /// Stops serving the connection: the engine forgets it now, the socket follows when everything
    /// owed is sent and the closing is over.
    pub(super) fn leave(&mut self, now: Nanos, id: ConnId, closing: Closing, why: &str) {
        let Self {
            conns,
            pool,
            settings,
            timers,
            guesses,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        if conn.is_leaving() {
            // The peer has said all it had to say; we only have to send what we owe it.
            if let Phase::Leaving {
                closing: it @ (Closing::HalfClose | Closing::LastAnswer),
                ..
            } = &mut conn.phase
            {
                *it = Closing::Flush;
            }
            return self.owe_the_rest(id);
        }
        debug!("connection {} closing: {why}", id.serial);
        let until = match closing {
            // It may read as slowly as the write timeout allows.
            Closing::Flush | Closing::LastAnswer => Nanos::NEVER,
            Closing::HalfClose => now.after(CLOSING_MAX),
            Closing::Delay => now.after(DELAY),
        };
        let discard_bytes_left = CLOSING_DISCARD_BYTES_MAX;
        conn.phase = Phase::Leaving {
            closing,
            until,
            discard_bytes_left,
        };
        if conn.awaits_refusal() {
            guesses.leave(id);
        }
        conn.queued &= !conn.flow.waits_for_room();
        conn.flow = Flow::Open;
        conn.inbox.clear(pool);
        timers.rearm(conn.timer, conn.deadline(now, settings));
        self.forget(now, id);
        self.charge_engine(Kind::Depart);
        self.deliver(now);
        self.owe_the_rest(id);
    }

    /// The connection is to be flushed for the last time: after all others, if it is owed nothing.
    pub(super) fn owe_the_rest(&mut self, id: ConnId) {
        let is_owed = self.conn_mut(id).is_some_and(|it| !it.outbox.is_empty());
        self.owe(id, if is_owed { Owed::Answer } else { Owed::Push });
    }

    /// Ends the connection here and now; its socket is closed at the end of the turn, or of one of
    /// the next if many end at once.
    pub(super) fn close(&mut self, now: Nanos, id: ConnId, why: &str) {
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
        if conn.transport.is_in_handshake() {
            self.handshakes.note_closed();
        }
        self.http.note_closed(&conn.codec);
        self.strangers.note_gone(conn.weight);
        timers.cancel(conn.timer);
        match conn.arrival {
            Arrival::Awaited => {}
            Arrival::Late => self.latecomers -= 1,
            Arrival::Refused => self.refused -= 1,
        }
        if conn.awaits_refusal() {
            self.guesses.leave(id);
        }
        let before = pool.memory();
        conn.inbox.clear(pool);
        conn.outbox.clear(pool);
        let freed = before.saturating_sub(pool.memory());
        self.budget.charge_freed(freed);
        self.gate.note_left(&mut conn.unsent_push_bytes, 0);
        if !conn.is_leaving() {
            debug!("connection {} closing: {why}", id.serial);
            self.forget(now, id);
        }
        self.held_back.forget(id);
        // Values that were popped for it and never sent go back, the last one first.
        for unsent in conn.unsent_pops.take_latest_first() {
            self.engine
                .apply(now, Input::Unsent(unsent.popped), &mut self.effects);
        }
        self.ended.push_back(Ended {
            is_full: conn.is_blocked || conn.readable || conn.is_left_unread(),
            transport: conn.transport,
        });
        self.charge_engine(Kind::Depart);
        self.deliver(now);
    }

    /// Has the engine forget the connection. One that ends because we stop has not left: what it
    /// holds is on disk, and is there again when we are.
    fn forget(&mut self, now: Nanos, id: ConnId) {
        let input = if self.is_stopping && self.store.is_durable() {
            Input::CutOff(id)
        } else {
            Input::Disconnected(id)
        };
        self.engine.apply(now, input, &mut self.effects);
        if self.store.is_durable() {
            self.note_stalled_for(now, id, None);
        }
    }

    /// Closes the sockets of connections that have ended, as many as a turn has time for.
    pub(super) fn close_ended(&mut self) {
        let mut ns_left = CLOSES_NS;
        while ns_left > 0
            && let Some(ended) = self.ended.pop_front()
        {
            let ns = ended.close_ns();
            self.budget.charge(Kind::Depart, ns);
            ns_left = ns_left.saturating_sub(ns);
        }
    }

    /// A connection's timer fired: something may have taken too long.
    pub(super) fn on_timer(&mut self, now: Nanos, slot: u32) {
        let Self {
            conns,
            settings,
            timers,
            ..
        } = self;
        let conn = &mut conns[slot as usize];
        let id = conn.id(slot as usize);
        conn.timer = timers.arm(Nanos::NEVER, Due::Conn(slot));
        if conn.write_deadline(settings) <= now {
            // In a turn that comes late, the peer may have made room in time and we did not use it.
            let (late_ns, owed) = (now.since(conn.write_deadline(settings)), conn.outbox.len());
            self.budget.charge_write();
            let broken = matches!(self.let_out(now, id), Flushed::Broken(_));
            let conn = &mut self.conns[slot as usize];
            let ours = late_ns >= LATE_NS && conn.outbox.len() < owed;
            if broken || (conn.write_deadline(&self.settings) <= now && !ours) {
                let peer = conn.transport.peer();
                let why = "it does not take what it is owed";
                self.complaints.tell(now, &peer, why);
                return self.close(now, id, "write timeout");
            }
            conn.restart_stall(now);
            self.owe(id, Owed::Push);
        }
        let Self {
            conns,
            settings,
            engine,
            held_back,
            ..
        } = self;
        let conn = &mut conns[slot as usize];
        if let Phase::Leaving { until, .. } = conn.phase {
            // A stranger need not learn that its secret was wrong.
            let is_owed = conn.awaits_clock && !conn.is_stranger();
            if until <= now && !held_back.holds_back(id) && !is_owed {
                return self.close(now, id, "closing is over");
            } else if until <= now {
                conn.note_may_leave(now); // it does not yet: looks again then
            }
        } else if conn.transport.is_in_handshake() {
            // What it has sent and we have not come to may be all that was missing.
            if conn.handshake_deadline(settings) <= now && !conn.queued {
                return self.end_late_handshake(now, id);
            }
        } else if conn.awaits_refusal() && conn.read_deadline(settings) <= now {
            return self.close(now, id, "showed a wrong secret");
        } else if let Some(codec) = conn.codec.as_http()
            && codec.is_stream()
        {
            self.on_stream_timer(now, id);
        } else if conn.is_awaited() && conn.read_deadline(settings) <= now {
            if let Some(codec) = conn.codec.as_http()
                && codec.is_mid_request()
            {
                let late = match codec.part {
                    Part::Body => LATE_BODY,
                    Part::Head | Part::Nothing => LATE_HEAD,
                };
                return self.end_with(now, id, &late);
            }
            if conn.phase == Phase::Unauthenticated {
                // Without a word, whatever it has sent: its time to authenticate is over.
                return self.close(now, id, "did not authenticate in time");
            }
            if conn.codec.is_mid_request() {
                return self.cut_off(now, id, "half a request came for the read timeout");
            }
            if !engine.owns_something(id) {
                // Without a word: it asked for nothing, and a client that is used again after a
                // pause would read an `error` as its next answer.
                return self.close(now, id, "silent for the read timeout");
            }
            // A connection that owns something may be silent for as long as it likes.
            conn.line_started = now;
        }
        let conn = &mut self.conns[slot as usize];
        self.timers
            .rearm(conn.timer, conn.deadline(now, &self.settings));
    }
}
