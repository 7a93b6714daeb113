//! What the threads of a member stand in: the time, how they begin and how they wait, and their ways to etcd.
//!
//! A seam: the daemon has threads of the system, a clock and sockets; the simulator runs the very same
//! threads one at a time, in virtual time, on a model of etcd. So nothing that decides or follows is
//! written twice.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::base::Nanos;
use crate::etcd::{Etcd, Watching};

/// What the threads of a member stand in.
pub trait Place: Send + Sync {
    /// What time it is, on a clock that also runs while the machine sleeps.
    fn now(&self) -> Nanos;

    /// Has the server look what has come.
    fn wake(&self);

    /// Begins a thread. If it panics the process has to end: without one of its threads a member would
    /// neither lead nor follow, and nobody would notice.
    ///
    /// # Errors
    /// When there can be no thread.
    fn spawn(&self, name: &'static str, run: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Waits until the bell has rung since [`Bell::heard`] was asked, or for so long at most.
    fn wait(&self, bell: &Arc<Bell>, heard: u64, most: Duration);

    /// A way to etcd. `first` chooses with which of its members it begins.
    fn etcd(&self, first: usize) -> Box<dyn Etcd + Send>;

    /// The same for whoever writes the log, near etcd's own leader if that can be had.
    fn etcd_of_log(&self, first: usize) -> Box<dyn Etcd + Send> {
        self.etcd(first)
    }

    /// A way to be told by etcd what changes.
    fn watch(&self, first: usize) -> Box<dyn Watching + Send>;

    /// Whether somebody has set a password that etcd, as far as it was asked, does not want.
    fn is_login_idle(&self) -> bool {
        false
    }
}

/// Rings for whoever waits, also if it rings first: asked for what it has rung so far before one looks
/// whether there is anything to do, it cannot be missed.
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicU64,
    sleepers: Mutex<()>,
    condvar: Condvar,
}

impl Bell {
    /// How often it has rung.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.rung.load(Ordering::Acquire)
    }

    /// Wakes whoever waits.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        // Whoever has looked and does not sleep yet holds this.
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.condvar.notify_all();
    }

    /// Sleeps until it has rung since then, or for so long at most.
    pub fn sleep(&self, heard: u64, most: Duration) {
        let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = |(): &mut ()| self.heard() == heard;
        drop(self.condvar.wait_timeout_while(sleepers, most, is_silent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rings_before_anybody_sleeps_is_heard() {
        let bell = Arc::new(Bell::default());
        let heard = bell.heard();
        bell.ring();
        bell.sleep(heard, Duration::from_secs(3_600));
        let (heard, other) = (bell.heard(), Arc::clone(&bell));
        let ringer = std::thread::Builder::new().spawn(move || other.ring());
        bell.sleep(heard, Duration::from_secs(3_600));
        ringer.unwrap().join().unwrap();
        bell.sleep(bell.heard(), Duration::ZERO);
    }
}
