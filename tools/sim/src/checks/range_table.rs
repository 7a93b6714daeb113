//! What a turn may do to byte ranges: everything that changed has a reason.
//!
//! Compares what the server shows after a turn with what it showed before. Whoever has got bytes has asked
//! for them, nobody has lost any without a reason, clients are kept for as long as they were
//! promised and not much longer, queues keep their order, and nobody waits for what is free, or for itself.

use std::collections::BTreeSet;

use super::known_ranges::{Away, Doing, KnownRanges};
use super::range_model::Model;
use super::seen_ranges::{RangeOwner, Seen, SeenRanges, Who};
use crate::Sabotage;
use crate::clients::connection::Connection;
use crate::clients::range_requests::RangeAsked;
use crate::faults::ranges::shown;
use crate::simulation::Simulation;
use latchd::base::{Millis, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::Sharing;

impl Simulation {
    /// Looks at byte ranges and attached clients after a turn, before anybody reads an answer.
    pub(crate) fn check_ranges(&mut self) -> Result<(), String> {
        if self.plan.ranges.clients == 0 {
            return Ok(());
        }
        let span = self.life.span;
        let mut seen = SeenRanges::look(&self.plan, &self.life, self.turn, span, self.now)?;
        if let (Some(Sabotage::Range(fault)), Some(before)) =
            (self.sabotage, self.life.known_ranges.last())
        {
            shown(fault, before, &mut seen);
        }
        let has_left = |(number, conn): (&u32, &Connection)| {
            (conn.ended || self.has_reason_to_end(*number, conn)).then_some(*number)
        };
        let causes = TurnCauses {
            left: self.life.connections.iter().filter_map(has_left).collect(),
            is_draining: self.life.draining.is_some(),
            late_ns_max: self.departure_ns_max(),
            awake_since: self.life.paused_until,
            rules: &self.plan.rules,
            is_calm: self.is_disk_calm(),
            is_busy: !self.is_quiet(),
        };
        let mut known = std::mem::take(&mut self.life.known_ranges);
        let result = known.after_turn(&causes, seen);
        self.life.known_ranges = known;
        self.totals.predicted += u64::from(result?);
        Ok(())
    }

    /// Whether no request waits for the disk, and none is refused because of it.
    fn is_disk_calm(&self) -> bool {
        let is_slow = self.plan.disk.is_some_and(|it| it.behind_bytes < 1 << 20);
        let full_in = self.life.full_in_turn;
        !is_slow && full_in.is_none_or(|turn| turn + 1 < self.turn)
    }

    /// Whether a shutdown waits for what this connection has of byte ranges.
    pub(crate) fn keeps_shutdown_waiting(&self, number: u32) -> bool {
        let is_durable = self.plan.disk.is_some();
        self.life.known_ranges.is_unfinished(number, is_durable)
    }
}

/// What else happened in a turn.
pub(crate) struct TurnCauses<'a> {
    /// Connections that have left, or may have been cut off.
    pub(crate) left: BTreeSet<u32>,
    pub(crate) is_draining: bool,
    /// How late the server may be with what is due.
    pub(crate) late_ns_max: u64,
    /// Since when it has not been paused.
    pub(crate) awake_since: Nanos,
    pub(crate) rules: &'a Rules,
    /// The disk makes nobody wait.
    pub(crate) is_calm: bool,
    /// The server has more to do.
    pub(crate) is_busy: bool,
}

impl KnownRanges {
    /// A turn is over, and this is what the server shows. Returns whether there was only one answer that
    /// somebody can have.
    pub(crate) fn after_turn(
        &mut self,
        causes: &TurnCauses<'_>,
        after: SeenRanges,
    ) -> Result<bool, String> {
        self.push(after);
        let mut last = self.since(0).rev().cloned();
        let (Some(after), Some(before)) = (last.next(), last.next()) else {
            return Ok(false);
        };
        drop(last);
        let change = Change {
            known: self,
            causes,
            before: &before,
            after: &after,
        };
        let checked = change.check();
        checked.map_err(|why| {
            let (was, is) = (&before.resources, &after.resources);
            format!("{why}\nwas: {was:?}\nis: {is:?}")
        })?;
        let predicted = change.predict().map_err(|why| {
            let (was, is) = (&before.resources, &after.resources);
            format!("{why}\nwas: {was:?}\nis: {is:?}")
        })?;
        let is_anew = |id: &usize| change.may_be_forgotten(*id);
        let anew: Vec<usize> = before.clients.keys().copied().filter(is_anew).collect();
        anew.into_iter()
            .for_each(|id| self.client_is_new(id, after.turn));
        let is_predicted = !predicted.is_empty();
        for (number, answer) in predicted {
            if let Some(doing) = self.doing(number) {
                doing.expected = Some(answer);
            }
        }
        self.note_clients(&before, &after);
        self.forget_left(&causes.left);
        self.check_told().map(|()| is_predicted)
    }

