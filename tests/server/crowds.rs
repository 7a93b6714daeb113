//! Crowds of connections that want one thing in one moment: everybody else is served meanwhile, each
//! turn is short, and the crowd gets what it would have got in one piece. Over pipes.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use latch_sim::pipe::Pipes;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::Settings;

/// A server to which so many are connected.
fn pipes(peers: usize) -> Pipes {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    pipes.skip_checks();
    for _ in 0..peers {
        pipes.connect();
    }
    pipes
}

/// Each of these asks one thing, and the server comes to rest.
fn all_ask(pipes: &mut Pipes, who: std::ops::Range<usize>, request: &str) {
    for who in who {
        pipes.send(who, request.as_bytes());
        pipes.turn();
    }
    pipes.rest();
}

// ---- sending ----

/// A value so long that whoever is sent it comes after the others.
fn store_long_value(pipes: &mut Pipes, who: usize) {
    let value = "v".repeat(60_000);
    assert_eq!(pipes.ask(who, &format!("kset big {value}")), "ok\n");
}

#[test]
fn a_push_does_not_stand_behind_the_long_answers_of_others() {
    const READERS: usize = 300;
    let mut pipes = pipes(READERS + 2);
    let (speaker, listener) = (READERS, READERS + 1);
    store_long_value(&mut pipes, speaker);
    assert_eq!(pipes.ask(listener, "listen news"), "ok\n");
    for who in 0..READERS {
        pipes.send(who, &b"kget\nbig\n\n".repeat(20));
    }
    for _ in 0..60 {
        pipes.turn(); // until each had its first share, and all are owed something long
    }
    for _ in 0..10 {
        pipes.send(speaker, b"signal\nnews\nx\n");
        pipes.turn();
        assert_eq!(pipes.read(speaker), "ok 1\n");
        assert_eq!(pipes.read(listener), "sig news x\n", "in the same turn");
        let readers = (0..READERS).filter(|&who| !pipes.read(who).is_empty());
        assert!(readers.count() >= 2, "long answers have a share too");
    }
}

#[test]
fn a_long_answer_does_not_wait_for_ever_behind_pushes() {
    const LISTENERS: usize = 1_000;
    let mut pipes = pipes(LISTENERS + 2);
    let (speaker, reader) = (LISTENERS, LISTENERS + 1);
    store_long_value(&mut pipes, speaker);
    all_ask(&mut pipes, 0..LISTENERS, "listen\nnews\n\n");
    pipes.send(reader, b"kget\nbig\n\n");
    let mut received = 0;
    for turn in 0.. {
        pipes.send(speaker, b"signal\nnews\nx\n"); // more than leaves in a turn
        pipes.turn();
        received += pipes.read(reader).len();
        if received > 60_000 {
            break;
        }
        assert!(turn < 3, "{received} bytes of it have left");
    }
}

// ---- leaving ----

/// One turn, which decides no more than a turn has time for.
fn short_turn(pipes: &mut Pipes) {
    pipes.turn();
    let ns = pipes.server.decided_ns();
    assert!(ns < 3_500_000, "a turn of {ns} ns");
}

/// Short turns until nothing is left to do; says how many.
fn short_turns(pipes: &mut Pipes) -> u32 {
    let mut turns = 0;
    while pipes
        .server
        .next_deadline()
        .is_some_and(|at| at <= pipes.now())
    {
        short_turn(pipes);
        turns += 1;
        assert!(turns < 10_000, "the server never comes to rest");
    }
    turns
}

fn fence(granted: &str) -> u64 {
    let digits = granted.strip_prefix("ok ").and_then(|it| it.get(..16));
    u64::from_str_radix(
        digits.unwrap_or_else(|| panic!("{granted:?} is no grant")),
        16,
    )
    .unwrap()
}

fn release(key: &str, granted: &str) -> String {
    let token = granted.split_whitespace().nth(1).unwrap();
    format!("r\n{key}\n{token}\n")
}

