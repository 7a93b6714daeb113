//! What a server says that does not decide, and that one which must not speak says nothing: over pipes, with stores
//! that say so.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong has to fail")]

use std::cell::Cell;
use std::rc::Rc;

use latch_sim::pipe::{Dialect, Meter, ORIGIN, Pipes, encrypted_pipe};
use latchd::access::Access;
use latchd::base::Nanos;
use latchd::engine::types::Record;
use latchd::engine::{Engine, Rules};
use latchd::server::{Door, Host, Server, Settings, Transport, TransportMemory};
use latchd::shard::{Shard, shard_of};
use latchd::store::{Progress, Redirect, Store};

/// A store that keeps nothing, and says what a member of a cluster would.
#[derive(Clone, Default)]
struct Seat {
    redirect: Option<Redirect>,
    is_silent: Rc<Cell<bool>>,
    shard: Option<Shard>,
    leaders: Vec<Redirect>,
}

impl Store for Seat {
    fn is_durable(&self) -> bool {
        false
    }

    fn append(&mut self, _: Nanos, _: &Record) {}

    fn commit(&mut self, _: Nanos) {}

    fn progress(&mut self) -> Progress {
        Progress {
            durable: u64::MAX,
            ..Progress::default()
        }
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn memory(&self) -> usize {
        0
    }

    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn may_speak(&self) -> bool {
        !self.is_silent.get()
    }

    fn redirect(&self) -> Option<Redirect> {
        self.redirect.clone()
    }

    fn shard(&self) -> Option<Shard> {
        self.shard
    }

    fn leader_of(&self, shard: u32) -> Redirect {
        self.leaders[shard as usize].clone()
    }
}

fn pipes(seat: Seat) -> Pipes<Seat> {
    pipes_with(Settings::default(), seat)
}

fn pipes_with(settings: Settings, seat: Seat) -> Pipes<Seat> {
    let engine = Engine::new(Rules::default(), ORIGIN);
    Pipes::new(Server::with_store(settings, engine, seat))
}

fn standby(line: Option<&str>, http: Option<&str>) -> Pipes<Seat> {
    pipes(Seat {
        redirect: Some(Redirect {
            line: line.map(str::to_owned),
            http: http.map(str::to_owned),
        }),
        ..Seat::default()
    })
}

#[test]
fn whoever_asks_a_standby_is_told_where_to_go_and_may_ask_again() {
    let mut pipes = standby(Some("10.0.0.1:6388"), None);
    let client = pipes.connect();
    let elsewhere = "error_not_leader 10.0.0.1:6388\n";
    for frame in [
        "l job 0", "n job x", "get hits", "kset k v", "hello", "who job", "listen a",
    ] {
        assert_eq!(pipes.ask(client, frame), elsewhere, "{frame}");
    }
    assert_eq!(pipes.ask(client, "ping"), "ok\n");
    assert_eq!(pipes.ask(client, "nonsense"), "error\n");
    assert!(pipes.ask(client, "stats").starts_with("ok {"));
    assert_eq!(
        pipes.server.holdings().engine,
        latchd::engine::view::Counts::default()
    );
}

#[test]
fn only_those_who_show_a_token_are_told_where_to_go() {
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        ..Settings::default()
    };
    let redirect = Redirect {
        line: Some("10.0.0.1:6388".to_owned()),
        http: Some("http://10.0.0.1:6389".to_owned()),
    };
    let mut pipes = pipes_with(
        settings,
        Seat {
            redirect: Some(redirect),
            ..Seat::default()
        },
    );
    let stranger = pipes.connect();
    let told = pipes.ask(stranger, "l job 0");
    assert!(!told.contains("10.0.0.1"), "{told}");
    let client = pipes.connect();
    assert_eq!(pipes.ask(client, "auth _ s3cret"), "ok\n");
    assert_eq!(
        pipes.ask(client, "l job 0"),
        "error_not_leader 10.0.0.1:6388\n"
    );
    let http = pipes.connect_to(Door::Http);
    let told = get(&mut pipes, http, "GET /v1/locks/a");
    assert!(!told.contains("10.0.0.1"), "{told}");
    // Tokens that are read again count for the server that takes this one's place.
    pipes.server.set_access(Access::of_one(b"other"));
    assert_eq!(pipes.server.access().first_token(), b"other");
}

