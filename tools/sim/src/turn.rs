//! One turn of the server: what the poll reports, how the server is called, when it wakes.
//!
//! The order of a turn is the server's own (`server::turn`), as it is for the reactor; here is only
//! what a poll reports, in any order. `faults::server` draws how late the server notices an event
//! or a deadline; `checks` says what must hold after the turn.

use std::cell::Cell;

use super::cost::ACCEPT_NS;
use super::life::{Draining, Life};
use super::simulation::Simulation;
use latchd::base::Nanos;
use latchd::engine::Limit;
use latchd::server::{Door, Event};

/// Most connections that a reactor accepts in one turn.
const ACCEPTS_PER_TURN_MAX: usize = 128;

/// One turn in virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnSpan {
    pub(super) began: Nanos,
    /// When the server last looked at the clock: nothing it did can be dated later.
    pub(super) clock_read: Nanos,
    /// When it was over, and clients could read what was written.
    pub(super) ended: Nanos,
}

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
            && self.is_kept()
            && self
                .life
                .server
                .next_deadline()
                .is_none_or(|at| at > self.now)
    }

    pub(super) fn wakes_at(&self) -> Option<Nanos> {
        self.life.wakes_at()
    }

    /// Plays one turn as the reactor does it, and checks everything that must hold after it.
    pub(super) fn take_turn(&mut self) -> Result<(), String> {
        let began = self.now;
        let events = self.poll();
        let stops = self.hear_shutdown();
        self.trace.mix(&began.0.to_le_bytes());
        let (meter, pace_pct) = (self.meter.clone(), self.plan.pace_pct);
        let after = |ns: u64| Nanos(began.0 + ns * pace_pct / 100);
        let clock_read = Cell::new(began);
        let clock = || {
            clock_read.set(after(meter.ns()));
            clock_read.get()
        };
        self.life.server.turn(&clock, events.iter().copied(), stops);
        self.turn += 1;
        self.totals.turns += 1;
        if self.life.server.failure().is_some() {
            return self.check_failed();
        }
        meter.spend(self.decided_ns());
        self.now = after(meter.ns());
        self.follow_interests();
        // A kernel reports at registration what arrived before it.
        for number in self.accept()? {
            if let Some((peer, ..)) = self.life.polled(number)
                && peer.readiness().readable
            {
                self.report(number);
            }
        }
        self.now = after(meter.reset());
        self.life.server.note_sleep(self.now);
        self.life.span = TurnSpan {
            began,
            clock_read: clock_read.get(),
            ended: self.now,
        };
        if let Some(draining) = &mut self.life.draining
            && draining.turn == self.turn
        {
            draining.ended = self.now;
        }
        self.life.oversleep_ns = self.oversleep();
        self.follow_disk();
        self.check_turn()
    }

    /// How long the server took in this turn besides sockets: what it says itself, or what shows,
    /// so that work which is not counted is still noticed.
    fn decided_ns(&mut self) -> u64 {
        let Life { server, work, .. } = &mut *self.life;
        let seen_ns = work.take_ns(server.engine(), self.meter.take_lines());
        server.decided_ns().max(seen_ns)
    }

    /// Reports what has happened since the last turn, in any order.
    fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for number in std::mem::take(&mut self.life.pending) {
            let Some((peer, Some(id), watches_write)) = self.life.polled(number) else {
                continue;
            };
            let mut readiness = peer.readiness();
            readiness.writable &= *watches_write;
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
        self.life.accepts_at = None;
        for _ in 0..self.life.backlog.len().min(ACCEPTS_PER_TURN_MAX) {
            let accepts_at = self.life.server.accepts_from(self.now);
            if accepts_at > self.now {
                self.life.accepts_at = Some(accepts_at);
                return Ok(accepted); // the others wait until then
            }
            let Some((number, pipe)) = self.life.backlog.pop_front() else {
                break;
            };
            let limit = self.plan.settings.connections_max as usize;
            let has_room = limit == 0 || self.life.server.connections() < limit;
            let is_refused = self.life.server.has_no_memory_for_newcomers();
            if is_refused {
                self.check_memory_for_newcomers()?;
            }
            let door = self
                .life
                .connections
                .get(&number)
                .map_or(Door::Line, |it| it.door);
            let refusals = |life: &Life| life.server.engine().figures().limit_hits(Limit::Memory);
            let before = refusals(&self.life);
            let id = self.life.server.accept_at(self.now, pipe, door);
            // A connection that was not let in may have made room.
            let is_refused = is_refused && refusals(&self.life) > before;
            let may_have_room = self.plan.settings.access.asks_for_token();
            self.meter.spend(ACCEPT_NS);
            if id.is_some() != has_room && !(id.is_some() && may_have_room) {
                return Err(format!("accepted {id:?} with room {has_room}"));
            }
            let is_newcomer = id.is_some() && is_refused;
            let came_late = id.is_some() && self.life.draining.is_some() && !is_refused;
            if let Some(member) = self.life.member(number) {
                member.id = id;
                member.is_newcomer = is_newcomer || came_late;
            } else {
                let turn = self.turn;
                let conn = self.conn(number);
                conn.id = id;
                conn.accepted_by = turn;
                conn.is_newcomer = is_newcomer;
                conn.came_late = came_late;
            }
            match id {
                Some(id) => {
                    self.totals.newcomers += u64::from(is_newcomer || came_late);
                    self.life.by_serial.insert(id.serial, number);
                    accepted.push(number);
                }
                None => self.totals.refused += 1,
            }
        }
        if !self.life.backlog.is_empty() {
            self.expect_turn();
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
                self.life.draining = Some(Draining {
                    turn: self.turn + 1,
                    began: self.now,
                    ended: self.now,
                });
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
            if let Some((peer, _, watches_write)) = self.life.polled(number) {
                *watches_write = wants_write;
                let ready = peer.readiness();
                if wants_write && ready.writable || ready.readable {
                    self.report(number);
                }
            }
        }
    }
}
