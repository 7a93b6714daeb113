//! Crowds: those who guess the token, those who make the server keep something for them, and that
//! nobody else pays for either.

use latchd::access::Access;
use latchd::engine::Rules;
use latchd::server::{Host, Settings};

use crate::allocator::live_bytes;
use crate::http_server::world::{World, spelled};

const MIB: usize = 1 << 20;

/// What may be allocated besides: a server without clients, one turn's work, the harness.
const BESIDES: usize = 2 * MIB;

/// Places of a host.
const PLACES: usize = 16;

const GUESSING: Host = Host::V4([192, 0, 2, 1]);
const OTHER: Host = Host::V4([192, 0, 2, 2]);

fn with_token() -> World {
    World::with(Settings {
        access: Access::of_one(b"s3cret"),
        ..Settings::default()
    })
}

/// So many connections from a host, each of which has sent this; not yet heard.
fn crowd(world: &mut World, host: Host, count: usize, request: &str) -> Vec<usize> {
    let connect = |_| {
        let who = world.http_from(host);
        world.pipes.send(who, spelled(request).as_bytes());
        who
    };
    (0..count).map(connect).collect()
}

/// How many were told 401 since the last time; nobody was told anything else.
fn refused(world: &mut World, crowd: &[usize]) -> usize {
    let told: Vec<u16> = crowd
        .iter()
        .flat_map(|&who| world.answers(who))
        .map(|it| it.status)
        .collect();
    assert!(told.iter().all(|it| *it == 401), "{told:?}");
    told.len()
}

const WRONG: &str = "GET /v1/locks/job [Authorization: Bearer guess]";
const RIGHT: &str = "GET /v1/locks/job [Authorization: Bearer s3cret]";

#[test]
fn a_host_has_so_many_guesses_in_a_while_however_many_connections_it_makes() {
    let mut world = with_token();
    let guessing = crowd(&mut world, GUESSING, 1_000, WRONG);
    world.settle();
    let closed = guessing.iter().filter(|&&who| world.is_ended(who)).count();
    assert_eq!(closed, 0, "a close would tell");
    for round in 0..10 {
        world.pass(99);
        assert_eq!(
            refused(&mut world, &guessing),
            0,
            "before its time, round {round}"
        );
        world.pass(1);
        assert_eq!(refused(&mut world, &guessing), PLACES, "round {round}");
    }
    world.pass(5_000);
    assert_eq!(world.pipes.server.connections(), 0);
    let asking = world.http_from(OTHER);
    let stats = world.ask(asking, "GET /v1/stats [Authorization: Bearer s3cret]");
    assert_eq!(stats.json()["totals"]["wrong_secrets"], 1_000);
    world.finish();
}

/// Guesses by both doors are counted together.
#[test]
fn a_host_cannot_guess_by_the_other_door() {
    let mut world = with_token();
    crowd(&mut world, GUESSING, PLACES, WRONG);
    world.settle();
    let line = world.pipes.connect_from(GUESSING);
    world.send(line, "auth\n_\nguess\n");
    assert_eq!(world.pipes.read(line), "", "it waits for a place");
    world.pass(100);
    assert_eq!(world.pipes.read(line), "", "its delay begins");
    world.pass(100);
    assert_eq!(world.pipes.read(line), "error_auth\n");
}

#[test]
fn who_knows_the_token_is_answered_at_once_whoever_guesses() {
    let mut world = with_token();
    let guessing = crowd(&mut world, GUESSING, 200, WRONG);
    world.settle();
    let knowing = crowd(&mut world, GUESSING, 5, RIGHT);
    let others = crowd(&mut world, OTHER, 5, RIGHT);
    let open = crowd(&mut world, GUESSING, 5, "GET /livez");
    world.settle();
    for who in knowing.into_iter().chain(others).chain(open) {
        assert_eq!(world.answer(who).status, 200);
    }
    assert_eq!(refused(&mut world, &guessing), 0);
}

/// A guess costs its connection: nothing behind it is looked at.
#[test]
fn a_connection_has_one_guess() {
    let mut world = with_token();
    let who = world.http_from(GUESSING);
    world.send(who, spelled(WRONG).repeat(100) + &spelled(RIGHT));
    world.pass(100);
    assert_eq!(world.answer(who).status, 401);
    assert!(world.is_ended(who));
    let asking = world.http_from(OTHER);
    let stats = world.ask(asking, "GET /v1/stats [Authorization: Bearer s3cret]");
    assert_eq!(stats.json()["totals"]["wrong_secrets"], 1);
}

