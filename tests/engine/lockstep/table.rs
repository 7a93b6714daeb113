//! The table of all combinations: every verb, by every kind of session, with every ending of the
//! grant, place or wait that the verb made.
//!
//! A cell is *reached* if a session of that kind has sent the verb, and the result of the verb has
//! met that ending. Some verbs have no result, and some results cannot meet every ending. Then the
//! ending is met by something else that the session had when it sent the verb (see
//! [`Gets::can_meet`]). Cells that cannot exist have a reason ([`impossible`]). Neutral: knows no
//! engine. To add a verb, add a row to [`Verb`], say what it gets, and have `scene.rs` send it.

use std::fmt::Write;

/// All verbs. Those that differ only in how a key is held are verbs of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Lock,
    Semaphore,
    Read,
    Write,
    Elect,
    EnqueueLock,
    EnqueueSemaphore,
    EnqueueRead,
    EnqueueWrite,
    Wait,
    Release,
    Renew,
    Reclaim,
    Position,
    Resign,
    Observe,
    Unobserve,
    Add,
    Count,
    SetCount,
    Put,
    Fetch,
    Delete,
    Swap,
    Push,
    Pop,
    AwaitPop,
    Length,
    ListRange,
    Meet,
    Listen,
    Unlisten,
    Signal,
    Watch,
    Unwatch,
    RangeLock,
    RangeUnlock,
    RangeTest,
    RangeCancel,
    RangeReclaim,
}

/// Kinds of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection that is its own owner.
    Plain,
    /// A connection of a client that has several.
    Attached,
    /// An owner that is known by its name, as over HTTP.
    Owner,
    /// A client without a connection of its own, as over HTTP.
    Registered,
    /// A connection whose grants outlive it.
    Keep,
}

/// How a grant, a place or a wait ends. One that survives an ending has met it as well: a kept
/// grant has met the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client releases it.
    Release,
    /// Its lease is over, or the time to live of its client.
    Expiry,
    /// A wait is over.
    TimeOut,
    /// A connection ends.
    Disconnect,
    /// An operator ends it.
    Break,
    /// The client is detached.
    Detach,
    /// Another member takes over.
    Failover,
    /// The server is started again.
    Restart,
    /// The server stops.
    Drain,
}

impl Verb {
    pub const ALL: [Self; 40] = [
        Self::Lock,
        Self::Semaphore,
        Self::Read,
        Self::Write,
        Self::Elect,
        Self::EnqueueLock,
        Self::EnqueueSemaphore,
        Self::EnqueueRead,
        Self::EnqueueWrite,
        Self::Wait,
        Self::Release,
        Self::Renew,
        Self::Reclaim,
        Self::Position,
        Self::Resign,
        Self::Observe,
        Self::Unobserve,
        Self::Add,
        Self::Count,
        Self::SetCount,
        Self::Put,
        Self::Fetch,
        Self::Delete,
        Self::Swap,
        Self::Push,
        Self::Pop,
        Self::AwaitPop,
        Self::Length,
        Self::ListRange,
        Self::Meet,
        Self::Listen,
        Self::Unlisten,
        Self::Signal,
        Self::Watch,
        Self::Unwatch,
        Self::RangeLock,
        Self::RangeUnlock,
        Self::RangeTest,
        Self::RangeCancel,
        Self::RangeReclaim,
    ];

    /// Whether it is about byte ranges.
    pub fn is_of_ranges(self) -> bool {
        matches!(
            self,
            Self::RangeLock
                | Self::RangeUnlock
                | Self::RangeTest
                | Self::RangeCancel
                | Self::RangeReclaim
        )
    }

    /// What it gets, or waits for, if it succeeds.
    pub fn gets(self, kind: Kind) -> Gets {
        let is_client = matches!(kind, Kind::Attached | Kind::Registered);
        match self {
            Self::Lock
            | Self::Semaphore
            | Self::Read
            | Self::Write
            | Self::Elect
            | Self::EnqueueLock
            | Self::EnqueueSemaphore
            | Self::EnqueueRead
            | Self::EnqueueWrite
            | Self::Wait => Gets::Grant,
            Self::Reclaim => Gets::GrantAtOnce,
            Self::Observe | Self::Listen | Self::Watch => Gets::Subscription,
            Self::AwaitPop | Self::Meet => Gets::Meeting,
            Self::RangeLock => Gets::Range { is_client },
            Self::RangeReclaim if is_client => Gets::RangeAtOnce,
            Self::RangeReclaim
            | Self::Release
            | Self::Renew
            | Self::Position
            | Self::Resign
            | Self::Unobserve
            | Self::Add
            | Self::Count
            | Self::SetCount
            | Self::Put
            | Self::Fetch
            | Self::Delete
            | Self::Swap
            | Self::Push
            | Self::Pop
            | Self::Length
            | Self::ListRange
            | Self::Unlisten
            | Self::Signal
            | Self::Unwatch
            | Self::RangeUnlock
            | Self::RangeTest
            | Self::RangeCancel => Gets::Nothing,
        }
    }
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::Attached,
        Self::Owner,
        Self::Registered,
        Self::Keep,
    ];
}

