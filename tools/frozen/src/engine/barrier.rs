//! Barriers: clients wait until enough of them have come.
//!
//! All or nothing: the last client to arrive releases all, and the first to leave early ends the
//! wait of all others with `timeout`. Either way the barrier is gone and its name can be used
//! again. An arrival in the same turn as a timeout comes first, so a barrier that it completes is
//! released.
//!
//! What becomes of a barrier is decided for all in one instant. Very many are told of it a part at a
//! time, and nothing that happens meanwhile changes what the others are told.

use std::collections::VecDeque;

use super::arena::Stored;
use super::conn::Asker;
use super::ctx::Ctx;
use super::named::Named;
use super::queue::{Awaiting, Queue, Waiter};
use super::types::{Refusal, Reply};
use crate::base::Millis;

/// Most clients that are told at a time what became of their barrier; the rest follows when time
/// passes.
const TOLD_MAX: u32 = 128;

pub(super) struct Barrier {
    /// How many clients must come.
    pub(super) count: u32,
    /// The clients that have come, and were not told yet what became of it.
    pub(super) queue: Queue,
    /// How it ended, if it has.
    end: Option<BarrierEnd>,
}

/// How a barrier ends, for all that are there.
#[derive(Clone, Copy, Debug)]
enum BarrierEnd {
    /// Enough have come.
    Complete,
    /// Somebody has left early.
    Broken,
}

impl BarrierEnd {
    fn reply(self) -> Reply {
        match self {
            Self::Complete => Reply::Done,
            Self::Broken => Reply::TimedOut,
        }
    }
}

impl Stored for Barrier {}

pub(super) struct Barriers {
    pub(super) named: Named<Barrier>,
    /// Those that have ended, and have no name any more, but not all of their clients were told. They
    /// take turns.
    ended: VecDeque<u32>,
}

impl Barriers {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            named: Named::new(seed),
            ended: VecDeque::new(),
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
                    end: None,
                },
            ) {
                Ok(barrier) => barrier,
                Err(refusal) => return cx.refuse(asker.conn, refusal),
            },
        };
        if self.named[barrier].value.queue.len() + 1 == count {
            self.dissolve(cx, barrier, BarrierEnd::Complete);
            cx.reply(asker.conn, Reply::Done);
        } else if wait == Millis::ZERO {
            self.dissolve(cx, barrier, BarrierEnd::Broken);
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

    /// A client's wait is over.
    pub(super) fn wait_ended(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.core.waiters[waiter].subject;
        let end = self.named[barrier].value.end.unwrap_or(BarrierEnd::Broken);
        cx.answer_parked(cx.core.waiters[waiter].conn, end.reply());
        self.give_up(cx, waiter);
    }

    /// A client is gone, or told why it goes: the others need not wait any longer.
    pub(super) fn give_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.core.waiters[waiter].subject;
        let it = &mut self.named[barrier].value;
        cx.leave(&mut it.queue, waiter);
        if it.end.is_none() {
            self.dissolve(cx, barrier, BarrierEnd::Broken);
        }
    }

    /// A client has hung up: nobody who comes now completes the barrier with it. The others are told
    /// when time passes, when it is known who else has hung up.
    pub(super) fn note_hung_up(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let barrier = cx.core.waiters[waiter].subject;
        if self.named[barrier].value.end.is_none() {
            self.end(cx, barrier, BarrierEnd::Broken);
            self.ended.push_back(barrier);
        }
    }

    /// At shutdown: refuses this client and takes it out of the queue, as it does with all the others.
    /// If its barrier has ended, it is told so instead.
    pub(super) fn send_away(&mut self, cx: &mut Ctx<'_>, waiter: u32) {
        let Waiter { conn, subject, .. } = cx.core.waiters[waiter];
        let it = &mut self.named[subject].value;
        let refused = Reply::Refused(Refusal::Draining);
        cx.answer_parked(conn, it.end.map_or(refused, BarrierEnd::reply));
        cx.leave(&mut it.queue, waiter);
        if it.queue.is_empty() && it.end.is_none() {
            self.named.remove(cx, subject);
        }
    }

    /// Gives the same answer to all that wait, in the order they came. From here on the barrier is
    /// gone for everybody else.
    fn dissolve(&mut self, cx: &mut Ctx<'_>, barrier: u32, end: BarrierEnd) {
        self.end(cx, barrier, end);
        if !self.tell_some(cx, barrier) {
            self.ended.push_back(barrier);
        }
    }

    fn end(&mut self, cx: &mut Ctx<'_>, barrier: u32, end: BarrierEnd) {
        self.named[barrier].value.end = Some(end);
        self.named.remove_name(cx, barrier);
    }

    /// Tells some of those that wait how their barrier ended; returns whether it was all, and the
    /// barrier is removed.
    fn tell_some(&mut self, cx: &mut Ctx<'_>, barrier: u32) -> bool {
        let Barrier { queue, end, .. } = &mut self.named[barrier].value;
        let end = end.expect("told before it has ended");
        for _ in 0..TOLD_MAX {
            let Some(waiter) = queue.head() else {
                break;
            };
            let it = cx.leave(queue, waiter);
            cx.answer_parked(it.conn, end.reply());
        }
        let is_done = queue.is_empty();
        if is_done {
            self.named.remove_nameless(barrier);
        }
        is_done
    }

    /// Whether all clients of barriers that have ended were told.
    pub(super) fn has_told_all(&self) -> bool {
        self.ended.is_empty()
    }

    /// Goes on telling them.
    pub(super) fn go_on_telling(&mut self, cx: &mut Ctx<'_>, slice_end: u64) {
        while let Some(barrier) = self.ended.pop_front() {
            if !self.tell_some(cx, barrier) {
                self.ended.push_back(barrier);
            }
            if cx.core.work.spent() >= slice_end {
                break;
            }
        }
    }

    /// The queues of barriers that have ended; for checks.
    pub(super) fn ended_queues(&self) -> impl Iterator<Item = &Queue> {
        self.ended.iter().map(|&it| &self.named[it].value.queue)
    }
}
