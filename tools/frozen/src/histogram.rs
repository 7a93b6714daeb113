//! How long things took: counts in buckets that double, so that to observe costs a handful of
//! instructions and the whole of it a fixed number of bytes, whatever is observed.

use crate::base::Nanos;

/// How many buckets there are, the last without an upper bound.
pub const BUCKETS: usize = 32;

/// The first bucket ends at this power of two, in nanoseconds: a microsecond, as far as a shift can
/// say so. It is also the unit of the sum.
const UNIT_SHIFT: u32 = 10;

/// Counts of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    /// In units. Begins anew after half a million years of all clients together, which whoever reads
    /// it takes for a restart.
    sum: u64,
}

impl Histogram {
    /// Counts one duration.
    #[inline]
    pub fn observe(&mut self, ns: u64) {
        self.observe_n(ns, 1);
    }

    /// Counts so many of the same duration.
    #[inline]
    pub fn observe_n(&mut self, ns: u64, count: u64) {
        // Everything in the first bucket looks like its greatest: so nothing is 0, and to find the
        // highest bit of a number that is not 0 is one instruction.
        let halves = (ns >> (UNIT_SHIFT - 1)) | 1;
        let bucket = halves.ilog2() as usize;
        let counted = &mut self.buckets[bucket.min(BUCKETS - 1)];
        *counted = counted.wrapping_add(count);
        let units = ns >> UNIT_SHIFT;
        self.sum = self.sum.wrapping_add(units.wrapping_mul(count));
    }

    /// How many were counted in each bucket.
    #[must_use]
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.buckets
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together, in nanoseconds, to about a microsecond each.
    #[must_use]
    pub fn sum_ns(&self) -> u128 {
        u128::from(self.sum) << UNIT_SHIFT
    }

    /// What everything in a bucket is below, in nanoseconds; none for the last.
    #[must_use]
    pub const fn bound_ns(bucket: usize) -> Option<u64> {
        if bucket + 1 < BUCKETS {
            Some(1 << (bucket as u32 + UNIT_SHIFT))
        } else {
            None
        }
    }

    /// What this part of all durations is below, in nanoseconds, as if those in one bucket were spread
    /// evenly over it. 0 if nothing was counted.
    #[must_use]
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let wanted = self.count() as f64 * part;
        let mut below = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            if count > 0 && (below + count) as f64 >= wanted {
                let floor = bucket
                    .checked_sub(1)
                    .and_then(Self::bound_ns)
                    .unwrap_or_default();
                let Some(bound) = Self::bound_ns(bucket) else {
                    return floor; // how far it goes beyond this is not known
                };
                let within = (wanted - below as f64).max(0.0) / count as f64;
                return floor + ((bound - floor) as f64 * within) as u64;
            }
            below += count;
        }
        0
    }

    /// Changes each count, and the sum, by that of another.
    pub fn merge(&mut self, other: &Self, merge: fn(u64, u64) -> u64) {
        for (it, &other) in self.buckets.iter_mut().zip(&other.buckets) {
            *it = merge(*it, other);
        }
        self.sum = merge(self.sum, other.sum);
    }

    /// What was counted since an earlier look at the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.buckets;
        for (now, before) in buckets.iter_mut().zip(earlier.buckets) {
            *now -= before;
        }
        let sum = self.sum.wrapping_sub(earlier.sum);
        Self { buckets, sum }
    }
}

/// How long things took. All are zero if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// How many there were.
    pub count: u64,
    /// What half of them were below.
    pub p50_us: u64,
    /// What all but one of a hundred were below.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Percentiles {
    /// A percentile is an estimate, within the power of two that it falls into; the maximum is exact.
    #[must_use]
    pub fn of(durations: &Histogram, ns_max: u64) -> Self {
        let us = |part| durations.quantile_ns(part).min(ns_max).div_ceil(1_000);
        Self {
            count: durations.count(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            max_us: ns_max.div_ceil(1_000),
        }
    }
}

/// Durations since the start, and percentiles of those in the last full second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lapped {
    all: Histogram,
    /// What there was before the present second, when that is over, and the longest in it.
    before: Histogram,
    ends: Nanos,
    ns_max: u64,
    recent: Percentiles,
}

/// How long the time is that recent figures are of.
const LAP_NS: u64 = 1_000_000_000;

impl Lapped {
    /// Counts one duration, which has ended now.
    pub fn observe(&mut self, now: Nanos, ns: u64) {
        self.roll(now);
        self.all.observe(ns);
        self.ns_max = self.ns_max.max(ns);
    }

    /// All durations since the start.
    #[must_use]
    pub fn all(&self) -> &Histogram {
        &self.all
    }

    /// Those of the last full second before now.
    pub fn recent(&mut self, now: Nanos) -> Percentiles {
        self.roll(now);
        self.recent
    }

    /// A second may be over, if not several: then nothing happened in the last of them.
    fn roll(&mut self, now: Nanos) {
        if now < self.ends {
            return;
        }
        self.recent = match now.since(self.ends) < LAP_NS {
            true => Percentiles::of(&self.all.since(&self.before), self.ns_max),
            false => Percentiles::default(),
        };
        self.before = self.all;
        self.ends = Nanos(now.0.saturating_add(LAP_NS));
        self.ns_max = 0;
    }
}
