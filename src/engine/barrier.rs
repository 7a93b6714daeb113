//! Barriers: everyone waits until enough have come.
//!
//! All or nothing: the last one to arrive releases everyone, and the first one to leave early sends
//! everyone away with `timeout`. Either way the barrier is gone and its name can be used again. An
//! arrival in the same turn as a timeout comes first, so who is complete is released.

use super::conn::Asker;
use super::ctx::Ctx;
use super::named::Named;
use super::queue::{Awaiting, Queue, Waiter};
use super::types::{Refusal, Reply};
use crate::base::Millis;

pub(super) struct Barrier {
    /// How many must come.
    pub(super) count: u32,
    /// Who has come.
    pub(super) queue: Queue,
}

pub(super) struct Barriers {
    pub(super) named: Named<Barrier>,
}

impl Barriers {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
        }
    }

    pub(super) fn meet(
        &mut self,
        cx: &mut Ctx<'_>,
        asker: Asker,
        key: &[u8],
        count: u32,
        wait: Millis,
    ) {
        if cx.draining {
            return cx.refuse(asker.conn, Refusal::Draining);
        }
        let barrier = match self.named.find(key) {
            Some(barrier) if self.named[barrier].value.count != count => {
                return cx.refuse(asker.conn, Refusal::CountMismatch);
            }
            Some(barrier) => barrier,
            None => match self.named.insert(
                cx,
                key,
                Barrier {
                    count,
                    queue: Queue::new(),
                },
            ) {
                Ok(barrier) => barrier,
                Err(refusal) => return cx.refuse(asker.conn, refusal),
            },
        };
        if self.named[barrier].value.queue.len() + 1 == count {
            self.dissolve(cx, barrier, &Reply::Done);
            cx.reply(asker.conn, Reply::Done);
        } else if wait == Millis::ZERO {
            self.dissolve(cx, barrier, &Reply::TimedOut);
            cx.reply(asker.conn, Reply::TimedOut);
        } else {
            let waiter =
                cx.waiters
                    .insert(Waiter::new(asker.owner, barrier, Awaiting::Barrier, cx.now));
            self.named[barrier]
                .value
                .queue
                .push_back(cx.waiters, waiter);
            self.named.touch(barrier, cx.now, false);
            cx.park(waiter, asker.conn, wait);
        }
    }

    /// A participant has waited long enough, or is gone; the others need not wait for it.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.waiters[waiter].subject;
        let queue = &mut self.named[barrier].value.queue;
        cx.leave(queue, waiter);
        self.dissolve(cx, barrier, &Reply::TimedOut);
    }

    /// Shutdown sends this one away, as all the others.
    pub(super) fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.waiters[waiter].subject;
        let queue = &mut self.named[barrier].value.queue;
        cx.leave(queue, waiter);
        if queue.is_empty() {
            self.named.remove(cx, barrier);
        }
    }

    /// Everyone who waits is told the same, in the order they came, and the barrier is gone.
    fn dissolve(&mut self, cx: &mut Ctx<'_>, barrier: u32, reply: &Reply) {
        while let Some(waiter) = self.named[barrier].value.queue.head() {
            let queue = &mut self.named[barrier].value.queue;
            let it = cx.leave(queue, waiter);
            cx.reply(it.conn, reply.clone());
        }
        self.named.remove(cx, barrier);
    }
}
