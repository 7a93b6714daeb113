//! A run as one JSON object, for programs.

use hdrhistogram::Histogram;

use crate::machine::CpuTime;
use crate::run::outcome::Rounds;

/// One run.
pub(crate) fn run(title: &str, rounds: &Rounds) -> String {
    let each: Vec<String> = rounds
        .each
        .iter()
        .map(|it| format!("{:.0}", it.per_s()))
        .collect();
    let wrong: Vec<String> = rounds.wrong.first.iter().map(|it| quoted(it)).collect();
    let spent = |spent: Option<CpuTime>| {
        spent.map_or_else(
            || "null".to_owned(),
            |it| {
                format!(
                    "{{\"ran_ns\":{},\"waited_ns\":{}}}",
                    it.ran_ns, it.waited_ns
                )
            },
        )
    };
    format!(
        "{{\"run\":{},\"per_s\":{:.0},\"p99_ns\":{},\"takes_per_s\":{:.0},\"rounds_per_s\":[{}],\
         \"first\":{},\"second\":{},\"answers\":{},\"elapsed_ns\":{},\"retries\":{},\
         \"overtaken\":{},\"behind\":{},\"server\":{},\"load\":{},\
         \"wrong\":{},\"wrong_first\":[{}]}}",
        quoted(title),
        rounds.median(|it| it.per_s()),
        rounds.take.value_at_quantile(0.99),
        rounds.median(|it| it.takes_per_s()),
        each.join(","),
        latencies(&rounds.take),
        latencies(&rounds.give),
        rounds.sum(|it| it.answers),
        rounds.sum(|it| it.elapsed_ns),
        rounds.sum(|it| it.retries),
        rounds.sum(|it| it.overtaken),
        rounds.sum(|it| it.behind),
        spent(rounds.cpu_time(|it| it.server)),
        spent(rounds.cpu_time(|it| it.load)),
        rounds.wrong.count,
        wrong.join(",")
    )
}

fn latencies(latency: &Histogram<u64>) -> String {
    let at = |quantile| latency.value_at_quantile(quantile);
    format!(
        "{{\"count\":{},\"p50_ns\":{},\"p90_ns\":{},\"p99_ns\":{},\"p999_ns\":{},\"max_ns\":{}}}",
        latency.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        latency.max()
    )
}

/// A number; null if there is none.
pub(crate) fn number(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.4}"),
        false => "null".to_owned(),
    }
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_null() {
        assert_eq!(number(0.5), "0.5000");
        assert_eq!(number(f64::NAN), "null");
        assert_eq!(number(f64::INFINITY), "null");
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(quoted("a \"b\"\n"), "\"a \\\"b\\\"\\u000a\"");
    }
}
