//! What happens when time passes, and what is cleaned up after each input.
//!
//! First, queues whose first waiter has hung up are served, waiters of ended barriers are answered,
//! and departing sessions are undone. Then leases, waits, expired tickets and the times to live of
//! clients that are away end, each at its own instant. At one instant leases end first, then waits
//! in the order in which they began. Last, values end, and idle names are forgotten.

use latchd::base::Nanos;

use crate::ticket::Stage;
use crate::{Awaits, Kind, Life, Model, Name, SessionId, WaiterId};

/// Something whose time is over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Lease(Name),
    Wait(WaiterId),
    Ticket(SessionId, Name),
    Client(SessionId),
}

impl Model {
    pub(crate) fn pass_time(&mut self) {
        self.last_time = self.now;
        loop {
            while let Some((key, moment)) = self.unserved.first().cloned() {
                self.about = Some(key.clone());
                self.serve(&key, moment);
            }
            self.tell_ended_barriers();
            self.go_on_departing();
            self.go_on_with_ranges();
            while let Some((moment, due)) = self.next_due().filter(|it| it.0 <= self.now) {
                self.moment = moment;
                self.end(due);
            }
            self.moment = self.now;
            self.end_ranges();
            self.go_on_searching();
            let is_done = self.unserved.is_empty() && self.departing.is_empty();
            if is_done && !self.has_ranges_to_go_on_with() {
                break;
            }
        }
        self.about = None;
        self.end_values();
        self.forget_counters();
        self.forget_keys();
    }

    fn end(&mut self, due: Due) {
        self.about = None;
        match due {
            Due::Lease(key) => {
                self.about = Some(key.clone());
                self.end_leases(&key);
            }
            Due::Wait(waiter) => self.wait_ended(waiter),
            Due::Ticket(session, key) => self.forget_ticket(session, &key),
            Due::Client(client) => self.client_ended(client),
        }
    }

    fn wait_ended(&mut self, waiter: WaiterId) {
        let it = self.waiter(waiter).expect("its time is over").clone();
        match it.what {
            Awaits::Hold { key, .. } => {
                self.about = Some(key.clone());
                self.hold_wait_ended(waiter, &key);
            }
            Awaits::Pop { key, .. } => {
                self.about = Some(key);
                self.pop_wait_ended(waiter);
            }
            Awaits::Barrier(barrier) => self.barrier_wait_ended(waiter, barrier),
            Awaits::Range(_) => self.range_wait_ended(waiter),
        }
    }

    fn next_due(&self) -> Option<(Nanos, Due)> {
        let leases = self
            .grants
            .iter()
            .map(|it| (it.deadline, Due::Lease(it.key.clone())));
        let parked = self.waiters.iter().filter(|it| it.conn.is_some());
        let waits = parked.map(|it| (it.until, Due::Wait(it.id)));
        let tickets = self.tickets.iter().filter_map(|it| match it.stage {
            Stage::Expired(until, _) => Some((until, Due::Ticket(it.session, it.key.clone()))),
            _ => None,
        });
        let clients = self.sessions.iter().filter_map(|it| match &it.kind {
            Kind::Client(client) => Some((client.until?, Due::Client(it.id))),
            _ => None,
        });
        let all = leases.chain(waits).chain(tickets).chain(clients);
        all.filter(|it| it.0 != Nanos::NEVER).min()
    }

    /// When something happens next by itself, if only time passes; not what is merely forgotten.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let values = self.values.values().filter_map(|it| it.ends);
        let due = self.next_due().map(|it| it.0);
        due.into_iter()
            .chain(values)
            .chain(self.next_range_deadline())
            .min()
    }

    /// Notes which keys have become idle, and forgets sessions without grants and waits.
    pub(crate) fn finish(&mut self) {
        let now = self.now;
        let mut keys = std::mem::take(&mut self.keys);
        for key in &mut keys {
            let is_used = self.holders(&key.name).next().is_some()
                || !self.queue(&key.name).is_empty()
                || self.tickets.iter().any(|it| it.key == key.name);
            key.idle = (!is_used).then(|| key.idle.unwrap_or(now));
            key.may_be_gone &= !is_used;
        }
        self.keys = keys;
        let mut sessions = std::mem::take(&mut self.sessions);
        let is_nameless = |it: &crate::Session| {
            it.life == Life::Gone || matches!(it.kind, Kind::Named | Kind::Nobody)
        };
        sessions.retain(|it| {
            !is_nameless(it)
                || self.grants.iter().any(|grant| grant.session == it.id)
                || self.waiters.iter().any(|waiter| waiter.session == it.id)
                || self.has_ranges(it.id)
        });
        self.sessions = sessions;
    }
}
