//! A B+-tree of segments: rows in leaves, and above them the first key and the summary of each node.
//!
//! Nodes are wide, so that a tree of a hundred thousand rows is only one or two levels higher than
//! one of a thousand, and a search waits for memory about once more.
//!
//! Allocates nothing while it is empty, and gives memory back as rows go. `tree_find.rs` is how rows
//! are found, this file how they come and go.

use std::mem;

use super::list::List;
use super::order::{Order, Row};
use crate::memory::block_bytes;

/// Most rows of a leaf, which is thus 1 KiB.
pub(super) const LEAF_ROWS_MAX: usize = 32;

/// Most children of an inner node.
pub(super) const CHILDREN_MAX: usize = 32;

/// A node with fewer rows or children than a quarter is merged with a neighbour, or takes some from
/// it. Only the last leaf may have fewer: it is where a tree grows if ranges are locked in order.
pub(super) const LEAF_ROWS_MIN: usize = LEAF_ROWS_MAX / 4;
/// The same for children.
pub(super) const CHILDREN_MIN: usize = CHILDREN_MAX / 4;

/// Rows in one order.
pub(super) struct Tree<O: Order> {
    pub(super) root: Node<O>,
    /// What all nodes have allocated.
    bytes: usize,
}

pub(super) enum Node<O: Order> {
    /// With room for [`LEAF_ROWS_MAX`], unless it is the root: most resources have few segments.
    Leaf(Vec<Row>),
    Inner(Box<Inner<O>>),
}

/// Each list has one entry for each child, and room for one child too many.
pub(super) struct Inner<O: Order> {
    pub(super) summaries: List<O::Summary, ROOM>,
    pub(super) children: List<Node<O>, ROOM>,
    /// The key of the first row below each child.
    pub(super) keys: List<O::Key, ROOM>,
}

const ROOM: usize = CHILDREN_MAX + 1;

impl<O: Order> Default for Node<O> {
    fn default() -> Self {
        Self::Leaf(Vec::new())
    }
}

impl<O: Order> Tree<O> {
    pub(super) const fn new() -> Self {
        Self {
            root: Node::Leaf(Vec::new()),
            bytes: 0,
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.bytes
    }

    /// Adds a row, which the caller knows is absent.
    pub(super) fn insert(&mut self, row: Row) {
        let Some(right) = self.root.insert(row, true, &mut self.bytes) else {
            return;
        };
        let left = mem::take(&mut self.root);
        let mut root = Inner::new(&mut self.bytes);
        root.insert_child(0, left);
        root.insert_child(1, right);
        self.root = Node::Inner(root);
    }

    /// Takes out a row, which the caller knows is present.
    pub(super) fn remove(&mut self, row: &Row) {
        self.root.remove(row, &mut self.bytes);
        match &mut self.root {
            Node::Leaf(rows) => shrink(rows, &mut self.bytes),
            Node::Inner(inner) if inner.children.len() == 1 => {
                self.bytes -= Inner::<O>::BYTES;
                self.root = inner.children.remove(0);
            }
            Node::Inner(_) => {}
        }
    }

    /// Puts `new` in the place of `old`, which has the same key.
    pub(super) fn update(&mut self, old: &Row, new: Row) {
        self.root.update(old, new);
    }
}

impl<O: Order> Node<O> {
    /// Returns the right half if the node had to be split. `at_end` if this is the last node of its
    /// level.
    fn insert(&mut self, row: Row, at_end: bool, bytes: &mut usize) -> Option<Self> {
        match self {
            Self::Leaf(rows) => {
                let right = insert_into_leaf::<O>(rows, row, at_end, bytes);
                right.map(Self::Leaf)
            }
            Self::Inner(inner) => {
                let right = inner.insert(row, at_end, bytes);
                right.map(Self::Inner)
            }
        }
    }

    fn remove(&mut self, row: &Row, bytes: &mut usize) {
        match self {
            Self::Leaf(rows) => {
                let place = place_of::<O>(rows, row);
                rows.remove(place);
            }
            Self::Inner(inner) => inner.remove(row, bytes),
        }
    }

