//! The store of a simulated server: the shipped writer and compaction over a disk that fails.
//!
//! What the journal's thread does happens here in virtual time, with the same hand-over: one batch
//! is being written, everything else gathers; with `async` what is written may be spoken of, and is
//! synced a little later. Work is done when its time is over, and when the process dies before that,
//! a part of its steps. Decides nothing and checks nothing; `checks::restored` does.

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;

use super::Sabotage;
use super::plan::DiskPlan;
use crate::FaultDisk;
use latchd::base::Nanos;
use latchd::engine::types::Record;
use latchd::store::{
    Batch, Beginning, Begun, Clocks, Durability, Found, Job, Life, NotCompacted, OpenError,
    Progress, Store, Trouble, Writer, begin,
};

/// With `async` the disk is asked this long after the first write.
const SYNC_AFTER_NS: u64 = 50_000_000;

/// How often room is looked for when there is none.
const ROOM_EVERY_NS: u64 = 250_000_000;

/// Most steps that a process still takes while it dies.
const LAST_STEPS_MAX: u64 = 12;

/// A store of the server; without a data directory it keeps nothing.
#[derive(Clone)]
pub(super) struct SimStore(pub(super) Option<Rc<RefCell<Keeper>>>);

impl SimStore {
    fn with<R>(&self, otherwise: R, ask: impl FnOnce(&mut Keeper) -> R) -> R {
        match &self.0 {
            Some(keeper) => ask(&mut keeper.borrow_mut()),
            None => otherwise,
        }
    }
}

impl Store for SimStore {
    fn is_durable(&self) -> bool {
        self.0.is_some()
    }

    fn append(&mut self, now: Nanos, record: &Record) {
        self.with((), |it| it.append(now, record));
    }

    fn commit(&mut self, _: Nanos) {
        self.with((), |it| it.handed.join(&mut it.filling));
    }

    fn progress(&mut self) -> Progress {
        self.with(Progress::default(), Keeper::progress)
    }

    fn is_behind(&self) -> bool {
        self.with(false, |it| it.is_behind())
    }

    fn memory(&self) -> usize {
        self.with(0, |it| it.memory())
    }

    fn stay_in_doubt(&mut self) {
        self.with((), |it| it.is_in_doubt = true);
    }

    fn stop(&mut self) -> Result<(), String> {
        self.with(Ok(()), Keeper::stop)
    }
}

/// A life on a disk that has just begun.
pub(super) struct Opened {
    pub(super) keeper: Keeper,
    pub(super) found: Found,
    /// What was there, in order.
    pub(super) records: Vec<Record>,
}

/// What the thread is doing.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Writes what is pending; before that it may look for room.
    Write { looks: bool },
    /// Syncs what was written.
    Sync,
}

/// What the journal is in a real server: what has gathered, and the thread.
pub(super) struct Keeper {
    pub(super) disk: FaultDisk,
    writer: Option<Writer<FaultDisk>>,
    pub(super) life: Life,
    plan: DiskPlan,
    chance: Rng,
    /// What the time of day was at the instant 0, in microseconds since 1970.
    wall_begin_us: u64,
    /// The time, as far as anybody has said.
    now: Nanos,
    /// The disk's number of the engine's record 0.
    pub(super) base: u64,
    last: u64,
    filling: Batch,
    handed: Batch,
    pending: Batch,
    doing: Option<(Nanos, Doing)>,
    compaction: Option<(Nanos, Job)>,
    unsynced_since: Option<Nanos>,
    room_at: Option<Nanos>,
    /// Everything up to this may be spoken of, as the disk counts.
    pub(super) durable: u64,
    synced: u64,
    pub(super) is_full: bool,
    failure: Option<String>,
    /// The life is not to end in order.
    pub(super) is_in_doubt: bool,
    /// The server was last told that there is no room.
    pub(super) is_refusing: bool,
    /// Every record of this life.
    pub(super) records: Vec<Record>,
    pub(super) compactions: u64,
    /// Since when the disk has had room.
    pub(super) has_room_since: Nanos,
    pub(super) sabotage: Option<Sabotage>,
}

