//! Peers that do not read, to the byte: what is pushed to them, and what was popped for them.
//!
//! Over pipes, whose room is what a socket's buffers would be, so that everything a slow or dying peer
//! leaves behind can be counted exactly. The transcripts cannot say how much a peer has read; the same
//! over real sockets, where only bounds are known, is in `daemon/push.rs`.

#![allow(clippy::unwrap_used, missing_docs)]

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Holdings, Server, Settings};
use latchd::wire::client::{Told, frame};
use latchd::wire::outbox::PUSH_BYTES_MAX;
use latchd::wire::verbs::Verb;

/// A server, its peers and its clock.
struct World {
    server: Server<Pipe>,
    now: Nanos,
    peers: Vec<(Peer, ConnId)>,
}

impl World {
    fn new() -> Self {
        Self::with(Rules::default())
    }

    fn with(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            server: Server::new(Settings::default(), Engine::new(rules, origin)),
            now: Nanos(1),
            peers: Vec::new(),
        }
    }

    fn connect(&mut self) -> usize {
        let (here, peer) = pipe(self.peers.len() as u32);
        let id = self.server.accept(self.now, here).unwrap();
        self.peers.push((peer, id));
        self.peers.len() - 1
    }

    /// One that takes no more than this before it is read from.
    fn connect_with_room(&mut self, bytes: usize) -> usize {
        let who = self.connect();
        self.peers[who].0.set_room(bytes);
        who
    }

    /// Sends frames, each written as one line, and lets the server answer.
    fn say(&mut self, who: usize, frames: &[&str]) {
        let bytes: String = frames.iter().map(|request| frame(request)).collect();
        let (peer, id) = &self.peers[who];
        peer.send(bytes.as_bytes());
        peer.arrive(usize::MAX);
        self.server.readable(&|| self.now, *id);
        self.turn();
    }

    /// Says one thing and reads everything there is.
    fn ask(&mut self, who: usize, frame: &str) -> String {
        self.say(who, &[frame]);
        self.read(who)
    }

    /// Everything the peer has been told since the last time.
    fn read(&self, who: usize) -> String {
        String::from_utf8(self.peers[who].0.receive()).unwrap()
    }

    /// The peer has read, and the server notices.
    fn make_room(&mut self, who: usize, bytes: usize) {
        let (peer, id) = &self.peers[who];
        peer.set_room(bytes);
        self.server.writable(*id);
        self.turn();
    }

    /// The peer is gone, and the server notices.
    fn reset(&mut self, who: usize) {
        let (peer, id) = &self.peers[who];
        peer.reset();
        self.server.hang_up(self.now, *id);
        self.server.readable(&|| self.now, *id);
        self.turn();
    }

    fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
        self.turn();
    }

    fn turn(&mut self) {
        loop {
            self.server.finish_turn(&|| self.now);
            self.server.engine().check();
            let next = self.server.next_deadline();
            if next.is_none_or(|next| next > self.now) {
                return;
            }
        }
    }

    fn is_closed(&self, who: usize) -> bool {
        self.peers[who].0.is_closed()
    }

    fn slow_consumers(&mut self, asker: usize) -> u64 {
        let stats = self.ask(asker, "stats");
        let Some(Told::Json(json)) = Told::read(Verb::Stats, stats.trim_end().as_bytes()) else {
            panic!("{stats:?} is no document");
        };
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        json["totals"]["slow_consumers"].as_u64().unwrap()
    }
}

// ---- values that were popped and never told ----

/// How a peer with unread answers may end.
const ENDS: [fn(&mut World, usize); 4] = [
    |world, who| world.reset(who),
    |world, who| {
        // It stops sending, and still has not read when the write timeout is over.
        let (peer, id) = &world.peers[who];
        peer.close();
        world.server.hang_up(world.now, *id);
        world.server.readable(&|| world.now, *id);
        world.turn();
        world.pass(Millis::from_secs(5));
    },
    |world, who| {
        // Nobody tells the server, but it takes nothing for the write timeout.
        assert!(!world.is_closed(who));
        world.pass(Millis::from_secs(5));
    },
    |world, who| {
        // Nobody tells the server; it finds out when it writes.
        world.peers[who].0.reset();
        world.server.writable(world.peers[who].1);
        world.turn();
    },
];