#[test]
fn waiters_that_hang_up_together_get_nothing_and_no_turn_is_long() {
    const LEAVING: usize = 5_000;
    let mut pipes = pipes(LEAVING + 3);
    let [holder, last, other] = [LEAVING, LEAVING + 1, LEAVING + 2];
    let first = pipes.ask(holder, "l job 0");
    all_ask(&mut pipes, 0..LEAVING, "l\njob\n60\n");
    all_ask(&mut pipes, last..last + 1, "l\njob\n60\n");
    for who in 0..LEAVING {
        pipes.half_close(who);
    }
    pipes.send(holder, release("job", &first).as_bytes());
    let mut turns = 0;
    let granted = loop {
        pipes.send(other, b"ping\n_\n\n");
        short_turn(&mut pipes);
        assert_eq!(pipes.read(other), "ok\n", "answered in every turn");
        let answer = pipes.read(last);
        if !answer.is_empty() {
            break answer;
        }
        turns += 1;
        assert!(turns < 8, "it still waits behind those that have left");
    };
    assert_eq!(
        fence(&granted),
        fence(&first) + 1,
        "nobody else was granted"
    );
    assert!(
        pipes.server.connections() > LEAVING / 2,
        "they are served to their end later"
    );
    short_turns(&mut pipes);
    assert_eq!(pipes.server.connections(), 3);
    for who in 0..LEAVING {
        assert_eq!(pipes.read(who), "", "its request was dropped");
    }
    assert_eq!(pipes.server.engine().counts().waiters, 0);
}

#[test]
fn whoever_has_hung_up_with_much_to_say_is_granted_nothing_between_its_shares() {
    let mut pipes = pipes(4);
    let [holder, leaving, other, next] = [0, 1, 2, 3];
    let first = pipes.ask(holder, "l job 0");
    assert_eq!(pipes.ask(leaving, "e job"), "queued\n");
    // More than a share: it is served to its end in some later turn.
    pipes.send(leaving, &b"ping\n_\n\n".repeat(2_000));
    pipes.half_close(leaving);
    pipes.send(holder, release("job", &first).as_bytes());
    pipes.half_close(holder);
    pipes.send(other, b"l\njob\n60\n");
    pipes.settle();
    let granted = pipes.read(other);
    assert_eq!(
        fence(&granted),
        fence(&first) + 1,
        "nobody else was granted"
    );
    assert_eq!(pipes.ask(next, "l job 0"), "timeout\n");
}

#[test]
fn readers_go_on_at_once_when_the_writer_before_them_has_hung_up() {
    const LEAVING: usize = 2_000;
    let mut pipes = pipes(LEAVING + 3);
    let [reader, writer, behind] = [LEAVING, LEAVING + 1, LEAVING + 2];
    pipes.ask(reader, "rl book 0");
    pipes.ask(writer, "wl book 60");
    pipes.ask(behind, "rl book 60");
    for who in 0..=LEAVING + 1 {
        if who != reader {
            pipes.half_close(who);
        }
    }
    short_turn(&mut pipes);
    assert!(
        pipes.server.connections() > LEAVING / 2,
        "many come before the writer"
    );
    assert!(pipes.read(behind).starts_with("ok "));
}

#[test]
fn what_a_waiting_client_held_is_not_granted_to_one_who_hung_up_with_it() {
    let mut pipes = pipes(5);
    let [other, both, waiter, watcher, later] = [0, 1, 2, 3, 4];
    pipes.ask(other, "l y 0");
    let first = pipes.ask(both, "l x 0");
    pipes.ask(watcher, "watch x");
    pipes.ask(watcher, "observe x");
    pipes.ask(both, "l y 60");
    pipes.ask(waiter, "l x 60");
    pipes.half_close(both);
    pipes.half_close(waiter);
    pipes.settle();
    assert_eq!(
        pipes.read(watcher),
        "watch release x\n",
        "and nobody took over"
    );
    let next = pipes.ask(later, "l x 0");
    assert_eq!(fence(&next), fence(&first) + 1, "a fence was spent");
}

// ---- barriers ----

const MEETING: usize = 8_000;

/// As many as that wait at a barrier, which is complete with one more.
fn meeting(wait_s: u32) -> Pipes {
    let mut pipes = pipes(MEETING + 2);
    let meet = format!("bwait\nstart\n{} {wait_s}\n", MEETING + 1);
    all_ask(&mut pipes, 0..MEETING, &meet);
    pipes
}

/// All of these were told this, and nothing else.
fn all_read(pipes: &mut Pipes, who: std::ops::Range<usize>, answer: &str) {
    for who in who {
        assert_eq!(pipes.read(who), answer, "{who}");
    }
}