impl Ending {
    pub const ALL: [Self; 9] = [
        Self::Release,
        Self::Expiry,
        Self::TimeOut,
        Self::Disconnect,
        Self::Break,
        Self::Detach,
        Self::Failover,
        Self::Restart,
        Self::Drain,
    ];
}

/// What a verb gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gets {
    /// A grant, a place in a queue, or a wait for one.
    Grant,
    /// A grant, without waiting.
    GrantAtOnce,
    /// A range lock, or a wait for one.
    Range {
        is_client: bool,
    },
    /// A range lock, without waiting.
    RangeAtOnce,
    /// A wait for a value or for others.
    Meeting,
    Subscription,
    Nothing,
}

impl Gets {
    /// Whether this can meet such an ending. If not, something else that the session has meets it.
    pub fn can_meet(self, ending: Ending) -> bool {
        use Ending::{Break, Detach, Expiry, Release, TimeOut};
        match self {
            Self::Grant => true,
            Self::GrantAtOnce => ending != TimeOut,
            // A range lock has no lease. That of a client ends with its time to live.
            Self::Range { is_client } => ending != Expiry || is_client,
            Self::RangeAtOnce => ending != TimeOut,
            Self::Meeting => !matches!(ending, Release | Expiry | Break),
            // It belongs to the connection alone.
            Self::Subscription => !matches!(ending, Expiry | TimeOut | Break | Detach),
            Self::Nothing => false,
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub verb: Verb,
    pub kind: Kind,
    pub ending: Ending,
}

impl Cell {
    /// All that can exist.
    pub fn possible() -> impl Iterator<Item = Self> {
        Self::all().filter(|it| impossible(*it).is_none())
    }

    fn all() -> impl Iterator<Item = Self> {
        Verb::ALL.into_iter().flat_map(|verb| {
            Kind::ALL.into_iter().flat_map(move |kind| {
                let all = Ending::ALL.into_iter();
                all.map(move |ending| Self { verb, kind, ending })
            })
        })
    }

    /// Whether what the verb itself gets can meet the ending.
    pub fn is_own(self) -> bool {
        self.verb.gets(self.kind).can_meet(self.ending)
    }
}

/// Why there is no such cell, if there is none.
pub fn impossible(cell: Cell) -> Option<&'static str> {
    let is_of_ranges = cell.verb.is_of_ranges();
    match (cell.kind, cell.ending) {
        (Kind::Owner, _) if is_of_ranges => {
            Some("bytes belong to clients and connections: a named owner cannot ask for any")
        }
        (Kind::Registered, _) if !is_of_ranges => {
            Some("only requests about bytes name a client and show its secret")
        }
        (Kind::Plain | Kind::Owner | Kind::Keep, Ending::Detach) => {
            Some("only a client can be detached")
        }
        _ => None,
    }
}

/// How often each cell was reached.
#[derive(Clone)]
pub struct Reached(Vec<u32>);

impl Default for Reached {
    fn default() -> Self {
        Self(vec![
            0;
            Verb::ALL.len() * Kind::ALL.len() * Ending::ALL.len()
        ])
    }
}

impl Reached {
    fn place(cell: Cell) -> usize {
        let kinds = cell.verb as usize * Kind::ALL.len() + cell.kind as usize;
        kinds * Ending::ALL.len() + cell.ending as usize
    }

    pub fn note(&mut self, cell: Cell) {
        self.0[Self::place(cell)] += 1;
    }

    pub fn of(&self, cell: Cell) -> u32 {
        self.0[Self::place(cell)]
    }

    pub fn add(&mut self, others: &Self) {
        for (mine, others) in self.0.iter_mut().zip(&others.0) {
            *mine += others;
        }
    }

    /// Cells that can exist and were not reached.
    pub fn empty(&self) -> Vec<Cell> {
        Cell::possible().filter(|it| self.of(*it) == 0).collect()
    }

    /// A table to read: a row for each verb, a block for each kind of session. A dash is a cell
    /// that cannot exist.
    pub fn report(&self) -> String {
        let mut out = String::new();
        for kind in Kind::ALL {
            let _ = write!(out, "\n{:<18}", format!("{kind:?}"));
            for ending in Ending::ALL {
                let _ = write!(out, "{:>11}", format!("{ending:?}"));
            }
            let mut reasons = Vec::new();
            for verb in Verb::ALL {
                let _ = write!(out, "\n  {:<16}", format!("{verb:?}"));
                for ending in Ending::ALL {
                    let cell = Cell { verb, kind, ending };
                    let shown = match impossible(cell) {
                        Some(reason) => {
                            if !reasons.contains(&reason) {
                                reasons.push(reason);
                            }
                            "-".to_owned()
                        }
                        None => self.of(cell).to_string(),
                    };
                    let _ = write!(out, "{shown:>11}");
                }
            }
            for reason in reasons {
                let _ = write!(out, "\n  - {reason}");
            }
            out.push('\n');
        }
        let possible: Vec<u32> = Cell::possible().map(|it| self.of(it)).collect();
        let reached = possible.iter().filter(|it| **it > 0).count();
        let least = possible.iter().min().copied().unwrap_or(0);
        let _ = writeln!(
            out,
            "\n{reached} of {} cells reached, each at least {least} times; {} cannot exist",
            possible.len(),
            Self::default().0.len() - possible.len()
        );
        out
    }
}
