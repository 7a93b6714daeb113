//! The simulator: the shipped server without a network, in virtual time, with seeded chance.
//!
//! [`run`] takes a seed and plays one simulation from it: clients speak the real protocol over
//! [pipes](crate::pipe), segments are cut and delayed, connections are closed, broken and left
//! unread, the server is late, paused or told to stop in the middle. The `server` code in between
//! is the one that ships. After every turn the simulator checks everything that must hold. The same
//! seed gives the same run, line for line, so a failure is a number that one can send to a
//! colleague.
//!
//! Reading order:
//!
//! 1. `plan`: what a seed draws.
//! 2. `simulation`: virtual time, and the agenda of what happens outside the server.
//! 3. `life`: one server from its start to its end, and what clients know of it; `data_dir`, `store`
//!    and `kept`: what outlives it, if the plan has a data directory.
//! 4. `turn` and `cost`: one turn of the server, as the reactor would do it, and how long it takes.
//! 5. `clients`: what clients do and say.
//! 6. `faults`: what goes wrong with the network, with readers, with the server and with its disk.
//! 7. `checks`: what must hold after every turn, and at the end.
//! 8. `trace`: what the simulator tells about it.
//!
//! Never touches a socket, a thread or the clock.

#![cfg_attr(
    test,
    allow(dead_code, reason = "what other programs use, its unit tests may not")
)]

mod checks;
mod clients;
mod cost;
mod data_dir;
pub mod etcd;
#[cfg(test)]
mod etcd_tests;
mod fault_disk;
mod faults;
mod json;
mod kept;
mod life;
pub mod pipe;
mod plan;
mod range_plan;
mod simulation;
mod store;
mod trace;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use self::fault_disk::{FaultDisk, FaultFile};
use self::simulation::Simulation;
pub use self::trace::{Keep, TAIL_LINES_MAX};

/// How often everything happened in one run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Turns of the server.
    pub turns: u64,
    /// Virtual milliseconds.
    pub virtual_ms: u64,
    /// Connections made.
    pub connections: u64,
    /// Of these, with TLS.
    pub encrypted: u64,
    /// Connections of crowds.
    pub members: u64,
    /// Connections that found no room.
    pub refused: u64,
    /// Connections that came during a shutdown.
    pub newcomers: u64,
    /// Lines read by clients.
    pub answers: u64,
    /// Grants made.
    pub grants: u64,
    /// Grants that reached their client.
    pub grants_told: u64,
    /// Grants that their client released.
    pub releases: u64,
    /// Grants whose lease ended.
    pub expiries: u64,
    /// Grants whose connection ended.
    pub disconnects: u64,
    /// Grants that outlived their connections, because those wanted it.
    pub outlived: u64,
    /// Grants that somebody broke over HTTP.
    pub breaks: u64,
    /// Answers and events over HTTP.
    pub http_answers: u64,
    /// Grants of owners that have a name, as they were told.
    pub named_grants: u64,
    /// Requests that were sent again, and answered with the same grant.
    pub granted_again: u64,
    /// Pages of locks.
    pub pages: u64,
    /// Walks that came to their end.
    pub walks: u64,
    /// Answers of which only the head was asked for.
    pub heads: u64,
    /// Streams of figures.
    pub figures: u64,
    /// Waits that ended without a grant.
    pub timeouts: u64,
    /// Answers about counters, values, lists and barriers.
    pub entry_answers: u64,
    /// Values that went through a list to a client.
    pub values: u64,
    /// Exchanges of a value that succeeded.
    pub swaps: u64,
    /// Clients that met at a barrier.
    pub met: u64,
    /// Documents of `stats` and `who`.
    pub reports: u64,
    /// Requests that were refused because a limit was reached.
    pub no_room: u64,
    /// Requests that were refused for want of memory.
    pub no_memory: u64,
    /// Lines that answered nothing: signals, changes of keys and of leaders.
    pub pushes: u64,
    /// Connections that the server ended because they did not read what it pushed.
    pub overrun: u64,
    /// Connections closed by their client.
    pub closes: u64,
    /// Connections broken by their client.
    pub resets: u64,
    /// Connections ended by the server alone.
    pub cut_off: u64,
    /// How often a client stopped reading.
    pub stalls: u64,
    /// How often the server was paused.
    pub stops: u64,
    /// How often the server ended and another was started.
    pub restarts: u64,
    /// How often a server was started while another still ran.
    pub ports_taken: u64,
    /// How often what was in a data directory was compared with what clients knew.
    pub reopened: u64,
    /// How often that was after a power loss.
    pub power_losses: u64,
    /// Grants that were held again after a restart.
    pub restored: u64,
    /// Those that a client claimed with `reclaim`.
    pub reclaimed: u64,
    /// Locks of bytes that were granted, as they were told.
    pub ranges_granted: u64,
    /// Waits for bytes that were cancelled.
    pub cancelled: u64,
    /// Requests for bytes that would have waited for themselves.
    pub deadlocks: u64,
    /// Requests for bytes, and clients, for which there was no room.
    pub range_limits: u64,
    /// How often a connection attached to a client that was known.
    pub resumed: u64,
    /// Range locks that were pending after a restart.
    pub ranges_restored: u64,
    /// Bytes that a client had back after a restart.
    pub ranges_reclaimed: u64,
    /// Bytes that a client could not have back.
    pub ranges_not_reclaimed: u64,
    /// Requests for bytes that were kept for others after a restart.
    pub refused_in_grace: u64,
    /// Requests about bytes that were all that happened, so that one answer was right.
    pub predicted: u64,
    /// Requests that were refused because the disk was full.
    pub refused_by_disk: u64,
    /// How often the disk failed.
    pub disk_failures: u64,
    /// How often a journal was compacted.
    pub compactions: u64,
    /// The longest turn.
    pub turn_ns_max: u64,
    /// For how long a client was gone at most and still held something after a turn.
    pub departure_late_ns_max: u64,
    /// How long after its deadline a lease ended, at most.
    pub late_ns_max: u64,
    /// The same, not counting the time in which the server was paused.
    pub late_awake_ns_max: u64,
}

