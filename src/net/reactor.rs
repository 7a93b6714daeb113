//! The loop: poll → hang-ups → other events → finish the turn → accept → sleep.
//!
//! Accepting comes last: by then whoever left in this turn has made room for one who came after it.
//! Reads the clock when a turn begins, after every read of a socket, and before it sleeps: three times
//! for one request. mio tells about readiness only once, so whoever is not drained is remembered (by
//! the server, for connections; here, for listeners). Interest in writing is taken only while
//! something is owed: a unix socket would otherwise wake us whenever its peer reads. Never looks
//! inside a request.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use log::{error, info, warn};
use mio::{Events, Interest, Poll, Token, Waker};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_mio::v1_0::Signals;

use super::accept::Acceptor;
use super::{Clock, Listener, Stream};
use crate::base::{ClientId, Nanos};
use crate::server::Server;

/// Most events of one turn; the rest come with the next. So many that one turn hears everyone: after
/// a long stop every lease may be over, and a release that has arrived must still come first (but for
/// that of somebody who has hung up, among many who have). The memory is not touched until it is
/// needed.
const EVENTS_PER_TURN_MAX: usize = 64 * 1024;

/// Our own tokens. A connection's has its serial in the upper half, and no serial is 0.
const SIGNALS: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_LISTENER: usize = 2;

/// The event loop with everything in it.
pub struct Reactor {
    poll: Poll,
    events: Events,
    server: Server<Stream>,
    acceptors: Vec<Acceptor>,
    signals: Option<Signals>,
    remote: Remote,
    clock: Clock,
    /// When the turn began; none before the first.
    woke_at: Option<Nanos>,
    /// Poll without ever sleeping.
    spin: bool,
    /// Requests to stop that were already heard.
    stops_heard: u32,
}

/// A handle by which another thread ends the loop, or makes it look at a clock that was moved.
#[derive(Clone, Debug)]
pub struct Remote {
    waker: Arc<Waker>,
    stops: Arc<AtomicU32>,
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

    /// Starts a turn.
    ///
    /// # Errors
    /// When the loop cannot be woken.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }
}

impl Reactor {
    /// A loop that serves these listeners.
    ///
    /// # Errors
    /// When the kernel refuses a poll or a registration.
    pub fn new(server: Server<Stream>, listeners: Vec<Listener>, clock: Clock) -> io::Result<Self> {
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
            signals: None,
            remote: Remote {
                waker,
                stops: Arc::new(AtomicU32::new(0)),
            },
            clock,
            woke_at: None,
            spin: false,
            stops_heard: 0,
        })
    }

    /// Never sleeps: the lowest latency for a whole core.
    pub fn spin(&mut self) {
        self.spin = true;
    }

    /// Stops on SIGINT and SIGTERM, and survives SIGHUP.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub fn catch_signals(&mut self) -> io::Result<()> {
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
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

    /// Serves until a shutdown has come to its end.
    ///
    /// # Errors
    /// When polling itself fails; nothing a peer does leads here.
    pub fn run(mut self) -> io::Result<()> {
        while !self.server.is_drained() {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut timeout = self.fall_asleep();
        // Interrupted is also a process that was stopped and goes on, perhaps much later. What came
        // meanwhile has to be heard before the leases that ended meanwhile, so look once more.
        while let Err(error) = self.poll.poll(&mut self.events, timeout) {
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
            timeout = Some(Duration::ZERO);
        }
        let now = self.clock.now();
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            if let Some(id) = connection(event.token())
                && (event.is_read_closed() || event.is_error())
            {
                self.server.hang_up(now, id);
            }
        }
        for event in &events {
            match (event.token(), connection(event.token())) {
                (_, Some(id)) => {
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.server.readable(&|| self.clock.now(), id);
                    }
                    if event.is_writable() {
                        self.server.writable(id);
                    }
                }
                (SIGNALS, _) => self.hear_signals(now),
                (WAKER, _) => self.hear_remote(now),
                (Token(token), _) => {
                    if let Some(acceptor) = self.acceptors.get_mut(token - FIRST_LISTENER) {
                        acceptor.note_ready();
                    }
                }
            }
        }
        self.events = events;
        self.server.finish_turn(&|| self.clock.now());
        self.follow_interests();
        self.accept();
        self.woke_at = Some(now);
        Ok(())
    }

    /// Ends the turn and says how long to sleep: until the next deadline, not at all while somebody has
    /// more to do.
    fn fall_asleep(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        if let Some(woke_at) = self.woke_at {
            self.server.note_turn(now.since(woke_at));
        }
        if self.spin {
            return Some(Duration::ZERO);
        }
        let attempts = self.acceptors.iter().filter_map(Acceptor::next_attempt);
        let next = attempts.chain(self.server.next_deadline()).min()?;
        // Not from the turn's beginning: that may be long ago, and sleeping would start late.
        Some(Duration::from_nanos(next.since(now)))
    }

    fn accept(&mut self) {
        if self.acceptors.iter().all(|it| it.next_attempt().is_none()) {
            return; // without a look at the clock
        }
        let now = self.clock.now();
        for acceptor in &mut self.acceptors {
            acceptor.accept(now, &mut self.server, self.poll.registry());
        }
    }

    /// Listens for room to write exactly where something is owed.
    fn follow_interests(&mut self) {
        let registry = self.poll.registry();
        self.server.changed_interests(|id, stream, wants_write| {
            let interest = if wants_write {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            if let Err(error) = registry.reregister(stream, token(id), interest) {
                // Nothing is lost: the write timeout ends a connection that hears of no room.
                error!(
                    "cannot listen for room to write to connection {}: {error}",
                    id.serial
                );
            }
        });
    }

    fn hear_signals(&mut self, now: Nanos) {
        let Some(signals) = &mut self.signals else {
            return;
        };
        let pending: Vec<_> = signals.pending().collect();
        for signal in pending {
            match signal {
                // A closed terminal and a habit of reloading must not cost anyone a lock.
                SIGHUP => info!(
                    "SIGHUP: nothing to reload; settings are read at the start only, \
                     restart latchd to change them"
                ),
                _ => self.stop(now),
            }
        }
    }

    fn hear_remote(&mut self, now: Nanos) {
        while self.stops_heard < self.remote.stops.load(Ordering::SeqCst) {
            self.stops_heard += 1;
            self.stop(now);
        }
    }

    /// The first time lets everyone finish, the second time does not.
    fn stop(&mut self, now: Nanos) {
        if self.server.is_draining() {
            let closed = connections(self.server.connections());
            warn!("told to stop again: closing {closed}");
            return self.server.close_all(now);
        }
        match self.server.connections() {
            0 => info!("shutting down: no connection is open"),
            count => info!(
                "shutting down: {} may finish within --shutdown-timeout; \
                 a second signal closes all at once",
                connections(count)
            ),
        }
        self.acceptors.clear();
        self.server.shutdown(now);
    }
}

/// `1 connection`, `2 connections`.
fn connections(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} connection{plural}")
}

pub(super) fn token(id: ClientId) -> Token {
    Token(usize::try_from(id.pack()).expect("a 64-bit machine"))
}

fn connection(token: Token) -> Option<ClientId> {
    let id = ClientId::unpack(token.0 as u64);
    (id.serial != 0).then_some(id)
}
