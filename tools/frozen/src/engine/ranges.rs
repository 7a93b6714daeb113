//! Byte ranges: who has locked which bytes of which resource, and who waits for some.
//!
//! A resource has a name of its own, beside those of locks, and is there while somebody holds or wants
//! some of its bytes. Its segments are under POSIX rules (`crate::segments`): an owner has each byte at
//! most once, and locking it again changes how. An *owner* here is a client together with a name that
//! the client chose, compared as a pair. Range locks have no lease: they last as long as their client,
//! which for a connection that has not attached is the connection itself.
//!
//! Data only. What is granted is decided in `ranges/decide.rs`, who of those that wait comes next in
//! `ranges/queue.rs`, what goes with a client in `ranges/leaving.rs`, and what a restart brings back in
//! `ranges/grace.rs`. Requests that would wait for themselves are found in `waits.rs`.

mod barging;
mod decide;
pub(super) mod figures;
pub(super) mod grace;
mod leaving;
mod queue;
pub(super) mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::figures::RangeFigures;
use self::grace::Grace;
use self::leaving::RangeBreak;
pub(super) use self::leaving::RecordingRanges;
use self::queue::ToServe;
use super::arena::{Arena, Chain, Link, Linked, NONE, Stored};
use super::ctx::{Core, Ctx};
use super::owner::{OwnerIndex, Owners};
use super::queue::Queue;
use super::shares::Shares;
use super::types::{ByteRange, Sharing};
use crate::base::Nanos;
use crate::key::Key;
use crate::keymap::KeyMap;
use crate::segments::{Grants, RangeGrant, Segment, Segments};
use crate::timers::TimerId;

/// A resource that somebody holds or wants some bytes of.
pub(super) struct Resource {
    pub(super) key: Key,
    hash: u32,
    /// Whose they are is the index of a [`Holding`].
    pub(super) segments: Segments,
    pub(super) queue: Queue,
    /// Some in the queue are still to be looked at.
    to_serve: Option<ToServe>,
    /// How many operators' breaks of it are not finished. Until they are, nothing is granted.
    breaks: u32,
    /// The number of the share that its name belongs to.
    share: u8,
}

impl Stored for Resource {
    fn heap_bytes(&self) -> usize {
        self.key.heap_bytes() + self.segments.memory()
    }
}

/// Whoever a client locks for. It is there while it holds or waits for something.
pub(super) struct RangeOwner {
    /// The client, or the connection that is its own.
    pub(super) client: OwnerIndex,
    /// Empty for the client itself.
    pub(super) name: Key,
    hash: u32,
    holdings: Chain<HoldingsOfOwner>,
    /// Where it waits, or `NONE`: an owner waits for one thing at a time.
    pub(super) waiter: u32,
    link: Link,
}

/// The chain of the owners of one client.
pub(super) struct OwnersOfClient;

/// The chain of what one owner holds, by resource.
pub(super) struct HoldingsOfOwner;

