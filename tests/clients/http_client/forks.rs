//! A forked child has a copy of its parent's heartbeat. Nothing that it does with that reaches the
//! server or the parent's thread.

use latchd::http_client::{Cancel, Error, Heartbeat, HeartbeatOptions, LeaseClient, RetryOptions};

use crate::forked::assert_in_child;
use crate::http_client::{FOREVER, client, ms, start};

fn is_misuse<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::Misuse { why }) => why.contains("forked"),
        _ => false,
    }
}

/// Still renewed for longer than any renewal lasts, and no other client gets it.
#[track_caller]
fn assert_still_held(client: &LeaseClient, heartbeat: &Heartbeat) {
    assert!(!heartbeat.watch().wait_until_lost(ms(1_200)));
    let other = client.acquire_once("job", "other", ms(500));
    assert!(matches!(other, Err(Error::NotAcquired(_))), "{other:?}");
    assert!(heartbeat.is_held(), "{:?}", heartbeat.state());
}

#[test]
fn forked_child_cannot_end_its_parents_heartbeat() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let lease = client.acquire_once("job", "me", ms(500)).unwrap();
    let heartbeat = client.start_heartbeat(lease, HeartbeatOptions::new());
    let mut heartbeat = Some(heartbeat.unwrap());
    let ends: [fn(Heartbeat) -> bool; 3] = [
        |heartbeat| {
            drop(heartbeat);
            true
        },
        |heartbeat| is_misuse(heartbeat.release()),
        |heartbeat| !heartbeat.cancel().is_held(),
    ];
    for end in ends {
        assert_in_child(|| heartbeat.take().is_some_and(end));
        assert_still_held(&client, heartbeat.as_ref().unwrap());
    }
    heartbeat.take().unwrap().release().unwrap();
}

#[test]
fn calls_of_a_forked_child_are_misuse() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let mut lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    let options = HeartbeatOptions::new().extend_by(ms(60_000));
    let heartbeat = client.start_heartbeat(lease.clone(), options).unwrap();
    let mut watch = heartbeat.watch();
    let cancel = Cancel::new();
    let other = LeaseClient::new(&crate::http_client::url(&daemon)).unwrap();
    let waits = RetryOptions::new(ms(1_000))
        .wait(ms(60_000))
        .cancel(cancel.clone());
    let waiting = std::thread::spawn(move || other.acquire_with_retry("job", "other", &waits));
    assert_in_child(|| {
        cancel.cancel();
        let own = LeaseClient::new(&crate::http_client::url(&daemon)).unwrap();
        let options = RetryOptions::new(ms(1_000));
        let with_copy = RetryOptions::new(ms(1_000)).cancel(cancel.clone());
        if !is_misuse(own.acquire_with_retry("b", "me", &with_copy)) || !cancel.is_cancelled() {
            return false;
        }
        let asked = [
            is_misuse(client.acquire_once("a", "me", ms(1_000))),
            is_misuse(client.acquire_with_retry("a", "me", &options)),
            is_misuse(client.renew_once(&mut lease, ms(1_000))),
            is_misuse(client.release_once(&lease)),
            is_misuse(client.start_heartbeat(lease.clone(), HeartbeatOptions::new())),
        ];
        asked.iter().all(|it| *it)
            && !heartbeat.is_held()
            && heartbeat.fencing_token() == lease.fencing_token()
            && heartbeat.watch().wait_until_lost(FOREVER)
            && !watch.state().is_held()
            && watch.wait(FOREVER).is_none()
            && format!("{heartbeat:?} {watch:?}").contains("Lost")
    });
    assert!(heartbeat.is_held() && !cancel.is_cancelled());
    heartbeat.release().unwrap();
    // The child has not ended the parent's wait.
    assert!(waiting.join().unwrap().unwrap().is_held());
}

/// Whatever the thread does at the moment of the fork, the child waits for none of its locks.
#[test]
fn forked_child_never_hangs() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let often = HeartbeatOptions::new()
        .interval(ms(1))
        .extend_by(ms(60_000));
    let heartbeats = (0..8).map(|number| {
        let name = format!("job{number}");
        let lease = client.acquire_once(&name, "me", ms(60_000)).unwrap();
        client.start_heartbeat(lease, often).unwrap()
    });
    let mut heartbeats: Vec<_> = heartbeats.collect();
    for _ in 0..150 {
        assert_in_child(|| {
            let is_free = heartbeats.iter().all(|it| !it.is_held());
            heartbeats.clear();
            is_free
        });
    }
    assert!(heartbeats.iter().all(Heartbeat::is_held));
}
