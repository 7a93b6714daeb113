//! What a client may ask for, and what is remembered of it until it is answered.
//!
//! Says what a request asks for, of which key, and which event its success is for watchers. Never
//! writes a frame and never checks an answer.

use super::range_requests::RangeAsked;
use super::subscription::Subscription;
use latchd::base::Millis;
use latchd::engine::types::Mode;

/// What a request asks for, with everything that its answer is compared with.
#[derive(Clone, Debug)]
pub(crate) enum RequestKind {
    Acquire {
        key: usize,
        mode: Mode,
        wait: Millis,
        lease: Millis,
    },
    Enqueue {
        key: usize,
        mode: Mode,
        lease: Millis,
    },
    Wait {
        key: usize,
        wait: Millis,
    },
    /// `target` is the fence, if the token was granted on this very key.
    Release {
        key: usize,
        target: Option<u64>,
        /// The verb is `resign`.
        resigns: bool,
    },
    Renew {
        key: usize,
        target: Option<u64>,
        lease: Millis,
        /// The verb is `reclaim`.
        reclaims: bool,
    },
    Position {
        key: usize,
    },
    /// About a counter, a value, a list or a barrier.
    Entry(EntryRequest),
    Subscribe(Subscription),
    Unsubscribe(Subscription),
    Signal {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    /// `who` about a key, or `stats`.
    Report {
        key: Option<usize>,
    },
    /// About byte ranges, and the clients that lock them.
    Range(RangeAsked),
    Hello,
    /// Over HTTP: an operator ends a grant.
    Break {
        key: usize,
        fence: u64,
    },
    /// Over HTTP: what anybody may look at.
    Look(Look),
    /// Answered `ok`, whatever happens.
    Ok,
    /// Answered `error`, whatever happens.
    Nonsense,
    /// The server answers this, if anything, and closes.
    Fatal(Option<&'static str>),
}

/// What anybody may look at over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A page of all locks: the first one, or the one behind what another called `next`.
    Page {
        after: Option<u64>,
    },
    Lease {
        key: usize,
    },
    Who {
        key: usize,
    },
    Live,
    Ready,
    Stats,
    Metrics,
    /// The head of an answer alone.
    Head,
    /// Figures every second.
    Figures,
}

impl RequestKind {
    /// How long the request may stay unanswered.
    pub(crate) fn wait(&self) -> Millis {
        match self {
            Self::Acquire { wait, .. } | Self::Wait { wait, .. } => *wait,
            Self::Entry(entry) => entry.wait(),
            Self::Range(RangeAsked::Lock { wait, .. }) => *wait,
            _ => Millis::ZERO,
        }
    }

    /// Whether it is about a named entry, bytes, a subscription or a signal.
    pub(crate) fn concerns_no_lock(&self) -> bool {
        matches!(
            self,
            Self::Entry(_)
                | Self::Range(_)
                | Self::Subscribe(_)
                | Self::Unsubscribe(_)
                | Self::Signal { .. }
        )
    }

    pub(crate) fn is_pop(&self) -> bool {
        matches!(self, Self::Entry(entry) if entry.is_pop())
    }

    /// The list that it takes a value from, if it does.
    pub(crate) fn popped_list(&self) -> Option<usize> {
        match self {
            Self::Entry(EntryRequest::Pop { key, .. } | EntryRequest::AwaitPop { key, .. }) => {
                Some(*key)
            }
            _ => None,
        }
    }

    pub(crate) fn key(&self) -> Option<usize> {
        match *self {
            Self::Acquire { key, .. }
            | Self::Enqueue { key, .. }
            | Self::Wait { key, .. }
            | Self::Release { key, .. }
            | Self::Renew { key, .. }
            | Self::Position { key }
            | Self::Break { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// A request about a named entry. Each kind of entries has its own keys, counted from 0.
#[derive(Clone, Debug)]
pub(crate) enum EntryRequest {
    /// `incr`, or `decr` if `down`; `delta` is what is added in either case.
    Add {
        key: usize,
        delta: i64,
        down: bool,
    },
    Count {
        key: usize,
    },
    SetCount {
        key: usize,
    },
    Put {
        key: usize,
        value: String,
        ttl: Millis,
    },
    Fetch {
        key: usize,
    },
    Delete {
        key: usize,
    },
    Swap {
        key: usize,
        old: String,
        new: String,
        ttl: Millis,
    },
    Push {
        key: usize,
        value: String,
        left: bool,
    },
    Pop {
        key: usize,
        left: bool,
    },
    AwaitPop {
        key: usize,
        left: bool,
        wait: Millis,
    },
    Length {
        key: usize,
    },
    Range {
        key: usize,
    },
    Meet {
        key: usize,
        count: u32,
        wait: Millis,
    },
}

/// The kinds of named entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    Counter = 0,
    Value = 1,
    List = 2,
    Barrier = 3,
}

impl EntryKind {
    pub(crate) const ALL: [Self; 4] = [Self::Counter, Self::Value, Self::List, Self::Barrier];
}

impl EntryRequest {
    pub(crate) fn entry(&self) -> (EntryKind, usize) {
        match *self {
            Self::Add { key, .. } | Self::Count { key } | Self::SetCount { key } => {
                (EntryKind::Counter, key)
            }
            Self::Put { key, .. }
            | Self::Fetch { key }
            | Self::Delete { key }
            | Self::Swap { key, .. } => (EntryKind::Value, key),
            Self::Push { key, .. }
            | Self::Pop { key, .. }
            | Self::AwaitPop { key, .. }
            | Self::Length { key }
            | Self::Range { key } => (EntryKind::List, key),
            Self::Meet { key, .. } => (EntryKind::Barrier, key),
        }
    }

    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::Add { down: false, .. } => "incr",
            Self::Add { down: true, .. } => "decr",
            Self::Count { .. } => "get",
            Self::SetCount { .. } => "cset",
            Self::Put { .. } => "kset",
            Self::Fetch { .. } => "kget",
            Self::Delete { .. } => "kdel",
            Self::Swap { .. } => "kcas",
            Self::Push { left: true, .. } => "lpush",
            Self::Push { left: false, .. } => "rpush",
            Self::Pop { left: true, .. } => "lpop",
            Self::Pop { left: false, .. } => "rpop",
            Self::AwaitPop { left: true, .. } => "blpop",
            Self::AwaitPop { left: false, .. } => "brpop",
            Self::Length { .. } => "llen",
            Self::Range { .. } => "lrange",
            Self::Meet { .. } => "bwait",
        }
    }

    /// The event that watchers are told of if this succeeds.
    pub(crate) fn event(&self) -> Option<&'static str> {
        match self {
            Self::Count { .. }
            | Self::Fetch { .. }
            | Self::Length { .. }
            | Self::Range { .. }
            | Self::Meet { .. } => None,
            _ => Some(self.verb()),
        }
    }

    /// How long it may stay unanswered.
    pub(crate) fn wait(&self) -> Millis {
        match self {
            Self::AwaitPop { wait, .. } | Self::Meet { wait, .. } => *wait,
            _ => Millis::ZERO,
        }
    }

    fn is_pop(&self) -> bool {
        matches!(self, Self::Pop { .. } | Self::AwaitPop { .. })
    }
}
