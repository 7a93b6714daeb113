//! Where a request ends: what two readers could disagree about is refused, and nothing behind it is
//! served; what is well-formed is served however it arrives.
//!
//! The second request of each row counts, so that it shows if it was served.

use crate::http_server::world::{World, spelled};

/// What somebody could smuggle behind another request.
const SMUGGLED: &str = "POST /v1/counters/smuggled/add {\"delta\":1}";

/// A body for the routes that take one.
const BODY: &str = "{\"delta\":1}";

fn smuggled(world: &mut World) -> i64 {
    let looker = world.http();
    let answer = world.ask(looker, "GET /v1/counters/smuggled");
    world.leave(looker);
    answer.json()["value"].as_i64().unwrap()
}

/// Sends bytes in pieces that end at these cuts.
fn send_cut(world: &mut World, who: usize, bytes: &[u8], cuts: &[usize]) {
    let mut start = 0;
    for &end in cuts.iter().chain([&bytes.len()]) {
        world.send(who, &bytes[start..end]);
        start = end;
    }
}

/// A request that cannot be followed gets its status, once, and is the last thing on its connection.
#[track_caller]
fn refused(what: &str, request: &[u8], status: u16) {
    let mut bytes = request.to_vec();
    bytes.extend(spelled(SMUGGLED).bytes());
    let length = bytes.len();
    let everywhere: Vec<usize> = (1..length).collect();
    let mut ways = vec![vec![], vec![request.len()], vec![request.len() / 2]];
    if length < 1_000 {
        ways.push(everywhere);
    }
    for cuts in ways {
        let mut world = World::new();
        let who = world.http();
        send_cut(&mut world, who, &bytes, &cuts);
        let answers = world.answers(who);
        let told: Vec<String> = answers.iter().map(|it| it.shown()).collect();
        assert_eq!(told.len(), 1, "{what}: {told:#?}");
        assert_eq!(answers[0].status, status, "{what}: {told:?}");
        assert_eq!(answers[0].header("Connection"), Some("close"), "{what}");
        assert!(world.is_ended(who), "{what}: the connection goes on");
        assert_eq!(smuggled(&mut world), 0, "{what}: the second was served");
        world.finish();
    }
}

/// A head with this in place of a header.
fn with_header(header: &str) -> Vec<u8> {
    let head = "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\n";
    format!("{head}Content-Type: application/json\r\n{header}\r\n\r\n{BODY}").into_bytes()
}

#[test]
fn a_length_that_is_not_one_is_refused() {
    for header in [
        "Content-Length: 11\r\nContent-Length: 12",
        "Content-Length: 11\r\nContent-Length: 11",
        "Content-Length: 11\r\ncontent-length: 0",
        "Content-Length: +11",
        "Content-Length: -1",
        "Content-Length: 11, 11",
        "Content-Length: 0x0b",
        "Content-Length: 1 1",
        "Content-Length: 11 ;",
        "Content-Length:",
        "Content-Length: 1.1",
    ] {
        refused(header, &with_header(header), 400);
    }
    for header in [
        "Content-Length: 65537",
        "Content-Length: 18446744073709551627",
    ] {
        refused(header, &with_header(header), 413);
    }
}

#[test]
fn two_ways_to_say_the_length_are_refused() {
    for header in [
        "Content-Length: 11\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 11",
    ] {
        refused(header, &with_header(header), 400);
    }
    // Well-formed by either of the two, so that only their being two is wrong.
    let chunks = "b\r\n{\"delta\":1}\r\n0\r\n\r\n";
    for length in [chunks.len(), 0, 5] {
        let head = "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
        let request = format!("{head}Content-Length: {length}\r\n\r\n{chunks}");
        refused("both, and chunks", request.as_bytes(), 400);
    }
    let twice = "Transfer-Encoding: chunked\r\ntransfer-encoding: chunked";
    refused(twice, &with_header(twice), 501);
    for coding in [
        "gzip",
        "chunked, gzip",
        "gzip, chunked",
        "identity",
        "xchunked",
        "\"chunked\"",
    ] {
        let header = format!("Transfer-Encoding: {coding}");
        refused(&header, &with_header(&header), 501);
    }
    let old =
        "POST /v1/counters/c/add HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    refused("chunks in HTTP/1.0", old.as_bytes(), 400);
}

