//! What one request does to byte ranges, in the most obvious way: cell by cell, and one waiter after
//! another.
//!
//! Where a request is the only thing that happens in a turn, the server has to come to the same table and
//! the same answer. Says nothing where the order of the queue may give way, or where time may have done
//! something.

use std::collections::BTreeMap;

use super::seen_ranges::{HeldCells, RangeOwner, Seen, SeenRanges, SeenResource, Who};
use crate::clients::range_requests::{Bytes, RangeAsked};
use crate::range_plan::{CELLS, Cells, excludes};
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::engine::types::Sharing;

/// Most waiters of one resource where there is no other limit.
const WAITERS_MAX: usize = 100;

/// One resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelResource {
    held: BTreeMap<RangeOwner, HeldCells>,
    queue: Vec<Seen>,
}

impl ModelResource {
    fn of(seen: &SeenResource) -> Self {
        let owners = seen.held.iter().map(|it| it.owner);
        Self {
            held: owners.map(|it| (it, seen.cells_of(it))).collect(),
            queue: seen.waiting.clone(),
        }
    }

    fn is_in_the_way(&self, wanted: &Seen) -> bool {
        self.held.iter().any(|(owner, cells)| {
            let mut meant = wanted.cells.each().filter_map(|cell| cells[cell]);
            *owner != wanted.owner && meant.any(|(mode, _)| excludes(mode, wanted.mode))
        })
    }

    fn has_some(&self, owner: RangeOwner, cells: Cells) -> bool {
        let held = self.held.get(&owner);
        held.is_some_and(|held| cells.each().any(|cell| held[cell].is_some()))
    }

    fn set(&mut self, owner: RangeOwner, cells: Cells, to: Option<(Sharing, bool)>) {
        let held = self.held.entry(owner).or_insert([None; CELLS]);
        cells.each().for_each(|cell| held[cell] = to);
        self.held.retain(|_, held| held.iter().any(Option::is_some));
    }

    fn segments(&self) -> usize {
        self.held.values().map(segments).sum()
    }
}

/// How many segments these cells are.
fn segments(cells: &HeldCells) -> usize {
    let begins = |at: usize| cells[at].is_some() && (at == 0 || cells[at - 1] != cells[at]);
    (0..CELLS).filter(|&at| begins(at)).count()
}

/// What comes of a request.
pub(crate) struct Model<'a> {
    rules: &'a Rules,
    before: &'a SeenRanges,
    /// The connection that asks.
    conn: u32,
    is_strict: bool,
    pub(crate) resources: Vec<ModelResource>,
    /// Who was waiting and is answered.
    pub(crate) told: Vec<(RangeOwner, &'static str)>,
}

/// What the one who asks is answered; nothing if it waits.
pub(crate) type Answer = Option<String>;

impl<'a> Model<'a> {
    pub(crate) fn new(
        rules: &'a Rules,
        before: &'a SeenRanges,
        conn: u32,
        is_strict: bool,
    ) -> Self {
        Self {
            rules,
            before,
            conn,
            is_strict,
            resources: before.resources.iter().map(ModelResource::of).collect(),
            told: Vec::new(),
        }
    }

    /// Whether this is what the server shows.
    pub(crate) fn is(&self, after: &SeenRanges) -> bool {
        let mut pairs = self.resources.iter().zip(&after.resources);
        pairs.all(|(it, after)| *it == ModelResource::of(after))
    }

