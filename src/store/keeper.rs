//! The journal's thread: takes what was handed over, writes and syncs it, and says so.
//!
//! It also begins compactions and has the next segment made ahead, each on a thread of its own, so
//! that nobody who waits for a sync waits for them. After a sync that failed it does nothing more.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::compact::{Compacted, Job, NotCompacted};
use super::disk::Files;
use super::format::Durability;
use super::gather::{ENOUGH_BYTES, Gathering};
use super::hand_over::{End, ReactorSide};
use super::journal::{BEHIND_BYTES, Notice};
use super::spare::{Spare, SpareJob};
use super::writer::{Batch, Trouble, Writer};

/// Buffers that grew beyond this are made smaller when they are empty.
const KEEP_BYTES_MAX: usize = 2 * BEHIND_BYTES;

/// With `async` the disk is asked this long after the first write at the latest: a half of what is
/// promised, because it takes its time to answer.
const SYNC_AFTER: Duration = Duration::from_millis(50);

/// How often room is looked for when there is none.
const ROOM_EVERY: Duration = Duration::from_millis(250);

/// What was complained of last, so that nobody reads the same four times a second.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn is_new(&mut self, why: &str) -> bool {
        let is_new = self.0.as_deref() != Some(why);
        if is_new {
            self.0 = Some(why.to_owned());
        }
        is_new
    }

    fn is_over(&mut self) {
        self.0 = None;
    }
}

/// The thread's side.
pub(super) struct Keeper {
    disk: Files,
    writer: Writer<Files>,
    durability: Durability,
    /// Taken, and not yet written.
    pending: Batch,
    /// When the first byte was written that is not synced.
    unsynced_since: Option<Instant>,
    /// When to look for room again.
    room_at: Option<Instant>,
    compaction: Option<JoinHandle<()>>,
    spare_maker: Option<JoinHandle<()>>,
    gathering: Gathering,
    not_compacted: Complaint,
    no_spare: Complaint,
    reactor: ReactorSide,
    report: Box<dyn Fn(Notice) + Send>,
}

impl Keeper {
    pub(super) fn new(
        disk: Files,
        writer: Writer<Files>,
        durability: Durability,
        reactor: ReactorSide,
        report: Box<dyn Fn(Notice) + Send>,
    ) -> Self {
        Self {
            disk,
            writer,
            durability,
            pending: Batch::default(),
            unsynced_since: None,
            room_at: None,
            compaction: None,
            spare_maker: None,
            gathering: Gathering::default(),
            not_compacted: Complaint::default(),
            no_spare: Complaint::default(),
            reactor,
            report,
        }
    }

    pub(super) fn run(mut self) {
        let end = loop {
            match self.turn() {
                Ok(None) => {}
                Ok(end) => break end,
                Err(why) => {
                    (self.report)(Notice::Failed(why.clone()));
                    self.reactor.fail(why);
                    break None;
                }
            }
        };
        let shared = Arc::clone(&self.reactor.shared);
        shared.is_over.store(true, Ordering::Relaxed);
        for thread in [self.compaction.take(), self.spare_maker.take()] {
            let _ = thread.map(JoinHandle::join); // the directory is ours only until we end
        }
        let (spare, compacted) = {
            let mut handed = shared.lock();
            (handed.spare.take(), handed.compacted.take())
        };
        if let Some(Ok(spare)) = spare {
            self.writer.spare_is_made(Some(spare)); // and is removed
        }
        let at_ms = match end {
            Some(End::Stop(at_ms)) => Some(at_ms),
            Some(End::StopInDoubt) => None,
            Some(End::Abandon) | None => return,
        };
        let result = match (self.writer.full(), compacted) {
            (_, Some(Err(error @ NotCompacted::Failed(_)))) => Err(error.to_string()),
            (Some(why), _) if !self.pending.is_empty() => Err(why.to_owned()),
            _ => self.writer.stop(at_ms).map_err(why),
        };
        let mut handed = shared.lock();
        match result {
            Ok(()) => handed.is_stopped = true,
            Err(why) => handed.failure = why,
        }
    }

