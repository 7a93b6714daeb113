//! What each route answers to each reply of the table.

use super::super::routes::TABLE;
use super::*;
use crate::base::{Fence, Millis};
use crate::engine::types::{End, Popped, Value};
use crate::key::Key;

const TOKEN: Token = Token {
    fence: Fence(42),
    salt: 0x9f8e_7d6c_5b4a_3921,
};

const GRANTED: Reply = Reply::Granted {
    token: TOKEN,
    lease: Millis(800),
};

const FACTS: Facts<'static> = Facts {
    lease_expiry_ms: 1_700_000_000_800,
    holder: Some(Holding {
        owner: "b",
        expiry_ms: 1_700_000_000_500,
        left_ns: 500_000_000,
    }),
    ttl_ms: None,
    length: 9,
    conflict: None,
    in_grace: false,
};

fn context(route: Route) -> Context<'static> {
    Context {
        route: Some(route),
        is_lease: route.is_lease(),
        is_head: false,
        keep_alive: true,
        is_http_1_0: false,
        name: b"job",
        owner: "a",
        client: "",
        request_id: "r-1",
        mode: None,
        number: 0,
        range: None,
    }
}

/// Status and body.
fn told(context: &Context<'_>, it: &Reply, facts: &Facts<'_>) -> (u16, String) {
    let mut out = Vec::new();
    reply(&mut out, context, it, facts);
    let text = String::from_utf8(out).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let _: serde_json::Value = serde_json::from_str(body).unwrap();
    (head[9..12].parse().unwrap(), body.trim_end().to_owned())
}

fn check(route: Route, it: &Reply, status: u16, body: &str) {
    assert_eq!(
        told(&context(route), it, &FACTS),
        (status, body.to_owned()),
        "{route:?} {it:?}"
    );
}

fn refused(refusal: Refusal) -> Reply {
    Reply::Refused(refusal)
}