#[test]
fn odd_chunks_are_refused() {
    let head = "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "g\r\n{}\r\n0\r\n\r\n",
        "+b\r\n{\"delta\":1}\r\n0\r\n\r\n",
        "-b\r\n{\"delta\":1}\r\n0\r\n\r\n",
        "0xb\r\n{\"delta\":1}\r\n0\r\n\r\n",
        " b\r\n{\"delta\":1}\r\n0\r\n\r\n",
        "b \r\n{\"delta\":1}\r\n0\r\n\r\n",
        "b;name=value\r\n{\"delta\":1}\r\n0\r\n\r\n",
        "b\n{\"delta\":1}\r\n0\r\n\r\n",
        "b\r\n{\"delta\":1}\n0\r\n\r\n",
        "b\r\n{\"delta\":1}x\r\n0\r\n\r\n",
        "b\r\n{\"delta\":1}\r\n0\r\nTrailer: x\r\n\r\n",
        "\r\n\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000000\r\n",
    ] {
        refused(chunks, format!("{head}{chunks}").as_bytes(), 400);
    }
    for chunks in ["10001\r\n", "fffffff\r\n"] {
        refused(chunks, format!("{head}{chunks}").as_bytes(), 413);
    }
}

#[test]
fn odd_heads_are_refused() {
    for (what, head, status) in [
        (
            "bare LF in the head",
            "GET /livez HTTP/1.1\nHost: localhost\n\n",
            400,
        ),
        (
            "one bare LF",
            "GET /livez HTTP/1.1\r\nHost: localhost\n\r\n",
            400,
        ),
        (
            "a lone CR",
            "GET /livez HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
            400,
        ),
        (
            "blank before the colon",
            "GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n",
            400,
        ),
        (
            "a folded header",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
            400,
        ),
        (
            "a folded first header",
            "GET /livez HTTP/1.1\r\n Host: localhost\r\n\r\n",
            400,
        ),
        (
            "no colon",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nnothing\r\n\r\n",
            400,
        ),
        (
            "no name",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
            400,
        ),
        ("no Host", "GET /livez HTTP/1.1\r\nX: y\r\n\r\n", 400),
        (
            "two Hosts",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n",
            400,
        ),
        (
            "NUL in a value",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
            400,
        ),
        (
            "two blanks",
            "GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        (
            "a blank in the target",
            "GET /live z HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        (
            "an asterisk",
            "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        (
            "a tunnel",
            "CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            400,
        ),
        ("no version", "GET /livez\r\n\r\n", 400),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (
            "HTTP/1.2",
            "GET /livez HTTP/1.2\r\nHost: localhost\r\n\r\n",
            505,
        ),
        (
            "another expectation",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n\r\n",
            417,
        ),
        ("the line protocol", "l\njob\n10\n", 400),
    ] {
        refused(what, head.as_bytes(), status);
    }
}

#[test]
fn a_head_and_a_body_have_a_length_at_most() {
    let long = |length: usize| {
        format!(
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
            "x".repeat(length)
        )
    };
    let rest = long(0).len();
    refused(
        "16 KiB and a byte",
        long(16 * 1024 - rest + 1).as_bytes(),
        431,
    );
    refused("64 KiB", long(64 * 1024).as_bytes(), 431);
    let many = "X: y\r\n".repeat(64);
    let many = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    refused("65 headers", many.as_bytes(), 431);
    let endless = format!("GET /{}", "x".repeat(20 * 1024));
    refused("a target without end", endless.as_bytes(), 431);

    let mut world = World::new();
    let who = world.http();
    world.send(who, long(16 * 1024 - rest));
    assert_eq!(world.answer(who).status, 200, "16 KiB to the byte");
    world.send(
        who,
        format!(
            "GET /livez HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            "X: y\r\n".repeat(63)
        ),
    );
    assert_eq!(world.answer(who).status, 200, "64 headers");
    let padded = format!("{{\"delta\":1}}{}", " ".repeat(64 * 1024 - BODY.len()));
    assert_eq!(
        world
            .ask(who, &format!("POST /v1/counters/c/add {padded}"))
            .status,
        200
    );
    let value = |length: usize| format!("PUT /v1/kv/k {{\"value\":\"{}\"}}", "v".repeat(length));
    assert_eq!(world.ask(who, &value(65_536)).status, 200);
    let answer = world.ask(who, &value(65_537));
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (413, "BAD_VALUE")
    );
    let escaped = format!("PUT /v1/kv/k {{\"value\":\"{}\"}}", "\\n".repeat(100_000));
    assert_eq!(world.ask(who, &escaped).reason(), "TOO_LONG");
    assert!(world.is_ended(who), "whose body was not read");
}

