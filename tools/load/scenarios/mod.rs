//! Scenarios that are more than a run: a server that spins, many idle connections, a million locks.
//!
//! A scenario is one round: it starts the servers it needs, ends them, and puts what it found into [`Figures`]
//! together with what is wanted of them. The scenarios in which something ends are in `disconnect_scenarios`.

pub(crate) mod disconnect_scenarios;
pub(crate) mod held_locks;
pub(crate) mod holders;

use std::io;

use crate::comparison::Job;
use crate::machine::{CpuTime, rss_bytes};
use crate::output::print;
use crate::plans;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Count, Nanos, PerSecond, Percent, Ratio};
use crate::report::figures::Wanted::{AtLeast, AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{Answer, Request};
use crate::run::keys::key_name;
use crate::run::outcome::Outcome;
use crate::run::spec::Spec;
use crate::scenarios::held_locks::{each_bytes, fill};
use crate::servers::target::{Stream, Target};
use crate::session::Session;

/// One round of something.
pub(crate) type Scenario = fn(&Session, &mut Figures) -> io::Result<()>;

/// Those with a target, and the storm.
pub(crate) const PROVEN: [Scenario; 7] = [
    spin,
    idle,
    million,
    disconnect_scenarios::disconnects,
    disconnect_scenarios::lateness,
    disconnect_scenarios::together,
    disconnect_scenarios::storm,
];

/// Runs scenarios in turn, several times, and prints their figures; whether every answer was right.
pub(crate) fn rounds(session: &Session, scenarios: &[Scenario], usual: usize) -> io::Result<bool> {
    let mut figures = Figures::default();
    for _ in 0..session.options.rounds(usual) {
        for scenario in scenarios {
            scenario(session, &mut figures)?;
        }
    }
    if session.options.json {
        print(&figures.json())?;
    } else {
        print(&format!("{}\n{}", figures.markdown(), figures.verdict()))?;
    }
    Ok(figures.complain())
}

/// One connection to a server that never sleeps; it is there only for this, because it would take
/// its core from all others.
pub(crate) fn spin(session: &Session, figures: &mut Figures) -> io::Result<()> {
    figures.about("1 connection, `--spin`");
    let spec = session.short(Job::Alone.spec());
    let p50 = |it: &Outcome| it.take.value_at_quantile(0.5) as f64;
    let redis = match session.redis()? {
        Some(server) => Some(session.run("1 connection, redis", &spec, &server.tcp)?),
        None => None,
    };
    let latchd = session.latchd(&["--spin"])?;
    let ours = session.run("1 connection, spinning", &spec, &latchd.target)?;
    let ratio = redis.as_ref().map(|it| p50(&ours) / p50(it));
    figures.put("p50 / redis", Ratio, ratio, AtMost(0.35));
    figures.put("p50", Nanos, Some(p50(&ours)), Nothing);
    figures.put("p50, redis", Nanos, redis.as_ref().map(p50), Nothing);
    figures.check(&ours);
    redis.iter().for_each(|it| figures.check(it));
    Ok(())
}

/// Connections that say nothing.
struct IdleConnections {
    _streams: Vec<Stream>,
    bytes_each: Option<f64>,
}

impl IdleConnections {
    fn gather(target: &Target, count: usize) -> io::Result<Self> {
        let before = target.pid.and_then(rss_bytes);
        let mut streams = Vec::with_capacity(count);
        for _ in 1..count {
            streams.push(target.connect()?);
        }
        // They are accepted in order: when the last one is answered, all are there.
        let mut last = Client::connect(target)?;
        last.ask(Request::Get, &key_name("none", 0, 0), |answer| {
            (*answer == Answer::Nil).then_some(())
        })?;
        streams.push(last.into_stream());
        Ok(Self {
            _streams: streams,
            bytes_each: each_bytes(before, target.pid.and_then(rss_bytes), count),
        })
    }
}

/// 64 busy connections with and without 10,000 idle ones.
pub(crate) fn idle(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(10_000);
    figures.about(format!(
        "{} idle connections beside 64",
        grouped(count as f64)
    ));
    let spec = session.short(Spec::default());
    let latchd = session.latchd(&[])?;
    // Without, with and without again, so that what changes steadily meanwhile cancels out.
    let before = session.run("without idle ones", &spec, &latchd.target)?;
    let idle = IdleConnections::gather(&latchd.target, count)?;
    let bytes_each = idle.bytes_each;
    let with = session.run(&format!("beside {count} idle"), &spec, &latchd.target)?;
    drop(idle);
    let after = session.run("without them again", &spec, &latchd.target)?;
    drop(latchd);
    let redis = match session.redis()? {
        Some(redis) => {
            figures.check(&session.run("warming up redis", &spec, &redis.tcp)?);
            IdleConnections::gather(&redis.tcp, count)?.bytes_each
        }
        None => None,
    };
    let ratio = 2.0 * with.per_s() / (before.per_s() + after.per_s());
    figures.put("op/s / without", Ratio, Some(ratio), AtLeast(0.97));
    figures.put("memory each", Bytes, bytes_each, AtMost(512.0));
    figures.put("memory each, redis", Bytes, redis, Nothing);
    for outcome in [before, with, after] {
        figures.check(&outcome);
    }
    Ok(())
}

/// A million held locks: time to fill, memory of one, work beside them, idle processor time.
pub(crate) fn million(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(1_000_000);
    figures.about(format!("{} held locks with leases", grouped(count as f64)));
    let redis = match session.redis()? {
        Some(server) => {
            let held = fill(session, &server.tcp, count)?;
            Some((held.per_s, held.bytes_each))
        }
        None => None,
    };
    let many = session.latchd(&[])?;
    let held = fill(session, &many.target, count)?;
    let ratio = redis.map(|(per_s, _)| held.per_s / per_s);
    let redis_bytes = redis.and_then(|it| it.1);
    figures.put("memory each", Bytes, held.bytes_each, AtMost(174.0));
    figures.put("memory each, redis", Bytes, redis_bytes, Nothing);
    figures.put("filled/s / redis", Ratio, ratio, AtLeast(2.0));
    figures.put("filled/s", PerSecond, Some(held.per_s), Nothing);
    let redis_per_s = redis.map(|it| it.0);
    figures.put("filled/s, redis", PerSecond, redis_per_s, Nothing);

    // Pipelined, so that the work shows and not the system calls around it.
    let spec = session.short(Job::Pipelined.spec());
    let few = session.latchd(&[])?;
    let few_count = session.count(1_000);
    let _few_held = fill(session, &few.target, few_count)?;
    let beside_few = session.run("beside a few", &spec, &few.target)?;
    let beside_many = session.run("beside many", &spec, &many.target)?;
    let cost = |it: &Outcome| Some(it.server?.ran_ns as f64 / it.answers.max(1) as f64);
    let costs = cost(&beside_many).zip(cost(&beside_few));
    let ratio = costs.map(|(many, few)| many / few);
    let name = format!(
        "server's time per op / beside {}",
        grouped(few_count as f64)
    );
    figures.put(&name, Ratio, ratio, AtMost(1.3));
    let idle = idle_percent(session, &many.target, spec.measure_ns)?;
    figures.put("processor while idle", Percent, idle, AtMost(0.5));
    figures.check(&beside_few);
    figures.check(&beside_many);
    Ok(())
}

/// How much of a core the server uses while nobody asks anything.
fn idle_percent(session: &Session, target: &Target, ns: u64) -> io::Result<Option<f64>> {
    let cpu_time = || target.pid.and_then(CpuTime::of);
    let before = cpu_time();
    session.clock.rest(ns)?;
    let spent = before.zip(cpu_time()).map(|(a, b)| b.since(a).ran_ns);
    Ok(spent.map(|it| it as f64 / ns as f64 * 100.0))
}

/// Every kind of work in turn for a long time.
pub(crate) fn soak(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let total_s = session.options.seconds.unwrap_or(600.0);
    figures.about(format!("every kind of work in turn for {total_s} s"));
    let latchd = session.latchd(&[])?;
    let rss = || latchd.target.pid.and_then(rss_bytes).map(|it| it as f64);
    let mut specs = plans::every_kind();
    let each_ns = (2e9_f64).min(total_s * 1e9 / (2 * specs.len()) as f64) as u64;
    for spec in &mut specs {
        spec.warmup_ns = 0;
        spec.measure_ns = each_ns.max(1_000_000);
    }
    let began = session.clock.now_ns();
    let (mut passes, mut answers, mut first_rss) = (0_u32, 0, None);
    while ((session.clock.now_ns() - began) as f64) < total_s * 1e9 || passes < 2 {
        passes += 1;
        for spec in &specs {
            let label = format!("pass {passes}, {}", spec.title());
            let outcome = session.run(&label, spec, &latchd.target)?;
            answers += outcome.answers;
            figures.check(&outcome);
        }
        if figures.wrong.count > 0 {
            break;
        }
        first_rss = first_rss.or_else(rss);
    }
    figures.put("passes", Count, Some(passes.into()), Nothing);
    figures.put("answers checked", Count, Some(answers as f64), Nothing);
    figures.put("memory after the first pass", Bytes, first_rss, Nothing);
    figures.put("memory at the end", Bytes, rss(), Nothing);
    Ok(())
}
