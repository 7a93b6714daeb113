//! What one run does: how many connections, which work, on which keys, for how long.
//!
//! Only values, and the rules between them; nothing here opens a connection.

use std::fmt;

use crate::servers::target::{Protocol, Target};

/// What a connection does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Take a lock, let it go.
    Lock,
    /// Take one of a few slots, let it go.
    Semaphore,
    /// Nine times of ten a read lock, else a write lock.
    ReadWrite,
    /// Add one.
    Counter,
    /// Store a value, read it.
    Value,
    /// Send a signal to the next connection.
    Signal,
}

impl Workload {
    pub(crate) const ALL: [Self; 6] = [
        Self::Lock,
        Self::Semaphore,
        Self::ReadWrite,
        Self::Counter,
        Self::Value,
        Self::Signal,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::ReadWrite => "rw",
            Self::Counter => "counter",
            Self::Value => "kv",
            Self::Signal => "signal",
        }
    }

    /// What the two requests of a cycle are called in a report; some have only one.
    pub(crate) const fn steps(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Lock | Self::Semaphore | Self::ReadWrite => ("acquire", Some("release")),
            Self::Counter => ("incr", None),
            Self::Value => ("set", Some("get")),
            Self::Signal => ("signal", None),
        }
    }

    /// Whether a request may have to wait for another client.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Lock | Self::Semaphore | Self::ReadWrite)
    }
}

/// Which keys the connections use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Each worker has its own.
    Own,
    /// All choose among this many, evenly.
    Shared(u32),
    /// All choose among this many, a few of them much more often (exponent 0.99).
    Zipf(u32),
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own keys"),
            Self::Shared(1) => f.write_str("one shared key"),
            Self::Shared(count) => write!(f, "{count} shared keys"),
            Self::Zipf(count) => write!(f, "{count} zipf keys"),
        }
    }
}

/// What the loop of a run does while nothing is due and no answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It sleeps until something is due in a millisecond or so, and stays awake from then on.
    Lightly,
    /// It never sleeps, as if every client had a core of its own.
    Never,
    /// It sleeps until the very moment, and leaves its core to others.
    Deeply,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    /// Requests of one connection that wait for an answer at once.
    pub(crate) pipeline: usize,
    pub(crate) keys: Keys,
    /// How many may hold a semaphore at once.
    pub(crate) slots: u32,
    /// What is taken is kept until the connection ends, and the next is taken at once: a cycle has one request.
    pub(crate) keeps: bool,
    pub(crate) hold_ns: u64,
    pub(crate) think_ns: u64,
    /// Cycles started per second, whether or not the server keeps up; `None`: as fast as it
    /// answers.
    pub(crate) rate: Option<u64>,
    pub(crate) warmup_ns: u64,
    pub(crate) measure_ns: u64,
    /// How long the last answers may take at the end, in addition to the holding times.
    pub(crate) drain_ns: u64,
    pub(crate) rest: Rest,
    /// How many of the connections, the last ones, speak HTTP with the same server.
    pub(crate) over_http: usize,
    /// Threads with the client that programs use, instead of one loop with connections of its own.
    pub(crate) via_client: bool,
    /// Further connections that never send anything.
    pub(crate) idle: usize,
    /// Redis: release with a plain `DEL` instead of the script that compares first.
    pub(crate) plain_del: bool,
}

/// The lease every lock is taken with.
pub(crate) const LEASE_S: u64 = 60;

/// Most connections of one run; more file descriptors than this are seldom allowed.
pub(crate) const CONNECTIONS_MAX: usize = 60_000;

/// Most requests that wait for an answer at once, over all connections.
pub(crate) const REQUESTS_MAX: usize = 4_000_000;

/// Most shared keys: each takes memory here, and its number has eight digits.
pub(crate) const KEYS_MAX: u32 = 4_000_000;

/// Most threads of a run with the client that programs use.
pub(crate) const THREADS_MAX: usize = 1_000;

/// Most cycles started per second; the time between two of them is a whole number of nanoseconds.
pub(crate) const RATE_MAX: u64 = 10_000_000;

/// Longest pause between two cycles.
const THINK_NS_MAX: u64 = 3_600_000_000_000;

