//! Plans that are more than a run: many idle connections, a million locks, leases that end, a storm.
//!
//! Each prints a few lines of its own and says whether everything was right.

use std::cell::RefCell;
use std::io;

use crate::clock::{Share, rss_bytes};
use crate::conn::Conn;
use crate::dialect::{Answer, Ask, Grant, hex};
use crate::holders::Holders;
use crate::outcome::{Outcome, Rounds, latencies, median};
use crate::plans;
use crate::report::{duration, grouped};
use crate::session::Session;
use crate::setup::{ask, ask_many, dialect, name};
use crate::spec::Spec;
use crate::target::Speaks;

/// Requests on their way at once while filling.
const BATCH: usize = 500;

/// One line of a scene's report; with `--json` an object.
struct Page {
    json: bool,
    rows: Vec<String>,
}

impl Page {
    fn new(session: &Session) -> Self {
        Self {
            json: session.options.json,
            rows: Vec::new(),
        }
    }

    fn row(&mut self, what: &str, value: String) {
        if self.json {
            let (what, value) = (crate::json::quoted(what), crate::json::quoted(&value));
            self.rows.push(format!("{what}:{value}"));
        } else {
            println!("  {what:<58} {value:>16}");
        }
    }

    /// Prints what is wrong, if anything, and whether all was right.
    fn end(mut self, outcomes: Vec<Outcome>) -> bool {
        let wrong = Rounds::of(outcomes).wrong;
        self.row("wrong answers", wrong.count.to_string());
        for what in &wrong.first {
            eprintln!("WRONG: {what}");
        }
        if self.json {
            println!("{{{}}}", self.rows.join(","));
        }
        wrong.count == 0
    }
}

/// Takes `count` locks over one connection and keeps them as long as that is open.
struct Filled {
    /// Open as long as this lives.
    _conn: Conn,
    seconds: f64,
}

fn fill(session: &Session, count: usize, lease_ms: impl Fn() -> u64) -> io::Result<Filled> {
    let dialect = dialect(&Spec::default(), &session.target)?;
    let mut conn = Conn::new(session.target.connect()?);
    let run = fastrand::u16(..);
    let began = session.clock.now_ns();
    let mut token: Grant = [b'0'; 32];
    let mut request = Vec::new();
    for first in (0..count).step_by(BATCH) {
        let last = (first + BATCH).min(count);
        request.clear();
        let lease_ms = lease_ms();
        for index in first..last {
            token[..16].copy_from_slice(&hex(index as u64));
            let key = name("fill", run, index);
            dialect.encode(Ask::LockFor(&token, lease_ms), &key, &mut request);
        }
        ask_many(&dialect, &mut conn, &request, last - first, |answer| {
            matches!(answer, Answer::Ok(_))
        })?;
        if first.is_multiple_of(BATCH * 100) {
            session.say(&format!("locks held: {last} of {count}"));
        }
    }
    session.say("");
    let seconds = (session.clock.now_ns() - began) as f64 / 1e9;
    Ok(Filled {
        _conn: conn,
        seconds,
    })
}

fn rss(session: &Session) -> Option<u64> {
    session.target.pid.and_then(rss_bytes)
}

/// Memory between two looks, for each of `count`.
fn each_bytes(before: Option<u64>, after: Option<u64>, count: usize) -> String {
    match (before, after) {
        (Some(before), Some(after)) => {
            let each = after.saturating_sub(before) / count.max(1) as u64;
            format!("{each} bytes")
        }
        _ => "not our server".to_owned(),
    }
}

fn short(session: &Session) -> Spec {
    let mut spec = Spec {
        measure_ns: 1_000_000_000,
        ..Spec::default()
    };
    session.options.apply(&mut spec);
    spec
}

/// `idle-10k`
pub(crate) fn idle(session: &Session) -> io::Result<bool> {
    let count = session.options.count.unwrap_or(10_000);
    let mut page = Page::new(session);
    let alone = short(session);
    let crowd = Spec {
        idle: count,
        ..alone.clone()
    };
    let mut all = vec![session.run("warming up", &alone)?];
    let before = rss(session);
    let seen = RefCell::new(None);
    let mut ratios = Vec::new();
    for round in 1..=session.options.rounds.unwrap_or(5).max(1) {
        let without = session.run(&format!("round {round}, without"), &alone)?;
        let begin = || {
            seen.borrow_mut().get_or_insert_with(|| rss(session));
        };
        let label = format!("round {round}, beside {count} idle");
        let with = session.run_at(&label, &crowd, &session.target, Some(Box::new(begin)))?;
        ratios.push(with.per_s() / without.per_s());
        all.extend([without, with]);
    }
    let after = seen.take().flatten();
    let rates = |at: usize| median(all[1..].chunks(2).map(|it| it[at].per_s()).collect());
    page.row(
        &format!("throughput beside {count} idle / without, median"),
        format!("{:.3}", median(ratios)),
    );
    page.row("answers per second without", grouped(rates(0)));
    page.row(
        &format!("answers per second beside {count}"),
        grouped(rates(1)),
    );
    page.row(
        "memory per idle connection",
        each_bytes(before, after, count),
    );
    Ok(page.end(all))
}

