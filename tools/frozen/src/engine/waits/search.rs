//! One search for a deadlock: can a request that is about to wait ever be served, and if not, does it
//! wait for itself?
//!
//! A party *gets on* if it waits for nothing, or if each of its waits can come to an end. Everybody is
//! taken to be stuck until the opposite is shown (a least fixpoint), and the one who asks stays stuck
//! whatever is shown, since the question is what happens if it never gets on:
//!
//! - a wait for a slot can end if more slots come free than parties stand before it that would keep one
//!   for ever: holders that get on, and slots that are free, against stuck waiters before it;
//! - a wait to write can end if all holders and everybody before it get on;
//! - a wait to read can end if all holders get on, and everybody before it up to the last writer:
//!   readers right before it come in with it.
//!
//! If the wait of the one who asks cannot end, its steps are traced from stuck waits to the stuck
//! parties before them. Only if that leads back to the one who asks is it part of a deadlock; otherwise
//! it merely waits for others who are in one.
//!
//! The search goes forward from the one who asks, and looks at each holder, waiter and party once,
//! however many waits lead to it. It can stop after any step and go on later, provided that nothing was
//! released, granted or left meanwhile (`waits.rs` sees to that). Only looks, and changes nothing but
//! itself.

use super::range_search::Blockers;
use super::{Asked, AskedFor, Live, Party};
use crate::engine::arena::NONE;
use crate::engine::holder::Held;
use crate::engine::table::Kind;
use crate::keymap::KeyMap;

/// What a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request may wait.
    MayWait,
    /// The request would wait for itself.
    Deadlock,
}

/// A search that has begun.
pub(super) struct Search {
    pub(super) asked: Asked,
    /// Where the one who asks would wait, once everybody before it is known.
    pub(super) asked_place: u32,
    pub(super) nodes: Vec<Node>,
    pub(super) places: Vec<Place>,
    pub(super) keys: Vec<Gathered>,
    by_party: KeyMap,
    by_resource: KeyMap,
    /// Keys with holders or waiters that are still to be looked at.
    pub(super) to_gather: Vec<u32>,
    /// Keys where somebody's wait may be able to end.
    to_advance: Vec<u32>,
    /// Parties that turned out to get on, while those behind them do not know yet.
    to_tell: Vec<u32>,
    /// Keys whose stuck parties are followed; none before everything is gathered.
    to_trace: Vec<u32>,
    is_tracing: bool,
    /// What the last step has looked at beyond what a step costs.
    looks: u64,
}

/// A party, as far as it is known.
pub(super) struct Node {
    party: Party,
    /// How many of its waits may never end.
    waits: u32,
    /// How many of those have no place yet. A wait that has begun since is not among them: whoever began
    /// it is looked at itself.
    unplaced: u32,
    pub(super) gets_on: bool,
    is_traced: bool,
    /// The first of its places, while it is stuck.
    places: u32,
    /// The first of those where it waits.
    waits_at: u32,
}

/// The node of the one who asks.
pub(super) const ASKER: u32 = 0;

/// A stuck party at a key: a holder, or somebody in its queue.
pub(super) struct Place {
    pub(super) node: u32,
    key: u32,
    /// The connection that waits here, if that is not the same party: see [`Live::other_party_of`].
    other: u32,
    /// The next of the same key: the next holder, or the next in the queue.
    next: u32,
    next_of_node: u32,
    next_wait: u32,
    role: Role,
    /// How many are before it in the queue.
    order: u32,
    /// How many of those it waits for.
    needs: u32,
    /// Its party waits for this, and not merely has a place.
    waits: bool,
    /// Its wait can end.
    passed: bool,
    /// Its party counts as one of those who keep others waiting here.
    blocks: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Holder,
    Slot,
    Read,
    Write,
}

impl Role {
    fn of(hold: Held) -> Self {
        match hold {
            Held::Lock | Held::Slot | Held::Lead => Self::Slot,
            Held::Read => Self::Read,
            Held::Write => Self::Write,
        }
    }
}

/// What is looked at: a key, or bytes that somebody wants. Those before two who want bytes of one resource
/// need not be the same, so each of them is looked at for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Key(u32),
    /// The bytes that this waiter wants.
    Range(u32),
    /// Those of the one who asks.
    Asked,
}

impl Subject {
    /// A number that no other has.
    fn number(self) -> u64 {
        match self {
            Self::Key(resource) => resource.into(),
            Self::Range(waiter) => 1 << 32 | u64::from(waiter),
            Self::Asked => 2 << 32,
        }
    }
}

