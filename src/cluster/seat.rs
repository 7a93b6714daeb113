//! The store of a member: a standby's keeps nothing and says where to go, a leader's is etcd.

use std::sync::Arc;

use super::member::Member;
use super::role::Role;
use crate::base::{Millis, Nanos};
use crate::engine::types::Record;
use crate::shard::Shard;
use crate::store::etcd::EtcdStore;
use crate::store::{ClusterShown, Progress, Redirect, Store};

/// The store of a member.
pub enum Seat {
    /// Follows.
    Standby(Arc<Member>),
    /// Leads.
    Leader(Arc<Member>, EtcdStore),
}

impl Seat {
    fn member(&self) -> &Arc<Member> {
        match self {
            Self::Standby(member) | Self::Leader(member, _) => member,
        }
    }

    /// A leader gives its lease back: see [`EtcdStore::resign`].
    pub(super) fn resign(&mut self) {
        if let Self::Leader(_, store) = self {
            store.resign();
        }
    }

    /// Whether that is done. A member that ends before it leads may have a lease to give back, too.
    pub(super) fn has_resigned(&self) -> bool {
        match self {
            Self::Standby(member) => member.unused_lease().is_none(),
            Self::Leader(_, store) => store.has_resigned(),
        }
    }
}

impl Store for Seat {
    fn is_durable(&self) -> bool {
        matches!(self, Self::Leader(..))
    }

    fn append(&mut self, now: Nanos, record: &Record) {
        if let Self::Leader(_, store) = self {
            store.append(now, record);
        }
    }

    fn commit(&mut self, now: Nanos) {
        if let Self::Leader(_, store) = self {
            store.commit(now);
        }
    }

    fn progress(&mut self) -> Progress {
        match self {
            Self::Standby(_) => Progress {
                durable: u64::MAX,
                ..Progress::default()
            },
            Self::Leader(_, store) => store.progress(),
        }
    }

    fn is_behind(&self) -> bool {
        matches!(self, Self::Leader(_, store) if store.is_behind())
    }

    fn memory(&self) -> usize {
        match self {
            Self::Standby(_) => 0,
            Self::Leader(_, store) => store.memory(),
        }
    }

    fn stop(&mut self) -> Result<(), String> {
        match self {
            Self::Standby(_) => Ok(()),
            Self::Leader(_, store) => store.stop(),
        }
    }

    fn may_speak(&self) -> bool {
        match self {
            Self::Standby(_) => true,
            Self::Leader(_, store) => store.may_speak(),
        }
    }

    fn redirect(&self) -> Option<Redirect> {
        match self {
            Self::Standby(member) => Some(member.leader()),
            Self::Leader(..) => None,
        }
    }

    fn shard(&self) -> Option<Shard> {
        let shard = self.member().options.shard;
        (!shard.is_whole()).then_some(shard)
    }

    fn cluster_ttl(&self) -> Option<Millis> {
        Some(Millis::from_secs(self.member().options.terms.ttl_s))
    }

    fn leader_of(&self, shard: u32) -> Redirect {
        self.member().leader_of(shard)
    }

    fn cluster(&self) -> Option<ClusterShown> {
        let member = self.member();
        let role = match (self, member.tenancy.role()) {
            // What this server does counts, and not what it is about to become.
            (Self::Standby(_), Role::Leader | Role::Paused) => Role::Candidate,
            (_, role) => role,
        };
        let options = &member.options;
        let leader = match self {
            Self::Standby(_) => member.leader(),
            Self::Leader(..) => options.redirect(),
        };
        let now = member.tenancy.now();
        let quota_bytes = options.quota_bytes;
        let figures = &member.figures;
        Some(figures.shown(now, role.word(), options.shard, leader, quota_bytes))
    }
}
