//! A run as one JSON object, for programs. What was not measured is null.

use hdrhistogram::Histogram;

use crate::machine::CpuTime;
use crate::run::outcome::{Outcome, Rounds, quantile};

/// One run.
pub(crate) fn run(title: &str, rounds: &Rounds) -> String {
    let each: Vec<String> = rounds.each.iter().map(|it| whole(it.per_s())).collect();
    let wrong: Vec<String> = rounds.wrong.first.iter().map(|it| quoted(it)).collect();
    let spent = |spent: Option<CpuTime>| {
        or_null(spent.map(|it| {
            format!(
                "{{\"ran_ns\":{},\"waited_ns\":{}}}",
                it.ran_ns, it.waited_ns
            )
        }))
    };
    format!(
        "{{\"run\":{},\"per_s\":{},\"p99_ns\":{},\"takes_per_s\":{},\"rounds_per_s\":[{}],\
         \"first\":{},\"second\":{},\"answers\":{},\"elapsed_ns\":{},\"retries\":{},\
         \"overtaken\":{},\"behind\":{},\"server\":{},\"load\":{},\
         \"wrong\":{},\"wrong_first\":[{}]}}",
        quoted(title),
        whole(rounds.median(Outcome::per_s)),
        or_null(quantile(&rounds.take, 0.99)),
        whole(rounds.median(Outcome::takes_per_s)),
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
    let at = |part| or_null(quantile(latency, part));
    format!(
        "{{\"count\":{},\"p50_ns\":{},\"p90_ns\":{},\"p99_ns\":{},\"p999_ns\":{},\"max_ns\":{}}}",
        latency.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

/// A fraction; null if there is none.
pub(crate) fn number(value: Option<f64>) -> String {
    or_null(value.map(|it| format!("{it:.4}")))
}

fn whole(value: Option<f64>) -> String {
    or_null(value.map(|it| format!("{it:.0}")))
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "null".to_owned(), |it| it.to_string())
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
    fn what_was_not_measured_is_null() {
        assert_eq!(number(Some(0.5)), "0.5000");
        assert_eq!(number(None), "null");
        let json = run("short", &Rounds::of(vec![Outcome::new()]));
        for null in ["per_s", "p99_ns", "takes_per_s", "p50_ns", "max_ns"] {
            assert!(json.contains(&format!("\"{null}\":null")), "{null}: {json}");
        }
        assert!(json.contains("\"rounds_per_s\":[null]"), "{json}");
        assert!(json.contains("\"answers\":0"), "{json}");
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(quoted("a \"b\"\n"), "\"a \\\"b\\\"\\u000a\"");
    }
}
