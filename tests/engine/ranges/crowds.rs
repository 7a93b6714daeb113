//! Very many who wait for bytes of one resource: no request and no turn takes long, and everybody is
//! served when time passes.

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{
    Attach, Effect, Effects, Input, RangeAsk, RangeRequest, Reply, Secret, Sharing, Span,
};
use latchd::engine::{Engine, Origin, Rules};

/// All that may wait for bytes in one daemon.
const CROWD: u32 = 4_096;

/// What a server lets the engine spend in one turn.
const TURN: u64 = 1_000_000;

/// Most that one input may cost: five milliseconds or so. A search for a deadlock may take more than half of
/// that.
const INPUT_MAX: u64 = 5_000_000;

const WAIT: Millis = Millis::from_secs(50);
const ALL: Span = Span { start: 0, len: 0 };

pub struct Table {
    pub engine: Engine,
    pub now: Nanos,
    /// What the dearest input has cost.
    dearest: u64,
    /// What all have cost.
    spent: u64,
}

pub const fn id(conn: u32) -> ConnId {
    ConnId {
        slot: conn,
        serial: conn + 1,
    }
}

impl Table {
    pub fn new(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            engine: Engine::new(rules, origin),
            now: Nanos(1),
            dearest: 0,
            spent: 0,
        }
    }

    fn crowded() -> Self {
        Self::new(Rules {
            waiters_per_key_max: CROWD,
            ranges_per_resource_max: 0,
            range_wait_max: Millis::ZERO,
            ..Rules::default()
        })
    }

    pub fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut out = Effects::new();
        self.engine.take_work();
        self.engine.apply(self.now, input, &mut out);
        let cost = self.engine.take_work();
        self.dearest = self.dearest.max(cost);
        self.spent += cost;
        out
    }

    pub fn ask(&mut self, conn: u32, resource: &[u8], owner: &[u8], ask: RangeAsk) -> Effects {
        let request = RangeRequest {
            resource,
            owner,
            ask,
        };
        self.apply(Input::Range(id(conn), None, request))
    }

    pub fn lock(&mut self, conn: u32, resource: &[u8], mode: Sharing, span: Span) -> Effects {
        let wait = WAIT;
        self.ask(conn, resource, b"", RangeAsk::Lock { mode, span, wait })
    }

    fn unlock(&mut self, conn: u32, resource: &[u8]) -> Effects {
        self.ask(conn, resource, b"", RangeAsk::Unlock { span: ALL })
    }

    pub fn has_more(&self) -> bool {
        self.engine.next_deadline().is_some_and(|it| it <= self.now)
    }

    /// Turn after turn until nothing is left to do now; what was said, and how many turns it took.
    pub fn rest(&mut self, work: u64) -> (Effects, u32) {
        let (mut said, mut turns) = (Effects::new(), 0);
        while turns == 0 || self.has_more() {
            said.extend(self.apply(Input::Time(work)));
            turns += 1;
            assert!(turns < 1_000_000, "it never ends");
        }
        (said, turns)
    }

    fn assert_nothing_took_long(&self) {
        assert!(self.dearest <= INPUT_MAX, "one input cost {}", self.dearest);
    }

    fn waiting(&self) -> usize {
        self.engine.view(self.now).range_counts().waiting
    }

    fn assert_nothing_is_left(&mut self) {
        self.engine.check();
        let counts = self.engine.view(self.now).range_counts();
        assert_eq!((counts.resources, counts.locks, counts.waiting), (0, 0, 0));
    }
}

/// Who was granted something, in order.
pub fn granted(said: &[Effect]) -> Vec<u32> {
    let granted = said.iter().filter_map(|it| match it {
        Effect::Reply(id, Reply::Done) => Some(id.slot),
        _ => None,
    });
    granted.collect()
}

const fn bytes(start: u64, len: u64) -> Span {
    Span { start, len }
}