/// A key, as far as it was looked at.
pub(super) struct Gathered {
    pub(super) subject: Subject,
    /// Of bytes: who has them, as far as that is still to be looked at.
    pub(super) blockers: Option<Blockers>,
    pub(super) next_holder: u32,
    /// The last one in the queue that was looked at. Not the next one, because that may come only now.
    last_waiter: u32,
    /// Waiters are looked at whose number is below this.
    wanted: u64,
    pub(super) is_listed: bool,

    /// The first holder that was stuck when it was looked at.
    pub(super) holders: u32,
    /// The last in the queue that was looked at, and how many were.
    last: u32,
    count: u32,
    /// How many a reader at the end waits for: everybody up to the last writer.
    reader_needs: u32,

    /// The first whose wait is not known to end.
    front: u32,
    /// Slots that are free or come free.
    room: u32,
    /// A writer holds it.
    is_written: bool,
    stuck_holders: u32,
    /// Stuck parties before `front` that everybody behind them waits for, and those that only a writer
    /// waits for.
    stuck: u32,
    stuck_readers: u32,

    trace_next_holder: u32,
    trace_next: u32,
    /// Places in the queue are traced whose order is below this.
    trace_wanted: u32,
    is_traced: bool,
}

impl Search {
    pub(super) fn new(live: &Live<'_>, asked: Asked) -> Self {
        let mut search = Self {
            asked,
            asked_place: NONE,
            nodes: Vec::new(),
            places: Vec::new(),
            keys: Vec::new(),
            by_party: KeyMap::new([0; 2]),
            by_resource: KeyMap::new([0; 2]),
            to_gather: Vec::new(),
            to_advance: Vec::new(),
            to_tell: Vec::new(),
            to_trace: Vec::new(),
            is_tracing: false,
            looks: 0,
        };
        search.node(live, asked.party);
        search.gather_asked(live);
        search
    }

    pub(super) fn memory(&self) -> usize {
        let lists = [
            &self.to_gather,
            &self.to_advance,
            &self.to_tell,
            &self.to_trace,
        ];
        self.nodes.capacity() * size_of::<Node>()
            + self.places.capacity() * size_of::<Place>()
            + self.keys.capacity() * size_of::<Gathered>()
            + lists
                .map(|it| it.capacity() * size_of::<u32>())
                .iter()
                .sum::<usize>()
            + self.by_party.memory()
            + self.by_resource.memory()
    }

    /// Goes on for so many steps; counts them down. None if there is more to look at.
    pub(super) fn go_on(&mut self, live: &Live<'_>, steps: &mut u64) -> Option<Verdict> {
        loop {
            if self.asked_place != NONE && self.places[self.asked_place as usize].passed {
                return Some(Verdict::MayWait);
            }
            if *steps == 0 {
                return None;
            }
            *steps -= 1;
            *steps = steps.saturating_sub(std::mem::take(&mut self.looks));
            if let Some(&node) = self.to_tell.last() {
                self.tell(node);
            } else if let Some(&key) = self.to_advance.last() {
                self.advance(key);
            } else if let Some(&key) = self.to_gather.last() {
                self.gather(live, key);
            } else if self.asked_place == NONE {
                return Some(Verdict::MayWait); // whoever asked has hung up
            } else if !self.is_tracing {
                self.is_tracing = true;
                self.trace_from(self.asked_place);
            } else if let Some(&key) = self.to_trace.last() {
                if self.trace(key) {
                    return Some(Verdict::Deadlock);
                }
            } else {
                return Some(Verdict::MayWait);
            }
        }
    }

    // ---- gathering ----

    /// The node of a party, which is made if there is none. What it waits for is to be gathered.
    pub(super) fn node(&mut self, live: &Live<'_>, party: Party) -> u32 {
        if party == self.asked.conn && !self.nodes.is_empty() {
            return ASKER;
        }
        let hash = spread(party.number());
        let is_it = |node: u32| self.nodes[node as usize].party == party;
        if let Some(node) = self.by_party.find(hash, is_it) {
            return node;
        }
        let node = self.nodes.len() as u32;
        self.by_party.insert(hash, node);
        self.nodes.push(Node {
            party,
            waits: 0,
            unplaced: 0,
            gets_on: false,
            is_traced: false,
            places: NONE,
            waits_at: NONE,
        });
        if node != ASKER {
            let mut waits = 0;
            for waiter in live.waits_of(party) {
                waits += 1;
                self.gather_wait(live, waiter);
            }
            self.looks += u64::from(live.looks_at_waits(party));
            let it = &mut self.nodes[node as usize];
            (it.waits, it.unplaced, it.gets_on) = (waits, waits, waits == 0);
        }
        node
    }

