//! What a turn owes everyone: time that is right however long it takes, nobody forgotten, nobody
//! served at the others' cost. Over pipes, with a clock that moves when it is looked at.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Effects, Input, Mode, Request};
use latchd::engine::{Engine, Rules, WORK_PER_TURN_MAX};
use latchd::pipe::{ORIGIN, Pipes};
use latchd::server::Settings;
use latchd::wire::outbox::{OUTBOX_BYTES_MAX, PUSH_BYTES_MAX};

fn engine() -> Engine {
    Engine::new(Rules::default(), ORIGIN)
}

fn acquire(key: &[u8], lease: Millis) -> Request<'_> {
    Request::Acquire {
        key,
        mode: Mode::Slot { limit: 1 },
        wait: Millis::ZERO,
        lease: Some(lease),
    }
}

/// A server to which so many are connected.
fn pipes(peers: usize, settings: Settings) -> Pipes {
    let mut pipes = Pipes::with(Rules::default(), settings);
    pipes.skip_checks();
    for _ in 0..peers {
        pipes.connect();
    }
    pipes
}

/// One turn in which each of these has sent something.
fn turn(pipes: &mut Pipes, sent: &[(usize, &[u8])]) {
    for (who, bytes) in sent {
        pipes.send(*who, bytes);
    }
    pipes.turn();
}

#[test]
fn a_lease_is_counted_from_after_its_request_was_read() {
    let mut pipes = pipes(3, Settings::default());
    let began = pipes.now();
    pipes.move_clock_when_looked_at(Millis(60).nanos()); // a turn in which everyone takes long
    turn(
        &mut pipes,
        &[(0, b"ping\n_\n\n"), (1, b"l\njob\n0 100ms\n")],
    );
    assert!(pipes.read(1).starts_with("ok "));
    // The server looked when the turn began and after each read, so the last look was after the
    // read, and the lease lasts from there.
    assert_eq!(pipes.now(), began.after(Millis(180)));
    pipes.move_clock_when_looked_at(0);
    for (pass_ms, answer) in [(99, "timeout"), (1, "ok ")] {
        pipes.pass(Millis(pass_ms));
        turn(&mut pipes, &[(2, b"l\njob\n0\n")]);
        assert!(pipes.read(2).starts_with(answer), "at {} ns", pipes.now().0);
    }
}

/// So many short questions that the answers to all but the last few fill the outbox while the last
/// read is being served: what is left is in the inbox, and the socket is empty.
const HELD_UP: usize = 8_300;

/// A peer that has asked all that and reads nothing.
fn ask_and_do_not_read(pipes: &mut Pipes) {
    pipes.peer(0).set_room(0);
    turn(pipes, &[(0, &b"hello\n_\n\n".repeat(HELD_UP))]);
    pipes.rest();
    let bytes = pipes.server.holdings().buffered_bytes;
    assert!(bytes > OUTBOX_BYTES_MAX, "only {bytes} bytes are held up");
}

#[test]
fn frames_that_were_held_up_by_a_full_outbox_are_served_once_it_has_room() {
    let mut pipes = pipes(1, Settings::default());
    ask_and_do_not_read(&mut pipes);
    pipes.set_room(0, usize::MAX);
    pipes.settle();
    assert_eq!(pipes.read(0).lines().count(), HELD_UP);
}

#[test]
fn frames_are_served_also_if_a_timer_found_the_room() {
    let settings = Settings {
        write_timeout: Millis(100),
        ..Settings::default()
    };
    let mut pipes = pipes(1, settings);
    ask_and_do_not_read(&mut pipes);
    // The server was stopped; meanwhile the peer has read, and is not to blame.
    pipes.peer(0).set_room(usize::MAX);
    pipes.pass(Millis::from_secs(10));
    pipes.settle();
    assert_eq!(pipes.read(0).lines().count(), HELD_UP);
}

/// How many of a hundred have been answered since the last time.
fn answered(pipes: &mut Pipes) -> Vec<usize> {
    (0..100)
        .filter(|&who| !pipes.read(who).is_empty())
        .collect()
}

#[test]
fn a_turn_holds_only_so_many_walks_and_who_had_to_wait_comes_first() {
    let mut pipes = pipes(100, Settings::default());
    let everyone: Vec<(usize, &[u8])> = (0..100).map(|who| (who, &b"stats\n_\n_\n"[..])).collect();
    turn(&mut pipes, &everyone);
    let first = answered(&mut pipes);
    assert_eq!(first, (0..64).collect::<Vec<_>>());
    // Those who were served ask again at once; it is still the others' turn.
    turn(&mut pipes, &everyone[..64]);
    let second = answered(&mut pipes);
    assert!((64..100).all(|who| second.contains(&who)), "{second:?}");
    assert_eq!(second.len(), 64);
    pipes.rest();
    assert_eq!(answered(&mut pipes).len(), 36);
}

