//! What a client keeps although its connections end: `Builder::keep`.

use latchd::client::{Client, Error, ErrorKind, Lost, Standing, Told, Verb};

use super::proxy::Proxy;
use super::vocabulary::{Daemon, PATIENCE};
use super::{builder, ms, s};

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
