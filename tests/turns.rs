//! What a turn owes everyone: time that is right however long it takes, nobody forgotten, nobody
//! served at the others' cost. Over pipes, with a clock that moves when it is looked at.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use std::cell::Cell;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Effects, Input, Mode, Request};
use latchd::engine::{Engine, Origin, Rules, WORK_PER_TURN_MAX};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Server, Settings};
use latchd::wire::client::Grant;
use latchd::wire::outbox::{OUTBOX_BYTES_MAX, PUSH_BYTES_MAX};

fn engine() -> Engine {
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    Engine::new(Rules::default(), origin)
}

fn acquire(key: &[u8], lease: Millis) -> Request<'_> {
    Request::Acquire {
        key,
        mode: Mode::Slot { limit: 1 },
        wait: Millis::ZERO,
        lease: Some(lease),
    }
}

/// The token in a line that grants.
#[track_caller]
fn token_of(line: &str) -> String {
    let grant = Grant::read(line.trim_end().as_bytes()).expect(line);
    String::from_utf8(grant.token.hex().to_vec()).unwrap()
}

/// A server, its peers, and the time.
struct World {
    server: Server<Pipe>,
    peers: Vec<(ConnId, Peer)>,
    now: Cell<u64>,
    /// How far every look at the clock moves it.
    look_ns: u64,
}

impl World {
    fn new(peers: usize, settings: Settings) -> Self {
        let mut server = Server::new(settings, engine());
        let peers = (0..peers as u32).map(|name| {
            let (pipe, peer) = pipe(name);
            (server.accept(Nanos(0), pipe).unwrap(), peer)
        });
        let peers = peers.collect();
        Self {
            server,
            peers,
            now: Cell::new(0),
            look_ns: 0,
        }
    }

    /// One turn in which each of these has sent something.
    fn turn(&mut self, sent: &[(usize, &[u8])]) {
        let (now, look_ns) = (&self.now, self.look_ns);
        let clock = || {
            now.set(now.get() + look_ns);
            Nanos(now.get())
        };
        for (who, bytes) in sent {
            let (id, peer) = &self.peers[*who];
            peer.send(bytes);
            peer.arrive(usize::MAX);
            self.server.readable(&clock, *id);
        }
        self.server.finish_turn(&clock);
    }

    /// Turns without events, while the server says that it has more to do.
    fn rest(&mut self) {
        while self.server.next_deadline().is_some_and(|at| at.0 == 0) {
            self.turn(&[]);
        }
    }

    fn heard(&self, who: usize) -> String {
        String::from_utf8(self.peers[who].1.receive()).unwrap()
    }
}

#[test]
fn a_lease_is_counted_from_after_its_request_was_read() {
    let mut world = World::new(3, Settings::default());
    world.look_ns = Millis(60).nanos(); // a turn in which everyone takes long
    world.turn(&[(0, b"ping\n_\n\n"), (1, b"l\njob\n0 100ms\n")]);
    assert!(world.heard(1).starts_with("ok "));
    // The second look was at 120 ms, so the lease lasts until 220 ms.
    world.look_ns = 0;
    for (at_ms, answer) in [(219, "timeout"), (220, "ok ")] {
        world.now.set(Millis(at_ms).nanos());
        world.turn(&[(2, b"l\njob\n0\n")]);
        assert!(world.heard(2).starts_with(answer), "at {at_ms} ms");
    }
}

/// So many short questions that the answers to all but the last few fill the outbox while the last
/// read is being served: what is left is in the inbox, and the socket is empty.
const HELD_UP: usize = 8_300;

/// A peer that has asked all that and reads nothing.
fn ask_and_do_not_read(world: &mut World) {
    world.peers[0].1.set_room(0);
    world.turn(&[(0, &b"hello\n_\n\n".repeat(HELD_UP))]);
    world.rest();
    let bytes = world.server.holdings().buffered_bytes;
    assert!(bytes > OUTBOX_BYTES_MAX, "only {bytes} bytes are held up");
}

