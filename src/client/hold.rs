//! What is held: until when it is certain, whether it is in doubt, and how it was lost.
//!
//! A grant is *held* while the server has promised it, by our own clock, counted from before the
//! request that it promised it to was sent. It is *in doubt* when its connection has broken, or when
//! nothing was heard on the connection that it would end with for too long: the server may have let it go
//! or not, and nobody may act on it until that is known. It is *lost* once and for all. Never sends
//! anything.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::callbacks::{Callback, Calls};
use super::clock;
use super::conn::Conn;
use super::error::Lost;
use super::locked;
use crate::base::{Millis, Nanos, Token};
use crate::drift::Drift;
use crate::engine::types::Mode;
use crate::maker::Maker;

/// A lease is asked for again when this part of it is over.
const RENEW_PART: u32 = 3;

/// In a cluster a short lease is asked for again more often, but not more often than this.
pub(super) const RENEW_EVERY_MIN: Duration = Duration::from_millis(300);

/// When the lease of a silent leader is over, another member has taken over and a guard is renewed
/// there within this time: etcd ends the lease up to half a second late, and the client looks for a
/// leader every three quarters of a second.
const FOUND_WITHIN: Duration = Duration::from_millis(1_500);

/// A grant, shared by its guard and the thread that renews it.
pub(super) struct Hold {
    pub(super) key: Box<[u8]>,
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) shard: usize,
    /// How long a leader's lease is, if another member of the cluster may take over and be found.
    cluster_ttl: Option<Millis>,
    bounds: Bounds,
    calls: Arc<Calls>,
    maker: Maker,
    state: Mutex<State>,
    changed: Condvar,
}

/// How far a server's promise can be relied on, besides the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// A grant does not outlive its client, which is kept for so long when its connections are gone.
    pub(super) promise_max: Millis,
    /// A grant that ends with its connection is certain for so long after a request that was answered on it.
    pub(super) silence_max: Option<Duration>,
    /// By how much clocks may differ in speed.
    pub(super) drift: Drift,
}

struct State {
    standing: Standing,
    /// The server has promised it until then, by our clock.
    until: Nanos,
    /// Until then nothing can have happened to its connection that the server alone would know of.
    sure_until: Nanos,
    lease: Millis,
    on_lost: Vec<Callback>,
}

/// How it stands with something that was granted.
///
/// ```no_run
/// # use latchd::client::{Client, Standing};
/// # let client = Client::connect("localhost")?;
/// let guard = client.lock("job").acquire()?;
/// match guard.standing() {
///     Standing::Held => println!("go on"),
///     Standing::Doubtful => println!("wait: the connection is broken, and being made again"),
///     Standing::Lost(why) => println!("stop: {why}"),
///     _ => {}
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The server has promised it, and the promise is not over.
    Held,
    /// The connection is broken, or the server does not answer on it, so it may have let it go. It is
    /// held again if the server says so before the lease is over.
    Doubtful,
    /// It was let go.
    Released,
    /// It is held no longer.
    Lost(Lost),
}

