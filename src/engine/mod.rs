//! The lock table: pure, deterministic, infallible.
//!
//! [`Engine`] has five doors: [`step`](Engine::step) for a request, [`expire`](Engine::expire) for
//! time that has passed, [`disconnect`](Engine::disconnect) for a client that is gone,
//! [`introduce`](Engine::introduce) for one that said who it is, and [`drain`](Engine::drain) for
//! the end. Each takes the time as an argument and appends what shall be done to a list of
//! [`Effect`](types::Effect)s. The engine itself never does anything: it has no socket, no clock,
//! no log and no way to fail.

mod arena;
mod client;
mod ctx;
mod fence;
mod lapsed;
mod lock;
mod queue;
mod table;
mod two_phase;
pub mod types;
pub mod view;

use std::collections::VecDeque;

use self::client::Clients;
use self::ctx::Ctx;
pub use self::fence::Chance;
use self::fence::Fences;
use self::lock::Locks;
use self::queue::Waiters;
pub use self::table::{Census, Kind};
use self::types::{Effects, Request};
use crate::base::{ClientId, Millis, Nanos};
use crate::timers::Timers;

/// Most timers, releases and forgotten keys one call works off. What is left is due at once and
/// comes with the next turn, so that a million leases ending together, or one client leaving with a
/// million locks, never keep everyone else waiting.
pub const WORK_PER_TURN_MAX: u32 = 2048;

/// The rules an operator sets.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Most keys; 0 is no limit. At the limit the longest idle key makes room; if none is idle, a
    /// new key is refused.
    pub locks_max: u32,
    /// Most waiters in one line; 0 is no limit.
    pub waiters_per_key_max: u32,
    /// The lease of a request that names none.
    pub lease_default: Millis,
    /// Whether what a client holds is released when its connection goes.
    pub auto_release: bool,
    /// Least time between two garbage collections.
    pub gc_interval: Millis,
    /// How long a key may be idle before it is forgotten.
    pub gc_idle_max: Millis,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            locks_max: 1_000_000,
            waiters_per_key_max: 0,
            lease_default: Millis::from_secs(33),
            auto_release: true,
            gc_interval: Millis::from_secs(5),
            gc_idle_max: Millis::from_secs(60),
        }
    }
}

/// What the outside world gives the engine once, at the start.
pub struct Origin {
    /// Every fence will be above this.
    pub fence: u64,
    /// Seed of the key table's hash, secret from clients.
    pub seed: [u64; 2],
    /// Where token salts come from.
    pub chance: Chance,
}

/// What a timer stands for.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// This holder's lease ends.
    Lease(u32),
    /// This waiter's parked command has waited long enough.
    Wait(u32),
    /// Idle keys are to be forgotten.
    Collection,
}

/// How often what has happened. `grants` less all the others is what is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Holders made.
    pub grants: u64,
    /// Holders that let go.
    pub releases: u64,
    /// Holders whose lease ended.
    pub expiries: u64,
    /// Holders whose connection ended.
    pub disconnects: u64,
}

/// The lock table.
pub struct Engine {
    rules: Rules,
    locks: Locks,
    waiters: Waiters,
    clients: Clients,
    timers: Timers<Due>,
    fences: Fences,
    tally: Tally,
    /// Clients that left with more than one turn's work behind them.
    departing: VecDeque<u32>,
    draining: bool,
}

impl Engine {
    /// An empty table.
    #[must_use]
    pub fn new(rules: Rules, origin: Origin) -> Self {
        Self {
            rules,
            locks: Locks::new(origin.seed),
            waiters: Waiters::new(),
            clients: Clients::new(),
            timers: Timers::new(),
            fences: Fences::new(origin.fence, origin.chance),
            tally: Tally::default(),
            departing: VecDeque::new(),
            draining: false,
        }
    }

