//! The disk is far behind, or full: what has to wait, what is refused, and what gathers meanwhile.

use latchd::server::Settings;

use crate::remembered::World;

#[test]
fn changes_wait_when_the_disk_is_far_behind_and_nothing_else_does() {
    let mut world = World::new();
    let [a, b] = world.connect();
    let token = world.take(a, "job");
    world.store.0.borrow_mut().is_behind = true;
    let before = world.recorded();
    assert_eq!(world.ask(b, "incr hits 1"), "");
    assert_eq!(world.recorded(), before, "it was decided nevertheless");
    assert!(world.ask(a, &format!("n job {token}")).starts_with("ok "));
    assert_eq!(world.ask(a, "get hits _"), "ok 0\n");
    assert_eq!(world.ask(a, &format!("r job {token}")), "");
    world.store.0.borrow_mut().is_behind = false;
    world.keep_all();
    world.keep_all();
    assert_eq!(
        (world.read(a), world.read(b)),
        ("ok\n".into(), "ok 1\n".into())
    );
}

#[test]
fn who_asks_and_sends_no_more_is_answered_although_the_disk_is_behind() {
    let mut world = World::new();
    let [a] = world.connect();
    world.store.0.borrow_mut().is_behind = true;
    assert_eq!(world.ask(a, "incr hits 1"), "");
    world.pipes.half_close(a);
    world.pipes.settle();
    world.store.0.borrow_mut().is_behind = false;
    world.keep_all();
    world.keep_all();
    assert_eq!(world.read(a), "ok 1\n");
    assert!(world.pipes.peer(a).is_ended());
}

#[test]
fn those_who_leave_do_not_make_a_disk_that_is_behind_fall_further_behind() {
    let mut world = World::new();
    let [holder, waiter] = world.connect();
    world.take(holder, "job");
    assert_eq!(world.ask(waiter, "l job 60"), "");
    world.store.0.borrow_mut().is_behind = true;
    let before = world.recorded();
    // One that was waiting for the disk when it hung up, and some that had hung up before.
    assert_eq!(world.ask(holder, "incr hits 1"), "");
    let leavers: [usize; 3] = world.connect();
    for who in leavers {
        world.pipes.send(who, b"incr\nhits\n1\nincr\nhits\n1\n");
    }
    for who in leavers.into_iter().chain([holder]) {
        world.pipes.half_close(who);
    }
    for _ in 0..3 {
        world.pipes.settle();
        assert_eq!(world.recorded(), before, "more is handed over");
    }
    world.store.0.borrow_mut().is_behind = false;
    world.keep_all();
    world.keep_all();
    let answers = leavers.map(|who| world.read(who).matches("ok").count());
    assert_eq!((world.read(holder), answers), ("ok 1\n".into(), [2; 3]));
    assert!(world.read(waiter).starts_with("ok "), "it was not let go");
}

#[test]
fn signals_to_somebody_whose_answers_wait_for_the_disk_wait_before_they_are_too_many() {
    let mut world = World::new();
    let [listener, signaller] = world.connect();
    assert_eq!(world.ask(listener, "listen news"), "ok\n");
    assert_eq!(world.ask(listener, "cset hits 1"), "");
    let signal = format!("signal news {}", "x".repeat(60_000));
    let mut sent = 0;
    while world.ask(signaller, &signal) == "ok 1\n" {
        sent += 1;
        assert!(sent < 1_000, "they gather without end");
    }
    assert!(world.pipes.server.holdings().buffered_bytes < 34 << 20);
    world.keep_all();
    let heard = world.read(listener).matches("sig news").count();
    assert_eq!((heard, world.read(signaller)), (sent + 1, "ok 1\n".into()));
}

