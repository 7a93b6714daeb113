//! The store in etcd: what the leader of a cluster keeps, as the reactor sees it.
//!
//! The reactor's side never waits: it encodes records into a buffer, and at the end of a turn the buffer
//! is handed over. A thread puts all that gathered into the log, as one entry in one transaction
//! (`append.rs`), says so, and wakes the reactor. What may be said besides is up to [`Tenancy`]: nothing
//! leaves unless this member surely leads at that moment.
//!
//! - `keys.rs` under which keys · `value.rs` what stands there, byte by byte · `map.rs` how many shards
//! - `append.rs` one entry, until it is known what became of it · `appender.rs` the thread · `returning.rs` how long an entry waits for more
//! - `load.rs` reading it all · `snapshot.rs` what is left of it · `split.rs` the same for other shards
//! - `tenancy.rs` who may speak, as all threads see it · `place.rs` time, threads, and ways to etcd
//! - `figures.rs` what is counted

mod append;
mod appender;
mod figures;

mod keys;
mod load;
mod map;
mod place;
mod returning;
mod snapshot;
mod split;
mod tenancy;
mod value;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::append::{Appender, Next};
use self::appender::Thread;
pub use self::figures::Figures;
pub use self::keys::{CHUNKS_MAX, Keys, MapKeys, map_key, ticket_key};
pub use self::load::{Frames, NotRead, Position, create, follow, load, next_page, read_on};
pub use self::map::{Map, Mapped, read_map, read_or_create_map};
pub use self::place::{Bell, Place};
pub use self::snapshot::{Snapshot, prepare, succeeded};
pub use self::split::{Piece, Split, Tally};
pub use self::tenancy::Tenancy;
pub use self::value::{ENTRY_BYTES_MIN, Logged, Manifest, SALT, Unreadable, frames, places};
use super::entry::Clocks;
use super::format::push_record;
use super::journal::BEHIND_BYTES;
use super::{Progress, Store};
use crate::base::Nanos;
use crate::engine::types::Record;
use crate::etcd::Etcd;

/// What the store of a leader has to be told.
pub struct Lead {
    /// Where it stands.
    pub tenancy: Arc<Tenancy>,
    /// Goes on behind the entry with which it began to lead.
    pub appender: Appender,
    /// How far the log had got with that entry.
    pub position: Position,
    /// Tells our entries from all others.
    pub nonce: u64,
    /// The longest value of an entry.
    pub batch_bytes: usize,
    /// What is counted.
    pub figures: Arc<Figures>,
}

/// Keeps records in etcd.
pub struct EtcdStore {
    filling: Vec<u8>,
    /// The number of the last record that was appended, as the log counts.
    last: u64,
    /// The log's number of the engine's record 0.
    base: u64,
    batch_bytes: usize,
    wall_ms: WallMs,
    shared: Arc<Shared>,
    tenancy: Arc<Tenancy>,
    figures: Arc<Figures>,
}

/// Reads the time of day.
pub type WallMs = Box<dyn Fn() -> u64 + Send>;

/// How long a resignation may take, whatever etcd does: then the lease ends by itself.
const STOP_MOST: Duration = Duration::from_secs(4);

/// What the reactor and the thread both see.
struct Shared {
    handed: Mutex<Handed>,
    /// Rings when something was handed over, or it is to end.
    bell: Arc<Bell>,
    /// Rings when the thread has ended.
    over: Arc<Bell>,
    is_over: AtomicBool,
    /// Everything up to this number may be spoken of.
    durable: AtomicU64,
    is_full: AtomicBool,
    is_failed: AtomicBool,
    /// How many bytes were handed over and are not in the log.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Handed {
    batches: VecDeque<Batch>,
    /// The bell rings when this record was handed over: the thread waits for it, and until then for nothing but the time.
    rings_from: u64,
    end: Option<End>,
    /// Why nothing more can be kept.
    failure: String,
}

