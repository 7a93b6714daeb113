//! The loop: poll, one turn of the server (`server/turn.rs` has its order), accept, sleep.
//!
//! Accepting comes last: connections that ended in this turn have made room by then.
//!
//! The loop reads the clock when a turn begins, after every read of a socket, and before it sleeps:
//! three times for one request. mio reports readiness only once, so somebody has to remember each
//! socket that was not drained: the server does for connections, `accept.rs` for listeners. The
//! loop asks about room to write only while a connection has unsent bytes; otherwise a unix socket
//! would wake it whenever the peer reads. It never looks inside a request.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use log::error;
use mio::{Events, Interest, Poll, Token, Waker};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

use super::accept::{Acceptor, Descriptors};
use super::{Clock, Listener, Stream};
use crate::base::{ConnId, Millis, Nanos};
use crate::server::{Event, Readiness, Server};
use crate::store::{Memory, Store};

/// Most events of one turn; the rest come with the next turn. There is room for everyone: after a
/// long stop every lease may have ended, and a release that has arrived must still be heard first.
/// (If many clients have hung up, the releases of some of them may come too late.) The kernel
/// provides the memory only where events are written.
const EVENTS_PER_TURN_MAX: usize = 64 * 1024;

/// A sleep no longer than this ends on time, but for a tenth of a millisecond or two.
const EXACT_SLEEP_MAX: Duration = Duration::from_millis(100);

/// A poll counts in milliseconds, and one that has begun counts.
const POLL_ROUNDS_UP: Duration = Duration::from_millis(2);

/// Our own tokens. The token of a connection has the serial in its upper half, and no serial is 0.
const SIGNALS: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_LISTENER: usize = 2;

/// The event loop with everything in it.
pub struct Reactor<S = Memory> {
    poll: Poll,
    events: Events,
    server: Server<Stream, S>,
    acceptors: Vec<Acceptor>,
    /// Which of them accepted first the last time.
    first_acceptor: usize,
    descriptors: Descriptors,
    signals: Option<Signals>,
    remote: Remote,
    clock: Clock,
    /// The loop polls and never sleeps.
    spin: bool,
    /// How many of the remote's requests to stop were already followed.
    stops_heard: u32,
    log: Option<LogWatch>,
    attendant: Option<Attendant>,
    on_hangup: Option<OnHangup<S>>,
    /// The server has no turn, and is to be looked at again by then.
    holds: Option<Nanos>,
}

/// Somebody who looks after the process now and then, in the loop's own thread: if the loop is
/// stuck, nobody looks.
struct Attendant {
    /// Is told the time and what is to be seen; says when to look again.
    look: Box<dyn FnMut(Nanos, Seen) -> Nanos>,
    next: Nanos,
    /// It has seen that a shutdown has begun.
    has_seen_draining: bool,
}

/// What somebody sees who looks after the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Grants and range locks.
    pub held: usize,
    /// Who waits for one.
    pub waiting: usize,
    /// Open connections.
    pub connections: usize,
    /// A shutdown has begun.
    pub is_draining: bool,
}

/// What is done on SIGHUP. It must not wait for anybody: everybody waits for it.
type OnHangup<S> = Box<dyn FnMut(&mut Server<Stream, S>)>;

/// The log, as far as the loop looks after it: lines that were lost are to be told of as soon as
/// somebody reads again, also if nothing else is logged.
struct LogWatch {
    is_behind: fn() -> bool,
    catch_up: fn(),
    /// When it is tried again, while it is behind.
    next_attempt: Option<Nanos>,
}

/// How long after a line was lost, and after each failed attempt to tell so, the next one is made.
const LOG_ATTEMPT_EVERY: Millis = Millis(1_000);

impl LogWatch {
    /// Has the log catch up if it is time; says when to try again.
    fn attend(&mut self, now: Nanos) -> Option<Nanos> {
        if !(self.is_behind)() {
            self.next_attempt = None;
            return None;
        }
        let next = now.after(LOG_ATTEMPT_EVERY);
        if *self.next_attempt.get_or_insert(next) <= now {
            (self.catch_up)();
            self.next_attempt = Some(next);
        }
        self.next_attempt
    }
}

