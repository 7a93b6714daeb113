//! A B+-tree of segments: rows in leaves, and above them the first key and the summary of each node.
//!
//! Nodes are wide, so that a tree of a hundred thousand rows is only one or two levels higher than
//! one of a thousand, and a search waits for memory about once more.
//!
//! Allocates nothing while it is empty, and gives memory back as rows go. `leaves.rs` is where the
//! rows are, `tree_find.rs` how they are found, this file how they come and go.

use std::mem;

use super::leaves::{LEAF_ROWS_MAX, LEAF_ROWS_MIN, Leaf, Leaves};
use super::list::List;
use super::order::{Order, Row};
use crate::memory::block_bytes;

/// Most children of an inner node.
pub(super) const CHILDREN_MAX: usize = 32;

/// An inner node with fewer children is merged with a neighbour, or takes some from it.
pub(super) const CHILDREN_MIN: usize = CHILDREN_MAX / 4;

/// Two neighbours become one node only if it has room left then. Otherwise whoever locks and unlocks
/// the same range again and again where a node is full would split it and put it together each time.
const MERGED_CHILDREN_MAX: usize = CHILDREN_MAX * 3 / 4;
const MERGED_ROWS_MAX: usize = LEAF_ROWS_MAX * 3 / 4;

/// Rows in one order.
pub(super) struct Tree<O: Order> {
    pub(super) root: Node<O>,
    pub(super) leaves: Leaves,
}

pub(super) enum Node<O: Order> {
    Leaf(Leaf),
    Inner(Box<Inner<O>>),
}

impl<O: Order> Default for Node<O> {
    fn default() -> Self {
        Self::Leaf(Leaf::EMPTY)
    }
}

/// Each list has one entry for each child, and room for one child too many.
pub(super) struct Inner<O: Order> {
    pub(super) summaries: List<O::Summary, ROOM>,
    pub(super) children: List<Node<O>, ROOM>,
    /// The key of the first row below each child.
    pub(super) keys: List<O::Key, ROOM>,
}

const ROOM: usize = CHILDREN_MAX + 1;

impl<O: Order> Tree<O> {
    pub(super) const fn new() -> Self {
        Self {
            root: Node::Leaf(Leaf::EMPTY),
            leaves: Leaves::new(),
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.leaves.memory() + self.leaves.inner_count * block_bytes(size_of::<Inner<O>>())
    }

    /// Adds a row, which the caller knows is absent.
    pub(super) fn insert(&mut self, row: Row) {
        let Some(right) = self.root.insert(row, true, &mut self.leaves) else {
            return;
        };
        let left = mem::take(&mut self.root);
        let mut root = Inner::new(&mut self.leaves);
        root.insert_child(0, left, &self.leaves);
        root.insert_child(1, right, &self.leaves);
        self.root = Node::Inner(root);
    }

    /// Takes out a row, which the caller knows is present.
    pub(super) fn remove(&mut self, row: &Row) {
        let given_up = self.root.remove(row, &mut self.leaves);
        if let Node::Inner(inner) = &mut self.root
            && inner.children.len() == 1
        {
            self.leaves.inner_count -= 1;
            self.root = inner.children.remove(0);
        }
        if let Some(leaf) = given_up
            && let Some((first, number)) = self.leaves.give_up(leaf)
        {
            self.root.renumber(&O::key(&first), number, leaf.number);
        }
        match self.root {
            Node::Leaf(only) => self.leaves.shrink(Some(only)),
            Node::Inner(_) if given_up.is_some() => self.leaves.shrink(None),
            Node::Inner(_) => {}
        }
    }

    /// Puts `new` in the place of `old`, which has the same key.
    pub(super) fn update(&mut self, old: &Row, new: Row) {
        self.root.update(old, new, &mut self.leaves);
    }
}

impl<O: Order> Node<O> {
    /// Returns the right half if the node had to be split. `at_end` if this is the last node of its
    /// level.
    fn insert(&mut self, row: Row, at_end: bool, leaves: &mut Leaves) -> Option<Self> {
        match self {
            Self::Leaf(leaf) => {
                let right = insert_into_leaf::<O>(leaf, row, at_end, leaves);
                right.map(Self::Leaf)
            }
            Self::Inner(inner) => {
                let right = inner.insert(row, at_end, leaves);
                right.map(Self::Inner)
            }
        }
    }

    /// Returns the leaf that is no longer needed, if two became one.
    fn remove(&mut self, row: &Row, leaves: &mut Leaves) -> Option<Leaf> {
        match self {
            Self::Leaf(leaf) => {
                let place = place_of::<O>(*leaf, row, leaves);
                leaves.remove(leaf, place);
                None
            }
            Self::Inner(inner) => inner.remove(row, leaves),
        }
    }