    /// Those before the one who asks are to be looked at.
    fn gather_asked(&mut self, live: &Live<'_>) {
        let Asked { what, waiter, .. } = self.asked;
        match what {
            AskedFor::Key { resource, .. } => {
                // The numbers of all before it are below this, and its own if it has one.
                let end = match waiter {
                    NONE => u64::MAX,
                    waiter => live.place_of(waiter).1 + 1,
                };
                self.gather_up_to(live, resource, end);
            }
            AskedFor::Range { range, .. } => self.gather_range(Subject::Asked, range),
        }
    }

    /// Those before somebody who waits are to be looked at.
    fn gather_wait(&mut self, live: &Live<'_>, waiter: u32) {
        match live.range_of(waiter) {
            Some(range) => self.gather_range(Subject::Range(waiter), range),
            None => {
                let (resource, number) = live.place_of(waiter);
                self.gather_up_to(live, resource, number + 1);
            }
        }
    }

    /// All holders of a key are to be looked at, and the waiters whose number is below this.
    fn gather_up_to(&mut self, live: &Live<'_>, resource: u32, wanted: u64) {
        let key = self.key(live, resource);
        let it = &mut self.keys[key as usize];
        if wanted > it.wanted {
            it.wanted = wanted;
            if !it.is_listed {
                it.is_listed = true;
                self.to_gather.push(key);
            }
        }
    }

    fn key(&mut self, live: &Live<'_>, resource: u32) -> u32 {
        let subject = Subject::Key(resource);
        if let Some(key) = self.find_key(subject) {
            return key;
        }
        let it = live.key(resource);
        let first_holder = it.holders.head();
        let room = match it.kind() {
            Kind::Slots { limit } => limit.saturating_sub(it.holders.len()),
            Kind::ReadWrite => 0,
        };
        let is_written = first_holder.is_some_and(|it| live.holder(it).held() == Held::Write);
        self.add_key(Gathered {
            next_holder: first_holder.unwrap_or(NONE),
            room,
            is_written,
            ..Gathered::new(subject)
        })
    }

    pub(super) fn find_key(&self, subject: Subject) -> Option<u32> {
        let is_it = |key: u32| self.keys[key as usize].subject == subject;
        self.by_resource.find(spread(subject.number()), is_it)
    }

    pub(super) fn add_key(&mut self, gathered: Gathered) -> u32 {
        let key = self.keys.len() as u32;
        let hash = spread(gathered.subject.number());
        self.by_resource.insert(hash, key);
        self.keys.push(gathered);
        key
    }

    /// Looks at one more holder or waiter of a key.
    fn gather(&mut self, live: &Live<'_>, key: u32) {
        let it = &mut self.keys[key as usize];
        let Subject::Key(resource) = it.subject else {
            return self.gather_blocker(live, key);
        };
        let waiter = match it.last_waiter {
            NONE => live.key(resource).queue.head(),
            last => live.waiter_after(last),
        };
        let waiter = waiter.unwrap_or(NONE);
        if it.next_holder != NONE {
            let holder = it.next_holder;
            it.next_holder = live.holder_after(holder).unwrap_or(NONE);
            self.gather_holder(live, key, holder);
        } else if waiter != NONE && live.place_of(waiter).1 < it.wanted {
            it.last_waiter = waiter;
            if live.is_present(waiter) {
                let (party, hold) = live.entry(waiter);
                let node = self.node(live, party);
                let place = self.stand(key, node, Role::of(hold), live.is_waiting(waiter));
                self.stand_with(live, place, waiter);
                if waiter == self.asked.waiter {
                    self.asked_place = place;
                }
            }
        } else if waiter == NONE && self.is_yet_to_stand(key) {
            if let AskedFor::Key { hold, .. } = self.asked.what {
                self.asked_place = self.stand(key, ASKER, Role::of(hold), true);
            }
        } else {
            self.finish_gathering(key);
        }
    }