#[test]
fn frames_that_were_held_up_by_a_full_outbox_are_served_once_it_has_room() {
    let mut world = World::new(1, Settings::default());
    ask_and_do_not_read(&mut world);
    world.peers[0].1.set_room(usize::MAX);
    let id = world.peers[0].0;
    world.server.writable(id);
    world.turn(&[]);
    world.rest();
    assert_eq!(world.heard(0).lines().count(), HELD_UP);
}

#[test]
fn frames_are_served_also_if_a_timer_found_the_room() {
    let settings = Settings {
        write_timeout: Millis(100),
        ..Settings::default()
    };
    let mut world = World::new(1, settings);
    ask_and_do_not_read(&mut world);
    // The server was stopped; meanwhile the peer has read, and is not to blame.
    world.peers[0].1.set_room(usize::MAX);
    world.now.set(Millis::from_secs(10).nanos());
    world.turn(&[]);
    world.rest();
    assert_eq!(world.heard(0).lines().count(), HELD_UP);
}

/// How many of a hundred have been answered since the last time.
fn answered(world: &World) -> Vec<usize> {
    (0..100)
        .filter(|&who| !world.heard(who).is_empty())
        .collect()
}

#[test]
fn a_turn_holds_only_so_many_walks_and_who_had_to_wait_comes_first() {
    let mut world = World::new(100, Settings::default());
    let everyone: Vec<(usize, &[u8])> = (0..100).map(|who| (who, &b"stats\n_\n_\n"[..])).collect();
    world.turn(&everyone);
    let first = answered(&world);
    assert_eq!(first, (0..64).collect::<Vec<_>>());
    // Those who were served ask again at once; it is still the others' turn.
    world.turn(&everyone[..64]);
    let second = answered(&world);
    assert!((64..100).all(|who| second.contains(&who)), "{second:?}");
    assert_eq!(second.len(), 64);
    world.rest();
    assert_eq!(answered(&world).len(), 36);
}

#[test]
fn a_turn_tells_only_so_much_and_then_one_request_at_a_time() {
    let mut world = World::new(100, Settings::default());
    for who in 1..100 {
        world.turn(&[(who, b"listen\nnews\n\n")]);
        assert_eq!(world.heard(who), "ok\n");
    }
    world.turn(&[(0, &b"signal\nnews\nx\n".repeat(1_000))]);
    let told = world.heard(0).lines().count();
    assert!(
        (300..500).contains(&told),
        "{told} signals to 99 in one turn"
    );
    world.rest();
    assert_eq!(world.heard(0).lines().count() + told, 1_000);
    assert_eq!(world.heard(99).lines().count(), 1_000);
}

#[test]
fn one_signal_to_many_groups_of_one_client_is_bounded() {
    let mut world = World::new(2, Settings::default());
    world.peers[1].1.set_room(0);
    for group in 0..1_000 {
        world.turn(&[(1, format!("listen\nnews\n{group}\n").as_bytes())]);
    }
    let payload = "x".repeat(60_000);
    for _ in 0..3 {
        world.turn(&[(0, format!("signal\nnews\n{payload}\n").as_bytes())]);
        world.rest(); // a long line comes in several shares
    }
    // Never a thousand copies of sixty thousand bytes.
    let held = world.server.holdings().buffered_bytes;
    assert!(
        held < 2 * PUSH_BYTES_MAX,
        "{held} bytes are held for one client"
    );
    assert!(
        world.heard(0).starts_with("ok 64\n"),
        "copies of one signal"
    );
    assert!(
        world.peers[1].1.is_closed(),
        "it reads nothing, and is kept"
    );
}

