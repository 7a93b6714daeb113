//! Who may do what, where a transcript cannot show it: users of the machine that need no token, tokens
//! that change while clients are connected, and how long a connection without a token is kept.
//! `scripts/access.txt` and `http_server/access.txt` have what each role may ask for, `daemon/access.rs`
//! real files and sockets.

#![allow(clippy::unwrap_used, missing_docs)]

use latch_sim::pipe::Pipes;
use latchd::access::Access;
use latchd::base::Millis;
use latchd::engine::Rules;
use latchd::server::{Door, Host, Settings};

const OPERATOR: Host = Host::User(1000);
const STRANGER: Host = Host::User(1001);
const REMOTE: Host = Host::V4([192, 0, 2, 1]);

fn pipes(tokens: &str, admin_uid: Option<u32>) -> Pipes {
    let access = Access::read(tokens).unwrap().with_admin_uid(admin_uid);
    let settings = Settings {
        access,
        ..Settings::default()
    };
    Pipes::with(Rules::default(), settings)
}

/// What a request over HTTP is answered: the status and the body.
fn http(pipes: &mut Pipes, who: usize, request: &str, token: Option<&str>) -> (String, String) {
    let token = token.map_or_else(String::new, |it| format!("Authorization: Bearer {it}\r\n"));
    let json = "Content-Type: application/json\r\nContent-Length: 0\r\n";
    let text = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{token}{json}\r\n");
    pipes.send(who, text.as_bytes());
    pipes.settle();
    let answer = pipes.read(who);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    (status.to_owned(), body.to_owned())
}

/// What a request with a wrong token is answered, once its delay is over.
fn guess(pipes: &mut Pipes, who: usize, frame: &str) -> String {
    assert_eq!(pipes.ask(who, frame), "", "before its time");
    pipes.pass(Millis(100));
    pipes.settle();
    pipes.read(who)
}

#[test]
fn a_user_of_the_machine_needs_no_token_and_nobody_else_is_let_in_by_that() {
    let mut pipes = pipes("s3cret\nw1 worker write\n", Some(1000));
    let worker = pipes.connect();
    assert_eq!(pipes.ask(worker, "auth _ w1"), "ok\n");
    assert!(pipes.ask(worker, "l job 0 60").starts_with("ok "));
    let operator = pipes.connect_from(OPERATOR);
    let who = pipes.ask(operator, "who job");
    assert!(who.contains("\"user\":\"worker\""), "{who}");
    assert_eq!(pipes.ask(operator, "break job *"), "ok 1\n");
    assert!(pipes.ask(operator, "l job 0").starts_with("ok "));
    let who = pipes.ask(worker, "who job");
    assert!(who.contains("\"user\":\"uid:1000\""), "{who}");
    for host in [STRANGER, REMOTE, Host::User(0), Host::Unknown] {
        let other = pipes.connect_from(host);
        assert_eq!(
            guess(&mut pipes, other, "who job"),
            "error_auth\n",
            "{host}"
        );
    }
}

#[test]
fn whoever_needs_no_token_may_show_one_and_has_what_that_gives() {
    let mut pipes = pipes("s3cret\nr1 reader read\n", Some(1000));
    let operator = pipes.connect_from(OPERATOR);
    assert_eq!(guess(&mut pipes, operator, "auth _ guess"), "error_auth\n");
    assert_eq!(pipes.ask(operator, "break job *"), "ok 0\n");
    assert_eq!(pipes.ask(operator, "auth _ r1"), "ok\n");
    assert_eq!(pipes.ask(operator, "break job *"), "error_forbidden\n");
    assert_eq!(pipes.ask(operator, "auth _ s3cret"), "error\n"); // once is enough
    assert_eq!(pipes.ask(operator, "break job *"), "error_forbidden\n");
    let again = pipes.connect_from(OPERATOR);
    assert_eq!(pipes.ask(again, "auth _ s3cret"), "ok\n");
    assert_eq!(pipes.ask(again, "auth _ s3cret"), "error\n");
    assert_eq!(pipes.ask(again, "break job *"), "ok 0\n");
}

