//! What one decision about bytes costs among 1, 1,000 and 100,000 range locks of one resource, and what it
//! costs to see that a wait for bytes would be for itself.
//!
//! A hundred thousand may cost at most twice what a thousand cost. The table is the same before and after
//! everything that is measured.

use criterion::{BenchmarkId, Criterion};
use latchd::base::{ConnId, Millis};
use latchd::engine::Rules;
use latchd::engine::types::{
    Effect, Input, RangeAsk, RangeRequest, Refusal, Reply, Request, Sharing, Span,
};

use crate::harness::{Harness, LOCK, client, granted};

/// How far apart the locks are. Each is half as long.
const STEP: u64 = 1_024;

pub(crate) fn benches(c: &mut Criterion) {
    for (name, owners) in [("many-owners", 1_000), ("one-owner", 1)] {
        let mut group = c.benchmark_group(format!("engine/range/{name}"));
        for segments in [1, 1_000, 100_000] {
            let mut harness = None;
            let made = || among(segments, owners);
            // In the middle, and in the gap behind it.
            let start = u64::from(segments / 2) * STEP;
            let (held, free) = (span(start, STEP / 2), span(start + STEP * 3 / 4, 8));
            group.bench_function(BenchmarkId::new("test-held", segments), |b| {
                let harness = harness.get_or_insert_with(made);
                b.iter(|| {
                    let told = ask(harness, stranger(), test(held));
                    assert!(matches!(told, Some(Reply::RangeHeld(_))));
                });
            });
            group.bench_function(BenchmarkId::new("test-free", segments), |b| {
                let harness = harness.get_or_insert_with(made);
                b.iter(|| assert_eq!(ask(harness, stranger(), test(free)), Some(Reply::RangeFree)));
            });
            group.bench_function(BenchmarkId::new("set-and-unlock", segments), |b| {
                let harness = harness.get_or_insert_with(made);
                b.iter(|| {
                    let told = ask(harness, stranger(), lock(free, Millis::ZERO));
                    assert_eq!(told, Some(Reply::Done));
                    let told = ask(harness, stranger(), RangeAsk::Unlock { span: free });
                    assert_eq!(told, Some(Reply::Done));
                });
            });
            group.bench_function(BenchmarkId::new("split-and-join", segments), |b| {
                let harness = harness.get_or_insert_with(made);
                let owner = client((segments / 2) % owners);
                let middle = span(start + 100, 8);
                b.iter(|| {
                    let told = ask(harness, owner, RangeAsk::Unlock { span: middle });
                    assert_eq!(told, Some(Reply::Done));
                    let told = ask(harness, owner, lock(middle, Millis::ZERO));
                    assert_eq!(told, Some(Reply::Done));
                });
            });
        }
        group.finish();
    }
    let mut group = c.benchmark_group("engine/range/deadlock");
    // No more than 4,096 wait for bytes at a time, so a chain of ten thousand goes through named locks, too.
    for length in [1, 100, 4_000] {
        let mut harness = None;
        group.bench_function(format!("chain-{length}"), |b| {
            let harness = harness.get_or_insert_with(|| chain(length));
            b.iter(|| {
                let told = ask(harness, client(length), lock(span(0, 1), Millis::MAX));
                assert_eq!(told, Some(Reply::Refused(Refusal::Deadlock)));
            });
        });
    }
    let mut harness = None;
    group.bench_function("mixed-chain-10000", |b| {
        let harness = harness.get_or_insert_with(|| mixed_chain(6_000, 4_000));
        b.iter(|| {
            let who = client(10_000);
            let mut told = harness.ask(who, named(b"held:0")).to_vec();
            // What takes longer than a request may goes on when time passes.
            while told.is_empty() {
                told = harness.pass(Millis(1)).to_vec();
            }
            assert_eq!(
                told,
                [Effect::Reply(who, Reply::Refused(Refusal::Deadlock))]
            );
        });
    });
    group.finish();
}

/// Each of so many waits for the named lock of the next one, and each of so many behind them for the byte of
/// the next one; the last one waits for nothing.
fn mixed_chain(locks: u32, ranges: u32) -> Harness {
    let mut harness = harness();
    let key = |index: u32| format!("held:{index}");
    for index in 0..=locks + ranges {
        let who = client(index);
        if index <= locks {
            granted(harness.ask(who, named(key(index).as_bytes())), who);
        }
        let own = lock(span(index.into(), 1), Millis::ZERO);
        assert_eq!(ask(&mut harness, who, own), Some(Reply::Done));
    }
    for index in (0..locks + ranges).rev() {
        let who = client(index);
        let told = match index < locks {
            true => harness
                .ask(who, named(key(index + 1).as_bytes()))
                .first()
                .cloned(),
            false => {
                let next = lock(span(u64::from(index) + 1, 1), Millis::MAX);
                ask(&mut harness, who, next).map(|it| Effect::Reply(who, it))
            }
        };
        assert_eq!(told, None);
    }
    harness
}

fn named(key: &[u8]) -> Request<'_> {
    Request::Acquire {
        key,
        mode: LOCK,
        wait: Millis::MAX,
        lease: Some(Millis::MAX),
    }
}

fn stranger() -> ConnId {
    client(1_000_000)
}

fn harness() -> Harness {
    Harness::with(Rules {
        ranges_per_resource_max: 0,
        ranges_per_client_max: 0,
        ranges_max: 0,
        waiters_per_key_max: 10_000,
        deadlock_detection: true,
        ..Rules::default()
    })
}

/// So many exclusive locks with gaps between them, dealt out to so many owners.
fn among(segments: u32, owners: u32) -> Harness {
    let mut harness = harness();
    for index in 0..segments {
        let held = span(u64::from(index) * STEP, STEP / 2);
        let told = ask(
            &mut harness,
            client(index % owners),
            lock(held, Millis::ZERO),
        );
        assert_eq!(told, Some(Reply::Done));
    }
    harness
}

/// Each of so many waits for the byte of the next one, and the last one for nothing.
fn chain(length: u32) -> Harness {
    let mut harness = harness();
    for index in 0..=length {
        let own = span(index.into(), 1);
        assert_eq!(
            ask(&mut harness, client(index), lock(own, Millis::ZERO)),
            Some(Reply::Done)
        );
    }
    for index in (0..length).rev() {
        let next = span(u64::from(index) + 1, 1);
        assert_eq!(
            ask(&mut harness, client(index), lock(next, Millis::MAX)),
            None
        );
    }
    harness
}

fn span(start: u64, len: u64) -> Span {
    Span { start, len }
}

fn lock(span: Span, wait: Millis) -> RangeAsk {
    RangeAsk::Lock {
        mode: Sharing::Exclusive,
        span,
        wait,
    }
}

fn test(span: Span) -> RangeAsk {
    RangeAsk::Test {
        mode: Sharing::Exclusive,
        span,
    }
}

/// What is answered; none if it waits.
fn ask(harness: &mut Harness, who: ConnId, ask: RangeAsk) -> Option<Reply> {
    let request = RangeRequest {
        resource: b"vol1:4711",
        owner: b"",
        ask,
    };
    harness.tell(Input::Range(who, None, request));
    match harness.effects.pop() {
        Some(Effect::Reply(_, reply)) => Some(reply),
        other => {
            assert_eq!(other, None);
            None
        }
    }
}
