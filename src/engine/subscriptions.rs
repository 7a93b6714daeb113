//! Who hears what: patterns in a tree of tokens, so that finding the recipients of a name costs its
//! tokens and its recipients, not the number of patterns.
//!
//! Three of these exist: listeners of signals, watchers of keys, observers of leaders. A *pattern*
//! perhaps has a group; a *subscription* is one conn at one pattern. A conn that cannot take any
//! more is not counted as having heard. Never says anything itself: it only finds out who would hear.

use super::arena::{Arena, Chain, Link, Linked, NONE};
use super::conn::{ConnIndex, Conns};
use super::pattern::{self, Step};
use super::types::Effects;
use crate::base::ConnId;
use crate::key::Key;
use crate::keymap::KeyMap;

/// Which of the three; a conn's subscriptions are kept apart by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Listen = 0,
    Watch = 1,
    Observe = 2,
}

/// How many kinds of subscriptions a conn can have.
pub(super) const TOPICS: usize = 3;

/// A pattern and the conns that subscribed to it.
pub(super) struct Pattern {
    pub(super) pattern: Key,
    /// Empty: everyone at this pattern hears. Otherwise one of them does, in turn.
    pub(super) group: Key,
    pub(super) subscriptions: Chain<OfPattern>,
    /// Whose turn it is in a group; `NONE` once the last has had its own: then it is that of whoever
    /// joins next, or else the first's.
    turn: u32,
    node: u32,
    of_node: Link,
    of_all: Link,
    hash: u32,
}

/// The chain of the patterns at one node in the tree.
struct OfNode;

impl Linked<OfNode> for Pattern {
    fn link(&self) -> Link {
        self.of_node
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_node
    }
}

/// The chain of all patterns.
struct OfSubscriptions;

impl Linked<OfSubscriptions> for Pattern {
    fn link(&self) -> Link {
        self.of_all
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_all
    }
}

/// One conn at one pattern.
pub(super) struct Subscription {
    conn: ConnIndex,
    pattern_id: u32,
    of_pattern: Link,
    of_conn: Link,
}

/// The chain of the subscriptions at one pattern.
pub(super) struct OfPattern;

impl Linked<OfPattern> for Subscription {
    fn link(&self) -> Link {
        self.of_pattern
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_pattern
    }
}

/// The chain of one conn's subscriptions to one topic.
pub(super) struct SubscriptionsOfConn;

impl Linked<SubscriptionsOfConn> for Subscription {
    fn link(&self) -> Link {
        self.of_conn
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.of_conn
    }
}

