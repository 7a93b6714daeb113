//! Scenarios are more than a run: a million held locks, ten thousand idle connections, clients that
//! leave, leases that end.
//!
//! A scenario is one round: it starts the servers it needs, ends them, and puts what it found into
//! [`Figures`], together with what is wanted of it. Each has a file with the name of its plan;
//! `held_locks`, `holders` and `observe` are what several of them need.

pub(crate) mod disconnects;
pub(crate) mod expiry;
pub(crate) mod held_locks;
pub(crate) mod holders;
pub(crate) mod idle;
pub(crate) mod leases;
pub(crate) mod million;
pub(crate) mod observe;
pub(crate) mod observed;
pub(crate) mod soak;
pub(crate) mod spin;
pub(crate) mod storm;
pub(crate) mod tls;

use std::io;

use crate::output::print;
use crate::report::figures::Figures;
use crate::session::Session;

/// One round of a scenario.
pub(crate) type Scenario = fn(&Session, &mut Figures) -> io::Result<()>;

/// The scenarios of the proof.
pub(crate) const PROVEN: [Scenario; 7] = [
    spin::run,
    idle::run,
    million::run,
    disconnects::run,
    expiry::lateness,
    expiry::together,
    storm::run,
];

/// Runs scenarios in turn, several times, and prints their figures; returns whether every answer
/// was right.
pub(crate) fn rounds(session: &Session, scenarios: &[Scenario], usual: usize) -> io::Result<bool> {
    let mut figures = Figures::default();
    for _ in 0..session.options.rounds(usual) {
        for scenario in scenarios {
            scenario(session, &mut figures)?;
        }
    }
    if session.options.json {
        print(&figures.json())?;
    } else {
        print(&format!("{}\n{}", figures.markdown(), figures.verdict()))?;
    }
    Ok(figures.complain())
}