#[test]
fn a_turn_tells_only_so_much_and_then_one_request_at_a_time() {
    let mut pipes = pipes(100, Settings::default());
    for who in 1..100 {
        turn(&mut pipes, &[(who, b"listen\nnews\n\n")]);
        assert_eq!(pipes.read(who), "ok\n");
    }
    turn(&mut pipes, &[(0, &b"signal\nnews\nx\n".repeat(1_000))]);
    let told = pipes.read(0).lines().count();
    assert!(
        (300..500).contains(&told),
        "{told} signals to 99 in one turn"
    );
    pipes.rest();
    assert_eq!(pipes.read(0).lines().count() + told, 1_000);
    assert_eq!(pipes.read(99).lines().count(), 1_000);
}

#[test]
fn one_signal_to_many_groups_of_one_client_is_bounded() {
    let mut pipes = pipes(2, Settings::default());
    pipes.peer(1).set_room(0);
    // A client may be in 64 groups of one pattern; three patterns match.
    for group in 0..3 * 64 {
        let pattern = ["news", "*", ">"][group % 3];
        let listen = format!("listen\n{pattern}\n{group}\n");
        turn(&mut pipes, &[(1, listen.as_bytes())]);
    }
    let payload = "x".repeat(60_000);
    for _ in 0..3 {
        turn(
            &mut pipes,
            &[(0, format!("signal\nnews\n{payload}\n").as_bytes())],
        );
        pipes.rest(); // a long line comes in several shares
    }
    // Never a copy of sixty thousand bytes for every group.
    let held = pipes.server.holdings().buffered_bytes;
    assert!(
        held < 2 * PUSH_BYTES_MAX,
        "{held} bytes are held for one client"
    );
    assert!(pipes.read(0).starts_with("ok 64\n"), "copies of one signal");
    assert!(pipes.peer(1).is_closed(), "it reads nothing, and is kept");
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

/// These hang up in the next turn.
fn hang_up(pipes: &mut Pipes, leaving: impl IntoIterator<Item = usize>) {
    for who in leaving {
        pipes.half_close(who);
    }
}

/// How many of the peers' sockets are still open on our side.
fn open(pipes: &Pipes) -> usize {
    let open = pipes.everyone().filter(|&who| !pipes.peer(who).is_ended());
    open.count()
}

#[test]
fn a_storm_of_hang_ups_is_spread_over_turns_and_holds_nobody_up() {
    const LEAVING: usize = 3_000;
    let mut pipes = pipes(LEAVING + 2, Settings::default());
    let keys: Vec<String> = (0..LEAVING)
        .map(|key| format!("l\nkey{key}\n0\n"))
        .collect();
    for (who, request) in keys.iter().enumerate() {
        turn(&mut pipes, &[(1 + who, request.as_bytes())]);
    }
    let last = LEAVING + 1;
    turn(
        &mut pipes,
        &[(last, format!("l\nkey{}\n60\n", LEAVING - 1).as_bytes())],
    );
    assert_eq!(pipes.read(last), "", "it is held");

    hang_up(&mut pipes, 1..=LEAVING);
    let mut turns = 0;
    while open(&pipes) > 2 {
        let (open_before, before) = (open(&pipes), pipes.server.connections());
        turn(&mut pipes, &[(0, b"ping\n_\n\n")]);
        assert_eq!(pipes.read(0), "ok\n", "answered in every turn");
        assert!(
            open_before - open(&pipes) <= 256,
            "{open_before} {}",
            open(&pipes)
        );
        let after = pipes.server.connections();
        assert!(before - after <= 256, "{before} {after}");
        turns += 1;
        assert!(turns < LEAVING, "nobody is served to its end any more");
    }
    assert!(turns >= LEAVING / 256, "{turns}");
    assert!(
        pipes.read(last).starts_with("ok "),
        "handed over by the last one to go"
    );
    pipes.rest();
    assert_eq!(pipes.server.connections(), 2);
    assert_eq!(pipes.server.engine().counts().holders, 1);
}

#[test]
fn who_hangs_up_while_waiting_leaves_the_queue_at_once_however_many_do() {
    const LEAVING: usize = 3_000;
    let mut pipes = pipes(LEAVING + 2, Settings::default());
    turn(&mut pipes, &[(0, b"l\njob\n0\n")]);
    let grant = pipes.read(0);
    for who in 1..=LEAVING + 1 {
        turn(&mut pipes, &[(who, b"l\njob\n60\n")]);
    }
    hang_up(&mut pipes, 1..=LEAVING);
    let token = grant.split(' ').nth(1).unwrap();
    turn(&mut pipes, &[(0, format!("r\njob\n{token}\n").as_bytes())]);
    assert!(
        pipes.read(LEAVING + 1).starts_with("ok "),
        "not to one who has left"
    );
    assert!(open(&pipes) > 2, "their sockets are still being closed");
    pipes.rest();
    assert_eq!(open(&pipes), 2);
}

/// Hung up, but reading: it has asked so many questions of one per turn.
fn ask_at_length_and_half_close(pipes: &mut Pipes, who: usize) {
    pipes.send(who, &b"who\njob\n\n".repeat(1_000));
    pipes.half_close(who);
}

#[test]
fn who_hung_up_with_nothing_to_say_is_not_kept_waiting_by_those_with_much() {
    const TALKERS: usize = 600;
    let mut pipes = pipes(TALKERS + 2, Settings::default());
    turn(&mut pipes, &[(TALKERS, b"l\njob\n0\n")]);
    turn(&mut pipes, &[(TALKERS + 1, b"l\njob\n60\n")]);
    for who in 0..TALKERS {
        ask_at_length_and_half_close(&mut pipes, who);
    }
    pipes.half_close(TALKERS);
    for _ in 0..TALKERS / 256 + 1 {
        pipes.turn();
    }
    assert!(pipes.read(TALKERS + 1).starts_with("ok "), "handed over");
    pipes.rest();
    assert_eq!(pipes.server.connections(), 1);
}

#[test]
fn nobody_is_closed_before_it_was_read_however_many_hang_up() {
    const LEAVING: usize = 1_000;
    let mut pipes = pipes(LEAVING + 2, Settings::default());
    turn(&mut pipes, &[(0, b"l\njob\n0\n")]);
    for who in 1..=LEAVING {
        // Parked, with a question behind it that nobody will answer, but somebody has to read.
        turn(&mut pipes, &[(who, b"ping\n_\n\nl\njob\n60\n")]);
        pipes.peer(who).send(b"ping\n_\n\n");
        pipes.peer(who).arrive(usize::MAX);
    }
    hang_up(&mut pipes, 1..=LEAVING);
    pipes.settle();
    assert_eq!(open(&pipes), 2);
    for who in 1..=LEAVING {
        assert_eq!(pipes.read(who), "ok\n");
        assert!(
            pipes.peer(who).was_read(),
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
    let mut pipes = pipes(600, settings);
    let everyone = pipes.everyone();
    hang_up(&mut pipes, everyone);
    pipes.turn();
    for name in 0..256 {
        let newcomer = pipes.connect();
        assert!(pipes.id(newcomer).is_some(), "{name}");
    }
    let one_too_many = pipes.connect();
    assert!(pipes.id(one_too_many).is_none());
}

#[test]
fn a_turn_closes_only_so_many_sockets_however_many_are_over() {
    const IDLE: usize = 1_000;
    let mut pipes = pipes(IDLE, Settings::default());
    let closed = |pipes: &Pipes| {
        let closed = pipes.everyone().filter(|&who| pipes.peer(who).is_closed());
        closed.count()
    };
    pipes.pass(Settings::default().read_timeout);
    pipes.turn();
    assert_eq!((pipes.server.connections(), closed(&pipes)), (0, 256));
    assert_eq!(pipes.rest(), 3);
    assert_eq!(closed(&pipes), IDLE);
}

#[test]
fn the_longest_turn_is_told() {
    let mut pipes = pipes(1, Settings::default());
    for ns in [3_000, 7_000, 5_000] {
        pipes.turn();
        pipes.server.note_sleep(Nanos(pipes.now().0 + ns));
    }
    turn(&mut pipes, &[(0, b"stats\n_\n\n")]);
    assert!(pipes.read(0).contains("\"longest_turn_us\":7}"));
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
fn whoever_left_is_neither_granted_nor_counted_while_it_waits_to_be_served() {
    const LEAVING: usize = 1_000;
    let mut pipes = pipes(LEAVING + 3, Settings::default());
    let (speaker, waiter) = (LEAVING + 1, LEAVING + 2);
    turn(&mut pipes, &[(0, b"l\njob\n0\n")]);
    let grant = pipes.read(0);
    for who in 1..=LEAVING {
        // In the queue, but not parked; and listening, once on its own and once in a group.
        turn(
            &mut pipes,
            &[(who, b"e\njob\n\nlisten\nnews\n\nlisten\nnews\ng\n")],
        );
    }
    turn(&mut pipes, &[(speaker, b"listen\nnews\ng\n")]);
    turn(&mut pipes, &[(waiter, b"l\njob\n60\n")]);
    pipes.read(speaker);
    hang_up(&mut pipes, 1..=LEAVING);
    let token = grant.split(' ').nth(1).unwrap();
    let release = format!("r\njob\n{token}\n");
    turn(
        &mut pipes,
        &[(0, release.as_bytes()), (speaker, b"signal\nnews\nhello\n")],
    );
    assert!(
        pipes.server.connections() > 3,
        "some are still to be served to their end"
    );
    let answer = pipes.read(waiter);
    assert!(
        answer.starts_with("ok 0000000000000002"),
        "{answer:?}: the next fence"
    );
    assert_eq!(pipes.read(speaker), "ok 1\nsig news hello\n");
    pipes.rest();
    assert_eq!(pipes.server.connections(), 3);
}

#[test]
fn a_full_outbox_that_empties_at_once_is_no_reason_to_close_unread() {
    let mut pipes = pipes(2, Settings::default());
    turn(&mut pipes, &[(1, b"l\njob\n0\n")]);
    turn(&mut pipes, &[(0, b"listen\nnews\n\nl\njob\n60\n")]);
    pipes.peer(0).set_room(0);
    let signal = format!("signal\nnews\n{}\n", "x".repeat(60_000));
    for _ in 0..6 {
        turn(&mut pipes, &[(1, signal.as_bytes())]);
        pipes.rest();
    }
    pipes.send(0, b"ping\n_\n\n");
    pipes.half_close(0);
    pipes.turn();
    assert!(
        !pipes.peer(0).was_read(),
        "held up by what it does not read"
    );
    pipes.set_room(0, usize::MAX);
    pipes.settle();
    assert!(pipes.peer(0).was_read() && pipes.peer(0).is_closed());
}

#[test]
fn who_was_denied_a_walk_is_not_denied_it_again_for_those_who_had_one() {
    const TALKERS: usize = 200;
    let mut pipes = pipes(TALKERS + 1, Settings::default());
    let talk = b"who\njob\n\n".repeat(100);
    let talkers: Vec<(usize, &[u8])> = (0..TALKERS).map(|who| (who, &talk[..])).collect();
    turn(&mut pipes, &talkers);
    turn(&mut pipes, &[(TALKERS, b"who\njob\n\n")]);
    for _ in 0..TALKERS * 16 * 1024 / (1 << 20) + 2 {
        pipes.turn();
    }
    assert!(pipes.read(TALKERS).starts_with("ok "));
}

#[test]
fn those_who_hung_up_leave_time_for_the_walks_of_others() {
    const TALKERS: usize = 300;
    let mut pipes = pipes(TALKERS + 1, Settings::default());
    for who in 0..TALKERS {
        ask_at_length_and_half_close(&mut pipes, who);
    }
    turn(&mut pipes, &[(TALKERS, b"who\njob\n\n")]);
    pipes.turn();
    assert!(pipes.read(TALKERS).starts_with("ok "));
}

#[test]
fn a_place_left_in_the_same_turn_as_its_holder_is_never_granted() {
    let mut pipes = pipes(4, Settings::default());
    let [holder, behind, watcher, later] = [0, 1, 2, 3];
    pipes.ask(watcher, "watch k");
    pipes.ask(watcher, "observe k");
    let first = pipes.ask(holder, "l k 0");
    assert_eq!(pipes.ask(behind, "e k"), "queued\n");
    pipes.read(watcher);
    pipes.reset(holder);
    pipes.reset(behind);
    pipes.settle();
    // One release, and nobody took over.
    assert_eq!(pipes.read(watcher), "watch release k\n");
    let fence = |granted: &str| u64::from_str_radix(&granted[3..19], 16).unwrap();
    let next = pipes.ask(later, "l k 0");
    assert_eq!(
        fence(&next),
        fence(&first) + 1,
        "a fence was spent on somebody who had left"
    );
}