    /// Everything that is wanted of a key is gathered. It is the last in the list.
    pub(super) fn finish_gathering(&mut self, key: u32) {
        self.keys[key as usize].is_listed = false;
        self.to_gather.pop();
        self.to_advance.push(key);
    }

    /// Whether the one who asks is not in the queue of this key yet, and would be its last.
    fn is_yet_to_stand(&self, key: u32) -> bool {
        let Asked { waiter, what, .. } = self.asked;
        let is_asked = |subject| match what {
            AskedFor::Key { resource, .. } => subject == Subject::Key(resource),
            AskedFor::Range { .. } => false,
        };
        let subject = self.keys[key as usize].subject;
        waiter == NONE && self.asked_place == NONE && is_asked(subject)
    }

    fn gather_holder(&mut self, live: &Live<'_>, key: u32, holder: u32) {
        let is_slot = matches!(
            live.holder(holder).held(),
            Held::Lock | Held::Slot | Held::Lead
        );
        let party = Party::Owner(live.holder(holder).owner);
        // A lease that is over ends, whatever its owner waits for.
        let node = (!live.is_over(holder)).then(|| self.node(live, party));
        let stuck = node.filter(|&node| !self.nodes[node as usize].gets_on);
        if let Some(node) = stuck {
            self.hold(key, node);
        } else if is_slot {
            self.keys[key as usize].room += 1;
        }
    }

    /// A party that is stuck holds the key.
    pub(super) fn hold(&mut self, key: u32, node: u32) {
        let next = self.keys[key as usize].holders;
        let place = self.place(key, node, Role::Holder);
        self.places[place as usize].next = next;
        self.places[place as usize].blocks = true;
        let it = &mut self.keys[key as usize];
        it.holders = place;
        it.stuck_holders += 1;
    }

    /// Somebody stands at the end of what is gathered of a queue.
    pub(super) fn stand(&mut self, key: u32, node: u32, role: Role, waits: bool) -> u32 {
        let place = self.place(key, node, role);
        let of_node = &mut self.nodes[node as usize];
        let waits = waits && (node == ASKER || of_node.unplaced > 0);
        of_node.unplaced = of_node.unplaced.saturating_sub(waits.into());
        let gathered = &mut self.keys[key as usize];
        let (order, before) = (gathered.count, gathered.last);
        gathered.count += 1;
        gathered.last = place;
        let needs = match role {
            Role::Read => gathered.reader_needs,
            Role::Holder | Role::Slot | Role::Write => order,
        };
        if role == Role::Write {
            gathered.reader_needs = order + 1;
        }
        if gathered.front == NONE {
            gathered.front = place;
        }
        if before == NONE {
            gathered.trace_next = place;
        } else {
            self.places[before as usize].next = place;
        }
        let it = &mut self.places[place as usize];
        (it.order, it.needs, it.waits) = (order, needs, waits);
        if waits {
            it.next_wait = self.nodes[node as usize].waits_at;
            self.nodes[node as usize].waits_at = place;
        }
        place
    }

    /// If the connection that waits here has something of its own, that is stuck as long as the wait is.
    pub(super) fn stand_with(&mut self, live: &Live<'_>, place: u32, waiter: u32) {
        let Some(party) = live.other_party_of(waiter) else {
            return;
        };
        let other = self.node(live, party);
        let it = &mut self.nodes[other as usize];
        if other != ASKER && it.unplaced > 0 {
            it.unplaced = 0;
            it.waits_at = place;
            self.places[place as usize].other = other;
        }
    }

    fn place(&mut self, key: u32, node: u32, role: Role) -> u32 {
        let place = self.places.len() as u32;
        let of_node = &mut self.nodes[node as usize];
        self.places.push(Place {
            node,
            key,
            other: NONE,
            next: NONE,
            next_of_node: of_node.places,
            next_wait: NONE,
            role,
            order: 0,
            needs: 0,
            waits: false,
            passed: false,
            blocks: false,
        });
        of_node.places = place;
        place
    }

    // ---- who gets on ----

    /// Looks whether the first wait of a key that is not known to end can end.
    fn advance(&mut self, key: u32) {
        let it = &self.keys[key as usize];
        let front = it.front;
        if front == NONE || !it.lets_pass(&self.places[front as usize]) {
            self.to_advance.pop();
            return;
        }
        let Place {
            node,
            other,
            role,
            waits,
            ..
        } = self.places[front as usize];
        let place = &mut self.places[front as usize];
        let it = &mut self.keys[key as usize];
        place.passed = true;
        it.front = place.next;
        if !self.nodes[node as usize].gets_on {
            place.blocks = true;
            *it.count_of(role) += 1;
        }
        if waits && node != ASKER {
            self.end_wait_of(node);
        }
        if other != NONE {
            self.end_wait_of(other);
        }
    }

