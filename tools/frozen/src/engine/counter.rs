//! Counters: one signed 64-bit number per name, which never wraps.
//!
//! A name without a counter counts as 0. So a counter at 0 is forgotten once it has been idle for
//! long enough, because clients cannot tell the difference; any other counter is kept for ever.

use super::arena::Stored;
use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::due::Due;
use super::gc::Collector;
use super::named::Named;
use super::types::{Event, Record, Refusal, Reply};
use super::work;

impl Stored for i64 {}

pub(super) struct Counters {
    pub(super) named: Named<i64>,
    pub(super) collector: Collector,
}

impl Counters {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
            collector: Collector::new(Due::COUNTERS),
        }
    }

    pub(super) fn add(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        key: &[u8],
        delta: i64,
        down: bool,
    ) {
        let present = self
            .named
            .find(key)
            .map_or(0, |counter| self.named[counter].value);
        let Some(sum) = present.checked_add(delta) else {
            return cx.refuse(conn, Refusal::Overflow);
        };
        match self.store(cx, key, sum) {
            Ok(()) => {
                cx.reply(conn, Reply::Number(sum));
                cx.announce(if down { Event::Decr } else { Event::Incr }, key);
            }
            Err(refusal) => cx.refuse(conn, refusal),
        }
    }

    pub(super) fn set(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8], value: i64) {
        match self.store(cx, key, value) {
            Ok(()) => {
                cx.reply(conn, Reply::Done);
                cx.announce(Event::Cset, key);
            }
            Err(refusal) => cx.refuse(conn, refusal),
        }
    }

    pub(super) fn get(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        let value = self
            .named
            .find(key)
            .map_or(0, |counter| self.named[counter].value);
        cx.reply(conn, Reply::Number(value));
    }

    fn store(&mut self, cx: &mut Ctx<'_>, key: &[u8], value: i64) -> Result<(), Refusal> {
        let counter = match self.named.find(key) {
            Some(counter) => counter,
            None => self.named.insert(cx, key, 0)?,
        };
        let before = std::mem::replace(&mut self.named[counter].value, value);
        if cx.core.is_durable() && before != value {
            cx.record(|_| Record::Counted {
                key: key.into(),
                value,
            });
        }
        if self.named.touch(counter, cx.now, value == 0) {
            self.collector.arm(cx, Some(cx.now));
        }
        Ok(())
    }

    /// A record says that the counter had this value.
    pub(super) fn restore(&mut self, cx: &mut Ctx<'_>, key: &[u8], value: i64) {
        match (self.named.find(key), value) {
            (None, 0) => {}
            (Some(counter), 0) => {
                self.named.remove(cx, counter);
            }
            (Some(counter), value) => self.named[counter].value = value,
            (None, value) => {
                self.named.insert_anyway(cx, key, value);
            }
        }
    }

    /// Forgets counters at 0 that were idle for long enough, until so much is spent.
    pub(super) fn collect(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        self.collector.begin(cx);
        while let Some((counter, since)) = self.named.oldest_idle()
            && Collector::is_due(cx, since)
        {
            cx.core.work.charge(work::FORGET);
            self.named.remove(cx, counter);
            if cx.core.work.spent() >= slice_end {
                return self.collector.again(cx);
            }
        }
        self.collector
            .arm(cx, self.named.oldest_idle().map(|(_, since)| since));
    }
}
