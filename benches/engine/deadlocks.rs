//! What it costs to see that a request would wait for itself: at the end of a chain, and at the end of a
//! long queue. The request is refused, so the table stays as it is and the same is measured every time.

use criterion::Criterion;
use latchd::base::{ConnId, Millis};
use latchd::engine::Rules;
use latchd::engine::types::{Effect, Refusal, Reply, Request};

use crate::harness::{Harness, LOCK, client, granted};

pub(crate) fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/deadlock");
    for length in [1, 100, 10_000] {
        let mut harness = None;
        group.bench_function(format!("chain-{length}"), |b| {
            let harness = harness.get_or_insert_with(|| chain(length));
            b.iter(|| refuse(harness, client(length), b"held:0"));
        });
    }
    let mut harness = None;
    group.bench_function("queue-10000", |b| {
        let harness = harness.get_or_insert_with(|| queue(10_000));
        b.iter(|| refuse(harness, client(1), b"held:0"));
    });
    group.finish();
}

fn harness() -> Harness {
    Harness::with(Rules {
        deadlock_detection: true,
        ..Rules::default()
    })
}

/// Each of so many waits for what the next one holds, and the last one for what is held by one who waits
/// for nothing.
fn chain(length: u32) -> Harness {
    let mut harness = harness();
    for index in 0..=length {
        hold(&mut harness, index);
    }
    for index in (0..length).rev() {
        wait(&mut harness, client(index), index + 1);
    }
    harness
}

/// One holds what so many wait for, and waits for another.
fn queue(length: u32) -> Harness {
    let mut harness = harness();
    hold(&mut harness, 0);
    hold(&mut harness, 1);
    for index in 0..length {
        wait(&mut harness, client(2 + index), 0);
    }
    wait(&mut harness, client(0), 1);
    harness
}

fn hold(harness: &mut Harness, index: u32) {
    let key = format!("held:{index}");
    let request = acquire(key.as_bytes());
    granted(harness.ask(client(index), request), client(index));
}

fn wait(harness: &mut Harness, who: ConnId, index: u32) {
    let key = format!("held:{index}");
    assert_eq!(harness.ask(who, acquire(key.as_bytes())), []);
}

fn acquire(key: &[u8]) -> Request<'_> {
    Request::Acquire {
        key,
        mode: LOCK,
        wait: Millis::MAX,
        lease: Some(Millis::MAX),
    }
}

fn refuse(harness: &mut Harness, who: ConnId, key: &[u8]) {
    let told = Reply::Refused(Refusal::Deadlock);
    assert_eq!(harness.ask(who, acquire(key)), [Effect::Reply(who, told)]);
}
