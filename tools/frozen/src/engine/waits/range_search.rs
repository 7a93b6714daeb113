//! Waits for bytes, in a search for a deadlock.
//!
//! A wait for bytes can end if everybody gets on who holds some of them in a way that excludes it. The
//! order of the queue is not counted, because it gives way rather than keep somebody waiting for itself
//! (`ranges/barging.rs`); only to find out whether it has to, those before the one who asks count, and
//! those before all others, too. Each wait is a subject of its own here, with one who waits: the holders
//! of its bytes are looked at one by one, and the walk over them can be interrupted.

use super::search::{ASKER, Gathered, Role, Search, Subject, Verdict};
use super::{Asked, AskedFor, AskedRange, Live, Party, STEPS_MIN, party_of_conn, party_of_ranges};
use crate::base::Nanos;
use crate::engine::arena::NONE;
use crate::engine::conn::Asker;
use crate::engine::ctx::{Core, Ctx};
use crate::engine::lock::Locks;
use crate::engine::owner::OwnerIndex;
use crate::engine::queue::{Awaiting, Waiter};
use crate::engine::ranges::RangeWant;
use crate::engine::types::{Refusal, Reply};
use crate::engine::work;
use crate::segments::Position;

/// Most places that a search for whom the order of a queue keeps waiting remembers, of 40 bytes each: as many as
/// there are if some 2,000 in one queue want the same bytes. A search that needs more is given up.
const PLACES_MAX: usize = 2_000_000;

/// How many in a queue are compared with what is wanted in one step: most are not in the way.
const COMPARED_PER_STEP: u64 = work::FOLLOW / work::COMPARE;

/// Those who are before a wait for bytes, as far as they are still to be looked at.
#[derive(Clone, Copy)]
pub(super) struct Blockers {
    range: AskedRange,
    /// Where the walk over the conflicts has got to; none if it is over.
    position: Option<Position>,
    /// The next one in the queue, if the queue counts.
    next_waiter: u32,
}

/// A search for whether somebody waits for itself only because of the order of its queue. If there are very
/// many in the queue it takes several pieces.
pub(super) struct OfOrder {
    waiter: u32,
    /// Of the waiter, whose index another may have by now.
    since: Nanos,
    /// How often it has begun, and what [`Locks::endings`] was then.
    tries: u32,
    endings: u64,
    search: Search,
}

impl OfOrder {
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.search.memory()
    }
}

impl Search {
    pub(super) fn gather_range(&mut self, subject: Subject, range: AskedRange) {
        if self.find_key(subject).is_some() {
            return;
        }
        let mut gathered = Gathered::new(subject);
        gathered.blockers = Some(Blockers {
            range,
            position: Some(Position::START),
            next_waiter: NONE,
        });
        gathered.next_holder = 0; // not `NONE`, because not all holders are known
        gathered.is_listed = true;
        let key = self.add_key(gathered);
        self.to_gather.push(key);
    }

    /// Looks at one more who is before a wait for bytes.
    pub(super) fn gather_blocker(&mut self, live: &Live<'_>, key: u32) {
        let Some(mut it) = self.keys[key as usize].blockers else {
            return self.finish_gathering(key);
        };
        let AskedRange {
            resource,
            holding,
            wants,
            waiter,
        } = it.range;
        let at = live.locks.ranges.resource(resource);
        if let Some(position) = it.position {
            let mut rest = at
                .segments
                .conflicts_from(position, holding, wants.range, wants.mode);
            let found = rest.next();
            it.position = found.map(|_| rest.position());
            // Whoever has some of the bytes does not stand behind others.
            let converts = || {
                let mut own = at.segments.of_owner_overlapping(holding, wants.range);
                holding != NONE && own.next().is_some()
            };
            if found.is_none() && self.counts_queue() && !converts() {
                it.next_waiter = at.queue.head().unwrap_or(NONE);
            }
            self.keys[key as usize].blockers = Some(it);
            if let Some((holding, _)) = found {
                let owner = live.locks.ranges.holding(holding).owner;
                self.keep_waiting(live, key, owner);
            }
        } else if it.next_waiter != NONE && it.next_waiter != waiter {
            let mut found = NONE;
            for _ in 0..COMPARED_PER_STEP {
                let before = it.next_waiter;
                it.next_waiter = live.waiter_after(before).unwrap_or(NONE);
                if live.locks.blocks_range(live.core, before, &wants) {
                    found = before;
                    break;
                } else if it.next_waiter == NONE || it.next_waiter == waiter {
                    break;
                }
            }
            self.keys[key as usize].blockers = Some(it);
            if found != NONE {
                let owner = live.locks.waited_range(live.core, found).1.owner;
                self.keep_waiting(live, key, owner);
            }
        } else {
            self.keys[key as usize].blockers = None;
            self.keys[key as usize].next_holder = NONE;
            // This may push keys to `to_gather`; the next call for this key pops it.
            self.stand_for_range(live, key, waiter);
        }
    }