/// For every number of bytes that could have left: what was told in full is the peer's, everything
/// else is back in its place.
#[test]
fn a_value_that_was_not_told_in_full_goes_back_to_where_it_was() {
    let values = [
        "one", "two", "three", "four", "five", "six", "seven", "eight",
    ];
    let pops = [
        "lpop q",
        "ping",
        "rpop q",
        "blpop q 0",
        "kget none",
        "brpop q 9",
        "lpop q",
    ];
    let told = [
        "ok one", "ok", "ok eight", "ok two", "nil", "ok seven", "ok three",
    ];
    let answers: String = told.iter().flat_map(|line| [line, "\n"]).collect();
    for end in ENDS {
        for room in 0..answers.len() {
            let mut world = World::new();
            let pusher = world.connect();
            for value in values {
                world.ask(pusher, &format!("rpush q {value}"));
            }
            let popper = world.connect_with_room(room);
            world.say(popper, &pops);
            assert_eq!(
                world.ask(pusher, "lrange q 0 -1"),
                "ok [\"four\",\"five\",\"six\"]\n"
            );
            end(&mut world, popper);
            assert!(world.is_closed(popper));
            assert_eq!(world.read(popper), answers[..room]);
            let kept = values.iter().filter(|value| {
                let line = format!("ok {value}\n");
                let end = answers.find(&line).map(|at| at + line.len());
                end.is_none_or(|end| end > room)
            });
            let kept: Vec<&str> = kept.copied().collect();
            let list = serde_json::to_string(&kept).unwrap();
            assert_eq!(
                world.ask(pusher, "lrange q 0 -1"),
                format!("ok {list}\n"),
                "{room}"
            );
        }
    }
}

/// A push was answered `ok 0` because somebody waited; that somebody dies before it can be told.
#[test]
fn a_value_handed_to_one_who_dies_goes_to_the_next_who_waits() {
    for end in ENDS {
        for pop in ["blpop", "brpop"] {
            let mut world = World::new();
            let pusher = world.connect();
            let dies = world.connect_with_room(0);
            world.say(dies, &[&format!("{pop} q 60")]);
            assert_eq!(world.ask(pusher, "rpush q v"), "ok 0\n");
            let next = world.connect();
            world.say(next, &["blpop q 60"]);
            assert_eq!(world.read(next), "");
            end(&mut world, dies);
            assert_eq!(world.read(next), "ok v\n");
            assert_eq!(world.ask(pusher, "llen q"), "ok 0\n");
        }
    }
}

#[test]
fn a_value_handed_to_one_who_dies_stays_if_nobody_waits() {
    for end in ENDS {
        let mut world = World::new();
        let pusher = world.connect();
        let dies = world.connect_with_room(0);
        world.say(dies, &["blpop q 60"]);
        world.say(pusher, &["rpush q 1", "rpush q 2", "rpush q 3"]);
        assert_eq!(world.read(pusher), "ok 0\nok 1\nok 2\n");
        end(&mut world, dies);
        assert_eq!(
            world.ask(pusher, "lrange q 0 -1"),
            "ok [\"1\",\"2\",\"3\"]\n"
        );
    }
}

/// The list was empty and gone, and its room went to another key: the value is still not lost.
#[test]
fn a_value_goes_back_even_where_a_new_one_would_be_refused() {
    let mut world = World::with(Rules {
        keys_max: 1,
        list_length_max: 1,
        ..Rules::default()
    });
    let pusher = world.connect();
    let dies = world.connect_with_room(0);
    assert_eq!(world.ask(pusher, "rpush q v"), "ok 1\n");
    world.say(dies, &["lpop q"]);
    assert_eq!(world.ask(pusher, "kset k v"), "ok\n");
    world.reset(dies);
    assert_eq!(world.ask(pusher, "kset k2 v"), "error_max_keys\n");
    assert_eq!(world.ask(pusher, "lpop q"), "ok v\n");
    assert_eq!(world.ask(pusher, "kdel k"), "ok\n");
    assert_eq!(world.ask(pusher, "kset k2 v"), "ok\n");
}

/// What has left is the peer's for good, even if it is reset in the very next moment.
#[test]
fn a_value_that_was_told_never_comes_back() {
    let mut world = World::new();
    let pusher = world.connect();
    let popper = world.connect();
    assert_eq!(world.ask(pusher, "rpush q v"), "ok 1\n");
    world.say(popper, &["lpop q"]);
    world.reset(popper);
    assert_eq!(world.read(popper), "ok v\n");
    assert_eq!(world.ask(pusher, "llen q"), "ok 0\n");
}

// ---- pushes to those who do not read ----

