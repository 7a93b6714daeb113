//! What a turn owes everyone: time that is right however long it takes, nobody forgotten, nobody
//! served at the others' cost. Over pipes, with a clock that moves when it is looked at.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latch_sim::pipe::{ORIGIN, Pipes};
use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Effects, Input, Mode, Request};
use latchd::engine::{Engine, Rules};
use latchd::server::{Door, Settings};
use latchd::wire::outbox::{OUTBOX_BYTES_MAX, PUSH_BYTES_MAX};

/// What the engine may spend on one turn.
const WORK: u64 = 1_000_000;

/// More than it undoes or ends with that.
const MANY: u32 = 2048;

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
fn a_turn_holds_only_so_many_walks_and_clients_that_had_to_wait_come_first() {
    let mut pipes = pipes(100, Settings::default());
    let everyone: Vec<(usize, &[u8])> = (0..100).map(|who| (who, &b"stats\n_\n_\n"[..])).collect();
    turn(&mut pipes, &everyone);
    let first = answered(&mut pipes).len();
    assert!((10..80).contains(&first), "{first} in one turn");
    // Those who were served ask again at once; it is still the others' turn.
    turn(&mut pipes, &everyone[..first]);
    let mut next = first;
    loop {
        let answered = answered(&mut pipes);
        assert!((1..80).contains(&answered.len()), "{answered:?}");
        let (again, others): (Vec<_>, Vec<_>) = answered.into_iter().partition(|&who| who < first);
        let in_order = next..next + others.len();
        assert!(others.into_iter().eq(in_order.clone()), "as they asked");
        next = in_order.end;
        assert!(again.is_empty() || next == 100, "{again:?} before {next}");
        if next == 100 {
            pipes.rest();
            assert_eq!(self::answered(&mut pipes).len() + again.len(), first);
            break;
        }
        pipes.turn();
    }
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
        (20..500).contains(&told),
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
fn a_client_that_leaves_with_much_does_not_keep_leases_from_ending() {
    let mut engine = engine();
    let mut effects = Effects::new();
    let (rich, poor) = (ConnId { slot: 0, serial: 1 }, ConnId { slot: 1, serial: 2 });
    for index in 0..4 * MANY {
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
        engine.counts().holders > MANY as usize,
        "nothing is left to undo"
    );
    let expiries = engine.tally().expiries;
    engine.apply(Nanos(Millis(100).nanos()), Input::Time(WORK), &mut effects);
    assert_eq!(engine.tally().expiries, expiries + 1);
    while engine.next_deadline() == Some(Nanos(0)) {
        engine.apply(Nanos(Millis(100).nanos()), Input::Time(WORK), &mut effects);
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
            open_before - open(&pipes) <= 128,
            "{open_before} {}",
            open(&pipes)
        );
        let after = pipes.server.connections();
        assert!(before - after <= 128, "{before} {after}");
        turns += 1;
        assert!(turns < LEAVING, "nobody is served to its end any more");
    }
    assert!(turns >= LEAVING / 128, "{turns}");
    assert!(
        pipes.read(last).starts_with("ok "),
        "handed over by the last one to go"
    );
    pipes.rest();
    assert_eq!(pipes.server.connections(), 2);
    assert_eq!(pipes.server.engine().counts().holders, 1);
}

/// Hung up, but reading: it has asked so many questions of one per turn.
fn ask_at_length_and_half_close(pipes: &mut Pipes, who: usize) {
    pipes.send(who, &b"who\njob\n\n".repeat(1_000));
    pipes.half_close(who);
}

