//! The keys of a run: their names, and which one a request is for.

use std::io::Write;

use crate::run::codec::Key;
use crate::run::spec::{Keys, Spec, Workload};

/// How unevenly zipf keys are chosen.
const ZIPF_EXPONENT: f64 = 0.99;

/// How many keys there are.
fn key_count(spec: &Spec) -> usize {
    match spec.keys {
        Keys::Own => spec.connections * spec.pipeline,
        Keys::Shared(count) | Keys::Zipf(count) => count as usize,
    }
}

/// The names of all keys: new ones for each run, so that nothing left by an earlier run is in the
/// way.
pub(crate) fn key_names(spec: &Spec) -> Vec<Key> {
    let kind = match spec.workload {
        Workload::Lock => "lock",
        Workload::Semaphore => "sema",
        Workload::ReadWrite => "rdwr",
        Workload::Counter => "cntr",
        Workload::Value => "valu",
        Workload::Signal => "sign",
    };
    let run = fastrand::u16(..);
    let count = key_count(spec).max(spec.connections);
    (0..count).map(|index| key_name(kind, run, index)).collect()
}

/// One key of one run.
pub(crate) fn key_name(kind: &str, run: u16, index: usize) -> Key {
    let mut key = [b'0'; _];
    write!(&mut key[..], "{kind}:{run:04x}:{index:08}").expect("a key of this length");
    key
}

/// Chooses the key of the next cycle.
pub(crate) struct KeyChooser {
    rng: fastrand::Rng,
    count: u32,
    /// Zipf: the probability of this key or one before it.
    up_to: Vec<f64>,
    own: bool,
}

impl KeyChooser {
    pub(crate) fn new(spec: &Spec) -> Self {
        let (count, zipf, own) = match spec.keys {
            Keys::Own => (0, false, true),
            Keys::Shared(count) => (count, false, false),
            Keys::Zipf(count) => (count, true, false),
        };
        let mut up_to = Vec::new();
        if zipf {
            let mut sum = 0.0;
            for rank in 1..=count {
                sum += f64::from(rank).powf(-ZIPF_EXPONENT);
                up_to.push(sum);
            }
            for chance in &mut up_to {
                *chance /= sum;
            }
        }
        Self {
            rng: fastrand::Rng::with_seed(7),
            count,
            up_to,
            own,
        }
    }

    /// Chooses otherwise than others do.
    pub(crate) fn reseed(&mut self, index: usize) {
        self.rng = fastrand::Rng::with_seed(7 + index as u64);
    }

    /// The next key; `None` for the worker's own.
    pub(crate) fn key(&mut self) -> Option<u32> {
        if self.own {
            return None;
        }
        if self.up_to.is_empty() {
            return Some(self.rng.u32(..self.count));
        }
        let chance = self.rng.f64();
        let rank = self.up_to.partition_point(|&up_to| up_to < chance) as u32;
        Some(rank.min(self.count - 1))
    }

    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }
}
