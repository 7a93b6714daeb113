//! The end of the daemon: told to stop, it lets holders finish, and told again, it does not.
//!
//! Draining: waits and new locks are refused, idle connections are closed, newcomers are served.
//! Without a store that keeps them, all locks and byte ranges are waited for until their release or
//! the shutdown timeout, whether their holder has a connection or not. With one they outlive the
//! process, so the drain waits only for what is not recorded: tickets, and byte ranges of
//! connections that never attached. How one connection ends is in `closing.rs`.

use log::{info, warn};

use super::budget::SWEEP_NS;
use super::closing::Closing;
use super::conn::{Arrival, Conn, Owed, Transport};
use super::{Clock, Due, Server, connections};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::{Input, Refusal, Reply};
use crate::store::Store;
use crate::wire::Answer;
use crate::wire::codec::Codec;

/// How often a draining server looks for connections that have nothing left to wait for.
const SWEEP: Millis = Millis(50);

/// How much is left of what [`Server::say_the_rest`] has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing, but for peers that do not read.
    Said,
    /// Some of it is not kept yet.
    Waits,
    /// More than fits into a turn.
    More,
}

impl<T: Transport, S: Store> Server<T, S> {
    /// We are told to stop. The first time lets holders finish, the second time closes every
    /// connection.
    pub(super) fn stop(&mut self, now: Nanos) {
        if self.draining {
            warn!("told to stop again: {} left", self.held_and_open());
            return self.force_drain(now);
        }
        self.draining = true;
        self.engine.apply(now, Input::Drain, &mut self.effects);
        self.deliver(now);
        self.tell_drain();
        self.timers.arm(now, Due::DrainSweep);
        if self.settings.shutdown_timeout != Millis::ZERO {
            self.timers
                .arm(now.after(self.settings.shutdown_timeout), Due::DrainEnd);
        }
    }

    /// Logs what the drain waits for.
    fn tell_drain(&self) {
        let (held, _) = self.held_and_waiting();
        if !self.store.is_durable() {
            return match held {
                0 => info!("shutting down: nothing is held"),
                _ => info!(
                    "shutting down: {held} held; waiting for releases, at most \
                     --shutdown-timeout; a second signal exits at once"
                ),
            };
        }
        let would_lose = |id: &ConnId| self.engine.would_lose_something(*id);
        match self.ids().filter(would_lose).count() {
            0 => info!("shutting down: {held} held, on disk for the next start"),
            count => info!(
                "shutting down: waiting for byte ranges or queue places of {}, which are not on \
                 disk, at most --shutdown-timeout; a second signal exits at once",
                connections(count)
            ),
        }
    }

    /// `3 held, 1 connection`, for the log.
    fn held_and_open(&self) -> String {
        let (held, _) = self.held_and_waiting();
        format!("{held} held, {}", connections(self.conns.len()))
    }

    /// There is no memory for a connection: tells it so and closes it.
    pub(super) fn refuse_newcomer(&mut self, now: Nanos, id: ConnId) {
        self.refused += 1;
        self.conns[id.slot as usize].arrival = Arrival::Refused;
        if self.conns[id.slot as usize].codec.is_http() {
            self.say_no_memory(id);
        } else {
            self.say(id, Answer::Reply(&Reply::Refused(Refusal::Memory)));
        }
        self.leave(now, id, Closing::HalfClose, "refused when it came");
    }

    /// Ends connections that have nothing to finish, from this slot on, as far as the turn goes; and
    /// looks at all again after a while. Those that hold something which outlives us come last: until
    /// then they can still let go or renew.
    pub(super) fn drain_sweep(&mut self, now: Nanos, first_slot: usize) {
        let end = self.budget.spent() + SWEEP_NS;
        for slot in first_slot..self.conns.capacity() {
            if self.budget.spent() >= end {
                self.sweep = Some(slot);
                return;
            }
            self.budget.charge_sweep_look();
            let Some(conn) = self.conns.get(slot) else {
                continue;
            };
            let id = conn.id(slot);
            let is_stream = matches!(&conn.codec, Codec::Http(codec) if codec.is_stream());
            if self.is_finished(slot, conn) && !self.engine.holds_something(id) {
                self.budget.charge_sweep_end();
                if is_stream {
                    self.end_stream(now, id);
                    continue;
                }
                self.end_all(now, vec![id], "nothing left to finish");
            }
        }
        self.sweep = None;
        self.end_holders(now);
        self.timers.arm(now.after(SWEEP), Due::DrainSweep);
    }

