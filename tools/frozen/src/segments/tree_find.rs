//! How rows are found in a tree: by their key, in order, or because they reach a byte.

use super::leaves::Leaves;
use super::order::{ByStart, Disjoint, Order, Row};
use super::tree::{Node, Tree};

impl<O: Order> Tree<O> {
    /// All rows in order.
    pub(super) fn rows(&self) -> Rows<'_, O> {
        self.rows_from(|_| false)
    }

    /// All rows in order behind this key, whether or not there is a row with this key.
    pub(super) fn rows_behind(&self, key: O::Key) -> Rows<'_, O> {
        self.rows_from(move |it| *it <= key)
    }

    /// All rows in order, from the last one whose key is not greater than `key`, or from the first
    /// row if all keys are greater.
    pub(super) fn rows_around(&self, key: O::Key) -> Rows<'_, O> {
        let mut node = &self.root;
        let leaf = loop {
            match node {
                Node::Inner(inner) => node = &inner.children[inner.child_of(&key)],
                Node::Leaf(leaf) => {
                    let behind = self.leaves.rank::<O>(*leaf, |it| *it <= key);
                    break &self.leaves.rows(*leaf)[behind.saturating_sub(1)..];
                }
            }
        };
        Rows { tree: self, leaf }
    }

    /// All rows in order but the first ones, of which `skipped` is true.
    fn rows_from(&self, skipped: impl Fn(&O::Key) -> bool) -> Rows<'_, O> {
        Rows {
            tree: self,
            leaf: self.leaf_from(skipped),
        }
    }

    /// The first row whose key is not skipped, and all behind it in its leaf. Empty if there is no
    /// such row.
    fn leaf_from(&self, skipped: impl Fn(&O::Key) -> bool) -> &[Row] {
        let mut node = &self.root;
        // Where to go on if all rows below `node` are skipped.
        let mut next = None;
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.keys.partition_point(&skipped);
                    if let Some(right) = inner.children.get(at.max(1)) {
                        next = Some(right);
                    }
                    node = &inner.children[at.saturating_sub(1)];
                }
                Node::Leaf(leaf) => {
                    let at = self.leaves.rank::<O>(*leaf, &skipped);
                    match next.take() {
                        Some(right) if at == leaf.len() => node = right,
                        _ => return &self.leaves.rows(*leaf)[at..],
                    }
                }
            }
        }
    }
}

impl Tree<Disjoint> {
    /// The first row that ends at `byte` or behind it, is behind the position `after` in the order of
    /// [`ByStart`], and does not belong to `owner`.
    #[inline]
    pub(super) fn first_reaching(
        &self,
        after: Option<<ByStart as Order>::Key>,
        byte: u64,
        owner: u32,
    ) -> Option<&Row> {
        let from = after.map_or(byte, |(start, ..)| byte.max(start));
        let counts = |row: &&Row| {
            row.owner != owner
                && row.last >= byte
                && after.is_none_or(|after| ByStart::key(row) > after)
        };
        self.root
            .first_of_others_from(from, owner, &self.leaves, &counts)
    }

    /// All rows in order behind a position in the order of [`ByStart`].
    pub(super) fn rows_behind_position(
        &self,
        after: <ByStart as Order>::Key,
    ) -> Rows<'_, Disjoint> {
        let mut rows = self.rows_from(|start| *start < after.0);
        if rows.peek().is_some_and(|row| ByStart::key(row) <= after) {
            rows.next();
        }
        rows
    }
}

