//! The words these tests are written in: a server over pipes, its clients by either door, and answers
//! read as a strict client reads them.
//!
//! What holds for every answer is checked here, once: it says how long it is and is that long, JSON
//! ends with a line end and is not to be cached, and the id of the request comes back.

use std::cell::Cell;

use latch_sim::pipe::{ORIGIN, Pipes};
use latchd::base::{Millis, Nanos};
use latchd::engine::{Engine, Rules};
use latchd::server::{Door, Holdings, Host, HttpSettings, Server, Settings};
use latchd::store::{Memory, Store};
use serde_json::Value;

thread_local! {
    /// The time of day, which follows the clock of the world that was moved last on this thread.
    static UNIX_MS: Cell<u64> = const { Cell::new(0) };
}

/// When a world begins: at a whole millisecond, so that times of day are whole as well.
pub(crate) const BEGIN: Nanos = Nanos(1_000_000);

/// A server, its clients and the time. Times of day count from the start of the world.
pub(crate) struct World<S = Memory> {
    pub(crate) pipes: Pipes<S>,
}

/// An answer, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// What `settings` says, with a time of day that the world moves.
fn with_clock(settings: Settings) -> Settings {
    UNIX_MS.set(0);
    Settings {
        http: HttpSettings {
            unix_ms: || UNIX_MS.get(),
            ..settings.http
        },
        ..settings
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self::with_rules(Rules::default(), settings)
    }

    pub(crate) fn with_rules(rules: Rules, settings: Settings) -> Self {
        Self::over(Engine::new(rules, ORIGIN), settings, Memory)
    }
}

impl<S: Store> World<S> {
    pub(crate) fn over(engine: Engine, settings: Settings, store: S) -> Self {
        let server = Server::with_store(with_clock(settings), engine, store);
        let mut pipes = Pipes::new(server);
        pipes.begin_at(BEGIN);
        Self { pipes }
    }

    // ---- clients ----

    /// A client that speaks HTTP.
    pub(crate) fn http(&mut self) -> usize {
        self.pipes.connect_to(Door::Http)
    }

    /// One from this host.
    pub(crate) fn http_from(&mut self, host: Host) -> usize {
        self.pipes.connect_from_to(host, Door::Http)
    }

    /// A client that speaks the line protocol.
    pub(crate) fn line(&mut self) -> usize {
        self.pipes.connect()
    }

    // ---- time ----

