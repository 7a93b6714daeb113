//! The same work with TLS and without, side by side, and what an idle connection takes.

use std::io;

use crate::comparison::Job;
use crate::report::figures::Figures;
use crate::report::figures::Unit::{Bytes, Nanos, PerSecond, Ratio};
use crate::report::figures::Wanted::{AtLeast, Nothing};
use crate::run::outcome::{Outcome, quantile};
use crate::scenarios::idle::IdleConnections;
use crate::servers::tls;
use crate::session::Session;

/// Plain, TLS, TLS, plain, so that a steady drift of the machine cancels out.
pub(crate) fn run(session: &Session, figures: &mut Figures) -> io::Result<()> {
    if session.options.target.is_some() {
        let what = "the plan tls starts its servers itself: no --target";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let files = tls::Files::write()?;
    let plain = session.latchd(&[])?;
    let encrypted = session.latchd(&files.options())?;
    for job in [Job::Plain, Job::Pipelined, Job::Alone] {
        figures.about(job.name());
        let spec = session.short(job.spec());
        let run = |is_encrypted: bool| {
            let (label, subject) = match is_encrypted {
                true => ("TLS", &encrypted),
                false => ("plain", &plain),
            };
            session.run(&format!("{}, {label}", job.name()), &spec, &subject.target)
        };
        let outcomes = [run(false)?, run(true)?, run(true)?, run(false)?];
        let [first, second, third, last] = &outcomes;
        let mean = |one: &Outcome, other: &Outcome| {
            let both = one.per_s().zip(other.per_s());
            both.map(|(one, other)| (one + other) / 2.0)
        };
        let (without, with) = (mean(first, last), mean(second, third));
        let ratio = with.zip(without).map(|(with, without)| with / without);
        let wanted = match job {
            Job::Plain => AtLeast(0.6),
            _ => Nothing,
        };
        figures.put("op/s with TLS / without", Ratio, ratio, wanted);
        figures.put("op/s with TLS", PerSecond, with, Nothing);
        figures.put("op/s without", PerSecond, without, Nothing);
        let p50 = |it: &Outcome| quantile(&it.take, 0.5).map(|ns| ns as f64);
        figures.put("p50 with TLS", Nanos, p50(second), Nothing);
        figures.put("p50 without", Nanos, p50(first), Nothing);
        outcomes.iter().for_each(|it| figures.check(it));
    }
    drop((plain, encrypted));
    let count = session.count(2_000);
    figures.about("an idle connection");
    for (name, options) in [
        ("memory each, with TLS", &files.options()[..]),
        ("memory each, without", &[]),
    ] {
        let subject = session.latchd(options)?;
        // What the first ones bring is there before the others come.
        let warm = IdleConnections::gather(&subject.target, count / 10 + 1)?;
        let idle = IdleConnections::gather(&subject.target, count)?;
        figures.put(name, Bytes, idle.bytes_each, Nothing);
        drop((warm, idle));
    }
    Ok(())
}
