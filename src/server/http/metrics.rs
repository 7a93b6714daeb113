//! The answer to `/metrics`: figures for Prometheus, in its text format.
//!
//! One figure, one name. The names are LockServer's for what happens on its routes (`lock_…`), those that
//! file servers know for locks and connections in general (`locks_…`, `connections_…`), and `latchd_…`
//! for the rest. No name of a key, an owner or a client is in a label, so the answer is as long with a
//! million keys as with none. A label `share` is there only if the operator has named shares: a label that
//! is missing is the same as an empty one.
//!
//! Everything is as of this moment. Nothing is walked over: all of it is counted when it happens.

use super::super::pace::Pace;
use super::super::{Door, Process};
use super::figures::{HttpFigures, LATENCY_BOUNDS, Latency, LeaseOp, Outcome};
use super::metrics_cluster;
use super::shown::Shown;
use crate::base::Millis;
use crate::engine::types::{ADAPTER_DEFAULT, Sharing};
use crate::engine::{
    AdapterCounts, Census, EndReason, Engine, Held, HeldType, Limit, ShareFigures, Status,
};
use crate::histogram::{BUCKETS, Histogram};
use crate::wire::json::push_number;

/// What the answer calls itself.
pub(in crate::server) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Which bounds are shown of how long locks are waited for and held: every other one, up to a quarter
/// of an hour and a bit.
const LONG: Bounds = Bounds {
    start: 0,
    step: 2,
    end: 31,
};

/// And of turns and requests: all, up to a second.
const SHORT: Bounds = Bounds {
    start: 0,
    step: 1,
    end: 21,
};

/// Range locks as other ways to hold something are called.
const RANGE_TYPES: [(Sharing, &str); 2] = [
    (Sharing::Shared, "shared"),
    (Sharing::Exclusive, "exclusive"),
];

#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) start: usize,
    pub(super) step: usize,
    pub(super) end: usize,
}

/// Appends the whole text.
pub(in crate::server) fn metrics(
    out: &mut Vec<u8>,
    engine: &Engine,
    http: &HttpFigures,
    pace: &Pace,
    shown: &Shown,
    process: &Process,
) {
    let mut text = Text { out, family: "" };
    leases(&mut text, engine, http, shown);
    locks(&mut text, engine, http, shown);
    connections(&mut text, engine, http, shown);
    entries(&mut text, engine, shown);
    server(&mut text, http, pace, shown);
    of_process(&mut text, process);
}

/// LockServer's names, for requests over its routes.
fn leases(text: &mut Text<'_>, engine: &Engine, http: &HttpFigures, shown: &Shown) {
    for (op, name, help) in [
        (
            LeaseOp::Acquire,
            "lock_acquire_total",
            "Requests over HTTP to acquire a lease; fail: somebody else holds it.",
        ),
        (
            LeaseOp::Renew,
            "lock_renew_total",
            "Requests over HTTP to renew a lease; fail: it is over, or somebody else's.",
        ),
        (
            LeaseOp::Release,
            "lock_release_total",
            "Requests over HTTP to release a lease; fail: it is over, or somebody else's.",
        ),
    ] {
        text.counter(name, help);
        for outcome in Outcome::ALL {
            text.sample(&[("result", outcome.word())], http.leases(op, outcome));
        }
    }
    text.family(
        "lock_op_latency_ms",
        "histogram",
        "How long requests over HTTP for leases took, time in a queue included, in milliseconds.",
    );
    for op in LeaseOp::ALL {
        text.latency(op, http.latency(op));
    }
    text.counter(
        "lock_db_busy_total",
        "Requests over HTTP for leases that were answered BUSY_RETRY: no room on disk, or overload.",
    );
    for op in LeaseOp::ALL {
        text.sample(&[("op", op.word())], http.leases(op, Outcome::Busy));
    }
    text.gauge(
        "locks_held",
        "Grants held now, over both doors: the sum of locks_active without range locks.",
    );
    text.sample(&[], engine.counts().holders as u64);
    text.counter(
        "lock_expired_total",
        "Grants that ended with their lease, over both doors.",
    );
    text.sample(&[], engine.tally().expiries);
    text.family(
        "latchd_expiry_lateness_seconds",
        "histogram",
        "How long after the end of their lease those grants ended.",
    );
    let (lateness, _) = engine.view(shown.now).expiry_lateness();
    text.histogram(&[], lateness, SHORT);
}

