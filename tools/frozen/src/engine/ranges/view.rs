//! Byte ranges as people see them: read-only, and never further than the caller asks.

use super::super::arena::NONE;
use super::super::queue::Awaiting;
use super::super::types::{ByteRange, GraceState, HeldRange, RangeGrant, Sharing};
use super::super::view::View;
use super::super::waits::edges::{Edge, Someone};
use super::figures::RangeFigures;
use super::{Ranges, Resource};
use crate::base::{ConnId, Nanos};
use crate::segments::Segment;

/// Most whom one waiter is shown to wait for.
const BLOCKERS_MAX: usize = 1_000;

/// How many in a queue are compared with what another wants at the cost of one look.
const COMPARED_PER_LOOK: usize = 4;

/// Most that are compared for [`View::edges`]: a millisecond or so.
const COMPARED_MAX: usize = 131_072;

/// The range locks of one resource, and who waits for some.
#[derive(Clone, Copy)]
pub struct RangesView<'e> {
    view: View<'e>,
    resource: u32,
}

/// What one owner holds of one resource.
#[derive(Clone, Copy)]
pub struct HoldingView<'e> {
    view: View<'e>,
    holding: u32,
}

/// One range lock, or one that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeShown<'e> {
    /// The client: by its id, or a connection that is its own client.
    pub client: Someone<'e>,
    /// For whom the client holds it; empty for itself.
    pub owner: &'e [u8],
    /// Together with others, or alone.
    pub mode: Sharing,
    /// Which bytes.
    pub range: ByteRange,
    /// It was held before a restart and not had back yet.
    pub pending: bool,
    /// Since when it is held, or waited for; what was restored is held since 0.
    pub since: Nanos,
    /// Its number, and when it was granted by whom. None if it is waited for.
    pub grant: Option<RangeGrant>,
}

/// How much there is of byte ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCounts {
    /// Resources that somebody holds or wants some bytes of.
    pub resources: usize,
    /// Range locks.
    pub locks: usize,
    /// How many of them are shared, and how many exclusive.
    pub locks_by: [usize; 2],
    /// Those who wait for some.
    pub waiting: usize,
    /// How many of them want to share, and how many do not.
    pub waiting_by: [usize; 2],
}

