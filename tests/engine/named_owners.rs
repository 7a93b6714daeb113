//! Owners that are known by a name: what they are granted outlives the connection that asked, and a
//! request with an id can be asked again.

use latchd::base::{ConnId, Fence, Millis, Nanos, Token};
use latchd::engine::types::{
    By, Effect, Effects, Input, Loss, Mode, Push, Record, Refusal, Reply, Request,
};
use latchd::engine::{Engine, Origin, Rules, SearchLimits};

struct Table {
    engine: Engine,
    now: Nanos,
}

const LOCK: Mode = Mode::Slot { limit: 1 };
const A: ConnId = conn(1);
const B: ConnId = conn(2);

const fn conn(number: u32) -> ConnId {
    ConnId {
        slot: number,
        serial: number,
    }
}

fn by<'a>(owner: &'a str, request: &'a str) -> By<'a> {
    By {
        owner,
        request: request.as_bytes(),
    }
}

fn origin() -> Origin {
    Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    }
}

impl Table {
    fn new(rules: Rules) -> Self {
        Self {
            engine: Engine::new(rules, origin()),
            now: Nanos(1),
        }
    }

    fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut out = Effects::new();
        self.engine.apply(self.now, input, &mut out);
        self.engine.check_at(self.now);
        out.retain(|it| !matches!(it, Effect::Mark(_)));
        out
    }

    fn pass(&mut self, ms: u64) -> Effects {
        self.now = self.now.after(Millis(ms));
        self.apply(Input::Time(u64::MAX))
    }

    fn acquire(&mut self, on: ConnId, by: By<'_>, wait_ms: u64, lease_ms: u64) -> Effects {
        let request = Request::Acquire {
            key: b"job",
            mode: LOCK,
            wait: Millis(wait_ms),
            lease: Some(Millis(lease_ms)),
        };
        self.apply(Input::RequestBy(on, by, request))
    }

    /// Asks to hold the key in this way for ten seconds.
    fn acquire_as(&mut self, on: ConnId, by: By<'_>, mode: Mode, wait_ms: u64) -> Effects {
        let request = Request::Acquire {
            key: b"job",
            mode,
            wait: Millis(wait_ms),
            lease: Some(Millis(10_000)),
        };
        self.apply(Input::RequestBy(on, by, request))
    }

    /// Takes the lock for ten seconds.
    fn take(&mut self, on: ConnId, by: By<'_>) -> Token {
        granted(&self.acquire(on, by, 0, 10_000), on).0
    }

    fn renew(&mut self, on: ConnId, owner: &str, token: Token, lease_ms: u64) -> Reply {
        let request = Request::Renew {
            key: b"job",
            token: Some(token),
            lease: Some(Millis(lease_ms)),
        };
        answer(
            &self.apply(Input::RequestBy(on, by(owner, ""), request)),
            on,
        )
    }

    fn release(&mut self, on: ConnId, owner: &str, token: Token) -> Reply {
        let request = Request::Release {
            key: b"job",
            token: Some(token),
        };
        answer(
            &self.apply(Input::RequestBy(on, by(owner, ""), request)),
            on,
        )
    }

    fn owners(&self) -> usize {
        self.engine.counts().owners
    }
}

fn answer(out: &Effects, to: ConnId) -> Reply {
    let mut replies = out.iter().filter_map(|effect| match effect {
        Effect::Reply(id, reply) if *id == to => Some(reply.clone()),
        _ => None,
    });
    let reply = replies.next().expect("it is answered");
    assert_eq!(replies.next(), None, "it is answered once");
    reply
}

fn granted(out: &Effects, to: ConnId) -> (Token, Millis) {
    match answer(out, to) {
        Reply::Granted { token, lease } => (token, lease),
        other => panic!("{other:?}"),
    }
}

const NOT_HOLDER: Reply = Reply::Refused(Refusal::NotHolder);
const EXPIRED: Reply = Reply::Refused(Refusal::LeaseExpired);

