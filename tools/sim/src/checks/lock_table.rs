//! Looks at the lock table after every turn and compares it with the turn before.
//!
//! `grants` knows only what clients were told; this sees everybody who holds and waits, also those
//! who do not know it yet. Nobody holds beside somebody they exclude, nobody disappears without a
//! reason, nobody is overtaken, nobody waits for what is free, no lease ends early, and how late each ends is noted. Reads
//! `engine::view` and never touches anything.

use std::collections::{BTreeMap, BTreeSet};

use super::grants::{KnownGrants, Outlives};
use crate::clients::http_requests::owner_of;
use crate::pipe::Pipe;
use crate::store::SimStore;
use crate::turn::TurnSpan;
use latchd::base::Nanos;
use latchd::engine::view::KeyView;
use latchd::engine::{Engine, Kind, Tally};
use latchd::server::Server;
use latchd::tls::MaybeTls;

/// One key after a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SeenKey {
    /// The array of `stats` that it belongs to; empty if the key is not known.
    kind: &'static str,
    /// Fence → holder.
    holders: BTreeMap<u64, SeenHolder>,
    /// In the order of the queue: connection, since when it waits, how it wants to hold.
    waiters: Vec<SeenWaiter>,
}

/// Somebody in a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SeenWaiter {
    connection: u32,
    /// The owner that it waits for, if that has a name.
    owner: Option<u32>,
    since: Nanos,
    hold: &'static str,
}

impl SeenWaiter {
    /// Whether this is the same place in the queue: that of an owner with a name may pass from one
    /// connection to another.
    fn is(&self, other: &Self) -> bool {
        let is_same = self.owner.is_some() || self.connection == other.connection;
        (self.owner, self.since, self.hold) == (other.owner, other.since, other.hold) && is_same
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct SeenHolder {
    connection: u32,
    /// The owner, if it has a name.
    owner: Option<u32>,
    since: Nanos,
    /// Never, if the lease has not begun.
    deadline: Nanos,
}

fn party(connection: u32, owner: Option<u32>) -> u64 {
    match owner {
        Some(owner) => 1 << 32 | u64::from(owner),
        None => connection.into(),
    }
}

impl SeenKey {
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn fences(&self) -> impl Iterator<Item = u64> {
        self.holders.keys().copied()
    }

    /// The connection that this was granted to, and when its lease ends.
    pub(crate) fn holder(&self, fence: u64) -> Option<(u32, Nanos)> {
        let it = self.holders.get(&fence)?;
        Some((it.connection, it.deadline))
    }

    /// Who holds it: connections by their serial numbers, and owners with a name by other numbers.
    pub(crate) fn holder_parties(&self) -> impl Iterator<Item = u64> {
        let holders = self.holders.values();
        holders.map(|it| party(it.connection, it.owner))
    }

    /// Who waits for it.
    pub(crate) fn waiter_parties(&self) -> impl Iterator<Item = u64> {
        let waiters = self.waiters.iter();
        waiters.map(|it| party(it.connection, it.owner))
    }

    /// The connections that wait, in the order of the queue.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiters.iter().map(|it| it.connection)
    }

    /// Those of them that still wait in a later look.
    pub(crate) fn waiters_that_stay_in(&self, later: &Self) -> impl Iterator<Item = u32> {
        let stay = self.waiters.iter().filter(|it| later.waiters.contains(it));
        stay.map(|it| it.connection)
    }
}

/// Why a grant may end that was neither released nor ran out.
pub(crate) struct EndReasons<'w> {
    /// The serial number that the server gave a connection → its number in the simulation.
    pub(crate) by_serial: &'w BTreeMap<u32, u32>,
    /// Whether the connection of this number has ended or has a reason to.
    pub(crate) has_left: &'w dyn Fn(u32) -> bool,
    /// The connections and keys for which a client has sent `w`, which starts a lease again.
    pub(crate) waits: &'w BTreeSet<(u32, usize)>,
    /// Whether a lease of the connection of this number may go on when it is over: the disk may keep
    /// its requests waiting, or it was cut off because the server stops.
    pub(crate) outlasts: &'w dyn Fn(u32) -> bool,
    pub(crate) auto_release: bool,
    /// Whether there are keys that nobody looks at.
    pub(crate) has_crowd: bool,
    /// The server was paused until this; lateness is counted from here.
    pub(crate) awake_since: Nanos,
}