/// A node in the tree: what may follow, and the patterns that end here.
struct Node {
    parent: u32,
    /// The token that leads here from the parent, unless it is the parent's `any`.
    token: Key,
    /// How many nodes a token leads to from here.
    children: u32,
    /// Where any token leads.
    any: u32,
    /// Patterns that end here.
    here: Chain<OfNode>,
    /// Patterns that end here with `>`.
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

pub(super) struct Subscriptions {
    topic: Topic,
    nodes: Arena<Node>,
    /// Node and token → the next node. One map for the whole tree: a node with one way on, which is
    /// most of them in a long pattern, costs no table of its own.
    by_token: KeyMap,
    root: u32,
    /// Nodes looked at and recipients found since the work was last asked for.
    work: u64,
    patterns: Arena<Pattern>,
    all: Chain<OfSubscriptions>,
    by_name: KeyMap,
    subscriptions: Arena<Subscription>,
    by_subscription: KeyMap,
}

impl Subscriptions {
    pub(super) fn new(topic: Topic, seed: [u64; 2]) -> Self {
        let mut nodes = Arena::new();
        let root = nodes.insert(Node::new(NONE, b""));
        Self {
            topic,
            nodes,
            by_token: KeyMap::new(seed),
            root,
            work: 0,
            patterns: Arena::new(),
            all: Chain::new(),
            by_name: KeyMap::new(seed),
            subscriptions: Arena::new(),
            by_subscription: KeyMap::new(seed),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// All patterns, in the order in which they were first subscribed to.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.all
            .iter(&self.patterns)
            .map(|pattern_id| &self.patterns[pattern_id])
    }

    /// How many nodes and patterns the tree has, but for its root; for checks.
    pub(super) fn tree_len(&self) -> usize {
        self.nodes.len() - 1 + self.patterns.len()
    }

    /// How many patterns there are.
    pub(super) fn pattern_count(&self) -> u32 {
        self.all.len()
    }

    pub(super) fn is_subscribed(&self, conn: ConnIndex, pattern: &[u8], group: &[u8]) -> bool {
        self.find_subscription(conn, pattern, group).is_some()
    }

    /// Gives the conn a subscription; it must not have one there.
    pub(super) fn join(
        &mut self,
        conns: &mut Conns,
        conn: ConnIndex,
        pattern: &[u8],
        group: &[u8],
    ) {
        let pattern_id = match self.find_pattern(pattern, group) {
            Some(pattern_id) => pattern_id,
            None => self.insert_pattern(pattern, group),
        };
        let (of_pattern, of_conn) = (Link::OUT, Link::OUT);
        let subscription = self.subscriptions.insert(Subscription {
            conn,
            pattern_id,
            of_pattern,
            of_conn,
        });
        self.by_subscription
            .insert(self.subscription_hash(conn, pattern_id), subscription);
        self.patterns[pattern_id]
            .subscriptions
            .push_back(&mut self.subscriptions, subscription);
        if self.patterns[pattern_id].turn == NONE {
            self.patterns[pattern_id].turn = subscription;
        }
        conns[conn].subscriptions[self.topic as usize]
            .push_back(&mut self.subscriptions, subscription);
    }

    /// Takes the conn's subscription, if it has one there.
    pub(super) fn leave(
        &mut self,
        conns: &mut Conns,
        conn: ConnIndex,
        pattern: &[u8],
        group: &[u8],
    ) {
        if let Some(subscription) = self.find_subscription(conn, pattern, group) {
            self.remove_subscription(conns, subscription);
        }
    }

    /// Takes all of the conn's subscriptions, up to `budget`; says whether none is left.
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
            let pruned = self.remove_subscription(conns, subscription);
            *budget = budget.saturating_sub(1 + pruned);
        }
        true
    }

