//! Answers of all sorts: those that refuse, those that are none, and those that never end.

use std::io::ErrorKind;
use std::time::Duration;

use latchd::http_client::{Error, Lease, LeaseClient, Reason, Release, Renewal, RetryOptions};

use crate::http_client::scripted::{Reply, Scripted};
use crate::http_client::{FOREVER, client, ms, start, url};

fn lease(server: &Scripted) -> (LeaseClient, Lease) {
    let client = server.client();
    let lease = client.acquire_once("job", "me", ms(600_000)).unwrap();
    (client, lease)
}

#[test]
fn the_words_of_the_server_are_told() {
    let server = Scripted::start(|nth, asked| match nth {
        0 => Reply::granted(asked, "L1", 1),
        1 => Reply::not_renewed("BUSY_RETRY"),
        2 => Reply::not_renewed("NOT_OWNER_OR_EXPIRED"),
        3 => Reply::renewed(),
        4 => Reply::json(200, "{\"released\":false,\"reason\":\"BUSY_RETRY\"}"),
        5 => Reply::json(200, "{\"released\":false,\"reason\":\"NOT_OWNER\"}"),
        6 => Reply::json(200, "{\"released\":true}"),
        7 => Reply::json(
            409,
            "{\"acquired\":false,\"lock_name\":\"job\",\"recommended_retry_ms\":50,\"reason\":\"BUSY_RETRY\"}",
        ),
        _ => Reply::json(409, "{\"acquired\":false,\"reason\":\"DEADLOCK\"}"),
    });
    let (client, mut lease) = lease(&server);
    for renewal in [Renewal::Busy, Renewal::NotOwnerOrExpired, Renewal::Renewed] {
        assert_eq!(client.renew_once(&mut lease, ms(1)).unwrap(), renewal);
    }
    assert!(
        lease.left() > ms(1_000),
        "a renewal never makes a lease shorter"
    );
    for release in [Release::Busy, Release::NotOwner, Release::Released] {
        assert_eq!(client.release_once(&lease).unwrap(), release);
    }
    for (reason, retry) in [
        (Reason::Busy, Some(ms(50))),
        (Reason::Other("DEADLOCK".to_owned()), None),
    ] {
        let error = client.acquire_once("job", "me", ms(1)).unwrap_err();
        let Error::NotAcquired(refused) = error else {
            panic!("{error:?}");
        };
        assert_eq!((refused.reason, refused.recommended_retry), (reason, retry));
    }
    let asked = server.asked();
    assert_eq!(asked[1].path, "/v1/locks/job/renew");
    assert_eq!(
        asked[1].body,
        serde_json::json!({"owner_id": "me", "lease_id": "L1", "fencing_token": 1, "extend_by_ms": 1})
    );
    assert_eq!(asked[4].path, "/v1/locks/job/release");
    assert_eq!(
        asked[4].body,
        serde_json::json!({"owner_id": "me", "lease_id": "L1", "fencing_token": 1})
    );
}

#[test]
fn a_status_that_has_no_place_is_told_with_its_body() {
    for (status, body) in [
        (500, "{\"error\":\"oops\"}\n"),
        (502, "<html>bad gateway</html>"),
        (400, ""),
        (409, "{\"error\":\"the name is in use for something else\"}"),
        (409, "<html>conflict</html>"),
        (204, ""),
        (301, "moved"),
        (307, "moved"),
    ] {
        let server = Scripted::start(move |nth, asked| match nth {
            0 => Reply::granted(asked, "L1", 1),
            _ => Reply::json(status, body),
        });
        let (client, mut lease) = lease(&server);
        let errors = [
            client.acquire_once("job", "me", ms(1)).unwrap_err(),
            client.renew_once(&mut lease, ms(1)).unwrap_err(),
            client.release_once(&lease).unwrap_err(),
        ];
        for (error, action) in errors.iter().zip(["acquire", "renew", "release"]) {
            let Error::UnexpectedStatus {
                method,
                path,
                status: told,
                body: shown,
            } = error
            else {
                panic!("{status}: {error:?}");
            };
            assert_eq!((*method, *told), ("POST", status));
            assert_eq!(path, &format!("/v1/locks/job/{action}"));
            assert_eq!(shown, body);
        }
        assert_eq!(
            server.asked().len(),
            4,
            "nothing is asked elsewhere, or again"
        );
    }
}

#[test]
fn an_answer_without_a_meaning_is_an_error_and_no_lease() {
    for body in [
        "",
        "null",
        "<html></html>",
        "{}",
        "{\"acquired\":false}",
        "{\"acquired\":true}",
        "{\"acquired\":true,\"lease_id\":\"L\",\"fencing_token\":0,\"lease_expiry_ms\":1}",
        "{\"acquired\":true,\"lease_id\":\"L\",\"fencing_token\":-1,\"lease_expiry_ms\":1}",
        "{\"acquired\":true,\"lease_id\":\"L\",\"fencing_token\":1.5,\"lease_expiry_ms\":1}",
        "{\"acquired\":true,\"lock_name\":\"other\",\"lease_id\":\"L\",\"fencing_token\":1,\"lease_expiry_ms\":1}",
        "{\"acquired\":true,\"owner_id\":\"other\",\"lease_id\":\"L\",\"fencing_token\":1,\"lease_expiry_ms\":1}",
    ] {
        let server = Scripted::start(move |_, _| Reply::json(200, body));
        let error = server
            .client()
            .acquire_once("job", "me", ms(1))
            .unwrap_err();
        assert!(
            matches!(error, Error::BadAnswer { status: 200, .. }),
            "{body}: {error:?}"
        );
    }
    let server = Scripted::start(|nth, asked| match nth {
        0 => Reply::granted(asked, "L1", 1),
        1 => Reply::json(200, "{\"renewed\":1,\"lease_expiry_ms\":1}"),
        2 => Reply::json(200, "{\"renewed\":true}"),
        _ => Reply::json(200, "{\"released\":\"yes\"}"),
    });
    let (client, mut lease) = lease(&server);
    for _ in 0..2 {
        let error = client.renew_once(&mut lease, ms(1)).unwrap_err();
        assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
    }
    let error = client.release_once(&lease).unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error:?}");
}

