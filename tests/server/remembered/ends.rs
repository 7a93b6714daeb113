//! Ends: of connections whose answers wait for the disk, and of the server.

use latchd::base::Millis;
use latchd::engine::types::Record;
use latchd::server::Settings;

use crate::remembered::World;

#[test]
fn a_client_that_is_kept_waiting_by_the_disk_is_not_taken_for_silent() {
    let settings = Settings {
        read_timeout: Millis::from_secs(5),
        write_timeout: Millis::from_secs(5),
        ..Settings::default()
    };
    let mut world = World::with(settings);
    let [a] = world.connect();
    assert_eq!(world.ask(a, "cset hits 1"), "");
    for _ in 0..10 {
        world.pipes.pass(Millis::from_secs(4));
        world.pipes.settle();
    }
    assert!(!world.pipes.peer(a).is_closed());
    world.keep_all();
    assert_eq!(world.read(a), "ok\n");
    world.pipes.pass(Millis::from_secs(4));
    world.pipes.settle();
    assert!(!world.pipes.peer(a).is_closed(), "its time began too early");
}

#[test]
fn who_sends_half_a_line_gets_no_more_time_for_it_by_other_answers() {
    let settings = Settings {
        read_timeout: Millis::from_secs(5),
        ..Settings::default()
    };
    let mut world = World::with(settings);
    let [a] = world.connect();
    world.pipes.send(a, b"cset\nhits\n1\ninc"); // and no more
    world.pipes.settle();
    world.pipes.pass(Millis::from_secs(4));
    world.keep_all();
    assert_eq!(world.read(a), "ok\n");
    world.pipes.pass(Millis::from_secs(1));
    world.pipes.settle();
    assert_eq!(world.read(a), "error\n");
}

#[test]
fn a_last_answer_that_waits_for_the_disk_is_not_lost_to_a_timeout() {
    let mut world = World::new();
    let [a] = world.connect();
    world.pipes.send(a, b"cset\nhits\n1\n");
    world.pipes.send(a, &[b'x'; 300]); // too long a line, which ends the connection
    for _ in 0..5 {
        world.pipes.settle();
        assert!(!world.pipes.peer(a).is_closed(), "closed with an answer");
        world.pipes.pass(Millis(999));
    }
    world.keep_all();
    assert_eq!(world.read(a), "ok\nerror\n");
    world.pipes.pass(Millis(999));
    world.pipes.settle();
    assert!(!world.pipes.peer(a).is_closed(), "it had no time to read");
    world.pipes.pass(Millis(1));
    world.pipes.settle();
    assert!(world.pipes.peer(a).is_closed());
}

#[test]
fn a_server_that_stops_releases_nothing_and_says_what_it_owes() {
    let mut world = World::new();
    let [a, b] = world.connect();
    world.take(a, "job");
    assert_eq!(world.ask(b, "cset hits 1"), "");
    let before = world.recorded();
    world.pipes.stop();
    world.pipes.settle();
    assert!(!world.pipes.server.is_drained(), "an answer is still owed");
    world.keep_all();
    assert_eq!(world.read(b), "ok\n");
    world.pipes.pass(Millis::from_secs(1));
    world.pipes.settle();
    assert!(world.pipes.server.is_drained());
    assert_eq!(world.recorded(), before, "something was released");
}

#[test]
fn those_who_hold_something_end_last_when_we_stop_and_hold_on() {
    let mut world = World::new();
    let [holder, idle, busy] = world.connect();
    let token = world.take(holder, "job");
    assert_eq!(world.ask(idle, "ping _ _"), "ok\n");
    assert_eq!(world.ask(busy, "e job"), "queued\n");
    world.pipes.stop();
    for _ in 0..10 {
        world.pipes.pass(Millis::from_secs(1));
        world.pipes.settle();
    }
    assert!(world.pipes.peer(idle).is_closed());
    assert!(
        !world.pipes.peer(holder).is_closed(),
        "somebody else is busy"
    );
    assert!(
        world
            .ask(holder, &format!("n job {token}"))
            .starts_with("ok ")
    );
    let before = world.recorded();
    world.pipes.reset(busy);
    world.pipes.settle();
    world.pipes.pass(Millis(50));
    world.pipes.settle();
    assert!(world.pipes.server.is_drained());
    world.pass_40_s();
    assert_eq!(world.recorded(), before, "its lease ended");
}

#[test]
fn nobody_is_granted_what_those_waited_for_whom_we_cut_off() {
    let mut world = World::new();
    let [reader, writer, next] = world.connect();
    assert_eq!(world.ask(reader, "rl book 0"), "");
    world.keep_all();
    assert!(world.read(reader).starts_with("ok "));
    assert_eq!(world.ask(writer, "we book"), "queued\n");
    assert_eq!(world.ask(next, "re book"), "queued\n");
    let before = world.recorded();
    world.pipes.stop();
    world.pipes.stop();
    world.pipes.settle();
    assert!(world.pipes.server.is_drained());
    assert_eq!(world.recorded(), before, "somebody was granted it");
}

