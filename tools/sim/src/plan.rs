//! What a seed draws: one plan out of many, each with its own mix of everything.
//!
//! Swarm testing: a feature that every run uses a little hides the bugs that show only when it is
//! used a lot, or not at all. So each plan leaves some actions out and prefers others. The plan
//! never decides when something happens; the simulation draws that, from the same seed.

use fastrand::Rng;

use super::clients::crowd::Scene;
use super::clients::request::EntryKind;
use super::range_plan::RangePlan;
use crate::pipe::Dialect;
use latchd::access::Access;
use latchd::base::Millis;
use latchd::engine::types::{Mode, Notes, Share};
use latchd::engine::{Rules, SearchLimits};
use latchd::server::{Door, HttpSettings, Settings};
use latchd::store::Durability;
use latchd::wire::answer::WireFence;

/// The secret of the servers that ask for one.
pub(super) const SECRET: &[u8] = b"s3cret";

/// What memory is bounded to, where it is: so little that clients fill it, for the server and for
/// each client.
const MEMORY_MAX: usize = 220 * 1024;
const MEMORY_MAX_EACH: usize = 4 * 1024;

/// What more there is where somebody speaks HTTP, which keeps a buffer for pages.
pub(super) const HTTP_MEMORY_MAX: usize = 128 * 1024;

/// Something that a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Acquire,
    Enqueue,
    Wait,
    /// With the right token.
    Release,
    Renew,
    /// With a token that is stale, somebody else's, for another key, or nobody's.
    ReleaseOddly,
    RenewOddly,
    /// With the token of something that was restored, and that nobody has claimed yet.
    Reclaim,
    /// `incr`, `decr`, `get`, `cset`.
    Counter,
    /// `kset`, `kget`, `kdel`, `kcas`.
    Value,
    Push,
    /// `lpop`, `rpop`, `blpop`, `brpop`, `llen`, `lrange`.
    Pop,
    /// `bwait`.
    Barrier,
    /// `listen`, `watch`, `observe`.
    Subscribe,
    Unsubscribe,
    Signal,
    /// A signal as long as a signal can be; only in loud plans.
    SignalLoud,
    /// Listens to those signals many times over, and may stop reading.
    ListenLoud(usize),
    /// `pos`, `who`, `stats`, `ping`.
    Inspect,
    /// `stats`, as part of a flood.
    Stats,
    Hello,
    /// A frame that is answered `error`.
    Nonsense,
    /// Something after which the server must close the connection.
    Fatal,
    /// Many frames in one go.
    Burst,
    /// The first part of a frame; the rest comes later, or never.
    BeginFrame,
    /// Send no more, read on.
    HalfClose,
    /// Send no more, read no more.
    Close,
    Reset,
    /// Read nothing for a while.
    Stall,
    Idle,
}

impl Action {
    /// Each action with its weight in an even mix.
    const ALL: [(Self, u32); 29] = [
        (Self::Acquire, 60),
        (Self::Enqueue, 16),
        (Self::Wait, 16),
        (Self::Release, 60),
        (Self::Renew, 8),
        (Self::ReleaseOddly, 6),
        (Self::RenewOddly, 5),
        (Self::Reclaim, 90),
        (Self::Counter, 16),
        (Self::Value, 24),
        (Self::Push, 24),
        (Self::Pop, 28),
        (Self::Barrier, 16),
        (Self::Subscribe, 14),
        (Self::Unsubscribe, 4),
        (Self::Signal, 20),
        (Self::SignalLoud, 10),
        (Self::ListenLoud(0), 10),
        (Self::Inspect, 10),
        (Self::Hello, 2),
        (Self::Nonsense, 3),
        (Self::Fatal, 1),
        (Self::Burst, 1),
        (Self::BeginFrame, 2),
        (Self::HalfClose, 1),
        (Self::Close, 2),
        (Self::Reset, 2),
        (Self::Stall, 3),
        (Self::Idle, 2),
    ];