impl Hold {
    pub(super) fn new(
        key: &[u8],
        mode: Mode,
        conn: &Conn,
        (token, lease): (Token, Millis),
        asked_at: Nanos,
        (bounds, calls): (Bounds, &Arc<Calls>),
    ) -> Arc<Self> {
        Arc::new(Self {
            key: key.into(),
            token,
            mode,
            shard: conn.shard,
            cluster_ttl: conn.cluster_ttl.filter(|_| !conn.has_no_other()),
            bounds,
            calls: Arc::clone(calls),
            maker: Maker::this(),
            state: Mutex::new(State {
                standing: Standing::Held,
                until: bounds.promised_until(asked_at, lease),
                sure_until: bounds.sure_until(asked_at),
                lease,
                on_lost: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Looks at the clock, acts, and tells whoever wants to know of a loss, with no lock taken.
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = locked(&self.state);
        self.settle(&mut state);
        let result = act(&mut state);
        let callbacks = match state.standing {
            Standing::Lost(why) => Some((mem::take(&mut state.on_lost), why)),
            _ => None,
        };
        drop(state);
        if let Some((callbacks, why)) = callbacks {
            self.calls.add(callbacks, why);
        }
        result
    }

    /// What the clock has ended is lost.
    fn settle(&self, state: &mut State) {
        if state.is_open() && clock::now() >= state.until {
            self.end(state, Standing::Lost(Lost::Expired));
        }
    }

    fn end(&self, state: &mut State, how: Standing) {
        state.standing = how;
        self.changed.notify_all();
    }

    /// Whether this is a copy in a forked child. There the mutex may be locked for ever.
    pub(super) fn is_copy(&self) -> bool {
        !self.maker.is_this()
    }

    /// How it stands now, for the process that runs this: a forked child has nothing.
    pub(super) fn standing_here(&self) -> Standing {
        match self.is_copy() {
            true => Standing::Lost(Lost::OtherProcess),
            false => self.standing(),
        }
    }

    /// How it stands now.
    pub(super) fn standing(&self) -> Standing {
        self.with(|state| match state.standing {
            Standing::Held if clock::now() >= state.sure_until => Standing::Doubtful,
            standing => standing,
        })
    }

    /// When the server's promise is over.
    pub(super) fn until(&self) -> Nanos {
        locked(&self.state).until
    }

    /// Until when it is certain to be held, if nothing more is heard.
    pub(super) fn sure_until(&self) -> Nanos {
        let state = locked(&self.state);
        state.until.min(state.sure_until)
    }

    pub(super) fn lease(&self) -> Millis {
        locked(&self.state).lease
    }

    /// How long a renewal lasts: the lease, or less if its client is not kept for so long.
    pub(super) fn span(&self) -> Millis {
        self.lease().min(self.bounds.promise_max)
    }

    /// How long after a renewal the next one is due.
    pub(super) fn renew_every(&self) -> Duration {
        let lease = self.lease();
        let third = clock::duration(lease.min(self.bounds.promise_max)) / RENEW_PART;
        match self.slack(lease) {
            Some(slack) if !slack.is_zero() => third.min((slack / 2).max(RENEW_EVERY_MIN)),
            _ => third,
        }
    }

    /// In a cluster: how long before the end of the promise another leader has renewed it at the
    /// latest, if the leader fails just before a renewal.
    pub(super) fn failover_spare(&self) -> Option<Duration> {
        let slack = self.slack(self.lease())?;
        Some(slack.saturating_sub(self.renew_every()))
    }

    /// In a cluster: the shortest lease with which so much is left then.
    pub(super) fn least_lease(&self, spare: Duration) -> Option<Duration> {
        Some(self.bounds.least_lease(self.cluster_ttl?, spare))
    }

    /// In a cluster: how much longer the promise is than a change of the leader takes. One half of
    /// it passes between two renewals at most, the other one is left for whatever has to end with
    /// the promise.
    fn slack(&self, lease: Millis) -> Option<Duration> {
        let failover = failover_within(self.cluster_ttl?);
        Some(self.bounds.counted(lease).saturating_sub(failover))
    }

    /// The server has promised it anew, to a request that was sent after this time. Says whether that
    /// was in time.
    pub(super) fn renewed(&self, asked_at: Nanos, lease: Millis) -> bool {
        let until = self.bounds.promised_until(asked_at, lease);
        self.with(|state| {
            let is_in_time = state.is_open() && clock::now() < until;
            if is_in_time {
                state.standing = Standing::Held;
                state.until = until;
                state.sure_until = self.bounds.sure_until(asked_at);
                state.lease = lease;
            }
            is_in_time
        })
    }

    /// The server has answered, whatever it said, to what was sent after this time on the connection that
    /// the grant belongs to: that is still there.
    pub(super) fn heard(&self, asked_at: Nanos) {
        let sure_until = self.bounds.sure_until(asked_at);
        self.with(|state| state.sure_until = state.sure_until.max(sure_until));
    }

    /// The connection has broken.
    pub(super) fn doubt(&self) {
        self.with(|state| {
            if state.is_open() {
                state.standing = Standing::Doubtful;
            }
        });
    }

    /// It is lost, unless it was let go or lost before.
    pub(super) fn lose(&self, why: Lost) {
        self.with(|state| {
            if state.is_open() {
                self.end(state, Standing::Lost(why));
            }
        });
    }

    /// It is let go; how it stood before.
    pub(super) fn release(&self) -> Standing {
        let (before, callbacks) = self.with(|state| {
            let before = state.standing;
            let mut callbacks = Vec::new();
            if state.is_open() {
                self.end(state, Standing::Released);
                callbacks = mem::take(&mut state.on_lost);
            }
            (before, callbacks)
        });
        // What they have captured may look at the guard when it is dropped, so no lock is taken here.
        drop(callbacks);
        before
    }

    /// Calls it when it is lost, at once if it is already.
    pub(super) fn on_lost(&self, callback: Callback) {
        let mut callback = Some(callback); // if it is not wanted, it is dropped with no lock taken
        self.with(|state| {
            if state.standing != Standing::Released {
                state.on_lost.extend(callback.take());
            }
        });
    }
}

/// The longest time from the failure of a leader with this lease until a guard is renewed at the
/// next leader.
pub(super) fn failover_within(cluster_ttl: Millis) -> Duration {
    clock::duration(cluster_ttl).saturating_add(FOUND_WITHIN)
}

impl Bounds {
    /// The shortest lease that outlasts a change of the leader with `spare` left over, if the
    /// leader fails just before a renewal.
    fn least_lease(self, cluster_ttl: Millis, spare: Duration) -> Duration {
        let needed = failover_within(cluster_ttl)
            .saturating_add(RENEW_EVERY_MIN)
            .saturating_add(spare);
        self.drift.promise_for(needed)
    }

    /// When the promise of a lease is over that was asked for at this time.
    pub(super) fn promised_until(self, asked_at: Nanos, lease: Millis) -> Nanos {
        Nanos(asked_at.0.saturating_add(clock::nanos(self.counted(lease))))
    }

    /// How much of a lease is counted on.
    fn counted(self, lease: Millis) -> Duration {
        let promise = lease.min(self.promise_max);
        self.drift.counted(clock::duration(promise))
    }

    fn sure_until(self, asked_at: Nanos) -> Nanos {
        match self.silence_max {
            Some(span) => Nanos(asked_at.0.saturating_add(clock::nanos(span))),
            None => Nanos::NEVER,
        }
    }
}

impl State {
    fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Held | Standing::Doubtful)
    }
}

/// Tells when a grant is lost: to be asked, or waited for.
///
/// ```no_run
/// use std::time::Duration;
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let guard = client.lock("job").acquire()?;
/// let lost = guard.lost().clone(); // for another thread
/// if lost.wait(Duration::from_millis(100)) {
///     eprintln!("stop at once: {}", lost.why().expect("it is lost"));
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone)]
pub struct LostSignal {
    pub(super) hold: Arc<Hold>,
}

