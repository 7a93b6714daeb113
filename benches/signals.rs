//! What a signal costs as subscriptions grow from ten to a hundred thousand, and what fan-out costs.
//!
//! Finding the hearers goes through a tree of tokens, so the first figures should hardly move: what
//! grows is memory, not the work per signal.

#![allow(
    missing_docs,
    reason = "criterion's macros make functions without them"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{ClientId, Nanos};
use latchd::engine::types::{Effects, Request};
use latchd::engine::{Engine, Origin, Rules};

const SPEAKER: ClientId = ClientId { slot: 0, serial: 1 };

fn client(index: u32) -> ClientId {
    ClientId {
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
            chance: Box::new(|| 7),
        },
    )
}

fn listen(engine: &mut Engine, index: u32, pattern: &str) {
    let (pattern, group) = (pattern.as_bytes(), &b""[..]);
    let request = Request::Listen { pattern, group };
    engine.step(Nanos(0), client(index), request, &mut Effects::new());
}

fn sizes() -> Vec<u32> {
    let quick = std::env::args().any(|it| it == "--test");
    if quick {
        vec![10, 100]
    } else {
        vec![10, 1_000, 10_000, 100_000]
    }
}

/// One hearer by name and one by wildcard, among many who listen to something else.
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
                engine.step(Nanos(0), SPEAKER, request, &mut effects);
                black_box(&effects);
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
                engine.step(Nanos(0), SPEAKER, request, &mut effects);
                black_box(&effects);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, matching, fan_out);
criterion_main!(benches);
