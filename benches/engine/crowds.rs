//! What happens among many: a lock beside a million others, a thousand leases ending at once, the
//! middle of a long line, a client that hears much.

use std::collections::VecDeque;

use criterion::{BatchSize, Criterion};
use latchd::base::{ConnId, Millis};
use latchd::engine::types::Request;

use crate::desk::{A, Desk, LOCK, client, granted};

const MANY: usize = 1_000;

pub(crate) fn benches(c: &mut Criterion) {
    free_among_held(c);
    leases_ending(c);
    leaving_the_middle(c);
    unsubscribing(c);
}

fn free_among_held(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/lock");
    for held in [1_000, 1_000_000] {
        // Built when it is that bench's turn: a filter does not pay for the others.
        let mut desk = None;
        group.bench_function(format!("free-among-{held}"), |b| {
            let quick = std::env::args().any(|it| it == "--test");
            let held = if quick { held.min(1_000) } else { held };
            let desk = desk.get_or_insert_with(|| Desk::among(held));
            b.iter(|| {
                let token = desk.acquire(A, b"job");
                desk.release(A, b"job", token);
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
            || Desk::among(MANY as u32),
            |mut desk| {
                desk.pass(Millis::from_secs(34));
                assert_eq!(desk.engine.tally().expiries, MANY as u64);
                desk
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Always somebody five thousand places from either end; back to the end as somebody new, so that
/// the line stays as long as it was.
fn leaving_the_middle(c: &mut Criterion) {
    const LINE: u32 = 10_000;
    let mut group = c.benchmark_group("engine/lock");
    let mut built = None;
    group.bench_function(format!("leave-the-middle-of-{LINE}"), |b| {
        let (desk, line) = built.get_or_insert_with(long_line::<LINE>);
        b.iter(|| {
            let who = line.remove(LINE as usize / 2).expect("the line is long");
            desk.engine.disconnect(desk.now, who, &mut desk.effects);
            assert_eq!(desk.engine.counts().waiters, LINE as usize - 1);
            let who = ConnId {
                serial: who.serial + LINE,
                ..who
            };
            join(desk, who);
            line.push_back(who);
        });
    });
    group.finish();
}

fn long_line<const LINE: u32>() -> (Desk, VecDeque<ConnId>) {
    let mut desk = Desk::new();
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::ZERO,
        lease: Some(Millis::MAX),
    };
    granted(desk.ask(A, request), A);
    let line: VecDeque<ConnId> = (2..2 + LINE).map(client).collect();
    for &who in &line {
        join(&mut desk, who);
    }
    (desk, line)
}

fn join(desk: &mut Desk, who: ConnId) {
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::MAX,
        lease: None,
    };
    let effects = desk.ask(who, request);
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
                let mut desk = Desk::new();
                for index in 0..MANY {
                    desk.ask(A, ask(format!("news.{index}").as_bytes()));
                }
                assert_eq!(desk.engine.counts().subscriptions, MANY);
                desk
            };
            b.iter_batched(
                full,
                |mut desk| {
                    desk.engine.disconnect(desk.now, A, &mut desk.effects);
                    assert_eq!(desk.engine.counts().subscriptions, 0);
                    desk
                },
                BatchSize::LargeInput,
            );
        });
        group.finish();
    }
}