/// What is wrong with a request is told only to who may ask.
#[test]
fn who_has_no_token_learns_nothing_of_what_there_is() {
    for request in [
        "GET /v1/locks/never",
        "POST /v1/locks/job/acquire {\"owner_id\":",
        "GET /v1/locks?limit=0",
        "GET /nowhere",
        "PUT /v1/locks/job {}",
        "POST /v1/counters/c/add [Content-Type: text/plain] {}",
    ] {
        let mut world = with_token();
        let who = world.http();
        world.say(who, request);
        assert_eq!(world.pipes.read(who), "", "{request}");
        world.pass(100);
        assert_eq!(world.answer(who).status, 401, "{request}");
    }
}

// ---- memory ----

fn with_bound(memory_max: usize) -> World {
    let mut world = World::with_rules(
        Rules::default(),
        Settings {
            memory_max,
            ..Settings::default()
        },
    );
    world.pipes.skip_checks();
    world
}

#[test]
fn unfinished_bodies_stay_within_the_bound() {
    const BOUND: usize = 8 * MIB;
    let head = spelled("PUT /v1/kv/k [Content-Length: 196608] {");
    let body = "x".repeat(60 * 1024);
    let before = live_bytes();
    let mut world = with_bound(BOUND);
    let slow: Vec<usize> = (0..1_000).map(|_| world.http()).collect();
    for &who in &slow {
        world.send(who, &head);
    }
    for &who in &slow {
        world.send(who, &body);
        // What the server has not read is the system's; here it is the pipe's.
        let kept = world.pipes.server.holdings().buffered_bytes;
        assert!(kept <= BOUND * 13 / 10, "{kept}");
    }
    let unread = slow.iter().filter(|&&it| !world.pipes.peer(it).was_read());
    let unread = unread.count();
    assert!(unread > 0, "all were received");
    let kept = (live_bytes() - before) as usize - unread * 64 * 1024;
    assert!(kept <= BOUND * 13 / 10 + BESIDES, "{kept}");
    let line = world.line();
    let told = world.pipes.ask(line, "ping");
    assert!(
        ["ok\n", "error_memory\n"].contains(&told.as_str()),
        "{told}"
    );
    // Each is late in its time, or in twice that if it was held up by us meanwhile.
    world.pass(11_000);
    assert_eq!(world.pipes.server.holdings().buffered_bytes, 0);
    let who = world.http();
    assert_eq!(world.ask(who, "PUT /v1/kv/k {\"value\":\"v\"}").status, 200);
    world.finish();
    let kept = (live_bytes() - before) as usize;
    assert!(kept <= 16 * MIB, "{kept}");
}

