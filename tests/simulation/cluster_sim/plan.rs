//! What a run is like: what goes wrong by itself, and what is broken on purpose.

use crate::cluster_sim::world::MS;

/// What is broken on purpose. Each of these has to be noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Break {
    #[default]
    Nothing,
    /// A leader speaks after its time.
    SpeaksLate,
    /// An answer does not wait for the log.
    SpeaksAhead,
    /// Entries are written whoever leads, and whatever is there.
    NoGuards,
    /// Entries are written whether or not there is one before.
    NoPredecessorGuard,
    /// A lease is counted from the answer.
    CountsFromAnswer,
    /// After a silence a renewal is enough.
    NoProof,
    /// A leader speaks to the very end of its lease.
    NoMargin,
    /// A leader that goes lets go of what its connections hold.
    RunsDisconnects,
    /// A new table begins its fences anywhere.
    ForgetsFences,
    /// An entry of which nothing is heard counts as written.
    TakesSilenceForYes,
    /// Clocks run apart by more than the margin covers.
    WildClocks,
    /// Whoever asks for one more gets two.
    CountsTwice,
    /// A standby leaves out a record.
    SkipsRecord,
    /// A standby ends leases and values by itself.
    StandbyExpires,
    /// Whether bytes may leave is decided once for a whole turn.
    LooksOnce,
    /// A standby waits for its watch, and never asks by itself.
    NeverPolls,
    /// An entry is written whether or not there is one already.
    NoAbsentGuard,
}

/// What happens to the leader of a run in which nothing else goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    Stop,
    /// Nothing arrives at etcd any more, or nothing comes back, or both.
    Cut([bool; 2]),
    /// It is told to stop.
    Resign,
    /// It is told to let another one lead, and follows.
    Move,
    /// It is killed; then the next candidate gets SIGTERM between taking the leader's key and leading.
    KillThenEndCandidate,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) breaks: Break,
    /// Things go wrong until then.
    pub(crate) faults_until: u64,
    pub(crate) ends: u64,
    /// Parts per million that a clock is too fast or too slow at most.
    pub(crate) rate_ppm_max: i64,
    pub(crate) ttl_s: u64,
    pub(crate) quota_bytes: u64,
    pub(crate) trim_bytes: u64,
    /// Again and again etcd is full for so long; 0 is never.
    pub(crate) full: u64,
    /// It is restored from a backup: when that is made, and when it is restored.
    pub(crate) restore: Option<[u64; 2]>,
    /// Everything between members and etcd always takes long.
    pub(crate) is_far: bool,
    /// Everything takes so long from a member to etcd, and as long back.
    pub(crate) one_way: u64,
    /// Every write of etcd takes so long, as with a slow disk; reads and renewals do not.
    pub(crate) writes_take: u64,
    /// From then on to read takes so long.
    pub(crate) slow_reads: Option<[u64; 2]>,
    /// Fences of a new table begin by the clock, too.
    pub(crate) fences_by_clock: bool,
    /// How many there are who take and release locks, and how many locks.
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    /// This happens to the leader, and when.
    pub(crate) blow: Option<(Blow, u64)>,
}

impl Plan {
    pub(crate) const QUIET: Self = Self {
        breaks: Break::Nothing,
        faults_until: 0,
        ends: 60_000 * MS,
        rate_ppm_max: 500,
        ttl_s: 5,
        quota_bytes: 1 << 30,
        trim_bytes: 2 << 10,
        full: 0,
        restore: None,
        is_far: false,
        one_way: 0,
        writes_take: 0,
        slow_reads: None,
        fences_by_clock: false,
        clients: 8,
        keys: 3,
        blow: None,
    };

    /// So many kinds of runs take turns.
    pub(crate) const KINDS: u64 = 8;

    /// The kind and all else follow from the seed.
    pub(crate) fn of(seed: u64) -> Self {
        let faults = Self {
            faults_until: 50_000 * MS,
            ends: 75_000 * MS,
            is_far: seed % 8 == 4,
            ..Self::QUIET
        };
        match seed % 4 {
            // The margin covers a tenth of the lease, less how long a turn takes.
            1 => Self {
                rate_ppm_max: 40_000,
                ..faults
            },
            2 if seed % 8 == 2 => Self {
                quota_bytes: 5_000 + seed % 7 * 1_000,
                trim_bytes: 1 << 10,
                ..faults
            },
            2 => Self {
                full: (1_500 + seed % 5 * 1_000) * MS,
                ..faults
            },
            3 => Self {
                restore: Some([
                    (20_000 + seed % 13 * 700) * MS,
                    (20_500 + seed % 13 * 700 + seed % 17 * 400) * MS,
                ]),
                fences_by_clock: true,
                ..faults
            },
            _ => faults,
        }
    }

    /// Nothing goes wrong, but for this.
    pub(crate) fn with_blow(blow: Blow) -> Self {
        Self {
            ends: 20_000 * MS,
            blow: Some((blow, 6_000 * MS)),
            ..Self::QUIET
        }
    }

    /// The same with so many clients that some are always about to be told something.
    pub(crate) fn with_crowd(blow: Blow) -> Self {
        Self {
            ends: 14_000 * MS,
            clients: 60,
            keys: 90,
            ..Self::with_blow(blow)
        }
    }

    /// The same on an etcd whose every write takes so long.
    pub(crate) fn with_slow_writes(blow: Blow, writes_take: u64) -> Self {
        Self {
            ends: 70_000 * MS,
            blow: Some((blow, 20_000 * MS)),
            writes_take,
            ..Self::QUIET
        }
    }

    /// There is little room, so that a leader has to be careful before etcd is full.
    pub(crate) fn is_tight(&self) -> bool {
        self.quota_bytes < Self::QUIET.quota_bytes
    }

    pub(crate) fn breaking(self, breaks: Break) -> Self {
        let rate_ppm_max = match breaks {
            Break::WildClocks => 300_000,
            _ => self.rate_ppm_max,
        };
        Self {
            breaks,
            rate_ppm_max,
            ..self
        }
    }

    /// How long before the end of its lease a leader falls silent.
    pub(crate) fn margin_ms(&self) -> u64 {
        match self.breaks {
            Break::NoMargin => 0,
            _ => (self.ttl_s * 100).max(500),
        }
    }

    /// How long a client pauses or waits that would take so many milliseconds: from shortly before a blow on all hurry, so
    /// that some are about to be told something, and that it is seen how long the members need.
    pub(crate) fn haste(&self, now: u64, ms: u64) -> u64 {
        let is_hurry = |at: u64| at <= now + 300 * MS && now < at + (self.ttl_s + 2) * 1_000 * MS;
        match self.blow.is_some_and(|(_, at)| is_hurry(at)) {
            true => ms * MS / 10,
            false => ms * MS,
        }
    }

    /// One in how many turns is stopped in the middle, and within how many looks at the clock.
    pub(crate) fn stops_in_turn(&self) -> (u32, u64) {
        match self.breaks {
            Break::LooksOnce => (30, 1),
            _ => (300, 5),
        }
    }

    pub(crate) fn has_faults(&self, now: u64) -> bool {
        now < self.faults_until
    }

    pub(crate) fn is_full(&self, now: u64) -> bool {
        self.full > 0 && self.has_faults(now) && now / self.full % 2 == 1
    }

    /// How much of a lease a client relies on, in parts per million.
    pub(crate) fn trust_ppm(&self) -> u64 {
        998_000 - self.rate_ppm_max as u64
    }
}
