//! A millisecond of work of each kind, by the engine's own count: that is how long it should take.
//!
//! Each bench gives the engine a crowd and then one turn with a million units of work, which is not
//! enough for all of it. The costs in `src/engine/work.rs` are those among a million, so that less
//! than a millisecond is right here.

use criterion::{BatchSize, Criterion};
use latchd::base::{Millis, Nanos, Token};
use latchd::engine::types::{Input, Mode, Request};

use crate::harness::{A, Harness, LOCK, client, granted};

const CROWD: u32 = 40_000;
const WORK: u64 = 1_000_000;

pub(crate) fn benches(c: &mut Criterion) {
    let leases = |lease_ms: u64| {
        move || {
            let mut harness = Harness::new();
            for key in 0..CROWD {
                take(&mut harness, &key.to_le_bytes(), LOCK, Millis(lease_ms));
            }
            harness
        }
    };
    a_turn(c, "leases-end", leases(1_000));
    a_turn(c, "leases-were-renewed", || {
        let mut harness = Harness::new();
        for key in 0..CROWD {
            let (key, lease) = (&key.to_le_bytes(), Some(Millis::MAX));
            let token = Some(take(&mut harness, key, LOCK, Millis(1_000)));
            harness.ask(A, Request::Renew { key, token, lease });
        }
        harness
    });
    a_turn(c, "a-client-left", move || {
        let mut harness = leases(1_000_000)();
        harness
            .engine
            .apply(harness.now, Input::Disconnected(A), &mut harness.effects);
        harness
    });
    a_turn(c, "slots-end", || {
        let mut harness = Harness::new();
        for _ in 0..CROWD {
            take(
                &mut harness,
                b"pool",
                Mode::Slot { limit: CROWD },
                Millis(1_000),
            );
        }
        harness
    });
    a_turn(c, "values-end", || {
        let mut harness = Harness::new();
        for key in 0..CROWD {
            let (key, value, ttl) = (&key.to_le_bytes(), &b"v"[..], Millis(1_000));
            harness.ask(A, Request::Put { key, value, ttl });
        }
        harness
    });
    a_turn(c, "keys-are-forgotten", || {
        let mut harness = Harness::new();
        for key in 0..CROWD {
            let token = harness.acquire(A, &key.to_le_bytes());
            harness.release(A, &key.to_le_bytes(), token);
        }
        harness
    });
    a_turn(c, "readers-get-in", || {
        let mut harness = Harness::new();
        let writer = take(&mut harness, b"page", Mode::Write, Millis(1_000_000));
        for reader in 1..=CROWD / 8 {
            let request = acquire(b"page", Mode::Read, Millis::MAX, Millis(1_000_000));
            harness.ask(client(reader), request);
        }
        let (key, token) = (b"page", Some(writer));
        harness.ask(A, Request::Release { key, token });
        harness
    });
}

/// A turn a minute and more after the crowd has come.
fn a_turn(c: &mut Criterion, name: &str, crowd: impl Fn() -> Harness) {
    let mut group = c.benchmark_group("engine/work");
    group.sample_size(20);
    group.bench_function(format!("a-millisecond-of-{name}"), |b| {
        b.iter_batched(
            || {
                let mut harness = crowd();
                harness.engine.take_work();
                harness.now = harness.now.after(Millis::from_secs(100));
                harness.effects.clear();
                harness
            },
            |mut harness| {
                let input = Input::Time(WORK);
                harness
                    .engine
                    .apply(harness.now, input, &mut harness.effects);
                assert_eq!(harness.engine.next_deadline(), Some(Nanos(0)), "all done");
                harness
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn take(harness: &mut Harness, key: &[u8], mode: Mode, lease: Millis) -> Token {
    granted(harness.ask(A, acquire(key, mode, Millis::ZERO, lease)), A)
}

fn acquire(key: &[u8], mode: Mode, wait: Millis, lease: Millis) -> Request<'_> {
    Request::Acquire {
        key,
        mode,
        wait,
        lease: Some(lease),
    }
}
