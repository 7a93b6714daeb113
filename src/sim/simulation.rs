//! Everything there is in one run, and the order of events: virtual time, the agenda, the loop.
//!
//! What is on the agenda happens outside the server: in `clients` and `faults`. When something has
//! arrived, or the server's next deadline has come, it takes a `turn`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use fastrand::Rng;

use super::Totals;
use super::checks::entries::Things;
use super::checks::grants::History;
use super::checks::lock_table::Checker;
use super::checks::pushes::Hearing;
use super::clients::connection::Link;
use super::plan::Plan;
use super::trace::{Keep, Trace};
use crate::base::{ConnId, Nanos};
use crate::engine::{Engine, Origin};
use crate::pipe::Pipe;
use crate::server::Server;

/// A run that takes more turns than this does not come to rest: somebody spins.
const TURNS_MAX: u64 = 100_000;

/// Something that happens outside the server, at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A client does something, and again after a while.
    Act(usize),
    /// A client does something because an answer came.
    React(usize),
    /// A segment of this many bytes arrives; behind the last one, perhaps the end.
    Arrive(u32, usize),
    /// The connection breaks.
    Break(u32),
    /// A client that did not read does so again.
    Unstall(u32),
    /// The server is told to stop.
    Signal,
}

/// Everything there is in one run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) trace: Trace,
    pub(super) totals: Totals,
    pub(super) server: Server<Pipe>,
    pub(super) history: History,
    pub(super) checker: Checker,
    pub(super) things: Things,
    pub(super) hearing: Hearing,
    pub(super) now: Nanos,
    /// Turns that are over.
    pub(super) turn: u64,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
    /// Connections by number; numbers are never used again.
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) links_made: u32,
    /// The server's serial number → number.
    pub(super) by_serial: BTreeMap<u32, u32>,
    /// Each client's connection.
    pub(super) clients: Vec<Option<u32>>,
    /// Connected, not yet accepted.
    pub(super) backlog: VecDeque<(u32, Pipe)>,
    /// Connections the next poll reports.
    pub(super) pending: BTreeSet<u32>,
    /// Ids that are out of use, to be reported by mistake.
    pub(super) stale: VecDeque<ConnId>,
    pub(super) signals: u32,
    /// When the server was told to stop: instant, turn; and told again.
    pub(super) draining: Option<(Nanos, u64)>,
    pub(super) is_killed: bool,
    /// When the turn for what is pending begins.
    pub(super) due: Option<Nanos>,
    /// How late the next deadline is noticed.
    pub(super) oversleep_ns: u64,
    pub(super) stopped_until: Nanos,
    pub(super) deeds_left: u32,
    pub(super) has_ended: bool,
    /// The last client has come, for what the others left for ever.
    pub(super) has_swept: bool,
    pub(super) questions: u64,
    /// Connections and keys for which a `w` was sent.
    pub(super) waits: BTreeSet<(u32, usize)>,
}

impl World {
    pub(super) fn new(seed: u64, keep: Keep) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng);
        let mut salts = Rng::with_seed(!seed);
        let fence = rng.u64(..1 << 40);
        let origin = Origin {
            fence,
            seed: [rng.u64(..), rng.u64(..)],
            chance: Box::new(move || salts.u64(..)),
        };
        let engine = Engine::new(plan.rules.clone(), origin);
        let mut trace = Trace::new(keep);
        let now = Nanos(rng.u64(..1 << 40));
        trace.say(now, format_args!("{plan:?}"));
        Self {
            server: Server::new(plan.settings.clone(), engine),
            history: History::new(plan.keys.len(), plan.rules.auto_release),
            things: Things::new(&plan),
            hearing: Hearing::default(),
            checker: Checker::new(plan.keys.len(), fence),
            totals: Totals::default(),
            clients: vec![None; plan.clients],
            deeds_left: plan.deeds_max,
            plan,
            rng,
            trace,
            now,
            turn: 0,
            agenda: BinaryHeap::new(),
            scheduled: 0,
            links: BTreeMap::new(),
            links_made: 0,
            by_serial: BTreeMap::new(),
            backlog: VecDeque::new(),
            pending: BTreeSet::new(),
            stale: VecDeque::new(),
            signals: 0,
            draining: None,
            is_killed: false,
            due: None,
            oversleep_ns: 0,
            stopped_until: now,
            has_ended: false,
            has_swept: false,
            questions: 0,
            waits: BTreeSet::new(),
        }
    }

    /// From the first event to the last.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            let after = self.think();
            self.schedule(after, Event::Act(client));
        }
        while !self.server.is_drained() {
            let next = self.agenda.peek().map(|Reverse((at, ..))| *at);
            match (next, self.wake()) {
                (None, None) if self.sweep_up()? => {}
                (None, None) => break,
                (Some(at), wake) if wake.is_none_or(|wake| at <= wake) => {
                    self.now = self.now.max(at);
                    if let Some(Reverse((_, _, event))) = self.agenda.pop() {
                        self.happen(event);
                    }
                }
                (_, Some(wake)) => {
                    // No two turns read the same time.
                    self.now = Nanos(self.now.0 + 1_000).max(wake);
                    self.take_turn()?;
                }
                (Some(_), None) => unreachable!("the agenda goes on without the server"),
            }
            if self.turn > TURNS_MAX {
                return Err(format!("not at rest after {TURNS_MAX} turns"));
            }
        }
        self.totals.virtual_ms = self.now.0 / 1_000_000;
        self.check_end()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Act(client) => {
                if self.deeds_left == 0 {
                    return self.end();
                }
                let after = self.think();
                // While the server is stopped, clients mostly wait for it as well.
                let waits = self.now < self.stopped_until && self.rng.u8(..4) != 0;
                if waits {
                    return self.schedule(after.max(self.stopped_until), event);
                }
                self.schedule(after, event);
                self.act(client);
            }
            Event::React(_) if self.has_ended => {}
            Event::React(client) => self.act(client),
            Event::Arrive(link, count) => self.arrive(link, count),
            Event::Break(link) => self.reset(link),
            Event::Unstall(link) => self.unstall(link),
            Event::Signal => self.signal(),
        }
    }

    pub(super) fn schedule(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        self.agenda.push(Reverse((at, self.scheduled, event)));
    }

    /// A moment later: in whole milliseconds, or not.
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