    /// Which part of the protocol it belongs to: locks, named entries, subscriptions, or none.
    fn part(self) -> usize {
        match self {
            Self::Acquire
            | Self::Enqueue
            | Self::Wait
            | Self::Release
            | Self::Renew
            | Self::ReleaseOddly
            | Self::RenewOddly
            | Self::Reclaim => 0,
            Self::Counter | Self::Value | Self::Push | Self::Pop | Self::Barrier => 1,
            Self::Subscribe
            | Self::Unsubscribe
            | Self::Signal
            | Self::SignalLoud
            | Self::ListenLoud(_) => 2,
            _ => 3,
        }
    }
}

/// How a run comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Every client closes or breaks its connection.
    Leave,
    /// Every client falls silent; only timeouts can end the run.
    Silence,
    /// The server gets a shutdown signal while clients are at work.
    Drain,
    /// The same, with a second signal a little later.
    Kill,
}

/// How one life of the server ends before the run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEnd {
    /// It is told to stop, and lets clients finish.
    Drain,
    /// It is told to stop twice.
    Kill,
    /// The process is gone from one moment to the next.
    Crash,
    /// So is the power, and with it whatever was not synced to the disk.
    PowerLoss,
}

/// A data directory, and what is wrong with its disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskPlan {
    pub(super) durability: Durability,
    pub(super) segment_bytes: u64,
    /// When so much waits for the disk, changes wait.
    pub(super) behind_bytes: usize,
    /// How long a sync takes at most; and in percent, how often it takes fifty times as long.
    pub(super) sync_us_max: u64,
    pub(super) slow_pct: u8,
    /// In per mille of actions, how often the disk fills up, and how often its next sync fails.
    pub(super) full_pml: u16,
    pub(super) fail_pml: u16,
    /// In percent of starts, how often the time of day was set in between, in plans without values
    /// that end by it, and how often the start itself does not survive.
    pub(super) clock_set_pct: u8,
    pub(super) dies_starting_pct: u8,
}

/// The server ends, and another one is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    /// When so many actions are left.
    pub(super) actions_left: u32,
    pub(super) end: LifeEnd,
    /// The next one is started while this one still drains.
    pub(super) overlaps: bool,
}