impl Keeper {
    /// Begins a life on the disk, and reads what is there.
    pub(super) fn open(
        disk: FaultDisk,
        plan: DiskPlan,
        sabotage: Option<Sabotage>,
        mut chance: Rng,
        now: Nanos,
        wall_us: u64,
    ) -> Result<Opened, OpenError> {
        let beginning = Beginning {
            durability: plan.durability,
            segment_bytes: plan.segment_bytes,
            salt: chance.u32(..),
            wall_ms: wall_us / 1_000,
        };
        let Begun {
            writer,
            life,
            found,
            restore,
        } = begin(disk.clone(), beginning, &mut |_| {})?;
        let clocks = Clocks {
            now,
            wall_ms: wall_us / 1_000,
        };
        let mut records = Vec::new();
        restore.each(clocks, |record| records.push(record), |_| {})?;
        let base = writer.written();
        let keeper = Self {
            disk,
            writer: Some(writer),
            life,
            plan,
            chance,
            wall_begin_us: wall_us - now.0 / 1_000,
            now,
            base,
            last: base,
            filling: Batch::default(),
            handed: Batch::default(),
            pending: Batch::default(),
            doing: None,
            compaction: None,
            unsynced_since: None,
            room_at: None,
            durable: base,
            synced: base,
            is_full: false,
            failure: None,
            is_in_doubt: false,
            is_refusing: false,
            records: Vec::new(),
            compactions: 0,
            has_room_since: now,
            sabotage,
        };
        Ok(Opened {
            keeper,
            found,
            records,
        })
    }

    /// Everything is as it is told.
    pub(super) fn is_settled(&self) -> bool {
        self.durable == self.last && self.failure.is_none()
    }

    /// Everything up to this record, as the disk counts, was on the disk when the last sync was over.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Whether it should have noticed that there is room.
    pub(super) fn is_full_for_no_reason(&self, now: Nanos) -> bool {
        let busy_ns = 4 * 50_000 * self.plan.sync_us_max;
        let by = self.has_room_since.0 + 2 * ROOM_EVERY_NS + busy_ns;
        self.is_full && self.failure.is_none() && now.0 > by
    }

    /// The number of the last record, as the disk counts.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    // ---- the server's side ----

    fn append(&mut self, now: Nanos, record: &Record) {
        self.now = now;
        self.last += 1;
        let record = match self.sabotage {
            Some(sabotage) => sabotaged(sabotage, record),
            None => record.clone(),
        };
        let wall_ms = self.wall_ms(now);
        let clocks = || Clocks { now, wall_ms };
        self.filling
            .push(self.life.salt, self.last, &record, clocks);
        self.records.push(record);
    }

    fn wall_ms(&self, now: Nanos) -> u64 {
        (self.wall_begin_us + now.0 / 1_000) / 1_000
    }

    fn progress(&mut self) -> Progress {
        self.is_refusing = self.is_full;
        let durable = match self.sabotage {
            Some(Sabotage::SpeakEarly) => self.last,
            _ => self.durable,
        };
        Progress {
            durable: durable - self.base,
            is_full: self.is_full,
            failed: self.failure.clone(),
        }
    }

    pub(super) fn is_behind(&self) -> bool {
        self.memory() > self.plan.behind_bytes
    }

    fn memory(&self) -> usize {
        self.handed.len() + self.pending.len() + self.filling.len()
    }

    fn stop(&mut self) -> Result<(), String> {
        self.handed.join(&mut self.filling);
        self.pending.join(&mut self.handed);
        (self.doing, self.compaction) = (None, None);
        let at_ms = Some(self.wall_ms(self.now));
        let mut writer = self.writer.take().expect("it is stopped once");
        let why = |trouble| match trouble {
            Trouble::Full(why) | Trouble::Failed(why) => why,
        };
        writer.write(&mut self.pending).map_err(why)?;
        writer.sync().map_err(why)?;
        (self.durable, self.synced) = (self.last, self.last);
        writer
            .stop(at_ms.filter(|_| !self.is_in_doubt))
            .map_err(why)
    }

    // ---- the thread ----

