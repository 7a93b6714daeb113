//! Attacks over HTTP: heads and bodies that come a byte at a time or never end, deep pipelines, the
//! longest requests there are, streams that nobody reads, and pages of a million locks.

use std::io;
use std::rc::Rc;

use latchd::wire::http::routes::VALUES_BODY_BYTES_MAX;
use latchd::wire::http::{HEAD_BYTES_MAX, HEADERS_MAX};
use latchd::wire::verbs::{VALUE_BYTES_MAX, Verb};

use crate::hostile::crowd::{Crowd, numbered, one};
use crate::hostile::member::Block;
use crate::run::http::{BEARER, JSON, push};

/// How long the server waits for a head.
const HEAD_NS_MAX: u64 = 5_000_000_000;

/// How many ask, where the attack is not their number.
const ASKERS: usize = 16;

/// Requests of one pipeline.
const DEPTH: usize = 100;

/// Bytes in chunks of one each: as many as there may be lengths and line ends around them.
const CHUNKS: usize = 3_000;

/// Slots of the table of locks that one page looks at.
const SLOTS_PER_PAGE: usize = 4_096;

/// Places for streams that come and leave.
const STREAMS: usize = 256;

/// Streams that stay, and those who scrape, beside those who walk.
const DASHBOARDS: usize = 100;
const SCRAPERS: usize = 4;

/// A byte of a head at a time.
pub(super) fn heads_slow(crowd: &mut Crowd) -> io::Result<()> {
    let mut block = get("/v1/locks/x", "");
    block.bytes.truncate(block.bytes.len() - 2);
    block.bytes.extend_from_slice(b"X-Long: ");
    block.bytes.resize(HEAD_BYTES_MAX - 4, b'x');
    crowd.drip(crowd.size, block, 0)
}

/// A byte of a body at a time.
pub(super) fn bodies_slow(crowd: &mut Crowd) -> io::Result<()> {
    let body = object(VALUES_BODY_BYTES_MAX);
    let block = with_body("PUT /v1/kv/slow", &body);
    let head = block.bytes.len() - body.len();
    crowd.drip(crowd.size, block, head)
}

/// Heads that have begun together and are never finished, so that the time of all is over together.
pub(super) fn heads_unfinished(crowd: &mut Crowd) -> io::Result<()> {
    let mut block = get("/v1/locks/x", "");
    block.bytes.truncate(block.bytes.len() - 2);
    let began_ns = crowd.clock.now_ns();
    crowd.begin_again(crowd.size, block)?;
    crowd.moment_ns = Some(began_ns + HEAD_NS_MAX);
    crowd.count("heads begun", crowd.size as u64);
    Ok(())
}

/// Many requests behind each other, without pause.
pub(super) fn pipelines(crowd: &mut Crowd) -> io::Result<()> {
    let block = repeated(DEPTH, |_| "/v1/locks/x".to_owned());
    crowd.flood(crowd.size, block, true)
}

