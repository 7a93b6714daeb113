//! Faults of the server: it is paused for a while, comes late, hears of an event twice or of a
//! connection that is gone, and gets a shutdown signal in the middle.

use crate::plan::{Ending, pick};
use crate::simulation::{Scheduled, Simulation};
use latchd::base::{Millis, Nanos};
use latchd::server::{Event, Readiness};

impl Simulation {
    /// Sometimes pauses the server while clients go on.
    pub(crate) fn perhaps_pause(&mut self) {
        if self.rng.u16(..1_000) < self.plan.pause_pml && self.now >= self.life.paused_until {
            let think_ms = self.plan.think_ms_max;
            let spans_ms = [think_ms, think_ms, 10 * think_ms, 60_000];
            let span_ms = (*pick(&mut self.rng, &spans_ms)).min(60_000);
            let span_ms = self.rng.u64(1..=span_ms);
            self.pause_for(Millis(span_ms));
        }
    }

    /// The server does not run for a while: bytes arrive, deadlines pass, nothing happens.
    pub(crate) fn pause_for(&mut self, span: Millis) {
        self.trace
            .say(self.now, format_args!("server stopped for {} ms", span.0));
        self.life.paused_until = self.life.paused_until.max(self.now.after(span));
        self.totals.stops += 1;
    }

    /// When the turn begins that deals with something that has just happened.
    pub(crate) fn turn_begins(&mut self) -> Nanos {
        let delay_us = self.rng.u64(..=self.plan.turn_delay_us_max);
        Nanos(self.now.0 + delay_us * 1_000)
    }

    /// How many nanoseconds too late the server notices its next deadline.
    pub(crate) fn oversleep(&mut self) -> u64 {
        if self.plan.whole_ms {
            0
        } else {
            self.rng.u64(..1_000_000)
        }
    }

    /// Sometimes adds an event: the same once again, or one about a connection that is gone.
    /// Neither may change anything.
    pub(crate) fn echo(&mut self, event: Event) -> Option<Event> {
        if self.rng.u8(..100) >= self.plan.echo_pct {
            return None;
        }
        let readiness = Readiness {
            readable: true,
            writable: true,
            hung_up: true,
        };
        let stale = self.life.stale.pop_front();
        Some(stale.map_or(event, |conn| Event { conn, readiness }))
    }

    /// Sends the shutdown signal, if it is planned and its time has come; perhaps twice.
    pub(crate) fn perhaps_shut_down(&mut self) {
        let is_planned = matches!(self.plan.ending, Ending::Drain | Ending::Kill);
        let is_time = self.actions_left <= self.plan.actions_max / 6 && !self.is_last_stop;
        if is_planned && is_time && !self.life.is_stopping() {
            self.is_last_stop = true;
            self.signal_shutdown();
            if self.plan.ending == Ending::Kill {
                let after = self.think();
                self.schedule(after, Scheduled::Shutdown(self.life.number));
            }
        }
    }
}
