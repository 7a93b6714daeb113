//! What is counted of a log, by those who write it and those who follow it; all threads of a member share it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::Nanos;
use crate::histogram::Lapped;
use crate::shard::Shard;
use crate::store::{ClusterShown, Redirect};

/// What is counted.
#[derive(Debug, Default)]
pub struct Figures {
    /// How many bytes the entries that were written are.
    pub entry_bytes: AtomicU64,
    /// How often an answer was missing, and it was looked for.
    pub doubts: AtomicU64,
    /// How large etcd's file is.
    pub etcd_bytes: AtomicU64,
    /// How much of it is in use.
    pub etcd_bytes_in_use: AtomicU64,
    /// There is so little space left that nothing may grow.
    pub is_tight: AtomicBool,
    /// The leader was told by etcd that there is none at all.
    pub is_full: AtomicBool,
    /// A leader has found in the log what cannot be: the process ends.
    pub has_failed: AtomicBool,
    /// The last entry that was written or followed.
    pub seq: AtomicU64,
    /// The last record that a leader has put into the log.
    pub number: AtomicU64,
    /// The epoch of that entry.
    pub epoch: AtomicU64,
    /// How far a standby is behind, as it knows.
    pub lag_entries: AtomicU64,
    /// Snapshots that were published.
    pub snapshots: AtomicU64,
    commits: Mutex<Lapped>,
    lag: Mutex<Lag>,
}

/// How far behind the lock table of a standby is, in time: counted from when this member could know of
/// an entry, because etcd told it or was asked, to when it is in the table. No clock of another
/// machine has a part in it.
#[derive(Debug, Default)]
struct Lag {
    durations: Lapped,
    /// How much was told and is not in the table.
    outstanding: u64,
    /// Since when something is known and not in the table, if anything is.
    behind_since: Option<Nanos>,
}

impl Figures {
    /// An entry was put into the log: it took so long, from the first question to the certain answer.
    pub fn note_commit(&self, now: Nanos, ns: u64) {
        lock(&self.commits).observe(now, ns);
    }

    /// etcd has more than the table.
    pub fn note_behind(&self, now: Nanos) {
        lock(&self.lag).behind_since.get_or_insert(now);
    }

    /// Some of it was told, and goes to the table.
    pub fn note_heard(&self, now: Nanos) {
        let mut lag = lock(&self.lag);
        lag.behind_since.get_or_insert(now);
        lag.outstanding += 1;
    }

    /// And is there, all of what was known since then.
    pub fn note_replayed(&self, now: Nanos, since: Nanos) {
        let mut lag = lock(&self.lag);
        lag.durations.observe(now, now.since(since));
        lag.outstanding = lag.outstanding.saturating_sub(1);
        lag.behind_since = (lag.outstanding > 0).then_some(since);
    }

    /// The table is another one: it is loaded anew, or serves.
    pub fn forget_lag(&self) {
        let mut lag = lock(&self.lag);
        lag.outstanding = 0;
        lag.behind_since = None;
    }

    /// What is shown of it, at this time.
    #[must_use]
    pub fn shown(
        &self,
        now: Nanos,
        role: &'static str,
        shard: Shard,
        leader: Redirect,
        quota_bytes: u64,
    ) -> ClusterShown {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let mut commits = lock(&self.commits);
        let mut lag = lock(&self.lag);
        ClusterShown {
            role,
            shard,
            leader,
            epoch: get(&self.epoch),
            seq: get(&self.seq),
            lag_entries: get(&self.lag_entries),
            lag: lag.durations.recent(now),
            lags: *lag.durations.all(),
            behind_ns: lag.behind_since.map_or(0, |since| now.since(since)),
            commit: commits.recent(now),
            commits: *commits.all(),
            entry_bytes: get(&self.entry_bytes),
            doubts: get(&self.doubts),
            snapshots: get(&self.snapshots),
            etcd_bytes: get(&self.etcd_bytes),
            etcd_bytes_in_use: get(&self.etcd_bytes_in_use),
            etcd_quota_bytes: quota_bytes,
        }
    }
}

/// Held for a moment; nothing is done under it that could panic halfway.
fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(figures: &Figures, ms: u64) -> ClusterShown {
        figures.shown(at(ms), "standby", Shard::WHOLE, Redirect::default(), 7)
    }

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    #[test]
    fn a_lag_begins_when_an_entry_could_be_known_and_ends_when_it_is_in_the_table() {
        let figures = Figures::default();
        assert_eq!(shown(&figures, 1_000).behind_ns, 0);
        // A question shows that there is more; it is told later, and replayed later still.
        figures.note_behind(at(1_000));
        figures.note_heard(at(1_010));
        figures.note_heard(at(1_015));
        assert_eq!(shown(&figures, 1_020).behind_ns, 20_000_000);
        figures.note_replayed(at(1_025), at(1_000));
        assert_eq!(shown(&figures, 1_027).behind_ns, 27_000_000, "one is left");
        figures.note_replayed(at(1_030), at(1_015));
        let done = shown(&figures, 1_031);
        assert_eq!((done.behind_ns, done.lags.count()), (0, 2));
        let recent = shown(&figures, 2_026).lag;
        assert_eq!((recent.count, recent.max_us), (2, 25_000));
    }

    #[test]
    fn what_was_told_of_another_table_does_not_count() {
        let figures = Figures::default();
        figures.note_heard(at(1));
        figures.forget_lag();
        assert_eq!(shown(&figures, 9).behind_ns, 0);
        figures.note_replayed(at(10), at(1));
        assert_eq!(shown(&figures, 11).behind_ns, 0);
    }

    #[test]
    fn commits_are_counted_and_told_by_the_second() {
        let figures = Figures::default();
        figures.note_commit(at(500), 3_000_000);
        figures.note_commit(at(600), 5_000_000);
        let it = shown(&figures, 1_501);
        assert_eq!((it.commits.count(), it.commit.count), (2, 2));
        assert_eq!((it.commit.max_us, it.etcd_quota_bytes), (5_000, 7));
    }
}
