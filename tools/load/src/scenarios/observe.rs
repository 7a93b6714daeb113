//! What scenarios observe: the latency that other clients felt meanwhile, and what the server
//! reports about itself.

use std::io;

use hdrhistogram::Histogram;

use crate::report::figures::Unit::Nanos;
use crate::report::figures::Wanted::Nothing;
use crate::report::figures::{Figures, Wanted};
use crate::run::client::Client;
use crate::run::codec::{NO_KEY, Request};
use crate::run::outcome::quantile;
use crate::servers::target::{Protocol, Target};
use crate::session::{Session, Subject};

/// Nanoseconds in a millisecond.
pub(super) const MS: f64 = 1e6;

/// How often a slow server is asked again, every tenth of a second.
pub(super) const PATIENCE: usize = 100;

/// The server to load. It must keep a queue and free the locks of a client that leaves, so it
/// cannot be Redis or the ceiling.
pub(super) fn subject(session: &Session) -> io::Result<Subject> {
    let subject = session.latchd(&[])?;
    if subject.target.protocol == Protocol::Line {
        return Ok(subject);
    }
    let what = "this server keeps no queue, or keeps a lock whose holder has left";
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

/// A number of the server's `stats`; `None` if it has none with that name.
pub(crate) fn stat(target: &Target, name: &str) -> io::Result<Option<f64>> {
    let mut client = Client::connect(target)?;
    // Not every server knows `stats`.
    let found = client.ask(Request::Stats, &NO_KEY, |answer| Some(answer.stat(name)))?;
    Ok(found.map(|it| it as f64))
}

/// The longest turn since the server started, if its `stats` say so.
pub(crate) fn longest_turn(target: &Target) -> io::Result<Option<f64>> {
    let us = stat(target, "longest_turn_us")?.filter(|&us| us > 0.0);
    Ok(us.map(|it| it * 1e3))
}

/// Puts the p99 and the longest of these latencies.
pub(super) fn put_felt(figures: &mut Figures, who: &str, felt: &Histogram<u64>, p99: Wanted) {
    let at = |part| quantile(felt, part).map(|ns| ns as f64);
    figures.put(&format!("{who} p99"), Nanos, at(0.99), p99);
    figures.put(&format!("{who} most"), Nanos, at(1.0), Nothing);
}