    /// Nobody has anything left to finish: ends those that hold something which outlives us, all at
    /// once, because that is the end.
    fn end_holders(&mut self, now: Nanos) {
        let mut conns = self.conns.iter();
        if conns.all(|(slot, conn)| !is_awaited(conn) || self.is_finished(slot, conn)) {
            let holders = self.conns.iter().filter(|(_, conn)| is_awaited(conn));
            let holders = holders.map(|(slot, conn)| conn.id(slot)).collect();
            self.end_all(now, holders, "nobody else has anything to finish");
        }
    }

    fn is_finished(&self, slot: usize, conn: &Conn<T>) -> bool {
        let is_done = conn.is_quiet() && !conn.queued && !conn.is_leaving() && is_awaited(conn);
        is_done && !self.engine.has_unfinished(conn.id(slot))
    }

    /// The shutdown has waited long enough.
    pub(super) fn drain_end(&mut self, now: Nanos) {
        let left = self.held_and_open();
        warn!("shutdown: {left} left after --shutdown-timeout");
        self.force_drain(now);
    }

    /// Closes every connection at once and waits for nothing more: no request is served after this
    /// turn.
    fn force_drain(&mut self, now: Nanos) {
        self.drain_is_forced = true;
        let ids: Vec<ConnId> = self.ids().collect();
        self.end_all(now, ids, "server stops");
    }

    /// Ends connections because we stop, and not because they left.
    fn end_all(&mut self, now: Nanos, ids: Vec<ConnId>, why: &str) {
        self.is_stopping = true;
        for id in ids {
            self.close(now, id, why);
        }
        self.is_stopping = false;
    }

    /// For a leader that goes: nobody is heard any more. What was decided is handed to the
    /// store, and said as far as it is kept by now. Without this whatever was granted last would be in
    /// the log and nobody's.
    pub fn say_the_rest(&mut self, clock: Clock<'_>) -> Rest {
        let now = self.read_clock(clock);
        self.budget = self.budget.next_turn();
        self.hear_store(now);
        if self.failure.is_some() {
            return Rest::Said;
        }
        self.let_go_by_clock(now);
        // Whoever turns out to be gone has what it holds at the next leader, like all others.
        self.is_stopping = true;
        self.deliver(now);
        self.flush(now, Owed::Bulk);
        self.is_stopping = false;
        if self.http.has_finished() {
            self.note_finished(clock());
        }
        // A connection that turned out to be gone may have given back a value, or its place in a queue.
        self.commit(now);
        if !self.gate.is_empty() {
            Rest::More
        } else if self.gate.awaits_clock() || self.held_back.durable() < self.engine.record_count()
        {
            Rest::Waits
        } else {
            Rest::Said
        }
    }

    /// The store, to do with it what only its owner knows.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Whether a shutdown has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a shutdown has come to its end.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.awaited_connections() == 0 && !self.has_more_to_drain()
    }

    /// Whether a drain without connections goes on: what a departure undoes has to be recorded;
    /// without a store, what is held has to be released, and the last release to be answered.
    fn has_more_to_drain(&self) -> bool {
        match self.store.is_durable() {
            true => self.engine.has_begun(),
            false => {
                !self.drain_is_forced && (self.held_and_waiting().0 > 0 || !self.gate.is_empty())
            }
        }
    }
}

/// Whether a shutdown waits for the connection.
fn is_awaited<T>(conn: &Conn<T>) -> bool {
    conn.arrival == Arrival::Awaited
}
