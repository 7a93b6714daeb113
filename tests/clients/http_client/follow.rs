//! Members of a cluster over HTTP: whoever leads is found, and a token is shown nowhere where it is protected less.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use latchd::http_client::{Error, LeaseClient, Renewal, RetryOptions};
use latchd::wire::http::context::Context;
use latchd::wire::http::{answer, problem};

use crate::http_client::ms;
use crate::http_client::scripted::{Asked, Reply, Scripted};

/// A standby that knows who leads.
fn elsewhere(asked: &Asked, base: &str) -> Reply {
    let head = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: {base}{}\r\n",
        asked.path
    );
    Reply::Bytes(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").into_bytes())
}

/// One that does not, in latchd's own words.
fn nobody() -> Reply {
    let context = Context {
        is_lease: true,
        ..Context::UNREAD
    };
    let mut bytes = Vec::new();
    answer::problem(&mut bytes, &context, &problem::NO_LEADER);
    Reply::Bytes(bytes)
}

/// A refusal for a reason that is none of the cluster's.
fn unavailable(reason: &str) -> Reply {
    let body = format!("{{\"error\":\"something\",\"reason\":\"{reason}\"}}\n");
    Reply::json(503, body)
}

fn leader() -> Scripted {
    Scripted::start(|nth, asked| match asked.action() {
        "acquire" => Reply::granted(asked, "L1", nth as u64 + 1),
        "renew" => Reply::renewed(),
        _ => Reply::json(200, "{\"released\":true}"),
    })
}

#[test]
fn a_redirection_is_followed_with_the_same_request_and_remembered() {
    let leader = leader();
    let base = leader.url();
    let standby = Scripted::start(move |_, asked| elsewhere(asked, &base));
    let client = standby.builder().bearer_token("s3cret").build().unwrap();
    let options = RetryOptions::new(ms(600_000)).request_id("R-1");
    let mut lease = client.acquire_with_retry("job", "me", &options).unwrap();
    let asked = leader.asked();
    assert_eq!(asked[0].path, "/v1/locks/job/acquire");
    assert_eq!(asked[0].header("Authorization"), Some("Bearer s3cret"));
    assert_eq!(asked[0].header("X-Request-ID"), Some("R-1"));
    assert_eq!(asked[0].body, standby.asked()[0].body);
    assert_eq!(
        client.renew_once(&mut lease, ms(600_000)).unwrap(),
        Renewal::Renewed
    );
    assert!(client.release_once(&lease).unwrap().is_released());
    assert_eq!(
        standby.asked().len(),
        1,
        "the leader is asked at once from then on"
    );
}

#[test]
fn a_token_is_not_shown_to_whoever_a_server_names() {
    let standby = Scripted::start(|_, asked| elsewhere(asked, "http://192.0.2.1:6389"));
    let client = standby.builder().bearer_token("s3cret").build().unwrap();
    let error = client.acquire_once("job", "me", ms(1_000)).unwrap_err();
    assert!(
        matches!(error, Error::UnexpectedStatus { status: 307, .. }),
        "{error}"
    );
    // Another path is another request, and is not followed either.
    let leader = leader();
    let base = format!("{}/admin", leader.url());
    let standby = Scripted::start(move |_, _| {
        let head = format!("HTTP/1.1 307 Elsewhere\r\nLocation: {base}\r\n");
        Reply::Bytes(format!("{head}Content-Length: 0\r\n\r\n").into_bytes())
    });
    let error = standby
        .client()
        .acquire_once("job", "me", ms(1_000))
        .unwrap_err();
    assert!(
        matches!(error, Error::UnexpectedStatus { status: 307, .. }),
        "{error}"
    );
    assert!(leader.asked().is_empty());
}

#[test]
fn a_time_without_a_leader_is_waited_out() {
    let leader = leader();
    let base = leader.url();
    let standby = Scripted::start(move |nth, asked| match nth {
        0..3 => nobody(),
        _ => elsewhere(asked, &base),
    });
    let lease = standby
        .client()
        .acquire_once("job", "me", ms(60_000))
        .unwrap();
    assert!(lease.is_held());
    assert_eq!(standby.asked().len(), 4);
}

/// What the leader refuses is its answer, at once, and no reason to look for another one; also if it says no more than 503.
#[test]
fn a_limit_of_the_leader_is_told_as_it_is() {
    for body in ["{\"error\":\"full\",\"reason\":\"MAX_LOCKS\"}", "full"] {
        let leader = Scripted::start(move |_, _| Reply::json(503, body));
        let base = leader.url();
        let standby = Scripted::start(move |_, asked| elsewhere(asked, &base));
        for members in [
            vec![leader.url(), standby.url()],
            vec![standby.url(), leader.url()],
            vec![leader.url(), "http://127.0.0.1:1".to_owned()],
        ] {
            let client = LeaseClient::cluster(members.clone()).build().unwrap();
            let before = leader.asked().len();
            for round in 1..=2 {
                let error = client.acquire_once("job", "me", ms(1_000)).unwrap_err();
                let Error::UnexpectedStatus {
                    status: 503, body, ..
                } = &error
                else {
                    panic!("{members:?}: {error:?}");
                };
                assert!(body.contains("full"), "{body}");
                assert_eq!(leader.asked().len(), before + round, "{members:?}");
            }
        }
    }
}

