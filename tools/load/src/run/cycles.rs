//! What a connection does: cycle after cycle of take, hold, give and think, for every kind of work.
//!
//! Every answer is checked against what was asked, and every grant against the [`Ledger`]. Writes
//! into outboxes only; `event_loop` owns sockets, time and timers.

use crate::run::codec::{
    Answer, Codec, Key, LockToken, NO_KEY, NO_TOKEN, Request, hex, number, unhex,
};
use crate::run::conn::Conn;
use crate::run::keys::{KeyChooser, key_names};
use crate::run::ledger::{Hold, Ledger, Written};
use crate::run::outcome::Outcome;
use crate::run::spec::{Keys, Spec, Workload};
use crate::servers::target::{Protocol, Target};

/// In `pending`: the answer belongs to what was sent before the first cycle.
const INTRODUCTION: u32 = u32::MAX;

/// One in so many read-write cycles writes.
const WRITES_ONE_IN: u32 = 10;

/// What happens after an answer.
pub(crate) enum Next {
    /// Nothing; the next request is written already, if there is one.
    Nothing,
    /// This worker continues at this time.
    At(u32, u64),
    /// Open loop: this worker can start a cycle.
    Free(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Resting,
    Taking,
    Holding,
    Giving,
}

/// One sequence of cycles. A connection has as many as its pipeline is deep.
#[derive(Clone)]
struct Worker {
    conn: u32,
    key: u32,
    step: Step,
    hold: Hold,
    token: LockToken,
    /// When the request was written, or was due.
    asked_ns: u64,
    written: Written,
    /// The value it stored last.
    value: u64,
}

/// How each connection speaks: the first ones in the server's own way, those behind them over HTTP.
pub(crate) struct Codecs {
    first: Codec,
    /// How many these are.
    count: usize,
    http: Codec,
}

impl Codecs {
    fn new(first: Codec, spec: &Spec) -> Self {
        let http = Codec {
            protocol: Protocol::Http,
            ..first.clone()
        };
        Self {
            first,
            count: spec.connections - spec.over_http,
            http,
        }
    }

    pub(crate) fn of(&self, conn: usize) -> &Codec {
        if self.is_http(conn) {
            &self.http
        } else {
            &self.first
        }
    }