impl Node<Disjoint> {
    /// The first row that counts, from the one on that `from` is in or behind. Rows behind that one
    /// count if they belong to others than `owner`. Looks twice on each level at most.
    fn first_of_others_from<'a>(
        &'a self,
        from: u64,
        owner: u32,
        leaves: &'a Leaves,
        counts: &impl Fn(&&Row) -> bool,
    ) -> Option<&'a Row> {
        match self {
            Self::Inner(inner) => {
                let at = inner.child_of(&from);
                if inner.summaries[at].has_others(owner) {
                    let found =
                        inner.children[at].first_of_others_from(from, owner, leaves, counts);
                    if found.is_some() {
                        return found;
                    }
                }
                let behind = inner.summaries[at + 1..].iter();
                let mut behind = behind.zip(&inner.children[at + 1..]);
                let (_, child) = behind.find(|(owners, _)| owners.has_others(owner))?;
                child.first_of_others(owner, leaves)
            }
            Self::Leaf(leaf) => {
                let behind = leaves.rank::<Disjoint>(*leaf, |it| *it <= from);
                let mut rows = leaves.rows(*leaf)[behind.saturating_sub(1)..].iter();
                rows.find(counts)
            }
        }
    }

    /// The first row of somebody else than `owner`.
    fn first_of_others<'a>(&'a self, owner: u32, leaves: &'a Leaves) -> Option<&'a Row> {
        let mut node = self;
        loop {
            match node {
                Self::Inner(inner) => {
                    let mut owners = inner.summaries.iter();
                    let at = owners.position(|it| it.has_others(owner))?;
                    node = &inner.children[at];
                }
                Self::Leaf(leaf) => {
                    return leaves.rows(*leaf).iter().find(|row| row.owner != owner);
                }
            }
        }
    }
}

impl Tree<ByStart> {
    /// The first row behind `after` that ends at `byte` or behind it and does not belong to `owner`.
    #[inline]
    pub(super) fn first_reaching(
        &self,
        after: Option<<ByStart as Order>::Key>,
        byte: u64,
        owner: u32,
    ) -> Option<&Row> {
        match after {
            None => self.root.first_reaching(byte, owner, &self.leaves),
            Some(after) => self
                .root
                .first_reaching_behind(after, byte, owner, &self.leaves),
        }
    }
}

impl Node<ByStart> {
    fn first_reaching<'a>(&'a self, byte: u64, owner: u32, leaves: &'a Leaves) -> Option<&'a Row> {
        let mut node = self;
        loop {
            match node {
                Self::Inner(inner) => {
                    let mut summaries = inner.summaries.iter();
                    let at = summaries.position(|reach| reach.of_others_reaches(byte, owner))?;
                    node = &inner.children[at];
                }
                Self::Leaf(leaf) => {
                    return leaves
                        .rows(*leaf)
                        .iter()
                        .find(|row| row.last >= byte && row.owner != owner);
                }
            }
        }
    }

    /// Looks twice on each level at most: where `after` is there may be nothing behind it, but then
    /// the next node that reaches far enough is the right one.
    fn first_reaching_behind<'a>(
        &'a self,
        after: <ByStart as Order>::Key,
        byte: u64,
        owner: u32,
        leaves: &'a Leaves,
    ) -> Option<&'a Row> {
        match self {
            Self::Inner(inner) => {
                let at = inner.child_of(&after);
                if inner.summaries[at].of_others_reaches(byte, owner) {
                    let found =
                        inner.children[at].first_reaching_behind(after, byte, owner, leaves);
                    if found.is_some() {
                        return found;
                    }
                }
                let behind = inner.summaries[at + 1..].iter();
                let mut behind = behind.zip(&inner.children[at + 1..]);
                let (_, child) = behind.find(|(reach, _)| reach.of_others_reaches(byte, owner))?;
                child.first_reaching(byte, owner, leaves)
            }
            Self::Leaf(leaf) => {
                let from = leaves.rank::<ByStart>(*leaf, |it| *it <= after);
                let mut behind = leaves.rows(*leaf)[from..].iter();
                behind.find(|row| row.last >= byte && row.owner != owner)
            }
        }
    }
}

/// Rows in order. A step is O(1) inside a leaf, and O(log n) to the next one.
pub(super) struct Rows<'a, O: Order> {
    tree: &'a Tree<O>,
    /// What is left of the leaf. Empty only at the end.
    leaf: &'a [Row],
}

impl<O: Order> Rows<'_, O> {
    /// The row that comes next.
    pub(super) fn peek(&self) -> Option<&Row> {
        self.leaf.first()
    }
}

impl<O: Order> Iterator for Rows<'_, O> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let (&row, rest) = self.leaf.split_first()?;
        self.leaf = rest;
        if rest.is_empty() {
            let key = O::key(&row);
            self.leaf = self.tree.leaf_from(|it| *it <= key);
        }
        Some(row)
    }
}
