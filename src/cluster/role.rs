//! Who may speak, and until when: the part of a cluster that must never be wrong.
//!
//! A pure state machine. It reads no clock and asks nobody: the time and what etcd answered are
//! arguments, so that the simulator can try everything on it. The time is one that also runs while the
//! machine sleeps (CLOCK_BOOTTIME).
//!
//! ```text
//! Standby ──granted──► Candidate ──leads──► Leader ◄──confirmed── Paused
//!    ▲                     │                  │  └──renewed too late──►│
//!    │                     ▼                  ▼                        │
//!    └──────reload────── Fenced ◄─────────────┴────────────────────────┘
//! ```
//!
//! The rule that everything hangs on: etcd counts a lease from when it answers, we count it from before
//! we asked, and stop a margin earlier. So whoever leads next was let in by etcd only after we fell
//! silent, as long as the clocks of two machines do not run apart by more than the margin covers.
//! A leader that has been silent for that reason may still be the leader; to speak again it needs a
//! renewal, and after it a transaction that etcd does only for the leader.

use crate::base::{Millis, Nanos};

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease is asked for.
    pub ttl_s: u64,
    /// How much earlier than etcd we stop.
    pub margin: Millis,
}

/// No round trip may be longer, whatever the lease: silent members of etcd would cost too much time.
const ROUND_TRIP_MAX: Millis = Millis(600);

/// How long one member of etcd may take to let us in at most, whatever the lease.
const CONNECT_MAX: Millis = Millis(2_500);

impl Terms {
    /// How long a leader waits between two renewals.
    #[must_use]
    pub fn renew_every(&self) -> Millis {
        Millis(self.ttl_s * 200)
    }

    /// How long one renewal waits for its answer.
    #[must_use]
    pub fn renew_within(&self) -> Millis {
        Millis(self.ttl_s * 100)
    }

    /// How long one member of etcd may take to let us in. That is four round trips at most: TCP, two of TLS
    /// 1.2, the version.
    #[must_use]
    pub fn connect_within(&self) -> Millis {
        Millis(self.ttl_s * 250).min(CONNECT_MAX)
    }

    /// The longest round trip to etcd with which a leader keeps its lease: also when the connection that
    /// renews it falls silent, and the next member of etcd does, too.
    #[must_use]
    pub fn round_trip_max(&self) -> Millis {
        Millis(self.ttl_s * 60).min(ROUND_TRIP_MAX)
    }
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows, and answers nobody but with where to go.
    Standby,
    /// Has a lease, and perhaps the leader's key, but has not read the whole log yet.
    Candidate,
    /// Serves.
    Leader,
    /// Leads, as far as it knows, but must not speak.
    Paused,
    /// Led, or was about to, and another one may lead now. Everything it has not said must be forgotten.
    Fenced,
}

impl Role {
    /// A word for logs and figures.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
            Self::Paused => "paused",
            Self::Fenced => "fenced",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Standby,
    /// `since` is since when its lease was good without a break, if there was one.
    Candidate {
        tenure: Tenure,
        since: Nanos,
    },
    Leader(Tenure),
    /// `renewed` is since when there has been a renewal that is good until later than now.
    Paused {
        tenure: Tenure,
        renewed: Option<Nanos>,
    },
    Fenced,
}

/// A lease, and how long it is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tenure {
    lease: u64,
    until: Nanos,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Standing {
    terms: Terms,
    state: State,
}

