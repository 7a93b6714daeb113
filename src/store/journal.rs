//! The store in a directory, as the reactor sees it.
//!
//! The reactor's side never waits: it encodes records into a buffer, and at the end of a turn the
//! buffer is handed over. The thread writes and syncs all that gathered while it was busy, says so,
//! and wakes the reactor. Three buffers change hands, so that nothing is allocated. What gathers is
//! bounded by whoever asks [`Store::is_behind`] before it makes more.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::compact::Compacted;
use super::disk::Files;
use super::entry::Clocks;
use super::format::{Durability, Life};
use super::gather::ENOUGH_BYTES;
use super::hand_over::{End, ReactorSide, Shared};
use super::keeper::Keeper;
use super::load::{Ending, Found, Reading, Restore};
use super::open::{self, Beginning, Begun, DirLock, OpenError};
use super::writer::Batch;
use super::{Progress, Store};
use crate::base::Nanos;
use crate::engine::types::Record;

/// How long segments are.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// When so much waits for the disk, changes have to wait.
pub(super) const BEHIND_BYTES: usize = 1 << 20;

/// What the journal has to be told.
pub struct Options {
    /// When an answer may be spoken.
    pub durability: Durability,
    /// How long segments are; [`SEGMENT_BYTES`] unless there is a reason.
    pub segment_bytes: u64,
    /// A number that nobody else knows; used once, when the directory is new.
    pub salt: u32,
    /// Reads the time of day, in milliseconds since 1970.
    pub wall_ms: Box<dyn Fn() -> u64>,
    /// Called by the thread when [`Store::progress`] has news.
    pub wake: Box<dyn Fn() + Send>,
    /// Called by the thread when something is to be logged.
    pub report: Box<dyn Fn(Notice) + Send>,
}

/// Something that belongs in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There is no room, or no descriptor, and why; changes that need some are refused.
    Full(String),
    /// There is room again.
    Room,
    /// The disk failed, or a file was taken away; the daemon has to end.
    Failed(String),
    /// Closed segments became a snapshot.
    Compacted(Compacted),
    /// They did not, and will be tried again. Said once until it succeeds or fails in another way.
    NotCompacted(String),
    /// The next segment cannot be made ahead; it will be made when it is needed. Said once likewise.
    NoSpare(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(why) => f.write_str(why),
            Self::Room => f.write_str("there is room on the disk again"),
            Self::Failed(why) => write!(f, "storage failed: {why}"),
            Self::Compacted(it) => write!(
                f,
                "compacted {} bytes of the journal to {}",
                it.bytes_before, it.snapshot.bytes
            ),
            Self::NotCompacted(why) => write!(f, "the journal cannot be compacted: {why}"),
            Self::NoSpare(why) => write!(f, "the next segment cannot be made ahead: {why}"),
        }
    }
}

/// A directory that was opened.
pub struct Opened {
    /// Takes records from now on.
    pub journal: Journal,
    /// The life that has begun, with its epoch.
    pub life: Life,
    /// What the last life left.
    pub found: Found,
    /// The records to replay before serving.
    pub restore: Restore<Files>,
}

/// Keeps records in a directory.
pub struct Journal {
    filling: Batch,
    /// The number of the last record that was appended, as the disk counts.
    last: u64,
    /// The disk's number of the engine's record 0.
    base: u64,
    salt: u32,
    /// Whether the life before this one did not end in order.
    follows_crash: bool,
    /// Whether this one is not to end in order: see [`Store::stay_in_doubt`].
    is_in_doubt: bool,
    wall_ms: Box<dyn Fn() -> u64>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _lock: DirLock,
}