/// The lock table as it was seen after the last turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenLocks {
    keys: Vec<SeenKey>,
    /// For each key, whether somebody has held it since before the last turn.
    pub(crate) steady: Vec<bool>,
    fence_origin: u64,
    fence_max: u64,
    /// How many were held when the life began.
    restored: u64,
    tally: Tally,
    /// How late a lease ended at most; and at most while the server was not paused.
    pub(crate) late_ns_max: u64,
    pub(crate) late_awake_ns_max: u64,
}

impl SeenLocks {
    pub(crate) fn new(keys: usize, fence_origin: u64) -> Self {
        Self {
            keys: vec![SeenKey::default(); keys],
            steady: vec![false; keys],
            fence_origin,
            fence_max: fence_origin,
            restored: 0,
            tally: Tally::default(),
            late_ns_max: 0,
            late_awake_ns_max: 0,
        }
    }

    /// What was restored is there before the first turn.
    pub(crate) fn begin_with<'n>(
        &mut self,
        now: Nanos,
        engine: &Engine,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), String> {
        self.restored = engine.counts().holders as u64;
        for (key, name) in self.keys.iter_mut().zip(names) {
            *key = look(now, engine, name)?;
        }
        Ok(())
    }

    /// How many were held when the life began.
    pub(crate) fn restored(&self) -> u64 {
        self.restored
    }

    pub(crate) fn after_turn(
        &mut self,
        span: TurnSpan,
        server: &Server<MaybeTls<Pipe>, SimStore>,
        names: &[&[u8]],
        known_grants: &KnownGrants,
        reasons: &EndReasons<'_>,
    ) -> Result<(), String> {
        let (mut held, mut fence_max) = (0, self.fence_max);
        for (key, name) in names.iter().enumerate() {
            let seen = look(span.ended, server.engine(), name)?;
            held += seen.holders.len() as u64;
            fence_max = fence_max.max(seen.holders.keys().last().copied().unwrap_or(0));
            let before = std::mem::take(&mut self.keys[key]);
            self.check_ends(span, key, &before, &seen, known_grants, reasons)?;
            self.check_queue(span.began, key, &before, &seen)?;
            let mut held_on = before.holders.keys();
            self.steady[key] = held_on.any(|fence| seen.holders.contains_key(fence));
            self.keys[key] = seen;
        }
        let Tally {
            grants,
            releases,
            expiries,
            disconnects,
            breaks,
        } = server.engine().tally();
        let held_in_all = server.engine().counts().holders as u64;
        let held_elsewhere = held_in_all
            .checked_sub(held)
            .filter(|&it| it == 0 || reasons.has_crowd);
        let had = grants + self.restored;
        if had - releases - expiries - disconnects - breaks != held_in_all
            || held_elsewhere.is_none()
        {
            return Err(format!(
                "{} restored, {grants} grants, {releases} releases, {expiries} expiries, {disconnects} \
                 disconnects, {breaks} breaks, but {held} are held here and {held_in_all} in all",
                self.restored
            ));
        }
        // One fence per grant: the server skips none and gives none twice.
        let given = self.fence_origin + grants;
        if fence_max > given || known_grants.fence_max > given {
            return Err(format!("{grants} grants used more fences"));
        }
        self.fence_max = given;
        self.tally = server.engine().tally();
        Ok(())
    }

    pub(crate) fn key(&self, key: usize) -> &SeenKey {
        &self.keys[key]
    }

    /// The highest fence that was given.
    pub(crate) fn fence_max(&self) -> u64 {
        self.fence_max
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// How many are held.
    pub(crate) fn held(&self) -> u64 {
        self.keys.iter().map(|it| it.holders.len() as u64).sum()
    }

    /// How many of them have an owner with a name, and how many owners that is.
    pub(crate) fn named(&self) -> (usize, usize) {
        let holders = self.keys.iter().flat_map(|it| it.holders.values());
        let named: Vec<u32> = holders.filter_map(|it| it.owner).collect();
        let owners: BTreeSet<&u32> = named.iter().collect();
        (named.len(), owners.len())
    }

    /// Every fence of this life is above this.
    pub(crate) fn fence_origin(&self) -> u64 {
        self.fence_origin
    }

    /// Whether a request at `now` could be granted, by what was seen after the last turn.
    pub(crate) fn is_free(&self, key: usize, now: Nanos) -> bool {
        let seen = &self.keys[key];
        seen.waiters.is_empty() && seen.holders.values().all(|it| it.deadline <= now)
    }

    /// Whether this grant was there after the last turn.
    pub(crate) fn is_held(&self, key: usize, fence: u64) -> bool {
        self.keys[key].holders.contains_key(&fence)
    }

    /// A grant whose lease has not begun.
    pub(crate) fn not_begun(&self) -> Option<u64> {
        let mut holders = self.keys.iter().flat_map(|seen| &seen.holders);
        holders.find_map(|(&fence, it)| (it.deadline == Nanos::NEVER).then_some(fence))
    }

    /// Whether the connection is in the queue of this key.
    pub(crate) fn is_in_queue(&self, key: usize, connection: u32) -> bool {
        self.keys[key]
            .waiters
            .iter()
            .any(|it| it.connection == connection)
    }

    /// The connections that hold something, and the fence of each grant.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (u32, u64)> {
        let holders = self.keys.iter().flat_map(|seen| &seen.holders);
        holders.map(|(fence, it)| (it.connection, *fence))
    }

    /// The connections that wait.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = u32> {
        let waiters = self.keys.iter().flat_map(|seen| &seen.waiters);
        waiters.map(|it| it.connection)
    }

    /// New grants have new fences. Old ones end only for a reason, and so do their leases move.
    fn check_ends(
        &mut self,
        span: TurnSpan,
        key: usize,
        before: &SeenKey,
        seen: &SeenKey,
        known_grants: &KnownGrants,
        reasons: &EndReasons<'_>,
    ) -> Result<(), String> {
        for (&fence, it) in &seen.holders {
            let Some(old) = before.holders.get(&fence) else {
                if fence <= self.fence_max || it.since < span.began {
                    return Err(format!("k{key} got fence {fence}, which is not new"));
                }
                continue;
            };
            let owner = reasons
                .by_serial
                .get(&old.connection)
                .copied()
                .unwrap_or_default();
            let may_move = known_grants.get(fence).is_some_and(|it| it.renewal_arrived)
                || reasons.waits.contains(&(owner, key))
                || it.deadline > old.deadline && (reasons.outlasts)(owner)
                || old.deadline == Nanos::NEVER && it.deadline > span.began;
            // Whoever has a name renews over HTTP, which never makes a lease shorter.
            let is_shorter = it.deadline < old.deadline && old.deadline != Nanos::NEVER;
            let may_be_shorter = known_grants.get(fence).is_some_and(|it| it.may_be_shorter);
            if it.owner.is_some() && is_shorter && !may_be_shorter {
                return Err(format!("the lease of {fence} has become shorter"));
            }
            if it.deadline != old.deadline && !may_move {
                return Err(format!("the lease of {fence} moved by itself"));
            }
        }
        for (&fence, old) in &before.holders {
            if seen.holders.contains_key(&fence) {
                continue;
            }
            let owner = reasons
                .by_serial
                .get(&old.connection)
                .copied()
                .unwrap_or_default();
            let released = known_grants
                .get(fence)
                .is_some_and(|it| it.release_arrived || it.break_arrived);
            // What was restored is of nobody, until somebody shows its token.
            let left = match owner {
                0 => known_grants.claims(fence).any(reasons.has_left),
                owner => (reasons.has_left)(owner),
            };
            let outlives = known_grants.outlives(fence) == Some(Outlives::Yes);
            let left = left && reasons.auto_release && !outlives;
            if old.deadline <= span.clock_read {
                self.note_lateness(span.ended, old.deadline, reasons.awake_since);
            } else if !released && !left {
                return Err(format!(
                    "{fence} on k{key} ended {} us before its lease",
                    old.deadline.since(span.clock_read) / 1_000
                ));
            }
        }
        for held in seen.holders.values() {
            self.note_lateness(span.ended, held.deadline, reasons.awake_since);
        }
        Ok(())
    }

    /// A lease ended at `ended`, or has not ended yet. Clients could not know before then.
    fn note_lateness(&mut self, ended: Nanos, deadline: Nanos, awake_since: Nanos) {
        let awake_ns = ended.since(deadline.max(awake_since));
        self.late_ns_max = self.late_ns_max.max(ended.since(deadline));
        self.late_awake_ns_max = self.late_awake_ns_max.max(awake_ns);
    }

    /// The queue keeps its order, and nobody in it is overtaken.
    fn check_queue(
        &self,
        began: Nanos,
        key: usize,
        before: &SeenKey,
        seen: &SeenKey,
    ) -> Result<(), String> {
        let mut old = before.waiters.iter();
        let mut joined = false;
        for waiter in &seen.waiters {
            let is_new = !before.waiters.iter().any(|it| it.is(waiter));
            joined |= waiter.since >= began && is_new;
            if !joined && !old.any(|it| it.is(waiter)) {
                return Err(format!("the queue of k{key} changed its order"));
            }
            if joined && waiter.since < began {
                return Err(format!(
                    "somebody came into the queue of k{key} before others"
                ));
            }
        }
        // A waiter that was in the queue before this turn, and still is, was not overtaken.
        let stayed = before
            .waiters
            .iter()
            .position(|it| seen.waiters.iter().any(|that| that.is(it)));
        let new = |fence: &&u64| **fence > self.fence_max;
        for fence in seen.holders.keys().filter(new) {
            let holder = seen.holders[fence];
            let at = before.waiters.iter().position(|it| match holder.owner {
                Some(_) => it.owner == holder.owner,
                None => it.connection == holder.connection,
            });
            if stayed.is_some_and(|stayed| at.is_none_or(|at| at > stayed)) {
                return Err(format!(
                    "{fence} on k{key} was granted past somebody who waits on"
                ));
            }
        }
        Ok(())
    }
}

