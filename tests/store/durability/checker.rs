//! The checker: what clients were told, what they had under way, and whether a daemon that came back
//! still has it.
//!
//! A [`Player`] sends a few requests at a time, all about keys of its own, and notes every answer. So
//! it knows what must be there after a crash: everything that was acknowledged, and of what was sent
//! and not answered a *beginning*, because requests are decided in their order. Grants it never heard
//! of are known by their fences only. A [`Contender`] takes and passes on a key that others want as
//! well; an [`Observer`] looks at a counter that only grows, and what it has seen must stay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::Sender;

use fastrand::Rng;
use latchd::wire::client::{self, frame};
use serde_json::Value;

use crate::durability::model::{Grant, KINDS, Kind, Op, State, answer_with, fence_of, kind_of};
use crate::vocabulary::{Client, PATIENCE};

/// Most requests that a player has under way.
const PIPELINE_MAX: usize = 8;

/// Leases are multiples of this, and far longer than any test: what is left of one tells which it is.
const LEASE_STEP_S: u64 = 100;

/// What a daemon that was told to stop answers to who would take something: nothing was changed.
const DRAINING: &str = "error_draining";

/// A connection that may end at any moment.
struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// None if nobody is there any more.
    fn open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream);
        let mut connection = Self { reader };
        connection.send(&frame("hello _ fence=1"))?;
        connection.line()?;
        Some(connection)
    }

    fn send(&mut self, frames: &str) -> Option<()> {
        self.reader.get_mut().write_all(frames.as_bytes()).ok()
    }

    /// The next line; none if the connection ended before it was complete.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) | Ok(0) => None,
            Ok(_) => line.strip_suffix('\n').map(str::to_owned),
        }
    }

    fn ask(&mut self, request: &str) -> Option<String> {
        self.send(&frame(request))?;
        self.line()
    }
}

/// Every fence that anybody has heard of.
#[derive(Default)]
pub(crate) struct Fences(Mutex<BTreeSet<u64>>);

impl Fences {
    /// A grant with this fence was heard of.
    #[track_caller]
    fn hear(&self, fence: u64) {
        let is_new = self.0.lock().unwrap().insert(fence);
        assert!(is_new, "the fence {fence} was given out twice");
    }

    pub(crate) fn highest(&self) -> u64 {
        self.0.lock().unwrap().last().copied().unwrap_or(0)
    }

    fn knows(&self, fence: u64) -> bool {
        self.0.lock().unwrap().contains(&fence)
    }
}

/// What threads of one round share.
#[derive(Clone, Copy)]
pub(crate) struct Round<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) fences: &'a Fences,
}

/// How the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// From one moment to the next.
    Crash,
    /// In order. From some moment on it gives out nothing more, and does all else that it is asked
    /// for. A value whose answer it cannot send goes back to its list, so no player takes one out.
    Stop,
}

/// A client with keys of its own.
pub(crate) struct Player {
    name: String,
    rng: Rng,
    /// What was acknowledged.
    told: State,
    /// What was sent after that, in order.
    under_way: VecDeque<Op>,
    /// Part of the names of keys that can be held: a key that somebody unknown holds is left alone.
    generations: BTreeMap<&'static str, u32>,
    end: End,
}

impl Player {
    pub(crate) fn new(number: usize, seed: u64, end: End) -> Self {
        Self {
            name: format!("p{number}"),
            rng: Rng::with_seed(seed),
            told: State::default(),
            under_way: VecDeque::new(),
            generations: BTreeMap::new(),
            end,
        }
    }

    /// A counter of this player's that only grows.
    pub(crate) fn growing_counter(&self) -> String {
        format!("{}-growing", self.name)
    }

    /// Sends and notes until the daemon is gone. Every acknowledgement is told to `heard`.
    pub(crate) fn play(&mut self, round: Round<'_>, heard: &Sender<()>) -> Option<()> {
        let mut connection = Connection::open(round.address)?;
        loop {
            let mut expected = self.told.clone();
            let mut frames = String::new();
            for _ in 0..self.rng.usize(1..=PIPELINE_MAX) {
                let op = self.choose(&expected);
                op.apply(&mut expected, None);
                frames += &op.frame();
                self.under_way.push_back(op);
            }
            connection.send(&frames)?;
            while let Some(op) = self.under_way.front() {
                let answer = connection.line()?;
                if answer == DRAINING {
                    self.under_way.pop_front();
                    continue;
                }
                let mut token = None;
                match op.answer(&self.told) {
                    Some(expected) => assert_eq!(answer, expected, "{}: {op:?}", self.name),
                    None => {
                        let grant = client::Grant::read(answer.as_bytes());
                        let grant = grant.unwrap_or_else(|| panic!("{op:?}: {answer}"));
                        round.fences.hear(grant.token.fence.0);
                        token = Some(String::from_utf8(grant.token.hex().to_vec()).unwrap());
                    }
                }
                op.apply(&mut self.told, token);
                self.under_way.pop_front();
                let _ = heard.send(()); // nobody counts after the crash
            }
        }
    }