fn locks(text: &mut Text<'_>, engine: &Engine, http: &HttpFigures, shown: &Shown) {
    let figures = engine.figures();
    let view = engine.view(shown.now);
    let (ranges, range_counts) = (view.range_figures(), view.range_counts());
    let shares = view.shares();
    let by_share = ByShare { shares: &shares };
    by_share.acquired(text);
    by_share.released(text);
    by_share.active(text);
    text.gauge(
        "locks_blocked",
        "Waiters in the queues of locks and of byte ranges now.",
    );
    for held in Held::ALL {
        text.sample(&[("type", held.word())], figures.of(held).waiting());
    }
    for (mode, word) in RANGE_TYPES {
        let waiting = range_counts.waiting_by[mode as usize];
        text.sample(&[("type", word)], waiting as u64);
    }
    by_share.waited(text);
    text.family(
        "locks_hold_duration_seconds",
        "histogram",
        "How long grants and range locks that are over were held.",
    );
    for held in Held::ALL {
        text.histogram(&[("type", held.word())], &figures.of(held).holds, LONG);
    }
    for (mode, word) in RANGE_TYPES {
        text.histogram(&[("type", word)], ranges.holds(mode), LONG);
    }
    text.counter(
        "locks_limit_hits_total",
        "Requests and connections refused because of a limit.",
    );
    for limit in Limit::ALL {
        let hits = figures.limit_hits(limit);
        text.sample(&[("limit_type", limit.word())], hits);
    }
    let refused = [Door::Line, Door::Http].map(|door| http.door(door).refused);
    text.sample(&[("limit_type", "connections")], refused.iter().sum());
    text.counter(
        "locks_deadlock_detected_total",
        "Requests refused because they would have waited for themselves.",
    );
    text.sample(&[], figures.deadlocks());
    text.counter(
        "latchd_deadlock_searches_given_up_total",
        "Searches for a deadlock given up because what they looked at kept changing, or was too much.",
    );
    text.sample(&[], figures.searches_given_up());
    let unclaimed = view.unclaimed();
    let grace = view.grace();
    text.gauge(
        "locks_grace_period_active",
        "1 while range locks are kept for those who held them before a restart.",
    );
    text.sample(&[], u64::from(grace.left > Millis::ZERO));
    text.gauge(
        "locks_grace_period_remaining_seconds",
        "How long that lasts at most.",
    );
    text.fraction(&[], grace.left.0.into(), 3);
    text.counter(
        "locks_reclaim_total",
        "Requests to have back range locks from before a restart.",
    );
    let [granted, denied] = ranges.reclaims();
    text.sample(&[("status", "granted")], granted);
    text.sample(&[("status", "denied")], denied);
    text.gauge(
        "latchd_unclaimed_grants",
        "Grants from before a restart that nobody has claimed.",
    );
    text.sample(&[], unclaimed.into());
}

/// The figures that are told by share, if there are shares. What belongs to none comes first.
struct ByShare<'a> {
    shares: &'a [(&'a str, ShareFigures)],
}

