//! The gate: the one place where bytes leave the server.
//!
//! Whatever is said goes into an outbox first. [`Server::let_out`] is the only function that hands
//! it to the transport: at the end of a turn, one write for each connection; earlier only if so
//! much is owed that it must be known whether the peer reads at all; later only if more was granted
//! than the clock allows, or if what is said is not on disk yet (`durable.rs`). Never decides what is
//! said.

use std::collections::VecDeque;
use std::mem;

use super::Server;
use super::budget::{
    FLUSH_ANSWERED_NS, FLUSH_AWAITED_NS, FLUSH_BULK_NS_MIN, FLUSH_PUSHED_NS_MIN, Kind,
    SLOW_CONSUMERS_MAX, TURN_NS, write_ns,
};
use super::closing::Closing;
use super::conn::{self, Conn, Flow, Flushed, Owed, Phase, Transport};
use crate::base::{ConnId, Nanos};
use crate::engine::types::Input;
use crate::store::Store;
use crate::wire::outbox::PUSH_BYTES_BEHIND;

/// About how much one connection is sent before the others. More would take longer than a first
/// share, and most sockets take no more at once.
const SENT_BYTES_ENOUGH: usize = 64 * 1024;

/// A connection that is owed more than this comes after the others, whatever it is owed.
const BULK_BYTES_MIN: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Gate {
    /// Owed the answer they were parked for. Their bytes leave first: these clients waited, and the
    /// one that let go only has to be told so.
    awaited: VecDeque<ConnId>,
    /// Owed an answer, or about to end.
    answered: VecDeque<ConnId>,
    /// Owed a push, which they did not ask for just now. A signal to ten thousand takes the system
    /// longer than a turn, so its recipients come after those that asked.
    pushed: VecDeque<ConnId>,
    /// Owed much, of whatever kind. They come last, because one of them takes as long as dozens of the
    /// others.
    bulk: VecDeque<ConnId>,
    /// Did not read what was pushed; to be closed.
    overrun: VecDeque<ConnId>,
    /// How many bytes of pushes are to be sent, in all: the sum of what each connection counts.
    push_bytes: usize,
    /// Wait until the clock has numbers for what was granted.
    await_clock: VecDeque<ConnId>,
    /// Whose interest in writing has changed, for the reactor.
    interest: Vec<ConnId>,
}

impl Gate {
    /// Nobody waits for bytes to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.awaited.is_empty()
            && self.answered.is_empty()
            && self.pushed.is_empty()
            && self.bulk.is_empty()
            && self.overrun.is_empty()
    }

    /// Somebody waits until the clock has numbers for what was granted, or until anything may be said at all.
    pub(super) fn awaits_clock(&self) -> bool {
        !self.await_clock.is_empty()
    }

    /// So many more bytes of pushes are to be sent to a connection, which counts them in `unsent`.
    pub(super) fn note_pushed(&mut self, unsent: &mut u32, bytes: usize) {
        let before = *unsent;
        *unsent = before.saturating_add(bytes as u32);
        self.push_bytes += (*unsent - before) as usize;
    }

    /// Of the pushes that a connection counts, no more than so many bytes are to be sent any more.
    pub(super) fn note_left(&mut self, unsent: &mut u32, left: usize) {
        let sent = (*unsent as usize).saturating_sub(left);
        *unsent -= sent as u32;
        self.push_bytes -= sent;
    }

    /// The list of those that are owed so much; a connection that has come to be owed more since is
    /// in two, and only the latter counts.
    fn list(&mut self, owed: Owed) -> &mut VecDeque<ConnId> {
        match owed {
            Owed::Awaited => &mut self.awaited,
            Owed::Answer => &mut self.answered,
            Owed::Push => &mut self.pushed,
            Owed::Bulk | Owed::Nothing => &mut self.bulk,
        }
    }
}

