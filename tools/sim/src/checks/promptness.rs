//! How long everybody else waits: no turn is longer than it may be, and no lease later.
//!
//! In virtual time a turn takes as long as its work, so a server that lets one client keep it busy
//! is seen here. What a fault of the server adds (it is paused, or wakes late) is not held against
//! it. That nothing comes early is checked where it ends, in `lock_table` and `answers`.

use super::grants::Outlives;
use crate::clients::crowd::Scene;
use crate::simulation::Simulation;
use latchd::base::Nanos;

/// What a run is held to.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    turn_ns_max: u64,
    /// How long after its deadline a lease may still look held to clients.
    lease_late_ns_max: u64,
    /// How long what a client held may stay held after it hung up.
    departure_late_ns_max: u64,
}

/// A few clients, whatever they do.
const ORDINARY: Bounds = Bounds {
    turn_ns_max: 5_000_000,
    lease_late_ns_max: 5_000_000,
    departure_late_ns_max: 5_000_000,
};

/// A crowd beyond every budget beside them.
const CROWD: Bounds = Bounds {
    turn_ns_max: 10_000_000,
    lease_late_ns_max: 15_000_000,
    departure_late_ns_max: 20_000_000,
};

impl Bounds {
    fn of(crowd: Option<Scene>) -> Self {
        match crowd {
            None => ORDINARY,
            // Those who hang up are served to their end first come, first served, and somebody may
            // stand behind thousands.
            Some(Scene::HangUps | Scene::Resumed | Scene::Meetings) => Self {
                departure_late_ns_max: 70_000_000,
                ..CROWD
            },
            Some(_) => CROWD,
        }
    }
}

/// Turns longer than this are told in the trace.
const TOLD_NS_MIN: u64 = 1_000_000;

/// How late the poll may notice a deadline: it counts in milliseconds.
const POLL_LATE_NS_MAX: u64 = 1_000_000;

impl Simulation {
    pub(crate) fn check_promptness(&mut self) -> Result<(), String> {
        let bounds = Bounds::of(self.plan.crowd);
        let span = self.life.span;
        let turn_ns = span.ended.since(span.began);
        self.life.longest_turn_ns = self.life.longest_turn_ns.max(turn_ns);
        self.totals.turn_ns_max = self.totals.turn_ns_max.max(turn_ns);
        if turn_ns > TOLD_NS_MIN {
            self.trace
                .say(self.now, format_args!("a turn of {} us", turn_ns / 1_000));
        }
        if turn_ns > bounds.turn_ns_max {
            return Err(format!("a turn took {turn_ns} ns"));
        }
        let deliberate_ns = self.deliberate_ns();
        let late_ns = self.life.seen_locks.late_awake_ns_max;
        if late_ns > bounds.lease_late_ns_max + deliberate_ns {
            return Err(format!("a lease ended {late_ns} ns late, without a reason"));
        }
        self.note_behind();
        let late_ns = self.departure_late_ns();
        self.totals.departure_late_ns_max = self.totals.departure_late_ns_max.max(late_ns);
        if late_ns > bounds.departure_late_ns_max + deliberate_ns {
            return Err(format!(
                "what a client held is held {late_ns} ns after it left"
            ));
        }
        Ok(())
    }

    /// Whether the server, whose connections were to end then, has closed them all and is only busy with
    /// what they left behind, and not for longer than that may take.
    pub(crate) fn finishes_departures(&self, since: Nanos) -> bool {
        let server = &self.life.server;
        let goes_on = server.next_deadline().is_some_and(|at| at <= self.now);
        let late_ns_max = Bounds::of(self.plan.crowd).departure_late_ns_max + self.deliberate_ns();
        self.data.is_some()
            && server.engine().has_begun()
            && goes_on
            && server.awaited_connections() == 0
            && self
                .life
                .span
                .began
                .since(since.max(self.life.paused_until))
                <= late_ns_max
    }

    /// How long what somebody held may be held after it left.
    pub(crate) fn departure_ns_max(&self) -> u64 {
        Bounds::of(self.plan.crowd).departure_late_ns_max + self.deliberate_ns()
    }

    /// How late the server may be in any turn because it was told to.
    fn deliberate_ns(&self) -> u64 {
        POLL_LATE_NS_MAX + self.plan.turn_delay_us_max * 1_000
    }

    /// Notes until when the disk kept requests waiting: to this turn, or on from it.
    fn note_behind(&mut self) {
        let data = self.data.as_ref();
        let is_behind = data.is_some_and(|it| it.keeper.borrow().is_behind());
        if is_behind {
            self.life.behind_until = self.now;
        } else if self.life.is_behind {
            self.life.behind_until = self.life.span.began;
        }
        self.life.is_behind = is_behind;
    }

    /// For how long the longest of those who hung up and still hold something has been gone. A
    /// client that owes the server the reading of an answer, or the server one, is not quite gone.
    /// What somebody has asked for before it left waits for the disk like what others ask for.
    fn departure_late_ns(&self) -> u64 {
        let late_ns = |(serial, fence): (u32, u64)| {
            let number = *self.life.by_serial.get(&serial)?;
            let conn = self.life.connections.get(&number)?;
            if !self.ends_with_connection(number, fence) {
                return None;
            }
            let is_settled = conn.reset || !conn.is_behind() && conn.open_requests.is_empty();
            let since = conn.hung_up_at.filter(|_| is_settled)?;
            let mut open = conn.open_requests.iter();
            let since = match open.any(|it| it.arrived.is_some()) {
                true => since.max(self.life.behind_until),
                false => since,
            };
            Some(self.now.since(since.max(self.life.paused_until)))
        };
        let holders = self.life.seen_locks.holders();
        holders.filter_map(late_ns).max().unwrap_or(0)
    }

    /// Whether this grant certainly ends with its connection. Of one whose answer nobody has read it is
    /// not known, if the connection has ever said that its grants outlive it.
    pub(crate) fn ends_with_connection(&self, number: u32, fence: u64) -> bool {
        let keeps = || Outlives::of(self.life.keepers.contains(&number));
        let outlives = self.life.known_grants.outlives(fence).unwrap_or_else(keeps);
        self.plan.rules.auto_release && outlives == Outlives::No
    }
}
