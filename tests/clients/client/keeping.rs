//! What a client keeps although its connections end: `Builder::keep`.

use latchd::client::{Client, Error, ErrorKind, Lost, Standing, Told, Verb};

use super::proxy::Proxy;
use super::{builder, ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

#[test]
fn what_is_left_can_be_had_again() {
    let daemon = Daemon::start(&[]);
    let keeping = || builder(&daemon).keep(true).connect().unwrap();
    let guard = keeping().lock("job").lease(s(60)).acquire().unwrap();
    let fence = guard.fence();
    let token = guard.leave().unwrap();
    let other = super::client(&daemon);
    assert_eq!(
        other.lock("job").try_acquire().unwrap_err().kind(),
        ErrorKind::Busy
    );

    let guard = keeping().lock("job").lease(s(60)).adopt(token).unwrap();
    assert_eq!(guard.fence(), fence);
    assert!(guard.is_held());
    let error = other.lock("job").adopt(token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    guard.release().unwrap();
    let error = keeping().lock("job").adopt(token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// As a script has it: one command, one request.
#[test]
fn the_low_door_takes_what_is_kept() {
    let daemon = Daemon::start(&[]);
    let client = builder(&daemon).keep(true).connect().unwrap();
    let reply = client.ask_verb(Verb::Lock, b"job", b"0 60").unwrap();
    let Told::Granted(grant) = reply.told() else {
        panic!("{reply:?}");
    };
    drop(client);
    let client = super::client(&daemon);
    assert!(client.renew("job", grant.token, Some(s(30))).unwrap() > s(20));
    client.release("job", grant.token).unwrap();
}

#[test]
fn a_break_is_survived_and_a_black_hole_too() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::builder(&proxy.address.to_string()).keep(true);
    let guard = client
        .connect()
        .unwrap()
        .lock("job")
        .lease(s(3))
        .acquire()
        .unwrap();
    for round in 0..4 {
        match round % 2 {
            0 => proxy.cut(),
            _ => proxy.stall_present(),
        }
        assert!(!guard.lost().wait(s(2)), "{:?}", guard.lost().why());
    }
    while guard.standing() != Standing::Held {
        assert!(!guard.lost().wait(ms(1)), "{:?}", guard.lost().why());
    }
    guard.release().unwrap();
}

/// The server has let it go meanwhile, and nobody could be told.
#[test]
fn what_was_broken_in_between_is_found_out() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::builder(&proxy.address.to_string()).keep(true);
    let guard = client
        .connect()
        .unwrap()
        .lock("job")
        .lease(s(60))
        .acquire()
        .unwrap();
    proxy.refuse(true);
    proxy.cut();
    while guard.standing() == Standing::Held {}
    assert!(
        super::client(&daemon)
            .break_grant("job", guard.fence())
            .unwrap()
    );
    proxy.refuse(false);
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Expired));
}

/// What was adopted belongs to an owner whose connection is gone, so the connection that renews it owns
/// nothing, and a server closes what owns nothing and is silent. Whoever keeps it learns from that.
#[test]
fn what_was_adopted_is_not_cut_off_for_its_silence_twice() {
    let daemon = Daemon::start(&["--read-timeout=1"]);
    let first = builder(&daemon).keep(true).connect().unwrap();
    let guard = first.lock("job").lease(s(600)).acquire().unwrap();
    let token = guard.leave().unwrap();
    drop(first);
    let proxy = Proxy::to(daemon.address());
    let second = Client::builder(&proxy.address.to_string()).keep(true);
    let lock = second.connect().unwrap().lock("job").lease(s(600));
    let guard = lock.adopt(token).unwrap();
    let before = proxy.accepted();
    let _ = guard.lost().wait(s(5));
    assert_eq!(guard.standing(), Standing::Held);
    let connections = proxy.accepted() - before;
    assert!(connections <= 1, "cut off {connections} times");
    guard.release().unwrap();
}

/// Nor is it at all where the server keeps silent connections for long enough to be asked in time.
#[test]
fn what_was_adopted_is_not_cut_off_for_its_silence_where_that_is_known() {
    let daemon = Daemon::start(&["--read-timeout=3"]);
    let first = builder(&daemon).keep(true).connect().unwrap();
    let guard = first.lock("job").lease(s(600)).acquire().unwrap();
    let token = guard.leave().unwrap();
    drop(first);
    let proxy = Proxy::to(daemon.address());
    let second = Client::builder(&proxy.address.to_string()).keep(true);
    let second = second.check_every(ms(200)).connect().unwrap();
    let guard = second.lock("job").lease(s(600)).adopt(token).unwrap();
    let before = proxy.accepted();
    assert!(!guard.lost().wait(s(5)));
    assert_eq!(proxy.accepted(), before, "it was in doubt meanwhile");
    guard.release().unwrap();
}

#[test]
fn an_answer_that_was_lost_is_shown_by_the_server_and_reported() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::builder(&proxy.address.to_string()).keep(true);
    let client = client.connect().unwrap();
    proxy.cut_after("l\njob");
    let error = client.lock("job").lease(s(60)).acquire().unwrap_err();
    let held = super::client(&daemon).who("job").unwrap().holders[0].fence;
    match &error {
        Error::Unknown {
            fence: Some(fence), ..
        } => assert_eq!(fence.0, held),
        error => panic!("{error:?}"),
    }
    assert!(error.to_string().contains(&held.to_string()), "{error}");
    // An operator may end it.
    assert!(client.break_grant("job", held).unwrap());
    drop(client.lock("job").try_acquire().unwrap());
}
