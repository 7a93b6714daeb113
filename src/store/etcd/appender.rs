//! The thread of a leader that puts what was handed over into the log, one entry at a time.
//!
//! An answer that does not come is waited for one second, then two, then four and then eight: with an
//! etcd that is slow, but not gone, a shorter patience commits nothing at all. Whether we may speak
//! meanwhile is not decided here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::Figures;
use super::append::{Appender, Next};
use super::returning::{Returning, Wait};
use super::value::Logged;
use super::{Batch, End, Handed, Lead, Shared, Tenancy};
use crate::base::Nanos;
use crate::etcd::{Answer, Ask, Etcd, Trouble};

const PATIENCE_FIRST: Duration = Duration::from_secs(1);
const PATIENCE_MOST: Duration = Duration::from_secs(8);

/// After a question that could not even be sent, and when there is no space.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a resignation may take.
const RESIGN_MOST: Duration = Duration::from_secs(2);

/// How often the thread looks by itself whether it still leads.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The thread's side.
pub(super) struct Thread {
    tenancy: Arc<Tenancy>,
    appender: Appender,
    etcd: Box<dyn Etcd + Send>,
    shared: Arc<Shared>,
    figures: Arc<Figures>,
    leader: u64,
    epoch: u64,
    /// The number of the next record.
    number: u64,
    nonce: [u64; 2],
    /// With which this time as a leader began; 0 if it is over already.
    lease: u64,
    returning: Returning,
}

/// Why it goes no further.
enum Over {
    /// Another one leads, or will.
    Fenced,
    /// It was told to end.
    Ended,
    /// Something is there that cannot be.
    Failed(String),
}

impl Thread {
    pub(super) fn new(lead: Lead, etcd: Box<dyn Etcd + Send>, shared: Arc<Shared>) -> Self {
        let lease = lead.tenancy.change(|standing, _| standing.lease());
        Self {
            lease: lease.unwrap_or(0),
            tenancy: lead.tenancy,
            appender: lead.appender,
            etcd,
            shared,
            figures: lead.figures,
            leader: lead.position.leader,
            epoch: lead.position.epoch,
            number: lead.position.number + 1,
            // Not from 0: entries of an earlier time as a leader must not be taken for ours.
            nonce: [lead.nonce, lease.unwrap_or(0) << 20],
            returning: Returning::default(),
        }
    }

    pub(super) fn run(mut self) {
        let (lease, tenancy) = (self.lease, Arc::clone(&self.tenancy));
        let guard = Guard {
            shared: Arc::clone(&self.shared),
            tenancy: Arc::clone(&self.tenancy),
            figures: Arc::clone(&self.figures),
            lease,
        };
        let over = loop {
            if let Err(over) = self.turn() {
                break over;
            }
        };
        match over {
            Over::Fenced => tenancy.change(|standing, _| standing.fence_of(lease)),
            Over::Ended => {
                tenancy.change(|standing, _| standing.fence_of(lease));
                let resigns = self.shared.lock().end == Some(End::Resign);
                if resigns && lease != 0 {
                    // If this fails the lease ends by itself.
                    let _ = self.etcd.call(&Ask::Revoke { lease }, PATIENCE_FIRST);
                }
            }
            Over::Failed(why) => guard.fail(why),
        }
    }

    /// Takes the next batch, and puts it into the log.
    fn turn(&mut self) -> Result<(), Over> {
        let batch = self.next()?;
        self.put(batch)
    }

    /// Waits for the next batch. What was handed over is not locked any more when it is returned.
    fn next(&mut self) -> Result<Batch, Over> {
        loop {
            let heard = self.shared.bell.heard();
            let mut handed = self.shared.lock();
            if handed.end == Some(End::Abandon) {
                return Err(Over::Ended);
            }
            let waits = self.waits_for_others(&handed);
            if let (Some(Wait { enough, most }), None) = (waits, handed.end) {
                handed.rings_from = enough;
                drop(handed);
                self.tenancy.place().wait(&self.shared.bell, heard, most);
                continue;
            }
            handed.rings_from = 0;
            if let Some(batch) = handed.batches.pop_front() {
                drop(handed);
                self.returning.begun(batch.last);
                return Ok(batch);
            }
            if handed.end.is_some() {
                return Err(Over::Ended);
            }
            drop(handed);
            let wants_proof = self.tenancy.change(|standing, _| standing.wants_proof());
            if !self.is_ours() {
                return Err(Over::Fenced);
            }
            if wants_proof {
                let last = self.number - 1;
                let frames = Vec::new();
                return Ok(Batch { frames, last });
            }
            let place = self.tenancy.place();
            place.wait(&self.shared.bell, heard, LOOK_EVERY);
        }
    }

    /// Whether what has come waits for what will come in a moment. More than an entry does not.
    fn waits_for_others(&self, handed: &Handed) -> Option<Wait> {
        match handed.batches.len() {
            1 => self
                .returning
                .wait(self.tenancy.now(), handed.batches[0].last),
            _ => None,
        }
    }

