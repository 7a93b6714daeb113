//! The order of a turn, completely, and nowhere else.
//!
//! ```text
//! accept                newcomers, between turns: by then whoever left has made room
//! turn                  reads the clock: it is this late at least
//!   hang-ups            first of all, so that nobody who has left is granted what others set free
//!   run queue           hung up, then denied a walk, then more than a share in the last turn
//!   events              each connection that has something to read gets its share
//!   stop                if we are told to
//!   time                leases and waits that are over end, idle keys go (the engine's)
//!   timers              connections that took too long (the server's)
//!   resumed             whoever was answered after waiting goes on
//!   flush               bytes leave, one write for each connection
//!   close               sockets that are done with
//! ```
//!
//! The reactor, the simulator and the tests all go through [`Server::turn`]; none of them knows more
//! of the order than what a poll reports.

use super::budget::{Budget, CLOSES_MAX};
use super::closing::Closing;
use super::conn::Transport;
use super::{Clock, Server};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;

/// What a poll reports of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub conn: ConnId,
    /// How it is ready.
    pub readiness: Readiness,
}

/// How a connection is ready, as a poll says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There are bytes to read.
    pub readable: bool,
    /// There is room to write again.
    pub writable: bool,
    /// The peer has closed, at least its sending side, or the connection is broken.
    pub hung_up: bool,
}

impl<T: Transport> Server<T> {
    /// One turn: everything reported is heard, everything due is done, everything owed is sent. `stops`
    /// says how often we were told to stop since the last turn: see `shutdown.rs`.
    pub fn turn<E>(&mut self, clock: Clock<'_>, events: E, stops: u32)
    where
        E: Iterator<Item = Event> + Clone,
    {
        let now = self.read_clock(clock);
        self.turn_began = Some(now);
        for event in events.clone() {
            if event.readiness.hung_up {
                self.hang_up(now, event.conn);
            }
        }
        self.serve_ready(clock);
        for Event { conn, readiness } in events {
            if readiness.readable || readiness.hung_up {
                self.readable(clock, conn);
            }
            if readiness.writable {
                self.mark_dirty(conn);
            }
        }
        for _ in 0..stops {
            self.stop(self.clock_read);
        }
        self.end_turn(clock);
    }

    /// Everything that is due is done, everything that is owed is sent.
    fn end_turn(&mut self, clock: Clock<'_>) {
        let now = self.clock_read;
        self.engine.apply(now, Input::Time, &mut self.effects);
        self.deliver(now);
        self.fire_timers(now);
        self.serve_resumed(clock);
        self.flush(self.clock_read);
        let closes = self.ended.len().min(CLOSES_MAX);
        self.ended.drain(..closes);
        self.run.end_turn();
        self.budget = Budget::new();
    }

    /// The loop goes to sleep: so long was the turn. Operators see the longest, for so long nobody was
    /// heard.
    pub fn note_sleep(&mut self, now: Nanos) {
        if let Some(began) = self.turn_began.take() {
            self.longest_turn_ns = self.longest_turn_ns.max(now.since(began));
        }
    }

    /// What time it is, right now. What is due may come a moment late but must not come early, so
    /// nobody looks again who has not waited for anything since.
    pub(super) fn read_clock(&mut self, clock: Clock<'_>) -> Nanos {
        self.clock_read = clock();
        self.clock_read
    }

    /// The peer has closed, at least its sending side. From here on it is absent: it is not granted what
    /// anything else in this turn sets free, nor counted among those who hear of it, whether it is
    /// served to its end in this turn or in a later one.
    fn hang_up(&mut self, now: Nanos, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        conn.hung_up = true;
        conn.readable = true;
        if conn.is_parked() {
            self.leave(now, id, Closing::Flush, "left while waiting");
        } else {
            self.engine
                .apply(now, Input::HungUp(id, true), &mut self.effects);
        }
        self.serve_later(id);
    }

    /// There are bytes to read.
    fn readable(&mut self, clock: Clock<'_>, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        // A connection that has hung up is in the run queue since it did, or was served already and
        // has come to its end; unless it was held up or had nothing to be read.
        if conn.hung_up && (conn.queued || conn.is_leaving()) {
            return;
        }
        conn.readable = true;
        if conn.hung_up {
            self.serve_later(id);
        } else if !conn.queued {
            self.serve_conn(clock, id);
        }
    }
}