#[test]
fn a_lease_belongs_to_the_name_and_outlives_the_connection() {
    let mut table = Table::new(Rules::default());
    let token = table.take(A, by("ann", ""));
    table.apply(Input::Disconnected(A));
    table.pass(1_000);
    assert_eq!(
        table.acquire(B, by("bob", ""), 0, 10_000),
        [Effect::Reply(B, Reply::TimedOut)]
    );
    assert_eq!(table.release(B, "ann", token), Reply::Done);
    table.take(B, by("bob", ""));
}

#[test]
fn only_its_owner_may_renew_and_release() {
    let mut table = Table::new(Rules::default());
    let token = table.take(A, by("ann", ""));
    assert_eq!(table.renew(B, "bob", token, 10_000), NOT_HOLDER);
    assert_eq!(table.release(B, "bob", token), NOT_HOLDER);
    let other = Token {
        salt: token.salt ^ 1,
        ..token
    };
    assert_eq!(table.release(B, "ann", other), NOT_HOLDER);
    // A connection that shows the token may, as ever.
    let request = Request::Release {
        key: b"job",
        token: Some(token),
    };
    assert_eq!(
        answer(&table.apply(Input::Request(B, request)), B),
        Reply::Done
    );
    // And a named owner may not release what a connection holds.
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::ZERO,
        lease: None,
    };
    let (token, _) = granted(&table.apply(Input::Request(B, request)), B);
    assert_eq!(table.release(A, "ann", token), NOT_HOLDER);
}

#[test]
fn the_same_request_asked_again_has_the_same_grant_for_the_time_that_is_left() {
    let mut table = Table::new(Rules::default());
    let token = table.take(A, by("ann", "r1"));
    table.apply(Input::Disconnected(A));
    table.pass(4_000);
    let again = table.acquire(B, by("ann", "r1"), 0, 10_000);
    assert_eq!(granted(&again, B), (token, Millis(6_000)));
    // Another id, or none, or another owner with this id, is a new request.
    for (owner, request) in [("ann", "r2"), ("ann", ""), ("bob", "r1")] {
        let refused = table.acquire(B, by(owner, request), 0, 10_000);
        assert_eq!(answer(&refused, B), Reply::TimedOut, "{owner} {request}");
    }
    // And so is the same one, once the grant is over.
    table.pass(6_000);
    let next = table.take(B, by("ann", "r1"));
    assert!(next.fence > token.fence);
}

#[test]
fn the_same_id_asks_for_something_else_if_it_asks_to_hold_in_another_way() {
    let mut table = Table::new(Rules::default());
    let (ann, bob) = (by("ann", "r1"), by("bob", "r2"));
    granted(&table.acquire_as(A, ann, Mode::Read, 0), A);
    granted(&table.acquire_as(B, bob, Mode::Read, 0), B);
    for (on, by) in [(A, ann), (B, bob)] {
        let told = answer(&table.acquire_as(on, by, Mode::Write, 0), on);
        assert_eq!(told, Reply::TimedOut, "two read, so nobody may write");
        let told = answer(&table.acquire_as(on, by, LOCK, 0), on);
        assert_eq!(told, Reply::Refused(Refusal::TypeMismatch));
    }
    // Nor does it take the place of a waiter who wants less.
    let (carl, dora) = (conn(3), conn(4));
    assert!(
        table
            .acquire_as(carl, by("carl", "w"), Mode::Write, 9_000)
            .is_empty()
    );
    assert!(
        table
            .acquire_as(dora, by("dora", "r3"), Mode::Read, 9_000)
            .is_empty()
    );
    let told = table.acquire_as(conn(5), by("dora", "r3"), Mode::Write, 9_000);
    assert!(
        told.is_empty(),
        "it waits behind, in a place of its own: {told:?}"
    );
    assert_eq!(table.engine.counts().waiters, 3);
}