impl<'e> View<'e> {
    fn table(self) -> &'e Ranges {
        &self.engine.stores.locks.ranges
    }

    /// The time of day, in nanoseconds since 1970.
    #[must_use]
    pub fn day_ns(self) -> u64 {
        self.engine.core.day_ns(self.now)
    }

    /// The ranges of this resource; none if nobody holds or wants any.
    #[must_use]
    pub fn ranges(self, resource: &[u8]) -> Option<RangesView<'e>> {
        let resource = self.table().find(resource)?;
        Some(RangesView {
            view: self,
            resource,
        })
    }

    /// The resources in slots from this one on, each with its slot; none for a slot that is vacant.
    pub fn resources_from(self, slot: u32) -> impl Iterator<Item = (u32, Option<RangesView<'e>>)> {
        let slots = self.table().resources.slots_from(slot);
        slots.map(move |(resource, it)| {
            let view = it.map(|_| RangesView {
                view: self,
                resource,
            });
            (resource, view)
        })
    }

    /// What each owner holds of one resource, in slots from this one on; none for a slot that is vacant.
    pub fn holdings_from(self, slot: u32) -> impl Iterator<Item = (u32, Option<HoldingView<'e>>)> {
        let slots = self.table().holdings.slots_from(slot);
        slots.map(move |(holding, it)| {
            let view = it.map(|_| HoldingView {
                view: self,
                holding,
            });
            (holding, view)
        })
    }

    /// How much there is.
    #[must_use]
    pub fn range_counts(self) -> RangeCounts {
        let it = self.table();
        RangeCounts {
            resources: it.resources.len(),
            locks: it.segments,
            locks_by: [it.shared, it.segments - it.shared],
            waiting: it.wants.len(),
            waiting_by: it.waiting,
        }
    }

    /// The range lock that is in the way of one that a client wants for somebody.
    #[must_use]
    pub fn range_in_the_way(
        self,
        resource: &[u8],
        (client, owner): (&str, &[u8]),
        (range, mode): (ByteRange, Sharing),
    ) -> Option<HeldRange> {
        let (core, locks) = (&self.engine.core, &self.engine.stores.locks);
        let resource = locks.ranges.find(resource)?;
        let client = core.clients.find(&core.owners, client);
        let owner = client.and_then(|it| locks.ranges.find_owner(core.clients[it].owner, owner));
        let holding = owner.map_or(NONE, |it| locks.ranges.holding_of(it, resource));
        let segments = &locks.ranges.resource(resource).segments;
        let (holding, segment) = segments.first_conflict(holding, range, mode)?;
        Some(locks.held_range(core, holding, &segment))
    }

    /// What was counted.
    #[must_use]
    pub fn range_figures(self) -> &'e RangeFigures {
        &self.table().figures
    }

    /// How far the time is in which clients have back what they held before a restart.
    #[must_use]
    pub fn grace(self) -> GraceState {
        self.table().grace.state(self.now)
    }

    fn owner_of_ranges(self, owner: u32) -> (Someone<'e>, &'e [u8]) {
        let it = self.table().owner(owner);
        (self.someone(it.client), it.name.as_bytes())
    }

    /// Tells who waits for whom for bytes, until `each` returns false or so much was looked at; returns how
    /// much that was.
    pub(in super::super) fn range_edges(
        self,
        looks_max: usize,
        mut each: impl FnMut(Edge<'e>) -> bool,
    ) -> usize {
        let (mut looks, mut compared) = (0, 0);
        let waiters = &self.engine.core.waiters;
        for (_, want) in self.table().wants.iter() {
            let waiter = self.table().owner(want.owner).waiter;
            let resource = RangesView {
                view: self,
                resource: waiters[waiter].subject,
            };
            let (who, owner) = self.owner_of_ranges(want.owner);
            let mut goes_on = true;
            compared += resource.blockers(waiter, |blocker, blocker_owner| {
                looks += 1;
                goes_on = looks < looks_max
                    && each(Edge {
                        waiter: who,
                        waits_for: blocker,
                        owners: [owner, blocker_owner],
                        on: resource.key(),
                        kind: "range",
                    });
                goes_on
            });
            if !goes_on || compared >= COMPARED_MAX {
                break;
            }
        }
        looks + compared / COMPARED_PER_LOOK
    }
}

impl<'e> HoldingView<'e> {
    /// The name of the resource.
    #[must_use]
    pub fn resource(self) -> &'e [u8] {
        let ranges = self.view.table();
        let resource = ranges.holding(self.holding).resource;
        ranges.resource(resource).key.as_bytes()
    }

    /// The client, and for whom it holds.
    #[must_use]
    pub fn owner(self) -> (Someone<'e>, &'e [u8]) {
        let owner = self.view.table().holding(self.holding).owner;
        self.view.owner_of_ranges(owner)
    }

    /// The range locks that begin with this byte or behind it, in order.
    pub fn locks_from(self, start: u64) -> impl Iterator<Item = RangeShown<'e>> {
        let ranges = self.view.table();
        let resource = ranges.holding(self.holding).resource;
        let rest = ByteRange::between(start, u64::MAX).unwrap_or(ByteRange::ALL);
        let segments = &ranges.resource(resource).segments;
        let rest = segments.of_owner_overlapping(self.holding, rest);
        let rest = rest.filter(move |it| it.range.start() >= start);
        rest.map(move |it| self.shown(&it))
    }

    fn shown(self, segment: &Segment) -> RangeShown<'e> {
        let core = &self.view.engine.core;
        let (client, owner) = self.owner();
        RangeShown {
            client,
            owner,
            mode: segment.mode,
            range: segment.range,
            pending: segment.pending(),
            since: Nanos(segment.since.saturating_sub(core.rules.zero_ns)),
            grant: Some(self.view.table().recorded(core, segment)),
        }
    }
}

