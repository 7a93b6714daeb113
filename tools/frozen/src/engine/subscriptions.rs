//! Subscriptions: which connections a name is pushed to. Finding the recipients of a name takes one
//! lookup of the name itself and one for each shape of patterns that can match it (`shapes.rs`),
//! however many patterns there are.
//!
//! There are three of these: listeners of signals, watchers of keys, observers of leaders. A
//! *pattern* (`pattern.rs`) may have groups; a *subscription* is one connection at one pattern or
//! in one of its groups. A connection that cannot take more is not a recipient. This file only
//! finds the recipients: `signal.rs`, `watch.rs` and `election.rs` push.

use std::collections::BTreeMap;
use std::mem;

use super::arena::{Arena, Chain, Link, Linked, NONE, Ring};
use super::conn::{COPIES_MAX, ConnIndex, Conns};
use super::pattern;
use super::shapes::{Shapes, Sums, Wildcards};
use super::subscribers::{Kind, OfAll, OfSubscribers, Subscribers, Subscription};
use super::types::{Effects, Refusal};
use super::uses::{Used, Uses};
use crate::base::ConnId;
use crate::key::Key;
use crate::keymap::KeyMap;

/// Which of the three. A connection has one chain of subscriptions for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Listen = 0,
    Watch = 1,
    Observe = 2,
}

/// How many topics there are.
pub(super) const TOPICS: usize = 3;

/// Most shapes that the wildcard patterns of one connection have, for each topic. So few of its
/// patterns match one name, because of each shape at most one does. A pattern that would need one
/// more is refused.
pub const SHAPES_PER_CONN_MAX: u8 = 64;

/// Most groups of one pattern that a connection is in. More would be of little use, because it gets
/// no more copies of one signal. One more is refused.
pub const GROUPS_PER_PATTERN_MAX: u32 = COPIES_MAX;

/// Most members of groups that are looked at for one signal. The groups that are not reached count
/// as busy; their turn comes first at the next signal.
pub const MEMBERS_VISITED_MAX: u64 = 8 * 1024;

/// Bytes of a pattern that are compared or hashed in about the time of one lookup.
const BYTES_PER_WORK: usize = 32;

/// What another subscription needs.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Most subscriptions of one connection; 0 is no limit.
    pub(super) subscriptions_max: u32,
    /// It may take no more memory.
    pub(super) memory_full: bool,
}

pub(super) struct Subscriptions {
    topic: Topic,
    subscribers: Arena<Subscribers>,
    all: Chain<OfAll>,
    shapes: Shapes,
    /// Names and patterns: a name by its bytes, a pattern by its shape and its tokens.
    by_text: KeyMap,
    by_group: KeyMap,
    subscriptions: Arena<Subscription>,
    by_subscription: KeyMap,
    uses: Uses,
    /// How often a signal did not reach all groups: the next one begins with another pattern.
    unreached: usize,
    /// Lookups made, patterns matched and members looked at since the last `take_work`.
    work: u64,
    /// Room to work in, kept so that a signal does not allocate it: the tokens of a name, hashed,
    /// and the patterns that match it.
    sums: Sums,
    matching: Vec<u32>,
}

