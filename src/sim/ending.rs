//! How a run comes to its end, and what may be left then: nothing.
//!
//! Values without an end, counters that are not 0 and lists that are not empty are kept for ever;
//! one last client takes them away, and learns whether everything that was put there is there.

use super::acts::{CRAVED_GROUPS, ROOM_BYTES_MAX};
use super::ask::{Ask, Sort};
use super::client::{Said, said};
use super::link::What;
use super::plan::{Ending, SECRET};
use super::talk::OTHER_GROUPS_MAX;
use super::world::World;
use crate::server::Holdings;
use crate::wire::outbox::PUSH_BYTES_MAX;
use crate::wire::verbs::VALUE_BYTES_MAX;

impl World {
    /// Sends the last client, if it was not there yet, and says whether it has something to do.
    pub(super) fn sweep_up(&mut self) -> Result<bool, String> {
        if self.draining.is_some() || std::mem::replace(&mut self.has_swept, true) {
            return Ok(false);
        }
        let (asks, things) = self.leftovers();
        let mut holdings = self.server.holdings();
        holdings.engine.others -= things.min(holdings.engine.others);
        if holdings != Holdings::default() {
            return Err(format!("invariant 9: still there at the end: {holdings:?}"));
        }
        if asks.is_empty() {
            return Ok(false);
        }
        self.trace.say(self.now, format_args!("the last client"));
        self.connect(0);
        let number = self.links_made;
        let mut bytes = Vec::new();
        if self.plan.settings.auth_token.is_some() {
            bytes.extend(self.utter(number, said(What::Ok, "auth", b"_", SECRET)));
        }
        for ask in asks {
            let (sort, key) = ask.thing();
            let argument: &[u8] = if sort == Sort::Counter { b"0" } else { b"" };
            let (letters, name) = (ask.letters(), self.plan.name(sort, key));
            let said: Said = said(What::Thing(ask), letters, name, argument);
            bytes.extend(self.utter(number, said));
        }
        self.send(number, &bytes);
        self.close(number);
        Ok(true)
    }

    /// What is to be asked for so that nothing is left, and how many things that are.
    fn leftovers(&self) -> (Vec<Ask>, usize) {
        let view = self.server.engine().view(self.now);
        let (mut asks, mut things) = (Vec::new(), 0);
        for key in 0..self.plan.things(Sort::Counter) {
            let name = self.plan.name(Sort::Counter, key);
            if view.counters().any(|it| it.key == name && it.what != 0) {
                asks.push(Ask::SetCount { key });
                things += 1;
            }
        }
        for key in 0..self.plan.things(Sort::Value) {
            let name = self.plan.name(Sort::Value, key);
            if view
                .values()
                .any(|it| it.key == name && it.what.ttl_ns.is_none())
            {
                asks.push(Ask::Delete { key });
                things += 1;
            }
        }
        for key in 0..self.plan.things(Sort::List) {
            let name = self.plan.name(Sort::List, key);
            if let Some(list) = view.lists().find(|it| it.key == name) {
                asks.extend((0..list.what.0).map(|_| Ask::Pop { key, left: true }));
                things += 1;
            }
        }
        (asks, things)
    }

    /// Nobody is there any more, and nothing of anybody.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        let mut holdings = self.server.holdings();
        if self.draining.is_some() {
            // The process ends here: what is left are its own timers and idle keys, and, if they
            // outlive their connections, grants.
            holdings.timers = 0;
            holdings.engine.keys = 0;
            holdings.engine.others = 0;
            holdings.engine.timers = 0;
            if !self.plan.rules.auto_release {
                holdings.engine.holders = 0;
                holdings.engine.clients = 0;
            }
        }
        if holdings != Holdings::default() {
            return Err(format!("invariant 9: still there at the end: {holdings:?}"));
        }
        self.things.check_end(self.has_swept)?;
        // Who has too much already is told no more; who has not, one more signal. A part of the
        // first line may have been taken.
        let signal_bytes_max = (VALUE_BYTES_MAX + 1) * (CRAVED_GROUPS + OTHER_GROUPS_MAX);
        self.hearing
            .check_end(PUSH_BYTES_MAX + signal_bytes_max + ROOM_BYTES_MAX)?;
        let drained = matches!(self.plan.ending, Ending::Drain | Ending::Kill);
        if drained != self.server.is_drained() {
            return Err("the run did not end as planned".to_owned());
        }
        let tally = self.server.engine().tally();
        let told = self.history.len() as u64;
        let (done, sent) = (self.history.releases_done, self.history.releases_sent);
        if told > tally.grants || done > tally.releases || tally.releases > sent {
            return Err(format!(
                "invariant 10: {tally:?}, but clients know of {told} grants, {done} releases, and \
                 tried {sent}"
            ));
        }
        self.totals.grants = tally.grants;
        self.totals.releases = tally.releases;
        self.totals.expiries = tally.expiries;
        self.totals.disconnects = tally.disconnects;
        self.totals.late_ns_max = self.checker.late_ns_max;
        self.totals.late_awake_ns_max = self.checker.late_awake_ns_max;
        self.totals.values = self.things.told_count();
        self.totals.pushes = self.hearing.pushes;
        self.totals.connections = u64::from(self.links_made);
        self.trace.say(self.now, format_args!("{:?}", self.totals));
        Ok(())
    }
}
