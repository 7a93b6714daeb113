//! Lists, and clients that wait for a value: blocked poppers are served in the order they came.
//!
//! A list is there while it has a value or somebody waits for one; it never has both. A value goes
//! straight to whoever has waited longest, and comes back if it could not be told.

use std::collections::VecDeque;
use std::rc::Rc;

use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::named::Named;
use super::queue::{Awaiting, Queue, Waiter};
use super::types::{End, Event, Popped, Refusal, Reply, Value};
use crate::base::Millis;

/// Most bytes of values in one answer; clients cannot read a longer line. A longer part is refused:
/// ask for it in pieces.
const RANGE_BYTES_MAX: usize = 1 << 20;

/// A list that once grew long gives memory back when it has shrunk to a quarter.
const CAPACITY_KEPT_MIN: usize = 64;

pub(super) struct List {
    pub(super) values: VecDeque<Value>,
    pub(super) poppers: Queue,
}

pub(super) struct Lists {
    pub(super) named: Named<List>,
}

impl Lists {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
        }
    }

    pub(super) fn push(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        key: &[u8],
        value: &[u8],
        end: End,
    ) {
        let event = if end == End::Left {
            Event::Lpush
        } else {
            Event::Rpush
        };
        let value = Value::from(value);
        let list = match self.find_or_insert(cx, key) {
            Ok(list) => list,
            Err(refusal) => return cx.refuse(conn, refusal),
        };
        if let Some(popper) = self.next_popper(cx, list) {
            cx.reply(conn, Reply::Number(0));
            cx.announce(event, key);
            return self.hand_over(cx, list, popper, value);
        }
        let it = &mut self.named[list].value.values;
        if cx.rules.list_length_max != 0 && it.len() >= cx.rules.list_length_max as usize {
            return cx.refuse(conn, Refusal::ListFull);
        }
        match end {
            End::Left => it.push_front(value),
            End::Right => it.push_back(value),
        }
        let length = it.len() as i64;
        self.named.touch(list, cx.now, false);
        cx.reply(conn, Reply::Number(length));
        cx.announce(event, key);
    }

    pub(super) fn pop(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8], end: End) {
        match self.take(cx, key, end) {
            Some(popped) => {
                cx.reply(conn, Reply::Popped(popped));
                cx.announce(
                    if end == End::Left {
                        Event::Lpop
                    } else {
                        Event::Rpop
                    },
                    key,
                );
            }
            None => cx.reply(conn, Reply::Nothing),
        }
    }

    pub(super) fn await_pop(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        end: End,
        wait: Millis,
    ) {
        if cx.draining {
            return cx.refuse(asker.conn, Refusal::Draining);
        }
        if let Some(popped) = self.take(cx, key, end) {
            cx.reply(asker.conn, Reply::Popped(popped));
            return cx.announce(blocking_pop(end), key);
        }
        if wait == Millis::ZERO {
            return cx.reply(asker.conn, Reply::Nothing);
        }
        let list = match self.find_or_insert(cx, key) {
            Ok(list) => list,
            Err(refusal) => return cx.refuse(asker.conn, refusal),
        };
        let waiter = cx
            .waiters
            .insert(Waiter::new(asker.owner, list, Awaiting::Pop(end), cx.now));
        self.named[list].value.poppers.push_back(cx.waiters, waiter);
        self.named.touch(list, cx.now, false);
        cx.park(waiter, asker.conn, wait);
    }

    pub(super) fn length(&mut self, cx: &mut Ctx<'_>, conn: ConnIndex, key: &[u8]) {
        let length = self
            .named
            .find(key)
            .map_or(0, |list| self.named[list].value.values.len());
        cx.reply(conn, Reply::Number(length as i64));
    }

    pub(super) fn range(
        &mut self,
        cx: &mut Ctx<'_>,
        conn: ConnIndex,
        key: &[u8],
        start: i64,
        stop: i64,
    ) {
        let Some(list) = self.named.find(key) else {
            return cx.reply(conn, Reply::Values(Vec::new()));
        };
        let it = &self.named[list].value.values;
        let length = it.len() as i64;
        let from_start = |index: i64| {
            if index < 0 {
                index.saturating_add(length)
            } else {
                index
            }
        };
        let (start, stop) = (from_start(start).max(0), from_start(stop).min(length - 1));
        if start > stop {
            return cx.reply(conn, Reply::Values(Vec::new()));
        }
        let (mut bytes, mut part) = (0, Vec::new());
        for value in it.range(start as usize..=stop as usize) {
            bytes += value.len() + 3; // its quotes and its comma
            if bytes > RANGE_BYTES_MAX {
                return cx.refuse(conn, Refusal::RangeTooLong);
            }
            part.push(Rc::clone(value));
        }
        cx.reply(conn, Reply::Values(part));
    }

    /// A popper has waited long enough, or is gone.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let list = cx.waiters[waiter].subject;
        let queue = &mut self.named[list].value.poppers;
        cx.leave(queue, waiter);
        self.remove_if_empty(cx, list);
    }

    /// A popped value did not reach its client: back to the end it came from, or to the next popper.
    pub(super) fn give_back(&mut self, cx: &mut Ctx<'_>, popped: Popped) {
        let Popped { key, end, value } = popped;
        // Nothing is lost for want of room: the value was here before.
        let list = self.named.find(key.as_bytes()).unwrap_or_else(|| {
            let list = List {
                values: VecDeque::new(),
                poppers: Queue::new(),
            };
            self.named.insert_anyway(cx, key.as_bytes(), list)
        });
        if let Some(popper) = self.next_popper(cx, list) {
            return self.hand_over(cx, list, popper, value);
        }
        let values = &mut self.named[list].value.values;
        match end {
            End::Left => values.push_front(value),
            End::Right => values.push_back(value),
        }
        self.named.touch(list, cx.now, false);
    }

    fn find_or_insert(&mut self, cx: &mut Ctx<'_>, key: &[u8]) -> Result<u32, Refusal> {
        match self.named.find(key) {
            Some(list) => Ok(list),
            None => {
                let list = List {
                    values: VecDeque::new(),
                    poppers: Queue::new(),
                };
                self.named.insert(cx, key, list)
            }
        }
    }

    fn take(&mut self, cx: &mut Ctx<'_>, key: &[u8], end: End) -> Option<Popped> {
        let list = self.named.find(key)?;
        let values = &mut self.named[list].value.values;
        let value = match end {
            End::Left => values.pop_front()?,
            End::Right => values.pop_back()?,
        };
        if values.capacity() > CAPACITY_KEPT_MIN && values.len() < values.capacity() / 4 {
            values.shrink_to(values.capacity() / 2);
        }
        self.named.touch(list, cx.now, false);
        self.remove_if_empty(cx, list);
        Some(Popped {
            key: key.into(),
            end,
            value,
        })
    }

    /// Whoever has waited longest and is still there. Those whose time is over are told so.
    fn next_popper(&mut self, cx: &mut Ctx<'_>, list: u32) -> Option<u32> {
        while let Some(waiter) = self.named[list].value.poppers.head() {
            let Waiter { conn, timer, .. } = cx.waiters[waiter];
            if timer.is_none_or(|timer| cx.timers.deadline(timer) >= cx.moment) {
                return Some(waiter);
            }
            let queue = &mut self.named[list].value.poppers;
            cx.leave(queue, waiter);
            cx.reply(conn, Reply::Nothing);
        }
        None
    }

    fn hand_over(&mut self, cx: &mut Ctx<'_>, list: u32, popper: u32, value: Value) {
        let it = &mut self.named[list];
        let key = it.key.clone();
        let queue = &mut it.value.poppers;
        let it = cx.leave(queue, popper);
        let Awaiting::Pop(end) = it.awaiting else {
            unreachable!("a list's queue is of poppers")
        };
        let popped = Popped {
            key: key.clone(),
            end,
            value,
        };
        cx.reply(it.conn, Reply::Popped(popped));
        cx.announce(blocking_pop(end), key.as_bytes());
        self.named.touch(list, cx.now, false);
        self.remove_if_empty(cx, list);
    }

    fn remove_if_empty(&mut self, cx: &mut Ctx<'_>, list: u32) {
        let List { values, poppers } = &self.named[list].value;
        assert!(
            values.is_empty() || poppers.is_empty(),
            "a value, yet somebody waits for one"
        );
        if values.is_empty() && poppers.is_empty() {
            self.named.remove(cx, list);
        }
    }
}

fn blocking_pop(end: End) -> Event {
    match end {
        End::Left => Event::Blpop,
        End::Right => Event::Brpop,
    }
}
