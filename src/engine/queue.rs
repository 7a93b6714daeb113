//! The queue in front of a key: strictly first come, first served.
//!
//! Waiters are linked through one arena, so joining, being granted and leaving from the middle of
//! ten thousand all cost the same. Who may be granted is for the primitive to say; this file only
//! keeps order, the parked command, and its deadline.

use super::arena::{Arena, Chain, Link, Linked, NONE};
use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::due::Due;
use super::holder::Hold;
use super::owner::OwnerIndex;
use super::types::End;
use crate::base::{Millis, Nanos};
use crate::timers::TimerId;

/// The chain of waiters of one key.
pub(super) struct OfQueue;

/// A queue of waiters, in the order in which they came.
pub(super) type Queue = Chain<OfQueue>;

pub(super) type Waiters = Arena<Waiter>;

/// Somebody in the queue.
pub(super) struct Waiter {
    /// Whose the grant will be.
    pub(super) owner: OwnerIndex,
    /// The connection whose command is parked on this waiter, or `NONE`: an enqueue alone waits
    /// without one.
    pub(super) conn: ConnIndex,
    /// What is waited for: a key, a list or a barrier, by its number.
    pub(super) subject: u32,
    pub(super) awaiting: Awaiting,
    /// In queue since.
    pub(super) since: Nanos,
    /// Runs while a command is parked on this waiter.
    pub(super) timer: Option<TimerId>,
    link: Link,
}

impl Linked<OfQueue> for Waiter {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What somebody waits for, and what it takes to be served.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaiting {
    /// To hold a key.
    Hold(Want),
    /// For a value of a list, from this end.
    Pop(End),
    /// For enough others to come to a barrier.
    Barrier,
}

/// The hold a waiter wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) hold: Hold,
    pub(super) lease: Millis,
    /// The two-phase ticket this waiter stands for, or `NONE` for a plain acquire.
    pub(super) ticket: u32,
}

impl Waiter {
    pub(super) fn new(owner: OwnerIndex, subject: u32, awaiting: Awaiting, since: Nanos) -> Self {
        Self {
            owner,
            conn: ConnIndex::NONE,
            subject,
            awaiting,
            since,
            timer: None,
            link: Link::OUT,
        }
    }

    /// For a waiter in a key's queue, which is the only kind there.
    pub(super) fn want(&self) -> Want {
        match self.awaiting {
            Awaiting::Hold(want) => want,
            Awaiting::Pop(_) | Awaiting::Barrier => {
                unreachable!("in a key's queue, but not for the key")
            }
        }
    }
}

impl Ctx<'_> {
    /// Holds the connection's command back until the waiter is granted or the wait is over.
    pub(super) fn park(&mut self, waiter: u32, conn: ConnIndex, wait: Millis) {
        let it = &mut self.waiters[waiter];
        assert_eq!(
            (self.conns[conn].parked, it.conn),
            (NONE, ConnIndex::NONE),
            "one connection parked in two commands, or two in one"
        );
        self.conns[conn].parked = waiter;
        it.conn = conn;
        it.timer = Some(self.timers.arm(self.now.after(wait), Due::wait(waiter)));
    }

    /// Takes the waiter out of its queue, and its parked command, if there is one, out of the
    /// connection's hands: the caller then owes [`Waiter::conn`] an answer.
    pub(super) fn leave(&mut self, queue: &mut Queue, waiter: u32) -> Waiter {
        queue.unlink(self.waiters, waiter);
        let gone = self.waiters.remove(waiter);
        if gone.conn != ConnIndex::NONE {
            self.conns[gone.conn].parked = NONE;
        }
        if let Some(timer) = gone.timer {
            self.timers.cancel(timer);
        }
        gone
    }
}

/// How many stand before this waiter, and itself: 1 is next.
pub(super) fn position(waiters: &Waiters, waiter: u32) -> u32 {
    let before = std::iter::successors(waiters[waiter].link.prev(), |&w| waiters[w].link.prev());
    before.count() as u32 + 1
}
