//! What can go wrong for a client, told apart by what its program should do next.
//!
//! Busy: somebody else holds it, come back later. Down: the server cannot be reached. Lost: it was
//! held and is not any more. Refused: the server said no, and why. Misuse: the program asks for what
//! cannot be asked. Unknown: a request was sent and its answer was lost, so that it may have been
//! carried out. Garbage: whoever answers is no latchd.

use std::error;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::base::Fence;
use crate::engine::types::Loss;
use crate::wire::client::Unspellable;
use crate::wire::verbs::Verb;

/// What every call of the client may fail with.
///
/// ```
/// use latchd::client::{Client, ErrorKind};
///
/// // Nobody listens there.
/// let error = Client::connect("127.0.0.1:1").and_then(|client| client.ping()).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Down);
/// assert!(error.to_string().starts_with("127.0.0.1:1: "), "{error}");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The wait was over first.
    Busy {
        /// What was asked for.
        key: String,
    },
    /// The server cannot be reached, or it did not answer in time. Nothing was asked, or what was
    /// asked can do no harm.
    Down {
        /// Which server.
        server: String,
        /// What happened.
        why: io::Error,
    },
    /// It was held, and is not any more.
    Lost {
        /// What was held.
        key: String,
        /// How it ended.
        why: Lost,
    },
    /// The server said no.
    Refused(Refusal),
    /// What the program asks for cannot be asked.
    Misuse(String),
    /// A request was sent and the connection ended before the answer: it may have been carried out. A
    /// lock that was granted so can be used by nobody, and ends with its lease at the latest.
    Unknown {
        /// Which server.
        server: String,
        /// What was asked for.
        key: String,
        /// The grant that may be the lost answer, if the server shows one.
        fence: Option<Fence>,
        /// What happened to the connection.
        why: io::Error,
    },
    /// The server says what no latchd says.
    Garbage {
        /// Which server.
        server: String,
        /// The beginning of what it said.
        said: String,
    },
}

/// The kinds of [`Error`], for programs that only want to know what to do next.
///
/// ```
/// use latchd::client::ErrorKind;
/// assert_ne!(ErrorKind::Busy, ErrorKind::Down);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else holds it.
    Busy,
    /// The server cannot be reached.
    Down,
    /// It is held no longer.
    Lost,
    /// The server said no.
    Refused,
    /// The program is wrong.
    Misuse,
    /// A request may have been carried out or not.
    Unknown,
    /// It is no latchd.
    Garbage,
}

/// How something that was held came to its end.
///
/// ```
/// use latchd::client::Lost;
/// assert_eq!(Lost::Broken.to_string(), "an operator has broken it");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its lease is over, by the server's word or by our own clock.
    Expired,
    /// An operator ended it.
    Broken,
    /// The server does not know it any more: it was let go with its token by somebody else, or the
    /// server has forgotten it in a restart.
    Forgotten,
    /// The connection that it belonged to has ended.
    Disconnected,
    /// This process was forked from the one that holds it, and has only a copy of the guard.
    OtherProcess,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease is over",
            Self::Broken => "an operator has broken it",
            Self::Forgotten => "the server does not know it any more",
            Self::Disconnected => "the connection that held it has ended",
            Self::OtherProcess => "the process that this one was forked from has it",
        })
    }
}

impl From<Loss> for Lost {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Expired => Self::Expired,
            Loss::Broken => Self::Broken,
        }
    }
}

/// A refusal: the server's word, and what it was about.
///
/// ```no_run
/// # use latchd::client::{Client, Error, Reason};
/// # let client = Client::connect("localhost")?;
/// match client.lock("job").try_acquire() {
///     Err(Error::Refused(refusal)) if refusal.reason() == Reason::Auth => eprintln!("wrong token"),
///     other => drop(other?),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub(super) server: String,
    pub(super) verb: Verb,
    pub(super) key: String,
    pub(super) word: String,
    pub(super) grace: Option<Duration>,
}

impl Refusal {
    /// What the server said, such as `error_max_locks`.
    #[must_use]
    pub fn word(&self) -> &str {
        &self.word
    }

