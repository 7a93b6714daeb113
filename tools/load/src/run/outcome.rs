//! What a run found: how much, how fast, how wrong.
//!
//! Numbers only; `report` shows them. What could not be measured is `None`, never 0: a run that
//! ended before its first answer has no rate and no latency.

use hdrhistogram::Histogram;

use crate::machine::CpuTime;
use crate::run::ledger::Wrong;

/// Longest latency that is recorded; longer ones count as this long.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// Most groups in which cycles that never started are recorded; finer than the histogram can tell
/// apart.
const GROUPS_MAX: u64 = 100_000;

/// Latencies in nanoseconds, to three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constants that fit")
}

/// What one run found.
#[derive(Clone)]
pub(crate) struct Outcome {
    /// Requests answered while measuring.
    pub(crate) answers: u64,
    /// Of these, first requests of a cycle.
    pub(crate) takes: u64,
    pub(crate) elapsed_ns: u64,
    /// Latencies of the first request of a cycle, and of the second. In an open loop also of what
    /// was due while measuring and was answered later, or never.
    pub(crate) take: Histogram<u64>,
    pub(crate) give: Histogram<u64>,
    /// Of the first ones, those of the connections that speak HTTP beside others that do not.
    pub(crate) take_http: Histogram<u64>,
    /// Answers after which a client had to ask again; only from servers without a queue.
    pub(crate) retries: u64,
    pub(crate) overtaken: u64,
    /// Open loop: how late this program itself made a start that a connection was free for. It is
    /// part of the latency, and no fault of the server.
    pub(crate) late: Histogram<u64>,
    /// Open loop: starts that were due and had not been made at the end.
    pub(crate) behind: u64,
    /// Processor time while measuring, of the server if it was started here, and of this program.
    pub(crate) server: Option<CpuTime>,
    pub(crate) load: Option<CpuTime>,
    pub(crate) wrong: Wrong,
    /// The run ended early, because it could not go on.
    pub(crate) broken: bool,
}

impl Outcome {
    pub(crate) fn new() -> Self {
        Self {
            answers: 0,
            takes: 0,
            elapsed_ns: 0,
            take: latencies(),
            give: latencies(),
            take_http: latencies(),
            retries: 0,
            overtaken: 0,
            late: latencies(),
            behind: 0,
            server: None,
            load: None,
            wrong: Wrong::default(),
            broken: false,
        }
    }

    /// A first request was answered after this long.
    pub(crate) fn record_take(&mut self, over_http: bool, latency_ns: u64) {
        self.take.saturating_record(latency_ns);
        if over_http {
            self.take_http.saturating_record(latency_ns);
        }
    }

    /// The first requests that did not go over HTTP.
    pub(crate) fn take_by_line(&self) -> Histogram<u64> {
        let mut by_line = self.take.clone();
        by_line
            .subtract(&self.take_http)
            .expect("what is subtracted was added");
        by_line
    }

    /// Open loop: `behind` cycles, each `interval_ns` after the one before, the first of them at
    /// `due_ns`, have never started. Each has waited at least until now.
    pub(crate) fn never_started(&mut self, due_ns: u64, interval_ns: u64, now: u64) {
        // Very many are recorded in groups, each with the shortest wait in it.
        let group = self.behind.div_ceil(GROUPS_MAX).max(1);
        let mut left = self.behind;
        let mut before = 0;
        while left > 0 {
            let count = group.min(left);
            before += count;
            left -= count;
            let last_due_ns = due_ns.saturating_add((before - 1).saturating_mul(interval_ns));
            let waited = now.saturating_sub(last_due_ns);
            self.take.saturating_record_n(waited, count);
        }
    }

    /// Requests answered per second.
    pub(crate) fn per_s(&self) -> Option<f64> {
        self.rate(self.answers)
    }

    /// Grants, or other first requests, per second.
    pub(crate) fn takes_per_s(&self) -> Option<f64> {
        self.rate(self.takes)
    }

