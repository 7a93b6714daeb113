//! What a timer of the engine stands for, in four bytes: a timer for every lease carries one.

/// What a timer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due(u32);

/// The same, to be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// This holder's lease ends.
    Lease(u32),
    /// This waiter's parked command has waited long enough.
    Wait(u32),
    /// This value's time is over.
    Value(u32),
    /// This ticket, whose lease ran out, was remembered for long enough.
    Ticket(u32),
    /// Idle keys of locks are to be forgotten.
    Locks,
    /// Idle counters at 0 are to be forgotten.
    Counters,
}

impl Due {
    pub(super) const LOCKS: Self = Self(Self::CHORES);
    pub(super) const COUNTERS: Self = Self(Self::CHORES | 1);

    /// The kind is in the top three bits, of which three are still free, whose it is in the rest.
    const KIND_SHIFT: u32 = 29;
    const LEASES: u32 = 0;
    const WAITS: u32 = 1 << Self::KIND_SHIFT;
    const VALUES: u32 = 2 << Self::KIND_SHIFT;
    const TICKETS: u32 = 3 << Self::KIND_SHIFT;
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

    fn of(kind: u32, index: u32) -> Self {
        assert!(
            index >> Self::KIND_SHIFT == 0,
            "more than 2^29 things with a timer"
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
            _ if self == Self::LOCKS => What::Locks,
            _ => What::Counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out() {
        for index in [0, 1, (1 << 29) - 1] {
            assert_eq!(Due::lease(index).what(), What::Lease(index));
            assert_eq!(Due::wait(index).what(), What::Wait(index));
            assert_eq!(Due::value(index).what(), What::Value(index));
            assert_eq!(Due::ticket(index).what(), What::Ticket(index));
        }
        assert_eq!(Due::LOCKS.what(), What::Locks);
        assert_eq!(Due::COUNTERS.what(), What::Counters);
    }

    #[test]
    #[should_panic = "more than 2^29"]
    fn an_index_that_does_not_fit_is_not_cut_short() {
        let _ = Due::wait(1 << 29);
    }
}
