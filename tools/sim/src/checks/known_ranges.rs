//! What is known about byte ranges: what the server showed lately, what clients ask for, and what they
//! were told and may rely on.
//!
//! An answer that is read now may have been given some turns ago, because the disk or the client was slow.
//! So what the server showed is kept for as long as a request is under way, and an answer is judged by
//! everything that was so in between (`range_answers`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::seen_ranges::{RangeOwner, SeenRanges, SeenResource, Who};
use crate::clients::connection::Moment;
use crate::clients::range_requests::{Bytes, RangeAsked};
use crate::kept::Kept;
use crate::plan::Plan;
use crate::range_plan::{CELLS, Cells, OWNERS};
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Sharing;

/// A request under way, or one that was until lately.
#[derive(Clone, Debug)]
pub(crate) struct Doing {
    pub(crate) number: u64,
    pub(crate) conn: u32,
    pub(crate) asked: RangeAsked,
    pub(crate) arrived: Option<Moment>,
    /// The turn by which it had certainly been done, if it was.
    pub(crate) over: Option<u64>,
    /// Somebody was told that it is cancelled.
    pub(crate) is_cancelled: bool,
    /// It was told that it is granted.
    pub(crate) is_granted: bool,
    /// The answer that it must have, if there is only one.
    pub(crate) expected: Option<String>,
}

/// How long a client has been away: since when at least, and at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Away {
    pub(crate) at_latest: Nanos,
    pub(crate) at_earliest: Nanos,
    /// It is kept until this, whatever its time: certainly, and at most.
    pub(crate) kept_until: Nanos,
    pub(crate) kept_until_max: Nanos,
}

/// What the connections of one client, or of a connection that is its own, were told.
type Told = BTreeMap<(RangeOwner, usize), [Option<Sharing>; CELLS]>;

/// Everything that is known in one life of the server.
#[derive(Debug, Default)]
pub(crate) struct KnownRanges {
    seen: VecDeque<SeenRanges>,
    doings: BTreeMap<u64, Doing>,
    told: Told,
    /// What its owner was told to be unlocked, and did not lock since.
    unlocked: BTreeMap<(RangeOwner, usize), [bool; CELLS]>,
    /// Clients that were told that they are kept, and did not ask for something else since.
    kept: BTreeSet<usize>,
    pub(crate) away: BTreeMap<usize, Away>,
    /// The secrets that each client may have been made with.
    pub(crate) secrets: BTreeMap<usize, BTreeSet<usize>>,
    /// What was held when the last life ended, for those who want it back.
    before: Vec<(usize, Bytes, Sharing)>,
    /// When the grace period is over.
    pub(crate) grace_ends: Nanos,
    /// Until when range locks are kept for each client that had some: for its time to live, if that is
    /// longer.
    kept_until: BTreeMap<usize, Nanos>,
    /// How long the longest of these times was when the life began.
    pub(crate) grace_max: Millis,
    pub(crate) is_strict: bool,
    /// How many clients had something to have back.
    pub(crate) expected: u32,
    /// What they had, by resource.
    pending: Vec<SeenResource>,
    /// An operator has ended it, or tried to.
    is_ended: bool,
    /// Resources of which somebody has broken locks, or tried to.
    broken: BTreeSet<usize>,
    /// The last turn in which a client may have been forgotten and have come again.
    anew: BTreeMap<usize, u64>,
}

impl KnownRanges {
    /// A life begins with this table.
    pub(crate) fn begin(plan: &Plan, seen: SeenRanges, now: Nanos, may_have_lost: bool) -> Self {
        let pending = seen.resources.iter().flat_map(|it| &it.held);
        let of: BTreeSet<Who> = pending.map(|it| it.owner.who).collect();
        let grace_period = plan.rules.grace_period;
        let with_pending = seen
            .clients
            .iter()
            .filter(|(id, _)| of.contains(&Who::Client(**id)));
        let times: BTreeMap<usize, Millis> = with_pending
            .map(|(&id, it)| (id, it.ttl.max(grace_period)))
            .collect();
        let kept_until: BTreeMap<usize, Nanos> = times
            .iter()
            .map(|(&id, &time)| (id, now.after(time)))
            .collect();
        let away = seen.clients.keys().map(|&id| {
            let kept_until = kept_until.get(&id).copied().unwrap_or(now);
            let away = Away {
                at_latest: now,
                at_earliest: now,
                kept_until,
                kept_until_max: kept_until,
            };
            (id, away)
        });
        Self {
            away: away.collect(),
            expected: of.len() as u32,
            pending: seen.resources.clone(),
            grace_ends: now.after(grace_period),
            grace_max: times
                .into_values()
                .max()
                .unwrap_or_default()
                .max(grace_period),
            kept_until,
            is_strict: may_have_lost
                || plan.rules.grace_policy == latchd::engine::GracePolicy::Strict,
            seen: VecDeque::from([seen]),
            ..Self::default()
        }
    }