    /// Does what is asked; none if it cannot be said what comes of it.
    pub(crate) fn ask(&mut self, who: Who, asked: RangeAsked) -> Option<Answer> {
        let owner = |bytes: Bytes| RangeOwner {
            who,
            name: bytes.name,
        };
        let answer = match asked {
            RangeAsked::Lock { bytes, mode, wait } => {
                let wanted = Seen {
                    owner: owner(bytes),
                    cells: bytes.cells,
                    mode,
                    pending: false,
                };
                self.lock(bytes.resource, wanted, wait)?
            }
            RangeAsked::Unlock(bytes) => {
                let owner = owner(bytes);
                self.end_wait(bytes.resource, |it| {
                    (it.owner, it.cells) == (owner, bytes.cells)
                });
                self.resources[bytes.resource].set(owner, bytes.cells, None);
                self.serve(bytes.resource)?;
                Some("ok")
            }
            RangeAsked::Cancel(bytes, mode) => {
                let owner = owner(bytes);
                let ended = self.end_wait(bytes.resource, |it| {
                    (it.owner, it.cells, it.mode) == (owner, bytes.cells, mode)
                });
                self.serve(bytes.resource)?;
                let at = &self.before.resources[bytes.resource];
                let covers =
                    |held, pending: bool| !pending && (held == mode || held == Sharing::Exclusive);
                Some(match ended {
                    true => "ok cancelled",
                    false if at.has_all(owner, bytes.cells, covers) => "ok granted",
                    false => "nil",
                })
            }
            RangeAsked::Reclaim(bytes, mode) => {
                let owner = owner(bytes);
                let at = &self.before.resources[bytes.resource];
                // Also what it has back already.
                let covers = |held, _| held == mode || held == Sharing::Exclusive;
                if self.before.grace.left == Millis::ZERO {
                    Some("error_no_grace")
                } else if !at.has_all(owner, bytes.cells, covers) {
                    Some("error_reclaim")
                } else {
                    let now = Some((mode, false));
                    self.resources[bytes.resource].set(owner, bytes.cells, now);
                    self.serve(bytes.resource)?;
                    Some("ok")
                }
            }
            RangeAsked::Break { resource, cells } => {
                let cells = cells.unwrap_or(Cells {
                    from: 0,
                    to: CELLS as u8,
                });
                let held = &self.before.resources[resource].held;
                let meant = held.iter().filter(|it| it.cells.overlaps(cells));
                let meant: Vec<Seen> = meant.copied().collect();
                // All of them end before a waiter gets anything.
                for it in &meant {
                    self.resources[resource].set(it.owner, it.cells, None);
                }
                self.serve(resource)?;
                return self
                    .is_settled()
                    .then(|| Some(format!("ok {}", meant.len())));
            }
            _ if asked.only_looks() => None,
            _ => return None,
        };
        self.is_settled().then(|| answer.map(str::to_owned))
    }

