//! Owners that are known by a name and not by a connection, and what they asked for.
//!
//! A client without a lasting connection (HTTP) says its name with every request. What it is granted
//! belongs to the name: it outlives the connection that asked, and only a release, its lease or an
//! operator ends it. Only the wait belongs to the connection: whoever hangs up leaves the queue. An
//! owner of this kind is there while it holds or waits for something.
//!
//! A request may have an id. If the same owner asks for the same key in the same mode with the same
//! id again, the answer is the grant that is still held, or the place in the queue passes to the
//! connection that asked last: a lost answer costs no lease. The server puts the asker into the id, so
//! a request with the same id from another token or peer is a different request.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use super::arena::{Arena, NONE, Stored};
use super::conn::Asker;
use super::ctx::{Core, Ctx};
use super::holder::Held;
use super::lock::Locks;
use super::owner::{Owner, OwnerIndex};
use super::table::Kind;
use super::types::{By, Effect, Effects, Mode, Refusal, Reply, Request};
use crate::base::{ConnId, Millis, Nanos, Token};
use crate::keymap::KeyMap;
use crate::memory::block_bytes;

/// About what it takes to know that an owner is stalled; its name has up to so many bytes.
const STALLED_BYTES: usize = 256;

/// What a named owner has asked for and waits for or holds.
struct Ask {
    owner: OwnerIndex,
    resource: u32,
    place: Place,
    /// The id of the request, empty if it had none.
    request: Box<[u8]>,
}

impl Stored for Ask {
    fn heap_bytes(&self) -> usize {
        match self.request.len() {
            0 => 0,
            len => block_bytes(len),
        }
    }
}

/// Where it has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiter(u32),
    Holder(u32),
}

impl Place {
    /// We choose these numbers and not the clients, so one multiplication spreads them well enough.
    fn hash(self) -> u32 {
        let (Self::Waiter(index) | Self::Holder(index)) = self;
        let number = u64::from(index) << 1 | u64::from(matches!(self, Self::Holder(_)));
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// What became of a request that names an owner.
enum Decided {
    /// It was decided, or put off.
    Done,
    /// It is about nothing that an owner can have, so the connection asks for itself.
    OfConnection,
    /// It needs room in the store, which is full.
    LacksRoom,
}

/// Everything that named owners wait for and hold.
pub(super) struct Asks {
    asks: Arena<Ask>,
    by_place: KeyMap,
    /// Only requests with an id.
    by_request: KeyMap,
    /// The owner and the waiter of those that wait.
    waiting: BTreeSet<(u32, u32)>,
    /// Owners with renewals that wait for the disk, how many, and since when: no more than there are
    /// connections.
    stalled: BTreeMap<Box<str>, (u32, Nanos)>,
}

/// What one that waits takes in that set, whose nodes are about half full.
const WAITING_BYTES: usize = 24;

impl Asks {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            asks: Arena::new(),
            by_place: KeyMap::new(seed),
            by_request: KeyMap::new(seed),
            waiting: BTreeSet::new(),
            stalled: BTreeMap::new(),
        }
    }

    pub(super) fn memory(&self) -> usize {
        let stalled = self.stalled.len() * STALLED_BYTES;
        let waiting = self.waiting.len() * WAITING_BYTES;
        let maps = self.by_place.memory() + self.by_request.memory();
        self.asks.memory() + maps + stalled + waiting
    }

    #[cold]
    pub(super) fn set_stalled(&mut self, now: Nanos, name: &str, is_stalled: bool) {
        let (count, since) = self.stalled.get(name).copied().unwrap_or((0, now));
        match (count, is_stalled) {
            (0 | 1, false) => _ = self.stalled.remove(name),
            (_, false) => _ = self.stalled.insert(name.into(), (count - 1, since)),
            (_, true) => _ = self.stalled.insert(name.into(), (count + 1, since)),
        }
    }

