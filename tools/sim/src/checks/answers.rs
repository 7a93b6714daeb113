//! Compares every line that a client reads with the request it answers.
//!
//! Answers come in the order of requests, so a line belongs to the oldest open one; its shape, its
//! lease, its fence and its timing must fit that request and no other. What it says about grants
//! goes to `grants`. Never knows the server's state, only the rules it was started with.

use super::entries::{EntryAnswer, KnownEntries};
use super::grants::{KnownGrants, Outlives};
use super::known_ranges::KnownRanges;
use super::limits::Room;
use super::lock_table::SeenLocks;
use super::pushes::KnownPushes;
use super::reports::{About, Report};
use crate::clients::connection::{Connection, Moment, OpenRequest, Sending, Ticket};
use crate::clients::request::{EntryRequest, RequestKind};
use crate::json::Json;
use crate::plan::Plan;
use crate::turn::TurnSpan;
use latchd::base::{Fence, Millis, Nanos};
use latchd::engine::Tally;
use latchd::engine::types::{Loss, Mode};
use latchd::wire::client::{Grant, Line, News, Told};

/// How long the server remembers at least that the lease behind a ticket ran out.
const EXPIRED_TICKET_KEPT_MIN: Millis = Millis::from_secs(60);

/// Everything that a line is compared with.
pub(crate) struct AnswerCheck<'w> {
    pub(crate) plan: &'w Plan,
    pub(crate) known_grants: &'w mut KnownGrants,
    /// The lock table before this turn.
    pub(crate) before: &'w SeenLocks,
    /// How many requests about each key the server may have seen in this turn.
    pub(crate) requests_per_key: &'w [u32],
    /// What can have been taken of each limit in this turn, if there are any.
    pub(crate) room: Option<&'w Room>,
    /// The request that was the oldest of its connection when the turn began.
    pub(crate) first: Option<u64>,
    pub(crate) known_entries: &'w mut KnownEntries,
    pub(crate) known_pushes: &'w mut KnownPushes,
    pub(crate) known_ranges: &'w mut KnownRanges,
    /// The documents that were read in this turn, to be compared when it is over.
    pub(crate) reports: &'w mut Vec<Report>,
    /// The connection's number.
    pub(crate) conn_number: u32,
    pub(crate) now: Nanos,
    /// The turn that is just over, and its time.
    pub(crate) turn: u64,
    pub(crate) span: TurnSpan,
    /// The epoch of this life of the server.
    pub(crate) epoch: u64,
    /// Something was restored at its start.
    pub(crate) has_restored: bool,
    /// The last turn in which the server took its disk for full.
    pub(crate) full_in_turn: Option<u64>,
    /// The turn in which the server got a shutdown signal.
    pub(crate) draining: Option<u64>,
    /// What the engine has counted by now.
    pub(crate) tally: Tally,
}

/// How a line ended a request, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Granted,
    /// To an owner that has a name; the same once more.
    NamedGrant,
    GrantedAgain,
    /// One page of locks; the last one of a walk.
    Page,
    Walk,
    /// Only the head of an answer.
    Head,
    /// Figures are told from now on.
    Figures,
    TimedOut,
    /// About a named entry.
    Entry,
    Swapped,
    Met,
    /// What `stats` or `who` says.
    Report,
    /// Something that was held before a restart is held on.
    Reclaimed,
    /// Bytes were locked; were had back after a restart, or not; are kept for others.
    RangeGranted,
    RangeReclaimed,
    RangeNotReclaimed,
    InGrace,
    /// A wait for bytes was cancelled, would have been for itself, or found no room.
    Cancelled,
    Deadlock,
    RangeLimit,
    /// A client came back.
    Resumed,
    /// Refused because a limit is reached, or memory, or the disk is full.
    NoRoom,
    NoMemory,
    NoDisk,
    Other,
}

