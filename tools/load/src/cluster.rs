//! What a cluster costs: 64 connections to its leader, beside the same transactions without latchd, and how far its
//! standby is behind meanwhile.
//!
//! Most of what an answer of a cluster takes is etcd's: one transaction, agreed on by most of its members and on their
//! disks. So the figure that says something of latchd is the ratio: as many entries of the same length, one after the
//! other, by the code that latchd itself uses, from a loop that does nothing else.
//!
//! etcd runs already (`--etcd`); `tools/cluster/figures` starts three and this.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use latchd::etcd::{Answer, Ask, Compare, Endpoints, Etcd, Gateway, Get, Op};
use latchd::store::etcd::{Appender, Keys, Logged, Next, create};

use crate::behind::{self, LogEntry, Places};
use crate::clock::Clock;
use crate::comparison::Job;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count, Nanos, PerSecond, Ratio};
use crate::report::figures::Wanted::{AtLeast, AtMost, Nothing};
use crate::run::outcome::{Outcome, quantile};
use crate::run::spec::{Spec, Workload};
use crate::servers::target::Address;
use crate::servers::{HTTP, Server, ServerKind};
use crate::session::Session;

/// How long one question to etcd may take.
const WITHIN: Duration = Duration::from_secs(10);

/// More than one connection can take in a run.
const SLOTS: u32 = 1_000_000;

/// How often it is asked whether a member leads or follows, and in which intervals.
const TRIES: usize = 600;
const TRY_NS: u64 = 50_000_000;

/// Members, the same without latchd, and again, so that a steady drift of the machine cancels out.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let Some(urls) = &session.options.etcd else {
        let what = "the plan cluster needs --etcd http://HOST:PORT,…; tools/cluster/figures starts one for it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let spec = session.short(Job::Plain.spec());
    figures.about(Job::Plain.name());
    let name = format!("load-{:016x}", fastrand::u64(..));
    let members = Members::start(session, urls, &name)?;
    let leader = &members.leader;
    let mut bare = Bare::begin(urls, &format!("{name}-bare"))?;

    let before = Written::of(leader)?;
    let first = session.run("a cluster", &spec, &leader.tcp)?;
    let written = Written::of(leader)?.since(&before);
    let entry_bytes = written.bytes / written.entries.max(1.0);
    let mut alone = Vec::new();
    for _ in 0..2 {
        alone.push(bare.run(&session.clock, entry_bytes as usize, spec.measure_ns)?);
    }
    let before = Written::of(leader)?;
    let last = session.run("a cluster", &spec, &leader.tcp)?;
    let again = Written::of(leader)?.since(&before);

    // Nothing but grants: slots of a semaphore that has enough of them.
    let keeping = Spec {
        workload: Workload::Semaphore,
        slots: SLOTS,
        keeps: true,
        ..spec.clone()
    };
    let kept = session.run("a cluster, grants alone", &keeping, &leader.tcp)?;

    // Entries are also counted while connections warm up, so records per entry come from both, and not the rate.
    let answers = |it: &Outcome| it.answers as f64 / (it.elapsed_ns as f64 / 1e9);
    let rate = (answers(&first) + answers(&last)) / 2.0;
    let records_per_entry = (written.records + again.records) / (written.entries + again.entries);
    let entries_rate = rate / records_per_entry;
    let alone_rate = alone.iter().sum::<f64>() / alone.len() as f64;
    figures.put(
        "entries/s, latchd / without latchd",
        Ratio,
        Some(entries_rate / alone_rate),
        AtLeast(0.8),
    );
    figures.put(
        "durable op/s (acquire or release)",
        PerSecond,
        Some(rate),
        Nothing,
    );
    let grants = |it: &Outcome| it.takes as f64 / (it.elapsed_ns as f64 / 1e9);
    figures.put(
        "durable grants/s, each is kept",
        PerSecond,
        Some(grants(&kept)),
        AtLeast(20_000.0),
    );
    figures.put(
        "durable grants/s, each is released as durably",
        PerSecond,
        Some((grants(&first) + grants(&last)) / 2.0),
        Nothing,
    );
    figures.put("entries/s, latchd", PerSecond, Some(entries_rate), Nothing);
    figures.put(
        "entries/s, without latchd",
        PerSecond,
        Some(alone_rate),
        Nothing,
    );
    figures.put(
        "records in an entry",
        Count,
        Some(records_per_entry),
        Nothing,
    );
    figures.put("bytes of an entry", Bytes, Some(entry_bytes), Nothing);
    for (called, part) in [("p50", 0.5), ("p99", 0.99)] {
        let took = quantile(&last.take, part).map(|ns| ns as f64);
        figures.put(&format!("acquire, {called}"), Nanos, took, Nothing);
    }
    let told = stats(leader)?;
    let us = |of: &str, name: &str, text: &str| percentile(text, of, name).map(|it| it * 1_000.0);
    figures.put("commit, p50", Nanos, us("commit_us", "p50", &told), Nothing);
    figures.put(
        "commit, p99",
        Nanos,
        us("commit_us", "p99", &told),
        AtMost(15e6),
    );
    let told = stats(&members.standby)?;
    figures.put(
        "standby behind, p50",
        Nanos,
        us("lag_us", "p50", &told),
        Nothing,
    );
    figures.put(
        "standby behind, p99",
        Nanos,
        us("lag_us", "p99", &told),
        AtMost(100e6),
    );
    let (looked_at, mut behind) = run_looked_at(session, &spec, &members)?;
    for (called, part, wanted) in [("p50", 0.5, Nothing), ("p99", 0.99, AtMost(100e6))] {
        let took = behind::quantile(&mut behind, part);
        let name = format!("standby behind, end to end {called}");
        figures.put(&name, Nanos, took, wanted);
    }
    figures.check(&first);
    figures.check(&last);
    figures.check(&kept);
    figures.check(&looked_at);
    Ok(())
}

