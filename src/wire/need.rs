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
}

/// Whether a request takes signals away from others who listen in the same group.
pub(super) fn is_of_group(request: &Request<'_>) -> bool {
    matches!(request, Request::Listen { group, .. } if !group.is_empty())
}

impl<'a> Asked<'a> {
    /// What it needs, if it is a request at all. Whoever listens in a group takes signals away from others,
    /// and to end the grace period is more than to look at it.
    #[must_use]
    pub fn need(&self) -> Need {
        match &self.command {
            Ok(Command::Engine(request)) if is_of_group(request) => Need::Write,
            Ok(Command::Grace { ends: true }) => Need::Admin,
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
}
