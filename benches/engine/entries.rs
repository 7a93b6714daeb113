//! What is not held: counters, values, lists, barriers, signals and watches, each step a short
//! conversation that repeats.

use criterion::Criterion;
use latchd::base::Millis;
use latchd::engine::types::{Effect, End, Event, Push, Reply, Request};

use crate::harness::{A, B, Harness};

/// Whether these are the consequences that should be.
type Check = fn(&[Effect]) -> bool;

/// One line of a conversation.
enum Act {
    /// A asks.
    A(Request<'static>, Check),
    /// B asks.
    B(Request<'static>, Check),
    /// Time passes.
    Pass(Millis, Check),
}

/// A conversation: once, then again and again.
struct Step {
    name: &'static str,
    first: &'static [Act],
    each: &'static [Act],
}

macro_rules! hears {
    ($($pattern:pat),*) => {
        |effects| matches!(effects, [$($pattern),*])
    };
}

const KEY: &[u8] = b"entry";
const WAIT: Millis = Millis(1);

const INCR: Request<'_> = Request::Add {
    key: KEY,
    delta: 1,
    down: false,
};
const DELETE: Request<'_> = Request::Delete { key: KEY };
const FETCH: Request<'_> = Request::Fetch { key: KEY };
const PUSH: Request<'_> = Request::Push {
    key: KEY,
    value: b"work",
    end: End::Right,
};
const POP: Request<'_> = Request::Pop {
    key: KEY,
    end: End::Left,
};
const AWAIT_POP: Request<'_> = Request::AwaitPop {
    key: KEY,
    end: End::Left,
    wait: WAIT,
};
const MEET: Request<'_> = Request::Meet {
    key: KEY,
    count: 2,
    wait: WAIT,
};

const fn put(ttl: Millis) -> Request<'static> {
    Request::Put {
        key: KEY,
        value: b"hello world, 42",
        ttl,
    }
}

const fn swap(old: &'static [u8], new: &'static [u8]) -> Request<'static> {
    Request::Swap {
        key: KEY,
        old,
        new,
        ttl: Millis::ZERO,
    }
}

const DONE: Check = hears!(Effect::Reply(A, Reply::Done));
const NOTHING: Check = hears!(Effect::Reply(A, Reply::Nothing));
const PARKED: Check = hears!();

