//! Requests about locks, greetings and nonsense, as frames of the real protocol: right and wrong,
//! in every spelling.
//!
//! Writes the bytes and says what they ask for. When they are sent, and in how many pieces, is
//! decided elsewhere. A token may be any that was ever granted: a client may also try one of
//! another client.

use fastrand::Rng;

use super::connection::Connection;
use super::http_requests::HttpAsk;
use super::request::RequestKind;
use crate::checks::entries::KnownEntries;
use crate::checks::grants::KnownGrants;
use crate::plan::{Action, Plan, SECRET, pick};
use latchd::base::{Millis, Nanos};
use latchd::engine::types::Mode;
use latchd::wire::answer::WireFence;
use latchd::wire::client;
use latchd::wire::verbs::Verb;

/// Most requests that a client leaves without an answer.
pub(crate) const OPEN_REQUESTS_MAX: usize = 300;

/// One frame and what it asks for.
pub(crate) struct WrittenRequest {
    pub(crate) kind: RequestKind,
    /// The verb, if there is one, with which the answer is read.
    pub(crate) verb: Option<Verb>,
    pub(crate) frame: Vec<u8>,
    pub(crate) with_fence: bool,
    /// From this request on the server takes the client for one that reads the fence.
    pub(crate) shows_fence_reader: bool,
    /// What else there is to it over HTTP.
    pub(crate) http: Option<HttpAsk>,
}

/// Writes one request for one client.
pub(crate) struct RequestWriter<'w> {
    pub(crate) rng: &'w mut Rng,
    pub(crate) plan: &'w Plan,
    pub(crate) known_grants: &'w KnownGrants,
    pub(crate) known_entries: &'w KnownEntries,
    /// The number that the request will have.
    pub(crate) request_number: u64,
    pub(crate) number: u32,
    pub(crate) conn: &'w Connection,
    pub(crate) now: Nanos,
}