#[test]
fn a_crowd_that_wants_the_same_bytes_has_them_one_by_one_and_no_unlock_takes_long() {
    let mut table = Table::crowded();
    let span = bytes(0, 10);
    assert_eq!(granted(&table.lock(0, b"f", Sharing::Exclusive, span)), [0]);
    for conn in 1..=CROWD {
        assert_eq!(table.lock(conn, b"f", Sharing::Exclusive, span), []);
    }
    let refused = table.lock(CROWD + 1, b"f", Sharing::Exclusive, span);
    assert!(granted(&refused).is_empty() && refused.len() == 1);
    assert_eq!(table.waiting(), CROWD as usize);
    table.engine.check();
    // All of them would take minutes of a debug build, and the first hundred are the dearest.
    for conn in 0..100 {
        let mut said = table.unlock(conn, b"f");
        said.extend(table.rest(TURN).0);
        assert_eq!(granted(&said), [conn, conn + 1]);
    }
    table.assert_nothing_took_long();
    // The rest leave in one storm; nobody is granted anything who has hung up.
    for conn in 100..=CROWD {
        assert_eq!(table.apply(Input::HungUp(id(conn), true)), []);
    }
    for conn in 100..=CROWD {
        let said = table.apply(Input::Disconnected(id(conn)));
        assert_eq!(granted(&said), [0_u32; 0]);
    }
    table.rest(TURN);
    table.assert_nothing_took_long();
    table.assert_nothing_is_left();
}

#[test]
fn a_crowd_of_readers_comes_in_a_part_at_a_time() {
    let mut table = Table::crowded();
    table.lock(0, b"f", Sharing::Exclusive, ALL);
    for conn in 1..=CROWD {
        let span = bytes(u64::from(conn), 10);
        assert_eq!(table.lock(conn, b"f", Sharing::Shared, span), []);
    }
    // To show who waits for whom is to compare each with all before it, and that ends somewhere.
    let mut edges = 0;
    let looks = table.engine.view(table.now).edges(|_| {
        edges += 1;
        true
    });
    assert!((500..CROWD).contains(&edges), "{edges} edges");
    assert!((5_000..50_000).contains(&looks), "{looks} looks");
    let mut said = table.unlock(0, b"f");
    assert!(granted(&said).len() < 1_000, "all in one request");
    let (rest, turns) = table.rest(TURN);
    said.extend(rest);
    assert_eq!(granted(&said), (0..=CROWD).collect::<Vec<_>>());
    assert!(turns > 1);
    table.assert_nothing_took_long();
    table.engine.check();
    // Somebody who comes meanwhile is answered at once, with whatever is true then.
    assert_eq!(
        granted(&table.lock(CROWD + 1, b"g", Sharing::Shared, ALL)),
        [CROWD + 1]
    );
}

/// Each has something and is only behind the one before it, so each has to be looked at.
fn chain(table: &mut Table, length: u32) {
    for conn in 0..=length {
        let own = [b'r', conn as u8, (conn >> 8) as u8];
        table.lock(conn, &own, Sharing::Exclusive, ALL);
    }
    table.lock(0, b"f", Sharing::Exclusive, bytes(0, 1));
    for conn in 1..=length {
        let span = bytes(u64::from(conn) - 1, 2);
        assert_eq!(table.lock(conn, b"f", Sharing::Exclusive, span), []);
        table.rest(TURN);
    }
}

#[test]
fn a_chain_of_those_who_are_behind_each_other_comes_to_its_end() {
    const LENGTH: u32 = 400;
    let mut table = Table::crowded();
    chain(&mut table, LENGTH);
    table.assert_nothing_took_long();
    table.engine.check();
    // Each unlocks everything when it is granted something, so that the chain is gone through to its end.
    let mut to_unlock = vec![0];
    let mut order = Vec::new();
    while let Some(conn) = to_unlock.pop() {
        let mut said = table.unlock(conn, b"f");
        said.extend(table.rest(TURN).0);
        order.extend(granted(&said).into_iter().filter(|&it| it != conn));
        to_unlock.extend(granted(&said).into_iter().filter(|&it| it != conn));
    }
    assert_eq!(order.len(), LENGTH as usize, "{order:?}");
    table.assert_nothing_took_long();
    assert_eq!(table.waiting(), 0);
    let each = table.spent / u64::from(LENGTH);
    assert!(each < 40_000_000, "each of them cost {each}");
}

