//! Joins bytes, meaning and decisions: one [`Server`] owns the connections and the lock table.
//!
//! The order of a turn is here and nowhere else. The reactor reports what happened on the sockets
//! ([`hang_up`](Server::hang_up) before everything else, then [`readable`](Server::readable) and
//! [`writable`](Server::writable)), and closes the turn with
//! [`finish_turn`](Server::finish_turn): expire → resume → flush → close what has ended. Whoever hung
//! up and whoever had more in the last turn is visited before anybody else. Last of all newcomers are
//! let in ([`accept`](Server::accept)), to the places that became free.
//!
//! Knows neither sockets nor the clock: with pipes for a [`Transport`] and a number for the time,
//! the simulator runs this very code.

mod auth;
mod closing;
mod conn;
mod deliver;
mod ready;
mod serve;
mod stats;

use std::collections::VecDeque;
use std::mem;

use log::{debug, info, warn};
use slab::Slab;

pub use self::conn::Transport;
use self::conn::{Closing, Conn, Flushed, Phase};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::Engine;
use crate::engine::types::{Effects, Input};
use crate::engine::view::Counts;
use crate::timers::Timers;
use crate::wire::answer::WireFence;
use crate::wire::buf::Pool;
use crate::wire::codec::{Codec, Spelled};

/// Where the time is read. A lease must not be counted from before its request came, so the time is
/// read after every read of a socket, and not once per turn: in a long turn the last request would
/// be dated from before it was sent, and its lease would end early.
pub type Clock<'c> = &'c dyn Fn() -> Nanos;

/// Most bytes read from one connection in one turn. Who has more is visited again next turn, after
/// everyone else had theirs.
pub const READ_BYTES_PER_TURN: usize = 16 * 1024;

/// Most bytes of answers in one turn that take a walk (`stats`, `who`, `pos`, `lrange`), over all
/// connections; the last one may exceed it. Who is not served now comes first in the next turn.
const WALK_BYTES_PER_TURN: usize = 1 << 20;

/// What a walk counts at least, however short its answer.
const WALK_BYTES_MIN: usize = 16 * 1024;

/// Most work of one turn in finding and telling hearers: places of the trees looked at, and lines.
/// After that every connection is served one request at a time.
const RECIPIENT_WORK_PER_TURN: u64 = 32 * 1024;

/// Most connections whose parked command was answered that are run on in the same turn; the rest
/// are run on in the next one.
const RESUMED_PER_TURN_MAX: usize = 4096;

/// Most connections that are visited in one turn because their peer has hung up. Ten thousand at once
/// would be a stop of twenty milliseconds for everybody else. The others follow in the next turns,
/// first come, first served: some of them still read, and all hold what somebody may wait for; until
/// then they are given nothing. As many as a listener accepts in a turn, so that at the limit of
/// connections who left usually makes room for who came after it.
const HUNG_UP_PER_TURN_MAX: usize = 256;

/// Most sockets closed in one turn, which takes the system some microseconds each.
const CLOSES_PER_TURN_MAX: usize = 256;

/// How often a draining server looks for connections that have nothing left to wait for.
const DRAIN_SWEEP: Millis = Millis(50);

/// What an operator sets for connections, as opposed to keys.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The secret every connection has to show first, if any.
    pub auth_token: Option<Vec<u8>>,
    /// Whether answers carry the fence as a field of its own.
    pub wire_fence: WireFence,
    /// Most connections; 0 is no limit. One too many is closed without a word.
    pub connections_max: u32,
    /// Longest a line may take to arrive, and an idle connection that owns nothing may stay.
    pub read_timeout: Millis,
    /// Longest a peer may take for what it is owed, all of it; 0 is no limit.
    pub write_timeout: Millis,
    /// Longest a shutdown waits for connections to end; 0 is no limit.
    pub shutdown_timeout: Millis,
    /// The number of this life of the server, told by `hello`; larger than that of any earlier one.
    pub epoch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auth_token: None,
            wire_fence: WireFence::Auto,
            connections_max: 0,
            read_timeout: Millis::from_secs(23),
            write_timeout: Millis::from_secs(5),
            shutdown_timeout: Millis::from_secs(30),
            epoch: 1,
        }
    }
}

/// What a timer of the server stands for. Leases and waits are the engine's.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// Look at the connection in this slot.
    Conn(u32),
    /// Look for connections a shutdown need not wait for.
    DrainSweep,
    /// The shutdown has waited long enough.
    DrainEnd,
}

