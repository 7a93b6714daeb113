//! What is there after another member took over, row by row of the table in docs/cluster.md: one server is asked over
//! pipes, its log is replayed as a standby does, and a second server goes on with that.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong has to fail")]

use std::cell::RefCell;
use std::rc::Rc;

use latch_sim::pipe::{ORIGIN, Pipes};
use latchd::base::{Millis, Nanos};
use latchd::cluster::Replica;
use latchd::engine::types::{Effects, Input, Record};
use latchd::engine::{Engine, Origin, Rules};
use latchd::server::{Door, Server, Settings};
use latchd::store::etcd::SALT;
use latchd::store::format::push_record;
use latchd::store::{Clocks, Progress, Store};
use serde_json::Value;

/// The time of day when a test begins.
const WALL_MS: u64 = 1_800_000_000_000;

/// A log that keeps everything at once, and a time of day that stands still.
#[derive(Clone)]
struct Log {
    frames: Rc<RefCell<Vec<u8>>>,
    records: u64,
    wall_ms: u64,
}

impl Store for Log {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, now: Nanos, record: &Record) {
        self.records += 1;
        let wall_ms = self.wall_ms;
        let clocks = || Clocks { now, wall_ms };
        let frames = &mut self.frames.borrow_mut();
        push_record(frames, SALT, self.records, record, clocks);
    }

    fn commit(&mut self, _: Nanos) {}

    fn progress(&mut self) -> Progress {
        Progress {
            durable: self.records,
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
}

/// A member that begins to lead with this table at this time.
fn lead(mut engine: Engine, epoch: u64, now: Nanos, wall_ms: u64) -> (Pipes<Log>, Log) {
    engine.set_epoch(epoch);
    let serve = Input::Serve {
        may_have_lost: false,
    };
    engine.apply(now, serve, &mut Effects::new());
    let log = Log {
        frames: Rc::default(),
        records: 0,
        wall_ms,
    };
    let settings = Settings {
        epoch,
        ..Settings::default()
    };
    let mut pipes = Pipes::new(Server::with_store(settings, engine, log.clone()));
    pipes.begin_at(now);
    (pipes, log)
}

fn replica() -> Replica {
    Replica::new(Box::new(|fence| {
        let rules = Rules {
            durable: true,
            ..Rules::default()
        };
        Engine::new(rules, Origin { fence, ..ORIGIN })
    }))
}

fn first() -> (Pipes<Log>, Log) {
    lead(replica().take(), 1, Nanos(1), WALL_MS)
}

/// Another member, whose clock has counted from another start and shows this time of day.
fn next(log: &Log, wall_ms: u64) -> Pipes<Log> {
    let now = Nanos(7_000_000_000_000);
    let mut standby = replica();
    let clocks = Clocks { now, wall_ms };
    standby.replay(&log.frames.borrow(), clocks).unwrap();
    lead(standby.take(), 2, now, wall_ms).0
}

/// Says one thing, and reads what is said when it is in the log.
fn ask(pipes: &mut Pipes<Log>, client: usize, frame: &str) -> String {
    pipes.say(client, &[frame]);
    pipes.settle();
    pipes.read(client)
}

/// Connects, and wants to be told fences.
fn connect(pipes: &mut Pipes<Log>) -> usize {
    let client = pipes.connect();
    assert!(ask(pipes, client, "hello _ fence=1").starts_with("ok "));
    client
}

/// A grant: its token and its fence.
fn grant(pipes: &mut Pipes<Log>, client: usize, frame: &str) -> (String, u64) {
    let told = ask(pipes, client, frame);
    let words: Vec<&str> = told.split_whitespace().collect();
    let ["ok", token, _, fence] = words[..] else {
        panic!("{frame}: {told}");
    };
    (token.to_owned(), fence.parse().unwrap())
}

fn post(pipes: &mut Pipes<Log>, id: &str, owner: &str) -> (u16, Value) {
    let client = pipes.connect_to(Door::Http);
    let body = format!(r#"{{"owner_id":"{owner}","ttl_ms":60000}}"#);
    let request = format!(
        "POST /v1/locks/web/acquire HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: {id}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    pipes.send(client, request.as_bytes());
    pipes.settle();
    pipes.settle(); // when it is in the log
    let told = pipes.read(client);
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

#[test]
fn what_was_held_is_held_and_had_back_by_its_token() {
    let (mut before, log) = first();
    let clients = [connect(&mut before), connect(&mut before)];
    let [one, other] = clients;
    let held = [
        ("job", "n", "l job 0 60"),
        ("pool", "sn", "sl pool 0 2 60"),
        ("doc", "rn", "rl doc 0 60"),
        ("book", "wn", "wl book 0 60"),
        ("boss", "n", "elect boss 0 60"),
    ];
    let grants = held.map(|(_, _, frame)| grant(&mut before, one, frame));
    let second = grant(&mut before, other, "sl pool 0 2 60");
    let reader = grant(&mut before, other, "rl doc 0 60");
    let mut after = next(&log, WALL_MS);
    let stranger = connect(&mut after);
    for frame in [
        "l job 0",
        "sl pool 0 2",
        "wl doc 0",
        "wl book 0",
        "rl book 0",
        "elect boss 0",
    ] {
        assert_eq!(ask(&mut after, stranger, frame), "timeout\n", "{frame}");
    }
    assert_eq!(
        ask(&mut after, stranger, "sl pool 0 3"),
        "error_limit_mismatch\n"
    );
    // Others may read as before.
    let newest = grant(&mut after, stranger, "rl doc 0 600");
    let highest = grants.iter().chain([&second, &reader]);
    assert!(newest.1 > highest.map(|(_, fence)| *fence).max().unwrap());
    // They last for their whole time from now on, and belong to whoever shows the token.
    after.pass(Millis(59_000));
    let holder = connect(&mut after);
    for ((key, renew, _), (token, fence)) in held.iter().zip(&grants) {
        let told = ask(&mut after, holder, &format!("{renew} {key} {token} 60"));
        assert_eq!(told, format!("ok 60 {fence}\n"), "{key}");
    }
    after.pass(Millis(2_000));
    // What nobody has had back is over by now.
    let told = ask(&mut after, holder, &format!("sn pool {} 60", second.0));
    assert!(told.starts_with("error"), "{told}");
    grant(&mut after, stranger, "sl pool 0 2 60");
    let told = ask(&mut after, stranger, "l job 0");
    assert_eq!(told, "timeout\n", "it was renewed");
    let told = ask(&mut after, holder, &format!("r job {}", grants[0].0));
    assert_eq!(told, "ok\n");
    grant(&mut after, stranger, "l job 0");
}

#[test]
fn a_request_that_is_asked_again_gets_the_same_grant() {
    let (mut before, log) = first();
    let (status, granted) = post(&mut before, "r-1", "me");
    assert_eq!((status, &granted["acquired"]), (200, &Value::Bool(true)));
    let mut after = next(&log, WALL_MS);
    let (status, again) = post(&mut after, "r-1", "me");
    assert_eq!(status, 200, "{again}");
    for field in ["lease_id", "fencing_token"] {
        assert!(!granted[field].is_null());
        assert_eq!(again[field], granted[field], "{field}");
    }
    for (id, owner) in [("r-2", "me"), ("r-1", "you")] {
        assert_eq!(post(&mut after, id, owner).0, 409, "{id} by {owner}");
    }
}

#[test]
fn counters_values_and_lists_are_exact() {
    let (mut before, log) = first();
    let client = connect(&mut before);
    for (frame, told) in [
        ("incr hits 5", "ok 5\n"),
        ("decr hits 1", "ok 4\n"),
        ("kset plain one two", "ok\n"),
        ("kset gone x", "ok\n"),
        ("kdel gone", "ok\n"),
        ("rpush list a", "ok 1\n"),
        ("rpush list b", "ok 2\n"),
        ("rpush list c", "ok 3\n"),
        ("lpop list", "ok a\n"),
    ] {
        assert_eq!(ask(&mut before, client, frame), told, "{frame}");
    }
    let mut after = next(&log, WALL_MS);
    let client = connect(&mut after);
    for (frame, told) in [
        ("get hits", "ok 4\n"),
        ("kget plain", "ok one two\n"),
        ("kget gone", "nil\n"),
        ("lrange list 0 -1", "ok [\"b\",\"c\"]\n"),
        ("incr hits 1", "ok 5\n"),
    ] {
        assert_eq!(ask(&mut after, client, frame), told, "{frame}");
    }
}

/// By the clock of whoever leads: one that is ahead ends them early, and one that is behind late.
#[test]
fn a_value_ends_by_the_time_of_day_and_does_not_begin_anew() {
    for (ahead_ms, left_ms) in [(0, 20_000), (4_000, 16_000), (-4_000, 24_000)] {
        let (mut before, log) = first();
        let client = connect(&mut before);
        assert_eq!(ask(&mut before, client, "kset brief v\t30"), "ok\n");
        // Ten seconds later, as everybody agrees.
        let wall_ms = (WALL_MS + 10_000).saturating_add_signed(ahead_ms);
        let mut after = next(&log, wall_ms);
        let client = connect(&mut after);
        after.pass(Millis(left_ms - 100));
        assert_eq!(
            ask(&mut after, client, "kget brief"),
            "ok v\n",
            "{ahead_ms}"
        );
        after.pass(Millis(200));
        assert_eq!(ask(&mut after, client, "kget brief"), "nil\n", "{ahead_ms}");
    }
}

#[test]
fn an_attached_client_resumes_and_reclaims_its_bytes_before_others_get_them() {
    let (mut before, log) = first();
    let client = connect(&mut before);
    let told = ask(&mut before, client, "attach gw/1 60 s3cret");
    assert_eq!(told, "ok 1 new\n");
    grant(&mut before, client, "l owned 0 60");
    assert_eq!(ask(&mut before, client, "rangelock file ex 0 10 0"), "ok\n");
    let mut after = next(&log, WALL_MS);
    let stranger = connect(&mut after);
    let told = ask(&mut after, stranger, "rangelock file ex 5 1 0");
    assert!(told.starts_with("error_grace "), "{told}");
    assert_eq!(
        ask(&mut after, stranger, "rangelock file ex 10 5 0"),
        "ok\n"
    );
    let client = connect(&mut after);
    assert_eq!(
        ask(&mut after, client, "attach gw/1 60 s3cret"),
        "ok 2 resumed 90000\n"
    );
    assert_eq!(ask(&mut after, client, "rangereclaim file ex 0 10"), "ok\n");
    assert_eq!(ask(&mut after, client, "reclaimdone gw/1"), "ok\n");
    assert_eq!(
        ask(&mut after, stranger, "rangelock file ex 5 1 0"),
        "timeout\n"
    );
    assert_eq!(ask(&mut after, stranger, "l owned 0"), "timeout\n");
    assert_eq!(ask(&mut after, client, "rangeunlock file 0 10"), "ok\n");
    assert_eq!(ask(&mut after, stranger, "rangelock file ex 5 1 0"), "ok\n");
}

/// The client counts on its time to live by its own clock, so the new leader keeps the bytes for that long.
#[test]
fn bytes_of_a_client_are_kept_for_its_time_to_live_if_that_is_longer_than_the_grace_period() {
    let (mut before, log) = first();
    let client = connect(&mut before);
    let told = ask(&mut before, client, "attach gw/1 300 s3cret");
    assert_eq!(told, "ok 1 new\n");
    assert_eq!(ask(&mut before, client, "rangelock file ex 0 10 0"), "ok\n");
    let mut after = next(&log, WALL_MS);
    let stranger = connect(&mut after);
    for second in 0..300 {
        let told = ask(&mut after, stranger, "rangelock file ex 5 1 0");
        let left = format!("error_grace {}\n", (300 - second) * 1_000);
        assert_eq!(told, left);
        after.pass(Millis::from_secs(1));
    }
    after.settle();
    assert_eq!(ask(&mut after, stranger, "rangelock file ex 5 1 0"), "ok\n");
}

#[test]
fn who_waited_listened_or_stood_at_a_barrier_is_gone() {
    let (mut before, log) = first();
    let holder = connect(&mut before);
    let (token, _) = grant(&mut before, holder, "l job 0 60");
    let [waiter, queued, at_barrier, listener] = [(); 4].map(|()| connect(&mut before));
    assert_eq!(ask(&mut before, waiter, "l job 60 60"), "");
    assert_eq!(ask(&mut before, queued, "e job 60"), "queued\n");
    assert_eq!(ask(&mut before, at_barrier, "bwait gate 2 60"), "");
    assert_eq!(ask(&mut before, listener, "listen news"), "ok\n");
    let mut after = next(&log, WALL_MS);
    let client = connect(&mut after);
    assert_eq!(ask(&mut after, client, "w job 0"), "error_not_enqueued\n");
    assert_eq!(ask(&mut after, client, "bwait gate 2 0"), "timeout\n");
    assert_eq!(ask(&mut after, client, "signal news x"), "ok 0\n");
    assert_eq!(ask(&mut after, client, &format!("r job {token}")), "ok\n");
    // Nobody stands before this one.
    grant(&mut after, client, "l job 0 60");
}
