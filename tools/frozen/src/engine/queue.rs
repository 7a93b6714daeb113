//! The queue of waiters for a key, a list or a barrier: strictly first come, first served.
//!
//! Data only: this file keeps the order, the parked command and its deadline. Which waiter is
//! served, and when, is decided in `lock.rs` (`Locks::grant_waiting`), `list.rs` and `barrier.rs`.
//! Waiters are linked through one arena, so to join, to be granted and to leave from the middle of
//! ten thousand all cost the same.

use super::arena::{Arena, Chain, Link, Linked, NONE, Stored};
use super::conn::ConnIndex;
use super::ctx::Ctx;
use super::due::Due;
use super::holder::Held;
use super::owner::OwnerIndex;
use super::types::{End, Reply};
use super::work;
use crate::base::{Millis, Nanos};
use crate::timers::TimerId;

/// The chain of waiters of one queue.
pub(super) struct OfQueue;

/// A queue of waiters, in the order in which they came.
pub(super) type Queue = Chain<OfQueue>;

pub(super) type Waiters = Arena<Waiter>;

/// One waiter in a queue.
pub(super) struct Waiter {
    /// The owner of what will be granted.
    pub(super) owner: OwnerIndex,
    /// The connection whose command is parked on this waiter, or `NONE`, as for an enqueue that is
    /// not waited for yet.
    pub(super) conn: ConnIndex,
    /// The index of the key, list or barrier that is waited for.
    pub(super) subject: u32,
    pub(super) awaiting: Awaiting,
    /// When it joined the queue.
    pub(super) since: Nanos,
    /// Runs while a command is parked on this waiter.
    pub(super) timer: Option<TimerId>,
    /// Larger than that of everyone before it in the queue.
    pub(super) number: u64,
    link: Link,
}

impl Stored for Waiter {}

impl Linked<OfQueue> for Waiter {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What a waiter waits for, and what is needed to serve it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaiting {
    /// It wants to hold a key.
    Hold(Want),
    /// It waits for a value from this end of a list.
    Pop(End),
    /// It waits until enough clients have come to a barrier.
    Barrier,
    /// It wants bytes of a resource: what is kept of that is under this number.
    Range(u32),
}

/// The hold a waiter wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) held: Held,
    pub(super) lease: Millis,
    /// The two-phase ticket that this waiter belongs to, or `NONE` for a plain acquire.
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
            number: 0, // set when it joins
            link: Link::OUT,
        }
    }

    /// The one before it in the queue.
    pub(super) fn before(&self) -> Option<u32> {
        self.link.prev()
    }

    /// The one behind it in the queue.
    pub(super) fn behind(&self) -> Option<u32> {
        self.link.next()
    }

    /// What a waiter in the queue of a key wants; in that queue there are no others.
    pub(super) fn want(&self) -> Want {
        match self.awaiting {
            Awaiting::Hold(want) => want,
            Awaiting::Pop(_) | Awaiting::Barrier | Awaiting::Range(_) => {
                unreachable!("a waiter in the queue of a key does not want the key")
            }
        }
    }
}

impl Ctx<'_> {
    /// Parks the connection's command until the waiter is served or the wait is over.
    pub(super) fn park(&mut self, waiter: u32, conn: ConnIndex, wait: Millis) {
        let it = &mut self.core.waiters[waiter];
        assert_eq!(
            (self.core.conns[conn].parked, it.conn),
            (NONE, ConnIndex::NONE),
            "a connection is parked in two commands, or a waiter has two connections"
        );
        self.core.conns[conn].parked = waiter;
        it.conn = conn;
        it.timer = Some(
            self.core
                .timers
                .arm(it.owner.0, self.now.after(wait), Due::wait(waiter)),
        );
    }

    /// Answers a command that was parked, unless its client has hung up: then nobody waits for it, and
    /// the connection is served to its end as it is.
    pub(super) fn answer_parked(&mut self, conn: ConnIndex, reply: Reply) {
        if self.core.conns[conn].is_present() {
            self.reply(conn, reply);
        }
    }

    /// Whether there is memory for another waiter.
    pub(super) fn has_room_to_wait(&self) -> bool {
        !self.core.memory_full || self.core.waiters.has_vacancy()
    }

    /// Puts a new waiter at the end of the queue.
    pub(super) fn join(&mut self, queue: &mut Queue, waiter: Waiter) -> u32 {
        self.core.owners[waiter.owner].waits += 1;
        let waiter = self.core.waiters.insert(waiter);
        queue.push_back(&mut self.core.waiters, waiter);
        if let Some(before) = self.core.waiters[waiter].before() {
            self.core.waiters[waiter].number = self.core.waiters[before].number + 1;
        }
        waiter
    }

    /// Takes the waiter out of its queue. If a command is parked on it, the command is no longer
    /// parked, and the caller owes [`Waiter::conn`] an answer.
    pub(super) fn leave(&mut self, queue: &mut Queue, waiter: u32) -> Waiter {
        self.core.work.charge(work::GIVE_UP);
        queue.unlink(&mut self.core.waiters, waiter);
        let gone = self.core.waiters.remove(waiter);
        self.core.owners[gone.owner].waits -= 1;
        if gone.conn != ConnIndex::NONE {
            self.core.conns[gone.conn].parked = NONE;
        }
        if let Some(timer) = gone.timer {
            self.core.timers.cancel(gone.owner.0, timer);
        }
        gone
    }
}