#[test]
fn whoever_asks_again_when_leases_end_has_one_slot_and_not_two() {
    let mut table = Table::new(Rules::default());
    let slots = Mode::Slot { limit: 2 };
    for on in [A, B] {
        granted(&table.acquire_as(on, by("other", ""), slots, 0), on);
    }
    let (first, second) = (conn(3), conn(4));
    assert!(
        table
            .acquire_as(first, by("ann", "r"), slots, 60_000)
            .is_empty()
    );
    table.now = table.now.after(Millis(10_000)); // both have ended, and nobody has looked
    let told = table.acquire_as(second, by("ann", "r"), slots, 0);
    assert_eq!(granted(&told, first), granted(&told, second));
    assert_eq!(table.engine.counts().holders, 1);
}

#[test]
fn a_place_in_the_queue_passes_to_the_connection_that_asks_again() {
    let mut table = Table::new(Rules::default());
    let token = table.take(conn(9), by("carl", ""));
    assert_eq!(table.acquire(A, by("ann", "r1"), 5_000, 10_000), []);
    assert_eq!(table.acquire(conn(3), by("dora", ""), 60_000, 10_000), []);
    table.pass(4_000);
    let out = table.acquire(B, by("ann", "r1"), 5_000, 10_000);
    assert_eq!(out, [Effect::Reply(A, Reply::TimedOut)]);
    // It has waited since the first time, but for as long as it asked the second time.
    assert_eq!(table.pass(2_000), []);
    assert_eq!(table.release(A, "carl", token), Reply::Done);
    let mine = table.acquire(A, by("ann", "r1"), 0, 10_000);
    let (token, _) = granted(&mine, A);
    assert_eq!(table.release(A, "ann", token), Reply::Done);
    let next = table.acquire(A, by("dora", ""), 0, 10_000);
    assert_eq!(answer(&next, A), Reply::TimedOut, "dora was served by now");
}

/// Asks to hold this key alone for ten seconds, and waits up to a minute.
fn wait_for(key: &[u8]) -> Request<'_> {
    Request::Acquire {
        key,
        mode: LOCK,
        wait: Millis(60_000),
        lease: Some(Millis(10_000)),
    }
}

#[test]
fn place_that_passes_on_takes_its_deferred_deadlock_search_along() {
    let mut table = Table::new(Rules {
        deadlock_detection: true,
        search_limits: SearchLimits {
            at_once_work: 0,
            ..SearchLimits::default()
        },
        ..Rules::default()
    });
    let (carl, ann) = (conn(9), by("ann", "r1"));
    table.take(A, by("ann", ""));
    granted(&table.apply(Input::Request(carl, wait_for(b"other"))), carl);
    assert_eq!(table.apply(Input::Request(carl, wait_for(b"job"))), []);
    assert_eq!(table.pass(0), [], "there is no circle yet");
    assert_eq!(
        table.apply(Input::RequestBy(A, ann, wait_for(b"other"))),
        [],
        "the search is put off"
    );
    let out = table.apply(Input::RequestBy(B, ann, wait_for(b"other")));
    assert_eq!(out, [Effect::Reply(A, Reply::TimedOut)]);
    let deadlock = Reply::Refused(Refusal::Deadlock);
    assert_eq!(table.pass(0), [Effect::Reply(B, deadlock)]);
}

#[test]
fn place_whose_time_was_over_is_searched_again_when_it_passes_on() {
    let mut table = Table::new(Rules {
        deadlock_detection: true,
        ..Rules::default()
    });
    let (carl, dora, ann) = (conn(9), conn(8), by("ann", "r1"));
    table.take(A, by("ann", ""));
    granted(&table.apply(Input::Request(carl, wait_for(b"other"))), carl);
    // Not the first in the queue, so its place is still there when its time is over.
    assert_eq!(table.apply(Input::Request(dora, wait_for(b"other"))), []);
    let short = Request::Acquire {
        key: b"other",
        mode: LOCK,
        wait: Millis(1_000),
        lease: None,
    };
    assert_eq!(table.apply(Input::RequestBy(A, ann, short)), []);
    table.now = table.now.after(Millis(2_000));
    let out = table.apply(Input::Request(carl, wait_for(b"job")));
    assert_eq!(out, [], "ann does not wait any more");
    let out = table.apply(Input::RequestBy(B, ann, wait_for(b"other")));
    assert_eq!(out, [Effect::Reply(A, Reply::TimedOut)]);
    let deadlock = Reply::Refused(Refusal::Deadlock);
    assert_eq!(table.pass(0), [Effect::Reply(B, deadlock)]);
}

