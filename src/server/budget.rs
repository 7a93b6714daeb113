//! What one turn may spend, over all connections. Whatever clients can make large is charged here.
//!
//! While a turn lasts, nobody else is heard, so it should take about two milliseconds. The unit is a
//! nanosecond of an ordinary machine: each piece of work has a price that was measured once. Prices
//! and not the clock, because the same inputs must give the same turns in the simulator, and because
//! a look at the clock for each piece would cost more than most pieces.
//!
//! Work that does not fit is left for the next turn. Each part of a turn may begin whatever was
//! spent before it and has a least share, so that none can keep another from going on for ever.

use std::ops::{Index, IndexMut};

use crate::wire::buf::SPARE_BYTES_MAX;

/// What a turn takes, about.
pub(super) const TURN_NS: u64 = 2_000_000;

/// Where the run queue stops serving connections that have hung up, of which some still read and all
/// hold what somebody may wait for; and what it spends on them at least, however many hung up or were
/// accepted just before.
pub(super) const HUNG_UP_NS: u64 = 400_000;
pub(super) const HUNG_UP_NS_MIN: u64 = 200_000;

/// Where a turn stops serving connections that have sent something since they were last served, and
/// what it spends on them at least. The writes of their answers are in this.
pub(super) const FRESH_NS: u64 = 1_200_000;
pub(super) const FRESH_NS_MIN: u64 = 400_000;

/// Where a turn stops working off deadlines and departures, and what it spends on them at least. It is
/// no more than that while somebody has hung up and was not served since: 200 owners of 10,000 locks
/// each kept one who left with them, and was waited for, from being served for 16 ms; now it is 7.
pub(super) const TIME_NS: u64 = TURN_NS;
pub(super) const TIME_NS_MIN: u64 = 500_000;

/// Where a turn stops serving connections that had more than their first share, and what it spends on
/// them at least.
pub(super) const MORE_NS: u64 = 1_500_000;
pub(super) const MORE_NS_MIN: u64 = 300_000;

/// What a turn spends on handshakes, if somebody has sent a part of one; at least one is served.
pub(super) const HANDSHAKES_NS: u64 = 500_000;

/// What a turn spends at least on connections that were answered after waiting and have sent more.
pub(super) const RESUMED_NS_MIN: u64 = 300_000;

/// What a turn spends at most on sending to connections that were waiting, and to those that asked. All
/// that was charged when it was said fits into this; what does not is a crowd, and is sent to over
/// several turns.
pub(super) const FLUSH_AWAITED_NS: u64 = 800_000;
pub(super) const FLUSH_ANSWERED_NS: u64 = 800_000;

/// What a turn spends at least on sending to connections that are only pushed something, and to those
/// that are owed much, of which this is two or three.
pub(super) const FLUSH_PUSHED_NS_MIN: u64 = 400_000;
pub(super) const FLUSH_BULK_NS_MIN: u64 = 300_000;

/// What it costs to look at a connection that turns out to have nothing to read or to send.
const LOOK_NS: u64 = 500;

/// Most connections that are served in one turn because their peer has hung up. As many as a listener
/// accepts in a turn, so that at the limit of connections one that left usually makes room for one
/// that came after it.
pub(super) const HUNG_UP_MAX: usize = 128;

/// What it costs to note that a peer has hung up. All are noted at once, and served later: ten thousand
/// take a millisecond or two.
const HANG_UP_NS: u64 = 150;

/// What it costs to accept a connection. This is done between turns, at most 128 times for each
/// listener, and the next turn does less.
const ACCEPT_NS: u64 = 5_000;

/// What a turn spends at most on closing sockets; one is closed in any case.
pub(super) const CLOSES_NS: u64 = 1_000_000;

/// What it costs to close a socket, and one that still has megabytes of unsent or unread bytes in
/// the system's buffers.
pub(super) const CLOSE_NS: u64 = 8_000;
pub(super) const CLOSE_FULL_NS: u64 = 400_000;

/// What it costs besides to tell the peer of an encrypted connection that this is the end.
pub(super) const CLOSE_ENCRYPTED_NS: u64 = 8_000;

/// What it costs to give back a KiB of what a connection has not read, or has not finished sending: 128
/// that left together, each with a MiB, made a turn of 53 ms. What is smaller than this goes back to
/// the allocator and not to the system, and costs nothing.
const FREED_NS_PER_KIB: u64 = 350;
const FREED_BYTES_MIN: usize = 128 * 1024;

