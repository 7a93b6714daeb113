//! What the engine is given once: the rules that an operator sets, and where its numbers begin.
//!
//! Data only. `config` has the settings that become rules, and what they mean to users.

use super::salts::SaltKey;
use super::types::Notes;
use super::waits::SearchLimits;
use crate::base::Millis;

/// The rules an operator sets.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Most keys of locks; 0 is no limit. At the limit the key that has been idle longest makes
    /// room; if none is idle, a new key is refused.
    pub locks_max: u32,
    /// Most grants at one time, over all keys; 0 is no limit but 2^28. A request for one more is
    /// refused; whoever is in a queue by then is still granted.
    pub holds_max: u32,
    /// Most waiters in one queue; 0 is no limit.
    pub waiters_per_key_max: u32,
    /// Most counters, values, lists and barriers together; 0 is no limit.
    pub keys_max: u32,
    /// Most values in one list; 0 is no limit.
    pub list_length_max: u32,
    /// Most patterns and keys one client listens to, watches and observes; 0 is no limit.
    pub subscriptions_max: u32,
    /// The lease of a request that names none.
    pub lease_default: Millis,
    /// Whether the holds of a client are released when its connection ends.
    pub auto_release: bool,
    /// Most clients of one adapter, with a connection or away; 0 is no limit.
    pub clients_per_adapter_max: u32,
    /// Most clients of some adapters.
    pub clients_max: Vec<ClientLimit>,
    /// Most range locks of one resource; 0 is no limit.
    pub ranges_per_resource_max: u32,
    /// Most range locks of one client; 0 is no limit.
    pub ranges_per_client_max: u32,
    /// Most range locks; 0 is no limit.
    pub ranges_max: u32,
    /// Longest wait for a range lock, whatever a client asks for; zero is no limit.
    pub range_wait_max: Millis,
    /// How long range locks are kept after a restart for the clients that held them, at least: a longer
    /// time to live of the client counts instead.
    pub grace_period: Millis,
    /// What is refused meanwhile.
    pub grace_policy: GracePolicy,
    /// Least time between two garbage collections.
    pub gc_interval: Millis,
    /// How long a key may be idle before it is forgotten.
    pub gc_idle_max: Millis,
    /// Whether every request that would wait for itself is refused, and not only those of connections
    /// that ask for it: see [`Input::DetectDeadlocks`](super::types::Input::DetectDeadlocks).
    pub deadlock_detection: bool,
    /// How far is looked for that.
    pub search_limits: SearchLimits,
    /// Which notes are taken for the log.
    pub notes: Notes,
    /// Whether changes are recorded, so that they outlive the process, and what is said about them
    /// is marked: see [`Record`](super::types::Record) and [`Effect::Mark`](super::types::Effect::Mark).
    pub durable: bool,
    /// The number of this life of the server, which clients are told.
    pub epoch: u64,
    /// The time of day at instant zero of the engine's clock, in nanoseconds since 1970.
    pub zero_ns: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            locks_max: 1_000_000,
            holds_max: 10_000_000,
            waiters_per_key_max: 0,
            keys_max: 1_000_000,
            list_length_max: 1_000_000,
            subscriptions_max: 0,
            lease_default: Millis::from_secs(33),
            auto_release: true,
            clients_per_adapter_max: 10_000,
            clients_max: Vec::new(),
            ranges_per_resource_max: 1_000,
            ranges_per_client_max: 10_000,
            ranges_max: 100_000,
            range_wait_max: Millis::from_secs(60),
            grace_period: Millis::from_secs(90),
            grace_policy: GracePolicy::Held,
            gc_interval: Millis::from_secs(5),
            gc_idle_max: Millis::from_secs(60),
            deadlock_detection: false,
            search_limits: SearchLimits::default(),
            notes: Notes::Off,
            durable: false,
            epoch: 1,
            zero_ns: 0,
        }
    }
}

/// Most clients of one adapter, with a connection or away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimit {
    /// The adapter.
    pub adapter: Box<str>,
    /// How many.
    pub clients: u32,
}

/// What is refused while clients have back what they held before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GracePolicy {
    /// Locks on bytes that somebody held before the restart and has not had back yet.
    Held,
    /// All new range locks.
    Strict,
}

/// What the outside world gives the engine once, at the start.
pub struct Origin {
    /// Every fence will be above this.
    pub fence: u64,
    /// Seed of the key table's hash, secret from clients.
    pub seed: [u64; 2],
    /// The key that the salts of tokens are made with, secret from clients.
    pub salt_key: SaltKey,
}
