//! Acquires: what is sent, what is waited for, what is asked again, and how one is ended.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use latchd::http_client::{Cancel, Error, LeaseClient, Reason, Renewal, RetryOptions};
use serde_json::json;

use crate::http_client::scripted::{Asked, Reply, Scripted};
use crate::http_client::{FOREVER, client, ms, pass, start};
use crate::vocabulary::PATIENCE;

#[test]
fn an_acquire_sends_what_the_server_expects() {
    let server = Scripted::start(|_, asked| Reply::granted(asked, "L1", 1));
    let client = server.builder().bearer_token("s3cret").build().unwrap();
    client.acquire_once("job", "me", ms(1_500)).unwrap();
    let options = RetryOptions::new(ms(60_000)).wait(ms(2_500));
    let options = options.request_id("again-1").max_retries(0);
    // The age of what an earlier request was granted is not known here.
    let server_lease = client.acquire_with_retry("job", "me", &options);
    assert!(
        matches!(server_lease, Err(Error::AnswerLost { .. })),
        "{server_lease:?}"
    );
    let asked = server.asked();
    assert_eq!(asked[0].path, "/v1/locks/job/acquire");
    assert_eq!(asked[0].body, json!({"owner_id": "me", "ttl_ms": 1_500}));
    assert_eq!(asked[0].header("Content-Type"), Some("application/json"));
    assert_eq!(asked[0].header("Authorization"), Some("Bearer s3cret"));
    assert_eq!(asked[0].header("X-Request-ID"), None);
    assert_eq!(asked[1].body["wait_ms"], 2_500);
    assert_eq!(asked[1].header("X-Request-ID"), Some("again-1"));
}

/// The lease of somebody who has waited began while it waited, nobody here knows when: it is renewed before
/// it is handed out.
#[test]
fn a_lease_that_was_waited_for_is_held_when_it_is_had() {
    let server = Scripted::start(|_, asked| match asked.action() {
        "acquire" => {
            pass(ms(60)); // longer than the lease
            Reply::granted(asked, "L1", 7)
        }
        _ => Reply::renewed(),
    });
    let options = RetryOptions::new(ms(50)).wait(ms(1_000));
    let begun = Instant::now();
    let lease = server.client().acquire_with_retry("job", "me", &options);
    let lease = lease.unwrap();
    assert!(begun.elapsed() >= ms(60));
    let asked = server.asked();
    assert_eq!(
        asked.iter().map(Asked::action).collect::<Vec<_>>(),
        ["acquire", "renew"]
    );
    assert_eq!(asked[1].body["extend_by_ms"], 50);
    let sent = asked[1].at;
    assert!(
        lease.left() <= ms(50).saturating_sub(sent.elapsed()),
        "from the renewal on"
    );
    assert_eq!(lease.lease_expiry_ms, 1_767_225_660_001);
}

/// A client whose clock is slewed does not believe in a lease that the server has ended.
#[test]
fn a_tenth_of_a_lease_is_not_counted_on_unless_set() {
    let server = Scripted::start(|_, asked| match asked.action() {
        "acquire" => Reply::granted(asked, "L1", 7),
        _ => Reply::renewed(),
    });
    let (client, ttl) = (server.client(), ms(600_000));
    let most = ttl - ttl / 10;
    let mut lease = client.acquire_once("job", "me", ttl).unwrap();
    assert!(lease.is_held() && lease.left() <= most, "{lease:?}");
    assert_eq!(
        client.renew_once(&mut lease, ttl).unwrap(),
        Renewal::Renewed
    );
    assert!(lease.left() <= most, "{lease:?}");
    let options = RetryOptions::new(ttl);
    let lease = client.acquire_with_retry("job", "me", &options).unwrap();
    assert!(lease.left() <= most, "{lease:?}");
    for (percent, least, most) in [(50, 200, 300), (0, 540, 600)] {
        let client = server.builder().clock_drift(percent).build().unwrap();
        let lease = client.acquire_once("job", "me", ttl).unwrap();
        let left = lease.left();
        assert!(
            left > ms(least * 1_000) && left <= ms(most * 1_000),
            "{lease:?}"
        );
    }
    let wrong = server.builder().clock_drift(51).build();
    assert!(matches!(wrong, Err(Error::Misuse { .. })));
}

