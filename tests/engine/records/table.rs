//! An engine that records, its clock, and the list of its records: what every test here begins with.

use latchd::base::{ConnId, Nanos};
use latchd::engine::types::{Effects, Input, Record};
use latchd::engine::{Engine, Origin, Rules};

pub(crate) struct Table {
    pub(crate) engine: Engine,
    pub(crate) now: Nanos,
    /// Everything recorded so far, in this life and in those before it.
    pub(crate) records: Vec<Record>,
}

impl Table {
    pub(crate) fn new(rules: Rules) -> Self {
        Self::restarted(rules, Nanos(1), Vec::new())
    }

    /// An engine that is brought back by these records and serves from `now` on.
    pub(crate) fn restarted(rules: Rules, now: Nanos, records: Vec<Record>) -> Self {
        let mut engine = restored(rules, now, &records);
        let may_have_lost = false;
        engine.apply(now, Input::Serve { may_have_lost }, &mut Effects::new());
        engine.check();
        let records_made = engine.take_records().count();
        assert_eq!(records_made, 0, "a restart is not worth a record");
        Self {
            engine,
            now,
            records,
        }
    }

    /// What is said because of this.
    pub(crate) fn apply(&mut self, input: Input<'_>) -> Effects {
        let mut out = Effects::new();
        let before = self.engine.record_count();
        self.engine.apply(self.now, input, &mut out);
        self.engine.check();
        let records: Vec<Record> = self.engine.take_records().collect();
        let numbered = self.engine.record_count() - before;
        assert_eq!(numbered, records.len() as u64, "records are miscounted");
        self.records.extend(records);
        out
    }
}

/// An engine that knows these records and does not serve yet.
pub(crate) fn restored(rules: Rules, now: Nanos, records: &[Record]) -> Engine {
    let origin = Origin {
        fence: 0,
        seed: [1, 2],
        salt_key: [3, 4, 5, 6],
    };
    let mut engine = Engine::new(rules, origin);
    for record in records {
        restore(&mut engine, now, record);
    }
    engine
}

pub(crate) fn restore(engine: &mut Engine, now: Nanos, record: &Record) {
    let mut out = Effects::new();
    engine.apply(now, Input::Restore(record), &mut out);
    assert_eq!(out, [], "a record is replayed without a word");
}

pub(crate) fn rules() -> Rules {
    Rules {
        durable: true,
        ..Rules::default()
    }
}

pub(crate) fn id(slot: usize, serial: u32) -> ConnId {
    let slot = slot as u32;
    ConnId { slot, serial }
}