#[test]
fn a_client_that_leaves_while_we_stop_has_left() {
    let mut world = World::new();
    let [a] = world.connect();
    world.take(a, "job");
    world.pipes.reset(a);
    world.pipes.stop();
    world.pipes.settle();
    let kept = world.store.0.borrow();
    assert!(matches!(kept.records.last(), Some(Record::Ended { .. })));
}

#[test]
fn a_client_that_leaves_with_very_much_while_we_stop_has_let_go_of_all_of_it() {
    const LOCKS: usize = 5_000;
    let mut world = World::new();
    let [a] = world.connect();
    for lock in 0..LOCKS {
        world
            .pipes
            .send(a, format!("l\nk{lock}\n0 600\n").as_bytes());
        world.pipes.turn();
    }
    world.keep_all();
    world.pipes.stop();
    world.pipes.reset(a);
    while !world.pipes.server.is_drained() {
        world.pipes.turn();
    }
    assert_eq!(
        world.ended().len(),
        LOCKS,
        "the rest is held in the next life"
    );
}

/// When the time of a shutdown is over every connection is closed at once, but what they leave behind may
/// be more than one turn undoes. The turns that do follow each other without a wait.
#[test]
fn what_connections_leave_behind_is_undone_after_the_time_of_a_shutdown() {
    let settings = Settings {
        shutdown_timeout: Millis::from_secs(5),
        ..Settings::default()
    };
    let mut world = World::with(settings);
    let [holder, busy] = world.connect();
    world.take(holder, "job");
    assert_eq!(world.ask(busy, "e job"), "queued\n");
    for number in 0..200 {
        assert_eq!(world.ask(busy, &format!("watch k{number}.*")), "ok\n");
    }
    let before = world.recorded();
    world.pipes.stop();
    world.pipes.settle();
    world.pipes.pass(Millis::from_secs(5));
    world.pipes.turn();
    assert!([holder, busy].map(|it| world.pipes.peer(it).is_closed()) == [true; 2]);
    let server = &world.pipes.server;
    assert!(!server.is_drained(), "it has watched too much for one turn");
    assert!(server.next_deadline().unwrap() <= world.pipes.now());
    world.pipes.settle();
    assert!(world.pipes.server.is_drained());
    assert_eq!(world.recorded(), before, "something was released");
}

/// It cannot be told any more, so what it would have been told with does not matter.
#[test]
fn a_client_without_connections_ends_on_time_although_its_last_grant_waits_for_the_disk() {
    let mut world = World::new();
    let [holder, who] = world.connect();
    assert_eq!(world.ask(holder, "rangelock f ex 0 10 0"), "ok\n");
    assert_eq!(world.ask(who, "attach gw/1 1 secret"), "");
    world.keep_all();
    assert_eq!(world.read(who), "ok 1 new\n");
    assert_eq!(world.ask(who, "rangelock f ex 0 10 30"), "");
    assert_eq!(world.ask(holder, "rangeunlock f 0 10"), "");
    world.pipes.reset(who);
    world.pipes.settle();
    world.pipes.pass(Millis(1_001));
    world.pipes.settle();
    let gone = |it: &Record| matches!(it, Record::ClientGone { .. });
    assert!(world.store.0.borrow().records.iter().any(gone));
}

/// What it had asked for before it was gone waits for the disk like what others ask for, so what it holds is
/// free when that is decided. Nobody could be told of it before.
#[test]
fn who_is_gone_with_a_request_that_waits_for_the_disk_lets_go_when_the_disk_has_got_on() {
    let mut world = World::new();
    let [holder, waiter] = world.connect();
    world.take(holder, "job");
    assert_eq!(world.ask(waiter, "l job 60"), "");
    world.store.0.borrow_mut().is_behind = true;
    assert_eq!(world.ask(holder, "incr hits 1"), "");
    world.pipes.reset(holder);
    world.pipes.settle();
    world.pipes.pass(Millis(12));
    world.pipes.settle();
    assert!(world.ended().is_empty(), "the disk is further behind");
    world.store.0.borrow_mut().is_behind = false;
    world.keep_all();
    assert_eq!(world.ended(), ["job"]);
    world.keep_all();
    assert!(world.read(waiter).starts_with("ok "));
}

/// It was cut off, and hangs up before its last answer may leave. The server must not turn without end
/// until the disk has got on.
#[test]
fn who_is_cut_off_and_hangs_up_while_its_answer_waits_for_the_disk_keeps_nobody_busy() {
    let mut world = World::new();
    let [a] = world.connect();
    world.pipes.send(a, b"cset\nhits\n1\n");
    world.pipes.send(a, &[b'x'; 300]); // too long a line, which ends the connection
    world.pipes.settle();
    world.pipes.half_close(a);
    for _ in 0..5 {
        world.pipes.settle();
        world.pipes.pass(Millis::from_secs(1));
        world.pipes.turn();
        let next = world.pipes.server.next_deadline();
        assert!(next > Some(world.pipes.now()), "there is nothing to do");
        assert!(!world.pipes.peer(a).is_closed(), "closed with an answer");
    }
    world.keep_all();
    assert_eq!(world.read(a), "ok\nerror\n");
    assert!(world.pipes.peer(a).is_closed());
}
