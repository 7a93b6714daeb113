//! How late leases end that end while a crowd of somebody else's timers does; with the attack and
//! without. Never early.

use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::{Events, Poll, Token};

use crate::hostile::Scene;
use crate::hostile::beside::{MS, Turns, Waiting, longest_turn, put_waited, unless_spoilt};
use crate::hostile::process::Attackers;
use crate::report::figures::Unit::{Count, Nanos};
use crate::report::figures::Wanted::{AtMost, Never, Nothing};
use crate::report::figures::{Figures, WITHOUT};
use crate::run::client::Client;
use crate::run::codec::{Codec, NO_TOKEN, Request};
use crate::run::conn::{Conn, Received};
use crate::run::keys::key_name;
use crate::run::outcome::{latencies, quantile};
use crate::servers::target::Target;
use crate::session::Session;

/// Leases that end one millisecond after the other, from the moment on.
const LEASES: usize = 20;

/// How long a lease lasts if there is no crowd.
const USUAL_NS: u64 = 300_000_000;

/// How long the last may take.
const PATIENCE_NS: u64 = 60_000_000_000;

/// What became of the leases.
struct Ended {
    late: Histogram<u64>,
    early: u32,
    /// How long this program was ready to run since they began to end, and did not.
    waited_ns: Option<f64>,
    /// The same of the server.
    server_waited_ns: Option<f64>,
}

/// Measures without the attack, then with it, each on a server of its own.
pub(super) fn measure(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
    most_ms: f64,
) -> io::Result<()> {
    let alone = session.latchd(&[])?;
    let end_ns = session.clock.now_ns() + USUAL_NS;
    let without = leases(session, &alone.target, end_ns, || Ok(()))?;
    let turn_without = longest_turn(&alone.target)?;
    drop(alone);

    let latchd = session.latchd(&[])?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    let turn_before = longest_turn(&latchd.target)?;
    let moment = attackers
        .moment_ns
        .ok_or_else(|| io::Error::other("no moment"))?;
    let began = session.clock.now_ns();
    let with = leases(session, &latchd.target, moment, || attackers.go())?;
    attackers.stop()?;
    let worked_ns = session.clock.now_ns() - began;

    let bound = most_ms * MS;
    let most = |it: &Ended| quantile(&it.late, 1.0).map(|ns| ns as f64);
    let late = most(&with).and_then(|it| unless_spoilt(it, with.waited_ns, bound));
    figures.put("late by, most", Nanos, late, AtMost(bound));
    figures.put("without: late by, most", Nanos, most(&without), Nothing);
    let early = with.early + without.early;
    figures.put("ended early", Count, Some(early.into()), Never);
    if early > 0 {
        figures.wrong.add(format!("{early} leases ended early"));
    }
    let turns = Turns {
        with: longest_turn(&latchd.target)?,
        without: turn_without,
        before: turn_before,
    };
    turns.put(figures, Nothing);
    put_waited(figures, with.waited_ns, without.waited_ns);
    for (prefix, ended) in [("", &with), (WITHOUT, &without)] {
        let name = format!("{prefix}server waited for its core");
        figures.put(&name, Nanos, ended.server_waited_ns, Nothing);
    }
    attackers.put(figures, worked_ns);
    Ok(())
}

/// Takes leases that end in that moment and just after it, waits for each, calls `begin`, and says
/// how late they were.
fn leases(
    session: &Session,
    target: &Target,
    end_ns: u64,
    begin: impl FnOnce() -> io::Result<()>,
) -> io::Result<Ended> {
    let run = fastrand::u16(..);
    let mut poll = Poll::new()?;
    let mut holder = Client::connect(target)?;
    let codec = Codec::new(target);
    let mut waiters = Vec::new();
    for index in 0..LEASES {
        let key = key_name("late", run, index);
        let asked = session.clock.now_ns();
        let lease_ms = (end_ns.saturating_sub(asked) / 1_000_000).max(1) + index as u64;
        holder.must(Request::LockFor(&NO_TOKEN, lease_ms), &key)?;
        let mut conn = Conn::new(target.connect()?, Token(index), poll.registry())?;
        codec.encode(Request::Lock(&NO_TOKEN), &key, &mut conn.outbox);
        conn.flush(poll.registry())?;
        // Counted from before the request was sent: what looks early is certainly early.
        waiters.push((conn, asked + lease_ms * 1_000_000));
    }
    begin()?;
    let (mut waiting, mut server_waiting) = (Waiting::begin(), Waiting::of(target.pid));
    let mut ended = Ended {
        late: latencies(),
        early: 0,
        waited_ns: None,
        server_waited_ns: None,
    };
    let mut left = LEASES;
    let mut events = Events::with_capacity(LEASES);
    let mut scratch = Vec::new();
    let until_ns = end_ns + PATIENCE_NS;
    while left > 0 && session.clock.now_ns() < until_ns {
        if session.clock.now_ns() < end_ns {
            (waiting, server_waiting) = (Waiting::begin(), Waiting::of(target.pid));
        }
        let until_end_ns = end_ns.saturating_sub(session.clock.now_ns());
        let nap_ns = until_end_ns.clamp(1_000_000, 100_000_000);
        match poll.poll(&mut events, Some(Duration::from_nanos(nap_ns))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in events.iter() {
            let (conn, due_ns) = &mut waiters[event.token().0];
            let (Received::Some(length) | Received::Last(length)) = conn.read(&mut scratch)? else {
                continue;
            };
            let now = session.clock.now_ns();
            match codec.decode(&scratch[..length]) {
                Some((answer, _)) if answer.grant().is_some() => {}
                Some((answer, _)) => return Err(io::Error::other(format!("answered {answer}"))),
                None => return Err(io::Error::other("an answer in pieces")),
            }
            left -= 1;
            match now.checked_sub(*due_ns) {
                Some(ns) => ended.late.saturating_record(ns),
                None => ended.early += 1,
            }
        }
    }
    if left > 0 {
        let what = format!("{left} of {LEASES} leases have not ended");
        return Err(io::Error::new(io::ErrorKind::TimedOut, what));
    }
    ended.waited_ns = waiting.end();
    ended.server_waited_ns = server_waiting.end();
    Ok(ended)
}