#[test]
fn if_nobody_leads_no_address_is_told() {
    let mut pipes = standby(None, None);
    let client = pipes.connect();
    assert_eq!(pipes.ask(client, "l job 0"), "error_not_leader\n");
}

fn get(pipes: &mut Pipes<Seat>, client: usize, request: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    pipes.send(client, request.as_bytes());
    pipes.settle();
    pipes.read(client)
}

#[test]
fn over_http_a_standby_redirects_with_path_and_query() {
    let mut pipes = standby(None, Some("http://10.0.0.1:6389"));
    let client = pipes.connect_to(Door::Http);
    let told = get(&mut pipes, client, "GET /v1/locks/a%20b?x=1&y=%20");
    assert!(told.starts_with("HTTP/1.1 307 "), "{told}");
    let location = "\r\nLocation: http://10.0.0.1:6389/v1/locks/a%20b?x=1&y=%20\r\n";
    assert!(told.contains(location), "{told}");
    // curl shows only the body. Lease routes have the reason, like all others.
    let says =
        r#"{"error":"another server decides; ask http://10.0.0.1:6389","reason":"NOT_LEADER"}"#;
    assert!(told.contains(says), "{told}");
    let told = get(&mut pipes, client, "GET /v1/clients");
    assert!(told.contains(says), "{told}");
    let told = get(&mut pipes, client, "GET /readyz");
    assert!(
        told.starts_with("HTTP/1.1 503 ") && told.contains("not_leader"),
        "{told}"
    );
    for path in ["/livez", "/metrics", "/v1/stats", "/"] {
        let told = get(&mut pipes, client, &format!("GET {path}"));
        assert!(told.starts_with("HTTP/1.1 200 "), "{path}: {told}");
    }
}

#[test]
fn over_http_nobody_knows_where_is_503() {
    let mut pipes = standby(None, None);
    let client = pipes.connect_to(Door::Http);
    let told = get(&mut pipes, client, "GET /v1/locks/a");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(told.contains("\r\nRetry-After: 1\r\n"), "{told}");
    assert!(told.contains("no server of this cluster leads"), "{told}");
}

