//! Time, processes and what goes wrong with them, all from one seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use fastrand::Rng;
use latch_sim::etcd::Model;
use latchd::base::Nanos;
use latchd::cluster::LeaderKey;
use latchd::cluster::role::Role;
use latchd::etcd::{Answer, Ask, Etcd, Trouble, Watched};
use latchd::store::etcd::{Bell, Keys, Position, load};

use crate::cluster_sim::clients::Clients;
use crate::cluster_sim::etcd_side::{Asker, Back, Cut, EtcdSide, is_append};
use crate::cluster_sim::happened::Happened;
use crate::cluster_sim::node::{Came, Node};
use crate::cluster_sim::plan::{Blow, Break, Plan};
use crate::cluster_sim::tasks::{Gets, Hub, MachineClock, Wants};

pub(crate) const MS: u64 = 1_000_000;
const NODES: usize = 3;

/// So many turns may follow each other at one instant.
const TURNS_MAX: usize = 200;

/// What a thread waits for.
enum Waiting {
    /// Its first turn.
    Birth,
    Back,
    Watch(u64),
    Bell(Arc<Bell>, u64),
}

struct Task {
    node: usize,
    name: &'static str,
    gets: Sender<Gets>,
    waiting: Waiting,
    /// When it waits no longer, by the clock of its machine.
    until: Nanos,
    call: u64,
    /// What has arrived for it.
    back: Option<Back>,
    /// What it asks, if that is a lease or an entry.
    asks: Option<(Ask, Nanos)>,
}

/// What goes wrong with a process.
#[derive(Clone, Copy, Default)]
struct Trial {
    stopped_until: u64,
    /// It was stopped in the middle of a turn, and its clock is there already.
    in_turn_until: u64,
    /// It is gone until then.
    dead_until: u64,
    is_dead: bool,
}

pub(crate) struct World {
    rng: Rng,
    now: u64,
    clock: Arc<AtomicU64>,
    plan: Plan,
    etcd: EtcdSide,
    hub: Arc<Hub>,
    wanted: Receiver<(usize, Wants)>,
    tasks: BTreeMap<usize, Task>,
    nodes: Vec<Node>,
    trials: Vec<Trial>,
    clients: Clients,
    trouble_at: u64,
    backup: Option<Model>,
    /// What somebody had with this record.
    pictures: BTreeMap<u64, String>,
    happened: Happened,
    /// When the leader was hit, and in which epoch.
    hit: Option<(u64, u64)>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::with_seed(seed);
        let clock = crate::cluster_sim::node::world_clock();
        let (hub, wanted) = Hub::new();
        let most = plan.rate_ppm_max;
        let node = |index| {
            let machine = Arc::new(MachineClock::new(&clock, rng.i64(-most..=most)));
            Node::new(index, 1, plan, &hub, &machine)
        };
        let nodes: Vec<Node> = (0..NODES).map(node).collect();
        Self {
            rng,
            now: 0,
            etcd: EtcdSide::new(plan, NODES, seed),
            clock,
            plan,
            hub,
            wanted,
            tasks: BTreeMap::new(),
            trials: vec![Trial::default(); NODES],
            nodes,
            clients: Clients::new(plan),
            trouble_at: 0,
            backup: None,
            pictures: BTreeMap::new(),
            happened: Happened::default(),
            hit: None,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.now < self.plan.ends {
            self.trouble();
            self.strike();
            self.settle();
            let next = self.next_time().max(self.now + 1);
            self.now = next.min(self.plan.ends);
            self.clock.store(self.now, Ordering::Relaxed);
        }
    }

