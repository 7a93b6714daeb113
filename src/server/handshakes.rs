//! Connections that are still agreeing on keys: how many there may be, when they are served, and what
//! is said of those that fail.
//!
//! A handshake costs as much as hundreds of requests, and anybody can ask for one. So those that have
//! sent a part of theirs have a queue of their own, behind everybody else's first share, and a turn
//! works off a few. All have to be done within `--tls-handshake-timeout`. When there are too many, the
//! one that came first goes: who is honest needs a moment, who is not keeps its place.

use std::collections::VecDeque;

use log::warn;

use super::budget::{HANDSHAKES_NS, Kind};
use super::closing::Closing;
use super::conn::{self, Conn, Handshake, Owed, Transport, Upkeep};
use super::serve::Share;
use super::{Clock, Server};
use crate::base::{ConnId, Millis, Nanos};
use crate::store::Store;

/// Most connections that may be agreeing on keys at one time. One more ends the one that came first.
const HANDSHAKES_MAX: usize = 4_096;

/// How long the list of them may be before those that are done are taken out of it.
const KEPT_MIN: usize = 64;

/// How soon a connection is looked at again whose time is over, but that has sent something we have
/// not come to yet.
pub(super) const LOOK_AGAIN: Millis = Millis(100);

/// How many lines about peers that cannot be understood may be logged in a second. The others are
/// counted, and the next line says how many they were.
const LINES_MAX: u32 = 8;
const LINES_EVERY: Millis = Millis(1_000);

/// Those that are agreeing on keys.
#[derive(Default)]
pub(super) struct Handshakes {
    /// In the order they came; some of them are done or gone.
    begun: VecDeque<ConnId>,
    /// How many are not.
    count: usize,
    /// Have sent something, and have not been served since.
    queue: VecDeque<ConnId>,
    figures: HandshakeFigures,
}

/// How many handshakes there are and were, as they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HandshakeFigures {
    /// Under way.
    pub(super) open: u64,
    /// Ended with both sides agreed.
    pub(super) done: u64,
    /// Ended because of what the peer sent.
    pub(super) failed: u64,
    /// Ended because they took too long, or there were too many.
    pub(super) late: u64,
}

impl Handshakes {
    /// Somebody waits to be served.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How many there are and were.
    pub(super) fn figures(&self) -> HandshakeFigures {
        HandshakeFigures {
            open: self.count as u64,
            ..self.figures
        }
    }

    /// What it takes to keep track of them.
    pub(super) fn memory(&self) -> usize {
        (self.begun.capacity() + self.queue.capacity()) * size_of::<ConnId>()
    }

    /// A connection has ended that was agreeing on keys.
    pub(super) fn note_closed(&mut self) {
        self.count -= 1;
    }

    /// It has sent something.
    pub(super) fn push(&mut self, id: ConnId) {
        self.queue.push_back(id);
    }
}

/// Lines of the log that peers can cause as often as they like.
#[derive(Default)]
pub(super) struct Complaints {
    since: Nanos,
    lines: u32,
    untold: u64,
}

impl Complaints {
    /// Logs why a peer is closed, unless there were many such lines just now.
    pub(super) fn tell(&mut self, now: Nanos, peer: &str, why: &str) {
        if now >= self.since.after(LINES_EVERY) {
            (self.since, self.lines) = (now, 0);
        }
        self.lines += 1;
        if self.lines > LINES_MAX {
            self.untold += 1;
            return;
        }
        match std::mem::take(&mut self.untold) {
            0 => warn!("closing {peer}: {why}"),
            untold => warn!("closing {peer}: {why} (and {untold} others like it since)"),
        }
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// A connection has come that is to agree on keys first.
    pub(super) fn begin_handshake(&mut self, now: Nanos, id: ConnId) {
        let handshakes = &mut self.handshakes;
        handshakes.count += 1;
        handshakes.begun.push_back(id);
        let conns = &mut self.conns;
        let mut is_open = |id| is_in_handshake(conn::find(conns, id));
        if handshakes.begun.len() > 2 * handshakes.count + KEPT_MIN {
            handshakes.begun.retain(|&id| is_open(id));
        }
        if handshakes.count > HANDSHAKES_MAX {
            let mut begun = handshakes.begun.iter();
            let at = begun.position(|&id| is_open(id)).unwrap_or_default();
            let first = handshakes.begun.drain(..=at).next_back();
            handshakes.figures.late += 1;
            if let Some(first) = first {
                self.close(now, first, "too many TLS handshakes are under way");
            }
        }
    }

    /// Serves some of those that are agreeing on keys, at least one, after everybody else was heard.
    pub(super) fn serve_handshakes(&mut self, clock: Clock<'_>) {
        self.flush(self.clock_read, Owed::Answer);
        let end = self.budget.spent() + HANDSHAKES_NS;
        while self.budget.spent() < end
            && let Some(id) = self.handshakes.queue.pop_front()
        {
            self.serve_queued(clock, id, Share::FIRST);
        }
    }

    /// A transport that encrypts was read: charges what that took, and has sent what it has to say.
    #[inline(never)]
    pub(super) fn note_upkeep(&mut self, now: Nanos, id: ConnId, upkeep: Upkeep) {
        self.budget.charge(Kind::Read, upkeep.work_ns);
        match upkeep.handshake {
            Some(Handshake::Done) => self.handshakes.figures.done += 1,
            Some(Handshake::Failed) => self.handshakes.figures.failed += 1,
            None => {}
        }
        self.handshakes.count -= usize::from(upkeep.handshake.is_some());
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        let is_done = upkeep.handshake == Some(Handshake::Done);
        if is_done {
            // Its time to ask begins now. If it was refused meanwhile, it can be told so.
            conn.line_started = now;
            self.timers
                .rearm(conn.timer, conn.deadline(now, &self.settings));
        }
        if conn.transport.unsent() > 0 || (is_done && !conn.outbox.is_empty()) {
            self.owe(id, Owed::Answer);
        }
    }

    /// What a peer sends is not TLS, or not good TLS.
    pub(super) fn refuse_encrypted(&mut self, now: Nanos, id: ConnId, why: &str) {
        let conn = &mut self.conns[id.slot as usize];
        if conn.is_leaving() {
            return self.close(now, id, why);
        }
        self.complaints.tell(now, &conn.transport.peer(), why);
        if self.conns[id.slot as usize].transport.unsent() > 0 {
            // An alert tells it why, and is not to be lost to a reset.
            self.leave(now, id, Closing::HalfClose, why);
            self.owe(id, Owed::Answer);
        } else {
            self.close(now, id, why);
        }
    }

    /// It took too long to agree on keys.
    pub(super) fn end_late_handshake(&mut self, now: Nanos, id: ConnId) {
        let peer = self.peer(id);
        let why = "it did not finish its TLS handshake within --tls-handshake-timeout";
        self.complaints.tell(now, &peer, why);
        self.handshakes.figures.late += 1;
        self.close(now, id, "TLS handshake timeout");
    }
}

fn is_in_handshake<T: Transport>(conn: Option<&mut Conn<T>>) -> bool {
    conn.is_some_and(|conn| conn.transport.is_in_handshake())
}
