//! Very many idle connections beside a few busy ones: do they cost throughput, and how much memory?

use std::io;

use crate::machine::rss_bytes;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Ratio};
use crate::report::figures::Wanted::{AtLeast, AtMost, Nothing};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{Answer, Request};
use crate::run::keys::key_name;
use crate::run::spec::Spec;
use crate::scenarios::held_locks::each_bytes;
use crate::servers::target::{Stream, Target};
use crate::session::Session;

/// 64 busy connections with and without 10,000 idle ones.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(10_000);
    figures.about(format!(
        "{} idle connections beside 64",
        grouped(count as f64)
    ));
    let spec = session.short(Spec::default());
    let latchd = session.latchd(&[])?;
    // Without, with, and without again, so that a steady drift of the machine cancels out.
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
    let without = before
        .per_s()
        .zip(after.per_s())
        .map(|(a, b)| (a + b) / 2.0);
    let ratio = with
        .per_s()
        .zip(without)
        .map(|(with, without)| with / without);
    figures.put("op/s / without", Ratio, ratio, AtLeast(0.97));
    figures.put("memory each", Bytes, bytes_each, AtMost(512.0));
    figures.put("memory each, redis", Bytes, redis, Nothing);
    for outcome in [before, with, after] {
        figures.check(&outcome);
    }
    Ok(())
}

/// Connections that send nothing.
pub(crate) struct IdleConnections {
    _streams: Vec<Stream>,
    pub(crate) bytes_each: Option<f64>,
}

impl IdleConnections {
    pub(crate) fn gather(target: &Target, count: usize) -> io::Result<Self> {
        let before = target.pid.and_then(rss_bytes);
        let mut streams = Vec::with_capacity(count);
        for _ in 1..count {
            streams.push(target.connect()?);
        }
        // Connections are accepted in order: once the last one is answered, all are open.
        let mut last = Client::connect(target)?;
        last.ask(Request::Get, &key_name("none", 0, 0), |answer| {
            (*answer == Answer::Nil).then_some(())
        })?;
        streams.push(last.into_stream()?);
        Ok(Self {
            _streams: streams,
            bytes_each: each_bytes(before, target.pid.and_then(rss_bytes), count),
        })
    }
}