impl Subscriptions {
    pub(super) fn new(topic: Topic, seed: [u64; 2]) -> Self {
        Self {
            topic,
            subscribers: Arena::new(),
            all: Chain::new(),
            shapes: Shapes::new(seed),
            by_text: KeyMap::new(seed),
            by_group: KeyMap::new(seed),
            subscriptions: Arena::new(),
            by_subscription: KeyMap::new(seed),
            uses: Uses::new(seed),
            unreached: 0,
            work: 0,
            sums: Sums::default(),
            matching: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// What is subscribed to, in the order in which it first was: pattern, group, how many
    /// subscriptions.
    pub(super) fn patterns(&self) -> impl Iterator<Item = (&[u8], &[u8], u32)> {
        self.all.iter(&self.subscribers).map(|subscribers_id| {
            let it = &self.subscribers[subscribers_id];
            let (pattern, group) = match it.kind {
                Kind::Pattern { .. } => (&it.name, &b""[..]),
                Kind::Group { pattern_id, .. } => {
                    (&self.subscribers[pattern_id].name, it.name.as_bytes())
                }
            };
            (pattern.as_bytes(), group, it.subscriptions.len())
        })
    }

    /// How many pairs of a pattern and a group there are.
    pub(super) fn pattern_count(&self) -> u32 {
        self.all.len()
    }

    /// How many patterns and groups there are, and records by which they are found and counted; for
    /// checks.
    pub(super) fn record_count(&self) -> usize {
        self.subscribers.len() + self.shapes.len() + self.uses.len()
    }

    pub(super) fn is_subscribed(&self, conn: ConnIndex, pattern: &[u8], group: &[u8]) -> bool {
        let subscribers_id = self.find_subscribers(pattern, group);
        subscribers_id.is_some_and(|it| self.find_subscription(conn, it).is_some())
    }

    /// Subscribes, unless the connection did already.
    pub(super) fn join(
        &mut self,
        conns: &mut Conns,
        conn: ConnIndex,
        pattern: &[u8],
        group: &[u8],
        room: Room,
    ) -> Result<(), Refusal> {
        let pattern_id = self.find_pattern(pattern);
        let subscribers_id = pattern_id.and_then(|it| self.find_group(it, group));
        if subscribers_id.is_some_and(|it| self.find_subscription(conn, it).is_some()) {
            return Ok(());
        }
        let wildcards = self.wildcards(pattern);
        let subscribed = conns[conn].subscription_count();
        let Room {
            subscriptions_max,
            memory_full,
        } = room;
        let has_room = (subscriptions_max == 0 || subscribed < subscriptions_max)
            && (wildcards.as_ref()).is_none_or(|it| self.may_use(conns, conn, it))
            && (group.is_empty() || pattern_id.is_none_or(|it| self.may_join_group(conn, it)));
        if !has_room {
            return Err(Refusal::MaxSubscriptions);
        }
        if memory_full && !self.has_vacancy_for(pattern, group) {
            return Err(Refusal::Memory);
        }
        let pattern_id = pattern_id.unwrap_or_else(|| self.insert_pattern(pattern, wildcards));
        let subscribers_id = match self.find_group(pattern_id, group) {
            Some(subscribers_id) => subscribers_id,
            None => self.insert_group(pattern_id, group),
        };
        self.insert_subscription(conns, conn, subscribers_id);
        Ok(())
    }

    /// Removes a subscription, if the connection has it.
    pub(super) fn leave(
        &mut self,
        conns: &mut Conns,
        conn: ConnIndex,
        pattern: &[u8],
        group: &[u8],
    ) {
        if let Some(subscribers_id) = self.find_subscribers(pattern, group)
            && let Some(subscription) = self.find_subscription(conn, subscribers_id)
        {
            self.remove_subscription(conns, subscription);
        }
    }

    /// Removes the connection's subscriptions, up to `budget`; returns whether none is left.
    pub(super) fn leave_all(
        &mut self,
        conns: &mut Conns,
        conn: ConnIndex,
        budget: &mut u32,
    ) -> bool {
        while let Some(subscription) = conns[conn].subscriptions[self.topic as usize].head() {
            if *budget == 0 {
                return false;
            }
            let hashed_bytes = self.remove_subscription(conns, subscription);
            *budget = budget.saturating_sub(1 + (hashed_bytes / BYTES_PER_WORK) as u32);
        }
        true
    }

    /// The recipients of `name`: each connection with a matching subscription without a group,
    /// once; and one member of every matching group. Connections that cannot take more are reported
    /// in `out` instead. `but` knows already: its subscriptions without a group do not count.
    ///
    /// In one piece, because who hears it is decided in one instant, and the answer to a signal counts
    /// them. So it visits each matching subscription, at about 30 ns: one for each connection, or up to
    /// [`SHAPES_PER_CONN_MAX`] if they want it so. All of it is charged, so nothing else is served in a
    /// turn in which very many hear something.
    pub(super) fn recipients(
        &mut self,
        conns: &mut Conns,
        name: &[u8],
        but: Option<ConnIndex>,
        out: &mut Effects,
    ) -> Vec<ConnId> {
        let mut recipients = Vec::new();
        if self.subscriptions.is_empty() {
            return recipients;
        }
        let mut matching = self.take_matching(name);
        conns.begin_broadcast(but);
        for &pattern_id in &matching {
            let members = &self.subscribers[pattern_id].subscriptions;
            self.work += u64::from(members.len());
            for subscription in members.iter(&self.subscriptions) {
                conns.tell_once(self.subscriptions[subscription].conn, &mut recipients, out);
            }
        }
        self.tell_groups(conns, &mut matching, &mut recipients, out);
        matching.clear();
        self.matching = matching;
        recipients
    }

    /// The patterns that match a name.
    fn take_matching(&mut self, name: &[u8]) -> Vec<u32> {
        let mut matching = mem::take(&mut self.matching);
        let mut sums = mem::take(&mut self.sums);
        let hash = self.by_text.hash(name);
        matching.extend(self.by_text.find(hash, |pattern_id| {
            self.subscribers[pattern_id].shape() == NONE
                && self.subscribers[pattern_id].name.as_bytes() == name
        }));
        let mut work = 1;
        self.shapes.hashes(name, &mut sums, |shape, hash| {
            work += 1;
            matching.extend(self.by_text.find(hash, |pattern_id| {
                self.subscribers[pattern_id].shape() == shape
                    && pattern::matches(self.subscribers[pattern_id].name.as_bytes(), name)
            }));
        });
        let compared = 1 + name.len() / BYTES_PER_WORK;
        self.work += work + (matching.len() * compared) as u64;
        self.sums = sums;
        matching
    }

    /// Adds one member of each group of these patterns to the recipients, as far as
    /// [`MEMBERS_VISITED_MAX`] reaches.
    fn tell_groups(
        &mut self,
        conns: &mut Conns,
        patterns: &mut Vec<u32>,
        recipients: &mut Vec<ConnId>,
        out: &mut Effects,
    ) {
        patterns.retain(|&pattern_id| !self.subscribers[pattern_id].groups().is_empty());
        if patterns.is_empty() {
            return;
        }
        let first = self.unreached % patterns.len();
        patterns.rotate_left(first);
        let mut visits_left = MEMBERS_VISITED_MAX;
        'all: for &pattern_id in &*patterns {
            let mut groups = self.subscribers[pattern_id].groups();
            let mut next = groups.first();
            while let Some(group_id) = next {
                if visits_left == 0 {
                    self.unreached = self.unreached.wrapping_add(1);
                    groups.turn_to(group_id);
                    self.subscribers[pattern_id].set_groups(groups);
                    break 'all;
                }
                recipients.extend(self.next_of_group(conns, group_id, &mut visits_left, out));
                next = groups.behind(&self.subscribers, group_id);
            }
        }
        self.work += MEMBERS_VISITED_MAX - visits_left;
    }

    /// The member of a group whose turn it is, or the next member that can take more. If none can,
    /// the member whose turn it is gets reported. If the visits do not suffice to find out, it is
    /// the turn of the member that would have been visited next.
    fn next_of_group(
        &mut self,
        conns: &mut Conns,
        group_id: u32,
        visits_left: &mut u64,
        out: &mut Effects,
    ) -> Option<ConnId> {
        let head = self.subscribers[group_id].subscriptions.head()?;
        let first = match self.subscribers[group_id].turn() {
            NONE => head,
            turn => turn,
        };
        let mut subscription = first;
        while *visits_left > 0 {
            *visits_left -= 1;
            if let Some(id) = conns.tell_as_member(self.subscriptions[subscription].conn) {
                let next = self.behind(subscription);
                self.subscribers[group_id].set_turn(next);
                return Some(id);
            }
            subscription = match self.behind(subscription) {
                NONE => head,
                next => next,
            };
            if subscription == first {
                let next = self.behind(first);
                self.subscribers[group_id].set_turn(next);
                conns.report(self.subscriptions[first].conn, out);
                return None;
            }
        }
        self.subscribers[group_id].set_turn(subscription);
        None
    }

    /// The next subscription to the same, or `NONE`.
    fn behind(&self, subscription: u32) -> u32 {
        let next = <Subscription as Linked<OfSubscribers>>::link(&self.subscriptions[subscription]);
        next.next().unwrap_or(NONE)
    }

    /// Gives back a part of the memory of removed entries; returns whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.subscriptions.tidy()
            || self.subscribers.tidy()
            || self.shapes.tidy()
            || self.uses.tidy()
    }

