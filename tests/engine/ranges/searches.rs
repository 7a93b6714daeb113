//! Searches for a deadlock through byte ranges that are too long for one turn: they go on when time passes.

use latchd::base::Millis;
use latchd::engine::types::{
    Attach, Effect, Effects, Input, Mode, RangeAsk, Refusal, Reply, Request, Secret, Sharing, Span,
};
use latchd::engine::{Rules, SearchLimits};

use super::crowds::{Table, granted, id};

const EX: Sharing = Sharing::Exclusive;
const ALL: Span = Span { start: 0, len: 0 };

/// No search is over at once.
fn table() -> Table {
    Table::new(Rules {
        deadlock_detection: true,
        search_limits: SearchLimits {
            at_once_work: 0,
            tries_max: 8,
        },
        ..Rules::default()
    })
}

fn deadlock(conn: u32) -> Effects {
    vec![Effect::Reply(id(conn), Reply::Refused(Refusal::Deadlock))]
}

/// Each of so many holds a resource and waits for that of the next one; the last waits for nothing.
fn chain(table: &mut Table, length: u32) {
    for conn in 0..length {
        assert_eq!(
            granted(&table.lock(conn, &conn.to_le_bytes(), EX, ALL)),
            [conn]
        );
    }
    for conn in 0..length - 1 {
        let next = (conn + 1).to_le_bytes();
        assert_eq!(table.lock(conn, &next, EX, ALL), []);
    }
    table.rest(u64::MAX);
}

#[test]
fn a_search_that_is_put_off_finds_a_circle_of_ranges_and_tells_the_one_who_closed_it() {
    const LENGTH: u32 = 500;
    let mut table = table();
    chain(&mut table, LENGTH);
    let last = LENGTH - 1;
    assert_eq!(table.lock(last, &0_u32.to_le_bytes(), EX, ALL), []);
    let (said, turns) = table.rest(10_000);
    assert_eq!(said, deadlock(last));
    assert!(turns > 3, "{turns}");
    table.engine.check();
}

#[test]
fn a_search_through_ranges_begins_anew_when_bytes_are_unlocked() {
    const LENGTH: u32 = 500;
    let mut table = table();
    chain(&mut table, LENGTH);
    let last = LENGTH - 1;
    assert_eq!(table.lock(last, &0_u32.to_le_bytes(), EX, ALL), []);
    table.apply(Input::Time(10_000));
    // The one in the middle gives up, so there is no circle any more.
    let gone = table.apply(Input::Disconnected(id(250)));
    assert_eq!(granted(&gone), [249]);
    assert_eq!(table.rest(10_000).0, []);
    assert_eq!(table.engine.figures().deadlocks(), 0);
    table.engine.check();
}

#[test]
fn a_place_that_is_passed_on_takes_its_search_along() {
    let mut table = table();
    for conn in [0, 1] {
        let attach = Attach {
            adapter: None,
            id: "gw/1",
            ttl: Millis(1_000),
            secret: Secret(b"s3cret"),
        };
        table.apply(Input::Attach(id(conn), attach));
    }
    assert_eq!(granted(&table.lock(0, b"f", EX, ALL)), [0]);
    assert_eq!(granted(&table.lock(2, b"g", EX, ALL)), [2]);
    assert_eq!(table.lock(2, b"f", EX, ALL), []);
    table.rest(u64::MAX);
    // The first asks and waits, since nobody has looked yet; the second takes its place.
    assert_eq!(table.lock(0, b"g", EX, ALL), []);
    let told = table.lock(1, b"g", EX, ALL);
    assert_eq!(told, [Effect::Reply(id(0), Reply::TimedOut)]);
    assert_eq!(table.rest(u64::MAX).0, deadlock(1));
    table.engine.check();
}

#[test]
fn whoever_is_kept_waiting_by_a_client_that_waits_elsewhere_is_looked_at_later() {
    let mut table = Table::new(Rules {
        deadlock_detection: true,
        ..Rules::default()
    });
    for conn in [0, 1] {
        let attach = Attach {
            adapter: None,
            id: "gw/1",
            ttl: Millis(1_000),
            secret: Secret(b"s3cret"),
        };
        table.apply(Input::Attach(id(conn), attach));
    }
    let acquire = |wait| Request::Acquire {
        key: b"job",
        mode: Mode::Slot { limit: 1 },
        wait,
        lease: None,
    };
    table.apply(Input::Request(id(2), acquire(Millis::ZERO)));
    assert_eq!(
        granted(&table.lock(3, b"f", EX, Span { start: 0, len: 10 })),
        [3]
    );
    assert_eq!(table.lock(2, b"f", EX, Span { start: 0, len: 20 }), []);
    let wait = Millis::from_secs(10);
    assert_eq!(table.apply(Input::Request(id(0), acquire(wait))), []);
    let lock = RangeAsk::Lock {
        mode: EX,
        span: Span { start: 10, len: 10 },
        wait: Millis::ZERO,
    };
    // Another owner of the client is somebody else, and closes no circle.
    assert_eq!(granted(&table.ask(1, b"f", b"bob", lock)), [1]);
    assert_eq!(table.rest(u64::MAX).0, []);
    let span = Span { start: 10, len: 10 };
    let said = table.ask(1, b"f", b"bob", RangeAsk::Unlock { span });
    assert_eq!(granted(&said), [1]);
    assert_eq!(granted(&table.ask(1, b"f", b"", lock)), [1]);
    assert_eq!(table.rest(u64::MAX).0, deadlock(2));
    table.engine.check();
}

/// So many that no request may take the time to look at all of them.
#[test]
fn one_whom_only_the_order_of_a_very_long_queue_keeps_waiting_is_let_pass() {
    let span = |start, len| Span { start, len };
    for length in [10, 300] {
        let mut table = Table::new(Rules {
            waiters_per_key_max: 1_000,
            search_limits: SearchLimits {
                at_once_work: 100_000,
                tries_max: 8,
            },
            ..Rules::default()
        });
        assert_eq!(granted(&table.lock(0, b"f", EX, span(0, 10))), [0]);
        for conn in 1..=length {
            assert_eq!(table.lock(conn, b"f", EX, span(0, 20)), []);
        }
        // Behind all of them, who wait for it.
        let mut said = table.lock(0, b"f", EX, span(15, 1));
        let at_once = granted(&said).len();
        for _ in 0..100 {
            table.now = table.now.after(Millis(100));
            said.extend(table.rest(u64::MAX).0);
        }
        assert_eq!(granted(&said), [0], "{length} wait");
        assert_eq!(at_once, usize::from(length == 10), "{length} wait");
        assert_eq!(table.engine.figures().searches_given_up(), 0);
        table.engine.check();
    }
}

#[test]
fn a_search_in_a_queue_that_is_too_long_to_remember_is_given_up_and_counted() {
    const LENGTH: u32 = 2_200;
    let span = |start, len| Span { start, len };
    let mut table = Table::new(Rules {
        waiters_per_key_max: 4_000,
        ..Rules::default()
    });
    assert_eq!(granted(&table.lock(0, b"f", EX, span(0, 10))), [0]);
    for conn in 1..=LENGTH {
        assert_eq!(table.lock(conn, b"f", EX, span(0, 20)), []);
    }
    assert_eq!(table.lock(0, b"f", EX, span(15, 1)), []);
    for _ in 0..100 {
        table.now = table.now.after(Millis(100));
        assert_eq!(table.rest(u64::MAX).0, [], "it waits");
        if table.engine.figures().searches_given_up() > 0 {
            return;
        }
    }
    panic!("not given up");
}