    // ---- what the server showed ----

    /// After the last turn.
    pub(crate) fn last(&self) -> Option<&SeenRanges> {
        self.seen.back()
    }

    pub(crate) fn push(&mut self, seen: SeenRanges) {
        let turn = seen.turn;
        self.seen.push_back(seen);
        // What is needed for requests that are under way, and for those that are over now.
        let open = self.doings.values().filter(|it| it.over.is_none());
        let arrived = open.filter_map(|it| Some(it.arrived?.turn));
        let oldest = arrived.min().unwrap_or(turn).min(turn - 1);
        while self.seen.front().is_some_and(|it| it.turn < oldest) {
            self.seen.pop_front();
        }
        self.doings
            .retain(|_, it| it.over.is_none_or(|over| over > oldest));
    }

    /// What was shown since this turn was over.
    pub(crate) fn since(&self, turn: u64) -> impl DoubleEndedIterator<Item = &SeenRanges> + Clone {
        self.seen.iter().filter(move |it| it.turn >= turn)
    }

    pub(crate) fn client_of(&self, conn: u32) -> Option<usize> {
        self.last()?.conns.get(&conn).copied().flatten()
    }

    /// How many range locks there are.
    pub(crate) fn locks(&self) -> usize {
        let resources = self.last().into_iter().flat_map(|it| &it.resources);
        resources.map(|it| it.held.len()).sum()
    }

    pub(crate) fn is_broken(&self, resource: usize) -> bool {
        self.broken.contains(&resource)
    }

    /// Whether the end of the grace period may have taken these cells from somebody of this name, which is
    /// an index of [`OWNERS`].
    pub(crate) fn may_have_expired(
        &self,
        now: Nanos,
        resource: usize,
        name: usize,
        cells: Cells,
    ) -> bool {
        let Some(at) = self.pending.get(resource) else {
            return false;
        };
        let mut owners = at.held.iter().map(|it| it.owner);
        owners.any(|owner| {
            owner.name == name
                && at.has_all(owner, cells, |_, _| true)
                && (self.is_ended || now >= self.kept_until(owner.who))
        })
    }

    /// Until when range locks are kept that this one held before the restart.
    pub(crate) fn kept_until(&self, who: Who) -> Nanos {
        match who {
            Who::Client(id) => self.kept_until.get(&id).copied(),
            Who::Conn(_) => None,
        }
        .unwrap_or(self.grace_ends)
    }

    /// When the grace period is over for every client.
    pub(crate) fn grace_ends_for_all(&self) -> Nanos {
        let longest = self.kept_until.values().copied().max();
        longest.unwrap_or(self.grace_ends).max(self.grace_ends)
    }

    /// Whether the connection certainly has what keeps it from being cut off: a client, or bytes.
    pub(crate) fn owns_something(&self, conn: u32) -> bool {
        let Some(last) = self.last() else {
            return false;
        };
        let may_end =
            |it: &Doing| !it.asked.only_looks() && !matches!(it.asked, RangeAsked::Lock { .. });
        let is_attached = matches!(last.who(conn), Some(Who::Client(_)));
        (is_attached || last.has_something(Who::Conn(conn)))
            && !self.is_any_under_way(last.turn, may_end)
    }

    /// Whether a shutdown certainly waits for what the connection, or its client, has.
    pub(crate) fn is_unfinished(&self, conn: u32, is_durable: bool) -> bool {
        let Some(last) = self.last() else {
            return false;
        };
        let who = last.who(conn);
        let has_client = matches!(who, Some(Who::Client(_)));
        let holds = |who: Who| {
            let mut held = last.resources.iter().flat_map(|it| &it.held);
            held.any(|it| it.owner.who == who)
        };
        let of_client = who.filter(|_| has_client && !is_durable);
        let has_something = holds(Who::Conn(conn)) || of_client.is_some_and(holds);
        has_something && self.owns_something(conn)
    }

    /// Whether the client may have another secret. Those who guess are answered slowly.
    pub(crate) fn may_be_wrong(&self, asked: RangeAsked) -> bool {
        let (RangeAsked::Attach { id, secret, .. } | RangeAsked::Detach { id, secret }) = asked
        else {
            return false;
        };
        let secrets = self.secrets.get(&id);
        secrets.is_some_and(|it| it.iter().any(|it| *it != secret))
    }