/// Most timers of connections that are looked at in one turn, and what may be spent on them; most of
/// them end a connection.
pub(super) const TIMERS_MAX: u32 = 256;
pub(super) const TIMERS_NS: u64 = 300_000;

/// What a turn spends at most on a shutdown's search for connections that have nothing to finish, what
/// it costs to look at one, and to end it.
pub(super) const SWEEP_NS: u64 = 300_000;
const SWEEP_LOOK_NS: u64 = 50;
const SWEEP_END_NS: u64 = 1_500;

/// Most slow consumers closed in one turn: each has megabytes to give back.
pub(super) const SLOW_CONSUMERS_MAX: usize = 8;

/// What a read of a socket costs, and each byte of it, in quarters.
const READ_NS: u64 = 2_000;
const READ_NS_PER_4_BYTES: u64 = 1;

/// What each byte costs besides that is kept, because the rest of its request has not come yet, in an inbox
/// larger than the spare ones: the system provides that memory, page by page. Where 64 clients sent bodies of
/// 192 KiB, turns that did nothing but read took 5 to 13 ms on a busy machine, and were charged 1.5.
const KEPT_NS_PER_BYTE: u64 = 1;

/// What reading and answering one request costs, beyond what the engine says it worked.
const REQUEST_NS: u64 = 250;

/// What each byte of an answer that takes a walk costs: looking it up, escaping it, copying it.
const WALK_NS_PER_BYTE: u64 = 4;

/// What it costs to look at one slot of a table, at 64 bytes of a name, at one chunk of a body or at one
/// escape in it.
const VISIT_NS: u64 = 25;

/// What a walk costs at least, however short its answer.
const WALK_NS_MIN: u64 = 20_000;

/// What a write to a socket costs, and each two bytes of it. The write is charged when a
/// connection comes to be owed something, so that a turn serves only as many as it has time to
/// answer.
const WRITE_NS: u64 = 7_000;
const WRITE_NS_PER_2_BYTES: u64 = 4;

/// What putting a push into one more outbox costs, and each byte that is copied, in eighths.
const PUSH_NS: u64 = 60;
const PUSH_NS_PER_8_BYTES: u64 = 1;

/// What it costs to send to one connection, besides its bytes, of which there are so many.
pub(super) fn write_ns(bytes: usize) -> u64 {
    if bytes == 0 { LOOK_NS } else { WRITE_NS }
}

/// What work is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reading sockets.
    Read,
    /// Deciding requests and spelling answers.
    Decide,
    /// Ending leases, waits and values, and forgetting idle keys.
    Expire,
    /// Undoing what ended connections left behind.
    Depart,
    /// Sending.
    Write,
}

/// How much work was done for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work([u64; 5]);

impl Work {
    /// With the names that people see.
    pub(super) fn by_name(&self) -> [(&'static str, u64); 5] {
        let [read, decide, expire, depart, write] = self.0;
        [
            ("read", read),
            ("decide", decide),
            ("expire", expire),
            ("depart", depart),
            ("write", write),
        ]
    }
}

impl Index<Kind> for Work {
    type Output = u64;

    fn index(&self, kind: Kind) -> &u64 {
        &self.0[kind as usize]
    }
}

impl IndexMut<Kind> for Work {
    fn index_mut(&mut self, kind: Kind) -> &mut u64 {
        &mut self.0[kind as usize]
    }
}

/// What the present turn has spent.
#[derive(Default)]
pub(super) struct Budget {
    work: Work,
    spent: u64,
    /// The share of the connection that is being served ends when this much was spent.
    share_ends: u64,
    /// What was spent after the turn, which the next one has less.
    spent_after: u64,
    /// How many requests were served.
    requests: u64,
}

impl Budget {
    /// What the turn after this one begins with.
    pub(super) fn next_turn(&self) -> Self {
        Self {
            spent: self.spent_after,
            ..Self::default()
        }
    }

    /// How much was spent so far.
    #[inline]
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// The same, by what it was spent on.
    pub(super) fn work(&self) -> Work {
        self.work
    }

    /// How many requests were served.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    #[inline]
    pub(super) fn charge(&mut self, kind: Kind, ns: u64) {
        // Both wrap, since no turn takes centuries: to check would cost more than to add.
        self.work[kind] = self.work[kind].wrapping_add(ns);
        self.spent = self.spent.wrapping_add(ns);
    }

    /// A connection was looked at.
    #[inline]
    pub(super) fn charge_look(&mut self) {
        self.charge(Kind::Read, LOOK_NS);
    }