impl<T> Conn<T> {
    /// It is owed so much that it comes after the others.
    #[inline]
    fn is_owed_bulk(&self) -> bool {
        self.outbox.len() > BULK_BYTES_MIN
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// The connection is owed something, or may come to its end.
    #[inline]
    pub(super) fn owe(&mut self, id: ConnId, owed: Owed) {
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        if conn.owed < owed && !(conn.owed == Owed::Bulk && conn.is_owed_bulk()) {
            if conn.owed == Owed::Nothing && !conn.outbox.is_empty() {
                self.budget.charge_write();
            }
            conn.owed = owed;
            self.gate.list(owed).push_back(id);
        }
    }

    /// Sending is behind with pushes, or they wait for the disk: who wants to signal more has to wait.
    pub(super) fn is_behind_with_pushes(&self) -> bool {
        self.gate.push_bytes >= PUSH_BYTES_BEHIND
    }

    /// The connection does not read what it is told: it is closed at the end of the turn.
    pub(super) fn mark_overrun(&mut self, id: ConnId) {
        if let Some(conn) = conn::find(&mut self.conns, id)
            && !conn.is_condemned
        {
            conn.is_condemned = true;
            self.gate.overrun.push_back(id);
        }
    }

    /// Sends what is owed, at least so urgently, one write per connection: first to those that were
    /// waiting, then to those that asked, then pushes, then to those that are owed much. Each of these
    /// may spend its share of the turn; the others follow in the next one. A connection that turns out
    /// to be gone is ended, which may grant to others, who are then owed something too.
    pub(super) fn flush(&mut self, now: Nanos, least: Owed) {
        self.commit(now);
        for _ in 0..SLOW_CONSUMERS_MAX {
            let Some(id) = self.gate.overrun.pop_front() else {
                break;
            };
            self.close_slow_consumer(now, id);
        }
        let (mut awaited_ns, mut answered_ns) = (FLUSH_AWAITED_NS, FLUSH_ANSWERED_NS);
        // In a turn with little else to do there is more time for crowds. Pushes leave some of it to
        // those that are owed much, who have what pushes do not use.
        let mut crowds_ns = (FLUSH_PUSHED_NS_MIN + FLUSH_BULK_NS_MIN)
            .max(TURN_NS.saturating_sub(self.budget.spent()));
        loop {
            let Gate {
                awaited,
                answered,
                pushed,
                bulk,
                ..
            } = &mut self.gate;
            let (id, owed, ns_left) = if awaited_ns > 0
                && let Some(id) = awaited.pop_front()
            {
                (id, Owed::Awaited, &mut awaited_ns)
            } else if answered_ns > 0
                && let Some(id) = answered.pop_front()
            {
                (id, Owed::Answer, &mut answered_ns)
            } else if least <= Owed::Push
                && (crowds_ns > FLUSH_BULK_NS_MIN || (crowds_ns > 0 && bulk.is_empty()))
                && let Some(id) = pushed.pop_front()
            {
                (id, Owed::Push, &mut crowds_ns)
            } else if least <= Owed::Bulk
                && crowds_ns > 0
                && let Some(id) = bulk.pop_front()
            {
                (id, Owed::Bulk, &mut crowds_ns)
            } else {
                break;
            };
            let before = self.budget.spent();
            let sent = self.flush_one(now, id, owed);
            // The bytes were charged, and what a connection left behind that turned out to be gone.
            let ns = write_ns(sent) + (self.budget.spent() - before);
            *ns_left = ns_left.saturating_sub(ns);
        }
        if !self.is_behind_with_pushes() {
            self.run.wake_signallers();
        }
    }

    /// Sends to one connection; returns how many bytes.
    fn flush_one(&mut self, now: Nanos, id: ConnId, owed: Owed) -> usize {
        let Some(conn) = self.conn_mut(id).filter(|conn| conn.owed == owed) else {
            return 0;
        };
        if owed != Owed::Bulk && conn.is_owed_bulk() {
            conn.owed = Owed::Bulk;
            self.gate.bulk.push_back(id);
            return 0;
        }
        conn.owed = Owed::Nothing;
        let before = conn.outbox.sent();
        match self.let_out(now, id) {
            Flushed::Broken(error) => {
                self.close(now, id, &error.to_string());
                return 0;
            }
            Flushed::Later => self.owe(id, Owed::Bulk),
            Flushed::HeldBack => self.held_back.list(id),
            Flushed::TooEarly => self.await_clock(id),
            Flushed::All | Flushed::Blocked => {}
        }
        self.note_stalled(id);
        if self.conns[id.slot as usize].is_stranger() {
            self.weigh_stranger(id);
        }
        let unread_max = self.memory.unread_max;
        let conn = &mut self.conns[id.slot as usize];
        let sent = conn.outbox.sent() - before;
        if let Phase::Leaving { closing, .. } = conn.phase
            && conn.outbox.is_empty()
        {
            match closing {
                // It is still to be read: closed now, what was sent would be lost to a reset.
                Closing::Flush if conn.queued || conn.readable => self.serve_later(id),
                Closing::Flush => self.close(now, id, "closed"),
                Closing::HalfClose => conn.transport.shutdown_write(),
                Closing::LastAnswer => {
                    conn.transport.shutdown_write();
                    conn.begin_half_close(now);
                    let deadline = conn.deadline(now, &self.settings);
                    self.timers.rearm(conn.timer, deadline);
                }
                Closing::Delay => {}
            }
        } else if conn.has_more(unread_max) {
            self.serve_later(id);
        } else if conn.flow == Flow::AwaitsOwnOutbox && conn.outbox.is_empty() {
            self.note_all_read(id);
        }
        sent as usize
    }

    /// Hands the peer what it is owed, as far as it takes it and until it is enough for one time. The
    /// connection must be there.
    pub(super) fn let_out(&mut self, now: Nanos, id: ConnId) -> Flushed {
        // Where another machine may lead by now the clock is read once more, at the last moment.
        let is_ahead = self.is_ahead_of_clock(now) || !self.store.may_speak();
        let Self {
            conns,
            pool,
            settings,
            timers,
            gate,
            budget,
            memory,
            held_back,
            store,
            ..
        } = self;
        let limit = if store.is_durable() {
            held_back.limit(id)
        } else {
            u64::MAX
        };
        let conn = &mut conns[id.slot as usize];
        let was_full = conn.must_read(memory.unread_max);
        let sent = conn.outbox.sent();
        let flushed = if is_ahead {
            conn.hold_back()
        } else {
            conn.write(now, pool, SENT_BYTES_ENOUGH, limit)
        };
        conn.outbox.count(pool);
        if store.is_durable() {
            held_back.note_left(
                id,
                if limit == u64::MAX {
                    0
                } else {
                    conn.outbox.len()
                },
            );
        }
        budget.charge_written((conn.outbox.sent() - sent) as usize);
        let upkeep = conn.transport.upkeep();
        if upkeep.work_ns > 0 {
            budget.charge(Kind::Write, upkeep.work_ns);
        }
        let makes_room = was_full && !conn.must_read(memory.unread_max);
        if makes_room {
            conn.line_started = now; // read on from here, so the read timeout runs from here
        }
        if makes_room || matches!(flushed, Flushed::Blocked) {
            timers.rearm(conn.timer, conn.deadline(now, settings));
        }
        if conn.unsent_push_bytes > 0 {
            // Answers leave with pushes, so what is left counts as pushes first. What the peer does
            // not take is not late because of us.
            let left = if conn.is_blocked {
                0
            } else {
                conn.outbox.len()
            };
            gate.note_left(&mut conn.unsent_push_bytes, left);
        }
        if conn.watches_write != conn.wants_to_watch_write() {
            gate.interest.push(id);
        }
        self.note_overrun(now, id);
        flushed
    }

    /// Tells the engine when a peer has too much unread to be told any more, and when not any more.
    /// What it was not given yet does not count: that is bounded by [`PUSH_BYTES_BEHIND`]. Only if
    /// so much of it waits for the disk is the peer told no more; signals wait before that.
    pub(super) fn note_overrun(&mut self, now: Nanos, id: ConnId) {
        let conn = &mut self.conns[id.slot as usize];
        let is_unread = conn.outbox.is_overrun() && conn.is_blocked;
        let overrun = is_unread
            || self.store.is_durable() && self.held_back.push_bytes_of(id) >= PUSH_BYTES_BEHIND;
        if conn.overrun != overrun {
            conn.overrun = !conn.overrun;
            let input = Input::Overrun(id, conn.overrun);
            self.engine.apply(now, input, &mut self.effects);
        }
    }

    /// Whether more was granted than the clock has numbers for: the next run starts from the clock,
    /// and must not give out what this one has.
    fn is_ahead_of_clock(&self, now: Nanos) -> bool {
        let fences_per_us = self.settings.fences_per_us;
        let grants_max = now.0.saturating_mul(fences_per_us) / 1_000;
        fences_per_us != 0 && self.engine.grants() > grants_max
    }

    /// When the clock will have numbers for all that was granted, if somebody waits for that.
    pub(super) fn clock_deadline(&self) -> Option<Nanos> {
        let grants_ns = self.engine.grants().saturating_mul(1_000);
        let covered = Nanos(grants_ns.div_ceil(self.settings.fences_per_us.max(1)));
        // While nothing may be said at all, it is the store that wakes us.
        let waits = !self.gate.await_clock.is_empty() && self.store.may_speak();
        waits.then_some(covered)
    }

    /// It is too early to say anything to the connection. It is listed once, however often that is found, and those that
    /// have gone meanwhile are forgotten before the list is longer than there are connections, and as long again.
    fn await_clock(&mut self, id: ConnId) {
        let Self { conns, gate, .. } = self;
        let Some(conn) = conn::find(conns, id) else {
            return;
        };
        if mem::replace(&mut conn.awaits_clock, true) {
            return;
        }
        if gate.await_clock.len() > 2 * conns.len() {
            gate.await_clock
                .retain(|it| conn::find(conns, *it).is_some());
        }
        gate.await_clock.push_back(id);
    }

    /// Those that waited for the clock are sent to, if it has numbers for all that was granted.
    pub(super) fn let_go_by_clock(&mut self, now: Nanos) {
        if self.gate.await_clock.is_empty()
            || self.is_ahead_of_clock(now)
            || !self.store.may_speak()
        {
            return;
        }
        for id in mem::take(&mut self.gate.await_clock) {
            if let Some(conn) = self.conn_mut(id) {
                conn.awaits_clock = false;
                conn.note_may_leave(now);
                self.owe(id, Owed::Answer);
            }
        }
    }

    /// Whether the last turn left bytes for the next one that their peers might have taken.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.gate.is_empty()
    }

    /// Connections whose interest in writing changed, with what it is now.
    pub fn changed_interests(&mut self, mut tell: impl FnMut(ConnId, &mut T, bool)) {
        for id in mem::take(&mut self.gate.interest) {
            if let Some(conn) = self.conn_mut(id) {
                let wants_write = conn.wants_to_watch_write();
                if conn.watches_write != wants_write {
                    conn.watches_write = wants_write;
                    tell(id, &mut conn.transport, wants_write);
                }
            }
        }
    }
}
