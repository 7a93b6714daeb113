//! What the journal costs: the loop's share of a record, and a start with very much held.
//!
//! The disk's share is not measured here, because it is the disk's; `latch-load` does.

#![allow(
    clippy::unwrap_used,
    reason = "a bench whose directory cannot be made has to fail"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latchd::base::{Fence, Millis, Nanos, Token};
use latchd::engine::types::{Mode, Record};
use latchd::key::Key;
use latchd::store::{Batch, Beginning, Clocks, Durability, Files, SEGMENT_BYTES, begin};

criterion_group!(benches, append, start);
criterion_main!(benches);

const CLOCKS: Clocks = Clocks {
    now: Nanos(0),
    wall_ms: 1_800_000_000_000,
};

fn granted(number: u64) -> Record {
    Record::Granted {
        key: Key::from(format!("job-{number:08}").as_bytes()),
        mode: Mode::Slot { limit: 1 },
        token: Token {
            fence: Fence(number),
            salt: number,
        },
        lease: Millis(33_000),
        client: 1,
        name: None,
        request: Box::default(),
    }
}

/// One record among the 64 of a turn.
fn append(c: &mut Criterion) {
    let mut group = c.benchmark_group("append");
    let ended = Record::Ended {
        key: Key::from(&b"job-00000001"[..]),
        fence: Fence(1),
    };
    for (name, record) in [("granted", granted(1)), ("ended", ended)] {
        let mut batch = Batch::default();
        let mut number = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                number += 1;
                batch.push(7, number, black_box(&record), || CLOCKS);
                if number % 64 == 0 {
                    black_box(&batch);
                    batch.clear_and_keep(1 << 20);
                }
            });
        });
    }
    group.finish();
}

/// Reading and checking a directory, and decoding its records: without the engine's share.
fn start(c: &mut Criterion) {
    let smoke = std::env::args().any(|argument| argument == "--test");
    let held: u64 = if smoke { 1_000 } else { 1_000_000 };
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let beginning = Beginning {
            durability: Durability::Async,
            segment_bytes: SEGMENT_BYTES,
            salt: 7,
            wall_ms: CLOCKS.wall_ms,
        };
        begin(Files::open(dir.path()).unwrap(), beginning, &mut |_| {}).unwrap()
    };
    let mut writer = open().writer;
    let mut batch = Batch::default();
    for number in 1..=held {
        batch.push(7, number, &granted(number), || CLOCKS);
        if number % 1_000 == 0 {
            writer.write(&mut batch).unwrap();
            batch.clear_and_keep(1 << 20);
        }
    }
    writer.sync().unwrap();
    drop(writer);
    let mut group = c.benchmark_group("start");
    group.sample_size(10);
    group.throughput(Throughput::Elements(held));
    group.bench_function(format!("{held} held"), |b| {
        b.iter(|| {
            let begun = open();
            let mut records = 0;
            let count = |record| {
                black_box(&record);
                records += 1;
            };
            begun.restore.each(CLOCKS, count, |_| {}).unwrap();
            assert_eq!(records, held);
        });
    });
    group.finish();
}
