//! Lists of values, and the clients that wait to pop one: first come, first served.
//!
//! A list exists while it has values or poppers that wait; it never has both. A pushed value goes
//! directly to the popper that has waited longest, and comes back if it could not be sent to it.

use std::collections::VecDeque;
use std::rc::Rc;

use super::arena::Stored;
use super::conn::{Asker, ConnIndex};
use super::ctx::Ctx;
use super::named::Named;
use super::queue::{Awaiting, Queue, Waiter};
use super::types::{End, Event, ListForm, Popped, Record, Refusal, Reply, Value, value_bytes};
use super::work::{self, Work};
use crate::base::Millis;
use crate::memory::block_bytes;

/// Most poppers that one request passes over because their wait is over or they have hung up. If there
/// are more, it is put off.
const PASSED_OVER_MAX: u32 = 256;

/// A list with room for more values than this gives memory back when it is less than a quarter
/// full.
const CAPACITY_KEPT_MIN: usize = 64;

pub(super) struct List {
    pub(super) values: VecDeque<Value>,
    /// What the values take, all together.
    values_bytes: usize,
    pub(super) poppers: Queue,
}

impl List {
    fn new() -> Self {
        Self {
            values: VecDeque::new(),
            values_bytes: 0,
            poppers: Queue::new(),
        }
    }

    /// Puts a value in; returns how many had to be moved for it, because the list has grown.
    fn push(&mut self, end: End, value: Value) -> usize {
        let room = self.values.capacity();
        self.values_bytes += value_bytes(value.len());
        match end {
            End::Left => self.values.push_front(value),
            End::Right => self.values.push_back(value),
        }
        if self.values.capacity() == room {
            0
        } else {
            room
        }
    }

    /// Takes a value out; also returns how many were moved then, because the list has shrunk.
    fn pop(&mut self, end: End) -> Option<(Value, usize)> {
        let Self { values, .. } = self;
        let value = match end {
            End::Left => values.pop_front()?,
            End::Right => values.pop_back()?,
        };
        let mut moved = 0;
        if values.capacity() > CAPACITY_KEPT_MIN && values.len() < values.capacity() / 4 {
            moved = values.len();
            values.shrink_to(values.capacity() / 2);
        }
        self.values_bytes -= value_bytes(value.len());
        Some((value, moved))
    }

    /// Checks what is counted; for tests and the simulator.
    pub(super) fn check(&self) {
        let bytes: usize = self.values.iter().map(|it| value_bytes(it.len())).sum();
        assert_eq!(self.values_bytes, bytes, "values are miscounted");
    }
}

impl Stored for List {
    fn heap_bytes(&self) -> usize {
        self.values_bytes + block_bytes(self.values.capacity() * size_of::<Value>())
    }
}

pub(super) struct Lists {
    pub(super) named: Named<List>,
    /// Values that were not sent and go back, once those that cannot have them any more have left the
    /// queue. For everybody else they were popped until then.
    returning: VecDeque<Popped>,
}

/// Who gets a value that is pushed or comes back.
enum Recipient {
    /// The popper that has waited longest, of those that can have it.
    Popper(u32),
    /// The list.
    Nobody,
    /// It is not known yet: very many in the queue cannot have it any more.
    Unknown,
}

impl Lists {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
            returning: VecDeque::new(),
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
        cx.core.work.charge(work::copy(value.len()));
        let known = self.named.find(key);
        if cx.core.memory_full && known.is_none() && !Named::<List>::is_full(cx) {
            return cx.refuse(conn, Refusal::Memory);
        }
        let list = match known.map_or_else(|| self.named.insert(cx, key, List::new()), Ok) {
            Ok(list) => list,
            Err(refusal) => return cx.refuse(conn, refusal),
        };
        match self.next_popper(cx, list) {
            Recipient::Popper(popper) => {
                cx.reply(conn, Reply::Number(0));
                cx.announce(event, key);
                return self.hand_over(cx, list, popper, value.into());
            }
            Recipient::Unknown => return cx.put_off(conn),
            Recipient::Nobody => {}
        }
        let it = &self.named[list].value.values;
        if cx.core.rules.list_length_max != 0 && it.len() >= cx.core.rules.list_length_max as usize
        {
            return cx.refuse(conn, Refusal::ListFull);
        }
        if cx.core.memory_full {
            cx.refuse(conn, Refusal::Memory);
            return self.remove_if_empty(cx, list);
        }
        let length = it.len() as i64 + 1;
        let value = Value::from(value);
        cx.record(|_| Record::Pushed {
            key: key.into(),
            end,
            value: Rc::clone(&value),
        });
        let moved = self.named.change(list, |it| it.push(end, value));
        cx.core.work.charge(moving(moved));
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
        if cx.core.draining {
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
        if !cx.has_room_to_wait() {
            cx.refuse(asker.conn, Refusal::Memory);
            return self.remove_if_empty(cx, list);
        }
        let waiter = Waiter::new(asker.owner, list, Awaiting::Pop(end), cx.now);
        let waiter = cx.join(&mut self.named[list].value.poppers, waiter);
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
        ends: [i64; 2],
        form: ListForm,
    ) {
        let reply = match self.part(key, ends) {
            None => Reply::Values(Vec::new()),
            Some(part) => match spell(part, form, &mut cx.core.work) {
                Some(text) => Reply::Values(text),
                None => return cx.refuse(conn, Refusal::RangeTooLong),
            },
        };
        cx.reply(conn, reply);
    }