#[test]
fn nobody_is_told_without_end_of_changes_while_it_waits_for_the_disk() {
    let mut world = World::new();
    let [watcher, other] = world.connect();
    assert_eq!(world.ask(watcher, "watch >"), "ok\n");
    assert_eq!(world.ask(watcher, "cset hits 1"), "");
    // Events of which there is no record, so that nothing else makes them wait.
    let event = format!("kdel\n{}\n\n", "k".repeat(250)).repeat(1_000);
    for _ in 0..200 {
        world.pipes.send(other, event.as_bytes());
        world.pipes.settle();
        assert_eq!(world.read(other).matches("ok").count(), 1_000);
        assert!(world.pipes.server.holdings().buffered_bytes < 34 << 20);
    }
    assert!(world.pipes.peer(watcher).is_closed());
}

#[test]
fn what_waits_for_the_disk_counts_as_memory_in_use() {
    let settings = Settings {
        memory_max: 4 << 20,
        ..Settings::default()
    };
    let mut world = World::with(settings);
    let [a] = world.connect();
    let memory_bytes = |world: &mut World| -> usize {
        let stats = world.ask(a, "stats _ _");
        let (_, rest) = stats.split_once("\"memory_bytes\":").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    assert!(memory_bytes(&mut world) < 3 << 20);
    world.store.0.borrow_mut().memory = 3 << 20;
    assert!(memory_bytes(&mut world) >= 3 << 20);
    world.store.0.borrow_mut().memory = 4 << 20;
    world.pipes.say(a, &["ping _ _"; 1_000]);
    world.read(a);
    world.pipes.send(a, b"kset\nname\nvalue\n");
    world.pipes.settle();
    assert_eq!(world.read(a), "error_memory\n");
}

#[test]
fn a_full_disk_refuses_what_grows_until_there_is_room() {
    let mut world = World::new();
    let [a] = world.connect();
    let token = world.take(a, "job");
    world.store.0.borrow_mut().progress.is_full = true;
    world.pipes.settle();
    for frame in [
        "l other 0",
        "incr hits 1",
        "kset name value",
        "rpush list x",
    ] {
        assert_eq!(world.ask(a, frame), "error_storage\n", "{frame}");
    }
    assert!(world.ask(a, &format!("n job {token}")).starts_with("ok "));
    assert_eq!(world.ask(a, "get hits _"), "ok 0\n");
    assert_eq!(world.ask(a, &format!("r job {token}")), "");
    world.store.0.borrow_mut().progress.is_full = false;
    world.keep_all();
    assert_eq!(world.read(a), "ok\n");
    assert_eq!(world.ask(a, "incr hits 1"), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok 1\n");
}

#[test]
fn a_full_disk_refuses_and_keeps_nobody_waiting_although_it_is_behind() {
    let mut world = World::new();
    let [a, b] = world.connect();
    world.store.0.borrow_mut().is_behind = true;
    assert_eq!(world.ask(a, "incr hits 1"), "", "it may get on");
    world.store.0.borrow_mut().progress.is_full = true;
    world.pipes.settle();
    assert_eq!(world.read(a), "error_storage\n");
    assert_eq!(world.ask(b, "kset name value"), "error_storage\n");
}

#[test]
fn who_pops_and_resets_again_and_again_does_not_make_the_disk_fall_further_behind() {
    let mut world = World::new();
    let [a] = world.connect();
    assert_eq!(world.ask(a, "rpush jobs x"), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok 1\n");
    let before = world.recorded();
    for is_full in [false, true] {
        {
            let mut kept = world.store.0.borrow_mut();
            (kept.is_behind, kept.progress.is_full) = (true, is_full);
        }
        world.pipes.settle();
        for pop in ["lpop jobs _", "blpop jobs 1"] {
            let [popper] = world.connect();
            let refused = if is_full { "error_storage\n" } else { "" };
            assert_eq!(world.ask(popper, pop), refused);
            world.pipes.reset(popper);
            world.pipes.settle();
        }
        assert_eq!(world.recorded(), before, "more is handed over");
    }
    {
        let mut kept = world.store.0.borrow_mut();
        (kept.is_behind, kept.progress.is_full) = (false, false);
    }
    world.pipes.settle();
    assert_eq!(world.ask(a, "lpop jobs _"), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok x\n");
}