    /// Since when renewals of this owner wait for the disk, if some do.
    #[cold]
    pub(super) fn stalled_since(&self, owner: &Owner) -> Option<Nanos> {
        let (_, since) = self.stalled.get(owner.name.as_deref()?)?;
        Some(*since)
    }

    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.asks.tidy()
    }

    /// Checks what is counted; for tests and the simulator.
    pub(super) fn check(&self) {
        self.asks.check();
        assert_eq!(self.by_place.len(), self.asks.len());
        let waits = |ask: &Ask| matches!(ask.place, Place::Waiter(_));
        let waiting = self.asks.iter().filter(|(_, it)| waits(it)).count();
        assert_eq!(self.waiting.len(), waiting, "who waits is miscounted");
    }

    fn insert(&mut self, owner: OwnerIndex, resource: u32, place: Place, request: &[u8]) {
        let ask = self.asks.insert(Ask {
            owner,
            resource,
            place,
            request: request.into(),
        });
        self.by_place.insert(place.hash(), ask);
        if let Place::Waiter(waiter) = place {
            self.waiting.insert((owner.0, waiter));
        }
        if !request.is_empty() {
            self.by_request
                .insert(self.hash(owner, resource, request), ask);
        }
    }

    /// All three, because clients choose the id, and may choose the same one for everything.
    fn hash(&self, owner: OwnerIndex, resource: u32, request: &[u8]) -> u32 {
        let number = u64::from(owner.0) << 32 | u64::from(resource);
        let spread = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        self.by_request.hash(request) ^ spread
    }

    fn at(&self, place: Place) -> Option<u32> {
        let is_it = |ask| self.asks[ask].place == place;
        self.by_place.find(place.hash(), is_it)
    }

    /// What the owner asked for with this id, of this key and in this mode: one id may stand for a
    /// read and a write of one key.
    fn find(
        &self,
        owner: OwnerIndex,
        resource: u32,
        request: &[u8],
        is_in_mode: impl Fn(Place) -> bool,
    ) -> Option<Place> {
        let is_it = |ask| {
            let it: &Ask = &self.asks[ask];
            it.owner == owner
                && it.resource == resource
                && *it.request == *request
                && is_in_mode(it.place)
        };
        let hash = self.hash(owner, resource, request);
        let found = self.by_request.find(hash, is_it);
        found.map(|ask| self.asks[ask].place)
    }

    fn remove(&mut self, place: Place) {
        if let Some(ask) = self.at(place) {
            let gone = self.asks.remove(ask);
            self.by_place.remove(place.hash(), ask);
            if let Place::Waiter(waiter) = place {
                self.waiting.remove(&(gone.owner.0, waiter));
            }
            if !gone.request.is_empty() {
                let hash = self.hash(gone.owner, gone.resource, &gone.request);
                self.by_request.remove(hash, ask);
            }
        }
    }

    /// The waiter has become a holder.
    #[cold]
    pub(super) fn granted(&mut self, waiter: u32, holder: u32) {
        let (from, to) = (Place::Waiter(waiter), Place::Holder(holder));
        if let Some(ask) = self.at(from) {
            self.by_place.remove(from.hash(), ask);
            self.by_place.insert(to.hash(), ask);
            let it = &mut self.asks[ask];
            it.place = to;
            self.waiting.remove(&(it.owner.0, waiter));
        }
    }

    /// The waiters of an owner.
    pub(super) fn waiting(&self, owner: OwnerIndex) -> impl Iterator<Item = u32> {
        let waiting = self.waiting.range((owner.0, 0)..=(owner.0, NONE));
        waiting.map(|&(_, waiter)| waiter)
    }

    /// The waiter has left the queue.
    #[cold]
    pub(super) fn gave_up(&mut self, waiter: u32) {
        self.remove(Place::Waiter(waiter));
    }

    /// The grant has ended.
    #[cold]
    pub(super) fn ended(&mut self, holder: u32) {
        self.remove(Place::Holder(holder));
    }

    /// With which id a grant of a named owner was asked for.
    pub(super) fn request(&self, holder: u32) -> Option<&[u8]> {
        let ask = self.at(Place::Holder(holder))?;
        Some(&self.asks[ask].request)
    }
}

impl Engine {
    /// Decides what an owner asks for that is known by its name. Only what is held and waited for
    /// belongs to an owner: everything else is decided as if the connection had asked.
    pub(super) fn decide_by(
        &mut self,
        now: Nanos,
        id: ConnId,
        by: By<'_>,
        request: &Request<'_>,
        out: &mut Effects,
    ) {
        let at = out.len();
        match self.decide_of_owner(now, id, by, request, out) {
            Decided::Done => self.core.mark(Some(request), at, out),
            Decided::OfConnection => self.decide_durably(now, id, request, out),
            Decided::LacksRoom => {
                // What has just ended waits for its record; the refusal waits for nothing.
                self.core.mark(Some(request), at, out);
                let at = out.len();
                self.refuse_for_room(id, out);
                self.core.mark(None, at, out);
            }
        }
    }

