//! Leases end: how late each one does, and what other clients feel when a million end at once.

use std::io;

use crate::report::figures::Figures;
use crate::report::figures::Unit::{Count, Nanos, Percent};
use crate::report::figures::Wanted::{AtMost, Never, Nothing};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{NO_TOKEN, Request};
use crate::run::keys::key_name;
use crate::run::outcome::{latencies, quantile};
use crate::run::spec::Spec;
use crate::scenarios::held_locks::fill_until;
use crate::scenarios::observe::{MS, PATIENCE, longest_turn, put_felt, stat, subject};
use crate::session::Session;

/// How long other clients are measured after the leases begin to end.
const WINDOW_NS: u64 = 500_000_000;

/// Short leases, one after the other, each with a client that waits for its end.
pub(crate) fn lateness(session: &Session, figures: &mut Figures) -> io::Result<()> {
    const LEASE_MS: u64 = 20;
    figures.about(format!("a lease of {LEASE_MS} ms ends, nothing else runs"));
    let latchd = subject(session)?;
    let mut holder = Client::connect(&latchd.target)?;
    let mut waiter = Client::connect(&latchd.target)?;
    let (mut late, mut early) = (latencies(), 0_u32);
    let run = fastrand::u16(..);
    for index in 0..session.count(300) {
        let key = key_name("late", run, index);
        let asked = session.clock.now_ns();
        holder.must(Request::LockFor(&NO_TOKEN, LEASE_MS), &key)?;
        let token = waiter.lock(&key)?;
        // Counted from before the first request was sent: what looks early is certainly early.
        match (session.clock.now_ns() - asked).checked_sub(LEASE_MS * 1_000_000) {
            Some(ns) => late.saturating_record(ns),
            None => early += 1,
        }
        waiter.must(Request::Unlock(&token), &key)?;
    }
    if early > 0 {
        figures.wrong.add(format!("{early} leases ended early"));
    }
    let at = |part| quantile(&late, part).map(|ns| ns as f64);
    figures.put("ended early", Count, Some(early.into()), Never);
    figures.put("late by, p99", Nanos, at(0.99), AtMost(2.0 * MS));
    figures.put("late by, p50", Nanos, at(0.5), Nothing);
    figures.put("late by, most", Nanos, at(1.0), Nothing);
    Ok(())
}

/// A million leases end in one millisecond.
pub(crate) fn together(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(1_000_000);
    figures.about(format!(
        "{} leases end in one millisecond",
        grouped(count as f64)
    ));
    // As much time as a fast server needs to grant all locks. If that was not enough, it starts
    // again with a new server and twice the time.
    let mut filling_ns = 500_000_000 + count as u64 * 5_000;
    let mut spec = session.short(Spec::default());
    let (latchd, calm, turn_before, held, end_ns) = loop {
        let latchd = subject(session)?;
        let calm = session.run("before", &spec, &latchd.target)?;
        let turn_before = longest_turn(&latchd.target)?;
        let end_ns = session.clock.now_ns() + filling_ns;
        if let Some(held) = fill_until(session, &latchd.target, count, end_ns)? {
            break (latchd, calm, turn_before, held, end_ns);
        }
        filling_ns *= 2;
    };
    let target = &latchd.target;
    let turn_full = longest_turn(target)?;
    let ended_before = stat(target, "expiries")?;
    let early = ended_before.filter(|_| latchd.server.is_some() && session.clock.now_ns() < end_ns);
    if let Some(early) = early.filter(|&it| it > 0.0) {
        figures
            .wrong
            .add(format!("{early} of {count} leases ended early"));
    }
    spec.warmup_ns = end_ns.saturating_sub(session.clock.now_ns());
    spec.measure_ns = WINDOW_NS;
    let ending = session.run("while they end", &spec, target)?;
    let ended = |it: Option<f64>| it.zip(ended_before).map(|(a, b)| a - b);
    let in_time = ended(stat(target, "expiries")?);
    let turn_over = longest_turn(target)?;
    let all = patiently(
        session,
        || Ok(ended(stat(target, "expiries")?)),
        count as f64,
    )?;
    if let Some(all) = all.filter(|&all| all < count as f64) {
        let what = format!("{all} of {count} leases ended, the others stay");
        figures.wrong.add(what);
    }
    let certain = held.certain as f64;
    drop(held);
    let percent = |part: f64| part / count as f64 * 100.0;
    put_felt(figures, "others'", &ending.take, AtMost(5.0 * MS));
    put_felt(figures, "before: others'", &calm.take, Nothing);
    figures.put("longest turn", Nanos, turn_over, AtMost(10.0 * MS));
    figures.put(
        "longest turn, until all were held",
        Nanos,
        turn_full,
        Nothing,
    );
    figures.put(
        "longest turn, before the first",
        Nanos,
        turn_before,
        Nothing,
    );
    let certain = Some(percent(certain));
    figures.put(
        "in that millisecond beyond doubt",
        Percent,
        certain,
        Nothing,
    );
    let in_time = in_time.map(percent);
    figures.put("ended half a second later", Percent, in_time, Nothing);
    figures.check(&calm);
    figures.check(&ending);
    Ok(())
}

/// Asks again, for a few seconds, until the number is as high as expected; returns the last one.
fn patiently(
    session: &Session,
    mut ask: impl FnMut() -> io::Result<Option<f64>>,
    expected: f64,
) -> io::Result<Option<f64>> {
    let mut last = ask()?;
    for _ in 0..PATIENCE {
        if last.is_none_or(|it| it >= expected) {
            break;
        }
        session.clock.rest(100_000_000)?;
        last = ask()?;
    }
    Ok(last)
}
