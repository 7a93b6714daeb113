//! What byte-range locks cost: to test, to lock and to unlock a range, with few segments on the
//! resource and with very many.
//!
//! The figure to look at is that of 100,000 segments beside that of 1,000. Every request goes elsewhere here, so
//! that most of a large tree is not in the cache; `engine/ranges.rs` has the one with the target.
//! Never part of a test's verdict: `--test` runs each once, on small tables.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fastrand::Rng;
use latchd::segments::{ByteRange, Grant, Segments, Sharing};

criterion_group!(benches, segments);
criterion_main!(benches);

/// The bytes of one place; segments begin at whole places, so that there is always room between.
const PLACE: u64 = 200;

/// How many locks are made before the same ones are undone, so that the clock is read seldom.
const BATCH: u64 = 32;

/// Who has what.
#[derive(Clone, Copy)]
enum Layout {
    /// Each owner has one exclusive segment.
    Disjoint,
    /// Each owner has one shared segment, and eight lie over each other everywhere.
    Overlapping,
    /// Each owner has one shared segment to the end, so that half of all lie over each other.
    ToTheEnd,
    /// One owner has all, exclusive.
    OneOwner,
}

impl Layout {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Disjoint, "disjoint"),
        (Self::Overlapping, "overlapping"),
        (Self::ToTheEnd, "to_the_end"),
        (Self::OneOwner, "one_owner"),
    ];

    fn mode(self) -> Sharing {
        match self {
            Self::Disjoint | Self::OneOwner => Sharing::Exclusive,
            Self::Overlapping | Self::ToTheEnd => Sharing::Shared,
        }
    }

    /// Who owns the segment of a place.
    fn owner(self, place: u64) -> u32 {
        match self {
            Self::OneOwner => 1,
            _ => place as u32 + 2,
        }
    }

    fn build(self, count: u64) -> Segments {
        let mut places: Vec<u64> = (0..count).collect();
        Rng::with_seed(7).shuffle(&mut places);
        let mut segments = Segments::new();
        for (place, since) in places.into_iter().zip(1..) {
            let len = match self {
                Self::Disjoint | Self::OneOwner => PLACE / 4,
                Self::Overlapping => 8 * PLACE,
                Self::ToTheEnd => 0,
            };
            let range = range(place * PLACE, len);
            segments.set(self.owner(place), range, self.mode(), grant(since));
        }
        segments
    }
}

fn grant(since: u64) -> Grant {
    Grant {
        id: 2 * since,
        since,
        ..Grant::default()
    }
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::new(start, len).expect("it ends before 2^64")
}

fn segments(criterion: &mut Criterion) {
    let smoke = std::env::args().any(|argument| argument == "--test");
    let counts: &[u64] = if smoke { &[1] } else { &[1, 1_000, 100_000] };
    for (layout, name) in Layout::ALL {
        let mut group = criterion.benchmark_group(format!("segments/{name}"));
        for &count in counts {
            let mut built = None;
            let mut chance = Rng::with_seed(8);

            // Somebody else asks for a few bytes anywhere.
            group.bench_function(BenchmarkId::new("test", count), |bencher| {
                let segments = built.get_or_insert_with(|| layout.build(count));
                bencher.iter(|| {
                    let range = range(chance.u64(..count) * PLACE + 40, 20);
                    black_box(segments.first_conflict(0, range, Sharing::Exclusive))
                });
            });

            // An owner locks a few bytes more, apart from what it has.
            group.bench_function(BenchmarkId::new("set", count), |bencher| {
                let segments = built.get_or_insert_with(|| layout.build(count));
                bencher.iter_custom(|times| locked(layout, segments, count, times).0);
            });

            group.bench_function(BenchmarkId::new("unlock", count), |bencher| {
                let segments = built.get_or_insert_with(|| layout.build(count));
                bencher.iter_custom(|times| locked(layout, segments, count, times).1);
            });
        }
        group.finish();
    }
}

/// How long it takes to lock a few bytes `times` times, and to unlock them again.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn locked(layout: Layout, segments: &mut Segments, count: u64, times: u64) -> (Duration, Duration) {
    let mut chance = Rng::with_seed(times);
    let (mut locking, mut unlocking) = (Duration::ZERO, Duration::ZERO);
    let mut left = times;
    while left > 0 {
        let batch = left.min(BATCH);
        left -= batch;
        let wanted: Vec<(u32, ByteRange)> = (0..batch)
            .map(|index| {
                let place = chance.u64(..count);
                // Between two segments, and never twice the same bytes.
                let apart = range(place * PLACE + 60 + 2 * index, 1);
                let owner = match layout {
                    Layout::Disjoint | Layout::OneOwner => layout.owner(chance.u64(..count)),
                    // Others, because those there have these bytes already.
                    Layout::Overlapping | Layout::ToTheEnd => u32::MAX - index as u32,
                };
                (owner, apart)
            })
            .collect();
        let begin = Instant::now();
        for &(owner, range) in &wanted {
            black_box(segments.set(owner, range, layout.mode(), grant(u64::MAX / 4)));
        }
        let middle = Instant::now();
        for &(owner, range) in &wanted {
            black_box(segments.unlock(owner, range, 0));
        }
        locking += middle - begin;
        unlocking += middle.elapsed();
    }
    (locking, unlocking)
}
