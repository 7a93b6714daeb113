//! Every way to hold a key, and the same steps for each: take it free, be refused, renew, hand it
//! over, wait in vain, and leave with a thousand of them.

use std::collections::VecDeque;

use criterion::{BatchSize, Criterion};
use latchd::base::{ConnId, Millis, Token};
use latchd::engine::types::{Effect, Mode, Reply, Request};

use crate::harness::{A, B, Harness, LOCK, client, granted};

/// A way to hold a key.
struct Primitive {
    name: &'static str,
    mode: Mode,
    /// How others hold a key that has no room for this one.
    other: Mode,
    /// How many of them it takes.
    others: u32,
    /// Takes a place first and waits for it then.
    two_phase: bool,
}

const SEMAPHORE: Mode = Mode::Slot { limit: 4 };

const PRIMITIVES: [Primitive; 6] = [
    one("lock", LOCK, LOCK),
    Primitive {
        others: 4,
        ..one("semaphore", SEMAPHORE, SEMAPHORE)
    },
    // Readers do not wait for each other: the key goes to and from a writer in turn.
    one("rw-read", Mode::Read, Mode::Write),
    one("rw-write", Mode::Write, Mode::Write),
    Primitive {
        two_phase: true,
        ..one("two-phase", LOCK, LOCK)
    },
    one("election", Mode::Lead, Mode::Lead),
];

const fn one(name: &'static str, mode: Mode, other: Mode) -> Primitive {
    Primitive {
        name,
        mode,
        other,
        others: 1,
        two_phase: false,
    }
}

const KEY: &[u8] = b"job";
/// How many a client leaves with; less than what one call undoes at most.
const MANY: usize = 1_000;

pub(crate) fn benches(c: &mut Criterion) {
    for primitive in &PRIMITIVES {
        steps(c, primitive);
        disconnect(c, primitive);
    }
}

fn steps(c: &mut Criterion, it: &Primitive) {
    let mut group = c.benchmark_group(format!("engine/{}", it.name));
    group.bench_function("free", |b| {
        let mut harness = Harness::new();
        b.iter(|| {
            let token = it.take(&mut harness, KEY);
            let effects = let_go(&mut harness, A, it.mode, KEY, token);
            assert_eq!(effects, [Effect::Reply(A, Reply::Done)]);
        });
    });
    group.bench_function("held", |b| {
        let mut harness = Harness::new();
        it.fill(&mut harness);
        b.iter(|| {
            let effects = it.want(&mut harness, B, it.mode, Millis::ZERO);
            assert_eq!(effects, [Effect::Reply(B, Reply::TimedOut)]);
        });
    });
    group.bench_function("renew", |b| {
        let mut harness = Harness::new();
        let (key, lease) = (KEY, None);
        let token = Some(it.take(&mut harness, key));
        b.iter(|| {
            let effects = harness.ask(A, Request::Renew { key, token, lease });
            assert!(matches!(effects, [Effect::Reply(A, Reply::Renewed { .. })]));
        });
    });
    group.bench_function("hand-over", |b| {
        let mut harness = Harness::new();
        let mut holders = it.fill(&mut harness);
        let mut next = (B, it.mode);
        b.iter(|| {
            let (waiter, mode) = next;
            let effects = it.want(&mut harness, waiter, mode, Millis(1_000));
            assert!(effects.is_empty(), "did not wait: {effects:?}");
            let (holder, held, token) = holders.pop_front().expect("it is held");
            let effects = let_go(&mut harness, holder, held, KEY, token);
            holders.push_back((waiter, mode, granted(effects, waiter)));
            next = (holder, held);
        });
    });
    group.bench_function("timeout", |b| {
        let mut harness = Harness::new();
        it.fill(&mut harness);
        b.iter(|| {
            let effects = it.want(&mut harness, B, it.mode, Millis(1));
            assert!(effects.is_empty(), "did not wait: {effects:?}");
            let effects = harness.pass(Millis(1));
            assert_eq!(effects, [Effect::Reply(B, Reply::TimedOut)]);
        });
    });
    group.finish();
}

/// With a thousand keys held, or with a place in a thousand queues.
fn disconnect(c: &mut Criterion, it: &Primitive) {
    let mut group = c.benchmark_group(format!("engine/{}", it.name));
    group.sample_size(20);
    group.bench_function(format!("disconnect-{MANY}"), |b| {
        let full = || {
            let mut harness = Harness::new();
            for index in 0..MANY {
                let key = format!("key:{index}");
                if it.two_phase {
                    harness.acquire(B, key.as_bytes());
                    take_a_place(&mut harness, A, key.as_bytes(), it.mode);
                } else {
                    it.take(&mut harness, key.as_bytes());
                }
            }
            harness.effects.clear();
            harness
        };
        let left = if it.two_phase { MANY } else { 0 };
        b.iter_batched(
            full,
            |mut harness| {
                harness.leave(A);
                let counts = harness.engine.counts();
                assert_eq!((counts.holders, counts.waiters), (left, 0));
                harness
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

impl Primitive {
    /// A key that is free is A's.
    fn take(&self, harness: &mut Harness, key: &[u8]) -> Token {
        let (mode, wait, lease) = (self.mode, Millis::ZERO, None);
        if !self.two_phase {
            let request = Request::Acquire {
                key,
                mode,
                wait,
                lease,
            };
            return granted(harness.ask(A, request), A);
        }
        let effects = harness.ask(A, Request::Enqueue { key, mode, lease });
        assert!(matches!(
            effects,
            [Effect::Reply(A, Reply::Acquired { .. })]
        ));
        granted(harness.ask(A, Request::Wait { key, wait }), A)
    }

    /// Others hold the key, in the order in which they will let go, and for ever if they do not.
    fn fill(&self, harness: &mut Harness) -> VecDeque<(ConnId, Mode, Token)> {
        let holders = (0..self.others).map(|index| {
            let (who, mode) = (client(2 + index), self.other);
            let request = Request::Acquire {
                key: KEY,
                mode,
                wait: Millis::ZERO,
                lease: Some(Millis::MAX),
            };
            (who, mode, granted(harness.ask(who, request), who))
        });
        holders.collect()
    }

    /// Somebody wants the key that others hold.
    fn want<'d>(
        &self,
        harness: &'d mut Harness,
        who: ConnId,
        mode: Mode,
        wait: Millis,
    ) -> &'d [Effect] {
        let (key, lease) = (KEY, None);
        if self.two_phase {
            take_a_place(harness, who, key, mode);
            harness.ask(who, Request::Wait { key, wait })
        } else {
            let request = Request::Acquire {
                key,
                mode,
                wait,
                lease,
            };
            harness.ask(who, request)
        }
    }
}

/// In the queue of a key that somebody holds.
fn take_a_place(harness: &mut Harness, who: ConnId, key: &[u8], mode: Mode) {
    let lease = None;
    let effects = harness.ask(who, Request::Enqueue { key, mode, lease });
    assert_eq!(effects, [Effect::Reply(who, Reply::Queued)]);
}

/// In the way that belongs to how it is held.
fn let_go<'d>(
    harness: &'d mut Harness,
    who: ConnId,
    mode: Mode,
    key: &[u8],
    token: Token,
) -> &'d [Effect] {
    let token = Some(token);
    let request = match mode {
        Mode::Lead => Request::Resign { key, token },
        Mode::Slot { .. } | Mode::Read | Mode::Write => Request::Release { key, token },
    };
    harness.ask(who, request)
}
