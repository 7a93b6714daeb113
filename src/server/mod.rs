//! Joins bytes, meaning and decisions: one [`Server`] owns the connections and the lock table.
//!
//! The order of a turn is in `turn.rs`, and completely there. The other files are its parts, in
//! the order in which a request meets them: `ready` who is served when, `serve` one connection's
//! share, `handshakes` those that agree on keys first, `strangers` those that have not
//! authenticated, `auth` and `guesses` the token, `audit` what operators do and what others may
//! not, `clients` what attaches and what operators break, `deliver` effects into outboxes,
//! `durable` what waits for the disk, `gate` bytes out, `closing` and `shutdown` the ends;
//! `budget` is what a turn may spend, `memory` what all may keep.
//!
//! Knows neither sockets nor the clock: with pipes for a [`Transport`] and a number for the time,
//! the simulator runs this very code.

pub mod audit;
mod auth;
mod budget;
mod clients;
mod closing;
mod conn;
mod deliver;
mod durable;
mod gate;
mod guesses;
mod handshakes;
mod http;
pub mod identity;
mod memory;
mod pace;
mod ranges;
mod ready;
mod serve;
mod shutdown;
mod stats;
mod strangers;
mod turn;

use std::collections::VecDeque;
use std::mem;

use log::debug;
use slab::Slab;

use self::audit::Forbidden;
use self::auth::Passes;
use self::budget::{Budget, Kind, TIMERS_MAX, TIMERS_NS};
use self::clients::Returns;
use self::closing::Ended;
use self::conn::{Arrival, Conn, Phase};
pub use self::conn::{Handshake, Transport, TransportMemory, Upkeep};
use self::durable::HeldBack;
use self::gate::Gate;
use self::guesses::Guesses;
pub use self::guesses::Host;
use self::handshakes::{Complaints, Handshakes};
use self::http::Http;
use self::memory::Memory;
use self::pace::Pace;
use self::ready::RunQueue;
use self::serve::{PutsOff, READ_BYTES_MAX};
pub use self::shutdown::Rest;
use self::strangers::Strangers;
use self::turn::LongestTurn;
pub use self::turn::{Event, Readiness};
use crate::access::Access;
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::Engine;
use crate::engine::types::{ATTACHED_SERIAL, Effects, Input, Refusal, Share};
use crate::engine::view::Counts;
use crate::memory::growth;
use crate::store::{self, Store};
use crate::timers::Timers;
use crate::wire::answer::WireFence;
use crate::wire::buf::Pool;
use crate::wire::codec::{Codec, Spelled};

/// Where the time is read. A lease must not be counted from before its request came, so the time is
/// read after every read of a socket, and not once per turn: in a long turn the last request would
/// be dated from before it was sent, and its lease would end early.
pub type Clock<'c> = &'c dyn Fn() -> Nanos;

/// What an operator sets for connections, as opposed to keys.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tokens of which every connection has to show one first, if there are any, and what each gives.
    pub access: Access,
    /// Whether answers carry the fence as a field of its own.
    pub wire_fence: WireFence,
    /// Most connections; 0 is no limit. One too many is closed without a word.
    pub connections_max: u32,
    /// Most bytes that everything clients can make the server keep may take; 0 is no limit. At the
    /// limit, what would grow is refused.
    pub memory_max: usize,
    /// The longest time a line may take to arrive, and an idle connection that owns nothing may
    /// stay.
    pub read_timeout: Millis,
    /// The longest time a peer may take to read everything it is owed; 0 is no limit.
    pub write_timeout: Millis,
    /// The longest time an encrypted connection may take to agree on keys.
    pub handshake_timeout: Millis,
    /// The longest time a connection may take to show a token, if one is asked for.
    pub auth_timeout: Millis,
    /// The longest time a shutdown waits for connections to end; 0 is no limit.
    pub shutdown_timeout: Millis,
    /// The number of this life of the server, told by `hello`; larger than that of any earlier one.
    pub epoch: u64,
    /// Most grants in a microsecond, counted from time zero; beyond that, grants wait. 0 is no limit.
    pub fences_per_us: u64,
    /// How many lines of the log were lost, for `stats`.
    pub lost_log_lines: fn() -> u64,
    /// Parts of all names that have figures of their own.
    pub shares: Vec<Share>,
    /// What is set for the HTTP door.
    pub http: HttpSettings,
}

