//! Nobody reads a byte that was meant for somebody else.
//!
//! All connections share one pool of buffers and one place where a line for many is spelled. Here
//! many connections are owed much at the same time and take it a few bytes at a time, and some
//! break in the middle of it, so that half-sent buffers go back to the pool and on to the next.

use latch_sim::pipe::Pipes;
use latchd::engine::Rules;
use latchd::server::Settings;

const CLIENTS: usize = 60;
const ROUNDS: usize = 300;

/// Somebody who stored a value of its own, asks for it again and again, and listens to news.
struct Client {
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

    /// Its own value as often as it asked for it, all news since it came, in order, and nothing
    /// else.
    fn check(&self) {
        let Self { key, .. } = self;
        let answer = format!("ok {}", self.value());
        let (mut answers, mut next) = (0, self.came);
        for line in self.heard.lines() {
            if line == answer {
                answers += 1;
            } else if line != format!("ok {CLIENTS}") {
                assert_eq!(line, format!("sig news {next}"), "to client {key}");
                next += 1;
            }
        }
        assert_eq!(answers, self.asked, "answers to client {key}");
        assert_eq!(next, ROUNDS, "the last news to client {key}");
    }
}

/// The server, and what each client by its number is about.
struct Crowd {
    pipes: Pipes,
    clients: Vec<Client>,
    keys: usize,
}

impl Crowd {
    fn new() -> Self {
        Self {
            pipes: Pipes::with(Rules::default(), Settings::default()),
            clients: Vec::new(),
            keys: 0,
        }
    }

    /// One more.
    fn arrive(&mut self) {
        let who = self.pipes.connect();
        let client = self.introduce(who, 0);
        self.clients.push(client);
    }

    /// Somebody breaks off, and a new client takes its place.
    fn replace(&mut self, who: usize, round: usize) {
        self.pipes.replace(who);
        self.clients[who] = self.introduce(who, round);
    }

    /// What a newcomer says. From then on it reads only what it takes.
    fn introduce(&mut self, who: usize, round: usize) -> Client {
        let client = Client {
            key: self.keys,
            asked: 0,
            came: round,
            heard: String::new(),
        };
        self.keys += 1;
        let store = format!("kset {} {}", client.key, client.value());
        self.pipes.say(who, &[&store, "listen news"]);
        assert_eq!(self.pipes.read(who), "ok\nok\n");
        self.pipes.set_room(who, 0);
        client
    }

    fn ask(&mut self, who: usize) {
        let client = &mut self.clients[who];
        client.asked += 1;
        self.pipes.say(who, &[&format!("kget {}", client.key)]);
    }

    /// The client takes so many bytes of what it is owed.
    fn take(&mut self, who: usize, bytes: usize) {
        self.pipes.set_room(who, bytes);
        self.pipes.settle();
        self.pipes.peer(who).set_room(0);
        self.clients[who].heard += &self.pipes.read(who);
    }
}

#[test]
fn what_is_owed_to_many_at_once_is_never_mixed_up() {
    let mut chance = fastrand::Rng::with_seed(61);
    let mut crowd = Crowd::new();
    for _ in 0..CLIENTS {
        crowd.arrive();
    }
    for round in 0..ROUNDS {
        for who in 0..CLIENTS {
            match chance.u32(0..100) {
                0 => crowd.replace(who, round),
                1..50 => crowd.ask(who),
                _ => crowd.take(who, chance.usize(0..200)),
            }
        }
        // Spelled once for everyone.
        let speaker = chance.usize(0..CLIENTS);
        crowd.pipes.say(speaker, &[&format!("signal news {round}")]);
    }
    assert!(crowd.keys > 2 * CLIENTS, "nobody broke off");
    let owed = crowd.pipes.server.holdings().buffered_bytes;
    assert!(owed > 200_000, "only {owed} bytes are owed at the end");
    for who in 0..CLIENTS {
        crowd.take(who, usize::MAX);
        crowd.clients[who].check();
    }
}