/// What is wrong with the meaning of a request, and not with its framing, leaves the connection.
#[test]
fn a_request_that_is_only_wrong_is_followed_by_the_next() {
    let deep = "[".repeat(10_000);
    let objects = "{\"delta\":".repeat(5_000);
    let rows: [(&str, &str, u16); 17] = [
        (
            "POST /v1/counters/c/add",
            &format!("{{\"delta\":{deep}"),
            400,
        ),
        ("POST /v1/counters/c/add", &objects, 400),
        ("POST /v1/counters/c/add", &deep, 400),
        (
            "POST /v1/counters/c/add",
            "{\"delta\":1,\"delta\":2,\"DELTA\":3}",
            200,
        ),
        (
            "POST /v1/counters/c/add",
            "{\"delta\":1} and {\"more\":[",
            200,
        ),
        ("POST /v1/counters/c/add", "{\"delta\":1e0}", 400),
        ("POST /v1/counters/c/add", "{\"delta\":01}", 400),
        ("POST /v1/counters/c/add", "{'delta':1}", 400),
        ("POST /v1/counters/c/add", "\u{feff}{\"delta\":1}", 400),
        ("POST /v1/counters/c/add", "{\"delta\":1,}", 400),
        ("GET /v1/locks/a%00b", "", 400),
        ("GET /v1/locks/a%2Fb", "", 404),
        ("GET /v1/locks/a%252Fb", "", 200),
        ("GET /v1/locks/a%2", "", 400),
        ("GET /v1/locks/a%zz", "", 400),
        ("GET /v1/locks/../../etc/passwd", "", 404),
        ("GET http://localhost/livez", "", 200),
    ];
    for (line, body, status) in rows {
        let mut world = World::new();
        let who = world.http();
        let request = spelled(format!("{line} {body}").trim_end());
        world.send(who, request + &spelled(SMUGGLED));
        let answers = world.answers(who);
        let statuses: Vec<u16> = answers.iter().map(|it| it.status).collect();
        let shown = &body[..body.len().min(50)];
        assert_eq!(statuses, [status, 200], "{line} {shown}");
        assert_eq!(smuggled(&mut world), 1);
        world.finish();
    }
}

/// The last of two equal keys counts, and what stands behind the object does not.
#[test]
fn the_last_of_equal_fields_counts() {
    let mut world = World::new();
    let who = world.http();
    let body = "{\"delta\":1,\"Delta\":2,\"DELTA\":3}{\"delta\":100}";
    let answer = world.ask(who, &format!("POST /v1/counters/c/add {body}"));
    assert_eq!(answer.shown(), "200 {\"name\":\"c\",\"value\":3}");
}

// ---- what is well-formed, however it arrives ----

/// A conversation of every framing there is, and what it must be answered.
fn conversation() -> (Vec<u8>, Vec<&'static str>) {
    let chunked = "POST /v1/counters/c/add HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
                   4\r\n{\"de\r\n07\r\nlta\":5}\r\n0\r\n\r\n";
    let empty = "\r\nPOST /v1/lists/q/pop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let text = [
        spelled("POST /v1/counters/c/add {\"delta\":2}"),
        spelled("GET /v1/counters/c"),
        chunked.to_owned(),
        empty.to_owned(),
        spelled("POST /v1/locks/job/acquire {\"owner_id\":\"\",\"ttl_ms\":1}"),
        spelled("GET /livez [Connection: close]"),
        spelled(SMUGGLED),
    ];
    let answers = vec![
        "200 {\"name\":\"c\",\"value\":2}",
        "200 {\"name\":\"c\",\"value\":2}",
        "200 {\"name\":\"c\",\"value\":7}",
        "200 {\"value\":null}",
        "400 {\"error\":\"owner_id required\"}",
        "200 {\"status\":\"ok\"}",
    ];
    (text.concat().into_bytes(), answers)
}

