//! A thread that renews one lease, and what everybody else may believe of that lease meanwhile.
//!
//! Whether the lease is held is not what the thread says but what the clock says: the moment until
//! which the server certainly keeps it, counted from before the last renewal that succeeded was sent.
//! So a thread that hangs in a request, or does not get to run, makes nobody believe too much.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::call::Caller;
use super::cancel::{Cancel, LOOK};
use super::clock::Moment;
use super::error::{Error, NotAcquired, Reason};
use super::lease::{Lease, Release, Renewal};
use crate::maker::Maker;

/// A request may take no longer than the half of what is left, so that there is time for another; but
/// so long in any case.
const REQUEST_MIN: Duration = Duration::from_millis(20);
/// The shortest pause after a renewal that failed.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// How often a lease is renewed, and for how long.
///
/// ```
/// use std::time::Duration;
/// use latchd::http_client::HeartbeatOptions;
///
/// let options = HeartbeatOptions::new()
///     .interval(Duration::from_secs(3))
///     .extend_by(Duration::from_secs(10));
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct HeartbeatOptions {
    interval: Duration,
    extend_by: Duration,
}

impl HeartbeatOptions {
    /// Every 200 ms, for 500 ms.
    pub const fn new() -> Self {
        Self {
            interval: Duration::from_millis(200),
            extend_by: Duration::from_millis(500),
        }
    }

    /// How long after one renewal the next one is sent, the first one included; 200 ms unless set. It is
    /// sent earlier if otherwise less than half of the lease would be left, and after one that failed.
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How long the lease lasts from each renewal on, from 1 ms up to 10 minutes; 500 ms unless set.
    pub const fn extend_by(mut self, extend_by: Duration) -> Self {
        self.extend_by = extend_by;
        self
    }
}

impl Default for HeartbeatOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What is to be believed of a lease.
///
/// ```no_run
/// # use std::time::Duration;
/// # use latchd::http_client::{HeartbeatOptions, LeaseClient, State};
/// # let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// # let lease = client.acquire_once("job", "me", Duration::from_secs(1))?;
/// # let heartbeat = client.start_heartbeat(lease, HeartbeatOptions::new())?;
/// match heartbeat.state() {
///     State::Alive { lease_expiry_ms } => println!("until {lease_expiry_ms}"),
///     State::Degraded { error, .. } => println!("still held, but {error}"),
///     State::Lost => println!("stop!"),
/// }
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum State {
    /// It is held, and the last renewal, if there was one, succeeded.
    Alive {
        /// When it ends unless it is renewed again, as the server's time of day, in milliseconds since 1970.
        lease_expiry_ms: u64,
    },
    /// It is held yet, and the last renewal failed; it is tried again until the time is over.
    Degraded {
        /// What the last one came to.
        error: Arc<Error>,
        /// When the lease ends then.
        lease_expiry_ms: u64,
    },
    /// It is held no longer, or nobody can know: the server says so, or no renewal has succeeded in time, or
    /// it was released. It stays lost.
    Lost,
}

impl State {
    /// Whether it is certainly held.
    pub const fn is_held(&self) -> bool {
        !matches!(self, Self::Lost)
    }
}

/// Renews a lease for as long as this lives. Dropping it stops that, and releases nothing.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::http_client::{HeartbeatOptions, LeaseClient, RetryOptions};
///
/// let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// let options = RetryOptions::new(Duration::from_secs(2)).wait(Duration::from_secs(30));
/// let lease = client.acquire_with_retry("job", "me", &options)?;
/// let heartbeat = client.start_heartbeat(lease, HeartbeatOptions::new())?;
/// for step in 0..100 {
///     if !heartbeat.is_held() {
///         break; // somebody else may have it
///     }
///     println!("step {step}, fenced with {}", heartbeat.fencing_token());
/// }
/// heartbeat.release()?;
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[must_use = "a heartbeat that is dropped stops"]
pub struct Heartbeat {
    shared: Arc<Shared>,
    stop: Cancel,
    thread: Option<JoinHandle<()>>,
    /// For the release; the thread has connections of its own.
    caller: Caller,
    /// As it was when the heartbeat began: all that a forked child may look at.
    first: Lease,
}

/// Sees what becomes of a lease, from any thread, also when its [`Heartbeat`] is gone. Each watch is told
/// the latest state, and waits for a change of what it was told last.
///
/// ```no_run
/// # use std::time::Duration;
/// # use latchd::http_client::{HeartbeatOptions, LeaseClient};
/// # let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// # let lease = client.acquire_once("job", "me", Duration::from_secs(1))?;
/// let heartbeat = client.start_heartbeat(lease, HeartbeatOptions::new())?;
/// let watch = heartbeat.watch();
/// std::thread::spawn(move || {
///     if watch.wait_until_lost(Duration::from_secs(3_600)) {
///         eprintln!("the lease is lost");
///         std::process::exit(1);
///     }
/// });
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Watch {
    shared: Arc<Shared>,
    /// The number of the state that was told last.
    told: u64,
}

