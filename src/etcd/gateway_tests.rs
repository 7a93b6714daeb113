//! Tests of `gateway.rs`: what it makes of members that are old, cut off, slow, or ask who we are.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;

use super::super::login::Password;
use super::super::scripted::{EMPTY, Member, NEW, answer, far, plain};
use super::*;
use crate::etcd::{Compare, Get, Op};

const WITHIN: Duration = Duration::from_secs(20);

/// A member with one connection. Its address as a URL.
fn member(answers: &[&str]) -> String {
    format!("http://{}", Member::start(&[answers]).address)
}

fn read(urls: &[String]) -> (Gateway, Result<Answer, Trouble>) {
    let mut gateway = Gateway::new(&Endpoints::parse(&urls.join(",")).unwrap(), 0);
    let answer = gateway.call(&Ask::Range(Get::one(b"k")), WITHIN);
    (gateway, answer)
}

#[test]
fn an_old_member_is_not_used_and_the_next_one_is() {
    let old = member(&[&plain(r#"{"etcdserver":"3.5.29"}"#)]);
    let new = member(&[&plain(NEW), &plain(EMPTY)]);
    let (_, answer) = read(&[old, new]);
    assert!(
        matches!(answer, Ok(Answer::Range { revision: 7, .. })),
        "{answer:?}"
    );
    let old = member(&[&plain(r#"{"etcdserver":"3.5.29"}"#)]);
    let (_, answer) = read(&[old]);
    let why = answer.unwrap_err();
    assert!(why.is_surely_undone());
    assert!(why.to_string().contains("3.5.29"), "{why}");
    assert!(why.to_string().contains("3.5.30"), "{why}");
}

#[test]
fn an_answer_in_chunks_is_put_together() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
         9\r\n{\"header\"\r\n12;x=y\r\n:{\"revision\":\"7\"}}\r\n0\r\n\r\n";
    let (_, answer) = read(&[member(&[&plain(NEW), chunked])]);
    assert!(
        matches!(answer, Ok(Answer::Range { revision: 7, .. })),
        "{answer:?}"
    );
}

#[test]
fn an_answer_that_is_cut_or_is_none_leaves_everything_open() {
    for cut in [
        "",
        "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"header\":",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "SSH-2.0-x\r\n",
    ] {
        let (gateway, answer) = read(&[member(&[&plain(NEW), cut])]);
        let why = answer.unwrap_err();
        assert!(!why.is_surely_undone(), "{cut:?}: {why}");
        assert!(
            gateway.open.is_none(),
            "{cut:?}: the connection is still used"
        );
    }
}

#[test]
fn nobody_there_is_never_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (_, answer) = read(&[url]);
    assert!(matches!(answer, Err(Trouble::Unreachable(_))), "{answer:?}");
}

#[test]
fn member_that_says_nothing_does_not_use_up_a_call() {
    // The system takes connections, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = format!("http://{}", listener.local_addr().unwrap());
    let good = member(&[&plain(NEW), &plain(EMPTY)]);
    let urls = [mute.clone(), good.clone(), mute].join(",");
    let endpoints = Endpoints::parse(&urls).unwrap();
    let mut gateway = Gateway::new(&endpoints.connecting_within(SILENT), 0);
    // As the renewal of a lease, which waits for its answer for less than a member may take to let us in.
    let answer = gateway.call(&Ask::Range(Get::one(b"k")), SILENT);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(format!("http://{}", gateway.member()), good);
}

/// Long enough for any answer that comes from this machine.
const SILENT: Duration = Duration::from_millis(500);

/// A round trip of 600 ms, and what a renewal waits for with a lease of 10 s, which may be as far away.
const ONE_WAY: Duration = Duration::from_millis(300);
const RENEWAL: Duration = Duration::from_secs(1);

#[test]
fn far_members_let_us_in_and_answer_those_who_wait_for_little_more_than_a_round_trip() {
    let members = [
        Member::start(&[
            &[
                &plain(NEW),
                &plain(TOKEN),
                &answer(401, OLD),
                &plain(NEXT_TOKEN),
                &plain(EMPTY),
            ],
            &[&plain(NEW), &plain(EMPTY)],
        ]),
        Member::start(&[]),
    ];
    let urls = [0, 1].map(|it| format!("http://{}", far(&members[it].address, ONE_WAY)));
    let endpoints = Endpoints::parse(&urls.join(",")).unwrap();
    let endpoints = endpoints.with_login("me", Password::new("s3cret".to_owned()));
    let ask = Ask::Range(Get::one(b"k"));
    let mut first = Gateway::new(&endpoints, 0);
    let said = first.call(&ask, RENEWAL);
    assert!(said.is_ok(), "{said:?}");
    assert_eq!(members[0].count("/v3/kv/range"), 2);
    drop(first);
    let said = Gateway::new(&endpoints, 0).call(&ask, RENEWAL);
    assert!(said.is_ok(), "{said:?}");
}

#[test]
fn the_connection_is_used_again_and_another_member_after_a_failure() {
    let first = member(&[&plain(NEW), &plain(EMPTY), &plain(EMPTY)]);
    let second = member(&[&plain(NEW), &plain(EMPTY)]);
    let (mut gateway, answer) = read(&[first.clone(), second.clone()]);
    assert!(answer.is_ok());
    let ask = Ask::Range(Get::one(b"k"));
    assert!(gateway.call(&ask, WITHIN).is_ok());
    assert_eq!(format!("http://{}", gateway.member()), first);
    assert!(gateway.call(&ask, WITHIN).is_err(), "it has closed");
    assert_eq!(format!("http://{}", gateway.member()), second);
    assert!(gateway.call(&ask, WITHIN).is_ok());
}

/// Somebody who takes connections and says this, and then one byte after the other for as long as anybody
/// listens. Returns where.
fn dribbler(says: &'static [u8], byte: u8) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = move || {
                let mut stream = stream;
                let mut goes_on = stream.write_all(says).is_ok();
                let (_never, wait) = mpsc::channel::<()>();
                while goes_on {
                    let _ = wait.recv_timeout(Duration::from_millis(5));
                    goes_on = stream.write_all(&[byte]).is_ok();
                }
            };
            thread::Builder::new().spawn(serve).unwrap();
        }
    };
    thread::Builder::new().spawn(serve).unwrap();
    address
}

/// If it did not end this test would not either.
#[test]
fn a_call_ends_with_its_deadline_however_the_peer_dribbles() {
    let header = dribbler(b"HTTP/1.1 200 OK\r\nX: ", b'y');
    let endpoints = Endpoints::parse(&format!("http://{header}")).unwrap();
    let mut gateway = Gateway::new(&endpoints, 0);
    let ended = gateway.call(&Ask::Status, Duration::from_millis(300));
    assert!(matches!(ended, Err(Trouble::Unreachable(_))), "{ended:?}");
}

#[test]
fn a_head_without_an_end_is_not_kept() {
    let mut endless = String::from("HTTP/1.1 200 OK\r\n");
    endless.push_str(&"X: y\r\n".repeat(200_000));
    let (_, answer) = read(&[member(&[&plain(NEW), &endless])]);
    let why = answer.unwrap_err();
    assert!(why.to_string().contains("without an end"), "{why}");
    assert!(!why.is_surely_undone());
    let (_, answer) = read(&[member(&[&plain(NEW), &"x".repeat(1 << 20)])]);
    let why = answer.unwrap_err().to_string();
    assert!(why.contains("without an end"), "{why}");
}

// Who we are.

const TOKEN: &str = r#"{"header":{"revision":"1"},"token":"abc.1"}"#;
const NEXT_TOKEN: &str = r#"{"header":{"revision":"1"},"token":"abc.2"}"#;
const OLD: &str = r#"{"error":"etcdserver: invalid auth token","code":16}"#;
const WRONG: &str =
    r#"{"error":"etcdserver: authentication failed, invalid user ID or password","code":3}"#;

fn login(member: &Member) -> Endpoints {
    let endpoints = Endpoints::parse(&format!("http://{}", member.address)).unwrap();
    endpoints.with_login("me", Password::new("s3\"cret".to_owned()))
}

fn append() -> Ask {
    Ask::Txn {
        compare: vec![Compare::Created(b"k".to_vec(), 0)],
        success: vec![Op::Put {
            key: b"k".to_vec(),
            value: b"v".to_vec(),
            lease: 0,
        }],
        failure: Vec::new(),
    }
}

const DONE: &str =
    r#"{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}}]}"#;

/// Paths and tokens of what was asked.
fn heads(member: &Member) -> Vec<String> {
    let asked = member.asked();
    let head = |it: &String| it.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ");
    asked.iter().map(head).collect()
}

#[test]
fn a_token_is_drawn_once_and_shown_with_every_call_but_not_with_the_version() {
    let it = Member::start(&[
        &[&plain(NEW), &plain(TOKEN), &plain(EMPTY), &plain(EMPTY)],
        &[&plain(NEW), &plain(EMPTY)],
    ]);
    let endpoints = login(&it);
    let mut gateway = Gateway::new(&endpoints, 0);
    for _ in 0..2 {
        assert!(gateway.call(&Ask::Range(Get::one(b"k")), WITHIN).is_ok());
    }
    drop(gateway);
    // The token is shared.
    let mut other = Gateway::new(&endpoints, 0);
    assert!(other.call(&Ask::Range(Get::one(b"k")), WITHIN).is_ok());
    let expected = [
        "/version -",
        "/v3/auth/authenticate -",
        "/v3/kv/range abc.1",
        "/v3/kv/range abc.1",
        "/version -",
        "/v3/kv/range abc.1",
    ];
    assert_eq!(heads(&it), expected);
    assert!(it.asked()[1].ends_with(r#"{"name":"me","password":"s3\"cret"}"#));
}

#[test]
fn a_token_that_is_over_is_drawn_anew_and_the_call_made_once_more() {
    let it = Member::start(&[&[
        &plain(NEW),
        &plain(TOKEN),
        &answer(401, OLD),
        &plain(NEXT_TOKEN),
        &plain(DONE),
    ]]);
    let mut gateway = Gateway::new(&login(&it), 0);
    let done = gateway.call(&append(), WITHIN);
    let succeeded = matches!(
        done,
        Ok(Answer::Txn {
            succeeded: true,
            ..
        })
    );
    assert!(succeeded, "{done:?}");
    let expected = [
        "/version -",
        "/v3/auth/authenticate -",
        "/v3/kv/txn abc.1",
        "/v3/auth/authenticate -",
        "/v3/kv/txn abc.2",
    ];
    assert_eq!(heads(&it), expected);
}

#[test]
fn a_call_is_made_a_second_time_and_not_a_third() {
    let it = Member::start(&[&[
        &plain(NEW),
        &plain(TOKEN),
        &answer(401, OLD),
        &plain(NEXT_TOKEN),
        &answer(401, OLD),
        &plain(DONE),
    ]]);
    let mut gateway = Gateway::new(&login(&it), 0);
    let why = gateway.call(&append(), WITHIN).unwrap_err();
    assert!(matches!(why, Trouble::BadToken(_)), "{why:?}");
    assert!(why.is_surely_undone());
    assert_eq!(it.count("/v3/kv/txn"), 2);
}

#[test]
fn a_call_whose_answer_is_lost_is_never_made_again() {
    // Behind a first refusal, and without one.
    let lost = "";
    for answers in [
        &[&plain(NEW), &plain(TOKEN), lost][..],
        &[
            &plain(NEW),
            &plain(TOKEN),
            &answer(401, OLD),
            &plain(NEXT_TOKEN),
            lost,
        ],
    ] {
        let it = Member::start(&[answers, &[&plain(NEW), &plain(DONE)]]);
        let mut gateway = Gateway::new(&login(&it), 0);
        let why = gateway.call(&append(), WITHIN).unwrap_err();
        assert!(matches!(why, Trouble::Unanswered(_)), "{why:?}");
        assert!(!why.is_surely_undone());
        assert_eq!(it.asked().len(), answers.len(), "{:?}", heads(&it));
    }
}

#[test]
fn a_wrong_password_is_not_shown_again_at_once() {
    let it = Member::start(&[
        &[&plain(NEW), &answer(400, WRONG)],
        &[&plain(NEW), &plain(TOKEN), &plain(DONE)],
    ]);
    let endpoints = login(&it);
    let mut gateway = Gateway::new(&endpoints, 0);
    for _ in 0..3 {
        let why = gateway.call(&append(), WITHIN).unwrap_err();
        assert!(why.is_surely_undone() && why.is_refusal(), "{why:?}");
        let text = why.to_string();
        assert!(text.contains("--etcd-password-file"), "{text}");
        assert!(!text.contains("s3"), "{text}");
    }
    assert_eq!(heads(&it), ["/version -", "/v3/auth/authenticate -"]);
    // Another one is shown at once.
    endpoints.replace_password(Password::new("right".to_owned()));
    assert!(gateway.call(&append(), WITHIN).is_ok());
    assert!(it.asked()[3].contains("right"));
}

#[test]
fn an_etcd_that_asks_nobody_is_asked_without_a_token_until_it_asks() {
    let off = r#"{"error":"etcdserver: authentication is not enabled","code":9}"#;
    let nobody = r#"{"error":"etcdserver: user name is empty","code":3}"#;
    let it = Member::start(&[&[
        &plain(NEW),
        &answer(400, off),
        &plain(DONE),
        &answer(400, nobody),
        &plain(TOKEN),
        &plain(DONE),
    ]]);
    let endpoints = login(&it);
    let mut gateway = Gateway::new(&endpoints, 0);
    assert!(gateway.call(&append(), WITHIN).is_ok());
    assert!(endpoints.is_login_idle());
    assert!(gateway.call(&append(), WITHIN).is_ok());
    assert!(!endpoints.is_login_idle());
    let expected = [
        "/version -",
        "/v3/auth/authenticate -",
        "/v3/kv/txn -",
        "/v3/kv/txn -",
        "/v3/auth/authenticate -",
        "/v3/kv/txn abc.1",
    ];
    assert_eq!(heads(&it), expected);
}

#[test]
fn a_token_that_would_be_a_header_of_its_own_is_none() {
    let evil = r#"{"header":{"revision":"1"},"token":"a\r\nX: y"}"#;
    let it = Member::start(&[&[&plain(NEW), &plain(evil), &plain(DONE)]]);
    let why = Gateway::new(&login(&it), 0).call(&append(), WITHIN);
    assert!(matches!(why, Err(Trouble::Unreachable(_))), "{why:?}");
    assert_eq!(it.count("/v3/kv/txn"), 0);
}

#[test]
fn without_a_user_a_refusal_is_told_and_the_call_is_not_repeated() {
    let nobody = r#"{"error":"etcdserver: user name is empty","code":3}"#;
    let it = Member::start(&[&[&plain(NEW), &answer(400, nobody), &plain(DONE)]]);
    let endpoints = Endpoints::parse(&format!("http://{}", it.address)).unwrap();
    let why = Gateway::new(&endpoints, 0)
        .call(&append(), WITHIN)
        .unwrap_err();
    assert!(why.to_string().contains("--etcd-user"), "{why}");
    assert_eq!(it.count("/v3/kv/txn"), 1);
}

#[test]
fn how_large_it_is_is_read_elsewhere_if_only_root_may_ask() {
    let denied = r#"{"code":7, "message":"etcdserver: permission denied"}"#;
    let figures = "# TYPE etcd_mvcc_db_total_size_in_bytes gauge\n\
         etcd_mvcc_db_total_size_in_bytes 2.4576e+07\n\
         etcd_mvcc_db_total_size_in_use_in_bytes 1024\n";
    let it = Member::start(&[
        &[
            &plain(NEW),
            &plain(TOKEN),
            &answer(403, denied),
            &plain(figures),
            &answer(401, OLD),
            &answer(400, WRONG),
        ],
        &[&plain(NEW), &plain(NEXT_TOKEN), &plain(DONE)],
    ]);
    let endpoints = login(&it);
    let mut gateway = Gateway::new(&endpoints, 0);
    let size = Answer::Status {
        bytes: 24_576_000,
        bytes_in_use: 1_024,
    };
    for _ in 0..3 {
        assert_eq!(gateway.call(&Ask::Status, WITHIN), Ok(size.clone()));
    }
    // Where there is no token any more it is drawn, too, for those who have less time.
    assert!(gateway.call(&append(), WITHIN).is_err());
    endpoints.replace_password(Password::new("right".to_owned()));
    assert_eq!(gateway.call(&Ask::Status, WITHIN), Ok(size));
    assert_eq!(it.count("/v3/auth"), 3);
    assert!(gateway.call(&append(), WITHIN).is_ok());
    assert_eq!((it.count("/v3/maintenance"), it.count("/metrics")), (1, 1));
    for body in [
        "",
        "etcd_mvcc_db_total_size_in_bytes NaN\netcd_mvcc_db_total_size_in_use_in_bytes 1\n",
        "etcd_mvcc_db_total_size_in_bytes -1\netcd_mvcc_db_total_size_in_use_in_bytes 1\n",
    ] {
        assert_eq!(size_in_figures(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn a_watch_shows_the_token_and_has_it_drawn_anew_when_it_is_over() {
    use crate::etcd::{Watch, Watched};
    let stream = |line: &str| {
        let length = line.len() + 1;
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{line}\n\r\n")
    };
    let over = stream(
        r#"{"result":{"header":{},"created":true,"canceled":true,"cancel_reason":"etcdserver: invalid auth token"}}"#,
    );
    let put = stream(r#"{"result":{"header":{},"events":[{"kv":{"key":"aw=="}}]}}"#);
    let it = Member::start(&[
        &[&plain(NEW), &plain(TOKEN), &over],
        &[&plain(NEW), &plain(NEXT_TOKEN), &answer(401, OLD)],
        &[&plain(NEW), &plain(TOKEN), &put],
    ]);
    let mut gateway = Gateway::new(&login(&it), 0);
    let mut watch = Watch::begin(&mut gateway, b"a", b"b", 1, WITHIN).unwrap();
    assert!(matches!(watch.next(WITHIN), Err(Trouble::BadToken(_))));
    let refused = Watch::begin(&mut gateway, b"a", b"b", 1, WITHIN).err();
    assert!(matches!(refused, Some(Trouble::BadToken(_))), "{refused:?}");
    let mut watch = Watch::begin(&mut gateway, b"a", b"b", 1, WITHIN).unwrap();
    assert!(matches!(watch.next(WITHIN), Ok(Watched::Changed(_))));
    let watches: Vec<_> = heads(&it)
        .into_iter()
        .filter(|it| it.contains("watch"))
        .collect();
    assert_eq!(
        watches,
        ["/v3/watch abc.1", "/v3/watch abc.2", "/v3/watch abc.1"]
    );
}

#[cfg(feature = "tls")]
#[path = "gateway_tls_tests.rs"]
mod encrypted;

/// A DNS server that has fallen silent costs nobody a lease.
#[test]
fn a_name_that_is_being_looked_up_for_ever_is_where_it_was() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    let answers: &[&str] = &[&plain(NEW), &plain(EMPTY)];
    let member = Member::start(&[answers, answers]);
    ADDRESS.set(member.address.parse().unwrap()).unwrap();
    let endpoints = Endpoints::parse("http://etcd-a:2379").unwrap();
    let endpoints = endpoints.looked_up_by(|_| match ASKED.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(ADDRESS.get().copied().into_iter().collect()),
        _ => loop {
            thread::park();
        },
    });
    let read = Ask::Range(Get::one(b"k"));
    let mut first = Gateway::new(&endpoints, 0);
    assert!(first.call(&read, WITHIN).is_ok());
    endpoints.age_addresses(0);
    let mut second = Gateway::new(&endpoints, 0);
    let answer = second.call(&read, WITHIN);
    assert!(answer.is_ok(), "{answer:?}");
    while ASKED.load(Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
}
