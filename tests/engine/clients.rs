//! Attached clients, put before the engine by themselves: crowds are undone a part at a time, nothing
//! that a client acquires later is undone with what it left, and what is kept of clients is bounded.
//! What a client says and hears is in `scripts/clients.txt`, what survives in
//! `records/transcripts/clients.txt`.

#![allow(clippy::unwrap_used, missing_docs)]

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{
    Attach, Effect, Effects, Input, Mode, OfClient, RangeAsk, RangeRequest, Refusal, Reply,
    Request, Secret, Sharing, Span,
};
use latchd::engine::view::Counts;
use latchd::engine::{ADAPTERS_MAX, Engine, Origin, Rules, Someone};

const LOCK: Mode = Mode::Slot { limit: 1 };
const SECRET: Secret<'static> = Secret(b"s3cret");
const HOUR: Millis = Millis::from_secs(3_600);

/// What a server gives the engine in one turn, about.
const TURN_WORK: u64 = 1_000_000;

struct Table {
    engine: Engine,
    now: Nanos,
    checks: bool,
}

const fn conn(number: u32) -> ConnId {
    ConnId {
        slot: number,
        serial: number,
    }
}

impl Table {
    fn new(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            now: Nanos(1),
            checks: true,
        }
    }

    /// Without looking at everything after every step.
    fn large() -> Self {
        let rules = Rules {
            locks_max: 0,
            ..Rules::default()
        };
        Self {
            checks: false,
            ..Self::new(rules)
        }
    }

    fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut out = Effects::new();
        self.engine.apply(self.now, input, &mut out);
        if self.checks {
            self.engine.check();
        }
        out
    }

    /// The answer, if there is one now.
    fn ask(&mut self, input: Input<'_>) -> Option<Reply> {
        let out = self.apply(input);
        let mut replies = out.into_iter().filter_map(|it| match it {
            Effect::Reply(_, reply) => Some(reply),
            _ => None,
        });
        replies.next()
    }

    fn attach(&mut self, who: u32, id: &str, ttl: Millis) -> Option<Reply> {
        let secret = SECRET;
        self.ask(Input::Attach(
            conn(who),
            Attach {
                id,
                ttl,
                secret,
                adapter: None,
            },
        ))
    }

    fn acquire(&mut self, who: u32, key: &[u8], mode: Mode) -> Option<Token> {
        let request = Request::Acquire {
            key,
            mode,
            wait: Millis::ZERO,
            lease: Some(HOUR),
        };
        match self.ask(Input::Request(conn(who), request)) {
            Some(Reply::Granted { token, .. }) => Some(token),
            _ => None,
        }
    }

    fn leave(&mut self, who: u32) {
        self.apply(Input::Disconnected(conn(who)));
    }

    fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
    }

    /// Time passes until nothing is left over; returns how often, and what the dearest of them cost.
    fn rest(&mut self) -> (u32, u64) {
        let (mut turns, mut dearest) = (0, 0);
        loop {
            self.engine.take_work();
            self.apply(Input::Time(TURN_WORK));
            turns += 1;
            dearest = dearest.max(self.engine.take_work());
            if self.engine.next_deadline() != Some(Nanos(0)) {
                return (turns, dearest);
            }
            assert!(turns < 1_000_000, "it never ends");
        }
    }
}

const NEW: Option<Reply> = Some(Reply::Attached {
    epoch: 1,
    is_new: true,
    reclaim: None,
});
const RESUMED: Option<Reply> = Some(Reply::Attached {
    epoch: 1,
    is_new: false,
    reclaim: None,
});

fn refused(why: Refusal) -> Option<Reply> {
    Some(Reply::Refused(why))
}

/// A client with so many holds, and who waits for the last of them.
fn with_holds(table: &mut Table, holds: u32) {
    assert_eq!(table.attach(1, "gw/1", Millis(1_000)), NEW);
    for number in 0..holds {
        let token = table.acquire(1, &number.to_le_bytes(), LOCK);
        assert!(token.is_some());
    }
}