    /// Notes who is away since when, and with which secret new ones came.
    fn note_clients(&mut self, before: &SeenRanges, after: &SeenRanges) {
        let turn = before.turn;
        let attaches = self.doings_since(turn).filter_map(|it| match it.asked {
            RangeAsked::Attach { id, secret, .. } => Some((id, secret)),
            _ => None,
        });
        let attaches: Vec<(usize, usize)> = attaches.collect();
        let has_conn = |seen: &SeenRanges, id| seen.clients.get(&id).is_some_and(|it| it.conns > 0);
        for &(id, secret) in &attaches {
            // Where it may have been new, whoever came first has chosen the secret.
            let may_be_new = self.may_be_new(id, turn);
            if may_be_new || !has_conn(before, id) || !has_conn(after, id) {
                self.secrets.entry(id).or_default().insert(secret);
            }
        }
        for (&id, it) in &after.clients {
            let was_there = has_conn(before, id);
            let has_come = attaches.iter().any(|(of, _)| *of == id);
            if it.conns > 0 {
                self.away.remove(&id);
                continue;
            }
            let now = after.span;
            // What it has not had back yet is kept for it, also if it leaves again.
            let kept_until = self.kept_until(Who::Client(id));
            let until = |is_kept: bool| if is_kept { kept_until } else { Nanos(0) };
            let is_kept = after.has_pending(id);
            let new = Away {
                at_latest: now.clock_read,
                at_earliest: now.began,
                kept_until: until(is_kept),
                kept_until_max: until(is_kept || before.has_pending(id)),
            };
            let away = self.away.entry(id).or_insert(new);
            if was_there || has_come {
                // It may have come and gone in this turn.
                away.at_latest = now.clock_read;
                away.kept_until = away.kept_until.min(until(is_kept));
            }
        }
        for id in before.clients.keys() {
            if !after.clients.contains_key(id) {
                self.client_is_gone(*id);
            }
        }
    }
}

/// What was, what is, and what was asked in between.
struct Change<'a> {
    known: &'a KnownRanges,
    causes: &'a TurnCauses<'a>,
    before: &'a SeenRanges,
    after: &'a SeenRanges,
}

