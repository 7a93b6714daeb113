//! What LockServer's own client does wrong, one test for each: none of it is done here.
//!
//! The second, that no jitter became some, is tested beside the pauses (`src/http_client/retry.rs`), and that
//! what was lost stays lost beside the state (`src/http_client/heartbeat.rs`).

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use latchd::http_client::{
    Error, HeartbeatOptions, LeaseClient, NotAcquired, Reason, RetryOptions, State,
};

use crate::http_client::scripted::{Reply, Scripted};
use crate::http_client::{FOREVER, client, ms, start, url};
use crate::vocabulary::PATIENCE;

/// It took only 200 for an answer to a renewal, and the server refuses with 409: so it renewed a dead lease
/// for ever.
#[test]
fn defect_1_a_refused_renewal_ends_the_heartbeat() {
    let server = Scripted::start(|_, asked| match asked.action() {
        "acquire" => Reply::granted(asked, "L1", 1),
        _ => Reply::not_renewed("NOT_OWNER_OR_EXPIRED"),
    });
    let client = server.client();
    let lease = client.acquire_once("job", "me", ms(600_000)).unwrap();
    let options = HeartbeatOptions::new().interval(ms(1));
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    assert!(heartbeat.watch().wait_until_lost(PATIENCE));
    assert!(matches!(heartbeat.state(), State::Lost));
    let lease = heartbeat.cancel();
    assert!(lease.is_held(), "by the clock alone it would be");
    assert_eq!(server.asked().len(), 2, "one acquire, one renewal");
}

#[test]
fn defect_1_a_lock_that_was_broken_ends_the_heartbeat() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let lease = client.acquire_once("job", "me", ms(600_000)).unwrap();
    let options = HeartbeatOptions::new().interval(ms(1));
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    let mut http = daemon.http();
    let fence = heartbeat.fencing_token();
    http.put(&format!("DELETE /v1/locks/job/holders/{fence}"), "", "");
    assert_eq!(http.answer().json()["broken"], true);
    assert!(heartbeat.watch().wait_until_lost(PATIENCE));
}

