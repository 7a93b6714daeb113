//! Searches for deadlocks that are too long for one turn: they go on when time passes, begin anew when
//! somebody has let something go, and are given up in the end. And who is known by a name and waits
//! several times.

use latchd::base::{ConnId, Millis};
use latchd::engine::types::{By, Effect, Input, Mode, Refusal, Reply, Request};
use latchd::engine::{Rules, SearchLimits};

use super::table::{LOCK, Table, WORK, id};

const WAIT: Millis = Millis::from_secs(600);
const TRIES_MAX: u32 = 8;

fn table(at_once_work: u64) -> Table {
    Table::with(Rules {
        deadlock_detection: true,
        search_limits: SearchLimits {
            at_once_work,
            tries_max: TRIES_MAX,
        },
        ..Rules::default()
    })
}

fn key_of(client: u32) -> [u8; 4] {
    client.to_le_bytes()
}

fn acquire(key: &[u8], wait: Millis) -> Request<'_> {
    let lease = Some(WAIT);
    Request::Acquire {
        key,
        mode: LOCK,
        wait,
        lease,
    }
}

/// Client 0 waits for what client 1 holds, who waits for what client 2 holds, and so on; the last one
/// waits for nothing.
fn chain(table: &mut Table, clients: u32) {
    for client in 0..clients {
        table.grant(client, &key_of(client), LOCK, WAIT);
    }
    for client in (0..clients - 1).rev() {
        assert_eq!(table.ask(client, acquire(&key_of(client + 1), WAIT)), []);
    }
}

/// The last one of a chain asks for what the first one holds.
fn close(table: &mut Table, clients: u32) -> Vec<Effect> {
    table.ask(clients - 1, acquire(&key_of(0), WAIT)).to_vec()
}

fn deadlock(client: u32) -> [Effect; 1] {
    let refused = Reply::Refused(Refusal::Deadlock);
    [Effect::Reply(id(client), refused)]
}

fn has_more(table: &Table) -> bool {
    table
        .engine
        .next_deadline()
        .is_some_and(|it| it <= table.now)
}

/// Small turns until nothing is left to do; how many there were, and what was said in them.
fn settle(table: &mut Table, work: u64) -> (u32, Vec<Effect>) {
    let (mut turns, mut said) = (0, Vec::new());
    while has_more(table) {
        table.turn(work);
        said.extend(table.out.clone());
        turns += 1;
        assert!(turns < 100_000, "the search never ends");
    }
    (turns, said)
}

fn given_up(table: &Table) -> u64 {
    table.engine.figures().searches_given_up()
}

#[test]
fn ten_thousand_in_a_chain_are_looked_at_at_once() {
    const CLIENTS: u32 = 10_000;
    let mut table = table(SearchLimits::default().at_once_work);
    chain(&mut table, CLIENTS);
    table.engine.take_work();
    assert_eq!(close(&mut table, CLIENTS), deadlock(CLIENTS - 1));
    assert!(table.engine.take_work() < SearchLimits::default().at_once_work);
    assert!(!has_more(&table));
    table.engine.check();
}

#[test]
fn a_long_search_goes_on_in_small_turns_and_only_the_one_who_asked_is_told() {
    const CLIENTS: u32 = 2_000;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    table.engine.take_work();
    assert_eq!(close(&mut table, CLIENTS), [], "it waits meanwhile");
    assert!(table.engine.take_work() < 10_000);
    let waiters = table.engine.counts().waiters;
    table.turn(0);
    assert!(
        table.engine.take_work() < 10_000,
        "a turn that may do nothing does much"
    );
    table.engine.check();
    let (turns, said) = settle(&mut table, 10_000);
    assert_eq!(said, deadlock(CLIENTS - 1));
    assert!(turns > 5, "{turns} turns");
    assert_eq!(
        table.engine.counts().waiters,
        waiters - 1,
        "it has left the queue"
    );
    assert_eq!(given_up(&table), 0);
    assert_eq!(table.engine.figures().deadlocks(), 1);
    for client in 0..CLIENTS {
        table.leave(client);
    }
    table.assert_nothing_is_left();
}