#[test]
fn over_http_a_leader_without_http_is_named_by_its_other_address() {
    let mut pipes = standby(Some("10.0.0.1:6388"), None);
    let client = pipes.connect_to(Door::Http);
    let told = get(&mut pipes, client, "GET /v1/who/a");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(told.contains("\r\nRetry-After: 1\r\n"), "{told}");
    let says = "the server that leads this cluster has no port for HTTP; ask it by the line protocol: \\\"10.0.0.1:6388\\\"";
    assert!(told.contains(says), "{told}");
    assert!(told.contains(r#""reason":"NO_LEADER""#), "{told}");
}

#[test]
fn nothing_leaves_while_nothing_may_be_said_and_everything_after_it() {
    let seat = Seat::default();
    let is_silent = Rc::clone(&seat.is_silent);
    let mut pipes = pipes(seat);
    let (holder, waiter) = (pipes.connect(), pipes.connect());
    let http = pipes.connect_to(Door::Http);
    let granted = pipes.ask(holder, "l job 0 60");
    let token = granted.split(' ').nth(1).unwrap().to_owned();
    is_silent.set(true);
    assert_eq!(pipes.ask(holder, "ping"), "");
    assert_eq!(pipes.ask(holder, &format!("n job {token} 60")), "");
    assert_eq!(pipes.ask(holder, "get hits"), "");
    assert_eq!(pipes.ask(waiter, "l job 10 60"), "");
    assert_eq!(get(&mut pipes, http, "GET /livez"), "");
    assert_eq!(pipes.ask(holder, &format!("r job {token}")), "");
    assert_eq!(
        pipes.read(waiter),
        "",
        "it has the lock, and must not know it"
    );
    // It sleeps meanwhile, and does not turn in vain.
    let now = pipes.now();
    assert!(pipes.server.next_deadline().is_none_or(|at| at > now));
    is_silent.set(false);
    pipes.turn();
    pipes.settle();
    assert_eq!(pipes.read(holder), "ok\nok 60\nok 0\nok\n");
    assert!(pipes.read(waiter).starts_with("ok "));
    assert!(pipes.read(http).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_silence_of_ours_is_not_held_against_a_client_whose_socket_was_full() {
    let seat = Seat::default();
    let is_silent = Rc::clone(&seat.is_silent);
    let mut pipes = pipes(seat);
    let client = pipes.connect();
    assert!(pipes.ask(client, "l job 0 600").starts_with("ok "));
    pipes.set_room(client, 1);
    assert_eq!(pipes.ask(client, "ping"), "o", "the rest does not fit");
    is_silent.set(true);
    pipes.set_room(client, 1 << 20);
    for _ in 0..3 {
        pipes.pass(Settings::default().write_timeout);
        pipes.turn();
    }
    is_silent.set(false);
    pipes.turn();
    pipes.settle();
    assert_eq!(pipes.read(client), "k\n");
    let other = pipes.connect();
    assert_eq!(pipes.ask(other, "l job 0"), "timeout\n", "it is held still");
}

#[test]
fn whoever_has_sent_its_last_word_is_told_the_answer_after_the_silence() {
    let seat = Seat::default();
    let is_silent = Rc::clone(&seat.is_silent);
    let mut pipes = pipes(seat);
    let client = pipes.connect_to(Door::Http);
    is_silent.set(true);
    let request = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    pipes.send(client, request.as_bytes());
    for _ in 0..5 {
        pipes.turn();
        pipes.pass(latchd::base::Millis::from_secs(1));
    }
    is_silent.set(false);
    pipes.turn();
    pipes.settle();
    let told = pipes.read(client);
    assert!(told.starts_with("HTTP/1.1 200 "), "{told:?}");
}

#[test]
fn a_wrong_secret_during_a_silence_neither_stays_nor_keeps_the_server_busy() {
    let seat = Seat::default();
    let is_silent = Rc::clone(&seat.is_silent);
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        ..Settings::default()
    };
    let mut pipes = pipes_with(settings, seat);
    let client = pipes.connect();
    is_silent.set(true);
    assert_eq!(pipes.ask(client, "auth _ guess"), "");
    // The delay of the answer, and then the time in which the peer may close first.
    for _ in 0..6 {
        pipes.pass(latchd::base::Millis(200));
        pipes.turn();
    }
    let now = pipes.now();
    assert!(pipes.server.next_deadline().is_none_or(|at| at > now));
    assert_eq!(pipes.server.connections(), 0);
}

/// Where a shard's leader is.
fn leader(index: u32) -> Redirect {
    Redirect {
        line: Some(format!("10.0.0.{index}:6388")),
        http: Some(format!("http://10.0.0.{index}:6389")),
    }
}

/// Number 0 of 3, of which nobody leads the last; leads itself, or not.
fn shard(leads: bool) -> Pipes<Seat> {
    pipes(Seat {
        redirect: (!leads).then(|| leader(0)),
        shard: Shard::new(0, 3),
        leaders: vec![leader(0), leader(1), Redirect::default()],
        ..Seat::default()
    })
}

/// A name in this shard of 3.
fn name(index: u32) -> String {
    let names = (0..).map(|it| format!("n{it}"));
    let mut names = names.filter(|it| shard_of(it.as_bytes(), 3) == index);
    names.next().unwrap()
}

/// Every verb that has a key, but for those of clients, and an argument that it takes.
const KEYED: &[(&str, &str)] = &[
    ("l", "0"),
    ("r", "x"),
    ("n", "x"),
    ("e", ""),
    ("w", "0"),
    ("sl", "0 3"),
    ("sr", "x"),
    ("sn", "x"),
    ("se", "3"),
    ("sw", "0"),
    ("rl", "0"),
    ("wl", "0"),
    ("rr", "x"),
    ("wr", "x"),
    ("rn", "x"),
    ("wn", "x"),
    ("re", ""),
    ("we", ""),
    ("rw", "0"),
    ("ww", "0"),
    ("elect", "0"),
    ("resign", "x"),
    ("observe", ""),
    ("unobserve", ""),
    ("incr", "1"),
    ("decr", "1"),
    ("get", ""),
    ("cset", "1"),
    ("kset", "v"),
    ("kget", ""),
    ("kdel", ""),
    ("kcas", "\tv\t"),
    ("lpush", "v"),
    ("rpush", "v"),
    ("lpop", ""),
    ("rpop", ""),
    ("llen", ""),
    ("lrange", "0 1"),
    ("blpop", "0"),
    ("brpop", "0"),
    ("bwait", "1 0"),
    ("listen", ""),
    ("unlisten", ""),
    ("signal", "v"),
    ("watch", ""),
    ("unwatch", ""),
    ("who", ""),
    ("pos", ""),
    ("reclaim", "x"),
    ("break", "*"),
    ("rangelock", "sh 0 10 0"),
    ("rangeunlock", "0 10"),
    ("rangetest", "sh 0 10"),
    ("rangecancel", "sh 0 10"),
    ("rangereclaim", "sh 0 10"),
    ("rangelist", ""),
];

fn say(pipes: &mut Pipes<Seat>, client: usize, [verb, key, arg]: [&str; 3]) -> String {
    pipes.send(client, format!("{verb}\n{key}\n{arg}\n").as_bytes());
    pipes.settle();
    pipes.read(client)
}

#[test]
fn a_key_of_another_shard_is_answered_with_that_shards_leader() {
    for leads in [true, false] {
        let mut pipes = shard(leads);
        let client = pipes.connect();
        for (verb, arg) in KEYED {
            let told = say(&mut pipes, client, [verb, &name(1), arg]);
            assert_eq!(told, "error_not_leader 10.0.0.1:6388\n", "{verb}");
            let told = say(&mut pipes, client, [verb, &name(2), arg]);
            assert_eq!(told, "error_not_leader\n", "{verb}: nobody leads it");
            let told = say(&mut pipes, client, [verb, &name(0), arg]);
            match leads {
                true => assert!(!told.contains("not_leader"), "{verb}: {told}"),
                false => assert_eq!(told, "error_not_leader 10.0.0.0:6388\n", "{verb}"),
            }
        }
        let rows = latchd::wire::verbs::TABLE.iter();
        let keyed = rows.filter(|row| !row.ignores_key).count();
        assert_eq!(keyed, KEYED.len() + 3, "attach, detach, reclaimdone");
    }
}

#[test]
fn clients_patterns_and_what_has_no_key_are_for_every_shard() {
    let mut pipes = shard(true);
    let client = pipes.connect();
    for index in 0..3 {
        let id = format!("gw/{}", name(index));
        let secret = "60 0123456789abcdef";
        let other = pipes.connect();
        let told = say(&mut pipes, other, ["attach", &id, secret]);
        assert!(told.ends_with(" new\n"), "{told}");
    }
    for (verb, pattern) in [("listen", "a.*"), ("watch", ">"), ("unlisten", "a.*")] {
        assert_eq!(
            say(&mut pipes, client, [verb, pattern, ""]),
            "ok\n",
            "{verb}"
        );
    }
    for verb in ["ping", "barrier"] {
        assert_eq!(say(&mut pipes, client, [verb, &name(1), ""]), "ok\n");
    }
    for verb in ["stats", "waits", "grace"] {
        let told = say(&mut pipes, client, [verb, &name(1), ""]);
        assert!(told.starts_with("ok "), "{told}");
    }
    let told = say(&mut pipes, client, ["hello", "_", "name=me"]);
    assert!(told.ends_with(" shard=0/3 name=me\n"), "{told}");
    // Nothing of what was sent away has left a trace.
    let told = say(&mut pipes, client, ["nonsense", &name(1), ""]);
    assert_eq!(told, "error\n");
}

#[test]
fn over_http_too() {
    let put = |path: &str, body: &str| {
        format!(
            "{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for leads in [true, false] {
        let mut pipes = shard(leads);
        let client = pipes.connect_to(Door::Http);
        let mut ask = |request: &str| {
            pipes.send(client, request.as_bytes());
            pipes.settle();
            pipes.read(client)
        };
        let held = r#"{"owner_id":"o","ttl_ms":60000}"#;
        let lost = r#"{"owner_id":"o","lease_id":"00066059-9d1e-2c3f-9f8e-7d6c5b4a3921","fencing_token":7}"#;
        let renewed = &lost.replace('}', r#","extend_by_ms":60000}"#);
        let range = r#"{"client":"gw/1","secret":"s","mode":"sh","start":0,"len":1}"#;
        let value = r#"{"value":"v"}"#;
        for (path, body) in [
            ("POST /v1/locks/{}/acquire", held),
            ("POST /v1/locks/{}/release", lost),
            ("POST /v1/locks/{}/renew", renewed),
            ("GET /v1/locks/{}", ""),
            ("DELETE /v1/locks/{}/holders/7", ""),
            ("GET /v1/who/{}", ""),
            ("GET /v1/semaphores/{}", ""),
            ("POST /v1/elections/{}/elect", held),
            ("POST /v1/ranges/{}/lock", range),
            ("GET /v1/ranges/{}", ""),
            ("PUT /v1/kv/{}", value),
            ("GET /v1/counters/{}", ""),
            ("GET /v1/lists/{}", ""),
            ("POST /v1/signals/{}", r#"{"payload":"x"}"#),
        ] {
            let (path, rest) = path.split_once("{}").unwrap();
            let request = |index| put(&format!("{path}{}{rest}", name(index)), body);
            let told = ask(&request(1));
            assert!(told.starts_with("HTTP/1.1 307 "), "{path}{rest}: {told}");
            let place = path.split_once(' ').unwrap().1;
            let to = format!(
                "\r\nLocation: http://10.0.0.1:6389{place}{}{rest}\r\n",
                name(1)
            );
            assert!(told.contains(&to), "{told}");
            let told = ask(&request(2));
            assert!(told.starts_with("HTTP/1.1 503 "), "{path}{rest}: {told}");
            assert!(told.contains("\r\nRetry-After: 1\r\n"), "{told}");
            let told = ask(&request(0));
            assert_eq!(told.starts_with("HTTP/1.1 307 "), !leads, "{path}: {told}");
        }
        for path in ["/livez", "/metrics", "/v1/stats", "/"] {
            let told = ask(&put(&format!("GET {path}"), ""));
            assert!(told.starts_with("HTTP/1.1 200 "), "{path}: {told}");
        }
        let told = ask(&put("GET /readyz", ""));
        assert_eq!(told.starts_with("HTTP/1.1 200 "), leads, "{told}");
    }
}

/// What has left of an answer has left; the rest must not follow when the connection is closed because another
/// one leads by now.
#[test]
fn a_record_that_has_not_all_left_stays_where_it_is_when_its_connection_is_dropped() {
    let dialect = Dialect {
        is_old: false,
        announces_end: true,
    };
    let memory = TransportMemory::default();
    let meter = Meter::default();
    let open = || {
        encrypted_pipe(
            1,
            Host::Unknown,
            &meter,
            Door::Line,
            dialect,
            memory.clone(),
        )
    };
    let (mut here, peer) = open();
    here.write(b"ok all of it\n").unwrap();
    drop(here);
    assert_eq!(peer.receive(), b"ok all of it\n");
    let (mut here, peer) = open();
    peer.set_room(10);
    assert!(here.write(b"ok not all of it\n").is_err());
    peer.set_room(usize::MAX);
    drop(here);
    assert_eq!(peer.receive(), b"");
}