#[test]
fn over_http_a_user_of_the_machine_needs_no_token_either() {
    let mut pipes = pipes("s3cret\nr1 reader read\n", Some(1000));
    let operator = pipes.connect_from_to(OPERATOR, Door::Http);
    assert_eq!(http(&mut pipes, operator, "GET /v1/locks", None).0, "200");
    let broken = http(&mut pipes, operator, "DELETE /v1/locks/job/holders/1", None);
    assert_eq!(broken.0, "404", "nobody holds it: {}", broken.1);
    let read = Some("r1");
    let broken = http(&mut pipes, operator, "DELETE /v1/locks/job/holders/1", read);
    assert_eq!(broken.0, "403", "the token counts: {}", broken.1);
    let (_, page) = http(&mut pipes, operator, "GET /v1/connections", None);
    assert!(page.contains("\"user\":\"uid:1000\""), "{page}");
    let guess = http(&mut pipes, operator, "GET /v1/locks", Some("guess"));
    assert_eq!(guess.0, "", "told when the delay is over");
    pipes.pass(Millis(100));
    pipes.settle();
    assert!(pipes.read(operator).starts_with("HTTP/1.1 401 "));
    for host in [STRANGER, REMOTE] {
        let other = pipes.connect_from_to(host, Door::Http);
        assert_eq!(http(&mut pipes, other, "GET /v1/locks", None).0, "");
    }
}

#[test]
fn without_a_token_everybody_may_do_everything() {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let anybody = pipes.connect_from(REMOTE);
    assert!(pipes.ask(anybody, "l job 0").starts_with("ok "));
    assert_eq!(pipes.ask(anybody, "break job *"), "ok 1\n");
    assert_eq!(pipes.ask(anybody, "grace _ end"), "ok 0 0 0\n");
    assert_eq!(pipes.ask(anybody, "auth _ s3cret"), "error\n");
}

#[test]
fn new_tokens_are_asked_of_newcomers_and_touch_nobody_who_is_there() {
    let mut pipes = pipes(
        "old-1 house\nold-2 batch write jobs.\nold-3 other read x.\n",
        None,
    );
    let [house, batch, late] = [(); 3].map(|()| pipes.connect());
    assert_eq!(pipes.ask(house, "auth _ old-1"), "ok\n");
    assert_eq!(pipes.ask(batch, "auth _ old-2"), "ok\n");
    let granted = pipes.ask(batch, "l jobs.1 0 60");
    let token = granted.split(' ').nth(1).unwrap().to_owned();

    let tokens = "new-1 house\nnew-2 reader read\nnew-3 batch write other.\n";
    pipes.server.set_access(Access::read(tokens).unwrap());

    // Who was let in keeps what it has, and may do what it might.
    assert_eq!(pipes.ask(batch, &format!("n jobs.1 {token} 60")), "ok 60\n");
    assert!(pipes.ask(batch, "l jobs.2 0").starts_with("ok "));
    assert_eq!(pipes.ask(batch, "l other.1 0"), "error_forbidden\n");
    assert_eq!(pipes.ask(house, "break jobs.2 *"), "ok 1\n");
    // Who comes, or has not shown a token yet, has to show a new one.
    assert_eq!(guess(&mut pipes, late, "auth _ old-1"), "error_auth\n");
    let [reader, writer] = [(); 2].map(|()| pipes.connect());
    assert_eq!(pipes.ask(reader, "auth _ new-2"), "ok\n");
    assert_eq!(pipes.ask(reader, "l jobs.3 0"), "error_forbidden\n");
    assert_eq!(pipes.ask(writer, "auth _ new-3"), "ok\n");
    assert!(pipes.ask(writer, "l other.1 0").starts_with("ok "));
    assert_eq!(pipes.ask(writer, "l jobs.3 0"), "error_forbidden\n");
    // Over HTTP every request shows its token.
    let web = pipes.connect_to(Door::Http);
    assert_eq!(
        http(&mut pipes, web, "GET /v1/locks", Some("new-2")).0,
        "200"
    );
    assert_eq!(http(&mut pipes, web, "GET /v1/locks", Some("old-1")).0, "");

    // Many times over, with somebody who stays.
    for round in 0..100 {
        let tokens = format!("t{round} n{round} write p{round}.\nhouse-1\n");
        pipes.server.set_access(Access::read(&tokens).unwrap());
        let guest = pipes.connect();
        assert_eq!(pipes.ask(guest, &format!("auth _ t{round}")), "ok\n");
        assert!(
            pipes
                .ask(guest, &format!("l p{round}.x 0"))
                .starts_with("ok ")
        );
        assert_eq!(pipes.ask(guest, "l jobs.9 0"), "error_forbidden\n");
        assert_eq!(
            pipes.ask(batch, &format!("l p{round}.x 0")),
            "error_forbidden\n"
        );
        pipes.half_close(guest);
        pipes.settle();
    }
    assert_eq!(pipes.ask(batch, &format!("r jobs.1 {token}")), "ok\n");
}