impl Change<'_> {
    fn check(&self) -> Result<(), String> {
        self.check_clients()?;
        self.check_grace()?;
        self.check_holds()?;
        self.check_queues()?;
        self.check_waits()
    }

    fn is_asked(&self, is_it: impl Fn(RangeAsked) -> bool) -> bool {
        let mut doings = self.known.doings_since(self.before.turn);
        doings.any(|it| is_it(it.asked))
    }

    fn owner_asks(&self, owner: RangeOwner, is_it: impl Fn(RangeAsked) -> bool) -> bool {
        let mut doings = self.known.doings_of(owner, self.before.turn);
        doings.any(|it| is_it(it.asked))
    }

    fn is_detached(&self, id: usize) -> bool {
        self.is_asked(|it| matches!(it, RangeAsked::Detach { id: of, .. } if of == id))
    }

    fn is_attached(&self, id: usize) -> bool {
        self.is_asked(|it| matches!(it, RangeAsked::Attach { id: of, .. } if of == id))
    }

    // ---- the only thing that can have happened ----

    /// If one request was all there was, the server does what the model does. Returns which requests must
    /// have which answers.
    fn predict(&self) -> Result<Vec<(u64, String)>, String> {
        let Some((doing, who)) = self.only_doing() else {
            return Ok(Vec::new());
        };
        let mut model = Model::new(
            self.causes.rules,
            self.before,
            doing.conn,
            self.known.is_strict,
        );
        let Some(answer) = model.ask(who, doing.asked) else {
            return Ok(Vec::new());
        };
        // A server that has more to do may not have come to it.
        let is_untouched = self.before.resources == self.after.resources;
        if self.causes.is_busy && is_untouched {
            return Ok(Vec::new());
        }
        if !model.is(self.after) {
            let (asked, is) = (doing.asked, &model.resources);
            return Err(format!(
                "{who:?} asked for {asked:?} alone: {answer:?}, {is:?}"
            ));
        }
        let mut answers: Vec<(u64, String)> = Vec::new();
        answers.extend(answer.map(|it| (doing.number, it)));
        for (owner, told) in &model.told {
            let waiting = self.known.doings_of(*owner, self.before.turn);
            let mut waiting = waiting.filter(|it| self.is_parked(it));
            if let (Some(it), None) = (waiting.next(), waiting.next()) {
                answers.push((it.number, (*told).to_owned()));
            }
        }
        Ok(answers)
    }

    /// The only request that came, if nothing else happened: nobody has left or attached, and no time is
    /// over.
    fn only_doing(&self) -> Option<(&Doing, Who)> {
        let is_quiet = self.causes.is_calm
            && !self.causes.is_draining
            && self.causes.left.is_empty()
            && self.before.conns == self.after.conns
            && self.before.clients == self.after.clients;
        let in_grace = self.before.grace.left > Millis::ZERO;
        let clock_read = self.after.span.clock_read;
        if !is_quiet || in_grace && clock_read >= self.known.grace_ends {
            return None;
        }
        let mut only: Option<&Doing> = None;
        let mut conns = BTreeSet::new();
        for it in self.known.doings_since(self.before.turn) {
            let arrived = it.arrived?;
            if !conns.insert(it.conn) {
                return None; // what was sent behind something may begin when that is over
            }
            if self.is_parked(it) {
                let RangeAsked::Lock { wait, .. } = it.asked else {
                    return None;
                };
                if clock_read >= arrived.at.after(wait) {
                    return None;
                }
            } else if only.replace(it).is_some() || arrived.turn + 1 != self.after.turn {
                return None;
            }
        }
        let it = only?;
        Some((it, self.before.who(it.conn)?))
    }

    /// Whether it was in the queue before.
    fn is_parked(&self, doing: &Doing) -> bool {
        let RangeAsked::Lock { bytes, mode, .. } = doing.asked else {
            return false;
        };
        let owner = self.before.who(doing.conn).map(|who| RangeOwner {
            who,
            name: bytes.name,
        });
        let waits = owner.and_then(|owner| self.before.wait_of(owner));
        let is_old = doing
            .arrived
            .is_some_and(|it| it.turn + 1 < self.after.turn);
        let is_it = |(at, it): (usize, &Seen)| {
            (at, it.cells, it.mode) == (bytes.resource, bytes.cells, mode)
        };
        is_old && waits.is_some_and(is_it)
    }

    // ---- clients ----

    fn check_clients(&self) -> Result<(), String> {
        let (before, after) = (&self.before.clients, &self.after.clients);
        for (&id, it) in before {
            if !after.contains_key(&id) && !self.may_be_forgotten(id) {
                return Err(format!("client {id} is forgotten before its time: {it:?}"));
            }
        }
        for (&id, it) in after {
            let Some(was) = before.get(&id) else {
                if !self.is_attached(id) {
                    return Err(format!("nobody has attached to client {id}"));
                }
                continue;
            };
            let sets = |asked| matches!(asked, RangeAsked::Attach { id: of, ttl, .. } if (of, ttl) == (id, it.ttl));
            if was.ttl != it.ttl && !self.is_asked(sets) {
                return Err(format!("client {id} is kept for {:?}", it.ttl));
            }
            if it.conns == 0 {
                self.check_not_late(id, it.ttl)?;
            }
        }
        for (conn, now) in &self.after.conns {
            let was = self.before.conns.get(conn).copied().flatten();
            let has_attached = |id| {
                let mut doings = self.known.doings_since(self.before.turn);
                doings.any(|it| {
                    it.conn == *conn
                        && matches!(it.asked, RangeAsked::Attach { id: of, .. } if of == id)
                })
            };
            match (was, *now) {
                (was, Some(id)) if was != Some(id) && !has_attached(id) => {
                    return Err(format!("connection {conn} did not attach to client {id}"));
                }
                (Some(id), None) if !self.is_detached(id) && !self.causes.left.contains(conn) => {
                    return Err(format!("connection {conn} was detached by nobody"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether somebody has detached it, or its time may be over.
    fn may_be_forgotten(&self, id: usize) -> bool {
        if self.is_detached(id) {
            return true;
        }
        let Some(it) = self.before.clients.get(&id) else {
            return true;
        };
        let attaches = self.known.doings_since(self.before.turn);
        let ttls = attaches.filter_map(|it| match it.asked {
            RangeAsked::Attach { id: of, ttl, .. } if of == id => Some(ttl),
            _ => None,
        });
        let ttl = ttls.chain([it.ttl]).min().unwrap_or(it.ttl);
        let has_conn =
            self.before.conns.iter().any(|(conn, at)| {
                *at == Some(id) && self.after.who(*conn) == Some(Who::Client(id))
            });
        let clock_read = self.after.span.clock_read;
        match self.known.away.get(&id) {
            // Whoever is not to be kept at all is not kept for this either.
            Some(_) if ttl == Millis::ZERO => true,
            Some(away) => clock_read >= away.at_earliest.after(ttl).max(away.kept_until),
            // The last connection has left in this turn.
            None => !has_conn && clock_read >= self.after.span.began.after(ttl),
        }
    }

    fn check_not_late(&self, id: usize, ttl: Millis) -> Result<(), String> {
        let Some(away) = self
            .known
            .away
            .get(&id)
            .filter(|_| !self.causes.is_draining)
        else {
            return Ok(());
        };
        if self.is_attached(id) {
            return Ok(()); // it may have come and gone
        }
        let deadline = away.at_latest.after(ttl).max(away.kept_until_max);
        let deadline = deadline.max(self.causes.awake_since);
        if self.after.span.began.since(deadline) > self.causes.late_ns_max {
            return Err(format!("client {id} is there after its time: {away:?}"));
        }
        Ok(())
    }

    // ---- the grace period ----

    fn check_grace(&self) -> Result<(), String> {
        let (before, after) = (self.before.grace, self.after.grace);
        if before.left == Millis::ZERO && after.left > Millis::ZERO {
            return Err("a grace period begins in the middle of a life".to_owned());
        }
        let is_late = |ends: Nanos| {
            let ends = ends.max(self.causes.awake_since);
            self.after.span.began.since(ends) > self.causes.late_ns_max
        };
        let held = self.after.resources.iter().flat_map(|it| &it.held);
        for it in held.filter(|it| it.pending) {
            if is_late(self.known.kept_until(it.owner.who)) {
                return Err(format!("{it:?} is kept after its time"));
            }
        }
        if after.left > Millis::ZERO {
            if is_late(self.known.grace_ends_for_all()) {
                return Err("the grace period does not end".to_owned());
            }
            if after.expected != self.known.expected || after.done > after.expected {
                return Err(format!(
                    "{after:?} where {} have something",
                    self.known.expected
                ));
            }
        }
        let is_pending = |it: &SeenRanges| {
            it.resources
                .iter()
                .any(|at| at.held.iter().any(|it| it.pending))
        };
        let ends_early = before.left > Millis::ZERO && after.left == Millis::ZERO;
        let may_end = self.grace_may_end(self.known.grace_ends_for_all())
            || self.known.expected > 0 && !is_pending(self.after);
        if ends_early && !may_end {
            return Err("the grace period ends before its time".to_owned());
        }
        let waits_on = after.left > Millis::ZERO && self.known.expected > 0;
        if waits_on && !is_pending(self.after) && !is_pending(self.before) {
            return Err("everybody has everything back, and the grace period goes on".to_owned());
        }
        Ok(())
    }

    /// This time is over, or an operator ends the grace period.
    fn grace_may_end(&self, ends: Nanos) -> bool {
        self.after.span.clock_read >= ends
            || self.is_asked(|it| it == RangeAsked::Grace { ends: true })
    }

    // ---- who holds what ----

    fn check_holds(&self) -> Result<(), String> {
        let resources = self.before.resources.iter().zip(&self.after.resources);
        for (resource, (before, after)) in resources.enumerate() {
            let owners = before.held.iter().chain(&after.held).map(|it| it.owner);
            for owner in owners.collect::<BTreeSet<_>>() {
                let (was, is) = (before.cells_of(owner), after.cells_of(owner));
                for (cell, (was, is)) in was.into_iter().zip(is).enumerate() {
                    let is_right = match (was, is) {
                        (was, is) if was == is => true,
                        (_, Some((_, true))) => false,
                        (was, Some((mode, false))) => {
                            self.may_get(owner, resource, cell, was, mode)
                        }
                        (Some((_, pending)), None) => self.may_lose(owner, resource, cell, pending),
                        (None, None) => true,
                    };
                    if !is_right {
                        return Err(format!(
                            "{owner:?} had {was:?} of cell {cell} of {resource} and has {is:?}, \
                             for no reason"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn may_get(
        &self,
        owner: RangeOwner,
        resource: usize,
        cell: usize,
        was: Option<(Sharing, bool)>,
        mode: Sharing,
    ) -> bool {
        // What was sent behind a lock may have it back in another mode in the turn in which it is granted.
        let is_locked = self.owner_asks(owner, |asked| {
            matches!(asked, RangeAsked::Lock { bytes, mode: to, .. }
                if bytes.resource == resource && bytes.cells.has(cell) && to == Sharing::Exclusive)
        });
        self.owner_asks(owner, |asked| match asked {
            RangeAsked::Lock {
                bytes, mode: to, ..
            } => (bytes.resource, to) == (resource, mode) && bytes.cells.has(cell),
            RangeAsked::Reclaim(bytes, to) => {
                let is_it = (bytes.resource, to) == (resource, mode) && bytes.cells.has(cell);
                let was_such = was.is_some_and(|(was, _)| was == mode || was == Sharing::Exclusive);
                is_it && (was_such || is_locked)
            }
            _ => false,
        })
    }

    fn may_lose(&self, owner: RangeOwner, resource: usize, cell: usize, pending: bool) -> bool {
        let unlocks = |asked| {
            matches!(asked, RangeAsked::Unlock(bytes)
                if bytes.resource == resource && bytes.cells.has(cell))
        };
        let breaks =
            |asked| matches!(asked, RangeAsked::Break { resource: of, .. } if of == resource);
        if self.owner_asks(owner, unlocks) || self.is_asked(breaks) {
            return true;
        }
        if pending && self.grace_may_end(self.known.kept_until(owner.who)) {
            return true;
        }
        match owner.who {
            Who::Conn(conn) => self.causes.left.contains(&conn) || self.after.who(conn).is_none(),
            Who::Client(id) => {
                let is_done =
                    |asked| matches!(asked, RangeAsked::ReclaimDone { id: of } if of == id);
                let is_gone = !self.after.clients.contains_key(&id); // judged by itself
                // What a client has is undone a part at a time.
                let is_over = self.may_be_forgotten(id);
                is_gone || is_over || self.is_detached(id) || pending && self.is_asked(is_done)
            }
        }
    }

    // ---- who waits ----

    fn check_queues(&self) -> Result<(), String> {
        let resources = self.before.resources.iter().zip(&self.after.resources);
        for (resource, (before, after)) in resources.enumerate() {
            for it in &after.waiting {
                let wants = |asked| {
                    matches!(asked, RangeAsked::Lock { bytes, mode, wait }
                        if bytes.resource == resource && bytes.cells == it.cells && mode == it.mode
                            && wait > Millis::ZERO)
                };
                if !self.owner_asks(it.owner, wants) {
                    return Err(format!("{it:?} waits, and did not ask"));
                }
            }
            // Whoever stays keeps its place.
            let stayed = |it: &&Seen| after.waiting.contains(it) && self.asks_once(it.owner);
            let stayed: Vec<&Seen> = before.waiting.iter().filter(stayed).collect();
            let now: Vec<&Seen> = after
                .waiting
                .iter()
                .filter(|it| stayed.contains(it))
                .collect();
            if stayed != now {
                return Err(format!(
                    "the queue of {resource} was {stayed:?} and is {now:?}"
                ));
            }
            self.check_order(resource)?;
        }
        Ok(())
    }

    /// Whether the owner has one request for a lock under way at most.
    fn asks_once(&self, owner: RangeOwner) -> bool {
        let doings = self.known.doings_of(owner, self.before.turn);
        let locks = doings.filter(|it| matches!(it.asked, RangeAsked::Lock { .. }));
        locks.count() <= 1
    }

    /// Nobody who waits, or would have, has overtaken somebody who still does.
    fn check_order(&self, resource: usize) -> Result<(), String> {
        let (before, after) = (
            &self.before.resources[resource],
            &self.after.resources[resource],
        );
        for doing in self.known.doings_since(self.before.turn) {
            let RangeAsked::Lock { bytes, mode, wait } = doing.asked else {
                continue;
            };
            let askers = self.known.askers(doing.conn, self.before.turn);
            let (Some(&who), 1) = (askers.first(), askers.len()) else {
                continue;
            };
            let owner = RangeOwner {
                who,
                name: bytes.name,
            };
            let wanted = Seen {
                owner,
                cells: bytes.cells,
                mode,
                pending: false,
            };
            let has = |at: &super::seen_ranges::SeenResource| {
                at.has_all(owner, bytes.cells, |it, pending| it == mode && !pending)
            };
            let is_granted = bytes.resource == resource && !has(before) && has(after);
            if !is_granted || wait == Millis::ZERO || !self.asks_once(owner) {
                continue;
            }
            let had_some = bytes
                .cells
                .each()
                .any(|cell| before.cells_of(owner)[cell].is_some());
            if had_some {
                continue; // who has some of the bytes may have them otherwise
            }
            let earlier = before.waiting.iter().take_while(|it| it.owner != owner);
            for it in earlier.filter(|it| it.excludes(&wanted) && after.waiting.contains(it)) {
                if self.is_absent(it.owner)
                    || !self.asks_once(it.owner)
                    || self.may_pass(resource, doing.conn, &wanted)
                {
                    continue;
                }
                return Err(format!("{wanted:?} has overtaken {it:?}"));
            }
        }
        Ok(())
    }

    /// Whether nobody who could be told is there for this wait.
    fn is_absent(&self, owner: RangeOwner) -> bool {
        let mut doings = self.known.doings_of(owner, self.before.turn);
        doings.any(|it| self.causes.left.contains(&it.conn))
    }

    /// Whether the order of the queue would have made it wait for itself.
    fn may_pass(&self, resource: usize, conn: u32, wanted: &Seen) -> bool {
        let mut all = self.before.clone();
        all.parked.extend(&self.after.parked);
        all.parked.insert((conn, wanted.owner));
        let queue = &mut all.resources[resource].waiting;
        if !queue.contains(wanted) {
            queue.push(*wanted);
        }
        for (at, now) in all.resources.iter_mut().zip(&self.after.resources) {
            let others = now.held.iter().filter(|it| it.owner != wanted.owner);
            at.held.extend(others);
            let new = now.waiting.iter().filter(|it| !at.waiting.contains(it));
            let new: Vec<Seen> = new.copied().collect();
            at.waiting.extend(new);
        }
        all.would_deadlock(resource, wanted, true)
    }

    /// Nobody waits for what is free, or for itself.
    fn check_waits(&self) -> Result<(), String> {
        if self.causes.is_draining {
            return Ok(());
        }
        let mut live = self.after.clone();
        for at in &mut live.resources {
            at.waiting
                .retain(|it| !self.is_absent(it.owner) && !self.may_be_over(it));
        }
        for (resource, at) in live.resources.iter().enumerate() {
            let queue = &self.after.resources[resource].waiting;
            for it in &at.waiting {
                let mut before = queue.iter().take_while(|before| *before != it);
                let is_behind = before.any(|before| before.excludes(it));
                if !is_behind && at.in_the_way(it).next().is_none() {
                    return Err(format!("{it:?} waits for what nobody has"));
                }
                if live.would_deadlock(resource, it, false) {
                    return Err(format!("{it:?} waits for itself"));
                }
            }
        }
        Ok(())
    }

    /// Whether the time of this wait may be over.
    fn may_be_over(&self, wanted: &Seen) -> bool {
        let mut doings = self.known.doings_of(wanted.owner, self.before.turn);
        doings.any(|it| match (it.asked, it.arrived) {
            (RangeAsked::Lock { wait, .. }, Some(arrived)) => {
                self.after.span.clock_read >= arrived.at.after(wait)
            }
            _ => false,
        })
    }
}