    /// One of the waits of this party can end.
    fn end_wait_of(&mut self, node: u32) {
        let it = &mut self.nodes[node as usize];
        it.waits -= 1;
        if it.waits == 0 {
            it.gets_on = true;
            self.to_tell.push(node);
        }
    }

    /// One more of the places of a party that gets on blocks nobody any more.
    fn tell(&mut self, node: u32) {
        let it = &mut self.nodes[node as usize];
        let Some(place) = self.places.get_mut(it.places as usize) else {
            self.to_tell.pop();
            return;
        };
        it.places = place.next_of_node;
        if std::mem::take(&mut place.blocks) {
            let key = &mut self.keys[place.key as usize];
            *key.count_of(place.role) -= 1;
            if place.role == Role::Holder {
                key.room += 1; // only slots have any
            }
            self.to_advance.push(place.key);
        }
    }

    // ---- who waits for itself ----

    /// Those whom this wait waits for are to be traced.
    fn trace_from(&mut self, wait: u32) {
        let Place { key, needs, .. } = self.places[wait as usize];
        let it = &mut self.keys[key as usize];
        let is_first = !it.is_traced;
        if is_first {
            it.is_traced = true;
            it.trace_next_holder = it.holders;
        }
        if is_first || needs > it.trace_wanted {
            it.trace_wanted = needs.max(it.trace_wanted);
            self.to_trace.push(key);
        }
    }

    /// Traces one more of those whom somebody waits for at this key; returns whether it is the one who
    /// asks.
    fn trace(&mut self, key: u32) -> bool {
        let it = &mut self.keys[key as usize];
        let place = if it.trace_next_holder != NONE {
            let place = it.trace_next_holder;
            it.trace_next_holder = self.places[place as usize].next;
            place
        } else {
            let place = it.trace_next;
            if place == NONE || self.places[place as usize].order >= it.trace_wanted {
                self.to_trace.pop();
                return false;
            }
            it.trace_next = self.places[place as usize].next;
            place
        };
        let node = self.places[place as usize].node;
        let it = &mut self.nodes[node as usize];
        if it.gets_on || it.is_traced {
            return false;
        }
        it.is_traced = true;
        let mut wait = it.waits_at;
        while wait != NONE {
            let Place {
                passed,
                other,
                next_wait,
                ..
            } = self.places[wait as usize];
            if !passed {
                self.trace_from(wait);
            }
            // A connection waits for one thing, and the next wait is another's.
            wait = if other == node { NONE } else { next_wait };
            self.looks += u64::from(wait != NONE);
        }
        node == ASKER
    }
}

impl Gathered {
    pub(super) fn new(subject: Subject) -> Self {
        Self {
            subject,
            blockers: None,
            next_holder: NONE,
            last_waiter: NONE,
            wanted: 0,
            is_listed: false,
            holders: NONE,
            last: NONE,
            count: 0,
            reader_needs: 0,
            front: NONE,
            room: 0,
            is_written: false,
            stuck_holders: 0,
            stuck: 0,
            stuck_readers: 0,
            trace_next_holder: NONE,
            trace_next: NONE,
            trace_wanted: 0,
            is_traced: false,
        }
    }

    /// Whether the wait at the front can end.
    fn lets_pass(&self, front: &Place) -> bool {
        let holders_get_on = self.next_holder == NONE && self.stuck_holders == 0;
        match front.role {
            Role::Holder => false,
            Role::Slot => self.stuck < self.room,
            Role::Write => holders_get_on && self.stuck + self.stuck_readers == 0,
            Role::Read => {
                let comes_in = front.needs == 0 && !self.is_written;
                self.stuck == 0 && (holders_get_on || comes_in)
            }
        }
    }

    /// Where a stuck party in this role is counted.
    fn count_of(&mut self, role: Role) -> &mut u32 {
        match role {
            Role::Holder => &mut self.stuck_holders,
            Role::Slot | Role::Write => &mut self.stuck,
            Role::Read => &mut self.stuck_readers,
        }
    }
}

/// Clients do not choose these numbers, so one multiplication spreads them well enough.
fn spread(number: u64) -> u32 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
