//! What a timer of the engine stands for, in four bytes, because every lease has a timer.
//!
//! Data only: `Engine::expire` in `mod.rs` pops the timers and calls the file that decides
//! (`lock.rs`, `two_phase.rs`, `kv.rs`, `list.rs`, `barrier.rs`, `counter.rs`, `clients.rs`,
//! `ranges/`).

/// What a timer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due(u32);

/// The same as an enum, to be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The lease of this holder ends.
    Lease(u32),
    /// The wait of this waiter's parked command is over.
    Wait(u32),
    /// The time to live of this value is over.
    Value(u32),
    /// This ticket, whose lease has ended, was remembered for long enough.
    Ticket(u32),
    /// This client has had no connection for its time to live.
    Client(u32),
    /// It is time to forget idle keys of locks.
    Locks,
    /// It is time to forget idle counters at 0.
    Counters,
    /// Searches for deadlocks go on.
    Searches,
    /// It is time to look at those whom the order of a queue of ranges keeps waiting.
    Barging,
    /// The grace period is over.
    Grace,
    /// The time is over for which range locks are kept for this owner, a client, after a restart.
    Pending(u32),
}

impl Due {
    pub(super) const LOCKS: Self = Self(Self::CHORES);
    pub(super) const COUNTERS: Self = Self(Self::CHORES | 1);
    pub(super) const SEARCHES: Self = Self(Self::CHORES | 2);
    pub(super) const BARGING: Self = Self(Self::CHORES | 3);
    pub(super) const GRACE: Self = Self(Self::CHORES | 4);

    /// The kind is in the top three bits (one of its eight values is still free), the index in
    /// the rest.
    const KIND_SHIFT: u32 = 29;
    const LEASES: u32 = 0;
    const WAITS: u32 = 1 << Self::KIND_SHIFT;
    const VALUES: u32 = 2 << Self::KIND_SHIFT;
    const TICKETS: u32 = 3 << Self::KIND_SHIFT;
    const CLIENTS: u32 = 4 << Self::KIND_SHIFT;
    const PENDING: u32 = 5 << Self::KIND_SHIFT;
    const CHORES: u32 = 7 << Self::KIND_SHIFT;

    pub(super) fn lease(holder: u32) -> Self {
        Self::of(Self::LEASES, holder)
    }

    pub(super) fn wait(waiter: u32) -> Self {
        Self::of(Self::WAITS, waiter)
    }

    pub(super) fn value(entry: u32) -> Self {
        Self::of(Self::VALUES, entry)
    }

    pub(super) fn ticket(ticket: u32) -> Self {
        Self::of(Self::TICKETS, ticket)
    }

    pub(super) fn client(client: u32) -> Self {
        Self::of(Self::CLIENTS, client)
    }

    pub(super) fn pending(owner: u32) -> Self {
        Self::of(Self::PENDING, owner)
    }

    fn of(kind: u32, index: u32) -> Self {
        assert!(
            index >> Self::KIND_SHIFT == 0,
            "more than 2^29 entries of one kind with a timer"
        );
        Self(kind | index)
    }

    pub(super) fn what(self) -> What {
        let index = self.0 & !Self::CHORES;
        match self.0 & Self::CHORES {
            Self::LEASES => What::Lease(index),
            Self::WAITS => What::Wait(index),
            Self::VALUES => What::Value(index),
            Self::TICKETS => What::Ticket(index),
            Self::CLIENTS => What::Client(index),
            Self::PENDING => What::Pending(index),
            _ if self == Self::LOCKS => What::Locks,
            _ if self == Self::SEARCHES => What::Searches,
            _ if self == Self::BARGING => What::Barging,
            _ if self == Self::GRACE => What::Grace,
            _ => What::Counters,
        }
    }
}