    fn rate(&self, count: u64) -> Option<f64> {
        (count > 0).then(|| count as f64 * 1e9 / self.elapsed_ns.max(1) as f64)
    }

    /// The server's processor time per answer.
    pub(crate) fn server_ns_per_answer(&self) -> Option<f64> {
        per_answer(self.server?, self.answers)
    }
}

/// Several rounds of the same run as one.
pub(crate) struct Rounds {
    pub(crate) each: Vec<Outcome>,
    /// All rounds' latencies.
    pub(crate) take: Histogram<u64>,
    pub(crate) give: Histogram<u64>,
    pub(crate) wrong: Wrong,
}

impl Rounds {
    pub(crate) fn of(each: Vec<Outcome>) -> Self {
        let mut all = Self {
            each: Vec::new(),
            take: latencies(),
            give: latencies(),
            wrong: Wrong::default(),
        };
        for round in &each {
            // Same bounds, so nothing can be out of range.
            let _ = all.take.add(&round.take);
            let _ = all.give.add(&round.give);
            all.wrong.merge(&round.wrong);
        }
        all.each = each;
        all
    }

    /// The median of the rounds in which it was measured.
    pub(crate) fn median(&self, what: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        median(self.each.iter().filter_map(what).collect())
    }

    /// The processor time of all rounds, if every round knows it.
    pub(crate) fn cpu_time(&self, whose: impl Fn(&Outcome) -> Option<CpuTime>) -> Option<CpuTime> {
        let mut sum = CpuTime::default();
        for round in &self.each {
            let spent = whose(round)?;
            sum.ran_ns += spent.ran_ns;
            sum.waited_ns += spent.waited_ns;
        }
        Some(sum)
    }

    /// The rounds' sum.
    pub(crate) fn sum(&self, what: impl Fn(&Outcome) -> u64) -> u64 {
        self.each.iter().map(what).sum()
    }
}

/// The middle value; the upper one of an even number.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The latency at this quantile; 1.0 is the longest.
pub(crate) fn quantile(latency: &Histogram<u64>, quantile: f64) -> Option<u64> {
    (!latency.is_empty()).then(|| latency.value_at_quantile(quantile))
}

/// Processor time per answer. A process that did not run at all was not measured: the time was too
/// short for the system to count.
pub(crate) fn per_answer(spent: CpuTime, answers: u64) -> Option<f64> {
    (answers > 0 && spent.ran_ns > 0).then(|| spent.ran_ns as f64 / answers as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_answers_nothing_is_measured() {
        let mut found = Outcome::new();
        found.elapsed_ns = 1_000;
        found.server = Some(CpuTime {
            ran_ns: 500,
            waited_ns: 0,
        });
        assert_eq!((found.per_s(), found.takes_per_s()), (None, None));
        assert_eq!(found.server_ns_per_answer(), None);
        assert_eq!(quantile(&found.take, 0.5), None);
        found.answers = 5;
        assert_eq!(found.per_s(), Some(5e6));
        assert_eq!(found.server_ns_per_answer(), Some(100.0));
        found.server = Some(CpuTime::default());
        assert_eq!(
            found.server_ns_per_answer(),
            None,
            "it ran too short to be counted"
        );
        let rounds = Rounds::of(vec![Outcome::new(), found]);
        assert_eq!(rounds.median(Outcome::per_s), Some(5e6));
    }

    #[test]
    fn a_cycle_that_never_started_has_waited_until_now() {
        let mut found = Outcome::new();
        found.behind = 3;
        found.never_started(1_000, 100, 2_000);
        assert_eq!(found.take.len(), 3);
        assert_eq!((found.take.min(), found.take.max()), (800, 1_000));
        // Very many take no longer than a few.
        found.behind = 1_000_000_000_000;
        found.never_started(0, 1, 1_000_000_000_000);
        assert_eq!(found.take.len(), 1_000_000_000_003);
    }
}