impl RequestWriter<'_> {
    /// The frame for this action, unless there is nothing to do it with.
    pub(crate) fn write(&mut self, action: Action) -> Option<WrittenRequest> {
        if self.plan.settings.access.asks_for_token() && !self.conn.has_shown_secret {
            return Some(self.auth());
        }
        self.write_action(action)
    }

    /// The same for a client that has shown the secret, if there is one.
    pub(crate) fn write_action(&mut self, action: Action) -> Option<WrittenRequest> {
        match action {
            Action::Acquire if self.asks_to_keep() => {
                Some(written(RequestKind::Hello, "hello", b"_", b"keep=1"))
            }
            Action::Acquire if self.asks_about_deadlocks() => {
                Some(written(RequestKind::Hello, "hello", b"_", b"deadlock=1"))
            }
            Action::Acquire => Some(self.acquire()),
            Action::Enqueue => Some(self.enqueue()),
            Action::Wait => Some(self.wait()),
            Action::Release => {
                let (key, token, target) = self.own_token()?;
                Some(self.release(key, &token, target))
            }
            Action::Renew => {
                let (key, token, target) = self.own_token()?;
                Some(self.renew(key, &token, target))
            }
            Action::ReleaseOddly => {
                let (key, token, target) = self.odd_token();
                Some(self.release(key, &token, target))
            }
            Action::RenewOddly => {
                let (key, token, target) = self.odd_token();
                Some(self.renew(key, &token, target))
            }
            Action::Reclaim => {
                let (key, token, target) = self.unclaimed_token()?;
                Some(self.renew_with(&["n", "reclaim", "reclaim"], key, &token, target))
            }
            Action::Counter => Some(self.counter()),
            Action::Value => Some(self.value()),
            Action::Push => Some(self.push()),
            Action::Pop => Some(self.pop()),
            Action::Barrier => Some(self.barrier()),
            Action::Subscribe => Some(self.subscribe()),
            Action::Unsubscribe => Some(self.unsubscribe()),
            Action::Signal => Some(self.signal()),
            Action::SignalLoud => Some(self.signal_loud()),
            Action::ListenLoud(group) => Some(self.listen_loud(group)),
            Action::Inspect => Some(self.inspect()),
            Action::Stats => Some(written(
                RequestKind::Report { key: None },
                "stats",
                b"_",
                b"",
            )),
            Action::Hello => Some(self.hello()),
            Action::Nonsense => Some(self.nonsense()),
            Action::Fatal => Some(self.fatal()),
            _ => None,
        }
    }

    /// Whether the client says first that what it acquires is to outlive its connection.
    fn asks_to_keep(&mut self) -> bool {
        let keep_pct = self.plan.keep_pct;
        keep_pct > 0 && !self.conn.keeps && self.rng.u8(..100) < keep_pct
    }

    /// Whether the client says first that it wants to be told of deadlocks.
    fn asks_about_deadlocks(&mut self) -> bool {
        let pct = self.plan.deadlock_pct;
        pct > 0 && !self.conn.tells_deadlocks && self.rng.u8(..100) < pct
    }

    fn auth(&mut self) -> WrittenRequest {
        const WRONG: RequestKind = RequestKind::Fatal(Some("error_auth"));
        match self.rng.u8(..16) {
            0 => written(WRONG, "auth", b"_", b"s3cre"),
            1 => written(WRONG, "l", b"k0", b"10"),
            2 => written(WRONG, "nonsense", b"", b""),
            3 => written(WRONG, "auth", b"_", &vec![b'x'; 70_000]),
            _ => written(RequestKind::Ok, "auth", b"_", SECRET),
        }
    }

    fn acquire(&mut self) -> WrittenRequest {
        let (key, mode) = self.key_and_mode();
        let wait = Millis(*pick(self.rng, &self.plan.waits_ms));
        let (lease, lease_text) = self.lease();
        let wait_text = self.span(wait);
        let (verb, argument) = match mode {
            Mode::Slot { limit: 1 } if self.rng.u8(..4) != 0 => ("l", wait_text),
            Mode::Slot { limit } => ("sl", format!("{wait_text} {limit}")),
            Mode::Read => ("rl", wait_text),
            Mode::Write => ("wl", wait_text),
            Mode::Lead => ("elect", wait_text),
        };
        let kind = RequestKind::Acquire {
            key,
            mode,
            wait,
            lease,
        };
        self.keyed(kind, verb, key, &format!("{argument}{lease_text}"))
    }

    fn enqueue(&mut self) -> WrittenRequest {
        let (key, mode) = match self.key_and_mode() {
            (key, Mode::Lead) => (key, Mode::Slot { limit: 1 }),
            other => other,
        };
        let (lease, lease_text) = self.lease();
        let (verb, argument) = match mode {
            Mode::Slot { limit: 1 } if self.rng.u8(..4) != 0 => ("e", lease_text),
            Mode::Slot { limit } => ("se", format!("{limit}{lease_text}")),
            Mode::Read => ("re", lease_text),
            Mode::Write => ("we", lease_text),
            Mode::Lead => unreachable!("who enqueues does not ask to lead"),
        };
        self.keyed(
            RequestKind::Enqueue { key, mode, lease },
            verb,
            key,
            &argument,
        )
    }

    fn wait(&mut self) -> WrittenRequest {
        let tickets: Vec<usize> = self.conn.tickets.keys().copied().collect();
        let key = if tickets.is_empty() || self.rng.u8(..8) == 0 {
            self.rng.usize(..self.plan.keys.len())
        } else {
            *pick(self.rng, &tickets)
        };
        let wait = Millis(*pick(self.rng, &self.plan.waits_ms));
        let verb = *pick(self.rng, &["w", "w", "sw", "rw", "ww"]);
        let argument = self.span(wait);
        self.keyed(RequestKind::Wait { key, wait }, verb, key, &argument)
    }

    fn release(&mut self, key: usize, token: &str, target: Option<u64>) -> WrittenRequest {
        let resigns = match self.plan.keys[key].1 {
            Mode::Lead => self.rng.u8(..4) != 0,
            _ => self.rng.u8(..16) == 0,
        };
        let verb = match resigns {
            true => "resign",
            false => *pick(self.rng, &["r", "r", "sr", "rr", "wr"]),
        };
        let kind = RequestKind::Release {
            key,
            target,
            resigns,
        };
        self.keyed(kind, verb, key, token)
    }

    fn renew(&mut self, key: usize, token: &str, target: Option<u64>) -> WrittenRequest {
        let verbs = ["n", "n", "sn", "rn", "wn", "reclaim"];
        self.renew_with(&verbs, key, token, target)
    }

    fn renew_with(
        &mut self,
        verbs: &[&'static str],
        key: usize,
        token: &str,
        target: Option<u64>,
    ) -> WrittenRequest {
        let verb = *pick(self.rng, verbs);
        let (mut lease, mut lease_text) = self.lease();
        let reclaims = verb == "reclaim";
        if reclaims && lease_text.is_empty() {
            // Without a lease it would have the one that is recorded, which may be any it ever had.
            lease = self.plan.rules.lease_default;
            lease_text = format!(" {}", self.span(lease));
        }
        let kind = RequestKind::Renew {
            key,
            target,
            lease,
            reclaims,
        };
        let mut written = self.keyed(kind, verb, key, &format!("{token}{lease_text}"));
        // A renewal that cannot be read shows nothing.
        written.shows_fence_reader &= !token.contains(' ');
        written
    }

    fn inspect(&mut self) -> WrittenRequest {
        let key = self.rng.usize(..self.plan.keys.len());
        match self.rng.u8(..6) {
            0 => self.keyed(RequestKind::Position { key }, "pos", key, ""),
            1 | 2 => self.keyed(
                RequestKind::Report { key: Some(key) },
                "who",
                key,
                "whatever",
            ),
            3 | 4 => written(RequestKind::Report { key: None }, "stats", b"_", b""),
            _ => written(RequestKind::Ok, "ping", b"", b"_"),
        }
    }

    fn hello(&mut self) -> WrittenRequest {
        let mut options: &[&[u8]] = &[b"", b"fence=1", b"fence=0", b"name=sim fence=1"];
        if self.plan.keep_pct > 0 {
            options = &[b"fence=1", b"fence=0 keep=1", b"keep=1 name=sim", b"keep=0"];
        }
        let options = *pick(self.rng, options);
        written(RequestKind::Hello, "hello", b"_", options)
    }

    fn nonsense(&mut self) -> WrittenRequest {
        const FRAMES: [&[u8]; 29] = [
            b"foo\nk\nx\n",
            b"L\nk\n1\n",
            b" l\nk\n1\n",
            b"\n\n\n",
            b"l\n\n10\n",
            b"l\na b\n10\n",
            b"l\nk0\n\n",
            b"l\nk0\n1 2 3\n",
            b"l\nk0\n1.5\n",
            b"l\nk0\n-1\n",
            b"l\nk0\n9223372037\n",
            b"l\nk0\n10 0\n",
            b"e\nk0\n30 junk\n",
            b"e\nk0\n0\n",
            b"w\nk0\n1 2\n",
            b"sl\nk0\n10 0\n",
            b"se\nk0\n-1\n",
            b"r\nk0\n   \n",
            b"hello\n_\nfence=2\n",
            b"auth\n_\ns3cret\n",
            b"incr\nn.0\n9223372036854775808\n",
            b"decr\nn.0\n\n",
            b"kset\nv.0\n\t5\n",
            b"kcas\nv.0\na\tb\n",
            b"lpush\nq.0\n\n",
            b"lrange\nq.0\n0\n",
            b"blpop\nq.0\n-1\n",
            b"bwait\nb.0\n0 5\n",
            b"signal\nev.*\nx\n",
        ];
        WrittenRequest {
            kind: RequestKind::Nonsense,
            verb: None,
            frame: pick(self.rng, &FRAMES).to_vec(),
            with_fence: false,
            shows_fence_reader: false,
            http: None,
        }
    }

    fn fatal(&mut self) -> WrittenRequest {
        let long = vec![b'x'; 257];
        match self.rng.u8(..6) {
            0 => written(RequestKind::Fatal(Some("error")), "l", &long, b"10"),
            1 => written(RequestKind::Fatal(Some("error")), "ping", b"_", &long),
            2 => written(RequestKind::Fatal(Some("error")), "l", b"k0", &[b'\r'; 600]),
            3 => written(
                RequestKind::Fatal(None),
                "GET /k0 HTTP/1.1",
                b"Host: x",
                b"",
            ),
            4 => written(RequestKind::Fatal(None), "\x16\x03\x01", b"", b""),
            _ => written(RequestKind::Fatal(None), "Host: localhost", b"l", b"k0"),
        }
    }

    // ---- what frames are made of ----

    fn key_and_mode(&mut self) -> (usize, Mode) {
        let key = self.rng.usize(..self.plan.keys.len());
        let mode = if self.rng.u8(..100) < self.plan.mismatch_pct {
            let limit = self.rng.u32(1..=3);
            *pick(self.rng, &[Mode::Slot { limit }, Mode::Write])
        } else {
            self.plan.keys[key].1
        };
        match mode {
            Mode::Write if self.rng.bool() => (key, Mode::Read),
            Mode::Lead if self.rng.u8(..4) == 0 => (key, Mode::Slot { limit: 1 }),
            mode => (key, mode),
        }
    }

    /// A lease, and its text with a blank before it; no text where the default is asked for.
    fn lease(&mut self) -> (Millis, String) {
        if self.rng.u8(..6) == 0 {
            return (self.plan.rules.lease_default, String::new());
        }
        let lease = Millis(*pick(self.rng, &self.plan.leases_ms));
        (lease, format!(" {}", self.span(lease)))
    }

    pub(crate) fn span(&mut self, span: Millis) -> String {
        match self.rng.u8(..8) {
            0 if span.0.is_multiple_of(1_000) => format!("+00{}", span.0 / 1_000),
            1 if span.0.is_multiple_of(1_000) => format!("{}s", span.0 / 1_000),
            2..7 if span.0.is_multiple_of(1_000) => format!("{}", span.0 / 1_000),
            _ => format!("{}ms", span.0),
        }
    }

    fn own_token(&mut self) -> Option<(usize, String, Option<u64>)> {
        let held = self.known_grants.held_by(self.number, self.now);
        if held.is_empty() {
            return None;
        }
        let fence = *pick(self.rng, &held);
        let grant = self.known_grants.get(fence)?;
        Some((grant.key, grant.token.clone(), Some(fence)))
    }

    /// The token of something that was restored, and that nobody has claimed yet.
    fn unclaimed_token(&mut self) -> Option<(usize, String, Option<u64>)> {
        let unclaimed = self.known_grants.held_by(0, self.now);
        if unclaimed.is_empty() {
            return None;
        }
        let fence = *pick(self.rng, &unclaimed);
        let grant = self.known_grants.get(fence)?;
        Some((grant.key, grant.token.clone(), Some(fence)))
    }

    fn odd_token(&mut self) -> (usize, String, Option<u64>) {
        let key = self.rng.usize(..self.plan.keys.len());
        let count = self.known_grants.len();
        if count == 0 || self.rng.u8(..8) == 0 {
            let garbage = [
                "x",
                "0",
                "00000000000000000000000000000000",
                "no token at all",
            ];
            return (key, (*pick(self.rng, &garbage)).to_owned(), None);
        }
        // Recent grants are the more interesting ones.
        let back = if self.rng.bool() { count.min(6) } else { count };
        let (fence, grant) = self
            .known_grants
            .nth(count - 1 - self.rng.usize(..back))
            .expect("within the count");
        match self.rng.u8(..6) {
            0 => (
                key,
                grant.token.clone(),
                (key == grant.key).then_some(fence),
            ),
            1 => {
                // The right fence with a guessed salt.
                let guess = format!("{}{:016x}", &grant.token[..16], self.rng.u64(..));
                (grant.key, guess, None)
            }
            _ => (grant.key, grant.token.clone(), Some(fence)),
        }
    }

    fn keyed(
        &mut self,
        kind: RequestKind,
        verb: &str,
        key: usize,
        argument: &str,
    ) -> WrittenRequest {
        let mut written = written(kind, verb, &self.plan.keys[key].0, argument.as_bytes());
        if self.rng.u8(..24) == 0 {
            // The server drops CRs wherever they stand.
            written.frame = written.frame.iter().fold(Vec::new(), |mut frame, &byte| {
                if byte == b'\n' {
                    frame.push(b'\r');
                }
                frame.push(byte);
                frame
            });
        }
        written.with_fence = match self.plan.settings.wire_fence {
            WireFence::Always => true,
            WireFence::Never => false,
            WireFence::Auto => {
                let always = [
                    "rl", "wl", "rn", "wn", "re", "we", "rw", "ww", "elect", "reclaim",
                ];
                let otherwise = self.conn.hello_fence.unwrap_or(self.conn.reads_fence);
                always.contains(&verb) || otherwise
            }
        };
        written
    }
}

pub(crate) fn written(
    kind: RequestKind,
    verb: &str,
    key: &[u8],
    argument: &[u8],
) -> WrittenRequest {
    // What clients that do not read the fence may send too.
    const PLAIN: &str =
        "l r n e w sl sr sn se sw auth stats ping listen unlisten signal hello who pos";
    let mut frame = Vec::new();
    client::push_frame(&mut frame, verb.as_bytes(), key, argument);
    WrittenRequest {
        kind,
        verb: Verb::parse(verb.as_bytes()),
        frame,
        with_fence: false,
        shows_fence_reader: !PLAIN.split(' ').any(|plain| plain == verb),
        http: None,
    }
}