/// Those behind others are looked at again and again, a part at a time, and none of them is forgotten for
/// the others.
#[test]
fn nobody_behind_others_is_overlooked_because_there_are_many() {
    const LENGTH: u32 = 300;
    let mut table = Table::crowded();
    chain(&mut table, LENGTH);
    let [a, b, c] = [LENGTH + 1, LENGTH + 2, LENGTH + 3];
    table.lock(a, b"g", Sharing::Exclusive, bytes(0, 10));
    table.lock(c, b"h", Sharing::Exclusive, ALL);
    assert_eq!(table.lock(b, b"g", Sharing::Exclusive, bytes(0, 20)), []);
    let behind = table.lock(c, b"g", Sharing::Exclusive, bytes(10, 10));
    assert_eq!(behind, []);
    table.rest(0);
    // Now c is behind b, who waits for a, who waits for c.
    assert_eq!(table.lock(a, b"h", Sharing::Exclusive, ALL), []);
    let mut said = Effects::new();
    for _ in 0..600 {
        table.now = table.now.after(Millis(10));
        said.extend(table.apply(Input::Time(0)));
    }
    assert_eq!(granted(&said), [c]);
    table.assert_nothing_took_long();
    table.engine.check();
}

/// A circle through very many, each of whom only the order of the queue keeps waiting: it is enough if one
/// of them passes.
#[test]
fn a_long_circle_is_broken_by_letting_one_pass() {
    const LENGTH: u32 = 300;
    let mut table = Table::crowded();
    chain(&mut table, LENGTH);
    let last = [b'r', LENGTH as u8, (LENGTH >> 8) as u8];
    assert_eq!(table.lock(0, &last, Sharing::Exclusive, ALL), []);
    let mut said = Effects::new();
    for _ in 0..30 {
        table.now = table.now.after(Millis(100));
        said.extend(table.rest(TURN).0);
    }
    assert_eq!(granted(&said).len(), 1, "{said:?}");
    table.assert_nothing_took_long();
    table.engine.check();
}

#[test]
fn a_client_with_very_many_ranges_and_waits_departs_a_part_at_a_time() {
    const OWNERS: u32 = 2_000;
    let mut table = Table::crowded();
    let attach = Attach {
        adapter: None,
        id: "gw/1",
        ttl: Millis(1_000),
        secret: Secret(b"s3cret"),
    };
    table.apply(Input::Attach(id(0), attach));
    for owner in 0..OWNERS {
        for start in [0, 20] {
            let lock = RangeAsk::Lock {
                mode: Sharing::Shared,
                span: bytes(u64::from(owner) * 40 + start, 10),
                wait: Millis::ZERO,
            };
            let said = table.ask(0, b"f", &owner.to_le_bytes(), lock);
            assert_eq!(granted(&said), [0]);
        }
    }
    for conn in 1..=OWNERS {
        let span = bytes(u64::from(conn - 1) * 40, 40);
        assert_eq!(table.lock(conn, b"f", Sharing::Exclusive, span), []);
    }
    table.apply(Input::Disconnected(id(0)));
    assert_eq!(table.rest(TURN).0, [], "it is away");
    table.now = table.now.after(Millis(1_000));
    let (said, turns) = table.rest(TURN);
    assert_eq!(granted(&said).len(), OWNERS as usize);
    assert!(turns > 1, "all in one turn");
    table.assert_nothing_took_long();
    table.engine.check();
}

