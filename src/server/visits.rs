//! Who is visited when: the lists of those who are to be, and the time they are visited at.
//!
//! Whoever hung up comes first, then whoever did not get all it wanted in the last turn; a visit itself
//! is in `serve.rs`. Never reads a byte.

use std::mem;

use super::conn::{self, Transport};
use super::{Clock, FAREWELLS_PER_TURN_MAX, Server};
use crate::base::{ConnId, Nanos};

impl<T: Transport> Server<T> {
    /// What time it is, right now.
    pub(super) fn look_at_clock(&mut self, clock: Clock<'_>) -> Nanos {
        let now = clock();
        self.looked_at = Some(now);
        now
    }

    /// What time it was when somebody last looked in this turn. What is due may come a moment late but
    /// must not come early, so there is no need to look again.
    pub(super) fn last_look(&mut self, clock: Clock<'_>) -> Nanos {
        match self.looked_at {
            Some(now) => now,
            None => self.look_at_clock(clock),
        }
    }

    /// Once in a turn, before anybody else: those who have hung up, those who were denied a walk in the
    /// last turn, then those who had more in it than their share.
    #[inline]
    pub(super) fn visit_listed(&mut self, clock: Clock<'_>) {
        if !self.has_visited_listed {
            self.has_visited_listed = true;
            // Half of the walks are for those who are still there.
            let for_others = self.walk_bytes_left / 2;
            self.walk_bytes_left -= for_others;
            self.see_off(clock);
            self.walk_bytes_left += for_others;
            for id in mem::take(&mut self.waiting) {
                self.visit_from_list(clock, id);
            }
        }
    }

    /// As many as a turn has time for. Who has more to say than one share goes to the end of the line.
    fn see_off(&mut self, clock: Clock<'_>) {
        for _ in 0..self.farewells.len().min(FAREWELLS_PER_TURN_MAX) {
            let Some(id) = self.farewells.pop_front() else {
                break;
            };
            self.visit_from_list(clock, id);
        }
    }

    /// It is no longer on a list, and what it still has to say counts.
    fn visit_from_list(&mut self, clock: Clock<'_>, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.revisit = false;
            if conn.hung_up {
                self.engine.set_absent(id, false);
            }
            self.visit(clock, id);
        }
    }

    /// Puts the connection on the list of those to be visited, unless it stands on one.
    pub(super) fn visit_later(&mut self, id: ConnId) {
        let Some(conn) = conn::find(&mut self.conns, id).filter(|conn| !conn.revisit) else {
            return;
        };
        conn.revisit = true;
        if conn.hung_up {
            self.farewells.push_back(id);
        } else if conn.denied {
            self.denied.push(id);
        } else {
            self.revisit.push(id);
        }
    }
}
