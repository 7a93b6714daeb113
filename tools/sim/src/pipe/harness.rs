//! A server with pipes for a network and a number for the time: the one harness of all tests over
//! pipes.
//!
//! What peers do is reported with the next [`turn`](Pipes::turn), as a poll would report it: in the
//! order in which they acted, and each connection once. What is done to a [`Peer`] itself is not
//! reported, as if it came just after the poll. Connections are accepted at once, which is between
//! two turns, where the reactor accepts too.

use std::cell::Cell;
use std::ops::Range;

use super::{Meter, Peer, Pipe, metered_pipe};
use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::server::{Door, Event, Host, Readiness, Server, Settings};
use latchd::store::{Memory, Store};
use latchd::wire::client;

/// Where the engines of tests begin: fences count from 1, and salts are the same every time.
pub const ORIGIN: Origin = Origin {
    fence: 0,
    seed: [1, 2],
    salt_key: [3, 4, 5, 6],
};

/// Where connections come from unless a test says otherwise.
const LOCAL: Host = Host::V4([127, 0, 0, 1]);

/// Most turns the server may ask for at one instant; one more and it would never sleep.
const TURNS_AT_ONCE_MAX: u32 = 1_000_000;

/// A server, its peers and the time.
pub struct Pipes<S = Memory> {
    /// The server, to look at and to ask.
    pub server: Server<Pipe, S>,
    /// What it spends on sockets.
    pub meter: Meter,
    clients: Vec<Client>,
    /// What the next turn hears of.
    reported: Vec<Event>,
    stops: u32,
    now: Cell<Nanos>,
    /// How far every look at the clock moves it.
    look_ns: u64,
    skips_checks: bool,
}

struct Client {
    /// None if it was refused.
    id: Option<ConnId>,
    peer: Peer,
    /// The server wants to hear of room to write.
    is_watched: bool,
}

impl Pipes {
    /// A server with these rules and settings, which remembers nothing.
    #[must_use]
    pub fn with(rules: Rules, settings: Settings) -> Self {
        Self::new(Server::new(settings, Engine::new(rules, ORIGIN)))
    }
}

impl<S: Store> Pipes<S> {
    /// Nobody is connected, and the time is 1: 0 is when the server has work left.
    #[must_use]
    pub fn new(server: Server<Pipe, S>) -> Self {
        Self {
            server,
            meter: Meter::default(),
            clients: Vec::new(),
            reported: Vec::new(),
            stops: 0,
            now: Cell::new(Nanos(1)),
            look_ns: 0,
            skips_checks: false,
        }
    }