/// A signal of the greatest length.
fn longest_signal(channel: &str) -> String {
    let payload = "x".repeat(65_536 - "sig  ".len() - channel.len());
    format!("signal {channel} {payload}")
}

/// How many of those make a peer that reads nothing deaf: at least 64, whatever their length.
const LONGEST_HEARD: usize = PUSH_BYTES_MAX.div_ceil(65_537);

#[test]
fn who_does_not_read_is_told_up_to_the_bound_then_closed_and_counted() {
    const { assert!(LONGEST_HEARD == 64) };
    let mut world = World::new();
    let (speaker, hears) = (world.connect(), world.connect());
    let slow = world.connect_with_room(0);
    for who in [slow, hears] {
        // Two patterns that match: it is counted once, closed once.
        world.say(who, &["listen c", "listen >"]);
    }
    assert_eq!(world.read(hears), "ok\nok\n");
    let (signal, told) = (longest_signal("c"), 65_537);
    for nth in 0..LONGEST_HEARD {
        assert_eq!(world.ask(speaker, &signal), "ok 2\n", "{nth}");
        assert_eq!(world.read(hears).len(), told);
    }
    assert!(!world.is_closed(slow));
    assert_eq!(world.slow_consumers(speaker), 0);
    // One more, and it is not counted, for it is not told.
    assert_eq!(world.ask(speaker, &signal), "ok 1\n");
    assert_eq!(world.read(hears).len(), told);
    assert!(world.is_closed(slow));
    assert_eq!(world.slow_consumers(speaker), 1);
    assert_eq!(world.ask(speaker, &signal), "ok 1\n");
    assert_eq!(world.slow_consumers(speaker), 1);
    assert!(!world.is_closed(hears));
}

/// Deafness is not for ever: who reads in time hears again, and has missed nothing.
#[test]
fn who_reads_before_the_next_push_goes_on_listening() {
    let mut world = World::new();
    let speaker = world.connect();
    let slow = world.connect_with_room(0);
    world.say(slow, &["listen c"]);
    let signal = longest_signal("c");
    for _ in 0..LONGEST_HEARD {
        assert_eq!(world.ask(speaker, &signal), "ok 1\n");
    }
    world.make_room(slow, usize::MAX);
    assert_eq!(world.read(slow).lines().count(), 1 + LONGEST_HEARD);
    assert_eq!(world.ask(speaker, "signal c again"), "ok 1\n");
    assert_eq!(world.read(slow), "sig c again\n");
    assert_eq!(world.slow_consumers(speaker), 0);
}

/// More than the bound at once is no reason to close one who reads.
#[test]
fn who_reads_hears_any_number_of_pushes() {
    let mut world = World::new();
    let (speaker, hears) = (world.connect(), world.connect());
    world.say(hears, &["listen c"]);
    assert_eq!(world.read(hears), "ok\n");
    let signal = longest_signal("c");
    world.say(speaker, &vec![signal.as_str(); 3 * LONGEST_HEARD]);
    assert_eq!(world.read(speaker), "ok 1\n".repeat(3 * LONGEST_HEARD));
    assert_eq!(world.read(hears).len(), 3 * LONGEST_HEARD * 65_537);
    assert_eq!(world.slow_consumers(speaker), 0);
}

/// Watchers and observers are cut off by the same rule.
#[test]
fn a_watcher_and_an_observer_that_do_not_read_are_closed_too() {
    for (subscribe, happens) in [
        ("watch >", ["incr k 1", "decr k 1"]),
        ("observe L", ["elect L 0 1ms", "ping"]),
    ] {
        let mut world = World::new();
        let actor = world.connect();
        let slow = world.connect_with_room(0);
        world.say(slow, &[subscribe, "listen fill"]);
        let fill = longest_signal("fill");
        for _ in 0..LONGEST_HEARD {
            assert_eq!(world.ask(actor, &fill), "ok 1\n");
        }
        assert!(!world.is_closed(slow), "{subscribe}");
        world.say(actor, &happens);
        assert!(world.read(actor).starts_with("ok "));
        assert!(world.is_closed(slow), "{subscribe}");
        assert_eq!(world.ask(actor, "signal fill x"), "ok 0\n");
    }
}

