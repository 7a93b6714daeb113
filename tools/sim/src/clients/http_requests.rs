//! The same requests over HTTP, and those that only HTTP has.
//!
//! A client that speaks HTTP draws what the others draw, and spells it as one request: whole or in
//! chunks, of either version, for one of the few owners there are. Some are sent again as they were,
//! as if the answer had been lost. Writes bytes and says what they ask for; never reads an answer.

use super::lock_requests::{RequestWriter, WrittenRequest};
use super::request::{EntryRequest, Look, RequestKind};
use super::subscription::{Subscription, Topic};
use crate::plan::{Action, SECRET, pick};
use latchd::base::Millis;
use latchd::engine::types::Mode;
use latchd::wire::json::push_str_escaped;
use latchd::wire::verbs::Verb;

/// Owners have numbers from here on, connections below: what an owner has outlives them.
pub(crate) const FIRST_OWNER: u32 = 1 << 31;

/// Most requests of which the bytes are kept, to be sent again.
pub(crate) const KEPT_ASKS_MAX: usize = 12;

/// What is remembered of a request over HTTP besides what it asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpAsk {
    /// What it calls itself; empty if it does not.
    pub(crate) id: String,
    /// The owner that asks, if it is one.
    pub(crate) owner: u32,
    /// The connection ends with its answer.
    pub(crate) closes: bool,
    /// Only the head of the answer comes.
    pub(crate) is_head: bool,
}

/// An acquire that may be sent again.
#[derive(Clone, Debug)]
pub(crate) struct KeptAsk {
    pub(crate) kind: RequestKind,
    pub(crate) verb: Option<Verb>,
    pub(crate) ask: HttpAsk,
    pub(crate) frame: Vec<u8>,
}

/// How many owners there are in a run.
pub(crate) const OWNERS: u32 = 3;

/// The name of an owner.
pub(crate) fn owner_name(owner: u32) -> String {
    format!("owner-{}", owner - FIRST_OWNER)
}

/// The number of the owner with this name.
pub(crate) fn owner_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("owner-")?;
    Some(FIRST_OWNER + digits.parse::<u32>().ok()?)
}

