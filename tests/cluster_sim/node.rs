//! One member: the shipped threads, state machines, lock table and server, in a process that can be stopped
//! and killed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::cluster::role::{Role, Terms};
use latchd::cluster::{Change, Follower, Member, Options, Scene, Seat, Stage};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::Pipe;
use latchd::server::{Event, Server, Settings};
use latchd::shard::Shard;
use latchd::store::Store;
use latchd::store::etcd::Place;

use crate::plan::{Break, Plan};
use crate::tasks::{Hub, MachineClock, SimPlace};

/// How much news waits for the reactor at most. Here nobody may wait for it.
const NEWS_MAX: usize = 1 << 12;

/// What has become of a process in its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// It goes on.
    On,
    /// It is ending in order; its last thread is at it.
    Ending,
    /// It has ended by itself.
    Failed(String),
}

/// A process.
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) boots: u64,
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) place: Arc<SimPlace>,
    pub(crate) member: Arc<Member>,
    stage: Stage,
    pub(crate) server: Option<Server<Pipe, Seat>>,
    /// Reported by the system, and not heard yet.
    pub(crate) events: Vec<Event>,
    /// Who has connected since this server stands there.
    pub(crate) conns: Vec<ConnId>,
    /// The epoch in which it serves; 0 if it does not.
    pub(crate) epoch: u64,
    /// The log's number of the lock table's record 0.
    base: u64,
    plan: Plan,
    /// With this load it has what etcd had before a backup was restored.
    stale: Option<u64>,
    pub(crate) was_paused: bool,
    /// The highest fence that this process has seen reserved or given out.
    fences_seen: u64,
}

impl Node {
    pub(crate) fn new(
        index: usize,
        boots: u64,
        plan: Plan,
        hub: &Arc<Hub>,
        clock: &Arc<MachineClock>,
    ) -> Self {
        let place = Arc::new(SimPlace {
            hub: Arc::clone(hub),
            node: index,
            clock: Arc::clone(clock),
            woken: AtomicBool::new(true),
            speaks_late: plan.breaks == Break::SpeaksLate,
            in_turn: AtomicBool::new(false),
        });
        let options = Options {
            cluster: "sim".to_owned(),
            shard: Shard::WHOLE,
            terms: Terms {
                ttl_s: plan.ttl_s,
                margin: Millis(plan.margin_ms()),
            },
            advertise: format!("node{index}:6388"),
            advertise_http: String::new(),
            batch_bytes: 1 << 10,
            trim_bytes: plan.trim_bytes,
            quota_bytes: plan.quota_bytes,
            compacts: true,
            nonce: (index as u64) << 32 | boots,
        };
        let member = Member::new(options, Arc::clone(&place) as Arc<dyn Place>);
        let (sender, news) = sync_channel(NEWS_MAX);
        let stage = Stage::new(&member, news, scene(index, boots, plan, clock));
        Follower::start(&member, sender).unwrap();
        let server = stage.standby();
        Self {
            index,
            boots,
            clock: Arc::clone(clock),
            place,
            member,
            stage,
            server: Some(server),
            events: Vec::new(),
            conns: Vec::new(),
            epoch: 0,
            base: 0,
            plan,
            stale: None,
            was_paused: false,
            fences_seen: 0,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.member.tenancy.role()
    }

    /// When its server has something to do, by its own clock.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.server.as_ref()?.next_deadline()
    }

