//! What piles up on either side of a connection is worked off, however long it takes the server.

use latchd::base::{ConnId, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Server, Settings};

/// A server with one client, who reads everything at once.
struct Pair {
    server: Server<Pipe>,
    id: ConnId,
    peer: Peer,
    now: Nanos,
}

impl Pair {
    fn new() -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        let engine = Engine::new(Rules::default(), origin);
        let mut server = Server::new(Settings::default(), engine);
        let (server_end, peer) = pipe(1);
        let now = Nanos(1);
        let id = server.accept(now, server_end).expect("there is room");
        Self {
            server,
            id,
            peer,
            now,
        }
    }

    /// Lets bytes arrive and the server take turns, only as long as it says that it has more to do.
    fn say(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.peer.send(bytes);
        self.peer.arrive(bytes.len());
        self.server.readable(&|| self.now, self.id);
        let mut heard = Vec::new();
        loop {
            self.server.finish_turn(&|| self.now);
            heard.extend(self.peer.receive());
            if self.server.next_deadline().is_none_or(|at| at > self.now) {
                return heard;
            }
            self.now.0 += 1;
        }
    }
}

/// Five long answers fill the outbox while whole frames are still waiting behind them. The socket
/// takes everything at once, so nothing more is ever reported: the server has to remember.
#[test]
fn frames_behind_a_full_outbox_are_served_once_it_is_empty() {
    let mut pair = Pair::new();
    let value = vec![b'v'; 60_000];
    let heard = pair.say(&[b"kset\nk\n", &value[..], b"\n"].concat());
    assert_eq!(heard, b"ok\n");
    let mut frames = b"kget\nk\n\n".repeat(20);
    frames.extend(b"ping\n_\n\n");
    let heard = pair.say(&frames);
    let lines = heard.split(|&byte| byte == b'\n').count() - 1;
    assert_eq!(lines, 21, "answers to 21 questions");
    assert!(heard.ends_with(b"\nok\n"));
}

/// The server is stopped for longer than the read timeout. The rest of the frame has been there all
/// the time, but is more than one turn reads: that the line is late is not the client's fault.
#[test]
fn a_frame_that_has_arrived_is_read_before_its_client_is_called_late() {
    let mut pair = Pair::new();
    assert_eq!(pair.say(b"kset\nk\nvv"), b"");
    pair.now = Nanos(40_000_000_000);
    let rest = [&[b'v'; 60_000][..], b"\n"].concat();
    assert_eq!(pair.say(&rest), b"ok\n");
    assert!(!pair.peer.is_ended());
}
