//! The run queue: which connections are served, and in which order.
//!
//! A connection that asks little does not wait behind those that ask much. What it has sent since it
//! was last served gets a small first share; a connection that has more than that takes turns with
//! the others that have, behind everybody's first share. Those that have hung up come before both,
//! but only so many. A connection that is answered after waiting is served on at the end of the same
//! turn. One share itself is in `serve.rs`, what a turn may spend in `budget.rs`. Never reads a byte.

use std::collections::VecDeque;

use super::budget::{
    FRESH_NS, FRESH_NS_MIN, HUNG_UP_MAX, HUNG_UP_NS, HUNG_UP_NS_MIN, MORE_NS, MORE_NS_MIN,
    RESUMED_NS_MIN,
};
use super::closing::Closing;
use super::conn::{self, Flow, Transport};
use super::memory::Outboxes;
use super::serve::Share;
use super::{Clock, Server};
use crate::base::ConnId;
use crate::engine::types::Input;
use crate::store::Store;

/// How long a list of those that wait for room may be before those that left are taken out of it.
const WAITING_KEPT_MIN: usize = 64;

#[derive(Default)]
pub(super) struct RunQueue {
    /// Their peer has hung up, and they have not been served since.
    hung_up: VecDeque<ConnId>,
    /// Have sent something, and have not been served since.
    fresh: VecDeque<ConnId>,
    /// Where this turn stops serving them.
    fresh_end_ns: u64,
    /// Had more than their share when they were last served.
    more: VecDeque<ConnId>,
    /// The same, of those that have hung up.
    hung_up_more: VecDeque<ConnId>,
    /// The next one to be served is to be one of these.
    is_turn_of_hung_up: bool,
    /// Were answered after waiting, and may have more input.
    resumed: VecDeque<ConnId>,
    /// Wait for room in all outboxes together, or in all inboxes: see `memory.rs`.
    await_outboxes: VecDeque<ConnId>,
    await_inboxes: VecDeque<ConnId>,
    /// Wait until some of the pushes have been sent: see `gate.rs`.
    await_pushes: VecDeque<ConnId>,
    /// Wait until the disk has got on: see `durable.rs`.
    await_store: VecDeque<ConnId>,
}

