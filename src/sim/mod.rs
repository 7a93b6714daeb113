//! The server without a network and without time passing by itself.
//!
//! [`run`] takes a seed and plays a whole world from it: clients that speak the real protocol over
//! pipes, segments cut and delayed, connections closed, broken and left unread, a server that is
//! late or stopped, a shutdown in the middle; and the shipped `server` code in between, at instants
//! the world chooses. After every turn everything that must hold is checked. The same seed gives the
//! same run, line for line, so a failure is a number one can send to a colleague.
//!
//! Reading order: `plan` (what a seed draws), `simulation` (virtual time and the agenda), `turn` (one
//! turn of the server), `clients` (what clients do and say), `faults` (what goes wrong with network,
//! readers and server), `checks` (what must hold), `trace` (what is told about it). Never touches a
//! socket, a thread or the clock.

mod checks;
mod clients;
mod faults;
mod plan;
mod simulation;
mod trace;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::simulation::Simulation;
pub use self::trace::{Keep, TAIL_LINES_MAX};

/// How often what happened in one run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Turns of the server.
    pub turns: u64,
    /// Virtual milliseconds.
    pub virtual_ms: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that found no room.
    pub refused: u64,
    /// Lines read by clients.
    pub answers: u64,
    /// Grants made.
    pub grants: u64,
    /// Grants that reached their client.
    pub grants_told: u64,
    /// Grants let go.
    pub releases: u64,
    /// Grants whose lease ended.
    pub expiries: u64,
    /// Grants whose connection ended.
    pub disconnects: u64,
    /// Waits that ended without a grant.
    pub timeouts: u64,
    /// Answers about counters, values, lists and barriers.
    pub things: u64,
    /// Values that went through a list to a client.
    pub values: u64,
    /// Exchanges of a value that succeeded.
    pub swaps: u64,
    /// Clients that met at a barrier.
    pub met: u64,
    /// Lines that answered nothing: signals, changes of keys and of leaders.
    pub pushes: u64,
    /// Connections ended because they did not read what was pushed.
    pub overrun: u64,
    /// Connections closed by their client.
    pub closes: u64,
    /// Connections broken by their client.
    pub resets: u64,
    /// Connections ended by the server alone.
    pub cut_off: u64,
    /// Times a client stopped reading.
    pub stalls: u64,
    /// Times the server was stopped.
    pub stops: u64,
    /// The latest end of a lease after its deadline.
    pub late_ns_max: u64,
    /// The same, not counting the time the server was stopped.
    pub late_awake_ns_max: u64,
}

impl Totals {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.turns += other.turns;
        self.virtual_ms += other.virtual_ms;
        self.connections += other.connections;
        self.refused += other.refused;
        self.answers += other.answers;
        self.grants += other.grants;
        self.grants_told += other.grants_told;
        self.releases += other.releases;
        self.expiries += other.expiries;
        self.disconnects += other.disconnects;
        self.timeouts += other.timeouts;
        self.things += other.things;
        self.values += other.values;
        self.swaps += other.swaps;
        self.met += other.met;
        self.pushes += other.pushes;
        self.overrun += other.overrun;
        self.closes += other.closes;
        self.resets += other.resets;
        self.cut_off += other.cut_off;
        self.stalls += other.stalls;
        self.stops += other.stops;
        self.late_ns_max = self.late_ns_max.max(other.late_ns_max);
        self.late_awake_ns_max = self.late_awake_ns_max.max(other.late_awake_ns_max);
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first thing that did not hold, if any.
    pub violation: Option<String>,
    /// The story: all of it, or its end.
    pub lines: Vec<String>,
    /// Equal for equal stories.
    pub hash: u64,
    /// How often what happened; in full only without a violation.
    pub totals: Totals,
}

/// Plays the world of this seed to its end, or to the first violation. A panic of the server is a
/// violation too.
#[must_use]
pub fn run(seed: u64, keep: Keep) -> Outcome {
    let mut simulation = Simulation::new(seed, keep);
    // The world is not used after a panic, except for its trace, which a panic leaves whole.
    let result = catch_unwind(AssertUnwindSafe(|| simulation.run()));
    let violation = match result {
        Ok(result) => result.err(),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panicked: {}", said.unwrap_or("without words")))
        }
    };
    Outcome {
        violation,
        hash: simulation.trace.hash(),
        lines: simulation.trace.take_lines(),
        totals: simulation.totals,
    }
}
