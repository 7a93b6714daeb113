//! Clock drift: the part of a promise that no client counts on, because clocks differ in speed.
//!
//! A daemon that slews a clock moves it by up to 8 % (chrony 8.3 %, ntpd 0.05 %). A client whose
//! clock is slow by that much would believe in a lease that the server has ended, so a tenth of
//! every lease is left out unless another part was set.

use std::time::Duration;

/// By how much the clocks of client and server may differ in speed, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    percent: u32,
}

/// Beyond this nothing useful would be left of a lease.
const PERCENT_MAX: u32 = 50;

impl Default for Drift {
    fn default() -> Self {
        Self { percent: 10 }
    }
}

impl Drift {
    /// Refuses what is above a half, with a sentence that says why.
    pub(crate) fn of(percent: u32) -> Result<Self, String> {
        match percent <= PERCENT_MAX {
            true => Ok(Self { percent }),
            false => Err(format!(
                "a clock drift of {percent} % is more than {PERCENT_MAX} %: little would be left of a lease"
            )),
        }
    }

    /// How much of a promised span is counted on.
    pub(crate) fn counted(self, span: Duration) -> Duration {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let left_out = nanos.div_ceil(100) * u64::from(self.percent);
        Duration::from_nanos(nanos.saturating_sub(left_out))
    }

    /// The shortest promise of which so much is counted on.
    #[cfg(feature = "client")]
    pub(crate) fn promise_for(self, counted: Duration) -> Duration {
        counted.saturating_mul(100) / (100 - self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_not_counted_on_unless_set() {
        let ms = Duration::from_millis;
        assert_eq!(Drift::default().counted(ms(33_000)), ms(29_700));
        assert_eq!(Drift::of(0).unwrap().counted(ms(33_000)), ms(33_000));
        assert_eq!(Drift::of(50).unwrap().counted(ms(1_000)), ms(500));
        assert_eq!(Drift::default().counted(Duration::ZERO), Duration::ZERO);
        assert!(Drift::default().counted(Duration::MAX) > ms(1 << 40));
        assert!(Drift::default().counted(Duration::from_nanos(7)) <= Duration::from_nanos(7));
        assert!(Drift::of(51).is_err());
    }

    #[cfg(feature = "client")]
    #[test]
    fn the_shortest_promise_is_enough() {
        for percent in [0, 1, 10, 50] {
            let (drift, wanted) = (Drift::of(percent).unwrap(), Duration::from_millis(7_100));
            let promise = drift.promise_for(wanted);
            assert!(drift.counted(promise + Duration::from_micros(1)) >= wanted);
            assert!(drift.counted(promise.mul_f64(0.999)) < wanted);
        }
    }
}
