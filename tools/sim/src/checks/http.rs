//! Answers over HTTP: what must hold of every one, and what it is in the words of the line protocol.
//!
//! Each answer carries the id of the oldest request without one, so none is lost and none comes twice.
//! Whatever both protocols have is put into the words of a line and compared with its request as any
//! line is (`answers`); events become pushes. What only HTTP has, owners that have a name and breaks,
//! is compared here, and `pages` has what anybody may look at.

use super::answers::{AnswerCheck, AnswerKind};
use super::grants::Outlives;
use crate::clients::connection::{Connection, Moment, OpenRequest};
use crate::clients::http_answers::{Heard, HttpAnswer};
use crate::clients::http_requests::{HttpAsk, owner_name};
use crate::clients::request::{EntryRequest, RequestKind};
use crate::json::Json;
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Mode;
use latchd::wire::client::Grant;

impl AnswerCheck<'_> {
    /// What a client heard, in the words of a line, to be shown and compared; none if it says nothing.
    pub(crate) fn line_of(
        &mut self,
        conn: &mut Connection,
        heard: &Heard,
    ) -> Result<Option<Vec<u8>>, String> {
        match heard {
            Heard::Beat => Ok(None),
            Heard::End if self.draining.is_some() => {
                conn.end_told = true;
                Ok(None)
            }
            Heard::End => Err("a stream ended for no reason".to_owned()),
            Heard::Event(word, json) if word == "stats" => json.object("totals").map(|_| None),
            Heard::Event(word, json) => self.push_of(word, json).map(Some),
            Heard::Answer(answer) => self.answer_of(conn, answer).map(Some),
        }
    }

    /// The push that this event is.
    fn push_of(&self, word: &str, json: &Json) -> Result<Vec<u8>, String> {
        if word == "signal" {
            let (channel, payload) = (json.text("channel")?, json.text("payload")?);
            return Ok(format!("sig {channel} {payload}").into_bytes());
        }
        let kind = match word {
            "elected" | "resigned" | "failover" => "leader",
            _ => "watch",
        };
        let name = self.name_shown(json.text("name")?);
        let mut line = format!("{kind} {word} ").into_bytes();
        line.extend(name);
        Ok(line)
    }

    /// The name of which this is shown: whatever is no text in it was replaced.
    fn name_shown(&self, shown: &str) -> Vec<u8> {
        let mut keys = self.plan.keys.iter().map(|(name, _)| name);
        let key = keys.find(|name| String::from_utf8_lossy(name) == shown);
        key.cloned().unwrap_or_else(|| shown.into())
    }

    /// The line that this answer is.
    fn answer_of(&mut self, conn: &mut Connection, answer: &HttpAnswer) -> Result<Vec<u8>, String> {
        if conn.is_newcomer {
            let reason = answer.json()?.text("reason")?.to_ascii_lowercase();
            return Ok(format!("error_{reason}").into_bytes());
        }
        if answer.status == 408 {
            let is_late =
                conn.is_mid_frame() && conn.is_overdue(self.now, &self.plan.settings, true);
            if !is_late || !answer.closes {
                return Err("told to be late, and was not".to_owned());
            }
            conn.end_told = true;
            return Ok(b"late".to_vec());
        }
        let Some(request) = conn.open_requests.front() else {
            return Err("an answer without a request".to_owned());
        };
        let ask = request.http.as_ref().ok_or("not asked over HTTP")?;
        if let RequestKind::Fatal(_) = request.kind {
            let line: &[u8] = match answer.status {
                401 => b"error_auth",
                400.. => b"error",
                _ => return Err(format!("{answer:?} to what cannot be read")),
            };
            return match answer.closes {
                true => Ok(line.to_vec()),
                false => Err("what cannot be read does not end the connection".to_owned()),
            };
        }
        let is_same = match (&answer.id, &ask.id[..]) {
            (Some(made), "") => !made.is_empty(),
            (told, id) => told.as_deref() == Some(id),
        };
        if !is_same {
            return Err(format!(
                "the answer to {:?} came for {:?}",
                answer.id, ask.id
            ));
        }
        if answer.closes != (ask.closes || answer.is_stream || self.draining.is_some())
            && self.draining.is_none()
        {
            return Err(format!("says that it closes: {}", answer.closes));
        }
        if answer.is_stream {
            conn.is_stream = true;
            return Ok(b"ok".to_vec());
        }
        if let RequestKind::Subscribe(_) = request.kind {
            conn.asks_for_events = false;
        }
        let kind = request.kind.clone();
        let ask = ask.clone();
        line(answer, &kind, &ask).map_err(|why| {
            format!(
                "{why} (answer {} {:?} to {kind:?})",
                answer.status, answer.body
            )
        })
    }

    /// Something was granted to an owner that has a name, perhaps not for the first time.
    pub(crate) fn granted_by_name(
        &mut self,
        request: &OpenRequest,
        ask: &HttpAsk,
        (key, mode, lease): (usize, Mode, Millis),
        grant: Grant,
        (arrived, since): (Moment, Nanos),
    ) -> Result<AnswerKind, String> {
        let fence = grant.token.fence.0;
        let token: String = grant.token.hex().iter().copied().map(char::from).collect();
        if self.known_grants.get(fence).is_some() {
            if !self.known_grants.asks().were_granted(&ask.id, fence) {
                return Err(format!("{fence} was given out twice"));
            }
            let when = (since, arrived.turn);
            self.known_grants
                .granted_again(self.now, fence, &token, grant.lease, when)?;
            self.known_grants.note_ask(&ask.id, fence, self.now)?;
            return Ok(AnswerKind::GrantedAgain);
        }
        let is_repeated = self.known_grants.asks().is_repeated(&ask.id);
        if grant.lease != lease && !(is_repeated && grant.lease < lease) {
            return Err(format!("{:?} where {lease:?} belongs", grant.lease));
        }
        let first = self.known_grants.asks().first_arrived(&ask.id);
        let after = first.unwrap_or(arrived.turn).min(arrived.turn);
        let joined = (after, request.begun.map_or(self.turn, |it| it.turn));
        let is_new = fence > self.before.fence_max();
        if is_new && self.draining.is_some_and(|turn| joined.0 >= turn) {
            return Err("granted while draining".to_owned());
        }
        self.known_grants.note_ask(&ask.id, fence, self.now)?;
        self.known_grants.granted(
            self.now,
            fence,
            &token,
            key,
            mode,
            ask.owner,
            joined,
            (since, grant.lease),
            if is_repeated { 0 } else { request.fence_before },
            (false, Outlives::No),
        )?;
        if fence <= self.before.fence_origin() {
            // Nobody was told before the last life ended, and now it was asked for again.
            self.known_grants.note_of_earlier_life();
        }
        self.known_grants.note_asked(fence, lease);
        self.known_grants.note_rounded(fence);
        Ok(AnswerKind::NamedGrant)
    }

    /// A renewal over HTTP: it gives what was asked for, or what is left if that is more.
    pub(crate) fn renewed_by_name(
        &mut self,
        request: &OpenRequest,
        (fence, asked, lease): (u64, Millis, Millis),
        (arrived, since): (Moment, Nanos),
    ) -> Result<AnswerKind, String> {
        if lease < asked && self.lease_now(lease, asked, arrived) != lease {
            return Err(format!("{fence} was renewed for {lease:?}, not {asked:?}"));
        }
        self.known_grants
            .check_not_shorter(fence, lease, asked, (since, self.now))?;
        let span = (since, lease);
        self.known_grants
            .renewed(self.now, fence, request.number, span, arrived.turn)?;
        self.known_grants.note_rounded(fence);
        Ok(AnswerKind::Other)
    }

    /// An operator was told that a grant has ended, or that there is none.
    pub(crate) fn check_break(
        &mut self,
        fence: u64,
        arrived: Moment,
        text: &str,
    ) -> Result<AnswerKind, String> {
        match text {
            "ok" => self.known_grants.broken(fence, arrived, self.turn)?,
            "nil" => self.known_grants.not_broken(self.now, fence)?,
            "error_storage" if self.is_full_since(arrived) => {}
            _ => return Err(format!("a break was answered {text}")),
        }
        Ok(AnswerKind::Other)
    }
}

