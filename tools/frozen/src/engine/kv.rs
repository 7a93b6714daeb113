//! A small key-value store: values with an optional time to live, and compare-and-swap.
//!
//! A value without a time to live is never forgotten. A value whose time is over is gone at that
//! instant: a timer removes it, and a request that comes in the same turn before the timer gets the
//! same answer as after it.

use std::rc::Rc;

use super::arena::Stored;
use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::due::Due;
use super::named::Named;
use super::types::{Event, Record, Refusal, Reply, Value, value_bytes};
use super::work;
use crate::base::{Millis, Nanos};
use crate::timers::TimerId;

pub(super) struct Entry {
    pub(super) value: Value,
    /// Runs while the value has a time to live.
    pub(super) timer: Option<TimerId>,
}

impl Stored for Entry {
    fn heap_bytes(&self) -> usize {
        value_bytes(self.value.len())
    }
}

pub(super) struct Kv {
    pub(super) named: Named<Entry>,
}

impl Kv {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
        }
    }

    pub(super) fn put(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        key: &[u8],
        value: &[u8],
        ttl: Millis,
    ) {
        match self.store(cx, key, value, ttl) {
            Ok(()) => {
                cx.reply(conn, Reply::Done);
                cx.announce(Event::Kset, key);
            }
            Err(refusal) => cx.refuse(conn, refusal),
        }
    }

    pub(super) fn fetch(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        let reply = match self.live(cx, key) {
            Some(entry) => Reply::Value(Rc::clone(&self.named[entry].value.value)),
            None => Reply::Nothing,
        };
        cx.reply(conn, reply);
    }

    pub(super) fn delete(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        if let Some(entry) = self.live(cx, key) {
            self.remove(cx, entry);
        }
        cx.reply(conn, Reply::Done);
        cx.announce(Event::Kdel, key);
    }

    pub(super) fn swap(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        key: &[u8],
        [old, new]: [&[u8]; 2],
        ttl: Millis,
    ) {
        // No value is empty, so an empty `old` means that no value is expected.
        let present = self
            .live(cx, key)
            .map_or(&[][..], |entry| &*self.named[entry].value.value);
        cx.core.work.charge(work::copy(old.len()));
        if present != old {
            return cx.reply(conn, Reply::Conflict);
        }
        match self.store(cx, key, new, ttl) {
            Ok(()) => {
                cx.reply(conn, Reply::Done);
                cx.announce(Event::Kcas, key);
            }
            Err(refusal) => cx.refuse(conn, refusal),
        }
    }

    /// The time to live of a value is over.
    pub(super) fn expired(&mut self, cx: &mut Ctx<'_>, entry: u32) {
        self.named[entry].value.timer = None;
        self.remove(cx, entry);
    }

    fn store(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        value: &[u8],
        ttl: Millis,
    ) -> Result<(), Refusal> {
        cx.core.work.charge(work::copy(value.len()));
        let entry = self.live(cx, key);
        if cx.core.memory_full && !self.fits(entry, value, ttl) {
            // That there are too many keys is said first, whether or not there is memory.
            return Err(match entry {
                None if Named::<Entry>::is_full(cx) => Refusal::MaxKeys,
                _ => Refusal::Memory,
            });
        }
        let value = Value::from(value);
        let entry = match entry {
            Some(entry) => {
                self.replace(cx, entry, value);
                entry
            }
            None => self.named.insert(cx, key, Entry { value, timer: None })?,
        };
        let ends = (ttl != Millis::ZERO).then(|| cx.now.after(ttl));
        self.set_end(cx, entry, ends);
        let it = &self.named[entry].value;
        cx.record(|_| Record::Stored {
            key: key.into(),
            value: Rc::clone(&it.value),
            ends,
        });
        Ok(())
    }

    /// A record says that this value was stored.
    pub(super) fn restore(
        &mut self,
        cx: &mut Ctx<'_>,
        key: &[u8],
        value: &Value,
        ends: Option<Nanos>,
    ) {
        let value = Rc::clone(value);
        let entry = match self.named.find_rarely(key) {
            Some(entry) => {
                self.replace(cx, entry, value);
                entry
            }
            None => self
                .named
                .insert_anyway(cx, key, Entry { value, timer: None }),
        };
        self.set_end(cx, entry, ends);
    }

    /// A record says that the value is gone.
    pub(super) fn restore_end(&mut self, cx: &mut Ctx<'_>, key: &[u8]) {
        if let Some(entry) = self.named.find_rarely(key) {
            self.remove(cx, entry);
        }
    }

    #[inline(always)] // with every change of a value
    fn replace(&mut self, cx: &Ctx<'_>, entry: u32, value: Value) {
        self.named.change(entry, |it| it.value = value);
        self.named.touch(entry, cx.now, false);
    }

    /// The value is gone at this instant, or stays.
    #[inline(always)] // with every change of a value
    fn set_end(&mut self, cx: &mut Ctx<'_>, entry: u32, ends: Option<Nanos>) {
        let it = &mut self.named[entry].value;
        match (it.timer, ends) {
            (None, None) => {}
            (None, Some(ends)) => {
                it.timer = Some(cx.core.background.arm(ends, Due::value(entry)));
            }
            (Some(timer), None) => {
                cx.core.background.cancel(timer);
                it.timer = None;
            }
            (Some(timer), Some(ends)) => cx.core.background.rearm(timer, ends),
        }
    }

    /// Whether a value takes no more memory than the present one, nor a timer that this has not.
    #[cold]
    fn fits(&self, entry: Option<u32>, value: &[u8], ttl: Millis) -> bool {
        entry.is_some_and(|entry| {
            let it = &self.named[entry].value;
            let needs_timer = it.timer.is_none() && ttl != Millis::ZERO;
            value_bytes(value.len()) <= it.heap_bytes() && !needs_timer
        })
    }

    /// The entry, unless its time is over.
    fn live(&mut self, cx: &mut Ctx<'_>, key: &[u8]) -> Option<u32> {
        let entry = self.named.find(key)?;
        let timer = self.named[entry].value.timer;
        if timer.is_some_and(|timer| cx.core.background.deadline(timer) <= cx.moment) {
            self.remove(cx, entry);
            return None;
        }
        Some(entry)
    }

    fn remove(&mut self, cx: &mut Ctx<'_>, entry: u32) {
        let gone = self.named.remove(cx, entry);
        if let Some(timer) = gone.value.timer {
            cx.core.background.cancel(timer);
        }
        cx.record(|_| Record::Deleted { key: gone.key });
    }
}
