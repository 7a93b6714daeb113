//! Values under a name, with an optional time to live, and compare-and-swap.
//!
//! A value whose time to live is over is gone at that instant. It is removed when time passes or
//! when a request asks for it, and takes a place among the names until then.

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::{Event, Record, Reply, Value};

use crate::Model;

/// A value, and when its time is over.
pub(crate) struct Stored {
    value: Value,
    pub ends: Option<Nanos>,
}

impl Model {
    pub(crate) fn put(&mut self, id: ConnId, key: &[u8], value: &[u8], ttl: Millis) {
        if self.store_value(id, key, value, ttl) {
            self.reply(id, Reply::Done);
            self.announce(Event::Kset, key);
        }
    }

    pub(crate) fn fetch(&mut self, id: ConnId, key: &[u8]) {
        let reply = self.live_value(key).map_or(Reply::Nothing, Reply::Value);
        self.reply(id, reply);
    }

    pub(crate) fn delete(&mut self, id: ConnId, key: &[u8]) {
        if self.live_value(key).is_some() {
            self.remove_value(key);
        }
        self.reply(id, Reply::Done);
        self.announce(Event::Kdel, key);
    }

    /// An empty `old` means that no value is expected.
    pub(crate) fn swap(&mut self, id: ConnId, key: &[u8], [old, new]: [&[u8]; 2], ttl: Millis) {
        let present = self.live_value(key).map_or_else(Vec::new, |it| it.to_vec());
        if present != old {
            self.reply(id, Reply::Conflict);
        } else if self.store_value(id, key, new, ttl) {
            self.reply(id, Reply::Done);
            self.announce(Event::Kcas, key);
        }
    }

    /// Time has passed: values end.
    pub(crate) fn end_values(&mut self) {
        let over = self
            .values
            .iter()
            .filter(|it| it.1.ends.is_some_and(|ends| ends <= self.now));
        let over: Vec<_> = over.map(|it| it.0.clone()).collect();
        for key in over {
            self.remove_value(&key);
        }
    }

    fn store_value(&mut self, id: ConnId, key: &[u8], value: &[u8], ttl: Millis) -> bool {
        let is_new = self.live_value(key).is_none();
        if is_new && !self.has_place(id) {
            return false;
        }
        if self.is_refused_for_memory(id) {
            self.refuse(id, latchd::engine::types::Refusal::Memory);
            return false;
        }
        let ends = (ttl != Millis::ZERO).then(|| self.now.after(ttl));
        let value = Value::from(value);
        self.record(Record::Stored {
            key: key.into(),
            value: value.clone(),
            ends,
        });
        self.values.insert(key.to_vec(), Stored { value, ends });
        true
    }

    /// The value, unless its time is over.
    fn live_value(&mut self, key: &[u8]) -> Option<Value> {
        let it = self.values.get(key)?;
        if it.ends.is_some_and(|ends| ends <= self.moment) {
            self.remove_value(key);
            return None;
        }
        Some(it.value.clone())
    }

    fn remove_value(&mut self, key: &[u8]) {
        self.values.remove(key);
        self.record(Record::Deleted { key: key.into() });
    }

    pub(crate) fn restore_value(&mut self, key: &[u8], value: &Value, ends: Option<Nanos>) {
        self.values.insert(
            key.to_vec(),
            Stored {
                value: value.clone(),
                ends,
            },
        );
    }
}
