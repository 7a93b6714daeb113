//! What one decision costs: the engine's doors without bytes, sockets or a clock.

#![allow(
    missing_docs,
    reason = "criterion's macros make functions without them"
)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on has to stop")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use latchd::base::{ClientId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Mode, Reply, Request};
use latchd::engine::{Engine, Origin, Rules};

const LOCK: Mode = Mode::Slot { limit: 1 };
const A: ClientId = ClientId { slot: 0, serial: 1 };
const B: ClientId = ClientId { slot: 1, serial: 2 };

/// An engine, its effects, and a clock that moves a microsecond per step.
struct Bench {
    engine: Engine,
    effects: Effects,
    now: Nanos,
}

impl Bench {
    fn new() -> Self {
        let mut salt = 0_u64;
        let chance = Box::new(move || {
            salt = salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
            salt
        });
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            chance,
        };
        let rules = Rules {
            locks_max: 0,
            ..Rules::default()
        };
        Self {
            engine: Engine::new(rules, origin),
            effects: Effects::new(),
            now: Nanos(0),
        }
    }

    /// With this many other locks held, each with its lease.
    fn among(held: u32) -> Self {
        let mut bench = Self::new();
        for index in 0..held {
            let key = format!("held:{index}");
            bench.acquire(
                ClientId {
                    slot: 2 + index % 64,
                    serial: 3 + index % 64,
                },
                key.as_bytes(),
            );
        }
        bench
    }

    fn step(&mut self, client: ClientId, request: Request<'_>) -> Option<Reply> {
        self.now = Nanos(self.now.0 + 1_000);
        self.effects.clear();
        self.engine
            .step(self.now, client, request, &mut self.effects);
        self.effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, reply) => Some(reply.clone()),
            _ => None,
        })
    }

    fn ask(&mut self, client: ClientId, key: &[u8], wait: Millis) -> Option<Reply> {
        self.step(
            client,
            Request::Acquire {
                key,
                mode: LOCK,
                wait,
                lease: None,
            },
        )
    }

    fn acquire(&mut self, client: ClientId, key: &[u8]) -> Token {
        match self.ask(client, key, Millis::ZERO) {
            Some(Reply::Granted { token, .. }) => token,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn release(&mut self, client: ClientId, key: &[u8], token: Token) -> Option<Reply> {
        self.step(
            client,
            Request::Release {
                key,
                token: Some(token),
            },
        )
    }
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    for held in [0, 1_000, 1_000_000] {
        // Built when it is that bench's turn: a filter does not pay for the others.
        let mut bench = None;
        group.bench_function(format!("acquire+release/{held} held"), |b| {
            let held = if std::env::args().any(|it| it == "--test") {
                held.min(1_000)
            } else {
                held
            };
            let bench = bench.get_or_insert_with(|| Bench::among(held));
            b.iter(|| {
                let token = bench.acquire(A, b"job");
                black_box(bench.release(A, b"job", token))
            });
        });
    }
    group.bench_function("try a held key", |b| {
        let mut bench = Bench::new();
        bench.acquire(A, b"job");
        b.iter(|| black_box(bench.ask(B, b"job", Millis::ZERO)));
    });
    group.bench_function("renew", |b| {
        let mut bench = Bench::new();
        let token = Some(bench.acquire(A, b"job"));
        b.iter(|| {
            black_box(bench.step(
                A,
                Request::Renew {
                    key: b"job",
                    token,
                    lease: None,
                },
            ))
        });
    });
    group.bench_function("hand over", |b| {
        let mut bench = Bench::new();
        let mut token = bench.acquire(A, b"job");
        let (mut holder, mut waiter) = (A, B);
        b.iter(|| {
            assert!(bench.ask(waiter, b"job", Millis(1_000)).is_none());
            bench.release(holder, b"job", token);
            let Some(Effect::Reply(_, Reply::Granted { token: next, .. })) = bench.effects.last()
            else {
                panic!("not handed over: {:?}", bench.effects);
            };
            token = *next;
            std::mem::swap(&mut holder, &mut waiter);
        });
    });
    group.bench_function("wait and time out", |b| {
        let mut bench = Bench::new();
        let lease = Some(Millis::MAX);
        bench.step(
            A,
            Request::Acquire {
                key: b"job",
                mode: LOCK,
                wait: Millis::ZERO,
                lease,
            },
        );
        b.iter(|| {
            assert!(bench.ask(B, b"job", Millis(1)).is_none());
            bench.effects.clear();
            let due = bench.now.after(Millis(1));
            bench.engine.expire(due, &mut bench.effects);
            assert_eq!(bench.effects.len(), 1);
        });
    });
    group.finish();
}

fn ends(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.sample_size(20);
    group.bench_function("disconnect with 1000 locks", |b| {
        b.iter_batched(
            || {
                let mut bench = Bench::new();
                for index in 0..1_000 {
                    bench.acquire(A, format!("key:{index}").as_bytes());
                }
                bench.effects.clear();
                bench
            },
            |mut bench| {
                bench.engine.disconnect(bench.now, A, &mut bench.effects);
                bench
            },
            BatchSize::LargeInput,
        );
    });
    group.bench_function("end 1000 leases", |b| {
        b.iter_batched(
            || {
                let mut bench = Bench::new();
                for index in 0..1_000 {
                    bench.acquire(A, format!("key:{index}").as_bytes());
                }
                bench
            },
            |mut bench| {
                bench
                    .engine
                    .expire(bench.now.after(Millis::from_secs(34)), &mut bench.effects);
                bench
            },
            BatchSize::LargeInput,
        );
    });
    group.bench_function("leave the middle of 10000 waiters", |b| {
        let mut bench = Bench::new();
        let lease = Some(Millis::MAX);
        bench.step(
            A,
            Request::Acquire {
                key: b"job",
                mode: LOCK,
                wait: Millis::ZERO,
                lease,
            },
        );
        let client = |index: u32| ClientId {
            slot: 2 + index,
            serial: 3 + index,
        };
        for index in 0..10_000 {
            assert!(bench.ask(client(index), b"job", Millis::MAX).is_none());
        }
        // Always somebody five thousand places from either end; back to the end as somebody new, so
        // that the line stays as long as it was.
        let mut line: std::collections::VecDeque<ClientId> = (0..10_000).map(client).collect();
        let mut serial = 20_000;
        b.iter(|| {
            let who = line.remove(5_000).unwrap();
            bench.engine.disconnect(bench.now, who, &mut bench.effects);
            serial += 1;
            let who = ClientId { serial, ..who };
            assert!(bench.ask(who, b"job", Millis::MAX).is_none());
            line.push_back(who);
        });
    });
    group.finish();
}

criterion_group!(benches, steps, ends);
criterion_main!(benches);
