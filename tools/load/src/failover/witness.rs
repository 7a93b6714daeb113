//! What must hold while leaders come and go, as clients can know it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchd::client::Guard;

use crate::run::ledger::Wrong;

/// Sees all grants of all threads.
pub(crate) struct Witness {
    keys: Vec<Mutex<Seen>>,
    /// When each grant of this round came.
    grants_ns: Mutex<Vec<u64>>,
    last_grant_ns: AtomicU64,
    wrong: Mutex<Wrong>,
    counts: [AtomicU64; Count::ALL.len()],
}

/// What is known of one key.
#[derive(Default)]
struct Seen {
    fence_max: u64,
    /// Who has it, until just before it is told to let go.
    holder: Option<Arc<Guard>>,
}

/// What is counted, and is not wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Grants,
    Additions,
    Values,
    /// An answer that was lost.
    Unknown,
    /// Nobody could be asked.
    Down,
    /// etcd has no room for it.
    Full,
    /// A guard ended before it was let go.
    Lost,
}

impl Count {
    const ALL: [Self; 7] = [
        Self::Grants,
        Self::Additions,
        Self::Values,
        Self::Unknown,
        Self::Down,
        Self::Full,
        Self::Lost,
    ];
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Witness {
    /// For so many threads with keys of their own, and so many keys that they share.
    pub(crate) fn new(workers: usize, shared_keys: usize) -> Self {
        Self {
            keys: (0..workers + shared_keys)
                .map(|_| Mutex::default())
                .collect(),
            grants_ns: Mutex::default(),
            last_grant_ns: AtomicU64::new(0),
            wrong: Mutex::default(),
            counts: Default::default(),
        }
    }

    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// A guard was returned for this key. Whoever had it before must not believe so any more.
    pub(crate) fn granted(&self, key: usize, guard: &Arc<Guard>, now_ns: u64) {
        let mut seen = locked(&self.keys[key]);
        let fence = guard.fence();
        if fence <= seen.fence_max {
            let before = seen.fence_max;
            self.add_wrong(format!("key {key}: fence {fence} came after {before}"));
        }
        if let Some(holder) = &seen.holder
            && holder.is_held()
        {
            let other = holder.fence();
            self.add_wrong(format!(
                "key {key}: fence {fence} was granted while {other} says that it is held"
            ));
        }
        seen.fence_max = seen.fence_max.max(fence);
        seen.holder = Some(Arc::clone(guard));
        drop(seen);
        self.count(Count::Grants);
        self.last_grant_ns.fetch_max(now_ns, Ordering::SeqCst);
        locked(&self.grants_ns).push(now_ns);
    }

    /// It is about to be let go.
    pub(crate) fn letting_go(&self, key: usize, guard: &Arc<Guard>) {
        let mut seen = locked(&self.keys[key]);
        if seen
            .holder
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, guard))
        {
            seen.holder = None;
        }
    }

    pub(crate) fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn add_wrong(&self, what: String) {
        locked(&self.wrong).add(what);
    }

    pub(crate) fn wrong(&self) -> Wrong {
        locked(&self.wrong).clone()
    }

    pub(crate) fn begin_round(&self) {
        locked(&self.grants_ns).clear();
    }

    pub(crate) fn last_grant_ns(&self) -> u64 {
        self.last_grant_ns.load(Ordering::SeqCst)
    }

    /// The longest time between two grants since then.
    pub(crate) fn longest_gap_ns(&self, since_ns: u64) -> u64 {
        let mut grants_ns = locked(&self.grants_ns).clone();
        grants_ns.push(since_ns);
        grants_ns.retain(|it| *it >= since_ns);
        grants_ns.sort_unstable();
        let gaps = grants_ns.windows(2).map(|two| two[1] - two[0]);
        gaps.max().unwrap_or(0)
    }

    /// What all of it was.
    pub(crate) fn summary(&self) -> String {
        let count = |what: Count| self.counts[what as usize].load(Ordering::SeqCst);
        let texts = Count::ALL.map(|what| format!("{} {what:?}", count(what)));
        format!("{}; {} wrong", texts.join(", "), self.wrong().count).to_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_begins_with_the_fault() {
        let witness = Witness::new(1, 0);
        locked(&witness.grants_ns).extend([5, 90, 120, 400, 410]);
        assert_eq!(witness.longest_gap_ns(100), 280);
        assert_eq!(witness.longest_gap_ns(500), 0);
        witness.begin_round();
        assert_eq!(witness.longest_gap_ns(0), 0);
    }

    #[test]
    fn what_is_counted_is_told() {
        let witness = Witness::new(1, 0);
        witness.count(Count::Unknown);
        assert!(
            witness.summary().contains("1 unknown"),
            "{}",
            witness.summary()
        );
        witness.add_wrong("x".to_owned());
        assert!(witness.summary().contains("1 wrong"));
    }
}
