//! How soon a lock is passed on whose owner leaves together with the owners of very many others;
//! with them and without.

use std::io;

use crate::clock::Clock;
use crate::hostile::owners::waited_for;
use crate::hostile::process::Attackers;
use crate::hostile::{MS, Scene, longest_turn, unless_spoilt};
use crate::machine::CpuTime;
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
    let passed = unless_spoilt(with.0 as f64, with.1, bound);
    figures.put("passed on after", Nanos, passed, AtMost(bound));
    let alone_ns = Some(without.0 as f64);
    figures.put("without: passed on after", Nanos, alone_ns, Nothing);
    let turn = longest_turn(&latchd.target)?;
    figures.put("longest turn", Nanos, turn, Nothing);
    figures.put("without: longest turn", Nanos, turn_without, Nothing);
    figures.put("longest turn, until ready", Nanos, turn_before, Nothing);
    for (name, passed) in [("", with), ("without: ", without)] {
        let waited = passed.1.map(|ns| ns as f64);
        figures.put(
            &format!("{name}load waited for its core"),
            Nanos,
            waited,
            Nothing,
        );
    }
    attackers.put(figures, worked_ns);
    Ok(())
}

/// Somebody waits for a lock whose owner leaves when `leave` is called, which returns when that was,
/// on the machine's clock. Returns how long it took until the other one had the lock, and how long
/// this program waited for its core meanwhile.
fn passed_on(
    target: &Target,
    leave: impl FnOnce() -> io::Result<u64>,
) -> io::Result<(u64, Option<u64>)> {
    let mut waiter = Client::connect(target)?;
    waiter.begin_lock(&waited_for())?;
    // Once somebody is answered who asked later, the one before is in the queue.
    let mut other = Client::connect(target)?;
    other.lock(&key_name("pass", 0, 1))?;
    let cpu = CpuTime::of(std::process::id());
    let left_ns = leave()?;
    waiter.granted()?;
    let passed_ns = Clock::machine_ns().saturating_sub(left_ns);
    let cpu_after = CpuTime::of(std::process::id());
    let waited_ns = cpu.zip(cpu_after).map(|(a, b)| b.since(a).waited_ns);
    Ok((passed_ns, waited_ns))
}
