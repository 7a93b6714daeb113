//! The queue in front of a key: strictly first come, first served.
//!
//! Waiters are linked through one arena, so joining, being granted and leaving from the middle of
//! ten thousand all cost the same. Who may be granted is for the primitive to say; this file only
//! keeps order, the parked command, and its deadline.

use super::arena::{Arena, Chain, Link, Linked, NONE};
use super::client::Clients;
use super::due::Due;
use super::holder::Hold;
use super::types::End;
use crate::base::{Millis, Nanos};
use crate::timers::{TimerId, Timers};

/// The chain of waiters of one key.
pub(super) struct OfQueue;

/// A queue of waiters, in the order in which they came.
pub(super) type Queue = Chain<OfQueue>;

pub(super) type Waiters = Arena<Waiter>;

/// Somebody in the queue.
pub(super) struct Waiter {
    pub(super) client: u32,
    /// What is waited for: a key, a list or a barrier, by its number.
    pub(super) subject: u32,
    pub(super) awaiting: Awaiting,
    /// In queue since.
    pub(super) since: Nanos,
    /// Runs while a command is parked on this waiter; an enqueue alone waits without end.
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
    pub(super) fn new(client: u32, subject: u32, awaiting: Awaiting, since: Nanos) -> Self {
        Self {
            client,
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

/// Holds the client's command back until the waiter is granted or `deadline` has come.
pub(super) fn park(
    waiters: &mut Waiters,
    timers: &mut Timers<Due>,
    clients: &mut Clients,
    waiter: u32,
    deadline: Nanos,
) {
    let client = waiters[waiter].client;
    assert_eq!(
        clients[client].parked, NONE,
        "one client parked in two commands"
    );
    clients[client].parked = waiter;
    waiters[waiter].timer = Some(timers.arm(deadline, Due::wait(waiter)));
}

/// Takes the waiter out of its queue and out of its client's hands; says whether a command was
/// parked on it, which the caller then owes an answer.
pub(super) fn leave(
    waiters: &mut Waiters,
    timers: &mut Timers<Due>,
    clients: &mut Clients,
    queue: &mut Queue,
    waiter: u32,
) -> (Waiter, bool) {
    queue.unlink(waiters, waiter);
    let gone = waiters.remove(waiter);
    let parked = clients[gone.client].parked == waiter;
    if parked {
        clients[gone.client].parked = NONE;
    }
    if let Some(timer) = gone.timer {
        timers.cancel(timer);
    }
    (gone, parked)
}

/// How many stand before this waiter, and itself: 1 is next.
pub(super) fn position(waiters: &Waiters, waiter: u32) -> u32 {
    let before = std::iter::successors(waiters[waiter].link.prev(), |&w| waiters[w].link.prev());
    before.count() as u32 + 1
}
