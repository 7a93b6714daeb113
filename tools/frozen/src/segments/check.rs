//! Everything that must hold between two calls.

use super::Segments;
use super::leaves::{LEAF_ROWS_MAX, LEAF_ROWS_MIN, Leaves};
use super::order::{ByStart, Order, Row};
use super::range::Sharing;
use super::tree::{CHILDREN_MAX, CHILDREN_MIN, Node, Tree};

impl Segments {
    /// Everything that must hold between two calls. It visits every segment, so only tests and the
    /// simulator call it. Without debug assertions it does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.exclusive.check();
        self.shared.check();
        self.by_owner.check();
        self.check_both_orders();
        self.check_owners();
        self.check_conflicts();
    }

    fn check_both_orders(&self) {
        let is_mode = |mode| move |row: Row| assert_eq!(row.mode, mode, "in the wrong tree");
        self.exclusive.rows().for_each(is_mode(Sharing::Exclusive));
        self.shared.rows().for_each(is_mode(Sharing::Shared));
        let mut all = self.iter();
        let mut by_start: Vec<Row> = std::iter::from_fn(|| all.next_row()).collect();
        let sorted = by_start.is_sorted_by_key(ByStart::key);
        assert!(sorted, "not in the order of their first bytes");
        by_start.sort_by_key(|row| (row.owner, row.start));
        let by_owner: Vec<Row> = self.by_owner.rows().collect();
        assert_eq!(by_start, by_owner, "the two orders have come apart");
        assert_eq!(by_owner.len(), self.len(), "miscounted");
        let mut ids: Vec<u64> = by_owner.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        let is_unique = ids.is_sorted_by(|one, other| one < other);
        assert!(is_unique, "two segments have one id: {ids:?}");
        let shared = self.shared.rows().count();
        assert_eq!(
            shared,
            self.len_of(Sharing::Shared),
            "those that are shared are miscounted"
        );
    }

    /// An owner has no byte twice, and nothing that could be one segment is two.
    fn check_owners(&self) {
        let mut rows = self.by_owner.rows();
        let Some(mut before) = rows.next() else {
            return;
        };
        for row in rows {
            if row.owner == before.owner {
                let (one, other) = (before.range(), row.range());
                assert!(!one.overlaps(other), "{before:?} and {row:?} overlap");
                let same_kind = (before.mode, before.life) == (row.mode, row.life);
                let could_be_one = same_kind && one.touches(other);
                assert!(!could_be_one, "{before:?} and {row:?} are one");
            }
            before = row;
        }
    }

    /// No two owners have one byte unless both share it.
    fn check_conflicts(&self) {
        // How far all segments reach that begin before the one that is looked at, by mode.
        let (mut exclusive, mut shared) = (None, None);
        let mut all = self.iter();
        while let Some(row) = all.next_row() {
            let alone = row.mode == Sharing::Exclusive;
            let in_the_way = exclusive.iter().chain(shared.iter().filter(|_| alone));
            for reach in in_the_way {
                let reach: &<ByStart as Order>::Summary = reach;
                let free = !reach.of_others_reaches(row.start, row.owner);
                assert!(free, "{row:?} is granted twice");
            }
            let reach = if alone { &mut exclusive } else { &mut shared };
            let own = ByStart::summary(&row);
            *reach = Some(reach.map_or(own, |before| ByStart::join(before, own)));
        }
    }
}

impl<O: Order> Tree<O> {
    fn check(&self) {
        let mut found = Found::default();
        self.root.check(&self.leaves, 0, true, &mut found);
        assert_eq!(found.inner_count, self.leaves.inner_count, "miscounted");
        let keys: Vec<O::Key> = self.rows().map(|row| O::key(&row)).collect();
        assert!(keys.is_sorted_by(|one, other| one < other), "out of order");
        self.leaves.check(found.leaves.len(), keys.len());
        found.leaves.sort_unstable();
        found.leaves.dedup();
        self.leaves.check(found.leaves.len(), keys.len());
    }
}

/// What there is below the root.
#[derive(Default)]
struct Found {
    inner_count: usize,
    /// The numbers of all leaves.
    leaves: Vec<u32>,
    /// How deep the first leaf was.
    leaf_level: Option<u32>,
}

impl<O: Order> Node<O> {
    fn check(&self, leaves: &Leaves, level: u32, at_end: bool, found: &mut Found) {
        let is_root = level == 0;
        match self {
            Self::Leaf(leaf) => {
                let expected = *found.leaf_level.get_or_insert(level);
                assert_eq!(level, expected, "a leaf on another level");
                let least = if at_end { 1 } else { LEAF_ROWS_MIN };
                let usual = (least..=LEAF_ROWS_MAX).contains(&leaf.len());
                assert!(usual || (is_root && leaf.len() == 0), "{leaf:?}");
                found.leaves.push(leaf.number);
            }
            Self::Inner(inner) => {
                let len = inner.children.len();
                let least = if is_root { 2 } else { CHILDREN_MIN };
                assert!((least..=CHILDREN_MAX).contains(&len), "{len} children");
                assert_eq!((inner.keys.len(), inner.summaries.len()), (len, len));
                found.inner_count += 1;
                for (at, child) in inner.children.iter().enumerate() {
                    child.check(leaves, level + 1, at_end && at + 1 == len, found);
                    assert_eq!(inner.keys[at], child.first_key(leaves), "a wrong first key");
                    assert_eq!(
                        inner.summaries[at],
                        child.summary(leaves),
                        "a wrong summary"
                    );
                }
            }
        }
    }
}