impl AnswerCheck<'_> {
    pub(crate) fn check_line(
        &mut self,
        conn: &mut Connection,
        line: &[u8],
    ) -> Result<AnswerKind, String> {
        if conn.is_newcomer {
            return newcomer_is_told(conn, line).map(|()| AnswerKind::Other);
        }
        if line == b"late" && conn.end_told {
            return Ok(AnswerKind::Other);
        }
        match Line::read(line).ok_or("a push that is malformed")? {
            Line::Push(News::Lost { fence, why, .. }) => {
                return self
                    .lost(conn, fence.0, why == Loss::Broken)
                    .map(|()| AnswerKind::Other);
            }
            Line::Push(News::RangeLost {
                resource,
                range,
                owner,
                why,
            }) => {
                let lost = self.range_lost(conn, resource, (range, owner), why);
                return lost.map(|()| AnswerKind::Other);
            }
            Line::Push(news) => {
                let heard = self.known_pushes.take_push((self.conn_number, conn), news);
                return heard.map(|()| AnswerKind::Other);
            }
            Line::Answer(_) => {}
        }
        if self.is_read_timeout(conn, line) {
            conn.end_told = true;
            return Ok(AnswerKind::Other);
        }
        if conn.end_told {
            return Err("a line after the read timeout's error".to_owned());
        }
        if conn.was_overdue && line == b"error" {
            // The read timeout struck while it did not read, or this answers one of its requests.
            if let Some(request) = conn.open_requests.pop_front()
                && let RequestKind::Renew {
                    target: Some(fence),
                    ..
                } = request.kind
            {
                self.known_grants
                    .renewal_lost(self.now, fence, request.number);
            }
            return Ok(AnswerKind::Other);
        }
        let Some(request) = conn.open_requests.pop_front() else {
            return Err("an answer without a request".to_owned());
        };
        let here = Moment {
            at: self.now,
            turn: self.turn,
        };
        let arrived = match (request.arrived, &request.kind) {
            (Some(arrived), _) => arrived,
            (None, RequestKind::Fatal(_)) if conn.fatal_arrived => here,
            _ => return Err(format!("an answer to {:?} before it arrived", request.kind)),
        };
        let text = str::from_utf8(line).map_err(|_| "an answer that is not text".to_owned())?;
        match request.kind {
            RequestKind::Look(look) => {
                conn.answered(self.span.began, &request);
                return self.check_look(conn, &request, arrived, look, text);
            }
            RequestKind::Break { fence, .. } => return self.check_break(fence, arrived, text),
            _ => {}
        }
        // What is no request is refused.
        let told = match request.verb {
            Some(verb) => Told::read(verb, line),
            None => Some(Told::Refused(line)),
        };
        let Some(told) = told else {
            return Err(format!("{text:?} does not answer {:?}", request.kind));
        };
        conn.answered(self.span.began, &request);
        conn.answered_by = self.turn;
        // What is told again was done before.
        let is_old = matches!(told, Told::Granted(it) if it.token.fence.0 <= self.before.fence_max()
            || self.known_grants.get(it.token.fence.0).is_some());
        if request.http.is_none() || !is_old {
            self.known_pushes
                .note_done(self.plan, (self.conn_number, conn), &request, told);
        }
        let answer_kind = match told {
            _ if request.kind.concerns_no_lock() => {
                self.check_other(conn, &request, arrived, told, text)
            }
            Told::Nothing | Told::Conflict | Told::TimedOut | Told::Refused(_) => {
                self.check_refusal(conn, &request, arrived, text)
            }
            _ => self.check_success(conn, &request, arrived, told),
        };
        answer_kind.map_err(|why| format!("{why} (answer {text:?} to {:?})", request.kind))
    }

    /// Whether this is the `error` of the read timeout, which answers an unfinished request. A
    /// client that asked for nothing is told nothing: it would take it for its next answer.
    fn is_read_timeout(&self, conn: &Connection, line: &[u8]) -> bool {
        if self.plan.settings.access.asks_for_token() && !conn.is_open {
            return false; // it is closed without a word
        }
        let owns = conn.is_subscribed()
            || self.known_ranges.owns_something(self.conn_number)
            || self.known_grants.owns_something(self.conn_number, self.now);
        let is_answer = conn
            .open_requests
            .front()
            .is_some_and(|request| match request.kind {
                // The server need not see the end of a line to know that it is too long.
                RequestKind::Fatal(last) => last.is_some() && conn.fatal_arrived,
                RequestKind::Release { .. } | RequestKind::Renew { .. } | RequestKind::Nonsense => {
                    request.arrived.is_some()
                }
                RequestKind::Entry(EntryRequest::Add { key, .. })
                    if key == self.plan.wild_counter() =>
                {
                    request.arrived.is_some()
                }
                RequestKind::Subscribe(ref subscription)
                    if !conn.has_room_for(subscription, self.plan) =>
                {
                    request.arrived.is_some()
                }
                RequestKind::Range(_) => request.arrived.is_some(),
                // Nothing else is answered like this. If the client did not read, the read timeout
                // may have struck before the request arrived.
                _ => request.arrived.is_some() && conn.told_since().is_none(),
            });
        let has_asked = conn.is_mid_frame() || !conn.open_requests.is_empty();
        let is_overdue = conn.is_overdue(self.now, &self.plan.settings, owns);
        line == b"error" && has_asked && is_overdue && !is_answer
    }

    /// An answer about an entry, a subscription or a signal.
    fn check_other(
        &mut self,
        conn: &mut Connection,
        request: &OpenRequest,
        arrived: Moment,
        told: Told<'_>,
        text: &str,
    ) -> Result<AnswerKind, String> {
        conn.is_open = true;
        match &request.kind {
            &RequestKind::Range(asked) => {
                return self.check_range_answer(conn, request, asked, (arrived, told), text);
            }
            RequestKind::Entry(entry_request) => {
                let answer = EntryAnswer {
                    conn_number: self.conn_number,
                    request_number: request.number,
                    arrived,
                    now: Moment {
                        at: self.now,
                        turn: self.turn,
                    },
                    clock_read: self.span.clock_read,
                    draining: self.draining.is_some(),
                    lacks_room: self.lacks_room(conn, text, &request.kind),
                    may_be_full: self.is_full_since(arrived),
                    told,
                    text,
                };
                self.known_entries
                    .check_answer(self.plan, entry_request, &answer)?;
                return Ok(match entry_request {
                    _ if told_of_limit(text) != AnswerKind::Other => told_of_limit(text),
                    EntryRequest::Swap { .. } if told == Told::Done => AnswerKind::Swapped,
                    EntryRequest::Meet { .. } if told == Told::Done => AnswerKind::Met,
                    _ => AnswerKind::Entry,
                });
            }
            RequestKind::Subscribe(subscription) => {
                let told = (told, self.lacks_room(conn, text, &request.kind));
                let by = (self.conn_number, &mut *conn);
                self.known_pushes
                    .subscribed(self.plan, by, subscription, self.turn, told)?;
                return Ok(told_of_limit(text));
            }
            RequestKind::Unsubscribe(subscription) => {
                expect(told, Told::Done)?;
                conn.subscriptions.remove(subscription);
            }
            RequestKind::Signal { payload, .. } => {
                self.known_pushes.signal_answered(conn, payload, told)?
            }
            _ => unreachable!("of a lock"),
        }
        Ok(AnswerKind::Other)
    }

    /// A lock was granted, released or renewed, or something was told.
    fn check_success(
        &mut self,
        conn: &mut Connection,
        request: &OpenRequest,
        arrived: Moment,
        told: Told<'_>,
    ) -> Result<AnswerKind, String> {
        let since = conn.earliest(self.span.began, request);
        // A renewal that came in time counts, however long the disk keeps it waiting.
        let renewed_since = match self.plan.disk {
            Some(_) => since.min(arrived.at),
            None => since,
        };
        conn.is_open = true;
        match (&request.kind, told) {
            (
                &RequestKind::Acquire {
                    key, mode, lease, ..
                },
                Told::Granted(grant),
            ) => {
                if let Some(ask) = &request.http {
                    let what = (key, mode, lease);
                    return self.granted_by_name(request, ask, what, grant, (arrived, since));
                }
                let (fence, token) = check_grant(grant, lease, request.with_fence)?;
                let by = request.begun.map_or(self.turn, |it| it.turn);
                let ticket = Ticket {
                    mode,
                    lease,
                    fence_before: request.fence_before,
                    arrived: arrived.at,
                    joined: (arrived.turn, by),
                    held: None,
                    waited: false,
                };
                self.granted(conn, key, (fence, &token), &ticket, since, request.keeps)?;
                if mode == Mode::Lead {
                    conn.led.insert(self.plan.keys[key].0.clone());
                }
                Ok(AnswerKind::Granted)
            }
            (&RequestKind::Enqueue { key, mode, lease }, Told::Queued | Told::Acquired(_)) => {
                let mut ticket = Ticket {
                    mode,
                    lease,
                    fence_before: request.fence_before,
                    arrived: arrived.at,
                    joined: (arrived.turn, self.turn),
                    held: None,
                    waited: false,
                };
                let mut answer_kind = AnswerKind::Other;
                if let Told::Acquired(grant) = told {
                    let (fence, token) = check_grant(grant, lease, request.with_fence)?;
                    self.granted(conn, key, (fence, &token), &ticket, since, request.keeps)?;
                    ticket.held = Some(fence);
                    answer_kind = AnswerKind::Granted;
                    // A `w` that is already on its way starts the lease again.
                    for later in &conn.open_requests {
                        if matches!(later.kind, RequestKind::Wait { key: it, .. } if it == key) {
                            self.known_grants.renewal_sent(
                                fence,
                                later.number,
                                (self.conn_number, false),
                                since,
                                lease,
                                false,
                            );
                            self.known_grants.asked_again(fence, later.keeps);
                        }
                    }
                }
                conn.tickets.insert(key, ticket);
                Ok(answer_kind)
            }
            (RequestKind::Wait { key, .. }, Told::Granted(grant)) => {
                let key = *key;
                let Some(ticket) = conn.tickets.remove(&key) else {
                    return Err("waited for a ticket that was never taken".to_owned());
                };
                let (fence, token) = check_grant(grant, ticket.lease, request.with_fence)?;
                match self.known_grants.get(fence) {
                    Some(known) if ticket.held == Some(fence) && known.token == token => {
                        let span = (since, ticket.lease);
                        self.known_grants.renewed(
                            self.now,
                            fence,
                            request.number,
                            span,
                            arrived.turn,
                        )?;
                        self.known_grants.told_again(fence, request.keeps);
                    }
                    _ if ticket.held.is_some() => {
                        return Err("a wait for one grant was answered with another".to_owned());
                    }
                    _ => self.granted(conn, key, (fence, &token), &ticket, since, request.keeps)?,
                }
                Ok(AnswerKind::Granted)
            }
            (RequestKind::Release { target, .. }, Told::Done) => {
                let fence = target.ok_or("released with a token of nobody")?;
                if request.http.is_some() {
                    self.known_grants.check_in_time(fence, renewed_since)?;
                }
                self.known_grants.released(fence, arrived, self.turn)?;
                conn.tickets.retain(|_, ticket| ticket.held != Some(fence));
                Ok(AnswerKind::Other)
            }
            (
                &RequestKind::Renew {
                    target,
                    lease: asked,
                    reclaims: false,
                    ..
                },
                Told::Renewed {
                    lease,
                    fence: told_fence,
                },
            ) => {
                let fence = target.ok_or("renewed with a token of nobody")?;
                if request.http.is_some() {
                    let when = (arrived, renewed_since);
                    return self.renewed_by_name(request, (fence, asked, lease), when);
                }
                expect(lease, self.lease_now(lease, asked, arrived))?;
                expect(told_fence, request.with_fence.then_some(Fence(fence)))?;
                let span = (renewed_since, lease);
                self.known_grants
                    .renewed(self.now, fence, request.number, span, arrived.turn)?;
                Ok(AnswerKind::Other)
            }
            (
                &RequestKind::Renew {
                    target,
                    lease,
                    reclaims: true,
                    ..
                },
                Told::Granted(grant),
            ) => {
                let lease = self.lease_now(grant.lease, lease, arrived);
                let (fence, _) = check_grant(grant, lease, request.with_fence)?;
                expect(Some(fence), target)?;
                if !self.has_restored {
                    return Err("reclaimed where nothing was restored".to_owned());
                }
                let span = (renewed_since, lease);
                self.known_grants
                    .renewed(self.now, fence, request.number, span, arrived.turn)?;
                Ok(AnswerKind::Reclaimed)
            }
            (RequestKind::Position { .. }, Told::Number(0..)) => Ok(AnswerKind::Other),
            (&RequestKind::Report { key }, Told::Json(text)) => {
                let text = str::from_utf8(text).map_err(|_| "not text".to_owned())?;
                let json = Json::read(text).ok_or("not JSON")?;
                if !conn.is_behind() {
                    let about = key.map_or(About::Stats, About::Key);
                    self.reports.push(Report { about, json });
                }
                Ok(AnswerKind::Report)
            }
            (RequestKind::Hello, Told::Hello { epoch, .. }) => {
                expect(epoch, self.epoch)?;
                Ok(AnswerKind::Other)
            }
            (RequestKind::Ok, Told::Done) => Ok(AnswerKind::Other),
            _ => Err("a success that this request cannot have".to_owned()),
        }
    }

    fn granted(
        &mut self,
        conn: &Connection,
        key: usize,
        (fence, token): (u64, &str),
        ticket: &Ticket,
        since: Nanos,
        keeps: bool,
    ) -> Result<(), String> {
        if self.draining.is_some_and(|turn| ticket.joined.0 >= turn) {
            return Err("granted while draining".to_owned());
        }
        let left = conn.ended
            || conn.reset
            || conn.fatal_sent
            || conn.was_overdue
            || conn.sending != Sending::Open;
        self.known_grants.granted(
            self.now,
            fence,
            token,
            key,
            ticket.mode,
            self.conn_number,
            ticket.joined,
            (since, ticket.lease),
            ticket.fence_before,
            (left, Outlives::of(keeps)),
        )
    }

    /// The request was refused, too late, or malformed.
    fn check_refusal(
        &mut self,
        conn: &mut Connection,
        request: &OpenRequest,
        arrived: Moment,
        text: &str,
    ) -> Result<AnswerKind, String> {
        let id = request.http.as_ref().map_or("", |it| &it.id);
        if matches!(request.kind, RequestKind::Acquire { .. }) && text != "error_storage" {
            self.known_grants
                .check_ask_refused(id, arrived.at, self.now)?;
        }
        let allowed = match (text, &request.kind) {
            (_, RequestKind::Nonsense) => text == "error",
            (_, RequestKind::Fatal(last)) => *last == Some(text),
            ("timeout", RequestKind::Acquire { wait, .. } | RequestKind::Wait { wait, .. }) => {
                // Whoever asks again takes the place of the one that asked before.
                let is_repeated = self.known_grants.asks().is_repeated(id);
                if self.span.clock_read < arrived.at.after(*wait) && !is_repeated {
                    return Err("a wait ended before its time".to_owned());
                }
                true
            }
            (
                "error_max_locks" | "error_max_waiters" | "error_memory",
                RequestKind::Acquire { .. } | RequestKind::Enqueue { .. },
            )
            | ("error_memory", RequestKind::Hello) => self.lacks_room(conn, text, &request.kind),
            (
                "error_limit_mismatch" | "error_type_mismatch",
                RequestKind::Acquire { .. } | RequestKind::Enqueue { .. },
            ) => self.plan.mismatch_pct > 0,
            (
                "error_draining",
                RequestKind::Acquire { .. }
                | RequestKind::Enqueue { .. }
                | RequestKind::Wait { .. },
            ) => self.draining.is_some(),
            ("error_already_enqueued", RequestKind::Enqueue { key, .. }) => {
                conn.tickets.contains_key(key)
            }
            ("error_lease_expired", RequestKind::Wait { .. } | RequestKind::Renew { .. }) => true,
            ("error_not_enqueued", RequestKind::Wait { key, .. }) => {
                // In the queue and, as far as the client knows, without a grant: nothing ends that
                // but the client's end, which the server may have seen before it read this, or a
                // grant it did not hear of, whose lease ran out and was remembered for a while.
                conn.tickets.get(key).is_none_or(|ticket| {
                    let lapsed = ticket.arrived.after(ticket.lease);
                    ticket.held.is_some()
                        || conn.has_hung_up()
                        || lapsed.after(EXPIRED_TICKET_KEPT_MIN) <= self.now
                })
            }
            ("error_reclaim", RequestKind::Renew { reclaims, .. }) => {
                *reclaims && self.has_restored
            }
            ("error_no_grace", RequestKind::Renew { reclaims, .. }) => {
                // It says nothing about the token.
                if let RequestKind::Renew {
                    target: Some(fence),
                    ..
                } = request.kind
                {
                    self.known_grants.renewal_refused(fence, request.number);
                }
                return if *reclaims && !self.has_restored {
                    Ok(AnswerKind::Other)
                } else {
                    Err("something was restored, and it was told there was nothing".to_owned())
                };
            }
            ("error_deadlock", RequestKind::Acquire { .. } | RequestKind::Wait { .. }) => {
                self.may_be_deadlock(conn, &request.kind)
            }
            ("error_storage", RequestKind::Acquire { .. } | RequestKind::Enqueue { .. }) => {
                self.is_full_since(arrived)
            }
            ("error", RequestKind::Release { .. } | RequestKind::Renew { .. }) => true,
            ("nil", RequestKind::Position { key }) => {
                if self.known_grants.holds(self.conn_number, *key, self.now) {
                    return Err("holds the key, but was told it does not".to_owned());
                }
                true
            }
            _ => false,
        };
        if !allowed {
            return Err("a refusal that this request cannot have".to_owned());
        }
        self.check_alone(conn, request, text)?;
        match request.kind {
            // Refused for another reason than a ticket it already had, or before that was looked at:
            // it has none any more.
            RequestKind::Enqueue { key, .. }
                if !matches!(text, "error_already_enqueued" | "error_storage") =>
            {
                conn.tickets.remove(&key);
            }
            RequestKind::Wait { key, .. } => {
                if let Some(fence) = conn.tickets.remove(&key).and_then(|ticket| ticket.held) {
                    self.known_grants
                        .not_renewed(self.now, fence, request.number, self.turn)?;
                }
            }
            RequestKind::Release {
                target: Some(fence),
                ..
            } => self.known_grants.not_released(self.now, fence)?,
            RequestKind::Renew {
                target: Some(fence),
                ..
            } => self
                .known_grants
                .not_renewed(self.now, fence, request.number, self.turn)?,
            _ => {}
        }
        Ok(if text == "timeout" {
            AnswerKind::TimedOut
        } else {
            told_of_limit(text)
        })
    }

    /// Whether there can have been no room for this, if that is what it was told. A client that
    /// does not read at once may have been told long ago.
    fn lacks_room(&self, conn: &Connection, text: &str, kind: &RequestKind) -> bool {
        self.room.is_some_and(|room| match conn.told_since() {
            Some(_) => room.has_limit(text),
            None => room.may_refuse(text, kind),
        })
    }

    /// The lease that a renewal gives: what was asked for, or less if the disk is full.
    pub(super) fn lease_now(&self, told: Millis, asked: Millis, arrived: Moment) -> Millis {
        if self.is_full_since(arrived) {
            told.min(asked)
        } else {
            asked
        }
    }

    /// Whether the server took its disk for full in a turn in which it may have seen this request.
    pub(super) fn is_full_since(&self, arrived: Moment) -> bool {
        self.full_in_turn.is_some_and(|turn| turn > arrived.turn)
    }
}

