//! Scenarios in which something ends: clients leave, leases run out, one by one and all at once.
//!
//! Each asks what everybody else feels of it, and how long the server was busy with one turn.

use std::cell::RefCell;
use std::io;

use hdrhistogram::Histogram;

use crate::report::figures::Unit::{Count, Nanos, Percent, Ratio};
use crate::report::figures::Wanted::{AtMost, Never, Nothing};
use crate::report::figures::{Figures, Wanted};
use crate::report::format::grouped;
use crate::run::client::Client;
use crate::run::codec::{Answer, Codec, NO_KEY, NO_TOKEN, Request};
use crate::run::keys::key_name;
use crate::run::outcome::latencies;
use crate::run::spec::Spec;
use crate::scenarios::held_locks::{fill, fill_until};
use crate::scenarios::holders::Holders;
use crate::servers::target::{Protocol, Target};
use crate::session::{Session, Subject};

const MS: f64 = 1e6;

/// How long others are watched from when the leases begin to end.
const WINDOW_NS: u64 = 500_000_000;

/// How often a number is asked for, a tenth of a second each.
const PATIENCE: usize = 100;

/// Locks of each client that leaves.
const LOCKS_EACH: usize = 3;

/// A latchd for the scenario; others do not free what a client leaves behind, or nobody can wait.
fn subject(session: &Session) -> io::Result<Subject> {
    let subject = session.latchd(&[])?;
    if subject.target.protocol == Protocol::Line {
        return Ok(subject);
    }
    let what = "this server has no line and keeps a lock whose holder has left";
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

/// A number out of the server's `stats`, if it tells one by that name.
fn stat(target: &Target, name: &str) -> io::Result<Option<f64>> {
    let mut client = Client::connect(target)?;
    // Not every server knows the question.
    let found = client.ask(Request::Stats, &NO_KEY, |answer| Some(answer.stat(name)))?;
    Ok(found.map(|it| it as f64))
}

/// The longest turn since the server started, if it says so.
fn longest_turn(target: &Target) -> io::Result<Option<f64>> {
    let us = stat(target, "longest_turn_us")?;
    Ok(us.map(|it| it * 1e3))
}

/// Puts the p99 and the longest of what was felt.
fn put_felt(figures: &mut Figures, who: &str, felt: &Histogram<u64>, p99: Wanted) {
    let at = |quantile| Some(felt.value_at_quantile(quantile) as f64);
    figures.put(&format!("{who} p99"), Nanos, at(0.99), p99);
    figures.put(&format!("{who} most"), Nanos, at(1.0), Nothing);
}

/// Clients leave one after the other while very many locks are held that are none of theirs.
pub(crate) fn disconnects(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let (held, clients) = (session.count(300_000), session.count(1_000));
    figures.about(format!(
        "{} clients leave, {} locks of another",
        grouped(clients as f64),
        grouped(held as f64)
    ));
    let latchd = subject(session)?;
    let without = departures(session, &latchd.target, clients)?;
    let held = fill(session, &latchd.target, held)?;
    let with = departures(session, &latchd.target, clients)?;
    drop(held);
    let p99 = |it: &Histogram<u64>| it.value_at_quantile(0.99) as f64;
    let ratio = p99(&with) / p99(&without);
    let longer = with.max().saturating_sub(without.max()) as f64;
    figures.put(
        "others' p99 / without the locks",
        Ratio,
        Some(ratio),
        AtMost(1.2),
    );
    figures.put(
        "others' most, above without",
        Nanos,
        Some(longer),
        AtMost(3.0 * MS),
    );
    put_felt(figures, "others'", &with, Nothing);
    put_felt(figures, "without the locks: others'", &without, Nothing);
    Ok(())
}

/// Each client leaves just before a request of somebody else, who so feels all of what that costs.
fn departures(session: &Session, target: &Target, clients: usize) -> io::Result<Histogram<u64>> {
    let run = fastrand::u16(..);
    let mut probe = Client::connect(target)?;
    let probe_key = key_name("prob", run, 0);
    let mut felt = latencies();
    for index in 0..clients {
        let mut client = Client::connect(target)?;
        let write = |at: usize, codec: &Codec, out: &mut Vec<u8>| {
            let key = key_name("leav", run, index * LOCKS_EACH + at);
            codec.encode(Request::Lock(&NO_TOKEN), &key, out);
        };
        let fine = |answer: &Answer<'_>| matches!(answer, Answer::Ok(_));
        client.many(LOCKS_EACH, LOCKS_EACH, write, fine)?;
        drop(client);
        let asked = session.clock.now_ns();
        let token = probe.lock(&probe_key)?;
        felt.saturating_record(session.clock.now_ns() - asked);
        probe.must(Request::Unlock(&token), &probe_key)?;
    }
    Ok(felt)
}

/// Short leases, one after the other, each with somebody waiting for its end.
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
        // Counted from before the first request was sent: what looks early is early beyond doubt.
        match (session.clock.now_ns() - asked).checked_sub(LEASE_MS * 1_000_000) {
            Some(ns) => late.saturating_record(ns),
            None => early += 1,
        }
        waiter.must(Request::Unlock(&token), &key)?;
    }
    if early > 0 {
        figures.wrong.add(format!("{early} leases ended early"));
    }
    let at = |quantile| Some(late.value_at_quantile(quantile) as f64);
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
    // As much time as a quick server needs; twice as much, and a new one, if that was not enough.
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