impl Journal {
    /// Opens a directory, and makes it if it is missing. The new epoch is on the disk when this
    /// returns.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        dir: &Path,
        options: Options,
        progress: &mut dyn FnMut(Reading),
    ) -> Result<Opened, OpenError> {
        let lock = DirLock::take(dir)?;
        let beginning = Beginning {
            durability: options.durability,
            segment_bytes: options.segment_bytes,
            salt: options.salt,
            wall_ms: (options.wall_ms)(),
        };
        let disk = lock.disk();
        let Begun {
            writer,
            life,
            found,
            restore,
        } = open::begin(disk.clone(), beginning, progress)?;
        lock.check()?; // reading everything may have taken a while
        let base = writer.written();
        let shared = Arc::new(Shared::new(base));
        let reactor = ReactorSide {
            shared: Arc::clone(&shared),
            wake: options.wake,
        };
        let keeper = Keeper::new(disk, writer, life.durability, reactor, options.report);
        let thread = thread::Builder::new()
            .name("latchd-journal".to_owned())
            .spawn(move || keeper.run())
            .map_err(OpenError::Directory)?;
        let journal = Self {
            filling: Batch::default(),
            last: base,
            base,
            salt: life.salt,
            follows_crash: found.ending == Ending::Unclean,
            is_in_doubt: false,
            wall_ms: options.wall_ms,
            shared,
            thread: Some(thread),
            _lock: lock,
        };
        Ok(Opened {
            journal,
            life,
            found,
            restore,
        })
    }

    fn hand_over(&mut self) {
        let mut handed = self.shared.lock();
        handed.batch.join(&mut self.filling);
        let waiting = handed.batch.len();
        self.shared.waiting.store(waiting, Ordering::Relaxed);
        if handed.batch.last() >= handed.rings_at || waiting > ENOUGH_BYTES {
            self.shared.ring(handed);
        }
    }

    /// Tells the thread to end, and waits for it.
    fn end(&mut self, how: End) {
        let mut handed = self.shared.lock();
        handed.end = Some(how);
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.ring(handed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if it panicked it has said so
        }
    }
}

impl Store for Journal {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, now: Nanos, record: &Record) {
        self.last += 1;
        let clocks = || Clocks {
            now,
            wall_ms: (self.wall_ms)(),
        };
        self.filling.push(self.salt, self.last, record, clocks);
    }

    fn commit(&mut self, _: Nanos) {
        if !self.filling.is_empty() {
            self.hand_over();
        }
    }

    fn progress(&mut self) -> Progress {
        let shared = &self.shared;
        let durable = shared.durable.load(Ordering::Acquire);
        let failed = shared.is_failed.load(Ordering::Acquire);
        Progress {
            durable: durable - self.base,
            is_full: shared.is_full.load(Ordering::Relaxed),
            failed: failed.then(|| shared.lock().failure.clone()),
        }
    }

    fn is_behind(&self) -> bool {
        self.memory() > BEHIND_BYTES
    }

    fn memory(&self) -> usize {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let taken = self.shared.taken.load(Ordering::Relaxed);
        waiting + taken + self.filling.len()
    }

    fn stay_in_doubt(&mut self) {
        self.is_in_doubt = true;
    }

    fn missing_bytes(&self) -> u64 {
        self.shared.missing_bytes.load(Ordering::Relaxed)
    }

    fn stop(&mut self) -> Result<(), String> {
        self.hand_over();
        self.end(match self.is_in_doubt {
            true => End::StopInDoubt,
            false => End::Stop((self.wall_ms)()),
        });
        let handed = self.shared.lock();
        match handed.is_stopped {
            true => Ok(()),
            false => Err(handed.failure.clone()),
        }
    }
}

/// Without [`Store::stop`] it ends as if it were killed: what was not handed over is lost. But a life
/// that never took a record, because the start failed for another reason, leaves the directory as it
/// found it: what stopped in order before is still so.
impl Drop for Journal {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        let is_unused = self.last == self.base && !self.follows_crash;
        self.end(match is_unused && !thread::panicking() {
            true => End::Stop((self.wall_ms)()),
            false => End::Abandon,
        });
    }
}