    /// Which server said it.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What the word means.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self.word.as_str() {
            "error_auth" => Reason::Auth,
            "error_forbidden" => Reason::Forbidden,
            "error_draining" => Reason::Draining,
            "error_deadlock" => Reason::Deadlock,
            "error_max_locks" | "error_max_waiters" | "error_max_keys" | "error_list_full"
            | "error_limit" | "error_max_clients" | "error_memory" | "error_storage" => {
                Reason::Full
            }
            "error_type_mismatch"
            | "error_limit_mismatch"
            | "error_barrier_count_mismatch"
            | "error_already_enqueued"
            | "error_not_enqueued"
            | "error_range" => Reason::Mismatch,
            "error_grace" => Reason::Grace(self.grace),
            _ => Reason::Other,
        }
    }
}

/// Why a server said no.
///
/// ```
/// use latchd::client::Reason;
/// assert_ne!(Reason::Auth, Reason::Full);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The token is wrong or missing, be it the server's or a client's own.
    Auth,
    /// This token may not do that.
    Forbidden,
    /// The server is shutting down.
    Draining,
    /// The request would wait for itself.
    Deadlock,
    /// A limit of the server is reached: locks, waiters, entries, memory, disk.
    Full,
    /// The key is something else: another kind of lock, another number of slots, another order of
    /// requests.
    Mismatch,
    /// The bytes are kept for who held them before a restart, for so long at most.
    Grace(Option<Duration>),
    /// Anything else.
    Other,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            server,
            verb,
            key,
            word,
            ..
        } = self;
        write!(f, "{server}: {} {key}: {word}: ", verb.row().letters)?;
        f.write_str(match word.as_str() {
            "error" if *verb == Verb::Auth => "the server asks for no token; leave it out",
            "error" if *verb == Verb::Hello => "the server does not know what is asked of it here",
            "error_auth" => "the secret is wrong or missing",
            "error_forbidden" => "this token may not do that",
            "error_draining" => "the server is shutting down; ask again when it is back",
            "error_deadlock" => "this would wait for itself; let something go and begin again",
            "error_max_locks" => {
                "the server has as many locks as it may (--max-locks, --max-holds)"
            }
            "error_max_waiters" => "as many wait for it as may (--max-waiters)",
            "error_max_keys" => "the server has as many entries as it may (--max-keys)",
            "error_list_full" => "the list is as long as it may be (--max-list-length)",
            "error_max_clients" => "its adapter has as many clients as it may (--max-clients)",
            "error_limit" => "a limit of the server is reached",
            "error_memory" => "the server has no memory for more (--max-memory)",
            "error_storage" => "the disk of the server is full",
            "error_type_mismatch" => "the key is another kind of lock",
            "error_limit_mismatch" => "the key has another number of slots",
            "error_barrier_count_mismatch" => "the barrier is for another number",
            "error_already_enqueued" => "there is a place in the queue already",
            "error_not_enqueued" => "there is no place in the queue",
            "error_grace" => "kept for who held it before a restart",
            "error_reclaim" => "it was not held so, or is no longer",
            "error_no_grace" => "there is nothing to have back",
            "error_range" => "there are no such bytes",
            "error_busy" => "this owner waits for other bytes already",
            _ => "not possible, or not held",
        })
    }
}

impl Error {
    /// Which kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Down { .. } => ErrorKind::Down,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::Refused(_) => ErrorKind::Refused,
            Self::Misuse(_) => ErrorKind::Misuse,
            Self::Unknown { .. } => ErrorKind::Unknown,
            Self::Garbage { .. } => ErrorKind::Garbage,
        }
    }

    /// The reason of a refusal.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(refusal) => Some(refusal.reason()),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { key } => write!(f, "{key}: still held by somebody else"),
            Self::Down { server, why } => write!(f, "{server}: {why}"),
            Self::Lost { key, why } => write!(f, "{key}: held no longer: {why}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Misuse(why) => f.write_str(why),
            Self::Unknown {
                server,
                key,
                fence,
                why,
            } => {
                write!(f, "{server}: {key}: the answer was lost ({why})")?;
                match fence {
                    Some(fence) => write!(f, "; grant {fence} may be it, and ends with its lease"),
                    None => f.write_str("; it may have been carried out or not"),
                }
            }
            Self::Garbage { server, said } => {
                write!(f, "{server}: no answer of a latchd: {said:?}")
            }
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Down { why, .. } | Self::Unknown { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl From<Unspellable> for Error {
    fn from(why: Unspellable) -> Self {
        Self::Misuse(why.to_string())
    }
}

/// A key as people read it: it may be any bytes.
pub(super) fn shown(key: &[u8]) -> String {
    crate::escape::bytes(key)
}
