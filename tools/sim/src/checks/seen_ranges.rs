//! Byte ranges and attached clients as the server shows them after a turn.
//!
//! Read off the engine's view, cell by cell, and compared with nothing here but with itself: what holds of
//! every table whatever happened. Knows nothing of how the engine keeps segments.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::life::Life;
use crate::plan::Plan;
use crate::range_plan::{CELLS, Cells, OWNERS, excludes};
use crate::turn::TurnSpan;
use latchd::base::{Millis, Nanos};
use latchd::engine::Someone;
use latchd::engine::types::{GraceState, Sharing};

/// A client: one with an id, or a connection that is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Conn(u32),
    /// By its index in the plan.
    Client(usize),
}

/// For whom bytes are locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeOwner {
    pub(crate) who: Who,
    pub(crate) name: usize,
}

/// Bytes that are held or waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) owner: RangeOwner,
    pub(crate) cells: Cells,
    pub(crate) mode: Sharing,
    pub(crate) pending: bool,
}

impl fmt::Debug for RangeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.who, OWNERS[self.name])
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cells { from, to } = self.cells;
        let pending = if self.pending { ", pending" } else { "" };
        write!(
            f,
            "{:?} {} {from}..{to}{pending}",
            self.owner,
            self.mode.word()
        )
    }
}

impl Seen {
    /// Whether the two cannot be held at the same time.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        self.owner != other.owner
            && excludes(self.mode, other.mode)
            && self.cells.overlaps(other.cells)
    }
}

/// One resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenResource {
    pub(crate) held: Vec<Seen>,
    pub(crate) waiting: Vec<Seen>,
}

/// How an owner holds each cell of a resource, and whether it is pending.
pub(crate) type HeldCells = [Option<(Sharing, bool)>; CELLS];

impl SeenResource {
    pub(crate) fn cells_of(&self, owner: RangeOwner) -> HeldCells {
        let mut cells = [None; CELLS];
        for it in self.held.iter().filter(|it| it.owner == owner) {
            it.cells
                .each()
                .for_each(|cell| cells[cell] = Some((it.mode, it.pending)));
        }
        cells
    }

    /// Whether the owner has all of these cells, and each as this says.
    pub(crate) fn has_all(
        &self,
        owner: RangeOwner,
        cells: Cells,
        is_it: impl Fn(Sharing, bool) -> bool,
    ) -> bool {
        let held = self.cells_of(owner);
        cells
            .each()
            .all(|cell| held[cell].is_some_and(|(mode, pending)| is_it(mode, pending)))
    }

    /// Those whose locks exclude this one.
    pub(crate) fn in_the_way<'a>(&'a self, wanted: &'a Seen) -> impl Iterator<Item = &'a Seen> {
        self.held.iter().filter(|it| it.excludes(wanted))
    }

    /// What holds of every table. What different lives have granted (`epochs`) is not one, though it touches.
    fn check(&self, epochs: &[u64]) -> Result<(), String> {
        for (at, it) in self.held.iter().enumerate() {
            for (other, epoch) in self.held.iter().zip(epochs).skip(at + 1) {
                if it.excludes(other) {
                    return Err(format!("held by two at once: {it:?} and {other:?}"));
                }
                let touch = it.cells.from <= other.cells.to && other.cells.from <= it.cells.to;
                if it.owner == other.owner && it.cells.overlaps(other.cells) {
                    return Err(format!("held twice: {it:?} and {other:?}"));
                }
                let is_same =
                    (it.mode, it.pending, epochs[at]) == (other.mode, other.pending, *epoch);
                if it.owner == other.owner && touch && is_same {
                    return Err(format!("two where there is one: {it:?} and {other:?}"));
                }
            }
        }
        Ok(())
    }
}

/// A client with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenClient {
    /// How many connections it has.
    pub(crate) conns: u32,
    pub(crate) ttl: Millis,
}

