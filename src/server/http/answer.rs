//! Answers over HTTP: what the lock table replied, and what the server knows itself.
//!
//! What an answer says and the reply does not, such as the time of day when a lease ends, is looked up
//! here and handed to `wire::http`, which spells it. An answer is the last one if its request said so;
//! then the connection ends once it is sent.

use super::super::Server;
use super::super::conn::{self, Conn, Flow, Owed, Transport};
use super::super::memory::UnsentPop;
use super::access_log::{self, Finished};
use super::figures::{LeaseOp, Outcome};
use crate::base::{ConnId, Fence, Millis, Nanos, Token};
use crate::engine::types::{Refusal, Reply};
use crate::engine::view::{HolderView, KeyView};
use crate::engine::{Engine, Kind};
use crate::store::Store;
use crate::wire::codec::Codec;
use crate::wire::http::answer::{self, Facts, Holding, LeaseShown};
use crate::wire::http::context::Context;
use crate::wire::http::{Problem, Route, Speech, problem};

const NS_PER_MS: u64 = 1_000_000;

/// Most holders that are looked at to find one whose lease is not over.
const LOOKED_AT_MAX: usize = 64;

impl<T: Transport, S: Store> Server<T, S> {
    /// Answers a request that the table has replied to; the answer speaks of nothing later than the
    /// record `mark`.
    #[cold]
    pub(in crate::server) fn answer_http(
        &mut self,
        now: Nanos,
        id: ConnId,
        reply: &Reply,
        mark: u64,
    ) {
        let conn = &mut self.conns[id.slot as usize];
        conn.flow = Flow::Open;
        conn.line_started = now;
        if self.store.is_durable() {
            self.held_back.mark(id, conn.outbox.position(), mark);
        }
        self.say_reply(now, id, reply);
        let conn = &mut self.conns[id.slot as usize];
        match reply {
            Reply::Value(value) => self.budget.charge_walk(value.len()),
            Reply::Popped(popped) => {
                self.budget.charge_walk(popped.value.len());
                let unsent = UnsentPop::new(popped, &self.pool);
                conn.unsent_pops.set(&conn.outbox, unsent);
            }
            _ => {}
        }
        if self.acting != Some(id) {
            self.run.resume(id);
            self.owe(id, Owed::Awaited);
        }
    }

    /// Says what the table replied.
    pub(super) fn say_reply(&mut self, now: Nanos, id: ConnId, reply: &Reply) {
        let Self {
            conns,
            pool,
            engine,
            settings,
            draining,
            http,
            ..
        } = self;
        let Conn { codec, outbox, .. } = &mut conns[id.slot as usize];
        let Codec::Http(codec) = codec else {
            return;
        };
        if codec.speech == Speech::Subscribes {
            return self.begin_stream(now, id, reply);
        }
        if *draining {
            codec.memo.end_connection(); // it may have been asked before
        }
        let context = codec.context();
        let out = outbox.buf(pool);
        let start = out.len();
        let expiry_ms = |left_ns| http.day.time_ms((settings.http.unix_ms)(), now, left_ns);
        let facts = facts(engine, now, &context, reply, expiry_ms);
        answer::reply(out, &context, reply, &facts);
        let status = status(&out[start..]);
        let told = outcome(&context, reply);
        let line = access_log::line(&settings.http, || {
            access_log::of_reply(&context, reply, &facts)
        });
        self.note_said(id, status, told, line);
    }

    /// Says why a request is not served.
    pub(super) fn say_problem(&mut self, id: ConnId, problem: &Problem<'_>) {
        let line = self.say_document(id, |out, context| answer::problem(out, context, problem));
        self.note_said(id, problem.status, None, line);
    }