    pub(super) fn memory(&self) -> usize {
        self.subscriptions.memory()
            + self.by_subscription.memory()
            + self.subscribers.memory()
            + self.by_text.memory()
            + self.by_group.memory()
            + self.shapes.memory()
            + self.uses.memory()
    }

    /// Whether there is room for this subscription in the memory that is there already.
    #[cold]
    fn has_vacancy_for(&self, pattern: &[u8], group: &[u8]) -> bool {
        Key::heap_bytes_of(pattern.len().max(group.len())) == 0
            && self.subscriptions.has_vacancy()
            && self.subscribers.has_vacancy()
    }

    pub(super) fn take_work(&mut self) -> u64 {
        mem::take(&mut self.work)
    }

    /// Everything that must hold between two calls.
    ///
    /// # Panics
    /// When something does not hold, which is a bug.
    pub(super) fn check(&self, conns: &Conns) {
        self.subscribers.check();
        let mut patterns_of = BTreeMap::new();
        let mut uses: BTreeMap<(u32, Used), u32> = BTreeMap::new();
        let (mut subscriptions, mut groups) = (0, 0);
        for (subscribers_id, it) in self.subscribers.iter() {
            let (pattern_id, is_group) = match it.kind {
                Kind::Pattern { .. } => (subscribers_id, false),
                Kind::Group { pattern_id, .. } => (pattern_id, true),
            };
            let shape = self.subscribers[pattern_id].shape();
            assert!(
                !it.subscriptions.is_empty()
                    || !self.subscribers[subscribers_id].groups().is_empty(),
                "{:?} has no subscription and should be gone",
                it.name
            );
            if is_group {
                groups += 1;
            } else if shape != NONE {
                *patterns_of.entry(shape).or_default() += 1;
            }
            for subscription in it.subscriptions.iter(&self.subscriptions) {
                let Subscription { conn, .. } = self.subscriptions[subscription];
                for of in self.used(subscribers_id) {
                    *uses.entry((conn.0, of)).or_default() += 1;
                }
                subscriptions += 1;
            }
        }
        assert_eq!(
            subscriptions,
            self.subscriptions.len(),
            "a subscription is nowhere"
        );
        assert_eq!(groups, self.by_group.len(), "groups are miscounted");
        self.shapes
            .check(|shape| patterns_of.get(&shape).copied().unwrap_or(0));
        assert_eq!(uses.len(), self.uses.len(), "uses are miscounted");
        let mut shapes: BTreeMap<u32, u8> = BTreeMap::new();
        for ((conn, of), expected) in uses {
            let counted = self.uses.count(ConnIndex(conn), of);
            assert_eq!(counted, expected, "{of:?} is miscounted");
            *shapes.entry(conn).or_default() += u8::from(matches!(of, Used::Shape(_)));
        }
        for (conn, expected) in shapes {
            let counted = conns[ConnIndex(conn)].shapes[self.topic as usize];
            assert_eq!(counted, expected, "shapes of a connection are miscounted");
        }
    }