impl Stored for RangeOwner {
    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

impl Linked<OwnersOfClient> for RangeOwner {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// That an owner holds bytes of a resource. Its index is the owner's number in the segments.
pub(super) struct Holding {
    pub(super) owner: u32,
    pub(super) resource: u32,
    /// How many segments it has.
    segments: u32,
    /// How many of them were held before a restart and were not had back yet.
    pending: u32,
    link: Link,
}

impl Stored for Holding {}

impl Linked<HoldingsOfOwner> for Holding {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What a waiter wants.
#[derive(Clone, Copy)]
pub(super) struct RangeWant {
    pub(super) owner: u32,
    pub(super) range: ByteRange,
    pub(super) mode: Sharing,
}

impl Stored for RangeWant {}

impl RangeWant {
    /// Whether the two cannot be held at the same time.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.mode.excludes(other.mode)
            && self.range.overlaps(other.range)
    }
}

/// What is counted for each client that holds or wants some bytes.
#[derive(Default)]
struct ClientRanges {
    owners: Chain<OwnersOfClient>,
    segments: u32,
    /// How many of them were held before a restart and were not had back yet.
    pending: u32,
    /// Those are kept until then: for the grace period, or for the client's time to live if that is longer.
    kept_until: Nanos,
    /// Runs while they are kept for longer than the grace period.
    timer: Option<TimerId>,
}

/// About what one of those takes in its tree, whose nodes are about half full.
const CLIENT_BYTES: usize = 2 * size_of::<(u32, ClientRanges)>();

/// All resources, owners and waits.
pub(super) struct Ranges {
    resources: Arena<Resource>,
    by_name: KeyMap,
    owners: Arena<RangeOwner>,
    by_owner: KeyMap,
    holdings: Arena<Holding>,
    by_pair: KeyMap,
    pub(super) wants: Arena<RangeWant>,
    /// By the index of the client as an owner of locks.
    clients: BTreeMap<u32, ClientRanges>,
    segments: usize,
    /// How many of them are shared.
    shared: usize,
    /// How many wait for bytes, by how they want them.
    waiting: [usize; 2],
    /// Resources with queues that are still to be looked at, without those that an operator breaks. They
    /// take turns.
    unserved: VecDeque<u32>,
    /// Waiters for whom only others in the queue are in the way, and who hold something: see
    /// `barging.rs`.
    behind: BTreeSet<u32>,
    /// Runs while there are such waiters.
    barging: Option<TimerId>,
    /// They are not looked at before this, and then from this one on.
    barging_pause: Nanos,
    barging_from: u32,
    breaking: VecDeque<RangeBreak>,
    /// How many of them are of clients. Until they are finished, nothing is granted of any resource.
    client_breaks: u32,
    /// How often anything was granted, released or left: a search for a deadlock that has been
    /// interrupted begins anew if this has changed.
    pub(super) changes: u64,
    pub(super) figures: RangeFigures,
    pub(super) grace: Grace,
    grants: Grants,
}

impl Ranges {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            resources: Arena::new(),
            by_name: KeyMap::new(seed),
            owners: Arena::new(),
            by_owner: KeyMap::new(seed),
            holdings: Arena::new(),
            by_pair: KeyMap::new(seed),
            wants: Arena::new(),
            clients: BTreeMap::new(),
            segments: 0,
            shared: 0,
            waiting: [0; 2],
            unserved: VecDeque::new(),
            behind: BTreeSet::new(),
            barging: None,
            barging_pause: Nanos(0),
            barging_from: 0,
            breaking: VecDeque::new(),
            client_breaks: 0,
            changes: 0,
            figures: RangeFigures::default(),
            grace: Grace::default(),
            grants: Grants::default(),
        }
    }

    pub(super) fn resource(&self, resource: u32) -> &Resource {
        &self.resources[resource]
    }

    pub(super) fn owner(&self, owner: u32) -> &RangeOwner {
        &self.owners[owner]
    }

    pub(super) fn holding(&self, holding: u32) -> &Holding {
        &self.holdings[holding]
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        if self.resources.is_empty() {
            return None;
        }
        let is_it = |resource| self.resources[resource].key.as_bytes() == name;
        self.by_name.find(self.by_name.hash(name), is_it)
    }

    fn find_or_insert(&mut self, shares: &Shares, name: &[u8]) -> u32 {
        self.find(name).unwrap_or_else(|| {
            let hash = self.by_name.hash(name);
            let resource = self.resources.insert(Resource {
                key: name.into(),
                hash,
                segments: Segments::new(),
                queue: Queue::new(),
                to_serve: None,
                breaks: 0,
                share: shares.of_name(name),
            });
            self.by_name.insert(hash, resource);
            resource
        })
    }

    /// Forgets a resource that no owner holds or wants anything of, and no operator breaks.
    fn forget_if_unused(&mut self, resource: u32) {
        let it = &self.resources[resource];
        if it.segments.is_empty() && it.queue.is_empty() && it.breaks == 0 {
            let gone = self.resources.remove(resource);
            self.by_name.remove(gone.hash, resource);
            if gone.to_serve.is_some() {
                self.unserved.retain(|&it| it != resource);
            }
        }
    }