/// Another run, in which it is looked all the time how far the standby is behind. What that costs is not in the
/// other figures.
fn run_looked_at(
    session: &Session,
    spec: &Spec,
    members: &Members,
) -> io::Result<(Outcome, Vec<u64>)> {
    let Address::Tcp(line) = members.leader.tcp.address else {
        return Err(io::Error::other("it speaks over no TCP"));
    };
    let log_entry = |member: &Server| -> io::Result<LogEntry> {
        let http = http_of(member)?;
        Ok(Box::new(move || log_entry(&get_at(http, "/v1/stats")?)))
    };
    let places = Places {
        line,
        leader: log_entry(&members.leader)?,
        standby: log_entry(&members.standby)?,
    };
    let is_over = AtomicBool::new(false);
    let clock: &Clock = &session.clock;
    thread::scope(|scope| {
        let (is_over, looker) = (&is_over, thread::Builder::new().name("behind".to_owned()));
        let looker =
            looker.spawn_scoped(scope, move || behind::measure(clock, &places, is_over))?;
        let outcome = session.run("a cluster, looked at", spec, &members.leader.tcp);
        is_over.store(true, Ordering::Relaxed);
        let found = looker.join();
        let found = found.map_err(|_| io::Error::other("the thread that looks panicked"))?;
        Ok((outcome?, found?))
    })
}

/// The last entry of the log that a member has, as its figures say.
fn log_entry(stats: &str) -> io::Result<u64> {
    let entry = stats.split("\"log_entry\":").nth(1);
    let digits = entry.and_then(|it| it.split(|it: char| !it.is_ascii_digit()).next());
    let entry = digits.and_then(|it| it.parse().ok());
    entry.ok_or_else(|| io::Error::other("it does not say how far its log goes"))
}

/// Two latchd of one cluster.
struct Members {
    leader: Server,
    standby: Server,
}

impl Members {
    fn start(session: &Session, urls: &str, name: &str) -> io::Result<Self> {
        let start = || {
            let arguments = ["--cluster", name, "--etcd", urls, HTTP[0], HTTP[1]];
            session.start(ServerKind::Latchd, &arguments)
        };
        let leader = start()?;
        until(&session.clock, || Ok(role(&leader)? == "leader"), "leads")?;
        let standby = start()?;
        until(
            &session.clock,
            || Ok(role(&standby)? == "standby"),
            "follows",
        )?;
        Ok(Self { leader, standby })
    }
}

fn until(clock: &Clock, is_so: impl Fn() -> io::Result<bool>, what: &str) -> io::Result<()> {
    for _ in 0..TRIES {
        if is_so()? {
            return Ok(());
        }
        clock.rest(TRY_NS)?;
    }
    Err(io::Error::other(format!(
        "no member {what}: is etcd there?"
    )))
}

/// What a member has written since it was started.
struct Written {
    entries: f64,
    bytes: f64,
    records: f64,
}

