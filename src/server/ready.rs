//! The run queue: connections that are to be served without an event of their own.
//!
//! Those that have hung up come first, then those that were denied a walk in the last turn, then
//! those that had more in it than their share; a connection that is answered after waiting is
//! served on at the end of the same turn. One share itself is in `serve.rs`. Never reads a byte.

use std::collections::VecDeque;
use std::mem;

use super::budget::{HUNG_UP_MAX, RESUMED_MAX};
use super::conn::{self, Flow, Transport};
use super::{Clock, Server};
use crate::base::ConnId;
use crate::engine::types::Input;

#[derive(Default)]
pub(super) struct RunQueue {
    /// Their peer has hung up, and they are yet to be served to their end.
    hung_up: VecDeque<ConnId>,
    /// Were denied a walk in this turn.
    denied: Vec<ConnId>,
    /// Had more than their share in this turn.
    more: Vec<ConnId>,
    /// Were denied or had more in the last turn, and are yet to be served in this one.
    due: Vec<ConnId>,
    /// Were answered after waiting, and may have more input.
    resumed: VecDeque<ConnId>,
}

impl RunQueue {
    /// Nobody waits to be served.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.resumed.is_empty() && self.hung_up.is_empty()
    }

    /// Was parked and is answered now.
    pub(super) fn resume(&mut self, id: ConnId) {
        self.resumed.push_back(id);
    }

    /// The turn is over: a connection that did not get its share is served first in the next one.
    pub(super) fn end_turn(&mut self) {
        self.due.append(&mut self.denied);
        self.due.append(&mut self.more);
    }
}

impl<T: Transport> Server<T> {
    /// Before anybody else is heard.
    pub(super) fn serve_ready(&mut self, clock: Clock<'_>) {
        // As many as a turn has time for. One that has more to say than its share goes to the end.
        for _ in 0..self.run.hung_up.len().min(HUNG_UP_MAX) {
            if let Some(id) = self.run.hung_up.pop_front() {
                self.serve_queued(clock, id);
            }
        }
        self.budget.release_walks();
        for id in mem::take(&mut self.run.due) {
            self.serve_queued(clock, id);
        }
    }

    /// After everybody was heard.
    pub(super) fn serve_resumed(&mut self, clock: Clock<'_>) {
        for _ in 0..RESUMED_MAX {
            let Some(id) = self.run.resumed.pop_front() else {
                break;
            };
            self.serve_conn(clock, id);
        }
    }

    /// It is no longer in the run queue, and what it still has to say counts.
    fn serve_queued(&mut self, clock: Clock<'_>, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.queued = false;
            if conn.hung_up {
                self.engine
                    .apply(self.clock_read, Input::HungUp(id, false), &mut self.effects);
            }
            self.serve_conn(clock, id);
        }
    }

    /// Puts the connection into the run queue, unless it is there.
    pub(super) fn serve_later(&mut self, id: ConnId) {
        let Some(conn) = conn::find(&mut self.conns, id).filter(|conn| !conn.queued) else {
            return;
        };
        conn.queued = true;
        if conn.hung_up {
            self.run.hung_up.push_back(id);
        } else if conn.flow == Flow::Denied {
            self.run.denied.push(id);
        } else {
            self.run.more.push(id);
        }
    }
}