#[test]
fn peer_that_has_hung_up_is_not_answered_when_its_place_passes_on() {
    let mut table = Table::new(Rules::default());
    let token = table.take(conn(9), by("carl", ""));
    assert_eq!(table.acquire(conn(3), by("dora", ""), 1_000, 10_000), []);
    assert_eq!(table.acquire(A, by("ann", "r1"), 60_000, 10_000), []);
    table.apply(Input::HungUp(A, true));
    assert_eq!(table.acquire(B, by("ann", "r1"), 60_000, 10_000), []);
    table.apply(Input::Disconnected(A));
    table.pass(1_000);
    let request = Request::Release {
        key: b"job",
        token: Some(token),
    };
    let out = table.apply(Input::RequestBy(conn(9), by("carl", ""), request));
    granted(&out, B);
}

#[test]
fn read_and_write_with_one_id_are_two_requests() {
    let mut table = Table::new(Rules::default());
    let (writes, reads) = ([A, conn(3)], [B, conn(4)]);
    let ann = by("ann", "r1");
    let (token, _) = granted(
        &table.acquire_as(conn(9), by("carl", ""), Mode::Write, 0),
        conn(9),
    );
    for (mode, [first, again]) in [(Mode::Write, writes), (Mode::Read, reads)] {
        assert_eq!(table.acquire_as(first, ann, mode, 60_000), []);
        let out = table.acquire_as(again, ann, mode, 60_000);
        assert_eq!(out, [Effect::Reply(first, Reply::TimedOut)], "{mode:?}");
    }
    // Also in the other order.
    let out = table.acquire_as(A, ann, Mode::Write, 60_000);
    assert_eq!(out, [Effect::Reply(conn(3), Reply::TimedOut)]);
    assert_eq!(table.engine.counts().waiters, 2);
    assert_eq!(table.release(conn(9), "carl", token), Reply::Done);
    // Ann writes now, and waits to read.
    for _ in 0..2 {
        let (again, _) = granted(&table.acquire_as(A, ann, Mode::Write, 0), A);
        assert!(again.fence > token.fence);
        let [_, first] = reads;
        let out = table.acquire_as(B, ann, Mode::Read, 60_000);
        assert_eq!(out, [Effect::Reply(first, Reply::TimedOut)]);
        let out = table.acquire_as(first, ann, Mode::Read, 60_000);
        assert_eq!(out, [Effect::Reply(B, Reply::TimedOut)]);
    }
    assert_eq!(table.engine.counts().waiters, 1);
    assert_eq!(table.engine.counts().holders, 1);
}

#[test]
fn request_asked_again_among_very_many_expired_leases_has_one_grant() {
    const READERS: u32 = 500;
    let mut table = Table::new(Rules::default());
    for number in 0..READERS {
        let on = conn(10 + number);
        granted(&table.acquire_as(on, by("crowd", ""), Mode::Read, 0), on);
    }
    let ann = by("ann", "r1");
    let (before, _) = granted(&table.acquire_as(A, ann, Mode::Read, 0), A);
    table.now = table.now.after(Millis(10_000)); // all have ended, and nobody has looked
    let mut tokens = Vec::new();
    for _ in 0..READERS {
        match &table.acquire_as(A, ann, Mode::Read, 0)[..] {
            [Effect::NotYet(on)] => assert_eq!(*on, A),
            out => tokens.push(granted(&out.to_vec(), A).0),
        }
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "{tokens:?}");
    assert!(tokens[0].fence > before.fence);
    assert_eq!(table.engine.counts().holders, 1);
}

