//! Accepting connections: how many in one turn, and what happens when descriptors run out (EMFILE).
//!
//! Connections never take the last descriptors: the journal, the log and files that are read again
//! need some, too. When there are no more, the oldest connection that has not authenticated makes
//! room for a newcomer; without one newcomers wait.
//!
//! A connection that is not accepted yet waits in the listener's backlog, which the kernel keeps,
//! so a pause in accepting loses nobody. An outage is reported once when it begins and once when it
//! is over, however many attempts lie between, and at most one outage a second. The reactor decides
//! when to accept: at the end of its turn.

use std::io::{self, ErrorKind};
use std::os::fd::RawFd;

use log::{error, info, warn};
use mio::{Interest, Registry};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::reactor::token;
use super::{Listener, Stream};
use crate::base::{Millis, Nanos};
use crate::server::{Door, Server};
use crate::store::Store;

/// Most connections accepted from one listener in one turn; the others wait for the next turn.
const ACCEPTS_PER_TURN_MAX: u32 = 128;

/// How long accepting pauses when descriptors have run out: doubled up to the second figure.
const ACCEPT_PAUSE_MIN: Millis = Millis(5);
const ACCEPT_PAUSE_MAX: Millis = Millis(1_000);

/// How long the log is silent about outages after it has told of one.
const OUTAGE_PAUSE: Millis = Millis(1_000);

/// Descriptors that connections leave to files, but at most an eighth of the limit. The journal
/// opens up to four: the next segment, the spare, and two for a compaction.
const RESERVED_DESCRIPTORS: u64 = 16;

/// How far connections may use descriptors. The kernel gives out the lowest number that is free, so
/// the number of a new connection says how many are in use.
pub(super) struct Descriptors {
    /// Connections have numbers below this one.
    end: u64,
    /// The last number below it may be in use.
    is_short: bool,
}

impl Descriptors {
    pub(super) fn new() -> Self {
        Self {
            end: 0,
            is_short: false,
        }
    }

    /// Looks how many there are: the limit can be changed from outside.
    pub(super) fn look(&mut self) {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.end = limit - RESERVED_DESCRIPTORS.min(limit / 8);
    }

    /// A connection has this number.
    fn note(&mut self, number: RawFd) {
        self.is_short = number as u64 + 1 >= self.end;
    }

    /// Whether another connection may be accepted.
    fn check(&mut self, listener: &Listener) -> io::Result<()> {
        if self.is_short {
            self.is_short = listener.lowest_free_descriptor()? as u64 >= self.end;
        }
        match self.is_short {
            true => Err(Errno::MFILE.into()),
            false => Ok(()),
        }
    }
}

/// A listener, and whether and when to accept from it.
pub(super) struct Acceptor {
    listener: Listener,
    /// A peer may be waiting in the backlog.
    ready: bool,
    /// No attempt before this time: it lies ahead while accepting pauses.
    not_before: Nanos,
    /// A stranger makes room for the next peer no earlier, unless there is room before.
    room_at: Nanos,
    /// How long the next pause will be.
    pause: Millis,
    outages: Outages,
}

/// Outages are spans in which accepting fails. The log reports at most one a second, because a peer
/// that opens and closes connections at the limit of descriptors can cause many.
#[derive(Default)]
struct Outages {
    /// Accepting has failed, and the backlog has not been empty since.
    is_on: bool,
    /// The log has reported the beginning of this outage, so it reports the end as well.
    is_told: bool,
    /// The next one is told of no earlier.
    not_before: Nanos,
    /// How many began since the log told of one.
    untold: u32,
}

impl Outages {
    /// Accepting has failed. If the log is to report this outage, at its beginning or later because
    /// it lasts, returns how many earlier outages the log left out.
    fn note(&mut self, now: Nanos) -> Option<u32> {
        let is_new = !std::mem::replace(&mut self.is_on, true);
        self.untold += u32::from(is_new);
        if self.is_told || now < self.not_before {
            return None;
        }
        self.is_told = true;
        self.not_before = now.after(OUTAGE_PAUSE);
        Some(std::mem::take(&mut self.untold) - 1)
    }

    /// The backlog is empty. Returns whether the log is to say so.
    fn end(&mut self) -> bool {
        self.is_on = false;
        std::mem::take(&mut self.is_told)
    }
}