    /// Whether the order of queues counts.
    fn counts_queue(&self) -> bool {
        matches!(
            self.asked.what,
            AskedFor::Range {
                counts_queue: true,
                ..
            }
        )
    }

    /// An owner of ranges is before a wait for bytes, and that matters as long as it is stuck.
    fn keep_waiting(&mut self, live: &Live<'_>, key: u32, owner: u32) {
        let node = self.node(live, live.party_of_ranges(owner));
        let last = self.keys[key as usize].holders;
        let is_known = last != NONE && self.places[last as usize].node == node;
        if !self.nodes[node as usize].gets_on && !is_known {
            self.hold(key, node);
        }
    }

    fn stand_for_range(&mut self, live: &Live<'_>, key: u32, waiter: u32) {
        let is_asked = self.keys[key as usize].subject == Subject::Asked;
        let node = match is_asked {
            true => ASKER,
            false => {
                let owner = live.locks.waited_range(live.core, waiter).1.owner;
                self.node(live, live.party_of_ranges(owner))
            }
        };
        let place = self.stand(key, node, Role::Write, true);
        match is_asked {
            true => self.asked_place = place,
            false => self.stand_with(live, place, waiter),
        }
    }
}

impl Live<'_> {
    /// The bytes that a waiter wants, if it wants some.
    pub(super) fn range_of(&self, waiter: u32) -> Option<AskedRange> {
        let Awaiting::Range(_) = self.core.waiters[waiter].awaiting else {
            return None;
        };
        let (resource, wants) = self.locks.waited_range(self.core, waiter);
        Some(AskedRange {
            resource,
            holding: self.locks.ranges.holding_of(wants.owner, resource),
            wants,
            waiter,
        })
    }

    /// What somebody who waits already would have asked.
    pub(super) fn asked_of(&self, waiter: u32) -> Asked {
        let conn = party_of_conn(self.core, self.core.waiters[waiter].conn);
        match self.range_of(waiter) {
            Some(range) => Asked {
                party: self.party_of_ranges(range.wants.owner),
                conn,
                what: AskedFor::Range {
                    range,
                    counts_queue: false,
                },
                waiter,
            },
            None => Asked {
                party: Party::Owner(self.core.waiters[waiter].owner),
                conn,
                what: AskedFor::Key {
                    resource: self.core.waiters[waiter].subject,
                    hold: self.entry(waiter).1,
                },
                waiter,
            },
        }
    }
}

impl Locks {
    /// Whether the owner may wait for these bytes; none if that could not be found out at once.
    pub(in crate::engine) fn may_wait_for_range(
        &self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        range: AskedRange,
        counts_queue: bool,
    ) -> Option<bool> {
        if !self.may_be_waited_for(cx.core, asker.owner) {
            return Some(true);
        }
        let conn = party_of_conn(cx.core, asker.conn);
        let party = match range.wants.owner {
            NONE => Party::Owner(asker.owner),
            owner => party_of_ranges(cx.core, &self.ranges, owner),
        };
        let waiter = range.waiter;
        let what = AskedFor::Range {
            range,
            counts_queue,
        };
        let asked = Asked {
            party,
            conn,
            what,
            waiter,
        };
        let verdict = self.search_at_once(cx, asked);
        verdict.map(|it| it == Verdict::MayWait)
    }

    /// Whether somebody may wait for this client or connection: not if it has nothing, other than in the
    /// order of a queue of bytes. A connection of a client may have something of its own, too.
    pub(in crate::engine) fn may_be_waited_for(&self, core: &Core, client: OwnerIndex) -> bool {
        let it = &core.owners[client];
        it.client != NONE
            || !it.holds.is_empty()
            || !it.tickets.is_empty()
            || self.ranges.segments_of(client) > 0
    }