/// A lock whose name is in use for something else is refused at once, and not asked for again.
#[test]
fn a_name_of_something_else_is_refused() {
    let daemon = start(&[]);
    assert!(daemon.connect().ask("sl job 0 3 60").starts_with("ok "));
    let options = RetryOptions::new(ms(60_000)).min_retry(FOREVER);
    let error = client(&daemon).acquire_with_retry("job", "me", &options);
    let Err(Error::NotAcquired(refused)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(refused.reason, Reason::Other("LIMIT_MISMATCH".to_owned()));
}

/// Spans that no clock can count are as good as any other.
#[test]
fn no_span_is_too_long() {
    let server = Scripted::start(|_, asked| Reply::granted(asked, "L1", 1));
    let longest = Duration::MAX;
    let client = server.builder().timeout(longest).build().unwrap();
    client.acquire_once("job", "me", ms(1)).unwrap();
    let options = RetryOptions::new(ms(600_000)).wait(longest);
    let options = options.min_retry(longest).max_total_wait(longest);
    client.acquire_with_retry("job", "me", &options).unwrap();
}

/// Only the beginning of a body is read, whatever its length is said to be.
#[test]
fn an_answer_that_never_ends_is_cut_off() {
    for head in ["Content-Length: 1000000000000", "Connection: close"] {
        let server = Scripted::start(move |_, _| {
            let mut bytes = format!("HTTP/1.1 500 Whatever\r\n{head}\r\n\r\n").into_bytes();
            bytes.extend([b'x'; 1_000]);
            Reply::Endless(bytes)
        });
        let client = server.builder().timeout(FOREVER).build().unwrap();
        let error = client.acquire_once("job", "me", ms(1)).unwrap_err();
        let Error::UnexpectedStatus {
            status: 500, body, ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert!(
            body.starts_with("xxx") && body.len() <= 4_096,
            "{}",
            body.len()
        );
        server.wait_for_hang_ups(1);
    }
}

/// What is no HTTP, or too long a head, or half an answer.
#[test]
fn an_answer_that_is_none_is_no_answer() {
    let endless_head = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'y'; 1 << 20]].concat();
    for bytes in [
        b"hello\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{".to_vec(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"HTTP/1.1 999999 OK\r\n\r\n".to_vec(),
        endless_head,
        Vec::new(),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let server = Scripted::start(move |_, _| Reply::Bytes(bytes.clone()));
        let error = server
            .client()
            .acquire_once("job", "me", ms(1))
            .unwrap_err();
        let Error::NoAnswer {
            may_have_arrived, ..
        } = error
        else {
            panic!("{shown}: {error:?}");
        };
        assert!(may_have_arrived, "{shown}");
    }
}

#[test]
fn a_timeout_is_for_the_whole_answer() {
    let server = Scripted::start(|_, _| {
        // A head, and a body that comes one piece at a time.
        Reply::Endless(b"HTTP/1.1 500 Whatever\r\nContent-Length: 9\r\n\r\n".to_vec())
    });
    let hanging = Scripted::start(|_, _| Reply::Hang);
    for server in [&server, &hanging] {
        let client = server.builder().timeout(ms(50)).build().unwrap();
        let error = client.acquire_once("job", "me", ms(1));
        if let Err(Error::NoAnswer { source, .. }) = error {
            assert_eq!(source.kind(), ErrorKind::TimedOut);
        }
        server.wait_for_hang_ups(1);
    }
}

#[test]
fn a_token_is_shown_to_the_server_and_to_nobody_else() {
    let daemon = start(&["--auth-token=s3cret"]);
    let error = client(&daemon)
        .acquire_once("job", "me", ms(1))
        .unwrap_err();
    let told = error.to_string();
    assert!(
        matches!(error, Error::UnexpectedStatus { status: 401, .. }),
        "{error:?}"
    );
    assert!(told.contains("show the server's token"), "{told}");
    let builder = LeaseClient::builder(&url(&daemon)).bearer_token("s3cret");
    let shown = format!("{builder:?}");
    let client = builder.build().unwrap();
    let lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    for shown in [shown, format!("{client:?}"), format!("{lease:?}")] {
        assert!(
            !shown.contains("s3cret") && !shown.contains(&lease.lease_id),
            "{shown}"
        );
    }
    assert!(client.release_once(&lease).unwrap().is_released());
}

/// Names are chosen by others, and an error is likely to be logged.
#[test]
fn an_error_is_one_line() {
    let server = Scripted::start(|nth, _| match nth {
        0 => Reply::json(
            409,
            "{\"acquired\":false,\"reason\":\"HELD\",\"current_owner_id\":\"x\\n2026-01-01 forged\"}",
        ),
        _ => Reply::json(500, "a\r\nb\u{1b}[2J"),
    });
    let client = server.client();
    for _ in 0..2 {
        let error = client.acquire_once("j\nob", "me", ms(1)).unwrap_err();
        let told = error.to_string();
        assert!(told.chars().all(|c| !c.is_control()), "{told:?}");
    }
}
