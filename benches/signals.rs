//! What a signal costs as subscriptions grow from ten to a hundred thousand, and what fan-out
//! costs.
//!
//! Finding the recipients takes a lookup for each shape of patterns, so the first figures should
//! hardly move: what grows is memory, not the work per signal. What hostile subscriptions can add
//! is in "signal among hostile subscriptions".

#![allow(
    missing_docs,
    reason = "criterion's macros make functions without them"
)]

use std::hint::black_box;
use std::io::{self, ErrorKind};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{ConnId, Nanos};
use latchd::engine::types::{Effect, Effects, Input, Reply, Request};
use latchd::engine::{Engine, LONG_SHAPES_MAX, Origin, Rules};
use latchd::server::{Event, Readiness, Server, Settings, Transport};

const SPEAKER: ConnId = ConnId { slot: 0, serial: 1 };

fn client(index: u32) -> ConnId {
    ConnId {
        slot: 1 + index,
        serial: 2 + index,
    }
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

fn listen(engine: &mut Engine, index: u32, pattern: &str) {
    join(engine, index, pattern, "");
}

fn join(engine: &mut Engine, index: u32, pattern: &str, group: &str) {
    let (pattern, group) = (pattern.as_bytes(), group.as_bytes());
    let request = Request::Listen { pattern, group };
    engine.apply(
        Nanos(0),
        Input::Request(client(index), request),
        &mut Effects::new(),
    );
}

/// How many the speaker was told will hear it.
fn recipients(effects: &Effects) -> i64 {
    match effects.first() {
        Some(Effect::Reply(SPEAKER, Reply::Number(recipients))) => *recipients,
        other => panic!("not answered: {other:?}"),
    }
}

fn sizes() -> Vec<u32> {
    let quick = std::env::args().any(|it| it == "--test");
    if quick {
        vec![10, 100]
    } else {
        vec![10, 1_000, 10_000, 100_000]
    }
}

/// One recipient by name and one by wildcard, among many who listen to something else.
fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("signal among subscriptions");
    for size in sizes() {
        let mut engine = engine();
        for index in 0..size {
            match index % 4 {
                0 => listen(&mut engine, index, &format!("orders.eu.{index}")),
                1 => listen(&mut engine, index, &format!("orders.*.{index}.done")),
                2 => listen(&mut engine, index, &format!("stock.{index}.>")),
                _ => listen(&mut engine, index, &format!("{index}.*.*")),
            }
        }
        listen(&mut engine, size, "orders.eu.42x");
        listen(&mut engine, size + 1, "orders.*.42x");
        let mut effects = Effects::new();
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                effects.clear();
                let (channel, payload) = (&b"orders.eu.42x"[..], &b"shipped"[..]);
                let request = Request::Signal { channel, payload };
                engine.apply(Nanos(0), Input::Request(SPEAKER, request), &mut effects);
                assert_eq!(recipients(&effects), 2);
            });
        });
    }
    group.finish();
}

/// Everybody hears.
fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("signal fan-out");
    for size in sizes() {
        let mut engine = engine();
        for index in 0..size {
            listen(&mut engine, index, "news");
        }
        let mut effects = Effects::new();
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                effects.clear();
                let request = Request::Signal {
                    channel: b"news",
                    payload: b"hello",
                };
                engine.apply(Nanos(0), Input::Request(SPEAKER, request), &mut effects);
                assert_eq!(recipients(&effects), i64::from(size));
            });
        });
    }
    group.finish();
}