/// How many of what the server holds; for tests and the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Open connections.
    pub connections: usize,
    /// Armed timers of connections.
    pub timers: usize,
    /// Bytes received and not yet served, and bytes owed.
    pub buffered_bytes: usize,
    /// What the lock table holds.
    pub engine: Counts,
}

/// All connections and the lock table.
pub struct Server<T> {
    settings: Settings,
    engine: Engine,
    conns: Slab<Conn<T>>,
    /// Connections accepted so far.
    serial: u32,
    timers: Timers<Due>,
    effects: Effects,
    pool: Pool,
    /// Where bytes are read to. Frames are decoded here; only what is left over is copied.
    read_buf: Vec<u8>,
    /// Where the codec puts a frame it has to rewrite.
    scratch: Vec<u8>,
    /// Where a push that several hear is spelled.
    spelled: Spelled,
    /// The connection whose frames are being served; its answers do not resume it.
    acting: Option<ConnId>,
    /// Parked, answered, perhaps with more input.
    resumed: VecDeque<ConnId>,
    /// When the clock was last looked at in this turn.
    clock_read: Option<Nanos>,
    /// Those on the lists have been served in this turn.
    has_served_ready: bool,
    /// Had more than one turn's share, in this turn.
    revisit: Vec<ConnId>,
    /// Had so in the last one, and are yet to be visited in this one.
    waiting: Vec<ConnId>,
    /// Were denied a walk in this turn, and come first in the next.
    denied: Vec<ConnId>,
    /// What is left of this turn's [`WALK_BYTES_PER_TURN`].
    walk_bytes_left: usize,
    /// What is left of this turn's [`RECIPIENT_WORK_PER_TURN`].
    recipient_work_left: u64,
    /// Whose peer has hung up and who are yet to be visited.
    hung_up: VecDeque<ConnId>,
    /// Of connections that have ended, to be closed.
    ended: VecDeque<T>,
    /// Owed bytes.
    dirty: VecDeque<ConnId>,
    /// Did not read what was pushed; to be closed.
    overrun: Vec<ConnId>,
    /// How many were closed for that.
    slow_consumers: u64,
    /// The longest turn so far.
    longest_turn_ns: u64,
    /// Whose interest in writing has changed, for the reactor.
    interest: Vec<ConnId>,
    draining: bool,
}

impl<T: Transport> Server<T> {
    /// A server without connections.
    #[must_use]
    pub fn new(settings: Settings, engine: Engine) -> Self {
        Self {
            settings,
            engine,
            conns: Slab::new(),
            serial: 0,
            timers: Timers::new(),
            effects: Effects::new(),
            pool: Pool::new(),
            read_buf: vec![0; READ_BYTES_PER_TURN],
            scratch: Vec::new(),
            spelled: Spelled::default(),
            acting: None,
            resumed: VecDeque::new(),
            clock_read: None,
            has_served_ready: false,
            revisit: Vec::new(),
            waiting: Vec::new(),
            denied: Vec::new(),
            walk_bytes_left: WALK_BYTES_PER_TURN,
            recipient_work_left: RECIPIENT_WORK_PER_TURN,
            hung_up: VecDeque::new(),
            ended: VecDeque::new(),
            dirty: VecDeque::new(),
            overrun: Vec::new(),
            slow_consumers: 0,
            longest_turn_ns: 0,
            interest: Vec::new(),
            draining: false,
        }
    }

    // ---- doors: what the reactor reports ----

    /// A new connection. `None` closes it: there is no room, or the server is shutting down.
    pub fn accept(&mut self, now: Nanos, transport: T) -> Option<ConnId> {
        let connections_max = self.settings.connections_max as usize;
        if connections_max != 0 && self.conns.len() >= connections_max {
            info!(
                "refusing {}: {connections_max} connections are open",
                transport.peer()
            );
            return None;
        }
        if self.draining {
            return None;
        }
        // 0 is nobody: it marks the reactor's own tokens, and `owner_conn_id` of an unowned key.
        self.serial = self.serial.checked_add(1).unwrap_or(1);
        let slot = self.conns.vacant_key() as u32;
        let id = ConnId {
            slot,
            serial: self.serial,
        };
        debug!("connection {} from {}", id.serial, transport.peer());
        let deadline = now.after(self.settings.read_timeout);
        let timer = self.timers.arm(deadline, Due::Conn(slot));
        let phase = if self.settings.auth_token.is_some() {
            Phase::Unauthenticated
        } else {
            Phase::Open
        };
        let codec = Codec::line(self.settings.wire_fence);
        self.conns
            .insert(Conn::new(transport, codec, id.serial, timer, phase, now));
        Some(id)
    }

