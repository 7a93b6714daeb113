//! Everything that must hold after a turn, and at the very end.
//!
//! Reads what the server wrote to each client and has it judged, finds connections the server has
//! ended and asks for the reason, compares the tables with the turn before and with what clients
//! know, and, when the server rests, looks for anybody who was forgotten.

use std::collections::BTreeMap;

use super::answers::{Judge, Verdict};
use super::entries::Parked;
use super::key_events::{Turn, is_attentive};
use super::lock_table::Ways;
use crate::base::Millis;
use crate::sim::clients::connection::{Link, Moment, Sending};
use crate::sim::clients::request::{Sort, What};
use crate::sim::simulation::World;
use crate::sim::trace::readable;

/// Most stale ids that are kept to be reported by mistake.
const STALE_MAX: usize = 4;

impl World {
    pub(crate) fn observe(&mut self) -> Result<(), String> {
        let numbers: Vec<u32> = self.links.keys().copied().collect();
        // Ends first: who was cut off in the turn that granted to the next holds nothing any more.
        for &number in &numbers {
            self.find_end(number)?;
        }
        let rivals = self.rivals();
        let parked = self.parked();
        for &number in &numbers {
            self.read(number, &rivals)
                .map_err(|why| format!("connection {number}: {why}"))?;
        }
        self.history.turn_ended(self.now, self.turn);
        self.history.check_exclusion(self.now)?;
        self.check_table()?;
        self.check_things(parked)?;
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
        let owns = link.is_seated() || self.history.owns_something(number, self.now);
        let is_over = self.draining.is_some_and(|(since, _)| {
            let timeout = settings.shutdown_timeout;
            let at = since.after(timeout);
            // Who merely listens is not waited for.
            let is_done = !self.history.owns_something(number, self.now);
            self.is_killed || is_done || (timeout != Millis::ZERO && self.now >= at)
        });
        // Who understands news and does not read them is a slow consumer.
        let is_slow = link.may_be_pushed_to && link.blind_since.is_some();
        link.has_left()
            || link.farewell
            || is_slow
            || is_over
            || link.is_overdue(self.now, settings, owns)
            || link.is_stuck(self.now, settings)
            || self.may_be_overrun(link)
    }

    /// Whether the server may have had more to tell it than it keeps for anybody.
    fn may_be_overrun(&self, link: &Link) -> bool {
        self.plan.is_loud && link.is_behind() && link.listens > 0
    }