    /// Keeps what comes next, and says whether it was the last.
    fn turn(&mut self) -> Result<Option<End>, String> {
        let end = self.wait()?;
        if !matches!(end, Some(End::Abandon)) {
            self.keep(end.is_some())?;
        }
        if end.is_none() {
            self.compact();
            self.make_spare();
        }
        Ok(end)
    }

    /// Waits until there is something to do, and takes what was handed over.
    fn wait(&mut self) -> Result<Option<End>, String> {
        let shared = Arc::clone(&self.reactor.shared);
        let mut handed = shared.lock();
        // Until which record to wait for more, and when to give up.
        let mut gathers = None;
        loop {
            if let Some(result) = handed.compacted.take() {
                drop(handed); // the reactor must not wait for what is reported
                self.compaction_is_over(result)?;
                handed = shared.lock();
            }
            if let Some(result) = handed.spare.take() {
                drop(handed);
                self.spare_maker_is_over(result);
                handed = shared.lock();
            }
            if handed.end.is_some() {
                break;
            }
            if !handed.batch.is_empty() {
                let (last, bytes) = (handed.batch.last(), handed.batch.len());
                if self.writer.full().is_some() {
                    self.gathering.nobody_waits();
                }
                if gathers.is_none() {
                    let begun = self.gathering.begin(last, bytes);
                    gathers = begun.map(|(number, most)| (number, now() + most));
                }
                let Some((number, until)) = gathers else {
                    break;
                };
                let left = until.saturating_duration_since(now());
                let came = last >= number || bytes > ENOUGH_BYTES;
                if came || left.is_zero() {
                    self.gathering.end(came);
                    break;
                }
                handed = shared.sleep(handed, number, Some(left));
                continue;
            }
            self.gathering.nobody_waits();
            let due = match (self.unsynced_since, self.room_at) {
                (Some(since), Some(room_at)) => Some(room_at.min(since + SYNC_AFTER)),
                (Some(since), None) => Some(since + SYNC_AFTER),
                (None, room_at) => room_at,
            };
            let left = due.map(|due| due.saturating_duration_since(now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            handed = shared.sleep(handed, 0, left);
        }
        self.pending.join(&mut handed.batch);
        shared.waiting.store(0, Ordering::Relaxed);
        shared.taken.store(self.pending.len(), Ordering::Relaxed);
        Ok(handed.end)
    }

    /// Writes what is pending, syncs what is due, looks for room, and says what came of it.
    fn keep(&mut self, is_last: bool) -> Result<(), String> {
        let mut looked = false;
        if self.room_at.is_some_and(|at| at <= now()) {
            self.room_at = None;
            looked = true;
            self.writer.look_for_room().map_err(why)?;
        }
        match self.writer.put(&mut self.pending) {
            Ok(syncs) => {
                if syncs {
                    // What else the write had to do, such as a new segment, is no part of it.
                    let (synced, began) = (self.writer.synced(), now());
                    self.writer.sync().map_err(why)?;
                    let answered = self.writer.synced() - synced;
                    self.gathering.note_sync(began.elapsed(), answered);
                }
                self.pending.clear_and_keep(KEEP_BYTES_MAX);
                self.reactor.shared.taken.store(0, Ordering::Relaxed);
            }
            Err(Trouble::Full(_)) => {}
            Err(Trouble::Failed(why)) => return Err(why),
        }
        let unsynced = self.writer.synced() < self.writer.written();
        if !unsynced {
            self.unsynced_since = None;
        } else {
            let since = *self.unsynced_since.get_or_insert_with(now);
            if is_last || since + SYNC_AFTER <= now() {
                // Spoken of before it is synced, so this delays nobody.
                self.publish();
                self.writer.sync().map_err(why)?;
                self.unsynced_since = None;
            }
        }
        if self.writer.full().is_some() && (looked || self.room_at.is_none()) {
            self.room_at = Some(now() + ROOM_EVERY);
        }
        self.publish();
        Ok(())
    }

    /// Tells the reactor, if there is news.
    fn publish(&mut self) {
        let durable = match self.durability {
            Durability::Sync => self.writer.synced(),
            Durability::Async => self.writer.written(),
        };
        let is_full = self.writer.full().is_some();
        let shared = &self.reactor.shared;
        let missing_bytes = self.writer.missing_bytes();
        shared.missing_bytes.store(missing_bytes, Ordering::Relaxed);
        let was_full = shared.is_full.swap(is_full, Ordering::Relaxed);
        let before = shared.durable.swap(durable, Ordering::Release);
        if was_full != is_full {
            (self.report)(match self.writer.full() {
                Some(why) => Notice::Full(why.to_owned()),
                None => Notice::Room,
            });
        }
        if before != durable || was_full != is_full {
            (self.reactor.wake)();
        }
    }

    /// Begins a compaction if it is time for one.
    fn compact(&mut self) {
        let Some(job) = self.writer.compaction() else {
            return;
        };
        match self.spawn(job) {
            Ok(thread) => self.compaction = Some(thread),
            Err(error) => {
                self.writer.compacted(None);
                self.complain_of_compaction(error.to_string());
            }
        }
    }

    /// Begins to make the next segment's file if it is time for that.
    fn make_spare(&mut self) {
        if let Some(job) = self.writer.spare_job() {
            match self.spawn_spare(job) {
                Ok(thread) => self.spare_maker = Some(thread),
                Err(error) => self.spare_maker_is_over(Err(error)),
            }
        }
    }

    fn spawn_spare(&self, job: SpareJob) -> io::Result<JoinHandle<()>> {
        let (disk, shared) = (self.disk.clone(), Arc::clone(&self.reactor.shared));
        thread::Builder::new()
            .name("latchd-spare".to_owned())
            .spawn(move || {
                let result = job.run(&disk, &|| shared.is_over.load(Ordering::Relaxed));
                let mut handed = shared.lock();
                handed.spare = Some(result);
                shared.ring(handed);
            })
    }

    /// Without a spare the next segment is made when it is needed.
    fn spare_maker_is_over(&mut self, result: io::Result<Spare<File>>) {
        if let Some(thread) = self.spare_maker.take() {
            let _ = thread.join(); // it has nothing left to do
        }
        match &result {
            Ok(_) => self.no_spare.is_over(),
            Err(error) => {
                let why = error.to_string();
                if self.no_spare.is_new(&why) {
                    (self.report)(Notice::NoSpare(why));
                }
            }
        }
        self.writer.spare_is_made(result.ok());
    }

    fn spawn(&self, job: Job) -> io::Result<JoinHandle<()>> {
        let (disk, shared) = (self.disk.clone(), Arc::clone(&self.reactor.shared));
        thread::Builder::new()
            .name("latchd-compact".to_owned())
            .spawn(move || {
                let result = job.run(&disk, &|| shared.is_over.load(Ordering::Relaxed));
                let mut handed = shared.lock();
                handed.compacted = Some(result);
                shared.ring(handed);
            })
    }

    fn compaction_is_over(
        &mut self,
        result: Result<Compacted, NotCompacted>,
    ) -> Result<(), String> {
        if let Some(thread) = self.compaction.take() {
            let _ = thread.join(); // it has nothing left to do
        }
        match &result {
            Ok(it) => {
                self.not_compacted.is_over();
                (self.report)(Notice::Compacted(it.clone()));
            }
            Err(NotCompacted::Abandoned) => {}
            Err(error @ NotCompacted::Failed(_)) => return Err(error.to_string()),
            Err(error @ (NotCompacted::Unreadable(_) | NotCompacted::Unwritable(_))) => {
                self.complain_of_compaction(error.to_string());
            }
        }
        self.writer.compacted(result.ok());
        Ok(())
    }

    fn complain_of_compaction(&mut self, why: String) {
        if self.not_compacted.is_new(&why) {
            (self.report)(Notice::NotCompacted(why));
        }
    }
}

fn why(trouble: Trouble) -> String {
    match trouble {
        Trouble::Full(why) | Trouble::Failed(why) => why,
    }
}

/// The thread has a clock of its own: when to sync and when to look for room is no decision about
/// leases.
#[expect(
    clippy::disallowed_methods,
    reason = "the journal's thread waits for time to pass, and nobody tells it the time"
)]
fn now() -> Instant {
    Instant::now()
}