/// The plan of one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clients: usize,
    /// How many of them, the last ones, speak HTTP.
    pub(super) http_clients: usize,
    pub(super) keys: Vec<(Vec<u8>, Mode)>,
    /// Names of counters, values, lists and barriers, by [`EntryKind`].
    names: [Vec<Vec<u8>>; 4],
    /// How many clients meet at each barrier.
    pub(super) barriers: Vec<u32>,
    /// Whether the server has more to tell some clients than they can take.
    pub(super) is_loud: bool,
    /// What a crowd does beside the clients, if there is one.
    pub(super) crowd: Option<Scene>,
    pub(super) rules: Rules,
    pub(super) settings: Settings,
    actions: Vec<(Action, u32)>,
    pub(super) leases_ms: Vec<u64>,
    pub(super) waits_ms: Vec<u64>,
    /// Longest pause between two actions of one client.
    pub(super) think_ms_max: u64,
    /// Longest time that a segment is on its way.
    pub(super) delay_ms_max: u64,
    /// Longest time from an event to the turn that deals with it.
    pub(super) turn_delay_us_max: u64,
    /// In percent of what work takes, how much time passes in a turn. Without any, deadlines that
    /// were set in one turn are the same.
    pub(super) pace_pct: u64,
    /// Whether time moves in whole milliseconds, so that much happens at once.
    pub(super) whole_ms: bool,
    /// In percent, how often a frame is cut into segments, a request follows an unanswered one, a
    /// request takes a key for something it is not, a client acts on an answer at once.
    pub(super) split_pct: u8,
    pub(super) pipeline_pct: u8,
    pub(super) mismatch_pct: u8,
    pub(super) eager_pct: u8,
    /// How likely a client asks for what it is granted to outlive its connection, before it acquires
    /// something.
    pub(super) keep_pct: u8,
    /// How likely a client asks to be told of deadlocks, before it acquires something.
    pub(super) deadlock_pct: u8,
    /// In per mille of actions, how often the server is paused, for up to a minute.
    pub(super) pause_pml: u16,
    /// In percent of events, how often one is reported twice, or for a connection that is gone.
    pub(super) echo_pct: u8,
    pub(super) actions_max: u32,
    /// The first one last.
    pub(super) restarts: Vec<Restart>,
    pub(super) ending: Ending,
    /// Without one, nothing outlives the process.
    pub(super) disk: Option<DiskPlan>,
    /// Clients that lock bytes, besides all others.
    pub(super) ranges: RangePlan,
    /// How many connections of a hundred speak TLS.
    tls_pct: u32,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng, seed: u64) -> Self {
        let is_loud = rng.u8(..24) == 0;
        let has_crowd = !is_loud && rng.u8(..8) == 0;
        let crowd = has_crowd.then(|| *pick(rng, &Scene::CROWDS));
        let crowd = match crowd {
            None if !is_loud && seed % 64 == 7 => Some(Scene::Shared),
            crowd => crowd,
        };
        let has_crowd = crowd.is_some();
        let clients = match if is_loud || has_crowd {
            0
        } else {
            rng.u8(..10)
        } {
            0..5 => rng.usize(2..=6),
            5..8 => rng.usize(5..=15),
            _ => rng.usize(10..=40),
        };
        let mut keys: Vec<_> = (0..rng.usize(1..=8)).map(|n| key(rng, n)).collect();
        if rng.u8(..12) == 0 {
            // JSON takes six characters for each byte, so `stats` is long enough to fill an outbox.
            keys.iter_mut().for_each(|(name, _)| name.resize(256, 1));
        }
        // Beside a crowd much must happen in the little time that it takes.
        let scales = if has_crowd {
            &[5_u64, 50][..]
        } else {
            &[5, 50, 500, 3_000]
        };
        let scale = *pick(rng, scales);
        let few_spans = rng.usize(1..=4);
        let leases_ms = (0..few_spans).map(|_| span(rng, 6 * scale)).collect();
        let waits_ms = (0..few_spans)
            .map(|_| {
                if rng.u8(..6) == 0 {
                    0
                } else {
                    span(rng, 8 * scale)
                }
            })
            .collect();
        let barriers: Vec<u32> = (0..rng.usize(1..=2)).map(|_| rng.u32(1..=4)).collect();
        let http_clients = match is_loud {
            true => 0,
            false => *pick(rng, &[0, clients / 3, clients / 2, clients / 2, clients]),
        };
        let mut plan = Self {
            clients,
            http_clients,
            keys,
            names: names(rng, barriers.len()),
            barriers,
            is_loud,
            crowd,
            rules: rules(rng, scale, is_loud),
            settings: settings(rng, scale, clients, is_loud),
            actions: actions(rng, is_loud),
            leases_ms,
            waits_ms,
            think_ms_max: scale * *pick(rng, &[1, 1, 4, 10]) / 2 + 1,
            delay_ms_max: *pick(rng, &[0, 0, 1, 10, scale]),
            turn_delay_us_max: *pick(rng, &[0, 0, 300, 2_000, 40_000]),
            pace_pct: *pick(rng, &[0, 100, 100, 100]),
            whole_ms: rng.bool(),
            split_pct: *pick(rng, &[0, 5, 20, 60]),
            pipeline_pct: *pick(rng, &[0, 10, 40]),
            mismatch_pct: *pick(rng, &[0, 0, 3, 20]),
            eager_pct: *pick(rng, &[0, 20, 80]),
            // In a third of the runs, whatever else they are.
            keep_pct: [0, 5, 0, 0, 40, 0][(seed % 6) as usize],
            deadlock_pct: [0, 0, 0, 50, 0][(seed % 5) as usize],
            pause_pml: *pick(rng, &[0, 0, 4, 20]),
            echo_pct: *pick(rng, &[0, 5, 30]),
            actions_max: if is_loud { 150 } else { 350 } + clients as u32 * rng.u32(8..=24),
            restarts: Vec::new(),
            ending: match rng.u8(..10) {
                0..4 => Ending::Leave,
                4..6 => Ending::Silence,
                6..9 => Ending::Drain,
                _ => Ending::Kill,
            },
            disk: None,
            ranges: RangePlan::default(),
            tls_pct: 0,
        };
        let is_kept = !is_loud && !has_crowd && rng.u8(..3) == 0;
        plan.disk = is_kept.then(|| disk(rng));
        if is_kept {
            // What is restored has to be claimed, which only the line protocol knows.
            plan.http_clients = plan.http_clients.min(clients / 3);
        }
        plan.restarts = restarts(rng, plan.actions_max, is_kept);
        if !plan.restarts.is_empty() && plan.settings.shutdown_timeout == Millis::ZERO {
            plan.settings.shutdown_timeout = Millis(3 * scale);
        }
        let has_long_keys = plan.keys.iter().any(|(name, _)| name.contains(&1));
        if has_crowd {
            plan.make_room();
        } else if !is_loud && !has_long_keys && !is_kept && rng.u8(..3) == 0 {
            plan.bound_memory();
        }
        if is_loud || has_crowd || plan.is_tight() {
            plan.deadlock_pct = 0; // where there is no memory a greeting may be refused
        } else {
            plan.draw_ranges(seed);
            // Also by a chance of its own. Sessions take more memory than a tight plan has.
            let rng = &mut Rng::with_seed(seed ^ 0x0074_6c73);
            plan.tls_pct = *pick(rng, &[0, 0, 0, 30, 100]);
        }
        plan
    }

    /// How this connection speaks TLS, if it does.
    pub(super) fn dialect(&self, number: u32) -> Option<Dialect> {
        let chance = number.wrapping_mul(0x9e37_79b1) >> 8;
        (chance % 100 < self.tls_pct).then_some(Dialect {
            is_old: chance.is_multiple_of(3),
            announces_end: chance.is_multiple_of(2),
        })
    }

    /// By a chance of its own: whoever locks no bytes plays the same run as ever.
    fn draw_ranges(&mut self, seed: u64) {
        let rng = &mut Rng::with_seed(seed ^ 0x7261_6e67_6573);
        let think_ms = self.think_ms_max;
        self.ranges = RangePlan::draw(rng, think_ms, self.disk.is_some());
        if self.ranges.clients > 0 {
            self.ranges.set_rules(rng, &mut self.rules, think_ms);
            self.actions_max += self.ranges.clients as u32 * rng.u32(20..=60);
            // Few of them ask for what a full disk refuses.
            if let Some(disk) = &mut self.disk {
                disk.full_pml *= 2;
            }
        }
    }

    /// A crowd is not kept out by limits or a secret, and nothing but its work takes time.
    fn make_room(&mut self) {
        self.rules = Rules {
            locks_max: 0,
            holds_max: 0,
            waiters_per_key_max: 0,
            keys_max: 0,
            subscriptions_max: 0,
            auto_release: true,
            ..self.rules.clone()
        };
        self.settings.connections_max = 0;
        self.settings.access = Access::default();
        self.pace_pct = 100;
        self.pause_pml = 0;
        self.turn_delay_us_max = self.turn_delay_us_max.min(300);
    }

    /// Clients store more than the server may keep, and often.
    fn bound_memory(&mut self) {
        self.settings.memory_max = MEMORY_MAX + self.clients * MEMORY_MAX_EACH;
        if self.http_clients > 0 {
            self.settings.memory_max += HTTP_MEMORY_MAX;
        }
        self.settings.access = Access::default(); // a wrong one can be long
        self.rules.list_length_max = 0;
        for (action, weight) in &mut self.actions {
            match action {
                Action::Push => *weight = (*weight).max(50) * 8,
                Action::Value => *weight = (*weight).max(50),
                _ => {}
            }
        }
    }

    /// What this client speaks.
    pub(super) fn door(&self, client: usize) -> Door {
        if (self.clients - self.http_clients..self.clients).contains(&client) {
            Door::Http
        } else {
            Door::Line
        }
    }

    /// Whether clients can be refused for want of room.
    pub(super) fn has_limits(&self) -> bool {
        let Rules {
            locks_max,
            holds_max,
            waiters_per_key_max,
            keys_max,
            list_length_max,
            ..
        } = self.rules;
        let counts = [
            locks_max,
            holds_max,
            waiters_per_key_max,
            keys_max,
            list_length_max,
        ];
        self.settings.memory_max != 0 || counts.iter().any(|&it| it != 0)
    }

    /// Whether memory is bounded; then values are longer.
    pub(super) fn is_tight(&self) -> bool {
        self.settings.memory_max != 0
    }

    /// How many entries of this kind there are.
    pub(super) fn entry_count(&self, kind: EntryKind) -> usize {
        self.names[kind as usize].len()
    }

    /// The counter that clients set and overflow; the sums of the others are known.
    pub(super) fn wild_counter(&self) -> usize {
        2
    }

    pub(super) fn name(&self, kind: EntryKind, key: usize) -> &[u8] {
        &self.names[kind as usize][key]
    }

    pub(super) fn action(&self, rng: &mut Rng) -> Action {
        let all: u32 = self.actions.iter().map(|(_, weight)| weight).sum();
        let mut at = rng.u32(..all);
        for &(action, weight) in &self.actions {
            if at < weight {
                return action;
            }
            at -= weight;
        }
        unreachable!("the weights were just summed up")
    }
}