impl Default for Spec {
    fn default() -> Self {
        Self {
            workload: Workload::Lock,
            connections: 64,
            pipeline: 1,
            keys: Keys::Own,
            slots: 3,
            keeps: false,
            hold_ns: 0,
            think_ns: 0,
            rate: None,
            warmup_ns: 300_000_000,
            measure_ns: 2_000_000_000,
            drain_ns: 10_000_000_000,
            rest: Rest::Lightly,
            over_http: 0,
            via_client: false,
            idle: 0,
            plain_del: false,
        }
    }
}

impl Spec {
    /// Why this cannot run, if it cannot.
    pub(crate) fn complaint(&self) -> Option<String> {
        let total = self.connections.saturating_mul(self.pipeline);
        if self.over_http > self.connections {
            return Some("no more can speak HTTP than there are".to_owned());
        }
        if self.connections == 0 || self.pipeline == 0 || self.measure_ns == 0 || self.slots == 0 {
            return Some("connections, pipeline, slots and seconds must be above 0".to_owned());
        }
        if self.connections.saturating_add(self.idle) > CONNECTIONS_MAX || total > REQUESTS_MAX {
            return Some(format!(
                "at most {CONNECTIONS_MAX} connections, idle ones included, and {REQUESTS_MAX} \
                 requests on their way at once"
            ));
        }
        if let Keys::Shared(count) | Keys::Zipf(count) = self.keys
            && !(1..=KEYS_MAX).contains(&count)
        {
            return Some(format!("--key-count {count}: say from 1 up to {KEYS_MAX}"));
        }
        if let Some(rate) = self.rate {
            if !(1..=RATE_MAX).contains(&rate) {
                return Some(format!(
                    "--rate {rate}: say from 1 up to {RATE_MAX} per second"
                ));
            }
            if self.think_ns > 0 {
                return Some(
                    "--think has no effect with --rate, which says when cycles start: leave out \
                     one of them"
                        .to_owned(),
                );
            }
        }
        if self.think_ns > THINK_NS_MAX {
            let most_us = THINK_NS_MAX / 1_000;
            return Some(format!("--think: at most {most_us} microseconds, an hour"));
        }
        if self.keys != Keys::Own && self.workload.waits() && self.pipeline > 1 {
            return Some(
                "a request that waits holds back those behind it on its connection: \
                 keys that are not own need --pipeline 1"
                    .to_owned(),
            );
        }
        let is_of_the_loop = self.pipeline > 1
            || self.rate.is_some()
            || self.idle > 0
            || self.over_http > 0
            || self.plain_del;
        if self.via_client && (is_of_the_loop || self.connections > THREADS_MAX) {
            return Some(format!(
                "--via client: a thread for each of up to {THREADS_MAX} connections, which waits for each \
                 answer: no --pipeline, --rate, --idle, --del"
            ));
        }
        if self.hold_ns >= LEASE_S * 500_000_000 {
            return Some(format!(
                "--hold must stay well below the lease of {LEASE_S} s"
            ));
        }
        None
    }

    /// Whether this server can do this work.
    pub(crate) const fn is_known_to(&self, target: &Target) -> bool {
        let work = self.workload;
        if self.over_http > 0 && (target.http.is_none() || !matches!(work, Workload::Lock)) {
            return false;
        }
        match target.protocol {
            Protocol::Line => target.in_turns || !self.via_client,
            _ if self.via_client => false,
            Protocol::Http => matches!(work, Workload::Lock),
            Protocol::Ceiling => {
                matches!(work, Workload::Lock) && matches!(self.keys, Keys::Own | Keys::Shared(1))
            }
            Protocol::Resp => matches!(work, Workload::Lock | Workload::Counter | Workload::Value),
        }
    }

    /// The run in one line.
    pub(crate) fn title(&self) -> String {
        let plural = if self.connections == 1 { "" } else { "s" };
        let mut text = format!(
            "{}, {} connection{plural}, {}",
            self.workload.name(),
            self.connections,
            self.keys
        );
        if self.pipeline > 1 {
            text.push_str(&format!(", pipeline {}", self.pipeline));
        }
        if let Some(rate) = self.rate {
            text.push_str(&format!(", open loop at {rate}/s"));
        }
        for (what, ns) in [("hold", self.hold_ns), ("think", self.think_ns)] {
            if ns > 0 {
                text.push_str(&format!(", {what} {} µs", ns / 1_000));
            }
        }
        if self.over_http > 0 {
            text.push_str(&format!(", {} of them over HTTP", self.over_http));
        }
        if self.via_client {
            text.push_str(", via client");
        }
        if self.idle > 0 {
            text.push_str(&format!(", beside {} idle", self.idle));
        }
        text
    }
}
