//! One thread that works while leaders come and go: it takes locks, counts and stores, and knows of its own keys what must be
//! there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchd::client::{Client, Error, ErrorKind, Guard, Lost, Reason, Standing};

use crate::clock::Clock;
use crate::failover::witness::{Count, Witness};

/// How long locks are taken for, waited for, and held.
const LEASE: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(3);

/// How long a key is waited for that nobody else asks for.
const WAIT_FOR_NEW: Duration = Duration::from_millis(200);

/// The lease of what is held through all of it: longer than any change of leaders takes.
const LONG_LEASE: Duration = Duration::from_secs(30);

/// So much of a promise has to be left for a release to be certain.
const CERTAIN: Duration = Duration::from_millis(500);

/// Whoever was told that there is no room asks again after this.
const NO_ROOM_NS: u64 = 20_000_000;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    OnOwnKey,
    OnSharedKeys,
    /// Every time another one, and does not wait for it for long. The others wait behind a grant of their own whose answer
    /// was lost, for its lease; whether anybody is served again is seen here.
    OnNewKeys,
    /// Holds one thing through all of it.
    HoldsForLong,
}

pub(crate) struct Worker<'a> {
    pub(crate) index: usize,
    pub(crate) kind: Kind,
    pub(crate) client: &'a Client,
    pub(crate) witness: &'a Witness,
    pub(crate) clock: &'a Clock,
    pub(crate) is_over: &'a AtomicBool,
}

/// What a thread knows of its own counter and value.
#[derive(Default)]
struct Own {
    /// The last sum that was acknowledged, and how many additions since then may have been made or not.
    sum: i64,
    sum_doubts: i64,
    /// What the value may be: what was acknowledged last, and what may have been stored since.
    texts: Vec<String>,
    number: u64,
}