pub(super) fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

/// A span; sometimes whole seconds, because the protocol spells those differently.
fn span(rng: &mut Rng, ms_max: u64) -> u64 {
    match rng.u64(1..=ms_max) {
        ms if ms > 1_000 && rng.bool() => ms / 1_000 * 1_000,
        ms => ms,
    }
}

/// A key and how it is held; some names are odd.
fn key(rng: &mut Rng, number: usize) -> (Vec<u8>, Mode) {
    let mut name = format!("k{number}").into_bytes();
    match rng.u8(..12) {
        0 => name.extend(b"\0\x01\xff\xfe"),
        1 => name.resize(256, b'x'),
        2 => name.extend("-schlüssel-🔒".as_bytes()),
        _ => {}
    }
    let mode = match rng.u8(..12) {
        9.. => Mode::Lead,
        0..4 => Mode::Slot { limit: 1 },
        4..6 => Mode::Slot {
            limit: rng.u32(2..=5),
        },
        _ => Mode::Write,
    };
    (name, mode)
}

/// The names of three counters, some values and lists, and this many barriers. Entries of different
/// kinds may have the same name.
fn names(rng: &mut Rng, barriers: usize) -> [Vec<Vec<u8>>; 4] {
    let is_shared = rng.u8(..4) == 0;
    let kinds = [
        ('n', 3),
        ('v', rng.usize(1..=3)),
        ('q', rng.usize(1..=3)),
        ('b', barriers),
    ];
    kinds.map(|(letter, count)| {
        let letter = if is_shared { 't' } else { letter };
        let name = |key| format!("{letter}.{key}").into_bytes();
        (0..count).map(name).collect()
    })
}