    /// When the next thing happens.
    fn next_time(&self) -> u64 {
        let mut next = self.clients.next_time();
        next = next.min(self.etcd.next_time().unwrap_or(u64::MAX));
        if self.plan.has_faults(self.now) {
            next = next.min(self.trouble_at);
        }
        if let Some([backup, restore]) = self.plan.restore {
            let after = |at: u64| if at > self.now { at } else { u64::MAX };
            next = next.min(after(backup)).min(after(restore));
        }
        if let Some((_, at)) = self.plan.blow.filter(|_| self.hit.is_none()) {
            next = next.min(at);
        }
        for (node, trial) in self.nodes.iter().zip(&self.trials) {
            if trial.is_dead {
                next = next.min(trial.dead_until);
            } else if trial.stopped_until > self.now {
                next = next.min(trial.stopped_until);
            } else if let Some(at) = node.deadline() {
                next = next.min(node.clock.in_world(at));
            }
        }
        for task in self.tasks.values() {
            if self.is_up(task.node) {
                let clock = &self.nodes[task.node].clock;
                next = next.min(clock.in_world(task.until));
            }
        }
        next
    }

    fn is_up(&self, node: usize) -> bool {
        let trial = &self.trials[node];
        !trial.is_dead && trial.stopped_until <= self.now
    }

