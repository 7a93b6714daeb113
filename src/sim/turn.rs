//! One turn of the server: what the poll reports, how the server is called, when it wakes.
//!
//! A turn mirrors `net::reactor`: hang-ups first, then every other event in any order, then
//! `finish_turn`. There is one difference: here new connections are accepted before `finish_turn`,
//! there after it. `faults::server` draws how late the server notices an event or a deadline;
//! `checks` says what must hold after the turn.

use super::simulation::Simulation;
use crate::base::{ConnId, Nanos};
use crate::pipe::Readiness;

/// What a poll reports.
#[derive(Clone, Copy, Debug)]
enum PollEvent {
    Conn(ConnId, Readiness),
    Shutdown,
}

impl Simulation {
    /// Makes the next poll report this connection.
    pub(super) fn report(&mut self, number: u32) {
        self.pending.insert(number);
        self.expect_turn();
    }

    pub(super) fn expect_turn(&mut self) {
        if self.due.is_none() {
            self.due = Some(self.turn_begins());
        }
    }

    pub(super) fn signal_shutdown(&mut self) {
        self.shutdown_signals += 1;
        self.expect_turn();
    }

    /// Whether the server has nothing to do at this instant.
    pub(super) fn is_quiet(&self) -> bool {
        self.due.is_none() && self.server.next_deadline().is_none_or(|at| at > self.now)
    }

    /// When the poll returns.
    pub(super) fn wakes_at(&self) -> Option<Nanos> {
        let deadline = self.server.next_deadline();
        let deadline = deadline.map(|at| Nanos(at.0.saturating_add(self.oversleep_ns)));
        let at = self.due.into_iter().chain(deadline).min()?;
        // A timer that never fires is no reason to wake.
        (at < Nanos::NEVER).then_some(at.max(self.paused_until))
    }

    /// Plays one turn as the reactor does it, and checks everything that must hold after it.
    pub(super) fn take_turn(&mut self) -> Result<(), String> {
        let now = self.now;
        let events = self.poll();
        self.trace.mix(&now.0.to_le_bytes());
        for event in &events {
            if let PollEvent::Conn(id, ready) = event
                && (ready.read_closed || ready.error)
            {
                self.server.hang_up(now, *id);
            }
        }
        for event in &events {
            match *event {
                PollEvent::Conn(id, ready) => {
                    if ready.readable || ready.read_closed || ready.error {
                        self.server.readable(&|| now, id);
                    }
                    if ready.writable {
                        self.server.writable(id);
                    }
                }
                PollEvent::Shutdown => self.shut_down(),
            }
        }
        let accepted = self.accept();
        self.server.finish_turn(&|| now);
        self.turn += 1;
        self.totals.turns += 1;
        self.follow_interests();
        // A kernel reports at registration what arrived before it.
        for number in accepted? {
            if self.connections[&number].peer.readiness().readable {
                self.report(number);
            }
        }
        self.oversleep_ns = self.oversleep();
        self.check_turn()
    }

    /// Reports what has happened since the last turn, in any order.
    fn poll(&mut self) -> Vec<PollEvent> {
        let mut events = Vec::new();
        for number in std::mem::take(&mut self.pending) {
            let Some(conn) = self.connections.get(&number) else {
                continue;
            };
            let Some(id) = conn.id else { continue };
            let mut ready = conn.peer.readiness();
            ready.writable &= conn.watches_write;
            events.push(PollEvent::Conn(id, ready));
            events.extend(
                self.echo(id, ready)
                    .map(|(id, ready)| PollEvent::Conn(id, ready)),
            );
        }
        for _ in 0..std::mem::take(&mut self.shutdown_signals) {
            events.push(PollEvent::Shutdown);
        }
        self.due = None;
        self.rng.shuffle(&mut events);
        events
    }

    fn accept(&mut self) -> Result<Vec<u32>, String> {
        let mut accepted = Vec::new();
        for (number, pipe) in std::mem::take(&mut self.backlog) {
            let limit = self.plan.settings.connections_max as usize;
            let has_room = limit == 0 || self.server.connections() < limit;
            let id = self.server.accept(self.now, pipe);
            if id.is_some() != has_room {
                return Err(format!("accepted {id:?} with room {has_room}"));
            }
            let conn = self.connections.get_mut(&number).expect("in the backlog");
            conn.id = id;
            match id {
                Some(id) => {
                    self.by_serial.insert(id.serial, number);
                    accepted.push(number);
                }
                None => self.totals.refused += 1,
            }
        }
        Ok(accepted)
    }

    fn shut_down(&mut self) {
        self.trace
            .say(self.now, format_args!("server told to stop"));
        if self.server.is_draining() {
            self.is_killed = true;
            return self.server.close_all(self.now);
        }
        self.backlog.clear(); // the listeners are closed, so nobody accepts these any more
        self.draining = Some((self.now, self.turn + 1));
        self.server.shutdown(self.now);
    }

    /// Notes which connections the server wants to write to; those that have room already are
    /// reported at once.
    fn follow_interests(&mut self) {
        let mut changed = Vec::new();
        self.server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            let number = self.by_serial[&id.serial];
            if let Some(conn) = self.connections.get_mut(&number) {
                conn.watches_write = wants_write;
                let ready = conn.peer.readiness();
                if wants_write && ready.writable || ready.readable {
                    self.report(number);
                }
            }
        }
    }
}
