//! Whom the renewal thread asks next when a grant has no connection: where it was, whoever leads by now, then every other
//! member in turn; with a pause after each round.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::address::Server;
use super::clock;
use super::cluster::{Cluster, contains};
use super::conn::Conn;

/// The first pause, and the longest: for one server, and for several.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX_ALONE: Duration = Duration::from_secs(2);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The longest for several while one of them is there and does not lead: another one may lead any
/// moment.
const BACKOFF_MAX_LED: Duration = Duration::from_millis(500);

/// How long one of several members may take to answer, if others do.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How often in a round somebody who says where the leader is is believed.
const HOPS_MAX: usize = 8;

/// A round asks every member, who led last, where it was before, and whoever these tell of. No more, even if others find new leaders
/// all the time.
const OTHERS_MAX: usize = 2;

/// A life of a server.
pub(super) struct Life {
    pub(super) epoch: u64,
    pub(super) server: Arc<Server>,
}

impl Life {
    pub(super) fn of(conn: &Conn) -> Self {
        Self {
            epoch: conn.epoch,
            server: Arc::clone(&conn.server),
        }
    }
}

/// Where one grant is with its search for a server.
pub(super) struct Rotation {
    members: usize,
    /// Those that were asked in this round.
    asked: Vec<Arc<Server>>,
    /// Where somebody has sent us.
    sent_to: Option<Arc<Server>>,
    hops: usize,
    /// A member was there in this round or the last one, and did not lead.
    is_somebody_there: bool,
    /// Connections that did not last, or rounds without one, one after the other.
    failures: u32,
}

impl Rotation {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self {
            members: cluster.members.len(),
            asked: Vec::new(),
            sent_to: None,
            hops: 0,
            is_somebody_there: false,
            failures: 0,
        }
    }

    /// There is one server in the list.
    fn is_alone(&self) -> bool {
        self.members == 1
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// A connection has broken that was good for long, or was not. Returns how long to wait.
    pub(super) fn broke(&mut self, was_good: bool) -> Duration {
        if was_good {
            self.failures = 0;
        }
        self.begin_round()
    }

    /// This one could not be reached, or does not lead; it was `before` that had the grant. Returns how long to wait before
    /// the next is asked.
    pub(super) fn failed(
        &mut self,
        cluster: &Cluster,
        before: &Arc<Server>,
        server: Option<Arc<Server>>,
        is_there: bool,
    ) -> Duration {
        self.is_somebody_there |= is_there;
        if let Some(server) = &server {
            cluster.forget_leader(server);
        }
        self.asked.extend(server);
        let candidates = self.candidates(cluster, before);
        let is_unfinished = self.asked.len() < self.members + self.hops + OTHERS_MAX
            && candidates.iter().any(|it| !contains(&self.asked, it));
        match self.sent_to.is_some() || is_unfinished {
            true => Duration::ZERO,
            false => self.begin_round(),
        }
    }

    fn begin_round(&mut self) -> Duration {
        self.asked.clear();
        self.hops = 0;
        let longest = match self.is_alone() {
            true => BACKOFF_MAX_ALONE,
            false if self.is_somebody_there => BACKOFF_MAX_LED,
            false => BACKOFF_MAX,
        };
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => BACKOFF
                .saturating_mul(1 << (failures - 1).min(10))
                .min(longest),
        };
        self.failures += 1;
        clock::jittered(pause)
    }

    /// There is a server that has what we look for.
    pub(super) fn is_good(&mut self) {
        (self.asked, self.sent_to, self.hops) = (Vec::new(), None, 0);
        self.is_somebody_there = false;
    }

    /// Somebody says that this one leads; not believed for ever, nor of one that was just asked.
    pub(super) fn hop_to(&mut self, server: Arc<Server>) {
        if self.hops < HOPS_MAX && !contains(&self.asked, &server) {
            self.hops += 1;
            self.sent_to = Some(server);
        }
    }

    /// This one leads.
    pub(super) fn go_to(&mut self, server: Arc<Server>) {
        self.sent_to = Some(server);
    }

    /// Whom to ask.
    pub(super) fn next(&mut self, cluster: &Cluster, before: &Arc<Server>) -> Arc<Server> {
        if let Some(server) = self.sent_to.take() {
            return server;
        }
        let candidates = self.candidates(cluster, before);
        let mut left = candidates.iter().filter(|it| !contains(&self.asked, it));
        let next = left.next().or_else(|| candidates.first());
        // There is at least one member.
        next.map_or_else(|| Arc::clone(before), Arc::clone)
    }

    /// Who may have it, the best guess first.
    fn candidates(&self, cluster: &Cluster, before: &Arc<Server>) -> Vec<Arc<Server>> {
        let mut candidates = cluster.candidates();
        // Where it was before is the best guess, once.
        let is_first = self.failures <= 1 && !contains(&candidates[..1], before);
        if is_first {
            candidates.insert(0, Arc::clone(before));
        }
        candidates
    }

    /// How long this one may take, which is the only one that there is, or one of several.
    pub(super) fn limit(&self, is_only: bool, connect_timeout: Duration) -> Duration {
        // One that is slow gets more time, and later if others are there.
        let doublings = match self.is_somebody_there {
            true => self.failures / 4,
            false => self.failures,
        };
        match is_only {
            true => connect_timeout,
            false => ATTEMPT
                .saturating_mul(1 << doublings.min(4))
                .min(connect_timeout),
        }
    }
}

/// Finds out where the server is now, on a thread of its own because that may take seconds: the next
/// attempt to connect goes there.
pub(super) fn resolve_again(server: &Arc<Server>) {
    if !server.begins_to_resolve() {
        return;
    }
    let theirs = Arc::clone(server);
    let thread = thread::Builder::new().name("latch-resolve".to_owned());
    let thread = thread.spawn(move || {
        let _ = theirs.resolve(); // the old addresses stay if there are no new ones
        theirs.has_resolved();
    });
    if thread.is_err() {
        server.has_resolved();
    }
}