impl Written {
    fn of(member: &Server) -> io::Result<Self> {
        let metrics = get(member, "/metrics")?;
        let number = |name: &str| {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        Ok(Self {
            entries: number("latchd_cluster_commit_duration_seconds_count"),
            bytes: number("latchd_cluster_commit_bytes_total"),
            records: number("latchd_records_total "),
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            entries: self.entries - before.entries,
            bytes: self.bytes - before.bytes,
            records: self.records - before.records,
        }
    }
}

fn stats(member: &Server) -> io::Result<String> {
    get(member, "/v1/stats")
}

/// What a member is, as it says.
fn role(member: &Server) -> io::Result<String> {
    let told = stats(member)?;
    let role = told
        .split("\"role\":\"")
        .nth(1)
        .and_then(|it| it.split('"').next());
    Ok(role.unwrap_or_default().to_owned())
}

/// `"lag_us":{"count":9,"p50":1,"p99":2,…`
fn percentile(stats: &str, of: &str, name: &str) -> Option<f64> {
    let of = stats.split(&format!("\"{of}\":{{")).nth(1)?;
    let value = of
        .split('}')
        .next()?
        .split(&format!("\"{name}\":"))
        .nth(1)?;
    value.split(',').next()?.parse().ok()
}

/// Asks over HTTP, on a connection of its own; returns the body.
fn get(member: &Server, path: &str) -> io::Result<String> {
    get_at(http_of(member)?, path)
}

fn http_of(member: &Server) -> io::Result<SocketAddr> {
    let address = member.tcp.http;
    address.ok_or_else(|| io::Error::other("it speaks no HTTP"))
}

fn get_at(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    body.ok_or_else(|| io::Error::other("an answer without a body"))
}

/// A log in etcd that is written by nobody but this: the guards, the entries and the connection are latchd's.
struct Bare {
    etcd: Gateway,
    keys: Keys,
    appender: Appender,
    leader: u64,
    written: u64,
}

impl Bare {
    fn begin(urls: &str, name: &str) -> io::Result<Self> {
        let endpoints = Endpoints::parse(urls).map_err(|why| {
            let what = format!("--etcd {why}");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let mut etcd = Gateway::new(&endpoints, 0).near_leader();
        let keys = Keys::new(name, 0);
        create(&mut etcd, &keys, WITHIN).map_err(io::Error::other)?;
        let (key, value) = (keys.leader(), b"latch-load".to_vec());
        let ask = Ask::Txn {
            compare: vec![Compare::Created(key.clone(), 0)],
            success: vec![
                Op::Put {
                    key: key.clone(),
                    value,
                    lease: 0,
                },
                Op::Get(Get::one(&key)),
            ],
            failure: Vec::new(),
        };
        let leader = match etcd.call(&ask, WITHIN).map_err(io::Error::other)? {
            Answer::Txn { got, .. } => got
                .first()
                .and_then(|it| it.kvs.first())
                .map(|kv| kv.created),
            _ => None,
        };
        let leader = leader.ok_or_else(|| io::Error::other("etcd has not made a leader of us"))?;
        Ok(Self {
            appender: Appender::new(keys.clone(), leader, 0),
            keys,
            etcd,
            leader,
            written: 0,
        })
    }

    /// Entries of so many bytes, one after the other; returns how many there were in a second.
    fn run(&mut self, clock: &Clock, bytes: usize, measure_ns: u64) -> io::Result<f64> {
        let began_ns = clock.now_ns();
        let mut entries = 0;
        while clock.now_ns() - began_ns < measure_ns {
            self.put(bytes)?;
            entries += 1;
        }
        Ok(f64::from(entries) / ((clock.now_ns() - began_ns) as f64 / 1e9))
    }

    fn put(&mut self, bytes: usize) -> io::Result<()> {
        self.written += 1;
        let logged = Logged {
            leader: self.leader,
            nonce: [self.leader, self.written],
            epoch: 1,
            first: self.written,
            frames: (0..bytes).map(|_| fastrand::u8(..)).collect(),
        };
        let ask = self.appender.begin(&logged);
        match self.appender.answered(self.etcd.call(&ask, WITHIN)) {
            Next::Committed { .. } => Ok(()),
            other => Err(io::Error::other(format!(
                "an entry was not written: {other:?}"
            ))),
        }
    }
}

/// Nobody needs it any more, and etcd's room is not for ever.
impl Drop for Bare {
    fn drop(&mut self) {
        let all = Op::Delete(self.keys.leader(), self.keys.entries_end());
        let ask = Ask::Txn {
            compare: Vec::new(),
            success: vec![all],
            failure: Vec::new(),
        };
        let _ = self.etcd.call(&ask, WITHIN); // it is gone with etcd, otherwise
    }
}
