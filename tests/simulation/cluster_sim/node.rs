//! One member: the shipped threads, state machines, lock table and server, in a process that can be stopped
//! and killed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use latch_sim::pipe::Pipe;
use latchd::base::{ConnId, Millis, Nanos};
use latchd::cluster::role::{Role, Terms};
use latchd::cluster::{Change, Follower, Member, Options, Scene, Seat, Stage};
use latchd::engine::types::{Effects, Input, Record};
use latchd::engine::{Engine, Origin, Rules};
use latchd::server::{Event, Server, Settings};
use latchd::shard::Shard;
use latchd::store::Store;
use latchd::store::etcd::Place;

use crate::cluster_sim::plan::{Break, Plan};
use crate::cluster_sim::tasks::{Hub, MachineClock, SimPlace};

/// How much news waits for the reactor at most. Here nobody may wait for it.
const NEWS_MAX: usize = 1 << 12;

/// After so many turns it is shown again what it has, although it has come to nothing new.
const TURNS_SHOWN: u32 = 8;

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
    /// With its next turn it is told to let another one lead.
    pub(crate) resigns: bool,
    /// Which record it had come to when it was shown last what it has, and how many turns ago.
    shown: (u64, u32),
    /// The highest fence that this process has seen reserved or given out.
    fences_seen: u64,
    /// It is about to go: it has no turn, lets nobody in, and is to be looked at again by then.
    leaves_by: Option<Nanos>,
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
            breaks: plan.breaks,
            turn_began: AtomicU64::new(0),
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
            resigns: false,
            shown: (0, 0),
            fences_seen: 0,
            leaves_by: None,
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves_by.is_some()
    }

    pub(crate) fn role(&self) -> Role {
        self.member.tenancy.role()
    }

    /// When its server has something to do, by its own clock.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let server = self.server.as_ref()?;
        self.leaves_by.or_else(|| server.next_deadline())
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
        self.place.woken.store(false, Ordering::Relaxed);
        if self.plan.breaks == Break::NoProof {
            let prove = |standing: &mut latchd::cluster::role::Standing, now| {
                standing.confirmed(now, now);
            };
            self.member.tenancy.change(prove);
        }
        self.break_standby();
        let mut events = std::mem::take(&mut self.events);
        let Some(server) = &mut self.server else {
            return Came::Ending;
        };
        if self.plan.breaks == Break::RunsDisconnects && stops > 0 {
            let now = self.clock.now();
            for id in std::mem::take(&mut self.conns) {
                server.lose(now, id);
            }
            server.turn(&|| self.clock.now(), [].into_iter(), 0);
        }
        self.leaves_by = None;
        let change = match std::mem::take(&mut self.resigns) {
            true => self.stage.resign(server),
            false => self.stage.between(server, stops),
        };
        match change {
            Change::Serve => {}
            Change::Leaves(most) => {
                let ns = most.as_nanos() as u64;
                self.leaves_by = Some(Nanos(self.clock.now().0 + ns));
                return Came::On;
            }
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
            Change::End => return self.end(),
            Change::Failed(why) | Change::Unfit(why) => return Came::Failed(why),
        }
        let now = self.clock.now();
        self.place.turn_began.store(now.0, Ordering::Relaxed);
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

    /// Does with the table of a standby what must not be done.
    fn break_standby(&mut self) {
        let now = self.clock.now();
        let replica = self.stage.replica_to_break();
        match self.plan.breaks {
            Break::SkipsRecord => replica.leave_out(40),
            Break::StandbyExpires if replica.number() > 0 => {
                let engine = replica.engine_to_break();
                engine.apply(now, Input::Time(u64::MAX), &mut Effects::new());
            }
            _ => {}
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

    /// The fences of all that is held here.
    pub(crate) fn held(&self) -> Vec<u64> {
        let image = self.server.as_ref().map(|it| it.engine().image());
        let fence = |it: &Record| match it {
            Record::Granted { token, .. } => Some(token.fence.0),
            _ => None,
        };
        image.iter().flatten().filter_map(fence).collect()
    }

    /// A backup was restored: what it has now, etcd does not have.
    pub(crate) fn outdate(&mut self) {
        self.stale = Some(self.loads());
    }

    /// It has not loaded anything since.
    pub(crate) fn is_outdated(&self) -> bool {
        self.stale == Some(self.loads())
    }

    /// How often it has loaded everything.
    pub(crate) fn loads(&self) -> u64 {
        self.stage.replica().loads()
    }

    /// The same, if it has come to another record since the last time, and now and then if it has not.
    pub(crate) fn new_state(&mut self) -> Option<(u64, String)> {
        let number = match &self.server {
            Some(server) if self.epoch != 0 => self.base + server.engine().record_count(),
            _ => self.stage.replica().number(),
        };
        let (shown, turns) = self.shown;
        let is_new = shown != number || turns == TURNS_SHOWN;
        self.shown = (number, if is_new { 0 } else { turns + 1 });
        is_new.then(|| self.state()).flatten()
    }

    /// What it has, and which record it had come to; of a leader only when nothing is on its way.
    pub(crate) fn state(&self) -> Option<(u64, String)> {
        if self.is_outdated() {
            return None;
        }
        match &self.server {
            Some(server) if self.epoch != 0 => {
                let number = self.base + server.engine().record_count();
                let logged = self.member.figures.number.load(Ordering::Relaxed);
                let picture = || picture(server.engine());
                (number == logged).then(|| (number, picture()))
            }
            Some(_) => {
                let replica = self.stage.replica();
                let number = replica.number();
                (number > 0).then(|| (number, picture(replica.engine())))
            }
            None => None,
        }
    }
}

/// What a lock table holds, whoever has it: values of lists in their order, all else sorted.
fn picture(engine: &Engine) -> String {
    let image = engine.image();
    let (pushed, others): (Vec<_>, Vec<_>) = image
        .into_iter()
        .partition(|it| matches!(it, Record::Pushed { .. }));
    let mut lists: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for it in &pushed {
        let key = it.key().map(|key| key.as_bytes().to_vec());
        let values = lists.entry(key.unwrap_or_default()).or_default();
        values.push(format!("{it:?}"));
    }
    let mut others: Vec<String> = others.iter().map(|it| format!("{it:?}")).collect();
    others.sort_unstable();
    format!("{others:?} {lists:?}")
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