/// Why a loop cannot go on.
#[derive(Debug)]
pub enum RunError {
    /// Polling itself failed.
    Poll(io::Error),
    /// The store failed, and nothing more may be acknowledged.
    Store(String),
    /// It cannot be served any more.
    Between(String),
}

/// What becomes of the server before a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Between {
    /// It goes on.
    Serve,
    /// Another one has taken its place. With the old one all its connections were closed, and nothing
    /// that they were not told is said to them any more; the listeners stay.
    Replaced,
    /// It has no turn and lets nobody in: it is looked at again when something has happened, or after so long at most.
    Holds(Duration),
    /// It ends at once.
    End,
    /// It ends at once, because it cannot go on.
    Failed(String),
}

/// A handle with which another thread stops the loop, or makes it look at a clock that was moved.
#[derive(Clone, Debug)]
pub struct Remote {
    waker: Arc<Waker>,
    stops: Arc<AtomicU32>,
    user_signals: Arc<AtomicU32>,
}

impl Remote {
    /// Begins a graceful shutdown; a second call ends it at once, as a second signal does.
    ///
    /// # Errors
    /// When the loop cannot be woken.
    pub fn stop(&self) -> io::Result<()> {
        self.stops.fetch_add(1, Ordering::SeqCst);
        self.waker.wake()
    }

    /// How often there was a SIGUSR1.
    #[must_use]
    pub fn user_signals(&self) -> u32 {
        self.user_signals.load(Ordering::SeqCst)
    }

    /// Starts a turn.
    ///
    /// # Errors
    /// When the loop cannot be woken.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }
}