fn disk(rng: &mut Rng) -> DiskPlan {
    DiskPlan {
        durability: *pick(
            rng,
            &[Durability::Sync, Durability::Sync, Durability::Async],
        ),
        segment_bytes: *pick(rng, &[1 << 10, 4 << 10, 1 << 16]),
        behind_bytes: *pick(rng, &[200, 1 << 20]),
        sync_us_max: *pick(rng, &[0, 200, 5_000]),
        slow_pct: *pick(rng, &[0, 1, 10]),
        full_pml: *pick(rng, &[0, 10, 20]),
        fail_pml: *pick(rng, &[0, 0, 3]),
        clock_set_pct: *pick(rng, &[0, 50]),
        dies_starting_pct: *pick(rng, &[0, 30]),
    }
}

/// In two seeds of three there is none, in the others one or two. Where something outlives the
/// process there are up to five.
fn restarts(rng: &mut Rng, actions_max: u32, is_kept: bool) -> Vec<Restart> {
    let count = match is_kept {
        true => rng.usize(1..=5),
        false => rng.usize(..6).saturating_sub(3),
    };
    let ends = [
        LifeEnd::Drain,
        LifeEnd::Drain,
        LifeEnd::Kill,
        LifeEnd::Crash,
        LifeEnd::PowerLoss,
    ];
    let ends = if is_kept { &ends[1..] } else { &ends[..4] };
    let mut restarts: Vec<Restart> = (0..count)
        .map(|_| Restart {
            actions_left: rng.u32(actions_max / 5..actions_max),
            end: *pick(rng, ends),
            overlaps: rng.bool(),
        })
        .collect();
    restarts.sort_by_key(|it| it.actions_left);
    restarts
}

