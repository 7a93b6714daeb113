//! Heartbeats: what they send, what they tell, and how they end.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use latchd::http_client::{Error, Heartbeat, HeartbeatOptions, Release, RetryOptions, State};

use crate::http_client::scripted::{Asked, Reply, Scripted};
use crate::http_client::{FOREVER, client, ms, start};
use crate::vocabulary::PATIENCE;

/// A heartbeat with a server that grants the first request; the script says what becomes of the rest.
fn heartbeat(
    ttl: Duration,
    options: HeartbeatOptions,
    script: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static,
) -> (Scripted, Heartbeat) {
    let server = Scripted::start(move |nth, asked| match nth {
        0 => Reply::granted(asked, "L1", 42),
        nth => script(nth, asked),
    });
    let client = server.client();
    let lease = client.acquire_once("job", "me", ttl).unwrap();
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    (server, heartbeat)
}

/// Waits until a renewal has succeeded, which must not be too late.
#[track_caller]
fn wait_until_renewed(heartbeat: &Heartbeat) {
    let mut watch = heartbeat.watch();
    let mut state = watch.state();
    while !matches!(
        state,
        State::Alive {
            lease_expiry_ms: 1_767_225_660_001
        }
    ) {
        assert!(state.is_held(), "{state:?}");
        state = watch.wait(PATIENCE).expect("a renewal in time");
    }
}

const OFTEN: HeartbeatOptions = HeartbeatOptions::new()
    .interval(ms(1))
    .extend_by(ms(60_000));

#[test]
fn trouble_is_told_and_passes() {
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let (_server, heartbeat) = heartbeat(ms(600_000), OFTEN, move |nth, _| {
        let is_over = gone.lock().unwrap().recv().is_err();
        match nth {
            _ if is_over => Reply::Close,
            2 => Reply::not_renewed("BUSY_RETRY"),
            3 => Reply::Close,
            4 => Reply::json(200, "<html>"),
            _ => Reply::renewed(),
        }
    });
    assert!(matches!(
        heartbeat.state(),
        State::Alive {
            lease_expiry_ms: 1_767_225_660_000
        }
    ));
    let mut watch = heartbeat.watch();
    let mut next = || {
        go.send(()).unwrap();
        watch.wait(PATIENCE).unwrap()
    };
    let state = next();
    assert!(
        matches!(
            state,
            State::Alive {
                lease_expiry_ms: 1_767_225_660_001
            }
        ),
        "{state:?}"
    );
    let trouble = |state: State| match state {
        State::Degraded { error, .. } => error,
        state => panic!("{state:?}"),
    };
    let error = trouble(next());
    assert!(matches!(&*error, Error::NotAcquired(_)), "{error:?}");
    let error = trouble(next());
    assert!(matches!(&*error, Error::NoAnswer { .. }), "{error:?}");
    let error = trouble(next());
    assert!(matches!(&*error, Error::BadAnswer { .. }), "{error:?}");
    let state = next();
    assert!(matches!(state, State::Alive { .. }), "{state:?}");
    assert_eq!(heartbeat.fencing_token(), 42);
    drop(go);
}

/// Less than half of the lease is never left before it is renewed, whatever the interval.
#[test]
fn an_interval_that_is_too_long_is_made_shorter() {
    let options = HeartbeatOptions::new()
        .interval(FOREVER)
        .extend_by(ms(600_000));
    let (server, heartbeat) = heartbeat(ms(4_000), options, |_, _| Reply::renewed());
    wait_until_renewed(&heartbeat);
    assert_eq!(server.asked().len(), 2);
    assert!(heartbeat.cancel().left() > ms(4_000));
}

#[test]
fn a_renewal_that_hangs_is_broken_off_and_another_is_tried() {
    let (server, heartbeat) = heartbeat(ms(4_000), OFTEN, |nth, _| match nth {
        1 => Reply::Hang,
        _ => Reply::renewed(),
    });
    wait_until_renewed(&heartbeat);
    assert!(server.asked().len() >= 3);
    assert!(heartbeat.cancel().left() > ms(4_000));
}