impl LostSignal {
    /// Whether it is lost.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.why().is_some()
    }

    /// How it was lost.
    #[must_use]
    pub fn why(&self) -> Option<Lost> {
        match self.hold.standing_here() {
            Standing::Lost(why) => Some(why),
            _ => None,
        }
    }

    /// Waits for up to `timeout` until it is lost, or let go. Returns whether it is lost.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        if self.hold.is_copy() {
            return true;
        }
        let deadline = clock::after(timeout);
        let mut state = locked(&self.hold.state);
        while state.is_open() {
            let left = clock::nap(deadline.min(state.until));
            if left.is_zero() {
                break;
            }
            let waited = self.hold.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.is_set()
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostSignal")
            .field(&self.hold.standing_here())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that `latch run` leaves for its command to end.
    const SPARE: Duration = Duration::from_millis(300);

    fn least_lease_s(ttl_s: u64) -> f64 {
        let bounds = Bounds {
            promise_max: Millis::MAX,
            silence_max: None,
            drift: Drift::default(),
        };
        let least = bounds.least_lease(Millis::from_secs(ttl_s), SPARE);
        least.as_secs_f64()
    }

    /// The table in docs/client.md.
    #[test]
    fn least_lease_of_a_cluster_is_its_ttl_and_2_1_s_divided_by_0_9() {
        for (ttl_s, documented_s) in [(3, 5.7), (5, 7.9), (6, 9.0), (10, 13.5), (30, 35.7)] {
            let least_s = least_lease_s(ttl_s);
            assert!(
                (least_s - (ttl_s as f64 + 2.1) / 0.9).abs() < 1e-6,
                "{ttl_s}: {least_s}"
            );
            let rounded_up_s = (least_s * 10.0 - 1e-6).ceil() / 10.0;
            assert!(
                (rounded_up_s - documented_s).abs() < 1e-6,
                "{ttl_s}: {least_s}"
            );
        }
    }

    #[test]
    fn least_lease_is_at_most_3_s_above_a_ttl_of_up_to_6_s() {
        for ttl_s in 1..=6 {
            assert!(least_lease_s(ttl_s) <= ttl_s as f64 + 3.0, "{ttl_s}");
        }
    }
}