    // ---- finding ----

    /// The wildcards of a pattern. Observers give a name, in which a star is only a star.
    fn wildcards(&self, pattern: &[u8]) -> Option<Wildcards> {
        if self.topic == Topic::Observe {
            return None;
        }
        Wildcards::of(pattern)
    }

    fn find_subscribers(&self, pattern: &[u8], group: &[u8]) -> Option<u32> {
        let pattern_id = self.find_pattern(pattern)?;
        self.find_group(pattern_id, group)
    }

    fn find_pattern(&self, pattern: &[u8]) -> Option<u32> {
        let shape = match self.wildcards(pattern) {
            Some(wildcards) => self.shapes.find(&wildcards)?,
            None => NONE,
        };
        self.by_text
            .find(self.text_hash(shape, pattern), |pattern_id| {
                self.subscribers[pattern_id].name.as_bytes() == pattern
            })
    }

    /// Those of a pattern that named this group; the pattern itself if it is empty.
    fn find_group(&self, pattern_id: u32, group: &[u8]) -> Option<u32> {
        if group.is_empty() {
            return Some(pattern_id);
        }
        self.by_group
            .find(self.group_hash(pattern_id, group), |group_id| {
                let it = &self.subscribers[group_id];
                matches!(it.kind, Kind::Group { pattern_id: of, .. } if of == pattern_id)
                    && it.name.as_bytes() == group
            })
    }

