//! What one turn may spend, over all connections. Whatever clients can make large is charged here.
//!
//! While a turn lasts, nobody else is heard. A connection whose request does not
//! fit any more is served first in the next turn, when there is a new budget.

/// Most bytes of answers in one turn that take a walk (`stats`, `who`, `pos`, `lrange`); the last
/// one may exceed it.
const WALK_BYTES: usize = 1 << 20;

/// What a walk counts at least, however short its answer.
const WALK_BYTES_MIN: usize = 16 * 1024;

/// Most work of the engine in one turn for requests, in its units of about a nanosecond. After that
/// every connection is served one request at a time.
const REQUEST_WORK: u64 = 2_000_000;

/// Most work of the engine in one turn for what is due, in the same units.
pub(super) const TIME_WORK: u64 = 1_000_000;

/// Most timers of connections that are looked at in one turn.
pub(super) const TIMERS_MAX: u32 = 2048;

/// Most connections whose parked command was answered that are run on in the same turn.
pub(super) const RESUMED_MAX: usize = 4096;

/// Most connections that are served in one turn because their peer has hung up. Ten thousand at
/// once would be a stop of twenty milliseconds for everybody else. The others follow in the next
/// turns, first come, first served: some of them still read, and all hold what somebody may wait
/// for; until then they are given nothing. As many as a listener accepts in a turn, so that at the
/// limit of connections one that left usually makes room for one that came after it.
pub(super) const HUNG_UP_MAX: usize = 256;

/// Most sockets closed in one turn, which takes the system some microseconds each.
pub(super) const CLOSES_MAX: usize = 256;

/// What is left of the present turn's budget.
pub(super) struct Budget {
    walk_bytes: usize,
    /// Kept back for connections that have not hung up.
    walk_bytes_kept: usize,
    request_work: u64,
}

impl Budget {
    /// That of a new turn. Half of the walks are kept for connections that are still there, until
    /// those that have hung up are served.
    pub(super) fn new() -> Self {
        Self {
            walk_bytes: WALK_BYTES - WALK_BYTES / 2,
            walk_bytes_kept: WALK_BYTES / 2,
            request_work: REQUEST_WORK,
        }
    }

    /// The connections that have hung up had theirs.
    pub(super) fn release_walks(&mut self) {
        self.walk_bytes += std::mem::take(&mut self.walk_bytes_kept);
    }

    pub(super) fn may_walk(&self) -> bool {
        self.walk_bytes > 0
    }

    /// An answer that took a walk was this long.
    pub(super) fn charge_walk(&mut self, bytes: usize) {
        self.walk_bytes = self.walk_bytes.saturating_sub(bytes.max(WALK_BYTES_MIN));
    }

    /// Says whether there is some left for the engine to decide requests with.
    #[inline]
    pub(super) fn charge(&mut self, work: u64) -> bool {
        self.request_work = self.request_work.saturating_sub(work);
        self.request_work > 0
    }
}
