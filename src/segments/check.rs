//! Everything that must hold between two calls.

use super::Segments;
use super::order::{ByStart, Order, Row};
use super::range::Sharing;
use super::tree::{
    CHILDREN_MAX, CHILDREN_MIN, Inner, LEAF_ROWS_MAX, LEAF_ROWS_MIN, Node, Tree, leaf_bytes,
};

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
        assert_eq!(by_owner.len(), self.len, "miscounted");
        let shared = self.shared.rows().count();
        assert_eq!(
            shared, self.shared_len,
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
                let same_kind = (before.mode, before.pending) == (row.mode, row.pending);
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
        let (mut bytes, mut depth) = (0, None);
        self.root.check(0, &mut depth, true, &mut bytes);
        assert_eq!(bytes, self.memory(), "memory is miscounted");
        let rows: Vec<O::Key> = self.rows().map(|row| O::key(&row)).collect();
        assert!(rows.is_sorted_by(|one, other| one < other), "out of order");
    }
}

impl<O: Order> Node<O> {
    /// `leaf_level` is the level of the first leaf that was found.
    fn check(&self, level: u32, leaf_level: &mut Option<u32>, at_end: bool, bytes: &mut usize) {
        let is_root = level == 0;
        match self {
            Self::Leaf(rows) => {
                let expected = *leaf_level.get_or_insert(level);
                assert_eq!(level, expected, "a leaf on another level");
                assert!(rows.len() <= LEAF_ROWS_MAX);
                assert!(is_root || !rows.is_empty());
                assert!(is_root || at_end || rows.len() >= LEAF_ROWS_MIN);
                assert!(rows.capacity() <= LEAF_ROWS_MAX);
                *bytes += leaf_bytes(rows);
            }
            Self::Inner(inner) => {
                let len = inner.children.len();
                let least = if is_root { 2 } else { CHILDREN_MIN };
                assert!((least..=CHILDREN_MAX).contains(&len), "{len} children");
                assert_eq!((inner.keys.len(), inner.summaries.len()), (len, len));
                for (at, child) in inner.children.iter().enumerate() {
                    child.check(level + 1, leaf_level, at_end && at + 1 == len, bytes);
                    assert_eq!(inner.keys[at], child.first_key(), "a wrong first key");
                    assert_eq!(inner.summaries[at], child.summary(), "a wrong summary");
                }
                *bytes += Inner::<O>::BYTES;
            }
        }
    }
}
