//! Circles of waits through locks, semaphores and read-write locks, for clients that asked to be told.
//!
//! Whoever is told that it would wait for itself must have found a circle in what the table showed before the
//! turn and after it, with every wait counted for all that may be before it. And nobody who asked to be
//! told closes a circle of locks with one holder each, all of them there before and after the turn.

use std::collections::BTreeSet;

use super::answers::AnswerCheck;
use super::lock_table::SeenKey;
use super::reports::{About, Report, ReportCheck};
use crate::clients::connection::{Connection, OpenRequest};
use crate::clients::request::RequestKind;
use crate::json::Json;
use latchd::base::Millis;
use latchd::engine::types::Mode;

impl AnswerCheck<'_> {
    /// Whether this request can be told that it would wait for itself; whether it would is looked at when
    /// the turn is over.
    pub(super) fn may_be_deadlock(&mut self, conn: &Connection, kind: &RequestKind) -> bool {
        let serial = conn.id.filter(|_| !conn.is_behind()).map(|it| it.serial);
        if let (Some(connection), Some(key)) = (serial, kind.key()) {
            let is_wait = matches!(kind, RequestKind::Wait { .. });
            let has_place = is_wait || !conn.tickets.contains_key(&key);
            let about = About::Deadlock {
                connection,
                key,
                has_place,
            };
            let json = Json::Null;
            self.reports.push(Report { about, json });
        }
        conn.tells_deadlocks && kind.wait() > Millis::ZERO
    }
}

impl ReportCheck<'_> {
    /// How many requests about this key the server may have seen in this turn, besides those that wait.
    pub(super) fn newly_asked(&self, key: usize) -> u32 {
        let waits = |it: &&Connection| {
            let is_in = |serial| {
                self.before.is_in_queue(key, serial) && self.after.is_in_queue(key, serial)
            };
            let is_old = |it: &OpenRequest| it.arrived.is_some_and(|it| it.turn + 1 < self.turn);
            let mut front = it.open_requests.iter().take(1);
            front
                .any(|it| it.kind.key() == Some(key) && is_old(it) && it.kind.wait() > Millis::ZERO)
                && it.id.is_some_and(|it| is_in(it.serial))
        };
        let waiting = self.connections.values().filter(waits).count() as u32;
        self.requests_per_key[key].saturating_sub(waiting)
    }

    /// The connection was told that it would wait for itself if it waited for this key, or for the place
    /// in its queue that it has. If it has taken another one before, it would also wait behind that.
    pub(super) fn check_deadlock(
        &self,
        connection: u32,
        key: usize,
        has_place: bool,
    ) -> Result<(), String> {
        let asker = u64::from(connection);
        let both = |key: usize| [self.before.key(key), self.after.key(key)];
        let (mut to_visit, mut visited) = (vec![key], BTreeSet::new());
        while let Some(at) = to_visit.pop() {
            // Whoever asked for it in this turn may have had it for a moment.
            if self.newly_asked(at) > u32::from(at == key) {
                return Ok(());
            }
            let holders = both(at).into_iter().flat_map(SeenKey::holder_parties);
            let waiters = both(at).into_iter().flat_map(SeenKey::waiter_parties);
            let waiters = waiters.filter(|it| at != key || !has_place || *it != asker);
            for party in holders.chain(waiters) {
                if party == asker {
                    return Ok(());
                }
                if visited.insert(party) {
                    let waits = |it: &usize| {
                        both(*it)
                            .iter()
                            .any(|it| it.waiter_parties().any(|it| it == party))
                    };
                    to_visit.extend((0..self.plan.keys.len()).filter(waits));
                }
            }
        }
        Err("a deadlock that is none".to_owned())
    }

    /// Nobody who asked to be told has closed a circle in this turn.
    pub(super) fn check_no_circle(&self) -> Result<(), String> {
        // A `hello` behind a request that waits is not heard before that is answered.
        let is_heard = |it: &&Connection| {
            let mut open = it.open_requests.iter();
            it.tells_deadlocks && open.all(|it| !matches!(it.kind, RequestKind::Hello))
        };
        for conn in self.connections.values().filter(is_heard) {
            let Some((asker, key)) = self.waits_for(conn) else {
                continue;
            };
            if self.before.is_in_queue(key, asker) {
                continue; // what it waits for was looked at before
            }
            let has_waited = |it: &Connection| {
                let arrived = it.open_requests.front().and_then(|it| it.arrived);
                arrived.is_some_and(|it| it.turn + 1 < self.turn)
            };
            let (mut at, mut visited) = (key, BTreeSet::new());
            while let Some(holder) = self.steady_holder(at).filter(|_| visited.insert(at)) {
                if holder == asker {
                    return Err(format!("#{asker} waits for itself, and was not told"));
                }
                let by_serial = |it: &&Connection| it.id.is_some_and(|it| it.serial == holder);
                let next = self.connections.values().find(by_serial);
                let next = next
                    .filter(|it| has_waited(it))
                    .and_then(|it| self.waits_for(it));
                match next.filter(|(_, key)| self.before.is_in_queue(*key, holder)) {
                    Some((_, key)) => at = key,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Who holds the key alone, before the turn and after it, and not for too long.
    fn steady_holder(&self, key: usize) -> Option<u32> {
        let is_exclusive = matches!(self.plan.keys[key].1, Mode::Slot { limit: 1 } | Mode::Write);
        let after = self.after.key(key);
        let mut fences = after.fences();
        let (Some(fence), None, true) = (fences.next(), fences.next(), is_exclusive) else {
            return None;
        };
        let (holder, deadline) = after.holder(fence)?;
        let was = self.before.key(key).holder(fence);
        let is_one = after.holder_parties().next() == Some(u64::from(holder));
        let is_steady = was == Some((holder, deadline)) && deadline > self.span.ended;
        (is_one && is_steady).then_some(holder)
    }

    /// The connection is in the queue of this key, and its request waits there.
    fn waits_for(&self, conn: &Connection) -> Option<(u32, usize)> {
        let request = conn.open_requests.front()?;
        let (RequestKind::Acquire { key, wait, .. }, Some(arrived)) =
            (&request.kind, request.arrived)
        else {
            return None;
        };
        let serial = conn.id?.serial;
        let is_there = !conn.ended && !conn.has_hung_up() && !conn.is_behind();
        let goes_on = *wait > Millis::ZERO && arrived.at.after(*wait) > self.span.ended;
        (is_there && goes_on && self.after.is_in_queue(*key, serial)).then_some((serial, *key))
    }
}
