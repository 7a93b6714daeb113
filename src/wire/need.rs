//! What a request needs of whoever asks: a column of the tables of verbs and routes, and what it is about.
//!
//! Words only. `access` says what a token gives, `server` compares the two.

use super::client::verb_and_key;
use super::command::{Asked, Command};
use crate::engine::types::Request;

/// What somebody must be allowed for a request to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: whoever was let in may ask.
    Nothing,
    /// To look at this name.
    Look,
    /// To change this name, or to wait for it.
    Write,
    /// To look at everything there is.
    Overview,
    /// To end what others hold.
    Admin,
}

impl Need {
    /// As the documentation has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Look => "look",
            Self::Write => "write",
            Self::Overview => "overview",
            Self::Admin => "admin",
        }
    }
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// No name at all.
    Nothing,
    /// A key, a channel, a resource, the id of a client.
    Name(&'a [u8]),
    /// Two of them.
    Names(&'a [u8], &'a [u8]),
    /// All names that match.
    Pattern(&'a [u8]),
}

impl<'a> Subject<'a> {
    /// What a request to the lock table is about.
    #[must_use]
    pub fn of(request: &Request<'a>) -> Self {
        match *request {
            Request::Listen { pattern, .. }
            | Request::Unlisten { pattern, .. }
            | Request::Watch { pattern }
            | Request::Unwatch { pattern } => Self::Pattern(pattern),
            _ => Self::Name(verb_and_key(&Command::Engine(*request)).1),
        }
    }

    /// The name whose shard has to be asked, if it is about one. A pattern with a wildcard is for what is in any
    /// shard that is asked; one without is a name.
    fn home(self) -> Option<&'a [u8]> {
        let is_wild = |name: &[u8]| name.iter().any(|&byte| byte == b'*' || byte == b'>');
        match self {
            Self::Nothing => None,
            Self::Name(name) | Self::Names(name, _) => Some(name),
            Self::Pattern(pattern) => Some(pattern).filter(|it| !is_wild(it)),
        }
    }
}

/// The name whose shard has to be asked for this, if there is one: not the id of a client, which every shard
/// knows.
pub(super) fn home<'a>(subject: Subject<'a>, is_of_client: bool) -> Option<&'a [u8]> {
    subject.home().filter(|_| !is_of_client)
}

/// Whether a request takes signals away from others who listen in the same group.
fn is_of_group(request: &Request<'_>) -> bool {
    matches!(request, Request::Listen { group, .. } if !group.is_empty())
}

impl<'a> Asked<'a> {
    /// What it needs, if it is a request at all. Whoever listens in a group takes signals away from others,
    /// and to end the grace period is more than to look at it. A client may have range locks of any resource.
    #[must_use]
    pub fn need(&self) -> Need {
        match &self.command {
            Ok(Command::Engine(request)) if is_of_group(request) => Need::Write,
            Ok(Command::Grace { ends: true }) => Need::Admin,
            Ok(Command::RangeListOf { .. }) => Need::Overview,
            Ok(command) => verb_and_key(command).0.row().need,
            Err(_) => Need::Nothing,
        }
    }

    /// What it is about.
    #[must_use]
    pub fn subject(&self) -> Subject<'a> {
        match &self.command {
            Ok(Command::Engine(request)) => Subject::of(request),
            Ok(command) => match verb_and_key(command) {
                (verb, _) if verb.row().ignores_key => Subject::Nothing,
                (_, name) => Subject::Name(name),
            },
            Err(_) => Subject::Nothing,
        }
    }

    /// The name whose shard has to be asked, if it is about one.
    #[must_use]
    pub fn home(&self) -> Option<&'a [u8]> {
        let is_of_client = matches!(
            self.command,
            Ok(Command::Attach(_)
                | Command::Detach { .. }
                | Command::ReclaimDone { .. }
                | Command::RangeListOf { .. }
                | Command::BreakRangesOf { .. })
        );
        home(self.subject(), is_of_client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::command::parse;
    use crate::wire::verbs::{Row, TABLE, Verb};

    /// An argument that this verb takes.
    fn argument(row: &Row) -> &'static str {
        match row.letters {
            "sl" => "0 3",
            "bwait" => "2 0",
            "se" | "incr" | "decr" | "cset" => "3",
            "l" | "w" | "sw" | "rl" | "wl" | "rw" | "ww" | "elect" | "blpop" | "brpop" => "0",
            "r" | "n" | "sr" | "sn" | "rr" | "wr" | "rn" | "wn" | "resign" | "reclaim" => "token",
            "kset" | "lpush" | "rpush" | "signal" => "value",
            "kcas" => "old\tnew\t",
            "lrange" => "0 1",
            "attach" => "60 0123456789abcdef",
            "detach" => "0123456789abcdef",
            "break" => "*",
            "rangelock" => "sh 0 10 0",
            "rangeunlock" => "0 10",
            "rangetest" | "rangecancel" | "rangereclaim" => "sh 0 10",
            _ => "",
        }
    }

    fn home_of<'a>(row: &Row, key: &'a str) -> Option<&'a [u8]> {
        let command = parse(row.verb, key.as_bytes(), argument(row).as_bytes());
        assert!(command.is_ok(), "{}: {command:?}", row.letters);
        let asked = Asked {
            verb: Some(row.verb),
            command,
            used: 0,
        };
        asked.home()
    }

    #[test]
    fn what_is_about_a_client_is_of_no_shard_and_shows_or_ends_what_is_anybodys() {
        for (verb, argument, need) in [
            (Verb::RangeList, "client", Need::Overview),
            (Verb::RangeList, "owner 1.0", Need::Overview),
            (Verb::RangeList, "other", Need::Look),
            (Verb::Break, "range client", Need::Admin),
        ] {
            let asked = Asked {
                verb: Some(verb),
                command: parse(verb, b"gw/1", argument.as_bytes()),
                used: 0,
            };
            assert_eq!(asked.need(), need, "{argument}");
            let home = (need == Need::Look).then_some(&b"gw/1"[..]);
            assert_eq!(asked.home(), home, "{argument}");
            assert_eq!(asked.subject(), Subject::Name(b"gw/1"), "{argument}");
        }
    }

    #[test]
    fn whatever_has_a_key_has_a_home_but_for_clients_and_wildcards() {
        for row in &TABLE {
            let has_home = match row.letters {
                "attach" | "detach" | "reclaimdone" => false,
                _ => !row.ignores_key,
            };
            let home = has_home.then_some(&b"a.b"[..]);
            assert_eq!(home_of(row, "a.b"), home, "{}", row.letters);
            if matches!(row.letters, "listen" | "unlisten" | "watch" | "unwatch") {
                for pattern in ["a.*", "a.>", "*.b", ">"] {
                    assert_eq!(home_of(row, pattern), None, "{} {pattern}", row.letters);
                }
            }
        }
    }
}
