//! What scenarios look at besides their own runs: what others felt meanwhile, and what the server
//! says of itself.

use std::io;

use hdrhistogram::Histogram;

use crate::report::figures::Unit::Nanos;
use crate::report::figures::Wanted::Nothing;
use crate::report::figures::{Figures, Wanted};
use crate::run::client::Client;
use crate::run::codec::{NO_KEY, Request};
use crate::servers::target::{Protocol, Target};
use crate::session::{Session, Subject};

/// Nanoseconds of a millisecond.
pub(super) const MS: f64 = 1e6;

/// How often a server that is late is asked again, a tenth of a second each.
pub(super) const PATIENCE: usize = 100;

/// A latchd for the scenario; others do not free what a client leaves behind, or nobody can wait.
pub(super) fn subject(session: &Session) -> io::Result<Subject> {
    let subject = session.latchd(&[])?;
    if subject.target.protocol == Protocol::Line {
        return Ok(subject);
    }
    let what = "this server keeps no queue, or keeps a lock whose holder has left";
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

/// A number out of the server's `stats`, if it tells one by that name.
pub(super) fn stat(target: &Target, name: &str) -> io::Result<Option<f64>> {
    let mut client = Client::connect(target)?;
    // Not every server knows the question.
    let found = client.ask(Request::Stats, &NO_KEY, |answer| Some(answer.stat(name)))?;
    Ok(found.map(|it| it as f64))
}

/// The longest turn since the server started, if it says so.
pub(super) fn longest_turn(target: &Target) -> io::Result<Option<f64>> {
    let us = stat(target, "longest_turn_us")?;
    Ok(us.map(|it| it * 1e3))
}

/// Puts the p99 and the longest of what was felt.
pub(super) fn put_felt(figures: &mut Figures, who: &str, felt: &Histogram<u64>, p99: Wanted) {
    let at = |quantile| Some(felt.value_at_quantile(quantile) as f64);
    figures.put(&format!("{who} p99"), Nanos, at(0.99), p99);
    figures.put(&format!("{who} most"), Nanos, at(1.0), Nothing);
}
