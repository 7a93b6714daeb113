//! Why something did not come about: what, where, and what can be done.
//!
//! Somebody else's lock, a server that cannot be reached, an answer that got lost, an answer that
//! makes no sense and a call that makes none are five different things, and are told apart.

use std::error;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why something did not come about.
///
/// ```
/// use std::time::Duration;
/// use latchd::http_client::{Error, LeaseClient};
///
/// let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// let error = client.acquire_once("job", "me", Duration::ZERO).unwrap_err();
/// assert!(matches!(error, Error::Misuse { .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server has answered, and the lock is somebody else's, or cannot be granted now.
    NotAcquired(NotAcquired),
    /// The server has answered with a status that has no place here: 401 if the token is wrong, 503 if it
    /// is shutting down or has no room.
    UnexpectedStatus {
        /// The method of the request.
        method: &'static str,
        /// Its path.
        path: String,
        /// The status of the answer.
        status: u16,
        /// The beginning of its body, JSON or not.
        body: String,
    },
    /// The status fits, and the body does not: it is no JSON, or lacks what it has to say. What was asked
    /// for may have been done.
    BadAnswer {
        /// The path of the request.
        path: String,
        /// The status of the answer.
        status: u16,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There was no answer: the server cannot be reached, or took too long, or the connection broke.
    NoAnswer {
        /// The path of the request.
        path: String,
        /// Whether the request may have reached the server, so that it may have been done.
        may_have_arrived: bool,
        /// What happened; of the kind `TimedOut` if it took too long.
        source: io::Error,
    },
    /// An acquire may have been granted, but its answer was lost, and asking again did not clear that up.
    /// The lock may be held, for at most its whole time to live. Ask again with
    /// [this id](super::RetryOptions::request_id) to have it after all.
    AnswerLost {
        /// The id of the request.
        request_id: String,
        /// What the last attempt came to.
        source: Box<Self>,
    },
    /// Somebody has [cancelled](super::Cancel) it.
    Cancelled {
        /// The id of the request, if one was under way: the lock may have been granted in that moment,
        /// and is held until its time is over, or until it is asked for again with this id and released.
        request_id: Option<String>,
    },
    /// The call makes no sense, and nothing was sent.
    Misuse {
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The system has no thread for a heartbeat.
    NoThread(io::Error),
}

impl Error {
    pub(super) fn misuse(why: impl Into<String>) -> Self {
        Self::Misuse { why: why.into() }
    }

    /// What happened, without what was asked.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::NoAnswer { source, .. } => source.to_string(),
            error => error.to_string(),
        }
    }

    /// Whether what was asked for may have been done although nobody has said so.
    pub(super) fn leaves_doubt(&self) -> bool {
        match self {
            Self::NoAnswer {
                may_have_arrived, ..
            } => *may_have_arrived,
            Self::BadAnswer { .. } | Self::AnswerLost { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What comes from elsewhere is quoted: nobody else is to choose what a log says.
        match self {
            Self::NotAcquired(refused) => refused.fmt(f),
            Self::UnexpectedStatus {
                method,
                path,
                status,
                body,
            } => {
                write!(f, "{method} {path} was answered with {status}")?;
                f.write_str(advice(*status))?;
                let shown: String = body.chars().take(200).collect();
                match shown.trim_end() {
                    "" => Ok(()),
                    shown => write!(f, ": {shown:?}"),
                }
            }
            Self::BadAnswer { path, status, why } => write!(
                f,
                "the answer to POST {path} has the status {status}, and {why}: \
                 is this address a lock server's?"
            ),
            Self::NoAnswer {
                path,
                may_have_arrived,
                source,
            } => {
                write!(f, "no answer to POST {path}: {source}")?;
                match may_have_arrived {
                    true => f.write_str(" (it may have been done)"),
                    false => f.write_str("; start the server there, or correct the address"),
                }
            }
            Self::AnswerLost { request_id, source } => write!(
                f,
                "the answer to an acquire was lost, so the lock may be held until its time is over; \
                 ask again with the request id {request_id:?} to find out: {source}"
            ),
            Self::Cancelled { .. } => f.write_str("cancelled while waiting for the lock"),
            Self::Misuse { why } => f.write_str(why),
            Self::NoThread(source) => write!(f, "there is no thread for the heartbeat: {source}"),
        }
    }
}

/// What can be done about a status, where that is known.
const fn advice(status: u16) -> &'static str {
    match status {
        401 => " (show the server's token)",
        404 => " (is this address a lock server's?)",
        503 => " (try again later)",
        _ => "",
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::NoAnswer { source, .. } | Self::NoThread(source) => Some(source),
            Self::AnswerLost { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What the server says when it does not grant a lock.
///
/// ```
/// use latchd::http_client::{Error, NotAcquired, Reason};
///
/// fn shown(error: &Error) -> String {
///     match error {
///         Error::NotAcquired(NotAcquired { reason: Reason::Held, current_owner_id, .. }) => {
///             format!("{} has it", current_owner_id.as_deref().unwrap_or("somebody"))
///         }
///         error => error.to_string(),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotAcquired {
    /// The lock.
    pub lock_name: String,
    /// Why not.
    pub reason: Reason,
    /// When to ask again, as the server sees it.
    pub recommended_retry: Option<Duration>,
    /// Who holds it, if that has a name.
    pub current_owner_id: Option<String>,
    /// When that lease ends unless it is renewed: a time of day, in milliseconds since 1970.
    pub current_expiry_ms: Option<u64>,
}

/// Why a lock is not granted.
///
/// ```
/// use latchd::http_client::Reason;
///
/// assert_eq!(Reason::Held.to_string(), "HELD");
/// assert_eq!(Reason::Busy.to_string(), "BUSY_RETRY");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Somebody holds it; this may be the same owner, because a lock is not re-entrant.
    Held,
    /// The server cannot grant anything for now: there is no room on its disk.
    Busy,
    /// Another one, in the server's word.
    Other(String),
}

impl Reason {
    pub(super) fn read(word: &str) -> Self {
        match word {
            "HELD" => Self::Held,
            "BUSY_RETRY" => Self::Busy,
            other => Self::Other(other.chars().take(64).collect()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("HELD"),
            Self::Busy => f.write_str("BUSY_RETRY"),
            Self::Other(word) => f.write_str(word),
        }
    }
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lock_name,
            reason,
            current_owner_id,
            ..
        } = self;
        match (reason, current_owner_id) {
            (Reason::Held, Some(owner)) => write!(f, "{lock_name:?} is held by {owner:?}"),
            (Reason::Held, None) => write!(f, "{lock_name:?} is held by somebody else"),
            (Reason::Busy, _) => write!(
                f,
                "{lock_name:?} cannot be granted now, because the server is busy: try again later"
            ),
            (Reason::Other(word), _) => write!(f, "{lock_name:?} is not granted: {word:?}"),
        }
    }
}