impl RequestWriter<'_> {
    /// The request for this action, unless there is nothing to do it with, or HTTP has none.
    pub(crate) fn write_http(
        &mut self,
        action: Action,
        kept: &[KeptAsk],
    ) -> Option<WrittenRequest> {
        // Whoever asks, asks for one of the owners: they share connections.
        self.number = FIRST_OWNER + self.rng.u32(..OWNERS);
        if self.plan.settings.access.asks_for_token() && self.rng.u8(..32) == 0 {
            return Some(self.wrong_secret());
        }
        match (action, self.rng.u8(..16)) {
            (Action::Nonsense, _) => Some(self.http_nonsense()),
            (Action::Fatal, _) => Some(self.http_fatal()),
            (Action::Inspect | Action::Hello, _) | (_, 0) => Some(self.look()),
            (Action::Renew | Action::RenewOddly | Action::ReleaseOddly, 1..5)
            | (Action::Release | Action::Acquire, 1) => self.break_hold(),
            (Action::Acquire, 2..5) if !kept.is_empty() => Some(again(pick(self.rng, kept))),
            _ => {
                let written = self.write_action(action)?;
                self.over_http(written)
            }
        }
    }

    fn over_http(&mut self, written: WrittenRequest) -> Option<WrittenRequest> {
        let WrittenRequest {
            kind, verb, frame, ..
        } = written;
        let argument = frame.split(|&byte| byte == b'\n').nth(2)?;
        let argument = String::from_utf8_lossy(argument).into_owned();
        let argument = argument.trim_end_matches('\r');
        match kind {
            RequestKind::Acquire {
                key,
                mode,
                wait,
                lease,
            } => {
                let name = self.key_path(key)?;
                let (path, more) = match mode {
                    Mode::Slot { limit: 1 } if self.rng.u8(..8) != 0 => {
                        (format!("/v1/locks/{name}/acquire"), String::new())
                    }
                    Mode::Slot { limit } => {
                        let more = format!(",\"limit\":{limit}");
                        (format!("/v1/semaphores/{name}/acquire"), more)
                    }
                    Mode::Read => (
                        format!("/v1/rwlocks/{name}/acquire"),
                        ",\"mode\":\"read\"".to_owned(),
                    ),
                    Mode::Write => (
                        format!("/v1/rwlocks/{name}/acquire"),
                        ",\"mode\":\"write\"".to_owned(),
                    ),
                    Mode::Lead => (format!("/v1/elections/{name}/elect"), String::new()),
                };
                let owner = owner_name(self.number);
                let wait_field = match wait {
                    Millis::ZERO if self.rng.bool() => String::new(),
                    wait => format!(",\"wait_ms\":{}", wait.0),
                };
                let body = format!(
                    "{{\"owner_id\":\"{owner}\",\"ttl_ms\":{}{wait_field}{more}}}",
                    lease.0
                );
                Some(self.post(kind, verb, &path, &body))
            }
            RequestKind::Release {
                key,
                target,
                resigns,
            } => {
                let (path, target, body) = self.hold(key, target, argument)?;
                let (family, word) = if resigns {
                    ("elections", "resign")
                } else {
                    (
                        *pick(self.rng, &["locks", "semaphores", "rwlocks"]),
                        "release",
                    )
                };
                let kind = RequestKind::Release {
                    key,
                    target,
                    resigns,
                };
                let path = format!("/v1/{family}/{path}/{word}");
                Some(self.post(kind, verb, &path, &format!("{body}}}")))
            }
            RequestKind::Renew {
                key, target, lease, ..
            } => {
                let (path, target, body) = self.hold(key, target, argument)?;
                let family = *pick(self.rng, &["locks", "semaphores", "rwlocks", "elections"]);
                let kind = RequestKind::Renew {
                    key,
                    target,
                    lease,
                    reclaims: false,
                };
                let path = format!("/v1/{family}/{path}/renew");
                let body = format!("{body},\"extend_by_ms\":{}}}", lease.0);
                Some(self.post(kind, Verb::parse(b"n"), &path, &body))
            }
            RequestKind::Entry(entry) => Some(self.entry_over_http(entry, argument)),
            RequestKind::Subscribe(ref subscription) => {
                let (path, body) = stream_path(subscription)?;
                Some(match body.is_empty() {
                    true => self.get(kind, verb, &path),
                    false => self.post(kind, verb, &path, &body),
                })
            }
            RequestKind::Signal {
                ref channel,
                ref payload,
            } => {
                let path = format!("/v1/signals/{}", encoded(channel));
                let body = format!("{{\"payload\":{}}}", quoted(payload));
                Some(self.post(kind, verb, &path, &body))
            }
            _ => None,
        }
    }

    /// The path, the grant that this can be about, and the beginning of the body: whoever shows a
    /// token has to be its owner too.
    fn hold(
        &mut self,
        key: usize,
        target: Option<u64>,
        argument: &str,
    ) -> Option<(String, Option<u64>, String)> {
        let path = self.key_path(key)?;
        let token = argument.split(' ').next().unwrap_or_default();
        let fence = u64::from_str_radix(token.get(..16).unwrap_or_default(), 16).unwrap_or(1);
        let known = target.and_then(|fence| self.known_grants.get(fence));
        let is_own = known.is_some_and(|it| it.owner == self.number);
        // The owner may be right where the token is, most of the time.
        let of_owner = known.map(|it| it.owner).filter(|it| *it >= FIRST_OWNER);
        if let Some(owner) = of_owner.filter(|_| !is_own && self.rng.u8(..4) != 0) {
            self.number = owner;
        }
        let target = target.filter(|_| known.is_some_and(|it| it.owner == self.number));
        let is_wrong = self.rng.u8(..24) == 0;
        let told = fence.max(1) + u64::from(is_wrong);
        let lease_id = quoted(uuid(token).as_bytes());
        let owner = owner_name(self.number);
        let body =
            format!("{{\"owner_id\":\"{owner}\",\"lease_id\":{lease_id},\"fencing_token\":{told}");
        Some((path, target.filter(|_| !is_wrong), body))
    }

    fn entry_over_http(&mut self, entry: EntryRequest, argument: &str) -> WrittenRequest {
        let (kind, key) = entry.entry();
        let name = encoded(self.plan.name(kind, key));
        let end = |left: bool| if left { "left" } else { "right" };
        let ttl_field = |ttl: Millis| match ttl {
            Millis::ZERO => String::new(),
            ttl => format!(",\"ttl_ms\":{}", ttl.0),
        };
        let (method, path, body, entry) = match entry {
            EntryRequest::Add { key, delta, .. } => {
                let down = delta < 0;
                let body = format!("{{\"delta\":{delta}}}");
                let entry = EntryRequest::Add { key, delta, down };
                ("POST", format!("/v1/counters/{name}/add"), body, entry)
            }
            EntryRequest::Count { .. } => {
                ("GET", format!("/v1/counters/{name}"), String::new(), entry)
            }
            EntryRequest::SetCount { .. } => {
                let body = format!("{{\"value\":{argument}}}");
                ("PUT", format!("/v1/counters/{name}"), body, entry)
            }
            EntryRequest::Put { ref value, ttl, .. } => {
                let value = quoted(value.as_bytes());
                let body = format!("{{\"value\":{value}{}}}", ttl_field(ttl));
                ("PUT", format!("/v1/kv/{name}"), body, entry)
            }
            EntryRequest::Fetch { .. } => ("GET", format!("/v1/kv/{name}"), String::new(), entry),
            EntryRequest::Delete { .. } => {
                ("DELETE", format!("/v1/kv/{name}"), String::new(), entry)
            }
            EntryRequest::Swap {
                ref old,
                ref new,
                ttl,
                ..
            } => {
                let condition = match &old[..] {
                    "" => "\"if_absent\":true".to_owned(),
                    old => format!("\"if_value\":{}", quoted(old.as_bytes())),
                };
                let new = quoted(new.as_bytes());
                let body = format!("{{\"value\":{new},{condition}{}}}", ttl_field(ttl));
                ("PUT", format!("/v1/kv/{name}"), body, entry)
            }
            EntryRequest::Push {
                ref value, left, ..
            } => {
                let value = quoted(value.as_bytes());
                let body = format!("{{\"value\":{value},\"end\":\"{}\"}}", end(left));
                ("POST", format!("/v1/lists/{name}/push"), body, entry)
            }
            EntryRequest::Pop { key, left }
            | EntryRequest::AwaitPop {
                key,
                left,
                wait: Millis::ZERO,
            } => {
                let body = format!("{{\"end\":\"{}\"}}", end(left));
                let entry = EntryRequest::Pop { key, left };
                ("POST", format!("/v1/lists/{name}/pop"), body, entry)
            }
            EntryRequest::AwaitPop { left, wait, .. } => {
                let body = format!("{{\"end\":\"{}\",\"wait_ms\":{}}}", end(left), wait.0);
                ("POST", format!("/v1/lists/{name}/pop"), body, entry)
            }
            EntryRequest::Length { .. } => {
                let path = format!("/v1/lists/{name}?start=0&stop=0");
                ("GET", path, String::new(), entry)
            }
            EntryRequest::Range { .. } => {
                let (start, stop) = argument.split_once(' ').unwrap_or(("0", "-1"));
                let path = format!("/v1/lists/{name}?start={start}&stop={stop}");
                ("GET", path, String::new(), entry)
            }
            EntryRequest::Meet { count, wait, .. } => {
                let body = format!("{{\"count\":{count},\"wait_ms\":{}}}", wait.0);
                ("POST", format!("/v1/barriers/{name}/wait"), body, entry)
            }
        };
        let verb = Verb::parse(entry.verb().as_bytes());
        self.request(RequestKind::Entry(entry), verb, method, &path, &body)
    }

    /// Pages, single keys, health and figures.
    fn look(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.keys.len());
        let name = self.key_path(key);
        let (look, path) = match (self.rng.u8(..16), name) {
            (0..6, _) => {
                let limit = *pick(self.rng, &[1, 1, 2, 3, 100]);
                let after = self.conn.walk.as_ref().map(|it| it.next);
                let cursor = after.map_or(String::new(), |it| format!("&after={it}"));
                let path = format!("/v1/locks?limit={limit}{cursor}");
                (Look::Page { after }, path)
            }
            (6, Some(name)) => (Look::Lease { key }, format!("/v1/locks/{name}")),
            (7, Some(name)) => (Look::Who { key }, format!("/v1/who/{name}")),
            (8, _) => (Look::Live, "/healthz".to_owned()),
            (9, _) => (Look::Ready, "/readyz".to_owned()),
            (10, _) => (Look::Stats, "/v1/stats".to_owned()),
            (11, _) => (Look::Figures, "/v1/stats/stream".to_owned()),
            (12 | 13, _) => {
                let paths = ["/healthz", "/metrics", "/v1/stats", "/v1/locks?limit=2"];
                (Look::Head, (*pick(self.rng, &paths)).to_owned())
            }
            _ => (Look::Metrics, "/metrics".to_owned()),
        };
        let method = if look == Look::Head { "HEAD" } else { "GET" };
        self.request(RequestKind::Look(look), None, method, &path, "")
    }

    /// Ends what somebody holds, by either door.
    fn break_hold(&mut self) -> Option<WrittenRequest> {
        let count = self.known_grants.len();
        let back = self.rng.usize(..count.clamp(1, 6));
        let (fence, grant) = self.known_grants.nth(count.checked_sub(1 + back)?)?;
        let key = grant.key;
        let path = format!("/v1/locks/{}/holders/{fence}", self.key_path(key)?);
        let kind = RequestKind::Break { key, fence };
        Some(self.request(kind, None, "DELETE", &path, ""))
    }

    fn http_nonsense(&mut self) -> WrittenRequest {
        let requests = [
            (
                "POST",
                "/v1/locks/k0/acquire",
                "{\"owner_id\":\"\",\"ttl_ms\":5}",
            ),
            (
                "POST",
                "/v1/locks/k0/acquire",
                "{\"owner_id\":\"a\",\"ttl_ms\":0}",
            ),
            (
                "POST",
                "/v1/locks/k0/acquire",
                "{\"owner_id\":\"a\",\"ttl_ms\":8.0}",
            ),
            ("POST", "/v1/locks/k0/acquire", "{\"owner\":\"a\"}"),
            ("POST", "/v1/locks/k0/renew", "{}"),
            ("POST", "/v1/locks/k0/seize", "{}"),
            ("GET", "/v1/locks?limit=0", ""),
            ("GET", "/v1/locks?after=x", ""),
            ("PUT", "/v1/kv/v.0", "{\"value\":\"a\\tb\"}"),
            ("POST", "/v1/lists/q.0/push", "[1]"),
            ("POST", "/v1/barriers/b.0/wait", "{\"count\":0}"),
            ("DELETE", "/v1/counters/n.0", ""),
            ("GET", "/v1/watch", ""),
            ("POST", "/nowhere", "{}"),
        ];
        let (method, path, body) = *pick(self.rng, &requests);
        self.request(RequestKind::Nonsense, None, method, path, body)
    }

    fn http_fatal(&mut self) -> WrittenRequest {
        let heads: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\nHost: a\n\n",
            b"l\nk0\n10\n",
        ];
        let frame = pick(self.rng, &heads).to_vec();
        let kind = RequestKind::Fatal(Some("error"));
        written(kind, None, frame, HttpAsk::default())
    }

    fn wrong_secret(&mut self) -> WrittenRequest {
        let frame =
            b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cre\r\n\r\n";
        let kind = RequestKind::Fatal(Some("error_auth"));
        written(kind, None, frame.to_vec(), HttpAsk::default())
    }

    // ---- what requests are made of ----

    /// The key as a part of a path, if it can be one.
    fn key_path(&self, key: usize) -> Option<String> {
        let name = &self.plan.keys[key].0;
        let is_text = str::from_utf8(name).is_ok();
        (is_text && !name.iter().any(u8::is_ascii_control)).then(|| encoded(name))
    }

    fn get(&mut self, kind: RequestKind, verb: Option<Verb>, path: &str) -> WrittenRequest {
        self.request(kind, verb, "GET", path, "")
    }

    fn post(
        &mut self,
        kind: RequestKind,
        verb: Option<Verb>,
        path: &str,
        body: &str,
    ) -> WrittenRequest {
        self.request(kind, verb, "POST", path, body)
    }

    fn request(
        &mut self,
        kind: RequestKind,
        verb: Option<Verb>,
        method: &str,
        path: &str,
        body: &str,
    ) -> WrittenRequest {
        let is_acquire = matches!(kind, RequestKind::Acquire { .. });
        let is_stream = matches!(
            kind,
            RequestKind::Subscribe(_) | RequestKind::Look(Look::Figures)
        );
        let id = match self.rng.u8(..if is_acquire { 16 } else { 4 }) {
            0 => String::new(),
            _ => format!("request-{}", self.request_number),
        };
        let is_old = self.rng.u8(..16) == 0 && !is_stream;
        let closes = !is_stream && self.rng.u8(..40) == 0;
        let version = if is_old { "1.0" } else { "1.1" };
        let mut head = format!("{method} {path} HTTP/{version}\r\nHost: localhost\r\n");
        if !id.is_empty() {
            head += &format!("X-Request-ID: {id}\r\n");
        }
        if self.plan.settings.access.asks_for_token() {
            head += &format!(
                "Authorization: Bearer {}\r\n",
                String::from_utf8_lossy(SECRET)
            );
        }
        match (is_old, closes) {
            (_, true) => head += "Connection: close\r\n",
            (true, false) => head += "Connection: keep-alive\r\n",
            (false, false) => {}
        }
        let mut frame = head.into_bytes();
        if !body.is_empty() {
            frame.extend(b"Content-Type: application/json\r\n");
            if !is_old && self.rng.u8(..16) == 0 {
                frame.extend(b"Expect: 100-continue\r\n");
            }
        }
        match (body, !is_old && self.rng.u8(..6) == 0) {
            ("", _) => frame.extend(b"\r\n"),
            (body, true) => {
                let mut cut = self.rng.usize(1..=body.len());
                while !body.is_char_boundary(cut) {
                    cut -= 1;
                }
                frame.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                for part in [&body[..cut], &body[cut..]]
                    .iter()
                    .filter(|it| !it.is_empty())
                {
                    frame.extend(format!("{:x}\r\n{part}\r\n", part.len()).bytes());
                }
                frame.extend(b"0\r\n\r\n");
            }
            (body, false) => {
                frame.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).bytes());
            }
        }
        let ask = HttpAsk {
            id,
            owner: self.number,
            closes,
            is_head: method == "HEAD",
        };
        written(kind, verb, frame, ask)
    }
}

