//! Everything that must hold after a turn, and at the very end.
//!
//! Reads what the server wrote to each client and has it judged, finds connections the server has
//! ended and asks for the reason, compares the lock table with the turn before, and, when the
//! server rests, looks for anybody who was forgotten.

use super::checker::Ways;
use super::judge::{Judge, Verdict};
use super::link::{Link, Moment, Sending, What};
use super::plan::Ending;
use super::trace::readable;
use super::world::World;
use crate::base::Millis;
use crate::server::Holdings;

/// Most stale ids that are kept to be reported by mistake.
const STALE_MAX: usize = 4;

impl World {
    pub(super) fn observe(&mut self) -> Result<(), String> {
        let numbers: Vec<u32> = self.links.keys().copied().collect();
        // Ends first: who was cut off in the turn that granted to the next holds nothing any more.
        for &number in &numbers {
            self.find_end(number)?;
        }
        let rivals = self.rivals();
        for &number in &numbers {
            self.read(number, &rivals)
                .map_err(|why| format!("connection {number}: {why}"))?;
        }
        self.history.turn_ended(self.now, self.turn);
        self.history.check_exclusion(self.now)?;
        self.check_table()?;
        for &number in &numbers {
            self.bury(number)
                .map_err(|why| format!("connection {number}: {why}"))?;
        }
        if self.is_quiet() {
            self.check_quiet()?;
        }
        self.check_drain()
    }

    /// Whether the server has, or may have, a reason to end this connection.
    fn has_reason(&self, number: u32, link: &Link) -> bool {
        let settings = &self.plan.settings;
        let owns = self.history.owns_something(number, self.now);
        let is_over = self.draining.is_some_and(|(since, _)| {
            let timeout = settings.shutdown_timeout;
            let at = since.after(timeout);
            self.is_killed || !owns || (timeout != Millis::ZERO && self.now >= at)
        });
        // Who understands news and does not read them is a slow consumer.
        let is_slow = link.may_be_pushed_to && link.blind_since.is_some();
        link.has_left()
            || link.farewell
            || is_slow
            || is_over
            || link.is_overdue(self.now, settings, owns)
            || link.is_stuck(self.now, settings)
    }

    fn find_end(&mut self, number: u32) -> Result<(), String> {
        let owns = self.history.owns_something(number, self.now);
        let link = self.links.get_mut(&number).expect("listed this turn");
        if link.stalled.is_some() && link.is_overdue(self.now, &self.plan.settings, owns) {
            // It may have been cut off and cannot know, so it can be sure of nothing any more.
            link.was_overdue = true;
            self.history.owner_leaves(number);
        }
        if link.ended || !link.peer.is_ended() {
            return Ok(());
        }
        let link = &self.links[&number];
        let was_refused = link.id.is_none();
        if !was_refused && !self.has_reason(number, link) {
            return Err(format!("connection {number} was ended for no reason"));
        }
        let (client, is_ours) = (link.client, link.has_left());
        if !is_ours {
            self.totals.cut_off += 1;
        }
        self.trace
            .say(self.now, format_args!("c{client:<2} <- end of {number}"));
        self.history.owner_is_gone(number, self.turn);
        let link = self.links.get_mut(&number).expect("looked at above");
        link.ended = true;
        link.stalled = None; // what is there is read, and no more will come
        Ok(())
    }

    /// How many questions about each key the server may have seen in this turn.
    fn rivals(&self) -> Vec<u32> {
        let mut rivals = vec![0; self.plan.keys.len()];
        for asked in self.links.values().flat_map(|link| &link.asked) {
            if let Some(key) = asked.what.key().filter(|_| asked.arrived.is_some()) {
                rivals[key] += 1;
            }
        }
        rivals
    }

    /// Takes in what the server wrote.
    fn read(&mut self, number: u32, rivals: &[u32]) -> Result<(), String> {
        let link = self.links.get_mut(&number).expect("listed this turn");
        let client = link.client;
        let first = link.asked.front().map(|asked| asked.number);
        for line in link.receive() {
            self.trace.say(
                self.now,
                format_args!("c{client:<2} <- {}", readable(&line)),
            );
            self.trace.mix(&line);
            let mut judge = Judge {
                plan: &self.plan,
                history: &mut self.history,
                before: &self.checker,
                rivals,
                first,
                link: number,
                now: self.now,
                turn: self.turn,
                draining: self.draining.map(|(_, turn)| turn),
            };
            self.totals.answers += 1;
            match judge.line(link, &line)? {
                Verdict::Granted => self.totals.grants_told += 1,
                Verdict::TimedOut => self.totals.timeouts += 1,
                Verdict::Other => {}
            }
        }
        let is_free = link.asked.is_empty() && link.sending == Sending::Open;
        if is_free && self.totals.answers > 0 && self.rng.u8(..100) < self.plan.eager_pct / 4 {
            self.act_again(client);
        }
        Ok(())
    }

