//! A run in words: the two numbers that matter, then the rest.

use std::fmt::Write;

use hdrhistogram::Histogram;

use crate::machine::CpuTime;
use crate::report::format::{duration, grouped};
use crate::run::outcome::Rounds;
use crate::run::spec::{Keys, Spec, Workload};

/// One run as text.
pub(crate) fn run(title: &str, spec: &Spec, rounds: &Rounds) -> String {
    let mut out = String::new();
    let rate = rounds.median(|it| it.per_s());
    let least = rounds
        .each
        .iter()
        .map(|it| it.per_s())
        .fold(f64::MAX, f64::min);
    let most = rounds.each.iter().map(|it| it.per_s()).fold(0.0, f64::max);
    let (first, second) = spec.workload.steps();
    let mut line = |text: String| {
        writeln!(out, "{text}").expect("a String takes every write");
    };
    line(title.to_owned());
    line(format!(
        "  throughput {:>14}/s   median of {}, from {} to {}",
        grouped(rate),
        rounds.each.len(),
        grouped(least),
        grouped(most)
    ));
    line(format!(
        "  p99        {:>16}   of {first}; p50 {}",
        duration(rounds.take.value_at_quantile(0.99)),
        duration(rounds.take.value_at_quantile(0.5))
    ));
    let contended = spec.keys != Keys::Own && spec.workload == Workload::Lock;
    if contended && spec.keys == Keys::Shared(1) {
        let p50 = rounds.take.value_at_quantile(0.5).max(1);
        line(format!(
            "  hand-overs {:>14}/s   waiting p99/p50 {:.2}",
            grouped(rounds.median(|it| it.takes_per_s())),
            rounds.take.value_at_quantile(0.99) as f64 / p50 as f64
        ));
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
    let answers = rounds.sum(|it| it.answers).max(1) as f64;
    let percent = |ns: u64| ns as f64 / elapsed * 100.0;
    let mut text = String::from("  processor  ");
    let mut add = |name: &str, spent: CpuTime| {
        text.push_str(&format!(
            "{name} ran {:.0} % ({:.2} us per answer) and waited for its core {:.0} %",
            percent(spent.ran_ns),
            spent.ran_ns as f64 / answers / 1e3,
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
    for quantile in [0.5, 0.9, 0.99, 0.999] {
        text.push_str(&format!(
            "{:>10}",
            duration(latency.value_at_quantile(quantile))
        ));
    }
    text + &format!("{:>10}", duration(latency.max()))
}
