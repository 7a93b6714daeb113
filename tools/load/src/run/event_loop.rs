//! The event loop of a run: one thread, many connections, each with a few cycles under way.
//!
//! A run connects, warms up, measures, lets everything end, and returns an [`Outcome`]. In a closed
//! loop a cycle starts when the one before it ended; in an open loop cycles are due at fixed times
//! and latency counts from when they were due, so a slow server cannot hide its queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::mem;
use std::time::Duration;

use mio::{Events, Poll, Token};

use crate::clock::Clock;
use crate::machine::CpuTime;
use crate::run::alarm::{ALARM, Alarm};
use crate::run::client::codec_for;
use crate::run::codec::{ANSWER_BYTES_MAX, Answer};
use crate::run::conn::{Conn, Received};
use crate::run::cycles::{Cycles, Next};
use crate::run::outcome::Outcome;
use crate::run::spec::{Rest, Spec};
use crate::servers::target::{Stream, Target};

/// How long the introductions may take before the first cycle.
const SETUP_NS_MAX: u64 = 10_000_000_000;

/// Longest sleep, so that the stages of a run begin in time.
const NAP_NS_MAX: u64 = 50_000_000;

/// `poll` counts in milliseconds; for whatever is due sooner, the loop stays awake.
const AWAKE_NS: u64 = 1_500_000;

/// Time between two progress lines.
const PROGRESS_NS: u64 = 250_000_000;

/// The stage of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Warming,
    Measuring,
    Draining,
}

/// What the loop calls while it runs.
pub(crate) struct Hooks<'a> {
    /// Called with the answers so far, and the part of the measuring time that is over; `None`
    /// while it warms up.
    pub(crate) progress: &'a dyn Fn(u64, Option<f64>),
    /// Called once, when measuring begins.
    pub(crate) begin: Option<Box<dyn FnOnce() + 'a>>,
}

/// Runs `spec` against `target`.
pub(crate) fn run(
    spec: &Spec,
    target: &Target,
    clock: &Clock,
    hooks: Hooks<'_>,
) -> io::Result<Outcome> {
    let codec = codec_for(spec, target)?;
    let idle: Vec<Stream> = (0..spec.idle)
        .map(|_| target.connect())
        .collect::<io::Result<_>>()?;
    let by_http = target.by_http();
    let poll = Poll::new()?;
    let mut conns = Vec::with_capacity(spec.connections);
    for index in 0..spec.connections {
        let door = match &by_http {
            Some(by_http) if index >= spec.connections - spec.over_http => by_http,
            _ => target,
        };
        let stream = door.connect()?;
        conns.push(Conn::new(stream, Token(index), poll.registry())?);
    }
    let alarm = match spec.rest {
        Rest::Deeply => Some(Alarm::new(poll.registry())?),
        Rest::Lightly | Rest::Never => None,
    };
    let cycles = Cycles::new(spec.clone(), target, codec);
    let now = clock.now_ns();
    let mut load = Load {
        spec,
        target,
        clock,
        poll,
        alarm,
        conns,
        cycles,
        timers: BinaryHeap::new(),
        free: VecDeque::new(),
        due_ns: now,
        interval_ns: spec.rate.map_or(0, |rate| 1_000_000_000 / rate),
        stage: Stage::Warming,
        stage_ends_ns: now + spec.warmup_ns,
        began_ns: now,
        cpu: (None, None),
        progress_ns: now,
        hooks,
    };
    load.setup()?;
    load.start();
    load.turns()?;
    drop(idle);
    Ok(load.cycles.finish())
}

struct Load<'a> {
    spec: &'a Spec,
    target: &'a Target,
    clock: &'a Clock,
    poll: Poll,
    /// For a loop that sleeps until the very moment.
    alarm: Option<Alarm>,
    conns: Vec<Conn>,
    cycles: Cycles,
    /// When a worker releases what it holds, or starts again.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Open loop: the workers without a cycle, the longest idle first, so that all get their turn
    /// even at a low rate; and when the next cycle is due.
    free: VecDeque<u32>,
    due_ns: u64,
    interval_ns: u64,
    stage: Stage,
    stage_ends_ns: u64,
    /// When measuring began.
    began_ns: u64,
    cpu: (Option<CpuTime>, Option<CpuTime>),
    progress_ns: u64,
    hooks: Hooks<'a>,
}

