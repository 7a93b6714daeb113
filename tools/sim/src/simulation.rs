//! Everything there is in one run, and the order of events: virtual time, the agenda, the loop.
//!
//! The agenda holds what happens outside the server, in `clients` and `faults`. When something has
//! arrived, or the server's next deadline has come, the server takes a `turn`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use super::data_dir::DataDir;
use super::life::Life;
use super::plan::{Plan, Restart};
use super::trace::{Keep, Trace};
use super::{Sabotage, Totals};
use crate::pipe::Meter;
use latchd::base::{Millis, Nanos};

/// A run that takes more turns than this will never come to rest: something spins.
const TURNS_MAX: u64 = 100_000;

/// 2027-01-01 00:00 UTC, in microseconds since 1970, and how long a year is.
const YEAR_2027_US: u64 = 1_798_761_600_000_000;
const YEAR_US: u64 = 365 * 86_400 * 1_000_000;

/// Something that will happen outside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scheduled {
    /// A client acts, and will act again after a while.
    Act(usize),
    /// A client acts because it read an answer.
    React(usize),
    /// A segment of this many bytes arrives; the end of the stream may follow the last segment.
    Arrive(u32, usize),
    /// The connection breaks.
    Break(u32),
    /// A client that stopped reading reads again.
    Unstall(u32),
    /// The server does not run for a while.
    Pause(u64),
    /// The server of this life gets a shutdown signal.
    Shutdown(u32),
    /// Somebody starts a server.
    Start,
    /// The store of this life has something to do.
    Disk(u32),
    /// The disk that was full has room.
    Room,
}

/// Everything there is in one run.
pub(super) struct Simulation {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) trace: Trace,
    pub(super) totals: Totals,
    /// The server that runs, or the last one that did.
    pub(super) life: Box<Life>,
    /// Another that runs as well: it does not listen any more, and should have ended.
    pub(super) other: Option<Box<Life>>,
    /// What the wall clock showed at the instant 0, in microseconds since 1970.
    wall_begin_us: u64,
    /// How far it was set since then.
    pub(super) wall_set_us: i64,
    /// What outlives the server, if something does.
    pub(super) data: Option<DataDir>,
    pub(super) sabotage: Option<Sabotage>,
    /// Every fence of the lives that are over is at most this.
    pub(super) fences_given: u64,
    pub(super) restarts_left: Vec<Restart>,
    /// The last life was told to stop.
    pub(super) is_last_stop: bool,
    pub(super) now: Nanos,
    /// What the server spent on its connections in this turn.
    pub(super) meter: Meter,
    /// How many turns are over.
    pub(super) turn: u64,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Scheduled)>>,
    scheduled_count: u64,
    pub(super) connections_made: u32,
    /// The number of each client's connection.
    pub(super) clients: Vec<Option<u32>>,
    pub(super) actions_left: u32,
    pub(super) has_ended: bool,
    /// The last client has come, to take away what the others left for ever.
    pub(super) has_cleaned_up: bool,
    pub(super) requests_made: u64,
}

