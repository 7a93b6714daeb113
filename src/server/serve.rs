//! One connection's share of a turn: read, decode, serve, read on.
//!
//! Frames are served where they landed; only an unfinished one is copied. A connection is held up
//! while its answer is outstanding or it does not read; one that has more than its share
//! goes into the run queue (`ready.rs`). Ends are in `closing.rs`.

use std::cell::Cell;
use std::io;
use std::mem;

use log::debug;

use super::closing::Closing;
use super::conn::{Flow, Owed, Phase, Transport, Upkeep};
use super::memory::Outboxes;
use super::{Clock, Server, conn, stats};
use crate::base::{ConnId, Nanos};
use crate::engine::Engine;
use crate::engine::types::{Effect, Effects, Input, RangeAsk, Refusal, Reply, Request};
use crate::shard::Shard;
use crate::store::{Redirect, Store};
use crate::wire::Answer;
use crate::wire::answer::Welcome;
use crate::wire::codec::{Codec, Decoded};
use crate::wire::command::{Asked, Command, Hello, Malformed};

/// Most bytes of one read.
pub(super) const READ_BYTES_MAX: usize = 16 * 1024;

/// While all outboxes together are full, a client with an empty outbox still gets values of up to
/// this share of its part. Escaped, and with an HTTP head, such an answer is about the client's part
/// at most, and short answers may fill that part in any case.
const SHORT_VALUES_SHARE: usize = 8;

/// How much of a turn one connection gets before the others. One request is always served, and the
/// last one may exceed it.
#[derive(Clone, Copy)]
pub(super) struct Share {
    bytes: usize,
    ns: u64,
    puts_off: PutsOff,
}

/// How much a request asks for.
pub(super) trait Weight {
    /// Its answer may be much longer than the request.
    fn has_long_answer(&self) -> bool;
    /// Its answer takes a walk over keys, a queue, a list or connections.
    fn takes_a_walk(&self) -> bool;
    /// What it asks of the lock table, if it does.
    fn request(&self) -> Option<&Request<'_>>;
}

impl Weight for Asked<'_> {
    #[inline]
    fn has_long_answer(&self) -> bool {
        self.has_long_answer()
    }

    #[inline]
    fn takes_a_walk(&self) -> bool {
        self.takes_a_walk()
    }

    fn request(&self) -> Option<&Request<'_>> {
        match &self.command {
            Ok(Command::Engine(request)) => Some(request),
            _ => None,
        }
    }
}

/// Which requests are left for later.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PutsOff {
    Nothing,
    /// Those whose answers take a walk, until everybody had a first share.
    Walks,
    /// Those whose answers may be long, while answers before them are unread, because all outboxes
    /// together are crowded; and walks as well, or not.
    SecondAnswers {
        walks: bool,
    },
    /// All outboxes together are full. A request with long values in its answer waits; one with
    /// short values waits for its own connection to read.
    LongAnswers,
}

impl PutsOff {
    /// How a connection waits whose request is left for later, if it is.
    #[inline]
    pub(super) fn flow(
        self,
        asked: &impl Weight,
        engine: &Engine,
        unread_max: usize,
        has_unread: impl FnOnce() -> bool,
    ) -> Option<Flow> {
        let (waiting, walks) = match self {
            Self::Nothing => (None, false),
            Self::Walks => (None, true),
            Self::SecondAnswers { walks } => {
                let waiting = has_unread().then_some(Flow::AwaitsOwnOutbox);
                (waiting, walks)
            }
            Self::LongAnswers => {
                let (request, bytes_max) = (asked.request(), unread_max / SHORT_VALUES_SHARE);
                let is_short = request.is_some_and(|it| engine.is_answer_short(it, bytes_max));
                let waiting = match is_short {
                    true => has_unread().then_some(Flow::AwaitsOwnOutbox),
                    false => Some(Flow::AwaitsOutboxes),
                };
                (waiting, false)
            }
        };
        let waiting = waiting.filter(|_| asked.has_long_answer());
        waiting.or_else(|| (walks && asked.takes_a_walk()).then_some(Flow::Yielded))
    }
}