/// Bodies in chunks of one byte.
pub(super) fn chunks(crowd: &mut Crowd) -> io::Result<()> {
    let mut block = over_http();
    let headers = format!("{JSON}Transfer-Encoding: chunked\r\n");
    push(&mut block.bytes, "POST /v1/counters/c/add", &headers, b"");
    let mut body = vec![b' '; CHUNKS - 11];
    body.extend_from_slice(br#"{"delta":1}"#);
    for byte in body {
        block.bytes.extend_from_slice(b"1\r\n");
        block.bytes.extend_from_slice(&[byte, b'\r', b'\n']);
    }
    block.bytes.extend_from_slice(b"0\r\n\r\n");
    block.requests = 1;
    crowd.flood(crowd.size, block, true)
}

/// The longest bodies, every character of which is spelled in six.
pub(super) fn bodies_large(crowd: &mut Crowd) -> io::Result<()> {
    let body = object(VALUES_BODY_BYTES_MAX);
    crowd.ask_again(crowd.size, with_body("PUT /v1/kv/large", &body))
}

/// As many headers as there may be, in the longest head.
pub(super) fn headers(crowd: &mut Crowd) -> io::Result<()> {
    let each = HEAD_BYTES_MAX / HEADERS_MAX - 2;
    let line = |at: usize| format!("X-{at:0>4}: {:x<1$}\r\n", "", each - 10);
    let headers: String = (0..HEADERS_MAX - 1).map(line).collect();
    crowd.flood(crowd.size, get("/livez", &headers), true)
}

/// Thousands of headers, which are refused; who is refused comes again.
pub(super) fn headers_refused(crowd: &mut Crowd) -> io::Result<()> {
    let headers = "a:b\r\n".repeat(HEAD_BYTES_MAX / 5 - 20);
    crowd.ask_again(crowd.size, get("/livez", &headers))
}

/// All but the last byte of the longest body: half of the strangers show a wrong token, the others
/// none.
pub(super) fn half_bodies(crowd: &mut Crowd) -> io::Result<()> {
    let body = object(VALUES_BODY_BYTES_MAX);
    let without = crowd.size / 2;
    for (count, shown) in [(without, ""), (crowd.size - without, &wrong())] {
        let mut block = over_http();
        let headers = format!("{JSON}{shown}");
        push(&mut block.bytes, "PUT /v1/kv/half", &headers, &body);
        block.bytes.pop(); // the end of the body
        crowd.begin_again(count, block)?;
    }
    Ok(())
}

/// Wrong tokens, so many a second, each on a connection of its own.
pub(super) fn wrong_tokens(crowd: &mut Crowd) -> io::Result<()> {
    let per_s = crowd.size as u64;
    crowd.come_and_leave(
        super::guesses::CONNECTIONS_MAX,
        Some(per_s),
        get("/v1/locks/x", &wrong()),
    );
    Ok(())
}

/// Guesses one after the other on each of many connections, as fast as each is answered or closed.
pub(super) fn guesses(crowd: &mut Crowd) -> io::Result<()> {
    crowd.guess(crowd.size, get("/v1/locks/x", &wrong()))
}

/// Wrong tokens, many behind each other on each connection.
pub(super) fn wrong_tokens_kept(crowd: &mut Crowd) -> io::Result<()> {
    let mut block = over_http();
    for _ in 0..DEPTH {
        push(&mut block.bytes, "GET /v1/locks/x", &wrong(), b"");
        block.requests += 1;
    }
    crowd.flood(crowd.size, block, true)
}

/// Streams of everything that happens, which nobody reads.
pub(super) fn watches_unread(crowd: &mut Crowd) -> io::Result<()> {
    crowd.flood_once(crowd.size, get("/v1/watch?pattern=%3E", ""))?;
    crowd.ask_again(ASKERS, one(Verb::Incr, b"counter", b"1"))
}

/// Streams of long signals, which nobody reads.
pub(super) fn signals_unread(crowd: &mut Crowd) -> io::Result<()> {
    crowd.flood_once(crowd.size, get("/v1/signals?pattern=news", ""))?;
    let payload = vec![b'x'; VALUE_BYTES_MAX - 9];
    crowd.ask_again(ASKERS, one(Verb::Signal, b"news", &payload))
}

/// All pages of very many locks, again and again.
pub(super) fn pages(crowd: &mut Crowd) -> io::Result<()> {
    hold(crowd)?;
    crowd.ask_again(ASKERS, walk(crowd.size, "limit=1000"))
}

/// The same, looking for a name that there is not.
pub(super) fn search(crowd: &mut Crowd) -> io::Result<()> {
    hold(crowd)?;
    crowd.ask_again(ASKERS, walk(crowd.size, "limit=1000&contains=nowhere"))
}

/// Figures for Prometheus.
pub(super) fn scrapes(crowd: &mut Crowd) -> io::Result<()> {
    hold(crowd)?;
    crowd.ask_again(ASKERS, get("/metrics", ""))
}

/// Streams of figures that come and leave as soon as they can.
pub(super) fn figures(crowd: &mut Crowd) -> io::Result<()> {
    hold(crowd)?;
    crowd.come_and_leave(STREAMS, None, get("/v1/stats/stream", ""));
    Ok(())
}

/// What people do who look on: dashboards with their figures and their tables, and Prometheus.
pub(super) fn lookers_on(crowd: &mut Crowd) -> io::Result<()> {
    hold(crowd)?;
    crowd.ask_again(SCRAPERS, get("/metrics", ""))?;
    crowd.ask_again(1, walk(crowd.size, "limit=1000"))?;
    crowd.ask_again(1, walk(crowd.size, "limit=100&contains=nowhere"))?;
    for _ in 0..DASHBOARDS {
        crowd.begin(&Rc::new(get("/v1/stats/stream", "")))?;
    }
    Ok(())
}

/// Holds very many locks.
fn hold(crowd: &mut Crowd) -> io::Result<()> {
    let holder = crowd.set_up("locks held", crowd.size, |at, out| {
        numbered(Verb::Lock, "lock", at, b"0 3600", out);
    })?;
    crowd.keep(holder, true)
}

/// Requests for the pages of so many locks, from the first to the last.
fn walk(locks: usize, query: &str) -> Block {
    let pages = locks.div_ceil(SLOTS_PER_PAGE);
    repeated(pages, |at| {
        let after = at * SLOTS_PER_PAGE + 1;
        format!("/v1/locks?{query}&after={after}")
    })
}

/// A header with a wrong token.
fn wrong() -> String {
    format!("{BEARER}open-barley\r\n")
}

fn over_http() -> Block {
    Block {
        over_http: true,
        ..Block::default()
    }
}

fn get(path: &str, headers: &str) -> Block {
    let mut block = over_http();
    push(&mut block.bytes, &format!("GET {path}"), headers, b"");
    block.requests = 1;
    block
}

fn repeated(count: usize, path: impl Fn(usize) -> String) -> Block {
    let mut block = over_http();
    for at in 0..count {
        push(&mut block.bytes, &format!("GET {}", path(at)), "", b"");
        block.requests += 1;
    }
    block
}

fn with_body(line: &str, body: &[u8]) -> Block {
    let mut block = over_http();
    push(&mut block.bytes, line, JSON, body);
    block.requests = 1;
    block
}

/// A value in an object of so many bytes, every character of it spelled in six.
fn object(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"value":""#.to_vec();
    let count = (bytes - body.len() - 2) / 6;
    body.extend_from_slice(br"\u0061".repeat(count).as_slice());
    body.extend_from_slice(b"\"}");
    body
}