    /// Whether the connection waits for these bytes.
    pub(crate) fn is_waiting(&self, conn: u32, asked: RangeAsked) -> bool {
        let (Some(last), RangeAsked::Lock { bytes, mode, wait }) = (self.last(), asked) else {
            return false;
        };
        let owner = last.who(conn).map(|who| RangeOwner {
            who,
            name: bytes.name,
        });
        let waits = owner.and_then(|owner| last.wait_of(owner));
        let is_it = waits
            .is_some_and(|(at, it)| (at, it.cells, it.mode) == (bytes.resource, bytes.cells, mode));
        is_it && wait > Millis::ZERO
    }

    // ---- requests ----

    pub(crate) fn sent(&mut self, number: u64, conn: u32, asked: RangeAsked) {
        let doing = Doing {
            number,
            conn,
            asked,
            arrived: None,
            over: None,
            is_cancelled: false,
            is_granted: false,
            expected: None,
        };
        self.doings.insert(number, doing);
        if let RangeAsked::Break { resource, .. } = asked {
            self.broken.insert(resource);
        }
        self.is_ended |= asked == RangeAsked::Grace { ends: true };
        self.doubt(conn, asked);
    }

    pub(crate) fn arrived(&mut self, number: u64, moment: Moment) {
        if let Some(doing) = self.doings.get_mut(&number) {
            doing.arrived = Some(moment);
        }
    }

    pub(crate) fn over(&mut self, number: u64, turn: u64) {
        if let Some(doing) = self.doings.get_mut(&number) {
            doing.over = Some(turn);
        }
    }

    /// The connection is gone, and with it whatever it asked.
    pub(crate) fn conn_is_gone(&mut self, conn: u32, turn: u64) {
        self.doings.retain(|_, it| {
            if it.conn == conn && it.over.is_none() {
                it.over = Some(turn);
            }
            it.conn != conn || it.arrived.is_some()
        });
        self.told
            .retain(|(owner, _), _| owner.who != Who::Conn(conn));
    }

    pub(crate) fn doing(&mut self, number: u64) -> Option<&mut Doing> {
        self.doings.get_mut(&number)
    }

    /// Those that may have been done after this turn was over.
    pub(crate) fn doings_since(&self, turn: u64) -> impl Iterator<Item = &Doing> + Clone {
        self.doings
            .values()
            .filter(move |it| it.arrived.is_some() && it.over.is_none_or(|over| over > turn))
    }

    /// For whom the connection may have asked since then.
    pub(crate) fn askers(&self, conn: u32, turn: u64) -> BTreeSet<Who> {
        let mut all: BTreeSet<Who> = self.since(turn).filter_map(|it| it.who(conn)).collect();
        if all.is_empty() {
            all.insert(Who::Conn(conn));
        }
        all
    }

    /// The requests of this owner that may have been done after this turn was over.
    pub(crate) fn doings_of(
        &self,
        owner: RangeOwner,
        turn: u64,
    ) -> impl Iterator<Item = &Doing> + Clone {
        self.doings_since(turn).filter(move |it| {
            let name = match it.asked {
                RangeAsked::Lock { bytes, .. }
                | RangeAsked::Unlock(bytes)
                | RangeAsked::Test(bytes, _)
                | RangeAsked::Cancel(bytes, _)
                | RangeAsked::Reclaim(bytes, _) => Some(bytes.name),
                _ => None,
            };
            name == Some(owner.name) && self.askers(it.conn, turn).contains(&owner.who)
        })
    }

    /// The turn since which everything is known.
    pub(crate) fn oldest(&self) -> u64 {
        self.seen.front().map_or(0, |it| it.turn)
    }

    /// Whether such a request may have been done after this turn was over, or is on its way.
    pub(crate) fn is_any_under_way(&self, turn: u64, is_it: impl Fn(&Doing) -> bool) -> bool {
        let may_be = |it: &&Doing| it.over.is_none_or(|over| over > turn);
        self.doings.values().filter(may_be).any(is_it)
    }

    // ---- what clients may rely on ----