    /// A peer was noted to have hung up.
    pub(super) fn charge_hang_up(&mut self) {
        self.charge(Kind::Depart, HANG_UP_NS);
    }

    /// A connection was accepted, after the turn.
    pub(super) fn charge_accept(&mut self) {
        self.work[Kind::Read] += ACCEPT_NS;
        self.spent_after += ACCEPT_NS;
    }

    /// A connection was ended and closed after the turn, to make room for another one.
    pub(super) fn charge_displaced(&mut self, close_ns: u64) {
        self.work[Kind::Depart] += close_ns;
        self.spent_after += close_ns;
    }

    /// What was spent since the turn.
    pub(super) fn spent_after(&self) -> u64 {
        self.spent_after
    }

    /// A connection that ends has given back so much memory.
    pub(super) fn charge_freed(&mut self, bytes: usize) {
        if bytes >= FREED_BYTES_MIN {
            self.charge(Kind::Depart, bytes as u64 / 1024 * FREED_NS_PER_KIB);
        }
    }

    /// So many timers of connections were looked at.
    pub(super) fn charge_timers(&mut self, looks: u32) {
        self.charge(Kind::Expire, u64::from(looks) * LOOK_NS);
    }

    /// A shutdown looked at a connection, or found none in the slot.
    pub(super) fn charge_sweep_look(&mut self) {
        self.charge(Kind::Depart, SWEEP_LOOK_NS);
    }

    /// So many strangers were looked at, to end those that keep the most.
    pub(super) fn charge_strangers(&mut self, looks: usize) {
        self.charge(Kind::Depart, looks as u64 * SWEEP_LOOK_NS);
    }

    /// A shutdown ends a connection.
    pub(super) fn charge_sweep_end(&mut self) {
        self.charge(Kind::Depart, SWEEP_END_NS);
    }

    #[inline]
    pub(super) fn charge_read(&mut self, bytes: usize) {
        self.charge(Kind::Read, READ_NS + bytes as u64 / 4 * READ_NS_PER_4_BYTES);
    }

    /// Of what was read so many bytes are kept until more has come, in an inbox that has so many then.
    #[inline]
    pub(super) fn charge_kept(&mut self, bytes: usize, inbox_bytes: usize) {
        if inbox_bytes > SPARE_BYTES_MAX {
            self.charge(Kind::Read, bytes as u64 * KEPT_NS_PER_BYTE);
        }
    }

    /// A request was decided, for which the engine worked so much.
    #[inline]
    pub(super) fn charge_request(&mut self, engine_ns: u64) {
        self.requests = self.requests.wrapping_add(1);
        self.charge(Kind::Decide, REQUEST_NS + engine_ns);
    }

    /// An answer that took a walk was this long.
    pub(super) fn charge_walk(&mut self, bytes: usize) {
        let ns = bytes as u64 * WALK_NS_PER_BYTE;
        self.charge(Kind::Decide, ns.max(WALK_NS_MIN));
    }

    /// A page or a reader has looked at so many places, whatever it found there.
    pub(super) fn charge_visits(&mut self, visits: usize) {
        self.charge(Kind::Decide, visits as u64 * VISIT_NS);
    }

    /// A value of so many bytes was put into an outbox, and will be sent.
    pub(super) fn charge_value(&mut self, bytes: usize) {
        self.charge(Kind::Decide, bytes as u64 / 2 * WRITE_NS_PER_2_BYTES);
    }

    /// A push was put into an outbox, for which so many bytes were copied.
    pub(super) fn charge_push(&mut self, bytes: usize) {
        let ns = PUSH_NS + bytes as u64 / 8 * PUSH_NS_PER_8_BYTES;
        self.charge(Kind::Decide, ns);
    }

    /// A connection will be written to.
    #[inline]
    pub(super) fn charge_write(&mut self) {
        self.charge(Kind::Write, WRITE_NS);
    }

    /// So many bytes were written to a connection.
    #[inline]
    pub(super) fn charge_written(&mut self, bytes: usize) {
        self.charge(Kind::Write, bytes as u64 / 2 * WRITE_NS_PER_2_BYTES);
    }

    /// From here on a connection may spend this much.
    #[inline]
    pub(super) fn begin_share(&mut self, ns: u64) {
        self.share_ends = self.spent + ns;
    }

    /// The connection that is being served has had its share.
    #[inline]
    pub(super) fn is_share_over(&self) -> bool {
        self.spent >= self.share_ends
    }
}