#[test]
fn whoever_hangs_up_leaves_the_queue_and_leaves_nothing_behind() {
    let mut table = Table::new(Rules::default());
    let token = table.take(conn(9), by("carl", ""));
    assert_eq!(table.acquire(A, by("ann", "r1"), 60_000, 10_000), []);
    assert_eq!(table.acquire(B, by("bob", ""), 60_000, 10_000), []);
    table.apply(Input::Disconnected(A));
    let out = table.apply(Input::RequestBy(
        conn(9),
        by("carl", ""),
        Request::Release {
            key: b"job",
            token: Some(token),
        },
    ));
    let (token, _) = granted(&out, B);
    assert_eq!(table.release(conn(9), "bob", token), Reply::Done);
    table.apply(Input::Disconnected(B));
    table.apply(Input::Disconnected(conn(9)));
    assert_eq!(table.owners(), 0);
    assert_eq!(table.engine.counts().timers, 1, "only the collection");
}

#[test]
fn a_renewal_never_shortens_and_comes_too_late_at_the_very_end() {
    let mut table = Table::new(Rules::default());
    let token = table.take(A, by("ann", ""));
    let fence = token.fence;
    let renewed = |ms| Reply::Renewed {
        lease: Millis(ms),
        fence,
    };
    table.pass(2_000);
    assert_eq!(table.renew(A, "ann", token, 1_000), renewed(8_000));
    assert_eq!(table.renew(A, "ann", token, 9_000), renewed(9_000));
    assert_eq!(table.pass(8_999), []);
    table.now = table.now.after(Millis(1));
    assert_eq!(table.renew(A, "ann", token, 9_000), EXPIRED);
    let token = table.take(A, by("ann", ""));
    table.now = table.now.after(Millis(10_000));
    assert_eq!(table.release(A, "ann", token), EXPIRED);
    assert_eq!(table.engine.tally().expiries, 2);
}

#[test]
fn a_refusal_leaves_no_owner_behind() {
    let mut table = Table::new(Rules::default());
    table.take(A, by("ann", ""));
    let before = table.owners();
    table.acquire(A, by("bob", "r"), 0, 10_000);
    table.release(
        A,
        "carl",
        Token {
            fence: Fence(1),
            salt: 0,
        },
    );
    assert_eq!(table.owners(), before);
    // Nor does a wait that ends.
    table.acquire(A, by("bob", "r"), 1_000, 10_000);
    assert_eq!(table.owners(), before + 1);
    table.pass(1_000);
    assert_eq!(table.owners(), before);
}

#[test]
fn a_broken_grant_is_over_and_its_holder_is_told() {
    let mut table = Table::new(Rules::default());
    table.apply(Input::Hello(A, None));
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::ZERO,
        lease: None,
    };
    let (token, _) = granted(&table.apply(Input::Request(A, request)), A);
    assert_eq!(table.acquire(B, by("bob", ""), 60_000, 10_000), []);
    let fence = token.fence;
    let out = table.apply(Input::Break(conn(3), b"job", Fence(fence.0 + 1)));
    assert_eq!(out, [Effect::Reply(conn(3), NOT_HOLDER)]);
    let out = table.apply(Input::Break(conn(3), b"job", fence));
    assert_eq!(answer(&out, conn(3)), Reply::Done);
    let (key, why) = (b"job"[..].into(), Loss::Broken);
    assert!(out.contains(&Effect::Push(A, Push::Lost { key, fence, why })));
    granted(&out, B);
    assert_eq!(table.engine.tally().breaks, 1);
}

#[test]
fn a_restart_gives_a_lease_back_to_its_name() {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let mut table = Table::new(rules.clone());
    let token = table.take(A, by("ann", "r1"));
    let records: Vec<Record> = table.engine.take_records().collect();
    let mut table = Table::new(rules);
    for record in &records {
        table.apply(Input::Restore(record));
    }
    table.apply(Input::Serve {
        may_have_lost: false,
    });
    table.pass(9_999);
    assert_eq!(table.renew(B, "bob", token, 10_000), NOT_HOLDER);
    let fence = token.fence;
    let lease = Millis(10_000);
    assert_eq!(
        table.renew(B, "ann", token, 10_000),
        Reply::Renewed { lease, fence }
    );
    table.apply(Input::Disconnected(B));
    table.pass(9_999);
    assert_eq!(table.release(A, "ann", token), Reply::Done);
}

