//! Leases: how long a grant lasts, and how a renewal extends it.
//!
//! - A lease that is not renewed ends at its deadline. The holder is notified that it has lost the
//!   key. The room is free from that instant on, however late the end is noticed.
//! - A request about a key first ends the leases on it that are over.
//! - If very many leases of one key end, each ends at its own instant and in order.
//! - A renewal begins the lease anew. A renewal that comes too late is refused because the lease
//!   has ended, as long as that is remembered: for the latest 4,096 fences.
//! - A lease does not end while requests of its holder wait for the disk, if it was not over when
//!   the wait began. It is checked again every 10 ms.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Loss, Noted, Refusal, Reply};

use crate::{GrantId, Model, SessionId};

/// How many fences are remembered whose leases have ended.
const LAPSED_MAX: u64 = 4096;

/// A lease that is over and has to wait for the disk is looked at again after this time.
const STALLED_NS: u64 = 10_000_000;

impl Model {
    pub(crate) fn renew(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) {
        let Some(grant) = self.find_to_renew(id, key, token, Refusal::NotHolder) else {
            return;
        };
        if self.rules.durable {
            self.bind(grant, session);
        }
        let lease = self.restart_lease(grant, lease);
        let fence = self.symbol(grant).fence;
        self.reply(id, Reply::Renewed { lease, fence });
    }

    /// The client has back a grant of an earlier run, or of another connection.
    pub(crate) fn reclaim(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        token: Option<Token>,
        lease: Option<Millis>,
    ) {
        if self.restored == 0 {
            return self.refuse(id, Refusal::NoGrace);
        }
        let Some(grant) = self.find_to_renew(id, key, token, Refusal::Reclaim) else {
            return;
        };
        let lease = lease.unwrap_or_else(|| self.grant_of(grant).recorded.kept);
        self.bind(grant, session);
        let lease = self.restart_lease(grant, lease);
        let token = self.symbol(grant);
        self.reply(id, Reply::Granted { token, lease });
    }

    /// The grant that a renewal is for. A reclaim is refused with `other`, whatever the reason.
    fn find_to_renew(
        &mut self,
        id: ConnId,
        key: &[u8],
        token: Option<Token>,
        other: Refusal,
    ) -> Option<GrantId> {
        let over = match other {
            Refusal::Reclaim => Refusal::Reclaim,
            _ => Refusal::LeaseExpired,
        };
        let Some(grant) = self.find_grant(key, token) else {
            let why = if self.has_lapsed(key, token) {
                over
            } else {
                other
            };
            self.refuse(id, why);
            return None;
        };
        if self.grant_of(grant).deadline <= self.moment && !self.outlasts(grant) {
            self.refuse(id, over);
            // The client knows now, so a later `w` need not say it again.
            self.tickets
                .retain(|it| it.stage != crate::ticket::Stage::Held(grant));
            self.settle(key);
            return None;
        }
        Some(grant)
    }

    fn has_lapsed(&self, key: &[u8], token: Option<Token>) -> bool {
        let Some(token) = token else {
            return false;
        };
        let place = token.fence.0 % LAPSED_MAX;
        let in_place = |grant: &GrantId| {
            let known = &self.tokens[grant];
            known.fence.is_some_and(|fence| fence % LAPSED_MAX == place)
        };
        let latest = self.lapsed.iter().rev().find(|it| in_place(&it.0));
        latest.is_some_and(|(grant, of)| of == key && self.tokens[grant].is_token(token))
    }

    /// Begins a lease anew; returns how long it is. If changes are recorded, see `record.rs`.
    pub(crate) fn restart_lease(&mut self, grant: GrantId, lease: Millis) -> Millis {
        if self.rules.durable {
            return self.restart_recorded_lease(grant, lease);
        }
        self.grant_mut(grant).deadline = self.now.after(lease);
        lease
    }

    /// How long the lease still runs, rounded down; none if it is over.
    pub(crate) fn lease_left(&self, grant: GrantId) -> Option<Millis> {
        let it = self.grant_of(grant);
        match it.deadline {
            Nanos::NEVER => Some(it.recorded.asked),
            deadline if deadline <= self.moment => None,
            deadline => Some(Millis(deadline.since(self.now) / 1_000_000)),
        }
    }

    /// Whether a lease is kept although it is over.
    pub(crate) fn outlasts(&mut self, grant: GrantId) -> bool {
        let it = self.grant_of(grant).clone();
        if self.session(it.session).stays {
            self.grant_mut(grant).deadline = Nanos::NEVER;
            return true;
        }
        let Some(since) = self.stalled_since(it.session) else {
            return false;
        };
        let looked_at = match it.recorded.is_overdue {
            true => it.deadline.0.saturating_sub(STALLED_NS),
            false => it.deadline.0.saturating_sub(1),
        };
        if looked_at < since.0 {
            return false; // it was over before
        }
        let again = Nanos(self.now.0 + STALLED_NS);
        let is_durable = self.rules.durable;
        let it = self.grant_mut(grant);
        it.recorded.is_overdue |= is_durable;
        it.deadline = again;
        true
    }

    /// Ends what is over on this key, each lease at its own instant, and serves the queue.
    pub(crate) fn settle(&mut self, key: &[u8]) {
        self.end_leases(key);
        self.serve(key, self.moment);
    }

    pub(crate) fn end_leases(&mut self, key: &[u8]) {
        loop {
            let over = self.holders(key).filter(|it| it.deadline <= self.moment);
            let Some(deadline) = over.map(|it| it.deadline).min() else {
                return;
            };
            let first = self.holders(key).filter(|it| it.deadline == deadline);
            let grant = self.first_seen_to_end(first.map(|it| it.id).collect());
            if self.outlasts(grant) {
                continue;
            }
            let late_ns = self.now.since(deadline);
            self.lose(grant, Loss::Expired, Noted::Expired { late_ns });
            self.serve(key, deadline);
        }
    }
}
