//! Who is visited when: the lists of those who are to be, and the time they are visited at.
//!
//! Whoever hung up comes first, then whoever did not get all it wanted in the last turn; one share itself
//! is in `serve.rs`. Never reads a byte.

use std::mem;

use super::conn::{self, Transport};
use super::{Clock, HUNG_UP_PER_TURN_MAX, Server};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;

impl<T: Transport> Server<T> {
    /// What time it is, right now.
    pub(super) fn read_clock(&mut self, clock: Clock<'_>) -> Nanos {
        let now = clock();
        self.clock_read = Some(now);
        now
    }

    /// What time it was when somebody last looked in this turn. What is due may come a moment late but
    /// must not come early, so there is no need to look again.
    pub(super) fn last_read_clock(&mut self, clock: Clock<'_>) -> Nanos {
        match self.clock_read {
            Some(now) => now,
            None => self.read_clock(clock),
        }
    }

    /// Once in a turn, before anybody else: those who have hung up, those who were denied a walk in the
    /// last turn, then those who had more in it than their share.
    #[inline]
    pub(super) fn serve_ready(&mut self, clock: Clock<'_>) {
        if !self.has_served_ready {
            self.has_served_ready = true;
            // Half of the walks are for those who are still there.
            let for_others = self.walk_bytes_left / 2;
            self.walk_bytes_left -= for_others;
            self.serve_hung_up(clock);
            self.walk_bytes_left += for_others;
            for id in mem::take(&mut self.waiting) {
                self.serve_listed(clock, id);
            }
        }
    }

    /// As many as a turn has time for. Who has more to say than one share goes to the end of the line.
    fn serve_hung_up(&mut self, clock: Clock<'_>) {
        for _ in 0..self.hung_up.len().min(HUNG_UP_PER_TURN_MAX) {
            let Some(id) = self.hung_up.pop_front() else {
                break;
            };
            self.serve_listed(clock, id);
        }
    }

    /// It is no longer on a list, and what it still has to say counts.
    fn serve_listed(&mut self, clock: Clock<'_>, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.revisit = false;
            if conn.hung_up {
                let now = self.last_read_clock(clock);
                self.engine
                    .apply(now, Input::HungUp(id, false), &mut self.effects);
            }
            self.serve_conn(clock, id);
        }
    }

    /// Puts the connection on the list of those to be visited, unless it stands on one.
    pub(super) fn serve_later(&mut self, id: ConnId) {
        let Some(conn) = conn::find(&mut self.conns, id).filter(|conn| !conn.revisit) else {
            return;
        };
        conn.revisit = true;
        if conn.hung_up {
            self.hung_up.push_back(id);
        } else if conn.denied {
            self.denied.push(id);
        } else {
            self.revisit.push(id);
        }
    }
}