impl ByShare<'_> {
    /// Tells every share, with its label, which is left out if there are no shares.
    fn each(&self, mut tell: impl FnMut(&[Label<'_>], &ShareFigures)) {
        for (name, figures) in self.shares {
            let label = [("share", *name)];
            tell(&label[usize::from(self.shares.len() == 1)..], figures);
        }
    }

    /// Tells every share and type of what is held. A share has only the types that it has seen.
    fn each_type(&self, mut tell: impl FnMut(&[Label<'_>], HeldType, &ShareFigures)) {
        self.each(|share, figures| {
            let is_named = share.iter().any(|(_, name)| !name.is_empty());
            for held in HeldType::all() {
                if !is_named || figures.has_seen(held) {
                    let labels = [share, &[("type", held.word())]].concat();
                    tell(&labels, held, figures);
                }
            }
        });
    }

    fn acquired(&self, text: &mut Text<'_>) {
        text.counter(
            "locks_acquire_total",
            "Requests to hold something; denied: refused, not free in time, or not waited for to the end; deadlock: they would have waited for themselves.",
        );
        self.each_type(|labels, held, figures| {
            for status in Status::ALL {
                let labels = [labels, &[("status", status.word())]].concat();
                text.sample(&labels, figures.acquired(held, status));
            }
        });
    }

    fn released(&self, text: &mut Text<'_>) {
        text.counter(
            "locks_release_total",
            "Grants and range locks that ended; timeout: with their lease, grace_expired: not had back after a restart, break: by an operator.",
        );
        self.each(|share, figures| {
            for why in EndReason::ALL {
                let labels = [share, &[("reason", why.word())]].concat();
                text.sample(&labels, figures.ended(why));
            }
        });
    }

    fn active(&self, text: &mut Text<'_>) {
        text.gauge(
            "locks_active",
            "Grants held now; shared and exclusive: range locks.",
        );
        self.each_type(|labels, held, figures| text.sample(labels, figures.active(held)));
    }

    fn waited(&self, text: &mut Text<'_>) {
        text.family(
            "locks_blocking_duration_seconds",
            "histogram",
            "How long those waited that were granted after they had waited.",
        );
        self.each_type(|labels, held, figures| text.histogram(labels, figures.waits(held), LONG));
    }
}

/// The clients of each adapter that a limit names, and of all others together. None if there is no limit.
fn by_adapter(engine: &Engine, shown: &Shown) -> Vec<(String, AdapterCounts)> {
    let view = engine.view(shown.now);
    let named = view.limited_adapters();
    let mut all: Vec<_> = named.map(|(it, counts)| (it.to_owned(), counts)).collect();
    if !all.is_empty() {
        let [_, rest] = view.adapter_counts("");
        let rest = all.iter().fold(rest, |rest, (_, it)| rest.without(*it));
        match all.iter_mut().find(|(adapter, _)| adapter == OTHERS) {
            Some((_, others)) => *others = others.with(rest),
            None => all.push((OTHERS.to_owned(), rest)),
        }
    }
    all
}

/// What adapters are called together that no limit names.
const OTHERS: &str = "other";

/// Open connections by door, less those that are attached to a client of another adapter: these count there.
fn open(engine: &Engine, http: &HttpFigures, shown: &Shown) -> Vec<(String, u64)> {
    let doors = [Door::Line, Door::Http];
    let mut open: Vec<_> = doors.map(|it| (it.word().to_owned(), http.open(it))).into();
    let adapters = by_adapter(engine, shown);
    if adapters.is_empty() {
        return open;
    }
    // Only connections that speak the line protocol attach.
    let [of_line, all] = engine.view(shown.now).adapter_counts(ADAPTER_DEFAULT);
    let elsewhere = u64::from(all.conns - of_line.conns);
    open[0].1 = open[0].1.saturating_sub(elsewhere);
    let is_line_named = adapters
        .iter()
        .any(|(adapter, _)| adapter == ADAPTER_DEFAULT);
    for (adapter, counts) in adapters {
        let conns = match adapter.as_str() {
            ADAPTER_DEFAULT => continue, // by door
            OTHERS if !is_line_named => counts.conns - of_line.conns,
            _ => counts.conns,
        };
        match open.iter_mut().find(|(it, _)| *it == adapter) {
            Some((_, open)) => *open += u64::from(conns),
            None => open.push((adapter, conns.into())),
        }
    }
    open
}

fn connections(text: &mut Text<'_>, engine: &Engine, http: &HttpFigures, shown: &Shown) {
    let doors = [Door::Line, Door::Http];
    text.gauge("connections_active", "Open connections.");
    for (adapter, open) in open(engine, http, shown) {
        text.sample(&[("adapter", &adapter)], open);
    }
    let doors = doors.map(|door| (door.word(), http.door(door)));
    text.counter(
        "connections_total",
        "Connections that came and went; refused: closed at once, there were as many as there may be.",
    );
    for (adapter, it) in doors {
        for (event, count) in [
            ("accepted", it.accepted),
            ("closed", it.closed),
            ("refused", it.refused),
        ] {
            text.sample(&[("adapter", adapter), ("event", event)], count);
        }
    }
    text.counter(
        "latchd_slow_consumers_evicted_total",
        "Connections closed because they did not read what they were sent.",
    );
    text.sample(&[], shown.figures.slow_consumers);
    text.counter(
        "latchd_wrong_secrets_total",
        "Connections and requests refused because they did not show the secret.",
    );
    text.sample(&[], shown.figures.wrong_secrets);
    text.counter(
        "latchd_forbidden_total",
        "Requests refused because the token does not give what they ask for.",
    );
    text.sample(&[], shown.figures.forbidden);
    let handshakes = &shown.figures.handshakes;
    text.gauge("latchd_tls_handshakes_active", "TLS handshakes under way.");
    text.sample(&[], handshakes.open);
    text.counter(
        "latchd_tls_handshakes_total",
        "TLS handshakes that ended; late: not within --tls-handshake-timeout, or ended to make room.",
    );
    for (result, count) in [
        ("done", handshakes.done),
        ("failed", handshakes.failed),
        ("late", handshakes.late),
    ] {
        text.sample(&[("result", result)], count);
    }
}

/// What is in the tables.
fn entries(text: &mut Text<'_>, engine: &Engine, shown: &Shown) {
    let view = engine.view(shown.now);
    text.gauge("latchd_keys", "Keys of locks, in use and idle.");
    let censuses = [
        ("in_use", view.in_use_census()),
        ("idle", view.idle_census()),
    ];
    for (state, Census(counts)) in censuses {
        for (at, kind) in [
            (Census::LOCKS, "lock"),
            (Census::SEMAPHORES, "semaphore"),
            (Census::RW_LOCKS, "rwlock"),
        ] {
            let count = counts[at].into();
            text.sample(&[("kind", kind), ("state", state)], count);
        }
    }
    for (title, count) in view.totals() {
        let (name, help) = match title {
            "counters" => ("latchd_counters", "Counters."),
            "kv_entries" => ("latchd_values", "Values."),
            "lists" => ("latchd_lists", "Lists."),
            "barriers" => ("latchd_barriers", "Barriers that somebody waits at."),
            _ => continue, // patterns: subscriptions say more
        };
        text.gauge(name, help);
        text.sample(&[], count as u64);
    }
    text.gauge(
        "latchd_subscriptions",
        "What clients listen to, watch and observe.",
    );
    for (kind, count) in view.subscriptions() {
        text.sample(&[("kind", kind)], count as u64);
    }
    let blocked = Held::ALL.map(|held| engine.figures().of(held).waiting());
    let ranges = view.range_counts();
    let blocked = blocked.iter().sum::<u64>() + ranges.waiting as u64;
    let others = engine.counts().waiters as u64 - blocked;
    text.gauge(
        "latchd_range_resources",
        "Resources that somebody holds or wants some bytes of.",
    );
    text.sample(&[], ranges.resources as u64);
    text.gauge(
        "latchd_clients",
        "Clients that are known; away: without a connection.",
    );
    let (attached, away) = view.client_count();
    let adapters = by_adapter(engine, shown);
    for (adapter, it) in &adapters {
        let away = it.clients - it.attached;
        for (state, count) in [("attached", it.attached), ("away", away)] {
            text.sample(&[("adapter", adapter), ("state", state)], count.into());
        }
    }
    if adapters.is_empty() {
        text.sample(&[("state", "attached")], attached as u64);
        text.sample(&[("state", "away")], away as u64);
    }
    text.counter(
        "latchd_client_returns_total",
        "How often a client that had no connection has come back.",
    );
    text.sample(&[], view.client_returns());
    text.gauge(
        "latchd_list_and_barrier_waiters",
        "Clients that wait for a value of a list, or at a barrier.",
    );
    text.sample(&[], others);
}

fn server(text: &mut Text<'_>, http: &HttpFigures, pace: &Pace, shown: &Shown) {
    let figures = &shown.figures;
    text.gauge("latchd_build_info", "Which version runs; always 1.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.gauge("latchd_uptime_seconds", "Since the daemon was started.");
    text.fraction(&[], u128::from(shown.now.0), 9);
    text.gauge(
        "latchd_epoch",
        "The number of this life of the daemon, larger than that of any earlier one.",
    );
    text.sample(&[], figures.epoch);
    if let Some(it) = &shown.cluster {
        metrics_cluster::cluster(text, it);
    }
    text.gauge("latchd_draining", "1 while the daemon is shutting down.");
    text.sample(&[], shown.is_draining.into());
    text.counter("latchd_http_requests_total", "Requests read over HTTP.");
    text.sample(&[], http.requests());
    text.counter(
        "latchd_http_answers_total",
        "Answers over HTTP, by the first digit of their status.",
    );
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    for (class, &count) in classes.iter().zip(http.answers()) {
        text.sample(&[("class", class)], count);
    }
    text.family(
        "latchd_turn_duration_seconds",
        "histogram",
        "How long turns of the loop took: nobody else is heard meanwhile.",
    );
    text.histogram(&[], &pace.turns, SHORT);
    text.family(
        "latchd_operation_duration_seconds",
        "histogram",
        "How long requests over both doors waited for their answer, time in a queue not included.",
    );
    text.histogram(&[], &pace.operations, SHORT);
    text.gauge(
        "latchd_longest_turn_seconds",
        "The longest turn since the start.",
    );
    text.fraction(&[], figures.longest_turn.ns.into(), 9);
    for (name, help, bytes) in [
        (
            "latchd_memory_used_bytes",
            "Memory in use, of all that clients can make the daemon keep.",
            figures.memory_bytes,
        ),
        (
            "latchd_memory_limit_bytes",
            "The bound on that memory; 0 is none.",
            figures.memory_max_bytes,
        ),
        (
            "latchd_unread_bytes",
            "Memory in use for what clients have not read yet.",
            figures.outbox_bytes,
        ),
    ] {
        text.gauge(name, help);
        text.sample(&[], bytes as u64);
    }
    for (name, help, count) in [
        (
            "latchd_records_total",
            "Changes that have to survive a restart; none without a data directory.",
            figures.records,
        ),
        (
            "latchd_records_durable_total",
            "How many of them are on disk.",
            figures.records_durable,
        ),
        (
            "latchd_log_lines_lost_total",
            "Lines of the log that nobody took.",
            figures.lost_log_lines,
        ),
    ] {
        text.counter(name, help);
        text.sample(&[], count);
    }
}

/// What the system says, as far as it does.
fn of_process(text: &mut Text<'_>, process: &Process) {
    let seconds = [
        (
            "process_start_time_seconds",
            "gauge",
            "When the process was started, in seconds since 1970.",
            process.start_time_s,
        ),
        (
            "process_cpu_seconds_total",
            "counter",
            "For how long the process has used a processor.",
            process.cpu_s,
        ),
    ];
    for (name, kind, help, value) in seconds {
        if let Some(value) = value {
            text.family(name, kind, help);
            text.fraction(&[], (value * 1e6) as u128, 6);
        }
    }
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Memory that the process has in use.",
            process.resident_bytes,
        ),
        (
            "process_virtual_memory_bytes",
            "Address space that the process has taken.",
            process.virtual_bytes,
        ),
        (
            "process_open_fds",
            "Open files and sockets.",
            process.open_fds,
        ),
        (
            "process_max_fds",
            "Most files and sockets that may be open.",
            process.max_fds,
        ),
    ] {
        if let Some(value) = value {
            text.gauge(name, help);
            text.sample(&[], value);
        }
    }
}

pub(super) type Label<'a> = (&'a str, &'a str);

/// The text, and the family that is being written. Labels and their values are ours and need no escapes.
pub(super) struct Text<'o> {
    out: &'o mut Vec<u8>,
    family: &'static str,
}

impl Text<'_> {
    pub(super) fn counter(&mut self, name: &'static str, help: &str) {
        self.family(name, "counter", help);
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &str) {
        self.family(name, "gauge", help);
    }

    pub(super) fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        for part in [
            "# HELP ",
            name,
            " ",
            help,
            "\n# TYPE ",
            name,
            " ",
            kind,
            "\n",
        ] {
            self.push(part);
        }
    }

    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: u64) {
        self.name("", labels, None);
        push_number(self.out, value);
        self.push("\n");
    }

    /// A value that is divided by so many powers of ten.
    pub(super) fn fraction(&mut self, labels: &[Label<'_>], value: u128, digits: usize) {
        self.name("", labels, None);
        push_fraction(self.out, value, digits);
        self.push("\n");
    }

    /// Durations in seconds. One of exactly the bound of a bucket counts as longer.
    pub(super) fn histogram(&mut self, labels: &[Label<'_>], it: &Histogram, bounds: Bounds) {
        let mut count = 0;
        for (bucket, counted) in it.counts().iter().enumerate() {
            count += counted;
            let is_shown =
                bucket.is_multiple_of(bounds.step) && (bounds.start..bounds.end).contains(&bucket);
            if let Some(bound) = Histogram::bound_ns(bucket).filter(|_| is_shown) {
                self.bucket(labels, Some((bound.into(), 9)), count);
            }
        }
        debug_assert!(bounds.end <= BUCKETS, "a bound that is none");
        self.end_histogram(labels, count, it.sum_ns(), 9);
    }

    /// Durations in milliseconds, in LockServer's buckets.
    fn latency(&mut self, op: LeaseOp, it: &Latency) {
        let labels = [("op", op.word())];
        let mut count = 0;
        for (bucket, counted) in it.counts.iter().enumerate() {
            count += counted;
            if bucket < LATENCY_BOUNDS {
                let bound = Latency::bound_ms(bucket).into();
                self.bucket(&labels, Some((bound, 0)), count);
            }
        }
        self.end_histogram(&labels, count, it.sum_ns, 6);
    }

    fn end_histogram(&mut self, labels: &[Label<'_>], count: u64, sum: u128, digits: usize) {
        self.bucket(labels, None, count);
        self.name("_sum", labels, None);
        push_fraction(self.out, sum, digits);
        self.push("\n");
        self.name("_count", labels, None);
        push_number(self.out, count);
        self.push("\n");
    }

    /// A bucket that goes up to a bound, or has everything in it.
    fn bucket(&mut self, labels: &[Label<'_>], bound: Option<(u128, usize)>, count: u64) {
        self.name("_bucket", labels, Some(bound));
        push_number(self.out, count);
        self.push("\n");
    }

    /// Everything of a line before its value.
    fn name(&mut self, suffix: &str, labels: &[Label<'_>], bound: Option<Option<(u128, usize)>>) {
        self.push(self.family);
        self.push(suffix);
        let mut before = "{";
        for (label, value) in labels {
            for part in [before, label, "=\"", value, "\""] {
                self.push(part);
            }
            before = ",";
        }
        if let Some(bound) = bound {
            self.push(before);
            self.push("le=\"");
            match bound {
                Some((bound, digits)) => push_fraction(self.out, bound, digits),
                None => self.push("+Inf"),
            }
            self.push("\"");
            before = ",";
        }
        self.push(if before == "{" { " " } else { "} " });
    }

    fn push(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }
}

/// Appends a number divided by so many powers of ten, without zeros at the end: `1.024`.
fn push_fraction(out: &mut Vec<u8>, value: u128, digits: usize) {
    let divisor = 10_u128.pow(digits as u32);
    let mut text = itoa::Buffer::new();
    out.extend_from_slice(text.format(value / divisor).as_bytes());
    let mut rest = value % divisor;
    if rest == 0 {
        return;
    }
    out.push(b'.');
    let start = out.len();
    out.resize(start + digits, b'0');
    for digit in out[start..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    let kept = out.iter().rposition(|&digit| digit != b'0');
    out.truncate(kept.map_or(0, |last| last + 1));
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