    fn find_end(&mut self, number: u32) -> Result<(), String> {
        let link = &self.links[&number];
        let owns = link.is_seated() || self.history.owns_something(number, self.now);
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
            self.totals.overrun += u64::from(self.may_be_overrun(link));
        }
        self.trace
            .say(self.now, format_args!("c{client:<2} <- end of {number}"));
        self.history.owner_is_gone(number, self.turn);
        let link = self.links.get_mut(&number).expect("looked at above");
        link.ended = true;
        link.ended_by = self.turn;
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
            // Whoever comes to observe a key looks at its leases first, whichever key it is.
            if matches!(asked.what, What::TakeSeat(_)) && asked.arrived.is_some() {
                rivals.iter_mut().for_each(|count| *count += 1);
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
            self.trace.mix_line(&line);
            let mut judge = Judge {
                plan: &self.plan,
                history: &mut self.history,
                before: &self.checker,
                rivals,
                first,
                things: &mut self.things,
                hearing: &mut self.hearing,
                link: number,
                now: self.now,
                turn: self.turn,
                draining: self.draining.map(|(_, turn)| turn),
            };
            self.totals.answers += 1;
            match judge.line(link, &line)? {
                Verdict::Granted => self.totals.grants_told += 1,
                Verdict::TimedOut => self.totals.timeouts += 1,
                Verdict::Thing => self.totals.things += 1,
                Verdict::Swapped => self.totals.swaps += 1,
                Verdict::Met => self.totals.met += 1,
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
        let is_lossy = link.is_behind() || link.poisoned || self.draining.is_some();
        let link = self.links.remove(&number).expect("looked at above");
        if is_lossy {
            self.hearing.lost_track_of(number, link.listens);
            let is_pop = |what: &What| matches!(what, What::Thing(ask) if ask.is_pop());
            self.things.was_given_back |= link.asked.iter().any(|it| is_pop(&it.what));
        }
        for asked in link.asked {
            let fence = match asked.what {
                What::Renew { target, .. } => target,
                What::Wait { key, .. } => link.tickets.get(&key).and_then(|ticket| ticket.held),
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

    /// Who waits for a value or at a barrier, and has done so since before this turn.
    fn parked(&self) -> Vec<Parked> {
        let mut parked = Vec::new();
        for (&link, it) in &self.links {
            if let Some(asked) = it.asked.front()
                && let (What::Thing(ask), Some(begun)) = (&asked.what, asked.begun)
            {
                let (sort, key) = ask.thing();
                parked.push(Parked {
                    sort,
                    key,
                    link,
                    since: begun.turn,
                    stays: false,
                });
            }
        }
        parked
    }

    /// Whether somebody may have done something and not have been told.
    fn is_in_doubt(&self) -> bool {
        self.links.values().any(|link| {
            let is_lossy = link.poisoned || self.draining.is_some();
            let is_open = || link.asked.iter().any(|asked| asked.arrived.is_some());
            let ended_now = link.ended && link.ended_by == self.turn;
            link.id.is_some() && link.is_behind() || ended_now && (is_lossy || is_open())
        })
    }

    fn check_things(&mut self, mut parked: Vec<Parked>) -> Result<(), String> {
        let doubt = self.is_in_doubt();
        parked.retain_mut(|it| {
            let link = &self.links[&it.link];
            let begun = link.asked.front().and_then(|asked| asked.begun);
            it.stays = begun.is_some_and(|begun| begun.turn == it.since);
            is_attentive(link)
        });
        let view = self.server.engine().view(self.now);
        self.things.after_turn(&self.plan, view, &parked, doubt)?;
        let steady = self.plan.keys.iter().zip(&self.checker.steady);
        let steady = steady.filter(|(_, steady)| **steady);
        self.hearing.after_turn(&Turn {
            number: self.turn,
            links: &self.links,
            doubt,
            tally: self.server.engine().tally(),
            steady: steady.map(|((name, _), _)| &name[..]).collect(),
        })
    }

    /// The server rests: everybody has the answer, or stands in line in time.
    fn check_quiet(&mut self) -> Result<(), String> {
        let (now, turn) = (self.now, self.turn);
        let mut waiting: BTreeMap<(Sort, usize), usize> = BTreeMap::new();
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
            let mut is_parked = key.is_some_and(|key| self.checker.is_in_line(key, id.serial));
            if let What::Thing(ask) = &asked.what
                && wait != Millis::ZERO
            {
                *waiting.entry(ask.thing()).or_default() += 1;
                is_parked = true; // as is checked below
            }
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
        self.check_waiting(&waiting)?;
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

    /// Whoever waits for a value or at a barrier does so in the server's eyes too, and nobody else.
    fn check_waiting(&self, waiting: &BTreeMap<(Sort, usize), usize>) -> Result<(), String> {
        let view = self.server.engine().view(self.now);
        let behind = self.links.values().filter(|it| !is_attentive(it)).count();
        for sort in [Sort::List, Sort::Barrier] {
            for key in 0..self.plan.things(sort) {
                let name = self.plan.name(sort, key);
                let lists = view
                    .lists()
                    .filter(|it| sort == Sort::List && it.key == name);
                let barriers = view.barriers();
                let barriers = barriers.filter(|it| sort == Sort::Barrier && it.key == name);
                let seen: u32 = lists.map(|it| it.what.1).sum::<u32>()
                    + barriers.map(|it| it.what.1).sum::<u32>();
                let asked = waiting.get(&(sort, key)).copied().unwrap_or(0);
                if !(asked..=asked + behind).contains(&(seen as usize)) {
                    return Err(format!("{asked} wait for {sort:?} {key}, {seen} are seen"));
                }
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
}