    /// From now on the lock table is not checked after every turn: where there are crowds, a walk
    /// over all of it takes longer than the turn.
    pub fn skip_checks(&mut self) {
        self.skips_checks = true;
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

    /// Begins at this time instead, which is not 0; before anybody is connected.
    pub fn begin_at(&mut self, now: Nanos) {
        self.now.set(now);
    }

    /// From now on every look at the clock moves it this far.
    pub fn move_clock_when_looked_at(&mut self, ns: u64) {
        self.look_ns = ns;
    }

    // ---- who is connected ----

    /// A new connection, by number from 0. One that is refused reads its end at once.
    pub fn connect(&mut self) -> usize {
        self.connect_from(LOCAL)
    }

    /// A new connection by this door.
    pub fn connect_to(&mut self, door: Door) -> usize {
        self.connect_from_to(LOCAL, door)
    }

    /// One whose peer takes no more than this before it is read from.
    pub fn connect_with_room(&mut self, bytes: usize) -> usize {
        let who = self.connect();
        self.peer(who).set_room(bytes);
        who
    }

    /// A new connection from this host.
    pub fn connect_from(&mut self, host: Host) -> usize {
        self.connect_from_to(host, Door::Line)
    }

    /// A new connection from this host by this door.
    pub fn connect_from_to(&mut self, host: Host, door: Door) -> usize {
        let who = self.clients.len();
        let client = self.accept_from(host, door, who);
        self.clients.push(client);
        who
    }

    /// The connection breaks, the server comes to rest, and a new connection gets the number.
    pub fn replace(&mut self, who: usize) {
        self.reset(who);
        self.settle();
        self.clients[who] = self.accept_from(LOCAL, Door::Line, who);
    }

    fn accept_from(&mut self, host: Host, door: Door, who: usize) -> Client {
        let (here, peer) = metered_pipe(who as u32, host, &self.meter);
        Client {
            id: self.server.accept_at(self.now(), here, door),
            peer,
            is_watched: false,
        }
    }

    /// The numbers of all who have connected so far, also if they are gone.
    #[must_use]
    pub fn everyone(&self) -> Range<usize> {
        0..self.clients.len()
    }

    /// The client's end, to look at, or to act on without a report.
    #[must_use]
    pub fn peer(&self, who: usize) -> &Peer {
        &self.clients[who].peer
    }

    /// What the server calls the connection; none if it was refused.
    #[must_use]
    pub fn id(&self, who: usize) -> Option<ConnId> {
        self.clients[who].id
    }

    // ---- what peers do ----

    /// Bytes arrive from a client, all of them.
    pub fn send(&mut self, who: usize, bytes: &[u8]) {
        self.peer(who).send(bytes);
        self.peer(who).arrive(usize::MAX);
        self.report(who);
    }

    /// Sends frames, each written as one line `verb key argument`, and lets the server come to
    /// rest.
    pub fn say(&mut self, who: usize, frames: &[&str]) {
        let bytes: String = frames.iter().map(|it| client::frame(it)).collect();
        self.send(who, bytes.as_bytes());
        self.settle();
    }

    /// Says one thing and reads everything there is.
    pub fn ask(&mut self, who: usize, frame: &str) -> String {
        self.say(who, &[frame]);
        self.read(who)
    }

    /// Everything the client was told since it last read; what it made room for is reported.
    pub fn read(&mut self, who: usize) -> String {
        let bytes = self.peer(who).receive();
        self.report(who);
        String::from_utf8(bytes).expect("the server says text")
    }

    /// The next whole line, without its end, and with a mark for each byte of a value that is no
    /// text; what it made room for is reported.
    pub fn read_line(&mut self, who: usize) -> Option<String> {
        let line = self.peer(who).receive_line()?;
        self.report(who);
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// From now on the client takes no more than this before it reads.
    pub fn set_room(&mut self, who: usize, bytes: usize) {
        self.peer(who).set_room(bytes);
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

    /// The server is told to stop, as by a signal, in the next turn.
    pub fn stop(&mut self) {
        self.stops += 1;
    }

    // ---- turns ----

    /// One turn with everything that happened since the last.
    pub fn turn(&mut self) {
        let events = std::mem::take(&mut self.reported);
        let (now, look_ns) = (&self.now, self.look_ns);
        let clock = || {
            now.set(Nanos(now.get().0 + look_ns));
            now.get()
        };
        let stops = std::mem::take(&mut self.stops);
        self.server.turn(&clock, events.into_iter(), stops);
        if !self.skips_checks {
            self.server.engine().check();
        }
        self.follow_interests();
    }

    /// Turns for as long as the server has something to do at this instant; says how many.
    pub fn rest(&mut self) -> u32 {
        let mut turns = 0;
        while self.has_more() {
            self.turn();
            turns += 1;
            assert!(turns < TURNS_AT_ONCE_MAX, "the server never comes to rest");
        }
        turns
    }

    /// A turn, and more for as long as the server has something to do; says how many.
    pub fn settle(&mut self) -> u32 {
        self.turn();
        1 + self.rest()
    }

    fn has_more(&self) -> bool {
        let next = self.server.next_deadline();
        next.is_some_and(|at| at <= self.now())
    }

    // ---- the poll ----

    /// Has the next turn hear how this connection is ready, if it is.
    fn report(&mut self, who: usize) {
        let client = &self.clients[who];
        let mut readiness = client.peer.readiness();
        readiness.writable &= client.is_watched;
        let Some(conn) = client.id.filter(|_| readiness != Readiness::default()) else {
            return;
        };
        match self.reported.iter_mut().find(|it| it.conn == conn) {
            Some(Event { readiness: it, .. }) => {
                it.readable |= readiness.readable;
                it.writable |= readiness.writable;
                it.hung_up |= readiness.hung_up;
            }
            None => self.reported.push(Event { conn, readiness }),
        }
    }

    /// A poll that is to watch for room to write says at once if there is some.
    fn follow_interests(&mut self) {
        let mut changed = Vec::new();
        self.server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            let mut clients = self.clients.iter_mut().enumerate();
            let Some((who, client)) = clients.find(|(_, client)| client.id == Some(id)) else {
                continue;
            };
            client.is_watched = wants_write;
            if wants_write && client.peer.readiness().writable {
                self.report(who);
            }
        }
    }
}