const STEPS: &[Step] = &[
    Step {
        name: "counter/incr",
        first: &[],
        each: &[Act::A(INCR, hears!(Effect::Reply(A, Reply::Number(1..))))],
    },
    Step {
        name: "counter/get",
        first: &[Act::A(INCR, hears!(_))],
        each: &[Act::A(
            Request::Count { key: KEY },
            hears!(Effect::Reply(A, Reply::Number(1))),
        )],
    },
    Step {
        name: "counter/cset",
        first: &[],
        each: &[Act::A(
            Request::SetCount {
                key: KEY,
                value: 42,
            },
            DONE,
        )],
    },
    Step {
        name: "value/kset",
        first: &[],
        each: &[Act::A(put(Millis::ZERO), DONE)],
    },
    Step {
        name: "value/kset-ttl",
        first: &[],
        each: &[Act::A(put(Millis(60_000)), DONE)],
    },
    Step {
        name: "value/kget",
        first: &[Act::A(put(Millis::ZERO), DONE)],
        each: &[Act::A(FETCH, hears!(Effect::Reply(A, Reply::Value(_))))],
    },
    Step {
        name: "value/kget-none",
        first: &[],
        each: &[Act::A(FETCH, NOTHING)],
    },
    Step {
        name: "value/kcas-there-and-back",
        first: &[Act::A(swap(b"", b"one"), DONE)],
        each: &[
            Act::A(swap(b"one", b"two"), DONE),
            Act::A(swap(b"two", b"one"), DONE),
        ],
    },
    Step {
        name: "value/kcas-conflict",
        first: &[Act::A(put(Millis::ZERO), DONE)],
        each: &[Act::A(
            swap(b"one", b"two"),
            hears!(Effect::Reply(A, Reply::Conflict)),
        )],
    },
    Step {
        name: "value/kset+kdel",
        first: &[],
        each: &[
            Act::A(put(Millis::ZERO), DONE),
            // The same answer as if nothing had been there, so look.
            Act::A(DELETE, DONE),
            Act::A(FETCH, NOTHING),
        ],
    },
    Step {
        name: "value/expire",
        first: &[],
        each: &[
            Act::A(put(WAIT), DONE),
            Act::Pass(WAIT, hears!()),
            Act::A(FETCH, NOTHING),
        ],
    },
    Step {
        name: "list/push+pop",
        first: &[],
        each: &[
            Act::A(PUSH, hears!(Effect::Reply(A, Reply::Number(1)))),
            Act::A(POP, hears!(Effect::Reply(A, Reply::Popped(_)))),
        ],
    },
    Step {
        name: "list/push+pop-among-3",
        first: &[Act::A(PUSH, hears!(_)), Act::A(PUSH, hears!(_))],
        each: &[
            Act::A(PUSH, hears!(Effect::Reply(A, Reply::Number(3)))),
            Act::A(POP, hears!(Effect::Reply(A, Reply::Popped(_)))),
        ],
    },
    Step {
        name: "list/pop-none",
        first: &[],
        each: &[Act::A(POP, NOTHING)],
    },
    Step {
        name: "list/hand-over",
        first: &[],
        each: &[
            Act::A(AWAIT_POP, PARKED),
            Act::B(
                PUSH,
                hears!(
                    Effect::Reply(B, Reply::Number(0)),
                    Effect::Reply(A, Reply::Popped(_))
                ),
            ),
        ],
    },
    Step {
        name: "list/timeout",
        first: &[],
        each: &[Act::A(AWAIT_POP, PARKED), Act::Pass(WAIT, NOTHING)],
    },
    Step {
        name: "barrier/complete-2",
        first: &[],
        each: &[
            Act::A(MEET, PARKED),
            Act::B(
                MEET,
                hears!(Effect::Reply(A, Reply::Done), Effect::Reply(B, Reply::Done)),
            ),
        ],
    },
    Step {
        name: "barrier/timeout",
        first: &[],
        each: &[
            Act::A(MEET, PARKED),
            Act::Pass(WAIT, hears!(Effect::Reply(A, Reply::TimedOut))),
        ],
    },
    Step {
        name: "signal/to-1",
        first: &[Act::A(
            Request::Listen {
                pattern: b"orders.*",
                group: b"",
            },
            DONE,
        )],
        each: &[Act::B(
            Request::Signal {
                channel: b"orders.eu",
                payload: b"shipped",
            },
            hears!(
                Effect::Reply(B, Reply::Number(1)),
                Effect::Broadcast(_, Push::Signal { .. })
            ),
        )],
    },
    Step {
        name: "watch/incr-seen-by-1",
        first: &[Act::A(Request::Watch { pattern: b"entry" }, DONE)],
        each: &[Act::B(
            INCR,
            hears!(
                Effect::Reply(B, Reply::Number(_)),
                Effect::Broadcast(
                    _,
                    Push::Watch {
                        event: Event::Incr,
                        ..
                    }
                )
            ),
        )],
    },
    Step {
        name: "watch/incr-unseen-by-1",
        first: &[Act::A(Request::Watch { pattern: b"other" }, DONE)],
        each: &[Act::B(INCR, hears!(Effect::Reply(B, Reply::Number(_))))],
    },
];

pub(crate) fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    for step in STEPS {
        group.bench_function(step.name, |b| {
            let mut harness = Harness::new();
            converse(&mut harness, step.first);
            b.iter(|| converse(&mut harness, step.each));
        });
    }
    group.finish();
}

fn converse(harness: &mut Harness, acts: &[Act]) {
    for act in acts {
        let (effects, check) = match *act {
            Act::A(request, check) => (harness.ask(A, request), check),
            Act::B(request, check) => (harness.ask(B, request), check),
            Act::Pass(span, check) => (harness.pass(span), check),
        };
        assert!(check(effects), "not as it should be: {effects:?}");
    }
}