/// A subscription is put off while very many leases of its key are ended. By then the tokens can be
/// others.
#[test]
fn subscription_that_is_put_off_and_then_refused_leaves_the_connection_as_it_was() {
    let mut pipes = pipes("t1 house\nt2 web write\n", None);
    let holder = pipes.connect();
    assert_eq!(pipes.ask(holder, "auth _ t1"), "ok\n");
    pipes.send(holder, "sl\npool\n0 9000 1\n".repeat(4_000).as_bytes());
    pipes.settle();
    assert_eq!(pipes.read(holder).lines().count(), 4_000);
    let web = pipes.connect_to(Door::Http);
    pipes.pass(Millis(1_000));
    let observe = "GET /v1/elections/pool/events HTTP/1.1\r\nHost: localhost\r\n\
                   Authorization: Bearer t2\r\n\r\n";
    pipes.send(web, observe.as_bytes());
    pipes.turn();
    assert_eq!(pipes.read(web), "", "leases that are over come first");
    let tokens = Access::read("t1 house\nt2 web write other.\n").unwrap();
    pipes.server.set_access(tokens);
    pipes.settle();
    let refused = pipes.read(web);
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    // What is answered by a plain yes would begin the stream.
    let deleted = http(&mut pipes, web, "DELETE /v1/kv/other.v", Some("t2"));
    assert_eq!(deleted.1, "{\"deleted\":true}\n");
}

#[test]
fn everything_that_is_forbidden_is_counted() {
    let mut pipes = pipes("house-1\nr1 reader read\n", None);
    let reader = pipes.connect();
    assert_eq!(pipes.ask(reader, "auth _ r1"), "ok\n");
    for _ in 0..1_000 {
        assert_eq!(pipes.ask(reader, "l job 0"), "error_forbidden\n");
    }
    pipes.pass(Millis::from_secs(2));
    pipes.settle();
    let stats = pipes.ask(reader, "stats");
    assert!(stats.contains("\"forbidden\":1000,"), "{stats}");
    assert!(stats.contains("\"grants\":0,"), "{stats}");
}

/// A server with a token and a limit of connections.
fn with_slots(connections_max: u32) -> Pipes {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        connections_max,
        ..Settings::default()
    };
    Pipes::with(Rules::default(), settings)
}

/// Connects one stranger after the other, each of which sends this, and lets the server hear each.
fn strangers(pipes: &mut Pipes, count: usize, door: Door, sent: &[u8]) -> Vec<usize> {
    let connect = |_| {
        let who = pipes.connect_to(door);
        pipes.send(who, sent);
        pipes.turn();
        who
    };
    (0..count).map(connect).collect()
}