#[test]
fn a_search_begins_anew_when_somebody_lets_something_go() {
    const CLIENTS: u32 = 2_000;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    assert_eq!(close(&mut table, CLIENTS), []);
    table.turn(10_000);
    let token = Some(table.grant(CLIENTS, b"unrelated", LOCK, WAIT));
    let key = b"unrelated";
    table.answer(CLIENTS, Request::Release { key, token });
    table.turn(10_000);
    assert!(has_more(&table));
    assert_eq!(settle(&mut table, WORK).1, deadlock(CLIENTS - 1));
    assert_eq!(given_up(&table), 0);
}

#[test]
fn a_search_that_always_has_to_begin_anew_is_given_up() {
    const CLIENTS: u32 = 2_000;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    assert_eq!(close(&mut table, CLIENTS), []);
    let mut tries = 0;
    while has_more(&table) {
        let token = Some(table.grant(CLIENTS, b"unrelated", LOCK, WAIT));
        let key = b"unrelated";
        table.answer(CLIENTS, Request::Release { key, token });
        table.turn(1_000);
        assert_eq!(table.out, []);
        tries += 1;
    }
    assert_eq!((tries, given_up(&table)), (TRIES_MAX + 1, 1));
    // It waits as it would have without anybody looking, and so do the others.
    assert_eq!(table.engine.counts().waiters, CLIENTS as usize);
    table.engine.check();
}

#[test]
fn who_leaves_during_a_search_is_not_waited_for() {
    const CLIENTS: u32 = 2_000;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    assert_eq!(close(&mut table, CLIENTS), []);
    table.turn(10_000);
    // Somebody who was looked at has left; then somebody who has only hung up.
    let hung_up = Input::HungUp(id(1), true);
    table.engine.apply(table.now, hung_up, &mut table.out);
    assert_eq!(settle(&mut table, 10_000).1, []);
    assert_eq!(table.engine.figures().deadlocks(), 0);
    assert_eq!(given_up(&table), 0);
    table.engine.check();
}

#[test]
fn who_is_granted_during_a_search_is_not_told_anything_else() {
    const CLIENTS: u32 = 2_000;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    assert_eq!(close(&mut table, CLIENTS), []);
    table.turn(10_000);
    table.leave(0);
    let granted = table.out.clone();
    assert_eq!(granted.len(), 1, "{granted:?}");
    assert_eq!(settle(&mut table, 10_000).1, []);
    table.engine.check();
}

#[test]
fn a_shutdown_ends_searches() {
    const CLIENTS: u32 = 500;
    let mut table = table(1_000);
    chain(&mut table, CLIENTS);
    assert_eq!(close(&mut table, CLIENTS), []);
    table.out.clear();
    table.engine.apply(table.now, Input::Drain, &mut table.out);
    settle(&mut table, WORK);
    table.engine.check();
    assert_eq!(table.engine.figures().deadlocks(), 0);
}

#[test]
fn only_so_many_searches_are_put_off() {
    const CLIENTS: u32 = 1_100;
    let mut table = table(0);
    table.grant(CLIENTS, b"hot", LOCK, WAIT);
    table.grant(CLIENTS + 1, b"wanted", LOCK, WAIT);
    for client in 0..CLIENTS {
        table.grant(client, &key_of(client), LOCK, WAIT);
        let other = CLIENTS + 2 + client;
        assert_eq!(table.ask(other, acquire(&key_of(client), WAIT)), []);
        assert_eq!(table.ask(client, acquire(b"hot", WAIT)), []);
    }
    assert_eq!(given_up(&table), u64::from(CLIENTS) - 1_024);
    assert_eq!(settle(&mut table, WORK).1, []);
    assert_eq!(given_up(&table), u64::from(CLIENTS) - 1_024);
}