    fn find_subscription(&self, conn: ConnIndex, subscribers_id: u32) -> Option<u32> {
        self.by_subscription.find(
            self.subscription_hash(conn, subscribers_id),
            |subscription| {
                self.subscriptions[subscription].conn == conn
                    && self.subscriptions[subscription].subscribers_id == subscribers_id
            },
        )
    }

    fn text_hash(&self, shape: u32, text: &[u8]) -> u32 {
        match shape {
            NONE => self.by_text.hash(text),
            shape => self.shapes.hash(shape, text),
        }
    }

    fn group_hash(&self, pattern_id: u32, group: &[u8]) -> u32 {
        self.by_group.hash(group) ^ pattern_id.wrapping_mul(0x9e37_79b9)
    }

    fn subscription_hash(&self, conn: ConnIndex, subscribers_id: u32) -> u32 {
        self.by_subscription
            .hash(&(u64::from(conn.0) << 32 | u64::from(subscribers_id)).to_le_bytes())
    }

    // ---- patterns and groups ----

    fn insert_pattern(&mut self, pattern: &[u8], wildcards: Option<Wildcards>) -> u32 {
        let shape = wildcards.map_or(NONE, |wildcards| self.shapes.add(wildcards));
        let groups = Ring::new();
        let pattern_id = self
            .subscribers
            .insert(Subscribers::new(pattern, Kind::Pattern { shape, groups }));
        self.by_text
            .insert(self.text_hash(shape, pattern), pattern_id);
        pattern_id
    }

    fn insert_group(&mut self, pattern_id: u32, group: &[u8]) -> u32 {
        let turn = NONE;
        let group_id = self
            .subscribers
            .insert(Subscribers::new(group, Kind::Group { pattern_id, turn }));
        self.by_group
            .insert(self.group_hash(pattern_id, group), group_id);
        let mut groups = self.subscribers[pattern_id].groups();
        groups.push_back(&mut self.subscribers, group_id);
        self.subscribers[pattern_id].set_groups(groups);
        group_id
    }

    /// Removes a pattern, unless it has subscriptions or groups; returns how many bytes were hashed.
    fn remove_pattern(&mut self, pattern_id: u32) -> usize {
        let it = &self.subscribers[pattern_id];
        if !it.subscriptions.is_empty() || !it.groups().is_empty() {
            return 0;
        }
        let (shape, name) = (it.shape(), it.name.as_bytes());
        let (hash, hashed_bytes) = (self.text_hash(shape, name), name.len());
        self.by_text.remove(hash, pattern_id);
        if shape != NONE {
            self.shapes.remove(shape);
        }
        self.subscribers.remove(pattern_id);
        hashed_bytes
    }

    fn remove_group(&mut self, pattern_id: u32, group_id: u32) -> usize {
        let mut groups = self.subscribers[pattern_id].groups();
        groups.unlink(&mut self.subscribers, group_id);
        self.subscribers[pattern_id].set_groups(groups);
        let Subscribers { name, .. } = self.subscribers.remove(group_id);
        let name = name.as_bytes();
        self.by_group
            .remove(self.group_hash(pattern_id, name), group_id);
        name.len()
    }

    // ---- subscriptions ----

