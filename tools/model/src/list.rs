//! Lists of values, and the connections that wait to pop one.
//!
//! A pushed value goes to the connection that has waited longest. It enters the list only if no
//! connection waits. A popped value that could not be sent goes to the next waiter, or back to the
//! end it came from, even if there is no room.

use latchd::base::{ConnId, Millis};
use latchd::engine::types::{End, Event, ListForm, Popped, Record, Refusal, Reply, Value};

use crate::{Awaits, Model, SessionId, WaiterId};

/// Most values of one answer.
const ANSWERED_MAX: usize = 1 << 16;

impl Model {
    pub(crate) fn push_value(&mut self, id: ConnId, key: &[u8], value: &[u8], end: End) {
        let event = if end == End::Left {
            Event::Lpush
        } else {
            Event::Rpush
        };
        if !self.is_list(key) && !self.has_place(id) {
            return;
        }
        if let Some(popper) = self.next_popper(key) {
            self.reply(id, Reply::Number(0));
            self.announce(event, key);
            return self.hand_over(popper, key, value.into());
        }
        let most = self.rules.list_length_max as usize;
        let length = self.lists.get(key).map_or(0, Vec::len);
        if most != 0 && length >= most {
            return self.refuse(id, Refusal::ListFull);
        }
        if self.is_refused_for_memory(id) {
            return self.refuse(id, Refusal::Memory);
        }
        self.put_in(key, end, value.into());
        self.reply(id, Reply::Number(length as i64 + 1));
        self.announce(event, key);
    }

    pub(crate) fn pop(&mut self, id: ConnId, key: &[u8], end: End) {
        match self.take_out(key, end) {
            Some(value) => {
                self.reply(
                    id,
                    Reply::Popped(Popped {
                        key: key.into(),
                        end,
                        value,
                    }),
                );
                self.announce(
                    if end == End::Left {
                        Event::Lpop
                    } else {
                        Event::Rpop
                    },
                    key,
                );
            }
            None => self.reply(id, Reply::Nothing),
        }
    }

    pub(crate) fn await_pop(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        end: End,
        wait: Millis,
    ) {
        if self.draining {
            return self.refuse(id, Refusal::Draining);
        }
        if let Some(value) = self.take_out(key, end) {
            self.reply(
                id,
                Reply::Popped(Popped {
                    key: key.into(),
                    end,
                    value,
                }),
            );
            return self.announce(blocking_pop(end), key);
        }
        if wait == Millis::ZERO {
            return self.reply(id, Reply::Nothing);
        }
        if !self.is_list(key) && !self.has_place(id) {
            return;
        }
        if self.is_refused_for_memory(id) {
            return self.refuse(id, Refusal::Memory);
        }
        self.park(
            id,
            session,
            wait,
            Awaits::Pop {
                key: key.to_vec(),
                end,
            },
        );
    }

    pub(crate) fn length(&mut self, id: ConnId, key: &[u8]) {
        let length = self.lists.get(key).map_or(0, Vec::len);
        self.reply(id, Reply::Number(length as i64));
    }

    /// Values between two indices, both included; negative ones count from the end.
    pub(crate) fn part(&mut self, id: ConnId, key: &[u8], ends: [i64; 2], form: ListForm) {
        let values = self.lists.get(key).cloned().unwrap_or_default();
        let length = values.len() as i64;
        let [start, stop] = ends.map(|it| {
            if it < 0 {
                it.saturating_add(length)
            } else {
                it
            }
        });
        let (start, stop) = (start.max(0), stop.min(length - 1));
        let part = match start <= stop {
            true => &values[start as usize..=stop as usize],
            false => &[],
        };
        let mut text = Vec::new();
        for (at, value) in part.iter().enumerate() {
            if at > 0 {
                text.push(b',');
            }
            (form.push)(&mut text, value);
        }
        // Quotes and a comma around each value, whether or not the form has them.
        let least: usize = part.iter().map(|it| it.len() + 3).sum();
        let is_too_long = text.len() > form.bytes_max || least > form.bytes_max + 1;
        match is_too_long || part.len() > ANSWERED_MAX {
            true => self.refuse(id, Refusal::RangeTooLong),
            false => self.reply(id, Reply::Values(text)),
        }
    }

    /// A popped value could not be sent to its client.
    pub(crate) fn give_back(&mut self, popped: &Popped) {
        let key = popped.key.as_bytes();
        self.about = Some(key.to_vec());
        match self.next_popper(key) {
            Some(popper) => self.hand_over(popper, key, popped.value.clone()),
            None => self.put_in(key, popped.end, popped.value.clone()),
        }
    }

    pub(crate) fn pop_wait_ended(&mut self, waiter: WaiterId) {
        if let Some(conn) = self.unpark(waiter).conn {
            self.answer_parked(conn, Reply::Nothing);
        }
    }

    /// The one that has waited longest and can still be served. Those before it are sent away.
    fn next_popper(&mut self, key: &[u8]) -> Option<WaiterId> {
        loop {
            let first = self.waiters.iter().find(|it| match &it.what {
                Awaits::Pop { key: of, .. } => of == key,
                _ => false,
            });
            let first = first?.clone();
            let is_over = first.until < self.moment;
            let is_present = self.is_present(&first);
            if is_present && !is_over && !self.draining {
                return Some(first.id);
            }
            self.unpark(first.id);
            let reply = match (self.draining, is_present) {
                (true, _) => Reply::Refused(Refusal::Draining),
                (false, false) => Reply::Refused(Refusal::Detached),
                (false, true) => Reply::Nothing,
            };
            self.answer_parked(first.conn.expect("poppers are parked"), reply);
        }
    }

    fn hand_over(&mut self, popper: WaiterId, key: &[u8], value: Value) {
        let it = self.unpark(popper);
        if let (Some(conn), Awaits::Pop { end, .. }) = (it.conn, it.what) {
            self.reply(
                conn,
                Reply::Popped(Popped {
                    key: key.into(),
                    end,
                    value,
                }),
            );
            self.announce(blocking_pop(end), key);
        }
    }

    fn is_list(&self, key: &[u8]) -> bool {
        let is_popper = |it: &crate::Waiter| match &it.what {
            Awaits::Pop { key: of, .. } => of == key,
            _ => false,
        };
        self.lists.contains_key(key) || self.waiters.iter().any(is_popper)
    }

    fn put_in(&mut self, key: &[u8], end: End, value: Value) {
        self.record(Record::Pushed {
            key: key.into(),
            end,
            value: value.clone(),
        });
        self.restore_push(key, end, &value);
    }

    fn take_out(&mut self, key: &[u8], end: End) -> Option<Value> {
        let value = self.restore_pop(key, end)?;
        self.record(Record::Popped {
            key: key.into(),
            end,
        });
        Some(value)
    }

    pub(crate) fn restore_push(&mut self, key: &[u8], end: End, value: &Value) {
        let list = self.lists.entry(key.to_vec()).or_default();
        match end {
            End::Left => list.insert(0, value.clone()),
            End::Right => list.push(value.clone()),
        }
    }

    pub(crate) fn restore_pop(&mut self, key: &[u8], end: End) -> Option<Value> {
        let list = self.lists.get_mut(key)?;
        let value = match end {
            End::Left => list.remove(0),
            End::Right => list.pop().expect("no list is empty"),
        };
        if list.is_empty() {
            self.lists.remove(key);
        }
        Some(value)
    }
}

fn blocking_pop(end: End) -> Event {
    match end {
        End::Left => Event::Blpop,
        End::Right => Event::Brpop,
    }
}
