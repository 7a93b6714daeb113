//! Virtual time and the order of events: the agenda, the loop, and one turn of the server.
//!
//! A turn mirrors `net::reactor`: hang-ups first, then every other event in any order, then
//! `finish_turn`, but that new connections come before it here and after it there; the next one begins
//! when something has arrived or the server's next deadline has come. Here also live the faults of time: turns that come late and a server
//! that is stopped. What clients do is in `clients`, what is checked afterwards in `checks`.

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
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::{Engine, Origin};
use crate::pipe::{Pipe, Readiness};
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

/// What a poll reports.
#[derive(Clone, Copy, Debug)]
enum Ready {
    Conn(ConnId, Readiness),
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
    pending: BTreeSet<u32>,
    /// Ids that are out of use, to be reported by mistake.
    pub(super) stale: VecDeque<ConnId>,
    signals: u32,
    /// When the server was told to stop: instant, turn; and told again.
    pub(super) draining: Option<(Nanos, u64)>,
    pub(super) is_killed: bool,
    /// When the turn for what is pending begins.
    due: Option<Nanos>,
    /// How late the next deadline is noticed.
    oversleep_ns: u64,
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

    pub(super) fn schedule(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        self.agenda.push(Reverse((at, self.scheduled, event)));
    }

    /// The next poll has something to say about this connection.
    pub(super) fn report(&mut self, link: u32) {
        self.pending.insert(link);
        self.expect_turn();
    }

    pub(super) fn expect_turn(&mut self) {
        if self.due.is_none() {
            let delay_us = self.rng.u64(..=self.plan.turn_delay_us_max);
            self.due = Some(Nanos(self.now.0 + delay_us * 1_000));
        }
    }

    pub(super) fn signal(&mut self) {
        self.signals += 1;
        self.expect_turn();
    }

    /// Whether the server has nothing to do at this instant.
    pub(super) fn is_quiet(&self) -> bool {
        self.due.is_none() && self.server.next_deadline().is_none_or(|at| at > self.now)
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

    /// The server does not run for a while: bytes arrive, deadlines pass, nothing happens.
    pub(super) fn stop_for(&mut self, span: Millis) {
        self.trace
            .say(self.now, format_args!("server stopped for {} ms", span.0));
        self.stopped_until = self.stopped_until.max(self.now.after(span));
        self.totals.stops += 1;
    }

    /// When the poll returns.
    fn wake(&self) -> Option<Nanos> {
        let deadline = self.server.next_deadline();
        let deadline = deadline.map(|at| Nanos(at.0.saturating_add(self.oversleep_ns)));
        let at = self.due.into_iter().chain(deadline).min()?;
        // A timer that never fires is no reason to wake.
        (at < Nanos::NEVER).then_some(at.max(self.stopped_until))
    }

    /// One turn, as the reactor does it, and everything that must hold after it.
    fn take_turn(&mut self) -> Result<(), String> {
        let now = self.now;
        let events = self.poll();
        self.trace.mix(&now.0.to_le_bytes());
        for event in &events {
            if let Ready::Conn(id, ready) = event
                && (ready.read_closed || ready.error)
            {
                self.server.hang_up(now, *id);
            }
        }
        for event in &events {
            match *event {
                Ready::Conn(id, ready) => {
                    if ready.readable || ready.read_closed || ready.error {
                        self.server.readable(&|| now, id);
                    }
                    if ready.writable {
                        self.server.writable(id);
                    }
                }
                Ready::Signal => self.hear_signal(),
            }
        }
        let accepted = self.accept();
        self.server.finish_turn(&|| now);
        self.turn += 1;
        self.totals.turns += 1;
        self.follow_interests();
        // Registering reports what has come before.
        for link in accepted? {
            if self.links[&link].peer.readiness().readable {
                self.report(link);
            }
        }
        self.oversleep_ns = if self.plan.whole_ms {
            0
        } else {
            self.rng.u64(..1_000_000)
        };
        self.observe()
    }

    /// What has happened since the last turn, in any order.
    fn poll(&mut self) -> Vec<Ready> {
        let mut events = Vec::new();
        for number in std::mem::take(&mut self.pending) {
            let Some(link) = self.links.get(&number) else {
                continue;
            };
            let Some(id) = link.id else { continue };
            let mut ready = link.peer.readiness();
            ready.writable &= link.watches_write;
            events.push(Ready::Conn(id, ready));
            if self.rng.u8(..100) < self.plan.echo_pct {
                // Said twice, or said of somebody who is gone: neither may matter.
                let stale = self.stale.pop_front().map(|id| {
                    let all = Readiness {
                        readable: true,
                        writable: true,
                        read_closed: true,
                        error: true,
                    };
                    Ready::Conn(id, all)
                });
                events.push(stale.unwrap_or(Ready::Conn(id, ready)));
            }
        }
        for _ in 0..std::mem::take(&mut self.signals) {
            events.push(Ready::Signal);
        }
        self.due = None;
        self.rng.shuffle(&mut events);
        events
    }

    fn accept(&mut self) -> Result<Vec<u32>, String> {
        let mut accepted = Vec::new();
        for (number, pipe) in std::mem::take(&mut self.backlog) {
            let limit = self.plan.settings.connections_max as usize;
            let has_room = limit == 0 || self.server.connections() < limit;
            let id = self.server.accept(self.now, pipe);
            if id.is_some() != has_room {
                return Err(format!("accepted {id:?} with room {has_room}"));
            }
            let link = self.links.get_mut(&number).expect("in the backlog");
            link.id = id;
            match id {
                Some(id) => {
                    self.by_serial.insert(id.serial, number);
                    accepted.push(number);
                }
                None => self.totals.refused += 1,
            }
        }
        Ok(accepted)
    }

    fn hear_signal(&mut self) {
        self.trace
            .say(self.now, format_args!("server told to stop"));
        if self.server.is_draining() {
            self.is_killed = true;
            return self.server.close_all(self.now);
        }
        self.backlog.clear(); // the listeners are gone, and with them who waited there
        self.draining = Some((self.now, self.turn + 1));
        self.server.shutdown(self.now);
    }

    /// Where the server wants to hear of room to write, and there is some, it is told at once.
    fn follow_interests(&mut self) {
        let mut changed = Vec::new();
        self.server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            let number = self.by_serial[&id.serial];
            if let Some(link) = self.links.get_mut(&number) {
                link.watches_write = wants_write;
                let ready = link.peer.readiness();
                if wants_write && ready.writable || ready.readable {
                    self.report(number);
                }
            }
        }
    }
}