/// What a client can make a signal cost, with as many connections as it likes.
fn hostile(c: &mut Criterion) {
    let quick = sizes().len() == 2;
    let mut group = c.benchmark_group("signal among hostile subscriptions");
    let mut time = |what: &str, channel: &str, mut engine: Engine| {
        let mut effects = Effects::new();
        group.bench_function(what, |b| {
            b.iter(|| {
                effects.clear();
                let (channel, payload) = (channel.as_bytes(), &b"x"[..]);
                let request = Request::Signal { channel, payload };
                engine.apply(Nanos(0), Input::Request(SPEAKER, request), &mut effects);
                recipients(&effects)
            });
        });
    };

    // Every arrangement of `a` and `*` over 17 tokens, most of which are refused.
    let mut table = engine();
    for index in 0..if quick { 1 << 6 } else { 1_u32 << 17 } {
        listen(&mut table, index / 64, &stars(17, index.into()));
    }
    time("2^17 of a and *", &stars(17, 0), table);

    // Every shape that may exist and fits a long name; the long ones have as many runs of stars as
    // possible. First so that none matches, then so that all do.
    for (what, token) in [("no shape matches", "b"), ("every shape matches", "a")] {
        let mut table = engine();
        let (mut index, long) = (0, if quick { 16 } else { LONG_SHAPES_MAX });
        for tokens in 0..8 {
            for mask in 0..1_u128 << tokens {
                listen(
                    &mut table,
                    index / 64,
                    &format!("{}.>", stars(tokens, mask)),
                );
                index += 1;
            }
        }
        for nth in 0..long {
            // The lowest bits tell them apart.
            let mask = ((u128::MAX / 3) << 12) | u128::from(nth);
            listen(&mut table, index / 64, &format!("{}.>", stars(126, mask)));
            index += 1;
        }
        time(what, &vec![token; 127].join("."), table);
    }

    let mut table = engine();
    for index in 0..if quick { 1 << 7 } else { 1_u32 << 20 } {
        join(&mut table, index / 64, "a", &index.to_string());
    }
    time("2^20 groups", "a", table);
    group.finish();
}

/// So many tokens, `*` where the mask has a bit and `a` where it has none.
fn stars(tokens: u32, mask: u128) -> String {
    let step = |at| if mask >> at & 1 == 1 { "*" } else { "a" };
    (0..tokens).map(step).collect::<Vec<_>>().join(".")
}

/// A connection that takes everything, and says what it is given to say.
struct Sink {
    says: &'static [u8],
    heard_bytes: usize,
}

impl Transport for Sink {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.says.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..self.says.len()].copy_from_slice(self.says);
        Ok(std::mem::take(&mut self.says).len())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard_bytes += black_box(bytes).len();
        Ok(bytes.len())
    }

    fn shutdown_write(&mut self) {}

    fn peer(&self) -> String {
        "a bench".to_owned()
    }
}

/// From the bytes of a signal to the bytes for everyone who listens; all but the kernel.
fn through_the_server(c: &mut Criterion) {
    let mut group = c.benchmark_group("signal fan-out through the server");
    for size in sizes().into_iter().filter(|&size| size <= 10_000) {
        let mut server = Server::new(Settings::default(), engine());
        let readiness = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let say = |server: &mut Server<Sink>, conn, says| {
            if let Some(sink) = server.transport_mut(conn) {
                sink.says = says;
            }
            let event = Event { conn, readiness };
            server.turn(&|| Nanos(1), [event].into_iter(), 0);
        };
        let mut accept = |says| {
            let sink = Sink {
                says: b"",
                heard_bytes: 0,
            };
            let id = server.accept(Nanos(1), sink).expect("there is room");
            say(&mut server, id, says);
            id
        };
        let speaker = accept(b"");
        let listeners: Vec<ConnId> = (0..size).map(|_| accept(b"listen\nnews\n\n")).collect();
        let last = listeners[listeners.len() - 1];
        let mut expected = b"ok\n".len();
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                say(&mut server, speaker, b"signal\nnews\nhello\n");
                expected += b"sig news hello\n".len();
                let heard = server.transport_mut(last).map(|it| it.heard_bytes);
                assert_eq!(heard, Some(expected));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, matching, hostile, fan_out, through_the_server);
criterion_main!(benches);