    /// The value that a pop would take.
    pub(super) fn next_value(&self, key: &[u8], end: End) -> Option<&Value> {
        let values = &self.named.look(key)?.values;
        match end {
            End::Left => values.front(),
            End::Right => values.back(),
        }
    }

    /// Whether a part of a list is at most so long, with some bytes around each value.
    pub(super) fn is_part_short(&self, key: &[u8], ends: [i64; 2], bytes_max: usize) -> bool {
        const AROUND: usize = 24;
        let mut left = bytes_max;
        let mut part = self.part(key, ends).into_iter().flatten();
        part.all(|value| match left.checked_sub(value.len() + AROUND) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
    }

    /// The values between two indices, both included; negative ones count from the end. None if
    /// there are none.
    fn part(&self, key: &[u8], ends: [i64; 2]) -> Option<impl Iterator<Item = &Value> + Clone> {
        let values = &self.named[self.named.find(key)?].value.values;
        let length = values.len() as i64;
        let [start, stop] = ends.map(|index| match index {
            ..0 => index.saturating_add(length),
            _ => index,
        });
        let (start, stop) = (start.max(0), stop.min(length - 1));
        (start <= stop).then(|| values.range(start as usize..=stop as usize))
    }

    /// A popper's wait is over.
    pub(super) fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let conn = cx.core.waiters[waiter].conn;
        self.give_up(cx, waiter);
        cx.answer_parked(conn, Reply::Nothing);
    }

