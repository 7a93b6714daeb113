//! Subscriptions as a client sees them: what it listens to, watches or observes.
//!
//! Compares a pattern with a name token by token, in the slowest and simplest way, to check what
//! the server does in a fast one.

/// What a subscription is about: signals, events of keys, changes of leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Listen,
    Watch,
    Observe,
}

/// One subscription of one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subscription {
    pub(crate) topic: Topic,
    pub(crate) pattern: Vec<u8>,
    /// Empty if the client listens on its own.
    pub(crate) group: Vec<u8>,
}

impl Subscription {
    /// Whether wildcards stand only where they may. Leaders are observed by name, without
    /// wildcards.
    pub(crate) fn is_valid(&self) -> bool {
        let tokens: Vec<&[u8]> = self.pattern.split(|&byte| byte == b'.').collect();
        let is_valid = |(index, token): (usize, &&[u8])| match **token {
            [b'*'] => true,
            [b'>'] => index + 1 == tokens.len(),
            _ => !token.iter().any(|byte| b"*>".contains(byte)),
        };
        self.topic == Topic::Observe || tokens.iter().enumerate().all(is_valid)
    }

    /// Whether the server tells this subscription of a name.
    pub(crate) fn hears(&self, topic: Topic, name: &[u8]) -> bool {
        self.topic == topic && self.matches(name)
    }

    /// Whether a name fits the pattern.
    fn matches(&self, name: &[u8]) -> bool {
        if self.topic == Topic::Observe {
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
    fn patterns_match_by_token() {
        let matches = |pattern: &str, name: &str| {
            let subscription = Subscription {
                topic: Topic::Listen,
                pattern: pattern.into(),
                group: Vec::new(),
            };
            subscription.is_valid() && subscription.matches(name.as_bytes())
        };
        for (pattern, name) in [("a", "a"), ("*", "a"), (">", "a.b"), ("a.>", "a.b.c")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "b"), ("*", "a.b"), ("a.>", "a"), ("fo*", "fo*")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
