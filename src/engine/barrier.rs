//! Barriers: clients wait until enough of them have come.
//!
//! All or nothing: the last client to arrive releases all, and the first to leave early ends the
//! wait of all others with `timeout`. Either way the barrier is gone and its name can be used
//! again. An arrival in the same turn as a timeout comes first, so a barrier that it completes is
//! released.

use super::arena::Stored;
use super::conn::Asker;
use super::ctx::Ctx;
use super::named::Named;
use super::queue::{Awaiting, Queue, Waiter};
use super::types::{Refusal, Reply};
use crate::base::Millis;

pub(super) struct Barrier {
    /// How many clients must come.
    pub(super) count: u32,
    /// The clients that have come.
    pub(super) queue: Queue,
}

impl Stored for Barrier {}

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
        if cx.core.draining {
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
        } else if !cx.has_room_to_wait() {
            cx.refuse(asker.conn, Refusal::Memory);
            if self.named[barrier].value.queue.is_empty() {
                self.named.remove(cx, barrier);
            }
        } else {
            let waiter = Waiter::new(asker.owner, barrier, Awaiting::Barrier, cx.now);
            let waiter = cx.join(&mut self.named[barrier].value.queue, waiter);
            self.named.touch(barrier, cx.now, false);
            cx.park(waiter, asker.conn, wait);
        }
    }

    /// A client's wait is over, or the client is gone: the others need not wait any longer.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.core.waiters[waiter].subject;
        let queue = &mut self.named[barrier].value.queue;
        cx.leave(queue, waiter);
        self.dissolve(cx, barrier, &Reply::TimedOut);
    }

    /// At shutdown: takes this client out of the queue, as it does with all the others.
    pub(super) fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.core.waiters[waiter].subject;
        let queue = &mut self.named[barrier].value.queue;
        cx.leave(queue, waiter);
        if queue.is_empty() {
            self.named.remove(cx, barrier);
        }
    }

    /// Gives the same answer to all that wait, in the order they came, and removes the barrier.
    ///
    /// All at once, because it is all or nothing: nobody may come between. They are not more than
    /// there are connections, each parked here, and to leave costs each a tenth of a microsecond.
    fn dissolve(&mut self, cx: &mut Ctx<'_>, barrier: u32, reply: &Reply) {
        while let Some(waiter) = self.named[barrier].value.queue.head() {
            let queue = &mut self.named[barrier].value.queue;
            let it = cx.leave(queue, waiter);
            cx.reply(it.conn, reply.clone());
        }
        self.named.remove(cx, barrier);
    }
}