impl<S: Store> Reactor<S> {
    /// A loop that serves these listeners.
    ///
    /// # Errors
    /// When the kernel refuses a poll or a registration.
    pub fn new(
        server: Server<Stream, S>,
        listeners: Vec<Listener>,
        clock: Clock,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let mut acceptors = Vec::with_capacity(listeners.len());
        for (index, mut listener) in listeners.into_iter().enumerate() {
            let token = Token(FIRST_LISTENER + index);
            poll.registry()
                .register(&mut listener, token, Interest::READABLE)?;
            acceptors.push(Acceptor::new(listener));
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN_MAX),
            server,
            acceptors,
            first_acceptor: 0,
            descriptors: Descriptors::new(),
            signals: None,
            remote: Remote {
                waker,
                stops: Arc::new(AtomicU32::new(0)),
                user_signals: Arc::new(AtomicU32::new(0)),
            },
            clock,
            spin: false,
            stops_heard: 0,
            log: None,
            attendant: None,
            on_hangup: None,
            holds: None,
        })
    }

    /// Makes the loop poll without sleeping: the lowest latency, at the price of a whole core.
    pub fn spin(&mut self) {
        self.spin = true;
    }

    /// Looks after the log: while `is_behind`, it is told to `catch_up`, once a second.
    pub fn watch_log(&mut self, is_behind: fn() -> bool, catch_up: fn()) {
        self.log = Some(LogWatch {
            is_behind,
            catch_up,
            next_attempt: None,
        });
    }

    /// Has somebody look after the process: at once, whenever it is time, and when a shutdown begins.
    pub fn attend(&mut self, look: impl FnMut(Nanos, Seen) -> Nanos + 'static) {
        self.attendant = Some(Attendant {
            look: Box::new(look),
            next: Nanos(0),
            has_seen_draining: false,
        });
    }

    /// Does this on every SIGHUP.
    pub fn on_hangup(&mut self, reload: OnHangup<S>) {
        self.on_hangup = Some(reload);
    }

    /// What is to be seen now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let (held, waiting) = self.server.held_and_waiting();
        Seen {
            held,
            waiting,
            connections: self.server.connections(),
            is_draining: self.server.is_draining(),
        }
    }

    /// Stops on SIGINT and SIGTERM, and reads again on SIGHUP what can be, if there is anything. SIGUSR1 is only
    /// counted: see [`Remote::user_signals`].
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub fn catch_signals(&mut self) -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
        self.poll
            .registry()
            .register(&mut signals, SIGNALS, Interest::READABLE)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// A handle for other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Serves until a shutdown has come to its end; returns the store, which is to be stopped last.
    ///
    /// # Errors
    /// When polling itself fails, or the store; nothing a peer does leads here.
    pub fn run(self) -> Result<S, RunError> {
        self.run_with(|_, _| Between::Serve)
    }

    /// The same, and before every turn `between` is asked what is to become of the server. It is told how
    /// often we were told to stop since the last time.
    ///
    /// # Errors
    /// As [`Reactor::run`].
    pub fn run_with(
        mut self,
        mut between: impl FnMut(&mut Server<Stream, S>, u32) -> Between,
    ) -> Result<S, RunError> {
        while !self.server.is_drained() {
            if !self.turn(&mut between)? {
                break;
            }
            if let Some(why) = self.server.failure() {
                return Err(RunError::Store(why.to_owned()));
            }
        }
        Ok(self.server.into_store())
    }

    /// One turn; returns whether there is to be another.
    fn turn(
        &mut self,
        between: &mut impl FnMut(&mut Server<Stream, S>, u32) -> Between,
    ) -> Result<bool, RunError> {
        let now = self.clock.now();
        self.server.note_sleep(now);
        self.sleep(now).map_err(RunError::Poll)?;
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let stops = self.hear_others(&events);
        self.holds = None;
        match between(&mut self.server, stops) {
            Between::Serve => {
                let of_connections = events.iter().filter_map(as_event);
                self.server
                    .turn(&|| self.clock.now(), of_connections, stops);
            }
            // What was reported is about connections that are closed now.
            Between::Replaced => {
                self.server
                    .turn(&|| self.clock.now(), [].into_iter(), stops);
            }
            // What was reported is forgotten: it does not come to be heard any more.
            Between::Holds(most) => {
                let ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
                self.holds = Some(Nanos(self.clock.now().0.saturating_add(ns)));
                self.events = events;
                return Ok(true);
            }
            Between::End => return Ok(false),
            Between::Failed(why) => return Err(RunError::Between(why)),
        }
        self.events = events;
        self.follow_interests();
        if self.server.is_listening() {
            self.accept();
        } else {
            self.acceptors.clear();
        }
        Ok(true)
    }

    /// What happened besides connections: signals, other threads, listeners. Says how often we are
    /// told to stop.
    fn hear_others(&mut self, events: &Events) -> u32 {
        let mut stops = 0;
        for event in events {
            match event.token() {
                token if connection(token).is_some() => {}
                SIGNALS => stops += self.hear_signals(),
                WAKER => stops += self.hear_remote(),
                Token(token) => {
                    if let Some(acceptor) = self.acceptors.get_mut(token - FIRST_LISTENER) {
                        acceptor.note_ready();
                    }
                }
            }
        }
        stops
    }

    /// Sleeps until something happens or the next deadline, or not at all if work is left over.
    fn sleep(&mut self, now: Nanos) -> io::Result<()> {
        let log = self.log.as_mut().and_then(|log| log.attend(now));
        let next_look = self.look_after(now);
        let others = log.into_iter().chain(next_look).min();
        let mut left = self.until_deadline(now, others);
        loop {
            match self.poll.poll(&mut self.events, left.map(nap)) {
                Ok(()) if !self.events.is_empty() || left.is_none_or(|left| nap(left) == left) => {
                    return Ok(());
                }
                Ok(()) => left = self.until_deadline(self.clock.now(), others),
                // Polling is interrupted, among others, when the process was stopped and goes on,
                // perhaps much later. Requests that arrived meanwhile must be heard before leases
                // that ended meanwhile are taken away, so poll once more.
                Err(error) if error.kind() == ErrorKind::Interrupted => left = Some(Duration::ZERO),
                Err(error) => return Err(error),
            }
        }
    }

    /// Has somebody look after the process, if it is time; says when to do so again.
    fn look_after(&mut self, now: Nanos) -> Option<Nanos> {
        let is_draining = self.server.is_draining();
        let Attendant {
            next,
            has_seen_draining,
            ..
        } = self.attendant.as_ref()?;
        if now < *next && is_draining == *has_seen_draining {
            return Some(*next);
        }
        let seen = self.seen();
        let attendant = self.attendant.as_mut()?;
        attendant.has_seen_draining = is_draining;
        attendant.next = (attendant.look)(now, seen);
        Some(attendant.next)
    }

    /// How long to sleep at most. Counted from now and not from the beginning of the turn, which may
    /// be long ago.
    fn until_deadline(&self, now: Nanos, others: Option<Nanos>) -> Option<Duration> {
        if self.spin {
            return Some(Duration::ZERO);
        }
        if let Some(until) = self.holds {
            let next = others.map_or(until, |it| it.min(until));
            return Some(Duration::from_nanos(next.since(now)));
        }
        let attempts = self.acceptors.iter().filter_map(Acceptor::next_attempt);
        let next = { attempts }
            .chain(self.server.next_deadline())
            .chain(others)
            .min()?;
        Some(Duration::from_nanos(next.since(now)))
    }

    fn accept(&mut self) {
        if self.acceptors.iter().all(|it| it.next_attempt().is_none()) {
            return; // and save the look at the clock
        }
        let now = self.clock.now();
        self.descriptors.look();
        // Each time another listener is the first: at a limit, the first one may take every place.
        self.first_acceptor = (self.first_acceptor + 1) % self.acceptors.len();
        let (late, early) = self.acceptors.split_at_mut(self.first_acceptor);
        for acceptor in early.iter_mut().chain(late) {
            let (server, registry) = (&mut self.server, self.poll.registry());
            acceptor.accept(now, server, registry, &mut self.descriptors);
        }
    }

    /// Asks about room to write for those connections that have unsent bytes, and for no others.
    fn follow_interests(&mut self) {
        let registry = self.poll.registry();
        self.server.changed_interests(|id, stream, wants_write| {
            let interest = if wants_write {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            if let Err(error) = registry.reregister(stream, token(id), interest) {
                // The write timeout will end a connection whose bytes cannot be sent.
                error!(
                    "cannot listen for room to write to connection {}: {error}",
                    id.serial
                );
            }
        });
    }

    fn hear_signals(&mut self) -> u32 {
        let Some(signals) = &mut self.signals else {
            return 0;
        };
        let (mut stops, mut hang_ups) = (0, 0);
        for signal in signals.pending() {
            match signal {
                SIGHUP => hang_ups += 1,
                SIGINT | SIGTERM => stops += 1,
                SIGUSR1 => {
                    self.remote.user_signals.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
        }
        // A closed terminal and a habit of reloading must not cost anyone a lock.
        if hang_ups > 0
            && let Some(reload) = &mut self.on_hangup
        {
            reload(&mut self.server);
        }
        stops
    }

    fn hear_remote(&mut self) -> u32 {
        let stops = self.remote.stops.load(Ordering::SeqCst);
        stops - std::mem::replace(&mut self.stops_heard, stops)
    }
}

/// How long to sleep in one piece, of the time that is left until a deadline. Linux may end a sleep
/// late, by a thousandth of its length and up to 100 ms (a two-hundredth, if the process is nice), so
/// after 33 seconds a lease would end up to 33 ms late. So we wake a little earlier and sleep again.
fn nap(left: Duration) -> Duration {
    if left <= EXACT_SLEEP_MAX {
        left
    } else {
        left - left / 100 - POLL_ROUNDS_UP
    }
}

/// What an event says about a connection, if it is about one.
fn as_event(event: &mio::event::Event) -> Option<Event> {
    let readiness = Readiness {
        readable: event.is_readable(),
        writable: event.is_writable(),
        hung_up: event.is_read_closed() || event.is_error(),
    };
    connection(event.token()).map(|conn| Event { conn, readiness })
}

pub(super) fn token(id: ConnId) -> Token {
    Token(usize::try_from(id.pack()).expect("a 64-bit machine"))
}

fn connection(token: Token) -> Option<ConnId> {
    let id = ConnId::unpack(token.0 as u64);
    (id.serial != 0).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux may add to a sleep of a nice process, and the rounding of a poll to milliseconds.
    fn longest(sleep: Duration) -> Duration {
        sleep + (sleep / 200).min(Duration::from_millis(100)) + Duration::from_millis(1)
    }

    #[test]
    fn long_sleeps_end_on_time() {
        for ms in [0, 1, 50, 100, 101, 1_000, 33_000, 3_600_000, 1 << 40] {
            let mut left = Duration::from_millis(ms);
            let mut naps = 0;
            while nap(left) < left {
                assert!(longest(nap(left)) <= left, "{left:?} is slept over");
                left -= nap(left);
                naps += 1;
            }
            assert!(
                left <= EXACT_SLEEP_MAX && naps <= 6,
                "{naps} naps, {left:?}"
            );
        }
    }
}