    /// Decides one request. The client must not be parked: on one connection, answers come before
    /// the next question. No answer among the effects means that the client is parked from now on.
    pub fn step(&mut self, now: Nanos, id: ClientId, request: Request<'_>, out: &mut Effects) {
        let client = self.clients.find_or_insert(id);
        let lease_default = self.rules.lease_default;
        let (locks, mut cx) = self.split(now, now, out);
        let cx = &mut cx;
        match request {
            Request::Acquire {
                key,
                mode,
                wait,
                lease,
            } => {
                locks.acquire(cx, client, key, mode, wait, lease.unwrap_or(lease_default));
            }
            Request::Enqueue { key, mode, lease } => {
                locks.enqueue(cx, client, key, mode, lease.unwrap_or(lease_default));
            }
            Request::Wait { key, wait } => locks.wait(cx, client, key, wait),
            Request::Release { key, token } => locks.release(cx, client, key, token),
            Request::Renew { key, token, lease } => {
                locks.renew(cx, client, key, token, lease.unwrap_or(lease_default));
            }
            Request::Position { key } => locks.position(cx, client, key),
        }
    }

    /// Lets time pass: ends leases and waits, forgets idle keys, goes on with departures. At most
    /// [`WORK_PER_TURN_MAX`] of them; then [`Engine::next_deadline`] lies in the past.
    pub fn expire(&mut self, now: Nanos, out: &mut Effects) {
        let mut budget = WORK_PER_TURN_MAX;
        while let Some(&client) = self.departing.front() {
            let (locks, mut cx) = self.split(now, now, out);
            if !locks.depart(&mut cx, client, &mut budget) {
                return;
            }
            self.departing.pop_front();
        }
        while let Some((deadline, due)) = self.timers.pop_due(now, &mut budget) {
            let (locks, mut cx) = self.split(now, deadline, out);
            match due {
                Due::Lease(holder) => locks.lease_ended(&mut cx, holder),
                Due::Wait(waiter) => locks.wait_ended(&mut cx, waiter),
                Due::Collection => locks.collect(&mut cx, &mut budget),
            }
        }
    }

    /// The connection is gone: its waits end now, what it held passes on (unless auto-release is
    /// off, then what it held runs out its lease).
    pub fn disconnect(&mut self, now: Nanos, id: ClientId, out: &mut Effects) {
        let Some(client) = self.clients.detach(id) else {
            return; // never asked for anything
        };
        let mut budget = WORK_PER_TURN_MAX;
        let (locks, mut cx) = self.split(now, now, out);
        if !locks.depart(&mut cx, client, &mut budget) {
            self.departing.push_back(client);
        }
    }

    /// The client said `hello`: it understands pushes, and perhaps gave a name.
    pub fn introduce(&mut self, id: ClientId, name: Option<&str>) {
        let client = self.clients.find_or_insert(id);
        self.clients[client].introduced = true;
        if let Some(name) = name {
            self.clients[client].name = Some(name.into());
        }
    }

    /// What the client called itself in [`Engine::introduce`].
    #[must_use]
    pub fn name_of(&self, id: ClientId) -> Option<&str> {
        self.clients[self.clients.find(id)?].name.as_deref()
    }

    /// Shutdown has begun: every parked command is refused now, every new acquire from now on.
    /// Releases and renewals go on, and leases still end.
    pub fn drain(&mut self, now: Nanos, out: &mut Effects) {
        self.draining = true;
        let (locks, mut cx) = self.split(now, now, out);
        locks.drain(&mut cx);
    }

    /// When [`Engine::expire`] should be called next at the latest; never later than the earliest
    /// deadline, sometimes earlier.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.departing.is_empty() {
            self.timers.next_deadline()
        } else {
            Some(Nanos(0))
        }
    }

    /// Whether the client would lose something if its connection were cut: a hold, a place, a wait.
    #[must_use]
    pub fn owns_something(&self, id: ClientId) -> bool {
        self.clients
            .find(id)
            .is_some_and(|client| !self.clients[client].owns_nothing())
    }

    fn split<'e>(
        &'e mut self,
        now: Nanos,
        moment: Nanos,
        out: &'e mut Effects,
    ) -> (&'e mut Locks, Ctx<'e>) {
        let cx = Ctx {
            now,
            moment,
            out,
            rules: &self.rules,
            timers: &mut self.timers,
            clients: &mut self.clients,
            waiters: &mut self.waiters,
            fences: &mut self.fences,
            tally: &mut self.tally,
            draining: self.draining,
        };
        (&mut self.locks, cx)
    }
}
