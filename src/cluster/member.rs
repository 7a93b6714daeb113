//! What all threads of a member share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::leader_key::redirect;
use super::role::Terms;
use crate::base::{Millis, Nanos};
use crate::etcd::Etcd;
use crate::shard::Shard;
use crate::store::Redirect;
use crate::store::etcd::{Bell, Figures, MapKeys, Place, Tenancy};

/// What an operator sets, and what is drawn at the start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the cluster.
    pub cluster: String,
    /// Which keys of its clients this member has, when it leads.
    pub shard: Shard,
    /// Leases.
    pub terms: Terms,
    /// Where other members send the line clients of this one, when it leads.
    pub advertise: String,
    /// The same for HTTP, as a URL without a path; empty if it has none.
    pub advertise_http: String,
    /// The longest value of an entry, and of a piece of a snapshot.
    pub batch_bytes: usize,
    /// After so many bytes of log there is a snapshot.
    pub trim_bytes: u64,
    /// How large etcd's database may become, as etcd was told.
    pub quota_bytes: u64,
    /// Whether etcd is told to forget what was trimmed.
    pub compacts: bool,
    /// A number that no other process has.
    pub nonce: u64,
}

impl Options {
    /// Where clients have to go when this member leads.
    #[must_use]
    pub fn redirect(&self) -> Redirect {
        redirect(&self.advertise, &self.advertise_http)
    }
}

/// A member of a cluster, as its threads see it.
pub struct Member {
    /// What was set.
    pub options: Options,
    /// Where it stands.
    pub tenancy: Arc<Tenancy>,
    /// What is counted.
    pub figures: Arc<Figures>,
    leader: Mutex<Redirect>,
    others: Mutex<Others>,
    /// It lets others lead until then.
    rests_until: AtomicU64,
    is_over: AtomicBool,
    /// The lease with which this member was about to lead when it was told to end; 0 is none.
    unused_lease: AtomicU64,
    bell: Arc<Bell>,
    /// A way to etcd for whoever writes the log, connected already, and the lease with which it is to be used.
    warm: Mutex<Option<(u64, Box<dyn Etcd + Send>)>>,
}

/// The leaders of all shards.
#[derive(Default)]
struct Others {
    /// Where they are to be found; none before the map was read.
    keys: Option<MapKeys>,
    leaders: Vec<Redirect>,
}

impl Member {
    /// A standby.
    #[must_use]
    pub fn new(options: Options, place: Arc<dyn Place>) -> Arc<Self> {
        let tenancy = Tenancy::new(options.terms, place);
        Arc::new(Self {
            options,
            tenancy: Arc::new(tenancy),
            figures: Arc::default(),
            leader: Mutex::default(),
            others: Mutex::default(),
            rests_until: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            unused_lease: AtomicU64::new(0),
            bell: Arc::default(),
            warm: Mutex::default(),
        })
    }

    /// Where clients have to go, as far as it is known.
    #[must_use]
    pub fn leader(&self) -> Redirect {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        leader.clone()
    }

