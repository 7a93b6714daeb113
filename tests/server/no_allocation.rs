//! A steady acquire and release of a known key allocates nothing: not in the engine, and not on the
//! whole way of the bytes through the server. A signal allocates what it says and to whom.
//!
//! Counts what the thread of the test allocates: whoever runs the tests has a thread of its own, which allocates when it
//! likes.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use std::io::{self, ErrorKind};

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Input, Mode, Reply, Request};
use latchd::engine::{Engine, Origin, Rules};
use latchd::server::{Event, Readiness, Server, Settings, Transport};
use latchd::wire::http::{Ask, Decoded, Memo, Reader, answer};

use crate::allocator::allocations;

const WARM_UP: u64 = 100;
const ROUNDS: u64 = 10_000;

#[test]
fn a_steady_acquire_and_release_allocates_nothing() {
    assert!(
        allocations_of(1, |_| drop(Box::new([0; 64]))) > 0,
        "the counter does not count"
    );
    engine_rounds();
    server_rounds();
    signal_rounds();
    http_rounds();
}

/// How many allocations `ROUNDS` rounds make after some to warm up.
fn allocations_of(rounds: u64, mut round: impl FnMut(u64)) -> u64 {
    let before = allocations();
    for index in 0..rounds {
        round(index);
    }
    allocations() - before
}

fn engine() -> Engine {
    Engine::new(
        Rules::default(),
        Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        },
    )
}

fn token_of(effects: &mut Effects) -> Token {
    match effects.drain(..).next() {
        Some(Effect::Reply(_, Reply::Granted { token, .. })) => token,
        other => panic!("not granted: {other:?}"),
    }
}

/// Every kind of hold, with a renewal and a hand-over to somebody who waits.
fn engine_rounds() {
    let mut engine = engine();
    let (a, b) = (ConnId { slot: 0, serial: 1 }, ConnId { slot: 1, serial: 2 });
    let mut effects = Effects::new();
    let mut round = |index: u64| {
        let now = Nanos(index * 1_000_000);
        let keys: [(&[u8], Mode); 3] = [
            (
                b"a key that is longer than fits inline",
                Mode::Slot { limit: 1 },
            ),
            (b"pool", Mode::Slot { limit: 2 }),
            (b"doc", Mode::Write),
        ];
        for (key, mode) in keys {
            let acquire = Request::Acquire {
                key,
                mode,
                wait: Millis(1_000),
                lease: None,
            };
            engine.apply(now, Input::Request(a, acquire), &mut effects);
            let token = Some(token_of(&mut effects));
            engine.apply(
                now,
                Input::Request(
                    a,
                    Request::Renew {
                        key,
                        token,
                        lease: None,
                    },
                ),
                &mut effects,
            );
            effects.clear();
            engine.apply(now, Input::Request(b, acquire), &mut effects);
            let parked = effects.is_empty();
            engine.apply(
                now,
                Input::Request(a, Request::Release { key, token }),
                &mut effects,
            );
            if parked {
                effects.swap_remove(0); // the release's own answer
            }
            let token = Some(token_of(&mut effects));
            engine.apply(
                now,
                Input::Request(b, Request::Release { key, token }),
                &mut effects,
            );
            effects.clear();
        }
        engine.apply(now, Input::Time(u64::MAX), &mut effects);
    };
    allocations_of(WARM_UP, &mut round);
    assert_eq!(
        allocations_of(ROUNDS, |index| round(WARM_UP + index)),
        0,
        "in the engine"
    );
}

/// A signal allocates the list of its recipients and what they are told, and nothing to find them.
fn signal_rounds() {
    let mut engine = engine();
    let (a, b) = (ConnId { slot: 0, serial: 1 }, ConnId { slot: 1, serial: 2 });
    let mut effects = Effects::new();
    for pattern in [&b"orders.eu.7"[..], b"orders.*.7", b"orders.>"] {
        let group = &b""[..];
        let listen = Request::Listen { pattern, group };
        engine.apply(Nanos(1), Input::Request(a, listen), &mut effects);
    }
    let mut round = |_: u64| {
        effects.clear();
        let (channel, payload) = (&b"orders.eu.7"[..], &b"shipped"[..]);
        let signal = Request::Signal { channel, payload };
        engine.apply(Nanos(1), Input::Request(b, signal), &mut effects);
        assert!(matches!(
            effects[..],
            [Effect::Reply(..), Effect::Broadcast(..)]
        ));
    };
    allocations_of(WARM_UP, &mut round);
    assert_eq!(allocations_of(ROUNDS, &mut round), 3 * ROUNDS, "of signals");
}