    /// When the thread has something to do.
    pub(super) fn due(&self) -> Option<Nanos> {
        if self.failure.is_some() {
            return None;
        }
        let compaction = self.compaction.as_ref().map(|(at, _)| *at);
        let thread = match self.doing {
            Some((at, _)) => Some(at),
            None if !self.handed.is_empty() => Some(self.now),
            None => {
                let sync_at = self.unsynced_since.map(|at| Nanos(at.0 + SYNC_AFTER_NS));
                sync_at.into_iter().chain(self.room_at).min()
            }
        };
        compaction.into_iter().chain(thread).min()
    }

    /// Does what is due, and says whether the server has to be woken.
    pub(super) fn step(&mut self, now: Nanos) -> bool {
        if self.failure.is_some() {
            return false; // the thread has ended: what could not be synced is never tried again
        }
        self.now = now;
        let before = (self.durable, self.is_full);
        if let Err(why) = self.work(now) {
            self.failure = Some(why);
            return true;
        }
        before != (self.durable, self.is_full)
    }

    fn work(&mut self, now: Nanos) -> Result<(), String> {
        if let Some((_, job)) = self.compaction.take_if(|(at, _)| *at <= now) {
            self.compact(&job)?;
        }
        if let Some((_, doing)) = self.doing.take_if(|(at, _)| *at <= now) {
            self.finish(now, doing)?;
        }
        if self.doing.is_none() {
            self.take_up(now);
        }
        Ok(())
    }

    /// The thread takes what was handed over, if there is something or it is time.
    fn take_up(&mut self, now: Nanos) {
        let looks = self.room_at.is_some_and(|at| at <= now);
        let syncs = |since: Nanos| since.0 + SYNC_AFTER_NS <= now.0;
        if !self.handed.is_empty() || looks {
            self.pending.join(&mut self.handed);
            let syncs = self.life.durability == Durability::Sync;
            let ns = self.disk_ns(syncs);
            self.doing = Some((Nanos(now.0 + ns), Doing::Write { looks }));
        } else if self.unsynced_since.is_some_and(syncs) {
            self.doing = Some((Nanos(now.0 + self.disk_ns(true)), Doing::Sync));
        }
    }

    /// The time of what the thread does is over.
    fn finish(&mut self, now: Nanos, doing: Doing) -> Result<(), String> {
        let why = |trouble| match trouble {
            Trouble::Full(why) | Trouble::Failed(why) => why,
        };
        let writer = self.writer.as_mut().expect("it is not stopped");
        match doing {
            Doing::Write { looks } => {
                if looks {
                    self.room_at = None;
                    writer.look_for_room().map_err(why)?;
                }
                match writer.write(&mut self.pending) {
                    Ok(()) => self.pending.clear_and_keep(1 << 16),
                    Err(Trouble::Full(_)) => {}
                    Err(Trouble::Failed(why)) => return Err(why),
                }
                if writer.full().is_some() && (looks || self.room_at.is_none()) {
                    self.room_at = Some(Nanos(now.0 + ROOM_EVERY_NS));
                }
            }
            Doing::Sync => {
                writer.sync().map_err(why)?;
                self.unsynced_since = None;
            }
        }
        if writer.synced() == writer.written() {
            self.unsynced_since = None;
        } else {
            self.unsynced_since.get_or_insert(now);
        }
        self.synced = writer.synced();
        self.durable = match self.life.durability {
            Durability::Sync => writer.synced(),
            Durability::Async => writer.written(),
        };
        self.is_full = writer.full().is_some();
        if let Some(job) = writer.compaction() {
            let ns = 20 * self.disk_ns(true);
            self.compaction = Some((Nanos(now.0 + ns), job));
        }
        Ok(())
    }

    fn compact(&mut self, job: &Job) -> Result<(), String> {
        let result = job.run(&self.disk, &|| false);
        self.compactions += u64::from(result.is_ok());
        if let Err(error @ NotCompacted::Failed(_)) = &result {
            return Err(error.to_string());
        }
        if let Some(writer) = &mut self.writer {
            writer.compacted(result.ok());
        }
        Ok(())
    }