/// Records that become one entry.
#[derive(Default)]
struct Batch {
    frames: Vec<u8>,
    /// The number of the last one.
    last: u64,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Everything that was handed over is put into the log, and the lease is given back.
    Resign,
    /// At once.
    Abandon,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Handed> {
        // Nothing is done under the lock that could panic halfway.
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EtcdStore {
    /// Takes records from now on. `etcd` is for its thread alone; `wall_ms` reads the time of day.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn new(lead: Lead, etcd: Box<dyn Etcd + Send>, wall_ms: WallMs) -> std::io::Result<Self> {
        let base = lead.position.number;
        let shared = Arc::new(Shared {
            handed: Mutex::default(),
            bell: Arc::default(),
            over: Arc::default(),
            is_over: AtomicBool::new(false),
            durable: AtomicU64::new(base),
            is_full: AtomicBool::new(false),
            is_failed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        });
        let (tenancy, figures) = (Arc::clone(&lead.tenancy), Arc::clone(&lead.figures));
        let batch_bytes = lead.batch_bytes;
        let thread = Thread::new(lead, etcd, Arc::clone(&shared));
        tenancy
            .place()
            .spawn("latchd-append", Box::new(move || thread.run()))?;
        Ok(Self {
            filling: Vec::new(),
            last: base,
            base,
            batch_bytes,
            wall_ms,
            shared,
            tenancy,
            figures,
        })
    }

    /// Hands over what has gathered, and joins it with what was handed over before as far as an entry goes.
    fn hand_over(&mut self) {
        if self.filling.is_empty() {
            return;
        }
        let room = self.batch_bytes.saturating_sub(ENTRY_BYTES_MIN);
        let bytes = self.filling.len();
        let mut handed = self.shared.lock();
        if handed.end.is_some() {
            // What came before may have been dropped, and an entry with a gap before it could be read by nobody.
            self.filling.clear();
            return;
        }
        self.shared.waiting.fetch_add(bytes, Ordering::Relaxed);
        // Frame by frame only where it has to be: nearly always all of it fits.
        match handed.batches.back_mut() {
            Some(batch) if batch.frames.len() + bytes <= room => {
                batch.frames.append(&mut self.filling);
                batch.last = self.last;
            }
            _ if bytes <= room => handed.batches.push_back(Batch {
                frames: std::mem::take(&mut self.filling),
                last: self.last,
            }),
            _ => {
                let filling = std::mem::take(&mut self.filling);
                split(&filling, room, self.last, &mut handed.batches);
            }
        }
        let is_awaited = self.last >= handed.rings_from || handed.batches.len() > 1;
        drop(handed);
        if is_awaited {
            self.shared.bell.ring();
        }
    }

    /// Gives the lease back when the entry under way is done with, and does not wait for it. What was never sent is
    /// dropped: nobody was told of it, and nobody could be any more.
    pub fn resign(&mut self) {
        self.filling.clear();
        let mut handed = self.shared.lock();
        let dropped = handed.batches.drain(..).map(|it| it.frames.len()).sum();
        drop(handed);
        self.shared.waiting.fetch_sub(dropped, Ordering::Relaxed);
        self.end(End::Resign);
    }

    /// Whether that is done.
    #[must_use]
    pub fn has_resigned(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    fn end(&mut self, how: End) {
        self.shared.lock().end = Some(how);
        self.shared.bell.ring();
    }

    /// Waits until the thread has ended, or has had its time.
    fn await_end(&self) {
        let place = self.tenancy.place();
        let began = place.now();
        loop {
            let heard = self.shared.over.heard();
            let spent = Duration::from_nanos(place.now().since(began));
            let left = STOP_MOST.saturating_sub(spent);
            if self.shared.is_over.load(Ordering::Acquire) || left.is_zero() {
                return;
            }
            place.wait(&self.shared.over, heard, left);
        }
    }
}

/// Cuts frames into batches, none longer than `room` unless it is a single frame.
fn split(bytes: &[u8], room: usize, last: u64, batches: &mut VecDeque<Batch>) {
    let places: Vec<(usize, usize)> = value::frame_places(bytes).filter_map(Result::ok).collect();
    let first = last + 1 - places.len() as u64;
    let mut batch = Batch::default();
    for ((at, length), number) in places.into_iter().zip(first..) {
        if !batch.frames.is_empty() && batch.frames.len() + length > room {
            batches.push_back(std::mem::take(&mut batch));
        }
        batch.frames.extend_from_slice(&bytes[at..at + length]);
        batch.last = number;
    }
    if !batch.frames.is_empty() {
        batches.push_back(batch);
    }
}

impl Store for EtcdStore {
    fn is_durable(&self) -> bool {
        true
    }

    fn append(&mut self, now: Nanos, record: &Record) {
        self.last += 1;
        let clocks = || Clocks {
            now,
            wall_ms: (self.wall_ms)(),
        };
        push_record(&mut self.filling, SALT, self.last, record, clocks);
    }

    fn commit(&mut self, _: Nanos) {
        self.hand_over();
    }

    fn progress(&mut self) -> Progress {
        let shared = &self.shared;
        let durable = shared.durable.load(Ordering::Acquire);
        let failed = shared.is_failed.load(Ordering::Acquire);
        let is_tight = self.figures.is_tight.load(Ordering::Relaxed);
        Progress {
            durable: durable - self.base,
            is_full: is_tight || shared.is_full.load(Ordering::Relaxed),
            failed: failed.then(|| shared.lock().failure.clone()),
        }
    }

    fn is_behind(&self) -> bool {
        self.memory() > BEHIND_BYTES
    }

    fn memory(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed) + self.filling.len()
    }

    /// Resigns: says nothing more, finishes what is under way, and gives the lease back.
    fn stop(&mut self) -> Result<(), String> {
        self.hand_over();
        self.end(End::Resign);
        self.await_end();
        match self.shared.is_failed.load(Ordering::Acquire) {
            true => Err(self.shared.lock().failure.clone()),
            false => Ok(()),
        }
    }

    fn may_speak(&self) -> bool {
        self.tenancy.may_speak()
    }
}

/// Without [`Store::stop`] it ends as if it were killed: what is not in the log is lost, and nobody was
/// told of it. Its thread may wait for an answer for seconds, and is not waited for: what it sent is
/// done only if we still lead, and it changes nothing of a later time as a leader.
impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.end(End::Abandon);
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
