//! Who hears what: patterns in a tree of tokens, so that finding the hearers of a name costs its
//! tokens and its hearers, not the number of patterns.
//!
//! Three of these exist: listeners of signals, watchers of keys, observers of leaders. A *topic* is a
//! pattern and perhaps a group; a *seat* is one client at one topic. A client that cannot take any
//! more is not counted as having heard. Never says anything itself: it only finds out who would hear.

use super::arena::{Arena, Chain, Link, Linked, NONE};
use super::client::Clients;
use super::pattern::{self, Step};
use super::types::Effects;
use crate::base::ClientId;
use crate::key::Key;
use crate::keymap::KeyMap;

/// Which of the three; a client's seats are kept apart by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ear {
    Listen = 0,
    Watch = 1,
    Observe = 2,
}

/// How many kinds of seats a client can have.
pub(super) const EARS: usize = 3;

/// A pattern and the clients that subscribed to it.
pub(super) struct Topic {
    pub(super) pattern: Key,
    /// Empty: everyone at this topic hears. Otherwise one of them does, in turn.
    pub(super) group: Key,
    pub(super) seats: Chain<OfTopic>,
    /// Whose turn it is in a group; `NONE` once the last has had its own: then it is that of whoever
    /// joins next, or else the first's.
    turn: u32,
    node: u32,
    of_node: Link,
    of_audience: Link,
    hash: u32,
}

/// The chain of the topics at one place in the tree.
struct OfNode;

impl Linked<OfNode> for Topic {
    fn link(&self) -> Link {
        self.of_node
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_node
    }
}

/// The chain of all topics.
struct OfAudience;

impl Linked<OfAudience> for Topic {
    fn link(&self) -> Link {
        self.of_audience
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_audience
    }
}

/// One client at one topic.
pub(super) struct Seat {
    client: u32,
    topic: u32,
    of_topic: Link,
    of_client: Link,
}

/// The chain of the seats at one topic.
pub(super) struct OfTopic;

impl Linked<OfTopic> for Seat {
    fn link(&self) -> Link {
        self.of_topic
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_topic
    }
}

/// The chain of one client's seats in one audience.
pub(super) struct SeatsOfClient;

impl Linked<SeatsOfClient> for Seat {
    fn link(&self) -> Link {
        self.of_client
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_client
    }
}

/// A place in the tree: what may follow, and the topics whose pattern ends here.
struct Node {
    parent: u32,
    /// The token that leads here from the parent, unless it is the parent's `any`.
    token: Key,
    /// How many places a token leads to from here.
    children: u32,
    /// Where any token leads.
    any: u32,
    /// Topics whose pattern ends here.
    here: Chain<OfNode>,
    /// Topics whose pattern ends here with `>`.
    rest: Chain<OfNode>,
}

impl Node {
    fn new(parent: u32, token: &[u8]) -> Self {
        Self {
            parent,
            token: token.into(),
            children: 0,
            any: NONE,
            here: Chain::new(),
            rest: Chain::new(),
        }
    }

    fn is_bare(&self) -> bool {
        self.children == 0 && self.any == NONE && self.here.is_empty() && self.rest.is_empty()
    }
}

pub(super) struct Audience {
    ear: Ear,
    nodes: Arena<Node>,
    /// Place and token → the next place. One map for the whole tree: a place with one way on, which is
    /// most of them in a long pattern, costs no table of its own.
    by_token: KeyMap,
    root: u32,
    /// Places looked at and hearers found since the work was last asked for.
    work: u64,
    topics: Arena<Topic>,
    all: Chain<OfAudience>,
    by_name: KeyMap,
    seats: Arena<Seat>,
    by_seat: KeyMap,
}