    /// Everything that happens at this instant.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let mut has_changed = self.deliver();
            has_changed |= self.run_tasks();
            let up: Vec<bool> = (0..NODES).map(|node| self.is_up(node)).collect();
            self.clients
                .act(self.now, &mut self.nodes, &up, &mut self.rng);
            has_changed |= self.run_nodes();
            self.clients.listen(self.now, &mut self.rng);
            self.check_speakers();
            if !has_changed {
                return;
            }
        }
        panic!(
            "at {} ms there is no end to what happens at one instant",
            self.now / MS
        );
    }

    fn deliver(&mut self) -> bool {
        let arrived = self.etcd.step(self.now);
        let has_arrived = !arrived.is_empty();
        for (asker, back) in arrived {
            if let Some(task) = self.tasks.get_mut(&asker.task)
                && task.call == asker.call
                && task.back.is_none()
            {
                task.back = Some(back);
            }
        }
        has_arrived
    }

    fn run_tasks(&mut self) -> bool {
        self.meet();
        let mut has_run = false;
        let ids: Vec<usize> = self.tasks.keys().copied().collect();
        for id in ids {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            let trial = &self.trials[task.node];
            if trial.is_dead || trial.stopped_until > self.now {
                continue;
            }
            let clock = &self.nodes[task.node].clock;
            let is_late = clock.now() >= task.until;
            let gets = match &task.waiting {
                Waiting::Birth => Some(Gets::Go),
                Waiting::Back => match task.back.take() {
                    Some(Back::Answer(answer)) => Some(Gets::Answer(answer)),
                    Some(Back::Watches(begun)) => Some(Gets::Watches(begun)),
                    None if is_late => Some(late(task, self.plan)),
                    None => None,
                },
                Waiting::Watch(watch) => match self.etcd.hear(*watch) {
                    Some(heard) => Some(Gets::Heard(heard)),
                    None => is_late.then_some(Gets::Heard(Ok(Watched::Nothing))),
                },
                Waiting::Bell(bell, heard) => {
                    (bell.heard() != *heard || is_late).then_some(Gets::Go)
                }
            };
            if let Some(gets) = gets {
                has_run = true;
                self.note_renewal(id, &gets);
                self.go_on(id, gets);
            }
        }
        has_run
    }

    /// A leader that counts its lease from the answer, as it must not.
    fn note_renewal(&self, id: usize, gets: &Gets) {
        let task = &self.tasks[&id];
        if self.plan.breaks == Break::CountsFromAnswer
            && let Some((Ask::KeepAlive { lease }, _)) = &task.asks
            && let Gets::Answer(Ok(Answer::KeptAlive { ttl_s })) = gets
        {
            let tenancy = &self.nodes[task.node].member.tenancy;
            tenancy.change(|standing, now| standing.kept_alive(*lease, now, now, *ttl_s));
        }
    }

    /// Threads that have come to be.
    fn meet(&mut self) {
        for born in std::mem::take(&mut *self.hub.born.lock().unwrap()) {
            let task = Task {
                node: born.node,
                name: born.name,
                gets: born.gets,
                waiting: Waiting::Birth,
                until: Nanos::NEVER,
                call: 0,
                back: None,
                asks: None,
            };
            self.tasks.insert(born.id, task);
        }
    }

    /// Lets a thread run until it wants something.
    fn go_on(&mut self, id: usize, gets: Gets) {
        let task = &self.tasks[&id];
        task.gets.send(gets).expect("it waits");
        let (who, wants) = self.wanted.recv().expect("it wants something");
        assert_eq!(who, id, "two threads at one time");
        self.meet();
        let now = self.now;
        let task = self.tasks.get_mut(&id).expect("it was there");
        let node = task.node;
        let own = self.nodes[node].clock.now();
        let after = |within: Duration| Nanos(own.0 + within.as_nanos() as u64);
        task.call += 1;
        (task.back, task.asks) = (None, None);
        let asker = Asker {
            node,
            task: id,
            call: task.call,
        };
        match wants {
            Wants::Call { ask, within } => {
                (task.waiting, task.until) = (Waiting::Back, after(within));
                task.asks = Some((ask.clone(), own));
                self.etcd.ask(now, asker, ask);
            }
            Wants::BeginWatch {
                key,
                end,
                from,
                within,
            } => {
                (task.waiting, task.until) = (Waiting::Back, after(within));
                self.etcd.begin_watch(now, asker, key, end, from);
            }
            Wants::Hear { watch, within } => {
                (task.waiting, task.until) = (Waiting::Watch(watch), after(within));
            }
            Wants::Ring { bell, heard, most } => {
                (task.waiting, task.until) = (Waiting::Bell(bell, heard), after(most));
            }
            Wants::Over(why) => {
                let name = task.name;
                self.tasks.remove(&id);
                if let Some(why) = why {
                    panic!("at {} ms {name} of node {node} panicked: {why}", now / MS);
                }
                if name == "stop" {
                    let back_after = self.rng.u64(100..3_000) * MS;
                    self.kill(node, back_after);
                }
            }
        }
    }

    fn run_nodes(&mut self) -> bool {
        let mut has_run = false;
        for index in 0..NODES {
            if self.trials[index].is_dead && self.trials[index].dead_until <= self.now {
                self.revive(index);
                has_run = true;
            }
            if !self.is_up(index) || !self.nodes[index].is_due() {
                continue;
            }
            has_run = true;
            let now = self.now;
            let (one_in, looks_most) = self.plan.stops_in_turn();
            let stops_now = self.plan.has_faults(now) && self.rng.u32(..one_in) == 0;
            let node = &mut self.nodes[index];
            let looks = self.rng.u64(1..=looks_most);
            if stops_now {
                let stop_ns = self.rng.u64(100..10_000) * MS;
                node.clock.stop_at_look(looks, stop_ns);
            }
            let epoch = node.epoch;
            let came = node.turn(0);
            let ahead = node.clock.take_ahead();
            self.note_role(index, epoch);
            if ahead > 0 {
                self.happened.stops_in_turn += 1;
                let trial = &mut self.trials[index];
                trial.in_turn_until = now + ahead;
                trial.stopped_until = trial.stopped_until.max(now + ahead);
                let told = self.clients.deafen(index, now + ahead);
                let is_long = ahead > (self.plan.ttl_s + 1) * 1_100 * MS;
                let is_whole = self.plan.breaks != Break::SpeaksLate;
                assert!(
                    !is_long || !is_whole || told as u64 <= looks,
                    "node {index} speaks after it was stopped in the middle of a turn"
                );
            }
            match came {
                Came::On | Came::Ending => {}
                Came::Failed(why) => self.fail(index, &why),
            }
        }
        has_run
    }

    /// At no time two may speak. (After a backup was restored the one that led before may, until its lease is
    /// over.)
    fn check_speakers(&self) {
        let speaks = |node: &&Node| {
            let is_up = self.is_up(node.index) && node.server.is_some();
            is_up && node.epoch != 0 && node.member.tenancy.may_speak()
        };
        let speakers = self.nodes.iter().filter(speaks);
        let speakers: Vec<_> = speakers.map(|it| (it.index, it.epoch)).collect();
        assert!(
            speakers.len() < 2 || self.now < self.clients.in_doubt_until,
            "at {} ms two may speak (node, epoch): {speakers:?}",
            self.now / MS
        );
    }

    /// A process ends by itself. That is right only if etcd has gone back behind what it has.
    fn fail(&mut self, index: usize, why: &str) {
        assert!(
            self.nodes[index].is_outdated(),
            "at {} ms node {index} ends: {why}",
            self.now / MS
        );
        self.happened.failures += 1;
        self.kill(index, 500 * MS);
    }

    fn note_role(&mut self, index: usize, epoch_before: u64) {
        let node = &mut self.nodes[index];
        if node.epoch != epoch_before {
            match node.epoch {
                0 => self.happened.fenced += 1,
                _ => self.happened.tenures += 1,
            }
            // A leader that goes has told everything that it has granted.
            if node.epoch != 0
                && let Some((Blow::Resign | Blow::Move, _)) = self.plan.blow
            {
                let unknown = node.held().into_iter().find(|it| !self.clients.know(*it));
                assert_eq!(
                    unknown, None,
                    "node {index} begins with what nobody knows of"
                );
            }
        }
        let is_paused = node.epoch != 0 && node.role() == Role::Paused;
        self.happened.pauses += u64::from(is_paused && !node.was_paused);
        node.was_paused = is_paused;
        // Who has come to the same record has the same.
        if let Some((number, picture)) = node.new_state() {
            let first = self.pictures.entry(number);
            let first = first.or_insert_with(|| picture.clone());
            assert_eq!(*first, picture, "node {index} with record {number}");
            self.happened.compared += 1;
        }
    }

    /// The process is gone, with all its threads; it comes back after this long.
    fn kill(&mut self, index: usize, back_after: u64) {
        self.meet();
        self.take_figures(index);
        let ids = self.tasks.iter().filter(|(_, task)| task.node == index);
        let ids: Vec<usize> = ids.map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(task) = self.tasks.remove(&id) {
                task.gets.send(Gets::Die).expect("it waits");
                let (who, wants) = self.wanted.recv().expect("it ends");
                assert_eq!(who, id, "two threads at one time");
                assert!(matches!(wants, Wants::Over(_)), "it does not end");
            }
        }
        let node = &mut self.nodes[index];
        (node.server, node.epoch) = (None, 0);
        self.etcd.forget_node(index);
        self.trials[index] = Trial {
            is_dead: true,
            dead_until: self.now + back_after,
            ..Trial::default()
        };
    }

    fn revive(&mut self, index: usize) {
        self.trials[index] = Trial::default();
        let Node { boots, clock, .. } = &self.nodes[index];
        let (boots, clock) = (boots + 1, Arc::clone(clock));
        self.nodes[index] = Node::new(index, boots, self.plan, &self.hub, &clock);
    }

    fn take_figures(&mut self, index: usize) {
        let figures = &self.nodes[index].member.figures;
        self.happened.loads += self.nodes[index].loads();
        self.happened.doubts += figures.doubts.swap(0, Ordering::Relaxed);
        self.happened.snapshots += figures.snapshots.swap(0, Ordering::Relaxed);
    }

    /// What goes wrong by itself.
    fn trouble(&mut self) {
        let now = self.now;
        if let Some([backup, restore]) = self.plan.restore {
            if now >= backup && self.backup.is_none() && self.happened.restores == 0 {
                self.backup = Some(self.etcd.model.clone());
            }
            if now >= restore
                && let Some(backup) = self.backup.take()
            {
                self.happened.restores += 1;
                let epoch = read(&mut backup.clone(), now).epoch;
                self.etcd.restore(now, backup);
                self.pictures.clear();
                for node in &mut self.nodes {
                    node.outdate();
                }
                // Its old leader may speak until its lease is over; and leases of clients.
                self.clients.doubt(now + 12_000 * MS, epoch);
            }
        }
        if self.plan.blow.is_some() {
            return;
        }
        if !self.plan.has_faults(now) {
            for trial in &mut self.trials {
                trial.stopped_until = trial.stopped_until.min(now).max(trial.in_turn_until);
                trial.dead_until = trial.dead_until.min(now + 100 * MS);
            }
            return;
        }
        if now < self.trouble_at {
            return;
        }
        let mut rng = self.rng.fork();
        self.trouble_at = now + rng.u64(100..3_000) * MS;
        // It is the leader that is worth it.
        let leader = self.nodes.iter().position(|it| it.epoch != 0);
        let anybody = rng.usize(..NODES);
        let index = leader.filter(|_| rng.u8(..3) > 0).unwrap_or(anybody);
        let until = now + rng.u64(300..9_000) * MS;
        if self.plan.is_far && rng.bool() {
            // It is stopped while an answer is on its way, and alone when it goes on.
            let from = now + rng.u64(600..3_500) * MS;
            let until = from + rng.u64(6_000..9_000) * MS;
            let trial = &mut self.trials[index];
            trial.stopped_until = trial.stopped_until.max(from);
            self.etcd.cuts[index] = [Cut { from, until }; 2];
            self.trouble_at = until;
            self.happened.stops += 1;
            return;
        }
        match rng.u32(..24) {
            0 if !self.trials[index].is_dead => {
                self.happened.kills += 1;
                let back_after = rng.u64(100..6_000) * MS;
                self.kill(index, back_after);
            }
            1..=2 if self.is_up(index) && self.nodes[index].server.is_some() => {
                self.happened.resignations += 1;
                let came = self.nodes[index].turn(1);
                if let Came::Failed(why) = came {
                    self.fail(index, &why);
                }
            }
            3..=6 => {
                let trial = &mut self.trials[index];
                let from = now + rng.u64(100..6_000) * MS;
                trial.stopped_until = trial.stopped_until.max(from);
                self.happened.stops += 1;
                if rng.bool() {
                    // And when it goes on it is alone.
                    let until = from + rng.u64(..9_000) * MS;
                    self.etcd.cuts[index] = [Cut { from, until }; 2];
                }
            }
            7..=10 => {
                let way = rng.usize(..2);
                self.etcd.cuts[index][way] = Cut { from: now, until };
                self.happened.cuts += 1;
            }
            11..=14 => {
                self.etcd.cuts[index] = [Cut { from: now, until }; 2];
                self.happened.cuts += 1;
            }
            15..=16 if self.etcd.away_until < now => {
                self.etcd.away_until = now + rng.u64(500..4_000) * MS;
                self.happened.elections += 1;
            }
            17..=18 => self.etcd.slow_until = until,
            19..=21 => self.etcd.far_until[index] = until,
            22 => self.etcd.compact(now),
            _ => {}
        }
    }

    /// Something happens to the leader when it is time, and to nobody else.
    fn strike(&mut self) {
        let now = self.now;
        if let Some((Blow::KillThenEndCandidate, _)) = self.plan.blow
            && self.hit.is_some()
        {
            return self.strike_candidate();
        }
        let Some((blow, at)) = self.plan.blow.filter(|_| self.hit.is_none()) else {
            return;
        };
        if now < at {
            return;
        }
        let leader = self.nodes.iter().position(|it| it.epoch != 0);
        let index = leader.expect("one leads");
        self.hit = Some((now, self.nodes[index].epoch));
        // etcd looks only now and then which leases are over.
        self.etcd.lag = self.rng.u64(..500) * MS;
        let for_long = now + 10_000 * MS;
        match blow {
            Blow::Kill | Blow::KillThenEndCandidate => self.kill(index, for_long - now),
            Blow::Stop => self.trials[index].stopped_until = for_long,
            Blow::Cut(ways) => {
                // Where nothing comes back no new connection can be made, so soon nothing arrives either.
                let from = ways.map(|is_cut| if is_cut { now } else { now + 500 * MS });
                let until = for_long;
                self.etcd.cuts[index] = from.map(|from| Cut { from, until });
            }
            Blow::Resign => assert_eq!(self.nodes[index].turn(1), Came::On),
            Blow::Move => {
                self.nodes[index].resigns = true;
                assert_eq!(self.nodes[index].turn(0), Came::On);
            }
        }
    }

    /// Sends SIGTERM to the first candidate that has the leader's key and does not lead yet.
    fn strike_candidate(&mut self) {
        let key = self.etcd.model.value(&Keys::new("sim", 0).leader());
        let Some(key) = key.and_then(|kv| LeaderKey::decode(&kv.value)) else {
            return;
        };
        let index = (key.attempt[0] >> 32) as usize;
        let is_candidate = self.nodes[index].role() == Role::Candidate;
        if is_candidate && self.happened.resignations == 0 {
            self.happened.resignations += 1;
            self.nodes[index].turn(1);
        }
    }

    /// What is true at the end.
    pub(crate) fn finish(mut self) -> Happened {
        let leaders = self.nodes.iter().filter(|it| it.role() == Role::Leader);
        assert_eq!(leaders.count(), 1, "after everything is in order again");
        let calm = self.plan.faults_until.max(self.plan.ends / 2);
        self.clients.check_served(calm);
        let position = read(&mut self.etcd.model, self.now);
        for node in &self.nodes {
            if let Some((number, _)) = node.state() {
                // Entries are on their way for longer where etcd is far.
                let most = if self.plan.one_way == 0 { 5 } else { 50 };
                let is_behind = position.number.abs_diff(number) > most;
                assert!(
                    !is_behind,
                    "node {} has {number} of {position:?}",
                    node.index
                );
            }
        }
        for index in 0..NODES {
            self.take_figures(index);
        }
        if let Some((at, epoch)) = self.hit {
            let served = self.clients.served_in(epoch + 1);
            let served = served.expect("anybody is served after that");
            self.happened.served_after_ms = (served - at) / MS;
        }
        self.happened.told = self.clients.told;
        self.happened.seen = self.etcd.seen;
        self.happened
    }
}

