//! What is held: until when it is certain, whether it is in doubt, and how it was lost.
//!
//! A grant is *held* while the server has promised it, by our own clock, counted from before the
//! request that it promised it to was sent. It is *in doubt* when its connection has broken: the server
//! may have let it go or not, and nobody may act on it until that is known. It is *lost* once and
//! for all. Never sends anything.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock;
use super::error::Lost;
use super::locked;
use crate::base::{Millis, Nanos, Token};
use crate::engine::types::Mode;

/// Clocks differ in speed, at most by this part of a lease: so much of it is not counted on.
const DRIFT: u64 = 1_000;

/// What is called when a grant is lost.
type Callback = Box<dyn FnOnce(Lost) + Send>;

/// A grant, shared by its guard and the thread that renews it.
pub(super) struct Hold {
    pub(super) key: Box<[u8]>,
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) shard: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Standing,
    /// The server has promised it until then, by our clock.
    until: Nanos,
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
    /// The connection is broken, so the server may have let it go. It is held again if the server says
    /// so before the lease is over.
    Doubtful,
    /// It was let go.
    Released,
    /// It is held no longer.
    Lost(Lost),
}

/// When the promise of a lease is over that was asked for at this time.
pub(super) fn promised_until(asked_at: Nanos, lease: Millis) -> Nanos {
    let nanos = lease.nanos();
    Nanos(asked_at.0.saturating_add(nanos - nanos / DRIFT))
}

impl Hold {
    pub(super) fn new(
        key: &[u8],
        mode: Mode,
        shard: usize,
        (token, lease): (Token, Millis),
        asked_at: Nanos,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: key.into(),
            token,
            mode,
            shard,
            state: Mutex::new(State {
                standing: Standing::Held,
                until: promised_until(asked_at, lease),
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
            call(callbacks, why);
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

    /// How it stands now.
    pub(super) fn standing(&self) -> Standing {
        self.with(|state| state.standing)
    }

    pub(super) fn until(&self) -> Nanos {
        locked(&self.state).until
    }

    pub(super) fn lease(&self) -> Millis {
        locked(&self.state).lease
    }

    /// The server has promised it anew, to a request that was sent after this time. Says whether that
    /// was in time.
    pub(super) fn renewed(&self, asked_at: Nanos, lease: Millis) -> bool {
        let until = promised_until(asked_at, lease);
        self.with(|state| {
            let is_in_time = state.is_open() && clock::now() < until;
            if is_in_time {
                state.standing = Standing::Held;
                state.until = until;
                state.lease = lease;
            }
            is_in_time
        })
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
        self.with(|state| {
            let before = state.standing;
            if state.is_open() {
                self.end(state, Standing::Released);
                state.on_lost.clear();
            }
            before
        })
    }

    /// Calls it when it is lost, at once if it is already.
    pub(super) fn on_lost(&self, callback: Callback) {
        self.with(|state| {
            if state.standing != Standing::Released {
                state.on_lost.push(callback);
            }
        });
    }
}

impl State {
    fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Held | Standing::Doubtful)
    }
}

/// Calls them on a thread of their own, so that none of them can hold up a renewal, nor find one of our
/// locks taken.
fn call(callbacks: Vec<Callback>, why: Lost) {
    if callbacks.is_empty() {
        return;
    }
    let calls = Arc::new(Mutex::new(callbacks));
    let run = move |calls: &Mutex<Vec<Callback>>| {
        for callback in mem::take(&mut *locked(calls)) {
            callback(why);
        }
    };
    let theirs = Arc::clone(&calls);
    let thread = thread::Builder::new().name("latch-lost".to_owned());
    if thread.spawn(move || run(&theirs)).is_err() {
        run(&calls); // better here than never
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
        match self.hold.standing() {
            Standing::Lost(why) => Some(why),
            _ => None,
        }
    }

    /// Waits for up to `timeout` until it is lost, or let go. Returns whether it is lost.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = clock::after(timeout);
        let mut state = locked(&self.hold.state);
        while state.is_open() {
            let left = clock::until(deadline.min(state.until));
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
            .field(&self.hold.standing())
            .finish()
    }
}
