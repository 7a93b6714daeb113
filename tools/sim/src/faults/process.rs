//! Faults of the process: it is told to stop, killed, started again, and started twice.
//!
//! Whoever starts a server finds the port taken as long as another listens, and tries again while
//! that one stops. How long it listens is the server's own word, which the daemon's loop follows as
//! well: if that is not until its process ends, two run at once. Whoever connects reaches the one
//! that listens. Nothing of a life is left in the next one but what is in its data directory, the
//! fences go on, and no key is held in two: `checks::lives` and `checks::restored` look at both.

use crate::data_dir::HowItEnds;
use crate::life::Life;
use crate::plan::{LifeEnd, Restart};
use crate::simulation::{Scheduled, Simulation};
use latchd::base::{Millis, Nanos};

/// How long a process takes at least to start: to forget everything is not done in no time.
const START_NS_MIN: u64 = 1_000_000;

impl Simulation {
    // ---- which life something happens in ----

    /// What follows happens in the life in which the client is connected, or would be.
    pub(crate) fn enter_life_of_client(&mut self, client: usize) {
        match self.clients[client] {
            Some(number) => self.enter_life_of(number),
            None => self.enter_if(|_, other| other.is_listening()),
        }
    }

    /// What follows happens in the life of this connection.
    pub(crate) fn enter_life_of(&mut self, number: u32) {
        self.enter_if(|_, other| other.connections.contains_key(&number));
    }

    /// The next turn is that of the server that wakes first.
    pub(crate) fn enter_first_to_wake(&mut self) {
        self.enter_if(|simulation, other| {
            let at = |life: &Life| life.wakes_at().unwrap_or(Nanos::NEVER);
            at(other) < at(&simulation.life)
        });
    }

    fn enter_if(&mut self, is_in: impl FnOnce(&Self, &Life) -> bool) {
        if let Some(mut other) = self.other.take() {
            if is_in(self, &other) {
                std::mem::swap(&mut self.life, &mut other);
            }
            self.other = Some(other);
        }
    }

    // ---- the end of a life ----

    /// Ends this life of the server, if it is planned and its time has come.
    pub(crate) fn perhaps_restart(&mut self) -> Result<(), String> {
        let is_busy = self.life.is_stopping() || self.is_last_stop;
        let is_time = |it: &&Restart| self.actions_left <= it.actions_left && !is_busy;
        let Some(&Restart { end, overlaps, .. }) = self.restarts_left.last().filter(is_time) else {
            return Ok(());
        };
        self.restarts_left.pop();
        self.totals.restarts += 1;
        match end {
            LifeEnd::Crash => return self.crash(HowItEnds::Killed),
            LifeEnd::PowerLoss => return self.crash(HowItEnds::PowerLoss),
            LifeEnd::Drain | LifeEnd::Kill => {}
        }
        self.signal_shutdown();
        if end == LifeEnd::Kill {
            let after = self.think();
            self.schedule(after, Scheduled::Shutdown(self.life.number));
        }
        if overlaps {
            self.schedule_start();
        }
        Ok(())
    }

    /// The process is gone from one moment to the next.
    pub(crate) fn crash(&mut self, how: HowItEnds) -> Result<(), String> {
        self.trace
            .say(self.now, format_args!("server ends: {how:?}"));
        self.close_books()?;
        self.is_last_stop = false;
        self.forget_life(how);
        self.schedule_start();
        Ok(())
    }

    /// A shutdown has come to its end, and with it the process.
    pub(crate) fn end_life(&mut self) -> Result<(), String> {
        self.check_life_end()?;
        self.trace.say(self.now, format_args!("server ended"));
        self.forget_life(HowItEnds::InOrder);
        if self.other.is_some() {
            self.enter_if(|_, _| true);
            self.other = None;
        } else {
            self.schedule_start();
        }
        Ok(())
    }

    /// All connections end with the process, and so does whatever it knew and did not keep.
    fn forget_life(&mut self, how: HowItEnds) {
        self.leave_data_dir(how);
        for client in &mut self.clients {
            if client.is_some_and(|number| self.life.connections.contains_key(&number)) {
                *client = None;
            }
        }
        let (number, wall_us) = (self.life.number, self.wall_us());
        self.life = Life::begin(&mut self.rng, &self.plan, number, self.now, wall_us, None);
        self.life.is_up = false;
        self.meter.reset();
    }

    // ---- the beginning of the next one ----

    pub(crate) fn schedule_start(&mut self) {
        let at = self.think();
        let at = at.max(Nanos(self.now.0 + START_NS_MIN));
        self.schedule(at, Scheduled::Start);
    }

    /// Somebody starts a server.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        let mut others = std::iter::once(&self.life).chain(&self.other);
        if others.any(|it| it.is_listening()) {
            self.trace.say(
                self.now,
                format_args!("another server finds the port taken"),
            );
            self.totals.ports_taken += 1;
            if self.life.is_stopping() {
                // Again and again, while the other one drains.
                let part = |of| {
                    self.now
                        .after(Millis(self.plan.settings.shutdown_timeout.0 / of))
                };
                let (soonest, latest) = (part(24), part(12));
                let at = self.think().clamp(soonest, latest);
                self.schedule(at, Scheduled::Start);
            }
            return Ok(());
        }
        let number = self.life.number + 1;
        let mut life = if self.data.is_some() {
            let Some(life) = self.restore_life(number)? else {
                self.schedule_start();
                return Ok(());
            };
            life
        } else {
            let wall_us = self.wall_us();
            Life::begin(&mut self.rng, &self.plan, number, self.now, wall_us, None)
        };
        if self.data.is_none() {
            life.begin_ranges(&self.plan, self.turn, self.now);
        }
        self.trace.say(
            self.now,
            format_args!("server starts, its {number}. life, epoch {}", life.epoch),
        );
        self.check_fences_go_on(&life)?;
        life.known_grants.fence_max = self.fences_given.max(life.known_grants.fence_max);
        let earlier = std::mem::replace(&mut self.life, life);
        if earlier.is_up && self.other.replace(earlier).is_some() {
            return Err("a third server runs beside two".to_owned());
        }
        Ok(())
    }
}