    /// Everyone who hears `name`: each conn once for all of its own subscriptions, and one conn for
    /// every matching group. Those who cannot take any more are reported in `out` instead; `but`,
    /// who need not be told, is neither told nor reported for subscriptions of its own.
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
        let mut patterns = Vec::new();
        self.work += self.matching(self.root, name, &mut patterns);
        conns.begin_broadcast(but);
        let (grouped, open): (Vec<u32>, Vec<u32>) = patterns
            .into_iter()
            .partition(|&pattern_id| !self.patterns[pattern_id].group.is_empty());
        for pattern_id in open {
            for subscription in self.patterns[pattern_id]
                .subscriptions
                .iter(&self.subscriptions)
            {
                conns.tell_once(self.subscriptions[subscription].conn, &mut recipients, out);
            }
        }
        for pattern_id in grouped {
            recipients.extend(self.next_of_group(conns, pattern_id, out));
        }
        self.work += recipients.len() as u64;
        recipients
    }

    /// The member of a group whose turn it is, or the next one that can take more. If none can, the
    /// one whose turn it is has been too slow for everybody.
    fn next_of_group(
        &mut self,
        conns: &mut Conns,
        pattern_id: u32,
        out: &mut Effects,
    ) -> Option<ConnId> {
        let Pattern {
            turn,
            subscriptions,
            ..
        } = &self.patterns[pattern_id];
        let head = subscriptions.head()?;
        let first = if *turn == NONE { head } else { *turn };
        let mut subscription = first;
        loop {
            if let Some(id) = conns.tell_as_member(self.subscriptions[subscription].conn) {
                self.patterns[pattern_id].turn = self.behind(subscription);
                return Some(id);
            }
            self.work += 1;
            subscription = match self.behind(subscription) {
                NONE => head,
                next => next,
            };
            if subscription == first {
                self.patterns[pattern_id].turn = self.behind(first);
                conns.report(self.subscriptions[first].conn, out);
                return None;
            }
        }
    }

    /// The subscription that was taken after this one, or `NONE`.
    fn behind(&self, subscription: u32) -> u32 {
        let next =
            <Subscription as Linked<OfPattern>>::link(&self.subscriptions[subscription]).next();
        next.unwrap_or(NONE)
    }

    /// Collects the patterns that match `name` from `node` on; says how many nodes it looked at.
    fn matching(&self, node: u32, name: &[u8], found: &mut Vec<u32>) -> u64 {
        let it = &self.nodes[node];
        found.extend(it.rest.iter(&self.patterns));
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
                None => found.extend(self.nodes[child].here.iter(&self.patterns)),
            }
        }
        work
    }

    /// Where a token leads from a node.
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
        self.subscriptions.tidy() || self.patterns.tidy() || self.nodes.tidy()
    }

    pub(super) fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }

    fn find_pattern(&self, pattern: &[u8], group: &[u8]) -> Option<u32> {
        self.by_name
            .find(self.pattern_hash(pattern, group), |pattern_id| {
                let it = &self.patterns[pattern_id];
                it.pattern.as_bytes() == pattern && it.group.as_bytes() == group
            })
    }

    fn find_subscription(&self, conn: ConnIndex, pattern: &[u8], group: &[u8]) -> Option<u32> {
        let pattern_id = self.find_pattern(pattern, group)?;
        self.by_subscription
            .find(self.subscription_hash(conn, pattern_id), |subscription| {
                self.subscriptions[subscription].conn == conn
                    && self.subscriptions[subscription].pattern_id == pattern_id
            })
    }

    fn insert_pattern(&mut self, pattern: &[u8], group: &[u8]) -> u32 {
        let (node, is_rest) = self.grow(pattern);
        let hash = self.pattern_hash(pattern, group);
        let pattern_id = self.patterns.insert(Pattern {
            pattern: pattern.into(),
            group: group.into(),
            subscriptions: Chain::new(),
            turn: NONE,
            node,
            of_node: Link::OUT,
            of_all: Link::OUT,
            hash,
        });
        self.by_name.insert(hash, pattern_id);
        self.all.push_back(&mut self.patterns, pattern_id);
        let it = &mut self.nodes[node];
        let chain = if is_rest { &mut it.rest } else { &mut it.here };
        chain.push_back(&mut self.patterns, pattern_id);
        pattern_id
    }

    /// The node in the tree where a pattern ends, made if need be, and whether it ends with `>`.
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
        let by_name = self.topic == Topic::Observe;
        let plain = by_name.then(|| pattern::tokens(pattern).map(Step::Token));
        let wild = (!by_name).then(|| pattern::steps(pattern));
        plain
            .into_iter()
            .flatten()
            .chain(wild.into_iter().flatten())
    }

    /// Says how much work it was besides.
    fn remove_subscription(&mut self, conns: &mut Conns, subscription: u32) -> u32 {
        let Subscription {
            conn, pattern_id, ..
        } = self.subscriptions[subscription];
        if self.patterns[pattern_id].turn == subscription {
            self.patterns[pattern_id].turn = self.behind(subscription);
        }
        self.patterns[pattern_id]
            .subscriptions
            .unlink(&mut self.subscriptions, subscription);
        conns[conn].subscriptions[self.topic as usize]
            .unlink(&mut self.subscriptions, subscription);
        self.by_subscription
            .remove(self.subscription_hash(conn, pattern_id), subscription);
        self.subscriptions.remove(subscription);
        if self.patterns[pattern_id].subscriptions.is_empty() {
            return self.remove_pattern(pattern_id);
        }
        0
    }

    fn remove_pattern(&mut self, pattern_id: u32) -> u32 {
        let Pattern { node, hash, .. } = self.patterns[pattern_id];
        let is_rest = self.topic != Topic::Observe
            && pattern::steps(self.patterns[pattern_id].pattern.as_bytes()).last()
                == Some(Step::Rest);
        let it = &mut self.nodes[node];
        let chain = if is_rest { &mut it.rest } else { &mut it.here };
        chain.unlink(&mut self.patterns, pattern_id);
        self.all.unlink(&mut self.patterns, pattern_id);
        self.by_name.remove(hash, pattern_id);
        self.patterns.remove(pattern_id);
        self.prune(node)
    }

    /// Removes nodes that lead nowhere any more; says how many.
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
    fn pattern_hash(&self, pattern: &[u8], group: &[u8]) -> u32 {
        self.by_name.hash(pattern) ^ self.by_name.hash(group).rotate_left(16)
    }

    fn subscription_hash(&self, conn: ConnIndex, pattern_id: u32) -> u32 {
        self.by_subscription
            .hash(&(u64::from(conn.0) << 32 | u64::from(pattern_id)).to_le_bytes())
    }
}
