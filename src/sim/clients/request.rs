//! Questions about counters, values, lists and barriers, and about being told things.
//!
//! Words only: what was asked, of which thing, and how its success is announced to watchers. Never
//! says it and never judges the answer.

use crate::base::Millis;

/// Something that is neither a lock nor news. Each kind has its own keys, counted from 0.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
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

/// The kinds of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
    Counter = 0,
    Value = 1,
    List = 2,
    Barrier = 3,
}

impl Ask {
    pub(crate) fn thing(&self) -> (Sort, usize) {
        match *self {
            Self::Add { key, .. } | Self::Count { key } | Self::SetCount { key } => {
                (Sort::Counter, key)
            }
            Self::Put { key, .. }
            | Self::Fetch { key }
            | Self::Delete { key }
            | Self::Swap { key, .. } => (Sort::Value, key),
            Self::Push { key, .. }
            | Self::Pop { key, .. }
            | Self::AwaitPop { key, .. }
            | Self::Length { key }
            | Self::Range { key } => (Sort::List, key),
            Self::Meet { key, .. } => (Sort::Barrier, key),
        }
    }

    pub(crate) fn letters(&self) -> &'static str {
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

    /// What watchers are told when this was answered with a yes: the verb, where there is news.
    pub(crate) fn event(&self) -> Option<&'static str> {
        match self {
            Self::Count { .. }
            | Self::Fetch { .. }
            | Self::Length { .. }
            | Self::Range { .. }
            | Self::Meet { .. } => None,
            _ => Some(self.letters()),
        }
    }

    /// How long it may stay unanswered.
    pub(crate) fn wait(&self) -> Millis {
        match self {
            Self::AwaitPop { wait, .. } | Self::Meet { wait, .. } => *wait,
            _ => Millis::ZERO,
        }
    }

    pub(crate) fn is_pop(&self) -> bool {
        matches!(self, Self::Pop { .. } | Self::AwaitPop { .. })
    }
}

/// What is heard: signals, changes of keys, changes of leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ear {
    Listen,
    Watch,
    Observe,
}

/// One subscription of one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) ear: Ear,
    pub(crate) pattern: Vec<u8>,
    /// Empty: on its own.
    pub(crate) group: Vec<u8>,
}

impl Seat {
    /// Whether wildcards stand only where they may. Leaders are observed by name.
    pub(crate) fn is_sound(&self) -> bool {
        let tokens: Vec<&[u8]> = self.pattern.split(|&byte| byte == b'.').collect();
        let is_sound = |(index, token): (usize, &&[u8])| match **token {
            [b'*'] => true,
            [b'>'] => index + 1 == tokens.len(),
            _ => !token.iter().any(|byte| b"*>".contains(byte)),
        };
        self.ear == Ear::Observe || tokens.iter().enumerate().all(is_sound)
    }

    /// Whether a name is heard here: token by token, as slowly as it gets.
    pub(crate) fn hears(&self, name: &[u8]) -> bool {
        if self.ear == Ear::Observe {
            return self.pattern == name;
        }
        let mut name = name.split(|&byte| byte == b'.');
        for token in self.pattern.split(|&byte| byte == b'.') {
            match (token, name.next()) {
                (_, None) => return false,
                (b">", _) => return true,
                (b"*", _) => {}
                (token, Some(it)) if token == it => {}
                _ => return false,
            }
        }
        name.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_hear_by_token() {
        let hears = |pattern: &str, name: &str| {
            let seat = Seat {
                ear: Ear::Listen,
                pattern: pattern.into(),
                group: Vec::new(),
            };
            seat.is_sound() && seat.hears(name.as_bytes())
        };
        for (pattern, name) in [("a", "a"), ("*", "a"), (">", "a.b"), ("a.>", "a.b.c")] {
            assert!(hears(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "b"), ("*", "a.b"), ("a.>", "a"), ("fo*", "fo*")] {
            assert!(!hears(pattern, name), "{pattern} {name}");
        }
    }
}