    /// Something is asked that may end what was told, so nobody relies on that any longer.
    fn doubt(&mut self, conn: u32, asked: RangeAsked) {
        let asker = self.client_of(conn);
        let is_of = |owner: RangeOwner, name: usize| {
            let is_client = asker.is_some_and(|id| owner.who == Who::Client(id));
            (owner.who == Who::Conn(conn) || is_client) && owner.name == name
        };
        let mut forget = |is_it: &dyn Fn(RangeOwner, usize) -> bool, which: Cells| {
            for ((owner, resource), cells) in &mut self.told {
                if is_it(*owner, *resource) {
                    which.each().for_each(|cell| cells[cell] = None);
                }
            }
        };
        let all = Cells {
            from: 0,
            to: CELLS as u8,
        };
        if let RangeAsked::Lock { bytes, .. } | RangeAsked::Reclaim(bytes, _) = asked {
            for ((owner, resource), cells) in &mut self.unlocked {
                if *resource == bytes.resource && owner.name == bytes.name {
                    bytes.cells.each().for_each(|cell| cells[cell] = false);
                }
            }
        }
        match asked {
            RangeAsked::Lock { bytes, .. }
            | RangeAsked::Unlock(bytes)
            | RangeAsked::Reclaim(bytes, _) => {
                let is_it =
                    |owner, resource| resource == bytes.resource && is_of(owner, bytes.name);
                forget(&is_it, bytes.cells);
            }
            RangeAsked::Break { resource, .. } => forget(&|_, it| it == resource, all),
            RangeAsked::Detach { id, .. } => forget(&|owner, _| owner.who == Who::Client(id), all),
            RangeAsked::Attach {
                id,
                ttl: Millis::ZERO,
                ..
            } => {
                self.kept.remove(&id);
            }
            _ => {}
        }
    }

    /// A lock was granted, or had back, and nothing is under way that could have ended it since.
    pub(crate) fn may_rely(&mut self, owner: RangeOwner, bytes: Bytes, mode: Sharing) {
        let cells = self.told.entry((owner, bytes.resource)).or_default();
        bytes.cells.each().for_each(|cell| cells[cell] = Some(mode));
    }

    /// Bytes were unlocked, and nothing is under way that could lock them.
    pub(crate) fn is_unlocked(&mut self, owner: RangeOwner, bytes: Bytes) {
        let cells = self.unlocked.entry((owner, bytes.resource)).or_default();
        bytes.cells.each().for_each(|cell| cells[cell] = true);
    }

    /// A client was told that it is kept for this long without a connection.
    pub(crate) fn attached(&mut self, id: usize, ttl: Millis, since: u64) {
        let is_zero = |it: &Doing| {
            matches!(it.asked, RangeAsked::Attach { id: of, ttl, .. }
                if (of, ttl) == (id, Millis::ZERO))
        };
        if ttl > Millis::ZERO && !self.is_any_under_way(since, is_zero) {
            self.kept.insert(id);
        }
    }

    /// What connections that have left held by themselves is nobody's any more.
    pub(crate) fn forget_left(&mut self, left: &BTreeSet<u32>) {
        self.told.retain(|(owner, _), _| match owner.who {
            Who::Conn(conn) => !left.contains(&conn),
            Who::Client(_) => true,
        });
    }

    /// A client is forgotten.
    pub(crate) fn client_is_gone(&mut self, id: usize) {
        self.told
            .retain(|(owner, _), _| owner.who != Who::Client(id));
        self.kept.remove(&id);
        self.away.remove(&id);
    }

    /// A client may have been forgotten in this turn, and be another now.
    pub(crate) fn client_is_new(&mut self, id: usize, turn: u64) {
        self.told
            .retain(|(owner, _), _| owner.who != Who::Client(id));
        self.kept.remove(&id);
        self.anew.insert(id, turn);
    }

    /// Whether that may have been so after this turn was over.
    pub(crate) fn may_be_new(&self, id: usize, turn: u64) -> bool {
        self.anew.get(&id).is_some_and(|it| *it > turn)
    }