/// And if it was over by then, it is asked for again.
#[test]
fn a_lease_that_was_over_before_it_was_had_is_asked_for_again() {
    let server = Scripted::start(|nth, asked| match nth {
        0 => {
            pass(ms(60));
            Reply::granted(asked, "L1", 7)
        }
        1 => Reply::not_renewed("NOT_OWNER_OR_EXPIRED"),
        2 => Reply::granted(asked, "L2", 8),
        _ => Reply::renewed(),
    });
    let options = RetryOptions::new(ms(50)).wait(ms(1_000)).min_retry(ms(1));
    let lease = server.client().acquire_with_retry("job", "me", &options);
    assert_eq!(lease.unwrap().fencing_token(), 8);
}

#[test]
fn whoever_waits_has_the_lock_as_soon_as_it_is_free() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let first = client.acquire_once("job", "first", ms(600_000)).unwrap();
    let waiting = thread::spawn({
        let client = client.clone();
        move || {
            let options = RetryOptions::new(ms(60_000)).wait(ms(60_000));
            client.acquire_with_retry("job", "second", &options)
        }
    });
    daemon.connect().wait_for_waiters("job", 1);
    assert!(client.release_once(&first).unwrap().is_released());
    let second = waiting.join().unwrap().unwrap();
    assert!(second.is_held() && second.fencing_token() > first.fencing_token());
}

#[test]
fn a_wait_that_was_in_vain_says_who_holds_it() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let first = client.acquire_once("job", "first", ms(600_000)).unwrap();
    let options = RetryOptions::new(ms(60_000)).wait(ms(20)).max_retries(2);
    let begun = Instant::now();
    let error = client.acquire_with_retry("job", "second", &options);
    let Err(Error::NotAcquired(refused)) = error else {
        panic!("{error:?}");
    };
    assert!(begun.elapsed() >= ms(60), "three times");
    assert_eq!(refused.reason, Reason::Held);
    assert_eq!(refused.current_owner_id.as_deref(), Some("first"));
    assert_eq!(refused.current_expiry_ms, Some(first.lease_expiry_ms));
    assert_eq!(refused.to_string(), "\"job\" is held by \"first\"");
}

/// What was granted to a request of another life of the program is had again with its id.
#[test]
fn an_earlier_grant_is_had_again_with_its_id() {
    let daemon = start(&[]);
    let options = RetryOptions::new(ms(60_000)).request_id("boot-7");
    let first = client(&daemon)
        .acquire_with_retry("job", "me", &options)
        .unwrap();
    let again = client(&daemon)
        .acquire_with_retry("job", "me", &options)
        .unwrap();
    assert_eq!(again.fencing_token(), first.fencing_token());
    assert_eq!(again.lease_id, first.lease_id);
    assert!(again.is_held());
    for id in ["", "a b", &"x".repeat(129)] {
        let options = RetryOptions::new(ms(60_000)).request_id(id);
        let error = client(&daemon).acquire_with_retry("job", "me", &options);
        assert!(matches!(error, Err(Error::Misuse { .. })), "{error:?}");
    }
}

#[test]
fn a_server_that_is_not_there_ends_it_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = LeaseClient::new(&format!("http://{address}")).unwrap();
    let options = RetryOptions::new(ms(60_000)).min_retry(FOREVER);
    let error = client
        .acquire_with_retry("job", "me", &options)
        .unwrap_err();
    let Error::NoAnswer {
        may_have_arrived,
        source,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(!may_have_arrived);
    assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_answer_that_stays_lost_is_told_with_the_id() {
    let server = Scripted::start(|_, _| Reply::Close);
    let options = RetryOptions::new(ms(60_000))
        .max_retries(2)
        .min_retry(ms(1));
    let error = server.client().acquire_with_retry("job", "me", &options);
    let Err(Error::AnswerLost { request_id, .. }) = error else {
        panic!("{error:?}");
    };
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[2].header("X-Request-ID"), Some(request_id.as_str()));
}