    /// Says what `write` writes; returns what is to be logged about it.
    pub(super) fn say_document(
        &mut self,
        id: ConnId,
        write: impl FnOnce(&mut Vec<u8>, &Context<'_>),
    ) -> Option<access_log::Line> {
        let Self {
            conns,
            pool,
            settings,
            ..
        } = self;
        let Conn { codec, outbox, .. } = &mut conns[id.slot as usize];
        let Codec::Http(codec) = codec else {
            return None;
        };
        let context = codec.context();
        write(outbox.buf(pool), &context);
        access_log::line(&settings.http, || access_log::of_request(&context))
    }

    /// An answer is in the outbox.
    pub(super) fn note_said(
        &mut self,
        id: ConnId,
        status: u16,
        told: Option<(LeaseOp, Outcome)>,
        line: Option<access_log::Line>,
    ) {
        let Some(conn) = conn::find(&mut self.conns, id) else {
            return;
        };
        let peer = line.as_ref().map(|_| conn.transport.peer());
        let Some(codec) = conn.codec.as_http() else {
            return;
        };
        codec.ends |= !codec.context().keep_alive && !codec.is_stream();
        self.http.figures.note_answer(status);
        if let Some((op, outcome)) = told {
            self.http.figures.note_lease(op, outcome);
        }
        if told.is_some() || line.is_some() {
            self.http.note_finished(Finished {
                record: self.engine.record_count(),
                op: told.map(|(op, _)| op),
                asked_at: codec.asked_at,
                status,
                line: line.zip(peer),
            });
        }
        self.owe(id, Owed::Answer);
    }

    /// What was said has been handed to the system by now, or waits for its reader: notes how long it
    /// took. What still waits for the disk is noted when it does not.
    pub(in crate::server) fn note_finished(&mut self, now: Nanos) {
        let is_durable = self.store.is_durable();
        let durable = self.held_back.durable();
        let may_leave = |it: &mut Finished| !is_durable || it.record <= durable;
        while let Some(finished) = self.http.next_finished(may_leave) {
            let ns = now.since(finished.asked_at);
            if let Some(op) = finished.op {
                self.http.figures.note_latency(op, ns);
            }
            finished.log(ns);
        }
    }

    /// Whether the key is of another kind than the route shows. If it is, the answer says so.
    pub(super) fn is_other_kind(&mut self, now: Nanos, id: ConnId, key: &[u8]) -> bool {
        let Codec::Http(codec) = &self.conns[id.slot as usize].codec else {
            return false;
        };
        let known = self.engine.view(now).key(key).map(KeyView::kind);
        let refusal = known.and_then(|known| match (codec.context().route, known) {
            // A lock is a semaphore with one slot.
            (Some(Route::GetSemaphore), Kind::Slots { .. }) => None,
            (Some(Route::GetReadWrite), _) => known.mismatch(Kind::ReadWrite),
            _ => known.mismatch(Kind::Slots { limit: 1 }),
        });
        if let Some(refusal) = refusal {
            self.mark_all(id);
            self.say_refusal(id, refusal, 409);
        }
        refusal.is_some()
    }

    /// Who holds a lock or leads an election.
    pub(super) fn show_lease(&mut self, now: Nanos, id: ConnId, key: &[u8]) {
        self.mark_all(id);
        let Self {
            conns,
            pool,
            engine,
            settings,
            http,
            ..
        } = self;
        let Conn { codec, outbox, .. } = &mut conns[id.slot as usize];
        let Codec::Http(codec) = codec else {
            return;
        };
        let context = codec.context();
        let is_election = context.route == Some(Route::GetElection);
        // A lock that was not taken by an election has a holder and no leader.
        let holder = holder(engine, now, key).filter(|it| !is_election || it.hold == "lead");
        let shown = holder.map(|it| LeaseShown {
            owner: it.name.unwrap_or_default(),
            token: it.token,
            with_secret: settings.http.get_secrets,
            expiry_ms: http
                .day
                .time_ms((settings.http.unix_ms)(), now, it.lease_left_ns),
            version: it.version,
        });
        answer::lease(outbox.buf(pool), &context, shown.as_ref());
        let line = access_log::line(&settings.http, || access_log::of_request(&context));
        self.note_said(id, 200, None, line);
    }

    /// What is said next speaks of everything, so it waits for everything.
    pub(super) fn mark_all(&mut self, id: ConnId) {
        if self.store.is_durable() {
            let position = self.conns[id.slot as usize].outbox.position();
            let records = self.engine.record_count();
            self.held_back.mark(id, position, records);
        }
    }

    /// The connection has shown a wrong token, or a wrong secret of a client, and has waited for it: now
    /// it is told so.
    pub(in crate::server) fn say_unauthorized(&mut self, id: ConnId) {
        let mut problem = &problem::UNAUTHORIZED;
        if let Some(codec) = self.conns[id.slot as usize].codec.as_http() {
            codec.memo.end_connection();
            if codec.is_client_secret {
                problem = &problem::WRONG_SECRET;
            }
        }
        self.say_problem(id, problem);
    }

    /// There is no memory for a newcomer.
    pub(in crate::server) fn say_no_memory(&mut self, id: ConnId) {
        self.say_refusal(id, Refusal::Memory, 503);
    }

    fn say_refusal(&mut self, id: ConnId, refusal: Refusal, status: u16) {
        let line = self.say_document(id, |out, context| answer::refusal(out, context, refusal));
        self.note_said(id, status, None, line);
    }
}

/// The status in the first line of an answer.
fn status(answer: &[u8]) -> u16 {
    let digits = answer.get(9..12).unwrap_or(b"0");
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + u16::from(digit - b'0'))
}