impl Totals {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.turns += other.turns;
        self.virtual_ms += other.virtual_ms;
        self.connections += other.connections;
        self.members += other.members;
        self.refused += other.refused;
        self.newcomers += other.newcomers;
        self.answers += other.answers;
        self.grants += other.grants;
        self.grants_told += other.grants_told;
        self.releases += other.releases;
        self.expiries += other.expiries;
        self.disconnects += other.disconnects;
        self.outlived += other.outlived;
        self.breaks += other.breaks;
        self.http_answers += other.http_answers;
        self.named_grants += other.named_grants;
        self.encrypted += other.encrypted;
        self.granted_again += other.granted_again;
        self.pages += other.pages;
        self.walks += other.walks;
        self.heads += other.heads;
        self.figures += other.figures;
        self.timeouts += other.timeouts;
        self.entry_answers += other.entry_answers;
        self.values += other.values;
        self.swaps += other.swaps;
        self.met += other.met;
        self.reports += other.reports;
        self.no_room += other.no_room;
        self.no_memory += other.no_memory;
        self.pushes += other.pushes;
        self.overrun += other.overrun;
        self.closes += other.closes;
        self.resets += other.resets;
        self.cut_off += other.cut_off;
        self.stalls += other.stalls;
        self.stops += other.stops;
        self.restarts += other.restarts;
        self.ports_taken += other.ports_taken;
        self.reopened += other.reopened;
        self.power_losses += other.power_losses;
        self.restored += other.restored;
        self.reclaimed += other.reclaimed;
        self.ranges_granted += other.ranges_granted;
        self.cancelled += other.cancelled;
        self.deadlocks += other.deadlocks;
        self.range_limits += other.range_limits;
        self.resumed += other.resumed;
        self.ranges_restored += other.ranges_restored;
        self.ranges_reclaimed += other.ranges_reclaimed;
        self.ranges_not_reclaimed += other.ranges_not_reclaimed;
        self.refused_in_grace += other.refused_in_grace;
        self.predicted += other.predicted;
        self.refused_by_disk += other.refused_by_disk;
        self.disk_failures += other.disk_failures;
        self.compactions += other.compactions;
        self.turn_ns_max = self.turn_ns_max.max(other.turn_ns_max);
        self.departure_late_ns_max = self.departure_late_ns_max.max(other.departure_late_ns_max);
        self.late_ns_max = self.late_ns_max.max(other.late_ns_max);
        self.late_awake_ns_max = self.late_awake_ns_max.max(other.late_awake_ns_max);
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first thing that did not hold, if any.
    pub violation: Option<String>,
    /// The trace: all of it, or its end.
    pub lines: Vec<String>,
    /// Equal for equal traces.
    pub hash: u64,
    /// How often everything happened; complete only without a violation.
    pub totals: Totals,
}

