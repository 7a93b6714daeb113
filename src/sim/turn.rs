//! One turn of the server: what the poll reports, how the server is called, when it wakes.
//!
//! The order of a turn is the server's own (`server::turn`), as it is for the reactor; here is only
//! what a poll reports, in any order. `faults::server` draws how late the server notices an event
//! or a deadline; `checks` says what must hold after the turn.

use super::simulation::Simulation;
use crate::base::Nanos;
use crate::server::Event;

impl Simulation {
    /// Makes the next poll report this connection.
    pub(super) fn report(&mut self, number: u32) {
        self.life.pending.insert(number);
        self.expect_turn();
    }

    pub(super) fn expect_turn(&mut self) {
        if self.life.due.is_none() {
            self.life.due = Some(self.turn_begins());
        }
    }

    pub(super) fn signal_shutdown(&mut self) {
        self.life.shutdown_signals += 1;
        self.expect_turn();
    }

    /// Whether the server has nothing to do at this instant.
    pub(super) fn is_quiet(&self) -> bool {
        self.life.due.is_none()
            && self
                .life
                .server
                .next_deadline()
                .is_none_or(|at| at > self.now)
    }

    /// When the poll returns.
    pub(super) fn wakes_at(&self) -> Option<Nanos> {
        let deadline = self.life.server.next_deadline();
        let deadline = deadline.map(|at| Nanos(at.0.saturating_add(self.life.oversleep_ns)));
        let at = self.life.due.into_iter().chain(deadline).min()?;
        // A timer that never fires is no reason to wake.
        (at < Nanos::NEVER).then_some(at.max(self.life.paused_until))
    }

    /// Plays one turn as the reactor does it, and checks everything that must hold after it.
    pub(super) fn take_turn(&mut self) -> Result<(), String> {
        let now = self.now;
        let events = self.poll();
        let stops = self.hear_shutdown();
        self.trace.mix(&now.0.to_le_bytes());
        self.life
            .server
            .turn(&|| now, events.iter().copied(), stops);
        self.turn += 1;
        self.totals.turns += 1;
        self.follow_interests();
        // A kernel reports at registration what arrived before it.
        for number in self.accept()? {
            if self.life.connections[&number].peer.readiness().readable {
                self.report(number);
            }
        }
        self.life.oversleep_ns = self.oversleep();
        self.check_turn()
    }

    /// Reports what has happened since the last turn, in any order.
    fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for number in std::mem::take(&mut self.life.pending) {
            let Some(conn) = self.life.connections.get(&number) else {
                continue;
            };
            let Some(id) = conn.id else { continue };
            let mut readiness = conn.peer.readiness();
            readiness.writable &= conn.watches_write;
            let event = Event {
                conn: id,
                readiness,
            };
            events.push(event);
            events.extend(self.echo(event));
        }
        self.life.due = None;
        self.rng.shuffle(&mut events);
        events
    }

    fn accept(&mut self) -> Result<Vec<u32>, String> {
        let mut accepted = Vec::new();
        for (number, pipe) in std::mem::take(&mut self.life.backlog) {
            let limit = self.plan.settings.connections_max as usize;
            let has_room = limit == 0 || self.life.server.connections() < limit;
            let id = self.life.server.accept(self.now, pipe);
            if id.is_some() != has_room {
                return Err(format!("accepted {id:?} with room {has_room}"));
            }
            let conn = self
                .life
                .connections
                .get_mut(&number)
                .expect("in the backlog");
            conn.id = id;
            conn.is_newcomer = id.is_some() && self.life.server.is_draining();
            match id {
                Some(id) => {
                    self.totals.newcomers += u64::from(conn.is_newcomer);
                    self.life.by_serial.insert(id.serial, number);
                    accepted.push(number);
                }
                None => self.totals.refused += 1,
            }
        }
        Ok(accepted)
    }

    /// How often the server was told to stop since the last turn: the first time it drains, the
    /// second time it closes everything.
    fn hear_shutdown(&mut self) -> u32 {
        let stops = std::mem::take(&mut self.life.shutdown_signals);
        for _ in 0..stops {
            self.trace
                .say(self.now, format_args!("server told to stop"));
            if self.life.draining.is_some() {
                self.life.is_killed = true;
            } else {
                self.life.draining = Some((self.now, self.turn + 1));
            }
        }
        stops
    }

    /// Notes which connections the server wants to write to; those that have room already are
    /// reported at once.
    fn follow_interests(&mut self) {
        let mut changed = Vec::new();
        self.life
            .server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            let number = self.life.by_serial[&id.serial];
            if let Some(conn) = self.life.connections.get_mut(&number) {
                conn.watches_write = wants_write;
                let ready = conn.peer.readiness();
                if wants_write && ready.writable || ready.readable {
                    self.report(number);
                }
            }
        }
    }
}