fn actions(rng: &mut Rng, is_loud: bool) -> Vec<(Action, u32)> {
    let mut actions = Vec::new();
    // Some plans are about one part of the protocol, most are about all of it.
    let parts = match rng.u8(..8) {
        _ if is_loud => [0, 0, 2, 1],
        0 => [1, 0, 0, 1],
        1 => [0, 1, 0, 1],
        2 => [0, 1, 2, 1],
        3 => [2, 0, 1, 1],
        _ => [1, 1, 1, 1],
    };
    for (action, weight) in Action::ALL {
        let factor = match rng.u8(..8) {
            0 | 1 if action != Action::Acquire && action != Action::Idle => 0,
            2 => 12,
            _ => rng.u32(2..=6),
        };
        let factor = match action {
            Action::SignalLoud | Action::ListenLoud(_) => factor.max(2) * u32::from(is_loud),
            // A client that has nothing else to ask for asks for a lock.
            Action::Acquire => factor * parts[0] + 1,
            _ => factor * parts[action.part()],
        };
        actions.push((action, weight * factor));
    }
    actions
}

fn rules(rng: &mut Rng, scale: u64, is_loud: bool) -> Rules {
    Rules {
        locks_max: *pick(rng, &[0, 0, 0, 1, 2, 4]),
        holds_max: *pick(rng, &[0, 0, 0, 0, 1, 3, 6]),
        waiters_per_key_max: *pick(rng, &[0, 0, 0, 1, 3]),
        keys_max: *pick(rng, &[0, 0, 0, 1, 4]),
        list_length_max: *pick(rng, &[0, 0, 1, 3]),
        subscriptions_max: *pick(rng, &[0, 0, 2, 5]) * u32::from(!is_loud),
        lease_default: Millis(*pick(rng, &[33_000, 2 * scale])),
        auto_release: rng.u8(..4) != 0,
        gc_interval: Millis(*pick(rng, &[5_000, scale])),
        gc_idle_max: Millis(*pick(rng, &[60_000, scale, 1])),
        deadlock_detection: false,
        search_limits: SearchLimits::default(),
        notes: Notes::Off,
        clients_per_adapter_max: 0,
        durable: false,
        epoch: 1,
        ..Rules::default()
    }
}

fn settings(rng: &mut Rng, scale: u64, clients: usize, is_loud: bool) -> Settings {
    let crowded = rng.u32(1 + clients as u32 / 3..=clients as u32);
    Settings {
        access: match rng.u8(..4) {
            0 => Access::of_one(SECRET),
            _ => Access::default(),
        },
        wire_fence: *pick(rng, &[WireFence::Auto, WireFence::Always, WireFence::Never]),
        connections_max: *pick(rng, &[0, 0, 0, 0, 0, 0, crowded]),
        memory_max: 0,
        read_timeout: Millis(*pick(rng, &[23_000, 23_000, 6 * scale, 30 * scale])),
        // In loud plans the limit of unread pushes shall end slow readers, not the write timeout.
        write_timeout: Millis(*pick(rng, &[5_000, scale, 0]) * u64::from(!is_loud)),
        shutdown_timeout: Millis(*pick(rng, &[30_000, 30_000, 3 * scale, 0])),
        handshake_timeout: Millis::from_secs(5),
        auth_timeout: Millis::from_secs(5),
        epoch: 0,         // each life has its own
        fences_per_us: 0, // far more is granted in virtual time than in real time
        lost_log_lines: || 0,
        // `Engine::check` counts what is held in each of them.
        shares: match crowded % 2 {
            0 => Vec::new(),
            _ => shares(),
        },
        http: HttpSettings::default(),
    }
}

fn shares() -> Vec<Share> {
    let share = |(name, prefix): (&str, &str)| Share {
        name: name.into(),
        prefix: prefix.as_bytes().into(),
    };
    let shares = [("keys", "k"), ("keys", "f"), ("first", "k0"), ("none", "?")];
    shares.map(share).to_vec()
}