/// Whether this says that a limit is reached, for the statistics.
fn told_of_limit(text: &str) -> AnswerKind {
    match text {
        "error_memory" => AnswerKind::NoMemory,
        "error_storage" => AnswerKind::NoDisk,
        "error_max_locks" | "error_max_waiters" | "error_max_keys" | "error_list_full" => {
            AnswerKind::NoRoom
        }
        _ => AnswerKind::Other,
    }
}

/// A client that came when there was no memory for it is told so, once, and nothing else.
fn newcomer_is_told(conn: &mut Connection, line: &[u8]) -> Result<(), String> {
    if line != b"error_memory" || std::mem::replace(&mut conn.end_told, true) {
        let text = line.escape_ascii();
        return Err(format!("a newcomer that was refused was told {text}"));
    }
    Ok(())
}

/// Fence and token of a grant, with everything else it says checked.
fn check_grant(grant: Grant, lease: Millis, with_fence: bool) -> Result<(u64, String), String> {
    let Grant { token, .. } = grant;
    expect(grant.lease, lease)?;
    expect(grant.fence, with_fence.then_some(token.fence))?;
    let hex = token.hex().iter().copied().map(char::from).collect();
    Ok((token.fence.0, hex))
}

fn expect<T: PartialEq + std::fmt::Debug>(told: T, wanted: T) -> Result<(), String> {
    if told == wanted {
        Ok(())
    } else {
        Err(format!("{told:?} where {wanted:?} belongs"))
    }
}
