//! Answers about byte ranges and attached clients: each must be possible, given what the server showed
//! and what everybody asked while the request was under way.
//!
//! Where nothing else happened, `range_model` says what the one right answer is, and this holds the line
//! against it. Otherwise a refusal needs a reason that may have been there, and a success must have left
//! its trace.

use std::collections::BTreeSet;

use super::answers::{AnswerCheck, AnswerKind};
use super::known_ranges::Doing;
use super::range_window::{Window, ends, expect};
use super::reports::{About, Report};
use super::seen_ranges::{RangeOwner, SeenRanges, Who};
use crate::clients::connection::{Connection, Moment, OpenRequest};
use crate::clients::range_requests::{Bytes, RangeAsked};
use crate::json::Json;
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Sharing;
use latchd::wire::client::Told;

impl AnswerCheck<'_> {
    pub(super) fn check_range_answer(
        &mut self,
        conn: &Connection,
        request: &OpenRequest,
        asked: RangeAsked,
        (arrived, told): (Moment, Told<'_>),
        text: &str,
    ) -> Result<AnswerKind, String> {
        let doing = self.known_ranges.doing(request.number);
        let Some(doing) = doing.map(|it| it.clone()) else {
            return Err("an answer to what nobody asked".to_owned());
        };
        if let Some(expected) = &doing.expected
            && !is_said(expected, text)
        {
            return Err(format!("it can only be {expected:?}"));
        }
        let window = Window {
            plan: self.plan,
            known: self.known_ranges,
            since: arrived.turn,
            number: request.number,
            conn: self.conn_number,
            has_left: conn.ended || conn.has_left() || conn.was_overdue || self.draining.is_some(),
            askers: self.known_ranges.askers(self.conn_number, arrived.turn),
        };
        let is_full = self.is_full_since(arrived);
        let is_draining = self.draining.is_some();
        let clock_read = self.span.clock_read;
        match asked {
            RangeAsked::Lock { bytes, mode, wait } => {
                let lock = (bytes, mode, wait);
                match (told, text) {
                    (Told::Done, _) => {
                        if doing.is_cancelled {
                            return Err("granted after it was cancelled".to_owned());
                        }
                        window.check_granted(bytes, mode)?;
                    }
                    (Told::TimedOut, _) => {
                        let is_over = clock_read >= arrived.at.after(wait);
                        window.check_timeout(lock, is_over)?;
                    }
                    (Told::InGrace(left), _) => {
                        window.check_in_grace(bytes, mode)?;
                        let ends = self.known_ranges.grace_ends_for_all();
                        if left.is_some_and(|it| is_beyond(arrived.at, it, ends)) {
                            return Err("it lasts longer than it may".to_owned());
                        }
                    }
                    (_, "error_draining") if is_draining => {}
                    (_, "error_storage") if is_full && window.is_client() => {}
                    (_, word) => window.check_lock_refused(lock, word)?,
                }
                if told == Told::Done {
                    self.relies_on(&doing, &arrived, bytes, mode);
                }
            }
            RangeAsked::Unlock(bytes) => match (told, text) {
                (_, "error_storage") if is_full && window.is_client() => {
                    window.check_unlock_splits(bytes)?;
                }
                _ => {
                    expect(told == Told::Done)?;
                    window.check_unlocked(bytes)?;
                    self.has_unlocked(&doing, &arrived, bytes);
                }
            },
            RangeAsked::Test(bytes, mode) => match told {
                Told::RangeFree => window.check_free(bytes, mode)?,
                Told::RangeHeld {
                    mode: held,
                    range,
                    client,
                    owner,
                } => {
                    let by = (held, range, client, owner);
                    window.check_held(bytes, mode, by)?;
                }
                _ => return expect(false).map(|()| AnswerKind::Other),
            },
            RangeAsked::Cancel(bytes, mode) => {
                let askers = window.askers;
                self.check_cancel(&askers, bytes, mode, told)?;
            }
            RangeAsked::Reclaim(bytes, mode) => {
                match (told, text) {
                    (Told::Done, _) => window.check_reclaimed(bytes, mode)?,
                    (_, "error_reclaim") => window.check_not_reclaimed(bytes, mode)?,
                    (_, "error_no_grace") => {
                        let is_over = |it: &SeenRanges| it.grace.left == Millis::ZERO;
                        expect(window.seen().any(is_over))?;
                    }
                    // Of one piece it would have made two.
                    (_, "error_storage") => expect(is_full && window.is_client())?,
                    _ => return expect(false).map(|()| AnswerKind::Other),
                }
                if told == Told::Done {
                    self.relies_on(&doing, &arrived, bytes, mode);
                }
            }
            RangeAsked::ReclaimDone { id } => {
                let is_its_own = window.askers.contains(&Who::Client(id));
                let is_other = window.askers.iter().any(|it| *it != Who::Client(id));
                expect(match told {
                    Told::Done => is_its_own,
                    Told::Refused(b"error") => is_other || window.client_may_be(id, false),
                    _ => false,
                })?;
                if told == Told::Done {
                    window.check_nothing_pending(id)?;
                }
            }
            RangeAsked::List { resource } => {
                let Told::Json(json) = told else {
                    return expect(false).map(|()| AnswerKind::Other);
                };
                window.check_list(resource, json, conn.told_since().is_some())?;
            }
            RangeAsked::Waits => {
                let Told::Json(json) = told else {
                    return expect(false).map(|()| AnswerKind::Other);
                };
                let text = str::from_utf8(json).map_err(|_| "not text".to_owned())?;
                let json = Json::read(text).ok_or("not JSON")?;
                window.check_edges(&json)?;
                if !conn.is_behind() {
                    let about = About::Waits;
                    self.reports.push(Report { about, json });
                }
            }
            RangeAsked::Grace { .. } => {
                let Told::Grace(state) = told else {
                    return expect(false).map(|()| AnswerKind::Other);
                };
                window.check_grace_told(state)?;
            }
            RangeAsked::Break { .. } => expect(matches!(told, Told::Number(0..)))?,
            RangeAsked::NoBytes => expect(text == "error_range")?,
            RangeAsked::Attach { id, ttl, secret } => {
                match (told, text) {
                    (
                        Told::Attached {
                            epoch,
                            is_new,
                            reclaim,
                        },
                        _,
                    ) => {
                        expect(epoch == self.epoch)?;
                        window.check_attached(id, secret, is_new)?;
                        let ends = self.known_ranges.kept_until(Who::Client(id));
                        if let Some(left) = reclaim {
                            let has_pending = window.seen().any(|it| it.has_pending(id));
                            expect(has_pending && !is_beyond(arrived.at, left, ends))?;
                        }
                    }
                    (_, "error_auth") => window.check_wrong_secret(id, secret)?,
                    (_, "error") => {
                        let other = |it: &Who| matches!(it, Who::Client(of) if *of != id);
                        expect(window.askers.iter().any(other))?;
                    }
                    (_, "error_limit") => window.check_clients_full(id)?,
                    (_, "error_draining") => expect(is_draining)?,
                    (_, "error_storage") => expect(is_full && ttl > Millis::ZERO)?,
                    _ => return expect(false).map(|()| AnswerKind::Other),
                }
                if matches!(told, Told::Attached { .. }) {
                    self.known_ranges.over(request.number, self.turn);
                    self.known_ranges.attached(id, ttl, arrived.turn);
                }
            }
            RangeAsked::Detach { id, secret } => match (told, text) {
                (Told::Done, _) => window.check_detached(id)?,
                (_, "error") => expect(window.client_may_be(id, false))?,
                (_, "error_auth") => window.check_wrong_secret(id, secret)?,
                _ => return expect(false).map(|()| AnswerKind::Other),
            },
        }
        self.known_ranges.over(request.number, self.turn);
        Ok(match (asked, told, text) {
            (RangeAsked::Lock { .. }, Told::Done, _) => {
                if let Some(doing) = self.known_ranges.doing(request.number) {
                    doing.is_granted = true;
                }
                AnswerKind::RangeGranted
            }
            (RangeAsked::Lock { .. }, Told::TimedOut, _) => AnswerKind::TimedOut,
            (RangeAsked::Reclaim(..), Told::Done, _) => AnswerKind::RangeReclaimed,
            (RangeAsked::Reclaim(..), ..) => AnswerKind::RangeNotReclaimed,
            (_, Told::InGrace(_), _) => AnswerKind::InGrace,
            (_, Told::Cancelled, _) => AnswerKind::Cancelled,
            (_, Told::Attached { is_new: false, .. }, _) => AnswerKind::Resumed,
            (_, _, "error_deadlock") => AnswerKind::Deadlock,
            (_, _, "error_limit") => AnswerKind::RangeLimit,
            (_, _, "error_storage") => AnswerKind::NoDisk,
            _ => AnswerKind::Other,
        })
    }

    /// The owner has this from now on, unless something is under way that may end it.
    fn relies_on(&mut self, doing: &Doing, arrived: &Moment, bytes: Bytes, mode: Sharing) {
        let askers = self.known_ranges.askers(doing.conn, arrived.turn);
        let (Some(&who), 1) = (askers.first(), askers.len()) else {
            return;
        };
        let owner = RangeOwner {
            who,
            name: bytes.name,
        };
        let may_end = |it: &Doing| {
            it.number != doing.number && !it.asked.only_looks() && ends(it.asked, owner, bytes)
        };
        let last = self.known_ranges.last();
        let is_there = last.is_some_and(|it| {
            let is_it = |to, pending: bool| to == mode && !pending;
            it.resources[bytes.resource].has_all(owner, bytes.cells, is_it)
        });
        if is_there && !self.known_ranges.is_any_under_way(arrived.turn, may_end) {
            self.known_ranges.may_rely(owner, bytes, mode);
        }
    }

    /// The owner does not have this any more, unless something is under way that locks it.
    fn has_unlocked(&mut self, doing: &Doing, arrived: &Moment, bytes: Bytes) {
        let askers = self.known_ranges.askers(doing.conn, arrived.turn);
        let (Some(&who), 1) = (askers.first(), askers.len()) else {
            return;
        };
        let locks = |it: &Doing| match it.asked {
            RangeAsked::Lock { bytes: of, .. } | RangeAsked::Reclaim(of, _) => {
                (of.resource, of.name) == (bytes.resource, bytes.name)
            }
            _ => false,
        };
        if !self.known_ranges.is_any_under_way(arrived.turn, locks) {
            let name = bytes.name;
            self.known_ranges
                .is_unlocked(RangeOwner { who, name }, bytes);
        }
    }

    fn check_cancel(
        &mut self,
        askers: &BTreeSet<Who>,
        bytes: Bytes,
        mode: Sharing,
        told: Told<'_>,
    ) -> Result<(), String> {
        let known = &mut *self.known_ranges;
        let since = known.oldest();
        let is_it = |it: &Doing| {
            matches!(it.asked, RangeAsked::Lock { bytes: of, mode: to, wait }
                if of == bytes && to == mode && wait > Millis::ZERO)
        };
        let meant: Vec<u64> = known
            .doings_since(since)
            .filter(|it| is_it(it) && !known.askers(it.conn, since).is_disjoint(askers))
            .map(|it| it.number)
            .collect();
        let holds = |it: &SeenRanges| {
            askers.iter().any(|&who| {
                let owner = RangeOwner {
                    who,
                    name: bytes.name,
                };
                it.resources[bytes.resource].has_all(owner, bytes.cells, |_, pending| !pending)
            })
        };
        match told {
            Told::Cancelled => {
                let [only] = meant[..] else {
                    return match meant.is_empty() {
                        true => Err("cancelled what nobody waited for".to_owned()),
                        false => Ok(()),
                    };
                };
                let doing = known.doing(only).expect("it was just found");
                doing.is_cancelled = true;
                match doing.is_granted {
                    true => Err("cancelled what was granted".to_owned()),
                    false => Ok(()),
                }
            }
            Told::AlreadyGranted => {
                let is_held = known.since(since).any(holds);
                let may_hold = |it: &Doing| {
                    matches!(it.asked, RangeAsked::Lock { bytes: of, .. } | RangeAsked::Reclaim(of, _)
                        if (of.resource, of.name) == (bytes.resource, bytes.name))
                };
                expect(is_held || known.doings_since(since).any(may_hold))
            }
            Told::Nothing => Ok(()),
            _ => expect(false),
        }
    }
}

/// Whether the line says this; a span may stand behind it.
fn is_said(expected: &str, text: &str) -> bool {
    match expected {
        "error_grace" => text.starts_with(expected),
        _ => text == expected,
    }
}

/// Whether a time that was told to a request which came then reaches beyond this. It is told in whole
/// milliseconds, and never as none.
fn is_beyond(arrived: Nanos, left: Millis, ends: Nanos) -> bool {
    arrived.after(Millis(left.0.saturating_sub(1))) > ends && left > Millis(1)
}
