//! Clients that do not read: the server's writes stop when the room is full, and go on later.

use crate::plan::pick;
use crate::simulation::{Scheduled, Simulation};

/// Most bytes that a stalled reader still takes.
pub(crate) const ROOM_BYTES_MAX: usize = 200;

impl Simulation {
    /// The client stops reading for a while.
    pub(crate) fn stall(&mut self, number: u32) {
        let some = self.rng.usize(..40);
        let room = *pick(&mut self.rng, &[0, 0, 1, some, some, ROOM_BYTES_MAX]);
        let span_ms = *pick(&mut self.rng, &[1, 10, 100, 1_000]) * self.plan.think_ms_max / 4;
        self.stall_for(number, room, span_ms);
    }

    /// The client reads nothing beyond `room` bytes for up to this long.
    pub(crate) fn stall_for(&mut self, number: u32, room: usize, span_ms: u64) {
        let until = self.within(span_ms);
        let conn = self
            .life
            .connections
            .get_mut(&number)
            .expect("its client just looked");
        if conn.stalled.is_some() || conn.ended || self.plan.think_ms_max == 0 {
            return;
        }
        // If it has read nothing since it stopped before, it has not been reading since then.
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

    /// The client reads again.
    pub(crate) fn unstall(&mut self, number: u32) {
        let Some(conn) = self.life.connections.get_mut(&number) else {
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
