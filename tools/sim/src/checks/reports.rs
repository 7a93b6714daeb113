//! What `stats` and `who` say, compared with what clients know and with the table before and after.
//!
//! A document shows one instant of its turn. Whatever was there before the turn and still is after
//! it must be in it, as it is; whatever is in it must have been there before, after, or have come in
//! between. Of a key that nobody asked about, and that is the same before and after, it must say
//! exactly that. What a client certainly holds must be in it, and nothing that is certainly over.
//! Arrays end at a thousand entries, so beside a crowd nothing is missed in them.

use std::collections::BTreeMap;

use super::grants::KnownGrants;
use super::key_events::is_attentive;
use super::lock_table::{SeenKey, SeenLocks};
use crate::clients::connection::Connection;
use crate::clients::request::RequestKind;
use crate::json::Json;
use crate::plan::Plan;
use crate::turn::TurnSpan;
use latchd::base::Nanos;
use latchd::engine::Tally;
use latchd::server::Door;

/// Arrays are shorter than this, or say nothing about what is not in them.
const ENTRIES_MAX: usize = 1_000;

/// With more edges than this some may be left out of `waits`.
pub(super) const EDGES_MAX: usize = 600;

/// A document that a client read in this turn.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) about: About,
    pub(crate) json: Json,
}

/// What a document is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    Stats,
    /// `who`, asked about this key.
    Key(usize),
    /// `waits`, as far as keys are concerned.
    Waits,
    /// No document, but that this connection would wait for itself if it waited for this key.
    Deadlock {
        connection: u32,
        key: usize,
        /// If it has a place in the queue, this is what it waits for, and no other place before it.
        has_place: bool,
    },
}

/// Everything that a document is compared with.
pub(crate) struct ReportCheck<'w> {
    pub(crate) plan: &'w Plan,
    pub(crate) before: &'w SeenLocks,
    pub(crate) after: &'w SeenLocks,
    /// How many requests about each key the server may have seen in this turn.
    pub(crate) requests_per_key: &'w [u32],
    pub(crate) known_grants: &'w KnownGrants,
    pub(crate) connections: &'w BTreeMap<u32, Connection>,
    pub(crate) span: TurnSpan,
    pub(crate) turn: u64,
    /// The longest turn before this one.
    pub(crate) longest_turn_ns: u64,
}

