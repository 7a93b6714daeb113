//! Clients that do not read: the server's writes stop at the room that is left, and later go on.

use crate::sim::plan::pick;
use crate::sim::simulation::{Scheduled, Simulation};

/// Most a stalled reader still takes.
pub(crate) const ROOM_BYTES_MAX: usize = 200;

impl Simulation {
    pub(crate) fn stall(&mut self, number: u32) {
        let some = self.rng.usize(..40);
        let room = *pick(&mut self.rng, &[0, 0, 1, some, some, ROOM_BYTES_MAX]);
        let span_ms = *pick(&mut self.rng, &[1, 10, 100, 1_000]) * self.plan.think_ms_max / 4;
        self.stall_for(number, room, span_ms);
    }

    /// Reads nothing beyond `room` for up to this long.
    pub(crate) fn stall_for(&mut self, number: u32, room: usize, span_ms: u64) {
        let until = self.within(span_ms);
        let conn = self
            .connections
            .get_mut(&number)
            .expect("its client just looked");
        if conn.stalled.is_some() || conn.ended || self.plan.think_ms_max == 0 {
            return;
        }
        // Who has not yet read since the last time has never stopped not reading.
        conn.stalled = conn.unread_since.or(Some(self.now));
        conn.unread_since = conn.stalled;
        conn.peer.set_room(room);
        self.trace.say(
            self.now,
            format_args!("c{:<2} reads nothing beyond {room} bytes", conn.client),
        );
        self.totals.stalls += 1;
        self.schedule(until, Scheduled::Unstall(number));
    }

    pub(crate) fn unstall(&mut self, number: u32) {
        let Some(conn) = self.connections.get_mut(&number) else {
            return;
        };
        conn.stalled = None;
        conn.peer.set_room(usize::MAX);
        let (client, is_known) = (conn.client, conn.id.is_some());
        self.trace
            .say(self.now, format_args!("c{client:<2} reads again"));
        if is_known {
            self.report(number);
        }
    }
}