impl<'e> RangesView<'e> {
    fn it(self) -> &'e Resource {
        self.view.table().resource(self.resource)
    }

    /// Its name.
    #[must_use]
    pub fn key(self) -> &'e [u8] {
        self.it().key.as_bytes()
    }

    /// How many range locks it has, and how many wait for some.
    #[must_use]
    pub fn lens(self) -> (usize, usize) {
        (self.it().segments.len(), self.it().queue.len() as usize)
    }

    /// Those that are held, in the order of their first bytes.
    pub fn held(self) -> impl Iterator<Item = RangeShown<'e>> {
        let segments = self.it().segments.iter();
        segments.map(move |(holding, it)| {
            let holding = HoldingView {
                view: self.view,
                holding,
            };
            holding.shown(&it)
        })
    }

    /// Those that are waited for, in the order of the queue.
    pub fn waiting(self) -> impl Iterator<Item = RangeShown<'e>> {
        let waiters = &self.view.engine.core.waiters;
        self.it().queue.iter(waiters).map(move |waiter| {
            let locks = &self.view.engine.stores.locks;
            let (_, wants) = locks.waited_range(&self.view.engine.core, waiter);
            let (client, owner) = self.view.owner_of_ranges(wants.owner);
            RangeShown {
                client,
                owner,
                mode: wants.mode,
                range: wants.range,
                pending: false,
                since: waiters[waiter].since,
                grant: None,
            }
        })
    }

    /// On which connection each of them waits.
    pub fn waiting_on(self) -> impl Iterator<Item = ConnId> {
        let core = &self.view.engine.core;
        let waiters = self.it().queue.iter(&core.waiters);
        waiters.map(|waiter| core.conns[core.waiters[waiter].conn].id)
    }

    /// Tells whom the waiter at this place in the queue (0 is the first) waits for, at most 1,000 of them;
    /// returns how many looks that took besides.
    pub fn waits_for(self, place: usize, mut each: impl FnMut(Someone<'e>, &'e [u8])) -> usize {
        let waiters = &self.view.engine.core.waiters;
        let Some(waiter) = self.it().queue.iter(waiters).nth(place) else {
            return 0;
        };
        let compared = self.blockers(waiter, |who, owner| {
            each(who, owner);
            true
        });
        (place + compared) / COMPARED_PER_LOOK
    }

    /// Those who hold bytes that a waiter wants, then those before it that want some; each once in a row.
    /// Returns how many in the queue were compared.
    fn blockers(self, waiter: u32, mut each: impl FnMut(Someone<'e>, &'e [u8]) -> bool) -> usize {
        let engine = self.view.engine;
        let locks = &engine.stores.locks;
        let (_, wants) = locks.waited_range(&engine.core, waiter);
        let holding = locks.ranges.holding_of(wants.owner, self.resource);
        let conflicts = self
            .it()
            .segments
            .conflicts(holding, wants.range, wants.mode);
        let holders = conflicts.map(|(holding, _)| locks.ranges.holding(holding).owner);
        let before = self.it().queue.iter(&engine.core.waiters);
        let mut compared = 0;
        let before = before.take_while(|&it| it != waiter).filter(|&it| {
            compared += 1;
            matches!(engine.core.waiters[it].awaiting, Awaiting::Range(_))
                && locks.blocks_range(&engine.core, it, &wants)
        });
        let before = before.map(|it| locks.waited_range(&engine.core, it).1.owner);
        let mut last = NONE;
        for owner in holders.chain(before).take(BLOCKERS_MAX) {
            let is_same = std::mem::replace(&mut last, owner) == owner;
            let (who, name) = self.view.owner_of_ranges(owner);
            if !is_same && !each(who, name) {
                break;
            }
        }
        compared
    }
}