#[test]
fn a_barrier_releases_very_many_in_short_turns_whatever_happens_meanwhile() {
    let mut pipes = meeting(20);
    let last = format!("bwait\nstart\n{} 20\n", MEETING + 1);
    pipes.pass(Millis(19_999));
    pipes.send(MEETING, last.as_bytes());
    short_turn(&mut pipes);
    assert_eq!(pipes.read(MEETING), "ok\n");
    assert!(
        pipes.server.engine().counts().waiters > MEETING / 2,
        "some are still to be told"
    );
    // Its name can be used again, with another count.
    assert_eq!(pipes.server.engine().counts().others, 0);
    pipes.send(MEETING + 1, b"bwait\nstart\n1 60\n");
    // Some hang up, and the others' time is over, but it was complete before.
    for who in MEETING - 100..MEETING {
        pipes.half_close(who);
    }
    pipes.pass(Millis(1));
    short_turn(&mut pipes);
    assert_eq!(pipes.read(MEETING + 1), "ok\n");
    pipes.pass(Millis(1_000));
    short_turns(&mut pipes);
    all_read(&mut pipes, 0..MEETING - 100, "ok\n");
    assert_eq!(pipes.server.engine().counts().waiters, 0);
    pipes.server.engine().check();
}

#[test]
fn whoever_comes_after_a_hang_up_does_not_complete_the_barrier() {
    let mut pipes = meeting(60);
    pipes.half_close(MEETING - 1);
    let last = format!("bwait\nstart\n{} 60\n", MEETING + 1);
    pipes.send(MEETING, last.as_bytes());
    short_turn(&mut pipes);
    short_turns(&mut pipes);
    all_read(&mut pipes, 0..MEETING - 1, "timeout\n");
    assert_eq!(pipes.read(MEETING), "", "it waits at a new one");
    assert_eq!(pipes.server.engine().counts().waiters, 1);
    pipes.server.engine().check();
}

// ---- lists ----

const POPPERS: usize = 8_000;

/// So many wait for a value until the same instant, and one more for longer.
fn poppers() -> Pipes {
    let mut pipes = pipes(POPPERS + 3);
    all_ask(&mut pipes, 0..POPPERS, "blpop\nq\n10\n");
    all_ask(&mut pipes, POPPERS..POPPERS + 1, "blpop\nq\n60\n");
    pipes
}

#[test]
fn a_push_finds_the_popper_behind_very_many_whose_wait_is_over() {
    let mut pipes = poppers();
    let (patient, pusher) = (POPPERS, POPPERS + 1);
    pipes.pass(Millis(10_001));
    pipes.send(pusher, b"rpush\nq\none\nrpush\nq\ntwo\n");
    short_turns(&mut pipes);
    assert_eq!(pipes.read(pusher), "ok 0\nok 1\n");
    assert_eq!(pipes.read(patient), "ok one\n");
    all_read(&mut pipes, 0..POPPERS, "nil\n");
}

#[test]
fn a_push_passes_over_very_many_poppers_that_have_hung_up() {
    let mut pipes = poppers();
    let (patient, pusher) = (POPPERS, POPPERS + 1);
    for who in 0..POPPERS {
        pipes.half_close(who);
    }
    pipes.send(pusher, b"rpush\nq\none\nrpush\nq\ntwo\n");
    let mut turns = 0;
    while pipes.read(patient) != "ok one\n" {
        short_turn(&mut pipes);
        turns += 1;
        assert!(turns < 20, "it still waits behind those that have left");
    }
    short_turns(&mut pipes);
    assert_eq!(pipes.read(pusher), "ok 0\nok 1\n");
    all_read(&mut pipes, 0..POPPERS, "");
    assert_eq!(pipes.ask(pusher, "lrange q 0 -1"), "ok [\"two\"]\n");
}

#[test]
fn a_value_that_comes_back_is_not_lost_behind_very_many_whose_wait_is_over() {
    let mut pipes = pipes(POPPERS + 3);
    let [dying, patient, pusher] = [POPPERS, POPPERS + 1, POPPERS + 2];
    pipes.peer(dying).set_room(0);
    pipes.send(dying, b"blpop\nq\n60\nblpop\nq\n60\n");
    pipes.settle();
    pipes.ask(pusher, "rpush q one");
    pipes.ask(pusher, "rpush q two");
    all_ask(&mut pipes, 0..POPPERS, "blpop\nq\n10\n");
    all_ask(&mut pipes, patient..patient + 1, "blpop\nq\n60\n");
    pipes.pass(Millis(10_001));
    pipes.reset(dying);
    pipes.send(0, b"ping\n_\n\n");
    short_turn(&mut pipes);
    assert!(pipes.server.engine().counts().waiters > POPPERS / 2);
    short_turns(&mut pipes);
    // The last one that was popped goes back first.
    assert_eq!(pipes.read(patient), "ok two\n");
    assert_eq!(pipes.ask(pusher, "lrange q 0 -1"), "ok [\"one\"]\n");
    all_read(&mut pipes, 1..POPPERS, "nil\n");
    pipes.server.engine().check();
}