    fn decide_of_owner(
        &mut self,
        now: Nanos,
        id: ConnId,
        by: By<'_>,
        request: &Request<'_>,
        out: &mut Effects,
    ) -> Decided {
        let Asker { conn, .. } = self.core.conns.asker(id, &mut self.core.owners);
        let known = self.core.owners.find_named(by.owner);
        let owner = match (known, request) {
            (Some(owner), _) => owner,
            (None, Request::Acquire { .. }) if self.core.memory_full => {
                self.core.figures.refused(Refusal::Memory);
                out.push(Effect::Reply(id, Reply::Refused(Refusal::Memory)));
                return Decided::Done;
            }
            (None, Request::Acquire { .. }) => self.core.owners.insert_named(by.owner),
            (None, Request::Renew { .. } | Request::Release { .. } | Request::Resign { .. }) => {
                out.push(Effect::Reply(id, Reply::Refused(Refusal::NotHolder)));
                return Decided::Done;
            }
            (None, _) => return Decided::OfConnection,
        };
        let asker = Asker { conn, owner };
        if matches!(request, Request::Acquire { .. }) {
            self.core.note_user(conn, owner);
        }
        // It stays while it is served, even if the last thing it holds ends meanwhile.
        self.core.owners[owner].waits += 1;
        let decided = self.serve_owner(now, asker, by, request, out);
        self.core.owners[owner].waits -= 1;
        self.core.forget_if_done(owner);
        decided
    }

    fn serve_owner(
        &mut self,
        now: Nanos,
        asker: Asker,
        by: By<'_>,
        request: &Request<'_>,
        out: &mut Effects,
    ) -> Decided {
        let lease_default = self.core.rules.lease_default;
        let at = out.len();
        let (stores, mut cx) = self.split(now, now, out);
        let (locks, cx) = (&mut stores.locks, &mut cx);
        let is_answered = match *request {
            Request::Acquire {
                key, mode, wait, ..
            } => locks.answer_again(cx, asker, by.request, (key, mode), wait),
            Request::Renew { key, token, lease } => {
                let lease = lease.unwrap_or(lease_default);
                !locks.is_held_by(cx, asker, key, token)
                    || locks.answer_longer(cx, asker, key, token, lease)
            }
            Request::Release { key, token } | Request::Resign { key, token } => {
                !locks.is_held_by(cx, asker, key, token)
            }
            _ => return Decided::OfConnection,
        };
        if is_answered {
            cx.core.work.charge(super::work::REQUEST);
            return Decided::Done;
        }
        // A repeated request takes no room, but this one is new.
        if self.lacks_room(request) {
            return Decided::LacksRoom;
        }
        let id = self.core.conns[asker.conn].id;
        self.decide(now, id, Some(asker.owner), request, out);
        if let Request::Acquire { key, .. } = *request {
            let (stores, mut cx) = self.split(now, now, out);
            stores.locks.note_ask(&mut cx, asker, by.request, key, at);
        }
        Decided::Done
    }
}

impl Engine {
    /// Whether the request is a renewal that can only come from this owner, because it shows the token
    /// of something that the owner holds.
    #[must_use]
    pub fn proves(&self, owner: &str, request: &Request<'_>) -> bool {
        let Request::Renew { key, token, .. } = *request else {
            return false;
        };
        let locks = &self.stores.locks;
        let held = locks.find_holder(key, token);
        let holder = held.map(|(_, holder)| locks.holders[holder].owner);
        holder.is_some() && holder == self.core.owners.find_named(owner)
    }
}

impl Core {
    /// Whether the owner is known by its name.
    #[inline(always)]
    pub(super) fn is_named(&self, owner: OwnerIndex) -> bool {
        self.owners[owner].is_named()
    }
}

impl Locks {
    /// What was decided since `at` is an acquire of the owner: remembers what it holds or waits for.
    fn note_ask(&mut self, cx: &mut Ctx<'_>, asker: Asker, request: &[u8], key: &[u8], at: usize) {
        let id = cx.core.conns[asker.conn].id;
        let granted = cx.out[at..].iter().find_map(|effect| match effect {
            Effect::Reply(to, Reply::Granted { token, .. }) if *to == id => Some(*token),
            _ => None,
        });
        let place = match granted {
            Some(token) => self
                .find_holder(key, Some(token))
                .map(|(resource, holder)| (resource, Place::Holder(holder))),
            None => match cx.core.conns[asker.conn].parked {
                NONE => None,
                waiter => Some((cx.core.waiters[waiter].subject, Place::Waiter(waiter))),
            },
        };
        if let Some((resource, place)) = place {
            self.asks.insert(asker.owner, resource, place, request);
            // Without memory for it the lock is not counted, and its version stays 0 until the next
            // request.
            if !cx.core.memory_full {
                self.table.count_changes(resource, false);
            }
            if let Place::Holder(holder) = place {
                self.record_request(cx, holder);
            }
        }
    }