impl Load<'_> {
    /// Sends what each connection has to send before its first cycle.
    fn setup(&mut self) -> io::Result<()> {
        for index in 0..self.conns.len() {
            let conn = &mut self.conns[index];
            self.cycles.introduce(index, conn);
            conn.flush(self.poll.registry())?;
        }
        let until_ns = self.clock.now_ns() + SETUP_NS_MAX;
        let mut events = Events::with_capacity(1024);
        while self.conns.iter().any(|conn| !conn.pending.is_empty()) && self.alive(until_ns) {
            self.turn(&mut events, 10_000_000)?;
        }
        Ok(())
    }

    fn alive(&self, until_ns: u64) -> bool {
        !self.cycles.broken && self.clock.now_ns() < until_ns
    }

    /// Starts the first cycle of every worker.
    fn start(&mut self) {
        let now = self.clock.now_ns();
        self.stage_ends_ns = now + self.spec.warmup_ns;
        self.due_ns = now;
        for worker in 0..self.cycles.len() as u32 {
            if self.spec.rate.is_some() {
                self.free.push_back(worker);
            } else {
                self.begin(worker, now);
            }
        }
        self.flush_all();
    }

    /// Runs until all is over.
    fn turns(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let now = self.clock.now_ns();
            if now >= self.stage_ends_ns && !self.next_stage(now) {
                break;
            }
            if self.stage == Stage::Draining && self.cycles.is_over() || self.cycles.broken {
                self.measured(now);
                break;
            }
            if now >= self.progress_ns {
                self.progress_ns = now + PROGRESS_NS;
                let over = now.saturating_sub(self.began_ns) as f64 / self.spec.measure_ns as f64;
                let over = (self.stage != Stage::Warming).then_some(over.min(1.0));
                (self.hooks.progress)(self.cycles.found.answers, over);
            }
            self.fire(now);
            let nap_ns = self.nap_ns(now)?;
            self.turn(&mut events, nap_ns)?;
        }
        let (due_ns, interval_ns) = (self.due_ns, self.interval_ns);
        let found = &mut self.cycles.found;
        found.never_started(due_ns, interval_ns, self.clock.now_ns());
        Ok(())
    }

    /// Begins the next stage; returns whether there is one.
    fn next_stage(&mut self, now: u64) -> bool {
        match self.stage {
            Stage::Warming => {
                self.stage = Stage::Measuring;
                if let Some(begin) = self.hooks.begin.take() {
                    begin();
                }
                self.cycles.forget();
                self.began_ns = now;
                self.cpu = self.cpu_now();
                self.stage_ends_ns = now + self.spec.measure_ns;
            }
            Stage::Measuring => {
                // Cycles that are due by now start if they can; only the others count as behind.
                self.fire(now);
                self.measured(now);
                self.stage = Stage::Draining;
                self.cycles.stopping = true;
                let holds_ns = self.spec.hold_ns * self.spec.connections as u64;
                self.stage_ends_ns = now + self.spec.drain_ns + holds_ns;
            }
            Stage::Draining => {
                self.cycles.lost(now);
                return false;
            }
        }
        true
    }

    /// Measuring ends. Later answers are still checked, and in an open loop their latency counts.
    fn measured(&mut self, now: u64) {
        if self.cycles.stopping {
            return;
        }
        let cpu = self.cpu_now();
        let spent = |before: Option<CpuTime>, after: Option<CpuTime>| Some(after?.since(before?));
        let found = &mut self.cycles.found;
        found.elapsed_ns = now - self.began_ns;
        found.server = spent(self.cpu.0, cpu.0);
        found.load = spent(self.cpu.1, cpu.1);
        if self.spec.rate.is_some() {
            found.behind = now
                .saturating_sub(self.due_ns)
                .div_ceil(self.interval_ns.max(1));
        }
    }

    fn cpu_now(&self) -> (Option<CpuTime>, Option<CpuTime>) {
        (
            self.target.pid.and_then(CpuTime::of),
            CpuTime::of(std::process::id()),
        )
    }

    /// Does what is due now: releases, next cycles, and starts of an open loop.
    fn fire(&mut self, now: u64) {
        let mut wrote = false;
        while let Some(&Reverse((due, worker))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            let conn = &mut self.conns[self.cycles.conn_of(worker)];
            if self.cycles.holds(worker) {
                self.cycles.give(worker, now, conn);
                wrote = true;
            } else if !self.cycles.stopping {
                self.cycles.take(worker, now, conn);
                wrote = true;
            }
        }
        if self.spec.rate.is_some() && !self.cycles.stopping {
            while self.due_ns <= now
                && let Some(worker) = self.free.pop_front()
            {
                // It was free before this was due, so the delay is not the server's.
                let late_ns = now - self.due_ns;
                self.cycles.found.late.saturating_record(late_ns);
                self.begin(worker, now);
                wrote = true;
            }
        }
        if wrote {
            self.flush_all();
        }
    }

    /// Starts a cycle. In an open loop its latency counts from when it was due, however late that
    /// is.
    fn begin(&mut self, worker: u32, now: u64) {
        let mut asked = now;
        if self.spec.rate.is_some() {
            asked = self.due_ns;
            self.due_ns += self.interval_ns;
        }
        let conn = &mut self.conns[self.cycles.conn_of(worker)];
        self.cycles.take(worker, asked, conn);
    }

    fn flush_all(&mut self) {
        for conn in &mut self.conns {
            if !conn.outbox.is_empty()
                && let Err(error) = conn.flush(self.poll.registry())
            {
                self.cycles.breaks(format!("a connection broke: {error}"));
            }
        }
    }

    /// How long `poll` may wait; sets the alarm if there is one.
    fn nap_ns(&self, now: u64) -> io::Result<u64> {
        let mut until = self.stage_ends_ns.min(now + NAP_NS_MAX);
        if let Some(&Reverse((due, _))) = self.timers.peek() {
            until = until.min(due);
        }
        if self.spec.rate.is_some() && !self.free.is_empty() && !self.cycles.stopping {
            until = until.min(self.due_ns);
        }
        let left = until.saturating_sub(now);
        if let Some(alarm) = &self.alarm {
            alarm.set(left)?;
            return Ok(if left == 0 { 0 } else { NAP_NS_MAX });
        }
        let awake = self.spec.rest == Rest::Never || left < AWAKE_NS;
        Ok(if awake { 0 } else { left - 1_000_000 })
    }

    /// Waits for answers, and continues the cycles that got one.
    fn turn(&mut self, events: &mut Events, nap_ns: u64) -> io::Result<()> {
        self.cycles.sent();
        match self.poll.poll(events, Some(Duration::from_nanos(nap_ns))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let mut scratch = mem::take(&mut self.cycles.scratch);
        for event in events.iter() {
            if event.token() == ALARM {
                continue;
            }
            let index = event.token().0;
            if event.is_readable() && !self.cycles.broken {
                self.read(index, &mut scratch);
            }
            let conn = &mut self.conns[index];
            if !conn.outbox.is_empty()
                && let Err(error) = conn.flush(self.poll.registry())
            {
                self.cycles.breaks(format!("a connection broke: {error}"));
            }
        }
        self.cycles.scratch = scratch;
        Ok(())
    }

    /// Reads all answers of a connection, and continues their cycles.
    fn read(&mut self, index: usize, scratch: &mut Vec<u8>) {
        loop {
            let (length, more) = match self.conns[index].read(scratch) {
                Ok(Received::Some(length)) => (length, true),
                Ok(Received::Last(length)) => (length, false),
                Ok(Received::Nothing) => return,
                Ok(Received::End) => {
                    let owed = self.conns[index].pending.len();
                    let what = format!("the server closed a connection and owed {owed} answers");
                    return self.cycles.breaks(what);
                }
                Err(error) => return self.cycles.breaks(format!("a connection broke: {error}")),
            };
            let now = self.clock.now_ns();
            let mut bytes = &scratch[..length];
            while let Some((answer, used)) = self.cycles.codecs.of(index).decode(bytes) {
                bytes = &bytes[used..];
                self.answered(index, answer, now);
            }
            if bytes.len() > ANSWER_BYTES_MAX {
                return self.cycles.breaks("an answer without an end".to_owned());
            }
            self.conns[index].keep(bytes);
            if !more {
                return;
            }
        }
    }

    fn answered(&mut self, index: usize, answer: Answer<'_>, now: u64) {
        let conn = &mut self.conns[index];
        match self.cycles.answered(index, answer, now, conn) {
            Next::Nothing => {}
            Next::At(worker, due) => self.timers.push(Reverse((due, worker))),
            Next::Free(worker) => {
                if self.due_ns <= now {
                    self.begin(worker, now);
                } else {
                    self.free.push_back(worker);
                }
            }
        }
    }
}
