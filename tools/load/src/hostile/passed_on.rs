//! How soon a lock is passed on whose owner leaves together with the owners of very many others;
//! with them and without.

use std::io;

use crate::clock::Clock;
use crate::hostile::Scene;
use crate::hostile::beside::{MS, Turns, Waiting, longest_turn, put_waited, unless_spoilt};
use crate::hostile::owners::waited_for;
use crate::hostile::process::Attackers;
use crate::report::figures::Figures;
use crate::report::figures::Unit::Nanos;
use crate::report::figures::Wanted::{AtMost, Nothing};
use crate::run::client::Client;
use crate::run::keys::key_name;
use crate::servers::target::Target;
use crate::session::Session;

/// How long the attackers flood before anybody leaves.
const FLOODED_NS: u64 = 300_000_000;

/// Measures without the attack, then with it, each on a server of its own.
pub(super) fn measure(
    session: &Session,
    scene: &Scene,
    figures: &mut Figures,
    most_ms: f64,
) -> io::Result<()> {
    let alone = session.latchd(&[])?;
    let mut owner = Client::connect(&alone.target)?;
    owner.lock(&waited_for())?;
    let without = passed_on(&alone.target, || {
        let left_ns = Clock::machine_ns();
        drop(owner);
        Ok(left_ns)
    })?;
    let turn_without = longest_turn(&alone.target)?;
    drop(alone);

    let latchd = session.latchd(&[])?;
    let mut attackers = Attackers::start(session, scene, &latchd.target)?;
    let turn_before = longest_turn(&latchd.target)?;
    let began = session.clock.now_ns();
    let with = passed_on(&latchd.target, || {
        attackers.go()?;
        session.clock.rest(FLOODED_NS)?;
        attackers.leave()
    })?;
    attackers.stop()?;
    let worked_ns = session.clock.now_ns() - began;

    let bound = most_ms * MS;
    let passed = unless_spoilt(with.0, with.1, bound);
    figures.put("passed on after", Nanos, passed, AtMost(bound));
    let alone_ns = Some(without.0);
    figures.put("without: passed on after", Nanos, alone_ns, Nothing);
    let turns = Turns {
        with: longest_turn(&latchd.target)?,
        without: turn_without,
        before: turn_before,
    };
    turns.put(figures, Nothing);
    put_waited(figures, with.1, without.1);
    attackers.put(figures, worked_ns);
    Ok(())
}

/// Somebody waits for a lock whose owner leaves when `leave` is called, which returns when that was,
/// on the machine's clock. Returns how long it took until the other one had the lock, and how long
/// this program waited for its core meanwhile.
fn passed_on(
    target: &Target,
    leave: impl FnOnce() -> io::Result<u64>,
) -> io::Result<(f64, Option<f64>)> {
    let mut waiter = Client::connect(target)?;
    waiter.begin_lock(&waited_for())?;
    // Once somebody is answered who asked later, the one before is in the queue.
    let mut other = Client::connect(target)?;
    other.lock(&key_name("pass", 0, 1))?;
    let waiting = Waiting::begin();
    let left_ns = leave()?;
    waiter.granted()?;
    let passed_ns = Clock::machine_ns().saturating_sub(left_ns);
    Ok((passed_ns as f64, waiting.end()))
}
