//! What belongs to a client that outlives its connections: `Builder::attach`.

use std::thread;
use std::time::Duration;

use latchd::client::{Client, Enqueued, Error, ErrorKind, Lost, Standing};

use super::proxy::Proxy;
use super::{builder, client, ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// A client of this daemon, attached, through a proxy.
fn attached(proxy: &Proxy, ttl: Duration) -> Client {
    let client = Client::builder(&proxy.address.to_string());
    client.attach("gw/1", ttl, "s3cret").connect().unwrap()
}

/// It is granted a lock, and neither the answer nor that of `who` arrives: the lock is held, so whoever
/// asked has to be told that nobody knows.
#[test]
fn a_lost_answer_is_reported_though_who_is_lost_too() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let ours = attached(&proxy, s(60));
    let other = client(&daemon);
    for wait in [s(10), Duration::ZERO] {
        ours.ping().unwrap(); // its connection is there for the next request
        proxy.stall_answers(true);
        let lock = ours.lock("job").lease(s(60)).wait(wait);
        let asking = thread::spawn(move || lock.acquire().map(drop));
        while other.who("job").unwrap().holders.is_empty() {}
        proxy.cut_before("who\njob");
        proxy.cut();
        proxy.stall_answers(false);
        let error = asking.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        let holders = other.who("job").unwrap().holders;
        assert_eq!(holders[0].client.as_deref(), Some("gw/1"), "it is held");
        match (wait.is_zero(), &error) {
            // There was time to look again.
            (false, Error::Unknown { fence, .. }) => {
                assert_eq!(fence.map(|it| it.0), Some(holders[0].fence));
            }
            _ => assert!(matches!(error, Error::Unknown { fence: None, .. })),
        }
        assert!(other.break_grant("job", holders[0].fence).unwrap());
    }
}

/// A place is given up when it is dropped, says its page. That of an attached client is no exception,
/// whether or not its turn has come.
#[test]
fn a_place_is_given_up_when_it_is_dropped() {
    let daemon = Daemon::start(&[]);
    let ours = builder(&daemon).attach("gw/1", s(60), "s3cret");
    let ours = ours.connect().unwrap();
    let other = client(&daemon);
    let another = ours.lock("another").acquire().unwrap(); // the client is there all the time
    for has_come in [false, true] {
        let mut held = Some(other.lock("job").acquire().unwrap());
        let Enqueued::Queued(mut place) = ours.lock("job").lease(s(60)).enqueue().unwrap() else {
            panic!("it is somebody else's");
        };
        if has_come {
            drop(held.take());
            assert_eq!(place.position().unwrap(), Some(0));
        }
        drop(place);
        let who = other.who("job").unwrap();
        assert_eq!(who.waiter_count, 0);
        assert_eq!(who.holder_count, u64::from(!has_come));
    }
    drop(another);
}

/// The server forgets the client when it has been away for its time, however long the lease is.
#[test]
fn a_promise_reaches_no_further_than_the_client_is_kept() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let guard = attached(&proxy, s(2)).lock("job").lease(s(600));
    let guard = guard.acquire().unwrap();
    assert_eq!(guard.lease(), s(600));
    assert!(guard.promised() <= s(2), "{:?}", guard.promised());
    assert!(!guard.lost().wait(s(4)), "renewed in time");
    assert!(guard.is_held());
    proxy.refuse(true);
    proxy.cut_servers();
    let next = client(&daemon).lock("job").wait(PATIENCE).acquire();
    assert!(next.unwrap().fence() > guard.fence());
    assert!(!guard.is_held(), "both hold it");
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Expired));
}

/// One that is kept for no time is as good as its connections.
#[test]
fn a_client_that_is_kept_for_no_time_loses_with_its_connection() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let ours = attached(&proxy, Duration::ZERO);
    let guard = ours.lock("job").lease(s(600)).acquire().unwrap();
    assert_eq!(guard.standing(), Standing::Held);
    proxy.cut();
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Disconnected));
    drop(client(&daemon).lock("job").acquire().unwrap());
}

/// Its turn came after a wait, and the connection breaks when the lease is renewed for that: it is held
/// all the same.
#[test]
fn a_break_after_a_wait_loses_nothing() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let ours = attached(&proxy, s(60));
    for is_down in [false, true] {
        let held = client(&daemon).lock("job").acquire().unwrap();
        proxy.cut_before("n\njob");
        let lock = ours.lock("job").lease(s(3));
        let asking = thread::spawn(move || lock.acquire());
        daemon.connect().wait_for_waiters("job", 1);
        // Longer than a third of the lease.
        let _ = held.lost().wait(ms(1_500));
        proxy.refuse(is_down);
        held.release().unwrap();
        match asking.join().unwrap() {
            Ok(guard) => {
                assert!(!is_down && guard.is_held());
                guard.release().unwrap();
            }
            Err(error) => {
                assert!(is_down, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
                proxy.refuse(false);
            }
        }
    }
}