    /// What a lock is answered; nothing if it waits, and none if that cannot be said.
    fn lock(&mut self, at: usize, wanted: Seen, wait: Millis) -> Option<Option<&'static str>> {
        if let Some((waits_at, waits)) = self.before.wait_of(wanted.owner) {
            if waits_at == at && *waits == wanted && wait > Millis::ZERO {
                if self.before.has_something(Who::Conn(self.conn)) {
                    return None; // it cannot let go of that any more, so it may wait for itself
                }
                self.told.push((wanted.owner, "timeout"));
                return Some(None); // in the place of the one before
            }
            return Some(Some("error_busy"));
        }
        let it = &self.resources[at];
        let in_the_way = self.before.resources[at].in_the_way(&wanted);
        let is_active = self.before.grace.left > Millis::ZERO;
        if is_active && (self.is_strict || { in_the_way }.any(|it| it.pending)) {
            return Some(Some("error_grace"));
        }
        let may_wait = wait > Millis::ZERO;
        let is_held = it.is_in_the_way(&wanted);
        let is_behind = may_wait
            && !it.has_some(wanted.owner, wanted.cells)
            && it.queue.iter().any(|before| before.excludes(&wanted));
        if is_held && !may_wait {
            return Some(Some("timeout"));
        } else if is_held && self.would_deadlock(at, &wanted, false) {
            return Some(Some("error_deadlock"));
        } else if is_held || is_behind {
            if !is_held && self.would_deadlock(at, &wanted, true) {
                return None; // it may pass
            }
            let most = match self.rules.waiters_per_key_max {
                0 => WAITERS_MAX,
                most => most as usize,
            };
            if it.queue.len() >= most {
                return Some(Some("error_max_waiters"));
            }
            self.resources[at].queue.push(wanted);
            return Some(None);
        }
        if !self.has_room(at, &wanted) {
            return Some(Some("error_limit"));
        }
        self.resources[at].set(wanted.owner, wanted.cells, Some((wanted.mode, false)));
        self.serve(at)?;
        Some(Some("ok"))
    }

    /// Whether all limits are kept if this is granted, as far as there are more than before.
    fn has_room(&self, at: usize, wanted: &Seen) -> bool {
        let mut after = self.resources[at].clone();
        after.set(wanted.owner, wanted.cells, Some((wanted.mode, false)));
        let (before, after) = (self.resources[at].segments(), after.segments());
        if after <= before {
            return true;
        }
        let growth = after - before;
        let held = self.resources.iter().flat_map(|it| &it.held);
        let of_client = held
            .clone()
            .filter(|(owner, _)| owner.who == wanted.owner.who);
        let of_client: usize = of_client.map(|(_, cells)| segments(cells)).sum();
        let all: usize = held.map(|(_, cells)| segments(cells)).sum();
        let fits = |count: usize, most: u32| most == 0 || count + growth <= most as usize;
        fits(before, self.rules.ranges_per_resource_max)
            && fits(of_client, self.rules.ranges_per_client_max)
            && fits(all, self.rules.ranges_max)
    }

    /// Ends such a wait; returns whether there was one.
    fn end_wait(&mut self, at: usize, is_it: impl Fn(&Seen) -> bool) -> bool {
        let queue = &mut self.resources[at].queue;
        let Some(place) = queue.iter().position(is_it) else {
            return false;
        };
        let gone = queue.remove(place);
        self.told.push((gone.owner, "timeout"));
        true
    }

    /// Grants to whoever can have what it waits for, one after another.
    fn serve(&mut self, at: usize) -> Option<()> {
        while let Some(place) = self.next_to_serve(at)? {
            let wanted = self.resources[at].queue[place];
            let has_room = self.has_room(at, &wanted);
            self.resources[at].queue.remove(place);
            if has_room {
                self.resources[at].set(wanted.owner, wanted.cells, Some((wanted.mode, false)));
            }
            let told = if has_room { "ok" } else { "error_limit" };
            self.told.push((wanted.owner, told));
        }
        Some(())
    }

    fn next_to_serve(&self, at: usize) -> Option<Option<usize>> {
        let it = &self.resources[at];
        for (place, wanted) in it.queue.iter().enumerate() {
            if it.is_in_the_way(wanted) {
                continue;
            }
            let is_behind = it.queue[..place].iter().any(|it| it.excludes(wanted));
            if !is_behind || it.has_some(wanted.owner, wanted.cells) {
                return Some(Some(place));
            }
            if self.may_pass(at, wanted) {
                return None;
            }
        }
        Some(None)
    }

    /// Whether the order of the queue keeps nobody waiting for itself, so that nobody may pass.
    fn is_settled(&self) -> bool {
        let resources = self.resources.iter().enumerate();
        let mut waiting = resources.flat_map(|(at, it)| it.queue.iter().map(move |it| (at, it)));
        !waiting.any(|(at, it)| !self.resources[at].is_in_the_way(it) && self.may_pass(at, it))
    }

    fn may_pass(&self, at: usize, wanted: &Seen) -> bool {
        self.would_deadlock(at, wanted, true)
    }

    fn would_deadlock(&self, at: usize, wanted: &Seen, counts_queue: bool) -> bool {
        let resources = self.resources.iter().map(|it| SeenResource {
            held: it
                .held
                .iter()
                .flat_map(|(owner, it)| each(*owner, it))
                .collect(),
            waiting: it.queue.clone(),
        });
        let mut now = SeenRanges {
            resources: resources.collect(),
            parked: self.before.parked.clone(),
            ..SeenRanges::default()
        };
        let waiting = now.resources.iter().flat_map(|it| &it.waiting);
        let is_new = |owner| !self.before.parked.iter().any(|it| it.1 == owner);
        let asking = waiting.chain([wanted]).map(|it| it.owner);
        let asking: Vec<RangeOwner> = asking.filter(|&it| is_new(it)).collect();
        now.parked.extend(asking.iter().map(|&it| (self.conn, it)));
        now.would_deadlock(at, wanted, counts_queue)
    }
}

/// The cells that an owner has, one by one.
fn each(owner: RangeOwner, cells: &HeldCells) -> impl Iterator<Item = Seen> {
    let cells = cells.iter().enumerate();
    cells.filter_map(move |(cell, held)| {
        let (mode, pending) = (*held)?;
        let (from, to) = (cell as u8, cell as u8 + 1);
        let cells = Cells { from, to };
        Some(Seen {
            owner,
            cells,
            mode,
            pending,
        })
    })
}