#[test]
fn after_a_restart_a_request_is_asked_again() {
    let rules = Rules {
        durable: true,
        ..Rules::default()
    };
    let mut table = Table::new(rules.clone());
    // One is granted at once, the other when its turn comes.
    let first = table.take(A, by("ann", "r1"));
    assert_eq!(table.acquire(B, by("bob", "r2"), 60_000, 10_000), []);
    let mut records: Vec<Record> = table.engine.take_records().collect();
    for owner in ["ann", "bob"] {
        let (token, asked) = match owner {
            "ann" => (first, by("ann", "r1")),
            _ => {
                let out = table.apply(Input::RequestBy(
                    A,
                    by("ann", ""),
                    Request::Release {
                        key: b"job",
                        token: Some(first),
                    },
                ));
                records.extend(table.engine.take_records());
                (granted(&out, B).0, by("bob", "r2"))
            }
        };
        let mut next = Table::new(rules.clone());
        for record in &records {
            next.apply(Input::Restore(record));
        }
        next.apply(Input::Serve {
            may_have_lost: false,
        });
        let other_id = by(owner, "r3");
        assert_eq!(
            answer(&next.acquire(A, other_id, 0, 10_000), A),
            Reply::TimedOut
        );
        let (again, lease) = granted(&next.acquire(A, asked, 0, 10_000), A);
        assert_eq!((again, lease), (token, Millis(10_000)));
        assert_eq!(next.release(A, owner, token), Reply::Done);
        let (anew, _) = granted(&next.acquire(A, asked, 0, 10_000), A);
        assert_ne!(anew, token, "it is over, so this is another one");
    }
}

#[test]
fn nobody_is_told_that_a_lease_lasts_longer_than_it_does() {
    let mut table = Table::new(Rules::default());
    let asked = by("ann", "r1");
    let token = table.take(A, asked);
    // Half a millisecond of it is over.
    table.now = Nanos(table.now.0 + 500_000);
    let (_, left) = granted(&table.acquire(B, asked, 0, 10_000), B);
    assert_eq!(left, Millis(9_999));
    let (fence, lease) = (token.fence, Millis(10_000));
    assert_eq!(
        table.renew(B, "ann", token, 10_000),
        Reply::Renewed { lease, fence }
    );
    // A quarter of a millisecond before the end that it was told.
    table.now = Nanos(table.now.0 + 9_999_750_000);
    assert_eq!(table.release(B, "ann", token), Reply::Done);
}

#[test]
fn lock_is_counted_only_while_there_is_memory_for_that() {
    let mut table = Table::new(Rules::default());
    let lock = |key| Request::Acquire {
        key,
        mode: LOCK,
        wait: Millis::ZERO,
        lease: Some(Millis(10_000)),
    };
    // The owner is known, and there is room for one more grant of a key that is there.
    table.apply(Input::RequestBy(A, by("ann", ""), lock(b"other")));
    let taken = table.apply(Input::Request(B, lock(b"job")));
    let token = Some(granted(&taken, B).0);
    let released = Request::Release { key: b"job", token };
    table.apply(Input::Request(B, released));
    let version = |table: &Table| {
        let job = table.engine.view(table.now).key(b"job").unwrap();
        job.holders().next().unwrap().version
    };
    table.apply(Input::MemoryFull(true));
    let token = table.take(A, by("ann", "r1"));
    assert_eq!(version(&table), 0);
    table.apply(Input::MemoryFull(false));
    assert_eq!(table.release(A, "ann", token), Reply::Done);
    table.take(A, by("ann", "r2"));
    assert_eq!(version(&table), 1);
}