    /// Whether it is one of those behind them.
    fn is_http(&self, conn: usize) -> bool {
        conn >= self.count
    }
}

/// The workers of all connections.
pub(crate) struct Cycles {
    spec: Spec,
    /// Every connection has to show the secret first.
    guarded: bool,
    pub(crate) codecs: Codecs,
    workers: Vec<Worker>,
    keys: Vec<Key>,
    chooser: KeyChooser,
    ledger: Ledger,
    pub(crate) found: Outcome,
    /// How many workers are in a cycle.
    busy: usize,
    seq: u64,
    answered_seq: u64,
    /// No new cycle starts.
    pub(crate) stopping: bool,
    /// The run cannot go on.
    pub(crate) broken: bool,
    /// Reads go here; kept so that it is allocated once.
    pub(crate) scratch: Vec<u8>,
}

impl Cycles {
    pub(crate) fn new(spec: Spec, target: &Target, codec: Codec) -> Self {
        let hold = match spec.workload {
            Workload::Semaphore => Hold::Among(spec.slots),
            _ => Hold::Alone,
        };
        let worker = |index: usize| Worker {
            conn: (index / spec.pipeline) as u32,
            key: index as u32,
            step: Step::Resting,
            hold,
            token: NO_TOKEN,
            asked_ns: 0,
            written: Written::default(),
            value: 0,
        };
        let keys = key_names(&spec);
        // Redis keeps no queue: whoever is refused asks again, and does not wait meanwhile.
        let keeps_queue = target.protocol != Protocol::Resp;
        let queues = keeps_queue && spec.workload == Workload::Lock && spec.keys != Keys::Own;
        let ledger = Ledger::new(keys.len(), target.in_turns, queues);
        Self {
            workers: (0..spec.connections * spec.pipeline).map(worker).collect(),
            keys,
            guarded: target.guarded,
            chooser: KeyChooser::new(&spec),
            ledger,
            codecs: Codecs::new(codec, &spec),
            found: Outcome::new(),
            busy: 0,
            seq: 0,
            answered_seq: 0,
            stopping: false,
            broken: false,
            scratch: Vec::new(),
            spec,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn conn_of(&self, worker: u32) -> usize {
        self.workers[worker as usize].conn as usize
    }

    pub(crate) fn holds(&self, worker: u32) -> bool {
        self.workers[worker as usize].step == Step::Holding
    }

    /// Whether every answer has come.
    pub(crate) fn is_over(&self) -> bool {
        self.busy == 0 && self.ledger.unheard() == 0
    }

    /// Everything written so far has been sent; now the loop waits for answers.
    pub(crate) fn sent(&mut self) {
        self.ledger.sent();
    }

    /// Measuring begins: forgets what was counted while warming up.
    pub(crate) fn forget(&mut self) {
        let wrong = std::mem::take(&mut self.found.wrong);
        self.found = Outcome::new();
        self.found.wrong = wrong;
    }

    /// Whether a latency is recorded. In an open loop nothing starts that was not due while
    /// measuring, so what ends later counts too: a stall at the end would be left out otherwise.
    const fn counts(&self) -> bool {
        !self.stopping || self.spec.rate.is_some()
    }

    /// The time for the last answers is over; those that are missing are lost.
    pub(crate) fn lost(&mut self, now: u64) {
        if self.counts() {
            for worker in &self.workers {
                let latency = now.saturating_sub(worker.asked_ns);
                match worker.step {
                    Step::Taking => {
                        let over_http = self.codecs.is_http(worker.conn as usize);
                        self.found.record_take(over_http, latency);
                    }
                    Step::Giving => self.found.give.saturating_record(latency),
                    Step::Resting | Step::Holding => {}
                }
            }
        }
        let signals = self.ledger.unheard();
        if self.busy > 0 || signals > 0 {
            self.found.wrong.add(format!(
                "{} requests were never answered and {signals} signals never heard",
                self.busy
            ));
        }
    }

    /// The run cannot go on.
    pub(crate) fn breaks(&mut self, why: String) {
        self.broken = true;
        self.found.wrong.add(why);
    }

    pub(crate) fn finish(mut self) -> Outcome {
        if self.spec.workload == Workload::Counter && !self.broken {
            self.ledger.close();
        }
        self.found.broken = self.broken;
        self.found.overtaken = self.ledger.overtaken;
        self.found.wrong.merge(&self.ledger.wrong);
        self.found
    }

    /// Writes what a connection sends before its first cycle.
    pub(crate) fn introduce(&mut self, index: usize, conn: &mut Conn) {
        let codec = self.codecs.of(index);
        if codec.protocol == Protocol::Ceiling {
            crate::servers::ceiling::introduce(codec, &self.keys[0], self.spec.keys, conn);
        }
        if self.guarded && codec.protocol != Protocol::Http {
            codec.encode(Request::Auth, &NO_KEY, &mut conn.outbox);
            conn.pending.push_back(INTRODUCTION);
        }
        if self.spec.workload == Workload::Signal {
            // Each connection listens to the one before it.
            let key = &self.keys[index];
            codec.encode(Request::Listen, key, &mut conn.outbox);
            conn.pending.push_back(INTRODUCTION);
        }
    }

    /// Writes the first request of a cycle.
    pub(crate) fn take(&mut self, index: u32, asked_ns: u64, conn: &mut Conn) {
        let worker = &mut self.workers[index as usize];
        if let Some(key) = self.chooser.key() {
            worker.key = key;
        }
        worker.step = Step::Taking;
        worker.asked_ns = asked_ns;
        self.busy += 1;
        self.ask_first(index, conn);
    }

    fn ask_first(&mut self, index: u32, conn: &mut Conn) {
        let worker = &mut self.workers[index as usize];
        self.seq += 1;
        worker.written = Written {
            seq: self.seq,
            after: self.answered_seq,
        };
        let mut key = worker.key;
        let request = match self.spec.workload {
            Workload::Lock => {
                if self.codecs.first.protocol == Protocol::Resp {
                    worker.token[..16].copy_from_slice(&hex(self.seq));
                }
                self.ledger.asked(key, worker.written);
                Request::Lock(&worker.token)
            }
            Workload::Semaphore => Request::TakeSlot(self.spec.slots),
            Workload::ReadWrite if self.chooser.one_in(WRITES_ONE_IN) => {
                worker.hold = Hold::Alone;
                Request::WriteLock
            }
            Workload::ReadWrite => {
                worker.hold = Hold::Reading;
                Request::ReadLock
            }
            Workload::Counter => Request::Incr,
            Workload::Value => {
                worker.value = self.seq;
                Request::Set(worker.value)
            }
            Workload::Signal => {
                key = (worker.conn + 1) % self.spec.connections as u32;
                Request::Signal(self.ledger.telling(key as usize))
            }
        };
        let codec = self.codecs.of(worker.conn as usize);
        codec.encode(request, &self.keys[key as usize], &mut conn.outbox);
        conn.pending.push_back(index);
    }

    /// Writes the second request of a cycle.
    pub(crate) fn give(&mut self, index: u32, now: u64, conn: &mut Conn) {
        let worker = &mut self.workers[index as usize];
        worker.step = Step::Giving;
        worker.asked_ns = now;
        self.seq += 1;
        worker.written.seq = self.seq;
        let request = match self.spec.workload {
            Workload::Lock => Request::Unlock(&worker.token),
            Workload::Semaphore => Request::ReturnSlot(&worker.token),
            Workload::ReadWrite if worker.hold == Hold::Alone => {
                Request::WriteUnlock(&worker.token)
            }
            Workload::ReadWrite => Request::ReadUnlock(&worker.token),
            Workload::Value => Request::Get,
            Workload::Counter | Workload::Signal => unreachable!("cycles of one request"),
        };
        if self.spec.workload.waits() {
            self.ledger.letting_go(worker.key, worker.hold);
        }
        let codec = self.codecs.of(worker.conn as usize);
        codec.encode(request, &self.keys[worker.key as usize], &mut conn.outbox);
        conn.pending.push_back(index);
    }

    /// Reads an answer: which worker it is for, whether it is right, and what comes next.
    pub(crate) fn answered(
        &mut self,
        conn_index: usize,
        answer: Answer<'_>,
        now: u64,
        conn: &mut Conn,
    ) -> Next {
        if let Answer::Push(_) = answer {
            self.ledger.heard(conn_index, answer.signal());
            return Next::Nothing;
        }
        let Some(index) = conn.pending.pop_front() else {
            self.breaks(format!("an answer nobody asked for: {answer}"));
            return Next::Nothing;
        };
        if index == INTRODUCTION {
            if answer != Answer::Ok(b"") {
                self.breaks(format!("the introduction was answered {answer}"));
            }
            return Next::Nothing;
        }
        let worker = &mut self.workers[index as usize];
        self.answered_seq = self.answered_seq.max(worker.written.seq);
        let latency = now.saturating_sub(worker.asked_ns);
        if worker.step == Step::Taking {
            if answer == Answer::Nil && self.codecs.first.protocol == Protocol::Resp {
                return self.again(index, conn);
            }
            if self.counts() {
                let over_http = self.codecs.is_http(conn_index);
                self.found.record_take(over_http, latency);
            }
            if !self.stopping {
                self.found.answers += 1;
                self.found.takes += 1;
            }
            if !self.taken(index, &answer) {
                return Next::Nothing;
            }
            if self.spec.workload.steps().1.is_some() && !self.spec.keeps {
                if self.spec.hold_ns > 0 {
                    self.workers[index as usize].step = Step::Holding;
                    return Next::At(index, now + self.spec.hold_ns);
                }
                self.give(index, now, conn);
                return Next::Nothing;
            }
        } else {
            if self.counts() {
                self.found.give.saturating_record(latency);
            }
            if !self.stopping {
                self.found.answers += 1;
            }
            self.given(index, &answer);
        }
        self.ended(index, now, conn)
    }

    /// Another client has the lock and the server keeps no queue, so it asks again.
    fn again(&mut self, index: u32, conn: &mut Conn) -> Next {
        self.found.retries += 1;
        if self.stopping {
            self.workers[index as usize].step = Step::Resting;
            self.busy -= 1;
        } else {
            self.ask_first(index, conn);
        }
        Next::Nothing
    }

    /// Whether the first answer of a cycle was right.
    fn taken(&mut self, index: u32, answer: &Answer<'_>) -> bool {
        let worker = &mut self.workers[index as usize];
        let fine = match (self.spec.workload, answer) {
            (Workload::Lock, Answer::Ok(b"")) if self.codecs.first.protocol == Protocol::Resp => {
                self.ledger
                    .granted(worker.key, worker.hold, 0, worker.written);
                true
            }
            (work, _) if work.waits() => match answer.grant() {
                Some((token, fence)) => {
                    worker.token = token;
                    self.ledger
                        .granted(worker.key, worker.hold, fence, worker.written);
                    true
                }
                None => false,
            },
            (Workload::Counter, Answer::Ok(rest)) => match number(rest) {
                Some(value) => {
                    self.ledger.counted(worker.key, value);
                    true
                }
                None => false,
            },
            (Workload::Value, Answer::Ok(b"")) => true,
            // Exactly one connection listens to this channel.
            (Workload::Signal, Answer::Ok(b"1")) => true,
            _ => false,
        };
        if !fine {
            let name = self.spec.workload.steps().0;
            self.breaks(format!("{name} was answered {answer}"));
        }
        fine
    }

    /// Checks the second answer of a cycle.
    fn given(&mut self, index: u32, answer: &Answer<'_>) {
        let worker = &self.workers[index as usize];
        let resp = self.codecs.first.protocol == Protocol::Resp;
        let fine = match (self.spec.workload, answer) {
            (Workload::Value, Answer::Ok(value)) => match unhex(value) {
                Some(value) if self.spec.keys == Keys::Own => value == worker.value,
                Some(value) => value <= self.seq,
                None => false,
            },
            (Workload::Lock, Answer::Ok(rest)) if resp => *rest == b"1",
            (work, Answer::Ok(b"")) if work.waits() => true,
            _ => false,
        };
        if !fine {
            let name = self.spec.workload.steps().1.unwrap_or_default();
            self.breaks(format!("{name} was answered {answer}"));
        }
    }

    /// A cycle is over.
    fn ended(&mut self, index: u32, now: u64, conn: &mut Conn) -> Next {
        self.workers[index as usize].step = Step::Resting;
        self.busy -= 1;
        if self.stopping || self.broken {
            return Next::Nothing;
        }
        if self.spec.rate.is_some() {
            return Next::Free(index);
        }
        if self.spec.think_ns > 0 {
            return Next::At(index, now + self.spec.think_ns);
        }
        self.take(index, now, conn);
        Next::Nothing
    }
}