impl Share {
    /// What everybody gets who has sent something: some dozens of requests.
    pub(super) const FIRST: Self = Self {
        bytes: 4 * 1024,
        ns: 25_000,
        puts_off: PutsOff::Walks,
    };

    /// What a connection gets that has more than that, when it is its turn.
    pub(super) const LONG: Self = Self {
        bytes: READ_BYTES_MAX,
        ns: 100_000,
        puts_off: PutsOff::Nothing,
    };
}

/// Whether it asks for a change that takes room on disk.
#[cold]
pub(super) fn takes_room(engine: &Engine, request: &Request<'_>) -> bool {
    request.takes_room() || request.may_come_back() || engine.lengthens(request)
}

#[cold]
fn is_recorded(engine: &Engine, command: &Result<Command<'_>, Malformed>) -> bool {
    match command {
        Ok(Command::Engine(request)) => takes_room(engine, request),
        Ok(Command::Attach(_)) => true,
        Ok(Command::Range(request)) => matches!(request.ask, RangeAsk::Lock { .. }),
        _ => false,
    }
}

/// The first byte of a TLS connection. Nothing that is spoken here begins with it.
const TLS_HELLO: u8 = 0x16;

const NO_TLS: &str = "it speaks TLS, and this port does not: --tls-cert and --tls-key turn it on";

/// What to say of a peer that sends something else than what is spoken here.
#[cold]
fn foreign(input: &[u8]) -> &'static str {
    if is_tls_hello(input) {
        NO_TLS
    } else {
        "it does not speak this protocol"
    }
}

