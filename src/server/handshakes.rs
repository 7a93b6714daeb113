//! Connections that are still agreeing on keys: when they are served, and the log of failures.
//!
//! A handshake costs as much as hundreds of requests, and any peer can ask for one. So those that
//! have sent a part of theirs have a queue of their own, behind everybody else's first share, and
//! a turn works off a few. All have to be done within `--tls-handshake-timeout`. How many there
//! may be is in `strangers.rs`.

use std::collections::VecDeque;

use log::warn;

use super::budget::{HANDSHAKES_NS, Kind};
use super::closing::Closing;
use super::conn::{self, Handshake, Owed, Transport, Upkeep};
use super::serve::Share;
use super::{Clock, Server};
use crate::base::{ConnId, Millis, Nanos};
use crate::store::Store;

/// How soon a connection is looked at again whose time is over, but that has sent something we have
/// not come to yet.
pub(super) const LOOK_AGAIN: Millis = Millis(100);

/// How many lines about peers that are closed may be logged in a second. The others are counted,
/// and the next line says how many they were.
const LINES_MAX: u32 = 8;
const LINES_EVERY: Millis = Millis(1_000);

/// Those that are agreeing on keys.
#[derive(Default)]
pub(super) struct Handshakes {
    /// How many there are.
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
        self.queue.capacity() * size_of::<ConnId>()
    }

    /// A connection has come that is to agree on keys first.
    pub(super) fn note_begun(&mut self) {
        self.count += 1;
    }

    /// A connection is ended because it took too long, or because others need its place.
    pub(super) fn note_late(&mut self, is_in_handshake: bool) {
        self.figures.late += u64::from(is_in_handshake);
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
            conn.note_peer();
            self.timers
                .rearm(conn.timer, conn.deadline(now, &self.settings));
        }
        if conn.transport.unsent() > 0 || (is_done && !conn.outbox.is_empty()) {
            self.owe(id, Owed::Answer);
        }
        if is_done {
            self.note_known(id);
        }
        self.weigh_stranger(id);
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
        self.handshakes.note_late(true);
        self.close(now, id, "TLS handshake timeout");
    }
}