/// Whoever holds the key and has held it longest, if its lease is not over.
fn holder<'e>(engine: &'e Engine, now: Nanos, key: &[u8]) -> Option<HolderView<'e>> {
    let holders = engine.view(now).key(key)?.holders();
    // Where very many have ended at once, they are not all looked at.
    holders.take(LOOKED_AT_MAX).find(|it| it.lease_left_ns > 0)
}

/// How long a lease runs that was granted or renewed. The reply knows it to the millisecond, the table
/// exactly, so that whoever asks again is told the same.
fn left_ns(engine: &Engine, now: Nanos, context: &Context<'_>, reply: (Fence, Millis)) -> u64 {
    let (fence, lease) = reply;
    let exact = engine.view(now).lease_left_ns(context.name, fence);
    exact.unwrap_or_else(|| lease.nanos())
}

/// What the answer says and the reply does not; `expiry_ms` is the time of day in so many nanoseconds.
fn facts<'e>(
    engine: &'e Engine,
    now: Nanos,
    context: &Context<'_>,
    reply: &Reply,
    mut expiry_ms: impl FnMut(u64) -> u64,
) -> Facts<'e> {
    let mut facts = Facts::default();
    match reply {
        Reply::Granted {
            token: Token { fence, .. },
            lease,
        }
        | Reply::Renewed { fence, lease } => {
            let left_ns = left_ns(engine, now, context, (*fence, *lease));
            facts.lease_expiry_ms = expiry_ms(left_ns);
        }
        Reply::TimedOut if let Some(wanted) = context.range => {
            let who = (context.client, context.owner.as_bytes());
            let view = engine.view(now);
            facts.conflict = view
                .range_in_the_way(context.name, who, wanted)
                .map(Box::new);
        }
        Reply::RangeFree | Reply::RangeHeld(_) => {
            facts.in_grace = engine.view(now).grace().left > Millis::ZERO;
        }
        Reply::TimedOut => {
            facts.holder = holder(engine, now, context.name).map(|it| Holding {
                owner: it.name.or(it.client).unwrap_or_default(),
                expiry_ms: expiry_ms(it.lease_left_ns),
                left_ns: it.lease_left_ns,
            });
        }
        Reply::Value(_) => {
            let ttl_ns = engine.view(now).value_ttl_ns(context.name);
            facts.ttl_ms = ttl_ns.map(|ns| ns.div_ceil(NS_PER_MS));
        }
        Reply::Values(_) => facts.length = engine.view(now).list_length(context.name) as u64,
        _ => {}
    }
    facts
}

/// What came of a lease, for the figures; none for all other requests.
fn outcome(context: &Context<'_>, reply: &Reply) -> Option<(LeaseOp, Outcome)> {
    let op = match context.route? {
        Route::AcquireLock => LeaseOp::Acquire,
        Route::RenewLock => LeaseOp::Renew,
        Route::ReleaseLock => LeaseOp::Release,
        _ => return None,
    };
    let outcome = match reply {
        Reply::Granted { .. } | Reply::Renewed { .. } | Reply::Done => Outcome::Success,
        Reply::Refused(Refusal::Storage) => Outcome::Busy,
        _ => Outcome::Fail,
    };
    Some((op, outcome))
}