/// Asks again, for a few seconds, until it is as much as expected; what it is at last.
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

/// Very many holders disconnect at once.
pub(crate) fn storm(session: &Session, figures: &mut Figures) -> io::Result<()> {
    let count = session.count(10_000);
    figures.about(format!(
        "{} holders disconnect at once",
        grouped(count as f64)
    ));
    let latchd = subject(session)?;
    let spec = session.short(Spec::default());
    let calm = session.run("before", &spec, &latchd.target)?;
    let run = fastrand::u16(..);
    session.say(&format!("{count} connections take a lock each"));
    let holders = RefCell::new(Holders::start(&latchd.target, count, run)?);
    let leave = || holders.borrow_mut().leave();
    let busy = session.run_and(
        "while they leave",
        &spec,
        &latchd.target,
        Some(Box::new(leave)),
    )?;
    holders.into_inner().gone()?;
    let kept = kept(session, &latchd.target, count, run)?;
    if kept > 0 {
        figures
            .wrong
            .add(format!("{kept} locks of holders that left are not free"));
    }
    put_felt(figures, "others'", &busy.take, Nothing);
    put_felt(figures, "before: others'", &calm.take, Nothing);
    let ratio = busy.per_s() / calm.per_s();
    figures.put("op/s / before", Ratio, Some(ratio), Nothing);
    for (who, spent) in [("server", busy.server), ("load", busy.load)] {
        let waited = spent.map(|it| it.waited_ns as f64);
        figures.put(
            &format!("{who} waited for its core"),
            Nanos,
            waited,
            Nothing,
        );
    }
    figures.put(
        "longest turn",
        Nanos,
        longest_turn(&latchd.target)?,
        Nothing,
    );
    figures.put("locks not free afterwards", Count, Some(kept as f64), Never);
    figures.check(&calm);
    figures.check(&busy);
    Ok(())
}

/// How many locks are not to be had. A server that is late gets a few seconds: only what stays is
/// wrong.
fn kept(session: &Session, target: &Target, count: usize, run: u16) -> io::Result<usize> {
    let mut client = Client::connect(target)?;
    let mut left: Vec<usize> = (0..count).collect();
    for _ in 0..PATIENCE {
        let write = |at: usize, codec: &Codec, out: &mut Vec<u8>| {
            let key = key_name("hold", run, left[at]);
            codec.encode(Request::LockFor(&NO_TOKEN, 60_000), &key, out);
        };
        let mut refused = Vec::with_capacity(left.len());
        client.many(left.len(), count, write, |answer| {
            refused.push(!matches!(answer, Answer::Ok(_)));
            true
        })?;
        let mut refused = refused.into_iter();
        left.retain(|_| refused.next().unwrap_or(true));
        if left.is_empty() {
            break;
        }
        session.clock.rest(100_000_000)?;
    }
    Ok(left.len())
}