impl Simulation {
    pub(super) fn new(seed: u64, keep: Keep, sabotage: Option<Sabotage>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng, seed);
        let mut trace = Trace::new(keep);
        let now = Nanos(rng.u64(..1 << 40));
        trace.say(now, format_args!("{plan:?}"));
        let wall_begin_us = YEAR_2027_US + rng.u64(..20 * YEAR_US);
        let wall_us = wall_begin_us + now.0 / 1_000;
        let mut simulation = Self {
            life: Life::begin(&mut rng, &plan, 1, now, wall_us, None),
            other: None,
            wall_begin_us,
            wall_set_us: 0,
            data: None,
            sabotage,
            fences_given: 0,
            restarts_left: plan.restarts.clone(),
            is_last_stop: false,
            totals: Totals::default(),
            clients: vec![None; plan.clients + plan.ranges.clients],
            actions_left: plan.actions_max,
            plan,
            rng,
            trace,
            now,
            meter: Meter::default(),
            turn: 0,
            agenda: BinaryHeap::new(),
            scheduled_count: 0,
            connections_made: 0,
            has_ended: false,
            has_cleaned_up: false,
            requests_made: 0,
        };
        simulation.make_data_dir();
        simulation.life.begin_ranges(&simulation.plan, 0, now);
        simulation
    }

    /// Plays the run from its first event to its last.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            let after = self.think();
            self.schedule(after, Scheduled::Act(client));
        }
        loop {
            if self.life.is_up && self.life.server.is_drained() {
                if self.is_last_stop {
                    break;
                }
                self.end_life()?;
            }
            self.enter_first_to_wake();
            let next = self.agenda.peek().map(|Reverse((at, ..))| *at);
            match (next, self.wakes_at()) {
                (None, None) if self.clean_up()? => {}
                (None, None) => break,
                (Some(at), wakes_at) if wakes_at.is_none_or(|wake| at <= wake) => {
                    self.now = self.now.max(at);
                    if let Some(Reverse((_, _, event))) = self.agenda.pop() {
                        self.run_event(event)?;
                    }
                }
                (_, Some(wakes_at)) => {
                    // Two turns never read the same time.
                    self.now = Nanos(self.now.0 + 1_000).max(wakes_at);
                    self.take_turn()?;
                }
                (Some(_), None) => unreachable!("the agenda goes on without the server"),
            }
            if self.turn > TURNS_MAX {
                let now_ms = self.now.0 / 1_000_000;
                return Err(format!(
                    "not at rest after {TURNS_MAX} turns, at {now_ms} ms"
                ));
            }
        }
        self.totals.virtual_ms = self.now.0 / 1_000_000;
        self.check_end()
    }

    fn run_event(&mut self, event: Scheduled) -> Result<(), String> {
        match event {
            Scheduled::Act(client) => {
                if self.actions_left == 0 {
                    self.end();
                    return Ok(());
                }
                let after = self.think();
                self.enter_life_of_client(client);
                // While the server is paused, clients mostly wait too.
                let waits = self.now < self.life.paused_until && self.rng.u8(..4) != 0;
                if waits {
                    self.schedule(after.max(self.life.paused_until), event);
                    return Ok(());
                }
                self.schedule(after, event);
                self.act(client)?;
            }
            Scheduled::React(_) if self.has_ended => {}
            Scheduled::React(client) => {
                self.enter_life_of_client(client);
                self.act(client)?;
            }
            Scheduled::Arrive(number, count) => {
                self.enter_life_of(number);
                self.arrive(number, count);
            }
            Scheduled::Break(number) => {
                self.enter_life_of(number);
                self.reset(number);
            }
            Scheduled::Unstall(number) => {
                self.enter_life_of(number);
                self.unstall(number);
            }
            Scheduled::Pause(span_ms) => self.pause_for(Millis(span_ms)),
            Scheduled::Shutdown(life) if self.life.is_up && self.life.number == life => {
                self.signal_shutdown();
            }
            Scheduled::Shutdown(_) => {}
            Scheduled::Start => self.start()?,
            Scheduled::Disk(life) if self.life.is_up && self.life.number == life => {
                self.step_disk()?;
            }
            Scheduled::Disk(_) => {}
            Scheduled::Room => self.make_disk_room(),
        }
        Ok(())
    }

    /// What the wall clock shows, in microseconds since 1970.
    pub(super) fn wall_us(&self) -> u64 {
        let us = self.wall_begin_us + self.now.0 / 1_000;
        us.saturating_add_signed(self.wall_set_us)
    }

    pub(super) fn schedule(&mut self, at: Nanos, event: Scheduled) {
        self.scheduled_count += 1;
        self.agenda.push(Reverse((at, self.scheduled_count, event)));
    }

    /// A moment up to `ms_max` from now; on a whole millisecond, if the plan says so.
    pub(super) fn within(&mut self, ms_max: u64) -> Nanos {
        if self.plan.whole_ms {
            let ms = self.rng.u64(..=ms_max) + self.now.0 / 1_000_000;
            Nanos(ms * 1_000_000).max(self.now)
        } else {
            Nanos(self.now.0 + self.rng.u64(..=ms_max * 1_000_000))
        }
    }

    pub(super) fn think(&mut self) -> Nanos {
        self.within(self.plan.think_ms_max)
    }
}
