//! What may have been the reason of an answer about byte ranges: everything that the server showed, and
//! that everybody asked, while the request was under way.

use std::collections::BTreeSet;

use super::known_ranges::{Doing, KnownRanges};
use super::seen_ranges::{RangeOwner, Seen, SeenRanges, Who};
use crate::clients::range_requests::{Bytes, RangeAsked};
use crate::json::Json;
use crate::plan::Plan;
use crate::range_plan::{Cells, OWNERS, excludes};
use latchd::base::Millis;
use latchd::engine::types::{ByteRange, GraceState, Sharing};

/// Most waiters of one resource where there is no other limit.
const WAITERS_MAX: usize = 100;

/// So late at most the end of the grace period is noticed by a server that is awake.
const LATE_MAX: Millis = Millis(20);

/// The time in which a request was under way.
pub(super) struct Window<'a> {
    pub(super) plan: &'a Plan,
    pub(super) known: &'a KnownRanges,
    /// The turn after which it arrived.
    pub(super) since: u64,
    pub(super) number: u64,
    pub(super) conn: u32,
    pub(super) has_left: bool,
    /// For whom it may have been asked.
    pub(super) askers: BTreeSet<Who>,
}

impl Window<'_> {
    pub(super) fn seen(&self) -> impl Iterator<Item = &SeenRanges> {
        self.known.since(self.since)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &Doing> {
        let number = self.number;
        self.known
            .doings_since(self.since)
            .filter(move |it| it.number != number)
    }

    fn owners(&self, bytes: Bytes) -> impl Iterator<Item = RangeOwner> {
        self.askers.iter().map(move |&who| RangeOwner {
            who,
            name: bytes.name,
        })
    }

    pub(super) fn is_client(&self) -> bool {
        self.askers.iter().any(|it| matches!(it, Who::Client(_)))
    }

    fn is_own(&self, doing: &Doing, bytes: Bytes) -> bool {
        let name = match doing.asked {
            RangeAsked::Lock { bytes, .. }
            | RangeAsked::Unlock(bytes)
            | RangeAsked::Cancel(bytes, _)
            | RangeAsked::Reclaim(bytes, _) => bytes.name,
            _ => return false,
        };
        let askers = self.known.askers(doing.conn, self.since);
        name == bytes.name && !askers.is_disjoint(&self.askers)
    }

    /// Whether something may have taken away what the owner had of these bytes.
    fn may_be_ended(&self, bytes: Bytes) -> bool {
        let mut owners = self.owners(bytes);
        self.has_left
            || owners.any(|owner| self.others().any(|it| ends(it.asked, owner, bytes)))
            || self.askers.len() > 1
            || self.askers.iter().any(|it| match it {
                Who::Client(id) => self.client_may_be(*id, false),
                Who::Conn(_) => false,
            })
    }

    /// Whether there was such a client at some moment, or none.
    pub(super) fn client_may_be(&self, id: usize, is_there: bool) -> bool {
        let attaches = |it: &Doing| {
            matches!(it.asked, RangeAsked::Attach { id: of, .. } | RangeAsked::Detach { id: of, .. }
                if of == id)
        };
        let is_so = |it: &SeenRanges| it.clients.contains_key(&id) == is_there;
        self.seen().any(is_so)
            || self.others().any(attaches)
            || self.known.may_be_new(id, self.since)
    }

    // ---- locks ----

    pub(super) fn check_granted(&self, bytes: Bytes, mode: Sharing) -> Result<(), String> {
        let is_it = |to, pending: bool| to == mode && !pending;
        let mut has = self.seen().map(|it| {
            let at = &it.resources[bytes.resource];
            self.owners(bytes)
                .any(|owner| at.has_all(owner, bytes.cells, is_it))
        });
        if !has.any(|it| it) && !self.may_be_ended(bytes) {
            return Err("granted, and not held".to_owned());
        }
        Ok(())
    }

    /// Whether somebody else may have had some of these bytes in a way that excludes it.
    fn may_be_excluded(&self, bytes: Bytes, mode: Sharing) -> bool {
        let is_in_the_way = |it: &SeenRanges| {
            let held = &it.resources[bytes.resource].held;
            self.owners(bytes).any(|owner| {
                let wanted = Seen {
                    owner,
                    cells: bytes.cells,
                    mode,
                    pending: false,
                };
                held.iter().any(|it| it.excludes(&wanted))
            })
        };
        let may_take = |it: &Doing| match it.asked {
            RangeAsked::Lock {
                bytes: of,
                mode: to,
                ..
            }
            | RangeAsked::Reclaim(of, to) => {
                of.resource == bytes.resource
                    && of.cells.overlaps(bytes.cells)
                    && excludes(mode, to)
            }
            _ => false,
        };
        self.seen().any(is_in_the_way) || self.others().any(may_take)
    }

    pub(super) fn check_timeout(
        &self,
        (bytes, mode, wait): (Bytes, Sharing, Millis),
        is_over: bool,
    ) -> Result<(), String> {
        if wait == Millis::ZERO {
            return match self.may_be_excluded(bytes, mode) {
                true => Ok(()),
                false => Err("refused, although nobody had the bytes".to_owned()),
            };
        }
        let ends_it = |it: &Doing| {
            self.is_own(it, bytes)
                && match it.asked {
                    RangeAsked::Unlock(of) => {
                        (of.resource, of.cells) == (bytes.resource, bytes.cells)
                    }
                    RangeAsked::Cancel(of, to) => (of, to) == (bytes, mode),
                    RangeAsked::Lock {
                        bytes: of,
                        mode: to,
                        wait,
                    } => (of, to) == (bytes, mode) && wait > Millis::ZERO,
                    _ => false,
                }
        };
        match is_over || self.others().any(ends_it) {
            true => Ok(()),
            false => Err("a wait ended before its time".to_owned()),
        }
    }

    pub(super) fn check_in_grace(&self, bytes: Bytes, mode: Sharing) -> Result<(), String> {
        let is_active = |it: &SeenRanges| it.grace.left > Millis::ZERO;
        let is_pending = |it: &SeenRanges| {
            let mut held = it.resources[bytes.resource].held.iter();
            held.any(|it| it.pending && it.cells.overlaps(bytes.cells) && excludes(it.mode, mode))
        };
        let strict_until = self.known.grace_ends.after(LATE_MAX);
        let is_strict = |it: &SeenRanges| self.known.is_strict && it.span.began < strict_until;
        let is_right = |it: &SeenRanges| is_active(it) && (is_strict(it) || is_pending(it));
        match self.seen().any(is_right) {
            true => Ok(()),
            false => Err("refused for those who hold nothing".to_owned()),
        }
    }

    pub(super) fn check_lock_refused(
        &self,
        (bytes, mode, wait): (Bytes, Sharing, Millis),
        word: &str,
    ) -> Result<(), String> {
        let is_lock = |it: &Doing| matches!(it.asked, RangeAsked::Lock { .. });
        expect(match word {
            "error_deadlock" => return self.check_deadlock(bytes, mode, wait),
            "error_busy" => {
                let waits =
                    |it: &SeenRanges| self.owners(bytes).any(|owner| it.wait_of(owner).is_some());
                self.seen().any(waits)
                    || self
                        .others()
                        .any(|it| is_lock(it) && self.is_own(it, bytes))
            }
            "error_limit" => return self.check_limit(bytes),
            "error_max_waiters" => {
                let most = match self.plan.rules.waiters_per_key_max {
                    0 => WAITERS_MAX,
                    most => most as usize,
                };
                let waiting = self
                    .seen()
                    .map(|it| it.resources[bytes.resource].waiting.len());
                let came = self.others().filter(|it| is_lock(it)).count();
                wait > Millis::ZERO && waiting.max().unwrap_or(0) + came >= most
            }
            // Its client was detached while it waited.
            "error" => {
                let detaches = |it: &Doing| {
                    matches!(it.asked, RangeAsked::Detach { id, .. }
                        if self.askers.contains(&Who::Client(id)))
                };
                wait > Millis::ZERO && self.others().any(detaches)
            }
            _ => false,
        })
    }

    /// Everything that may have been held and waited for, taken together, has a circle with the asker.
    pub(super) fn check_deadlock(
        &self,
        bytes: Bytes,
        mode: Sharing,
        wait: Millis,
    ) -> Result<(), String> {
        let mut all = SeenRanges::default();
        for seen in self.seen() {
            all.parked.extend(&seen.parked);
            all.resources
                .resize_with(seen.resources.len(), Default::default);
            for (at, now) in all.resources.iter_mut().zip(&seen.resources) {
                at.held.extend(&now.held);
                at.waiting.extend(&now.waiting);
            }
        }
        for it in self.others() {
            let (RangeAsked::Lock {
                bytes: of,
                mode: to,
                ..
            }
            | RangeAsked::Reclaim(of, to)) = it.asked
            else {
                continue;
            };
            for who in self.known.askers(it.conn, self.since) {
                let owner = RangeOwner { who, name: of.name };
                let seen = Seen {
                    owner,
                    cells: of.cells,
                    mode: to,
                    pending: false,
                };
                all.resources[of.resource].held.push(seen);
                all.resources[of.resource].waiting.push(seen);
                all.parked.insert((it.conn, owner));
            }
        }
        let askers = self.owners(bytes).map(|owner| (self.conn, owner));
        all.parked.extend(askers);
        let closes = self.owners(bytes).any(|owner| {
            let wanted = Seen {
                owner,
                cells: bytes.cells,
                mode,
                pending: false,
            };
            all.would_deadlock(bytes.resource, &wanted, false)
        });
        match closes && wait > Millis::ZERO {
            true => Ok(()),
            false => Err("a deadlock that is none".to_owned()),
        }
    }

    pub(super) fn check_limit(&self, bytes: Bytes) -> Result<(), String> {
        let rules = &self.plan.rules;
        // Each change makes two more at most.
        let came = 2 * (1 + self.others().filter(|it| !it.asked.only_looks()).count());
        let reaches = |count: usize, most: u32| most != 0 && count + came > most as usize;
        let is_full = |it: &SeenRanges| {
            let all = it.resources.iter().flat_map(|it| &it.held);
            let of = |who: Who| all.clone().filter(move |it| it.owner.who == who).count();
            reaches(
                it.resources[bytes.resource].held.len(),
                rules.ranges_per_resource_max,
            ) || reaches(all.clone().count(), rules.ranges_max)
                || self
                    .askers
                    .iter()
                    .any(|who| reaches(of(*who), rules.ranges_per_client_max))
        };
        match self.seen().any(is_full) {
            true => Ok(()),
            false => Err("there was room".to_owned()),
        }
    }

    pub(super) fn check_unlocked(&self, bytes: Bytes) -> Result<(), String> {
        let is_free = |it: &SeenRanges| {
            let at = &it.resources[bytes.resource];
            self.owners(bytes).any(|owner| {
                let held = at.cells_of(owner);
                bytes.cells.each().all(|cell| held[cell].is_none())
            })
        };
        let locks = |it: &Doing| {
            matches!(it.asked, RangeAsked::Lock { .. } | RangeAsked::Reclaim(..))
                && self.is_own(it, bytes)
        };
        match self.seen().skip(1).any(is_free) || self.others().any(locks) {
            true => Ok(()),
            false => Err("unlocked, and still held".to_owned()),
        }
    }

    /// An unlock that there is no room for is one that makes two pieces of one.
    pub(super) fn check_unlock_splits(&self, bytes: Bytes) -> Result<(), String> {
        let splits = |it: &SeenRanges| {
            let mut held = it.resources[bytes.resource].held.iter();
            held.any(|it| {
                it.cells.from < bytes.cells.from
                    && bytes.cells.to < it.cells.to
                    && self.owners(bytes).any(|owner| owner == it.owner)
            })
        };
        let locks = |it: &Doing| {
            matches!(it.asked, RangeAsked::Lock { .. } | RangeAsked::Reclaim(..))
                && self.is_own(it, bytes)
        };
        match self.seen().any(splits) || self.others().any(locks) {
            true => Ok(()),
            false => Err("there is no room for an unlock that takes none".to_owned()),
        }
    }

    // ---- questions ----

    pub(super) fn check_free(&self, bytes: Bytes, mode: Sharing) -> Result<(), String> {
        let changes = |it: &Doing| {
            it.asked.resource() == Some(bytes.resource)
                || matches!(
                    it.asked,
                    RangeAsked::Detach { .. } | RangeAsked::ReclaimDone { .. }
                )
                || matches!(it.asked, RangeAsked::Grace { ends: true })
        };
        if self.askers.len() > 1 || self.others().any(changes) {
            return Ok(());
        }
        let is_free = |it: &SeenRanges| {
            let held = &it.resources[bytes.resource].held;
            self.owners(bytes).all(|owner| {
                let wanted = Seen {
                    owner,
                    cells: bytes.cells,
                    mode,
                    pending: false,
                };
                !held.iter().any(|it| it.excludes(&wanted))
            })
        };
        match self.seen().any(is_free) {
            true => Ok(()),
            false => Err("free, and somebody has it".to_owned()),
        }
    }

    pub(super) fn check_held(
        &self,
        bytes: Bytes,
        mode: Sharing,
        (held, range, client, name): (Sharing, ByteRange, &[u8], &[u8]),
    ) -> Result<(), String> {
        let cells = Cells::of(range).ok_or("bytes that nobody locked")?;
        if !cells.overlaps(bytes.cells) || !excludes(held, mode) {
            return Err("what is held is not in the way".to_owned());
        }
        let is_it = |it: &Seen| {
            let is_client = match it.owner.who {
                Who::Client(id) => self.plan.ranges.ids[id].as_bytes() == client,
                Who::Conn(_) => client.starts_with(b"#"),
            };
            let is_name = OWNERS[it.owner.name].as_bytes() == name;
            is_client && is_name && (it.cells, it.mode) == (cells, held)
        };
        let is_seen = |it: &SeenRanges| it.resources[bytes.resource].held.iter().any(is_it);
        let may_be = |it: &Doing| it.asked.resource() == Some(bytes.resource);
        match self.seen().any(is_seen) || self.others().any(may_be) {
            true => Ok(()),
            false => Err("nobody holds that".to_owned()),
        }
    }

    pub(super) fn check_list(
        &self,
        resource: usize,
        json: &[u8],
        is_old: bool,
    ) -> Result<(), String> {
        let text = str::from_utf8(json).map_err(|_| "not text".to_owned())?;
        let json = Json::read(text).ok_or("not JSON")?;
        let (locks, waiters) = (json.list("locks")?, json.list("waiters")?);
        let counts = (json.number("lock_count")?, json.number("waiter_count")?);
        expect(counts == (locks.len() as u64, waiters.len() as u64))?;
        let changes = |it: &Doing| !it.asked.only_looks();
        let mut seen = self.seen().map(|it| &it.resources[resource]);
        let Some(first) = seen.next().filter(|_| !is_old) else {
            return Ok(());
        };
        if self.others().any(changes) || seen.any(|it| it != first) {
            return Ok(());
        }
        expect((first.held.len(), first.waiting.len()) == (locks.len(), waiters.len()))
    }

    // ---- after a restart ----

    pub(super) fn check_reclaimed(&self, bytes: Bytes, mode: Sharing) -> Result<(), String> {
        let covers = |was: Sharing| was == mode || was == Sharing::Exclusive;
        let locks = |cell: usize| {
            let mut others = self.others();
            others.any(|it| {
                matches!(it.asked, RangeAsked::Lock { bytes: of, mode: to, .. }
                    if of.resource == bytes.resource && of.cells.has(cell) && covers(to))
                    && self.is_own(it, bytes)
            })
        };
        // What it had when it asked, or has locked meanwhile: to have something back adds nothing to that.
        let first = self.seen().next();
        let may_have = first.is_some_and(|it| {
            let at = &it.resources[bytes.resource];
            self.owners(bytes).any(|owner| {
                let held = at.cells_of(owner);
                let had = |cell: usize| held[cell].is_some_and(|(was, _)| covers(was));
                bytes.cells.each().all(|cell| had(cell) || locks(cell))
            })
        });
        match may_have && self.seen().any(|it| it.grace.left > Millis::ZERO) {
            true => Ok(()),
            false => Err("had back what it did not have".to_owned()),
        }
    }

    pub(super) fn check_not_reclaimed(&self, bytes: Bytes, mode: Sharing) -> Result<(), String> {
        let is_such = |was: Sharing, _| was == mode || was == Sharing::Exclusive;
        let has = |it: &SeenRanges| {
            let at = &it.resources[bytes.resource];
            self.owners(bytes)
                .all(|owner| at.has_all(owner, bytes.cells, is_such))
        };
        if self.seen().all(has) && !self.may_be_ended(bytes) {
            return Err("it could have had that back".to_owned());
        }
        expect(self.seen().any(|it| it.grace.left > Millis::ZERO))
    }

    pub(super) fn check_nothing_pending(&self, id: usize) -> Result<(), String> {
        let is_free = |it: &SeenRanges| {
            let mut all = it.resources.iter().flat_map(|it| &it.held);
            !all.any(|it| it.pending && it.owner.who == Who::Client(id))
        };
        match self.seen().skip(1).any(is_free) {
            true => Ok(()),
            false => Err("it is done, and has something to have back".to_owned()),
        }
    }

    pub(super) fn check_grace_told(&self, state: GraceState) -> Result<(), String> {
        if state == GraceState::default() {
            return expect(self.seen().any(|it| it.grace.left == Millis::ZERO));
        }
        let is_active = self.seen().any(|it| it.grace.left > Millis::ZERO);
        expect(
            is_active
                && state.expected == self.known.expected
                && state.done <= state.expected
                && state.left <= self.known.grace_max.max(Millis(1)),
        )
    }

    // ---- clients ----

    pub(super) fn check_attached(
        &self,
        id: usize,
        secret: usize,
        is_new: bool,
    ) -> Result<(), String> {
        let has_it = |it: &SeenRanges| it.conns.get(&self.conn) == Some(&Some(id));
        let detaches =
            |it: &Doing| matches!(it.asked, RangeAsked::Detach { id: of, .. } if of == id);
        if !self.seen().any(has_it) && !self.others().any(detaches) && !self.has_left {
            return Err("attached, and it does not show".to_owned());
        }
        if !self.client_may_be(id, !is_new) {
            return Err("new or not, it is told the wrong way round".to_owned());
        }
        let secrets = self.known.secrets.get(&id);
        match secrets.is_some_and(|it| it.contains(&secret)) {
            true => Ok(()),
            false => Err("attached with a secret that nobody chose".to_owned()),
        }
    }

    pub(super) fn check_wrong_secret(&self, id: usize, secret: usize) -> Result<(), String> {
        let secrets = self.known.secrets.get(&id);
        let is_other = secrets.is_some_and(|it| it.iter().any(|it| *it != secret));
        match is_other && self.client_may_be(id, true) {
            true => Ok(()),
            false => Err("the secret is right".to_owned()),
        }
    }

    pub(super) fn check_detached(&self, id: usize) -> Result<(), String> {
        let attaches =
            |it: &Doing| matches!(it.asked, RangeAsked::Attach { id: of, .. } if of == id);
        let is_gone = |it: &SeenRanges| !it.clients.contains_key(&id);
        match self.seen().skip(1).any(is_gone) || self.others().any(attaches) {
            true => Ok(()),
            false => Err("detached, and still there".to_owned()),
        }
    }

    pub(super) fn check_clients_full(&self, id: usize) -> Result<(), String> {
        let most = self.plan.rules.clients_per_adapter_max as usize;
        let adapter = |id: usize| {
            let id = self.plan.ranges.ids[id];
            id.split_once('/').map_or("", |(adapter, _)| adapter)
        };
        let same = |it: &SeenRanges| {
            let ids = it.clients.keys();
            ids.filter(|it| adapter(**it) == adapter(id)).count()
        };
        let came = self
            .others()
            .filter(|it| matches!(it.asked, RangeAsked::Attach { .. }));
        let most_seen = self.seen().map(same).max().unwrap_or(0);
        match most != 0 && most_seen + came.count() >= most {
            true => Ok(()),
            false => Err("there was room for another client".to_owned()),
        }
    }
}

/// Whether a request may end what this owner has of these bytes.
pub(super) fn ends(asked: RangeAsked, owner: RangeOwner, bytes: Bytes) -> bool {
    match asked {
        RangeAsked::Lock { bytes: of, .. }
        | RangeAsked::Unlock(of)
        | RangeAsked::Reclaim(of, _) => {
            (of.resource, of.name) == (bytes.resource, owner.name) && of.cells.overlaps(bytes.cells)
        }
        RangeAsked::Break { resource, .. } => resource == bytes.resource,
        RangeAsked::Detach { id, .. } => owner.who == Who::Client(id),
        _ => false,
    }
}

pub(super) fn expect(is_right: bool) -> Result<(), String> {
    match is_right {
        true => Ok(()),
        false => Err("an answer that this request cannot have".to_owned()),
    }
}