/// It paused after the last attempt, too, before it said that there is no other.
#[test]
fn defect_3_the_last_attempt_is_not_followed_by_a_pause() {
    let server = Scripted::start(|_, _| Reply::held(1_000));
    let options = RetryOptions::new(ms(1_000))
        .max_retries(0)
        .min_retry(FOREVER);
    let error = server.client().acquire_with_retry("job", "me", &options);
    let Err(Error::NotAcquired(NotAcquired { reason, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(reason, Reason::Held);
    assert_eq!(server.asked().len(), 1);
}

/// A pause could outlast what all of it was allowed to take.
#[test]
fn defect_3_no_pause_outlasts_the_whole() {
    let server = Scripted::start(|_, _| Reply::held(1_000));
    let options = RetryOptions::new(ms(1_000))
        .min_retry(FOREVER)
        .max_total_wait(ms(50));
    let begun = Instant::now();
    let error = server.client().acquire_with_retry("job", "me", &options);
    assert!(matches!(error, Err(Error::NotAcquired(_))), "{error:?}");
    assert!(begun.elapsed() >= ms(50), "all of it is used");
    assert_eq!(server.asked().len(), 2, "the last attempt is at its end");
}

/// Whoever looked late was told of the first error, not of the last.
#[test]
fn defect_4_the_latest_state_is_told() {
    let server = Scripted::start(|nth, asked| match nth {
        0 => Reply::granted(asked, "L1", 1),
        1 => Reply::json(500, "{\"error\":\"first\"}"),
        2 => Reply::not_renewed("BUSY_RETRY"),
        3 => Reply::json(503, "<html>last</html>"),
        _ => Reply::Hang,
    });
    let client = server.client();
    let lease = client.acquire_once("job", "me", ms(600_000)).unwrap();
    let options = HeartbeatOptions::new().interval(ms(1));
    let heartbeat = client.start_heartbeat(lease, options).unwrap();
    let mut watch = heartbeat.watch();
    server.wait_for_requests(5);
    let Some(State::Degraded { error, .. }) = watch.wait(PATIENCE) else {
        panic!("{watch:?}");
    };
    let Error::UnexpectedStatus { status, body, .. } = &*error else {
        panic!("{error:?}");
    };
    assert_eq!((*status, body.as_str()), (503, "<html>last</html>"));
    assert!(heartbeat.is_held(), "there is time yet");
}

/// And nobody was told anything when the server did not answer at all.
#[test]
fn defect_4_a_lease_is_lost_by_the_clock_while_a_renewal_hangs() {
    let server = Scripted::start(|nth, asked| match nth {
        0 => Reply::granted(asked, "L1", 1),
        _ => Reply::Hang,
    });
    let client = server.client();
    let begun = Instant::now();
    let lease = client.acquire_once("job", "me", ms(300)).unwrap();
    let heartbeat = client
        .start_heartbeat(lease, HeartbeatOptions::new().extend_by(ms(600_000)))
        .unwrap();
    let (watch, mut other) = (heartbeat.watch(), heartbeat.watch());
    assert!(watch.wait_until_lost(PATIENCE));
    let counted = ms(300) - ms(300) / 10; // clocks differ in speed
    assert!(begun.elapsed() >= counted, "not before its time");
    assert!(!heartbeat.is_held());
    let mut states = Vec::new();
    while let Some(state) = other.wait(PATIENCE) {
        states.push(state);
    }
    assert!(matches!(states.last(), Some(State::Lost)), "{states:?}");
}

/// A name was put into the path as it was.
#[test]
fn defect_5_a_name_is_encoded() {
    let daemon = start(&[]);
    let client = client(&daemon);
    let mut http = daemon.http();
    for (name, path) in [
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("?x=1#y", "%3Fx%3D1%23y"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("%2F", "%252F"),
        ("..", "%2E%2E"),
        ("\"quoted\"", "%22quoted%22"),
    ] {
        let lease = client.acquire_once(name, "\"me\"\\", ms(60_000)).unwrap();
        assert_eq!(lease.lock_name, name);
        let seen = http.get(&format!("/v1/locks/{path}")).json();
        assert_eq!(
            (&seen["lock_name"], &seen["owner_id"]),
            (&name.into(), &"\"me\"\\".into())
        );
        assert!(client.release_once(&lease).unwrap().is_released(), "{name}");
    }
    let error = client.acquire_once("a/b", "me", ms(60_000)).unwrap_err();
    assert!(matches!(error, Error::Misuse { .. }), "{error:?}");
}

/// Its source of chance was shared by threads without a lock.
#[test]
fn defect_5_one_client_serves_many_threads() {
    const fn is_shared<T: Send + Sync>() {}
    const { is_shared::<LeaseClient>() };
    let daemon = start(&[]);
    let client = client(&daemon);
    let inside = AtomicUsize::new(0);
    let tokens: BTreeSet<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|nth| {
                let (client, inside) = (&client, &inside);
                scope.spawn(move || {
                    let options = RetryOptions::new(ms(60_000)).max_retries(u32::MAX);
                    let options = options.min_retry(ms(1)).max_retry(ms(2));
                    let owner = format!("thread-{nth}");
                    let lease = client.acquire_with_retry("hot", &owner, &options).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(client.release_once(&lease).unwrap().is_released());
                    lease.fencing_token()
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(tokens.len(), 16);
}

/// When the answer to an acquire was lost, asking again was told HELD, by oneself, until the time was over.
#[test]
fn defect_6_an_acquire_is_asked_again_with_the_same_id_when_its_answer_was_lost() {
    let server = Scripted::start(|nth, asked| match nth {
        0 => Reply::Close,
        1 => Reply::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"acq".to_vec()),
        2 => Reply::json(200, "<html>welcome</html>"),
        3 => Reply::json(502, "bad gateway"),
        _ => Reply::granted(asked, "L1", 42),
    });
    let options = RetryOptions::new(ms(600_000))
        .min_retry(ms(1))
        .max_retry(ms(1));
    let lease = server
        .client()
        .acquire_with_retry("job", "me", &options)
        .unwrap();
    assert_eq!((lease.lease_id.as_str(), lease.fencing_token()), ("L1", 42));
    let asked = server.asked();
    assert_eq!(asked.len(), 5);
    let ids: BTreeSet<&str> = asked
        .iter()
        .map(|it| it.header("X-Request-ID").unwrap())
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    // It may be the grant of the first request, so it counts from before that.
    let since = asked[0].at.elapsed();
    assert!(lease.left() <= ms(600_000) - since, "{lease:?}, {since:?}");
}

#[test]
fn defect_6_two_acquires_have_two_ids() {
    let server = Scripted::start(|nth, asked| Reply::granted(asked, "L", nth as u64 + 1));
    let client = server.client();
    let options = RetryOptions::new(ms(60_000));
    for _ in 0..2 {
        client.acquire_with_retry("job", "me", &options).unwrap();
    }
    let asked = server.asked();
    assert_ne!(
        asked[0].header("X-Request-ID"),
        asked[1].header("X-Request-ID")
    );
}

/// The same with the real daemon, and somebody between who loses the first answer.
#[test]
fn defect_6_a_lost_answer_is_the_same_grant() {
    let daemon = start(&[]);
    let line = losing_line(daemon.http_address());
    let client = LeaseClient::new(&format!("http://{line}")).unwrap();
    let options = RetryOptions::new(ms(600_000)).min_retry(ms(1));
    let lease = client.acquire_with_retry("job", "me", &options).unwrap();
    let mut http = daemon.http();
    let seen = http.get("/v1/locks/job").json();
    assert_eq!(seen["fencing_token"], lease.fencing_token());
    let metrics = http.get("/metrics").body;
    let granted = "lock_acquire_total{result=\"success\"} 2";
    assert!(metrics.lines().any(|line| line == granted), "{metrics}");
    let direct = LeaseClient::new(&url(&daemon)).unwrap();
    assert!(direct.release_once(&lease).unwrap().is_released());
    assert_eq!(
        http.get("/v1/locks/job").json()["held"],
        false,
        "held once only"
    );
}

/// Passes connections on; the first answer is read and lost.
fn losing_line(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for nth in 0..2 {
            let (mut near, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(server).unwrap();
            let mut bytes = [0; 64 * 1024];
            let mut pass_on = |from: &mut TcpStream, to: Option<&mut TcpStream>| {
                let count = from.read(&mut bytes).unwrap();
                if let Some(to) = to {
                    to.write_all(&bytes[..count]).unwrap();
                }
                count
            };
            // Head and body may come apart, and the answer comes when both are there.
            far.set_read_timeout(Some(ms(20))).unwrap();
            loop {
                pass_on(&mut near, Some(&mut far));
                if far.peek(&mut [0]).is_ok() {
                    break;
                }
            }
            match nth {
                0 => pass_on(&mut far, None),
                _ => pass_on(&mut far, Some(&mut near)),
            };
        }
    });
    address
}