    fn update(&mut self, old: &Row, new: Row) {
        match self {
            Self::Leaf(rows) => {
                let place = place_of::<O>(rows, old);
                rows[place] = new;
            }
            Self::Inner(inner) => {
                let at = inner.child_of(&O::key(old));
                inner.children[at].update(old, new);
                inner.summaries[at] = if O::depends(&inner.summaries[at], old) {
                    inner.children[at].summary()
                } else {
                    O::join(inner.summaries[at], O::summary(&new))
                };
            }
        }
    }

    pub(super) fn first_key(&self) -> O::Key {
        match self {
            Self::Leaf(rows) => O::key(&rows[0]),
            Self::Inner(inner) => inner.keys[0],
        }
    }

    pub(super) fn summary(&self) -> O::Summary {
        let summary = match self {
            Self::Leaf(rows) => rows.iter().map(O::summary).reduce(O::join),
            Self::Inner(inner) => inner.summaries.iter().copied().reduce(O::join),
        };
        summary.expect("only a root is ever empty")
    }

    fn is_short(&self) -> bool {
        match self {
            Self::Leaf(rows) => rows.len() < LEAF_ROWS_MIN,
            Self::Inner(inner) => inner.children.len() < CHILDREN_MIN,
        }
    }
}

impl<O: Order> Inner<O> {
    /// What one inner node takes.
    pub(super) const BYTES: usize = block_bytes(size_of::<Self>());

    fn new(bytes: &mut usize) -> Box<Self> {
        *bytes += Self::BYTES;
        Box::new(Self {
            summaries: List::new(),
            children: List::new(),
            keys: List::new(),
        })
    }

    /// Where a row with this key is or belongs: the last child that does not begin behind it.
    pub(super) fn child_of(&self, key: &O::Key) -> usize {
        let behind = self.keys.partition_point(|first| first <= key);
        behind.saturating_sub(1)
    }

    fn insert(&mut self, row: Row, at_end: bool, bytes: &mut usize) -> Option<Box<Self>> {
        let key = O::key(&row);
        let at = self.child_of(&key);
        let at_end = at_end && at + 1 == self.children.len();
        let right = self.children[at].insert(row, at_end, bytes);
        self.keys[at] = self.keys[at].min(key);
        let Some(right) = right else {
            self.summaries[at] = O::join(self.summaries[at], O::summary(&row));
            return None;
        };
        self.summaries[at] = self.children[at].summary();
        self.insert_child(at + 1, right);
        let len = self.children.len();
        if len <= CHILDREN_MAX {
            return None;
        }
        let keep = if at_end { len - CHILDREN_MIN } else { len / 2 };
        let mut right = Self::new(bytes);
        self.move_to_front_of(&mut right, keep);
        Some(right)
    }

    fn remove(&mut self, row: &Row, bytes: &mut usize) {
        let key = O::key(row);
        let at = self.child_of(&key);
        self.children[at].remove(row, bytes);
        if self.children[at].is_short() {
            // With its left neighbour; the first child has only a right one.
            self.even_out(at.saturating_sub(1), bytes);
            return;
        }
        if self.keys[at] == key {
            self.keys[at] = self.children[at].first_key();
        }
        if O::depends(&self.summaries[at], row) {
            self.summaries[at] = self.children[at].summary();
        }
    }