#[test]
fn a_turn_takes_only_so_much_of_long_bodies() {
    let body = format!(r#"{{"value":"{}"}}"#, r"\u0061".repeat(30_000));
    let request = spelled(&format!("PUT /v1/kv/k {body}"));
    let (begun, rest) = request.as_bytes().split_at(request.len() - 1);
    let mut world = World::with(Settings::default());
    world.pipes.skip_checks();
    let crowd: Vec<usize> = (0..64).map(|_| world.http()).collect();
    for &who in &crowd {
        world.pipes.send(who, begun);
    }
    // 11 MiB, of which the system has to provide most.
    let turns = world.pipes.settle();
    assert!((8..20).contains(&turns), "all is there after {turns} turns");
    for &who in &crowd {
        world.pipes.send(who, rest);
    }
    world.settle();
    for &who in &crowd {
        assert_eq!(world.answer(who).status, 200);
    }
}

#[test]
fn idle_connections_stay_within_the_bound() {
    const BOUND: usize = 4 * MIB;
    let before = live_bytes();
    let mut world = with_bound(BOUND);
    let name = "n".repeat(1_000);
    let (mut served, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let who = world.http();
        let request = format!("GET /v1/locks/{name}");
        world.say(who, &request);
        let answers = world.answers(who);
        match answers.first().map(|it| it.status) {
            Some(200) => served += 1,
            Some(503) => refused += 1,
            None if world.is_ended(who) => refused += 1,
            other => panic!("{other:?}"),
        }
        if refused > 100 {
            break;
        }
    }
    assert!(
        served > 500 && refused > 100,
        "{served} served, {refused} refused"
    );
    let kept = (live_bytes() - before) as usize;
    // A pipe of the harness is smaller than a connection.
    assert!(kept <= BOUND * 2 + BESIDES, "{kept} bytes for {served}");
    world.pass(23_000);
    assert_eq!(world.pipes.server.connections(), 0);
    let who = world.http();
    assert_eq!(
        world.ask(who, "GET /livez").status,
        200,
        "there is room again"
    );
    world.finish();
}

#[test]
fn pages_that_nobody_reads_stay_within_the_bound() {
    const BOUND: usize = 8 * MIB;
    for path in ["/v1/openapi.json", "/v1/locks?limit=1000", "/metrics"] {
        let before = live_bytes();
        let mut world = with_bound(BOUND);
        let holder = world.line();
        for nth in 0..1_000 {
            let lock = format!("l lock-{nth:0>100} 0 600");
            assert!(world.pipes.ask(holder, &lock).starts_with("ok "));
        }
        let readers: Vec<usize> = (0..500).map(|_| world.http()).collect();
        let mut most = 0;
        for &who in &readers {
            world.pipes.set_room(who, 0);
            world.send(who, spelled(&format!("GET {path}")).repeat(3));
            most = most.max((live_bytes() - before) as usize);
        }
        assert!(most <= BOUND * 13 / 10 + BESIDES, "{path}: {most}");
        // Short answers go on meanwhile.
        let other = world.http();
        assert_eq!(world.ask(other, "GET /livez").status, 200, "{path}");
        // Those who read are answered, sooner or later; the others are closed in their time.
        for &who in &readers[..10] {
            world.pipes.set_room(who, usize::MAX);
        }
        world.settle();
        for &who in &readers[..10] {
            assert!(!world.answers(who).is_empty(), "{path}");
        }
        world.finish();
    }
}

/// Whatever is asked for, nothing is left of it.
#[test]
fn nothing_is_left_of_those_who_left_in_the_middle() {
    let requests = [
        "POST /v1/locks/job/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000}",
        "POST /v1/semaphores/s/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000,\"limit\":1}",
        "POST /v1/rwlocks/r/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000,\"mode\":\"write\"}",
        "POST /v1/elections/e/elect {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000}",
        "POST /v1/lists/q/pop {\"wait_ms\":60000}",
        "POST /v1/barriers/b/wait {\"count\":9,\"wait_ms\":60000}",
        "GET /v1/watch?pattern=%3E",
        "POST /v1/signals {\"pattern\":\"a\",\"group\":\"g\"}",
        "GET /v1/elections/e/events",
        "GET /v1/stats/stream",
        "GET /v1/openapi.json",
    ];
    let mut world = World::new();
    for request in requests {
        let bytes = spelled(request);
        for cut in [1, bytes.len() / 2, bytes.len() - 1, bytes.len()] {
            for ends in [World::leave, |world: &mut World, who| {
                world.pipes.half_close(who);
                world.settle();
                world.leave(who);
            }] {
                let (first, who) = (world.http(), world.http());
                world.send(first, &bytes);
                world.send(who, &bytes[..cut]);
                ends(&mut world, who);
                ends(&mut world, first);
            }
        }
    }
    assert_eq!(world.pipes.server.connections(), 0);
    world.finish();
}

/// What connections took is counted no longer when they have left.
#[test]
fn memory_is_given_back_by_those_who_left() {
    let mut world = with_bound(64 * MIB);
    let looker = world.http();
    let counted = |world: &mut World| {
        let stats = world.ask(looker, "GET /v1/stats").json();
        stats["totals"]["memory_bytes"].as_u64().unwrap() as usize
    };
    let request = format!("GET /v1/locks/{}", "n".repeat(1_000));
    let come_and_go = |world: &mut World| {
        let crowd: Vec<usize> = (0..200).map(|_| world.http()).collect();
        for &who in &crowd {
            assert_eq!(world.ask(who, &request).status, 200);
        }
        let most = counted(world);
        for who in crowd {
            world.leave(who);
        }
        most
    };
    let most = come_and_go(&mut world);
    let first = counted(&mut world);
    assert!(
        most >= first + 200 * 1_000,
        "their names count: {most}, {first}"
    );
    for _ in 0..5 {
        come_and_go(&mut world);
    }
    assert_eq!(counted(&mut world), first);
}

/// Bodies in which every byte is a chunk, or every character an escape, take much longer than others of
/// their length: a turn reads no more of them than it has time for, which is 80,000 in two
/// milliseconds.
#[test]
fn a_turn_reads_only_so_many_chunks_and_escapes() {
    const EACH: usize = 3_000;
    const PER_TURN_MAX: usize = 80_000;
    let chunks = "1\r\n \r\n".repeat(EACH) + "b\r\n{\"delta\":1}\r\n0\r\n\r\n";
    let chunks = format!(
        "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{chunks}"
    );
    let value = "\\u0061".repeat(EACH);
    let escapes = spelled(&format!("PUT /v1/kv/v {{\"value\":\"{value}\"}}"));
    for request in [chunks, escapes] {
        let mut world = World::new();
        let crowd: Vec<usize> = (0..200).map(|_| world.http()).collect();
        for &who in &crowd {
            world.pipes.send(who, request.repeat(3).as_bytes());
        }
        let (mut answered, mut turns) = (0, 0);
        while answered < 3 * crowd.len() {
            world.pipes.turn();
            let told = crowd.iter().map(|&who| world.answers(who).len());
            answered += told.sum::<usize>();
            turns += 1;
            assert!(turns < 1_000, "only {answered} are answered");
        }
        let most = answered * EACH / turns;
        assert!(most <= PER_TURN_MAX, "{most} in each of {turns} turns");
    }
}