/// What an operator sets for HTTP alone, and what its answers show of the world outside.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Names under which people know this server, besides its addresses and `localhost`.
    pub host_names: Vec<String>,
    /// Whether whoever asks about a lock is told its whole token, and not only the fence.
    pub get_secrets: bool,
    /// Whether every answer to a request is logged.
    pub access_log: bool,
    /// Whether figures are shown to whoever does not know the secret.
    pub metrics_open: bool,
    /// Where the line protocol listens, for the dashboard.
    pub line_port: Option<u16>,
    /// The time of day, in milliseconds since 1970; 0 if there is none, as in the simulator.
    pub unix_ms: fn() -> u64,
    /// What the system says of this process.
    pub process: fn() -> Process,
}

/// What the system says of a process, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// When it was started, in seconds since 1970.
    pub start_time_s: Option<f64>,
    /// For how long it has used a processor, in seconds.
    pub cpu_s: Option<f64>,
    /// Memory it has in use.
    pub resident_bytes: Option<u64>,
    /// Address space it has taken.
    pub virtual_bytes: Option<u64>,
    /// Open files and sockets.
    pub open_fds: Option<u64>,
    /// Most of them that there may be.
    pub max_fds: Option<u64>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            host_names: Vec::new(),
            get_secrets: false,
            access_log: false,
            metrics_open: false,
            line_port: None,
            unix_ms: || 0,
            process: Process::default,
        }
    }
}

/// Which protocol a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Three lines in, one line out.
    Line,
    /// HTTP/1.1.
    Http,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: Access::default(),
            wire_fence: WireFence::Auto,
            connections_max: 0,
            memory_max: 0,
            read_timeout: Millis::from_secs(23),
            write_timeout: Millis::from_secs(5),
            handshake_timeout: Millis::from_secs(5),
            auth_timeout: Millis::from_secs(5),
            shutdown_timeout: Millis::from_secs(30),
            epoch: 1,
            fences_per_us: 0,
            lost_log_lines: || 0,
            shares: Vec::new(),
            http: HttpSettings::default(),
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
    /// Tell connections that have shown a wrong secret so.
    Guesses,
    /// Look for connections that leave much unread.
    UnreadSweep,
    /// Tell how much was forbidden.
    Forbidden,
    /// Tell which clients have come back again and again.
    Returns,
}

/// How much of everything the server holds; for tests and the simulator.
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
pub struct Server<T, S = store::Memory> {
    settings: Settings,
    engine: Engine,
    store: S,
    conns: Slab<Conn<T>>,
    /// Connections accepted so far.
    serial: u32,
    timers: Timers<Due>,
    effects: Effects,
    pool: Pool,
    /// Sockets are read into this buffer. Requests are decoded here; only what is left over is
    /// copied.
    read_buf: Vec<u8>,
    /// Where the codec puts a frame it has to rewrite.
    scratch: Vec<u8>,
    /// Where a push that several hear is spelled.
    spelled: Spelled,
    /// The connection whose frames are being served; its answers do not resume it.
    acting: Option<ConnId>,
    /// Which requests are for later, in the present share.
    puts_off: PutsOff,
    run: RunQueue,
    budget: Budget,
    gate: Gate,
    held_back: HeldBack,
    guesses: Guesses,
    passes: Passes,
    forbidden: Forbidden,
    returns: Returns,
    handshakes: Handshakes,
    strangers: Strangers,
    complaints: Complaints,
    memory: Memory,
    /// What transports keep, which is counted by themselves.
    transports: TransportMemory,
    http: Http,
    /// What the clock said when it was last read.
    clock_read: Nanos,
    /// When the present turn began, until the loop sleeps.
    turn_began: Option<Nanos>,
    /// Transports of connections that have ended, to be closed.
    ended: VecDeque<Ended<T>>,
    /// How many connections were closed because they did not read what was pushed to them.
    slow_consumers: u64,
    /// The longest turn so far.
    longest_turn: LongestTurn,
    /// How long turns take, and the requests in them.
    pace: Pace,
    /// The process was stopped before this turn, and leases or waits should have ended meanwhile.
    was_stopped: bool,
    /// What the clock said last in the turn before this one.
    turn_ended: Nanos,
    /// Open connections that were refused when they came.
    refused: usize,
    /// Open connections that came during a shutdown.
    latecomers: usize,
    draining: bool,
    /// The shutdown waits for nothing any more.
    drain_is_forced: bool,
    /// We end connections because we stop: what they hold is not released, if it is on disk.
    is_stopping: bool,
    /// The store has failed.
    failure: Option<String>,
    /// In which slot a shutdown goes on looking for connections that have nothing to finish.
    sweep: Option<usize>,
}