    pub(super) fn find_owner(&self, client: OwnerIndex, name: &[u8]) -> Option<u32> {
        if self.owners.is_empty() {
            return None;
        }
        let is_it = |owner| {
            let it: &RangeOwner = &self.owners[owner];
            it.client == client && it.name.as_bytes() == name
        };
        self.by_owner.find(self.owner_hash(client, name), is_it)
    }

    fn owner_hash(&self, client: OwnerIndex, name: &[u8]) -> u32 {
        self.by_owner.hash(name) ^ spread(client.0.into())
    }

    fn find_or_insert_owner(
        &mut self,
        owners: &mut Owners,
        client: OwnerIndex,
        name: &[u8],
    ) -> u32 {
        self.find_owner(client, name).unwrap_or_else(|| {
            let hash = self.owner_hash(client, name);
            let owner = self.owners.insert(RangeOwner {
                client,
                name: name.into(),
                hash,
                holdings: Chain::new(),
                waiter: NONE,
                link: Link::OUT,
            });
            self.by_owner.insert(hash, owner);
            let of_client = self.clients.entry(client.0).or_default();
            of_client.owners.push_back(&mut self.owners, owner);
            owners[client].has_ranges = true;
            owner
        })
    }

    /// Forgets an owner that neither holds nor wants anything.
    fn forget_owner_if_unused(&mut self, owners: &mut Owners, owner: u32) {
        let it = &self.owners[owner];
        if !it.holdings.is_empty() || it.waiter != NONE {
            return;
        }
        let client = it.client;
        let of_client = self.clients.get_mut(&client.0);
        let of_client = of_client.expect("a client has owners");
        of_client.owners.unlink(&mut self.owners, owner);
        if of_client.owners.is_empty() {
            assert_eq!(of_client.segments, 0, "segments of a client are miscounted");
            self.clients.remove(&client.0);
            owners[client].has_ranges = false;
        }
        let gone = self.owners.remove(owner);
        self.by_owner.remove(gone.hash, owner);
    }

    /// What the owner holds of the resource, or `NONE`.
    pub(super) fn holding_of(&self, owner: u32, resource: u32) -> u32 {
        let is_it = |holding| {
            let it: &Holding = &self.holdings[holding];
            (it.owner, it.resource) == (owner, resource)
        };
        self.by_pair
            .find(pair_hash(owner, resource), is_it)
            .unwrap_or(NONE)
    }

    fn find_or_insert_holding(&mut self, owner: u32, resource: u32) -> u32 {
        match self.holding_of(owner, resource) {
            NONE => {
                let holding = self.holdings.insert(Holding {
                    owner,
                    resource,
                    segments: 0,
                    pending: 0,
                    link: Link::OUT,
                });
                self.by_pair.insert(pair_hash(owner, resource), holding);
                let holdings = &mut self.owners[owner].holdings;
                holdings.push_back(&mut self.holdings, holding);
                holding
            }
            holding => holding,
        }
    }

    /// A grant that is made now, with a number above all of earlier lives.
    fn new_grant(&mut self, cx: &Ctx<'_>) -> RangeGrant {
        RangeGrant {
            id: self.grants.next_id(cx.core.fences.start()),
            since: cx.core.day_ns(cx.now),
            epoch: cx.core.rules.epoch,
        }
    }

    /// The grant that a segment comes from.
    fn recorded(&self, core: &Core, segment: &Segment) -> RangeGrant {
        let epoch = self.grants.epoch_of(segment.life);
        RangeGrant {
            id: segment.id,
            since: segment.since,
            epoch: epoch.unwrap_or(core.rules.epoch),
        }
    }

