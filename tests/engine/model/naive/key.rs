//! What the model's keys and tickets say about themselves.

use latchd::base::Nanos;
use latchd::engine::Kind;

use super::{Key, Stage, Ticket, Waiter};

impl Key {
    /// Who may hold beside whom.
    pub(super) fn fits(&self, hold: &str) -> bool {
        match self.kind {
            Kind::Slots { limit } => self.holders.len() < limit as usize,
            Kind::ReadWrite if hold == "write" => self.holders.is_empty(),
            Kind::ReadWrite => self.holders.iter().all(|it| it.hold == "read"),
        }
    }

    pub(super) fn first_due(&self, moment: Nanos) -> Option<usize> {
        let due = |it: &Waiter| it.until.is_some_and(|until| until <= moment);
        self.waiters.iter().position(due)
    }

    pub(super) fn forget_ticket_of(&mut self, fence: u64) {
        self.tickets.retain(|it| it.stage != Stage::Held(fence));
    }
}

impl super::Model {
    /// Tickets whose lease ran out and that are still remembered.
    pub fn expired_ticket_count(&self) -> usize {
        let tickets = self.keys.iter().flat_map(|it| &it.tickets);
        tickets.filter_map(Ticket::forgotten_at).count()
    }
}

impl Ticket {
    /// When nobody remembers any more that its lease ran out.
    pub(super) fn forgotten_at(&self) -> Option<Nanos> {
        match self.stage {
            Stage::Expired { until, .. } => Some(until),
            Stage::Queued | Stage::Held(_) => None,
        }
    }
}