impl Standing {
    /// A standby.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            state: State::Standby,
        }
    }

    /// Where it stands at this instant.
    #[must_use]
    pub fn role(&self, now: Nanos) -> Role {
        match self.state {
            State::Standby => Role::Standby,
            State::Candidate { .. } => Role::Candidate,
            State::Leader(tenure) if now < tenure.until => Role::Leader,
            State::Leader(_) | State::Paused { .. } => Role::Paused,
            State::Fenced => Role::Fenced,
        }
    }

    /// Bytes may leave before this instant, and not after it. To be compared with a clock that is read
    /// after this was asked.
    #[must_use]
    pub fn speaks_until(&self) -> Nanos {
        match self.state {
            State::Leader(tenure) => tenure.until,
            _ => Nanos(0),
        }
    }

    /// The lease, if it has one.
    #[must_use]
    pub fn lease(&self) -> Option<u64> {
        match self.state {
            State::Candidate { tenure, .. }
            | State::Leader(tenure)
            | State::Paused { tenure, .. } => Some(tenure.lease),
            State::Standby | State::Fenced => None,
        }
    }

    /// Whether a guarded transaction would let it speak again.
    #[must_use]
    pub fn wants_proof(&self) -> bool {
        matches!(self.state, State::Paused { renewed, .. } if renewed.is_some())
    }

    /// A standby has asked for a lease at `sent` and was given one.
    pub fn granted(&mut self, sent: Nanos, lease: u64, ttl_s: u64) {
        if self.state == State::Standby {
            let until = self.until(sent, ttl_s);
            self.state = State::Candidate {
                tenure: Tenure { lease, until },
                since: Nanos(0),
            };
        }
    }

    /// Another one was faster, or nothing came of it for another reason.
    pub fn withdraw(&mut self) {
        if matches!(self.state, State::Candidate { .. }) {
            self.state = State::Standby;
        }
    }

    /// A candidate has read everything, and its first entry is in the log by `now`. It was sent at `sent`; 0 if
    /// that is not known. If there was a time when its lease might have been over, only an entry that was
    /// sent behind it proves that it leads.
    pub fn leads(&mut self, sent: Nanos, now: Nanos) {
        if let State::Candidate { tenure, since } = self.state {
            let is_good = now < tenure.until;
            self.state = match is_good && sent >= since {
                true => State::Leader(tenure),
                false => State::Paused {
                    tenure,
                    renewed: is_good.then_some(since),
                },
            };
        }
    }

    /// A renewal of `lease`, asked for at `sent`, was answered by `now`; 0 seconds: there is no such
    /// lease any more, so another one may lead.
    pub fn kept_alive(&mut self, lease: u64, sent: Nanos, now: Nanos, ttl_s: u64) {
        if self.lease() != Some(lease) {
            return; // of an earlier time as a leader
        }
        if ttl_s == 0 {
            return self.fence();
        }
        let later = self.until(sent, ttl_s);
        match &mut self.state {
            State::Candidate { tenure, since } => {
                if now >= tenure.until {
                    *since = now;
                }
                tenure.until = tenure.until.max(later);
            }
            State::Leader(tenure) if now < tenure.until => {
                tenure.until = tenure.until.max(later);
            }
            // It was silent, perhaps without having noticed.
            State::Leader(tenure) => {
                let tenure = Tenure {
                    lease,
                    until: tenure.until.max(later),
                };
                self.state = State::Paused {
                    tenure,
                    renewed: (now < tenure.until).then_some(now),
                };
            }
            State::Paused { tenure, renewed } => {
                let was_good = now < tenure.until;
                tenure.until = tenure.until.max(later);
                let is_good = now < tenure.until;
                *renewed = match (was_good, is_good) {
                    (true, _) => renewed.or(Some(now)),
                    (false, true) => Some(now),
                    (false, false) => None,
                };
            }
            State::Standby | State::Fenced => {}
        }
    }

    /// A transaction that etcd does only for the leader was sent at `sent`, and done by `now`.
    pub fn confirmed(&mut self, sent: Nanos, now: Nanos) {
        if let State::Paused {
            tenure,
            renewed: Some(renewed),
        } = self.state
            && sent >= renewed
            && now < tenure.until
        {
            self.state = State::Leader(tenure);
        }
    }

    /// Another one leads, or nobody; or we resign.
    pub fn fence(&mut self) {
        if self.lease().is_some() {
            self.state = State::Fenced;
        }
    }

    /// The same, unless the lease is another one by now.
    pub fn fence_of(&mut self, lease: u64) {
        if self.lease() == Some(lease) {
            self.fence();
        }
    }

    /// What it had is forgotten, and it follows again.
    pub fn reload(&mut self) {
        if self.state == State::Fenced {
            self.state = State::Standby;
        }
    }

    fn until(&self, sent: Nanos, ttl_s: u64) -> Nanos {
        let ttl = Millis::from_secs(ttl_s);
        let good_for = Millis(ttl.0.saturating_sub(self.terms.margin.0));
        sent.after(good_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        ttl_s: 5,
        margin: Millis(500),
    };

    fn ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// Asked for its lease at 0, and leads since 10 ms.
    fn leader() -> Standing {
        let mut standing = Standing::new(TERMS);
        standing.granted(ms(0), 7, 5);
        assert_eq!(standing.role(ms(5)), Role::Candidate);
        assert_eq!(standing.speaks_until(), Nanos(0));
        standing.leads(ms(6), ms(10));
        standing
    }

    /// The connection that renews falls silent, the next member of etcd says nothing at all, the one after it is at
    /// the longest distance: the lease is renewed in time.
    #[test]
    fn a_lease_is_renewed_in_time_at_the_longest_round_trip_although_a_member_of_etcd_is_silent() {
        for ttl_s in 3..=60 {
            let terms = Terms {
                ttl_s,
                margin: Millis((ttl_s * 100).max(500)),
            };
            let trip = terms.round_trip_max().0;
            assert!(trip * 4 <= terms.connect_within().0, "{ttl_s} s");
            assert!(trip < terms.renew_within().0, "{ttl_s} s");
            let silent = terms.renew_within().0 + terms.connect_within().0;
            let renewed = terms.renew_every().0 + silent + trip * 5;
            assert!(renewed < ttl_s * 1_000, "{ttl_s} s");
        }
        assert_eq!(TERMS.round_trip_max(), Millis(300));
    }

    #[test]
    fn a_leader_speaks_until_a_margin_before_its_lease_counted_from_the_question() {
        let mut standing = leader();
        assert_eq!(standing.speaks_until(), ms(4_500));
        assert_eq!(standing.role(ms(4_499)), Role::Leader);
        assert_eq!(standing.role(ms(4_500)), Role::Paused);
        // The answer came late, which helps nobody.
        standing.kept_alive(7, ms(1_000), ms(3_900), 5);
        assert_eq!(standing.speaks_until(), ms(5_500));
        // One that was asked for earlier takes nothing away.
        standing.kept_alive(7, ms(500), ms(4_000), 5);
        assert_eq!(standing.speaks_until(), ms(5_500));
    }

    /// etcd may give less or more than it was asked for, and counts what it gave.
    #[test]
    fn a_lease_is_as_long_as_etcd_said_and_not_as_it_was_asked_for() {
        let mut standing = Standing::new(TERMS);
        standing.granted(ms(0), 7, 3);
        standing.leads(ms(5), ms(10));
        assert_eq!(standing.speaks_until(), ms(2_500));
        standing.kept_alive(7, ms(1_000), ms(1_010), 2);
        assert_eq!(standing.speaks_until(), ms(2_500), "it was good until then");
        standing.kept_alive(7, ms(2_000), ms(2_010), 2);
        assert_eq!(standing.speaks_until(), ms(3_500));
        standing.kept_alive(7, ms(3_000), ms(3_010), 9);
        assert_eq!(standing.speaks_until(), ms(11_500));
    }

    #[test]
    fn after_a_silence_a_renewal_is_not_enough() {
        let mut standing = leader();
        assert!(!standing.wants_proof(), "what would it prove?");
        standing.kept_alive(7, ms(4_400), ms(4_710), 5);
        assert_eq!(standing.role(ms(4_710)), Role::Paused);
        assert_eq!(standing.speaks_until(), Nanos(0));
        assert!(standing.wants_proof());
        standing.confirmed(ms(4_700), ms(4_800));
        assert_eq!(
            standing.role(ms(4_800)),
            Role::Paused,
            "sent before the renewal"
        );
        standing.confirmed(ms(4_720), ms(4_800));
        assert_eq!(standing.role(ms(4_800)), Role::Leader);
        assert_eq!(standing.speaks_until(), ms(8_900));
    }

    #[test]
    fn a_renewal_that_is_over_by_the_proof_counts_for_nothing() {
        let mut standing = leader();
        standing.kept_alive(7, ms(5_000), ms(5_010), 5);
        standing.kept_alive(7, ms(5_100), ms(5_110), 5);
        standing.confirmed(ms(5_200), ms(9_600));
        assert_eq!(standing.role(ms(9_600)), Role::Paused);
        // And the next one begins anew.
        standing.kept_alive(7, ms(9_700), ms(9_710), 5);
        standing.confirmed(ms(9_650), ms(9_720));
        assert_eq!(standing.role(ms(9_720)), Role::Paused);
        standing.confirmed(ms(9_715), ms(9_730));
        assert_eq!(standing.role(ms(9_730)), Role::Leader);
    }

    #[test]
    fn a_lease_that_is_gone_fences_for_good() {
        let mut standing = leader();
        standing.kept_alive(6, ms(20), ms(30), 0);
        assert_eq!(standing.role(ms(30)), Role::Leader, "of an earlier lease");
        standing.kept_alive(7, ms(20), ms(30), 0);
        assert_eq!(standing.role(ms(30)), Role::Fenced);
        standing.kept_alive(7, ms(40), ms(50), 5);
        standing.confirmed(ms(60), ms(70));
        standing.leads(ms(75), ms(80));
        standing.granted(ms(80), 8, 5);
        assert_eq!(standing.role(ms(80)), Role::Fenced);
        assert_eq!(standing.speaks_until(), Nanos(0));
        standing.reload();
        assert_eq!(standing.role(ms(90)), Role::Standby);
    }

    #[test]
    fn who_reads_the_log_for_too_long_begins_silent() {
        let mut standing = Standing::new(TERMS);
        standing.granted(ms(0), 7, 5);
        standing.leads(ms(4_400), ms(4_500));
        assert_eq!(standing.role(ms(4_500)), Role::Paused);
        standing.kept_alive(7, ms(4_600), ms(4_610), 5);
        standing.confirmed(ms(4_620), ms(4_630));
        assert_eq!(standing.role(ms(4_630)), Role::Leader);
        // Renewed in time it would not have been.
        let mut standing = Standing::new(TERMS);
        standing.granted(ms(0), 7, 5);
        standing.kept_alive(7, ms(1_000), ms(1_010), 5);
        standing.leads(ms(0), ms(5_400));
        assert_eq!(standing.role(ms(5_400)), Role::Leader);
    }

    /// What was written before the break proves nothing about the time behind it.
    #[test]
    fn a_candidate_whose_lease_was_in_doubt_proves_that_it_leads() {
        let candidate = || {
            let mut standing = Standing::new(TERMS);
            standing.granted(ms(0), 7, 5);
            standing.kept_alive(7, ms(4_400), ms(4_600), 5);
            standing
        };
        let mut early = candidate();
        early.leads(ms(4_000), ms(4_700));
        assert_eq!(early.role(ms(4_700)), Role::Paused);
        assert!(early.wants_proof());
        early.confirmed(ms(4_710), ms(4_720));
        assert_eq!(early.role(ms(4_720)), Role::Leader);
        let mut late = candidate();
        late.leads(ms(4_600), ms(4_700));
        assert_eq!(late.role(ms(4_700)), Role::Leader);
        let mut found = candidate();
        found.leads(ms(0), ms(4_700));
        assert_eq!(found.role(ms(4_700)), Role::Paused);
    }

    #[test]
    fn a_margin_as_long_as_the_lease_never_speaks() {
        let terms = Terms {
            ttl_s: 1,
            margin: Millis(2_000),
        };
        let mut standing = Standing::new(terms);
        standing.granted(ms(100), 7, 1);
        standing.leads(ms(100), ms(100));
        assert_eq!(standing.role(ms(100)), Role::Paused);
    }
}