    /// A connection that has ended: what stayed open had a reason to, then it is forgotten.
    fn bury(&mut self, number: u32) -> Result<(), String> {
        let link = &self.links[&number];
        if !link.ended {
            return Ok(());
        }
        let client = link.client;
        if !link.peer.is_closed() {
            // Half-closed: a client that reads the end closes as well, or lets the server wait.
            if self.rng.bool() {
                self.close(number);
            }
            return Ok(());
        }
        // Cleanly: nothing but the end of the client's own input ended it.
        let cleanly = link.id.is_some()
            && link.sending == Sending::Ended
            && !(link.reset || link.poisoned || link.farewell)
            && link.blind_since.is_none()
            && self.draining.is_none();
        if cleanly {
            let first = link.asked.iter().find(|asked| asked.arrived.is_some());
            if link.has_torn_line() {
                return Err("ended within a line".to_owned());
            }
            if let Some(asked) = first
                && asked.what.wait() == Millis::ZERO
            {
                return Err(format!("ended without an answer to {:?}", asked.what));
            }
        }
        let link = self.links.remove(&number).expect("looked at above");
        for asked in link.asked {
            let fence = match asked.what {
                What::Renew { target, .. } => target,
                What::Wait { key, .. } => link.places.get(&key).and_then(|place| place.held),
                _ => None,
            };
            if let Some(fence) = fence {
                self.history.renewal_lost(self.now, fence, asked.number);
            }
        }
        self.stale.extend(link.id);
        if self.stale.len() > STALE_MAX {
            self.stale.pop_front();
        }
        if self.clients[client] == Some(number) {
            self.clients[client] = None;
        }
        Ok(())
    }

    fn check_table(&mut self) -> Result<(), String> {
        let names: Vec<&[u8]> = self.plan.keys.iter().map(|(name, _)| &name[..]).collect();
        // Taken out, because it looks at the rest of the world while it changes.
        let mut checker = std::mem::take(&mut self.checker);
        let has_left = |number: u32| {
            let link = self.links.get(&number);
            link.is_none_or(|link| link.ended || self.has_reason(number, link))
        };
        let ways = Ways {
            links: &self.by_serial,
            has_left: &has_left,
            waits: &self.waits,
            auto_release: self.plan.rules.auto_release,
            awake_since: self.stopped_until,
        };
        let result = checker.after_turn(self.now, &self.server, &names, &self.history, &ways);
        self.checker = checker;
        result?;
        let late_ns_max = 1_000_000 + self.plan.turn_delay_us_max * 1_000;
        let late_ns = self.checker.late_awake_ns_max;
        if late_ns > late_ns_max {
            return Err(format!("a lease ended {late_ns} ns late, without a reason"));
        }
        Ok(())
    }

    /// The server rests: everybody has the answer, or stands in line in time.
    fn check_quiet(&mut self) -> Result<(), String> {
        let (now, turn) = (self.now, self.turn);
        for (number, link) in &mut self.links {
            if link.stalled.is_some() || link.ended {
                continue;
            }
            link.blind_since = None;
            link.was_overdue = false;
            let Some(id) = link.id.filter(|_| !link.has_left() && !link.farewell) else {
                continue;
            };
            let Some(asked) = link.asked.front_mut().filter(|it| it.arrived.is_some()) else {
                continue;
            };
            let wait = asked.what.wait();
            let begun = *asked.begun.get_or_insert(Moment { at: now, turn });
            let key = asked.what.key().filter(|_| wait != Millis::ZERO);
            let is_parked = key.is_some_and(|key| self.checker.is_in_line(key, id.serial));
            if !is_parked || self.draining.is_some() {
                return Err(format!(
                    "connection {number}: no answer to {:?}",
                    asked.what
                ));
            }
            if begun.at.after(wait) <= now {
                return Err(format!("connection {number}: parked for too long"));
            }
        }
        for (serial, does) in self.checker.connections() {
            let number = self.by_serial[&serial];
            let link = self.links.get(&number);
            let is_gone = link.is_none_or(|it| {
                (it.ended || it.has_hung_up()) && it.stalled.is_none() && it.blind_since.is_none()
            });
            if is_gone && (does == "waits" || self.plan.rules.auto_release) {
                return Err(format!("connection {number} is gone, but {does}"));
            }
        }
        Ok(())
    }

    fn check_drain(&self) -> Result<(), String> {
        let timeout = self.plan.settings.shutdown_timeout;
        if let Some((since, _)) = self.draining
            && timeout != Millis::ZERO
            && self.now >= since.after(timeout)
            && !self.server.is_drained()
        {
            return Err("the shutdown takes longer than it may".to_owned());
        }
        Ok(())
    }

    /// Nobody is there any more, and nothing of anybody.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        let mut holdings = self.server.holdings();
        if self.draining.is_some() {
            // The process ends here: what is left are its own timers and idle keys, and, if they
            // outlive their connections, grants.
            holdings.timers = 0;
            holdings.engine.keys = 0;
            holdings.engine.timers = 0;
            if !self.plan.rules.auto_release {
                holdings.engine.holders = 0;
                holdings.engine.clients = 0;
            }
        }
        if holdings != Holdings::default() {
            return Err(format!("invariant 9: still there at the end: {holdings:?}"));
        }
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
        self.totals.connections = u64::from(self.links_made);
        self.trace.say(self.now, format_args!("{:?}", self.totals));
        Ok(())
    }
}