    /// Puts one batch into the log, however long it takes.
    fn put(&mut self, batch: Batch) -> Result<(), Over> {
        self.nonce[1] += 1;
        let bytes = batch.frames.len();
        let logged = Logged {
            leader: self.leader,
            nonce: self.nonce,
            epoch: self.epoch,
            first: self.number,
            frames: batch.frames,
        };
        let began = self.tenancy.now();
        let mut ask = self.appender.begin(&logged);
        let mut patience = PATIENCE_FIRST;
        let mut failures = 0;
        loop {
            let sent = self.tenancy.now();
            let within = self.patience_left(began, patience)?;
            let answer = self.etcd.call(&ask, within);
            let was_sent = !matches!(answer, Err(Trouble::Unreachable(_)));
            // Whoever is not let in knows that nothing was done, and need not hurry.
            let is_refused = answer.as_ref().is_err_and(Trouble::is_refusal);
            let is_answered = answer.is_ok() || is_refused;
            match self.appender.answered(answer) {
                Next::Committed { proves } => {
                    self.committed(bytes, batch.last, began);
                    if proves {
                        let confirm = |standing: &mut crate::cluster::role::Standing, now| {
                            standing.confirmed(sent, now);
                        };
                        self.tenancy.change(confirm);
                    }
                    self.tenancy.wake();
                    return Ok(());
                }
                Next::Ask(next) => {
                    ask = next;
                    if !is_answered {
                        self.figures.doubts.fetch_add(1, Ordering::Relaxed);
                        patience = (patience * 2).min(PATIENCE_MOST);
                        failures += 1;
                    }
                    // The next member may be better, and is asked at once. An etcd that refuses again
                    // and again is not to be asked as fast as it refuses.
                    if !was_sent || is_refused || failures > 1 {
                        self.pause()?;
                    }
                }
                Next::Full(again) => {
                    ask = again;
                    if !self.shared.is_full.swap(true, Ordering::Relaxed) {
                        self.figures.is_full.store(true, Ordering::Relaxed);
                        self.tenancy.wake();
                    }
                    self.prove()?;
                    self.pause()?;
                }
                Next::Fenced => return Err(Over::Fenced),
                Next::Behind(why) => return Err(Over::Failed(why)),
            }
        }
    }

    /// Nothing can be written, and after a silence only etcd can say that we may speak. Renewals and reads need no room,
    /// and whoever holds something has to be told that it still does.
    fn prove(&mut self) -> Result<(), Over> {
        if !self.tenancy.change(|standing, _| standing.wants_proof()) {
            return Ok(());
        }
        let sent = self.tenancy.now();
        match self.etcd.call(&self.appender.proof(), PATIENCE_FIRST) {
            Ok(Answer::Txn {
                succeeded: true, ..
            }) => {
                self.tenancy
                    .change(|standing, now| standing.confirmed(sent, now));
                self.tenancy.wake();
                Ok(())
            }
            Ok(Answer::Txn { .. }) => Err(Over::Fenced),
            _ => Ok(()), // it is asked again
        }
    }

    fn committed(&mut self, bytes: usize, last: u64, began: Nanos) {
        let records = last + 1 - self.number;
        self.number = last + 1;
        self.shared.waiting.fetch_sub(bytes, Ordering::Relaxed);
        if self.shared.is_full.swap(false, Ordering::Relaxed) {
            self.figures.is_full.store(false, Ordering::Relaxed);
        }
        let figures = &self.figures;
        let now = self.tenancy.now();
        let took_ns = now.since(began);
        figures.note_commit(now, took_ns);
        // Before anybody is answered: who asks again because of that is not one of those who wait.
        let handed = self.shared.lock();
        let waiting = handed.batches.back().map_or(0, |batch| batch.last - last);
        drop(handed);
        self.returning
            .committed(now, took_ns, last, records + waiting);
        self.shared.durable.store(last, Ordering::Release);
        figures
            .entry_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        figures.number.store(last, Ordering::Relaxed);
        figures
            .seq
            .store(self.appender.seq() - 1, Ordering::Relaxed);
    }

    /// How long to wait for an answer; none if it is to end and has had its time, or leads no longer.
    fn patience_left(&self, began: Nanos, patience: Duration) -> Result<Duration, Over> {
        if !self.is_ours() {
            return Err(Over::Fenced);
        }
        match self.shared.lock().end {
            None => Ok(patience),
            Some(End::Abandon) => Err(Over::Ended),
            Some(End::Resign) => {
                let spent = Duration::from_nanos(self.tenancy.now().since(began));
                match RESIGN_MOST.checked_sub(spent) {
                    Some(left) if !left.is_zero() => Ok(left.min(patience)),
                    _ => Err(Over::Ended),
                }
            }
        }
    }

    /// Whether this time as a leader is not over, as far as we know.
    fn is_ours(&self) -> bool {
        let lease = self.tenancy.change(|standing, _| standing.lease());
        lease == Some(self.lease)
    }

    fn pause(&self) -> Result<(), Over> {
        let heard = self.shared.bell.heard();
        if self.shared.lock().end == Some(End::Abandon) {
            return Err(Over::Ended);
        }
        self.tenancy.place().wait(&self.shared.bell, heard, PAUSE);
        Ok(())
    }
}

/// However the thread ends, whoever waits for that is told. If it panics the reactor is told that nothing
/// more is kept: it would wait for ever.
struct Guard {
    shared: Arc<Shared>,
    tenancy: Arc<Tenancy>,
    figures: Arc<Figures>,
    lease: u64,
}

impl Guard {
    fn fail(&self, why: String) {
        // It is not to be taken for one whose lease is over, who would follow again.
        self.figures.has_failed.store(true, Ordering::Release);
        // First of all nothing more is said.
        let lease = self.lease;
        self.tenancy.change(|standing, _| standing.fence_of(lease));
        self.shared.lock().failure = why;
        self.shared.is_failed.store(true, Ordering::Release);
        self.tenancy.wake();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail("the thread that writes the log panicked".to_owned());
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.over.ring();
        self.tenancy.wake();
    }
}