/// Another one will lead in a moment.
#[test]
fn a_leader_that_shuts_down_is_waited_out() {
    let next = leader();
    let old = Scripted::start(|_, _| unavailable("DRAINING"));
    let bases = [old.url(), next.url()];
    let standby = Scripted::start(move |nth, asked| elsewhere(asked, &bases[nth.min(1)]));
    let client = LeaseClient::cluster([old.url(), standby.url()]);
    let client = client.build().unwrap();
    client.acquire_once("job", "me", ms(60_000)).unwrap();
    assert_eq!(old.asked().len(), 2);
    // A server that is alone has nobody that takes over.
    let error = old.client().acquire_once("job", "me", ms(1_000));
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::UnexpectedStatus { status: 503, .. }),
        "{error}"
    );
}

/// Who has one address only, and was sent on from there, asks there again when whoever it was sent to is gone.
#[test]
fn the_only_address_is_asked_again_when_the_leader_is_gone() {
    let leader = leader();
    let base = leader.url();
    let standby = Scripted::start(move |nth, asked| match nth {
        0 => elsewhere(asked, &base),
        _ => Reply::granted(asked, "L2", 9),
    });
    let client = standby.client();
    client.acquire_once("job", "me", ms(60_000)).unwrap();
    drop(leader);
    let lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    assert_eq!(lease.fencing_token(), 9);
}

#[test]
fn several_addresses_are_tried_and_told_if_none_leads() {
    let leader = leader();
    let down = "http://127.0.0.1:1";
    let members = [down.to_owned(), leader.url()];
    let client = LeaseClient::cluster(members).build().unwrap();
    let lease = client.acquire_once("job", "me", ms(60_000)).unwrap();
    assert!(client.release_once(&lease).unwrap().is_released());

    let standby = Scripted::start(|_, _| nobody());
    let members = [down.to_owned(), standby.url()];
    let client = LeaseClient::cluster(members)
        .timeout(ms(2_000))
        .build()
        .unwrap();
    let error = client.acquire_once("job", "me", ms(1_000)).unwrap_err();
    let Error::NoAnswer {
        may_have_arrived: false,
        source,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    let text = source.to_string();
    assert!(
        text.contains("no member of the cluster leads: tried "),
        "{text}"
    );
    assert!(
        text.contains(&format!("{} (knows of nobody who leads)", standby.url())),
        "{text}"
    );
    assert!(text.contains(down), "{text}");
    assert!(LeaseClient::cluster(Vec::<String>::new()).build().is_err());
}

/// What may have been done is not asked of another server by itself; with the same id it is.
#[test]
fn what_may_have_been_done_is_asked_again_only_with_its_id() {
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let hangs_up = Scripted::start(move |_, _| {
        counts.fetch_add(1, Ordering::SeqCst);
        Reply::Close
    });
    let leader = leader();
    let members = || [hangs_up.url(), leader.url()];
    let client = LeaseClient::cluster(members()).build().unwrap();
    let error = client.acquire_once("job", "me", ms(1_000)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoAnswer {
                may_have_arrived: true,
                ..
            }
        ),
        "{error}"
    );
    assert!(leader.asked().is_empty());
    let client = LeaseClient::cluster(members()).build().unwrap();
    let options = RetryOptions::new(ms(600_000));
    client.acquire_with_retry("job", "me", &options).unwrap();
    let id = |server: &Scripted| {
        let asked = server.asked();
        asked
            .last()
            .unwrap()
            .header("X-Request-ID")
            .map(str::to_owned)
    };
    assert_eq!(id(&leader), id(&hangs_up));
}

#[test]
fn members_that_send_to_each_other_are_not_asked_for_ever() {
    let there: Arc<std::sync::OnceLock<String>> = Arc::default();
    let to = Arc::clone(&there);
    let one = Scripted::start(move |_, asked| elsewhere(asked, to.get().unwrap()));
    let base = one.url();
    let other = Scripted::start(move |_, asked| elsewhere(asked, &base));
    there.set(other.url()).unwrap();
    let client = one.builder().timeout(ms(2_000)).build().unwrap();
    let error = client.acquire_once("job", "me", ms(1_000)).unwrap_err();
    assert!(error.to_string().contains("sends to"), "{error}");
    assert!(one.asked().len() < 20, "{}", one.asked().len());
}