#[test]
fn who_leaves_with_much_does_not_keep_leases_from_ending() {
    let mut engine = engine();
    let mut effects = Effects::new();
    let (rich, poor) = (ConnId { slot: 0, serial: 1 }, ConnId { slot: 1, serial: 2 });
    for index in 0..4 * WORK_PER_TURN_MAX {
        let key = index.to_le_bytes();
        engine.apply(
            Nanos(0),
            Input::Request(rich, acquire(&key, Millis::MAX)),
            &mut effects,
        );
    }
    engine.apply(
        Nanos(0),
        Input::Request(poor, acquire(b"job", Millis(100))),
        &mut effects,
    );
    engine.apply(Nanos(0), Input::Disconnected(rich), &mut effects);
    assert!(
        engine.counts().holders > WORK_PER_TURN_MAX as usize,
        "nothing is left to undo"
    );
    let expiries = engine.tally().expiries;
    engine.apply(Nanos(Millis(100).nanos()), Input::Time, &mut effects);
    assert_eq!(engine.tally().expiries, expiries + 1);
    while engine.next_deadline() == Some(Nanos(0)) {
        engine.apply(Nanos(Millis(100).nanos()), Input::Time, &mut effects);
    }
    assert_eq!(engine.counts().holders, 0);
}

/// Everyone but the first and the last hangs up in one turn.
fn all_hang_up(world: &mut World) {
    let leaving = 1..world.peers.len() - 1;
    for (id, peer) in &world.peers[leaving.clone()] {
        peer.close();
        world.server.hang_up(Nanos(world.now.get()), *id);
    }
    for (id, _) in &world.peers[leaving] {
        world.server.readable(&|| Nanos(world.now.get()), *id);
    }
}

/// How many of the peers' sockets are still open on our side.
fn open(world: &World) -> usize {
    let open = world.peers.iter().filter(|(_, peer)| !peer.is_ended());
    open.count()
}

#[test]
fn a_storm_of_hang_ups_is_spread_over_turns_and_holds_nobody_up() {
    const LEAVING: usize = 3_000;
    let mut world = World::new(LEAVING + 2, Settings::default());
    let keys: Vec<String> = (0..LEAVING)
        .map(|key| format!("l\nkey{key}\n0\n"))
        .collect();
    for (who, request) in keys.iter().enumerate() {
        world.turn(&[(1 + who, request.as_bytes())]);
    }
    let last = LEAVING + 1;
    world.turn(&[(last, format!("l\nkey{}\n60\n", LEAVING - 1).as_bytes())]);
    assert_eq!(world.heard(last), "", "it is held");

    all_hang_up(&mut world);
    let mut turns = 0;
    while open(&world) > 2 {
        let (open_before, before) = (open(&world), world.server.connections());
        world.turn(&[(0, b"ping\n_\n\n")]);
        assert_eq!(world.heard(0), "ok\n", "answered in every turn");
        assert!(
            open_before - open(&world) <= 256,
            "{open_before} {}",
            open(&world)
        );
        let after = world.server.connections();
        assert!(before - after <= 256, "{before} {after}");
        turns += 1;
        assert!(turns < LEAVING, "nobody is seen off any more");
    }
    assert!(turns >= LEAVING / 256, "{turns}");
    assert!(
        world.heard(last).starts_with("ok "),
        "handed over by the last one to go"
    );
    world.rest();
    assert_eq!(world.server.connections(), 2);
    assert_eq!(world.server.engine().counts().holders, 1);
}

#[test]
fn who_hangs_up_while_waiting_leaves_the_line_at_once_however_many_do() {
    const LEAVING: usize = 3_000;
    let mut world = World::new(LEAVING + 2, Settings::default());
    world.turn(&[(0, b"l\njob\n0\n")]);
    let grant = world.heard(0);
    for who in 1..=LEAVING + 1 {
        world.turn(&[(who, b"l\njob\n60\n")]);
    }
    all_hang_up(&mut world);
    let token = token_of(&grant);
    world.turn(&[(0, format!("r\njob\n{token}\n").as_bytes())]);
    assert!(
        world.heard(LEAVING + 1).starts_with("ok "),
        "not to one who has left"
    );
    assert!(open(&world) > 2, "their sockets are still being closed");
    world.rest();
    assert_eq!(open(&world), 2);
}

/// Hung up, but reading: it has asked so many questions of one per turn.
fn ask_at_length_and_half_close(world: &mut World, who: usize) {
    let (id, peer) = &world.peers[who];
    peer.send(&b"who\njob\n\n".repeat(1_000));
    peer.arrive(usize::MAX);
    peer.close();
    world.server.hang_up(Nanos(0), *id);
}