    pub(super) fn set_leader(&self, redirect: Redirect) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = redirect;
    }

    /// Where clients have to go with keys of another shard, as far as it is known.
    #[must_use]
    pub fn leader_of(&self, shard: u32) -> Redirect {
        let others = self.others();
        others
            .leaders
            .get(shard as usize)
            .cloned()
            .unwrap_or_default()
    }

    /// Under which keys the leaders of all shards are.
    pub(super) fn map_keys(&self) -> Option<MapKeys> {
        self.others().keys.clone()
    }

    /// The map was read. What was known of leaders by another map is forgotten.
    pub(super) fn set_map(&self, keys: &MapKeys) {
        let mut others = self.others();
        if others.keys.as_ref() != Some(keys) {
            *others = Others {
                keys: Some(keys.clone()),
                leaders: Vec::new(),
            };
        }
        drop(others);
        self.bell.ring();
    }

    /// The leaders were looked up under these keys.
    pub(super) fn set_leaders(&self, keys: &MapKeys, leaders: Vec<Redirect>) {
        let mut others = self.others();
        if others.keys.as_ref() == Some(keys) {
            others.leaders = leaders;
        }
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has resigned: another one shall lead, if there is one within two times to live.
    pub fn rest(&self) {
        let ttl = Millis::from_secs(self.options.terms.ttl_s);
        let until = self.tenancy.now().after(Millis(ttl.0 * 2));
        self.rests_until.store(until.0, Ordering::SeqCst);
    }

    /// Another one leads, and may be taken over from.
    pub(super) fn end_rest(&self) {
        self.rests_until.store(0, Ordering::SeqCst);
    }

    /// Whether it leaves it to others to lead.
    pub(super) fn rests(&self) -> bool {
        self.tenancy.now() < Nanos(self.rests_until.load(Ordering::SeqCst))
    }

    /// A way to etcd for whoever writes the log.
    pub(super) fn etcd_of_log(&self) -> Box<dyn Etcd + Send> {
        self.place().etcd_of_log(self.options.nonce as usize % 64)
    }

    /// Keeps such a way for whoever leads with this lease. If it is over already there is nobody to use it.
    pub(super) fn keep_warm(&self, lease: u64, etcd: Box<dyn Etcd + Send>) {
        let is_wanted = self.tenancy.change(|standing, _| standing.lease()) == Some(lease);
        if is_wanted {
            *self.warm() = Some((lease, etcd));
        }
    }

    /// The one that was kept, if it is for this time as a leader, or another one.
    pub(super) fn take_warm(&self) -> Box<dyn Etcd + Send> {
        let lease = self.tenancy.change(|standing, _| standing.lease());
        let warm = self.warm().take();
        let warm = warm.filter(|(with, _)| Some(*with) == lease);
        warm.map_or_else(|| self.etcd_of_log(), |(_, etcd)| etcd)
    }

    fn warm(&self) -> MutexGuard<'_, Option<(u64, Box<dyn Etcd + Send>)>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process ends: no thread of it tries to lead from now on.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// It is about to end, and does not serve: it leads no more, if it was about to. The thread that renews its
    /// lease gives it back; otherwise no member could lead before that lease ends.
    pub(super) fn give_up(&self) {
        self.tenancy.change(|standing, _| {
            if let Some(lease) = standing.lease() {
                self.unused_lease.store(lease, Ordering::SeqCst);
            }
            standing.fence();
        });
    }

    /// The lease of [`Member::give_up`].
    pub(super) fn unused_lease(&self) -> Option<u64> {
        let lease = self.unused_lease.load(Ordering::SeqCst);
        (lease != 0).then_some(lease)
    }

    /// The lease of [`Member::give_up`] is given back.
    pub(super) fn gave_back(&self) {
        self.unused_lease.store(0, Ordering::SeqCst);
        self.tenancy.wake();
    }

    /// Whether the process ends.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// What it had as a leader is forgotten: it follows again.
    pub fn reload(&self) {
        self.tenancy.change(|standing, _| standing.reload());
        self.bell.ring();
    }

    /// Waits until something has happened, or for so long at most.
    pub(super) fn nap(&self, most: Duration) {
        let heard = self.bell.heard();
        if !self.is_over() {
            self.place().wait(&self.bell, heard, most);
        }
    }

    /// Waits for so long, also while the process ends.
    pub(super) fn pause(&self, span: Duration) {
        let nobody_rings = Arc::default();
        self.place().wait(&nobody_rings, 0, span);
    }

    /// What its threads stand in.
    pub(super) fn place(&self) -> &Arc<dyn Place> {
        self.tenancy.place()
    }

    /// A fraction of the time to live.
    pub(super) fn ttl_part(&self, part: u32) -> Duration {
        Duration::from_secs(self.options.terms.ttl_s) / part
    }
}