    pub(crate) fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.server.is_some()
            && (self.place.woken.load(Ordering::Relaxed)
                || !self.events.is_empty()
                || self.deadline().is_some_and(|at| at <= now))
    }

    /// One turn of the reactor.
    pub(crate) fn turn(&mut self, stops: u32) -> Came {
        let Some(server) = &mut self.server else {
            return Came::Ending;
        };
        self.place.woken.store(false, Ordering::Relaxed);
        if self.plan.breaks == Break::NoProof {
            let prove = |standing: &mut latchd::cluster::role::Standing, now| {
                standing.confirmed(now, now);
            };
            self.member.tenancy.change(prove);
        }
        let mut events = std::mem::take(&mut self.events);
        match self.stage.between(server, stops) {
            Change::Serve => {}
            Change::Leads { .. } => {
                self.epoch = self.member.figures.epoch.load(Ordering::Relaxed);
                self.base = self.member.figures.number.load(Ordering::Relaxed);
                let ceiling = server.engine().fence_ceiling();
                assert!(
                    ceiling >= self.fences_seen,
                    "node {} leads with fences from {ceiling} on, and has seen {}",
                    self.index,
                    self.fences_seen
                );
                events.clear();
                self.conns.clear();
            }
            Change::Follows => {
                self.epoch = 0;
                events.clear();
                self.conns.clear();
            }
            Change::End => {
                if self.plan.breaks == Break::RunsDisconnects {
                    let now = self.clock.now();
                    for id in std::mem::take(&mut self.conns) {
                        server.lose(now, id);
                    }
                    server.turn(&|| self.clock.now(), [].into_iter(), 0);
                }
                return self.end();
            }
            Change::Failed(why) | Change::Unfit(why) => return Came::Failed(why),
        }
        self.place.in_turn.store(true, Ordering::Relaxed);
        server.turn(&|| self.clock.look(), events.iter().copied(), 0);
        self.place.in_turn.store(false, Ordering::Relaxed);
        self.note_fences();
        let failure = self.server.as_ref().and_then(|it| it.failure());
        match failure {
            Some(why) => Came::Failed(why.to_owned()),
            None => Came::On,
        }
    }

    fn note_fences(&mut self) {
        let standby = self.stage.replica().engine().fence_ceiling();
        let leader = self.server.as_ref().filter(|_| self.epoch != 0);
        let leader = leader.map_or(0, |it| it.engine().fence_ceiling());
        self.fences_seen = self.fences_seen.max(standby).max(leader);
    }

    /// Told to stop: all connections are closed, and the store gives back what it has.
    fn end(&mut self) -> Came {
        self.epoch = 0;
        let server = self.server.take().expect("it served");
        let mut seat = server.into_store();
        let stop = move || {
            let _ = seat.stop();
        };
        self.place.spawn("stop", Box::new(stop)).unwrap();
        Came::Ending
    }

    /// A backup was restored: what it has now, etcd does not have.
    pub(crate) fn outdate(&mut self) {
        self.stale = Some(self.loads());
    }

    /// How often it has loaded everything.
    pub(crate) fn loads(&self) -> u64 {
        self.stage.replica().loads()
    }

    /// What it has, and which record it had come to; of a leader only when nothing is on its way.
    pub(crate) fn state(&self) -> Option<(u64, String)> {
        if self.stale == Some(self.loads()) {
            return None;
        }
        match &self.server {
            Some(server) if self.epoch != 0 => {
                let number = self.base + server.engine().record_count();
                let logged = self.member.figures.number.load(Ordering::Relaxed);
                let picture = || picture(server.engine(), self.clock.now());
                (number == logged).then(|| (number, picture()))
            }
            Some(_) => {
                let replica = self.stage.replica();
                let number = replica.number();
                (number > 0).then(|| (number, picture(replica.engine(), self.clock.now())))
            }
            None => None,
        }
    }
}

/// What a lock table holds, whoever has it.
fn picture(engine: &Engine, now: Nanos) -> String {
    let view = engine.view(now);
    let keys = view.slots_from(0).filter_map(|(_, key)| key);
    let held = keys.flat_map(|key| {
        let holders = key.holders();
        holders.map(move |it| (key.key().to_vec(), it.fence, it.token.salt, it.hold))
    });
    let mut held: Vec<_> = held.collect();
    held.sort();
    let counters = view.counters().map(|it| (it.key.to_vec(), it.what));
    let mut counters: Vec<_> = counters.collect();
    counters.sort();
    let lists = view.lists().map(|it| (it.key.to_vec(), it.what.0));
    let mut lists: Vec<_> = lists.collect();
    lists.sort();
    format!(
        "{held:?} {counters:?} {lists:?} {}",
        engine.fences_reserved()
    )
}

fn scene(index: usize, boots: u64, plan: Plan, clock: &Arc<MachineClock>) -> Scene {
    let tables = Rc::new(Cell::new(0));
    let (fences_of, lock_clock, wall) = (Arc::clone(clock), Arc::clone(clock), Arc::clone(clock));
    let origin = move |floor: u64| {
        tables.set(tables.get() + 1);
        let by_clock = match plan.fences_by_clock {
            true => fences_of.now().0 / 1_000 * 9,
            false => 0,
        };
        Origin {
            fence: match plan.breaks {
                Break::ForgetsFences => 0,
                _ => floor.max(by_clock),
            },
            seed: [1, 2],
            salt_key: [index as u64, boots, tables.get(), 6],
        }
    };
    Scene {
        rules: Rules {
            durable: true,
            ..Rules::default()
        },
        settings: Settings::default(),
        origin: Rc::new(origin),
        clock: Box::new(move || lock_clock.now()),
        wall_us: Arc::new(move || wall.now().0 / 1_000),
    }
}

/// The time of the world, for the clocks of all machines.
pub(crate) fn world_clock() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}