#[test]
fn a_client_with_a_million_holds_departs_a_part_at_a_time() {
    const HOLDS: u32 = 1_000_000;
    let mut table = Table::large();
    with_holds(&mut table, HOLDS);
    table.leave(1);
    table.rest();
    assert_eq!(table.engine.counts().holders, HOLDS as usize, "it is away");
    table.pass(Millis(1_000));
    let (turns, dearest) = table.rest();
    assert!(dearest < 2 * TURN_WORK, "one turn cost {dearest}");
    assert!(turns > HOLDS / 2_000, "all was done in {turns} turns");
    let counts = table.engine.counts();
    assert_eq!((counts.holders, counts.clients, counts.owners), (0, 0, 0));
    assert_eq!(table.engine.tally().disconnects, u64::from(HOLDS));
}

#[test]
fn nobody_waits_for_a_crowd_that_a_client_left() {
    let mut table = Table::large();
    with_holds(&mut table, 100_000);
    table.leave(1);
    table.pass(Millis(1_000));
    table.apply(Input::Time(0));
    // Another's lock is free at once, and its client gone.
    assert_eq!(table.attach(2, "gw/2", Millis::ZERO), NEW);
    assert!(table.acquire(2, b"other", LOCK).is_some());
    table.leave(2);
    let mut turns = 0;
    while table.acquire(3, b"other", LOCK).is_none() {
        table.apply(Input::Time(0));
        turns += 1;
        assert!(turns < 10, "it stands behind the crowd");
    }
    assert!(
        table.engine.counts().holders > 90_000,
        "the crowd was undone first"
    );
}

#[test]
fn whoever_comes_back_while_it_is_undone_waits_for_that_and_is_new() {
    let mut table = Table::large();
    with_holds(&mut table, 10_000);
    table.leave(1);
    table.pass(Millis(1_000));
    for _ in 0..2 {
        table.apply(Input::Time(0)); // its time is over, and then a little is undone
    }
    let counts = table.engine.counts();
    assert!(counts.holders > 0 && counts.holders < 10_000);
    // It is not answered yet, so nothing that it would acquire can be undone with the rest.
    let attach = Attach {
        adapter: None,
        id: "gw/1",
        ttl: Millis(1_000),
        secret: SECRET,
    };
    let out = table.apply(Input::Attach(conn(2), attach));
    assert_eq!(out, [Effect::NotYet(conn(2))]);
    let out = table.apply(Input::Detach(conn(3), "gw/1", SECRET));
    assert_eq!(out, [Effect::NotYet(conn(3))]);
    table.rest();
    assert_eq!(table.attach(2, "gw/1", Millis(1_000)), NEW);
    let token = table.acquire(2, &7_u32.to_le_bytes(), LOCK);
    assert!(token.is_some());
    table.rest();
    assert_eq!(table.engine.counts().holders, 1, "it lost what it acquired");
}

#[test]
fn places_in_queues_end_a_part_at_a_time_and_none_taken_later_is_lost() {
    const PLACES: u32 = 10_000;
    let mut table = Table::large();
    assert_eq!(table.attach(1, "gw/1", HOUR), NEW);
    for number in 0..PLACES {
        let (key, lease) = (&number.to_le_bytes()[..], Some(HOUR));
        if number % 2 == 0 {
            assert!(table.acquire(9, key, LOCK).is_some());
        }
        let enqueue = Request::Enqueue {
            key,
            mode: LOCK,
            lease,
        };
        assert!(table.ask(Input::Request(conn(1), enqueue)).is_some());
    }
    table.leave(1);
    let counts = table.engine.counts();
    assert!(counts.waiters > 0, "all in one piece");
    let attach = Attach {
        adapter: None,
        id: "gw/1",
        ttl: HOUR,
        secret: SECRET,
    };
    let out = table.apply(Input::Attach(conn(2), attach));
    assert_eq!(out, [Effect::NotYet(conn(2))]);
    table.rest();
    assert_eq!(table.attach(2, "gw/1", HOUR), RESUMED);
    let counts = table.engine.counts();
    let half = PLACES as usize / 2;
    assert_eq!(
        (counts.waiters, counts.tickets),
        (0, half),
        "what is granted stays"
    );
    table.engine.check();
    let enqueue = Request::Enqueue {
        key: &0_u32.to_le_bytes(),
        mode: LOCK,
        lease: None,
    };
    let queued = table.ask(Input::Request(conn(2), enqueue));
    assert_eq!(queued, Some(Reply::Queued));
    table.rest();
    assert_eq!(table.engine.counts().waiters, 1);
}