    /// A turn, and more for as long as the server has something to do, which must come to an end.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        const TURNS_MAX: u32 = 10_000;
        self.pipes.turn();
        let mut turns = 1;
        while self
            .pipes
            .server
            .next_deadline()
            .is_some_and(|at| at <= self.pipes.now())
        {
            self.pipes.turn();
            turns += 1;
            assert!(turns < TURNS_MAX, "the server never comes to rest");
        }
    }

    /// Time passes, and the server does what is due on the way.
    pub(crate) fn pass(&mut self, ms: u64) {
        const STEP_MS: u64 = 250;
        let mut left = ms;
        while left > 0 {
            let step = left.min(STEP_MS);
            left -= step;
            self.sleep(step);
            self.settle();
        }
    }

    /// Time passes and the server does not notice yet.
    pub(crate) fn sleep(&mut self, ms: u64) {
        self.pipes.pass(Millis(ms));
        UNIX_MS.set(self.pipes.now().since(BEGIN) / 1_000_000);
    }

    // ---- what clients do ----

    /// Bytes arrive, and the server comes to rest.
    pub(crate) fn send(&mut self, who: usize, bytes: impl AsRef<[u8]>) {
        self.pipes.send(who, bytes.as_ref());
        self.settle();
    }

    /// Sends a request without waiting for its answer: `METHOD /path`, perhaps headers in brackets,
    /// perhaps a body.
    pub(crate) fn say(&mut self, who: usize, request: &str) {
        self.send(who, spelled(request));
    }

    /// Sends a request and reads its answer, which must be there at once and alone.
    #[track_caller]
    pub(crate) fn ask(&mut self, who: usize, request: &str) -> Answer {
        self.say(who, request);
        let answer = self.answer(who);
        let id = request.split_once("[X-Request-ID: ");
        if let Some((id, _)) = id.and_then(|(_, it)| it.split_once(']')) {
            assert_eq!(answer.header("X-Request-ID"), Some(id), "{request}");
        }
        answer
    }

    /// The one answer that a client has got since it last read.
    #[track_caller]
    pub(crate) fn answer(&mut self, who: usize) -> Answer {
        let answers = self.answers(who);
        let [answer] = &answers[..] else {
            panic!("not one answer: {answers:#?}");
        };
        answer.clone()
    }

    /// All answers that a client has got since it last read, none of them in part.
    #[track_caller]
    pub(crate) fn answers(&mut self, who: usize) -> Vec<Answer> {
        let text = self.pipes.read(who);
        let mut rest = text.as_str();
        let mut answers = Vec::new();
        while !rest.is_empty() {
            let (answer, after) = Answer::read(rest, false);
            answers.push(answer);
            rest = after;
        }
        answers
    }

    /// The client breaks its connection.
    pub(crate) fn leave(&mut self, who: usize) {
        self.pipes.reset(who);
        self.settle();
    }

    /// The server has said that it will say no more.
    pub(crate) fn is_ended(&self, who: usize) -> bool {
        self.pipes.peer(who).is_ended()
    }

    /// Everybody leaves, everything has had its time, and nothing is left.
    #[track_caller]
    pub(crate) fn finish(&mut self) {
        for who in self.pipes.everyone() {
            self.pipes.reset(who);
        }
        self.settle();
        for span in [Millis::from_secs(1_000), Millis::from_secs(1_000)] {
            self.pipes.pass(span);
            self.settle();
        }
        let mut left = self.pipes.server.holdings();
        left.engine.others = 0; // counters, values and lists are to stay
        assert_eq!(left, Holdings::default(), "something is left behind");
    }

    // ---- leases, because most tests have some ----

    /// Takes a lock at once.
    #[track_caller]
    pub(crate) fn acquire(&mut self, who: usize, lock: &str, owner: &str, ttl_ms: u64) -> Lease {
        let answer = self.try_acquire(who, lock, owner, ttl_ms);
        assert_eq!(answer.status, 200, "{answer:?}");
        Lease::of(&answer)
    }

    #[track_caller]
    pub(crate) fn try_acquire(
        &mut self,
        who: usize,
        lock: &str,
        owner: &str,
        ttl_ms: u64,
    ) -> Answer {
        let body = format!("{{\"owner_id\":\"{owner}\",\"ttl_ms\":{ttl_ms}}}");
        self.ask(who, &format!("POST /v1/locks/{lock}/acquire {body}"))
    }

    #[track_caller]
    pub(crate) fn renew(&mut self, who: usize, lease: &Lease, extend_by_ms: u64) -> Answer {
        let Lease { lock, hold, .. } = lease;
        let body = format!("{{{hold},\"extend_by_ms\":{extend_by_ms}}}");
        self.ask(who, &format!("POST /v1/locks/{lock}/renew {body}"))
    }

    #[track_caller]
    pub(crate) fn release(&mut self, who: usize, lease: &Lease) -> Answer {
        let Lease { lock, hold, .. } = lease;
        self.ask(who, &format!("POST /v1/locks/{lock}/release {{{hold}}}"))
    }
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) lock: String,
    pub(crate) fence: u64,
    pub(crate) id: String,
    /// The fields that name it in a request.
    hold: String,
}

impl Lease {
    #[track_caller]
    pub(crate) fn of(answer: &Answer) -> Self {
        let json = answer.json();
        let text = |name: &str| json[name].as_str().unwrap().to_owned();
        let (id, fence) = (text("lease_id"), json["fencing_token"].as_u64().unwrap());
        let owner = &json["owner_id"];
        Self {
            lock: text("lock_name"),
            fence,
            hold: format!("\"owner_id\":{owner},\"lease_id\":\"{id}\",\"fencing_token\":{fence}"),
            id,
        }
    }
}

