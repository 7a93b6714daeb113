//! Requests over HTTP, one after the other: framed, let in, and put before whoever answers them.

use std::mem;

use super::super::Server;
use super::super::budget::Kind;
use super::super::closing::Closing;
use super::super::conn::{self, Flow, Owed, Phase, Transport};
use super::super::durable::Kept;
use super::super::serve::{Weight, is_tls_hello, takes_room};
use super::access::Refused;
use crate::base::{ConnId, Nanos};
use crate::engine::Engine;
use crate::engine::types::{Attach, By, Input, OfClient, RangeAsk, Refusal, Reply, Request};
use crate::store::{Redirect, Store};
use crate::wire::http::answer::CONTINUE;
use crate::wire::http::context::Context;
use crate::wire::http::problem::{BODY_TOO_LONG, HEAD_TOO_LONG, NO_LEADER, leader_without_http};
use crate::wire::http::{self, Ask, Asked, Decoded, HttpCodec, Part, Problem, Reader, Speech};

/// What it costs to read and answer one request over HTTP, beyond what a line costs.
const REQUEST_NS: u64 = 1_000;

impl Weight for Asked<'_> {
    fn has_long_answer(&self) -> bool {
        self.what.as_ref().is_ok_and(Ask::has_long_answer)
    }

    fn takes_a_walk(&self) -> bool {
        self.what.as_ref().is_ok_and(Ask::takes_a_walk)
    }

    fn request(&self) -> Option<&Request<'_>> {
        match &self.what {
            Ok(Ask::Engine { request, .. }) => Some(request),
            _ => None,
        }
    }
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Serves the whole requests at the front of `input` and says how many bytes they were. Stops
    /// early when the connection is held up; the connection may be gone afterwards.
    pub(in crate::server) fn serve_http(&mut self, now: Nanos, id: ConnId, input: &[u8]) -> usize {
        let mut used = 0;
        let mut scratch = mem::take(&mut self.scratch);
        while used < input.len()
            && let Some(codec) = self.next_asker(id)
        {
            if codec.is_stream() {
                used = input.len(); // nobody listens to it any more
                break;
            }
            if codec.part == Part::Nothing && is_tls_hello(&input[used..]) {
                self.end_tls_hello(now, id);
                break;
            }
            let decoded = codec.reader.decode(&input[used..], &mut scratch);
            let looks = codec.reader.take_looks();
            self.budget.charge_visits(looks);
            match decoded {
                Decoded::Request(asked) => {
                    // Also if it is put off: it is read again then.
                    let ns = REQUEST_NS + asked.used as u64 / 2;
                    self.budget.charge(Kind::Decide, ns);
                    if self.is_put_off(now, id, &asked) || !self.serve_asked(now, id, &asked) {
                        break;
                    }
                    used += asked.used;
                    if self.store.is_durable() {
                        self.note_stalled_for(now, id, None);
                    }
                    self.http.figures.note_request();
                }
                Decoded::Unfinished {
                    part,
                    wants_continue,
                } => {
                    if part == Part::Nothing {
                        used = input.len(); // empty lines between two requests
                    }
                    let is_stranger = self.conns[id.slot as usize].phase == Phase::Unauthenticated;
                    if !is_stranger || self.hears_on(now, id, part, &input[used..], &mut scratch) {
                        self.note_part(now, id, part, wants_continue);
                    }
                    break;
                }
                Decoded::Fault(problem) => {
                    self.end_with(now, id, &problem);
                    break;
                }
            }
        }
        self.scratch = scratch;
        used
    }

    /// Whether more of an unfinished request is read on a connection without a token: if its head
    /// shows one, or while it is short.
    #[cold]
    fn hears_on(
        &mut self,
        now: Nanos,
        id: ConnId,
        part: Part,
        input: &[u8],
        scratch: &mut Vec<u8>,
    ) -> bool {
        let reader = self.conns[id.slot as usize]
            .codec
            .as_http()
            .map(|it| it.reader);
        if let Some(asked) = reader.and_then(|reader| reader.head(input, scratch)) {
            self.budget.charge_visits(1 + input.len() / 64);
            match self.check_head(id, &asked) {
                Err(Refused::WrongSecret) => {
                    self.keep_context(now, id, &asked.context);
                    self.turn_away(now, id);
                    return false;
                }
                Err(Refused::Problem(problem)) => {
                    self.end_with(now, id, &problem);
                    return false;
                }
                Ok(()) => {}
            }
        }
        let is_stranger = self.conns[id.slot as usize].phase == Phase::Unauthenticated;
        let is_too_long = is_stranger && input.len() >= self.passes.stranger_bytes_max();
        if is_too_long {
            let problem = match part {
                Part::Body => BODY_TOO_LONG,
                Part::Head | Part::Nothing => HEAD_TOO_LONG,
            };
            self.end_with(now, id, &problem);
        }
        !is_too_long
    }

    /// The connection, if its next request may be served.
    fn next_asker(&mut self, id: ConnId) -> Option<&mut HttpCodec> {
        let unread_max = self.memory.unread_max;
        let conn = conn::find(&mut self.conns, id)?;
        let is_over = conn.is_leaving() || conn.is_held_up(unread_max);
        let codec = conn.codec.as_http()?;
        (!is_over && !codec.ends).then_some(codec)
    }

    /// The next request has come so far.
    fn note_part(&mut self, now: Nanos, id: ConnId, part: Part, wants_continue: bool) {
        let Self {
            conns,
            pool,
            timers,
            settings,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        let Some(codec) = conn.codec.as_http() else {
            return;
        };
        if part == Part::Nothing {
            codec.reader = Reader::default();
        }
        if codec.part != part {
            // Each part has its own time, and less than a silent connection.
            codec.part = part;
            conn.line_started = now;
            timers.rearm(conn.timer, conn.deadline(now, settings));
        }
        if wants_continue {
            conn.outbox.buf(pool).extend_from_slice(CONTINUE);
            self.owe(id, Owed::Answer);
        }
    }

    /// Whether the request is left for later, for the same reasons as a line would be.
    fn is_put_off(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) -> bool {
        let is_stranger = self.conns[id.slot as usize].phase == Phase::Unauthenticated;
        if is_stranger && self.check_head(id, asked).is_err() {
            return false; // it is refused, which waits for nothing
        }
        let is_behind = self.is_behind_with_pushes();
        // A full disk is behind until somebody makes room: whoever would wait for it is refused.
        let is_store_behind = self.store.is_behind() && !self.held_back.is_full();
        let Self {
            conns,
            engine,
            memory,
            puts_off,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        let request = asked.request();
        let is_signal = matches!(request, Some(Request::Signal { .. }));
        let flow = if is_behind && !conn.hung_up && is_signal {
            Some(Flow::AwaitsPushes)
        } else if is_store_behind
            && (request.is_some_and(|it| takes_room(engine, it)) || is_recorded(&asked.what))
        {
            Some(Flow::AwaitsStore)
        } else {
            puts_off.flow(asked, engine, memory.unread_max, || !conn.outbox.is_empty())
        };
        let Some(flow) = flow else {
            return false;
        };
        conn.line_started = now;
        conn.flow = flow;
        if let Some(codec) = conn.codec.as_http() {
            codec.part = Part::Nothing; // it is there in full
        }
        if flow == Flow::AwaitsStore {
            let client = |engine: &mut Engine, id, secret| {
                let may_speak = engine.may_speak_for(OfClient { id, secret });
                may_speak.then_some((Kept::Client, id))
            };
            let kept = match asked.what {
                Ok(Ask::Engine { request, by }) => by
                    .filter(|by| engine.proves(by.owner, &request))
                    .map(|by| (Kept::Owner, by.owner)),
                Ok(Ask::Range { of, .. }) => client(engine, of.id, of.secret),
                Ok(Ask::Register(attach)) => client(engine, attach.id, attach.secret),
                _ => None,
            };
            self.note_stalled_for(now, id, kept);
        }
        true
    }

    /// Serves one request; returns false if it is to be served again later, because it is not decided.
    fn serve_asked(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) -> bool {
        self.keep_context(now, id, &asked.context);
        match self.check_access(now, id, asked) {
            Err(Refused::WrongSecret) => self.turn_away(now, id),
            Err(Refused::Problem(problem)) => self.say_problem(id, &problem),
            Ok(()) => match asked.what {
                Err(problem) => self.say_problem(id, &problem),
                Ok(ask) => {
                    if let Some(shard) = self.store.shard()
                        && let Some(other) = asked.home().and_then(|key| shard.other_with(key))
                    {
                        let redirect = self.store.leader_of(other);
                        self.send_away(id, &redirect, asked.target);
                    } else if let Some(redirect) = self.store.redirect()
                        && is_decided_by_leader(&ask)
                    {
                        self.send_away(id, &redirect, asked.target);
                    } else {
                        return self.serve_ask(now, id, ask, asked.if_none_match);
                    }
                }
            },
        }
        self.charge_request(id, 0);
        true
    }

    /// Another server decides: says where it is, or that nobody knows.
    #[cold]
    fn send_away(&mut self, id: ConnId, redirect: &Redirect, target: [&[u8]; 2]) {
        let Some(server) = &redirect.http else {
            let problem = redirect.line.as_deref();
            let problem = problem.map_or(NO_LEADER, leader_without_http);
            return self.say_problem(id, &problem);
        };
        let line = self.say_document(id, |out, context| {
            http::answer::elsewhere(out, context, server, target);
        });
        self.note_said(id, 307, None, line);
    }

    /// Remembers of the request what its answer has to know.
    fn keep_context(&mut self, now: Nanos, id: ConnId, context: &Context<'_>) {
        let made = if context.request_id.is_empty() {
            self.http.make_id(self.settings.epoch)
        } else {
            [0; 2]
        };
        let context = Context {
            keep_alive: context.keep_alive && !self.draining,
            ..*context
        };
        let conn = &mut self.conns[id.slot as usize];
        conn.line_started = now;
        if let Some(codec) = conn.codec.as_http() {
            codec.part = Part::Nothing;
            // A subscription that was put off may be refused when its turn comes.
            codec.speech = Speech::Answers;
            codec.asked_at = now;
            codec.is_client_secret = false;
            let before = codec.memo.heap_bytes();
            codec.memo.keep(&context, made);
            self.http.memo_bytes += codec.memo.heap_bytes() - before;
        }
    }

    fn serve_ask(&mut self, now: Nanos, id: ConnId, ask: Ask<'_>, has_file: Option<&[u8]>) -> bool {
        match ask {
            // What comes back is recorded again, and there is no room for that.
            Ask::Engine { request, .. }
                if request.may_come_back()
                    && self.held_back.is_full()
                    && self.store.is_behind() =>
            {
                self.engine.note_refused(Refusal::Storage);
                self.say_reply(now, id, &Reply::Refused(Refusal::Storage));
            }
            Ask::Engine { request, by } => {
                let takes_a_walk = ask.takes_a_walk();
                let Some(by) = by else {
                    return self.put(now, id, Input::Request(id, request), takes_a_walk);
                };
                let request_key = mem::take(&mut self.http.request_key);
                let by = By {
                    owner: by.owner,
                    request: &request_key,
                };
                let input = Input::RequestBy(id, by, request);
                let is_decided = self.put(now, id, input, takes_a_walk);
                self.http.request_key = request_key;
                return is_decided;
            }
            Ask::Subscribe(request) => {
                if let Some(codec) = self.conns[id.slot as usize].codec.as_http() {
                    codec.speech = Speech::Subscribes;
                }
                return self.put(now, id, Input::Request(id, request), false);
            }
            Ask::Break { key, fence } => {
                self.audit_break(now, id, key, Some(fence));
                return self.put(now, id, Input::Break(id, key, fence), false);
            }
            Ask::Range { of, request } => {
                return self.put_for(now, id, of, Input::Range(id, Some(of), request));
            }
            Ask::Register(attach) => {
                let Attach {
                    id: client, secret, ..
                } = attach;
                let of = OfClient { id: client, secret };
                return self.put_for(now, id, of, Input::Register(id, attach));
            }
            Ask::Detach(of) => {
                return self.put_for(now, id, of, Input::Detach(id, of.id, of.secret));
            }
            Ask::EndReclaim(of) => {
                let input = Input::ReclaimDone(id, of.id, Some(of.secret));
                return self.put_for(now, id, of, input);
            }
            Ask::BreakRanges { resource, span } => {
                return self.break_ranges(now, id, resource, span);
            }
            Ask::BreakRangesOf { client } => return self.break_ranges_of(now, id, client),
            Ask::Grace { ends } => return self.look_at_grace(now, id, ends),
            Ask::Lease { key } | Ask::Holders { key } if self.is_other_kind(now, id, key) => {}
            Ask::Lease { key } => self.show_lease(now, id, key),
            _ => self.show(now, id, &ask, has_file),
        }
        self.charge_request(id, 0);
        true
    }

    /// Puts something before the engine that is asked for a client. A wrong secret is told no sooner than
    /// a wrong token.
    fn put_for(&mut self, now: Nanos, id: ConnId, of: OfClient<'_>, input: Input<'_>) -> bool {
        if self.engine.is_wrong_secret(of.id, of.secret) {
            if let Some(codec) = self.conns[id.slot as usize].codec.as_http() {
                codec.is_client_secret = true;
            }
            return self.refuse_secret(now, id);
        }
        self.put(now, id, input, false)
    }

    /// Puts something before the engine; returns false if it was not decided.
    #[inline(never)]
    pub(in crate::server) fn put(
        &mut self,
        now: Nanos,
        id: ConnId,
        input: Input<'_>,
        takes_a_walk: bool,
    ) -> bool {
        self.ask(now, id, takes_a_walk, |engine, effects| {
            engine.apply(now, input, effects);
        })
    }

    /// Ends a connection whose input can no longer be followed, with a last answer.
    pub(in crate::server) fn end_with(&mut self, now: Nanos, id: ConnId, problem: &Problem<'_>) {
        let Self { conns, pool, .. } = self;
        let conn = &mut conns[id.slot as usize];
        http::answer::fault(conn.outbox.buf(pool), problem);
        self.http.figures.note_answer(problem.status);
        log::debug!(
            "connection {}: {} ({})",
            id.serial,
            problem.text,
            problem.status
        );
        self.owe(id, Owed::Answer);
        self.leave(now, id, Closing::HalfClose, problem.text);
    }
}

/// Whether only a leader can answer it. What is about the server itself is told by every one.
fn is_decided_by_leader(ask: &Ask<'_>) -> bool {
    !matches!(
        ask,
        Ask::Live
            | Ask::Ready
            | Ask::OpenApi
            | Ask::Dashboard
            | Ask::Asset { .. }
            | Ask::Metrics
            | Ask::Stats
            | Ask::StatsStream
    )
}

/// Whether it asks for a change about clients or byte ranges that takes room on disk.
fn is_recorded(what: &Result<Ask<'_>, Problem<'_>>) -> bool {
    match what {
        Ok(Ask::Register(_)) => true,
        Ok(Ask::Range { request, .. }) => matches!(request.ask, RangeAsk::Lock { .. }),
        _ => false,
    }
}