#[test]
fn who_hung_up_with_nothing_to_say_is_not_kept_waiting_by_those_with_much() {
    const TALKERS: usize = 600;
    let mut world = World::new(TALKERS + 2, Settings::default());
    world.turn(&[(TALKERS, b"l\njob\n0\n")]);
    world.turn(&[(TALKERS + 1, b"l\njob\n60\n")]);
    for who in 0..TALKERS {
        ask_at_length_and_half_close(&mut world, who);
    }
    let (id, peer) = &world.peers[TALKERS];
    peer.close();
    world.server.hang_up(Nanos(0), *id);
    for _ in 0..TALKERS / 256 + 1 {
        world.turn(&[]);
    }
    assert!(world.heard(TALKERS + 1).starts_with("ok "), "handed over");
    world.rest();
    assert_eq!(world.server.connections(), 1);
}

#[test]
fn nobody_is_closed_before_it_was_read_however_many_hang_up() {
    const LEAVING: usize = 1_000;
    let mut world = World::new(LEAVING + 2, Settings::default());
    world.turn(&[(0, b"l\njob\n0\n")]);
    for who in 1..=LEAVING {
        // Parked, with a question behind it that nobody will answer, but somebody has to read.
        world.turn(&[(who, b"ping\n_\n\nl\njob\n60\n")]);
        world.peers[who].1.send(b"ping\n_\n\n");
        world.peers[who].1.arrive(usize::MAX);
    }
    all_hang_up(&mut world);
    world.turn(&[]);
    world.rest();
    assert_eq!(open(&world), 2);
    for who in 1..=LEAVING {
        assert_eq!(world.heard(who), "ok\n");
        assert!(
            world.peers[who].1.was_read(),
            "{who}: closed unread, which is a reset"
        );
    }
}

#[test]
fn whoever_hung_up_makes_room_for_as_many_as_are_accepted_in_a_turn() {
    let settings = Settings {
        connections_max: 600,
        ..Settings::default()
    };
    let mut world = World::new(600, settings);
    for (id, peer) in &world.peers {
        peer.close();
        world.server.hang_up(Nanos(0), *id);
    }
    world.turn(&[]);
    for name in 0..256 {
        let (pipe, _peer) = pipe(1_000 + name);
        assert!(world.server.accept(Nanos(0), pipe).is_some(), "{name}");
    }
    let (one_too_many, _peer) = pipe(2_000);
    assert!(world.server.accept(Nanos(0), one_too_many).is_none());
}

#[test]
fn the_longest_turn_is_told() {
    let mut world = World::new(1, Settings::default());
    for ns in [3_000, 7_000, 5_000] {
        world.server.note_turn(ns);
    }
    world.turn(&[(0, b"stats\n_\n\n")]);
    assert!(world.heard(0).contains("\"longest_turn_us\":7}"));
}

/// Turns of the engine until nothing is due.
fn turns_until_idle(engine: &mut Engine, effects: &mut Effects) -> usize {
    let mut turns = 0;
    while engine.next_deadline() == Some(Nanos(0)) {
        engine.apply(Nanos(1), Input::Time, effects);
        effects.clear();
        turns += 1;
        assert!(turns < 1_000, "it never comes to rest");
    }
    turns
}

#[test]
fn the_memory_of_a_crowd_is_given_back_in_turns_of_their_own() {
    let client = |slot| ConnId {
        slot,
        serial: slot + 1,
    };
    let mut effects = Effects::new();
    // Enough for several pieces of memory: of clients alone, and of clients and their grants.
    for locks in [false, true] {
        let mut engine = engine();
        for slot in 0..40_000 {
            if locks {
                let key = format!("key{slot}");
                let request = acquire(key.as_bytes(), Millis::from_secs(60));
                engine.apply(
                    Nanos(0),
                    Input::Request(client(slot), request),
                    &mut effects,
                );
            } else {
                engine.apply(Nanos(0), Input::Hello(client(slot), None), &mut effects);
            }
        }
        effects.clear();
        for slot in 0..40_000 {
            engine.apply(Nanos(0), Input::Disconnected(client(slot)), &mut effects);
            if slot % 1_000 == 0 {
                engine.apply(Nanos(1), Input::Time, &mut effects);
            }
        }
        engine.apply(Nanos(1), Input::Time, &mut effects);
        let turns = turns_until_idle(&mut engine, &mut effects);
        assert!(
            turns >= if locks { 4 } else { 2 },
            "{turns} with locks: {locks}"
        );
    }
}