impl Acceptor {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            ready: false,
            not_before: Nanos::default(),
            room_at: Nanos::default(),
            pause: ACCEPT_PAUSE_MIN,
            outages: Outages::default(),
        }
    }

    /// The listener has reported a peer. It does so once, so this is remembered until the backlog
    /// turns out to be empty.
    pub(super) fn note_ready(&mut self) {
        self.ready = true;
    }

    /// When to accept next; `None` if nobody is waiting.
    pub(super) fn next_attempt(&self) -> Option<Nanos> {
        self.ready.then(|| self.not_before.max(self.room_at))
    }

    /// Accepts the peers that are waiting, as far as one turn goes, and hands them to the server.
    pub(super) fn accept<S: Store>(
        &mut self,
        now: Nanos,
        server: &mut Server<Stream, S>,
        registry: &Registry,
        descriptors: &mut Descriptors,
    ) {
        let memory = server.transport_memory();
        let mut accepts_left = ACCEPTS_PER_TURN_MAX;
        while self.ready && self.not_before <= now && accepts_left > 0 {
            self.room_at = server.accepts_from(now);
            if self.room_at > now {
                return;
            }
            accepts_left -= 1;
            let checked = descriptors.check(&self.listener);
            match checked.and_then(|()| self.listener.accept(&memory)) {
                Ok((stream, number)) => {
                    descriptors.note(number);
                    self.pause = ACCEPT_PAUSE_MIN;
                    hand_over(stream, self.listener.door(), now, server, registry);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.backlog_is_empty(),
                Err(error) if is_of_one_peer(&error) => {}
                Err(error) if is_without_descriptors(&error) && !self.listener.has_waiting() => {
                    self.backlog_is_empty();
                }
                Err(error)
                    if is_without_descriptors(&error)
                        && let Some(room_at) = server.make_room(now) =>
                {
                    self.room_at = room_at;
                    if room_at > now {
                        return;
                    }
                }
                Err(error) => self.pause_after(&error, now),
            }
        }
    }

    fn backlog_is_empty(&mut self) {
        self.ready = false;
        if self.outages.end() {
            info!("accepts on {} again", self.listener);
        }
    }

    /// Descriptors or memory have run out. At the limit of descriptors Linux says so even if nobody
    /// is waiting, so this need not mean that somebody was kept out.
    fn pause_after(&mut self, error: &io::Error, now: Nanos) {
        if let Some(untold) = self.outages.note(now) {
            let advice = advice(error);
            warn!(
                "cannot accept on {}: {error}; new connections wait{advice}",
                self.listener
            );
            if untold > 0 {
                warn!("{untold} more times {} could not accept", self.listener);
            }
        }
        self.not_before = now.after(self.pause);
        self.pause = Millis(self.pause.0 * 2).min(ACCEPT_PAUSE_MAX);
    }
}

/// Gives a connection to the server, which closes it if there is no room.
fn hand_over<S: Store>(
    stream: Stream,
    door: Door,
    now: Nanos,
    server: &mut Server<Stream, S>,
    registry: &Registry,
) {
    let Some(id) = server.accept_at(now, stream, door) else {
        return;
    };
    let registered = server
        .transport_mut(id)
        .map(|stream| registry.register(stream, token(id), Interest::READABLE));
    if let Some(Err(error)) = registered {
        error!("cannot listen to connection {}: {error}", id.serial);
        server.lose(now, id);
    }
}

/// Whether an error of `accept` concerns a single peer, which was gone before we got to it.
fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}

/// Whether this process has no descriptors left.
fn is_without_descriptors(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::MFILE)
}

/// What an operator can do about it, to be said after the error.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            ": raise the limit of open files (ulimit -n, LimitNOFILE=), \
             or set --max-connections below it"
        }
        Some(Errno::NFILE) => ": raise the system's limit of open files (sysctl fs.file-max)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_tells_of_one_outage_a_second_and_counts_the_others() {
        let mut outages = Outages::default();
        let at = |ms| Nanos(5).after(Millis(ms));
        assert_eq!(outages.note(at(0)), Some(0));
        assert_eq!(outages.note(at(1)), None, "the same one");
        assert!(outages.end());
        for ms in 2..900 {
            assert_eq!(outages.note(at(ms)), None);
            assert!(!outages.end());
        }
        assert_eq!(outages.note(at(900)), None);
        assert_eq!(outages.note(at(1_000)), Some(898), "it lasts");
        assert_eq!(outages.note(at(1_001)), None);
        assert!(outages.end());
        assert_eq!(outages.note(at(2_500)), Some(0));
    }
}