/// Of all resources that a client has something of, none is granted before the last of its range locks has
/// ended, and the break ends nothing that was granted after it began.
#[test]
fn a_break_of_a_client_with_very_many_ranges_ends_all_of_them_before_anything_is_granted() {
    const FILES: u32 = 1_000;
    let [holder, reader, late, operator] = [0, 1, 2, 3];
    let mut table = Table::crowded();
    let name = |file: u32| format!("f{file}");
    for file in 0..FILES {
        for piece in 0..3 {
            let span = bytes(10 + 20 * piece, 10);
            table.lock(holder, name(file).as_bytes(), Sharing::Shared, span);
        }
    }
    table.lock(reader, b"f7", Sharing::Shared, bytes(10, 10));
    let wait = table.lock(late, b"f0", Sharing::Exclusive, bytes(0, 20));
    assert_eq!(wait, []);
    let client = format!("#{}", id(holder).serial);
    let mut said = table.apply(Input::BreakRangesOf(id(operator), client.as_bytes()));
    let mut slices = 0;
    said.retain(|it| !matches!(it, Effect::Note(_)));
    assert_eq!(said, [], "all at once");
    while table.has_more() {
        slices += 1;
        for resource in [&b"f0"[..], b"f999", b"other"] {
            let (mode, span, wait) = (Sharing::Exclusive, bytes(0, 0), Millis::ZERO);
            let ask = RangeAsk::Lock { mode, span, wait };
            let told = table.ask(holder, resource, b"", ask);
            assert_eq!(told, [Effect::NotYet(id(holder))]);
        }
        said.extend(table.apply(Input::Time(0)));
        said.retain(|it| !matches!(it, Effect::Note(_)));
        table.engine.check();
        if !said.is_empty() {
            break;
        }
    }
    assert!(slices > 10, "all in {slices} slices");
    let expected = [
        Effect::Reply(id(operator), Reply::Number(3 * i64::from(FILES))),
        Effect::Reply(id(late), Reply::Done),
    ];
    said.extend(table.rest(TURN).0);
    assert_eq!(said, expected);
    let counts = table.engine.view(table.now).range_counts();
    assert_eq!((counts.locks, counts.waiting), (2, 0));
    table.assert_nothing_took_long();
    table.unlock(reader, b"f7");
    table.unlock(late, b"f0");
    table.assert_nothing_is_left();
}

/// A break takes several turns. Until the last of its range locks has ended nothing of the resource is granted,
/// neither to a waiter nor to a new request, so the break ends nothing that was granted after it began.
#[test]
fn a_break_of_very_many_ranges_ends_all_of_them_before_anything_is_granted() {
    const PIECES: u64 = 5_000;
    let [holder, reader, late, operator] = [0, 1, 2, 3];
    let mut table = Table::crowded();
    for piece in 0..PIECES {
        let span = bytes(10 + 20 * piece, 10);
        assert_eq!(
            granted(&table.lock(holder, b"f", Sharing::Shared, span)),
            [0]
        );
    }
    table.lock(reader, b"f", Sharing::Shared, bytes(0, 5));
    let wait = table.lock(holder, b"f", Sharing::Exclusive, bytes(0, 20));
    assert_eq!(wait, []);
    let mut said = table.apply(Input::BreakRanges(id(operator), b"f", None));
    let mut slices = 0;
    while table.has_more() {
        slices += 1;
        said.retain(|it| !matches!(it, Effect::Note(_)));
        assert_eq!(said, [], "something was granted before all had ended");
        let span = bytes(5, 1);
        let wait = Millis::ZERO;
        let mode = Sharing::Exclusive;
        for ask in [
            RangeAsk::Lock { mode, span, wait },
            RangeAsk::Unlock { span },
            RangeAsk::Reclaim { mode, span },
        ] {
            let told = table.ask(late, b"f", b"", ask);
            assert_eq!(told, [Effect::NotYet(id(late))]);
        }
        said.extend(table.apply(Input::Time(0)));
        table.engine.check();
    }
    said.retain(|it| !matches!(it, Effect::Note(_)));
    assert!(slices > 10, "all in {slices} slices");
    let expected = [
        Effect::Reply(id(operator), Reply::Number(PIECES as i64 + 1)),
        Effect::Reply(id(holder), Reply::Done),
    ];
    assert_eq!(said, expected);
    let counts = table.engine.view(table.now).range_counts();
    assert_eq!((counts.locks, counts.waiting), (1, 0));
    table.assert_nothing_took_long();
    assert_eq!(granted(&table.unlock(holder, b"f")), [holder]);
    table.assert_nothing_is_left();
}
