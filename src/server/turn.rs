//! The order of a turn, completely, and nowhere else.
//!
//! ```text
//! accept                newcomers, between turns: by then the connections that left have made room
//! turn                  reads the clock: it is this late at least
//!   hang-ups            first of all, so that no connection that has left is granted what others set
//!                       free; a parked one leaves its queue here
//!   run queue           at most 256 that hung up, then those that were denied a walk in the last turn,
//!                       then those that had more than their share in it
//!   events              each connection with something to read gets its share of 16 KiB
//!   stop                if we are told to: first drain, the second time close everything
//!   time                the engine's: departures that are not finished, then leases, waits, values and
//!                       idle keys that are due, for about a millisecond
//!   timers              the server's: connections that took too long, shutdown
//!   resumed             at most 4,096 connections that were answered after waiting go on
//!   flush               slow consumers are closed; bytes leave, one write for each connection, those
//!                       that were waited for first
//!   close               at most 256 sockets that are done with
//! ```
//!
//! The reactor, the simulator and the tests all go through [`Server::turn`]; none of them knows
//! more of the order than what a poll reports.

use super::budget::{Budget, CLOSES_MAX, TIME_WORK};
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
    /// One turn: everything reported is heard, everything due is done, everything owed is sent.
    /// `stops` says how often we were told to stop since the last turn: see `shutdown.rs`.
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
        self.engine
            .apply(now, Input::Time(TIME_WORK), &mut self.effects);
        self.engine.take_work(); // has its own limit
        self.deliver(now);
        self.fire_timers(now);
        self.serve_resumed(clock);
        self.flush(self.clock_read);
        let closes = self.ended.len().min(CLOSES_MAX);
        self.ended.drain(..closes);
        self.run.end_turn();
        self.budget = Budget::new();
    }

    /// The loop goes to sleep, so the turn is over. Operators see how long the longest one was:
    /// nobody else was heard meanwhile.
    pub fn note_sleep(&mut self, now: Nanos) {
        if let Some(began) = self.turn_began.take() {
            self.longest_turn_ns = self.longest_turn_ns.max(now.since(began));
        }
    }

    /// What time it is, right now. What is due may come a moment late but must not come early, so
    /// code that has not read a socket since uses the last look.
    pub(super) fn read_clock(&mut self, clock: Clock<'_>) -> Nanos {
        self.clock_read = clock();
        self.clock_read
    }

    /// The peer has closed, at least its sending side. From here on it is absent: it is not granted
    /// what anything else in this turn sets free, nor counted among those who hear of it, whether
    /// it is served to its end in this turn or in a later one.
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
        // A connection that has hung up is already in the run queue, or was served to its end. Only
        // one that was held up, or had nothing to be read then, is served now.
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
