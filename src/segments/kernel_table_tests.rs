//! Every row of the table of what the Linux kernel does with locks of byte ranges.

use super::{ByteRange, Grant, Segments, Sharing};

/// The resource, in the words of the table: `W` is exclusive, `R` shared, `U` unlock, each with an
/// offset and a length, 0 for "to the end".
struct Table(Segments, u64);

const A: u32 = 1;
const B: u32 = 2;

impl Table {
    fn new() -> Self {
        Self(Segments::new(), 0)
    }

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::new(start, len).expect("it ends before 2^64")
    }

    /// Whether the lock was granted.
    fn lock(&mut self, owner: u32, mode: Sharing, start: u64, len: u64) -> bool {
        let range = Self::range(start, len);
        let free = self.0.first_conflict(owner, range, mode).is_none();
        if free {
            self.1 += 2;
            let id = self.1;
            let grant = Grant {
                id,
                ..Grant::default()
            };
            self.0.set(owner, range, mode, grant);
        }
        self.0.check();
        free
    }

    fn w(&mut self, start: u64, len: u64) -> &mut Self {
        assert!(self.lock(A, Sharing::Exclusive, start, len));
        self
    }

    fn r(&mut self, start: u64, len: u64) -> &mut Self {
        assert!(self.lock(A, Sharing::Shared, start, len));
        self
    }

    fn u(&mut self, start: u64, len: u64) -> &mut Self {
        self.1 += 2;
        self.0.unlock(A, Self::range(start, len), self.1);
        self.0.check();
        self
    }

    /// What A has: `W 0 25, R 25 25`.
    fn has(&self, expected: &str) {
        let segments = self.0.of_owner(A).map(|segment| {
            let letter = match segment.mode {
                Sharing::Exclusive => 'W',
                Sharing::Shared => 'R',
            };
            format!("{letter} {} {}", segment.range.start(), segment.range.len())
        });
        assert_eq!(segments.collect::<Vec<_>>().join(", "), expected);
    }
}

#[test]
fn another_mode_splits_and_the_same_mode_joins_again() {
    let mut table = Table::new();
    table.w(0, 100).r(25, 25).has("W 0 25, R 25 25, W 50 50");
    table.w(0, 100).has("W 0 100");
}

#[test]
fn neighbours_of_one_mode_are_one_segment() {
    Table::new().w(0, 10).w(10, 10).has("W 0 20");
    Table::new().r(0, 10).r(10, 10).has("R 0 20");
    Table::new().w(10, 10).w(0, 10).has("W 0 20");
    Table::new().w(0, 10).r(10, 10).has("W 0 10, R 10 10");
}

#[test]
fn a_gap_of_one_byte_keeps_them_apart() {
    Table::new().w(0, 10).w(11, 10).has("W 0 10, W 11 10");
}

#[test]
fn to_the_end_joins_what_is_before_it() {
    Table::new().w(5, 0).w(0, 5).has("W 0 0");
}

#[test]
fn an_unlock_in_the_middle_splits() {
    Table::new().w(0, 30).u(10, 10).has("W 0 10, W 20 10");
    Table::new().w(0, 0).u(10, 10).has("W 0 10, W 20 0");
}

#[test]
fn an_unlock_of_nothing_succeeds() {
    let mut table = Table::new();
    table.u(0, 10).has("");
    assert_eq!(
        table.0.unlock(A, Table::range(0, 0), 9),
        0,
        "nothing is touched"
    );
    table.w(0, 10).u(10, 0).has("W 0 10");
}

#[test]
fn a_refused_upgrade_keeps_what_is_shared() {
    let mut table = Table::new();
    table.r(0, 10);
    assert!(table.lock(B, Sharing::Shared, 5, 10));
    assert!(!table.lock(A, Sharing::Exclusive, 0, 10));
    table.has("R 0 10");
    assert!(
        table.lock(A, Sharing::Exclusive, 0, 5),
        "where B has nothing"
    );
    table.has("W 0 5, R 5 5");
}

#[test]
fn the_last_byte_of_all_is_to_the_end() {
    // The kernel has this at 2^63-1, which is the last byte it knows.
    let max = u64::MAX;
    Table::new().w(max, 1).has(&format!("W {max} 0"));
    assert_eq!(ByteRange::new(max, 2), None);
    let bounded = max - 10;
    Table::new().w(10, bounded).has(&format!("W 10 {bounded}"));
    Table::new().w(10, bounded + 1).has("W 10 0");
}