impl Worker<'_> {
    pub(crate) fn run(&self) {
        if self.kind == Kind::HoldsForLong {
            return self.hold_for_long();
        }
        let mut own = Own::default();
        let shared = self.witness.key_count() - super::WORKERS;
        for cycle in 0_usize.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            match self.kind {
                Kind::OnNewKeys => {
                    let name = format!("failover-new-{}-{cycle}", self.index);
                    self.hold(&name, self.index, WAIT_FOR_NEW);
                }
                kind => {
                    let key = match kind {
                        Kind::OnOwnKey => self.index,
                        _ => super::WORKERS + (self.index + cycle) % shared,
                    };
                    self.hold(&format!("failover-{key}"), key, WAIT);
                }
            }
            if cycle % 4 == self.index % 4 {
                self.add(&mut own);
                self.store(&mut own);
            }
        }
    }

    /// Takes a lock, holds it, lets it go. The witness knows it by its number.
    fn hold(&self, name: &str, key: usize, wait: Duration) {
        let lock = self.client.lock(name);
        let guard = match lock.lease(LEASE).wait(wait).acquire() {
            Ok(guard) => Arc::new(guard),
            Err(error) if error.kind() == ErrorKind::Busy => return,
            Err(error) => return self.failed(&error),
        };
        self.witness.granted(key, &guard, self.clock.now_ns());
        let _ = guard.lost().wait(HOLD);
        self.witness.letting_go(key, &guard);
        // It is in nobody else's hands any more.
        let Some(guard) = Arc::into_inner(guard) else {
            return self
                .witness
                .add_wrong("a guard that two threads have".to_owned());
        };
        let was_certain = guard.is_held() && guard.remaining() > CERTAIN;
        let fence = guard.fence();
        match guard.release() {
            // Somebody has let it go, or it was forgotten: it was not this thread.
            Err(Error::Lost {
                why: Lost::Forgotten,
                ..
            }) if was_certain => {
                let what = format!("key {key}: fence {fence} was held, and nobody knows it");
                self.witness.add_wrong(what);
            }
            Err(Error::Lost { .. }) => self.witness.count(Count::Lost),
            Err(error) => self.failed(&error),
            Ok(()) => {}
        }
    }

    /// Holds one thing, which has to outlast every leader.
    fn hold_for_long(&self) {
        let key = format!("failover-long-{}", self.index);
        let mut fence_max = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let lock = self.client.lock(&key).lease(LONG_LEASE);
            let guard: Guard = match lock.wait(WAIT).acquire() {
                Ok(guard) => guard,
                Err(error) if error.kind() == ErrorKind::Busy => continue,
                Err(error) => {
                    self.failed(&error);
                    continue;
                }
            };
            if guard.fence() <= fence_max {
                let what = format!("{key}: fence {} came after {fence_max}", guard.fence());
                self.witness.add_wrong(what);
            }
            fence_max = guard.fence();
            while !guard.lost().wait(Duration::from_millis(100)) {
                if self.is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
            self.witness.count(Count::Lost);
            if let Standing::Lost(why @ (Lost::Forgotten | Lost::Broken)) = guard.standing() {
                let what = format!("{key}: fence {fence_max} was held, and is lost: {why}");
                self.witness.add_wrong(what);
            }
        }
    }

    /// Each addition that was acknowledged is in every later sum.
    fn add(&self, own: &mut Own) {
        let counter = self.client.counter(format!("failover-{}", self.index));
        match counter.add(1) {
            Ok(sum) => {
                // Earlier runs may have counted on it.
                let is_right =
                    own.sum == 0 || (own.sum + 1..=own.sum + 1 + own.sum_doubts).contains(&sum);
                if !is_right {
                    let (index, before, doubts) = (self.index, own.sum, own.sum_doubts);
                    let what = format!("counter {index}: {sum} after {before}, {doubts} in doubt");
                    self.witness.add_wrong(what);
                }
                (own.sum, own.sum_doubts) = (sum, 0);
                self.witness.count(Count::Additions);
            }
            Err(error) => {
                // What was refused was certainly not done.
                own.sum_doubts += i64::from(error.kind() != ErrorKind::Refused);
                self.failed(&error);
            }
        }
    }

    /// What was acknowledged is there, unless something newer may be.
    fn store(&self, own: &mut Own) {
        let value = self.client.value(format!("failover-{}", self.index));
        own.number += 1;
        let text = format!("{}-{}", self.index, own.number);
        match value.set(&text) {
            Ok(()) => {
                own.texts = vec![text];
                self.witness.count(Count::Values);
            }
            Err(error) => {
                if !own.texts.is_empty() && error.kind() != ErrorKind::Refused {
                    own.texts.push(text);
                }
                self.failed(&error);
            }
        }
        match value.get() {
            Ok(found) if !own.texts.is_empty() => {
                let found = found.map(|it| String::from_utf8_lossy(&it).into_owned());
                if !found.as_ref().is_some_and(|it| own.texts.contains(it)) {
                    let what = format!("value {}: {found:?}, not {:?}", self.index, own.texts);
                    self.witness.add_wrong(what);
                }
            }
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
    }

    /// What may happen while leaders change or etcd is full is counted; anything else is wrong.
    fn failed(&self, error: &Error) {
        match error {
            Error::Unknown { .. } => self.witness.count(Count::Unknown),
            Error::Down { .. } => self.witness.count(Count::Down),
            Error::Lost { .. } => self.witness.count(Count::Lost),
            Error::Refused(refusal) if refusal.reason() == Reason::Draining => {
                self.witness.count(Count::Down);
            }
            // Only this word: any other limit is out of reach here.
            Error::Refused(refusal) if refusal.word() == "error_storage" => {
                self.witness.count(Count::Full);
                // If there is no rest, it is asked at once, and nothing else is the worse for it.
                let _ = self.clock.rest(NO_ROOM_NS);
            }
            error => self
                .witness
                .add_wrong(format!("thread {}: {error}", self.index)),
        }
    }
}