    /// An acquire with an id that was asked before is answered with the grant again, or takes over
    /// the place in the queue. Returns whether it was. An id belongs to an owner, a key and a mode: an
    /// owner that reads is never told that it may write.
    fn answer_again(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        request: &[u8],
        (key, mode): (&[u8], Mode),
        wait: Millis,
    ) -> bool {
        if request.is_empty() {
            return false;
        }
        let Some(resource) = self.find(key) else {
            return false;
        };
        if self.table[resource].kind() != Kind::of(mode) {
            return false;
        }
        // What has ended may be granted to its own waiter, which has asked before, too.
        self.evict_expired(cx, resource);
        match self.find_ask(cx.core, asker.owner, resource, request, mode) {
            Some(Place::Holder(holder)) => {
                let token = self.holders[holder].token;
                match self.lease_left(cx, holder) {
                    Some(lease) => cx.reply(asker.conn, Reply::Granted { token, lease }),
                    // One of very many leases that are over and have not been ended yet. Until it
                    // is, a new grant with this id would be a second one.
                    None => cx.put_off(asker.conn),
                }
                true
            }
            Some(Place::Waiter(waiter)) if wait > Millis::ZERO && !cx.core.draining => {
                self.pass_place_to(cx, waiter, asker.conn, wait);
                true
            }
            _ => false,
        }
    }

    /// What the owner has of this key by a request with this id and this mode.
    fn find_ask(
        &self,
        core: &Core,
        owner: OwnerIndex,
        resource: u32,
        request: &[u8],
        mode: Mode,
    ) -> Option<Place> {
        if request.is_empty() || self.table[resource].kind() != Kind::of(mode) {
            return None;
        }
        let held = Held::of(mode);
        let is_in_mode = |place| match place {
            Place::Holder(holder) => self.holders[holder].held() == held,
            Place::Waiter(waiter) => core.waiters[waiter].want().held == held,
        };
        self.asks.find(owner, resource, request, is_in_mode)
    }

    /// A renewal never makes a lease end earlier. If it would, the answer is the present lease.
    /// Returns whether the request is answered.
    fn answer_longer(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) -> bool {
        let (resource, holder) = self
            .find_holder(key, token)
            .expect("it was found a moment ago");
        let left = self.lease_left(cx, holder).unwrap_or(Millis::ZERO);
        if left < lease {
            return false;
        }
        self.table.note_change(resource);
        let fence = self.holders[holder].token.fence;
        cx.reply(asker.conn, Reply::Renewed { lease: left, fence });
        true
    }

    /// Whether the owner holds the key with this token, and its lease is not over. If not, it is told
    /// so.
    fn is_held_by(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        token: Option<Token>,
    ) -> bool {
        let found = self.find_holder(key, token);
        let Some((resource, holder)) =
            found.filter(|&(_, holder)| self.holders[holder].owner == asker.owner)
        else {
            cx.refuse(asker.conn, Refusal::NotHolder);
            return false;
        };
        if self.lease_left(cx, holder).is_some() || self.outlasts(cx, holder) {
            return true;
        }
        let at = cx.out.len();
        if !self.evict_expired(cx, resource) && self.find_holder(key, token).is_some() {
            cx.put_off(asker.conn);
            return false;
        }
        // The answer comes before everything else that the end of the lease brings about.
        let id = cx.core.conns[asker.conn].id;
        let answer = Effect::Reply(id, Reply::Refused(Refusal::LeaseExpired));
        cx.out.insert(at, answer);
        false
    }

    /// How long the lease still runs, rounded down, so that nobody counts on more than there is; none
    /// if it is over.
    fn lease_left(&self, cx: &Ctx<'_>, holder: u32) -> Option<Millis> {
        match cx.core.timers.deadline(self.holders[holder].timer) {
            Nanos::NEVER => Some(self.recorded[holder].asked),
            deadline if deadline <= cx.moment => None,
            deadline => Some(Millis(deadline.since(cx.now) / 1_000_000)),
        }
    }

    /// A grant of a named owner was restored.
    pub(super) fn note_restored_ask(
        &mut self,
        owner: OwnerIndex,
        resource: u32,
        holder: u32,
        request: &[u8],
    ) {
        self.asks
            .insert(owner, resource, Place::Holder(holder), request);
        self.table.count_changes(resource, true);
    }

    /// The record of a grant that was just made to a named owner says with which id it was asked for.
    pub(super) fn record_request(&self, cx: &mut Ctx<'_>, holder: u32) {
        if let Some(records) = &mut cx.core.records
            && let Some(ask) = self.asks.at(Place::Holder(holder))
        {
            let request = &self.asks.asks[ask].request;
            if !request.is_empty() {
                records.add_request(self.holders[holder].token.fence, request);
            }
        }
    }
}
