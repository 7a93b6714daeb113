//! The document of `GET /v1/stats`, which is also what each event of its stream says.
//!
//! As the line protocol's `stats`, but for the lists: it is as long with a million keys as with none,
//! so that a page may ask for it every second. Percentiles are of the last full second, the same for
//! everybody who asks.

use super::super::pace::Percentiles;
use super::super::stats::totals;
use super::shown::Shown;
use crate::engine::Engine;
use crate::wire::json::{push_number, push_str_escaped};

/// Appends the document, without a line end.
pub(in crate::server) fn stats(out: &mut Vec<u8>, engine: &Engine, shown: &Shown) {
    let Shown {
        now,
        is_draining,
        line_port,
        figures,
        recent,
    } = shown;
    let counts = engine.counts();
    out.extend_from_slice(b"{\"version\":");
    push_str_escaped(out, env!("CARGO_PKG_VERSION").as_bytes());
    number(out, "epoch", figures.epoch);
    number(out, "uptime_ms", now.0 / 1_000_000);
    title(out, "draining");
    out.extend_from_slice(if *is_draining { b"true" } else { b"false" });
    match line_port {
        Some(port) => number(out, "line_port", u64::from(*port)),
        None => {
            title(out, "line_port");
            out.extend_from_slice(b"null");
        }
    }
    number(out, "connections", figures.connections as u64);
    number(out, "held", counts.holders as u64);
    number(out, "waiting", counts.waiters as u64);
    percentiles(out, "op_latency_us", &recent.operations);
    percentiles(out, "turn_us", &recent.turns);
    totals(out, engine.view(*now), engine.tally(), figures);
    out.push(b'}');
}

fn percentiles(out: &mut Vec<u8>, called: &str, it: &Percentiles) {
    title(out, called);
    out.extend_from_slice(b"{\"count\":");
    push_number(out, it.count);
    number(out, "p50", it.p50_us);
    number(out, "p99", it.p99_us);
    number(out, "max", it.max_us);
    out.push(b'}');
}

/// `,"title":`, which is ours and needs no escapes.
fn title(out: &mut Vec<u8>, title: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(b"\":");
}

fn number(out: &mut Vec<u8>, called: &str, value: u64) {
    title(out, called);
    push_number(out, value);
}