impl<T: Transport> Server<T> {
    /// A server without connections, which remembers nothing when it has ended.
    #[must_use]
    pub fn new(settings: Settings, engine: Engine) -> Self {
        Self::with_store(settings, engine, store::Memory)
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// A server without connections. What is in the store already is in the engine.
    #[must_use]
    pub fn with_store(mut settings: Settings, engine: Engine, store: S) -> Self {
        let passes = Passes::new(mem::take(&mut settings.access));
        let mut server = Self {
            settings,
            engine,
            store,
            conns: Slab::new(),
            serial: 0,
            timers: Timers::new(),
            effects: Effects::new(),
            pool: Pool::new(),
            read_buf: vec![0; READ_BYTES_MAX],
            scratch: Vec::new(),
            spelled: Spelled::default(),
            acting: None,
            puts_off: PutsOff::Nothing,
            run: RunQueue::default(),
            budget: Budget::default(),
            gate: Gate::default(),
            held_back: HeldBack::default(),
            guesses: Guesses::default(),
            passes,
            forbidden: Forbidden::default(),
            returns: Returns::default(),
            handshakes: Handshakes::default(),
            strangers: Strangers::default(),
            complaints: Complaints::default(),
            memory: Memory::default(),
            transports: TransportMemory::default(),
            http: Http::default(),
            clock_read: Nanos::default(),
            turn_began: None,
            ended: VecDeque::new(),
            slow_consumers: 0,
            longest_turn: LongestTurn::default(),
            pace: Pace::default(),
            was_stopped: false,
            turn_ended: Nanos::default(),
            refused: 0,
            latecomers: 0,
            draining: false,
            drain_is_forced: false,
            is_stopping: false,
            failure: None,
            sweep: None,
        };
        if server.settings.memory_max != 0 {
            server.look_at_memory(Nanos::default());
        }
        let shares = mem::take(&mut server.settings.shares);
        server.set_shares(shares);
        server
    }

    /// These are the shares from now on.
    pub fn set_shares(&mut self, shares: Vec<Share>) {
        let input = Input::Shares(&shares);
        self.engine.apply(self.clock_read, input, &mut self.effects);
        self.settings.shares = shares;
    }

    /// Which shares there are.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.settings.shares
    }

    // ---- doors: what the reactor reports ----

    /// A new connection that speaks the line protocol.
    pub fn accept(&mut self, now: Nanos, transport: T) -> Option<ConnId> {
        self.accept_at(now, transport, Door::Line)
    }

    /// A new connection. `None` closes it, because there is no room. One for which there is no
    /// memory is told so and closed. One that comes during a shutdown is served: a holder without
    /// a connection needs a new one to renew or release.
    pub fn accept_at(&mut self, now: Nanos, transport: T, door: Door) -> Option<ConnId> {
        let (phase, user) = self.meet(&transport);
        let is_in_handshake = transport.is_in_handshake();
        let is_stranger = is_in_handshake || phase == Phase::Unauthenticated;
        if !self.make_slot(now, is_stranger) {
            let connections_max = self.settings.connections_max;
            let why = format!("--max-connections {connections_max} is reached");
            self.complaints.tell(now, &transport.peer(), &why);
            self.http.figures.note_refused(door);
            return None;
        }
        self.budget.charge_accept();
        let is_refused = self.has_no_memory_for_newcomers();
        if is_refused {
            self.engine.note_refused(Refusal::Memory);
        }
        // To tell an encrypted connection would take more memory than is left.
        if is_refused && (self.has_told_enough() || is_in_handshake) {
            debug!("refusing {}: --max-memory is reached", transport.peer());
            return None;
        }
        // 0 is nobody: it marks the reactor's own tokens, and `owner_conn_id` of an unowned key. And the
        // last number stands for clients.
        self.serial = match self.serial + 1 {
            ATTACHED_SERIAL => 1,
            serial => serial,
        };
        if self.conns.len() == self.conns.capacity() {
            self.conns.reserve_exact(growth(self.conns.len()));
        }
        let slot = self.conns.vacant_key() as u32;
        let id = ConnId {
            slot,
            serial: self.serial,
        };
        debug!("connection {} from {}", id.serial, transport.peer());
        let timer = self.timers.arm(Nanos::NEVER, Due::Conn(slot));
        // Over HTTP the user depends on the token of each request.
        let (codec, user) = match door {
            Door::Http => (Codec::http(), None),
            Door::Line => (Codec::line(self.settings.wire_fence), user),
        };
        let mut conn = Conn::new(transport, codec, id.serial, timer, phase, now);
        if !is_in_handshake {
            conn.note_peer();
        }
        let deadline = conn.deadline(now, &self.settings);
        self.timers.rearm(timer, deadline);
        if self.draining && !is_refused {
            conn.arrival = Arrival::Late;
            self.latecomers += 1;
        }
        self.conns.insert(conn);
        self.memory.note_accepted();
        self.http.note_accepted(door);
        if user.is_some() {
            let input = Input::LetIn(id, user);
            self.engine.apply(now, input, &mut self.effects);
        }
        if is_in_handshake {
            self.handshakes.note_begun();
        }
        if is_refused {
            self.refuse_newcomer(now, id);
        } else if is_stranger {
            self.note_stranger(now, id);
        }
        Some(id)
    }