fn written(kind: RequestKind, verb: Option<Verb>, frame: Vec<u8>, ask: HttpAsk) -> WrittenRequest {
    WrittenRequest {
        kind,
        verb,
        frame,
        with_fence: false,
        shows_fence_reader: false,
        http: Some(ask),
    }
}

/// The same once more, byte for byte.
fn again(kept: &KeptAsk) -> WrittenRequest {
    let KeptAsk {
        kind,
        verb,
        ask,
        frame,
    } = kept.clone();
    written(kind, verb, frame, ask)
}

/// The path of a stream, and its body if it has one.
fn stream_path(subscription: &Subscription) -> Option<(String, String)> {
    let Subscription {
        topic,
        pattern,
        group,
    } = subscription;
    let is_text = str::from_utf8(pattern).is_ok() && !pattern.iter().any(u8::is_ascii_control);
    let in_group = format!(
        "{{\"pattern\":{},\"group\":{}}}",
        quoted(pattern),
        quoted(group)
    );
    let pattern = encoded(pattern);
    let path = match topic {
        Topic::Listen if group.is_empty() => format!("/v1/signals?pattern={pattern}"),
        Topic::Listen => return is_text.then(|| ("/v1/signals".to_owned(), in_group)),
        Topic::Watch => format!("/v1/watch?pattern={pattern}"),
        Topic::Observe => format!("/v1/elections/{pattern}/events"),
    };
    is_text.then(|| (path, String::new()))
}

/// Percent-encoded, whatever it is.
fn encoded(name: &[u8]) -> String {
    let one = |&byte: &u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.iter().map(one).collect()
}

/// As a string of JSON.
fn quoted(text: &[u8]) -> String {
    let mut out = Vec::new();
    push_str_escaped(&mut out, text);
    String::from_utf8_lossy(&out).into_owned()
}

/// A token as HTTP writes it; whatever is no token, as it is.
fn uuid(token: &str) -> String {
    if token.len() != 32 || !token.is_ascii() {
        return token.to_owned();
    }
    let parts = [
        &token[..8],
        &token[8..12],
        &token[12..16],
        &token[16..20],
        &token[20..],
    ];
    parts.join("-")
}