/// `million`
pub(crate) fn million(session: &Session) -> io::Result<bool> {
    let count = session.options.count.unwrap_or(1_000_000);
    let mut page = Page::new(session);
    let spec = short(session);
    let few = session.run("without", &spec)?;
    let before = rss(session);
    let filled = fill(session, count, || 3_600_000)?;
    let after = rss(session);
    let many = session.run(&format!("beside {count} locks"), &spec)?;
    page.row(
        "locks filled per second",
        grouped(count as f64 / filled.seconds),
    );
    page.row("memory per held lock", each_bytes(before, after, count));
    page.row(
        "time per answer beside them / without",
        format!("{:.3}", few.per_s() / many.per_s()),
    );
    page.row("answers per second beside them", grouped(many.per_s()));
    if let Some(pid) = session.target.pid {
        let began = Share::of(pid).unwrap_or_default();
        let idle_ns = 1_000_000_000;
        quiet(session, idle_ns)?;
        let spent = Share::of(pid).unwrap_or_default().since(began).ran_ns;
        let share = spent as f64 / idle_ns as f64 * 100.0;
        page.row(
            "processor time while nothing happens",
            format!("{share:.2} %"),
        );
    }
    drop(filled);
    Ok(page.end(vec![few, many]))
}

/// Lets time pass.
fn quiet(session: &Session, ns: u64) -> io::Result<()> {
    let mut poll = mio::Poll::new()?;
    let mut events = mio::Events::with_capacity(1);
    let until = session.clock.now_ns() + ns;
    while let Some(left) = until.checked_sub(session.clock.now_ns()) {
        let left = std::time::Duration::from_nanos(left.max(1_000_000));
        poll.poll(&mut events, Some(left))?;
    }
    Ok(())
}

/// `expiry`
pub(crate) fn expiry(session: &Session) -> io::Result<bool> {
    let count = session.options.count.unwrap_or(1_000_000);
    let mut page = Page::new(session);
    let early = lateness(session, &mut page)?;
    // All end at one instant: each batch gets the time that is left.
    let filling_ns = 3_000_000_000 + count as u64 * 4_000;
    let end_ns = session.clock.now_ns() + filling_ns;
    let left_ms = || (end_ns.saturating_sub(session.clock.now_ns()) / 1_000_000).max(1);
    let filled = fill(session, count, left_ms)?;
    let mut spec = short(session);
    let calm = session.run("before", &spec)?;
    spec.warmup_ns = end_ns.saturating_sub(session.clock.now_ns());
    spec.measure_ns = 500_000_000;
    let storm = session.run("while they end", &spec)?;
    for (when, outcome) in [("before", &calm), ("in that half second", &storm)] {
        page.row(
            &format!("{count} leases end at once; others' p99 {when}"),
            duration(outcome.take.value_at_quantile(0.99)),
        );
        page.row("  most", duration(outcome.take.max()));
    }
    drop(filled);
    let right = page.end(vec![calm, storm]);
    Ok(right && early == 0)
}

/// Short leases, each with somebody waiting for its end; returns how many ended early.
fn lateness(session: &Session, page: &mut Page) -> io::Result<u64> {
    const LEASE_MS: u64 = 20;
    let dialect = dialect(&Spec::default(), &session.target)?;
    if dialect.speaks != Speaks::Line {
        return Ok(0); // nobody can wait there
    }
    let mut holder = Conn::new(session.target.connect()?);
    let mut waiter = Conn::new(session.target.connect()?);
    let (mut late, mut early) = (latencies(), 0);
    let run = fastrand::u16(..);
    let token: Grant = [b'0'; 32];
    for index in 0..session.options.rounds.unwrap_or(200).max(1) {
        let key = name("late", run, index);
        let mut request = Vec::new();
        dialect.encode(Ask::LockFor(&token, LEASE_MS), &key, &mut request);
        let asked = session.clock.now_ns();
        ask_many(&dialect, &mut holder, &request, 1, |it| {
            matches!(it, Answer::Ok(_))
        })?;
        request.clear();
        dialect.encode(Ask::Lock(&token), &key, &mut request);
        let grant = ask(&dialect, &mut waiter, &request, |answer| match answer {
            Answer::Ok(rest) => rest.first_chunk::<32>().copied(),
            _ => None,
        })?;
        // Counted from before the first request was sent: what looks early is early beyond doubt.
        match (session.clock.now_ns() - asked).checked_sub(LEASE_MS * 1_000_000) {
            Some(ns) => late.saturating_record(ns),
            None => early += 1,
        }
        request.clear();
        dialect.encode(Ask::Unlock(&grant), &key, &mut request);
        ask_many(&dialect, &mut waiter, &request, 1, |it| {
            *it == Answer::Ok(b"")
        })?;
    }
    for (what, quantile) in [("p50", 0.5), ("p99", 0.99), ("most", 1.0)] {
        page.row(
            &format!("a lease of {LEASE_MS} ms ends late by, {what}"),
            duration(late.value_at_quantile(quantile)),
        );
    }
    page.row("leases that ended early", early.to_string());
    Ok(early)
}