/// Something that a broken server would do; to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Speaks of changes that are not on the disk.
    SpeakEarly,
    /// Does not record which fences may have been given out.
    ForgetFences,
    /// Does not record grants.
    ForgetGrants,
    /// Does not record that grants end.
    ForgetEnds,
    /// Does not record that a lease has become longer.
    ForgetRenewals,
    /// Does not record counters.
    ForgetCounts,
    /// Does not record values.
    ForgetValues,
    /// Does not record that a value was taken from a list.
    ForgetPops,
    /// Does not record which owner a grant has.
    ForgetOwners,
    /// Does not record the ids of requests.
    ForgetRequests,
    /// Does not record that bytes are locked.
    ForgetRanges,
    /// Does not record that they are not locked any more.
    ForgetUnlocks,
    /// Does not record clients.
    ForgetClients,
    /// Ends the grace period long before its time.
    ShortGrace,
    /// Releases what a connection has when it ends, although it said that this is to outlive it.
    ForgetKeep,
    /// Says something else over HTTP.
    Http(HttpFault),
    /// Does something else with byte ranges.
    Range(RangeFault),
}

/// What a broken server would say over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpFault {
    /// Answers every request twice.
    AnswerTwice,
    /// Does not answer some requests.
    LoseAnswer,
    /// Does not know what it has granted to a request that is sent again.
    ForgetIds,
    /// Ends leases before their time.
    ShortLeases,
    /// Makes a lease shorter that is renewed for less than is left.
    ShortenOnRenewal,
    /// Refuses to renew what is held.
    RefuseRenewals,
    /// Releases what nobody may, or what is over.
    ReleaseForAnybody,
    /// Does not find what is to be broken.
    BreakNothing,
    /// Gives a fence that was given before.
    GiveFenceTwice,
    /// Leaves locks out of its pages.
    SkipOnPage,
    /// Shows locks twice.
    ShowTwice,
    /// Says that it is ready when it is not.
    AlwaysReady,
    /// Says that more is held than is.
    MiscountHeld,
}

/// What a broken server would do with byte ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeFault {
    /// Grants what somebody else has.
    IgnoreConflicts,
    /// Does not grant what was freed to those who wait for it.
    LoseWakeUp,
    /// Grants what was cancelled.
    GrantCancelled,
    /// Releases what a client has when its last connection is gone, and not after its time.
    ForgetAway,
    /// Grants what is kept for others after a restart.
    GrantPending,
    /// Says that somebody would wait for itself who would not.
    ReportDeadlocks,
    /// Does not tell who waits for whom.
    DropEdges,
    /// Tells it the other way round.
    TurnEdges,
    /// Says that somebody would wait for itself for a key who would not.
    ReportKeyDeadlocks,
    /// Does not say so to those who asked to be told.
    ForgetDeadlocks,
}

/// Plays the simulation of this seed to its end, or to the first violation. A panic of the server
/// is a violation too.
#[must_use]
pub fn run(seed: u64, keep: Keep) -> Outcome {
    play(Simulation::new(seed, keep, None))
}

/// The same with a server that is broken in this way; none if this seed has no data directory, or
/// nobody who speaks HTTP or locks bytes, or nothing ends with a connection, where it would show.
#[must_use]
pub fn run_broken(seed: u64, sabotage: Sabotage) -> Option<Outcome> {
    let simulation = Simulation::new(seed, Keep::Tail, Some(sabotage));
    let can_fail = match sabotage {
        Sabotage::Http(_) => simulation.plan.http_clients > 0,
        Sabotage::Range(_) => simulation.plan.ranges.clients > 0,
        Sabotage::ForgetKeep => simulation.plan.rules.auto_release,
        _ => simulation.plan.disk.is_some(),
    };
    can_fail.then(|| play(simulation))
}

fn play(mut simulation: Simulation) -> Outcome {
    // After a panic only the trace is used, and a panic leaves that whole.
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
