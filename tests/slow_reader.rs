//! The write timeout, to the second: what counts is that everything owed is taken in time, not that
//! something is taken now and then.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Server, Settings};

const WRITE_TIMEOUT_S: u64 = 5;
const PING: &[u8] = b"ping\n_\n\n";

/// A server and one peer that takes only so many bytes before it reads again.
struct World {
    server: Server<Pipe>,
    peer: Peer,
    id: ConnId,
    now: Nanos,
}

impl World {
    fn new(room: usize) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        let settings = Settings {
            write_timeout: Millis::from_secs(WRITE_TIMEOUT_S),
            ..Settings::default()
        };
        let mut server = Server::new(settings, Engine::new(Rules::default(), origin));
        let (pipe, peer) = pipe(1);
        peer.set_room(room);
        let id = server.accept(Nanos(0), pipe).unwrap();
        Self {
            server,
            peer,
            id,
            now: Nanos(0),
        }
    }

    fn ask(&mut self, pings: usize) {
        self.peer.send(&PING.repeat(pings));
        self.peer.arrive(usize::MAX);
        self.server.readable(&|| self.now, self.id);
        self.server.finish_turn(&|| self.now);
    }

    /// A second passes, then the peer reads what it has room for.
    fn read_after_a_second(&mut self) -> usize {
        self.now = self.now.after(Millis::from_secs(1));
        self.server.finish_turn(&|| self.now);
        let taken = self.peer.receive().len();
        self.server.writable(self.id);
        self.server.finish_turn(&|| self.now);
        taken
    }
}

#[test]
fn a_trickle_does_not_extend_the_time_to_read() {
    let mut world = World::new(4);
    world.ask(10); // 30 bytes, at 4 a second
    for second in 1..WRITE_TIMEOUT_S {
        world.read_after_a_second();
        assert!(!world.peer.is_closed(), "cut off after {second} s");
    }
    world.read_after_a_second();
    assert!(
        world.peer.is_closed(),
        "still there after {WRITE_TIMEOUT_S} s"
    );
}

#[test]
fn who_always_takes_what_it_was_owed_in_time_may_lag_for_ever() {
    let mut world = World::new(15);
    world.ask(10);
    let mut taken = 0;
    for _ in 0..60 {
        world.ask(5); // as much as it reads in a second: it never catches up
        taken += world.read_after_a_second();
        assert!(!world.peer.is_closed(), "cut off after {taken} bytes");
    }
    assert_eq!(taken, 60 * 15);
}

#[test]
fn a_server_that_was_stopped_does_not_blame_its_peer() {
    let mut world = World::new(15);
    world.ask(10);
    assert_eq!(world.peer.receive().len(), 15); // in time, but the server does not come round
    world.now = world.now.after(Millis::from_secs(60));
    world.server.writable(world.id);
    world.server.finish_turn(&|| world.now);
    assert_eq!(world.peer.receive().len(), 15);
    assert!(!world.peer.is_closed());
}