#[test]
fn requests_may_be_cut_anywhere_and_come_at_once() {
    let (bytes, expected) = conversation();
    let all: Vec<usize> = (1..bytes.len()).collect();
    let pairs = all.iter().map(|&cut| vec![cut]);
    for cuts in pairs.chain([vec![], all.clone()]) {
        let mut world = World::new();
        let who = world.http();
        send_cut(&mut world, who, &bytes, &cuts);
        let told: Vec<String> = world.answers(who).iter().map(|it| it.shown()).collect();
        assert_eq!(told, expected, "cut at {cuts:?}");
        assert!(world.is_ended(who));
        assert_eq!(smuggled(&mut world), 0, "served behind the last");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_also_if_one_waits() {
    let mut world = World::new();
    let (holder, who) = (world.http(), world.http());
    let lease = world.acquire(holder, "job", "holder", 60_000);
    let wait = "POST /v1/locks/job/acquire {\"owner_id\":\"me\",\"ttl_ms\":1000,\"wait_ms\":60000}";
    let requests = [
        spelled("POST /v1/counters/c/add {\"delta\":1}"),
        spelled(wait),
        spelled("POST /v1/counters/c/add {\"delta\":1}"),
        spelled("GET /v1/locks/job"),
    ];
    world.send(who, requests.concat());
    assert_eq!(
        world.answer(who).shown(),
        "200 {\"name\":\"c\",\"value\":1}"
    );
    world.pass(20_000);
    assert_eq!(world.answers(who), [], "nothing overtakes");
    assert_eq!(world.release(holder, &lease).status, 200);
    let answers = world.answers(who);
    let [granted, counted, seen] = &answers[..] else {
        panic!("{answers:#?}");
    };
    assert_eq!(granted.json()["acquired"], true);
    assert_eq!(counted.json()["value"], 2);
    assert_eq!(seen.json()["owner_id"], "me");
    world.finish();
}

/// Thousands of requests in one piece are all answered, and nobody else waits for all of them.
#[test]
fn a_long_pipeline_is_answered_in_full() {
    let mut world = World::new();
    let (who, other) = (world.http(), world.http());
    let requests = spelled("POST /v1/counters/c/add {\"delta\":1}").repeat(2_000);
    world.pipes.send(who, requests.as_bytes());
    world.pipes.send(other, spelled("GET /livez").as_bytes());
    world.pipes.turn();
    assert_eq!(world.answer(other).status, 200, "in the same turn");
    world.settle();
    let answers = world.answers(who);
    let counted = answers
        .iter()
        .map(|it| it.json()["value"].as_u64().unwrap());
    assert!(counted.eq(1..=2_000));
}

#[test]
fn a_sender_that_asks_first_is_told_to_go_on() {
    let mut world = World::new();
    let who = world.http();
    let request = spelled(&format!(
        "POST /v1/counters/c/add [Expect: 100-continue] {BODY}"
    ));
    let (head, body) = request.split_at(request.len() - BODY.len());
    world.send(who, head);
    assert_eq!(world.pipes.read(who), "HTTP/1.1 100 Continue\r\n\r\n");
    world.send(who, &body[..3]);
    assert_eq!(world.pipes.read(who), "", "once");
    world.send(who, &body[3..]);
    assert_eq!(world.answer(who).status, 200);
    // Who does not wait for it, needs none.
    world.send(who, &request);
    assert_eq!(world.answer(who).status, 200);
    // Nobody is told to go on with what will be refused.
    let long = "[Expect: 100-continue] [Content-Length: 65537] {";
    let long = spelled(&format!("POST /v1/counters/c/add {long}"));
    world.send(who, &long[..long.len() - 1]);
    assert_eq!(world.answer(who).status, 413);
    // HTTP/1.0 does not know of it.
    let old = world.http();
    let request = spelled(&format!(
        "POST /v1/counters/c/add [HTTP/1.0] [Expect: 100-continue] {BODY}"
    ));
    world.send(old, &request[..request.len() - BODY.len()]);
    assert_eq!(world.pipes.read(old), "");
    world.send(old, BODY);
    assert_eq!(world.answer(old).status, 200);
}

#[test]
fn the_connection_stays_or_ends_as_the_request_says() {
    for (headers, stays, says) in [
        ("", true, None),
        ("[Connection: keep-alive]", true, None),
        ("[Connection: close]", false, Some("close")),
        ("[Connection: Close]", false, Some("close")),
        ("[Connection: x, close]", false, Some("close")),
        ("[HTTP/1.0]", false, Some("close")),
        ("[HTTP/1.0] [Host]", false, Some("close")),
        (
            "[HTTP/1.0] [Connection: keep-alive]",
            true,
            Some("keep-alive"),
        ),
    ] {
        let mut world = World::new();
        let who = world.http();
        world.say(who, &format!("GET /livez {headers}"));
        let answer = world.answer(who);
        assert_eq!(answer.status, 200, "{headers}");
        assert_eq!(answer.header("Connection"), says, "{headers}");
        assert_eq!(world.is_ended(who), !stays, "{headers}");
    }
}

#[test]
fn head_is_answered_as_get_without_its_body() {
    let mut world = World::new();
    let who = world.http();
    for path in [
        "/livez",
        "/v1/counters/c",
        "/v1/locks",
        "/v1/who/x",
        "/",
        "/v1/openapi.json",
    ] {
        world.say(who, &format!("GET {path}"));
        let get = world.answer(who);
        world.say(who, &format!("HEAD {path}"));
        let text = world.pipes.read(who);
        let (head, rest) = crate::http_server::world::Answer::read(&text, true);
        assert_eq!(rest, "", "{path}");
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(
            head.header("Content-Length"),
            get.header("Content-Length"),
            "{path}"
        );
    }
}
