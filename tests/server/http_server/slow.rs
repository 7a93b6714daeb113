//! Those who send or read slowly, or not at all: every part has its time, counted from its beginning,
//! and what is kept for them has a bound.

use latchd::base::Millis;
use latchd::server::Settings;

use crate::http_server::world::{BEGIN, World, spelled};

const HEAD: &str = "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ";

fn with_read_timeout(seconds: u32) -> World {
    World::with(Settings {
        read_timeout: Millis::from_secs(seconds.into()),
        ..Settings::default()
    })
}

/// Waits to the last millisecond, and then for the answer.
#[track_caller]
fn is_late_after(world: &mut World, who: usize, part: &str, ms: u64) {
    world.pass(ms - 1);
    assert_eq!(world.pipes.read(who), "", "before its time");
    world.pass(1);
    let answer = world.answer(who);
    assert_eq!((answer.status, answer.reason().as_str()), (408, "LATE"));
    assert!(
        answer.body.contains(&format!("the {part} did not arrive")),
        "{answer:?}"
    );
    assert_eq!(answer.header("Connection"), Some("close"));
    assert!(world.is_ended(who));
}

#[test]
fn half_a_head_has_5_seconds() {
    for read_timeout in [1, 23, 600] {
        let mut world = with_read_timeout(read_timeout);
        let who = world.http();
        world.send(who, HEAD);
        is_late_after(&mut world, who, "head", 5_000);
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_has_no_longer() {
    let mut world = World::new();
    let who = world.http();
    for byte in &HEAD.as_bytes()[..5] {
        world.send(who, [*byte]);
        world.pass(900);
    }
    world.send(who, "xyz");
    is_late_after(&mut world, who, "head", 5_000 - 5 * 900);
}

/// Also if it began right behind another request, or after a long silence.
#[test]
fn the_time_of_a_head_begins_with_its_first_byte() {
    let mut world = World::new();
    let who = world.http();
    world.send(who, spelled("GET /livez") + "G");
    assert_eq!(world.answer(who).status, 200);
    is_late_after(&mut world, who, "head", 5_000);

    let who = world.http();
    assert_eq!(world.ask(who, "GET /livez").status, 200);
    world.pass(20_000);
    world.send(who, "G");
    is_late_after(&mut world, who, "head", 5_000);

    // Empty lines between two requests are no beginning.
    let who = world.http();
    assert_eq!(world.ask(who, "GET /livez").status, 200);
    world.send(who, "\r\n");
    world.pass(6_000);
    assert_eq!(world.ask(who, "GET /livez").status, 200);
}

#[test]
fn half_a_body_has_5_seconds_from_the_end_of_its_head() {
    let length = spelled("POST /v1/counters/c/add {\"delta\":1}");
    let chunked = "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{\"del";
    for request in [&length[..length.len() - 3], chunked] {
        let mut world = World::new();
        let who = world.http();
        let (head, body) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
        world.send(who, &head[..10]);
        world.pass(4_000);
        world.send(who, &head[10..]);
        world.pass(2_000);
        world.send(who, &body[..1]);
        world.pass(2_000);
        world.send(who, &body[1..]);
        is_late_after(&mut world, who, "body", 1_000);
        let looker = world.http();
        let answer = world.ask(looker, "GET /v1/counters/c");
        assert_eq!(answer.json()["value"], 0, "half a request was served");
    }
}

/// Without a word: a client that is used again after a pause would read one as its next answer.
#[test]
fn an_idle_connection_is_closed_at_the_read_timeout_without_a_word() {
    let mut world = with_read_timeout(7);
    let (new, used) = (world.http(), world.http());
    world.pass(2_000);
    assert_eq!(world.ask(used, "GET /livez").status, 200);
    world.pass(4_999);
    assert!(!world.is_ended(new));
    world.pass(1);
    assert!(world.is_ended(new) && !world.is_ended(used));
    world.pass(1_999);
    assert!(!world.is_ended(used), "counted from its last answer");
    world.pass(1);
    assert!(world.is_ended(used));
    assert_eq!(world.pipes.read(new) + &world.pipes.read(used), "");
}

/// Whoever waits for us is not idle.
#[test]
fn who_waits_is_not_closed_for_being_silent() {
    let mut world = with_read_timeout(2);
    let (holder, who) = (world.http(), world.http());
    world.acquire(holder, "job", "holder", 600_000);
    world.say(
        who,
        "POST /v1/locks/job/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000}",
    );
    world.pass(59_999);
    assert_eq!(world.answers(who), []);
    world.pass(1);
    assert_eq!(world.answer(who).reason(), "HELD");
    world.pass(1_999);
    assert!(!world.is_ended(who), "counted from its answer");
    world.pass(1);
    assert!(world.is_ended(who));
}

/// Somebody asks and asks and never reads: it is not served beyond a bound, and closed in the end.
#[test]
fn a_reader_that_never_reads_is_not_served_for_ever() {
    for path in ["/v1/openapi.json", "/v1/stats", "/livez"] {
        let mut world = World::new();
        let (who, other) = (world.http(), world.http());
        world.pipes.set_room(who, 0);
        let requests = spelled(&format!("GET {path}")).repeat(1_000);
        for _ in 0..50 {
            world.send(who, &requests);
        }
        let kept = world.pipes.server.holdings().buffered_bytes;
        assert!(kept < 2 << 20, "{path}: {kept} bytes");
        assert_eq!(world.ask(other, "GET /livez").status, 200);
        world.pass(4_999);
        assert!(!world.is_ended(who), "{path}");
        world.pass(1);
        assert!(world.is_ended(who), "{path}: the write timeout");
        world.finish();
    }
}

/// Who reads again before that is answered in full.
#[test]
fn a_reader_that_reads_late_misses_nothing() {
    let mut world = World::new();
    let who = world.http();
    world.pipes.set_room(who, 0);
    world.send(who, spelled("GET /v1/openapi.json").repeat(30));
    world.pass(4_000);
    world.pipes.set_room(who, usize::MAX);
    world.settle();
    let answers = world.answers(who);
    assert_eq!(answers.len(), 30);
    assert!(answers.iter().all(|it| it.status == 200));
}

/// A subscriber that does not read is closed, and counted; nobody else notices.
#[test]
fn a_stream_that_is_not_read_is_closed_and_counted() {
    let mut world = World::new();
    let (deaf, reader, sender) = (world.http(), world.http(), world.http());
    for who in [deaf, reader] {
        world.say(who, "GET /v1/signals?pattern=news");
        assert!(world.pipes.read(who).starts_with("HTTP/1.1 200 OK\r\n"));
    }
    world.pipes.set_room(deaf, 0);
    let signal = format!(
        "POST /v1/signals/news {{\"payload\":\"{}\"}}",
        "x".repeat(60_000)
    );
    let mut sent = 0;
    while !world.is_ended(deaf) {
        assert_eq!(world.ask(sender, &signal).status, 200);
        assert!(world.pipes.read(reader).len() > 60_000);
        sent += 1;
        assert!(sent < 100, "it is kept for for ever");
    }
    assert!(sent > 2, "some patience");
    assert_eq!(world.ask(sender, &signal).shown(), "200 {\"receivers\":1}");
    let stats = world.ask(sender, "GET /v1/stats").json();
    assert_eq!(stats["totals"]["slow_consumers"], 1);
    let metrics = world.ask(sender, "GET /metrics").body;
    let closed = metrics
        .lines()
        .find(|it| it.contains("slow_consumers") && !it.starts_with('#'));
    assert!(closed.is_some_and(|it| it.ends_with(" 1")), "{closed:?}");
    world.finish();
}

/// Figures are not piled up for somebody who does not read them, and the write timeout ends it.
#[test]
fn figures_are_not_kept_for_who_does_not_read_them() {
    let mut world = World::new();
    let who = world.http();
    world.pipes.set_room(who, 0);
    world.say(who, "GET /v1/stats/stream");
    let first = world.pipes.server.holdings().buffered_bytes;
    assert!(first > 0);
    world.pass(4_999);
    let kept = world.pipes.server.holdings().buffered_bytes;
    assert_eq!(kept, first, "one event and no more");
    world.pass(1);
    assert!(world.is_ended(who));
}

/// A silent stream of either kind is no work until something is due.
#[test]
fn a_silent_stream_lets_the_server_sleep() {
    let mut world = with_read_timeout(5);
    let who = world.http();
    world.say(who, "GET /v1/watch?pattern=x");
    for seconds in [5, 6, 14] {
        world.pass(seconds * 1_000 - world.pipes.now().since(BEGIN) / 1_000_000);
        let next = world.pipes.server.next_deadline().unwrap();
        assert_eq!(next, BEGIN.after(Millis(15_000)), "after {seconds} s");
    }
}
