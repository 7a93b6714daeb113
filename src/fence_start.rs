//! Where fences start when there is no data directory: at a number that follows the wall clock.
//!
//! A run must start above every fence of every earlier run, and all it knows of those is that they
//! were granted before now. So the clock gives out nine numbers for every microsecond, more than
//! four times the grants that were ever measured (2.1 million a second, when a client fills the
//! table with locks), and no run can outrun it: if one ever did, its grants would wait
//! (`server/gate.rs`). The one thing that can bring fences back is a clock that was set back between
//! two runs by more than the time since the last grant.

/// 2026-01-01 00:00 UTC, in microseconds since 1970.
const BEGINNING_US: u64 = 1_767_225_600_000_000;

/// The fence of that moment: above what a count of microseconds since 1970 had given out by then.
const FENCE_AT_BEGINNING: u64 = 1_770_000_000_000_000;

/// How many grants fit into a microsecond.
pub const FENCES_PER_US: u64 = 9;

/// Left for a run that starts as late as possible: three months of grants at the highest rate.
const LEFT_MIN: u64 = FENCES_PER_US * 92 * 86_400 * 1_000_000;

/// What the wall clock is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStart {
    /// Every fence will be above this.
    At(u64),
    /// The same, but the clock shows a time before this program was written: an earlier run may
    /// have had a better one.
    Doubtful(u64),
    /// The clock is so late that fences would no longer fit into 53 bits.
    TooLate,
}

/// Where a run starts that begins at this time.
pub fn fence_start(wall_clock_us: u64, fence_limit: u64) -> FenceStart {
    let Some(since_us) = wall_clock_us.checked_sub(BEGINNING_US) else {
        return FenceStart::Doubtful(FENCE_AT_BEGINNING);
    };
    let start = since_us
        .checked_mul(FENCES_PER_US)
        .and_then(|since| since.checked_add(FENCE_AT_BEGINNING));
    match start {
        Some(start) if start < fence_limit - LEFT_MIN => FenceStart::At(start),
        _ => FenceStart::TooLate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Fence;

    const YEAR_US: u64 = 365 * 86_400 * 1_000_000;

    fn at(wall_clock_us: u64) -> FenceStart {
        fence_start(wall_clock_us, Fence::LIMIT)
    }

    #[test]
    fn a_later_run_starts_above_all_that_an_earlier_one_can_have_granted() {
        const GRANTS_PER_S_MAX: u64 = 4 * 2_110_000;
        let begin = BEGINNING_US + YEAR_US;
        for seconds in [1, 60, 86_400, 20 * 365 * 86_400] {
            let (FenceStart::At(first), FenceStart::At(second)) =
                (at(begin), at(begin + seconds * 1_000_000))
            else {
                panic!("{seconds} s later");
            };
            assert!(
                first + seconds * GRANTS_PER_S_MAX < second,
                "{seconds} s later"
            );
        }
    }

    #[test]
    fn fences_last_beyond_the_year_2050_and_begin_above_microseconds_since_1970() {
        let until_2051 = BEGINNING_US + 25 * YEAR_US + 7 * 86_400 * 1_000_000;
        assert!(matches!(at(until_2051), FenceStart::At(_)));
        assert!(matches!(at(BEGINNING_US), FenceStart::At(start) if start > BEGINNING_US));
    }

    #[test]
    fn a_clock_that_is_wrong_is_noticed() {
        assert_eq!(at(0), FenceStart::Doubtful(FENCE_AT_BEGINNING));
        assert_eq!(at(BEGINNING_US + 60 * YEAR_US), FenceStart::TooLate);
        assert_eq!(at(u64::MAX), FenceStart::TooLate);
    }
}