/// The request that `METHOD /path [Header: value] body` stands for. `Host` and the type of a body
/// are as a client of ours has them, unless they are said; `[Header]` leaves one out, and the first
/// bracket may be `[HTTP/1.0]`.
pub(crate) fn spelled(request: &str) -> String {
    let (line, mut rest) = request.split_once([' ']).unwrap();
    let (target, after) = rest.split_once(' ').unwrap_or((rest, ""));
    rest = after;
    let (mut version, mut headers) = ("HTTP/1.1", Vec::new());
    while let Some((header, after)) = rest.strip_prefix('[').and_then(|it| it.split_once(']'))
        && header.starts_with(|it: char| it.is_ascii_uppercase())
    {
        rest = after.trim_start();
        match header {
            "HTTP/1.0" => version = header,
            header => headers.push(header.to_owned()),
        }
    }
    let says = |headers: &[String], name: &str| {
        let starts = |it: &String| it.split(':').next() == Some(name);
        headers.iter().any(starts)
    };
    if !says(&headers, "Host") {
        headers.push("Host: localhost:6389".to_owned());
    }
    if !rest.is_empty() && !says(&headers, "Content-Type") {
        headers.push("Content-Type: application/json".to_owned());
    }
    if !rest.is_empty() && !says(&headers, "Content-Length") {
        headers.push(format!("Content-Length: {}", rest.len()));
    }
    headers.retain(|header| header.contains(':'));
    let headers: String = headers.iter().map(|it| format!("{it}\r\n")).collect();
    format!("{line} {target} {version}\r\n{headers}\r\n{rest}")
}

impl Answer {
    /// The answer that the text begins with, and the rest. `is_head` is whether it is one to HEAD.
    #[track_caller]
    pub(crate) fn read(text: &str, is_head: bool) -> (Self, &str) {
        let (head, mut rest) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("half a head: {text:?}"));
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap();
        let status = status_line.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| {
            panic!("not an answer: {text:?}");
        });
        let status = status[..3].parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        };
        let mut answer = Self {
            status,
            headers: lines.map(header).collect(),
            body: String::new(),
        };
        let length = answer.header("Content-Length").map(str::parse::<usize>);
        if let Some(length) = length {
            let length = length.unwrap();
            assert!(is_head || rest.len() >= length, "half a body: {text:?}");
            if !is_head && status != 304 {
                (answer.body, rest) = (rest[..length].to_owned(), &rest[length..]);
            }
            answer.check(is_head);
        }
        (answer, rest)
    }

    /// What holds for every answer.
    #[track_caller]
    fn check(&self, is_head: bool) {
        for (name, _) in &self.headers {
            let same = self.headers.iter().filter(|(it, _)| it == name);
            assert_eq!(same.count(), 1, "{name} stands twice: {self:?}");
        }
        let shown = self.shown();
        let is_file = self.header("ETag").is_some();
        let cache = if is_file { "no-cache" } else { "no-store" };
        assert_eq!(self.header("Cache-Control"), Some(cache), "{shown}");
        if self.header("Content-Type") == Some("application/json") {
            let is_json = || serde_json::from_str::<Value>(&self.body).is_ok();
            assert!(is_head || self.body.ends_with('\n') && is_json(), "{shown}");
        }
        if let Some(id) = self.header("X-Request-ID") {
            let is_visible = id.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(is_visible && (1..=128).contains(&id.len()), "{shown}");
        }
    }

    /// A header, by its name as we write it.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// Status and body, without its line end.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.status, self.body.trim_end())
    }

    /// What `"reason"` says.
    #[track_caller]
    pub(crate) fn reason(&self) -> String {
        self.json()["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}