    fn insert_subscription(&mut self, conns: &mut Conns, conn: ConnIndex, subscribers_id: u32) {
        let subscription = self.subscriptions.insert(Subscription {
            conn,
            subscribers_id,
            of_subscribers: Link::OUT,
            of_conn: Link::OUT,
        });
        self.by_subscription
            .insert(self.subscription_hash(conn, subscribers_id), subscription);
        if self.subscribers[subscribers_id].subscriptions.is_empty() {
            self.all.push_back(&mut self.subscribers, subscribers_id);
        }
        self.subscribers[subscribers_id]
            .subscriptions
            .push_back(&mut self.subscriptions, subscription);
        if self.subscribers[subscribers_id].turn() == NONE {
            self.subscribers[subscribers_id].set_turn(subscription);
        }
        conns[conn].subscriptions[self.topic as usize]
            .push_back(&mut self.subscriptions, subscription);
        for of in self.used(subscribers_id) {
            let is_first = self.uses.add(conn, of);
            if is_first && matches!(of, Used::Shape(_)) {
                conns[conn].shapes[self.topic as usize] += 1;
            }
        }
    }

    /// Removes a subscription, and what it was the last one of; returns how many bytes of names
    /// were hashed for that.
    fn remove_subscription(&mut self, conns: &mut Conns, subscription: u32) -> usize {
        let Subscription {
            conn,
            subscribers_id,
            ..
        } = self.subscriptions[subscription];
        for of in self.used(subscribers_id) {
            let was_last = self.uses.remove(conn, of);
            if was_last && matches!(of, Used::Shape(_)) {
                conns[conn].shapes[self.topic as usize] -= 1;
            }
        }
        if self.subscribers[subscribers_id].turn() == subscription {
            let next = self.behind(subscription);
            self.subscribers[subscribers_id].set_turn(next);
        }
        let it = &mut self.subscribers[subscribers_id];
        it.subscriptions
            .unlink(&mut self.subscriptions, subscription);
        conns[conn].subscriptions[self.topic as usize]
            .unlink(&mut self.subscriptions, subscription);
        self.by_subscription
            .remove(self.subscription_hash(conn, subscribers_id), subscription);
        self.subscriptions.remove(subscription);
        if !self.subscribers[subscribers_id].subscriptions.is_empty() {
            return 0;
        }
        self.all.unlink(&mut self.subscribers, subscribers_id);
        match self.subscribers[subscribers_id].kind {
            Kind::Pattern { .. } => self.remove_pattern(subscribers_id),
            Kind::Group { pattern_id, .. } => {
                self.remove_group(pattern_id, subscribers_id) + self.remove_pattern(pattern_id)
            }
        }
    }

    // ---- what a connection may not have much of ----

    /// Whether a connection may subscribe to a pattern with these wildcards.
    fn may_use(&self, conns: &Conns, conn: ConnIndex, wildcards: &Wildcards) -> bool {
        let has_room = conns[conn].shapes[self.topic as usize] < SHAPES_PER_CONN_MAX;
        match self.shapes.find(wildcards) {
            Some(shape) => has_room || self.uses.count(conn, Used::Shape(shape)) > 0,
            None => has_room && self.shapes.has_room_for(wildcards),
        }
    }

    /// Whether a connection may join one more group of a pattern.
    fn may_join_group(&self, conn: ConnIndex, pattern_id: u32) -> bool {
        self.uses.count(conn, Used::GroupsOf(pattern_id)) < GROUPS_PER_PATTERN_MAX
    }

    /// What a subscription is counted under.
    fn used(&self, subscribers_id: u32) -> impl Iterator<Item = Used> + use<> {
        let (pattern_id, groups) = match self.subscribers[subscribers_id].kind {
            Kind::Pattern { .. } => (subscribers_id, None),
            Kind::Group { pattern_id, .. } => (pattern_id, Some(Used::GroupsOf(pattern_id))),
        };
        let shape = self.subscribers[pattern_id].shape();
        let shape = (shape != NONE).then_some(Used::Shape(shape));
        shape.into_iter().chain(groups)
    }
}