#[test]
fn a_client_with_very_many_connections_is_detached_a_part_at_a_time() {
    const CONNS: u32 = 20_000;
    let mut table = Table::large();
    assert!(table.acquire(CONNS + 1, b"job", LOCK).is_some());
    for who in 1..=CONNS {
        assert!(table.attach(who, "gw/1", HOUR).is_some());
        let wait = Request::Acquire {
            key: b"job",
            mode: LOCK,
            wait: HOUR,
            lease: None,
        };
        assert_eq!(table.ask(Input::Request(conn(who), wait)), None);
    }
    table.engine.take_work();
    let by = conn(CONNS + 2);
    let out = table.apply(Input::Detach(by, "gw/1", SECRET));
    assert!(table.engine.take_work() < 2 * TURN_WORK, "all in one piece");
    assert!(out.len() < CONNS as usize / 2);
    let (mut told, mut is_done) = (out.len(), false);
    while table.engine.next_deadline() == Some(Nanos(0)) {
        for effect in table.apply(Input::Time(TURN_WORK)) {
            assert!(!is_done, "answered before all was undone");
            match effect {
                Effect::Reply(id, Reply::Done) if id == by => is_done = true,
                Effect::Reply(_, Reply::Refused(Refusal::Detached)) => told += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((told, is_done), (CONNS as usize, true));
    let counts = table.engine.counts();
    assert_eq!((counts.clients, counts.waiters), (0, 0));
    table.engine.check();
    // They are connections like any other again.
    assert!(table.acquire(7, b"own", LOCK).is_some());
    table.leave(7);
    assert!(table.acquire(8, b"own", LOCK).is_some());
}

#[test]
fn whoever_asked_to_detach_and_left_takes_nothing_back() {
    let mut table = Table::large();
    with_holds(&mut table, 10_000);
    assert_eq!(table.ask(Input::Detach(conn(2), "gw/1", SECRET)), None);
    table.leave(2);
    table.leave(1);
    table.rest();
    let counts = table.engine.counts();
    assert_eq!((counts.holders, counts.clients), (0, 0));
    table.engine.check();
}

#[test]
fn very_many_grants_are_broken_a_part_at_a_time() {
    const HOLDS: u32 = 10_000;
    let mut table = Table::large();
    for _ in 0..HOLDS {
        assert!(
            table
                .acquire(1, b"pool", Mode::Slot { limit: HOLDS })
                .is_some()
        );
    }
    let wait = Request::Acquire {
        key: b"pool",
        mode: Mode::Slot { limit: HOLDS },
        wait: HOUR,
        lease: None,
    };
    assert_eq!(table.ask(Input::Request(conn(2), wait)), None);
    table.engine.take_work();
    table.apply(Input::BreakAll(conn(3), b"pool", None));
    assert!(table.engine.take_work() < 2 * TURN_WORK, "all in one piece");
    let mut counts = Vec::new();
    while table.engine.next_deadline() == Some(Nanos(0)) {
        for effect in table.apply(Input::Time(0)) {
            if let Effect::Reply(id, Reply::Number(count)) = effect {
                assert_eq!(id, conn(3));
                counts.push(count);
            }
        }
        // Somebody is granted what is broken meanwhile, and keeps it.
        if counts.is_empty() {
            assert!(
                table
                    .acquire(4, b"pool", Mode::Slot { limit: HOLDS })
                    .is_some()
            );
        }
    }
    assert_eq!(counts, [i64::from(HOLDS)]);
    let held = table.engine.counts().holders;
    assert_eq!(table.engine.tally().grants - u64::from(HOLDS), held as u64);
    assert!(held > 2);
    table.engine.check();
}

#[test]
fn clients_are_bounded_in_number_and_so_are_adapters() {
    let mut table = Table::new(Rules {
        clients_per_adapter_max: 10,
        ..Rules::default()
    });
    table.checks = false;
    let mut who = 0;
    for adapter in 0..ADAPTERS_MAX {
        for number in 0..10 {
            who += 1;
            assert_eq!(table.attach(who, &format!("{adapter}/{number}"), HOUR), NEW);
            table.leave(who); // away counts as well
        }
        who += 1;
        let one_more = table.attach(who, &format!("{adapter}/10"), HOUR);
        assert_eq!(one_more, refused(Refusal::MaxClients));
    }
    who += 1;
    let one_more = table.attach(who, "another/1", HOUR);
    assert_eq!(one_more, refused(Refusal::MaxClients));
    assert_eq!(table.attach(who, "7/7", HOUR), RESUMED);
    table.engine.check();
    // When the last one of an adapter is gone, another may come.
    for number in 0..10 {
        let id = format!("0/{number}");
        let detached = table.ask(Input::Detach(conn(who), &id, SECRET));
        assert_eq!(detached, Some(Reply::Done));
    }
    who += 1;
    assert_eq!(table.attach(who, "another/1", HOUR), NEW);
    table.engine.check();
}

#[test]
fn a_client_that_is_away_costs_a_bounded_amount_of_memory_and_none_when_it_is_gone() {
    const CLIENTS: u32 = 10_000;
    let mut table = Table::large();
    let before = table.engine.memory();
    let id_of = |who: u32| format!("{who:0>256}");
    for who in 1..=CLIENTS {
        assert_eq!(table.attach(who, &id_of(who), Millis(1_000)), NEW);
        table.leave(who);
    }
    let each = (table.engine.memory() - before) / CLIENTS as usize;
    assert!(each < 1_024, "{each} bytes for each client");
    assert_eq!(
        table.engine.view(table.now).client_count(),
        (0, CLIENTS as usize)
    );
    table.pass(Millis(1_000));
    table.rest();
    assert_eq!(table.engine.counts(), Counts::default());
    let after = table.engine.memory() - before;
    assert!(
        after < 256 * 1_024,
        "{after} bytes of clients that are gone"
    );
}

#[test]
fn at_the_bound_on_memory_no_client_is_new() {
    let mut table = Table::new(Rules::default());
    assert_eq!(table.attach(1, "gw/1", HOUR), NEW);
    table.apply(Input::MemoryFull(true));
    assert_eq!(table.attach(2, "gw/2", HOUR), refused(Refusal::Memory));
    assert_eq!(table.attach(2, "gw/1", HOUR), RESUMED);
    table.apply(Input::MemoryFull(false));
    assert_eq!(table.attach(3, "gw/2", HOUR), NEW);
}

/// A stalled connection is one whose renewals may not have been looked at.
#[test]
fn leases_of_a_client_wait_while_one_of_its_connections_is_stalled() {
    let mut table = Table::new(Rules::default());
    assert_eq!(table.attach(1, "gw/1", HOUR), NEW);
    assert_eq!(table.attach(2, "gw/1", HOUR), RESUMED);
    assert!(table.acquire(1, b"job", LOCK).is_some());
    for who in [1, 2] {
        table.apply(Input::Stalled(conn(who), true));
    }
    table.apply(Input::Stalled(conn(1), false));
    table.pass(HOUR);
    table.apply(Input::Time(u64::MAX));
    assert_eq!(table.engine.counts().holders, 1, "the other one is stalled");
    table.leave(2);
    table.pass(Millis(10));
    table.apply(Input::Time(u64::MAX));
    assert_eq!(table.engine.counts().holders, 0);
}

#[test]
fn an_owner_of_the_same_name_is_somebody_else() {
    use latchd::engine::types::By;
    let mut table = Table::new(Rules::default());
    assert_eq!(table.attach(1, "gw/1", HOUR), NEW);
    let by = By {
        owner: "gw/1",
        request: b"",
    };
    let request = Request::Acquire {
        key: b"job",
        mode: LOCK,
        wait: Millis::ZERO,
        lease: Some(HOUR),
    };
    let granted = table.ask(Input::RequestBy(conn(2), by, request));
    assert!(matches!(granted, Some(Reply::Granted { .. })));
    assert_eq!(
        table.ask(Input::Detach(conn(1), "gw/1", SECRET)),
        Some(Reply::Done)
    );
    assert_eq!(table.engine.counts().holders, 1, "the owner's lock is gone");
}

const TTL: Millis = Millis::from_secs(5);

/// A client without a connection of its own, and what is asked for it.
impl Table {
    fn register(&mut self, who: u32, id: &str, ttl: Millis) -> Option<Reply> {
        let secret = SECRET;
        self.ask(Input::Register(
            conn(who),
            Attach {
                id,
                ttl,
                secret,
                adapter: None,
            },
        ))
    }

    /// Asks for a range of the resource `f`, for this client.
    fn range(&mut self, who: u32, id: &str, ask: RangeAsk) -> Option<Reply> {
        let secret = SECRET;
        let (resource, owner) = (&b"f"[..], &b""[..]);
        let request = RangeRequest {
            resource,
            owner,
            ask,
        };
        self.ask(Input::Range(
            conn(who),
            Some(OfClient { id, secret }),
            request,
        ))
    }

    fn lock(&mut self, who: u32, id: &str, start: u64, wait: Millis) -> Option<Reply> {
        let (mode, span) = (Sharing::Exclusive, Span { start, len: 1 });
        self.range(who, id, RangeAsk::Lock { mode, span, wait })
    }

    fn locks(&self) -> usize {
        self.engine.view(self.now).range_counts().locks
    }
}

/// It waits exactly as long as it lives, and longer, and on a connection that takes over its place.
#[test]
fn a_client_without_a_connection_lives_as_long_as_something_waits_for_it() {
    for wait in [TTL, Millis(TTL.0 + 1), Millis(3 * TTL.0)] {
        let mut table = Table::new(Rules::default());
        table.register(1, "a", TTL).unwrap();
        table.register(2, "b", HOUR).unwrap();
        assert_eq!(table.lock(1, "a", 1, Millis::ZERO), Some(Reply::Done));
        assert_eq!(table.lock(2, "b", 2, Millis::ZERO), Some(Reply::Done));
        assert_eq!(table.lock(1, "a", 2, wait), None);
        table.pass(wait);
        table.rest();
        assert_eq!(table.locks(), 2, "it was told just now, after {wait:?}");
        table.pass(Millis(TTL.0 - 1));
        table.rest();
        assert_eq!(table.locks(), 2, "it has its whole time from then on");
        table.pass(Millis(1));
        table.rest();
        assert_eq!(table.locks(), 1, "and no more");
    }
    let mut table = Table::new(Rules::default());
    table.register(1, "a", TTL).unwrap();
    table.register(2, "b", HOUR).unwrap();
    table.lock(1, "a", 1, Millis::ZERO).unwrap();
    table.lock(2, "b", 2, Millis::ZERO).unwrap();
    assert_eq!(table.lock(1, "a", 2, TTL), None);
    table.pass(Millis(TTL.0 - 1));
    assert_eq!(
        table.lock(3, "a", 2, Millis(4 * TTL.0)),
        Some(Reply::TimedOut),
        "the older one"
    );
    table.pass(Millis(3 * TTL.0));
    table.rest();
    assert_eq!(table.locks(), 2, "its request is still open");
}

/// The answer waits for the disk longer than the client lives: nobody else may be told meanwhile that it
/// has the same bytes.
#[test]
fn a_client_that_could_not_be_told_yet_does_not_run_out() {
    let mut table = Table::new(Rules {
        durable: true,
        ..Rules::default()
    });
    table.register(1, "a", TTL).unwrap();
    table.register(2, "b", HOUR).unwrap();
    table.apply(Input::Durable(2));
    table.lock(1, "a", 1, Millis::ZERO).unwrap();
    assert_eq!(table.lock(2, "b", 1, HOUR), None);
    table.pass(Millis(3 * TTL.0));
    table.rest();
    assert_eq!(table.locks(), 1);
    assert_eq!(
        table.lock(3, "b", 1, HOUR),
        Some(Reply::TimedOut),
        "it still waits"
    );
    table.apply(Input::Durable(3));
    table.pass(TTL);
    table.rest();
    let shown = table.engine.view(table.now).ranges(b"f").unwrap();
    let clients: Vec<_> = shown.held().map(|it| it.client).collect();
    assert_eq!(clients, [Someone::Named("b")]);
}

/// Its last connection leaves with many places, it is detached, and what it waits for is granted: all in
/// one turn.
#[test]
fn the_clock_of_a_client_that_is_forgotten_does_not_run_on() {
    let mut table = Table::new(Rules::default());
    table.attach(1, "a", TTL).unwrap();
    table.register(2, "b", HOUR).unwrap();
    table.lock(2, "b", 1, Millis::ZERO).unwrap();
    for index in 0..50 {
        let key = format!("k{index}");
        table.acquire(3, key.as_bytes(), LOCK).unwrap();
        let request = Request::Enqueue {
            key: key.as_bytes(),
            mode: LOCK,
            lease: None,
        };
        assert_eq!(
            table.ask(Input::Request(conn(1), request)),
            Some(Reply::Queued)
        );
    }
    assert_eq!(table.lock(4, "a", 1, HOUR), None);
    table.leave(1);
    let detach = Input::Detach(conn(5), "a", SECRET);
    table.apply(detach);
    let unlock = RangeAsk::Unlock {
        span: Span { start: 1, len: 1 },
    };
    table.range(2, "b", unlock).unwrap();
    table.rest();
    table.pass(HOUR);
    table.rest();
    assert_eq!(table.locks(), 0);
}

/// One lock becomes very many by unlocking, which nothing refuses: they go a part at a time.
#[test]
fn very_many_pieces_of_one_lock_go_a_part_at_a_time() {
    const PIECES: u64 = 20_000;
    let mut table = Table::large();
    table.register(1, "a", TTL).unwrap();
    let (mode, span) = (Sharing::Exclusive, Span { start: 0, len: 0 });
    let wait = Millis::ZERO;
    let all = RangeAsk::Lock { mode, span, wait };
    table.range(1, "a", all).unwrap();
    for piece in 0..PIECES {
        let span = Span {
            start: 2 * piece + 1,
            len: 1,
        };
        assert_eq!(
            table.range(1, "a", RangeAsk::Unlock { span }),
            Some(Reply::Done)
        );
    }
    assert_eq!(table.locks() as u64, PIECES + 1);
    table.pass(TTL);
    let (turns, dearest) = table.rest();
    assert!(
        turns > 4 && dearest < 2 * TURN_WORK,
        "{turns} turns, one of {dearest}"
    );
    assert_eq!(table.locks(), 0);
    table.engine.check();
}

/// A client that is to be kept from now on has everything recorded that it holds, a part at a time. What it gets
/// and lets go of meanwhile is recorded as well, so the records bring back exactly what it has.
#[test]
fn a_client_with_very_many_holds_that_is_to_be_kept_is_recorded_a_part_at_a_time() {
    record_in_parts(10_000, 10_000);
    record_in_parts(10_000, 0);
}

fn record_in_parts(holds: u32, pieces: u64) {
    const PART_WORK_MAX: u64 = TURN_WORK / 4;
    let rules = Rules {
        durable: true,
        locks_max: 0,
        ranges_per_resource_max: 0,
        ranges_per_client_max: 0,
        ranges_max: 0,
        ..Rules::default()
    };
    let mut table = Table {
        checks: false,
        ..Table::new(rules.clone())
    };
    table.attach(1, "a", Millis::ZERO).unwrap();
    table.attach(2, "a", Millis::ZERO).unwrap();
    let mut tokens = Vec::new();
    for key in 0..holds {
        tokens.push(table.acquire(1, &key.to_le_bytes(), LOCK).unwrap());
    }
    let range = |resource: &'static [u8], owner: u64, start, locks: bool| {
        let span = Span { start, len: 1 };
        let ask = match locks {
            false => RangeAsk::Unlock { span },
            true => RangeAsk::Lock {
                mode: Sharing::Exclusive,
                span,
                wait: Millis::ZERO,
            },
        };
        (resource, owner.to_le_bytes(), ask)
    };
    let change = |table: &mut Table, (resource, owner, ask): (&[u8], [u8; 8], RangeAsk)| {
        let request = RangeRequest {
            resource,
            owner: &owner,
            ask,
        };
        let input = Input::Range(conn(2), None, request);
        assert_eq!(table.ask(input), Some(Reply::Done));
    };
    for piece in 0..pieces {
        change(&mut table, range(b"one owner", 0, 2 * piece, true));
        change(&mut table, range(b"many owners", piece, 2 * piece, true));
    }
    let mut records: Vec<_> = table.engine.take_records().collect();
    let (mut parts, mut dearest) = (0, 0);
    let reply = loop {
        let attach = Attach {
            adapter: None,
            id: "a",
            ttl: HOUR,
            secret: SECRET,
        };
        table.engine.take_work();
        let out = table.apply(Input::Attach(conn(1), attach));
        dearest = dearest.max(table.engine.take_work());
        parts += 1;
        match &out[..] {
            [Effect::NotYet(_)] | [Effect::Mark(_), Effect::NotYet(_)] => {}
            _ => break out,
        }
        // Others of the client go on: what is let go may be recorded already, or stand there next.
        let at = (parts * 37) % 10_000;
        for owner in [at, 9_999 - at, parts] {
            change(&mut table, range(b"one owner", 0, 2 * owner, false));
            change(&mut table, range(b"many owners", owner, 2 * owner, false));
        }
        change(&mut table, range(b"one owner", 0, 2 * at + 1, true));
        change(&mut table, range(b"many owners", at + 3, 2 * at + 1, true));
        let key = (at as u32) % holds;
        let release = Request::Release {
            key: &key.to_le_bytes(),
            token: Some(tokens[key as usize]),
        };
        table.apply(Input::Request(conn(2), release));
        table.acquire(2, format!("new {parts}").as_bytes(), LOCK);
        records.extend(table.engine.take_records());
    };
    records.extend(table.engine.take_records());
    let last = table.engine.record_count();
    assert!(
        matches!(reply[0], Effect::Mark(mark) if mark == last),
        "{reply:?}"
    );
    assert!(
        parts > 20 && dearest < PART_WORK_MAX,
        "{parts} parts, one of {dearest}"
    );
    table.engine.check();
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    let mut restored = Engine::new(rules, origin);
    for record in &records {
        restored.apply(Nanos(1), Input::Restore(record), &mut Effects::new());
    }
    let image = |engine: &Engine| -> Vec<String> {
        let image = engine.image().into_iter().map(|it| format!("{it:?}"));
        let mut image: Vec<String> = image.collect();
        image.sort_unstable();
        image
    };
    assert!(
        image(&restored) == image(&table.engine),
        "something is not recorded"
    );
}
