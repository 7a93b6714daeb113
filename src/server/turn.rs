//! The order of a turn, completely, and nowhere else.
//!
//! ```text
//! accept                newcomers, between turns: by then the connections that left have made room
//! turn                  reads the clock: it is this late at least
//!   store               what is on disk by now may be said
//!   hang-ups            all are noted first of all, so that no connection that has left is granted
//!                       what others set free
//!   hung up             some of those that have left are served to their end; a parked one leaves its
//!                       queue here
//!   fresh               connections that have sent something get a small first share: first those
//!                       that had to wait in the last turn, then those with an event in this one
//!   handshakes          some of those that are agreeing on keys get on (`handshakes.rs`)
//!   flush               what they are answered leaves now, if others have more to ask
//!   more                those that have more than their first share take turns
//!   stop                if we are told to: first drain, the second time close everything
//!   time                the engine's: departures that are not finished, then leases, waits, values and
//!                       idle keys that are due
//!   timers              the server's: connections that took too long, shutdown
//!   resumed             connections that were answered after waiting go on
//!   flush               changes go to the store; slow consumers are closed; bytes leave, one write
//!                       for each connection: first to those that were waiting, then to those that
//!                       asked, then pushes, then to those that are owed much
//!   finished            how long answers over HTTP took is noted, and logged if that is wanted
//!   memory              what is in use is compared with the bound; who waited for room may go on
//!   close               sockets that are done with
//! ```
//!
//! Each part stops when it has spent its share of the turn (`budget.rs`) and goes on in the next one.
//! The reactor, the simulator and the tests all go through [`Server::turn`]; none of them knows
//! more of the order than what a poll reports.

use super::budget::{Kind, TIME_NS, TIME_NS_MIN, Work};
use super::conn::{Owed, Transport};
use super::{Clock, Server};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;
use crate::store::Store;

/// A pause this long between two turns, with something due in it, is not the loop's own doing.
const STOPPED_NS: u64 = 50_000_000;

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

/// How long the longest turn was, and what it was spent on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongestTurn {
    pub(super) ns: u64,
    /// Estimated from what was done; the sum can differ from what the clock says.
    pub(super) work: Work,
}

impl<T: Transport, S: Store> Server<T, S> {
    /// One turn: everything reported is heard, everything due is done, everything owed is sent.
    /// `stops` says how often we were told to stop since the last turn: see `shutdown.rs`.
    pub fn turn<E>(&mut self, clock: Clock<'_>, events: E, stops: u32)
    where
        E: Iterator<Item = Event> + Clone,
    {
        let now = self.read_clock(clock);
        self.turn_began = Some(now);
        self.budget = self.budget.next_turn();
        self.was_stopped = self.was_stopped(now);
        self.hear_store(now);
        if self.failure.is_some() {
            return;
        }
        self.let_go_by_clock(now);
        for event in events.clone() {
            if event.readiness.hung_up {
                self.note_hung_up(now, event.conn);
            }
        }
        self.serve_hung_up(clock);
        self.serve_fresh(clock);
        for Event { conn, readiness } in events {
            if readiness.readable || readiness.hung_up {
                self.readable(clock, conn);
            }
            if readiness.writable {
                self.owe(conn, Owed::Push);
            }
        }
        if self.handshakes.is_waiting() {
            self.serve_handshakes(clock);
        }
        if self.run.is_crowded() {
            self.flush(self.clock_read, Owed::Answer);
            self.serve_more(clock);
        }
        for _ in 0..stops {
            self.stop(self.clock_read);
        }
        self.end_turn(clock);
    }

    /// Everything that is due is done, everything that is owed is sent.
    fn end_turn(&mut self, clock: Clock<'_>) {
        let now = self.clock_read;
        // What a connection that has hung up holds is not set free before it is served, so that
        // those who left before have no more than their least share meanwhile.
        let work = if self.run.has_hung_up() {
            TIME_NS_MIN
        } else {
            TIME_NS.saturating_sub(self.budget.spent()).max(TIME_NS_MIN)
        };
        self.engine.apply(now, Input::Time(work), &mut self.effects);
        let departing = self.engine.take_departing_work();
        let work = self.engine.take_work();
        self.budget.charge(Kind::Depart, departing);
        self.budget.charge(Kind::Expire, work - departing);
        self.deliver(now);
        self.fire_timers(now);
        self.serve_resumed(clock);
        self.flush(self.clock_read, Owed::Bulk);
        if self.http.has_finished() {
            self.note_finished(clock());
        }
        self.watch_memory(self.clock_read);
        self.close_ended();
        self.commit(self.clock_read);
        self.turn_ended = self.clock_read;
    }

    /// Whether the process was stopped, and a lease or a wait should have ended meanwhile. Turns that
    /// are long by themselves do not count: then the next one would be long again.
    fn was_stopped(&self, now: Nanos) -> bool {
        let is_long_ago = |then: Nanos| now.since(then) >= STOPPED_NS;
        let due = self.engine.next_deadline();
        due.is_some_and(|due| due != Nanos(0) && is_long_ago(due)) && is_long_ago(self.turn_ended)
    }

    /// The loop goes to sleep, so the turn is over. Operators see how long the longest one was:
    /// nobody else was heard meanwhile.
    pub fn note_sleep(&mut self, now: Nanos) {
        let Some(began) = self.turn_began.take() else {
            return;
        };
        let ns = now.since(began);
        self.pace.note_turn(now, ns, self.budget.requests());
        if ns > self.longest_turn.ns {
            let work = self.budget.work();
            self.longest_turn = LongestTurn { ns, work };
        }
    }

    /// What the last turn took besides sockets, in nanoseconds, by the prices of `budget.rs`; for the
    /// simulator, in which time passes by it.
    #[must_use]
    pub fn decided_ns(&self) -> u64 {
        let work = self.budget.work();
        work[Kind::Decide] + work[Kind::Expire] + work[Kind::Depart]
    }

    /// What time it is, right now. What is due may come a moment late but must not come early, so
    /// code that has not read a socket since uses the last look.
    pub(super) fn read_clock(&mut self, clock: Clock<'_>) -> Nanos {
        self.clock_read = clock();
        self.clock_read
    }

    /// The peer has closed, at least its sending side. From here on it is absent: it is not granted
    /// what anything else in this turn sets free, nor counted among those who hear of it, whether
    /// it is served to its end in this turn or in a later one. This is done for all of them in one
    /// go, because each has to be absent before anything is set free.
    fn note_hung_up(&mut self, now: Nanos, id: ConnId) {
        self.budget.charge_hang_up();
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        conn.hung_up = true;
        conn.readable = true;
        conn.queued &= !conn.flow.ends_with_a_hang_up(); // it waits no longer
        self.engine
            .apply(now, Input::HungUp(id, true), &mut self.effects);
        self.serve_to_its_end(id);
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
            self.serve_to_its_end(id);
        } else if !conn.queued {
            if conn.transport.is_in_handshake() {
                conn.queued = true;
                self.handshakes.push(id);
                return;
            }
            self.serve_fresh_one(clock, id);
        }
    }
}