/// The line that would say the same.
fn line(answer: &HttpAnswer, kind: &RequestKind, ask: &HttpAsk) -> Result<Vec<u8>, String> {
    if let RequestKind::Look(_) = kind {
        return Ok(format!("{} {}", answer.status, answer.body.replace('\n', " ")).into_bytes());
    }
    if answer.status == 404 && answer.body == "404 page not found\n" {
        return Ok(b"error".to_vec());
    }
    let json = answer.json()?;
    let is = |name: &str| json.flag(name);
    let ok = |text: String| Ok(format!("ok {text}").into_bytes());
    if answer.status == 200 {
        return match kind {
            RequestKind::Acquire { mode, .. } => {
                let word = if *mode == Mode::Lead {
                    "elected"
                } else {
                    "acquired"
                };
                let lease_id = json.text("lease_id")?;
                let token = lease_id.replace('-', "");
                let fence = json.number("fencing_token")?;
                if !is(word)? || json.text("owner_id")? != owner_name(ask.owner) {
                    return Err("of somebody else".to_owned());
                }
                if lease_id.len() != 36 || !token.starts_with(&format!("{fence:016x}")) {
                    return Err("the lease id is not of this fence".to_owned());
                }
                ok(format!("{token} {}", span(json.number("lease_expiry_ms")?)))
            }
            RequestKind::Renew { .. } if is("renewed")? => {
                ok(span(json.number("lease_expiry_ms")?))
            }
            RequestKind::Release { resigns, .. } => {
                let word = if *resigns { "resigned" } else { "released" };
                match is(word)? {
                    true => Ok(b"ok".to_vec()),
                    false if json.text("reason")? == "NOT_OWNER" => Ok(b"error".to_vec()),
                    false => Err("neither released nor not its owner".to_owned()),
                }
            }
            RequestKind::Break { .. } if is("broken")? => Ok(b"ok".to_vec()),
            RequestKind::Signal { .. } => ok(json.number("receivers")?.to_string()),
            RequestKind::Entry(entry) => success(&json, answer, entry),
            _ => Err("a success that this request cannot have".to_owned()),
        };
    }
    Ok(refusal(answer, &json, kind).into_bytes())
}

