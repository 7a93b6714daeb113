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

/// How long the end of a process waits for a lease to be given back, whatever etcd does: it ends by itself.
const GIVE_BACK_MOST: Duration = Duration::from_secs(1);

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
    /// The thread that follows has ended.
    has_followed: AtomicBool,
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
            has_followed: AtomicBool::new(false),
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

    /// It is about to end, and does not serve: it leads no more, if it was about to. What lease it has for that is given
    /// back by the thread that follows, or nobody could lead until it is over.
    pub(super) fn give_up(&self) {
        let lease = self.tenancy.change(|standing, _| {
            let lease = standing.lease();
            standing.fence();
            lease
        });
        self.unused_lease
            .store(lease.unwrap_or(0), Ordering::SeqCst);
    }

    /// The lease of [`Member::give_up`].
    pub(super) fn unused_lease(&self) -> Option<u64> {
        let lease = self.unused_lease.load(Ordering::SeqCst);
        (lease != 0).then_some(lease)
    }

    /// The thread that follows has ended.
    pub(super) fn follows_no_more(&self) {
        self.has_followed.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Waits until the lease of [`Member::give_up`] is given back, if there is one, for a moment at most.
    pub(super) fn await_give_back(&self) {
        let began = self.tenancy.now();
        while self.unused_lease().is_some() {
            let heard = self.bell.heard();
            let spent = Duration::from_nanos(self.tenancy.now().since(began));
            let left = GIVE_BACK_MOST.saturating_sub(spent);
            if self.has_followed.load(Ordering::SeqCst) || left.is_zero() {
                return;
            }
            self.place().wait(&self.bell, heard, left);
        }
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

    /// What its threads stand in.
    pub(super) fn place(&self) -> &Arc<dyn Place> {
        self.tenancy.place()
    }

    /// A fraction of the time to live.
    pub(super) fn ttl_part(&self, part: u32) -> Duration {
        Duration::from_secs(self.options.terms.ttl_s) / part
    }
}

#[cfg(test)]
mod tests {
    use super::super::role::Role;
    use super::super::testing::{member, options};
    use super::*;

    #[test]
    fn whoever_ends_before_it_leads_waits_a_moment_for_its_lease_to_be_given_back() {
        let (none, place) = member(options());
        none.give_up();
        none.await_give_back();
        assert_eq!((none.unused_lease(), place.take_waits()), (None, vec![]));

        let (candidate, place) = member(options());
        candidate
            .tenancy
            .change(|standing, now| standing.granted(now, 7, 5));
        candidate.give_up();
        assert_eq!(candidate.tenancy.role(), Role::Fenced);
        assert_eq!(candidate.unused_lease(), Some(7));
        candidate.await_give_back();
        assert_eq!(place.take_waits(), [GIVE_BACK_MOST], "etcd does not answer");
        candidate.follows_no_more();
        candidate.await_give_back();
        assert!(place.take_waits().is_empty());
    }
}
