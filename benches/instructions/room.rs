//! The shipped server and its peers in one room: bytes in, a turn, bytes out, no socket.
//!
//! What a peer does is counted too, so it does little: it copies what it says and keeps what it
//! hears.

use std::io::{self, ErrorKind};

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::Engine;
use latchd::server::{Server, Settings, Transport};

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

pub(crate) struct Room {
    server: Server<Peer>,
    peers: Vec<ConnId>,
    now: Nanos,
}

impl Room {
    pub(crate) fn new(engine: Engine, peers: usize) -> Self {
        let now = Nanos(0);
        let mut server = Server::new(Settings::default(), engine);
        let peers = (0..peers).map(|_| {
            let peer = Peer {
                heard: Vec::with_capacity(1_024),
                ..Peer::default()
            };
            server.accept(now, peer).expect("there is room")
        });
        let peers = peers.collect();
        Self { server, peers, now }
    }

    pub(crate) fn peer(&mut self, who: usize) -> &mut Peer {
        let peer = self.server.transport_mut(self.peers[who]);
        peer.expect("nobody leaves")
    }

    /// One turn in which each of `who` says what it has to say.
    pub(crate) fn turn(&mut self, who: impl IntoIterator<Item = usize>) {
        self.now.0 += TURN_NS;
        let now = self.now;
        for who in who {
            let id = self.peers[who];
            self.peer(who).has_said = false;
            self.server.readable(&|| now, id);
        }
        self.server.finish_turn(&|| now);
        self.server.changed_interests(|_, _, _| {});
    }

    /// A turn to prepare: says this once, and is answered.
    pub(crate) fn ask(&mut self, who: usize, request: &str) -> String {
        let says = std::mem::replace(&mut self.peer(who).says, request.into());
        self.turn([who]);
        self.peer(who).says = says;
        let heard = std::mem::take(&mut self.peer(who).heard);
        String::from_utf8(heard).expect("answers are text")
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
    }
}