    /// The reactor can no longer listen to the connection.
    pub fn lose(&mut self, now: Nanos, id: ConnId) {
        self.close(now, id, "lost");
    }

    // ---- what the reactor asks ----

    /// When the next turn must begin at the latest, even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let is_idle = self.run.is_empty()
            && !self.handshakes.is_waiting()
            && self.gate.is_empty()
            && self.ended.is_empty()
            && self.sweep.is_none()
            && !self.memory.is_sweeping();
        if !is_idle {
            return Some(Nanos(0));
        }
        let (engine, own) = (self.engine.next_deadline(), self.timers.next_deadline());
        let deadlines = [engine, own, self.clock_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Where transports of this server count what they keep.
    #[must_use]
    pub fn transport_memory(&self) -> TransportMemory {
        self.transports.clone()
    }

    /// The transport of a connection, to be registered.
    pub fn transport_mut(&mut self, id: ConnId) -> Option<&mut T> {
        self.conn_mut(id).map(|conn| &mut conn.transport)
    }

    /// Whether port and socket file are still ours: until a shutdown has come to its end, so that
    /// holders can connect and release. A second daemon that listened there meanwhile could grant
    /// what is still held here.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        !self.is_drained()
    }

    /// How many grants and range locks there are, and how many wait for one.
    #[must_use]
    pub fn held_and_waiting(&self) -> (usize, usize) {
        let counts = self.engine.counts();
        let ranges = self.engine.view(self.clock_read).range_counts();
        (
            counts.holders + ranges.locks,
            counts.waiters + ranges.waiting,
        )
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// How many of them a shutdown waits for.
    #[must_use]
    pub fn awaited_connections(&self) -> usize {
        self.conns.len() - self.refused - self.latecomers
    }

    /// The lock table, to look at.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How much of everything is held; all zero once every client has left.
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

    /// Acts on those of the server's own timers that have fired, as far as their share of the turn
    /// goes.
    fn fire_timers(&mut self, now: Nanos) {
        let (mut looks_left, end) = (TIMERS_MAX, self.budget.spent() + TIMERS_NS);
        while self.budget.spent() < end {
            let before = looks_left;
            let due = self.timers.pop_due(now, &mut looks_left);
            self.budget.charge_timers(before - looks_left);
            let Some((_, due)) = due else {
                break;
            };
            match due {
                Due::Conn(slot) => self.on_timer(now, slot),
                Due::DrainSweep => self.sweep = Some(0),
                Due::DrainEnd => self.drain_end(now),
                Due::Guesses => self.tell_waiting(now),
                Due::UnreadSweep => self.restart_sweep(),
                Due::Forbidden => self.tell_forbidden(now),
                Due::Returns => self.tell_returns(),
            }
        }
        if let Some(slot) = self.sweep {
            self.drain_sweep(now, slot);
        }
    }

    /// Charges what the engine has worked since it was last asked.
    #[inline]
    fn charge_engine(&mut self, kind: Kind) {
        let work = self.engine.take_work();
        self.budget.charge(kind, work);
    }

    // ---- finding connections ----

    /// The connection, unless its slot has gone to somebody else.
    fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn<T>> {
        conn::find(&mut self.conns, id)
    }

    fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.conns.iter().map(|(slot, conn)| conn.id(slot))
    }

    /// Where a connection comes from, while it is there.
    fn address_of(&self, id: ConnId) -> Option<String> {
        let conn = self.conns.get(id.slot as usize)?;
        (conn.serial == id.serial).then(|| conn.transport.address())
    }

    /// All connections, for `stats`.
    fn clients(&self, now: Nanos) -> impl Iterator<Item = stats::Client> {
        self.conns.iter().map(move |(slot, conn)| stats::Client {
            id: conn.id(slot),
            address: conn.transport.address(),
            age_s: conn.age_s(now),
        })
    }

    fn peer(&self, id: ConnId) -> String {
        self.conns[id.slot as usize].transport.peer()
    }
}

/// `1 connection`, `2 connections`.
fn connections(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} connection{plural}")
}