    /// At shutdown.
    pub(super) fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let conn = cx.core.waiters[waiter].conn;
        cx.answer_parked(conn, Reply::Refused(Refusal::Draining));
        self.give_up(cx, waiter);
    }

    /// A popper is answered, or its connection is gone.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let list = cx.core.waiters[waiter].subject;
        let queue = &mut self.named[list].value.poppers;
        cx.leave(queue, waiter);
        self.remove_if_empty(cx, list);
    }

    /// A popped value did not reach its client: it goes to the next popper, or back to the end it
    /// came from.
    pub(super) fn give_back(&mut self, cx: &mut Ctx<'_>, popped: Popped) {
        self.returning.push_back(popped);
        if self.returning.len() == 1 {
            self.go_on_giving_back(cx, u64::MAX);
        }
    }

    /// Whether all values that were not sent are back.
    pub(super) fn has_given_back_all(&self) -> bool {
        self.returning.is_empty()
    }

    /// Gives values back in their order, until so much is spent or one has to wait.
    pub(super) fn go_on_giving_back(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        while let Some(popped) = self.returning.pop_front() {
            let key = popped.key.clone();
            let about = cx.begin(|| Some(key.as_bytes()));
            let given_back = self.try_to_give_back(cx, popped);
            cx.finish(about);
            if let Err(popped) = given_back {
                return self.returning.push_front(popped);
            }
            if cx.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    /// Returns the value if it is not known yet who gets it.
    fn try_to_give_back(&mut self, cx: &mut Ctx<'_>, popped: Popped) -> Result<(), Popped> {
        let Popped { key, end, value } = popped;
        cx.core.work.charge(work::GIVE_BACK);
        // The limit of keys does not apply, because the value was here before and must not be lost.
        let list = self
            .named
            .find(key.as_bytes())
            .unwrap_or_else(|| self.named.insert_anyway(cx, key.as_bytes(), List::new()));
        match self.next_popper(cx, list) {
            Recipient::Popper(popper) => self.hand_over(cx, list, popper, value),
            Recipient::Unknown => return Err(Popped { key, end, value }),
            Recipient::Nobody => {
                cx.record(|_| Record::Pushed {
                    key,
                    end,
                    value: Rc::clone(&value),
                });
                let moved = self.named.change(list, |it| it.push(end, value));
                cx.core.work.charge(moving(moved));
                self.named.touch(list, cx.now, false);
            }
        }
        Ok(())
    }

    /// A record says that this value was put in.
    pub(super) fn restore(&mut self, cx: &mut Ctx<'_>, key: &[u8], end: End, value: &Value) {
        let list = self
            .named
            .find(key)
            .unwrap_or_else(|| self.named.insert_anyway(cx, key, List::new()));
        self.named.change(list, |it| it.push(end, Rc::clone(value)));
    }

    /// A record says that a value was taken out.
    pub(super) fn restore_pop(&mut self, cx: &mut Ctx<'_>, key: &[u8], end: End) {
        if let Some(list) = self.named.find(key) {
            self.named.change(list, |it| it.pop(end));
            self.remove_if_empty(cx, list);
        }
    }

    fn find_or_insert(&mut self, cx: &mut Ctx<'_>, key: &[u8]) -> Result<u32, Refusal> {
        match self.named.find(key) {
            Some(list) => Ok(list),
            None => self.named.insert(cx, key, List::new()),
        }
    }

    fn take(&mut self, cx: &mut Ctx<'_>, key: &[u8], end: End) -> Option<Popped> {
        let list = self.named.find(key)?;
        let (value, moved) = self.named.change(list, |it| it.pop(end))?;
        cx.core.work.charge(moving(moved));
        cx.record(|_| Record::Popped {
            key: key.into(),
            end,
        });
        self.named.touch(list, cx.now, false);
        self.remove_if_empty(cx, list);
        Some(Popped {
            key: key.into(),
            end,
            value,
        })
    }

    /// The popper that has waited longest, is there and whose wait is not over. Those before it are
    /// answered and leave the queue.
    fn next_popper(&mut self, cx: &mut Ctx<'_>, list: u32) -> Recipient {
        let mut left = PASSED_OVER_MAX;
        while let Some(waiter) = self.named[list].value.poppers.head() {
            let Waiter { conn, timer, .. } = cx.core.waiters[waiter];
            let is_over = timer.is_some_and(|timer| cx.core.timers.deadline(timer) < cx.moment);
            let is_sent_away = cx.core.draining;
            if cx.is_present(waiter) && !is_over && !is_sent_away {
                return Recipient::Popper(waiter);
            }
            if left == 0 {
                return Recipient::Unknown;
            }
            left -= 1;
            // A connection may be there, and only the client is not for which it waits.
            let is_detached = !cx.is_present(waiter);
            let queue = &mut self.named[list].value.poppers;
            cx.leave(queue, waiter);
            let reply = if is_sent_away {
                Reply::Refused(Refusal::Draining)
            } else if is_detached {
                Reply::Refused(Refusal::Detached)
            } else {
                Reply::Nothing
            };
            cx.answer_parked(conn, reply);
        }
        Recipient::Nobody
    }

    fn hand_over(&mut self, cx: &mut Ctx<'_>, list: u32, popper: u32, value: Value) {
        let it = &mut self.named[list];
        let key = it.key.clone();
        let queue = &mut it.value.poppers;
        let it = cx.leave(queue, popper);
        let Awaiting::Pop(end) = it.awaiting else {
            unreachable!("only poppers wait in the queue of a list")
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
        let List {
            values, poppers, ..
        } = &self.named[list].value;
        assert!(
            values.is_empty() || poppers.is_empty(),
            "a list has values, and poppers wait for one"
        );
        if values.is_empty() && poppers.is_empty() {
            self.named.remove(cx, list);
        }
    }
}

/// Most values of a list in one answer, so that writing it takes about a turn.
const ANSWERED_MAX: usize = 1 << 16;

/// Writes values with commas between them, unless there are too many, or that is too long for the form.
fn spell<'v>(
    part: impl Iterator<Item = &'v Value> + Clone,
    form: ListForm,
    work: &mut Work,
) -> Option<Vec<u8>> {
    // How long they are is known without a look at their bytes, and they are never written shorter:
    // in two quotes and with a comma, but for the last.
    let mut bytes_min = 0;
    for (count, value) in part.clone().enumerate() {
        work.charge(1);
        bytes_min += value.len() + 3;
        if count == ANSWERED_MAX || bytes_min > form.bytes_max + 1 {
            return None;
        }
    }
    let mut text = Vec::with_capacity(bytes_min);
    for value in part {
        if !text.is_empty() {
            text.push(b',');
        }
        let before = text.len();
        (form.push)(&mut text, value);
        work.charge(work::VALUE + work::spell(text.len() - before));
        if text.len() > form.bytes_max {
            return None;
        }
    }
    Some(text)
}

/// The work of moving so many values of a list to a place with more or less room.
fn moving(values: usize) -> u64 {
    work::copy(values * size_of::<Value>())
}

fn blocking_pop(end: End) -> Event {
    match end {
        End::Left => Event::Blpop,
        End::Right => Event::Brpop,
    }
}
