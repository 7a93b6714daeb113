//! Leases and the disk: none ends, and none is told of when it is over, because the disk is slow.

use latchd::base::Millis;
use latchd::server::Settings;

use crate::remembered::World;

#[test]
fn a_lease_that_is_renewed_in_time_does_not_end_because_the_disk_is_slow() {
    let mut world = World::new();
    let [a, b] = world.connect();
    let token = world.take(a, "job");
    assert_eq!(world.ask(b, "cset hits 1"), ""); // the disk hangs from here on
    for _ in 0..10 {
        world.pipes.pass(Millis::from_secs(30));
        // Longer than the first lease, so it is a record of its own and the answer waits.
        assert_eq!(world.ask(a, &format!("n job {token} 60")), "");
    }
    world.keep_all();
    assert_eq!(world.read(a).matches("ok").count(), 10);
    assert_eq!(world.ask(b, "l job 0"), "ok\ntimeout\n");
}

#[test]
fn nobody_hears_of_a_grant_that_is_over() {
    let mut world = World::new();
    let [a, b] = world.connect();
    assert_eq!(world.ask(a, "l job 0 1"), ""); // for a second
    assert_eq!(world.ask(b, "l job 60"), "");
    for _ in 0..10 {
        world.pipes.pass(Millis::from_secs(3)); // and the disk takes thirty
        world.pipes.settle();
    }
    world.keep_all();
    assert!(world.read(a).starts_with("ok "));
    // The second begins when it was told.
    world.pipes.pass(Millis(999));
    world.pipes.settle();
    world.keep_all();
    assert_eq!(world.read(b), "");
    world.pipes.pass(Millis(1));
    world.pipes.settle();
    world.keep_all();
    assert!(world.read(b).starts_with("ok "));
}

#[test]
fn a_renewal_that_waits_for_the_disk_is_not_over_when_it_is_heard() {
    let mut world = World::new();
    let [a] = world.connect();
    let token = world.take(a, "job");
    assert_eq!(world.ask(a, &format!("n job {token} 60")), "");
    assert_eq!(world.ask(a, &format!("n job {token} 1")), "");
    world.pipes.pass(Millis::from_secs(300));
    world.pipes.settle();
    world.keep_all();
    assert_eq!(world.read(a).matches("ok").count(), 2);
    let [b] = world.connect();
    assert_eq!(world.ask(b, "l job 0"), "timeout\n");
}

#[test]
fn a_renewal_behind_a_change_that_waits_for_the_disk_is_in_time() {
    let mut world = World::new();
    let [a, b, silent] = world.connect();
    let token = world.take(a, "job");
    world.take(b, "other");
    world.take(silent, "forgotten");
    world.store.0.borrow_mut().is_behind = true;
    world
        .pipes
        .say(a, &["incr hits 1", &format!("n job {token}")]);
    world.pipes.say(silent, &["incr hits 1"]);
    world.pass_40_s();
    // Leases of others end as ever.
    assert_eq!(world.ended(), ["other"]);
    world.store.0.borrow_mut().is_behind = false;
    world.pipes.settle();
    world.keep_all();
    assert_eq!(world.read(a).matches("ok").count(), 2);
    // So does one that turns out not to be renewed.
    world.pipes.pass(Millis(10));
    world.pipes.settle();
    assert_eq!(world.ended(), ["other", "forgotten"]);
    world.pipes.pass(Millis(32_980));
    world.pipes.settle();
    assert_eq!(world.ended().len(), 2, "ended early");
    world.pipes.pass(Millis(10));
    world.pipes.settle();
    assert_eq!(world.ended(), ["other", "forgotten", "job"]);
}

/// The server was stopped for longer than the lease, and finds a change of its holder that has to wait for
/// the disk, and a renewal by somebody else who has the token.
#[test]
fn a_lease_that_was_over_before_the_disk_kept_its_holder_waiting_is_not_renewed() {
    let mut world = World::new();
    let [a, b] = world.connect();
    let token = world.take(a, "job");
    world.store.0.borrow_mut().is_behind = true;
    world.pipes.pass(Millis::from_secs(40));
    world.pipes.send(a, b"incr\nhits\n1\n");
    world.pipes.send(b, format!("n\njob\n{token}\n").as_bytes());
    world.pipes.settle();
    assert_eq!(world.ended(), ["job"]);
    world.store.0.borrow_mut().is_behind = false;
    world.keep_all();
    assert_eq!(world.read(b), "error_lease_expired\n");
}

/// Everything that its holder had sent has been looked at in between, and no renewal was among it.
#[test]
fn a_lease_that_is_over_does_not_go_on_because_its_holder_waits_for_the_disk_once_more() {
    let mut world = World::new();
    let [a] = world.connect();
    world.take(a, "job");
    world.store.0.borrow_mut().is_behind = true;
    world.pipes.say(a, &["incr hits 1"]);
    world.pass_40_s();
    assert_eq!(world.ended(), [""; 0], "there may be a renewal behind it");
    world.store.0.borrow_mut().is_behind = false;
    world.pipes.settle();
    world.store.0.borrow_mut().is_behind = true;
    world.pipes.pass(Millis(1));
    world.pipes.say(a, &["incr hits 1"]);
    world.pipes.pass(Millis(10));
    world.pipes.settle();
    assert_eq!(world.ended(), ["job"]);
}

