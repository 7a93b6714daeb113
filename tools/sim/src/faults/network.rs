//! Faults of the network: frames are cut anywhere, delayed and joined; connections are closed,
//! half-closed and broken.
//!
//! Segments keep their order, as in TCP. Whatever is sent or ended is noted for the checks before
//! the server can know of it.

use crate::clients::connection::{Moment, Sending};
use crate::clients::request::RequestKind;
use crate::simulation::{Scheduled, Simulation};

/// Most segments that one write is cut into.
const SEGMENTS_MAX: usize = 64;

impl Simulation {
    /// Puts bytes on their way, in one segment or in several, one behind the other.
    pub(crate) fn send(&mut self, number: u32, bytes: &[u8]) {
        self.conn(number).send(bytes);
        let mut left = bytes.len();
        let mut cuts = 0;
        if self.rng.u8(..100) < self.plan.split_pct {
            cuts = match self.rng.u8(..6) {
                0 => left.min(SEGMENTS_MAX) - 1,
                _ => self.rng.usize(1..4),
            };
        }
        let size_max = bytes.len() / (cuts + 1);
        while left > 0 {
            let count = match cuts {
                0 => left,
                _ => self.rng.usize(1..=size_max.max(1)).min(left),
            };
            cuts = cuts.saturating_sub(1);
            left -= count;
            let at = self.within(self.plan.delay_ms_max);
            let conn = self.conn(number);
            conn.next_arrival = conn.next_arrival.max(at);
            let at = conn.next_arrival;
            self.schedule(at, Scheduled::Arrive(number, count));
        }
    }

    /// A segment reaches the server.
    pub(crate) fn arrive(&mut self, number: u32, count: usize) {
        let moment = Moment {
            at: self.now,
            turn: self.turn,
        };
        let Some(conn) = self
            .life
            .connections
            .get_mut(&number)
            .filter(|conn| !conn.reset)
        else {
            return;
        };
        for request in conn.arrive(moment, count) {
            match &request.kind {
                RequestKind::Entry(entry_request) => {
                    self.life
                        .known_entries
                        .arrived(request.number, entry_request, moment)
                }
                RequestKind::Release {
                    target: Some(fence),
                    ..
                } => self.life.known_grants.grant(*fence).release_arrived = true,
                RequestKind::Renew {
                    target: Some(fence),
                    ..
                } => {
                    let grant = self.life.known_grants.grant(*fence);
                    grant.renewal_arrived = true;
                    grant.may_be_shorter |= request.http.is_none();
                }
                RequestKind::Break { fence, .. } => {
                    self.life.known_grants.grant(*fence).break_arrived = true;
                }
                RequestKind::Range(_) => self.life.known_ranges.arrived(request.number, moment),
                RequestKind::Acquire { .. } => {
                    let id = request.http.as_ref().map_or("", |it| &it.id);
                    self.life.known_grants.ask_arrived(id, moment.turn);
                }
                _ => {}
            }
        }
        if conn.id.is_some() {
            self.report(number);
        }
    }

    /// The client sends no more; the end of the stream follows what is on its way.
    pub(crate) fn close(&mut self, number: u32) {
        let conn = self.conn(number);
        if conn.sending != Sending::Open || conn.reset {
            return;
        }
        conn.sending = Sending::Ending;
        let (client, at) = (conn.client, conn.next_arrival.max(self.now));
        self.trace
            .say(self.now, format_args!("c{client:<2} closes {number}"));
        self.totals.closes += 1;
        self.life.known_grants.owner_leaves(number);
        self.schedule(at, Scheduled::Arrive(number, 0));
    }

    /// The client breaks the connection.
    pub(crate) fn reset(&mut self, number: u32) {
        let Some(conn) = self
            .life
            .connections
            .get_mut(&number)
            .filter(|conn| !conn.reset)
        else {
            return;
        };
        conn.reset = true;
        conn.hung_up_at = conn.hung_up_at.or(Some(self.now));
        conn.peer.reset();
        let client = conn.client;
        if self.clients[client] == Some(number) {
            self.clients[client] = None;
        }
        self.trace
            .say(self.now, format_args!("c{client:<2} breaks {number}"));
        self.totals.resets += 1;
        self.life.known_grants.owner_leaves(number);
        if self.life.connections[&number].id.is_some() {
            self.report(number);
        }
    }
}
