//! The hand-over: what the reactor and the journal's thread both see.
//!
//! One lock for what changes hands, held for moments only, and a few numbers that are read without
//! it. The reactor never waits here; the thread sleeps until the bell rings.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::compact::{Compacted, NotCompacted};
use super::spare::Spare;
use super::writer::Batch;

/// What both sides see.
pub(super) struct Shared {
    pub(super) handed: Mutex<Handed>,
    pub(super) bell: Condvar,
    /// Everything up to this number may be spoken of.
    pub(super) durable: AtomicU64,
    pub(super) is_full: AtomicBool,
    /// How many bytes have to become free, if it is full.
    pub(super) missing_bytes: AtomicU64,
    pub(super) is_failed: AtomicBool,
    /// Whether the journal ends, so that a compaction gives up.
    pub(super) is_over: AtomicBool,
    /// How many bytes were handed over and not taken.
    pub(super) waiting: AtomicUsize,
    /// How many bytes were taken and not written.
    pub(super) taken: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Handed {
    pub(super) batch: Batch,
    pub(super) end: Option<End>,
    /// Whether the thread waits for the bell: to ring costs a system call.
    pub(super) is_idle: bool,
    /// It waits for this record, and hears of others when it looks by itself.
    pub(super) rings_at: u64,
    pub(super) compacted: Option<Result<Compacted, NotCompacted>>,
    /// What came of making a spare.
    pub(super) spare: Option<io::Result<Spare<File>>>,
    /// Why nothing more can be kept.
    pub(super) failure: String,
    pub(super) is_stopped: bool,
}

/// How a journal ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// In order, at this time of day.
    Stop(u64),
    /// With everything kept, but without a note that it was in order.
    StopInDoubt,
    /// At once.
    Abandon,
}

impl Shared {
    pub(super) fn new(durable: u64) -> Self {
        Self {
            handed: Mutex::default(),
            bell: Condvar::new(),
            durable: AtomicU64::new(durable),
            is_full: AtomicBool::new(false),
            missing_bytes: AtomicU64::new(0),
            is_failed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Handed> {
        // Nothing is done under the lock that could panic halfway.
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread sleeps until the bell rings, or for so long at most. The bell rings when something
    /// up to this record is handed over, and for everything else.
    pub(super) fn sleep<'a>(
        &self,
        mut handed: MutexGuard<'a, Handed>,
        rings_at: u64,
        most: Option<Duration>,
    ) -> MutexGuard<'a, Handed> {
        handed.is_idle = true;
        handed.rings_at = rings_at;
        let mut handed = match most {
            None => {
                let woken = self.bell.wait(handed);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
            Some(most) => {
                let woken = self.bell.wait_timeout(handed, most);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        handed.is_idle = false;
        handed.rings_at = 0;
        handed
    }

    pub(super) fn ring(&self, mut handed: MutexGuard<'_, Handed>) {
        let is_idle = std::mem::replace(&mut handed.is_idle, false);
        drop(handed);
        if is_idle {
            self.bell.notify_one();
        }
    }
}

/// What the thread has of the reactor. If the thread panics the reactor is told that nothing more is
/// kept: it would wait for ever.
pub(super) struct ReactorSide {
    pub(super) shared: Arc<Shared>,
    pub(super) wake: Box<dyn Fn() + Send>,
}

impl ReactorSide {
    pub(super) fn fail(&self, why: String) {
        self.shared.lock().failure = why;
        self.shared.is_failed.store(true, Ordering::Release);
        (self.wake)();
    }
}

impl Drop for ReactorSide {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail("the journal's thread panicked".to_owned());
        }
    }
}