    fn update(&mut self, old: &Row, new: Row, leaves: &mut Leaves) {
        match self {
            Self::Leaf(leaf) => {
                let place = place_of::<O>(*leaf, old, leaves);
                leaves.replace(*leaf, place, new);
            }
            Self::Inner(inner) => {
                let at = inner.child_of(&O::key(old));
                inner.children[at].update(old, new, leaves);
                if O::summary(old) == O::summary(&new) {
                    return;
                }
                inner.summaries[at] = if O::depends(&inner.summaries[at], old) {
                    inner.children[at].summary(leaves)
                } else {
                    O::join(inner.summaries[at], O::summary(&new))
                };
            }
        }
    }

    /// The leaf whose first key this is has another number now.
    fn renumber(&mut self, first: &O::Key, before: u32, now: u32) {
        match self {
            Self::Leaf(leaf) => {
                assert_eq!(leaf.number, before, "another leaf begins with {first:?}");
                leaf.number = now;
            }
            Self::Inner(inner) => {
                let at = inner.child_of(first);
                inner.children[at].renumber(first, before, now);
            }
        }
    }

    pub(super) fn first_key(&self, leaves: &Leaves) -> O::Key {
        match self {
            Self::Leaf(leaf) => O::key(&leaves.rows(*leaf)[0]),
            Self::Inner(inner) => inner.keys[0],
        }
    }

    pub(super) fn summary(&self, leaves: &Leaves) -> O::Summary {
        let summary = match self {
            Self::Leaf(leaf) => leaves.rows(*leaf).iter().map(O::summary).reduce(O::join),
            Self::Inner(inner) => inner.summaries.iter().copied().reduce(O::join),
        };
        summary.expect("only a root is ever empty")
    }

    fn is_short(&self) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.len() < LEAF_ROWS_MIN,
            Self::Inner(inner) => inner.children.len() < CHILDREN_MIN,
        }
    }
}

impl<O: Order> Inner<O> {
    fn new(leaves: &mut Leaves) -> Box<Self> {
        leaves.inner_count += 1;
        Box::new(Self {
            summaries: List::new(),
            children: List::new(),
            keys: List::new(),
        })
    }

    /// Where a row with this key is or belongs: the last child that does not begin behind it.
    pub(super) fn child_of(&self, key: &O::Key) -> usize {
        // Not a binary search, for the same reason as in a leaf.
        let behind = self.keys.iter().position(|first| first > key);
        behind.unwrap_or(self.keys.len()).saturating_sub(1)
    }

    fn insert(&mut self, row: Row, at_end: bool, leaves: &mut Leaves) -> Option<Box<Self>> {
        let key = O::key(&row);
        let mut at = self.child_of(&key);
        if self.make_room(at, leaves) {
            at = self.child_of(&key);
        }
        let at_end = at_end && at + 1 == self.children.len();
        let right = self.children[at].insert(row, at_end, leaves);
        self.keys[at] = self.keys[at].min(key);
        let Some(right) = right else {
            self.summaries[at] = O::join(self.summaries[at], O::summary(&row));
            return None;
        };
        self.summaries[at] = self.children[at].summary(leaves);
        self.insert_child(at + 1, right, leaves);
        let len = self.children.len();
        if len <= CHILDREN_MAX {
            return None;
        }
        let keep = if at_end { len - CHILDREN_MIN } else { len / 2 };
        let mut right = Self::new(leaves);
        self.move_to_front_of(&mut right, keep);
        Some(right)
    }

