//! One key of the key-value store, as clients know it: who wrote what when, and what may be read.
//!
//! No two writes store the same value, so a value names the write it came from. A write took place
//! somewhere between its arrival and its answer. A value that was certainly overwritten, deleted or
//! out of time before a request came must not be the answer to it, and a value that is certainly
//! there must not be denied. Never looks into the server.

use std::collections::BTreeSet;

use crate::clients::connection::Moment;
use crate::kept::KeptValue;
use latchd::base::{Millis, Nanos};

/// A write, or a deletion.
#[derive(Clone, Debug)]
struct Write {
    request: u64,
    /// Empty if this deletes the value.
    value: String,
    ttl: Millis,
    arrived: Moment,
    /// By when it was certainly done; `None` if nobody read the answer.
    done: Option<Moment>,
    /// When its time is over, if it was restored and has a time.
    ends: Option<Nanos>,
}

impl Write {
    /// Whether this was done before something that arrived then.
    fn is_before(&self, arrived: Moment) -> bool {
        self.done.is_some_and(|done| done.turn <= arrived.turn)
    }

    /// Whether its time to live, if it has one, cannot be over.
    fn outlives(&self, now: Moment) -> bool {
        let ends = self.ends.unwrap_or_else(|| self.arrived.at.after(self.ttl));
        self.ttl == Millis::ZERO || now.at < ends
    }
}

/// One key, as clients know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownValue {
    writes: Vec<Write>,
    /// The values that were exchanged for others, each at most once.
    swapped: BTreeSet<String>,
}

impl KnownValue {
    /// A write has arrived; it may be done from now on.
    pub(crate) fn arrived(&mut self, request: u64, value: &str, ttl: Millis, arrived: Moment) {
        self.writes.push(Write {
            request,
            value: value.to_owned(),
            ttl,
            arrived,
            done: None,
            ends: None,
        });
    }

    pub(crate) fn done(&mut self, request: u64, now: Moment) {
        let write = self.writes.iter_mut().find(|it| it.request == request);
        if let Some(write) = write {
            write.done = Some(now);
        }
    }

    pub(crate) fn refused(&mut self, request: u64) {
        self.writes.retain(|it| it.request != request);
    }

    /// A value that may be stored, for a client that wants to exchange it.
    pub(crate) fn recent(&self, back: usize) -> Option<&str> {
        let stored = self.writes.iter().rev().filter(|it| !it.value.is_empty());
        stored.map(|it| it.value.as_str()).nth(back)
    }

    /// A client read this value, which must have been there somewhere between arrival and now.
    pub(crate) fn read(&self, value: &str, arrived: Moment) -> Result<(), String> {
        let Some(it) = self.writes.iter().find(|it| it.value == value) else {
            return Err(format!("{value:?} was never stored"));
        };
        let others = || self.writes.iter().filter(|w| w.request != it.request);
        if others().any(|w| it.is_before(w.arrived) && w.is_before(arrived)) {
            return Err(format!(
                "{value:?} was replaced before this request arrived"
            ));
        }
        let is_over = |done: Moment| arrived.at >= it.ends.unwrap_or_else(|| done.at.after(it.ttl));
        if it.ttl != Millis::ZERO && it.done.is_some_and(is_over) {
            return Err(format!("{value:?} outlived its time"));
        }
        Ok(())
    }

    /// A new life of the server has this value. Unless the last one lost what it had said, that is
    /// what a client could have read from it.
    pub(crate) fn restart(
        &mut self,
        stored: Option<&KeptValue>,
        now: Moment,
        is_lossy: bool,
    ) -> Result<(), String> {
        let value = stored.map(|(value, _)| String::from_utf8_lossy(value));
        // Times of the day are compared elsewhere: the clock may have been set.
        let timeless = Self {
            writes: self.writes.clone(),
            swapped: BTreeSet::new(),
        };
        match &value {
            _ if is_lossy => self.swapped.clear(),
            Some(value) => timeless.read_anytime(value, now)?,
            None => timeless.miss_anytime(now)?,
        }
        let is_stored = |it: &Write| value.as_ref().is_some_and(|value| it.value == **value);
        self.writes.retain(is_stored);
        if let (Some((_, ends)), Some(write)) = (stored, self.writes.first_mut()) {
            write.done.get_or_insert(now);
            write.ends = *ends;
        }
        Ok(())
    }

    /// Like [`KnownValue::read`], whatever its time.
    fn read_anytime(mut self, value: &str, now: Moment) -> Result<(), String> {
        self.writes.iter_mut().for_each(|it| it.ttl = Millis::ZERO);
        self.read(value, now)
    }

    /// Like [`KnownValue::read_nothing`], for values that have no time.
    fn miss_anytime(self, now: Moment) -> Result<(), String> {
        let has_time = |it: &Write| it.ttl != Millis::ZERO;
        if self.writes.iter().any(has_time) {
            return Ok(());
        }
        self.read_nothing(now, now)
    }

    /// A client was told that nothing is there.
    pub(crate) fn read_nothing(&self, arrived: Moment, now: Moment) -> Result<(), String> {
        for it in self.writes.iter().filter(|it| !it.value.is_empty()) {
            let mut others = self.writes.iter().filter(|w| w.request != it.request);
            let may_be_gone = others
                .any(|w| !w.is_before(it.arrived) && (w.value.is_empty() || w.ttl != Millis::ZERO));
            if it.is_before(arrived) && it.outlives(now) && !may_be_gone {
                return Err(format!("{:?} is there, and was not found", it.value));
            }
        }
        Ok(())
    }

    /// An exchange succeeded: it found the old value, and no other exchange may replace the same.
    pub(crate) fn swapped(
        &mut self,
        request: u64,
        old: &str,
        arrived: Moment,
        now: Moment,
    ) -> Result<(), String> {
        // Its own write must not count as one that came in between.
        let at = self.writes.iter().position(|it| it.request == request);
        let own = at.map(|at| self.writes.remove(at));
        if old.is_empty() {
            self.read_nothing(arrived, now)?;
        } else {
            self.read(old, arrived)?;
            if !self.swapped.insert(old.to_owned()) {
                return Err(format!("{old:?} was exchanged twice"));
            }
        }
        self.writes.extend(own.map(|it| Write {
            done: Some(now),
            ..it
        }));
        Ok(())
    }

    /// An exchange was told that another value is there.
    pub(crate) fn conflicted(
        &mut self,
        request: u64,
        old: &str,
        arrived: Moment,
        now: Moment,
    ) -> Result<(), String> {
        self.refused(request);
        let Some(it) = self.writes.iter().find(|it| it.value == old) else {
            let any = !old.is_empty() || self.writes.iter().any(|it| !it.value.is_empty());
            return any
                .then_some(())
                .ok_or_else(|| "in the way of nothing".to_owned());
        };
        let mut others = self.writes.iter().filter(|w| w.request != it.request);
        let is_latest = others.all(|w| w.is_before(it.arrived));
        if !old.is_empty() && is_latest && it.is_before(arrived) && it.outlives(now) {
            return Err(format!("{old:?} is there, and was denied"));
        }
        Ok(())
    }
}