    /// Merges two neighbours if they fit into one node, otherwise makes them equally long.
    fn even_out(&mut self, left_at: usize, bytes: &mut usize) {
        let (lefts, rights) = self.children.split_at_mut(left_at + 1);
        let (left, right) = (&mut lefts[left_at], &mut rights[0]);
        let merged = match (left, right) {
            (Node::Leaf(left), Node::Leaf(right)) => even_out_leaves(left, right, bytes),
            (Node::Inner(left), Node::Inner(right)) => {
                let all = left.children.len() + right.children.len();
                if all <= CHILDREN_MAX {
                    right.move_to_end_of(left, right.children.len());
                    *bytes -= Self::BYTES;
                } else if left.children.len() > all / 2 {
                    left.move_to_front_of(right, all / 2);
                } else {
                    right.move_to_end_of(left, right.children.len() - all / 2);
                }
                all <= CHILDREN_MAX
            }
            _ => unreachable!("all leaves are on one level"),
        };
        if merged {
            self.remove_child(left_at + 1);
        } else {
            self.describe(left_at + 1);
        }
        self.describe(left_at);
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

    fn insert_child(&mut self, at: usize, child: Node<O>) {
        self.keys.insert(at, child.first_key());
        self.summaries.insert(at, child.summary());
        self.children.insert(at, child);
    }

    fn remove_child(&mut self, at: usize) {
        self.keys.remove(at);
        self.summaries.remove(at);
        self.children.remove(at);
    }

    /// Writes down what is known of a child that has changed.
    fn describe(&mut self, at: usize) {
        self.keys[at] = self.children[at].first_key();
        self.summaries[at] = self.children[at].summary();
    }
}

/// What a leaf takes.
pub(super) fn leaf_bytes(rows: &Vec<Row>) -> usize {
    block_bytes(rows.capacity() * size_of::<Row>())
}

/// How many rows come first, of which `before` is true.
///
/// One by one: a binary search would wait for memory at each step, while the rows of a leaf come
/// from memory all at once if they are read in order.
#[inline]
pub(super) fn rank<O: Order>(rows: &[Row], before: impl Fn(&O::Key) -> bool) -> usize {
    let behind = rows.iter().position(|row| !before(&O::key(row)));
    behind.unwrap_or(rows.len())
}

/// Where the row is. If it is absent, the two orders have come apart, which is a bug.
fn place_of<O: Order>(rows: &[Row], row: &Row) -> usize {
    let key = O::key(row);
    let place = rank::<O>(rows, |it| *it < key);
    assert!(rows.get(place) == Some(row), "{row:?} is not in its tree");
    place
}

/// Returns the right half if the leaf had to be split.
fn insert_into_leaf<O: Order>(
    rows: &mut Vec<Row>,
    row: Row,
    at_end: bool,
    bytes: &mut usize,
) -> Option<Vec<Row>> {
    let key = O::key(&row);
    let place = rank::<O>(rows, |it| *it < key);
    if rows.len() < LEAF_ROWS_MAX {
        if rows.len() == rows.capacity() {
            *bytes -= leaf_bytes(rows);
            rows.reserve_exact(rows.len().max(1));
            *bytes += leaf_bytes(rows);
        }
        rows.insert(place, row);
        return None;
    }
    // Whoever locks one range after the other fills each leaf to the end.
    let at_end = at_end && place == LEAF_ROWS_MAX;
    let keep = LEAF_ROWS_MAX / if at_end { 1 } else { 2 };
    let mut right = Vec::with_capacity(LEAF_ROWS_MAX);
    *bytes += leaf_bytes(&right);
    right.extend_from_slice(&rows[keep..]);
    rows.truncate(keep);
    match place.checked_sub(keep) {
        Some(place) => right.insert(place, row),
        None => rows.insert(place, row),
    }
    Some(right)
}

/// Returns whether all rows are in the left one now.
fn even_out_leaves(left: &mut Vec<Row>, right: &mut Vec<Row>, bytes: &mut usize) -> bool {
    let all = left.len() + right.len();
    if all <= LEAF_ROWS_MAX {
        left.append(right);
        *bytes -= leaf_bytes(right);
        return true;
    }
    if left.len() > all / 2 {
        right.splice(..0, left.drain(all / 2..));
    } else {
        left.extend(right.drain(..right.len() - all / 2));
    }
    false
}

/// Gives back memory of a leaf that is the root and mostly empty.
fn shrink(rows: &mut Vec<Row>, bytes: &mut usize) {
    if rows.len() > rows.capacity() / 4 {
        return;
    }
    *bytes -= leaf_bytes(rows);
    rows.shrink_to(if rows.is_empty() {
        0
    } else {
        rows.capacity() / 2
    });
    *bytes += leaf_bytes(rows);
}
