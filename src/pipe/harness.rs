//! A server with pipes for a network and a number for the time: the one harness of all tests over
//! pipes, and of the benches.
//!
//! What peers do is noted and reported with the next [`turn`](Pipes::turn), as a poll would report it.
//! Connections are accepted at once, which is between two turns, where the reactor accepts too.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::{Peer, Pipe, pipe};
use crate::base::{ConnId, Millis, Nanos};
use crate::server::{Event, Server};

/// Most turns the server may ask for at one instant; one more and it would never sleep.
const TURNS_AT_ONCE_MAX: u32 = 1_000_000;

/// A server, its peers and the time.
pub struct Pipes {
    /// The server, to look at and to ask.
    pub server: Server<Pipe>,
    peers: Vec<(Option<ConnId>, Peer)>,
    /// Whom the next turn hears of, in order.
    reported: Vec<usize>,
    /// For whom the server wants to hear of room to write.
    watched: BTreeSet<ConnId>,
    stops: u32,
    now: Cell<Nanos>,
    /// How far every look at the clock moves it.
    look_ns: u64,
}

impl Pipes {
    /// Nobody is connected, and the time is 1: 0 is when the server has work left.
    #[must_use]
    pub fn new(server: Server<Pipe>) -> Self {
        Self {
            server,
            peers: Vec::new(),
            reported: Vec::new(),
            watched: BTreeSet::new(),
            stops: 0,
            now: Cell::new(Nanos(1)),
            look_ns: 0,
        }
    }

    // ---- time ----

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// Moves the clock and nothing else.
    pub fn pass(&self, span: Millis) {
        self.now.set(self.now().after(span));
    }

    /// From now on every look at the clock moves it this far.
    pub fn move_clock_when_looked_at(&mut self, ns: u64) {
        self.look_ns = ns;
    }

    // ---- peers ----

    /// A new connection, by number from 0. One that is refused reads its end at once.
    pub fn connect(&mut self) -> usize {
        let number = self.peers.len();
        let (here, peer) = pipe(number as u32);
        let id = self.server.accept(self.now(), here);
        self.peers.push((id, peer));
        number
    }

    /// One whose peer takes no more than this before it is read from.
    pub fn connect_with_room(&mut self, bytes: usize) -> usize {
        let who = self.connect();
        self.peer(who).set_room(bytes);
        who
    }

    /// The client's end.
    #[must_use]
    pub fn peer(&self, who: usize) -> &Peer {
        &self.peers[who].1
    }

    /// What the server calls the connection; none if it was refused.
    #[must_use]
    pub fn id(&self, who: usize) -> Option<ConnId> {
        self.peers[who].0
    }

    /// Bytes arrive from a client, all of them.
    pub fn send(&mut self, who: usize, bytes: &[u8]) {
        self.peer(who).send(bytes);
        self.peer(who).arrive(usize::MAX);
        self.report(who);
    }

    /// The client sends no more and still reads.
    pub fn half_close(&mut self, who: usize) {
        self.peer(who).close();
        self.report(who);
    }

    /// The connection breaks.
    pub fn reset(&mut self, who: usize) {
        self.peer(who).reset();
        self.report(who);
    }

    /// What the client has to read; whatever it made room for is reported.
    pub fn receive(&mut self, who: usize) -> Vec<u8> {
        let bytes = self.peer(who).receive();
        if !bytes.is_empty() {
            self.report(who);
        }
        bytes
    }

    /// The next turn hears of this connection, as it is by then.
    pub fn report(&mut self, who: usize) {
        if !self.reported.contains(&who) {
            self.reported.push(who);
        }
    }

    /// The server is told to stop, as by a signal, in the next turn.
    pub fn stop(&mut self) {
        self.stops += 1;
    }

    // ---- turns ----

    /// One turn with everything that happened since the last.
    pub fn turn(&mut self) {
        let reported = std::mem::take(&mut self.reported);
        let events: Vec<Event> = reported.iter().filter_map(|&who| self.event(who)).collect();
        let (now, look_ns) = (&self.now, self.look_ns);
        let clock = || {
            now.set(Nanos(now.get().0 + look_ns));
            now.get()
        };
        self.server
            .turn(&clock, events.into_iter(), std::mem::take(&mut self.stops));
        self.follow_interests();
    }

    fn event(&self, who: usize) -> Option<Event> {
        let conn = self.id(who)?;
        let mut readiness = self.peer(who).readiness();
        readiness.writable &= self.watched.contains(&conn);
        Some(Event { conn, readiness })
    }

    /// As a poll, which reports at registration what is so already.
    fn follow_interests(&mut self) {
        let mut changed = Vec::new();
        self.server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            if wants_write {
                self.watched.insert(id);
            } else {
                self.watched.remove(&id);
            }
            let who = self.peers.iter().position(|(it, _)| *it == Some(id));
            if let Some(who) = who
                && self.event(who).is_some_and(|it| it.readiness.writable)
            {
                self.report(who);
            }
        }
    }

    /// A turn, and more for as long as the server has something to do at this instant; says how many.
    pub fn settle(&mut self) -> u32 {
        for turns in 1..=TURNS_AT_ONCE_MAX {
            self.turn();
            if !self.has_more() {
                return turns;
            }
        }
        panic!("the server does not come to rest");
    }

    /// Whether the server has something to do at this instant.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.server
            .next_deadline()
            .is_some_and(|at| at <= self.now())
    }
}
