//! What is counted at the HTTP door, and of connections at both doors.
//!
//! Plain counters of a fixed size: nothing here grows with clients, and nothing is decided by it. What
//! they look like is in `metrics.rs`.

use super::super::Door;

/// What a client does with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum LeaseOp {
    /// It wants one.
    Acquire,
    /// It wants it to last longer.
    Renew,
    /// It lets it go.
    Release,
}

impl LeaseOp {
    /// All of them, in the order of their discriminants.
    pub(super) const ALL: [Self; 3] = [Self::Acquire, Self::Renew, Self::Release];

    /// The word that people see.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
        }
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Outcome {
    /// It was done.
    Success,
    /// Somebody else holds the lock, or the lease is over.
    Fail,
    /// The server cannot do it now: `BUSY_RETRY`.
    Busy,
}

impl Outcome {
    /// All of them, in the order of their discriminants.
    pub(super) const ALL: [Self; 3] = [Self::Success, Self::Fail, Self::Busy];

    /// The word that people see.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Fail => "fail",
            Self::Busy => "busy",
        }
    }
}

/// How many bounds the latencies of leases have: 1, 2, 4 … 2,048 milliseconds.
pub(super) const LATENCY_BOUNDS: usize = 12;

/// How long requests for leases took, in LockServer's buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latency {
    /// How many took at most so long, and longer than the bound before; the last has no bound.
    pub(super) counts: [u64; LATENCY_BOUNDS + 1],
    pub(super) sum_ns: u128,
}

impl Latency {
    /// What a bucket goes up to, in milliseconds.
    pub(super) const fn bound_ms(bucket: usize) -> u64 {
        1 << bucket
    }

    fn observe(&mut self, ns: u64) {
        let fits = |&bucket: &usize| ns <= Self::bound_ms(bucket) * 1_000_000;
        let bucket = (0..LATENCY_BOUNDS).find(fits);
        self.counts[bucket.unwrap_or(LATENCY_BOUNDS)] += 1;
        self.sum_ns += u128::from(ns);
    }
}

/// Who came to a door.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DoorFigures {
    /// Let in.
    pub(super) accepted: u64,
    /// Gone, of those.
    pub(super) closed: u64,
    /// Not let in, because there are as many as there may be.
    pub(super) refused: u64,
}

/// How many classes of status there are: 1xx to 5xx.
pub(super) const STATUS_CLASSES: usize = 5;

/// The counters.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct HttpFigures {
    leases: [[u64; Outcome::ALL.len()]; LeaseOp::ALL.len()],
    latencies: [Latency; LeaseOp::ALL.len()],
    answers: [u64; STATUS_CLASSES],
    requests: u64,
    doors: [DoorFigures; 2],
}

/// What the serving says.
impl HttpFigures {
    /// A request was read.
    pub(in crate::server) fn note_request(&mut self) {
        self.requests += 1;
    }

    /// A request was answered with this status.
    pub(in crate::server) fn note_answer(&mut self, status: u16) {
        let class = usize::from(status / 100).clamp(1, STATUS_CLASSES);
        self.answers[class - 1] += 1;
    }

    /// A request on a route for leases was answered so.
    pub(in crate::server) fn note_lease(&mut self, op: LeaseOp, outcome: Outcome) {
        self.leases[op as usize][outcome as usize] += 1;
    }

    /// And took so long, from its last byte to its answer, the time in a queue included.
    pub(in crate::server) fn note_latency(&mut self, op: LeaseOp, ns: u64) {
        self.latencies[op as usize].observe(ns);
    }

    /// A connection was let in.
    pub(in crate::server) fn note_accepted(&mut self, door: Door) {
        self.doors[door as usize].accepted += 1;
    }

    /// A connection that was let in has ended.
    pub(in crate::server) fn note_closed(&mut self, door: Door) {
        self.doors[door as usize].closed += 1;
    }

    /// A connection was closed at once, because there are as many as there may be.
    pub(in crate::server) fn note_refused(&mut self, door: Door) {
        self.doors[door as usize].refused += 1;
    }
}

/// What is shown.
impl HttpFigures {
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn answers(&self) -> &[u64; STATUS_CLASSES] {
        &self.answers
    }

    pub(super) fn leases(&self, op: LeaseOp, outcome: Outcome) -> u64 {
        self.leases[op as usize][outcome as usize]
    }

    pub(super) fn latency(&self, op: LeaseOp) -> &Latency {
        &self.latencies[op as usize]
    }

    pub(super) fn door(&self, door: Door) -> DoorFigures {
        self.doors[door as usize]
    }

    /// How many connections are open that came by this door.
    pub(super) fn open(&self, door: Door) -> u64 {
        let DoorFigures {
            accepted, closed, ..
        } = self.door(door);
        accepted - closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_at_most_the_bound_of_its_bucket() {
        let mut it = Latency::default();
        let ms = 1_000_000;
        for (ns, bucket) in [
            (0, 0),
            (ms, 0),
            (ms + 1, 1),
            (2_048 * ms, 11),
            (2_048 * ms + 1, 12),
            (u64::MAX, 12),
        ] {
            let before = it.counts[bucket];
            it.observe(ns);
            assert_eq!(it.counts[bucket], before + 1, "{ns}");
        }
        assert!(it.sum_ns > u128::from(u64::MAX), "a sum never wraps");
    }

    #[test]
    fn statuses_are_counted_by_class() {
        let mut it = HttpFigures::default();
        for status in [100, 200, 204, 304, 404, 409, 503, 999, 0] {
            it.note_answer(status);
        }
        assert_eq!(it.answers(), &[2, 2, 1, 2, 2]);
    }
}