    /// An owner was granted these bytes. If its client waits for something else meanwhile, on another
    /// connection, those whom it keeps waiting from now on may wait for themselves: they are looked at.
    pub(in crate::engine) fn look_at_those_kept_waiting(
        &mut self,
        cx: &mut Ctx<'_>,
        resource: u32,
        granted: RangeWant,
    ) {
        let it = self.ranges.owner(granted.owner);
        // Everybody else waits for one thing at a time, and does not wait any more.
        if cx.core.owners[it.client].client == NONE || !it.name.is_empty() {
            return;
        }
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.moment,
        };
        let party = live.party_of_ranges(granted.owner);
        if live.waits_of(party).next().is_none() {
            return;
        }
        let queue = &self.ranges.resource(resource).queue;
        let kept = queue.iter(&cx.core.waiters);
        let kept = kept.filter(|&it| self.blocks_range(cx.core, it, &granted));
        let kept: Vec<u32> = kept.collect();
        let looks = queue.len() + live.looks_at_waits(party);
        cx.core.work.charge_each(looks, work::LOOK);
        for waiter in kept {
            self.look_later(cx, waiter);
        }
    }

    /// Whether somebody whom only the order of its queue keeps waiting waits for itself; none if the search
    /// is not over: then it goes on with the next call for the same one.
    pub(in crate::engine) fn is_kept_by_order(
        &mut self,
        cx: &mut Ctx<'_>,
        range: AskedRange,
    ) -> Option<bool> {
        let (waiter, endings) = (range.waiter, self.endings(cx));
        let Waiter { owner, since, .. } = cx.core.waiters[waiter];
        let begun = self.waits.of_order.take();
        let begun = begun.filter(|it| (it.waiter, it.since) == (waiter, since));
        if !self.may_be_waited_for(cx.core, owner) {
            return Some(false);
        }
        let limits = cx.core.rules.search_limits;
        let live = Live {
            locks: self,
            core: cx.core,
            moment: cx.moment,
        };
        let mut it = match begun {
            Some(it) if it.endings == endings => it,
            Some(it) if it.tries == limits.tries_max => {
                cx.core.figures.search_given_up();
                return Some(false);
            }
            before => {
                let what = AskedFor::Range {
                    range,
                    counts_queue: true,
                };
                let asked = live.asked_of(waiter);
                Box::new(OfOrder {
                    waiter,
                    since,
                    tries: 1 + before.map_or(0, |it| it.tries),
                    endings,
                    search: Search::new(&live, Asked { what, ..asked }),
                })
            }
        };
        let steps = (limits.at_once_work / work::FOLLOW).max(STEPS_MIN);
        let mut left = steps;
        let verdict = it.search.go_on(&live, &mut left);
        cx.core.work.charge((steps - left) * work::FOLLOW);
        if verdict.is_none() && it.search.places.len() > PLACES_MAX {
            cx.core.figures.search_given_up();
            return Some(false);
        } else if verdict.is_none() {
            self.waits.of_order = Some(it);
        }
        verdict.map(|it| it == Verdict::Deadlock)
    }

    /// Nobody is kept waiting by the order of a queue, so nothing is looked for.
    pub(in crate::engine) fn end_search_of_order(&mut self) {
        self.waits.of_order = None;
    }

    /// Whether somebody who waits would certainly wait for itself.
    pub(in crate::engine) fn range_would_deadlock(
        &self,
        cx: &mut Ctx<'_>,
        range: AskedRange,
        counts_queue: bool,
    ) -> bool {
        let Waiter { conn, owner, .. } = cx.core.waiters[range.waiter];
        let asker = Asker { conn, owner };
        self.may_wait_for_range(cx, asker, range, counts_queue) == Some(false)
    }

    /// A command that is parked already waits for itself.
    pub(super) fn refuse_parked_range(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let resource = cx.core.waiters[waiter].subject;
        let key = self.ranges.resource(resource).key.clone();
        let about = cx.begin(|| Some(key.as_bytes()));
        self.end_range_wait(cx, waiter, Reply::Refused(Refusal::Deadlock));
        self.serve_ranges(cx, resource);
        cx.finish(about);
    }
}
