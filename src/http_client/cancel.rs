//! A way to tell somebody who waits to stop, from another thread.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::call::Caller;
use super::clock::Moment;
use crate::maker::Maker;

/// A wait looks at the clock this often: no wait of the system counts the time asleep.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Ends acquires that are under way, at once: those that pause between two attempts, and those whose
/// request is at the server. All clones are one.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::http_client::{Cancel, Error, LeaseClient, RetryOptions};
///
/// let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// let cancel = Cancel::new();
/// let options = RetryOptions::new(Duration::from_secs(10)).cancel(cancel.clone());
/// let waiting = std::thread::spawn(move || client.acquire_with_retry("job", "me", &options));
/// cancel.cancel();
/// assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    cancelled: Condvar,
    maker: Maker,
}

#[derive(Default)]
struct State {
    is_cancelled: bool,
    /// Whose connections are broken then, each with its number.
    callers: Vec<(u64, Caller)>,
    numbers: u64,
}

/// While this lives, a caller's connections are broken when it is cancelled.
pub(super) struct Cancellable {
    number: u64,
    of: Cancel,
}

impl Cancel {
    /// Nothing is cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends what is under way, and everything that begins with this later. Does nothing in a forked
    /// child: what is under way is the parent's, and so are its connections.
    pub fn cancel(&self) {
        if self.is_copy() {
            return;
        }
        let mut state = self.state();
        state.is_cancelled = true;
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        self.0.cancelled.notify_all();
        for (_, caller) in callers {
            caller.hang_up();
        }
    }

    /// Whether it is cancelled. In a forked child it counts as such: nothing can begin with it
    /// there.
    pub fn is_cancelled(&self) -> bool {
        self.is_copy() || self.state().is_cancelled
    }

    /// Whether this is a copy in a forked child, whose mutex may be locked for ever.
    pub(super) fn is_copy(&self) -> bool {
        !self.0.maker.is_this()
    }

    /// Has the connections of this caller broken when it is cancelled; they are to be its own.
    pub(super) fn reaches(&self, caller: &Caller) -> Cancellable {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        match state.is_cancelled {
            true => caller.hang_up(),
            false => state.callers.push((number, caller.clone())),
        }
        drop(state);
        Cancellable {
            number,
            of: self.clone(),
        }
    }

    /// Waits for so long; returns whether it is cancelled.
    pub(super) fn pause(&self, span: Duration) -> bool {
        let end = Moment::now().after(span);
        let mut state = self.state();
        loop {
            let left = Moment::now().until(end);
            if state.is_cancelled || left.is_zero() {
                return state.is_cancelled;
            }
            let waited = self.0.cancelled.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.callers.retain(|(number, _)| *number != self.number);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