    /// The peer has closed, at least its sending side. Reported before anything else of the turn,
    /// so that nobody who has already left is granted what another event sets free, or counted among
    /// those who hear of it, also if it takes some turns until it is seen off.
    pub fn hang_up(&mut self, now: Nanos, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        conn.hung_up = true;
        conn.readable = true;
        if conn.parked {
            self.leave(now, id, Closing::Flush, "left while waiting");
        }
        self.serve_later(id);
        if self.hung_up.len() > HUNG_UP_PER_TURN_MAX {
            // It is not its turn yet.
            self.engine
                .apply(now, Input::HungUp(id, true), &mut self.effects);
        }
    }

    /// There are bytes to read.
    pub fn readable(&mut self, clock: Clock<'_>, id: ConnId) {
        self.serve_ready(clock);
        let Some(conn) = self.conn_mut(id) else {
            return;
        };
        // Who has hung up is on a list since it did, or was visited already and has come to its end;
        // unless it was held up or had nothing to be read.
        if conn.hung_up && (conn.revisit || conn.is_leaving()) {
            return;
        }
        conn.readable = true;
        if conn.hung_up {
            self.serve_later(id);
        } else if !conn.revisit {
            self.serve_conn(clock, id);
        }
    }

    /// There is room to write again.
    pub fn writable(&mut self, id: ConnId) {
        self.mark_dirty(id);
    }

    /// The connection can be listened to no longer.
    pub fn lose(&mut self, now: Nanos, id: ConnId) {
        self.close(now, id, "lost");
    }

    /// Closes the turn: everything that is due is done, everything that is owed is sent.
    pub fn finish_turn(&mut self, clock: Clock<'_>) {
        self.serve_ready(clock);
        let now = self.last_read_clock(clock);
        self.engine.apply(now, Input::Time, &mut self.effects);
        self.deliver(now);
        self.fire_timers(now);
        for _ in 0..RESUMED_PER_TURN_MAX {
            let Some(id) = self.resumed.pop_front() else {
                break;
            };
            self.serve_conn(clock, id);
        }
        let now = self.last_read_clock(clock);
        self.flush(now);
        self.clock_read = None;
        self.has_served_ready = false;
        let closes = self.ended.len().min(CLOSES_PER_TURN_MAX);
        self.ended.drain(..closes);
        self.waiting.append(&mut self.denied);
        self.waiting.append(&mut self.revisit);
        self.walk_bytes_left = WALK_BYTES_PER_TURN;
        self.recipient_work_left = RECIPIENT_WORK_PER_TURN;
    }

    /// The turn is over and took this long, from waking up to sleeping again. Operators see the
    /// longest: for so long nobody was heard.
    pub fn note_turn(&mut self, ns: u64) {
        self.longest_turn_ns = self.longest_turn_ns.max(ns);
    }

    /// Begins a graceful end: waits are refused, idle connections go, the others may finish.
    pub fn shutdown(&mut self, now: Nanos) {
        if self.draining {
            return;
        }
        self.draining = true;
        self.engine.apply(now, Input::Drain, &mut self.effects);
        self.deliver(now);
        self.timers.arm(now, Due::DrainSweep);
        if self.settings.shutdown_timeout != Millis::ZERO {
            self.timers
                .arm(now.after(self.settings.shutdown_timeout), Due::DrainEnd);
        }
    }

    /// Ends every connection now.
    pub fn close_all(&mut self, now: Nanos) {
        let ids: Vec<ConnId> = self.ids().collect();
        for id in ids {
            self.close(now, id, "server stops");
        }
    }

    // ---- what the reactor asks ----