impl Audience {
    pub(super) fn new(ear: Ear, seed: [u64; 2]) -> Self {
        let mut nodes = Arena::new();
        let root = nodes.insert(Node::new(NONE, b""));
        Self {
            ear,
            nodes,
            by_token: KeyMap::new(seed),
            root,
            work: 0,
            topics: Arena::new(),
            all: Chain::new(),
            by_name: KeyMap::new(seed),
            seats: Arena::new(),
            by_seat: KeyMap::new(seed),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    /// All topics, in the order in which they were first subscribed to.
    pub(super) fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.all.iter(&self.topics).map(|topic| &self.topics[topic])
    }

    /// How many places and topics the tree has, but for its root; for checks.
    pub(super) fn tree_len(&self) -> usize {
        self.nodes.len() - 1 + self.topics.len()
    }

    /// How many topics there are.
    pub(super) fn topic_count(&self) -> u32 {
        self.all.len()
    }

    pub(super) fn has_seat(&self, client: u32, pattern: &[u8], group: &[u8]) -> bool {
        self.find_seat(client, pattern, group).is_some()
    }

    /// Gives the client a seat; it must not have one there.
    pub(super) fn join(
        &mut self,
        clients: &mut Clients,
        client: u32,
        pattern: &[u8],
        group: &[u8],
    ) {
        let topic = match self.find_topic(pattern, group) {
            Some(topic) => topic,
            None => self.insert_topic(pattern, group),
        };
        let (of_topic, of_client) = (Link::OUT, Link::OUT);
        let seat = self.seats.insert(Seat {
            client,
            topic,
            of_topic,
            of_client,
        });
        self.by_seat.insert(self.seat_hash(client, topic), seat);
        self.topics[topic].seats.push_back(&mut self.seats, seat);
        if self.topics[topic].turn == NONE {
            self.topics[topic].turn = seat;
        }
        clients[client].seats[self.ear as usize].push_back(&mut self.seats, seat);
    }

    /// Takes the client's seat, if it has one there.
    pub(super) fn leave(
        &mut self,
        clients: &mut Clients,
        client: u32,
        pattern: &[u8],
        group: &[u8],
    ) {
        if let Some(seat) = self.find_seat(client, pattern, group) {
            self.remove_seat(clients, seat);
        }
    }

    /// Takes all of the client's seats, up to `budget`; says whether none is left.
    pub(super) fn leave_all(
        &mut self,
        clients: &mut Clients,
        client: u32,
        budget: &mut u32,
    ) -> bool {
        while let Some(seat) = clients[client].seats[self.ear as usize].head() {
            if *budget == 0 {
                return false;
            }
            let pruned = self.remove_seat(clients, seat);
            *budget = budget.saturating_sub(1 + pruned);
        }
        true
    }

    /// Everyone who hears `name`: each client once for all of its own seats, and one client for
    /// every matching group. Those who cannot take any more are reported in `out` instead; `but`,
    /// who need not be told, is neither told nor reported for seats of its own.
    pub(super) fn hearers(
        &mut self,
        clients: &mut Clients,
        name: &[u8],
        but: Option<u32>,
        out: &mut Effects,
    ) -> Vec<ClientId> {
        let mut hearers = Vec::new();
        if self.seats.is_empty() {
            return hearers;
        }
        let mut topics = Vec::new();
        self.work += self.matching(self.root, name, &mut topics);
        clients.begin_cast(but);
        let (grouped, open): (Vec<u32>, Vec<u32>) = topics
            .into_iter()
            .partition(|&topic| !self.topics[topic].group.is_empty());
        for topic in open {
            for seat in self.topics[topic].seats.iter(&self.seats) {
                clients.tell_once(self.seats[seat].client, &mut hearers, out);
            }
        }
        for topic in grouped {
            hearers.extend(self.next_of_group(clients, topic, out));
        }
        self.work += hearers.len() as u64;
        hearers
    }

    /// The member of a group whose turn it is, or the next one that can take more. If none can, the
    /// one whose turn it is has been too slow for everybody.
    fn next_of_group(
        &mut self,
        clients: &mut Clients,
        topic: u32,
        out: &mut Effects,
    ) -> Option<ClientId> {
        let Topic { turn, seats, .. } = &self.topics[topic];
        let head = seats.head()?;
        let first = if *turn == NONE { head } else { *turn };
        let mut seat = first;
        loop {
            if let Some(id) = clients.tell_as_member(self.seats[seat].client) {
                self.topics[topic].turn = self.behind(seat);
                return Some(id);
            }
            self.work += 1;
            seat = match self.behind(seat) {
                NONE => head,
                next => next,
            };
            if seat == first {
                self.topics[topic].turn = self.behind(first);
                clients.report(self.seats[first].client, out);
                return None;
            }
        }
    }

    /// The seat that was taken after this one, or `NONE`.
    fn behind(&self, seat: u32) -> u32 {
        let next = <Seat as Linked<OfTopic>>::link(&self.seats[seat]).next();
        next.unwrap_or(NONE)
    }

    /// Collects the topics that match `name` from `node` on; says how many places it looked at.
    fn matching(&self, node: u32, name: &[u8], found: &mut Vec<u32>) -> u64 {
        let it = &self.nodes[node];
        found.extend(it.rest.iter(&self.topics));
        let (token, rest) = match name.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&name[..dot], Some(&name[dot + 1..])),
            None => (name, None),
        };
        let mut work = 1;
        let by_token = self.child(node, token);
        for child in by_token
            .into_iter()
            .chain((it.any != NONE).then_some(it.any))
        {
            match rest {
                Some(rest) => work += self.matching(child, rest, found),
                None => found.extend(self.nodes[child].here.iter(&self.topics)),
            }
        }
        work
    }

    /// Where a token leads from a place.
    fn child(&self, node: u32, token: &[u8]) -> Option<u32> {
        if self.nodes[node].children == 0 {
            return None;
        }
        self.by_token.find(self.token_hash(node, token), |child| {
            let it = &self.nodes[child];
            it.parent == node && it.token.as_bytes() == token
        })
    }

    fn token_hash(&self, node: u32, token: &[u8]) -> u32 {
        self.by_token.hash(token) ^ node.wrapping_mul(0x9e37_79b9)
    }

    /// Gives back a part of what a crowd has left behind; says whether there is more.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        self.seats.tidy() || self.topics.tidy() || self.nodes.tidy()
    }

    pub(super) fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }

    fn find_topic(&self, pattern: &[u8], group: &[u8]) -> Option<u32> {
        self.by_name.find(self.topic_hash(pattern, group), |topic| {
            let it = &self.topics[topic];
            it.pattern.as_bytes() == pattern && it.group.as_bytes() == group
        })
    }

    fn find_seat(&self, client: u32, pattern: &[u8], group: &[u8]) -> Option<u32> {
        let topic = self.find_topic(pattern, group)?;
        self.by_seat.find(self.seat_hash(client, topic), |seat| {
            self.seats[seat].client == client && self.seats[seat].topic == topic
        })
    }

    fn insert_topic(&mut self, pattern: &[u8], group: &[u8]) -> u32 {
        let (node, is_rest) = self.grow(pattern);
        let hash = self.topic_hash(pattern, group);
        let topic = self.topics.insert(Topic {
            pattern: pattern.into(),
            group: group.into(),
            seats: Chain::new(),
            turn: NONE,
            node,
            of_node: Link::OUT,
            of_audience: Link::OUT,
            hash,
        });
        self.by_name.insert(hash, topic);
        self.all.push_back(&mut self.topics, topic);
        let it = &mut self.nodes[node];
        let chain = if is_rest { &mut it.rest } else { &mut it.here };
        chain.push_back(&mut self.topics, topic);
        topic
    }

    /// The place in the tree where a pattern ends, made if need be, and whether it ends with `>`.
    fn grow(&mut self, pattern: &[u8]) -> (u32, bool) {
        let mut node = self.root;
        for step in self.steps(pattern) {
            node = match step {
                Step::Rest => return (node, true),
                Step::Any if self.nodes[node].any != NONE => self.nodes[node].any,
                Step::Any => {
                    let child = self.nodes.insert(Node::new(node, b"*"));
                    self.nodes[node].any = child;
                    child
                }
                Step::Token(token) => match self.child(node, token) {
                    Some(child) => child,
                    None => {
                        let child = self.nodes.insert(Node::new(node, token));
                        self.by_token.insert(self.token_hash(node, token), child);
                        self.nodes[node].children += 1;
                        child
                    }
                },
            };
        }
        (node, false)
    }

    /// Leaders are observed by name, in which a star is a star.
    fn steps<'p>(&self, pattern: &'p [u8]) -> impl Iterator<Item = Step<'p>> + use<'p> {
        let by_name = self.ear == Ear::Observe;
        let plain = by_name.then(|| pattern::tokens(pattern).map(Step::Token));
        let wild = (!by_name).then(|| pattern::steps(pattern));
        plain
            .into_iter()
            .flatten()
            .chain(wild.into_iter().flatten())
    }

    /// Says how much work it was besides.
    fn remove_seat(&mut self, clients: &mut Clients, seat: u32) -> u32 {
        let Seat { client, topic, .. } = self.seats[seat];
        if self.topics[topic].turn == seat {
            self.topics[topic].turn = self.behind(seat);
        }
        self.topics[topic].seats.unlink(&mut self.seats, seat);
        clients[client].seats[self.ear as usize].unlink(&mut self.seats, seat);
        self.by_seat.remove(self.seat_hash(client, topic), seat);
        self.seats.remove(seat);
        if self.topics[topic].seats.is_empty() {
            return self.remove_topic(topic);
        }
        0
    }

    fn remove_topic(&mut self, topic: u32) -> u32 {
        let Topic { node, hash, .. } = self.topics[topic];
        let is_rest = self.ear != Ear::Observe
            && pattern::steps(self.topics[topic].pattern.as_bytes()).last() == Some(Step::Rest);
        let it = &mut self.nodes[node];
        let chain = if is_rest { &mut it.rest } else { &mut it.here };
        chain.unlink(&mut self.topics, topic);
        self.all.unlink(&mut self.topics, topic);
        self.by_name.remove(hash, topic);
        self.topics.remove(topic);
        self.prune(node)
    }

    /// Removes places that lead nowhere any more; says how many.
    fn prune(&mut self, mut node: u32) -> u32 {
        let mut pruned = 0;
        while node != self.root && self.nodes[node].is_bare() {
            let Node { parent, token, .. } = self.nodes.remove(node);
            let it = &mut self.nodes[parent];
            if it.any == node {
                it.any = NONE;
            } else {
                it.children -= 1;
                self.by_token
                    .remove(self.token_hash(parent, token.as_bytes()), node);
            }
            node = parent;
            pruned += 1;
        }
        pruned
    }

    /// Need not tell every pair apart: whoever looks compares the names.
    fn topic_hash(&self, pattern: &[u8], group: &[u8]) -> u32 {
        self.by_name.hash(pattern) ^ self.by_name.hash(group).rotate_left(16)
    }

    fn seat_hash(&self, client: u32, topic: u32) -> u32 {
        self.by_seat
            .hash(&(u64::from(client) << 32 | u64::from(topic)).to_le_bytes())
    }
}