#[test]
fn a_lease_is_granted_as_lockserver_says_it() {
    let grant = r#""lock_name":"job","owner_id":"a","lease_id":"00000000-0000-002a-9f8e-7d6c5b4a3921","fencing_token":42,"lease_expiry_ms":1700000000800"#;
    check(
        Route::AcquireLock,
        &GRANTED,
        200,
        &format!("{{\"acquired\":true,{grant}}}"),
    );
    check(
        Route::Elect,
        &GRANTED,
        200,
        &format!("{{\"elected\":true,{grant}}}"),
    );
    for (route, mode, end) in [
        (Route::AcquireLock, Mode::Slot { limit: 1 }, ""),
        (Route::AcquireSlot, Mode::Slot { limit: 1 }, r#","limit":1"#),
        (Route::AcquireSlot, Mode::Slot { limit: 3 }, r#","limit":3"#),
        (Route::AcquireReadWrite, Mode::Read, r#","mode":"read""#),
        (Route::AcquireReadWrite, Mode::Write, r#","mode":"write""#),
    ] {
        let context = Context {
            mode: Some(mode),
            ..context(route)
        };
        let want = format!("{{\"acquired\":true,{grant}{end}}}");
        assert_eq!(told(&context, &GRANTED, &FACTS), (200, want));
    }
}

#[test]
fn what_is_held_is_told_with_a_hint() {
    check(
        Route::AcquireLock,
        &Reply::TimedOut,
        409,
        r#"{"acquired":false,"lock_name":"job","current_owner_id":"b","current_expiry_ms":1700000000500,"recommended_retry_ms":125,"reason":"HELD"}"#,
    );
    let nameless = Facts {
        holder: Some(Holding {
            owner: "",
            expiry_ms: 5,
            left_ns: 0,
        }),
        ..FACTS
    };
    let want = r#"{"elected":false,"lock_name":"job","current_expiry_ms":5,"recommended_retry_ms":25,"reason":"HELD"}"#;
    assert_eq!(
        told(&context(Route::Elect), &Reply::TimedOut, &nameless),
        (409, want.into())
    );
    let free = Facts::default();
    let want = r#"{"acquired":false,"lock_name":"job","recommended_retry_ms":25,"reason":"HELD"}"#;
    assert_eq!(
        told(&context(Route::AcquireLock), &Reply::TimedOut, &free),
        (409, want.into())
    );
}

#[test]
fn the_hint_is_a_quarter_within_bounds() {
    for (left_ms, want) in [
        (0, 25),
        (99, 25),
        (104, 26),
        (107, 26),
        (4000, 1000),
        (600_000, 1000),
    ] {
        assert_eq!(retry_ms(left_ms * 1_000_000), want);
    }
    assert_eq!(retry_ms(u64::MAX), 1000);
}

#[test]
fn renewals_and_releases_are_told_as_lockserver_says_them() {
    let renewed = Reply::Renewed {
        lease: Millis(5),
        fence: Fence(42),
    };
    let (gone, late, full) = (
        refused(Refusal::NotHolder),
        refused(Refusal::LeaseExpired),
        refused(Refusal::Storage),
    );
    for route in [
        Route::RenewLock,
        Route::RenewSlot,
        Route::RenewReadWrite,
        Route::RenewLead,
    ] {
        check(
            route,
            &renewed,
            200,
            r#"{"renewed":true,"lease_expiry_ms":1700000000800}"#,
        );
        for it in [&gone, &late] {
            check(
                route,
                it,
                409,
                r#"{"renewed":false,"reason":"NOT_OWNER_OR_EXPIRED"}"#,
            );
        }
    }
    check(
        Route::RenewLock,
        &full,
        409,
        r#"{"renewed":false,"reason":"BUSY_RETRY"}"#,
    );
    for route in [
        Route::ReleaseLock,
        Route::ReleaseSlot,
        Route::ReleaseReadWrite,
    ] {
        check(route, &Reply::Done, 200, r#"{"released":true}"#);
        for it in [&gone, &late] {
            check(route, it, 200, r#"{"released":false,"reason":"NOT_OWNER"}"#);
        }
    }
    check(
        Route::ReleaseLock,
        &full,
        200,
        r#"{"released":false,"reason":"BUSY_RETRY"}"#,
    );
    check(Route::Resign, &Reply::Done, 200, r#"{"resigned":true}"#);
    check(
        Route::Resign,
        &gone,
        200,
        r#"{"resigned":false,"reason":"NOT_OWNER"}"#,
    );
}

#[test]
fn a_store_without_room_is_busy_on_lease_routes() {
    let full = refused(Refusal::Storage);
    let want =
        r#"{"acquired":false,"lock_name":"job","recommended_retry_ms":50,"reason":"BUSY_RETRY"}"#;
    check(Route::AcquireLock, &full, 409, want);
    let want = r#"{"error":"there is no room on disk for a change","reason":"STORAGE"}"#;
    check(Route::AcquireSlot, &full, 503, want);
    check(Route::PutValue, &full, 503, want);
}

#[test]
fn a_lease_is_shown_without_its_secret() {
    let shown = LeaseShown {
        owner: "b",
        token: TOKEN,
        with_secret: false,
        expiry_ms: 7,
        version: 3,
    };
    let show = |route, shown: Option<&LeaseShown<'_>>| {
        let mut out = Vec::new();
        lease(&mut out, &context(route), shown);
        let text = String::from_utf8(out).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let want = r#"{"lock_name":"job","held":true,"owner_id":"b","fencing_token":42,"lease_expiry_ms":7,"version":3}"#;
    assert_eq!(show(Route::GetLock, Some(&shown)).trim_end(), want);
    let told = LeaseShown {
        with_secret: true,
        ..shown
    };
    let want = r#"{"lock_name":"job","held":true,"owner_id":"b","lease_id":"00000000-0000-002a-9f8e-7d6c5b4a3921","fencing_token":42,"lease_expiry_ms":7,"version":3}"#;
    assert_eq!(show(Route::GetLock, Some(&told)).trim_end(), want);
    assert_eq!(
        show(Route::GetLock, None),
        "{\"lock_name\":\"job\",\"held\":false}\n"
    );
    assert_eq!(
        show(Route::GetElection, None),
        "{\"lock_name\":\"job\",\"elected\":false}\n"
    );
}

#[test]
fn counters_are_told_by_name() {
    let number = Reply::Number(-7);
    for route in [Route::GetCounter, Route::AddToCounter] {
        check(route, &number, 200, r#"{"name":"job","value":-7}"#);
    }
    let set = Context {
        number: 12,
        ..context(Route::SetCounter)
    };
    let want = r#"{"name":"job","value":12}"#;
    assert_eq!(told(&set, &Reply::Done, &FACTS), (200, want.into()));
    let (status, body) = told(
        &context(Route::AddToCounter),
        &refused(Refusal::Overflow),
        &FACTS,
    );
    assert!(
        status == 409 && body.contains("\"reason\":\"OVERFLOW\""),
        "{body}"
    );
}

fn value(bytes: &[u8]) -> Value {
    bytes.into()
}

#[test]
fn values_are_text_or_base_64() {
    let text = Reply::Value(value(b"a\"b"));
    check(
        Route::GetValue,
        &text,
        200,
        r#"{"name":"job","value":"a\"b"}"#,
    );
    let bytes = Reply::Value(value(b"\xff\x00"));
    check(
        Route::GetValue,
        &bytes,
        200,
        r#"{"name":"job","value_base64":"/wA="}"#,
    );
    let short_lived = Facts {
        ttl_ms: Some(50),
        ..FACTS
    };
    let want = r#"{"name":"job","value":"a\"b","ttl_ms":50}"#;
    assert_eq!(
        told(&context(Route::GetValue), &text, &short_lived),
        (200, want.into())
    );
    let (status, body) = told(&context(Route::GetValue), &Reply::Nothing, &FACTS);
    assert!(
        status == 404 && body.contains("\"reason\":\"NO_VALUE\""),
        "{body}"
    );
    check(Route::PutValue, &Reply::Done, 200, r#"{"stored":true}"#);
    check(
        Route::PutValue,
        &Reply::Conflict,
        409,
        r#"{"stored":false,"reason":"CONFLICT"}"#,
    );
    check(Route::DeleteValue, &Reply::Done, 200, r#"{"deleted":true}"#);
}

#[test]
fn lists_are_told_by_value_and_length() {
    check(Route::PushToList, &Reply::Number(3), 200, r#"{"length":3}"#);
    let popped = |bytes| {
        Reply::Popped(Popped {
            key: Key::from(&b"job"[..]),
            end: End::Left,
            value: value(bytes),
        })
    };
    check(Route::PopFromList, &popped(b"v"), 200, r#"{"value":"v"}"#);
    check(
        Route::PopFromList,
        &popped(b"\xff"),
        200,
        r#"{"value_base64":"/w=="}"#,
    );
    for it in [Reply::Nothing, Reply::TimedOut] {
        check(Route::PopFromList, &it, 200, r#"{"value":null}"#);
    }
    let mut text = Vec::new();
    for value in [b"a", b"\xff", b"c"] {
        text.extend_from_slice(if text.is_empty() { b"" } else { b"," });
        (LIST_FORM.push)(&mut text, value);
    }
    let values = Reply::Values(text);
    let want = r#"{"name":"job","length":9,"values":["a",{"value_base64":"/w=="},"c"]}"#;
    check(Route::GetList, &values, 200, want);
    let (status, _) = told(
        &context(Route::GetList),
        &refused(Refusal::RangeTooLong),
        &FACTS,
    );
    assert_eq!(status, 413);
}

#[test]
fn barriers_and_signals_are_told() {
    check(Route::WaitAtBarrier, &Reply::Done, 200, r#"{"met":true}"#);
    check(
        Route::WaitAtBarrier,
        &Reply::TimedOut,
        409,
        r#"{"met":false,"reason":"TIMEOUT"}"#,
    );
    let mismatch = refused(Refusal::CountMismatch);
    check(
        Route::WaitAtBarrier,
        &mismatch,
        409,
        r#"{"met":false,"reason":"COUNT_MISMATCH"}"#,
    );
    check(
        Route::SendSignal,
        &Reply::Number(0),
        200,
        r#"{"receivers":0}"#,
    );
}

const REFUSALS: [(Refusal, u16); 32] = [
    (Refusal::NotHolder, 409),
    (Refusal::TypeMismatch, 409),
    (Refusal::LimitMismatch, 409),
    (Refusal::MaxLocks, 503),
    (Refusal::MaxWaiters, 503),
    (Refusal::NotEnqueued, 409),
    (Refusal::AlreadyEnqueued, 409),
    (Refusal::LeaseExpired, 409),
    (Refusal::Draining, 503),
    (Refusal::MaxKeys, 503),
    (Refusal::ListFull, 503),
    (Refusal::CountMismatch, 409),
    (Refusal::Overflow, 409),
    (Refusal::RangeTooLong, 413),
    (Refusal::BadPattern, 400),
    (Refusal::MaxSubscriptions, 503),
    (Refusal::Memory, 503),
    (Refusal::Storage, 503),
    (Refusal::Reclaim, 409),
    (Refusal::NoGrace, 409),
    (Refusal::WrongSecret, 403),
    (Refusal::OtherClient, 409),
    (Refusal::UnknownClient, 404),
    (Refusal::Detached, 409),
    (Refusal::MaxClients, 503),
    (Refusal::AdapterFull, 503),
    (Refusal::BadRange, 400),
    (Refusal::Busy, 409),
    (Refusal::MaxRangesOfResource, 503),
    (Refusal::MaxRangesOfClient, 503),
    (Refusal::MaxRanges, 503),
    (Refusal::Deadlock, 409),
];

#[test]
fn every_refusal_has_a_status_and_a_reason() {
    for (refusal, want) in REFUSALS {
        let (status, body) = told(&context(Route::Watch), &refused(refusal), &FACTS);
        assert_eq!(status, want, "{refusal:?}");
        assert!(body.contains("\"reason\":\""), "{body}");
    }
    for (refusal, reason) in [
        (Refusal::TypeMismatch, "\"TYPE_MISMATCH\""),
        (Refusal::LimitMismatch, "\"LIMIT_MISMATCH\""),
        (Refusal::Deadlock, "\"DEADLOCK\""),
    ] {
        for route in [Route::AcquireLock, Route::AcquireSlot, Route::Elect] {
            let (status, body) = told(&context(route), &refused(refusal), &FACTS);
            assert!(status == 409 && body.contains(reason), "{body}");
            assert!(body.contains(":false,\"lock_name\":\"job\""), "{body}");
        }
    }
}

/// No reply is without an answer, even if it makes no sense.
#[test]
fn every_route_answers_every_reply() {
    let mut replies = vec![
        GRANTED,
        Reply::Acquired {
            token: TOKEN,
            lease: Millis(1),
        },
        Reply::Queued,
        Reply::Renewed {
            lease: Millis(1),
            fence: Fence(1),
        },
        Reply::Done,
        Reply::Number(i64::MIN),
        Reply::Value(value(b"v")),
        Reply::Values(Vec::new()),
        Reply::Nothing,
        Reply::Conflict,
        Reply::TimedOut,
    ];
    replies.extend(REFUSALS.map(|(refusal, _)| refused(refusal)));
    for row in &TABLE {
        for it in &replies {
            let (status, _) = told(&context(row.route), it, &FACTS);
            assert!((200..600).contains(&status));
        }
    }
    let nowhere = Context {
        route: None,
        ..context(Route::GetLock)
    };
    assert_eq!(told(&nowhere, &Reply::Done, &FACTS).0, 500);
}