#[test]
fn a_renewal_behind_answers_that_wait_for_the_disk_is_in_time() {
    let mut world = World::new();
    let [a] = world.connect();
    let token = world.take(a, "job");
    let value = "x".repeat(65_000);
    let mut frames = vec![format!("kset name {value}")];
    frames.extend((0..5).map(|_| "kget name _".to_owned()));
    frames.push(format!("n job {token}"));
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    world.pipes.say(a, &frames);
    world.pass_40_s();
    assert!(world.ended().is_empty());
    world.keep_all();
    world.keep_all();
    assert_eq!(world.read(a).matches("ok").count(), 7);
    world.pass_40_s();
    assert_eq!(world.ended(), ["job"]);
}

#[test]
fn a_renewal_that_takes_room_waits_for_a_disk_that_is_behind_and_its_lease_for_it() {
    let mut world = World::new();
    let [a] = world.connect();
    let token = world.take(a, "job");
    world.store.0.borrow_mut().is_behind = true;
    let before = world.recorded();
    assert_eq!(world.ask(a, &format!("n job {token} 60")), "");
    world.pass_40_s();
    assert_eq!(world.recorded(), before, "more is handed over");
    world.store.0.borrow_mut().is_behind = false;
    world.pipes.settle();
    world.keep_all();
    assert_eq!(world.read(a), "ok 60\n");
}

#[test]
fn on_a_full_disk_a_renewal_gives_the_lease_that_is_recorded_and_no_more() {
    let mut world = World::new();
    let [a] = world.connect();
    let token = world.take(a, "job");
    world.store.0.borrow_mut().progress.is_full = true;
    world.pipes.settle();
    let before = world.recorded();
    world.pipes.pass(Millis::from_secs(20));
    assert_eq!(world.ask(a, &format!("n job {token} 60")), "ok 33\n");
    assert_eq!(world.ask(a, &format!("n job {token} 30")), "ok 30\n");
    assert_eq!(world.ask(a, &format!("n job {token} 60")), "ok 33\n");
    assert_eq!(world.recorded(), before);
    world.store.0.borrow_mut().progress.is_full = false;
    world.pipes.settle();
    assert_eq!(world.ask(a, &format!("n job {token} 60")), "");
    world.keep_all();
    assert_eq!(world.read(a), "ok 60\n");
}

#[test]
fn a_lease_ends_when_the_disk_has_got_on_although_its_holder_does_not_read() {
    let mut world = World::with(Settings {
        write_timeout: Millis::ZERO,
        ..Settings::default()
    });
    let [a, b] = world.connect();
    world.take(a, "job");
    assert_eq!(
        world.ask(b, &format!("kset name {}", "x".repeat(60_000))),
        ""
    );
    world.keep_all();
    // The socket is full before the first answer that waits for the disk, and the rest of the answers
    // leave no room for more.
    world.pipes.set_room(a, 1_000);
    let reads = ["kget name _"; 5];
    world.pipes.say(a, &["kget name _", "incr hits 1"]);
    world.pipes.say(a, &reads);
    world.pass_40_s();
    assert!(world.ended().is_empty(), "a renewal may be behind them");
    world.keep_all();
    world.pass_40_s();
    assert_eq!(world.ended(), ["job"]);
}

#[test]
fn very_many_leases_whose_records_are_kept_at_once_begin_in_short_turns_and_at_one_instant() {
    const HOLDS: usize = 40_000;
    let mut world = World::new();
    world.pipes.skip_checks();
    // Answers that wait take room, so one connection is not enough.
    let clients: [usize; 40] = world.connect();
    let frames = format!("sl\npool\n0 {HOLDS} 33\n").repeat(HOLDS / clients.len());
    for who in clients {
        world.pipes.send(who, frames.as_bytes());
        world.pipes.settle();
    }
    let recorded = world.recorded();
    assert!(recorded > HOLDS as u64, "{recorded}");
    world.store.0.borrow_mut().progress.durable = recorded;
    let mut turns = 0;
    loop {
        world.pipes.turn();
        turns += 1;
        let ns = world.pipes.server.decided_ns();
        assert!(ns < 3_500_000, "a turn of {ns} ns");
        let next = world.pipes.server.next_deadline();
        if next.is_none_or(|at| at > world.pipes.now()) {
            break;
        }
    }
    assert!(turns > 1, "all of them in one turn");
    world.pipes.pass(Millis(32_999));
    world.pipes.settle();
    assert!(world.ended().is_empty(), "ended early");
    world.pipes.pass(Millis(1));
    world.pipes.settle();
    assert_eq!(world.ended().len(), HOLDS);
}
