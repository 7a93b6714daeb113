//! What anybody may look at over HTTP: pages of locks, single ones, health and figures.
//!
//! Whatever a client certainly held for the whole turn is shown, and nothing that is certainly over.
//! Whoever walks over all pages meets a lock that was held all the while, once and not twice.

use super::answers::{AnswerCheck, AnswerKind};
use crate::clients::connection::{Connection, Moment, OpenRequest, Walk};
use crate::clients::request::Look;
use crate::json::Json;
use latchd::engine::types::Mode;

/// So many holders of a lock are shown on a page.
const LISTED_MAX: usize = 8;

impl AnswerCheck<'_> {
    /// `text` is the status and the body.
    pub(crate) fn check_look(
        &mut self,
        conn: &mut Connection,
        request: &OpenRequest,
        arrived: Moment,
        look: Look,
        text: &str,
    ) -> Result<AnswerKind, String> {
        if look == Look::Figures && text == "ok" {
            return Ok(AnswerKind::Figures);
        }
        let (status, body) = text.split_once(' ').ok_or("no body")?;
        let is_draining = self.draining.is_some();
        match (status, look) {
            ("200", Look::Live) => return Ok(AnswerKind::Other),
            ("503", Look::Ready) if is_draining => return Ok(AnswerKind::Other),
            // It may have been asked before the signal came.
            ("200", Look::Ready) if self.draining.is_none_or(|turn| turn > arrived.turn) => {
                return Ok(AnswerKind::Other);
            }
            ("200", Look::Ready) => return Err("ready, although it stops".to_owned()),
            ("200", Look::Head) if body.is_empty() => return Ok(AnswerKind::Head),
            ("200", Look::Metrics) => return self.check_metrics(conn, body),
            ("200", Look::Head | Look::Figures) => return Err(format!("{look:?} has a body")),
            ("409", Look::Lease { key }) if self.may_be(key, false) => {
                return Ok(AnswerKind::Other);
            }
            ("200", _) => {}
            _ => return Err(format!("{look:?} was answered {status}")),
        }
        let json = Json::read(body.trim_end()).ok_or("not JSON")?;
        // Somebody who does not read is told of a turn that is long over.
        let is_now = !conn.is_behind() && conn.told_since().is_none();
        match look {
            Look::Page { after } => self.check_page(conn, request, after, &json, is_now),
            Look::Lease { key } if is_now => self.check_lease(key, &json),
            Look::Who { key } if is_now => self.check_shown(key, &json),
            Look::Stats => json.object("totals").map(|_| AnswerKind::Other),
            _ => Ok(AnswerKind::Other),
        }
    }

    fn check_page(
        &mut self,
        conn: &mut Connection,
        request: &OpenRequest,
        after: Option<u64>,
        json: &Json,
        is_now: bool,
    ) -> Result<AnswerKind, String> {
        let since = conn.earliest(self.span.began, request);
        // Pages may be asked for before the last one has come: those belong to no walk.
        let mut walk = match (after, conn.walk.take()) {
            (None, _) => Some(Walk {
                since,
                ..Walk::default()
            }),
            (Some(after), Some(walk)) if walk.next == after => Some(walk),
            (Some(_), other) => {
                conn.walk = other;
                None
            }
        };
        for shown in json.list("locks")? {
            let name = shown.text("name")?;
            if let Some(walk) = &mut walk {
                *walk.shown.entry(name.to_owned()).or_default() += 1;
            }
            if let Some(key) = self.key_shown(name).filter(|_| is_now) {
                self.check_shown(key, shown)?;
            }
        }
        let Some(mut walk) = walk else {
            return Ok(AnswerKind::Page);
        };
        if let Ok(next) = json.text("next") {
            walk.next = next.parse().map_err(|_| format!("{next:?} is no cursor"))?;
            conn.walk = Some(walk);
            return Ok(AnswerKind::Page);
        }
        self.check_walk(&walk)?;
        Ok(AnswerKind::Walk)
    }

    /// What was held from the first page to the last was there, once.
    fn check_walk(&self, walk: &Walk) -> Result<(), String> {
        for (key, (name, _)) in self.plan.keys.iter().enumerate() {
            let name = String::from_utf8_lossy(name);
            let is_alone = self.key_shown(&name) == Some(key);
            let is_steady = self.known_grants.certain_from(key, walk.since, self.now);
            let times = walk.shown.get(&*name).copied().unwrap_or(0);
            if is_alone && is_steady && times != 1 {
                return Err(format!(
                    "k{key} was held all the while, and {times} times in a walk over all pages"
                ));
            }
        }
        Ok(())
    }

    /// A lock as it is shown: who certainly holds it is there, and nobody who certainly does not.
    fn check_shown(&self, key: usize, shown: &Json) -> Result<AnswerKind, String> {
        let holders = shown.list("holders")?;
        let count = shown.number("holder_count")? as usize;
        let mut fences = Vec::new();
        for holder in holders {
            let fence = holder.number("fencing_token")?;
            if self.known_grants.is_over_before(fence, self.turn) {
                return Err(format!("{fence} is over, and is shown for k{key}"));
            }
            fences.push(fence);
        }
        let is_whole = count <= LISTED_MAX && fences.len() == count;
        let mut certain = self.known_grants.certain_since(key, self.span);
        match certain.find(|it| is_whole && !fences.contains(it)) {
            Some(fence) => Err(format!(
                "a client holds {fence}, and it is not shown: {shown:?}"
            )),
            None => Ok(AnswerKind::Other),
        }
    }

    /// Whether the key may be a lock, or may be of another kind. With mismatched requests it may
    /// be either.
    fn may_be(&self, key: usize, a_lock: bool) -> bool {
        let is_lock = matches!(self.plan.keys[key].1, Mode::Slot { limit: 1 } | Mode::Lead);
        is_lock == a_lock || self.plan.mismatch_pct > 0
    }

    fn check_lease(&self, key: usize, json: &Json) -> Result<AnswerKind, String> {
        let certain: Vec<u64> = self.known_grants.certain_since(key, self.span).collect();
        if !json.flag("held")? {
            return match certain.first() {
                Some(fence) => Err(format!("a client holds {fence}, and nobody does")),
                None => Ok(AnswerKind::Other),
            };
        }
        if !self.may_be(key, true) {
            return Err("a key of another kind is shown as a lock".to_owned());
        }
        let fence = json.number("fencing_token")?;
        if self.known_grants.is_over_before(fence, self.turn) {
            return Err(format!("{fence} is over, and is said to hold"));
        }
        if json
            .text("owner_id")
            .is_ok_and(|it| it.starts_with("owner-"))
        {
            let version = json.number("version")?;
            if version == 0 {
                return Err(format!("{fence} has no version"));
            }
        }
        Ok(AnswerKind::Other)
    }

    /// The figures say how many are held, exactly.
    fn check_metrics(&self, conn: &Connection, body: &str) -> Result<AnswerKind, String> {
        let mut words = body.split(' ');
        let held = loop {
            match (words.next(), words.clone().next()) {
                (Some("locks_held"), Some(number)) if number.parse::<u64>().is_ok() => {
                    break number.parse::<u64>().unwrap_or(0);
                }
                (None, _) => return Err("nothing about locks that are held".to_owned()),
                _ => {}
            }
        };
        let is_calm = self.before.tally() == self.tally && self.plan.crowd.is_none();
        if !conn.is_behind() && is_calm && held != self.before.held() {
            return Err(format!("{held} are held, not {}", self.before.held()));
        }
        Ok(AnswerKind::Other)
    }

    /// The only key of which this is shown as the name.
    fn key_shown(&self, shown: &str) -> Option<usize> {
        let names = self.plan.keys.iter().map(|(name, _)| name);
        let mut keys = names
            .enumerate()
            .filter(|(_, name)| String::from_utf8_lossy(name) == shown);
        let (key, _) = keys.next()?;
        keys.next().is_none().then_some(key)
    }
}