#[test]
fn a_client_that_hung_up_with_nothing_to_say_does_not_wait_for_those_with_much() {
    const TALKERS: usize = 600;
    let mut pipes = pipes(TALKERS + 2, Settings::default());
    turn(&mut pipes, &[(TALKERS, b"l\njob\n0\n")]);
    turn(&mut pipes, &[(TALKERS + 1, b"l\njob\n60\n")]);
    for who in 0..TALKERS {
        ask_at_length_and_half_close(&mut pipes, who);
    }
    pipes.half_close(TALKERS);
    // Not one of their questions is answered before everybody who has left was looked at.
    for _ in 0..TALKERS / 100 + 1 {
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
fn clients_that_hung_up_make_room_for_as_many_as_are_accepted_in_a_turn() {
    let settings = Settings {
        connections_max: 600,
        ..Settings::default()
    };
    let mut pipes = pipes(600, settings);
    let everyone = pipes.everyone();
    hang_up(&mut pipes, everyone);
    pipes.turn();
    for name in 0..128 {
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
    assert_eq!(closed(&pipes), 125);
    assert_eq!(pipes.rest(), IDLE as u32 / 125 - 1);
    assert_eq!((pipes.server.connections(), closed(&pipes)), (0, IDLE));
}

#[test]
fn the_longest_turn_is_told() {
    let mut pipes = pipes(1, Settings::default());
    for ns in [3_000, 7_000, 5_000] {
        pipes.turn();
        pipes.server.note_sleep(Nanos(pipes.now().0 + ns));
    }
    turn(&mut pipes, &[(0, b"stats\n_\n\n")]);
    let stats = pipes.read(0);
    assert!(stats.contains("\"longest_turn_us\":7,"), "{stats}");
}

#[test]
fn a_lock_is_passed_on_before_what_those_who_left_with_it_have_besides() {
    const LEAVING: usize = 200;
    const LOCKS: usize = 100;
    let mut pipes = pipes(LEAVING + 2, Settings::default());
    for who in 0..LEAVING {
        let locks = (0..LOCKS).map(|key| format!("l\nkey{who}-{key}\n0 600\n"));
        pipes.send(who, locks.collect::<String>().as_bytes());
    }
    let (last, waiter) = (LEAVING, LEAVING + 1);
    pipes.send(last, b"l\njob\n0 600\n");
    pipes.settle();
    turn(&mut pipes, &[(waiter, b"l\njob\n60\n")]);
    assert_eq!(pipes.server.engine().counts().holders, LEAVING * LOCKS + 1);
    hang_up(&mut pipes, 0..=last);
    let mut passed_ns = 0;
    while pipes.read(waiter).is_empty() {
        pipes.turn();
        passed_ns += pipes.server.decided_ns();
        assert!(passed_ns < 10_000_000, "{passed_ns}");
    }
    assert!(pipes.rest() > 1, "all was undone before");
}

#[test]
fn what_a_turn_spends_on_those_who_left_is_told_apart() {
    let mut pipes = pipes(2, Settings::default());
    let locks = (0..2 * MANY).map(|key| format!("l\nkey{key}\n0 600\n"));
    pipes.send(0, locks.collect::<String>().as_bytes());
    pipes.settle();
    hang_up(&mut pipes, [0]);
    pipes.turn();
    pipes.server.note_sleep(pipes.now().after(Millis(5)));
    turn(&mut pipes, &[(1, b"stats\n_\n\n")]);
    let stats = pipes.read(1);
    let us = |name: &str| -> u64 {
        let (_, rest) = stats.split_once(&format!("\"{name}\":")).unwrap();
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    };
    assert!(us("expire") < 100, "{}", us("expire"));
    assert!(us("depart") > 1_000, "{}", us("depart"));
}

/// Turns of the engine until nothing is due.
fn turns_until_idle(engine: &mut Engine, effects: &mut Effects) -> usize {
    let mut turns = 0;
    while engine.next_deadline() == Some(Nanos(0)) {
        engine.apply(Nanos(1), Input::Time(WORK), effects);
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
                engine.apply(Nanos(1), Input::Time(WORK), &mut effects);
            }
        }
        engine.apply(Nanos(1), Input::Time(WORK), &mut effects);
        let turns = turns_until_idle(&mut engine, &mut effects);
        assert!(
            turns >= if locks { 4 } else { 2 },
            "{turns} with locks: {locks}"
        );
    }
}

#[test]
fn a_client_that_left_is_neither_granted_nor_counted_while_it_waits_to_be_served() {
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
fn a_client_that_was_denied_a_walk_is_not_denied_it_again_for_those_that_had_one() {
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
fn clients_that_hung_up_leave_time_for_the_walks_of_others() {
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

#[test]
fn somebody_with_one_small_request_does_not_wait_behind_those_with_more() {
    const BUSY: usize = 1_000;
    let mut pipes = pipes(BUSY + 1, Settings::default());
    let flood = b"incr\nhits\n1\n".repeat(3_000);
    for who in 0..BUSY {
        pipes.send(who, &flood);
    }
    while !(0..BUSY).all(|who| pipes.read(who).lines().count() > 0) {
        pipes.turn(); // until each of them has had its first share, and is known to have more
    }
    for _ in 0..10 {
        turn(&mut pipes, &[(BUSY, b"ping\n_\n\n")]);
        assert_eq!(pipes.read(BUSY), "ok\n", "in the turn in which it came");
        let served = (0..BUSY).filter(|&who| !pipes.read(who).is_empty()).count();
        assert!((1..BUSY / 4).contains(&served), "{served} in one turn");
    }
}

#[test]
fn those_with_more_take_turns() {
    const BUSY: usize = 100;
    let mut pipes = pipes(BUSY, Settings::default());
    let flood = b"incr\nhits\n1\n".repeat(2_000);
    for who in 0..BUSY {
        pipes.send(who, &flood);
    }
    let mut answers = [0; BUSY];
    while answers.iter().any(|&count| count < 1_000) {
        pipes.turn();
        for (who, count) in answers.iter_mut().enumerate() {
            *count += pipes.read(who).lines().count();
        }
        let (most, least) = (answers.iter().max(), answers.iter().min());
        let ahead = most.unwrap() - least.unwrap();
        assert!(ahead < 1_000, "one is {ahead} requests ahead of another");
    }
}

#[test]
fn news_for_many_leave_after_the_answers_and_over_many_turns() {
    const MANY: usize = 3_000;
    let mut pipes = pipes(MANY + 2, Settings::default());
    for who in 0..MANY {
        turn(&mut pipes, &[(who, b"listen\nnews\n\n")]);
    }
    for who in 0..MANY {
        assert_eq!(pipes.read(who), "ok\n");
    }
    let told = |pipes: &mut Pipes| {
        let told = (0..MANY).filter(|&who| pipes.read(who) == "sig news x\n");
        told.count()
    };
    turn(&mut pipes, &[(MANY, b"signal\nnews\nx\n")]);
    assert_eq!(pipes.read(MANY), format!("ok {MANY}\n"));
    let mut sum = 0;
    while sum < MANY {
        let some = told(&mut pipes);
        assert!((1..MANY / 10).contains(&some), "{some} in one turn");
        sum += some;
        turn(&mut pipes, &[(MANY + 1, b"ping\n_\n\n")]);
        assert_eq!(pipes.read(MANY + 1), "ok\n", "answered in every turn");
    }
}

#[test]
fn long_values_for_many_leave_over_many_turns() {
    const MANY: usize = 300;
    let mut pipes = pipes(MANY + 1, Settings::default());
    let value = "v".repeat(60_000);
    pipes.send(0, format!("kset\nbig\n{value}\n").as_bytes());
    pipes.settle();
    for who in 0..MANY {
        pipes.send(who, &b"kget\nbig\n\n".repeat(100));
    }
    for turns in 0..200 {
        turn(&mut pipes, &[(MANY, b"ping\n_\n\n")]);
        let is_answered = pipes.read(MANY) == "ok\n";
        assert!(is_answered || turns < 50, "they had their first share");
        let bytes: usize = (0..MANY).map(|who| pipes.read(who).len()).sum();
        assert!((1..8_000_000).contains(&bytes), "{bytes} bytes in one turn");
    }
}

#[test]
fn everybody_who_let_go_while_the_server_was_stopped_is_heard_before_leases_end() {
    const HOLDERS: usize = 1_000;
    let mut pipes = pipes(HOLDERS, Settings::default());
    let releases: Vec<String> = (0..HOLDERS)
        .map(|who| {
            let grant = pipes.ask(who, &format!("l key{who} 0 30"));
            format!("r\nkey{who}\n{}\n", grant.split(' ').nth(1).unwrap())
        })
        .collect();
    pipes.pass(Millis::from_secs(60));
    for (who, release) in releases.iter().enumerate() {
        pipes.send(who, release.as_bytes());
    }
    pipes.settle();
    for who in 0..HOLDERS {
        assert_eq!(pipes.read(who), "ok\n");
    }
    assert_eq!(pipes.server.engine().tally().expiries, 0);
}

/// Very many values can end together, and are heard of before their timers.
#[test]
fn stats_looks_at_so_many_values_that_are_over_and_no_more() {
    const OVER: usize = 5_000;
    let mut pipes = pipes(1, Settings::default());
    let sets: String = (0..OVER).map(|n| format!("kset\nk{n}\nv\t1\n")).collect();
    pipes.send(0, sets.as_bytes());
    pipes.settle();
    assert_eq!(pipes.read(0).lines().count(), OVER);
    assert_eq!(pipes.ask(0, "kset last v"), "ok\n");
    pipes.pass(Millis(1_000));
    turn(&mut pipes, &[(0, b"stats\n_\n_\n")]);
    let stats = pipes.read(0);
    assert!(stats.contains("\"kv_entries\":[]"), "{stats}");
    assert!(stats.contains(&format!("\"kv_entries\":{}", OVER + 1)));
    pipes.rest();
    let stats = pipes.ask(0, "stats _");
    assert!(
        stats.contains("\"kv_entries\":[{\"key\":\"last\""),
        "{stats}"
    );
    assert!(stats.contains("\"kv_entries\":1"), "{stats}");
}

/// As many short values as one answer may have: it takes about a turn to write them.
#[test]
fn answer_with_very_many_values_of_a_list_takes_about_a_turn() {
    const VALUES: usize = 1 << 16;
    let mut pipes = pipes(1, Settings::default());
    for _ in 0..=VALUES / 8_192 {
        pipes.send(0, &b"rpush\nq\nv\n".repeat(8_192));
        pipes.settle();
        pipes.read(0);
    }
    pipes.send(0, format!("lrange\nq\n0 {}\n", VALUES - 1).as_bytes());
    let mut longest_ns = 0;
    while pipes.server.next_deadline() == Some(Nanos(0)) || longest_ns == 0 {
        pipes.turn();
        longest_ns = longest_ns.max(pipes.server.decided_ns());
    }
    let answer = pipes.read(0);
    assert_eq!(answer.len(), "ok []\n".len() + VALUES * "'v',".len() - 1);
    assert!(longest_ns < 2_500_000, "{longest_ns} ns by its price");
    // One more is too many.
    let longer = format!("lrange q 0 {VALUES}");
    assert_eq!(pipes.ask(0, &longer), "error\n");
}

/// Over HTTP each byte that is no text takes 24, and the answer is bounded by what is written.
#[test]
fn list_of_bytes_that_are_no_text_is_bounded_as_it_is_written() {
    let mut pipes = pipes(1, Settings::default());
    for _ in 0..8 {
        pipes.send(0, &b"rpush\nq\n\xff\n".repeat(8_192));
        pipes.settle();
        pipes.read(0);
    }
    let web = pipes.connect_to(Door::Http);
    let mut list = |stop: usize| {
        let request = format!("GET /v1/lists/q?stop={stop} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        pipes.send(web, request.as_bytes());
        pipes.settle();
        pipes.read(web)
    };
    let fits = ((1 << 20) - 2_048) / "{'value_base64':'/w=='},".len();
    let answer = list(fits - 1);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{}", &answer[..100]);
    assert!(
        (1_000_000..1 << 20).contains(&answer.len()),
        "{}",
        answer.len()
    );
    let answer = list(fits);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{}", &answer[..100]);
    assert!(answer.contains("RANGE_TOO_LONG"), "{answer}");
}
