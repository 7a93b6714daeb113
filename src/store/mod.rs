//! What survives the process: the engine says what changed, a store keeps it.
//!
//! A store never decides. It takes the engine's [`Record`]s in order and says up to which of them
//! everything may be spoken of; the server holds back the bytes that say more. [`Memory`] keeps
//! nothing and costs nothing. [`Journal`] keeps everything in a directory:
//!
//! ```text
//! Journal::open(path, options, progress) ─► Opened { journal, life, found, restore }
//!     life      the new epoch · found: how the last life ended, what was cut off, its fences
//!     restore   .each(clocks, |record| …, |progress| …): replay before serving
//!     journal   a Store; stop() is the very last write
//! ```
//!
//! `docs/journal.md` describes the directory; the files here are, from the disk upwards:
//!
//! - `disk.rs` what is needed of a disk · the one that fails is for tests (`tools/sim`)
//! - `format.rs` headers and frames, byte by byte · `entry.rs` what they say · `read.rs` one file
//! - `load.rs` a whole directory: torn or damaged? · `newest.rs` which segment has to be there
//! - `inspect.rs` a look at a live directory
//! - `writer.rs` batches into segments · `segment.rs` makes one · `spare.rs` makes it ahead
//! - `compact.rs` segments into a snapshot · `ranges.rs` what is left of byte ranges · `repair.rs`
//! - `open.rs` the beginning of a life · `journal.rs` the store as the reactor sees it
//! - `etcd/` the store of a cluster's leader
//! - `keeper.rs` its thread · `hand_over.rs` what both see · `gather.rs` whether it waits for more

mod compact;
mod disk;
mod entry;
#[cfg(feature = "cluster")]
pub mod etcd;
#[cfg(test)]
#[path = "../../tools/sim/src/fault_disk.rs"]
mod fault_disk;
pub mod format;
mod gather;
mod hand_over;
mod inspect;
mod journal;
mod keeper;
mod load;
mod memory;
mod newest;
mod open;
mod ranges;
mod read;
mod repair;
mod segment;
mod spare;
mod writer;

pub use self::compact::{Compacted, Job, NotCompacted};
pub use self::disk::{Disk, DiskFile, Files};
pub use self::entry::{Clocks, Entry};
#[cfg(test)]
pub use self::fault_disk::{FaultDisk, FaultFile};
pub use self::format::{Durability, Life};
pub use self::inspect::{Counts, Held, HeldBytes, Inspection, check, inspect};
pub use self::journal::{Journal, Notice, Opened, Options, SEGMENT_BYTES};
pub use self::load::{Cut, Damage, Ending, FileFound, Found, LoadError, Reading, Restore};
pub use self::memory::Memory;
pub use self::open::{Beginning, Begun, Holder, OpenError, begin};
pub use self::repair::{Lost, Repaired, repair, repair_disk};
pub use self::spare::{Spare, SpareJob};
pub use self::writer::{Batch, Closed, Trouble, Writer};
use crate::base::{Millis, Nanos};
use crate::engine::types::Record;
use crate::histogram::{Histogram, Percentiles};
use crate::shard::Shard;

/// Where records go. They are numbered from 1 on, in the order in which they are appended; the
/// engine counts them in step.
pub trait Store {
    /// Whether records are wanted at all.
    fn is_durable(&self) -> bool;

    /// Takes the next record.
    fn append(&mut self, now: Nanos, record: &Record);

    /// The turn is over: what has gathered may be handed over. Never waits.
    fn commit(&mut self, now: Nanos);

    /// What has become of the records.
    fn progress(&mut self) -> Progress;

    /// Whether so much waits for the disk that changes have to wait as well.
    fn is_behind(&self) -> bool;

    /// How many bytes wait for the disk.
    fn memory(&self) -> usize;

    /// Something that was acknowledged may be missing, and clients have not had the time to notice. So
    /// [`Store::stop`] writes no note that it ended in order, and the next life takes as much care as
    /// this one.
    fn stay_in_doubt(&mut self) {}

    /// While changes that need room are refused: how many bytes have to become free, 0 if unknown.
    fn missing_bytes(&self) -> u64 {
        0
    }

    /// Ends in order: waits until everything is kept, and writes that it ended. The very last call.
    ///
    /// # Errors
    /// What could not be kept, and why.
    fn stop(&mut self) -> Result<(), String>;

    /// Whether bytes may leave at this moment; asked anew before every write. Where another machine may
    /// take over, only while it surely has not.
    #[inline(always)]
    fn may_speak(&self) -> bool {
        true
    }

    /// Where requests have to go instead, if this is not the server that decides.
    #[inline(always)]
    fn redirect(&self) -> Option<Redirect> {
        None
    }

    /// Which keys this server has, if there are others that have the rest.
    #[inline(always)]
    fn shard(&self) -> Option<Shard> {
        None
    }

    /// How long a leader's lease is, if this server is a member of a cluster.
    #[inline(always)]
    fn cluster_ttl(&self) -> Option<Millis> {
        None
    }

    /// Where requests about keys of another shard have to go, as far as it is known.
    #[inline(always)]
    fn leader_of(&self, _shard: u32) -> Redirect {
        Redirect::default()
    }

    /// What there is to see of a cluster, if this server is in one.
    #[inline(always)]
    fn cluster(&self) -> Option<ClusterShown> {
        None
    }
}

/// What there is to see of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the names of the figures say it, and `docs/cluster.md` explains them"
)]
pub struct ClusterShown {
    pub role: &'static str,
    pub shard: Shard,
    pub leader: Redirect,
    pub epoch: u64,
    pub seq: u64,
    pub lag_entries: u64,
    pub lag: Percentiles,
    pub lags: Histogram,
    pub behind_ns: u64,
    pub commit: Percentiles,
    pub commits: Histogram,
    pub entry_bytes: u64,
    pub doubts: u64,
    pub snapshots: u64,
    pub etcd_bytes: u64,
    pub etcd_bytes_in_use: u64,
    pub etcd_quota_bytes: u64,
}

/// Another server decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// Where it speaks the line protocol, if it is known.
    pub line: Option<String>,
    /// Where it speaks HTTP, as a URL without a path, if it is known.
    pub http: Option<String>,
}

/// What has become of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to this record may be spoken of.
    pub durable: u64,
    /// There is no room for anything that grows.
    pub is_full: bool,
    /// The store failed for good, and why: nothing more may be said, and the process has to end.
    pub failed: Option<String>,
}
