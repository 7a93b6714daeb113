//! A million held locks: how soon taken, how much memory, what work beside them costs.

use std::io;

use crate::comparison::Job;
use crate::machine::CpuTime;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, PerSecond, Percent, Ratio};
use crate::report::figures::Wanted::{AtLeast, AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::outcome::Outcome;
use crate::scenarios::held_locks::fill;
use crate::servers::target::Target;
use crate::session::Session;

/// A million held locks: time to fill, memory of one, work beside them, idle processor time.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
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
    let costs = [&beside_many, &beside_few].map(Outcome::server_ns_per_answer);
    let ratio = costs[0].zip(costs[1]).map(|(many, few)| many / few);
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
    // A server that did not run at all was watched for too short a time to say anything.
    let spent = spent.filter(|&ns| ns > 0);
    Ok(spent.map(|it| it as f64 / ns as f64 * 100.0))
}
