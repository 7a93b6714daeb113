//! What stands beside the figures of several scenes: the server's longest turns, figures with a
//! bound that no machine excuses, and how long this program waited for its own core.

use std::io;

use crate::machine::CpuTime;
use crate::report::figures::Unit::{Count, Nanos};
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::report::figures::{Figures, WITHOUT, Wanted};
use crate::scenarios::observe;
use crate::servers::target::Target;

/// Nanoseconds in a millisecond.
pub(super) const MS: f64 = 1e6;

/// How often a server is asked that may be busy with what the attackers left behind.
const TRIES: usize = 5;

/// The longest turn since the server started, if it says so.
pub(super) fn longest_turn(target: &Target) -> io::Result<Option<f64>> {
    for _ in 1..TRIES {
        match observe::longest_turn(target) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            other => return other,
        }
    }
    observe::longest_turn(target)
}

/// The longest turns: with the attack, without it, and until the attackers were ready.
pub(super) struct Turns {
    pub(super) with: Option<f64>,
    pub(super) without: Option<f64>,
    pub(super) before: Option<f64>,
}

impl Turns {
    pub(super) fn put(&self, figures: &mut Figures, wanted: Wanted) {
        figures.put("longest turn", Nanos, self.with, wanted);
        figures.put("without: longest turn", Nanos, self.without, Nothing);
        figures.put("longest turn, until ready", Nanos, self.before, Nothing);
    }
}

/// How long a process is ready to run from now on, and does not.
pub(super) struct Waiting {
    pid: Option<u32>,
    began: Option<CpuTime>,
}

impl Waiting {
    /// This process.
    pub(super) fn begin() -> Self {
        Self::of(Some(std::process::id()))
    }

    /// The process of this number, if it is known.
    pub(super) fn of(pid: Option<u32>) -> Self {
        let began = pid.and_then(CpuTime::of);
        Self { pid, began }
    }

    /// So long until now, in nanoseconds.
    pub(super) fn end(self) -> Option<f64> {
        let now = self.pid.and_then(CpuTime::of)?;
        Some(now.since(self.began?).waited_ns as f64)
    }
}

/// Puts how long the load waited for its core, with the attack and without.
pub(super) fn put_waited(figures: &mut Figures, with: Option<f64>, without: Option<f64>) {
    for (prefix, waited) in [("", with), (WITHOUT, without)] {
        let name = format!("{prefix}load waited for its core");
        figures.put(&name, Nanos, waited, Nothing);
    }
}

/// A figure in nanoseconds that this program has waited for. What it has itself waited for its core
/// is in it, so if a target is missed that might have been met otherwise, it is not measured.
pub(super) fn unless_spoilt(ns: f64, waited_ns: Option<f64>, bound: f64) -> Option<f64> {
    let waited_ns = waited_ns.unwrap_or_default();
    Some(ns).filter(|&it| it <= bound || it - waited_ns > bound)
}

/// Puts a figure that a busy machine makes no larger: above the bound, the server is wrong.
pub(super) fn put_bounded(figures: &mut Figures, name: &str, found: f64, most: f64) {
    figures.put(name, Count, Some(found), AtMost(most));
    if found > most {
        let what = format!("{name}: {found:.0} instead of {most:.0} at most");
        figures.wrong.add(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_that_may_be_our_own_is_not_measured() {
        for (ns, waited_ns, measured) in [
            (9.0, Some(9.0), true),
            (11.0, Some(0.0), true),
            (11.0, Some(2.0), false),
            (30.0, Some(2.0), true),
            (30.0, None, true),
        ] {
            let found = unless_spoilt(ns, waited_ns, 10.0);
            assert_eq!(found, measured.then_some(ns), "{ns} {waited_ns:?}");
        }
    }

    #[test]
    fn figure_above_a_bound_that_is_not_about_time_is_a_wrong_answer() {
        let mut figures = Figures::default();
        for (found, wrong) in [(0.0, 0), (160.0, 0), (160.1, 1)] {
            put_bounded(&mut figures, "verdicts", found, 160.0);
            assert_eq!(figures.wrong.count, wrong, "{found}");
        }
    }
}