    /// How long the disk takes.
    fn disk_ns(&mut self, syncs: bool) -> u64 {
        let us_max = if syncs { self.plan.sync_us_max } else { 20 };
        let us = self.chance.u64(..=us_max);
        if syncs && self.chance.u8(..100) < self.plan.slow_pct {
            us * 50_000
        } else {
            us * 1_000
        }
    }

    // ---- the end of the process ----

    /// Ends in order, if it can; sometimes the process does not live to see it.
    pub(super) fn stops(&mut self) -> bool {
        if self.chance.u8(..8) == 0 {
            let steps = self.chance.u64(1..=4);
            self.disk.die_at(self.disk.steps() + steps);
        }
        let told = self.durable;
        let is_stopped = self.stop().is_ok();
        self.durable = if is_stopped { self.durable } else { told };
        if is_stopped {
            self.disk.revive();
        }
        is_stopped
    }

    /// The process dies in the middle of whatever it does. With `power` it takes with it what was not
    /// synced.
    pub(super) fn die(&mut self, power: bool) {
        if self.failure.is_none() {
            let steps = self.chance.u64(1..=LAST_STEPS_MAX);
            self.disk.die_at(self.disk.steps() + steps);
            // Which of the two was further is not known.
            let (first, now) = (self.chance.bool(), self.now);
            for turn in [first, !first] {
                if turn && let Some((_, doing)) = self.doing.take() {
                    let _ = self.finish_dying(now, doing);
                } else if let Some((_, job)) = self.compaction.take_if(|_| !turn) {
                    let _ = self.compact(&job); // the process is gone anyway
                }
            }
        }
        if power {
            self.disk.crash(&mut self.chance);
        } else {
            self.disk.revive();
        }
    }

    /// Nobody hears of what was done at the end.
    fn finish_dying(&mut self, now: Nanos, doing: Doing) -> Result<(), String> {
        let told = (self.durable, self.is_full);
        let result = self.finish(now, doing);
        (self.durable, self.is_full) = told;
        self.compaction = None;
        result
    }
}

/// A grant as if it were of a connection that has left.
fn without_owner(record: &Record) -> Record {
    let mut record = record.clone();
    if let Record::Granted { client, name, .. } = &mut record
        && *client == 0
    {
        (*client, *name) = (1, None);
    }
    record
}

/// A grant as if it could not be asked for again.
fn without_request(record: &Record) -> Record {
    let mut record = record.clone();
    if let Record::Granted { request, .. } = &mut record {
        *request = Box::default();
    }
    record
}

/// What a broken engine would have said instead. The record is replaced by one that says nothing, so
/// that numbers stay as they are.
fn sabotaged(sabotage: Sabotage, record: &Record) -> Record {
    let is_meant = match sabotage {
        Sabotage::ForgetFences => matches!(record, Record::Fences { .. }),
        Sabotage::ForgetGrants => matches!(record, Record::Granted { .. }),
        Sabotage::ForgetEnds => matches!(record, Record::Ended { .. }),
        Sabotage::ForgetRenewals => matches!(record, Record::Lengthened { .. }),
        Sabotage::ForgetCounts => matches!(record, Record::Counted { .. }),
        Sabotage::ForgetValues => matches!(record, Record::Stored { .. }),
        Sabotage::ForgetPops => matches!(record, Record::Popped { .. }),
        Sabotage::ForgetOwners => return without_owner(record),
        Sabotage::ForgetRequests => return without_request(record),
        Sabotage::ForgetRanges => matches!(record, Record::Ranged { mode: Some(_), .. }),
        Sabotage::ForgetUnlocks => matches!(record, Record::Ranged { mode: None, .. }),
        Sabotage::ForgetClients => matches!(record, Record::Client { .. }),
        Sabotage::SpeakEarly
        | Sabotage::ShortGrace
        | Sabotage::ForgetKeep
        | Sabotage::Http(_)
        | Sabotage::Range(_) => false,
    };
    if is_meant {
        Record::Deleted {
            key: b"-"[..].into(),
        }
    } else {
        record.clone()
    }
}
