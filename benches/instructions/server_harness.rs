//! The shipped server and its peers in one process: bytes in, a turn, bytes out, no socket.
//!
//! What a peer does is counted too, so it does little: it copies what it says and keeps what it
//! hears.

use std::io::{self, ErrorKind};
use std::ops::Range;

use latchd::base::{Millis, Nanos};
use latchd::engine::Engine;
use latchd::server::{Event, Readiness, Server, Settings, Transport};

/// How far the clock moves per turn.
const TURN_NS: u64 = 10_000;

/// One end of a connection.
#[derive(Default)]
pub(crate) struct Peer {
    /// What it says next, all at once.
    pub(crate) says: Vec<u8>,
    has_said: bool,
    /// What it has heard since the last turn began.
    pub(crate) heard: Vec<u8>,
}

impl Transport for Peer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_said {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.has_said = true;
        into[..self.says.len()].copy_from_slice(&self.says);
        Ok(self.says.len())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn shutdown_write(&mut self) {}

    fn peer(&self) -> String {
        "a scenario".to_owned()
    }
}

pub(crate) struct ServerHarness {
    server: Server<Peer>,
    /// Of each peer: that it has said something.
    events: Vec<Event>,
    now: Nanos,
}

impl ServerHarness {
    pub(crate) fn new(engine: Engine, peers: usize) -> Self {
        let now = Nanos(0);
        let mut server = Server::new(Settings::default(), engine);
        let readiness = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let events = (0..peers).map(|_| {
            let peer = Peer {
                heard: Vec::with_capacity(1_024),
                ..Peer::default()
            };
            let conn = server.accept(now, peer).expect("there is room");
            Event { conn, readiness }
        });
        let events = events.collect();
        let mut harness = Self {
            server,
            events,
            now,
        };
        // The turn after they were accepted has less time for requests.
        harness.turn(0..0);
        harness
    }

    pub(crate) fn peer(&mut self, who: usize) -> &mut Peer {
        let peer = self.server.transport_mut(self.events[who].conn);
        peer.expect("nobody leaves")
    }

    /// One turn in which each of `who` says what it has to say.
    pub(crate) fn turn(&mut self, who: Range<usize>) {
        self.now.0 += TURN_NS;
        let now = self.now;
        for who in who.clone() {
            self.peer(who).has_said = false;
        }
        let events = self.events[who].iter().copied();
        self.server.turn(&|| now, events, 0);
        self.server.changed_interests(|_, _, _| {});
    }

    /// A turn to prepare: says this once, and is answered.
    pub(crate) fn ask(&mut self, who: usize, request: &str) -> String {
        let says = std::mem::replace(&mut self.peer(who).says, request.into());
        self.turn(who..who + 1);
        self.peer(who).says = says;
        let heard = std::mem::take(&mut self.peer(who).heard);
        String::from_utf8(heard).expect("answers are text")
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
    }
}