/// Looks at one key, and checks what can be checked without the turn before.
fn look(now: Nanos, engine: &Engine, name: &[u8]) -> Result<SeenKey, String> {
    let Some(it) = engine.view(now).key(name) else {
        return Ok(SeenKey::default());
    };
    let mut seen = SeenKey::default();
    // As seen from the beginning of time, what is left of a lease is its deadline.
    let deadlines = engine.view(Nanos(0)).key(name);
    let deadlines = deadlines.into_iter().flat_map(KeyView::holders);
    let deadlines = deadlines.map(|it| match it.has_begun {
        true => Nanos(it.lease_left_ns),
        false => Nanos::NEVER,
    });
    for (holder, deadline) in it.holders().zip(deadlines) {
        let held = SeenHolder {
            connection: holder.conn.map_or(0, |conn| conn.serial),
            owner: holder.name.filter(|_| holder.is_named).and_then(owner_of),
            since: Nanos(now.0 - holder.age_ns),
            deadline,
        };
        if seen.holders.insert(holder.fence.0, held).is_some() {
            return Err(format!("fence {} holds twice", holder.fence));
        }
    }
    let waiters = it.waiters();
    seen.waiters = waiters
        .map(|it| SeenWaiter {
            connection: it.conn.serial,
            owner: it.name.and_then(owner_of),
            since: Nanos(now.0 - it.age_ns),
            hold: it.hold,
        })
        .collect();
    check_key(name, it)?;
    seen.kind = match it.kind() {
        Kind::Slots { limit: 1 } => "locks",
        Kind::Slots { .. } => "semaphores",
        Kind::ReadWrite => "rw_locks",
    };
    Ok(seen)
}

/// Nobody holds beside somebody they exclude, and nobody waits for what is free.
fn check_key(name: &[u8], it: KeyView<'_>) -> Result<(), String> {
    let name = name.escape_ascii();
    let count = it.holders().count();
    let writers = it.holders().filter(|it| it.hold == "write").count();
    let first = it.waiters().next().map(|it| it.hold);
    let (fits, is_free) = match it.kind() {
        Kind::Slots { limit } => (count <= limit as usize, count < limit as usize),
        Kind::ReadWrite if first == Some("read") => (writers == 0 || count == 1, writers == 0),
        Kind::ReadWrite => (writers == 0 || count == 1, count == 0),
    };
    if !fits {
        return Err(format!(
            "{name} is held by {count} at once, {writers} writing"
        ));
    }
    if is_free && first.is_some() {
        return Err(format!("{name} is free, yet somebody waits for it"));
    }
    Ok(())
}