impl ReportCheck<'_> {
    pub(crate) fn check(&self, report: &Report) -> Result<(), String> {
        match report.about {
            About::Key(key) => self
                .check_who(key, &report.json)
                .map_err(|why| format!("who k{key}: {why}")),
            About::Stats => self
                .check_stats(&report.json)
                .map_err(|why| format!("stats: {why}")),
            About::Deadlock {
                connection,
                key,
                has_place,
            } => self.check_deadlock(connection, key, has_place),
            About::Waits => self
                .check_edges(&report.json)
                .map_err(|why| format!("waits: {why}")),
        }
    }

    /// The key as it was before the turn, and after it.
    fn seen(&self, key: usize) -> (&SeenKey, &SeenKey) {
        (self.before.key(key), self.after.key(key))
    }

    /// Nothing happened to the key in this turn, so there is only one thing to say about it.
    fn is_untouched(&self, key: usize) -> bool {
        let (before, after) = self.seen(key);
        before == after && self.requests_per_key[key] == 0
    }

    // ---- who ----

    fn check_who(&self, key: usize, json: &Json) -> Result<(), String> {
        let name = String::from_utf8_lossy(&self.plan.keys[key].0);
        if json.text("key")? != name {
            return Err(format!("it is about {:?}", json.text("key")));
        }
        let holders = json.list("holders")?;
        let waiters = json.list("waiters")?;
        for (count, list) in [("holder_count", holders), ("waiter_count", waiters)] {
            if json.number(count)? != list.len() as u64 {
                return Err(format!("{count} is not how many there are"));
            }
        }
        self.check_holders(key, holders)?;
        self.check_waiters(key, waiters)
    }

    fn check_holders(&self, key: usize, holders: &[Json]) -> Result<(), String> {
        let (before, after) = self.seen(key);
        let mut listed = BTreeMap::new();
        for holder in holders {
            // What was restored has none until somebody claims it.
            let connection = holder.number("connection").unwrap_or(0);
            let fence = holder.number("fence")?;
            let left_ms = holder.span_ms("lease_left_s")?;
            if listed.insert(fence, (connection, left_ms)).is_some() {
                return Err(format!("{fence} is there twice"));
            }
            let known = after.holder(fence).or_else(|| before.holder(fence));
            match known {
                Some((owner, _)) if u64::from(owner) == connection => {}
                Some((owner, _)) => {
                    return Err(format!(
                        "{fence} is of connection {owner}, not {connection}"
                    ));
                }
                None if fence > self.before.fence_max() && fence <= self.after.fence_max() => {}
                None => return Err(format!("{fence} is not held")),
            }
            if self.known_grants.is_over_before(fence, self.turn) {
                return Err(format!("{fence} is over"));
            }
        }
        for fence in before.fences().filter(|it| after.holder(*it).is_some()) {
            let Some((_, left_ms)) = listed.get(&fence) else {
                return Err(format!("{fence} is held, and is missing"));
            };
            let (deadline, moved) = (after.holder(fence), before.holder(fence));
            let left = |at: Nanos| deadline.map_or(0, |(_, it)| it.since(at) / 1_000_000);
            let bounds = left(self.span.clock_read)..=left(self.span.began);
            let runs = deadline.is_some_and(|(_, it)| it != Nanos::NEVER);
            if runs && deadline == moved && !bounds.contains(left_ms) {
                return Err(format!("{fence} has {bounds:?} ms left, not {left_ms}"));
            }
        }
        for fence in self.known_grants.certain_since(key, self.span) {
            if !listed.contains_key(&fence) {
                return Err(format!("a client holds {fence}, and it is missing"));
            }
        }
        if self.is_untouched(key) && listed.len() != after.fences().count() {
            return Err(format!(
                "{} hold, not {}",
                after.fences().count(),
                listed.len()
            ));
        }
        Ok(())
    }

    /// Waiters are in the order of the queue.
    fn check_waiters(&self, key: usize, waiters: &[Json]) -> Result<(), String> {
        let (before, after) = self.seen(key);
        let mut listed = Vec::new();
        for (waiter, position) in waiters.iter().zip(1..) {
            if waiter.number("position")? != position {
                return Err(format!("position {position} is missing"));
            }
            listed.push(waiter.number("connection")?);
        }
        let mut rest = listed.iter();
        for stayed in before.waiters_that_stay_in(after) {
            if !rest.any(|it| *it == u64::from(stayed)) {
                return Err(format!(
                    "connection {stayed} waits, and is missing, or not in its place"
                ));
            }
        }
        let queue: Vec<u64> = after.waiting().map(u64::from).collect();
        if self.is_untouched(key) && listed != queue {
            return Err(format!("{queue:?} wait, not {listed:?}"));
        }
        Ok(())
    }

    // ---- waits ----

    /// Of a key that nothing happened to: an edge leads from somebody in the queue to a holder, or to
    /// somebody before it, and whoever waits is there. Owners that have a name are not looked at.
    fn check_edges(&self, json: &Json) -> Result<(), String> {
        let edges = json.list("edges")?;
        let is_calm = |key: &usize| {
            let (before, after) = self.seen(*key);
            before == after && self.newly_asked(*key) == 0
        };
        for key in (0..self.plan.keys.len()).filter(is_calm) {
            let name = String::from_utf8_lossy(&self.plan.keys[key].0);
            let key_seen = self.after.key(key);
            let queue: Vec<u32> = key_seen.waiting().collect();
            let mut told = Vec::new();
            for edge in edges {
                if edge.text("kind")? == "range" || edge.text("on")? != name {
                    continue;
                }
                let Some(waiter) = connection_of(edge, "waiter") else {
                    continue;
                };
                told.push(waiter);
                let Some(place) = queue.iter().rposition(|it| *it == waiter) else {
                    return Err(format!("#{waiter} does not wait for {name:?}"));
                };
                let Some(other) = connection_of(edge, "waits_for") else {
                    continue;
                };
                let mut holders = key_seen.fences().filter_map(|it| key_seen.holder(it));
                if !queue[..place].contains(&other) && !holders.any(|(it, _)| it == other) {
                    return Err(format!("#{waiter} does not wait for #{other}"));
                }
            }
            let waits = |it: &&Connection| {
                let front = it.open_requests.front().map(|it| &it.kind);
                // Over HTTP it waits by its name; and a place that it took before is not waited for.
                it.door == Door::Line
                    && !it.tickets.contains_key(&key)
                    && matches!(front, Some(RequestKind::Acquire { key: of, .. }) if *of == key)
            };
            let waiting = self.connections.values().filter(waits);
            for serial in waiting.filter_map(|it| Some(it.id?.serial)) {
                let is_missing = queue.contains(&serial) && !told.contains(&serial);
                if is_missing && edges.len() < EDGES_MAX {
                    return Err(format!("#{serial} waits, and is missing"));
                }
            }
        }
        Ok(())
    }

    // ---- stats ----

    fn check_stats(&self, json: &Json) -> Result<(), String> {
        let totals = json.object("totals")?;
        let tally = Tally {
            grants: totals.number("grants")?,
            releases: totals.number("releases")?,
            expiries: totals.number("expiries")?,
            disconnects: totals.number("disconnects")?,
            breaks: totals.number("breaks")?,
        };
        self.check_tally(tally)?;
        let had = tally.grants + self.after.restored();
        let held = had - tally.releases - tally.expiries - tally.disconnects - tally.breaks;
        let holds = [totals.number("holds")?, totals.number("holds_max")?];
        if holds != [held, self.plan.rules.holds_max.into()] {
            return Err(format!(
                "{holds:?} grants are held of those that may be, by {tally:?}"
            ));
        }
        let longest_us = totals.number("longest_turn_us")?;
        if longest_us != self.longest_turn_ns / 1_000 {
            let longest_ns = self.longest_turn_ns;
            return Err(format!(
                "the longest turn took {longest_ns} ns, not {longest_us} us"
            ));
        }
        self.check_clients(json)?;
        let mut held = 0;
        for (title, holders) in [
            ("locks", "owner_conn_id"),
            ("semaphores", "holders"),
            ("rw_locks", "readers"),
        ] {
            let keys = json.list(title)?;
            if keys.len() < ENTRIES_MAX && totals.number(title)? != keys.len() as u64 {
                return Err(format!("the total of {title} is not how many there are"));
            }
            for it in keys {
                held += match title {
                    "locks" => u64::from(it.number("fence")? != 0),
                    "semaphores" => it.number(holders)?,
                    _ => it.number(holders)? + u64::from(it.number("fence").is_ok()),
                };
                self.check_key(title, it)?;
            }
            for key in 0..self.plan.keys.len() {
                self.check_missing(key, title, keys)?;
            }
        }
        let ends = tally.releases + tally.expiries + tally.disconnects + tally.breaks;
        let had = tally.grants + self.after.restored();
        if self.plan.crowd.is_none() && had - ends != held {
            return Err(format!("{held} are held by {tally:?}"));
        }
        Ok(())
    }

    /// What was counted is between what was counted before the turn and after it.
    fn check_tally(&self, said: Tally) -> Result<(), String> {
        let numbers = |it: Tally| {
            let Tally {
                grants,
                releases,
                expiries,
                disconnects,
                breaks,
            } = it;
            [grants, releases, expiries, disconnects, breaks]
        };
        let (before, after) = (numbers(self.before.tally()), numbers(self.after.tally()));
        for ((said, before), after) in numbers(said).into_iter().zip(before).zip(after) {
            if !(before..=after).contains(&said) {
                return Err(format!("{said:?} is not from {before:?} to {after:?}"));
            }
        }
        Ok(())
    }

    /// Everybody who is connected is listed, with what they hold.
    fn check_clients(&self, json: &Json) -> Result<(), String> {
        let clients = json.list("clients")?;
        if clients.len() >= ENTRIES_MAX {
            return Ok(());
        }
        if json.number("connections")? != clients.len() as u64 {
            return Err("not all connections are listed".to_owned());
        }
        let mut held = BTreeMap::new();
        for client in clients {
            held.insert(client.number("connection")?, client.number("held")?);
        }
        let is_calm = self.before.tally() == self.after.tally();
        for (number, conn) in self.connections {
            let stays = conn.accepted_by < self.turn && is_attentive(conn);
            let Some(id) = conn.id.filter(|_| stays && !conn.is_newcomer) else {
                continue;
            };
            let Some(held) = held.get(&u64::from(id.serial)) else {
                return Err(format!("connection {number} is missing"));
            };
            // Something that was restored may have become its own in this turn.
            let held_in = |seen: &SeenLocks| {
                let own = seen.holders().filter(|it| it.0 == id.serial);
                own.count() as u64
            };
            let holds = held_in(self.after);
            if is_calm && *held != holds && *held != held_in(self.before) {
                return Err(format!("connection {number} holds {holds}, not {held}"));
            }
        }
        Ok(())
    }

    /// A key of the plan that was not touched in this turn is shown as it is.
    fn check_key(&self, title: &str, it: &Json) -> Result<(), String> {
        let Some(key) = self.key_of(it.text("key")?) else {
            return Ok(()); // of a crowd
        };
        if !self.is_untouched(key) {
            return Ok(());
        }
        let seen = self.after.key(key);
        let first = seen.fences().next().unwrap_or(0);
        let count = seen.fences().count() as u64;
        let says = match title {
            "locks" => {
                let owner = seen.holder(first).map_or(0, |(owner, _)| owner);
                it.number("owner_conn_id")? == u64::from(owner) && it.number("fence")? == first
            }
            "semaphores" => it.number("holders")? == count,
            _ => {
                let writers = u64::from(it.number("fence").is_ok_and(|fence| fence == first));
                it.number("readers")? + writers == count
            }
        };
        if !says || it.number("waiters")? != seen.waiting().count() as u64 {
            return Err(format!("k{key} is not as {it:?}"));
        }
        Ok(())
    }

    /// A key that was in use for the whole turn is in one of the arrays, unless that is full.
    fn check_missing(&self, key: usize, title: &str, keys: &[Json]) -> Result<(), String> {
        let (before, after) = self.seen(key);
        let mut fences = before.fences().filter(|it| after.holder(*it).is_some());
        let Some(fence) = fences.next().filter(|_| keys.len() < ENTRIES_MAX) else {
            return Ok(());
        };
        let is_here = keys.iter().any(|it| {
            it.text("key")
                .is_ok_and(|name| self.key_of(name) == Some(key))
        });
        if after.kind() == title && !is_here {
            return Err(format!(
                "k{key} is held with {fence}, and is missing in {title}"
            ));
        }
        Ok(())
    }

    fn key_of(&self, name: &str) -> Option<usize> {
        let mut keys = self.plan.keys.iter();
        keys.position(|(it, _)| String::from_utf8_lossy(it) == name)
    }
}

/// The connection that an edge begins or ends at, unless it is somebody with a name.
fn connection_of(edge: &Json, end: &str) -> Option<u32> {
    edge.text(end).ok()?.strip_prefix('#')?.parse().ok()
}