struct Shared {
    latest: Mutex<Latest>,
    changed: Condvar,
    maker: Maker,
}

/// The lease as it is known, and what is told of it.
struct Latest {
    lease: Lease,
    /// What the last renewal came to, if it failed.
    trouble: Option<Arc<Error>>,
    is_lost: bool,
    /// Nobody renews it any more.
    is_stopped: bool,
    /// Grows with every change.
    number: u64,
}

impl Latest {
    /// What is to be believed now. Once this was `Lost` it stays so, whatever is heard later.
    fn state(&mut self) -> State {
        if !self.is_lost && !self.lease.is_held() {
            self.is_lost = true;
            self.number += 1;
        }
        let lease_expiry_ms = self.lease.lease_expiry_ms;
        match &self.trouble {
            _ if self.is_lost => State::Lost,
            None => State::Alive { lease_expiry_ms },
            Some(error) => State::Degraded {
                error: Arc::clone(error),
                lease_expiry_ms,
            },
        }
    }
}

impl Shared {
    /// Whether this is a copy in a forked child. There the mutex may be locked for ever, and
    /// nothing is held.
    fn is_copy(&self) -> bool {
        !self.maker.is_this()
    }

    /// What is to be believed now, in the process that runs this.
    fn state(&self) -> State {
        match self.is_copy() {
            true => State::Lost,
            false => self.latest().state(),
        }
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known, and tells everybody.
    fn change(&self, change: impl FnOnce(&mut Latest)) {
        let mut latest = self.latest();
        change(&mut latest);
        latest.number += 1;
        drop(latest);
        self.changed.notify_all();
    }

    /// A renewal has succeeded. If it was too late, nobody believes it: somebody may have been told so.
    fn renewed(&self, lease: &Lease) {
        self.change(|latest| {
            if latest.state().is_held() {
                latest.lease.extend(lease.held_until, lease.lease_expiry_ms);
                latest.trouble = None;
            }
        });
    }

    /// Waits for a change, until `end` or until the lease is over, whichever comes first.
    fn wait<'a>(&'a self, latest: MutexGuard<'a, Latest>, end: Moment) -> MutexGuard<'a, Latest> {
        let now = Moment::now();
        let mut span = now.until(end).min(LOOK);
        if !latest.is_lost {
            span = span.min(latest.lease.left());
        }
        let waited = self.changed.wait_timeout(latest, span);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Heartbeat {
    pub(super) fn start(
        caller: &Caller,
        lease: Lease,
        options: HeartbeatOptions,
    ) -> Result<Self, Error> {
        if !(1..=600_000).contains(&options.extend_by.as_millis()) {
            return Err(Error::misuse(
                "a renewal extends a lease by 1 ms up to 10 minutes",
            ));
        }
        caller.check_process()?;
        let shared = Arc::new(Shared {
            latest: Mutex::new(Latest {
                lease: lease.clone(),
                trouble: None,
                is_lost: false,
                is_stopped: false,
                number: 0,
            }),
            changed: Condvar::new(),
            maker: Maker::this(),
        });
        let stop = Cancel::new();
        let thread = {
            let (shared, stop, own) = (Arc::clone(&shared), stop.clone(), caller.apart());
            let renew = move || {
                let _reached = stop.reaches(&own);
                renew_until_stopped(&shared, &stop, &own, options);
                shared.change(|latest| latest.is_stopped = true);
            };
            let builder = Builder::new().name("latchd-heartbeat".to_owned());
            builder.spawn(renew).map_err(Error::NoThread)?
        };
        Ok(Self {
            shared,
            stop,
            thread: Some(thread),
            caller: caller.clone(),
            first: lease,
        })
    }

    /// What is to be believed of the lease at this moment.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Whether it is certainly held at this moment; false in a forked child.
    pub fn is_held(&self) -> bool {
        self.state().is_held()
    }

    /// The number to pass on with everything that is changed under the lock.
    pub fn fencing_token(&self) -> u64 {
        self.first.fencing_token
    }

    /// Sees what becomes of the lease, for another thread.
    pub fn watch(&self) -> Watch {
        let told = match self.shared.is_copy() {
            true => 0,
            false => self.shared.latest().number,
        };
        Watch {
            shared: Arc::clone(&self.shared),
            told,
        }
    }

    /// Stops renewing, and returns the lease as it is now: whoever has it may renew it, or release it, or let it
    /// end. Returns when the thread has ended; a renewal that is under way is broken off.
    ///
    /// In a forked child it stops nothing, and returns a lease that is not held: the lock is the
    /// parent's.
    pub fn cancel(mut self) -> Lease {
        if self.shared.is_copy() {
            return Lease {
                held_until: Moment::START,
                ..self.first.clone()
            };
        }
        self.stop();
        self.shared.latest().lease.clone()
    }

    /// Stops renewing and releases the lock. From now on it counts as lost, whatever comes of that.
    ///
    /// # Errors
    /// Those of [`release_once`](super::LeaseClient::release_once). [`Error::Misuse`] in a forked
    /// child, which releases nothing.
    pub fn release(mut self) -> Result<Release, Error> {
        self.caller.check_process()?;
        self.shared.change(|latest| latest.is_lost = true);
        self.stop();
        let lease = self.shared.latest().lease.clone();
        self.caller.release(&lease, self.caller.timeout)
    }

    fn stop(&mut self) {
        if self.shared.is_copy() {
            // To cancel would break the parent's connections, and the thread to be waited for is
            // not there.
            return std::mem::forget(self.thread.take());
        }
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It has ended either way, and a panic has been shown.
            let _ = thread.join();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread does.
fn renew_until_stopped(shared: &Shared, stop: &Cancel, caller: &Caller, options: HeartbeatOptions) {
    let mut lease = shared.latest().lease.clone();
    let mut has_failed = false;
    loop {
        let left = lease.left();
        let pause = match has_failed {
            false => options.interval.min(left / 2),
            true => options.interval.min(left / 4).max(PAUSE_MIN),
        };
        if left.is_zero() || stop.pause(pause) {
            return;
        }
        let timeout = caller.timeout.min((lease.left() / 2).max(REQUEST_MIN));
        let trouble = match caller.renew(&mut lease, options.extend_by, timeout) {
            Ok(Renewal::Renewed) => {
                shared.renewed(&lease);
                has_failed = false;
                // If it came too late it is lost for good.
                match shared.latest().state().is_held() {
                    true => continue,
                    false => return,
                }
            }
            Ok(Renewal::NotOwnerOrExpired) => {
                return shared.change(|latest| latest.is_lost = true);
            }
            Ok(Renewal::Busy) => Error::NotAcquired(NotAcquired {
                lock_name: lease.lock_name.clone(),
                reason: Reason::Busy,
                recommended_retry: None,
                current_owner_id: None,
                current_expiry_ms: None,
            }),
            Err(error) => error,
        };
        if stop.is_cancelled() {
            return; // the connection was broken off for that
        }
        has_failed = true;
        shared.change(|latest| latest.trouble = Some(Arc::new(trouble)));
    }
}

impl Watch {
    /// What is to be believed of the lease at this moment.
    pub fn state(&mut self) -> State {
        if self.shared.is_copy() {
            return State::Lost;
        }
        let mut latest = self.shared.latest();
        let state = latest.state();
        self.told = latest.number;
        state
    }

    /// Waits for a state that this watch has not told yet; what happened in between is left out. `None` if
    /// there is none in time, or can be none: the lease is lost, or nobody renews it any more.
    pub fn wait(&mut self, timeout: Duration) -> Option<State> {
        if self.shared.is_copy() {
            return None;
        }
        let end = Moment::now().after(timeout);
        let mut latest = self.shared.latest();
        loop {
            let state = latest.state();
            if latest.number != self.told {
                self.told = latest.number;
                return Some(state);
            }
            let is_over = latest.is_lost || (latest.is_stopped && latest.lease.left().is_zero());
            if is_over || Moment::now() >= end {
                return None;
            }
            latest = self.shared.wait(latest, end);
        }
    }

    /// Waits until the lease is lost; returns whether it is.
    pub fn wait_until_lost(&self, timeout: Duration) -> bool {
        if self.shared.is_copy() {
            return true;
        }
        let end = Moment::now().after(timeout);
        let mut latest = self.shared.latest();
        while latest.state().is_held() {
            if Moment::now() >= end {
                return false;
            }
            latest = self.shared.wait(latest, end);
        }
        true
    }
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heartbeat").field(&self.state()).finish()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_tuple("Watch").field(&state).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(held_until: Moment) -> Lease {
        Lease {
            lock_name: "job".to_owned(),
            owner_id: "me".to_owned(),
            lease_id: "L1".to_owned(),
            fencing_token: 1,
            lease_expiry_ms: 1,
            held_until,
        }
    }

    fn shared(held_until: Moment) -> Shared {
        Shared {
            latest: Mutex::new(Latest {
                lease: lease(held_until),
                trouble: None,
                is_lost: false,
                is_stopped: false,
                number: 0,
            }),
            changed: Condvar::new(),
            maker: Maker::this(),
        }
    }

    /// A renewal that is heard of when the lease is over comes too late: somebody may have been told so.
    #[test]
    fn defect_4_what_was_lost_stays_lost() {
        let hour = Duration::from_secs(3_600);
        let later = lease(Moment::now().after(hour));
        let over = shared(Moment::now());
        over.renewed(&later);
        assert!(matches!(over.latest().state(), State::Lost));
        // Nor does trouble, or anything else, bring it back.
        over.change(|latest| latest.lease.extend(later.held_until, 2));
        assert!(matches!(over.latest().state(), State::Lost));

        let in_time = shared(Moment::now().after(hour / 2));
        in_time.renewed(&later);
        assert!(in_time.latest().lease.left() > hour / 2);
    }
}