/// The threads end with the world, also if it has gone wrong.
impl Drop for World {
    fn drop(&mut self) {
        for task in self.tasks.values() {
            let _ = task.gets.send(Gets::Die);
        }
        for born in std::mem::take(&mut *self.hub.born.lock().unwrap()) {
            let _ = born.gets.send(Gets::Die);
        }
    }
}

/// Nothing was heard in time.
fn late(task: &Task, plan: Plan) -> Gets {
    match &task.asks {
        Some((ask, _)) if plan.breaks == Break::TakesSilenceForYes && is_append(ask) => {
            Gets::Answer(Ok(Answer::Txn {
                revision: 0,
                succeeded: true,
                got: Vec::new(),
            }))
        }
        Some(_) => Gets::Answer(Err(Trouble::Unanswered("late".to_owned()))),
        None => Gets::Watches(Err(Trouble::Unanswered("late".to_owned()))),
    }
}

/// How far the log goes that can be read there.
fn read(model: &mut Model, now: u64) -> Position {
    let keys = Keys::new("sim", 0);
    let mut reader = Reader(model, Nanos(now));
    let position = load(&mut reader, &keys, Duration::ZERO, &mut |_| {});
    position.unwrap().unwrap()
}

/// Reads the model as a member reads etcd.
struct Reader<'a>(&'a mut Model, Nanos);

impl Etcd for Reader<'_> {
    fn call(&mut self, ask: &Ask, _: Duration) -> Result<Answer, Trouble> {
        self.0.apply(self.1, ask)
    }
}