    /// When the next turn must begin at the latest, even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let is_idle = self.waiting.is_empty()
            && self.resumed.is_empty()
            && self.hung_up.is_empty()
            && self.ended.is_empty();
        if !is_idle {
            return Some(Nanos(0));
        }
        let (engine, own) = (self.engine.next_deadline(), self.timers.next_deadline());
        engine.into_iter().chain(own).min()
    }

    /// Connections whose interest in writing changed, with what it is now.
    pub fn changed_interests(&mut self, mut tell: impl FnMut(ConnId, &mut T, bool)) {
        for id in mem::take(&mut self.interest) {
            if let Some(conn) = self.conn_mut(id) {
                let wants_write = !conn.outbox.is_empty();
                if conn.watches_write != wants_write {
                    conn.watches_write = wants_write;
                    tell(id, &mut conn.transport, wants_write);
                }
            }
        }
    }

    /// The transport of a connection, to be registered.
    pub fn transport_mut(&mut self, id: ConnId) -> Option<&mut T> {
        self.conn_mut(id).map(|conn| &mut conn.transport)
    }

    /// Whether a shutdown has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a shutdown has come to its end.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.conns.is_empty()
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The lock table, to look at.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What is held in all; all zero once everyone has left.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let buffered = |conn: &Conn<T>| conn.inbox.len() + conn.outbox.len();
        Holdings {
            connections: self.conns.len(),
            timers: self.timers.len(),
            buffered_bytes: self.conns.iter().map(|(_, conn)| buffered(conn)).sum(),
            engine: self.engine.counts(),
        }
    }

    // ---- the end of a turn ----

    fn fire_timers(&mut self, now: Nanos) {
        let mut budget = crate::engine::WORK_PER_TURN_MAX;
        while let Some((_, due)) = self.timers.pop_due(now, &mut budget) {
            match due {
                Due::Conn(slot) => self.on_timer(now, slot),
                Due::DrainSweep => {
                    self.timers.arm(now.after(DRAIN_SWEEP), Due::DrainSweep);
                    self.sweep(now);
                }
                Due::DrainEnd => {
                    warn!(
                        "shutdown: {} connections did not end in time",
                        self.conns.len()
                    );
                    self.close_all(now);
                }
            }
        }
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Sends what is owed, one write per connection. Who turns out to be gone is ended, which may
    /// grant to others, who are then owed something too.
    fn flush(&mut self, now: Nanos) {
        loop {
            for id in mem::take(&mut self.overrun) {
                self.close_slow_consumer(now, id);
            }
            let Some(id) = self.dirty.pop_front() else {
                break;
            };
            self.flush_one(now, id);
        }
    }

    fn flush_one(&mut self, now: Nanos, id: ConnId) {
        let Self {
            conns,
            pool,
            settings,
            timers,
            ..
        } = self;
        let Some(conn) = conn::find(conns, id) else {
            return;
        };
        conn.dirty = false;
        let was_full = conn.outbox.is_full();
        let flushed = conn.flush(now, pool);
        match flushed {
            Flushed::All => {}
            Flushed::Some => timers.rearm(conn.timer, conn.deadline(now, settings)),
            Flushed::Broken(error) => return self.close(now, id, &error.to_string()),
        }
        if was_full && !conn.outbox.is_full() {
            conn.line_started = now; // read on from here, so the read timeout runs from here
            timers.rearm(conn.timer, conn.deadline(now, settings));
        }
        if conn.watches_write == conn.outbox.is_empty() {
            self.interest.push(id);
        }
        if conn.overrun && !conn.outbox.is_overrun() {
            conn.overrun = false;
            self.engine
                .apply(now, Input::Overrun(id, false), &mut self.effects);
        }
        if let Phase::Leaving { closing, .. } = conn.phase
            && conn.outbox.is_empty()
        {
            match closing {
                // It is still to be read: closed now, what was sent would be lost to a reset.
                Closing::Flush if conn.revisit || conn.readable => self.serve_later(id),
                Closing::Flush => self.close(now, id, "closed"),
                Closing::HalfClose => conn.transport.shutdown_write(),
                Closing::Delay => {}
            }
        } else if conn.has_more() {
            self.serve_later(id);
        }
    }

    // ---- finding connections ----

    /// The connection, unless its slot has gone to somebody else.
    fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn<T>> {
        conn::find(&mut self.conns, id)
    }

    fn ids(&self) -> impl Iterator<Item = ConnId> {
        let id = |(slot, conn): (usize, &Conn<T>)| ConnId {
            slot: slot as u32,
            serial: conn.serial,
        };
        self.conns.iter().map(id)
    }

    fn peer(&self, id: ConnId) -> String {
        self.conns[id.slot as usize].transport.peer()
    }
}
