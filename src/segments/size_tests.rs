//! Very many segments: what they cost in memory, and that no walk becomes a scan.

use super::{ByteRange, Grant, Position, Segments, Sharing};

const MANY: u64 = 20_000;

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).expect("it ends before 2^64")
}

/// The ids of two grants at different times differ.
fn grant(since: u64, pending: bool) -> Grant {
    Grant {
        id: 2 * since + 1,
        since,
        life: u16::from(pending),
    }
}

/// One segment for each owner, in an order without a pattern.
fn filled(mode: Sharing, len: u64) -> Segments {
    let mut segments = Segments::new();
    for index in 0..MANY {
        let place = index * 7_919 % MANY;
        segments.set(
            place as u32 + 1,
            range(place * 10, len),
            mode,
            grant(index, false),
        );
    }
    assert_eq!(segments.len() as u64, MANY);
    segments.check();
    segments
}

#[test]
fn nothing_costs_nothing_and_one_costs_little() {
    const EMPTY: Segments = Segments::new();
    let mut segments = EMPTY;
    assert_eq!(segments.memory(), 0);
    segments.set(1, range(0, 1), Sharing::Exclusive, grant(0, false));
    assert_eq!(segments.memory(), 96);
    segments.unlock(1, range(0, 1), 0);
    assert_eq!(segments.memory(), 0);
    segments.check();
    assert!(size_of::<Segments>() <= 152, "{}", size_of::<Segments>());
}

#[test]
fn memory_is_given_back() {
    for in_order in [true, false] {
        let mut segments = filled(Sharing::Shared, 0);
        let full_bytes = segments.memory();
        assert!(full_bytes as u64 > 80 * MANY && (full_bytes as u64) < 130 * MANY);
        for index in 0..MANY - 10 {
            let place = if in_order {
                index
            } else {
                index * 7_919 % MANY
            };
            segments.unlock(place as u32 + 1, ByteRange::ALL, 0);
        }
        assert_eq!(segments.len(), 10);
        segments.check();
        assert!(segments.memory() < 10_000, "{}", segments.memory());
    }
}

#[test]
fn locked_in_order_they_fill_their_leaves() {
    let mut segments = Segments::new();
    for place in 0..MANY {
        segments.set(
            place as u32,
            range(place * 10, 5),
            Sharing::Exclusive,
            grant(place, false),
        );
    }
    let each = segments.memory() as u64 / MANY;
    assert!(each < 100, "{each} bytes each");
    segments.check();
}

#[test]
fn a_lock_over_very_many_makes_them_one() {
    let mut segments = Segments::new();
    for place in 0..MANY {
        segments.set(
            1,
            range(place * 10, 5),
            Sharing::Exclusive,
            grant(place, false),
        );
    }
    assert_eq!(
        segments.growth_of_set(1, ByteRange::ALL, Sharing::Shared),
        1 - MANY as i64
    );
    let touched = segments.set(
        1,
        range(0, MANY * 10),
        Sharing::Exclusive,
        grant(MANY, false),
    );
    assert_eq!(u64::from(touched), MANY + 1);
    let only = segments.first_of(1).unwrap();
    assert_eq!(
        (segments.len(), only.range, only.since),
        (1, range(0, MANY * 10), 0)
    );
    segments.check();
}

/// Each of these would take minutes if it looked at every segment on its way.
#[test]
fn own_segments_and_those_that_agree_are_not_looked_at() {
    // Everything belongs to the one who asks, but for the very last.
    let mut segments = Segments::new();
    for place in 0..MANY {
        segments.set(
            1,
            range(place * 10, 5),
            Sharing::Exclusive,
            grant(place, false),
        );
    }
    segments.set(2, range(MANY * 10, 5), Sharing::Shared, grant(0, false));
    for _ in 0..MANY {
        let found = segments.first_conflict(1, ByteRange::ALL, Sharing::Exclusive);
        assert_eq!(found.map(|(owner, _)| owner), Some(2));
        assert!(
            segments
                .first_conflict(1, ByteRange::ALL, Sharing::Shared)
                .is_none()
        );
    }

    // All lie over each other, and one more shared lock agrees with all.
    let mut segments = filled(Sharing::Shared, 0);
    segments.set(0, range(MANY * 20, 0), Sharing::Shared, grant(0, false));
    for place in 0..MANY {
        let wanted = range(place * 10, 0);
        assert!(
            segments
                .first_conflict(0, wanted, Sharing::Shared)
                .is_none()
        );
        let found = segments.first_conflict(0, wanted, Sharing::Exclusive);
        assert_eq!(
            found.map(|(owner, _)| owner),
            Some(1),
            "the lowest reaches to the end"
        );
    }

    // Only one of very many short ones reaches as far as that.
    let mut segments = filled(Sharing::Shared, 5);
    segments.set(1, range(0, MANY * 100), Sharing::Shared, grant(0, false));
    for place in MANY..2 * MANY {
        let found = segments.first_conflict(0, range(place * 10, 1), Sharing::Exclusive);
        assert_eq!(found.map(|(owner, _)| owner), Some(1));
    }
}

#[test]
fn a_walk_goes_on_where_it_stopped() {
    let segments = filled(Sharing::Shared, 25);
    let mut position = Position::START;
    let mut starts = Vec::new();
    loop {
        let mut page = segments.iter_from(position);
        let before = starts.len();
        starts.extend(
            page.by_ref()
                .take(77)
                .map(|(_, segment)| segment.range.start()),
        );
        assert!(starts.len() as u64 <= MANY, "it goes on where it was");
        if starts.len() == before {
            break;
        }
        position = page.position();
    }
    assert!(starts.iter().copied().eq((0..MANY).map(|place| place * 10)));
}

#[test]
#[should_panic = "granting Exclusive ByteRange { start: 3, last: 3 } to 2, but 1 has"]
fn a_byte_that_is_granted_twice_stops_the_process() {
    let mut segments = Segments::new();
    segments.set(1, range(0, 10), Sharing::Shared, grant(0, false));
    segments.set(2, range(3, 1), Sharing::Exclusive, grant(0, false));
}

#[test]
fn pending_segments_stay_apart_until_they_are_reclaimed() {
    let mut segments = Segments::new();
    segments.set(1, range(0, 10), Sharing::Exclusive, grant(3, true));
    segments.set(1, range(10, 10), Sharing::Exclusive, grant(5, false));
    assert_eq!(segments.len(), 2);
    assert!(
        segments
            .first_conflict(2, range(0, 5), Sharing::Shared)
            .is_some(),
        "it still counts"
    );
    assert!(segments.is_covered(1, range(0, 10), Sharing::Shared, false));
    assert!(segments.is_covered(1, range(0, 20), Sharing::Exclusive, false));
    assert!(!segments.is_covered(1, range(0, 21), Sharing::Exclusive, false));
    assert!(segments.is_covered(1, range(10, 10), Sharing::Exclusive, true));
    assert!(!segments.is_covered(1, range(9, 11), Sharing::Exclusive, true));

    segments.set(1, range(0, 4), Sharing::Exclusive, grant(3, false));
    let pending: Vec<bool> = segments
        .of_owner(1)
        .map(|segment| segment.pending())
        .collect();
    assert_eq!(pending, [false, true, false]);
    segments.set(1, range(4, 6), Sharing::Exclusive, grant(3, false));
    let only = segments.first_of(1).unwrap();
    assert_eq!(
        (segments.len(), only.range, only.since),
        (1, range(0, 20), 3)
    );
    segments.check();
}
