//! What a seed draws: one world out of many, each with its own mix of everything.
//!
//! Swarm testing: a feature that every run uses a little hides the bugs that show only when it is
//! used a lot, or not at all. So each seed leaves some deeds out and does others often. Never
//! decides what happens when; that is the world's, from the same chance.

use fastrand::Rng;

use super::clients::request::EntryKind;
use crate::base::Millis;
use crate::engine::Rules;
use crate::engine::types::Mode;
use crate::server::Settings;
use crate::wire::answer::WireFence;

/// The secret of worlds that have one.
pub(super) const SECRET: &[u8] = b"s3cret";

/// Something a client may do when it is its turn.
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
    /// `incr`, `decr`, `get`, `cset`.
    Counter,
    /// `kset`, `kget`, `kdel`, `kcas`.
    Value,
    Push,
    /// All that reads a list, also by waiting.
    Pop,
    /// `bwait`.
    Barrier,
    /// `listen`, `watch`, `observe`.
    Subscribe,
    Unsubscribe,
    Signal,
    /// A signal as long as can be, in loud worlds.
    SignalLoud,
    /// Listens to those many times over, and perhaps does not read.
    ListenLoud(usize),
    /// `pos`, `who`, `stats`, `ping`.
    Inspect,
    /// `stats`, as part of a flood.
    Stats,
    Hello,
    /// A frame that is answered `error`.
    Nonsense,
    /// Something after which the server is right to close.
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
    /// Each deed with its weight in an even mix.
    const ALL: [(Self, u32); 28] = [
        (Self::Acquire, 60),
        (Self::Enqueue, 16),
        (Self::Wait, 16),
        (Self::Release, 60),
        (Self::Renew, 8),
        (Self::ReleaseOddly, 6),
        (Self::RenewOddly, 5),
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
        (Self::Inspect, 6),
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

    /// Which part of the world it belongs to: locks, things, or what is heard.
    fn part(self) -> usize {
        match self {
            Self::Acquire
            | Self::Enqueue
            | Self::Wait
            | Self::Release
            | Self::Renew
            | Self::ReleaseOddly
            | Self::RenewOddly => 0,
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
    /// Everybody closes or breaks the connection.
    Leave,
    /// Everybody falls silent; only timeouts can end it.
    Silence,
    /// The server is told to stop while clients are at work.
    Drain,
    /// The same, and told again a little later.
    Kill,
}

/// One world.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clients: usize,
    pub(super) keys: Vec<(Vec<u8>, Mode)>,
    /// Names of counters, values, lists and barriers, by [`EntryKind`].
    names: [Vec<Vec<u8>>; 4],
    /// How many meet at each barrier.
    pub(super) barriers: Vec<u32>,
    /// Whether somebody is told more than it can take.
    pub(super) is_loud: bool,
    pub(super) rules: Rules,
    pub(super) settings: Settings,
    actions: Vec<(Action, u32)>,
    pub(super) leases_ms: Vec<u64>,
    pub(super) waits_ms: Vec<u64>,
    /// Longest pause between two deeds of one client.
    pub(super) think_ms_max: u64,
    /// Longest way of a segment.
    pub(super) delay_ms_max: u64,
    /// Longest time from an event to the turn that sees it.
    pub(super) turn_delay_us_max: u64,
    /// Whether time moves in whole milliseconds, so that much happens at once.
    pub(super) whole_ms: bool,
    /// In percent: a frame is cut into segments, a frame follows another unanswered one, a key is
    /// asked for as something it is not, an answer is acted on at once.
    pub(super) split_pct: u8,
    pub(super) pipeline_pct: u8,
    pub(super) mismatch_pct: u8,
    pub(super) eager_pct: u8,
    /// In per mille of deeds: the server is stopped for up to a minute.
    pub(super) pause_pml: u16,
    /// In percent of events: reported twice, or for a connection that is gone.
    pub(super) echo_pct: u8,
    pub(super) actions_max: u32,
    pub(super) ending: Ending,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let is_loud = rng.u8(..24) == 0;
        let crowd = if is_loud { 0 } else { rng.u8(..10) };
        let clients = match crowd {
            0..5 => rng.usize(2..=6),
            5..8 => rng.usize(5..=15),
            _ => rng.usize(10..=40),
        };
        let mut keys: Vec<_> = (0..rng.usize(1..=8)).map(|n| key(rng, n)).collect();
        if rng.u8(..12) == 0 {
            // Six characters for each byte in JSON: `stats` is long enough to fill an outbox.
            keys.iter_mut().for_each(|(name, _)| name.resize(256, 1));
        }
        let scale = *pick(rng, &[5_u64, 50, 500, 3_000]);
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
        Self {
            clients,
            keys,
            names: names(rng, barriers.len()),
            barriers,
            is_loud,
            rules: rules(rng, scale, is_loud),
            settings: settings(rng, scale, clients, is_loud),
            actions: actions(rng, is_loud),
            leases_ms,
            waits_ms,
            think_ms_max: scale * *pick(rng, &[1, 1, 4, 10]) / 2 + 1,
            delay_ms_max: *pick(rng, &[0, 0, 1, 10, scale]),
            turn_delay_us_max: *pick(rng, &[0, 0, 300, 2_000, 40_000]),
            whole_ms: rng.bool(),
            split_pct: *pick(rng, &[0, 5, 20, 60]),
            pipeline_pct: *pick(rng, &[0, 10, 40]),
            mismatch_pct: *pick(rng, &[0, 0, 3, 20]),
            eager_pct: *pick(rng, &[0, 20, 80]),
            pause_pml: *pick(rng, &[0, 0, 4, 20]),
            echo_pct: *pick(rng, &[0, 5, 30]),
            actions_max: if is_loud { 150 } else { 350 } + clients as u32 * rng.u32(8..=24),
            ending: match rng.u8(..10) {
                0..4 => Ending::Leave,
                4..6 => Ending::Silence,
                6..9 => Ending::Drain,
                _ => Ending::Kill,
            },
        }
    }

    /// How many things of a kind there are.
    pub(super) fn entry_count(&self, kind: EntryKind) -> usize {
        self.names[kind as usize].len()
    }

    /// The counter that is set and overrun; the sums of the others are known.
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

/// Spans are sometimes whole seconds, because those are spelled differently.
fn span(rng: &mut Rng, ms_max: u64) -> u64 {
    match rng.u64(1..=ms_max) {
        ms if ms > 1_000 && rng.bool() => ms / 1_000 * 1_000,
        ms => ms,
    }
}

/// A name and what it is; some names are odd.
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

/// Three counters, some values and lists, and as many barriers as there are. Things of different
/// kinds may have the same names.
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

fn actions(rng: &mut Rng, is_loud: bool) -> Vec<(Action, u32)> {
    let mut actions = Vec::new();
    // Some worlds are about one part, most are about all.
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
            // Whoever has nothing else to say says this.
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
        waiters_per_key_max: *pick(rng, &[0, 0, 0, 1, 3]),
        keys_max: *pick(rng, &[0, 0, 0, 1, 4]),
        list_length_max: *pick(rng, &[0, 0, 1, 3]),
        subscriptions_max: *pick(rng, &[0, 0, 2, 5]) * u32::from(!is_loud),
        lease_default: Millis(*pick(rng, &[33_000, 2 * scale])),
        auto_release: rng.u8(..4) != 0,
        gc_interval: Millis(*pick(rng, &[5_000, scale])),
        gc_idle_max: Millis(*pick(rng, &[60_000, scale, 1])),
    }
}

fn settings(rng: &mut Rng, scale: u64, clients: usize, is_loud: bool) -> Settings {
    let crowded = rng.u32(1 + clients as u32 / 3..=clients as u32);
    Settings {
        auth_token: (rng.u8(..4) == 0).then(|| SECRET.to_vec()),
        wire_fence: *pick(rng, &[WireFence::Auto, WireFence::Always, WireFence::Never]),
        connections_max: *pick(rng, &[0, 0, 0, 0, 0, 0, crowded]),
        read_timeout: Millis(*pick(rng, &[23_000, 23_000, 6 * scale, 30 * scale])),
        // Where it is loud, it is for others to say who is too slow.
        write_timeout: Millis(*pick(rng, &[5_000, scale, 0]) * u64::from(!is_loud)),
        shutdown_timeout: Millis(*pick(rng, &[30_000, 30_000, 3 * scale, 0])),
        epoch: rng.u64(1..100),
    }
}