    fn key(&self, kind: &Kind) -> String {
        let generation = self.generations.get(kind.name).unwrap_or(&0);
        format!("{}-{}-{generation}", self.name, kind.name)
    }

    fn choose(&mut self, state: &State) -> Op {
        let name = self.name.clone();
        let number = self.rng.u32(0..3);
        let lease_s = LEASE_STEP_S * self.rng.u64(10..20);
        match self.rng.u32(0..20) {
            0..=9 => {
                let kind = self.rng.choice(KINDS).unwrap();
                let key = self.key(&kind);
                let grants = state.grants.get(&key).map_or(&[][..], Vec::as_slice);
                let known = grants.iter().filter_map(|grant| grant.token.clone());
                let known: Vec<String> = known.collect();
                if grants.len() < kind.slots && (known.is_empty() || self.rng.bool()) {
                    return Op::Take(kind, key, lease_s);
                }
                match self.rng.choice(&known).cloned() {
                    None => Op::Add(self.growing_counter(), 1),
                    Some(token) if self.rng.bool() => Op::Renew(kind, key, token, lease_s),
                    Some(token) => Op::LetGo(kind, key, token),
                }
            }
            10..=11 => Op::Add(self.growing_counter(), 1),
            12 => Op::Add(format!("{name}-c{number}"), self.rng.i64(-9..9)),
            13 => Op::Set(format!("{name}-c{number}"), self.rng.i64(-9..9)),
            14..=16 => {
                let (key, value) = (format!("{name}-v{number}"), self.value());
                match (state.values.get(&key), self.rng.u32(0..5)) {
                    (Some(_), 0) => Op::Delete(key),
                    (Some(old), 1) => Op::Swap(key, old.clone(), value),
                    (None, 1) => Op::Swap(key, String::new(), value),
                    (_, 2) => Op::StoreFor(key, value, 100_000),
                    _ => Op::Store(key, value),
                }
            }
            17..=18 => {
                let value = self.value();
                Op::Push(self.rng.bool(), format!("{name}-l{number}"), value)
            }
            _ if self.end == End::Stop => Op::Add(self.growing_counter(), 1),
            _ => Op::Pop(self.rng.bool(), format!("{name}-l{number}")),
        }
    }

    fn value(&mut self) -> String {
        let len = match self.rng.u32(0..50) {
            0 => self.rng.usize(0..20_000),
            _ => self.rng.usize(0..100),
        };
        format!("{}{}", self.rng.u64(..), "x".repeat(len))
    }

    /// The daemon is back: what it has must be what was told, and a beginning of what was under way.
    /// Then everything that is held is had back, or left to its lease.
    pub(crate) fn check(&mut self, client: &mut Client, fences: &Fences) {
        let under_way: Vec<Op> = self.under_way.drain(..).collect();
        let mut states = Vec::new();
        let refused_from = match self.end {
            End::Crash => under_way.len()..=under_way.len(),
            End::Stop => 0..=under_way.len(),
        };
        for refused_from in refused_from {
            let mut state = self.told.clone();
            states.push(state.clone());
            for (number, op) in under_way.iter().enumerate() {
                if number < refused_from || !matches!(op, Op::Take(..)) {
                    op.apply(&mut state, None);
                }
                states.push(state.clone());
            }
        }
        let seen = Seen::look(client, &states);
        let Some(state) = states.iter().position(|state| seen.is(state)) else {
            let mut said = String::new();
            for state in &states {
                writeln!(said, "{}", seen.difference(state)).unwrap();
            }
            panic!(
                "{}: what was found is neither what was told nor that and a beginning of the {} \
                 requests under way. Differences from each:\n{said}",
                self.name,
                under_way.len()
            );
        };
        self.told = states.swap_remove(state);
        for (fence, _) in seen.grants.values().flatten() {
            if self.told_fence(*fence).is_none() {
                fences.hear(*fence); // it must be new
            }
        }
        self.have_back(client);
        self.leave_alone_what_strangers_hold();
    }

    fn told_fence(&self, fence: u64) -> Option<&Grant> {
        let of = |grant: &&Grant| {
            grant
                .token
                .as_deref()
                .is_some_and(|it| fence_of(it) == fence)
        };
        self.told.grants.values().flatten().find(of)
    }