    /// Lets a full leaf give rows to a neighbour that has room for a few, so that it need not be
    /// split and leaves are fuller. Returns whether it did.
    fn make_room(&mut self, at: usize, leaves: &mut Leaves) -> bool {
        let room = |child: &Node<O>| match child {
            Node::Leaf(leaf) => LEAF_ROWS_MAX - leaf.len(),
            Node::Inner(_) => usize::MAX,
        };
        if room(&self.children[at]) > 0 {
            return false;
        }
        let neighbours = [at.checked_sub(1), Some(at + 1)];
        for neighbour in neighbours.into_iter().flatten() {
            let Some(child) = self.children.get(neighbour) else {
                continue;
            };
            if room(child) >= LEAF_ROWS_MIN {
                self.even_out(at.min(neighbour), leaves);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, row: &Row, leaves: &mut Leaves) -> Option<Leaf> {
        let key = O::key(row);
        let at = self.child_of(&key);
        let given_up = self.children[at].remove(row, leaves);
        if self.children[at].is_short() {
            // With its left neighbour; the first child has only a right one. Either it is a leaf, or
            // a leaf was given up below it.
            let merged = self.even_out(at.saturating_sub(1), leaves);
            return given_up.or(merged);
        }
        if self.keys[at] == key {
            self.keys[at] = self.children[at].first_key(leaves);
        }
        if O::depends(&self.summaries[at], row) {
            self.summaries[at] = self.children[at].summary(leaves);
        }
        given_up
    }

    /// Merges two neighbours if they fit into one node, otherwise makes them equally long. Returns
    /// the leaf that is no longer needed.
    fn even_out(&mut self, left_at: usize, leaves: &mut Leaves) -> Option<Leaf> {
        let (lefts, rights) = self.children.split_at_mut(left_at + 1);
        let (left, right) = (&mut lefts[left_at], &mut rights[0]);
        let (merged, given_up) = match (left, right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                let merged = even_out_leaves(left, right, leaves);
                (merged, merged.then_some(*right))
            }
            (Node::Inner(left), Node::Inner(right)) => {
                let merged = left.even_out_with(right);
                leaves.inner_count -= usize::from(merged);
                (merged, None)
            }
            _ => unreachable!("all leaves are on one level"),
        };
        if merged {
            self.remove_child(left_at + 1);
        } else {
            self.describe(left_at + 1, leaves);
        }
        self.describe(left_at, leaves);
        given_up
    }

    /// Returns whether all children are in this node now.
    fn even_out_with(&mut self, right: &mut Self) -> bool {
        let (len, right_len) = (self.children.len(), right.children.len());
        let all = len + right_len;
        if all <= MERGED_CHILDREN_MAX {
            right.move_to_end_of(self, right_len);
            return true;
        }
        if len > all / 2 {
            self.move_to_front_of(right, all / 2);
        } else {
            right.move_to_end_of(self, right_len - all / 2);
        }
        false
    }

    /// Moves all children but the first `keep` to the front of the right neighbour.
    fn move_to_front_of(&mut self, right: &mut Self, keep: usize) {
        self.keys.move_to_front_of(&mut right.keys, keep);
        self.summaries.move_to_front_of(&mut right.summaries, keep);
        self.children.move_to_front_of(&mut right.children, keep);
    }

    /// Moves the first `count` children to the end of the left neighbour.
    fn move_to_end_of(&mut self, left: &mut Self, count: usize) {
        self.keys.move_to_end_of(&mut left.keys, count);
        self.summaries.move_to_end_of(&mut left.summaries, count);
        self.children.move_to_end_of(&mut left.children, count);
    }

    fn insert_child(&mut self, at: usize, child: Node<O>, leaves: &Leaves) {
        self.keys.insert(at, child.first_key(leaves));
        self.summaries.insert(at, child.summary(leaves));
        self.children.insert(at, child);
    }

    fn remove_child(&mut self, at: usize) {
        self.keys.remove(at);
        self.summaries.remove(at);
        self.children.remove(at);
    }

    /// Writes down what is known of a child that has changed.
    fn describe(&mut self, at: usize, leaves: &Leaves) {
        self.keys[at] = self.children[at].first_key(leaves);
        self.summaries[at] = self.children[at].summary(leaves);
    }
}

/// Where the row is. If it is absent, the two orders have come apart, which is a bug.
fn place_of<O: Order>(leaf: Leaf, row: &Row, leaves: &Leaves) -> usize {
    let key = O::key(row);
    let place = leaves.rank::<O>(leaf, |it| *it < key);
    let found = leaves.rows(leaf).get(place);
    assert!(found == Some(row), "{row:?} is not in its tree");
    place
}

/// Returns the right half if the leaf had to be split.
fn insert_into_leaf<O: Order>(
    leaf: &mut Leaf,
    row: Row,
    at_end: bool,
    leaves: &mut Leaves,
) -> Option<Leaf> {
    let key = O::key(&row);
    let place = leaves.rank::<O>(*leaf, |it| *it < key);
    if leaf.len() < LEAF_ROWS_MAX {
        leaves.insert(leaf, place, row);
        return None;
    }
    // Whoever locks one range after the other fills each leaf to the end.
    let at_end = at_end && place == LEAF_ROWS_MAX;
    let keep = LEAF_ROWS_MAX / if at_end { 1 } else { 2 };
    let mut right = leaves.split(leaf, keep, row);
    match place.checked_sub(keep) {
        Some(place) => leaves.insert(&mut right, place, row),
        None => leaves.insert(leaf, place, row),
    }
    Some(right)
}

/// Returns whether all rows are in the left one now.
fn even_out_leaves(left: &mut Leaf, right: &mut Leaf, leaves: &mut Leaves) -> bool {
    let (len, right_len) = (left.len(), right.len());
    let all = len + right_len;
    if all <= MERGED_ROWS_MAX {
        leaves.move_to_end_of(right, left, right_len);
        return true;
    }
    if len > all / 2 {
        leaves.move_to_front_of(left, right, all / 2);
    } else {
        leaves.move_to_end_of(right, left, right_len - all / 2);
    }
    false
}