/// `storm`
pub(crate) fn storm(session: &Session) -> io::Result<bool> {
    if session.target.speaks != Speaks::Line {
        let what = "this server keeps a lock whose holder has left";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let count = session.options.count.unwrap_or(10_000);
    let mut page = Page::new(session);
    let spec = short(session);
    let calm = session.run("before", &spec)?;
    let dialect = dialect(&Spec::default(), &session.target)?;
    let (run, token) = (fastrand::u16(..), [b'0'; 32]);
    session.say(&format!("{count} connections take a lock each"));
    let holders = RefCell::new(Holders::start(&session.target, count, run)?);
    let leave = || holders.borrow_mut().leave();
    let busy = session.run_at(
        "while they leave",
        &spec,
        &session.target,
        Some(Box::new(leave)),
    )?;
    // Whoever asks now gets each at once, or the run above was too short for the server.
    let mut conn = Conn::new(session.target.connect()?);
    let mut request = Vec::new();
    for index in 0..count {
        dialect.encode(
            Ask::LockFor(&token, 1_000),
            &name("hold", run, index),
            &mut request,
        );
    }
    let mut free = 0;
    ask_many(&dialect, &mut conn, &request, count, |answer| {
        free += usize::from(matches!(answer, Answer::Ok(_)));
        true
    })?;
    for (when, outcome) in [("before", &calm), ("while they leave", &busy)] {
        let p99 = outcome.take.value_at_quantile(0.99);
        page.row(&format!("others' p99 {when}"), duration(p99));
        page.row("  most", duration(outcome.take.max()));
        page.row("  answers per second", grouped(outcome.per_s()));
        for (who, share) in [
            ("the server", outcome.server),
            ("this program", outcome.load),
        ] {
            let waited = share.unwrap_or_default().waited_ns;
            page.row(&format!("  {who} waited for its core"), duration(waited));
        }
    }
    page.row(
        &format!("locks of {count} holders free afterwards"),
        free.to_string(),
    );
    Ok(page.end(vec![calm, busy]) && free == count)
}

/// `soak`
pub(crate) fn soak(session: &Session) -> io::Result<bool> {
    let mut page = Page::new(session);
    let total_s = session.options.seconds.unwrap_or(600.0);
    let mut specs = plans::every_kind();
    let each_ns = (2e9_f64).min(total_s * 1e9 / (2 * specs.len()) as f64) as u64;
    for spec in &mut specs {
        spec.warmup_ns = 0;
        spec.measure_ns = each_ns.max(1_000_000);
    }
    let began = session.clock.now_ns();
    let (mut rounds, mut answers, mut first_rss) = (0, 0, None);
    let mut last = Vec::new();
    while ((session.clock.now_ns() - began) as f64) < total_s * 1e9 || rounds < 2 {
        rounds += 1;
        last.clear();
        for spec in &specs {
            let outcome = session.run(&format!("pass {rounds}, {}", spec.title()), spec)?;
            answers += outcome.answers;
            let wrong = outcome.wrong.count > 0;
            last.push(outcome);
            if wrong {
                return Ok(page.end(last));
            }
        }
        first_rss = first_rss.or_else(|| rss(session));
    }
    page.row("passes through every kind of work", rounds.to_string());
    page.row("answers checked", grouped(answers as f64));
    let mib = |bytes: Option<u64>| bytes.map_or(f64::NAN, |it| it as f64 / 1_048_576.0);
    page.row(
        "memory after the first pass",
        format!("{:.1} MiB", mib(first_rss)),
    );
    page.row("memory at the end", format!("{:.1} MiB", mib(rss(session))));
    Ok(page.end(last))
}