    /// Some with a renewal, some with `reclaim`, and some are left alone: they are held as well.
    fn have_back(&mut self, client: &mut Client) {
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for (key, grants) in &self.told.grants {
            for Grant { token, lease_s } in grants {
                let Some(token) = token else { continue };
                let fence = fence_of(token);
                match self.rng.u32(0..3) {
                    0 => {
                        let renew = kind_of(key).renew;
                        requests.push(format!("{renew} {key} {token} {LEASE_STEP_S}"));
                        answers.push(format!("ok {LEASE_STEP_S} {fence}"));
                    }
                    1 => {
                        requests.push(format!("reclaim {key} {token}"));
                        answers.push(format!("ok {token} {lease_s} {fence}"));
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(ask_all(client, &requests), answers, "{requests:#?}");
    }

    fn leave_alone_what_strangers_hold(&mut self) {
        for kind in &KINDS {
            let key = self.key(kind);
            let grants = self.told.grants.get(&key).map_or(&[][..], Vec::as_slice);
            if grants.iter().any(|grant| grant.token.is_none()) {
                self.told.grants.remove(&key);
                *self.generations.entry(kind.name).or_default() += 1;
            }
        }
    }
}

/// What a daemon that came back says of a player's keys.
struct Seen {
    /// Fence and lease, in the order of the fences.
    grants: BTreeMap<String, Vec<(u64, u64)>>,
    counters: BTreeMap<String, String>,
    values: BTreeMap<String, String>,
    lists: BTreeMap<String, Value>,
}

impl Seen {
    fn look(client: &mut Client, states: &[State]) -> Self {
        let keys = |keys: &dyn Fn(&State) -> Vec<String>| -> BTreeSet<String> {
            states.iter().flat_map(keys).collect()
        };
        let held = keys(&|state| state.grants.keys().cloned().collect());
        let counters = keys(&|state| state.counters.keys().cloned().collect());
        let values = keys(&|state| state.values.keys().cloned().collect());
        let lists = keys(&|state| state.lists.keys().cloned().collect());
        let mut requests = Vec::new();
        requests.extend(held.iter().map(|key| format!("who {key} _")));
        requests.extend(counters.iter().map(|key| format!("get {key} _")));
        requests.extend(values.iter().map(|key| format!("kget {key} _")));
        requests.extend(lists.iter().map(|key| format!("lrange {key} 0 -1")));
        let mut answers = ask_all(client, &requests).into_iter();
        // In the order of the requests.
        Self {
            grants: held
                .into_iter()
                .zip(answers.by_ref())
                .map(|(key, answer)| (key, holders(&answer)))
                .collect(),
            counters: counters.into_iter().zip(answers.by_ref()).collect(),
            values: values.into_iter().zip(answers.by_ref()).collect(),
            lists: lists
                .into_iter()
                .zip(answers)
                .map(|(key, answer)| (key, document(&answer)))
                .collect(),
        }
    }

    fn is(&self, state: &State) -> bool {
        self.difference(state).is_empty()
    }

    /// What is not as in this state, in words.
    fn difference(&self, state: &State) -> String {
        let mut said = String::new();
        let mut note = |key: &str, seen: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
            let (mut seen, mut expected) = (format!("{seen:?}"), format!("{expected:?}"));
            seen.truncate(300);
            expected.truncate(300);
            write!(said, "[{key}: {seen} instead of {expected}] ").unwrap();
        };
        for (key, seen) in &self.grants {
            let grants = state.grants.get(key).map_or(&[][..], Vec::as_slice);
            let mut seen_left = seen.clone();
            let is_there = |grant: &Grant| {
                let is_it = |&(fence, lease_s): &(u64, u64)| {
                    let known = grant.token.as_deref().map(fence_of);
                    known.is_none_or(|known| known == fence) && lease_s == grant.lease_s
                };
                let at = seen_left.iter().position(is_it);
                at.map(|at| seen_left.remove(at)).is_some()
            };
            // Those with a known fence first: the others may be any.
            let (known, unknown): (Vec<&Grant>, Vec<&Grant>) =
                grants.iter().partition(|grant| grant.token.is_some());
            let all = known.into_iter().chain(unknown).all(is_there);
            if !all || seen.len() != grants.len() {
                note(key, seen, &grants);
            }
        }
        for (key, seen) in &self.counters {
            let expected = format!("ok {}", state.counters.get(key).unwrap_or(&0));
            if *seen != expected {
                note(key, seen, &expected);
            }
        }
        for (key, seen) in &self.values {
            let value = state.values.get(key);
            let expected = answer_with(value);
            if *seen != expected {
                note(key, seen, &expected);
            }
        }
        let nothing = VecDeque::new();
        for (key, seen) in &self.lists {
            let list = state.lists.get(key).unwrap_or(&nothing);
            let expected: Vec<Value> = list.iter().cloned().map(Value::String).collect();
            if *seen != Value::Array(expected.clone()) {
                note(key, seen, &expected);
            }
        }
        said
    }
}

/// Sends all requests before it reads the first answer.
#[track_caller]
fn ask_all(client: &mut Client, requests: &[String]) -> Vec<String> {
    let frames: String = requests.iter().map(|request| frame(request)).collect();
    client.raw(frames);
    requests.iter().map(|_| client.line()).collect()
}

#[track_caller]
fn document(answer: &str) -> Value {
    let json = answer
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("{answer}"));
    serde_json::from_str(json).unwrap()
}

/// Fence and lease of each holder, from the answer to `who`.
#[track_caller]
fn holders(answer: &str) -> Vec<(u64, u64)> {
    let who = document(answer);
    let holders = who["holders"].as_array().unwrap();
    let mut holders: Vec<(u64, u64)> = holders
        .iter()
        .map(|holder| {
            let left_s = holder["lease_left_s"].as_f64().unwrap();
            let lease_s = (left_s / LEASE_STEP_S as f64).ceil() as u64 * LEASE_STEP_S;
            (holder["fence"].as_u64().unwrap(), lease_s)
        })
        .collect();
    holders.sort_unstable();
    holders
}

/// A client that wants a key which others want as well.
#[derive(Default)]
pub(crate) struct Contender {
    /// What it was granted, and whether it has begun to let go.
    holds: Option<(String, bool)>,
    /// What it was granted and let go, both acknowledged.
    let_go: BTreeSet<u64>,
}

impl Contender {
    /// Takes and lets go until the daemon is gone.
    pub(crate) fn contend(
        &mut self,
        key: &str,
        round: Round<'_>,
        heard: &Sender<()>,
    ) -> Option<()> {
        let mut connection = Connection::open(round.address)?;
        loop {
            let answer = connection.ask(&format!("l {key} {} 600", PATIENCE.as_secs()))?;
            if answer == DRAINING {
                return None;
            }
            let grant = client::Grant::read(answer.as_bytes());
            let grant = grant.unwrap_or_else(|| panic!("{answer}"));
            round.fences.hear(grant.token.fence.0);
            let token = String::from_utf8(grant.token.hex().to_vec()).unwrap();
            let let_go = format!("r {key} {token}");
            let fence = grant.token.fence.0;
            self.holds = Some((token, false));
            let _ = heard.send(());
            if let Some((_, lets_go)) = &mut self.holds {
                *lets_go = true;
            }
            let answer = connection.ask(&let_go)?;
            assert_eq!(answer, "ok");
            self.holds = None;
            self.let_go.insert(fence);
            let _ = heard.send(());
        }
    }
}

/// Checks one key that several wanted.
#[track_caller]
pub(crate) fn check_contended(
    key: &str,
    contenders: &[Contender],
    client: &mut Client,
    fences: &Fences,
) {
    let holders = holders(&client.ask(&format!("who {key} _")));
    assert!(holders.len() <= 1, "{key} has several holders: {holders:?}");
    let holder = holders.first().map(|&(fence, _)| fence);
    for contender in contenders {
        if let Some(fence) = holder {
            assert!(!contender.let_go.contains(&fence), "{fence} was let go");
        }
        if let Some((token, false)) = &contender.holds {
            assert_eq!(holder, Some(fence_of(token)), "{token} was granted {key}");
        }
    }
    let granted = contenders.iter().filter_map(|it| it.holds.as_ref());
    let mut granted = granted.map(|(token, _)| fence_of(token));
    if let Some(fence) = holder.filter(|fence| !granted.any(|it| it == *fence)) {
        assert!(!fences.knows(fence), "{fence} was somebody else's");
        fences.hear(fence);
    }
}

/// A client that only looks, at counters that only grow.
#[derive(Default)]
pub(crate) struct Observer {
    highest: BTreeMap<String, i64>,
}

impl Observer {
    /// Looks until the daemon is gone.
    pub(crate) fn watch(&mut self, keys: &[String], round: Round<'_>) -> Option<()> {
        let mut connection = Connection::open(round.address)?;
        loop {
            for key in keys {
                let number = number(&connection.ask(&format!("get {key} _"))?);
                self.highest.insert(key.clone(), number);
            }
        }
    }

    /// What was seen by anybody is still there.
    #[track_caller]
    pub(crate) fn check(&self, client: &mut Client) {
        for (key, highest) in &self.highest {
            let number = number(&client.ask(&format!("get {key} _")));
            assert!(
                number >= *highest,
                "{key} was seen at {highest}, and is {number}"
            );
        }
    }
}

fn number(answer: &str) -> i64 {
    let number = answer.strip_prefix("ok ").and_then(|it| it.parse().ok());
    number.unwrap_or_else(|| panic!("{answer}"))
}