#[test]
fn a_heartbeat_that_is_cancelled_or_dropped_breaks_off_what_is_under_way() {
    for is_dropped in [false, true] {
        let (server, heartbeat) = heartbeat(ms(600_000), OFTEN, |_, _| Reply::Hang);
        server.wait_for_requests(2);
        let mut watch = heartbeat.watch();
        if is_dropped {
            drop(heartbeat);
        } else {
            let lease = heartbeat.cancel();
            assert!(lease.is_held(), "it lasts until its time is over");
        }
        server.wait_for_hang_ups(1);
        assert_eq!(server.asked().len(), 2);
        // Its time is not over yet, and nobody has said anything else.
        assert!(watch.state().is_held());
        assert!(!watch.wait_until_lost(ms(0)));
        assert!(watch.wait(ms(0)).is_none());
    }
}

#[test]
fn a_heartbeat_that_pauses_is_cancelled_at_once() {
    let options = HeartbeatOptions::new().interval(FOREVER);
    let (server, heartbeat) = heartbeat(ms(600_000), options, |_, _| Reply::Close);
    heartbeat.cancel();
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_release_ends_it_all() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let lease = client.acquire_once("job", "me", ms(600_000)).unwrap();
    let heartbeat = client.start_heartbeat(lease.clone(), OFTEN).unwrap();
    let watch = heartbeat.watch();
    assert_eq!(heartbeat.release().unwrap(), Release::Released);
    assert!(watch.wait_until_lost(ms(0)));
    assert!(client.acquire_once("job", "you", ms(1_000)).is_ok());
    // Once more, for a lease that is not held any more.
    let heartbeat = client.start_heartbeat(lease, OFTEN).unwrap();
    assert_eq!(heartbeat.release().unwrap(), Release::NotOwner);
}

/// Whatever the server says to a release, nobody may believe that the lock is held.
#[test]
fn a_release_without_an_answer_is_lost_nevertheless() {
    let options = HeartbeatOptions::new().interval(FOREVER);
    let (_server, heartbeat) = heartbeat(ms(600_000), options, |_, _| Reply::Close);
    let watch = heartbeat.watch();
    assert!(matches!(heartbeat.release(), Err(Error::NoAnswer { .. })));
    assert!(watch.wait_until_lost(ms(0)));
}

#[test]
fn a_lease_that_is_over_is_lost_from_the_beginning() {
    let server = Scripted::start(|_, asked| Reply::granted(asked, "L1", 1));
    let client = server.client();
    let lease = client.acquire_once("job", "me", ms(1)).unwrap();
    while lease.is_held() {}
    let heartbeat = client.start_heartbeat(lease, OFTEN).unwrap();
    assert!(!heartbeat.is_held());
    assert!(
        heartbeat.watch().wait(FOREVER).is_none(),
        "nothing changes any more"
    );
    assert_eq!(server.asked().len(), 1, "and nothing is renewed");
}

#[test]
fn an_extension_that_cannot_be_is_refused() {
    let server = Scripted::start(|_, asked| Reply::granted(asked, "L1", 1));
    let client = server.client();
    let lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    for extend_by in [ms(0), ms(600_001)] {
        let options = HeartbeatOptions::new().extend_by(extend_by);
        let error = client.start_heartbeat(lease.clone(), options).unwrap_err();
        assert!(matches!(error, Error::Misuse { .. }), "{error:?}");
    }
}

/// A server that stops for longer than the lease: by the time that somebody else has the lock, nobody here
/// believes that it is held.
#[test]
fn nobody_believes_in_a_lease_that_somebody_else_has() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let lease = client.acquire_once("job", "me", ms(200)).unwrap();
    let options = HeartbeatOptions::new().interval(ms(20)).extend_by(ms(200));
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    daemon.freeze();
    assert!(heartbeat.watch().wait_until_lost(PATIENCE));
    daemon.thaw();
    // What had been sent before may be done yet; then it ends a little later.
    let options = RetryOptions::new(ms(60_000)).wait(PATIENCE);
    client.acquire_with_retry("job", "you", &options).unwrap();
    assert!(matches!(heartbeat.state(), State::Lost));
}