/// A lost answer, and then a plain one: it was not granted.
#[test]
fn doubt_ends_with_an_answer() {
    let server = Scripted::start(|nth, _| match nth {
        0 => Reply::Close,
        _ => Reply::held(1),
    });
    let options = RetryOptions::new(ms(60_000))
        .max_retries(1)
        .min_retry(ms(1));
    let error = server.client().acquire_with_retry("job", "me", &options);
    assert!(matches!(error, Err(Error::NotAcquired(_))), "{error:?}");
}

#[test]
fn a_server_that_hangs_costs_no_more_than_was_allowed() {
    let server = Scripted::start(|_, _| Reply::Hang);
    let client = server.builder().timeout(FOREVER).build().unwrap();
    let options = RetryOptions::new(ms(60_000))
        .wait(FOREVER)
        .max_total_wait(ms(50));
    let error = client.acquire_with_retry("job", "me", &options);
    assert!(matches!(error, Err(Error::AnswerLost { .. })), "{error:?}");
    let asked = server.asked();
    let wait_ms = asked[0].body["wait_ms"].as_u64().unwrap();
    assert!(
        wait_ms <= 50,
        "nor does it wait there for longer: {wait_ms}"
    );
    let once = server.builder().timeout(ms(50)).build().unwrap();
    let error = once.acquire_once("job", "me", ms(60_000)).unwrap_err();
    let Error::NoAnswer {
        may_have_arrived: true,
        source,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_pause_is_cancelled() {
    let server = Scripted::start(|_, _| Reply::held(1));
    let cancel = Cancel::new();
    let options = RetryOptions::new(ms(60_000)).min_retry(FOREVER);
    let options = options.cancel(cancel.clone());
    let waiting = thread::spawn({
        let client = server.client();
        move || client.acquire_with_retry("job", "me", &options)
    });
    server.wait_for_requests(1);
    cancel.cancel();
    let error = waiting.join().unwrap();
    assert!(matches!(error, Err(Error::Cancelled { .. })), "{error:?}");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_request_at_the_server_is_cancelled_and_leaves_the_queue() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let first = client.acquire_once("job", "first", ms(600_000)).unwrap();
    let cancel = Cancel::new();
    let options = RetryOptions::new(ms(60_000)).wait(ms(60_000));
    let options = options.cancel(cancel.clone());
    let waiting = thread::spawn({
        let client = client.clone();
        move || client.acquire_with_retry("job", "second", &options)
    });
    let mut line = daemon.connect();
    line.wait_for_waiters("job", 1);
    cancel.cancel();
    let error = waiting.join().unwrap();
    let Err(Error::Cancelled { request_id }) = error else {
        panic!("{error:?}");
    };
    assert!(
        request_id.is_some(),
        "it may have been granted in that moment"
    );
    line.wait_for_waiters("job", 0);
    // Others of the same client go on, and so does whoever was cancelled.
    assert!(client.release_once(&first).unwrap().is_released());
    let again = RetryOptions::new(ms(60_000)).cancel(cancel);
    let error = client.acquire_with_retry("job", "second", &again);
    assert!(
        matches!(error, Err(Error::Cancelled { request_id: None })),
        "{error:?}"
    );
    assert!(client.acquire_once("job", "third", PATIENCE).is_ok());
}

#[test]
fn what_makes_no_sense_is_not_sent() {
    let server = Scripted::start(|_, asked| Reply::granted(asked, "L1", 1));
    let client = server.client();
    let long = "x".repeat(1_025);
    for (lock, owner, ttl) in [
        ("job", "me", ms(0)),
        ("job", "me", ms(600_001)),
        ("job", "", ms(1)),
        ("job", long.as_str(), ms(1)),
        ("", "me", ms(1)),
        ("a/b", "me", ms(1)),
        (long.as_str(), "me", ms(1)),
    ] {
        let error = client.acquire_once(lock, owner, ttl).unwrap_err();
        assert!(matches!(error, Error::Misuse { .. }), "{error:?}");
        let error = client.acquire_with_retry(lock, owner, &RetryOptions::new(ttl));
        assert!(matches!(error, Err(Error::Misuse { .. })), "{error:?}");
    }
    assert!(server.asked().is_empty());
    assert!(server.builder().timeout(ms(0)).build().is_err());
    assert!(server.builder().bearer_token("a b").build().is_err());
}