#[test]
fn client_with_the_token_gets_in_every_time_when_strangers_want_all_slots() {
    for (door, sent) in [
        (Door::Line, &b""[..]),
        (Door::Line, b"auth\n_\ns3c"),
        (Door::Line, b"auth\n_\nguess\n"),
        (Door::Http, b""),
        (Door::Http, b"GET /v1/locks HTTP/1.1\r\n"),
        (
            Door::Http,
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
    ] {
        let mut pipes = with_slots(20);
        strangers(&mut pipes, 20, door, sent);
        let mut holders = Vec::new();
        for round in 0..15 {
            let holder = pipes.connect();
            assert_eq!(pipes.ask(holder, "auth _ s3cret"), "ok\n", "{round}");
            let granted = pipes.ask(holder, &format!("l k{round} 0"));
            assert!(granted.starts_with("ok "), "{round}: {granted}");
            holders.push(holder);
            strangers(&mut pipes, 20, door, sent);
        }
        for holder in holders {
            assert_eq!(pipes.ask(holder, "ping"), "ok\n", "it stays");
        }
    }
}

#[test]
fn strangers_take_at_most_half_of_the_slots_and_the_first_one_makes_room() {
    let mut pipes = with_slots(20);
    let come = strangers(&mut pipes, 15, Door::Line, b"");
    assert_eq!(pipes.server.connections(), 10);
    let closed: Vec<bool> = come
        .iter()
        .map(|&who| pipes.peer(who).is_closed())
        .collect();
    assert_eq!(closed, [[true; 5], [false; 5], [false; 5]].concat());
    assert_eq!(pipes.ask(come[5], "auth _ s3cret"), "ok\n", "it was next");
    strangers(&mut pipes, 1, Door::Line, b"");
    assert!(!pipes.peer(come[6]).is_closed(), "there is room again");
    strangers(&mut pipes, 1, Door::Line, b"");
    assert!(pipes.peer(come[6]).is_closed());
    assert_eq!(pipes.ask(come[5], "ping"), "ok\n");
}

#[test]
fn clients_with_the_token_may_have_all_slots_and_make_no_room() {
    let mut pipes = with_slots(4);
    let clients = [(); 4].map(|()| {
        let client = pipes.connect();
        assert_eq!(pipes.ask(client, "auth _ s3cret"), "ok\n");
        client
    });
    let late = pipes.connect();
    assert!(pipes.id(late).is_none(), "refused");
    for client in clients {
        assert_eq!(pipes.ask(client, "ping"), "ok\n");
    }
}

#[test]
fn http_connection_makes_no_room_once_it_has_shown_the_token() {
    let mut pipes = with_slots(4);
    let [known, probe] = [(); 2].map(|()| pipes.connect_to(Door::Http));
    let shown = http(&mut pipes, known, "GET /v1/locks", Some("s3cret"));
    assert_eq!(shown.0, "200");
    assert_eq!(http(&mut pipes, probe, "GET /livez", None).0, "200");
    assert_eq!(http(&mut pipes, probe, "GET /readyz", None).0, "200");
    strangers(&mut pipes, 10, Door::Line, b"");
    assert!(pipes.peer(probe).is_closed(), "it has shown nothing");
    assert_eq!(http(&mut pipes, known, "GET /livez", None).0, "200");
    strangers(&mut pipes, 10, Door::Line, b"");
    let again = http(&mut pipes, known, "GET /v1/locks", Some("s3cret"));
    assert_eq!(again.0, "200");
}

#[test]
fn connections_of_an_open_server_make_no_room() {
    let settings = Settings {
        connections_max: 4,
        ..Settings::default()
    };
    let mut pipes = Pipes::with(Rules::default(), settings);
    let clients = strangers(&mut pipes, 4, Door::Line, b"");
    let late = pipes.connect();
    assert!(pipes.id(late).is_none(), "refused");
    for client in clients {
        assert_eq!(pipes.ask(client, "ping"), "ok\n");
    }
}

#[test]
fn user_of_the_machine_who_needs_no_token_makes_no_room() {
    let mut pipes = with_slots(4);
    let access = Access::of_one(b"s3cret").with_admin_uid(Some(1000));
    pipes.server.set_access(access);
    let operator = pipes.connect_from(OPERATOR);
    strangers(&mut pipes, 10, Door::Line, b"");
    assert_eq!(pipes.ask(operator, "break job *"), "ok 0\n");
}

/// The body is 190,000 bytes long, and its sender waits for an answer before it sends it.
#[test]
fn http_request_without_the_token_is_refused_by_its_head_alone() {
    let mut pipes = pipes("s3cret\n", None);
    let head = |token: &str| {
        format!(
            "PUT /v1/kv/k HTTP/1.1\r\nHost: localhost\r\n{token}Expect: 100-continue\r\n\
             Content-Type: application/json\r\nContent-Length: 190000\r\n\r\n"
        )
    };
    for token in ["", "Authorization: Bearer guess\r\n"] {
        let web = pipes.connect_to(Door::Http);
        pipes.send(web, head(token).as_bytes());
        pipes.settle();
        assert_eq!(pipes.read(web), "", "told when the delay is over");
        pipes.pass(Millis(100));
        pipes.settle();
        let answer = pipes.read(web);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    let web = pipes.connect_to(Door::Http);
    pipes.send(web, head("Authorization: Bearer s3cret\r\n").as_bytes());
    pipes.settle();
    assert_eq!(pipes.read(web), "HTTP/1.1 100 Continue\r\n\r\n");
    let value = "v".repeat(190_000 - 12);
    pipes.send(web, format!("{{\"value\":\"{value}\"}}").as_bytes());
    pipes.settle();
    let answer = pipes.read(web);
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}"); // longer than a value may be
    let (status, _) = http(&mut pipes, web, "GET /v1/locks", Some("s3cret"));
    assert_eq!(status, "200", "it was read to its end");
}

/// The lease that the acquire of `job` with one request id is answered, if it is granted.
fn acquire(pipes: &mut Pipes, host: Host, token: Option<&str>) -> Option<String> {
    let who = pipes.connect_from_to(host, Door::Http);
    let token = token.map_or_else(String::new, |it| format!("Authorization: Bearer {it}\r\n"));
    let body = r#"{"owner_id":"me","ttl_ms":60000}"#;
    let text = format!(
        "POST /v1/locks/job/acquire HTTP/1.1\r\nHost: localhost\r\n{token}X-Request-ID: once\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    pipes.send(who, text.as_bytes());
    pipes.settle();
    let answer = pipes.read(who);
    pipes.half_close(who);
    pipes.settle();
    let (_, rest) = answer.split_once("\"lease_id\":\"")?;
    rest.split_once('"').map(|(lease, _)| lease.to_owned())
}

#[test]
fn a_repeated_request_without_tokens_is_answered_to_the_host_that_asked_first() {
    let mut pipes = Pipes::with(Rules::default(), Settings::default());
    let lease = acquire(&mut pipes, REMOTE, None);
    assert!(lease.is_some());
    for host in [
        Host::V4([192, 0, 2, 2]),
        Host::V6([192, 0, 2, 1, 0, 0, 0, 0]),
        OPERATOR,
    ] {
        assert_eq!(acquire(&mut pipes, host, None), None, "{host}");
    }
    assert_eq!(
        acquire(&mut pipes, REMOTE, None),
        lease,
        "after a new connection"
    );
}

#[test]
fn a_repeated_request_is_answered_to_the_name_of_a_token_also_after_a_reload() {
    let mut pipes = pipes("a1 ann write\nb1 bob write\nc1 write\nd1 write\n", None);
    let lease = acquire(&mut pipes, REMOTE, Some("a1"));
    assert!(lease.is_some());
    for other in ["b1", "c1", "d1"] {
        assert_eq!(acquire(&mut pipes, REMOTE, Some(other)), None, "{other}");
    }
    let access = Access::read("a2 ann write\nb1 bob write\na1 eve write\n").unwrap();
    pipes.server.set_access(access);
    assert_eq!(
        acquire(&mut pipes, REMOTE, Some("a1")),
        None,
        "another name"
    );
    assert_eq!(
        acquire(&mut pipes, OPERATOR, Some("a2")),
        lease,
        "from anywhere"
    );
}

fn takes_newcomers(pipes: &mut Pipes) -> bool {
    pipes.server.accepts_from(pipes.now()) <= pipes.now()
}

/// Lets strangers in as the reactor does, at most 128 between two turns; says how many came in.
fn flood(pipes: &mut Pipes) -> usize {
    let before = pipes.everyone().end;
    while pipes.everyone().end < before + 128 && takes_newcomers(pipes) {
        pipes.connect();
    }
    pipes.settle();
    pipes.everyone().end - before
}

/// 12,000 silent connections a second and more want the places of 100 strangers.
#[test]
fn client_that_authenticates_late_gets_in_whatever_comes_meanwhile() {
    for pause_ms in [0, 5, 20, 24] {
        let settings = Settings {
            access: Access::of_one(b"s3cret"),
            connections_max: 200,
            ..Settings::default()
        };
        let mut pipes = Pipes::with(Rules::default(), settings);
        let mut came = 0;
        for _ in 0..10 {
            for _ in 0..50 {
                came += flood(&mut pipes);
                pipes.pass(Millis(1));
            }
            let late = loop {
                if takes_newcomers(&mut pipes) {
                    break pipes.connect();
                }
                pipes.pass(Millis(1));
                pipes.settle();
            };
            for _ in 0..pause_ms {
                came += flood(&mut pipes);
                pipes.pass(Millis(1));
            }
            assert_eq!(pipes.ask(late, "auth _ s3cret"), "ok\n", "{pause_ms} ms");
        }
        assert!(came > 1_500, "{came} strangers came in, in half a second");
    }
}

/// The list of strangers is cleared of clients that have authenticated when it gets long.
#[test]
fn stranger_can_be_displaced_however_many_authenticated_before() {
    for known in 60..75 {
        let mut pipes = pipes("s3cret", None);
        let first = pipes.connect();
        for _ in 0..known {
            let client = pipes.connect();
            assert_eq!(pipes.ask(client, "auth _ s3cret"), "ok\n");
        }
        pipes.connect();
        pipes.reset(first);
        pipes.settle();
        let room_at = pipes.server.make_room(pipes.now());
        assert!(room_at.is_some(), "after {known} clients");
    }
}

/// A place is kept for less than 25 ms if there are few: 4,000 newcomers a second come in.
#[test]
fn newcomers_do_not_wait_long_for_the_last_place() {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        connections_max: 4,
        ..Settings::default()
    };
    let mut pipes = Pipes::with(Rules::default(), settings);
    for _ in 0..3 {
        let known = pipes.connect();
        assert_eq!(pipes.ask(known, "auth _ s3cret"), "ok\n");
    }
    for _ in 0..100 {
        assert_eq!(flood(&mut pipes), 1);
        pipes.pass(Millis(1));
    }
    let late = pipes.connect();
    assert_eq!(pipes.ask(late, "auth _ s3cret"), "ok\n");
}

/// Answers of open routes do not lengthen the time to authenticate.
#[test]
fn stranger_that_asks_open_routes_is_closed_when_its_time_is_over() {
    let mut pipes = pipes("s3cret", None);
    let [stranger, client] = [(); 2].map(|()| pipes.connect_to(Door::Http));
    for _ in 0..4 {
        pipes.pass(Millis::from_secs(1));
        pipes.settle();
        let live = "GET /healthz";
        assert_eq!(http(&mut pipes, stranger, live, None).0, "200");
        assert_eq!(http(&mut pipes, client, live, None).0, "200");
    }
    let known = http(&mut pipes, client, "GET /v1/kv/k", Some("s3cret"));
    assert_eq!(known.0, "404");
    pipes.pass(Millis(999));
    pipes.settle();
    assert!(!pipes.peer(stranger).is_closed());
    pipes.pass(Millis(1));
    pipes.settle();
    assert!(pipes.peer(stranger).is_closed());
    assert!(!pipes.peer(client).is_closed());
}