/// Everything about byte ranges after a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenRanges {
    /// The turn that was over, and its time.
    pub(crate) turn: u64,
    pub(crate) span: TurnSpan,
    pub(crate) resources: Vec<SeenResource>,
    /// To which client each connection has attached.
    pub(crate) conns: BTreeMap<u32, Option<usize>>,
    /// What the server calls those that hold or wait for bytes themselves.
    pub(crate) serials: BTreeMap<u32, u32>,
    pub(crate) clients: BTreeMap<usize, SeenClient>,
    /// Which connections wait for bytes, and for whom.
    pub(crate) parked: BTreeSet<(u32, RangeOwner)>,
    pub(crate) grace: GraceState,
}

impl SeenRanges {
    /// What the server shows at this moment.
    pub(crate) fn look(
        plan: &Plan,
        life: &Life,
        turn: u64,
        span: TurnSpan,
        now: Nanos,
    ) -> Result<Self, String> {
        let view = life.server.engine().view(now);
        let serials = RefCell::new(BTreeMap::new());
        let who = |it: Someone<'_>| match it {
            Someone::Connection(serial) => {
                let number = life.by_serial.get(&serial).copied().unwrap_or_default();
                serials.borrow_mut().insert(number, serial);
                Ok(Who::Conn(number))
            }
            Someone::Named(id) => {
                let mut ids = plan.ranges.ids.iter();
                let found = ids.position(|it| *it == id);
                found
                    .map(Who::Client)
                    .ok_or_else(|| format!("{id:?} is no client"))
            }
            Someone::Nobody => Err("bytes of nobody".to_owned()),
        };
        let seen = |client, name: &[u8], range, mode, pending| {
            let mut names = OWNERS.iter();
            let name = names.position(|it| it.as_bytes() == name);
            let name = name.ok_or("bytes of a stranger")?;
            let who = who(client)?;
            let cells = Cells::of(range);
            let cells = cells.ok_or_else(|| format!("nobody locked just {range:?}"))?;
            let owner = RangeOwner { who, name };
            Ok::<Seen, String>(Seen {
                owner,
                cells,
                mode,
                pending,
            })
        };
        let mut resources = Vec::new();
        let mut parked = BTreeSet::new();
        let mut known = 0;
        for name in &plan.ranges.resources {
            let Some(it) = view.ranges(name) else {
                resources.push(SeenResource::default());
                continue;
            };
            known += 1;
            let held = it
                .held()
                .map(|it| seen(it.client, it.owner, it.range, it.mode, it.pending));
            let waiting = it
                .waiting()
                .map(|it| seen(it.client, it.owner, it.range, it.mode, it.pending));
            let resource = SeenResource {
                held: held.collect::<Result<_, _>>()?,
                waiting: waiting.collect::<Result<_, _>>()?,
            };
            let grants = || it.held().map(|it| it.grant.unwrap_or_default());
            let ids: BTreeSet<u64> = grants().map(|it| it.id).collect();
            if ids.len() != resource.held.len() {
                return Err(format!("two range locks have one number: {ids:?}"));
            }
            let epochs: Vec<u64> = grants().map(|it| it.epoch).collect();
            resource.check(&epochs)?;
            for (waits, conn) in resource.waiting.iter().zip(it.waiting_on()) {
                let conn = life.by_serial.get(&conn.serial).copied();
                parked.insert((conn.unwrap_or_default(), waits.owner));
            }
            resources.push(resource);
        }
        let counts = view.range_counts();
        let locks: usize = resources.iter().map(|it| it.held.len()).sum();
        let waiting: usize = resources.iter().map(|it| it.waiting.len()).sum();
        if (counts.resources, counts.locks, counts.waiting) != (known, locks, waiting) {
            return Err(format!(
                "{counts:?}, not {known}, {locks} and {waiting} of ranges"
            ));
        }
        let index = |id: &str| plan.ranges.ids.iter().position(|it| *it == id);
        let conns = life.connections.iter().filter_map(|(&number, conn)| {
            let is_one = conn.client >= plan.clients;
            let attached = view.conn(conn.id.filter(|_| is_one)?).client;
            // The server may have forgotten one that has left.
            let is_known = attached.is_some() || !conn.ended && !conn.has_left();
            is_known.then(|| (number, attached.and_then(index)))
        });
        let clients = view.clients().filter_map(|it| {
            let (conns, ttl) = (it.connections, it.ttl);
            Some((index(it.id)?, SeenClient { conns, ttl }))
        });
        let seen = Self {
            turn,
            span,
            resources,
            conns: conns.collect(),
            serials: serials.into_inner(),
            clients: clients.collect(),
            parked,
            grace: view.grace(),
        };
        seen.check()?;
        Ok(seen)
    }

    /// Nobody waits twice, and whoever has something is there.
    fn check(&self) -> Result<(), String> {
        let mut waiting = BTreeSet::new();
        for it in self.resources.iter().flat_map(|it| &it.waiting) {
            if !waiting.insert(it.owner) {
                return Err(format!("{:?} waits twice", it.owner));
            }
        }
        for it in self.resources.iter().flat_map(|it| &it.held) {
            if let Who::Client(id) = it.owner.who
                && !self.clients.contains_key(&id)
            {
                return Err(format!("{it:?} is of a client that is forgotten"));
            }
            if it.pending && self.grace.left == Millis::ZERO {
                return Err(format!("{it:?} is pending without a grace period"));
            }
        }
        Ok(())
    }

    /// For whom a connection asks.
    pub(crate) fn who(&self, conn: u32) -> Option<Who> {
        let attached = self.conns.get(&conn)?;
        Some(attached.map_or(Who::Conn(conn), Who::Client))
    }

    /// Whether the client holds or waits for something.
    pub(crate) fn has_something(&self, who: Who) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|at| {
            let mut all = at.held.iter().chain(&at.waiting);
            all.any(|it| it.owner.who == who)
        })
    }

    /// Whether the client has something to have back.
    pub(crate) fn has_pending(&self, id: usize) -> bool {
        let mut held = self.resources.iter().flat_map(|it| &it.held);
        held.any(|it| it.pending && it.owner.who == Who::Client(id))
    }

    /// What the owner waits for.
    pub(crate) fn wait_of(&self, owner: RangeOwner) -> Option<(usize, &Seen)> {
        let resources = self.resources.iter().enumerate();
        let mut all = resources.flat_map(|(at, it)| it.waiting.iter().map(move |it| (at, it)));
        all.find(|(_, it)| it.owner == owner)
    }

    /// Whether a wait of this owner keeps the party from going on: its own does, and a connection cannot let
    /// go of what it held before it attached while it waits for its client.
    fn keeps(&self, owner: RangeOwner, kept: RangeOwner) -> bool {
        party(owner) == kept
            || matches!(kept.who, Who::Conn(conn) if self.parked.contains(&(conn, owner)))
    }

    /// Whether the owner would wait for itself if it waited for this: everybody who waits, waits for all
    /// that hold some of its bytes. The connection that it waits on is among the parked.
    pub(crate) fn would_deadlock(&self, at: usize, wanted: &Seen, counts_queue: bool) -> bool {
        let mut to_visit = self.blockers(at, wanted, counts_queue);
        let mut visited = BTreeSet::new();
        while let Some(kept) = to_visit.pop() {
            if self.keeps(wanted.owner, kept) {
                return true;
            }
            if !visited.insert(kept) {
                continue;
            }
            for (at, it) in self.resources.iter().enumerate() {
                for waiter in it.waiting.iter().filter(|it| self.keeps(it.owner, kept)) {
                    to_visit.extend(self.blockers(at, waiter, counts_queue));
                }
            }
        }
        false
    }

    /// Those for whom this waits, or would.
    fn blockers(&self, at: usize, wanted: &Seen, counts_queue: bool) -> Vec<RangeOwner> {
        let it = &self.resources[at];
        let holders = it.in_the_way(wanted).map(|it| party(it.owner));
        let queue = it.waiting.iter().take_while(|it| *it != wanted);
        let queue = queue.filter(|it| counts_queue && it.excludes(wanted));
        holders.chain(queue.map(|it| party(it.owner))).collect()
    }
}

/// Who is kept waiting together: a connection that is its own client is one, whatever names it gives.
fn party(owner: RangeOwner) -> RangeOwner {
    match owner.who {
        Who::Client(_) => owner,
        Who::Conn(_) => RangeOwner { name: 0, ..owner },
    }
}
