//! Barriers: connections wait until enough of them have arrived.
//!
//! The last arrival releases all waiters. If a waiter leaves early or its wait ends, all the others
//! get `timeout`. Either way the barrier is gone, and its name can be used again. If a peer hangs
//! up, the barrier fails at that instant, and the other waiters are answered when time passes.

use latchd::base::{ConnId, Millis};
use latchd::engine::types::{Refusal, Reply};

use crate::{Awaits, Model, Name, SessionId, WaiterId};

/// A barrier, until all its waiters are answered.
pub(crate) struct Barrier {
    number: u64,
    key: Name,
    count: u32,
    /// What all are answered, if it has ended.
    pub end: Option<Reply>,
}

impl Model {
    pub(crate) fn meet_at(
        &mut self,
        id: ConnId,
        session: SessionId,
        key: &[u8],
        count: u32,
        wait: Millis,
    ) {
        if self.draining {
            return self.refuse(id, Refusal::Draining);
        }
        let known = self
            .barriers
            .iter()
            .find(|it| it.key == key && it.end.is_none());
        let number = match known.map(|it| (it.number, it.count)) {
            Some((_, known)) if known != count => return self.refuse(id, Refusal::CountMismatch),
            Some((number, _)) => number,
            None if !self.has_place(id) => return,
            None => {
                let number = self.next_number();
                let key = key.to_vec();
                self.barriers.push(Barrier {
                    number,
                    key,
                    count,
                    end: None,
                });
                number
            }
        };
        let come = self.at_barrier(number).len();
        if come + 1 == count as usize {
            self.dissolve(number, Reply::Done);
            self.reply(id, Reply::Done);
        } else if wait == Millis::ZERO {
            self.dissolve(number, Reply::TimedOut);
            self.reply(id, Reply::TimedOut);
        } else if self.is_refused_for_memory(id) {
            self.refuse(id, Refusal::Memory);
            self.barriers.retain(|it| it.number != number || come > 0);
        } else {
            self.park(id, session, wait, Awaits::Barrier(number));
        }
    }

    fn at_barrier(&self, number: u64) -> Vec<WaiterId> {
        let come = self
            .waiters
            .iter()
            .filter(|it| it.what == Awaits::Barrier(number));
        come.map(|it| it.id).collect()
    }

    /// All that have come are answered.
    fn dissolve(&mut self, number: u64, reply: Reply) {
        self.barriers.retain(|it| it.number != number);
        for waiter in self.at_barrier(number) {
            if let Some(conn) = self.unpark(waiter).conn {
                self.answer_parked(conn, reply.clone());
            }
        }
    }

    /// A waiter has left, so the barrier cannot complete: all other waiters time out.
    pub(crate) fn break_barrier(&mut self, number: u64) {
        if self
            .barriers
            .iter()
            .any(|it| it.number == number && it.end.is_none())
        {
            self.dissolve(number, Reply::TimedOut);
        }
    }

    pub(crate) fn barrier_wait_ended(&mut self, waiter: WaiterId, number: u64) {
        let barrier = self.barriers.iter().find(|it| it.number == number);
        let reply = barrier
            .and_then(|it| it.end.clone())
            .unwrap_or(Reply::TimedOut);
        if let Some(conn) = self.unpark(waiter).conn {
            self.answer_parked(conn, reply);
        }
        self.break_barrier(number);
    }

    pub(crate) fn barrier_hung_up(&mut self, number: u64) {
        let barrier = self.barriers.iter_mut().find(|it| it.number == number);
        if let Some(barrier) = barrier {
            barrier.end.get_or_insert(Reply::TimedOut);
        }
    }

    /// Time has passed: answers the waiters of barriers that have ended.
    pub(crate) fn tell_ended_barriers(&mut self) {
        self.about = None;
        while let Some(it) = self.barriers.iter().find(|it| it.end.is_some()) {
            let (number, reply) = (it.number, it.end.clone().expect("it has ended"));
            self.dissolve(number, reply);
        }
    }

    /// At shutdown each is refused, unless its barrier has ended.
    pub(crate) fn send_away_from(&mut self, waiter: WaiterId, conn: ConnId, number: u64) {
        let barrier = self.barriers.iter().find(|it| it.number == number);
        let end = barrier.and_then(|it| it.end.clone());
        self.answer_parked(conn, end.unwrap_or(Reply::Refused(Refusal::Draining)));
        self.unpark(waiter);
        let is_empty = self.at_barrier(number).is_empty();
        self.barriers
            .retain(|it| it.number != number || !is_empty || it.end.is_some());
    }
}