/// A group whose first member is full: the next one hears. None can: nobody does, the one whose turn
/// it is goes, and the group is no black hole for those who come.
#[test]
fn a_group_passes_over_who_is_full_and_survives_when_all_are() {
    let mut world = World::new();
    let speaker = world.connect();
    let full = world.connect_with_room(0);
    world.say(full, &["listen jobs g", "listen fill"]);
    let second = world.connect();
    world.say(second, &["listen jobs g"]);
    assert_eq!(world.read(second), "ok\n");
    let fill = longest_signal("fill");
    for _ in 0..LONGEST_HEARD {
        assert_eq!(world.ask(speaker, &fill), "ok 1\n");
    }
    for _ in 0..3 {
        assert_eq!(world.ask(speaker, "signal jobs x"), "ok 1\n");
        assert_eq!(world.read(second), "sig jobs x\n");
    }
    assert!(!world.is_closed(full));
    world.say(second, &["unlisten jobs g"]);
    assert_eq!(world.read(second), "ok\n");
    assert_eq!(world.ask(speaker, "signal jobs x"), "ok 0\n");
    assert!(world.is_closed(full));
    assert_eq!(world.slow_consumers(speaker), 1);
    world.say(second, &["listen jobs g"]);
    assert_eq!(world.read(second), "ok\n");
    assert_eq!(world.ask(speaker, "signal jobs y"), "ok 1\n");
    assert_eq!(world.read(second), "sig jobs y\n");
}

/// Nobody told the server that the peer is gone: the first push finds out, and the command parked on
/// that connection goes with it.
#[test]
fn a_push_to_a_dead_peer_ends_what_it_waited_for() {
    for waits in ["blpop q 60", "bwait b 2 60", "l k 60"] {
        let mut world = World::new();
        let speaker = world.connect();
        assert!(world.ask(speaker, "l k 0").starts_with("ok "));
        let dead = world.connect();
        world.say(dead, &["listen c", waits]);
        world.peers[dead].0.reset();
        assert_eq!(world.ask(speaker, "signal c x"), "ok 1\n");
        assert!(world.is_closed(dead));
        assert_eq!(world.ask(speaker, "rpush q v"), "ok 1\n");
        let stats = world.ask(speaker, "stats");
        assert!(stats.contains("\"barriers\":[],"), "{stats}");
        assert!(stats.contains("\"waiters\":0,"), "{stats}");
        assert_eq!(world.ask(speaker, "signal c x"), "ok 0\n");
    }
}

/// What a peer is told is whole lines, in order, however little it takes at a time, until its end.
#[test]
fn pushes_are_whole_lines_in_order_however_slowly_they_are_read() {
    let mut world = World::new();
    let speaker = world.connect();
    let slow = world.connect_with_room(3);
    world.say(slow, &["listen c", "watch k"]);
    let mut heard = String::new();
    let mut expected = "ok\nok\n".to_owned();
    for nth in 0..50 {
        assert_eq!(world.ask(speaker, &format!("signal c {nth}")), "ok 1\n");
        assert_eq!(world.ask(speaker, "incr k 1"), format!("ok {}\n", nth + 1));
        expected += &format!("sig c {nth}\nwatch incr k\n");
        heard += &world.read(slow);
        world.make_room(slow, 3);
    }
    world.say(slow, &["ping"]); // answered behind what was told before
    expected += "ok\n";
    while heard.len() < expected.len() {
        heard += &world.read(slow);
        world.make_room(slow, 7);
    }
    assert_eq!(heard, expected);
    world.reset(slow);
    assert_eq!(world.ask(speaker, "signal c x"), "ok 0\n");
}

/// More subscriptions than one turn undoes: nobody hears through those that are left.
#[test]
fn who_leaves_with_many_subscriptions_hears_through_none_of_them() {
    let mut world = World::new();
    let speaker = world.connect();
    let many = world.connect();
    let frames: Vec<String> = (0..10_000)
        .map(|nth| match nth % 4 {
            0 => format!("listen c.{nth}"),
            1 => format!("listen c.* g{nth}"),
            2 => format!("watch k.{nth}.>"),
            _ => format!("observe L{nth}"),
        })
        .collect();
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    world.say(many, &frames);
    assert_eq!(world.read(many), "ok\n".repeat(10_000));
    assert_eq!(world.server.holdings().engine.subscriptions, 10_000);
    // The first of its turns only, and the speaker has its say before the rest.
    let (peer, id) = &world.peers[many];
    peer.reset();
    world.server.hang_up(world.now, *id);
    world.server.readable(&|| world.now, *id);
    assert!(world.server.holdings().engine.subscriptions > 0);
    assert_eq!(world.ask(speaker, "signal c.9996 x"), "ok 0\n");
    assert_eq!(world.server.holdings().engine.subscriptions, 0);
    world.reset(speaker);
    assert_eq!(world.server.holdings(), Holdings::default());
}