    /// Whatever clients rely on is there.
    pub(crate) fn check_told(&self) -> Result<(), String> {
        let Some(last) = self.last() else {
            return Ok(());
        };
        for ((owner, resource), cells) in &self.told {
            let held = last.resources[*resource].cells_of(*owner);
            for (told, held) in cells.iter().zip(held) {
                if let Some(mode) = told
                    && held != Some((*mode, false))
                {
                    return Err(format!(
                        "{owner:?} was told that it holds {mode:?} of {resource}, and has {held:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The next life begins: whatever kept clients rely on has been restored.
    pub(crate) fn check_restored(&self, plan: &Plan, kept: &Kept) -> Result<(), String> {
        let Some(last) = self.last() else {
            return Ok(());
        };
        for ((owner, resource), cells) in &self.told {
            let Who::Client(id) = owner.who else { continue };
            if !self.kept.contains(&id) || !last.clients.contains_key(&id) {
                continue;
            }
            let key = [
                plan.ranges.resources[*resource].clone(),
                plan.ranges.ids[id].as_bytes().to_vec(),
                OWNERS[owner.name].as_bytes().to_vec(),
            ];
            let found = kept.ranges.get(&key).map_or(&[][..], |it| it);
            for (cell, told) in cells.iter().enumerate() {
                let Some(mode) = told else { continue };
                let is_there = found.iter().any(|&(start, end, restored)| {
                    Cells::between(start, end).is_some_and(|it| it.has(cell)) && restored == *mode
                });
                if !is_there {
                    return Err(format!(
                        "{owner:?} held {mode:?} of {resource}, and it is lost: {found:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Nothing is back that its owner was told to be unlocked.
    pub(crate) fn check_not_back(&self, restored: &SeenRanges) -> Result<(), String> {
        for ((owner, resource), cells) in &self.unlocked {
            let held = restored.resources[*resource].cells_of(*owner);
            if let Some(cell) = (0..CELLS).find(|&cell| cells[cell] && held[cell].is_some()) {
                return Err(format!(
                    "{owner:?} has unlocked cell {cell} of {resource}, and has it back"
                ));
            }
        }
        Ok(())
    }

    /// What clients remember of this life in the next one.
    pub(crate) fn remembered(&self) -> Vec<(usize, Bytes, Sharing)> {
        let mut all = Vec::new();
        let Some(last) = self.last() else {
            return all;
        };
        for (resource, at) in last.resources.iter().enumerate() {
            for it in &at.held {
                if let Who::Client(id) = it.owner.who {
                    let bytes = Bytes {
                        resource,
                        cells: it.cells,
                        name: it.owner.name,
                    };
                    all.push((id, bytes, it.mode));
                }
            }
        }
        all
    }

    /// What was held in an earlier life comes first, because it is the more interesting.
    pub(crate) fn remember(&mut self, mut before: Vec<(usize, Bytes, Sharing)>, older: &Self) {
        const REMEMBERED_MAX: usize = 24;
        before.extend(&older.before);
        before.truncate(REMEMBERED_MAX);
        self.before = before;
        self.secrets.clone_from(&older.secrets);
    }

    // ---- what a client may ask for ----

    /// What its client holds.
    pub(crate) fn held_by(&self, conn: u32, client: Option<usize>) -> Vec<Bytes> {
        let who = client.map_or(Who::Conn(conn), Who::Client);
        self.listed(who, |at| &at.held)
            .map(|(bytes, ..)| bytes)
            .collect()
    }

    /// What connections of the client wait for.
    pub(crate) fn waits_of(&self, client: Option<usize>) -> Vec<(Bytes, Sharing)> {
        let Some(id) = client else { return Vec::new() };
        self.listed(Who::Client(id), |at| &at.waiting)
            .map(|(bytes, mode, _)| (bytes, mode))
            .collect()
    }

    /// What the client still has to have back.
    pub(crate) fn pending_of(&self, client: Option<usize>) -> Vec<(Bytes, Sharing)> {
        let Some(id) = client else { return Vec::new() };
        self.listed(Who::Client(id), |at| &at.held)
            .filter(|(.., pending)| *pending)
            .map(|(bytes, mode, _)| (bytes, mode))
            .collect()
    }

    pub(crate) fn has_pending(&self, client: Option<usize>) -> bool {
        !self.pending_of(client).is_empty()
    }

    /// What the client held in lives that are over.
    pub(crate) fn held_before(&self, client: Option<usize>) -> Vec<(Bytes, Sharing)> {
        let before = self.before.iter().filter(|it| Some(it.0) == client);
        before.map(|&(_, bytes, mode)| (bytes, mode)).collect()
    }

    fn listed<'a>(
        &'a self,
        who: Who,
        of: impl Fn(&'a SeenResource) -> &'a Vec<super::seen_ranges::Seen> + 'a,
    ) -> impl Iterator<Item = (Bytes, Sharing, bool)> + 'a {
        let resources = self.last().into_iter().flat_map(|it| &it.resources);
        let all = resources
            .enumerate()
            .flat_map(move |(resource, at)| of(at).iter().map(move |it| (resource, it)));
        let own = all.filter(move |(_, it)| it.owner.who == who);
        own.map(|(resource, it)| {
            let bytes = Bytes {
                resource,
                cells: it.cells,
                name: it.owner.name,
            };
            (bytes, it.mode, it.pending)
        })
    }
}