/// Requests over HTTP are read where they landed, and their answers written where they leave from.
fn http_rounds() {
    let post = |action: &str, body: &str| {
        let length = body.len();
        format!(
            "POST /v1/locks/hotlock/{action} HTTP/1.1\r\nHost: localhost:6389\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let lease = "00000000-0000-002a-9f8e-7d6c5b4a3921";
    let input = [
        post("acquire", "{\"owner_id\":\"client-7\",\"ttl_ms\":800}"),
        post(
            "release",
            &format!("{{\"owner_id\":\"client-7\",\"lease_id\":\"{lease}\",\"fencing_token\":42}}"),
        ),
        "GET /v1/locks/x HTTP/1.1\r\nHost: localhost:6389\r\n\r\n".to_owned(),
    ]
    .concat();
    let token = Token::parse(lease.as_bytes()).unwrap();
    let lease = Millis(800);
    let (mut reader, mut memo) = (Reader::default(), Memo::default());
    let (mut scratch, mut out) = (Vec::new(), Vec::new());
    let mut round = |_: u64| {
        out.clear();
        let mut rest = input.as_bytes();
        while !rest.is_empty() {
            let Decoded::Request(asked) = reader.decode(rest, &mut scratch) else {
                panic!("no request");
            };
            memo.keep(&asked.context, [1, 2]);
            let (used, what) = (asked.used, asked.what.unwrap());
            let reply = match what {
                Ask::Engine { request, .. } => match request {
                    Request::Acquire { .. } => Reply::Granted { token, lease },
                    _ => Reply::Done,
                },
                _ => Reply::Nothing,
            };
            let context = memo.context().unwrap();
            match what {
                Ask::Lease { .. } => answer::lease(&mut out, &context, None),
                _ => answer::reply(&mut out, &context, &reply, &answer::Facts::default()),
            }
            rest = &rest[used..];
        }
    };
    allocations_of(WARM_UP, &mut round);
    assert_eq!(allocations_of(ROUNDS, &mut round), 0, "of HTTP");
}

/// A peer in a fixed piece of memory: one request, one answer. The request comes in parts, one for
/// each read.
struct Exchange {
    request: Vec<u8>,
    /// Where each part ends.
    ends: [usize; PARTS],
    read: usize,
    answer: Vec<u8>,
}

const PARTS: usize = 3;

impl Transport for Exchange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(end) = self.ends.into_iter().find(|&end| end > self.read) else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let rest = &self.request[self.read..end];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn shutdown_write(&mut self) {}

    fn peer(&self) -> String {
        "a test".to_owned()
    }
}

/// `l` in three parts, then `r` in one, from bytes to bytes, each in one turn.
fn server_rounds() {
    let mut server = Server::new(Settings::default(), engine());
    let room = || Vec::with_capacity(256);
    let exchange = Exchange {
        request: room(),
        ends: [0; PARTS],
        read: 0,
        answer: room(),
    };
    let id = server.accept(Nanos(0), exchange).unwrap();
    let readable = Event {
        conn: id,
        readiness: Readiness {
            readable: true,
            ..Readiness::default()
        },
    };
    let mut ask = |now: Nanos, parts: [&[u8]; PARTS], answer: &mut [u8; 64]| {
        let exchange = server.transport_mut(id).unwrap();
        exchange.request.clear();
        exchange.read = 0;
        for (part, end) in parts.into_iter().zip(&mut exchange.ends) {
            exchange.request.extend_from_slice(part);
            *end = exchange.request.len();
        }
        server.turn(&|| now, [readable; PARTS].into_iter(), 0);
        let exchange = server.transport_mut(id).unwrap();
        let count = exchange.answer.len();
        answer[..count].copy_from_slice(&exchange.answer);
        exchange.answer.clear();
        count
    };
    let mut round = |index: u64| {
        let now = Nanos(index * 1_000_000);
        let mut answer = [0; 64];
        let count = ask(now, [b"l\njo", b"b\n10", b"\n"], &mut answer);
        assert_eq!((&answer[..3], count), (&b"ok "[..], 39));
        let mut release = *b"r\njob\n................................\n";
        release[6..38].copy_from_slice(&answer[3..35]);
        let count = ask(now, [&release, b"", b""], &mut answer);
        assert_eq!(&answer[..count], b"ok\n");
    };
    allocations_of(WARM_UP, &mut round);
    assert_eq!(
        allocations_of(ROUNDS, |index| round(WARM_UP + index)),
        0,
        "in the server"
    );
}