/// Somebody who was looked at and did not wait begins to wait before the search comes to where it does.
#[test]
fn who_begins_to_wait_during_a_search_is_not_counted_twice() {
    const SLOTS: u32 = 2_002;
    let slot = Mode::Slot { limit: SLOTS };
    let [early, many, late, holder, asker, behind] = [0, 1, 2, 3, 4, 5];
    let mut table = table(1_000);
    table.grant(early, b"slots", slot, WAIT);
    for _ in 0..SLOTS - 2 {
        table.grant(many, b"slots", slot, WAIT);
    }
    table.grant(late, b"slots", slot, WAIT);
    table.grant(holder, b"k", LOCK, WAIT);
    let (key, mode, lease) = (b"k", LOCK, Some(WAIT));
    table.answer(early, Request::Enqueue { key, mode, lease });
    assert_eq!(table.ask(late, acquire(b"k", WAIT)), []);
    table.grant(asker, b"z", LOCK, WAIT);
    assert_eq!(table.ask(behind, acquire(b"z", WAIT)), []);
    let ask = Request::Acquire {
        key: b"slots",
        mode: slot,
        wait: WAIT,
        lease,
    };
    assert_eq!(table.ask(asker, ask), []);
    table.turn(0); // it has seen the first holders
    assert!(has_more(&table), "the search is over at once");
    assert_eq!(table.ask(early, Request::Wait { key, wait: WAIT }), []);
    assert!(has_more(&table), "the search is over already");
    assert_eq!(settle(&mut table, 10_000).1, []);
    assert_eq!(table.engine.figures().deadlocks(), 0);
    table.engine.check();
}

/// A million readers before one writer: each turn looks at a part of them.
#[test]
fn a_crowd_of_holders_is_looked_at_a_part_at_a_time() {
    const READERS: u32 = 20_000;
    let mut table = table(1_000);
    for client in 0..READERS {
        table.grant(client, b"doc", Mode::Read, WAIT);
    }
    let writer = READERS;
    table.grant(writer, b"x", LOCK, WAIT);
    assert_eq!(table.ask(0, acquire(b"x", WAIT)), []);
    let write = Request::Acquire {
        key: b"doc",
        mode: Mode::Write,
        wait: WAIT,
        lease: None,
    };
    table.engine.take_work();
    assert_eq!(table.ask(writer, write), []);
    assert!(table.engine.take_work() < 10_000);
    let mut longest = 0;
    let mut said = Vec::new();
    while has_more(&table) {
        table.turn(20_000);
        longest = longest.max(table.engine.take_work());
        said.extend(table.out.clone());
    }
    assert!(longest < 60_000, "{longest}");
    assert_eq!(said, deadlock(writer));
}

fn ask_as(table: &mut Table, conn: u32, owner: &str, request: Request<'_>) -> Vec<Effect> {
    table.out.clear();
    let by = By {
        owner,
        request: b"",
    };
    let input = Input::RequestBy(id(conn), by, request);
    table.engine.apply(table.now, input, &mut table.out);
    table.out.clone()
}

fn is_granted(effects: &[Effect], to: ConnId) -> bool {
    matches!(effects, [Effect::Reply(id, Reply::Granted { .. })] if *id == to)
}

/// What it holds and waits for belongs to the name, whatever connection it came by.
#[test]
fn owners_that_are_known_by_name_wait_for_each_other_too() {
    let mut table = table(1_000_000);
    assert!(is_granted(
        &ask_as(&mut table, 0, "one", acquire(b"x", Millis::ZERO)),
        id(0)
    ));
    assert!(is_granted(
        &ask_as(&mut table, 0, "two", acquire(b"y", Millis::ZERO)),
        id(0)
    ));
    assert_eq!(ask_as(&mut table, 1, "one", acquire(b"y", WAIT)), []);
    assert_eq!(
        ask_as(&mut table, 2, "two", acquire(b"x", WAIT)),
        deadlock(2)
    );
    // The connection that waits goes, and with it the wait.
    table.leave(1);
    assert_eq!(ask_as(&mut table, 2, "two", acquire(b"x", WAIT)), []);
    table.engine.check();
}

/// It gets on when all of its waits come to an end.
#[test]
fn an_owner_that_waits_twice_is_stuck_if_one_of_its_waits_is() {
    let mut table = table(1_000_000);
    assert!(is_granted(
        &ask_as(&mut table, 0, "one", acquire(b"x", Millis::ZERO)),
        id(0)
    ));
    table.grant(1, b"free", LOCK, WAIT);
    table.grant(2, b"y", LOCK, WAIT);
    assert_eq!(ask_as(&mut table, 3, "one", acquire(b"free", WAIT)), []);
    assert_eq!(ask_as(&mut table, 4, "one", acquire(b"y", WAIT)), []);
    assert_eq!(table.ask(2, acquire(b"x", WAIT)), deadlock(2));
    table.leave(4);
    assert_eq!(table.ask(2, acquire(b"x", WAIT)), []);
    table.engine.check();
}