impl RunQueue {
    /// Nobody waits to be served.
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty()
            && self.resumed.is_empty()
            && self.hung_up.is_empty()
            && !self.is_crowded()
    }

    /// Some connections ask for more than their share.
    pub(super) fn is_crowded(&self) -> bool {
        !self.more.is_empty() || !self.hung_up_more.is_empty()
    }

    /// Some have hung up and were not served since.
    pub(super) fn has_hung_up(&self) -> bool {
        !self.hung_up.is_empty()
    }

    /// One that is still there and one that has hung up, alternately: a crowd that left with much to
    /// say keeps nobody waiting who did not.
    fn next_with_more(&mut self) -> Option<ConnId> {
        self.is_turn_of_hung_up = !self.is_turn_of_hung_up;
        let Self {
            more, hung_up_more, ..
        } = self;
        if self.is_turn_of_hung_up {
            hung_up_more.pop_front().or_else(|| more.pop_front())
        } else {
            more.pop_front().or_else(|| hung_up_more.pop_front())
        }
    }

    /// There may be room again for those that wait for it: they go on with the others that have
    /// more.
    pub(super) fn wake(&mut self, outboxes: Outboxes, inboxes: bool) {
        if outboxes < Outboxes::Full {
            self.more.append(&mut self.await_outboxes);
        }
        if inboxes {
            self.more.append(&mut self.await_inboxes);
        }
    }

    /// Some pushes have been sent: those that want to signal go on.
    pub(super) fn wake_signallers(&mut self) {
        self.more.append(&mut self.await_pushes);
    }

    /// The disk has got on: those that want to change something go on.
    pub(super) fn wake_writers(&mut self) {
        self.more.append(&mut self.await_store);
    }

    /// Was parked and is answered now.
    pub(super) fn resume(&mut self, id: ConnId) {
        self.resumed.push_back(id);
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Serves those that have hung up, to their end if they have not more to say than a first share.
    pub(super) fn serve_hung_up(&mut self, clock: Clock<'_>) {
        let end = HUNG_UP_NS.max(self.budget.spent() + HUNG_UP_NS_MIN);
        for _ in 0..HUNG_UP_MAX {
            if self.budget.spent() >= end {
                break;
            }
            let Some(id) = self.run.hung_up.pop_front() else {
                break;
            };
            self.serve_queued(clock, id, Share::FIRST);
        }
    }

    /// Serves those that have sent something and had to wait in the last turn.
    pub(super) fn serve_fresh(&mut self, clock: Clock<'_>) {
        self.run.fresh_end_ns = FRESH_NS.max(self.budget.spent() + FRESH_NS_MIN);
        while self.has_time_for_fresh()
            && let Some(id) = self.run.fresh.pop_front()
        {
            self.serve_queued(clock, id, Share::FIRST);
        }
    }

    /// Has sent something: is served now, or behind those that have been waiting for it.
    pub(super) fn serve_fresh_one(&mut self, clock: Clock<'_>, id: ConnId) {
        if self.run.fresh.is_empty() && self.has_time_for_fresh() {
            self.serve_conn(clock, id, Share::FIRST);
        } else if let Some(conn) = self.conn_mut(id) {
            conn.queued = true;
            self.run.fresh.push_back(id);
        }
    }

    /// After a stop of the whole process there is time for all: leases may have ended meanwhile, and
    /// a renewal or a release that arrived before must still be heard first.
    fn has_time_for_fresh(&self) -> bool {
        self.budget.spent() < self.run.fresh_end_ns || self.was_stopped
    }

    /// Serves those that have more than their first share, in turn, as long as there is time.
    pub(super) fn serve_more(&mut self, clock: Clock<'_>) {
        let end = MORE_NS.max(self.budget.spent() + MORE_NS_MIN);
        while self.budget.spent() < end
            && let Some(id) = self.run.next_with_more()
        {
            self.serve_queued(clock, id, Share::LONG);
        }
    }

    /// After everybody was heard.
    pub(super) fn serve_resumed(&mut self, clock: Clock<'_>) {
        let end = MORE_NS.max(self.budget.spent() + RESUMED_NS_MIN);
        while self.budget.spent() < end
            && let Some(id) = self.run.resumed.pop_front()
        {
            // Whoever waits in a list is served from there.
            if self.conn_mut(id).is_some_and(|conn| !conn.queued) {
                self.serve_conn(clock, id, Share::FIRST);
            }
        }
    }

    /// It is no longer in the run queue, and what it still has to say counts.
    pub(super) fn serve_queued(&mut self, clock: Clock<'_>, id: ConnId, share: Share) {
        self.budget.charge_look();
        if let Some(conn) = self.conn_mut(id) {
            conn.queued = false;
            if conn.hung_up && conn.is_waiting() {
                self.leave(self.clock_read, id, Closing::Flush, "left while waiting");
            } else if conn.hung_up {
                self.engine
                    .apply(self.clock_read, Input::HungUp(id, false), &mut self.effects);
                self.end_hung_up_guess(self.clock_read, id);
            }
            self.serve_conn(clock, id, share);
        }
    }

    /// Its peer has hung up: puts it into the run queue, unless it is there.
    pub(super) fn serve_to_its_end(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id).filter(|conn| !conn.queued) {
            conn.queued = true;
            self.run.hung_up.push_back(id);
        }
    }

    /// It goes on when there is room. A connection that has hung up waits only for the disk: what it
    /// would have to wait for otherwise is dropped.
    pub(super) fn wait_for_room(&mut self, id: ConnId) {
        let now = self.clock_read;
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        if conn.hung_up && conn.flow != Flow::AwaitsStore {
            return self.leave(now, id, Closing::Flush, "left before there was room");
        }
        conn.queued = true;
        let waiting = match conn.flow {
            Flow::AwaitsOwnOutbox => return, // see `note_all_read`
            Flow::AwaitsOutboxes => &mut self.run.await_outboxes,
            Flow::AwaitsPushes => &mut self.run.await_pushes,
            Flow::AwaitsStore => &mut self.run.await_store,
            _ => &mut self.run.await_inboxes,
        };
        waiting.push_back(id);
        // Those that left meanwhile are still in the list, but never more of them than others.
        let conns = &mut self.conns;
        if waiting.len() > 2 * conns.len() + WAITING_KEPT_MIN {
            waiting.retain(|&id| conn::find(conns, id).is_some_and(|it| it.flow.waits_for_room()));
        }
    }

    /// It has read everything, and had to before its next long answer. If there is no room for that
    /// now, it waits on for it.
    pub(super) fn note_all_read(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id) {
            conn.flow = Flow::Yielded;
            conn.queued = false;
            self.serve_later(id);
        }
    }

    /// It has more: puts it into the run queue, unless it is there.
    pub(super) fn serve_later(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id).filter(|conn| !conn.queued) {
            conn.queued = true;
            if conn.hung_up {
                self.run.hung_up_more.push_back(id);
            } else {
                self.run.more.push_back(id);
            }
        }
    }
}