    /// Changes what the holding has of its resource, and counts what came of it. Returns how many segments
    /// were touched.
    fn change(
        &mut self,
        shares: &mut Shares,
        holding: u32,
        change: impl FnOnce(&mut Segments) -> u32,
    ) -> u32 {
        let Holding {
            owner, resource, ..
        } = self.holdings[holding];
        let counts = |it: &Segments| (it.len(), it.len_of(Sharing::Shared));
        let (before, shared_before) = counts(&self.resources[resource].segments);
        let touched = self
            .resources
            .change(resource, |it| change(&mut it.segments));
        let (after, shared_after) = counts(&self.resources[resource].segments);
        let client = self.owners[owner].client;
        let of_client = self.clients.get_mut(&client.0);
        let of_client = of_client.expect("a client has what its owners hold");
        of_client.segments = (of_client.segments as usize + after - before) as u32;
        let of_holding = &mut self.holdings[holding].segments;
        *of_holding = (*of_holding as usize + after - before) as u32;
        self.segments = self.segments + after - before;
        self.shared = self.shared + shared_after - shared_before;
        let share = self.resources[resource].share;
        let shared = [shared_before, shared_after];
        let exclusive = [before - shared_before, after - shared_after];
        shares.held(share, Sharing::Shared.into(), shared);
        shares.held(share, Sharing::Exclusive.into(), exclusive);
        self.changes += u64::from(touched > 0);
        touched
    }

    /// Gives the resource in this slot, or in the next one that has a resource, the number of its share.
    /// Returns the slot.
    pub(super) fn share_again(&mut self, slot: u32, shares: &mut Shares) -> Option<u32> {
        let (slot, it) = self.resources.slots_from(slot).next()?;
        if let Some(it) = it {
            let share = shares.of_name(it.key.as_bytes());
            for mode in [Sharing::Shared, Sharing::Exclusive] {
                let held = it.segments.len_of(mode);
                shares.held(it.share, mode.into(), [held, 0]);
                shares.held(share, mode.into(), [0, held]);
            }
            self.resources[slot].share = share;
        }
        Some(slot)
    }

    /// Each resource with its share and how many are held of it, shared and exclusive; for checks.
    pub(super) fn shares_of_resources(&self) -> impl Iterator<Item = (&Key, u8, [usize; 2])> {
        self.resources.iter().map(|(_, it)| {
            let held = [Sharing::Shared, Sharing::Exclusive].map(|mode| it.segments.len_of(mode));
            (&it.key, it.share, held)
        })
    }

    /// Forgets a holding without segments, and its owner and resource if nothing is left of them.
    fn forget_holding_if_empty(&mut self, owners: &mut Owners, holding: u32) {
        let Holding {
            owner,
            resource,
            segments,
            ..
        } = self.holdings[holding];
        if segments == 0 {
            let holdings = &mut self.owners[owner].holdings;
            holdings.unlink(&mut self.holdings, holding);
            self.holdings.remove(holding);
            self.by_pair.remove(pair_hash(owner, resource), holding);
            self.forget_owner_if_unused(owners, owner);
        }
    }

    /// How many segments the client has, all together.
    pub(super) fn segments_of(&self, client: OwnerIndex) -> u32 {
        self.clients.get(&client.0).map_or(0, |it| it.segments)
    }

    /// How many segments there are.
    pub(super) fn segment_count(&self) -> usize {
        self.segments
    }

    pub(super) fn memory(&self) -> usize {
        self.resources.memory()
            + self.by_name.memory()
            + self.owners.memory()
            + self.by_owner.memory()
            + self.holdings.memory()
            + self.by_pair.memory()
            + self.wants.memory()
            + self.clients.len() * CLIENT_BYTES
            + self.unserved.capacity() * size_of::<u32>()
            + self.behind.len() * 2 * size_of::<u32>()
            + self.breaking_memory()
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.resources.tidy() || self.owners.tidy() || self.holdings.tidy() || self.wants.tidy()
    }

    /// How many of the timers in the background are for ranges; for checks.
    pub(super) fn timers(&self) -> usize {
        let longer = self.clients.values().filter(|it| it.timer.is_some());
        usize::from(self.barging.is_some()) + usize::from(self.grace.is_armed()) + longer.count()
    }
}

/// We choose these numbers and not the clients, so one multiplication spreads them well enough.
fn spread(number: u64) -> u32 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn pair_hash(owner: u32, resource: u32) -> u32 {
    spread(u64::from(owner) << 32 | u64::from(resource))
}

impl Core {
    /// The time of day at this instant, in nanoseconds since 1970: segments outlive the engine's clock.
    fn day_ns(&self, now: Nanos) -> u64 {
        self.rules.zero_ns.saturating_add(now.0)
    }
}
