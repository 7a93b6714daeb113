//! A run in words: the two numbers that matter, then the rest.

use std::fmt::Write;

use hdrhistogram::Histogram;

use crate::machine::CpuTime;
use crate::report::format::{NOT_MEASURED, duration, grouped};
use crate::run::outcome::{Outcome, Rounds, per_answer, quantile};
use crate::run::spec::{Keys, Spec, Workload};

/// One run as text.
pub(crate) fn run(title: &str, spec: &Spec, rounds: &Rounds) -> String {
    let mut out = String::new();
    let (first, second) = spec.workload.steps();
    let mut line = |text: String| {
        writeln!(out, "{text}").expect("a String takes every write");
    };
    line(title.to_owned());
    line(throughput(rounds));
    line(match p99_and_p50(&rounds.take) {
        Some((p99, p50)) => format!(
            "  p99        {:>16}   of {first}; p50 {}",
            duration(p99),
            duration(p50)
        ),
        None => format!("  p99        {NOT_MEASURED:>16}"),
    });
    let contended = spec.keys != Keys::Own && spec.workload == Workload::Lock;
    if contended && spec.keys == Keys::Shared(1) {
        let rate = rounds.median(Outcome::takes_per_s);
        line(match rate.zip(p99_and_p50(&rounds.take)) {
            Some((rate, (p99, p50))) => format!(
                "  hand-overs {:>14}/s   waiting p99/p50 {:.2}",
                grouped(rate),
                p99 as f64 / p50.max(1) as f64
            ),
            None => format!("  hand-overs {NOT_MEASURED:>16}"),
        });
    }
    line(format!(
        "  {:<10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "p50", "p90", "p99", "p99.9", "most"
    ));
    line(spread(first, &rounds.take));
    if let Some(second) = second {
        line(spread(second, &rounds.give));
    }
    if let Some(text) = processor(rounds) {
        line(text);
    }
    let behind = rounds.sum(|it| it.behind);
    if behind > 0 {
        line(format!(
            "  the server did not keep up: {behind} starts were due and not made at the end; their \
             latency is the time they had waited by then"
        ));
    }
    let retries = rounds.sum(|it| it.retries);
    if retries > 0 {
        line(format!(
            "  asked again because it was taken: {retries} times"
        ));
    }
    line(checks(contended, rounds));
    for what in &rounds.wrong.first {
        line(format!("  WRONG: {what}"));
    }
    out
}

/// The median of the rounds that were measured, and how many were not.
fn throughput(rounds: &Rounds) -> String {
    let rates: Vec<f64> = rounds.each.iter().filter_map(Outcome::per_s).collect();
    let unmeasured = rounds.each.len() - rates.len();
    let Some(median) = rounds.median(Outcome::per_s) else {
        return format!(
            "  throughput {NOT_MEASURED:>16}   no answer came in time; measure longer, with --seconds"
        );
    };
    let mut text = format!(
        "  throughput {:>14}/s   median of {}, from {} to {}",
        grouped(median),
        rates.len(),
        grouped(rates.iter().copied().fold(f64::INFINITY, f64::min)),
        grouped(rates.iter().copied().fold(0.0, f64::max))
    );
    if unmeasured > 0 {
        text.push_str(&format!("; {unmeasured} more {NOT_MEASURED}"));
    }
    text
}

fn p99_and_p50(latency: &Histogram<u64>) -> Option<(u64, u64)> {
    Some((quantile(latency, 0.99)?, quantile(latency, 0.5)?))
}

fn checks(contended: bool, rounds: &Rounds) -> String {
    let answers = rounds.sum(|it| it.answers);
    let wrong = match rounds.wrong.count {
        0 => "none wrong".to_owned(),
        count => format!("{count} WRONG"),
    };
    let mut text = format!("  checked    {answers} answers, {wrong}");
    if contended {
        let overtaken = rounds.sum(|it| it.overtaken);
        text.push_str(&format!("; {overtaken} not in the order they were written"));
    }
    text
}

/// How much of its core each of server and load used, and how long it waited for it.
fn processor(rounds: &Rounds) -> Option<String> {
    let elapsed = rounds.sum(|it| it.elapsed_ns).max(1) as f64;
    let answers = rounds.sum(|it| it.answers);
    let percent = |ns: u64| ns as f64 / elapsed * 100.0;
    let mut text = String::from("  processor  ");
    let mut add = |name: &str, spent: CpuTime| {
        if spent.ran_ns == 0 {
            // The time was too short for the system to count; nothing answers without running.
            return text.push_str(&format!("{name} {NOT_MEASURED}"));
        }
        let each = per_answer(spent, answers).map(|ns| format!(" ({:.2} µs per answer)", ns / 1e3));
        text.push_str(&format!(
            "{name} ran {:.0} %{} and waited for its core {:.0} %",
            percent(spent.ran_ns),
            each.unwrap_or_default(),
            percent(spent.waited_ns)
        ));
    };
    if let Some(server) = rounds.cpu_time(|it| it.server) {
        add("server", server);
        add("; load", rounds.cpu_time(|it| it.load)?);
    } else {
        add("load", rounds.cpu_time(|it| it.load)?);
    }
    Some(text)
}

fn spread(name: &str, latency: &Histogram<u64>) -> String {
    let mut text = format!("  {name:<10}");
    for part in [0.5, 0.9, 0.99, 0.999, 1.0] {
        let Some(ns) = quantile(latency, part) else {
            return format!("  {name:<10} {NOT_MEASURED:>16}");
        };
        text.push_str(&format!("{:>10}", duration(ns)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_answers_is_not_measured() {
        let spec = Spec {
            keys: Keys::Shared(1),
            ..Spec::default()
        };
        let text = run("short", &spec, &Rounds::of(vec![Outcome::new()]));
        let figures = "throughput, p99, hand-overs, acquire, release";
        let count = text.matches(NOT_MEASURED).count();
        assert_eq!(count, figures.split(", ").count(), "{text}");
        assert!(text.contains("--seconds"), "{text}");
        for zero in ["0/s", "0.0 µs", "0.00"] {
            assert!(!text.contains(zero), "{zero}: {text}");
        }
    }

    #[test]
    fn a_process_that_the_system_did_not_see_run_is_not_measured() {
        let mut round = Outcome::new();
        (round.answers, round.elapsed_ns) = (39, 1_700_000);
        (round.server, round.load) = (Some(CpuTime::default()), Some(CpuTime::default()));
        let rounds = Rounds::of(vec![round]);
        let text = processor(&rounds).unwrap();
        assert_eq!(text, "  processor  server not measured; load not measured");
    }

    #[test]
    fn rounds_without_answers_are_counted() {
        let mut round = Outcome::new();
        (round.answers, round.elapsed_ns) = (2_000, 1_000_000_000);
        round.take.saturating_record_n(1_000, 1_000);
        let text = run(
            "a",
            &Spec::default(),
            &Rounds::of(vec![round, Outcome::new()]),
        );
        let says = "2,000/s   median of 1, from 2,000 to 2,000; 1 more not measured";
        assert!(text.contains(says), "{text}");
    }
}
