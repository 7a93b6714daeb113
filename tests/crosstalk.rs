//! Nobody reads a byte that was meant for somebody else.
//!
//! All connections share one pool of buffers and one place where a line for many is spelled. Here
//! many connections are owed much at the same time and take it a few bytes at a time, and some break
//! in the middle of it, so that half-sent buffers go back to the pool and on to the next.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latchd::base::{ConnId, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Server, Settings};

const NOW: Nanos = Nanos(1);
const CLIENTS: usize = 60;
const ROUNDS: usize = 300;

/// Somebody who stored a value of its own, asks for it again and again, and listens to news.
struct Client {
    id: ConnId,
    peer: Peer,
    key: usize,
    asked: usize,
    /// The first round whose news it hears.
    came: usize,
    heard: String,
}

impl Client {
    /// Nobody else's is like it, and lengths differ.
    fn value(&self) -> String {
        format!("{}:", self.key).repeat(1 + self.key * 7 % 150)
    }
}

struct World {
    server: Server<Pipe>,
    clients: Vec<Client>,
    keys: usize,
}

impl World {
    fn new() -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            server: Server::new(Settings::default(), Engine::new(Rules::default(), origin)),
            clients: Vec::new(),
            keys: 0,
        }
    }

    /// A new client takes this place, which may have been somebody's.
    fn arrive(&mut self, who: usize, round: usize) {
        let (here, peer) = pipe(0);
        let client = Client {
            id: self.server.accept(NOW, here).unwrap(),
            peer,
            key: self.keys,
            asked: 0,
            came: round,
            heard: String::new(),
        };
        self.keys += 1;
        let frames = format!("kset\n{}\n{}\nlisten\nnews\n\n", client.key, client.value());
        self.clients.push(client);
        self.say(self.clients.len() - 1, &frames);
        let newcomer = self.clients.pop().unwrap();
        assert_eq!(newcomer.peer.receive(), b"ok\nok\n");
        newcomer.peer.set_room(0);
        if who < self.clients.len() {
            self.clients[who] = newcomer;
        } else {
            self.clients.push(newcomer);
        }
    }

    fn break_off(&mut self, who: usize) {
        let client = &self.clients[who];
        client.peer.reset();
        self.server.hang_up(NOW, client.id);
        self.rest();
    }

    fn ask(&mut self, who: usize) {
        self.clients[who].asked += 1;
        self.say(who, &format!("kget\n{}\n\n", self.clients[who].key));
    }

    fn say(&mut self, who: usize, frames: &str) {
        let client = &self.clients[who];
        client.peer.send(frames.as_bytes());
        client.peer.arrive(usize::MAX);
        self.server.readable(&|| NOW, client.id);
        self.rest();
    }

    /// The client takes so many bytes of what it is owed.
    fn take(&mut self, who: usize, bytes: usize) {
        let id = self.clients[who].id;
        self.clients[who].peer.set_room(bytes);
        self.server.writable(id);
        self.rest();
        let client = &mut self.clients[who];
        client.heard += str::from_utf8(&client.peer.receive()).unwrap();
        client.peer.set_room(0);
    }

    fn rest(&mut self) {
        loop {
            self.server.finish_turn(&|| NOW);
            if self.server.next_deadline().is_none_or(|next| next > NOW) {
                return;
            }
        }
    }

    /// Its own value as often as it asked for it, all news since it came, in order, and nothing else.
    fn check(&self, who: usize) {
        let client = &self.clients[who];
        let answer = format!("ok {}", client.value());
        let (mut answers, mut next) = (0, client.came);
        for line in client.heard.lines() {
            if line == answer {
                answers += 1;
            } else if line != format!("ok {CLIENTS}") {
                assert_eq!(line, format!("sig news {next}"), "to client {}", client.key);
                next += 1;
            }
        }
        assert_eq!(answers, client.asked, "answers to client {}", client.key);
        assert_eq!(next, ROUNDS, "the last news to client {}", client.key);
    }
}

#[test]
fn what_is_owed_to_many_at_once_is_never_mixed_up() {
    let mut chance = fastrand::Rng::with_seed(61);
    let mut world = World::new();
    for who in 0..CLIENTS {
        world.arrive(who, 0);
    }
    for round in 0..ROUNDS {
        for who in 0..CLIENTS {
            match chance.u32(0..100) {
                0 => {
                    world.break_off(who);
                    world.arrive(who, round);
                }
                1..50 => world.ask(who),
                _ => world.take(who, chance.usize(0..200)),
            }
        }
        // Spelled once for everyone.
        world.say(
            chance.usize(0..CLIENTS),
            &format!("signal\nnews\n{round}\n"),
        );
    }
    assert!(world.keys > 2 * CLIENTS, "nobody broke off");
    let owed = world.server.holdings().buffered_bytes;
    assert!(owed > 200_000, "only {owed} bytes are owed at the end");
    for who in 0..CLIENTS {
        world.take(who, usize::MAX);
        world.check(who);
    }
}