#[test]
fn whoever_left_is_neither_granted_nor_counted_while_it_waits_to_be_seen_off() {
    const LEAVING: usize = 1_000;
    let mut world = World::new(LEAVING + 3, Settings::default());
    let (speaker, waiter) = (LEAVING + 1, LEAVING + 2);
    world.turn(&[(0, b"l\njob\n0\n")]);
    let grant = world.heard(0);
    for who in 1..=LEAVING {
        // In line, but not parked; and listening, once on its own and once in a group.
        world.turn(&[(who, b"e\njob\n\nlisten\nnews\n\nlisten\nnews\ng\n")]);
    }
    world.turn(&[(speaker, b"listen\nnews\ng\n")]);
    world.turn(&[(waiter, b"l\njob\n60\n")]);
    world.heard(speaker);
    for (id, peer) in &world.peers[1..=LEAVING] {
        peer.close();
        world.server.hang_up(Nanos(0), *id);
    }
    let token = token_of(&grant);
    let release = format!("r\njob\n{token}\n");
    world.turn(&[(0, release.as_bytes()), (speaker, b"signal\nnews\nhello\n")]);
    assert!(
        world.server.connections() > 3,
        "some are still to be seen off"
    );
    let answer = world.heard(waiter);
    assert!(
        answer.starts_with("ok 0000000000000002"),
        "{answer:?}: the next fence"
    );
    assert_eq!(world.heard(speaker), "ok 1\nsig news hello\n");
    world.rest();
    assert_eq!(world.server.connections(), 3);
}

#[test]
fn a_full_outbox_that_empties_at_once_is_no_reason_to_close_unread() {
    let mut world = World::new(2, Settings::default());
    world.turn(&[(1, b"l\njob\n0\n")]);
    world.turn(&[(0, b"listen\nnews\n\nl\njob\n60\n")]);
    world.peers[0].1.set_room(0);
    let signal = format!("signal\nnews\n{}\n", "x".repeat(60_000));
    for _ in 0..6 {
        world.turn(&[(1, signal.as_bytes())]);
        world.rest();
    }
    world.peers[0].1.send(b"ping\n_\n\n");
    world.peers[0].1.arrive(usize::MAX);
    world.peers[0].1.close();
    let id = world.peers[0].0;
    world.server.hang_up(Nanos(0), id);
    world.turn(&[]);
    assert!(
        !world.peers[0].1.was_read(),
        "held up by what it does not read"
    );
    world.peers[0].1.set_room(usize::MAX);
    world.server.writable(id);
    world.turn(&[]);
    world.rest();
    assert!(world.peers[0].1.was_read() && world.peers[0].1.is_closed());
}

#[test]
fn who_was_denied_a_walk_is_not_denied_it_again_for_those_who_had_one() {
    const TALKERS: usize = 200;
    let mut world = World::new(TALKERS + 1, Settings::default());
    let talk = b"who\njob\n\n".repeat(100);
    let talkers: Vec<(usize, &[u8])> = (0..TALKERS).map(|who| (who, &talk[..])).collect();
    world.turn(&talkers);
    world.turn(&[(TALKERS, b"who\njob\n\n")]);
    for _ in 0..TALKERS * 16 * 1024 / (1 << 20) + 2 {
        world.turn(&[]);
    }
    assert!(world.heard(TALKERS).starts_with("ok "));
}

#[test]
fn those_who_hung_up_leave_time_for_the_walks_of_others() {
    const TALKERS: usize = 300;
    let mut world = World::new(TALKERS + 1, Settings::default());
    for who in 0..TALKERS {
        ask_at_length_and_half_close(&mut world, who);
    }
    world.turn(&[(TALKERS, b"who\njob\n\n")]);
    world.turn(&[]);
    assert!(world.heard(TALKERS).starts_with("ok "));
}