// ---- shutdown ----

#[test]
fn a_shutdown_refuses_very_many_that_wait_in_short_turns_and_grants_to_none() {
    const WAITING: usize = 8_000;
    let mut pipes = pipes(WAITING + 2);
    let (holder, other) = (WAITING, WAITING + 1);
    let granted = pipes.ask(holder, "l job 0");
    all_ask(&mut pipes, 0..WAITING, "l\njob\n60\n");
    pipes.ask(other, "l other 0");
    pipes.stop();
    short_turn(&mut pipes);
    assert!(
        pipes.server.engine().counts().waiters > 1_000,
        "some are still to be told"
    );
    pipes.send(holder, release("job", &granted).as_bytes());
    short_turn(&mut pipes);
    assert_eq!(pipes.read(holder), "ok\n");
    for _ in 0..2 {
        pipes.pass(Millis(50)); // it looks again for connections that have nothing to finish
        short_turns(&mut pipes);
    }
    all_read(&mut pipes, 0..WAITING, "error_draining\n");
    assert_eq!(
        pipes.server.engine().tally().grants,
        2,
        "nobody was granted what is free now"
    );
    assert_eq!(
        pipes.server.connections(),
        1,
        "whoever holds something may finish"
    );
}

#[test]
fn a_shutdown_ends_very_many_idle_connections_in_short_turns() {
    const IDLE: usize = 5_000;
    let mut pipes = pipes(IDLE + 1);
    pipes.ask(IDLE, "l job 0");
    pipes.stop();
    short_turn(&mut pipes);
    assert!(pipes.server.connections() > IDLE / 2, "not all in one turn");
    assert!(short_turns(&mut pipes) < 200);
    assert_eq!(pipes.server.connections(), 1);
    assert!(!pipes.server.is_drained());
}

// ---- what is done besides ----

#[test]
fn a_turn_after_very_many_were_accepted_serves_fewer() {
    let served = |accepted: usize| {
        let mut pipes = pipes(400);
        pipes.turn();
        for who in 0..400 {
            pipes.send(who, b"ping\n_\n\n");
        }
        for _ in 0..accepted {
            pipes.connect();
        }
        pipes.turn();
        (0..400).filter(|&who| !pipes.read(who).is_empty()).count()
    };
    assert!(served(128) + 30 < served(0));
}

#[test]
fn a_turn_looks_only_at_so_many_that_do_not_take_what_they_are_owed() {
    const DEAF: usize = 1_000;
    let mut pipes = pipes(DEAF);
    for who in 0..DEAF {
        pipes.peer(who).set_room(0);
    }
    all_ask(&mut pipes, 0..DEAF, "ping\n_\n\n");
    pipes.pass(Settings::default().write_timeout);
    let mut left = DEAF;
    while left > 0 {
        pipes.turn();
        let now_left = pipes.server.connections();
        assert!((1..=64).contains(&(left - now_left)), "{left} {now_left}");
        left = now_left;
    }
}

/// Giving back the memory of one takes as long as serving hundreds.
#[test]
fn clients_that_leave_much_unread_end_a_few_at_a_time() {
    const CROWD: usize = 40;
    // Each leaves 900 kB unread.
    const PER_TURN_MAX: usize = 8;
    let mut pipes = pipes(1);
    let writer = 0;
    let value = "x".repeat(60_000);
    for _ in 0..15 {
        pipes.ask(writer, &format!("rpush list {value}"));
    }
    for _ in 0..CROWD {
        let who = pipes.connect_with_room(0);
        pipes.say(who, &["lrange list 0 -1"]);
    }
    pipes.rest();
    let mut left = pipes.server.connections();
    assert_eq!(left, 1 + CROWD);
    for who in 1..=CROWD {
        pipes.reset(who);
    }
    while left > 1 {
        pipes.turn();
        let now_left = pipes.server.connections();
        let ended = left - now_left;
        assert!((1..=PER_TURN_MAX).contains(&ended), "{ended} in one turn");
        left = now_left;
    }
}
