//! What happens among many: a lock beside a million others, a thousand leases ending at once, the
//! middle of a long queue, a client that hears much, a million locks after a restart.

use std::collections::VecDeque;

use criterion::{BatchSize, Criterion};
use latchd::base::{ConnId, Fence, Millis, Token};
use latchd::engine::types::{Input, Record, Request};

use crate::harness::{A, Harness, LOCK, client, granted};

const MANY: usize = 1_000;

pub(crate) fn benches(c: &mut Criterion) {
    free_among_held(c);
    leases_ending(c);
    leaving_the_middle(c);
    unsubscribing(c);
    restoring(c);
}

fn free_among_held(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/lock");
    for held in [1_000, 1_000_000] {
        // Built when it is that bench's turn: a filter does not pay for the others.
        let mut harness = None;
        group.bench_function(format!("free-among-{held}"), |b| {
            let quick = std::env::args().any(|it| it == "--test");
            let held = if quick { held.min(1_000) } else { held };
            let harness = harness.get_or_insert_with(|| Harness::among(held));
            b.iter(|| {
                let token = harness.acquire(A, b"job");
                harness.release(A, b"job", token);
            });
        });
    }
    group.finish();
}

fn leases_ending(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/lock");
    group.sample_size(20);
    group.bench_function(format!("expire-{MANY}"), |b| {
        b.iter_batched(
            || Harness::among(MANY as u32),
            |mut harness| {
                harness.pass(Millis::from_secs(34));
                assert_eq!(harness.engine.tally().expiries, MANY as u64);
                harness
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Always somebody five thousand places from either end; back to the end as somebody new, so that
/// the queue stays as long as it was.
fn leaving_the_middle(c: &mut Criterion) {
    const QUEUE: u32 = 10_000;
    let mut group = c.benchmark_group("engine/lock");
    let mut built = None;
    group.bench_function(format!("leave-the-middle-of-{QUEUE}"), |b| {
        let (harness, queue) = built.get_or_insert_with(long_queue::<QUEUE>);
        b.iter(|| {
            let who = queue.remove(QUEUE as usize / 2).expect("the queue is long");
            harness
                .engine
                .apply(harness.now, Input::Disconnected(who), &mut harness.effects);
            assert_eq!(harness.engine.counts().waiters, QUEUE as usize - 1);
            let who = ConnId {
                serial: who.serial + QUEUE,
                ..who
            };
            join(harness, who);
            queue.push_back(who);
        });
    });
    group.finish();
}

fn long_queue<const QUEUE: u32>() -> (Harness, VecDeque<ConnId>) {
    let mut harness = Harness::new();
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::ZERO,
        lease: Some(Millis::MAX),
    };
    granted(harness.ask(A, request), A);
    let queue: VecDeque<ConnId> = (2..2 + QUEUE).map(client).collect();
    for &who in &queue {
        join(&mut harness, who);
    }
    (harness, queue)
}

fn join(harness: &mut Harness, who: ConnId) {
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::MAX,
        lease: None,
    };
    let effects = harness.ask(who, request);
    assert!(effects.is_empty(), "did not wait: {effects:?}");
}

/// A client leaves that listened to, watched or observed a thousand things.
fn unsubscribing(c: &mut Criterion) {
    type Ask = for<'a> fn(&'a [u8]) -> Request<'a>;
    let kinds: [(&str, Ask); 3] = [
        ("signal", |pattern| {
            let group = b"";
            Request::Listen { pattern, group }
        }),
        ("watch", |pattern| Request::Watch { pattern }),
        ("election", |key| Request::Observe { key }),
    ];
    for (name, ask) in kinds {
        let mut group = c.benchmark_group(format!("engine/{name}"));
        group.sample_size(20);
        group.bench_function(format!("disconnect-{MANY}-heard"), |b| {
            let full = || {
                let mut harness = Harness::new();
                for index in 0..MANY {
                    harness.ask(A, ask(format!("news.{index}").as_bytes()));
                }
                assert_eq!(harness.engine.counts().subscriptions, MANY);
                harness
            };
            b.iter_batched(
                full,
                |mut harness| {
                    harness.leave(A);
                    assert_eq!(harness.engine.counts().subscriptions, 0);
                    harness
                },
                BatchSize::LargeInput,
            );
        });
        group.finish();
    }
}

/// From records in memory to serving, without the disk.
fn restoring(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/restore");
    group.sample_size(10);
    for held in [1_000, 1_000_000] {
        let mut records = Vec::new();
        group.bench_function(format!("held-{held}"), |b| {
            let quick = std::env::args().any(|it| it == "--test");
            let held = if quick { held.min(1_000) } else { held };
            if records.is_empty() {
                records = (1..=held).map(held_lock).collect();
            }
            b.iter_batched(
                Harness::durable,
                |mut harness| {
                    for record in &records {
                        harness.tell(Input::Restore(record));
                    }
                    let may_have_lost = false;
                    harness.tell(Input::Serve { may_have_lost });
                    assert_eq!(harness.engine.counts().holders, records.len());
                    harness
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn held_lock(number: u64) -> Record {
    Record::Granted {
        key: format!("held:{number}").as_bytes().into(),
        mode: LOCK,
        token: Token {
            fence: Fence(number),
            salt: number,
        },
        lease: Millis::from_secs(33),
        client: 1,
        name: None,
        request: Box::default(),
    }
}