/// A success that is about an entry.
fn success(json: &Json, answer: &HttpAnswer, entry: &EntryRequest) -> Result<Vec<u8>, String> {
    let ok = |text: &str| Ok(format!("ok {text}").into_bytes());
    let done = |word: &str| match json.flag(word)? {
        true => Ok(b"ok".to_vec()),
        false => Err(format!("{word:?} is not true")),
    };
    match entry {
        EntryRequest::Add { .. } | EntryRequest::Count { .. } => ok(digits(answer, "value")?),
        EntryRequest::SetCount { .. } => digits(answer, "value").map(|_| b"ok".to_vec()),
        EntryRequest::Put { .. } | EntryRequest::Swap { .. } => done("stored"),
        EntryRequest::Delete { .. } => done("deleted"),
        EntryRequest::Meet { .. } => done("met"),
        EntryRequest::Fetch { .. } => ok(json.text("value")?),
        EntryRequest::Pop { .. } | EntryRequest::AwaitPop { .. } => match json.text("value") {
            Ok(value) => ok(value),
            Err(_) if answer.body == "{\"value\":null}\n" => Ok(b"nil".to_vec()),
            Err(why) => Err(why),
        },
        EntryRequest::Push { .. } | EntryRequest::Length { .. } => ok(digits(answer, "length")?),
        EntryRequest::Range { .. } => {
            let (_, values) = answer.body.split_once("\"values\":").ok_or("no values")?;
            ok(values.strip_suffix("}\n").ok_or("something behind them")?)
        }
    }
}

/// A number as it is written: one that JavaScript would round is none the less exact.
fn digits<'a>(answer: &'a HttpAnswer, name: &str) -> Result<&'a str, String> {
    let title = format!("\"{name}\":");
    let (_, rest) = answer.body.split_once(&title[..]).ok_or("no number")?;
    let end = rest.find([',', '}']).ok_or("no end")?;
    Ok(&rest[..end])
}

/// The word that a refusal is.
fn refusal(answer: &HttpAnswer, json: &Json, kind: &RequestKind) -> String {
    // The lease routes say why only with a 503, and where a refusal has fields of its own.
    let told = json.text("reason").unwrap_or_default();
    match (answer.status, told, kind) {
        (409, "HELD", RequestKind::Acquire { .. }) => {
            let hint = json.number("recommended_retry_ms").unwrap_or(0);
            match (25..=1_000).contains(&hint) {
                true => "timeout".to_owned(),
                false => format!("a hint of {hint} ms"),
            }
        }
        (409, "TIMEOUT", _) => "timeout".to_owned(),
        (409, "CONFLICT", _) => "cas_conflict".to_owned(),
        (409, "COUNT_MISMATCH", _) => "error_barrier_count_mismatch".to_owned(),
        (404, "NO_VALUE" | "NOT_HELD", _) => "nil".to_owned(),
        (409, "BUSY_RETRY", _) | (503, "STORAGE", _) => "error_storage".to_owned(),
        (409, "TYPE_MISMATCH" | "LIMIT_MISMATCH", _)
        | (
            503,
            "MAX_LOCKS" | "MAX_WAITERS" | "MAX_KEYS" | "LIST_FULL" | "MEMORY" | "DRAINING",
            _,
        ) => {
            format!("error_{}", told.to_ascii_lowercase())
        }
        (409, "NOT_OWNER_OR_EXPIRED" | "OVERFLOW", _)
        | (503, "MAX_SUBSCRIPTIONS", _)
        | (400..=499, _, RequestKind::Nonsense | RequestKind::Subscribe(_)) => "error".to_owned(),
        (status, told, _) => format!("{status} {told}"),
    }
}

/// A span as lines write it.
fn span(ms: u64) -> String {
    match ms.is_multiple_of(1_000) {
        true => (ms / 1_000).to_string(),
        false => format!("{ms}ms"),
    }
}