/// Whether somebody begins to speak TLS.
pub(super) fn is_tls_hello(input: &[u8]) -> bool {
    input.first() == Some(&TLS_HELLO)
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Somebody begins to speak TLS where nobody else does.
    #[cold]
    pub(super) fn end_tls_hello(&mut self, now: Nanos, id: ConnId) {
        let peer = self.peer(id);
        self.complaints.tell(now, &peer, NO_TLS);
        self.close(now, id, "foreign protocol");
    }

    /// Serves the connection until it has nothing more, is held up, or has had its share.
    pub(super) fn serve_conn(&mut self, clock: Clock<'_>, id: ConnId, share: Share) {
        let mut bytes_left = share.bytes;
        self.begin_share(share);
        let unread_max = self.memory.unread_max;
        let mut read_buf = mem::take(&mut self.read_buf);
        if let Some(conn) = self.conn_mut(id) {
            if !matches!(conn.flow, Flow::Parked | Flow::AwaitsRefusal) {
                conn.flow = Flow::Open;
            }
            if !conn.inbox.is_empty() && !conn.is_leaving() {
                let now = self.read_clock(clock);
                self.serve_inbox(now, id);
            }
        }
        while let Some(conn) = self.conn_mut(id)
            && conn.readable
            && !conn.is_held_up(unread_max)
            && bytes_left > 0
        {
            if self.is_frame_put_off(id) {
                self.conns[id.slot as usize].flow = Flow::AwaitsInboxes;
                break;
            }
            let mut conn = &mut self.conns[id.slot as usize];
            let room = bytes_left.min(conn.inbox.room(conn.codec.inbox_bytes_max()));
            let read = conn.transport.read(&mut read_buf[..room]);
            let upkeep = conn.transport.upkeep();
            if upkeep != Upkeep::default() {
                let now = self.read_clock(clock);
                self.note_upkeep(now, id, upkeep);
                conn = &mut self.conns[id.slot as usize];
            }
            match read {
                Ok(0) => {
                    conn.readable = false;
                    let now = self.read_clock(clock);
                    self.leave(now, id, Closing::Flush, "closed");
                }
                Ok(received) => {
                    // A short read has emptied the socket: the read that would say so is saved. Not
                    // after a hang-up, where the end itself is still to be read.
                    conn.readable = received == room || conn.hung_up || upkeep.has_more;
                    bytes_left -= received;
                    self.budget.charge_read(received);
                    let now = self.read_clock(clock);
                    self.receive(now, id, &read_buf[..received]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    conn.readable = upkeep.has_more;
                    if upkeep.has_more {
                        conn.yield_turn(); // much has come that says nothing
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let now = self.read_clock(clock);
                    self.refuse_encrypted(now, id, &error.to_string());
                }
                Err(error) => {
                    let now = self.read_clock(clock);
                    self.close(now, id, &error.to_string());
                }
            }
        }
        self.read_buf = read_buf;
        self.end_share(id);
    }

    /// A connection may do so much from now on.
    #[inline]
    fn begin_share(&mut self, share: Share) {
        self.budget.begin_share(share.ns);
        self.puts_off = match self.memory.outboxes {
            Outboxes::Roomy => share.puts_off,
            Outboxes::Crowded => PutsOff::SecondAnswers {
                walks: share.puts_off == PutsOff::Walks,
            },
            Outboxes::Full => PutsOff::LongAnswers,
        };
    }

    /// It is done for now: decides when it is served again.
    #[inline(always)] // one of its two callers serves everybody
    fn end_share(&mut self, id: ConnId) {
        self.note_stalled(id);
        let unread_max = self.memory.unread_max;
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        if conn.hung_up && !conn.is_leaving() {
            // Until its next share it is absent again, and nobody grants it anything.
            let input = Input::HungUp(id, true);
            self.engine.apply(self.clock_read, input, &mut self.effects);
        }
        if let Codec::Http(codec) = &conn.codec
            && codec.ends
            && !conn.is_leaving()
        {
            return self.end_answered(self.clock_read, id);
        }
        if conn.flow.waits_for_room() {
            self.wait_for_room(id);
        } else if conn.has_more(unread_max) {
            self.serve_later(id);
        } else if conn.is_flushed_last() {
            self.owe_the_rest(id); // the flush closes it, now that it was read
        }
    }

    /// Bytes have come: serve them where they are, or behind those that came before.
    fn receive(&mut self, now: Nanos, id: ConnId, bytes: &[u8]) {
        let Self { conns, pool, .. } = self;
        let conn = &mut conns[id.slot as usize];
        if let Phase::Leaving {
            discard_bytes_left, ..
        } = &mut conn.phase
        {
            *discard_bytes_left = discard_bytes_left.saturating_sub(bytes.len() as u32);
            conn.readable &= *discard_bytes_left > 0;
            return;
        }
        if !conn.inbox.is_empty() {
            let bytes_max = conn.codec.inbox_bytes_max();
            let taken = conn.inbox.append(bytes, bytes_max, pool);
            assert_eq!(taken, bytes.len(), "read more than the inbox has room for");
            self.budget.charge_kept(taken, conn.inbox.len());
            return self.serve_inbox(now, id);
        }
        let used = if conn.codec.is_http() {
            self.serve_http(now, id, bytes)
        } else {
            self.serve(now, id, bytes)
        };
        if used == bytes.len() {
            return; // nearly always
        }
        let Self { conns, pool, .. } = self;
        if let Some(conn) = conn::find(conns, id)
            && conn.is_heard()
        {
            let bytes_max = conn.codec.inbox_bytes_max();
            let taken = conn.inbox.append(&bytes[used..], bytes_max, pool);
            assert_eq!(
                taken,
                bytes.len() - used,
                "one read is larger than an inbox"
            );
            self.weigh_stranger(id);
        }
    }

    fn serve_inbox(&mut self, now: Nanos, id: ConnId) {
        let slot = id.slot as usize;
        let conn = &mut self.conns[slot];
        let mut inbox = mem::take(&mut conn.inbox);
        let used = if conn.codec.is_http() {
            self.serve_http(now, id, inbox.bytes())
        } else {
            self.serve(now, id, inbox.bytes())
        };
        match conn::find(&mut self.conns, id) {
            Some(conn) if conn.is_heard() => {
                inbox.consume(used, &mut self.pool);
                conn.inbox = inbox;
            }
            _ => inbox.clear(&mut self.pool),
        }
        self.weigh_stranger(id);
    }

    /// Serves the whole frames at the front of `input` and says how many bytes they were. Stops
    /// early when the connection is held up; the connection may be gone afterwards.
    fn serve(&mut self, now: Nanos, id: ConnId, input: &[u8]) -> usize {
        let mut used = 0;
        let mut scratch = mem::take(&mut self.scratch);
        while used < input.len() {
            let (puts_off, unread_max) = (self.puts_off, self.memory.unread_max);
            let is_behind = self.is_behind_with_pushes();
            // A full disk is behind until somebody makes room: whoever would wait for it is refused.
            let is_store_behind = self.store.is_behind() && !self.held_back.is_full();
            let Self { conns, engine, .. } = self;
            let Some(conn) = conn::find(conns, id) else {
                break;
            };
            if conn.is_leaving() || conn.is_held_up(unread_max) {
                break;
            }
            let Codec::Line(codec) = &mut conn.codec else {
                break;
            };
            match codec.decode(&input[used..], &mut scratch) {
                Decoded::Request(asked)
                    if is_behind && !conn.hung_up && asked.is_signal() && conn.is_let_in() =>
                {
                    conn.line_started = now;
                    conn.flow = Flow::AwaitsPushes;
                }
                Decoded::Request(asked)
                    if is_store_behind
                        && conn.is_let_in()
                        && is_recorded(engine, &asked.command) =>
                {
                    conn.line_started = now;
                    conn.flow = Flow::AwaitsStore;
                }
                Decoded::Request(asked)
                    if let Some(flow) =
                        puts_off.flow(&asked, engine, unread_max, || !conn.outbox.is_empty())
                        && conn.is_let_in() =>
                {
                    conn.line_started = now;
                    conn.flow = flow;
                }
                Decoded::Request(asked) => {
                    conn.line_started = now;
                    if self.serve_frame(now, id, &asked) {
                        used += asked.used;
                    }
                }
                Decoded::Unfinished { moved_on } => {
                    if conn.phase == Phase::Unauthenticated {
                        // Its time to authenticate runs from when it came, whatever it sends.
                        if input.len() - used >= self.passes.stranger_bytes_max() {
                            self.cut_off(now, id, "a line is too long");
                        }
                    } else if moved_on {
                        conn.line_started = now;
                    }
                    break;
                }
                Decoded::TooLong => self.cut_off(now, id, "a line is too long"),
                Decoded::Foreign => {
                    let why = foreign(&input[used..]);
                    self.complaints.tell(now, &conn.transport.peer(), why);
                    self.close(now, id, "foreign protocol");
                }
            }
        }
        self.scratch = scratch;
        used
    }

    /// Serves one request; returns false if it is to be served again later, because it is not decided.
    fn serve_frame(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) -> bool {
        if self.conns[id.slot as usize].phase != Phase::Open && !self.lets_pass(now, id, asked) {
            return true;
        }
        if let Some(shard) = self.store.shard()
            && self.has_sent_to_shard(id, shard, asked)
        {
            return true;
        }
        if let Some(redirect) = self.store.redirect() {
            self.send_elsewhere(now, id, asked, &redirect);
            return true;
        }
        match asked.command {
            // What comes back is recorded again, and there is no room for that.
            Ok(Command::Engine(request))
                if request.may_come_back()
                    && self.held_back.is_full()
                    && self.store.is_behind() =>
            {
                self.refuse(id, Refusal::Storage);
            }
            Ok(Command::Engine(request)) => {
                return self.ask(now, id, asked.takes_a_walk(), |engine, effects| {
                    engine.apply(now, Input::Request(id, request), effects);
                });
            }
            Ok(Command::Ping) => self.say(id, Answer::Ok),
            _ => return self.serve_rarely(now, id, asked),
        }
        self.charge_request(id, 0);
        true
    }

    /// Says where the key is, if another shard has it.
    fn has_sent_to_shard(&mut self, id: ConnId, shard: Shard, asked: &Asked<'_>) -> bool {
        let home = asked.home().and_then(|key| shard.other_with(key));
        let Some(other) = home else {
            return false;
        };
        let to = self.store.leader_of(other);
        self.say(id, Answer::NotLeader(to.line.as_deref()));
        self.charge_request(id, 0);
        true
    }

    /// Another server decides: says where it is.
    #[cold]
    fn send_elsewhere(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>, to: &Redirect) {
        match asked.command {
            Ok(Command::Ping) => self.say(id, Answer::Ok),
            Ok(Command::Stats | Command::Auth { .. }) | Err(_) => {
                self.serve_rarely(now, id, asked);
                return;
            }
            _ => self.say(id, Answer::NotLeader(to.line.as_deref())),
        }
        self.charge_request(id, 0);
    }

    /// The same for everything that is not asked for over and over. Apart, so that what is pays nothing
    /// for it.
    #[cold]
    #[inline(never)]
    fn serve_rarely(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) -> bool {
        match asked.command {
            Ok(Command::Hello(hello)) => self.hello(now, id, hello),
            Ok(Command::Stats) => {
                let figures = self.figures(); // all boxes are in their places yet
                let looks = Cell::new(0);
                self.tell(id, |server, out| {
                    let (view, tally) = (server.engine.view(now), server.engine.tally());
                    let clients = server.clients(now);
                    looks.set(stats::stats(out, view, tally, &figures, clients));
                });
                self.budget.charge_visits(looks.get());
            }
            Ok(Command::Who { key }) => self.tell(id, |server, out| {
                let address_of = |id: ConnId| server.address_of(id);
                stats::who(out, server.engine.view(now), key, &address_of);
            }),
            Ok(Command::Attach(attach)) => return self.attach(now, id, attach),
            Ok(Command::Detach { id: client, secret }) => {
                return self.detach(now, id, client, secret);
            }
            Ok(Command::Break { key, fence }) => return self.break_grants(now, id, key, fence),
            Ok(Command::Range(request)) => return self.ask_for_range(now, id, request),
            Ok(Command::RangeList { resource }) => self.list_ranges(now, id, resource),
            Ok(Command::RangeListOf { of, after }) => self.list_ranges_of(now, id, of, after),
            Ok(Command::BreakRangesOf { client }) => {
                return self.break_ranges_of(now, id, client);
            }
            Ok(Command::ReclaimDone { id: client }) => return self.end_reclaim(now, id, client),
            Ok(Command::Grace { ends }) => return self.look_at_grace(now, id, ends),
            Ok(Command::BreakRanges { resource, span }) => {
                return self.break_ranges(now, id, resource, span);
            }
            Ok(Command::Waits) => {
                let looks = Cell::new(0);
                self.tell(id, |server, out| {
                    looks.set(stats::waits(out, server.engine.view(now)));
                });
                self.budget.charge_visits(looks.get());
            }
            Ok(Command::Engine(_) | Command::Ping) => unreachable!("it is served by `serve_frame`"),
            // A second `auth`, or one that nobody asked for.
            Ok(Command::Auth { .. }) => self.authenticate_again(now, id, asked),
            Err(malformed) => {
                debug!(
                    "connection {}: error {} ({malformed:?})",
                    id.serial,
                    malformed.code()
                );
                self.say(id, Answer::Error);
            }
        }
        self.charge_request(id, 0);
        true
    }

    /// Charges a request that was served; a connection that has had its share yields to the others.
    #[inline]
    pub(super) fn charge_request(&mut self, id: ConnId, engine_ns: u64) {
        self.budget.charge_request(engine_ns);
        if self.budget.is_share_over()
            && let Some(conn) = self.conn_mut(id)
        {
            conn.yield_turn();
        }
    }

    /// Puts a request before the engine, which `apply` does; without an answer the connection is parked.
    /// Returns false if it was not decided: then it is still to be served.
    #[inline(always)] // of its two callers one serves every line
    pub(super) fn ask(
        &mut self,
        now: Nanos,
        id: ConnId,
        takes_a_walk: bool,
        apply: impl FnOnce(&mut Engine, &mut Effects),
    ) -> bool {
        let conn = &mut self.conns[id.slot as usize];
        conn.flow = Flow::Parked;
        apply(&mut self.engine, &mut self.effects);
        let is_decided = !matches!(self.effects.last(), Some(Effect::NotYet(_)));
        if !is_decided {
            self.effects.pop();
            self.conns[id.slot as usize].flow = Flow::Yielded;
        }
        self.acting = Some(id);
        self.deliver(now);
        self.acting = None;
        if takes_a_walk && is_decided {
            // The engine has charged what it wrote.
            self.conns[id.slot as usize].yield_turn();
            self.budget.charge_walk(0);
        }
        let work = self.engine.take_work();
        self.charge_request(id, work);
        let conn = &mut self.conns[id.slot as usize];
        if conn.is_parked() && conn.hung_up {
            // This request gets no answer, but those before it still do.
            self.leave(now, id, Closing::Flush, "left before it could wait");
        }
        is_decided
    }

    fn hello(&mut self, now: Nanos, id: ConnId, hello: Hello<'_>) {
        if let Some(on) = hello.deadlock {
            let input = Input::DetectDeadlocks(id, on);
            self.engine.apply(now, input, &mut self.effects);
        }
        if let Some(keeps) = hello.keep {
            let input = Input::Keep(id, keeps);
            self.engine.apply(now, input, &mut self.effects);
        }
        let name = hello.name.and_then(|name| str::from_utf8(name).ok());
        let has_room = self.engine.has_room_for_name(id, name);
        let kept = name.filter(|_| has_room);
        self.engine
            .apply(now, Input::Hello(id, kept), &mut self.effects);
        if !has_room {
            return self.refuse(id, Refusal::Memory);
        }
        let Self {
            conns,
            pool,
            engine,
            settings,
            store,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        let welcome = Welcome {
            version: env!("CARGO_PKG_VERSION"),
            epoch: settings.epoch,
            detects_deadlocks: engine.detects_deadlocks(id),
            keeps: engine.keeps(id),
            shard: store.shard(),
            cluster_ttl: store.cluster_ttl(),
            name: engine.name_of(id),
        };
        if let Codec::Line(codec) = &conn.codec {
            codec.encode(conn.outbox.buf(pool), Answer::Hello(welcome));
        }
        self.owe(id, Owed::Answer);
    }

    /// Refuses a request that the engine is not asked.
    #[cold]
    pub(super) fn refuse(&mut self, id: ConnId, why: Refusal) {
        self.engine.note_refused(why);
        self.say(id, Answer::Reply(&Reply::Refused(why)));
    }

    pub(super) fn say(&mut self, id: ConnId, answer: Answer<'_>) {
        let conn = &mut self.conns[id.slot as usize];
        if let Codec::Line(codec) = &conn.codec {
            codec.encode(conn.outbox.buf(&mut self.pool), answer);
        }
        self.owe(id, Owed::Answer);
    }

    /// Answers with a long document.
    pub(super) fn tell(&mut self, id: ConnId, write: impl Fn(&Self, &mut Vec<u8>)) {
        let slot = id.slot as usize;
        let owed = self.conns[slot].outbox.len();
        // It speaks of everything, so it waits for everything.
        let position = self.conns[slot].outbox.position();
        self.held_back
            .mark(id, position, self.engine.record_count());
        let (mut outbox, mut pool) = (
            mem::take(&mut self.conns[slot].outbox),
            mem::take(&mut self.pool),
        );
        let body = |out: &mut Vec<u8>| write(self, out);
        if let Codec::Line(codec) = &self.conns[slot].codec {
            codec.encode(outbox.buf(&mut pool), Answer::Json(&body));
        }
        self.pool = pool;
        self.conns[slot].outbox = outbox;
        self.note_walk(id, owed);
        self.owe(id, Owed::Answer);
    }

    /// Charges an answer that took a walk; `owed` is how much the client was owed before it. One
    /// such answer per share is enough.
    pub(super) fn note_walk(&mut self, id: ConnId, owed: usize) {
        let conn = &mut self.conns[id.slot as usize];
        conn.yield_turn();
        let bytes = conn.outbox.len().saturating_sub(owed);
        self.budget.charge_walk(bytes);
    }
}
