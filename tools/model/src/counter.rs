//! Counters: one signed 64-bit number for each name, which never wraps.
//!
//! A name without a counter reads as 0. So a counter at 0 may be forgotten after it was idle long
//! enough; until then it takes a place among the names.

use latchd::base::{ConnId, Nanos};
use latchd::engine::types::{Event, Record, Refusal, Reply};

use crate::Model;

/// A counter, and when it was set last.
pub(crate) struct Counter {
    value: i64,
    touched: Nanos,
}

impl Model {
    pub(crate) fn add(&mut self, id: ConnId, key: &[u8], delta: i64, down: bool) {
        let Some(sum) = self.counter(key).checked_add(delta) else {
            return self.refuse(id, Refusal::Overflow);
        };
        if self.store_counter(id, key, sum) {
            self.reply(id, Reply::Number(sum));
            self.announce(if down { Event::Decr } else { Event::Incr }, key);
        }
    }

    pub(crate) fn set_count(&mut self, id: ConnId, key: &[u8], value: i64) {
        if self.store_counter(id, key, value) {
            self.reply(id, Reply::Done);
            self.announce(Event::Cset, key);
        }
    }

    pub(crate) fn count(&mut self, id: ConnId, key: &[u8]) {
        self.reply(id, Reply::Number(self.counter(key)));
    }

    fn counter(&self, key: &[u8]) -> i64 {
        self.counters.get(key).map_or(0, |it| it.value)
    }

    /// Returns whether there was a place for it.
    fn store_counter(&mut self, id: ConnId, key: &[u8], value: i64) -> bool {
        let before = self.counters.get(key);
        // One that the engine may have forgotten may need a place again.
        let is_there = before.is_some_and(|it| !self.may_be_forgotten(it));
        let is_refused = self.seen_answer(id) != Some(&Reply::Number(value))
            && self.seen_answer(id) != Some(&Reply::Done);
        if !is_there && (before.is_none() || is_refused) && !self.has_place(id) {
            return false;
        }
        if self.counter(key) != value {
            self.record(Record::Counted {
                key: key.into(),
                value,
            });
        }
        self.counters.insert(
            key.to_vec(),
            Counter {
                value,
                touched: self.now,
            },
        );
        true
    }

    /// Whether the counter is at 0 and was idle for long enough when time passed last.
    pub(crate) fn may_be_forgotten(&self, it: &Counter) -> bool {
        it.value == 0 && it.touched.after(self.rules.gc_idle_max) <= self.last_time
    }

    /// Time has passed: counters at 0 that were idle for so long must be forgotten.
    pub(crate) fn forget_counters(&mut self) {
        let (most, late, now) = (self.rules.gc_idle_max, self.rules.gc_interval, self.now);
        let is_due = |it: &Counter| it.touched.after(most).after(late) <= now;
        self.counters.retain(|_, it| it.value != 0 || !is_due(it));
    }

    pub(crate) fn restore_counter(&mut self, key: &[u8], value: i64) {
        let touched = self.now;
        match value {
            0 => _ = self.counters.remove(key),
            _ => {
                _ = self
                    .counters
                    .insert(key.to_vec(), Counter { value, touched })
            }
        }
    }
}
